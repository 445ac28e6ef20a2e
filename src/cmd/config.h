/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Options of `kvof serve`, from flags and an INI file, by one table (tbl/config.def). Private to
 * cmd/. Everything is checked when it is read: past config_load() a value is one of its type and in
 * range.
 */
#ifndef KVOF_CMD_CONFIG_H
#define KVOF_CMD_CONFIG_H

#include <stdbool.h>
#include <stdint.h>

#include "loop/sock.h"

enum config_id {
#define CONFIG(section, name, type, how, least, most, standard, choices, text) CONFIG_##name,
#include "tbl/config.def"
	CONFIG_COUNT
};

#define CONFIG_VALUES_MAX 64

enum config_origin { CONFIG_STANDARD, CONFIG_FILE, CONFIG_FLAG };

struct config_value {
	enum config_origin origin;
	unsigned count;                        /* 0: empty, worked out by the program */
	char *text[CONFIG_VALUES_MAX];
};

struct config {
	struct config_value value[CONFIG_COUNT];
	char *file;                            /* of --config, or NULL */
	bool json, help, effective;
};

/**
 * config_load() - flags, then the file they name, then the standard values
 * @argc, @argv: argv[0] is the subcommand
 * @why: one sentence when it fails: what, which object, what to do
 * Return: 0; -EINVAL (wrong option or value: exit code 2).
 */
int config_load(int argc, char **argv, struct config *out, char why[512]);
void config_free(struct config *c);

bool config_is_set(const struct config *c, enum config_id id);       /* by flag or file */
const char *config_text(const struct config *c, enum config_id id);  /* "" when empty */
/* SIZE, TIME, COUNT; 0 when empty */
uint64_t config_number(const struct config *c, enum config_id id);
bool config_bool(const struct config *c, enum config_id id);

/* tcp://ADDR:PORT, tcp://[v6]:PORT; ADDR numeric. */
bool config_address_parse(const char *text, struct sock_addr *out);
/* ADDR:PORT, or PORT or :PORT on loopback; tcp:// or http:// may stand before it. */
bool config_host_port_parse(const char *text, struct sock_addr *out);
/* PATH[,size=S]; *bytes 0 without a size. path holds 256 bytes. False with a reason in why. */
bool config_drive_parse(const char *text, char path[256], uint64_t *bytes, const char **why);
void config_help(void);

#endif
