// Streams: the same order, results and failures with a thread as without.
#include "daemon/device/stream.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

namespace
{

struct Job {
    std::vector<int> *log; // written by the stream's thread, read after a wait
    int number;
    int rc;
    std::atomic<bool> *gate; // waited for
    std::thread::id *where;
    shd_device **dev;
};

int Work(void *arg, shd_device *dev, shd_error *err)
{
    const Job *job = static_cast<Job *>(arg);
    while (job->gate != nullptr && !job->gate->load()) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    job->log->push_back(job->number);
    if (job->where != nullptr) {
        *job->where = std::this_thread::get_id();
    }
    if (job->dev != nullptr) {
        *job->dev = dev;
    }
    return job->rc < 0 ? shd_fail(err, job->rc, "number %d fails", job->number) : 0;
}

class Stream : public testing::TestWithParam<int>
{
  protected:
    Stream() : dev(shd_device_create_cpu(1, 0))
    {
        shd_device_set_streams(dev, GetParam());
        stream = shd_stream_create(dev, "test");
    }
    ~Stream() override
    {
        shd_stream_free(stream);
        shd_device_free(dev);
    }
    Job Make(int number, int rc = 0)
    {
        return {&log, number, rc, nullptr, nullptr, nullptr};
    }

    shd_device *dev;
    shd_stream *stream;
    std::vector<int> log;
};

TEST_P(Stream, WorksInOrder)
{
    std::vector<Job> jobs;
    std::vector<int> want;
    for (int i = 0; i < 1000; i++) {
        jobs.push_back(Make(i));
        want.push_back(i);
    }
    std::vector<uint64_t> tickets;
    for (Job &job : jobs) {
        tickets.push_back(shd_stream_submit(stream, Work, &job));
        if (tickets.size() % 100 == 0) {
            ASSERT_EQ(0, shd_stream_wait(stream, tickets[tickets.size() - 50], nullptr));
        }
    }
    EXPECT_EQ(0, shd_stream_wait(stream, tickets.back(), nullptr));
    EXPECT_EQ(want, log);
    EXPECT_EQ(0, shd_stream_wait(stream, tickets.front(), nullptr)) << "waited for again";
}

TEST_P(Stream, GivesADeviceToWorkWith)
{
    std::thread::id where;
    shd_device *with = nullptr;
    Job job = Make(1);
    job.where = &where;
    job.dev = &with;
    ASSERT_EQ(0, shd_stream_wait(stream, shd_stream_submit(stream, Work, &job), nullptr));
    EXPECT_EQ(GetParam() != 0, where != std::this_thread::get_id());
    EXPECT_EQ(GetParam() != 0, with != dev);
    EXPECT_STREQ("cpu", shd_device_kind(with));
    EXPECT_EQ(1, shd_device_nthreads(with));
}

TEST_P(Stream, AFailureEndsWhatComesAfterItUntilItIsForgotten)
{
    Job jobs[4] = {Make(1), Make(2, SHD_ENOMEM), Make(3), Make(4, SHD_EIO)};
    uint64_t tickets[4];
    for (int i = 0; i < 4; i++) {
        tickets[i] = shd_stream_submit(stream, Work, &jobs[i]);
    }
    shd_error err = {};
    EXPECT_EQ(SHD_ENOMEM, shd_stream_wait(stream, tickets[3], &err));
    EXPECT_STREQ("number 2 fails", err.message);
    EXPECT_EQ(SHD_ENOMEM, err.code);
    EXPECT_EQ(0, shd_stream_wait(stream, tickets[0], nullptr)) << "what was done before it is good";
    EXPECT_EQ(SHD_ENOMEM, shd_stream_wait(stream, tickets[1], nullptr));
    EXPECT_EQ((std::vector<int>{1, 2}), log);
    shd_stream_drain(stream);
    Job again = Make(5);
    EXPECT_EQ(0, shd_stream_wait(stream, shd_stream_submit(stream, Work, &again), &err));
    EXPECT_EQ((std::vector<int>{1, 2, 5}), log);
}

INSTANTIATE_TEST_SUITE_P(InlineAndThread, Stream, testing::Values(0, 1));

TEST(Threads, LeaveTheCallerAlone)
{
    shd_device *dev = shd_device_create_cpu(1, 0);
    shd_device_set_streams(dev, 1);
    shd_stream *stream = shd_stream_create(dev, "test");
    std::atomic<bool> gate(false);
    std::vector<int> log;
    std::vector<Job> jobs(100, Job{&log, 1, 0, &gate, nullptr, nullptr});
    uint64_t last = 0;
    for (Job &job : jobs) {
        last = shd_stream_submit(stream, Work, &job); // would never return inline
    }
    gate.store(true);
    EXPECT_EQ(0, shd_stream_wait(stream, last, nullptr));
    EXPECT_EQ(100u, log.size());
    // What is queued is done before a stream ends.
    gate.store(false);
    std::thread opener([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        gate.store(true);
    });
    shd_stream_submit(stream, Work, &jobs[0]);
    shd_stream_free(stream);
    EXPECT_EQ(101u, log.size());
    opener.join();
    shd_device_free(dev);
}

TEST(Null, NeverHasThreads)
{
    shd_device *dev = shd_device_create_null(4);
    shd_device_set_streams(dev, 1);
    EXPECT_EQ(0, shd_device_streams(dev));
    shd_device_free(dev);
}

} // namespace
