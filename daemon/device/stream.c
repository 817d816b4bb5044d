/* A ring of closures under a mutex; see stream.h. Floor F1. */
#include "daemon/device/stream.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/mem.h"

typedef struct entry {
    shd_stream_fn fn;
    void *arg;
} entry;

struct shd_stream {
    shd_device *dev; /* does the work; owned where there is a thread */
    int threaded;
    char name[16];
    pthread_t thread;
    int started;

    pthread_mutex_t mutex; /* guards all below */
    pthread_cond_t queued, done;
    entry *ring; /* [capacity]; work n at n % capacity */
    uint64_t capacity;
    uint64_t submitted, finished; /* numbers of work, from 1 */
    uint64_t failed;              /* the first that failed; 0: none */
    shd_error failure;
    int stop;
};

/* The mutex is held, but for the time of the work. */
static void work(shd_stream *s, const entry *e)
{
    shd_error err = {0};
    int rc = 0;
    if (s->failed == 0) {
        pthread_mutex_unlock(&s->mutex);
        rc = e->fn(e->arg, s->dev, &err);
        pthread_mutex_lock(&s->mutex);
    }
    s->finished++;
    if (rc < 0) {
        s->failed = s->finished;
        s->failure = err;
        s->failure.code = rc;
    }
}

static void *thread_main(void *arg)
{
    shd_stream *s = arg;
    pthread_mutex_lock(&s->mutex);
    for (;;) {
        while (s->finished == s->submitted && !s->stop) {
            pthread_cond_wait(&s->queued, &s->mutex);
        }
        if (s->finished == s->submitted) {
            break;
        }
        const entry e = s->ring[(s->finished + 1) % s->capacity];
        work(s, &e);
        pthread_cond_signal(&s->done);
    }
    pthread_mutex_unlock(&s->mutex);
    return NULL;
}

static void start(shd_stream *s)
{
    const int rc = pthread_create(&s->thread, NULL, thread_main, s);
    if (rc != 0) {
        fprintf(stderr, "cannot start the thread of stream %s: %s\n", s->name, strerror(rc));
        abort();
    }
    pthread_setname_np(s->thread, s->name);
    s->started = 1;
}

shd_stream *shd_stream_create(shd_device *dev, const char *name)
{
    shd_stream *s = shd_calloc(1, sizeof *s);
    s->threaded = shd_device_streams(dev);
    s->dev = s->threaded ? shd_device_beside(dev) : dev;
    snprintf(s->name, sizeof s->name, "%s", name);
    pthread_mutex_init(&s->mutex, NULL);
    pthread_cond_init(&s->queued, NULL);
    pthread_cond_init(&s->done, NULL);
    return s;
}

void shd_stream_free(shd_stream *s)
{
    if (s == NULL) {
        return;
    }
    if (s->started) {
        pthread_mutex_lock(&s->mutex);
        s->stop = 1;
        pthread_cond_signal(&s->queued);
        pthread_mutex_unlock(&s->mutex);
        pthread_join(s->thread, NULL);
    }
    if (s->threaded) {
        shd_device_free(s->dev);
    }
    pthread_cond_destroy(&s->done);
    pthread_cond_destroy(&s->queued);
    pthread_mutex_destroy(&s->mutex);
    free(s->ring);
    free(s);
}

/* Room for one more; what is queued keeps its numbers. */
static void grow(shd_stream *s)
{
    if (s->submitted - s->finished < s->capacity) {
        return;
    }
    const uint64_t capacity = s->capacity > 0 ? 2 * s->capacity : 16;
    entry *ring = shd_calloc(capacity, sizeof *ring);
    for (uint64_t n = s->finished + 1; n <= s->submitted; n++) {
        ring[n % capacity] = s->ring[n % s->capacity];
    }
    free(s->ring);
    s->ring = ring;
    s->capacity = capacity;
}

uint64_t shd_stream_submit(shd_stream *s, shd_stream_fn fn, void *arg)
{
    const entry e = {fn, arg};
    if (s->threaded && !s->started) {
        start(s);
    }
    pthread_mutex_lock(&s->mutex);
    if (s->threaded) {
        grow(s);
    }
    const uint64_t ticket = ++s->submitted;
    if (s->threaded) {
        s->ring[ticket % s->capacity] = e;
        pthread_cond_signal(&s->queued);
    } else {
        work(s, &e);
    }
    pthread_mutex_unlock(&s->mutex);
    return ticket;
}

int shd_stream_wait(shd_stream *s, uint64_t ticket, shd_error *err)
{
    pthread_mutex_lock(&s->mutex);
    while (s->finished < ticket) {
        pthread_cond_wait(&s->done, &s->mutex);
    }
    const int failed = s->failed != 0 && s->failed <= ticket;
    const shd_error failure = s->failure;
    pthread_mutex_unlock(&s->mutex);
    return failed ? shd_fail(err, failure.code, "%s", failure.message) : 0;
}

void shd_stream_drain(shd_stream *s)
{
    pthread_mutex_lock(&s->mutex);
    while (s->finished < s->submitted) {
        pthread_cond_wait(&s->done, &s->mutex);
    }
    s->failed = 0;
    pthread_mutex_unlock(&s->mutex);
}
