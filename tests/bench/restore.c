/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cold restore of one prefix: saves its blocks, opens the cache anew without DRAM, restores all of
 * them into memory of the engine's, and compares every byte.
 *
 *   restore [flash=PATH[,size=S][,rate=S]]... [target=T] [tokens=N] [token_bytes=N] [layers=N]
 *           [block_tokens=N] [part=BYTES] [concurrency=N] [delay_us=N] [rounds=N] [save=0|1]
 *           [serial=PATH]
 *
 * concurrency: parts in flight, by the staging of the cache; 0: the default staging. delay_us is
 * added to each read of a local drive, below the store: this program is linked with disk_read()
 * wrapped. serial: reads parts of that file one after another instead, with the same delay: what
 * a cache does that loads block by block. Prints one JSON object.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "args.h"

#include "base/must.h"
#include "base/prng.h"
#include "kvof/restore.h"
#include "loop/disk.h"
#include "loop/loop.h"

#define ROUNDS_MAX 64

static uint64_t tokens = 30208, token_bytes = 23040, layers = 30, block_tokens = 256;
static uint64_t part = 256 * KiB, concurrency, delay_us, rounds = 3, save = 1;
static const char *flash[KVOF_FLASH_MAX], *target, *serial;
static uint32_t flash_count;

static uint64_t clock_of(clockid_t which)
{
	struct timespec now;

	clock_gettime(which, &now);
	return (uint64_t)now.tv_sec * NS_PER_S + (uint64_t)now.tv_nsec;
}

static double seconds(uint64_t ns)
{
	return (double)ns / 1e9;
}

/* --- the fault layer: each read of a drive comes later ---------------------------------------- */

struct delayed {
	struct loop_timer timer;
	struct disk *disk;
	struct disk_io *io;
};

static struct loop *delay_loop;

int __real_loop_open(const struct loop_opts *opts, struct loop **out);
int __wrap_loop_open(const struct loop_opts *opts, struct loop **out);
void __real_disk_read(struct disk *disk, struct disk_io *io);
void __wrap_disk_read(struct disk *disk, struct disk_io *io);

int __wrap_loop_open(const struct loop_opts *opts, struct loop **out)
{
	int rc = __real_loop_open(opts, out);

	delay_loop = *out;
	return rc;
}

static void delay_over(struct loop_timer *timer)
{
	struct delayed *d = container_of(timer, struct delayed, timer);

	__real_disk_read(d->disk, d->io);
	free(d);
}

void __wrap_disk_read(struct disk *disk, struct disk_io *io)
{
	struct delayed *d;

	if (delay_us == 0) {
		__real_disk_read(disk, io);
		return;
	}
	d = malloc(sizeof(*d));
	must(d != NULL);
	*d = (struct delayed){.disk = disk, .io = io};
	loop_timer_init(&d->timer, delay_over);
	loop_timer_set(delay_loop, &d->timer, loop_now_ns(delay_loop) + delay_us * 1000);
}

/* --- the request ------------------------------------------------------------------------------ */

static uint8_t *data, *back;
static uint32_t blocks;
static uint64_t block_bytes;
static struct kvof_block *list;
static struct iovec *iov;

static struct kvof_cache *cache_open(bool format)
{
	struct kvof_cache_opts opts = {
		.struct_bytes = sizeof(opts),
		.target = target,
		.flash = flash_count > 0 ? flash : NULL,
		.flash_count = flash_count,
		.flash_format = format && save && flash_count > 0,
		.model_id = "bench",
		.block_tokens = (uint32_t)block_tokens,
		.part_bytes = (uint32_t)part,
		.layer_count = (uint32_t)layers,
		.deadline_ns = 300 * NS_PER_S,
		/* a request takes three quarters of it */
		.staging_bytes = concurrency > 0 ? (concurrency * 4 / 3 + 1) * part : 0,
		.strict = target != NULL,
	};
	struct kvof_cache *cache;
	char why[256];

	if (kvof_cache_open(&opts, why, &cache) != 0) {
		fprintf(stderr, "restore: %s\n", why);
		exit(3);
	}
	return cache;
}

static void list_over(uint8_t *at)
{
	for (uint32_t i = 0; i < blocks; i++) {
		iov[i] = (struct iovec){at + i * block_bytes, block_bytes};
		list[i].iov = &iov[i];
		list[i].iov_count = 1;
		list[i].bytes = block_bytes;
	}
}

