/* Streams of the server: one call, one receive in flight at a time. */
#include <stdlib.h>

#include "client/internal.h"
#include "client/mem.h"

struct shc_stream {
    shc_client *client; /* borrowed */
    grpc_call *call;
    const ProtobufCMessageDescriptor *type;
    grpc_metadata_array initial;
    shc_outcome status;
    grpc_byte_buffer *payload; /* the request, until the start batch is done */
    grpc_byte_buffer *message; /* filled by the receive in flight */
    int receiving;             /* a receive is in flight */
    int finished;              /* the status is here */
    /* Tags: their addresses name the batches. */
    char start_tag, status_tag, message_tag;
};

int shc_stream_open(shc_client *client, const char *method, const ProtobufCMessage *request,
                    const ProtobufCMessageDescriptor *type, shc_stream **out, shc_error *err)
{
    *out = NULL;
    if (client->interrupt && *client->interrupt)
        return shc_fail_interrupted(err);

    shc_stream *s = shc_calloc(1, sizeof *s);
    s->client = client;
    s->type = type;
    grpc_metadata_array_init(&s->initial);
    shc_outcome_init(&s->status);
    s->payload = shc_pack(request);
    s->call = shc_call_create(client, method, 0);

    const grpc_op start[] = {
        {.op = GRPC_OP_SEND_INITIAL_METADATA},
        {.op = GRPC_OP_SEND_MESSAGE, .data.send_message.send_message = s->payload},
        {.op = GRPC_OP_SEND_CLOSE_FROM_CLIENT},
        {.op = GRPC_OP_RECV_INITIAL_METADATA,
         .data.recv_initial_metadata.recv_initial_metadata = &s->initial},
    };
    const grpc_op finish = {
        .op = GRPC_OP_RECV_STATUS_ON_CLIENT,
        .data.recv_status_on_client = {.trailing_metadata = &s->status.trailers,
                                       .status = &s->status.code,
                                       .status_details = &s->status.details},
    };
    grpc_call_error refused = grpc_call_start_batch(s->call, start, 4, &s->start_tag, NULL);
    if (refused == GRPC_CALL_OK) {
        refused = grpc_call_start_batch(s->call, &finish, 1, &s->status_tag, NULL);
        if (refused == GRPC_CALL_OK) {
            *out = s;
            return 0;
        }
        grpc_call_cancel(s->call, NULL);
        shc_drain(client, &s->start_tag);
    }
    grpc_call_unref(s->call);
    grpc_byte_buffer_destroy(s->payload);
    grpc_metadata_array_destroy(&s->initial);
    shc_outcome_fini(&s->status);
    free(s);
    return shc_fail(err, SHD_EINTERNAL, GRPC_STATUS_INTERNAL, "gRPC refuses the call %s: %s",
                    method, grpc_call_error_to_string(refused));
}

/* The stream has no more messages: why, from its status. */
static int finish(shc_stream *s, shc_error *err)
{
    int ok;

    if (!s->finished) {
        if (shc_pluck(s->client, &s->status_tag, -1, &ok) < 0)
            return shc_fail_interrupted(err);
        s->finished = 1;
    }
    int rc = shc_outcome_error(s->client, &s->status, 0, err);
    return rc ? rc : SHC_END;
}

int shc_stream_next(shc_stream *s, int64_t timeout_ms, ProtobufCMessage **out, shc_error *err)
{
    int ok;

    *out = NULL;
    if (s->finished)
        return finish(s, err);
    if (!s->receiving) {
        const grpc_op receive = {.op = GRPC_OP_RECV_MESSAGE,
                                 .data.recv_message.recv_message = &s->message};
        grpc_call_error refused =
            grpc_call_start_batch(s->call, &receive, 1, &s->message_tag, NULL);
        if (refused != GRPC_CALL_OK)
            return shc_fail(err, SHD_EINTERNAL, GRPC_STATUS_INTERNAL, "gRPC refuses to receive: %s",
                            grpc_call_error_to_string(refused));
        s->receiving = 1;
    }

    int got = shc_pluck(s->client, &s->message_tag, timeout_ms, &ok);
    if (got == 0)
        return SHC_TIMEOUT;
    if (got < 0)
        return shc_fail_interrupted(err);
    s->receiving = 0;
    if (!ok || !s->message)
        return finish(s, err);

    *out = shc_unpack(s->type, s->message);
    grpc_byte_buffer_destroy(s->message);
    s->message = NULL;
    if (!*out)
        return shc_fail(err, SHD_EDATA, GRPC_STATUS_INTERNAL,
                        "the daemon sent what is not a %s; use a client of the daemon's version",
                        s->type->name);
    return SHC_MESSAGE;
}

void shc_stream_close(shc_stream *s)
{
    if (!s)
        return;
    if (!s->finished)
        grpc_call_cancel(s->call, NULL);
    shc_drain(s->client, &s->start_tag);
    if (s->receiving)
        shc_drain(s->client, &s->message_tag);
    if (!s->finished)
        shc_drain(s->client, &s->status_tag);
    grpc_call_unref(s->call);
    grpc_byte_buffer_destroy(s->payload);
    grpc_byte_buffer_destroy(s->message);
    grpc_metadata_array_destroy(&s->initial);
    shc_outcome_fini(&s->status);
    free(s);
}
