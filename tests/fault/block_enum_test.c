/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Power cuts of a block namespace, enumerated: a workload runs once, and all that reaches its
 * drives is recorded. Then for each moment between two of these writes and flushes, and for many
 * sets of the writes that no flush covers yet (none, all, each one alone, each one missing, random
 * ones), the drives are put together as such a cut would leave them, the namespace is opened, and
 * every sector is held against the model of that moment (block_rig.h). With all writes kept nothing
 * that was answered may be lost.
 *
 * KVOF_CUTS is the least number of (moment, set) pairs to try; without it a sample of some
 * hundreds.
 */
#include "kt.h"

#include "block_work.h"

#define EVENTS_MAX 2000
#define UNFLUSHED_MAX 64u
#define DRIVES 2u

/* What the model says just before an event. */
struct instant {
	uint32_t *now, *base, *flight;
	uint32_t (*history)[RIG_HISTORY];
	uint8_t *history_count;
	bool *unsure;
};

struct event {
	unsigned drive;
	bool flush;
	uint32_t number;
	uint64_t offset_bytes, bytes;
	uint8_t *data;
	struct instant model;
};

struct record {
	struct rig rig;
	struct event event[EVENTS_MAX];
	unsigned count;
	uint8_t *image[DRIVES];              /* what is durable */
	uint64_t bytes;
};

struct cutting {
	struct record *rec;
	struct rig *check;
	uint8_t *medium[DRIVES];
	const struct event *unflushed[UNFLUSHED_MAX];
	unsigned unflushed_count, stride;
	uint64_t pairs, tried;
};

static void *copy_of(const void *from, size_t bytes)
{
	void *to = malloc(bytes);

	must(to != NULL);
	memcpy(to, from, bytes);
	return to;
}

static struct instant instant_of(struct rig *r)
{
	struct instant m = {
		.now = copy_of(r->now, r->sectors * sizeof(*r->now)),
		.base = copy_of(r->base, r->sectors * sizeof(*r->base)),
		.flight = calloc(r->sectors, sizeof(*m.flight)),
		.history = copy_of(r->history, r->sectors * sizeof(*r->history)),
		.history_count = copy_of(r->history_count, r->sectors),
		.unsure = copy_of(r->unsure, r->sectors * sizeof(*r->unsure)),
	};

	for (unsigned i = 0; i < RIG_OPS; i++) {
		const struct rig_op *x = &r->op[i];

		for (uint32_t k = 0; x->busy && op_changes(x) && k < op_sectors(x); k++) {
			uint32_t s = op_first(x) + k;

			must(m.history_count[s] < RIG_HISTORY);
			m.history[s][m.history_count[s]++] = x->version;
			m.flight[s] = x->version + 1;
		}
	}
	return m;
}

static void instant_free(struct instant *m)
{
	free(m->now);
	free(m->base);
	free(m->flight);
	free(m->history);
	free(m->history_count);
	free(m->unsure);
}

static void seen_event(void *arg, const struct sim_disk_event *e)
{
	struct record *rec = arg;
	struct event *to = &rec->event[rec->count++];

	must(rec->count <= EVENTS_MAX);
	*to = (struct event){.drive = (unsigned)(e->path[strlen(e->path) - 1] - '0'),
		.flush = e->flush, .number = e->number, .offset_bytes = e->offset_bytes,
		.bytes = e->bytes, .model = instant_of(&rec->rig)};
	if (!e->flush)
		to->data = copy_of(e->data, e->bytes);
}

static const struct rig_options options = {.drives = DRIVES, .shards = 1, .loops = 1,
	.block_bytes = 4096, .align_bytes = 4096, .size_bytes = 2 * MiB, .room_percent = 60};

static void record(struct record *rec, uint64_t seed)
{
	struct rig_options o = options;
	char path[32];

	o.seed = seed;
	rec->count = 0;
	rig_begin(&rec->rig, &o);
	rec->rig.op_bytes_max = 128 * KiB;
	for (unsigned d = 0; d < DRIVES; d++) {
		rig_path(0, d, path);
		rec->image[d] = sim_disk_bytes(path, &rec->bytes);
		rec->image[d] = copy_of(rec->image[d], rec->bytes);
	}
	sim_disk_watch(seen_event, rec);
	must(work(&rec->rig, 60) && flush_all(&rec->rig));
	must(work(&rec->rig, 30));
	sim_disk_watch(NULL, NULL);
	rig_die(&rec->rig, true);
	rig_end(&rec->rig);
}

/* --- cuts -------------------- */

