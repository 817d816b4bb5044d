/* Products of bf16 by the library: what the ops rely on and its documentation does not promise. */
#include "kernels/cpu/gemm_bf16.h"

#include <thread>

#include "tests/kernels/op_test.h"

using namespace optest;

namespace
{

struct Case {
    int64_t M, N, K;
    int trans_a, trans_b, add;
};

/* Odd ones, those of one row, column or term, and some that the library cuts into blocks. */
const int64_t kShapes[][3] = {{1, 1, 1},     {3, 5, 7},     {33, 65, 17},   {1, 300, 200},
                              {300, 1, 64},  {5, 64, 1},    {64, 96, 48},   {130, 515, 40},
                              {530, 70, 33}, {70, 97, 601}, {100, 130, 384}};

template <class Check> void ForEachCase(const Check &check)
{
    for (const auto &shape : kShapes) {
        for (int flags = 0; flags < 8; flags++) {
            check(Case{shape[0], shape[1], shape[2], flags & 1, flags >> 1 & 1, flags >> 2});
        }
    }
}

std::string Name(const Case &c)
{
    return std::to_string(c.M) + "x" + std::to_string(c.N) + "x" + std::to_string(c.K) +
           (c.trans_a ? " A transposed" : "") + (c.trans_b ? " B transposed" : "") +
           (c.add ? " added" : "");
}

/* Rows of `width` laid out with `pad` elements after each. */
Floats Spread(const Floats &x, int64_t width, int64_t pad)
{
    Floats y;
    for (size_t i = 0; i < x.size(); i += static_cast<size_t>(width)) {
        y.insert(y.end(), x.begin() + static_cast<int64_t>(i),
                 x.begin() + static_cast<int64_t>(i) + width);
        y.insert(y.end(), static_cast<size_t>(pad), std::nanf(""));
    }
    return y;
}

/* The product with operands moved by some elements from where they would lie, and rows apart. */
Floats Product(const Case &c, const Floats &a, const Floats &b, const Floats &before,
               int64_t move = 0, int64_t pad = 0)
{
    const int64_t a_width = c.trans_a ? c.M : c.K, b_width = c.trans_b ? c.K : c.N;
    const Floats front(static_cast<size_t>(move), std::nanf(""));
    Elts ae(SHD_BF16, Concat({front, Spread(a, a_width, pad)}));
    Elts be(SHD_BF16, Concat({front, Spread(b, b_width, 2 * pad)}));
    Floats ce = Concat({front, Spread(before, c.N, 3 * pad)});
    shd_cpu_gemm_bf16(c.trans_a, c.trans_b, c.M, c.N, c.K,
                      static_cast<const uint16_t *>(ae.at(move)), a_width + pad,
                      static_cast<const uint16_t *>(be.at(move)), b_width + 2 * pad, c.add,
                      ce.data() + move, c.N + 3 * pad);
    Floats out;
    for (int64_t m = 0; m < c.M; m++) {
        const auto row = ce.begin() + move + m * (c.N + 3 * pad);
        out.insert(out.end(), row, row + c.N);
        for (int64_t i = 0; i < 3 * pad; i++) {
            EXPECT_TRUE(std::isnan(row[c.N + i])) << Name(c) << ": written between rows";
        }
    }
    return out;
}

struct Operands {
    Floats a, b, before;
    explicit Operands(const Case &c)
        : a(Rounded(SHD_BF16, Random(c.M * c.K, 1))), b(Rounded(SHD_BF16, Random(c.N * c.K, 2))),
          before(c.add ? Random(c.M * c.N, 3) : Garbage(c.M * c.N))
    {
    }
};

/* Products are exact in fp32. No partial sum is above the sum of all terms' sizes, and most are far
 * below it, so that a few of its roundings are more than all of theirs together. */
TEST(GemmBf16, IsTheProduct)
{
    ForEachCase([](const Case &c) {
        const Operands x(c);
        const Floats got = Product(c, x.a, x.b, x.before);
        for (int64_t m = 0; m < c.M; m++) {
            for (int64_t n = 0; n < c.N; n++) {
                double want = c.add ? x.before[static_cast<size_t>(m * c.N + n)] : 0.0;
                double size = std::fabs(want);
                for (int64_t k = 0; k < c.K; k++) {
                    const double t =
                        static_cast<double>(
                            x.a[static_cast<size_t>(c.trans_a ? k * c.M + m : m * c.K + k)]) *
                        x.b[static_cast<size_t>(c.trans_b ? n * c.K + k : k * c.N + n)];
                    want += t;
                    size += std::fabs(t);
                }
                ASSERT_NEAR(got[static_cast<size_t>(m * c.N + n)], want, 4 * 0x1p-24 * size)
                    << Name(c) << " at " << m << ", " << n;
            }
        }
    });
}

/* Not on the address, the thread, or the time; on the distance of rows only as part of the shape.
 */
TEST(GemmBf16, BitsDependOnValuesAndShapeAlone)
{
    ForEachCase([](const Case &c) {
        const Operands x(c);
        const Floats want = Product(c, x.a, x.b, x.before);
        const Floats apart = Product(c, x.a, x.b, x.before, 0, 3);
        for (int64_t move : {1, 7, 32}) {
            ASSERT_TRUE(SameBits(want, Product(c, x.a, x.b, x.before, move))) << Name(c);
            ASSERT_TRUE(SameBits(apart, Product(c, x.a, x.b, x.before, move, 3))) << Name(c);
        }
        Floats elsewhere;
        std::thread([&] { elsewhere = Product(c, x.a, x.b, x.before, 16); }).join();
        ASSERT_TRUE(SameBits(want, elsewhere)) << Name(c);
    });
}

/* Threads that prepare many more shapes than one of them keeps, all at once. */
TEST(GemmBf16, ManyShapesOnManyThreads)
{
    const auto all = [] {
        Floats results;
        for (int round = 0; round < 2; round++) {
            for (int64_t n = 1; n <= 400; n++) {
                const Case c{1 + n % 5, n, 1 + n % 3, 0, static_cast<int>(n & 1), 0};
                const Operands x(c);
                const Floats y = Product(c, x.a, x.b, x.before);
                results.insert(results.end(), y.begin(), y.end());
            }
        }
        return results;
    };
    const Floats want = all();
    EXPECT_TRUE(std::equal(want.begin(), want.begin() + static_cast<int64_t>(want.size() / 2),
                           want.begin() + static_cast<int64_t>(want.size() / 2)));
    std::vector<Floats> got(4);
    std::vector<std::thread> threads;
    for (Floats &g : got) {
        threads.emplace_back([&] { g = all(); });
    }
    for (std::thread &t : threads) {
        t.join();
    }
    for (const Floats &g : got) {
        EXPECT_TRUE(SameBits(want, g));
    }
}

} // namespace
