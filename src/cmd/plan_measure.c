/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvof plan calibrate --profile OUT: measures this machine, writes a profile (docs/calibrate.md).
 *
 *	options ─ engine ─ drives ─ arm local ─ link ─ arm array ─ memory ─ arm dram ─ OUT
 *
 * A stage gets its share of what is left of --seconds. The profile is written at the end or not at
 * all: after Ctrl-C, and after anything that failed, there is none. A watchdog ends a run whose
 * drive or kernel does not come back.
 */
#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include "base/must.h"
#include "cmd/cmd.h"
#include "cmd/meter.h"
#include "cmd/plan_measure.h"
#include "cmd/plan_measure_inner.h"

#define MEASURE_SECONDS_LEAST 2u
#define MEASURE_GRACE_S 60u              /* beyond --seconds, then the watchdog */
#define ARRAY_BYTES (3 * MEASURE_SET_BYTES)

/* --- what the stages share -------------------- */

static volatile sig_atomic_t stopped;
static const char *volatile stage_now = "the begin";

bool measure_stopped(void)
{
	return stopped != 0;
}

bool measure_over(const struct measure *m)
{
	return measure_stopped() || cmd_now_ns() >= m->stage_end_ns;
}

void measure_progress(const struct measure *m, const char *format, ...)
{
	static uint64_t next_ns;
	char text[160];
	va_list args;

	if (!isatty(STDERR_FILENO) || cmd_now_ns() < next_ns)
		return;
	next_ns = cmd_now_ns() + NS_PER_S / 5;
	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	fprintf(stderr, "\r\033[K%s: %s (%llu s left) ", m->stage, text,
		(unsigned long long)(m->end_ns > cmd_now_ns() ?
				     (m->end_ns - cmd_now_ns()) / NS_PER_S : 0));
}

static void progress_end(void)
{
	if (isatty(STDERR_FILENO))
		fprintf(stderr, "\r\033[K");
}

int measure_failed(const char *format, ...)
{
	char text[512];
	va_list args;

	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	progress_end();
	cmd_error(MEASURE_NAME, "%s", text);
	return CMD_FAILED;
}

struct plan_device *measure_device(struct measure *m, enum plan_device_kind kind,
				   const char *format, ...)
{
	struct plan_device *d = &m->profile->device[m->profile->devices++];
	va_list args;

	must(m->profile->devices <= PLAN_PROFILE_DEVICES_MAX);
	*d = (struct plan_device){.kind = kind};
	va_start(args, format);
	vsnprintf(d->name, sizeof(d->name), format, args);
	va_end(args);
	return d;
}

struct kvof_plan_fit *measure_arm(struct measure *m, enum kvof_plan_arm_kind kind)
{
	struct kvof_plan_fit *fit = &m->profile->arm[m->profile->arms++];

	must(m->profile->arms <= PLAN_PROFILE_ARMS_MAX);
	*fit = (struct kvof_plan_fit){.arm = {.kind = kind, .source = KVOF_PLAN_MEASURED}};
	return fit;
}

void measure_device_noisy(struct plan_device *d, const struct measured_series *s,
			  const char *which)
{
	if (measured_spread(s) > MEASURE_NOISY)
		plan_device_note(d, "noisy: repeats%s lie %.0f %% apart", which,
				 100 * measured_spread(s));
}

/* --- the machine -------------------- */

/* What stands behind a name in a file of lines "name : value". */
static bool line_value(const char *path, const char *name, char *out, size_t bytes)
{
	FILE *f = fopen(path, "re");
	char line[512];
	bool found = false;

	while (f != NULL && !found && fgets(line, sizeof(line), f) != NULL) {
		char *colon = strchr(line, ':');

		if (strncmp(line, name, strlen(name)) != 0 || colon == NULL)
			continue;
		colon += 1 + strspn(colon + 1, " \t");
		colon[strcspn(colon, "\n")] = 0;
		snprintf(out, bytes, "%.*s", (int)bytes - 1, colon);
		found = true;
	}
	if (f != NULL)
		fclose(f);
	return found;
}

