/* The client: one lazy channel to the socket, one completion queue, and clear words for what can
 * go wrong on the way. */
#include <ctype.h>
#include <errno.h>
#include <grpc/grpc_security.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "client/buf.h"
#include "client/internal.h"
#include "client/mem.h"

enum { DEFAULT_TIMEOUT_MS = 60000, GREETING_MS = 20000, MAX_MESSAGE = 64 << 20 };

int shc_fail(shc_error *err, int shd_errno, int grpc_status, const char *fmt, ...)
{
    if (err) {
        va_list ap;
        va_start(ap, fmt);
        err->shd_errno = shd_errno;
        err->grpc_status = grpc_status;
        vsnprintf(err->message, sizeof err->message, fmt, ap);
        va_end(ap);
    }
    return shd_errno;
}

int shc_fail_interrupted(shc_error *err)
{
    return shc_fail(err, SHD_ECANCELLED, GRPC_STATUS_CANCELLED,
                    "interrupted before the daemon had answered; try again");
}

/* gRPC reads the address as a URI: what is special there is escaped. */
static char *socket_uri(const char *path)
{
    shc_buf uri = {0};

    shc_buf_puts(&uri, "unix:");
    for (const unsigned char *p = (const unsigned char *)path; *p; p++) {
        if (isalnum(*p) || strchr("/._-~", *p))
            shc_buf_add(&uri, (const char *)p, 1);
        else
            shc_buf_printf(&uri, "%%%02X", *p);
    }
    return uri.data;
}

static char *absolute_path(const char *path)
{
    if (path[0] == '/')
        return shc_strdup(path);
    char *cwd = getcwd(NULL, 0);
    char *out = shc_asprintf("%s/%s", cwd ? cwd : ".", path);
    free(cwd);
    return out;
}

shc_client *shc_connect(const char *socket_path, shc_error *err)
{
    struct sockaddr_un addr;

    if (!socket_path[0]) {
        shc_fail(err, SHD_EINVAL, GRPC_STATUS_INVALID_ARGUMENT,
                 "the socket path is empty; give the path of the daemon's socket");
        return NULL;
    }
    char *path = absolute_path(socket_path);
    if (strlen(path) >= sizeof addr.sun_path) {
        shc_fail(err, SHD_EINVAL, GRPC_STATUS_INVALID_ARGUMENT,
                 "the socket path %s has %zu bytes, more than the %zu the system takes; "
                 "use a shorter one",
                 path, strlen(path), sizeof addr.sun_path - 1);
        free(path);
        return NULL;
    }

    grpc_init();
    /* Reconnect at once: the peer is on this machine. But give a connection time to be greeted: the
     * one that systemd holds for a daemon that starts, or a daemon on a busy machine. Nothing is
     * sent twice behind our back. */
    grpc_arg args[] = {
        {.type = GRPC_ARG_INTEGER,
         .key = (char *)GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS,
         .value.integer = 100},
        {.type = GRPC_ARG_INTEGER,
         .key = (char *)GRPC_ARG_MIN_RECONNECT_BACKOFF_MS,
         .value.integer = GREETING_MS},
        {.type = GRPC_ARG_INTEGER,
         .key = (char *)GRPC_ARG_MAX_RECONNECT_BACKOFF_MS,
         .value.integer = 500},
        {.type = GRPC_ARG_INTEGER, .key = (char *)GRPC_ARG_ENABLE_RETRIES, .value.integer = 0},
        {.type = GRPC_ARG_INTEGER, .key = (char *)GRPC_ARG_ENABLE_HTTP_PROXY, .value.integer = 0},
        {.type = GRPC_ARG_INTEGER,
         .key = (char *)GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL,
         .value.integer = 1},
        {.type = GRPC_ARG_INTEGER,
         .key = (char *)GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH,
         .value.integer = MAX_MESSAGE},
    };
    const grpc_channel_args channel_args = {.num_args = sizeof args / sizeof *args, .args = args};

    shc_client *client = shc_calloc(1, sizeof *client);
    client->path = path;
    client->timeout_ms = DEFAULT_TIMEOUT_MS;
    client->cq = grpc_completion_queue_create_for_pluck(NULL);
    grpc_channel_credentials *creds = grpc_insecure_credentials_create();
    char *uri = socket_uri(path);
    client->channel = grpc_channel_create(uri, creds, &channel_args);
    free(uri);
    grpc_channel_credentials_release(creds);
    return client;
}

void shc_close(shc_client *client)
{
    if (!client)
        return;
    grpc_channel_destroy(client->channel);
    grpc_completion_queue_shutdown(client->cq);
    grpc_completion_queue_destroy(client->cq);
    free(client->path);
    free(client);
    grpc_shutdown();
}

void shc_set_timeout(shc_client *client, int64_t ms)
{
    client->timeout_ms = ms > 0 ? ms : 0;
}

void shc_set_interrupt(shc_client *client, const volatile sig_atomic_t *flag)
{
    client->interrupt = flag;
}

