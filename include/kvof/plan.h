/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvof: what a KV cache takes and when its tokens come, by arithmetic (docs/plan.md).
 *
 * Pure functions: no I/O, no state, any thread. Geometry has two steps: kvof_plan_model_read()
 * turns the text of a Hugging Face config.json into groups of layers, kvof_plan_geometry() into
 * bytes for a data type of the cache and a tensor-parallel split. An arm is where the KV of a
 * prefix comes from: kvof_plan_fit() makes arms of measured rows, kvof_plan_ttft() tells when the
 * first tokens of a wave come. What is not known is refused, never guessed. GB is 1e9 bytes.
 *
 * Errors are negative errno values; kvof_plan_bad then says which field, and why.
 */
#ifndef KVOF_PLAN_H
#define KVOF_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define KVOF_PLAN_CONFIG_BYTES_MAX (4u << 20)
#define KVOF_PLAN_LAYERS_MAX 1024u
#define KVOF_PLAN_GROUPS_MAX 64u
#define KVOF_PLAN_TP_MAX 4096u

struct kvof_plan_bad {
	char field[80];                  /* "layer_types[3]"; empty: the text as a whole */
	char why[240];
};

enum kvof_plan_kind {
	KVOF_PLAN_FULL,                  /* keeps every token */
	KVOF_PLAN_SLIDING,               /* the last `window` tokens */
	KVOF_PLAN_CHUNKED,               /* at most `window` tokens, of the chunk it is in */
	KVOF_PLAN_MLA,                   /* one latent of k_dim + v_dim numbers for all heads */
	KVOF_PLAN_INDEXER,               /* k_dim bytes and a scale of 4 bytes, in any KV dtype */
};

/* Layers that are alike. */
struct kvof_plan_group {
	enum kvof_plan_kind kind;
	uint32_t layers;
	uint32_t query_heads, kv_heads;  /* kv_heads 1 for MLA and indexer */
	uint32_t k_dim, v_dim;           /* MLA: kv_lora_rank and qk_rope_head_dim */
	uint64_t window;                 /* tokens; 0: all */
	bool k_is_v;                     /* an engine may keep K and V as one */
};

/* What layers without a KV cache keep for a sequence, however long it is. */
struct kvof_plan_state {
	const char *kind;                /* "mamba2", ...; NULL: the model has none */
	uint32_t layers;
	uint64_t conv_elems, recurrent_elems;    /* of all these layers */
	char missing[80];                /* the field for want of which elems are 0; or empty */
};

struct kvof_plan_model {
	char type[64];                   /* model_type whose rule holds */
	char rule[320];                  /* how layers were told apart, in words */
	char weights[64];                /* quant_method of the weights, or empty; never the KV's */
	uint32_t layers, query_heads, groups;
	struct kvof_plan_group group[KVOF_PLAN_GROUPS_MAX];
	struct kvof_plan_state state;
};

struct kvof_plan_split {
	uint32_t tp;                     /* ranks; 0 and 1: one */
	uint32_t kv_elem_bytes;          /* 1, 2 or 4; 0: 2, whatever the weights are */
};

/* Bytes of one group for one token. */
struct kvof_plan_cost {
	uint64_t token_bytes;            /* all its layers, each head once */
	uint64_t rank_token_bytes;       /* what one rank holds of it */
	uint32_t copies;                 /* ranks that hold the same bytes */
};

struct kvof_plan_geometry {
	uint32_t tp, kv_elem_bytes;
	uint64_t first_bytes, rank_first_bytes;    /* the first token: every group counts */
	uint64_t token_bytes, rank_token_bytes;    /* one token more, past every window */
	uint64_t shared_token_bytes;     /* the same where K and V are kept as one */
	uint64_t state_bytes;            /* a sequence: convolution in kv_elem_bytes but at least 2,
					  * recurrent in 4 */
	struct kvof_plan_cost group[KVOF_PLAN_GROUPS_MAX];
};

/**
 * kvof_plan_model_read() - layers of a model from the text of its config.json
 * @bad: written when the result is -EINVAL
 * Return: 0; -EINVAL: the text is wrong, a field is missing, or model_type is not known; -ENOMEM.
 */
