/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Purpose: drives: files and block devices opened O_DIRECT, and memory.
 *
 * Theory: a transfer is one prepared operation; where the kernel moved less than asked, the rest
 * is asked for again, piece by piece, until it is whole or nothing moves. A drive of memory copies
 * at once and completes in the next round of callbacks. A part shares the descriptor or the memory
 * of the whole; a transfer that reaches over the end of an extent is asked for in steps.
 *
 * Invariants: io->lease holds the place reached; what the counters say was really moved; no file
 * grows beyond the size it was made with, since every transfer is held to disk_info.bytes. The
 * extents of a part are sorted by their place in the part, without gaps; neighbours are one.
 *
 * Thread: the loop's own; parts of one drive live on several loops, and share nothing that changes
 * but the count of them.
 */
#include "loop/disk.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/log.h"
#include "loop/disk_check.h"
#include "loop/iov.h"
#include "loop/lane.h"
#include "loop/plain.h"
#include "loop/ring.h"

#define RING_DISK_MAGIC 0xd15c0000u
#define DISK_BYTES_MIN MiB
#define MEMORY_POPULATE_MIN GiB
#define DISK_ALIGN 4096u
#define DISK_PART_ALIGN 4096u

enum disk_kind { DISK_READ, DISK_WRITE, DISK_FLUSH, DISK_DISCARD, DISK_ZERO };

/* How zeros are made, in scratch[1]: the first that the drive takes. */
enum disk_zero_way { ZERO_RANGE, ZERO_PUNCH, ZERO_WRITE };
#define DISK_ZEROS_BYTES (64 * KiB)
static const _Alignas(4096) uint8_t disk_zeros[DISK_ZEROS_BYTES];

struct extent {
	uint64_t at_bytes;              /* in the part */
	uint64_t offset_bytes, bytes;   /* in the whole */
};

struct disk {
	uint32_t magic;
	int fd;                         /* -1: memory */
	int place;                      /* of fd among the loop's files, or RING_FIXED_NONE */
	uint8_t *memory;
	struct loop *loop;
	struct disk_info info;
	struct disk_counts counts;
	unsigned flying;
	struct disk *whole;             /* NULL: this is one */
	_Atomic unsigned parts;         /* open, of this whole */
	struct extent *extent;          /* [extent_count]; a whole has one */
	unsigned extent_count;
};

struct disk_lease {
	struct iov_at at;
	uint64_t done;
};

_Static_assert(sizeof(struct disk_lease) <= sizeof(((struct disk_io *)0)->lease),
	       "a transfer keeps its place in its own lease");

static struct disk_lease *lease_of(struct disk_io *io)
{
	return (struct disk_lease *)(void *)io->lease;
}

/* The closed list of docs/errors.md. */
static int disk_errno(int err)
{
	must(err > 0);
	if (err == ENOSPC || err == EDQUOT || err == EFBIG)
		return -ENOSPC;
	return err == ECANCELED ? -ECANCELED : -EIO;
}

/* ---- opening ---- */

static int disk_open_errno(int err)
{
	switch (err) {
	case ENOENT:
		return -ENOENT;
	case EBUSY:
	case EWOULDBLOCK:
	case ETXTBSY:
		return -EBUSY;
	case ENOSPC:
	case EDQUOT:
	case EFBIG:
		return -ENOSPC;
	case ENOMEM:
		return -ENOMEM;
	case EMFILE:
	case ENFILE:
		return -EMFILE;
	case EISDIR:
	case ENOTDIR:
	case ENXIO:
	case ENODEV:
	case EACCES:
	case EPERM:
	case EROFS:
	case ELOOP:
	case ENAMETOOLONG:
	case EINVAL:
		return -EINVAL;
	default:
		return -EIO;
	}
}

/*
 * A process that was killed keeps its locks until the kernel has ended its I/O, a little after it
 * was reaped. That is what makes the lock safe against its last writes, so an opener waits for it,
 * within the second in which a wrong option is to be told.
 */
#define DISK_LOCK_TRIES 45u
#define DISK_LOCK_PAUSE_NS (20 * NS_PER_MS)
#define TAKE_BYTES (4 * MiB)

static void disk_lock_pause(void)
{
	struct timespec pause = {.tv_nsec = (long)DISK_LOCK_PAUSE_NS};

	nanosleep(&pause, NULL);
}

static int disk_lock(int fd)
{
	for (unsigned i = 0; flock(fd, LOCK_EX | LOCK_NB) != 0; i++) {
		if ((errno != EWOULDBLOCK && errno != EINTR) || i == DISK_LOCK_TRIES)
			return -errno;
		disk_lock_pause();
	}
	return 0;
}

static int disk_open_flags(const char *path, int flags, bool *direct)
{
	int fd = open(path, flags | O_RDWR | O_DIRECT | O_CLOEXEC | O_NONBLOCK, 0600);

	*direct = true;
	if (fd >= 0 || errno != EINVAL)
		return fd;
	*direct = false;
	fd = open(path, (flags & ~(O_CREAT | O_EXCL)) | O_RDWR | O_CLOEXEC | O_NONBLOCK);
	if (fd < 0 && (flags & O_CREAT))
		fd = open(path, flags | O_RDWR | O_CLOEXEC | O_NONBLOCK, 0600);
	return fd;
}

