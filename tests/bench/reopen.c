/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How long a store takes to open, from what lies on its drives: sparse files get superblocks,
 * headers and footers that list values, as a store that was stopped leaves them, and no values. An
 * open reads no more than that.
 *
 *   reopen FOLDER [keys=N] [bytes=VALUE BYTES] [drives=N] [shards=N] [segment=MIB] [rounds=N]
 *          [ask=N]
 *
 * Each shard is a store of its own, over parts of all drives, opened by a thread of its own, as an
 * array does. After the last round so many keys of each shard's part of each drive are asked for,
 * as many that nobody stored, and as many new ones are stored, in no time that is told. Prints one
 * JSON object.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "args.h"

#include "base/must.h"
#include "base/prng.h"
#include "loop/disk.h"
#include "store/format.h"
#include "store/store.h"

#define SHARDS_MAX 16

struct plan {
	const char *folder;
	uint64_t keys, value_bytes, drives, shards, segment_bytes, rounds, ask;
	uint64_t segments;                   /* a part */
	uint64_t part_bytes, per_segment;
};

struct shard {
	const struct plan *plan;
	struct disk **drive;
	struct loop *loop;
	struct store *st;
	struct store_report report;
	struct store_stat stat;
	unsigned number;
	int rc;
	uint64_t asked, found, strangers_found, created;
};

static uint64_t now_ns(clockid_t clock)
{
	struct timespec ts;

	clock_gettime(clock, &ts);
	return (uint64_t)ts.tv_sec * NS_PER_S + (uint64_t)ts.tv_nsec;
}

static void put(int fd, const void *from, uint64_t bytes, uint64_t at)
{
	if (pwrite(fd, from, bytes, (off_t)at) != (ssize_t)bytes) {
		perror("write");
		exit(1);
	}
}

/* --- making -------------------- */

static void uuid_of(unsigned shard, uint8_t out[16])
{
	memset(out, 0x11 + (int)shard, 16);
}

static void key_make(uint64_t number, unsigned drive, uint64_t store_id, uint8_t out[16])
{
	struct prng r = prng_of(number + ((uint64_t)drive << 40) + store_id);

	prng_fill(&r, out, 16);
}

static void segment_make(const struct plan *p, int fd, uint64_t base, struct fmt_place at,
			 uint32_t segment, uint64_t first_key, uint32_t count)
{
	uint32_t blocks = (uint32_t)(p->segment_bytes / FMT_BLOCK_BYTES);
	uint32_t record = fmt_record_blocks((uint32_t)p->value_bytes);
	struct fmt_segment_info info = {
		.state = FMT_SEGMENT_SEALED, .generation = (UINT64_C(1) << 32) + segment,
		.sequence_base = first_key, .used_blocks = 1 + count * record,
		.entry_count = count, .mount = 1,
	};
	uint64_t block = fmt_segment_block((uint32_t)p->segment_bytes, segment);
	uint64_t foot_bytes = (uint64_t)fmt_footer_blocks(count) * FMT_BLOCK_BYTES;
	struct fmt_entry *e = calloc(count, sizeof(*e));
	uint8_t *foot = malloc(foot_bytes), head[FMT_BLOCK_BYTES];

	must(e != NULL && foot != NULL);
	for (uint32_t i = 0; i < count; i++) {
		key_make(first_key + i, at.drive, at.store_id, e[i].key);
		e[i].key_len = 16;
		e[i].kind = FMT_PUT;
		e[i].block = le32_of(1 + i * record);
		e[i].value_bytes = le32_of((uint32_t)p->value_bytes);
		e[i].sequence_delta = le32_of(i);
	}
	at.block = block;
	fmt_header_write(head, &at, (uint32_t)p->segment_bytes, &info);
	put(fd, head, sizeof(head), base + block * FMT_BLOCK_BYTES);
	at.block = block + blocks - 1;
	fmt_footer_write(foot, &at, (uint32_t)p->segment_bytes, &info, e);
	put(fd, foot, foot_bytes, base + (block + blocks) * FMT_BLOCK_BYTES - foot_bytes);
	free(e);
	free(foot);
}

