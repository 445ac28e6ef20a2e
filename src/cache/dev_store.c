/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Drives of this machine as a device: a store on the same loop.
 *
 * Values go through the store's own buffers, with one copy between them and the caller's memory
 * (drives want whole blocks at aligned addresses, engines have neither). So no caller's buffer is
 * ever busy: an operation whose deadline passes, or that is canceled, is answered at once, and what
 * the drive still does for it goes on for nobody ("a flight without an operation").
 *
 *   Store     BUF: waits for a buffer   STORE: copied, being written
 *   Retrieve  WAIT: for its drive       STORE: being read
 *   Delete    STORE                     Exist, absent, too short a room: answered from memory
 *
 * What gets of one drive hold of the store's buffers is bounded, the rest waits here: so a drive
 * that answers nothing takes neither the buffers of the others nor, since who waits can leave at
 * once, all flights. Gets that the store gave up (-EIO after a long silence) still hold their
 * buffers: that is lost until the drive answers again. Till then it is tried once a second, and
 * what else asks for it is answered at once (-EIO).
 *
 * Invariants: a flight is on the free list or counted by `flying`; it has a buffer only in STORE;
 * held_bytes of a drive is the sum over its gets in STORE, and lost_bytes. One timer stands for
 * all deadlines: it fires at or before the earliest.
 *
 * Owned by one loop.
 */
#include "cache/dev.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/log.h"
#include "base/must.h"
#include "cache/frame.h"
#include "loop/iov.h"
#include "store/buf.h"
#include "store/store.h"
#include "store/where.h"

#define DEV_STORE_MAGIC 0x64737472u
#define DEV_STORE_BUFFER_MIN (64 * MiB)
#define DEV_STORE_VALUES_FLYING 32u        /* buffers for so many of the largest values */
#define DEV_STORE_DRIVE_VALUES 8u          /* of them at least for each drive */
#define DEV_STORE_SILENT_NS NS_PER_S       /* an error after that is a silence, not a refusal */
#define DEV_STORE_TRY_NS NS_PER_S
#define DEV_STORE_LOOK_NS (100 * NS_PER_MS)

enum flight_state { FLIGHT_FREE, FLIGHT_WAIT, FLIGHT_BUF, FLIGHT_STORE };

struct flight {
	struct list_link link;             /* on the free list, or in WAIT its drive's */
	struct dev_store *dev;
	struct host_op *op;                /* NULL: nobody waits for it */
	enum flight_state state;
	struct store_op store_op;
	struct store_buf_wait wait;
	struct store_buf *buf;             /* Store: what is written */
	unsigned drive;                    /* Retrieve: where it lies, and what it holds there */
	uint64_t held_bytes, begin_ns;
};

struct place {
	unsigned drive;
	uint32_t value_bytes;
};

/* What gets of one drive hold, and those that wait until it is less. */
struct share {
	uint64_t held_bytes, lost_bytes;
	uint64_t try_ns;                   /* next, when something is lost */
	struct list_link waiting;
};

struct dev_store {
	struct dev dev;
	uint32_t magic;
	struct loop *loop;
	struct store *store;               /* NULL: closing */
	bool closing, dead;
	uint64_t looked_ns;                /* for dead drives */
	bool look_due;                     /* an error came too soon after the last look */
	uint32_t flying;
	struct list_link free;
	uint64_t share_bytes;              /* of a drive */
	struct share share[STORE_DRIVES_MAX];
	struct loop_timer late;
	uint64_t late_ns;                  /* 0: not set */
	struct dev_stat last;              /* when the store is gone */
	void (*closed)(void *arg);
	void *arg;
	struct dev_store_drive drive[STORE_DRIVES_MAX];
	uint32_t flight_count;
	struct flight flight[];
};

static const uint8_t flight_next[] = {      /* bit n set: may go to state n */
	[FLIGHT_FREE] = 1u << FLIGHT_WAIT | 1u << FLIGHT_BUF | 1u << FLIGHT_STORE,
	[FLIGHT_WAIT] = 1u << FLIGHT_STORE | 1u << FLIGHT_FREE,
	[FLIGHT_BUF] = 1u << FLIGHT_STORE | 1u << FLIGHT_FREE,
	[FLIGHT_STORE] = 1u << FLIGHT_FREE,
};

static void flight_go(struct flight *f, enum flight_state to)  /* the only writer of f->state */
{
	must(flight_next[f->state] & 1u << to);
	f->state = to;
}

