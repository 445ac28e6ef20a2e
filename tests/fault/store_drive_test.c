/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whole drives that are lost, come back or are replaced: what it costs is the share of that drive
 * and no more, what it held is never seen again, and the others go on, while serving and at the
 * next start.
 */
#include "store_rig.h"

#include <errno.h>

#define DRIVES 4u
#define KEYS 400u

static unsigned drive_of(struct rig *g, uint32_t key)
{
	struct kv_key k = rig_key(key);

	return index_place(g->st->index, index_find(g->st->index, &k)).drive;
}

static void filled(struct rig *g, uint64_t seed)
{
	rig_begin(g, seed, DRIVES, 16 * MiB);
	expect_int(rig_open(g), 0);
	for (uint32_t i = 0; i < KEYS; i++)
		expect_int(rig_put(g, i, 1, 20000 + i), 0);
	expect_int(rig_flush(g), 0);
}

static unsigned hits(struct rig *g, uint32_t version)
{
	unsigned n = 0;

	for (uint32_t i = 0; i < KEYS; i++) {
		int rc = rig_get(g, i, version, 20000 + i);

		expect(rc == 0 || rc == -ENOENT || rc == -EIO);
		n += rc == 0;
	}
	return n;
}

/* One in N, give or take a fifth of that. */
static void expect_share_lost(unsigned left)
{
	unsigned lost = KEYS - left, share = KEYS / DRIVES;

	printf("# %u of %u values lost with one of %u drives\n", lost, KEYS, DRIVES);
	expect(lost >= share - share / 5 && lost <= share + share / 5);
}

TEST(a_drive_that_dies_while_serving_costs_its_share_of_the_hits_and_no_more)
{
	for (unsigned dead = 0; dead < DRIVES; dead++) {
		struct rig g;

		filled(&g, dead + 1);
		expect_int(hits(&g, 1), KEYS);
		sim_disk_mode(g.path[dead], SIM_DISK_GONE);
		expect_share_lost(hits(&g, 1));
		/* New values find room, all of them, and stay. */
		for (uint32_t i = 0; i < KEYS; i++)
			expect_int(rig_put(&g, i, 2, 20000 + i), 0);
		expect_int(hits(&g, 2), KEYS);
		expect_int(rig_stat(&g).drives_failed, 1);
		rig_end(&g);
	}
}

TEST(a_drive_missing_at_start_is_refused_and_degraded_costs_its_share_and_no_more)
{
	for (unsigned how = 0; how < 3; how++) {
		struct rig g;
		uint64_t bytes;

		filled(&g, 10 + how);
		rig_close(&g);
		if (how == 0) {
			sim_disk_mode("drive2", SIM_DISK_GONE);
		} else if (how == 1) {
			g.opts.drive[2] = (struct store_drive){.path = "elsewhere"};
		} else {
			sim_disk_rot("drive2", 0, 4096);
			(void)sim_disk_bytes("drive2", &bytes);
			sim_disk_rot("drive2", bytes - 4096, 4096);
		}
		expect(rig_open(&g) != 0);
		expect(strstr(g.report.text, how == 1 ? "elsewhere" : "drive2") != NULL);
		g.opts.degraded = true;
		expect_int(rig_open(&g), 0);
		expect_int(rig_stat(&g).drives_failed, 1);
		expect_share_lost(hits(&g, 1));
		for (uint32_t i = 0; i < KEYS; i++)
			expect_int(rig_put(&g, i, 2, 20000 + i), 0);
		expect_int(hits(&g, 2), KEYS);
		rig_end(&g);
	}
}

TEST(a_drive_that_is_well_again_after_it_was_given_up_disturbs_nobody)
{
	struct rig g;
	unsigned old[KEYS], left;

	filled(&g, 20);
	for (uint32_t i = 0; i < KEYS; i++)
		old[i] = drive_of(&g, i);
	sim_disk_mode("drive1", SIM_DISK_GONE);
	left = hits(&g, 1);
	expect_share_lost(left);
	expect_int(rig_stat(&g).drives_failed, 1);
	sim_disk_mode("drive1", SIM_DISK_WELL);
	expect_int(hits(&g, 1), left);
	for (uint32_t i = 0; i < KEYS; i += 2)
		expect_int(rig_delete(&g, i), old[i] == 1 ? -ENOENT : 0);
	for (unsigned round = 0; round < 3; round++) {
		if (round == 1)
			rig_close(&g);
		else
			rig_crash(&g, round == 0);
		expect_int(rig_open(&g), 0);
		expect_int(rig_stat(&g).drives_failed, 0);
		for (uint32_t i = 0; i < KEYS; i++)
			expect_int(rig_get(&g, i, 1, 20000 + i),
				   old[i] != 1 && i % 2 == 1 ? 0 : -ENOENT);
	}
	/* It serves again. */
	for (uint32_t i = 0; i < KEYS; i++)
		expect_int(rig_put(&g, i, 3, 20000 + i), 0);
	expect(g.st->drive[1].placed_bytes > 0);
	expect_int(hits(&g, 3), KEYS);
	rig_end(&g);
}

