/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Four rows of counters of two bits, eight of each row a touch. A touch sets its counter of every
 * row to 2 and halves one word of 32 counters, in turn; so each counter is halved once in `touches`
 * touches: 2, 1, 0. A block counts as seen when none of its four is 0.
 */
#include "cache/admit.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/must.h"

#define ADMIT_MAGIC 0x61646d74u
#define ADMIT_ROWS 4
#define ADMIT_PER_WORD 32

struct admit {
	uint32_t magic;
	uint32_t words, hand;              /* of all rows; a power of two */
	uint32_t row_mask;                 /* counters of a row, less one */
	uint64_t word[];
};

int admit_open(uint32_t touches, struct admit **out)
{
	uint32_t words = ADMIT_TOUCHES_MIN;
	struct admit *a;

	if (touches < ADMIT_TOUCHES_MIN || touches > ADMIT_TOUCHES_MAX)
		return -EINVAL;
	while (words < touches)
		words *= 2;
	a = calloc(1, sizeof(*a) + words * sizeof(a->word[0]));
	if (a == NULL)
		return -ENOMEM;
	OBJ_INIT(a, ADMIT_MAGIC);
	a->words = words;
	a->row_mask = words / ADMIT_ROWS * ADMIT_PER_WORD - 1;
	*out = a;
	return 0;
}

void admit_close(struct admit **ap)
{
	struct admit *a;

	OBJ_TAKE(a, ap, ADMIT_MAGIC);
	a->magic = 0;
	free(a);
}

bool admit_touch(struct admit *a, const struct kvof_id *id)
{
	uint32_t row_words = a->words / ADMIT_ROWS;
	bool seen = true;

	OBJ_CHECK(a, ADMIT_MAGIC);
	for (unsigned row = 0; row < ADMIT_ROWS; row++) {
		uint64_t *word, bits;
		unsigned shift;
		uint32_t at;

		/* identities are digests: any bytes of them are as good as a hash */
		memcpy(&at, id->byte + 16 + row * sizeof(at), sizeof(at));
		at &= a->row_mask;
		word = &a->word[row * row_words + at / ADMIT_PER_WORD];
		shift = at % ADMIT_PER_WORD * 2;
		bits = UINT64_C(3) << shift;
		seen = seen && (*word & bits) != 0;
		*word = (*word & ~bits) | UINT64_C(2) << shift;
	}
	a->word[a->hand] = a->word[a->hand] >> 1 & UINT64_C(0x5555555555555555);
	a->hand = (a->hand + 1) & (a->words - 1);
	return seen;
}
