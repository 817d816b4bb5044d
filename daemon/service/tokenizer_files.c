#include "daemon/service/tokenizer_files.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/base/mem.h"
#include "daemon/base/text.h"

/* All of a file; *bytes is to be freed. */
static int read_file(const shd_opener *o, const char *path, char **bytes, size_t *size,
                     shd_error *err)
{
    int fd;
    struct stat st;
    SHD_TRY(shd_auth_open(o->who, o->roots, o->n_roots, path, &fd, err));
    if (fstat(fd, &st) < 0 || st.st_size > (off_t)SHD_TOKENIZER_FILE_MAX) {
        close(fd);
        return shd_fail(err, SHD_EDATA, "'%s' has more than %u bytes, too many for a tokenizer",
                        path, SHD_TOKENIZER_FILE_MAX);
    }
    size_t n = 0;
    ssize_t got = 1;
    char *to = shd_malloc((size_t)st.st_size + 1);
    while (got != 0 && n < (size_t)st.st_size) {
        got = read(fd, to + n, (size_t)st.st_size - n);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got < 0) {
            const int number = errno;
            close(fd);
            free(to);
            return shd_fail(err, SHD_EIO, "cannot read '%s': %s", path, strerror(number));
        }
        n += (size_t)got;
    }
    close(fd);
    *bytes = to;
    *size = n;
    return SHD_OK;
}

/* As read_file, of `name` beside `file`; *bytes is NULL when it is not there. */
static int read_beside(const shd_opener *o, const char *file, const char *name, char **bytes,
                       size_t *size, shd_error *err)
{
    char *path = shd_asprintf("%.*s/%s", (int)(strrchr(file, '/') - file), file, name);
    const int rc = read_file(o, path, bytes, size, err);
    free(path);
    return rc == SHD_ENOTFOUND ? SHD_OK : rc;
}

/* `file` is a path of tokenizer.json or tokenizer.model. */
static int open_file(const shd_opener *o, const char *file, shd_tokenizer **out, shd_error *err)
{
    char *bytes = NULL, *config = NULL, *added = NULL;
    size_t size = 0;
    shd_tokenizer_files files = {.path = file};
    int rc = read_file(o, file, &bytes, &size, err);
    if (rc == SHD_OK) {
        rc = read_beside(o, file, "tokenizer_config.json", &config, &files.config_size, err);
    }
    if (rc == SHD_OK && shd_ends_with(file, ".model")) { /* a tokenizer.json has them itself */
        rc = read_beside(o, file, "added_tokens.json", &added, &files.added_size, err);
    }
    if (rc == SHD_OK) {
        files.config = config;
        files.added = added;
        if (shd_ends_with(file, ".json")) {
            files.json = bytes;
            files.json_size = size;
        } else {
            files.model = bytes;
            files.model_size = size;
        }
        rc = shd_tokenizer_create(&files, out, err);
    }
    free(bytes);
    free(config);
    free(added);
    return rc;
}

/* A tokenizer.json that is no byte-level BPE was made from the tokenizer.model beside it. */
int shd_tokenizer_open_dir(const shd_opener *o, const char *dir, shd_tokenizer **out,
                           shd_error *err)
{
    shd_error why;
    char *json = shd_asprintf("%s/tokenizer.json", dir);
    char *model = shd_asprintf("%s/tokenizer.model", dir);
    int rc = open_file(o, json, out, err);
    if (rc == SHD_ENOTFOUND || rc == SHD_EUNSUPPORTED) {
        const int other = open_file(o, model, out, &why);
        if (other == SHD_OK) {
            rc = SHD_OK;
        } else if (other != SHD_ENOTFOUND) {
            *err = why;
            rc = other;
        } else if (rc == SHD_ENOTFOUND) {
            rc = shd_fail(err, rc, "'%s' has neither tokenizer.json nor tokenizer.model", dir);
        }
    }
    free(json);
    free(model);
    return rc;
}

int shd_tokenizer_is_file(const char *name)
{
    return shd_ends_with(name, ".json") || shd_ends_with(name, ".model");
}

int shd_tokenizer_open(const shd_opener *opener, const char *name, shd_tokenizer **out,
                       shd_error *err)
{
    if (strcmp(name, "bytes") == 0) {
        *out = shd_tokenizer_bytes();
        return SHD_OK;
    }
    if (name[0] != '/') {
        return shd_fail(err, SHD_EINVAL,
                        "tokenizer '%s' is neither 'bytes' nor an absolute path of a file or "
                        "directory",
                        name);
    }
    if (shd_tokenizer_is_file(name)) {
        return open_file(opener, name, out, err);
    }
    return shd_tokenizer_open_dir(opener, name, out, err);
}
