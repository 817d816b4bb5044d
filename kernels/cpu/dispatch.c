/* Which CPU tables this processor can run. */
#include <string.h>

#include "kernels/compute_ops.h"
#include "kernels/cpu/gemm_bf16.h"

typedef struct isa {
    const char *name;
    const shd_ops *ops;
    const shd_compute_ops *f32, *bf16, *f16;
} isa;

#define ISA_TABLES(x, bf16)                                                                        \
    &shd_cpu_table_##x, &shd_cpu_compute_table_##x##_f32, &shd_cpu_compute_##bf16,                 \
        &shd_cpu_compute_table_##x##_f16
#define ISA_DECLARE(x)                                                                             \
    extern const shd_ops shd_cpu_table_##x;                                                        \
    extern const shd_compute_ops shd_cpu_compute_table_##x##_f32,                                  \
        shd_cpu_compute_table_##x##_bf16, shd_cpu_compute_table_##x##_f16

ISA_DECLARE(v1);
ISA_DECLARE(v3);
ISA_DECLARE(v4);
extern const shd_compute_ops shd_cpu_compute_table_v4bf16_bf16,
    shd_cpu_compute_table_amx_v4bf16_bf16;

/* From the least to the best. */
static const isa isas[] = {{"x86-64", ISA_TABLES(v1, table_v1_bf16)},
                           {"x86-64-v3", ISA_TABLES(v3, table_v3_bf16)},
                           {"x86-64-v4", ISA_TABLES(v4, table_v4_bf16)},
                           {"x86-64-v4-bf16", ISA_TABLES(v4, table_v4bf16_bf16)},
                           {"x86-64-v4-amx", ISA_TABLES(v4, table_amx_v4bf16_bf16)}};
enum { ISAS = sizeof isas / sizeof isas[0] };

static int can_run(int i)
{
    switch (i) {
    case 0:
        return 1;
    case 1:
        return __builtin_cpu_supports("x86-64-v3") != 0;
    case 2:
        return __builtin_cpu_supports("x86-64-v4") != 0;
    case 3:
        return can_run(2) && shd_cpu_bf16_kind() == SHD_BF16_AVX512;
    default:
        return can_run(2) && shd_cpu_bf16_kind() == SHD_BF16_AMX;
    }
}

static const isa *named(const char *name)
{
    for (int i = 0; i < ISAS; i++) {
        if (strcmp(isas[i].name, name) == 0) {
            return can_run(i) ? &isas[i] : NULL;
        }
    }
    return NULL;
}

static const isa *best(void)
{
    int i = ISAS - 1;
    while (!can_run(i)) {
        i--;
    }
    return &isas[i];
}

static const shd_compute_ops *of_dtype(const isa *tables, shd_dtype dtype)
{
    switch (dtype) {
    case SHD_F32:
        return tables->f32;
    case SHD_BF16:
        return tables->bf16;
    case SHD_F16:
        return tables->f16;
    default:
        return NULL;
    }
}

const shd_ops *shd_ops_cpu_named(const char *name)
{
    const isa *tables = named(name);
    return tables != NULL ? tables->ops : NULL;
}

const shd_ops *shd_ops_cpu(void)
{
    return best()->ops;
}

const shd_compute_ops *shd_compute_ops_cpu_named(const char *name, shd_dtype dtype)
{
    const isa *tables = named(name);
    return tables != NULL ? of_dtype(tables, dtype) : NULL;
}

const shd_compute_ops *shd_compute_ops_cpu(shd_dtype dtype)
{
    return of_dtype(best(), dtype);
}
