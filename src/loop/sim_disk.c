/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Purpose: the simulator's drives. A medium belongs to the world and outlives the node that opened
 * it; struct disk is one opening of a medium, or of a part of it.
 *
 * Theory: three sparse maps per medium: `now`, the bytes that a reader sees (all completed writes);
 * `alt`, for each sector written since the last flush, one older content that a power cut may bring
 * back; `written`, the number of the write that made a sector dirty, 0 where it is clean. A flush
 * takes effect when it completes, and covers the writes that had completed when it was submitted; a
 * flush that fails leaves half of the writes doomed: no later flush makes them durable, as a kernel
 * that marks pages clean after a failed fsync [FSYNC].
 *
 * A write takes effect when it completes, in one instant with its callback. What was still in
 * flight at a crash is torn, whole or absent by chance, in sectors [SSDFAULT].
 *
 * Invariants: a sector is dirty only in a chunk that is on the dirty list; written numbers grow.
 *
 * Thread: the world's.
 */
#include "loop/disk.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/bytes.h"
#include "loop/disk_check.h"
#include "loop/iov.h"
#include "loop/sim_world.h"

#define SIM_SECTOR UINT64_C(512)
#define SIM_PAGE UINT64_C(4096)
#define SIM_PAGE_SECTORS (SIM_PAGE / SIM_SECTOR)
#define SIM_CHUNK (64 * KiB)
#define SIM_CHUNK_SECTORS (SIM_CHUNK / SIM_SECTOR)
#define SIM_DOOMED 0x80000000u          /* in `written`: a flush will not help any more */
#define SIM_DISK_BYTES_MIN MiB
#define SIM_DISK_MAGIC 0x51d15c00u

struct sim_flight;

struct sim_medium {
	struct list_link link;                  /* in world.media */
	char path[256];
	uint64_t bytes, used_end;               /* used_end: no write went past it */
	uint8_t *now, *alt;
	uint32_t *written;
	uint8_t *chunk_touched;                 /* a byte a chunk: ever written */
	uint8_t *page_touched;                  /* a byte a page: not zero in `now` or `alt` */
	uint8_t *chunk_dirty;                   /* a byte a chunk: on dirty[] */
	uint64_t *dirty;
	uint64_t dirty_count, dirty_max;
	uint32_t write_number;                  /* of the last write that took effect */
	/* highest write that a flush in flight covers; 0: none */
	uint32_t flush_mark;
	unsigned flushes_flying;
	bool memory, poked;                     /* poked: a test holds a pointer into `now` */
	enum sim_disk_mode mode;
	struct list_link opens;                 /* disk.of_medium: the whole, its parts */
	uint8_t *rotten;                        /* a byte a sector; NULL: all is well */
	uint8_t *allocated;                     /* a byte a chunk; NULL: there is room for all */
	uint64_t chunks_left;                   /* that may still be allocated */
};

struct extent {
	uint64_t at_bytes;                      /* in the part */
	uint64_t offset_bytes, bytes;           /* in the medium */
};

struct disk {
	uint32_t magic;
	bool part;
	struct list_link link;                  /* in loop.disks */
	struct list_link of_medium;             /* in medium.opens */
	struct extent *extent;                  /* [extent_count]; a whole has one */
	unsigned extent_count;
	struct loop *loop;
	struct sim_medium *medium;
	struct disk_info info;
	struct disk_counts counts;
	struct list_link flying;                /* sim_flight */
};

enum sim_io_kind { SIM_IO_READ, SIM_IO_WRITE, SIM_IO_FLUSH, SIM_IO_DISCARD, SIM_IO_ZERO };

/* One I/O between submission and completion. */
struct sim_flight {
	struct list_link link;
	struct disk *disk;
	struct disk_io *io;
	enum sim_io_kind kind;
	uint32_t flush_mark;
	struct sim_event *event;                /* NULL: parked on a drive that hangs */
};

/* ---- the medium ---- */

static void *sim_map(uint64_t bytes)
{
	void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
			MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	return at == MAP_FAILED ? NULL : at;
}

static uint64_t sim_medium_chunks(const struct sim_medium *m)
{
	return (m->bytes + SIM_CHUNK - 1) / SIM_CHUNK;
}

/*
 * The maps of media that are gone, cleared, for the next of their size: a test of a thousand worlds
 * would spend most of its time in page faults.
 */
#define SIM_SPARE_MAX 16
#define SIM_SPARE_PAGES_MAX (64 * MiB / SIM_PAGE)

static struct sim_spare {
	uint64_t bytes;                         /* 0: none */
	uint8_t *now, *alt;
	uint32_t *written;
} sim_spare[SIM_SPARE_MAX];

static uint64_t sim_written_bytes(uint64_t bytes)
{
	return bytes / SIM_SECTOR * sizeof(uint32_t);
}

