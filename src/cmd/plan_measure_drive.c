/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A drive, through the store: values written until there are enough, flushed, then read at random
 * at depths 1 to 64. The rate that counts is that of the knee: the least depth that is nearly as
 * fast as the fastest. Rounds go over all depths again and again, so that a slow second hits all of
 * them alike.
 *
 * Without --drive: a file in a folder of its own below TMPDIR or /tmp. A file that this run makes
 * has no name any more once it is open, so it is gone with the process whatever ends that.
 *
 * What the kernel read from drives for this process is compared with what was asked for: less means
 * that a cache or memory answered, and the profile says so.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <linux/magic.h>

#include "base/must.h"
#include "base/prng.h"
#include "cmd/cmd.h"
#include "cmd/meter.h"
#include "cmd/plan_measure_inner.h"
#include "loop/loop.h"

#define DRIVE_STEPS 7u                   /* depths 1, 2, ... 64 */
#define DRIVE_DEPTH_MAX 64u
#define DRIVE_WRITE_DEPTH 16u
#define DRIVE_BYTES GiB                  /* of the default drive */
#define DRIVE_BYTES_LEAST (512 * MiB)
#define DRIVE_FILL_BYTES (256 * MiB)
#define DRIVE_TURN_NS (10 * NS_PER_MS)
#define DRIVE_SLOT_LEAST_NS (30 * NS_PER_MS)
#define ZFS_MAGIC 0x2fc12fc1

struct drive;

struct worker {
	struct store_op op;
	struct store_buf_wait wait;
	struct drive *drive;
	struct store_buf *buf;
	uint64_t key_index, begun_ns;
	bool stores;
};

struct drive {
	struct loop *loop;
	struct store *store;
	struct store_opts opts;
	struct plan_device *device;
	struct measure *m;
	struct worker worker[DRIVE_DEPTH_MAX];
	struct prng prng;
	struct cmd_meter meter;                  /* latencies at depth 1 */
	struct measured_series rate[DRIVE_STEPS];
	uint64_t keys, next, until_ns, moved;
	unsigned depth, flying;
	bool fill, erase;
	const char *fs;                          /* what lies below, where it is no drive */
	int failed;
};

/* --- one operation after another -------------------- */

static struct kv_key key_of(uint64_t index)
{
	struct kv_key key = {.len = 16};

	memcpy(key.byte, "kvofcalb", 8);
	memcpy(key.byte + 8, &index, sizeof(index));
	return key;
}

static void worker_start(struct drive *d, struct worker *w);

static bool drive_goes_on(const struct drive *d)
{
	if (d->failed != 0 || (!d->erase && measure_stopped()))
		return false;
	return d->fill || d->erase ? d->next < d->keys : cmd_now_ns() < d->until_ns;
}

static void worker_done(struct store_op *op, int res)
{
	struct worker *w = container_of(op, struct worker, op);
	struct drive *d = w->drive;
	struct store_buf *buf = w->buf != NULL ? w->buf : op->buf;

	if (res != 0 && d->failed == 0 && !(d->erase && res == -ENOENT))
		d->failed = res;
	if (res == 0 && !d->erase)
		d->moved += d->m->value_bytes;
	if (res == 0 && !d->fill && !d->erase && d->depth == 1)
		cmd_meter_add(&d->meter, cmd_now_ns() - w->begun_ns);
	w->buf = NULL;
	op->buf = NULL;
	if (buf != NULL)
		store_buf_give(d->store, &buf);
	d->flying--;
	if (drive_goes_on(d))
		worker_start(d, w);
}

static void worker_buf(struct store_buf_wait *wait, struct store_buf *buf)
{
	struct worker *w = container_of(wait, struct worker, wait);

	for (unsigned i = 0; i < buf->piece_count; i++)
		prng_fill(&w->drive->prng, buf->piece[i].iov_base,
			  bytes_min(buf->piece[i].iov_len, 4096));
	w->buf = buf;
	w->op = (struct store_op){.key = key_of(w->key_index), .buf = buf, .done = worker_done};
	store_put(w->drive->store, &w->op);
}

static void worker_start(struct drive *d, struct worker *w)
{
	w->drive = d;
	w->key_index = d->fill || d->erase ? d->next++ : prng_below(&d->prng, d->keys);
	w->begun_ns = cmd_now_ns();
	d->flying++;
	if (d->fill) {
		w->wait = (struct store_buf_wait){.payload_bytes = (uint32_t)d->m->value_bytes,
						  .ready = worker_buf};
		store_buf_take(d->store, &w->wait);
		return;
	}
	w->op = (struct store_op){.key = key_of(w->key_index), .done = worker_done,
				  .want_bytes = d->erase ? 0 : UINT32_MAX};
	if (d->erase)
		store_delete(d->store, &w->op);
	else
		store_get(d->store, &w->op);
}

