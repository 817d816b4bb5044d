/* Checks of a tokenizer.model that its library leaves out; see sentencepiece_check.h. Floor F3;
 * pure. */
#include "daemon/data/sentencepiece_check.h"

#include <stdint.h>

/* Field numbers of sentencepiece_model.proto. */
enum { NORMALIZER = 3, DENORMALIZER = 5, CHARSMAP = 2 };

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

/* A unit of the double array that the library reads (Darts-clone): bit 31, a value stands in the
 * others; else bit 8, a key ends here and its value is the unit at the begin of the children; the
 * rest, where those are. A step looks at any of 256 units from there. */
static int check_units(const unsigned char *units, uint64_t n, uint64_t n_text, shd_error *err)
{
    for (uint64_t i = 0; i < n; i++) {
        const uint32_t unit = unit_at(units, i);
        const uint64_t children = i ^ ((uint64_t)(unit >> 10) << ((unit & 1u << 9) >> 6));
        if (unit >> 31 != 0) {
            continue;
        }
        if ((children | 0xff) >= n) {
            return shd_fail(err, SHD_EDATA, "unit %llu of its map of characters leads out of it",
                            (unsigned long long)i);
        }
        if ((unit >> 8 & 1) != 0 && (unit_at(units, children) & 0x7fffffff) >= n_text) {
            return shd_fail(err, SHD_EDATA,
                            "unit %llu of its map of characters names a text outside of it",
                            (unsigned long long)i);
        }
    }
    return 0;
}

/* 4 bytes: the size of the trie; the trie; the texts. */
static int check_charsmap(const field *map, shd_error *err)
{
    const uint64_t trie = map->size >= 4 ? unit_at(map->bytes, 0) : 0;
    if (map->size == 0) {
        return 0;
    }
    if (map->size < 4 || trie > map->size - 4 || trie % 4 != 0) {
        return shd_fail(err, SHD_EDATA, "its map of characters is cut off");
    }
    return trie == 0 ? shd_fail(err, SHD_EDATA, "its map of characters is empty")
                     : check_units(map->bytes + 4, trie / 4, map->size - 4 - trie, err);
}

/* A normalizer's field by itself. */
static int check_normalizer(const field *spec, int *maps, shd_error *err)
{
    const unsigned char *p = spec->bytes, *end = p + spec->size;
    while (p < end) {
        field inner;
        if (!next_field(&p, end, &inner)) {
            return shd_fail(err, SHD_EDATA, "its normalizer is damaged");
        }
        if (inner.bytes != NULL && inner.number == CHARSMAP) {
            SHD_TRY(check_charsmap(&inner, err));
            *maps |= inner.size > 0;
        }
    }
    return 0;
}

int shd_sp_check(const char *model, size_t n, int *maps, shd_error *err)
{
    int unused = 0;
    *maps = 0;
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