static void prepare(struct kvof_cache *cache)
{
	int32_t *ids = malloc(tokens * sizeof(*ids));
	struct kvof_id *id = calloc(blocks, sizeof(*id));

	for (uint64_t i = 0; i < tokens; i++)
		ids[i] = (int32_t)i;
	must(kvof_cache_ids(cache, ids, tokens, NULL, id) == 0);
	for (uint32_t i = 0; i < blocks; i++)
		list[i].id = id[i];
	free(ids);
	free(id);
}

static double save_all(struct kvof_cache *cache)
{
	struct kvof_result *r = calloc(blocks, sizeof(*r));
	uint64_t begin = clock_of(CLOCK_MONOTONIC);

	list_over(data);
	for (uint32_t at = 0; at < blocks; at += 16) {
		uint32_t n = blocks - at < 16 ? blocks - at : 16;

		must(kvof_cache_wait(cache, KVOF_SAVE, list + at, n, 0, r) == 0);
		for (uint32_t i = 0; i < n; i++)
			if (r[i].reason != KVOF_OK && r[i].reason != KVOF_EXISTS) {
				fprintf(stderr, "restore: block %u was not saved: %s\n", at + i,
					kvof_reason_name(r[i].reason));
				exit(3);
			}
	}
	free(r);
	return seconds(clock_of(CLOCK_MONOTONIC) - begin);
}

struct round {
	double seconds, first_layer_s, cpu_s, queue_s, device_s, verify_s;
	uint64_t device_bytes, delivered_bytes;
};

/* Drains until the request is over. Return: usable blocks. */
static uint64_t request_wait(struct kvof_cache *cache)
{
	for (;;) {
		struct pollfd p = {.fd = kvof_cache_fd(cache), .events = POLLIN};
		struct kvof_result r[64];
		int n = kvof_cache_drain(cache, r, 64);

		for (int i = 0; i < n; i++)
			if ((r[i].flags & KVOF_RESULT_REQUEST) != 0)
				return r[i].value_bytes;
		if (n == 0)
			poll(&p, 1, -1);
	}
}

static struct round restore_all(void)
{
	struct kvof_restore_opts opts = {.struct_bytes = sizeof(opts),
					 .flags = KVOF_RESTORE_LOAD_ALL};
	struct kvof_restore_trace t = {.struct_bytes = sizeof(t)};
	struct kvof_cache *cache = cache_open(false);
	struct kvof_cache_stat before, after;
	uint64_t begin, cpu, request, usable;
	struct round round = {0};

	memset(back, 0x5a, blocks * block_bytes);
	list_over(back);
	must(kvof_cache_stat(cache, &before) == 0);
	cpu = clock_of(CLOCK_PROCESS_CPUTIME_ID);
	begin = clock_of(CLOCK_MONOTONIC);
	must(kvof_restore_begin(cache, list, blocks, &opts, &request) == 0);
	usable = request_wait(cache);
	round.seconds = seconds(clock_of(CLOCK_MONOTONIC) - begin);
	round.cpu_s = seconds(clock_of(CLOCK_PROCESS_CPUTIME_ID) - cpu);
	must(kvof_cache_stat(cache, &after) == 0);
	must(kvof_restore_end(cache, request, &t) == 0);
	if (usable != blocks || memcmp(data, back, blocks * block_bytes) != 0) {
		fprintf(stderr, "restore: %" PRIu64 " of %u blocks came, or other bytes (%s)\n",
			usable, blocks, kvof_reason_name((enum kvof_reason)t.reason));
		exit(1);
	}
	round.first_layer_s = seconds(t.first_layer_ns - t.begin_ns);
	round.queue_s = seconds(t.queue_ns);
	round.device_s = seconds(t.device_ns);
	round.verify_s = seconds(t.verify_ns);
	for (int i = 2; i < 4; i++) {
		round.device_bytes += after.device_bytes[i] - before.device_bytes[i];
		round.delivered_bytes += t.bytes[i];
	}
	kvof_cache_close(&cache);
	return round;
}

/* --- one after another ------------------------------------------------------------------------ */

static struct round serial_all(void)
{
	uint64_t left = blocks * block_bytes, begin, size;
	struct timespec pause = {0, (long)delay_us * 1000};
	int fd = open(serial, O_RDONLY | O_DIRECT | O_CLOEXEC);
	struct prng p = prng_of(3);
	struct round round = {0};

