#include "daemon/service/rpc_watch.h"

#include <stdlib.h>

#include "daemon/base/mem.h"
#include "daemon/service/encode.h"
#include "daemon/service/job.h"
#include "daemon/service/jobs.h"

/* A watcher is a position in the job's history. */
typedef struct watcher {
    shd_job_observer observer; /* first */
    shd_job *job;
    shd_call *call;
    uint64_t next;      /* index of the next event */
    uint64_t stop;      /* without follow: the end of the history when the call came */
    uint64_t from_step; /* events of earlier steps are left out */
    int follow;
} watcher;

static void watcher_free(watcher *w)
{
    shd_job_unobserve(w->job, &w->observer);
    free(w);
}

/* Sends what there is and the client can take; ends the stream when nothing can follow. */
static void pump(watcher *w)
{
    const shd_history *history = w->job->history;
    if (w->next < shd_history_first(history)) {
        shd_call_failf(w->call, SHD_ESTATE,
                       "the stream was read too slowly: events %llu to %llu are no longer kept",
                       (unsigned long long)w->next,
                       (unsigned long long)shd_history_first(history) - 1);
        watcher_free(w);
        return;
    }
    const uint64_t end = w->follow ? shd_history_end(history) : w->stop;
    shd_scratch scratch = SHD_SCRATCH_INIT;
    while (w->next < end && shd_call_writable(w->call)) {
        const shd_event *event = shd_history_get(history, w->next);
        if (event->step >= w->from_step) {
            shd_call_send(w->call, &shd_encode_event(event, w->next, &scratch)->base);
            shd_scratch_free(&scratch);
        }
        w->next++;
    }
    if (w->next == end && (!w->follow || shd_job_ended(w->job))) {
        shd_call_end(w->call);
        watcher_free(w);
    }
}

static void on_changed(shd_job_observer *observer)
{
    pump((watcher *)observer);
}

/* The job is deleted, so it has ended; what the client had no room for goes with it. */
static void on_removed(shd_job_observer *observer)
{
    watcher *w = (watcher *)observer;
    const uint64_t end = shd_history_end(w->job->history);
    if (w->next < end) {
        shd_call_failf(w->call, SHD_ECANCELLED,
                       "job %s was deleted before its last events were read", w->job->id);
    } else {
        shd_call_end(w->call);
    }
    free(w);
}

static void on_gone(void *arg)
{
    watcher_free(arg);
}

static void on_writable(void *arg)
{
    pump(arg);
}

static void watch(shd_call *call, const ProtobufCMessage *request, void *service)
{
    const Shard__V1__WatchRequest *q = (const Shard__V1__WatchRequest *)request;
    shd_job *job;
    shd_error err;
    if (shd_jobs_find(service, shd_call_identity(call), q->job, SHD_RIGHT_SEE, &job, &err) < 0) {
        shd_call_fail(call, &err);
        return;
    }
    uint64_t next = shd_history_end(job->history), from_step = 0;
    if (q->has_from_step_case) {
        from_step = q->from_step;
        if (shd_history_seek(job->history, from_step, &next, &err) < 0) {
            shd_call_fail(call, &err);
            return;
        }
    }
    watcher *w = shd_calloc(1, sizeof(*w));
    w->observer.changed = on_changed;
    w->observer.removed = on_removed;
    w->job = job;
    w->call = call;
    w->next = next;
    w->stop = shd_history_end(job->history);
    w->from_step = from_step;
    w->follow = q->follow;
    shd_job_observe(job, &w->observer);
    shd_call_callbacks(call, on_gone, on_writable, w);
    pump(w);
}

const shd_rpc_method *shd_rpc_watch_methods(size_t *n)
{
    static const shd_rpc_method methods[] = {
        {"/shard.v1.Shard/Watch", &shard__v1__watch_request__descriptor, watch, 1},
    };
    *n = sizeof(methods) / sizeof(methods[0]);
    return methods;
}