static int disk_open_block(const char *path, bool *direct)
{
	int fd = disk_open_flags(path, O_EXCL, direct);

	for (unsigned i = 0; fd < 0 && errno == EBUSY && i < DISK_LOCK_TRIES; i++) {
		disk_lock_pause();
		fd = disk_open_flags(path, O_EXCL, direct);
	}
	return fd;
}

/* tmpfs gives up where a signal, or work that io_uring left for this thread, waits, and undoes what
 * the call has done: from then on in pieces that end before the next one. */
static int blocks_take(int fd, uint64_t bytes)
{
	uint64_t piece = bytes, at = 0;

	while (at < bytes) {
		uint64_t n = bytes_min(piece, bytes - at);

		if (fallocate(fd, 0, (off_t)at, (off_t)n) == 0)
			at += n;
		else if (errno == EINTR)
			piece = TAKE_BYTES;
		else
			return -errno;
	}
	return 0;
}

/*
 * Gives the file its blocks, or at least its size, where it has none yet. What can't fit is refused
 * before: taking all that is free and giving it back fails everybody else's writes meanwhile.
 */
static int disk_file_size(int fd, uint64_t bytes)
{
	struct statvfs fs;
	int rc;

	if (fstatvfs(fd, &fs) == 0 && fs.f_blocks > 0 && bytes / fs.f_frsize > fs.f_bfree)
		return -ENOSPC;
	rc = blocks_take(fd, bytes);
	if ((rc == -EOPNOTSUPP || rc == -ENOSYS) && ftruncate(fd, (off_t)bytes) == 0)
		rc = 0;
	if (rc != 0)
		return rc;
	return fsync(fd) == 0 ? 0 : -errno;
}

static uint32_t disk_align(int fd, bool block_device)
{
	uint32_t align = DISK_ALIGN;

	if (block_device) {
		int sector = 0;

		if (ioctl(fd, BLKSSZGET, &sector) == 0 && sector > 0)
			align = (uint32_t)sector;
	} else {
#ifdef STATX_DIOALIGN
		struct statx stx;

		if (statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &stx) == 0 &&
		    (stx.stx_mask & STATX_DIOALIGN) && stx.stx_dio_offset_align > 0)
			align = stx.stx_dio_mem_align > stx.stx_dio_offset_align ?
				stx.stx_dio_mem_align : stx.stx_dio_offset_align;
#endif
	}
	return align <= 512 ? 512 : DISK_ALIGN;
}

static int disk_file_look(struct disk *d, const struct disk_opts *opts, bool *fresh)
{
	struct stat st;
	uint64_t bytes;
	int rc;

	if (fstat(d->fd, &st) != 0)
		return -EIO;
	if (!S_ISREG(st.st_mode) && !S_ISBLK(st.st_mode))
		return -EINVAL;
	d->info.block_device = S_ISBLK(st.st_mode);
	rc = disk_lock(d->fd);
	if (rc != 0)
		return disk_open_errno(-rc);
	d->info.align_bytes = disk_align(d->fd, d->info.block_device);
	if (d->info.block_device) {
		if (ioctl(d->fd, BLKGETSIZE64, &bytes) != 0)
			return -EIO;
	} else {
		if (fstat(d->fd, &st) != 0)     /* again, under the lock */
			return -EIO;
		bytes = (uint64_t)st.st_size;
		if (bytes == 0 && opts->create_bytes >= DISK_BYTES_MIN) {
			*fresh = true;
			bytes = opts->create_bytes & ~(uint64_t)(d->info.align_bytes - 1);
			rc = disk_file_size(d->fd, bytes);
			if (rc != 0)
				return disk_open_errno(-rc);
		}
	}
	d->info.bytes = bytes & ~(uint64_t)(d->info.align_bytes - 1);
	return d->info.bytes < DISK_BYTES_MIN ? -EINVAL : 0;
}

static int disk_file_open(struct disk *d, const char *path, const struct disk_opts *opts)
{
	struct stat st;
	bool fresh = false, created = false, direct;
	int rc;

	if (opts->create_bytes != 0 && opts->create_bytes < DISK_BYTES_MIN)
		return -EINVAL;
	if (stat(path, &st) == 0 && S_ISBLK(st.st_mode))
		d->fd = disk_open_block(path, &direct);
	else
		d->fd = disk_open_flags(path, 0, &direct);
	if (d->fd < 0 && errno == ENOENT && opts->create_bytes != 0) {
		d->fd = disk_open_flags(path, O_CREAT, &direct);
		created = d->fd >= 0;
	}
	if (d->fd < 0)
		return disk_open_errno(errno);
	rc = disk_file_look(d, opts, &fresh);
	if (rc != 0) {
		if (fresh)
			(void)ftruncate(d->fd, 0);
		if (fresh && created)
			unlink(path);
		close(d->fd);
		return rc;
	}
	d->info.made = created;
	if (!direct)
		log_warn("drive %s: the file system has no O_DIRECT; the page cache is in between",
			 path);
	return 0;
}

/* What programs can still have, without swapping. 0: not known. */
static uint64_t memory_available(void)
{
	FILE *f = fopen("/proc/meminfo", "re");
	unsigned long long kib = 0;
	char line[128];

	if (f == NULL)
		return 0;
	while (fgets(line, sizeof(line), f) != NULL)
		if (sscanf(line, "MemAvailable: %llu kB", &kib) == 1)
			break;
	fclose(f);
	return kib * KiB;
}

/* Memory is bought at start where there is so much of it: a first write, which has its pages made,
 * cost seven times the CPU of the next one. A small drive is written all over in a second anyway,
 * and starts sooner so. */
