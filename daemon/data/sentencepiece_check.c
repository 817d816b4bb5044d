/* Checks of a tokenizer.model that its library leaves out; see sentencepiece_check.h. Floor F3;
 * pure. */
#include "daemon/data/sentencepiece_check.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/mem.h"

/* Field numbers of sentencepiece_model.proto. */
enum { NORMALIZER = 3, DENORMALIZER = 5, CHARSMAP = 2 };

#define MAX_RULE 256u       /* bytes of what is replaced */
#define MAX_TEXT 4096u      /* fewer bytes by what */
#define MAX_TRIE (4u << 20) /* bytes */

/* A field of a protobuf message; `size` bytes of content where the wire type is LENGTH. */
typedef struct field {
    uint64_t number;
    const unsigned char *bytes;
    uint64_t size;
} field;

enum { VARINT = 0, FIXED64 = 1, LENGTH = 2, FIXED32 = 5 };

static int next_varint(const unsigned char **p, const unsigned char *end, uint64_t *out)
{
    *out = 0;
    for (unsigned shift = 0; shift < 64 && *p < end; shift += 7) {
        const unsigned char byte = *(*p)++;
        *out |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80) {
            return 1;
        }
    }
    return 0;
}

/* Takes the next field off; 0: no field stands there. */
static int next_field(const unsigned char **p, const unsigned char *end, field *out)
{
    uint64_t key, value = 0;
    if (!next_varint(p, end, &key)) {
        return 0;
    }
    *out = (field){.number = (uint32_t)key >> 3};
    switch (key & 7) {
    case VARINT:
        return next_varint(p, end, &value);
    case FIXED64:
        value = 8;
        break;
    case FIXED32:
        value = 4;
        break;
    case LENGTH:
        if (!next_varint(p, end, &value)) {
            return 0;
        }
        out->bytes = *p;
        out->size = value;
        break;
    default:
        return 0;
    }
    if (value > (uint64_t)(end - *p)) {
        return 0;
    }
    *p += value;
    return 1;
}