/* Into the list, if there is room and little to clear. Nothing else may have written there. */
static bool sim_spare_give(struct sim_medium *m)
{
	uint64_t pages = m->bytes / SIM_PAGE, touched = 0;
	struct sim_spare *to = NULL;

	if (m->now == NULL || m->alt == NULL || m->written == NULL || m->poked ||
	    m->page_touched == NULL || m->bytes % SIM_PAGE != 0)
		return false;
	for (unsigned i = 0; i < SIM_SPARE_MAX && to == NULL; i++)
		to = sim_spare[i].bytes == 0 ? &sim_spare[i] : NULL;
	for (uint64_t i = 0; i < pages; i++)
		touched += m->page_touched[i];
	if (to == NULL || touched > SIM_SPARE_PAGES_MAX)
		return false;
	for (uint64_t i = 0; i < pages && touched > 0; i++) {
		if (!m->page_touched[i])
			continue;
		memset(m->now + i * SIM_PAGE, 0, SIM_PAGE);
		memset(m->alt + i * SIM_PAGE, 0, SIM_PAGE);
		memset(m->written + i * SIM_PAGE_SECTORS, 0,
		       SIM_PAGE_SECTORS * sizeof(*m->written));
		touched--;
	}
	*to = (struct sim_spare){m->bytes, m->now, m->alt, m->written};
	return true;
}

static bool sim_spare_take(struct sim_medium *m)
{
	for (unsigned i = 0; i < SIM_SPARE_MAX; i++) {
		struct sim_spare *from = &sim_spare[i];

		if (from->bytes != m->bytes)
			continue;
		m->now = from->now;
		m->alt = from->alt;
		m->written = from->written;
		from->bytes = 0;
		return true;
	}
	return false;
}

static void sim_medium_free(struct sim_medium *m)
{
	must(list_empty(&m->opens));
	if (!sim_spare_give(m)) {
		if (m->now != NULL)
			munmap(m->now, m->bytes);
		if (m->alt != NULL)
			munmap(m->alt, m->bytes);
		if (m->written != NULL)
			munmap(m->written, sim_written_bytes(m->bytes));
	}
	free(m->rotten);
	free(m->allocated);
	free(m->chunk_touched);
	free(m->page_touched);
	free(m->chunk_dirty);
	free(m->dirty);
	list_remove(&m->link);
	free(m);
}

static struct sim_medium *sim_medium_make(const char *path, uint64_t bytes, bool memory)
{
	struct sim_medium *m = calloc(1, sizeof(*m));

	must(m != NULL && bytes % SIM_SECTOR == 0);
	list_push_back(&sim_world->media, &m->link);
	list_init(&m->opens);
	m->bytes = bytes;
	m->memory = memory;
	memcpy(m->path, path, strlen(path) + 1);
	if (!sim_spare_take(m)) {
		m->now = sim_map(bytes);
		m->alt = sim_map(bytes);
		m->written = sim_map(sim_written_bytes(bytes));
	}
	m->chunk_touched = calloc(sim_medium_chunks(m), 1);
	m->page_touched = calloc(bytes / SIM_PAGE + 1, 1);
	m->chunk_dirty = calloc(sim_medium_chunks(m), 1);
	if (m->now == NULL || m->alt == NULL || m->written == NULL || m->chunk_touched == NULL ||
	    m->page_touched == NULL || m->chunk_dirty == NULL) {
		sim_medium_free(m);
		return NULL;
	}
	return m;
}

static struct sim_medium *sim_medium_find(const char *path)
{
	LIST_FOR_EACH(link, &sim_world->media) {
		struct sim_medium *m = container_of(link, struct sim_medium, link);

		if (!m->memory && strcmp(m->path, path) == 0)
			return m;
	}
	return NULL;
}

static void sim_medium_chunk_dirty(struct sim_medium *m, uint64_t chunk)
{
	if (m->chunk_dirty[chunk])
		return;
	if (m->dirty_count == m->dirty_max) {
		m->dirty_max = m->dirty_max == 0 ? 64 : m->dirty_max * 2;
		m->dirty = realloc(m->dirty, m->dirty_max * sizeof(*m->dirty));
		must(m->dirty != NULL);
	}
	m->chunk_dirty[chunk] = 1;
	m->dirty[m->dirty_count++] = chunk;
}

/* One sector gets new bytes (NULL: zeros); what it held may come back at a power cut. */
static void sim_medium_sector(struct sim_medium *m, uint64_t sector, const uint8_t *from,
			      bool fresh)
{
	uint8_t *now = m->now + sector * SIM_SECTOR, *alt = m->alt + sector * SIM_SECTOR;
	uint32_t number = m->written[sector];

	if (number == 0) {
		if (!fresh)
			memcpy(alt, now, SIM_SECTOR);
	} else if (number <= m->flush_mark || prng_below(&sim_world->prng, 2) == 0) {
		memcpy(alt, now, SIM_SECTOR);
	}
	if (from == NULL)
		memset(now, 0, SIM_SECTOR);
	else
		memcpy(now, from, SIM_SECTOR);
	m->written[sector] = m->write_number;
	if (m->rotten != NULL)
		m->rotten[sector] = 0;
}

/* The sectors [first, end) of a write get its bytes. `at` is at the byte of `first`; NULL:
 * zeros. */
