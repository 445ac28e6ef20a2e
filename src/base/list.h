/* SPDX-License-Identifier: Apache-2.0 */
/* A doubly linked list with its links inside the members. The head is a link of its own. */
#ifndef KVOF_BASE_LIST_H
#define KVOF_BASE_LIST_H

#include <stdbool.h>

#include "base/must.h"

struct list_link {
	struct list_link *prev, *next;     /* both NULL when on no list */
};

static inline void list_init(struct list_link *head)
{
	head->prev = head->next = head;
}

static inline bool list_empty(const struct list_link *head)
{
	return head->next == head;
}

static inline bool list_linked(const struct list_link *link)
{
	return link->next != NULL;
}

static inline void list_insert_before(struct list_link *at, struct list_link *link)
{
	must(link->next == NULL && link->prev == NULL);
	link->prev = at->prev;
	link->next = at;
	at->prev->next = link;
	at->prev = link;
}

static inline void list_push_back(struct list_link *head, struct list_link *link)
{
	list_insert_before(head, link);
}

static inline void list_push_front(struct list_link *head, struct list_link *link)
{
	list_insert_before(head->next, link);
}

static inline void list_remove(struct list_link *link)
{
	must(link->next != NULL && link->prev != NULL);
	link->prev->next = link->next;
	link->next->prev = link->prev;
	link->prev = link->next = NULL;
}

static inline struct list_link *list_pop_front(struct list_link *head)
{
	struct list_link *link = head->next;

	if (link == head)
		return NULL;
	list_remove(link);
	return link;
}

#define LIST_FOR_EACH(link, head)                                                                  \
	for (struct list_link *link = (head)->next; link != (head); link = link->next)
/* The member in hand may be removed in the body. */
#define LIST_FOR_EACH_SAFE(link, head)                                                             \
	for (struct list_link *link = (head)->next, *link##_next = link->next; link != (head);     \
	     link = link##_next, link##_next = link->next)

#endif
