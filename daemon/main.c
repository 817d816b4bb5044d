/* shardd: wires configuration, ranks, jobs, RPC and the service manager together, runs the loop,
 * and takes everything down again in order. Floor F6; main thread, which is the loop thread. */
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>
#include <uv.h>

#include "daemon/base/log.h"
#include "daemon/base/mem.h"
#include "daemon/data/token_cache.h"
#include "daemon/device/device.h"
#include "daemon/rank/rank.h"
#include "daemon/service/config.h"
#include "daemon/service/job.h"
#include "daemon/service/jobs.h"
#include "daemon/service/listen.h"
#include "daemon/service/notify.h"
#include "daemon/service/prepare.h"
#include "daemon/service/rpc.h"
#include "daemon/service/rpc_drive.h"
#include "daemon/service/rpc_evaluate.h"
#include "daemon/service/rpc_export.h"
#include "daemon/service/rpc_generate.h"
#include "daemon/service/rpc_health.h"
#include "daemon/service/rpc_jobs.h"
#include "daemon/service/rpc_plan.h"
#include "daemon/service/rpc_reshard.h"
#include "daemon/service/rpc_status.h"
#include "daemon/service/rpc_tokenize.h"
#include "daemon/service/rpc_trace.h"
#include "daemon/service/rpc_watch.h"
#include "daemon/service/statedir.h"
#include "proto/shd_version.h"

#define TOKEN_CACHE "tokens" /* in the state directory */
#define TICK_MS 1000u        /* status line of the service manager */
#define LAST_CALLS_MS 1000u  /* for answers on their way when the jobs have stopped */
#define CQ_IDLE_MAX_MS 5000u /* the completion-queue thread is alive when it came round since */

enum { EXIT_USAGE = 2 };

static const int signals[] = {SIGTERM, SIGINT, SIGHUP};
#define N_SIGNALS (sizeof(signals) / sizeof(signals[0]))

typedef struct shardd {
    int argc;
    char *const *argv;
    shd_config config;
    uv_loop_t loop;
    shd_statedir *state;
    shd_token_cache *cache;
    char *cache_path; /* to be shown */
    shd_preparer *preparer;
    shd_rank **ranks; /* [config.ranks] */
    shd_jobs *jobs;
    shd_rpc *rpc;
    shd_status *status;
    shd_tokenize *tokenize;
    shd_health *health;
    shd_listener *listener;
    char *socket; /* where clients find us */

    uv_signal_t signal[N_SIGNALS];
    uv_timer_t tick, watchdog, grace;
    char told[256]; /* the last status line */
    int stopping, hurried;
} shardd;

/* ---- service manager ---- */

static void tell_status(shardd *d)
{
    char text[sizeof(d->told)];
    shd_jobs_status_text(d->jobs, text, sizeof(text));
    if (strcmp(text, d->told) != 0) {
        memcpy(d->told, text, sizeof(text));
        shd_notify("STATUS=%s", text);
    }
}

static void on_tick(uv_timer_t *timer)
{
    tell_status(timer->data);
}

/* Runs on the loop, so the loop lives; the other thread must show that it does too. */
static void on_watchdog(uv_timer_t *timer)
{
    const shardd *d = timer->data;
    const uint64_t idle = shd_rpc_idle_ms(d->rpc);
    if (idle <= CQ_IDLE_MAX_MS) {
        shd_notify("WATCHDOG=1");
    } else {
        shd_log(SHD_LOG_ERROR, "the completion-queue thread has stood still for %llu ms",
                (unsigned long long)idle);
    }
}

static void start_timers(shardd *d)
{
    const uint64_t watchdog_us = shd_notify_watchdog_us();
    if (watchdog_us > 0) {
        const uint64_t half_ms = watchdog_us / 2000;
        uv_timer_start(&d->watchdog, on_watchdog, 0, half_ms > 0 ? half_ms : 1);
    }
    if (getenv("NOTIFY_SOCKET") != NULL) {
        uv_timer_start(&d->tick, on_tick, TICK_MS, TICK_MS);
    }
}

/* ---- stop ---- */

/* The last step: with these closed and the jobs' own handle, the loop is empty and ends. */
static void close_handles(shardd *d)
{
    for (size_t i = 0; i < N_SIGNALS; i++) {
        uv_close((uv_handle_t *)&d->signal[i], NULL);
    }
    uv_close((uv_handle_t *)&d->tick, NULL);
    uv_close((uv_handle_t *)&d->watchdog, NULL);
    uv_close((uv_handle_t *)&d->grace, NULL);
}

