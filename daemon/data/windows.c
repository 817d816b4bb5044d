/* Windows; see windows.h. Floor F3. */
#include "daemon/data/windows.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/base/mem.h"
#include "daemon/data/sampler.h"

#define BATCH 65536u /* documents read at a time */
#define BLOCK 256u   /* documents from one that is remembered to the next */

struct shd_windows {
    const shd_source *source;
    uint32_t seq_len, stride;
    int packed;          /* no documents: token offsets come from the sampler */
    shd_sampler sampler; /* packed: of tokens; else of window numbers */

    /* Unpacked; the whole of packed tokens counts as one document. */
    int single;
    uint64_t first_document, n_documents, end; /* end: of the last one, in tokens */
    uint64_t *first; /* [blocks + 1], number of the first window of each block of documents */
};

/* Where the tail begins, in tokens. */
static uint64_t tail_begin(const shd_source *source, double tail)
{
    const uint64_t n = shd_source_tokens(source);
    return n - (uint64_t)((double)n * tail);
}

static uint64_t min64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint64_t windows_of(const shd_windows *w, uint64_t targets)
{
    return targets <= w->seq_len ? targets > 0
                                 : 1 + (targets - w->seq_len + w->stride - 1) / w->stride;
}

/* begins[0..n]: where `n` documents from `number` (of the part) on begin, and where the last ends.
 */
static int read_begins(const shd_windows *w, uint64_t number, uint64_t n, uint64_t *begins,
                       shd_error *err)
{
    const int last = number + n == w->n_documents;
    begins[n] = w->end;
    if (w->single) {
        begins[0] = 0;
        return 0;
    }
    SHD_TRY(
        shd_source_read_documents(w->source, w->first_document + number, n + !last, begins, err));
    return begins[n - 1] < begins[n]
               ? 0
               : shd_fail(err, SHD_EDATA, "the documents of '%s' are out of order",
                          shd_source_path(w->source));
}

/* Finds the documents that begin at tokens [begin, end). */
static int find_documents(shd_windows *w, uint64_t begin, uint64_t end, shd_error *err)
{
    const uint64_t all = shd_source_documents(w->source);
    uint64_t *batch = shd_malloc(BATCH * sizeof(*batch));
    int rc = 0;
    for (uint64_t at = 0; at < all && rc == 0; at += BATCH) {
        const uint64_t m = min64(all - at, BATCH);
        rc = shd_source_read_documents(w->source, at, m, batch, err);
        for (uint64_t i = 0; i < m && rc == 0; i++) {
            w->first_document += batch[i] < begin;
            w->n_documents += batch[i] >= begin && batch[i] < end;
        }
    }
    free(batch);
    return rc;
}

/* Numbers the windows. */
static int count_windows(shd_windows *w, uint64_t *windows, shd_error *err)
{
    const uint64_t blocks = (w->n_documents + BLOCK - 1) / BLOCK;
    uint64_t begins[BLOCK + 1];
    *windows = 0;
    w->first = shd_calloc(blocks + 1, sizeof(*w->first));
    for (uint64_t b = 0; b < blocks; b++) {
        const uint64_t n = min64(w->n_documents - b * BLOCK, BLOCK);
        w->first[b] = *windows;
        SHD_TRY(read_begins(w, b * BLOCK, n, begins, err));
        for (uint64_t i = 0; i < n; i++) {
            *windows += windows_of(w, begins[i + 1] - begins[i] - 1);
        }
    }
    w->first[blocks] = *windows;
    return 0;
}

