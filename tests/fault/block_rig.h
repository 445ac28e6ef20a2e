/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A block namespace in the simulator, and what each of its sectors may hold.
 *
 * Every sector that is written carries its number and a version that is used once, so a byte out of
 * place shows. The model knows for each sector the version that a reader must see (now), the one
 * that the last flush made durable (base) and those between; operations in flight at once never
 * overlap, so each read has one right answer. After a kill a sector is what it was, or what was
 * being written; after a power cut, anything from base on.
 */
#ifndef KVOF_TESTS_FAULT_BLOCK_RIG_H
#define KVOF_TESTS_FAULT_BLOCK_RIG_H

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/must.h"
#include "base/prng.h"
#include "loop/sim.h"
#include "store/block.h"

#define RIG_SECTOR 512u
#define RIG_OPS 8u
#define RIG_OP_BYTES (2u * 1024 * 1024)
#define RIG_HISTORY 12u
#define RIG_SHARDS 4u
#define rig_expect(r, x)                                                                           \
	((x) ? (void)0 : rig_failed(r, __FILE__, __LINE__, #x))

struct rig_options {
	uint64_t seed, size_bytes;
	unsigned drives, shards, loops, room_percent;
	uint32_t block_bytes, align_bytes;
	enum sim_fault fault;
	uint32_t faults_per_million;         /* of that kind; 0: none */
	uint64_t read_bytes_per_s;           /* 0: no limit */
};

struct rig_op {
	struct block_op op;
	struct rig *rig;
	uint8_t *memory;
	struct iovec iov[3];
	uint32_t version;
	bool busy, done;
	int res;
};

struct rig {
	struct rig_options o;
	struct prng prng;
	struct loop *loop[RIG_SHARDS];
	struct block *block[RIG_SHARDS];
	struct volume *volume;
	struct rig_op op[RIG_OPS];
	uint32_t sectors, version;
	uint32_t *now, *base;
	uint32_t (*history)[RIG_HISTORY];
	uint8_t *history_count;
	uint32_t *flight;                    /* version + 1 that was being written at a death */
	bool *unsure;                        /* a write failed: old or new */
	enum { JUDGE_NOW, JUDGE_KILL, JUDGE_CUT } judge;
	uint64_t op_bytes_max;               /* of random work */
	unsigned closed;
};

static inline void rig_failed(const struct rig *r, const char *file, int line, const char *what)
{
	fprintf(stderr, "# %s:%d: %s (seed %" PRIu64 ")\n", file, line, what, r->o.seed);
	abort();
}

static inline void rig_path(unsigned shard, unsigned drive, char out[32])
{
	snprintf(out, 32, "/sim/s%ud%u", shard, drive);
}

/* --- opening, closing, dying -------------------- */

static inline int rig_block_open(struct rig *r, unsigned shard, struct store_report *report)
{
	struct block_opts opts = {.size_bytes = r->o.size_bytes, .block_bytes = r->o.block_bytes,
		.shard = shard, .shard_count = r->o.shards, .uuid = "0123456789abcde",
		.parts = {.drive_count = r->o.drives,
			  .drive_read_bytes_per_s = r->o.read_bytes_per_s}};
	uint64_t bytes = block_part_bytes(r->o.size_bytes, r->o.shards, r->o.drives);
	char path[STORE_DRIVES_MAX][32];

	bytes = bytes * r->o.room_percent / 100;
	if (bytes < MiB)                               /* no drive is smaller */
		bytes = MiB;
	for (unsigned i = 0; i < r->o.drives; i++) {
		rig_path(shard, i, path[i]);
		opts.parts.drive[i].path = path[i];
		opts.parts.drive[i].bytes = bytes_round_up(bytes, 4096);
	}
	return block_open(&opts, r->loop[shard % r->o.loops], &r->block[shard], report);
}

static inline void rig_open(struct rig *r)
{
	struct volume_shard shard[RIG_SHARDS];
	struct store_report report;

	for (unsigned i = 0; i < r->o.loops; i++)
		rig_expect(r, loop_open(&(struct loop_opts){.name = "rig"}, &r->loop[i]) == 0);
	for (unsigned i = 0; i < r->o.shards; i++) {
		int rc = rig_block_open(r, i, &report);

		if (rc != 0)
			fprintf(stderr, "# open: %d %s\n", rc, report.text);
		rig_expect(r, rc == 0);
		shard[i] = (struct volume_shard){r->loop[i % r->o.loops], r->block[i]};
	}
	rig_expect(r, volume_open(shard, r->o.shards, &r->volume) == 0);
}

static inline void *rig_pages(size_t bytes)
{
	void *at = aligned_alloc(4096, bytes);

	must(at != NULL);
	return at;
}

/* The world without a namespace. */
static inline void rig_prepare(struct rig *r, const struct rig_options *o)
{
	struct sim_opts sim = {.seed = o->seed, .disk_align_bytes = o->align_bytes};

	if (o->faults_per_million > 0)
		sim.fault_per_million[o->fault] = o->faults_per_million;
	memset(r, 0, sizeof(*r));
	r->o = *o;
	r->prng = prng_of(o->seed * 77 + 1);
	r->op_bytes_max = RIG_OP_BYTES;
	must(sim_begin(&sim) == 0);
	r->sectors = (uint32_t)(o->size_bytes / RIG_SECTOR);
	r->now = calloc(r->sectors, sizeof(*r->now));
	r->base = calloc(r->sectors, sizeof(*r->base));
	r->history = calloc(r->sectors, sizeof(*r->history));
	r->history_count = calloc(r->sectors, 1);
	r->flight = calloc(r->sectors, sizeof(*r->flight));
	r->unsure = calloc(r->sectors, sizeof(*r->unsure));
	for (unsigned i = 0; i < RIG_OPS; i++) {
		r->op[i].rig = r;
		r->op[i].memory = rig_pages(RIG_OP_BYTES + 8192);
	}
}

static inline void rig_begin(struct rig *r, const struct rig_options *o)
{
	rig_prepare(r, o);
	rig_open(r);
}

static inline void rig_closed(void *arg)
{
	((struct rig *)arg)->closed--;
}

static inline bool rig_is_closed(void *arg)
{
	return ((struct rig *)arg)->closed == 0;
}

static inline void rig_close(struct rig *r)
{
	volume_close(&r->volume);
	r->closed = r->o.shards;
	for (unsigned i = 0; i < r->o.shards; i++)
		block_close(&r->block[i], rig_closed, r);
	rig_expect(r, sim_run_until(rig_is_closed, r, 60 * NS_PER_S));
	for (unsigned i = 0; i < r->o.loops; i++)
		loop_close(&r->loop[i]);
}

/* The process is gone; what was in flight is settled in the model by rig_verify(). */
static inline void rig_die(struct rig *r, bool keep_unflushed)
{
	for (unsigned i = 0; i < r->o.loops; i++)
		sim_crash(&r->loop[i], keep_unflushed);
	for (unsigned i = 0; i < r->o.shards; i++)
		block_forget(&r->block[i]);
	volume_close(&r->volume);
}

static inline void rig_end(struct rig *r)
{
	sim_end();
	free(r->now);
	free(r->base);
	free(r->history);
	free(r->history_count);
	free(r->flight);
	free(r->unsure);
	for (unsigned i = 0; i < RIG_OPS; i++)
		free(r->op[i].memory);
}

/* --- the model -------------------- */

static inline void sector_fill(uint8_t *at, uint32_t sector, uint32_t version)
{
	le64 word = le64_of(version == 0 ? 0 : (uint64_t)version << 32 | sector);

	for (unsigned i = 0; i < RIG_SECTOR; i += 8)
		memcpy(at + i, &word, 8);
}

/* UINT32_MAX: not a whole sector of this place. */
static inline uint32_t sector_version(const uint8_t *at, uint32_t sector)
{
	le64 word;
	uint64_t value;

	memcpy(&word, at, 8);
	value = le64_get(word);
	for (unsigned i = 8; i < RIG_SECTOR; i += 8)
		if (memcmp(at, at + i, 8) != 0)
			return UINT32_MAX;
	if (value == 0)
		return 0;
	return (uint32_t)value == sector ? (uint32_t)(value >> 32) : UINT32_MAX;
}

static inline void model_write(struct rig *r, uint32_t sector, uint32_t version)
{
	rig_expect(r, r->history_count[sector] < RIG_HISTORY);
	r->history[sector][r->history_count[sector]++] = version;
	r->now[sector] = version;
}

/* May be what it holds, for all that is known. */
static inline void model_also(struct rig *r, uint32_t sector, uint32_t version)
{
	rig_expect(r, r->history_count[sector] < RIG_HISTORY);
	r->history[sector][r->history_count[sector]++] = version;
}

static inline void model_durable(struct rig *r, uint32_t sector)
{
	r->base[sector] = r->now[sector];
	r->history_count[sector] = 0;
}

static inline bool model_may_be(const struct rig *r, uint32_t sector, uint32_t version)
{
	bool may = version == r->base[sector];

	for (unsigned i = 0; i < r->history_count[sector]; i++)
		may |= r->history[sector][i] == version;
	return may;
}

static inline uint32_t op_first(const struct rig_op *x)
{
	return (uint32_t)(x->op.offset_bytes / RIG_SECTOR);
}

static inline uint32_t op_sectors(const struct rig_op *x)
{
	return (uint32_t)(x->op.bytes / RIG_SECTOR);
}

static inline uint8_t *op_data(const struct rig_op *x)
{
	return x->memory + (x->op.offset_bytes & 4095);
}

static inline bool op_changes(const struct rig_op *x)
{
	return x->op.kind == BLOCK_WRITE || x->op.kind == BLOCK_ZERO ||
	       x->op.kind == BLOCK_DEALLOCATE;
}

static inline bool sector_right(const struct rig *r, uint32_t sector, uint32_t version)
{
	if (r->judge == JUDGE_CUT || r->unsure[sector])
		return model_may_be(r, sector, version);
	return version == r->now[sector] ||
	       (r->judge == JUDGE_KILL && version + 1 == r->flight[sector]);
}

static inline void op_check_read(struct rig_op *x)
{
	struct rig *r = x->rig;

	for (uint32_t i = 0; i < op_sectors(x); i++) {
		uint32_t sector = op_first(x) + i;
		uint32_t version = sector_version(op_data(x) + (size_t)i * RIG_SECTOR, sector);

		if (!sector_right(r, sector, version))
			fprintf(stderr, "# sector %u: version %d, not %u (base %u)\n", sector,
				(int)version, r->now[sector], r->base[sector]);
		rig_expect(r, sector_right(r, sector, version));
		r->now[sector] = version;
		r->unsure[sector] = false;
		if (r->judge != JUDGE_NOW)
			model_durable(r, sector);
	}
}

static inline void rig_op_done(struct block_op *op, int res)
{
	struct rig_op *x = container_of(op, struct rig_op, op);
	struct rig *r = x->rig;

	rig_expect(r, x->busy && !x->done);
	x->busy = false;
	x->done = true;
	x->res = res;
	if (res == 0 && op->kind == BLOCK_READ)
		op_check_read(x);
	for (uint32_t i = 0; op_changes(x) && i < op_sectors(x); i++) {
		uint32_t sector = op_first(x) + i;

		if (res != 0) {                        /* either is right from now on */
			model_also(r, sector, x->version);
			r->unsure[sector] = true;
			continue;
		}
		model_write(r, sector, x->version);
		r->unsure[sector] = false;
		if (op->fua)
			model_durable(r, sector);
	}
}

static inline bool rig_overlaps(const struct rig *r, uint64_t offset, uint64_t bytes)
{
	for (unsigned i = 0; i < RIG_OPS; i++) {
		const struct rig_op *x = &r->op[i];

		if (x->busy && x->op.kind != BLOCK_FLUSH &&
		    offset < x->op.offset_bytes + x->op.bytes &&
		    x->op.offset_bytes < offset + bytes)
			return true;
	}
	return false;
}

static inline void rig_iov(struct rig_op *x)
{
	uint8_t *at = op_data(x), *cut;
	uint64_t left = x->op.bytes;

	x->op.iov = x->iov;
	x->op.iov_count = 0;
	while (left > 0) {
		uint64_t n = left;

		if (x->op.iov_count < 2 && left > 4096) {
			n = (1 + prng_below(&x->rig->prng, left / 4096)) * 4096;
			cut = (uint8_t *)((uintptr_t)(at + n) & ~(uintptr_t)4095);
			n = bytes_min((uint64_t)(cut - at), left);
		}
		if (n == 0)
			n = left;
		x->iov[x->op.iov_count++] = (struct iovec){at, n};
		at += n;
		left -= n;
	}
}

static inline void rig_start(struct rig *r, struct rig_op *x, enum block_kind kind, uint64_t offset,
			     uint64_t bytes, bool fua)
{
	must(!x->busy && bytes <= RIG_OP_BYTES);
	x->op = (struct block_op){.kind = kind, .offset_bytes = offset, .bytes = bytes, .fua = fua,
		.done = rig_op_done};
	x->busy = true;
	x->done = false;
	x->version = kind == BLOCK_WRITE ? ++r->version : 0;
	if (kind == BLOCK_READ || kind == BLOCK_WRITE || kind == BLOCK_COMPARE)
		rig_iov(x);
	if (kind == BLOCK_READ)
		memset(x->memory, 0xa5, RIG_OP_BYTES);
	for (uint32_t i = 0; kind != BLOCK_READ && x->op.iov_count > 0 && i < op_sectors(x); i++)
		sector_fill(op_data(x) + (size_t)i * RIG_SECTOR, op_first(x) + i,
			    kind == BLOCK_WRITE ? x->version : r->now[op_first(x) + i]);
	volume_run(r->volume, r->loop[0], &x->op);
}

static inline bool rig_op_is_done(void *arg)
{
	return ((struct rig_op *)arg)->done;
}

/* Runs until the operation has ended; false: the node has died. */
static inline bool rig_wait(struct rig *r, struct rig_op *x)
{
	bool done = sim_run_until(rig_op_is_done, x, 60 * NS_PER_S);

	rig_expect(r, done || sim_crashed() != NULL);
	return done;
}

static inline int rig_sync(struct rig *r, enum block_kind kind, uint64_t offset, uint64_t bytes,
			   bool fua)
{
	rig_start(r, &r->op[0], kind, offset, bytes, fua);
	rig_expect(r, rig_wait(r, &r->op[0]));
	return r->op[0].res;
}

/* What was in flight when the process died may be there or not. */
static inline void rig_settle(struct rig *r)
{
	for (unsigned i = 0; i < RIG_OPS; i++) {
		struct rig_op *x = &r->op[i];

		for (uint32_t k = 0; x->busy && op_changes(x) && k < op_sectors(x); k++) {
			uint32_t sector = op_first(x) + k;

			model_also(r, sector, x->version);
			r->flight[sector] = x->version + 1;
		}
		x->busy = false;
	}
}

/* Reads everything after a death and holds it against the model; what is read stands from then on,
 * durably, since an open flushes. */
static inline void rig_verify(struct rig *r, bool power_cut)
{
	rig_settle(r);
	r->judge = power_cut ? JUDGE_CUT : JUDGE_KILL;
	for (uint64_t at = 0; at < r->o.size_bytes; at += RIG_OP_BYTES) {
		uint64_t bytes = bytes_min(RIG_OP_BYTES, r->o.size_bytes - at);

		rig_expect(r, rig_sync(r, BLOCK_READ, at, bytes, false) == 0);
	}
	r->judge = JUDGE_NOW;
	memset(r->flight, 0, r->sectors * sizeof(*r->flight));
}

#endif
