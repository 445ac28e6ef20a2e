/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a KV namespace may answer: the history of writes of each key, with the times between which
 * each took effect, and the rule that a read is held to.
 *
 * A read that began at rs may deliver the value of write w if w had begun before the read ended,
 * and no write that surely followed w had surely taken effect before rs. A write without an answer
 * may take effect at any time after its start. Absence is the value of the first "write", of each
 * delete, and allowed always where values may be lost (eviction, media faults, power cut).
 */
#ifndef KVOF_TESTS_SIM_MODEL_H
#define KVOF_TESTS_SIM_MODEL_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define MODEL_WRITES_MAX 4096
#define MODEL_UNKNOWN UINT64_MAX

struct model_write {
	uint64_t start, end;         /* end: MODEL_UNKNOWN while or if no answer came */
	uint64_t content_hash;
	uint32_t value_bytes;
	bool absent;                 /* the start, or a delete */
	bool failed;                 /* answered with "no effect" */
	bool shaky;                  /* may have been lost again (power cut, a lying drive) */
};

struct model_key {
	struct model_write *write;
	unsigned count;
};

static inline void model_init(struct model_key *k)
{
	k->write = calloc(MODEL_WRITES_MAX, sizeof(k->write[0]));
	if (k->write == NULL)
		abort();
	k->write[0] = (struct model_write){.absent = true};
	k->count = 1;
}

static inline unsigned model_begin(struct model_key *k, uint64_t now, bool absent,
				   uint32_t value_bytes, uint64_t content_hash)
{
	if (k->count == MODEL_WRITES_MAX)
		abort();
	k->write[k->count] = (struct model_write){.start = now, .end = MODEL_UNKNOWN,
		.absent = absent, .value_bytes = value_bytes, .content_hash = content_hash};
	return k->count++;
}

/* True when a write surely followed k->write[i] and surely took effect before rs. */
static inline bool model_gone(const struct model_key *k, unsigned i, uint64_t rs)
{
	const struct model_write *w = &k->write[i];

	if (w->end == MODEL_UNKNOWN)
		return false;
	for (unsigned j = 0; j < k->count; j++) {
		const struct model_write *v = &k->write[j];

		if (v->failed || v->shaky || v->end == MODEL_UNKNOWN)
			continue;
		if (v->start > w->end && v->end < rs)
			return true;
	}
	return false;
}

static inline bool model_allows_value(const struct model_key *k, uint64_t rs, uint64_t re,
				      uint32_t value_bytes, uint64_t content_hash)
{
	for (unsigned i = 0; i < k->count; i++) {
		const struct model_write *w = &k->write[i];

		if (w->absent || w->failed || w->start >= re || w->value_bytes != value_bytes ||
		    w->content_hash != content_hash)
			continue;
		if (!model_gone(k, i, rs))
			return true;
	}
	return false;
}

static inline bool model_allows_absent(const struct model_key *k, uint64_t rs, uint64_t re)
{
	for (unsigned i = 0; i < k->count; i++) {
		const struct model_write *w = &k->write[i];

		if (w->absent && !w->failed && w->start < re && !model_gone(k, i, rs))
			return true;
	}
	return false;
}

static inline bool model_allows_present(const struct model_key *k, uint64_t rs, uint64_t re)
{
	for (unsigned i = 0; i < k->count; i++) {
		const struct model_write *w = &k->write[i];

		if (!w->absent && !w->failed && w->start < re && !model_gone(k, i, rs))
			return true;
	}
	return false;
}

static inline void model_dump(const struct model_key *k)
{
	for (unsigned i = 0; i < k->count; i++) {
		const struct model_write *w = &k->write[i];

		printf("#   write %u: %llu..%lld %s %u bytes hash %llx%s%s\n", i,
		       (unsigned long long)w->start, (long long)w->end,
		       w->absent ? "absent" : "value", w->value_bytes,
		       (unsigned long long)w->content_hash, w->failed ? " failed" : "",
		       w->shaky ? " shaky" : "");
	}
}

#endif