static void judge(struct cutting *c, const struct event *e, bool all)
{
	struct rig *r = c->check;
	uint32_t n = r->sectors;

	memcpy(r->now, e->model.now, n * sizeof(*r->now));
	memcpy(r->base, e->model.base, n * sizeof(*r->base));
	memcpy(r->flight, e->model.flight, n * sizeof(*r->flight));
	memcpy(r->history, e->model.history, n * sizeof(*r->history));
	memcpy(r->history_count, e->model.history_count, n);
	memcpy(r->unsure, e->model.unsure, n * sizeof(*r->unsure));
	rig_verify(r, !all);
}

static void cut(struct cutting *c, unsigned moment, uint64_t set, bool all)
{
	if (c->pairs++ % c->stride != 0)
		return;
	c->tried++;
	for (unsigned d = 0; d < DRIVES; d++)
		memcpy(c->medium[d], c->rec->image[d], c->rec->bytes);
	for (unsigned i = 0; i < c->unflushed_count; i++) {
		const struct event *e = c->unflushed[i];

		if (set >> i & 1)
			memcpy(c->medium[e->drive] + e->offset_bytes, e->data, e->bytes);
	}
	c->check->o.seed = moment;                     /* told when something is wrong */
	rig_open(c->check);
	judge(c, &c->rec->event[moment], all);
	rig_die(c->check, true);
}

static void cuts_at(struct cutting *c, unsigned moment)
{
	unsigned n = c->unflushed_count;
	uint64_t full = n == 64 ? UINT64_MAX : (UINT64_C(1) << n) - 1;
	struct prng p = prng_of(moment);

	cut(c, moment, full, true);
	if (n == 0)
		return;
	cut(c, moment, 0, false);
	for (unsigned i = 0; i < n && n > 1; i++) {
		cut(c, moment, UINT64_C(1) << i, false);
		cut(c, moment, full & ~(UINT64_C(1) << i), false);
	}
	for (unsigned i = 0; i < 24 && n > 3; i++)
		cut(c, moment, prng_next(&p) & full, false);
}

/* A flush covers the writes of its drive up to its number. */
static void flushed(struct cutting *c, const struct event *flush)
{
	unsigned kept = 0;

	for (unsigned i = 0; i < c->unflushed_count; i++) {
		const struct event *e = c->unflushed[i];

		if (e->drive == flush->drive && e->number <= flush->number)
			memcpy(c->rec->image[e->drive] + e->offset_bytes, e->data, e->bytes);
		else
			c->unflushed[kept++] = e;
	}
	c->unflushed_count = kept;
}

/* Writes of one drive are applied in their order, or one that is older would undo a newer. */
static void cuts_all(struct cutting *c)
{
	for (unsigned m = 0; m < c->rec->count; m++) {
		const struct event *e = &c->rec->event[m];

		cuts_at(c, m);
		if (e->flush)
			flushed(c, e);
		else if (c->unflushed_count == UNFLUSHED_MAX)
			return;                        /* too many sets; other seeds go on */
		else
			c->unflushed[c->unflushed_count++] = e;
	}
}

static void check_begin(struct cutting *c)
{
	struct rig_options o = options;
	uint64_t bytes;
	char path[32];

	o.seed = 1;
	rig_begin(c->check, &o);
	rig_die(c->check, true);
	for (unsigned d = 0; d < DRIVES; d++) {
		rig_path(0, d, path);
		c->medium[d] = sim_disk_bytes(path, &bytes);
		must(bytes == c->rec->bytes);
	}
}

static void forget(struct record *rec)
{
	for (unsigned i = 0; i < rec->count; i++) {
		free(rec->event[i].data);
		instant_free(&rec->event[i].model);
	}
	for (unsigned d = 0; d < DRIVES; d++)
		free(rec->image[d]);
}

TEST(a_power_cut_between_any_two_writes_loses_nothing_flushed)
{
	static struct record rec;
	static struct rig check;
	const char *said = getenv("KVOF_CUTS");
	uint64_t least = said != NULL ? strtoull(said, NULL, 10) : 400, tried = 0, pairs = 0;

	for (uint64_t seed = 1; tried < least; seed++) {
		struct cutting c = {.rec = &rec, .check = &check, .stride = said != NULL ? 1 : 23};

		record(&rec, seed);
		check_begin(&c);
		cuts_all(&c);
		rig_end(&check);
		forget(&rec);
		tried += c.tried;
		pairs += c.pairs;
	}
	printf("# %llu pairs of moment and set tried, of %llu\n", (unsigned long long)tried,
	       (unsigned long long)pairs);
}