static void on_rpc_down(void *arg)
{
    shardd *d = arg;
    shd_status_free(d->status);
    shd_tokenize_free(d->tokenize);
    shd_jobs_free(d->jobs, NULL, NULL);
    shd_preparer_free(d->preparer); /* after the jobs, which may wait for it */
    shd_health_free(d->health);
    shd_rpc_free(d->rpc);
    close_handles(d);
}

static void on_jobs_stopped(void *arg)
{
    shardd *d = arg;
    shd_rpc_shutdown(d->rpc, LAST_CALLS_MS, on_rpc_down, d);
}

/* Cancels what still runs. */
static void hurry(shardd *d, const char *why)
{
    const shd_identity self = {.uid = geteuid(), .gid = getegid(), .pid = getpid()};
    if (d->hurried) {
        return;
    }
    d->hurried = 1;
    shd_log(SHD_LOG_WARNING, "%s: cancelling what still runs", why);
    shd_job *next;
    for (shd_job *job = shd_jobs_next(d->jobs, &self, NULL); job != NULL; job = next) {
        next = shd_jobs_next(d->jobs, &self, job);
        shd_job_hurry(job, why);
    }
}

static void on_grace_over(uv_timer_t *timer)
{
    hurry(timer->data, "stop_grace_ms is over");
}

static void begin_stop(shardd *d, const char *why)
{
    if (d->stopping) {
        hurry(d, "told to stop at once");
        return;
    }
    d->stopping = 1;
    shd_log(SHD_LOG_NOTICE, "%s: stopping after the running steps", why);
    shd_notify("STOPPING=1");
    shd_health_set(d->health, 0);
    shd_listener_close(d->listener);
    uv_timer_start(&d->grace, on_grace_over, d->config.stop_grace_ms, 0);
    shd_jobs_stop(d->jobs, on_jobs_stopped, d);
}

/* ---- signals ---- */

static void reload(shardd *d)
{
    shd_config fresh;
    shd_config_action action;
    shd_error err;
    char restart[512];
    shd_notify_reloading();
    shd_config_init(&fresh);
    if (shd_config_load(d->argc, d->argv, &fresh, &action, &err) < 0) {
        shd_log(SHD_LOG_ERROR, "the configuration is left as it was: %s", err.message);
    } else {
        shd_config_adopt(&d->config, &fresh, restart, sizeof(restart));
        shd_log_set_level((shd_log_level)d->config.log_level);
        shd_jobs_set_access(d->jobs, &d->config.rules, d->config.data_roots.items,
                            d->config.data_roots.n);
        shd_log(SHD_LOG_NOTICE, "the configuration is reloaded");
        if (restart[0] != '\0') {
            shd_log(SHD_LOG_WARNING, "changed, but in force only after a restart: %s", restart);
        }
    }
    shd_config_fini(&fresh);
    shd_notify("READY=1");
}

static void on_signal(uv_signal_t *handle, int number)
{
    shardd *d = handle->data;
    if (number != SIGHUP) {
        begin_stop(d, number == SIGTERM ? "SIGTERM" : "SIGINT");
    } else if (!d->stopping) {
        reload(d);
    }
}

/* ---- start ---- */

static void on_connection(void *arg, int fd, const shd_identity *who)
{
    shardd *d = arg;
    shd_rpc_serve_fd(d->rpc, fd, who, NULL); /* a refusal is logged there */
}

static int gate(const shd_identity *who, void *arg, shd_error *err)
{
    const shardd *d = arg;
    if (shd_auth_may_connect(&d->config.rules, who)) {
        return SHD_OK;
    }
    return shd_fail(err, SHD_EPERM,
                    "uid %u may not use this daemon: it is in none of the groups that may "
                    "(allow_groups)",
                    (unsigned)who->uid);
}

/* Each connection takes two descriptors. */
static void raise_descriptor_limit(const shd_config *config)
{
    struct rlimit limit;
    const rlim_t wanted = 2 * (rlim_t)config->max_connections + 256;
    if (getrlimit(RLIMIT_NOFILE, &limit) < 0 || limit.rlim_cur >= wanted) {
        return;
    }
    const rlim_t had = limit.rlim_cur;
    limit.rlim_cur = limit.rlim_max < wanted ? limit.rlim_max : wanted;
    if (setrlimit(RLIMIT_NOFILE, &limit) < 0 || limit.rlim_cur < wanted) {
        shd_log(SHD_LOG_WARNING,
                "max_connections = %u wants %llu file descriptors, the system allows %llu",
                config->max_connections, (unsigned long long)wanted,
                (unsigned long long)(limit.rlim_cur < wanted ? limit.rlim_max : had));
    }
}

