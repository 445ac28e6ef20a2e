/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Purpose: opens and locks a real drive for a store or a set; a failure is told in words that name
 * the drive and what to do.
 *
 * Invariant: a call that fails leaves no open disk, and no file that was not there before.
 *
 * Thread: the one that owns the loop, or before it runs. Blocks.
 */
#include "store/attach.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "base/must.h"
#include "store/format.h"

#define ATTACH_TRIES 3

struct why {
	char *text;
	size_t bytes;
};

__attribute__((format(printf, 3, 4))) static int fail(struct why why, int rc, const char *format,
						       ...)
{
	va_list args;

	must(rc < 0);
	va_start(args, format);
	vsnprintf(why.text, why.bytes, format, args);
	va_end(args);
	return rc;
}

/* disk_open() said -EINVAL: which of the things that it may mean? */
static const char *unfit(const char *path)
{
	struct stat st;

	if (stat(path, &st) != 0)
		return "not a file or block device of at least 1 MiB";
	if (S_ISDIR(st.st_mode))
		return "a directory";
	if (!S_ISREG(st.st_mode) && !S_ISBLK(st.st_mode))
		return "not a file or block device";
	if (access(path, R_OK | W_OK) != 0)
		return "no permission to read and write it";
	return "not writable, or smaller than 1 MiB; size= fills an empty file";
}

/* size= makes a file; it does not change one. */
static int size_check(struct why why, const struct attach *a)
{
	const struct disk_info *info = disk_info(a->disk);
	uint64_t want = a->want->bytes & ~(uint64_t)(info->align_bytes - 1);

	if (info->bytes < FMT_BLANK_BYTES)
		return fail(why, -EINVAL, "drive %s: too small", a->want->path);
	if (want == 0 || want == info->bytes)
		return 0;
	return fail(why, -EINVAL, "drive %s: has %" PRIu64 " bytes, not the %" PRIu64 " of size=; "
		    "leave size= out, or remove the file to make it anew", a->want->path,
		    info->bytes, a->want->bytes);
}

static int open_failed(struct why why, const struct store_drive *want, int rc)
{
	switch (rc) {
	case -ENOENT:
		return fail(why, rc, want->bytes != 0 ?
			    "drive %s: can't be made: its folder does not exist" :
			    "drive %s: missing; give size= to make it",
			    want->path);
	case -ENOSPC:
		return fail(why, rc, "drive %s: its file system has no space for the %" PRIu64
			    " bytes of size=, which are taken at once", want->path, want->bytes);
	case -EBUSY:
		return fail(why, rc, "drive %s: in use by another process", want->path);
	case -EINVAL:
		return fail(why, rc, "drive %s: %s", want->path, unfit(want->path));
	default:
		return fail(why, rc, "drive %s: can't be opened: %s", want->path, strerror(-rc));
	}
}

int attach_drive(struct loop *loop, struct attach *a, char *text, size_t text_bytes)
{
	const struct store_drive *want = a->want;
	struct why why = {text, text_bytes};
	bool memory = strcmp(want->path, "mem") == 0;
	struct disk_opts opts = {.create_bytes = want->bytes, .memory = memory};
	int rc;

	must(a->disk == NULL && want->disk == NULL);
	rc = disk_open(loop, want->path, &opts, &a->disk);
	if ((rc == -ENOENT || rc == -EIO) && a->degraded) {
		log_warn("store drive %s: %s; opened without it", want->path,
			 rc == -EIO ? "can't be opened" : "missing");
		return 0;
	}
	if (rc != 0)
		return open_failed(why, want, rc);
	rc = size_check(why, a);
	if (rc != 0)
		disk_close(&a->disk);
	return rc;
}

void attach_undo(const struct disk *disk)
{
	if (disk != NULL && disk_info(disk)->made)
		unlink(disk_info(disk)->path);
}

void attach_part_close(struct disk **disk, _Atomic uint32_t *open)
{
	disk_close(disk);
	if (open != NULL)
		must(atomic_fetch_sub(open, 1) > 0);
}

int attach_read(struct disk *disk, void *into, uint64_t bytes, uint64_t offset_bytes)
{
	int rc = -EIO;

	must(bytes > 0);
	for (int i = 0; i < ATTACH_TRIES && rc != 0; i++)
		rc = disk_read_now(disk, into, bytes, offset_bytes);
	return rc;
}

int attach_write(struct disk *disk, const void *from, uint64_t bytes, uint64_t offset_bytes)
{
	int rc = -EIO;

	must(bytes > 0);
	for (int i = 0; i < ATTACH_TRIES && rc != 0; i++)
		rc = disk_write_now(disk, from, bytes, offset_bytes);
	return rc;
}
