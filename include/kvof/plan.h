/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvof: what a KV cache takes and when its tokens come, by arithmetic (docs/plan.md).
 *
 * Pure functions: no I/O, no state, any thread. Geometry has two steps: kvof_plan_model_read()
 * turns the text of a Hugging Face config.json into groups of layers, kvof_plan_geometry() into
 * bytes for a data type of the cache and a tensor-parallel split. An arm is where the KV of a
 * prefix comes from: kvof_plan_fit() makes arms of measured rows, kvof_plan_ttft() tells when the
 * first tokens of a wave come. What is not known is refused, never guessed. GB is 1e9 bytes.
 * Cost: microseconds; only what reads a text, and kvof_plan_fit(), take memory, and give it back.
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
	uint32_t context_tokens;         /* longest it was made for, by the file; 0: not told */
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
 * X / R of recompute is T / tokens_per_s + T^2 token2_s; nothing of it is resident. Where rows show
 * free_loads, last has N' - free_loads for N', at least N' / 2.
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
	double free_loads;               /* of a wave, that cost nothing: what rows show whose fixed
					  * time would be below 0; they count at most half of N' */
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

/* --- sizes and supply (src/plan/{work,spill,supply,sla,loss,move}.c) ------------------------
 *
 * GB is 1e9, GiB 2^30; a quantity says its unit. Functions that can refuse return 0 or -EINVAL
 * and then `bad` says what was missing or wrong; the others can't be given anything wrong.
 */
#define KVOF_PLAN_SESSIONS_MAX 1000000u
#define KVOF_PLAN_TOKENS_MAX (UINT64_C(1) << 30)
#define KVOF_PLAN_STAGES_MAX 8u

/* What a model weighs and what a token of a prompt costs to compute. */
struct kvof_plan_work {
	char type[64], rule[320];
	char weight_dtype[64];           /* "bf16", "fp8 in blocks of 128 x 128", ... */
	uint64_t params;                 /* all of them, without layers for speculation */
	uint64_t active_params;          /* those of one token; tables for tokens counted whole */
	uint64_t embed_params;           /* of the table that is looked up, not multiplied with */
	uint64_t weight_bytes;           /* over all ranks */
	double token_flops;              /* a token of a prompt, without attention */
	double pair_flops;               /* a token and a token before it, in layers that see all */
	double window_pair_flops;        /* the same in layers that see the last `window` */
	double window;
};

/**
 * kvof_plan_work_read() - parameters, weight bytes and FLOPs from the text of a config.json
 * @out: fields that could not be told are 0 when the result is -EINVAL
 * Return: 0; -EINVAL: the family is not known or a field is missing (bad says which: give the
 * parameters or the bytes by hand, kvof_plan_work_given()); -ENOMEM.
 */
int kvof_plan_work_read(const char *text, size_t bytes, struct kvof_plan_work *out,
			struct kvof_plan_bad *bad);

/* The same from figures by hand: 0 is "not given"; params without active_params is a dense model,
 * weight_bytes is params times elem_bytes where it is 0. No attention term. */
int kvof_plan_work_given(double params, double active_params, double weight_bytes,
			 double elem_bytes, struct kvof_plan_work *out,
			 struct kvof_plan_bad *bad);

/* Floating point operations for a prompt of so many tokens. */
double kvof_plan_work_flops(const struct kvof_plan_work *work, double tokens);

/* Memory: what fits in the GPUs of one instance, what does not, what staging a load needs. */
struct kvof_plan_spill_ask {
	uint32_t gpus;                   /* ranks of the instance (TP times PP); at least 1 */
	uint32_t instances;              /* alike; 0: 1 */
	double gpu_bytes;                /* memory of one GPU */
	double gpu_share;                /* of it that the engine takes, 0.9; 0: all */
	double weight_bytes;             /* of one instance, over all its ranks */
	double activation_share;         /* of what the engine takes, for activations and graphs */
	double session_bytes;            /* KV of one session, each head once */
	double session_rank_bytes;       /* most that one rank holds of it: more than a share if
					  * ranks hold the same heads (kvof_plan_geometry()) */
	double sessions;                 /* that want to come back, over all instances; 0: none */
	double turns_per_s;              /* of all instances: how often a session comes back */
	double new_bytes_per_s;          /* KV that is new, over all instances; 0: none */
	double horizon_s;                /* how long what was written is to be kept */
	uint32_t wave;                   /* sessions an instance loads at once */
	double staging_rank_bytes;       /* host memory of a rank for loads; 0: not told */
	double dram_bytes;               /* host memory of an instance as a tier; 0: none */
	double store_bytes;              /* drives, as a tier, over all instances; 0: not told */
};

