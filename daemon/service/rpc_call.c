#include <grpc/byte_buffer.h>
#include <grpc/byte_buffer_reader.h>
#include <grpc/slice.h>
#include <grpc/support/alloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/log.h"
#include "daemon/base/mem.h"
#include "daemon/service/rpc_decode.h"
#include "daemon/service/rpc_internal.h"

#define SMALL_RESPONSE (16u * 1024) /* such answers are bounded by the number of calls alone */
#define MESSAGE_OVERHEAD 256u       /* about what a queued message takes besides its bytes */
#define CROWDED_BUFFER (8u * 1024)

int shd_rpc_status_code(int shd_errno_value)
{
    switch (shd_errno_value) {
    case SHD_OK:
        return GRPC_STATUS_OK;
    case SHD_EINVAL:
    case SHD_EDATA:
        return GRPC_STATUS_INVALID_ARGUMENT;
    case SHD_ENOTFOUND:
        return GRPC_STATUS_NOT_FOUND;
    case SHD_EEXIST:
        return GRPC_STATUS_ALREADY_EXISTS;
    case SHD_EPERM:
        return GRPC_STATUS_PERMISSION_DENIED;
    case SHD_ESTATE:
    case SHD_ENONFINITE:
    case SHD_ESEQUENCE:
        return GRPC_STATUS_FAILED_PRECONDITION;
    case SHD_EFULL:
    case SHD_ENOMEM:
        return GRPC_STATUS_RESOURCE_EXHAUSTED;
    case SHD_EUNSUPPORTED:
        return GRPC_STATUS_UNIMPLEMENTED;
    case SHD_ECOMM:
        return GRPC_STATUS_ABORTED;
    case SHD_ECANCELLED:
        return GRPC_STATUS_CANCELLED;
    case SHD_ETIMEOUT:
        return GRPC_STATUS_DEADLINE_EXCEEDED;
    case SHD_EUNAVAILABLE:
        return GRPC_STATUS_UNAVAILABLE;
    case SHD_EIO:
    case SHD_EINTERNAL:
    default:
        return GRPC_STATUS_INTERNAL;
    }
}

/* ---- life ---- */

shd_call *shd_call_create(shd_conn *conn)
{
    shd_call *call = shd_calloc(1, sizeof(*call));
    call->rpc = conn->rpc;
    call->conn = conn;
    call->who = conn->who;
    call->status_text = grpc_empty_slice();
    call->request_op = (shd_op){SHD_OP_REQUEST, call};
    call->close_op = (shd_op){SHD_OP_CLOSE, call};
    call->send_op = (shd_op){SHD_OP_SEND, call};
    call->status_op = (shd_op){SHD_OP_STATUS, call};
    grpc_call_details_init(&call->details);
    grpc_metadata_array_init(&call->metadata);
    return call;
}

static void drop_outgoing(shd_call *call)
{
    for (shd_outgoing *m = call->out_head; m != NULL;) {
        shd_outgoing *next = m->next;
        grpc_byte_buffer_destroy(m->buffer);
        free(m);
        m = next;
    }
    call->out_head = call->out_tail = NULL;
    call->conn->stream_bytes -= call->out_bytes;
    call->out_bytes = 0;
}

/* Everything but the handle. */
static void free_parts(shd_call *call)
{
    drop_outgoing(call);
    if (call->request != NULL) {
        grpc_byte_buffer_destroy(call->request);
        call->request = NULL;
    }
    if (call->response != NULL) {
        grpc_byte_buffer_destroy(call->response);
    }
    if (call->trailer.value.refcount != NULL) {
        grpc_slice_unref(call->trailer.value);
    }
    grpc_slice_unref(call->status_text);
    grpc_metadata_array_destroy(&call->metadata);
    grpc_call_details_destroy(&call->details);
    if (call->call != NULL) {
        grpc_call_unref(call->call);
    }
}

void shd_call_discard(shd_call *call)
{
    free_parts(call);
    free(call);
}

static void list_insert(shd_call **head, shd_call *call)
{
    call->prev = NULL;
    call->next = *head;
    if (*head != NULL) {
        (*head)->prev = call;
    }
    *head = call;
}

static void list_remove(shd_call **head, shd_call *call)
{
    if (call->prev != NULL) {
        call->prev->next = call->next;
    } else {
        *head = call->next;
    }
    if (call->next != NULL) {
        call->next->prev = call->prev;
    }
}

