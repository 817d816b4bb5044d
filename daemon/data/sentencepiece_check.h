/* What the sentencepiece library believes of a tokenizer.model without looking. Floor F3; pure. */
#ifndef SHD_DAEMON_DATA_SENTENCEPIECE_CHECK_H
#define SHD_DAEMON_DATA_SENTENCEPIECE_CHECK_H

#include <stddef.h>

#include "daemon/base/err.h"

#ifdef __cplusplus
extern "C" {
#endif

/* How a model replaces characters of a text. */
typedef struct shd_sp_maps {
    int joins;      /* a space, or a "\n" together with what stands beside it, is replaced */
    size_t longest; /* bytes that come for one character or several */
} shd_sp_maps;

/* model[n] is a serialized message, and in the maps of characters of its normalizers every step of
 * their tries and every place in their texts lies inside: the library would read whatever is there.
 * Nor is any of them made to keep it busy for ever: keys and texts are short, and ways through the
 * tries end. SHD_EDATA. */
int shd_sp_check(const char *model, size_t n, shd_sp_maps *maps, shd_error *err);

#ifdef __cplusplus
}
#endif
#endif
