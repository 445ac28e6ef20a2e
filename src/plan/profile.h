/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A profile: arms and devices with where their figures are from, as JSON text ("kvof_profile": 1).
 * `kvof plan calibrate` writes it, every plan reads it. Text is not trusted: it is checked here and
 * the field that is wrong is named; below this file its figures are finite and not negative.
 * Fields that are not known are passed over; another version is refused. Pure, any thread.
 */
#ifndef KVOF_PLAN_PROFILE_H
#define KVOF_PLAN_PROFILE_H

#include <kvof/plan.h>

#define PLAN_PROFILE_BYTES_MAX (4u << 20)
#define PLAN_PROFILE_ARMS_MAX 16u
#define PLAN_PROFILE_DEVICES_MAX 32u

enum plan_device_kind {
	PLAN_DEVICE_DRIVE, PLAN_DEVICE_LINK, PLAN_DEVICE_DRAM, PLAN_DEVICE_ENGINE,
};

struct plan_notes {
	uint32_t count;
	char text[KVOF_PLAN_NOTES_MAX][KVOF_PLAN_NOTE_BYTES];
};

struct plan_device {
	char name[112];
	enum plan_device_kind kind;
	double read_bytes_per_s, write_bytes_per_s;      /* 0: not measured */
	double latency_s;                /* of one read, at depth 1 */
	uint32_t depth;                  /* at which the rates were reached */
	uint64_t value_bytes;            /* of one read */
	struct plan_notes notes;
};

struct plan_profile {
	char made[40];                   /* 2026-11-30T22:40:00Z */
	char machine[200];
	enum kvof_plan_source source;
	char model_type[64];             /* of the model the rows are of; empty: not told */
	double model_bytes_per_token;    /* 0: not told */
	char engine[80], precision[32];  /* empty: not told */
	uint32_t arms;
	struct kvof_plan_fit arm[PLAN_PROFILE_ARMS_MAX];
	uint32_t devices;
	struct plan_device device[PLAN_PROFILE_DEVICES_MAX];
};

/* 0; -EINVAL with bad written: *out is then of no use; -ENOMEM. */
int plan_profile_read(const char *text, size_t bytes, struct plan_profile *out,
		      struct kvof_plan_bad *bad);
/* Text that free() takes, ends with a newline; NULL: no memory. */
char *plan_profile_write(const struct plan_profile *profile);

/* A note with one of these says that a figure may be of something else: plans tell it. */
#define PLAN_NOTE_LOOPBACK "loopback, not your network"
#define PLAN_NOTE_UNSURE "UNSURE"
#define PLAN_NOTE_NOT_DRIVE "NOT A DRIVE'S SPEED"

/*
 * Such notes of an arm, and of the drives for the arm local, joined by "; " and cut where they are
 * too long. Return: whether there are any; else text is empty.
 */
bool plan_profile_doubts(const struct plan_profile *profile, const struct kvof_plan_fit *fit,
			 char text[KVOF_PLAN_NOTE_BYTES]);

/* Adds a sentence, cut where it is too long; what comes after the last place is dropped. */
void plan_fit_note(struct kvof_plan_fit *fit, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
void plan_device_note(struct plan_device *device, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

/* "drive", ...; false: text is none of them. */
const char *plan_device_name(enum plan_device_kind kind);
bool plan_device_find(const char *text, enum plan_device_kind *kind);

#endif
