// The daemon as a process: start, readiness, watchdog, reload, activation, refusals, stop.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/stat.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <vector>

#include "proto/health.pb-c.h"
#include "proto/shard.pb-c.h"
#include "proto/shd_errno.h"
#include "proto/shd_version.h"
#include "tests/service/grpc_client.h"
#include "tests/service/peers.h"

using shd_test::Channel;
using shd_test::connect_as;
using shd_test::eventually;
using shd_test::open_fds;
using shd_test::raw_connect;
using shd_test::Reply;

namespace
{

int bound(const std::string &path, int type)
{
    const int fd = socket(AF_UNIX, type | SOCK_CLOEXEC, 0);
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    memcpy(address.sun_path, path.c_str(), path.size());
    EXPECT_EQ(bind(fd, reinterpret_cast<sockaddr *>(&address), sizeof(address)), 0);
    return fd;
}

class Shardd : public ::testing::Test
{
  protected:
    void SetUp() override
    {
        char name[] = "/tmp/shardd-test-XXXXXX";
        dir = mkdtemp(name);
        chmod(dir.c_str(), 0755);
        socket_path = dir + "/s";
        conf = dir + "/conf";
        write_conf("");
        notify = bound(dir + "/notify", SOCK_DGRAM);
    }
    void TearDown() override
    {
        if (pid > 0) {
            kill(pid, SIGKILL);
            waitpid(pid, nullptr, 0);
        }
        close(notify);
        if (HasFailure()) {
            fprintf(stderr, "%s", log().c_str());
        }
        ASSERT_EQ(system(("rm -rf " + dir).c_str()), 0);
    }
    void write_conf(const std::string &text)
    {
        std::ofstream(conf) << "socket_mode = 0666\nmemory_per_rank = 1G\n" << text;
    }
    std::string log()
    {
        std::ifstream file(dir + "/log");
        return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    }
    // In the child before exec; what it returns false for ends it.
    pid_t spawn(
        const std::vector<std::string> &flags,
        const std::function<bool()> &prepare = [] { return true; })
    {
        std::vector<std::string> words = {
            "daemon/shardd", "--config", conf, "--state-dir", dir + "/state", "--ranks", "2",
            "--data-root",   dir};
        words.insert(words.end(), flags.begin(), flags.end());
        if (std::find(flags.begin(), flags.end(), "--socket") == flags.end()) {
            words.insert(words.end(), {"--socket", socket_path});
        }
        std::vector<char *> argv;
        for (std::string &w : words) {
            argv.push_back(&w[0]);
        }
        argv.push_back(nullptr);
        const pid_t child = fork();
        if (child == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL); // outlives no crash of the test
            const int out = open((dir + "/log").c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644);
            dup2(out, 1);
            dup2(out, 2);
            setenv("NOTIFY_SOCKET", (dir + "/notify").c_str(), 1);
            if (prepare()) {
                execv(argv[0], argv.data());
            }
            _exit(126);
        }
        return child;
    }
    // Exit status of a daemon that does not come up.
    int exit_of(
        const std::vector<std::string> &flags,
        const std::function<bool()> &prepare = [] { return true; })
    {
        int status = 0;
        waitpid(spawn(flags, prepare), &status, 0);
        return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
    }
    // Next message to the service manager that has `word`, within 30 s.
    std::string notified(const std::string &word)
    {
        std::string found;
        eventually([&] {
            char text[1024];
            const ssize_t n = recv(notify, text, sizeof(text), MSG_DONTWAIT);
            if (n > 0 &&
                std::string(text, static_cast<size_t>(n)).find(word) != std::string::npos) {
                found.assign(text, static_cast<size_t>(n));
            }
            return !found.empty();
        });
        return found;
    }
    void start(
        const std::vector<std::string> &flags = {},
        const std::function<bool()> &prepare = [] { return true; })
    {
        pid = spawn(flags, prepare);
        ASSERT_EQ(notified("READY=1").find("READY=1"), 0u) << "not ready";
    }
    int wait_exit()
    {
        int status = 0;
        waitpid(pid, &status, 0);
        pid = 0;
        return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
    }
    int stop()
    {
        kill(pid, SIGTERM);
        return wait_exit();
    }
    Reply check(Channel &channel)
    {
        Grpc__Health__V1__HealthCheckRequest m = GRPC__HEALTH__V1__HEALTH_CHECK_REQUEST__INIT;
        return channel.call("/grpc.health.v1.Health/Check", &m.base);
    }
    Reply status(Channel &channel)
    {
        Shard__V1__StatusRequest m = SHARD__V1__STATUS_REQUEST__INIT;
        return channel.call("/shard.v1.Shard/Status", &m.base);
    }
    Reply create(Channel &channel, const std::string &model)
    {
        std::ofstream(dir + "/data") << std::string(100000, 'a');
        const std::string data = dir + "/data";
        Shard__V1__JobSpec spec = SHARD__V1__JOB_SPEC__INIT;
        spec.model = const_cast<char *>(model.c_str());
        spec.data = const_cast<char *>(data.c_str());
        spec.strategy = const_cast<char *>("zero3");
        spec.has_steps_case = SHARD__V1__JOB_SPEC__HAS_STEPS_STEPS;
        spec.steps = 1000000;
        Shard__V1__CreateJobRequest m = SHARD__V1__CREATE_JOB_REQUEST__INIT;
        m.spec = &spec;
        return channel.call("/shard.v1.Shard/CreateJob", &m.base);
    }