/* Gives gRPC's part back once nothing of it is in flight, and the handle once nobody has it. */
static void settle(shd_call *call)
{
    shd_rpc *rpc = call->rpc;
    if (!call->released && call->pending == 0 && call->closed && (call->finishing || call->lost)) {
        shd_conn *conn = call->conn;
        list_remove(&conn->calls, call);
        conn->n_calls--;
        conn->held_bytes -= call->response_bytes;
        free_parts(call);
        call->conn = NULL;
        call->released = 1;
        if (call->handler_owns) {
            list_insert(&rpc->orphans, call);
        } else {
            free(call);
        }
        shd_rpc_check(rpc, conn);
    } else if (call->released && !call->handler_owns) {
        list_remove(&rpc->orphans, call);
        free(call);
    }
}

/* The final status is known, or there is nobody left to give it to; what the handler still says
 * is ignored. */
static void decided(shd_call *call)
{
    if (!call->answered) {
        call->answered = 1;
        call->rpc->n_open--;
    }
}

static void post(shd_call *call, const grpc_op *ops, size_t n, shd_op *tag)
{
    const grpc_call_error rc = grpc_call_start_batch(call->call, ops, n, tag, NULL);
    if (rc == GRPC_CALL_OK) {
        call->pending++;
        return;
    }
    /* gRPC refuses only what breaks its order of operations, which this file keeps. */
    shd_log(SHD_LOG_ERROR, "a call of %s is cancelled: gRPC refused a batch: %s",
            call->method != NULL ? call->method->path : "an unknown method",
            grpc_call_error_to_string(rc));
    grpc_call_cancel(call->call, NULL);
}

static void post_status(shd_call *call)
{
    grpc_op ops[3];
    memset(ops, 0, sizeof(ops));
    size_t n = 0;
    if (!call->initial_sent) {
        call->initial_sent = 1;
        ops[n++].op = GRPC_OP_SEND_INITIAL_METADATA;
    }
    if (call->response != NULL) {
        ops[n].op = GRPC_OP_SEND_MESSAGE;
        ops[n++].data.send_message.send_message = call->response;
    }
    ops[n].op = GRPC_OP_SEND_STATUS_FROM_SERVER;
    ops[n].data.send_status_from_server.status = call->status;
    if (call->status != GRPC_STATUS_OK) {
        ops[n].data.send_status_from_server.status_details = &call->status_text;
        ops[n].data.send_status_from_server.trailing_metadata_count = 1;
        ops[n].data.send_status_from_server.trailing_metadata = &call->trailer;
    }
    n++;
    call->finishing = 1;
    post(call, ops, n, &call->status_op);
}

/* The handler lets go of the call. */
static void finish(shd_call *call)
{
    shd_rpc *rpc = call->rpc;
    call->handler_owns = 0;
    if (call->answered) {
        settle(call);
        return;
    }
    decided(call);
    if (!call->sending) {
        post_status(call);
    }
    shd_rpc_check(rpc, NULL);
}

/* ---- what handlers call ---- */

const shd_identity *shd_call_identity(const shd_call *call)
{
    return &call->who;
}

void shd_call_callbacks(shd_call *call, void (*on_gone)(void *arg), void (*on_writable)(void *arg),
                        void *arg)
{
    call->on_gone = on_gone;
    call->on_writable = on_writable;
    call->callback_arg = arg;
}

static grpc_byte_buffer *pack(const ProtobufCMessage *message, size_t size)
{
    grpc_slice slice = grpc_slice_malloc(size);
    protobuf_c_message_pack(message, GRPC_SLICE_START_PTR(slice));
    grpc_byte_buffer *buffer = grpc_raw_byte_buffer_create(&slice, 1);
    grpc_slice_unref(slice);
    return buffer;
}

void shd_call_reply(shd_call *call, const ProtobufCMessage *response)
{
    if (!call->answered) {
        const size_t size = protobuf_c_message_get_packed_size(response);
        shd_error err;
        if (size > SMALL_RESPONSE && shd_rpc_check_held(call->rpc, call->conn, size, &err) < 0) {
            shd_call_fail(call, &err);
            return;
        }
        if (size > SMALL_RESPONSE) {
            call->response_bytes = size;
            call->conn->held_bytes += size;
        }
        call->response = pack(response, size);
        call->status = GRPC_STATUS_OK;
    }
    finish(call);
}

