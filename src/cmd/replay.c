/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvof replay: what a trace would hit, and when its first tokens would come. Options are checked
 * here, the trace by the reader; nothing is written but --html.
 */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/must.h"
#include "cmd/cmd.h"
#include "cmd/replay.h"
#include "cmd/traces.h"

#define BLOCK_TOKENS 512u
#define NOT_GIVEN UINT64_MAX

static const struct replay_device devices[REPLAY_TIERS] = {
	{0, UINT64_C(20000000000)}, {100000, UINT64_C(6000000000)}, {300000, UINT64_C(3000000000)},
};

struct wanted {
	const char *policy, *touch, *html, *second, *speed, *flash;
	struct replay_real real;
	uint64_t tier_bytes[REPLAY_TIERS], rate[REPLAY_TIERS], latency_ns[REPLAY_TIERS];
	uint64_t block_bytes, token_bytes;
	unsigned capacity, block_tokens, prefill, engines, requests, seed;
	bool json, in_earnest;
};

static const char replay_more[] =
	"TRACE is a file in Mooncake's format, one JSON object a line with timestamp (ms),\n"
	"input_length, output_length (tokens) and hash_ids (one a block; an id stands for the\n"
	"whole prefix up to it); - is standard input. Or it is made from --seed: multi-turn,\n"
	"shared-prefix, cold-long, mixed.\n\n"
	"One tier, sizes in blocks: what a cache of that size hits, and nothing else counts.\n"
	"  kvof replay trace.jsonl --policy lru --capacity-blocks 10000\n\n"
	"Several tiers, sizes in bytes; DRAM is asked first, then flash, then the arrays. What a\n"
	"token's KV takes is the model's: 2 x layers x KV heads x head size x bytes of a number.\n"
	"With the engine's prefill rate it tells when first tokens come, loading what is sooner\n"
	"loaded than computed.\n"
	"  kvof replay trace.jsonl --bytes-per-token 128KiB --dram 64GiB --flash 2TiB \\\n"
	"      --remote 14TiB --prefill-tokens-per-s 20000 --html replay.html\n\n"
	"With --target, --flash with a path, or --real the tiers are real ones, and every block\n"
	"that is loaded is compared with what was saved. They keep what they hold; --seed makes\n"
	"it new.\n"
	"  kvof replay mixed --requests 500 --block-bytes 1MiB --dram 256MiB \\\n"
	"      --flash /tmp/flash,size=4GiB --target tcp://127.0.0.1:4420\n\n"
	"Hits are the blocks of a request up to the first one that is missing. The conventions,\n"
	"and what the model leaves out, are in docs/replay.md; the policies in docs/policies.md.\n";

static int wrong(const char *option, const char *value, const char *const *names)
{
	const char *near = cmd_nearest(value, names);
	char list[200] = "";
	size_t used = 0;

	if (near != NULL) {
		cmd_error("replay", "%s %s: no such one; did you mean %s?", option, value, near);
		return CMD_USAGE;
	}
	for (; *names != NULL && used < sizeof(list); names++)
		used += (size_t)snprintf(list + used, sizeof(list) - used, "%s%s",
					 used > 0 ? ", " : "", *names);
	cmd_error("replay", "%s %s: no such one; there are %s", option, value, list);
	return CMD_USAGE;
}

static bool named(const char *name, const char *const *names)
{
	for (; *names != NULL; names++)
		if (strcmp(*names, name) == 0)
			return true;
	return false;
}

static int second_check(const char *text, struct replay_opts *o)
{
	static const char *const names[] = {"none", "flash", "remote", "both", NULL};

	if (text == NULL)
		return -1;
	if (!named(text, names))
		return wrong("--second-touch", text, names);
	o->second_touch[REPLAY_FLASH] = strcmp(text, "flash") == 0 || strcmp(text, "both") == 0;
	o->second_touch[REPLAY_REMOTE] = strcmp(text, "remote") == 0 || strcmp(text, "both") == 0;
	return -1;
}

static bool real_wanted(const struct wanted *w)
{
	return w->in_earnest || w->real.target != NULL || w->real.flash != NULL;
}

