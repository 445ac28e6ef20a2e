/* SPDX-License-Identifier: Apache-2.0 */
/* Target strings, and the names a host goes by. */
#include "kt.h"

#include <errno.h>

#include "host/impl.h"

static int parse(const char *text, struct host_opts *o)
{
	char why[256];

	kt_noise(o, sizeof(*o));
	kt_noise(why, sizeof(why));
	return host_target_parse(text, o, why);
}

TEST(a_whole_target_is_taken_apart)
{
	struct host_opts o;

	expect_int(parse("tcp://10.1.2.3:4420/nqn.2026-11.io.kvof:array?nsid=7", &o), 0);
	expect_str(o.addr.host, "10.1.2.3");
	expect_int(o.addr.port, 4420);
	expect_str(o.subnqn, "nqn.2026-11.io.kvof:array");
	expect_int(o.nsid, 7);
}

TEST(what_is_left_out_of_a_target_is_empty)
{
	static const char *const same[] = {"tcp://127.0.0.1:1", "tcp://localhost:1",
					   "tcp://127.0.0.1:1/"};
	struct host_opts o;

	for (size_t i = 0; i < ARRAY_COUNT(same); i++) {
		expect_int(parse(same[i], &o), 0);
		expect_str(o.addr.host, "127.0.0.1");
		expect_int(o.addr.port, 1);
		expect_str(o.subnqn, "");
		expect_int(o.nsid, 0);
	}
	expect_int(parse("tcp://127.0.0.1:1?nsid=4294967294", &o), 0);
	expect(o.nsid == UINT32_C(4294967294));
}

TEST(an_ipv6_address_stands_in_brackets)
{
	struct host_opts o;

	expect_int(parse("tcp://[fe80::1]:65535/nqn.2026-11.io.kvof:a", &o), 0);
	expect_str(o.addr.host, "fe80::1");
	expect_int(o.addr.port, 65535);
	expect_int(parse("tcp://fe80::1:4420", &o), -EINVAL);
	expect_int(parse("tcp://[fe80::1]4420", &o), -EINVAL);
	expect_int(parse("tcp://[fe80::1", &o), -EINVAL);
	expect_int(parse("tcp://[]:1", &o), -EINVAL);
}

TEST(a_wrong_target_is_refused_with_a_sentence)
{
	static const char *const wrong[] = {
		"", "tcp:/", "tcp://", "http://127.0.0.1:1", "127.0.0.1:4420", "tcp://127.0.0.1",
		"tcp://127.0.0.1:", "tcp://:4420", "tcp://127.0.0.1:0", "tcp://127.0.0.1:65536",
		"tcp://127.0.0.1:99999999999", "tcp://127.0.0.1:4x", "tcp://127.0.0.1:-1",
		"tcp://300.0.0.1:1", "tcp://example.org:1", "tcp://127.0.0.1:1/array",
		"tcp://127.0.0.1:1/nqn.", "tcp://127.0.0.1:1?nsid=", "tcp://127.0.0.1:1?nsid=0",
		"tcp://127.0.0.1:1?nsid=4294967295", "tcp://127.0.0.1:1?nsid=1x",
		"tcp://127.0.0.1:1?ns=1", "tcp://127.0.0.1:1?nsid=1&x=2",
	};
	struct host_opts o;
	char why[256];

	for (size_t i = 0; i < ARRAY_COUNT(wrong); i++) {
		kt_noise(why, sizeof(why));
		if (host_target_parse(wrong[i], &o, why) != -EINVAL)
			fail_msg("\"%s\" was taken", wrong[i]);
		expect(memchr(why, 0, sizeof(why)) != NULL && strlen(why) > 10);
		expect(strchr(why, '\n') == NULL);
	}
}

TEST(a_name_longer_than_an_nqn_may_be_is_refused)
{
	char text[400] = "tcp://127.0.0.1:1/nqn.2026-11.io.kvof:";
	struct host_opts o;

	memset(text + strlen(text), 'x', 300);
	expect_int(parse(text, &o), -EINVAL);
}

TEST(a_host_without_a_name_is_called_after_its_machine_each_time_the_same)
{
	struct host_opts o = {0};
	char nqn[2][NV_NQN_BYTES_MAX + 1];
	uint8_t id[2][16];

	kt_noise(nqn, sizeof(nqn));
	kt_noise(id, sizeof(id));
	host_names_fill(&o, nqn[0], id[0]);
	host_names_fill(&o, nqn[1], id[1]);
	expect_str(nqn[0], nqn[1]);
	expect_mem(id[0], id[1], 16);
	expect(nv_nqn_check(nqn[0]));
	expect(!bytes_all_zero(id[0], 16));
}

TEST(a_given_name_and_id_are_kept_and_an_id_is_made_from_a_name)
{
	struct host_opts o = {.hostnqn = "nqn.2026-11.io.kvof:host-a"};
	char nqn[NV_NQN_BYTES_MAX + 1];
	uint8_t first[16], second[16];

	host_names_fill(&o, nqn, first);
	expect_str(nqn, "nqn.2026-11.io.kvof:host-a");
	expect(!bytes_all_zero(first, 16));
	o.hostnqn[strlen(o.hostnqn) - 1] = 'b';
	host_names_fill(&o, nqn, second);
	expect(memcmp(first, second, 16) != 0);
	memset(o.hostid, 7, 16);
	host_names_fill(&o, nqn, second);
	expect_mem(second, o.hostid, 16);
}