static void set_error(shd_call *call, int code, const char *message)
{
    char number[16];
    snprintf(number, sizeof(number), "%d", code);
    call->status = (grpc_status_code)shd_rpc_status_code(code);
    call->status_text = grpc_slice_from_copied_string(message);
    call->trailer.key = grpc_slice_from_static_string("shd-errno");
    call->trailer.value = grpc_slice_from_copied_string(number);
}

void shd_call_fail(shd_call *call, const shd_error *err)
{
    if (!call->answered) {
        set_error(call, err->code, err->message);
    }
    finish(call);
}

void shd_call_failf(shd_call *call, int code, const char *fmt, ...)
{
    shd_error err;
    va_list args;
    va_start(args, fmt);
    shd_failv(&err, code, fmt, args);
    va_end(args);
    shd_call_fail(call, &err);
}

void shd_call_end(shd_call *call)
{
    if (!call->answered) {
        call->status = GRPC_STATUS_OK;
    }
    finish(call);
}

static void post_send(shd_call *call)
{
    grpc_op ops[2];
    memset(ops, 0, sizeof(ops));
    size_t n = 0;
    if (!call->initial_sent) {
        call->initial_sent = 1;
        ops[n++].op = GRPC_OP_SEND_INITIAL_METADATA;
    }
    ops[n].op = GRPC_OP_SEND_MESSAGE;
    ops[n++].data.send_message.send_message = call->out_head->buffer;
    call->sending = 1;
    post(call, ops, n, &call->send_op);
}

void shd_call_send(shd_call *call, const ProtobufCMessage *message)
{
    if (call->answered) {
        return;
    }
    shd_outgoing *m = shd_calloc(1, sizeof(*m));
    const size_t size = protobuf_c_message_get_packed_size(message);
    m->buffer = pack(message, size);
    m->size = size + MESSAGE_OVERHEAD;
    if (call->out_tail != NULL) {
        call->out_tail->next = m;
    } else {
        call->out_head = m;
    }
    call->out_tail = m;
    call->out_bytes += m->size;
    call->conn->stream_bytes += m->size;
    if (call->out_bytes >= call->rpc->limits.max_stream_buffer ||
        (call->out_bytes >= CROWDED_BUFFER && shd_rpc_streams_crowded(call->rpc, call->conn))) {
        call->full = 1;
    }
    if (!call->sending) {
        post_send(call);
    }
}

int shd_call_writable(const shd_call *call)
{
    return !call->full;
}

void shd_call_evict(shd_call *call, int code, const char *message)
{
    set_error(call, code, message);
    decided(call);
    if (!call->sending) {
        post_status(call);
    }
    if (call->on_gone != NULL) { /* without it the handler answers one day, and is ignored */
        call->handler_owns = 0;
        call->on_gone(call->callback_arg);
    }
}

/* ---- what gRPC reports ---- */

static const shd_rpc_method *find_method(const shd_call *call, void **service)
{
    const grpc_slice name = call->details.method;
    const char *path = (const char *)GRPC_SLICE_START_PTR(name);
    const size_t length = GRPC_SLICE_LENGTH(name);
    for (size_t t = 0; t < call->rpc->n_tables; t++) {
        const shd_method_table *table = &call->rpc->tables[t];
        for (size_t i = 0; i < table->n; i++) {
            const shd_rpc_method *m = &table->methods[i];
            if (strlen(m->path) == length && memcmp(m->path, path, length) == 0) {
                *service = table->service;
                return m;
            }
        }
    }
    return NULL;
}

static int admit(const shd_call *call, shd_error *err)
{
    const shd_rpc *rpc = call->rpc;
    if (rpc->state != SHD_RPC_SERVING) {
        return shd_fail(err, SHD_EUNAVAILABLE, "the daemon is stopping");
    }
    if (call->conn->n_calls > rpc->limits.max_calls) {
        return shd_fail(
            err, SHD_EFULL,
            "%u calls are in flight on this connection, the limit (max_calls); wait for "
            "one to end",
            rpc->limits.max_calls);
    }
    if (rpc->gate != NULL) {
        SHD_TRY(rpc->gate(&call->who, rpc->gate_arg, err));
    }
    if (call->method == NULL) {
        return shd_fail(err, SHD_EUNSUPPORTED, "this daemon has no method %.*s",
                        (int)GRPC_SLICE_LENGTH(call->details.method),
                        (const char *)GRPC_SLICE_START_PTR(call->details.method));
    }
    return SHD_OK;
}

