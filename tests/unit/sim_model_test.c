/* SPDX-License-Identifier: Apache-2.0 */
/* The judge of the simulation is judged first: histories with known verdicts. */
#include "kt.h"

#include "../sim/model.h"

static void put(struct model_key *k, uint64_t start, uint64_t end, uint64_t hash)
{
	unsigned i = model_begin(k, start, false, 10, hash);

	k->write[i].end = end;
}

TEST(a_read_after_an_acknowledged_store_may_not_miss)
{
	struct model_key k;

	model_init(&k);
	put(&k, 10, 20, 1);
	expect(model_allows_value(&k, 30, 40, 10, 1));
	expect(!model_allows_absent(&k, 30, 40));
	expect(model_allows_absent(&k, 15, 40));
	free(k.write);
}

TEST(an_overwritten_value_may_not_come_back)
{
	struct model_key k;

	model_init(&k);
	put(&k, 10, 20, 1);
	put(&k, 30, 40, 2);
	expect(!model_allows_value(&k, 50, 60, 10, 1));
	expect(model_allows_value(&k, 50, 60, 10, 2));
	expect(model_allows_value(&k, 35, 60, 10, 1));
	free(k.write);
}

TEST(concurrent_stores_allow_either_value)
{
	struct model_key k;

	model_init(&k);
	put(&k, 10, 30, 1);
	put(&k, 20, 25, 2);
	expect(model_allows_value(&k, 50, 60, 10, 1));
	expect(model_allows_value(&k, 50, 60, 10, 2));
	expect(!model_allows_value(&k, 50, 60, 10, 3));
	expect(!model_allows_value(&k, 50, 60, 11, 1));
	free(k.write);
}

TEST(a_store_without_an_answer_may_or_may_not_be_there)
{
	struct model_key k;

	model_init(&k);
	put(&k, 10, MODEL_UNKNOWN, 1);
	expect(model_allows_value(&k, 50, 60, 10, 1));
	expect(model_allows_absent(&k, 50, 60));
	expect(!model_allows_value(&k, 2, 5, 10, 1));
	free(k.write);
}

TEST(a_deleted_value_may_not_come_back_but_absence_may)
{
	struct model_key k;
	unsigned i;

	model_init(&k);
	put(&k, 10, 20, 1);
	i = model_begin(&k, 30, true, 0, 0);
	k.write[i].end = 40;
	expect(!model_allows_value(&k, 50, 60, 10, 1));
	expect(!model_allows_present(&k, 50, 60));
	expect(model_allows_absent(&k, 50, 60));
	k.write[i].shaky = true;
	expect(model_allows_value(&k, 50, 60, 10, 1));
	free(k.write);
}
