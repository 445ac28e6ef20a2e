/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Text of others (names of models, machines, columns) on its way into a result: what is kept can be
 * shown on a terminal and put into JSON. Pure, any thread.
 */
#ifndef KVOF_PLAN_TEXT_H
#define KVOF_PLAN_TEXT_H

#include <stddef.h>

/* Control characters and bytes that are no UTF-8 become '?'; a letter that was cut at the end is
 * left out. */
void plan_text_clean(char *text);
/* Copies text, cut before the letter that has no room, and cleans the copy. */
void plan_text_put(char *out, size_t room, const char *text);

#define PLAN_SIZE_BYTES 32
/* "10.6 GB", "1.07 TB": three places, of powers of 1000. Return: out. */
const char *plan_text_size(double bytes, char out[PLAN_SIZE_BYTES]);

#endif
