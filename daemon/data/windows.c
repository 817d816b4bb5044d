/* Windows; see windows.h. Floor F3. */
#include "daemon/data/windows.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/base/mem.h"
#include "daemon/data/sampler.h"

#define BATCH 65536u                      /* documents read at a time */
#define MAX_DOCUMENTS (UINT64_C(1) << 25) /* without packing: 16 bytes of host memory each */

struct shd_windows {
    const shd_source *source;
    uint32_t seq_len;
    int packing;
    shd_sampler sampler; /* packed: of tokens; unpacked: of window numbers */
    uint64_t n_documents;
    uint64_t *begins; /* [n_documents + 1], tokens; unpacked */
    uint64_t *first;  /* [n_documents + 1], number of a document's first window; unpacked */
};

/* Where the tail begins, in tokens. */
static uint64_t tail_begin(const shd_source *source, double tail)
{
    const uint64_t n = shd_source_tokens(source);
    return n - (uint64_t)((double)n * tail);
}

/* Reads where the documents of the part begin. */
static int read_documents(shd_windows *w, const shd_windows_options *o, shd_error *err)
{
    const uint64_t all = shd_source_documents(w->source), n = shd_source_tokens(w->source);
    const uint64_t tail = tail_begin(w->source, o->tail);
    if (all > MAX_DOCUMENTS) {
        return shd_fail(
            err, SHD_EDATA,
            "%llu documents; without packing at most %llu are kept apart: pack them, or "
            "split the file",
            (unsigned long long)all, (unsigned long long)MAX_DOCUMENTS);
    }
    uint64_t *batch = shd_malloc(BATCH * sizeof(*batch));
    uint64_t end = n; /* of the last document of the part */
    int rc = 0;
    w->begins = shd_calloc(all + 1, sizeof(*w->begins));
    for (uint64_t at = 0; at < all && rc == 0; at += BATCH) {
        const uint64_t m = all - at < BATCH ? all - at : BATCH;
        rc = shd_source_read_documents(w->source, at, m, batch, err);
        for (uint64_t i = 0; i < m && rc == 0; i++) {
            const int in_tail = batch[i] >= tail;
            if (o->part == SHD_WINDOWS_ALL || in_tail == (o->part == SHD_WINDOWS_TAIL)) {
                w->begins[w->n_documents++] = batch[i];
            } else if (in_tail && end == n) {
                end = batch[i];
            }
        }
    }
    w->begins[w->n_documents] = end;
    free(batch);
    return rc;
}

static int create_unpacked(shd_windows *w, const shd_windows_options *o, shd_error *err)
{
    SHD_TRY(read_documents(w, o, err));
    uint64_t windows = 0;
    w->first = shd_calloc(w->n_documents + 1, sizeof(*w->first));
    for (uint64_t d = 0; d < w->n_documents; d++) {
        w->first[d] = windows;
        if (w->begins[d + 1] <= w->begins[d]) { /* across two batches of the file */
            return shd_fail(err, SHD_EDATA, "the documents of '%s' are out of order",
                            shd_source_path(w->source));
        }
        const uint64_t targets = w->begins[d + 1] - w->begins[d] - 1;
        windows += (targets + w->seq_len - 1) / w->seq_len;
    }
    w->first[w->n_documents] = windows;
    if (windows == 0) {
        return shd_fail(err, SHD_EDATA, "%llu documents have no two tokens: there is no target",
                        (unsigned long long)w->n_documents);
    }
    return shd_sampler_init(&w->sampler, 0, windows + 1, 1, o->seed, o->shuffle, err);
}

static int create_packed(shd_windows *w, const shd_windows_options *o, shd_error *err)
{
    const uint64_t n = shd_source_tokens(w->source), tail = tail_begin(w->source, o->tail);
    return shd_sampler_init(&w->sampler, o->part == SHD_WINDOWS_TAIL ? tail : 0,
                            o->part == SHD_WINDOWS_HEAD ? tail : n, o->seq_len, o->seed, o->shuffle,
                            err);
}

int shd_windows_create(const shd_source *source, const shd_windows_options *options,
                       shd_windows **out, shd_error *err)
{
    if (options->seq_len == 0) {
        return shd_fail(err, SHD_EINVAL, "the sequence length must be at least 1");
    }
    shd_windows *w = shd_calloc(1, sizeof(*w));
    w->source = source;
    w->seq_len = options->seq_len;
    w->packing = options->packing;
    const int rc = w->packing ? create_packed(w, options, err) : create_unpacked(w, options, err);
    if (rc < 0) {
        shd_windows_free(w);
        return rc;
    }
    *out = w;
    return 0;
}

void shd_windows_free(shd_windows *w)
{
    if (w != NULL) {
        free(w->begins);
        free(w->first);
        free(w);
    }
}

uint64_t shd_windows_count(const shd_windows *w)
{
    return w->sampler.windows;
}

/* The document that window `number` is of. */
static uint64_t document_of(const shd_windows *w, uint64_t number)
{
    uint64_t low = 0, high = w->n_documents;
    while (high - low > 1) { /* first[low] <= number < first[high] */
        const uint64_t middle = low + (high - low) / 2;
        if (w->first[middle] <= number) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

int shd_windows_read(const shd_windows *w, uint64_t cursor, uint32_t vocab, int32_t *ids,
                     int32_t *targets, shd_error *err)
{
    uint64_t begin = shd_sampler_offset(&w->sampler, cursor), n = w->seq_len;
    if (!w->packing) {
        const uint64_t number = begin, document = document_of(w, number);
        begin = w->begins[document] + (number - w->first[document]) * w->seq_len;
        const uint64_t left = w->begins[document + 1] - begin - 1;
        n = left < n ? left : n;
    }
    int32_t *tokens = shd_reallocarray(NULL, n + 1, sizeof(*tokens));
    unsigned char *ignored = shd_malloc(n);
    int rc = shd_source_read(w->source, begin, n + 1, vocab, tokens, err);
    rc = rc == 0 ? shd_source_read_mask(w->source, begin + 1, n, ignored, err) : rc;
    for (uint64_t i = 0; i < w->seq_len && rc == 0; i++) {
        ids[i] = i < n ? tokens[i] : 0;
        targets[i] = i < n && !ignored[i] ? tokens[i + 1] : SHD_WINDOWS_IGNORED;
    }
    free(tokens);
    free(ignored);
    return rc;
}
