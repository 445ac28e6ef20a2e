/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An hour of mixed load with faults, in simulated time: three inference processes with caches of
 * three tiers over two arrays, that load and save blocks, restore prefixes layer by layer in both
 * modes, and prefetch. Links are cut, arrays and processes are killed and come back, drives
 * hang, die, and read wrong, connections are reset.
 *
 * What must hold:
 *   - a hit is exactly the bytes of a save of that block that was submitted, by any process;
 *   - every result comes by its deadline, every request is over by its own, and after that (and its
 *     release) no byte is written;
 *   - counters close: hits by tier and misses by reason are what the results said;
 *   - while all is well, a save that all tiers have answered is a hit in another process;
 *   - at the end of each part all faults are taken away and everything is flushed: nothing waits,
 *     nothing is pinned; drives are within their caps; and over a part without kills the memory of
 *     all together stays the same.
 *
 * KVOF_SEED=n runs one seed, KVOF_HOURS=n so many; without, two.
 */
#include "kt.h"

#include <errno.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/log.h"
#include "cache_hour.h"
#include "cache_hour_restore.h"
#include "store/store.h"
#include "target/target.h"

#define NQN "nqn.2026-11.io.kvof:hour"
#define HOUR_S 3600

/* A batch under way: its buffers are its own. */
struct work {
	struct msg msg;
	struct list_link link;
	struct proc *proc;
	struct cache_batch *batch;
	enum kvof_op kind;
	uint32_t sequence, first, count;
	uint64_t begin_ns, deadline_ns;
	uint8_t *at[BLOCKS];
	bool ended[BLOCKS], busy[BLOCKS];
	struct kvof_result result[BLOCKS];
	bool *over;                        /* the test waits for it; NULL: nobody */
	enum kvof_reason *reasons;
};

/* --- arrays ----------------------------------------------------------------------------------- */

static void array_up(unsigned index, bool format)
{
	struct array *a = &h.array[index];
	struct loop_opts loop = {.name = "array"};
	char path[2][16];
	struct store_opts so = {.drive_count = 2, .evict = true, .buffer_bytes = 16 * MiB,
				.format = format, .degraded = true,
				.drive = {{.path = path[0], .bytes = 64 * MiB},
					  {.path = path[1], .bytes = 64 * MiB}}};
	struct target_ns_opts ns = {.nsid = 1, .evicts = true};
	struct target_subsys_opts subsys = {.nqn = NQN, .ns = &ns, .ns_count = 1};
	struct target_opts to = {.subsys = &subsys, .subsys_count = 1};
	struct sock_addr addr = {.host = "127.0.0.1", .port = (uint16_t)(4420 + index)};
	struct store_report report;
	char why[256] = "";
	uint16_t port;

	snprintf(path[0], sizeof(path[0]), "a%u-0", index);
	snprintf(path[1], sizeof(path[1]), "a%u-1", index);
	expect_int(loop_open(&loop, &a->loop), 0);
	if (store_open(&so, a->loop, &a->store, &report) != 0)
		fail_msg("store: %s", report.text);
	ns.store = a->store;
	to.loop = a->loop;
	if (target_open(&to, why, &a->target) != 0)
		fail_msg("target: %s", why);
	expect_int(target_listen(a->target, &addr, NULL, &port), 0);
}

static void array_kill(struct array *a)
{
	sim_crash(&a->loop, true);
	a->loop = NULL;
	bury(a->store);
	bury(a->target);
	h.killed++;
}

/* --- processes -------------------------------------------------------------------------------- */

static void work_free(struct work *w)
{
	list_remove(&w->link);
	for (unsigned i = 0; i < w->count; i++)
		free(w->at[i]);
	free(w);
}

static void proc_opened(void *arg, int res, const char *why)
{
	struct proc *p = arg;

	p->opened = true;
	p->opened_res = res;
}

/* The buffer is the engine's again: what is written to it from now on shows at the end. */
static void mark_free(struct work *w, uint32_t i)
{
	memset(w->at[i], 0x5a, block_bytes(w->sequence, w->first + i));
}