/* Until all keys are through, or the time is over, with so many in flight. Return: seconds. */
static double drive_phase(struct drive *d, unsigned depth)
{
	uint64_t begun_ns = cmd_now_ns();

	d->next = d->moved = 0;
	d->depth = depth;
	for (unsigned i = 0; i < depth && drive_goes_on(d); i++)
		worker_start(d, &d->worker[i]);
	while (d->flying > 0)
		loop_turn(d->loop, DRIVE_TURN_NS);
	return (double)(cmd_now_ns() - begun_ns) / 1e9;
}

static void flush_done(struct store_op *op, int res)
{
	struct worker *w = container_of(op, struct worker, op);

	if (res != 0 && w->drive->failed == 0)
		w->drive->failed = res;
	w->drive->flying--;
}

static void drive_flush(struct drive *d)
{
	d->worker[0].drive = d;
	d->worker[0].op = (struct store_op){.done = flush_done};
	d->flying = 1;
	store_flush(d->store, &d->worker[0].op);
	while (d->flying > 0)
		loop_turn(d->loop, DRIVE_TURN_NS);
}

/* --- what lies below -------------------- */

/* Bytes that the kernel read from drives for this process; false: it does not tell. */
static bool drives_read(uint64_t *bytes)
{
	FILE *f = fopen("/proc/self/io", "re");
	char line[128];
	bool told = false;

	while (f != NULL && fgets(line, sizeof(line), f) != NULL)
		told |= sscanf(line, "read_bytes: %" SCNu64, bytes) == 1;
	if (f != NULL)
		fclose(f);
	return told;
}

static const char *file_system(const char *path)
{
	static const struct {
		unsigned long magic;
		const char *name;
	} known[] = {{TMPFS_MAGIC, "tmpfs, which is memory and no drive"},
		     {RAMFS_MAGIC, "ramfs, which is memory and no drive"},
		     {ZFS_MAGIC, "ZFS, which keeps a cache of its own"},
		     {NFS_SUPER_MAGIC, "NFS: the server's cache answers as well"},
		     {FUSE_SUPER_MAGIC, "FUSE: whoever serves it may keep a cache"}};
	struct stat st;
	struct statfs fs;

	if (stat(path, &st) != 0 || S_ISBLK(st.st_mode) || statfs(path, &fs) != 0)
		return NULL;
	for (unsigned i = 0; i < ARRAY_COUNT(known); i++)
		if ((unsigned long)fs.f_type == known[i].magic)
			return known[i].name;
	return NULL;
}

static void cache_note(struct drive *d, uint64_t before, bool told, uint64_t asked)
{
	uint64_t after = 0;

	if (!told || !drives_read(&after)) {
		plan_device_note(d->device, "the kernel does not tell whether a page cache was in "
				 "the way");
		return;
	}
	if (asked > 0 && (double)(after - before) < 0.9 * (double)asked)
		plan_device_note(d->device, PLAN_NOTE_NOT_DRIVE ": only %.0f %% of the bytes came "
				 "from a drive, memory or a page cache had the rest",
				 100 * (double)(after - before) / (double)asked);
}

/* --- measuring -------------------- */

static int drive_wrong(const struct drive *d, const char *doing)
{
	const char *path = d->opts.drive[0].path;

	if (d->failed == -ENOSPC)
		return measure_failed("drive %s: no room left while %s", path, doing);
	return measure_failed("drive %s: %s while %s", path,
			      d->failed == -EBADMSG ? "a value came back with wrong bytes" :
			      strerror(-d->failed), doing);
}

static int drive_write(struct drive *d)
{
	double seconds;

	d->fill = true;
	seconds = drive_phase(d, DRIVE_WRITE_DEPTH);
	d->fill = false;
	if (d->failed == 0) {
		uint64_t begun_ns = cmd_now_ns();

		drive_flush(d);
		seconds += (double)(cmd_now_ns() - begun_ns) / 1e9;
	}
	if (d->failed != 0)
		return drive_wrong(d, "writing");
	d->device->write_bytes_per_s = (double)d->moved / seconds;
	return 0;
}

