/* Byte pair encoding (Sennrich et al. 2016): a word's bytes are merged, the pair of the lowest rank
 * first and of equal ones the leftmost, until no pair is in the table. Floor F3; a table is
 * immutable once filled, a cache belongs to one thread. */
#ifndef SHD_DAEMON_DATA_BPE_H
#define SHD_DAEMON_DATA_BPE_H

#include <stddef.h>
#include <stdint.h>

#include "daemon/base/err.h"
#include "daemon/data/ends.h"
#include "daemon/data/ids.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct shd_bpe shd_bpe;

/* Room for so many tokens and merges. */
shd_bpe *shd_bpe_create(size_t n_tokens, size_t n_merges);
void shd_bpe_free(shd_bpe *bpe); /* NULL is fine */

/* text[n] is borrowed for the life of the table; a text comes once. */
void shd_bpe_put_token(shd_bpe *bpe, const char *text, size_t n, int32_t id);
/* The pair (left, right) becomes `id`; a later merge of the same pair replaces the earlier. */
void shd_bpe_put_merge(shd_bpe *bpe, int32_t left, int32_t right, uint32_t rank, int32_t id);

/* What stands for bytes without a token: `unknown`, one for each or for a run of them (`fuse`);
 * -1: nothing. `whole_words`: a word that is a token is that token, whatever the merges say. */
void shd_bpe_set_unknown(shd_bpe *bpe, int32_t unknown, int fuse);
void shd_bpe_set_whole_words(shd_bpe *bpe, int whole_words);

typedef struct shd_bpe_cache shd_bpe_cache;

shd_bpe_cache *shd_bpe_cache_create(void);
void shd_bpe_cache_free(shd_bpe_cache *cache); /* NULL is fine */

/* Appends the ids of word[n]. `ends` is looked at during a long word; errors as there. */
int shd_bpe_word(const shd_bpe *bpe, shd_bpe_cache *cache, const char *word, size_t n,
                 shd_ends *ends, shd_ids *ids, shd_error *err);

#ifdef __cplusplus
}
#endif
#endif
