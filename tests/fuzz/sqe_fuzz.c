/* SPDX-License-Identifier: Apache-2.0 */
/* Input: 64 bytes of a command, and 8 of limits: every parser of commands but Connect. */
#include <string.h>

#include "base/must.h"
#include "nvme/fabrics.h"
#include "nvme/feature.h"
#include "nvme/identify.h"
#include "nvme/kv.h"
#include "nvme/log.h"
#include "nvme/nvm.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void expect_reason(nv_status s, const struct bad *bad)
{
	must(nv_status_ok(s) || (bad->why != NULL && bad->offset < 64));
	must(nv_status_name(s)[0] != '?');
}

static void kv(const struct nv_sqe *sqe, uint32_t most)
{
	struct nv_kv_limits limits = {most, most};
	struct nv_kv_cmd cmd;
	struct bad bad = {0};
	nv_status s = nv_kv_parse(sqe, &limits, &cmd, &bad);

	expect_reason(s, &bad);
	if (!nv_status_ok(s))
		return;
	must(cmd.key.len <= 16 && bytes_all_zero(cmd.key.byte + cmd.key.len, 16u - cmd.key.len));
	must(cmd.bytes <= most && !(cmd.if_absent && cmd.if_present));
	must((cmd.dir == NV_DATA_NONE) == (cmd.bytes == 0));
	struct nv_sqe again = nv_kv_build(le32_get(sqe->nsid), &cmd);
	struct nv_kv_cmd same;

	must(nv_status_ok(nv_kv_parse(&again, &limits, &same, &bad)));
	must(kv_key_equal(&cmd.key, &same.key) && cmd.bytes == same.bytes);
}

static void sgl(const struct nv_sqe *sqe, uint32_t want_bytes, uint32_t capsule_bytes)
{
	struct nv_sgl_want want = {nv_sqe_dir(sqe), want_bytes, capsule_bytes};
	struct nv_data out;
	struct bad bad = {0};
	nv_status s = nv_sgl_check(sqe, &want, &out, &bad);

	expect_reason(s, &bad);
	if (nv_status_ok(s) && out.place == NV_PLACE_CAPSULE)
		must((uint64_t)out.capsule_offset + out.bytes <= capsule_bytes);
	if (nv_status_ok(s) && out.place != NV_PLACE_NONE)
		must(out.bytes == want_bytes && out.bytes > 0);
}

static void block(const struct nv_sqe *sqe, uint64_t blocks)
{
	struct nv_nvm_limits limits = {blocks, 4096, MiB};
	struct nv_nvm_cmd cmd;
	struct bad bad = {0};
	nv_status s = nv_nvm_parse(sqe, &limits, &cmd, &bad);

	expect_reason(s, &bad);
	if (nv_status_ok(s) && cmd.opcode != NV_NVM_FLUSH)
		must(cmd.first_block < blocks && cmd.block_count <= blocks - cmd.first_block);
}

static void admin(const struct nv_sqe *sqe)
{
	struct nv_cap cap = {.queue_entries_max = 2, .css_iocs = true, .page_shift_min = 12,
			     .page_shift_max = 12};
	struct nv_property property;
	struct nv_feature feature;
	struct nv_queue_counts counts;
	struct nv_log log;
	struct bad bad = {0};
	nv_status s = nv_log_parse(sqe, &log, &bad);

	expect_reason(s, &bad);
	if (nv_status_ok(s))
		must(log.offset % 4 == 0 && log.offset + log.bytes >= log.offset);
	expect_reason(nv_feature_get_parse(sqe, &feature, &bad), &bad);
	feature = nv_feature_set_parse(sqe);
	s = nv_queue_counts_parse(feature.cdw11, &counts, &bad);
	expect_reason(s, &bad);
	if (nv_status_ok(s))
		must(nv_queue_counts_pack(counts) == feature.cdw11);
	s = nv_property_parse(sqe, &property, &bad);
	expect_reason(s, &bad);
	if (nv_status_ok(s))
		expect_reason(nv_cc_check((uint32_t)property.value, &cap, &bad), &bad);
	(void)nv_identify_parse(sqe);
	(void)nv_abort_parse(sqe);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	uint8_t in[72] = {0};
	const struct nv_sqe *sqe = (const struct nv_sqe *)in;
	uint32_t a, b;

	memcpy(in, data, size < sizeof(in) ? size : sizeof(in));
	a = (uint32_t)in[64] << 8 | in[65];
	b = (uint32_t)in[66] << 8 | in[67];
	kv(sqe, a * 4096 + 1);
	sgl(sqe, a, b);
	sgl(sqe, le32_get(sqe->sgl.bytes), b);
	block(sqe, a + 1);
	admin(sqe);
	return 0;
}