static int drive_read(struct drive *d)
{
	uint64_t now_ns = cmd_now_ns(), before = 0, asked = 0;
	uint64_t left_ns = d->m->stage_end_ns > now_ns ? d->m->stage_end_ns - now_ns : 0;
	uint64_t slot_ns = left_ns / DRIVE_STEPS / (MEASURE_REPEATS_LEAST + 2);
	bool told = drives_read(&before);

	slot_ns = slot_ns < DRIVE_SLOT_LEAST_NS ? DRIVE_SLOT_LEAST_NS : slot_ns;
	cmd_meter_begin(&d->meter);
	for (unsigned r = 0; r < MEASURED_REPEATS_MAX && !measure_stopped(); r++) {
		if (r >= MEASURE_REPEATS_LEAST && measure_over(d->m))
			break;
		for (unsigned i = 0; i < DRIVE_STEPS && !measure_stopped(); i++) {
			double seconds;

			d->until_ns = cmd_now_ns() + slot_ns;
			seconds = drive_phase(d, 1u << i);
			if (d->failed != 0)
				return drive_wrong(d, "reading");
			asked += d->moved;
			measured_add(&d->rate[i], (double)d->moved / seconds);
			measure_progress(d->m, "reads at depth %u, %.2f GB/s", 1u << i,
					 (double)d->moved / seconds / 1e9);
		}
	}
	cmd_meter_end(&d->meter);
	cache_note(d, before, told, asked);
	return 0;
}

static void drive_report(struct drive *d)
{
	struct measured_step step[DRIVE_STEPS];
	char ladder[160] = "";
	unsigned knee;

	for (unsigned i = 0; i < DRIVE_STEPS; i++) {
		size_t used = strlen(ladder);

		step[i] = (struct measured_step){1u << i, measured_median(&d->rate[i])};
		snprintf(ladder + used, sizeof(ladder) - used, "%s%u: %.2f", i > 0 ? ", " : "",
			 step[i].depth, step[i].bytes_per_s / 1e9);
	}
	knee = measured_knee(step, DRIVE_STEPS);
	d->device->read_bytes_per_s = step[knee].bytes_per_s;
	d->device->depth = step[knee].depth;
	d->device->value_bytes = d->m->value_bytes;
	d->device->latency_s = cmd_meter_us(&d->meter, 0.5) / 1e6;
	plan_device_note(d->device, "GB/s read by depth: %s", ladder);
	plan_device_note(d->device, "one read at a time: p50 %.0f us, p99 %.0f us; writes at depth "
			 "%u with a flush at their end", cmd_meter_us(&d->meter, 0.5),
			 cmd_meter_us(&d->meter, 0.99), DRIVE_WRITE_DEPTH);
	if (d->fs != NULL)
		plan_device_note(d->device, "the file lies on %s", d->fs);
	measure_device_noisy(d->device, &d->rate[knee], " at the knee");
}

static int drive_run(struct drive *d)
{
	int rc;

	d->device = measure_device(d->m, PLAN_DEVICE_DRIVE, "%s", d->m->folder[0] != 0 ?
				   "a file of this machine" : d->opts.drive[0].path);
	measure_progress(d->m, "writing %llu MiB",
			 (unsigned long long)(d->keys * d->m->value_bytes / MiB));
	rc = drive_write(d);
	if (rc == 0 && !measure_stopped())
		rc = drive_read(d);
	if (rc == 0 && !measure_stopped())
		drive_report(d);
	d->erase = true;
	d->failed = 0;
	(void)drive_phase(d, DRIVE_WRITE_DEPTH);
	return rc;
}

/* --- open and close -------------------- */

static void drive_closed(void *arg)
{
	*(bool *)arg = true;
}

/* At most half of the drive is filled: the rest is segments that are open, and room to append. */
static uint64_t keys_of(const struct measure *m, uint64_t drive_bytes)
{
	uint64_t bytes = bytes_min(DRIVE_FILL_BYTES, drive_bytes / 2);

	return bytes / m->value_bytes;
}

static uint64_t drive_bytes(const struct store_drive *drive)
{
	struct stat st;
	uint64_t bytes = drive->bytes;
	FILE *f;

	if (stat(drive->path, &st) == 0 && S_ISREG(st.st_mode) && st.st_size > 0)
		bytes = (uint64_t)st.st_size;
	f = bytes == 0 ? fopen(drive->path, "re") : NULL;
	if (f != NULL && fseeko(f, 0, SEEK_END) == 0 && ftello(f) > 0)
		bytes = (uint64_t)ftello(f);
	if (f != NULL)
		fclose(f);
	return bytes;
}

