/* SPDX-License-Identifier: Apache-2.0 */
/*
 * SPDK's KV initiator (spdk/nvme_kv.h) against an array: several queues, digests as asked. Built by
 * tests/peers/build.sh against a tree of SPDK that the user gives; nothing of it is in ours.
 *
 * usage: spdk_kv ADDR PORT NQN QUEUES [hdgst] [ddgst]
 *
 * With data digests every length is a multiple of 4: of others SPDK fills the digest up with zeros
 * that are not on the wire (docs/interop.md), and is told 0/22h.
 *
 * Prints one TAP line a check. Every expected status is the command set's [KV 1.0c]. One thread.
 */
#include <spdk/env.h>
#include <spdk/nvme.h>
#include <spdk/nvme_kv.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define QUEUES_MAX 8u
#define DEPTH 8u
#define VALUES 64u                     /* a queue */
#define VALUE_MAX (1024u * 1024u)
#define KEY_BYTES 16u

#define TRANSIENT_TRANSPORT 0x22
#define KV_KEY_NOT_FOUND 0x87
#define KV_KEY_EXISTS 0x89

struct io {
	struct spdk_nvme_qpair *qpair;
	uint8_t *value;                /* [VALUE_MAX] */
	unsigned queue, number;
	struct spdk_nvme_cpl cpl;
	bool flying;
};

static struct spdk_nvme_ctrlr *ctrlr;
static struct spdk_nvme_ns *ns;
static struct spdk_nvme_qpair *qpair[QUEUES_MAX];
static struct io io[QUEUES_MAX][DEPTH];
static unsigned queues, told, bad;
static bool digests;

static void __attribute__((format(printf, 2, 3))) tell(bool good, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	printf("%s %u - spdk kv: ", good ? "ok" : "not ok", ++told);
	vprintf(format, args);
	putchar('\n');
	va_end(args);
	bad += !good;
}

static void die(const char *what)
{
	printf("not ok %u - spdk kv: %s\n1..%u\n", told + 1, what, told + 1);
	fflush(stdout);
	_Exit(1);
}

static uint32_t value_bytes(unsigned number)
{
	static const uint32_t sizes[] = {1, 63, 64, 4095, 4096, 8191, 8192, 8193, 65537, 100001,
					 524288, VALUE_MAX};

	uint32_t bytes = sizes[number % (sizeof(sizes) / sizeof(sizes[0]))];

	return digests ? (bytes + 3) / 4 * 4 : bytes;
}

static void key_fill(uint8_t key[KEY_BYTES], unsigned queue, unsigned number)
{
	memset(key, 'k', KEY_BYTES);
	key[0] = (uint8_t)queue;
	key[7] = (uint8_t)number;
	key[15] = (uint8_t)(number * 7);
}

static void value_fill(uint8_t *at, unsigned queue, unsigned number, uint32_t bytes)
{
	uint32_t x = queue * 7919 + number * 104729 + 1;

	for (uint32_t i = 0; i < bytes; i++) {
		x = x * 1664525 + 1013904223;
		at[i] = (uint8_t)(x >> 24);
	}
}

static bool value_is(const uint8_t *at, unsigned queue, unsigned number, uint32_t bytes)
{
	uint32_t x = queue * 7919 + number * 104729 + 1;

	for (uint32_t i = 0; i < bytes; i++) {
		x = x * 1664525 + 1013904223;
		if (at[i] != (uint8_t)(x >> 24))
			return false;
	}
	return true;
}

static void done(void *arg, const struct spdk_nvme_cpl *cpl)
{
	struct io *i = arg;

	i->cpl = *cpl;
	i->flying = false;
}

static void poll_all(void)
{
	spdk_nvme_ctrlr_process_admin_completions(ctrlr);
	for (unsigned q = 0; q < queues; q++) {
		if (spdk_nvme_qpair_process_completions(qpair[q], 0) < 0)
			die("a queue has gone");
	}
}

