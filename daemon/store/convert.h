/* Numbers of files to fp32 and back, on the host. Floor F3; pure. */
#ifndef SHD_DAEMON_STORE_CONVERT_H
#define SHD_DAEMON_STORE_CONVERT_H

#include <stddef.h>
#include <stdint.h>

#include "daemon/store/safetensors.h"

#ifdef __cplusplus
extern "C" {
#endif

/* F32, BF16 or F16: what can be read and written. */
int shd_st_dtype_is_float(shd_st_dtype dtype);

/* out[i] = in[i] exactly. `dtype` is F32, BF16 or F16. */
void shd_convert_to_f32(float *out, const void *in, shd_st_dtype dtype, size_t n);

/* out[i] = in[i] to the nearest, ties to even; NaN stays NaN. Returns n, or the index of the first
 * finite number that lies beyond the range of `dtype` (then out[] holds what is before it). */
size_t shd_convert_from_f32(void *out, shd_st_dtype dtype, const float *in, size_t n);

#ifdef __cplusplus
}
#endif
#endif
