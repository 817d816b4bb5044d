/* Names of the functions that exist once per instruction set. Every .c file that includes this is
 * compiled several times with another -march and -DSHD_ISA; the suffix keeps the copies apart.
 * Floor F1; pure. */
#ifndef SHD_KERNELS_CPU_ISA_H
#define SHD_KERNELS_CPU_ISA_H

#include "kernels/ops.h"

#ifndef SHD_ISA
#error "SHD_ISA must name the instruction set (kernels/cpu/BUILD)"
#endif

#define SHD_ISA_JOIN2(name, isa) shd_cpu_##name##_##isa
#define SHD_ISA_JOIN(name, isa) SHD_ISA_JOIN2(name, isa)
#define SHD_FN(name) SHD_ISA_JOIN(name, SHD_ISA)

#endif
