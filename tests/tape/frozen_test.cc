// What requires no gradient, what is run again, and dtypes.
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

std::vector<float> GradOf(const Taped &t, size_t i, const std::vector<Param> &defs)
{
    return std::vector<float>(Grad(&t.params[i]), Grad(&t.params[i]) + defs[i].numel());
}

void RunBlock(Taped *t)
{
    shd_tape_reset(t->tape, 1);
    for (shd_tensor &p : t->params) {
        p.grad_defined = 0;
    }
    Block(*t, kIds, kTargets);
    shd_error err = {};
    ASSERT_EQ(0, shd_tape_backward(t->tape, 0, &err)) << err.message;
    EXPECT_EQ(0u, t->Transient());
}

// Any set of frozen parameters: the others' gradients have the same bits, the frozen ones' memory
// is not looked at.
TEST(Frozen, TheRestHasTheSameBits)
{
    Taped all(kBlock);
    Fill(&all, kBlock);
    RunBlock(&all);
    std::mt19937 random(3);
    for (int round = 0; round < 60; round++) {
        Taped some(kBlock);
        Fill(&some, kBlock);
        for (size_t i = 0; i < kBlock.size(); i++) {
            some.params[i].requires_grad = round < 16   ? i == static_cast<size_t>(round)
                                           : round < 32 ? i != static_cast<size_t>(round - 16)
                                                        : static_cast<int>(random() % 2);
        }
        std::vector<void *> grads;
        for (shd_tensor &p : some.params) {
            grads.push_back(p.grad);
            p.grad = p.requires_grad ? p.grad : nullptr;
        }
        RunBlock(&some);
        EXPECT_EQ(all.losses, some.losses);
        for (size_t i = 0; i < kBlock.size(); i++) {
            if (some.params[i].requires_grad) {
                EXPECT_TRUE(some.params[i].grad_defined) << round << ": parameter " << i;
                EXPECT_EQ(GradOf(all, i, kBlock), GradOf(some, i, kBlock))
                    << round << ": parameter " << i;
            }
            some.params[i].grad = grads[i];
        }
    }
}

TEST(Frozen, NothingTrainedIsNothingRecorded)
{
    Taped t(kBlock);
    Fill(&t, kBlock);
    for (shd_tensor &p : t.params) {
        p.requires_grad = 0;
        p.grad_defined = 0;
    }
    shd_tape_reset(t.tape, 1);
    Block(t, kIds, kTargets);
    EXPECT_EQ(0, shd_tape_mark(t.tape));
    EXPECT_EQ(0u, t.Transient());
    for (float loss : t.losses) {
        EXPECT_FALSE(std::isnan(loss)) << "losses are there after forward";
    }
    ASSERT_EQ(0, shd_tape_backward(t.tape, 0, nullptr));
}

// A frozen first half: no memory is kept for it.
TEST(Frozen, UpstreamOfTheTrainedKeepsNoActivations)
{
    uint64_t kept[2];
    for (int frozen : {0, 1}) {
        Taped t(kBlock);
        Fill(&t, kBlock);
        for (size_t i = 0; i < 14; i++) {
            t.params[i].requires_grad = !frozen;
        }
        shd_tape_reset(t.tape, 1);
        shd_tensor *x = t.embedding(t.param(0), t.param(1), kIds, 5);
        shd_tensor *n = t.layernorm(x, t.param(2), t.param(3), 1e-5f);
        t.drop(x);
        shd_tensor *qkv = t.linear(n, t.param(4), t.param(5), t.none(), 1);
        t.drop(n);
        shd_tensor *a = t.attention(qkv, 2, 5);
        t.drop(qkv);
        EXPECT_EQ(!frozen, a->requires_grad);
        kept[frozen] = t.Transient();
        t.drop(a);
    }
    EXPECT_LT(kept[1], kept[0] / 3);
}

