/* Byte pair encoding; see bpe.h. Floor F3. */
#include "daemon/data/bpe.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <xxhash.h>

#include "daemon/base/mem.h"

#define NO_RANK UINT32_MAX
#define SHORT_WORD 48 /* bytes; longer words keep their pairs in a heap */
#define A_LOOK 4096u  /* pairs between two looks at whether to go on */

/* Cached words: the place of a word follows from its hash alone. */
#define CACHE_ENTRIES (1u << 15)
#define CACHE_TEXT 22 /* bytes */
#define CACHE_IDS 10

typedef struct token {
    const char *text; /* NULL: free */
    uint32_t size;
    int32_t id;
} token;

typedef struct merge {
    uint64_t pair; /* left << 32 | right; EMPTY: free */
    uint32_t rank;
    int32_t id;
} merge;
#define EMPTY UINT64_MAX

struct shd_bpe {
    token *tokens; /* open addressing, a power of two */
    size_t token_mask;
    merge *merges;
    size_t merge_mask;
    uint64_t mix;         /* odd, and nobody's to choose merges that meet in one place by */
    int32_t byte_id[256]; /* -1: no token */
    int32_t unknown;
    int fuse, whole_words;
};

typedef struct entry {
    uint8_t size, n; /* size 0: free */
    char text[CACHE_TEXT];
    int32_t ids[CACHE_IDS];
} entry;

/* A part of a long word; parts form a list. */
typedef struct part {
    int32_t id; /* -1: merged into the part before */
    uint32_t prev, next;
} part;

/* A pair that could be merged, in the heap: by rank, then from the left. */
typedef struct candidate {
    uint32_t rank, at;
    int32_t id; /* what it becomes */
} candidate;

struct shd_bpe_cache {
    entry entries[CACHE_ENTRIES];
    part *parts;
    candidate *heap;
    size_t n_heap, parts_capacity, heap_capacity;
    shd_ids symbols;
};

static size_t power_of_two(size_t n)
{
    size_t size = 16;
    while (size < n) {
        size *= 2;
    }
    return size;
}

shd_bpe *shd_bpe_create(size_t n_tokens, size_t n_merges)
{
    shd_bpe *bpe = shd_calloc(1, sizeof(*bpe));
    bpe->token_mask = power_of_two(2 * n_tokens) - 1;
    bpe->merge_mask = power_of_two(2 * n_merges) - 1;
    bpe->tokens = shd_calloc(bpe->token_mask + 1, sizeof(*bpe->tokens));
    bpe->merges = shd_calloc(bpe->merge_mask + 1, sizeof(*bpe->merges));
    for (size_t i = 0; i <= bpe->merge_mask; i++) {
        bpe->merges[i].pair = EMPTY;
    }
    for (int b = 0; b < 256; b++) {
        bpe->byte_id[b] = -1;
    }
    bpe->unknown = -1;
    if (getrandom(&bpe->mix, sizeof(bpe->mix), 0) != sizeof(bpe->mix)) {
        bpe->mix = UINT64_C(0x9e3779b97f4a7c15); /* of the golden ratio: only slower when abused */
    }
    bpe->mix |= 1;
    return bpe;
}

void shd_bpe_free(shd_bpe *bpe)
{
    if (bpe != NULL) {
        free(bpe->tokens);
        free(bpe->merges);
        free(bpe);
    }
}

void shd_bpe_set_unknown(shd_bpe *bpe, int32_t unknown, int fuse)
{
    bpe->unknown = unknown;
    bpe->fuse = fuse;
}

void shd_bpe_set_whole_words(shd_bpe *bpe, int whole_words)
{
    bpe->whole_words = whole_words;
}

/* Nobody can choose texts by it that meet in one place. */
static uint64_t hash_of(const shd_bpe *bpe, const char *text, size_t n)
{
    return XXH3_64bits_withSeed(text, n, bpe->mix);
}

/* The place of a text, or a free one. */
static token *token_place(const shd_bpe *bpe, const char *text, size_t n, uint64_t hash)
{
    size_t i = hash & bpe->token_mask;
    while (bpe->tokens[i].text != NULL &&
           (bpe->tokens[i].size != n || memcmp(bpe->tokens[i].text, text, n) != 0)) {
        i = (i + 1) & bpe->token_mask;
    }
    return &bpe->tokens[i];
}

