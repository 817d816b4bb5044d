// An RPC server on its own loop thread for tests: listener, rpc, and a service of methods that
// answer, fail, wait, stream and hang as they are told.
#ifndef SHD_TESTS_SERVICE_RPC_SERVER_H
#define SHD_TESTS_SERVICE_RPC_SERVER_H

#include <grpc/grpc.h>
#include <unistd.h>
#include <uv.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "daemon/base/log.h"
#include "daemon/service/listen.h"
#include "daemon/service/rpc.h"
#include "daemon/service/rpc_health.h"
#include "proto/shard.pb-c.h"

namespace shd_test
{

class Server
{
  public:
    struct Stream {
        Server *server;
        shd_call *call;
        int left, size, next;
    };

    explicit Server(shd_rpc_limits limits = default_limits())
    {
        char dir[] = "/tmp/shd-rpc-test-XXXXXX";
        dir_ = mkdtemp(dir);
        path = dir_ + "/s";
        std::promise<void> ready;
        thread_ = std::thread([&] { run(limits, &ready); });
        ready.get_future().wait();
    }
    ~Server()
    {
        stop(0);
        rmdir(dir_.c_str());
    }

    static shd_rpc_limits default_limits()
    {
        return {.max_message = 1 << 20,
                .max_connections = 64,
                .max_calls = 8,
                .max_stream_buffer = 64 * 1024};
    }

    // Runs fn on the loop and waits for it.
    void on_loop(std::function<void()> fn)
    {
        std::promise<void> done;
        {
            std::lock_guard<std::mutex> lock(mutex_);
            tasks_.push_back([&] {
                fn();
                done.set_value();
            });
        }
        uv_async_send(&async_);
        done.get_future().wait();
    }
    uint32_t connections()
    {
        uint32_t n = 0;
        on_loop([&] { n = shd_rpc_connections(rpc); });
        return n;
    }
    void begin_shutdown(uint64_t grace_ms)
    {
        on_loop([&] {
            if (!stopping_) {
                stopping_ = true;
                shd_health_set(health, 0);
                shd_listener_close(listener_);
                shd_rpc_shutdown(rpc, grace_ms, on_down, this);
            }
        });
    }
    // Returns when the loop has ended and everything is freed.
    void stop(uint64_t grace_ms)
    {
        if (thread_.joinable()) {
            begin_shutdown(grace_ms);
            down_.get_future().wait();
            on_loop([&] { uv_close(reinterpret_cast<uv_handle_t *>(&async_), nullptr); });
            thread_.join();
        }
    }

    std::string path;
    shd_rpc *rpc = nullptr;
    shd_health *health = nullptr;
    std::atomic<int> gone{0}, streamed{0};
    std::vector<shd_call *> waiting; // loop
    bool gate_closed = false;        // loop

