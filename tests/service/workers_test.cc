// Threads beside the loop: shares, order, and where things run.
#include "daemon/service/workers.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

namespace
{

struct Task {
    shd_task task{}; // first
    std::atomic<bool> running{false}, release{false};
    bool done = false, on_the_loop = false, cancelled = false;
    std::thread::id loop = std::this_thread::get_id();

    explicit Task(uid_t uid)
    {
        task.uid = uid;
        task.run = [](shd_task *t) {
            Task *self = reinterpret_cast<Task *>(t);
            self->running = true;
            while (!self->release && !__atomic_load_n(&t->cancel, __ATOMIC_RELAXED)) {
                std::this_thread::sleep_for(std::chrono::milliseconds(1));
            }
            self->cancelled = __atomic_load_n(&t->cancel, __ATOMIC_RELAXED) != 0;
        };
        task.done = [](shd_task *t) {
            Task *self = reinterpret_cast<Task *>(t);
            self->done = true;
            self->on_the_loop = std::this_thread::get_id() == self->loop;
        };
    }
};

class Workers : public ::testing::Test
{
  protected:
    void SetUp() override
    {
        uv_loop_init(&loop_);
        shd_error err;
        ASSERT_EQ(shd_workers_create(&loop_, 4, 2, &workers_, &err), 0) << err.message;
    }
    void TearDown() override
    {
        shd_workers_free(workers_);
        uv_run(&loop_, UV_RUN_DEFAULT);
        EXPECT_EQ(uv_loop_close(&loop_), 0);
    }
    Task *Run(uid_t uid)
    {
        tasks_.push_back(std::make_unique<Task>(uid));
        shd_workers_run(workers_, &tasks_.back()->task);
        return tasks_.back().get();
    }
    void Until(const std::function<bool()> &condition)
    {
        for (int i = 0; i < 60000; i++) {
            uv_run(&loop_, UV_RUN_NOWAIT);
            if (condition()) {
                return;
            }
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
        FAIL() << "waited for a minute in vain";
    }
    size_t Running() const
    {
        size_t n = 0;
        for (const auto &t : tasks_) {
            n += t->running && !t->done;
        }
        return n;
    }

    uv_loop_t loop_;
    shd_workers *workers_ = nullptr;
    std::vector<std::unique_ptr<Task>> tasks_;
};

TEST_F(Workers, AUserWhoseTasksHangHoldsUpNobodyElse)
{
    for (int i = 0; i < 5; i++) {
        Run(1000);
    }
    Until([&] { return Running() == 2; });
    EXPECT_EQ(shd_workers_tasks(workers_, 1000), 5u);
    EXPECT_EQ(shd_workers_tasks(workers_, 1001), 0u);
    for (int i = 0; i < 10; i++) { // one after the other, past those that wait
        Task *other = Run(1001);
        other->release = true;
        Until([&] { return other->done; });
        EXPECT_TRUE(other->on_the_loop);
    }
    EXPECT_EQ(Running(), 2u);
    EXPECT_FALSE(tasks_[2]->running);
    tasks_[1]->release = true;
    Until([&] { return tasks_[2]->running.load(); });
    EXPECT_FALSE(tasks_[3]->running) << "in order of arrival";
    for (auto &t : tasks_) {
        t->release = true;
    }
    Until([&] { return shd_workers_tasks(workers_, 1000) == 0; });
    for (auto &t : tasks_) {
        EXPECT_TRUE(t->done);
    }
}

TEST_F(Workers, SoManyAtOneTime)
{
    for (uid_t uid = 0; uid < 8; uid++) {
        Run(uid);
    }
    Until([&] { return Running() == 4; });
    for (int i = 0; i < 20; i++) {
        uv_run(&loop_, UV_RUN_NOWAIT);
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        EXPECT_EQ(Running(), 4u);
    }
    for (auto &t : tasks_) {
        t->release = true;
        Until([&] { return t->done; });
    }
}

TEST_F(Workers, ManyShortOnes)
{
    for (int i = 0; i < 2000; i++) {
        Run(static_cast<uid_t>(i % 7))->release = true;
    }
    Until([&] {
        for (auto &t : tasks_) {
            if (!t->done) {
                return false;
            }
        }
        return true;
    });
}

TEST_F(Workers, Cancelled)
{
    for (int i = 0; i < 4; i++) {
        Run(1);
    }
    Until([&] { return Running() == 2; });
    shd_workers_cancel(workers_);
    Until([&] { return tasks_[3]->done; });
    for (auto &t : tasks_) {
        EXPECT_TRUE(t->cancelled);
    }
}

} // namespace
