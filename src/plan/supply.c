/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hardware as a chain of stages: what each can move, the smallest, and arms made of it. Every
 * stage is busy for all sessions together; what one session can have is a bound of its own.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>

#include "base/must.h"
#include "plan/arm.h"

static double share(double given)
{
	return given > 0 ? given : 1;
}

static int supply_check(const struct kvof_plan_supply *s, struct kvof_plan_bad *bad)
{
	const struct {
		const char *name;
		double value, most;
	} figures[] = {
		{"drive_read_bytes_per_s", s->drive_read_bytes_per_s, 1e15},
		{"drive_write_bytes_per_s", s->drive_write_bytes_per_s, 1e15},
		{"stripe_efficiency", s->stripe_efficiency, 1},
		{"pcie_bytes_per_s", s->pcie_bytes_per_s, 1e15},
		{"port_bytes_per_s", s->port_bytes_per_s, 1e15},
		{"link_efficiency", s->link_efficiency, 1},
		{"server_bytes_per_s", s->server_bytes_per_s, 1e15},
		{"rank_bytes_per_s", s->rank_bytes_per_s, 1e15},
		{"session_bytes_per_s", s->session_bytes_per_s, 1e15},
		{"dram_bytes_per_s", s->dram_bytes_per_s, 1e15}, {"fixed_s", s->fixed_s, 1e9},
	};

	for (size_t i = 0; i < ARRAY_COUNT(figures); i++)
		if (!(figures[i].value >= 0) || figures[i].value > figures[i].most)
			return plan_bad(bad, figures[i].name, "is %g, not 0 to %g",
					figures[i].value, figures[i].most);
	return 0;
}

static void stage_add(struct kvof_plan_supply_rate *out, const char *name, double bytes_per_s)
{
	struct kvof_plan_stage *stage = &out->stage[out->stages];

	if (bytes_per_s <= 0)
		return;
	must(out->stages < KVOF_PLAN_STAGES_MAX);
	out->stages++;
	*stage = (struct kvof_plan_stage){name, bytes_per_s};
	if (out->stages > 1 && bytes_per_s >= out->bytes_per_s)
		return;
	out->bottleneck = name;
	out->bytes_per_s = bytes_per_s;
}

static int rate_make(const struct kvof_plan_supply *s, enum kvof_plan_arm_kind kind,
		     double drive_bytes_per_s, struct kvof_plan_supply_rate *out,
		     struct kvof_plan_bad *bad)
{
	bool remote = kind == KVOF_PLAN_ARRAY || kind == KVOF_PLAN_NFS;

	*out = (struct kvof_plan_supply_rate){.bottleneck = "unknown"};
	*bad = (struct kvof_plan_bad){0};
	if (supply_check(s, bad) != 0)
		return -EINVAL;
	if (kind == KVOF_PLAN_RECOMPUTE || (unsigned)kind >= KVOF_PLAN_ARM_KINDS)
		return plan_bad(bad, "arm", "%s moves nothing", kvof_plan_arm_name(kind));
	if (kind == KVOF_PLAN_DRAM) {
		stage_add(out, "dram copy", s->dram_bytes_per_s);
	} else {
		stage_add(out, "drives", s->drives * drive_bytes_per_s *
			  share(s->stripe_efficiency));
		stage_add(out, "pcie", s->pcie_bytes_per_s);
	}
	if (remote) {
		stage_add(out, "server", s->server_bytes_per_s);
		stage_add(out, "link", s->ports * s->port_bytes_per_s * share(s->link_efficiency));
	}
	stage_add(out, "client", s->ranks * s->rank_bytes_per_s);
#ifdef KVOF_PLANT_MEAN_OF_STAGES
	out->bytes_per_s = 0;
	for (uint32_t i = 0; i < out->stages; i++)
		out->bytes_per_s += out->stage[i].bytes_per_s / out->stages;
#endif
	if (out->stages == 0)
		return plan_bad(bad, kind == KVOF_PLAN_DRAM ? "dram_bytes_per_s" :
				remote ? "ports, port_bytes_per_s" :
				"drives, drive_read_bytes_per_s", "are missing: no stage of arm %s "
				"is known", kvof_plan_arm_name(kind));
	return 0;
}

int kvof_plan_supply_rate(const struct kvof_plan_supply *supply, enum kvof_plan_arm_kind kind,
			  struct kvof_plan_supply_rate *out, struct kvof_plan_bad *bad)
{
	return rate_make(supply, kind, supply->drive_read_bytes_per_s, out, bad);
}

int kvof_plan_supply_write(const struct kvof_plan_supply *supply, enum kvof_plan_arm_kind kind,
			   struct kvof_plan_supply_rate *out, struct kvof_plan_bad *bad)
{
	return rate_make(supply, kind, supply->drive_write_bytes_per_s, out, bad);
}

int kvof_plan_arm_of_supply(const struct kvof_plan_supply *supply, enum kvof_plan_arm_kind kind,
			    struct kvof_plan_arm *out, struct kvof_plan_bad *bad)
{
	struct kvof_plan_supply_rate rate;
	int rc = kvof_plan_supply_rate(supply, kind, &rate, bad);

	*out = (struct kvof_plan_arm){0};
	if (rc != 0)
		return rc;
	*out = (struct kvof_plan_arm){.kind = kind,
		.source = supply->measured ? KVOF_PLAN_MEASURED : KVOF_PLAN_SPEC,
		.fixed_s = supply->fixed_s, .bytes_per_s = rate.bytes_per_s,
		.session_bytes_per_s = supply->session_bytes_per_s, .median_share = 1};
	snprintf(out->bottleneck, sizeof(out->bottleneck), "%s", rate.bottleneck);
	return 0;
}

int kvof_plan_arm_of_work(const struct kvof_plan_work *work, double flops_per_s,
			  double efficiency, struct kvof_plan_arm *out,
			  struct kvof_plan_bad *bad)
{
	double reached = flops_per_s * efficiency;
	/* Layers that slide are taken with full windows: a bit more than a short prompt needs. */
	double token = work->token_flops + work->window_pair_flops * work->window;

	*out = (struct kvof_plan_arm){0};
	*bad = (struct kvof_plan_bad){0};
	if (!(flops_per_s > 0) || flops_per_s > 1e21)
		return plan_bad(bad, "flops_per_s", "of all ranks is missing");
	if (!(efficiency > 0) || efficiency > 1)
		return plan_bad(bad, "efficiency", "is %g, not above 0 and at most 1", efficiency);
	if (!(token > 0))
		return plan_bad(bad, "params", "are missing: a token costs nothing");
	*out = (struct kvof_plan_arm){.kind = KVOF_PLAN_RECOMPUTE, .source = KVOF_PLAN_SPEC,
		.bottleneck = "gpu", .tokens_per_s = reached / token,
		.token2_s = work->pair_flops / 2 / reached, .median_share = 0.5, .median_rank = 1};
	return 0;
}
