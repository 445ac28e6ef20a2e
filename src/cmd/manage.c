/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests of the control socket. Each is checked whole first: an unknown member, a wrong type or a
 * value out of range is refused with its name, and nothing has been changed then. Runs on a
 * control thread, of which there are several.
 */
#include "cmd/manage.h"

#include <errno.h>
#include <semaphore.h>
#include <stdlib.h>
#include <string.h>

#include "base/must.h"
#include "cmd/cmd.h"
#include "nvme/fabrics.h"

enum member_type { TEXT, NUMBER, YES_NO, NAMES };

struct member {
	const char *name;
	enum member_type type;
	const char *of;              /* the commands that take it, one letter each */
};

/* c create, r rm, l ls of a namespace; C, R, L of a subsystem */
static const struct member members[] = {
	{"command", TEXT, "crlCRL"}, {"subsystem", TEXT, "crlCR"}, {"kind", TEXT, "c"},
	{"size_bytes", NUMBER, "c"}, {"nsid", NUMBER, "cr"}, {"block_bytes", NUMBER, "c"},
	{"on_full", TEXT, "c"}, {"stripe", YES_NO, "c"}, {"value_bytes_max", NUMBER, "c"},
	{"hosts", NAMES, "C"},
};

static bool type_is(const json_t *value, enum member_type type)
{
	switch (type) {
	case TEXT:
		return json_is_string(value);
	case NUMBER:
		return json_is_integer(value) && json_integer_value(value) >= 0;
	case YES_NO:
		return json_is_boolean(value);
	default:
		break;
	}
	for (size_t i = 0; i < json_array_size(value); i++)
		if (!json_is_string(json_array_get(value, i)))
			return false;
	return json_is_array(value) && json_array_size(value) <= SET_HOSTS_MAX;
}

/* NULL when every member is one that this command takes. */
static json_t *members_check(const json_t *request, char letter)
{
	json_t *value;
	const char *key;

	json_object_foreach((json_t *)(uintptr_t)request, key, value) {
		const struct member *m = NULL;

		for (unsigned i = 0; m == NULL && i < ARRAY_COUNT(members); i++)
			if (strcmp(members[i].name, key) == 0 && strchr(members[i].of, letter))
				m = &members[i];
		if (m == NULL)
			return control_error(CMD_USAGE, "%.60s: not a member of this request", key);
		if (!type_is(value, m->type))
			return control_error(CMD_USAGE, "%s: of the wrong type, or out of range",
					     key);
	}
	return NULL;
}

static const char *text_of(const json_t *request, const char *name, const char *otherwise)
{
	const json_t *value = json_object_get(request, name);

	return value != NULL ? json_string_value(value) : otherwise;
}

static uint64_t number_of(const json_t *request, const char *name)
{
	return (uint64_t)json_integer_value(json_object_get(request, name));
}

static json_t *answer_of(int code, const char *why, json_t *good)
{
	if (code != 0) {
		json_decref(good);
		return control_error(code, "%s", why);
	}
	json_object_set_new(good, "ok", json_true());
	return good;
}

static void uuid_text(const uint8_t uuid[16], char out[37])
{
	char *at = out;

	for (unsigned i = 0; i < 16; i++) {
		if (i == 4 || i == 6 || i == 8 || i == 10)
			*at++ = '-';
		at += snprintf(at, 3, "%02x", uuid[i]);
	}
}

static json_t *ns_json(const struct set_ns *ns, const char *nqn)
{
	char uuid[37];
	json_t *out;

	uuid_text(ns->uuid, uuid);
	out = json_pack("{s:s, s:i, s:s, s:s, s:I, s:i}", "subsystem", nqn, "nsid", (int)ns->nsid,
			"kind", ns->kind == SET_KV ? "kv" : "block", "uuid", uuid,
			"capacity_bytes", (json_int_t)ns->cap_bytes, "shards", (int)ns->shards);
	must(out != NULL);
	if (ns->kind == SET_BLOCK) {
		json_object_set_new(out, "size_bytes", json_integer((json_int_t)ns->bytes));
		json_object_set_new(out, "block_bytes", json_integer(ns->block_bytes));
	} else {
		json_object_set_new(out, "on_full", json_string(ns->evict ? "evict" : "refuse"));
		json_object_set_new(out, "stripe", json_boolean(ns->stripe));
		json_object_set_new(out, "value_bytes_max", json_integer(ns->value_bytes_max));
	}
	return out;
}

/* --- namespaces -------------------- */

