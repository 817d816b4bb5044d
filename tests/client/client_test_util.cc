#include "tests/client/client_test_util.h"

#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "gtest/gtest.h"

extern "C" char **environ;

ScratchDir::ScratchDir()
{
    char name[] = "/tmp/shc-test-XXXXXX";
    if (!mkdtemp(name))
        abort();
    dir_ = name;
}

ScratchDir::~ScratchDir()
{
    std::error_code ignored;
    std::filesystem::remove_all(dir_, ignored);
}

std::string ScratchDir::write(const std::string &name, const std::string &content) const
{
    std::ofstream(path(name), std::ios::binary) << content;
    return path(name);
}

FakeDaemon::FakeDaemon(const std::string &socket)
    : server_(fake_server_start(socket.c_str(), handle, this))
{
    if (!server_)
        abort();
}

FakeDaemon::~FakeDaemon()
{
    fake_server_stop(server_);
}

void FakeDaemon::on(const std::string &method, Handler handler)
{
    std::lock_guard<std::mutex> guard(lock_);
    handlers_[method] = std::move(handler);
}

void FakeDaemon::refuse(const std::string &method, int grpc_status, const std::string &message,
                        int shd_errno)
{
    on(method, [=](fake_call *call, const std::string &) {
        fake_finish(call, grpc_status, message.c_str(), shd_errno);
    });
}

int FakeDaemon::calls(const std::string &method)
{
    std::lock_guard<std::mutex> guard(lock_);
    return calls_[method];
}

void FakeDaemon::cut()
{
    fake_server_cut(server_);
}

std::string FakeDaemon::pack(const ProtobufCMessage *message)
{
    std::string out(protobuf_c_message_get_packed_size(message), '\0');
    protobuf_c_message_pack(message, reinterpret_cast<uint8_t *>(&out[0]));
    return out;
}

void FakeDaemon::send_packed(fake_call *call, const ProtobufCMessageDescriptor *type,
                             const std::string &packed)
{
    ProtobufCMessage *message = protobuf_c_message_unpack(
        type, nullptr, packed.size(), reinterpret_cast<const uint8_t *>(packed.data()));
    fake_send(call, message);
    fake_finish(call, 0, "", 0);
    protobuf_c_message_free_unpacked(message, nullptr);
}

void FakeDaemon::handle(fake_call *call, const char *method, const uint8_t *request, size_t n,
                        void *arg)
{
    auto *self = static_cast<FakeDaemon *>(arg);
    const char *name = strrchr(method, '/') + 1;
    Handler handler;
    {
        std::lock_guard<std::mutex> guard(self->lock_);
        self->calls_[name]++;
        auto found = self->handlers_.find(name);
        if (found != self->handlers_.end())
            handler = found->second;
    }
    if (handler)
        handler(call, std::string(reinterpret_cast<const char *>(request), n));
    else
        fake_finish(call, 12, "not in this script", -8);
}

TestJob::TestJob(uint64_t step, uint64_t steps, Shard__V1__JobState state)
{
    shard__v1__job_spec__init(&spec);
    spec.name = const_cast<char *>("tale");
    spec.model = const_cast<char *>("gpt-byte-1m");
    spec.strategy = const_cast<char *>("zero3");
    spec.has_steps_case = SHARD__V1__JOB_SPEC__HAS_STEPS_STEPS;
    spec.steps = steps;
    spec.has_micro_batch_case = SHARD__V1__JOB_SPEC__HAS_MICRO_BATCH_MICRO_BATCH;
    spec.micro_batch = 2;
    spec.has_global_batch_case = SHARD__V1__JOB_SPEC__HAS_GLOBAL_BATCH_GLOBAL_BATCH;
    spec.global_batch = 8;
    spec.has_seq_len_case = SHARD__V1__JOB_SPEC__HAS_SEQ_LEN_SEQ_LEN;
    spec.seq_len = 16;
    shard__v1__job__init(&job);
    job.id = const_cast<char *>("7");
    job.spec = &spec;
    job.state = state;
    job.owner = const_cast<char *>("ada");
    job.owner_uid = 1000;
    job.step = step;
    job.parameters = job.trainable = 842000;
    job.vocab = 256;
    job.context = 256;
    job.created_unix = 1700000000;
    job.n_degrees = degrees.size();
    job.degrees = degrees.data();
    job.n_rank_ids = ranks.size();
    job.rank_ids = ranks.data();
}

std::string step_event(uint64_t index, uint64_t step, double loss)
{
    Shard__V1__Event event = SHARD__V1__EVENT__INIT;
    Shard__V1__StepResult result = SHARD__V1__STEP_RESULT__INIT;
    result.step = step;
    result.loss = loss;
    result.grad_norm = 0.5;
    result.lr = 3e-4;
    result.tokens = 128;
    result.step_ms = 12.5;
    result.tokens_per_s = 10240;
    result.samples = step * 8;
    result.unix = 1700000000 + static_cast<double>(step);
    event.index = index;
    event.kind_case = SHARD__V1__EVENT__KIND_STEP;
    event.step = &result;
    return FakeDaemon::pack(&event.base);
}

