/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Power cuts, enumerated: a workload runs once, and all that reaches its drives is recorded. Then
 * for each moment between two of these writes and flushes, and for many sets of the writes that no
 * flush covers yet (none, all, each one alone, each one missing, all sets where there are few of
 * them, else random ones), the drives are put together as such a cut would leave them, the store is
 * opened, and every key is held against the model of that moment:
 *  - all writes kept: nothing that was answered is lost;
 *  - else: what was answered before the last answered flush is there, or something newer of it;
 *  - never other bytes, nothing deleted, nothing overwritten before that flush.
 *
 * KVOF_CUTS is the least number of (moment, set) pairs to try over all workloads; without it a
 * sample of some hundreds.
 */
#include "store_work.h"

#include "base/bytes.h"

#define DRIVES_MAX 3
#define EVENTS_MAX 8000
#define UNFLUSHED_MAX 64

struct event {
	unsigned drive;
	bool flush;
	uint32_t number;
	uint64_t offset_bytes, bytes;
	uint8_t *data;
	struct model_key *model;             /* [KEYS], just before it */
};

struct record {
	struct run run;
	struct event event[EVENTS_MAX];
	unsigned count;
	uint8_t *image[DRIVES_MAX];          /* what is durable */
	uint64_t bytes;
};

struct workload {
	const char *name;
	unsigned drives;
	uint64_t drive_bytes;
	bool may_evict, durable, retire, cleans;
};

static uint64_t carried;             /* values, while recording */

static unsigned drive_number(const char *path)
{
	return (unsigned)(path[strlen(path) - 1] - '0');
}

static void seen_event(void *arg, const struct sim_disk_event *e)
{
	struct record *rec = arg;
	struct event *to = &rec->event[rec->count++];

	must(rec->count <= EVENTS_MAX);
	*to = (struct event){.drive = drive_number(e->path), .flush = e->flush,
		.number = e->number, .offset_bytes = e->offset_bytes, .bytes = e->bytes,
		.model = malloc(sizeof(rec->run.key))};
	memcpy(to->model, rec->run.key, sizeof(rec->run.key));
	for (unsigned i = 0; i < OPS_IN_FLIGHT; i++) {
		const struct flight *f = &rec->run.flight[i];

		if (f->kind != F_NONE && f->r.done)
			model_take(to->model, f, false);
	}
	if (e->flush)
		return;
	to->data = malloc(e->bytes);
	memcpy(to->data, e->data, e->bytes);
}

/* --- the workload, once -------------------- */

static void retire(struct run *run)
{
	store_drive_retire(run->g.st, 1);
	while (rig_stat(&run->g).drives_failed == 0)
		must(sim_step());
	for (unsigned i = 0; i < OPS_IN_FLIGHT; i++) {
		if (run->flight[i].kind != F_NONE && run->flight[i].r.done)
			flight_reap(run, &run->flight[i]);
	}
	for (uint32_t i = 0; i < KEYS; i++) {
		struct model_key *k = &run->key[i];

		if (k->acked != 0 && !rig_exists(&run->g, i)) {
			k->lost = true;
			k->flushed = 0;
			for (unsigned j = 0; j < OPS_IN_FLIGHT; j++)
				run->flight[j].flush_acked[i] = 0;
		}
	}
}

/* One that a drive's end catches fails, rightly. */
static bool flush_under_way(const struct run *run)
{
	for (unsigned i = 0; i < OPS_IN_FLIGHT; i++) {
		if (run->flight[i].kind == F_FLUSH)
			return true;
	}
	return false;
}

static void work(struct run *run, bool with_retire)
{
	for (unsigned started = 0;;) {
		bool any = false;

		for (unsigned i = 0; i < OPS_IN_FLIGHT; i++)
			flight_reap(run, &run->flight[i]);
		if (with_retire && started == OPS / 2 && !flush_under_way(run)) {
			retire(run);
			with_retire = false;
		}
		for (unsigned i = 0; i < OPS_IN_FLIGHT; i++) {
			bool hold = with_retire && started == OPS / 2;

			if (run->flight[i].kind == F_NONE && started < OPS && !hold) {
				op_start(run, &run->flight[i]);
				started++;
			}
			any |= run->flight[i].kind != F_NONE;
		}
		if (!any)
			break;
		must(sim_run_until(one_is_done, run, RIG_TIME_MAX));
	}
	/* Quiet: checkpoints. */
	while (sim_step())
		;
}

static void opts_set(struct rig *g, const struct workload *w)
{
	g->opts.value_bytes_max = 100000;
	g->opts.segment_bytes = 192 * 1024;
	g->opts.buffer_bytes = 1 << 20;
	g->opts.index_keys_max = 256;
	g->opts.ack_durable = w->durable;
	g->opts.carry_percent = 50;
	g->opts.evict = !w->cleans;
	g->opts.degraded = false;
}