int kvof_plan_model_read(const char *text, size_t bytes, struct kvof_plan_model *out,
			 struct kvof_plan_bad *bad);

/**
 * kvof_plan_geometry() - bytes of a model's KV cache
 * @model: as kvof_plan_model_read() wrote it
 * @bad: written when the result is -EINVAL
 * Return: 0; -EINVAL: heads can't be split over so many ranks, or no such element size.
 */
int kvof_plan_geometry(const struct kvof_plan_model *model, const struct kvof_plan_split *split,
		       struct kvof_plan_geometry *out, struct kvof_plan_bad *bad);

/**
 * kvof_plan_bytes_at() - KV cache of one sequence of so many tokens, without constant state
 * @bytes: each head once; @rank_bytes: what one rank holds
 * Return: 0; -EINVAL: more than 64 bits count.
 */
int kvof_plan_bytes_at(const struct kvof_plan_model *model,
		       const struct kvof_plan_geometry *geometry, uint64_t tokens,
		       uint64_t *bytes, uint64_t *rank_bytes);

/* --- arms (src/plan/arm.c) --------------------------------------------------------------------
 *
 * N sessions come in one wave, each with a prefix of T tokens. An arm is where its KV comes from.
 * N' = N - resident are loaded, X is what one session has of the arm's unit, R the arm's rate:
 *
 *   last(N) = fixed_s + N' session_s + max(N' X / R, X / Rs)   Rs: most that one session can have
 *   p50(N)  = the same with median_share N' + median_rank for N' where the rate is shared; never
 *             more than last, never less than fixed_s
 *   p90(N)  = p50 + 0.8 (last - p50)
 *   wall(N) = last + tail_fixed_s + tail_session_s N, never less than last
 *   tokens/s = N output_tokens / wall
 *
 * X / R of recompute is T / tokens_per_s + T^2 token2_s; nothing of it is resident.
 */
enum kvof_plan_arm_kind {
	KVOF_PLAN_RECOMPUTE, KVOF_PLAN_DRAM, KVOF_PLAN_LOCAL, KVOF_PLAN_ARRAY, KVOF_PLAN_NFS,
};
#define KVOF_PLAN_ARM_KINDS 5u

enum kvof_plan_source {
	KVOF_PLAN_MEASURED,              /* on this machine */
	KVOF_PLAN_ROWS,                  /* fitted to rows that somebody published */
	KVOF_PLAN_SPEC,                  /* of a data sheet: what nobody measured */
};

struct kvof_plan_arm {
	enum kvof_plan_arm_kind kind;
	enum kvof_plan_source source;
	char bottleneck[48];             /* what the rate is: "link", "drives", "gpu", "dram copy",
					  * or "unknown" (rows do not tell) */
	double fixed_s;                  /* before the first token, however many sessions */
	double session_s;                /* more for each session of the wave: requests */
	double tokens_per_s;             /* rate of the whole arm; 0: it is given in bytes */
	double bytes_per_s;              /* 0: it is given in tokens */
	double session_bytes_per_s;      /* most that one session can draw; 0: no such bound */
	double session_tokens_per_s;     /* the same in tokens; 0: no such bound */
	double token2_s;                 /* recompute: attention, of a token and one before it */
	double median_share, median_rank;    /* the median waits for share N' + rank of the loads:
					  * 1, 0: all end together; 0.5, 1: one after another, as
					  * a[int(n/2)] counts. Both 0: 1, 0 */
	double tail_fixed_s, tail_session_s; /* from the last first token to the end of the wave;
					  * one of them may be below 0 */
	uint32_t output_tokens;          /* of each session of the wave; 0: no tokens/s is told */
};

struct kvof_plan_wave {
	double tokens, bytes;            /* of one session, whole; bytes 0: not known */
	uint32_t sessions;
	uint32_t resident;               /* of them in memory already: they are not loaded */
};

