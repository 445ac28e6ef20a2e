/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fair use of a lane's buffers. What a host can hold without doing anything is a buffer that waits
 * for it: for data that it promised (R2T), or for it to take what it asked for. So a request asks
 * here before it takes one:
 *
 *	its seat      a controller holds at most pool / (controllers with queues here + 1) on a
 *	              lane, but always one request whatever its size
 *	unproven      who has not yet moved what it asked for, or has stopped moving, holds one at a
 *	              time, and all such together half of the pool
 *	the pool      the last RESERVE_PART of it is for those who hold nothing
 *	small         ALL_SMALL_PART of the pool is for requests of at most SMALL_PART of it, of
 *	              those who hold nothing: these wait for no other
 *
 * When there is room again, the one who holds least is served first, and nobody passes it, but for
 * the small ones in their part: a large value does not starve. Requests of one controller keep
 * their order. Data that came in its capsule waits for no host; while it waits for room its
 * connection is not read, so it does not wait where its own queue waits for data on that
 * connection: these requests would wait for each other.
 *
 * Pressure: while a request waits, the connections that hold buffers and wait for their hosts are
 * looked at every PRESSURE_LOOK_NS. One on which no byte has moved between two looks is not proven
 * any more; one on which none moves for a tenth of the stall time is closed. So who is alone may be
 * slow for the whole stall time, and who keeps others waiting may not.
 *
 * The request's lane.
 */
#include "target/core.h"

#include "base/log.h"

#define RESERVE_PART 8
#define SMALL_PART 64
#define ALL_SMALL_PART 16
#define PRESSURE_LOOK_NS (100 * NS_PER_MS)
#define PRESSURE_STALL_PART 10

/* There is; this controller has what it may; others not proven have it; the pool is full. */
enum room { ROOM, ROOM_NOT_MINE, ROOM_OTHERS, ROOM_NONE };

static void pressure_timer(struct loop_timer *timer);

void share_lane_open(struct lane *lane)
{
	list_init(&lane->seats);
	list_init(&lane->waiters);
	loop_timer_init(&lane->pressure, pressure_timer);
	if (lane->pool != NULL)
		lane->pool_bytes = store_pool_bytes(lane->pool);
}

void share_lane_close(struct lane *lane)
{
	must(lane->seat_count == 0 && lane->leased_bytes == 0 && lane->unproven_bytes == 0);
	must(list_empty(&lane->waiters) && lane->buf_waits == 0);
	loop_timer_cancel(lane->loop, &lane->pressure);
}

void share_seat_leave(struct seat *seat)
{
	must(seat->lane->seat_count > 0 && list_empty(&seat->share_wait));
	seat->lane->seat_count--;
	list_remove(&seat->link);
}

/* Does it wait for the host once it has its buffer? */
static bool waits_for_host(const struct req *req)
{
	return req->pulls || req->kv.dir == NV_DATA_TO_HOST;
}

static bool room_for_small(const struct req *req)
{
	const struct seat *seat = req->queue->seat;
	const struct lane *lane = seat->lane;

	return seat->leased_bytes == 0 && req->share_bytes <= lane->pool_bytes / SMALL_PART &&
	       lane->small_bytes + req->share_bytes <= lane->pool_bytes / ALL_SMALL_PART;
}

static enum room room_for(const struct req *req)
{
	const struct seat *seat = req->queue->seat;
	const struct lane *lane = seat->lane;
	uint64_t pool = lane->pool_bytes, bytes = req->share_bytes;
	bool none = seat->leased_bytes == 0;
	uint64_t others = lane->leased_bytes - lane->small_bytes;
	uint64_t kept = pool / ALL_SMALL_PART + (none ? 0 : pool / RESERVE_PART);

	if (room_for_small(req))
		return ROOM;
	if (!none && seat->leased_bytes + bytes > pool / (lane->seat_count + 1))
		return ROOM_NOT_MINE;
	if (waits_for_host(req) && !seat->proven) {
		if (seat->moving > 0)
			return ROOM_NOT_MINE;
		if (lane->unproven_bytes > 0 && lane->unproven_bytes + bytes > pool / 2)
			return ROOM_OTHERS;
	}
	if (others > 0 && others + bytes + kept > pool)
		return ROOM_NONE;
	return ROOM;
}

static void pressure_on(struct lane *lane)
{
	if (!loop_timer_is_set(&lane->pressure))
		loop_timer_set(lane->loop, &lane->pressure,
			       loop_now_ns(lane->loop) + PRESSURE_LOOK_NS);
}

static void buf_wait(struct req *req)
{
	struct lane *lane = req->queue->lane;

	req_go(req, REQ_BUF);
	lane->buf_waits++;
	store_pool_take(lane->pool, &req->wait);
	pressure_on(lane);
}

