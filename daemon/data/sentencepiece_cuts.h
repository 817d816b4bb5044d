/* Where a text can be cut for sentencepiece, so that its parts give the ids of the whole. Floor F3;
 * immutable, any thread; private to daemon/data. */
#ifndef SHD_DAEMON_DATA_SENTENCEPIECE_CUTS_H
#define SHD_DAEMON_DATA_SENTENCEPIECE_CUTS_H

#include <stddef.h>

#include "daemon/data/sentencepiece.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What a model allows. */
typedef struct shd_sp_cuts {
    int merges;      /* parts give the whole's ids to the letter; else see shd_sp_cuts_at */
    int spaces;      /* words are tokenized apart: a text can be cut at a space */
    int own_space;   /* which the library then puts before what follows by itself */
    int lines;       /* and at a "\n", which becomes a space */
    size_t line_ids; /* ids of a text that is one "\n", when a text can be cut behind each; or 0 */
    size_t most;     /* bytes that the library gets at one time, which cannot be interrupted */
} shd_sp_cuts;

void shd_sp_cuts_make(const shd_sp *sp, const shd_sp_maps *maps, shd_sp_cuts *out);

/* May text[n] be cut before text[at]? What is left of it then begins at *rest, and with *skip ids
 * that belong to what came before. The bytes need not be well-formed. No text that goes on behind n
 * changes an answer, but for the last SHD_SP_AHEAD places, where it is no.
 *
 * No piece reaches over a cut. So merges never do, and the ids are the whole's. In a unigram model
 * the score of a segmentation is a sum over its pieces (Kudo, 2018, eq. 1-3), so that the best one
 * of a text is those of its parts; but the library adds scores up along a text in single
 * precision. After a million bytes a unit in the last place is some tenths of a nat, and near ties
 * fall by rounding; in parts they fall as they should. */
int shd_sp_cuts_at(const shd_sp_cuts *cuts, const char *text, size_t n, size_t at, size_t *rest,
                   size_t *skip);

#define SHD_SP_AHEAD 5u

#ifdef __cplusplus
}
#endif
#endif