void shd_call_start(shd_call *call)
{
    list_insert(&call->conn->calls, call);
    call->conn->n_calls++;
    call->rpc->n_open++;

    grpc_op op;
    memset(&op, 0, sizeof(op));
    op.op = GRPC_OP_RECV_CLOSE_ON_SERVER;
    op.data.recv_close_on_server.cancelled = &call->cancelled;
    post(call, &op, 1, &call->close_op);

    call->method = find_method(call, &call->service);
    shd_error err;
    if (admit(call, &err) < 0) {
        shd_call_fail(call, &err);
        return;
    }
    memset(&op, 0, sizeof(op));
    op.op = GRPC_OP_RECV_MESSAGE;
    op.data.recv_message.recv_message = &call->request;
    post(call, &op, 1, &call->request_op);
}

/* Decodes call->request, which is not compressed, and frees it. */
static int decode(shd_call *call, ProtobufCMessage **out, shd_error *err)
{
    grpc_byte_buffer_reader reader;
    if (!grpc_byte_buffer_reader_init(&reader, call->request)) {
        return shd_fail(err, SHD_EINVAL, "the request cannot be read");
    }
    grpc_slice bytes = grpc_byte_buffer_reader_readall(&reader);
    grpc_byte_buffer_reader_destroy(&reader);
    grpc_byte_buffer_destroy(call->request);
    call->request = NULL;
    const int rc = shd_rpc_decode(call->method->request, GRPC_SLICE_START_PTR(bytes),
                                  GRPC_SLICE_LENGTH(bytes), out, err);
    grpc_slice_unref(bytes);
    return rc;
}

static void on_request(shd_call *call, int success)
{
    if (call->answered) {
        settle(call);
        return;
    }
    if (!success) {
        return; /* over the size limit or broken: gRPC ends the call itself and CLOSE follows */
    }
    ProtobufCMessage *message = NULL;
    shd_error err;
    if (call->request == NULL) {
        shd_call_failf(call, SHD_EINVAL, "%s came without a request message", call->method->path);
    } else if (call->request->data.raw.compression != GRPC_COMPRESS_NONE) {
        /* What a compressed request unpacks to has no bound. */
        shd_call_failf(call, SHD_EUNSUPPORTED,
                       "compressed requests are not accepted; send them uncompressed");
    } else if (decode(call, &message, &err) < 0) {
        shd_call_fail(call, &err);
    } else {
        call->handler_owns = 1;
        call->method->handler(call, message, call->service);
        shd_rpc_decode_free(message); /* the call itself may be gone */
    }
}

static void on_close(shd_call *call)
{
    call->closed = 1;
    if (call->cancelled) {
        call->lost = 1;
        decided(call);
        if (call->handler_owns && call->on_gone != NULL) {
            call->handler_owns = 0;
            call->on_gone(call->callback_arg);
        }
        shd_rpc_check(call->rpc, NULL);
    }
    settle(call);
}

static void on_sent(shd_call *call, int success)
{
    call->sending = 0;
    shd_outgoing *m = call->out_head;
    call->out_head = m->next;
    call->out_tail = m->next != NULL ? call->out_tail : NULL;
    call->out_bytes -= m->size;
    call->conn->stream_bytes -= m->size;
    grpc_byte_buffer_destroy(m->buffer);
    free(m);
    if (!success || call->lost) {
        drop_outgoing(call);
        if (call->answered && !call->lost) {
            post_status(call);
        }
        settle(call);
        return;
    }
    if (call->out_head != NULL) {
        post_send(call);
    } else if (call->answered) {
        post_status(call);
    }
    if (call->full && call->out_bytes <= call->rpc->limits.max_stream_buffer / 2) {
        call->full = 0;
        if (call->handler_owns && call->on_writable != NULL) {
            call->on_writable(call->callback_arg);
        }
    }
}

void shd_call_event(shd_call *call, shd_op_kind kind, int success)
{
    call->pending--;
    switch (kind) {
    case SHD_OP_REQUEST:
        on_request(call, success);
        break;
    case SHD_OP_CLOSE:
        on_close(call);
        break;
    case SHD_OP_SEND:
        on_sent(call, success);
        break;
    case SHD_OP_STATUS:
        settle(call);
        break;
    case SHD_OP_NEW_CALL:
    case SHD_OP_DOWN:
        break;
    }
}
