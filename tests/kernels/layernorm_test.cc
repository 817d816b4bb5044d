#include "tests/kernels/op_test.h"

using namespace optest;

namespace
{

constexpr double kEps = 1e-5;

/* Rows of x normalised, times w plus b; mean and rstd follow the rows. */
Doubles Forward(const Doubles &x, const Doubles &w, const Doubles &b, int64_t R, int64_t C)
{
    Doubles out, means, rstds;
    for (int64_t r = 0; r < R; r++) {
        const double *row = x.data() + r * C;
        double mean = 0.0, variance = 0.0;
        for (int64_t i = 0; i < C; i++) {
            mean += row[i] / static_cast<double>(C);
        }
        for (int64_t i = 0; i < C; i++) {
            variance += (row[i] - mean) * (row[i] - mean) / static_cast<double>(C);
        }
        const double rstd = 1.0 / std::sqrt(variance + kEps);
        for (int64_t i = 0; i < C; i++) {
            out.push_back((row[i] - mean) * rstd * w[static_cast<size_t>(i)] +
                          b[static_cast<size_t>(i)]);
        }
        means.push_back(mean);
        rstds.push_back(rstd);
    }
    return Concat({out, means, rstds});
}

TEST(LayerNorm, Forward)
{
    for (auto [R, C] :
         {std::pair<int64_t, int64_t>{1, 1}, {5, 3}, {37, 101}, {100, 768}, {3, 17000}}) {
        Floats x = Random(R * C, 1);
        for (float &v : x) {
            v += 3.0f; /* a mean that matters */
        }
        const Floats w = Random(C, 2), b = Random(C, 3);
        const int64_t r = R, c = C;
        ExpectOp(
            [&](const shd_compute_ops *ops, const shd_opctx *ctx) {
                Floats out = Garbage(r * c), mean = Garbage(r), rstd = Garbage(r);
                ops->layernorm_forward(ctx, out.data(), mean.data(), rstd.data(), x.data(),
                                       w.data(), b.data(), r, c, static_cast<float>(kEps));
                Floats only = Garbage(r * c);
                ops->layernorm_forward(ctx, only.data(), nullptr, nullptr, x.data(), w.data(),
                                       b.data(), r, c, static_cast<float>(kEps));
                EXPECT_TRUE(SameBits(out, only));
                return Concat({out, mean, rstd});
            },
            Forward(ToDouble(x), ToDouble(w), ToDouble(b), r, c), c == 1 ? 2e-5 : 2e-6,
            "layernorm_forward");
    }
}

Floats Backward(const shd_compute_ops *ops, const shd_opctx *ctx, const Floats &dout,
                const Floats &x, const Floats &w, const Floats &b, int64_t R, int64_t C, int acc_dx,
                int acc_dw, const Floats &dx0, const Floats &dw0, const Floats &db0)
{
    Floats out = Garbage(R * C), mean = Garbage(R), rstd = Garbage(R);
    ops->layernorm_forward(ctx, out.data(), mean.data(), rstd.data(), x.data(), w.data(), b.data(),
                           R, C, static_cast<float>(kEps));
    Floats dx = acc_dx ? dx0 : Garbage(R * C);
    Floats dw = acc_dw ? dw0 : Garbage(C), db = acc_dw ? db0 : Garbage(C);
    std::vector<char> ws(ops->layernorm_backward_ws(ctx, R, C));
    ops->layernorm_backward(ctx, dx.data(), dw.data(), db.data(), dout.data(), x.data(), w.data(),
                            mean.data(), rstd.data(), R, C, acc_dx, acc_dw, ws.data());
    return Concat({dx, dw, db});
}

TEST(LayerNorm, BackwardIsTheDerivative)
{
    const int64_t R = 70, C = 19;
    const Floats x = Random(R * C, 4), w = Random(C, 5), b = Random(C, 6), dout = Random(R * C, 7);
    const Floats dx0 = Random(R * C, 8), dw0 = Random(C, 9), db0 = Random(C, 10);
    const auto output = [&](const Doubles &xx, const Doubles &ww, const Doubles &bb) {
        Doubles y = Forward(xx, ww, bb, R, C);
        y.resize(static_cast<size_t>(R * C));
        return y;
    };
    const Doubles xd = ToDouble(x), wd = ToDouble(w), bd = ToDouble(b);
    const Doubles dx =
        NumericGradient([&](const Doubles &v) { return output(v, wd, bd); }, xd, dout);
    const Doubles dw =
        NumericGradient([&](const Doubles &v) { return output(xd, v, bd); }, wd, dout);
    const Doubles db =
        NumericGradient([&](const Doubles &v) { return output(xd, wd, v); }, bd, dout);
    for (int acc_dx : {0, 1}) {
        for (int acc_dw : {0, 1}) {
            Doubles want = Concat({dx, dw, db});
            const Floats before = Concat({dx0, dw0, db0});
            for (size_t i = 0; i < want.size(); i++) {
                if (i < x.size() ? acc_dx : acc_dw) {
                    want[i] += before[i];
                }
            }
            ExpectOp(
                [&](const shd_compute_ops *ops, const shd_opctx *ctx) {
                    return Backward(ops, ctx, dout, x, w, b, R, C, acc_dx, acc_dw, dx0, dw0, db0);
                },
                want, 5e-6, "layernorm_backward");
        }
    }
}

/* More rows than chunks, rows of many vectors: against the formula in double. */
TEST(LayerNorm, BackwardOfManyRows)
{
    const int64_t R = 1001, C = 130;
    const Floats x = Random(R * C, 11), w = Random(C, 12), b = Random(C, 13);
    const Floats dout = Random(R * C, 14);
    const Doubles f = Forward(ToDouble(x), Doubles(static_cast<size_t>(C), 1.0),
                              Doubles(static_cast<size_t>(C), 0.0), R, C); /* x̂, mean, rstd */
    Doubles dx, dw(static_cast<size_t>(C)), db(static_cast<size_t>(C));
    for (int64_t r = 0; r < R; r++) {
        double g_mean = 0.0, gx_mean = 0.0;
        for (int64_t i = 0; i < C; i++) {
            const size_t at = static_cast<size_t>(r * C + i), c = static_cast<size_t>(i);
            dw[c] += dout[at] * f[at];
            db[c] += dout[at];
            g_mean += static_cast<double>(dout[at]) * w[c] / C;
            gx_mean += static_cast<double>(dout[at]) * w[c] * f[at] / C;
        }
        const double rstd = f[static_cast<size_t>(R * C + R + r)];
        for (int64_t i = 0; i < C; i++) {
            const size_t at = static_cast<size_t>(r * C + i);
            const double g = static_cast<double>(dout[at]) * w[static_cast<size_t>(i)];
            dx.push_back(rstd * (g - g_mean - f[at] * gx_mean));
        }
    }
    ExpectOp(
        [&](const shd_compute_ops *ops, const shd_opctx *ctx) {
            return Backward(ops, ctx, dout, x, w, b, R, C, 0, 0, {}, {}, {});
        },
        Concat({dx, dw, db}), 1e-5, "layernorm_backward");
}

} // namespace
