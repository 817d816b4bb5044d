#include "daemon/service/hint.h"

#include <stdio.h>
#include <string.h>

#include "daemon/service/verdict.h"

enum { MAX_NAMED = 3, LEAST_SEQ_LEN = 8 };

/* What is asked for instead. */
typedef struct change {
    shd_strategy strategy; /* unless there are other ranks */
    shd_checkpointing checkpointing;
    uint32_t ranks; /* under zero3; this and what follows: 0 is as asked for */
    uint32_t micro_batch, seq_len;
} change;

typedef struct search {
    const shd_hint_request *q;
    char *out;
    int named;
} search;

static change as_asked(const search *s)
{
    return (change){.strategy = s->q->spec->strategy, .checkpointing = s->q->spec->checkpointing};
}

/* The cheapest that fits; where none does, what needs least. */
static change advised(const search *s)
{
    change c = as_asked(s);
    if (s->q->advice != NULL) {
        c.strategy = s->q->advice->strategy;
        c.checkpointing = s->q->advice->checkpointing;
    }
    return c;
}

static int same_strategy(const shd_strategy *a, const shd_strategy *b)
{
    return memcmp(a, b, sizeof *a) == 0;
}

/* Plain: nothing stays gathered until backward. */
static int names_zero3(const Shard__V1__JobSpec *m)
{
    return m->n_shard_degrees == 0 &&
           (m->strategy[0] == '\0' || strcmp(m->strategy, "zero3") == 0 ||
            strcmp(m->strategy, "full_shard") == 0) &&
           (m->reshard_after_forward[0] == '\0' || strcmp(m->reshard_after_forward, "yes") == 0);
}

/* Under the other levels of determinism it is that of the ranks. */
static int keeps_width(const search *s)
{
    return s->q->spec->determinism == SHD_DETERMINISM_WORLD;
}

/* Of a job with a smaller micro-batch: as it was, or, where that does not divide over more ranks,
 * what it would have become. 0: the message says it. */
static uint32_t global_batch(const search *s, const change *c)
{
    const shd_spec *spec = s->q->spec;
    if (c->micro_batch == 0 || s->q->message->has_global_batch_case) {
        return 0;
    }
    return c->ranks == 0 || spec->global_batch % c->ranks == 0 ? spec->global_batch
                                                               : spec->micro_batch * c->ranks;
}

/* ---- is it one? ---- */

static void change_ranks(const search *s, uint32_t ranks, Shard__V1__JobSpec *m)
{
    if (!names_zero3(m)) {
        m->strategy = (char *)"zero3";
        m->n_shard_degrees = 0;
        m->has_shard_group_case = SHARD__V1__JOB_SPEC__HAS_SHARD_GROUP__NOT_SET;
        m->reshard_after_forward = (char *)"";
    }
    m->has_ranks_case = SHARD__V1__JOB_SPEC__HAS_RANKS_RANKS;
    m->ranks = ranks;
    if (!keeps_width(s)) {
        m->has_reduction_width_case = SHARD__V1__JOB_SPEC__HAS_REDUCTION_WIDTH__NOT_SET;
    }
}

static int resolve(const search *s, const change *c, shd_spec *out)
{
    const shd_hint_request *q = s->q;
    Shard__V1__JobSpec m = *q->message; /* pointers are borrowed */
    const uint32_t batch = global_batch(s, c);
    if (c->ranks != 0) { /* with the batch of the message, or its default, which grows with them */
        change_ranks(s, c->ranks, &m);
    }
    if (c->micro_batch != 0) {
        m.has_micro_batch_case = SHARD__V1__JOB_SPEC__HAS_MICRO_BATCH_MICRO_BATCH;
        m.micro_batch = c->micro_batch;
    }
    if (batch != 0) {
        m.has_global_batch_case = SHARD__V1__JOB_SPEC__HAS_GLOBAL_BATCH_GLOBAL_BATCH;
        m.global_batch = batch;
    }
    if (c->seq_len != 0) {
        m.has_seq_len_case = SHARD__V1__JOB_SPEC__HAS_SEQ_LEN_SEQ_LEN;
        m.seq_len = c->seq_len;
    }
    SHD_TRY(shd_spec_resolve(&m, q->max_ranks, q->node_ranks, q->config, out, NULL));
    out->strategy = c->ranks != 0 ? out->strategy : c->strategy;
    out->checkpointing = c->checkpointing;
    return SHD_OK;
}

