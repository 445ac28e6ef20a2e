/* SPDX-License-Identifier: Apache-2.0 */
/* Errno values of calls that give a descriptor, in words of docs/errors.md. Pure; any thread. */
#ifndef KVOF_BASE_FILES_H
#define KVOF_BASE_FILES_H

#include <errno.h>
#include <stdbool.h>

/* The process, or the machine, may open no more files. */
static inline bool files_ran_out(int err)
{
	return err == EMFILE || err == ENFILE;
}

/* Of a call that gave no descriptor: -EMFILE, else -ENOMEM. */
static inline int files_errno(int err)
{
	return files_ran_out(err) ? -EMFILE : -ENOMEM;
}

#endif
