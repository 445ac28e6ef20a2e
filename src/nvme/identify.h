/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Identify: the command and the 4096-byte answers. A target fills them from zero; a host looks at
 * them through the check functions only, since a target may be broken or hostile. Pure; any thread.
 */
#ifndef KVOF_NVME_IDENTIFY_H
#define KVOF_NVME_IDENTIFY_H

#include "nvme/fabrics.h"
#include "nvme/sqe.h"

#define NV_IDENTIFY_BYTES 4096

enum nv_cns {                          /* [BASE 2.0] section 5.17 */
	NV_CNS_NAMESPACE = 0x00,
	NV_CNS_CONTROLLER = 0x01,
	NV_CNS_ACTIVE_LIST = 0x02,
	NV_CNS_DESCRIPTORS = 0x03,
	NV_CNS_CSI_NAMESPACE = 0x05,
	NV_CNS_CSI_CONTROLLER = 0x06,
	NV_CNS_CSI_ACTIVE_LIST = 0x07,
	NV_CNS_INDEPENDENT = 0x08,
	NV_CNS_ALLOCATED_LIST = 0x10,
	NV_CNS_ALLOCATED_NAMESPACE = 0x11,
	NV_CNS_COMMAND_SETS = 0x1c,
};

struct nv_identify {
	uint8_t cns;
	uint16_t cntid;
	uint8_t csi;                   /* CDW11 bits 31:24 */
	uint16_t cns_specific;         /* CDW11 bits 15:0 */
	uint32_t nsid;
};
struct nv_identify nv_identify_parse(const struct nv_sqe *sqe);
struct nv_sqe nv_identify_build(const struct nv_identify *what);

struct nv_id_controller {              /* [BASE 2.0] Figure 275, CNS 01h */
	le16 vid;
	le16 ssvid;
	uint8_t sn[20];                /* ASCII, padded with spaces */
	uint8_t mn[40];
	uint8_t fr[8];
	uint8_t rab;
	uint8_t ieee[3];
	uint8_t cmic;
	uint8_t mdts;                  /* 2^n pages of CAP.MPSMIN; 0 is no limit */
	le16 cntlid;
	le32 ver;
	le32 rtd3r;
	le32 rtd3e;
	le32 oaes;
	le32 ctratt;
	le16 rrls;
	uint8_t reserved102[9];
	uint8_t cntrltype;
	uint8_t fguid[16];
	le16 crdt[3];
	uint8_t reserved134[119];
	uint8_t nvmsr;
	uint8_t vwci;
	uint8_t mec;
	le16 oacs;
	uint8_t acl;                   /* 0's based */
	uint8_t aerl;                  /* 0's based */
	uint8_t frmw;
	uint8_t lpa;
	uint8_t elpe;                  /* 0's based */
	uint8_t npss;
	uint8_t avscc;
	uint8_t apsta;
	le16 wctemp;
	le16 cctemp;
	le16 mtfa;
	le32 hmpre;
	le32 hmmin;
	le64 tnvmcap[2];
	le64 unvmcap[2];
	le32 rpmbs;
	le16 edstt;
	uint8_t dsto;
	uint8_t fwug;
	le16 kas;                      /* keep alive granularity, 100 ms units */
	le16 hctma;
	le16 mntmt;
	le16 mxtmt;
	le32 sanicap;
	le32 hmminds;
	le16 hmmaxd;
	le16 nsetidmax;
	le16 endgidmax;
	uint8_t anatt;
	uint8_t anacap;
	le32 anagrpmax;
	le32 nanagrpid;
	le32 pels;
	le16 domainid;
	uint8_t reserved358[10];
	uint8_t megcap[16];
	uint8_t reserved384[128];
	uint8_t sqes;                  /* 66h: 64 bytes */
	uint8_t cqes;                  /* 44h: 16 bytes */
	le16 maxcmd;
	le32 nn;
	le16 oncs;
	le16 fuses;
	uint8_t fna;
	uint8_t vwc;
	le16 awun;
	le16 awupf;
	uint8_t icsvscc;
	uint8_t nwpc;
	le16 acwu;
	le16 ocfs;
	le32 sgls;
	le32 mnan;
	uint8_t maxdna[16];
	le32 maxcna;
	uint8_t reserved564[204];
	uint8_t subnqn[NV_NQN_FIELD_BYTES];
	uint8_t reserved1024[768];
	le32 ioccsz;                   /* 16-byte units; 4 is an SQE alone */
	le32 iorcsz;
	le16 icdoff;
	uint8_t fcatt;
	uint8_t msdbd;
	le16 ofcs;
	uint8_t dctype;
	uint8_t reserved1807[241];
	uint8_t psd[32][32];
	uint8_t vendor[1024];
};
_Static_assert(sizeof(struct nv_id_controller) == NV_IDENTIFY_BYTES, "CNS 01h is 4096 bytes");
_Static_assert(offsetof(struct nv_id_controller, mdts) == 77, "MDTS is byte 77");
_Static_assert(offsetof(struct nv_id_controller, ver) == 80, "VER is byte 80");
_Static_assert(offsetof(struct nv_id_controller, cntrltype) == 111, "CNTRLTYPE is byte 111");
_Static_assert(offsetof(struct nv_id_controller, oacs) == 256, "OACS is byte 256");
_Static_assert(offsetof(struct nv_id_controller, kas) == 320, "KAS is byte 320");
_Static_assert(offsetof(struct nv_id_controller, anacap) == 343, "ANACAP is byte 343");
_Static_assert(offsetof(struct nv_id_controller, sqes) == 512, "SQES is byte 512");
_Static_assert(offsetof(struct nv_id_controller, nn) == 516, "NN is byte 516");
_Static_assert(offsetof(struct nv_id_controller, sgls) == 536, "SGLS is byte 536");
_Static_assert(offsetof(struct nv_id_controller, subnqn) == 768, "SUBNQN is byte 768");
_Static_assert(offsetof(struct nv_id_controller, ioccsz) == 1792, "IOCCSZ is byte 1792");
_Static_assert(offsetof(struct nv_id_controller, psd) == 2048, "power states are byte 2048");

