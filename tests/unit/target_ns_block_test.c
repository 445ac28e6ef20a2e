/* SPDX-License-Identifier: Apache-2.0 */
#include "block_fixture.h"

#include <errno.h>

struct all {
	struct fix f;
	struct blocks b;
	struct lk h;
};

static void all_open(struct all *a, const struct blocks_opts *o)
{
	fix_open(&a->f, NULL, 0);
	blocks_open(&a->f, &a->b, o);
	lk_open(&a->f, &a->h, HOST_A);
}

static void all_close(struct all *a)
{
	lk_close(&a->f, &a->h);
	blocks_close(&a->f, &a->b);
	fix_close(&a->f);
}

static const struct blocks_opts usual = {64 * MiB, 128 * MiB, 4096, false};
static const struct blocks_opts narrow = {64 * MiB, 128 * MiB, 512, false};

static struct nv_sqe nvm_sqe(const struct all *a, enum nv_nvm_opcode opcode, uint64_t first,
			     uint32_t count)
{
	struct nv_nvm_cmd cmd = {.opcode = opcode, .first_block = first, .block_count = count};

	if (opcode == NV_NVM_READ || opcode == NV_NVM_WRITE || opcode == NV_NVM_COMPARE)
		cmd.bytes = count * a->b.block_bytes;
	return nv_nvm_build(BLOCK_NSID, &cmd);
}

static uint16_t nvm_out(struct all *a, enum nv_nvm_opcode opcode, uint64_t first, uint32_t count,
			void *from)
{
	struct nv_sqe sqe = nvm_sqe(a, opcode, first, count);

	return ask_out(&a->f, &a->h.io, &sqe, from, count * a->b.block_bytes);
}

static uint16_t nvm_read(struct all *a, uint64_t first, uint32_t count, void *into)
{
	struct nv_sqe sqe = nvm_sqe(a, NV_NVM_READ, first, count);

	kt_noise(into, count * a->b.block_bytes);
	return ask_in(&a->f, &a->h.io, &sqe, into, count * a->b.block_bytes);
}

static uint16_t nvm_raw(struct all *a, enum nv_nvm_opcode opcode, uint64_t first, uint32_t count)
{
	struct nv_sqe sqe = nvm_sqe(a, opcode, first, count);

	return ask_raw(&a->f, &a->h.io, &sqe);
}

static uint16_t dsm(struct all *a, struct nv_dsm_range *range, unsigned count, bool deallocate)
{
	struct nv_nvm_cmd cmd = {.opcode = NV_NVM_DSM, .ranges = (uint16_t)count,
		.deallocate = deallocate, .bytes = count * (uint32_t)sizeof(*range)};
	struct nv_sqe sqe = nv_nvm_build(BLOCK_NSID, &cmd);

	return ask_out(&a->f, &a->h.io, &sqe, range, cmd.bytes);
}

/* As Linux does: room for 256 ranges, of which only the first ones count. */
static uint16_t dsm_in_page(struct all *a, const struct nv_dsm_range *range, unsigned count)
{
	static struct nv_dsm_range page[NV_DSM_RANGES_MAX];
	struct nv_nvm_cmd cmd = {.opcode = NV_NVM_DSM, .ranges = (uint16_t)count,
		.deallocate = true, .bytes = sizeof(page)};
	struct nv_sqe sqe = nv_nvm_build(BLOCK_NSID, &cmd);

	kt_noise(page, sizeof(page));
	memcpy(page, range, count * sizeof(*range));
	return ask_out(&a->f, &a->h.io, &sqe, page, sizeof(page));
}

static struct nv_dsm_range range_of(uint64_t first, uint32_t count)
{
	return (struct nv_dsm_range){.blocks = le32_of(count), .slba = le64_of(first)};
}

static uint16_t identify(struct all *a, uint8_t cns, uint8_t csi, void *page)
{
	struct nv_identify what = {.cns = cns, .csi = csi, .nsid = BLOCK_NSID};
	struct nv_sqe sqe;

	if (cns == NV_CNS_CONTROLLER || cns == NV_CNS_CSI_CONTROLLER)
		what.nsid = 0;
	sqe = nv_identify_build(&what);
	kt_noise(page, NV_IDENTIFY_BYTES);
	return ask_in(&a->f, &a->h.admin, &sqe, page, NV_IDENTIFY_BYTES);
}

