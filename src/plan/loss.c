/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What loss and jitter leave of a link, and where they make another arm sooner.
 *
 * TCP: the rate of one flow in congestion avoidance is segments over round trip times the square
 * root of 2p/3 [MATHIS], to which [PFTK] adds the timeouts that losses end in; flows add up to the
 * link's rate at most. RDMA over a reliable connection sends all again that was under way behind a
 * lost packet (go-back-N): W packets for each loss.
 *
 * It fails where its assumptions do: losses that come in bursts count as one for [MATHIS]; CUBIC
 * and BBR are faster over long round trips; an RDMA adapter with selective repeat loses one packet,
 * not W; a lost last packet waits for a timeout that is not counted for RDMA.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>

#include "base/must.h"
#include "plan/arm.h"

#define TCP_PACKET_BYTES 8948.0          /* of 9000: IPv4, TCP and its timestamps are off */
#define RDMA_PACKET_BYTES 4096.0
#define LOSS_MAX 0.999999
#define LOSS_MIN 1e-15
#define JITTER_MAX_S 1e9
#define HALVINGS 200

static int net_check(const struct kvof_plan_net *n, struct kvof_plan_bad *bad)
{
	const struct {
		const char *name;
		double value, most;
	} figures[] = {
		{"link_bytes_per_s", n->link_bytes_per_s, 1e15}, {"loss", n->loss, LOSS_MAX},
		{"rtt_s", n->rtt_s, 1e6}, {"jitter_s", n->jitter_s, JITTER_MAX_S},
		{"packet_bytes", n->packet_bytes, 1e6}, {"flows", n->flows, 1e9},
		{"rto_s", n->rto_s, 1e6}, {"rounds", n->rounds, 1e9},
	};

	*bad = (struct kvof_plan_bad){0};
	for (size_t i = 0; i < ARRAY_COUNT(figures); i++)
		if (!(figures[i].value >= 0) || figures[i].value > figures[i].most)
			return plan_bad(bad, figures[i].name, "is %g, not 0 to %g",
					figures[i].value, figures[i].most);
	if (n->link_bytes_per_s == 0)
		return plan_bad(bad, "link_bytes_per_s", "is missing");
	if ((n->loss > 0 || n->jitter_s > 0) && n->rtt_s == 0)
		return plan_bad(bad, "rtt_s", "is missing: what loss costs depends on it");
	return (unsigned)n->transport <= KVOF_PLAN_RDMA ? 0 :
	       plan_bad(bad, "transport", "is neither TCP nor RDMA");
}

static double tcp_flow(const struct kvof_plan_net *n, double packet)
{
	double p = n->loss, trip = (n->rtt_s + n->jitter_s) * sqrt(2 * p / 3);
	double timeouts = n->rto_s * fmin(1, 3 * sqrt(3 * p / 8)) * p * (1 + 32 * p * p);

	return packet / (trip + timeouts);
}

static double net_rate(const struct kvof_plan_net *n)
{
	double packet = n->packet_bytes > 0 ? n->packet_bytes :
		n->transport == KVOF_PLAN_TCP ? TCP_PACKET_BYTES : RDMA_PACKET_BYTES;
	double flows = n->flows > 0 ? n->flows : 1, window;

	if (n->loss <= 0)
		return n->link_bytes_per_s;
	if (n->transport == KVOF_PLAN_TCP)
		return fmin(n->link_bytes_per_s, flows * tcp_flow(n, packet));
	window = n->link_bytes_per_s / flows * (n->rtt_s + n->jitter_s) / packet;
#ifdef KVOF_PLANT_GO_BACK_ONE
	window = 1;
#endif
	return n->link_bytes_per_s * (1 - n->loss) / (1 + fmax(window - 1, 0) * n->loss);
}

int kvof_plan_net_rate(const struct kvof_plan_net *net, double *bytes_per_s,
		       struct kvof_plan_bad *bad)
{
	int rc = net_check(net, bad);

	*bytes_per_s = rc == 0 ? net_rate(net) : 0;
	return rc;
}

