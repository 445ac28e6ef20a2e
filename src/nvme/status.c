/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Status codes: names, texts, whether a retry can help, and the bridge to and from errno.
 * Invariant: every code we send or compare is a row of tbl/status.def, once. Pure; any thread.
 */
#include "nvme/status.h"

#include <errno.h>

#include "base/must.h"

enum again { RETRY, DNR };

struct row {
	uint16_t raw;
	uint8_t again;
	const char *name, *text;
};

static const struct row rows[] = {
#define STATUS(name, sct, sc, again, text) {(sct) << 8 | (sc), again, #name, text},
#include "tbl/status.def"
};

static const struct row *row_of(nv_status s)
{
	for (unsigned i = 0; i < ARRAY_COUNT(rows); i++)
		if (rows[i].raw == nv_status_code(s))
			return &rows[i];
	return NULL;
}

nv_status nv_status_for_wire(nv_status s)
{
	const struct row *row = row_of(s);

	must(row != NULL);
	return row->again == DNR ? nv_status_with_dnr(s) : s;
}

const char *nv_status_name(nv_status s)
{
	const struct row *row = row_of(s);

	return row != NULL ? row->name : "?";
}

const char *nv_status_text(nv_status s)
{
	const struct row *row = row_of(s);

	return row != NULL ? row->text : "status that is not on our list";
}

nv_status nv_status_from_errno(int err)
{
	must(err <= 0);
	switch (-err) {
	case 0:
		return NV_OK;
	case ENOENT:
		return NV_KV_KEY_NOT_FOUND;
	case EEXIST:
		return NV_KV_KEY_EXISTS;
	case ENOSPC:
		return NV_CAPACITY_EXCEEDED;
	case EBADMSG:
	case EIO:
		return NV_KV_UNRECOVERED;
	case EINVAL:
		return NV_INVALID_FIELD;
	case ECANCELED:
		return NV_ABORTED_BY_REQUEST;
	case EBUSY:
	case ENOMEM:
		return NV_INTERRUPTED;
	case ESHUTDOWN:
		return NV_NAMESPACE_NOT_READY;
	case ECONNRESET:
	case EPROTO:
		return NV_TRANSIENT_TRANSPORT;
	default:
		return NV_INTERNAL_ERROR;       /* ETIMEDOUT is one: the backend never answered */
	}
}

static int errno_of_generic(nv_status s)
{
	switch (nv_status_code(s)) {
	case NV_RAW_KV_KEY_NOT_FOUND:
		return -ENOENT;
	case NV_RAW_KV_KEY_EXISTS:
		return -EEXIST;
	case NV_RAW_CAPACITY_EXCEEDED:
		return -ENOSPC;
	case NV_RAW_KV_UNRECOVERED:
		return -EBADMSG;
	case NV_RAW_INTERNAL_ERROR:
	case NV_RAW_DATA_TRANSFER_ERROR:
		return -EIO;
	case NV_RAW_ABORTED_BY_REQUEST:
		return -ECANCELED;
	case NV_RAW_TRANSIENT_TRANSPORT:
	case NV_RAW_INTERRUPTED:
	case NV_RAW_NAMESPACE_NOT_READY:
	case NV_RAW_ABORTED_SQ_DELETED:
	case NV_RAW_ABORTED_POWER_LOSS:
	case NV_RAW_KEEP_ALIVE_EXPIRED:
		return -ECONNRESET;
	default:
		return -EINVAL;
	}
}

int nv_status_to_errno(nv_status s)
{
	if (nv_status_ok(s))
		return 0;
	switch (nv_status_code(s) >> 8) {
	case 0:
		return errno_of_generic(s);
	case 1:
		return -EINVAL;
	case 3:
		return -ECONNRESET;
	default:
		return -EIO;
	}
}
