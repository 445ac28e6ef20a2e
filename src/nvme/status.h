/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a completion says: NV_OK, NV_INVALID_FIELD, ... (the list is tbl/status.def). A type of its
 * own, so that the compiler refuses to mix it with an errno. Pure; any thread.
 *
 * raw is the status field of a CQE without its phase bit: SC in bits 7:0, SCT in 10:8, CRD in
 * 12:11, M in 13, DNR in 14. The constants have only SC and SCT; compare through nv_status_is().
 */
#ifndef KVOF_NVME_STATUS_H
#define KVOF_NVME_STATUS_H

#include <stdbool.h>
#include <stdint.h>

typedef struct { uint16_t raw; } nv_status;

enum nv_status_bits {
	NV_STATUS_CODE = 0x07ff,       /* SCT and SC */
	NV_STATUS_MORE = 0x2000,
	NV_STATUS_DNR = 0x4000,        /* the same command would fail again */
};

/* NV_RAW_x for a switch, NV_x as a value, NV_STATUS(x) where C wants a constant initialiser. */
enum nv_status_raw {
#define STATUS(name, sct, sc, again, text) NV_RAW_##name = (sct) << 8 | (sc),
#include "tbl/status.def"
};
#define STATUS(name, sct, sc, again, text)                                                         \
	static const nv_status NV_##name __attribute__((unused)) = {(sct) << 8 | (sc)};
#include "tbl/status.def"
#define NV_STATUS(name) ((nv_status){NV_RAW_##name})

/* Type and code alone, without DNR, More and CRD: what a switch looks at. */
static inline uint16_t nv_status_code(nv_status s)
{
	return s.raw & NV_STATUS_CODE;
}

/* Same type and code; DNR, More and CRD don't count. */
static inline bool nv_status_is(nv_status s, nv_status other)
{
	return nv_status_code(s) == nv_status_code(other);
}

static inline bool nv_status_ok(nv_status s)
{
	return nv_status_code(s) == 0;
}

static inline nv_status nv_status_with_dnr(nv_status s)
{
	return (nv_status){(uint16_t)(s.raw | NV_STATUS_DNR)};
}

/* The status as it should go out: DNR set where the list says that a retry can't help. */
nv_status nv_status_for_wire(nv_status s);

/* The bytes 14..15 of a CQE: status above the phase bit, which fabrics leave zero. */
static inline uint16_t nv_status_to_cqe(nv_status s)
{
	return (uint16_t)(s.raw << 1);
}

static inline nv_status nv_status_of_cqe(uint16_t field)
{
	return (nv_status){(uint16_t)(field >> 1)};
}

/* "KV_KEY_NOT_FOUND", "key does not exist"; for a code that is not on the list "?", a phrase. */
const char *nv_status_name(nv_status s);
const char *nv_status_text(nv_status s);

/**
 * nv_status_from_errno() - the only bridge from a local failure to a protocol answer
 * @err: 0 or a negative errno of the closed vocabulary (docs/errors.md)
 *
 * A media failure (-EIO, -EBADMSG) is 88h, as the KV command set wants; a block namespace answers
 * 2/80h or 2/81h itself. Anything outside the vocabulary is NV_INTERNAL_ERROR.
 */
nv_status nv_status_from_errno(int err);

/**
 * nv_status_to_errno() - what a host's caller is told of an answer
 *
 * Return: 0; -ENOENT, -EEXIST, -ENOSPC, -EBADMSG (value damaged on the array), -EINVAL (refused as
 * wrong), -ECANCELED (aborted), -ECONNRESET (transport or path, may be sent again), -EIO else.
 */
int nv_status_to_errno(nv_status s);

#endif
