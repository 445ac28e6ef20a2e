/* SPDX-License-Identifier: Apache-2.0 */
/*
 * May a command be sent again? Facts in, decision out; no state.
 *
 *	what happened                          Retrieve, Exist, List   Store, Delete
 *	answered: data damaged (00h/22h)       now                     now: not carried out
 *	answered: interrupted (00h/21h)        now                     now: not carried out
 *	data digest of the answer wrong        now                     (they bring no data)
 *	connection lost after it was sent      when live again         only with repeat_ok
 *
 * "When live again" is bounded by the operation's deadline and by HOST_RESET_TRIES, since a command
 * may itself be what the controller breaks over. A connection lost before the command was sent does
 * not come here. Read, Flush and Compare of blocks are as Retrieve, what changes blocks is as
 * Store.
 */
#include <errno.h>

#include "host/impl.h"

bool retry_is_lost(int res)
{
	return res == -ECONNRESET || res == -EPROTO || res == -ETIMEDOUT;
}

enum retry retry_decide(const struct retry_facts *f)
{
	bool reads = f->kind == HOST_RETRIEVE || f->kind == HOST_EXIST || f->kind == HOST_LIST ||
		     f->kind == HOST_READ || f->kind == HOST_FLUSH || f->kind == HOST_COMPARE;

	if (f->res == 0 && (nv_status_is(f->status, NV_TRANSIENT_TRANSPORT) ||
			    nv_status_is(f->status, NV_INTERRUPTED)))
		return f->digest_tries < HOST_DIGEST_TRIES ? RETRY_NOW : RETRY_NO;
	if (f->res == -EBADMSG)
		return reads && f->digest_tries < HOST_DIGEST_TRIES ? RETRY_NOW : RETRY_NO;
#ifdef KVOF_PLANT_HOST_STORE_REPEATED
	reads = true;
#endif
	if (retry_is_lost(f->res) && !f->once && f->reset_tries < HOST_RESET_TRIES)
		return reads || f->repeat_ok ? RETRY_WHEN_LIVE : RETRY_NO;
	return RETRY_NO;
}