static void sim_medium_put(struct sim_medium *m, uint64_t first, uint64_t end, struct iov_at *at)
{
	uint8_t bytes[SIM_SECTOR];

	must(end <= m->bytes / SIM_SECTOR);
	while (first < end) {
		uint64_t chunk = first / SIM_CHUNK_SECTORS;
		uint64_t stop = bytes_min((chunk + 1) * SIM_CHUNK_SECTORS, end);
		bool fresh = !m->chunk_touched[chunk] && !m->poked;

		if (at == NULL && fresh) {
			first = stop;           /* zeros where nothing ever was */
			continue;
		}
		sim_medium_chunk_dirty(m, chunk);
		for (; first < stop; first++) {
			if (at != NULL)
				iov_at_take(at, bytes, SIM_SECTOR);
			sim_medium_sector(m, first, at == NULL ? NULL : bytes, fresh);
			m->page_touched[first / SIM_PAGE_SECTORS] = 1;
		}
		m->chunk_touched[chunk] = 1;
	}
	if (end * SIM_SECTOR > m->used_end && at != NULL)
		m->used_end = end * SIM_SECTOR;
}

/* Where a place of the disk lies on the medium; *rest: bytes from there to the extent's end. */
static uint64_t sim_place(const struct disk *d, uint64_t at_bytes, uint64_t *rest)
{
	unsigned i = 0;

	must(at_bytes < d->info.bytes);
	while (at_bytes >= d->extent[i].at_bytes + d->extent[i].bytes)
		i++;
	at_bytes -= d->extent[i].at_bytes;
	*rest = d->extent[i].bytes - at_bytes;
	return d->extent[i].offset_bytes + at_bytes;
}

static void sim_medium_tell(const struct sim_medium *m, bool flush, uint64_t place, uint64_t bytes)
{
	struct sim_disk_event e = {.path = m->path, .flush = flush, .number = m->write_number,
		.offset_bytes = place, .bytes = bytes, .data = m->now + place};

	if (sim_world->watch == NULL)
		return;
	if (flush)
		e.number = (uint32_t)place;
	sim_world->watch(sim_world->watch_arg, &e);
}

void sim_disk_watch(void (*seen)(void *arg, const struct sim_disk_event *e), void *arg)
{
	sim_world->watch = seen;
	sim_world->watch_arg = arg;
}

/* The first `bytes` of a transfer, extent by extent. */
static void sim_disk_put(struct disk *d, const struct disk_io *io, uint64_t bytes)
{
	struct iov_at at = iov_at_start(io->iov, io->iov_count);
	uint64_t done = 0;

	d->medium->write_number++;
	must(d->medium->write_number < SIM_DOOMED);
	while (done < bytes) {
		uint64_t rest, place = sim_place(d, io->offset_bytes + done, &rest);
		uint64_t step = bytes_min(rest, bytes - done);

		sim_medium_put(d->medium, place / SIM_SECTOR, (place + step) / SIM_SECTOR,
			       io->iov == NULL ? NULL : &at);
		sim_medium_tell(d->medium, false, place, step);
		done += step;
	}
}

/* Some of the sectors of a write that never ended: a head, a tail, or holes. */
static void sim_disk_tear(struct disk *d, const struct disk_io *io)
{
	struct prng *p = &sim_world->prng;
	struct iov_at at = iov_at_start(io->iov, io->iov_count);
	uint64_t sector = 0, end = io->bytes / SIM_SECTOR;
	uint64_t granule = prng_below(p, 2) == 0 ? 1 : 4096 / SIM_SECTOR;
	uint64_t cut = sector + prng_below(p, end - sector + 1), how = prng_below(p, 3);

	d->medium->write_number++;
	while (sector < end) {
		uint64_t rest, place = sim_place(d, io->offset_bytes + sector * SIM_SECTOR, &rest);
		uint64_t first = place / SIM_SECTOR;
		uint64_t stop = bytes_min(bytes_round_up(first + 1, granule) - first + sector, end);
		bool kept = how == 0   ? stop <= cut
			    : how == 1 ? sector >= cut
				       : prng_below(p, 2) == 0;

		if (kept)
			sim_medium_put(d->medium, first, first + stop - sector, &at);
		else
			iov_at_skip(&at, (stop - sector) * SIM_SECTOR);
		sector = stop;
	}
	sim_fault_count(SIM_DISK_WRITE_TORN);
}

/* All writes up to the mark are durable; or, where the flush failed, half of them never will be. */
static void sim_medium_flush(struct sim_medium *m, uint32_t mark, bool failed)
{
	uint64_t kept = 0;
	uint32_t coin = (uint32_t)prng_next(&sim_world->prng) | 1;

	for (uint64_t i = 0; i < m->dirty_count; i++) {
		uint64_t chunk = m->dirty[i], first = chunk * SIM_CHUNK_SECTORS;
		uint64_t end = bytes_min(first + SIM_CHUNK_SECTORS, m->bytes / SIM_SECTOR);
		bool dirty = false;

		for (uint64_t s = first; s < end; s++) {
			uint32_t number = m->written[s];

			if (number != 0 && number <= mark && !(number & SIM_DOOMED)) {
				if (!failed)
					m->written[s] = 0;
				else if ((number * coin) >> 16 & 1)
					m->written[s] = number | SIM_DOOMED;
			}
			dirty |= m->written[s] != 0;
		}
		if (dirty)
			m->dirty[kept++] = chunk;
		else
			m->chunk_dirty[chunk] = 0;
	}
	m->dirty_count = kept;
}

