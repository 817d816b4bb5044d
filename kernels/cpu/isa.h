/* Names of the functions that exist once per instruction set, and, for ops on activations, once per
 * compute dtype. Every .c file that includes this is compiled several times with another -march,
 * -DSHD_ISA and -DSHD_ELT; suffixes keep the copies apart. Floor F1; pure. */
#ifndef SHD_KERNELS_CPU_ISA_H
#define SHD_KERNELS_CPU_ISA_H

#include "kernels/ops.h"

#ifndef SHD_ISA
#error "SHD_ISA must name the instruction set (kernels/cpu/BUILD)"
#endif

#define SHD_JOIN3_(name, a, b) shd_cpu_##name##_##a##_##b
#define SHD_JOIN3(name, a, b) SHD_JOIN3_(name, a, b)
#define SHD_JOIN2_(name, a) shd_cpu_##name##_##a
#define SHD_JOIN2(name, a) SHD_JOIN2_(name, a)

/* An op of the flat table, whose instruction set may be an older one; of the compute table. */
#ifndef SHD_FLAT_ISA
#define SHD_FLAT_ISA SHD_ISA
#endif
#define SHD_FLAT_FN(name) SHD_JOIN2(name, SHD_FLAT_ISA)
#ifdef SHD_ELT
#define SHD_FN(name) SHD_JOIN3(name, SHD_ISA, SHD_ELT)
#else
#define SHD_FN(name) SHD_FLAT_FN(name)
#endif

#endif