static void wait_one(const struct io *i)
{
	time_t end = time(NULL) + 20;

	while (i->flying) {
		poll_all();
		if (time(NULL) > end)
			die("no answer within 20 s");
	}
}

/* --- all queues at once -------------------- */

enum what { STORE, RETRIEVE, DELETE_ODD };

static int start(struct io *i, enum what what)
{
	uint32_t bytes = value_bytes(i->number);
	uint8_t key[KEY_BYTES];

	key_fill(key, i->queue, i->number);
	i->flying = true;
	switch (what) {
	case STORE:
		value_fill(i->value, i->queue, i->number, bytes);
		return spdk_nvme_kv_store(ns, i->qpair, key, KEY_BYTES, i->value, bytes, done, i,
					  0);
	case RETRIEVE:
		memset(i->value, 0xa5, bytes);
		return spdk_nvme_kv_retrieve(ns, i->qpair, key, KEY_BYTES, i->value, bytes, done,
					     i, 0);
	default:
		return spdk_nvme_kv_delete(ns, i->qpair, key, KEY_BYTES, done, i);
	}
}

static bool right(const struct io *i, enum what what)
{
	if (spdk_nvme_cpl_is_error(&i->cpl))
		return false;
	if (what != RETRIEVE)
		return true;
	return i->cpl.cdw0 == value_bytes(i->number) &&
	       value_is(i->value, i->queue, i->number, value_bytes(i->number));
}

/* Every value of every queue, DEPTH at a time each. Return: how many went wrong. */
static unsigned all(enum what what)
{
	unsigned next[QUEUES_MAX] = {0}, wrong = 0, left = queues * VALUES;
	time_t end = time(NULL) + 120;

	if (what == DELETE_ODD)
		left /= 2;
	while (left > 0) {
		for (unsigned n = 0; n < queues * DEPTH; n++) {
			struct io *i = &io[n / DEPTH][n % DEPTH];
			unsigned step = what == DELETE_ODD ? 2 : 1, *at = &next[i->queue];

			if (i->flying)
				continue;
			if (i->number != UINT32_MAX) {
				wrong += !right(i, what);
				i->number = UINT32_MAX;
				left--;
			}
			if (*at >= VALUES)
				continue;
			i->number = *at + (step - 1);
			*at += step;
			if (start(i, what) != 0)
				die("a command could not be submitted");
		}
		poll_all();
		if (time(NULL) > end)
			die("no end within 120 s");
	}
	return wrong;
}

/* --- one command -------------------- */

static int status(const struct io *i)
{
	return i->cpl.status.sct << 8 | i->cpl.status.sc;
}

static int exist(unsigned queue, unsigned number)
{
	struct io *i = &io[0][0];
	uint8_t key[KEY_BYTES];

	key_fill(key, queue, number);
	i->flying = true;
	if (spdk_nvme_kv_exist(ns, i->qpair, key, KEY_BYTES, done, i) != 0)
		return -1;
	wait_one(i);
	return status(i);
}

static int store_if(unsigned number, uint8_t options)
{
	struct io *i = &io[0][0];
	uint8_t key[KEY_BYTES];

	key_fill(key, 0, number);
	value_fill(i->value, 0, number, value_bytes(number));
	i->flying = true;
	if (spdk_nvme_kv_store(ns, i->qpair, key, KEY_BYTES, i->value, value_bytes(number), done,
			       i, options) != 0)
		return -1;
	wait_one(i);
	return status(i);
}

static int retrieve(unsigned number, uint32_t room)
{
	struct io *i = &io[0][0];
	uint8_t key[KEY_BYTES];

	key_fill(key, 0, number);
	memset(i->value, 0xa5, VALUE_MAX);
	i->flying = true;
	if (spdk_nvme_kv_retrieve(ns, i->qpair, key, KEY_BYTES, i->value, room, done, i, 0) != 0)
		return -1;
	wait_one(i);
	return status(i);
}

