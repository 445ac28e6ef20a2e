/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is loaded, what is handed to the engine, and when. place.c has the arithmetic of a whole
 * split; here it is applied to a request under way, again and again, so that a wrong guess costs
 * little.
 *
 *   PREFIX  k is chosen once: at begin when the tiers have been measured, else after the first
 *           parts have come (or not: then nothing is loaded). [0, goal) shrinks when the rest of it
 *           can't come by the deadline, so that what does come is whole blocks from the front
 *   ENDS    nothing is chosen. A load begins if it will have come before the engine would be there.
 *           A block is handed out if the engine computes it sooner than all loads still to come
 *           end. Where they meet, the engine waits for a load only if that is sooner than computing
 *
 * Owned by one loop.
 */
#include "cache/restore_inner.h"

#define PLAN_DRAM_BYTES_PER_S (4 * GiB)    /* until it has measured itself */
#define PLAN_DRAM_LATENCY_NS 50000
#define PLAN_FAST_BYTES_PER_S (1024 * GiB)
#define PLAN_SCAN_BLOCKS 2048              /* looked up in one turn */
#define PLAN_PROBE_SHARE 50                /* of the time to compute all, and of the deadline */
#define PLAN_PROBE_SHARE_PREFIX 25         /* the engine could not begin much sooner */
#define PLAN_DOUBT_TOLD 30                 /* percent that a rate of the engine may be off */
#define PLAN_DOUBT_MEASURED 10
#define PLAN_DOUBT_MEASURED_FLAT 20        /* no slope was told: the tail may take longer */
#define PLAN_DOUBT_SLOPE 100               /* none was told: the last token twice the first */
#define PLAN_PROBE_PART 16                 /* PREFIX: of a request's bytes, to begin with */
#define PLAN_PROBE_BLOCKS_PART 4           /* PREFIX: of the request's first blocks */
#define PLAN_SPLIT_GAIN_PART 20            /* of the better end, that a split has to gain */
#define PLAN_PROBE_BLOCKS 16               /* begun by ENDS in a tier that is not known */
#define PLAN_FLIGHT_NS (20 * NS_PER_MS)    /* so much of a tier's work may be in flight */
#define PLAN_FLIGHT_PREFIX_PART 8          /* of a request's bytes */
#define PLAN_FLIGHT_PARTS 4                /* of each device, at least */
#define PLAN_FLIGHT_MIN (64 * KiB)
#define PLAN_FLIGHT_UNKNOWN (16 * MiB)
#define PLAN_DEVICES_MAX 64
#define PLAN_LANE_BLOCKS 1024u
#define PLAN_CLAIM_MARGIN 4                /* a part of a block: one too few is one load more */
#define PLAN_GRACE_SHARE 8                 /* of the deadline, before anything is given up */
#define PLAN_SILENCE_SHARE 3               /* of it, for a tier that has never answered */
#define PLAN_LOOK_NS NS_PER_MS             /* shortest time between two looks */

