#include "daemon/service/sampling.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

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
    if (!(sampling->repetition_penalty >= 0.01 && sampling->repetition_penalty <= 100.0)) {
        return shd_fail(err, SHD_EINVAL, "repetition_penalty %g is not in 0.01..100 (1: none)",
                        sampling->repetition_penalty);
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

/* ---- who may be drawn ---- */

/* Tokens with their unnormalised probabilities; `mass` is the sum in order. */
typedef struct candidates {
    uint32_t n;
    uint32_t *ids;
    double *weights;
    double mass;
} candidates;

static void candidates_fini(candidates *c)
{
    free(c->ids);
    free(c->weights);
}

static void add(candidates *c, uint32_t id, double w)
{
    c->ids[c->n] = id;
    c->weights[c->n++] = w;
    c->mass += w;
}

/* The first tokens in order of probability: at most top_k, and of these no more than it takes to
 * reach the share top_p of them together. */
static void add_likeliest(candidates *c, const shd_sampling *sampling, const float *scores,
                          uint32_t vocab, float max)
{
    const double t = sampling->temperature;
    const uint32_t most = sampling->top_k != 0 && sampling->top_k < vocab ? sampling->top_k : vocab;
    uint32_t *heap = shd_reallocarray(NULL, vocab, sizeof(*heap));
    uint32_t *ids = shd_reallocarray(NULL, most, sizeof(*ids));
    uint32_t left = vocab, taken = 0;
    double total = 0.0;
    for (uint32_t i = 0; i < vocab; i++) {
        heap[i] = i;
    }
    for (uint32_t i = vocab / 2; i-- > 0;) {
        sift_down(heap, vocab, i, scores);
    }
    if (most < vocab) {
        while (taken < most) {
            ids[taken] = pop(heap, &left, scores);
            total += weight(scores, ids[taken++], max, t);
        }
    } else {
        for (uint32_t i = 0; i < vocab; i++) {
            total += weight(scores, i, max, t);
        }
    }
    while (c->n < most && (c->n == 0 || c->mass < sampling->top_p * total)) {
        if (c->n == taken) {
            ids[taken++] = pop(heap, &left, scores);
        }
        add(c, ids[c->n], weight(scores, ids[c->n], max, t));
    }
    free(heap);
    free(ids);
}

static void find_candidates(candidates *c, const shd_sampling *sampling, const float *scores,
                            uint32_t vocab)
{
    const uint32_t best = argmax(scores, vocab);
    *c = (candidates){.ids = shd_reallocarray(NULL, vocab, sizeof(*c->ids)),
                      .weights = shd_reallocarray(NULL, vocab, sizeof(*c->weights))};
    if (!(sampling->temperature > 0.0) || sampling->top_k == 1) {
        add(c, best, 1.0);
    } else if (sampling->top_k == 0 && sampling->top_p >= 1.0) {
        for (uint32_t i = 0; i < vocab; i++) {
            add(c, i, weight(scores, i, scores[best], sampling->temperature));
        }
    } else {
        add_likeliest(c, sampling, scores, vocab, scores[best]);
    }
}

/* u in (0, 1]. Rounding may leave the sum below u * mass: then the last possible one stands. */
static uint32_t draw(const candidates *c, double u)
{
    uint32_t pick = c->ids[0];
    double sum = 0.0;
    for (uint32_t i = 0; i < c->n && sum < u * c->mass; i++) {
        if (c->weights[i] > 0.0) {
            pick = c->ids[i];
        }
        sum += c->weights[i];
    }
    return pick;
}

/* ---- scores: logits with the penalty ---- */

static int check(const shd_sampling_input *in, shd_error *err)
{
    for (uint32_t i = 0; i < in->vocab; i++) {
        if (isnan(in->logits[i]) || in->logits[i] == INFINITY) {
            return shd_fail(err, SHD_ENONFINITE, "the logit of token %u is %g", i,
                            (double)in->logits[i]);
        }
    }
    if (argmax(in->logits, in->vocab) == in->vocab) {
        return shd_fail(err, SHD_ENONFINITE, "every logit is -inf");
    }
    return SHD_OK;
}

/* NULL: the logits themselves. Each token counts once, however often it stands in the context. */
static float *penalize(const shd_sampling *sampling, const shd_sampling_input *in)
{
    const float penalty = (float)sampling->repetition_penalty;
    if (penalty == 1.0f || in->n_context == 0) {
        return NULL;
    }
    float *scores = shd_reallocarray(NULL, in->vocab, sizeof(*scores));
    memcpy(scores, in->logits, in->vocab * sizeof(*scores));
    for (size_t i = 0; i < in->n_context; i++) {
        const uint32_t id = (uint32_t)in->context[i];
        const float logit = in->logits[id];
        /* A quotient beyond the largest number is still the likeliest. */
        scores[id] = logit < 0.0f ? logit * penalty : fminf(logit / penalty, FLT_MAX);
    }
    return scores;
}

int shd_sampling_pick(const shd_sampling *sampling, const shd_sampling_input *in, uint64_t index,
                      int32_t *token, float *logprob, shd_error *err)
{
    SHD_TRY(check(in, err));
    float *penalized = penalize(sampling, in);
    const float *scores = penalized != NULL ? penalized : in->logits;
    uint32_t words[4];
    candidates c;
    find_candidates(&c, sampling, scores, in->vocab);
    shd_philox(sampling->seed, SHD_STREAM(SHD_STREAM_SAMPLE, 0), index, words);
    const uint32_t pick = draw(&c, (double)shd_philox_unit(words[0]));
    candidates_fini(&c);
    free(penalized);

    const float max = in->logits[argmax(in->logits, in->vocab)];
    *token = (int32_t)pick;
    *logprob =
        (float)((double)in->logits[pick] - (double)max - log_sum(in->logits, in->vocab, max));
    return SHD_OK;
}

int shd_sampling_distribution(const shd_sampling *sampling, const shd_sampling_input *in, double *p,
                              shd_error *err)
{
    SHD_TRY(check(in, err));
    float *penalized = penalize(sampling, in);
    candidates c;
    find_candidates(&c, sampling, penalized != NULL ? penalized : in->logits, in->vocab);
    for (uint32_t i = 0; i < in->vocab; i++) {
        p[i] = 0.0;
    }
    for (uint32_t i = 0; i < c.n; i++) {
        p[c.ids[i]] = c.weights[i] / c.mass;
    }
    candidates_fini(&c);
    free(penalized);
    return SHD_OK;
}
