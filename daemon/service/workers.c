#include "daemon/service/workers.h"

#include <assert.h>
#include <pthread.h>
#include <stdlib.h>

#include "daemon/base/mem.h"

/* First in, first out. */
typedef struct queue {
    shd_task *head, **end;
} queue;

struct shd_workers {
    uv_async_t wake;
    uint32_t most, of_user;
    queue waiting;      /* of the loop */
    shd_task **running; /* [most], of the loop; NULL: free */
    uint32_t n_running;

    pthread_mutex_t mutex;
    pthread_cond_t work;
    pthread_t *threads; /* [most] */
    uint32_t n_threads;
    uint32_t idle; /* threads that wait, less the tasks that wait for them */
    queue ready, ended;
    int closing;
};

static void push(queue *q, shd_task *task)
{
    task->next = NULL;
    *q->end = task;
    q->end = &task->next;
}

static void take(queue *q, shd_task **at)
{
    shd_task *task = *at;
    *at = task->next;
    if (q->end == &task->next) {
        q->end = at;
    }
}

/* ---- the threads ---- */

static void *serve(void *arg)
{
    shd_workers *w = arg;
    pthread_mutex_lock(&w->mutex);
    for (;;) {
        while (w->ready.head == NULL && !w->closing) {
            pthread_cond_wait(&w->work, &w->mutex);
        }
        shd_task *task = w->ready.head;
        if (task == NULL) {
            break;
        }
        take(&w->ready, &w->ready.head);
        pthread_mutex_unlock(&w->mutex);
        task->run(task);
        pthread_mutex_lock(&w->mutex);
        push(&w->ended, task);
        w->idle++;
        uv_async_send(&w->wake); /* under the lock: the handle lives until this thread is joined */
    }
    pthread_mutex_unlock(&w->mutex);
    return NULL;
}

/* ---- the loop ---- */

static void start(shd_workers *w, shd_task *task)
{
    uint32_t slot = 0;
    while (w->running[slot] != NULL) {
        slot++;
    }
    w->running[slot] = task;
    w->n_running++;
    pthread_mutex_lock(&w->mutex);
    push(&w->ready, task);
    if (w->idle > 0) {
        w->idle--;
        pthread_cond_signal(&w->work);
    } else if (pthread_create(&w->threads[w->n_threads++], NULL, serve, w) != 0) {
        abort(); /* out of memory */
    }
    pthread_mutex_unlock(&w->mutex);
}

static uint32_t running_of(const shd_workers *w, uid_t uid)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < w->most; i++) {
        n += w->running[i] != NULL && w->running[i]->uid == uid;
    }
    return n;
}

static void start_more(shd_workers *w)
{
    for (shd_task **at = &w->waiting.head; *at != NULL && w->n_running < w->most;) {
        shd_task *task = *at;
        if (running_of(w, task->uid) < w->of_user) {
            take(&w->waiting, at);
            start(w, task);
        } else {
            at = &task->next;
        }
    }
}

static void on_wake(uv_async_t *handle)
{
    shd_workers *w = handle->data;
    for (;;) {
        pthread_mutex_lock(&w->mutex);
        shd_task *task = w->ended.head;
        if (task != NULL) {
            take(&w->ended, &w->ended.head);
        }
        pthread_mutex_unlock(&w->mutex);
        if (task == NULL) {
            return;
        }
        for (uint32_t i = 0; i < w->most; i++) {
            w->running[i] = w->running[i] == task ? NULL : w->running[i];
        }
        w->n_running--;
        start_more(w);
        task->done(task); /* the last task's may free w, with another turn of the loop to come */
        if (w->closing) {
            return;
        }
    }
}

int shd_workers_create(uv_loop_t *loop, uint32_t most, uint32_t of_user, shd_workers **out,
                       shd_error *err)
{
    shd_workers *w = shd_calloc(1, sizeof(*w));
    const int rc = uv_async_init(loop, &w->wake, on_wake);
    if (rc < 0) {
        free(w);
        return shd_fail(err, SHD_EIO, "uv_async_init: %s", uv_strerror(rc));
    }
    w->wake.data = w;
    w->most = most;
    w->of_user = of_user;
    w->waiting.end = &w->waiting.head;
    w->ready.end = &w->ready.head;
    w->ended.end = &w->ended.head;
    w->running = shd_calloc(most, sizeof(*w->running));
    w->threads = shd_calloc(most, sizeof(*w->threads));
    pthread_mutex_init(&w->mutex, NULL);
    pthread_cond_init(&w->work, NULL);
    *out = w;
    return SHD_OK;
}

static void on_closed(uv_handle_t *handle)
{
    free(handle->data);
}

void shd_workers_free(shd_workers *w)
{
    if (w == NULL) {
        return;
    }
    assert(w->waiting.head == NULL && w->n_running == 0);
    pthread_mutex_lock(&w->mutex);
    w->closing = 1;
    pthread_cond_broadcast(&w->work);
    pthread_mutex_unlock(&w->mutex);
    for (uint32_t i = 0; i < w->n_threads; i++) {
        pthread_join(w->threads[i], NULL);
    }
    free(w->running);
    free(w->threads);
    pthread_mutex_destroy(&w->mutex);
    pthread_cond_destroy(&w->work);
    uv_close((uv_handle_t *)&w->wake, on_closed);
}

void shd_workers_run(shd_workers *w, shd_task *task)
{
    push(&w->waiting, task);
    start_more(w);
}

uint32_t shd_workers_tasks(const shd_workers *w, uid_t uid)
{
    uint32_t n = running_of(w, uid);
    for (const shd_task *task = w->waiting.head; task != NULL; task = task->next) {
        n += task->uid == uid;
    }
    return n;
}

void shd_workers_cancel(shd_workers *w)
{
    for (shd_task *task = w->waiting.head; task != NULL; task = task->next) {
        __atomic_store_n(&task->cancel, 1, __ATOMIC_RELAXED);
    }
    for (uint32_t i = 0; i < w->most; i++) {
        if (w->running[i] != NULL) {
            __atomic_store_n(&w->running[i]->cancel, 1, __ATOMIC_RELAXED);
        }
    }
}
