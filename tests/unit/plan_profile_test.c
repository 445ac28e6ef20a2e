/* SPDX-License-Identifier: Apache-2.0 */
/* Profiles: what is written is what is read, and each field that is wrong is named. */
#include "kt.h"

#include <errno.h>
#include <math.h>

#include <kvof/plan.h>

#include "base/must.h"
#include "plan/profile.h"

#define ARM "\"arm\":\"array\",\"source\":\"rows\","
#define WITH(arm) "{\"kvof_profile\":1,\"source\":\"rows\",\"arms\":[{" arm "}]}"

static struct plan_profile profile, again;
static struct kvof_plan_bad bad;

static int read_text(const char *text)
{
	kt_noise(&profile, sizeof(profile));
	kt_noise(&bad, sizeof(bad));
	return plan_profile_read(text, strlen(text), &profile, &bad);
}

static void refused(const char *text, const char *field, const char *words)
{
	expect_int(read_text(text), -EINVAL);
	if (strcmp(bad.field, field) != 0 || strstr(bad.why, words) == NULL)
		print_message("# %s: %s %s\n", text, bad.field, bad.why);
	expect_str(bad.field, field);
	expect(strstr(bad.why, words) != NULL);
}

static void full_profile(void)
{
	memset(&profile, 0, sizeof(profile));
	strcpy(profile.made, "2026-11-30T22:40:00Z");
	strcpy(profile.machine, "two \"sockets\", 8 drives");
	strcpy(profile.engine, "vLLM 0.20");
	strcpy(profile.precision, "fp8");
	strcpy(profile.model_type, "qwen3_moe");
	profile.model_bytes_per_token = 253952;
	profile.source = KVOF_PLAN_MEASURED;
	profile.arms = 2;
	profile.arm[0] = (struct kvof_plan_fit){.rows = 3, .tokens_min = 8448, .tokens_max = 30208,
		.concurrency_min = 8, .concurrency_max = 32, .worst_row_error = 0.03};
	profile.arm[0].arm = (struct kvof_plan_arm){.kind = KVOF_PLAN_ARRAY,
		.source = KVOF_PLAN_ROWS, .bottleneck = "link", .fixed_s = 1.25, .session_s = 0.5,
		.bytes_per_s = 9.75e9, .session_bytes_per_s = 3e9, .median_share = 0.875,
		.median_rank = -0.25, .tail_fixed_s = -1, .tail_session_s = 0.125,
		.output_tokens = 64};
	profile.arm[1].arm = (struct kvof_plan_arm){.kind = KVOF_PLAN_RECOMPUTE,
		.source = KVOF_PLAN_SPEC, .tokens_per_s = 1900, .session_tokens_per_s = 950,
		.token2_s = 1.5e-9};
	plan_fit_note(&profile.arm[0], "a note of %d", 7);
	profile.devices = 1;
	profile.device[0] = (struct plan_device){.name = "/dev/nvme0n1", .kind = PLAN_DEVICE_DRIVE,
		.read_bytes_per_s = 7e9, .write_bytes_per_s = 4e9, .latency_s = 8e-5, .depth = 32,
		.value_bytes = 1048576};
	plan_device_note(&profile.device[0], "warm: %s", "no");
}

TEST(what_is_written_is_what_is_read)
{
	char *text, *twice;

	full_profile();
	text = plan_profile_write(&profile);
	expect(text != NULL && text[strlen(text) - 1] == '\n');
	kt_noise(&again, sizeof(again));
	expect_int(plan_profile_read(text, strlen(text), &again, &bad), 0);
	expect_str(again.machine, profile.machine);
	expect_str(again.engine, "vLLM 0.20");
	expect_str(again.precision, "fp8");
	expect_str(again.made, profile.made);
	expect_int(again.source, KVOF_PLAN_MEASURED);
	expect_int(again.arms, 2);
	expect_mem(&again.arm[0].arm, &profile.arm[0].arm, sizeof(profile.arm[0].arm));
	expect_mem(&again.arm[1].arm, &profile.arm[1].arm, sizeof(profile.arm[1].arm));
	expect_int(again.arm[0].rows, 3);
	expect_int(again.arm[0].concurrency_max, 32);
	expect(fabs(again.arm[0].tokens_min - 8448) < 1e-9);
	expect_int(again.arm[0].notes, 1);
	expect_str(again.arm[0].note[0], "a note of 7");
	expect_int(again.devices, 1);
	expect_int(again.device[0].value_bytes, 1048576);
	expect_int(again.device[0].depth, 32);
	expect_str(again.device[0].notes.text[0], "warm: no");
	twice = plan_profile_write(&again);
	expect_str(twice, text);
	free(text);
	free(twice);
}

TEST(a_text_cut_within_a_letter_is_written_without_it)
{
	char *text;

	full_profile();
	profile.machine[0] = 'a';
	profile.machine[1] = (char)0xc3;
	profile.machine[2] = 0;
	text = plan_profile_write(&profile);
	expect(text != NULL);
	expect_int(read_text(text), 0);
	expect_str(profile.machine, "a");
	free(text);
}