static void memory_populate(void *at, uint64_t bytes)
{
	if (bytes >= MEMORY_POPULATE_MIN && bytes <= memory_available() / 2)
		(void)madvise(at, bytes, MADV_POPULATE_WRITE);
}

static int disk_memory_open(struct disk *d, const struct disk_opts *opts)
{
	void *at;

	d->info.bytes = opts->create_bytes & ~(uint64_t)(DISK_ALIGN - 1);
	d->info.align_bytes = DISK_ALIGN;
	d->info.memory = true;
	d->fd = -1;
	if (d->info.bytes < DISK_BYTES_MIN)
		return -EINVAL;
	at = mmap(NULL, d->info.bytes, PROT_READ | PROT_WRITE,
		  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (at == MAP_FAILED)
		return -ENOMEM;
	(void)madvise(at, d->info.bytes, MADV_HUGEPAGE);
	memory_populate(at, d->info.bytes);
	d->memory = at;
	return 0;
}

/* Makes the whole drive's file known to the loop, or undoes its opening. */
static int disk_place_take(struct disk *d)
{
	int rc = 0;

	d->place = RING_FIXED_NONE;
	if (d->fd >= 0)
		rc = ring_file_add(d->loop, d->fd, &d->place);
	if (rc != 0) {
		if (d->info.made)
			unlink(d->info.path);
		close(d->fd);
	}
	return rc;
}

int disk_open(struct loop *loop, const char *path, const struct disk_opts *opts, struct disk **out)
{
	struct disk *d;
	int rc;

	OBJ_CHECK(loop, RING_LOOP_MAGIC);
	loop_must_own(loop);
	if (strlen(path) >= sizeof(d->info.path))
		return -EINVAL;
	d = calloc(1, sizeof(*d));
	if (d == NULL)
		return -ENOMEM;
	OBJ_INIT(d, RING_DISK_MAGIC);
	d->loop = loop;
	memcpy(d->info.path, path, strlen(path) + 1);
	d->extent = calloc(1, sizeof(*d->extent));
	if (d->extent == NULL)
		rc = -ENOMEM;
	else
		rc = opts->memory ? disk_memory_open(d, opts) : disk_file_open(d, path, opts);
	if (rc == 0)
		rc = disk_place_take(d);
	if (rc != 0) {
		free(d->extent);
		free(d);
		return rc;
	}
	d->extent[0].bytes = d->info.bytes;
	d->extent_count = 1;
	loop->disks++;
	*out = d;
	return 0;
}

/* Copies the extents, neighbours as one; the part's size comes out. -EINVAL: one is none. */
static int extents_take(struct disk *d, const struct disk *whole, const struct disk_extent *from,
			unsigned count)
{
	uint64_t mask = DISK_PART_ALIGN - 1;

	for (unsigned i = 0; i < count; i++) {
		struct extent *last = &d->extent[d->extent_count];

		if (from[i].bytes == 0 || ((from[i].bytes | from[i].offset_bytes) & mask) != 0 ||
		    from[i].bytes > whole->info.bytes ||
		    from[i].offset_bytes > whole->info.bytes - from[i].bytes)
			return -EINVAL;
		if (d->extent_count > 0 &&
		    last[-1].offset_bytes + last[-1].bytes == from[i].offset_bytes)
			last[-1].bytes += from[i].bytes;
		else
			d->extent[d->extent_count++] = (struct extent){
				d->info.bytes, from[i].offset_bytes, from[i].bytes};
		d->info.bytes += from[i].bytes;
	}
	return count == 0 ? -EINVAL : 0;
}

int disk_open_part(struct loop *loop, struct disk *whole, const struct disk_extent *extents,
		   unsigned extent_count, struct disk **out)
{
	struct disk *d = calloc(1, sizeof(*d));
	int rc = -ENOMEM;

	OBJ_CHECK(loop, RING_LOOP_MAGIC);
	OBJ_CHECK(whole, RING_DISK_MAGIC);
	loop_must_own(loop);
	must(whole->whole == NULL);
	if (d != NULL)
		d->extent = calloc(extent_count + 1, sizeof(*d->extent));
	if (d == NULL || d->extent == NULL)
		goto failed;
	OBJ_INIT(d, RING_DISK_MAGIC);
	d->loop = loop;
	d->whole = whole;
	d->info = whole->info;
	d->info.made = false;
	d->info.bytes = 0;
	d->fd = whole->fd;
	d->memory = whole->memory;
	rc = extents_take(d, whole, extents, extent_count);
	d->place = RING_FIXED_NONE;
	if (rc == 0 && d->fd >= 0)
		rc = ring_file_add(loop, d->fd, &d->place);
	if (rc != 0)
		goto failed;
	atomic_fetch_add(&whole->parts, 1);
	loop->disks++;
	*out = d;
	return 0;
failed:
	if (d != NULL)
		free(d->extent);
	free(d);
	return rc;
}

/* Where a place of the disk lies in the whole; *rest: bytes from there to the end of the extent. */
static uint64_t disk_place(const struct disk *d, uint64_t at_bytes, uint64_t *rest)
{
	unsigned low = 0, high = d->extent_count;

	must(at_bytes < d->info.bytes);
	while (high - low > 1) {
		unsigned middle = low + (high - low) / 2;

		if (d->extent[middle].at_bytes <= at_bytes)
			low = middle;
		else
			high = middle;
	}
	at_bytes -= d->extent[low].at_bytes;
	must(at_bytes < d->extent[low].bytes);
	*rest = d->extent[low].bytes - at_bytes;
	return d->extent[low].offset_bytes + at_bytes;
}

unsigned disk_parts(const struct disk *whole)
{
	OBJ_CHECK(whole, RING_DISK_MAGIC);
	return atomic_load(&whole->parts);
}

void disk_close(struct disk **disk)
{
	struct disk *d;

	OBJ_TAKE(d, disk, RING_DISK_MAGIC);
	loop_must_own(d->loop);
	must(d->flying == 0 && atomic_load(&d->parts) == 0);
	ring_file_remove(d->loop, d->place);
	if (d->whole != NULL) {
		must(atomic_fetch_sub(&d->whole->parts, 1) > 0);
	} else if (d->memory != NULL) {
		munmap(d->memory, d->info.bytes);
	} else {
		/* not by close(): the ring may still know the file */
		(void)flock(d->fd, LOCK_UN);
		close(d->fd);
	}
	must(d->loop->disks > 0);
	d->loop->disks--;
	d->magic = 0;
	free(d->extent);
	free(d);
}

const struct disk_info *disk_info(const struct disk *disk)
{
	OBJ_CHECK(disk, RING_DISK_MAGIC);
	return &disk->info;
}

const struct disk_counts *disk_counts(const struct disk *disk)
{
	OBJ_CHECK(disk, RING_DISK_MAGIC);
	return &disk->counts;
}

/* ---- transfers ---- */

static void disk_count(struct disk *d, enum disk_kind kind, uint64_t bytes, int rc)
{
	if (rc != 0) {
		d->counts.errors++;
		return;
	}
	switch (kind) {
	case DISK_READ:
		d->counts.reads++;
		d->counts.read_bytes += bytes;
		break;
	case DISK_WRITE:
		d->counts.writes++;
		d->counts.write_bytes += bytes;
		break;
	case DISK_FLUSH:
		d->counts.flushes++;
		break;
	case DISK_DISCARD:
		d->counts.discards++;
		break;
	case DISK_ZERO:
		d->counts.zeroes++;
		break;
	}
}

/* Whole pieces at hand that fit into `room` bytes. */
static unsigned pieces_within(const struct iov_at *at, uint64_t room)
{
	unsigned count = 0;

	while (at->into == 0 && count < at->count && at->iov[count].iov_len <= room)
		room -= at->iov[count++].iov_len;
	return count;
}

/* A prepared operation is this one's; the file is named as the loop knows it. */
static void disk_sqe_end(const struct disk *d, struct io_uring_sqe *sqe, struct disk_io *io)
{
	if (d->place != RING_FIXED_NONE) {
		sqe->fd = d->place;
		sqe->flags |= IOSQE_FIXED_FILE;
	}
	ring_tag_set(sqe, io, RING_DISK);
}

/* Hands the rest of a transfer to the ring, as far as the extent goes. */
static void disk_submit(struct disk *d, struct disk_io *io)
{
	struct io_uring_sqe *sqe = ring_sqe(d->loop);
	struct disk_lease *lease = lease_of(io);
	bool write = io->op.scratch[0] == DISK_WRITE;
	uint64_t rest, at_bytes = disk_place(d, io->offset_bytes + lease->done, &rest);
	unsigned pieces = pieces_within(&lease->at, rest);

	if (pieces > 1) {
		if (write)
			io_uring_prep_writev(sqe, d->fd, lease->at.iov, pieces, at_bytes);
		else
			io_uring_prep_readv(sqe, d->fd, lease->at.iov, pieces, at_bytes);
	} else {
		uint8_t *base = NULL;
		size_t piece = iov_at_piece(&lease->at, &base);
		unsigned bytes = (unsigned)bytes_min(bytes_min(piece, rest), GiB);
		int fixed = ring_buffer_find(d->loop, base, bytes);

		must(bytes > 0);
		if (write && fixed != RING_FIXED_NONE)
			io_uring_prep_write_fixed(sqe, d->fd, base, bytes, at_bytes, fixed);
		else if (write)
			io_uring_prep_write(sqe, d->fd, base, bytes, at_bytes);
		else if (fixed != RING_FIXED_NONE)
			io_uring_prep_read_fixed(sqe, d->fd, base, bytes, at_bytes, fixed);
		else
			io_uring_prep_read(sqe, d->fd, base, bytes, at_bytes);
	}
	disk_sqe_end(d, sqe, io);
}

/* What one request without buffers may do of the rest: up to the end of the extent. */
static uint64_t hole_step(const struct disk *d, const struct disk_io *io, uint64_t *at_bytes)
{
	const struct disk_lease *lease = (const struct disk_lease *)(const void *)io->lease;
	uint64_t rest;

	*at_bytes = disk_place(d, io->offset_bytes + lease->done, &rest);
	return bytes_min(rest, io->bytes - lease->done);
}

static void discard_submit(struct disk *d, struct disk_io *io)
{
	struct io_uring_sqe *sqe = ring_sqe(d->loop);
	uint64_t at_bytes, bytes = hole_step(d, io, &at_bytes);

	io_uring_prep_fallocate(sqe, d->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
				(off_t)at_bytes, (off_t)bytes);
	disk_sqe_end(d, sqe, io);
}

static void disk_end(struct disk *d, struct disk_io *io, int rc)
{
	must(d->flying > 0 && rc <= 0);
	d->flying--;
	disk_count(d, (enum disk_kind)io->op.scratch[0], io->bytes, rc);
	ring_op_ready(d->loop, &io->op, rc);
}

/* Hands the next step of a zeroing to the ring. */
static void disk_zero_submit(struct disk *d, struct disk_io *io)
{
	struct io_uring_sqe *sqe = ring_sqe(d->loop);
	uint64_t at_bytes, bytes = hole_step(d, io, &at_bytes);
	int mode = io->op.scratch[1] == ZERO_RANGE ? FALLOC_FL_ZERO_RANGE : FALLOC_FL_PUNCH_HOLE;

	if (io->op.scratch[1] == ZERO_WRITE)
		io_uring_prep_write(sqe, d->fd, disk_zeros,
				    (unsigned)bytes_min(bytes, DISK_ZEROS_BYTES), at_bytes);
	else
		io_uring_prep_fallocate(sqe, d->fd, mode | FALLOC_FL_KEEP_SIZE, (off_t)at_bytes,
					(off_t)bytes);
	disk_sqe_end(d, sqe, io);
}

static void disk_zero_reap(struct disk *d, struct disk_io *io, int res)
{
	bool writes = io->op.scratch[1] == ZERO_WRITE;
	uint64_t at_bytes;

	if (!writes && (res == -EOPNOTSUPP || res == -EINVAL || res == -ENOSYS))
		io->op.scratch[1]++;
	else if (writes && res > 0)
		lease_of(io)->done += (uint64_t)res;
	else if (!writes && res == 0)
		lease_of(io)->done += hole_step(d, io, &at_bytes);
	else if (res != -EAGAIN && res != -EINTR) {
		disk_end(d, io, res < 0 ? disk_errno(-res) : -EIO);
		return;
	}
	must(lease_of(io)->done <= io->bytes);
	if (lease_of(io)->done == io->bytes)
		disk_end(d, io, 0);
	else
		disk_zero_submit(d, io);
}

void ring_disk_reap(struct loop *l, struct disk_io *io, int res)
{
	struct disk *d = io->op.owner;
	struct disk_lease *lease = lease_of(io);
	enum disk_kind kind = (enum disk_kind)io->op.scratch[0];

	OBJ_CHECK(d, RING_DISK_MAGIC);
	must(d->loop == l);
	if (kind == DISK_ZERO) {
		disk_zero_reap(d, io, res);
		return;
	}
	if (res == -EAGAIN || res == -EINTR) {
		must(kind == DISK_READ || kind == DISK_WRITE);
		disk_submit(d, io);
		return;
	}
	if (kind == DISK_DISCARD && res == -EOPNOTSUPP) {
		d->counts.discards_refused++;
		res = 0;                        /* a hint the drive does not take */
	}
	if (res < 0) {
		disk_end(d, io, disk_errno(-res));
		return;
	}
	if (kind == DISK_DISCARD) {
		uint64_t at_bytes;

		lease->done += hole_step(d, io, &at_bytes);
		if (lease->done < io->bytes)
			discard_submit(d, io);
		else
			disk_end(d, io, 0);
		return;
	}
	if (kind == DISK_FLUSH) {
		disk_end(d, io, 0);
		return;
	}
	if (res == 0) {
		disk_end(d, io, -EIO);          /* a short transfer that does not go on */
		return;
	}
	must((uint64_t)res <= io->bytes - lease->done);
	lease->done += (uint64_t)res;
	iov_at_skip(&lease->at, (size_t)res);
	if (lease->done == io->bytes)
		disk_end(d, io, 0);
	else if ((uint64_t)res % d->info.align_bytes != 0)
		disk_end(d, io, -EIO);
	else
		disk_submit(d, io);
}

static void disk_begin(struct disk *d, struct disk_io *io, enum disk_kind kind)
{
	OBJ_CHECK(d, RING_DISK_MAGIC);
	ring_op_begin(d->loop, &io->op, d);
	io->op.scratch[0] = kind;
	*lease_of(io) = (struct disk_lease){.at = iov_at_start(io->iov, io->iov_count)};
	d->flying++;
}

static void memory_copy(struct disk *d, const struct disk_io *io, bool write)
{
	struct iov_at at = iov_at_start(io->iov, io->iov_count);
	uint64_t done = 0;

	while (done < io->bytes) {
		uint64_t rest, place = disk_place(d, io->offset_bytes + done, &rest);
		uint64_t step = bytes_min(rest, io->bytes - done);

		if (write)
			iov_at_take(&at, d->memory + place, step);
		else
			iov_at_put(&at, d->memory + place, step);
		done += step;
	}
}

static void memory_zero(struct disk *d, const struct disk_io *io)
{
	uint64_t done = 0;

	while (done < io->bytes) {
		uint64_t rest, place = disk_place(d, io->offset_bytes + done, &rest);
		uint64_t step = bytes_min(rest, io->bytes - done);

		if (madvise(d->memory + place, step, MADV_DONTNEED) != 0)
			memset(d->memory + place, 0, step);
		done += step;
	}
}

static void disk_transfer(struct disk *d, struct disk_io *io, enum disk_kind kind)
{
	disk_begin(d, io, kind);
	disk_io_check(&d->info, io, true);
	if (d->memory == NULL) {
		disk_submit(d, io);
		return;
	}
	memory_copy(d, io, kind == DISK_WRITE);
	disk_end(d, io, 0);
}

void disk_read(struct disk *disk, struct disk_io *io)
{
	disk_transfer(disk, io, DISK_READ);
}

void disk_write(struct disk *disk, struct disk_io *io)
{
	disk_transfer(disk, io, DISK_WRITE);
}

uint8_t *disk_lend(struct disk *disk, uint64_t offset_bytes, uint64_t bytes)
{
	uint64_t rest, at;

	OBJ_CHECK(disk, RING_DISK_MAGIC);
	loop_must_own(disk->loop);
	must(bytes > 0 && bytes <= disk->info.bytes && offset_bytes <= disk->info.bytes - bytes);
	if (disk->memory == NULL)
		return NULL;
	at = disk_place(disk, offset_bytes, &rest);
	if (rest < bytes)
		return NULL;
	disk_count(disk, DISK_READ, bytes, 0);
	return disk->memory + at;
}

void disk_flush(struct disk *disk, struct disk_io *io)
{
	struct io_uring_sqe *sqe;

	disk_begin(disk, io, DISK_FLUSH);
	if (disk->memory != NULL) {
		disk_end(disk, io, 0);
		return;
	}
	sqe = ring_sqe(disk->loop);
	io_uring_prep_fsync(sqe, disk->fd, IORING_FSYNC_DATASYNC);
	disk_sqe_end(disk, sqe, io);
}

void disk_discard(struct disk *disk, struct disk_io *io)
{
	disk_begin(disk, io, DISK_DISCARD);
	disk_io_check(&disk->info, io, false);
	if (disk->memory == NULL) {
		discard_submit(disk, io);
		return;
	}
	memory_zero(disk, io);
	disk_end(disk, io, 0);
}

void disk_zero(struct disk *disk, struct disk_io *io)
{
	disk_begin(disk, io, DISK_ZERO);
	io->op.scratch[1] = ZERO_RANGE;
	disk_io_check(&disk->info, io, false);
	if (disk->memory == NULL) {
		disk_zero_submit(disk, io);
		return;
	}
	memory_zero(disk, io);
	disk_end(disk, io, 0);
}

/* ---- memory for transfers ---- */

#define HUGE_PAGE (2 * MiB)

/* Maps more than asked and gives back what lies before and after the aligned part. */
void *loop_buffer_map(uint64_t bytes)
{
	uint64_t align = bytes >= HUGE_PAGE ? HUGE_PAGE : DISK_ALIGN;
	uint64_t whole = bytes_round_up(bytes, DISK_ALIGN), before;
	uint8_t *at = mmap(NULL, whole + align, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
			   -1, 0);

	must(bytes > 0);
	if (at == MAP_FAILED)
		return NULL;
	before = bytes_round_up((uintptr_t)at, align) - (uintptr_t)at;
	if (before > 0)
		munmap(at, before);
	at += before;
	munmap(at + whole, align - before);
	(void)madvise(at, whole, MADV_HUGEPAGE);
	if (madvise(at, whole, MADV_POPULATE_WRITE) != 0 && errno == ENOMEM) {
		munmap(at, whole);
		return NULL;
	}
	return at;
}

void loop_buffer_unmap(void *at, uint64_t bytes)
{
	if (at != NULL)
		munmap(at, bytes_round_up(bytes, DISK_ALIGN));
}

/* ---- the blocking calls ---- */

/* A loop that does not turn may be lent to another thread for these: they leave the ring alone. */
static void disk_now_check(const struct disk *d)
{
	OBJ_CHECK(d, RING_DISK_MAGIC);
	must(loop_here(d->loop) || !d->loop->running);
}

static int disk_now_step(struct disk *d, uint8_t *at, uint64_t bytes, uint64_t offset_bytes,
			 enum disk_kind kind, uint64_t *done)
{
	uint64_t rest, place = disk_place(d, offset_bytes, &rest);
	size_t step = (size_t)bytes_min(bytes_min(bytes, rest), GiB);
	ssize_t n = kind == DISK_WRITE ? pwrite(d->fd, at, step, (off_t)place) :
		pread(d->fd, at, step, (off_t)place);

	if (n < 0)
		return errno == EINTR ? 0 : disk_errno(errno);
	if (n == 0 || (uint64_t)n % d->info.align_bytes != 0)
		return -EIO;
	*done += (uint64_t)n;
	return 0;
}

static int disk_now(struct disk *d, uint8_t *at, uint64_t bytes, uint64_t offset_bytes,
		    enum disk_kind kind)
{
	struct iovec iov = {at, bytes};
	struct disk_io io = {
		.iov = &iov, .iov_count = 1, .bytes = bytes, .offset_bytes = offset_bytes};
	uint64_t done = 0;
	int rc = 0;

	disk_now_check(d);
	disk_io_check(&d->info, &io, true);
	if (d->memory != NULL)
		memory_copy(d, &io, kind == DISK_WRITE);
	while (d->memory == NULL && rc == 0 && done < bytes)
		rc = disk_now_step(d, at + done, bytes - done, offset_bytes + done, kind, &done);
	disk_count(d, kind, bytes, rc);
	return rc;
}

int disk_read_now(struct disk *disk, void *into, uint64_t bytes, uint64_t offset_bytes)
{
	return disk_now(disk, into, bytes, offset_bytes, DISK_READ);
}

int disk_write_now(struct disk *disk, const void *from, uint64_t bytes, uint64_t offset_bytes)
{
	return disk_now(disk, (uint8_t *)(uintptr_t)from, bytes, offset_bytes, DISK_WRITE);
}

int disk_flush_now(struct disk *disk)
{
	int rc = 0;

	disk_now_check(disk);
	if (disk->memory == NULL && fdatasync(disk->fd) != 0)
		rc = disk_errno(errno);
	disk_count(disk, DISK_FLUSH, 0, rc);
	return rc;
}

int disk_discard_now(struct disk *disk, uint64_t bytes, uint64_t offset_bytes)
{
	struct disk_io io = {.bytes = bytes, .offset_bytes = offset_bytes};
	uint64_t done = 0;
	int rc = 0;

	disk_now_check(disk);
	disk_io_check(&disk->info, &io, false);
	if (disk->memory != NULL)
		memory_zero(disk, &io);
	while (disk->memory == NULL && rc == 0 && done < bytes) {
		uint64_t rest, place = disk_place(disk, offset_bytes + done, &rest);
		uint64_t step = bytes_min(rest, bytes - done);

		if (fallocate(disk->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)place,
			      (off_t)step) != 0 && errno != EOPNOTSUPP)
			rc = disk_errno(errno);
		done += step;
	}
	disk_count(disk, DISK_DISCARD, 0, rc);
	return rc;
}

