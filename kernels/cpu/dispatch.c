/* Which CPU table this processor can run. */
#include <string.h>

#include "kernels/ops.h"

extern const shd_ops shd_cpu_table_v1, shd_cpu_table_v3, shd_cpu_table_v4;

const shd_ops *shd_ops_cpu_named(const char *name)
{
    if (strcmp(name, "x86-64") == 0) {
        return &shd_cpu_table_v1;
    }
    if (strcmp(name, "x86-64-v3") == 0) {
        return __builtin_cpu_supports("x86-64-v3") ? &shd_cpu_table_v3 : NULL;
    }
    if (strcmp(name, "x86-64-v4") == 0) {
        return __builtin_cpu_supports("x86-64-v4") ? &shd_cpu_table_v4 : NULL;
    }
    return NULL;
}

const shd_ops *shd_ops_cpu(void)
{
    const shd_ops *v4 = shd_ops_cpu_named("x86-64-v4");
    const shd_ops *v3 = shd_ops_cpu_named("x86-64-v3");
    return v4 != NULL ? v4 : v3 != NULL ? v3 : &shd_cpu_table_v1;
}
