/* Ops on activations that compute nothing, for a dry run on virtual memory. Workspace sizes are the
 * CPU's, so that the dry run takes the memory that the run will take. What they would do is
 * counted. */
#include "kernels/compute_ops.h"
#include "kernels/null_work.h"

/* Operands are not looked at. */
#pragma GCC diagnostic ignored "-Wunused-parameter"

/* A matrix product with R*N*K multiply-adds. */
static double product(int64_t R, int64_t N, int64_t K)
{
    return 2.0 * (double)R * (double)N * (double)K;
}

/* Its operands and result, one byte an element. */
static double operands(int64_t R, int64_t N, int64_t K)
{
    return (double)R * (double)K + (double)N * (double)K + (double)R * (double)N;
}

/* A product of queries and keys, or of what has their shape: the pairs that a query sees. */
static double attention_product(const shd_attn_shape *s)
{
    const int64_t S = s->S != 0 ? s->S : s->T, window = s->window != 0 ? s->window : S;
    const int64_t before = S - s->T; /* keys before those of the queries */
    /* Query t sees min(before + t + 1, window) keys; `grow` queries see fewer than the window. */
    const int64_t room = window - before;
    const int64_t grow = room < 0 ? 0 : room < s->T ? room : s->T;
    const double growing = (double)grow * (double)before + (double)grow * ((double)grow + 1) / 2;
    const double pairs = growing + (double)(s->T - grow) * (double)window;
    return 2.0 * (double)(s->B * s->H) * pairs * (double)s->D;
}

/* q and k, or v and out, one byte an element. */
static double attention_operands(const shd_attn_shape *s)
{
    const int64_t S = s->S != 0 ? s->S : s->T;
    return (double)s->B * ((double)(s->T * s->H) + (double)(S * s->KVH)) * (double)s->D;
}

#define TYPED_DTYPE SHD_F32
#define TYPED(name) null_##name##_f32
#include "kernels/null_typed.h"

#define TYPED_DTYPE SHD_BF16
#define TYPED(name) null_##name##_bf16
#include "kernels/null_typed.h"

#define TYPED_DTYPE SHD_F16
#define TYPED(name) null_##name##_f16
#include "kernels/null_typed.h"

const shd_compute_ops *shd_compute_ops_null(shd_dtype dtype)
{
    switch (dtype) {
    case SHD_F32:
        return null_table_f32();
    case SHD_BF16:
        return null_table_bf16();
    case SHD_F16:
        return null_table_f16();
    default:
        return NULL;
    }
}
