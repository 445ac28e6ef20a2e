/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading options by the table, and `kvof config`, which prints what is in force and where it came
 * from.
 *
 * Order: a flag beats the file, the file beats the standard value; a list given as flags replaces
 * the file's list whole. Unknown keys and flags are errors that name the nearest known one. Start
 * only.
 */
#include "cmd/config.h"

#include <errno.h>
#include <fcntl.h>
#include <ini.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/must.h"
#include "cmd/cmd.h"
#include "cmd/control.h"
#include "nvme/fabrics.h"
#include "store/set.h"
#include "target/target.h"

enum config_type { SIZE, TIME, COUNT, BOOL, NQN, ADDRESS, HOST_PORT, DRIVE, PATH, CHOICE };
enum config_how { ONCE, LIST, ONCE_FLAG };

#define NAME_BYTES 32
#define INI_LINE_MAX 198                       /* what inih reads whole */

struct config_row {
	const char *section, *name;
	enum config_type type;
	enum config_how how;
	uint64_t least, most;
	const char *standard, *choices, *text;
};

static const struct config_row rows[CONFIG_COUNT] = {
#define CONFIG(section, name, type, how, least, most, standard, choices, text)                     \
	{section, #name, type, how, least, most, standard, choices, text},
#include "tbl/config.def"
};

/* --- values -------------------- */

bool config_address_parse(const char *text, struct sock_addr *out)
{
	const char *host = text + 6, *colon;
	size_t host_bytes;
	uint64_t port;

	if (strncmp(text, "tcp://", 6) != 0)
		return false;
	colon = strrchr(host, ':');
	if (colon == NULL || !cmd_count_parse(colon + 1, &port) || port > UINT16_MAX)
		return false;
	host_bytes = (size_t)(colon - host);
	if (host_bytes >= 2 && host[0] == '[' && colon[-1] == ']') {
		host++;
		host_bytes -= 2;
	} else if (memchr(host, ':', host_bytes) != NULL) {
		return false;                          /* IPv6 wants its brackets */
	}
	if (host_bytes == 0 || host_bytes >= sizeof(out->host))
		return false;
	*out = (struct sock_addr){.port = (uint16_t)port};
	memcpy(out->host, host, host_bytes);
	return true;
}

bool config_host_port_parse(const char *text, struct sock_addr *out)
{
	char whole[96];
	const char *colon = strrchr(text, ':');
	int bytes;

	if (strncmp(text, "http://", 7) == 0)
		text += 7;
	if (colon == NULL || colon == text)            /* PORT, or :PORT */
		bytes = snprintf(whole, sizeof(whole), "tcp://127.0.0.1:%s",
				 colon == NULL ? text : text + 1);
	else
		bytes = snprintf(whole, sizeof(whole), "%s%s",
				 strncmp(text, "tcp://", 6) == 0 ? "" : "tcp://", text);
	return bytes > 0 && (size_t)bytes < sizeof(whole) && config_address_parse(whole, out);
}

bool config_drive_parse(const char *text, char path[256], uint64_t *bytes, const char **why)
{
	const char *comma = strrchr(text, ',');
	size_t path_bytes = strlen(text);

	*bytes = 0;
	if (comma != NULL) {
		path_bytes = (size_t)(comma - text);
		if (strncmp(comma, ",size=", 6) != 0) {
			*why = "after the comma only size=S is known";
			return false;
		}
		if (!cmd_bytes_parse(comma + 6, false, bytes) || *bytes == 0) {
			*why = "size= needs a size with a unit, such as size=4GiB";
			return false;
		}
	}
	if (memmem(text, path_bytes, ",size=", 6) != NULL) {
		*why = "size= is given twice";
		return false;
	}
	if (path_bytes == 0 || path_bytes >= 256) {
		*why = "the path is empty or too long";
		return false;
	}
	memcpy(path, text, path_bytes);
	path[path_bytes] = '\0';
	if (strcmp(path, "mem") == 0 && *bytes == 0) {
		*why = "memory needs a size, such as mem,size=1GiB";
		return false;
	}
	return true;
}

static bool choice_has(const char *choices, const char *word)
{
	size_t bytes = strlen(word);

	for (const char *at = choices; bytes > 0; at++) {
		const char *end = strchrnul(at, '|');

		if ((size_t)(end - at) == bytes && memcmp(at, word, bytes) == 0)
			return true;
		at = end;
		if (*at == '\0')
			return false;
	}
	return false;
}

static bool bool_parse(const char *text, bool *out)
{
	static const char *const yes[] = {"yes", "true", "on", "1"}, *const no[] = {"no", "false",
		"off", "0"};

	for (unsigned i = 0; i < ARRAY_COUNT(yes); i++) {
		if (strcmp(text, yes[i]) == 0 || strcmp(text, no[i]) == 0) {
			*out = strcmp(text, yes[i]) == 0;
			return true;
		}
	}
	return false;
}

/* NULL when the text is a value of this row; else what is wrong with it. */
static const char *value_wrong(const struct config_row *row, const char *text)
{
	char path[256];
	struct sock_addr addr;
	const char *why;
	uint64_t n = 0;
	bool flag;

	switch (row->type) {
	case NQN:
		return nv_nqn_check(text) ? NULL :
			"not an NQN (nqn.YYYY-MM.reverse.domain:name, at most 223 bytes)";
	case ADDRESS:
		return config_address_parse(text, &addr) ? NULL :
			"not an address (tcp://ADDR:PORT)";
	case HOST_PORT:
		return config_host_port_parse(text, &addr) ? NULL :
			"not an address (ADDR:PORT, or PORT on loopback)";
	case PATH:
		return text[0] != '\0' && strlen(text) < CONTROL_PATH_BYTES ? NULL :
			"the path is empty or longer than 107 bytes";
	case DRIVE:
		return config_drive_parse(text, path, &n, &why) ? NULL : why;
	case BOOL:
		return bool_parse(text, &flag) ? NULL : "not yes or no";
	case CHOICE:
		return choice_has(row->choices, text) ? NULL : "not one of the choices";
	case SIZE:
		if (!cmd_bytes_parse(text, false, &n))
			return "not a size with a unit, such as 64MiB";
		break;
	case TIME:
		if (!cmd_time_parse(text, false, &n))
			return "not a time with a unit, such as 5s";
		break;
	case COUNT:
		if (!cmd_count_parse(text, &n))
			return "not a count";
		break;
	}
	return n < row->least || n > row->most ? "out of range" : NULL;
}

/* --- names -------------------- */

static const char *dashed(const char *name, char out[NAME_BYTES])
{
	unsigned i = 0;

	for (; name[i] != '\0' && i < NAME_BYTES - 1; i++)
		out[i] = name[i] == '_' ? '-' : name[i];
	out[i] = '\0';
	return out;
}

static const char *config_flag(enum config_id id)
{
	static char out[CONFIG_COUNT][NAME_BYTES + 2];
	char name[NAME_BYTES];

	snprintf(out[id], sizeof(out[id]), "--%s", dashed(rows[id].name, name));
	return out[id];
}

static const char *nearest_option(const char *word)
{
	static char name[CONFIG_COUNT][NAME_BYTES];
	const char *names[CONFIG_COUNT + 1] = {NULL};
	char want[NAME_BYTES];

	for (unsigned i = 0; i < CONFIG_COUNT; i++)
		names[i] = dashed(rows[i].name, name[i]);
	return cmd_nearest(dashed(word, want), names);
}

static int row_find(const char *word)
{
	char want[NAME_BYTES], name[NAME_BYTES];

	if (strlen(word) >= NAME_BYTES)
		return -1;
	dashed(word, want);
	for (unsigned i = 0; i < CONFIG_COUNT; i++)
		if (strcmp(dashed(rows[i].name, name), want) == 0)
			return (int)i;
	return -1;
}

/* --- reading -------------------- */

static void value_clear(struct config_value *v)
{
	for (unsigned i = 0; i < v->count; i++)
		free(v->text[i]);
	*v = (struct config_value){0};
}

void config_free(struct config *c)
{
	for (unsigned i = 0; i < CONFIG_COUNT; i++)
		value_clear(&c->value[i]);
	free(c->file);
	*c = (struct config){0};
}

/* Adds one value; where says "--kv" or "F: [array] kv" for the sentence. */
static int value_add(struct config *c, unsigned id, enum config_origin origin, const char *where,
		     const char *text, char why[512])
{
	const struct config_row *row = &rows[id];
	struct config_value *v = &c->value[id];
	const char *wrong = value_wrong(row, text);

	if (v->count > 0 && v->origin > origin)
		return 0;                              /* a flag beats the file */
	if (v->count > 0 && v->origin < origin)
		value_clear(v);
	if (wrong == NULL && v->count > 0 && row->how != LIST)
		wrong = "given twice";
	if (wrong == NULL && v->count == CONFIG_VALUES_MAX)
		wrong = "given too often";
	if (wrong != NULL) {
		snprintf(why, 512, "%.200s: %.100s: %s%s%s", where, text, wrong,
			 row->type == CHOICE ? ": " : "", row->choices);
		return -EINVAL;
	}
	v->origin = origin;
	v->text[v->count] = strdup(text);
	if (v->text[v->count] == NULL)
		return -ENOMEM;
	v->count++;
	return 0;
}

struct ini_reading {
	struct config *config;
	int rc;
	char *why;
};

static int ini_pair(void *user, const char *section, const char *name, const char *value)
{
	struct ini_reading *r = user;
	char where[320];
	const char *near;
	int id = row_find(name);

	if (r->rc != 0)
		return 1;                              /* the first error is told */
	snprintf(where, sizeof(where), "[%.60s] %.60s", section, name);
	if (id < 0 || rows[id].how == ONCE_FLAG) {
		near = id < 0 ? nearest_option(name) : NULL;
		snprintf(r->why, 512, "%s: %s%s%s", where,
			 id < 0 ? "no such key" : "only possible as a flag",
			 near != NULL ? "; nearest is " : "", near != NULL ? near : "");
		r->rc = -EINVAL;
	} else if (strcmp(section, rows[id].section) != 0) {
		snprintf(r->why, 512, "%s: this key belongs to section [%s]", where,
			 rows[id].section);
		r->rc = -EINVAL;
	} else {
		r->rc = value_add(r->config, (unsigned)id, CONFIG_FILE, where, value, r->why);
	}
	return r->rc == 0;
}

static int file_check(FILE *f, const char *path, char why[512])
{
	unsigned line = 1, bytes = 0;

	for (int ch = getc(f); ch != EOF; ch = getc(f)) {
		if (ch == '\n') {
			line++;
			bytes = 0;
		} else if (++bytes > INI_LINE_MAX || ch == '\0') {
			snprintf(why, 512, "config file %.300s:%u: %s", path, line,
				 ch == '\0' ? "a NUL byte: not a text file" : "line too long");
			return -EINVAL;
		}
	}
	if (ferror(f)) {
		snprintf(why, 512, "config file %.300s: %s", path, strerror(errno));
		return -EINVAL;
	}
	if (fseek(f, 0, SEEK_SET) == 0)
		return 0;
	snprintf(why, 512, "config file %.300s: %s; it is read twice, so it can't be a pipe", path,
		 strerror(errno));
	return -EINVAL;
}

/* A pipe that nobody writes to would be waited for; it is refused all the same. */
static FILE *fopen_at_once(const char *path)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	FILE *f = fd >= 0 ? fdopen(fd, "r") : NULL;

	if (f == NULL && fd >= 0)
		close(fd);
	return f;
}