static int create_unpacked(shd_windows *w, const shd_windows_options *o, shd_error *err)
{
    const uint64_t n = shd_source_tokens(w->source), tail = tail_begin(w->source, o->tail);
    uint64_t windows;
    w->end = o->whole && o->limit > 0 && o->limit < n ? o->limit + 1 : n;
    if (w->single) {
        w->n_documents = 1;
    } else {
        SHD_TRY(find_documents(w, o->part == SHD_WINDOWS_TAIL ? tail : 0,
                               o->part == SHD_WINDOWS_HEAD ? tail : w->end, err));
    }
    const uint64_t after = w->first_document + w->n_documents;
    if (o->part == SHD_WINDOWS_HEAD && after < shd_source_documents(w->source)) {
        SHD_TRY(shd_source_read_documents(w->source, after, 1, &w->end, err));
    }
    SHD_TRY(count_windows(w, &windows, err));
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

static int check(const shd_windows_options *o, shd_error *err)
{
    if (o->seq_len == 0) {
        return shd_fail(err, SHD_EINVAL, "the sequence length must be at least 1");
    }
    if (o->stride > o->seq_len) {
        return shd_fail(err, SHD_EINVAL,
                        "the stride is %u; it must be 1 to the sequence length of %u, or tokens "
                        "would be left out",
                        o->stride, o->seq_len);
    }
    return 0;
}

int shd_windows_create(const shd_source *source, const shd_windows_options *options,
                       shd_windows **out, shd_error *err)
{
    SHD_TRY(check(options, err));
    shd_windows *w = shd_calloc(1, sizeof(*w));
    w->source = source;
    w->seq_len = options->seq_len;
    w->stride = options->whole && options->stride > 0 ? options->stride : options->seq_len;
    w->packed = options->packing && !options->whole;
    w->single = options->packing && options->whole;
    const int rc = w->packed ? create_packed(w, options, err) : create_unpacked(w, options, err);
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
        free(w->first);
        free(w);
    }
}

uint64_t shd_windows_count(const shd_windows *w)
{
    return w->sampler.windows;
}

/* A window's tokens and which of its targets count. */
typedef struct extent {
    uint64_t begin;    /* token */
    uint64_t n;        /* targets */
    uint64_t repeated; /* of these the first so many, which the window before has counted */
} extent;

/* The block of documents that window `number` is of. */
static uint64_t block_of(const shd_windows *w, uint64_t number)
{
    uint64_t low = 0, high = (w->n_documents + BLOCK - 1) / BLOCK;
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

static int find_unpacked(const shd_windows *w, uint64_t number, extent *out, shd_error *err)
{
    const uint64_t block = block_of(w, number);
    const uint64_t n = min64(w->n_documents - block * BLOCK, BLOCK);
    uint64_t begins[BLOCK + 1], left = number - w->first[block];
    SHD_TRY(read_begins(w, block * BLOCK, n, begins, err));
    for (uint64_t i = 0; i < n; i++) {
        const uint64_t targets = begins[i + 1] - begins[i] - 1, windows = windows_of(w, targets);
        if (left < windows) {
            const uint64_t skip = left * w->stride;
            *out = (extent){.begin = begins[i] + skip,
                            .n = min64(targets - skip, w->seq_len),
                            .repeated = left > 0 ? w->seq_len - w->stride : 0};
            return 0;
        }
        left -= windows;
    }
    return shd_fail(err, SHD_EDATA, "the documents of '%s' have changed",
                    shd_source_path(w->source));
}

int shd_windows_read(const shd_windows *w, uint64_t cursor, uint32_t vocab, int32_t *ids,
                     int32_t *targets, shd_error *err)
{
    extent e = {.begin = shd_sampler_offset(&w->sampler, cursor), .n = w->seq_len};
    if (!w->packed) {
        SHD_TRY(find_unpacked(w, e.begin, &e, err));
    }
    int32_t *tokens = shd_reallocarray(NULL, e.n + 1, sizeof(*tokens));
    unsigned char *ignored = shd_malloc(e.n);
    int rc = shd_source_read(w->source, e.begin, e.n + 1, vocab, tokens, err);
    rc = rc == 0 ? shd_source_read_mask(w->source, e.begin + 1, e.n, ignored, err) : rc;
    for (uint64_t i = 0; i < w->seq_len && rc == 0; i++) {
        const int counts = i >= e.repeated && i < e.n && !ignored[i];
        ids[i] = i < e.n ? tokens[i] : 0;
        targets[i] = counts ? tokens[i + 1] : SHD_WINDOWS_IGNORED;
    }
    free(tokens);
    free(ignored);
    return rc;
}