static int drive_store_open(struct drive *d, unsigned index, bool format)
{
	const struct loop_opts lo = {.name = "calibrate"};
	struct store_report report;

	d->opts.format = format;
	d->opts.drive[0] = d->m->drives.drive[index];
	d->opts.drive_count = 1;
	d->opts.value_bytes_max = (uint32_t)(d->m->value_bytes > MiB ? d->m->value_bytes : MiB);
	d->opts.buffer_bytes = (DRIVE_DEPTH_MAX + 4) * (d->m->value_bytes + 8192);
	d->opts.drive_depth = DRIVE_DEPTH_MAX;
	if (loop_open(&lo, &d->loop) != 0)
		return measure_failed("no loop can be opened; see ulimit -l and -n");
	if (store_open(&d->opts, d->loop, &d->store, &report) != 0)
		return measure_failed("%s", report.text);
	if (report.keys > 0)
		return measure_failed("drive %s: holds %llu values, which measuring could evict; "
				      "name another", d->opts.drive[0].path,
				      (unsigned long long)report.keys);
	d->fs = file_system(d->opts.drive[0].path);
	measure_drive_unname(d->m);
	return 0;
}

static void drive_close(struct drive *d)
{
	bool done = false;

	if (d->store != NULL) {
		store_close(&d->store, drive_closed, &done);
		while (!done)
			loop_turn(d->loop, DRIVE_TURN_NS);
	}
	if (d->loop != NULL)
		loop_close(&d->loop);
}

int measure_drive_part(struct measure *m)
{
	int rc = 0;

	for (unsigned i = 0; rc == 0 && m->drives.count > 1 && i < m->drives.count; i++) {
		struct drive *d = m->made_drive[i] ? NULL : calloc(1, sizeof(*d));

		if (d == NULL)
			continue;
		d->m = m;
		rc = drive_store_open(d, i, true);
		drive_close(d);
		free(d);
	}
	return rc;
}

int measure_drive(struct measure *m, unsigned index)
{
	struct drive *d = calloc(1, sizeof(*d));
	int rc;

	if (d == NULL)
		return measure_failed("no memory");
	d->m = m;
	d->prng = prng_of(1);
	d->keys = keys_of(m, drive_bytes(&m->drives.drive[index]));
	rc = drive_store_open(d, index, false);
	if (rc == 0 && d->keys < DRIVE_DEPTH_MAX)
		rc = measure_failed("drive %s: too small, %u MiB are needed",
				    m->drives.drive[index].path,
				    (unsigned)(2 * DRIVE_DEPTH_MAX * m->value_bytes / MiB));
	if (rc == 0)
		rc = drive_run(d);
	drive_close(d);
	free(d);
	return rc;
}

/* --- the default drive -------------------- */

void measure_drive_unname(const struct measure *m)
{
	for (unsigned i = 0; i < m->drives.count; i++)
		if (m->made_drive[i])
			unlink(m->drives.path[i]);
}

int measure_drive_begin(struct measure *m)
{
	const char *below = getenv("TMPDIR");
	struct store_drive *d = &m->drives.drive[0];
	struct statvfs fs;
	uint64_t room;

	for (unsigned i = 0; i < m->drives.count; i++)
		m->made_drive[i] = m->drives.drive[i].bytes > 0 &&
			access(m->drives.path[i], F_OK) != 0 && errno == ENOENT;
	if (m->drives.count > 0)
		return 0;
	if (below == NULL || below[0] != '/' || strlen(below) > 180)
		below = "/tmp";
	if (statvfs(below, &fs) != 0)
		return measure_failed("%s: %s; name a drive with --drive", below, strerror(errno));
	room = (uint64_t)fs.f_bavail * fs.f_frsize / 2 / MiB * MiB;
	if (room < DRIVE_BYTES_LEAST) {
		m->no_local = "no room for a file below TMPDIR or /tmp";
		return 0;
	}
	snprintf(m->folder, sizeof(m->folder), "%s/kvof-calibrate-XXXXXX", below);
	if (mkdtemp(m->folder) == NULL) {
		m->folder[0] = 0;
		return measure_failed("%s: no folder can be made there (%s); name a drive with "
				      "--drive", below, strerror(errno));
	}
	snprintf(m->drives.path[0], sizeof(m->drives.path[0]), "%.240s/drive",
		 m->folder);
	*d = (struct store_drive){.path = m->drives.path[0], .bytes = bytes_min(room, DRIVE_BYTES)};
	m->drives.count = 1;
	m->made_drive[0] = true;
	return 0;
}

void measure_drive_end(struct measure *m)
{
	measure_drive_unname(m);
	if (m->folder[0] != 0)
		rmdir(m->folder);
	m->folder[0] = 0;
}
