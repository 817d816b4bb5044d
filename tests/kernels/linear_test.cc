#include "tests/kernels/op_test.h"

using namespace optest;

namespace
{

struct Shape {
    int64_t R, N, K;
};

/* Small odd ones, and some that are cut into several pieces along either side. */
const Shape kShapes[] = {{1, 1, 1},     {3, 5, 7},      {33, 65, 17},    {64, 96, 48},
                         {1, 300, 200}, {130, 515, 40}, {1100, 150, 33}, {70, 97, 301}};

size_t At(int64_t row, int64_t width, int64_t column)
{
    return static_cast<size_t>(row * width + column);
}

/* w as [K,N] for either layout. */
double Weight(const Floats &w, const Shape &s, int w_kn, int64_t k, int64_t n)
{
    return w_kn ? w[At(k, s.N, n)] : w[At(n, s.K, k)];
}

Doubles Forward(const Floats &x, const Floats &w, const Floats &bias, const Floats &residual,
                const Shape &s, int w_kn)
{
    Doubles out;
    for (int64_t r = 0; r < s.R; r++) {
        for (int64_t n = 0; n < s.N; n++) {
            double sum = bias.empty() ? 0.0 : bias[static_cast<size_t>(n)];
            sum += residual.empty() ? 0.0 : residual[At(r, s.N, n)];
            for (int64_t k = 0; k < s.K; k++) {
                sum += x[At(r, s.K, k)] * Weight(w, s, w_kn, k, n);
            }
            out.push_back(sum);
        }
    }
    return out;
}

const float *Ptr(const Floats &x)
{
    return x.empty() ? nullptr : x.data();
}

TEST(Linear, ForwardWithBiasAndResidual)
{
    for (const Shape &s : kShapes) {
        const Floats x = Random(s.R * s.K, 1), w = Random(s.N * s.K, 2);
        const Floats bias = Random(s.N, 3), residual = Random(s.R * s.N, 4), none;
        for (int w_kn : {0, 1}) {
            for (int with : {0, 1, 2, 3}) {
                const Floats &b = with & 1 ? bias : none, &r = with & 2 ? residual : none;
                ExpectOp(
                    [&](const shd_compute_ops *ops, const shd_opctx *ctx) {
                        Floats out = Garbage(s.R * s.N);
                        ops->linear_forward(ctx, out.data(), x.data(), w.data(), Ptr(b), Ptr(r),
                                            s.R, s.N, s.K, w_kn, nullptr);
                        return out;
                    },
                    Forward(x, w, b, r, s, w_kn), 2e-6, "linear_forward");
            }
            ExpectOp(
                [&](const shd_compute_ops *ops, const shd_opctx *ctx) {
                    Floats out = residual;
                    ops->linear_forward(ctx, out.data(), x.data(), w.data(), bias.data(),
                                        out.data(), s.R, s.N, s.K, w_kn, nullptr);
                    return out;
                },
                Forward(x, w, bias, residual, s, w_kn), 2e-6, "linear_forward, residual in place");
        }
    }
}

TEST(Linear, BackwardInput)
{
    for (const Shape &s : kShapes) {
        const Floats dout = Random(s.R * s.N, 5), w = Random(s.N * s.K, 6);
        const Floats before = Random(s.R * s.K, 7);
        for (int w_kn : {0, 1}) {
            for (int acc : {0, 1}) {
                Doubles want;
                for (int64_t r = 0; r < s.R; r++) {
                    for (int64_t k = 0; k < s.K; k++) {
                        double sum = acc ? before[At(r, s.K, k)] : 0.0;
                        for (int64_t n = 0; n < s.N; n++) {
                            sum += dout[At(r, s.N, n)] * Weight(w, s, w_kn, k, n);
                        }
                        want.push_back(sum);
                    }
                }
                ExpectOp(
                    [&](const shd_compute_ops *ops, const shd_opctx *ctx) {
                        Floats dx = acc ? before : Garbage(s.R * s.K);
                        ops->linear_backward_input(ctx, dx.data(), dout.data(), w.data(), s.R, s.N,
                                                   s.K, w_kn, acc, nullptr);
                        return dx;
                    },
                    want, 2e-6, "linear_backward_input");
            }
        }
    }
}

Floats BackwardWeight(const shd_compute_ops *ops, const shd_opctx *ctx, const Floats &dout,
                      const Floats &x, const Shape &s, int w_kn, int acc, const Floats &before,
                      bool with_bias)
{
    Floats dw(before.begin(), before.begin() + s.N * s.K),
        db(before.begin() + s.N * s.K, before.end());
    std::vector<char> ws(ops->linear_ws(ctx, s.R, s.N, s.K));
    ops->linear_backward_weight(ctx, dw.data(), with_bias ? db.data() : nullptr, dout.data(),
                                x.data(), s.R, s.N, s.K, w_kn, acc, ws.data());
    return Concat({dw, db});
}

TEST(Linear, BackwardWeightAndBias)
{
    for (const Shape &s : kShapes) {
        const Floats dout = Random(s.R * s.N, 8), x = Random(s.R * s.K, 9);
        const Floats some = Random(s.N * s.K + s.N, 10);
        for (int w_kn : {0, 1}) {
            for (int acc : {0, 1}) {
                const Floats before = acc ? some : Garbage(s.N * s.K + s.N);
                Doubles want(before.size(), 0.0);
                for (size_t i = 0; acc && i < want.size(); i++) {
                    want[i] = before[i];
                }
                for (int64_t r = 0; r < s.R; r++) {
                    for (int64_t n = 0; n < s.N; n++) {
                        const double d = dout[At(r, s.N, n)];
                        for (int64_t k = 0; k < s.K; k++) {
                            want[w_kn ? At(k, s.N, n) : At(n, s.K, k)] += x[At(r, s.K, k)] * d;
                        }
                        want[static_cast<size_t>(s.N * s.K + n)] += d;
                    }
                }
                ExpectOp(
                    [&](const shd_compute_ops *ops, const shd_opctx *ctx) {
                        return BackwardWeight(ops, ctx, dout, x, s, w_kn, acc, before, true);
                    },
                    want, 3e-6, "linear_backward_weight");
            }
        }
        /* Without a bias its place is left alone. */
        Context ctx(1);
        const Floats got =
            BackwardWeight(shd_compute_ops_cpu(SHD_F32), ctx.get(), dout, x, s, 0, 0, some, false);
        EXPECT_TRUE(SameBits(Floats(some.begin() + s.N * s.K, some.end()),
                             Floats(got.begin() + s.N * s.K, got.end())));
    }
}

} // namespace
