/* The sentencepiece library, as far as it is used here. Floor F3; immutable, any thread. */
#ifndef SHD_DAEMON_DATA_SENTENCEPIECE_H
#define SHD_DAEMON_DATA_SENTENCEPIECE_H

#include <stddef.h>
#include <stdint.h>

#include "daemon/base/err.h"
#include "daemon/data/sentencepiece_check.h"

#ifdef __cplusplus
extern "C" {
#endif

/* U+2581: a space, as pieces write it. */
#define SHD_SP_SPACE "\xe2\x96\x81"
#define SHD_SP_SPACE_SIZE 3u

typedef struct shd_sp shd_sp;

typedef enum shd_sp_kind {
    SHD_SP_TEXT = 0,
    SHD_SP_BYTE,    /* <0x41> */
    SHD_SP_CONTROL, /* <s>: stands for no text */
    SHD_SP_UNKNOWN
} shd_sp_kind;

/* From the contents of a tokenizer.model, checked by shd_sp_check; SHD_EDATA. */
int shd_sp_create(const char *bytes, size_t n, shd_sp **out, shd_sp_maps *maps, shd_error *err);
void shd_sp_free(shd_sp *sp); /* NULL is fine */

int32_t shd_sp_size(const shd_sp *sp);
int32_t shd_sp_bos(const shd_sp *sp); /* -1: none */
int32_t shd_sp_eos(const shd_sp *sp);
/* The text of piece `id`, with U+2581 for spaces; lives as long as `sp`. */
const char *shd_sp_piece(const shd_sp *sp, int32_t id, size_t *n, shd_sp_kind *kind);
/* Is it a model of merges (BPE), whose scores are ranks? */
int shd_sp_merges(const shd_sp *sp);
/* What the library makes of ids[n]; to be freed. */
char *shd_sp_decode(const shd_sp *sp, const int32_t *ids, size_t n, size_t *size);

/* Calls push for every id of text[n], which is well-formed UTF-8. */
int shd_sp_encode(const shd_sp *sp, const char *text, size_t n, void (*push)(void *arg, int32_t id),
                  void *arg, shd_error *err);

#ifdef __cplusplus
}
#endif
#endif
