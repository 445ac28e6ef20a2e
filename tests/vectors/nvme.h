/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bytes as they stand in the specifications, typed by hand and not made by our own builders. A row
 * is a field, with its offset. Whoever changes a struct has to change the document first.
 */
#ifndef KVOF_TESTS_VECTORS_NVME_H
#define KVOF_TESTS_VECTORS_NVME_H

#include <stdint.h>

/* ICReq: no digest, HPDA 0, MAXR2T 1 (0's based 0) */
static const uint8_t vec_icreq[128] __attribute__((unused)) = {
	0x00, 0x00, 0x80, 0x00, 0x80, 0x00, 0x00, 0x00,      /* type flags hlen pdo plen */
	0x00, 0x00,                                          /* 8 PFV */
	0x00, 0x00,                                          /* 10 HPDA, 11 DGST */
	0x00, 0x00, 0x00, 0x00,                              /* 12 MAXR2T */
};

/* ICResp: both digests, CPDA 0, MAXH2CDATA 131072 */
static const uint8_t vec_icresp[128] __attribute__((unused)) = {
	0x01, 0x00, 0x80, 0x00, 0x80, 0x00, 0x00, 0x00,
	0x00, 0x00,
	0x00, 0x03,
	0x00, 0x00, 0x02, 0x00,
};

/* Connect, in the capsule: CID 0, queue 0, 32 entries, keep alive 120 s */
static const uint8_t vec_connect[72] __attribute__((unused)) = {
	0x04, 0x00, 0x48, 0x48, 0x48, 0x04, 0x00, 0x00,      /* PLEN 448h = 72 + 1024 */
	0x7f, 0x40, 0x00, 0x00,                              /* opcode, PSDT SGL, CID */
	0x01, 0, 0, 0,  0, 0, 0, 0,  0, 0, 0, 0,             /* FCTYPE, reserved */
	0, 0, 0, 0,  0, 0, 0, 0,
	0, 0, 0, 0, 0, 0, 0, 0,                              /* SGL1: offset 0 */
	0x00, 0x04, 0x00, 0x00, 0x00, 0x00, 0x00, 0x01,      /* 1024 bytes, in the capsule */
	0x00, 0x00,                                          /* RECFMT */
	0x00, 0x00,                                          /* QID */
	0x1f, 0x00,                                          /* SQSIZE, 0's based */
	0x00, 0x00,                                          /* CATTR */
	0xc0, 0xd4, 0x01, 0x00,                              /* KATO 120000 ms */
	0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
};

/* Property Set CC = 00460061h: enable, all command sets */
static const uint8_t vec_property_set_cc[64] __attribute__((unused)) = {
	0x7f, 0x40, 0x00, 0x00, 0x00, 0, 0, 0,  0, 0, 0, 0, 0, 0, 0, 0,
	0, 0, 0, 0, 0, 0, 0, 0,
	0, 0, 0, 0, 0, 0, 0, 0,  0, 0, 0, 0, 0, 0, 0, 0x5a, /* SGL1: no data */
	0x00, 0, 0, 0,                                       /* ATTRIB: 4 bytes */
	0x14, 0x00, 0x00, 0x00,                              /* OFST: CC */
	0x61, 0x00, 0x46, 0x00, 0, 0, 0, 0,                  /* VALUE */
	0, 0, 0, 0, 0, 0, 0, 0,
};

/* Property Get CAP */
static const uint8_t vec_property_get_cap[64] __attribute__((unused)) = {
	0x7f, 0x40, 0x00, 0x00, 0x04, 0, 0, 0,  0, 0, 0, 0, 0, 0, 0, 0,
	0, 0, 0, 0, 0, 0, 0, 0,
	0, 0, 0, 0, 0, 0, 0, 0,  0, 0, 0, 0, 0, 0, 0, 0x5a,
	0x01, 0, 0, 0,                                       /* ATTRIB: 8 bytes */
	0x00, 0x00, 0x00, 0x00,
	0, 0, 0, 0, 0, 0, 0, 0,  0, 0, 0, 0, 0, 0, 0, 0,
};