static int file_read(struct config *c, const char *path, char why[512])
{
	char inner[512] = "not `key = value` or `[section]`";
	struct ini_reading r = {c, 0, inner};
	FILE *f = fopen_at_once(path);
	int rc, line;

	if (f == NULL) {
		snprintf(why, 512, "config file %.300s: %s", path, strerror(errno));
		return -EINVAL;
	}
	rc = file_check(f, path, why);
	if (rc == 0) {
		line = ini_parse_file(f, ini_pair, &r);
		if (line != 0) {
			snprintf(why, 512, "config file %.200s:%d: %.280s", path, line, inner);
			rc = -EINVAL;
		}
	}
	fclose(f);
	return rc;
}

static int unknown_flag(const char *word, size_t bytes, char why[512])
{
	char name[NAME_BYTES] = "";
	const char *near = NULL;

	if (bytes > 2 && bytes - 2 < sizeof(name)) {
		memcpy(name, word + 2, bytes - 2);
		near = nearest_option(name);
	}
	snprintf(why, 512, "%.*s: no such option%s%s", (int)(bytes < 100 ? bytes : 100), word,
		 near != NULL ? "; nearest is --" : "; kvof serve --help lists them",
		 near != NULL ? near : "");
	return -EINVAL;
}

/* One flag at argv[*at]; its value may be the next argument or follow '='. */
static int flag_read(struct config *c, int argc, char **argv, int *at, char why[512])
{
	const char *word = argv[*at], *equals = strchrnul(word, '='), *value;
	size_t bytes = (size_t)(equals - word);
	char name[NAME_BYTES] = "";
	int id = -1;

	if (strncmp(word, "--", 2) != 0) {
		snprintf(why, 512, "%.100s: an argument that no option asks for", word);
		return -EINVAL;
	}
	if (bytes - 2 < sizeof(name)) {
		memcpy(name, word + 2, bytes - 2);
		id = row_find(name);
	}
	if (strcmp(name, "config") != 0 && id < 0)
		return unknown_flag(word, bytes, why);
	if (id >= 0 && rows[id].type == BOOL && *equals == '\0')
		return value_add(c, (unsigned)id, CONFIG_FLAG, word, "yes", why);
	value = *equals == '=' ? equals + 1 : *at + 1 < argc ? argv[++*at] : NULL;
	if (value == NULL) {
		snprintf(why, 512, "%.100s: needs a value", word);
		return -EINVAL;
	}
	if (id >= 0)
		return value_add(c, (unsigned)id, CONFIG_FLAG, config_flag(id), value, why);
	if (c->file != NULL) {
		snprintf(why, 512, "--config: given twice");
		return -EINVAL;
	}
	c->file = strdup(value);
	return c->file == NULL ? -ENOMEM : 0;
}

