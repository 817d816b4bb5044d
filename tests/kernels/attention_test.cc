#include "kernels/philox.h"
#include "tests/kernels/op_test.h"

using namespace optest;

namespace
{

/* q, k and v lie in one buffer of rows [q heads | k heads | v heads], as a fused projection makes
 * them, or each in its own with a gap after every row. */
struct Case {
    int64_t B, T, H, KVH, D;
    bool fused;
    int64_t window = 0; /* keys that a query sees */
    int64_t past = 0;   /* keys before the first query; not fused */
    bool drop = false;
};

constexpr shd_dropout kDrop = {0.25f, 9, 2, 70, 6};

/* What dropout multiplies a probability by, word by word as kernels/cpu/mask.h says. */
double Factor(const Case &c, int64_t b, int64_t h, int64_t pos, int64_t key)
{
    if (!c.drop) {
        return 1.0;
    }
    uint32_t seed[4], words[4];
    shd_philox(kDrop.seed, SHD_STREAM(SHD_STREAM_DROPOUT, kDrop.site), kDrop.step, seed);
    const uint64_t at = static_cast<uint64_t>(h) << 48 | static_cast<uint64_t>(pos) << 24;
    shd_philox(static_cast<uint64_t>(seed[1]) << 32 | seed[0],
               kDrop.first_sample + static_cast<uint64_t>(b),
               at + static_cast<uint64_t>(key / 64 * 16 + key % 16), words);
    const bool keeps = words[key / 16 % 4] >= static_cast<uint32_t>(kDrop.p * 4294967296.0);
    return keeps ? 1.0 / (1.0 - kDrop.p) : 0.0;
}

struct Layout {
    int64_t q_stride, kv_stride, out_stride; /* as the op sees them */
    size_t q, k, v, size;                    /* offsets in one vector, and its length */
};

Layout LayoutOf(const Case &c)
{
    const int64_t q_width = c.H * c.D, kv_width = c.KVH * c.D;
    Layout l;
    if (c.fused) {
        l.q_stride = l.kv_stride = q_width + 2 * kv_width;
        l.q = 0;
        l.k = static_cast<size_t>(q_width);
        l.v = static_cast<size_t>(q_width + kv_width);
        l.size = static_cast<size_t>(c.B * c.T * l.q_stride);
    } else {
        l.q_stride = q_width + 3;
        l.kv_stride = kv_width + 5;
        l.q = 0;
        l.k = static_cast<size_t>(c.B * c.T * l.q_stride);
        l.v = l.k + static_cast<size_t>(c.B * (c.T + c.past) * l.kv_stride);
        l.size = l.v + static_cast<size_t>(c.B * (c.T + c.past) * l.kv_stride);
    }
    l.out_stride = q_width + (c.fused ? 0 : 2);
    return l;
}

shd_attn_shape ShapeOf(const Case &c)
{
    const Layout l = LayoutOf(c);
    shd_attn_shape s = {};
    s.B = c.B, s.T = c.T, s.H = c.H, s.KVH = c.KVH, s.D = c.D;
    s.q_stride = l.q_stride, s.kv_stride = l.kv_stride, s.out_stride = l.out_stride;
    s.scale = 0.9f / std::sqrt(static_cast<float>(c.D));
    s.S = c.past > 0 ? c.T + c.past : 0;
    s.window = c.window;
    s.dropout = c.drop ? &kDrop : nullptr;
    return s;
}

size_t OutSize(const Case &c)
{
    return static_cast<size_t>(c.B * c.T * LayoutOf(c).out_stride);
}

/* Everything by the definition, one query at a time. `lse` and the gradients may be NULL. */
Doubles Reference(const Case &c, const Doubles &qkv, Doubles *lse, const Floats *dout,
                  Doubles *dqkv)
{
    const Layout l = LayoutOf(c);
    const double scale = ShapeOf(c).scale;
    Doubles out(OutSize(c), 0.0);
    if (lse != nullptr) {
        lse->assign(static_cast<size_t>(c.B * c.H * c.T), 0.0);
    }
    if (dqkv != nullptr) {
        dqkv->assign(qkv.size(), 0.0);
    }
    for (int64_t b = 0; b < c.B; b++) {
        for (int64_t h = 0; h < c.H; h++) {
            const int64_t kv = h / (c.H / c.KVH);
            for (int64_t i = 0; i < c.T; i++) {
                const size_t q = l.q + static_cast<size_t>((b * c.T + i) * l.q_stride + h * c.D);
                const size_t o = static_cast<size_t>((b * c.T + i) * l.out_stride + h * c.D);
                const auto key = [&](int64_t j, size_t base) {
                    return base +
                           static_cast<size_t>((b * (c.T + c.past) + j) * l.kv_stride + kv * c.D);
                };
                const int64_t pos = c.past + i;
                const int64_t lo = c.window > 0 ? std::max<int64_t>(0, pos - c.window + 1) : 0;
                Doubles p;
                double top = -INFINITY, sum = 0.0;
                for (int64_t j = lo; j <= pos; j++) {
                    double s = 0.0;
                    for (size_t d = 0; d < static_cast<size_t>(c.D); d++) {
                        s += qkv[q + d] * qkv[key(j, l.k) + d];
                    }
                    p.push_back(s * scale);
                    top = std::max(top, p.back());
                }
                for (double &x : p) {
                    x = std::exp(x - top);
                    sum += x;
                }
                if (lse != nullptr) {
                    (*lse)[static_cast<size_t>((b * c.H + h) * c.T + i)] = top + std::log(sum);
                }
                double delta = 0.0;
                Doubles dp;
                for (int64_t j = lo; j <= pos; j++) {
                    double &pj = p[static_cast<size_t>(j - lo)];
                    pj /= sum;
                    const double m = Factor(c, b, h, pos, j);
                    double dpj = 0.0;
                    for (size_t d = 0; d < static_cast<size_t>(c.D); d++) {
                        out[o + d] += m * pj * qkv[key(j, l.v) + d];
                        if (dqkv != nullptr) {
                            dpj += m * (*dout)[o + d] * qkv[key(j, l.v) + d];
                            (*dqkv)[key(j, l.v) + d] += m * pj * (*dout)[o + d];
                        }
                    }
                    dp.push_back(dpj);
                    delta += pj * dpj;
                }
                for (int64_t j = lo; dqkv != nullptr && j <= pos; j++) {
                    const double ds = p[static_cast<size_t>(j - lo)] *
                                      (dp[static_cast<size_t>(j - lo)] - delta) * scale;
                    for (size_t d = 0; d < static_cast<size_t>(c.D); d++) {
                        (*dqkv)[q + d] += ds * qkv[key(j, l.k) + d];
                        (*dqkv)[key(j, l.k) + d] += ds * qkv[q + d];
                    }
                }
            }
        }
    }
    return out;
}

Floats RunForward(const shd_compute_ops *ops, const shd_opctx *ctx, const Case &c,
                  const Floats &qkv, bool with_lse)
{
    const shd_attn_shape s = ShapeOf(c);
    const Layout l = LayoutOf(c);
    Elts in(ops, qkv), out(ops, Floats(OutSize(c), 0.0f)); /* gaps between rows stay as they are */
    Floats lse = Garbage(c.B * c.H * c.T);
    std::vector<char> ws(ops->attention_ws(ctx, &s, 0));
    const auto at = [&](size_t i) { return in.at(static_cast<int64_t>(i)); };
    ops->attention_forward(ctx, out.data(), with_lse ? lse.data() : nullptr, at(l.q), at(l.k),
                           at(l.v), &s, ws.data());
    return with_lse ? Concat({out.floats(), lse}) : out.floats();
}

/* `forward`: out and lse. */
Floats RunBackward(const shd_compute_ops *ops, const shd_opctx *ctx, const Case &c,
                   const Floats &qkv, const Floats &dout, const Floats &forward)
{
    const shd_attn_shape s = ShapeOf(c);
    const Layout l = LayoutOf(c);
    Elts in(ops, qkv), dqkv(ops, Floats(qkv.size(), 0.0f)), d(ops, dout);
    Elts out(ops, Floats(forward.begin(), forward.begin() + static_cast<int64_t>(OutSize(c))));
    std::vector<char> ws(ops->attention_ws(ctx, &s, 1));
    const auto at = [](Elts &x, size_t i) { return x.at(static_cast<int64_t>(i)); };
    ops->attention_backward(ctx, at(dqkv, l.q), at(dqkv, l.k), at(dqkv, l.v), d.data(), out.data(),
                            forward.data() + OutSize(c), at(in, l.q), at(in, l.k), at(in, l.v), &s,
                            ws.data());
    return dqkv.floats();
}

Floats RunBackward(const shd_compute_ops *ops, const shd_opctx *ctx, const Case &c,
                   const Floats &qkv, const Floats &dout)
{
    return RunBackward(ops, ctx, c, qkv, dout, RunForward(ops, ctx, c, qkv, true));
}

const Case kCases[] = {
    {1, 1, 1, 1, 1, true},
    {2, 7, 3, 3, 5, true},
    {1, 64, 2, 2, 64, true},
    {2, 65, 2, 2, 16, true},
    {1, 130, 4, 2, 24, true},
    {1, 200, 6, 1, 33, false},
    {3, 40, 4, 4, 8, false},
    {1, 257, 2, 2, 64, true},
    {1, 128, 1, 1, 128, false},
    /* windows */
    {1, 9, 2, 1, 5, true, 1},
    {2, 150, 2, 2, 16, true, 3},
    {1, 200, 4, 2, 24, false, 64},
    {1, 130, 1, 1, 8, true, 129},
    {1, 70, 2, 2, 8, true, 500},
    /* keys of earlier tokens */
    {1, 1, 4, 2, 16, false, 0, 99},
    {2, 5, 2, 2, 33, false, 0, 130},
    {1, 90, 2, 1, 8, false, 0, 7},
    {1, 1, 2, 2, 16, false, 20, 99},
    {1, 70, 2, 1, 16, false, 50, 33},
    /* dropout */
    {2, 7, 2, 2, 5, true, 0, 0, true},
    {1, 150, 4, 2, 16, false, 0, 0, true},
    {2, 140, 2, 1, 24, true, 70, 0, true},
};

class AttentionTest : public ::testing::TestWithParam<Case>
{
};

TEST_P(AttentionTest, Forward)
{
    const Case &c = GetParam();
    const Floats qkv = Random(static_cast<int64_t>(LayoutOf(c).size), 1, 2.0f);
    Doubles lse;
    const Doubles out = Reference(c, ToDouble(qkv), &lse, nullptr, nullptr);
    ExpectOp([&](const shd_compute_ops *ops,
                 const shd_opctx *ctx) { return RunForward(ops, ctx, c, qkv, true); },
             Concat({out, lse}), 3e-6, "attention_forward");
    ExpectOp([&](const shd_compute_ops *ops,
                 const shd_opctx *ctx) { return RunForward(ops, ctx, c, qkv, false); },
             out, 3e-6, "attention_forward without lse");
    ExpectHalf([&](const shd_compute_ops *ops, const shd_opctx *ctx,
                   shd_dtype d) { return RunForward(ops, ctx, c, Rounded(d, qkv), true); },
               5e-6, "attention_forward");
}

TEST_P(AttentionTest, Backward)
{
    const Case &c = GetParam();
    if (c.past > 0) {
        return; /* generation has no backward */
    }
    const Floats qkv = Random(static_cast<int64_t>(LayoutOf(c).size), 2, 2.0f);
    const Floats dout = Random(static_cast<int64_t>(OutSize(c)), 3);
    Doubles want;
    Reference(c, ToDouble(qkv), nullptr, &dout, &want);
    ExpectOp([&](const shd_compute_ops *ops,
                 const shd_opctx *ctx) { return RunBackward(ops, ctx, c, qkv, dout); },
             want, 1e-5, "attention_backward");
    /* Both get the same rounded outputs of forward, which backward reads. */
    ExpectHalf(
        [&](const shd_compute_ops *ops, const shd_opctx *ctx, shd_dtype d) {
            const Floats x = Rounded(d, qkv);
            const shd_compute_ops *full = ops;
            for (const shd_compute_ops *t : ComputeTables(SHD_F32)) {
                full = strcmp(t->name, ops->name) == 0 ? t : full;
            }
            Floats forward = RunForward(full, ctx, c, x, true);
            for (size_t i = 0; i < OutSize(c); i++) {
                forward[i] = Rounded(d, forward[i]);
            }
            return RunBackward(ops, ctx, c, x, Rounded(d, dout), forward);
        },
        2e-5, "attention_backward");
}

INSTANTIATE_TEST_SUITE_P(Shapes, AttentionTest, ::testing::ValuesIn(kCases));

/* The analytic reference above is itself the derivative of its forward. */
TEST(Attention, BackwardIsTheDerivative)
{
    for (const Case &c : {Case{2, 6, 4, 2, 3, true}, Case{2, 6, 4, 2, 3, true, 3},
                          Case{2, 6, 4, 2, 3, true, 0, 0, true}}) {
        const Floats qkv = Random(static_cast<int64_t>(LayoutOf(c).size), 4);
        const Floats dout = Random(static_cast<int64_t>(OutSize(c)), 5);
        const Doubles want = NumericGradient(
            [&](const Doubles &x) { return Reference(c, x, nullptr, nullptr, nullptr); },
            ToDouble(qkv), dout);
        ExpectOp([&](const shd_compute_ops *ops,
                     const shd_opctx *ctx) { return RunBackward(ops, ctx, c, qkv, dout); },
                 want, 1e-5, "attention_backward");
    }
}

/* Scores of some hundreds, as an untrained or diverging model makes them: no overflow. */
TEST(Attention, LargeScores)
{
    const Case c{1, 70, 1, 1, 16, true};
    const Floats qkv = Random(static_cast<int64_t>(LayoutOf(c).size), 6, 30.0f);
    Doubles lse;
    const Doubles out = Reference(c, ToDouble(qkv), &lse, nullptr, nullptr);
    for (const shd_compute_ops *ops : ComputeTables(SHD_F32)) {
        Context ctx(2);
        const Floats got = RunForward(ops, ctx.get(), c, qkv, true);
        ExpectClose(got, Concat({out, lse}), 1e-4, ops->name);
    }
}

} // namespace
