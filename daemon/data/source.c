/* Tokens of a file; see source.h. Floor F3. */
#include "daemon/data/source.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/base/input.h"
#include "daemon/base/mem.h"
#include "daemon/base/text.h"
#include "daemon/data/token_file.h"

/* llm.c's data files: 256 int32, of which three are used: magic, version, number of tokens. */
#define LLMC_HEADER_BYTES 1024u
#define LLMC_MAGIC_16 20240520
#define LLMC_VERSION_16 1
#define LLMC_MAGIC_32 20240801
#define LLMC_VERSION_32 7

#define CHECK_TOKENS 65536u /* tokens per read of a check */

struct shd_source {
    shd_input file;
    shd_data_format format;
    uint32_t width; /* bytes per token */
    uint64_t tokens;
    uint64_t begin;          /* byte offset of the first token */
    shd_token_header header; /* of a token file */
    char key[33];

    shd_input origin; /* the file that a token file was made of; its fd is -1: none */
};

static const char *const format_names[] = {"auto", "text", "nanogpt", "llmc", "jsonl"};

int shd_data_format_parse(const char *word, shd_data_format *out, shd_error *err)
{
    if (word[0] == '\0') {
        *out = SHD_DATA_AUTO;
        return 0;
    }
    for (size_t i = 0; i < sizeof(format_names) / sizeof(format_names[0]); i++) {
        if (strcmp(word, format_names[i]) == 0) {
            *out = (shd_data_format)i;
            return 0;
        }
    }
    return shd_fail(err, SHD_EINVAL,
                    "unknown data format '%s'; use one of auto, text, nanogpt, llmc, jsonl", word);
}

const char *shd_data_format_name(shd_data_format format)
{
    return (unsigned)format < sizeof(format_names) / sizeof(format_names[0]) ? format_names[format]
                                                                             : "?";
}