    std::string dir, socket_path, conf;
    int notify = -1;
    pid_t pid = 0;
};

TEST_F(Shardd, StartsAnswersAndStops)
{
    start();
    {
        Channel channel(socket_path);
        EXPECT_EQ(check(channel).status, GRPC_STATUS_OK);
        const Reply r = status(channel);
        ASSERT_EQ(r.status, GRPC_STATUS_OK) << r.message;
        auto *m = shard__v1__status_response__unpack(
            nullptr, r.bytes.size(), reinterpret_cast<const uint8_t *>(r.bytes.data()));
        ASSERT_NE(m, nullptr);
        EXPECT_STREQ(m->version, SHD_VERSION);
        EXPECT_EQ(m->pid, static_cast<uint32_t>(pid));
        EXPECT_EQ(m->n_ranks, 2u);
        EXPECT_EQ(m->ranks[0]->budget, 1u << 30);
        EXPECT_EQ(m->socket, socket_path);
        EXPECT_EQ(m->state_dir, dir + "/state");
        EXPECT_EQ(m->connections, 1u);
        shard__v1__status_response__free_unpacked(m, nullptr);
    }
    EXPECT_EQ(stop(), 0);
    EXPECT_NE(notified("STOPPING=1"), "");
    EXPECT_NE(access(socket_path.c_str(), F_OK), 0) << "the socket is removed";
}

TEST_F(Shardd, EveryMethodOfTheServiceIsThere)
{
    start();
    Channel channel(socket_path);
    const ProtobufCServiceDescriptor &service = shard__v1__shard__descriptor;
    for (unsigned i = 0; i < service.n_methods; i++) {
        const std::string path = std::string("/shard.v1.Shard/") + service.methods[i].name;
        shd_test::Call call(channel.get(), path.c_str(), 1000); // a stream may have no end
        const std::string nothing;
        std::string bytes;
        call.start(&nothing);
        call.read(&bytes);
        call.cancel();
        call.finish();
        EXPECT_EQ(call.message().find("this daemon has no method"), std::string::npos) << path;
    }
}

TEST_F(Shardd, WatchdogIsFed)
{
    start({}, [] {
        return setenv("WATCHDOG_USEC", "400000", 1) == 0 && unsetenv("WATCHDOG_PID") == 0;
    });
    for (int i = 0; i < 3; i++) {
        EXPECT_NE(notified("WATCHDOG=1"), "");
    }
    EXPECT_EQ(stop(), 0);
}

