/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Target strings, tcp://ADDR:PORT[/NQN][?nsid=N], and the names by which this host is known.
 * Control path; any thread.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/hash.h"
#include "host/impl.h"

static int target_wrong(char why[256], const char *text, const char *what)
{
	snprintf(why, 256, "target \"%.120s\": %s (tcp://ADDR:PORT[/NQN][?nsid=N])", text, what);
	return -EINVAL;
}

/* Digits only, 1 .. max. 0: not such a number. */
static uint32_t target_number(const char *at, size_t bytes, uint32_t max)
{
	uint64_t value = 0;

	if (bytes == 0 || bytes > 10)
		return 0;
	for (size_t i = 0; i < bytes; i++) {
		if (at[i] < '0' || at[i] > '9')
			return 0;
		value = value * 10 + (uint64_t)(at[i] - '0');
	}
	return value <= max ? (uint32_t)value : 0;
}

static bool target_is_address(const char *host)
{
	struct in6_addr six;
	struct in_addr four;

	return inet_pton(AF_INET, host, &four) == 1 || inet_pton(AF_INET6, host, &six) == 1;
}

/* ADDR:PORT or [ADDR]:PORT in at[0 .. bytes). NULL, or what is wrong. */
static const char *target_addr(const char *at, size_t bytes, struct sock_addr *out)
{
	const char *end = at + bytes, *colon, *host = at;
	size_t host_bytes;

	if (bytes > 0 && *at == '[') {
		const char *close = memchr(at, ']', bytes);

		if (close == NULL || close + 1 >= end || close[1] != ':')
			return "an IPv6 address looks like [::1]:4420";
		host = at + 1;
		host_bytes = (size_t)(close - host);
		colon = close + 1;
	} else {
		colon = memchr(at, ':', bytes);
		if (colon == NULL)
			return "the port is missing";
		host_bytes = (size_t)(colon - host);
		if (memchr(colon + 1, ':', (size_t)(end - colon - 1)) != NULL)
			return "an IPv6 address stands in brackets";
	}
	if (host_bytes == 0 || host_bytes >= sizeof(out->host))
		return "the address is missing or too long";
	memcpy(out->host, host, host_bytes);
	out->host[host_bytes] = 0;
	if (strcmp(out->host, "localhost") == 0)
		memcpy(out->host, "127.0.0.1", sizeof("127.0.0.1"));
	if (!target_is_address(out->host))
		return "the address is not a numeric IPv4 or IPv6 address";
	out->port = (uint16_t)target_number(colon + 1, (size_t)(end - colon - 1), UINT16_MAX);
	return out->port != 0 ? NULL : "the port is not a number from 1 to 65535";
}

int host_target_parse(const char *text, struct host_opts *opts, char why[256])
{
	const char *at = text, *slash, *query, *wrong;
	size_t bytes;

	if (strncmp(text, "tcp://", 6) != 0)
		return target_wrong(why, text, "it does not begin with tcp://");
	at += 6;
	query = strchr(at, '?');
	bytes = query != NULL ? (size_t)(query - at) : strlen(at);
	slash = memchr(at, '/', bytes);
	wrong = target_addr(at, slash != NULL ? (size_t)(slash - at) : bytes, &opts->addr);
	if (wrong != NULL)
		return target_wrong(why, text, wrong);
	opts->subnqn[0] = 0;
	opts->nsid = 0;
	if (slash != NULL && slash + 1 < at + bytes) {
		size_t nqn_bytes = (size_t)(at + bytes - slash - 1);

		if (nqn_bytes > NV_NQN_BYTES_MAX)
			return target_wrong(why, text, "the NQN is longer than 223 bytes");
		memcpy(opts->subnqn, slash + 1, nqn_bytes);
		opts->subnqn[nqn_bytes] = 0;
		if (!nv_nqn_check(opts->subnqn))
			return target_wrong(why, text, "that is no NQN (nqn.yyyy-mm.domain:name)");
	}
	if (query == NULL)
		return 0;
	if (strncmp(query, "?nsid=", 6) != 0)
		return target_wrong(why, text, "only nsid may follow the question mark");
	opts->nsid = target_number(query + 6, strlen(query + 6), UINT32_MAX - 1);
	if (opts->nsid == 0)
		return target_wrong(why, text, "nsid is not a number from 1 to 4294967294");
	return 0;
}

/* --- this host's names -------------------- */

/* 16 bytes that stay the same for this machine: its machine id, else a digest of nothing better. */
static void host_machine_id(uint8_t out[16])
{
	char text[64] = {0};
	uint8_t digest[32];
	FILE *f = fopen("/etc/machine-id", "re");

	if (f != NULL) {
		if (fgets(text, sizeof(text), f) == NULL)
			text[0] = 0;
		fclose(f);
	}
	/* Not the id itself: it is meant to be kept private, a digest of it is not. */
	hash_sha256_once(text, strnlen(text, sizeof(text)), digest);
	memcpy(out, digest, 16);
	out[6] = (uint8_t)((out[6] & 0x0f) | 0x40);
	out[8] = (uint8_t)((out[8] & 0x3f) | 0x80);
}

void host_names_fill(const struct host_opts *opts, char hostnqn[NV_NQN_BYTES_MAX + 1],
		     uint8_t hostid[16])
{
	uint8_t id[16], digest[32];

	if (opts->hostnqn[0] != 0) {
		snprintf(hostnqn, NV_NQN_BYTES_MAX + 1, "%.223s", opts->hostnqn);
		hash_sha256_once(hostnqn, strlen(hostnqn), digest);
		memcpy(id, digest, 16);
	} else {
		host_machine_id(id);
		snprintf(hostnqn, NV_NQN_BYTES_MAX + 1, "nqn.2014-08.org.nvmexpress:uuid:"
			 "%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x",
			 id[0], id[1], id[2], id[3], id[4], id[5], id[6], id[7], id[8], id[9],
			 id[10], id[11], id[12], id[13], id[14], id[15]);
	}
	if (bytes_all_zero(opts->hostid, 16))
		memcpy(hostid, id, 16);
	else
		memcpy(hostid, opts->hostid, 16);
}