void shd_bpe_put_token(shd_bpe *bpe, const char *text, size_t n, int32_t id)
{
    *token_place(bpe, text, n, hash_of(bpe, text, n)) =
        (token){.text = text, .size = (uint32_t)n, .id = id};
    if (n == 1) {
        bpe->byte_id[(unsigned char)text[0]] = id;
    }
}

static uint64_t pair_of(int32_t left, int32_t right)
{
    return (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
}

/* Multiplicative hashing, the upper bits folded in. */
static merge *merge_place(const shd_bpe *bpe, uint64_t pair)
{
    const uint64_t mixed = pair * bpe->mix;
    size_t i = (size_t)(mixed ^ mixed >> 32) & bpe->merge_mask;
    while (bpe->merges[i].pair != pair && bpe->merges[i].pair != EMPTY) {
        i = (i + 1) & bpe->merge_mask;
    }
    return &bpe->merges[i];
}

void shd_bpe_put_merge(shd_bpe *bpe, int32_t left, int32_t right, uint32_t rank, int32_t id)
{
    const uint64_t pair = pair_of(left, right);
    *merge_place(bpe, pair) = (merge){.pair = pair, .rank = rank, .id = id};
}

/* The rank of a pair and what it becomes; NO_RANK: it stays. */
static uint32_t rank_of(const shd_bpe *bpe, int32_t left, int32_t right, int32_t *id)
{
    const merge *m = merge_place(bpe, pair_of(left, right));
    *id = m->id;
    return m->pair == EMPTY ? NO_RANK : m->rank;
}

/* ---- cache ---- */

shd_bpe_cache *shd_bpe_cache_create(void)
{
    return shd_calloc(1, sizeof(shd_bpe_cache));
}

void shd_bpe_cache_free(shd_bpe_cache *cache)
{
    if (cache != NULL) {
        free(cache->parts);
        free(cache->heap);
        shd_ids_fini(&cache->symbols);
        free(cache);
    }
}

/* ---- words ---- */

/* The tokens of single bytes. */
static void spell(const shd_bpe *bpe, const char *word, size_t n, shd_ids *symbols)
{
    int unknown_before = 0;
    symbols->n = 0;
    for (size_t i = 0; i < n; i++) {
        const int32_t id = bpe->byte_id[(unsigned char)word[i]];
        if (id >= 0) {
            shd_ids_push(symbols, id);
        } else if (bpe->unknown >= 0 && !(bpe->fuse && unknown_before)) {
            shd_ids_push(symbols, bpe->unknown);
        }
        unknown_before = id < 0;
    }
}

/* Looks over all pairs for every merge: the quickest for few of them. Returns how many ids are
 * left in ids[n]. */
static size_t merge_short(const shd_bpe *bpe, int32_t *ids, size_t n)
{
    uint32_t ranks[SHORT_WORD];
    int32_t merged[SHORT_WORD];
    for (size_t i = 0; i + 1 < n; i++) {
        ranks[i] = rank_of(bpe, ids[i], ids[i + 1], &merged[i]);
    }
    while (n > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < n; i++) {
            best = ranks[i] < ranks[best] ? i : best;
        }
        if (ranks[best] == NO_RANK) {
            break;
        }
        ids[best] = merged[best];
        n--;
        memmove(ids + best + 1, ids + best + 2, (n - best - 1) * sizeof(*ids));
        memmove(ranks + best, ranks + best + 1, (n - best - 1) * sizeof(*ranks));
        memmove(merged + best, merged + best + 1, (n - best - 1) * sizeof(*merged));
        if (best > 0) {
            ranks[best - 1] = rank_of(bpe, ids[best - 1], ids[best], &merged[best - 1]);
        }
        if (best + 1 < n) {
            ranks[best] = rank_of(bpe, ids[best], ids[best + 1], &merged[best]);
        }
    }
    return n;
}

static int before(const candidate *a, const candidate *b)
{
    return a->rank != b->rank ? a->rank < b->rank : a->at < b->at;
}

static void heap_push(shd_bpe_cache *c, candidate item)
{
    if (c->n_heap == c->heap_capacity) {
        c->heap_capacity = c->heap_capacity != 0 ? 2 * c->heap_capacity : 1024;
        c->heap = shd_reallocarray(c->heap, c->heap_capacity, sizeof(*c->heap));
    }
    size_t i = c->n_heap++;
    for (; i > 0 && before(&item, &c->heap[(i - 1) / 2]); i = (i - 1) / 2) {
        c->heap[i] = c->heap[(i - 1) / 2];
    }
    c->heap[i] = item;
}

