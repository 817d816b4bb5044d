/* RPCs between gRPC core and the loop: a completion-queue thread decodes nothing and decides
 * nothing, it moves calls to the loop; handlers run on the loop thread. Floor F5.
 *
 * A handler gets a call and its decoded request and answers now or later, exactly once, with
 * reply / fail / end. It never blocks. */
#ifndef SHD_DAEMON_SERVICE_RPC_H
#define SHD_DAEMON_SERVICE_RPC_H

#include <protobuf-c/protobuf-c.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

#include "daemon/base/err.h"
#include "daemon/service/auth.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct shd_call shd_call;
typedef struct shd_rpc shd_rpc;

/* `service` is the pointer registered with the method table. The request lives until the handler
 * returns. */
typedef void (*shd_rpc_handler)(shd_call *call, const ProtobufCMessage *request, void *service);

typedef struct shd_rpc_method {
    const char *path; /* "/shard.v1.Shard/CreateJob" */
    const ProtobufCMessageDescriptor *request;
    shd_rpc_handler handler;
    int server_stream;
} shd_rpc_method;

typedef struct shd_rpc_limits {
    size_t max_message;       /* bytes of one request; larger: RESOURCE_EXHAUSTED. What arrives on
                                 all connections together may hold 4 times that (and 256 KiB a
                                 connection): beyond, gRPC cancels calls that are arriving.
                                 Large answers that wait for their clients to read them: of one
                                 user twice that, of all 4 times; beyond, RESOURCE_EXHAUSTED */
    uint32_t max_connections; /* further ones are closed at once, with a log line; one user other
                                 than root and the daemon's own may hold 3/4 of them */
    uint32_t max_calls;       /* calls in flight per connection; further ones: RESOURCE_EXHAUSTED */
    size_t max_stream_buffer; /* bytes waiting on a slow stream before shd_call_writable says no;
                                 8 KiB while max_message bytes wait on all streams of its user */
} shd_rpc_limits;

/* Starts gRPC core, its completion-queue thread and the method tables. Loop thread. */
int shd_rpc_create(uv_loop_t *loop, const shd_rpc_limits *limits, shd_rpc **out, shd_error *err);

/* Registers a const table (borrowed) with its service pointer; before the first connection. */
void shd_rpc_add_methods(shd_rpc *rpc, const shd_rpc_method *methods, size_t n, void *service);

/* Serves a connected, non-blocking socket; owns the fd from here, also when it fails (SHD_EFULL
 * beyond the limits). The identity is that of every call that comes over it. */
int shd_rpc_serve_fd(shd_rpc *rpc, int fd, const shd_identity *who, shd_error *err);

/* Asked for every call before anything of it is read: 0, or an error that refuses it. */
typedef int (*shd_rpc_gate)(const shd_identity *who, void *arg, shd_error *err);
void shd_rpc_set_gate(shd_rpc *rpc, shd_rpc_gate gate, void *arg);

uint32_t shd_rpc_connections(const shd_rpc *rpc);

/* Milliseconds since the completion-queue thread last came round; it does so every second. */
uint64_t shd_rpc_idle_ms(const shd_rpc *rpc);

/* Refuses new calls with UNAVAILABLE, ends streams with UNAVAILABLE "the daemon is stopping", lets
 * unary calls finish until `grace_ms`, then cancels them; `done` runs on the loop. */
void shd_rpc_shutdown(shd_rpc *rpc, uint64_t grace_ms, void (*done)(void *arg), void *arg);
void shd_rpc_free(shd_rpc *rpc);

/* ---- calls; loop thread only ---- */
const shd_identity *shd_call_identity(const shd_call *call);

/* Finishes a unary call. The call is gone afterwards. */
void shd_call_reply(shd_call *call, const ProtobufCMessage *response);

/* Finishes any call with an error: gRPC status by the number, message, trailer "shd-errno". */
void shd_call_fail(shd_call *call, const shd_error *err);
void shd_call_failf(shd_call *call, int code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Streams: queues one message; messages are sent in order, one at a time. */
void shd_call_send(shd_call *call, const ProtobufCMessage *message);
/* 0 when the client reads too slowly (buffer over the limit): stop sending until on_writable. */
int shd_call_writable(const shd_call *call);
/* Finishes a stream with OK after what is queued. The call is gone afterwards. */
void shd_call_end(shd_call *call);

/* on_gone: the client cancelled or its connection broke, at any moment before the answer; after it
 * the call must not be touched. on_writable: the buffer of a stream has room again. Either may be
 * NULL. */
void shd_call_callbacks(shd_call *call, void (*on_gone)(void *arg), void (*on_writable)(void *arg),
                        void *arg);

/* gRPC status code of an error number. */
int shd_rpc_status_code(int shd_errno_value);

#ifdef __cplusplus
}
#endif
#endif
