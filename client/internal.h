/* What the files of libshardclient share: the client, waiting, and how gRPC's answers become
 * errors. Not for users of the library. */
#ifndef SHD_CLIENT_INTERNAL_H
#define SHD_CLIENT_INTERNAL_H

#include <grpc/byte_buffer.h>
#include <grpc/grpc.h>
#include <signal.h>
#include <stdint.h>

#include "client/shardclient.h"

struct shc_client {
    char *path;
    grpc_channel *channel;
    grpc_completion_queue *cq; /* plucked: one batch, one tag */
    int64_t timeout_ms;
    const volatile sig_atomic_t *interrupt; /* borrowed; may be NULL */
};

/* What RECV_STATUS_ON_CLIENT fills. */
typedef struct shc_outcome {
    grpc_status_code code;
    grpc_slice details;
    grpc_metadata_array trailers;
} shc_outcome;

void shc_outcome_init(shc_outcome *status);
void shc_outcome_fini(shc_outcome *status);
/* The error of a finished call, its number in the result: 0 for OK. timeout_ms: the deadline that
 * the call had, for the message. */
int shc_outcome_error(const shc_client *client, const shc_outcome *status, int64_t timeout_ms,
                      shc_error *err);

/* Fills *err (may be NULL); returns shd_errno. */
int shc_fail(shc_error *err, int shd_errno, int grpc_status, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
int shc_fail_interrupted(shc_error *err);

/* Waits for the batch with this tag. 1: finished, *ok tells whether it worked; 0: timeout_ms passed
 * (negative: never); -1: interrupted. */
int shc_pluck(shc_client *client, void *tag, int64_t timeout_ms, int *ok);
/* Waits without end, deaf to interrupts: for batches that a cancelled call must still return. */
void shc_drain(shc_client *client, void *tag);

/* A message as gRPC sends it; owned by the caller. */
grpc_byte_buffer *shc_pack(const ProtobufCMessage *message);
/* The message of the bytes, or NULL when they are not one. */
ProtobufCMessage *shc_unpack(const ProtobufCMessageDescriptor *type, grpc_byte_buffer *bytes);

/* method: "CreateJob" of shard.v1.Shard, or a full path with a leading slash. */
grpc_call *shc_call_create(shc_client *client, const char *method, int64_t timeout_ms);

int shc_unary(shc_client *client, const char *method, const ProtobufCMessage *request,
              const ProtobufCMessageDescriptor *type, ProtobufCMessage **out, shc_error *err);
int shc_stream_open(shc_client *client, const char *method, const ProtobufCMessage *request,
                    const ProtobufCMessageDescriptor *type, shc_stream **out, shc_error *err);

#endif
