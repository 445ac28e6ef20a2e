/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lines to standard error with a time, a level and a limit on their rate (abuse case L18: a storm
 * of bad PDUs must not become a storm of lines). State is one atomic window; any thread.
 */
#include "base/log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

static _Atomic int log_least = LOG_WARN;
static _Atomic long log_second;
static _Atomic unsigned log_lines, log_dropped;

void log_level_set(enum log_level least)
{
	atomic_store(&log_least, (int)least);
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

void log_write(enum log_level level, const char *format, ...)
{
	static const char *const name[] = {"debug", "info", "warn", "error"};
	char line[512];
	struct timespec now;
	struct tm utc;
	va_list args;
	int dropped, used, more;

	if ((int)level < atomic_load(&log_least) || level >= LOG_NONE)
		return;
	clock_gettime(CLOCK_REALTIME, &now);
	dropped = log_admit((long)now.tv_sec);
	if (dropped < 0)
		return;
	gmtime_r(&now.tv_sec, &utc);
	used = snprintf(line, sizeof(line), "%02d:%02d:%02d.%03ld %s ", utc.tm_hour, utc.tm_min,
			utc.tm_sec, now.tv_nsec / 1000000, name[level]);
	if (dropped > 0)
		used += snprintf(line + used, sizeof(line) - (size_t)used,
				 "(%d lines left out before) ", dropped);
	va_start(args, format);
	more = vsnprintf(line + used, sizeof(line) - (size_t)used - 1, format, args);
	va_end(args);
	if (more > 0)
		used += more;
	if (used > (int)sizeof(line) - 2)
		used = (int)sizeof(line) - 2;
	line[used++] = '\n';
	if (write(STDERR_FILENO, line, (size_t)used) < 0)
		return;                    /* nobody left to tell */
}
