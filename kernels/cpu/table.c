/* The flat table of one instruction set. */
#include "kernels/cpu/ops_decl.h"

#ifndef SHD_ISA_NAME
#error "SHD_ISA_NAME must be the name of the instruction set, as a string (kernels/cpu/BUILD)"
#endif

extern const shd_ops SHD_FLAT_FN(table);

const shd_ops SHD_FLAT_FN(table) = {
    .name = "cpu-" SHD_ISA_NAME,
    .copy = SHD_FLAT_FN(copy),
    .zero = SHD_FLAT_FN(zero),
    .cast = SHD_FLAT_FN(cast),
    .cross_entropy = SHD_FLAT_FN(cross_entropy),
    .sum_losses = SHD_FLAT_FN(sum_losses),
    .tree_sum = SHD_FLAT_FN(tree_sum),
    .block_sumsq = SHD_FLAT_FN(block_sumsq),
    .adamw = SHD_FLAT_FN(adamw),
    .adam = SHD_FLAT_FN(adam),
    .sgd = SHD_FLAT_FN(sgd),
    .lion = SHD_FLAT_FN(lion),
    .fill_normal = SHD_FLAT_FN(fill_normal),
    .fill_constant = SHD_FLAT_FN(fill_constant),
};