static struct dev_store *self(const struct dev *dev)
{
	struct dev_store *d = dev->self;

	OBJ_CHECK(d, DEV_STORE_MAGIC);
	return d;
}

/* --- answers ---------------------------------------------------------------------------------- */

/* Lies in the operation's own room: an answer outlives its flight, and has a turn of its own. */
struct ticket {
	struct loop_op soon;
	struct host_op *op;
	struct flight *flight;             /* NULL: answered */
	int res;
};
_Static_assert(sizeof(struct ticket) <= sizeof(((struct host_op *)NULL)->lease), "it has room");

static struct ticket *ticket_of(struct host_op *op)
{
	return (struct ticket *)(void *)op->lease;
}

static void answer_run(struct loop_op *soon, int res)
{
	struct ticket *t = container_of(soon, struct ticket, soon);

	t->op->done(t->op, t->res);
}

static void answer_soon(struct dev_store *d, struct host_op *op, int res)
{
	struct ticket *t = ticket_of(op);

	*t = (struct ticket){.soon = {.done = answer_run}, .op = op, .res = res};
	loop_soon(d->loop, &t->soon, 0);
}

/* --- flights ---------------------------------------------------------------------------------- */

static struct flight *flight_take(struct dev_store *d, struct host_op *op)
{
	struct list_link *link = list_pop_front(&d->free);
	struct flight *f;

	if (link == NULL)
		return NULL;
	f = container_of(link, struct flight, link);
	must(f->state == FLIGHT_FREE && f->op == NULL);
	f->op = op;
	*ticket_of(op) = (struct ticket){.flight = f};
	d->flying++;
	if (op->deadline_ns != 0 && (d->late_ns == 0 || op->deadline_ns < d->late_ns)) {
		d->late_ns = op->deadline_ns;
		loop_timer_set(d->loop, &d->late, d->late_ns);
	}
	return f;
}

static void flight_free(struct flight *f)
{
	struct dev_store *d = f->dev;

	must(d->flying > 0 && f->op == NULL && f->buf == NULL);
	flight_go(f, FLIGHT_FREE);
	d->flying--;
	list_push_front(&d->free, &f->link);
}

/* Nobody waits for it any more. */
static void flight_leave(struct flight *f, int res)
{
	struct host_op *op = f->op;

	f->op = NULL;
	answer_soon(f->dev, op, res);
	if (f->state == FLIGHT_WAIT) {
		list_remove(&f->link);
		flight_free(f);
	} else if (f->state == FLIGHT_BUF && f->dev->store != NULL &&
		   store_buf_wait_cancel(f->dev->store, &f->wait)) {
		flight_free(f);
	}
}

static void flights_late(struct loop_timer *timer)
{
	struct dev_store *d = container_of(timer, struct dev_store, late);
	uint64_t now = loop_now_ns(d->loop), next = 0;

#ifdef KVOF_PLANT_FLASH_NEVER_LATE
	return;
#endif
	for (uint32_t i = 0; i < d->flight_count; i++) {
		struct flight *f = &d->flight[i];

		if (f->op == NULL || f->op->deadline_ns == 0)
			continue;
		if (f->op->deadline_ns <= now)
			flight_leave(f, -ETIMEDOUT);
		else if (next == 0 || f->op->deadline_ns < next)
			next = f->op->deadline_ns;
	}
	d->late_ns = next;
	if (next != 0)
		loop_timer_set(d->loop, &d->late, next);
}

/* Is there still a drive that works? Asked after errors only: it looks at all segments. */
static void drives_look(struct dev_store *d)
{
	uint64_t now = loop_now_ns(d->loop);
	struct store_stat stat;

	d->look_due = now < d->looked_ns;
	if (d->dead || d->store == NULL || d->look_due)
		return;
	d->looked_ns = now + DEV_STORE_LOOK_NS;
	store_stat(d->store, &stat);
	d->dead = stat.drives_failed == stat.drives;
	if (d->dead)
		log_error("flash: no drive is left; its blocks are misses");
}

static void flight_over(struct flight *f, int res)
{
	struct dev_store *d = f->dev;
	struct host_op *op = f->op;

	f->op = NULL;
	if (f->buf != NULL)
		store_buf_return(&f->buf);
	flight_free(f);
	if (res == -EIO)
		drives_look(d);
	if (op != NULL)
		op->done(op, res);
}

/* --- Store ------------------------------------------------------------------------------------ */

static void put_done(struct store_op *sop, int res)
{
	flight_over(container_of(sop, struct flight, store_op), res);
}

