/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Arm recompute: an engine with the API of OpenAI's completions (vLLM, SGLang, llama.cpp's server
 * and others) is asked to complete prompts of random words, which no prefix cache has seen, and
 * the time to the first streamed token is taken: of three lengths alone, and of two prompts that
 * come together, which tells whether it takes them one after another. A few requests with more
 * tokens of output give the tail of a wave.
 *
 *	models -> probe (words a token, first guess of the rate) -> rounds -> arm
 *
 * The engine is not trusted: answers are bounded (plan/answer.h), headers too, no redirect is
 * followed, no proxy is used, and every request has a deadline. One thread.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <curl/curl.h>

#include "base/must.h"
#include "base/prng.h"
#include "cmd/cmd.h"
#include "cmd/meter.h"
#include "cmd/plan_measure_inner.h"
#include "loop/loop.h"
#include "plan/answer.h"

#define ENGINE_PAIR 2u
#define ENGINE_LENGTHS 3u
#define ENGINE_FASTER 1.25               /* two at once, over one after another: no noise */
#define ENGINE_CONNECT_MS 3000L
#define ENGINE_HEADER_BYTES_MAX (256u << 10)
#define ENGINE_PROBE_WORDS 96u
#define ENGINE_WORD_BYTES 8u             /* most, with its space */
#define ENGINE_TOKENS_LEAST 192.0        /* of the longest prompt */
#define ENGINE_TOKENS_MOST 4096.0
#define ENGINE_OUTPUT_LEAST 4u
#define ENGINE_WAIT_LEAST_NS (2 * NS_PER_S)
#define ENGINE_WAIT_MOST_NS (60 * NS_PER_S)      /* for one answer */

struct request {
	CURL *curl;
	struct answer answer;
	char *body;
	uint64_t begun_ns, ended_ns, header_bytes;
	CURLcode code;
	long status;
	bool over;
};

struct engine {
	struct measure *m;
	CURLM *multi;
	struct curl_slist *headers;
	struct request request[ENGINE_PAIR];
	struct prng prng;
	char model[160];
	double words_a_token, rate;      /* rate: a first guess, tokens a second */
	double per_output_s;             /* a guess, of a token more of output */
	uint64_t context_tokens;
	uint32_t output_tokens;
	bool usage, cached;
	bool quiet;                      /* what goes wrong is not told: it is tried only */
	bool no_pair;                    /* it did not answer two prompts at once */
	/* what came */
	double words[ENGINE_LENGTHS];
	struct measured_series tokens[ENGINE_LENGTHS], alone[ENGINE_LENGTHS];
	struct measured_series first, last, tail1, tail2;
};

static int engine_failed(const struct engine *e, const char *what)
{
	if (e->quiet)
		return CMD_FAILED;
	return measure_failed("engine %s: %s", e->m->engine, what);
}

/* --- one request -------------------- */

static size_t on_body(char *bytes, size_t size, size_t count, void *arg)
{
	struct request *r = arg;
	long status = 0;

	/* what comes with an error is kept to be told, and is no stream */
	if (curl_easy_getinfo(r->curl, CURLINFO_RESPONSE_CODE, &status) == CURLE_OK &&
	    status != 200)
		r->answer.stream = false;
	if (answer_feed(&r->answer, bytes, size * count, cmd_now_ns()) == 0)
		return size * count;
	return 0;                                        /* ends the transfer */
}

static size_t on_header(char *bytes, size_t size, size_t count, void *arg)
{
	struct request *r = arg;

	(void)bytes;
	r->header_bytes += size * count;
	return r->header_bytes > ENGINE_HEADER_BYTES_MAX ? 0 : size * count;
}

static int on_progress(void *arg, curl_off_t a, curl_off_t b, curl_off_t c, curl_off_t d)
{
	return measure_stopped();
}

/* How long one answer may take: what the stage has left. */
static long wait_ms(const struct engine *e)
{
	uint64_t now_ns = cmd_now_ns(), ns = 0;

	if (e->m->stage_end_ns > now_ns)
		ns = e->m->stage_end_ns - now_ns;
	if (ns < ENGINE_WAIT_LEAST_NS)
		ns = ENGINE_WAIT_LEAST_NS;
	return (long)(bytes_min(ns, ENGINE_WAIT_MOST_NS) / NS_PER_MS);
}

