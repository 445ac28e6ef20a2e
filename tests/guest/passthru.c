/* SPDX-License-Identifier: Apache-2.0 */
/*
 * passthru - sends one Key Value command through the kernel's NVMe host and prints its completion.
 *
 * Runs inside the guest, beside nvme-cli, because nvme-cli shows only half of the completion's
 * result and gives every command a page-aligned buffer. Commands go by NVME_IOCTL_IO64_CMD, or with
 * --ring N by io_uring_cmd, N copies in flight at once, each with its own buffer.
 *
 *   passthru DEV NSID store|retrieve|exist|delete|list KEYHEX [--size BYTES] [--option BITS]
 *            [--file F] [--expect F] [--shift BYTES] [--ring N]
 *            [--key-bytes N] [--cdw10 N] [--cdw12 N] [--cdw13 N]
 *
 * KEYHEX is at most 16 bytes as hex, "-" for none; --key-bytes and --cdw10 tell the target another
 * key length or size than the true one. store reads --file; retrieve and list write to it, retrieve
 * as many bytes as the smaller of the buffer and the result. With --ring N the last byte of the key
 * counts up for each copy, and store adds the copy's number to each byte, so that answers that
 * changed places are seen; retrieve takes off that number and compares: with the bytes of --expect,
 * or else with copy 0. Prints `status=0x.. result=N`, a line for each copy; exit 0 when every
 * command succeeded, 1 when one had a status or wrong bytes, 2 wrong usage, 3 the kernel refused
 * the call.
 *
 * Memory: a buffer is filled with noise before a command that reads; a guard behind it is checked.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <linux/nvme_ioctl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define RING_MAX    128u
#define GUARD_BYTES 64u
#define NOISE       0xA5
#define SIZE_MAX_BYTES (UINT64_C(256) << 20)

enum kv_opcode {
	KV_STORE = 0x01, KV_RETRIEVE = 0x02, KV_LIST = 0x06, KV_DELETE = 0x10, KV_EXIST = 0x14,
};

struct job {
	const char *device, *file, *expect;
	uint8_t *expected;   /* what --expect holds, size_bytes of it */
	uint32_t nsid, option, key_bytes, cdw10, cdw12, cdw13, ring, shift;
	uint64_t size_bytes;
	uint8_t opcode, key[16];
};

struct answer {
	int rc;            /* negative errno, or the status field of the completion */
	uint64_t result;   /* DW0 and DW1 of the completion */
};

struct ring {
	int fd;
	unsigned *sq_tail, *cq_head, *cq_tail, sq_mask, cq_mask, *sq_array;
	struct io_uring_sqe *sqes;   /* 128 bytes each */
	struct io_uring_cqe *cqes;   /* 32 bytes each */
};

static _Noreturn void die(const char *what)
{
	fprintf(stderr, "passthru: %s: %s\n", what, strerror(errno));
	exit(3);
}

static bool reads_data(const struct job *job)
{
	return job->opcode == KV_RETRIEVE || job->opcode == KV_LIST;
}

