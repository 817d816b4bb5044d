/* A rank's thread and its inbox. Floor F2. */
#include "daemon/rank/rank.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "daemon/base/mem.h"

typedef struct letter {
    struct letter *next;
    shd_rank_fn fn;
    void *arg;
} letter;

struct shd_rank {
    uint32_t id;
    shd_device *dev; /* owns */
    pthread_t thread;

    pthread_mutex_t mutex; /* guards all below */
    pthread_cond_t posted;
    letter *first, **last;
    int stop;
    uint64_t busy_ns;  /* of finished letters */
    uint64_t began_ns; /* of the letter being executed; 0: idle */
};

static uint64_t now_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static void *thread_main(void *arg)
{
    shd_rank *rank = arg;

    pthread_mutex_lock(&rank->mutex);
    for (;;) {
        while (rank->first == NULL && !rank->stop) {
            pthread_cond_wait(&rank->posted, &rank->mutex);
        }
        letter *l = rank->first;
        if (l == NULL) {
            break;
        }
        rank->first = l->next;
        if (rank->first == NULL) {
            rank->last = &rank->first;
        }
        rank->began_ns = now_ns();
        pthread_mutex_unlock(&rank->mutex);

        l->fn(rank, l->arg);
        free(l);

        pthread_mutex_lock(&rank->mutex);
        rank->busy_ns += now_ns() - rank->began_ns;
        rank->began_ns = 0;
    }
    pthread_mutex_unlock(&rank->mutex);
    return NULL;
}

shd_rank *shd_rank_create(uint32_t id, shd_device *dev)
{
    shd_rank *rank = shd_calloc(1, sizeof(*rank));
    char name[16];

    rank->id = id;
    rank->dev = dev;
    rank->last = &rank->first;
    pthread_mutex_init(&rank->mutex, NULL);
    pthread_cond_init(&rank->posted, NULL);
    const int rc = pthread_create(&rank->thread, NULL, thread_main, rank);
    if (rc != 0) {
        fprintf(stderr, "shardd: cannot start the thread of rank %u: %s\n", id, strerror(rc));
        abort();
    }
    snprintf(name, sizeof(name), "shardd-rank%u", id % 10000u); /* the system takes 15 bytes */
    pthread_setname_np(rank->thread, name);
    return rank;
}

void shd_rank_free(shd_rank *rank)
{
    if (rank == NULL) {
        return;
    }
    pthread_mutex_lock(&rank->mutex);
    rank->stop = 1;
    pthread_cond_signal(&rank->posted);
    pthread_mutex_unlock(&rank->mutex);
    pthread_join(rank->thread, NULL);
    pthread_cond_destroy(&rank->posted);
    pthread_mutex_destroy(&rank->mutex);
    shd_device_free(rank->dev);
    free(rank);
}

void shd_rank_post(shd_rank *rank, shd_rank_fn fn, void *arg)
{
    letter *l = shd_malloc(sizeof(*l));

    l->next = NULL;
    l->fn = fn;
    l->arg = arg;
    pthread_mutex_lock(&rank->mutex);
    *rank->last = l;
    rank->last = &l->next;
    pthread_cond_signal(&rank->posted);
    pthread_mutex_unlock(&rank->mutex);
}

uint32_t shd_rank_id(const shd_rank *rank)
{
    return rank->id;
}

shd_device *shd_rank_device(const shd_rank *rank)
{
    return rank->dev;
}

uint64_t shd_rank_busy_ns(const shd_rank *rank)
{
    /* The mutex is no part of the value. */
    pthread_mutex_t *mutex = (pthread_mutex_t *)&rank->mutex;

    pthread_mutex_lock(mutex);
    const uint64_t current = rank->began_ns != 0 ? now_ns() - rank->began_ns : 0;
    const uint64_t busy = rank->busy_ns + current;
    pthread_mutex_unlock(mutex);
    return busy;
}