static void part_make(const struct plan *p, int fd, unsigned drive, unsigned shard)
{
	uint64_t base = shard * p->part_bytes, last = p->part_bytes / FMT_BLOCK_BYTES - 1;
	uint64_t keys = p->keys / p->shards / p->drives, made = 0;
	struct fmt_super_info super = {
		.drive = (uint8_t)drive, .drive_count = (uint8_t)p->drives,
		.segment_bytes = (uint32_t)p->segment_bytes, .value_bytes_max = MiB,
		.mount = 2, .trusted = (1u << p->drives) - 1, .drive_bytes = p->part_bytes,
		.write_count = 1,
	};
	uint8_t block[FMT_BLOCK_BYTES];

	uuid_of(shard, super.uuid);
	for (unsigned i = 0; i < 2; i++) {
		fmt_super_write(block, &super, i == 0 ? last : 0);
		put(fd, block, sizeof(block), base + (i == 0 ? last : 0) * FMT_BLOCK_BYTES);
	}
	for (uint32_t s = 0; s < p->segments && made < keys; s++) {
		struct fmt_place at = {.store_id = fmt_store_id(super.uuid),
				       .drive = (uint8_t)drive};
		uint32_t count = (uint32_t)bytes_min(p->per_segment, keys - made);

		segment_make(p, fd, base, at, s, made, count);
		made += count;
	}
}

static void path_of(const struct plan *p, unsigned drive, char out[256])
{
	snprintf(out, 256, "%s/reopen-drive%u", p->folder, drive);
}