int config_load(int argc, char **argv, struct config *out, char why[512])
{
	int rc = 0;

	*out = (struct config){0};
	snprintf(why, 512, "no memory");
	for (int i = 1; rc == 0 && i < argc; i++) {
		if (strcmp(argv[i], "--json") == 0)
			out->json = true;
		else if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0)
			out->help = true;
		else if (strcmp(argv[i], "--effective") == 0)
			out->effective = true;
		else
			rc = flag_read(out, argc, argv, &i, why);
	}
	if (rc == 0 && out->file != NULL)
		rc = file_read(out, out->file, why);
	for (unsigned i = 0; rc == 0 && i < CONFIG_COUNT; i++)
		if (out->value[i].count == 0 && rows[i].standard[0] != '\0')
			rc = value_add(out, i, CONFIG_STANDARD, rows[i].name, rows[i].standard,
				       why);
	if (rc == 0)
		return 0;
	config_free(out);
	for (char *at = why; *at != '\0'; at++)        /* one line, whatever was typed */
		if ((unsigned char)*at < ' ' || *at == 127)
			*at = '?';
	return rc;
}

bool config_is_set(const struct config *c, enum config_id id)
{
	return c->value[id].count > 0 && c->value[id].origin != CONFIG_STANDARD;
}

const char *config_text(const struct config *c, enum config_id id)
{
	return c->value[id].count > 0 ? c->value[id].text[0] : "";
}

