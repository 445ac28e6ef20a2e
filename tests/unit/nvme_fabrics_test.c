/* SPDX-License-Identifier: Apache-2.0 */
#include "kt.h"

#include <errno.h>

#include "../vectors/nvme.h"
#include "base/must.h"
#include "nvme/fabrics.h"

static struct nv_connect good_connect(void)
{
	struct nv_connect c = {
		.qid = 0, .sq_entries = 32, .kato_ms = 120000, .cntlid = NV_CNTLID_DYNAMIC,
		.hostid = {1, 2, 3}, .subnqn = "nqn.2026-11.io.kvof:array",
		.hostnqn = "nqn.2014-08.org.nvmexpress:uuid:11111111-2222-3333-4444-555555555555",
	};

	return c;
}

TEST(connect_is_built_as_the_document_has_it)
{
	struct nv_connect c = good_connect();
	struct nv_connect_data data;
	struct nv_sqe sqe;

	kt_noise(&data, sizeof(data));
	expect_int(nv_connect_build(&c, &sqe, &data), 0);
	expect_mem(&sqe, vec_connect + 8, 64);
	expect_int(data.cntlid.b[0], 0xff);
	expect_mem(data.subnqn, c.subnqn, strlen(c.subnqn) + 1);
	expect(bytes_all_zero(data.reserved768, sizeof(data.reserved768)));
}

TEST(connect_comes_back_as_it_was_sent)
{
	struct nv_connect c = good_connect(), out;
	struct nv_connect_bad bad;
	struct nv_connect_data data;
	struct nv_sqe sqe;

	expect_int(nv_connect_build(&c, &sqe, &data), 0);
	kt_noise(&out, sizeof(out));
	expect(nv_status_ok(nv_connect_parse(&sqe, &data, sizeof(data), &out, &bad)));
	expect_int(out.sq_entries, 32);
	expect_int(out.kato_ms, 120000);
	expect_int(out.cntlid, 0xffff);
	expect_mem(out.hostid, c.hostid, 16);
	expect_str(out.subnqn, c.subnqn);
	expect_str(out.hostnqn, c.hostnqn);
}

static void expect_connect_refused(const struct nv_sqe *sqe, const struct nv_connect_data *data,
				   uint32_t bytes, nv_status status, uint32_t dw0)
{
	struct nv_connect out;
	struct nv_connect_bad bad;

	kt_noise(&bad, sizeof(bad));
	expect_int(nv_connect_parse(sqe, data, bytes, &out, &bad).raw, status.raw);
	expect_int(nv_connect_bad_dw0(&bad), dw0);
}

TEST(a_wrong_connect_names_the_byte_and_where_it_is)
{
	struct nv_connect c = good_connect();
	struct nv_connect_data good, data;
	struct nv_sqe sqe, wrong;

	expect_int(nv_connect_build(&c, &sqe, &good), 0);
	expect_connect_refused(&sqe, &good, 1023, NV_CONNECT_INVALID, 32);
	expect_connect_refused(&sqe, &good, 0, NV_CONNECT_INVALID, 32);
	wrong = sqe;
	((struct nv_connect_sqe *)&wrong)->recfmt = le16_of(1);
	expect_connect_refused(&wrong, &good, 1024, NV_CONNECT_FORMAT, 40);
	wrong = sqe;
	((struct nv_connect_sqe *)&wrong)->sqsize = le16_of(0);
	expect_connect_refused(&wrong, &good, 1024, NV_CONNECT_INVALID, 44);
	data = good;
	memset(data.hostid, 0, 16);
	expect_connect_refused(&sqe, &data, 1024, NV_CONNECT_INVALID, 1u << 16 | 0);
	data = good;
	memset(data.subnqn, 'n', 256);
	expect_connect_refused(&sqe, &data, 1024, NV_CONNECT_INVALID, 1u << 16 | 256);
	data = good;
	data.hostnqn[0] = '\0';
	expect_connect_refused(&sqe, &data, 1024, NV_CONNECT_INVALID, 1u << 16 | 512);
	data = good;
	memcpy(data.hostnqn, "iqn.", 4);
	expect_connect_refused(&sqe, &data, 1024, NV_CONNECT_INVALID, 1u << 16 | 512);
}

TEST(a_name_ends_within_its_field_or_is_none)
{
	uint8_t field[256];
	char out[NV_NQN_BYTES_MAX + 1];

	memset(field, 'x', sizeof(field));
	memcpy(field, "nqn.2026-11.io.kvof:", 20);
	expect(!nv_nqn_of_field(field, out));
	field[224] = '\0';
	expect(!nv_nqn_of_field(field, out));
	field[223] = '\0';
	expect(nv_nqn_of_field(field, out));
	expect_int(strlen(out), 223);
	field[40] = ' ';
	expect(!nv_nqn_of_field(field, out));
}

