// The tape's dealing with memory: what is kept, given back, and not there.
#include "tests/tape/graph.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

namespace
{

using namespace graph;

TEST(Memory, LossesAreTheSameWithAndWithoutRecording)
{
    Taped t(kBlock);
    Fill(&t, kBlock);
    shd_tape_reset(t.tape, 0);
    Block(t, kIds, kTargets);
    ASSERT_EQ(0, shd_tape_error(t.tape, nullptr));
    EXPECT_EQ(0u, t.Transient()) << "forward alone keeps nothing that was dropped";
    EXPECT_EQ(0, shd_tape_mark(t.tape));
    const std::vector<float> forward = t.losses;
    shd_tape_reset(t.tape, 1);
    Block(t, kIds, kTargets);
    EXPECT_GT(t.Transient(), 0u);
    ASSERT_EQ(0, shd_tape_backward(t.tape, 0, nullptr));
    EXPECT_EQ(0u, t.Transient()) << "backward gives back what the last reader has read";
    EXPECT_EQ(forward, t.losses);
}

TEST(Memory, AResidualGradientIsHandedOverNotCopied)
{
    const std::vector<int32_t> ids = Identity(4);
    const std::vector<Param> defs = {{4, 6}, {6, 6}, {4, 6}};
    Taped t(defs);
    Fill(&t, defs);
    shd_tape_reset(t.tape, 1);
    shd_tensor *x = t.embedding(t.param(0), t.none(), ids, 4);
    shd_tensor *r = t.embedding(t.param(2), t.none(), ids, 4);
    const int64_t mark = shd_tape_mark(t.tape);
    shd_tensor *y = t.linear(x, t.param(1), t.none(), r, 1);
    t.weigh(y);
    const void *grad = y->grad;
    ASSERT_EQ(0, shd_tape_backward(t.tape, mark, nullptr));
    EXPECT_EQ(mark, shd_tape_mark(t.tape)) << "the nodes below stay";
    EXPECT_EQ(grad, r->grad);
    EXPECT_EQ(nullptr, y->grad);
    EXPECT_EQ(1, r->grad_defined);
    ASSERT_EQ(0, shd_tape_backward(t.tape, 0, nullptr));
}

TEST(Memory, GeluMakesItsGradientInPlace)
{
    const std::vector<int32_t> ids = Identity(4);
    const std::vector<Param> defs = {{4, 6}};
    Taped t(defs);
    Fill(&t, defs);
    shd_tape_reset(t.tape, 1);
    shd_tensor *x = t.embedding(t.param(0), t.none(), ids, 4);
    const int64_t mark = shd_tape_mark(t.tape);
    shd_tensor *y = t.gelu(x);
    t.weigh(y);
    const void *grad = y->grad;
    ASSERT_EQ(0, shd_tape_backward(t.tape, mark, nullptr));
    EXPECT_EQ(grad, x->grad);
}

TEST(Memory, DroppedTensorsGoAndKeptOnesStay)
{
    const std::vector<int32_t> ids = Identity(4);
    const std::vector<Param> defs = {{4, 64}};
    Taped t(defs);
    Fill(&t, defs);
    for (int record : {0, 1}) {
        shd_tape_reset(t.tape, record);
        shd_tensor *x = t.embedding(t.param(0), t.none(), ids, 4);
        const uint64_t one = t.Transient();
        shd_tensor *y = t.gelu(x);
        EXPECT_EQ(2 * one, t.Transient());
        t.drop(x);
        EXPECT_EQ(record ? 2 * one : one, t.Transient()) << "backward of GELU reads its input";
        t.drop(y);
        EXPECT_EQ(record ? one : 0, t.Transient());
        t.drop(nullptr);
        t.drop(t.param(0));
        EXPECT_NE(nullptr, Data(&t.params[0]));
    }
    shd_tape_reset(t.tape, 0);
    EXPECT_EQ(0u, t.Transient());
}

// Whatever allocation is the one that fails: the error sticks, nothing is lost, and the tape works
// again after a reset.
TEST(Memory, EveryAllocationMayFail)
{
    const uint64_t extent = 2 << 20;
    Taped t(kBlock, extent);
    Fill(&t, kBlock);
    shd_usage usage[SHD_TAG_COUNT];
    shd_arena_usage(t.arena, usage);
    uint64_t held = 0;
    for (const shd_usage &u : usage) {
        held += u.now;
    }
    int failures = 0, in_backward = 0;
    bool done = false;
    for (uint64_t left = 0; !done; left += SHD_ARENA_ALIGN) {
        ASSERT_LT(left, extent - held);
        void *filler = nullptr;
        ASSERT_EQ(0,
                  shd_arena_alloc(t.arena, SHD_TAG_DATA, extent - held - left, &filler, nullptr));
        for (shd_tensor &param : t.params) {
            param.grad_defined = 0;
        }
        shd_tape_reset(t.tape, 1);
        Block(t, kIds, kTargets);
        const int forward = shd_tape_error(t.tape, nullptr);
        shd_error err = {};
        const int rc = shd_tape_backward(t.tape, 0, &err);
        if (rc == 0) {
            done = true;
        } else {
            EXPECT_EQ(SHD_ENOMEM, rc);
            EXPECT_NE(std::string::npos, std::string(err.message).find("bytes")) << err.message;
            failures++;
            in_backward += forward == 0;
            // Sticky: nothing works until the reset, and nothing crashes.
            EXPECT_EQ(nullptr, t.embedding(t.param(0), t.none(), kIds, 5));
            EXPECT_EQ(nullptr, t.gelu(nullptr));
            EXPECT_EQ(nullptr, t.attention(nullptr, 2, 5));
            EXPECT_EQ(nullptr, t.linear(nullptr, t.param(4), nullptr, nullptr, 1));
            EXPECT_EQ(nullptr, t.layernorm(nullptr, t.param(2), t.param(3), 1e-5f));
            EXPECT_EQ(nullptr, shd_tape_rows(t.tape, nullptr, 0, 1));
            shd_tape_cross_entropy(t.tape, nullptr, t.param(0), kTargets.data(), t.losses.data());
            shd_error again = {};
            EXPECT_EQ(rc, shd_tape_error(t.tape, &again));
            EXPECT_STREQ(err.message, again.message) << "the first failure is the one that is told";
        }
        shd_tape_reset(t.tape, 0);
        EXPECT_EQ(0u, t.Transient());
        shd_arena_release(t.arena, filler);
    }
    EXPECT_GT(failures, 10);
    EXPECT_GT(in_backward, 0);
    EXPECT_LT(in_backward, failures);
}

// Forward alone, the same.
TEST(Memory, EveryAllocationMayFailWithoutRecording)
{
    const uint64_t extent = 2 << 20;
    Taped t(kBlock, extent);
    Fill(&t, kBlock);
    shd_usage usage[SHD_TAG_COUNT];
    shd_arena_usage(t.arena, usage);
    uint64_t held = 0;
    for (const shd_usage &u : usage) {
        held += u.now;
    }
    int rc = -1, failures = 0;
    for (uint64_t left = 0; rc != 0; left += SHD_ARENA_ALIGN) {
        void *filler = nullptr;
        ASSERT_EQ(0,
                  shd_arena_alloc(t.arena, SHD_TAG_DATA, extent - held - left, &filler, nullptr));
        shd_tape_reset(t.tape, 0);
        Block(t, kIds, kTargets);
        rc = shd_tape_error(t.tape, nullptr);
        failures += rc != 0;
        shd_tape_reset(t.tape, 0);
        EXPECT_EQ(0u, t.Transient());
        shd_arena_release(t.arena, filler);
    }
    EXPECT_GT(failures, 5);
}

// A batch smaller than the planned one must fit into the planned memory.
TEST(Memory, FewerRowsNeverTakeMore)
{
    shd_device *dev = shd_device_create_null(1);
    for (int64_t vocab : {61, 5003, 50257, 300000}) {
        uint64_t most = 0;
        for (int64_t rows = 1; rows <= 2300; rows++) {
            shd_arena *arena = nullptr;
            ASSERT_EQ(0, shd_device_arena(dev, 0, &arena, nullptr));
            shd_tape *tape = shd_tape_create(dev, arena, SHD_F32);
            shd_tape_reset(tape, 0);
            shd_tensor table = {};
            table.ndim = 2;
            table.shape[0] = vocab;
            table.shape[1] = 8;
            table.is_param = table.requires_grad = 1;
            shd_tensor *h = shd_tape_embedding(tape, &table, nullptr, nullptr, rows, rows, 0, -1);
            shd_tape_cross_entropy(tape, h, &table, nullptr, nullptr);
            ASSERT_EQ(0, shd_tape_error(tape, nullptr));
            const uint64_t peak = shd_arena_total_peak(arena);
            EXPECT_GE(peak, most) << rows << " rows of " << vocab;
            most = peak;
            shd_tape_free(tape);
            shd_arena_free(arena);
        }
    }
    const shd_opctx *ctx = shd_device_opctx(dev);
    for (shd_dtype dtype : {SHD_F32, SHD_BF16, SHD_F16}) {
        const shd_compute_ops *ops = shd_device_compute_ops(dev, dtype);
        const std::function<size_t(int64_t)> sizes[] = {
            [&](int64_t n) { return ops->layernorm_backward_ws(ctx, n, 24); },
            [&](int64_t n) { return ops->rmsnorm_backward_ws(ctx, n, 24); },
            [&](int64_t n) { return ops->embedding_backward_ws(ctx, n, 100); },
            [&](int64_t n) { return ops->linear_ws(ctx, n, 24, 40); },
        };
        for (const auto &size : sizes) {
            for (int64_t rows = 1; rows <= 2300; rows++) {
                EXPECT_GE(size(rows + 1), size(rows)) << rows;
            }
        }
        for (int backward : {0, 1}) {
            for (int64_t window : {0, 50}) {
                size_t attention = 0;
                for (int64_t tokens = 1; tokens <= 600; tokens++) {
                    shd_attn_shape shape = {};
                    shape.B = 1, shape.T = tokens, shape.H = shape.KVH = 2, shape.D = 24;
                    shape.q_stride = shape.kv_stride = 144, shape.out_stride = 48;
                    shape.window = window;
                    EXPECT_GE(ops->attention_ws(ctx, &shape, backward), attention) << tokens;
                    attention = ops->attention_ws(ctx, &shape, backward);
                }
            }
        }
    }
    shd_device_free(dev);
}

// With a reserve, smaller shapes do not only fit, they take the very same memory.
TEST(Memory, WithinTheReserveEveryShapeTakesTheSame)
{
    for (int record : {0, 1}) {
        uint64_t extent = 0;
        std::vector<uint64_t> peaks;
        for (auto [sequences, tokens] : {std::pair{30, 5}, std::pair{1, 1}, std::pair{30, 1},
                                         std::pair{7, 3}, std::pair{1, 5}, std::pair{29, 5}}) {
            Taped t(kBlock);
            Fill(&t, kBlock);
            shd_tape_reserve(t.tape, 150, 5);
            const std::vector<int32_t> ids(static_cast<size_t>(sequences * tokens), 3);
            for (int again = 0; again < 2; again++) {
                shd_tape_reset(t.tape, record);
                Block(t, ids, ids, tokens);
                ASSERT_EQ(0, shd_tape_backward(t.tape, 0, nullptr));
                EXPECT_EQ(0u, t.Transient());
            }
            shd_usage usage[SHD_TAG_COUNT];
            shd_arena_usage(t.arena, usage);
            std::vector<uint64_t> now;
            for (const shd_usage &u : usage) {
                now.push_back(u.peak);
            }
            if (peaks.empty()) {
                extent = shd_arena_extent(t.arena);
                peaks = now;
            }
            EXPECT_EQ(extent, shd_arena_extent(t.arena)) << sequences << " x " << tokens;
            EXPECT_EQ(peaks, now) << sequences << " x " << tokens;
        }
    }
}

// The logits of one row alone are not made as large as the micro-batch.
TEST(Memory, RowsTakenOutTakeTheirOwn)
{
    const std::vector<Param> defs = {{4, 64}, {1000, 64}};
    const std::vector<int32_t> ids = Identity(4);
    Taped t(defs);
    Fill(&t, defs);
    shd_tape_reserve(t.tape, 100, 4);
    shd_tape_reset(t.tape, 0);
    shd_tensor *x = t.embedding(t.param(0), t.none(), ids, 4);
    EXPECT_EQ(100u * 64 * 4, t.Transient());
    shd_tensor *last = shd_tape_rows(t.tape, x, 3, 1);
    t.drop(x);
    shd_tensor *logits = t.linear(last, t.param(1), t.none(), t.none(), 0);
    t.drop(last);
    EXPECT_EQ(4096u, t.Transient()); // 4,000 bytes, rounded up
    EXPECT_EQ(1000, logits->shape[1]);
    shd_tape_reset(t.tape, 0);
    t.drop(t.embedding(t.param(0), t.none(), ids, 4));
}

} // namespace