/* ---- many blocking reads at once ---- */

#define MANY_FLYING 64u

static void many_one(struct disk *d, struct disk_read_now *r)
{
	r->res = disk_read_now(d, r->into, r->bytes, r->offset_bytes);
}

/* False: it does not lie in one piece. */
static bool many_prepare(struct disk *d, struct io_uring_sqe *sqe, struct disk_read_now *r)
{
	uint64_t rest, place = disk_place(d, r->offset_bytes, &rest);

	must(r->bytes > 0 && r->bytes % d->info.align_bytes == 0);
	must(r->offset_bytes + r->bytes <= d->info.bytes);
	if (r->bytes > rest || r->bytes > GiB)
		return false;
	io_uring_prep_read(sqe, d->fd, r->into, (unsigned)r->bytes, place);
	return true;
}

/* A short read, or one that failed, is done once more by the call that goes on where it must. */
static void many_end(struct disk *d, struct disk_read_now *r, int res)
{
	r->res = 0;
	if (res >= 0 && (uint64_t)res == r->bytes)
		disk_count(d, DISK_READ, r->bytes, 0);
	else
		many_one(d, r);
}

/* Hands a read to the ring of the call. */
static bool many_submit(struct disk *d, struct io_uring *ring, struct disk_read_now *r)
{
	struct io_uring_sqe prepared = {0}, *sqe;

	if (!many_prepare(d, &prepared, r))
		return false;
	sqe = io_uring_get_sqe(ring);
	must(sqe != NULL);
	*sqe = prepared;
	io_uring_sqe_set_data(sqe, r);
	return true;
}