/* body NULL: a GET. The body is the request's from here on. */
static int request_begin(struct engine *e, struct request *r, const char *path, char *body,
			 bool stream)
{
	char url[512];

	*r = (struct request){.curl = curl_easy_init(), .body = body};
	answer_begin(&r->answer, stream);
	if (r->curl == NULL)
		return engine_failed(e, "no memory for a request");
	snprintf(url, sizeof(url), "%s%s", e->m->engine, path);
	curl_easy_setopt(r->curl, CURLOPT_URL, url);
	curl_easy_setopt(r->curl, CURLOPT_PROTOCOLS_STR, "http,https");
	curl_easy_setopt(r->curl, CURLOPT_PROXY, "");
	curl_easy_setopt(r->curl, CURLOPT_NOSIGNAL, 1L);
	curl_easy_setopt(r->curl, CURLOPT_FOLLOWLOCATION, 0L);
	curl_easy_setopt(r->curl, CURLOPT_TCP_NODELAY, 1L);
	curl_easy_setopt(r->curl, CURLOPT_CONNECTTIMEOUT_MS, ENGINE_CONNECT_MS);
	curl_easy_setopt(r->curl, CURLOPT_TIMEOUT_MS, wait_ms(e));
	curl_easy_setopt(r->curl, CURLOPT_HTTPHEADER, e->headers);
	curl_easy_setopt(r->curl, CURLOPT_WRITEFUNCTION, on_body);
	curl_easy_setopt(r->curl, CURLOPT_WRITEDATA, r);
	curl_easy_setopt(r->curl, CURLOPT_HEADERFUNCTION, on_header);
	curl_easy_setopt(r->curl, CURLOPT_HEADERDATA, r);
	curl_easy_setopt(r->curl, CURLOPT_XFERINFOFUNCTION, on_progress);
	curl_easy_setopt(r->curl, CURLOPT_NOPROGRESS, 0L);
	curl_easy_setopt(r->curl, CURLOPT_PRIVATE, r);
	if (body != NULL) {
		curl_easy_setopt(r->curl, CURLOPT_POSTFIELDS, body);
		curl_easy_setopt(r->curl, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)strlen(body));
	}
	r->begun_ns = cmd_now_ns();
	curl_multi_add_handle(e->multi, r->curl);
	return 0;
}

static void request_free(struct engine *e, struct request *r)
{
	if (r->curl != NULL) {
		curl_multi_remove_handle(e->multi, r->curl);
		curl_easy_cleanup(r->curl);
	}
	answer_free(&r->answer);
	free(r->body);
	*r = (struct request){.curl = NULL};
}

/* Until so many of them are over. */
static void requests_run(struct engine *e, unsigned count)
{
	unsigned over = 0;

	while (over < count) {
		int running = 0, left = 0;
		CURLMsg *msg;

		if (curl_multi_perform(e->multi, &running) != CURLM_OK)
			break;
		while ((msg = curl_multi_info_read(e->multi, &left)) != NULL) {
			struct request *r;

			if (msg->msg != CURLMSG_DONE)
				continue;
			must(curl_easy_getinfo(msg->easy_handle, CURLINFO_PRIVATE, &r) == CURLE_OK);
			r->code = msg->data.result;
			r->over = true;
			r->ended_ns = cmd_now_ns();
			curl_easy_getinfo(r->curl, CURLINFO_RESPONSE_CODE, &r->status);
			over++;
		}
		if (over < count)
			curl_multi_poll(e->multi, NULL, 0, 100, NULL);
	}
}