/* Each dirty sector keeps its bytes or falls back: all, none, write by write, or sector by
 * sector. */
static void sim_medium_power_cut(struct sim_medium *m)
{
	struct prng *p = &sim_world->prng;
	uint64_t how = prng_below(p, 4);
	uint32_t coin = (uint32_t)prng_next(p) | 1;

	for (uint64_t i = 0; i < m->dirty_count; i++) {
		uint64_t first = m->dirty[i] * SIM_CHUNK_SECTORS;
		uint64_t end = bytes_min(first + SIM_CHUNK_SECTORS, m->bytes / SIM_SECTOR);

		m->chunk_dirty[m->dirty[i]] = 0;
		for (uint64_t s = first; s < end; s++) {
			uint32_t number = m->written[s] & ~SIM_DOOMED;
			bool lost;

			if (m->written[s] == 0)
				continue;
			lost = how == 1 || (how == 2 && ((number * coin) >> 16 & 1)) ||
			       (how == 3 && prng_below(p, 2) == 0);
			if (lost)
				memcpy(m->now + s * SIM_SECTOR, m->alt + s * SIM_SECTOR,
				       SIM_SECTOR);
			m->written[s] = 0;
		}
	}
	m->dirty_count = 0;
}

/* ---- what an I/O does, with its faults ---- */

/* Another place of the same length, among those that hold something. */
static uint64_t sim_elsewhere(const struct disk *d, uint64_t bytes)
{
	struct sim_medium *m = d->medium;
	uint64_t top = m->used_end < bytes + d->info.align_bytes ? m->bytes : m->used_end;
	uint64_t places = (bytes_min(top, m->bytes) - bytes) / d->info.align_bytes + 1;

	must(bytes <= m->bytes);
	return prng_below(&sim_world->prng, places) * d->info.align_bytes;
}

static bool sim_rotten(const struct sim_medium *m, uint64_t offset_bytes, uint64_t bytes)
{
	return m->rotten != NULL &&
	       memchr(m->rotten + offset_bytes / SIM_SECTOR, 1, bytes / SIM_SECTOR) != NULL;
}

static int sim_do_read(struct disk *d, const struct disk_io *io)
{
	struct sim_medium *m = d->medium;
	struct iov_at at = iov_at_start(io->iov, io->iov_count);
	uint64_t done = 0, elsewhere = UINT64_MAX;

	if (sim_fault_now(SIM_DISK_READ_EIO))
		return -EIO;
	if (sim_fault_now(SIM_DISK_READ_MISDIRECT))
		elsewhere = sim_elsewhere(d, io->bytes);
	while (done < io->bytes) {
		uint64_t rest, place = sim_place(d, io->offset_bytes + done, &rest);
		uint64_t step = bytes_min(rest, io->bytes - done);

		if (elsewhere != UINT64_MAX)
			place = elsewhere + done;
		if (sim_rotten(m, place, step))
			return -EIO;
		iov_at_put(&at, m->now + place, step);
		done += step;
	}
	if (sim_fault_now(SIM_DISK_READ_BAD)) {
		struct iov_at bad = iov_at_start(io->iov, io->iov_count);
		uint8_t *byte = NULL;

		iov_at_skip(&bad, prng_below(&sim_world->prng, io->bytes));
		must(iov_at_piece(&bad, &byte) > 0);
		*byte ^= (uint8_t)(1u << prng_below(&sim_world->prng, 8));
	}
	d->counts.reads++;
	d->counts.read_bytes += io->bytes;
	return 0;
}

/* Takes chunks for what is written; false: the file system is full. */
static bool sim_disk_allocate(struct disk *d, const struct disk_io *io)
{
	struct sim_medium *m = d->medium;
	uint64_t rest, step;

	for (uint64_t done = 0; m->allocated != NULL && done < io->bytes; done += step) {
		uint64_t place = sim_place(d, io->offset_bytes + done, &rest);
		uint8_t *chunk = &m->allocated[place / SIM_CHUNK];

		step = bytes_min(bytes_min(rest, io->bytes - done), SIM_CHUNK - place % SIM_CHUNK);
		if (*chunk == 0 && m->chunks_left == 0)
			return false;
		m->chunks_left -= *chunk == 0;
		*chunk = 1;
	}
	return true;
}

/* Whole chunks only. */
static void sim_disk_unallocate(struct disk *d, const struct disk_io *io)
{
	struct sim_medium *m = d->medium;
	uint64_t rest, step;

	for (uint64_t done = 0; m->allocated != NULL && done < io->bytes; done += step) {
		uint64_t place = sim_place(d, io->offset_bytes + done, &rest);
		uint8_t *chunk = &m->allocated[place / SIM_CHUNK];

		step = bytes_min(bytes_min(rest, io->bytes - done), SIM_CHUNK - place % SIM_CHUNK);
		if (step < SIM_CHUNK)
			continue;
		m->chunks_left += *chunk;
		*chunk = 0;
	}
}

