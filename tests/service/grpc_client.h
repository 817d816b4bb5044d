// A small client on gRPC core for tests: unary calls, streams, cancellation. One completion queue
// per call; every wait has a time limit.
#ifndef SHD_TESTS_SERVICE_GRPC_CLIENT_H
#define SHD_TESTS_SERVICE_GRPC_CLIENT_H

#include <grpc/byte_buffer.h>
#include <grpc/byte_buffer_reader.h>
#include <grpc/compression.h>
#include <grpc/grpc.h>
#include <grpc/grpc_posix.h>
#include <grpc/grpc_security.h>
#include <grpc/slice.h>
#include <grpc/support/time.h>
#include <protobuf-c/protobuf-c.h>

#include <cstring>
#include <memory>
#include <string>

namespace shd_test
{

inline std::string to_string(const grpc_slice &s)
{
    return std::string(reinterpret_cast<const char *>(GRPC_SLICE_START_PTR(s)),
                       GRPC_SLICE_LENGTH(s));
}

inline gpr_timespec in_ms(int ms)
{
    return gpr_time_add(gpr_now(GPR_CLOCK_REALTIME), gpr_time_from_millis(ms, GPR_TIMESPAN));
}

inline std::string pack(const ProtobufCMessage *m)
{
    std::string out(protobuf_c_message_get_packed_size(m), '\0');
    protobuf_c_message_pack(m, reinterpret_cast<uint8_t *>(&out[0]));
    return out;
}

// One call. start, then read until it gives false, then finish.
class Call
{
  public:
    Call(grpc_channel *channel, const char *method, int deadline_ms = 30000)
        : cq_(grpc_completion_queue_create_for_next(nullptr))
    {
        const grpc_slice name = grpc_slice_from_copied_string(method);
        call_ = grpc_channel_create_call(channel, nullptr, GRPC_PROPAGATE_DEFAULTS, cq_, name,
                                         nullptr, in_ms(deadline_ms), nullptr);
        grpc_slice_unref(name);
        grpc_metadata_array_init(&initial_);
        grpc_metadata_array_init(&trailing_);
    }
    ~Call()
    {
        if (started_ && !finished_) {
            cancel();
            finish();
        }
        grpc_call_unref(call_);
        grpc_metadata_array_destroy(&initial_);
        grpc_metadata_array_destroy(&trailing_);
        grpc_slice_unref(details_);
        grpc_completion_queue_shutdown(cq_);
        while (grpc_completion_queue_next(cq_, in_ms(10000), nullptr).type != GRPC_QUEUE_SHUTDOWN) {
        }
        grpc_completion_queue_destroy(cq_);
    }
    Call(const Call &) = delete;

    // compression: e.g. "gzip", asks gRPC to compress the request. `message` null: half-close
    // without one.
    void start(const std::string *message, const char *compression = nullptr)
    {
        grpc_op ops[5] = {};
        size_t n = 0;
        grpc_metadata meta = {};
        ops[n].op = GRPC_OP_SEND_INITIAL_METADATA;
        if (compression != nullptr) {
            meta.key = grpc_slice_from_static_string("grpc-internal-encoding-request");
            meta.value = grpc_slice_from_copied_string(compression);
            ops[n].data.send_initial_metadata.count = 1;
            ops[n].data.send_initial_metadata.metadata = &meta;
        }
        n++;
        if (message != nullptr) {
            grpc_slice s = grpc_slice_from_copied_buffer(message->data(), message->size());
            request_ = grpc_raw_byte_buffer_create(&s, 1);
            grpc_slice_unref(s);
            ops[n].op = GRPC_OP_SEND_MESSAGE;
            ops[n++].data.send_message.send_message = request_;
        }
        ops[n++].op = GRPC_OP_SEND_CLOSE_FROM_CLIENT;
        ops[n].op = GRPC_OP_RECV_INITIAL_METADATA;
        ops[n++].data.recv_initial_metadata.recv_initial_metadata = &initial_;
        grpc_call_start_batch(call_, ops, n, tag(1), nullptr);
        grpc_op last = {};
        last.op = GRPC_OP_RECV_STATUS_ON_CLIENT;
        last.data.recv_status_on_client.trailing_metadata = &trailing_;
        last.data.recv_status_on_client.status = &status_;
        last.data.recv_status_on_client.status_details = &details_;
        grpc_call_start_batch(call_, &last, 1, tag(2), nullptr);
        started_ = true;
    }