enum nv_id_controller_bits {
	NV_CMIC_CONTROLLERS = 1 << 1,  /* the subsystem may have several controllers */
	NV_CNTRLTYPE_IO = 1,
	NV_CNTRLTYPE_DISCOVERY = 2,
	NV_OAES_NAMESPACE = 1 << 8,
	NV_OAES_FIRMWARE = 1 << 9,
	NV_CTRATT_HOSTID_128 = 1 << 0,
	NV_CTRATT_TBKAS = 1 << 6,      /* traffic counts as keep alive */
	NV_LPA_SMART_PER_NAMESPACE = 1 << 0,
	NV_LPA_EFFECTS = 1 << 1,
	NV_LPA_EXTENDED = 1 << 2,      /* Get Log Page takes an offset */
	NV_ONCS_COMPARE = 1 << 0,
	NV_ONCS_DSM = 1 << 2,
	NV_ONCS_WRITE_ZEROES = 1 << 3,
	NV_ONCS_SAVE = 1 << 4,
	NV_ONCS_VERIFY = 1 << 7,
	NV_VWC_PRESENT = 1 << 0,
	NV_VWC_FLUSH_ALL = 3 << 1,     /* Flush takes NSID FFFFFFFFh */
	NV_SGLS_ANY = 1 << 0,          /* supported, no alignment asked */
	NV_SGLS_KEYED = 1 << 2,
	NV_SGLS_LONGER = 1 << 18,
	NV_SGLS_OFFSET = 1 << 20,      /* in-capsule data */
	NV_SGLS_TRANSPORT = 1 << 21,   /* transport data block */
	NV_OFCS_DISCONNECT = 1 << 0,
};
#define NV_OAES_DISCOVERY (UINT32_C(1) << 31)

struct nv_lba_format {                 /* [NVM 1.0] Figure 98 */
	le16 metadata_bytes;
	uint8_t data_shift;            /* LBADS: 9 is 512 bytes */
	uint8_t performance;
};

struct nv_id_namespace {               /* [NVM 1.0] Figure 97, CNS 00h */
	le64 nsze;                     /* blocks */
	le64 ncap;
	le64 nuse;
	uint8_t nsfeat;
	uint8_t nlbaf;                 /* 0's based */
	uint8_t flbas;
	uint8_t mc;
	uint8_t dpc;
	uint8_t dps;
	uint8_t nmic;
	uint8_t rescap;
	uint8_t fpi;
	uint8_t dlfeat;
	le16 nawun;
	le16 nawupf;
	le16 nacwu;
	le16 nabsn;
	le16 nabo;
	le16 nabspf;
	le16 noiob;
	le64 nvmcap[2];
	le16 npwg;
	le16 npwa;
	le16 npdg;
	le16 npda;
	le16 nows;
	le16 mssrl;
	le32 mcl;
	uint8_t msrc;
	uint8_t reserved81[11];
	le32 anagrpid;
	uint8_t reserved96[3];
	uint8_t nsattr;
	le16 nvmsetid;
	le16 endgid;
	uint8_t nguid[16];
	uint8_t eui64[8];
	struct nv_lba_format lbaf[64];
	uint8_t vendor[3712];
};
_Static_assert(sizeof(struct nv_id_namespace) == NV_IDENTIFY_BYTES, "CNS 00h is 4096 bytes");
_Static_assert(offsetof(struct nv_id_namespace, flbas) == 26, "FLBAS is byte 26");
_Static_assert(offsetof(struct nv_id_namespace, nguid) == 104, "NGUID is byte 104");
_Static_assert(offsetof(struct nv_id_namespace, lbaf) == 128, "LBA formats are byte 128");

