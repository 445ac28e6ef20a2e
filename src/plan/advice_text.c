/* SPDX-License-Identifier: Apache-2.0 */
/* Advice, and where it flips, in sentences that have their figures in them. */
#include <math.h>
#include <stdio.h>

#include "base/must.h"
#include "plan/advice.h"
#include "plan/text.h"

#define REC KVOF_PLAN_RECOMPUTE

static const char *const things[] = {
	[ADVICE_NOTHING] = "nothing", [ADVICE_DRAM] = "memory of the host",
	[ADVICE_NFS] = "the file server", [ADVICE_LOCAL] = "local NVMe",
	[ADVICE_ARRAY] = "an array"};

static void nothing_text(const struct advice_facts *f, const struct advice *a, char *out)
{
	char set[PLAN_SIZE_BYTES], room[PLAN_SIZE_BYTES];
	double now_s = a->time_s[REC], best_s = now_s * (1 - a->gain);

	switch (a->why) {
	case ADVICE_SHORT:
		snprintf(out, ADVICE_TEXT_BYTES, "Do not buy: a prefix of %.0f tokens is shorter "
			 "than a block of %.0f, so nothing of it is kept.", f->tokens,
			 f->block_tokens);
		break;
	case ADVICE_COLD:
		snprintf(out, ADVICE_TEXT_BYTES, "Do not buy: with any room at most %.1f %% of the "
			 "tokens come again, less than the %.0f %% that are worth it.",
			 100 * f->curve.hit[f->curve.points - 1], 100 * f->least_gain);
		break;
	case ADVICE_HBM:
		snprintf(out, ADVICE_TEXT_BYTES, "Do not buy: the working set of %s fits in the "
			 "%s that GPU memory has for KV; the engine's own prefix cache finds it.",
			 plan_text_size(f->working_set_bytes, set),
			 plan_text_size(f->hbm_bytes, room));
		break;
	case ADVICE_SLOWER:
		snprintf(out, ADVICE_TEXT_BYTES, "Do not buy: recompute takes %.4g s, the quickest "
			 "load %.4g s; %.0f %% less are asked for.", now_s, best_s,
			 100 * f->least_gain);
		break;
	case ADVICE_NO_ARM:
		snprintf(out, ADVICE_TEXT_BYTES, "Nothing to load from: no arm that was asked "
			 "about hits anything; recompute takes %.2f s, %.3g s are asked for.",
			 now_s, f->sla_s);
		break;
	case ADVICE_LOSSY:
		snprintf(out, ADVICE_TEXT_BYTES, "Do not buy an array for this network: with "
			 "%.3g %% of packets lost it takes %.2f s, recompute %.2f s. Make the "
			 "network lossless first.", 100 * f->net.loss,
			 a->time_s[KVOF_PLAN_ARRAY], now_s);
		break;
	default:
		snprintf(out, ADVICE_TEXT_BYTES, "Do not buy: recompute takes %.2f s and meets the "
			 "%.3g s that are asked for%s.", now_s, f->sla_s,
			 f->money.told ? "; nothing pays for itself in time" : "");
	}
}

static void best_text(const struct advice_facts *f, const struct advice *a, char *out)
{
	enum kvof_plan_arm_kind arm = advice_arm(a->what);

	snprintf(out, ADVICE_TEXT_BYTES, "Nothing meets %.3g s with %u sessions at once. Best is "
		 "%s: %.2f s, against %.2f s of recompute%s.", f->sla_s, f->sessions,
		 things[a->what], a->time_s[arm], a->time_s[REC],
		 a->why == ADVICE_LOSSY ? "; without the loss of packets it would be an array" :
		 "");
}

static void array_text(const struct advice_facts *f, const struct advice *a, char *out)
{
	double local_s = a->time_s[KVOF_PLAN_LOCAL], array_s = a->time_s[KVOF_PLAN_ARRAY];
	char set[PLAN_SIZE_BYTES], room[PLAN_SIZE_BYTES];

	switch (a->why) {
	case ADVICE_SHARED:
		snprintf(out, ADVICE_TEXT_BYTES, "An array: %.2f s. KV is wanted where it was not "
			 "made (%u host%s%s), so local NVMe hits %.0f %% of the tokens and takes "
			 "%.2f s; %.3g s are asked for.", array_s, f->hosts,
			 f->hosts > 1 ? "s" : "",
			 f->outlive == ADVICE_OUTLIVE_MOVE ? ", and moves" : "",
			 100 * a->hit[KVOF_PLAN_LOCAL], local_s, f->sla_s);
		break;
	case ADVICE_ROOM:
		snprintf(out, ADVICE_TEXT_BYTES, "An array: %.2f s. Local NVMe has room for %s of "
			 "the %s that come again, hits %.0f %% of the tokens and takes %.2f s; "
			 "%.3g s are asked for.", array_s,
			 plan_text_size(f->capacity_bytes[KVOF_PLAN_LOCAL], room),
			 plan_text_size(f->working_set_bytes, set), 100 * a->hit[KVOF_PLAN_LOCAL],
			 local_s, f->sla_s);
		break;
	case ADVICE_RATE:
		snprintf(out, ADVICE_TEXT_BYTES, "An array: %.2f s with %u sessions at once. Local "
			 "NVMe brings them back in %.2f s, recompute in %.2f s; %.3g s are asked "
			 "for.", array_s, f->sessions, local_s, a->time_s[REC], f->sla_s);
		break;
	default:
		snprintf(out, ADVICE_TEXT_BYTES, "An array: %.2f s with %u sessions at once; "
			 "recompute takes %.2f s and %.3g s are asked for.", array_s, f->sessions,
			 a->time_s[REC], f->sla_s);
	}
}

