/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the parts of `kvof plan calibrate` share.
 *
 *   plan_measure.c         options, order, time, the profile and what is printed
 *   plan_measure_dram.c    copies in memory
 *   plan_measure_drive.c   a drive through the store, without a page cache
 *   plan_measure_link.c    an array over NVMe/TCP: --target, or one on loopback in this process
 *   plan_measure_wave.c    waves of restores through libkvof: arms dram, local, array
 *   plan_measure_engine.c  time to first token of an engine: arm recompute
 *
 * One thread drives; a stage ends by its share of --seconds. What it finds goes into the profile,
 * medians over repeats. A stage returns 0 or an exit code after its line; after Ctrl-C it returns
 * as soon as it can, and nothing is written.
 */
#ifndef KVOF_CMD_PLAN_MEASURE_INNER_H
#define KVOF_CMD_PLAN_MEASURE_INNER_H

#include "cmd/drives.h"
#include "plan/measured.h"
#include "plan/profile.h"

#define MEASURE_NAME "plan calibrate"
#define MEASURE_WAVE_SESSIONS 8u         /* of the largest wave */
#define MEASURE_SMALL_BYTES (UINT64_C(8) << 20)      /* of one session, the small size */
#define MEASURE_LARGE_BYTES (UINT64_C(32) << 20)
#define MEASURE_SET_BYTES (MEASURE_WAVE_SESSIONS * MEASURE_LARGE_BYTES)
#define MEASURE_REPEATS_LEAST 3u

enum measure_part {
	MEASURE_ENGINE = 1, MEASURE_DRIVES = 2, MEASURE_ARRAY = 4, MEASURE_MEMORY = 8,
	MEASURE_ALL = 15,
};

struct measure {
	const char *profile_path, *target, *engine, *engine_model;
	struct cmd_drives drives;            /* none: a file in a folder of its own */
	bool made_drive[STORE_DRIVES_MAX];   /* the file was not there before */
	unsigned prefill_tokens_per_s, output_tokens;
	uint64_t seconds_ns, value_bytes;
	bool json;
	unsigned parts;                      /* bits of enum measure_part */

	uint64_t end_ns;                     /* of the whole run */
	uint64_t stage_end_ns;               /* of the stage in hand */
	const char *stage;
	double weight_left;                  /* of stages to come and the one in hand */
	struct plan_profile *profile;
	char folder[256];                    /* of the default drive; empty: none was made */
	uint64_t array_bytes;                /* of the one on loopback; 0: --target */
	const char *no_local;                /* why there is no arm local; NULL: there is */
};

/* --- plan_measure.c -------------------- */

/* Ctrl-C was pressed. */
bool measure_stopped(void);
/* It was, or the stage's time is over. */
bool measure_over(const struct measure *m);
/* On a terminal what is being done now; else nothing. */
void measure_progress(const struct measure *m, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
/* The line is said; CMD_FAILED. */
int measure_failed(const char *format, ...) __attribute__((format(printf, 1, 2)));
struct plan_device *measure_device(struct measure *m, enum plan_device_kind kind,
				   const char *format, ...) __attribute__((format(printf, 3, 4)));
struct kvof_plan_fit *measure_arm(struct measure *m, enum kvof_plan_arm_kind kind);
/* "noisy: ..." when repeats lie too far apart; which may be "". */
void measure_device_noisy(struct plan_device *d, const struct measured_series *s,
			  const char *which);
#define MEASURE_NOISY 0.2
/* Bytes of the largest cache of the processor; of memory that programs can still have. */
uint64_t measure_cache_bytes(void);
uint64_t measure_memory_bytes(void);

/* --- stages -------------------- */

int measure_dram(struct measure *m);

/* Readies the default drive where none was given. */
int measure_drive_begin(struct measure *m);
int measure_drive(struct measure *m, unsigned index);
void measure_drive_end(struct measure *m);
/* Several drives that waves used as one store are stores of their own again, as they were found. */
int measure_drive_part(struct measure *m);
/* The file of a drive that this run made is named no more: it goes when it is closed. */
void measure_drive_unname(const struct measure *m);

/* An array in this process, on a port of loopback. */
struct measure_array;
int measure_array_open(uint64_t bytes, struct measure_array **out, char target[64]);
void measure_array_close(struct measure_array **a);
int measure_link(struct measure *m, const char *target);

/* target: of the arm array. */
int measure_wave(struct measure *m, enum kvof_plan_arm_kind kind, const char *target);

int measure_engine(struct measure *m);

#endif
