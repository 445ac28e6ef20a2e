/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A store on simulated drives, driven by one call at a time: what the tests of src/store share.
 * Values are noise made from (key number, version), so that any byte can be checked without keeping
 * it.
 */
#ifndef KVOF_TESTS_FAULT_STORE_RIG_H
#define KVOF_TESTS_FAULT_STORE_RIG_H

#include "kt.h"

#include "base/must.h"
#include "base/prng.h"
#include "loop/loop.h"
#include "loop/sim.h"
#include "store/inner.h"
#include "store/store.h"

#define RIG_DRIVES_MAX 4
#define RIG_TIME_MAX (60 * NS_PER_S)

struct rig {
	struct loop *loop;
	struct store *st;
	struct store_opts opts;
	struct store_report report;
	char path[RIG_DRIVES_MAX][16];
};

struct rig_op {
	struct store_op op;
	struct store_buf_wait wait;
	struct store_buf *buf;
	bool done;
	int res;
};

static inline bool rig_is_done(void *arg)
{
	return *(bool *)arg;
}

static inline void rig_op_done(struct store_op *op, int res)
{
	struct rig_op *r = container_of(op, struct rig_op, op);

	must(!r->done);
	r->done = true;
	r->res = res;
}

static inline struct kv_key rig_key(uint32_t n)
{
	struct kv_key key = {.len = 16};
	struct prng p = prng_of(n);

	prng_fill(&p, key.byte, sizeof(key.byte));
	memcpy(key.byte + 8, &n, sizeof(n));
	return key;
}

static inline void rig_value(uint32_t key, uint32_t version, uint8_t *out, size_t bytes)
{
	struct prng p = prng_of((uint64_t)key << 32 | version);

	prng_fill(&p, out, bytes);
}

static inline void rig_begin(struct rig *g, uint64_t seed, unsigned drives, uint64_t drive_bytes)
{
	struct sim_opts sim = {.seed = seed};

	memset(g, 0, sizeof(*g));
	expect_int(sim_begin(&sim), 0);
	g->opts = (struct store_opts){
		.drive_count = drives,
		.value_bytes_max = 512 * 1024,
		.index_keys_max = 4096,
		.buffer_bytes = 8 << 20,
		.evict = true,
	};
	for (unsigned i = 0; i < drives; i++) {
		snprintf(g->path[i], sizeof(g->path[i]), "drive%u", i);
		g->opts.drive[i] = (struct store_drive){.path = g->path[i],
							     .bytes = drive_bytes};
	}
}

static inline int rig_open(struct rig *g)
{
	struct loop_opts lo = {.name = "store"};

	if (g->loop == NULL)
		expect_int(loop_open(&lo, &g->loop), 0);
	kt_noise(&g->report, sizeof(g->report));
	return store_open(&g->opts, g->loop, &g->st, &g->report);
}

static inline bool rig_wait(bool *done)
{
	return sim_run_until(rig_is_done, done, RIG_TIME_MAX);
}

static inline void rig_closed(void *arg)
{
	*(bool *)arg = true;
}

static inline void rig_close(struct rig *g)
{
	bool done = false;

	store_close(&g->st, rig_closed, &done);
	expect(g->st == NULL);
	expect(rig_wait(&done));
}

/* The process dies. */
static inline void rig_crash(struct rig *g, bool keep_unflushed)
{
	sim_crash(&g->loop, keep_unflushed);
	g->loop = NULL;
	if (g->st != NULL)
		store_forget(&g->st);
}

static inline void rig_end(struct rig *g)
{
	if (g->st != NULL)
		rig_close(g);
	if (g->loop != NULL)
		loop_close(&g->loop);
	sim_end();
}

static inline void rig_buf_ready(struct store_buf_wait *w, struct store_buf *buf)
{
	struct rig_op *r = container_of(w, struct rig_op, wait);

	r->buf = buf;
	r->done = true;
}

