/* The cache of token files: a text is tokenized once, and what came of it is found again by the
 * text's content, the tokenizer and the format. Floor F3; any thread, several at a time.
 *
 * A file of the cache is private to the daemon, written aside, flushed and renamed, and verified
 * before every use. Who gets one has shown the text and the tokenizer themselves: its name is a
 * digest of all of both (BLAKE2b, with a secret of this cache as the key), so no other way leads to
 * it, and nobody can make two texts or two tokenizers meet there. When the files take
 * more than the limit, those that were used longest ago are deleted; a job that reads one keeps it
 * open. */
#ifndef SHD_DAEMON_DATA_TOKEN_CACHE_H
#define SHD_DAEMON_DATA_TOKEN_CACHE_H

#include <stdint.h>

#include "daemon/base/err.h"
#include "daemon/data/source.h"
#include "daemon/data/tokenizer.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct shd_token_cache shd_token_cache;

/* The directory `name` in `dir` (borrowed for the call), made with mode 0700 where it is missing;
 * `limit`: bytes of all files, 0: none. Left-overs of a daemon that died are deleted. SHD_EIO. */
int shd_token_cache_open(int dir, const char *name, uint64_t limit, shd_token_cache **out,
                         shd_error *err);
void shd_token_cache_free(shd_token_cache *cache); /* NULL is fine */

/* Shared with who watches, from any thread through the functions below; zero at the begin. */
typedef struct shd_token_progress {
    uint64_t done, total; /* bytes; the text is read twice */
    int cancel;
} shd_token_progress;

void shd_token_progress_get(const shd_token_progress *progress, uint64_t *done, uint64_t *total);
/* Makes the work stop with SHD_ECANCELLED. */
void shd_token_progress_cancel(shd_token_progress *progress);

/* A source of the tokens of `fd` (a regular file, open for reading; `path` for messages), which
 * `format` (TEXT or JSONL) and `tok` make of it; the source is bound to the file.
 *
 * TEXT is one document. JSONL has one a line: an object with "text", or with "prompt" and
 * "completion" (strings; the prompt's tokens are no targets); empty lines are skipped, other keys
 * too. A document is what the tokenizer makes of it with what its post-processor adds, and the
 * end-of-text token behind it where there is one; prompt and completion are tokenized apart, one
 * document together.
 *
 * SHD_EDATA: names the line and what is wrong; or the file changed meanwhile; or no tokens.
 * SHD_EIO: no room for the file, and the like. */
int shd_token_cache_get(shd_token_cache *cache, int fd, const char *path, shd_data_format format,
                        shd_tokenizer *tok, shd_token_progress *progress, shd_source **out,
                        shd_error *err);

#ifdef __cplusplus
}
#endif
#endif