static void load_judge(struct work *w, const struct kvof_result *r)
{
	uint32_t n = w->first + r->index;
	size_t bytes = block_bytes(w->sequence, n);
	uint8_t *want = malloc(bytes + 1);

	block_fill(want, w->sequence, n);
	if (!h.saved[w->sequence][n])
		fail_msg("a hit of a block that nobody saved: %u of %u", n, w->sequence);
	expect_int(r->value_bytes, bytes);
	expect_int(r->busy, 0);
	expect_mem(w->at[r->index], want, bytes);
	free(want);
	h.hits[r->tier]++;
	w->proc->hits[r->tier]++;
}

static void batch_result(void *arg, struct cache_batch *batch, const struct kvof_result *r)
{
	struct work *w = batch->owner;

	if ((r->flags & KVOF_RESULT_RELEASED) != 0) {
		expect(w->busy[r->index]);
		w->busy[r->index] = false;
		mark_free(w, r->index);
		return;
	}
	expect(!w->ended[r->index]);
	w->ended[r->index] = true;
	w->result[r->index] = *r;
	if (loop_now_ns(w->proc->loop) > w->begin_ns + w->deadline_ns + LATE_NS)
		fail_msg("%.1f ms late", (double)(loop_now_ns(w->proc->loop) - w->begin_ns -
						  w->deadline_ns) / 1e6);
	if (w->kind == KVOF_LOAD) {
		h.reasons[r->reason]++;
		w->proc->reasons[r->reason]++;
		if (r->reason == KVOF_OK)
			load_judge(w, r);
	}
	w->busy[r->index] = r->busy != 0;
	if (r->busy == 0)
		mark_free(w, r->index);
}

static void batch_over(void *arg, struct cache_batch *batch)
{
	struct work *w = batch->owner;

	for (uint32_t i = 0; i < w->count; i++) {
		expect(w->ended[i] && !w->busy[i]);
		for (size_t k = 0; k < block_bytes(w->sequence, w->first + i); k++)
			if (w->at[i][k] != 0x5a)
				fail_msg("a byte was written after the result");
		if (w->reasons != NULL)
			w->reasons[i] = w->result[i].reason;
	}
	if (w->over != NULL)
		*w->over = true;
	w->proc->flying--;
	batch_free(&batch);
	work_free(w);
}

static const struct core_events events = {
	.opened = proc_opened,
	.result = batch_result,
	.over = batch_over,
};

static void open_run(struct proc *p)
{
	struct core_opts opts = {.cache = &p->opts, .identity = p->identity};
	char why[256];
	int rc = core_open(p->loop, &opts, &events, p, why, &p->core);

	if (rc != 0)
		fail_msg("open: %s", why);
	restores_up(p);
}

static bool is_open(void *arg)
{
	return ((struct proc *)arg)->opened;
}

static void proc_up(struct proc *p)
{
	struct loop_opts loop = {.name = "engine", .ops_max = 16384, .timers_max = 16384};
	char why[256];

	expect_int(core_opts_check(&p->opts, why), 0);
	expect_int(identity_make(&p->opts, why, &p->identity), 0);
	expect_int(loop_open(&loop, &p->loop), 0);
	p->opened = p->closed = false;
	p->core = NULL;
	memset(p->hits, 0, sizeof(p->hits));
	memset(p->reasons, 0, sizeof(p->reasons));
	memset(p->pinned, 0, sizeof(p->pinned));
	here(p, open_run);
	expect(sim_run_until(is_open, p, 60 * NS_PER_S));
	if (p->opened_res != 0)
		fail_msg("open: %d", p->opened_res);
}