    // The next message; false at the end of the stream (or after wait_ms).
    bool read(std::string *out, int wait_ms = 30000)
    {
        if (!reading_) {
            grpc_op op = {};
            op.op = GRPC_OP_RECV_MESSAGE;
            op.data.recv_message.recv_message = &response_;
            grpc_call_start_batch(call_, &op, 1, tag(3), nullptr);
            reading_ = true;
        }
        if (!wait(3, wait_ms)) {
            return false;
        }
        reading_ = false;
        if (response_ == nullptr) {
            return false;
        }
        grpc_byte_buffer_reader reader;
        grpc_byte_buffer_reader_init(&reader, response_);
        grpc_slice s = grpc_byte_buffer_reader_readall(&reader);
        *out = to_string(s);
        grpc_slice_unref(s);
        grpc_byte_buffer_reader_destroy(&reader);
        grpc_byte_buffer_destroy(response_);
        response_ = nullptr;
        return true;
    }

    // Status code; -1 when none came in time.
    int finish(int wait_ms = 30000)
    {
        if (!wait(2, wait_ms)) {
            return -1;
        }
        finished_ = true;
        wait(1, wait_ms);
        if (reading_) {
            wait(3, wait_ms);
            reading_ = false;
            if (response_ != nullptr) {
                grpc_byte_buffer_destroy(response_);
                response_ = nullptr;
            }
        }
        if (request_ != nullptr) {
            grpc_byte_buffer_destroy(request_);
            request_ = nullptr;
        }
        return status_;
    }

    void cancel()
    {
        grpc_call_cancel(call_, nullptr);
    }
    std::string message() const
    {
        return to_string(details_);
    }
    std::string trailer(const char *key) const
    {
        for (size_t i = 0; i < trailing_.count; i++) {
            if (to_string(trailing_.metadata[i].key) == key) {
                return to_string(trailing_.metadata[i].value);
            }
        }
        return "";
    }

  private:
    static void *tag(intptr_t n)
    {
        return reinterpret_cast<void *>(n);
    }
    bool wait(intptr_t n, int ms)
    {
        const gpr_timespec deadline = in_ms(ms);
        while (!(seen_ & (1 << n))) {
            const grpc_event e = grpc_completion_queue_next(cq_, deadline, nullptr);
            if (e.type != GRPC_OP_COMPLETE) {
                return false;
            }
            seen_ |= 1 << reinterpret_cast<intptr_t>(e.tag);
        }
        if (n == 3) {
            seen_ &= ~(1 << n);
        }
        return true;
    }

    grpc_completion_queue *cq_;
    grpc_call *call_;
    grpc_metadata_array initial_, trailing_;
    grpc_byte_buffer *request_ = nullptr, *response_ = nullptr;
    grpc_status_code status_ = GRPC_STATUS_UNKNOWN;
    grpc_slice details_ = grpc_empty_slice();
    int seen_ = 0;
    bool started_ = false, finished_ = false, reading_ = false;
};

struct Reply {
    int status = -1;
    std::string message, errno_text, bytes;
};

// gRPC core, from the first channel to the end of the process.
struct Library {
    Library()
    {
        grpc_init();
    }
    ~Library()
    {
        grpc_shutdown();
    }
    static void use()
    {
        static Library library;
    }
};

// One connection of its own.
class Channel
{
  public:
    explicit Channel(const std::string &path)
    {
        Library::use();
        grpc_arg args[2] = {};
        args[0].type = args[1].type = GRPC_ARG_INTEGER;
        args[0].key = const_cast<char *>(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL);
        args[0].value.integer = 1;
        args[1].key = const_cast<char *>(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH);
        args[1].value.integer = -1;
        grpc_channel_args list = {2, args};
        grpc_channel_credentials *creds = grpc_insecure_credentials_create();
        channel_ = grpc_channel_create(("unix:" + path).c_str(), creds, &list);
        grpc_channel_credentials_release(creds);
    }
    // Over a socket that is connected already; takes the fd.
    explicit Channel(int fd)
    {
        Library::use();
        grpc_channel_credentials *creds = grpc_insecure_credentials_create();
        channel_ = grpc_channel_create_from_fd("test", fd, creds, nullptr);
        grpc_channel_credentials_release(creds);
    }
    ~Channel()
    {
        grpc_channel_destroy(channel_);
    }
    Channel(const Channel &) = delete;

    grpc_channel *get() const
    {
        return channel_;
    }
    std::unique_ptr<Call> start(const char *method, const ProtobufCMessage *m,
                                int deadline_ms = 30000)
    {
        const std::string bytes = pack(m);
        auto call = std::make_unique<Call>(channel_, method, deadline_ms);
        call->start(&bytes);
        return call;
    }
    Reply call_bytes(const char *method, const std::string &bytes)
    {
        Call call(channel_, method);
        Reply r;
        call.start(&bytes);
        call.read(&r.bytes);
        r.status = call.finish();
        r.message = call.message();
        r.errno_text = call.trailer("shd-errno");
        return r;
    }
    Reply call(const char *method, const ProtobufCMessage *m)
    {
        return call_bytes(method, pack(m));
    }

  private:
    grpc_channel *channel_;
};

} // namespace shd_test

#endif
