/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Arms dram, local and array: restores that begin together, through libkvof as an engine uses it.
 * One cache with that tier alone holds the prefixes of eight sessions; a wave restores some of them
 * with all of their blocks, and what counts is when the last one is over, and the one in the
 * middle. Waves of two sizes, of one session and of several, give the arm (plan/measured.h);
 * another one, of a number and a size between them, is only predicted by it, and the profile tells
 * how far off that was.
 *
 * Rounds go over all waves again and again, each in an order of its own: on a busy machine whoever
 * comes late in a round is sooner out of its time slice. Buffers that a wave fills were written
 * before, and sessions take turns, so that no wave finds its bytes in the processor's cache where
 * the whole set is larger.
 */
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/must.h"
#include "base/prng.h"
#include "cache/identity.h"
#include "cmd/cmd.h"
#include "cmd/meter.h"
#include "cmd/plan_measure_inner.h"
#include "kvof/restore.h"
#include "loop/loop.h"

#define WAVE_BATCH 64u
#define WAVE_DEADLINE_NS (20 * NS_PER_S)
#define WAVE_FLUSH_NS (60 * NS_PER_S)
#define WAVE_CHECKS 1u                   /* waves at the end of the table that are predicted */
#define WAVE_MODEL "kvof plan calibrate"

struct wave_point {
	uint32_t sessions, blocks;       /* blocks of a session */
	struct measured_series last, p50;
};

struct wave {
	struct measure *m;
	struct kvof_plan_fit *fit;
	struct kvof_cache *cache;
	const char *tier;                /* for lines */
	struct kvof_id *id;              /* [sessions * blocks_most] */
	struct kvof_block *block;        /* [the same]: into room */
	struct iovec *iov;
	struct prng prng;
	uint8_t *room;
	uint64_t room_bytes;
	uint32_t blocks_most, turn;
	struct wave_point point[MEASURED_WAVES_MAX];
	unsigned points;
	struct measured_series batch;    /* seconds of one session's blocks as a batch of loads */
	uint32_t batch_blocks;
};

/* --- the cache -------------------- */

static int wave_cache_open(struct wave *w, enum kvof_plan_arm_kind kind, const char *target)
{
	const struct kvof_field fields[] = {{"purpose", "calibration"}};
	const char *flash[STORE_DRIVES_MAX];
	char text[STORE_DRIVES_MAX][300], why[256] = "";
	const struct cmd_drives *drives = &w->m->drives;
	struct kvof_cache_opts opts = {
		.struct_bytes = sizeof(opts), .model_id = WAVE_MODEL, .fields = fields,
		.field_count = ARRAY_COUNT(fields), .deadline_ns = WAVE_DEADLINE_NS, .strict = 1,
		.part_bytes = (uint32_t)bytes_round_up(w->m->value_bytes + 64, 4096),
	};
	int rc;

	if (kind == KVOF_PLAN_DRAM)
		opts.dram_bytes = w->room_bytes + w->room_bytes / 4;
	if (kind == KVOF_PLAN_ARRAY)
		opts.target = target;
	for (unsigned i = 0; kind == KVOF_PLAN_LOCAL && i < drives->count; i++) {
		snprintf(text[i], sizeof(text[i]), drives->drive[i].bytes > 0 ?
			 "%s,size=%" PRIu64 "KiB" : "%s", drives->path[i],
			 drives->drive[i].bytes / KiB);
		flash[opts.flash_count++] = text[i];
		opts.flash = flash;
		/* it was looked at before, and holds nothing but an empty store of ours */
		opts.flash_format = 1;
	}
	rc = kvof_cache_open(&opts, why, &w->cache);
	if (rc != 0)
		return measure_failed("arm %s: the cache can't be opened: %s", w->tier,
				      why[0] != 0 ? why : strerror(-rc));
	if (kind == KVOF_PLAN_LOCAL)
		measure_drive_unname(w->m);
	return 0;
}

