/* The compute table of one instruction set and dtype. */
#include "kernels/cpu/elt.h"
#include "kernels/cpu/ops_decl.h"

#ifndef SHD_ISA_NAME
#error "SHD_ISA_NAME must be the name of the instruction set, as a string (kernels/cpu/BUILD)"
#endif

#define TABLE(table_name)                                                                          \
    {                                                                                              \
        .name = table_name, .dtype = ELT_DTYPE, .add = SHD_FN(add),                                \
        .gelu_forward = SHD_FN(gelu_forward), .gelu_backward = SHD_FN(gelu_backward),              \
        .swiglu_forward = SHD_FN(swiglu_forward), .swiglu_backward = SHD_FN(swiglu_backward),      \
        .dropout_forward = SHD_FN(dropout_forward), .dropout_backward = SHD_FN(dropout_backward),  \
        .linear_forward = SHD_FN(linear_forward),                                                  \
        .linear_backward_input = SHD_FN(linear_backward_input),                                    \
        .linear_backward_weight = SHD_FN(linear_backward_weight), .linear_ws = SHD_FN(linear_ws),  \
        .head_forward = SHD_FN(head_forward), .head_backward = SHD_FN(head_backward),              \
        .layernorm_forward = SHD_FN(layernorm_forward),                                            \
        .layernorm_backward = SHD_FN(layernorm_backward),                                          \
        .layernorm_backward_ws = SHD_FN(layernorm_backward_ws),                                    \
        .rmsnorm_forward = SHD_FN(rmsnorm_forward), .rmsnorm_backward = SHD_FN(rmsnorm_backward),  \
        .rmsnorm_backward_ws = SHD_FN(rmsnorm_backward_ws), .rope = SHD_FN(rope),                  \
        .embedding_forward = SHD_FN(embedding_forward),                                            \
        .embedding_backward = SHD_FN(embedding_backward),                                          \
        .embedding_backward_ws = SHD_FN(embedding_backward_ws),                                    \
        .attention_forward = SHD_FN(attention_forward),                                            \
        .attention_backward = SHD_FN(attention_backward), .attention_ws = SHD_FN(attention_ws)     \
    }

extern const shd_compute_ops SHD_FN(compute_table);

const shd_compute_ops SHD_FN(compute_table) = TABLE("cpu-" SHD_ISA_NAME);

#ifdef SHD_ISA_AMX_NAME
/* The same code: the library multiplies by other instructions, to other bits. */
extern const shd_compute_ops SHD_FN(compute_table_amx);

const shd_compute_ops SHD_FN(compute_table_amx) = TABLE("cpu-" SHD_ISA_AMX_NAME);
#endif
