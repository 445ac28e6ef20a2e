/* SPDX-License-Identifier: Apache-2.0 */
/* The main of every unit test program. An argument picks the tests whose name contains it. */
#include "kt.h"

#define KT_TESTS_MAX 512

static struct CMUnitTest kt_tests[KT_TESTS_MAX];
static size_t kt_count;

void kt_register(const char *name, void (*run)(void **state))
{
	if (kt_count == KT_TESTS_MAX)
		abort();
	kt_tests[kt_count++] = (struct CMUnitTest){.name = name, .test_func = run};
}

int main(int argc, char **argv)
{
	size_t kept = 0;

	setvbuf(stdout, NULL, _IOLBF, 0);
	for (size_t i = 0; i < kt_count; i++)
		if (argc < 2 || strstr(kt_tests[i].name, argv[1]) != NULL)
			kt_tests[kept++] = kt_tests[i];
	if (kept == 0)
		return 1;
	cmocka_set_message_output(CM_OUTPUT_TAP);
	return _cmocka_run_group_tests("kt", kt_tests, kept, NULL, NULL);
}
