/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What each host has done, over all its controllers, for metrics: a row a host's name, kept after
 * its last controller has gone so that counters only grow. When all rows are taken, the row of a
 * host without a controller goes to the next one; with none such, the last row counts the rest
 * together ("other").
 *
 * A controller counts in its seats (one writer each); a row has what its controllers that are gone
 * have counted. The first loop.
 */
#include "target/core.h"

#include <stdlib.h>

#define OTHER "other"

static void counts_sum(struct target_host_counts *sum, const struct target_host_counts *add)
{
	const uint64_t *from = (const uint64_t *)add;
	uint64_t *to = (uint64_t *)sum;

	_Static_assert(sizeof(*sum) % sizeof(uint64_t) == 0, "nothing but counters");
	for (unsigned i = 0; i < sizeof(*sum) / sizeof(*to); i++)
		to[i] += __atomic_load_n(&from[i], __ATOMIC_RELAXED);
}

void host_counts(const struct ctrl *c, struct target_host_counts *out)
{
	*out = (struct target_host_counts){0};
	for (unsigned i = 0; i < c->target->lane_count; i++)
		counts_sum(out, &c->seat[i].counts);
}

/* The row of this name; else one never used, or of a host that has gone; else NULL. */
static struct target_host *row_find(struct target *t, const char *nqn)
{
	struct target_host *found = NULL;

	for (unsigned i = 0; i < TARGET_HOST_ROWS; i++) {
		struct target_host *r = &t->host[i];

		if (strcmp(r->nqn, nqn) == 0)
			return r;
		if (i + 1 == TARGET_HOST_ROWS || r->ctrls > 0)
			continue;
		if (found == NULL || (found->nqn[0] != '\0' && r->nqn[0] == '\0'))
			found = r;
	}
	return found;
}

void host_enter(struct ctrl *c)
{
	struct target *t = c->target;
	struct target_host *row = row_find(t, c->hostnqn);

	if (row == NULL) {
		row = &t->host[TARGET_HOST_ROWS - 1];
		memcpy(row->nqn, OTHER, sizeof(OTHER));
	} else if (strcmp(row->nqn, c->hostnqn) != 0) {
		*row = (struct target_host){.ctrls = 0};
		memcpy(row->nqn, c->hostnqn, sizeof(row->nqn));
	}
	row->ctrls++;
	c->host_row = row;
}

void host_leave(struct ctrl *c)
{
	struct target_host_counts all;

	must(c->host_row != NULL && c->host_row->ctrls > 0);
	host_counts(c, &all);
	counts_sum(&c->host_row->counts, &all);
	c->host_row->ctrls--;
}

static void row_add(struct target_host *out, const struct subsys *s,
		    const struct target_host *row)
{
	LIST_FOR_EACH(link, &s->ctrls) {
		const struct ctrl *c = container_of(link, struct ctrl, link);
		struct target_host_counts all;

		if (c->host_row != row)
			continue;
		host_counts(c, &all);
		counts_sum(&out->counts, &all);
	}
}

unsigned target_hosts(const struct target *t, struct target_host *out, unsigned out_count)
{
	unsigned n = 0;

	OBJ_CHECK(t, TARGET_MAGIC);
	for (unsigned i = 0; i < TARGET_HOST_ROWS && n < out_count; i++) {
		const struct target_host *row = &t->host[i];

		if (row->nqn[0] == '\0')
			continue;
		out[n] = *row;
		for (unsigned k = 0; row->ctrls > 0 && k < ARRAY_COUNT(t->subsys); k++)
			if (t->subsys[k] != NULL && !t->subsys[k]->discovery)
				row_add(&out[n], t->subsys[k], row);
		n++;
	}
	return n;
}