struct kvof_plan_spill {
	double kv_bytes;                 /* room for KV on all ranks of an instance */
	double rank_kv_bytes;
	double resident;                 /* sessions an instance holds; with a fraction */
	uint32_t resident_sessions;      /* whole ones, of all instances */
	double dram_sessions, store_sessions;    /* that these hold, of all instances */
	double spilled_sessions, spilled_bytes;  /* that fit in no GPU */
	double below_dram_bytes;         /* nor in host memory */
	double horizon_bytes;            /* new KV within the horizon */
	double read_bytes_per_s;         /* to bring back, on average */
	double staging_need_rank_bytes;  /* of each rank: wave x what a rank loads of a session */
	double staged_sessions;          /* that the staging there is holds at once */
	uint32_t staged_waves;           /* loads one after another for that; 0: not even one fits,
					  * or no staging was told */
	bool spills;
};

/* What fits where. -EINVAL: a figure is missing, or the weights leave no room. */
int kvof_plan_spill_make(const struct kvof_plan_spill_ask *ask, struct kvof_plan_spill *out,
			 struct kvof_plan_bad *bad);

/**
 * kvof_plan_staged_ttft() - kvof_plan_ttft() with staging for only so many sessions at a time
 * @staged: sessions that staging holds; 0: -EINVAL, nothing can be loaded whole
 *
 * Waves of `staged` sessions go one after another and each has the arm's fixed time again.
 */
int kvof_plan_staged_ttft(const struct kvof_plan_arm *arm, const struct kvof_plan_wave *wave,
			  uint32_t staged, struct kvof_plan_ttft *out,
			  struct kvof_plan_bad *bad);

/* Hardware between KV at rest and the GPUs; 0 is "not given", and then no bound. */
struct kvof_plan_supply {
	bool measured;                   /* all of it, on this machine; else it is of data sheets */
	uint32_t drives;
	double drive_read_bytes_per_s, drive_write_bytes_per_s;
	double stripe_efficiency;        /* of all drives together; 0: 1 */
	double pcie_bytes_per_s;         /* in front of the drives */
	uint32_t ports;                  /* used, not there */
	double port_bytes_per_s;         /* raw: 100 Gbit/s is 12.5e9 */
	double link_efficiency;          /* 0: 1 */
	double server_bytes_per_s;       /* what the array or file server can serve */
	uint32_t ranks;                  /* that load at the same time */
	double rank_bytes_per_s;         /* most that one rank's client takes */
	double session_bytes_per_s;      /* most that one session draws */
	double dram_bytes_per_s;         /* copy from host memory to all GPUs; for the dram arm */
	double fixed_s;                  /* before the first token whatever is loaded */
};

struct kvof_plan_stage {
	const char *name;                /* "drives", "pcie", "link", "server", "client",
					  * "dram copy" */
	double bytes_per_s;
};

struct kvof_plan_supply_rate {
	struct kvof_plan_stage stage[KVOF_PLAN_STAGES_MAX];      /* in the order data takes */
	uint32_t stages;
	const char *bottleneck;          /* the smallest, the first of equals */
	double bytes_per_s;
};

/* Stages that an arm of this kind goes through, and the smallest. -EINVAL: recompute has none, or
 * none of its stages was given. */
int kvof_plan_supply_rate(const struct kvof_plan_supply *supply, enum kvof_plan_arm_kind kind,
			  struct kvof_plan_supply_rate *out, struct kvof_plan_bad *bad);
/* The same for writes: a checkpoint, new KV. */
int kvof_plan_supply_write(const struct kvof_plan_supply *supply, enum kvof_plan_arm_kind kind,
			   struct kvof_plan_supply_rate *out, struct kvof_plan_bad *bad);
