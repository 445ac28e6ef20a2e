/* SPDX-License-Identifier: Apache-2.0 */
/* Keys as text; values from and to files, whole or not at all; JSON on standard output. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/must.h"
#include "cmd/cmd.h"

static int hex_digit(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	if (c >= 'a' && c <= 'f')
		return c - 'a' + 10;
	return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

bool cmd_key_parse(const char *text, struct kv_key *key, char why[128])
{
	size_t bytes;

	*key = (struct kv_key){0};
	if (strncmp(text, "text:", 5) == 0) {
		bytes = strlen(text + 5);
		if (bytes >= 1 && bytes <= KV_KEY_BYTES_MAX) {
			key->len = (uint8_t)bytes;
			memcpy(key->byte, text + 5, bytes);
			return true;
		}
		snprintf(why, 128, "key \"%.40s\" has %zu bytes; 1 to 16 are possible", text,
			 bytes);
		return false;
	}
	if (strncmp(text, "0x", 2) == 0)
		text += 2;
	bytes = strlen(text);
	for (size_t i = 0; i < bytes; i++) {
		if (hex_digit(text[i]) < 0) {
			snprintf(why, 128, "key \"%.40s\" is not hex; write text:%.16s for text",
				 text, text);
			return false;
		}
	}
	if (bytes == 0 || bytes % 2 != 0 || bytes > 2 * KV_KEY_BYTES_MAX) {
		snprintf(why, 128, "key \"%.40s\" has %zu hex digits; 2, 4, ... 32 are possible",
			 text, bytes);
		return false;
	}
	key->len = (uint8_t)(bytes / 2);
	for (size_t i = 0; i < key->len; i++)
		key->byte[i] = (uint8_t)(hex_digit(text[2 * i]) << 4 | hex_digit(text[2 * i + 1]));
	return true;
}

void cmd_key_hex(const struct kv_key *key, char out[2 * KV_KEY_BYTES_MAX + 1])
{
	out[0] = 0;
	for (unsigned i = 0; i < key->len; i++)
		snprintf(out + 2 * (size_t)i, 3, "%02x", key->byte[i]);
}

/* --- values -------------------- */

static const char *value_name(const char *path, const char *standard)
{
	return path == NULL || strcmp(path, "-") == 0 ? standard : path;
}

static bool value_is_standard(const char *path)
{
	return path == NULL || strcmp(path, "-") == 0;
}

/* Reads to the end or to one byte more than bytes_max. 0 or errno. */
static int value_read_all(int fd, uint64_t bytes_max, struct cmd_value *out)
{
	size_t room = 64 * KiB;
	char *at = malloc(room), *more;
	ssize_t got;

	out->bytes = 0;
	while (at != NULL) {
		out->at = at;
		got = read(fd, at + out->bytes, room - out->bytes);
		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			return errno;
		out->bytes += (size_t)got;
		if (got == 0 || out->bytes > bytes_max)
			return 0;
		if (out->bytes < room)
			continue;
		room *= 2;
		more = realloc(at, room);
		if (more == NULL)
			return ENOMEM;
		at = more;
	}
	return ENOMEM;
}

/* after: what else the line says of a file that can't be read. */
static int file_read(const char *command, const char *path, uint64_t bytes_max, const char *after,
		     struct cmd_value *out)
{
	const char *name = value_name(path, "standard input");
	int fd = value_is_standard(path) ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC);
	int err;

	*out = (struct cmd_value){0};
	if (fd < 0) {
		cmd_error(command, "%s: %s%s", name, strerror(errno), after);
		return CMD_FAILED;
	}
	err = value_read_all(fd, bytes_max, out);
	if (fd != STDIN_FILENO)
		close(fd);
	if (err == 0 && out->bytes <= bytes_max)
		return CMD_DONE;
	if (err != 0)
		cmd_error(command, "%s: %s%s", name, strerror(err), after);
	else
		cmd_error(command, "%s: more than %llu bytes, the longest there can be%s", name,
			  (unsigned long long)bytes_max, after);
	free(out->at);
	*out = (struct cmd_value){0};
	return CMD_FAILED;
}

int cmd_value_read(const char *command, const char *path, uint64_t bytes_max,
		   struct cmd_value *out)
{
	return file_read(command, path, bytes_max, "; nothing was stored", out);
}

int cmd_file_read(const char *command, const char *path, uint64_t bytes_max,
		  struct cmd_value *out)
{
	return file_read(command, path, bytes_max, "", out);
}

static int value_write_all(int fd, const char *at, size_t bytes)
{
	while (bytes > 0) {
		ssize_t put = write(fd, at, bytes);

		if (put < 0 && errno == EINTR)
			continue;
		if (put <= 0)
			return put < 0 ? errno : EIO;
		at += put;
		bytes -= (size_t)put;
	}
	return 0;
}

/* The mode that a new file would get. */
static mode_t value_mode(void)
{
	mode_t mask = umask(0);

	umask(mask);
	return 0666 & ~mask;
}

static int value_replace(const char *path, const void *at, size_t bytes)
{
	size_t room = strlen(path) + sizeof(".kvof-XXXXXX");
	struct stat st;
	char *name;
	int fd, err;

	/* A pipe or a device can't be replaced, only written to. */
	if (stat(path, &st) == 0 && !S_ISREG(st.st_mode)) {
		fd = open(path, O_WRONLY | O_CLOEXEC);
		if (fd < 0)
			return errno;
		err = value_write_all(fd, at, bytes);
		return close(fd) != 0 && err == 0 ? errno : err;
	}
	name = malloc(room);
	if (name == NULL)
		return ENOMEM;
	snprintf(name, room, "%s.kvof-XXXXXX", path);
	fd = mkostemp(name, O_CLOEXEC);
	if (fd < 0) {
		err = errno;
		free(name);
		return err;
	}
	err = value_write_all(fd, at, bytes);
	if (err == 0 && fchmod(fd, value_mode()) != 0)
		err = errno;
	if (close(fd) != 0 && err == 0)
		err = errno;
	if (err == 0 && rename(name, path) != 0)
		err = errno;
	if (err != 0)
		unlink(name);
	free(name);
	return err;
}

int cmd_value_write(const char *command, const char *path, const void *at, size_t bytes)
{
	int err = value_is_standard(path) ? value_write_all(STDOUT_FILENO, at, bytes) :
					    value_replace(path, at, bytes);

	if (err == 0)
		return CMD_DONE;
	cmd_error(command, "%s: %s; it was not written", value_name(path, "standard output"),
		  strerror(err));
	return CMD_FAILED;
}

/* --- output -------------------- */

int cmd_output_end(const char *command, int code)
{
	if (fflush(stdout) == 0 && !ferror(stdout))
		return code;
	cmd_error(command, "standard output: %s", strerror(errno));
	return CMD_FAILED;
}

int cmd_json_print(const char *command, json_t *object, int code)
{
	int rc = object != NULL ? json_dumpf(object, stdout, JSON_COMPACT) : -1;
	const char *why = object == NULL ? "no memory" : strerror(errno);

	json_decref(object);
	if (rc != 0) {
		cmd_error(command, "standard output: %s; the JSON is not whole", why);
		return CMD_FAILED;
	}
	putchar('\n');
	return cmd_output_end(command, code);
}
