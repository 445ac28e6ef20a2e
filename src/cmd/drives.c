/* SPDX-License-Identifier: Apache-2.0 */
/* --drive may be given many times, which cmd_args() does not know: it is taken out before. */
#include "cmd/drives.h"

#include <string.h>

#include "cmd/cmd.h"
#include "cmd/config.h"

static int drive_add(const char *command, struct cmd_drives *out, const char *text)
{
	struct store_drive *d = &out->drive[out->count];
	const char *why = NULL;

	if (out->count == STORE_DRIVES_MAX) {
		cmd_error(command, "--drive %s: at most %u drives", text, STORE_DRIVES_MAX);
		return CMD_USAGE;
	}
	*d = (struct store_drive){.path = out->path[out->count]};
	if (!config_drive_parse(text, out->path[out->count], &d->bytes, &why)) {
		cmd_error(command, "--drive %s: %s", text, why);
		return CMD_USAGE;
	}
	out->count++;
	return -1;
}

int cmd_drives_take(const char *command, int *argc, char **argv, struct cmd_drives *out)
{
	int kept = 1;
	bool help = false;

	out->count = 0;
	for (int i = 1; i < *argc; i++) {
		const char *text = NULL;
		int rc;

		help |= strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0;
		if (strncmp(argv[i], "--drive=", 8) == 0)
			text = argv[i] + 8;
		else if (strcmp(argv[i], "--drive") == 0 && i + 1 < *argc)
			text = argv[++i];
		if (text == NULL) {
			argv[kept++] = argv[i];
			continue;
		}
		rc = drive_add(command, out, text);
		if (rc >= 0)
			return rc;
	}
	*argc = kept;
	argv[kept] = NULL;
	if (out->count > 0 || help)
		return -1;
	cmd_error(command, "no drive: name at least one with --drive PATH[,size=S]");
	return CMD_USAGE;
}