/* Keys of a List from the first on: records of 2 bytes length and the key, on 4-byte borders. */
static unsigned list(bool *in_order)
{
	struct io *i = &io[0][0];
	uint32_t count, at = 4;
	uint8_t last[KEY_BYTES] = {0};

	i->flying = true;
	if (spdk_nvme_kv_list(ns, i->qpair, NULL, 0, i->value, 128 * 1024, done, i) != 0)
		return 0;
	wait_one(i);
	if (spdk_nvme_cpl_is_error(&i->cpl))
		return 0;
	memcpy(&count, i->value, sizeof(count));
	*in_order = true;
	for (uint32_t n = 0; n < count; n++) {
		uint16_t bytes;

		memcpy(&bytes, i->value + at, sizeof(bytes));
		if (bytes != KEY_BYTES)
			return 0;
		if (n > 0 && memcmp(last, i->value + at + 2, KEY_BYTES) >= 0)
			*in_order = false;
		memcpy(last, i->value + at + 2, KEY_BYTES);
		at += (2 + KEY_BYTES + 3) / 4 * 4;
	}
	return count;
}

/* --- the run -------------------- */

static void checks_one(void)
{
	struct io *i = &io[0][0];
	uint32_t whole = value_bytes(9);
	bool in_order = false;
	unsigned count = list(&in_order);
	int got;

	tell(count == queues * VALUES / 2 && in_order,
	     "List has the %u keys that are left, in order", queues * VALUES / 2);
	tell(exist(0, 0) == 0, "Exist of a key that is there");
	tell(exist(0, 1) == KV_KEY_NOT_FOUND, "Exist of a deleted key is 0/87h");
	tell(retrieve(1, 4096) == KV_KEY_NOT_FOUND, "Retrieve of a deleted key is 0/87h");
	tell(store_if(0, SPDK_NVME_KV_STORE_OPT_DONT_STORE_IF_KEY_EXISTS) == KV_KEY_EXISTS,
	     "Store if absent of a key that is there is 0/89h");
	tell(store_if(1, SPDK_NVME_KV_STORE_OPT_DONT_STORE_IF_KEY_NOT_EXISTS) == KV_KEY_NOT_FOUND,
	     "Store if present of an absent key is 0/87h");
	tell(store_if(9, SPDK_NVME_KV_STORE_OPT_DONT_STORE_IF_KEY_EXISTS) == 0,
	     "Store if absent of an absent key");
	got = retrieve(9, 5000);
	tell(got == 0 && i->cpl.cdw0 == whole && value_is(i->value, 0, 9, 5000) &&
	     i->value[5000] == 0xa5, "Retrieve into less room: its head, and the whole length");
	got = retrieve(9, VALUE_MAX);
	tell(got == 0 && i->cpl.cdw0 == whole && value_is(i->value, 0, 9, whole) &&
	     i->value[whole] == 0xa5, "Retrieve into more room: the value and no byte more");
}

/* Of a value that SPDK and we take the digest of differently. */
static void checks_digest(void)
{
	struct io *i = &io[0][0];
	bool told_so = true;

	/* in the capsule; after R2T */
	for (uint32_t bytes = 5; bytes <= 16385; bytes += 16380) {
		i->flying = true;
		if (spdk_nvme_kv_store(ns, i->qpair, "odd", 3, i->value, bytes, done, i, 0) != 0)
			die("a command could not be submitted");
		wait_one(i);
		told_so = told_so && status(i) == TRANSIENT_TRANSPORT;
	}
	tell(told_so, "a digest that is not of the bytes sent is told as 0/22h");
	i->flying = true;
	if (spdk_nvme_kv_exist(ns, i->qpair, "odd", 3, done, i) != 0)
		die("a command could not be submitted");
	wait_one(i);
	tell(status(i) == KV_KEY_NOT_FOUND, "and nothing of it is stored, and the queue goes on");
}

