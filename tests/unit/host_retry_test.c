/* SPDX-License-Identifier: Apache-2.0 */
/* When a command may be sent again: each row of the table in host/retry.c. */
#include "kt.h"

#include <errno.h>

#include "host/impl.h"

static const enum host_op_kind reading[] = {HOST_RETRIEVE, HOST_EXIST, HOST_LIST};
static const enum host_op_kind changing[] = {HOST_STORE, HOST_DELETE};

TEST(damaged_data_answered_with_22h_is_sent_again_whatever_the_command)
{
	for (unsigned kind = HOST_STORE; kind <= HOST_LIST; kind++) {
		struct retry_facts f = {.kind = kind, .status = NV_TRANSIENT_TRANSPORT};

		expect_int(retry_decide(&f), RETRY_NOW);
		f.once = true;
		expect_int(retry_decide(&f), RETRY_NOW);
		f.digest_tries = HOST_DIGEST_TRIES;
		expect_int(retry_decide(&f), RETRY_NO);
	}
}

TEST(the_do_not_retry_bit_does_not_hide_a_transport_status)
{
	struct retry_facts f = {.kind = HOST_STORE,
				.status = nv_status_with_dnr(NV_TRANSIENT_TRANSPORT)};

	expect_int(retry_decide(&f), RETRY_NOW);
}

TEST(an_answer_of_any_other_status_is_final)
{
	static const nv_status final[] = {
		NV_STATUS(OK), NV_STATUS(KV_KEY_NOT_FOUND), NV_STATUS(KV_KEY_EXISTS),
		NV_STATUS(KV_UNRECOVERED), NV_STATUS(INTERNAL_ERROR), NV_STATUS(INVALID_FIELD),
	};

	for (unsigned kind = HOST_STORE; kind <= HOST_LIST; kind++) {
		for (size_t i = 0; i < ARRAY_COUNT(final); i++) {
			struct retry_facts f = {.kind = kind, .status = final[i],
						.repeat_ok = true};

			expect_int(retry_decide(&f), RETRY_NO);
		}
	}
}

TEST(a_wrong_digest_on_what_arrived_is_asked_for_again)
{
	for (size_t i = 0; i < ARRAY_COUNT(reading); i++) {
		struct retry_facts f = {.kind = reading[i], .res = -EBADMSG};

		expect_int(retry_decide(&f), RETRY_NOW);
		f.digest_tries = HOST_DIGEST_TRIES;
		expect_int(retry_decide(&f), RETRY_NO);
	}
}

TEST(reads_are_sent_again_after_a_lost_connection_a_bounded_number_of_times)
{
	static const int lost[] = {-ECONNRESET, -EPROTO, -ETIMEDOUT};

	for (size_t i = 0; i < ARRAY_COUNT(reading); i++) {
		for (size_t j = 0; j < ARRAY_COUNT(lost); j++) {
			struct retry_facts f = {.kind = reading[i], .res = lost[j]};

			expect_int(retry_decide(&f), RETRY_WHEN_LIVE);
			f.reset_tries = HOST_RESET_TRIES;
			expect_int(retry_decide(&f), RETRY_NO);
			f.reset_tries = 0;
			f.once = true;
			expect_int(retry_decide(&f), RETRY_NO);
		}
	}
}

TEST(store_and_delete_are_repeated_after_a_loss_only_where_the_caller_said_so)
{
	for (size_t i = 0; i < ARRAY_COUNT(changing); i++) {
		struct retry_facts f = {.kind = changing[i], .res = -ECONNRESET};

		expect_int(retry_decide(&f), RETRY_NO);
		f.repeat_ok = true;
		expect_int(retry_decide(&f), RETRY_WHEN_LIVE);
	}
}
