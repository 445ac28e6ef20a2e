/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bandwidth is taken over windows of busy time, until enough has come. Each read that found the
 * device idle contains one latency, which is taken out of it; so a single read in flight shows the
 * device's bandwidth and not its own pace. The first of several reads in flight tells when the
 * device began to deliver: only what comes after it counts, since what throttles a device lets the
 * first bytes through at once.
 *
 * Invariant: queued_bytes is the sum over marks that have begun and not ended.
 */
#include "cache/dev_rate.h"

#include "base/bytes.h"
#include "base/must.h"

#define RATE_NEW_PART 4                   /* a sample counts for a quarter */
#define RATE_TOOK_NS_MIN 1000u
#define RATE_MOVING_PART 8u                /* of a window, at least, was the moving of bytes */

static uint64_t averaged(uint64_t old, uint64_t sample)
{
	if (old == 0)
		return sample > 0 ? sample : 1;
	if (sample >= old)
		return old + (sample - old) / RATE_NEW_PART;
	return old - (old - sample) / RATE_NEW_PART;
}

void dev_rate_begin(struct dev_rate *r, struct dev_rate_mark *m, uint32_t bytes, uint64_t now_ns)
{
	*m = (struct dev_rate_mark){now_ns, bytes, r->queued == 0, true};
	if (r->queued == 0) {
		r->last_ns = r->busy_since_ns = now_ns;
		r->window_idles++;
		r->leads = true;
	}
	r->queued++;
	r->queued_bytes += bytes;
}

static void window_close(struct dev_rate *r)
{
	uint64_t waiting = r->window_idles * r->latency_ns;
	uint64_t least = (r->window_ns + r->window_lead_ns) / RATE_MOVING_PART;
	uint64_t moving = r->window_ns - bytes_min(waiting, r->window_ns);
	double sample;

	if (moving < least)
		moving = least;
	if (moving < RATE_TOOK_NS_MIN)
		moving = RATE_TOOK_NS_MIN;
	sample = (double)r->window_bytes * 1e9 / (double)moving;
	/* the mean of the time a byte takes: a burst of a throttled device soon counts little */
	if (r->bytes_per_s > 0)
		sample = RATE_NEW_PART / (1 / sample +
					  (RATE_NEW_PART - 1) / (double)r->bytes_per_s);
	r->bytes_per_s = (uint64_t)sample + 1;
	r->window_ns = r->window_lead_ns = r->window_bytes = r->window_idles = 0;
}

/* The device is through with it at its own pace. */
static uint64_t given_up_bytes(const struct dev_rate *r, uint64_t now_ns)
{
	double gone = (double)(now_ns - r->given_up_ns) / 1e9 * (double)r->bytes_per_s;

	return gone < (double)r->given_up_bytes ? r->given_up_bytes - (uint64_t)gone : 0;
}

void dev_rate_end(struct dev_rate *r, const struct dev_rate_mark *m, enum dev_rate_end how,
		  uint32_t moved_bytes, uint64_t now_ns)
{
	uint64_t took = now_ns - m->begin_ns;
	bool first;

	must(r->queued > 0 && r->queued_bytes >= m->bytes);
	r->queued--;
	r->queued_bytes -= m->bytes;
	if (how != DEV_RATE_CAME && r->queued == 0)
		r->silent_ns += now_ns - r->busy_since_ns;
	if (how == DEV_RATE_UNTOLD) {
		r->given_up_bytes = given_up_bytes(r, now_ns) + m->bytes;
		r->given_up_ns = now_ns;
		return;
	}
	r->samples++;
	if (how == DEV_RATE_LATE) {        /* last_ns stays: the device is silent */
		if (took > r->latency_ns)
			r->latency_ns = averaged(r->latency_ns, took);
		return;
	}
	first = r->last_ns <= m->begin_ns;
	r->last_ns = now_ns;
	r->came_bytes += moved_bytes > DEV_RATE_SMALL_BYTES ? moved_bytes : 0;
	r->came_ns += now_ns - r->busy_since_ns;
	r->silent_ns = 0;
	if (m->idle && first && moved_bytes <= DEV_RATE_SMALL_BYTES)  /* overtaken: it waited */
		r->latency_ns = averaged(r->latency_ns, took);
	if (r->leads && moved_bytes > DEV_RATE_SMALL_BYTES && r->queued > 0) {
		r->leads = false;
		r->window_lead_ns += now_ns - r->busy_since_ns;
		r->window_idles -= r->window_idles > 0;    /* the latency lies in there */
		r->busy_since_ns = now_ns;
		return;
	}
	r->window_bytes += moved_bytes;
	r->window_ns += now_ns - r->busy_since_ns;
	r->busy_since_ns = now_ns;
	if (r->window_bytes >= DEV_RATE_WINDOW_BYTES ||
	    (r->window_bytes > DEV_RATE_SMALL_BYTES && r->window_ns >= DEV_RATE_WINDOW_NS))
		window_close(r);
}

uint64_t dev_rate_queued_bytes(const struct dev_rate *r, uint64_t now_ns)
{
	return r->queued_bytes + given_up_bytes(r, now_ns);
}

uint64_t dev_rate_latency_ns(const struct dev_rate *r, uint64_t now_ns)
{
	uint64_t silent = r->queued > 0 && now_ns > r->last_ns ? now_ns - r->last_ns : 0;

	return silent > r->latency_ns ? silent : r->latency_ns;
}

uint64_t dev_rate_busy_ns(const struct dev_rate *r, uint64_t now_ns)
{
	return r->came_ns + r->silent_ns + (r->queued > 0 ? now_ns - r->busy_since_ns : 0);
}