static void proc_init(unsigned index)
{
	struct proc *p = &h.proc[index];
	static const struct kvof_field field[1] = {{"kv_dtype", "f16"}};
	static const char *targets[ARRAYS] = {"tcp://127.0.0.1:4420/" NQN,
					      "tcp://127.0.0.1:4421/" NQN};

	p->index = index;
	p->next_id = 1;
	list_init(&p->works);
	list_init(&p->ask_list);
	list_init(&p->hint_list);
	snprintf(p->flash, sizeof(p->flash), "f%u,size=16MiB", index);
	p->flash_list[0] = p->flash;
	for (unsigned i = 0; i < ARRAYS; i++)
		p->target_list[i] = targets[i];
	p->opts = (struct kvof_cache_opts){
		.struct_bytes = sizeof(p->opts),
		.targets = p->target_list,
		.target_count = ARRAYS,
		.fields = field,
		.field_count = 1,
		.model_id = "m",
		.block_tokens = 4,
		.part_bytes = CUT + FRAME_BYTES,
		.queues = 1,
		.depth = 16,
		.digests = index == 0 ? 3 : 0,
		.dram_bytes = 512 * KiB,
		.flash = p->flash_list,
		.flash_count = 1,
		.behind_bytes = index != 1 ? 128 * KiB : 0,
		.behind_full = index == 2,
		.admission = index == 2 ? KVOF_ADMIT_FLASH_SECOND : 0,
		.index_blocks = 4096,
		.deadline_ns = DEADLINE_NS,
		.policy = index == 1 ? "lru" : NULL,
	};
}

static void proc_closed(void *arg)
{
	((struct proc *)arg)->closed = true;
}

static void close_run(struct proc *p)
{
	core_close(&p->core, proc_closed, p);
}

static bool is_closed(void *arg)
{
	return ((struct proc *)arg)->closed;
}

static void proc_down(struct proc *p)
{
	restores_down(p);
	here(p, close_run);
	expect(sim_run_until(is_closed, p, 10 * NS_PER_S));
	expect_int(p->flying, 0);
	loop_close(&p->loop);
	identity_free(&p->identity);
}

static void proc_kill(struct proc *p)
{
	sim_crash(&p->loop, true);
	p->loop = NULL;
	bury(p->core);
	identity_free(&p->identity);
	while (!list_empty(&p->works)) {   /* its batches and buffers died with it */
		struct work *w = container_of(p->works.next, struct work, link);

		batch_free(&w->batch);
		work_free(w);
	}
	p->flying = 0;
	restores_kill(p);
	h.killed++;
}

/* --- load ------------------------------------------------------------------------------------- */

static void submit_run(struct loop *loop, struct msg *m)
{
	struct work *w = container_of(m, struct work, msg);

	w->begin_ns = loop_now_ns(loop);
	core_submit(w->proc->core, w->batch);
}

/* What a test wants to know of a batch. */
struct want {
	uint32_t flags;
	bool *over;
	enum kvof_reason *reasons;
	bool question;
};

static void submit(struct proc *p, enum kvof_op kind, uint32_t sequence, uint32_t first,
		   uint32_t count, const struct want *want)
{
	bool moves = kind == KVOF_LOAD || kind == KVOF_SAVE;
	struct kvof_block b[BLOCKS];
	struct iovec iov[BLOCKS];
	struct work *w = calloc(1, sizeof(*w));

	*w = (struct work){.msg = {.run = submit_run}, .proc = p, .kind = kind,
			   .sequence = sequence, .first = first, .count = count,
			   .over = want->over, .reasons = want->reasons};
	for (uint32_t i = 0; i < count; i++) {
		size_t bytes = block_bytes(sequence, first + i);

		w->at[i] = malloc(bytes + 1);
		if (kind == KVOF_SAVE) {
			block_fill(w->at[i], sequence, first + i);
			h.saved[sequence][first + i] = true;
		}
		iov[i] = (struct iovec){w->at[i], bytes};
		b[i] = (struct kvof_block){block_id(p, sequence, first + i), moves ? &iov[i] : NULL,
					   moves, moves ? bytes : 0};
	}
	expect_int(batch_make(kind, b, count, CUT, &w->batch), 0);
	w->deadline_ns = want->over != NULL ? 5 * NS_PER_S :
			 1 + prng_below(&h.prng, DEADLINE_NS);
	w->batch->deadline_ns = w->deadline_ns;
	w->batch->owner = w;
	w->batch->flags = want->flags;
	w->batch->question = want->question;
	w->batch->id = p->next_id++;
	p->flying++;
	list_push_back(&p->works, &w->link);
	h.batches++;
	loop_post(p->loop, &w->msg);
}

