// What a model may not ask of the tape.
#include "tests/tape/graph.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

namespace
{

using namespace graph;

class Misuse : public testing::Test
{
  protected:
    Misuse() : t_(kDefs)
    {
        Fill(&t_, kDefs);
        shd_tape_reset(t_.tape, 1);
        x_ = t_.embedding(t_.param(0), t_.none(), kFour, 4);
    }
    void ExpectInternal(const std::vector<std::string> &says)
    {
        shd_error err = {};
        EXPECT_EQ(SHD_EINTERNAL, shd_tape_error(t_.tape, &err));
        for (const std::string &part : says) {
            EXPECT_NE(std::string::npos, std::string(err.message).find(part))
                << "'" << err.message << "' lacks '" << part << "'";
        }
    }
    static const std::vector<Param> kDefs;
    static const std::vector<int32_t> kFour;
    Taped t_;
    shd_tensor *x_;
};

const std::vector<Param> Misuse::kDefs = {{4, 6}, {5, 6}, {6, 0}, {5, 0}, {3, 7}};
const std::vector<int32_t> Misuse::kFour = Identity(4);

TEST_F(Misuse, EmbeddingOfBrokenSequences)
{
    EXPECT_EQ(nullptr, t_.embedding(t_.param(0), t_.none(), kFour, 3));
    ExpectInternal({"embedding", "4 rows of 3"});
}

TEST_F(Misuse, EmbeddingLongerThanItsPositions)
{
    const std::vector<int32_t> six(6);
    EXPECT_EQ(nullptr, t_.embedding(t_.param(0), t_.param(1), six, 6));
    ExpectInternal({"embedding", "6 rows of 6"});
}

TEST_F(Misuse, EmbeddingOfTablesOfDifferentWidth)
{
    EXPECT_EQ(nullptr, t_.embedding(t_.param(0), t_.param(4), kFour, 2));
    ExpectInternal({"embedding"});
}

TEST_F(Misuse, LinearThatDoesNotFit)
{
    EXPECT_EQ(nullptr, t_.linear(x_, t_.param(1), t_.none(), t_.none(), 1));
    ExpectInternal({"linear", "[4,6]", "[5,6]"});
}

TEST_F(Misuse, LinearWithABiasOfAnotherWidth)
{
    EXPECT_EQ(nullptr, t_.linear(x_, t_.param(1), t_.param(2), t_.none(), 0));
    ExpectInternal({"linear"});
}

TEST_F(Misuse, LinearWithAResidualOfAnotherShape)
{
    EXPECT_EQ(nullptr, t_.linear(x_, t_.param(1), t_.param(3), x_, 0));
    ExpectInternal({"linear"});
}

TEST_F(Misuse, AttentionOverBrokenHeadsOrSequences)
{
    EXPECT_EQ(nullptr, t_.attention(x_, 4, 4));
    ExpectInternal({"attention", "[4,6]", "4 heads"});
    shd_tape_reset(t_.tape, 1);
    x_ = t_.embedding(t_.param(0), t_.none(), kFour, 4);
    EXPECT_EQ(nullptr, t_.attention(x_, 2, 3));
    ExpectInternal({"attention", "sequences of 3"});
}

TEST_F(Misuse, AttentionOverRowsThatAreNotThreeTimesAWidth)
{
    shd_tensor *y = t_.linear(x_, t_.param(1), t_.none(), t_.none(), 0); // [4,5]
    EXPECT_EQ(nullptr, t_.attention(y, 1, 4));
    ExpectInternal({"attention", "[4,5]"});
}

TEST_F(Misuse, CrossEntropyWithAHeadOfAnotherWidth)
{
    t_.cross_entropy(x_, t_.param(4), kFour);
    ExpectInternal({"cross-entropy", "6", "7"});
}

TEST_F(Misuse, CrossEntropyOfSomethingUsedAfterIt)
{
    t_.cross_entropy(x_, t_.param(1), kFour);
    shd_tensor *y = t_.gelu(x_);
    t_.weigh(y);
    EXPECT_EQ(SHD_EINTERNAL, shd_tape_backward(t_.tape, 0, nullptr));
    ExpectInternal({"cross-entropy", "twice"});
}

TEST_F(Misuse, AttentionOfSomethingUsedAfterIt)
{
    shd_tensor *a = t_.attention(x_, 2, 4);
    shd_tensor *y = t_.gelu(x_);
    t_.weigh(y);
    t_.weigh(a);
    EXPECT_EQ(SHD_EINTERNAL, shd_tape_backward(t_.tape, 0, nullptr));
    ExpectInternal({"attention", "twice"});
}

TEST_F(Misuse, RowsOutsideOrWhileRecording)
{
    EXPECT_EQ(nullptr, shd_tape_rows(t_.tape, x_, 0, 1));
    ExpectInternal({"rows 0..1 of 4", "forward only"});
    for (auto [first, n] : {std::pair{-1, 1}, std::pair{3, 2}, std::pair{4, 1}}) {
        shd_tape_reset(t_.tape, 0);
        x_ = t_.embedding(t_.param(0), t_.none(), kFour, 4);
        EXPECT_EQ(nullptr, shd_tape_rows(t_.tape, x_, first, n));
        ExpectInternal({"of 4"});
    }
    shd_tape_reset(t_.tape, 0);
    x_ = t_.embedding(t_.param(0), t_.none(), kFour, 4);
    shd_tensor *last = shd_tape_rows(t_.tape, x_, 3, 1);
    ASSERT_NE(nullptr, last);
    EXPECT_EQ(0, std::memcmp(last->data, Data(&t_.params[0]) + 3 * 6, 6 * sizeof(float)));
}

TEST_F(Misuse, BackwardFromATensorWithoutGradient)
{
    t_.gelu(x_);
    EXPECT_EQ(SHD_EINTERNAL, shd_tape_backward(t_.tape, 0, nullptr));
    ExpectInternal({"without a gradient"});
}

TEST_F(Misuse, BackwardIntoAParameterWithoutGradientMemory)
{
    void *kept = t_.params[0].grad;
    t_.params[0].grad = nullptr;
    t_.weigh(x_);
    EXPECT_EQ(SHD_EINTERNAL, shd_tape_backward(t_.tape, 0, nullptr));
    ExpectInternal({"parameter", "no gradient memory"});
    t_.params[0].grad = kept;
}

} // namespace
