/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lines for people and for log collectors: connect, disconnect, recovery, a failing device. One
 * line, with the object, the number and its unit. A failed request is a counter, never a line. Any
 * thread.
 *
 *	text   12:34:56.789 warn event=host_refused host=nqn... peer=127.0.0.1:40000
 *	json   {"time":"2026-11-30T12:34:56.789Z","level":"warn","event":"host_refused",...}
 *
 * At most LOG_LINES_PER_S lines a second are written; the rest is counted and told in one line. An
 * event that repeats with the same first two fields within a second is counted, and told with the
 * next one (repeated=N).
 */
#ifndef KVOF_BASE_LOG_H
#define KVOF_BASE_LOG_H

#include <stdbool.h>
#include <stdint.h>
#include <time.h>

enum log_level { LOG_DEBUG, LOG_INFO, LOG_WARN, LOG_ERROR, LOG_NONE };

#define LOG_LINES_PER_S 10

void log_level_set(enum log_level least);
void log_json_set(bool json);
/* For tests: where the time comes from; NULL is CLOCK_REALTIME. */
void log_clock_set(void (*clock)(struct timespec *now));
void log_write(enum log_level level, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

/* The same at any level: what is said once, at start. */
void log_notice(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* A field of an event: text, or where that is NULL the number. */
struct log_field {
	const char *key, *text;
	uint64_t number;
};
/* fields end with one whose key is NULL; the first two say what object of what. */
void log_fields(enum log_level level, const char *event, const struct log_field *fields);

#define LOG_TEXT(key, text) {(key), (text), 0}
#define LOG_NUMBER(key, number) {(key), NULL, (number)}
#define log_event(level, event, ...)                                                               \
	log_fields(level, event, (const struct log_field[]){__VA_ARGS__, {NULL, NULL, 0}})

#define log_debug(...) log_write(LOG_DEBUG, __VA_ARGS__)
#define log_info(...) log_write(LOG_INFO, __VA_ARGS__)
#define log_warn(...) log_write(LOG_WARN, __VA_ARGS__)
#define log_error(...) log_write(LOG_ERROR, __VA_ARGS__)

#endif
