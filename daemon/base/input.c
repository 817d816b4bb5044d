/* Files that must not change while they are read; see input.h. Floor F0. */
#include "daemon/base/input.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/base/mem.h"

static int fail_changed(const shd_input *input, shd_error *err)
{
    return shd_fail(err, SHD_EDATA,
                    "'%s' has changed since it was opened; start a new job on the new file",
                    input->path);
}

int shd_input_open(shd_input *input, int fd, const char *path, shd_error *err)
{
    struct stat st;
    *input = (shd_input){.fd = fd, .path = shd_strdup(path)};
    int rc = 0;
    if (fstat(fd, &st) != 0) {
        rc = shd_fail(err, SHD_EIO, "cannot stat '%s': %s", path, strerror(errno));
    } else if (!S_ISREG(st.st_mode)) {
        rc = shd_fail(err, SHD_EDATA, "'%s' is not a regular file", path);
    } else {
        input->size = (uint64_t)st.st_size;
        input->mtime = st.st_mtim;
    }
    if (rc < 0) {
        shd_input_fini(input);
    }
    return rc;
}

void shd_input_close(shd_input *input)
{
    if (input->fd >= 0) {
        close(input->fd);
    }
    input->fd = -1;
}

void shd_input_fini(shd_input *input)
{
    shd_input_close(input);
    free(input->path);
    *input = (shd_input){.fd = -1};
}

int shd_input_check(const shd_input *input, shd_error *err)
{
    struct stat st;
    if (fstat(input->fd, &st) != 0) {
        return shd_fail(err, SHD_EIO, "cannot stat '%s': %s", input->path, strerror(errno));
    }
    if ((uint64_t)st.st_size != input->size || st.st_mtim.tv_sec != input->mtime.tv_sec ||
        st.st_mtim.tv_nsec != input->mtime.tv_nsec) {
        return fail_changed(input, err);
    }
    return 0;
}

int shd_input_read(const shd_input *input, void *out, uint64_t bytes, uint64_t offset,
                   shd_error *err)
{
    if (offset > input->size || bytes > input->size - offset) {
        return shd_fail(err, SHD_EINVAL, "'%s' has %llu bytes; %llu from byte %llu on are more",
                        input->path, (unsigned long long)input->size, (unsigned long long)bytes,
                        (unsigned long long)offset);
    }
    for (char *p = out; bytes > 0;) {
        const ssize_t got = pread(input->fd, p, bytes, (off_t)offset);
        if (got < 0) {
            if (errno == EINTR) {
                continue;
            }
            return shd_fail(err, SHD_EIO, "cannot read '%s': %s", input->path, strerror(errno));
        }
        if (got == 0) {
            return fail_changed(input, err);
        }
        p += got;
        offset += (uint64_t)got;
        bytes -= (uint64_t)got;
    }
    return shd_input_check(input, err);
}
