/* What a job's steps and evaluations read: its files, cut into windows. Cutting may read a long
 * table of documents, so it is apart from the trainer and may be done by any thread. Floor F4. */
#ifndef SHD_DAEMON_TRAIN_TRAIN_DATA_H
#define SHD_DAEMON_TRAIN_TRAIN_DATA_H

#include <stdint.h>

#include "daemon/base/err.h"
#include "daemon/data/source.h"
#include "daemon/data/windows.h"
#include "daemon/train/spec.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct shd_train_data {
    shd_source *data;      /* owned */
    shd_source *eval;      /* owned; may be `data`; NULL: no evaluation */
    shd_windows *train;    /* of `data` */
    shd_windows *held_out; /* of `eval` */
} shd_train_data;

/* Cuts `data` and `eval` (may be NULL) as `spec` says. Takes both over, also on failure. SHD_EDATA,
 * with the file and its part: too short for the split and sequence length, documents that are
 * damaged. */
int shd_train_data_cut(const shd_spec *spec, shd_source *data, shd_source *eval,
                       shd_train_data **out, shd_error *err);
/* Micro-batches of one evaluation, in the size of `spec`; 0 without. */
uint64_t shd_train_data_eval_leaves(const shd_train_data *data, const shd_spec *spec);
void shd_train_data_free(shd_train_data *data); /* NULL is fine */

#ifdef __cplusplus
}
#endif
#endif
