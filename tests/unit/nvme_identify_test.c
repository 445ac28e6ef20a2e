/* SPDX-License-Identifier: Apache-2.0 */
#include "kt.h"

#include <errno.h>

#include "../vectors/nvme.h"
#include "base/must.h"
#include "nvme/feature.h"
#include "nvme/identify.h"
#include "nvme/log.h"

static const struct nv_cap cap = {.queue_entries_max = 128, .css_iocs = true,
				  .page_shift_min = 12, .page_shift_max = 12};

static struct nv_id_controller good_controller(void)
{
	struct nv_id_controller id = {
		.mdts = 11, .cntlid = le16_of(7), .sqes = 0x66, .cqes = 0x44, .nn = le32_of(2),
		.sgls = le32_of(NV_SGLS_ANY | NV_SGLS_OFFSET | NV_SGLS_TRANSPORT),
		.ioccsz = le32_of(4 + 512), .iorcsz = le32_of(1), .kas = le16_of(10),
		.cntrltype = NV_CNTRLTYPE_IO,
	};

	nv_text_pad(id.sn, sizeof(id.sn), "S1");
	nv_text_pad(id.mn, sizeof(id.mn), "kvof");
	nv_text_pad(id.fr, sizeof(id.fr), "0.1.0");
	memcpy(id.subnqn, "nqn.2026-11.io.kvof:array", 26);
	return id;
}

TEST(a_host_takes_limits_and_names_from_identify_controller)
{
	struct nv_id_controller id = good_controller();
	struct nv_controller_facts facts;
	struct bad bad;

	kt_noise(&facts, sizeof(facts));
	expect_int(nv_id_controller_check(&id, &cap, &facts, &bad), 0);
	expect_int(facts.transfer_bytes_max, 8 * MiB);
	expect_int(facts.capsule_data_bytes, 8192);
	expect_int(facts.keep_alive_unit_ms, 1000);
	expect_int(facts.namespaces_max, 2);
	expect_int(facts.cntlid, 7);
	expect_str(facts.serial, "S1");
	expect_str(facts.model, "kvof");
	expect_str(facts.firmware, "0.1.0");
	expect_str(facts.subnqn, "nqn.2026-11.io.kvof:array");
	id.mdts = 0;
	expect_int(nv_id_controller_check(&id, &cap, &facts, &bad), 0);
	expect(facts.transfer_bytes_max == UINT64_MAX);
}

#define EXPECT_CONTROLLER_REFUSED(member, value)                                                   \
	do {                                                                                       \
		struct nv_id_controller id = good_controller();                                    \
		struct nv_controller_facts facts;                                                  \
		struct bad bad;                                                                    \
                                                                                                   \
		id.member = value;                                                                 \
		expect_int(nv_id_controller_check(&id, &cap, &facts, &bad), -EPROTO);              \
		expect_int(bad.offset, offsetof(struct nv_id_controller, member));                 \
	} while (0)

TEST(a_controller_that_talks_nonsense_is_refused_with_the_byte)
{
	EXPECT_CONTROLLER_REFUSED(mdts, 255);
	EXPECT_CONTROLLER_REFUSED(mdts, 52);
	EXPECT_CONTROLLER_REFUSED(sqes, 0);
	EXPECT_CONTROLLER_REFUSED(sqes, 0x77);
	EXPECT_CONTROLLER_REFUSED(sqes, 0x55);
	EXPECT_CONTROLLER_REFUSED(cqes, 0);
	EXPECT_CONTROLLER_REFUSED(nn, le32_of(0));
	EXPECT_CONTROLLER_REFUSED(sgls, le32_of(0));
	EXPECT_CONTROLLER_REFUSED(ioccsz, le32_of(3));
	EXPECT_CONTROLLER_REFUSED(ioccsz, le32_of(UINT32_MAX));
	EXPECT_CONTROLLER_REFUSED(iorcsz, le32_of(0));
	EXPECT_CONTROLLER_REFUSED(icdoff, le16_of(1));
}

TEST(text_of_a_controller_never_holds_control_bytes)
{
	struct nv_id_controller id = good_controller();
	struct nv_controller_facts facts;
	struct bad bad;

	memset(id.mn, 0x1b, sizeof(id.mn));
	memset(id.subnqn, 'x', sizeof(id.subnqn));
	expect_int(nv_id_controller_check(&id, &cap, &facts, &bad), 0);
	expect_int(strlen(facts.model), 40);
	expect_int(facts.model[0], '?');
	expect_str(facts.subnqn, "");
}

static struct nv_id_kv_namespace good_kv(void)
{
	struct nv_id_kv_namespace id = {.nsze = le64_of(1 * GiB), .nuse = le64_of(5)};

	id.kvf[0] = (struct nv_kv_format){.key_bytes_max = le16_of(16),
					  .value_bytes_max = le32_of(8 * MiB)};
	id.nguid[0] = 9;
	return id;
}

