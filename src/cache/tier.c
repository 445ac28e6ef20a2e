/* SPDX-License-Identifier: Apache-2.0 */
/* What is the same for all tiers: the check of a block, and how it is cut along layers. Pure. */
#include <errno.h>

#include "cache/tier.h"

#define CUT_SHARES_MORE 16u                /* than needed, in search of even ones */

/* A layer is larger than a part: the fewest even shares. 0: there are none worth it. */
static uint32_t layer_share(uint64_t layer_bytes, uint32_t cut_bytes)
{
	uint64_t least = (layer_bytes + cut_bytes - 1) / cut_bytes;

	for (uint64_t n = least; n < least + CUT_SHARES_MORE; n++)
		if (layer_bytes % n == 0 && layer_bytes / n >= TIER_CUT_MIN)
			return (uint32_t)(layer_bytes / n);
	return 0;
}

uint32_t tier_cut_layers(uint32_t cut_bytes, uint32_t layer_count, uint64_t block_bytes)
{
	uint64_t layer_bytes, cut;

	if (layer_count == 0 || block_bytes <= cut_bytes || block_bytes % layer_count != 0)
		return cut_bytes;
	layer_bytes = block_bytes / layer_count;
	cut = layer_bytes <= cut_bytes ? cut_bytes / layer_bytes * layer_bytes :
	      layer_share(layer_bytes, cut_bytes);
	return cut == 0 || block_bytes / cut >= FRAME_PARTS_MAX ? cut_bytes : (uint32_t)cut;
}

void tier_cut_set(struct tier *t, uint32_t cut_bytes, uint32_t layer_count)
{
	must(cut_bytes >= TIER_CUT_MIN && cut_bytes <= FRAME_CUT_MAX);
	t->cut_bytes = cut_bytes;
	t->layer_count = layer_count;
}

int tier_block_check(const struct kvof_block *b, uint32_t cut_bytes)
{
	uint64_t bytes = 0;

	if (b->iov_count > KVOF_IOV_MAX || (b->iov_count > 0 && b->iov == NULL))
		return -EINVAL;
	if (b->bytes > TIER_BLOCK_BYTES_MAX || b->bytes / cut_bytes >= FRAME_PARTS_MAX)
		return -EINVAL;
	for (uint32_t i = 0; i < b->iov_count; i++) {
		if (b->iov[i].iov_len > TIER_BLOCK_BYTES_MAX ||
		    (b->iov[i].iov_base == NULL && b->iov[i].iov_len > 0))
			return -EINVAL;
		bytes += b->iov[i].iov_len;
	}
	return bytes == b->bytes ? 0 : -EINVAL;
}
