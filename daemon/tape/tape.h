/* The tape: models write forward as ops on tensors; backward is derived. Floor F3; the rank's
 * thread. The tape knows ops and memory, not models and not shards.
 *
 * Errors are sticky: after the first failure every op returns NULL and does nothing, and ops accept
 * NULL tensors, so a model is written without checks; shd_tape_error tells in the end. The only
 * run- time failure is memory; a shape that does not fit is a defect of the model and is reported
 * as SHD_EINTERNAL with the shapes. */
#ifndef SHD_DAEMON_TAPE_TAPE_H
#define SHD_DAEMON_TAPE_TAPE_H

#include <stdint.h>

#include "daemon/base/arena.h"
#include "daemon/base/err.h"
#include "daemon/device/device.h"

#ifdef __cplusplus
extern "C" {
#endif

#define SHD_MAX_DIMS 4

/* A dense row-major fp32 tensor. Owned by its tape, except parameters, whose memory belongs to a
 * unit and whose struct belongs to the caller. */
typedef struct shd_tensor {
    int ndim;
    int64_t shape[SHD_MAX_DIMS];
    float *data;
    float *grad;      /* same shape; NULL until something flows back */
    int is_param;     /* data and grad are borrowed; grad is set by the caller before backward */
    int grad_defined; /* grad holds values (else it is overwritten by the first contribution) */
    int refs;         /* the model's handle and every saved use */
} shd_tensor;

static inline int64_t shd_tensor_numel(const shd_tensor *t)
{
    int64_t n = 1;
    for (int i = 0; i < t->ndim; i++) {
        n *= t->shape[i];
    }
    return n;
}

typedef struct shd_tape shd_tape;

/* One tape serves many micro-batches; shd_tape_reset makes it ready for the next. */
shd_tape *shd_tape_create(shd_device *dev, shd_arena *arena);
void shd_tape_free(shd_tape *tape); /* NULL is fine */

/* From now on a tensor of fewer than `rows` rows takes the memory of `rows`, and scratch is that of
 * `rows` rows in sequences of `tokens`: then a micro-batch of any smaller shape lies in memory
 * exactly as the largest one does, and the plan of the largest holds for all. */
void shd_tape_reserve(shd_tape *tape, int64_t rows, int64_t tokens);

/* Releases all tensors and nodes, clears the error. `record` nonzero: backward will follow. */
void shd_tape_reset(shd_tape *tape, int record);

/* 0, or the first failure since the reset. */
int shd_tape_error(const shd_tape *tape, shd_error *err);

/* The place of the next node: pass it to shd_tape_backward later. */
int64_t shd_tape_mark(const shd_tape *tape);

/* Runs backward of the nodes from the end down to `mark` and takes them off the tape; memory that
 * no earlier node needs is released on the way. The nodes' outputs must have their grad set, or
 * come from a loss op. */
int shd_tape_backward(shd_tape *tape, int64_t mark, shd_error *err);

/* Gives up the model's handle; memory goes when no backward needs it. NULL is fine. */
void shd_tape_drop(shd_tape *tape, shd_tensor *t);

/* ---- ops; all return a new tensor with one handle, or NULL ---- */

/* out[R,C] = wte[ids] + wpe[pos0 + r % T]; R = rows, T = tokens per sequence. wte [V,C], wpe [P,C]
 * or NULL. `ids` is device memory that outlives backward. */
shd_tensor *shd_tape_embedding(shd_tape *tape, shd_tensor *wte, shd_tensor *wpe, const int32_t *ids,
                               int64_t rows, int64_t tokens);

/* Layer norm over the last axis of x [R,C] with gain w [C] and bias b [C]. */
shd_tensor *shd_tape_layernorm(shd_tape *tape, shd_tensor *x, shd_tensor *w, shd_tensor *b,
                               float eps);

/* x[R,K] · w + bias + residual -> [R,N]. w is [K,N] when `w_kn`, else [N,K]; bias [N] and
 * residual [R,N] may be NULL. */
shd_tensor *shd_tape_linear(shd_tape *tape, shd_tensor *x, shd_tensor *w, shd_tensor *bias,
                            shd_tensor *residual, int w_kn);

/* GELU, tanh form. */
shd_tensor *shd_tape_gelu(shd_tape *tape, shd_tensor *x);

/* Causal self-attention over packed projections qkv [R, 3*C] (q, k, v side by side, `heads` heads
 * of C/heads each), rows in sequences of `tokens`. -> [R,C] */
shd_tensor *shd_tape_attention(shd_tape *tape, shd_tensor *qkv, int64_t heads, int64_t tokens);

/* Rows [first, first + n) of x [R,C], copied; forward only. This result and what is made after it
 * take the memory of their own rows. */
shd_tensor *shd_tape_rows(shd_tape *tape, shd_tensor *x, int64_t first, int64_t n);

/* Token cross-entropy of h[R,C] through the head w[V,C], in chunks of rows so that all logits never
 * exist at once. losses[R] (device memory, outlives the tape's nodes) gets each row's loss in nats,
 * 0 where target < 0. The gradient that flows back is that of the *sum* of the losses.
 * When recording, everything is computed in backward (logits are needed there anyway), and losses
 * are defined only after it. */
void shd_tape_cross_entropy(shd_tape *tape, shd_tensor *h, shd_tensor *w, const int32_t *targets,
                            float *losses);

#ifdef __cplusplus
}
#endif
#endif
