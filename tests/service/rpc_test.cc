#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <chrono>

#include "proto/health.pb-c.h"
#include "tests/service/grpc_client.h"
#include "tests/service/peers.h"
#include "tests/service/rpc_server.h"

using shd_test::Call;
using shd_test::Channel;
using shd_test::connect_as;
using shd_test::eventually;
using shd_test::open_fds;
using shd_test::raw_connect;
using shd_test::Reply;
using shd_test::Server;

namespace
{

std::string job_ref(const std::string &job)
{
    Shard__V1__JobRef m = SHARD__V1__JOB_REF__INIT;
    m.job = const_cast<char *>(job.c_str());
    return shd_test::pack(&m.base);
}

struct Job {
    explicit Job(const std::string &bytes)
        : m(shard__v1__job__unpack(nullptr, bytes.size(),
                                   reinterpret_cast<const uint8_t *>(bytes.data())))
    {
    }
    ~Job()
    {
        shard__v1__job__free_unpacked(m, nullptr);
    }
    Shard__V1__Job *m;
};

std::unique_ptr<Call> start(Channel &channel, const char *method, const std::string &arg,
                            int deadline_ms = 30000)
{
    auto call = std::make_unique<Call>(channel.get(), method, deadline_ms);
    const std::string bytes = job_ref(arg);
    call->start(&bytes);
    return call;
}

TEST(Rpc, UnaryAnswersAndKnowsTheCaller)
{
    Server server;
    Channel channel(server.path);
    const Reply r = channel.call_bytes("/t/Echo", job_ref("hello"));
    ASSERT_EQ(r.status, GRPC_STATUS_OK) << r.message;
    Job job(r.bytes);
    ASSERT_NE(job.m, nullptr);
    EXPECT_STREQ(job.m->id, "hello");
    EXPECT_EQ(job.m->owner_uid, getuid());
    EXPECT_EQ(job.m->step, static_cast<uint64_t>(getpid()));
}

TEST(Rpc, EveryErrorHasItsStatusAndNumber)
{
    const int codes[][2] = {
        {SHD_EINVAL, GRPC_STATUS_INVALID_ARGUMENT},
        {SHD_ENOTFOUND, GRPC_STATUS_NOT_FOUND},
        {SHD_EEXIST, GRPC_STATUS_ALREADY_EXISTS},
        {SHD_EPERM, GRPC_STATUS_PERMISSION_DENIED},
        {SHD_ESTATE, GRPC_STATUS_FAILED_PRECONDITION},
        {SHD_EFULL, GRPC_STATUS_RESOURCE_EXHAUSTED},
        {SHD_ENOMEM, GRPC_STATUS_RESOURCE_EXHAUSTED},
        {SHD_EUNSUPPORTED, GRPC_STATUS_UNIMPLEMENTED},
        {SHD_EIO, GRPC_STATUS_INTERNAL},
        {SHD_EDATA, GRPC_STATUS_INVALID_ARGUMENT},
        {SHD_ECOMM, GRPC_STATUS_ABORTED},
        {SHD_ECANCELLED, GRPC_STATUS_CANCELLED},
        {SHD_ETIMEOUT, GRPC_STATUS_DEADLINE_EXCEEDED},
        {SHD_ENONFINITE, GRPC_STATUS_FAILED_PRECONDITION},
        {SHD_ESEQUENCE, GRPC_STATUS_FAILED_PRECONDITION},
        {SHD_EUNAVAILABLE, GRPC_STATUS_UNAVAILABLE},
        {SHD_EINTERNAL, GRPC_STATUS_INTERNAL},
    };
    Server server;
    Channel channel(server.path);
    for (const auto &code : codes) {
        const std::string number = std::to_string(code[0]);
        const Reply r = channel.call_bytes("/t/Fail", job_ref(number));
        EXPECT_EQ(r.status, code[1]) << number;
        EXPECT_EQ(r.errno_text, number);
        EXPECT_EQ(r.message, "failed with '" + number + "': try another");
    }
}

TEST(Rpc, UnknownMethodIsNamed)
{
    Server server;
    Channel channel(server.path);
    const Reply r = channel.call_bytes("/shard.v9.Shard/Fly", job_ref(""));
    EXPECT_EQ(r.status, GRPC_STATUS_UNIMPLEMENTED);
    EXPECT_NE(r.message.find("/shard.v9.Shard/Fly"), std::string::npos) << r.message;
    EXPECT_EQ(r.errno_text, std::to_string(SHD_EUNSUPPORTED));
}

TEST(Rpc, BadRequestsAreRefused)
{
    Server server;
    Channel channel(server.path);
    Reply r = channel.call_bytes("/t/Echo", "\xff\xff\xff\xff garbage");
    EXPECT_EQ(r.status, GRPC_STATUS_INVALID_ARGUMENT) << r.message;
    EXPECT_NE(r.message.find("shard.v1.JobRef"), std::string::npos) << r.message;

    r = channel.call_bytes("/t/Echo", job_ref("\xc3\x28"));
    EXPECT_EQ(r.status, GRPC_STATUS_INVALID_ARGUMENT) << r.message;
    EXPECT_NE(r.message.find("field job is not UTF-8"), std::string::npos) << r.message;

    r = channel.call_bytes("/t/Echo", job_ref(std::string(2 << 20, 'x')));
    EXPECT_EQ(r.status, GRPC_STATUS_RESOURCE_EXHAUSTED) << r.message;

    Call none(channel.get(), "/t/Echo");
    none.start(nullptr);
    EXPECT_EQ(none.finish(), GRPC_STATUS_INVALID_ARGUMENT);
    EXPECT_NE(none.message().find("without a request message"), std::string::npos);

    Call packed(channel.get(), "/t/Echo");
    const std::string zeros = job_ref(std::string(100000, 'x'));
    packed.start(&zeros, "gzip");
    EXPECT_EQ(packed.finish(), GRPC_STATUS_UNIMPLEMENTED) << packed.message();

    r = channel.call_bytes("/t/Echo", job_ref("still well"));
    EXPECT_EQ(r.status, GRPC_STATUS_OK) << r.message;
}

TEST(Rpc, LargeRequestsUpToTheLimitPass)
{
    Server server;
    Channel channel(server.path);
    const std::string text((1 << 20) - 100, 'x');
    const Reply r = channel.call_bytes("/t/Echo", job_ref(text));
    ASSERT_EQ(r.status, GRPC_STATUS_OK) << r.message;
    Job job(r.bytes);
    EXPECT_EQ(std::string(job.m->id), text);
}

TEST(Rpc, GarbageOnTheSocketEndsThatConnectionAlone)
{
    Server server;
    for (int round = 0; round < 3; round++) {
        const int fd = raw_connect(server.path);
        ASSERT_GE(fd, 0);
        std::string garbage(4096, '\0');
        for (size_t i = 0; i < garbage.size(); i++) {
            garbage[i] = static_cast<char>((i * 2654435761u + static_cast<unsigned>(round)) >> 7);
        }
        ASSERT_EQ(send(fd, garbage.data(), garbage.size(), MSG_NOSIGNAL),
                  static_cast<ssize_t>(garbage.size()));
        char buffer[4096];
        ssize_t n = 1;
        while (n > 0) { // what the server says before it closes
            pollfd p = {fd, POLLIN, 0};
            ASSERT_EQ(poll(&p, 1, 20000), 1) << "the connection stays open";
            n = read(fd, buffer, sizeof(buffer));
        }
        close(fd);
    }
    Channel channel(server.path);
    EXPECT_EQ(channel.call_bytes("/t/Echo", job_ref("x")).status, GRPC_STATUS_OK);
    EXPECT_TRUE(eventually([&] { return server.connections() == 1; }));
}

TEST(Rpc, SilentAndHalfOpenConnectionsCostNobodyElse)
{
    Server server;
    const int silent = raw_connect(server.path);
    const int half = raw_connect(server.path);
    shutdown(half, SHUT_WR);
    EXPECT_TRUE(eventually([&] { return server.connections() == 1; })); // silent
    Channel channel(server.path);
    EXPECT_EQ(channel.call_bytes("/t/Echo", job_ref("x")).status, GRPC_STATUS_OK);
    close(silent);
    close(half);
}

TEST(Rpc, StreamKeepsOrder)
{
    Server server;
    Channel channel(server.path);
    auto call = start(channel, "/t/Stream", "2000 100");
    std::string bytes;
    uint64_t next = 0;
    while (call->read(&bytes)) {
        Job job(bytes);
        ASSERT_EQ(job.m->step, next);
        next++;
    }
    EXPECT_EQ(next, 2000u);
    EXPECT_EQ(call->finish(), GRPC_STATUS_OK);
    EXPECT_EQ(server.gone, 0);
}

TEST(Rpc, SlowReaderIsNotBufferedFor)
{
    Server server;
    Channel channel(server.path);
    auto call = start(channel, "/t/Stream", "3000 10000"); // 30 MB
    std::string bytes;
    ASSERT_TRUE(call->read(&bytes));
    int before = -1;
    EXPECT_TRUE(eventually([&] { // until the stream stands still
        std::this_thread::sleep_for(std::chrono::milliseconds(200));
        const int now = server.streamed;
        const bool still = now == before;
        before = now;
        return still;
    }));
    // The limit is 64 KiB; the rest are the windows of HTTP/2 and of the socket.
    EXPECT_LT(before, 1000);
    EXPECT_EQ(channel.call_bytes("/t/Echo", job_ref("others go on")).status, GRPC_STATUS_OK);
    uint64_t next = 1;
    while (call->read(&bytes)) {
        Job job(bytes);
        ASSERT_EQ(job.m->step, next);
        next++;
    }
    EXPECT_EQ(next, 3000u);
    EXPECT_EQ(call->finish(), GRPC_STATUS_OK);
}

TEST(Rpc, CancelDeadlineAndBrokenConnectionSayGone)
{
    Server server;
    {
        Channel channel(server.path);
        std::string bytes;
        auto cancelled = start(channel, "/t/Hang", "");
        ASSERT_TRUE(cancelled->read(&bytes));
        cancelled->cancel();
        EXPECT_EQ(cancelled->finish(), GRPC_STATUS_CANCELLED);
        EXPECT_TRUE(eventually([&] { return server.gone == 1; }));

        auto late = start(channel, "/t/Hang", "", 200);
        EXPECT_EQ(late->finish(), GRPC_STATUS_DEADLINE_EXCEEDED);
        EXPECT_TRUE(eventually([&] { return server.gone == 2; }));

        // A slow reader that goes away in the middle.
        auto slow = start(channel, "/t/Stream", "100000 10000");
        ASSERT_TRUE(slow->read(&bytes));
        slow->cancel();
        EXPECT_TRUE(eventually([&] { return server.gone == 3; }));
    }
    pid_t pid;
    const int fd = connect_as(server.path, getuid(), &pid);
    ASSERT_GE(fd, 0);
    const int other = dup(fd);
    {
        Channel channel(fd);
        std::string bytes;
        auto broken = start(channel, "/t/Hang", "");
        ASSERT_TRUE(broken->read(&bytes));
        shutdown(other, SHUT_RDWR);
        EXPECT_TRUE(eventually([&] { return server.gone == 4; }));
    }
    close(other);
    EXPECT_TRUE(eventually([&] { return server.connections() == 0; }));
}

TEST(Rpc, AnswerToAClientThatLeftIsHarmless)
{
    Server server;
    Channel channel(server.path);
    {
        auto call = start(channel, "/t/Later", "");
        EXPECT_TRUE(eventually([&] {
            bool there = false;
            server.on_loop([&] { there = server.waiting.size() == 1; });
            return there;
        }));
        call->cancel();
        EXPECT_EQ(call->finish(), GRPC_STATUS_CANCELLED);
    }
    EXPECT_EQ(channel.call_bytes("/t/Echo", job_ref("x")).status, GRPC_STATUS_OK);
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    server.on_loop([&] {
        Shard__V1__Job job = SHARD__V1__JOB__INIT;
        shd_call_reply(server.waiting[0], &job.base);
        server.waiting.clear();
    });
    EXPECT_EQ(channel.call_bytes("/t/Echo", job_ref("x")).status, GRPC_STATUS_OK);
}

TEST(Rpc, CallsPerConnectionAreLimited)
{
    Server server; // 8 calls
    Channel channel(server.path);
    std::vector<std::unique_ptr<Call>> calls;
    for (int i = 0; i < 8; i++) {
        calls.push_back(start(channel, "/t/Later", ""));
    }
    ASSERT_TRUE(eventually([&] {
        size_t n = 0;
        server.on_loop([&] { n = server.waiting.size(); });
        return n == 8;
    }));
    const Reply r = channel.call_bytes("/t/Echo", job_ref("x"));
    EXPECT_EQ(r.status, GRPC_STATUS_RESOURCE_EXHAUSTED);
    EXPECT_NE(r.message.find("max_calls"), std::string::npos) << r.message;
    Channel other(server.path);
    EXPECT_EQ(other.call_bytes("/t/Echo", job_ref("x")).status, GRPC_STATUS_OK);
    server.on_loop([&] {
        Shard__V1__Job job = SHARD__V1__JOB__INIT;
        for (shd_call *call : server.waiting) {
            shd_call_reply(call, &job.base);
        }
        server.waiting.clear();
    });
    for (auto &call : calls) {
        std::string bytes;
        EXPECT_TRUE(call->read(&bytes));
        EXPECT_EQ(call->finish(), GRPC_STATUS_OK);
    }
    EXPECT_EQ(channel.call_bytes("/t/Echo", job_ref("x")).status, GRPC_STATUS_OK);
}

TEST(Rpc, ConnectionsAreLimited)
{
    shd_rpc_limits limits = Server::default_limits();
    limits.max_connections = 4;
    Server server(limits);
    int fds[4];
    for (int &fd : fds) {
        fd = raw_connect(server.path);
    }
    ASSERT_TRUE(eventually([&] { return server.connections() == 4; }));
    const int extra = raw_connect(server.path);
    char byte;
    EXPECT_EQ(read(extra, &byte, 1), 0); // closed at once
    close(extra);
    close(fds[0]);
    ASSERT_TRUE(eventually([&] { return server.connections() == 3; }));
    Channel channel(server.path);
    EXPECT_EQ(channel.call_bytes("/t/Echo", job_ref("x")).status, GRPC_STATUS_OK);
    for (int i = 1; i < 4; i++) {
        close(fds[i]);
    }
}

TEST(Rpc, OtherUsersAreWhoTheyAreAndLeaveRoom)
{
    if (getuid() != 0) {
        GTEST_SKIP() << "connects as other users; run it as root";
    }
    shd_rpc_limits limits = Server::default_limits();
    limits.max_connections = 4;
    Server server(limits);
    chmod(server.path.substr(0, server.path.rfind('/')).c_str(), 0755);
    std::vector<std::unique_ptr<Channel>> channels;
    const uid_t uids[] = {4001, 4002, 4001, 4001};
    for (const uid_t uid : uids) {
        pid_t pid;
        const int fd = connect_as(server.path, uid, &pid);
        ASSERT_GE(fd, 0);
        channels.push_back(std::make_unique<Channel>(fd));
        const Reply r = channels.back()->call_bytes("/t/Echo", job_ref("x"));
        ASSERT_EQ(r.status, GRPC_STATUS_OK) << r.message;
        Job job(r.bytes);
        EXPECT_EQ(job.m->owner_uid, uid);
        EXPECT_EQ(job.m->step, static_cast<uint64_t>(pid));
    }
    channels.erase(channels.begin() + 1); // 4002 goes; 4001 has 3 of 4
    ASSERT_TRUE(eventually([&] { return server.connections() == 3; }));
    pid_t pid;
    int fd = connect_as(server.path, 4001, &pid);
    char byte;
    EXPECT_EQ(read(fd, &byte, 1), 0);
    close(fd);
    fd = connect_as(server.path, 4003, &pid);
    Channel channel(fd);
    const Reply r = channel.call_bytes("/t/Echo", job_ref("x"));
    ASSERT_EQ(r.status, GRPC_STATUS_OK) << r.message;
    EXPECT_EQ(Job(r.bytes).m->owner_uid, 4003u);
}

TEST(Rpc, GateRefusesCalls)
{
    Server server;
    Channel channel(server.path);
    server.on_loop([&] { server.gate_closed = true; });
    const Reply r = channel.call_bytes("/t/Echo", job_ref("x"));
    EXPECT_EQ(r.status, GRPC_STATUS_PERMISSION_DENIED);
    EXPECT_EQ(r.message, "not you");
    server.on_loop([&] { server.gate_closed = false; });
    EXPECT_EQ(channel.call_bytes("/t/Echo", job_ref("x")).status, GRPC_STATUS_OK);
}

TEST(Rpc, ThousandConnectionsLeaveNothing)
{
    Server server;
    {
        Channel first(server.path);
        ASSERT_EQ(first.call_bytes("/t/Echo", job_ref("x")).status, GRPC_STATUS_OK);
    }
    ASSERT_TRUE(eventually([&] { return server.connections() == 0; }));
    const int before = open_fds();
    for (int i = 0; i < 1000; i++) {
        if (i % 4 == 0) {
            // The server may be behind with those that are gone, and closes what is too many.
            ASSERT_TRUE(eventually([&] { return server.connections() < 32; }));
            Channel channel(server.path);
            ASSERT_EQ(channel.call_bytes("/t/Echo", job_ref("x")).status, GRPC_STATUS_OK) << i;
        } else {
            int fd = -1; // the listener may be behind: at most max_connections at once
            ASSERT_TRUE(eventually([&] { return (fd = raw_connect(server.path)) >= 0; }));
            ASSERT_EQ(send(fd, "PRI * HTTP/2.0\r\n", i % 16, MSG_NOSIGNAL), i % 16);
            close(fd);
        }
    }
    EXPECT_TRUE(eventually([&] { return server.connections() == 0; })) << server.connections();
    EXPECT_TRUE(eventually([&] { return open_fds() <= before; })) << open_fds() << " > " << before;
}

TEST(Rpc, ShutdownEndsStreamsAndLetsCallsFinish)
{
    Server server;
    Channel channel(server.path);
    std::string bytes;
    auto hang = start(channel, "/t/Hang", "");
    ASSERT_TRUE(hang->read(&bytes));
    auto later = start(channel, "/t/Later", "");
    ASSERT_TRUE(eventually([&] {
        size_t n = 0;
        server.on_loop([&] { n = server.waiting.size(); });
        return n == 1;
    }));
    server.begin_shutdown(30000);
    EXPECT_EQ(hang->finish(), GRPC_STATUS_UNAVAILABLE);
    EXPECT_EQ(hang->message(), "the daemon is stopping");
    EXPECT_EQ(hang->trailer("shd-errno"), std::to_string(SHD_EUNAVAILABLE));
    EXPECT_EQ(server.gone, 1);

    const Reply refused = channel.call_bytes("/t/Echo", job_ref("x"));
    EXPECT_EQ(refused.status, GRPC_STATUS_UNAVAILABLE);
    EXPECT_EQ(refused.message, "the daemon is stopping");

    server.on_loop([&] {
        Shard__V1__Job job = SHARD__V1__JOB__INIT;
        shd_call_reply(server.waiting[0], &job.base);
        server.waiting.clear();
    });
    ASSERT_TRUE(later->read(&bytes));
    EXPECT_EQ(later->finish(), GRPC_STATUS_OK);
    server.stop(0);
}

TEST(Rpc, ShutdownEndsCallsAfterTheGrace)
{
    Server server;
    Channel channel(server.path);
    auto later = start(channel, "/t/Later", "");
    ASSERT_TRUE(eventually([&] {
        size_t n = 0;
        server.on_loop([&] { n = server.waiting.size(); });
        return n == 1;
    }));
    auto slow = start(channel, "/t/Stream", "100000 10000"); // not read
    ASSERT_TRUE(eventually([&] { return server.streamed > 0; }));
    server.stop(100);
    EXPECT_EQ(later->finish(), GRPC_STATUS_UNAVAILABLE);
    EXPECT_EQ(later->message(), "the daemon is stopping");
    EXPECT_EQ(server.gone, 1);
}

TEST(Rpc, CompletionQueueThreadShowsThatItLives)
{
    Server server;
    std::this_thread::sleep_for(std::chrono::milliseconds(1500));
    uint64_t idle = ~0ull;
    server.on_loop([&] { idle = shd_rpc_idle_ms(server.rpc); });
    EXPECT_LT(idle, 1400u); // it came round on its own
}

Reply health_check(Channel &channel, const char *service)
{
    Grpc__Health__V1__HealthCheckRequest m = GRPC__HEALTH__V1__HEALTH_CHECK_REQUEST__INIT;
    m.service = const_cast<char *>(service);
    return channel.call("/grpc.health.v1.Health/Check", &m.base);
}

int health_status(const std::string &bytes)
{
    auto *m = grpc__health__v1__health_check_response__unpack(
        nullptr, bytes.size(), reinterpret_cast<const uint8_t *>(bytes.data()));
    const int status = m != nullptr ? static_cast<int>(m->status) : -1;
    grpc__health__v1__health_check_response__free_unpacked(m, nullptr);
    return status;
}

TEST(Health, CheckAndWatch)
{
    Server server;
    Channel channel(server.path);
    for (const char *service : {"", "shard.v1.Shard"}) {
        const Reply r = health_check(channel, service);
        ASSERT_EQ(r.status, GRPC_STATUS_OK) << r.message;
        EXPECT_EQ(health_status(r.bytes), 1);
    }
    EXPECT_EQ(health_check(channel, "nobody").status, GRPC_STATUS_NOT_FOUND);

    Grpc__Health__V1__HealthCheckRequest m = GRPC__HEALTH__V1__HEALTH_CHECK_REQUEST__INIT;
    auto watch = channel.start("/grpc.health.v1.Health/Watch", &m.base);
    m.service = const_cast<char *>("nobody");
    auto unknown = channel.start("/grpc.health.v1.Health/Watch", &m.base);
    std::string bytes;
    ASSERT_TRUE(watch->read(&bytes));
    EXPECT_EQ(health_status(bytes), 1);
    ASSERT_TRUE(unknown->read(&bytes));
    EXPECT_EQ(health_status(bytes), 3);

    server.on_loop([&] { shd_health_set(server.health, 0); });
    ASSERT_TRUE(watch->read(&bytes));
    EXPECT_EQ(health_status(bytes), 2);
    EXPECT_EQ(health_status(health_check(channel, "").bytes), 2);
    server.begin_shutdown(1000);
    EXPECT_EQ(watch->finish(), GRPC_STATUS_UNAVAILABLE);
}

class Environment : public ::testing::Environment
{
    void SetUp() override
    {
        shd_log_set_level(SHD_LOG_ERROR);
    }
};
const auto *const environment = ::testing::AddGlobalTestEnvironment(new Environment);

} // namespace