int shc_probe(const shc_client *client, shc_error *err)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    memcpy(addr.sun_path, client->path, strlen(client->path));

    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    int rc = fd < 0 ? -1 : connect(fd, (struct sockaddr *)&addr, sizeof addr);
    int why = errno;
    if (fd >= 0)
        close(fd);
    if (!rc || why == EAGAIN || why == EINPROGRESS)
        return 0;

    const char *what = strerror(why), *todo = "check the path";
    if (why == ENOENT) {
        what = "there is no such socket";
        todo = "start shardd, or give the path of its socket";
    } else if (why == ECONNREFUSED) {
        what = "nobody listens on the socket";
        todo = "start shardd";
    } else if (why == EACCES || why == EPERM) {
        what = "permission denied";
        todo = "ask for membership of the group that owns the socket";
    } else if (why == ENOTSOCK || why == EPROTOTYPE) {
        what = "it is not a socket that shardd made";
        todo = "give the path of its socket";
    }
    return shc_fail(err, SHD_EUNAVAILABLE, GRPC_STATUS_UNAVAILABLE,
                    "cannot reach shardd at %s: %s; %s", client->path, what, todo);
}

void shc_outcome_init(shc_outcome *status)
{
    status->code = GRPC_STATUS_OK;
    status->details = grpc_empty_slice();
    grpc_metadata_array_init(&status->trailers);
}

void shc_outcome_fini(shc_outcome *status)
{
    grpc_slice_unref(status->details);
    grpc_metadata_array_destroy(&status->trailers);
}

static int errno_of_status(grpc_status_code code)
{
    switch (code) {
    case GRPC_STATUS_OK:
        return SHD_OK;
    case GRPC_STATUS_CANCELLED:
        return SHD_ECANCELLED;
    case GRPC_STATUS_INVALID_ARGUMENT:
    case GRPC_STATUS_OUT_OF_RANGE:
        return SHD_EINVAL;
    case GRPC_STATUS_DEADLINE_EXCEEDED:
        return SHD_ETIMEOUT;
    case GRPC_STATUS_NOT_FOUND:
        return SHD_ENOTFOUND;
    case GRPC_STATUS_ALREADY_EXISTS:
        return SHD_EEXIST;
    case GRPC_STATUS_PERMISSION_DENIED:
    case GRPC_STATUS_UNAUTHENTICATED:
        return SHD_EPERM;
    case GRPC_STATUS_RESOURCE_EXHAUSTED:
        return SHD_EFULL;
    case GRPC_STATUS_FAILED_PRECONDITION:
        return SHD_ESTATE;
    case GRPC_STATUS_ABORTED:
        return SHD_ECOMM;
    case GRPC_STATUS_UNIMPLEMENTED:
        return SHD_EUNSUPPORTED;
    case GRPC_STATUS_UNAVAILABLE:
        return SHD_EUNAVAILABLE;
    default:
        return SHD_EINTERNAL;
    }
}

/* The number in the trailer "shd-errno", or 0. */
static int trailer_errno(const grpc_metadata_array *trailers)
{
    for (size_t i = 0; i < trailers->count; i++) {
        const grpc_metadata *m = &trailers->metadata[i];
        if (grpc_slice_str_cmp(m->key, "shd-errno"))
            continue;
        char text[16] = "";
        size_t n = GRPC_SLICE_LENGTH(m->value);
        if (n >= sizeof text)
            return 0;
        memcpy(text, GRPC_SLICE_START_PTR(m->value), n);
        return -abs(atoi(text));
    }
    return 0;
}

int shc_outcome_error(const shc_client *client, const shc_outcome *status, int64_t timeout_ms,
                      shc_error *err)
{
    if (status->code == GRPC_STATUS_OK)
        return 0;
    const int number = trailer_errno(&status->trailers);
    const int n = (int)GRPC_SLICE_LENGTH(status->details);
    const char *details = (const char *)GRPC_SLICE_START_PTR(status->details);
    if (number)
        return shc_fail(err, number, (int)status->code, "%.*s", n, details);

    /* Not the daemon's words: gRPC's own, which few can read. It cancels calls when it stops. */
    if (status->code == GRPC_STATUS_UNAVAILABLE || status->code == GRPC_STATUS_CANCELLED) {
        if (shc_probe(client, err))
            return SHD_EUNAVAILABLE;
        return shc_fail(err, SHD_EUNAVAILABLE, GRPC_STATUS_UNAVAILABLE,
                        "lost the connection to shardd at %s (%.*s); try again", client->path, n,
                        details);
    }
    if (status->code == GRPC_STATUS_DEADLINE_EXCEEDED)
        return shc_fail(err, SHD_ETIMEOUT, GRPC_STATUS_DEADLINE_EXCEEDED,
                        "shardd at %s gave no answer within %.1f s; look at its log or try again",
                        client->path, (double)timeout_ms / 1000);
    /* The daemon's side of gRPC refuses a request by its length, before any of our code sees it. */
    unsigned size, limit;
    char words[128];
    snprintf(words, sizeof words, "%.*s", n, details);
    if (status->code == GRPC_STATUS_RESOURCE_EXHAUSTED &&
        sscanf(words, "Received message larger than max (%u vs. %u)", &size, &limit) == 2)
        return shc_fail(err, SHD_EFULL, GRPC_STATUS_RESOURCE_EXHAUSTED,
                        "the message has %u bytes, more than the %u that are accepted "
                        "(the daemon's max_message); send a smaller one",
                        size, limit);
    return shc_fail(err, errno_of_status(status->code), (int)status->code, "%.*s (gRPC status %d)",
                    n, details, (int)status->code);
}
