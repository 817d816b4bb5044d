#include "tests/service/fake_call.h"

#include <gtest/gtest.h>

static Packed pack(const ProtobufCMessage *m)
{
    Packed p{m->descriptor, std::string(protobuf_c_message_get_packed_size(m), '\0')};
    protobuf_c_message_pack(m, (uint8_t *)&p.bytes[0]);
    return p;
}

// What a handler may do only once, and never after on_gone.
static void finish(shd_call *call)
{
    EXPECT_FALSE(call->finished) << "a call was answered twice";
    EXPECT_FALSE(call->gone && call->on_gone != nullptr) << "a call was answered after on_gone";
    call->finished = true;
}

const shd_identity *shd_call_identity(const shd_call *call)
{
    return &call->who;
}

void shd_call_reply(shd_call *call, const ProtobufCMessage *response)
{
    finish(call);
    call->sent.push_back(pack(response));
}

void shd_call_fail(shd_call *call, const shd_error *err)
{
    finish(call);
    EXPECT_LT(err->code, 0);
    call->code = err->code;
    call->error = err->message;
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

void shd_call_send(shd_call *call, const ProtobufCMessage *message)
{
    EXPECT_FALSE(call->finished) << "a message was sent after the end";
    EXPECT_FALSE(call->gone) << "a message was sent after on_gone";
    call->sent.push_back(pack(message));
    if (call->room != SIZE_MAX && --call->room == 0) {
        call->writable = false;
    }
}

int shd_call_writable(const shd_call *call)
{
    return call->writable;
}

void shd_call_end(shd_call *call)
{
    finish(call);
}

void shd_call_callbacks(shd_call *call, void (*on_gone)(void *arg), void (*on_writable)(void *arg),
                        void *arg)
{
    call->on_gone = on_gone;
    call->on_writable = on_writable;
    call->arg = arg;
}

uint32_t shd_rpc_connections(const shd_rpc *)
{
    return 7;
}
