/* What a job trains and how, checked and with every default filled in. Floor F4; pure. */
#ifndef SHD_DAEMON_TRAIN_SPEC_H
#define SHD_DAEMON_TRAIN_SPEC_H

#include <stdint.h>

#include "daemon/base/err.h"
#include "daemon/data/source.h"
#include "daemon/model/model.h"
#include "daemon/optim/optim.h"
#include "daemon/optim/scaler.h"
#include "daemon/optim/schedule.h"
#include "daemon/shard/schedule.h"
#include "daemon/shard/strategy.h"
#include "kernels/dtype.h"
#include "proto/shard.pb-c.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Largest accepted values, in a specification and in a step's overrides. */
#define SHD_SPEC_LR_MAX 100.0
#define SHD_SPEC_CLIP_MAX 1e30
#define SHD_SPEC_WEIGHT_DECAY_MAX 100.0

/* Which blocks drop what they computed in forward and compute it again in backward. */
typedef enum shd_checkpointing {
    SHD_CHECKPOINT_NONE = 0,
    SHD_CHECKPOINT_SELECTIVE, /* every second block, the first one included */
    SHD_CHECKPOINT_FULL
} shd_checkpointing;

typedef struct shd_spec {
    char name[65];
    char *model_name; /* owned; a preset or a directory */
    char *data_path;  /* owned; NULL: batches come from clients */
    char *eval_path;  /* owned; NULL: the tail of data_path, or no evaluation */
    char *tokenizer;  /* owned; as asked for; "": not given */
    char *init_from;  /* owned; "random", "pretrained" (the model directory's own) or a directory */
    shd_data_format data_format;
    int packing; /* documents end to end, else one a window */
    shd_model_config model;
    shd_strategy strategy; /* degrees, world */
    shd_pipeline_settings pipeline;
    shd_determinism determinism;
    uint32_t reduction_width; /* V: leaves of one reduction tree; W unless the level is world */
    uint64_t steps;           /* 0: no end (client-driven jobs only) */
    uint32_t micro_batch;     /* sequences per leaf */
    uint32_t global_batch;    /* sequences per optimizer step */
    uint32_t accumulation;    /* leaves per rank and step = global_batch / (micro_batch * world) */
    uint32_t seq_len;
    shd_optim optim;
    shd_schedule schedule; /* learning rate by optimizer step */
    double weight_decay;
    int decay_all;          /* on norms and biases too */
    double clip;            /* 0: off */
    shd_dtype dtype;        /* compute and gathered parameters */
    shd_dtype reduce_dtype; /* reduction and accumulation of gradients */
    shd_scaler_config scaler;
    shd_checkpointing checkpointing;
    char **freeze; /* owned, [n_freeze]; patterns (fnmatch) of parameters that are not trained */
    uint32_t n_freeze;
    double dropout;
    uint64_t seed;
    double eval_split;   /* share of the data's tail kept for evaluation; 0: none */
    uint64_t eval_every; /* 0: never */
    uint32_t eval_batches;
    uint32_t priority;
} shd_spec;

/* Checks `in` against itself and against a daemon of `max_ranks` ranks, of which `node_ranks` are
 * on a node (0: all), and fills *out. `config` is that of the model directory in->model; NULL:
 * in->model is a preset. Every refusal names the field as its CLI flag, the value, and what is
 * accepted; what another version may offer but this one does not is SHD_EUNSUPPORTED. A setting
 * that has no effect on such a job is refused. Files are not touched. */
int shd_spec_resolve(const Shard__V1__JobSpec *in, uint32_t max_ranks, uint32_t node_ranks,
                     const shd_model_config *config, shd_spec *out, shd_error *err);
/* A copy with strings of its own. */
void shd_spec_copy(shd_spec *out, const shd_spec *in);
void shd_spec_fini(shd_spec *spec);

/* Is the parameter of this name frozen? */
int shd_spec_freezes(const shd_spec *spec, const char *parameter);

/* "strategy", "run", "world". Static storage. */
const char *shd_determinism_name(shd_determinism level);

/* "none", "selective", "full". Static storage. */
const char *shd_checkpointing_name(shd_checkpointing checkpointing);

/* The message with every field that applies set to what is in use. Freed with
 * shard__v1__job_spec__free_unpacked (NULL allocator). */
Shard__V1__JobSpec *shd_spec_to_proto(const shd_spec *spec);

#ifdef __cplusplus
}
#endif
#endif