TEST(only_nqns_are_nqns)
{
	static const char *const wrong[] = {
		"", "nqn", "nqn.", "nqn.2026-11.", "iqn.2026-11.io.kvof", "nqn.2026.11.io.kvof",
		"nqn.202x-11.io.kvof", "NQN.2026-11.io.kvof", "nqn.2026-11.io kvof",
		"nqn.2026-11.io.kvof\n",
		/* Not UTF-8: cut short, overlong, a surrogate, past the last character. */
		"nqn.2026-11.io.\xb9", "nqn.2026-11.io.\xc3", "nqn.2026-11.io.\xe2\x82",
		"nqn.2026-11.io.\xc3(", "nqn.2026-11.io.\xc0\xaf", "nqn.2026-11.io.\xe0\x80\xaf",
		"nqn.2026-11.io.\xed\xa0\x80", "nqn.2026-11.io.\xf4\x90\x80\x80",
		"nqn.2026-11.io.\xf8\x88\x80\x80\x80", "nqn.2026-11.io.\xff",
	};

	for (unsigned i = 0; i < ARRAY_COUNT(wrong); i++)
		expect(!nv_nqn_check(wrong[i]));
	expect(nv_nqn_check(NV_DISCOVERY_NQN));
	expect(nv_nqn_check("nqn.2026-11.io.kvof:array"));
	expect(nv_nqn_check("nqn.2026-11.io.\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80"));
	struct nv_connect c = good_connect();
	struct nv_connect_data data;
	struct nv_sqe sqe;

	c.hostnqn[0] = '\0';
	expect_int(nv_connect_build(&c, &sqe, &data), -EINVAL);
}

TEST(properties_are_built_and_read_as_the_document_has_them)
{
	struct nv_property cc = {NV_PROP_CC, 4, 0x00460061}, cap = {NV_PROP_CAP, 8, 0}, out;
	struct nv_sqe set = nv_property_set_build(&cc), get = nv_property_get_build(&cap);
	struct bad bad;

	expect_mem(&set, vec_property_set_cc, 64);
	expect_mem(&get, vec_property_get_cap, 64);
	kt_noise(&out, sizeof(out));
	expect(nv_status_ok(nv_property_parse(&set, &out, &bad)));
	expect_int(out.offset, 0x14);
	expect_int(out.size_bytes, 4);
	expect_int(out.value, 0x00460061);
	expect_int(nv_fctype(&set), NV_FABRICS_PROPERTY_SET);
}

TEST(a_property_of_the_wrong_size_is_refused)
{
	struct nv_property cap = {NV_PROP_CAP, 4, 0}, vs = {NV_PROP_VS, 8, 0}, out;
	struct nv_sqe sqe = nv_property_get_build(&cap);
	struct bad bad;

	expect_int(nv_property_parse(&sqe, &out, &bad).raw, NV_RAW_CONNECT_INVALID);
	expect_int(bad.offset, 40);
	sqe = nv_property_get_build(&vs);
	expect_int(nv_property_parse(&sqe, &out, &bad).raw, NV_RAW_CONNECT_INVALID);
	sqe = nv_property_get_build(&(struct nv_property){NV_PROP_CAP, 8, 0});
	((struct nv_property_sqe *)&sqe)->attrib = 2;
	expect_int(nv_property_parse(&sqe, &out, &bad).raw, NV_RAW_CONNECT_INVALID);
}

TEST(cap_says_all_command_sets_in_bit_43)
{
	struct nv_cap cap = {.queue_entries_max = 128, .contiguous_queues = true,
			     .timeout_500ms = 15, .css_iocs = true, .css_nvm = true,
			     .page_shift_min = 12, .page_shift_max = 16};
	uint64_t raw = nv_cap_pack(&cap);
	struct nv_cap out = nv_cap_unpack(raw);

	expect(raw == UINT64_C(0x004008200f01007f));
	expect_int(out.queue_entries_max, 128);
	expect(out.css_iocs && out.css_nvm && !out.css_admin_only && out.contiguous_queues);
	expect_int(out.page_shift_min, 12);
	expect_int(out.page_shift_max, 16);
}

TEST(cc_is_enabled_only_with_what_cap_offers)
{
	struct nv_cap cap = {.queue_entries_max = 128, .css_iocs = true, .css_nvm = true,
			     .page_shift_min = 12, .page_shift_max = 12};
	static const uint32_t good[] = {0, 0x00460001, 0x00460061, 0x00464061, 0x00000000};
	static const uint32_t wrong[] = {
		0x00460781,             /* MPS 15 */
		0x00463801,             /* AMS 7 */
		0x00460051,             /* CSS 5 */
		0x00460071,             /* CSS 7: not offered */
		0x00000001, 0x004f0001, /* entry sizes 0, 15 */
		0x0046c001,             /* SHN 3 */
		0x00460003, 0x80460001, /* reserved bits */
	};
	struct bad bad;

	for (unsigned i = 0; i < ARRAY_COUNT(good); i++)
		expect(nv_status_ok(nv_cc_check(good[i], &cap, &bad)));
	for (unsigned i = 0; i < ARRAY_COUNT(wrong); i++) {
		expect_int(nv_cc_check(wrong[i], &cap, &bad).raw, NV_RAW_CONNECT_INVALID);
		expect_int(bad.offset, 48);
	}
	cap.css_iocs = false;
	expect(!nv_status_ok(nv_cc_check(0x00460061, &cap, &bad)));
}
