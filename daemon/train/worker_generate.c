/* Generation: logits of the next token, with the keys and values of the tokens so far kept. Floor
 * F4; the rank's thread.
 *
 * Rank 0 computes; the others take part in the gathers and keep the same books, so that all know
 * which passes there are. */
#include <stdlib.h>
#include <string.h>

#include "daemon/base/mem.h"
#include "daemon/train/worker_internal.h"

static int computes(const shd_worker *w)
{
    return shd_comm_rank(w->comm) == 0;
}

static void drop(shd_worker *w, shd_generation *g)
{
    shd_arena_release(atomic_load(&w->arena), g->memory);
    free(g->layers);
    free(g->tokens);
    *g = (shd_generation){0};
}

void shd_worker_drop_generations(shd_worker *w)
{
    for (int i = 0; i < SHD_GENERATE_CACHES; i++) {
        drop(w, &w->generations[i]);
    }
}

/* That of the stream, else a free one, else the least recently used. */
static shd_generation *find(shd_worker *w, uint64_t stream)
{
    shd_generation *oldest = &w->generations[0];
    for (uint32_t i = 0; i < w->shared->caches; i++) {
        shd_generation *g = &w->generations[i];
        if (g->stream == stream) {
            return g;
        }
        oldest = g->used < oldest->used ? g : oldest;
    }
    return oldest;
}

/* One block for all layers, of seq_len tokens whatever is asked: the plan's size. */
static int take_memory(shd_worker *w, shd_generation *g, shd_error *err)
{
    const shd_spec *spec = shd_worker_spec(w);
    const int64_t layers = spec->model.n_layer;
    const int64_t bytes =
        spec->seq_len * shd_model_kv_width(w->shared->model) * (int64_t)shd_dtype_size(spec->dtype);
    const int64_t step = (bytes + SHD_ARENA_ALIGN - 1) / SHD_ARENA_ALIGN * SHD_ARENA_ALIGN;
    SHD_TRY(shd_arena_alloc(atomic_load(&w->arena), SHD_TAG_ACTIVATIONS,
                            (uint64_t)(2 * layers * step), &g->memory, err));
    g->layers = shd_calloc((size_t)layers, sizeof *g->layers);
    for (int64_t i = 0; i < layers; i++) {
        g->layers[i] = (shd_kv_cache){.k = (char *)g->memory + 2 * i * step,
                                      .v = (char *)g->memory + (2 * i + 1) * step,
                                      .capacity = spec->seq_len};
    }
    return 0;
}

/* Empties the generation for `stream`. */
static int begin(shd_worker *w, shd_generation *g, uint64_t stream, uint32_t prefill,
                 shd_error *err)
{
    if (g->memory == NULL && computes(w)) {
        SHD_TRY(take_memory(w, g, err));
    }
    if (g->tokens == NULL) {
        g->tokens = shd_calloc(shd_worker_spec(w)->seq_len, sizeof *g->tokens);
    }
    g->stream = stream;
    g->step = w->step;
    g->prefill = prefill;
    g->length = 0;
    return 0;
}

/* Runs the next n tokens of the generation. */
static int advance(shd_worker *w, shd_generation *g, const int32_t *tokens, uint32_t n,
                   float *logits, shd_error *err)
{
    const int64_t layers = shd_worker_spec(w)->model.n_layer;
    for (int64_t i = 0; g->layers != NULL && i < layers; i++) {
        g->layers[i].length = g->length;
    }
    SHD_TRY(shd_worker_pass_tokens(w, tokens + g->length, n, g->layers, logits, err));
    memcpy(g->tokens + g->length, tokens + g->length, n * sizeof *tokens);
    g->length += n;
    return 0;
}

static void take_logits(const shd_worker *w, shd_work *result)
{
    if (computes(w)) {
        result->logits = shd_calloc((size_t)shd_worker_spec(w)->model.vocab, sizeof(float));
    }
}

/* Does the generation hold a beginning of these tokens, cut into passes as asked? */
static int holds(const shd_worker *w, const shd_generation *g, const shd_work *work,
                 uint32_t prefill)
{
    return g->stream == work->stream && g->step == w->step && g->prefill == prefill &&
           g->length >= prefill && g->length < work->batch.length &&
           memcmp(g->tokens, work->batch.tokens, g->length * sizeof *g->tokens) == 0;
}

static int continue_stream(shd_worker *w, const shd_work *work, uint64_t turn, shd_work *result,
                           shd_error *err)
{
    const uint32_t n = work->batch.length;
    const int fresh = work->cache_step != w->step || work->prefill == 0 || work->prefill > n;
    const uint32_t prefill = fresh ? n : work->prefill;
    shd_generation *g = find(w, work->stream);
    g->used = ++w->clock;
    if (!holds(w, g, work, prefill)) {
        SHD_TRY(begin(w, g, work->stream, prefill, err));
    }
    while (g->length < n && turn-- > 0) {
        const uint32_t more = g->length < prefill ? prefill - g->length : 1;
        if (g->length + more == n) {
            take_logits(w, result);
        }
        SHD_TRY(advance(w, g, work->batch.tokens, more, result->logits, err));
    }
    result->more = g->length < n;
    return 0;
}

int shd_worker_next_logits(shd_worker *w, const shd_work *work, uint64_t turn, shd_work *result,
                           shd_error *err)
{
    if (work->stream != 0) {
        return continue_stream(w, work, turn, result, err);
    }
    take_logits(w, result);
    return shd_worker_pass_tokens(w, work->batch.tokens, work->batch.length, NULL, result->logits,
                                  err);
}