uint64_t measure_memory_bytes(void)
{
	char text[64];

	return line_value("/proc/meminfo", "MemAvailable", text, sizeof(text)) ?
	       strtoull(text, NULL, 10) * KiB : 0;
}

uint64_t measure_cache_bytes(void)
{
	static const int level[] = {_SC_LEVEL4_CACHE_SIZE, _SC_LEVEL3_CACHE_SIZE,
				    _SC_LEVEL2_CACHE_SIZE};

	for (unsigned i = 0; i < ARRAY_COUNT(level); i++)
		if (sysconf(level[i]) > 0)
			return (uint64_t)sysconf(level[i]);
	return 32 * MiB;
}

static void machine_tell(struct plan_profile *p)
{
	char cpu[100] = "processor not known", memory[64] = "0";
	struct utsname un = {.sysname = ""};
	time_t now = time(NULL);
	struct tm tm;

	(void)line_value("/proc/cpuinfo", "model name", cpu, sizeof(cpu));
	(void)line_value("/proc/meminfo", "MemTotal", memory, sizeof(memory));
	(void)uname(&un);
	snprintf(p->machine, sizeof(p->machine), "%s, %ld cores, %.1f GiB, %s %.40s", cpu,
		 sysconf(_SC_NPROCESSORS_ONLN),
		 (double)strtoull(memory, NULL, 10) / 1048576.0, un.sysname, un.release);
	gmtime_r(&now, &tm);
	strftime(p->made, sizeof(p->made), "%Y-%m-%dT%H:%M:%SZ", &tm);
	p->source = KVOF_PLAN_MEASURED;
}

/* --- stages -------------------- */

/* Weights of the stages; a stage gets its weight's share of the time that is left. */
enum { WEIGHT_DRAM = 1, WEIGHT_DRIVE = 3, WEIGHT_LINK = 3, WEIGHT_WAVE = 3, WEIGHT_ENGINE = 6 };

static void stage_begin(struct measure *m, const char *name, double weight)
{
	uint64_t now_ns = cmd_now_ns(), left_ns = m->end_ns > now_ns ? m->end_ns - now_ns : 0;

	m->stage = stage_now = name;
	m->stage_end_ns = now_ns + (uint64_t)((double)left_ns * weight / m->weight_left);
	m->weight_left -= weight;
}

static int drives_run(struct measure *m)
{
	int rc = measure_drive_begin(m);

	if (rc != 0)
		return rc;
	if (m->no_local != NULL)
		m->weight_left -= WEIGHT_WAVE;
	for (unsigned i = 0; rc == 0 && i < m->drives.count && !measure_stopped(); i++) {
		stage_begin(m, "drive", (double)WEIGHT_DRIVE / m->drives.count);
		rc = measure_drive(m, i);
	}
	if (rc != 0 || m->no_local != NULL || measure_stopped())
		return rc;
	stage_begin(m, "local", WEIGHT_WAVE);
	rc = measure_wave(m, KVOF_PLAN_LOCAL, NULL);
	return rc != 0 ? rc : measure_drive_part(m);
}

static int array_run(struct measure *m)
{
	struct measure_array *array = NULL;
	const char *target = m->target;
	char own[64];
	int rc = 0;

	if (target == NULL) {
		m->array_bytes = bytes_min(ARRAY_BYTES, measure_memory_bytes() / 4) / MiB * MiB;
		rc = measure_array_open(m->array_bytes, &array, own);
		target = own;
	}
	stage_begin(m, "link", WEIGHT_LINK);
	if (rc == 0)
		rc = measure_link(m, target);
	stage_begin(m, "array", WEIGHT_WAVE);
	if (rc == 0 && !measure_stopped())
		rc = measure_wave(m, KVOF_PLAN_ARRAY, target);
	measure_array_close(&array);
	if (rc == 0 && !measure_stopped() && m->target == NULL)
		plan_fit_note(&m->profile->arm[m->profile->arms - 1],
			      PLAN_NOTE_LOOPBACK ": name your array with --target");
	return rc;
}