/* Real tiers: what the model is told does not hold for them. -1 or an exit code. */
static int real_check(const struct wanted *w, struct replay_opts *o)
{
	o->paced = w->speed != NULL;
	for (unsigned i = 0; i < REPLAY_TIERS; i++) {
		if (w->rate[i] == NOT_GIVEN && w->latency_ns[i] == NOT_GIVEN)
			continue;
		cmd_error("replay", "--%s-%s is of a model; real tiers are as fast as they are",
			  replay_tier_names[i], w->rate[i] != NOT_GIVEN ? "rate" : "latency");
		return CMD_USAGE;
	}
	if (w->tier_bytes[REPLAY_REMOTE] > 0 || w->tier_bytes[REPLAY_FLASH] > 0) {
		const char *size = w->tier_bytes[REPLAY_REMOTE] > 0 ? "remote" : "flash";

		if (w->real.flash != NULL)
			cmd_error("replay", "--%s SIZE is of a model; --flash %s is a path, so the "
				  "tiers are real", size, w->real.flash);
		else
			cmd_error("replay", "--%s SIZE is of a model; the other tiers given are "
				  "real", size);
		return CMD_USAGE;
	}
	if (w->real.target == NULL && w->real.flash == NULL && w->tier_bytes[REPLAY_DRAM] == 0) {
		cmd_error("replay", "--real needs a tier: --dram, --flash PATH, --target");
		return CMD_USAGE;
	}
	if (w->engines > 0) {
		cmd_error("replay", "--engines is of a model; requests of a real run follow "
			  "one another");
		return CMD_USAGE;
	}
	if (o->block_bytes <= REPLAY_REAL_BLOCK_BYTES_MAX)
		return -1;
	cmd_error("replay", "blocks of %llu bytes; a real run takes up to 64 MiB: give a smaller "
		  "--block-bytes", (unsigned long long)o->block_bytes);
	return CMD_USAGE;
}

/* A size is of a model, a path a real tier. What begins like a number, and is neither a size nor
 * there, is a size written wrong. -1 or an exit code. */
static int flash_take(struct wanted *w)
{
	if (w->flash == NULL || cmd_bytes_parse(w->flash, true, &w->tier_bytes[REPLAY_FLASH]))
		return -1;
	if (strchr("-+.0123456789", w->flash[0]) != NULL && strpbrk(w->flash, "/,") == NULL &&
	    access(w->flash, F_OK) != 0) {
		cmd_error("replay", "--flash %s: not a size, as in 4096 or 64KiB, and no file of "
			  "that name", w->flash);
		return CMD_USAGE;
	}
	w->real.flash = w->flash;
	return -1;
}

/* Options that make no sense together, or without another. -1 or an exit code. */
static int tiers_check(const struct wanted *w, struct replay_opts *o)
{
	bool tiered = real_wanted(w);

	for (unsigned i = 0; i < REPLAY_TIERS; i++) {
		o->tier_bytes[i] = w->tier_bytes[i];
		o->device[i] = (struct replay_device){
			w->latency_ns[i] != NOT_GIVEN ? w->latency_ns[i] : devices[i].latency_ns,
			w->rate[i] != NOT_GIVEN ? w->rate[i] : devices[i].bytes_per_s};
		tiered = tiered || w->tier_bytes[i] > 0;
		if (w->rate[i] == 0) {
			cmd_error("replay", "--%s-rate 0: not a rate", replay_tier_names[i]);
			return CMD_USAGE;
		}
	}
	if (tiered && (w->capacity > 0 || w->touch != NULL)) {
		cmd_error("replay", "--%s is of one tier; leave out --dram, --flash and --remote",
			  w->capacity > 0 ? "capacity-blocks" : "touch");
		return CMD_USAGE;
	}
	if (!tiered && (w->prefill > 0 || w->second != NULL || w->engines > 0)) {
		cmd_error("replay", "--%s needs tiers: --dram, --flash, --remote",
			  w->prefill > 0 ? "prefill-tokens-per-s" :
			  w->engines > 0 ? "engines" : "second-touch");
		return CMD_USAGE;
	}
	if (w->engines > 0 && w->prefill == 0) {
		cmd_error("replay", "--engines needs --prefill-tokens-per-s");
		return CMD_USAGE;
	}
	o->block_bytes = w->block_bytes > 0 ? w->block_bytes : w->token_bytes * o->block_tokens;
	if (tiered && o->block_bytes == 0) {
		cmd_error("replay", "tiers in bytes need --bytes-per-token, or --block-bytes");
		return CMD_USAGE;
	}
	if (real_wanted(w))
		return real_check(w, o);
	for (unsigned i = 0; tiered && i < REPLAY_TIERS; i++) {
		if (o->tier_bytes[i] == 0 || o->tier_bytes[i] >= o->block_bytes)
			continue;
		cmd_error("replay", "--%s holds not even one block of %llu bytes",
			  replay_tier_names[i], (unsigned long long)o->block_bytes);
		return CMD_USAGE;
	}
	return -1;
}