uint64_t config_number(const struct config *c, enum config_id id)
{
	const char *text = config_text(c, id);
	uint64_t n = 0;

	if (text[0] == '\0')
		return 0;
	if (rows[id].type == SIZE)
		must(cmd_bytes_parse(text, false, &n));
	else if (rows[id].type == TIME)
		must(cmd_time_parse(text, false, &n));
	else
		must(rows[id].type == COUNT && cmd_count_parse(text, &n));
	return n;
}

bool config_bool(const struct config *c, enum config_id id)
{
	bool on = false;

	must(rows[id].type == BOOL && bool_parse(config_text(c, id), &on));
	return on;
}

/* How help calls the value of a row; a flag has none. */
static const char *value_name(const struct config_row *row)
{
	static const char *const names[] = {[SIZE] = "SIZE", [TIME] = "TIME", [COUNT] = "N",
		[BOOL] = "", [NQN] = "NQN", [ADDRESS] = "ADDRESS", [HOST_PORT] = "ADDR:PORT",
		[DRIVE] = "DRIVE", [PATH] = "PATH"};

	return row->type == CHOICE ? row->choices : names[row->type];
}

void config_help(void)
{
	char name[NAME_BYTES], head[80];

	for (unsigned i = 0; i < CONFIG_COUNT; i++) {
		snprintf(head, sizeof(head), "--%s %s", dashed(rows[i].name, name),
			 value_name(&rows[i]));
		printf("  %-28s %s%s%s%s\n", head, rows[i].text,
		       rows[i].standard[0] != '\0' ? " Default: " : "", rows[i].standard,
		       rows[i].how == LIST ? " (may be repeated)" : "");
	}
}

