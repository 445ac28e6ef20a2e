/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The small value per model that lists the fields of the domains in use, so that a wrong setting is
 * named at start instead of showing as a hit rate of zero. Pure functions, any thread;
 * docs/formats.md "domain list" holds the bytes.
 */
#ifndef KVOF_CACHE_DOMAINS_H
#define KVOF_CACHE_DOMAINS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cache/identity.h"

#define DOMAINS_MAX 32                     /* in one list; the oldest goes */
#define DOMAINS_BYTES_MAX (64 * 1024)      /* of one list, without its footer */

enum domains_answer {
	DOMAINS_SAME,                      /* ours is in the list */
	DOMAINS_DIFFER,                    /* others are, ours is not: why names the field */
	DOMAINS_NONE,                      /* the list is empty */
	DOMAINS_BAD                        /* not a list: treated as empty, overwritten */
};

/**
 * domains_compare() - is this domain in use?
 * @why: DOMAINS_DIFFER: one sentence with the first field that differs from the nearest domain
 *
 * Fields that differ by design between users of one model (shard_index, and those whose name begins
 * with "tenant" or "salt") are not in the list and not compared.
 */
enum domains_answer domains_compare(const struct identity *id, const uint8_t *list, size_t bytes,
				    char why[256]);

/* The list with ours added, at the end. out has room for DOMAINS_BYTES_MAX. Return: its bytes; 0
 * when ours alone is too long to be listed. */
size_t domains_add(const struct identity *id, const uint8_t *list, size_t bytes, uint8_t *out);

/* One domain of a list, as it lies there. */
struct domains_entry {
	const uint8_t *at;
	size_t bytes;
};
/* The next one after *at (0: the first), which is moved. False: that was all, or it is no list. */
bool domains_next(const uint8_t *list, size_t bytes, size_t *at, struct domains_entry *out);
/* "name=value, ..." on one line, cut where it does not fit. */
void domains_text(const struct domains_entry *entry, char *out, size_t bytes);
/* Value of a field as text; false: there is none, or it does not fit. */
bool domains_field(const struct domains_entry *entry, const char *name, char *out, size_t bytes);

/* 1 .. 65535, made from the fields that are listed: two domains seldom share one, but may. The
 * footers of values carry it, so that one domain's share can be told apart; 0 there: not known. */
uint16_t domains_tag(const struct identity *id);
uint16_t domains_entry_tag(const struct domains_entry *entry);

#endif
