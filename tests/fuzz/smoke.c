/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs a fuzz target without a fuzzing engine: every file of the corpus as it is, then seeded
 * mutations of them. usage: X_fuzz [CORPUS [MUTATIONS [SEED]]]; a failure prints what replays it.
 */
#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/must.h"
#include "base/prng.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define INPUTS_MAX 256
#define INPUT_BYTES_MAX (64 * KiB)

struct input {
	uint8_t *data;
	size_t size;
};

static struct input inputs[INPUTS_MAX];
static unsigned input_count;

static void input_add(const char *folder, const char *name)
{
	char path[4096];
	struct input *in = &inputs[input_count];
	FILE *f;

	snprintf(path, sizeof(path), "%s/%s", folder, name);
	f = fopen(path, "rb");
	if (f == NULL || input_count == INPUTS_MAX) {
		fprintf(stderr, "smoke: %s can't be read\n", path);
		exit(1);
	}
	in->data = malloc(INPUT_BYTES_MAX);
	in->size = fread(in->data, 1, INPUT_BYTES_MAX, f);
	fclose(f);
	input_count++;
}

static void corpus_read(const char *folder)
{
	DIR *dir = opendir(folder);
	struct dirent *e;

	if (dir == NULL) {
		fprintf(stderr, "smoke: no folder %s\n", folder);
		exit(1);
	}
	while ((e = readdir(dir)) != NULL)
		if (e->d_name[0] != '.')
			input_add(folder, e->d_name);
	closedir(dir);
}

static size_t mutate(struct prng *p, uint8_t *buf, size_t size)
{
	static const uint8_t telling[] = {0, 1, 0x7f, 0x80, 0xff, 4, 0x10, 0x40};
	unsigned times = 1 + (unsigned)prng_below(p, 6);

	while (times-- > 0) {
		size_t at = size > 0 ? prng_below(p, size) : 0;

		switch (prng_below(p, 6)) {
		case 0:
			if (size > 0)
				buf[at] ^= (uint8_t)(1u << prng_below(p, 8));
			break;
		case 1:
			if (size > 0)
				buf[at] = (uint8_t)prng_next(p);
			break;
		case 2:
			if (size > 0)
				buf[at] = telling[prng_below(p, sizeof(telling))];
			break;
		case 3:
			size = at;
			break;
		case 4: {
			size_t more = prng_below(p, 64);

			if (size + more <= INPUT_BYTES_MAX) {
				prng_fill(p, buf + size, more);
				size += more;
			}
			break;
		}
		default: {                     /* a piece of another input */
			const struct input *in = &inputs[prng_below(p, input_count)];
			size_t n = prng_below(p, in->size + 1);

			if (at + n <= INPUT_BYTES_MAX) {
				memcpy(buf + at, in->data, n);
				size = at + n > size ? at + n : size;
			}
			break;
		}
		}
	}
	return size;
}

int main(int argc, char **argv)
{
	unsigned long mutations = argc > 2 ? strtoul(argv[2], NULL, 0) : 2000;
	uint64_t seed = argc > 3 ? strtoull(argv[3], NULL, 0) : 1;
	struct prng p = prng_of(seed);
	uint8_t *buf = malloc(INPUT_BYTES_MAX);

	log_level_set(LOG_NONE);
	if (argc > 1)
		corpus_read(argv[1]);
	if (input_count == 0)
		inputs[input_count++] = (struct input){calloc(1, 64), 64};
	for (unsigned i = 0; i < input_count; i++)
		(void)LLVMFuzzerTestOneInput(inputs[i].data, inputs[i].size);
	for (unsigned long n = 0; n < mutations; n++) {
		const struct input *in = &inputs[prng_below(&p, input_count)];
		size_t size = in->size;
		uint8_t *exact;

		memcpy(buf, in->data, size);
		size = mutate(&p, buf, size);
		exact = malloc(size + 1);      /* its own memory: a read past the end is seen */
		memcpy(exact, buf, size);
		(void)LLVMFuzzerTestOneInput(exact, size);
		free(exact);
	}
	printf("%u inputs, %lu mutations, seed %" PRIu64 "\n", input_count, mutations, seed);
	for (unsigned i = 0; i < input_count; i++)
		free(inputs[i].data);
	free(buf);
	return 0;
}