static int sim_do_write(struct disk *d, const struct disk_io *io)
{
	struct iov_at at = iov_at_start(io->iov, io->iov_count);

	if (sim_fault_now(SIM_DISK_ENOSPC))
		return -ENOSPC;
	if (!sim_disk_allocate(d, io)) {
		sim_fault_count(SIM_DISK_ENOSPC);
		return -ENOSPC;
	}
	if (sim_fault_now(SIM_DISK_WRITE_EIO)) {
		sim_disk_put(d, io, prng_below(&sim_world->prng, io->bytes / SIM_SECTOR + 1) *
				    SIM_SECTOR);
		return -EIO;
	}
	d->counts.writes++;
	d->counts.write_bytes += io->bytes;
	if (sim_fault_now(SIM_DISK_WRITE_LOST))
		return 0;
	if (sim_fault_now(SIM_DISK_WRITE_MISDIRECT)) {
		uint64_t first = sim_elsewhere(d, io->bytes) / SIM_SECTOR;

		d->medium->write_number++;
		sim_medium_put(d->medium, first, first + io->bytes / SIM_SECTOR, &at);
		return 0;
	}
	sim_disk_put(d, io, io->bytes);
	return 0;
}

static int sim_do_flush(struct disk *d, uint32_t mark)
{
	bool failed = sim_fault_now(SIM_DISK_FLUSH_EIO);

	sim_medium_flush(d->medium, mark, failed);
	if (failed)
		return -EIO;
	sim_medium_tell(d->medium, true, mark, 0);
	d->counts.flushes++;
	return 0;
}

static int sim_do_discard(struct disk *d, const struct disk_io *io)
{
	sim_disk_put(d, &(struct disk_io){.offset_bytes = io->offset_bytes}, io->bytes);
	sim_disk_unallocate(d, io);
	d->counts.discards++;
	return 0;
}

static int sim_do_zero(struct disk *d, const struct disk_io *io)
{
	if (sim_fault_now(SIM_DISK_WRITE_EIO))
		return -EIO;
	sim_disk_put(d, &(struct disk_io){.offset_bytes = io->offset_bytes}, io->bytes);
	d->counts.zeroes++;
	return 0;
}

static int sim_do(struct disk *d, enum sim_io_kind kind, const struct disk_io *io, uint32_t mark)
{
	int rc = -EIO;

	if (d->medium->mode == SIM_DISK_WELL) {
		switch (kind) {
		case SIM_IO_READ:
			rc = sim_do_read(d, io);
			break;
		case SIM_IO_WRITE:
			rc = sim_do_write(d, io);
			break;
		case SIM_IO_FLUSH:
			rc = sim_do_flush(d, mark);
			break;
		case SIM_IO_DISCARD:
			rc = sim_do_discard(d, io);
			break;
		case SIM_IO_ZERO:
			rc = sim_do_zero(d, io);
			break;
		}
	}
	must(rc <= 0);
	if (rc != 0)
		d->counts.errors++;
	return rc;
}

/* ---- the door ---- */

static int sim_disk_open_medium(const char *path, const struct disk_opts *opts,
				struct sim_medium **out)
{
	struct sim_medium *m = opts->memory ? NULL : sim_medium_find(path);
	uint64_t bytes = opts->create_bytes & ~(uint64_t)(sim_world->opts.disk_align_bytes - 1);
	size_t length = strlen(path);

	if (length >= sizeof(m->path) || length == 0 || path[length - 1] == '/')
		return -EINVAL;
	if (m == NULL) {
		if (opts->create_bytes == 0)
			return opts->memory ? -EINVAL : -ENOENT;
		if (bytes < SIM_DISK_BYTES_MIN)
			return -EINVAL;
		m = sim_medium_make(path, bytes, opts->memory);
		if (m == NULL)
			return -ENOSPC;
	}
	if (!list_empty(&m->opens))
		return -EBUSY;
	if (m->mode != SIM_DISK_WELL)
		return -EIO;
	*out = m;
	return 0;
}

static struct disk *sim_disk_new(struct loop *loop, struct sim_medium *m, unsigned extent_count)
{
	struct disk *d = calloc(1, sizeof(*d));

	if (d != NULL)
		d->extent = calloc(extent_count + 1, sizeof(*d->extent));
	if (d == NULL || d->extent == NULL) {
		free(d);
		return NULL;
	}
	OBJ_INIT(d, SIM_DISK_MAGIC);
	d->loop = loop;
	d->medium = m;
	d->info = (struct disk_info){.memory = m->memory,
		.align_bytes = sim_world->opts.disk_align_bytes};
	memcpy(d->info.path, m->path, sizeof(d->info.path));
	list_init(&d->flying);
	return d;
}