/* 0; else the line is said: no answer, an answer that is an error, or one that makes no sense. */
static int request_check(const struct engine *e, struct request *r, const char *path)
{
	char text[120], line[320];

	if (measure_stopped())
		return CMD_FAILED;
	if (r->answer.why[0] != 0)
		return engine_failed(e, r->answer.why);
	if (r->header_bytes > ENGINE_HEADER_BYTES_MAX)
		return engine_failed(e, "the headers of its answer do not end");
	if (!r->over || r->code == CURLE_OPERATION_TIMEDOUT) {
		snprintf(line, sizeof(line), "no %s within %.1f s%s", r->answer.pieces > 0 ?
			 "end of its answer" : "answer",
			 (double)(r->ended_ns - r->begun_ns) / 1e9,
			 r->answer.pieces > 0 ? "" : "; give it more --seconds if it is slow");
		return engine_failed(e, line);
	}
	if (r->code != CURLE_OK)
		return engine_failed(e, curl_easy_strerror(r->code));
	if (r->status == 200)
		return 0;
	answer_error(&r->answer, text);
	snprintf(line, sizeof(line), "HTTP %ld at %s%s%s", r->status, path,
		 text[0] != 0 ? ": " : "", text);
	return engine_failed(e, line);
}

/* --- prompts -------------------- */

/* So many random words: the first differs already, so nothing of it is in a prefix cache. */
static char *words_make(struct engine *e, unsigned words)
{
	char *text = malloc((size_t)words * ENGINE_WORD_BYTES + 1), *at = text;

	for (unsigned i = 0; text != NULL && i < words; i++) {
		unsigned letters = 3 + (unsigned)prng_below(&e->prng, ENGINE_WORD_BYTES - 4);

		for (unsigned k = 0; k < letters; k++)
			*at++ = (char)('a' + prng_below(&e->prng, 26));
		*at++ = ' ';
	}
	if (text != NULL)
		at[words > 0 ? -1 : 0] = 0;
	return text;
}

static char *completion_make(struct engine *e, unsigned words, unsigned output, bool stream)
{
	char *prompt = words_make(e, words), *text = NULL;
	json_t *o;

	if (prompt == NULL)
		return NULL;
	o = json_pack("{s:s, s:s, s:i, s:f, s:b, s:b}", "model", e->model, "prompt", prompt,
		      "max_tokens", (int)output, "temperature", 0.0, "stream", (int)stream,
		      "ignore_eos", 1);
	if (o != NULL && stream)
		json_object_set_new(o, "stream_options", json_pack("{s:b}", "include_usage", 1));
	text = o != NULL ? json_dumps(o, JSON_COMPACT) : NULL;
	json_decref(o);
	free(prompt);
	return text;
}

/* Asks for `count` completions at once and waits for all of them. */
static int complete(struct engine *e, unsigned count, double words, unsigned output, bool stream)
{
	static const char path[] = "/v1/completions";
	int rc = 0;

	for (unsigned i = 0; i < count; i++) {
		char *body = completion_make(e, (unsigned)words, output, stream);

		if (body == NULL)
			return engine_failed(e, "no memory for a prompt");
		rc = request_begin(e, &e->request[i], path, body, stream);
		if (rc != 0)
			return rc;
	}
	requests_run(e, count);
	for (unsigned i = 0; rc == 0 && i < count; i++) {
		struct request *r = &e->request[i];

		rc = request_check(e, r, path);
		if (rc == 0 && answer_end(&r->answer, r->ended_ns) != 0)
			rc = engine_failed(e, r->answer.why);
		e->cached |= r->answer.cached_tokens * 10 > r->answer.prompt_tokens;
	}
	return rc;
}

static void complete_free(struct engine *e)
{
	for (unsigned i = 0; i < ENGINE_PAIR; i++)
		request_free(e, &e->request[i]);
}

static double first_s(const struct request *r)
{
	return (double)(r->answer.first_ns - r->begun_ns) / 1e9;
}

/* --- before the rounds -------------------- */

static int model_find(struct engine *e)
{
	struct answer_model model;
	int rc;

	if (e->m->engine_model != NULL) {
		snprintf(e->model, sizeof(e->model), "%s", e->m->engine_model);
		return 0;
	}
	measure_progress(e->m, "asking for its model");
	rc = request_begin(e, &e->request[0], "/v1/models", NULL, false);
	if (rc == 0) {
		requests_run(e, 1);
		rc = request_check(e, &e->request[0], "/v1/models");
	}
	if (rc == 0 && answer_models(&e->request[0].answer, &model) != 0)
		rc = engine_failed(e, "its list of models can't be read; name one with "
				   "--engine-model");
	if (rc == 0) {
		snprintf(e->model, sizeof(e->model), "%s", model.id);
		e->context_tokens = model.context_tokens;
	}
	request_free(e, &e->request[0]);
	return rc;
}

