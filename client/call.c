/* Unary calls, and what they share with streams: messages as bytes, waiting in slices so that an
 * interrupt flag is seen. */
#include <grpc/byte_buffer_reader.h>
#include <grpc/support/time.h>
#include <stdlib.h>
#include <string.h>

#include "client/internal.h"
#include "client/mem.h"

enum { SLICE_MS = 50 };

static gpr_timespec deadline_in(int64_t ms)
{
    if (ms < 0)
        return gpr_inf_future(GPR_CLOCK_MONOTONIC);
    return gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_millis(ms, GPR_TIMESPAN));
}

int shc_pluck(shc_client *client, void *tag, int64_t timeout_ms, int *ok)
{
    const gpr_timespec end = deadline_in(timeout_ms);

    for (;;) {
        if (client->interrupt && *client->interrupt)
            return -1;
        gpr_timespec until = client->interrupt ? gpr_time_min(end, deadline_in(SLICE_MS)) : end;
        grpc_event event = grpc_completion_queue_pluck(client->cq, tag, until, NULL);
        if (event.type == GRPC_OP_COMPLETE) {
            *ok = event.success;
            return 1;
        }
        if (timeout_ms >= 0 && gpr_time_cmp(gpr_now(GPR_CLOCK_MONOTONIC), end) >= 0)
            return 0;
    }
}

void shc_drain(shc_client *client, void *tag)
{
    grpc_completion_queue_pluck(client->cq, tag, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
}

grpc_byte_buffer *shc_pack(const ProtobufCMessage *message)
{
    grpc_slice slice = grpc_slice_malloc(protobuf_c_message_get_packed_size(message));
    protobuf_c_message_pack(message, GRPC_SLICE_START_PTR(slice));
    grpc_byte_buffer *bytes = grpc_raw_byte_buffer_create(&slice, 1);
    grpc_slice_unref(slice);
    return bytes;
}

ProtobufCMessage *shc_unpack(const ProtobufCMessageDescriptor *type, grpc_byte_buffer *bytes)
{
    grpc_byte_buffer_reader reader;

    if (!grpc_byte_buffer_reader_init(&reader, bytes))
        return NULL;
    grpc_slice slice = grpc_byte_buffer_reader_readall(&reader);
    grpc_byte_buffer_reader_destroy(&reader);
    ProtobufCMessage *message = protobuf_c_message_unpack(type, NULL, GRPC_SLICE_LENGTH(slice),
                                                          GRPC_SLICE_START_PTR(slice));
    grpc_slice_unref(slice);
    return message;
}

grpc_call *shc_call_create(shc_client *client, const char *method, int64_t timeout_ms)
{
    char *path = method[0] == '/' ? shc_strdup(method) : shc_asprintf("/shard.v1.Shard/%s", method);
    grpc_slice slice = grpc_slice_from_copied_string(path);
    grpc_call *call =
        grpc_channel_create_call(client->channel, NULL, GRPC_PROPAGATE_DEFAULTS, client->cq, slice,
                                 NULL, deadline_in(timeout_ms > 0 ? timeout_ms : -1), NULL);
    grpc_slice_unref(slice);
    free(path);
    return call;
}

int shc_unary(shc_client *client, const char *method, const ProtobufCMessage *request,
              const ProtobufCMessageDescriptor *type, ProtobufCMessage **out, shc_error *err)
{
    grpc_metadata_array initial;
    shc_outcome status;
    grpc_byte_buffer *answer = NULL;
    int ok, rc;

    *out = NULL;
    if (client->interrupt && *client->interrupt)
        return shc_fail_interrupted(err);
    grpc_metadata_array_init(&initial);
    shc_outcome_init(&status);
    grpc_byte_buffer *payload = shc_pack(request);
    grpc_call *call = shc_call_create(client, method, client->timeout_ms);

    grpc_op ops[6] = {
        {.op = GRPC_OP_SEND_INITIAL_METADATA},
        {.op = GRPC_OP_SEND_MESSAGE, .data.send_message.send_message = payload},
        {.op = GRPC_OP_SEND_CLOSE_FROM_CLIENT},
        {.op = GRPC_OP_RECV_INITIAL_METADATA,
         .data.recv_initial_metadata.recv_initial_metadata = &initial},
        {.op = GRPC_OP_RECV_MESSAGE, .data.recv_message.recv_message = &answer},
        {.op = GRPC_OP_RECV_STATUS_ON_CLIENT,
         .data.recv_status_on_client = {.trailing_metadata = &status.trailers,
                                        .status = &status.code,
                                        .status_details = &status.details}},
    };
    grpc_call_error refused = grpc_call_start_batch(call, ops, 6, ops, NULL);
    if (refused != GRPC_CALL_OK) {
        rc = shc_fail(err, SHD_EINTERNAL, GRPC_STATUS_INTERNAL, "gRPC refuses the call %s: %s",
                      method, grpc_call_error_to_string(refused));
    } else if (shc_pluck(client, ops, -1, &ok) < 0) {
        grpc_call_cancel(call, NULL);
        shc_drain(client, ops);
        rc = shc_fail_interrupted(err);
    } else {
        rc = shc_outcome_error(client, &status, client->timeout_ms, err);
        if (!rc && !(answer && (*out = shc_unpack(type, answer))))
            rc = shc_fail(err, SHD_EDATA, GRPC_STATUS_INTERNAL,
                          "the answer to %s is not a %s; use a client of the daemon's version",
                          method, type->name);
    }

    grpc_call_unref(call);
    grpc_byte_buffer_destroy(payload);
    grpc_byte_buffer_destroy(answer);
    grpc_metadata_array_destroy(&initial);
    shc_outcome_fini(&status);
    return rc;
}

void shc_message_free(ProtobufCMessage *message)
{
    if (message)
        protobuf_c_message_free_unpacked(message, NULL);
}
