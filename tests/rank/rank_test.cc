// A rank's thread executes its inbox in order, whoever posts, and finishes it before it goes.
#include "daemon/rank/rank.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace
{

struct Letter {
    std::vector<std::pair<int, int>> *log;
    int poster, number;
};

void Append(shd_rank *, void *arg)
{
    auto *letter = static_cast<Letter *>(arg);
    letter->log->emplace_back(letter->poster, letter->number);
}

TEST(Rank, ExecutesInOrderOfPostingAndFinishesBeforeFree)
{
    constexpr int kPosters = 4, kLetters = 500;
    std::vector<std::pair<int, int>> log;
    std::vector<Letter> letters;
    for (int p = 0; p < kPosters; p++) {
        for (int i = 0; i < kLetters; i++) {
            letters.push_back({&log, p, i});
        }
    }
    shd_rank *rank = shd_rank_create(3, shd_device_create_cpu(1, 0));
    std::vector<std::thread> posters;
    for (int p = 0; p < kPosters; p++) {
        posters.emplace_back([&, p] {
            for (int i = 0; i < kLetters; i++) {
                shd_rank_post(rank, Append, &letters[p * kLetters + i]);
            }
        });
    }
    for (auto &poster : posters) {
        poster.join();
    }
    shd_rank_free(rank);

    ASSERT_EQ(log.size(), size_t{kPosters * kLetters});
    int next[kPosters] = {};
    for (const auto &entry : log) {
        EXPECT_EQ(entry.second, next[entry.first]++);
    }
}

struct Seen {
    uint32_t id;
    shd_device *device;
    pthread_t thread;
    char name[16];
    std::atomic<bool> done{false};
};

TEST(Rank, KnowsItselfOnItsOwnThread)
{
    shd_device *device = shd_device_create_cpu(1, 0);
    shd_rank *rank = shd_rank_create(7, device);
    Seen seen;
    shd_rank_post(
        rank,
        [](shd_rank *self, void *arg) {
            auto *out = static_cast<Seen *>(arg);
            out->id = shd_rank_id(self);
            out->device = shd_rank_device(self);
            out->thread = pthread_self();
            // The name is given from outside after the start: wait for it.
            for (int i = 0; i < 1000; i++) {
                pthread_getname_np(pthread_self(), out->name, sizeof(out->name));
                if (std::string(out->name).rfind("shardd-rank", 0) == 0) {
                    break;
                }
                usleep(1000);
            }
            out->done = true;
        },
        &seen);
    while (!seen.done) {
        usleep(100);
    }
    EXPECT_EQ(seen.id, 7u);
    EXPECT_EQ(seen.device, device);
    EXPECT_FALSE(pthread_equal(seen.thread, pthread_self()));
    EXPECT_STREQ(seen.name, "shardd-rank7");
    shd_rank_free(rank);
}

void PostAgain(shd_rank *self, void *arg)
{
    int *left = static_cast<int *>(arg);
    if (--*left > 0) {
        shd_rank_post(self, PostAgain, arg);
    }
}

TEST(Rank, ALetterMayPostLetters)
{
    int left = 100;
    shd_rank *rank = shd_rank_create(0, shd_device_create_cpu(1, 0));
    shd_rank_post(rank, PostAgain, &left);
    shd_rank_free(rank);
    EXPECT_EQ(left, 0);
}

TEST(Rank, BusyTimeCountsExecutionAlone)
{
    shd_rank *rank = shd_rank_create(0, shd_device_create_cpu(1, 0));
    std::atomic<int> stage{0};
    usleep(20000);
    EXPECT_EQ(shd_rank_busy_ns(rank), 0u);

    shd_rank_post(
        rank,
        [](shd_rank *, void *arg) {
            auto *at = static_cast<std::atomic<int> *>(arg);
            usleep(20000);
            *at = 1;
            while (*at == 1) {
                usleep(100);
            }
        },
        &stage);
    while (stage == 0) {
        usleep(100);
    }
    // Still executing, and counted already.
    EXPECT_GE(shd_rank_busy_ns(rank), 20000000u);
    stage = 2;
    uint64_t before, after;
    do { // until it is idle again: then the figure stands still
        before = shd_rank_busy_ns(rank);
        usleep(5000);
        after = shd_rank_busy_ns(rank);
    } while (before != after);
    EXPECT_GE(after, 20000000u);
    shd_rank_free(rank);
}

TEST(Rank, FreeOfNothing)
{
    shd_rank_free(nullptr);
}

} // namespace