static int engine_run(struct measure *m)
{
	struct kvof_plan_fit *fit;

	if (m->engine != NULL) {
		stage_begin(m, "engine", WEIGHT_ENGINE);
		return measure_engine(m);
	}
	if (m->prefill_tokens_per_s == 0)
		return 0;
	fit = measure_arm(m, KVOF_PLAN_RECOMPUTE);
	fit->arm.source = KVOF_PLAN_SPEC;
	fit->arm.tokens_per_s = m->prefill_tokens_per_s;
	fit->arm.median_share = 0.5;
	fit->arm.median_rank = 1;
	snprintf(fit->arm.bottleneck, sizeof(fit->arm.bottleneck), "gpu");
	plan_fit_note(fit, "told by --prefill-tokens-per-s, not measured: no fixed time, no bend "
		      "of attention, one prompt after another");
	return 0;
}

static int memory_run(struct measure *m)
{
	int rc;

	stage_begin(m, "memory", WEIGHT_DRAM);
	rc = measure_dram(m);
	if (rc != 0 || measure_stopped())
		return rc;
	stage_begin(m, "dram", WEIGHT_WAVE);
	return measure_wave(m, KVOF_PLAN_DRAM, NULL);
}

/* What is most likely to be wrong comes first. */
static const struct {
	const char *name;
	enum measure_part bit;
	int (*run)(struct measure *m);
} parts[] = {
	{"engine", MEASURE_ENGINE, engine_run}, {"drives", MEASURE_DRIVES, drives_run},
	{"array", MEASURE_ARRAY, array_run}, {"memory", MEASURE_MEMORY, memory_run},
};

static int stages_run(struct measure *m)
{
	int rc = 0;

	m->weight_left = (m->parts & MEASURE_MEMORY ? WEIGHT_DRAM + WEIGHT_WAVE : 0) +
			 (m->parts & MEASURE_DRIVES ? WEIGHT_DRIVE + WEIGHT_WAVE : 0) +
			 (m->parts & MEASURE_ARRAY ? WEIGHT_LINK + WEIGHT_WAVE : 0) +
			 (m->parts & MEASURE_ENGINE && m->engine != NULL ? WEIGHT_ENGINE : 0);
	for (unsigned i = 0; rc == 0 && i < ARRAY_COUNT(parts) && !measure_stopped(); i++)
		if (m->parts & parts[i].bit)
			rc = parts[i].run(m);
	measure_drive_end(m);
	progress_end();
	return rc;
}

/* --- what is told -------------------- */

static void notes_print(uint32_t count, const char (*note)[KVOF_PLAN_NOTE_BYTES])
{
	for (uint32_t i = 0; i < count; i++)
		printf("      %s\n", note[i]);
}

static void arm_print(const struct kvof_plan_fit *fit)
{
	const struct kvof_plan_arm *a = &fit->arm;

	printf("  %-10s", kvof_plan_arm_name(a->kind));
	if (a->bytes_per_s > 0)
		printf("%.2f GB/s in all", a->bytes_per_s / 1e9);
	else
		printf("%.0f tokens/s", a->tokens_per_s);
	if (a->session_bytes_per_s > 0)
		printf(", one session at most %.2f GB/s", a->session_bytes_per_s / 1e9);
	if (a->session_tokens_per_s > 0)
		printf(", one prompt at most %.0f", a->session_tokens_per_s);
	printf("; fixed %.2f ms, %.3f ms a session; the median of N waits for %.2f N + %.2f "
	       "(%s)\n", a->fixed_s * 1e3, a->session_s * 1e3, a->median_share, a->median_rank,
	       kvof_plan_source_name(a->source));
	notes_print(fit->notes, fit->note);
}

