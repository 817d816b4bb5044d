/* shardctl trace: the timeline of a job's next steps, in the JSON that Perfetto and
 * chrome://tracing read (Trace Event Format: complete events, times in microseconds). */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/job_arg.h"
#include "client/mem.h"
#include "client/units.h"

typedef struct trace_args {
    char *job;
    char *output;
    uint32_t steps;
} trace_args;

static const shc_option options[] = {
    {.name = "steps",
     .value = "N",
     .type = SHC_U32,
     .at = offsetof(trace_args, steps),
     .min = 1,
     .max = 1000,
     .help = "how many steps to show; default 1"},
    {.name = "output",
     .letter = 'o',
     .value = "FILE",
     .type = SHC_PATH,
     .at = offsetof(trace_args, output),
     .help = "file to write; open it in ui.perfetto.dev or chrome://tracing"},
};
static const shc_option_table table = {options, sizeof options / sizeof *options, 0};

/* In the order in which they are drawn. */
static const char *const lanes[] = {"compute", "gather", "reduce", "optimizer", "wait"};
enum { COMPUTE, GATHER, REDUCE, OPTIMIZER, WAIT, N_LANES };

typedef struct interval {
    uint64_t begin, end;
} interval;

typedef struct intervals {
    interval *of;
    size_t n, room;
} intervals;

typedef struct rank_sums {
    intervals busy, moving; /* compute and optimizer; gathers and reductions */
    uint64_t begin, end, waited;
} rank_sums;

typedef struct summary {
    rank_sums *ranks;
    size_t n_ranks;
    uint64_t events, dropped, steps, last_step;
} summary;

static void add(intervals *list, uint64_t begin, uint64_t end)
{
    if (list->n == list->room) {
        list->room = list->room ? 2 * list->room : 256;
        list->of = shc_reallocarray(list->of, list->room, sizeof *list->of);
    }
    list->of[list->n++] = (interval){begin, end};
}

static int by_begin(const void *a, const void *b)
{
    const interval *x = a, *y = b;
    return (x->begin > y->begin) - (x->begin < y->begin);
}

static uint64_t total(const intervals *list)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < list->n; i++)
        sum += list->of[i].end - list->of[i].begin;
    return sum;
}

/* Time of `moving` during which the rank computed. The intervals of one thread do not overlap. */
static uint64_t hidden(rank_sums *rank)
{
    const intervals *busy = &rank->busy, *moving = &rank->moving;
    uint64_t sum = 0;

    if (busy->n)
        qsort(busy->of, busy->n, sizeof *busy->of, by_begin);
    if (moving->n)
        qsort(moving->of, moving->n, sizeof *moving->of, by_begin);
    for (size_t i = 0, first = 0; i < moving->n; i++) {
        while (first < busy->n && busy->of[first].end <= moving->of[i].begin)
            first++;
        for (size_t k = first; k < busy->n && busy->of[k].begin < moving->of[i].end; k++) {
            const uint64_t from =
                busy->of[k].begin > moving->of[i].begin ? busy->of[k].begin : moving->of[i].begin;
            const uint64_t to =
                busy->of[k].end < moving->of[i].end ? busy->of[k].end : moving->of[i].end;
            sum += to - from;
        }
    }
    return sum;
}

static int lane_of(const char *name)
{
    for (int i = 0; i < N_LANES; i++) {
        if (strcmp(lanes[i], name) == 0)
            return i;
    }
    return N_LANES;
}

static void name_row(shc_json *json, uint32_t rank, int lane)
{
    char text[32];

    shc_json_open(json, NULL, '{');
    shc_json_str(json, "ph", "M");
    shc_json_u64(json, "pid", rank);
    if (lane >= 0)
        shc_json_i64(json, "tid", lane);
    shc_json_str(json, "name", lane < 0 ? "process_name" : "thread_name");
    shc_json_open(json, "args", '{');
    snprintf(text, sizeof text, "rank %" PRIu32, rank);
    shc_json_str(json, "name", lane < 0 ? text : lanes[lane]);
    shc_json_close(json, '}');
    shc_json_close(json, '}');
}

