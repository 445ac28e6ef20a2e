/* SPDX-License-Identifier: Apache-2.0 */
/* What the control socket can be asked for: `kvof ns` and `kvof subsys`. Private to cmd/. */
#ifndef KVOF_CMD_MANAGE_H
#define KVOF_CMD_MANAGE_H

#include "cmd/array.h"
#include "cmd/control.h"

struct manage {
	struct array *array;
	const char *nqn;             /* the subsystem that is meant when none is named */
	bool others_listen;          /* an address that is not loopback is listened at */
};

/* As control_answer: arg is a struct manage. docs/target.md has requests and answers. */
json_t *manage_answer(void *arg, const json_t *request);

#endif