TEST(a_kv_namespace_says_bytes_key_and_value_limits)
{
	struct nv_id_kv_namespace id = good_kv();
	struct nv_kv_facts facts;
	struct bad bad;

	kt_noise(&facts, sizeof(facts));
	expect_int(nv_id_kv_namespace_check(&id, &facts, &bad), 0);
	expect(facts.capacity_bytes == 1 * GiB);
	expect_int(facts.used_bytes, 5);
	expect_int(facts.value_bytes_max, 8 * MiB);
	expect_int(facts.key_bytes_max, 16);
	expect_int(facts.keys_max, 0);
	expect_int(facts.nguid[0], 9);
}

TEST(a_kv_namespace_without_keys_values_or_room_is_refused)
{
	struct nv_kv_facts facts;
	struct bad bad;
	struct nv_id_kv_namespace id = good_kv();

	id.nsze = le64_of(0);
	expect_int(nv_id_kv_namespace_check(&id, &facts, &bad), -EPROTO);
	id = good_kv();
	id.kvf[0].value_bytes_max = le32_of(0);
	expect_int(nv_id_kv_namespace_check(&id, &facts, &bad), -EPROTO);
	id = good_kv();
	id.kvf[0].key_bytes_max = le16_of(0);
	expect_int(nv_id_kv_namespace_check(&id, &facts, &bad), -EPROTO);
	id.kvf[0].key_bytes_max = le16_of(17);
	expect_int(nv_id_kv_namespace_check(&id, &facts, &bad), -EPROTO);
	id = good_kv();
	id.kvfc = 1;
	expect_int(nv_id_kv_namespace_check(&id, &facts, &bad), -EPROTO);
}

TEST(a_block_namespace_with_a_wild_block_size_is_refused)
{
	struct nv_id_namespace id = {.nsze = le64_of(1000)};
	struct nv_block_facts facts;
	struct bad bad;

	id.lbaf[0].data_shift = 12;
	expect_int(nv_id_namespace_check(&id, &facts, &bad), 0);
	expect_int(facts.block_bytes, 4096);
	for (unsigned shift = 0; shift < 256; shift++) {
		id.lbaf[0].data_shift = (uint8_t)shift;
		expect_int(nv_id_namespace_check(&id, &facts, &bad),
			   shift >= 9 && shift <= 16 ? 0 : -EPROTO);
	}
	id.lbaf[0].data_shift = 9;
	id.flbas = 1;
	expect_int(nv_id_namespace_check(&id, &facts, &bad), -EPROTO);
	id.flbas = 0;
	id.nsze = le64_of(UINT64_MAX);
	expect_int(nv_id_namespace_check(&id, &facts, &bad), -EPROTO);
}

TEST(descriptors_are_laid_out_as_the_document_has_them)
{
	struct nv_ns_ids ids = {.csi = NV_CSI_KV}, back;
	uint8_t out[NV_IDENTIFY_BYTES];
	struct bad bad;

	for (uint8_t i = 0; i < 16; i++)
		ids.nguid[i] = (uint8_t)(0x10 + i);
	kt_noise(out, sizeof(out));
	nv_ns_ids_write(&ids, out);
	expect_mem(out, vec_descriptors, sizeof(vec_descriptors));
	expect(bytes_all_zero(out + sizeof(vec_descriptors), 4096 - sizeof(vec_descriptors)));
	kt_noise(&back, sizeof(back));
	expect_int(nv_ns_ids_read(out, &back, &bad), 0);
	expect(back.csi_given);
	expect_int(back.csi, NV_CSI_KV);
	expect_mem(back.nguid, ids.nguid, 16);
}

TEST(descriptors_that_run_past_the_end_are_a_protocol_error)
{
	uint8_t in[NV_IDENTIFY_BYTES] = {NV_NIDT_UUID, 15};
	struct nv_ns_ids ids;
	struct bad bad;

	expect_int(nv_ns_ids_read(in, &ids, &bad), -EPROTO);
	in[0] = 0x77;
	in[1] = 255;
	for (size_t at = 0; at + 4 < sizeof(in); at += 259) {
		in[at] = 0x77;
		in[at + 1] = 255;
	}
	expect_int(nv_ns_ids_read(in, &ids, &bad), -EPROTO);
	expect(bad.offset > 3800);
}

TEST(identify_get_log_and_features_are_read_as_they_are_built)
{
	struct nv_identify want = {.cns = NV_CNS_CSI_NAMESPACE, .csi = NV_CSI_KV, .nsid = 3};
	struct nv_sqe sqe = nv_identify_build(&want);
	struct nv_identify got = nv_identify_parse(&sqe);
	struct nv_log log = {.lid = NV_LOG_DISCOVERY, .bytes = 1024, .offset = 1024}, log_got;
	struct nv_feature f = {.fid = NV_FEAT_QUEUES, .cdw11 = 0x00030003, .save = true}, f_got;
	struct bad bad;

	expect_int(sqe.opcode, 0x06);
	expect_int(got.cns, 5);
	expect_int(got.csi, 1);
	expect_int(got.nsid, 3);
	expect_int(sqe.cdw11.b[3], 1);
	sqe = nv_log_build(&log);
	expect_mem(&sqe, vec_get_discovery_log, 64);
	kt_noise(&log_got, sizeof(log_got));
	expect(nv_status_ok(nv_log_parse(&sqe, &log_got, &bad)));
	expect_int(log_got.bytes, 1024);
	expect_int(log_got.offset, 1024);
	sqe = nv_feature_set_build(&f);
	f_got = nv_feature_set_parse(&sqe);
	expect(f_got.save);
	expect_int(f_got.fid, 7);
	expect_int(f_got.cdw11, 0x00030003);
}