int disk_open(struct loop *loop, const char *path, const struct disk_opts *opts, struct disk **out)
{
	struct sim_medium *m = NULL;
	struct disk *d;
	int rc;

	OBJ_CHECK(loop, SIM_LOOP_MAGIC);
	loop_must_own(loop);
	rc = sim_disk_open_medium(path, opts, &m);
	if (rc != 0)
		return rc;
	d = sim_disk_new(loop, m, 1);
	if (d == NULL) {
		if (m->memory)
			sim_medium_free(m);
		return -ENOMEM;
	}
	d->info.bytes = d->extent[0].bytes = m->bytes;
	d->extent_count = 1;
	list_push_back(&m->opens, &d->of_medium);
	list_push_back(&loop->disks, &d->link);
	*out = d;
	return 0;
}

int disk_open_part(struct loop *loop, struct disk *whole, const struct disk_extent *extents,
		   unsigned extent_count, struct disk **out)
{
	struct disk *d;

	OBJ_CHECK(loop, SIM_LOOP_MAGIC);
	OBJ_CHECK(whole, SIM_DISK_MAGIC);
	loop_must_own(loop);
	must(!whole->part);
	if (extent_count == 0)
		return -EINVAL;
	for (unsigned i = 0; i < extent_count; i++) {
		if (extents[i].bytes == 0 ||
		    ((extents[i].bytes | extents[i].offset_bytes) & 4095) != 0 ||
		    extents[i].bytes > whole->info.bytes ||
		    extents[i].offset_bytes > whole->info.bytes - extents[i].bytes)
			return -EINVAL;
	}
	d = sim_disk_new(loop, whole->medium, extent_count);
	if (d == NULL)
		return -ENOMEM;
	d->part = true;
	for (unsigned i = 0; i < extent_count; i++) {
		d->extent[i] = (struct extent){d->info.bytes, extents[i].offset_bytes,
					       extents[i].bytes};
		d->info.bytes += extents[i].bytes;
	}
	d->extent_count = extent_count;
	list_push_back(&d->medium->opens, &d->of_medium);
	list_push_back(&loop->disks, &d->link);
	*out = d;
	return 0;
}

static void sim_disk_forget(struct disk *d)
{
	struct sim_medium *m = d->medium;

	must(list_empty(&d->flying));
	list_remove(&d->of_medium);
	list_remove(&d->link);
	if (list_empty(&m->opens)) {
		m->flush_mark = 0;
		m->flushes_flying = 0;
		if (m->memory)
			sim_medium_free(m);
	}
	d->magic = 0;
	free(d->extent);
	free(d);
}

unsigned disk_parts(const struct disk *whole)
{
	unsigned count = 0;

	must(!whole->part);
	LIST_FOR_EACH(link, &whole->medium->opens)
		count += container_of(link, struct disk, of_medium)->part;
	return count;
}

void disk_close(struct disk **disk)
{
	struct disk *d;

	OBJ_TAKE(d, disk, SIM_DISK_MAGIC);
	if (sim_is_ghost(d->loop))
		return;                 /* sim_crash() takes it away */
	loop_must_own(d->loop);
	must(list_empty(&d->flying));
	must(d->part || (d->medium->opens.next == &d->of_medium &&
			 d->medium->opens.prev == &d->of_medium));
	sim_disk_forget(d);
}

const struct disk_info *disk_info(const struct disk *disk)
{
	OBJ_CHECK(disk, SIM_DISK_MAGIC);
	return &disk->info;
}

const struct disk_counts *disk_counts(const struct disk *disk)
{
	OBJ_CHECK(disk, SIM_DISK_MAGIC);
	return &disk->counts;
}

static void sim_flight_free(struct sim_flight *f)
{
	struct sim_medium *m = f->disk->medium;

	if (f->kind == SIM_IO_FLUSH && --m->flushes_flying == 0)
		m->flush_mark = 0;
	list_remove(&f->link);
	free(f);
}

static void sim_flight_crash(struct sim_flight *f)
{
	struct sim_medium *m = f->disk->medium;
	uint64_t how = prng_below(&sim_world->prng, 3);

	if (f->event != NULL)
		sim_event_cancel(f->event);
	if (m->mode == SIM_DISK_WELL && f->kind == SIM_IO_WRITE) {
		if (how == 0 || sim_fault_now(SIM_DISK_WRITE_TORN))
			sim_disk_tear(f->disk, f->io);
		else if (how == 1)
			sim_disk_put(f->disk, f->io, f->io->bytes);
	} else if (m->mode == SIM_DISK_WELL && f->kind == SIM_IO_ZERO) {
		uint64_t sectors = f->io->bytes / SIM_SECTOR;

		if (how != 1)
			sectors = prng_below(&sim_world->prng, sectors + 1);
		sim_disk_put(f->disk, &(struct disk_io){.offset_bytes = f->io->offset_bytes},
			     sectors * SIM_SECTOR);
	} else if (m->mode == SIM_DISK_WELL && f->kind == SIM_IO_FLUSH && how == 0) {
		sim_medium_flush(m, f->flush_mark, false);
	}
	sim_flight_free(f);
}