TEST(what_a_block_namespace_says_of_itself_is_what_it_does)
{
	static struct nv_id_namespace id;
	static struct nv_id_controller ctrl;
	static struct nv_id_nvm_controller nvm;
	struct nv_block_facts facts;
	struct nv_ns_ids ids;
	struct bad bad;
	struct all a;

	all_open(&a, &usual);
	expect_int(identify(&a, NV_CNS_NAMESPACE, 0, &id), NV_RAW_OK);
	expect_int(nv_id_namespace_check(&id, &facts, &bad), 0);
	expect_int(facts.blocks, 64 * MiB / 4096);
	expect_int(facts.block_bytes, 4096);
	expect_int(le64_get(id.nuse), 0);
	expect_int(id.dlfeat, 0x09);
	expect_int(id.nsfeat, 0x19);
	expect_int(le16_get(id.nawun) | le16_get(id.nawupf), 0);
	expect_int(le16_get(id.npdg), 63);
	expect_int(identify(&a, NV_CNS_DESCRIPTORS, 0, &id), NV_RAW_OK);
	expect_int(nv_ns_ids_read((uint8_t *)&id, &ids, &bad), 0);
	expect(ids.csi_given && ids.csi == NV_CSI_NVM);
	expect_int(identify(&a, NV_CNS_CSI_NAMESPACE, NV_CSI_NVM, &id), NV_RAW_OK);
	expect(bytes_all_zero(&id, sizeof(id)));
	expect_int(identify(&a, NV_CNS_CSI_NAMESPACE, NV_CSI_KV, &id), NV_RAW_INVALID_FIELD);
	expect_int(identify(&a, NV_CNS_CSI_CONTROLLER, NV_CSI_NVM, &nvm), NV_RAW_OK);
	expect_int(le32_get(nvm.dmrsl), TARGET_DEALLOCATE_BLOCKS);
	expect_int(identify(&a, NV_CNS_CONTROLLER, 0, &ctrl), NV_RAW_OK);
	expect_int(le16_get(ctrl.oncs) & 0x8d, 0x8d);
	expect_int(ctrl.vwc & 1, 1);
	expect_int(ctrl.mdts, 11);
	all_close(&a);
}

TEST(with_multipath_a_block_namespace_says_that_it_may_be_shared)
{
	static struct nv_id_namespace id;

	for (unsigned on = 0; on < 2; on++) {
		struct all a;

		fix_multipath = on;
		all_open(&a, &usual);
		expect_int(identify(&a, NV_CNS_NAMESPACE, 0, &id), NV_RAW_OK);
		expect_int(id.nmic, on);
		all_close(&a);
	}
	fix_multipath = false;
}

TEST(blocks_come_back_as_they_were_written_whatever_the_size)
{
	static const uint32_t counts[] = {1, 2, 3, 64, 65, 700, 2048};
	uint8_t *out = malloc(8 * MiB), *in = malloc(8 * MiB);
	struct all a;

	all_open(&a, &usual);
	expect_int(nvm_read(&a, 5, 300, in), NV_RAW_OK);
	expect(bytes_all_zero(in, 300 * 4096));
	for (unsigned i = 0; i < ARRAY_COUNT(counts); i++) {
		fill(out, counts[i] * 4096, i);
		expect_int(nvm_out(&a, NV_NVM_WRITE, 61 + 900 * i, counts[i], out), NV_RAW_OK);
		expect_int(nvm_read(&a, 61 + 900 * i, counts[i], in), NV_RAW_OK);
		expect_mem(in, out, counts[i] * 4096);
	}
	expect_int(nvm_read(&a, 62, 1, in), NV_RAW_OK);
	expect(bytes_all_zero(in, 4096));
	all_close(&a);
	free(out);
	free(in);
}

TEST(blocks_of_512_bytes_on_a_drive_of_4096_keep_their_neighbours)
{
	uint8_t out[16 * 512], in[16 * 512], want[16 * 512] = {0};
	struct all a;

	all_open(&a, &narrow);
	for (unsigned i = 0; i < 16; i++) {            /* each in its own write, in odd order */
		unsigned at = i * 5 % 16;

		fill(out, 512, at);
		memcpy(want + at * 512, out, 512);
		expect_int(nvm_out(&a, NV_NVM_WRITE, 1003 + at, 1, out), NV_RAW_OK);
	}
	expect_int(nvm_read(&a, 1003, 16, in), NV_RAW_OK);
	expect_mem(in, want, sizeof(want));
	expect_int(nvm_raw(&a, NV_NVM_WRITE_ZEROES, 1006, 9), NV_RAW_OK);
	memset(want + 3 * 512, 0, 9 * 512);
	expect_int(nvm_read(&a, 1003, 16, in), NV_RAW_OK);
	expect_mem(in, want, sizeof(want));
	expect_int(nvm_out(&a, NV_NVM_COMPARE, 1003, 16, want), NV_RAW_OK);
	all_close(&a);
}

