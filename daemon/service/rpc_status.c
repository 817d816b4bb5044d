#include "daemon/service/rpc_status.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "daemon/base/mem.h"
#include "daemon/device/device.h"
#include "daemon/rank/rank.h"
#include "daemon/service/encode.h"
#include "daemon/service/job.h"
#include "daemon/service/jobs.h"

enum { WATCHERS_PER_USER = 128 }; /* each costs the loop a report at its interval */

enum { SAMPLE_MS = 1000, SAMPLES = 4 }; /* `busy` covers up to the last 3 to 4 seconds */

/* One reading of every rank's clock. */
typedef struct sample {
    uint64_t at_ns;
    uint64_t *busy_ns; /* [n_ranks] */
} sample;

struct shd_status {
    shd_jobs *jobs;
    shd_rpc *rpc;
    shd_status_info info;
    uint64_t started_ns;
    uv_timer_t timer;
    sample samples[SAMPLES]; /* a ring; `oldest` is overwritten next */
    uint32_t oldest;
    struct status_watcher *watchers;
};

static void read_clocks(const shd_status *status, sample *s)
{
    const shd_jobs_options *options = shd_jobs_get_options(status->jobs);
    s->at_ns = uv_hrtime();
    for (uint32_t r = 0; r < options->n_ranks; r++) {
        s->busy_ns[r] = shd_rank_busy_ns(options->ranks[r]);
    }
}

static void on_sample(uv_timer_t *timer)
{
    shd_status *status = timer->data;
    read_clocks(status, &status->samples[status->oldest]);
    status->oldest = (status->oldest + 1) % SAMPLES;
}

shd_status *shd_status_create(shd_jobs *jobs, shd_rpc *rpc, const shd_status_info *info)
{
    const shd_jobs_options *options = shd_jobs_get_options(jobs);
    shd_status *status = shd_calloc(1, sizeof(*status));
    status->jobs = jobs;
    status->rpc = rpc;
    status->info = *info;
    status->started_ns = uv_hrtime();
    for (int i = 0; i < SAMPLES; i++) {
        status->samples[i].busy_ns = shd_calloc(options->n_ranks, sizeof(uint64_t));
        read_clocks(status, &status->samples[i]);
    }
    uv_timer_init(options->loop, &status->timer);
    status->timer.data = status;
    uv_timer_start(&status->timer, on_sample, SAMPLE_MS, SAMPLE_MS);
    uv_unref((uv_handle_t *)&status->timer);
    return status;
}

static void on_closed(uv_handle_t *handle)
{
    shd_status *status = handle->data;
    for (int i = 0; i < SAMPLES; i++) {
        free(status->samples[i].busy_ns);
    }
    free(status);
}

void shd_status_free(shd_status *status)
{
    if (status != NULL) {
        uv_close((uv_handle_t *)&status->timer, on_closed);
    }
}

/* ---- Status ---- */