static uint32_t le32_at(const uint8_t *p)
{
	return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

/* [KV] section 3: key in CDW2, 3, 14, 15; size in CDW10; key length and options in CDW11. */
static struct nvme_uring_cmd command(const struct job *job, uint32_t copy, void *buffer)
{
	uint8_t key[16];

	memcpy(key, job->key, sizeof(key));
	if (job->ring > 0)
		key[job->key_bytes - 1] = (uint8_t)(key[job->key_bytes - 1] + copy);
	return (struct nvme_uring_cmd){
		.opcode = job->opcode,
		.nsid = job->nsid,
		.cdw2 = le32_at(key),
		.cdw3 = le32_at(key + 4),
		.cdw10 = job->cdw10 != UINT32_MAX ? job->cdw10 : (uint32_t)job->size_bytes,
		.cdw11 = job->key_bytes | job->option << 8,
		.cdw12 = job->cdw12,
		.cdw13 = job->cdw13,
		.cdw14 = le32_at(key + 8),
		.cdw15 = le32_at(key + 12),
		.addr = job->size_bytes > 0 ? (uintptr_t)buffer : 0,
		.data_len = (uint32_t)job->size_bytes,
		.timeout_ms = 100000,
	};
}

static void by_ioctl(int fd, const struct job *job, void *buffer, struct answer *out)
{
	struct nvme_uring_cmd u = command(job, 0, buffer);
	struct nvme_passthru_cmd64 c = {
		.opcode = u.opcode, .nsid = u.nsid, .cdw2 = u.cdw2, .cdw3 = u.cdw3, .addr = u.addr,
		.data_len = u.data_len, .cdw10 = u.cdw10, .cdw11 = u.cdw11, .cdw12 = u.cdw12,
		.cdw13 = u.cdw13, .cdw14 = u.cdw14, .cdw15 = u.cdw15, .timeout_ms = u.timeout_ms,
		.result = UINT64_C(0xA5A5A5A5A5A5A5A5),
	};
	int rc = ioctl(fd, NVME_IOCTL_IO64_CMD, &c);

	*out = (struct answer){rc < 0 ? -errno : rc, c.result};
}

static void ring_open(struct ring *r, unsigned entries)
{
	struct io_uring_params p = {.flags = IORING_SETUP_SQE128 | IORING_SETUP_CQE32};
	uint8_t *sq, *cq;

	r->fd = (int)syscall(SYS_io_uring_setup, entries, &p);
	if (r->fd < 0)
		die("io_uring_setup");
	sq = mmap(NULL, p.sq_off.array + p.sq_entries * sizeof(unsigned), PROT_READ | PROT_WRITE,
		  MAP_SHARED | MAP_POPULATE, r->fd, (off_t)IORING_OFF_SQ_RING);
	cq = mmap(NULL, p.cq_off.cqes + p.cq_entries * 2 * sizeof(struct io_uring_cqe),
		  PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, r->fd,
		  (off_t)IORING_OFF_CQ_RING);
	r->sqes = mmap(NULL, p.sq_entries * 128, PROT_READ | PROT_WRITE,
		       MAP_SHARED | MAP_POPULATE, r->fd, (off_t)IORING_OFF_SQES);
	if (sq == MAP_FAILED || cq == MAP_FAILED || r->sqes == MAP_FAILED)
		die("mmap of the ring");
	r->sq_tail = (unsigned *)(sq + p.sq_off.tail);
	r->sq_mask = *(unsigned *)(sq + p.sq_off.ring_mask);
	r->sq_array = (unsigned *)(sq + p.sq_off.array);
	r->cq_head = (unsigned *)(cq + p.cq_off.head);
	r->cq_tail = (unsigned *)(cq + p.cq_off.tail);
	r->cq_mask = *(unsigned *)(cq + p.cq_off.ring_mask);
	r->cqes = (struct io_uring_cqe *)(cq + p.cq_off.cqes);
}

static void ring_enter(int fd, unsigned submit, unsigned wait)
{
	if (syscall(SYS_io_uring_enter, fd, submit, wait, IORING_ENTER_GETEVENTS, NULL, 0) < 0)
		die("io_uring_enter");
}

static void by_ring(int fd, const struct job *job, uint8_t *const *buffers, struct answer *out)
{
	struct ring r;
	unsigned seen = 0;

	ring_open(&r, job->ring);
	for (uint32_t i = 0; i < job->ring; i++) {
		unsigned slot = i & r.sq_mask;
		uint8_t *sqe = (uint8_t *)r.sqes + slot * 128;
		struct io_uring_sqe *s = (struct io_uring_sqe *)sqe;
		struct nvme_uring_cmd u = command(job, i, buffers[i]);

		memset(sqe, 0, 128);
		s->opcode = IORING_OP_URING_CMD;
		s->fd = fd;
		s->user_data = i;
		s->cmd_op = NVME_URING_CMD_IO;
		memcpy(s->cmd, &u, sizeof(u));
		r.sq_array[slot] = slot;
		out[i].rc = -EINPROGRESS;
	}
	__atomic_store_n(r.sq_tail, job->ring, __ATOMIC_RELEASE);
	ring_enter(r.fd, job->ring, job->ring);
	while (seen < job->ring) {
		unsigned head = *r.cq_head;
		const uint64_t *c;

		if (head == __atomic_load_n(r.cq_tail, __ATOMIC_ACQUIRE)) {
			ring_enter(r.fd, 0, 1);
			continue;
		}
		c = (const uint64_t *)((const uint8_t *)r.cqes + (head & r.cq_mask) * 32);
		if (c[0] >= job->ring)
			die("a completion that nobody asked for");
		out[c[0]] = (struct answer){(int32_t)(uint32_t)c[1], c[2]};
		__atomic_store_n(r.cq_head, head + 1, __ATOMIC_RELEASE);
		seen++;
	}
	close(r.fd);
}

static void file_read(const char *path, uint8_t *into, uint64_t bytes)
{
	FILE *f = fopen(path, "rb");

	if (f == NULL || fread(into, 1, bytes, f) != bytes || fgetc(f) != EOF)
		die(path);
	fclose(f);
}

static void file_write(const char *path, const uint8_t *from, uint64_t bytes)
{
	FILE *f = fopen(path, "wb");

	if (f == NULL || fwrite(from, 1, bytes, f) != bytes || fclose(f) != 0)
		die(path);
}

/*
 * After a read: nothing behind the buffer, nothing behind the value; copies of a ring all agree.
 * Where address or length is no multiple of 4 the kernel reads into pages of its own, and copies
 * those back whole: zeros behind the value are then the kernel's, all else came from the target.
 */
static void result_check(const struct job *job, uint32_t copy, uint8_t *const *buffers,
			 const struct answer *a)
{
	uint64_t moved = a->result < job->size_bytes ? a->result : job->size_bytes;
	uint8_t *b = buffers[copy];

	for (uint64_t i = 0; i < GUARD_BYTES; i++)
		if (b[job->size_bytes + i] != NOISE) {
			printf("wrote behind the buffer\n");
			exit(1);
		}
	if (a->rc != 0 || job->opcode != KV_RETRIEVE)
		return;
	for (uint64_t i = moved; i < job->size_bytes; i++)
		if (b[i] != NOISE && b[i] != 0) {
			printf("wrote behind the value, at %llu\n", (unsigned long long)i);
			exit(1);
		}
	if (job->ring > 0)
		for (uint64_t i = 0; i < moved; i++)
			b[i] = (uint8_t)(b[i] - copy);
	if (memcmp(b, job->expected != NULL ? job->expected : buffers[0], moved) != 0 ||
	    (job->expected != NULL && a->result != job->size_bytes)) {
		printf("copy %u has other bytes\n", copy);
		exit(1);
	}
}

static uint32_t number(const char *text)
{
	char *end;
	unsigned long long v = strtoull(text, &end, 0);

	if (*text == 0 || *end != 0 || v > UINT32_MAX) {
		fprintf(stderr, "passthru: \"%s\" is no number\n", text);
		exit(2);
	}
	return (uint32_t)v;
}

static _Noreturn void usage(const char *wrong)
{
	fprintf(stderr, "passthru: wrong %s; see the head of passthru.c\n", wrong);
	exit(2);
}

static void job_parse(struct job *job, int argc, char **argv)
{
	static const struct { const char *name; uint8_t opcode; } verbs[] = {
		{"store", KV_STORE}, {"retrieve", KV_RETRIEVE}, {"exist", KV_EXIST},
		{"delete", KV_DELETE}, {"list", KV_LIST},
	};
	const char *hex;

	if (argc < 5 || argc % 2 == 0)
		usage("number of arguments");
	job->device = argv[1];
	job->nsid = number(argv[2]);
	for (size_t i = 0; i < sizeof(verbs) / sizeof(verbs[0]); i++)
		if (strcmp(argv[3], verbs[i].name) == 0)
			job->opcode = verbs[i].opcode;
	if (job->opcode == 0)
		usage("command");
	for (hex = strcmp(argv[4], "-") == 0 ? "" : argv[4]; *hex != 0; hex += 2) {
		unsigned byte;

		if (job->key_bytes == 16 || sscanf(hex, "%2x", &byte) != 1 || hex[1] == 0)
			usage("key");
		job->key[job->key_bytes++] = (uint8_t)byte;
	}
	for (int i = 5; i < argc; i += 2) {
		const struct { const char *name; uint32_t *value; } numbers[] = {
			{"--option", &job->option}, {"--shift", &job->shift},
			{"--ring", &job->ring}, {"--key-bytes", &job->key_bytes},
			{"--cdw10", &job->cdw10}, {"--cdw12", &job->cdw12},
			{"--cdw13", &job->cdw13},
		};
		bool known = true;

		if (strcmp(argv[i], "--size") == 0) {
			job->size_bytes = number(argv[i + 1]);
		} else if (strcmp(argv[i], "--file") == 0) {
			job->file = argv[i + 1];
		} else if (strcmp(argv[i], "--expect") == 0) {
			job->expect = argv[i + 1];
		} else {
			known = false;
			for (size_t k = 0; k < sizeof(numbers) / sizeof(numbers[0]); k++)
				if (strcmp(argv[i], numbers[k].name) == 0) {
					*numbers[k].value = number(argv[i + 1]);
					known = true;
				}
		}
		if (!known)
			usage(argv[i]);
	}
	if (job->ring > RING_MAX || job->size_bytes > SIZE_MAX_BYTES || job->shift > 4096 ||
	    (job->ring > 0 && (job->key_bytes == 0 || job->key_bytes > 16)))
		usage("size, shift or ring");
}

static uint8_t *buffer_make(const struct job *job, uint32_t copy)
{
	uint64_t bytes = job->shift + job->size_bytes + GUARD_BYTES;
	uint8_t *b = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);

	if (b == NULL)
		die("memory");
	b += job->shift;
	memset(b, NOISE, job->size_bytes + GUARD_BYTES);
	if (job->opcode == KV_STORE && job->file != NULL) {
		file_read(job->file, b, job->size_bytes);
		for (uint64_t i = 0; i < job->size_bytes; i++)
			b[i] = (uint8_t)(b[i] + copy);
	}
	return b;
}