/* Tokens of a prompt of so many words, and how fast about; the second request of an engine that has
 * just been started is not slowed by what the first one waits for. */
static int probe(struct engine *e)
{
	uint64_t tokens = 0;
	double took_s = 0;
	int rc = 0;

	for (unsigned i = 0; rc == 0 && i < 2; i++) {
		measure_progress(e->m, "first prompts");
		rc = complete(e, 1, ENGINE_PROBE_WORDS, ENGINE_OUTPUT_LEAST, true);
		if (rc == 0) {
			const struct answer *a = &e->request[0].answer;

			tokens = a->prompt_tokens;
			took_s = first_s(&e->request[0]);
			e->per_output_s = (double)(a->last_ns - a->first_ns) / 1e9 /
				(a->pieces > 1 ? a->pieces - 1 : 1);
		}
		complete_free(e);
	}
	e->usage = tokens > 0;
	if (rc == 0 && !e->usage) {
		rc = complete(e, 1, ENGINE_PROBE_WORDS, 1, false);
		if (rc == 0)
			tokens = e->request[0].answer.prompt_tokens;
		complete_free(e);
	}
	if (rc == 0 && tokens == 0)
		rc = engine_failed(e, "it does not tell how many tokens a prompt has (`usage`)");
	if (rc != 0)
		return rc;
	e->words_a_token = ENGINE_PROBE_WORDS / (double)tokens;
	e->rate = took_s > 0 ? (double)tokens / took_s : 1e6;
	return 0;
}

/* The longest prompt: what the time allows for the least number of rounds, and the context. A
 * round takes lengths 1/4, 1/2 and 1 alone, and two of 1/2 together: 2.75 of the longest. */
static void lengths_choose(struct engine *e)
{
	uint64_t now_ns = cmd_now_ns();
	double left_s = e->m->stage_end_ns > now_ns ?
		(double)(e->m->stage_end_ns - now_ns) / 1e9 : 0;
	double most = left_s * 0.5 * e->rate / (2.75 * MEASURE_REPEATS_LEAST);
	double output = e->per_output_s > 0 ?
		left_s * 0.2 / (2 * MEASURE_REPEATS_LEAST * e->per_output_s) : 1e9;

	if (most > ENGINE_TOKENS_MOST)
		most = ENGINE_TOKENS_MOST;
	if (e->context_tokens > 0 && most > 0.75 * (double)e->context_tokens)
		most = 0.75 * (double)e->context_tokens;
	if (most < ENGINE_TOKENS_LEAST)
		most = ENGINE_TOKENS_LEAST;
	for (unsigned i = 0; i < ENGINE_LENGTHS; i++)
		e->words[i] = most * e->words_a_token / (1u << (ENGINE_LENGTHS - 1 - i));
	e->output_tokens = e->m->output_tokens;
	if (output < e->output_tokens)
		e->output_tokens = output > ENGINE_OUTPUT_LEAST ? (unsigned)output :
				   ENGINE_OUTPUT_LEAST;
}

/* --- rounds -------------------- */

static int round_alone(struct engine *e, unsigned length)
{
	/* the middle one also gives the tail */
	unsigned output = length == 1 ? e->output_tokens : 1;
	int rc = complete(e, 1, e->words[length], output, true);

	if (rc == 0) {
		const struct request *r = &e->request[0];
		uint64_t tokens = r->answer.prompt_tokens;

		measured_add(&e->alone[length], first_s(r));
		measured_add(&e->tokens[length], tokens > 0 ? (double)tokens :
			     e->words[length] / e->words_a_token);
		if (length == 1)
			measured_add(&e->tail1,
				     (double)(r->answer.last_ns - r->answer.first_ns) / 1e9);
	}
	complete_free(e);
	return rc;
}