static inline void rig_fill(struct store_buf *buf, const uint8_t *value)
{
	size_t at = 0;

	for (unsigned i = 0; i < buf->piece_count; i++) {
		memcpy(buf->piece[i].iov_base, value + at, buf->piece[i].iov_len);
		at += buf->piece[i].iov_len;
	}
	must(at == buf->payload_bytes);
}

static inline bool rig_same(const struct store_buf *buf, const uint8_t *value)
{
	size_t at = 0;

	for (unsigned i = 0; i < buf->piece_count; i++) {
		if (memcmp(buf->piece[i].iov_base, value + at, buf->piece[i].iov_len) != 0)
			return false;
		at += buf->piece[i].iov_len;
	}
	return at == buf->payload_bytes;
}

/* Starts a put and returns; false: the world stopped before a buffer came. */
static inline bool rig_put_start(struct rig *g, struct rig_op *r, uint32_t key, uint32_t version,
				 uint32_t bytes, enum store_put_mode mode)
{
	uint8_t *value = malloc(bytes + 1);

	memset(r, 0, sizeof(*r));
	r->wait.payload_bytes = bytes;
	r->wait.ready = rig_buf_ready;
	store_buf_take(g->st, &r->wait);
	if (!rig_wait(&r->done)) {
		free(value);
		return false;
	}
	r->done = false;
	rig_value(key, version, value, bytes);
	rig_fill(r->buf, value);
	free(value);
	r->op = (struct store_op){.key = rig_key(key), .mode = mode, .buf = r->buf,
				  .done = rig_op_done};
	store_put(g->st, &r->op);
	must(!r->done);
	return true;
}

static inline int rig_put_mode(struct rig *g, uint32_t key, uint32_t version, uint32_t bytes,
			       enum store_put_mode mode)
{
	struct rig_op r;

	expect(rig_put_start(g, &r, key, version, bytes, mode));
	expect(rig_wait(&r.done));
	store_buf_give(g->st, &r.buf);
	return r.res;
}

static inline int rig_put(struct rig *g, uint32_t key, uint32_t version, uint32_t bytes)
{
	return rig_put_mode(g, key, version, bytes, STORE_PUT_ANY);
}

/* The result; 0 only if the bytes are those of that version. 1: other bytes. */
static inline int rig_get(struct rig *g, uint32_t key, uint32_t version, uint32_t bytes)
{
	struct rig_op r;
	uint8_t *value = malloc(bytes + 1);
	int rc;

	kt_noise(&r, sizeof(r));
	memset(&r, 0, sizeof(r));
	r.op = (struct store_op){.key = rig_key(key), .want_bytes = UINT32_MAX,
				 .done = rig_op_done};
	store_get(g->st, &r.op);
	must(!r.done);
	expect(rig_wait(&r.done));
	rc = r.res;
	if (rc == 0) {
		rig_value(key, version, value, bytes);
		if (r.op.value_bytes != bytes || !rig_same(r.op.buf, value))
			rc = 1;
		store_buf_give(g->st, &r.op.buf);
	} else {
		expect(r.op.buf == NULL);
	}
	free(value);
	return rc;
}

static inline int rig_delete(struct rig *g, uint32_t key)
{
	struct rig_op r = {.done = false};

	r.op = (struct store_op){.key = rig_key(key), .done = rig_op_done};
	store_delete(g->st, &r.op);
	must(!r.done);
	expect(rig_wait(&r.done));
	return r.res;
}

static inline int rig_flush(struct rig *g)
{
	struct rig_op r = {.done = false};

	r.op = (struct store_op){.done = rig_op_done};
	store_flush(g->st, &r.op);
	must(!r.done);
	expect(rig_wait(&r.done));
	return r.res;
}

static inline bool rig_exists(struct rig *g, uint32_t key)
{
	struct kv_key k = rig_key(key);

	return store_exists(g->st, &k, NULL);
}

static inline struct store_stat rig_stat(struct rig *g)
{
	struct store_stat stat;

	kt_noise(&stat, sizeof(stat));
	store_stat(g->st, &stat);
	return stat;
}

#endif