/* 1 when the job fits with the change made, *needs are its bytes per rank. */
static int makes_it_fit(const search *s, const change *c, uint64_t *needs)
{
    shd_spec spec;
    shd_plan plan;
    if (__atomic_load_n(s->q->cancel, __ATOMIC_RELAXED) || resolve(s, c, &spec) < 0) {
        return 0; /* e.g. the batch does not divide: not a setting to name */
    }
    int fits = 0;
    if (shd_plan_make(&spec, s->q->threads_per_rank, &plan, NULL) == 0) {
        uint32_t first;
        *needs = shd_plan_bytes(&plan);
        fits = *needs <= shd_room_available(&s->q->room, spec.strategy.world, &first);
    }
    shd_spec_fini(&spec);
    return fits;
}

/* ---- naming ---- */

static void add(char *out, size_t size, const char *text)
{
    const size_t used = strlen(out);
    snprintf(out + used, size - used, "%s", text);
}

static void append(char *out, size_t size, const char *flag, const char *value)
{
    add(out, size, " ");
    add(out, size, flag);
    add(out, size, value[0] != '\0' ? " " : "");
    add(out, size, value);
}

static void append_number(char *out, size_t size, const char *flag, uint32_t value)
{
    char text[16];
    snprintf(text, sizeof text, "%u", value);
    if (value != 0) {
        append(out, size, flag, text);
    }
}

/* Flags of the message that contradict the change: `strategy` are the flags that ask for another
 * one, "" if none do. */
static void name_dropped(const search *s, const change *c, const char *strategy, char *out,
                         size_t size)
{
    const Shard__V1__JobSpec *m = s->q->message;
    const int other = strategy[0] != '\0';
    const struct {
        const char *flag;
        int contradicts;
    } those[] = {
        {"--shard-degrees", other && m->n_shard_degrees > 0},
        {"--shard-group", other && m->has_shard_group_case},
        {"--reshard-after-forward", other && m->reshard_after_forward[0] != '\0'},
        {"--reduction-width", c->ranks != 0 && m->has_reduction_width_case && !keeps_width(s)},
    };
    const char *before = "without";
    for (size_t i = 0; i < sizeof those / sizeof those[0]; i++) {
        if (those[i].contradicts && strstr(strategy, those[i].flag) == NULL) {
            append(out, size, before, those[i].flag);
            before = "and";
        }
    }
}

/* As flags, each after a space. */
static void name_change(const search *s, const change *c, char *out, size_t size)
{
    char strategy[SHD_STRATEGY_FLAGS_LEN] = "";
    out[0] = '\0';
    if (c->ranks != 0) {
        snprintf(strategy, sizeof strategy, "%s",
                 names_zero3(s->q->message) ? "" : "--strategy zero3");
    } else if (!same_strategy(&c->strategy, &s->q->spec->strategy)) {
        shd_strategy_flags(&c->strategy, strategy);
    }
    if (strategy[0] != '\0') {
        append(out, size, strategy, "");
    }
    append_number(out, size, "--ranks", c->ranks);
    if (c->checkpointing != s->q->spec->checkpointing) {
        append(out, size, "--activation-checkpointing", shd_checkpointing_name(c->checkpointing));
    }
    append_number(out, size, "--micro-batch", c->micro_batch);
    append_number(out, size, "--global-batch", global_batch(s, c));
    append_number(out, size, "--seq-len", c->seq_len);
    name_dropped(s, c, strategy, out, size);
}

/* A change that was found to fit. */
static void propose(search *s, const change *c, uint64_t needs)
{
    char flags[SHD_HINT_LEN], bytes[SHD_VERDICT_BYTES], text[SHD_HINT_LEN + 64];
    name_change(s, c, flags, sizeof flags);
    snprintf(text, sizeof text, "%s%s (%s)", s->named > 0 ? "," : "would fit:", flags,
             shd_verdict_bytes(needs, bytes));
    if (s->named < MAX_NAMED && strlen(s->out) + strlen(text) < SHD_HINT_LEN) {
        strcat(s->out, text);
        s->named++;
    }
}

/* Does it need less than what was asked for? */
static int advice_helps(const search *s)
{
    const change asked = as_asked(s);
    uint64_t needs = 0;
    makes_it_fit(s, &asked, &needs);
    return s->q->advice != NULL && s->q->advice->bytes < needs;
}