static uint64_t cancel_id;

static void cancel_now(struct proc *p)
{
	core_cancel(p->core, cancel_id);
}

static uint32_t pin_sequence;

/* Pins the first half of a sequence, or lets it go. */
static void pin_now(struct proc *p)
{
	struct kvof_id ids[BLOCKS / 2];
	bool on = !p->pinned[pin_sequence];

	for (uint32_t i = 0; i < ARRAY_COUNT(ids); i++)
		ids[i] = block_id(p, pin_sequence, i);
	expect_int(core_pin(p->core, ids, ARRAY_COUNT(ids), on), 0);
	p->pinned[pin_sequence] = on;
}

static void pin_some(void)
{
	struct proc *p = &h.proc[prng_below(&h.pins, PROCS)];
	uint32_t pinned = 0;

	pin_sequence = (uint32_t)prng_below(&h.pins, SEQUENCES);
	if (p->loop == NULL)
		return;
	for (uint32_t i = 0; i < SEQUENCES; i++)
		pinned += p->pinned[i];
	if (pinned < 3 || p->pinned[pin_sequence])
		here(p, pin_now);
}

static void load_some(void)
{
	struct proc *p = &h.proc[prng_below(&h.prng, PROCS)];
	/* some sequences are asked for much more than others */
	uint32_t sequence = (uint32_t)prng_below(&h.prng, 1 + prng_below(&h.prng, SEQUENCES));
	uint32_t first = (uint32_t)prng_below(&h.prng, BLOCKS);
	uint32_t count = 1 + (uint32_t)prng_below(&h.prng, BLOCKS - first);
	struct want want = {0};

	if (p->loop == NULL || p->flying >= FLYING)
		return;
	switch (prng_below(&h.prng, 12)) {
	case 0:
	case 1:
	case 2:
	case 3:
		want.flags = prng_below(&h.prng, 8) == 0 ? KVOF_WAIT_ALL : 0;
		submit(p, KVOF_SAVE, sequence, first, count, &want);
		break;
	case 4:
		if (prng_below(&h.prng, 4) == 0)
			submit(p, KVOF_DELETE, sequence, first, count, &want);
		break;
	case 5:
		want.question = true;
		submit(p, KVOF_EXISTS_OP, sequence, first, count, &want);
		break;
	default:
		submit(p, KVOF_LOAD, sequence, 0, first + 1, &want);
		break;
	}
	if (prng_below(&h.prng, 50) == 0) {
		cancel_id = p->next_id - 1;
		here(p, cancel_now);
	}
	if (prng_below(&h.pins, 100) == 0)
		pin_some();
}

/* --- faults ----------------------------------------------------------------------------------- */

static void flash_mode(struct proc *p, enum sim_disk_mode mode)
{
	char path[16];

	snprintf(path, sizeof(path), "f%u", p->index);
	sim_disk_mode(path, mode);
	p->flash_ill = mode != SIM_DISK_WELL;
}

static void link_cut(struct proc *p, unsigned a, bool cut)
{
	if (p->loop == NULL || h.array[a].loop == NULL || p->cut[a] == cut)
		return;
	sim_link_cut(p->loop, h.array[a].loop, cut);
	p->cut[a] = cut;
	h.cuts += cut;
}

static void proc_restart(struct proc *p)
{
	memset(p->cut, 0, sizeof(p->cut));
	if (p->flash_ill)
		flash_mode(p, SIM_DISK_WELL);
	proc_up(p);
}

