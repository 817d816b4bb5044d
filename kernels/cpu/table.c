/* The op table of one instruction set. */
#include "kernels/cpu/ops_decl.h"

#ifndef SHD_ISA_NAME
#error "SHD_ISA_NAME must be the name of the instruction set, as a string (kernels/cpu/BUILD)"
#endif

extern const shd_ops SHD_FN(table);

const shd_ops SHD_FN(table) = {
    .name = "cpu-" SHD_ISA_NAME,
    .copy = SHD_FN(copy),
    .zero = SHD_FN(zero),
    .add = SHD_FN(add),
    .scale = SHD_FN(scale),
    .gelu_forward = SHD_FN(gelu_forward),
    .gelu_backward = SHD_FN(gelu_backward),
    .linear_forward = SHD_FN(linear_forward),
    .linear_backward_input = SHD_FN(linear_backward_input),
    .linear_backward_weight = SHD_FN(linear_backward_weight),
    .linear_backward_weight_ws = SHD_FN(linear_backward_weight_ws),
    .layernorm_forward = SHD_FN(layernorm_forward),
    .layernorm_backward = SHD_FN(layernorm_backward),
    .layernorm_backward_ws = SHD_FN(layernorm_backward_ws),
    .embedding_forward = SHD_FN(embedding_forward),
    .embedding_backward = SHD_FN(embedding_backward),
    .attention_forward = SHD_FN(attention_forward),
    .attention_backward = SHD_FN(attention_backward),
    .attention_ws = SHD_FN(attention_ws),
    .cross_entropy = SHD_FN(cross_entropy),
    .sum_losses = SHD_FN(sum_losses),
    .tree_sum = SHD_FN(tree_sum),
    .block_sumsq = SHD_FN(block_sumsq),
    .adamw = SHD_FN(adamw),
    .adam = SHD_FN(adam),
    .sgd = SHD_FN(sgd),
    .lion = SHD_FN(lion),
    .fill_normal = SHD_FN(fill_normal),
    .fill_constant = SHD_FN(fill_constant),
};