TEST(log_offsets_that_are_odd_or_wrap_are_refused)
{
	struct nv_log log = {.lid = NV_LOG_ERROR, .bytes = 4096}, out;
	struct nv_sqe sqe = nv_log_build(&log);
	struct bad bad;

	for (uint8_t low = 1; low < 4; low++) {
		sqe.cdw12.b[0] = low;
		expect_int(nv_log_parse(&sqe, &out, &bad).raw, NV_RAW_INVALID_FIELD);
		expect_int(bad.offset, 48);
	}
	sqe.cdw12 = le32_of(0xfffffffc);
	sqe.cdw13 = le32_of(0xffffffff);
	expect_int(nv_log_parse(&sqe, &out, &bad).raw, NV_RAW_INVALID_FIELD);
	sqe = nv_log_build(&log);
	sqe.cdw10 = le32_of(0xffff0001);
	sqe.cdw11 = le32_of(0xffff);
	expect(nv_status_ok(nv_log_parse(&sqe, &out, &bad)));
	expect(out.bytes == UINT64_C(4) << 32);
}

TEST(queue_counts_are_one_based_inside_and_0s_based_outside)
{
	struct nv_queue_counts counts;
	struct bad bad;

	expect(nv_status_ok(nv_queue_counts_parse(0x00030007, &counts, &bad)));
	expect_int(counts.submission, 8);
	expect_int(counts.completion, 4);
	expect_int(nv_queue_counts_pack(counts), 0x00030007);
	expect_int(nv_queue_counts_parse(0xffff0000, &counts, &bad).raw, NV_RAW_INVALID_FIELD);
	expect_int(nv_queue_counts_parse(0x0000ffff, &counts, &bad).raw, NV_RAW_INVALID_FIELD);
	expect_int(nv_queue_counts_unpack(0xffffffff).submission, 65536);
}

TEST(select_above_3_is_refused_and_abort_names_two_ids)
{
	struct nv_feature f;
	struct nv_sqe sqe = nv_sqe_of(NV_ADMIN_GET_FEATURES, 0);
	struct bad bad;
	struct nv_abort abort_cmd;

	for (uint8_t select = 0; select < 8; select++) {
		sqe.cdw10.b[1] = select;
		expect_int(nv_status_ok(nv_feature_get_parse(&sqe, &f, &bad)), select < 4);
	}
	sqe.cdw10 = le32_of(0x12340005);
	abort_cmd = nv_abort_parse(&sqe);
	expect_int(abort_cmd.sqid, 5);
	expect_int(abort_cmd.cid, 0x1234);
}

TEST(a_discovery_entry_comes_back_as_it_was_written)
{
	struct nv_discovered in = {.trtype = NV_TRTYPE_TCP, .adrfam = NV_ADRFAM_IPV4,
				   .subtype = NV_SUBTYPE_NVM, .portid = 1, .cntlid = 0xffff,
				   .subnqn = "nqn.2026-11.io.kvof:array", .traddr = "127.0.0.1",
				   .trsvcid = "4420"}, out;
	struct nv_discovery_entry entry;
	struct bad bad;

	kt_noise(&entry, sizeof(entry));
	nv_discovery_entry_write(&in, &entry);
	kt_noise(&out, sizeof(out));
	expect_int(nv_discovery_entry_check(&entry, &out, &bad), 0);
	expect_str(out.subnqn, in.subnqn);
	expect_str(out.traddr, in.traddr);
	expect_str(out.trsvcid, in.trsvcid);
	memset(entry.trsvcid, ' ', sizeof(entry.trsvcid));
	memcpy(entry.trsvcid, "8009", 4);
	expect_int(nv_discovery_entry_check(&entry, &out, &bad), 0);
	expect_str(out.trsvcid, "8009");
	memset(entry.traddr, 'a', sizeof(entry.traddr));
	expect_int(nv_discovery_entry_check(&entry, &out, &bad), 0);
	expect_int(strlen(out.traddr), 256);
	entry.traddr[3] = '\n';
	expect_int(nv_discovery_entry_check(&entry, &out, &bad), -EPROTO);
	expect_int(bad.offset, 512);
	nv_discovery_entry_write(&in, &entry);
	memset(entry.subnqn, 'n', sizeof(entry.subnqn));
	expect_int(nv_discovery_entry_check(&entry, &out, &bad), -EPROTO);
	expect_int(bad.offset, 256);
}