static void plan_make(struct plan *p)
{
	uint64_t record = fmt_record_blocks((uint32_t)p->value_bytes);
	uint64_t blocks = p->segment_bytes / FMT_BLOCK_BYTES, part_keys;

	part_keys = (p->keys / p->shards + p->drives - 1) / p->drives;
	p->per_segment = (blocks - 2) / record;
	while (p->per_segment * record + 1 + fmt_footer_blocks((uint32_t)p->per_segment) > blocks)
		p->per_segment--;
	must(p->per_segment > 0);
	p->segments = (part_keys + p->per_segment - 1) / p->per_segment + 4;
	p->part_bytes = 17 * FMT_BLOCK_BYTES + p->segments * p->segment_bytes;
	for (unsigned d = 0; d < p->drives; d++) {
		char path[256];
		int fd;

		path_of(p, d, path);
		fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
		if (fd < 0 || ftruncate(fd, (off_t)(p->part_bytes * p->shards)) != 0) {
			perror(path);
			exit(1);
		}
		for (unsigned s = 0; s < p->shards; s++)
			part_make(p, fd, d, s);
		if (fsync(fd) != 0)
			perror("fsync");
		(void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
		close(fd);
	}
}

/* --- opening -------------------- */

static void *shard_open(void *arg)
{
	struct shard *s = arg;
	const struct plan *p = s->plan;
	struct store_opts opts = {.drive_count = (unsigned)p->drives, .value_bytes_max = MiB,
		.index_keys_max = p->keys / p->shards + 1000 + p->drives * p->ask,
		.buffer_bytes = 8 * MiB};

	struct loop_opts lo = {.name = "shard"};

	s->rc = loop_open(&lo, &s->loop);
	for (unsigned d = 0; d < p->drives && s->rc == 0; d++) {
		struct disk_extent part = {s->number * p->part_bytes, p->part_bytes};

		opts.drive[d].path = "part";
		s->rc = disk_open_part(s->loop, s->drive[d], &part, 1, &opts.drive[d].disk);
	}
	uuid_of(s->number, opts.uuid);
	if (s->rc == 0)
		s->rc = store_open(&opts, s->loop, &s->st, &s->report);
	return NULL;
}

static void closed(void *arg)
{
	*(bool *)arg = true;
}

static void *shard_close(void *arg)
{
	struct shard *s = arg;
	bool done = false;

	store_stat(s->st, &s->stat);
	store_close(&s->st, closed, &done);
	while (!done)
		loop_turn(s->loop, NS_PER_S);
	loop_close(&s->loop);
	return NULL;
}

/* --- asking -------------------- */

struct create {
	struct store_buf_wait wait;
	struct store_op op;
	struct shard *shard;
	bool done;
};

static void create_done(struct store_op *op, int res)
{
	struct create *c = container_of(op, struct create, op);

	c->shard->created += res == 0;
	c->done = true;
}

static void create_ready(struct store_buf_wait *w, struct store_buf *buf)
{
	struct create *c = container_of(w, struct create, wait);

	for (unsigned i = 0; i < buf->piece_count; i++)
		memset(buf->piece[i].iov_base, 0x5a, buf->piece[i].iov_len);
	c->op.buf = buf;
	store_put(c->shard->st, &c->op);
}

static void create(struct shard *s, const struct kv_key *key)
{
	struct create c = {.shard = s, .op = {.key = *key, .mode = STORE_PUT_IF_ABSENT,
					      .done = create_done}};

	c.wait.payload_bytes = (uint32_t)s->plan->value_bytes;
	c.wait.ready = create_ready;
	store_buf_take(s->st, &c.wait);
	while (!c.done)
		loop_turn(s->loop, NS_PER_S);
	store_buf_give(s->st, &c.op.buf);
}

/* Keys from the first to the last of a drive, and ones beyond it, that nobody stored. */
static void shard_ask(struct shard *s)
{
	const struct plan *p = s->plan;
	uint64_t keys = p->keys / p->shards / p->drives;
	uint64_t ask = bytes_min(p->ask, keys);
	struct kv_key key = {.len = 16};
	uint8_t uuid[16];
	uint32_t bytes;

	uuid_of(s->number, uuid);
	for (unsigned d = 0; d < p->drives; d++) {
		for (uint64_t i = 0; i < ask; i++) {
			key_make(ask == 1 ? 0 : i * (keys - 1) / (ask - 1), d, fmt_store_id(uuid),
				 key.byte);
			s->found += store_exists(s->st, &key, &bytes) && bytes == p->value_bytes;
			key_make(keys + i, d, fmt_store_id(uuid), key.byte);
			s->strangers_found += store_exists(s->st, &key, &bytes);
			create(s, &key);
			s->asked++;
		}
	}
}

/* Each shard on a thread of its own, from the first to the last. */
static void *shard_life(void *arg)
{
	struct shard *s = arg;

	shard_open(s);
	if (s->rc != 0) {
		fprintf(stderr, "shard %u: %s\n", s->number, s->report.text);
		exit(1);
	}
	return NULL;
}

static uint64_t round_run(const struct plan *p, struct shard shard[SHARDS_MAX], bool last,
			  uint64_t *cpu)
{
	struct disk *drive[STORE_DRIVES_MAX];
	pthread_t thread[SHARDS_MAX];
	struct loop_opts lo = {.name = "set"};
	struct loop *loop;
	uint64_t began, took;

	must(loop_open(&lo, &loop) == 0);
	for (unsigned d = 0; d < p->drives; d++) {
		struct disk_opts opts = {.create_bytes = 0};
		char path[256];

		path_of(p, d, path);
		must(disk_open(loop, path, &opts, &drive[d]) == 0);
	}
	began = now_ns(CLOCK_MONOTONIC);
	*cpu = now_ns(CLOCK_PROCESS_CPUTIME_ID);
	for (unsigned i = 0; i < p->shards; i++) {
		shard[i] = (struct shard){.plan = p, .drive = drive, .number = i};
		must(pthread_create(&thread[i], NULL, shard_life, &shard[i]) == 0);
	}
	for (unsigned i = 0; i < p->shards; i++)
		pthread_join(thread[i], NULL);
	took = now_ns(CLOCK_MONOTONIC) - began;
	*cpu = now_ns(CLOCK_PROCESS_CPUTIME_ID) - *cpu;
	for (unsigned i = 0; i < p->shards; i++) {
		loop_turn(shard[i].loop, 0);         /* taken over from the thread that ended */
		if (last)
			shard_ask(&shard[i]);
		shard_close(&shard[i]);
	}
	for (unsigned d = 0; d < p->drives; d++)
		disk_close(&drive[d]);
	loop_close(&loop);
	return took;
}

static void numbers(const char *name, const uint64_t *ns, uint64_t count)
{
	printf(", \"%s\": [", name);
	for (unsigned i = 0; i < count; i++)
		printf("%s%.1f", i == 0 ? "" : ", ", (double)ns[i] / (double)NS_PER_MS);
	printf("]");
}

static void report_asked(const struct plan *p, const struct shard *shard)
{
	uint64_t count = 0, found = 0, strangers = 0, created = 0;

	for (unsigned i = 0; i < p->shards; i++) {
		count += shard[i].asked;
		found += shard[i].found;
		strangers += shard[i].strangers_found;
		created += shard[i].created;
	}
	printf(", \"asked\": %" PRIu64 ", \"found\": %" PRIu64 ", \"strangers_found\": %" PRIu64
	       ", \"created\": %" PRIu64, count, found, strangers, created);
}

static void report(const struct plan *p, const struct shard *shard, const uint64_t *took,
		   const uint64_t *cpu)
{
	uint64_t keys = 0, read = 0, index = 0, room = 0, reads = 0;

	for (unsigned i = 0; i < p->shards; i++) {
		keys += shard[i].report.keys;
		read += shard[i].report.metadata_bytes_read;
		index += shard[i].stat.index_bytes;
		room += shard[i].stat.index_keys_max;
		reads += shard[i].report.segments;
	}
	printf("{\"bench\": \"reopen\", \"keys\": %" PRIu64 ", \"value_bytes\": %" PRIu64
	       ", \"data_bytes\": %" PRIu64 ", \"drives\": %" PRIu64 ", \"shards\": %" PRIu64
	       ", \"segment_bytes\": %" PRIu64 ", \"segments\": %" PRIu64
	       ", \"metadata_bytes_read\": %" PRIu64 ", \"index_bytes_a_key\": %.2f"
	       , keys, p->value_bytes,
	       keys * fmt_record_blocks((uint32_t)p->value_bytes) * FMT_BLOCK_BYTES, p->drives,
	       p->shards, p->segment_bytes, reads, read, (double)index / (double)room);
	numbers("reopen_ms", took, p->rounds);
	numbers("cpu_ms", cpu, p->rounds);
	if (p->ask > 0)
		report_asked(p, shard);
	printf("}\n");
}

int main(int argc, char **argv)
{
	struct plan p = {.keys = 1000000, .value_bytes = 3000, .drives = 1, .shards = 1,
			 .segment_bytes = 64, .rounds = 3};
	struct shard shard[SHARDS_MAX];
	uint64_t took[16], cpu[16];

	if (argc < 2) {
		fprintf(stderr, "usage: reopen FOLDER [keys=N] [bytes=N] [drives=N] [shards=N] "
			"[segment=MIB] [rounds=N] [ask=N]\n");
		return 2;
	}
	p.folder = argv[1];
	for (int i = 2; i < argc; i++) {
		(void)number(argv[i], "keys", &p.keys);
		(void)number(argv[i], "bytes", &p.value_bytes);
		(void)number(argv[i], "drives", &p.drives);
		(void)number(argv[i], "shards", &p.shards);
		(void)number(argv[i], "segment", &p.segment_bytes);
		(void)number(argv[i], "rounds", &p.rounds);
		(void)number(argv[i], "ask", &p.ask);
	}
	p.segment_bytes *= MiB;
	must(p.shards >= 1 && p.shards <= SHARDS_MAX && p.drives >= 1 && p.rounds <= 16 &&
	     p.drives <= STORE_DRIVES_MAX);
	plan_make(&p);
	for (unsigned i = 0; i < p.rounds; i++)
		took[i] = round_run(&p, shard, i + 1 == p.rounds, &cpu[i]);
	report(&p, shard, took, cpu);
	for (unsigned d = 0; d < p.drives; d++) {
		char path[256];

		path_of(&p, d, path);
		unlink(path);
	}
	return 0;
}