/* The instant of a crash: of all that is in flight some is on the medium, and the buffers are
 * free. */
static void sim_disk_settle(struct loop *loop)
{
	LIST_FOR_EACH(link, &loop->disks) {
		struct disk *d = container_of(link, struct disk, link);

		LIST_FOR_EACH_SAFE(flight, &d->flying)
			sim_flight_crash(container_of(flight, struct sim_flight, link));
	}
}

static void sim_flight_event(struct sim_event *e)
{
	struct sim_flight *f = e->arg;
	struct disk *d = f->disk;
	struct disk_io *io = f->io;
	int rc;

	f->event = NULL;
	if (d->medium->mode == SIM_DISK_HANGS)
		return;
	if (f->kind != SIM_IO_READ && f->kind != SIM_IO_DISCARD &&
	    d->medium->mode == SIM_DISK_WELL && sim_write_crashes(d->loop)) {
		sim_disk_settle(d->loop);
		return;
	}
	rc = sim_do(d, f->kind, io, f->flush_mark);
	sim_flight_free(f);
	sim_op_end(d->loop, &io->op, rc);
}

static void sim_flight_schedule(struct sim_flight *f)
{
	uint64_t delay_ns = sim_latency(sim_world->opts.disk_latency_ns);

	if (sim_fault_now(SIM_DISK_SLOW))
		delay_ns *= 100 + prng_below(&sim_world->prng, 10000);
	f->event = sim_event_add(f->disk->loop, sim_world->now_ns + delay_ns, SIM_EVENT_DISK,
				 sim_flight_event, f);
	f->event->value = f->kind;
}

static void sim_disk_submit(struct disk *d, struct disk_io *io, enum sim_io_kind kind)
{
	struct sim_medium *m = d->medium;
	struct sim_flight *f;

	OBJ_CHECK(d, SIM_DISK_MAGIC);
	sim_op_begin(d->loop, &io->op, d);
	if (sim_is_ghost(d->loop))
		return;
	f = calloc(1, sizeof(*f));
	must(f != NULL);
	*f = (struct sim_flight){.disk = d, .io = io, .kind = kind, .flush_mark = m->write_number};
	if (kind == SIM_IO_FLUSH) {
		m->flushes_flying++;
		m->flush_mark = m->write_number;
	}
	list_push_back(&d->flying, &f->link);
	sim_flight_schedule(f);
}

void disk_read(struct disk *disk, struct disk_io *io)
{
	disk_io_check(&disk->info, io, true);
	sim_disk_submit(disk, io, SIM_IO_READ);
}

void disk_write(struct disk *disk, struct disk_io *io)
{
	disk_io_check(&disk->info, io, true);
	sim_disk_submit(disk, io, SIM_IO_WRITE);
}

uint8_t *disk_lend(struct disk *disk, uint64_t offset_bytes, uint64_t bytes)
{
	uint64_t rest, place;

	OBJ_CHECK(disk, SIM_DISK_MAGIC);
	loop_must_own(disk->loop);
	must(bytes > 0 && bytes <= disk->info.bytes && offset_bytes <= disk->info.bytes - bytes);
	if (!disk->info.memory || disk->medium->mode != SIM_DISK_WELL)
		return NULL;
	place = sim_place(disk, offset_bytes, &rest);
	if (rest < bytes)
		return NULL;
	disk->counts.reads++;
	disk->counts.read_bytes += bytes;
	return disk->medium->now + place;
}

void disk_flush(struct disk *disk, struct disk_io *io)
{
	sim_disk_submit(disk, io, SIM_IO_FLUSH);
}

void disk_discard(struct disk *disk, struct disk_io *io)
{
	disk_io_check(&disk->info, io, false);
	sim_disk_submit(disk, io, SIM_IO_DISCARD);
}

void disk_zero(struct disk *disk, struct disk_io *io)
{
	disk_io_check(&disk->info, io, false);
	sim_disk_submit(disk, io, SIM_IO_ZERO);
}

static int sim_disk_now(struct disk *d, struct disk_io *io, enum sim_io_kind kind)
{
	OBJ_CHECK(d, SIM_DISK_MAGIC);
	loop_must_own(d->loop);
	if (kind != SIM_IO_FLUSH)
		disk_io_check(&d->info, io, kind != SIM_IO_DISCARD);
	if (sim_is_ghost(d->loop))
		return -EIO;
	if ((kind == SIM_IO_WRITE || kind == SIM_IO_FLUSH) && d->medium->mode == SIM_DISK_WELL &&
	    sim_write_crashes(d->loop)) {
		if (kind == SIM_IO_WRITE && prng_below(&sim_world->prng, 2) == 0)
			sim_disk_tear(d, io);
		sim_disk_settle(d->loop);
		return -EIO;
	}
	return sim_do(d, kind, io, d->medium->write_number);
}

int disk_read_now(struct disk *disk, void *into, uint64_t bytes, uint64_t offset_bytes)
{
	struct iovec iov = {into, bytes};

	return sim_disk_now(disk, &(struct disk_io){.iov = &iov, .iov_count = 1,
		.bytes = bytes, .offset_bytes = offset_bytes}, SIM_IO_READ);
}

