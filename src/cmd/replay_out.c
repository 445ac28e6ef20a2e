/* SPDX-License-Identifier: Apache-2.0 */
/* What a replay tells: one JSON object, or a table. */
#include <stdio.h>

#include "base/must.h"
#include "cmd/cmd.h"
#include "cmd/replay.h"

static double percent(uint64_t part, uint64_t whole)
{
	return whole > 0 ? 100.0 * (double)part / (double)whole : 0;
}

/* --- JSON ------------------------------------------------------------------- */

static json_t *json_times(const struct replay_times *t)
{
	return json_pack("{s:f, s:f, s:f, s:f}", "p50", t->p50, "p90", t->p90, "p99", t->p99,
			 "mean", t->mean);
}

/* fixed_s and bytes_per_s of the line through the requests. */
static json_t *json_line(const struct replay_line *l, uint64_t block_bytes)
{
	double fixed_s, block_s;
	bool told = replay_line_fit(l, &fixed_s, &block_s);

	return json_pack("{s:I, s:I, s:f, s:o, s:o}", "requests", (json_int_t)l->requests,
		"blocks", (json_int_t)l->blocks, "seconds", l->seconds,
		"fixed_s", told ? json_real(fixed_s) : json_null(),
		"bytes_per_s", told && block_s > 0 ? json_real((double)block_bytes / block_s) :
						     json_null());
}

static json_t *json_tier(const struct replay_opts *o, const struct replay_result *r, unsigned i)
{
	const struct replay_tier_result *t = &r->tier[i];
	bool known = !t->written_unknown;
	json_t *written = known ? json_integer((json_int_t)t->written_bytes) : json_null();
	json_t *amplified = known ? json_real(r->saved_bytes > 0 ? (double)t->written_bytes /
					      (double)r->saved_bytes : 0.0) : json_null();

	return json_pack("{s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:o, s:o, s:I, s:I}",
		"name", replay_tier_names[i], "capacity_bytes", (json_int_t)o->tier_bytes[i],
		"capacity_blocks", (json_int_t)t->capacity_blocks,
		"used_blocks", (json_int_t)t->used_blocks,
		"hit_blocks", (json_int_t)t->hit_blocks, "hit_tokens", (json_int_t)t->hit_tokens,
		"evicted_blocks", (json_int_t)t->evicted_blocks,
		"promoted_blocks", (json_int_t)t->promoted_blocks,
		"refused_blocks", (json_int_t)t->refused_blocks,
		"read_bytes", (json_int_t)t->read_bytes,
		"written_bytes", written, "write_amplification", amplified,
		"touches", (json_int_t)t->touches, "device_bytes",
		(json_int_t)(r->real ? t->device_bytes : t->read_bytes));
}

static void json_tiers(json_t *object, const struct replay_opts *o, const struct replay_result *r)
{
	json_t *tiers = json_array();

	for (unsigned i = 0; i < REPLAY_TIERS; i++) {
		json_t *tier;

		if (!r->tier[i].present)
			continue;
		tier = json_tier(o, r, i);
		if (r->real)
			json_object_set_new(tier, "loads", json_line(&r->tier[i].loads,
								     o->block_bytes));
		json_array_append_new(tiers, tier);
	}
	json_object_set_new(object, "tiers", tiers);
	json_object_set_new(object, "block_bytes", json_integer((json_int_t)o->block_bytes));
	json_object_set_new(object, "saved_bytes", json_integer((json_int_t)r->saved_bytes));
	if (r->real) {
		json_object_set_new(object, "real", json_true());
		json_object_set_new(object, "verified_blocks",
				    json_integer((json_int_t)r->verified_blocks));
		json_object_set_new(object, "wrong_blocks",
				    json_integer((json_int_t)r->wrong_blocks));
		json_object_set_new(object, "unsaved_blocks",
				    json_integer((json_int_t)r->unsaved_blocks));
		json_object_set_new(object, "seconds", json_real(r->seconds));
		json_object_set_new(object, "load_s", json_real(r->load_s));
		json_object_set_new(object, "miss_s", json_real(r->miss_s));
		json_object_set_new(object, "misses", json_integer((json_int_t)r->misses));
		json_object_set_new(object, "save_s", json_real(r->save_s));
		json_object_set_new(object, "check_s", json_real(r->check_s));
		json_object_set_new(object, "saves", json_line(&r->saves, o->block_bytes));
	}
	if (!r->timed)
		return;
	json_object_set_new(object, "skipped_blocks", json_integer((json_int_t)r->skipped_blocks));
	json_object_set_new(object, "ttft_s", json_times(&r->with));
	json_object_set_new(object, "ttft_without_s", json_times(&r->without));
}

