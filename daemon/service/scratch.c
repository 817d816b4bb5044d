#include "daemon/service/scratch.h"

#include <stdalign.h>
#include <stdint.h>
#include <stdlib.h>

#include "daemon/base/mem.h"

enum { BLOCK = 4096 };

struct shd_scratch_block {
    struct shd_scratch_block *next;
    size_t used, size;
    alignas(max_align_t) unsigned char bytes[];
};

void *shd_scratch_take(shd_scratch *scratch, size_t n, size_t size)
{
    const size_t unit = alignof(max_align_t);
    size_t bytes;
    if (__builtin_mul_overflow(n, size, &bytes) || bytes > SIZE_MAX / 2) {
        return shd_calloc(n, size); /* aborts with the numbers */
    }
    bytes = (bytes + unit - 1) / unit * unit;
    struct shd_scratch_block *block = scratch->blocks;
    if (block == NULL || block->size - block->used < bytes) {
        const size_t room = bytes > BLOCK ? bytes : BLOCK;
        block = shd_calloc(1, sizeof(*block) + room);
        block->size = room;
        block->next = scratch->blocks;
        scratch->blocks = block;
    }
    void *out = block->bytes + block->used;
    block->used += bytes;
    return out;
}

void shd_scratch_free(shd_scratch *scratch)
{
    while (scratch->blocks != NULL) {
        struct shd_scratch_block *block = scratch->blocks;
        scratch->blocks = block->next;
        free(block);
    }
}
