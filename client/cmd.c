/* What the commands share: errors, and the connection. */
#include "client/cmd.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/mem.h"
#include "client/units.h"

enum { GRPC_DEADLINE_EXCEEDED = 4, GRPC_CANCELLED = 1, GRPC_UNAVAILABLE = 14 };

static void say(const char *message)
{
    shc_buf line = {0};

    fflush(stdout);
    shc_buf_puts(&line, "shardctl: ");
    shc_text_clean(&line, message);
    shc_buf_puts(&line, "\n");
    shc_buf_flush(&line, stderr);
    shc_buf_fini(&line);
}

int shc_complain(const shc_error *err)
{
    say(err->message);
    switch (err->grpc_status) {
    case GRPC_UNAVAILABLE:
    case GRPC_DEADLINE_EXCEEDED:
        return SHC_EXIT_UNREACHABLE;
    case GRPC_CANCELLED: /* the job was, or this command */
        return SHC_EXIT_JOB_FAILED;
    default:
        return SHC_EXIT_REFUSED;
    }
}

int shc_usage(const char *fmt, ...)
{
    va_list ap;
    char *message = NULL;

    va_start(ap, fmt);
    if (vasprintf(&message, fmt, ap) < 0)
        abort();
    va_end(ap);
    say(message);
    free(message);
    return SHC_EXIT_USAGE;
}

int shc_env_connect(shc_env *env)
{
    shc_error err;

    env->client = shc_connect(env->socket, &err);
    if (!env->client)
        return shc_usage("%s", err.message);
    shc_set_interrupt(env->client, env->interrupt);
    return 0;
}
