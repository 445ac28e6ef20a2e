/* SPDX-License-Identifier: Apache-2.0 */
/* Input: which answer (1 byte), then what a controller sent: all that a host reads of one. */
#include <string.h>

#include "base/must.h"
#include "nvme/identify.h"
#include "nvme/kv.h"
#include "nvme/log.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void list(const uint8_t *data, size_t size)
{
	struct nv_kv_list_in in;
	struct kv_key key;
	uint64_t bytes = NV_KV_LIST_HEADER_BYTES;

	if (nv_kv_list_open(&in, data, (uint32_t)size) != 0)
		return;
	while (nv_kv_list_next(&in, &key) == 1) {
		must(key.len >= 1 && key.len <= 16);
		must(bytes_all_zero(key.byte + key.len, 16u - key.len));
		bytes += 2u + key.len;
		must(bytes <= size);
	}
}

static void identify(uint8_t which, const uint8_t page[NV_IDENTIFY_BYTES])
{
	struct nv_cap cap = {.queue_entries_max = 2, .page_shift_min = 12, .page_shift_max = 12};
	struct nv_controller_facts controller;
	struct nv_kv_facts kv;
	struct nv_block_facts block;
	struct nv_ns_ids ids;
	struct bad bad = {0};
	int rc;

	if (which == 0) {
		rc = nv_id_controller_check((const struct nv_id_controller *)page, &cap,
					    &controller, &bad);
		if (rc == 0)
			must(controller.transfer_bytes_max >= 4096 &&
			     strlen(controller.model) <= 40 &&
			     strlen(controller.subnqn) <= NV_NQN_BYTES_MAX);
	} else if (which == 1) {
		rc = nv_id_kv_namespace_check((const struct nv_id_kv_namespace *)page, &kv, &bad);
		if (rc == 0)
			must(kv.value_bytes_max > 0 && kv.key_bytes_max >= 1 &&
			     kv.key_bytes_max <= 16);
	} else if (which == 2) {
		rc = nv_id_namespace_check((const struct nv_id_namespace *)page, &block, &bad);
		if (rc == 0)
			must(block.blocks <= (UINT64_C(1) << 63) / block.block_bytes);
	} else {
		rc = nv_ns_ids_read(page, &ids, &bad);
	}
	must(rc == 0 || (bad.why != NULL && bad.offset < NV_IDENTIFY_BYTES));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	uint8_t page[NV_IDENTIFY_BYTES] = {0};
	struct nv_discovery_entry entry = {0};
	struct nv_discovered found;
	struct bad bad;

	if (size < 1)
		return 0;
	data++;
	size--;
	if (data[-1] % 6 == 4) {
		list(data, size);
	} else if (data[-1] % 6 == 5) {
		memcpy(&entry, data, size < sizeof(entry) ? size : sizeof(entry));
		if (nv_discovery_entry_check(&entry, &found, &bad) == 0) {
			must(strlen(found.traddr) <= 256 && strlen(found.trsvcid) <= 32);
			must(nv_nqn_check(found.subnqn));
		}
	} else {
		memcpy(page, data, size < sizeof(page) ? size : sizeof(page));
		identify(data[-1] % 6, page);
	}
	return 0;
}