static unsigned many_reap(struct disk *d, struct io_uring *ring)
{
	struct io_uring_cqe *cqe;
	unsigned reaped = 0;

	while (io_uring_peek_cqe(ring, &cqe) == 0) {
		struct disk_read_now *r = io_uring_cqe_get_data(cqe);
		int res = cqe->res;

		io_uring_cqe_seen(ring, cqe);
		reaped++;
		many_end(d, r, res);
	}
	return reaped;
}

/* The same by the drive's threads, where there is no ring. */
static void many_plain(struct disk *d, struct disk_read_now *reads, unsigned count)
{
	struct lane *lane = plain_lane(d->loop, d->place);
	struct lane_job job[MANY_FLYING];
	struct disk_read_now *of[MANY_FLYING];

	while (count > 0) {
		unsigned n = 0;

		for (; count > 0 && n < MANY_FLYING; reads++, count--) {
			job[n] = (struct lane_job){0};
			of[n] = reads;
			if (many_prepare(d, &job[n].sqe, reads))
				n++;
			else
				many_one(d, reads);
		}
		lane_run_all(lane, job, n);
		for (unsigned i = 0; i < n; i++)
			many_end(d, of[i], job[i].res);
	}
}

struct disk_many {
	struct io_uring ring;
	struct disk *disk;
	struct disk_read_now *reads;
	unsigned count, next, flying;
};

