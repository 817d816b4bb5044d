/* What the ops of the tape share: nodes, and taking and giving back memory. Floor F3; private to
 * daemon/tape. */
#ifndef SHD_DAEMON_TAPE_TAPE_INTERNAL_H
#define SHD_DAEMON_TAPE_TAPE_INTERNAL_H

#include "daemon/tape/tape.h"

#ifdef __cplusplus
extern "C" {
#endif

#define SHD_NODE_INPUTS 4
#define SHD_NODE_SAVED 2

typedef struct shd_node shd_node;
typedef int (*shd_backward_fn)(shd_tape *tape, shd_node *node);

/* One op on the tape. Inputs are kept alive until its backward has run when listed in `keep`. */
struct shd_node {
    shd_backward_fn backward;
    shd_tensor *in[SHD_NODE_INPUTS]; /* gradients flow to these; NULL: absent */
    unsigned keep;                   /* bit i: in[i]->data is read by backward */
    shd_tensor *out;
    int keep_out;                 /* out->data is read by backward */
    float *saved[SHD_NODE_SAVED]; /* arena memory owned by the node (mean, rstd, lse) */
    /* what the op needs to know again; each op uses its own */
    const int32_t *ids;
    float *losses;
    const float *inv_freq;
    int64_t n0, n1; /* tokens, layout, head_dim, pos0, padding token */
    shd_attn_spec attn;
    shd_dropout dropout;
};

struct shd_tape {
    shd_device *dev;
    shd_arena *arena;
    shd_dtype dtype;
    size_t elt_size;
    const shd_ops *flat;
    const shd_compute_ops *ops; /* of dtype */
    const shd_opctx *ctx;
    float loss_scale;
    int64_t reserve_rows, least_tokens; /* as asked for */
    int64_t least_rows;                 /* reserve_rows, but 0 after shd_tape_rows */
    int recording;
    int rc;
    shd_error err;
    shd_node *nodes;
    int64_t n_nodes, cap_nodes;
    shd_tensor **live; /* every tensor made since the reset */
    int64_t n_live, cap_live;
};

/* Stops the tape with an error; returns NULL for convenience of ops. */
shd_tensor *shd_tape_fail(shd_tape *tape, int code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* How many rows, or tokens of a sequence, to take memory for when there are `n`. */
int64_t shd_tape_rows_held(const shd_tape *tape, int64_t n);
int64_t shd_tape_tokens_held(const shd_tape *tape, int64_t n);

/* Arena memory of n elements of the tape's dtype, or floats; NULL (sticky error) when there is
 * none. */
void *shd_tape_take(shd_tape *tape, shd_tag tag, int64_t n);
float *shd_tape_take_floats(shd_tape *tape, shd_tag tag, int64_t n);
/* `bytes` of scratch; NULL for 0 bytes or on failure (then the tape's rc is set). */
void *shd_tape_workspace(shd_tape *tape, size_t bytes);

/* A new activation [rows, cols] with one handle: of the tape's dtype, or around `data`, which it
 * takes over. */
shd_tensor *shd_tape_tensor(shd_tape *tape, int64_t rows, int64_t cols);
shd_tensor *shd_tape_tensor_around(shd_tape *tape, int64_t rows, int64_t cols, shd_dtype dtype,
                                   void *data);

/* Whether shd_tape_push of this node will keep it: recording, and some input requires a gradient.
 * Then the op has to fill `saved`. */
int shd_tape_keeps(const shd_tape *tape, const shd_node *node);

/* Appends a node when it is kept, else releases `saved`; decides whether out requires a gradient.
 */
void shd_tape_push(shd_tape *tape, const shd_node *node);

/* Element i of data of the tape's dtype. */
static inline void *shd_tape_at(const shd_tape *tape, const void *data, int64_t i)
{
    return (char *)(uintptr_t)data + i * (int64_t)tape->elt_size;
}

/* Where a contribution to t's gradient goes: *acc says whether to add. NULL when t requires none
 * and on failure. */
void *shd_tape_grad(shd_tape *tape, shd_tensor *t, int *acc);

/* The same for two tensors whose op adds to both or to neither, as weight and bias: when only one
 * holds values, the other starts at zero. b may be NULL. */
void shd_tape_grad_pair(shd_tape *tape, shd_tensor *a, shd_tensor *b, void **da, void **db,
                        int *acc);

#ifdef __cplusplus
}
#endif
#endif
