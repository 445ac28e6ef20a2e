/* SPDX-License-Identifier: Apache-2.0 */
/* An array as a device: the initiator says it all itself. Owned by one loop. */
#include "cache/dev.h"

#include <errno.h>
#include <stdlib.h>

#include "base/must.h"

#define DEV_HOST_MAGIC 0x64686f73u

struct dev_host {
	struct dev dev;
	uint32_t magic;
	struct host *host;                 /* NULL: not open yet, or closing */
};

static struct dev_host *self(const struct dev *dev)
{
	struct dev_host *d = dev->self;

	OBJ_CHECK(d, DEV_HOST_MAGIC);
	return d;
}

static void dev_host_submit(struct dev *dev, struct host_op *op)
{
	host_submit(self(dev)->host, op);
}

static void dev_host_cancel(struct dev *dev, struct host_op *op)
{
	if (self(dev)->host != NULL)       /* else all of it ends already */
		host_cancel(self(dev)->host, op);
}

static bool dev_host_live(const struct dev *dev)
{
	return self(dev)->host != NULL && host_state(self(dev)->host) == HOST_LIVE;
}

static void dev_host_stat(const struct dev *dev, struct dev_stat *out)
{
	struct host_stat stat = {0};

	if (self(dev)->host != NULL)
		host_stat(self(dev)->host, &stat);
	*out = (struct dev_stat){
		.live = dev_host_live(dev),
		.device_read_bytes = stat.bytes_in,
		.device_write_bytes = stat.bytes_out,
		.reconnects = stat.reconnects,
	};
}

static const struct dev_ops dev_host_ops = {
	.name = "array",
	.submit = dev_host_submit,
	.cancel = dev_host_cancel,
	.live = dev_host_live,
	.stat = dev_host_stat,
};

int dev_host_make(struct dev **out)
{
	struct dev_host *d = calloc(1, sizeof(*d));

	if (d == NULL)
		return -ENOMEM;
	OBJ_INIT(d, DEV_HOST_MAGIC);
	d->dev = (struct dev){&dev_host_ops, d};
	*out = &d->dev;
	return 0;
}

void dev_host_set(struct dev *dev, struct host *host)
{
	self(dev)->host = host;
}

void dev_host_free(struct dev **dev)
{
	struct dev_host *d = self(*dev);

	*dev = NULL;
	d->magic = 0;
	free(d);
}