static void device_print(const struct plan_device *d)
{
	printf("  %-10s%s: ", plan_device_name(d->kind), d->name);
	if (d->kind == PLAN_DEVICE_DRAM)
		printf("%.2f GB/s\n", d->read_bytes_per_s / 1e9);
	else
		printf("reads %.2f GB/s at depth %u, writes %.2f GB/s, values of %llu KiB\n",
		       d->read_bytes_per_s / 1e9, d->depth, d->write_bytes_per_s / 1e9,
		       (unsigned long long)(d->value_bytes / KiB));
	notes_print(d->notes.count, d->notes.text);
}

static int result_print(const struct measure *m, const char *text)
{
	const struct plan_profile *p = m->profile;

	if (m->json) {
		json_error_t err;
		json_t *root = json_loads(text, 0, &err);

		return cmd_json_print(MEASURE_NAME, root, CMD_DONE);
	}
	printf("%s, %s\n\narms (GB is 1e9 bytes)\n", p->machine, p->made);
	for (uint32_t i = 0; i < p->arms; i++)
		arm_print(&p->arm[i]);
	if (m->engine == NULL && m->prefill_tokens_per_s == 0)
		printf("  recompute not measured: name an engine with --engine, or its rate with "
		       "--prefill-tokens-per-s\n");
	if (m->no_local != NULL)
		printf("  local     not measured: %s; name a drive with --drive\n", m->no_local);
	printf("\ndevices\n");
	for (uint32_t i = 0; i < p->devices; i++)
		device_print(&p->device[i]);
	printf("\nwritten to %s\n", m->profile_path);
	return cmd_output_end(MEASURE_NAME, CMD_DONE);
}

/* --- signals and the file -------------------- */

static void on_interrupt(int signal)
{
	stopped = 1;
}

static void on_alarm(int signal)
{
	static const char a[] = "kvof " MEASURE_NAME ": ", b[] = ": did not come back in time\n";

	(void)!write(STDERR_FILENO, a, sizeof(a) - 1);
	(void)!write(STDERR_FILENO, stage_now, strlen(stage_now));
	(void)!write(STDERR_FILENO, b, sizeof(b) - 1);
	_exit(CMD_FAILED);
}

/* The second Ctrl-C ends the process: a file that this run made has no name by then. */
static void signals_set(const struct measure *m)
{
	struct sigaction once = {.sa_handler = on_interrupt, .sa_flags = (int)SA_RESETHAND};
	struct sigaction late = {.sa_handler = on_alarm};

	sigaction(SIGINT, &once, NULL);
	sigaction(SIGTERM, &once, NULL);
	sigaction(SIGALRM, &late, NULL);
	alarm((unsigned)(m->seconds_ns / NS_PER_S) + MEASURE_GRACE_S);
}

/* Known before minutes of work: whether there can be a profile at their end. */
static int profile_check(const char *path)
{
	const char *slash = strrchr(path, '/');
	char folder[4096];
	struct stat st;
	int err = 0;

	snprintf(folder, sizeof(folder), "%.*s", slash == NULL ? 1 : (int)(slash - path + 1),
		 slash == NULL ? "." : path);
	if (stat(path, &st) == 0 && S_ISDIR(st.st_mode))
		err = EISDIR;
	else if (stat(path, &st) == 0 && !S_ISREG(st.st_mode))
		err = access(path, W_OK) != 0 ? errno : 0;
	else if (access(folder, W_OK | X_OK) != 0)
		err = errno;
	return err == 0 ? 0 : measure_failed("--profile %s: %s", path, strerror(err));
}

static int measure_all(struct measure *m)
{
	char *text;
	int rc;

	signals_set(m);
	machine_tell(m->profile);
	m->end_ns = cmd_now_ns() + m->seconds_ns;
	rc = stages_run(m);
	if (measure_stopped())
		return measure_failed("stopped; nothing was written");
	if (rc != 0)
		return rc;
	text = plan_profile_write(m->profile);
	if (text == NULL)
		return measure_failed("no memory for the profile");
	rc = cmd_value_write(MEASURE_NAME, m->profile_path, text, strlen(text));
	if (rc == 0)
		rc = result_print(m, text);
	free(text);
	return rc;
}