/* Resident bytes of the process: /proc/self/statm, second field, in pages (proc(5)). 0: unknown. */
static uint64_t resident_bytes(void)
{
    unsigned long long pages = 0;
    FILE *f = fopen("/proc/self/statm", "re");
    if (f != NULL) {
        if (fscanf(f, "%*u %llu", &pages) != 1) {
            pages = 0;
        }
        fclose(f);
    }
    return pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

static Shard__V1__RankStatus *encode_rank(const shd_status *status, uint32_t r,
                                          shd_scratch *scratch)
{
    const shd_jobs_options *options = shd_jobs_get_options(status->jobs);
    shd_device *dev = shd_rank_device(options->ranks[r]);
    Shard__V1__RankStatus *m = shd_scratch_take(scratch, 1, sizeof(*m));
    shard__v1__rank_status__init(m);
    m->rank = r;
    m->device = (char *)shd_device_kind(dev);
    m->threads = (uint32_t)shd_device_nthreads(dev);
    /* That of bf16, which says how products are made. */
    m->isa = (char *)shd_device_compute_ops(dev, SHD_BF16)->name;
    const sample *from = &status->samples[status->oldest];
    const uint64_t now = uv_hrtime(), busy = shd_rank_busy_ns(options->ranks[r]);
    if (now > from->at_ns && busy > from->busy_ns[r]) {
        m->busy = (double)(busy - from->busy_ns[r]) / (double)(now - from->at_ns);
        m->busy = m->busy < 1.0 ? m->busy : 1.0;
    }
    m->budget = options->limits.memory_per_rank;
    m->planned = shd_jobs_planned(status->jobs)[r];
    return m;
}

static Shard__V1__StatusResponse *encode(const shd_status *status, const shd_identity *who,
                                         shd_scratch *scratch)
{
    const shd_jobs_options *options = shd_jobs_get_options(status->jobs);
    Shard__V1__StatusResponse *m = shd_scratch_take(scratch, 1, sizeof(*m));
    shard__v1__status_response__init(m);
    m->version = (char *)status->info.version;
    m->pid = (uint32_t)getpid();
    m->uptime_s = (double)(uv_hrtime() - status->started_ns) * 1e-9;
    m->resident = resident_bytes();
    m->n_ranks = options->n_ranks;
    m->ranks = shd_scratch_take(scratch, m->n_ranks, sizeof(*m->ranks));
    for (uint32_t r = 0; r < options->n_ranks; r++) {
        m->ranks[r] = encode_rank(status, r, scratch);
    }
    size_t n = 0;
    for (shd_job *job = NULL; (job = shd_jobs_next(status->jobs, who, job)) != NULL;) {
        n++;
    }
    m->jobs = shd_scratch_take(scratch, n, sizeof(*m->jobs));
    for (shd_job *job = NULL; (job = shd_jobs_next(status->jobs, who, job)) != NULL;) {
        m->jobs[m->n_jobs++] = shd_encode_status(job, scratch);
    }
    m->connections = shd_rpc_connections(status->rpc);
    m->socket = (char *)status->info.socket;
    m->state_dir = (char *)status->info.state_dir;
    return m;
}

static void status_rpc(shd_call *call, const ProtobufCMessage *request, void *service)
{
    (void)request;
    shd_scratch scratch = SHD_SCRATCH_INIT;
    shd_call_reply(call, &encode(service, shd_call_identity(call), &scratch)->base);
    shd_scratch_free(&scratch);
}

/* ---- WatchStatus ---- */

typedef struct status_watcher {
    uv_timer_t timer;
    shd_status *status;
    shd_call *call;
    struct status_watcher *next, **link;
} status_watcher;

static void on_watcher_closed(uv_handle_t *handle)
{
    free(handle->data);
}

static void on_gone(void *arg)
{
    status_watcher *w = arg;
    *w->link = w->next;
    if (w->next != NULL) {
        w->next->link = w->link;
    }
    uv_close((uv_handle_t *)&w->timer, on_watcher_closed);
}

static void on_tick(uv_timer_t *timer)
{
    status_watcher *w = timer->data;
    if (!shd_call_writable(w->call)) {
        return; /* a slow reader misses a report, and sees the next one fresh */
    }
    shd_scratch scratch = SHD_SCRATCH_INIT;
    shd_call_send(w->call, &encode(w->status, shd_call_identity(w->call), &scratch)->base);
    shd_scratch_free(&scratch);
}

static void watch_status(shd_call *call, const ProtobufCMessage *request, void *service)
{
    const Shard__V1__WatchStatusRequest *q = (const Shard__V1__WatchStatusRequest *)request;
    shd_status *status = service;
    const uint32_t ms = q->interval_ms != 0 ? q->interval_ms : 1000;
    if (ms < 100 || ms > 3600000) {
        shd_call_failf(call, SHD_EINVAL, "interval_ms %u is not in 100..3600000", ms);
        return;
    }
    uint32_t of_user = 0;
    for (const status_watcher *w = status->watchers; w != NULL; w = w->next) {
        of_user += shd_call_identity(w->call)->uid == shd_call_identity(call)->uid;
    }
    if (of_user >= WATCHERS_PER_USER) {
        shd_call_failf(call, SHD_EFULL, "you watch the status %u times already; end some of those",
                       of_user);
        return;
    }
    status_watcher *w = shd_calloc(1, sizeof(*w));
    w->status = status;
    w->call = call;
    w->next = status->watchers;
    w->link = &status->watchers;
    if (w->next != NULL) {
        w->next->link = &w->next;
    }
    status->watchers = w;
    uv_timer_init(shd_jobs_get_options(status->jobs)->loop, &w->timer);
    w->timer.data = w;
    shd_call_callbacks(call, on_gone, NULL, w);
    uv_timer_start(&w->timer, on_tick, ms, ms);
    on_tick(&w->timer);
}

const shd_rpc_method *shd_rpc_status_methods(size_t *n)
{
    static const shd_rpc_method methods[] = {
        {"/shard.v1.Shard/Status", &shard__v1__status_request__descriptor, status_rpc, 0},
        {"/shard.v1.Shard/WatchStatus", &shard__v1__watch_status_request__descriptor, watch_status,
         1},
    };
    *n = sizeof(methods) / sizeof(methods[0]);
    return methods;
}
