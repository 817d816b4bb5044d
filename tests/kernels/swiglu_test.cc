#include "tests/kernels/op_test.h"

using namespace optest;

namespace
{

Doubles Forward(const Doubles &gate, const Doubles &up)
{
    Doubles out;
    for (size_t i = 0; i < gate.size(); i++) {
        out.push_back(gate[i] / (1.0 + std::exp(-gate[i])) * up[i]);
    }
    return out;
}

Floats RunForward(const shd_compute_ops *ops, const shd_opctx *ctx, const Floats &gate,
                  const Floats &up)
{
    const int64_t n = static_cast<int64_t>(gate.size());
    Elts out(ops, Garbage(n));
    ops->swiglu_forward(ctx, out.data(), Elts(ops, gate).data(), Elts(ops, up).data(), n);
    return out.floats();
}

TEST(SwiGlu, ForwardOverTheWholeRange)
{
    Floats gate = Random(70003, 1, 20.0f);
    for (float v : {0.0f, -0.0f, 1e-20f, 100.0f, -100.0f, 1e4f, -1e4f}) {
        gate.push_back(v);
    }
    const Floats up = Random(static_cast<int64_t>(gate.size()), 2, 2.0f);
    ExpectOp([&](const shd_compute_ops *ops,
                 const shd_opctx *ctx) { return RunForward(ops, ctx, gate, up); },
             Forward(ToDouble(gate), ToDouble(up)), 5e-7, "swiglu_forward");
    ExpectHalf([&](const shd_compute_ops *ops, const shd_opctx *ctx,
                   shd_dtype d) { return RunForward(ops, ctx, Rounded(d, gate), Rounded(d, up)); },
               1e-6, "swiglu_forward");
}

TEST(SwiGlu, BackwardIsTheDerivative)
{
    const int64_t n = 517;
    const Floats gate = Random(n, 3, 9.0f), up = Random(n, 4), dout = Random(n, 5);
    const Floats before = Random(2 * n, 6);
    Doubles dgate, dup;
    for (size_t i = 0; i < gate.size(); i++) {
        const double g = gate[i], u = up[i];
        dgate.push_back(
            NumericGradient([&](const Doubles &v) { return Forward(v, {u}); }, {g}, {dout[i]})[0]);
        dup.push_back(
            NumericGradient([&](const Doubles &v) { return Forward({g}, v); }, {u}, {dout[i]})[0]);
    }
    for (int acc_gate : {0, 1}) {
        for (int acc_up : {0, 1}) {
            Doubles want = Concat({dgate, dup});
            for (size_t i = 0; i < want.size(); i++) {
                if (i < gate.size() ? acc_gate : acc_up) {
                    want[i] += before[i];
                }
            }
            const TypedRun run = [&](const shd_compute_ops *ops, const shd_opctx *ctx,
                                     shd_dtype d) {
                const Floats b = Rounded(d, before);
                Elts g(ops, Rounded(d, gate)), u(ops, Rounded(d, up)), o(ops, Rounded(d, dout));
                Elts dg(ops, acc_gate ? Floats(b.begin(), b.begin() + n) : Garbage(n));
                Elts du(ops, acc_up ? Floats(b.begin() + n, b.end()) : Garbage(n));
                ops->swiglu_backward(ctx, dg.data(), du.data(), o.data(), g.data(), u.data(), n,
                                     acc_gate, acc_up);
                return Concat({dg.floats(), du.floats()});
            };
            ExpectOp([&](const shd_compute_ops *ops,
                         const shd_opctx *ctx) { return run(ops, ctx, SHD_F32); },
                     want, 2e-6, "swiglu_backward");
            ExpectHalf(run, 1e-6, "swiglu_backward");
        }
    }
    /* Over dout, and one of the two alone. */
    for (int alone : {0, 1, 2}) {
        ExpectOp(
            [&](const shd_compute_ops *ops, const shd_opctx *ctx) {
                Floats dg = dout, du = Garbage(n);
                if (alone == 2) {
                    du = dout;
                }
                ops->swiglu_backward(
                    ctx, alone == 2 ? nullptr : dg.data(), alone == 1 ? nullptr : du.data(),
                    alone == 2 ? du.data() : dg.data(), gate.data(), up.data(), n, 0, 0);
                return alone == 0 ? Concat({dg, du}) : alone == 1 ? dg : du;
            },
            alone == 0   ? Concat({dgate, dup})
            : alone == 1 ? dgate
                         : dup,
            2e-6, "swiglu_backward in place");
    }
}

} // namespace