	must(fd >= 0);
	size = (uint64_t)lseek(fd, 0, SEEK_END);
	must(size > part);
	begin = clock_of(CLOCK_MONOTONIC);
	while (left > 0) {
		uint64_t step = left < part ? left : part;
		uint64_t at = prng_below(&p, size - part) & ~(uint64_t)4095;

		if (delay_us > 0)          /* the drive's, not ours */
			clock_nanosleep(CLOCK_MONOTONIC, 0, &pause, NULL);
		must(pread(fd, back, (step + 4095) & ~(uint64_t)4095, (off_t)at) > 0);
		left -= step;
	}
	round.seconds = round.first_layer_s = seconds(clock_of(CLOCK_MONOTONIC) - begin);
	close(fd);
	return round;
}

/* --- arguments -------------------------------------------------------------------------------- */

static void args_take(int argc, char **argv)
{
	for (int i = 1; i < argc; i++) {
		const char *a = argv[i];

		if (strncmp(a, "flash=", 6) == 0 && flash_count < KVOF_FLASH_MAX)
			flash[flash_count++] = a + 6;
		else if (strncmp(a, "target=", 7) == 0)
			target = a + 7;
		else if (strncmp(a, "serial=", 7) == 0)
			serial = a + 7;
		else if (!number(a, "tokens", &tokens) && !number(a, "layers", &layers) &&
			 !number(a, "token_bytes", &token_bytes) && !number(a, "part", &part) &&
			 !number(a, "block_tokens", &block_tokens) && !number(a, "save", &save) &&
			 !number(a, "concurrency", &concurrency) &&
			 !number(a, "delay_us", &delay_us) && !number(a, "rounds", &rounds)) {
			fprintf(stderr, "restore: what is %s?\n", a);
			exit(2);
		}
	}
	must(rounds > 0 && rounds <= ROUNDS_MAX && block_tokens > 0 && tokens >= block_tokens);
	blocks = (uint32_t)(tokens / block_tokens);
	tokens = blocks * block_tokens;
	block_bytes = block_tokens * token_bytes;
}

static void rounds_print(const char *name, const struct round *r, size_t offset)
{
	printf(", \"%s\": [", name);
	for (uint64_t i = 0; i < rounds; i++)
		printf("%s%.4f", i > 0 ? ", " : "",
		       *(const double *)(const void *)((const char *)&r[i] + offset));
	printf("]");
}

int main(int argc, char **argv)
{
	struct round r[ROUNDS_MAX];
	double save_s = 0, bytes;
	struct prng p = prng_of(1);

	args_take(argc, argv);
	list = calloc(blocks, sizeof(*list));
	iov = calloc(blocks, sizeof(*iov));
	data = loop_buffer_map(blocks * block_bytes);
	back = loop_buffer_map(blocks * block_bytes);
	must(list != NULL && iov != NULL && data != NULL && back != NULL);
	prng_fill(&p, data, blocks * block_bytes);
	if (serial == NULL) {
		struct kvof_cache *cache = cache_open(true);

		prepare(cache);
		if (save)
			save_s = save_all(cache);
		kvof_cache_close(&cache);
	}
	for (uint64_t i = 0; i < rounds; i++)
		r[i] = serial != NULL ? serial_all() : restore_all();
	bytes = (double)blocks * (double)block_bytes;
	printf("{\"bytes\": %.0f, \"blocks\": %u, \"block_tokens\": %" PRIu64 ", \"part_bytes\": %"
	       PRIu64 ", \"concurrency\": %" PRIu64 ", \"delay_us\": %" PRIu64
	       ", \"save_s\": %.3f", bytes, blocks, block_tokens, part, concurrency, delay_us,
	       save_s);
	rounds_print("restore_s", r, offsetof(struct round, seconds));
	rounds_print("first_layer_s", r, offsetof(struct round, first_layer_s));
	rounds_print("cpu_s", r, offsetof(struct round, cpu_s));
	rounds_print("verify_s", r, offsetof(struct round, verify_s));
	if (serial == NULL && r[0].delivered_bytes > 0)
		printf(", \"read_per_delivered\": %.4f", (double)r[0].device_bytes /
		       (double)r[0].delivered_bytes);
	printf("}\n");
	return 0;
}
