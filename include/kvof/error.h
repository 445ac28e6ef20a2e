/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The errno values that the library answers, always negative, and what each means here. The list is
 * closed: no other value is returned. docs/errors.md says the same with causes and remedies.
 *
 *	0             done
 *	-ENOENT       no such key: a miss, not a failure
 *	-EEXIST       the key exists, and the Store was to be done only if it did not
 *	-ENOSPC       no room on the array, also not after eviction
 *	-EBADMSG      the stored value is damaged, or was damaged on its way each time it was tried
 *	-EIO          the array could not carry it out (its status: see the result)
 *	-EPROTO       the array broke the protocol
 *	-ETIMEDOUT    not done by the deadline
 *	-ECONNRESET   no connection, or lost after a Store or Delete was sent: whether that took
 *	              effect is not known
 *	-ECANCELED    cancelled
 *	-EBUSY        more in flight than was agreed at open; the port or the drive is in use
 *	-ESHUTDOWN    the handle is being closed, or belongs to the process that forked this one
 *	-ENOMEM       no memory; only when something is opened or a batch is made
 *	-EMFILE       no file is left to open (ulimit -n); only when something is opened
 *	-EINVAL       an argument is wrong, or the value or key is beyond the namespace's limits
 */
#ifndef KVOF_ERROR_H
#define KVOF_ERROR_H

#include <errno.h>

#ifdef __cplusplus
extern "C" {
#endif

/**
 * kvof_error_text() - one of the values above in words
 * @err: 0 or negative; any thread
 *
 * Return: a constant string, "no such key", ...; "unknown error" for any other number.
 */
const char *kvof_error_text(int err);

#ifdef __cplusplus
}
#endif

#endif
