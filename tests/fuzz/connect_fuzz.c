/* SPDX-License-Identifier: Apache-2.0 */
/* Input: 64 bytes of a Connect command, then its data, of any length. */
#include <string.h>

#include "base/must.h"
#include "nvme/fabrics.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct nv_connect c;
	struct nv_connect_bad bad = {0};
	struct nv_connect_data again;
	struct nv_sqe sqe;
	nv_status s;

	if (size < sizeof(sqe))
		return 0;
	memcpy(&sqe, data, sizeof(sqe));
	s = nv_connect_parse(&sqe, data + sizeof(sqe), (uint32_t)(size - sizeof(sqe)), &c, &bad);
	if (!nv_status_ok(s)) {
		must(bad.why != NULL && bad.offset < (bad.in_data ? 1024 : 64));
		return 0;
	}
	must(strlen(c.subnqn) <= NV_NQN_BYTES_MAX && nv_nqn_check(c.subnqn));
	must(strlen(c.hostnqn) <= NV_NQN_BYTES_MAX && nv_nqn_check(c.hostnqn));
	must(c.sq_entries >= 2 && !bytes_all_zero(c.hostid, 16));
	must(nv_connect_build(&c, &sqe, &again) == 0);
	return 0;
}
