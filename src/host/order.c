/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operations on one key take effect in the order they were submitted: NVMe itself promises no order
 * between commands in flight. One list a bucket, oldest first; an operation may run when no older
 * one of its key changes the value, and, if it changes the value itself, when there is no older one
 * at all.
 *
 * A command that was withdrawn but may still take effect at the controller keeps its place
 * (order_bequeath) until the controller answered or the association ended.
 *
 * On the host's loop.
 */
#include "base/hash.h"
#include "host/impl.h"

static struct list_link *order_bucket(struct order *t, const struct kv_key *key)
{
	return &t->bucket[hash_key16(key->byte, key->len) % ORDER_BUCKETS];
}

void order_init(struct order *t)
{
	for (unsigned i = 0; i < ORDER_BUCKETS; i++)
		list_init(&t->bucket[i]);
}

bool order_enter(struct order *t, struct order_node *node)
{
	struct list_link *bucket = order_bucket(t, &node->key);

	node->held = false;
	LIST_FOR_EACH(at, bucket) {
		const struct order_node *older = container_of(at, struct order_node, link);

		if (kv_key_equal(&older->key, &node->key) && (older->changes || node->changes)) {
			node->held = true;
			break;
		}
	}
#ifdef KVOF_PLANT_HOST_ORDER_IGNORED
	node->held = false;
#endif
	list_push_back(bucket, &node->link);
	return !node->held;
}

void order_leave(struct order *t, struct order_node *node,
		 void (*ready)(void *arg, struct host_op *op), void *arg)
{
	struct list_link *bucket = order_bucket(t, &node->key);
	struct kv_key key = node->key;
	bool any = false, change = false;

	must(list_linked(&node->link));
	list_remove(&node->link);
	LIST_FOR_EACH(at, bucket) {
		struct order_node *n = container_of(at, struct order_node, link);

		if (!kv_key_equal(&n->key, &key))
			continue;
		if (n->held && (n->changes ? !any : !change)) {
			n->held = false;
			ready(arg, n->op);
		}
		any = true;
		change |= n->changes;
		if (change)
			break;
	}
}

void order_bequeath(struct order_node *node, struct order_node *heir)
{
	must(!node->held);
	*heir = (struct order_node){.key = node->key, .changes = node->changes};
	list_insert_before(&node->link, &heir->link);
	list_remove(&node->link);
}
