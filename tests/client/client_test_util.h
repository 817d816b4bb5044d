// What the tests of the client share: a scratch directory, a scripted daemon, and running shardctl.
#ifndef SHD_TESTS_CLIENT_CLIENT_TEST_UTIL_H
#define SHD_TESTS_CLIENT_CLIENT_TEST_UTIL_H

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "proto/shard.pb-c.h"
#include "tests/client/fake_server.h"

// A directory that goes away with the object; short, so that sockets fit in it.
class ScratchDir
{
  public:
    ScratchDir();
    ~ScratchDir();
    std::string path(const std::string &name) const
    {
        return dir_ + "/" + name;
    }
    std::string write(const std::string &name, const std::string &content) const;

  private:
    std::string dir_;
};

// A fake daemon: handlers by method ("GetJob"). Unknown methods are UNIMPLEMENTED.
class FakeDaemon
{
  public:
    using Handler = std::function<void(fake_call *call, const std::string &request)>;

    explicit FakeDaemon(const std::string &socket);
    ~FakeDaemon();
    void on(const std::string &method, Handler handler);
    // Answers every call of the method with this message.
    template <class Message> void reply(const std::string &method, const Message &message)
    {
        on(method, [packed = pack(&message.base), type = message.base.descriptor](
                       fake_call *call, const std::string &) { send_packed(call, type, packed); });
    }
    void refuse(const std::string &method, int grpc_status, const std::string &message,
                int shd_errno);
    int calls(const std::string &method);
    void cut();

    static std::string pack(const ProtobufCMessage *message);
    static void send_packed(fake_call *call, const ProtobufCMessageDescriptor *type,
                            const std::string &packed);

  private:
    static void handle(fake_call *call, const char *method, const uint8_t *request, size_t n,
                       void *arg);

    std::mutex lock_;
    std::map<std::string, Handler> handlers_;
    std::map<std::string, int> calls_;
    fake_server *server_;
};

// Messages for scripts, with strings that live as long as the object.
struct TestJob {
    Shard__V1__Job job;
    Shard__V1__JobSpec spec;
    std::vector<uint32_t> degrees{2, 2, 2, 2};
    std::vector<uint32_t> ranks{0, 1};

    explicit TestJob(uint64_t step = 0, uint64_t steps = 10,
                     Shard__V1__JobState state = SHARD__V1__JOB_STATE__JOB_STATE_RUNNING);
};

std::string step_event(uint64_t index, uint64_t step, double loss);
std::string state_event(uint64_t index, Shard__V1__JobState state, uint64_t step,
                        const std::string &reason = "");
std::string eval_event(uint64_t index, uint64_t step, double loss);
void send_event(fake_call *call, const std::string &packed);

// ---- shardctl ----

struct Result {
    int status; // exit status; -signal when killed
    std::string out;
    std::string err;
};

// A started shardctl; on a terminal of 100 columns when `tty`, which then is its output.
class Shardctl
{
  public:
    Shardctl(const std::vector<std::string> &args, bool tty = false,
             const std::vector<std::string> &env = {});
    ~Shardctl();
    // Waits until the output so far contains the text, at most 20 s.
    bool wait_for(const std::string &text);
    void signal(int signum);
    // Closes this side's end of its output.
    Result finish();

  private:
    void pump(int timeout_ms);

    int pid_ = -1;
    int out_ = -1;
    int err_ = -1;
    Result result_;
};

Result shardctl(const std::vector<std::string> &args, const std::vector<std::string> &env = {});

#endif
