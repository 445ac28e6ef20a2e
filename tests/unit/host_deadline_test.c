/* SPDX-License-Identifier: Apache-2.0 */
/* The heap of deadlines: first is always the earliest, whatever was added and removed. */
#include "kt.h"

#include "base/prng.h"
#include "host/impl.h"

#define OPS 200

static uint64_t earliest(const struct host_op *op, const bool *in)
{
	uint64_t best = UINT64_MAX;

	for (unsigned i = 0; i < OPS; i++)
		if (in[i] && op[i].deadline_ns < best)
			best = op[i].deadline_ns;
	return best;
}

TEST(the_first_is_the_earliest_through_random_adds_and_removals)
{
	struct host_op *op = calloc(OPS, sizeof(*op));
	struct deadline_heap heap;
	struct prng p = prng_of(11);
	bool in[OPS] = {false};

	kt_noise(&heap, sizeof(heap));
	expect_int(deadline_heap_init(&heap, OPS), 0);
	for (unsigned round = 0; round < 20000; round++) {
		unsigned i = (unsigned)prng_below(&p, OPS);
		struct host_op *first;

		if (in[i]) {
			deadline_heap_remove(&heap, &op[i]);
		} else {
			op[i].deadline_ns = 1 + prng_below(&p, 50);
			deadline_heap_add(&heap, &op[i]);
		}
		in[i] = !in[i];
		first = deadline_heap_first(&heap);
		if (earliest(op, in) == UINT64_MAX)
			expect(first == NULL);
		else
			expect(first != NULL && first->deadline_ns == earliest(op, in));
	}
	for (unsigned i = 0; i < OPS; i++)
		deadline_heap_remove(&heap, &op[i]);
	expect(deadline_heap_first(&heap) == NULL);
	deadline_heap_free(&heap);
	free(op);
}

TEST(removing_what_is_not_in_the_heap_changes_nothing)
{
	struct host_op *op = calloc(2, sizeof(*op));
	struct deadline_heap heap;

	expect_int(deadline_heap_init(&heap, 2), 0);
	op[0].deadline_ns = 5;
	deadline_heap_add(&heap, &op[0]);
	deadline_heap_remove(&heap, &op[1]);
	expect(deadline_heap_first(&heap) == &op[0]);
	deadline_heap_remove(&heap, &op[0]);
	deadline_heap_remove(&heap, &op[0]);
	deadline_heap_free(&heap);
	free(op);
}
