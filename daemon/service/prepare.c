#include "daemon/service/prepare.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/base/mem.h"

enum {
    MAX_RUNNING = 8,
    MAX_OF_USER = 2,
    NICE = 10 /* of the threads: the ranks come first */
};

typedef enum state { WAITING, RUNNING, ENDED } state;

struct shd_preparation {
    shd_preparer *preparer;
    shd_preparation *next;
    uid_t uid;
    int fd;
    char *path;
    shd_data_format format;
    shd_tokenizer *tok;
    struct stat st;     /* of the file when it was queued */
    shd_prepared_fn fn; /* NULL: given up */
    void *arg;
    _Atomic(state) state;
    pthread_t thread;
    shd_token_progress progress;

    /* Written by the thread, read after it is joined. */
    shd_source *source;
    shd_error err;
    int rc;
};

struct shd_preparer {
    uv_async_t wake;
    shd_token_cache *cache;
    shd_preparation *all; /* in order of arrival */
};

static int same_work(const shd_preparation *a, const shd_preparation *b)
{
    return a->st.st_dev == b->st.st_dev && a->st.st_ino == b->st.st_ino && a->format == b->format &&
           strcmp(shd_tokenizer_digest(a->tok), shd_tokenizer_digest(b->tok)) == 0;
}

/* ---- the thread ---- */

static void *run(void *arg)
{
    shd_preparation *p = arg;
    shd_preparer *preparer = p->preparer; /* lives until this thread is joined */
    setpriority(PRIO_PROCESS, 0, NICE);   /* of this thread alone */
    p->rc = shd_token_cache_get(preparer->cache, p->fd, p->path, p->format, p->tok, &p->progress,
                                &p->source, &p->err);
    p->state = ENDED; /* from here on the loop may join */
    uv_async_send(&preparer->wake);
    return NULL;
}

/* ---- the loop ---- */

static void preparation_free(shd_preparation *p)
{
    shd_tokenizer_free(p->tok);
    close(p->fd);
    free(p->path);
    free(p);
}

static void start(shd_preparation *p)
{
    p->state = RUNNING;
    if (pthread_create(&p->thread, NULL, run, p) != 0) {
        abort(); /* out of memory */
    }
}

/* Starts what may run. */
static void start_more(shd_preparer *preparer)
{
    int running = 0;
    for (shd_preparation *p = preparer->all; p != NULL; p = p->next) {
        running += p->state != WAITING;
    }
    for (shd_preparation *p = preparer->all; p != NULL && running < MAX_RUNNING; p = p->next) {
        if (p->state != WAITING) {
            continue;
        }
        int of_user = 0, same = 0;
        for (const shd_preparation *other = preparer->all; other != NULL; other = other->next) {
            of_user += other->state != WAITING && other->uid == p->uid;
            same |= other->state != WAITING && same_work(p, other);
        }
        if (of_user < MAX_OF_USER && !same) {
            start(p);
            running++;
        }
    }
}

/* The first that has ended, taken out of the list; NULL: none. */
static shd_preparation *take_ended(shd_preparer *preparer)
{
    for (shd_preparation **at = &preparer->all; *at != NULL; at = &(*at)->next) {
        if ((*at)->state == ENDED) {
            shd_preparation *p = *at;
            *at = p->next;
            return p;
        }
    }
    return NULL;
}

static void on_wake(uv_async_t *handle)
{
    shd_preparer *preparer = handle->data;
    for (shd_preparation *p; (p = take_ended(preparer)) != NULL;) {
        pthread_join(p->thread, NULL);
        start_more(preparer);
        if (p->fn != NULL) {
            p->fn(p->arg, p->source, p->rc < 0 ? &p->err : NULL);
        } else if (p->rc == 0) {
            shd_source_free(p->source);
        }
        preparation_free(p);
    }
}

int shd_preparer_create(uv_loop_t *loop, shd_token_cache *cache, shd_preparer **out, shd_error *err)
{
    shd_preparer *preparer = shd_calloc(1, sizeof(*preparer));
    const int rc = uv_async_init(loop, &preparer->wake, on_wake);
    if (rc < 0) {
        free(preparer);
        return shd_fail(err, SHD_EIO, "uv_async_init: %s", uv_strerror(rc));
    }
    preparer->wake.data = preparer;
    preparer->cache = cache;
    *out = preparer;
    return SHD_OK;
}

static void on_closed(uv_handle_t *handle)
{
    free(handle->data);
}

void shd_preparer_free(shd_preparer *preparer)
{
    if (preparer == NULL) {
        return;
    }
    for (shd_preparation *p = preparer->all; p != NULL; p = p->next) {
        shd_token_progress_cancel(&p->progress);
    }
    for (shd_preparation *p; (p = preparer->all) != NULL;) {
        preparer->all = p->next;
        if (p->state != WAITING) {
            pthread_join(p->thread, NULL);
            if (p->rc == 0) {
                shd_source_free(p->source);
            }
        }
        preparation_free(p);
    }
    uv_close((uv_handle_t *)&preparer->wake, on_closed);
}

shd_preparation *shd_prepare(shd_preparer *preparer, uid_t uid, int fd, const char *path,
                             shd_data_format format, shd_tokenizer *tok, shd_prepared_fn fn,
                             void *arg)
{
    shd_preparation *p = shd_calloc(1, sizeof(*p));
    p->preparer = preparer;
    p->uid = uid;
    p->fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    p->path = shd_strdup(path);
    p->format = format;
    p->tok = shd_tokenizer_ref(tok);
    p->fn = fn;
    p->arg = arg;
    if (fstat(p->fd, &p->st) == 0) {
        p->progress.total = 2 * (uint64_t)p->st.st_size;
    } /* else reading it will say why not */
    shd_preparation **at = &preparer->all;
    while (*at != NULL) {
        at = &(*at)->next;
    }
    *at = p;
    start_more(preparer);
    return p;
}

void shd_prepare_progress(const shd_preparation *p, uint64_t *done, uint64_t *total)
{
    const shd_preparation *shown = p;
    for (const shd_preparation *other = p->preparer->all; other != NULL && p->state == WAITING;
         other = other->next) {
        if (other->state != WAITING && same_work(p, other)) {
            shown = other; /* what it makes is what this one waits for */
            break;
        }
    }
    shd_token_progress_get(&shown->progress, done, total);
}

void shd_prepare_cancel(shd_preparation *p)
{
    if (p == NULL) {
        return;
    }
    p->fn = NULL;
    shd_token_progress_cancel(&p->progress);
    if (p->state == WAITING) {
        shd_preparation **at = &p->preparer->all;
        while (*at != p) {
            at = &(*at)->next;
        }
        *at = p->next;
        preparation_free(p);
    }
}