TEST(notes_past_the_last_place_and_long_ones_are_cut)
{
	struct kvof_plan_fit *fit = &profile.arm[0];

	full_profile();
	for (int i = 0; i < 40; i++)
		plan_fit_note(fit, "%0300d", i);
	expect_int(fit->notes, KVOF_PLAN_NOTES_MAX);
	expect_int(strlen(fit->note[5]), KVOF_PLAN_NOTE_BYTES - 1);
}

TEST(fields_that_are_not_known_are_passed_over)
{
	expect_int(read_text("{\"kvof_profile\":1,\"source\":\"spec\",\"weather\":[1],"
			     "\"arms\":[{" ARM "\"tokens_per_s\":5,\"colour\":\"red\"}]}"), 0);
	expect_int(profile.arms, 1);
	expect(profile.model_type[0] == 0 && profile.devices == 0);
	expect_int(read_text("{\"kvof_profile\":1,\"source\":\"spec\",\"model\":null}"), 0);
	expect_int(profile.arms, 0);
}

TEST(what_is_no_profile_or_of_another_version_is_refused)
{
	refused("", "", "no JSON");
	refused("{\"kvof_profile\":1,", "", "no JSON: line 1");
	refused("[]", "", "not a profile");
	refused("{}", "", "not a profile");
	refused("{\"kvof_profile\":2}", "kvof_profile", "another version than 1");
	refused("{\"kvof_profile\":\"1\"}", "kvof_profile", "another version");
	refused("{\"kvof_profile\":1}", "source", "missing");
	refused("{\"kvof_profile\":1,\"source\":\"guess\"}", "source", "measured, rows, spec");
	refused("{\"kvof_profile\":1,\"kvof_profile\":1}", "", "no JSON");
}

TEST(each_field_that_is_wrong_is_named_where_it_stands)
{
	refused("{\"kvof_profile\":1,\"source\":\"rows\",\"arms\":{}}", "arms", "not a list");
	refused("{\"kvof_profile\":1,\"source\":\"rows\",\"machine\":7}", "machine", "not a text");
	refused("{\"kvof_profile\":1,\"source\":\"rows\",\"arms\":[7]}", "arms[0].", "object");
	refused("{\"kvof_profile\":1,\"source\":\"rows\",\"model\":{\"type\":\"x\"}}",
		"model.bytes_per_token", "missing");
	refused("{\"kvof_profile\":1,\"source\":\"rows\",\"model\":{\"bytes_per_token\":1}}",
		"model.type", "missing");
	refused(WITH("\"source\":\"rows\""), "arms[0].arm", "missing");
	refused(WITH("\"arm\":\"tape\""), "arms[0].arm", "none of");
	refused(WITH("\"arm\":\"array\""), "arms[0].source", "missing");
	refused(WITH(ARM "\"tokens_per_s\":\"5\""), "arms[0].tokens_per_s", "not a number");
	refused(WITH(ARM "\"tokens_per_s\":-5"), "arms[0].tokens_per_s", "below 0");
	refused(WITH(ARM "\"tokens_per_s\":1e300"), "arms[0].tokens_per_s", "too large");
	refused(WITH(ARM "\"fixed_s\":1"), "arms[0].tokens_per_s", "none of");
	refused(WITH(ARM "\"tokens_per_s\":5,\"bytes_per_s\":5"), "arms[0].tokens_per_s", "both");
	refused(WITH(ARM "\"tokens_per_s\":5,\"rows\":1.5"), "arms[0].rows", "not a count");
	refused(WITH(ARM "\"tokens_per_s\":5,\"tokens_min\":2"), "arms[0].tokens_min", "above");
	refused(WITH(ARM "\"tokens_per_s\":5,\"concurrency_min\":2"), "arms[0].concurrency_min",
		"above");
	refused(WITH(ARM "\"tokens_per_s\":5,\"notes\":[1]"), "arms[0].notes", "texts");
	refused("{\"kvof_profile\":1,\"source\":\"rows\",\"arms\":[{" ARM
		"\"tokens_per_s\":5},{" ARM "\"tokens_per_s\":5}]}", "arms[1].arm", "second array");
	refused("{\"kvof_profile\":1,\"source\":\"rows\",\"devices\":[{\"kind\":\"tape\"}]}",
		"devices[0].kind", "none of");
	refused("{\"kvof_profile\":1,\"source\":\"rows\",\"devices\":[{\"kind\":\"drive\","
		"\"latency_s\":-1}]}", "devices[0].latency_s", "below 0");
}

TEST(names_of_devices_are_found_again)
{
	enum plan_device_kind kind;

	for (unsigned i = 0; i <= PLAN_DEVICE_ENGINE; i++) {
		expect(plan_device_find(plan_device_name((enum plan_device_kind)i), &kind));
		expect_int(kind, i);
	}
	expect(!plan_device_find("tape", &kind));
	expect_str(plan_device_name((enum plan_device_kind)9), "unknown");
}
