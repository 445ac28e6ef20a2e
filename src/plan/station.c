/* SPDX-License-Identifier: Apache-2.0 */
/* Invariant: clocks stand still at 0 while nobody is in service; they never go back otherwise. */
#include "plan/station.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#include "base/must.h"

#define LEAST_S 1e-9                       /* what is nearer than this has come */

uint64_t station_key(double value)
{
	uint64_t bits;

	must(value >= 0);
	value += 0.0;                      /* -0 has another pattern */
	memcpy(&bits, &value, sizeof(bits));
	return bits;
}

void station_begin(struct station *s)
{
	list_init(&s->waiting);
}

void station_free(struct station *s)
{
	must(s->jobs == 0);
	if (s->request.at != NULL)
		heap_free(&s->request);
	if (s->served.at != NULL)
		heap_free(&s->served);
}

static uint32_t in_service(const struct station *s)
{
	return s->request.count + s->served.count;
}

/* Units a second of one job, of so many. */
static double pace(const struct station *s, uint32_t jobs)
{
	double each;

	if (s->rate <= 0)
		return 1 / fmax(s->step_s + s->step_job_s * jobs, 1e-12);
	each = s->rate / jobs;
	return s->each > 0 && s->each < each ? s->each : each;
}

double station_alone_s(const struct station *s, double units)
{
	return s->session_s + units / pace(s, 1);
}

static void station_advance(struct station *s, double now_s)
{
	uint32_t jobs = in_service(s);
	double past_s = now_s - s->at_s;

	s->at_s = now_s;
	if (jobs == 0) {
		s->request_clock = s->served_clock = s->end_sum = 0;
		return;
	}
	if (past_s <= 0)
		return;
	s->busy_s += past_s;
	s->units += past_s * pace(s, jobs) * s->served.count;
	s->request_clock += past_s / jobs;
	s->served_clock += past_s * pace(s, jobs);
}

/* Room in both heaps for one job more than there are, in service or in line. */
static int room(struct station *s)
{
	int rc = 0;

	if (s->served.max <= s->jobs)
		rc = heap_reserve(&s->served, s->jobs * 2 + 16);
	if (rc == 0 && s->session_s > 0 && s->request.max <= s->jobs)
		rc = heap_reserve(&s->request, s->jobs * 2 + 16);
	return rc;
}

static void served_add(struct station *s, struct station_job *job)
{
	job->state = STATION_SERVED;
	job->end_clock = s->served_clock + job->units;
	job->node = (struct heap_node){.at_ns = station_key(job->end_clock)};
	heap_add(&s->served, &job->node);
	s->end_sum += job->end_clock;
}

static void service_add(struct station *s, struct station_job *job)
{
	if (s->session_s <= 0) {
		served_add(s, job);
		return;
	}
	job->state = STATION_REQUEST;
	job->end_clock = s->request_clock + s->session_s;
	job->node = (struct heap_node){.at_ns = station_key(job->end_clock)};
	heap_add(&s->request, &job->node);
}

int station_enter(struct station *s, struct station_job *job, double units, double now_s)
{
	int rc = room(s);

	must(job->state == STATION_AWAY && units >= 0);
	if (rc != 0)
		return rc;
	station_advance(s, now_s);
	job->units = units;
	job->enter_s = now_s;
	if (s->limit == 0 || in_service(s) < s->limit) {
		service_add(s, job);
	} else {
		job->state = STATION_WAITING;
		job->link = (struct list_link){NULL, NULL};
		list_push_back(&s->waiting, &job->link);
		s->waiting_units += units;
	}
	s->jobs++;
	if (s->jobs > s->jobs_most)
		s->jobs_most = s->jobs;
	return 0;
}

static double heap_clock(const struct heap *h)
{
	return container_of(heap_first(h), struct station_job, node)->end_clock;
}

double station_next_s(struct station *s)
{
	uint32_t jobs = in_service(s);
	double next_s = INFINITY;

	if (s->request.count > 0)
		next_s = s->at_s + (heap_clock(&s->request) - s->request_clock) * jobs;
	if (s->served.count > 0)
		next_s = fmin(next_s, s->at_s + (heap_clock(&s->served) - s->served_clock) /
			      pace(s, jobs));
	return next_s;
}

static void line_serve(struct station *s)
{
	while (!list_empty(&s->waiting) && in_service(s) < s->limit) {
		struct station_job *job = container_of(list_pop_front(&s->waiting),
						       struct station_job, link);

		s->waiting_units -= job->units;
		service_add(s, job);
	}
}

struct station_job *station_done(struct station *s, double now_s)
{
	struct station_job *job;
	double least_s = LEAST_S + now_s * 1e-12;
	uint32_t jobs;

	station_advance(s, now_s);
	jobs = in_service(s);
	while (s->request.count > 0 &&
	       (heap_clock(&s->request) - s->request_clock) * jobs <= least_s) {
		job = container_of(heap_first(&s->request), struct station_job, node);
		heap_remove(&s->request, &job->node);
		served_add(s, job);
	}
	if (s->served.count == 0 ||
	    (heap_clock(&s->served) - s->served_clock) / pace(s, jobs) > least_s)
		return NULL;
	job = container_of(heap_first(&s->served), struct station_job, node);
	heap_remove(&s->served, &job->node);
	s->end_sum -= job->end_clock;
	s->jobs--;
	job->state = STATION_AWAY;
	s->wait_s += fmax(now_s - job->enter_s - station_alone_s(s, job->units), 0);
	line_serve(s);
	return job;
}

double station_left(struct station *s, double now_s)
{
	double left;

	station_advance(s, now_s);
	left = s->waiting_units + s->end_sum - s->served.count * s->served_clock;
	for (uint32_t i = 1; i <= s->request.count; i++)
		left += container_of(s->request.at[i], struct station_job, node)->units;
	return fmax(left, 0);
}

double station_job_left(struct station *s, const struct station_job *job, double now_s)
{
	station_advance(s, now_s);
	return job->state == STATION_SERVED ? fmax(job->end_clock - s->served_clock, 0) :
	       job->units;
}