/* --- options -------------------- */

static int engine_url(struct measure *m, char *url, size_t bytes)
{
	size_t n;

	if (m->engine == NULL)
		return 0;
	if ((strncmp(m->engine, "http://", 7) != 0 && strncmp(m->engine, "https://", 8) != 0) ||
	    strlen(m->engine) >= bytes) {
		cmd_error(MEASURE_NAME, "--engine %s: not http://HOST:PORT", m->engine);
		return CMD_USAGE;
	}
	snprintf(url, bytes, "%s", m->engine);
	n = strlen(url);
	while (n > 0 && url[n - 1] == '/')
		url[--n] = 0;
	if (n > 3 && strcmp(url + n - 3, "/v1") == 0)
		url[n - 3] = 0;
	m->engine = url;
	return 0;
}

/* "engine,drives": bits. */
static int only_parse(const char *text, unsigned *bits)
{
	*bits = text != NULL ? 0 : MEASURE_ALL;
	while (text != NULL && *text != 0) {
		size_t n = strcspn(text, ",");
		unsigned found = 0;

		for (unsigned i = 0; i < ARRAY_COUNT(parts); i++)
			if (strlen(parts[i].name) == n && strncmp(parts[i].name, text, n) == 0)
				found = parts[i].bit;
		if (found == 0) {
			cmd_error(MEASURE_NAME, "--only %.*s: not engine, drives, array or memory",
				  (int)n, text);
			return CMD_USAGE;
		}
		*bits |= found;
		text += n + (text[n] == ',');
	}
	if (*bits != 0)
		return 0;
	cmd_error(MEASURE_NAME, "--only: no part is named");
	return CMD_USAGE;
}

static int options_check(struct measure *m)
{
	char path[256];

	if (m->profile_path == NULL) {
		cmd_error(MEASURE_NAME, "--profile OUT: where the profile goes is needed");
		return CMD_USAGE;
	}
	if (m->engine != NULL && m->prefill_tokens_per_s > 0) {
		cmd_error(MEASURE_NAME, "--engine and --prefill-tokens-per-s: one of them");
		return CMD_USAGE;
	}
	if ((m->parts & MEASURE_ENGINE) == 0 && m->engine != NULL) {
		cmd_error(MEASURE_NAME, "--engine is not among the parts of --only");
		return CMD_USAGE;
	}
	if (m->parts == MEASURE_ENGINE && m->engine == NULL && m->prefill_tokens_per_s == 0) {
		cmd_error(MEASURE_NAME, "--only engine: name one with --engine");
		return CMD_USAGE;
	}
	if (m->engine == NULL && m->engine_model != NULL) {
		cmd_error(MEASURE_NAME, "--engine-model needs --engine");
		return CMD_USAGE;
	}
	if (m->engine_model != NULL && strlen(m->engine_model) > 150) {
		cmd_error(MEASURE_NAME, "--engine-model: longer than 150 bytes");
		return CMD_USAGE;
	}
	if (m->seconds_ns < MEASURE_SECONDS_LEAST * NS_PER_S || m->seconds_ns > 3600 * NS_PER_S) {
		cmd_error(MEASURE_NAME, "--seconds: %u to 3600", MEASURE_SECONDS_LEAST);
		return CMD_USAGE;
	}
	if (m->value_bytes < 64 * KiB || m->value_bytes > 8 * MiB || m->value_bytes % 4096 != 0) {
		cmd_error(MEASURE_NAME, "--value-bytes: 64KiB to 8MiB, a multiple of 4KiB");
		return CMD_USAGE;
	}
	for (unsigned i = 0; i < m->drives.count; i++) {
		snprintf(path, sizeof(path), "%s", m->drives.path[i]);
		if (strcmp(path, "mem") != 0)
			continue;
		cmd_error(MEASURE_NAME, "--drive mem: memory is no drive; it is measured anyway");
		return CMD_USAGE;
	}
	return m->target != NULL ? cmd_target_check(MEASURE_NAME, m->target) : 0;
}