static uint32_t load_u32(const unsigned char *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

/* The text that a token file was made of must stay what it was, too. */
static int check_origin(const shd_source *src, shd_error *err)
{
    return src->origin.fd >= 0 ? shd_input_check(&src->origin, err) : 0;
}

static int open_llmc(shd_source *src, shd_error *err)
{
    unsigned char header[12];

    if (src->file.size < LLMC_HEADER_BYTES) {
        return shd_fail(err, SHD_EDATA,
                        "'%s' is not an llm.c data file: %llu bytes are less than its header of %u",
                        src->file.path, (unsigned long long)src->file.size, LLMC_HEADER_BYTES);
    }
    SHD_TRY(shd_input_read(&src->file, header, sizeof(header), 0, err));
    const int32_t magic = (int32_t)load_u32(header);
    const int32_t version = (int32_t)load_u32(header + 4);
    const int32_t promised = (int32_t)load_u32(header + 8);
    if (magic != LLMC_MAGIC_16 && magic != LLMC_MAGIC_32) {
        return shd_fail(err, SHD_EDATA,
                        "'%s' is not an llm.c data file: it begins with %d, not with the magic %d "
                        "or %d",
                        src->file.path, magic, LLMC_MAGIC_16, LLMC_MAGIC_32);
    }
    const int32_t known = magic == LLMC_MAGIC_16 ? LLMC_VERSION_16 : LLMC_VERSION_32;
    if (version != known) {
        return shd_fail(err, SHD_EDATA,
                        "'%s': version %d of llm.c data files with magic %d is unknown; version %d "
                        "is known",
                        src->file.path, version, magic, known);
    }
    src->width = magic == LLMC_MAGIC_16 ? 2 : 4;
    src->begin = LLMC_HEADER_BYTES;
    if (promised <= 0) {
        return shd_fail(err, SHD_EDATA, "'%s' holds no tokens: its header says %d", src->file.path,
                        promised);
    }
    src->tokens = (uint64_t)promised;
    if (src->begin + src->tokens * src->width != src->file.size) {
        return shd_fail(
            err, SHD_EDATA,
            "'%s': the header promises %d tokens of %u bytes, the file holds %llu bytes "
            "after it",
            src->file.path, promised, src->width,
            (unsigned long long)(src->file.size - src->begin));
    }
    return 0;
}

static int open_tokens(shd_source *src, shd_error *err)
{
    unsigned char bytes[SHD_TOKEN_HEADER_BYTES];
    if (src->file.size < sizeof(bytes)) {
        return shd_fail(err, SHD_EDATA,
                        "'%s' is not a token file: %llu bytes are less than a header",
                        src->file.path, (unsigned long long)src->file.size);
    }
    SHD_TRY(shd_input_read(&src->file, bytes, sizeof(bytes), 0, err));
    const int rc = shd_token_header_parse(bytes, src->file.size, &src->header, err);
    if (rc < 0) {
        return shd_error_prefix(err, rc, "'%s'", src->file.path);
    }
    src->width = src->header.width;
    src->begin = SHD_TOKEN_HEADER_BYTES;
    src->tokens = src->header.tokens;
    snprintf(src->key, sizeof(src->key), "%016llx%016llx", (unsigned long long)src->header.key[1],
             (unsigned long long)src->header.key[0]);
    return 0;
}

/* What a file is that begins like this and cannot be read here; NULL: nothing such. */
static const char *foreign(const unsigned char magic[4])
{
    static const struct {
        unsigned char magic[4];
        unsigned n;
        const char *name;
    } kinds[] = {
        {{0x1f, 0x8b}, 2, "compressed with gzip"},
        {{0x28, 0xb5, 0x2f, 0xfd}, 4, "compressed with zstd"},
        {{0xfd, '7', 'z', 'X'}, 4, "compressed with xz"},
        {{'B', 'Z', 'h'}, 3, "compressed with bzip2"},
        {{'P', 'K', 3, 4}, 4, "a zip archive"},
        {{'P', 'A', 'R', '1'}, 4, "a Parquet table"},
    };
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        if (memcmp(magic, kinds[i].magic, kinds[i].n) == 0) {
            return kinds[i].name;
        }
    }
    return NULL;
}

int shd_data_format_of(int fd, const char *path, shd_data_format *out, shd_error *err)
{
    unsigned char magic[4] = {0};
    struct stat st;
    if (fstat(fd, &st) < 0 ||
        (st.st_size >= (off_t)sizeof(magic) && pread(fd, magic, sizeof(magic), 0) < 0)) {
        return shd_fail(err, SHD_EIO, "cannot read '%s': %s", path, strerror(errno));
    }
    const char *kind = foreign(magic);
    if (kind != NULL && !shd_ends_with(path, ".bin")) {
        return shd_fail(err, SHD_EDATA,
                        "'%s' is %s: give what is in it as text or JSONL (--data-format text reads "
                        "its bytes as they are)",
                        path, kind);
    }
    if (shd_ends_with(path, ".json")) {
        return shd_fail(err, SHD_EINVAL,
                        "'%s' may be text or a document a line: say which with --data-format text "
                        "or jsonl, or call it .txt or .jsonl",
                        path);
    }
    const uint32_t word = load_u32(magic);
    *out = word == LLMC_MAGIC_16 || word == LLMC_MAGIC_32                    ? SHD_DATA_LLMC
           : shd_ends_with(path, ".bin")                                     ? SHD_DATA_NANOGPT
           : shd_ends_with(path, ".jsonl") || shd_ends_with(path, ".ndjson") ? SHD_DATA_JSONL
                                                                             : SHD_DATA_TEXT;
    return 0;
}