static void record(struct record *rec, const struct workload *w, uint64_t seed)
{
	struct run *run = &rec->run;

	memset(run, 0, sizeof(*run));
	rec->count = 0;
	rig_begin(&run->g, seed, w->drives, w->drive_bytes);
	opts_set(&run->g, w);
	run->may_evict = w->may_evict;
	run->durable = w->durable;
	run->prng = prng_of(seed);
	expect_int(rig_open(&run->g), 0);
	for (unsigned d = 0; d < w->drives; d++) {
		const uint8_t *medium = sim_disk_bytes(run->g.path[d], &rec->bytes);

		rec->image[d] = malloc(rec->bytes);
		memcpy(rec->image[d], medium, rec->bytes);
	}
	sim_disk_watch(seen_event, rec);
	work(run, w->retire);
	sim_disk_watch(NULL, NULL);
	if (w->may_evict)
		expect(rig_stat(&run->g).evicted_segments > 3);
	if (w->cleans)
		expect(rig_stat(&run->g).cleaned_segments > 1);
	carried += rig_stat(&run->g).carried_values;
	rig_crash(&run->g, true);
	sim_end();
}

/* --- cuts -------------------- */

struct cutting {
	struct record *rec;
	struct run *check;                   /* a store in a world of its own */
	uint8_t *medium[DRIVES_MAX];
	const struct event *unflushed[UNFLUSHED_MAX];
	unsigned unflushed_count;
	struct event touched[EVENTS_MAX];    /* by the set kept and by the open */
	unsigned touched_count;
	uint64_t pairs, tried;
	unsigned stride;
};

static void seen_touch(void *arg, const struct sim_disk_event *e)
{
	struct cutting *c = arg;

	must(c->touched_count < EVENTS_MAX);
	c->touched[c->touched_count++] = (struct event){.drive = drive_number(e->path),
		.offset_bytes = e->offset_bytes, .bytes = e->bytes};
}

static void keep(struct cutting *c, const struct event *e)
{
	memcpy(c->medium[e->drive] + e->offset_bytes, e->data, e->bytes);
	must(c->touched_count < EVENTS_MAX);
	c->touched[c->touched_count++] = *e;
}

static void judge(struct cutting *c, unsigned moment, uint64_t set, bool all)
{
	struct run *run = c->check;
	const struct event *e = &c->rec->event[moment];

	memcpy(run->key, e->model, sizeof(run->key));
	for (uint32_t i = 0; i < KEYS; i++) {
		struct model_key *k = &run->key[i];
		uint32_t version = seen(run, i);
		bool good = may_be(run, k, version, all || run->durable);

		/* Zero-byte values of two versions look the same. */
		for (uint32_t v = 1; v <= k->version && !good && version != 0; v++)
			good = k->bytes[v] == 0 && k->bytes[version] == 0 &&
			       may_be(run, k, v, all || run->durable);
		if (!good)
			fail_msg("moment %u, kept %llx of %u writes: key %u shows version %u; "
				 "acked %u pending %u flushed %u deleted below %u%s%s", moment,
				 (unsigned long long)set, c->unflushed_count, i, version, k->acked,
				 k->pending, k->flushed, k->dead_below,
				 k->deleting ? " deleting" : "", k->lost ? " lost" : "");
	}
}

/* One pair: the store comes back from what is durable and this set of the other writes. */
static void cut(struct cutting *c, unsigned moment, uint64_t set)
{
	uint64_t full = c->unflushed_count == 64 ? UINT64_MAX
						 : (UINT64_C(1) << c->unflushed_count) - 1;
	struct run *run = c->check;

	c->pairs++;
	if (c->pairs % c->stride != 0)
		return;
	c->tried++;
	c->touched_count = 0;
	for (unsigned i = 0; i < c->unflushed_count; i++) {
		if ((set >> i & 1) != 0)
			keep(c, c->unflushed[i]);
	}
	sim_disk_watch(seen_touch, c);
	if (rig_open(&run->g) != 0)
		fail_msg("moment %u, kept %llx: %s", moment, (unsigned long long)set,
			 run->g.report.text);
	judge(c, moment, set, set == full);
	rig_crash(&run->g, true);
	sim_disk_watch(NULL, NULL);
	for (unsigned i = 0; i < c->touched_count; i++) {
		const struct event *t = &c->touched[i];

		memcpy(c->medium[t->drive] + t->offset_bytes,
		       c->rec->image[t->drive] + t->offset_bytes, t->bytes);
	}
}