/* A rank of which nothing has been seen before gets its rows. */
static rank_sums *find_rank(summary *sum, uint32_t rank, shc_json *json)
{
    while (sum->n_ranks <= rank) {
        sum->ranks = shc_reallocarray(sum->ranks, sum->n_ranks + 1, sizeof *sum->ranks);
        sum->ranks[sum->n_ranks] = (rank_sums){.begin = UINT64_MAX};
        name_row(json, (uint32_t)sum->n_ranks, -1);
        for (int lane = 0; lane < N_LANES; lane++)
            name_row(json, (uint32_t)sum->n_ranks, lane);
        sum->n_ranks++;
    }
    return &sum->ranks[rank];
}

static void write_event(const Shard__V1__TraceEvent *e, summary *sum, shc_json *json)
{
    const int lane = lane_of(e->lane);
    rank_sums *rank = find_rank(sum, e->rank, json);

    shc_json_open(json, NULL, '{');
    shc_json_str(json, "ph", "X");
    shc_json_u64(json, "pid", e->rank);
    shc_json_i64(json, "tid", lane);
    shc_json_num(json, "ts", (double)e->begin_ns / 1e3);
    shc_json_num(json, "dur", (double)(e->end_ns - e->begin_ns) / 1e3);
    shc_json_str(json, "name", e->name);
    shc_json_str(json, "cat", e->lane);
    shc_json_open(json, "args", '{');
    shc_json_u64(json, "step", e->step);
    shc_json_u64(json, "round", e->round);
    if (e->has_segment_case)
        shc_json_u64(json, "segment", e->segment);
    if (e->has_unit_case)
        shc_json_u64(json, "unit", e->unit);
    if (e->bytes)
        shc_json_u64(json, "bytes", e->bytes);
    shc_json_close(json, '}');
    shc_json_close(json, '}');

    sum->events++;
    if (e->begin_ns < rank->begin)
        rank->begin = e->begin_ns;
    if (e->end_ns > rank->end)
        rank->end = e->end_ns;
    if (lane == COMPUTE || lane == OPTIMIZER)
        add(&rank->busy, e->begin_ns, e->end_ns);
    else if (lane == GATHER || lane == REDUCE)
        add(&rank->moving, e->begin_ns, e->end_ns);
    else
        rank->waited += e->end_ns - e->begin_ns;
}

/* Writes what comes to the file. 0, or what shc_stream_next failed with. */
static int write_stream(shc_env *env, shc_stream *stream, FILE *file, summary *sum, shc_error *err)
{
    shc_json json = {0};
    ProtobufCMessage *message;
    int got;

    shc_json_open(&json, NULL, '{');
    shc_json_str(&json, "displayTimeUnit", "ms");
    shc_json_open(&json, "traceEvents", '[');
    while ((got = shc_stream_next(stream, -1, &message, err)) == SHC_MESSAGE) {
        const Shard__V1__TraceResponse *m = (const Shard__V1__TraceResponse *)message;
        for (size_t i = 0; i < m->n_events; i++)
            write_event(m->events[i], sum, &json);
        sum->dropped += m->dropped;
        if (m->step != sum->last_step) {
            sum->last_step = m->step;
            sum->steps++;
            if (env->term.tty)
                fprintf(stderr, "\rstep %" PRIu64, m->step);
        }
        shc_message_free(message);
        shc_buf_flush(&json.text, file);
    }
    if (sum->steps && env->term.tty)
        fputs("\r\033[K", stderr);
    shc_json_close(&json, ']');
    shc_json_close(&json, '}');
    shc_json_line(&json, file);
    shc_json_fini(&json);
    return got == SHC_END ? 0 : got;
}

static void show_json(const trace_args *args, summary *sum)
{
    shc_json json = {0};

    shc_json_open(&json, NULL, '{');
    shc_json_str(&json, "path", args->output);
    shc_json_u64(&json, "steps", sum->steps);
    shc_json_u64(&json, "events", sum->events);
    shc_json_u64(&json, "dropped", sum->dropped);
    shc_json_open(&json, "ranks", '[');
    for (size_t r = 0; r < sum->n_ranks; r++) {
        rank_sums *rank = &sum->ranks[r];
        shc_json_open(&json, NULL, '{');
        shc_json_u64(&json, "rank", r);
        shc_json_num(&json, "ms", (double)(rank->end - rank->begin) / 1e6);
        shc_json_num(&json, "compute_ms", (double)total(&rank->busy) / 1e6);
        shc_json_num(&json, "communication_ms", (double)total(&rank->moving) / 1e6);
        shc_json_num(&json, "hidden_ms", (double)hidden(rank) / 1e6);
        shc_json_num(&json, "wait_ms", (double)rank->waited / 1e6);
        shc_json_close(&json, '}');
    }
    shc_json_close(&json, ']');
    shc_json_close(&json, '}');
    shc_json_line(&json, stdout);
    shc_json_fini(&json);
}

