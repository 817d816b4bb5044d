/* First fit by address. Free ranges form a treap ordered by offset, each node knowing the largest
 * range below it, so that both "lowest range that fits" and "neighbours of this range" take
 * O(log n). All bookkeeping is ordinary host memory: the arena's own bytes may be on a device. */
#include "daemon/base/arena.h"

#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "daemon/base/available.h"
#include "daemon/base/mem.h"
#include "daemon/base/pool.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(address, size) ((void)(address), (void)(size))
#define ASAN_UNPOISON_MEMORY_REGION(address, size) ((void)(address), (void)(size))
#endif

#define HUGE_PAGE ((uint64_t)2 << 20)
#define PAGE ((uint64_t)4096)
#define VIRTUAL_BASE ((uint64_t)1 << 44) /* never dereferenced; any non-NULL address would do */
#define VIRTUAL_LIMIT ((uint64_t)1 << 60)

typedef struct range {
    uint64_t offset, size;
    uint64_t largest; /* of this node and all below it */
    uint32_t priority;
    struct range *left, *right;
} range;

typedef struct block {
    uint64_t offset, size; /* size 0: empty slot */
    shd_tag tag;
} block;

typedef struct counter {
    _Atomic uint64_t now, peak;
} counter;

struct shd_arena {
    unsigned char *base;
    void *map; /* owns; NULL when virtual */
    size_t map_bytes;
    uint64_t limit;
    range *free_ranges; /* owns */
    range *spare;       /* owns; released nodes, linked by `left` */
    uint32_t random;    /* priorities; seeded alike in every arena */
    block *blocks;      /* owns; live blocks by offset: open addressing, linear probing */
    size_t capacity, live;
    counter tags[SHD_TAG_COUNT];
    counter total;
    _Atomic uint64_t extent;
};

const char *shd_tag_name(shd_tag tag)
{
    static const char *const names[SHD_TAG_COUNT] = {
        "params", "grads", "optimizer", "gathered", "activations", "comm", "workspace", "data",
    };
    return (unsigned)tag < SHD_TAG_COUNT ? names[tag] : "?";
}

/* ---- free ranges ---- */

static range *range_new(shd_arena *a, uint64_t offset, uint64_t size)
{
    range *r = a->spare;
    if (r != NULL) {
        a->spare = r->left;
    } else {
        r = shd_malloc(sizeof(*r));
    }
    a->random = a->random * 1664525u + 1013904223u;
    *r = (range){.offset = offset, .size = size, .largest = size, .priority = a->random};
    return r;
}

static void range_drop(shd_arena *a, range *r)
{
    r->left = a->spare;
    a->spare = r;
}

static uint64_t largest_of(const range *r)
{
    return r != NULL ? r->largest : 0;
}

static void update(range *r)
{
    r->largest = r->size;
    if (largest_of(r->left) > r->largest) {
        r->largest = r->left->largest;
    }
    if (largest_of(r->right) > r->largest) {
        r->largest = r->right->largest;
    }
}

/* Every range of `low` lies before every range of `high`. */
static range *merge(range *low, range *high)
{
    if (low == NULL || high == NULL) {
        return low != NULL ? low : high;
    }
    if (low->priority > high->priority) {
        low->right = merge(low->right, high);
        update(low);
        return low;
    }
    high->left = merge(low, high->left);
    update(high);
    return high;
}

/* Cuts a tree into the ranges before `offset` and the rest. */
static void split(range *r, uint64_t offset, range **low, range **high)
{
    if (r == NULL) {
        *low = *high = NULL;
    } else if (r->offset < offset) {
        split(r->right, offset, &r->right, high);
        *low = r;
        update(r);
    } else {
        split(r->left, offset, low, &r->left);
        *high = r;
        update(r);
    }
}

/* Takes `size` bytes off the front of the lowest range that has them; the caller knows that one
 * exists. Returns the new root. */
static range *take_first(shd_arena *a, range *r, uint64_t size, uint64_t *offset)
{
    if (largest_of(r->left) >= size) {
        r->left = take_first(a, r->left, size, offset);
    } else if (r->size >= size) {
        *offset = r->offset;
        r->offset += size;
        r->size -= size;
        if (r->size == 0) {
            range *rest = merge(r->left, r->right);
            range_drop(a, r);
            return rest;
        }
    } else {
        r->right = take_first(a, r->right, size, offset);
    }
    update(r);
    return r;
}

/* Removes the last (`want_last`) or first range of a tree when it touches the given place. */
static range *absorb(shd_arena *a, range *r, int want_last, uint64_t place, uint64_t *offset,
                     uint64_t *size)
{
    if (r == NULL) {
        return NULL;
    }
    range **further = want_last ? &r->right : &r->left;
    if (*further != NULL) {
        *further = absorb(a, *further, want_last, place, offset, size);
        update(r);
        return r;
    }
    if (want_last ? r->offset + r->size != place : r->offset != place) {
        return r;
    }
    if (want_last) {
        *offset = r->offset;
    }
    *size += r->size;
    range *rest = want_last ? r->left : r->right;
    range_drop(a, r);
    return rest;
}

