#include "tests/kernels/op_test.h"

using namespace optest;

namespace
{

struct Shape {
    int64_t R, T, C, V, P;
};

const Shape kShapes[] = {{1, 1, 1, 1, 1}, {12, 4, 5, 7, 6}, {130, 65, 200, 50, 70}};

TEST(Embedding, Forward)
{
    for (const Shape &s : kShapes) {
        const Floats wte = Random(s.V * s.C, 1), wpe = Random((s.P + 2) * s.C, 2);
        const std::vector<int32_t> ids = RandomIds(s.R, static_cast<int32_t>(s.V), 3);
        for (int64_t pos0 : {0, 2}) {
            Doubles with, without;
            for (int64_t r = 0; r < s.R; r++) {
                for (int64_t i = 0; i < s.C; i++) {
                    const float token =
                        wte[static_cast<size_t>(ids[static_cast<size_t>(r)] * s.C + i)];
                    without.push_back(token);
                    with.push_back(token + wpe[static_cast<size_t>((pos0 + r % s.T) * s.C + i)]);
                }
            }
            ExpectOp(
                [&](const shd_compute_ops *ops, const shd_opctx *ctx) {
                    Floats out = Garbage(s.R * s.C);
                    ops->embedding_forward(ctx, out.data(), wte.data(), wpe.data(), ids.data(), s.R,
                                           s.T, s.C, pos0);
                    return out;
                },
                with, 0.0, "embedding_forward");
            ExpectOp(
                [&](const shd_compute_ops *ops, const shd_opctx *ctx) {
                    Floats out = Garbage(s.R * s.C);
                    ops->embedding_forward(ctx, out.data(), wte.data(), nullptr, ids.data(), s.R,
                                           s.T, s.C, pos0);
                    return out;
                },
                without, 0.0, "embedding_forward without positions");
        }
    }
}

/* Rows are added one by one in row order, so the reference in float has the very bits. */
TEST(Embedding, BackwardAddsRowsInOrder)
{
    for (const Shape &s : kShapes) {
        const std::vector<int32_t> ids = RandomIds(s.R, static_cast<int32_t>(s.V), 4);
        const Floats dout = Random(s.R * s.C, 5), te = Random(s.V * s.C, 6),
                     pe = Random(s.P * s.C, 7);
        for (int acc = 0; acc < 4; acc++) {
            const int acc_wte = acc & 1, acc_wpe = acc >> 1;
            Floats dwte = acc_wte ? te : Floats(te.size(), 0.0f);
            Floats dwpe = acc_wpe ? pe : Floats(pe.size(), 0.0f);
            for (int64_t r = 0; r < s.R; r++) {
                for (int64_t i = 0; i < s.C; i++) {
                    const float d = dout[static_cast<size_t>(r * s.C + i)];
                    dwte[static_cast<size_t>(ids[static_cast<size_t>(r)] * s.C + i)] += d;
                    dwpe[static_cast<size_t>(r % s.T * s.C + i)] += d;
                }
            }
            const Doubles want = ToDouble(Concat({dwte, dwpe}));
            ExpectOp(
                [&](const shd_compute_ops *ops, const shd_opctx *ctx) {
                    Floats a = acc_wte ? te : Garbage(s.V * s.C),
                           b = acc_wpe ? pe : Garbage(s.P * s.C);
                    std::vector<char> ws(ops->embedding_backward_ws(ctx, s.R, s.V));
                    ops->embedding_backward(ctx, a.data(), b.data(), dout.data(), ids.data(), s.R,
                                            s.T, s.C, s.V, s.P, -1, acc_wte, acc_wpe, ws.data());
                    return Concat({a, b});
                },
                want, 0.0, "embedding_backward");
        }
    }
}

TEST(Embedding, BackwardWithoutPositions)
{
    const std::vector<int32_t> ids = {1, 1, 0};
    const Floats dout = {1, 2, 3, 4, 5, 6};
    ExpectOp(
        [&](const shd_compute_ops *ops, const shd_opctx *ctx) {
            Floats dwte = Garbage(6);
            std::vector<char> ws(ops->embedding_backward_ws(ctx, 3, 3));
            ops->embedding_backward(ctx, dwte.data(), nullptr, dout.data(), ids.data(), 3, 3, 2, 3,
                                    0, -1, 0, 0, ws.data());
            return dwte;
        },
        {5, 6, 4, 6, 0, 0}, 0.0, "embedding_backward without positions");
    for (int acc : {0, 1}) {
        ExpectOp(
            [&](const shd_compute_ops *ops, const shd_opctx *ctx) {
                Floats dwte = acc ? Floats{7, 8, 9, 10, 11, 12} : Garbage(6);
                Floats dwpe = Garbage(6);
                std::vector<char> ws(ops->embedding_backward_ws(ctx, 3, 3));
                ops->embedding_backward(ctx, dwte.data(), dwpe.data(), dout.data(), ids.data(), 3,
                                        3, 2, 3, 3, 1, acc, 0, ws.data());
                return Concat({dwte, dwpe});
            },
            acc ? Doubles{12, 14, 9, 10, 11, 12, 1, 2, 3, 4, 5, 6}
                : Doubles{5, 6, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6},
            0.0, "embedding_backward of a padding token");
    }
}

} // namespace
