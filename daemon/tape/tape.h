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

/* A dense row-major tensor. Owned by its tape, except parameters, whose memory belongs to a unit
 * and whose struct belongs to the caller. */
typedef struct shd_tensor {
    int ndim;
    int64_t shape[SHD_MAX_DIMS];
    shd_dtype dtype; /* the tape's, except logits (fp32) */
    void *data;
    void *grad;        /* same shape and dtype; NULL until something flows back */
    int is_param;      /* data and grad are borrowed; grad is set by the caller before backward */
    int requires_grad; /* nothing flows back to a tensor without; of parameters set by the caller */
    int grad_defined;  /* grad holds values (else it is overwritten by the first contribution) */
    int refs;          /* the model's handle and every saved use */
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

/* Attention's heads and mask: see shd_attn_shape in kernels/compute_ops.h. */
typedef struct shd_attn_spec {
    int64_t heads, kv_heads, head_dim;
    int64_t window; /* 0: none; else the query at position i sees keys i-window+1 .. i */
    float scale;    /* of the scores, usually 1/sqrt(head_dim) */
} shd_attn_spec;

/* One tape serves many micro-batches; shd_tape_reset makes it ready for the next. Activations and
 * parameters are of `dtype`: SHD_F32, SHD_BF16 or SHD_F16. */
shd_tape *shd_tape_create(shd_device *dev, shd_arena *arena, shd_dtype dtype);
void shd_tape_free(shd_tape *tape); /* NULL is fine */

/* From now on a tensor of fewer than `rows` rows takes the memory of `rows`, and scratch is that of
 * `rows` rows in sequences of `tokens`: then a micro-batch of any smaller shape lies in memory
 * exactly as the largest one does, and the plan of the largest holds for all. */
void shd_tape_reserve(shd_tape *tape, int64_t rows, int64_t tokens);

/* Releases all tensors and nodes, clears the error. `record` nonzero: backward will follow. */
void shd_tape_reset(shd_tape *tape, int record);

/* From now on ops are recorded for backward, or not; what is on the tape stays. */
void shd_tape_record(shd_tape *tape, int record);

/* The factor of the gradients that cross-entropy starts (1 at first, kept over resets): loss
 * scaling of fp16. */
void shd_tape_set_loss_scale(shd_tape *tape, float scale);

/* 0, or the first failure since the reset. */
int shd_tape_error(const shd_tape *tape, shd_error *err);

/* The place of the next node: pass it to shd_tape_backward later. */
int64_t shd_tape_mark(const shd_tape *tape);

/* Runs backward of the nodes from the end down to `mark` and takes them off the tape; memory that
 * no earlier node needs is released on the way. The nodes' outputs must have their grad set, or
 * come from a loss op. */
int shd_tape_backward(shd_tape *tape, int64_t mark, shd_error *err);

/* Gives up a handle; memory goes when no backward needs it. NULL is fine. */
void shd_tape_drop(shd_tape *tape, shd_tensor *t);

/* One more handle. NULL is fine. For who runs a segment again (activation checkpointing): it holds
 * the segment's input, runs forward without recording, later again with it, moves the gradient of
 * the first output to the second, and finds the input's after backward. */
void shd_tape_hold(shd_tape *tape, shd_tensor *t);

/* `to` gets the gradient of `from` added, or takes its buffer over when it has none; `from` has
 * none afterwards. For the last use of from's gradient. */
void shd_tape_move_grad(shd_tape *tape, shd_tensor *from, shd_tensor *to);

/* ---- ops; all return a new tensor with one handle, or NULL ---- */

/* out[R,C] = wte[ids] + wpe[pos0 + r % T]; R = rows, T = tokens per sequence. wte [V,C], wpe [P,C]
 * or NULL. `ids` is device memory that outlives backward. pos0 is 0 when recording with wpe.
 * Rows of index `pad` give wte no gradient (PyTorch's padding_idx); -1: there is none. */
shd_tensor *shd_tape_embedding(shd_tape *tape, shd_tensor *wte, shd_tensor *wpe, const int32_t *ids,
                               int64_t rows, int64_t tokens, int64_t pos0, int64_t pad);

/* Layer norm over the last axis of x [R,C] with gain w [C] and bias b [C]. */
shd_tensor *shd_tape_layernorm(shd_tape *tape, shd_tensor *x, shd_tensor *w, shd_tensor *b,
                               float eps);

/* RMS norm with gain w [C]. x is [R, n*C]: every group of C is normalised alone (n = 1: whole rows;
 * n heads: Qwen3's norms of queries and keys). */
shd_tensor *shd_tape_rmsnorm(shd_tape *tape, shd_tensor *x, shd_tensor *w, float eps);

/* x[R,K] · w + bias + residual -> [R,N]. w is [K,N] when `w_kn`, else [N,K]; bias [N] and
 * residual [R,N] may be NULL. */
shd_tensor *shd_tape_linear(shd_tape *tape, shd_tensor *x, shd_tensor *w, shd_tensor *bias,
                            shd_tensor *residual, int w_kn);

shd_tensor *shd_tape_gelu(shd_tape *tape, shd_tensor *x, shd_gelu_form form);

/* silu(gate) * up, of equal shapes. */
shd_tensor *shd_tape_swiglu(shd_tape *tape, shd_tensor *gate, shd_tensor *up);

/* Rotary positions: x [R, heads*head_dim], rows in sequences of `tokens` from position pos0. Takes
 * x's handle over (do not drop it) and its buffer when nobody else reads it. inv_freq [head_dim/2]
 * is host memory that outlives backward. */
shd_tensor *shd_tape_rope(shd_tape *tape, shd_tensor *x, const float *inv_freq, int64_t head_dim,
                          int64_t tokens, int64_t pos0);

/* residual + dropout(x), rows in sequences of `tokens`; residual may be NULL. `dropout` is copied;
 * p is above 0. */
shd_tensor *shd_tape_dropout(shd_tape *tape, shd_tensor *x, shd_tensor *residual, int64_t tokens,
                             const shd_dropout *dropout);

/* Causal self-attention over rows in sequences of `tokens`: q [R, heads*D], k and v
 * [R, kv_heads*D] -> [R, heads*D]. `dropout` of the probabilities is copied; NULL: none. */
shd_tensor *shd_tape_attention(shd_tape *tape, shd_tensor *q, shd_tensor *k, shd_tensor *v,
                               const shd_attn_spec *spec, int64_t tokens,
                               const shd_dropout *dropout);

/* The same over packed projections [R, (heads + 2 kv_heads)*D], q, k, v side by side. */
shd_tensor *shd_tape_attention_packed(shd_tape *tape, shd_tensor *qkv, const shd_attn_spec *spec,
                                      int64_t tokens, const shd_dropout *dropout);

/* Memory of one sequence's keys and values, for generation. Device memory of the caller, of the
 * tape's dtype. */
typedef struct shd_kv_cache {
    void *k, *v; /* [capacity, kv_heads*D] */
    int64_t length, capacity;
} shd_kv_cache;

/* The R rows follow the cache's `length` tokens: their keys and values are stored behind these,
 * then the rows attend to all of them. Forward only; the caller moves `length` on when all layers
 * are through. k and v are NULL when q is packed as above. */
shd_tensor *shd_tape_attention_cached(shd_tape *tape, shd_tensor *q, shd_tensor *k, shd_tensor *v,
                                      const shd_attn_spec *spec, const shd_kv_cache *cache);

/* Rows [first, first + n) of x [R,C], copied; forward only. This result and what is made after it
 * take the memory of their own rows. */
shd_tensor *shd_tape_rows(shd_tape *tape, shd_tensor *x, int64_t first, int64_t n);

/* x[R,C] · wᵀ -> [R,V] in fp32, w [V,C]; forward only. */
shd_tensor *shd_tape_logits(shd_tape *tape, shd_tensor *x, shd_tensor *w);

/* Token cross-entropy of h[R,C] through the head w[V,C], in chunks of rows so that all logits never
 * exist at once; logits are fp32. losses[R] (device memory, outlives the tape's nodes) gets each
 * row's loss in nats, 0 where target < 0. The gradient that flows back is that of the *sum* of the
 * losses, times the loss scale.
 * When recording, everything is computed in backward (logits are needed there anyway), and losses
 * are defined only after it. */
void shd_tape_cross_entropy(shd_tape *tape, shd_tensor *h, shd_tensor *w, const int32_t *targets,
                            float *losses);

#ifdef __cplusplus
}
#endif
#endif
