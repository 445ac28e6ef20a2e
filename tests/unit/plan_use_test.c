/* SPDX-License-Identifier: Apache-2.0 */
/* Arms of a profile for a model and a length: what is carried over, and what is not told. */
#include "kt.h"

#include <errno.h>
#include <math.h>

#include <kvof/plan.h>

#include "plan/use.h"

static struct kvof_plan_model model;
static struct kvof_plan_geometry geometry;
static struct plan_profile profile;
static struct plan_use use;
static struct kvof_plan_bad bad;

/* 16 layers x 8 heads x 2 x 64 x 2 bytes: 32,768 bytes a token */
static const char llama[] = "{\"model_type\":\"llama\",\"num_hidden_layers\":16,"
	"\"num_attention_heads\":32,\"num_key_value_heads\":8,\"head_dim\":64,"
	"\"hidden_size\":2048}";
/* the same, half of the layers with a window of 1,000 tokens */
static const char sliding[] = "{\"model_type\":\"gpt_oss\",\"num_hidden_layers\":16,"
	"\"num_attention_heads\":32,\"num_key_value_heads\":8,\"head_dim\":64,"
	"\"hidden_size\":2048,\"sliding_window\":1000}";

static struct plan_use_ask ask_of(const char *config, double tokens)
{
	struct kvof_plan_split split = {1, 2};

	if (kvof_plan_model_read(config, strlen(config), &model, &bad) != 0)
		print_message("# %s %s\n", bad.field, bad.why);
	expect_int(kvof_plan_geometry(&model, &split, &geometry, &bad), 0);
	return (struct plan_use_ask){&model, &geometry, tokens};
}

static struct kvof_plan_fit *profile_of(enum kvof_plan_arm_kind kind)
{
	memset(&profile, 0, sizeof(profile));
	profile.arms = 1;
	profile.arm[0].arm = (struct kvof_plan_arm){.kind = kind, .tokens_per_s = 10000};
	profile.arm[0].tokens_min = profile.arm[0].tokens_max = 8000;
	return &profile.arm[0];
}

static bool near(double got, double want)
{
	return fabs(got - want) <= 1e-9 * (1 + fabs(want));
}

static int use_make(const struct kvof_plan_fit *fit, const struct plan_use_ask *ask)
{
	kt_noise(&use, sizeof(use));
	kt_noise(&bad, sizeof(bad));
	return plan_use_arm(&profile, fit, ask, &use, &bad);
}

TEST(tokens_of_the_same_model_are_tokens_and_its_bytes_are_told)
{
	const struct kvof_plan_fit *fit = profile_of(KVOF_PLAN_ARRAY);
	struct plan_use_ask ask = ask_of(llama, 30000);

	expect_int(use_make(fit, &ask), 0);
	expect(use.predicted && !use.carried && use.note[0] == 0);
	expect(near(use.wave.tokens, 30000));
	expect(near(use.bytes, 30000.0 * 32768));
	ask.model = NULL;
	expect_int(use_make(fit, &ask), 0);
	expect(near(use.wave.tokens, 30000) && near(use.bytes, 0));
}

TEST(where_layers_slide_a_load_grows_with_bytes_and_not_with_tokens)
{
	const struct kvof_plan_fit *fit = profile_of(KVOF_PLAN_ARRAY);
	struct plan_use_ask ask = ask_of(sliding, 16000);

	expect_int(use_make(fit, &ask), 0);
	/* 8,000 tokens of the rows are (8,000 + 1,000) x 16,384 bytes; 16,000 are 17,000 of them */
	expect(near(use.bytes, 17000.0 * 16384));
	expect(near(use.wave.tokens, 8000.0 * 17 / 9));
	fit = profile_of(KVOF_PLAN_RECOMPUTE);
	expect_int(use_make(fit, &ask), 0);
	expect(near(use.wave.tokens, 16000));
}

