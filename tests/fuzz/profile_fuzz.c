/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Input: a profile as a file may give it. What is refused is told in a sentence; what is taken
 * tells times that are finite and in their order, and is written and read again as it is.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/must.h"
#include "plan/profile.h"
#include "plan/use.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct plan_profile profile, again;

static void arm_check(const struct kvof_plan_fit *fit)
{
	const struct plan_use_ask ask = {.tokens = 30208};
	struct kvof_plan_ttft t;
	struct kvof_plan_bad bad;
	struct plan_use use;
	char why[KVOF_PLAN_NOTE_BYTES];

	if (plan_use_arm(&profile, fit, &ask, &use, &bad) != 0)
		return;
	must(use.predicted && !use.carried);
	for (uint32_t n = 1; n <= 64; n *= 4) {
		use.wave.sessions = n;
		plan_use_beyond(fit, ask.tokens, n, why);
		if (kvof_plan_ttft(&use.arm, &use.wave, &t, &bad) != 0) {
			must(bad.why[0] != 0);
			continue;
		}
		must(isfinite(t.last_s) && isfinite(t.wall_s) && isfinite(t.tokens_per_s));
		must(t.p50_s >= 0 && t.p50_s <= t.p90_s && t.p90_s <= t.last_s * (1 + 1e-12));
		must(t.last_s <= t.wall_s);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct kvof_plan_bad bad;
	char *text, *twice;
	int rc = plan_profile_read((const char *)data, size, &profile, &bad);

	must(rc == 0 || rc == -EINVAL);
	if (rc != 0) {
		must(bad.why[0] != 0 && memchr(bad.why, 0, sizeof(bad.why)) != NULL);
		must(memchr(bad.field, 0, sizeof(bad.field)) != NULL);
		return 0;
	}
	must(profile.arms <= PLAN_PROFILE_ARMS_MAX);
	must(profile.devices <= PLAN_PROFILE_DEVICES_MAX);
	for (uint32_t i = 0; i < profile.arms; i++)
		arm_check(&profile.arm[i]);
	text = plan_profile_write(&profile);
	must(text != NULL && plan_profile_read(text, strlen(text), &again, &bad) == 0);
	twice = plan_profile_write(&again);
	must(twice != NULL && strcmp(text, twice) == 0);
	free(text);
	free(twice);
	return 0;
}