static void many_fill(struct disk_many *m)
{
	for (; m->next < m->count && m->flying < MANY_FLYING; m->next++) {
		if (many_submit(m->disk, &m->ring, &m->reads[m->next]))
			m->flying++;
		else
			many_one(m->disk, &m->reads[m->next]);
	}
}

struct disk_many *disk_read_many_begin(struct disk *disk, struct disk_read_now *reads,
				       unsigned count)
{
	struct disk_many *m = NULL;

	disk_now_check(disk);
	if (disk->memory == NULL && count > 0 && disk->loop->plain != NULL) {
		many_plain(disk, reads, count);
		return NULL;
	}
	if (disk->memory == NULL && count > 0)
		m = calloc(1, sizeof(*m));
	if (m == NULL || io_uring_queue_init(MANY_FLYING, &m->ring, 0) != 0) {
		free(m);
		for (unsigned i = 0; i < count; i++)
			many_one(disk, &reads[i]);
		return NULL;
	}
	m->disk = disk;
	m->reads = reads;
	m->count = count;
	many_fill(m);
	(void)io_uring_submit(&m->ring);
	return m;
}

void disk_read_many_end(struct disk_many **many)
{
	struct disk_many *m = *many;

	if (m == NULL)
		return;
	*many = NULL;
	while (m->flying > 0) {
		(void)io_uring_submit_and_wait(&m->ring, 1);
		m->flying -= many_reap(m->disk, &m->ring);
		many_fill(m);
	}
	must(m->next == m->count);
	io_uring_queue_exit(&m->ring);
	free(m);
}