/* Which subsystem a request means; not NULL where there is none of that name. */
static json_t *subsys_meant(const struct manage *m, const json_t *request, const char **nqn)
{
	*nqn = text_of(request, "subsystem", m->nqn);
	if (array_subsys_known(m->array, *nqn))
		return NULL;
	return control_error(CMD_MISS, "subsystem %.223s: there is none; kvof subsys ls lists "
			     "them", *nqn);
}

/* The text of what is wrong with a namespace that is asked for; NULL: nothing. */
static const char *ns_wrong(const json_t *request, struct set_ns *ns)
{
	const char *kind = text_of(request, "kind", "kv");
	const char *full = text_of(request, "on_full", "evict");
	const json_t *stripe = json_object_get(request, "stripe");
	bool block = strcmp(kind, "block") == 0;

	if (!block && strcmp(kind, "kv") != 0)
		return "kind: kv or block";
	ns->kind = block ? SET_BLOCK : SET_KV;
	ns->evict = strcmp(full, "evict") == 0;
	if (!ns->evict && strcmp(full, "refuse") != 0)
		return "on_full: evict or refuse";
	if (number_of(request, "nsid") > TARGET_NAMESPACES)
		return "nsid: 1 to 64";
	ns->nsid = (uint32_t)number_of(request, "nsid");
	ns->stripe = !block && (stripe != NULL ? json_is_true(stripe) : !ns->evict);
	if (!block) {
		uint64_t value = number_of(request, "value_bytes_max");

		value = value == 0 ? 8 * MiB : value;
		if (value < 512 * KiB || value > STORE_VALUE_BYTES_LIMIT)
			return "value_bytes_max: 512 KiB to 64 MiB";
		ns->value_bytes_max = (uint32_t)value;
		ns->cap_bytes = number_of(request, "size_bytes");
		return json_object_get(request, "block_bytes") != NULL ?
			"block_bytes: a KV namespace has none" : NULL;
	}
	ns->block_bytes = (uint32_t)number_of(request, "block_bytes");
	ns->block_bytes = ns->block_bytes == 0 ? 4096 : ns->block_bytes;
	ns->bytes = number_of(request, "size_bytes");
	if (ns->block_bytes != 512 && ns->block_bytes != 4096)
		return "block_bytes: 512 or 4096";
	if (ns->bytes == 0 || ns->bytes % 4096 != 0)
		return "size_bytes: a block namespace needs a size, a multiple of 4096";
	if (json_object_get(request, "on_full") || json_object_get(request, "stripe") ||
	    json_object_get(request, "value_bytes_max"))
		return "on_full, stripe, value_bytes_max: of a KV namespace alone";
	return NULL;
}

static json_t *ns_create(struct manage *m, const json_t *request)
{
	struct set_ns ns = {.nsid = 0};
	const char *wrong = ns_wrong(request, &ns), *nqn;
	char why[512] = "";
	json_t *no;
	int code;

	if (wrong != NULL)
		return control_error(CMD_USAGE, "%s", wrong);
	no = subsys_meant(m, request, &nqn);
	if (no != NULL)
		return no;
	code = array_ns_create(m->array, nqn, &ns, why);
	return answer_of(code, why, code == 0 ? ns_json(&ns, nqn) : json_object());
}

static json_t *ns_remove(struct manage *m, const json_t *request)
{
	uint64_t nsid = number_of(request, "nsid");
	char why[512] = "";
	const char *nqn;
	json_t *no;

	if (nsid < 1 || nsid > TARGET_NAMESPACES)
		return control_error(CMD_USAGE, "nsid: 1 to 64");
	no = subsys_meant(m, request, &nqn);
	if (no != NULL)
		return no;
	return answer_of(array_ns_remove(m->array, nqn, (uint32_t)nsid, why), why,
			 json_pack("{s:s, s:i}", "subsystem", nqn, "nsid", (int)nsid));
}

struct listing {
	struct array_rows rows;
	sem_t done;
};

static void listing_done(struct array_rows *r)
{
	sem_post(&container_of(r, struct listing, rows)->done);
}