/* An arm with the rate of its smallest stage. -EINVAL: as for reads. */
int kvof_plan_arm_of_supply(const struct kvof_plan_supply *supply, enum kvof_plan_arm_kind kind,
			    struct kvof_plan_arm *out, struct kvof_plan_bad *bad);

/* The recompute arm of hardware: FLOP/s of all ranks (spec sheet) and the share of it that a
 * prefill reaches. */
int kvof_plan_arm_of_work(const struct kvof_plan_work *work, double flops_per_s,
			  double efficiency, struct kvof_plan_arm *out,
			  struct kvof_plan_bad *bad);

/* --- service levels and break-even (src/plan/sla.c) ------------------------------------------ */

enum kvof_plan_rank { KVOF_PLAN_P50, KVOF_PLAN_P90, KVOF_PLAN_LAST };

/* Bytes of a session by its length: of a model, or the same for each token. */
struct kvof_plan_length {
	const struct kvof_plan_model *model;     /* NULL: token_bytes */
	const struct kvof_plan_geometry *geometry;
	double token_bytes;
};

/* Bytes of a session of so many tokens; between two counts of tokens a straight line. */
double kvof_plan_length_bytes(const struct kvof_plan_length *length, double tokens);

struct kvof_plan_sla {
	uint32_t sessions;               /* most that meet it; one more does not; 0: none does */
	bool unbounded;                  /* KVOF_PLAN_SESSIONS_MAX meet it */
	double at_s, next_s;             /* the answer's own time, and that of one more */
	char bottleneck[48];
};

/* How many sessions of wave->tokens and wave->bytes have their `rank` within limit_s. The
 * sessions of @wave do not count. @staged: 0, or as in kvof_plan_staged_ttft(). */
int kvof_plan_sla_sessions(const struct kvof_plan_arm *arm, const struct kvof_plan_wave *wave,
			   uint32_t staged, enum kvof_plan_rank rank, double limit_s,
			   struct kvof_plan_sla *out, struct kvof_plan_bad *bad);

/* The longest context in tokens with which `sessions` sessions have their `rank` within limit_s:
 * it meets it, one token more does not. 0: none; KVOF_PLAN_TOKENS_MAX: no limit below it. */
int kvof_plan_sla_tokens(const struct kvof_plan_arm *arm, const struct kvof_plan_length *length,
			 uint32_t sessions, uint32_t resident, enum kvof_plan_rank rank,
			 double limit_s, uint64_t *tokens, struct kvof_plan_bad *bad);

/* Where more sessions at once stop helping. */
struct kvof_plan_saturation {
	double ceiling_sessions;         /* that fill the rate at what one can draw; 0: no ceiling,
					  * one alone fills it */
	double busy_sessions;            /* from here the rate is in use `share` of the time until
					  * the last first token; INFINITY: never */
	double throughput_sessions;      /* from here tokens/s are `share` of their limit */
	double limit_tokens_per_s;       /* of output, with sessions without end; 0: none */
};

/* Of sessions like @wave's (its count of them does not matter); @share: 0.9, say. */
int kvof_plan_saturation_make(const struct kvof_plan_arm *arm,
			      const struct kvof_plan_wave *wave, double share,
			      struct kvof_plan_saturation *out, struct kvof_plan_bad *bad);

enum kvof_plan_even {
	KVOF_PLAN_LOAD_NEVER,            /* recompute is never slower */
	KVOF_PLAN_LOAD_ALWAYS,
	KVOF_PLAN_LOAD_FROM,             /* from_tokens on */
	KVOF_PLAN_LOAD_UNTIL,            /* below until_tokens */
	KVOF_PLAN_LOAD_OUTSIDE,          /* below until_tokens and from from_tokens on */
};

struct kvof_plan_even_at {
	enum kvof_plan_even load;        /* when the load is sooner */
	double from_tokens, until_tokens;
};

/* Lengths at which N sessions have their last first token sooner by loading than by recompute.
 * Bytes may grow more slowly past a window, never faster. */
int kvof_plan_even_tokens(const struct kvof_plan_arm *load, const struct kvof_plan_arm *recompute,
			  const struct kvof_plan_length *length, uint32_t sessions,
			  struct kvof_plan_even_at *out, struct kvof_plan_bad *bad);