static int opts_check(const struct wanted *w, struct replay_opts *o)
{
	static const char *const touches[] = {"fwd", "rev", NULL};
	double speed = 1;

	*o = (struct replay_opts){.policy = w->policy, .seed = w->seed,
		.block_tokens = w->block_tokens, .capacity_blocks = w->capacity,
		.prefill_tokens_per_s = w->prefill, .engines = w->engines, .speed_percent = 100};
	if (o->policy == NULL)
		o->policy = policy_names()[0];
	if (!named(o->policy, policy_names()))
		return wrong("--policy", o->policy, policy_names());
	if (w->touch != NULL && !named(w->touch, touches))
		return wrong("--touch", w->touch, touches);
	o->rev = w->touch != NULL && strcmp(w->touch, "rev") == 0;
	if (w->block_tokens > 1u << 20) {
		cmd_error("replay", "--block-tokens %u: not 1 to 1048576", w->block_tokens);
		return CMD_USAGE;
	}
	if (w->engines > REPLAY_ENGINES_MAX) {
		cmd_error("replay", "--engines %u: not 1 to %u", w->engines, REPLAY_ENGINES_MAX);
		return CMD_USAGE;
	}
	if (w->token_bytes > TiB || w->block_bytes > TiB * 1024) {
		cmd_error("replay", "--%s: too large to be meant",
			  w->token_bytes > TiB ? "bytes-per-token" : "block-bytes");
		return CMD_USAGE;
	}
	if (w->speed != NULL && !traces_speed_parse(w->speed, &speed)) {
		cmd_error("replay", "--speed %s: not a factor, as in 2 or 0.5", w->speed);
		return CMD_USAGE;
	}
	o->speed_percent = (uint64_t)(speed * 100 + 0.5);
	if (second_check(w->second, o) >= 0)
		return CMD_USAGE;
	return tiers_check(w, o);
}

/* --- the run ------------------------------------------------------------------------ */

/* Known before the work: whether there can be a page at its end. -1 or an exit code. */
static int html_check(const char *path)
{
	const char *slash = strrchr(path, '/');
	char folder[PATH_MAX];
	struct stat st;
	int err = 0;

	if (strcmp(path, "-") == 0)
		return -1;
	snprintf(folder, sizeof(folder), "%.*s", slash == NULL ? 1 : (int)(slash - path + 1),
		 slash == NULL ? "." : path);
	if (stat(path, &st) == 0 && S_ISDIR(st.st_mode))
		err = EISDIR;
	else if (stat(path, &st) == 0 && !S_ISREG(st.st_mode))
		err = access(path, W_OK) != 0 ? errno : 0;
	else if (access(folder, W_OK | X_OK) != 0)     /* it is made beside and renamed */
		err = errno;
	if (err == 0)
		return -1;
	cmd_error("replay", "--html %s: %s", path, strerror(err));
	return CMD_FAILED;
}

static int replay(const char *name, const struct wanted *w, const struct replay_opts *o)
{
	struct replay_result result = {0};
	struct trace trace = {0};
	const struct traces_ask ask = {"replay", w->seed, w->requests, w->block_tokens};
	int rc = w->html != NULL ? html_check(w->html) : -1;

	if (rc < 0) {
		rc = traces_take(&ask, name, &trace);
		rc = rc == 0 ? -1 : rc;
	}
	if (rc < 0 && real_wanted(w)) {
		struct replay_real real = w->real;

		real.name = name;
		rc = replay_real_run(&trace, o, &real, &result);
		rc = rc == 0 ? -1 : rc;
	} else if (rc < 0 && replay_run(&trace, o, &result) != 0) {
		cmd_error("replay", "no memory for a replay of %u blocks", trace.unique_blocks);
		rc = CMD_FAILED;
	}
	if (rc < 0 && w->html != NULL)
		rc = replay_html(w->html, name, &trace, o, &result);
	if (rc < 0 || rc == CMD_DONE)
		rc = replay_print(o, &result, w->json);
	replay_result_free(&result);
	trace_free(&trace);
	return rc;
}