TEST_F(Shardd, ReloadsOnHangup)
{
    write_conf("log_level = info\n");
    start();
    pid_t peer;
    int fd = getuid() == 0 ? connect_as(socket_path, 4001, &peer) : -1;
    std::unique_ptr<Channel> stranger;
    if (fd >= 0) {
        stranger = std::make_unique<Channel>(fd);
        EXPECT_EQ(check(*stranger).status, GRPC_STATUS_OK);
    }
    write_conf("allow_groups = 5009\nmax_jobs = 7\n");
    kill(pid, SIGHUP);
    EXPECT_NE(notified("RELOADING=1"), "");
    EXPECT_NE(notified("READY=1"), "");
    EXPECT_NE(log().find("only after a restart: max_jobs"), std::string::npos);
    if (stranger) {
        const Reply r = check(*stranger); // over the connection it had
        EXPECT_EQ(r.status, GRPC_STATUS_PERMISSION_DENIED);
        EXPECT_NE(r.message.find("allow_groups"), std::string::npos) << r.message;
    }
    write_conf("allow_groups = no-such-group\n");
    kill(pid, SIGHUP);
    EXPECT_NE(notified("READY=1"), "");
    EXPECT_NE(log().find("left as it was: allow_groups"), std::string::npos);
    if (stranger) {
        EXPECT_EQ(check(*stranger).status, GRPC_STATUS_PERMISSION_DENIED);
    }
    Channel own(socket_path);
    EXPECT_EQ(check(own).status, GRPC_STATUS_OK);
    EXPECT_EQ(stop(), 0);
}

TEST_F(Shardd, TakesASocketFromTheServiceManager)
{
    const std::string path = dir + "/activated";
    const int fd = bound(path, SOCK_STREAM);
    listen(fd, 8);
    chmod(path.c_str(), 0666);
    const int early = raw_connect(path); // before the daemon is there
    ASSERT_GE(early, 0);
    start({}, [&] {
        return dup2(fd, 3) == 3 && setenv("LISTEN_FDS", "1", 1) == 0 &&
               setenv("LISTEN_PID", std::to_string(getpid()).c_str(), 1) == 0;
    });
    close(fd);
    EXPECT_NE(access(socket_path.c_str(), F_OK), 0) << "it makes no socket of its own";
    Channel first(early), second(path);
    EXPECT_EQ(check(first).status, GRPC_STATUS_OK);
    EXPECT_EQ(check(second).status, GRPC_STATUS_OK);
    EXPECT_EQ(stop(), 0);
    EXPECT_EQ(access(path.c_str(), F_OK), 0) << "the socket is the manager's";
}

TEST_F(Shardd, RefusesToStart)
{
    const auto says = [&](const std::string &word) {
        const bool found = log().find(word) != std::string::npos;
        EXPECT_TRUE(found) << word << "\n" << log();
        unlink((dir + "/log").c_str());
    };
    EXPECT_EQ(exit_of({"--no-such-flag"}), 2);
    says("--no-such-flag");
    EXPECT_EQ(exit_of({"--device", "cuda"}), 2);
    says("no CUDA backend");
    write_conf("\nbogus = 1\n");
    EXPECT_EQ(exit_of({}), 2);
    says(conf + ":4: unknown key 'bogus'");
    write_conf("");
    EXPECT_EQ(exit_of({"--check-config"}), 0);
    says("valid");
    EXPECT_EQ(exit_of({"--state-dir", dir + "/no/parent"}), 1);
    says("state directory");
    EXPECT_EQ(exit_of({"--socket", dir + "/" + std::string(200, 'x')}), 1);
    says("107");
    EXPECT_EQ(exit_of({"--socket", conf}), 1);
    says("is no socket");
    EXPECT_EQ(exit_of({},
                      [] {
                          return dup2(open("/dev/null", O_RDONLY), 3) == 3 &&
                                 setenv("LISTEN_FDS", "1", 1) == 0 &&
                                 setenv("LISTEN_PID", std::to_string(getpid()).c_str(), 1) == 0;
                      }),
              1);
    says("socket activation");

    start();
    EXPECT_EQ(exit_of({"--socket", dir + "/s2"}), 1);
    says("another daemon (pid " + std::to_string(pid) + ")");
    EXPECT_EQ(exit_of({"--state-dir", dir + "/state2"}), 1);
    says("already listens on " + socket_path);
    Channel channel(socket_path);
    EXPECT_EQ(check(channel).status, GRPC_STATUS_OK) << "the first one is unharmed";
    EXPECT_EQ(stop(), 0);
}