/* Fills format, width, begin and tokens from what the file holds. */
static int recognise(shd_source *src, shd_error *err)
{
    if (src->file.size == 0) {
        return shd_fail(err, SHD_EDATA, "'%s' is empty", src->file.path);
    }
    if (src->format == SHD_DATA_AUTO) {
        SHD_TRY(shd_data_format_of(src->file.fd, src->file.path, &src->format, err));
    }
    switch (src->format) {
    case SHD_DATA_LLMC:
        return open_llmc(src, err);
    case SHD_DATA_TOKENS:
        return open_tokens(src, err);
    case SHD_DATA_JSONL:
        return shd_fail(err, SHD_EINVAL, "'%s' is JSONL, which has to be tokenized first",
                        src->file.path);
    case SHD_DATA_NANOGPT:
        if (src->file.size % 2 != 0) {
            return shd_fail(err, SHD_EDATA,
                            "'%s' cannot be uint16 tokens: its length of %llu bytes is odd",
                            src->file.path, (unsigned long long)src->file.size);
        }
        src->width = 2;
        src->tokens = src->file.size / 2;
        return 0;
    default:
        src->width = 1;
        src->tokens = src->file.size;
        return 0;
    }
}

int shd_source_open(int fd, const char *path, shd_data_format format, shd_source **out,
                    shd_error *err)
{
    const int own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (own < 0) {
        return shd_fail(err, SHD_EIO, "cannot open '%s': %s", path, strerror(errno));
    }
    shd_source *src = shd_calloc(1, sizeof(*src));
    src->format = format;
    src->origin.fd = -1;
    int rc = shd_input_open(&src->file, own, path, err);
    if (rc == 0) {
        rc = recognise(src, err);
    }
    if (rc < 0) {
        shd_source_free(src);
        return rc;
    }
    *out = src;
    return 0;
}

void shd_source_free(shd_source *src)
{
    if (src != NULL) {
        shd_input_fini(&src->file);
        shd_input_fini(&src->origin);
        free(src);
    }
}

int shd_source_bind(shd_source *src, int fd, const char *path, shd_error *err)
{
    const int own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (own < 0) {
        return shd_fail(err, SHD_EIO, "cannot open '%s': %s", path, strerror(errno));
    }
    return shd_input_open(&src->origin, own, path, err);
}

uint64_t shd_source_documents(const shd_source *src)
{
    return src->format == SHD_DATA_TOKENS ? src->header.documents : 1;
}

const char *shd_source_key(const shd_source *src)
{
    return src->key;
}

uint64_t shd_source_tokens(const shd_source *src)
{
    return src->tokens;
}

shd_data_format shd_source_format(const shd_source *src)
{
    return src->format;
}

const char *shd_source_path(const shd_source *src)
{
    return src->origin.path != NULL ? src->origin.path : src->file.path;
}

/* Widens n tokens of `width` bytes at the end of out[n]'s memory to int32 in place, front to back:
 * a token is always read before its place is written. Returns the index of the first token that is
 * >= limit, or n. */
static uint64_t widen(int32_t *out, uint64_t n, uint32_t width, uint32_t limit)
{
    const unsigned char *raw = (const unsigned char *)out + n * (sizeof(*out) - width);
    for (uint64_t i = 0; i < n; i++, raw += width) {
        const uint32_t token = width == 1   ? raw[0]
                               : width == 2 ? (uint32_t)raw[0] | (uint32_t)raw[1] << 8
                                            : load_u32(raw);
        out[i] = (int32_t)token;
        if (token >= limit) {
            return i;
        }
    }
    return n;
}

static int check_range(const shd_source *src, uint64_t offset, uint64_t n, shd_error *err)
{
    if (offset > src->tokens || n > src->tokens - offset) {
        return shd_fail(err, SHD_EINVAL,
                        "'%s' has %llu tokens; %llu from position %llu on are more", src->file.path,
                        (unsigned long long)src->tokens, (unsigned long long)n,
                        (unsigned long long)offset);
    }
    return 0;
}

