/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The control socket of a running array: a stream socket in the file system, for its owner and root
 * alone. One request a connection: a line of JSON there, a line of JSON back. Private to cmd/.
 */
#ifndef KVOF_CMD_CONTROL_H
#define KVOF_CMD_CONTROL_H

#include <stdbool.h>
#include <stdint.h>

#include <jansson.h>

#define CONTROL_PATH_BYTES 108                 /* of a socket's address */
#define CONTROL_LINE_MAX 65536

struct control;

/* One request is answered with a new object; on a thread of its own, several at once. */
typedef json_t *(*control_answer)(void *arg, const json_t *request);

/* {"ok": false, "exit": ..., "error": ...} */
json_t *control_error(int exit_code, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

/* Where an array that listens at this port has its socket, unless told otherwise. */
void control_path_default(uint16_t port, char path[CONTROL_PATH_BYTES]);

/**
 * control_open() - makes the socket, mode 0600, and the thread that answers
 * Return: 0; -EBUSY another array answers there; -EINVAL the path is none, or others could replace
 * the socket; -EIO. why is a sentence.
 */
int control_open(const char *path, control_answer answer, void *arg, char why[256],
		 struct control **out);

/* Removes the sockets PORT.sock beside this one that killed arrays of this user left; the folder is
 * one that control_open() has found good. */
void control_sweep(const char *path);

/* No new request; what is being answered is answered first. Then ended(arg), on the thread that
 * accepts. */
void control_stop(struct control *c, void (*ended)(void *arg), void *arg);
/* After ended() was called, or instead of control_stop() where nothing is at work. */
void control_close(struct control **c);

/**
 * control_ask() - the client's side: one request, one answer
 * Return: 0 and *answer, an object; -ENOENT nobody is there; -EPROTO; -ETIMEDOUT. why is a
 * sentence.
 */
int control_ask(const char *path, const json_t *request, json_t **answer, char why[256]);

#endif