int cmd_replay(int argc, char **argv)
{
	struct wanted w = {
		.block_tokens = BLOCK_TOKENS, .seed = 1,
		.rate = {NOT_GIVEN, NOT_GIVEN, NOT_GIVEN},
		.latency_ns = {NOT_GIVEN, NOT_GIVEN, NOT_GIVEN},
	};
	const struct cmd_opt opts[] = {
		{"policy", CMD_TEXT, &w.policy, "NAME", "worth (default), lru, s3fifo"},
		{"capacity-blocks", CMD_COUNT, &w.capacity, "N",
			"room of the only tier; without it, for all"},
		{"touch", CMD_TEXT, &w.touch, "fwd|rev",
			"use a request's blocks from the first (default) or the last"},
		{"block-tokens", CMD_COUNT, &w.block_tokens, "N", "tokens of a block; 512"},
		{"dram", CMD_BYTES, &w.tier_bytes[REPLAY_DRAM], "SIZE", "a tier of DRAM"},
		{"flash", CMD_TEXT, &w.flash, "SIZE|PATH",
			"a tier of local flash; PATH[,size=S]: a real one"},
		{"remote", CMD_BYTES, &w.tier_bytes[REPLAY_REMOTE], "SIZE", "the arrays"},
		{"target", CMD_TEXT, &w.real.target, "TARGET", "a real array"},
		{"bytes-per-token", CMD_BYTES, &w.token_bytes, "SIZE",
			"of KV; needed for tiers in bytes"},
		{"block-bytes", CMD_BYTES, &w.block_bytes, "SIZE", "of a block, instead"},
		{"second-touch", CMD_TEXT, &w.second, "TIER",
			"flash, remote or both take a block when it is saved again"},
		{"prefill-tokens-per-s", CMD_COUNT, &w.prefill, "N", "of one engine"},
		{"engines", CMD_COUNT, &w.engines, "N",
			"prompts wait for one of them; as many as are needed"},
		{"dram-rate", CMD_BYTES, &w.rate[REPLAY_DRAM], "SIZE", "bytes a second; 20GB"},
		{"flash-rate", CMD_BYTES, &w.rate[REPLAY_FLASH], "SIZE", "the same of flash; 6GB"},
		{"remote-rate", CMD_BYTES, &w.rate[REPLAY_REMOTE], "SIZE",
			"and of the arrays; 3GB"},
		{"flash-latency", CMD_TIME, &w.latency_ns[REPLAY_FLASH], "TIME",
			"of a load from flash; 100us"},
		{"remote-latency", CMD_TIME, &w.latency_ns[REPLAY_REMOTE], "TIME",
			"and from the arrays; 300us"},
		{"real", CMD_FLAG, &w.in_earnest, NULL,
			"DRAM of this process alone, not a model of it"},
		{"speed", CMD_TEXT, &w.speed, "X", "so many times as fast as in the trace; 1"},
		{"seed", CMD_COUNT, &w.seed, "N", "of a made workload; 1"},
		{"requests", CMD_COUNT, &w.requests, "N",
			"of a made workload (4000), or only the first of a file"},
		{"html", CMD_TEXT, &w.html, "FILE", "write a page with pictures"},
		{"json", CMD_FLAG, &w.json, NULL, "print JSON"},
		{.name = NULL},
	};
	const struct cmd_usage u = {
		.name = "replay", .args = "TRACE", .least = 1, .most = 1, .opts = opts,
		.what = "Replays a trace of prompts through a cache: what is hit, read, written.",
		.more = replay_more,
	};
	struct replay_opts o;
	const char *name;
	unsigned count;
	int rc = cmd_args(&u, argc, argv, &name, &count);

	if (rc >= 0)
		return rc;
	rc = flash_take(&w);
	if (rc < 0)
		rc = opts_check(&w, &o);
	return rc >= 0 ? rc : replay(name, &w, &o);
}
