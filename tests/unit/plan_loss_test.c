/* SPDX-License-Identifier: Apache-2.0 */
/* What loss and jitter leave of a link, by hand, and where they make another arm sooner. */
#include "kt.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#include <kvof/plan.h>

#define SESSION 7671382016.0

static struct kvof_plan_bad bad;

static const struct kvof_plan_arm array = {.kind = KVOF_PLAN_ARRAY, .source = KVOF_PLAN_ROWS,
	.bottleneck = "link", .fixed_s = 7.54 - 8 * (26.37 - 7.54) / 24,
	.bytes_per_s = SESSION * 24 / (26.37 - 7.54), .median_share = 1};
static const struct kvof_plan_arm local = {.kind = KVOF_PLAN_LOCAL, .source = KVOF_PLAN_ROWS,
	.fixed_s = 10.18 - 8 * (35.75 - 10.18) / 24, .bytes_per_s = SESSION * 24 / (35.75 - 10.18),
	.median_share = 1};
static const struct kvof_plan_wave wave = {30208, SESSION, 16, 0};

static void near(double got, double want, double share)
{
	if (!(fabs(got - want) <= share * fabs(want)))
		fail_msg("%.9g, not %.9g within %g", got, want, share);
}

static double rate(const struct kvof_plan_net *net)
{
	double bytes_per_s = -1;

	if (kvof_plan_net_rate(net, &bytes_per_s, &bad) != 0)
		fail_msg("%s: %s", bad.field, bad.why);
	return bytes_per_s;
}

static double last_s(const struct kvof_plan_arm *arm)
{
	struct kvof_plan_ttft t;

	expect_int(kvof_plan_ttft(arm, &wave, &t, &bad), 0);
	return t.last_s;
}

TEST(a_tcp_flow_has_segments_over_round_trips_and_the_root_of_loss)
{
	struct kvof_plan_net net = {.transport = KVOF_PLAN_TCP, .link_bytes_per_s = 12.5e9,
		.loss = 1e-4, .rtt_s = 1e-3};

	/* 8948 / (1 ms x sqrt(2e-4 / 3)) */
	near(rate(&net), 1.0959e9, 1e-4);
	net.flows = 4;
	near(rate(&net), 4.38360e9, 1e-4);
	net.flows = 16;
	near(rate(&net), 12.5e9, 0);
	net.flows = 1;
	net.packet_bytes = 1448;
	near(rate(&net), 1448 / (1e-3 * sqrt(2e-4 / 3)), 1e-12);
	/* Jitter makes the round trip longer. */
	net.jitter_s = 1e-3;
	near(rate(&net), 1448 / (2e-3 * sqrt(2e-4 / 3)), 1e-12);
	net.loss = 0;
	near(rate(&net), 12.5e9, 0);
}

TEST(timeouts_cost_more_than_the_window_where_round_trips_are_short)
{
	struct kvof_plan_net net = {.transport = KVOF_PLAN_TCP, .link_bytes_per_s = 12.5e9,
		.loss = 1e-4, .rtt_s = 1e-3, .rto_s = 0.2};

	/* 0.2 s x 3 sqrt(3e-4 / 8) x 1e-4 = 0.367 us beside 8.165 us. */
	near(rate(&net), 8948 / (8.164966e-6 + 3.674237e-7), 1e-5);
	net.rtt_s = 1e-5;
	net.link_bytes_per_s = 50e9;
	near(rate(&net), 8948 / (8.164966e-8 + 3.674237e-7), 1e-5);
}

TEST(rdma_sends_all_again_that_was_under_way_behind_a_lost_packet)
{
	struct kvof_plan_net net = {.transport = KVOF_PLAN_RDMA, .link_bytes_per_s = 12.5e9,
		.loss = 1e-3, .rtt_s = 20e-6};

	/* 12.5e9 x 20 us / 4096 = 61.04 packets: 0.999 / (1 + 60.04e-3) */
	near(rate(&net), 12.5e9 * 0.999 / 1.06003516, 1e-8);
	/* Over 64 flows less than one is under way on each. */
	net.flows = 64;
	near(rate(&net), 12.5e9 * 0.999, 1e-12);
	net.flows = 1;
	net.rtt_s = 2e-3;
	near(rate(&net), 12.5e9 * 0.999 / (1 + 6102.515625e-3), 1e-8);
}

TEST(rates_fall_with_loss_and_with_jitter)
{
	for (int transport = 0; transport < 2; transport++) {
		struct kvof_plan_net net = {.transport = (enum kvof_plan_transport)transport,
			.link_bytes_per_s = 12.5e9, .rtt_s = 1e-4, .flows = 4, .rto_s = 0.2};
		double before = INFINITY;

		for (double p = 1e-12; p < 0.9; p *= 1.5) {
			net.loss = p;
			net.jitter_s = 0;
			expect(rate(&net) <= before && rate(&net) > 0);
			before = rate(&net);
			net.jitter_s = 1e-3;
			expect(rate(&net) <= before);
		}
	}
}

