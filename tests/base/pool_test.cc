#include "daemon/base/pool.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

namespace
{

struct Marks {
    std::vector<int> done;    /* times a piece ran; each piece writes its own */
    std::vector<int> workers; /* who ran it */
};

void Mark(void *arg, int64_t piece, int worker)
{
    Marks *m = static_cast<Marks *>(arg);
    m->done[static_cast<size_t>(piece)]++;
    m->workers[static_cast<size_t>(piece)] = worker;
}

void RunOnce(shd_pool *pool, int64_t n)
{
    Marks m{std::vector<int>(static_cast<size_t>(n)), std::vector<int>(static_cast<size_t>(n), -1)};
    shd_pool_run(pool, n, Mark, &m);
    for (size_t i = 0; i < m.done.size(); i++) {
        ASSERT_EQ(1, m.done[i]) << "piece " << i << " of " << n;
        ASSERT_GE(m.workers[i], 0);
        ASSERT_LT(m.workers[i], shd_pool_nthreads(pool));
    }
}

class PoolTest : public ::testing::TestWithParam<std::tuple<int, int>>
{
};

/* Plain writes of the pieces are read by the owner after each run: a missing happens-before edge
 * shows under ThreadSanitizer. */
TEST_P(PoolTest, EveryPieceOnceInManyRuns)
{
    shd_pool *pool = shd_pool_create(std::get<0>(GetParam()), std::get<1>(GetParam()), "test");
    EXPECT_EQ(std::get<0>(GetParam()), shd_pool_nthreads(pool));
    for (int run = 0; run < 300; run++) {
        RunOnce(pool, run % 37);
        if (run % 100 == 99) { /* let everybody fall asleep */
            std::this_thread::sleep_for(std::chrono::milliseconds(2));
        }
    }
    shd_pool_free(pool);
}

INSTANTIATE_TEST_SUITE_P(Sizes, PoolTest,
                         ::testing::Combine(::testing::Values(1, 2, 3, 5),
                                            ::testing::Values(0, 1)));

struct Sum {
    int64_t total;
    std::vector<int64_t> per_worker;
};

TEST(Pool, ScratchOfAWorkerIsItsOwn)
{
    shd_pool *pool = shd_pool_create(4, 0, "test");
    Sum sum{0, std::vector<int64_t>(4)};
    for (int run = 0; run < 50; run++) {
        shd_pool_run(
            pool, 100,
            [](void *arg, int64_t piece, int worker) {
                static_cast<Sum *>(arg)->per_worker[static_cast<size_t>(worker)] += piece;
            },
            &sum);
    }
    for (int64_t s : sum.per_worker) {
        sum.total += s;
    }
    EXPECT_EQ(50 * 4950, sum.total);
    shd_pool_free(pool);
}

TEST(Pool, ThreadsDoTakePart)
{
    shd_pool *pool = shd_pool_create(2, 0, "test");
    Marks m{std::vector<int>(64), std::vector<int>(64, -1)};
    shd_pool_run(
        pool, 64,
        [](void *arg, int64_t piece, int worker) {
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
            Mark(arg, piece, worker);
        },
        &m);
    bool others = false;
    for (int w : m.workers) {
        others = others || w != 0;
    }
    EXPECT_TRUE(others);
    shd_pool_free(pool);
}

TEST(Pool, OnePieceAndOneThreadRunInline)
{
    shd_pool *pool = shd_pool_create(3, 0, "test");
    std::thread::id who;
    shd_pool_run(
        pool, 1,
        [](void *arg, int64_t, int) {
            *static_cast<std::thread::id *>(arg) = std::this_thread::get_id();
        },
        &who);
    EXPECT_EQ(std::this_thread::get_id(), who);
    shd_pool_free(pool);
}

TEST(Pool, FreeOfNullAndOfAnUnusedPool)
{
    shd_pool_free(nullptr);
    shd_pool_free(shd_pool_create(8, 1, "unused"));
}

} // namespace
