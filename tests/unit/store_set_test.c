/* SPDX-License-Identifier: Apache-2.0 */
/* src/store/set*.c: drives, namespaces and their parts; what is refused, and in which words. */
#include "set_rig.h"

#include <errno.h>

TEST(a_namespace_is_a_store_on_parts_of_every_drive_also_after_reopening)
{
	struct set_rig r;
	uint32_t id;

	set_rig_begin(&r, 1, 3, 32 * MiB);
	r.opts.shards = 2;
	expect_int(set_rig_open(&r), 0);
	expect(set_was_made(r.set));
	expect_int(set_shards(r.set), 2);
	id = set_rig_kv(&r, 0);
	expect(!set_was_made(r.set));
	for (unsigned shard = 0; shard < 2; shard++) {
		expect(set_busy_drive(r.set) == NULL);
		expect_int(set_rig_store(&r, id, shard), 0);
		expect(set_busy_drive(r.set) != NULL);
		expect_int(rig_put(&r.g, 1, shard + 1, 70000), 0);
		expect_int(rig_stat(&r.g).drives, 3);
		rig_close(&r.g);
		expect(set_busy_drive(r.set) == NULL);
	}
	set_rig_close(&r);
	expect_int(set_rig_open(&r), 0);
	expect(!set_was_made(r.set));
	for (unsigned shard = 0; shard < 2; shard++) {
		expect_int(set_rig_store(&r, id, shard), 0);
		expect_int(rig_get(&r.g, 1, shard + 1, 70000), 0);
		rig_close(&r.g);
	}
	set_rig_end(&r);
}

TEST(namespaces_and_subsystems_are_listed_as_they_were_made)
{
	struct set_ns ns[SET_NAMESPACES_MAX], a, b;
	struct set_subsys sub[SET_SUBSYSTEMS_MAX];
	struct set_rig r;
	uint8_t other;

	set_rig_begin(&r, 1, 2, 64 * MiB);
	expect_int(set_rig_open(&r), 0);
	expect_int(set_subsys_create(r.set, "nqn.x:one", &r.subsys, r.why), 0);
	expect_int(set_subsys_create(r.set, "nqn.x:two", &other, r.why), 0);
	expect_int(set_subsys_create(r.set, "nqn.x:two", &other, r.why), -EEXIST);
	a = (struct set_ns){.kind = SET_KV, .subsys = r.subsys, .cap_bytes = 20 * MiB,
			    .evict = true, .value_bytes_max = 512 * KiB};
	expect_int(set_ns_create(r.set, &a, r.why), 0);
	b = (struct set_ns){.kind = SET_BLOCK, .subsys = r.subsys, .bytes = 16 * MiB,
			    .block_bytes = 4096};
	expect_int(set_ns_create(r.set, &b, r.why), 0);
	expect(a.nsid == 1 && b.nsid == 2 && a.id != b.id && a.shards >= 1);
	expect(a.cap_bytes <= 20 * MiB && a.cap_bytes > 20 * MiB - 64 * KiB);
	expect(b.cap_bytes >= 16 * MiB);
	expect(memcmp(a.uuid, b.uuid, 16) != 0);
	b.nsid = 2;
	expect_int(set_ns_create(r.set, &b, r.why), -EEXIST);
	b.subsys = 7;
	expect_int(set_ns_create(r.set, &b, r.why), -ENOENT);
	set_rig_close(&r);
	expect_int(set_rig_open(&r), 0);
	expect_int(set_ns_list(r.set, ns), 2);
	expect_mem(ns[0].uuid, a.uuid, 16);
	expect(ns[0].id == a.id && ns[0].cap_bytes == a.cap_bytes && ns[0].evict);
	expect(ns[1].kind == SET_BLOCK && ns[1].bytes == 16 * MiB && ns[1].block_bytes == 4096);
	expect_int(set_subsys_list(r.set, sub), 2);
	expect_str(sub[1].nqn, "nqn.x:two");
	expect_int(set_subsys_remove(r.set, r.subsys, r.why), -EBUSY);
	expect_int(set_ns_remove(r.set, a.id, r.why), 0);
	expect_int(set_ns_remove(r.set, a.id, r.why), -ENOENT);
	expect_int(set_ns_remove(r.set, b.id, r.why), 0);
	expect_int(set_subsys_remove(r.set, r.subsys, r.why), 0);
	expect_int(set_ns_list(r.set, ns), 0);
	set_rig_end(&r);
}