/* An engine that drops one request for another is measured all the same. */
static void round_pair(struct engine *e)
{
	bool quiet = e->quiet;
	int rc;

	e->quiet = true;
	rc = complete(e, 2, e->words[1], e->output_tokens, true);
	e->quiet = quiet;
	e->no_pair = rc != 0 && e->first.count == 0;
	if (rc == 0) {
		const struct request *a = &e->request[0], *b = &e->request[1];
		uint64_t end_ns = a->answer.last_ns > b->answer.last_ns ? a->answer.last_ns :
				  b->answer.last_ns;
		double x = first_s(a), y = first_s(b), last = x > y ? x : y;

		measured_add(&e->first, x < y ? x : y);
		measured_add(&e->last, last);
		measured_add(&e->tail2, (double)(end_ns - a->begun_ns) / 1e9 - last);
	}
	complete_free(e);
}

/* After the first round the time may end one: what came until then is what there is. */
static int rounds(struct engine *e)
{
	int rc = 0;

	for (unsigned r = 0; rc == 0 && r < MEASURED_REPEATS_MAX && !measure_stopped(); r++) {
		if (r > 0 && measure_over(e->m))
			break;
		e->quiet = r > 0;
		for (unsigned i = 0; rc == 0 && i < ENGINE_LENGTHS; i++) {
			measure_progress(e->m, "round %u: a prompt of %.0f words", r + 1,
					 e->words[i]);
			rc = round_alone(e, i);
		}
		if (rc == 0 && !e->no_pair)
			round_pair(e);
		if (e->quiet && rc != 0 && measure_over(e->m))
			rc = 0;
		e->quiet = false;
		if (rc != 0 && r > 0)
			rc = engine_failed(e, "it answered at first, and then no more");
	}
	return rc;
}

/* --- the arm -------------------- */

static void order_find(struct engine *e, struct kvof_plan_fit *fit)
{
	struct kvof_plan_arm *arm = &fit->arm;
	double faster = measured_pair(arm, measured_median(&e->alone[1]),
				      measured_median(&e->first), measured_median(&e->last),
				      &arm->median_share, &arm->median_rank);

	if (e->no_pair) {
		arm->median_share = 0.5;
		arm->median_rank = 1;
		fit->concurrency_max = 1;
		plan_fit_note(fit, "two prompts at once were not both answered: one after another "
			      "is assumed");
		return;
	}
	if (faster >= ENGINE_FASTER) {
		arm->median_share = 1;
		arm->median_rank = 0;
		arm->session_tokens_per_s = arm->tokens_per_s;
		arm->tokens_per_s *= faster;
		arm->token2_s /= faster;
		plan_fit_note(fit, "two prompts at once are read %.2f times as fast as one after "
			      "the other; that is taken for the rate of more as well, which were "
			      "not tried", faster);
		return;
	}
	if (arm->median_share < 0.6)
		plan_fit_note(fit, "two prompts at once: one after another");
	else if (arm->median_share > 0.9)
		plan_fit_note(fit, "two prompts at once: their first tokens come together");
	else
		plan_fit_note(fit, "two prompts at once: partly side by side");
}

static void arm_notes(struct engine *e, struct kvof_plan_fit *fit)
{
	const struct measured_series *worst = &e->alone[0];

	for (unsigned i = 1; i < ENGINE_LENGTHS; i++)
		if (measured_spread(&e->alone[i]) > measured_spread(worst))
			worst = &e->alone[i];
	plan_fit_note(fit, "engine %s, model %s: prompts of %.0f, %.0f and %.0f tokens, %u repeats",
		      e->m->engine, e->model, measured_median(&e->tokens[0]),
		      measured_median(&e->tokens[1]), measured_median(&e->tokens[2]),
		      e->alone[0].count);
	if (e->alone[ENGINE_LENGTHS - 1].count < MEASURE_REPEATS_LEAST)
		plan_fit_note(fit, PLAN_NOTE_UNSURE ": the time was over after %u repeats; give "
			      "it more --seconds", e->alone[ENGINE_LENGTHS - 1].count);
	if (measured_spread(worst) > MEASURE_NOISY)
		plan_fit_note(fit, "noisy: repeats lie %.0f %% apart",
			      100 * measured_spread(worst));
	if (!e->usage)
		plan_fit_note(fit, "its stream does not tell tokens of prompts: they are counted "
			      "from words, by one prompt that was told");
	if (e->cached)
		plan_fit_note(fit, PLAN_NOTE_UNSURE ": it says that more than a tenth of a "
			      "prompt of random words was cached");
	if (e->output_tokens < e->m->output_tokens)
		plan_fit_note(fit, "%u tokens of output instead of %u, which would have taken too "
			      "long", e->output_tokens, e->m->output_tokens);
	if (fit->arm.token2_s <= 0)
		plan_fit_note(fit, "no bend of attention was seen up to %.0f tokens: longer "
			      "prompts may well take more", measured_median(&e->tokens[2]));
}