static void unproven_begin(struct req *req)
{
	must(!req->unproven && req->shared);
	req->unproven = true;
	req->queue->lane->unproven_bytes += req->share_bytes;
}

static void share_admit(struct req *req)
{
	struct seat *seat = req->queue->seat;

	must(!req->shared && req->state == REQ_NEW && !list_linked(&req->link));
	req->small = room_for_small(req);
	seat->lane->small_bytes += req->small ? req->share_bytes : 0;
	req->shared = true;
	seat->leased_bytes += req->share_bytes;
	seat->lane->leased_bytes += req->share_bytes;
	req->queue->leased_bytes += req->share_bytes;
	req->moves = waits_for_host(req);
	seat->moving += req->moves;
	if (req->moves && !seat->proven)
		unproven_begin(req);
	if (req->wants_buf)
		buf_wait(req);
	else
		req->ready(req);
}

/* The first that waits and whose queue is not being closed (its req_cancel() is on its way). */
static struct req *seat_first(struct seat *seat)
{
	LIST_FOR_EACH(link, &seat->share_wait) {
		struct req *req = container_of(link, struct req, link);

		if (req->queue->state != QUEUE_DEAD)
			return req;
	}
	return NULL;
}

/* Of those whose turn it may be, the one whose controller holds least. NULL: nobody, or there is no
 * room for that one. */
static struct req *share_next(struct lane *lane)
{
	struct req *best = NULL;

	LIST_FOR_EACH(link, &lane->waiters) {
		struct req *req = seat_first(container_of(link, struct seat, wait_link));

		if (req != NULL && room_for_small(req))
			return req;
		if (req == NULL || room_for(req) == ROOM_NOT_MINE || room_for(req) == ROOM_OTHERS)
			continue;
		if (best == NULL ||
		    req->queue->seat->leased_bytes < best->queue->seat->leased_bytes)
			best = req;
	}
	return best != NULL && room_for(best) == ROOM ? best : NULL;
}

static void share_unlink(struct req *req)
{
	struct seat *seat = req->queue->seat;

	list_remove(&req->link);
	if (list_empty(&seat->share_wait))
		list_remove(&seat->wait_link);
}

static void share_pump(struct lane *lane)
{
	struct req *req;

	while (!list_empty(&lane->waiters) && (req = share_next(lane)) != NULL) {
		share_unlink(req);
		req_go(req, REQ_NEW);
		share_admit(req);
	}
}

/* Its capsule's data is in the way of what others of its queue wait for. */
static bool holds_own_data_up(const struct req *req)
{
#ifdef KVOF_PLANT_CAPSULE_WAITS
	return false;
#endif
	return req->kv.dir == NV_DATA_TO_CONTROLLER && !req->pulls && req->queue->pulling > 0;
}

void req_share_take(struct req *req, uint32_t bytes, void (*ready)(struct req *req))
{
	struct seat *seat = req->queue->seat;

	must(!req->shared && req->state == REQ_NEW);
	/* what it takes of the pool: whole blocks, and the record's header */
	req->share_bytes = (uint32_t)bytes_round_up((uint64_t)bytes + 512, 4096);
	req->ready = ready;
	if (holds_own_data_up(req) ||
	    (list_empty(&seat->share_wait) &&
	     (room_for_small(req) ||
	      (list_empty(&seat->lane->waiters) && room_for(req) == ROOM)))) {
		share_admit(req);
		return;
	}
	req_go(req, REQ_SHARE);
	if (list_empty(&seat->share_wait))
		list_push_back(&seat->lane->waiters, &seat->wait_link);
	list_push_back(&seat->share_wait, &req->link);
	pressure_on(seat->lane);
	share_pump(seat->lane);
}

void req_share_leave(struct req *req)
{
	if (req->state == REQ_SHARE && list_linked(&req->link))
		share_unlink(req);
}

static void req_buf_ready(struct store_buf_wait *wait, struct store_buf *buf)
{
	struct req *req = container_of(wait, struct req, wait);
	struct queue *q = req->queue;

	must(req->state == REQ_BUF && req->buf == NULL && q->lane->buf_waits > 0);
	q->lane->buf_waits--;
	req->buf = buf;
	if (q->state == QUEUE_DEAD)
		req_end(req);
	else if (ns_seat(req->ns, q->lane)->leaving)
		req_fail(req, NV_INVALID_NAMESPACE, NULL);
	else
		req->ready(req);
	queue_done(q);
}

static void buf_take(struct req *req, uint32_t bytes, bool plain, void (*ready)(struct req *req))
{
	must(req->buf == NULL && req->queue->lane->pool != NULL);
	req->wants_buf = true;
	req->wait = (struct store_buf_wait){
		.payload_bytes = bytes, .plain = plain, .ready = req_buf_ready};
	must(!req->pulls);
	req->pulls = req->kv.dir == NV_DATA_TO_CONTROLLER && req->cmd->inline_bytes == 0;
	req->queue->pulling += req->pulls;
	req_share_take(req, bytes, ready);
}

