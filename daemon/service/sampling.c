#include "daemon/service/sampling.h"

#include <math.h>
#include <stdlib.h>

#include "daemon/base/mem.h"
#include "kernels/philox.h"

int shd_sampling_check(const shd_sampling *sampling, shd_error *err)
{
    if (!(sampling->temperature >= 0.0 && sampling->temperature <= 100.0)) {
        return shd_fail(err, SHD_EINVAL, "temperature %g is not in 0..100 (0: the likeliest token)",
                        sampling->temperature);
    }
    if (!(sampling->top_p > 0.0 && sampling->top_p <= 1.0)) {
        return shd_fail(err, SHD_EINVAL, "top_p %g is not in (0, 1] (1: all tokens)",
                        sampling->top_p);
    }
    return SHD_OK;
}

/* The likeliest token, or vocab when there is none. */
static uint32_t argmax(const float *logits, uint32_t vocab)
{
    uint32_t best = vocab;
    for (uint32_t i = 0; i < vocab; i++) {
        if (logits[i] > -INFINITY && (best == vocab || logits[i] > logits[best])) {
            best = i;
        }
    }
    return best;
}

/* log of the sum of exp(logits - max), in double. */
static double log_sum(const float *logits, uint32_t vocab, float max)
{
    double sum = 0.0;
    for (uint32_t i = 0; i < vocab; i++) {
        sum += exp((double)logits[i] - (double)max);
    }
    return log(sum);
}

/* ---- a heap of token ids, the likeliest on top: as many as are wanted come off in order ---- */

static int before(const float *logits, uint32_t a, uint32_t b)
{
    return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
}

static void sift_down(uint32_t *heap, uint32_t n, uint32_t at, const float *logits)
{
    for (;;) {
        uint32_t child = 2 * at + 1;
        if (child >= n) {
            return;
        }
        if (child + 1 < n && before(logits, heap[child + 1], heap[child])) {
            child++;
        }
        if (!before(logits, heap[child], heap[at])) {
            return;
        }
        const uint32_t id = heap[at];
        heap[at] = heap[child];
        heap[child] = id;
        at = child;
    }
}

static uint32_t pop(uint32_t *heap, uint32_t *n, const float *logits)
{
    const uint32_t top = heap[0];
    heap[0] = heap[--*n];
    sift_down(heap, *n, 0, logits);
    return top;
}

/* Unnormalised probability of a token at a temperature. */
static double weight(const float *logits, uint32_t id, float max, double temperature)
{
    return exp(((double)logits[id] - (double)max) / temperature);
}

/* Draws from the first tokens in order of probability: at most top_k, and of these no more than it
 * takes to reach the share top_p of them together. u in (0, 1]. */
static uint32_t draw_likeliest(const shd_sampling *sampling, const float *logits, uint32_t vocab,
                               float max, double u)
{
    const double t = sampling->temperature;
    const uint32_t most = sampling->top_k != 0 && sampling->top_k < vocab ? sampling->top_k : vocab;
    uint32_t *heap = shd_reallocarray(NULL, vocab, sizeof(*heap));
    uint32_t *ids = shd_reallocarray(NULL, most, sizeof(*ids));
    uint32_t left = vocab, taken = 0, kept = 0;
    double total = 0.0, mass = 0.0, sum = 0.0;
    for (uint32_t i = 0; i < vocab; i++) {
        heap[i] = i;
    }
    for (uint32_t i = vocab / 2; i-- > 0;) {
        sift_down(heap, vocab, i, logits);
    }
    if (most < vocab) {
        while (taken < most) {
            ids[taken] = pop(heap, &left, logits);
            total += weight(logits, ids[taken++], max, t);
        }
    } else {
        for (uint32_t i = 0; i < vocab; i++) {
            total += weight(logits, i, max, t);
        }
    }
    while (kept < most && (kept == 0 || mass < sampling->top_p * total)) {
        if (kept == taken) {
            ids[taken++] = pop(heap, &left, logits);
        }
        mass += weight(logits, ids[kept++], max, t);
    }
    uint32_t pick = ids[0];
    for (uint32_t i = 0; i < kept && sum < u * mass; i++) {
        const double w = weight(logits, ids[i], max, t);
        if (w > 0.0) {
            pick = ids[i]; /* rounding may leave sum below: then the last possible one stands */
        }
        sum += w;
    }
    free(heap);
    free(ids);
    return pick;
}

/* Draws from all tokens, in order of id. */
static uint32_t draw_any(const float *logits, uint32_t vocab, float max, double t, double u)
{
    double total = 0.0, sum = 0.0;
    for (uint32_t i = 0; i < vocab; i++) {
        total += weight(logits, i, max, t);
    }
    uint32_t pick = 0;
    for (uint32_t i = 0; i < vocab && sum < u * total; i++) {
        const double w = weight(logits, i, max, t);
        if (w > 0.0) {
            pick = i;
        }
        sum += w;
    }
    return pick;
}

int shd_sampling_pick(const shd_sampling *sampling, const float *logits, uint32_t vocab,
                      uint64_t index, int32_t *token, float *logprob, shd_error *err)
{
    for (uint32_t i = 0; i < vocab; i++) {
        if (isnan(logits[i]) || logits[i] == INFINITY) {
            return shd_fail(err, SHD_ENONFINITE, "the logit of token %u is %g", i,
                            (double)logits[i]);
        }
    }
    const uint32_t best = argmax(logits, vocab);
    if (best == vocab) {
        return shd_fail(err, SHD_ENONFINITE, "every logit is -inf");
    }
    const float max = logits[best];
    uint32_t pick = best;
    if (sampling->temperature > 0.0 && sampling->top_k != 1) {
        uint32_t words[4];
        shd_philox(sampling->seed, SHD_STREAM(SHD_STREAM_SAMPLE, 0), index, words);
        const double u = (double)shd_philox_unit(words[0]);
        pick = sampling->top_k == 0 && sampling->top_p >= 1.0
                   ? draw_any(logits, vocab, max, sampling->temperature, u)
                   : draw_likeliest(sampling, logits, vocab, max, u);
    }
    *token = (int32_t)pick;
    *logprob = (float)((double)logits[pick] - (double)max - log_sum(logits, vocab, max));
    return SHD_OK;
}
