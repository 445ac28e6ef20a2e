/* SPDX-License-Identifier: Apache-2.0 */
/* Drives of this machine as the one device of a tier of values. Owned by one loop. */
#include "cache/flash.h"

#include <errno.h>
#include <stdlib.h>

#include "cache/values.h"

#define FLASH_MAGIC 0x666c7368u
#define FLASH_KNOWN 65536u                 /* blocks whose length is remembered */
#define FLASH_VALUE_BYTES_MIN (512 * KiB)  /* least limit that a store takes */

struct flash {
	uint32_t magic;
	struct loop *loop;
	struct tier *tier;
	struct dev *dev;
	struct loop_op end;
	void (*closed)(void *arg);
	void *arg;
};

static struct flash *flash_of(const struct tier *t)
{
	struct flash *f = values_owner(t);

	OBJ_CHECK(f, FLASH_MAGIC);
	return f;
}

int flash_open(struct loop *loop, const struct flash_opts *opts, char why[256], struct tier **out)
{
	struct dev_store_opts store = {
		.path = opts->path,
		.path_count = opts->path_count,
		.cap_bytes = opts->cap_bytes,
		.value_bytes_max = opts->part_bytes > FLASH_VALUE_BYTES_MIN ? opts->part_bytes :
				   (uint32_t)FLASH_VALUE_BYTES_MIN,
		.flying_max = TIER_FLYING_MAX,
		.format = opts->format,
		.second_touch = opts->second_touch,
	};
	struct flash *f = calloc(1, sizeof(*f));
	struct values_opts values = {.name = "flash", .cut_bytes = opts->part_bytes - FRAME_BYTES,
				     .known_slots = FLASH_KNOWN, .owner = f};
	int rc;

	why[0] = '\0';
	if (f == NULL)
		return -ENOMEM;
	OBJ_INIT(f, FLASH_MAGIC);
	f->loop = loop;
	rc = values_open(loop, &values, &f->tier);
	if (rc == 0)
		rc = dev_store_open(loop, &store, why, &f->dev);
	if (rc != 0) {
		if (f->tier != NULL)
			values_close(&f->tier);
		free(f);
		return rc;
	}
	values_dev_add(f->tier, f->dev, values_name("flash"));
	*out = f->tier;
	return 0;
}

static void flash_end(struct loop_op *end, int res)
{
	struct flash *f = container_of(end, struct flash, end);
	void (*closed)(void *arg) = f->closed;
	void *arg = f->arg;

	if (values_in_flight(f->tier) > 0) {       /* it ends on this turn or the next */
		loop_soon(f->loop, end, 0);
		return;
	}
	values_close(&f->tier);
	dev_store_free(&f->dev);
	f->magic = 0;
	free(f);
	closed(arg);
}

static void store_closed(void *arg)
{
	struct flash *f = arg;

	f->end = (struct loop_op){.done = flash_end};
	loop_soon(f->loop, &f->end, 0);
}

void flash_close(struct tier **t, void (*closed)(void *arg), void *arg)
{
	struct flash *f = flash_of(*t);

	*t = NULL;
	loop_must_own(f->loop);
	f->closed = closed;
	f->arg = arg;
	values_dev_limit(f->tier, 0, 0);           /* nothing starts any more */
	dev_store_close(f->dev, store_closed, f);
}

void flash_stat(const struct tier *t, struct tier_stat *out)
{
	values_stat(t, out);
}