static uint64_t later(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

/* --- rates ------------------------------------------------------------------------------------ */

static struct tier *tier_at(const struct restore *r, unsigned number)
{
	return r->opts.ops->tier(r->opts.arg, number);
}

void plan_speeds(struct restore *r)
{
	for (unsigned i = 1; i < PLACE_TIERS; i++) {
		struct tier *t = tier_at(r, i);
		struct tier_speed s = {.live = true};

		r->speed[i] = (struct place_tier){0};
		r->known[i] = true;
		r->heard[i] = false;
		r->devices[i] = 1;
		if (t == NULL)
			continue;
		if (t->ops->speed != NULL)
			t->ops->speed(t, NULL, &s);    /* all its devices */
		r->known[i] = speed_tier_now(&s, &r->speed[i]);
		r->heard[i] = s.samples > 0;
		r->devices[i] = s.devices > 1 ? s.devices : 1;
		if (!r->known[i] && i == KVOF_TIER_DRAM) {
			r->known[i] = true;
			r->speed[i] = (struct place_tier){PLAN_DRAM_LATENCY_NS,
							  PLAN_DRAM_BYTES_PER_S, 0};
		}
		if (i != KVOF_TIER_DRAM)
			r->speed[i].queued_bytes = later(r->speed[i].queued_bytes,
							 r->tier_staged[i]);
	}
}

/* As this request sees a tier: the queue is that of others, and what those before it will ask. */
static struct place_tier tier_seen(const struct request *req, unsigned number)
{
	struct place_tier t = req->restore->speed[number];

	if (!req->restore->known[number])  /* it answers, how fast is not clear yet; or is silent */
		t.bytes_per_s = req->restore->heard[number] ? PLAN_FAST_BYTES_PER_S : 0;
	t.queued_bytes -= bytes_min(t.queued_bytes, req->staged_bytes);
	t.queued_bytes = later(t.queued_bytes, req->ahead_left[number]);
	return t;
}

static struct place_engine engine_now(const struct request *req)
{
	return speed_engine_now(&req->engine);
}

static bool engine_known(const struct request *req)
{
	struct place_engine e = engine_now(req);

	return (req->opts.flags & KVOF_RESTORE_LOAD_ALL) == 0 && (e.token_ps > 0 || e.slope_ps > 0);
}

static uint64_t compute_ns(const struct request *req, uint32_t first, uint32_t count)
{
	struct place_engine e = engine_now(req);
	uint64_t tokens = req->restore->opts.block_tokens;

	return place_engine_ns(&e, (struct place_span){first * tokens, count * tokens});
}

/* Every tier that a block still has to come from is known. */
static bool tiers_known(const struct request *req)
{
	for (unsigned i = 1; i < PLACE_TIERS; i++)
		if (req->want_bytes[i] + req->open_bytes[i] > 0 && !req->restore->known[i])
			return false;
	return true;
}

/* Until these bytes of each tier have landed. */
static uint64_t load_ns(const struct request *req, const uint64_t bytes[PLACE_TIERS])
{
	uint64_t ns = 0;

	for (unsigned i = 1; i < PLACE_TIERS; i++) {
		struct place_tier t = tier_seen(req, i);

		ns = later(ns, place_tier_ns(&t, bytes[i]));
	}
	return ns;
}

static uint64_t left_ns(const struct request *req)
{
	uint64_t bytes[PLACE_TIERS];

	for (unsigned i = 0; i < PLACE_TIERS; i++)
		bytes[i] = req->want_bytes[i] + req->open_bytes[i];
	return load_ns(req, bytes);
}

/* With what was asked of it since it was looked at. */
static struct place_tier tier_queued(const struct restore *r, unsigned number)
{
	struct place_tier t = r->speed[number];

	if (number != KVOF_TIER_DRAM)
		t.queued_bytes = later(t.queued_bytes, r->tier_staged[number]);
	return t;
}

uint64_t plan_expect_ns(struct request *req, unsigned tier, uint64_t bytes, uint64_t *queue_ns)
{
	struct place_tier t = tier_queued(req->restore, tier);

	*queue_ns = 0;
	if (!req->restore->known[tier] || t.bytes_per_s == 0)
		return 0;
	*queue_ns = t.queued_bytes > 0 ? place_tier_ns(&t, 1) - bytes_min(t.latency_ns,
		place_tier_ns(&t, 1)) : 0;
	return request_now(req) + place_tier_ns(&t, bytes);
}

/* Of all its blocks but what DRAM has, before and after. */
static uint64_t request_bytes(const struct request *req)
{
	uint64_t all = 0;

	for (unsigned i = KVOF_TIER_DRAM + 1; i < PLACE_TIERS; i++)
		all += req->want_bytes[i] + req->open_bytes[i] + req->landed_bytes[i];
	return all;
}

static uint64_t part_of(const struct request *req, unsigned number)
{
	struct tier *t = tier_at(req->restore, number);
	uint64_t bytes = req->block[0].bytes;

	return t == NULL ? 0 : bytes_min(bytes, tier_cut(t, bytes));
}

/* By what has come, loading all takes half as long as computing it, or less. */
static bool probe_fast(const struct request *req)
{
	uint64_t took = request_now(req) - req->begin_ns, landed = 0;

	for (unsigned i = KVOF_TIER_DRAM + 1; i < PLACE_TIERS; i++)
		landed += req->landed_bytes[i];
	return (double)took * (double)request_bytes(req) * 2 <
	       (double)landed * (double)compute_ns(req, 0, req->n);
}

/* What is under way before the tier is known can't be taken back: a device goes on with it. So it
 * begins with little, a part of each device at least (of several, one is soon behind with more),
 * and grows with what comes. */
static uint64_t probe_bytes(const struct request *req)
{
	uint64_t landed = 0, least = PLAN_FLIGHT_MIN, devices = 1, first;

	if (!engine_known(req))
		return PLAN_FLIGHT_UNKNOWN;
	for (unsigned i = KVOF_TIER_DRAM + 1; i < PLACE_TIERS; i++) {
		landed += req->landed_bytes[i];
		least = later(least, part_of(req, i) * req->restore->devices[i]);
		devices = later(devices, req->restore->devices[i]);
	}
	first = later(least, request_bytes(req) / PLAN_PROBE_PART / devices);
	return probe_fast(req) ? PLAN_FLIGHT_UNKNOWN :
	       bytes_min(first + 2 * landed, PLAN_FLIGHT_UNKNOWN);
}

bool plan_probes(const struct request *req, uint32_t block)
{
	return req->state != REQ_PROBING || !engine_known(req) ||
	       block < req->n / PLAN_PROBE_BLOCKS_PART + 1 || probe_fast(req);
}

/* More would only wait below, in an order that is not ours: parts of one block before the first
 * ones of others, and what is given up is read all the same. Of a request of which layer 0 is to
 * come first so much at most, as long as the tier has enough to do. */
static uint64_t flight_known(const struct request *req, unsigned number,
			     const struct place_tier *t)
{
	uint64_t wait = PLAN_FLIGHT_NS + 2 * t->latency_ns, bytes;

	bytes = (uint64_t)((double)t->bytes_per_s / 1e9 * (double)wait);
	if (request_prefix(req)) {
		double least = (double)t->bytes_per_s / 1e9 * 4 * (double)t->latency_ns;

		bytes = bytes_min(bytes, later(request_bytes(req) / PLAN_FLIGHT_PREFIX_PART,
					       (uint64_t)least));
	}
	return later(bytes, part_of(req, number) * req->restore->devices[number] *
		     PLAN_FLIGHT_PARTS);
}

uint64_t plan_flight_bytes(const struct request *req)
{
	uint64_t most = 0;

	if (req->state == REQ_PROBING)
		return probe_bytes(req);
	for (unsigned i = KVOF_TIER_DRAM + 1; i < PLACE_TIERS; i++) {
		const struct place_tier *t = &req->restore->speed[i];

		if (!req->restore->known[i])
			most = later(most, request_prefix(req) ? probe_bytes(req) :
				     PLAN_FLIGHT_UNKNOWN);
		else
			most = later(most, flight_known(req, i, t));
	}
	return later(most, PLAN_FLIGHT_MIN);
}

/* --- where blocks are ------------------------------------------------------------------------- */

/* Flash is believed to have it, and would answer. */
static bool on_flash(const struct request *req, const struct kvof_id *id)
{
	const struct restore *r = req->restore;
	uint64_t left = req->deadline_ns - bytes_min(request_now(req), req->deadline_ns);

	if (r->opts.ops->where == NULL ||
	    (r->opts.ops->where(r->opts.arg, id) & 1u << KVOF_TIER_FLASH) == 0)
		return false;
	return r->opts.ops->flash_last == NULL ||
	       !r->opts.ops->flash_last(r->opts.arg, id, left, false);
}

static uint8_t tier_guess(const struct request *req, const struct kvof_id *id)
{
	const struct restore *r = req->restore;
	unsigned last = 0;

	if (r->opts.ops->expired(r->opts.arg, id))
		return 0;
	for (unsigned i = r->opts.ops->tier_next(r->opts.arg, 0); i != 0;
	     i = r->opts.ops->tier_next(r->opts.arg, i)) {
		struct tier *t = tier_at(r, i);

		if (t == NULL)
			continue;
		if (t->ops->has(t, id) || (i == KVOF_TIER_FLASH && on_flash(req, id)))
			return (uint8_t)i;
		if (i != KVOF_TIER_DRAM)
			last = i;          /* it may have it all the same; the farthest counts */
	}
	return (uint8_t)last;
}

static uint64_t probe_ns(const struct request *req)
{
	uint64_t share = request_prefix(req) ? PLAN_PROBE_SHARE_PREFIX : PLAN_PROBE_SHARE;
	uint64_t all = compute_ns(req, 0, req->n) / share;
	uint64_t most = (req->deadline_ns - req->begin_ns) / share;

	return req->begin_ns + (engine_known(req) ? bytes_min(all, most) : most);
}

static void scan(struct request *req)
{
	uint32_t end = req->n - req->scan_at < PLAN_SCAN_BLOCKS ? req->n :
		       req->scan_at + PLAN_SCAN_BLOCKS;

	for (; req->scan_at < end; req->scan_at++) {
		struct rblock *b = &req->block[req->scan_at];
		uint8_t tier = tier_guess(req, &b->id);

		req->tier_of[req->scan_at] = tier;
		req->want_bytes[tier] += b->bytes;
	}
	if (end < req->n) {
		restore_soon(req->restore);
		return;
	}
	req->probe_ns = probe_ns(req);
	request_wake_at(req, req->probe_ns);
	request_go(req, request_prefix(req) ? REQ_PROBING : REQ_LOADING);
}

/* --- PREFIX ----------------------------------------------------------------------------------- */

/* Layers come as parts do. */
static uint32_t streams(const struct request *req, uint64_t block_bytes)
{
	uint32_t parts = 1;

	for (unsigned i = KVOF_TIER_DRAM + 1; i < PLACE_TIERS; i++) {
		struct tier *t = tier_at(req->restore, i);
		uint32_t count = t == NULL ? 1 :
				 frame_part_count(block_bytes, tier_cut(t, block_bytes));

		parts = count > parts ? count : parts;
	}
	return parts < req->layer_count ? parts : req->layer_count;
}

/* Until what is under way has landed. */
static uint64_t begun_ns(const struct request *req)
{
	uint64_t ns = 0;

	for (unsigned i = KVOF_TIER_DRAM + 1; i < PLACE_TIERS; i++) {
		struct place_tier t = tier_seen(req, i);

		if (t.bytes_per_s > 0)
			ns = later(ns, place_tier_ns(&t, bytes_min(req->staged_bytes,
								   req->open_bytes[i])));
	}
	return ns;
}

/* What may be in flight at once. */
static uint64_t mixed_ns(const struct request *req, const struct place *p)
{
	uint64_t ns = 0;

	for (unsigned i = KVOF_TIER_DRAM + 1; i < PLACE_TIERS; i++) {
		struct place_tier pure = {0, p->tier[i].bytes_per_s, 0};

		if (pure.bytes_per_s > 0 && req->want_bytes[i] + req->open_bytes[i] > 0)
			ns = later(ns, place_tier_ns(&pure, flight_known(req, i, &p->tier[i])));
	}
	return ns;
}

static uint32_t slower_percent(const struct speed_engine *e)
{
	bool flat = e->told.slope_ps == 0;

	if (speed_engine_measured(e))
		return flat ? PLAN_DOUBT_MEASURED_FLAT : PLAN_DOUBT_MEASURED;
	return PLAN_DOUBT_TOLD;
}

static void place_fill(const struct request *req, struct place *p)
{
	bool measured = speed_engine_measured(&req->engine);
	uint64_t bytes = 0;

	*p = (struct place){
		.engine = (req->opts.flags & KVOF_RESTORE_LOAD_ALL) != 0 ?
			  (struct place_engine){0} : engine_now(req),
		.tier_of = req->tier_of,
		.block_count = req->n,
		.block_tokens = req->restore->opts.block_tokens,
		.suffix_tokens = req->opts.suffix_tokens,
		.doubt_percent = measured ? PLAN_DOUBT_MEASURED : PLAN_DOUBT_TOLD,
		.slower_percent = slower_percent(&req->engine),
		.slope_percent = measured || req->engine.told.slope_ps > 0 ? 0 : PLAN_DOUBT_SLOPE,
	};
	for (unsigned i = 1; i < PLACE_TIERS; i++) {
		p->tier[i] = tier_seen(req, i);
		bytes += req->want_bytes[i] + req->open_bytes[i];
	}
	p->block_bytes = bytes / req->n + 1;
	p->mixed_ns = mixed_ns(req, p);
	p->begun_count = req->open_at;
	p->begun_ns = begun_ns(req);
	p->layer_count = streams(req, p->block_bytes);
}

/* The most blocks that come by the deadline, of the first k. */
static uint32_t prefix_in_time(const struct request *req, const struct place *p, uint32_t k)
{
	uint64_t left = req->deadline_ns - bytes_min(request_now(req), req->deadline_ns);
	uint32_t low = 0;

	while (low < k) {
		uint32_t middle = low + (k - low + 1) / 2;

		if (place_load_ns(p, (struct place_blocks){0, middle}) <= left)
			low = middle;
		else
			k = middle - 1;
	}
	return low;
}

static uint64_t rate_of(uint64_t bytes, uint64_t ns)
{
	return ns > 0 ? (uint64_t)((double)bytes * 1e9 / (double)ns) : 0;
}

/* Devices that were asked for nothing say nothing of how fast they are: only the time counts in
 * which one was busy, until its last answer. And if it is silent since then, no more than @bytes of
 * each have come until now. */
static uint64_t rate_of_devices(const struct tier_speed *s, uint64_t bytes)
{
	uint64_t most = rate_of(s->came_bytes + bytes * s->devices, s->busy_ns / s->devices);

	return s->came_bytes == 0 ? most :
	       bytes_min(most, rate_of(s->came_bytes, s->came_ns / s->devices));
}

/* Of a tier that has not measured itself yet, a little late: 0 when it was silent. */
static uint64_t rate_until_now(const struct request *req, unsigned number)
{
	uint64_t came = req->landed_bytes[number];
	struct tier *t = tier_at(req->restore, number);
	struct tier_speed s = {0};

	if (t != NULL && t->ops->speed != NULL)
		t->ops->speed(t, NULL, &s);
#ifndef KVOF_PLANT_IDLE_DEVICES_COUNT
	if (s.devices > 0 && s.came_bytes > 0 && s.came_ns > 0)
		return rate_of_devices(&s, part_of(req, number));
#endif
	/* of what is under way a part has come as well */
	came += bytes_min(bytes_min(req->staged_bytes, req->open_bytes[number]), came) / 2;
	return rate_of(came, request_now(req) - req->begin_ns);
}

/* Devices of tiers, each as fast as it has measured itself: blocks lie unevenly over them, and the
 * last to be through counts. Of many blocks each device has its part. */
struct lanes {
	uint8_t lane_of[PLAN_LANE_BLOCKS];
	uint8_t lane[PLAN_DEVICES_MAX];    /* of each device of the tier; 0: not seen yet */
	unsigned used;
};

/* None of its answers was large: they say nothing of how fast it is, but since the last it may have
 * been silent with a part under way. */
static uint64_t rate_of_silence(const struct tier_speed *s, uint64_t part, uint64_t others)
{
	uint64_t silent = s->busy_ns - bytes_min(s->came_ns, s->busy_ns);

#ifdef KVOF_PLANT_SMALL_ANSWERS_ARE_SLOW
	silent = s->busy_ns;
#endif
	return silent == 0 ? others : bytes_min(others, rate_of(part, silent));
}

/* Of a device of a tier that is known: as it has measured itself; else like the others, but not
 * faster than what has come of it until now and a part that is due; overdue, half of it: one of
 * several may be far slower than those that were through first. */
static uint64_t rate_of_device(const struct request *req, const struct tier_speed *s,
			       unsigned number, uint64_t others)
{
	uint64_t part = part_of(req, number);
	struct tier_speed one = *s;
	double due = (double)others / 1e9 * (double)(s->busy_ns - s->came_ns);

	one.devices = 1;
	if (due > 1.5 * (double)part)
		part /= 2;
#ifdef KVOF_PLANT_DEVICES_ALIKE
	return others;
#endif
	if (!s->live || !req->restore->known[number])
		return others;
	if (s->bytes_per_s > 0)
		return s->bytes_per_s;
	return s->came_bytes == 0 ? rate_of_silence(s, part, others) :
	       bytes_min(others, rate_of_devices(&one, part));
}

/* The lane of a block in a tier of several devices. False: there are too many. */
static bool lane_find(const struct request *req, struct place *p, struct lanes *l, uint32_t block)
{
	unsigned number = req->tier_of[block];
	const struct place_tier *all = &p->tier[number];
	uint64_t devices = req->restore->devices[number];
	uint64_t others = all->bytes_per_s / devices + (all->bytes_per_s % devices != 0);
	struct tier_speed s = {0};
	struct tier *t = tier_at(req->restore, number);

	t->ops->speed(t, &req->block[block].id, &s);
	if (s.device >= PLAN_DEVICES_MAX)
		return false;
	if (l->lane[s.device] == 0) {
		if (l->used == PLACE_LANES)
			return false;
		l->lane[s.device] = (uint8_t)l->used;
		p->tier[l->used++] = (struct place_tier){
			all->latency_ns, rate_of_device(req, &s, number, others),
			all->queued_bytes / devices,
		};
	}
	l->lane_of[block] = l->lane[s.device];
	return true;
}

/* Only one tier has several devices, which are told apart. */
static void lanes_fill(const struct request *req, struct place *p, struct lanes *l)
{
	*l = (struct lanes){.used = PLACE_TIERS};
	if (req->n > PLAN_LANE_BLOCKS)
		return;
	for (uint32_t i = 0; i < req->n; i++) {
		unsigned number = req->tier_of[i];

		l->lane_of[i] = (uint8_t)number;
		if (number == KVOF_TIER_REMOTE && req->restore->devices[number] > 1 &&
		    !lane_find(req, p, l, i))
			return;
	}
	p->tier_of = l->lane_of;
}

/* A split is a guess about layers, engine and devices; for a small gain the surer end is taken: all
 * that can be loaded, or what DRAM has of the first blocks. */
static uint32_t worth_it(const struct request *req, const struct place *p, uint32_t k)
{
	uint32_t most = place_loadable(p), least = 0;
	uint64_t cost = place_prefix_cost(p, k), all = place_prefix_cost(p, most), none;

	while (least < k && req->tier_of[least] == KVOF_TIER_DRAM)
		least++;
	none = place_prefix_cost(p, least);
#ifdef KVOF_PLANT_SPLIT_FOR_NOTHING
	return k;
#endif
	if (cost <= bytes_min(none, all) / PLAN_SPLIT_GAIN_PART * (PLAN_SPLIT_GAIN_PART - 1))
		return k;
	return all <= none ? most : least;
}

static void prefix_choose(struct request *req)
{
	bool split = engine_known(req), known = tiers_known(req);
	struct lanes lanes;
	struct place p;
	uint32_t k;

	if (split && !known && request_now(req) < req->probe_ns)
		return;
	place_fill(req, &p);
	for (unsigned i = 1; i < PLACE_TIERS; i++)
		if (!req->restore->known[i])
			p.tier[i].bytes_per_s = split ? rate_until_now(req, i) : 1;
	lanes_fill(req, &p, &lanes);
	k = place_prefix(&p);
	if (split)
		k = worth_it(req, &p, k);
	if (k < req->open_at && k > 0)     /* what is under way costs its time all the same */
		k = place_prefix_cost(&p, req->open_at) <= place_prefix_cost(&p, 0) ?
		    req->open_at : 0;
	if (known)
		k = prefix_in_time(req, &p, k);
	req->trace.split = k;
	request_go(req, REQ_LOADING);
	if (k < req->n && req->tier_of[k] == KVOF_TIER_NONE) {
		if (req->block[k].state == RB_WANTED)
			load_unasked(req, k);
		request_shrink(req, k, KVOF_ABSENT);
	} else {
		request_shrink(req, k, KVOF_OK);
	}
	request_dirty(req);
}

/* Gives up the tail that can't be there by the deadline. */
static void goal_fit(struct request *req)
{
	uint64_t now = request_now(req), bytes[PLACE_TIERS];
	uint64_t left = req->deadline_ns - bytes_min(now, req->deadline_ns);
	uint64_t past = now - req->begin_ns, whole = req->deadline_ns - req->begin_ns;
	uint32_t goal = req->goal;

	if (past < whole / PLAN_GRACE_SHARE || now < req->fit_ns || left_ns(req) <= left + left / 4)
		return;
	/* a tier of which nothing is known gets more time, but not all of it */
	if (!tiers_known(req) && past < whole / PLAN_SILENCE_SHARE)
		return;
	for (unsigned i = 0; i < PLACE_TIERS; i++)
		bytes[i] = req->want_bytes[i] + req->open_bytes[i];
	while (goal > 0 && load_ns(req, bytes) > left) {
		const struct rblock *b = &req->block[--goal];

		if (b->state == RB_WANTED)
			bytes[req->tier_of[goal]] -= b->bytes;
		else if (b->state == RB_LOADING)
			bytes[req->slot[b->slot].tier] -= req->slot[b->slot].open_bytes;
	}
	/* what is given up leaves the tier's queue only by and by */
	req->fit_ns = now + left / 4;
	request_shrink(req, goal, KVOF_LATE);
}

void plan_update(struct request *req)
{
	uint64_t now = request_now(req);

	if (req->state == REQ_SCANNING)
		scan(req);
	if (req->state == REQ_PROBING)
		prefix_choose(req);
	if (req->state != REQ_LOADING || !request_prefix(req))
		return;
	goal_fit(req);
	load_layers_tell(req);
	if (req->state == REQ_LOADING && now < req->deadline_ns && !loop_timer_is_set(&req->wake))
		request_wake_at(req, now + (req->deadline_ns - now) / PLAN_GRACE_SHARE +
				PLAN_LOOK_NS);
}

/* --- ENDS ------------------------------------------------------------------------------------- */

/* When the engine would have computed the block, and all before it, from now. */
static uint64_t arrival_ns(const struct request *req, uint32_t block)
{
	uint64_t now = request_now(req), busy = later(req->engine_free_ns, now) - now;

	return block < req->lead ? busy : busy + compute_ns(req, req->lead, block - req->lead + 1);
}

/* One block of the engine; a rate that was only told may be off by a third. */
static uint64_t block_compute_ns(const struct request *req, uint32_t block)
{
	uint64_t ns = compute_ns(req, block, 1);

	return speed_engine_measured(&req->engine) ? ns : ns + ns / 3;
}

/* The engine is handed a block when all that is missing takes longer than this to load. */
static uint64_t claim_ns(const struct request *req, uint32_t block)
{
	uint64_t ns = block_compute_ns(req, block);

	return ns + ns / PLAN_CLAIM_MARGIN;
}

/* What is not begun here is claimed there, and the other way round: else both would wait. */
bool plan_begins(struct request *req, uint32_t block)
{
	const struct restore *r = req->restore;
	unsigned tier = req->tier_of[block];
	uint64_t landing, slack;
	struct place_tier t;

	if (tier == KVOF_TIER_NONE || !engine_known(req))
		return true;
	if (!r->known[tier])
		return req->open < (r->heard[tier] ? 2 : 1) * PLAN_PROBE_BLOCKS;
	t = tier_queued(r, tier);
	landing = place_tier_ns(&t, req->block[block].bytes);
	slack = claim_ns(req, block) - compute_ns(req, block, 1);
	return landing <= arrival_ns(req, block) + slack &&
	       request_now(req) + landing <= req->deadline_ns;
}

static void step_set(struct kvof_restore_step *out, enum kvof_restore_act act, uint32_t first,
		     uint32_t count)
{
	out->act = act;
	out->first = first;
	out->count = count;
}

/* From the first missing block on; the rest of the step as long as it is sooner than loading. */
static void hand_out(struct request *req, struct kvof_restore_step *out, bool all)
{
	uint32_t first = req->lead, most = req->opts.step_blocks > 0 ? req->opts.step_blocks : 1;
	uint64_t bytes[PLACE_TIERS];
	uint32_t count = 0;

	for (unsigned i = 0; i < PLACE_TIERS; i++)
		bytes[i] = req->want_bytes[i] + req->open_bytes[i];
	while (count < most && first + count < req->n) {
		enum rblock_state state = req->block[first + count].state;

		if (state != RB_WANTED && state != RB_FAILED)
			break;
		if (count > 0 && state == RB_WANTED && !all &&
		    compute_ns(req, first, count + 1) > load_ns(req, bytes))
			break;
		if (state == RB_WANTED)    /* it would be loaded last */
			bytes[req->tier_of[first + count]] -= req->block[first + count].bytes;
		count++;
	}
	must(count > 0);
	step_set(out, KVOF_STEP_COMPUTE, first, count);
}

static void wait_at_most(struct request *req, struct kvof_restore_step *out, uint64_t ns)
{
	step_set(out, KVOF_STEP_WAIT, 0, 0);
	request_wake_at(req, request_now(req) + later(ns, PLAN_LOOK_NS / 10));
}

/* The first missing block is not under way. */
static void decide_wanted(struct request *req, struct kvof_restore_step *out)
{
	uint64_t now = request_now(req), load = left_ns(req);
	uint64_t claim = claim_ns(req, req->lead);

	if (!engine_known(req) && req->tier_of[req->lead] != KVOF_TIER_NONE &&
	    (!tiers_known(req) || load < PLACE_NEVER_NS)) {
		wait_at_most(req, out, NS_PER_S);
	} else if (!tiers_known(req)) {
		if (now < req->probe_ns)
			wait_at_most(req, out, req->probe_ns - now);
		else
			hand_out(req, out, false);
	} else if (claim <= load) {
		hand_out(req, out, false);
	} else {
		wait_at_most(req, out, load);
	}
}

/* The first missing block is under way: they have met. */
static void decide_loading(struct request *req, struct kvof_restore_step *out)
{
	struct rslot *s = &req->slot[req->block[req->lead].slot];
	uint64_t now = request_now(req), compute = block_compute_ns(req, req->lead);
	const struct place_tier *t = &req->restore->speed[s->tier];
	struct place_tier pure = {0, t->bytes_per_s, 0};
	uint64_t left = PLACE_NEVER_NS;

	if (s->given_up || !engine_known(req)) {
		wait_at_most(req, out, NS_PER_S);
		return;
	}
	/* Overdue by x: expected to take x again. */
	if (req->restore->known[s->tier] && t->bytes_per_s > 0) {
		left = place_tier_ns(&pure, s->open_bytes);
		if (s->expect_ns == 0)     /* begun when nothing was known of the tier */
			s->expect_ns = now + place_tier_ns(t, 1);
		left = later(left, s->expect_ns > now ? s->expect_ns - now :
			     now - s->expect_ns);
	} else if (now < req->probe_ns) {
		left = req->probe_ns - now;
	} else if (now - s->begin_ns < compute) {
		left = now - s->begin_ns;
	}
	if (left > compute) {
		load_give_up(s);
		left = NS_PER_S;
	}
	wait_at_most(req, out, left / 4);
}

static void decide_ends(struct request *req, struct kvof_restore_step *out)
{
	enum rblock_state state;

	request_lead(req);
	if (req->lead == req->n) {
		step_set(out, KVOF_STEP_DONE, 0, 0);
		return;
	}
	state = req->block[req->lead].state;
	if (state == RB_BUSY || req->state == REQ_SCANNING ||
	    (state == RB_LOADING && !request_active(req)))
		step_set(out, KVOF_STEP_WAIT, 0, 0);
	else if (state == RB_LOADING)
		decide_loading(req, out);
	else if (state == RB_FAILED || !request_active(req))
		hand_out(req, out, !request_active(req));
	else
		decide_wanted(req, out);
}

/* --- what the engine does --------------------------------------------------------------------- */

static bool tail_free(const struct request *req)
{
	for (uint32_t i = 0; i < req->slot_count; i++)
		if (req->slot[i].tier != 0 && req->slot[i].block >= req->goal)
			return false;
	return true;
}

/* Once k is chosen, all behind it; and once it is over, what did not come of the rest. */
static void decide_prefix(struct request *req, struct kvof_restore_step *out)
{
	bool over = req->state == REQ_OVER;
	bool due = over || (req->state == REQ_LOADING && req->behind == req->n);

#ifdef KVOF_PLANT_DONE_WITHOUT_COMPUTE
	if (over) {
		step_set(out, KVOF_STEP_DONE, 0, 0);
		return;
	}
#endif
	if (!due || (req->goal < req->behind && !tail_free(req)))
		step_set(out, KVOF_STEP_WAIT, 0, 0);
	else if (req->goal < req->behind)
		step_set(out, KVOF_STEP_COMPUTE, req->goal, req->behind - req->goal);
	else
		step_set(out, over ? KVOF_STEP_DONE : KVOF_STEP_WAIT, 0, 0);
}

void plan_decide(struct request *req, struct kvof_restore_step *out)
{
	plan_speeds(req->restore);
	if (request_prefix(req))
		decide_prefix(req, out);
	else
		decide_ends(req, out);
	request_lead(req);
	out->usable = req->lead;
}