static void copy(const struct iovec *to, unsigned to_count, const struct iovec *from,
		 unsigned from_count, uint64_t bytes)
{
	struct iov_at in = iov_at_start(from, from_count), out = iov_at_start(to, to_count);

	while (bytes > 0) {
		uint8_t *base = NULL;
		size_t piece = iov_at_piece(&in, &base);
		size_t step = piece < bytes ? piece : bytes;

		must(piece > 0);
		iov_at_put(&out, base, step);
		in.into += step;
		bytes -= step;
	}
}

static void put_ready(struct store_buf_wait *w, struct store_buf *buf)
{
	struct flight *f = container_of(w, struct flight, wait);
	struct dev_store *d = f->dev;

	must(f->state == FLIGHT_BUF);
	f->buf = buf;
	if (f->op == NULL || d->store == NULL) {
		store_buf_return(&f->buf);
		must(f->op == NULL);
		flight_free(f);
		return;
	}
	copy(buf->piece, buf->piece_count, f->op->iov, f->op->iov_count, f->op->bytes);
	flight_go(f, FLIGHT_STORE);
	f->store_op = (struct store_op){
		.key = f->op->key,
		.mode = f->op->if_absent ? STORE_PUT_IF_ABSENT : STORE_PUT_ANY,
		.buf = buf,
		.done = put_done,
	};
	store_put(d->store, &f->store_op);
}

static void put(struct dev_store *d, struct flight *f)
{
	flight_go(f, FLIGHT_BUF);
	f->wait = (struct store_buf_wait){.payload_bytes = f->op->bytes, .ready = put_ready};
	store_buf_take(d->store, &f->wait);
}

/* --- Retrieve, Delete, Exist ------------------------------------------------------------------ */

/* What a get held of its drive's share comes back, or is lost. */
static void share_settle(struct dev_store *d, struct flight *f, int res)
{
	struct share *s = &d->share[f->drive];

	must(s->held_bytes >= f->held_bytes + s->lost_bytes);
	if (res == -EIO && loop_now_ns(d->loop) - f->begin_ns >= DEV_STORE_SILENT_NS) {
		s->lost_bytes += f->held_bytes;
		return;
	}
	s->held_bytes -= f->held_bytes;
	if (res == 0) {
		s->held_bytes -= s->lost_bytes;
		s->lost_bytes = 0;
	}
}

static void share_next(struct dev_store *d, struct share *s);

static void get_done(struct store_op *sop, int res)
{
	struct flight *f = container_of(sop, struct flight, store_op);
	struct dev_store *d = f->dev;
	struct share *share = &d->share[f->drive];
	struct host_op *op = f->op;

	share_settle(d, f, res);
	if (op != NULL && (res == 0 || res == -EBADMSG))
		op->value_bytes = sop->value_bytes;
	if (op != NULL && res == 0 && sop->buf != NULL) {
		op->moved_bytes = (uint32_t)bytes_min(op->bytes, sop->value_bytes);
		copy(op->iov, op->iov_count, sop->buf->piece, sop->buf->piece_count,
		     op->moved_bytes);
	}
	if (res == 0)
		f->buf = sop->buf;
	flight_over(f, res);
	share_next(d, share);
}

static void get_start(struct dev_store *d, struct flight *f)
{
	flight_go(f, FLIGHT_STORE);
	f->begin_ns = loop_now_ns(d->loop);
	d->share[f->drive].held_bytes += f->held_bytes;
	f->store_op = (struct store_op){
		.key = f->op->key,
		.want_bytes = f->op->bytes,
		.done = get_done,
	};
	store_get(d->store, &f->store_op);
}

static bool has_share(const struct dev_store *d, const struct flight *f)
{
	const struct share *s = &d->share[f->drive];

#ifdef KVOF_PLANT_DRIVE_TAKES_ALL
	return true;
#endif
	return s->held_bytes == 0 || s->held_bytes + f->held_bytes <= d->share_bytes;
}

/* A drive that has been silent: one get may try it, now and then. */
static bool may_try(struct dev_store *d, struct share *s)
{
	uint64_t now = loop_now_ns(d->loop);

	if (s->held_bytes > s->lost_bytes || now < s->try_ns)
		return false;
	s->try_ns = now + DEV_STORE_TRY_NS;
	return true;
}

