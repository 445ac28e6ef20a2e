/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lines to standard error with a time, a level and a limit on their rate (abuse case L18: a storm
 * of bad PDUs must not become a storm of lines). State is one atomic window, and a small table of
 * the last events for those that repeat; who finds that table in use writes its line all the same.
 * Any thread.
 *
 * Text that comes from a peer (names, addresses) is quoted and escaped: one event is one line, and
 * a JSON line is one object whatever the bytes. A field that does not fit whole is left out.
 */
#include "base/log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define LINE_BYTES 2048
#define REPEATS 16

static _Atomic int log_least = LOG_WARN;
static _Atomic bool log_json;
static _Atomic long log_second;
static _Atomic unsigned log_lines, log_dropped;

static void (*log_clock)(struct timespec *now);        /* set before threads */

static atomic_flag repeats_busy = ATOMIC_FLAG_INIT;
static struct repeat {
	uint64_t key;
	long second;
	unsigned count;
} repeats[REPEATS];

static const char *const level_name[] = {"debug", "info", "warn", "error"};

void log_level_set(enum log_level least)
{
	atomic_store(&log_least, (int)least);
}

void log_json_set(bool json)
{
	atomic_store(&log_json, json);
}

void log_clock_set(void (*clock)(struct timespec *now))
{
	log_clock = clock;
}

static void now_take(struct timespec *now)
{
	if (log_clock != NULL)
		log_clock(now);
	else
		clock_gettime(CLOCK_REALTIME, now);
}

/* Returns how many lines were dropped in the window that just closed, or -1 to drop this line. */
static int log_admit(long second)
{
	long window = atomic_load(&log_second);

	if (window != second && atomic_compare_exchange_strong(&log_second, &window, second)) {
		atomic_store(&log_lines, 1);
		return (int)atomic_exchange(&log_dropped, 0);
	}
	if (atomic_fetch_add(&log_lines, 1) < LOG_LINES_PER_S)
		return 0;
	atomic_fetch_add(&log_dropped, 1);
	return -1;
}

/* --- one line being written -------------------- */

struct line {
	char at[LINE_BYTES];
	size_t used;
	bool json;
};

/* All of it or nothing; room for the end of the line is kept. */
static bool line_add(struct line *l, const char *text, size_t bytes)
{
	if (bytes > sizeof(l->at) - 4 - l->used)
		return false;
	memcpy(l->at + l->used, text, bytes);
	l->used += bytes;
	return true;
}

static bool plain(const char *text)
{
	if (*text == '\0')
		return false;
	for (; *text != '\0'; text++)
		if ((unsigned char)*text <= ' ' || (unsigned char)*text > 126 || *text == '"' ||
		    *text == '\\' || *text == '=')
			return false;
	return true;
}

static bool text_add(struct line *l, const char *text)
{
	bool fits = line_add(l, "\"", 1);

	for (; fits && *text != '\0'; text++) {
		unsigned char c = (unsigned char)*text;
		char out[8];
		int bytes;

		if (c == '"' || c == '\\')
			bytes = snprintf(out, sizeof(out), "\\%c", c);
		else if (c < ' ' || c > 126)
			bytes = snprintf(out, sizeof(out), "\\u%04x", c);
		else
			bytes = snprintf(out, sizeof(out), "%c", c);
		fits = line_add(l, out, (size_t)bytes);
	}
	return fits && line_add(l, "\"", 1);
}

static void field_add(struct line *l, const char *key, const char *text, uint64_t number)
{
	size_t begin = l->used;
	char out[64];
	int bytes = snprintf(out, sizeof(out), l->json ? ",\"%s\":" : " %s=", key);
	bool fits = line_add(l, out, (size_t)bytes);

	if (text == NULL) {
		bytes = snprintf(out, sizeof(out), "%llu", (unsigned long long)number);
		fits = fits && line_add(l, out, (size_t)bytes);
	} else if (!l->json && plain(text)) {
		fits = fits && line_add(l, text, strlen(text));
	} else {
		fits = fits && text_add(l, text);
	}
	if (!fits)
		l->used = begin;
}

