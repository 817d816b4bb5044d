/* Choosing the next token from logits: repetition penalty, temperature, top-k, top-p, in this
 * order, with a random number that is a function of (seed, token index) alone. Floor F5; pure, any
 * thread.
 */
#ifndef SHD_DAEMON_SERVICE_SAMPLING_H
#define SHD_DAEMON_SERVICE_SAMPLING_H

#include <stddef.h>
#include <stdint.h>

#include "daemon/base/err.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct shd_sampling {
    double temperature; /* 0: the likeliest token (of several, the lowest id) */
    uint32_t top_k;     /* only the k likeliest tokens; 0: all */
    double top_p;       /* only the likeliest tokens that together reach p (Holtzman et al. 2020) */
    /* The logit of a token that stands in the context is divided by it where positive, multiplied
     * where negative (Keskar et al. 2019, section 4.1, made to work for negative logits). 1: none
     */
    double repetition_penalty;
    uint64_t seed;
} shd_sampling;

/* Temperature 1, all tokens, no penalty, seed 1. */
#define SHD_SAMPLING_DEFAULT                                                                       \
    {                                                                                              \
        1.0, 0, 1.0, 1.0, 1                                                                        \
    }

/* temperature in [0, 100], top_p in (0, 1], repetition_penalty in [0.01, 100]; SHD_EINVAL names the
 * value. */
int shd_sampling_check(const shd_sampling *sampling, shd_error *err);

/* What a token is picked from: logits[vocab] (vocab >= 1) of the model and the tokens context[n] of
 * prompt and text so far, each in [0, vocab); a context may be NULL without penalty. */
typedef struct shd_sampling_input {
    const float *logits;
    uint32_t vocab;
    const int32_t *context;
    size_t n_context;
} shd_sampling_input;

/* Picks token number `index` of a generation. Ties in top-k and top-p go to the lower id. *logprob
 * is log p(token) under softmax(logits), without penalty and temperature. SHD_ENONFINITE when the
 * logits hold NaN or +infinity, or nothing but -infinity. */
int shd_sampling_pick(const shd_sampling *sampling, const shd_sampling_input *in, uint64_t index,
                      int32_t *token, float *logprob, shd_error *err);

/* The probabilities that shd_sampling_pick draws with, to p[vocab]. The same errors. */
int shd_sampling_distribution(const shd_sampling *sampling, const shd_sampling_input *in, double *p,
                              shd_error *err);

#ifdef __cplusplus
}
#endif
#endif