TEST(what_a_removed_namespace_held_is_not_seen_by_the_next_in_its_place)
{
	struct set_rig r;
	uint32_t first, second;
	uint64_t free_bytes, slabs, bytes;
	uint8_t *medium, *kept;

	set_rig_begin(&r, 1, 1, 32 * MiB);
	expect_int(set_rig_open(&r), 0);
	free_bytes = set_free_bytes(r.set);
	first = set_rig_kv(&r, 0);
	expect(set_free_bytes(r.set) < free_bytes / 10);
	expect_int(set_rig_store(&r, first, 0), 0);
	for (uint32_t i = 0; i < 40; i++)
		expect_int(rig_put(&r.g, i, 1, 100000), 0);
	rig_close(&r.g);
	slabs = r.set->drive[0]->label.slabs_block * 4096;
	bytes = r.set->drive[0]->label.slab_count * r.set->drive[0]->label.slab_bytes;
	medium = sim_disk_bytes("drive0", NULL) + slabs;
	kept = malloc(bytes);
	memcpy(kept, medium, bytes);
	expect_int(set_ns_remove(r.set, first, r.why), 0);
	expect_int(set_free_bytes(r.set), free_bytes);
	memcpy(medium, kept, bytes);                 /* a drive need not forget */
	free(kept);
	second = set_rig_kv(&r, 0);
	expect(second != first);
	for (unsigned round = 0; round < 2; round++) {
		expect_int(set_rig_store(&r, second, 0), 0);
		expect_int(rig_stat(&r.g).keys, 0);
		rig_close(&r.g);
		set_rig_close(&r);
		expect_int(set_rig_open(&r), 0);
	}
	set_rig_end(&r);
}

TEST(a_size_that_is_not_free_is_refused_with_what_is)
{
	struct set_ns ns;
	struct set_rig r;

	set_rig_begin(&r, 1, 2, 32 * MiB);
	expect_int(set_rig_open(&r), 0);
	set_rig_kv(&r, 40 * MiB);
	ns = (struct set_ns){.kind = SET_KV, .subsys = r.subsys, .cap_bytes = 40 * MiB};
	expect_int(set_ns_create(r.set, &ns, r.why), -ENOSPC);
	expect(strstr(r.why, "free") != NULL);
	ns = (struct set_ns){.kind = SET_BLOCK, .subsys = r.subsys, .bytes = 40 * MiB,
			     .block_bytes = 512};
	expect_int(set_ns_create(r.set, &ns, r.why), -ENOSPC);
	ns = (struct set_ns){.kind = SET_KV, .subsys = r.subsys, .cap_bytes = MiB,
			     .value_bytes_max = MiB};
	expect_int(set_ns_create(r.set, &ns, r.why), -EINVAL);
	expect(strstr(r.why, "too small") != NULL);
	set_rig_end(&r);
}

