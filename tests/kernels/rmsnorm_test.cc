#include "tests/kernels/op_test.h"

using namespace optest;

namespace
{

constexpr double kEps = 1e-5;

Doubles Forward(const Doubles &x, const Doubles &w, int64_t R, int64_t C)
{
    Doubles out;
    for (int64_t r = 0; r < R; r++) {
        const double *row = x.data() + r * C;
        double square = 0.0;
        for (int64_t i = 0; i < C; i++) {
            square += row[i] * row[i] / static_cast<double>(C);
        }
        for (int64_t i = 0; i < C; i++) {
            out.push_back(row[i] / std::sqrt(square + kEps) * w[static_cast<size_t>(i)]);
        }
    }
    return out;
}

Floats RunForward(const shd_compute_ops *ops, const shd_opctx *ctx, const Floats &x,
                  const Floats &w, int64_t R, int64_t C)
{
    Elts out(ops, Garbage(R * C)), only(ops, Garbage(R * C)), xe(ops, x), we(ops, w);
    Floats rstd = Garbage(R);
    ops->rmsnorm_forward(ctx, out.data(), rstd.data(), xe.data(), we.data(), R, C,
                         static_cast<float>(kEps));
    ops->rmsnorm_forward(ctx, only.data(), nullptr, xe.data(), we.data(), R, C,
                         static_cast<float>(kEps));
    EXPECT_TRUE(SameBits(out.floats(), only.floats()));
    return out.floats();
}

/* dx, dw; without = 1 leaves dx out, 2 dw. */
Floats RunBackward(const shd_compute_ops *ops, const shd_opctx *ctx, const Floats &dout,
                   const Floats &x, const Floats &w, int64_t R, int64_t C, int acc_dx, int acc_dw,
                   const Floats &dx0, const Floats &dw0, int without = 0)
{
    Elts out(ops, Garbage(R * C)), xe(ops, x), we(ops, w), de(ops, dout);
    Elts dx(ops, acc_dx ? dx0 : Garbage(R * C)), dw(ops, acc_dw ? dw0 : Garbage(C));
    Floats rstd = Garbage(R);
    ops->rmsnorm_forward(ctx, out.data(), rstd.data(), xe.data(), we.data(), R, C,
                         static_cast<float>(kEps));
    std::vector<char> ws(ops->rmsnorm_backward_ws(ctx, R, C));
    ops->rmsnorm_backward(ctx, without == 1 ? nullptr : dx.data(),
                          without == 2 ? nullptr : dw.data(), de.data(), xe.data(), we.data(),
                          rstd.data(), R, C, acc_dx, acc_dw, ws.data());
    return without == 1   ? dw.floats()
           : without == 2 ? dx.floats()
                          : Concat({dx.floats(), dw.floats()});
}

TEST(RmsNorm, Forward)
{
    for (auto [R, C] : {std::pair<int64_t, int64_t>{1, 1},
                        {5, 3},
                        {37, 101},
                        {400, 64},
                        {100, 768},
                        {3, 17000}}) {
        const Floats x = Random(R * C, 1, 3.0f), w = Random(C, 2);
        const int64_t r = R, c = C;
        ExpectOp([&](const shd_compute_ops *ops,
                     const shd_opctx *ctx) { return RunForward(ops, ctx, x, w, r, c); },
                 Forward(ToDouble(x), ToDouble(w), r, c), 1e-6, "rmsnorm_forward");
        /* x·rstd is rounded, then its product with w. */
        ExpectHalf(
            [&](const shd_compute_ops *ops, const shd_opctx *ctx, shd_dtype dtype) {
                return RunForward(ops, ctx, Rounded(dtype, x), Rounded(dtype, w), r, c);
            },
            1e-6, "rmsnorm_forward", 2);
    }
}

TEST(RmsNorm, BackwardIsTheDerivative)
{
    const int64_t R = 70, C = 19;
    const Floats x = Random(R * C, 4), w = Random(C, 5), dout = Random(R * C, 7);
    const Floats dx0 = Random(R * C, 8), dw0 = Random(C, 9);
    const Doubles xd = ToDouble(x), wd = ToDouble(w);
    const Doubles dx =
        NumericGradient([&](const Doubles &v) { return Forward(v, wd, R, C); }, xd, dout);
    const Doubles dw =
        NumericGradient([&](const Doubles &v) { return Forward(xd, v, R, C); }, wd, dout);
    for (int acc_dx : {0, 1}) {
        for (int acc_dw : {0, 1}) {
            Doubles want = Concat({dx, dw});
            const Floats before = Concat({dx0, dw0});
            for (size_t i = 0; i < want.size(); i++) {
                if (i < x.size() ? acc_dx : acc_dw) {
                    want[i] += before[i];
                }
            }
            ExpectOp(
                [&](const shd_compute_ops *ops, const shd_opctx *ctx) {
                    return RunBackward(ops, ctx, dout, x, w, R, C, acc_dx, acc_dw, dx0, dw0);
                },
                want, 5e-6, "rmsnorm_backward");
            ExpectHalf(
                [&](const shd_compute_ops *ops, const shd_opctx *ctx, shd_dtype d) {
                    return RunBackward(ops, ctx, Rounded(d, dout), Rounded(d, x), Rounded(d, w), R,
                                       C, acc_dx, acc_dw, Rounded(d, dx0), Rounded(d, dw0));
                },
                3e-6, "rmsnorm_backward");
        }
    }
    Context ctx(2);
    const Floats both =
        RunBackward(shd_compute_ops_cpu(SHD_F32), ctx.get(), dout, x, w, R, C, 0, 0, dx0, dw0);
    EXPECT_TRUE(SameBits(
        Floats(both.begin() + R * C, both.end()),
        RunBackward(shd_compute_ops_cpu(SHD_F32), ctx.get(), dout, x, w, R, C, 0, 0, dx0, dw0, 1)));
    EXPECT_TRUE(SameBits(
        Floats(both.begin(), both.begin() + R * C),
        RunBackward(shd_compute_ops_cpu(SHD_F32), ctx.get(), dout, x, w, R, C, 0, 0, dx0, dw0, 2)));
}

/* More rows than chunks, as heads make them. */
TEST(RmsNorm, BackwardOfManyRows)
{
    const int64_t R = 3001, C = 64;
    const Floats x = Random(R * C, 11), w = Random(C, 12), dout = Random(R * C, 14);
    Doubles dx, dw(static_cast<size_t>(C));
    for (int64_t r = 0; r < R; r++) {
        double square = 0.0, gx = 0.0;
        for (int64_t i = 0; i < C; i++) {
            const size_t at = static_cast<size_t>(r * C + i);
            square += static_cast<double>(x[at]) * x[at] / C;
        }
        const double rstd = 1.0 / std::sqrt(square + kEps);
        for (int64_t i = 0; i < C; i++) {
            const size_t at = static_cast<size_t>(r * C + i), c = static_cast<size_t>(i);
            dw[c] += dout[at] * (x[at] * rstd);
            gx += static_cast<double>(dout[at]) * w[c] * x[at] * rstd / C;
        }
        for (int64_t i = 0; i < C; i++) {
            const size_t at = static_cast<size_t>(r * C + i), c = static_cast<size_t>(i);
            dx.push_back(rstd * (static_cast<double>(dout[at]) * w[c] - x[at] * rstd * gx));
        }
    }
    ExpectOp(
        [&](const shd_compute_ops *ops, const shd_opctx *ctx) {
            return RunBackward(ops, ctx, dout, x, w, R, C, 0, 0, {}, {});
        },
        Concat({dx, dw}), 1e-5, "rmsnorm_backward");
}

} // namespace