static void fault_some(void)
{
	struct proc *p = &h.proc[prng_below(&h.prng, PROCS)];
	unsigned a = (unsigned)prng_below(&h.prng, ARRAYS);
	uint64_t away_ns = NS_PER_S + prng_below(&h.prng, 20 * NS_PER_S);

	switch (prng_below(&h.prng, 8)) {
	case 0:
	case 1:
		link_cut(p, a, true);
		break;
	case 2:
	case 3:
		link_cut(p, a, false);
		break;
	case 4:
		if (p->loop != NULL)
			flash_mode(p, p->flash_ill ? SIM_DISK_WELL : SIM_DISK_HANGS);
		break;
	case 5:
		if (h.kills && p->loop != NULL) {
			p->up_ns = sim_now_ns() + away_ns;
			proc_kill(p);
		}
		break;
	case 6:
		if (h.kills && h.array[a].loop != NULL) {
			h.array[a].up_ns = sim_now_ns() + away_ns;
			for (unsigned i = 0; i < PROCS; i++)
				h.proc[i].cut[a] = false;
			array_kill(&h.array[a]);
		}
		break;
	default:
		break;
	}
}

/* The killed come back when their time has come. */
static void come_back(bool all)
{
	for (unsigned i = 0; i < ARRAYS; i++)
		if (h.array[i].loop == NULL && (all || sim_now_ns() >= h.array[i].up_ns))
			array_up(i, false);
	for (unsigned i = 0; i < PROCS; i++)
		if (h.proc[i].loop == NULL && (all || sim_now_ns() >= h.proc[i].up_ns))
			proc_restart(&h.proc[i]);
}

static bool never(void *arg)
{
	return false;
}

static void pass(uint64_t ns)
{
	(void)sim_run_until(never, NULL, ns);
}

/* Load for so long, with faults or without. */
static void run_for(uint64_t ns, bool faults, bool kills)
{
	uint64_t until = sim_now_ns() + ns;

	h.kills = kills;
	sim_faults_on(faults);
	while (sim_now_ns() < until) {
		load_some();
		if (prng_below(&h.prng, 3) == 0)
			restore_some();
		if (prng_below(&h.prng, 20) == 0)
			hint_some();
		for (unsigned i = 0; i < PROCS; i++)
			asks_watch(&h.proc[i]);
		if (faults && prng_below(&h.prng, 400) == 0)
			fault_some();
		come_back(false);
		pass(1 + prng_below(&h.prng, 100 * NS_PER_MS));
	}
}

/* --- quiet ------------------------------------------------------------------------------------ */

static struct kvof_cache_stat stat;

static void stat_run(struct proc *p)
{
	core_stat(p->core, &stat);
}

/* Everything that was told is counted, once. */
static void counters_close(const struct proc *p)
{
	struct restore_stat restore;
	uint64_t misses = 0;

	restore_stat(p->restore, &restore);
	expect_int(restore.staging_bytes, 0);
	for (unsigned i = 0; i < KVOF_TIER_COUNT; i++)
		expect_int(stat.hits[i], p->hits[i]);
	for (unsigned i = 0; i < KVOF_REASON_COUNT; i++) {
		expect_int(stat.reason[i], p->reasons[i]);
		misses += i != KVOF_OK ? stat.reason[i] : 0;
	}
	expect_int(stat.misses, misses);
	expect(stat.prefetched >= stat.prefetched_hits + stat.prefetched_wasted);
	h.prefetched += stat.prefetched;
}

static bool all_idle(void *arg)
{
	for (unsigned i = 0; i < PROCS; i++)
		if (h.proc[i].flying + h.proc[i].asks + h.proc[i].hints > 0)
			return false;
	return true;
}

static struct core_flush flush;
static bool flushed;

static void flush_done(struct core_flush *f, int res)
{
	expect_int(res, 0);
	flushed = true;
}

static void flush_run(struct proc *p)
{
	flush = (struct core_flush){.done = flush_done};
	core_flush(p->core, &flush);
}

static bool is_flushed(void *arg)
{
	return flushed;
}

static bool arrays_live(void)
{
	for (unsigned i = 0; i < PROCS; i++) {
		here(&h.proc[i], stat_run);
		if (stat.remote_live < ARRAYS)
			return false;
	}
	return true;
}

