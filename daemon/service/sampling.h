/* Choosing the next token from logits: temperature, top-k, top-p, with a random number that is a
 * function of (seed, token index) alone. Floor F5; pure, any thread. */
#ifndef SHD_DAEMON_SERVICE_SAMPLING_H
#define SHD_DAEMON_SERVICE_SAMPLING_H

#include <stdint.h>

#include "daemon/base/err.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct shd_sampling {
    double temperature; /* 0: the likeliest token (of several, the lowest id) */
    uint32_t top_k;     /* only the k likeliest tokens; 0: all */
    double top_p;       /* only the likeliest tokens that together reach p (Holtzman et al. 2020) */
    uint64_t seed;
} shd_sampling;

/* Temperature 1, all tokens, seed 1. */
#define SHD_SAMPLING_DEFAULT                                                                       \
    {                                                                                              \
        1.0, 0, 1.0, 1                                                                             \
    }

/* temperature in [0, 100], top_p in (0, 1]; SHD_EINVAL names the value. */
int shd_sampling_check(const shd_sampling *sampling, shd_error *err);

/* Picks token number `index` of a generation from logits[vocab] (vocab >= 1). Ties in top-k and
 * top-p go to the lower id. *logprob is log p(token) under softmax(logits), untempered.
 * SHD_ENONFINITE when the logits hold NaN or +infinity, or nothing but -infinity. */
int shd_sampling_pick(const shd_sampling *sampling, const float *logits, uint32_t vocab,
                      uint64_t index, int32_t *token, float *logprob, shd_error *err);

#ifdef __cplusplus
}
#endif
#endif
