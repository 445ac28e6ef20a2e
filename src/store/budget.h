/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How much may be written to a drive in a day. Arithmetic only. One a drive; any thread, one at a
 * time.
 *
 * A quarter of the day's bytes lies in a bucket, the rest comes in evenly over the day: so within
 * any 24 hours no more than the budget is written, and a burst finds a quarter of it at once. When
 * less than half of the bucket is left nothing is carried forward any more; when it is empty, puts
 * are refused. Deletes are not.
 */
#ifndef KVOF_STORE_BUDGET_H
#define KVOF_STORE_BUDGET_H

#include <stdbool.h>
#include <stdint.h>

struct budget {
	uint64_t day_bytes;                  /* 0: no limit */
	uint64_t most_bytes;                 /* the bucket */
	int64_t left_bytes;                  /* below 0: overdrawn */
	uint64_t filled_ns;                  /* up to then its refill is in */
	uint64_t counted_bytes;              /* what the drive had written then */
};

void budget_open(struct budget *b, uint64_t day_bytes, uint64_t now_ns);
/* After a restart: what was left so many seconds ago. */
void budget_restore(struct budget *b, int64_t left_bytes, uint64_t seconds_ago);
/* written_bytes: all that the drive has written since it was opened. */
void budget_update(struct budget *b, uint64_t written_bytes, uint64_t now_ns);
bool budget_allows(const struct budget *b, uint64_t bytes);
bool budget_allows_carry(const struct budget *b);

#endif
