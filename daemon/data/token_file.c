/* Token files; see token_file.h. Floor F3. */
#include "daemon/data/token_file.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "daemon/base/mem.h"

#define BUFFER (256u << 10)

static const unsigned char magic[8] = {'s', 'h', 'd', 't', 'o', 'k', '\r', '\n'};

/* Offsets in the header; the rest is zero. The checksum is of the 120 bytes before it. */
enum {
    AT_MAGIC = 0,
    AT_VERSION = 8,
    AT_WIDTH = 12,
    AT_VOCAB = 16,
    AT_MAX_ID = 20,
    AT_TOKENS = 24,
    AT_DOCUMENTS = 32,
    AT_KEY = 40,
    AT_CONTENT = 56,
    AT_CHECKSUM = 120
};

static uint32_t get32(const unsigned char *p)
{
    uint32_t v;
    memcpy(&v, p, sizeof(v));
    return le32toh(v);
}

static uint64_t get64(const unsigned char *p)
{
    uint64_t v;
    memcpy(&v, p, sizeof(v));
    return le64toh(v);
}

static void put32(unsigned char *p, uint32_t v)
{
    v = htole32(v);
    memcpy(p, &v, sizeof(v));
}

static void put64(unsigned char *p, uint64_t v)
{
    v = htole64(v);
    memcpy(p, &v, sizeof(v));
}

uint64_t shd_token_file_mask_at(const shd_token_header *h)
{
    return SHD_TOKEN_HEADER_BYTES + (h->tokens * h->width + 7) / 8 * 8;
}

uint64_t shd_token_file_documents_at(const shd_token_header *h)
{
    return shd_token_file_mask_at(h) + (h->tokens + 63) / 64 * 8;
}

uint64_t shd_token_file_size(const shd_token_header *h)
{
    return shd_token_file_documents_at(h) + 8 * h->documents;
}

int shd_token_header_parse(const unsigned char bytes[SHD_TOKEN_HEADER_BYTES], uint64_t size,
                           shd_token_header *out, shd_error *err)
{
    if (memcmp(bytes + AT_MAGIC, magic, sizeof(magic)) != 0) {
        return shd_fail(err, SHD_EDATA, "not a token file");
    }
    if (get32(bytes + AT_VERSION) != SHD_TOKEN_FILE_VERSION) {
        return shd_fail(err, SHD_EDATA, "version %u of token files is unknown; version %u is known",
                        get32(bytes + AT_VERSION), SHD_TOKEN_FILE_VERSION);
    }
    if (get64(bytes + AT_CHECKSUM) != XXH3_64bits(bytes, AT_CHECKSUM)) {
        return shd_fail(err, SHD_EDATA, "the header of the token file is damaged");
    }
    *out = (shd_token_header){
        .width = get32(bytes + AT_WIDTH),
        .vocab = get32(bytes + AT_VOCAB),
        .max_id = get32(bytes + AT_MAX_ID),
        .tokens = get64(bytes + AT_TOKENS),
        .documents = get64(bytes + AT_DOCUMENTS),
        .key = {get64(bytes + AT_KEY), get64(bytes + AT_KEY + 8)},
        .content = {get64(bytes + AT_CONTENT), get64(bytes + AT_CONTENT + 8)},
    };
    if ((out->width != 2 && out->width != 4) || out->tokens == 0 || out->tokens > size ||
        out->documents == 0 || out->documents > out->tokens || out->max_id >= out->vocab ||
        shd_token_file_size(out) != size) {
        return shd_fail(err, SHD_EDATA,
                        "the token file's header promises %llu tokens of %u bytes in %llu "
                        "documents; the file has %llu bytes",
                        (unsigned long long)out->tokens, out->width,
                        (unsigned long long)out->documents, (unsigned long long)size);
    }
    return 0;
}

