#include "tests/kernels/op_test.h"

using namespace optest;

namespace
{

/* The contract, word for word: a range of m > 1 splits after the largest power of two below m. */
float Tree(const std::vector<Floats> &in, size_t begin, size_t end, size_t i)
{
    const size_t m = end - begin;
    if (m == 1) {
        return in[begin][i];
    }
    size_t left = 1;
    while (left * 2 < m) {
        left *= 2;
    }
    return Tree(in, begin, begin + left, i) + Tree(in, begin + left, end, i);
}

TEST(Flat, TreeSumHasTheBitsOfTheTree)
{
    for (int64_t n : {int64_t{256}, int64_t{256 * 300}}) {
        for (size_t V = 1; V <= 17; V++) {
            std::vector<Floats> in;
            for (size_t v = 0; v < V; v++) {
                in.push_back(Random(n, static_cast<uint32_t>(v)));
            }
            const Floats before = Random(n, 99);
            for (int acc : {0, 1}) {
                Doubles want;
                for (size_t i = 0; i < static_cast<size_t>(n); i++) {
                    const float sum = Tree(in, 0, V, i);
                    want.push_back(acc ? before[i] + sum : sum);
                }
                ExpectOp(
                    [&](const shd_ops *ops, const shd_opctx *ctx) {
                        Floats out = acc ? before : Garbage(n);
                        std::vector<const void *> p;
                        for (const Floats &x : in) {
                            p.push_back(x.data());
                        }
                        ops->tree_sum(ctx, out.data(), SHD_F32, p.data(), SHD_F32,
                                      static_cast<int64_t>(V), n, acc);
                        return out;
                    },
                    want, 0.0, "tree_sum");
            }
        }
    }
}

TEST(Flat, TreeSumOverOneOfItsInputs)
{
    const int64_t n = 512;
    for (size_t V : {1, 2, 3, 4, 8}) {
        std::vector<Floats> in;
        for (size_t v = 0; v < V; v++) {
            in.push_back(Random(n, static_cast<uint32_t>(v)));
        }
        Doubles want;
        for (size_t i = 0; i < static_cast<size_t>(n); i++) {
            want.push_back(Tree(in, 0, V, i));
        }
        for (size_t over = 0; over < V; over++) {
            ExpectOp(
                [&](const shd_ops *ops, const shd_opctx *ctx) {
                    std::vector<Floats> copy = in;
                    std::vector<const void *> p;
                    for (const Floats &x : copy) {
                        p.push_back(x.data());
                    }
                    ops->tree_sum(ctx, copy[over].data(), SHD_F32, p.data(), SHD_F32,
                                  static_cast<int64_t>(V), n, 0);
                    return copy[over];
                },
                want, 0.0, "tree_sum in place");
        }
    }
}

/* Buffers as large as those for which a sum goes past the cache, at addresses off the vector. */
TEST(Flat, TreeSumOfLargeBuffers)
{
    const int64_t n = 5 << 20;
    const Floats a = Random(n + 1, 1), b = Random(n, 2);
    for (const shd_ops *ops : Tables()) {
        Context ctx(2);
        Floats out(static_cast<size_t>(n + 3), 7.0f);
        const void *in[2] = {a.data() + 1, b.data()};
        ops->tree_sum(ctx.get(), out.data() + 1, SHD_F32, in, SHD_F32, 2, n, 0);
        EXPECT_EQ(7.0f, out[0]);
        EXPECT_EQ(7.0f, out[static_cast<size_t>(n + 1)]);
        for (size_t i = 0; i < static_cast<size_t>(n); i++) {
            ASSERT_EQ(a[i + 1] + b[i], out[i + 1]) << ops->name << " at " << i;
        }
    }
}

TEST(Flat, BlockSumsqIsTheSameEverywhere)
{
    const int64_t n = 256 * 301;
    const Floats x = Random(n, 3);
    std::vector<double> first;
    for (const shd_ops *ops : Tables()) {
        for (int nthreads : {1, 2, 3, 5}) {
            Context ctx(nthreads);
            std::vector<double> out(static_cast<size_t>(n / 256));
            ops->block_sumsq(ctx.get(), out.data(), x.data(), SHD_F32, n);
            if (first.empty()) {
                first = out;
            }
            ASSERT_EQ(first, out) << ops->name << ": also between instruction sets";
        }
    }
    for (size_t j = 0; j < first.size(); j++) {
        double want = 0.0;
        for (size_t i = 0; i < 256; i++) {
            want += static_cast<double>(x[256 * j + i]) * x[256 * j + i];
        }
        ASSERT_NEAR(want, first[j], 1e-13 * want);
    }
}

} // namespace
