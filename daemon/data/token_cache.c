/* The cache of token files; see token_cache.h. Floor F3. */
#include "daemon/data/token_cache.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "daemon/base/log.h"
#include "daemon/base/mem.h"
#include "daemon/data/digest.h"
#include "daemon/data/documents.h"
#include "daemon/data/token_file.h"

#define CHUNK (1u << 20)
#define SECRET_BYTES SHD_DIGEST_KEY_BYTES
#define SECRET_NAME "secret"
#define SUFFIX ".tokens"
#define ASIDE "new-" /* begin of the names of files in the making */
#define NAME_BYTES 64

struct shd_token_cache {
    int dir;
    uint64_t limit;
    unsigned char secret[SECRET_BYTES];
    atomic_uint made; /* numbers names aside */
    pthread_mutex_t trim;
};

static int system_error(shd_error *err, const char *what)
{
    return shd_fail(err, SHD_EIO, "%s: %s", what, strerror(errno));
}

/* ---- the directory ---- */

static int read_secret(shd_token_cache *c, shd_error *err)
{
    int fd = openat(c->dir, SECRET_NAME, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd >= 0) {
        const ssize_t got = read(fd, c->secret, SECRET_BYTES);
        close(fd);
        if (got == SECRET_BYTES) {
            return 0;
        }
        unlinkat(c->dir, SECRET_NAME, 0); /* torn: every file becomes a stranger */
    }
    size_t have = 0;
    while (have < SECRET_BYTES) {
        const ssize_t got = getrandom(c->secret + have, SECRET_BYTES - have, 0);
        have += got > 0 ? (size_t)got : 0;
    }
    fd = openat(c->dir, ASIDE SECRET_NAME, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW,
                0600);
    const int good = fd >= 0 && write(fd, c->secret, SECRET_BYTES) == SECRET_BYTES &&
                     fsync(fd) == 0 &&
                     renameat(c->dir, ASIDE SECRET_NAME, c->dir, SECRET_NAME) == 0;
    const int rc = good ? 0 : system_error(err, "cannot write to the token cache");
    if (fd >= 0) {
        close(fd);
    }
    return rc;
}

