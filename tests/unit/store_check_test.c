/* SPDX-License-Identifier: Apache-2.0 */
/* src/store/check.c: what the offline check finds, and that it changes nothing. */
#include "set_rig.h"

#include <errno.h>

#include "store/check.h"

static char said[4096];

static void say(void *arg, const char *line)
{
	size_t n = strlen(said);

	(void)arg;
	snprintf(said + n, sizeof(said) - n, "%s\n", line);
}

static void made(struct rig *g, bool closed)
{
	rig_begin(g, 1, 2, 8 * MiB);
	g->opts.segment_bytes = 1 << 20;
	expect_int(rig_open(g), 0);
	for (uint32_t i = 0; i < 60; i++)
		expect_int(rig_put(g, i, 1, 60000 + i), 0);
	expect_int(rig_delete(g, 7), 0);
	expect_int(rig_put(g, 8, 2, 10), 0);
	if (closed)
		rig_close(g);
	else
		rig_crash(g, true);
	if (g->loop == NULL) {
		struct loop_opts lo = {.name = "check"};

		expect_int(loop_open(&lo, &g->loop), 0);
	}
}

static struct store_check checked(struct rig *g)
{
	struct store_check out;
	uint64_t bytes;
	const uint8_t *medium = sim_disk_bytes("drive0", &bytes);
	uint8_t *copy = malloc(bytes);

	kt_noise(&out, sizeof(out));
	memcpy(copy, medium, bytes);
	said[0] = 0;
	expect_int(store_check(&g->opts, g->loop, say, NULL, &out), 0);
	expect_mem(medium, copy, bytes);
	free(copy);
	return out;
}

TEST(a_good_image_is_found_good_closed_or_killed)
{
	for (unsigned closed = 0; closed < 2; closed++) {
		struct rig g;
		struct store_check c;

		made(&g, closed);
		c = checked(&g);
		expect_str(said, "");
		expect_int(c.values, 61);
		expect_int(c.deletes, 1);
		expect(c.segments_sealed > 0 && c.segments_open == 2 && c.segments_free > 0);
		expect_int(c.superblocks_bad + c.frames_bad + c.records_bad, 0);
		expect_int(rig_open(&g), 0);
		expect_int(rig_stat(&g).keys, 59);
		rig_end(&g);
	}
}

TEST(each_kind_of_damage_is_found_and_named)
{
	struct rig g;
	struct store_check c;
	uint64_t bytes, segment = FMT_FIRST_SEGMENT_BLOCK * FMT_BLOCK_BYTES;
	uint8_t *medium;

	made(&g, true);
	medium = sim_disk_bytes("drive0", &bytes);
	medium[bytes - 4096 + 30] ^= 1;
	c = checked(&g);
	expect_int(c.superblocks_bad, 1);
	expect(strstr(said, "drive0: superblock at block 2047: damaged") != NULL);
	medium[bytes - 4096 + 30] ^= 1;

	medium[segment + 20] ^= 1;
	c = checked(&g);
	expect_int(c.frames_bad, 1);
	expect(strstr(said, "segment 0: header: checksum") != NULL);
	expect_int(c.values, 61);
	medium[segment + 20] ^= 1;

	medium[segment + (1 << 20) - 4096 + 20] ^= 1;
	c = checked(&g);
	expect_int(c.frames_bad, 1);
	expect(strstr(said, "segment 0: footer: checksum") != NULL);
	expect_int(c.values, 61);
	medium[segment + (1 << 20) - 4096 + 20] ^= 1;

	medium[segment + 4096 + 5000] ^= 1;
	c = checked(&g);
	expect_int(c.records_bad, 1);
	expect(strstr(said, "record at block 17: checksum of the value") != NULL);
	rig_end(&g);
}

/* A footer whose checksum is right and that lists a value otherwise than its record has it. */
TEST(a_footer_that_lists_a_value_with_another_length_or_stripe_is_found)
{
	for (unsigned what = 0; what < 2; what++) {
		uint64_t bytes, segment = FMT_FIRST_SEGMENT_BLOCK * FMT_BLOCK_BYTES;
		static struct fmt_entry entries[1024];
		struct fmt_segment_info info;
		struct fmt_super_info super;
		struct store_check c;
		struct fmt_place at;
		uint8_t *medium, *end, *footer;
		struct rig g;

		made(&g, true);
		medium = sim_disk_bytes("drive0", &bytes);
		expect(fmt_super_check(medium, 0, &super) == FMT_SUPER_OK);
		at = (struct fmt_place){super.store_id, super.drive,
			FMT_FIRST_SEGMENT_BLOCK + (1 << 20) / FMT_BLOCK_BYTES - 1};
		end = medium + segment + (1 << 20);
		expect(fmt_footer_check(end - FMT_BLOCK_BYTES, &at, 1 << 20, &info) == NULL);
		footer = end - (fmt_footer_blocks(info.entry_count) << FMT_BLOCK_SHIFT);
		expect(fmt_footer_entries(footer, &info, entries) == NULL);
		expect(info.entry_count > 2 && entries[1].kind == FMT_PUT);
		if (what == 0)
			entries[1].value_bytes = le32_of(le32_get(entries[1].value_bytes) - 1);
		else
			entries[1].stripe = FMT_STRIPE_HEAD;
		fmt_footer_write(footer, &at, 1 << 20, &info, entries);
		c = checked(&g);
		if (c.records_bad != 1)
			fail_msg("%u: %s", what, said);
		expect(strstr(said, "the footer lists it with another length") != NULL);
		rig_end(&g);
	}
}