/* Everything is well, nothing is in flight. */
static void quiet(void)
{
	sim_faults_on(false);
	come_back(true);
	for (unsigned i = 0; i < PROCS; i++) {
		for (unsigned a = 0; a < ARRAYS; a++)
			link_cut(&h.proc[i], a, false);
		if (h.proc[i].flash_ill)
			flash_mode(&h.proc[i], SIM_DISK_WELL);
	}
	expect(sim_run_until(all_idle, NULL, 10 * NS_PER_S));
	for (unsigned i = 0; i < PROCS; i++) {
		for (pin_sequence = 0; pin_sequence < SEQUENCES; pin_sequence++)
			if (h.proc[i].pinned[pin_sequence])
				here(&h.proc[i], pin_now);
	}
	for (unsigned tries = 0; !arrays_live(); tries++) {
		expect(tries < 60);
		pass(NS_PER_S);
	}
	for (unsigned i = 0; i < PROCS; i++) {
		flushed = false;
		here(&h.proc[i], flush_run);
		expect(sim_run_until(is_flushed, NULL, 20 * NS_PER_S));
	}
	pass(10 * NS_PER_S);
	for (unsigned i = 0; i < PROCS; i++) {
		here(&h.proc[i], stat_run);
		expect_int(stat.behind_blocks, 0);
		expect_int(stat.behind_bytes, 0);
		expect_int(stat.dram_pinned_bytes, 0);
		expect_int(stat.pinned_blocks, 0);
		expect_int(stat.pinned_flash_bytes, 0);
		expect(stat.dram_used_bytes <= h.proc[i].opts.dram_bytes);
		expect(stat.flash_used_bytes <= 16 * MiB);
		expect(stat.index_blocks <= 4096);
		counters_close(&h.proc[i]);
	}
}

static bool wait_over;

static bool is_over(void *arg)
{
	return wait_over;
}

static void wait_for(struct proc *p, enum kvof_op kind, uint32_t sequence, uint32_t flags,
		     enum kvof_reason reasons[BLOCKS])
{
	struct want want = {.flags = flags, .over = &wait_over, .reasons = reasons};

	wait_over = false;
	submit(p, kind, sequence, 0, BLOCKS, &want);
	expect(sim_run_until(is_over, NULL, 10 * NS_PER_S));
}

/* While all is well, what one process saved everywhere is a hit in another. */
static void quiet_check(void)
{
	for (unsigned i = 0; i < 20; i++) {
		uint32_t sequence = (uint32_t)prng_below(&h.prng, SEQUENCES);
		struct proc *from = &h.proc[prng_below(&h.prng, PROCS)];
		struct proc *to = &h.proc[prng_below(&h.prng, PROCS)];
		enum kvof_reason reasons[BLOCKS];

		wait_for(from, KVOF_SAVE, sequence, KVOF_WAIT_ALL, reasons);
		for (unsigned k = 0; k < BLOCKS; k++)
			if (reasons[k] != KVOF_OK && reasons[k] != KVOF_EXISTS)
				fail_msg("saved: %s", kvof_reason_name(reasons[k]));
		wait_for(to, KVOF_LOAD, sequence, 0, reasons);
		for (unsigned k = 0; k < BLOCKS; k++)
			if (reasons[k] != KVOF_OK)
				fail_msg("loaded: %s", kvof_reason_name(reasons[k]));
		restore_quiet(&h.proc[prng_below(&h.prng, PROCS)], sequence);
	}
}

static size_t heap_bytes(void)
{
	return mallinfo2().uordblks;
}

static unsigned ends;

static void one_end(void *arg)
{
	ends++;
}

static bool has_ended(void *arg)
{
	return ends == *(unsigned *)arg;
}

static void world_end(void)
{
	unsigned want = 0;

	for (unsigned i = 0; i < PROCS; i++)
		proc_down(&h.proc[i]);
	ends = 0;
	for (unsigned i = 0; i < ARRAYS; i++) {
		want++;
		target_close(&h.array[i].target, 0, one_end, NULL);
		expect(sim_run_until(has_ended, &want, 60 * NS_PER_S));
		want++;
		store_close(&h.array[i].store, one_end, NULL);
		expect(sim_run_until(has_ended, &want, 60 * NS_PER_S));
		loop_close(&h.array[i].loop);
	}
	sim_end();
}