// Activation checkpointing: two segments; the second is run unrecorded first and again in backward.
TEST(Recompute, HasTheSameBits)
{
    const std::vector<Param> defs = {{9, 8}, {8, 0, 1.0}, {8, 0}, {8, 8}, {8, 0}, {9, 8}};
    const auto first = [](Taped &t) { return t.embedding(t.param(0), t.none(), kIds, 5); };
    const auto second = [](Taped &t, shd_tensor *x) {
        shd_tensor *n = t.layernorm(x, t.param(1), t.param(2), 1e-5f);
        shd_tensor *y = t.linear(n, t.param(3), t.param(4), x, 1);
        t.drop(n);
        shd_tensor *g = t.gelu(y);
        t.drop(y);
        t.drop(x);
        return g;
    };
    std::vector<std::vector<float>> grads[2];
    std::vector<float> losses[2];
    for (int again : {0, 1}) {
        Taped t(defs);
        Fill(&t, defs);
        shd_tape_reset(t.tape, 1);
        shd_tensor *x = first(t);
        const int64_t mark1 = shd_tape_mark(t.tape);
        shd_tensor *kept = x;
        if (again) {
            shd_tape_hold(t.tape, x);
            shd_tape_record(t.tape, 0);
        }
        shd_tensor *g = second(t, x);
        EXPECT_TRUE(g->requires_grad) << "also when not recorded";
        if (again) {
            EXPECT_EQ(mark1, shd_tape_mark(t.tape));
            shd_tape_record(t.tape, 1);
        }
        const int64_t mark2 = shd_tape_mark(t.tape);
        shd_tape_hold(t.tape, g);
        t.cross_entropy(g, t.param(5), kTargets);
        t.drop(g);
        ASSERT_EQ(0, shd_tape_backward(t.tape, mark2, nullptr));
        if (again) {
            shd_tensor *remade = second(t, kept);
            shd_tape_move_grad(t.tape, g, remade);
            EXPECT_EQ(nullptr, g->grad);
            t.drop(remade);
        }
        t.drop(g);
        ASSERT_EQ(0, shd_tape_backward(t.tape, mark1, nullptr));
        ASSERT_EQ(0, shd_tape_backward(t.tape, 0, nullptr));
        EXPECT_EQ(0u, t.Transient());
        for (size_t i = 0; i < defs.size(); i++) {
            EXPECT_TRUE(t.params[i].grad_defined) << i;
            grads[again].push_back(GradOf(t, i, defs));
        }
        losses[again] = t.losses;
    }
    EXPECT_EQ(grads[0], grads[1]);
    EXPECT_EQ(losses[0], losses[1]);
}

TEST(LossScale, ScalesGradientsAndNotLosses)
{
    Taped one(kBlock), scaled(kBlock);
    Fill(&one, kBlock);
    Fill(&scaled, kBlock);
    RunBlock(&one);
    shd_tape_set_loss_scale(scaled.tape, 1024.0f);
    RunBlock(&scaled);
    EXPECT_EQ(one.losses, scaled.losses);
    for (size_t i = 0; i < kBlock.size(); i++) {
        const std::vector<float> a = GradOf(one, i, kBlock), b = GradOf(scaled, i, kBlock);
        for (size_t k = 0; k < a.size(); k++) {
            EXPECT_EQ(a[k] * 1024.0f, b[k]) << "a power of two is exact";
        }
    }
}

TEST(Dropout, BackwardUsesTheMaskOfForward)
{
    const std::vector<int32_t> ids = Identity(6);
    const std::vector<Param> defs = {{6, 10}, {6, 10}};
    const shd_dropout drop = {0.4f, 3, 4, 5, 6};
    for (int with : {0, 1}) {
        Taped t(defs);
        Fill(&t, defs);
        std::fill(Data(&t.params[0]), Data(&t.params[0]) + 60, 1.0f);
        shd_tape_reset(t.tape, 1);
        shd_tensor *x = t.embedding(t.param(0), t.none(), ids, 6);
        shd_tensor *r = with ? t.embedding(t.param(1), t.none(), ids, 6) : nullptr;
        shd_tensor *y = shd_tape_dropout(t.tape, x, r, 3, &drop);
        t.drop(x);
        t.drop(r);
        std::vector<float> mask(Data(y), Data(y) + 60);
        for (size_t i = 0; with && i < 60; i++) {
            mask[i] -= Data(&t.params[1])[i];
        }
        t.weigh(y);
        t.drop(y);
        ASSERT_EQ(0, shd_tape_backward(t.tape, 0, nullptr));
        int dropped = 0;
        for (size_t i = 0; i < 60; i++) {
            const float w = static_cast<float>(Weight(static_cast<int64_t>(i)));
            dropped += std::fabs(mask[i]) < 0.5f;
            EXPECT_NEAR(std::fabs(mask[i]) < 0.5f ? 0.0f : w / 0.6f, Grad(&t.params[0])[i], 1e-6f);
            if (with) {
                EXPECT_EQ(w, Grad(&t.params[1])[i]);
            }
        }
        EXPECT_GT(dropped, 10);
        EXPECT_LT(dropped, 40);
    }
}

