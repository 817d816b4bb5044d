/* Conversions between the numbers of files and fp32; see convert.h. Floor F3; pure. */
#include "daemon/store/convert.h"

#include <math.h>
#include <string.h>

int shd_st_dtype_is_float(shd_st_dtype dtype)
{
    return dtype == SHD_ST_F32 || dtype == SHD_ST_BF16 || dtype == SHD_ST_F16;
}

static float from_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof(x));
    return x;
}

static uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    return bits;
}

void shd_convert_to_f32(float *out, const void *in, shd_st_dtype dtype, size_t n)
{
    if (dtype == SHD_ST_F32) {
        memcpy(out, in, n * sizeof(*out));
        return;
    }
    const uint16_t *half = in;
    if (dtype == SHD_ST_BF16) {
        for (size_t i = 0; i < n; i++) {
            out[i] = from_bits((uint32_t)half[i] << 16);
        }
        return;
    }
    for (size_t i = 0; i < n; i++) {
        _Float16 x;
        memcpy(&x, &half[i], sizeof(x));
        out[i] = (float)x;
    }
}

static size_t to_bf16(uint16_t *out, const float *in, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const uint32_t u = bits_of(in[i]);
        if (isnan(in[i])) {
            out[i] = (uint16_t)(u >> 16 | 0x40); /* quiet: what is cut off may be all it had */
            continue;
        }
        out[i] = (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
        if ((out[i] & 0x7fff) == 0x7f80 && !isinf(in[i])) {
            return i;
        }
    }
    return n;
}

static size_t to_f16(uint16_t *out, const float *in, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const _Float16 x = (_Float16)in[i];
        memcpy(&out[i], &x, sizeof(x));
        if ((out[i] & 0x7fff) == 0x7c00 && !isinf(in[i])) {
            return i;
        }
    }
    return n;
}

size_t shd_convert_from_f32(void *out, shd_st_dtype dtype, const float *in, size_t n)
{
    if (dtype == SHD_ST_F32) {
        memcpy(out, in, n * sizeof(*in));
        return n;
    }
    return dtype == SHD_ST_BF16 ? to_bf16(out, in, n) : to_f16(out, in, n);
}