static uint32_t unit_at(const unsigned char *units, uint64_t i)
{
    const unsigned char *p = units + 4 * i;
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static uint64_t children_of(uint32_t unit, uint64_t at)
{
    return at ^ ((uint64_t)(unit >> 10) << ((unit & 1u << 9) >> 6));
}

/* A unit of the double array that the library reads (Darts-clone): bit 31, a value stands in the
 * others; else bit 8, a key ends here and its value is the unit at the begin of the children; the
 * rest, where those are. A step looks at any of 256 units from there. Of the first unit, which is
 * the root, bit 31 means nothing. *longest gets the bytes of the longest text that is named. */
static int check_units(const unsigned char *units, uint64_t n, const char *text, uint64_t n_text,
                       size_t *longest, shd_error *err)
{
    for (uint64_t i = 0; i < n; i++) {
        const uint32_t unit = unit_at(units, i);
        const uint64_t children = children_of(unit, i);
        if (unit >> 31 != 0 && i > 0) {
            continue;
        }
        if ((children | 0xff) >= n) {
            return shd_fail(err, SHD_EDATA, "unit %llu of its map of characters leads out of it",
                            (unsigned long long)i);
        }
        if ((unit >> 8 & 1) == 0) {
            continue;
        }
        const uint64_t at = unit_at(units, children) & 0x7fffffff;
        if (at >= n_text) {
            return shd_fail(err, SHD_EDATA,
                            "unit %llu of its map of characters names a text outside of it",
                            (unsigned long long)i);
        }
        const size_t left = n_text - at,
                     size = strnlen(text + at, left < MAX_TEXT ? left : MAX_TEXT);
        if (size == MAX_TEXT) {
            return shd_fail(err, SHD_EDATA,
                            "unit %llu of its map of characters names a text of %u bytes or more",
                            (unsigned long long)i, MAX_TEXT);
        }
        *longest = size > *longest ? size : *longest;
    }
    return 0;
}

/* Units of a trie on the way from the root to the one in hand. */
typedef struct step {
    uint64_t unit;
    uint32_t next; /* byte to go on with */
} step;

/* Is a step by `byte`, the first of a key or not, with `height` of what is below, one of a key that
 * shd_sp_maps.joins is about? */
static int joins(uint32_t byte, int first, uint16_t height)
{
    return byte == ' ' || (byte == '\n' && (!first || height > 1));
}

/* No key is longer than MAX_RULE bytes, and none goes round in a circle: the library follows keys
 * from every place of a text. Units that several keys share are gone through once; height[unit] is
 * 1 more than the longest way down from there, ON_WAY while it is being found out. */
static int check_depth(const unsigned char *units, uint64_t n, shd_sp_maps *maps, shd_error *err)
{
    enum { ON_WAY = 0xffff };
    uint16_t *height = shd_calloc(n, sizeof(*height));
    step *way = shd_calloc(MAX_RULE + 2, sizeof(*way));
    size_t depth = 1;
    int rc = 0;
    height[0] = ON_WAY;
    while (depth > 0 && rc == 0) {
        step *top = &way[depth - 1];
        const uint64_t children = children_of(unit_at(units, top->unit), top->unit);
        const uint64_t child = children ^ top->next;
        if (top->next > 0xff) { /* all of them are known */
            uint16_t most = 0;
            for (uint32_t byte = 0; byte <= 0xff; byte++) {
                const uint64_t below = children ^ byte;
                const int is = (unit_at(units, below) & 0x800000ff) == byte;
                most = is && height[below] > most ? height[below] : most;
                maps->joins |= is && joins(byte, depth == 1, height[below]);
            }
            height[top->unit] = (uint16_t)(most + 1);
            depth--;
            continue;
        }
        top->next++;
        if ((unit_at(units, child) & 0x800000ff) != top->next - 1) {
            continue;
        }
        if (depth + height[child] > MAX_RULE) {
            rc = shd_fail(err, SHD_EDATA, "a rule of its map of characters has more than %u bytes",
                          MAX_RULE);
        } else if (height[child] == 0) {
            way[depth++] = (step){.unit = child, .next = 0};
            height[child] = ON_WAY;
        }
    }
    free(way);
    free(height);
    return rc;
}

/* 4 bytes: the size of the trie; the trie; the texts. */
static int check_charsmap(const field *map, shd_sp_maps *maps, shd_error *err)
{
    const uint64_t trie = map->size >= 4 ? unit_at(map->bytes, 0) : 0;
    if (map->size == 0) {
        return 0;
    }
    if (map->size < 4 || trie > map->size - 4 || trie % 4 != 0) {
        return shd_fail(err, SHD_EDATA, "its map of characters is cut off");
    }
    if (trie == 0 || trie > MAX_TRIE) {
        return shd_fail(err, SHD_EDATA, "its map of characters is %s",
                        trie == 0 ? "empty" : "too large");
    }
    SHD_TRY(check_units(map->bytes + 4, trie / 4, (const char *)map->bytes + 4 + trie,
                        map->size - 4 - trie, &maps->longest, err));
    return check_depth(map->bytes + 4, trie / 4, maps, err);
}

/* A normalizer's field by itself. */
static int check_normalizer(const field *spec, shd_sp_maps *maps, shd_error *err)
{
    const unsigned char *p = spec->bytes, *end = p + spec->size;
    while (p < end) {
        field inner;
        if (!next_field(&p, end, &inner)) {
            return shd_fail(err, SHD_EDATA, "its normalizer is damaged");
        }
        if (inner.bytes != NULL && inner.number == CHARSMAP) {
            SHD_TRY(check_charsmap(&inner, maps, err));
        }
    }
    return 0;
}

int shd_sp_check(const char *model, size_t n, shd_sp_maps *maps, shd_error *err)
{
    shd_sp_maps unused;
    *maps = (shd_sp_maps){0};
    const unsigned char *begin = (const unsigned char *)model, *p = begin, *end = begin + n;
    while (p < end) {
        field part;
        const size_t at = (size_t)(p - begin);
        if (!next_field(&p, end, &part)) {
            return shd_fail(err, SHD_EDATA, "not a sentencepiece model: byte %zu begins no field",
                            at);
        }
        if (part.bytes != NULL && (part.number == NORMALIZER || part.number == DENORMALIZER)) {
            SHD_TRY(check_normalizer(&part, part.number == NORMALIZER ? maps : &unused, err));
        }
    }
    return 0;
}