static void give_back(shd_arena *a, uint64_t offset, uint64_t size)
{
    range *low, *high;
    split(a->free_ranges, offset, &low, &high);
    high = absorb(a, high, 0, offset + size, &offset, &size);
    low = absorb(a, low, 1, offset, &offset, &size);
    a->free_ranges = merge(merge(low, range_new(a, offset, size)), high);
}

static void free_all_ranges(range *r)
{
    if (r != NULL) {
        free_all_ranges(r->left);
        free_all_ranges(r->right);
        free(r);
    }
}

static uint64_t free_bytes(const range *r)
{
    return r != NULL ? r->size + free_bytes(r->left) + free_bytes(r->right) : 0;
}

/* ---- live blocks ---- */

static size_t slot_of(const shd_arena *a, uint64_t offset)
{
    return (size_t)((offset / SHD_ARENA_ALIGN * 0x9E3779B97F4A7C15u) >> 20) & (a->capacity - 1);
}

static block *find_block(const shd_arena *a, uint64_t offset)
{
    for (size_t i = slot_of(a, offset); a->blocks[i].size != 0; i = (i + 1) & (a->capacity - 1)) {
        if (a->blocks[i].offset == offset) {
            return &a->blocks[i];
        }
    }
    return NULL;
}

static void put_block(shd_arena *a, block b)
{
    size_t i = slot_of(a, b.offset);
    while (a->blocks[i].size != 0) {
        i = (i + 1) & (a->capacity - 1);
    }
    a->blocks[i] = b;
}

static void add_block(shd_arena *a, block b)
{
    if ((a->live + 1) * 2 > a->capacity) {
        block *old = a->blocks;
        const size_t old_capacity = a->capacity;
        a->capacity *= 2;
        a->blocks = shd_calloc(a->capacity, sizeof(*a->blocks));
        for (size_t i = 0; i < old_capacity; i++) {
            if (old[i].size != 0) {
                put_block(a, old[i]);
            }
        }
        free(old);
    }
    put_block(a, b);
    a->live++;
}

static void remove_block(shd_arena *a, block *b)
{
    /* Close the gap: whatever follows in the run and hashes to before it moves up. */
    size_t gap = (size_t)(b - a->blocks);
    const size_t mask = a->capacity - 1;
    for (size_t i = (gap + 1) & mask; a->blocks[i].size != 0; i = (i + 1) & mask) {
        const size_t home = slot_of(a, a->blocks[i].offset);
        if (((i - home) & mask) >= ((i - gap) & mask)) {
            a->blocks[gap] = a->blocks[i];
            gap = i;
        }
    }
    a->blocks[gap].size = 0;
    a->live--;
}

/* ---- counters: written by the owner alone, read by anybody ---- */

static uint64_t load(const _Atomic uint64_t *value)
{
    return atomic_load_explicit(value, memory_order_relaxed);
}

static void store(_Atomic uint64_t *value, uint64_t to)
{
    atomic_store_explicit(value, to, memory_order_relaxed);
}

static void count(counter *c, uint64_t plus, uint64_t minus)
{
    const uint64_t now = load(&c->now) + plus - minus;
    store(&c->now, now);
    if (now > load(&c->peak)) {
        store(&c->peak, now);
    }
}

/* ---- life ---- */

static shd_arena *arena_new(void *base, uint64_t limit)
{
    shd_arena *a = shd_calloc(1, sizeof(*a));
    a->base = base;
    a->limit = limit;
    a->random = 1;
    a->capacity = 256;
    a->blocks = shd_calloc(a->capacity, sizeof(*a->blocks));
    if (limit != 0) {
        a->free_ranges = range_new(a, 0, limit);
    }
    return a;
}

shd_arena *shd_arena_create_virtual(void)
{
    return arena_new((void *)(uintptr_t)VIRTUAL_BASE, VIRTUAL_LIMIT);
}

typedef struct touch_args {
    volatile unsigned char *base;
    uint64_t extent;
} touch_args;

static void touch_huge_page(void *arg, int64_t piece, int worker)
{
    const touch_args *t = arg;
    const uint64_t begin = (uint64_t)piece * HUGE_PAGE;
    (void)worker;
    for (uint64_t i = begin; i < begin + HUGE_PAGE && i < t->extent; i += PAGE) {
        t->base[i] = 0;
    }
}