TEST(a_blank_drive_takes_the_place_of_a_dead_one_and_the_others_keep_their_values)
{
	struct rig g;
	unsigned old[KEYS];

	filled(&g, 30);
	for (uint32_t i = 0; i < KEYS; i++)
		old[i] = drive_of(&g, i);
	rig_close(&g);
	g.opts.drive[1] = (struct store_drive){.path = "new", .bytes = 24 * MiB};
	expect_int(rig_open(&g), -EINVAL);
	expect(strstr(g.report.text, "new: blank") != NULL);
	g.opts.replace = true;
	expect_int(rig_open(&g), 0);
	for (uint32_t i = 0; i < KEYS; i++)
		expect_int(rig_get(&g, i, 1, 20000 + i), old[i] == 1 ? -ENOENT : 0);
	for (uint32_t i = 0; i < KEYS; i++)
		expect_int(rig_put(&g, 1000 + i, 1, 20000), 0);
	expect(g.st->drive[1].placed_bytes > 0);
	expect_str(g.st->drive[1].path, "new");
	for (uint32_t i = 0; i < KEYS; i += 2)
		(void)rig_delete(&g, i);
	/* From now on it is one of the set. */
	g.opts.replace = false;
	for (unsigned how = 0; how < 2; how++) {
		rig_crash(&g, how == 0);
		expect_int(rig_open(&g), 0);
		for (uint32_t i = 0; i < KEYS; i++) {
			expect_int(rig_get(&g, i, 1, 20000 + i),
				   old[i] != 1 && i % 2 == 1 ? 0 : -ENOENT);
			expect_int(rig_get(&g, 1000 + i, 1, 20000), 0);
		}
		expect_int(rig_flush(&g), 0);
	}
	/* The old one, put back in its place, is not believed; beside the new one it is refused. */
	rig_close(&g);
	g.opts.drive[1] = (struct store_drive){.path = "drive1"};
	g.opts.drive[2] = (struct store_drive){.path = "new"};
	expect_int(rig_open(&g), -EINVAL);
	expect(strstr(g.report.text, "is drive 1 of its set, and so is") != NULL);
	g.opts.drive[2] = (struct store_drive){.path = "drive2"};
	expect_int(rig_open(&g), 0);
	for (uint32_t i = 0; i < KEYS; i++)
		expect_int(rig_get(&g, i, 1, 20000 + i),
			   old[i] != 1 && i % 2 == 1 ? 0 : -ENOENT);
	rig_end(&g);
}

TEST(a_blank_drive_is_not_taken_in_while_it_is_not_known_for_which)
{
	struct rig g;

	filled(&g, 40);
	rig_close(&g);
	g.opts.drive[1] = (struct store_drive){.path = "new", .bytes = 16 * MiB};
	g.opts.drive[2] = (struct store_drive){.path = "gone"};
	g.opts.replace = g.opts.degraded = true;
	expect_int(rig_open(&g), -ENOENT);
	expect(strstr(g.report.text, "whose place") != NULL);
	g.opts.drive[2] = (struct store_drive){.path = "new2", .bytes = 16 * MiB};
	expect_int(rig_open(&g), 0);
	expect(hits(&g, 1) >= KEYS / 3);
	rig_end(&g);
}

TEST(a_crash_at_any_write_of_taking_a_drive_in_loses_nothing_of_the_others)
{
	bool crashed = true;

	for (uint64_t n = 1; crashed; n++) {
		for (unsigned old_back = 0; old_back < 2; old_back++) {
			struct rig g;
			unsigned old[40];

			rig_begin(&g, 50 + n, 3, 8 * MiB);
			expect_int(rig_open(&g), 0);
			for (uint32_t i = 0; i < 40; i++)
				expect_int(rig_put(&g, i, 1, 20000), 0);
			for (uint32_t i = 0; i < 40; i++)
				old[i] = drive_of(&g, i);
			sim_disk_mode("drive0", SIM_DISK_GONE);
			for (uint32_t i = 0; i < 40; i++)
				expect_int(rig_delete(&g, i) == 0, old[i] != 0);
			for (uint32_t i = 0; i < 40; i++)
				expect_int(rig_put(&g, 100 + i, 1, 20000), 0);
			rig_close(&g);
			sim_disk_mode("drive0", SIM_DISK_WELL);
			g.opts.drive[0] = (struct store_drive){.path = "new", .bytes = 8 * MiB};
			g.opts.replace = true;
			sim_crash_at_write(n);
			(void)rig_open(&g);
			crashed = sim_crashed() != NULL;
			sim_crash_at_write(0);
			if (crashed) {
				rig_crash(&g, n % 2 == 0);
				if (old_back == 1)
					g.opts.drive[0] = (struct store_drive){.path = "drive0"};
				expect_int(rig_open(&g), 0);
			}
			for (uint32_t i = 0; i < 40; i++) {
				int rc = rig_get(&g, i, 1, 20000);

				if (rc != -ENOENT)
					fail_msg("write %u, old %u: key %u of drive %u: %d",
						 (unsigned)n, old_back, i, old[i], rc);
				expect_int(rig_get(&g, 100 + i, 1, 20000), 0);
			}
			rig_end(&g);
		}
	}
}