/* Something of this drive has come back, or was given up. */
static void share_next(struct dev_store *d, struct share *s)
{
	while (d->store != NULL && !list_empty(&s->waiting)) {
		struct flight *f = container_of(s->waiting.next, struct flight, link);

		if (s->lost_bytes > 0) {
			flight_leave(f, -EIO);
			continue;
		}
		if (!has_share(d, f))
			return;
		list_remove(&f->link);
		get_start(d, f);
	}
}

static void get(struct dev_store *d, struct flight *f, const struct place *place)
{
	struct share *s = &d->share[place->drive];

	f->drive = place->drive;
	f->held_bytes = bytes_round_up(place->value_bytes, 4 * KiB) + 4 * KiB;
	flight_go(f, FLIGHT_WAIT);
	list_push_back(&s->waiting, &f->link);
	if (s->lost_bytes > 0 && may_try(d, s)) {
		list_remove(&f->link);
		get_start(d, f);
	} else {
		share_next(d, s);
	}
}

static void delete_done(struct store_op *sop, int res)
{
	flight_over(container_of(sop, struct flight, store_op), res);
}

static void delete(struct dev_store *d, struct flight *f)
{
	flight_go(f, FLIGHT_STORE);
	f->store_op = (struct store_op){.key = f->op->key, .done = delete_done};
	store_delete(d->store, &f->store_op);
}

/* Answers what memory alone can tell; true: it has. Else place is where the value lies. */
static bool known_now(struct dev_store *d, struct host_op *op, struct place *place)
{
	int drive;

	if (op->kind == HOST_EXIST) {
		answer_soon(d, op, store_exists(d->store, &op->key, &op->value_bytes) ? 0 :
			    -ENOENT);
		return true;
	}
	if (op->kind != HOST_RETRIEVE)
		return false;
	drive = store_where(d->store, &op->key, &op->value_bytes);
	if (drive >= 0 && op->bytes >= op->value_bytes) {
		*place = (struct place){(unsigned)drive, op->value_bytes};
		return false;
	}
	if (drive >= 0)                    /* looked at: stays longer */
		store_exists(d->store, &op->key, &op->value_bytes);
	answer_soon(d, op, drive >= 0 ? 0 : -ENOENT);
	return true;
}

/* --- the device ------------------------------------------------------------------------------- */

static void dev_store_submit(struct dev *dev, struct host_op *op)
{
	struct dev_store *d = self(dev);
	struct place place = {0};
	struct flight *f;

	loop_must_own(d->loop);
	op->busy = false;
	op->value_bytes = op->moved_bytes = 0;
	if (d->look_due)
		drives_look(d);
	if (d->store == NULL || d->dead) {
		answer_soon(d, op, d->closing ? -ESHUTDOWN : -ECONNRESET);
		return;
	}
	if (known_now(d, op, &place))
		return;
	f = flight_take(d, op);
	if (f == NULL) {                   /* all wait for drives that answer nothing */
		answer_soon(d, op, -ECONNRESET);
		return;
	}
	if (op->kind == HOST_RETRIEVE) {
		get(d, f, &place);
	} else if (op->kind == HOST_STORE) {
		put(d, f);
	} else {
		must(op->kind == HOST_DELETE);
		delete(d, f);
	}
}

static void dev_store_cancel(struct dev *dev, struct host_op *op)
{
	struct flight *f = ticket_of(op)->flight;

	must(f == NULL || (f->dev == self(dev) && f->op == op));
	if (f != NULL)
		flight_leave(f, -ECANCELED);
}

static bool dev_store_live(const struct dev *dev)
{
	const struct dev_store *d = self(dev);

	return d->store != NULL && !d->dead && !list_empty(&d->free);
}

static void dev_store_stat(const struct dev *dev, struct dev_stat *out)
{
	const struct dev_store *d = self(dev);
	struct store_stat stat;
	struct store_kept kept;

	*out = d->last;
	if (d->store == NULL)
		return;
	store_stat(d->store, &stat);
	store_kept(d->store, &kept);
	*out = (struct dev_stat){
		.live = dev_store_live(dev),
		.device_read_bytes = stat.device_read_bytes,
		.device_write_bytes = stat.device_write_bytes,
		.used_bytes = stat.used_bytes,
		.capacity_bytes = stat.capacity_bytes,
		.values = stat.keys,
		.evicted = stat.evicted_keys,
		.corrupt = stat.corrupt,
		.kept_bytes = kept.bytes,
		.kept_lost = kept.lost,
		.drives = stat.drives,
		.drives_failed = stat.drives_failed,
	};
}