TEST(what_lies_past_the_end_or_is_too_long_is_refused)
{
	static uint8_t page[4096];
	struct nv_dsm_range range[2] = {range_of(0, 8), range_of(16383, 2)};
	struct nv_sqe sqe;
	struct all a;

	all_open(&a, &usual);
	expect_int(nvm_read(&a, 16384, 1, page), NV_RAW_LBA_OUT_OF_RANGE);
	expect_int(nvm_read(&a, UINT64_MAX, 1, page), NV_RAW_LBA_OUT_OF_RANGE);
	sqe = nvm_sqe(&a, NV_NVM_VERIFY, UINT64_MAX - 3, 8);
	expect_int(ask_raw(&a.f, &a.h.io, &sqe), NV_RAW_LBA_OUT_OF_RANGE);
	expect_int(nvm_raw(&a, NV_NVM_WRITE_ZEROES, 16380, 8), NV_RAW_LBA_OUT_OF_RANGE);
	sqe = nvm_sqe(&a, NV_NVM_READ, 0, 65536);
	expect_int(ask_raw(&a.f, &a.h.io, &sqe), NV_RAW_INVALID_FIELD);
	expect_int(dsm(&a, range, 2, true), NV_RAW_LBA_OUT_OF_RANGE);
	expect_int(dsm(&a, range, 1, true), NV_RAW_OK);
	sqe = nv_sqe_of(0x19, BLOCK_NSID);             /* Copy */
	expect_int(ask_raw(&a.f, &a.h.io, &sqe), NV_RAW_INVALID_OPCODE);
	all_close(&a);
}

TEST(zeroes_and_deallocation_read_as_zeros_and_give_room_back)
{
	uint8_t *out = malloc(MiB), *in = malloc(MiB);
	static struct nv_id_namespace id;
	struct nv_dsm_range range[3];
	struct all a;

	all_open(&a, &usual);
	fill(out, MiB, 1);
	expect_int(nvm_out(&a, NV_NVM_WRITE, 0, 256, out), NV_RAW_OK);
	expect_int(identify(&a, NV_CNS_NAMESPACE, 0, &id), NV_RAW_OK);
	expect_int(le64_get(id.nuse), 256);
	range[0] = range_of(64, 128);                  /* two whole chunks */
	range[1] = range_of(9, 0);                     /* nothing */
	range[2] = range_of(255, 1);
	expect_int(dsm(&a, range, 3, false), NV_RAW_OK);       /* only hints */
	expect_int(nvm_read(&a, 0, 256, in), NV_RAW_OK);
	expect_mem(in, out, MiB);
	expect_int(dsm_in_page(&a, range, 3), NV_RAW_OK);
	memset(out + 64 * 4096, 0, 128 * 4096);
	memset(out + 255 * 4096, 0, 4096);
	expect_int(nvm_read(&a, 0, 256, in), NV_RAW_OK);
	expect_mem(in, out, MiB);
	expect_int(identify(&a, NV_CNS_NAMESPACE, 0, &id), NV_RAW_OK);
	expect_int(le64_get(id.nuse), 128);
	expect_int(nvm_raw(&a, NV_NVM_WRITE_ZEROES, 3, 70), NV_RAW_OK);
	memset(out + 3 * 4096, 0, 70 * 4096);
	expect_int(nvm_read(&a, 0, 256, in), NV_RAW_OK);
	expect_mem(in, out, MiB);
	all_close(&a);
	free(out);
	free(in);
}

TEST(compare_finds_the_byte_that_differs_and_verify_finds_what_cant_be_read)
{
	uint8_t *out = malloc(MiB);
	struct all a;

	all_open(&a, &usual);
	fill(out, MiB, 3);
	expect_int(nvm_out(&a, NV_NVM_WRITE, 40, 256, out), NV_RAW_OK);
	expect_int(nvm_out(&a, NV_NVM_COMPARE, 40, 256, out), NV_RAW_OK);
	out[MiB - 1] ^= 1;
	expect_int(nvm_out(&a, NV_NVM_COMPARE, 40, 256, out), NV_RAW_COMPARE_FAILURE);
	expect_int(nvm_out(&a, NV_NVM_COMPARE, 5000, 1, out), NV_RAW_COMPARE_FAILURE);
	expect_int(nvm_raw(&a, NV_NVM_VERIFY, 0, 4096), NV_RAW_OK);
	sim_fault_at(SIM_DISK_READ_EIO, 1);
	expect_int(nvm_raw(&a, NV_NVM_VERIFY, 0, 4096), NV_RAW_READ_UNRECOVERED);
	all_close(&a);
	free(out);
}