static void wave_blocks_set(struct wave *w, uint64_t salt)
{
	uint64_t each = w->m->value_bytes;

	for (uint32_t i = 0; i < MEASURE_WAVE_SESSIONS * w->blocks_most; i++) {
		const uint64_t hash[2] = {salt, i};

		must(kvof_cache_id_of(w->cache, hash, sizeof(hash), &w->id[i]) == 0);
		w->iov[i] = (struct iovec){w->room + i * each, each};
		w->block[i] = (struct kvof_block){w->id[i], &w->iov[i], 1, each};
	}
}

static int wave_batch(struct wave *w, enum kvof_op op, uint32_t first, uint32_t count)
{
	struct kvof_result result[WAVE_BATCH];
	struct kvof_block block[WAVE_BATCH];
	int rc;

	for (uint32_t i = 0; i < count; i++) {
		block[i] = w->block[first + i];
		if (op == KVOF_DELETE)
			block[i] = (struct kvof_block){.id = w->id[first + i]};
	}
	rc = kvof_cache_wait(w->cache, op, block, count, WAVE_DEADLINE_NS, result);
	if (rc != 0 && op == KVOF_DELETE)
		return CMD_FAILED;
	if (rc != 0)
		return measure_failed("arm %s: a batch was refused: %s", w->tier, strerror(-rc));
	for (uint32_t i = 0; i < count; i++) {
		if (op == KVOF_DELETE || result[i].reason == KVOF_OK ||
		    result[i].reason == KVOF_EXISTS)
			continue;
		return measure_failed("arm %s: a block was not %s: %s", w->tier,
				      op == KVOF_SAVE ? "saved" : "loaded",
				      kvof_reason_name(result[i].reason));
	}
	return 0;
}

static int wave_all(struct wave *w, enum kvof_op op)
{
	uint32_t blocks = MEASURE_WAVE_SESSIONS * w->blocks_most;
	int rc = 0;

	for (uint32_t at = 0; rc == 0 && at < blocks; at += WAVE_BATCH) {
		measure_progress(w->m, "%s %u of %u MiB", op == KVOF_SAVE ? "saving" : "removing",
				 (unsigned)(at * w->m->value_bytes / MiB),
				 (unsigned)(blocks * w->m->value_bytes / MiB));
		if (measure_stopped() && op == KVOF_SAVE)
			return 0;
		rc = wave_batch(w, op, at, (uint32_t)bytes_min(WAVE_BATCH, blocks - at));
	}
	if (rc == 0 && op == KVOF_SAVE && kvof_cache_flush(w->cache, WAVE_FLUSH_NS) != 0)
		rc = measure_failed("arm %s: what was saved was not written in %u s", w->tier,
				    (unsigned)(WAVE_FLUSH_NS / NS_PER_S));
	return rc;
}

/* --- one wave -------------------- */

struct wave_once {
	uint64_t request[MEASURE_WAVE_SESSIONS];
	double over_s[MEASURE_WAVE_SESSIONS];    /* in the order in which they were over */
	uint32_t begun, over, busy;
	uint64_t begun_ns;
};

/* Return: 0; an exit code: a restore did not bring all of its blocks. */
static int once_event(struct wave *w, const struct wave_point *p, struct wave_once *o,
		      const struct kvof_result *r)
{
	if (r->flags & KVOF_RESULT_RELEASED) {
		o->busy--;
		return 0;
	}
	if (!(r->flags & KVOF_RESULT_REQUEST))
		return 0;
	o->over_s[o->over++] = (double)(cmd_now_ns() - o->begun_ns) / 1e9;
	o->busy += r->busy;
	if (r->value_bytes == p->blocks)
		return 0;
	return measure_failed("arm %s: a restore brought %" PRIu64 " of %u blocks: %s", w->tier,
			      r->value_bytes, p->blocks, kvof_reason_name(r->reason));
}