TEST(hosts_of_a_subsystem_are_kept_and_go_with_it)
{
	static const char *const two[] = {"nqn.x:h1", "nqn.x:h2"}, *const one[] = {"nqn.x:h2"};
	static char many[SET_HOSTS_MAX + 1][24], out[SET_HOSTS_MAX][SET_NQN_BYTES];
	const char *name[SET_HOSTS_MAX + 1];
	struct set_rig r;
	uint8_t a, b;

	set_rig_begin(&r, 1, 1, 16 * MiB);
	expect_int(set_rig_open(&r), 0);
	expect_int(set_subsys_create(r.set, "nqn.x:a", &a, r.why), 0);
	expect_int(set_subsys_create(r.set, "nqn.x:b", &b, r.why), 0);
	expect_int(set_subsys_hosts(r.set, a, two, 2, r.why), 0);
	expect_int(set_subsys_hosts(r.set, b, one, 1, r.why), 0);
	set_rig_close(&r);
	expect_int(set_rig_open(&r), 0);
	expect_int(set_subsys_hosts_list(r.set, a, out), 2);
	expect_int(set_subsys_hosts_list(r.set, b, out), 1);
	expect_str(out[0], "nqn.x:h2");
	for (unsigned i = 0; i <= SET_HOSTS_MAX; i++) {
		snprintf(many[i], sizeof(many[i]), "nqn.y:%u", i);
		name[i] = many[i];
	}
	expect_int(set_subsys_hosts(r.set, b, name, SET_HOSTS_MAX, r.why), -ENOSPC);
	expect_int(set_subsys_hosts_list(r.set, b, out), 1);
	expect_int(set_subsys_hosts(r.set, 5, one, 1, r.why), -ENOENT);
	expect_int(set_subsys_remove(r.set, a, r.why), 0);
	expect_int(set_subsys_create(r.set, "nqn.x:c", &a, r.why), 0);
	expect_int(set_subsys_hosts_list(r.set, a, out), 0);
	set_rig_end(&r);
}

TEST(a_size_too_small_for_its_drives_and_too_large_for_one_says_so)
{
	struct set_ns ns = {.kind = SET_KV, .cap_bytes = 40 * MiB, .value_bytes_max = 6 * MiB};
	struct set_rig r;

	set_rig_begin(&r, 1, 2, 32 * MiB);
	expect_int(set_rig_open(&r), 0);
	expect_int(set_subsys_create(r.set, "nqn.x:a", &ns.subsys, r.why), 0);
	expect_int(set_ns_create(r.set, &ns, r.why), -ENOSPC);
	expect(strstr(r.why, "too small for 2 drives") != NULL);
	set_rig_end(&r);
}

/* --- what is refused -------------------- */

static void refused(struct set_rig *r, int rc, const char *word)
{
	expect_int(set_rig_open(r), rc);
	expect(r->set == NULL);
	if (strstr(r->report.text, word) == NULL)
		fail_msg("\"%s\" does not say \"%s\"", r->report.text, word);
}

static void made(struct set_rig *r, unsigned drives)
{
	set_rig_begin(r, 1, drives, 32 * MiB);
	expect_int(set_rig_open(r), 0);
	set_rig_kv(r, 0);
	set_rig_close(r);
}

TEST(a_missing_drive_is_refused_unless_degraded_and_takes_part_when_it_is_back)
{
	struct set_rig r;
	uint32_t id;

	set_rig_begin(&r, 1, 2, 32 * MiB);
	expect_int(set_rig_open(&r), 0);
	id = set_rig_kv(&r, 0);
	expect_int(set_rig_store(&r, id, 0), 0);
	for (uint32_t i = 0; i < 20; i++)
		expect_int(rig_put(&r.g, i, 1, 5000), 0);
	rig_close(&r.g);
	set_rig_close(&r);
	r.opts.drive[1].path = "elsewhere";
	r.opts.drive[1].bytes = 0;
	refused(&r, -ENOENT, "elsewhere: missing");
	r.opts.drive_count = 1;
	refused(&r, -ENOENT, "belongs to a store of 2 drives");
	r.opts.drive_count = 2;
	r.opts.degraded = true;
	expect_int(set_rig_open(&r), 0);
	expect_int(set_rig_store(&r, id, 0), 0);
	expect_int(rig_stat(&r.g).drives_failed, 1);
	for (uint32_t i = 0; i < 20; i++)
		expect_int(rig_put(&r.g, i, 2, 5000), 0);
	rig_close(&r.g);
	set_rig_close(&r);
	r.opts.drive[1].path = r.g.path[1];
	r.opts.degraded = false;
	expect_int(set_rig_open(&r), 0);
	expect_int(set_rig_store(&r, id, 0), 0);
	for (uint32_t i = 0; i < 20; i++)
		expect_int(rig_get(&r.g, i, 2, 5000), 0);
	rig_close(&r.g);
	set_rig_end(&r);
}