/* --- a file with holes on a file system that is full -------------------- */

TEST(a_drive_without_space_below_its_cap_sends_values_elsewhere_and_refuses_none)
{
	struct rig g;
	unsigned on[DRIVES] = {0};

	rig_begin(&g, 60, DRIVES, 16 * MiB);
	expect_int(rig_open(&g), 0);
	for (uint32_t i = 0; i < 40; i++)
		expect_int(rig_put(&g, i, 1, 20000), 0);
	sim_disk_space("drive1", 2 * MiB);
	sim_disk_space("drive3", 0);
	for (uint32_t i = 40; i < 1000; i++)
		expect_int(rig_put(&g, i, 1, 20000), 0);
	expect(sim_fault_hits(SIM_DISK_ENOSPC) > 0);
	for (uint32_t i = 0; i < 1000; i++) {
		expect_int(rig_get(&g, i, 1, 20000), 0);
		on[drive_of(&g, i)]++;
	}
	printf("# values on the drives: %u %u %u %u\n", on[0], on[1], on[2], on[3]);
	expect(on[0] > 300 && on[2] > 300);
	expect_int(rig_stat(&g).drives_failed, 0);
	expect_int(rig_stat(&g).no_space, 0);
	/* Overwrites stay where they are, and the drive makes room for them. */
	for (uint32_t i = 0; i < 1000; i++)
		expect_int(rig_put(&g, i, 2, 20000), 0);
	rig_crash(&g, true);
	expect_int(rig_open(&g), 0);
	for (uint32_t i = 0; i < 1000; i++) {
		int rc = rig_get(&g, i, 2, 20000);

		expect(rc == 0 || rc == -ENOENT);
	}
	rig_end(&g);
}

static bool never(void *arg)
{
	(void)arg;
	return false;
}

TEST(drives_that_share_a_full_file_system_evict_below_their_cap_and_refuse_none)
{
	struct rig g;
	unsigned there = 0;

	rig_begin(&g, 61, 2, 32 * MiB);
	expect_int(rig_open(&g), 0);
	sim_disk_space("drive0", 8 * MiB);
	sim_disk_space("drive1", 8 * MiB);
	for (uint32_t i = 0; i < 3000; i++)
		expect_int(rig_put(&g, i, 1, 20000), 0);
	expect(sim_fault_hits(SIM_DISK_ENOSPC) > 0 && sim_fault_hits(SIM_DISK_ENOSPC) < 60);
	for (uint32_t i = 0; i < 3000; i++)
		there += rig_get(&g, i, 1, 20000) == 0;
	printf("# %u values of 24 KiB in 16 MiB, %llu times no space\n", there,
	       (unsigned long long)sim_fault_hits(SIM_DISK_ENOSPC));
	expect(there > 400);
	/* The file system has space again: after a while it is used. */
	sim_disk_space("drive0", UINT64_MAX);
	sim_disk_space("drive1", UINT64_MAX);
	expect(!sim_run_until(never, NULL, 6 * NS_PER_S));
	for (uint32_t i = 0; i < 3000; i++)
		expect_int(rig_put(&g, 5000 + i, 1, 20000), 0);
	there = 0;
	for (uint32_t i = 0; i < 3000; i++)
		there += rig_get(&g, 5000 + i, 1, 20000) == 0;
	printf("# %u\n", there);
	expect(there > 1800);
	rig_end(&g);
}

TEST(a_namespace_that_keeps_all_refuses_without_space_and_loses_nothing)
{
	struct rig g;
	uint32_t kept = 0;

	rig_begin(&g, 62, 2, 16 * MiB);
	g.opts.evict = false;
	expect_int(rig_open(&g), 0);
	sim_disk_space("drive0", 2 * MiB);
	while (rig_put(&g, kept, 1, 20000) == 0)
		kept++;
	expect(kept > 600);                          /* all of drive1, some of drive0 */
	for (uint32_t i = 0; i < kept; i++)
		expect_int(rig_get(&g, i, 1, 20000), 0);
	sim_disk_space("drive0", UINT64_MAX);
	rig_crash(&g, true);
	expect_int(rig_open(&g), 0);
	for (uint32_t i = 0; i < kept; i++)
		expect_int(rig_get(&g, i, 1, 20000), 0);
	expect_int(rig_put(&g, kept, 1, 20000), 0);
	rig_end(&g);
}
