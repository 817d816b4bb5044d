#include "daemon/service/batch.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace
{
using Lists = std::vector<std::vector<int32_t>>;

struct Sequences {
    std::vector<std::vector<int32_t>> tokens, targets;
    std::vector<Shard__V1__Sequence> list;
    std::vector<Shard__V1__Sequence *> pointers;
    Shard__V1__Batch batch = SHARD__V1__BATCH__INIT;
    Sequences(std::vector<std::vector<int32_t>> t, std::vector<std::vector<int32_t>> y = {})
        : tokens(std::move(t)), targets(std::move(y))
    {
        targets.resize(tokens.size());
        list.resize(tokens.size());
        for (size_t i = 0; i < tokens.size(); i++) {
            list[i] = SHARD__V1__SEQUENCE__INIT;
            list[i].tokens = tokens[i].data();
            list[i].n_tokens = tokens[i].size();
            list[i].targets = targets[i].data();
            list[i].n_targets = targets[i].size();
            pointers.push_back(&list[i]);
        }
        batch.sequences = pointers.data();
        batch.n_sequences = pointers.size();
    }
};

std::string refusal(const Sequences &s)
{
    shd_batch out;
    shd_error err;
    err.message[0] = '\0';
    EXPECT_EQ(shd_batch_convert(&s.batch, 8, &out, &err), SHD_EINVAL);
    return err.message;
}
} // namespace

TEST(Batch, PadsAndShifts)
{
    const Sequences s(Lists{{1, 2, 3}, {4}, {5, 6}}, Lists{{}, {}, {-100, 9}});
    shd_batch b;
    shd_error err;
    ASSERT_EQ(shd_batch_convert(&s.batch, 8, &b, &err), 0) << err.message;
    EXPECT_EQ(b.sequences, 3u);
    EXPECT_EQ(b.length, 3u);
    const std::vector<int32_t> tokens(b.tokens, b.tokens + 9), targets(b.targets, b.targets + 9);
    EXPECT_EQ(tokens, (std::vector<int32_t>{1, 2, 3, 4, 0, 0, 5, 6, 0}));
    EXPECT_EQ(targets, (std::vector<int32_t>{2, 3, -100, -100, -100, -100, -100, 9, -100}));
    free(b.tokens);
    free(b.targets);
}

TEST(Batch, RefusesWhatIsNone)
{
    shd_batch out;
    shd_error err;
    EXPECT_EQ(shd_batch_convert(nullptr, 8, &out, &err), SHD_EINVAL);
    EXPECT_NE(refusal(Sequences(Lists{})).find("no sequences"), std::string::npos);
    EXPECT_NE(refusal(Sequences(Lists{{1}, {}})).find("sequence 1 of the batch is empty"),
              std::string::npos);
    EXPECT_NE(refusal(Sequences(Lists{{1, 2}}, Lists{{1}})).find("2 tokens but 1 targets"),
              std::string::npos);
    EXPECT_NE(refusal(Sequences(Lists{std::vector<int32_t>(9, 1)}))
                  .find("9 tokens; the job's longest is 8"),
              std::string::npos);
}

TEST(Batch, PaddingIsBounded)
{
    std::vector<std::vector<int32_t>> many((16u << 20) / 8 + 1, {1});
    many[0].assign(8, 1);
    EXPECT_NE(refusal(Sequences(std::move(many))).find("too large a batch"), std::string::npos);
}