static void hour(uint64_t seed)
{
	struct sim_opts sim = {.seed = seed, .fault_per_million = {
		[SIM_DISK_READ_EIO] = 300, [SIM_DISK_READ_BAD] = 300, [SIM_DISK_WRITE_EIO] = 100,
		[SIM_DISK_SLOW] = 500, [SIM_NET_RESET] = 20, [SIM_NET_DELAY] = 200}};
	size_t before, after;

	memset(&h, 0, sizeof(h));
	h.prng = prng_of(seed);
	h.pins = prng_of(~seed);
	expect_int(sim_begin(&sim), 0);
	sim_faults_on(false);
	for (unsigned i = 0; i < ARRAYS; i++)
		array_up(i, true);
	for (unsigned i = 0; i < PROCS; i++) {
		proc_init(i);
		proc_up(&h.proc[i]);
	}
	run_for(HOUR_S / 8 * NS_PER_S, false, false);
	quiet();
	quiet_check();
	for (unsigned quarter = 0; quarter < 3; quarter++) {
		run_for(HOUR_S / 8 * NS_PER_S, true, true);
		quiet();
		quiet_check();
		before = heap_bytes();
		run_for(HOUR_S / 8 * NS_PER_S, true, false);
		quiet();
		quiet_check();
		after = heap_bytes();
		if (after > before + 512 * KiB)
			fail_msg("a quarter without kills took %zu KiB of memory",
				 (after - before) / 1024);
	}
	run_for(HOUR_S / 8 * NS_PER_S, true, true);
	quiet();
	printf("# seed %llu: %llu batches, hits dram %llu flash %llu remote %llu, absent %llu late "
	       "%llu unreachable %llu corrupt %llu; %llu kills, %llu cuts\n",
	       (unsigned long long)seed, (unsigned long long)h.batches,
	       (unsigned long long)h.hits[KVOF_TIER_DRAM],
	       (unsigned long long)h.hits[KVOF_TIER_FLASH],
	       (unsigned long long)h.hits[KVOF_TIER_REMOTE],
	       (unsigned long long)h.reasons[KVOF_ABSENT], (unsigned long long)h.reasons[KVOF_LATE],
	       (unsigned long long)h.reasons[KVOF_UNREACHABLE],
	       (unsigned long long)h.reasons[KVOF_CORRUPT], (unsigned long long)h.killed,
	       (unsigned long long)h.cuts);
	printf("# seed %llu: %llu requests, blocks from dram %llu flash %llu remote %llu, computed "
	       "%llu, %llu layers; %llu hints\n", (unsigned long long)seed,
	       (unsigned long long)h.asks, (unsigned long long)h.restored[KVOF_TIER_DRAM],
	       (unsigned long long)h.restored[KVOF_TIER_FLASH],
	       (unsigned long long)h.restored[KVOF_TIER_REMOTE], (unsigned long long)h.computed,
	       (unsigned long long)h.layers, (unsigned long long)h.hints);
	for (enum kvof_tier t = KVOF_TIER_DRAM; t < KVOF_TIER_COUNT; t++)
		expect(h.hits[t] > 100 && h.restored[t] > 100);
	expect(h.asks > 1000 && h.layers > 1000 && h.computed > 100 && h.prefetched > 0);
	expect(h.killed > 5 && h.cuts > 5 && h.reasons[KVOF_LATE] > 0);
	world_end();
}

TEST(s15_an_hour_of_mixed_load_with_faults_delivers_no_wrong_byte_and_leaves_nothing_behind)
{
	const char *first = getenv("KVOF_SEED"), *many = getenv("KVOF_HOURS");
	uint64_t seed = first != NULL ? strtoull(first, NULL, 10) : 1;
	uint64_t count = first != NULL ? 1 : many != NULL ? strtoull(many, NULL, 10) : 2;

	log_level_set(LOG_ERROR);
	for (uint64_t i = 0; i < count; i++)
		hour(seed + i);
}
