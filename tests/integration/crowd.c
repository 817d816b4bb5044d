/* Many clients at once: each of N threads attaches to a job, reads some steps, and detaches, over
 * and over, now on a fresh connection and now on the old one. Checks on the way that every watcher
 * gets a range of steps without gaps and that all watchers get the same values. Prints the number
 * of watches and of steps; 1 and a line on stderr when something is wrong.
 *
 * usage: crowd SOCKET JOB CLIENTS WATCHES FIRST_STEPS */
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/mem.h"
#include "client/shardclient.h"

enum { PATIENCE_MS = 120000 };

typedef struct step {
    int known;
    double loss, grad_norm;
    uint64_t samples;
} step;

static const char *socket_path;
static char *job_name;
static unsigned n_clients, n_watches;
static uint64_t max_step; /* watchers read steps up to here */

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static unsigned watches_begun, watches_done;
static uint64_t steps_read;
static step *steps; /* [max_step + 1] as the first reader got them */
static int failures;

static void complain(unsigned client, const char *what, const char *why)
{
    fprintf(stderr, "crowd: client %u: %s: %s\n", client, what, why);
    pthread_mutex_lock(&mutex);
    failures++;
    pthread_mutex_unlock(&mutex);
}

/* 0 when the step is the one everybody else saw under its number. */
static int compare(const Shard__V1__StepResult *s)
{
    int differs = 0;

    pthread_mutex_lock(&mutex);
    steps_read++;
    if (s->step <= max_step) {
        step *known = &steps[s->step];
        if (!known->known)
            *known = (step){1, s->loss, s->grad_norm, s->samples};
        differs = memcmp(&known->loss, &s->loss, sizeof s->loss) ||
                  memcmp(&known->grad_norm, &s->grad_norm, sizeof s->grad_norm) ||
                  known->samples != s->samples;
    }
    pthread_mutex_unlock(&mutex);
    return differs;
}

/* Reads `wanted` steps from `from` on. */
static int watch(unsigned id, shc_client *client, uint64_t from, uint64_t wanted)
{
    Shard__V1__WatchRequest q = SHARD__V1__WATCH_REQUEST__INIT;
    shc_stream *stream;
    ProtobufCMessage *message;
    shc_error err;
    char text[128];
    uint64_t expected = from;

    q.job = job_name;
    q.has_from_step_case = SHARD__V1__WATCH_REQUEST__HAS_FROM_STEP_FROM_STEP;
    q.from_step = from;
    q.follow = 1;
    if (shc_watch(client, &q, &stream, &err)) {
        complain(id, "watch", err.message);
        return -1;
    }
    int rc = 0;
    while (!rc && expected < from + wanted) {
        const int got = shc_stream_next(stream, PATIENCE_MS, &message, &err);
        if (got != SHC_MESSAGE) {
            complain(id, "the stream ended early",
                     got == SHC_END       ? "end"
                     : got == SHC_TIMEOUT ? "timeout"
                                          : err.message);
            rc = -1;
            break;
        }
        const Shard__V1__Event *event = (const Shard__V1__Event *)message;
        if (event->kind_case == SHARD__V1__EVENT__KIND_STEP) {
            if (event->step->step != expected) {
                snprintf(text, sizeof text, "expected %" PRIu64 ", got %" PRIu64, expected,
                         event->step->step);
                complain(id, "a step is lost or comes twice", text);
                rc = -1;
            } else if (compare(event->step)) {
                snprintf(text, sizeof text, "%" PRIu64, expected);
                complain(id, "a step differs from what others saw", text);
                rc = -1;
            }
            expected++;
        }
        shc_message_free(message);
    }
    shc_stream_close(stream);
    return rc;
}

static void *client_main(void *arg)
{
    const unsigned id = (unsigned)(uintptr_t)arg;
    shc_client *client = NULL;
    shc_error err;

    for (unsigned round = 0;; round++) {
        pthread_mutex_lock(&mutex);
        const int more = watches_begun < n_watches && !failures;
        watches_begun += more;
        pthread_mutex_unlock(&mutex);
        if (!more)
            break;
        if (!client && !(client = shc_connect(socket_path, &err))) {
            complain(id, "connect", err.message);
            break;
        }
        shc_set_timeout(client, PATIENCE_MS);
        /* From far back, from the middle, from the front. */
        const uint64_t from = 1 + (id * 7 + round * 13) % (max_step / 2);
        const uint64_t wanted = 1 + (id + round * 5) % (max_step / 2);
        if (watch(id, client, from, wanted))
            break;
        pthread_mutex_lock(&mutex);
        watches_done++;
        pthread_mutex_unlock(&mutex);
        if (round % 3 != 2) {
            shc_close(client);
            client = NULL;
        }
    }
    shc_close(client);
    return NULL;
}

int main(int argc, char **argv)
{
    if (argc != 6) {
        fprintf(stderr, "usage: crowd SOCKET JOB CLIENTS WATCHES FIRST_STEPS\n");
        return 2;
    }
    socket_path = argv[1];
    job_name = argv[2];
    n_clients = (unsigned)strtoul(argv[3], NULL, 10);
    n_watches = (unsigned)strtoul(argv[4], NULL, 10);
    max_step = strtoull(argv[5], NULL, 10);
    if (!n_clients || !n_watches || max_step < 4) {
        fprintf(stderr, "crowd: the numbers must be positive, FIRST_STEPS at least 4\n");
        return 2;
    }
    steps = shc_calloc(max_step + 1, sizeof *steps);
    pthread_t *threads = shc_calloc(n_clients, sizeof *threads);
    for (unsigned i = 0; i < n_clients; i++)
        if (pthread_create(&threads[i], NULL, client_main, (void *)(uintptr_t)i)) {
            fprintf(stderr, "crowd: no thread %u\n", i);
            return 2;
        }
    for (unsigned i = 0; i < n_clients; i++)
        pthread_join(threads[i], NULL);
    printf("{\"watches\": %u, \"steps\": %" PRIu64 "}\n", watches_done, steps_read);
    free(threads);
    free(steps);
    return failures || watches_done != n_watches;
}
