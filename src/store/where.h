/* SPDX-License-Identifier: Apache-2.0 */
/* Where a value lies, from memory: for who bounds what waits for each drive. The store's loop. */
#ifndef KVOF_STORE_WHERE_H
#define KVOF_STORE_WHERE_H

#include "store/store.h"

/* Not a hit: nothing is changed. Of a value that spans the drives: where its head lies, and the
 * head's length. Return: the drive; -ENOENT. */
int store_where(const struct store *st, const struct kv_key *key, uint32_t *value_bytes);

#endif