void disk_read_many_now(struct disk *disk, struct disk_read_now *reads, unsigned count)
{
	struct disk_many *m;

	disk_now_check(disk);
	if (count == 1) {                    /* not worth a ring */
		many_one(disk, reads);
		return;
	}
	m = disk_read_many_begin(disk, reads, count);
	disk_read_many_end(&m);
}

/* ---- how deep ---- */

#define RATE_BYTES (128 * KiB)

static uint64_t rate_clock_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * NS_PER_S + (uint64_t)ts.tv_nsec;
}

/* One drive while all are measured: batches of as many reads as the depth says. */
struct rating {
	struct disk_probe *probe;
	unsigned flying;
	uint64_t began, took, done;
	bool failed;
};

/* The reads of all go to the same memory: nobody looks at it. They jump about. */
static void rating_submit(struct rating *r, struct io_uring *ring, uint8_t *memory, unsigned depth)
{
	static const uint64_t stride = 2654435761u;
	struct disk_probe *p = r->probe;
	uint64_t places = p->bytes / RATE_BYTES;

	r->began = rate_clock_ns();
	for (unsigned i = 0; i < depth; i++) {
		struct disk_read_now read = {.into = memory + i * RATE_BYTES, .bytes = RATE_BYTES,
			.offset_bytes = p->offset_bytes + (r->done + i + depth) * stride % places *
							  RATE_BYTES};
		struct io_uring_sqe prepared = {0}, *sqe;

		if (!many_prepare(p->disk, &prepared, &read))
			continue;                    /* over a seam of a part */
		sqe = io_uring_get_sqe(ring);
		must(sqe != NULL);
		*sqe = prepared;
		io_uring_sqe_set_data(sqe, r);
		r->flying++;
	}
	r->failed |= r->flying == 0;
}