static int once_drain(struct wave *w, const struct wave_point *p, struct wave_once *o)
{
	struct pollfd fd = {kvof_cache_fd(w->cache), POLLIN, 0};
	uint64_t end_ns = o->begun_ns + WAVE_DEADLINE_NS + NS_PER_S;
	struct kvof_result r[16];
	int rc = 0;

	while (rc == 0 && (o->over < o->begun || o->busy > 0)) {
		int n = kvof_cache_drain(w->cache, r, ARRAY_COUNT(r));

		for (int i = 0; i < n && rc == 0; i++)
			rc = once_event(w, p, o, &r[i]);
		if (n > 0)
			continue;
		if (n < 0 || cmd_now_ns() > end_ns)
			return measure_failed("arm %s: a restore did not end", w->tier);
		(void)poll(&fd, 1, 100);
	}
	return rc;
}

/* Restores of p->sessions sessions, begun together; one more repeat of the point. */
static int wave_once(struct wave *w, struct wave_point *p)
{
	const struct kvof_restore_opts opts = {.struct_bytes = sizeof(opts),
		.flags = KVOF_RESTORE_LOAD_ALL, .deadline_ns = WAVE_DEADLINE_NS};
	struct wave_once o = {.begun_ns = cmd_now_ns()};
	int rc = 0, begun = 0;

	for (uint32_t i = 0; i < p->sessions && begun == 0; i++) {
		uint32_t session = w->turn++ % MEASURE_WAVE_SESSIONS;

		begun = kvof_restore_begin(w->cache, &w->block[session * w->blocks_most],
					   p->blocks, &opts, &o.request[i]);
		o.begun += begun == 0;
	}
	if (begun != 0)
		rc = measure_failed("arm %s: a restore was refused: %s", w->tier,
				    strerror(-begun));
	if (rc == 0)
		rc = once_drain(w, p, &o);
	for (uint32_t i = 0; i < o.begun; i++)
		(void)kvof_restore_end(w->cache, o.request[i], NULL);
	if (rc != 0)
		return rc;
	measured_add(&p->last, o.over_s[p->sessions - 1]);
	measured_add(&p->p50, o.over_s[p->sessions / 2]);
	return 0;
}

/* One session as a batch of loads, as `kvof replay` does it. */
static int wave_batch_once(struct wave *w)
{
	uint32_t session = w->turn++ % MEASURE_WAVE_SESSIONS;
	uint64_t begun_ns = cmd_now_ns();
	int rc = wave_batch(w, KVOF_LOAD, session * w->blocks_most, w->batch_blocks);

	measured_add(&w->batch, (double)(cmd_now_ns() - begun_ns) / 1e9);
	return rc;
}

/* A new order of the waves. */
static void points_shuffle(struct wave *w, unsigned order[MEASURED_WAVES_MAX])
{
	for (unsigned i = 0; i < w->points; i++)
		order[i] = i;
	for (unsigned i = w->points; i > 1; i--) {
		unsigned other = (unsigned)prng_below(&w->prng, i), keep = order[i - 1];

		order[i - 1] = order[other];
		order[other] = keep;
	}
}

static int wave_rounds(struct wave *w)
{
	unsigned order[MEASURED_WAVES_MAX];
	int rc = 0;

	for (unsigned r = 0; rc == 0 && r <= MEASURED_REPEATS_MAX && !measure_stopped(); r++) {
		if (r > MEASURE_REPEATS_LEAST && measure_over(w->m))
			break;
		points_shuffle(w, order);
		for (unsigned i = 0; rc == 0 && i < w->points && !measure_stopped(); i++) {
			struct wave_point *p = &w->point[order[i]];

			measure_progress(w->m, "round %u: %u session%s of %llu MiB", r,
					 p->sessions, p->sessions > 1 ? "s" : "",
					 (unsigned long long)(p->blocks * w->m->value_bytes / MiB));
			rc = wave_once(w, p);
		}
		if (rc == 0)
			rc = wave_batch_once(w);
		if (r > 0)
			continue;
		for (unsigned i = 0; i < w->points; i++)     /* the first round warms up */
			w->point[i].last.count = w->point[i].p50.count = 0;
		w->batch.count = 0;
	}
	return rc;
}

/* --- the arm -------------------- */