TEST(the_same_drive_twice_and_a_second_opener_are_refused)
{
	struct set_opts twice;
	struct set *other = NULL;
	struct store_report report;
	struct set_rig r;

	made(&r, 1);
	expect_int(set_rig_open(&r), 0);
	expect_int(set_open(&r.opts, r.g.loop, &other, &report), -EBUSY);
	expect(other == NULL && strstr(report.text, "in use") != NULL);
	set_rig_close(&r);
	twice = r.opts;
	twice.drive[1] = twice.drive[0];
	twice.drive_count = 2;
	expect_int(set_open(&twice, r.g.loop, &other, &report), -EINVAL);
	expect(strstr(report.text, "given twice") != NULL);
	set_rig_end(&r);
}

TEST(foreign_newer_and_damaged_drives_are_refused_unless_formatted)
{
	struct set_rig r;
	uint64_t bytes;
	uint8_t *medium, old[4096];

	made(&r, 1);
	medium = sim_disk_bytes("drive0", &bytes);
	memcpy(old, medium, sizeof(old));
	medium[bytes - 4096 + 100] ^= 1;
	expect_int(set_rig_open(&r), 0);             /* either label is enough */
	set_rig_close(&r);
	expect_mem(medium + bytes - 4096 + 128, old + 128, 128);
	medium[100] ^= 1;
	medium[bytes - 4096 + 100] ^= 1;
	refused(&r, -EPROTO, "drive0: both superblocks are damaged");
	medium[100] ^= 1;
	medium[12] = medium[bytes - 4096 + 12] = 3;
	refused(&r, -EPROTO, "drive0: superblock version is newer");
	memset(medium, 0, 4096);
	memset(medium + bytes - 4096, 0, 4096);
	refused(&r, -EPROTO, "drive0: holds data that is not kvof's");
	r.opts.format = true;
	expect_int(set_rig_open(&r), 0);
	expect(set_was_made(r.set));
	set_rig_close(&r);
	r.opts.format = false;
	expect_int(set_rig_open(&r), 0);
	set_rig_end(&r);
}

TEST(any_one_catalog_is_enough_and_without_all_four_the_drive_is_refused)
{
	struct label l;
	struct set_rig r;
	struct set_ns ns[SET_NAMESPACES_MAX];
	uint64_t bytes;
	uint32_t version;
	uint8_t *medium;

	made(&r, 2);
	medium = sim_disk_bytes("drive0", &bytes);
	expect_int(label_check(medium, 0, &l, &version), FMT_SUPER_OK);
	for (unsigned keep = 0; keep < 2; keep++) {
		for (unsigned slot = 0; slot < 4; slot++) {
			if (slot / 2 != keep)
				memset(medium + label_slot_block(&l, slot / 2, slot % 2) * 4096, 7,
				       4096);
		}
		expect_int(set_rig_open(&r), 0);
		expect_int(set_ns_list(r.set, ns), 1);
		set_rig_close(&r);
	}
	for (unsigned slot = 0; slot < 4; slot++)
		medium[label_slot_block(&l, slot / 2, slot % 2) * 4096 + 300] ^= 1;
	refused(&r, -EPROTO, "drive0: all of its catalogs are damaged");
	r.opts.degraded = true;
	expect_int(set_rig_open(&r), 0);
	expect_int(set_ns_list(r.set, ns), 1);
	set_rig_end(&r);
}

TEST(drives_of_two_sets_are_refused_and_drives_in_another_order_are_not)
{
	struct set_rig r;
	struct store_drive first;

	made(&r, 2);
	first = r.opts.drive[0];
	r.opts.drive[0] = r.opts.drive[1];
	r.opts.drive[1] = first;
	expect_int(set_rig_open(&r), 0);
	set_rig_close(&r);
	r.opts.drive[0] = (struct store_drive){.path = "x0", .bytes = 32 * MiB};
	r.opts.drive[1] = (struct store_drive){.path = "x1", .bytes = 32 * MiB};
	expect_int(set_rig_open(&r), 0);
	set_rig_close(&r);
	r.opts.drive[1] = first;
	refused(&r, -EINVAL, "of another set than");
	r.opts.drive[0] = (struct store_drive){.path = "x2", .bytes = 32 * MiB};
	refused(&r, -EINVAL, "x2: blank");
	set_rig_end(&r);
}

