/* shardctl status: the whole daemon on one screen, once or again and again. */
#include <stdio.h>
#include <string.h>

#include "client/cmd.h"
#include "client/status_view.h"

typedef struct status_args {
    int watch;
    double seconds;
} status_args;

static const shc_option options[] = {
    {.name = "watch",
     .value = "SECONDS",
     .type = SHC_OPT_NUM,
     .at = offsetof(status_args, seconds),
     .has = offsetof(status_args, watch),
     .mark = 1,
     .min = 0.1,
     .max = 3600,
     .help = "show it again every so often, until Ctrl-C; default 1"},
};
static const shc_option_table table = {options, sizeof options / sizeof *options, 0};

static void init(void *args)
{
    ((status_args *)args)->seconds = 1;
}

/* What fits on the screen, in place of what stood there. */
static void draw(shc_buf *text, const shc_term *term)
{
    shc_buf frame = {0};
    const char *line = shc_buf_str(text);

    shc_buf_puts(&frame, "\033[H");
    for (int row = 0; *line && row < term->height - 1; row++) {
        const size_t n = strcspn(line, "\n");
        shc_buf_add(&frame, line, n);
        shc_buf_puts(&frame, "\033[0m\033[K\n");
        line += n + (line[n] == '\n');
    }
    shc_buf_puts(&frame, "\033[J");
    if (*line)
        shc_buf_puts(&frame, "...");
    shc_buf_flush(&frame, stdout);
    shc_buf_fini(&frame);
}

static void show(shc_env *env, const Shard__V1__StatusResponse *status, int again)
{
    shc_buf text = {0};
    shc_json json = {0};

    if (env->json) {
        shc_status_json(&json, status);
        shc_json_line(&json, stdout);
    } else {
        const shc_term term = shc_term_of(stdout);
        shc_status_render(&text, &term, status);
        if (again && term.tty) {
            draw(&text, &term);
        } else {
            if (again > 1)
                putchar('\n');
            shc_buf_flush(&text, stdout);
        }
    }
    shc_buf_fini(&text);
    shc_json_fini(&json);
}

static int watch(shc_env *env, double seconds)
{
    Shard__V1__WatchStatusRequest request = SHARD__V1__WATCH_STATUS_REQUEST__INIT;
    const int screen = env->term.tty && !env->json;
    ProtobufCMessage *message;
    shc_stream *stream;
    shc_error err;
    int got, frames = 0;

    request.interval_ms = (uint32_t)(seconds * 1000 + 0.5);
    if (shc_watch_status(env->client, &request, &stream, &err))
        return shc_complain(&err);
    while ((got = shc_stream_next(stream, -1, &message, &err)) == SHC_MESSAGE) {
        /* The other screen, without cursor and line wrap; only once there is something to show. */
        if (!frames && screen)
            fputs("\033[?1049h\033[?25l\033[?7l", stdout);
        show(env, (const Shard__V1__StatusResponse *)message, ++frames);
        shc_message_free(message);
    }
    if (frames && screen) {
        fputs("\033[?7h\033[?25h\033[?1049l", stdout);
        fflush(stdout);
    }
    shc_stream_close(stream);
    if (*env->interrupt || got == SHC_END)
        return SHC_EXIT_DONE;
    return shc_complain(&err);
}

static int run(shc_env *env, void *arguments)
{
    const status_args *args = arguments;
    Shard__V1__StatusRequest request = SHARD__V1__STATUS_REQUEST__INIT;
    Shard__V1__StatusResponse *status;
    shc_error err;
    int rc = shc_env_connect(env);

    if (rc)
        return rc;
    if (args->watch)
        return watch(env, args->seconds);
    if (shc_status(env->client, &request, &status, &err))
        return shc_complain(&err);
    show(env, status, 0);
    shard__v1__status_response__free_unpacked(status, NULL);
    return SHC_EXIT_DONE;
}

const shc_command shc_cmd_status = {
    .syntax =
        {
            .name = "status",
            .about = "Shows the daemon, its ranks, and each job with its memory by tag and its "
                     "communication.",
            .tables = {&table},
        },
    .summary = "show ranks, jobs, memory and communication",
    .args_size = sizeof(status_args),
    .init = init,
    .run = run,
};
