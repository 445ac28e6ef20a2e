/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Metrics and health of a running array over HTTP: GET /metrics (Prometheus text format, rows of
 * tbl/metrics.def), GET /health (200, or 503 with the reasons). Private to cmd/.
 */
#ifndef KVOF_CMD_HTTP_H
#define KVOF_CMD_HTTP_H

#include "cmd/array.h"

struct http;

/* Port 0 takes any; *addr tells it. Return: 0; -EBUSY; -EINVAL no such address here; -ENOMEM. */
int http_open(struct sock_addr *addr, struct array *array, struct http **out);
/* From now on health is 503: the array stops. Any thread. */
void http_draining(struct http *h);
/* No request is answered any more; the memory stays until the first loop has ended. Not on a
 * loop. */
void http_stop(struct http *h);
void http_free(struct http **h);

#endif