TEST(a_blank_drive_takes_a_lost_ones_place_and_the_old_one_is_not_believed_again)
{
	struct set_rig r;
	uint32_t id;

	set_rig_begin(&r, 1, 2, 32 * MiB);
	expect_int(set_rig_open(&r), 0);
	id = set_rig_kv(&r, 0);
	expect_int(set_rig_store(&r, id, 0), 0);
	for (uint32_t i = 0; i < 20; i++)
		expect_int(rig_put(&r.g, i, 1, 5000), 0);
	rig_close(&r.g);
	set_rig_close(&r);
	r.opts.drive[1] = (struct store_drive){.path = "fresh", .bytes = 32 * MiB};
	refused(&r, -EINVAL, "--replace");
	r.opts.replace = true;
	expect_int(set_rig_open(&r), 0);
	expect_int(set_rig_store(&r, id, 0), 0);
	expect_int(rig_stat(&r.g).drives_failed, 0);
	for (uint32_t i = 0; i < 20; i++) {
		int rc = rig_get(&r.g, i, 1, 5000);

		expect(rc == 0 || rc == -ENOENT);
		expect_int(rig_put(&r.g, i, 2, 5000), 0);
	}
	rig_close(&r.g);
	set_rig_close(&r);
	r.opts.replace = false;
	expect_int(set_rig_open(&r), 0);
	set_rig_close(&r);
	r.opts.drive[1] = (struct store_drive){.path = r.g.path[1], .bytes = 0};
	refused(&r, -EPROTO, "given to another");
	r.opts.degraded = true;
	expect_int(set_rig_open(&r), 0);
	expect_int(set_rig_store(&r, id, 0), 0);
	expect_int(rig_stat(&r.g).drives_failed, 1);
	for (uint32_t i = 0; i < 20; i++) {
		int rc = rig_get(&r.g, i, 2, 5000);

		expect(rc == 0 || rc == -ENOENT);
	}
	rig_close(&r.g);
	set_rig_end(&r);
}

TEST(drives_that_were_used_apart_are_not_mixed)
{
	struct set_rig r;

	made(&r, 2);
	r.opts.degraded = true;
	for (unsigned i = 0; i < 2; i++) {
		struct store_drive away = r.opts.drive[1 - i];

		r.opts.drive[1 - i] = (struct store_drive){.path = "away", .bytes = 0};
		expect_int(set_rig_open(&r), 0);
		expect_int(set_subsys_create(r.set, i == 0 ? "nqn.x:a" : "nqn.x:b", &r.subsys,
					     r.why), 0);
		set_rig_close(&r);
		r.opts.drive[1 - i] = away;
	}
	r.opts.degraded = false;
	refused(&r, -EPROTO, "used apart");
	set_rig_end(&r);
}

/* The truth is on the drives that were there. One that was not, opened alone, can't know it: it
 * shows what it had, and is not mixed with those that know better. */
TEST(a_drive_that_was_away_while_a_namespace_went_knows_it_from_the_others)
{
	struct set_ns ns[SET_NAMESPACES_MAX];
	struct set_rig r;

	for (unsigned alone = 0; alone < 2; alone++) {
		struct store_drive drive[2];

		made(&r, 2);
		memcpy(drive, r.opts.drive, sizeof(drive));
		r.opts.degraded = true;
		r.opts.drive[0] = (struct store_drive){.path = "away", .bytes = 0};
		expect_int(set_rig_open(&r), 0);
		expect_int(set_ns_list(r.set, ns), 1);
		expect_int(set_ns_remove(r.set, ns[0].id, r.why), 0);
		expect_int(set_ns_list(r.set, ns), 0);
		set_rig_close(&r);
		memcpy(r.opts.drive, drive, sizeof(drive));
		if (alone == 1) {
			r.opts.drive[1] = (struct store_drive){.path = "away", .bytes = 0};
			expect_int(set_rig_open(&r), 0);
			expect_int(set_ns_list(r.set, ns), 1);
			set_rig_close(&r);
			memcpy(r.opts.drive, drive, sizeof(drive));
		}
		r.opts.degraded = false;
		expect_int(set_rig_open(&r), 0);
		expect_int(set_ns_list(r.set, ns), 0);
		set_rig_end(&r);
	}
}

