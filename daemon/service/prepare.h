/* Tokenizing for jobs and calls, on threads of its own and behind the ranks in priority, so that
 * neither the loop nor other jobs wait. At most so many texts are in work, and few of one user, so
 * that nobody waits behind another's; the rest queue. Of the same file and tokenizer only one is in
 * work: the second finds what the first has made. Floor F5; loop thread. */
#ifndef SHD_DAEMON_SERVICE_PREPARE_H
#define SHD_DAEMON_SERVICE_PREPARE_H

#include <stdint.h>
#include <uv.h>

#include "daemon/base/err.h"
#include "daemon/data/source.h"
#include "daemon/data/token_cache.h"
#include "daemon/data/tokenizer.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct shd_preparer shd_preparer;
typedef struct shd_preparation shd_preparation;

/* `cache` is borrowed. */
int shd_preparer_create(uv_loop_t *loop, shd_token_cache *cache, shd_preparer **out,
                        shd_error *err);
/* Cancels what runs and waits for it; nobody is told. The loop must run once more so that its
 * handle closes. NULL is fine. */
void shd_preparer_free(shd_preparer *preparer);

/* What came of it: a source (owned from here) or NULL and why. The handle is gone afterwards. */
typedef void (*shd_prepared_fn)(void *arg, shd_source *source, const shd_error *failed);

/* Queues shd_token_cache_get of `fd` (duplicated) for user `uid`; `fn` runs on the loop, later. */
shd_preparation *shd_prepare(shd_preparer *preparer, uid_t uid, int fd, const char *path,
                             shd_data_format format, shd_tokenizer *tok, shd_prepared_fn fn,
                             void *arg);

/* Bytes of reading, done and in all; the text is read twice. */
void shd_prepare_progress(const shd_preparation *preparation, uint64_t *done, uint64_t *total);

/* Gives it up: `fn` does not run, the handle is gone. NULL is fine. */
void shd_prepare_cancel(shd_preparation *preparation);

#ifdef __cplusplus
}
#endif
#endif