void shd_token_header_write(const shd_token_header *h, unsigned char bytes[SHD_TOKEN_HEADER_BYTES])
{
    memset(bytes, 0, SHD_TOKEN_HEADER_BYTES);
    memcpy(bytes + AT_MAGIC, magic, sizeof(magic));
    put32(bytes + AT_VERSION, SHD_TOKEN_FILE_VERSION);
    put32(bytes + AT_WIDTH, h->width);
    put32(bytes + AT_VOCAB, h->vocab);
    put32(bytes + AT_MAX_ID, h->max_id);
    put64(bytes + AT_TOKENS, h->tokens);
    put64(bytes + AT_DOCUMENTS, h->documents);
    put64(bytes + AT_KEY, h->key[0]);
    put64(bytes + AT_KEY + 8, h->key[1]);
    put64(bytes + AT_CONTENT, h->content[0]);
    put64(bytes + AT_CONTENT + 8, h->content[1]);
    put64(bytes + AT_CHECKSUM, XXH3_64bits(bytes, AT_CHECKSUM));
}

/* ---- writing ---- */

/* Buffered appending to a file. */
typedef struct sink {
    int fd;
    unsigned char *buffer;
    size_t n;
    uint64_t size; /* flushed */
} sink;

struct shd_token_writer {
    shd_token_header header;
    sink tokens, mask, documents;
    XXH3_state_t *hash;
    uint64_t bits; /* of the mask, the word in the making */
    int fresh;     /* the next token begins a document */
};

static int write_all(int fd, const void *bytes, size_t n, uint64_t at, shd_error *err)
{
    for (const char *p = bytes; n > 0;) {
        const ssize_t put = pwrite(fd, p, n, (off_t)at);
        if (put < 0 && errno == EINTR) {
            continue;
        }
        if (put <= 0) {
            return shd_fail(err, SHD_EIO, "cannot write the cached tokens: %s",
                            put < 0 ? strerror(errno) : "nothing is written");
        }
        p += put;
        n -= (size_t)put;
        at += (uint64_t)put;
    }
    return 0;
}

static int flush(sink *s, shd_error *err)
{
    SHD_TRY(write_all(s->fd, s->buffer, s->n, s->size, err));
    s->size += s->n;
    s->n = 0;
    return 0;
}

/* n <= 8 */
static int append(sink *s, const void *bytes, size_t n, shd_error *err)
{
    if (s->n + n > BUFFER) {
        SHD_TRY(flush(s, err));
    }
    memcpy(s->buffer + s->n, bytes, n);
    s->n += n;
    return 0;
}

static int append64(sink *s, uint64_t value, shd_error *err)
{
    unsigned char bytes[8];
    put64(bytes, value);
    return append(s, bytes, sizeof(bytes), err);
}

