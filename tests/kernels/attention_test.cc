#include "tests/kernels/op_test.h"

using namespace optest;

namespace
{

/* q, k and v lie in one buffer of rows [q heads | k heads | v heads], as a fused projection makes
 * them, or each in its own with a gap after every row. */
struct Case {
    int64_t B, T, H, KVH, D;
    bool fused;
};

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
        l.v = l.k + static_cast<size_t>(c.B * c.T * l.kv_stride);
        l.size = l.v + static_cast<size_t>(c.B * c.T * l.kv_stride);
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
                    return base + static_cast<size_t>((b * c.T + j) * l.kv_stride + kv * c.D);
                };
                Doubles p;
                double top = -INFINITY, sum = 0.0;
                for (int64_t j = 0; j <= i; j++) {
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
                for (int64_t j = 0; j <= i; j++) {
                    double &pj = p[static_cast<size_t>(j)];
                    pj /= sum;
                    double dpj = 0.0;
                    for (size_t d = 0; d < static_cast<size_t>(c.D); d++) {
                        out[o + d] += pj * qkv[key(j, l.v) + d];
                        if (dqkv != nullptr) {
                            dpj += (*dout)[o + d] * qkv[key(j, l.v) + d];
                            (*dqkv)[key(j, l.v) + d] += pj * (*dout)[o + d];
                        }
                    }
                    dp.push_back(dpj);
                    delta += pj * dpj;
                }
                for (int64_t j = 0; dqkv != nullptr && j <= i; j++) {
                    const double ds =
                        p[static_cast<size_t>(j)] * (dp[static_cast<size_t>(j)] - delta) * scale;
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
    Floats out(OutSize(c), 0.0f); /* gaps between rows stay as they are */
    Floats lse = Garbage(c.B * c.H * c.T);
    std::vector<char> ws(ops->attention_ws(ctx, &s, 0));
    ops->attention_forward(ctx, out.data(), with_lse ? lse.data() : nullptr, qkv.data() + l.q,
                           qkv.data() + l.k, qkv.data() + l.v, &s, ws.data());
    return with_lse ? Concat({out, lse}) : out;
}

Floats RunBackward(const shd_compute_ops *ops, const shd_opctx *ctx, const Case &c,
                   const Floats &qkv, const Floats &dout)
{
    const shd_attn_shape s = ShapeOf(c);
    const Layout l = LayoutOf(c);
    const Floats forward = RunForward(ops, ctx, c, qkv, true);
    Floats dqkv(qkv.size(), 0.0f);
    std::vector<char> ws(ops->attention_ws(ctx, &s, 1));
    ops->attention_backward(ctx, dqkv.data() + l.q, dqkv.data() + l.k, dqkv.data() + l.v,
                            dout.data(), forward.data(), forward.data() + OutSize(c),
                            qkv.data() + l.q, qkv.data() + l.k, qkv.data() + l.v, &s, ws.data());
    return dqkv;
}

const Case kCases[] = {
    {1, 1, 1, 1, 1, true},   {2, 7, 3, 3, 5, true},    {1, 64, 2, 2, 64, true},
    {2, 65, 2, 2, 16, true}, {1, 130, 4, 2, 24, true}, {1, 200, 6, 1, 33, false},
    {3, 40, 4, 4, 8, false}, {1, 257, 2, 2, 64, true}, {1, 128, 1, 1, 128, false},
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
}

TEST_P(AttentionTest, Backward)
{
    const Case &c = GetParam();
    const Floats qkv = Random(static_cast<int64_t>(LayoutOf(c).size), 2, 2.0f);
    const Floats dout = Random(static_cast<int64_t>(OutSize(c)), 3);
    Doubles want;
    Reference(c, ToDouble(qkv), nullptr, &dout, &want);
    ExpectOp([&](const shd_compute_ops *ops,
                 const shd_opctx *ctx) { return RunBackward(ops, ctx, c, qkv, dout); },
             want, 1e-5, "attention_backward");
}

INSTANTIATE_TEST_SUITE_P(Shapes, AttentionTest, ::testing::ValuesIn(kCases));

/* The analytic reference above is itself the derivative of its forward. */
TEST(Attention, BackwardIsTheDerivative)
{
    const Case c{2, 6, 4, 2, 3, true};
    const Floats qkv = Random(static_cast<int64_t>(LayoutOf(c).size), 4);
    const Floats dout = Random(static_cast<int64_t>(OutSize(c)), 5);
    const Doubles want = NumericGradient(
        [&](const Doubles &x) { return Reference(c, x, nullptr, nullptr, nullptr); }, ToDouble(qkv),
        dout);
    ExpectOp([&](const shd_compute_ops *ops,
                 const shd_opctx *ctx) { return RunBackward(ops, ctx, c, qkv, dout); },
             want, 1e-5, "attention_backward");
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
