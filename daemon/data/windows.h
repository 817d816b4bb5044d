/* Windows of a token source: which tokens a sample is, and which of them are targets.
 * Packed: windows lie end to end over the documents; attention sees over their borders, but the
 * first token of a document is no target. Unpacked: a window begins with its document and does not
 * go beyond it; a longer document gives several, a shorter one is padded. A sample is a pure
 * function of (seed, global sample cursor). Floor F3; after creation any thread.
 *
 * Training leaves a remainder of packed tokens over. `whole` is for evaluation: every token but the
 * first (unpacked: of each document) is the target of one window, and with a stride below seq_len
 * windows overlap, so that a target has more context. */
#ifndef SHD_DAEMON_DATA_WINDOWS_H
#define SHD_DAEMON_DATA_WINDOWS_H

#include <stdint.h>

#include "daemon/base/err.h"
#include "daemon/data/source.h"

#ifdef __cplusplus
extern "C" {
#endif

#define SHD_WINDOWS_IGNORED (-100) /* a target that is not counted */

typedef enum shd_windows_part {
    SHD_WINDOWS_ALL = 0,
    SHD_WINDOWS_HEAD, /* without the tail */
    SHD_WINDOWS_TAIL  /* the last `tail` of the tokens; unpacked: the documents that begin there */
} shd_windows_part;

typedef struct shd_windows_options {
    shd_windows_part part;
    double tail; /* share of the tokens, 0..1 */
    uint32_t seq_len;
    int packing;
    int shuffle; /* 0: in file order */
    uint64_t seed;
    int whole;       /* up to the last token; in file order, of all parts */
    uint32_t stride; /* whole: windows begin so many tokens apart, 1..seq_len; after the first (of a
                        document) only the last so many targets count. 0: seq_len */
    uint64_t limit;  /* whole: only so many tokens after the first; 0: all */
} shd_windows_options;

typedef struct shd_windows shd_windows;

/* `source` is borrowed. SHD_EINVAL: a length or stride out of range. SHD_EDATA when the part holds
 * no window (packed: fewer than seq_len + 1 tokens; unpacked or whole: no two tokens together), or
 * the documents are damaged. */
int shd_windows_create(const shd_source *source, const shd_windows_options *options,
                       shd_windows **out, shd_error *err);
void shd_windows_free(shd_windows *windows); /* NULL is fine */

/* Windows per epoch. */
uint64_t shd_windows_count(const shd_windows *windows);

/* The sample of global number `cursor`: ids[seq_len] and targets[seq_len], 0 and
 * SHD_WINDOWS_IGNORED in what is padded. Errors as of shd_source_read. */
int shd_windows_read(const shd_windows *windows, uint64_t cursor, uint32_t vocab, int32_t *ids,
                     int32_t *targets, shd_error *err);

#ifdef __cplusplus
}
#endif
#endif