TEST(a_look_writes_nothing)
{
	struct set_ns ns[SET_NAMESPACES_MAX];
	struct set_rig r;
	uint64_t writes, bytes;

	set_rig_begin(&r, 1, 2, 32 * MiB);
	r.opts.look = true;
	refused(&r, -EPROTO, "blank");
	r.opts.look = false;
	expect_int(set_rig_open(&r), 0);
	set_rig_kv(&r, 0);
	set_rig_close(&r);
	sim_disk_bytes("drive1", &bytes)[bytes - 4096 + 40] ^= 1;
	writes = sim_writes();
	r.opts.look = true;
	expect_int(set_rig_open(&r), 0);
	expect_int(set_ns_list(r.set, ns), 1);
	set_rig_close(&r);
	expect_int(sim_writes(), writes);
	set_rig_end(&r);
}

/* --- version 1 -------------------- */

TEST(a_store_over_whole_drives_is_shown_as_one_namespace_that_takes_no_other)
{
	struct set_ns ns[SET_NAMESPACES_MAX], more = {.kind = SET_KV};
	struct set_subsys sub[SET_SUBSYSTEMS_MAX];
	struct set_rig r;

	set_rig_begin(&r, 1, 2, 16 * MiB);
	expect_int(rig_open(&r.g), 0);
	expect_int(rig_put(&r.g, 1, 1, 9000), 0);
	rig_close(&r.g);
	expect_int(set_rig_open(&r), 0);
	expect_int(set_shards(r.set), 1);
	expect(!set_was_made(r.set));
	expect_int(set_ns_list(r.set, ns), 1);
	expect(ns[0].id == 0 && ns[0].nsid == 1 && ns[0].kind == SET_KV && ns[0].shards == 1);
	expect_int(set_subsys_list(r.set, sub), 1);
	expect_int(set_ns_create(r.set, &more, r.why), -EPROTO);
	expect(strstr(r.why, "version 1") != NULL);
	expect_int(set_ns_remove(r.set, 0, r.why), -EPROTO);
	expect_int(set_rig_store(&r, 0, 0), 0);
	expect_int(rig_get(&r.g, 1, 1, 9000), 0);
	rig_close(&r.g);
	set_rig_close(&r);
	r.opts.drive[1] = (struct store_drive){.path = "x"};
	refused(&r, -ENOENT, "x");
	r.opts.drive[1].path = r.g.path[1];
	r.opts.format = true;
	expect_int(set_rig_open(&r), 0);
	expect(set_was_made(r.set));
	set_rig_end(&r);
}

/* A flush that fails once leaves its drive without the catalog. */
TEST(a_replacement_that_fails_on_the_way_can_be_tried_again)
{
	unsigned failed = 0, good = 0;

	for (uint64_t n = 1; n < 160; n++) {
		struct set_rig r;
		uint64_t hits;
		uint32_t id;
		int rc;

		set_rig_begin(&r, n, 2, 32 * MiB);
		expect_int(set_rig_open(&r), 0);
		id = set_rig_kv(&r, 0);
		set_rig_close(&r);
		r.opts.drive[1] = (struct store_drive){.path = "fresh", .bytes = 32 * MiB};
		r.opts.replace = true;
		hits = sim_fault_hits(SIM_DISK_FLUSH_EIO);
		sim_fault_at(SIM_DISK_FLUSH_EIO, 1 + n % 16);
		rc = set_rig_open(&r);
		hits = sim_fault_hits(SIM_DISK_FLUSH_EIO) - hits;
		failed += rc != 0;
		good += rc == 0;
		if (rc == 0)
			set_forget(&r.set);
		rig_crash(&r.g, false);              /* and the power goes */
		if (hits == 0)
			sim_fault_at(SIM_DISK_FLUSH_EIO, UINT32_MAX);
		rc = set_rig_open(&r);
		if (rc != 0)
			fail_msg("flush %u: %s", (unsigned)n, r.report.text);
		expect_int(set_rig_store(&r, id, 0), 0);
		expect_int(rig_stat(&r.g).drives_failed, 0);
		set_rig_end(&r);
	}
	expect(failed > 2 && good > 2);
}