#define KV_FORMAT_KEY_BYTES_MAX 16     /* [KV 1.0c]: KVKML shall not be above */

struct nv_kv_format {                  /* [KV 1.0c] KV format */
	le16 key_bytes_max;            /* KVKML, at most 16 */
	uint8_t reserved2;
	uint8_t options;
	le32 value_bytes_max;          /* KVVML */
	le32 keys_max;                 /* MNKS; 0 is no maximum stated */
	uint8_t reserved12[4];
};
_Static_assert(sizeof(struct nv_kv_format) == 16, "a KV format is 16 bytes");

struct nv_id_kv_namespace {            /* [KV 1.0c] Figure 42, CNS 05h with CSI 01h */
	le64 nsze;                     /* bytes, not blocks */
	uint8_t reserved8[8];
	le64 nuse;                     /* bytes */
	uint8_t nsfeat;
	uint8_t nkvf;                  /* 0's based */
	uint8_t nmic;
	uint8_t rescap;
	uint8_t fpi;
	uint8_t kvfc;                  /* bits 3:0: format in use (1.3; reserved in 1.0c) */
	uint8_t reserved30[2];
	le32 novg;                     /* optimal value granularity, bytes */
	le32 anagrpid;
	uint8_t reserved40[3];
	uint8_t nsattr;
	le16 nvmsetid;
	le16 endgid;
	uint8_t nguid[16];
	uint8_t eui64[8];
	struct nv_kv_format kvf[16];
	uint8_t reserved328[3512];
	uint8_t vendor[256];
};
_Static_assert(sizeof(struct nv_id_kv_namespace) == NV_IDENTIFY_BYTES, "CNS 05h is 4096 bytes");
_Static_assert(offsetof(struct nv_id_kv_namespace, nuse) == 16, "NUSE is byte 16");
_Static_assert(offsetof(struct nv_id_kv_namespace, nguid) == 48, "NGUID is byte 48");
_Static_assert(offsetof(struct nv_id_kv_namespace, kvf) == 72, "KV formats are byte 72");
_Static_assert(offsetof(struct nv_id_kv_namespace, vendor) == 3840, "vendor part is byte 3840");

struct nv_id_kv_controller {           /* [KV 1.0c], CNS 06h with CSI 01h */
	le32 ver;                      /* version of the command set (1.3; reserved in 1.0c) */
	uint8_t reserved4[4092];
};
_Static_assert(sizeof(struct nv_id_kv_controller) == NV_IDENTIFY_BYTES, "CNS 06h is 4096 bytes");

struct nv_id_nvm_controller {          /* [NVM 1.0] CNS 06h with CSI 00h; 0: no limit of its own */
	uint8_t vsl;
	uint8_t wzsl;
	uint8_t wusl;
	uint8_t dmrl;
	le32 dmrsl;
	le64 dmsl;
	uint8_t reserved16[4080];
};
_Static_assert(sizeof(struct nv_id_nvm_controller) == NV_IDENTIFY_BYTES, "CNS 06h is 4096 bytes");

struct nv_id_independent {             /* [BASE 2.0] Figure 280, CNS 08h */
	uint8_t nsfeat;
	uint8_t nmic;
	uint8_t rescap;
	uint8_t fpi;
	le32 anagrpid;
	uint8_t nsattr;
	uint8_t reserved9;
	le16 nvmsetid;
	le16 endgid;
	uint8_t nstat;                 /* bit 0: ready; Linux drops a namespace without it */
	uint8_t kpios;
	le16 maxkt;
	uint8_t reserved18[2];
	le32 rgrpid;
	uint8_t reserved24[4072];
};
_Static_assert(sizeof(struct nv_id_independent) == NV_IDENTIFY_BYTES, "CNS 08h is 4096 bytes");
_Static_assert(offsetof(struct nv_id_independent, nstat) == 14, "NSTAT is byte 14");