TEST(errors_of_the_drive_are_told_as_what_they_are_and_the_queue_lives)
{
	static uint8_t page[4096], in[4096];
	struct nv_sqe sqe;
	struct all a;

	all_open(&a, &usual);
	fill(page, 4096, 9);
	expect_int(nvm_out(&a, NV_NVM_WRITE, 7, 1, page), NV_RAW_OK);
	sim_fault_at(SIM_DISK_READ_EIO, 1);
	expect_int(nvm_read(&a, 7, 1, in), NV_RAW_READ_UNRECOVERED);
	expect_int(nvm_read(&a, 7, 1, in), NV_RAW_OK);
	expect_mem(in, page, 4096);
	sim_fault_at(SIM_DISK_WRITE_EIO, 1);
	expect_int(nvm_out(&a, NV_NVM_WRITE, 7, 1, page), NV_RAW_WRITE_FAULT);
	expect_int(nvm_out(&a, NV_NVM_WRITE, 7, 1, page), NV_RAW_OK);
	sim_fault_at(SIM_DISK_FLUSH_EIO, 1);
	sqe = nv_sqe_of(NV_NVM_FLUSH, BLOCK_NSID);
	expect_int(ask_raw(&a.f, &a.h.io, &sqe), NV_RAW_INTERNAL_ERROR);
	/* what was lost can't be known: no more writes, but reads */
	expect_int(nvm_out(&a, NV_NVM_WRITE, 7, 1, page), NV_RAW_WRITE_FAULT);
	expect_int(ask_raw(&a.f, &a.h.io, &sqe), NV_RAW_INTERNAL_ERROR);
	expect_int(nvm_read(&a, 7, 1, in), NV_RAW_OK);
	all_close(&a);
}

TEST(a_namespace_larger_than_its_room_says_so_and_goes_on)
{
	static const struct blocks_opts small = {64 * MiB, 4 * MiB, 4096, false};
	static uint8_t page[4096];
	struct nv_dsm_range range = range_of(0, 64);
	uint16_t status = NV_RAW_OK;
	unsigned n = 0;
	struct all a;

	all_open(&a, &small);
	fill(page, 4096, 1);
	for (; status == NV_RAW_OK && n < 20; n++)
		status = nvm_out(&a, NV_NVM_WRITE, n * 64, 1, page);
	expect_int(status, NV_RAW_CAPACITY_EXCEEDED);
	expect_int(nvm_out(&a, NV_NVM_WRITE, 1, 1, page), NV_RAW_OK);
	expect_int(dsm(&a, &range, 1, true), NV_RAW_OK);
	expect_int(nvm_out(&a, NV_NVM_WRITE, (n - 1) * 64, 1, page), NV_RAW_OK);
	all_close(&a);
}

TEST(a_drive_that_hangs_is_answered_for_and_its_buffer_kept_until_it_lets_go)
{
	static uint8_t page[4096];
	struct nv_sqe list = nv_sqe_of(NV_KV_LIST, 1);
	struct ask a0 = {0};
	uint64_t before_ns;
	struct nv_sqe sqe;
	struct all a;

	all_open(&a, &usual);
	fill(page, 4096, 9);
	expect_int(nvm_out(&a, NV_NVM_WRITE, 7, 1, page), NV_RAW_OK);
	sim_disk_mode("blocks", SIM_DISK_HANGS);
	before_ns = sim_now_ns();
	sqe = nvm_sqe(&a, NV_NVM_READ, 7, 1);
	a0.iov = (struct iovec){page, 4096};
	a0.req.in = &a0.iov;
	a0.req.in_count = 1;
	a0.req.in_bytes = 4096;
	ask_start(&a0, &a.h.io, &sqe);
	list.cdw10 = le32_of(4096);
	list.sgl = nv_sgl_transport(4096);
	expect_int(ask_in(&a.f, &a.h.io, &list, page, 4096), NV_RAW_OK);       /* others go on */
	expect_int(ask_wait(&a.f, &a0), NV_RAW_READ_UNRECOVERED);
	expect(sim_now_ns() - before_ns < 11 * NS_PER_S);
	before_ns = sim_now_ns();
	expect_int(nvm_read(&a, 7, 1, page), NV_RAW_READ_UNRECOVERED);
	expect(sim_now_ns() - before_ns < NS_PER_S);   /* it is known now */
	sim_disk_mode("blocks", SIM_DISK_WELL);
	settle(&a.f);
	all_close(&a);                                 /* all buffers are back */
}

