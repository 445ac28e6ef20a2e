/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Text for people: connect, disconnect, recovery, a failing device. One line, with the object, the
 * number and its unit. A failed request is a counter, never a line. Any thread.
 *
 * At most LOG_LINES_PER_S lines a second are written; the rest is counted and told in one line.
 */
#ifndef KVOF_BASE_LOG_H
#define KVOF_BASE_LOG_H

enum log_level { LOG_DEBUG, LOG_INFO, LOG_WARN, LOG_ERROR, LOG_NONE };

#define LOG_LINES_PER_S 10

void log_level_set(enum log_level least);
void log_write(enum log_level level, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

#define log_debug(...) log_write(LOG_DEBUG, __VA_ARGS__)
#define log_info(...) log_write(LOG_INFO, __VA_ARGS__)
#define log_warn(...) log_write(LOG_WARN, __VA_ARGS__)
#define log_error(...) log_write(LOG_ERROR, __VA_ARGS__)

#endif