static void show(const shc_env *env, const trace_args *args, summary *sum)
{
    shc_buf out = {0};

    for (size_t r = 0; r < sum->n_ranks; r++) {
        rank_sums *rank = &sum->ranks[r];
        const double all = (double)(rank->end - rank->begin) / 1e6;
        const double moving = (double)total(&rank->moving) / 1e6;
        const double under = (double)hidden(rank) / 1e6;
        shc_buf_printf(&out, "rank %zu: %.1f ms a step: %.0f%% compute, %.1f ms of communication",
                       r, all / (double)sum->steps,
                       all > 0 ? 100 * (double)total(&rank->busy) / 1e6 / all : 0.0,
                       moving / (double)sum->steps);
        if (moving > 0)
            shc_buf_printf(&out, " (%.0f%% of it under compute)", 100 * under / moving);
        shc_buf_puts(&out, "\n");
    }
    if (sum->dropped)
        shc_buf_printf(&out, "%" PRIu64 " events did not fit and are missing\n", sum->dropped);
    shc_buf_printf(&out, "%s%" PRIu64 " event%s of %" PRIu64 " step%s: ", shc_bold(&env->term),
                   sum->events, sum->events == 1 ? "" : "s", sum->steps,
                   sum->steps == 1 ? "" : "s");
    shc_text_clean(&out, args->output);
    shc_buf_printf(&out, "%s\n", shc_plain(&env->term));
    shc_buf_flush(&out, stdout);
    shc_buf_fini(&out);
}

/* The file appears under its name when it is whole. */
static int write_file(shc_env *env, const trace_args *args, shc_stream *stream, summary *sum)
{
    shc_buf part = {0};
    shc_error err;
    int rc = SHC_EXIT_DONE;

    shc_buf_printf(&part, "%s.part", args->output);
    const char *path = shc_buf_str(&part);
    FILE *file = fopen(path, "w");
    if (!file) {
        rc = shc_usage("--output %s: %s; give a file that can be written", args->output,
                       strerror(errno));
        shc_buf_fini(&part);
        return rc;
    }
    if (write_stream(env, stream, file, sum, &err))
        rc = shc_complain(&err);
    const int broken = ferror(file);
    if ((fclose(file) || broken) && !rc)
        rc = shc_usage("--output %s: %s", args->output, strerror(errno));
    if (!rc && rename(path, args->output))
        rc = shc_usage("--output %s: %s", args->output, strerror(errno));
    if (rc)
        unlink(path);
    shc_buf_fini(&part);
    return rc;
}

static int run(shc_env *env, void *arguments)
{
    const trace_args *args = arguments;
    Shard__V1__TraceRequest request = SHARD__V1__TRACE_REQUEST__INIT;
    summary sum = {0};
    shc_stream *stream;
    shc_error err;
    int rc;

    if (!args->output)
        return shc_usage("--output is missing; give --output FILE for the timeline");
    if ((rc = shc_env_connect(env)))
        return rc;
    request.job = args->job;
    request.steps = args->steps;
    if (shc_trace(env->client, &request, &stream, &err))
        return shc_complain(&err);
    rc = write_file(env, args, stream, &sum);
    shc_stream_close(stream);
    if (!rc && env->json)
        show_json(args, &sum);
    else if (!rc)
        show(env, args, &sum);
    for (size_t r = 0; r < sum.n_ranks; r++) {
        free(sum.ranks[r].busy.of);
        free(sum.ranks[r].moving.of);
    }
    free(sum.ranks);
    return rc;
}

const shc_command shc_cmd_trace = {
    .syntax =
        {
            .name = "trace",
            .about = "Writes a timeline of the job's next steps: what each rank computes, gathers, "
                     "reduces and waits for, when.",
            .tables = {&table},
            .operands = {SHC_JOB_OPERAND(trace_args)},
        },
    .summary = "write a timeline of the next steps",
    .args_size = sizeof(trace_args),
    .run = run,
};