int shd_arena_create(uint64_t extent, int nthreads, shd_arena **out, shd_error *err)
{
    *out = NULL;
    /* The kernel maps more than it has and kills later; what it says it has is the only refusal. */
    const uint64_t available = shd_available_memory();
    if (extent > available) {
        return shd_fail(err, SHD_ENOMEM,
                        "cannot map an arena of %" PRIu64 " bytes: %" PRIu64
                        " bytes of memory are available; use a smaller model, batch or more ranks",
                        extent, available);
    }
    extent = (extent + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
    void *map = NULL;
    size_t map_bytes = 0;
    unsigned char *base = (unsigned char *)(uintptr_t)VIRTUAL_BASE;
    if (extent != 0) {
        map_bytes = (size_t)(extent + HUGE_PAGE); /* room to align the base to a huge page */
        map = mmap(NULL, map_bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (map == MAP_FAILED) {
            return shd_fail(err, SHD_ENOMEM,
                            "cannot map an arena of %" PRIu64 " bytes: %s (%" PRIu64
                            " bytes of memory are available)",
                            extent, strerror(errno), available);
        }
        base = (unsigned char *)(((uintptr_t)map + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE);
        /* Only advice: a kernel without huge pages runs the same, slower. */
        (void)madvise(base, (size_t)extent, MADV_HUGEPAGE);
        touch_args touch = {base, extent};
        shd_pool *pool = shd_pool_create(nthreads, 0, "arena-touch");
        shd_pool_run(pool, (int64_t)(extent / HUGE_PAGE), touch_huge_page, &touch);
        shd_pool_free(pool);
        ASAN_POISON_MEMORY_REGION(base, (size_t)extent);
    }
    shd_arena *a = arena_new(base, extent);
    a->map = map;
    a->map_bytes = map_bytes;
    *out = a;
    return SHD_OK;
}

void shd_arena_free(shd_arena *arena)
{
    if (arena == NULL) {
        return;
    }
    if (arena->map != NULL) {
        ASAN_UNPOISON_MEMORY_REGION(arena->base, (size_t)arena->limit);
        munmap(arena->map, arena->map_bytes);
    }
    free_all_ranges(arena->free_ranges);
    while (arena->spare != NULL) {
        range *next = arena->spare->left;
        free(arena->spare);
        arena->spare = next;
    }
    free(arena->blocks);
    free(arena);
}

int shd_arena_is_virtual(const shd_arena *arena)
{
    return arena->limit == VIRTUAL_LIMIT;
}

int shd_arena_alloc(shd_arena *arena, shd_tag tag, uint64_t size, void **out, shd_error *err)
{
    *out = NULL;
    uint64_t rounded = VIRTUAL_LIMIT;
    if (size < VIRTUAL_LIMIT) {
        rounded = (size + SHD_ARENA_ALIGN - 1) / SHD_ARENA_ALIGN * SHD_ARENA_ALIGN;
        rounded = rounded != 0 ? rounded : SHD_ARENA_ALIGN;
    }
    const uint64_t largest = largest_of(arena->free_ranges);
    if (rounded > largest) {
        return shd_fail(err, SHD_ENOMEM,
                        "arena has no room for %" PRIu64 " bytes of %s: %" PRIu64
                        " bytes are free, the largest piece has %" PRIu64 ", of %" PRIu64
                        " in all; the plan of this job was too small",
                        size, shd_tag_name(tag), free_bytes(arena->free_ranges), largest,
                        arena->limit);
    }
    uint64_t offset = 0;
    arena->free_ranges = take_first(arena, arena->free_ranges, rounded, &offset);
    add_block(arena, (block){.offset = offset, .size = rounded, .tag = tag});
    count(&arena->tags[tag], rounded, 0);
    count(&arena->total, rounded, 0);
    if (offset + rounded > load(&arena->extent)) {
        store(&arena->extent, offset + rounded);
    }
    *out = (void *)((uintptr_t)arena->base + offset);
    if (arena->map != NULL) {
        ASAN_UNPOISON_MEMORY_REGION(*out, (size_t)size);
    }
    return SHD_OK;
}

void shd_arena_release(shd_arena *arena, void *ptr)
{
    if (ptr == NULL) {
        return;
    }
    const uint64_t offset = (uint64_t)((uintptr_t)ptr - (uintptr_t)arena->base);
    block *b = find_block(arena, offset);
    if (b == NULL) {
        fprintf(stderr, "arena: release of %p, which is not a live block\n", ptr);
        abort();
    }
    count(&arena->tags[b->tag], 0, b->size);
    count(&arena->total, 0, b->size);
    if (arena->map != NULL) {
        ASAN_POISON_MEMORY_REGION(ptr, (size_t)b->size);
    }
    const uint64_t size = b->size;
    remove_block(arena, b);
    give_back(arena, offset, size);
}

void shd_arena_usage(const shd_arena *arena, shd_usage out[SHD_TAG_COUNT])
{
    for (int i = 0; i < SHD_TAG_COUNT; i++) {
        out[i].now = load(&arena->tags[i].now);
        out[i].peak = load(&arena->tags[i].peak);
    }
}

uint64_t shd_arena_total_peak(const shd_arena *arena)
{
    return load(&arena->total.peak);
}

uint64_t shd_arena_extent(const shd_arena *arena)
{
    return load(&arena->extent);
}

void shd_arena_reset_peaks(shd_arena *arena)
{
    for (int i = 0; i < SHD_TAG_COUNT; i++) {
        store(&arena->tags[i].peak, load(&arena->tags[i].now));
    }
    store(&arena->total.peak, load(&arena->total.now));
}
