/* The library under the ops: what they rely on and its documentation does not promise. */
#include "kernels/cpu/gemm.h"

#include <thread>

#include "tests/kernels/op_test.h"

using namespace optest;

namespace
{

struct Case {
    int64_t M, N, K;
    int trans_a, trans_b;
    float beta;
};

/* The product with its operands moved by some floats from an aligned address. */
Floats Product(const Case &c, const Floats &a, const Floats &b, const Floats &before, int64_t move)
{
    std::vector<float> memory(a.size() + b.size() + before.size() + 1024);
    const uintptr_t start = (reinterpret_cast<uintptr_t>(memory.data()) + 255) / 256 * 256;
    float *pa = reinterpret_cast<float *>(start) + move;
    float *pb = pa + a.size() + 16 - a.size() % 16 + 3 * move;
    float *pc = pb + b.size() + 16 - b.size() % 16 + 5 * move;
    memcpy(pa, a.data(), a.size() * sizeof(float));
    memcpy(pb, b.data(), b.size() * sizeof(float));
    memcpy(pc, before.data(), before.size() * sizeof(float));
    shd_cpu_gemm(c.trans_a, c.trans_b, c.M, c.N, c.K, 0.5f, pa, c.trans_a ? c.M : c.K, pb,
                 c.trans_b ? c.K : c.N, c.beta, pc, c.N);
    return Floats(pc, pc + c.M * c.N);
}

TEST(Gemm, BitsDependNeitherOnAddressNorOnThread)
{
    for (const Case &shape : {Case{64, 64, 64, 0, 0, 0.0f}, Case{256, 192, 384, 0, 0, 0.0f},
                              Case{33, 65, 129, 0, 0, 0.0f}, Case{1, 300, 200, 0, 0, 0.0f},
                              Case{64, 200, 48, 0, 0, 0.0f}, Case{7, 5, 3, 0, 0, 0.0f}}) {
        const Floats a = Random(shape.M * shape.K, 1), b = Random(shape.N * shape.K, 2);
        const Floats before = Random(shape.M * shape.N, 3);
        for (int variant = 0; variant < 8; variant++) {
            Case c = shape;
            c.trans_a = variant & 1;
            c.trans_b = variant >> 1 & 1;
            c.beta = static_cast<float>(variant >> 2);
            const Floats want = Product(c, a, b, before, 0);
            for (int64_t move : {1, 2, 4, 7, 8, 15, 16, 32}) {
                ASSERT_TRUE(SameBits(want, Product(c, a, b, before, move)))
                    << c.M << "x" << c.N << "x" << c.K << " variant " << variant << " moved by "
                    << move;
            }
            Floats elsewhere;
            std::thread([&] { elsewhere = Product(c, a, b, before, 16); }).join();
            ASSERT_TRUE(SameBits(want, elsewhere));
        }
    }
}

/* With beta 0 the old contents are not read, be they NaN. */
TEST(Gemm, BetaZeroDoesNotRead)
{
    const Floats a = Random(50 * 70, 1), b = Random(60 * 70, 2);
    const Case c{50, 60, 70, 0, 0, 0.0f};
    for (float v : Product(c, a, b, Garbage(50 * 60), 0)) {
        ASSERT_FALSE(std::isnan(v));
    }
}

TEST(Gemm, GridCoversTheResultOnce)
{
    for (int trans_b : {0, 1}) {
        for (int64_t M : {1, 63, 256, 1000, 2048, 50257}) {
            for (int64_t N : {1, 100, 384, 768, 3072, 50257}) {
                for (int64_t K : {1, 64, 768}) {
                    const shd_gemm_grid g = shd_cpu_gemm_grid(trans_b, M, N, K);
                    ASSERT_GE(g.rows * g.row_step, M);
                    ASSERT_LT((g.rows - 1) * g.row_step, M);
                    ASSERT_GE(g.cols * g.col_step, N);
                    ASSERT_LT((g.cols - 1) * g.col_step, N);
                }
            }
        }
    }
}

TEST(Gemm, LargeProductsHaveWorkForEightThreads)
{
    const shd_gemm_grid wide = shd_cpu_gemm_grid(1, 256, 3072, 768);
    EXPECT_EQ(8, wide.rows * wide.cols);
    EXPECT_EQ(1, wide.rows) << "a transposed factor is packed once for each row of pieces";
    const shd_gemm_grid tall = shd_cpu_gemm_grid(0, 2048, 384, 1536);
    EXPECT_EQ(8, tall.rows * tall.cols);
}

} // namespace