/* Beside compute, collectives fill the time in which ranks would wait for one another: measured on
 * as many cores as compute has threads, they take no more of them than in line. With fewer cores
 * there is always other work, and nothing to fill. */
static int stream_threads(const shd_config *c, int enough_cpus)
{
    return strcmp(c->stream_threads, "auto") == 0 ? enough_cpus
                                                  : strcmp(c->stream_threads, "yes") == 0;
}

static void create_ranks(shardd *d)
{
    const shd_config *c = &d->config;
    cpu_set_t cpus;
    const int n = sched_getaffinity(0, sizeof(cpus), &cpus) == 0 ? CPU_COUNT(&cpus) : 1;
    const int enough_cpus = (uint64_t)c->ranks * c->threads_per_rank <= (uint64_t)n;
    d->ranks = shd_calloc(c->ranks, sizeof(shd_rank *));
    for (uint32_t i = 0; i < c->ranks; i++) {
        shd_device *dev = shd_device_create_cpu((int)c->threads_per_rank, enough_cpus);
        shd_device_set_streams(dev, stream_threads(c, enough_cpus));
        d->ranks[i] = shd_rank_create(i, dev);
    }
}

static void free_ranks(shardd *d)
{
    for (uint32_t i = 0; d->ranks != NULL && i < d->config.ranks; i++) {
        shd_rank_free(d->ranks[i]);
    }
    free(d->ranks);
}

static int create_jobs(shardd *d, shd_error *err)
{
    const shd_config *c = &d->config;
    const shd_jobs_options options = {
        .loop = &d->loop,
        .ranks = d->ranks,
        .n_ranks = c->ranks,
        .threads_per_rank = (int)c->threads_per_rank,
        .limits =
            {
                .max_jobs = c->max_jobs,
                .max_jobs_per_user = c->max_jobs_per_user,
                .max_queue = c->max_queue,
                .watch_history = c->watch_history,
                .memory_per_rank = c->memory_per_rank,
            },
        .rules = &c->rules,
        .data_roots = c->data_roots.items,
        .n_data_roots = c->data_roots.n,
        .preparer = d->preparer,
        .token_cache_path = d->cache_path,
        .state_dir = c->state_dir,
    };
    return shd_jobs_create(&options, &d->jobs, err);
}

static int create_rpc(shardd *d, shd_error *err)
{
    const shd_config *c = &d->config;
    const shd_rpc_limits limits = {
        .max_message = c->max_message,
        .max_connections = c->max_connections,
        .max_calls = c->max_calls,
        .max_stream_buffer = c->max_stream_buffer,
    };
    SHD_TRY(shd_rpc_create(&d->loop, &limits, &d->rpc, err));
    const shd_status_info info = {
        .version = SHD_VERSION, .socket = d->socket, .state_dir = c->state_dir};
    d->status = shd_status_create(d->jobs, d->rpc, &info);
    d->health = shd_health_create(d->rpc);
    d->tokenize = shd_tokenize_create(d->jobs);
    shd_rpc_set_gate(d->rpc, gate, d);

    const struct {
        const shd_rpc_method *(*methods)(size_t *n);
        void *service;
    } families[] = {
        {shd_rpc_jobs_methods, d->jobs},         {shd_rpc_drive_methods, d->jobs},
        {shd_rpc_generate_methods, d->jobs},     {shd_rpc_watch_methods, d->jobs},
        {shd_rpc_tokenize_methods, d->tokenize}, {shd_rpc_export_methods, d->jobs},
        {shd_rpc_plan_methods, d->jobs},         {shd_rpc_trace_methods, d->jobs},
        {shd_rpc_evaluate_methods, d->jobs},     {shd_rpc_reshard_methods, d->jobs},
        {shd_rpc_status_methods, d->status},
    };
    for (size_t i = 0; i < sizeof(families) / sizeof(families[0]); i++) {
        size_t n;
        const shd_rpc_method *methods = families[i].methods(&n);
        shd_rpc_add_methods(d->rpc, methods, n, families[i].service);
    }
    return SHD_OK;
}

static void create_handles(shardd *d)
{
    for (size_t i = 0; i < N_SIGNALS; i++) {
        uv_signal_init(&d->loop, &d->signal[i]);
        d->signal[i].data = d;
        uv_signal_start(&d->signal[i], on_signal, signals[i]);
    }
    uv_timer_init(&d->loop, &d->tick);
    uv_timer_init(&d->loop, &d->watchdog);
    uv_timer_init(&d->loop, &d->grace);
    d->tick.data = d->watchdog.data = d->grace.data = d;
}

