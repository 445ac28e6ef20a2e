/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A server of the simulator that jobs share: the arm of a tier, the decoding of an instance. All
 * jobs in service go on at the same pace, a job's bound or an equal part of the whole, whichever is
 * less; with a limit the others wait in line. Since all go on alike, a clock of what each job
 * received tells who is next: a job ends when the clock has gone on by its units. No I/O, one
 * thread; times are the simulator's.
 *
 *   AWAY -> WAITING -> REQUEST -> SERVED -> AWAY     REQUEST only where a request itself costs
 */
#ifndef KVOF_PLAN_STATION_H
#define KVOF_PLAN_STATION_H

#include <stdint.h>

#include "base/heap.h"
#include "base/list.h"

enum station_state { STATION_AWAY, STATION_WAITING, STATION_REQUEST, STATION_SERVED };

struct station_job {
	struct heap_node node;             /* keyed by the clock at which it ends */
	struct list_link link;
	enum station_state state;
	double units, enter_s, end_clock;
};

struct station {
	/* the caller's, before the first job */
	double rate;                       /* units a second of all jobs; 0: pace of step_* */
	double each;                       /* most of one job; 0: no bound */
	double session_s;                  /* of the whole station, for each job: its request */
	double step_s, step_job_s;         /* a unit takes step_s + jobs in service * step_job_s */
	uint32_t limit;                    /* jobs in service at a time; 0: no limit */
	/* its own */
	struct heap request, served;
	struct list_link waiting;
	double request_clock, served_clock, at_s;
	double waiting_units, end_sum;     /* of jobs in line; of the clocks at which served end */
	uint32_t jobs;                     /* here, in service or in line */
	/* what was seen */
	double busy_s, units, wait_s;      /* wait: what jobs took more than alone */
	uint32_t jobs_most;
};

void station_begin(struct station *s);
void station_free(struct station *s);                       /* no job may be in it */
/* Return: 0; -ENOMEM. */
int station_enter(struct station *s, struct station_job *job, double units, double now_s);
/* When the next job ends or its request is over; INFINITY: there is none. */
double station_next_s(struct station *s);
/* A job that ended by now, out of the station; NULL: none. */
struct station_job *station_done(struct station *s, double now_s);
/* Units that jobs here are still to receive. */
double station_left(struct station *s, double now_s);
double station_job_left(struct station *s, const struct station_job *job, double now_s);
/* Seconds of a job of so many units with nobody beside it. */
double station_alone_s(const struct station *s, double units);

/* The order of doubles from 0 up is that of their bits. */
uint64_t station_key(double value);

#endif
