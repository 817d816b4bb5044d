#include "client/follow.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "client/mem.h"
#include "client/meter.h"
#include "client/progress.h"
#include "client/units.h"

enum { QUIET_MS = 2000, PREPARING_MS = 250, TRIES = 6, FIRST_PAUSE_MS = 100 };

typedef struct follow {
    shc_env *env;
    const char *id;
    const char *name;
    uint64_t total; /* steps; 0: no end */
    uint64_t from;
    uint64_t last_index; /* of the event shown last; valid when any */
    int any;
    uint64_t last_step;
    Shard__V1__JobState state;
    shc_rhythm rhythm;
    shc_rate rate;
    shc_buf pending; /* plain line of a step that was not due */
    shc_buf bar;     /* the line that stands on the terminal */
    double drawn_at;
    shc_meter meter; /* before the first step */
    shc_json json;
} follow;

static double now_s(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

/* ---- output ---- */

static void bar_erase(follow *f)
{
    if (f->env->term.tty && f->bar.len)
        fputs("\r\033[K", stdout);
}

static void bar_draw(follow *f)
{
    if (f->env->term.tty && f->bar.len) {
        printf("\r%s\033[K", shc_buf_str(&f->bar));
        fflush(stdout);
        f->drawn_at = now_s();
    }
}

static void print_pending(follow *f)
{
    if (f->pending.len) {
        shc_buf_puts(&f->pending, "\n");
        shc_buf_flush(&f->pending, stdout);
    }
}

/* A line of its own, above the bar, or after the step it belongs to. */
static void print_line(follow *f, shc_buf *line)
{
    print_pending(f);
    bar_erase(f);
    shc_buf_puts(line, "\n");
    shc_buf_flush(line, stdout);
    bar_draw(f);
}

/* The last step is always shown, and the bar stays where it ended. */
static void flush_steps(follow *f)
{
    print_pending(f);
    if (f->env->term.tty && f->bar.len) {
        bar_draw(f);
        putchar('\n');
        fflush(stdout);
        shc_buf_clear(&f->bar);
    }
}

static void show_step(follow *f, const Shard__V1__StepResult *step)
{
    const double now = now_s();
    const shc_term *term = &f->env->term;

    f->last_step = step->step;
    shc_meter_clear(&f->meter);
    if (f->env->json) {
        shc_json *j = &f->json;
        shc_json_open(j, NULL, '{');
        shc_json_u64(j, "step", step->step);
        shc_json_num(j, "loss", step->loss);
        shc_json_num(j, "grad_norm", step->grad_norm);
        shc_json_num(j, "lr", step->lr);
        shc_json_u64(j, "tokens", step->tokens);
        shc_json_num(j, "step_ms", step->step_ms);
        shc_json_num(j, "tokens_per_s", step->tokens_per_s);
        shc_json_bool(j, "skipped", step->skipped);
        shc_json_u64(j, "samples", step->samples);
        if (step->loss_scale > 0)
            shc_json_num(j, "loss_scale", step->loss_scale);
        shc_json_num(j, "unix", step->unix);
        shc_json_close(j, '}');
        shc_json_line(j, stdout);
        return;
    }

    shc_rate_add(&f->rate, step->step, step->step_ms, now);
    const double eta = f->total ? shc_rate_eta(&f->rate, f->total) : -1;
    if (term->tty) {
        if (step->skipped) {
            shc_buf line = {0};
            shc_buf_printf(&line, "step %" PRIu64 " skipped: its gradient was not finite",
                           step->step);
            print_line(f, &line);
            shc_buf_fini(&line);
        }
        const int first = !f->bar.len;
        const shc_term fresh = shc_term_of(stdout);
        shc_buf_clear(&f->bar);
        shc_progress_bar(&f->bar, step, f->total, eta, &fresh);
        if (first || now - f->drawn_at >= 0.1)
            bar_draw(f);
        return;
    }
    shc_buf_clear(&f->pending);
    shc_progress_plain(&f->pending, step, f->total, eta);
    if (step->skipped || shc_rhythm_due(&f->rhythm, step->step, f->total, now))
        print_pending(f);
}

static void show_eval(follow *f, const Shard__V1__EvalResult *eval)
{
    shc_buf line = {0};
    char count[SHC_UNIT_LEN];

    if (f->env->json) {
        shc_json *j = &f->json;
        shc_json_open(j, NULL, '{');
        shc_json_num(j, "eval_loss", eval->loss);
        shc_json_num(j, "perplexity", exp(eval->loss));
        shc_json_u64(j, "step", eval->step);
        shc_json_u64(j, "tokens", eval->tokens);
        shc_json_num(j, "ms", eval->ms);
        shc_json_num(j, "unix", eval->unix);
        shc_json_close(j, '}');
        shc_json_line(j, stdout);
        return;
    }
    shc_buf_printf(&line, "%seval at step %" PRIu64 "  loss %.4f%s  on %s tokens in %.1f s",
                   shc_bold(&f->env->term), eval->step, eval->loss, shc_plain(&f->env->term),
                   shc_format_count(count, (double)eval->tokens), eval->ms / 1000);
    print_line(f, &line);
    shc_buf_fini(&line);
}

static void show_state(follow *f, Shard__V1__JobState state, const char *reason, uint64_t step)
{
    shc_buf line = {0};

    f->state = state;
    shc_meter_clear(&f->meter);
    if (f->env->json) {
        shc_json *j = &f->json;
        shc_json_open(j, NULL, '{');
        shc_json_str(j, "state", shc_state_name(state));
        shc_json_str(j, "reason", reason);
        shc_json_u64(j, "step", step);
        shc_json_close(j, '}');
        shc_json_line(j, stdout);
        return;
    }
    if (shc_state_final(state))
        flush_steps(f);
    shc_buf_puts(&line, shc_bold(&f->env->term));
    shc_text_clean(&line, f->name);
    shc_buf_printf(&line, ": %s%s at step %" PRIu64, shc_state_name(state),
                   shc_plain(&f->env->term), step);
    if (*reason) {
        shc_buf_puts(&line, ": ");
        shc_text_clean(&line, reason);
    }
    print_line(f, &line);
    shc_buf_fini(&line);
}

/* ---- events ---- */

static void take_event(follow *f, const Shard__V1__Event *event)
{
    /* After a reconnect the daemon begins with the step shown last: what was seen is dropped. */
    if (f->any && event->index <= f->last_index)
        return;
    f->any = 1;
    f->last_index = event->index;
    switch (event->kind_case) {
    case SHARD__V1__EVENT__KIND_STEP:
        show_step(f, event->step);
        break;
    case SHARD__V1__EVENT__KIND_EVAL:
        show_eval(f, event->eval);
        break;
    case SHARD__V1__EVENT__KIND_STATE:
        show_state(f, event->state->state, event->state->reason, event->state->step);
        break;
    default:
        break;
    }
}

/* Asks for the job; final states become f->state and are shown, as is how far it has prepared. 0,
 * or the error. */
static int ask_state(follow *f, shc_error *err)
{
    Shard__V1__JobRef ref = SHARD__V1__JOB_REF__INIT;
    Shard__V1__Job *job;

    ref.job = (char *)f->id;
    int rc = shc_get_job(f->env->client, &ref, &job, err);
    if (rc)
        return rc;
    if (shc_state_final(job->state))
        show_state(f, job->state, job->reason, job->step);
    else if (job->progress)
        shc_meter_show(&f->meter, job->progress);
    shard__v1__job__free_unpacked(job, NULL);
    return 0;
}

/* Reads one stream to its end. 0: the daemon ended it or the job is over; else the error. */
static int read_stream(follow *f, int *progressed, shc_error *err)
{
    Shard__V1__WatchRequest request = SHARD__V1__WATCH_REQUEST__INIT;
    shc_stream *stream;
    ProtobufCMessage *message;
    int quiet = 0;

    request.job = (char *)f->id;
    request.has_from_step_case = SHARD__V1__WATCH_REQUEST__HAS_FROM_STEP_FROM_STEP;
    request.from_step = f->last_step > f->from ? f->last_step : f->from;
    request.follow = 1;
    int rc = shc_watch(f->env->client, &request, &stream, err);
    while (!rc && !shc_state_final(f->state)) {
        const int preparing = f->state == SHARD__V1__JOB_STATE__JOB_STATE_QUEUED;
        int got = shc_stream_next(stream, preparing ? PREPARING_MS : QUIET_MS, &message, err);
        if (got == SHC_MESSAGE) {
            quiet = 0;
            *progressed = 1;
            take_event(f, (const Shard__V1__Event *)message);
            shc_message_free(message);
        } else if (got == SHC_TIMEOUT) {
            /* A job that ended just before the stream began sends no event: ask, once it is
             * certain that nothing more is under way. */
            bar_draw(f);
            if (preparing || ++quiet > 1)
                rc = ask_state(f, err);
        } else if (got == SHC_END) {
            rc = ask_state(f, err);
            break;
        } else {
            rc = got;
        }
    }
    shc_stream_close(stream);
    return rc;
}

static int pause_ms(const follow *f, int ms)
{
    for (; ms > 0 && !*f->env->interrupt; ms -= 50)
        nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
    return *f->env->interrupt != 0;
}

static void say_reconnecting(follow *f, int attempt)
{
    if (attempt != 1)
        return;
    shc_meter_clear(&f->meter);
    bar_erase(f);
    fflush(stdout);
    fprintf(stderr, "shardctl: the connection broke after step %" PRIu64 "; connecting again\n",
            f->last_step);
    bar_draw(f);
}

static int detached(follow *f)
{
    shc_meter_clear(&f->meter);
    flush_steps(f);
    FILE *out = f->env->json ? stderr : stdout;
    if (f->state == SHARD__V1__JOB_STATE__JOB_STATE_PAUSED) {
        fprintf(out, "detached; the job is paused: shardctl resume %s\n", f->name);
    } else {
        fprintf(out, "detached; the job goes on: shardctl attach %s\n", f->name);
    }
    return SHC_EXIT_DONE;
}

int shc_follow(shc_env *env, const Shard__V1__Job *job, int has_from, uint64_t from)
{
    follow f = {
        .env = env,
        .meter = {.env = env},
        .id = job->id,
        .name = shc_job_name(job),
        .total = job->spec && job->spec->has_steps_case ? job->spec->steps : 0,
        .from = has_from ? from : job->step,
        .state = job->state,
    };
    shc_error err = {0};
    int rc = 0, attempt = 0, wait = FIRST_PAUSE_MS, status;

    /* Without history there is nothing to wait for in a job that is over. */
    if (shc_state_final(job->state)) {
        if (has_from)
            f.state = SHARD__V1__JOB_STATE__JOB_STATE_UNSPECIFIED;
        else
            show_state(&f, job->state, job->reason, job->step);
    }
    while (!shc_state_final(f.state) && !*env->interrupt) {
        int progressed = 0;
        rc = read_stream(&f, &progressed, &err);
        if (progressed) {
            attempt = 0;
            wait = FIRST_PAUSE_MS;
        }
        if (shc_state_final(f.state) || *env->interrupt)
            break;
        if (rc && err.grpc_status != 14)
            break;
        if (++attempt > TRIES)
            break;
        say_reconnecting(&f, attempt);
        pause_ms(&f, wait);
        wait *= 2;
    }

    if (shc_state_final(f.state)) {
        flush_steps(&f);
        status =
            f.state == SHARD__V1__JOB_STATE__JOB_STATE_DONE ? SHC_EXIT_DONE : SHC_EXIT_JOB_FAILED;
    } else if (*env->interrupt) {
        status = detached(&f);
    } else {
        flush_steps(&f);
        if (!rc)
            shc_complain(&(shc_error){.message =
                                          "the daemon ends the stream of this job each time; "
                                          "look at its log"});
        status = rc ? shc_complain(&err) : SHC_EXIT_REFUSED;
    }
    shc_buf_fini(&f.pending);
    shc_buf_fini(&f.bar);
    shc_json_fini(&f.json);
    return status;
}
