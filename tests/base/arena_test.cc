#include "daemon/base/arena.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace
{

constexpr uint64_t kMiB = 1 << 20;

struct Owner {
    shd_arena *arena;
    explicit Owner(shd_arena *a) : arena(a) {}
    ~Owner()
    {
        shd_arena_free(arena);
    }
    Owner(const Owner &) = delete;
    Owner &operator=(const Owner &) = delete;
};

shd_arena *Real(uint64_t extent, int nthreads = 2)
{
    shd_arena *arena = nullptr;
    shd_error err;
    EXPECT_EQ(SHD_OK, shd_arena_create(extent, nthreads, &arena, &err)) << err.message;
    return arena;
}

void *Take(shd_arena *arena, shd_tag tag, uint64_t size)
{
    void *p = nullptr;
    shd_error err;
    EXPECT_EQ(SHD_OK, shd_arena_alloc(arena, tag, size, &p, &err)) << err.message;
    return p;
}

TEST(Arena, RoundsAndAligns)
{
    Owner a(Real(1));
    void *p = Take(a.arena, SHD_TAG_PARAMS, 1), *q = Take(a.arena, SHD_TAG_PARAMS, 257);
    void *r = Take(a.arena, SHD_TAG_DATA, 0);
    for (void *x : {p, q, r}) {
        EXPECT_EQ(0u, reinterpret_cast<uintptr_t>(x) % SHD_ARENA_ALIGN);
    }
    EXPECT_EQ(256, static_cast<char *>(q) - static_cast<char *>(p));
    EXPECT_EQ(512, static_cast<char *>(r) - static_cast<char *>(q));
    shd_usage usage[SHD_TAG_COUNT];
    shd_arena_usage(a.arena, usage);
    EXPECT_EQ(768u, usage[SHD_TAG_PARAMS].now);
    EXPECT_EQ(256u, usage[SHD_TAG_DATA].now);
    EXPECT_EQ(1024u, shd_arena_extent(a.arena));
}

TEST(Arena, PeaksByTagAndInTotal)
{
    Owner a(shd_arena_create_virtual());
    void *p = Take(a.arena, SHD_TAG_GRADS, 1024);
    shd_arena_release(a.arena, p);
    Take(a.arena, SHD_TAG_COMM, 512);
    shd_usage usage[SHD_TAG_COUNT];
    shd_arena_usage(a.arena, usage);
    EXPECT_EQ(0u, usage[SHD_TAG_GRADS].now);
    EXPECT_EQ(1024u, usage[SHD_TAG_GRADS].peak);
    EXPECT_EQ(512u, usage[SHD_TAG_COMM].peak);
    EXPECT_EQ(1024u, shd_arena_total_peak(a.arena));
    shd_arena_reset_peaks(a.arena);
    shd_arena_usage(a.arena, usage);
    EXPECT_EQ(0u, usage[SHD_TAG_GRADS].peak);
    EXPECT_EQ(512u, usage[SHD_TAG_COMM].peak);
    EXPECT_EQ(512u, shd_arena_total_peak(a.arena));
    EXPECT_EQ(1024u, shd_arena_extent(a.arena));
}

TEST(Arena, FirstFitReusesTheLowestHole)
{
    Owner a(shd_arena_create_virtual());
    char *base = static_cast<char *>(Take(a.arena, SHD_TAG_PARAMS, 256));
    void *b = Take(a.arena, SHD_TAG_PARAMS, 1024), *keep = Take(a.arena, SHD_TAG_PARAMS, 256);
    void *c = Take(a.arena, SHD_TAG_PARAMS, 512), *keep2 = Take(a.arena, SHD_TAG_PARAMS, 256);
    shd_arena_release(a.arena, c);
    shd_arena_release(a.arena, b);
    EXPECT_EQ(base + 256, Take(a.arena, SHD_TAG_PARAMS, 512)) << "the lower hole, though larger";
    EXPECT_EQ(base + 768, Take(a.arena, SHD_TAG_PARAMS, 512));
    EXPECT_EQ(c, Take(a.arena, SHD_TAG_PARAMS, 300));
    shd_arena_release(a.arena, keep);
    shd_arena_release(a.arena, keep2);
}

TEST(Arena, NeighbouringHolesBecomeOne)
{
    /* Every order of releasing three neighbours gives one hole of their size back. */
    const int orders[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    for (const auto &order : orders) {
        Owner a(Real(2 * kMiB));
        void *p[3];
        for (void *&x : p) {
            x = Take(a.arena, SHD_TAG_WORKSPACE, 512);
        }
        Take(a.arena, SHD_TAG_WORKSPACE, 2 * kMiB - 3 * 512);
        for (int i : order) {
            shd_arena_release(a.arena, p[i]);
        }
        EXPECT_EQ(p[0], Take(a.arena, SHD_TAG_WORKSPACE, 3 * 512));
    }
}

/* A random but repeatable life of a rank: the offsets that it got. */
std::vector<int64_t> Replay(shd_arena *arena, uint32_t seed, bool write)
{
    std::mt19937 random(seed);
    struct Block {
        char *p;
        uint64_t size;
        char value;
    };
    std::vector<Block> live;
    std::vector<int64_t> offsets;
    char *base = static_cast<char *>(Take(arena, SHD_TAG_PARAMS, 256));
    for (int i = 0; i < 20000; i++) {
        if (live.size() < 20 || (random() % 100 < 50 && live.size() < 3000)) {
            const uint64_t size = 1 + random() % (random() % 10 == 0 ? 20000 : 1000);
            char *p = static_cast<char *>(
                Take(arena, static_cast<shd_tag>(random() % SHD_TAG_COUNT), size));
            offsets.push_back(p - base);
            live.push_back({p, size, static_cast<char>(i)});
            if (write) {
                memset(p, live.back().value, size);
            }
        } else {
            const size_t at = random() % live.size();
            if (write) { /* nobody else wrote into it */
                EXPECT_EQ(live[at].value, live[at].p[0]);
                EXPECT_EQ(live[at].value, live[at].p[live[at].size - 1]);
            }
            shd_arena_release(arena, live[at].p);
            live[at] = live.back();
            live.pop_back();
        }
    }
    for (const Block &b : live) {
        shd_arena_release(arena, b.p);
    }
    shd_arena_release(arena, base);
    return offsets;
}

TEST(Arena, VirtualAndRealGiveTheSameOffsets)
{
    Owner dry(shd_arena_create_virtual());
    const std::vector<int64_t> planned = Replay(dry.arena, 7, false);
    const uint64_t extent = shd_arena_extent(dry.arena);

    Owner real(Real(extent));
    EXPECT_EQ(planned, Replay(real.arena, 7, true));
    EXPECT_EQ(extent, shd_arena_extent(real.arena));
    EXPECT_EQ(shd_arena_total_peak(dry.arena), shd_arena_total_peak(real.arena));
    shd_usage a[SHD_TAG_COUNT], b[SHD_TAG_COUNT];
    shd_arena_usage(dry.arena, a);
    shd_arena_usage(real.arena, b);
    EXPECT_EQ(0, memcmp(a, b, sizeof(a)));
    EXPECT_EQ(0u, a[SHD_TAG_PARAMS].now);

    /* Everything is one hole again: the whole extent can be taken, and the life be lived again. */
    void *all = Take(real.arena, SHD_TAG_PARAMS, extent);
    shd_arena_release(real.arena, all);
    EXPECT_EQ(planned, Replay(real.arena, 7, true));
}

TEST(Arena, ExhaustionSaysWhatIsFree)
{
    Owner a(Real(2 * kMiB));
    Take(a.arena, SHD_TAG_PARAMS, kMiB);
    void *hole = Take(a.arena, SHD_TAG_GRADS, 4096);
    Take(a.arena, SHD_TAG_PARAMS, kMiB - 8192);
    shd_arena_release(a.arena, hole);
    void *p = &p;
    shd_error err;
    EXPECT_EQ(SHD_ENOMEM, shd_arena_alloc(a.arena, SHD_TAG_ACTIVATIONS, 5000, &p, &err));
    EXPECT_EQ(nullptr, p);
    EXPECT_STREQ(
        "arena has no room for 5000 bytes of activations: 8192 bytes are free, the largest "
        "piece has 4096, of 2097152 in all; the plan of this job was too small",
        err.message);
    EXPECT_EQ(SHD_ENOMEM, shd_arena_alloc(a.arena, SHD_TAG_DATA, UINT64_MAX, &p, nullptr));
    Take(a.arena, SHD_TAG_ACTIVATIONS, 4096);
}

TEST(Arena, MoreThanTheMachineHasIsRefused)
{
    shd_arena *arena = nullptr;
    shd_error err;
    ASSERT_EQ(SHD_ENOMEM, shd_arena_create(uint64_t{1} << 50, 1, &arena, &err));
    EXPECT_EQ(nullptr, arena);
    EXPECT_EQ(0u, std::string(err.message).find("cannot map an arena of 1125899906842624 bytes: "))
        << err.message;
}

TEST(Arena, VirtualHasNoLimitThatMatters)
{
    Owner a(shd_arena_create_virtual());
    EXPECT_TRUE(shd_arena_is_virtual(a.arena));
    for (int i = 0; i < 16; i++) {
        Take(a.arena, SHD_TAG_OPTIMIZER, uint64_t{1} << 44);
    }
    EXPECT_EQ(uint64_t{16} << 44, shd_arena_extent(a.arena));
    Owner b(Real(1));
    EXPECT_FALSE(shd_arena_is_virtual(b.arena));
}

TEST(Arena, UsageFromAnotherThread)
{
    Owner a(shd_arena_create_virtual());
    std::atomic<bool> stop{false};
    uint64_t largest = 0;
    std::thread reader([&] {
        do {
            shd_usage usage[SHD_TAG_COUNT];
            shd_arena_usage(a.arena, usage);
            largest = std::max(largest, usage[SHD_TAG_COMM].peak);
        } while (!stop.load());
    });
    for (int i = 0; i < 20000; i++) {
        shd_arena_release(a.arena, Take(a.arena, SHD_TAG_COMM, 1000));
    }
    stop.store(true);
    reader.join();
    EXPECT_EQ(1024u, largest);
}

TEST(Arena, NullsAreFine)
{
    shd_arena_free(nullptr);
    Owner a(shd_arena_create_virtual());
    shd_arena_release(a.arena, nullptr);
}

TEST(Arena, NamesOfTags)
{
    EXPECT_STREQ("params", shd_tag_name(SHD_TAG_PARAMS));
    EXPECT_STREQ("data", shd_tag_name(SHD_TAG_DATA));
}

TEST(ArenaDeathTest, ReleaseOfWhatIsNotALiveBlockAborts)
{
    Owner a(shd_arena_create_virtual());
    void *p = Take(a.arena, SHD_TAG_COMM, 100);
    EXPECT_DEATH(shd_arena_release(a.arena, static_cast<char *>(p) + 256), "not a live block");
    EXPECT_DEATH(
        {
            shd_arena_release(a.arena, p);
            shd_arena_release(a.arena, p);
        },
        "not a live block");
}

#if defined(__SANITIZE_ADDRESS__)
TEST(ArenaDeathTest, UseAfterReleaseIsCaught)
{
    Owner a(Real(1));
    volatile char *p = static_cast<char *>(Take(a.arena, SHD_TAG_COMM, 100));
    p[99] = 1;
    EXPECT_DEATH(p[104] = 1, "use-after-poison");
    shd_arena_release(a.arena, const_cast<char *>(p));
    EXPECT_DEATH(p[0] = 1, "use-after-poison");
}
#endif

} // namespace