std::string state_event(uint64_t index, Shard__V1__JobState state, uint64_t step,
                        const std::string &reason)
{
    Shard__V1__Event event = SHARD__V1__EVENT__INIT;
    Shard__V1__StateChange change = SHARD__V1__STATE_CHANGE__INIT;
    change.state = state;
    change.reason = const_cast<char *>(reason.c_str());
    change.step = step;
    change.unix = 1700000000;
    event.index = index;
    event.kind_case = SHARD__V1__EVENT__KIND_STATE;
    event.state = &change;
    return FakeDaemon::pack(&event.base);
}

std::string eval_event(uint64_t index, uint64_t step, double loss)
{
    Shard__V1__Event event = SHARD__V1__EVENT__INIT;
    Shard__V1__EvalResult result = SHARD__V1__EVAL_RESULT__INIT;
    result.step = step;
    result.loss = loss;
    result.tokens = 4096;
    result.ms = 200;
    result.unix = 1700000002;
    event.index = index;
    event.kind_case = SHARD__V1__EVENT__KIND_EVAL;
    event.eval = &result;
    return FakeDaemon::pack(&event.base);
}

void send_event(fake_call *call, const std::string &packed)
{
    Shard__V1__Event *event = shard__v1__event__unpack(
        nullptr, packed.size(), reinterpret_cast<const uint8_t *>(packed.data()));
    fake_send(call, &event->base);
    shard__v1__event__free_unpacked(event, nullptr);
}

// ---- shardctl ----

static std::string program()
{
    const char *dir = getenv("TEST_SRCDIR"), *workspace = getenv("TEST_WORKSPACE");
    return std::string(dir) + "/" + workspace + "/client/shardctl";
}

Shardctl::Shardctl(const std::vector<std::string> &args, bool tty,
                   const std::vector<std::string> &env)
{
    std::vector<std::string> words{program()};
    words.insert(words.end(), args.begin(), args.end());
    std::vector<char *> argv;
    for (auto &word : words)
        argv.push_back(&word[0]);
    argv.push_back(nullptr);

    std::vector<std::string> settings{"TERM=xterm", "LC_ALL=C.UTF-8", "TZ=UTC",
                                      "PATH=/usr/bin:/bin"};
    for (char **e = environ; *e; e++)
        if (!strncmp(*e, "ASAN_", 5) || !strncmp(*e, "TSAN_", 5) || !strncmp(*e, "LSAN_", 5))
            settings.push_back(*e);
    settings.insert(settings.end(), env.begin(), env.end());
    std::vector<char *> envp;
    for (auto &setting : settings)
        envp.push_back(&setting[0]);
    envp.push_back(nullptr);

    int out[2], err[2];
    if (tty) {
        winsize size{};
        size.ws_col = 100;
        size.ws_row = 40;
        if (openpty(&out[0], &out[1], nullptr, nullptr, &size))
            abort();
        fcntl(out[0], F_SETFD, FD_CLOEXEC);
        fcntl(out[1], F_SETFD, FD_CLOEXEC);
    } else if (pipe2(out, O_CLOEXEC)) {
        abort();
    }
    if (pipe2(err, O_CLOEXEC))
        abort();
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&actions, out[1], 1);
    posix_spawn_file_actions_adddup2(&actions, err[1], 2);
    if (posix_spawn(&pid_, argv[0], &actions, nullptr, argv.data(), envp.data()))
        abort();
    posix_spawn_file_actions_destroy(&actions);
    close(out[1]);
    close(err[1]);
    out_ = out[0];
    err_ = err[0];
}

Shardctl::~Shardctl()
{
    if (pid_ > 0) {
        kill(pid_, SIGKILL);
        finish();
    }
}

void Shardctl::pump(int timeout_ms)
{
    pollfd fds[] = {{out_, POLLIN, 0}, {err_, POLLIN, 0}};
    char bytes[4096];

    if (poll(fds, 2, timeout_ms) <= 0)
        return;
    for (int i = 0; i < 2; i++) {
        if (!fds[i].revents)
            continue;
        int &fd = i ? err_ : out_;
        const ssize_t n = read(fd, bytes, sizeof bytes);
        if (n > 0) {
            (i ? result_.err : result_.out).append(bytes, static_cast<size_t>(n));
        } else { // end of file, or the terminal's other side is gone
            close(fd);
            fd = -1;
        }
    }
}

bool Shardctl::wait_for(const std::string &text)
{
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);

    while (result_.out.find(text) == std::string::npos &&
           result_.err.find(text) == std::string::npos) {
        if ((out_ < 0 && err_ < 0) || std::chrono::steady_clock::now() > end)
            return false;
        pump(100);
    }
    return true;
}

void Shardctl::signal(int signum)
{
    kill(pid_, signum);
}

Result Shardctl::finish()
{
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    int status;

    while ((out_ >= 0 || err_ >= 0)) {
        if (std::chrono::steady_clock::now() > end) {
            ADD_FAILURE() << "shardctl does not end: " << result_.out << result_.err;
            kill(pid_, SIGKILL);
        }
        pump(100);
    }
    waitpid(pid_, &status, 0);
    pid_ = -1;
    result_.status = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
    return result_;
}

Result shardctl(const std::vector<std::string> &args, const std::vector<std::string> &env)
{
    return Shardctl(args, false, env).finish();
}
