// Memory that is left: the least of what the system and every control group above leave.
#include "daemon/base/available.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

namespace
{

namespace fs = std::filesystem;

constexpr uint64_t kMiB = 1 << 20;

class Available : public ::testing::Test
{
  protected:
    void SetUp() override
    {
        char name[] = "/tmp/shd-available-XXXXXX";
        base = mkdtemp(name);
        write("proc/meminfo", "MemTotal:       9000 kB\nMemFree: 1 kB\nMemAvailable:    8192 kB\n");
        write("proc/self/cgroup", "0::/system.slice/shardd.service\n");
        fs::create_directories(base / "cg/system.slice/shardd.service");
    }
    void TearDown() override
    {
        fs::remove_all(base);
    }
    void write(const std::string &path, const std::string &text)
    {
        fs::create_directories((base / path).parent_path());
        std::ofstream(base / path) << text;
    }
    void limit(const std::string &group, const std::string &most, uint64_t used, uint64_t cached)
    {
        write(group + "/memory.max", most + "\n");
        write(group + "/memory.current", std::to_string(used) + "\n");
        write(group + "/memory.stat", "anon 1\ninactive_file " + std::to_string(cached / 2) +
                                          "\nactive_file " + std::to_string(cached / 2) +
                                          "\nslab_reclaimable 0\n");
    }
    uint64_t left() const
    {
        return shd_available_memory_in((base / "proc").c_str(), (base / "cg").c_str());
    }
    fs::path base;
};

TEST_F(Available, WithoutLimitsItIsWhatTheSystemHas)
{
    EXPECT_EQ(left(), 8 * kMiB);
    limit("cg/system.slice/shardd.service", "max", kMiB, 0);
    EXPECT_EQ(left(), 8 * kMiB);
    fs::remove(base / "proc/self/cgroup");
    EXPECT_EQ(left(), 8 * kMiB);
}

TEST_F(Available, TheGroupsOwnLimitCounts)
{
    limit("cg/system.slice/shardd.service", std::to_string(4 * kMiB), kMiB, 0);
    EXPECT_EQ(left(), 3 * kMiB);
    limit("cg/system.slice/shardd.service", std::to_string(4 * kMiB), 2 * kMiB, kMiB);
    EXPECT_EQ(left(), 3 * kMiB) << "cached files give way";
    limit("cg/system.slice/shardd.service", std::to_string(4 * kMiB), 5 * kMiB, 0);
    EXPECT_EQ(left(), 0u);
    limit("cg/system.slice/shardd.service", std::to_string(400 * kMiB), kMiB, 0);
    EXPECT_EQ(left(), 8 * kMiB) << "the system has less";
}

TEST_F(Available, SoDoThoseAboveIt)
{
    limit("cg/system.slice/shardd.service", std::to_string(6 * kMiB), kMiB, 0);
    limit("cg/system.slice", std::to_string(4 * kMiB), 2 * kMiB, 0);
    EXPECT_EQ(left(), 2 * kMiB);
    // As a container sees its own group.
    write("proc/self/cgroup", "0::/\n");
    EXPECT_EQ(left(), 8 * kMiB);
    limit("cg", std::to_string(kMiB), 0, 0);
    EXPECT_EQ(left(), kMiB);
}

TEST_F(Available, NothingTells)
{
    fs::remove_all(base / "proc");
    EXPECT_EQ(left(), UINT64_MAX);
}

TEST(AvailableHere, IsSomething)
{
    EXPECT_GT(shd_available_memory(), kMiB);
    EXPECT_LT(shd_available_memory(), UINT64_MAX);
}

} // namespace
