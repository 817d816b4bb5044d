/* Ops in bf16 and fp16 that have no file of their own here: the same operands through the fp32
 * table, rounded once (see ExpectHalf). */
#include "tests/kernels/op_test.h"

using namespace optest;

namespace
{

const shd_dtype kHalf[] = {SHD_BF16, SHD_F16};

TEST(Half, Add)
{
    for (int64_t n : {1, 17, 70001}) {
        const Floats a = Random(n, 1), b = Random(n, 2);
        ExpectHalf(
            [&](const shd_compute_ops *ops, const shd_opctx *ctx, shd_dtype d) {
                Elts x(ops, Rounded(d, a)), y(ops, Rounded(d, b));
                ops->add(ctx, x.data(), x.data(), y.data(), n);
                return x.floats();
            },
            0.0, "add");
    }
}

TEST(Half, Gelu)
{
    const int64_t n = 20011;
    const Floats x = Random(n, 1, 6.0f), dout = Random(n, 2), before = Random(n, 3);
    for (shd_gelu_form form : {SHD_GELU_TANH, SHD_GELU_ERF}) {
        ExpectHalf(
            [&](const shd_compute_ops *ops, const shd_opctx *ctx, shd_dtype d) {
                Elts in(ops, Rounded(d, x)), out(ops, Garbage(n)), dy(ops, Rounded(d, dout)),
                    dx(ops, Rounded(d, before));
                ops->gelu_forward(ctx, out.data(), in.data(), n, form);
                ops->gelu_backward(ctx, dx.data(), dy.data(), in.data(), n, form, 1);
                ops->gelu_backward(ctx, dy.data(), dy.data(), in.data(), n, form, 0);
                return Concat({out.floats(), dx.floats(), dy.floats()});
            },
            1e-7, "gelu");
    }
}

struct Shape {
    int64_t R, N, K;
};

/* Odd ones, and some beyond the side of a widened block. */
const Shape kShapes[] = {{1, 1, 1},    {3, 5, 7},    {33, 65, 17},
                         {540, 9, 20}, {7, 540, 20}, {9, 20, 1100}};

/* Sums of up to 1100 products in fp32 in two orders: some 1e-6 of their size. */
constexpr double kSums = 4e-6;

TEST(Half, LinearForward)
{
    for (const Shape &s : kShapes) {
        const Floats x = Random(s.R * s.K, 1), w = Random(s.N * s.K, 2);
        const Floats bias = Random(s.N, 3), residual = Random(s.R * s.N, 4);
        for (int w_kn : {0, 1}) {
            for (int with : {0, 1, 2, 3}) {
                ExpectHalf(
                    [&](const shd_compute_ops *ops, const shd_opctx *ctx, shd_dtype d) {
                        Elts xe(ops, Rounded(d, x)), we(ops, Rounded(d, w)),
                            be(ops, Rounded(d, bias)), re(ops, Rounded(d, residual)),
                            out(ops, Garbage(s.R * s.N));
                        std::vector<char> ws(ops->linear_ws(ctx, s.R, s.N, s.K));
                        void *to = with == 3 ? re.data() : out.data();
                        ops->linear_forward(
                            ctx, to, xe.data(), we.data(), with & 1 ? be.data() : nullptr,
                            with & 2 ? re.data() : nullptr, s.R, s.N, s.K, w_kn, ws.data());
                        return with == 3 ? re.floats() : out.floats();
                    },
                    kSums, "linear_forward");
            }
        }
    }
}

TEST(Half, LinearBackward)
{
    for (const Shape &s : kShapes) {
        const Floats x = Random(s.R * s.K, 1), w = Random(s.N * s.K, 2);
        const Floats dout = Random(s.R * s.N, 3);
        const Floats dx0 = Random(s.R * s.K, 4), dw0 = Random(s.N * s.K, 5), db0 = Random(s.N, 6);
        for (int w_kn : {0, 1}) {
            for (int acc : {0, 1}) {
                ExpectHalf(
                    [&](const shd_compute_ops *ops, const shd_opctx *ctx, shd_dtype d) {
                        Elts xe(ops, Rounded(d, x)), we(ops, Rounded(d, w)),
                            de(ops, Rounded(d, dout));
                        Elts dx(ops, acc ? Rounded(d, dx0) : Garbage(s.R * s.K));
                        Elts dw(ops, acc ? Rounded(d, dw0) : Garbage(s.N * s.K));
                        Elts db(ops, acc ? Rounded(d, db0) : Garbage(s.N));
                        std::vector<char> ws(ops->linear_ws(ctx, s.R, s.N, s.K));
                        ops->linear_backward_input(ctx, dx.data(), de.data(), we.data(), s.R, s.N,
                                                   s.K, w_kn, acc, ws.data());
                        ops->linear_backward_weight(ctx, dw.data(), db.data(), de.data(), xe.data(),
                                                    s.R, s.N, s.K, w_kn, acc, ws.data());
                        return Concat({dx.floats(), dw.floats(), db.floats()});
                    },
                    kSums, "linear_backward");
            }
        }
    }
}

/* Whether the processor multiplies bf16 itself under this instruction set. */
bool MultipliesBf16(const std::string &isa)
{
    return isa == "x86-64-v4-bf16" || isa == "x86-64-v4-amx";
}

/* The head's logits stay fp32, and so do the gradients that come back to it; what HeadGradients
 * shows to be rounded is rounded beforehand. */
TEST(Half, Head)
{
    for (const Shape &s : kShapes) {
        const Floats x = Random(s.R * s.K, 1), w = Random(s.N * s.K, 2);
        const Floats dlogits = Random(s.R * s.N, 3), dw0 = Random(s.N * s.K, 5);
        ExpectHalf(
            [&](const shd_compute_ops *ops, const shd_opctx *ctx, shd_dtype d) {
                Elts xe(ops, Rounded(d, x)), we(ops, Rounded(d, w));
                Floats logits = Garbage(s.R * s.N);
                std::vector<char> ws(ops->linear_ws(ctx, s.R, s.N, s.K));
                ops->head_forward(ctx, logits.data(), xe.data(), we.data(), s.R, s.N, s.K,
                                  ws.data());
                return logits;
            },
            kSums, "head_forward", 0);
        for (int acc : {0, 1}) {
            for (int part : {0, 1}) { /* dx, which is rounded; dw, which is not */
                ExpectHalf(
                    [&](const shd_compute_ops *ops, const shd_opctx *ctx, shd_dtype d) {
                        Elts xe(ops, Rounded(d, x)), we(ops, Rounded(d, w));
                        const Floats given = d == SHD_BF16 ? Rounded(d, dlogits) : dlogits;
                        Elts dx(ops, Garbage(s.R * s.K)), only(ops, Garbage(s.R * s.K));
                        Floats dw = acc ? dw0 : Garbage(s.N * s.K);
                        std::vector<char> ws(ops->linear_ws(ctx, s.R, s.N, s.K));
                        ops->head_backward(ctx, only.data(), nullptr, given.data(), xe.data(),
                                           we.data(), s.R, s.N, s.K, acc, ws.data());
                        ops->head_backward(ctx, dx.data(), dw.data(), given.data(), xe.data(),
                                           we.data(), s.R, s.N, s.K, acc, ws.data());
                        EXPECT_TRUE(SameBits(only.floats(), dx.floats()));
                        return part == 0 ? dx.floats() : dw;
                    },
                    kSums, "head_backward", part == 0);
            }
        }
    }
}

/* Gradients of logits are multiplied as they come, but by processors that multiply bf16 themselves,
 * which take them rounded: then the same bits as from rounded ones. */
TEST(Half, HeadGradients)
{
    const Shape s{70, 97, 301};
    const Floats x = Random(s.R * s.K, 1), w = Random(s.N * s.K, 2), exact = Random(s.R * s.N, 3);
    Context ctx(2);
    for (const char *isa : kIsas) {
        for (shd_dtype d : kHalf) {
            const shd_compute_ops *ops = shd_compute_ops_cpu_named(isa, d);
            if (ops == nullptr) {
                continue;
            }
            const auto run = [&](const Floats &dlogits) {
                Elts xe(ops, Rounded(d, x)), we(ops, Rounded(d, w)), dx(ops, Garbage(s.R * s.K));
                Floats dw = Garbage(s.N * s.K);
                std::vector<char> ws(ops->linear_ws(ctx.get(), s.R, s.N, s.K));
                ops->head_backward(ctx.get(), dx.data(), dw.data(), dlogits.data(), xe.data(),
                                   we.data(), s.R, s.N, s.K, 0, ws.data());
                return Concat({dx.floats(), dw});
            };
            EXPECT_EQ(d == SHD_BF16 && MultipliesBf16(isa),
                      SameBits(run(exact), run(Rounded(d, exact))))
                << ops->name << " in " << shd_dtype_name(d);
        }
    }
}

TEST(Half, LayerNorm)
{
    for (auto [R, C] : {std::pair<int64_t, int64_t>{1, 3}, {70, 19}, {300, 768}}) {
        const int64_t r = R, c = C;
        const Floats x = Random(R * C, 1, 3.0f), w = Random(C, 2), b = Random(C, 3);
        const Floats dout = Random(R * C, 4), dx0 = Random(R * C, 5), dw0 = Random(2 * C, 6);
        for (int acc : {0, 1}) {
            ExpectHalf(
                [&](const shd_compute_ops *ops, const shd_opctx *ctx, shd_dtype d) {
                    const Floats sums = Rounded(d, dw0);
                    Elts xe(ops, Rounded(d, x)), we(ops, Rounded(d, w)), be(ops, Rounded(d, b)),
                        de(ops, Rounded(d, dout)), out(ops, Garbage(r * c));
                    Elts dx(ops, acc ? Rounded(d, dx0) : Garbage(r * c));
                    Elts dw(ops, acc ? Floats(sums.begin(), sums.begin() + c) : Garbage(c));
                    Elts db(ops, acc ? Floats(sums.begin() + c, sums.end()) : Garbage(c));
                    Floats mean = Garbage(r), rstd = Garbage(r);
                    std::vector<char> ws(ops->layernorm_backward_ws(ctx, r, c));
                    ops->layernorm_forward(ctx, out.data(), mean.data(), rstd.data(), xe.data(),
                                           we.data(), be.data(), r, c, 1e-5f);
                    ops->layernorm_backward(ctx, dx.data(), dw.data(), db.data(), de.data(),
                                            xe.data(), we.data(), mean.data(), rstd.data(), r, c,
                                            acc, acc, ws.data());
                    return Concat(
                        {out.floats(), mean, rstd, dx.floats(), dw.floats(), db.floats()});
                },
                3e-6, "layernorm");
        }
    }
}

TEST(Half, Embedding)
{
    const int64_t R = 60, T = 20, C = 37, V = 9, P = 23;
    const std::vector<int32_t> ids = RandomIds(R, V - 1, 1); /* one row is never hit */
    const Floats te = Random(V * C, 2), pe = Random(P * C, 3), dout = Random(R * C, 4);
    for (int acc : {0, 1}) {
        ExpectHalf(
            [&](const shd_compute_ops *ops, const shd_opctx *ctx, shd_dtype d) {
                Elts wte(ops, Rounded(d, te)), wpe(ops, Rounded(d, pe)), de(ops, Rounded(d, dout)),
                    out(ops, Garbage(R * C));
                ops->embedding_forward(ctx, out.data(), wte.data(), wpe.data(), ids.data(), R, T, C,
                                       3);
                Elts dwte(ops, acc ? Rounded(d, te) : Garbage(V * C));
                Elts dwpe(ops, acc ? Rounded(d, pe) : Garbage(P * C));
                std::vector<char> ws(ops->embedding_backward_ws(ctx, R, V));
                ops->embedding_backward(ctx, dwte.data(), dwpe.data(), de.data(), ids.data(), R, T,
                                        C, V, P, -1, acc, acc, ws.data());
                return Concat({out.floats(), dwte.floats(), dwpe.floats()});
            },
            0.0, "embedding"); /* the same additions in the same order */
    }
}

float Tree(shd_dtype to, const std::vector<Floats> &in, size_t begin, size_t end, size_t i)
{
    const size_t m = end - begin;
    if (m == 1) {
        return Rounded(to, in[begin][i]);
    }
    size_t left = 1;
    while (left * 2 < m) {
        left *= 2;
    }
    return Rounded(to, Tree(to, in, begin, begin + left, i) + Tree(to, in, begin + left, end, i));
}

/* Every pair of dtypes: leaves and sums are rounded to that of the result. A sum of two such
 * numbers in fp32 and then in half is the sum rounded once: 24 bits are more than 2 · 11 + 1. */
TEST(Half, TreeSum)
{
    const int64_t n = 256 * 9;
    for (shd_dtype from : {SHD_F32, SHD_BF16, SHD_F16}) {
        for (shd_dtype to : {SHD_F32, SHD_BF16, SHD_F16}) {
            for (size_t V = 1; V <= 9; V++) {
                std::vector<Floats> in;
                std::vector<Elts> held;
                std::vector<const void *> p;
                for (size_t v = 0; v < V; v++) {
                    in.push_back(Rounded(from, Random(n, static_cast<uint32_t>(v))));
                    held.emplace_back(from, in.back());
                }
                for (Elts &e : held) {
                    p.push_back(e.data());
                }
                const Floats before = Rounded(to, Random(n, 99));
                for (int acc : {0, 1}) {
                    Floats want;
                    for (size_t i = 0; i < static_cast<size_t>(n); i++) {
                        const float sum = Tree(to, in, 0, V, i);
                        want.push_back(acc ? Rounded(to, before[i] + sum) : sum);
                    }
                    for (const shd_ops *ops : Tables()) {
                        Context ctx(3);
                        Elts out(to, acc ? before : Garbage(n));
                        ops->tree_sum(ctx.get(), out.data(), to, p.data(), from,
                                      static_cast<int64_t>(V), n, acc);
                        ASSERT_TRUE(SameBits(want, out.floats()))
                            << ops->name << " " << shd_dtype_name(from) << " to "
                            << shd_dtype_name(to) << ", " << V;
                    }
                }
            }
        }
    }
}

TEST(Half, BlockSumsqIsThatOfTheWidenedNumbers)
{
    const int64_t n = 256 * 301;
    for (shd_dtype d : kHalf) {
        const Floats x = Rounded(d, Random(n, 3));
        for (const shd_ops *ops : Tables()) {
            Context ctx(2);
            std::vector<double> want(static_cast<size_t>(n / 256)), got = want;
            ops->block_sumsq(ctx.get(), want.data(), x.data(), SHD_F32, n);
            ops->block_sumsq(ctx.get(), got.data(), Elts(d, x).data(), d, n);
            EXPECT_EQ(want, got) << ops->name;
        }
    }
}

/* Every op with all of its operands moved by some elements: the same bits. */
TEST(Half, AddressDoesNotMatter)
{
    const int64_t R = 24, C = 48, D = 16, heads = 3, n = R * C;
    const Floats x = Random(n, 1), y = Random(n, 2), w = Random(C * C, 3), g = Random(C, 4);
    const shd_dropout drop = {0.2f, 1, 2, 3, 4};
    Floats inv_freq = Random(D / 2, 5);
    shd_attn_shape shape = {};
    shape.B = 2, shape.T = R / 2, shape.H = shape.KVH = heads, shape.D = D;
    shape.q_stride = shape.kv_stride = shape.out_stride = C, shape.scale = 0.25f;
    Context ctx(2);
    const auto all = [&](const shd_compute_ops *ops, int64_t by) {
        const auto moved = [&](const Floats &v) {
            Floats m(static_cast<size_t>(by), 1.0f);
            m.insert(m.end(), v.begin(), v.end());
            return Elts(ops, m);
        };
        Elts xe = moved(x), ye = moved(y), we = moved(w), ge = moved(g), out = moved(x);
        Elts dx = moved(x), dy = moved(y), dz = moved(x);
        Floats stats = Garbage(4 * n), results;
        std::vector<char> ws(size_t{1} << 21);
        const auto keep = [&](const Elts &e) {
            const Floats f = e.floats();
            results.insert(results.end(), f.begin() + by, f.end());
        };
        void *a = xe.at(by), *b = ye.at(by), *o = out.at(by);
        ops->add(ctx.get(), o, a, b, n), keep(out);
        ops->gelu_forward(ctx.get(), o, a, n, SHD_GELU_ERF), keep(out);
        ops->gelu_backward(ctx.get(), o, a, b, n, SHD_GELU_TANH, 1), keep(out);
        ops->swiglu_forward(ctx.get(), o, a, b, n), keep(out);
        ops->swiglu_backward(ctx.get(), dx.at(by), dy.at(by), o, a, b, n, 0, 1);
        keep(dx), keep(dy);
        ops->dropout_forward(ctx.get(), o, a, b, R, R / 2, C, &drop), keep(out);
        ops->rmsnorm_forward(ctx.get(), o, stats.data(), a, ge.at(by), R, C, 1e-5f), keep(out);
        ops->rmsnorm_backward(ctx.get(), dx.at(by), ge.at(by), b, a, we.at(by), stats.data(), R, C,
                              1, 0, ws.data());
        keep(dx), keep(ge);
        ops->layernorm_forward(ctx.get(), o, stats.data(), stats.data() + R, a, ge.at(by), b, R, C,
                               1e-5f);
        keep(out);
        ops->rope(ctx.get(), o, a, R, R / 2, heads, D, 5, inv_freq.data(), 0, 0), keep(out);
        ops->linear_forward(ctx.get(), o, a, we.at(by), ge.at(by), b, R, C, C, 1, ws.data());
        keep(out);
        ops->linear_backward_input(ctx.get(), dx.at(by), b, we.at(by), R, C, C, 0, 1, ws.data());
        keep(dx);
        EXPECT_LE(ops->attention_ws(ctx.get(), &shape, 1), ws.size());
        ops->attention_forward(ctx.get(), o, stats.data(), a, b, a, &shape, ws.data()), keep(out);
        ops->attention_backward(ctx.get(), dx.at(by), dy.at(by), dz.at(by), b, o, stats.data(), a,
                                b, a, &shape, ws.data());
        keep(dx), keep(dy), keep(dz);
        return results;
    };
    for (shd_dtype dtype : {SHD_F32, SHD_BF16, SHD_F16}) {
        for (const shd_compute_ops *ops : ComputeTables(dtype)) {
            const Floats at0 = all(ops, 0);
            for (int64_t by : {1, 2, 3, 5, 8}) {
                const Floats moved = all(ops, by);
                ASSERT_EQ(at0.size(), moved.size());
                for (size_t i = 0; i < moved.size(); i++) {
                    ASSERT_EQ(0, memcmp(&at0[i], &moved[i], sizeof(float)))
                        << ops->name << " in " << shd_dtype_name(dtype) << ", moved by " << by
                        << ": result " << i;
                }
            }
        }
    }
}

} // namespace