static void name_none(search *s)
{
    const change least = advised(s);
    const int here = s->q->room.planned != NULL;
    char flags[SHD_HINT_LEN], bytes[SHD_VERDICT_BYTES];
    add(s->out, SHD_HINT_LEN, "no strategy, checkpointing");
    add(s->out, SHD_HINT_LEN,
        here ? ", micro-batch, rank count or sequence length" : " or micro-batch");
    add(s->out, SHD_HINT_LEN, " makes it fit");
    name_change(s, &least, flags, sizeof flags);
    if (flags[0] != '\0' && advice_helps(s)) {
        add(s->out, SHD_HINT_LEN, " (");
        add(s->out, SHD_HINT_LEN, flags + 1);
        add(s->out, SHD_HINT_LEN, " needs ");
        add(s->out, SHD_HINT_LEN, shd_verdict_bytes(s->q->advice->bytes, bytes));
        add(s->out, SHD_HINT_LEN, ")");
    }
    add(s->out, SHD_HINT_LEN,
        here ? ": take a smaller model, end other jobs or raise memory_per_rank"
             : ": take more ranks, shorter sequences or a smaller model");
}

/* ---- the changes, those that change least first ---- */

/* Halves the micro-batch until it fits; 0: in vain. */
static int halve(const search *s, change *c, uint64_t *needs)
{
    for (c->micro_batch = s->q->spec->micro_batch / 2; c->micro_batch > 0; c->micro_batch /= 2) {
        if (makes_it_fit(s, c, needs)) {
            return 1;
        }
    }
    return 0;
}

static void try_strategies(search *s)
{
    const change c = advised(s);
    if (s->q->advice != NULL && s->q->advice->fits) {
        propose(s, &c, s->q->advice->bytes);
    }
}

/* Under what was asked for; where no strategy alone does, also under what needs least, if that
 * leaves a larger one. */
static void try_micro_batches(search *s)
{
    change asked = as_asked(s), least = advised(s);
    uint64_t needs;
    const int alone = s->named == 0;
    if (halve(s, &asked, &needs)) {
        propose(s, &asked, needs);
    }
    if (alone && halve(s, &least, &needs) && least.micro_batch > asked.micro_batch) {
        propose(s, &least, needs);
    }
}

/* The most ranks, under what needs least. Where one sequence does not fit, more do not. */
static void try_ranks_and_micro_batches(search *s)
{
    change c = advised(s);
    uint64_t needs;
    for (c.ranks = s->q->room.n_ranks; c.ranks > s->q->spec->strategy.world; c.ranks--) {
        c.micro_batch = 1;
        if (makes_it_fit(s, &c, &needs) && halve(s, &c, &needs)) {
            propose(s, &c, needs);
            return;
        }
    }
}

static void try_ranks(search *s)
{
    const change least = advised(s);
    uint64_t needs;
    for (uint32_t n = s->q->spec->strategy.world + 1; n <= s->q->room.n_ranks; n++) {
        change c = as_asked(s);
        c.ranks = n;
        int fits = makes_it_fit(s, &c, &needs);
        if (!fits && s->named == 0 && c.checkpointing != least.checkpointing) {
            c.checkpointing = least.checkpointing;
            fits = makes_it_fit(s, &c, &needs);
        }
        if (fits) {
            propose(s, &c, needs);
            return;
        }
    }
    if (s->named == 0 && s->q->spec->micro_batch > 1) {
        try_ranks_and_micro_batches(s);
    }
}

static void try_lengths(search *s)
{
    uint64_t needs;
    for (uint32_t len = s->q->spec->seq_len / 2; len >= LEAST_SEQ_LEN; len /= 2) {
        change c = as_asked(s);
        c.seq_len = len;
        int fits = makes_it_fit(s, &c, &needs);
        if (!fits && s->named == 0) {
            c = advised(s);
            c.seq_len = len;
            c.micro_batch = s->q->spec->micro_batch > 1;
            fits = makes_it_fit(s, &c, &needs);
        }
        if (!fits && s->named == 0 && s->q->room.n_ranks > s->q->spec->strategy.world) {
            c.ranks = s->q->room.n_ranks;
            fits = makes_it_fit(s, &c, &needs);
        }
        if (fits) {
            propose(s, &c, needs);
            return;
        }
    }
}

void shd_hint(const shd_hint_request *request, char out[SHD_HINT_LEN])
{
    search s = {.q = request, .out = out};
    out[0] = '\0';
    try_strategies(&s);
    try_micro_batches(&s);
    if (request->room.planned != NULL && s.named < MAX_NAMED) {
        try_ranks(&s);
    }
    if (request->room.planned != NULL && s.named < MAX_NAMED) {
        try_lengths(&s);
    }
    if (s.named == 0) {
        name_none(&s);
    }
}