/* Bytes/s of the arm at which both take the same for this wave; INFINITY: at none (its fixed time
 * alone is longer). Below it do not load. */
int kvof_plan_even_rate(const struct kvof_plan_arm *load, const struct kvof_plan_arm *recompute,
			const struct kvof_plan_wave *wave, double *bytes_per_s,
			struct kvof_plan_bad *bad);

/* --- a network that loses and delays (src/plan/loss.c) ---------------------------------------- */

enum kvof_plan_transport { KVOF_PLAN_TCP, KVOF_PLAN_RDMA };

struct kvof_plan_net {
	enum kvof_plan_transport transport;
	double link_bytes_per_s;         /* without loss, all ports times efficiency */
	double loss;                     /* share of packets: 0 to below 1 */
	double rtt_s, jitter_s;          /* jitter: most by which a round trip is longer */
	double packet_bytes;             /* payload of one; 0: 8948 for TCP, 4096 for RDMA */
	double flows;                    /* connections in use at once; 0: 1 */
	double rto_s;                    /* TCP's shortest timeout; 0: Mathis's formula alone */
	double rounds;                   /* trips of a session that wait for one another; 0: 1 */
};

/* What of the link's bytes/s is left. */
int kvof_plan_net_rate(const struct kvof_plan_net *net, double *bytes_per_s,
		       struct kvof_plan_bad *bad);
/* The arm over this network: its rate at most the network's, jitter added for each round.
 * @token_bytes: KV of a token, for an arm that has a rate of tokens. */
int kvof_plan_arm_over(const struct kvof_plan_arm *arm, const struct kvof_plan_net *net,
		       double token_bytes, struct kvof_plan_arm *out,
		       struct kvof_plan_bad *bad);

struct kvof_plan_flip {
	double loss;                     /* from which the other is sooner; 0: already; 1: never */
	double jitter_s;                 /* the same of jitter; 0: already; INFINITY: never */
};

/* Where loss, with net's jitter, and jitter, with net's loss, make @other (local, recompute) sooner
 * than @array over the network: of the last first token of this wave. */
int kvof_plan_net_flip(const struct kvof_plan_arm *array, const struct kvof_plan_arm *other,
		       const struct kvof_plan_wave *wave, const struct kvof_plan_net *net,
		       struct kvof_plan_flip *out, struct kvof_plan_bad *bad);

/* --- weights and checkpoints (src/plan/move.c) ------------------------------------------------ */

/* A time that is a fixed part and bytes at a rate. */
struct kvof_plan_line {
	double fixed_s, bytes_per_s;
};

/* Through two measured points. -EINVAL: the same bytes, or more bytes in less time. */
int kvof_plan_line_fit(const double bytes[2], const double seconds[2],
		       struct kvof_plan_line *out, struct kvof_plan_bad *bad);
/* Seconds for so many bytes. */
double kvof_plan_line_s(const struct kvof_plan_line *line, double bytes);

struct kvof_plan_switch {
	double per_hour, switch_s;
};

/* Share of the time in which a GPU serves: 1 - per_hour x switch_s / 3600, at least 0. */
double kvof_plan_switch_use(const struct kvof_plan_switch *s);
/* Seconds of a switch that make this share. */
double kvof_plan_switch_s(double per_hour, double use);

struct kvof_plan_checkpoint_ask {
	double bytes;                    /* of all ranks */
	double fixed_s;                  /* before and after the bytes: barriers, files, rename */
	double write_bytes_per_s;        /* kvof_plan_supply_write() */
	double copy_bytes_per_s;         /* to host memory; 0: training waits for the write */
	double interval_s;               /* of work between two; 0: not told */
};

struct kvof_plan_checkpoint {
	double total_s;                  /* until it is safe */
	double blocked_s;                /* of it without training */
	double use;                      /* share of time that trains; 0: no interval told */
	double least_interval_s;         /* below it checkpoints overtake one another */
};

/* -EINVAL: bytes or the rate of writes are missing. */
int kvof_plan_checkpoint_make(const struct kvof_plan_checkpoint_ask *ask,
			      struct kvof_plan_checkpoint *out, struct kvof_plan_bad *bad);

#ifdef __cplusplus
}
#endif

#endif