/* --drive may be missing, which cmd_drives_take() does not allow. */
static int drives_take(struct measure *m, int *argc, char **argv)
{
	int rc;

	for (int i = 1; i < *argc; i++) {
		if (strcmp(argv[i], "--drive") != 0 && strncmp(argv[i], "--drive=", 8) != 0)
			continue;
		rc = cmd_drives_take(MEASURE_NAME, argc, argv, &m->drives);
		return rc >= 0 ? rc : 0;
	}
	return 0;
}

static const char measure_more[] =
	"--drive PATH[,size=S] may be given up to 16 times: a drive or file that is blank\n"
	"or holds an empty store; size= makes a missing file, which is gone at the end.\n"
	"Without one a file below TMPDIR or /tmp is taken. Without --target the array is\n"
	"one on loopback in this process, and the profile says so. Without an engine's\n"
	"rate there is no arm recompute.\n\n"
	"--rows FILE.csv fits measured rows instead; `kvof plan calibrate --rows - --help`\n"
	"has its options. docs/calibrate.md says what is measured, and what it can't tell.\n\n"
	"  kvof plan calibrate --profile here.json --drive /dev/nvme1n1 \\\n"
	"      --target tcp://10.0.0.5:4420 --engine http://127.0.0.1:8000\n";

int plan_measure_run(int argc, char **argv)
{
	static struct measure m;
	static struct plan_profile profile;
	const char *only = NULL;
	char url[200];
	const struct cmd_opt opts[] = {
		{"profile", CMD_TEXT, &m.profile_path, "OUT", "where the profile goes"},
		{"target", CMD_TEXT, &m.target, "TARGET", "an array: tcp://ADDR:PORT[/NQN]"},
		{"engine", CMD_TEXT, &m.engine, "URL", "http://HOST:PORT of a completions engine"},
		{"engine-model", CMD_TEXT, &m.engine_model, "NAME", "of the engine (its first)"},
		{"prefill-tokens-per-s", CMD_COUNT, &m.prefill_tokens_per_s, "N",
			"of an engine, instead; marked spec"},
		{"output-tokens", CMD_COUNT, &m.output_tokens, "N", "of a request's tail (64)"},
		{"value-bytes", CMD_BYTES, &m.value_bytes, "SIZE",
			"of a block and of a read (1MiB)"},
		{"seconds", CMD_SECONDS, &m.seconds_ns, "N", "that all of it may take (90)"},
		{"only", CMD_TEXT, &only, "PARTS", "of engine,drives,array,memory (all)"},
		{"json", CMD_FLAG, &m.json, NULL, "print the profile as JSON"},
		{.name = NULL},
	};
	const struct cmd_usage u = {
		.name = MEASURE_NAME, .args = "--profile OUT", .opts = opts,
		.what = "Measures this machine's memory, drives, link and engine for plans.",
		.more = measure_more,
	};
	unsigned count;
	int rc;

	m = (struct measure){.seconds_ns = 90 * NS_PER_S, .value_bytes = MiB, .output_tokens = 64,
			     .profile = &profile};
	rc = drives_take(&m, &argc, argv);
	if (rc == 0)
		rc = cmd_args(&u, argc, argv, NULL, &count);
	if (rc >= 0)
		return rc;
	rc = only_parse(only, &m.parts);
	if (rc == 0)
		rc = options_check(&m);
	if (rc == 0)
		rc = engine_url(&m, url, sizeof(url));
	if (rc == 0)
		rc = profile_check(m.profile_path);
	return rc == 0 ? measure_all(&m) : rc;
}