static double point_bytes(const struct wave *w, const struct wave_point *p)
{
	return (double)p->blocks * (double)w->m->value_bytes;
}

static void arm_check(struct wave *w)
{
	for (unsigned i = 0; i < w->points; i++) {
		const struct wave_point *p = &w->point[i];
		const struct kvof_plan_wave wave = {.bytes = point_bytes(w, p),
						    .sessions = p->sessions};
		double last_s = measured_median(&p->last), p50_s = measured_median(&p->p50), error;
		struct kvof_plan_ttft ttft;
		struct kvof_plan_bad bad;

		if (kvof_plan_ttft(&w->fit->arm, &wave, &ttft, &bad) != 0)
			continue;
		error = last_s > 0 ? ttft.last_s / last_s - 1 : 0;
		if (i + WAVE_CHECKS >= w->points)
			plan_fit_note(w->fit, "check: %u sessions of %.0f MB, not used for the "
				      "arm: predicted last %.2f ms, median %.2f ms; measured "
				      "%.2f and %.2f ms (%+.1f %% and %+.1f %%)%s", p->sessions,
				      wave.bytes / 1e6, ttft.last_s * 1e3, ttft.p50_s * 1e3,
				      last_s * 1e3, p50_s * 1e3, 100 * error,
				      p50_s > 0 ? 100 * (ttft.p50_s / p50_s - 1) : 0,
				      error > 0.1 || error < -0.1 ?
				      "; " PLAN_NOTE_UNSURE ": more than 10 %" : "");
		else if (error > w->fit->worst_row_error || -error > w->fit->worst_row_error)
			w->fit->worst_row_error = error > 0 ? error : -error;
	}
}

/* What was measured, in a line: sessions x MB of each, median and last. */
static void points_note(struct wave *w)
{
	char text[200] = "";

	for (unsigned i = 0; i < w->points; i++) {
		const struct wave_point *p = &w->point[i];
		size_t used = strlen(text);

		snprintf(text + used, sizeof(text) - used, "%s%u x %.0f: %.2f, %.2f",
			 i > 0 ? "; " : "", p->sessions, point_bytes(w, p) / 1e6,
			 measured_median(&p->p50) * 1e3, measured_median(&p->last) * 1e3);
	}
	plan_fit_note(w->fit, "sessions x MB: median, last ms: %s", text);
}

/* One closed form can't say that a rate falls as more sessions share it. */
static void alone_note(struct wave *w)
{
	const struct wave_point *p = &w->point[1];
	const struct kvof_plan_wave alone = {.sessions = 1, .bytes = point_bytes(w, p)};
	double last_s = measured_median(&p->last);
	struct kvof_plan_ttft ttft;
	struct kvof_plan_bad bad;

	if (kvof_plan_ttft(&w->fit->arm, &alone, &ttft, &bad) == 0 && ttft.last_s > 1.1 * last_s)
		plan_fit_note(w->fit, "one session alone took %.2f ms for %.0f MB, the arm says "
			      "%.2f: together they get less than one did, and the arm is that of "
			      "many", last_s * 1e3, alone.bytes / 1e6, ttft.last_s * 1e3);
}

static void arm_notes(struct wave *w)
{
	const struct wave_point *worst = &w->point[0];
	double batch_s = measured_median(&w->batch), one_s;
	const struct kvof_plan_wave one = {.sessions = 1, .bytes = (double)w->batch_blocks *
					   (double)w->m->value_bytes};
	struct kvof_plan_ttft ttft;
	struct kvof_plan_bad bad;

	for (unsigned i = 0; i < w->points; i++)
		if (measured_spread(&w->point[i].last) > measured_spread(&worst->last))
			worst = &w->point[i];
	plan_fit_note(w->fit, "restores of blocks of %llu KiB through libkvof, %u waves, %u "
		      "repeats each", (unsigned long long)(w->m->value_bytes / KiB), w->points,
		      w->point[0].last.count);
	points_note(w);
	alone_note(w);
	if (measured_spread(&worst->last) > MEASURE_NOISY)
		plan_fit_note(w->fit, "noisy: repeats of %u sessions of %.0f MB lie %.0f %% apart",
			      worst->sessions, point_bytes(w, worst) / 1e6,
			      100 * measured_spread(&worst->last));
	if (kvof_plan_ttft(&w->fit->arm, &one, &ttft, &bad) != 0)
		return;
	one_s = ttft.last_s;
	if (batch_s > 0 && (batch_s > 1.05 * one_s || batch_s < 0.95 * one_s))
		plan_fit_note(w->fit, "a batch of loads of %.0f MB instead of a restore took %.2f "
			      "ms, where a restore takes %.2f", one.bytes / 1e6, batch_s * 1e3,
			      one_s * 1e3);
}