int main(int argc, char **argv)
{
	struct job job = {.cdw10 = UINT32_MAX};
	struct answer answers[RING_MAX] = {{0}};
	uint8_t *buffers[RING_MAX] = {NULL};
	uint32_t copies;
	int fd, failed = 0;

	job_parse(&job, argc, argv);
	if (job.expect != NULL) {
		job.expected = aligned_alloc(4096, (job.size_bytes + 4096) / 4096 * 4096);
		if (job.expected == NULL)
			die("memory");
		file_read(job.expect, job.expected, job.size_bytes);
	}
	copies = job.ring > 0 ? job.ring : 1;
	for (uint32_t i = 0; i < copies; i++)
		buffers[i] = buffer_make(&job, i);
	fd = open(job.device, O_RDWR);
	if (fd < 0)
		die(job.device);
	if (job.ring > 0)
		by_ring(fd, &job, buffers, answers);
	else
		by_ioctl(fd, &job, buffers[0], &answers[0]);
	for (uint32_t i = 0; i < copies; i++) {
		const struct answer *a = &answers[i];

		if (a->rc < 0) {
			errno = -a->rc;
			die("the kernel refused the command");
		}
		printf("status=0x%x result=%llu\n", (unsigned)a->rc & 0x7ffu,
		       (unsigned long long)a->result);
		failed |= a->rc;
		if (reads_data(&job))
			result_check(&job, i, buffers, a);
	}
	if (reads_data(&job) && job.file != NULL && answers[0].rc == 0) {
		uint64_t bytes = job.size_bytes;

		if (job.opcode == KV_RETRIEVE && answers[0].result < bytes)
			bytes = answers[0].result;
		file_write(job.file, buffers[0], bytes);
	}
	return failed != 0;
}
