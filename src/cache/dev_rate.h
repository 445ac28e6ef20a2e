/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How fast a device reads, as seen by those who wait for it: latency of a read that finds nothing
 * before it, bandwidth while reads are under way. Arithmetic only; moving averages, so that a
 * device that has become slower shows within a few reads. One owner, no clock of its own.
 *
 *   time of a read that found the device idle = latency + bytes / bandwidth
 */
#ifndef KVOF_CACHE_DEV_RATE_H
#define KVOF_CACHE_DEV_RATE_H

#include <stdbool.h>
#include <stdint.h>

#define DEV_RATE_SMALL_BYTES (16u << 10)   /* a read up to this tells the latency */
#define DEV_RATE_WINDOW_BYTES (1u << 20)   /* so much, or so long, makes a sample of bandwidth */
#define DEV_RATE_WINDOW_NS 20000000u

struct dev_rate {
	uint64_t latency_ns, bytes_per_s;  /* 0: not known yet */
	uint64_t samples;                  /* reads that have ended */
	uint64_t queued_bytes;             /* asked for and not there yet */
	uint32_t queued;
	uint64_t given_up_bytes, given_up_ns;      /* of them, at that time: the device goes on */
	uint64_t last_ns;                  /* a read ended, or the first of many began */
	/* the window of bandwidth: busy time only */
	uint64_t busy_since_ns, window_ns, window_bytes;
	uint64_t window_lead_ns;           /* beside window_ns: until the first of several came */
	bool leads;                        /* none of this busy time has come yet */
	uint64_t came_bytes, came_ns;      /* of reads not small; busy time until the last */
	uint64_t silent_ns;                /* busy time since then that ended without an answer */
	uint32_t window_idles;             /* reads in it that found the device idle */
};

/* What a read has to remember until it ends. */
struct dev_rate_mark {
	uint64_t begin_ns;
	uint32_t bytes;
	bool idle;                         /* nothing was before it */
	bool begun;
};

void dev_rate_begin(struct dev_rate *r, struct dev_rate_mark *m, uint32_t bytes, uint64_t now_ns);
enum dev_rate_end { DEV_RATE_CAME, DEV_RATE_LATE, DEV_RATE_UNTOLD };
/* CAME: moved_bytes are there (0: an answer without bytes). LATE: its deadline was first. UNTOLD:
 * says nothing of the device (canceled, connection lost). */
void dev_rate_end(struct dev_rate *r, const struct dev_rate_mark *m, enum dev_rate_end how,
		  uint32_t moved_bytes, uint64_t now_ns);
/* What a read would have to wait for: also what was given up is read to its end by most devices. */
uint64_t dev_rate_queued_bytes(const struct dev_rate *r, uint64_t now_ns);
/* Latency as it looks now: a device that answers nothing is as slow as its silence is long. */
uint64_t dev_rate_latency_ns(const struct dev_rate *r, uint64_t now_ns);

/* Time with reads under way, all of it, for came_bytes: before a window is full, what is known. */
uint64_t dev_rate_busy_ns(const struct dev_rate *r, uint64_t now_ns);

#endif