static int unnamed_file(int dir, int *out, shd_error *err)
{
    *out = openat(dir, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    return *out >= 0
               ? 0
               : shd_fail(err, SHD_EIO, "cannot write the cached tokens: %s", strerror(errno));
}

int shd_token_writer_create(int fd, int dir, uint32_t vocab, const uint64_t key[2],
                            shd_token_writer **out, shd_error *err)
{
    shd_token_writer *w = shd_calloc(1, sizeof(*w));
    w->header = (shd_token_header){
        .width = vocab <= 65536 ? 2 : 4, .vocab = vocab, .key = {key[0], key[1]}};
    w->tokens = (sink){.fd = fd, .buffer = shd_malloc(BUFFER), .size = SHD_TOKEN_HEADER_BYTES};
    w->mask = (sink){.fd = -1, .buffer = shd_malloc(BUFFER)};
    w->documents = (sink){.fd = -1, .buffer = shd_malloc(BUFFER)};
    w->hash = XXH3_createState();
    if (w->hash == NULL) {
        abort();
    }
    XXH3_128bits_reset(w->hash);
    int rc = unnamed_file(dir, &w->mask.fd, err);
    rc = rc == 0 ? unnamed_file(dir, &w->documents.fd, err) : rc;
    if (rc < 0) {
        shd_token_writer_free(w);
        return rc;
    }
    *out = w;
    return 0;
}

void shd_token_writer_free(shd_token_writer *w)
{
    if (w == NULL) {
        return;
    }
    sink *const own[] = {&w->mask, &w->documents};
    for (int i = 0; i < 2; i++) {
        if (own[i]->fd >= 0) {
            close(own[i]->fd);
        }
    }
    free(w->tokens.buffer);
    free(w->mask.buffer);
    free(w->documents.buffer);
    XXH3_freeState(w->hash);
    free(w);
}

int shd_token_writer_document(shd_token_writer *w, shd_error *err)
{
    if (!w->fresh) {
        w->fresh = 1;
        w->header.documents++;
        return append64(&w->documents, w->header.tokens, err);
    }
    return 0;
}

int shd_token_writer_put(shd_token_writer *w, const int32_t *ids, size_t n, int masked,
                         shd_error *err)
{
    for (size_t i = 0; i < n; i++) {
        unsigned char bytes[4];
        put32(bytes, (uint32_t)ids[i]); /* the low bytes come first */
        w->header.max_id =
            (uint32_t)ids[i] > w->header.max_id ? (uint32_t)ids[i] : w->header.max_id;
        SHD_TRY(append(&w->tokens, bytes, w->header.width, err));
        w->bits |= (uint64_t)(masked || w->fresh) << (w->header.tokens % 64);
        w->fresh = 0;
        if (++w->header.tokens % 64 == 0) {
            SHD_TRY(append64(&w->mask, w->bits, err));
            w->bits = 0;
        }
    }
    return 0;
}

/* Appends what is in `from` to the file. */
static int copy(shd_token_writer *w, sink *from, shd_error *err)
{
    SHD_TRY(flush(from, err));
    for (uint64_t at = 0; at < from->size;) {
        const uint64_t left = from->size - at;
        const ssize_t got = pread(from->fd, from->buffer, left < BUFFER ? left : BUFFER, (off_t)at);
        if (got <= 0) {
            return shd_fail(err, SHD_EIO, "cannot read the cached tokens back: %s",
                            got < 0 ? strerror(errno) : "they are cut off");
        }
        SHD_TRY(write_all(w->tokens.fd, from->buffer, (size_t)got, w->tokens.size, err));
        w->tokens.size += (uint64_t)got;
        at += (uint64_t)got;
    }
    return 0;
}

/* XXH3 of everything behind the header, as it lies in the file. */
static int hash_file(shd_token_writer *w, shd_error *err)
{
    for (uint64_t at = SHD_TOKEN_HEADER_BYTES; at < w->tokens.size;) {
        const uint64_t left = w->tokens.size - at;
        const ssize_t got =
            pread(w->tokens.fd, w->tokens.buffer, left < BUFFER ? left : BUFFER, (off_t)at);
        if (got <= 0) {
            return shd_fail(err, SHD_EIO, "cannot read the cached tokens back: %s",
                            got < 0 ? strerror(errno) : "they are cut off");
        }
        XXH3_128bits_update(w->hash, w->tokens.buffer, (size_t)got);
        at += (uint64_t)got;
    }
    const XXH128_hash_t hash = XXH3_128bits_digest(w->hash);
    w->header.content[0] = hash.low64;
    w->header.content[1] = hash.high64;
    return 0;
}

int shd_token_writer_finish(shd_token_writer *w, shd_token_header *out, shd_error *err)
{
    static const unsigned char zeros[8] = {0};
    unsigned char bytes[SHD_TOKEN_HEADER_BYTES];
    const shd_token_header *h = &w->header;
    if (h->tokens == 0) {
        return shd_fail(err, SHD_EDATA, "no tokens");
    }
    const uint64_t written = SHD_TOKEN_HEADER_BYTES + h->tokens * h->width;
    SHD_TRY(append(&w->tokens, zeros, shd_token_file_mask_at(h) - written, err));
    if (h->tokens % 64 != 0) {
        SHD_TRY(append64(&w->mask, w->bits, err));
    }
    SHD_TRY(flush(&w->tokens, err));
    SHD_TRY(copy(w, &w->mask, err));
    SHD_TRY(copy(w, &w->documents, err));
    SHD_TRY(hash_file(w, err));
    shd_token_header_write(h, bytes);
    SHD_TRY(write_all(w->tokens.fd, bytes, sizeof(bytes), 0, err));
    if (fsync(w->tokens.fd) < 0) {
        return shd_fail(err, SHD_EIO, "cannot write the cached tokens: %s", strerror(errno));
    }
    *out = *h;
    return 0;
}