static json_t *ns_list(struct manage *m, const json_t *request)
{
	const char *only = text_of(request, "subsystem", NULL);
	struct listing *l = calloc(1, sizeof(*l));
	json_t *all;

	if (l == NULL)
		return control_error(CMD_FAILED, "ns ls: no memory");
	all = json_array();
	must(sem_init(&l->done, 0, 0) == 0);
	l->rows.done = listing_done;
	array_collect(m->array, &l->rows);
	while (sem_wait(&l->done) != 0)
		must(errno == EINTR);
	for (unsigned i = 0; i < l->rows.count; i++) {
		const struct array_row *r = &l->rows.row[i];
		bool kv = r->ns.kind == SET_KV;
		json_t *row;

		if (only != NULL && strcmp(only, r->nqn) != 0)
			continue;
		row = ns_json(&r->ns, r->nqn);
		json_object_set_new(row, "used_bytes", json_integer((json_int_t)
			(kv ? r->kv.used_bytes : r->block.used_bytes)));
		if (kv)
			json_object_set_new(row, "keys", json_integer((json_int_t)r->kv.keys));
		json_array_append_new(all, row);
	}
	sem_destroy(&l->done);
	free(l);
	return json_pack("{s:b, s:o, s:I}", "ok", 1, "namespaces", all, "free_bytes",
			 (json_int_t)array_free_bytes(m->array));
}

/* --- subsystems -------------------- */

static json_t *subsys_create(struct manage *m, const json_t *request)
{
	const char *nqn = text_of(request, "subsystem", ""), *host[SET_HOSTS_MAX];
	const json_t *hosts = json_object_get(request, "hosts");
	unsigned count = (unsigned)json_array_size(hosts);
	char why[512] = "";

	if (!nv_nqn_check(nqn) || strcmp(nqn, NV_DISCOVERY_NQN) == 0)
		return control_error(CMD_USAGE, "subsystem %.223s: not an NQN for a subsystem",
				     nqn);
	if (array_subsys_known(m->array, nqn))
		return control_error(CMD_REFUSED, "subsystem %.223s: exists", nqn);
	for (unsigned i = 0; i < count; i++) {
		host[i] = json_string_value(json_array_get(hosts, i));
		if (!nv_nqn_check(host[i]))
			return control_error(CMD_USAGE, "host %.223s: not an NQN", host[i]);
	}
	return answer_of(array_subsys_create(m->array, nqn, host, count, why), why,
			 json_pack("{s:s}", "subsystem", nqn));
}

static json_t *subsys_remove(struct manage *m, const json_t *request)
{
	const char *nqn;
	char why[512] = "";
	json_t *no;

	no = subsys_meant(m, request, &nqn);
	if (no != NULL)
		return no;
	if (strcmp(nqn, m->nqn) == 0)
		return control_error(CMD_REFUSED, "subsystem %.223s: the first one stays", nqn);
	return answer_of(array_subsys_remove(m->array, nqn, why), why,
			 json_pack("{s:s}", "subsystem", nqn));
}

static json_t *subsys_list(struct manage *m)
{
	struct array_known *known = malloc(sizeof(*known));
	json_t *out;

	if (known == NULL)
		return control_error(CMD_FAILED, "subsys ls: no memory");
	array_know(m->array, known);
	out = json_array();
	for (unsigned i = 0; i < known->subsys_count; i++) {
		json_t *names = json_array(), *ids = json_array();

		for (unsigned k = 0; k < known->host_count[i]; k++)
			json_array_append_new(names, json_string(known->host[i][k]));
		for (unsigned k = 0; k < known->ns_count; k++)
			if (known->ns[k].subsys == known->subsys[i].number)
				json_array_append_new(ids, json_integer(known->ns[k].nsid));
		json_array_append_new(out, json_pack("{s:s, s:o, s:o}", "subsystem",
			known->subsys[i].nqn, "namespaces", ids, "hosts", names));
	}
	free(known);
	return json_pack("{s:b, s:o}", "ok", 1, "subsystems", out);
}

/* --- all together -------------------- */

json_t *manage_answer(void *arg, const json_t *request)
{
	static const char *const names[] = {"ns create", "ns rm", "ns ls", "subsys create",
		"subsys rm", "subsys ls"};
	const json_t *command = json_object_get(request, "command");
	struct manage *m = arg;
	unsigned i = 0;
	json_t *wrong;

	while (i < ARRAY_COUNT(names) && (!json_is_string(command) ||
	       strcmp(names[i], json_string_value(command)) != 0))
		i++;
	if (i == ARRAY_COUNT(names))
		return control_error(CMD_USAGE, "command: none that this array knows");
	wrong = members_check(request, "crlCRL"[i]);
	if (wrong != NULL)
		return wrong;
	switch (i) {
	case 0:
		return ns_create(m, request);
	case 1:
		return ns_remove(m, request);
	case 2:
		return ns_list(m, request);
	case 3:
		return subsys_create(m, request);
	case 4:
		return subsys_remove(m, request);
	default:
		return subsys_list(m);
	}
}
