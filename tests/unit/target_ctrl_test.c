/* SPDX-License-Identifier: Apache-2.0 */
/* The state table of a controller: what a write to CC asks for, and what CSTS says. Pure. */
#include "kt.h"

#include "target/core.h"

#define ON ((uint32_t)NV_CC_EN | NV_CC_CSS_IOCS | NV_CC_QUEUE_SIZES)
#define OFF (ON & ~(uint32_t)NV_CC_EN)
#define SHUT (uint32_t)NV_CC_SHN_NORMAL

static void expect_step(enum ctrl_state from, uint32_t cc_old, uint32_t cc_new, enum ctrl_state to,
			bool stop_queues, bool flush)
{
	struct ctrl_step step;

	kt_noise(&step, sizeof(step));
	step = ctrl_step_of(from, cc_old, cc_new);
	expect_int(step.to, to);
	expect_int(step.stop_queues, stop_queues);
	expect_int(step.flush, flush);
}

TEST(enabling_makes_ready_and_disabling_stops_the_queues_first)
{
	expect_step(CTRL_OFF, 0, ON, CTRL_READY, false, false);
	expect_step(CTRL_OFF, 0, OFF, CTRL_OFF, false, false);
	expect_step(CTRL_READY, ON, OFF, CTRL_STOPPING, true, false);
	expect_step(CTRL_READY, ON, ON, CTRL_READY, false, false);
}

TEST(writes_while_stopping_or_shutting_wait_for_the_end)
{
	expect_step(CTRL_STOPPING, OFF, ON, CTRL_STOPPING, false, false);
	expect_step(CTRL_SHUTTING, ON | SHUT, OFF, CTRL_SHUTTING, false, false);
}

TEST(a_shutdown_flushes_from_every_state_that_may_have_written)
{
	expect_step(CTRL_READY, ON, ON | SHUT, CTRL_SHUTTING, false, true);
	expect_step(CTRL_READY, ON, OFF | SHUT, CTRL_SHUTTING, false, true);
	expect_step(CTRL_OFF, 0, OFF | SHUT, CTRL_SHUTTING, false, true);
	expect_step(CTRL_READY, ON, ON | (uint32_t)NV_CC_SHN_ABRUPT, CTRL_SHUTTING, false, true);
}

TEST(after_a_shutdown_only_a_reset_or_a_new_enable_leads_on)
{
	expect_step(CTRL_SHUT, ON | SHUT, ON, CTRL_SHUT, false, false);
	expect_step(CTRL_SHUT, ON | SHUT, OFF, CTRL_STOPPING, true, false);
	expect_step(CTRL_SHUT, OFF | SHUT, ON, CTRL_READY, true, false);
	expect_step(CTRL_SHUT, OFF | SHUT, ON | SHUT, CTRL_SHUT, false, false);
}

TEST(csts_says_ready_until_no_byte_moves_and_shutdown_done_only_at_its_end)
{
	expect_int(ctrl_csts_of(CTRL_OFF, OFF), 0);
	expect_int(ctrl_csts_of(CTRL_READY, ON), NV_CSTS_RDY);
	expect_int(ctrl_csts_of(CTRL_STOPPING, OFF), NV_CSTS_RDY);
	expect_int(ctrl_csts_of(CTRL_SHUTTING, ON | SHUT), NV_CSTS_RDY | NV_CSTS_SHST_BUSY);
	expect_int(ctrl_csts_of(CTRL_SHUT, ON | SHUT), NV_CSTS_RDY | NV_CSTS_SHST_DONE);
	expect_int(ctrl_csts_of(CTRL_SHUT, OFF | SHUT), NV_CSTS_SHST_DONE);
	expect_int(ctrl_csts_of(CTRL_GONE, ON), NV_CSTS_CFS);
}

TEST(every_step_of_every_state_is_a_move_that_the_table_permits)
{
	static const uint32_t ccs[] = {0, OFF, ON, OFF | SHUT, ON | SHUT,
		ON | (uint32_t)NV_CC_SHN_ABRUPT};

	for (int from = CTRL_OFF; from < CTRL_GONE; from++)
		for (unsigned a = 0; a < ARRAY_COUNT(ccs); a++)
			for (unsigned b = 0; b < ARRAY_COUNT(ccs); b++) {
				struct ctrl_step s =
					ctrl_step_of((enum ctrl_state)from, ccs[a], ccs[b]);

				expect(s.to == (enum ctrl_state)from ||
				       ctrl_may_go((enum ctrl_state)from, s.to));
				expect(s.to != (enum ctrl_state)from ||
				       (!s.flush && !s.stop_queues));
			}
}
