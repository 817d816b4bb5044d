/* What the sentencepiece library believes of a tokenizer.model without looking. Floor F3; pure. */
#ifndef SHD_DAEMON_DATA_SENTENCEPIECE_CHECK_H
#define SHD_DAEMON_DATA_SENTENCEPIECE_CHECK_H

#include <stddef.h>

#include "daemon/base/err.h"

#ifdef __cplusplus
extern "C" {
#endif

/* model[n] is a serialized message, and in the maps of characters of its normalizers every step of
 * their tries and every place in their texts lies inside: the library would read whatever is there.
 * *maps: is there such a map for texts? SHD_EDATA. */
int shd_sp_check(const char *model, size_t n, int *maps, shd_error *err);

#ifdef __cplusplus
}
#endif
#endif