static int arm_make(struct wave *w)
{
	struct measured_wave wave[MEASURED_WAVES_MAX];
	struct kvof_plan_fit *fit = w->fit;
	unsigned used = w->points - WAVE_CHECKS;

	for (unsigned i = 0; i < used; i++)
		wave[i] = (struct measured_wave){w->point[i].sessions, point_bytes(w, &w->point[i]),
			measured_median(&w->point[i].p50), measured_median(&w->point[i].last)};
	if (measured_arm_of_waves(wave, used, &fit->arm) != 0)
		return measure_failed("arm %s: waves of two sizes were not there to be fitted",
				      w->tier);
	fit->rows = used;
	fit->concurrency_min = 1;
	fit->concurrency_max = MEASURE_WAVE_SESSIONS;
	arm_check(w);
	arm_notes(w);
	return 0;
}

/* --- all of it -------------------- */

static int wave_ready(struct wave *w, uint64_t set_bytes)
{
	uint32_t large = (uint32_t)(set_bytes / MEASURE_WAVE_SESSIONS / w->m->value_bytes);
	uint32_t small = large / 4, most = MEASURE_WAVE_SESSIONS;
	const struct wave_point points[] = {
		{.sessions = 1, .blocks = small}, {.sessions = 1, .blocks = large},
		{.sessions = most, .blocks = small}, {.sessions = most, .blocks = large},
		{.sessions = most / 2, .blocks = large}, {.sessions = most / 4, .blocks = large},
		/* predicted */
		{.sessions = most * 3 / 4, .blocks = (small + large) / 2},
	};
	uint32_t blocks = most * large;

	must(small > 0);
	w->prng = prng_of(cmd_now_ns());
	memcpy(w->point, points, sizeof(points));
	w->points = ARRAY_COUNT(points);
	w->blocks_most = large;
	w->batch_blocks = large < WAVE_BATCH ? large : WAVE_BATCH;
	w->room_bytes = blocks * w->m->value_bytes;
	w->id = calloc(blocks, sizeof(*w->id));
	w->block = calloc(blocks, sizeof(*w->block));
	w->iov = calloc(blocks, sizeof(*w->iov));
	w->room = loop_buffer_map(w->room_bytes);
	if (w->id == NULL || w->block == NULL || w->iov == NULL || w->room == NULL)
		return measure_failed("no memory for %llu MiB of restores",
				      (unsigned long long)(w->room_bytes / MiB));
	prng_fill(&w->prng, w->room, w->room_bytes);
	return 0;
}

/* The list of domains that the cache left at an array of somebody else's. */
static void wave_domains_erase(const char *target)
{
	struct cmd_common common = {0};
	struct host_op op = {.kind = HOST_DELETE, .key = {.len = 16}};
	struct cmd_link link;
	struct kvof_id id;

	identity_domains(WAVE_MODEL, &id);
	memcpy(op.key.byte, id.byte, 16);
	if (cmd_link_open(MEASURE_NAME, target, &common, &link) != 0)
		return;
	(void)cmd_link_op(&link, &op);
	cmd_link_close(&link);
}