TEST(an_arm_is_at_most_as_fast_as_its_network)
{
	struct kvof_plan_net net = {.transport = KVOF_PLAN_TCP, .link_bytes_per_s = 12.5e9,
		.rtt_s = 1e-3, .flows = 4, .rounds = 3};
	struct kvof_plan_arm over, tokens = array;

	expect_int(kvof_plan_arm_over(&array, &net, 0, &over, &bad), 0);
	near(over.bytes_per_s, array.bytes_per_s, 0);
	expect_str(over.bottleneck, "link");
	net.loss = 1e-4;
	net.jitter_s = 0.01;
	expect_int(kvof_plan_arm_over(&array, &net, 0, &over, &bad), 0);
	near(over.bytes_per_s, rate(&net), 1e-12);
	near(over.fixed_s, array.fixed_s + 0.03, 1e-12);
	expect(strstr(over.bottleneck, "loss") != NULL);
	/* The same of an arm that counts tokens. */
	tokens.bytes_per_s = 0;
	tokens.tokens_per_s = array.bytes_per_s / 253952;
	expect_int(kvof_plan_arm_over(&tokens, &net, 253952, &over, &bad), 0);
	near(over.tokens_per_s, rate(&net) / 253952, 1e-12);
	expect_int(kvof_plan_arm_over(&tokens, &net, 0, &over, &bad), -EINVAL);
	expect_str(bad.field, "token_bytes");
}

TEST(the_loss_that_makes_the_local_drive_sooner_is_the_one_that_the_formula_gives)
{
	struct kvof_plan_net net = {.transport = KVOF_PLAN_TCP, .link_bytes_per_s = 10.45e9,
		.rtt_s = 1e-3, .flows = 32};
	struct kvof_plan_flip flip;
	struct kvof_plan_arm over;
	double needed;

	kt_noise(&flip, sizeof(flip));
	expect_int(kvof_plan_net_flip(&array, &local, &wave, &net, &flip, &bad), 0);
	/* 16 sessions in what the local drive leaves after the array's fixed time. */
	needed = 16 * SESSION / (last_s(&local) - array.fixed_s);
	near(flip.loss, 1.5 * pow(32 * 8948 / (1e-3 * needed), 2), 1e-9);
	/* Jitter, without loss: what lies between them. */
	near(flip.jitter_s, last_s(&local) - last_s(&array), 1e-9);
	net.loss = flip.loss * 0.999;
	expect_int(kvof_plan_arm_over(&array, &net, 0, &over, &bad), 0);
	expect(last_s(&over) < last_s(&local));
	net.loss = flip.loss * 1.001;
	expect_int(kvof_plan_arm_over(&array, &net, 0, &over, &bad), 0);
	expect(last_s(&over) > last_s(&local));
	/* With that loss the array is later already. */
	expect_int(kvof_plan_net_flip(&array, &local, &wave, &net, &flip, &bad), 0);
	expect(flip.jitter_s == 0);
}

TEST(rdma_flips_at_the_loss_that_go_back_n_gives)
{
	struct kvof_plan_net net = {.transport = KVOF_PLAN_RDMA, .link_bytes_per_s = 10.45e9,
		.rtt_s = 20e-6};
	double window = 10.45e9 * 20e-6 / 4096, share;
	struct kvof_plan_flip flip;

	expect_int(kvof_plan_net_flip(&array, &local, &wave, &net, &flip, &bad), 0);
	/* (1 - p) / (1 + (W - 1) p) = needed / link */
	share = 16 * SESSION / (last_s(&local) - array.fixed_s) / 10.45e9;
	near(flip.loss, (1 - share) / (1 + (window - 1) * share), 1e-9);
}

TEST(an_array_that_is_never_sooner_has_flipped_already_and_one_that_always_is_never_does)
{
	const struct kvof_plan_net net = {.transport = KVOF_PLAN_TCP, .link_bytes_per_s = 10.45e9,
		.rtt_s = 1e-3, .flows = 32};
	const struct kvof_plan_arm slow = {.kind = KVOF_PLAN_RECOMPUTE, .tokens_per_s = 1e-9,
		.median_share = 0.5, .median_rank = 1};
	struct kvof_plan_flip flip;

	expect_int(kvof_plan_net_flip(&local, &array, &wave, &net, &flip, &bad), 0);
	expect(flip.loss == 0 && flip.jitter_s == 0);
	expect_int(kvof_plan_net_flip(&array, &slow, &wave, &net, &flip, &bad), 0);
	expect(flip.loss == 1 && isinf(flip.jitter_s));
}

TEST(a_network_that_can_not_be_is_refused_by_name)
{
	struct kvof_plan_net net = {.link_bytes_per_s = 12.5e9, .loss = 1e-3};
	struct kvof_plan_flip flip;
	double bytes_per_s;

	expect_int(kvof_plan_net_rate(&net, &bytes_per_s, &bad), -EINVAL);
	expect_str(bad.field, "rtt_s");
	net.rtt_s = 1e-3;
	net.loss = 1;
	expect_int(kvof_plan_net_rate(&net, &bytes_per_s, &bad), -EINVAL);
	expect_str(bad.field, "loss");
	net.loss = NAN;
	expect_int(kvof_plan_net_rate(&net, &bytes_per_s, &bad), -EINVAL);
	expect_str(bad.field, "loss");
	net = (struct kvof_plan_net){.rtt_s = 1e-3};
	expect_int(kvof_plan_net_rate(&net, &bytes_per_s, &bad), -EINVAL);
	expect_str(bad.field, "link_bytes_per_s");
	net = (struct kvof_plan_net){.link_bytes_per_s = 1e9};
	expect_int(kvof_plan_net_flip(&array, &local, &wave, &net, &flip, &bad), -EINVAL);
	expect_str(bad.field, "rtt_s");
}