static int dev_store_keep(struct dev *dev, const struct kv_key *key, bool on)
{
	struct dev_store *d = self(dev);

	loop_must_own(d->loop);
	return d->store != NULL ? store_keep(d->store, key, on) : -ENOENT;
}

static const struct dev_ops dev_store_ops = {
	.name = "flash",
	.submit = dev_store_submit,
	.cancel = dev_store_cancel,
	.live = dev_store_live,
	.stat = dev_store_stat,
	.keep = dev_store_keep,
};

/* --- open and close --------------------------------------------------------------------------- */

static int drives_parse(struct dev_store *d, const struct dev_store_opts *opts,
			struct store_opts *store, char why[256])
{
	for (unsigned i = 0; i < opts->path_count; i++) {
		int rc = dev_store_parse(opts->path[i], &d->drive[i], why);

		if (rc != 0)
			return rc;
		store->drive[i].path = d->drive[i].path;
		store->drive[i].bytes = d->drive[i].bytes;
		if (d->drive[i].rate_bytes_per_s != d->drive[0].rate_bytes_per_s) {
			snprintf(why, 256, "flash \"%.100s\": rate= has to be the same for all "
				 "drives", opts->path[i]);
			return -EINVAL;
		}
	}
	store->drive_read_bytes_per_s = d->drive[0].rate_bytes_per_s;
	store->drive_count = opts->path_count;
	return 0;
}

int dev_store_open(struct loop *loop, const struct dev_store_opts *opts, char why[256],
		   struct dev **out)
{
	uint64_t values = opts->path_count * DEV_STORE_DRIVE_VALUES;
	uint64_t buffers = (values > DEV_STORE_VALUES_FLYING ? values : DEV_STORE_VALUES_FLYING) *
			   ((uint64_t)opts->value_bytes_max + 8 * KiB);
	struct store_opts store = {
		.cap_bytes = opts->cap_bytes,
		.value_bytes_max = opts->value_bytes_max,
		.buffer_bytes = buffers < DEV_STORE_BUFFER_MIN ? DEV_STORE_BUFFER_MIN : buffers,
		.evict = true,
		.second_touch = opts->second_touch,
		.format = opts->format,
	};
	struct dev_store *d;
	struct store_report report;
	int rc;

	must(opts->path_count > 0 && opts->path_count <= STORE_DRIVES_MAX);
	d = calloc(1, sizeof(*d) + opts->flying_max * sizeof(d->flight[0]));
	if (d == NULL)
		return -ENOMEM;
	OBJ_INIT(d, DEV_STORE_MAGIC);
	d->dev = (struct dev){&dev_store_ops, d};
	d->loop = loop;
	d->flight_count = opts->flying_max;
	/* a quarter stays for what is written */
	d->share_bytes = store.buffer_bytes / 4 * 3 / opts->path_count;
	for (unsigned i = 0; i < STORE_DRIVES_MAX; i++)
		list_init(&d->share[i].waiting);
	list_init(&d->free);
	loop_timer_init(&d->late, flights_late);
	for (uint32_t i = 0; i < d->flight_count; i++) {
		d->flight[i].dev = d;
		list_push_back(&d->free, &d->flight[i].link);
	}
	rc = drives_parse(d, opts, &store, why);
	if (rc == 0) {
		rc = store_open(&store, loop, &d->store, &report);
		snprintf(why, 256, "%s", rc != 0 ? report.text : "");
	}
	if (rc != 0) {
		free(d);
		return rc;
	}
	*out = &d->dev;
	return 0;
}

static void store_gone(void *arg)
{
	struct dev_store *d = arg;

	must(d->flying == 0);
	d->closed(d->arg);
}

void dev_store_close(struct dev *dev, void (*closed)(void *arg), void *arg)
{
	struct dev_store *d = self(dev);
	struct store *store = d->store;

	must(!d->closing);
	loop_timer_cancel(d->loop, &d->late);
	d->closing = true;
	d->closed = closed;
	d->arg = arg;
	for (uint32_t i = 0; i < d->flight_count; i++)
		if (d->flight[i].op != NULL)
			flight_leave(&d->flight[i], -ESHUTDOWN);
	dev_store_stat(dev, &d->last);
	d->last.live = false;
	d->store = NULL;
	store_close(&store, store_gone, d);
}

void dev_store_free(struct dev **dev)
{
	struct dev_store *d = self(*dev);

	*dev = NULL;
	must(d->store == NULL && d->flying == 0);
	d->magic = 0;
	free(d);
}
