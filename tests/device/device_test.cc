#include "daemon/device/device.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

namespace
{

TEST(Device, CpuComputesInItsArena)
{
    shd_device *dev = shd_device_create_cpu(2, 0);
    EXPECT_STREQ("cpu", shd_device_kind(dev));
    EXPECT_FALSE(shd_device_is_null(dev));
    EXPECT_EQ(2, shd_device_nthreads(dev));
    EXPECT_EQ(shd_ops_cpu(), shd_device_ops(dev));

    shd_arena *arena = nullptr;
    shd_error err;
    ASSERT_EQ(SHD_OK, shd_device_arena(dev, 1 << 20, &arena, &err)) << err.message;
    EXPECT_FALSE(shd_arena_is_virtual(arena));
    void *a = nullptr, *b = nullptr;
    ASSERT_EQ(SHD_OK, shd_arena_alloc(arena, SHD_TAG_DATA, 4000, &a, &err)) << err.message;
    ASSERT_EQ(SHD_OK, shd_arena_alloc(arena, SHD_TAG_DATA, 4000, &b, &err)) << err.message;

    const std::vector<float> host(1000, 1.5f);
    std::vector<float> back(1000, 0.0f);
    shd_device_from_host(dev, a, host.data(), 4000);
    shd_device_to_device(dev, b, a, 4000);
    shd_device_compute_ops(dev, SHD_F32)->add(shd_device_opctx(dev), b, a, b, 1000);
    shd_device_to_host(dev, back.data(), b, 4000);
    EXPECT_EQ(std::vector<float>(1000, 3.0f), back);

    shd_arena_free(arena);
    shd_device_free(dev);
}

TEST(Device, CpuRefusesWhatTheMachineLacks)
{
    shd_device *dev = shd_device_create_cpu(1, 0);
    shd_arena *arena = nullptr;
    shd_error err;
    EXPECT_EQ(SHD_ENOMEM, shd_device_arena(dev, uint64_t{1} << 50, &arena, &err));
    EXPECT_EQ(nullptr, arena);
    shd_device_free(dev);
}

TEST(Device, NullCountsAndTouchesNothing)
{
    shd_device *dev = shd_device_create_null(3);
    EXPECT_STREQ("null", shd_device_kind(dev));
    EXPECT_TRUE(shd_device_is_null(dev));
    EXPECT_EQ(3, shd_device_nthreads(dev));
    EXPECT_EQ(shd_ops_null(), shd_device_ops(dev));

    shd_arena *arena = nullptr;
    ASSERT_EQ(SHD_OK, shd_device_arena(dev, 0, &arena, nullptr));
    EXPECT_TRUE(shd_arena_is_virtual(arena));
    void *p = nullptr;
    ASSERT_EQ(SHD_OK, shd_arena_alloc(arena, SHD_TAG_PARAMS, uint64_t{1} << 40, &p, nullptr));
    EXPECT_EQ(uint64_t{1} << 40, shd_arena_extent(arena));

    std::vector<char> host(64, 'x');
    shd_device_from_host(dev, p, host.data(), 64);
    shd_device_to_device(dev, static_cast<char *>(p) + 64, p, 64);
    shd_device_to_host(dev, host.data(), p, 64);
    EXPECT_EQ(std::vector<char>(64, 0), host);

    shd_arena_free(arena);
    shd_device_free(dev);
}

/* A plan stands for a CPU device with as many threads. */
TEST(Device, NullHasTheWorkspacesOfTheCpu)
{
    shd_device *cpu = shd_device_create_cpu(3, 0), *null = shd_device_create_null(3);
    shd_attn_shape s = {};
    s.B = 2, s.T = 200, s.H = 4, s.KVH = 2, s.D = 16;
    s.q_stride = 64, s.kv_stride = 32, s.out_stride = 64, s.scale = 0.25f;
    EXPECT_EQ(shd_device_compute_ops(cpu, SHD_F32)->attention_ws(shd_device_opctx(cpu), &s, 1),
              shd_device_compute_ops(null, SHD_F32)->attention_ws(shd_device_opctx(null), &s, 1));
    shd_device_free(cpu);
    shd_device_free(null);
}

TEST(Device, FreeOfNull)
{
    shd_device_free(nullptr);
}

} // namespace