static bool attach(int argc, char **argv)
{
	struct spdk_nvme_transport_id id = {.trtype = SPDK_NVME_TRANSPORT_TCP,
					    .adrfam = SPDK_NVMF_ADRFAM_IPV4};
	struct spdk_nvme_ctrlr_opts opts;

	spdk_nvme_transport_id_populate_trstring(&id, "TCP");
	snprintf(id.traddr, sizeof(id.traddr), "%s", argv[1]);
	snprintf(id.trsvcid, sizeof(id.trsvcid), "%s", argv[2]);
	snprintf(id.subnqn, sizeof(id.subnqn), "%s", argv[3]);
	spdk_nvme_ctrlr_get_default_ctrlr_opts(&opts, sizeof(opts));
	for (int i = 5; i < argc; i++) {
		opts.header_digest |= strcmp(argv[i], "hdgst") == 0;
		opts.data_digest |= strcmp(argv[i], "ddgst") == 0;
	}
	digests = opts.data_digest;
	ctrlr = spdk_nvme_connect(&id, &opts, sizeof(opts));
	if (ctrlr == NULL)
		return false;
	for (uint32_t nsid = spdk_nvme_ctrlr_get_first_active_ns(ctrlr); nsid != 0;
	     nsid = spdk_nvme_ctrlr_get_next_active_ns(ctrlr, nsid)) {
		ns = spdk_nvme_ctrlr_get_ns(ctrlr, nsid);
		if (spdk_nvme_ns_get_csi(ns) == SPDK_NVME_CSI_KV)
			return true;
	}
	return false;
}

static void open_queues(void)
{
	for (unsigned q = 0; q < queues; q++) {
		qpair[q] = spdk_nvme_ctrlr_alloc_io_qpair(ctrlr, NULL, 0);
		if (qpair[q] == NULL)
			die("no I/O queue");
		for (unsigned n = 0; n < DEPTH; n++) {
			io[q][n] = (struct io){.qpair = qpair[q], .queue = q,
					       .number = UINT32_MAX};
			io[q][n].value = spdk_dma_zmalloc(VALUE_MAX, 4096, NULL);
			if (io[q][n].value == NULL)
				die("no memory");
		}
	}
}

int main(int argc, char **argv)
{
	const struct spdk_nvme_kv_ns_data *data;
	struct spdk_env_opts env = {.opts_size = sizeof(env)};

	if (argc < 5) {
		fprintf(stderr, "usage: spdk_kv ADDR PORT NQN QUEUES [hdgst] [ddgst]\n");
		return 2;
	}
	queues = (unsigned)atoi(argv[4]);
	if (queues < 1 || queues > QUEUES_MAX)
		return 2;
	spdk_env_opts_init(&env);
	env.name = "spdk_kv";
	env.mem_size = 256;
	env.no_pci = true;
	env.no_huge = true;
	if (spdk_env_init(&env) < 0)
		die("SPDK's environment does not start");
	if (!attach(argc, argv))
		die("no KV namespace is seen");
	data = spdk_nvme_kv_ns_get_data(ns);
	tell(data != NULL && data->kvf[0].kvkml == KEY_BYTES && data->kvf[0].kvvml >= VALUE_MAX,
	     "the namespace is seen with its limits");
	open_queues();
	tell(all(STORE) == 0, "%u values of 1 byte to 1 MiB stored on %u queues", queues * VALUES,
	     queues);
	tell(all(RETRIEVE) == 0, "all come back with their bytes and lengths");
	tell(all(DELETE_ODD) == 0, "each second one deleted");
	checks_one();
	if (digests)
		checks_digest();
	for (unsigned q = 0; q < queues; q++)
		spdk_nvme_ctrlr_free_io_qpair(qpair[q]);
	spdk_nvme_detach(ctrlr);
	printf("1..%u\n", told);
	return bad > 0;
}