void req_buf_take(struct req *req, uint32_t bytes, void (*ready)(struct req *req))
{
	buf_take(req, bytes, false, ready);
}

void req_buf_take_plain(struct req *req, uint32_t bytes, void (*ready)(struct req *req))
{
	buf_take(req, bytes, true, ready);
}

bool req_buf_cancel(struct req *req)
{
	struct lane *lane = req->queue->lane;

	must(req->state == REQ_BUF);
	if (!store_pool_cancel(lane->pool, &req->wait))
		return false;
	must(lane->buf_waits > 0);
	lane->buf_waits--;
	return true;
}

static void moves_end(struct req *req)
{
	struct seat *seat = req->queue->seat;

	if (req->unproven) {
		must(seat->lane->unproven_bytes >= req->share_bytes);
		seat->lane->unproven_bytes -= req->share_bytes;
		req->unproven = false;
	}
	if (req->moves) {
		must(seat->moving > 0);
		seat->moving--;
		req->moves = false;
	}
}

static void pull_end(struct req *req)
{
	if (!req->pulls)
		return;
	must(req->queue->pulling > 0);
	req->queue->pulling--;
	req->pulls = false;
}

void req_moved(struct req *req)
{
	pull_end(req);
	if (!req->shared || !req->moves)
		return;
	req->queue->seat->proven = true;
	moves_end(req);
	share_pump(req->queue->lane);
}

void req_share_give(struct req *req)
{
	struct seat *seat = req->queue->seat;
	struct lane *lane = req->queue->lane;

	if (!req->shared)
		return;
	moves_end(req);
	req->shared = false;
	if (req->small) {
		must(lane->small_bytes >= req->share_bytes);
		lane->small_bytes -= req->share_bytes;
		req->small = false;
	}
	must(seat->leased_bytes >= req->share_bytes && lane->leased_bytes >= req->share_bytes);
	must(req->queue->leased_bytes >= req->share_bytes);
	seat->leased_bytes -= req->share_bytes;
	lane->leased_bytes -= req->share_bytes;
	req->queue->leased_bytes -= req->share_bytes;
	share_pump(lane);
}

/* --- pressure -------------------- */

/* Nothing has moved on it lately: what it holds counts among the unproven. */
static void queue_disprove(struct queue *q)
{
	q->seat->proven = false;
	for (unsigned i = 0; i < q->entries; i++) {
		struct req *req = &q->req[i];

		if (req->state != REQ_FREE && req->shared && req->moves && !req->unproven)
			unproven_begin(req);
	}
}

/* Does anybody wait for what this one holds? */
static bool queue_hinders(const struct queue *q)
{
	struct lane *lane = q->lane;

	if (lane->buf_waits > 0 && lane->seat_count > 1)
		return true;
	LIST_FOR_EACH(link, &lane->waiters) {
		struct seat *seat = container_of(link, struct seat, wait_link);
		struct req *req = seat_first(seat);

		if (seat != q->seat && req != NULL && room_for(req) >= ROOM_OTHERS)
			return true;
	}
	return false;
}

/* True: it holds buffers, it is its host's turn, and the host has had its time. */
static bool queue_pressed(struct queue *q, uint64_t now_ns)
{
	uint64_t moved = wire_moved_bytes(q->conn);

	if (!wire_waits_for_peer(q->conn) || moved != q->moved_bytes || q->moved_ns == 0) {
		q->moved_bytes = moved;
		q->moved_ns = now_ns;
		return false;
	}
	queue_disprove(q);
	return now_ns - q->moved_ns >= q->target->stall_ns / PRESSURE_STALL_PART;
}

static void pressure_timer(struct loop_timer *timer)
{
	struct lane *lane = container_of(timer, struct lane, pressure);
	uint64_t now_ns = loop_now_ns(lane->loop);
	bool over = list_empty(&lane->waiters) && lane->buf_waits == 0;

	if (!over)
		pressure_on(lane);
	LIST_FOR_EACH_SAFE(link, &lane->queues) {
		struct queue *q = container_of(link, struct queue, link);

		if (over || q->state == QUEUE_DEAD || q->leased_bytes == 0 || !queue_hinders(q)) {
			q->moved_ns = 0;               /* the next time begins anew */
			continue;
		}
		if (!queue_pressed(q, now_ns))
			continue;
		log_warn("controller %u queue %u: host %s moves no byte while others wait for the "
			 "%llu bytes it holds: closed", q->ctrl->cntlid, q->qid, q->ctrl->hostnqn,
			 (unsigned long long)q->leased_bytes);
		COUNT(lane, pressed, 1);
		queue_drop(q);
		queue_done(q);
	}
}
