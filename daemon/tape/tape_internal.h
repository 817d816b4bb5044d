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
    const int32_t *ids;
    float *losses;
    int64_t n0, n1; /* op's own numbers: tokens, heads, layout */
};

struct shd_tape {
    shd_device *dev;
    shd_arena *arena;
    const shd_ops *ops;
    const shd_opctx *ctx;
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

/* Arena memory of n floats; NULL (sticky error) when there is none. */
float *shd_tape_take(shd_tape *tape, shd_tag tag, int64_t n);
/* `bytes` of scratch; NULL for 0 bytes or on failure (then the tape's rc is set). */
void *shd_tape_workspace(shd_tape *tape, size_t bytes);

/* A new activation [rows, cols] with one handle. */
shd_tensor *shd_tape_tensor(shd_tape *tape, int64_t rows, int64_t cols);

/* Appends a node when recording, else releases `saved`. */
void shd_tape_push(shd_tape *tape, const shd_node *node);

/* Where a contribution to t's gradient goes: *acc says whether to add. NULL on failure. */
float *shd_tape_grad(shd_tape *tape, shd_tensor *t, int *acc);

/* The same for two tensors whose op adds to both or to neither, as weight and bias: when only one
 * holds values, the other starts at zero. b may be NULL. */
void shd_tape_grad_pair(shd_tape *tape, shd_tensor *a, shd_tensor *b, float **da, float **db,
                        int *acc);

/* Adds `from`'s gradient to `to`'s; takes the buffer over when `to` has none yet. For the last use
 * of `from`'s gradient. */
void shd_tape_grad_pass(shd_tape *tape, shd_tensor *from, shd_tensor *to);

#ifdef __cplusplus
}
#endif
#endif