#define NV_NSTAT_READY 0x01
#define NV_NMIC_SHARED 0x01            /* may be attached to several controllers */

struct nv_id_list {                    /* CNS 02h, 07h, 10h: ascending, ends at the first zero */
	le32 nsid[1024];
};
_Static_assert(sizeof(struct nv_id_list) == NV_IDENTIFY_BYTES, "a namespace list is 4096 bytes");

struct nv_id_command_sets {            /* CNS 1Ch: 512 vectors; bit 0 NVM, bit 1 KV */
	le64 vector[512];
};
_Static_assert(sizeof(struct nv_id_command_sets) == NV_IDENTIFY_BYTES, "CNS 1Ch is 4096 bytes");

/* CNS 03h: descriptors in a row, ends at NIDL 0. Zero members are left out, but for CSI. */
struct nv_ns_ids {
	uint8_t eui64[8];
	uint8_t nguid[16];
	uint8_t uuid[16];
	uint8_t csi;
	bool csi_given;                /* read: a CSI descriptor was there (else it is NVM) */
};
enum nv_nidt { NV_NIDT_EUI64 = 1, NV_NIDT_NGUID = 2, NV_NIDT_UUID = 3, NV_NIDT_CSI = 4 };

void nv_ns_ids_write(const struct nv_ns_ids *ids, uint8_t out[NV_IDENTIFY_BYTES]);
/* -EPROTO: a length that doesn't belong to its type, or past the end; unknown types are skipped. */
int nv_ns_ids_read(const uint8_t in[NV_IDENTIFY_BYTES], struct nv_ns_ids *out, struct bad *bad);

/* ASCII into a field padded with spaces (SN, MN, FR); too long is cut. */
void nv_text_pad(uint8_t *field, size_t field_bytes, const char *text);

/* What a host takes from CNS 01h. */
struct nv_controller_facts {
	uint16_t cntlid;
	uint8_t cntrltype;             /* 0 (not reported), or NV_CNTRLTYPE_* */
	uint64_t transfer_bytes_max;   /* MDTS with the page size of CAP; UINT64_MAX: no limit */
	uint32_t namespaces_max;       /* NN */
	uint32_t capsule_data_bytes;   /* I/O queues: in-capsule data that fits (IOCCSZ), 0: none */
	uint32_t keep_alive_unit_ms;   /* 0: no Keep Alive */
	uint32_t queue_commands_max;   /* MAXCMD; 0: not stated */
	uint32_t version;
	char serial[21], model[41], firmware[9];       /* trailing spaces removed */
	char subnqn[NV_NQN_BYTES_MAX + 1];             /* empty: not given */
};

/**
 * nv_id_controller_check() - is this controller one that a host can work with?
 * @id:  4096 bytes as received
 * @cap: as read with Property Get
 * @out: filled on 0
 * @bad: filled otherwise: byte in the structure and a sentence
 *
 * Refused: MDTS that overflows, SQES or CQES that exclude 64 and 16 bytes, NN 0 on an I/O
 * controller, IOCCSZ below an SQE or above 16 MiB, IORCSZ below a CQE, ICDOFF other than 0, no SGL.
 *
 * Return: 0, or -EPROTO.
 */
int nv_id_controller_check(const struct nv_id_controller *id, const struct nv_cap *cap,
			   struct nv_controller_facts *out, struct bad *bad);

struct nv_kv_facts {                   /* what a host takes from CNS 05h of a KV namespace */
	uint64_t capacity_bytes, used_bytes;
	uint32_t value_bytes_max;
	uint16_t key_bytes_max;
	uint32_t keys_max;             /* 0: no maximum stated */
	uint32_t granularity_bytes;    /* NOVG; 0: not stated */
	uint8_t nguid[16];
};
/* -EPROTO: capacity 0, KVVML 0, KVKML 0 or above 16, format in use past the formats there are. */
int nv_id_kv_namespace_check(const struct nv_id_kv_namespace *id, struct nv_kv_facts *out,
			     struct bad *bad);

struct nv_block_facts {                /* what a host takes from CNS 00h of a block namespace */
	uint64_t blocks;
	uint32_t block_bytes;
	uint8_t nguid[16];
};
/* -EPROTO: size 0, LBADS not 9..16, metadata, size in bytes above 2^63, format past the formats. */
int nv_id_namespace_check(const struct nv_id_namespace *id, struct nv_block_facts *out,
			  struct bad *bad);

#endif