/* What was found of what lies below; 0: nothing was measured. */
static double wave_rate(const struct measure *m, enum kvof_plan_arm_kind kind)
{
	static const enum plan_device_kind below[] = {[KVOF_PLAN_DRAM] = PLAN_DEVICE_DRAM,
		[KVOF_PLAN_LOCAL] = PLAN_DEVICE_DRIVE, [KVOF_PLAN_ARRAY] = PLAN_DEVICE_LINK};
	double rate = 0;

	for (uint32_t i = 0; i < m->profile->devices; i++) {
		const struct plan_device *d = &m->profile->device[i];

		if (d->kind == below[kind] && (rate <= 0 || d->read_bytes_per_s < rate))
			rate = d->read_bytes_per_s;
	}
	return rate;
}

/* Bytes of all sessions: what memory, drives and time allow. A round moves about 2.6 times as much,
 * and there is one to warm up and one of saving. */
static uint64_t wave_set_bytes(const struct measure *m, enum kvof_plan_arm_kind kind)
{
	uint64_t bytes = MEASURE_SET_BYTES, drives = 0, now_ns = cmd_now_ns(), timely;
	uint64_t least = 4 * MEASURE_WAVE_SESSIONS * m->value_bytes;
	double left_s = m->stage_end_ns > now_ns ? (double)(m->stage_end_ns - now_ns) / 1e9 : 0;

	timely = (uint64_t)(left_s * 0.7 * wave_rate(m, kind) /
			    (2.6 * (MEASURE_REPEATS_LEAST + 1) + 1));
	if (bytes > measure_memory_bytes() / 4)
		bytes = measure_memory_bytes() / 4;
	if (bytes > timely)
		bytes = timely > least ? timely : least;
	for (unsigned i = 0; i < m->drives.count; i++)
		drives += m->drives.drive[i].bytes;
	if (kind == KVOF_PLAN_ARRAY && m->array_bytes > 0)
		bytes = bytes_min(bytes, m->array_bytes / 2);
	if (kind == KVOF_PLAN_LOCAL && drives > 0)
		bytes = bytes_min(bytes, drives / 2);
	return bytes / MEASURE_WAVE_SESSIONS / m->value_bytes / 4 * 4 * m->value_bytes *
	       MEASURE_WAVE_SESSIONS;
}

int measure_wave(struct measure *m, enum kvof_plan_arm_kind kind, const char *target)
{
	static const char *const bottleneck[] = {[KVOF_PLAN_DRAM] = "dram copy",
		[KVOF_PLAN_LOCAL] = "drives", [KVOF_PLAN_ARRAY] = "link"};
	struct wave *w = calloc(1, sizeof(*w));
	uint64_t set_bytes = wave_set_bytes(m, kind);
	int rc = 0;

	if (w == NULL)
		return measure_failed("no memory");
	w->m = m;
	w->tier = kvof_plan_arm_name(kind);
	if (set_bytes == 0)
		rc = measure_failed("arm %s: no room for waves of restores", w->tier);
	if (rc == 0)
		rc = wave_ready(w, set_bytes);
	if (rc == 0)
		rc = wave_cache_open(w, kind, target);
	if (rc == 0) {
		uint64_t salt;

		loop_random(&salt, sizeof(salt));
		wave_blocks_set(w, salt);
		rc = wave_all(w, KVOF_SAVE);
		if (rc == 0)
			rc = wave_rounds(w);
		w->fit = rc == 0 && !measure_stopped() ? measure_arm(m, kind) : NULL;
		if (w->fit != NULL) {
			snprintf(w->fit->arm.bottleneck, sizeof(w->fit->arm.bottleneck), "%s",
				 bottleneck[kind]);
			rc = arm_make(w);
		}
		if (kind == KVOF_PLAN_ARRAY || kind == KVOF_PLAN_LOCAL)
			(void)wave_all(w, KVOF_DELETE);
		kvof_cache_close(&w->cache);
	}
	if (kind == KVOF_PLAN_ARRAY && m->target != NULL && rc == 0)
		wave_domains_erase(target);
	if (w->room != NULL)
		loop_buffer_unmap(w->room, w->room_bytes);
	free(w->id);
	free(w->block);
	free(w->iov);
	free(w);
	return rc;
}