static void cuts_at(struct cutting *c, unsigned moment)
{
	unsigned n = c->unflushed_count;
	uint64_t full = n == 64 ? UINT64_MAX : (UINT64_C(1) << n) - 1, did[24];
	struct prng p = prng_of(moment);

	if (n <= 4) {
		for (uint64_t set = 0; set <= full; set++)
			cut(c, moment, set);
		return;
	}
	cut(c, moment, 0);
	cut(c, moment, full);
	for (unsigned i = 0; i < n; i++) {
		cut(c, moment, UINT64_C(1) << i);
		cut(c, moment, full & ~(UINT64_C(1) << i));
	}
	for (unsigned i = 0; i < ARRAY_COUNT(did);) {
		uint64_t set = prng_next(&p) & full;
		bool again = set == 0 || set == full || (set & (set - 1)) == 0 ||
			     ((full & ~set) & ((full & ~set) - 1)) == 0;

		for (unsigned j = 0; j < i; j++)
			again |= did[j] == set;
		did[i++] = set;
		if (!again)
			cut(c, moment, set);
	}
}

static void durable_add(struct cutting *c, const struct event *e)
{
	memcpy(c->rec->image[e->drive] + e->offset_bytes, e->data, e->bytes);
	memcpy(c->medium[e->drive] + e->offset_bytes, e->data, e->bytes);
}

static void flushed(struct cutting *c, const struct event *flush)
{
	unsigned kept = 0;

	for (unsigned i = 0; i < c->unflushed_count; i++) {
		const struct event *e = c->unflushed[i];

		if (e->drive == flush->drive && e->number <= flush->number)
			durable_add(c, e);
		else
			c->unflushed[kept++] = e;
	}
	c->unflushed_count = kept;
}

/* The check's own world is made anew now and then: what died in it takes memory. */
static void world_begin(struct cutting *c, const struct workload *w)
{
	struct rig *g = &c->check->g;

	if (g->path[0][0] != 0)
		sim_end();
	rig_begin(g, 1, w->drives, w->drive_bytes);
	opts_set(g, w);
	expect_int(rig_open(g), 0);
	rig_crash(g, true);
	for (unsigned d = 0; d < w->drives; d++) {
		c->medium[d] = sim_disk_bytes(g->path[d], NULL);
		memcpy(c->medium[d], c->rec->image[d], c->rec->bytes);
	}
	c->check->may_evict = w->may_evict;
	c->check->durable = w->durable;
}

static uint64_t enumerate(const struct workload *w, uint64_t seed, unsigned stride)
{
	struct record *rec = calloc(1, sizeof(*rec));
	struct cutting *c = calloc(1, sizeof(*c));
	uint64_t tried, pairs;
	unsigned most = 0;

	must(rec != NULL && c != NULL);
	record(rec, w, seed);
	c->rec = rec;
	c->stride = stride;
	c->check = calloc(1, sizeof(*c->check));
	world_begin(c, w);
	for (unsigned m = 0; m < rec->count; m++) {
		const struct event *e = &rec->event[m];

		if (m % 50 == 49)
			world_begin(c, w);
		cuts_at(c, m);
		if (e->flush) {
			flushed(c, e);
			continue;
		}
		must(c->unflushed_count < UNFLUSHED_MAX);
		c->unflushed[c->unflushed_count++] = e;
		most = c->unflushed_count > most ? c->unflushed_count : most;
	}
	tried = c->tried;
	pairs = c->pairs;
	printf("# %s: %u writes and flushes, at most %u of them not flushed, %llu pairs, "
	       "%llu tried\n", w->name, rec->count, most, (unsigned long long)pairs,
	       (unsigned long long)tried);
	expect(c->check->hits > tried);
	sim_end();
	for (unsigned m = 0; m < rec->count; m++) {
		free(rec->event[m].data);
		free(rec->event[m].model);
	}
	for (unsigned d = 0; d < w->drives; d++)
		free(rec->image[d]);
	free(c->check);
	free(c);
	free(rec);
	return tried;
}

static const struct workload workloads[] = {
	{"all is kept", 2, 8 * MiB, false, false, false, false},
	{"all is kept, answers are durable", 2, 8 * MiB, false, true, false, false},
	{"old values are evicted", 2, 1664 * KiB, true, false, false, false},
	{"a drive is given up", 3, 8 * MiB, false, false, true, false},
	{"a drive is given up, old values are evicted", 3, 1664 * KiB, true, false, true, false},
	{"an object namespace is cleaned", 2, 1664 * KiB, false, false, false, true},
};

TEST(a_cut_at_every_moment_with_any_of_the_unflushed_writes_kept_agrees_with_the_model)
{
	const char *env = getenv("KVOF_CUTS");
	uint64_t want = env != NULL ? strtoull(env, NULL, 0) : 0, tried = 0;
	uint64_t seed = 1;

	do {
		for (unsigned i = 0; i < ARRAY_COUNT(workloads); i++)
			tried += enumerate(&workloads[i], seed * 100 + i, want == 0 ? 23 : 1);
		seed++;
	} while (tried < want);
	printf("# %llu pairs, %llu values carried\n", (unsigned long long)tried,
	       (unsigned long long)carried);
	expect(carried > 0 && tried >= want && tried > 300);
}
