/* Piece by piece work sharing. A run is "open" while its pieces are being handed out; a worker that
 * wakes up after the last piece was taken never enters it, so nobody waits for a sleeper.
 * Floor F0. */
#include "daemon/base/pool.h"

#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "daemon/base/mem.h"

/* About 0.1 ms: longer than the gap between two ops of a step, far shorter than a step. */
#define SPIN_ROUNDS 4000

#define OPEN ((uint64_t)1 << 32)      /* bit 32 of `state`: the current run takes workers */
#define INSIDE ((uint64_t)UINT32_MAX) /* low half of `state`: workers inside the current run */

typedef struct worker {
    shd_pool *pool;
    int index;
    pthread_t thread;
} worker;

struct shd_pool {
    int nthreads;
    int spin_rounds;
    char name[16];
    worker *workers; /* owns; nthreads - 1, NULL before the first run */

    /* The current run. Written by the owner while the run is closed and nobody is inside. */
    shd_pool_fn fn;
    void *arg;
    int64_t n;

    _Alignas(64) _Atomic int64_t next;   /* first piece not yet taken */
    _Alignas(64) _Atomic uint64_t state; /* run number << 33 | open << 32 | workers inside */
    _Alignas(
        64) _Atomic uint32_t signal; /* bumped for every run and at the end; workers sleep on it */
    _Atomic uint32_t sleepers;
    _Atomic int stop;
    _Alignas(
        64) _Atomic uint32_t left; /* bumped when the last worker leaves; the owner sleeps on it */
    _Atomic int owner_sleeps;
};

static void futex_wait(_Atomic uint32_t *word, uint32_t seen)
{
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
}

static void futex_wake_all(_Atomic uint32_t *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

static inline void cpu_relax(void)
{
    __builtin_ia32_pause();
}

static void take_pieces(shd_pool *pool, int index)
{
    for (;;) {
        const int64_t piece = atomic_fetch_add_explicit(&pool->next, 1, memory_order_relaxed);
        if (piece >= pool->n) {
            return;
        }
        pool->fn(pool->arg, piece, index);
    }
}

/* Enters the open run, if there is one that this worker has not been in. */
static int try_enter(shd_pool *pool, uint64_t *last_run)
{
    uint64_t s = atomic_load_explicit(&pool->state, memory_order_acquire);
    while ((s & OPEN) != 0 && (s >> 33) != *last_run) {
        if (atomic_compare_exchange_weak_explicit(&pool->state, &s, s + 1, memory_order_acq_rel,
                                                  memory_order_acquire)) {
            *last_run = s >> 33;
            return 1;
        }
    }
    return 0;
}

static void leave(shd_pool *pool)
{
    const uint64_t s = atomic_fetch_sub_explicit(&pool->state, 1, memory_order_acq_rel) - 1;
    if ((s & (OPEN | INSIDE)) == 0) {
        atomic_fetch_add(&pool->left, 1);
        if (atomic_load(&pool->owner_sleeps)) {
            futex_wake_all(&pool->left);
        }
    }
}

static void *worker_main(void *arg)
{
    worker *w = arg;
    shd_pool *pool = w->pool;
    uint64_t last_run = 0;
    int spins = pool->spin_rounds;
    while (!atomic_load_explicit(&pool->stop, memory_order_acquire)) {
        if (try_enter(pool, &last_run)) {
            take_pieces(pool, w->index);
            leave(pool);
            spins = pool->spin_rounds;
            continue;
        }
        if (spins > 0) {
            spins--;
            cpu_relax();
            continue;
        }
        atomic_fetch_add(&pool->sleepers, 1);
        const uint32_t seen = atomic_load(&pool->signal);
        if (!atomic_load(&pool->stop)) {
            const uint64_t s = atomic_load(&pool->state);
            if ((s & OPEN) == 0 || (s >> 33) == last_run) {
                futex_wait(&pool->signal, seen);
            }
        }
        atomic_fetch_sub(&pool->sleepers, 1);
        spins = pool->spin_rounds;
    }
    return NULL;
}

static void wake_workers(shd_pool *pool)
{
    atomic_fetch_add(&pool->signal, 1);
    if (atomic_load(&pool->sleepers) != 0) {
        futex_wake_all(&pool->signal);
    }
}

/* Threads come with the first run that has use for them: a pool that only says how many threads an
 * op may count on (a dry run's) costs none. */
static void start_workers(shd_pool *pool)
{
    pool->workers = shd_calloc((size_t)pool->nthreads, sizeof(*pool->workers));
    for (int i = 0; i < pool->nthreads - 1; i++) {
        worker *w = &pool->workers[i];
        w->pool = pool;
        w->index = i + 1;
        const int rc = pthread_create(&w->thread, NULL, worker_main, w);
        if (rc != 0) {
            fprintf(stderr, "cannot start thread %d of pool %s: %s\n", i + 1, pool->name,
                    strerror(rc));
            abort();
        }
        pthread_setname_np(w->thread, pool->name);
    }
}

shd_pool *shd_pool_create(int nthreads, int spin, const char *name)
{
    shd_pool *pool = aligned_alloc(64, sizeof(*pool));
    if (pool == NULL) {
        fprintf(stderr, "out of memory: cannot allocate a thread pool\n");
        abort();
    }
    memset(pool, 0, sizeof(*pool));
    pool->nthreads = nthreads;
    pool->spin_rounds = spin ? SPIN_ROUNDS : 0;
    snprintf(pool->name, sizeof(pool->name), "%s", name);
    return pool;
}

void shd_pool_free(shd_pool *pool)
{
    if (pool == NULL) {
        return;
    }
    atomic_store(&pool->stop, 1);
    wake_workers(pool);
    for (int i = 0; pool->workers != NULL && i < pool->nthreads - 1; i++) {
        pthread_join(pool->workers[i].thread, NULL);
    }
    free(pool->workers);
    free(pool);
}

int shd_pool_nthreads(const shd_pool *pool)
{
    return pool->nthreads;
}

/* Waits until no worker is inside the closed run. */
static void wait_empty(shd_pool *pool)
{
    for (int spins = 0;; spins++) {
        if ((atomic_load_explicit(&pool->state, memory_order_acquire) & INSIDE) == 0) {
            return;
        }
        if (spins < pool->spin_rounds) {
            cpu_relax();
            continue;
        }
        atomic_store(&pool->owner_sleeps, 1);
        const uint32_t seen = atomic_load(&pool->left);
        if ((atomic_load(&pool->state) & INSIDE) != 0) {
            futex_wait(&pool->left, seen);
        }
        atomic_store(&pool->owner_sleeps, 0);
    }
}

void shd_pool_run(shd_pool *pool, int64_t n, shd_pool_fn fn, void *arg)
{
    if (n <= 1 || pool->nthreads == 1) {
        for (int64_t i = 0; i < n; i++) {
            fn(arg, i, 0);
        }
        return;
    }
    if (pool->workers == NULL) {
        start_workers(pool);
    }
    pool->fn = fn;
    pool->arg = arg;
    pool->n = n;
    atomic_store_explicit(&pool->next, 0, memory_order_relaxed);
    /* The next run number, open, nobody inside. */
    const uint64_t closed = atomic_load_explicit(&pool->state, memory_order_relaxed);
    atomic_store(&pool->state, ((closed >> 33) + 1) << 33 | OPEN);
    wake_workers(pool);
    take_pieces(pool, 0);
    atomic_fetch_and(&pool->state, ~OPEN);
    wait_empty(pool);
}