/* False: the line is one too many in this second. */
static bool line_begin(struct line *l, enum log_level level, const struct timespec *now)
{
	int dropped = log_admit((long)now->tv_sec), bytes;
	struct tm utc;

	if (dropped < 0)
		return false;
	gmtime_r(&now->tv_sec, &utc);
	l->used = 0;
	l->json = atomic_load(&log_json);
	if (l->json)
		bytes = snprintf(l->at, sizeof(l->at), "{\"time\":\"%04d-%02d-%02dT%02d:%02d:%02d"
				 ".%03ldZ\",\"level\":\"%s\"", utc.tm_year + 1900, utc.tm_mon + 1,
				 utc.tm_mday, utc.tm_hour, utc.tm_min, utc.tm_sec,
				 now->tv_nsec / 1000000, level_name[level]);
	else
		bytes = snprintf(l->at, sizeof(l->at), "%02d:%02d:%02d.%03ld %s", utc.tm_hour,
				 utc.tm_min, utc.tm_sec, now->tv_nsec / 1000000, level_name[level]);
	l->used = (size_t)bytes;
	if (dropped > 0)
		field_add(l, "left_out", NULL, (uint64_t)dropped);
	return true;
}

static void line_end(struct line *l)
{
	if (l->json)
		l->at[l->used++] = '}';
	l->at[l->used++] = '\n';
	if (write(STDERR_FILENO, l->at, l->used) < 0)
		return;                    /* nobody left to tell */
}

/* --- lines and events -------------------- */

static void text_write(enum log_level level, const char *format, va_list args)
{
	struct timespec now;
	struct line line;
	char text[512];

	now_take(&now);
	if (!line_begin(&line, level, &now))
		return;
	vsnprintf(text, sizeof(text), format, args);
	if (line.json) {
		field_add(&line, "text", text, 0);
	} else {
		for (char *at = text; *at != '\0'; at++)
			if ((unsigned char)*at < ' ' || *at == 127)
				*at = '?';
		(void)line_add(&line, " ", 1);
		(void)line_add(&line, text, strlen(text));
	}
	line_end(&line);
}

void log_write(enum log_level level, const char *format, ...)
{
	va_list args;

	if ((int)level < atomic_load(&log_least) || level >= LOG_NONE)
		return;
	va_start(args, format);
	text_write(level, format, args);
	va_end(args);
}

void log_notice(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	text_write(LOG_INFO, format, args);
	va_end(args);
}

/* FNV-1a; a collision hides a line for a second, no more. */
static uint64_t key_add(uint64_t key, const char *text)
{
	for (; *text != '\0'; text++)
		key = (key ^ (unsigned char)*text) * UINT64_C(0x100000001b3);
	return key;
}

static uint64_t key_of(const char *event, const struct log_field *fields)
{
	uint64_t key = key_add(UINT64_C(0xcbf29ce484222325), event);

	for (unsigned i = 0; i < 2 && fields[i].key != NULL; i++)
		key = fields[i].text != NULL ? key_add(key, fields[i].text) :
			(key ^ fields[i].number) * UINT64_C(0x100000001b3);
	return key;
}

/* How often it was held back before, or -1: it was told less than a second ago, and is counted. */
static int repeat_admit(uint64_t key, long second)
{
	struct repeat *r = &repeats[key % REPEATS];
	int count = 0;

	if (atomic_flag_test_and_set(&repeats_busy))
		return 0;
	if (r->key == key && second >= r->second && second - r->second < 1) {
		r->count++;
		count = -1;
	} else {
		count = r->key == key ? (int)r->count : 0;
		*r = (struct repeat){key, second, 0};
	}
	atomic_flag_clear(&repeats_busy);
	return count;
}

void log_fields(enum log_level level, const char *event, const struct log_field *fields)
{
	struct timespec now;
	struct line line;
	int repeated;

	if ((int)level < atomic_load(&log_least) || level >= LOG_NONE)
		return;
	now_take(&now);
	repeated = repeat_admit(key_of(event, fields), (long)now.tv_sec);
	if (repeated < 0 || !line_begin(&line, level, &now))
		return;
	field_add(&line, "event", event, 0);
	for (; fields->key != NULL; fields++)
		field_add(&line, fields->key, fields->text, fields->number);
	if (repeated > 0)
		field_add(&line, "repeated", NULL, (uint64_t)repeated);
	line_end(&line);
}