/* KV Store if absent, key 10h..1Fh, 4096 bytes, namespace 1 */
static const uint8_t vec_kv_store[64] __attribute__((unused)) = {
	0x01, 0x40, 0x00, 0x00,
	0x01, 0x00, 0x00, 0x00,                              /* NSID */
	0x10, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17,      /* CDW2..3: key 0..7 */
	0, 0, 0, 0, 0, 0, 0, 0,                              /* MPTR */
	0, 0, 0, 0, 0, 0, 0, 0,                              /* SGL1 */
	0x00, 0x10, 0x00, 0x00, 0x00, 0x00, 0x00, 0x5a,
	0x00, 0x10, 0x00, 0x00,                              /* CDW10: value size */
	0x10, 0x02, 0x00, 0x00,                              /* CDW11: key length 16, option 2 */
	0, 0, 0, 0, 0, 0, 0, 0,                              /* CDW12..13 */
	0x18, 0x19, 0x1a, 0x1b, 0x1c, 0x1d, 0x1e, 0x1f,      /* CDW14..15: key 8..15 */
};

/* What Mooncake's executor sends for a Store: CDW12 = blocks - 1, key byte 11 = 01h */
static const uint8_t vec_kv_store_mooncake[64] __attribute__((unused)) = {
	0x01, 0x40, 0x00, 0x00,
	0x01, 0x00, 0x00, 0x00,
	0xa0, 0xa1, 0xa2, 0xa3, 0xa4, 0xa5, 0xa6, 0xa7,
	0, 0, 0, 0, 0, 0, 0, 0,
	0, 0, 0, 0, 0, 0, 0, 0,
	0x00, 0x20, 0x04, 0x00, 0x00, 0x00, 0x00, 0x5a,      /* 270336 bytes */
	0x00, 0x20, 0x04, 0x00,
	0x10, 0x02, 0x00, 0x00,
	0x0f, 0x02, 0x00, 0x00, 0, 0, 0, 0,                  /* CDW12 = 527 */
	0xb0, 0xb1, 0xb2, 0x01, 0xb4, 0xb5, 0xb6, 0xb7,      /* CDW14 bits 31:24 = 01h */
};

/* NVM Write: namespace 2, blocks 1122h..1129h */
static const uint8_t vec_nvm_write[64] __attribute__((unused)) = {
	0x01, 0x40, 0x00, 0x00,
	0x02, 0x00, 0x00, 0x00,
	0, 0, 0, 0, 0, 0, 0, 0,  0, 0, 0, 0, 0, 0, 0, 0,
	0, 0, 0, 0, 0, 0, 0, 0,
	0x00, 0x10, 0x00, 0x00, 0x00, 0x00, 0x00, 0x5a,
	0x22, 0x11, 0, 0, 0, 0, 0, 0,                        /* SLBA */
	0x07, 0x00,                                          /* NLB, 0's based */
	0x00, 0x40,                                          /* FUA */
	0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
};

/* Get Log Page: discovery, 1024 bytes at offset 1024 */
static const uint8_t vec_get_discovery_log[64] __attribute__((unused)) = {
	0x02, 0x40, 0x00, 0x00, 0, 0, 0, 0,  0, 0, 0, 0, 0, 0, 0, 0,
	0, 0, 0, 0, 0, 0, 0, 0,
	0, 0, 0, 0, 0, 0, 0, 0,
	0x00, 0x04, 0x00, 0x00, 0x00, 0x00, 0x00, 0x5a,
	0x70, 0x00, 0xff, 0x00,                              /* LID, NUMDL = 255 */
	0x00, 0x00, 0x00, 0x00,
	0x00, 0x04, 0x00, 0x00, 0, 0, 0, 0,                  /* LPOL, LPOU */
	0, 0, 0, 0, 0, 0, 0, 0,
};