// Attention over a cache, token by token or in pieces, against the whole sequence at once.
TEST(Cache, GivesWhatTheWholeSequenceGives)
{
    const int64_t tokens = 11, kv_heads = 2, D = 4;
    for (int64_t window : {0, 4}) {
        for (bool packed : {false, true}) {
            const shd_attn_spec spec = {4, kv_heads, D, window, 0.5f};
            const std::vector<Param> defs = {{tokens, packed ? 32 : 16}, {tokens, 8}, {tokens, 8}};
            Taped t(defs);
            Fill(&t, defs);
            shd_tape_reset(t.tape, 0);
            const auto attend = [&](int64_t first, int64_t n, const shd_kv_cache *cache) {
                std::vector<int32_t> ids;
                for (int64_t i = 0; i < n; i++) {
                    ids.push_back(static_cast<int32_t>(first + i));
                }
                shd_tensor *q = t.embedding(t.param(0), t.none(), ids, n);
                shd_tensor *k = packed ? nullptr : t.embedding(t.param(1), t.none(), ids, n);
                shd_tensor *v = packed ? nullptr : t.embedding(t.param(2), t.none(), ids, n);
                shd_tensor *y = cache != nullptr
                                    ? shd_tape_attention_cached(t.tape, q, k, v, &spec, cache)
                                : packed ? shd_tape_attention_packed(t.tape, q, &spec, n, nullptr)
                                         : shd_tape_attention(t.tape, q, k, v, &spec, n, nullptr);
                t.drop(q);
                t.drop(k);
                t.drop(v);
                if (y == nullptr) {
                    return std::vector<float>();
                }
                const std::vector<float> out(Data(y), Data(y) + n * 16);
                t.drop(y);
                return out;
            };
            const std::vector<float> whole = attend(0, tokens, nullptr);
            ASSERT_EQ(static_cast<size_t>(tokens * 16), whole.size());
            for (int64_t piece : {1, 3, 11}) {
                std::vector<float> keys(static_cast<size_t>(tokens * 8), NAN), values = keys;
                shd_kv_cache cache = {keys.data(), values.data(), 0, tokens};
                while (cache.length < tokens) {
                    const int64_t n = std::min(piece, tokens - cache.length);
                    const std::vector<float> out = attend(cache.length, n, &cache);
                    ASSERT_EQ(static_cast<size_t>(n * 16), out.size());
                    for (size_t i = 0; i < out.size(); i++) {
                        EXPECT_NEAR(whole[static_cast<size_t>(cache.length * 16) + i], out[i],
                                    2e-6);
                    }
                    cache.length += n;
                }
            }
            shd_kv_cache full = {nullptr, nullptr, tokens, tokens};
            EXPECT_TRUE(attend(0, 1, &full).empty()) << "no room";
            EXPECT_EQ(SHD_EINTERNAL, shd_tape_error(t.tape, nullptr));
        }
    }
}

TEST(Logits, AreThoseOfALinearLayer)
{
    const std::vector<Param> defs = {{4, 6}, {9, 6}};
    Taped t(defs);
    Fill(&t, defs);
    shd_tape_reset(t.tape, 0);
    shd_tensor *x = t.embedding(t.param(0), t.none(), Identity(4), 4);
    shd_tensor *logits = shd_tape_logits(t.tape, x, t.param(1));
    shd_tensor *linear = t.linear(x, t.param(1), t.none(), t.none(), 0);
    ASSERT_NE(nullptr, logits);
    EXPECT_EQ(SHD_F32, logits->dtype);
    EXPECT_EQ(0, std::memcmp(logits->data, linear->data, 36 * sizeof(float)));
    shd_tape_reset(t.tape, 1);
    EXPECT_EQ(nullptr, shd_tape_logits(t.tape, t.embedding(t.param(0), t.none(), Identity(4), 4),
                                       t.param(1)));
}

// ---- bf16 and fp16 ----

// A block in half precision: near the fp32 one on the same (rounded) parameters, everything given
// back, activations of half the size. About 20 roundings lie between parameters and losses.
TEST(Half, ABlockIsNearTheFp32One)
{
    for (shd_dtype dtype : {SHD_BF16, SHD_F16}) {
        Taped full(kBlock), half(kBlock, 16 << 20, dtype);
        Fill(&full, kBlock);
        shd_device *dev = shd_device_create_cpu(1, 0);
        const shd_ops *ops = shd_device_ops(dev);
        for (size_t i = 0; i < kBlock.size(); i++) {
            ops->cast(shd_device_opctx(dev), half.params[i].data, dtype, full.params[i].data,
                      SHD_F32, kBlock[i].numel());
            ops->cast(shd_device_opctx(dev), full.params[i].data, SHD_F32, half.params[i].data,
                      dtype, kBlock[i].numel());
        }
        RunBlock(&full);
        RunBlock(&half);
        const double unit = dtype == SHD_BF16 ? 0x1p-8 : 0x1p-11;
        for (size_t i = 0; i < full.losses.size(); i++) {
            EXPECT_NEAR(full.losses[i], half.losses[i], 20 * unit) << shd_dtype_name(dtype);
        }
        for (size_t i = 0; i < kBlock.size(); i++) {
            const std::vector<float> want = GradOf(full, i, kBlock);
            std::vector<float> got(want.size());
            ops->cast(shd_device_opctx(dev), got.data(), SHD_F32, half.params[i].grad, dtype,
                      kBlock[i].numel());
            double error = 0, size = 0;
            for (size_t k = 0; k < want.size(); k++) {
                error += std::pow(static_cast<double>(want[k] - got[k]), 2);
                size += std::pow(static_cast<double>(want[k]), 2);
            }
            EXPECT_LT(std::sqrt(error), 20 * unit * std::sqrt(size) + 1e-6)
                << shd_dtype_name(dtype) << " parameter " << i;
        }
        shd_device_free(dev);
    }
}

