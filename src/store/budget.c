/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Purpose: see budget.h.
 * Invariants: left_bytes <= most_bytes; what comes in over a day and the bucket together are
 * day_bytes. Any thread.
 */
#include "store/budget.h"

#include "base/bytes.h"
#include "base/must.h"

#define DAY_S UINT64_C(86400)

/* What comes in within a time of at most a day. */
static uint64_t refill(const struct budget *b, uint64_t ns)
{
	uint64_t day = b->day_bytes - b->most_bytes, ms = ns / NS_PER_MS;

	must(ms <= DAY_S * 1000);
	/* In parts, so that no product passes 64 bits: 2^60 bytes a day. */
	return day / (DAY_S * 1000) * ms + day % (DAY_S * 1000) * ms / (DAY_S * 1000);
}

static void give(struct budget *b, uint64_t bytes)
{
	must(bytes <= b->day_bytes);
	b->left_bytes += (int64_t)bytes;
	if (b->left_bytes > (int64_t)b->most_bytes)
		b->left_bytes = (int64_t)b->most_bytes;
}

void budget_open(struct budget *b, uint64_t day_bytes, uint64_t now_ns)
{
	must(day_bytes <= UINT64_C(1) << 60);
	*b = (struct budget){.day_bytes = day_bytes, .most_bytes = day_bytes / 4,
		.left_bytes = (int64_t)(day_bytes / 4), .filled_ns = now_ns};
}

void budget_restore(struct budget *b, int64_t left_bytes, uint64_t seconds_ago)
{
	int64_t least = -(int64_t)b->day_bytes;

	b->left_bytes = left_bytes < least ? least : left_bytes;
	give(b, 0);
	give(b, refill(b, bytes_min(seconds_ago, DAY_S) * NS_PER_S));
}

void budget_update(struct budget *b, uint64_t written_bytes, uint64_t now_ns)
{
	uint64_t ns = now_ns - b->filled_ns;

	if (b->day_bytes == 0)
		return;
	must(written_bytes >= b->counted_bytes && now_ns >= b->filled_ns);
	b->left_bytes -= (int64_t)(written_bytes - b->counted_bytes);
	b->counted_bytes = written_bytes;
	if (ns < 100 * NS_PER_MS)
		return;                      /* so that rounding loses nothing that counts */
	give(b, refill(b, bytes_min(ns, DAY_S * NS_PER_S)));
	b->filled_ns = now_ns;
}

bool budget_allows(const struct budget *b, uint64_t bytes)
{
	return b->day_bytes == 0 || b->left_bytes >= (int64_t)bytes;
}

bool budget_allows_carry(const struct budget *b)
{
	return b->day_bytes == 0 || b->left_bytes > (int64_t)(b->most_bytes / 2);
}