  private:
    static const char *arg_of(const ProtobufCMessage *m)
    {
        return reinterpret_cast<const Shard__V1__JobRef *>(m)->job;
    }
    static void echo(shd_call *call, const ProtobufCMessage *m, void *)
    {
        Shard__V1__Job job = SHARD__V1__JOB__INIT;
        job.id = const_cast<char *>(arg_of(m));
        job.owner_uid = shd_call_identity(call)->uid;
        job.step = static_cast<uint64_t>(shd_call_identity(call)->pid);
        shd_call_reply(call, &job.base);
    }
    static void fail(shd_call *call, const ProtobufCMessage *m, void *)
    {
        shd_call_failf(call, atoi(arg_of(m)), "failed with '%s': try another", arg_of(m));
    }
    static void later(shd_call *call, const ProtobufCMessage *, void *service)
    {
        static_cast<Server *>(service)->waiting.push_back(call);
    }
    static void on_hang_gone(void *arg)
    {
        static_cast<Server *>(arg)->gone++;
    }
    static void hang(shd_call *call, const ProtobufCMessage *, void *service)
    {
        shd_call_callbacks(call, on_hang_gone, nullptr, service);
        Shard__V1__Job job = SHARD__V1__JOB__INIT;
        shd_call_send(call, &job.base);
    }
    static void pump(void *arg)
    {
        Stream *s = static_cast<Stream *>(arg);
        const std::string text(static_cast<size_t>(s->size), 'x');
        while (s->left > 0 && shd_call_writable(s->call)) {
            Shard__V1__Job job = SHARD__V1__JOB__INIT;
            job.step = static_cast<uint64_t>(s->next++);
            job.reason = const_cast<char *>(text.c_str());
            s->left--;
            s->server->streamed++;
            shd_call_send(s->call, &job.base);
        }
        if (s->left == 0) {
            shd_call_end(s->call);
            delete s;
        }
    }
    static void on_stream_gone(void *arg)
    {
        Stream *s = static_cast<Stream *>(arg);
        s->server->gone++;
        delete s;
    }
    // "COUNT SIZE"
    static void stream(shd_call *call, const ProtobufCMessage *m, void *service)
    {
        Stream *s = new Stream{static_cast<Server *>(service), call, 0, 0, 0};
        sscanf(arg_of(m), "%d %d", &s->left, &s->size);
        shd_call_callbacks(call, on_stream_gone, pump, s);
        pump(s);
    }
    static int gate(const shd_identity *, void *arg, shd_error *err)
    {
        return static_cast<Server *>(arg)->gate_closed ? shd_fail(err, SHD_EPERM, "not you") : 0;
    }

    static void on_connection(void *arg, int fd, const shd_identity *who)
    {
        shd_rpc_serve_fd(static_cast<Server *>(arg)->rpc, fd, who, nullptr);
    }
    static void on_tasks(uv_async_t *async)
    {
        Server *self = static_cast<Server *>(async->data);
        std::deque<std::function<void()>> tasks;
        {
            std::lock_guard<std::mutex> lock(self->mutex_);
            tasks.swap(self->tasks_);
        }
        for (auto &task : tasks) {
            task();
        }
    }
    static void on_down(void *arg)
    {
        Server *self = static_cast<Server *>(arg);
        shd_health_free(self->health);
        shd_rpc_free(self->rpc);
        self->down_.set_value();
    }
    void run(const shd_rpc_limits &limits, std::promise<void> *ready)
    {
        static const shd_rpc_method methods[] = {
            {"/t/Echo", &shard__v1__job_ref__descriptor, echo, 0},
            {"/t/Fail", &shard__v1__job_ref__descriptor, fail, 0},
            {"/t/Later", &shard__v1__job_ref__descriptor, later, 0},
            {"/t/Hang", &shard__v1__job_ref__descriptor, hang, 1},
            {"/t/Stream", &shard__v1__job_ref__descriptor, stream, 1},
        };
        shd_error err;
        uv_loop_init(&loop_);
        uv_async_init(&loop_, &async_, on_tasks);
        async_.data = this;
        if (shd_rpc_create(&loop_, &limits, &rpc, &err) < 0 ||
            shd_listener_open(&loop_, path.c_str(), 0666, "", on_connection, this, &listener_,
                              &err) < 0) {
            fprintf(stderr, "%s\n", err.message);
            abort();
        }
        shd_rpc_add_methods(rpc, methods, 5, this);
        shd_rpc_set_gate(rpc, gate, this);
        health = shd_health_create(rpc);
        ready->set_value();
        uv_run(&loop_, UV_RUN_DEFAULT);
        if (uv_loop_close(&loop_) != 0) {
            fprintf(stderr, "handles are left open\n");
            abort();
        }
    }

    std::string dir_;
    uv_loop_t loop_;
    uv_async_t async_;
    std::thread thread_;
    std::mutex mutex_;
    std::deque<std::function<void()>> tasks_;
    shd_listener *listener_ = nullptr;
    bool stopping_ = false;
    std::promise<void> down_;
};

} // namespace shd_test

#endif