TEST(what_to_do_about_a_damaged_drive_loses_nothing_of_the_others)
{
	struct set_rig r;
	uint64_t bytes;
	uint8_t *medium;

	made(&r, 2);
	medium = sim_disk_bytes("drive1", &bytes);
	medium[100] ^= 1;
	medium[bytes - 4096 + 100] ^= 1;
	refused(&r, -EPROTO, "--degraded");
	expect(strstr(r.report.text, "format") == NULL);
	r.opts.degraded = true;
	expect_int(set_rig_open(&r), 0);
	set_rig_end(&r);
}

static bool never(void *arg)
{
	return false;
}

/* A drive hangs with writes of a namespace in flight, which is removed; then it goes on. */
TEST(what_a_hung_drive_still_writes_of_a_removed_namespace_hits_no_other)
{
	struct rig_op op[6];
	struct store *kept;
	struct set_rig r;
	uint32_t first, second;

	set_rig_begin(&r, 3, 2, 32 * MiB);
	r.g.opts.pool = NULL;
	expect_int(set_rig_open(&r), 0);
	first = set_rig_kv(&r, 0);
	expect_int(set_rig_store(&r, first, 0), 0);
	for (uint32_t i = 0; i < 20; i++)
		expect_int(rig_put(&r.g, i, 1, 100000), 0);
	sim_disk_mode("drive0", SIM_DISK_HANGS);
	for (uint32_t i = 0; i < ARRAY_COUNT(op); i++)
		expect(rig_put_start(&r.g, &op[i], 100 + i, 1, 100000, STORE_PUT_ANY));
	for (uint32_t i = 0; i < ARRAY_COUNT(op); i++) {
		expect(rig_wait(&op[i].done));       /* on the other, once the drive is given up */
		expect_int(op[i].res, 0);
		store_buf_give(r.g.st, &op[i].buf);
	}
	expect_int(rig_stat(&r.g).drives_failed, 1);
	kept = r.g.st;
	rig_close(&r.g);                             /* its memory stays: I/O is under way */
	expect(set_busy_drive(r.set) != NULL);
	sim_disk_mode("drive0", SIM_DISK_WELL);      /* its writes are on their way again */
	expect_int(set_ns_remove(r.set, first, r.why), 0);
	expect_int(set_ns_remove(r.set, first, r.why), -ENOENT);
	second = set_rig_kv(&r, 0);
	expect(second != first);
	expect_int(r.set->catalog.ns[0].part_bytes[0], 0);
	expect_int(set_rig_store(&r, second, 0), 0);
	for (uint32_t i = 0; i < 20; i++)
		expect_int(rig_put(&r.g, i, 2, 100000), 0);
	expect(!sim_run_until(never, NULL, NS_PER_S));
	for (uint32_t i = 0; i < 20; i++)
		expect_int(rig_get(&r.g, i, 2, 100000), 0);
	rig_close(&r.g);
	set_forget(&r.set);
	rig_crash(&r.g, true);
	store_forget(&kept);
	/* At the next start the drive is as good as any, and has nothing of either. */
	expect_int(set_rig_open(&r), 0);
	expect_int(set_ns_list(r.set, (struct set_ns[SET_NAMESPACES_MAX]){{0}}), 1);
	expect_int(set_rig_store(&r, second, 0), 0);
	for (uint32_t i = 0; i < 20; i++)
		expect_int(rig_get(&r.g, i, 2, 100000), 0);
	set_rig_end(&r);
}