struct kvof_plan_ttft {
	double p50_s, p90_s, last_s, wall_s;
	double tokens_per_s;             /* of output */
	double bytes_per_s_needed;       /* what the loads of the wave draw while they run; 0: bytes
					  * are not known, or nothing is loaded */
	char bottleneck[48];             /* the arm's; "fixed time", "requests" or "session" where
					  * that part is the largest */
};

/* "recompute", ...; "measured", ... */
const char *kvof_plan_arm_name(enum kvof_plan_arm_kind kind);

/* False: text is no arm's name. */
bool kvof_plan_arm_find(const char *text, enum kvof_plan_arm_kind *kind);

/* "measured", "rows", "spec". */
const char *kvof_plan_source_name(enum kvof_plan_source source);

/**
 * kvof_plan_ttft() - when the first tokens of a wave come, closed form
 * @bad: written when the result is -EINVAL
 * Return: 0; -EINVAL: the arm has no rate or two, a figure is below 0 or not finite, the wave has
 * no sessions, or lacks what the arm's rate counts.
 */
int kvof_plan_ttft(const struct kvof_plan_arm *arm, const struct kvof_plan_wave *wave,
		   struct kvof_plan_ttft *out, struct kvof_plan_bad *bad);

/* --- fit (src/plan/fit.c) ------------------------------------------------------------- */

#define KVOF_PLAN_ROWS_MAX 4096u
#define KVOF_PLAN_NOTES_MAX 16u
#define KVOF_PLAN_NOTE_BYTES 240u

/* One measured wave. 0 is "not given"; times are in seconds. */
struct kvof_plan_row {
	enum kvof_plan_arm_kind kind;
	uint32_t line;                   /* of the file, to name it; 0: none */
	uint32_t concurrency, resident;  /* sessions, and those of them that were not read */
	uint32_t output_tokens;          /* of each session */
	double tokens, bytes;            /* of one session's prefix; at least one of them */
	double ttft_p50_s, ttft_p90_s, ttft_last_s;
	double tokens_per_s;             /* of output, of the whole wave */
	double bytes_per_s;              /* of the device while it was busy */
};

/* An arm and what is known about it. */
struct kvof_plan_fit {
	struct kvof_plan_arm arm;
	uint32_t rows;                   /* that it was made of */
	double tokens_min, tokens_max;   /* calibrated range; 0, 0: not told */
	uint32_t concurrency_min, concurrency_max;
	double worst_row_error;          /* of any time of any row used, relative: 0.03 is 3 % */
	uint32_t notes;
	char note[KVOF_PLAN_NOTES_MAX][KVOF_PLAN_NOTE_BYTES];
};

/* A row that does not lie on the line of the other rows of its arm. */
struct kvof_plan_odd {
	uint32_t row;                    /* index in rows */
	uint32_t unread;                 /* sessions not read that would explain it */
	double measured_s;               /* last first token of the row */
	double line_s;                   /* on the line of the others */
	double unread_s;                 /* on that line, with so many sessions not read */
};

struct kvof_plan_fit_ask {
	uint32_t output_tokens;          /* of rows that do not say; 0: 64 is assumed */
	bool keep_odd;                   /* odd rows are named and used all the same */
};

struct kvof_plan_fit_out {
	uint32_t arms;
	struct kvof_plan_fit arm[KVOF_PLAN_ARM_KINDS];   /* in the order of the kinds */
	uint32_t odd;
	struct kvof_plan_odd odd_row[KVOF_PLAN_NOTES_MAX];
};

/**
 * kvof_plan_fit() - arms from measured rows
 * @rows: [count] in any order, of any arms
 *
 * Last, median and wall are each a straight line in sessions times what a session has; a line is
 * exact for two rows, of least relative squares for more, through the origin for one. What was
 * assumed for a cell that is missing is told in the arm's notes.
 * Return: 0; -EINVAL: a row is wrong, or an arm has no row that can be used; -ENOMEM.
 */
int kvof_plan_fit(const struct kvof_plan_row *rows, size_t count,
		  const struct kvof_plan_fit_ask *ask, struct kvof_plan_fit_out *out,
		  struct kvof_plan_bad *bad);

#ifdef __cplusplus
}
#endif

#endif