static void arm_errors(const struct measured_prompt *prompt, struct kvof_plan_fit *fit)
{
	for (unsigned i = 0; i < ENGINE_LENGTHS; i++) {
		const struct kvof_plan_wave wave = {.tokens = prompt[i].tokens, .sessions = 1};
		struct kvof_plan_ttft ttft;
		struct kvof_plan_bad bad;
		double error;

		if (kvof_plan_ttft(&fit->arm, &wave, &ttft, &bad) != 0)
			continue;
		error = ttft.last_s / prompt[i].first_s - 1;
		error = error < 0 ? -error : error;
		if (error > fit->worst_row_error)
			fit->worst_row_error = error;
	}
}

static int arm_make(struct engine *e)
{
	struct measured_prompt prompt[ENGINE_LENGTHS];
	struct kvof_plan_fit *fit = measure_arm(e->m, KVOF_PLAN_RECOMPUTE);
	struct kvof_plan_arm *arm = &fit->arm;
	double tail1 = measured_median(&e->tail1), tail2 = measured_median(&e->tail2);

	for (unsigned i = 0; i < ENGINE_LENGTHS; i++)
		prompt[i] = (struct measured_prompt){measured_median(&e->tokens[i]),
						     measured_median(&e->alone[i])};
	if (measured_prefill(prompt, ENGINE_LENGTHS, arm) != 0)
		return engine_failed(e, "longer prompts took no longer; give it more --seconds");
	snprintf(arm->bottleneck, sizeof(arm->bottleneck), "gpu");
	fit->rows = ENGINE_LENGTHS + 1;
	fit->tokens_min = prompt[0].tokens;
	fit->tokens_max = prompt[ENGINE_LENGTHS - 1].tokens;
	fit->concurrency_min = 1;
	fit->concurrency_max = ENGINE_PAIR;
	arm_errors(prompt, fit);
	arm->tail_session_s = tail2 > tail1 ? tail2 - tail1 : 0;
	arm->tail_fixed_s = tail2 > tail1 || e->no_pair ? tail1 - arm->tail_session_s : tail2;
	arm->output_tokens = e->output_tokens;
	order_find(e, fit);
	arm_notes(e, fit);
	snprintf(e->m->profile->engine, sizeof(e->m->profile->engine), "%.40s at %.34s", e->model,
		 e->m->engine);
	return 0;
}

static int engine_run(struct engine *e)
{
	int rc = model_find(e);

	if (rc == 0)
		rc = probe(e);
	if (rc == 0)
		lengths_choose(e);
	if (rc == 0)
		rc = rounds(e);
	if (rc == 0 && !measure_stopped())
		rc = arm_make(e);
	return measure_stopped() ? 0 : rc;
}

int measure_engine(struct measure *m)
{
	struct engine *e = calloc(1, sizeof(*e));
	uint64_t seed;
	int rc;

	if (e == NULL || curl_global_init(CURL_GLOBAL_DEFAULT) != 0) {
		free(e);
		return measure_failed("no memory for an engine");
	}
	e->m = m;
	loop_random(&seed, sizeof(seed));
	e->prng = prng_of(seed);
	e->multi = curl_multi_init();
	e->headers = curl_slist_append(NULL, "Content-Type: application/json");
	if (e->headers != NULL)                  /* no question before a long prompt */
		(void)curl_slist_append(e->headers, "Expect:");
	rc = e->multi == NULL || e->headers == NULL ? engine_failed(e, "no memory") :
						      engine_run(e);
	complete_free(e);
	curl_slist_free_all(e->headers);
	curl_multi_cleanup(e->multi);
	curl_global_cleanup();
	free(e);
	return rc;
}