static void rating_end(struct rating *r, int res)
{
	if (res == (int)RATE_BYTES)
		r->done++;
	else
		r->failed = true;
	disk_count(r->probe->disk, DISK_READ, RATE_BYTES, res == (int)RATE_BYTES ? 0 : -EIO);
	if (--r->flying == 0)
		r->took += rate_clock_ns() - r->began;
}

static void ratings_run(struct rating *r, unsigned count, struct io_uring *ring, uint8_t *memory,
			unsigned depth, uint64_t budget_ns)
{
	unsigned busy = 0;

	for (unsigned i = 0; i < count; i++) {
		r[i] = (struct rating){.probe = r[i].probe, .failed = r[i].failed};
		if (!r[i].failed)
			rating_submit(&r[i], ring, memory, depth);
		busy += r[i].flying > 0;
	}
	while (busy > 0) {
		struct io_uring_cqe *cqe;

		(void)io_uring_submit_and_wait(ring, 1);
		while (io_uring_peek_cqe(ring, &cqe) == 0) {
			struct rating *x = io_uring_cqe_get_data(cqe);
			int res = cqe->res;

			io_uring_cqe_seen(ring, cqe);
			rating_end(x, res);
			if (x->flying > 0)
				continue;
			if (!x->failed && x->took < budget_ns)
				rating_submit(x, ring, memory, depth);
			busy -= x->flying == 0;
		}
	}
}

static void ratings_all(struct rating *r, unsigned count, struct io_uring *ring, uint8_t *memory,
			uint64_t budget_ns)
{
	static const unsigned depths[DISK_RATES_MAX] = {1, 4, 16, 64};

	for (unsigned n = 0; n < DISK_RATES_MAX; n++) {
		ratings_run(r, count, ring, memory, depths[n], budget_ns / DISK_RATES_MAX);
		for (unsigned i = 0; i < count; i++)
			r[i].probe->rate[n] = (struct disk_rate){depths[n], r[i].took == 0 ? 0 :
				r[i].done * RATE_BYTES * NS_PER_S / r[i].took};
	}
	for (unsigned i = 0; i < count; i++)
		r[i].probe->rate_count = r[i].failed ? 0 : DISK_RATES_MAX;
}

void disk_rates_now(struct disk_probe *probe, unsigned count, uint64_t budget_ns)
{
	struct rating *r = calloc(count + 1, sizeof(*r));
	uint8_t *memory = loop_buffer_map(MANY_FLYING * RATE_BYTES);
	struct io_uring ring;
	unsigned n = 0;

	must(budget_ns > 0);
	for (unsigned i = 0; i < count; i++) {
		const struct disk *d = probe[i].disk;

		OBJ_CHECK(d, RING_DISK_MAGIC);
		must(probe[i].bytes <= d->info.bytes - probe[i].offset_bytes);
		probe[i].rate_count = 0;
		if (r != NULL && d->memory == NULL && d->loop->plain == NULL &&
		    probe[i].bytes / RATE_BYTES >= MANY_FLYING)
			r[n++].probe = &probe[i];
	}
	if (n > 0 && memory != NULL && io_uring_queue_init(n * MANY_FLYING, &ring, 0) == 0) {
		ratings_all(r, n, &ring, memory, budget_ns);
		io_uring_queue_exit(&ring);
	}
	loop_buffer_unmap(memory, MANY_FLYING * RATE_BYTES);
	free(r);
}
