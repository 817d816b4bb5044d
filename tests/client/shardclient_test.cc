#include "client/shardclient.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <string>
#include <thread>
#include <vector>

#include "tests/client/client_test_util.h"
#include "gtest/gtest.h"

namespace
{
enum { UNAVAILABLE = 14, NOT_FOUND = 5, DEADLINE_EXCEEDED = 4, CANCELLED = 1, UNIMPLEMENTED = 12 };

double seconds_since(std::chrono::steady_clock::time_point start)
{
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

class Client : public ::testing::Test
{
  protected:
    Client() : socket(dir.path("s")) {}
    ~Client() override
    {
        shc_close(client);
    }
    void connect()
    {
        client = shc_connect(socket.c_str(), &err);
        ASSERT_NE(client, nullptr) << err.message;
    }
    int get_job(const char *name, Shard__V1__Job **job)
    {
        Shard__V1__JobRef ref = SHARD__V1__JOB_REF__INIT;
        ref.job = const_cast<char *>(name);
        return shc_get_job(client, &ref, job, &err);
    }
    int watch(shc_stream **stream)
    {
        Shard__V1__WatchRequest request = SHARD__V1__WATCH_REQUEST__INIT;
        request.job = const_cast<char *>("7");
        return shc_watch(client, &request, stream, &err);
    }

    ScratchDir dir;
    std::string socket;
    shc_client *client = nullptr;
    shc_error err{};
};
} // namespace

TEST_F(Client, UnaryCallCarriesRequestAndAnswer)
{
    FakeDaemon daemon(socket);
    daemon.on("GetJob", [](fake_call *call, const std::string &request) {
        Shard__V1__JobRef *ref = shard__v1__job_ref__unpack(
            nullptr, request.size(), reinterpret_cast<const uint8_t *>(request.data()));
        TestJob answer(3);
        answer.job.id = ref->job;
        fake_send(call, &answer.job.base);
        fake_finish(call, 0, "", 0);
        shard__v1__job_ref__free_unpacked(ref, nullptr);
    });
    connect();
    for (int i = 0; i < 3; i++) {
        Shard__V1__Job *job;
        ASSERT_EQ(get_job("tale", &job), 0) << err.message;
        EXPECT_STREQ(job->id, "tale");
        EXPECT_EQ(job->step, 3u);
        shard__v1__job__free_unpacked(job, nullptr);
    }
}

TEST_F(Client, ErrorsCarryStatusNumberAndMessage)
{
    FakeDaemon daemon(socket);
    daemon.refuse("GetJob", NOT_FOUND, "no job \"x\"; see shardctl jobs", SHD_ENOTFOUND);
    connect();
    Shard__V1__Job *job;
    EXPECT_EQ(get_job("x", &job), SHD_ENOTFOUND);
    EXPECT_EQ(job, nullptr);
    EXPECT_EQ(err.shd_errno, SHD_ENOTFOUND);
    EXPECT_EQ(err.grpc_status, NOT_FOUND);
    EXPECT_STREQ(err.message, "no job \"x\"; see shardctl jobs");

    daemon.refuse("GetJob", NOT_FOUND, "bare", 0); // by the status, without the trailer
    EXPECT_EQ(get_job("x", &job), SHD_ENOTFOUND);
    daemon.refuse("GetJob", UNIMPLEMENTED, "later", SHD_EUNSUPPORTED);
    EXPECT_EQ(get_job("x", &job), SHD_EUNSUPPORTED);
    /* NULL instead of an error is fine. */
    Shard__V1__JobRef ref = SHARD__V1__JOB_REF__INIT;
    EXPECT_EQ(shc_get_job(client, &ref, &job, nullptr), SHD_EUNSUPPORTED);
}

TEST_F(Client, NobodyListens)
{
    connect(); // contacts nobody
    Shard__V1__Job *job;
    EXPECT_EQ(get_job("x", &job), SHD_EUNAVAILABLE);
    EXPECT_EQ(err.grpc_status, UNAVAILABLE);
    EXPECT_NE(std::string(err.message).find(socket + ": there is no such socket; start shardd"),
              std::string::npos)
        << err.message;
    EXPECT_EQ(shc_probe(client, nullptr), SHD_EUNAVAILABLE);

    int fd = ::socket(AF_UNIX, SOCK_STREAM, 0);
    sockaddr_un addr{};
    addr.sun_family = AF_UNIX;
    socket.copy(addr.sun_path, sizeof addr.sun_path - 1);
    ASSERT_EQ(bind(fd, reinterpret_cast<sockaddr *>(&addr), sizeof addr), 0);
    close(fd); // the file stays, as after kill -9
    EXPECT_EQ(get_job("x", &job), SHD_EUNAVAILABLE);
    EXPECT_NE(std::string(err.message).find("nobody listens"), std::string::npos) << err.message;
}

TEST_F(Client, ConnectsOnceTheDaemonIsThere)
{
    connect();
    Shard__V1__Job *job;
    EXPECT_EQ(get_job("x", &job), SHD_EUNAVAILABLE);
    FakeDaemon daemon(socket);
    daemon.reply("GetJob", TestJob().job);
    int rc = -1;
    for (int i = 0; i < 100 && rc; i++) {
        rc = get_job("x", &job);
        if (rc)
            std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    ASSERT_EQ(rc, 0) << err.message;
    shard__v1__job__free_unpacked(job, nullptr);
}

TEST_F(Client, PathsThatCannotBeSockets)
{
    EXPECT_EQ(shc_connect("", &err), nullptr);
    EXPECT_EQ(err.shd_errno, SHD_EINVAL);
    const std::string lengthy = "/" + std::string(120, 'x');
    EXPECT_EQ(shc_connect(lengthy.c_str(), &err), nullptr);
    EXPECT_NE(std::string(err.message).find("121 bytes"), std::string::npos) << err.message;
    shc_close(nullptr);
}

TEST_F(Client, PathsWithOddCharacters)
{
    socket = dir.path("a b%25#?");
    FakeDaemon daemon(socket);
    daemon.reply("GetJob", TestJob().job);
    connect();
    Shard__V1__Job *job;
    ASSERT_EQ(get_job("x", &job), 0) << err.message;
    shard__v1__job__free_unpacked(job, nullptr);
}

TEST_F(Client, DeadlinePasses)
{
    std::atomic<int64_t> given{0};
    FakeDaemon daemon(socket);
    daemon.on("GetJob", [&](fake_call *call, const std::string &) {
        given = fake_deadline_ms(call);
        fake_wait_gone(call, 20000);
    });
    connect();
    shc_set_timeout(client, 300);
    Shard__V1__Job *job;
    const auto start = std::chrono::steady_clock::now();
    EXPECT_EQ(get_job("x", &job), SHD_ETIMEOUT);
    EXPECT_EQ(err.grpc_status, DEADLINE_EXCEEDED);
    EXPECT_LT(seconds_since(start), 10);
    EXPECT_NE(std::string(err.message).find("no answer within 0.3 s"), std::string::npos)
        << err.message;
    EXPECT_LE(given, 300);
}

TEST_F(Client, SomebodyElseListens)
{
    int fd = ::socket(AF_UNIX, SOCK_STREAM, 0);
    sockaddr_un addr{};
    addr.sun_family = AF_UNIX;
    socket.copy(addr.sun_path, sizeof addr.sun_path - 1);
    ASSERT_EQ(bind(fd, reinterpret_cast<sockaddr *>(&addr), sizeof addr), 0);
    ASSERT_EQ(listen(fd, 5), 0); // and never answers
    connect();
    shc_set_timeout(client, 300);
    Shard__V1__Job *job;
    EXPECT_EQ(get_job("x", &job), SHD_ETIMEOUT) << err.message;
    close(fd);
}

TEST_F(Client, InterruptEndsAUnaryCall)
{
    FakeDaemon daemon(socket);
    daemon.on("GetJob", [](fake_call *call, const std::string &) { fake_wait_gone(call, 20000); });
    connect();
    static volatile sig_atomic_t flag;
    flag = 0;
    signal(SIGALRM, [](int) { flag = 1; });
    shc_set_interrupt(client, &flag);
    ualarm(200000, 0);
    const auto start = std::chrono::steady_clock::now();
    Shard__V1__Job *job;
    EXPECT_EQ(get_job("x", &job), SHD_ECANCELLED);
    EXPECT_EQ(err.grpc_status, CANCELLED);
    EXPECT_LT(seconds_since(start), 5);
    shc_set_interrupt(client, nullptr);
}

TEST_F(Client, StreamGivesMessagesInOrderThenEnds)
{
    FakeDaemon daemon(socket);
    daemon.on("Watch", [](fake_call *call, const std::string &) {
        for (uint64_t i = 0; i < 1000; i++)
            send_event(call, step_event(i, i + 1, 1.5));
        fake_finish(call, 0, "", 0);
    });
    connect();
    shc_stream *stream;
    ASSERT_EQ(watch(&stream), 0);
    ProtobufCMessage *message;
    uint64_t n = 0;
    int got;
    while ((got = shc_stream_next(stream, -1, &message, &err)) == SHC_MESSAGE) {
        const auto *event = reinterpret_cast<Shard__V1__Event *>(message);
        ASSERT_EQ(event->index, n++);
        ASSERT_EQ(event->step->step, n);
        shc_message_free(message);
    }
    EXPECT_EQ(got, SHC_END) << err.message;
    EXPECT_EQ(n, 1000u);
    EXPECT_EQ(shc_stream_next(stream, -1, &message, &err), SHC_END); // and stays there
    shc_stream_close(stream);
    shc_stream_close(nullptr);
}

TEST_F(Client, StreamTimesOutAndGoesOn)
{
    std::atomic<int> go{0};
    FakeDaemon daemon(socket);
    daemon.on("Watch", [&](fake_call *call, const std::string &) {
        while (!go)
            std::this_thread::sleep_for(std::chrono::milliseconds(10));
        send_event(call, step_event(0, 1, 1.5));
        fake_wait_gone(call, 20000);
    });
    connect();
    shc_stream *stream;
    ASSERT_EQ(watch(&stream), 0);
    ProtobufCMessage *message;
    EXPECT_EQ(shc_stream_next(stream, 50, &message, &err), SHC_TIMEOUT);
    EXPECT_EQ(shc_stream_next(stream, 0, &message, &err), SHC_TIMEOUT);
    go = 1;
    ASSERT_EQ(shc_stream_next(stream, 20000, &message, &err), SHC_MESSAGE);
    shc_message_free(message);
    EXPECT_EQ(shc_stream_next(stream, 50, &message, &err), SHC_TIMEOUT);
    shc_stream_close(stream); // with a receive in flight: cancels, and the daemon sees it
}

TEST_F(Client, StreamErrors)
{
    FakeDaemon daemon(socket);
    daemon.refuse("Watch", NOT_FOUND, "no job \"7\"; see shardctl jobs", SHD_ENOTFOUND);
    connect();
    shc_stream *stream;
    ProtobufCMessage *message;
    ASSERT_EQ(watch(&stream), 0);
    EXPECT_EQ(shc_stream_next(stream, -1, &message, &err), SHD_ENOTFOUND);
    EXPECT_STREQ(err.message, "no job \"7\"; see shardctl jobs");
    shc_stream_close(stream);

    daemon.on("Watch", [&](fake_call *call, const std::string &) {
        send_event(call, step_event(0, 1, 1.5));
        daemon.cut();
        fake_wait_gone(call, 20000);
    });
    ASSERT_EQ(watch(&stream), 0);
    int got;
    while ((got = shc_stream_next(stream, -1, &message, &err)) == SHC_MESSAGE)
        shc_message_free(message);
    EXPECT_EQ(got, SHD_EUNAVAILABLE);
    EXPECT_NE(std::string(err.message).find("lost the connection"), std::string::npos)
        << err.message;
    shc_stream_close(stream);
}

TEST_F(Client, InterruptWakesAStream)
{
    FakeDaemon daemon(socket);
    daemon.on("Watch", [](fake_call *call, const std::string &) { fake_wait_gone(call, 20000); });
    connect();
    static volatile sig_atomic_t flag;
    flag = 0;
    signal(SIGALRM, [](int) { flag = 1; });
    shc_set_interrupt(client, &flag);
    shc_stream *stream;
    ProtobufCMessage *message;
    ASSERT_EQ(watch(&stream), 0);
    ualarm(200000, 0);
    const auto start = std::chrono::steady_clock::now();
    EXPECT_EQ(shc_stream_next(stream, -1, &message, &err), SHD_ECANCELLED);
    EXPECT_LT(seconds_since(start), 5);
    shc_stream_close(stream);
    Shard__V1__Job *job;
    EXPECT_EQ(get_job("x", &job), SHD_ECANCELLED); // as long as the flag is up
    shc_set_interrupt(client, nullptr);
}

TEST_F(Client, AnswerThatIsNoMessage)
{
    FakeDaemon daemon(socket);
    daemon.on("GetJob", [](fake_call *call, const std::string &) {
        Shard__V1__Bytes wrong = SHARD__V1__BYTES__INIT;
        wrong.planned = 5; // a varint where Job has a string
        fake_send(call, &wrong.base);
        fake_finish(call, 0, "", 0);
    });
    connect();
    Shard__V1__Job *job;
    EXPECT_EQ(get_job("x", &job), SHD_EDATA);
    EXPECT_EQ(job, nullptr);
    EXPECT_NE(std::string(err.message).find("shard.v1.Job"), std::string::npos) << err.message;
}

TEST_F(Client, Health)
{
    FakeDaemon daemon(socket);
    Grpc__Health__V1__HealthCheckResponse serving = GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__INIT;
    serving.status = GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__SERVING;
    daemon.reply("Check", serving);
    connect();
    Grpc__Health__V1__HealthCheckResponse__ServingStatus status;
    ASSERT_EQ(shc_health(client, "", &status, &err), 0) << err.message;
    EXPECT_EQ(status, GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__SERVING);
}

TEST_F(Client, ManyClientsOnManyThreads)
{
    FakeDaemon daemon(socket);
    daemon.reply("GetJob", TestJob(3).job);
    std::atomic<int> good{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 8; t++)
        threads.emplace_back([&] {
            shc_client *mine = shc_connect(socket.c_str(), nullptr);
            for (int i = 0; i < 20; i++) {
                Shard__V1__JobRef ref = SHARD__V1__JOB_REF__INIT;
                Shard__V1__Job *job;
                if (!shc_get_job(mine, &ref, &job, nullptr)) {
                    good += job->step == 3;
                    shard__v1__job__free_unpacked(job, nullptr);
                }
            }
            shc_close(mine);
        });
    for (auto &thread : threads)
        thread.join();
    EXPECT_EQ(good, 160);
}