/* --- kvof config -------------------- */

static const char *origin_name(const struct config *c, const struct config_value *v)
{
	if (v->count > 0 && v->origin == CONFIG_FLAG)
		return "flag";
	return v->count > 0 && v->origin == CONFIG_FILE ? c->file : "default";
}

static json_t *row_json(const struct config *c, unsigned id)
{
	const struct config_value *v = &c->value[id];
	json_t *values = json_array(), *row;
	char name[NAME_BYTES];

	for (unsigned i = 0; i < v->count; i++)
		json_array_append_new(values, json_string(v->text[i]));
	row = json_pack("{s:s, s:s, s:o, s:s}", "section", rows[id].section, "name",
			dashed(rows[id].name, name), "values", values, "origin",
			origin_name(c, v));
	must(row != NULL);
	return row;
}

static int print_json(const struct config *c)
{
	json_t *all = json_array();

	for (unsigned i = 0; i < CONFIG_COUNT; i++)
		json_array_append_new(all, row_json(c, i));
	return cmd_json_print("config", all, CMD_DONE);
}

static void print_text(const struct config *c)
{
	const char *section = "";
	char name[NAME_BYTES];

	for (unsigned i = 0; i < CONFIG_COUNT; i++) {
		const struct config_value *v = &c->value[i];

		if (strcmp(section, rows[i].section) != 0)
			printf("%s[%s]\n", i > 0 ? "\n" : "", rows[i].section);
		section = rows[i].section;
		if (v->count == 0)
			printf("; %s =   (%s)\n", dashed(rows[i].name, name),
			       strstr(rows[i].text, "Empty: ") != NULL ? "worked out" : "not set");
		for (unsigned k = 0; k < v->count; k++)
			printf("%s%s = %s   ; %s%s\n", rows[i].how == ONCE_FLAG ? "; " : "",
			       dashed(rows[i].name, name), v->text[k], origin_name(c, v),
			       rows[i].how == ONCE_FLAG ? ", only possible as a flag" : "");
	}
}

#define CONFIG_USAGE \
	"usage: kvof config --effective [--json] [--config F] [options of serve]"

int cmd_config(int argc, char **argv)
{
	struct config c;
	char why[512];
	int code;

	if (config_load(argc, argv, &c, why) != 0) {
		cmd_error("config", "%s", why);
		return CMD_USAGE;
	}
	if (c.help) {
		printf("%s\n\nShows every option of an array, its value and where it is from.\n\n",
		       CONFIG_USAGE);
		config_help();
		code = cmd_output_end("config", CMD_DONE);
	} else if (!c.effective) {
		cmd_error("config", "%s", CONFIG_USAGE);
		code = CMD_USAGE;
	} else if (c.json) {
		code = print_json(&c);
	} else {
		print_text(&c);
		code = cmd_output_end("config", CMD_DONE);
	}
	config_free(&c);
	return code;
}