int shd_source_read(const shd_source *src, uint64_t offset, uint64_t n, uint32_t vocab,
                    int32_t *out, shd_error *err)
{
    const uint32_t limit = vocab < INT32_MAX ? vocab : INT32_MAX;

    SHD_TRY(check_range(src, offset, n, err));
    SHD_TRY(shd_input_read(&src->file, (char *)out + n * (sizeof(*out) - src->width),
                           n * src->width, src->begin + offset * src->width, err));
    SHD_TRY(check_origin(src, err));
    const uint64_t good = widen(out, n, src->width, limit);
    if (good < n) {
        return shd_fail(err, SHD_EDATA,
                        "token %u at position %llu of '%s' is not below the vocabulary size %u; is "
                        "the model or the data format right?",
                        (uint32_t)out[good], (unsigned long long)(offset + good),
                        shd_source_path(src), vocab);
    }
    return 0;
}

int shd_source_read_mask(const shd_source *src, uint64_t offset, uint64_t n, unsigned char *ignored,
                         shd_error *err)
{
    memset(ignored, 0, n);
    SHD_TRY(check_range(src, offset, n, err));
    if (src->format != SHD_DATA_TOKENS || n == 0) {
        return 0;
    }
    const uint64_t first = offset / 8, bytes = (offset + n - 1) / 8 - first + 1;
    unsigned char *bits = shd_malloc(bytes);
    const int rc =
        shd_input_read(&src->file, bits, bytes, shd_token_file_mask_at(&src->header) + first, err);
    for (uint64_t i = 0; i < n && rc == 0; i++) {
        const uint64_t bit = offset + i - 8 * first;
        ignored[i] = bits[bit / 8] >> (bit % 8) & 1;
    }
    free(bits);
    return rc;
}

int shd_source_read_documents(const shd_source *src, uint64_t first, uint64_t n, uint64_t *begins,
                              shd_error *err)
{
    if (first > shd_source_documents(src) || n > shd_source_documents(src) - first) {
        return shd_fail(err, SHD_EINVAL, "'%s' has %llu documents; %llu from %llu on are more",
                        src->file.path, (unsigned long long)shd_source_documents(src),
                        (unsigned long long)n, (unsigned long long)first);
    }
    if (src->format != SHD_DATA_TOKENS) {
        memset(begins, 0, n * sizeof(*begins));
        return 0;
    }
    SHD_TRY(shd_input_read(&src->file, begins, n * sizeof(*begins),
                           shd_token_file_documents_at(&src->header) + first * sizeof(*begins),
                           err));
    for (uint64_t i = 0; i < n; i++) {
        begins[i] = le64toh(begins[i]);
        if (begins[i] >= src->tokens || (i > 0 && begins[i] <= begins[i - 1])) {
            return shd_fail(err, SHD_EDATA, "the documents of token file '%s' are out of order",
                            src->file.path);
        }
    }
    return 0;
}

int shd_source_check(const shd_source *src, uint32_t vocab, shd_error *err)
{
    const int known = src->format == SHD_DATA_TOKENS; /* it says which id is the largest */
    if (known && src->header.max_id >= vocab) {
        return shd_fail(err, SHD_EDATA,
                        "'%s' has token %u, which is not below the vocabulary size %u; does the "
                        "tokenizer belong to the model?",
                        shd_source_path(src), src->header.max_id, vocab);
    }
    if (known ||
        (src->width < 4 && vocab >> (8 * src->width) != 0)) { /* no other id can be there */
        SHD_TRY(shd_input_check(&src->file, err));
        return check_origin(src, err);
    }
    const uint64_t n =
        src->tokens < SHD_SOURCE_CHECK_TOKENS ? src->tokens : SHD_SOURCE_CHECK_TOKENS;
    int32_t *tokens = shd_malloc(CHECK_TOKENS * sizeof(*tokens));
    int rc = 0;

    for (uint64_t at = 0; rc == 0 && at < n; at += CHECK_TOKENS) {
        const uint64_t left = n - at;
        rc =
            shd_source_read(src, at, left < CHECK_TOKENS ? left : CHECK_TOKENS, vocab, tokens, err);
    }
    free(tokens);
    return rc;
}