// The head's gradient over eight chunks of rows, also on top of another one: rounded once.
// Processors that multiply bf16 themselves also take the gradient of the logits rounded to it: an
// element that is the sum of terms d x is then off by u = 2^-8 of the sum of |d x|, besides its own
// rounding. States are positive here, so that all terms of a row that is no target have one sign
// and that sum is the element itself: 2 u in all. In the row of a target the terms d = p - 1 of its
// own positions stand against p of the others, which are less than a hundredth of them: 2.1 u.
TEST(Half, TheHeadsGradientIsRoundedOnce)
{
    const int64_t rows = 256, vocab = 300000, C = 4;
    const std::vector<Param> defs = {{vocab, C, 1.0, 0.2}};
    std::vector<int32_t> ids, targets;
    for (int64_t r = 0; r < rows; r++) {
        ids.push_back(static_cast<int32_t>(r * 3 % 50));
        targets.push_back(static_cast<int32_t>(r * 7 % 60));
    }
    const auto run = [&](Taped &t) {
        shd_tape_reset(t.tape, 1);
        shd_tensor *x = t.embedding(t.param(0), t.none(), ids, rows);
        t.cross_entropy(x, t.param(0), targets);
        t.drop(x);
        const int64_t tables = 1; // the embedding's node; its gradient comes on top, rounded again
        ASSERT_EQ(0, shd_tape_backward(t.tape, tables, nullptr));
    };
    Taped full(defs, 64 << 20), half(defs, 64 << 20, SHD_BF16);
    Fill(&full, defs);
    shd_device *dev = shd_device_create_cpu(1, 0);
    const shd_ops *ops = shd_device_ops(dev);
    const shd_opctx *ctx = shd_device_opctx(dev);
    const int64_t n = vocab * C;
    const std::string isa = shd_device_compute_ops(dev, SHD_BF16)->name;
    const bool native = isa.find("-bf16") != isa.npos || isa.find("-amx") != isa.npos;
    const float units = native ? 2.1f : 1.001f;
    ops->cast(ctx, half.params[0].data, SHD_BF16, full.params[0].data, SHD_F32, n);
    ops->cast(ctx, full.params[0].data, SHD_F32, half.params[0].data, SHD_BF16, n);
    std::vector<float> got(static_cast<size_t>(n));
    for (int acc : {0, 1}) { // the second time on top of a gradient that both hold
        for (Taped *t : {&full, &half}) {
            t->params[0].grad_defined = acc;
        }
        if (acc) {
            ops->cast(ctx, full.params[0].grad, SHD_F32, half.params[0].grad, SHD_BF16, n);
        }
        run(full);
        run(half);
        ops->cast(ctx, got.data(), SHD_F32, half.params[0].grad, SHD_BF16, n);
        for (size_t i = 0; i < got.size(); i++) {
            const float want = Grad(&full.params[0])[i];
            ASSERT_LE(std::fabs(got[i] - want), 0x1p-8f * std::fabs(want) * units + 1e-6f)
                << "element " << i << ": " << got[i] << ", wanted " << want;
        }
    }
    shd_tape_reset(full.tape, 1);
    shd_tape_reset(half.tape, 1);
    shd_device_free(dev);
}

TEST(Half, ActivationsTakeHalf)
{
    const std::vector<Param> defs = {{4, 4096}};
    uint64_t bytes[2];
    for (shd_dtype dtype : {SHD_F32, SHD_BF16}) {
        Taped t(defs, 16 << 20, dtype);
        shd_tape_reset(t.tape, 0);
        shd_tensor *x = t.embedding(t.param(0), t.none(), Identity(4), 4);
        EXPECT_EQ(dtype, x->dtype);
        bytes[dtype == SHD_F32] = t.Transient();
        t.drop(x);
    }
    EXPECT_EQ(bytes[1], 2 * bytes[0]);
}

} // namespace