TEST(a_store_that_is_open_and_a_drive_of_no_store_are_refused)
{
	struct rig g;
	struct store_check out;

	made(&g, true);
	expect_int(rig_open(&g), 0);
	expect_int(store_check(&g.opts, g.loop, say, NULL, &out), -EBUSY);
	rig_close(&g);
	memset(sim_disk_bytes("drive1", NULL), 0, 4096);
	expect_int(store_check(&g.opts, g.loop, say, NULL, &out), 0);
	expect_int(out.superblocks_bad, 1);
	memset(sim_disk_bytes("drive1", NULL) + 8 * MiB - 4096, 0, 4096);
	expect_int(store_check(&g.opts, g.loop, say, NULL, &out), -EPROTO);
	rig_end(&g);
}

/* --- drives of a set -------------------- */

static struct store_check set_checked(struct set_rig *r, int rc)
{
	struct store_opts so = {.drive_count = r->opts.drive_count};
	struct store_check out;

	memcpy(so.drive, r->opts.drive, sizeof(so.drive));
	said[0] = 0;
	kt_noise(&out, sizeof(out));
	expect_int(store_check(&so, r->g.loop, say, NULL, &out), rc);
	return out;
}

TEST(all_parts_of_a_set_are_looked_at_and_its_labels_and_catalogs)
{
	struct set_rig r;
	struct store_check c;
	uint32_t id;
	uint64_t bytes;
	uint8_t *medium;

	set_rig_begin(&r, 1, 2, 32 * MiB);
	r.opts.shards = 2;
	expect_int(set_rig_open(&r), 0);
	id = set_rig_kv(&r, 0);
	for (unsigned shard = 0; shard < 2; shard++) {
		expect_int(set_rig_store(&r, id, shard), 0);
		for (uint32_t i = 0; i < 20; i++)
			expect_int(rig_put(&r.g, i, 1, 30000), 0);
		rig_close(&r.g);
	}
	(void)set_checked(&r, -EBUSY);
	expect(strstr(said, "drive0: can't be opened: in use") != NULL);
	set_rig_close(&r);
	c = set_checked(&r, 0);
	expect_str(said, "");
	expect_int(c.namespaces, 1);
	expect_int(c.values, 40);
	expect_int(c.superblocks_bad + c.frames_bad + c.records_bad, 0);
	/* A label, and then a catalog at one end. */
	medium = sim_disk_bytes("drive1", &bytes);
	medium[bytes - 4096 + 30] ^= 1;
	c = set_checked(&r, 0);
	expect_int(c.superblocks_bad, 1);
	expect(strstr(said, "drive1: label at block 8191: damaged") != NULL);
	medium[bytes - 4096 + 30] ^= 1;
	for (unsigned i = 1; i < 40; i++) {
		if (memcmp(medium + i * 4096, "KVOF", 4) == 0 &&
		    memcmp(medium + i * 4096, "KVOFSUPR", 8) != 0)
			medium[i * 4096 + 40] ^= 1;
	}
	c = set_checked(&r, 0);
	expect_int(c.superblocks_bad, 1);
	expect(strstr(said, "drive1: catalog at its beginning: none is whole") != NULL);
	expect_int(c.values, 40);
	set_rig_end(&r);
}

TEST(drives_of_two_sets_are_noticed_and_so_is_one_too_few)
{
	struct set_rig r;

	set_rig_begin(&r, 1, 2, 32 * MiB);
	expect_int(set_rig_open(&r), 0);
	set_rig_close(&r);
	r.opts.drive[1] = (struct store_drive){.path = "other", .bytes = 32 * MiB};
	r.opts.drive[0] = (struct store_drive){.path = "other2", .bytes = 32 * MiB};
	expect_int(set_rig_open(&r), 0);
	set_rig_close(&r);
	r.opts.drive[0] = (struct store_drive){.path = "drive0"};
	(void)set_checked(&r, -EINVAL);
	expect(strstr(said, "another set") != NULL);
	r.opts.drive_count = 1;
	(void)set_checked(&r, -ENOENT);
	expect(strstr(said, "2 drives") != NULL);
	set_rig_end(&r);
}