static candidate heap_pop(shd_bpe_cache *c)
{
    const candidate top = c->heap[0], last = c->heap[--c->n_heap];
    size_t i = 0;
    for (size_t child; (child = 2 * i + 1) < c->n_heap; i = child) {
        if (child + 1 < c->n_heap && before(&c->heap[child + 1], &c->heap[child])) {
            child++;
        }
        if (!before(&c->heap[child], &last)) {
            break;
        }
        c->heap[i] = c->heap[child];
    }
    c->heap[i] = last;
    return top;
}

static void push_pair(const shd_bpe *bpe, shd_bpe_cache *c, uint32_t left, uint32_t n)
{
    const uint32_t right = c->parts[left].next;
    candidate item = {.at = left};
    if (right < n) {
        item.rank = rank_of(bpe, c->parts[left].id, c->parts[right].id, &item.id);
        if (item.rank != NO_RANK) {
            heap_push(c, item);
        }
    }
}

/* In time n log n; *size becomes the number of ids that are left. */
static int merge_long(const shd_bpe *bpe, shd_bpe_cache *c, int32_t *ids, size_t *size,
                      shd_ends *ends, shd_error *err)
{
    const uint32_t n = (uint32_t)*size;
    if (c->parts_capacity < n) {
        c->parts = shd_reallocarray(c->parts, n, sizeof(*c->parts));
        c->parts_capacity = n;
    }
    for (uint32_t i = 0; i < n; i++) {
        c->parts[i] = (part){.id = ids[i], .prev = i - 1, .next = i + 1};
    }
    c->n_heap = 0;
    for (uint32_t i = 0; i + 1 < n; i++) {
        push_pair(bpe, c, i, n);
        if (i % A_LOOK == A_LOOK - 1) {
            SHD_TRY(shd_ends_look(ends, 1, err));
        }
    }
    for (uint32_t pairs = 1; c->n_heap > 0; pairs++) {
        if (pairs % A_LOOK == 0) {
            SHD_TRY(shd_ends_look(ends, 1, err));
        }
        const candidate best = heap_pop(c);
        part *left = &c->parts[best.at];
        int32_t id;
        /* The pair may be gone, or another one may stand there now. */
        if (left->id < 0 || left->next >= n ||
            rank_of(bpe, left->id, c->parts[left->next].id, &id) != best.rank || id != best.id) {
            continue;
        }
        part *right = &c->parts[left->next];
        left->id = best.id;
        left->next = right->next;
        right->id = -1;
        if (left->next < n) {
            c->parts[left->next].prev = best.at;
            push_pair(bpe, c, best.at, n);
        }
        if (best.at > 0) {
            push_pair(bpe, c, left->prev, n);
        }
    }
    size_t left_over = 0;
    for (uint32_t i = 0; i < n; i = c->parts[i].next) {
        ids[left_over++] = c->parts[i].id;
    }
    *size = left_over;
    return 0;
}

int shd_bpe_word(const shd_bpe *bpe, shd_bpe_cache *c, const char *word, size_t n, shd_ends *ends,
                 shd_ids *ids, shd_error *err)
{
    const uint64_t hash = hash_of(bpe, word, n);
    entry *e = &c->entries[hash >> 49];
    if (n <= CACHE_TEXT && e->size == n && memcmp(e->text, word, n) == 0) {
        shd_ids_append(ids, e->ids, e->n);
        return 0;
    }
    shd_ids *symbols = &c->symbols;
    const token *whole = bpe->whole_words ? token_place(bpe, word, n, hash) : NULL;
    if (whole != NULL && whole->text != NULL) {
        symbols->n = 0;
        shd_ids_push(symbols, whole->id);
    } else {
        spell(bpe, word, n, symbols);
        if (symbols->n <= SHORT_WORD) {
            symbols->n = merge_short(bpe, symbols->items, symbols->n);
        } else {
            SHD_TRY(merge_long(bpe, c, symbols->items, &symbols->n, ends, err));
        }
    }
    shd_ids_append(ids, symbols->items, symbols->n);
    if (n <= CACHE_TEXT && symbols->n > 0 && symbols->n <= CACHE_IDS) {
        e->size = (uint8_t)n;
        e->n = (uint8_t)symbols->n;
        memcpy(e->text, word, n);
        memcpy(e->ids, symbols->items, symbols->n * sizeof(*e->ids));
    }
    return 0;
}