/* H2CData: CID 5, TTAG 9, bytes 4096..8191, last, both digests: PLEN = 24 + 4 + 4096 + 4 */
static const uint8_t vec_h2c_data[24] __attribute__((unused)) = {
	0x06, 0x07, 0x18, 0x1c, 0x20, 0x10, 0x00, 0x00,
	0x05, 0x00,                                          /* CCCID */
	0x09, 0x00,                                          /* TTAG */
	0x00, 0x10, 0x00, 0x00,                              /* DATAO */
	0x00, 0x10, 0x00, 0x00,                              /* DATAL */
	0, 0, 0, 0,
};

/* C2HData: CID 5, bytes 0..511, not last, HPDA 15 (64 bytes): data begins at 64 */
static const uint8_t vec_c2h_data_padded[24] __attribute__((unused)) = {
	0x07, 0x00, 0x18, 0x40, 0x40, 0x02, 0x00, 0x00,
	0x05, 0x00, 0x00, 0x00,
	0x00, 0x00, 0x00, 0x00,
	0x00, 0x02, 0x00, 0x00,
	0, 0, 0, 0,
};

/* R2T: CID 5, TTAG 9, 131072 bytes at 65536, header digest */
static const uint8_t vec_r2t[24] __attribute__((unused)) = {
	0x09, 0x01, 0x18, 0x00, 0x1c, 0x00, 0x00, 0x00,
	0x05, 0x00, 0x09, 0x00,
	0x00, 0x00, 0x01, 0x00,
	0x00, 0x00, 0x02, 0x00,
	0, 0, 0, 0,
};

/* CapsuleResp: success, CID 5, SQHD 3, DW0 8192 */
static const uint8_t vec_resp[24] __attribute__((unused)) = {
	0x05, 0x00, 0x18, 0x00, 0x18, 0x00, 0x00, 0x00,
	0x00, 0x20, 0x00, 0x00, 0, 0, 0, 0,                  /* DW0, DW1 */
	0x03, 0x00, 0x00, 0x00,                              /* SQHD, reserved */
	0x05, 0x00, 0x00, 0x00,                              /* CID, status */
};

/* C2HTermReq: invalid header field at byte 2, with the 8 bytes that were wrong */
static const uint8_t vec_termreq[32] __attribute__((unused)) = {
	0x03, 0x00, 0x18, 0x00, 0x20, 0x00, 0x00, 0x00,
	0x01, 0x00,                                          /* FES */
	0x02, 0x00, 0x00, 0x00,                              /* FEI */
	0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
	0x04, 0x00, 0x47, 0x48, 0x48, 0x04, 0x00, 0x00,
};

/* CQE status fields (bytes 14..15), DNR where a retry can't help */
static const struct {
	uint16_t raw;
	uint8_t bytes[2];
} vec_status[] __attribute__((unused)) = {
	{0x002, {0x04, 0x80}},                               /* 0/02 invalid field */
	{0x182, {0x04, 0x83}},                               /* 1/82 Connect invalid parameters */
	{0x022, {0x44, 0x00}},                               /* 0/22 transient transport error */
	{0x087, {0x0e, 0x01}},                               /* 0/87 key does not exist */
};

/* List answer of "a" and 010203040506h: count, then records padded to 4 */
static const uint8_t vec_kv_list[16] __attribute__((unused)) = {
	0x02, 0x00, 0x00, 0x00,
	0x01, 0x00, 0x61, 0x00,
	0x06, 0x00, 0x01, 0x02, 0x03, 0x04, 0x05, 0x06,
};

/* Namespace descriptors: NGUID, then CSI 01h */
static const uint8_t vec_descriptors[25] __attribute__((unused)) = {
	0x02, 0x10, 0x00, 0x00,
	0x10, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17,
	0x18, 0x19, 0x1a, 0x1b, 0x1c, 0x1d, 0x1e, 0x1f,
	0x04, 0x01, 0x00, 0x00, 0x01,
};

#endif