/* The socket of the service manager (fd), or our own. */
static int listen_on(shardd *d, int fd, shd_error *err)
{
    const shd_config *c = &d->config;
    if (fd >= 0) {
        return shd_listener_adopt(&d->loop, fd, on_connection, d, &d->listener, err);
    }
    return shd_listener_open(&d->loop, c->socket, c->socket_mode, c->socket_group, on_connection, d,
                             &d->listener, err);
}

static void say_ready(const shardd *d)
{
    const shd_config *c = &d->config;
    shd_log(SHD_LOG_NOTICE,
            "shardd %s: %u ranks x %u threads on %s, %.2f GiB for jobs on each; clients at %s, "
            "state in %s",
            SHD_VERSION, c->ranks, c->threads_per_rank, c->device,
            (double)c->memory_per_rank / (1024.0 * 1024 * 1024), d->socket, c->state_dir);
    if (c->data_roots.n == 0) {
        shd_log(SHD_LOG_NOTICE, "data_roots is empty: jobs can only take batches from clients");
    }
    shd_notify("READY=1\nSTATUS=no jobs");
}

/* Runs until stopped; 0 after a clean stop. Everything before the RPC layer is undone by
 * returning; from there on by a stop, which needs the loop. */
static int serve(shardd *d, int listen_fd, shd_error *err)
{
    SHD_TRY(shd_preparer_create(&d->loop, d->cache, &d->preparer, err));
    int rc = create_jobs(d, err);
    if (rc < 0) {
        shd_preparer_free(d->preparer);
        uv_run(&d->loop, UV_RUN_DEFAULT);
        return rc;
    }
    rc = create_rpc(d, err);
    if (rc < 0) {
        shd_jobs_free(d->jobs, NULL, NULL);
        shd_preparer_free(d->preparer);
        uv_run(&d->loop, UV_RUN_DEFAULT);
        return rc;
    }
    create_handles(d);
    rc = listen_on(d, listen_fd, err);
    if (rc == SHD_OK) {
        start_timers(d);
        say_ready(d);
    } else {
        d->stopping = 1;
        shd_jobs_stop(d->jobs, on_jobs_stopped, d);
    }
    uv_run(&d->loop, UV_RUN_DEFAULT);
    return rc;
}

static int run(shardd *d, shd_error *err)
{
    int listen_fd;
    SHD_TRY(shd_notify_listen_fd(&listen_fd, err));
    SHD_TRY(shd_statedir_open(d->config.state_dir, &d->state, err));
    int rc = shd_token_cache_open(shd_statedir_fd(d->state), TOKEN_CACHE, d->config.token_cache,
                                  &d->cache, err);
    if (rc < 0) {
        shd_statedir_free(d->state);
        return shd_error_prefix(err, rc, "state directory %s", d->config.state_dir);
    }
    d->cache_path = shd_asprintf("%s/" TOKEN_CACHE, d->config.state_dir);
    raise_descriptor_limit(&d->config);
    d->socket = listen_fd >= 0 ? shd_listen_path_of(listen_fd) : shd_strdup(d->config.socket);
    uv_loop_init(&d->loop);
    create_ranks(d);
    rc = serve(d, listen_fd, err);
    free_ranks(d);
    if (uv_loop_close(&d->loop) < 0) {
        shd_log(SHD_LOG_ERROR, "the loop ended with open handles");
    }
    shd_token_cache_free(d->cache);
    free(d->cache_path);
    shd_statedir_free(d->state);
    free(d->socket);
    return rc;
}

int main(int argc, char **argv)
{
    shardd d = {.argc = argc, .argv = argv};
    shd_config_action action;
    shd_error err;
    shd_config_init(&d.config);
    int status = EXIT_SUCCESS;
    int rc = shd_config_load(argc, argv, &d.config, &action, &err);
    if (rc < 0) {
        fprintf(stderr, "shardd: %s\n", err.message);
        status = rc == SHD_EINVAL || rc == SHD_EUNSUPPORTED ? EXIT_USAGE : EXIT_FAILURE;
    } else if (action == SHD_CONFIG_HELP) {
        shd_config_help(stdout);
    } else if (action == SHD_CONFIG_VERSION) {
        puts("shardd " SHD_VERSION);
    } else if (action == SHD_CONFIG_CHECK) {
        puts("shardd: the configuration is valid");
    } else {
        shd_log_set_level((shd_log_level)d.config.log_level);
        signal(SIGPIPE, SIG_IGN);
        rc = run(&d, &err);
        if (rc < 0) {
            shd_log(SHD_LOG_ERROR, "shardd does not start: %s", err.message);
            status = EXIT_FAILURE;
        } else {
            shd_log(SHD_LOG_NOTICE, "stopped");
        }
    }
    shd_config_fini(&d.config);
    return status;
}