TEST_F(Shardd, ComesBackAfterAKill)
{
    start();
    kill(pid, SIGKILL);
    EXPECT_EQ(wait_exit(), -SIGKILL);
    EXPECT_EQ(access(socket_path.c_str(), F_OK), 0);
    start();
    EXPECT_NE(log().find("removed the stale socket"), std::string::npos);
    Channel channel(socket_path);
    EXPECT_EQ(check(channel).status, GRPC_STATUS_OK);
    EXPECT_EQ(stop(), 0);
}

TEST_F(Shardd, ConnectionsComeAndGo)
{
    start();
    {
        Channel channel(socket_path);
        ASSERT_EQ(check(channel).status, GRPC_STATUS_OK);
    }
    const std::string process = std::to_string(pid);
    int before = 0;
    EXPECT_TRUE(eventually([&] { // until the first one's descriptors are gone
        const int now = open_fds(process);
        const bool same = now == before;
        before = now;
        return same;
    }));
    for (int i = 0; i < 300; i++) {
        if (i % 3 == 0) {
            Channel channel(socket_path);
            ASSERT_EQ(status(channel).status, GRPC_STATUS_OK);
        } else {
            const int fd = raw_connect(socket_path);
            ASSERT_GE(fd, 0);
            if (i % 3 == 1) {
                ASSERT_EQ(send(fd, "garbage garbage garbage!", 24, MSG_NOSIGNAL), 24);
            }
            close(fd);
        }
    }
    EXPECT_TRUE(eventually([&] { return open_fds(process) <= before; }));
    EXPECT_EQ(stop(), 0);
}

TEST_F(Shardd, StopFinishesTheRunningStep)
{
    start();
    Channel channel(socket_path);
    const Reply r = create(channel, "gpt-byte-1m");
    ASSERT_EQ(r.status, GRPC_STATUS_OK) << r.message;
    EXPECT_NE(notified("STATUS=1 job"), "");
    EXPECT_NE(notified("step "), "");
    EXPECT_EQ(stop(), 0);
    EXPECT_NE(log().find("running at step"), std::string::npos);
    EXPECT_EQ(log().find("cancelling"), std::string::npos);
}

TEST_F(Shardd, SecondSignalAndGraceCancel)
{
    start({"--memory-per-rank", "4G"});
    {
        Channel channel(socket_path);
        const Reply r = create(channel, "gpt-byte-10m");
        ASSERT_EQ(r.status, GRPC_STATUS_OK) << r.message;
        EXPECT_NE(notified("running"), "");
    }
    kill(pid, SIGTERM);
    EXPECT_NE(notified("STOPPING=1"), "");
    kill(pid, SIGTERM);
    EXPECT_EQ(wait_exit(), 0);

    start({"--memory-per-rank", "4G", "--stop-grace-ms", "0"});
    {
        Channel channel(socket_path);
        const Reply r = create(channel, "gpt-byte-10m");
        ASSERT_EQ(r.status, GRPC_STATUS_OK) << r.message;
        EXPECT_NE(notified("running"), "");
    }
    EXPECT_EQ(stop(), 0);
}

} // namespace