int kvof_plan_arm_over(const struct kvof_plan_arm *arm, const struct kvof_plan_net *net,
		       double token_bytes, struct kvof_plan_arm *out,
		       struct kvof_plan_bad *bad)
{
	double rate, *own;
	int rc = kvof_plan_net_rate(net, &rate, bad);

	*out = *arm;
	if (rc == 0)
		rc = plan_arm_check(arm, bad);
	if (rc != 0)
		return rc;
	if (arm->kind == KVOF_PLAN_RECOMPUTE)
		return plan_bad(bad, "arm", "recompute uses no network");
	own = arm->bytes_per_s > 0 ? &out->bytes_per_s : &out->tokens_per_s;
	if (own == &out->tokens_per_s) {
		if (!(token_bytes > 0))
			return plan_bad(bad, "token_bytes", "are missing, and the arm has a rate "
					"of tokens");
		rate /= token_bytes;
	}
	out->fixed_s += net->jitter_s * (net->rounds > 0 ? net->rounds : 1);
	if (rate >= *own)
		return 0;
	*own = rate;
	snprintf(out->bottleneck, sizeof(out->bottleneck), "network (loss)");
	return 0;
}

/* --- the point where another arm is sooner ---------------------------------------------------- */

struct flip {
	const struct kvof_plan_arm *array;
	const struct kvof_plan_wave *wave;
	double other_s;
};

static int later(const struct flip *f, const struct kvof_plan_net *net, bool *out,
		 struct kvof_plan_bad *bad)
{
	struct kvof_plan_ttft t;
	struct kvof_plan_arm arm;
	double token_bytes = f->wave->tokens > 0 ? f->wave->bytes / f->wave->tokens : 0;
	int rc = kvof_plan_arm_over(f->array, net, token_bytes, &arm, bad);

	if (rc == 0)
		rc = kvof_plan_ttft(&arm, f->wave, &t, bad);
	*out = rc == 0 && t.last_s > f->other_s;
	return rc;
}

/* The least of *field (of *net, loss or jitter) with which the array is later: halved on a log
 * scale between `low`, with which it is not, and `high`. */
static int flip_find(const struct flip *f, struct kvof_plan_net *net, double *field, double low,
		     double high, double never, double *out, struct kvof_plan_bad *bad)
{
	bool is_later;
	int rc;

	*field = 0;
	rc = later(f, net, &is_later, bad);
	*out = 0;
	if (rc != 0 || is_later)
		return rc;
	*field = high;
	rc = later(f, net, &is_later, bad);
	*out = never;
	if (rc != 0 || !is_later)
		return rc;
	for (int i = 0; i < HALVINGS && rc == 0; i++) {
		*field = sqrt(low * high);
		rc = later(f, net, &is_later, bad);
		*(is_later ? &high : &low) = *field;
	}
	*out = high;
	return rc;
}

int kvof_plan_net_flip(const struct kvof_plan_arm *array, const struct kvof_plan_arm *other,
		       const struct kvof_plan_wave *wave, const struct kvof_plan_net *net,
		       struct kvof_plan_flip *out, struct kvof_plan_bad *bad)
{
	struct kvof_plan_net changed = *net;
	struct flip f = {array, wave, 0};
	struct kvof_plan_ttft t;
	int rc = net_check(net, bad);

	*out = (struct kvof_plan_flip){0};
	if (rc == 0 && net->rtt_s == 0)
		rc = plan_bad(bad, "rtt_s", "is missing: what loss costs depends on it");
	if (rc == 0)
		rc = kvof_plan_ttft(other, wave, &t, bad);
	if (rc != 0)
		return rc;
	f.other_s = t.last_s;
	rc = flip_find(&f, &changed, &changed.loss, LOSS_MIN, LOSS_MAX, 1, &out->loss, bad);
	if (rc != 0)
		return rc;
	changed = *net;
	return flip_find(&f, &changed, &changed.jitter_s, LOSS_MIN, JITTER_MAX_S, INFINITY,
			 &out->jitter_s, bad);
}
