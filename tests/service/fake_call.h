// Calls without gRPC: stands in for the shd_call_* half of daemon/service/rpc.h, so that a test
// sees what a handler did with a call, and can make the client slow or go away.
#ifndef SHD_TESTS_SERVICE_FAKE_CALL_H
#define SHD_TESTS_SERVICE_FAKE_CALL_H

#include <memory>
#include <string>
#include <vector>

#include "daemon/service/rpc.h"

// One packed message.
struct Packed {
    const ProtobufCMessageDescriptor *type;
    std::string bytes;
};

// Unpacks to a message that frees itself.
template <typename T> struct Unpacked {
    explicit Unpacked(const Packed &p)
        : m((T *)protobuf_c_message_unpack(p.type, nullptr, p.bytes.size(),
                                           (const uint8_t *)p.bytes.data()))
    {
    }
    ~Unpacked()
    {
        protobuf_c_message_free_unpacked(&m->base, nullptr);
    }
    Unpacked(const Unpacked &) = delete;
    Unpacked &operator=(const Unpacked &) = delete;
    T *operator->() const
    {
        return m;
    }
    T *m;
};

struct shd_call {
    shd_identity who{};
    bool finished = false; // replied, failed or ended: exactly once
    int code = 0;
    std::string error;
    std::vector<Packed> sent; // a unary call's reply is the only one
    bool writable = true;
    size_t room = SIZE_MAX; // messages until it is no longer writable
    void (*on_gone)(void *) = nullptr;
    void (*on_writable)(void *) = nullptr;
    void *arg = nullptr;

    bool ok() const
    {
        return finished && code == 0;
    }
    // The client cancels or its connection breaks.
    void go()
    {
        auto fn = on_gone;
        gone = true;
        if (fn != nullptr && !finished) {
            fn(arg);
        }
    }
    // The client has read everything and can take `n` more.
    void read(size_t n)
    {
        room = n;
        writable = n > 0;
        if (writable && !finished && on_writable != nullptr) {
            on_writable(arg);
        }
    }
    bool gone = false;
};

#endif