void advice_text(const struct advice_facts *f, const struct advice *a,
		 char out[ADVICE_TEXT_BYTES])
{
	enum kvof_plan_arm_kind arm = advice_arm(a->what);

	if (a->what == ADVICE_NOTHING)
		nothing_text(f, a, out);
	else if (!a->meets)
		best_text(f, a, out);
	else if (a->why == ADVICE_PAYS)
		snprintf(out, ADVICE_TEXT_BYTES, "Recompute meets %.3g s (%.2f s), but %s takes "
			 "%.2f s and has paid for itself after %.0f days of saved GPU time.",
			 f->sla_s, a->time_s[REC], things[a->what], a->time_s[arm],
			 a->payback_days[arm]);
	else if (a->what == ADVICE_ARRAY)
		array_text(f, a, out);
	else
		snprintf(out, ADVICE_TEXT_BYTES, "%s is enough: %.2f s with %u sessions at once, "
			 "where %.3g s are asked for and recompute takes %.2f s; %.0f %% of the "
			 "tokens are hit.", a->what == ADVICE_LOCAL ? "Local NVMe" :
			 a->what == ADVICE_DRAM ? "Memory of the host" : "The file server",
			 a->time_s[arm], f->sessions, f->sla_s, a->time_s[REC],
			 100 * a->hit[arm]);
}

static void value_put(enum advice_fact fact, double value, char out[64])
{
	static const char *const outlive[] = {"nothing", "a restart", "a move"};
	char size[PLAN_SIZE_BYTES];

	switch (fact) {
	case ADVICE_SESSIONS:
		snprintf(out, 64, "%.0f sessions at once", value);
		break;
	case ADVICE_TOKENS:
		snprintf(out, 64, "prefixes of %.0f tokens", value);
		break;
	case ADVICE_WORKING_SET:
		snprintf(out, 64, "a working set of %s", plan_text_size(value, size));
		break;
	case ADVICE_HOSTS:
		snprintf(out, 64, "%.0f host%s", value, value > 1 ? "s" : "");
		break;
	case ADVICE_PREFILL:
		snprintf(out, 64, "a prefill of %.0f tokens/s", value);
		break;
	case ADVICE_ARRAY_RATE:
		snprintf(out, 64, "an array that gives %s/s", plan_text_size(value, size));
		break;
	case ADVICE_LOCAL_RATE:
		snprintf(out, 64, "local drives that give %s/s", plan_text_size(value, size));
		break;
	case ADVICE_LOSS:
		snprintf(out, 64, "%.3g %% of packets lost", 100 * value);
		break;
	case ADVICE_JITTER:
		snprintf(out, 64, value < 1 ? "%.3g ms of jitter" : "%.3g s of jitter",
			 value < 1 ? 1e3 * value : value);
		break;
	case ADVICE_SLA:
		snprintf(out, 64, "%.3g s to the first token", value);
		break;
	case ADVICE_OUTLIVE:
		snprintf(out, 64, "KV that outlives %s", outlive[(int)value]);
		break;
	case ADVICE_ROUTING:
	case ADVICE_FACTS:
		snprintf(out, 64, "%s routing", value > 0 ? "sticky" : "any");
	}
}

void advice_flip_text(const struct advice_flip *flip, char out[ADVICE_TEXT_BYTES])
{
	bool word = flip->fact == ADVICE_OUTLIVE || flip->fact == ADVICE_ROUTING;
	char at[64], now[64];

	value_put(flip->fact, flip->at, at);
	value_put(flip->fact, flip->now, now);
	snprintf(out, ADVICE_TEXT_BYTES, "%s with %s%s; now %s", flip->what == ADVICE_NOTHING ?
		 "do not buy" : things[flip->what], at,
		 word ? "" : flip->above ? " or more" : " or less", now);
}