void disk_read_many_now(struct disk *disk, struct disk_read_now *reads, unsigned count)
{
	for (unsigned i = 0; i < count; i++)
		reads[i].res = disk_read_now(disk, reads[i].into, reads[i].bytes,
					     reads[i].offset_bytes);
}

/* Its time stands still meanwhile: they are over at once. */
struct disk_many *disk_read_many_begin(struct disk *disk, struct disk_read_now *reads,
				       unsigned count)
{
	disk_read_many_now(disk, reads, count);
	return NULL;
}

void disk_read_many_end(struct disk_many **many)
{
	must(*many == NULL);
}

void disk_rates_now(struct disk_probe *probe, unsigned count, uint64_t budget_ns)
{
	must(budget_ns > 0);
	for (unsigned i = 0; i < count; i++) {
		OBJ_CHECK(probe[i].disk, SIM_DISK_MAGIC);
		must(probe[i].bytes <= probe[i].disk->info.bytes - probe[i].offset_bytes);
		probe[i].rate_count = 0;
	}
}

int disk_write_now(struct disk *disk, const void *from, uint64_t bytes, uint64_t offset_bytes)
{
	struct iovec iov = {(void *)(uintptr_t)from, bytes};

	return sim_disk_now(disk, &(struct disk_io){.iov = &iov, .iov_count = 1,
		.bytes = bytes, .offset_bytes = offset_bytes}, SIM_IO_WRITE);
}

int disk_flush_now(struct disk *disk)
{
	return sim_disk_now(disk, &(struct disk_io){0}, SIM_IO_FLUSH);
}

int disk_discard_now(struct disk *disk, uint64_t bytes, uint64_t offset_bytes)
{
	return sim_disk_now(disk, &(struct disk_io){.bytes = bytes, .offset_bytes = offset_bytes},
			    SIM_IO_DISCARD);
}

/* ---- the tests' side ---- */

uint8_t *sim_disk_bytes(const char *path, uint64_t *bytes)
{
	struct sim_medium *m = sim_medium_find(path);

	if (m == NULL)
		return NULL;
	m->poked = true;
	if (bytes != NULL)
		*bytes = m->bytes;
	return m->now;
}

void sim_disk_rot(const char *path, uint64_t offset_bytes, uint64_t bytes)
{
	struct sim_medium *m = sim_medium_find(path);
	uint64_t first = offset_bytes / SIM_SECTOR, end = (offset_bytes + bytes - 1) / SIM_SECTOR;

	must(m != NULL && bytes > 0 && offset_bytes < m->bytes && bytes <= m->bytes - offset_bytes);
	if (m->rotten == NULL)
		m->rotten = calloc(m->bytes / SIM_SECTOR, 1);
	must(m->rotten != NULL);
	memset(m->rotten + first, 1, end - first + 1);
}

void sim_disk_space(const char *path, uint64_t bytes_left)
{
	struct sim_medium *m = sim_medium_find(path);

	must(m != NULL && !m->poked);
	free(m->allocated);
	m->allocated = NULL;
	if (bytes_left == UINT64_MAX)
		return;
	m->allocated = calloc(sim_medium_chunks(m), 1);
	must(m->allocated != NULL);
	memcpy(m->allocated, m->chunk_touched, sim_medium_chunks(m));
	m->chunks_left = bytes_left / SIM_CHUNK;
}

void sim_disk_mode(const char *path, enum sim_disk_mode mode)
{
	struct sim_medium *m = sim_medium_find(path);

	must(m != NULL);
	m->mode = mode;
	if (mode == SIM_DISK_HANGS)
		return;
	LIST_FOR_EACH(member, &m->opens) {
		struct disk *d = container_of(member, struct disk, of_medium);

		LIST_FOR_EACH(link, &d->flying) {
			struct sim_flight *f = container_of(link, struct sim_flight, link);

			if (f->event == NULL && !sim_is_ghost(f->disk->loop))
				sim_flight_schedule(f);
		}
	}
}

void sim_disk_crash(struct loop *loop, bool keep_unflushed)
{
	sim_disk_settle(loop);
	LIST_FOR_EACH_SAFE(link, &loop->disks) {
		struct disk *d = container_of(link, struct disk, link);

		if (!keep_unflushed)
			sim_medium_power_cut(d->medium);
		sim_disk_forget(d);
	}
}

void sim_disk_end(void)
{
	LIST_FOR_EACH(link, &sim_world->loops) {
		struct loop *l = container_of(link, struct loop, link);

		LIST_FOR_EACH_SAFE(member, &l->disks) {
			struct disk *d = container_of(member, struct disk, link);

			LIST_FOR_EACH_SAFE(flight, &d->flying)
				sim_flight_free(container_of(flight, struct sim_flight, link));
			sim_disk_forget(d);
		}
	}
	LIST_FOR_EACH_SAFE(link, &sim_world->media)
		sim_medium_free(container_of(link, struct sim_medium, link));
}