/* A stream over the directory, from its begin; NULL: errno. */
static DIR *list(const shd_token_cache *c)
{
    const int fd = openat(c->dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *stream = fd >= 0 ? fdopendir(fd) : NULL;
    if (stream == NULL && fd >= 0) {
        close(fd);
    }
    return stream;
}

static void delete_left_overs(const shd_token_cache *c)
{
    DIR *stream = list(c);
    for (struct dirent *e; stream != NULL && (e = readdir(stream)) != NULL;) {
        if (strncmp(e->d_name, ASIDE, strlen(ASIDE)) == 0) {
            unlinkat(c->dir, e->d_name, 0);
        }
    }
    if (stream != NULL) {
        closedir(stream);
    }
}

int shd_token_cache_open(int dir, const char *name, uint64_t limit, shd_token_cache **out,
                         shd_error *err)
{
    if (mkdirat(dir, name, 0700) < 0 && errno != EEXIST) {
        return system_error(err, "cannot make the token cache");
    }
    shd_token_cache *c = shd_calloc(1, sizeof(*c));
    pthread_mutex_init(&c->trim, NULL);
    c->limit = limit;
    c->dir = openat(dir, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    int rc = c->dir >= 0 ? 0 : system_error(err, "cannot open the token cache");
    if (rc == 0) {
        delete_left_overs(c);
        rc = read_secret(c, err);
    }
    if (rc < 0) {
        shd_token_cache_free(c);
        return rc;
    }
    *out = c;
    return 0;
}

void shd_token_cache_free(shd_token_cache *c)
{
    if (c != NULL) {
        if (c->dir >= 0) {
            close(c->dir);
        }
        pthread_mutex_destroy(&c->trim);
        free(c);
    }
}

static int is_token_file(const char *name)
{
    const size_t n = strlen(name), suffix = strlen(SUFFIX);
    return n > suffix && strcmp(name + n - suffix, SUFFIX) == 0;
}

/* Deletes the file that was used longest ago but `keep`, when all take more than the limit. 1: it
 * did. Reading marks the time of access, whatever the mount says of it. */
static int trim_one(const shd_token_cache *c, const char *keep)
{
    char oldest[NAME_BYTES] = "";
    struct timespec used = {0, 0};
    uint64_t all = 0;
    DIR *stream = list(c);
    for (struct dirent *e; stream != NULL && (e = readdir(stream)) != NULL;) {
        struct stat st;
        if (!is_token_file(e->d_name) || strlen(e->d_name) >= sizeof(oldest) ||
            fstatat(c->dir, e->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0) {
            continue;
        }
        all += (uint64_t)st.st_size;
        const int older = oldest[0] == '\0' || st.st_atim.tv_sec < used.tv_sec ||
                          (st.st_atim.tv_sec == used.tv_sec && st.st_atim.tv_nsec < used.tv_nsec);
        if (older && strcmp(e->d_name, keep) != 0) {
            memcpy(oldest, e->d_name, strlen(e->d_name) + 1);
            used = st.st_atim;
        }
    }
    if (stream != NULL) {
        closedir(stream);
    }
    if (all <= c->limit || oldest[0] == '\0' || unlinkat(c->dir, oldest, 0) < 0) {
        return 0;
    }
    shd_log(SHD_LOG_INFO, "token cache: %s is deleted: %llu bytes were more than %llu", oldest,
            (unsigned long long)all, (unsigned long long)c->limit);
    return 1;
}

static void trim(shd_token_cache *c, const char *keep)
{
    pthread_mutex_lock(&c->trim);
    while (c->limit > 0 && trim_one(c, keep)) {
    }
    pthread_mutex_unlock(&c->trim);
}

void shd_token_progress_get(const shd_token_progress *progress, uint64_t *done, uint64_t *total)
{
    *done = __atomic_load_n(&progress->done, __ATOMIC_RELAXED);
    *total = __atomic_load_n(&progress->total, __ATOMIC_RELAXED);
}

void shd_token_progress_cancel(shd_token_progress *progress)
{
    __atomic_store_n(&progress->cancel, 1, __ATOMIC_RELAXED);
}

/* ---- the text ---- */

/* The text as it is read: counted, hashed, and cancelled in between. */
typedef struct text {
    int fd;
    const char *path;
    struct stat st;
    uint64_t at;
    shd_digest *digest;
    shd_token_progress *progress;
} text;

static int changed(const text *t, shd_error *err)
{
    return shd_fail(err, SHD_EDATA,
                    "'%s' changed while it was read; submit again when it is complete", t->path);
}

static int read_some(void *arg, char *buffer, size_t n, size_t *got, shd_error *err)
{
    text *t = arg;
    if (__atomic_load_n(&t->progress->cancel, __ATOMIC_RELAXED)) {
        return shd_fail(err, SHD_ECANCELLED, "tokenizing '%s' was cancelled", t->path);
    }
    n = n < CHUNK ? n : CHUNK;
    ssize_t have;
    do {
        have = pread(t->fd, buffer, n, (off_t)t->at);
    } while (have < 0 && errno == EINTR);
    if (have < 0) {
        return shd_fail(err, SHD_EIO, "cannot read '%s': %s", t->path, strerror(errno));
    }
    shd_digest_add(t->digest, buffer, (size_t)have);
    t->at += (uint64_t)have;
    *got = (size_t)have;
    __atomic_fetch_add(&t->progress->done, (uint64_t)have, __ATOMIC_RELAXED);
    return t->at > (uint64_t)t->st.st_size ? changed(t, err) : 0;
}

/* The file is what it was at the begin; `content` gets the digest of what was read, all of it. */
static int end_reading(text *t, unsigned char content[SHD_DIGEST_BYTES], shd_error *err)
{
    struct stat st;
    if (fstat(t->fd, &st) < 0) {
        return shd_fail(err, SHD_EIO, "cannot stat '%s': %s", t->path, strerror(errno));
    }
    if (t->at != (uint64_t)st.st_size || st.st_size != t->st.st_size ||
        st.st_mtim.tv_sec != t->st.st_mtim.tv_sec || st.st_mtim.tv_nsec != t->st.st_mtim.tv_nsec) {
        return changed(t, err);
    }
    shd_digest_take(t->digest, content);
    t->at = 0;
    return 0;
}

static int digest_text(text *t, unsigned char content[SHD_DIGEST_BYTES], shd_error *err)
{
    char *buffer = shd_malloc(CHUNK);
    size_t got = 1;
    int rc = 0;
    while (rc == 0 && got > 0) {
        rc = read_some(t, buffer, CHUNK, &got, err);
    }
    free(buffer);
    return rc == 0 ? end_reading(t, content, err) : rc;
}

/* What names the file: the text's digest, the tokenizer's, the format, and this file's version. */
static void make_key(const shd_token_cache *c, const unsigned char content[SHD_DIGEST_BYTES],
                     shd_data_format format, const shd_tokenizer *tok, uint64_t key[2])
{
    const uint32_t kinds[] = {SHD_TOKEN_FILE_VERSION, (uint32_t)format};
    const char *name = shd_tokenizer_name(tok);
    unsigned char all[SHD_DIGEST_BYTES];
    shd_digest *digest = shd_digest_create(c->secret, SECRET_BYTES);
    shd_digest_add_sized(digest, "name", 4); /* not the digest of a text */
    shd_digest_add(digest, kinds, sizeof(kinds));
    shd_digest_add(digest, content, SHD_DIGEST_BYTES);
    shd_digest_add_sized(digest, name, strlen(name));
    shd_digest_add_sized(digest, shd_tokenizer_digest(tok), SHD_TOKENIZER_DIGEST);
    shd_digest_take(digest, all);
    shd_digest_free(digest);
    memcpy(key, all, 2 * sizeof(*key));
}

/* ---- files ---- */

/* Is what lies in `fd` what its header says? */
static int verify(int fd, const uint64_t key[2], shd_error *err)
{
    unsigned char bytes[SHD_TOKEN_HEADER_BYTES];
    shd_token_header header;
    struct stat st;
    if (fstat(fd, &st) < 0 || pread(fd, bytes, sizeof(bytes), 0) != (ssize_t)sizeof(bytes)) {
        return shd_fail(err, SHD_EDATA, "it cannot be read");
    }
    SHD_TRY(shd_token_header_parse(bytes, (uint64_t)st.st_size, &header, err));
    char *buffer = shd_malloc(CHUNK);
    XXH3_state_t *state = XXH3_createState();
    if (state == NULL) {
        abort();
    }
    XXH3_128bits_reset(state);
    off_t at = sizeof(bytes);
    for (ssize_t got; (got = pread(fd, buffer, CHUNK, at)) > 0; at += got) {
        XXH3_128bits_update(state, buffer, (size_t)got);
    }
    const XXH128_hash_t hash = XXH3_128bits_digest(state);
    XXH3_freeState(state);
    free(buffer);
    return at == st.st_size && hash.low64 == header.content[0] &&
                   hash.high64 == header.content[1] && header.key[0] == key[0] &&
                   header.key[1] == key[1]
               ? 0
               : shd_fail(err, SHD_EDATA, "its contents are damaged");
}

/* The source of the file `name`; SHD_ENOTFOUND: there is no good one. */
static int open_file(shd_token_cache *c, const char *name, const uint64_t key[2], const text *t,
                     shd_source **out, shd_error *err)
{
    const int fd = openat(c->dir, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    shd_error why;
    if (fd < 0) {
        return SHD_ENOTFOUND;
    }
    int rc = verify(fd, key, &why);
    if (rc < 0) {
        shd_log(SHD_LOG_WARNING, "token cache: %s is deleted: %s", name, why.message);
        unlinkat(c->dir, name, 0);
        close(fd);
        return SHD_ENOTFOUND;
    }
    const struct timespec now[2] = {{0, UTIME_NOW}, {0, UTIME_OMIT}};
    futimens(fd, now);
    rc = shd_source_open(fd, name, SHD_DATA_TOKENS, out, err);
    close(fd);
    if (rc == 0) {
        rc = shd_source_bind(*out, t->fd, t->path, err);
        if (rc < 0) {
            shd_source_free(*out);
        }
    }
    return rc;
}

static int write_file(shd_token_cache *c, text *t, shd_data_format format, shd_tokenizer *tok,
                      const unsigned char content[SHD_DIGEST_BYTES], const uint64_t key[2], int fd,
                      shd_error *err)
{
    shd_token_writer *writer;
    shd_token_header header;
    unsigned char again[SHD_DIGEST_BYTES];
    SHD_TRY(shd_token_writer_create(fd, c->dir, shd_tokenizer_vocab(tok), key, &writer, err));
    int rc = shd_documents_write(read_some, t, format, tok, &t->progress->cancel, writer, err);
    if (rc == 0) {
        rc = end_reading(t, again, err);
    }
    if (rc == 0 && memcmp(again, content, SHD_DIGEST_BYTES) != 0) {
        rc = changed(t, err);
    }
    rc = rc == 0 ? shd_token_writer_finish(writer, &header, err) : rc;
    shd_token_writer_free(writer);
    /* Errors of the reading name the file already. */
    return rc == SHD_EDATA && err->message[0] != '\'' ? shd_error_prefix(err, rc, "'%s'", t->path)
                                                      : rc;
}

static int build(shd_token_cache *c, text *t, shd_data_format format, shd_tokenizer *tok,
                 const unsigned char content[SHD_DIGEST_BYTES], const uint64_t key[2],
                 const char *name, shd_error *err)
{
    char aside[NAME_BYTES];
    snprintf(aside, sizeof(aside), ASIDE "%u", atomic_fetch_add(&c->made, 1));
    const int fd = openat(c->dir, aside, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) {
        return system_error(err, "cannot write to the token cache");
    }
    int rc = write_file(c, t, format, tok, content, key, fd, err);
    close(fd);
    if (rc == 0 && (renameat(c->dir, aside, c->dir, name) < 0 || fsync(c->dir) < 0)) {
        rc = system_error(err, "cannot write to the token cache");
    }
    if (rc < 0) {
        unlinkat(c->dir, aside, 0);
    }
    return rc;
}

static int get(shd_token_cache *c, text *t, shd_data_format format, shd_tokenizer *tok,
               shd_source **out, shd_error *err)
{
    unsigned char content[SHD_DIGEST_BYTES];
    uint64_t key[2];
    char name[NAME_BYTES];
    if (fstat(t->fd, &t->st) < 0) {
        return shd_fail(err, SHD_EIO, "cannot stat '%s': %s", t->path, strerror(errno));
    }
    if (!S_ISREG(t->st.st_mode) || t->st.st_size == 0) {
        return shd_fail(err, SHD_EDATA, "'%s' is %s", t->path,
                        S_ISREG(t->st.st_mode) ? "empty" : "not a regular file");
    }
    __atomic_store_n(&t->progress->done, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&t->progress->total, 2 * (uint64_t)t->st.st_size, __ATOMIC_RELAXED);
    SHD_TRY(digest_text(t, content, err));
    make_key(c, content, format, tok, key);
    snprintf(name, sizeof(name), "%016llx%016llx" SUFFIX, (unsigned long long)key[1],
             (unsigned long long)key[0]);
    int rc = open_file(c, name, key, t, out, err);
    if (rc != SHD_ENOTFOUND) {
        return rc;
    }
    SHD_TRY(build(c, t, format, tok, content, key, name, err));
    rc = open_file(c, name, key, t, out, err);
    trim(c, name);
    return rc == SHD_ENOTFOUND ? shd_fail(err, SHD_EIO,
                                          "the token cache lost %s again; is the disk "
                                          "sound?",
                                          name)
                               : rc;
}

int shd_token_cache_get(shd_token_cache *c, int fd, const char *path, shd_data_format format,
                        shd_tokenizer *tok, shd_token_progress *progress, shd_source **out,
                        shd_error *err)
{
    shd_error own;
    text t = {.fd = fd,
              .path = path,
              .progress = progress,
              .digest = shd_digest_create(c->secret, SECRET_BYTES)};
    const int rc = get(c, &t, format, tok, out, err != NULL ? err : &own);
    shd_digest_free(t.digest);
    return rc;
}