TEST(another_model_carries_loads_over_in_bytes_and_marks_them)
{
	struct kvof_plan_fit *fit = profile_of(KVOF_PLAN_LOCAL);
	struct plan_use_ask ask = ask_of(llama, 30000);

	strcpy(profile.model_type, "qwen3");
	profile.model_bytes_per_token = 65536;
	expect_int(use_make(fit, &ask), 0);
	expect(use.predicted && use.carried);
	expect(near(use.arm.bytes_per_s, 10000.0 * 65536) && near(use.arm.tokens_per_s, 0));
	expect(near(use.wave.bytes, 30000.0 * 32768));
	expect(strstr(use.note, "model_type qwen3 with 65536 bytes a token, this is llama with "
		      "32768") != NULL);
	fit->arm.session_tokens_per_s = 4000;
	expect_int(use_make(fit, &ask), 0);
	expect(near(use.arm.session_bytes_per_s, 4000.0 * 65536));
	expect(near(use.arm.session_tokens_per_s, 0));
	fit->arm.session_bytes_per_s = 1e6;
	expect_int(use_make(fit, &ask), 0);
	expect(near(use.arm.session_bytes_per_s, 1e6));
	fit->arm.tokens_per_s = 0;
	fit->arm.bytes_per_s = 5e9;
	expect_int(use_make(fit, &ask), 0);
	expect(use.carried && near(use.arm.bytes_per_s, 5e9));
}

TEST(recompute_of_another_model_or_another_cache_is_not_told)
{
	const struct kvof_plan_fit *fit = profile_of(KVOF_PLAN_RECOMPUTE);
	struct plan_use_ask ask = ask_of(llama, 30000);

	strcpy(profile.model_type, "qwen3");
	profile.model_bytes_per_token = 32768;
	expect_int(use_make(fit, &ask), 0);
	expect(!use.predicted && strstr(use.note, "qwen3") != NULL);
	strcpy(profile.model_type, "llama");
	expect_int(use_make(fit, &ask), 0);
	expect(use.predicted);
	profile.model_bytes_per_token = 16384;
	expect_int(use_make(fit, &ask), 0);
	expect(!use.predicted && strstr(use.note, "a llama with 16384 bytes") != NULL);
}

TEST(a_rate_in_bytes_needs_to_know_what_a_token_has)
{
	struct kvof_plan_fit *fit = profile_of(KVOF_PLAN_DRAM);
	struct plan_use_ask ask = {.tokens = 1000};

	fit->arm.tokens_per_s = 0;
	fit->arm.bytes_per_s = 1e9;
	expect_int(use_make(fit, &ask), -EINVAL);
	expect_str(bad.field, "model");
	strcpy(profile.model_type, "llama");
	profile.model_bytes_per_token = 32768;
	expect_int(use_make(fit, &ask), 0);
	expect(near(use.wave.bytes, 32768000));
	ask = ask_of(llama, 1e18);
	expect_int(use_make(fit, &ask), -EINVAL);
	expect_str(bad.field, "tokens");
}

TEST(what_lies_beyond_the_rows_is_marked)
{
	struct kvof_plan_fit *fit = profile_of(KVOF_PLAN_ARRAY);
	char why[KVOF_PLAN_NOTE_BYTES];

	fit->concurrency_min = 8;
	fit->concurrency_max = 32;
	expect(!plan_use_beyond(fit, 8000, 8, why) && why[0] == 0);
	expect(!plan_use_beyond(fit, 8001, 32, why));
	expect(plan_use_beyond(fit, 8000, 33, why));
	expect_str(why, "33 sessions are beyond the calibrated 8 to 32");
	expect(plan_use_beyond(fit, 9000, 16, why));
	expect_str(why, "9000 tokens are beyond the calibrated 8000 to 8000");
	expect(plan_use_beyond(fit, 9000, 4, why));
	expect(strstr(why, "4 sessions") != NULL && strstr(why, "; 9000 tokens") != NULL);
	fit->concurrency_min = fit->concurrency_max = 0;
	fit->tokens_min = fit->tokens_max = 0;
	expect(!plan_use_beyond(fit, 9000, 4, why));
}

TEST(a_model_whose_layers_all_slide_is_known_by_its_first_token)
{
	geometry = (struct kvof_plan_geometry){.first_bytes = 100, .token_bytes = 0};
	expect(near(plan_use_token_bytes(&geometry), 100));
	geometry.token_bytes = 40;
	expect(near(plan_use_token_bytes(&geometry), 40));
}
