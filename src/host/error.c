/* SPDX-License-Identifier: Apache-2.0 */
/* The closed list of include/kvof/error.h in words. Pure; any thread. */
#include <kvof/error.h>

const char *kvof_error_text(int err)
{
	switch (err) {
	case 0: return "done";
	case -ENOENT: return "no such key";
	case -EEXIST: return "the key exists";
	case -ENOSPC: return "no room on the array";
	case -EBADMSG: return "the value is damaged";
	case -EIO: return "the array could not carry it out";
	case -EPROTO: return "the array broke the protocol";
	case -ETIMEDOUT: return "not done by the deadline";
	case -ECONNRESET: return "no connection to the array";
	case -ECANCELED: return "cancelled";
	case -EBUSY: return "too much in flight, or in use";
	case -ESHUTDOWN: return "closed, or in a forked child";
	case -ENOMEM: return "no memory";
	case -EMFILE: return "no file is left to open (ulimit -n)";
	case -EINVAL: return "an argument is wrong, or beyond the namespace's limits";
	default: return "unknown error";
	}
}
