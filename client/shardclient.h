/* libshardclient: talks to a shardd daemon over its local socket. Public, opaque, C.
 *
 * A call takes a protobuf-c message of proto/shard.proto and gives one back; every function that
 * can fail returns 0 or a negative number of proto/shd_errno.h and fills *err (which may be NULL).
 *
 * Threads: one client and its streams belong to one thread at a time; different clients are
 * independent and may be used by different threads at once. Nothing here installs signal handlers:
 * shc_set_interrupt lets a flag that a handler sets end every wait within 50 ms. */
#ifndef SHD_CLIENT_SHARDCLIENT_H
#define SHD_CLIENT_SHARDCLIENT_H

#include <signal.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/health.pb-c.h"
#include "proto/shard.pb-c.h"
#include "proto/shd_errno.h"
#include "proto/shd_version.h"

#ifdef __cplusplus
extern "C" {
#endif

#define SHC_DEFAULT_SOCKET "/run/shardd/shardd.sock"

typedef struct shc_client shc_client;
typedef struct shc_stream shc_stream;

typedef struct shc_error {
    int shd_errno;      /* negative, from the trailer "shd-errno" or by the gRPC status */
    int grpc_status;    /* as numbered by gRPC: 14 is UNAVAILABLE */
    char message[1024]; /* what, which value; what to do */
} shc_error;

/* What shc_stream_next returns besides negative error numbers. */
enum { SHC_END = 0, SHC_MESSAGE = 1, SHC_TIMEOUT = 2 };

/* A client of the daemon at the socket path (at most 107 bytes). Contacts nobody yet: the first
 * call connects, and a broken connection is made again by the next call. NULL and *err when the
 * path cannot be a socket's. */
shc_client *shc_connect(const char *socket_path, shc_error *err);
/* Closes and frees; its streams must be closed before. NULL is fine. */
void shc_close(shc_client *client);

/* Deadline of each following unary call, in milliseconds; 0: none. 60,000 at first. Streams have
 * no deadline of their own, only the timeout of each shc_stream_next. */
void shc_set_timeout(shc_client *client, int64_t ms);

/* From now on a wait ends with SHD_ECANCELLED soon after *flag becomes non-zero; the call is
 * cancelled, a stream stays usable only for shc_stream_close. NULL: never. Borrows the flag. */
void shc_set_interrupt(shc_client *client, const volatile sig_atomic_t *flag);

/* Whether somebody listens on the socket: 0, or SHD_EUNAVAILABLE with the reason. */
int shc_probe(const shc_client *client, shc_error *err);

/* ---- unary calls ----
 * On success *out is the answer, freed with the message's own free_unpacked function (NULL
 * allocator). On failure *out is NULL. */
#define SHC_UNARY(verb, Request, Response)                                                         \
    int shc_##verb(shc_client *client, const Shard__V1__##Request *request,                        \
                   Shard__V1__##Response **out, shc_error *err)

SHC_UNARY(create_job, CreateJobRequest, Job);
SHC_UNARY(get_job, JobRef, Job);
SHC_UNARY(list_jobs, ListJobsRequest, ListJobsResponse);
SHC_UNARY(cancel_job, JobRef, Job);
SHC_UNARY(pause_job, JobRef, Job);
SHC_UNARY(resume_job, JobRef, Job);
SHC_UNARY(delete_job, JobRef, DeleteJobResponse);
SHC_UNARY(forward_backward, ForwardBackwardRequest, ForwardBackwardResponse);
SHC_UNARY(optim_step, OptimStepRequest, OptimStepResponse);
SHC_UNARY(train_step, TrainStepRequest, TrainStepResponse);
SHC_UNARY(forward, ForwardRequest, ForwardResponse);
SHC_UNARY(status, StatusRequest, StatusResponse);
SHC_UNARY(plan, PlanRequest, PlanResponse);
SHC_UNARY(save_checkpoint, SaveCheckpointRequest, SaveCheckpointResponse);
SHC_UNARY(export_model, ExportModelRequest, ExportModelResponse);
SHC_UNARY(reshard, ReshardRequest, Job);

/* grpc.health.v1: whether the service ("" for the whole daemon) serves. */
int shc_health(shc_client *client, const char *service,
               Grpc__Health__V1__HealthCheckResponse__ServingStatus *out, shc_error *err);

/* ---- streams of the server ----
 * On success *out is an open stream, owned by the caller; errors of the daemon come with the first
 * shc_stream_next. */
int shc_generate(shc_client *client, const Shard__V1__GenerateRequest *request, shc_stream **out,
                 shc_error *err);
int shc_evaluate(shc_client *client, const Shard__V1__EvaluateRequest *request, shc_stream **out,
                 shc_error *err);
int shc_tokenize(shc_client *client, const Shard__V1__TokenizeRequest *request, shc_stream **out,
                 shc_error *err);
int shc_watch(shc_client *client, const Shard__V1__WatchRequest *request, shc_stream **out,
              shc_error *err);
int shc_trace(shc_client *client, const Shard__V1__TraceRequest *request, shc_stream **out,
              shc_error *err);
int shc_watch_status(shc_client *client, const Shard__V1__WatchStatusRequest *request,
                     shc_stream **out, shc_error *err);

/* Waits up to timeout_ms (negative: without end) for the next message. SHC_MESSAGE: *out is it
 * (GenerateResponse, EvaluateResponse, TokenizeResponse, Event, TraceResponse or StatusResponse by
 * the call that opened the stream), freed with shc_message_free. SHC_END: the daemon ended the
 * stream. SHC_TIMEOUT: nothing yet, ask again. Negative: the stream broke or was interrupted. */
int shc_stream_next(shc_stream *stream, int64_t timeout_ms, ProtobufCMessage **out, shc_error *err);
void shc_message_free(ProtobufCMessage *message);
/* Cancels what is not finished and frees. NULL is fine. */
void shc_stream_close(shc_stream *stream);

#ifdef __cplusplus
}
#endif
#endif