/* What a drive never answers keeps its buffers; the other namespaces live on what is left. */
TEST(reads_that_a_drive_never_answers_leave_buffers_to_the_other_namespaces)
{
	enum { HOSTS = 6, EACH = 15 };
	static struct ask ask[HOSTS * EACH];
	static struct lk host[HOSTS];
	uint8_t *value = malloc(MiB), *in = malloc(MiB);
	struct nv_sqe sqe;
	struct all a;

	all_open(&a, &usual);
	kt_noise(value, MiB);
	for (unsigned i = 0; i < 16; i++)
		expect_int(nvm_out(&a, NV_NVM_WRITE, i * 256, 256, value), NV_RAW_OK);
	for (unsigned h = 0; h < HOSTS; h++)
		lk_open(&a.f, &host[h], h % 2 == 0 ? HOST_A : HOST_B);
	for (unsigned round = 0; round < 2; round++) {     /* the second: it is known to hang */
		if (round == 0)
			sim_disk_mode("blocks", SIM_DISK_HANGS);
		for (unsigned i = 0; i < HOSTS * EACH; i++) {
			sqe = nvm_sqe(&a, NV_NVM_READ, i % 16 * 256, 256);
			ask[i] = (struct ask){.iov = {in, MiB}};
			ask[i].req.in = &ask[i].iov;
			ask[i].req.in_count = 1;
			ask[i].req.in_bytes = MiB;
			ask_start(&ask[i], &host[i / EACH].io, &sqe);
		}
		for (unsigned i = 0; i < 20; i++) {
			uint64_t before_ns = sim_now_ns();

			for (unsigned k = 0; i == 10 && k < HOSTS * EACH; k++)
				expect_int(ask_wait(&a.f, &ask[k]), NV_RAW_READ_UNRECOVERED);
			if (i == 10)
				before_ns = sim_now_ns();
			expect_int(kv_put(&a.f, &a.h.io, "other", value, MiB, 0), NV_RAW_OK);
			expect_int(kv_get(&a.f, &a.h.io, "other", in, MiB), NV_RAW_OK);
			expect_mem(in, value, MiB);
			expect(sim_now_ns() - before_ns < NS_PER_S);
		}
	}
	sim_disk_mode("blocks", SIM_DISK_WELL);
	settle(&a.f);
	for (unsigned h = 0; h < HOSTS; h++)
		lk_close(&a.f, &host[h]);
	all_close(&a);
	free(value);
	free(in);
}

TEST(a_host_that_leaves_in_the_middle_of_a_write_leaves_whole_blocks)
{
	uint8_t *out = malloc(MiB), *in = malloc(MiB);
	static struct ask ask;
	struct nv_sqe sqe;
	struct all a;

	all_open(&a, &usual);
	for (unsigned after = 1; after < 60; after += 7) {
		fill(out, MiB, after);
		sqe = nvm_sqe(&a, NV_NVM_WRITE, 0, 256);
		ask = (struct ask){.iov = {out, MiB}};
		ask.req.out = &ask.iov;
		ask.req.out_count = 1;
		ask.req.out_bytes = MiB;
		ask_start(&ask, &a.h.io, &sqe);
		steps(&a.f, after);
		wire_close(&a.h.io.conn);
		expect(sim_run_until(flag_is_set, &ask.over, PATIENCE_NS));
		settle(&a.f);
		lk_close(&a.f, &a.h);
		lk_open(&a.f, &a.h, HOST_A);
		expect_int(nvm_read(&a, 0, 256, in), NV_RAW_OK);
	}
	all_close(&a);
	free(out);
	free(in);
}

TEST(a_namespace_that_is_removed_refuses_and_ends_what_is_under_way)
{
	static uint8_t page[4096];
	struct all a;

	all_open(&a, &usual);
	expect_int(nvm_out(&a, NV_NVM_WRITE, 7, 1, page), NV_RAW_OK);
	blocks_close(&a.f, &a.b);
	expect_int(nvm_read(&a, 7, 1, page), NV_RAW_INVALID_NAMESPACE);
	lk_close(&a.f, &a.h);
	fix_close(&a.f);
}