static int print_json(const struct replay_opts *o, const struct replay_result *r)
{
	json_t *object = json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:s, s:I}",
		"requests", (json_int_t)r->requests, "blocks", (json_int_t)r->blocks,
		"unique_blocks", (json_int_t)r->unique_blocks,
		"hit_blocks", (json_int_t)r->hit_blocks, "tokens", (json_int_t)r->tokens,
		"hit_tokens", (json_int_t)r->hit_tokens, "policy", o->policy,
		"block_tokens", (json_int_t)o->block_tokens);

	if (object != NULL && r->tiered) {
		json_tiers(object, o, r);
	} else if (object != NULL) {
		json_object_set_new(object, "capacity_blocks",
				    json_integer((json_int_t)r->tier[0].capacity_blocks));
		json_object_set_new(object, "touch", json_string(o->rev ? "rev" : "fwd"));
	}
	return cmd_json_print("replay", object, CMD_DONE);
}

/* --- the table ---------------------------------------------------------------- */

static void bytes_text(uint64_t bytes, char out[24])
{
	static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
	double value = (double)bytes;
	unsigned unit = 0;

	while (value >= 1024 && unit + 1 < ARRAY_COUNT(units)) {
		value /= 1024;
		unit++;
	}
	snprintf(out, 24, unit == 0 ? "%.0f %s" : "%.1f %s", value, units[unit]);
}

static void print_head(const struct replay_opts *o, const struct replay_result *r)
{
	printf("%llu requests, %llu blocks of %u tokens (%llu different), policy %s\n",
	       (unsigned long long)r->requests, (unsigned long long)r->blocks, o->block_tokens,
	       (unsigned long long)r->unique_blocks, o->policy);
	printf("hits  %llu blocks, %.2f%%   %llu of %llu tokens, %.2f%%\n",
	       (unsigned long long)r->hit_blocks, percent(r->hit_blocks, r->blocks),
	       (unsigned long long)r->hit_tokens, (unsigned long long)r->tokens,
	       percent(r->hit_tokens, r->tokens));
}

static void print_tiers(const struct replay_opts *o, const struct replay_result *r)
{
	char size[24], read[24], written[24], amplified[24];

	printf("\n%-8s%12s%12s%9s%12s%12s%9s%11s%11s\n", "tier", "size", "hits", "of all",
	       "read", "written", "w. amp.", "promoted", "refused");
	for (unsigned i = 0; i < REPLAY_TIERS; i++) {
		const struct replay_tier_result *t = &r->tier[i];

		if (!t->present)
			continue;
		if (o->tier_bytes[i] > 0)
			bytes_text(o->tier_bytes[i], size);
		else
			snprintf(size, sizeof(size), "real");
		bytes_text(t->read_bytes, read);
		bytes_text(t->written_bytes, written);
		snprintf(amplified, sizeof(amplified), "%.2f",
			 percent(t->written_bytes, r->saved_bytes) / 100);
		printf("%-8s%12s%12llu%8.2f%%%12s%12s%9s%11llu%11llu\n", replay_tier_names[i],
		       size, (unsigned long long)t->hit_blocks, percent(t->hit_blocks, r->blocks),
		       read, t->written_unknown ? "-" : written,
		       t->written_unknown ? "-" : amplified,
		       (unsigned long long)t->promoted_blocks,
		       (unsigned long long)t->refused_blocks);
	}
}

static void print_times(const struct replay_result *r)
{
	const struct replay_times *with = &r->with, *without = &r->without;

	printf("\n%-18s%12s%12s%12s%12s\n", "first token after", "p50", "p90", "p99", "mean");
	printf("%-18s%10.3f s%10.3f s%10.3f s%10.3f s\n", "with the tiers", with->p50, with->p90,
	       with->p99, with->mean);
	printf("%-18s%10.3f s%10.3f s%10.3f s%10.3f s\n", "without", without->p50, without->p90,
	       without->p99, without->mean);
	if (r->skipped_blocks > 0)
		printf("%llu blocks were there and sooner computed than loaded\n",
		       (unsigned long long)r->skipped_blocks);
}

int replay_print(const struct replay_opts *o, const struct replay_result *r, bool json)
{
	if (json)
		return print_json(o, r);
	print_head(o, r);
	if (r->tiered)
		print_tiers(o, r);
	else
		printf("room  %llu blocks, %llu used, %llu evicted, touched %s\n",
		       (unsigned long long)r->tier[0].capacity_blocks,
		       (unsigned long long)r->tier[0].used_blocks,
		       (unsigned long long)r->tier[0].evicted_blocks,
		       o->rev ? "last to first" : "first to last");
	if (r->timed)
		print_times(r);
	if (r->real)
		printf("\n%llu loaded blocks had the bytes that were saved, %llu others; "
		       "%llu were not saved everywhere; %.1f s\n",
		       (unsigned long long)(r->verified_blocks - r->wrong_blocks),
		       (unsigned long long)r->wrong_blocks,
		       (unsigned long long)r->unsaved_blocks, r->seconds);
	if (r->real)
		printf("of that %.2f s were matches and loads, %.2f s saves, %.2f s the "
		       "comparing of bytes\n", r->load_s + r->miss_s, r->save_s, r->check_s);
	return cmd_output_end("replay", CMD_DONE);
}
