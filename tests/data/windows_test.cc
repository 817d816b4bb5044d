// Windows over documents: which tokens, which targets, packed and unpacked.
#include "daemon/data/windows.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "daemon/data/token_file.h"
#include "tests/data/data_files.h"

namespace
{

constexpr int32_t kIgnored = SHD_WINDOWS_IGNORED;

class Windows : public ::testing::Test
{
  protected:
    void TearDown() override
    {
        shd_windows_free(windows_);
        shd_source_free(source_);
    }
    // Documents of tokens; masked ones are negative.
    void Make(const std::vector<std::vector<int32_t>> &documents, uint32_t vocab = 1000)
    {
        shd_windows_free(windows_);
        shd_source_free(source_);
        windows_ = nullptr;
        source_ = nullptr;
        const std::string path = folder_.Write("t", "");
        const int fd = open(path.c_str(), O_RDWR);
        const uint64_t key[2] = {1, 2};
        shd_token_writer *writer = nullptr;
        shd_token_header header;
        shd_error err = {};
        ASSERT_EQ(shd_token_writer_create(fd, folder_.fd(), vocab, key, &writer, &err), 0);
        for (const auto &document : documents) {
            ASSERT_EQ(shd_token_writer_document(writer, &err), 0);
            for (int32_t token : document) {
                const int32_t id = token < 0 ? -token : token;
                ASSERT_EQ(shd_token_writer_put(writer, &id, 1, token < 0, &err), 0);
            }
        }
        ASSERT_EQ(shd_token_writer_finish(writer, &header, &err), 0) << err.message;
        shd_token_writer_free(writer);
        ASSERT_EQ(shd_source_open(fd, "t", SHD_DATA_TOKENS, &source_, &err), 0) << err.message;
        close(fd);
    }
    int Cut(int packing, uint32_t seq_len, int shuffle = 0, shd_windows_part part = SHD_WINDOWS_ALL,
            double tail = 0)
    {
        shd_windows_free(windows_);
        windows_ = nullptr;
        shd_windows_options options = {};
        options.part = part;
        options.tail = tail;
        options.seq_len = seq_len_ = seq_len;
        options.packing = packing;
        options.shuffle = shuffle;
        options.seed = 7;
        return shd_windows_create(source_, &options, &windows_, &err_);
    }
    int Whole(int packing, uint32_t seq_len, uint32_t stride = 0, uint64_t limit = 0)
    {
        shd_windows_free(windows_);
        windows_ = nullptr;
        shd_windows_options options = {};
        options.seq_len = seq_len_ = seq_len;
        options.packing = packing;
        options.whole = 1;
        options.stride = stride;
        options.limit = limit;
        return shd_windows_create(source_, &options, &windows_, &err_);
    }
    using Sample = std::pair<std::vector<int32_t>, std::vector<int32_t>>;
    Sample Read(uint64_t cursor)
    {
        Sample s{std::vector<int32_t>(seq_len_, -7), std::vector<int32_t>(seq_len_, -7)};
        EXPECT_EQ(shd_windows_read(windows_, cursor, 1000, s.first.data(), s.second.data(), &err_),
                  0)
            << err_.message;
        return s;
    }

    Folder folder_;
    shd_source *source_ = nullptr;
    shd_windows *windows_ = nullptr;
    uint32_t seq_len_ = 0;
    shd_error err_ = {};
};

TEST_F(Windows, PackedRunOverBordersButDoNotPredictThem)
{
    Make({{1, 2, 3}, {-4, -5, 6, 7}, {8, 9}});
    EXPECT_EQ(shd_source_documents(source_), 3u);
    ASSERT_EQ(Cut(1, 4), 0) << err_.message;
    ASSERT_EQ(shd_windows_count(windows_), 2u);
    EXPECT_EQ(Read(0), (Sample{{1, 2, 3, 4}, {2, 3, kIgnored, kIgnored}}));
    EXPECT_EQ(Read(1), (Sample{{5, 6, 7, 8}, {6, 7, kIgnored, 9}}));
    EXPECT_EQ(Read(2), Read(0)); // the next epoch
}

TEST_F(Windows, UnpackedStayInTheirDocument)
{
    Make({{1, 2, 3}, {9}, {-4, -5, 6, 7, 8}, {10, 11}});
    ASSERT_EQ(Cut(0, 3), 0) << err_.message;
    ASSERT_EQ(shd_windows_count(windows_), 4u); // 1, none of a single token, 2, 1
    EXPECT_EQ(Read(0), (Sample{{1, 2, 0}, {2, 3, kIgnored}}));
    EXPECT_EQ(Read(1), (Sample{{4, 5, 6}, {kIgnored, 6, 7}}));
    EXPECT_EQ(Read(2), (Sample{{7, 0, 0}, {8, kIgnored, kIgnored}}));
    EXPECT_EQ(Read(3), (Sample{{10, 0, 0}, {11, kIgnored, kIgnored}}));
}

TEST_F(Windows, ShuffledUnpackedGiveEveryWindowOnceAnEpoch)
{
    std::vector<std::vector<int32_t>> documents;
    for (int32_t d = 0; d < 100; d++) {
        documents.push_back(std::vector<int32_t>(static_cast<size_t>(2 + d % 9), d + 1));
    }
    Make(documents);
    ASSERT_EQ(Cut(0, 4, 1), 0);
    std::map<int32_t, int> targets;
    for (uint64_t i = 0; i < shd_windows_count(windows_); i++) {
        for (int32_t target : Read(i).second) {
            targets[target]++;
        }
    }
    for (int32_t d = 0; d < 100; d++) {
        EXPECT_EQ(targets[d + 1], 1 + d % 9) << d;
    }
}

TEST_F(Windows, HeadAndTail)
{
    Make({{1, 2, 3, 4}, {5, 6, 7, 8}, {9, 10, 11, 12}});
    ASSERT_EQ(Cut(1, 3, 0, SHD_WINDOWS_HEAD, 0.4), 0);
    EXPECT_EQ(shd_windows_count(windows_), 2u); // of 8 tokens
    ASSERT_EQ(Cut(1, 3, 0, SHD_WINDOWS_TAIL, 0.4), 0);
    EXPECT_EQ(Read(0), (Sample{{9, 10, 11}, {10, 11, 12}}));
    ASSERT_EQ(Cut(0, 8, 0, SHD_WINDOWS_HEAD, 0.4), 0);
    EXPECT_EQ(shd_windows_count(windows_), 2u);
    EXPECT_EQ(Read(1).second,
              (std::vector<int32_t>{6, 7, 8, kIgnored, kIgnored, kIgnored, kIgnored, kIgnored}));
    ASSERT_EQ(Cut(0, 8, 0, SHD_WINDOWS_TAIL, 0.4), 0);
    EXPECT_EQ(shd_windows_count(windows_), 1u);
    EXPECT_EQ(Read(0).first[0], 9);
}

TEST_F(Windows, TooLittle)
{
    Make({{1}, {2}, {3}});
    EXPECT_EQ(Cut(0, 4), SHD_EDATA);
    EXPECT_STREQ(err_.message, "3 documents have no two tokens: there is no target");
    EXPECT_EQ(Cut(1, 3), SHD_EDATA);
    EXPECT_NE(std::string(err_.message).find("3 tokens are too few"), std::string::npos);
    EXPECT_EQ(Cut(1, 0), SHD_EINVAL);
    EXPECT_EQ(Cut(1, 2), 0);
}

TEST_F(Windows, LargeIdsAndManyDocuments)
{
    std::vector<std::vector<int32_t>> documents;
    for (int32_t d = 0; d < 70000; d++) { // more than one batch of the index
        documents.push_back({d, 99999});
    }
    Make(documents, 100000);
    ASSERT_EQ(Cut(0, 2), 0) << err_.message;
    EXPECT_EQ(shd_windows_count(windows_), 70000u);
    int32_t ids[2], targets[2];
    ASSERT_EQ(shd_windows_read(windows_, 69999, 100000, ids, targets, &err_), 0) << err_.message;
    EXPECT_EQ(ids[0], 69999);
    EXPECT_EQ(targets[0], 99999);
    EXPECT_EQ(shd_windows_read(windows_, 69999, 99999, ids, targets, &err_), SHD_EDATA);
    EXPECT_EQ(shd_source_check(source_, 99999, &err_), SHD_EDATA); // at once, by the header
    EXPECT_NE(std::string(err_.message).find("token 99999"), std::string::npos);
}

// ---- the whole of a file ----

TEST_F(Windows, WholePackedHasEveryTokenAsATargetOnce)
{
    Make({{1, 2, 3}, {-4, -5, 6, 7}, {8, 9}});
    ASSERT_EQ(Whole(1, 3), 0) << err_.message;
    ASSERT_EQ(shd_windows_count(windows_), 3u);
    EXPECT_EQ(Read(0), (Sample{{1, 2, 3}, {2, 3, kIgnored}}));
    EXPECT_EQ(Read(1), (Sample{{4, 5, 6}, {kIgnored, 6, 7}}));
    EXPECT_EQ(Read(2), (Sample{{7, 8, 0}, {kIgnored, 9, kIgnored}}));
}

TEST_F(Windows, WholeWithAStride)
{
    Make({{1, 2, 3, 4, 5, 6, 7, 8, 9}});
    ASSERT_EQ(Whole(1, 4, 2), 0) << err_.message;
    ASSERT_EQ(shd_windows_count(windows_), 3u);
    EXPECT_EQ(Read(0), (Sample{{1, 2, 3, 4}, {2, 3, 4, 5}}));
    EXPECT_EQ(Read(1), (Sample{{3, 4, 5, 6}, {kIgnored, kIgnored, 6, 7}}));
    EXPECT_EQ(Read(2), (Sample{{5, 6, 7, 8}, {kIgnored, kIgnored, 8, 9}}));
    ASSERT_EQ(Whole(1, 4, 3), 0) << err_.message;
    ASSERT_EQ(shd_windows_count(windows_), 3u);
    EXPECT_EQ(Read(1), (Sample{{4, 5, 6, 7}, {kIgnored, 6, 7, 8}}));
    EXPECT_EQ(Read(2), (Sample{{7, 8, 0, 0}, {kIgnored, 9, kIgnored, kIgnored}}));
    EXPECT_EQ(Whole(1, 4, 5), SHD_EINVAL);
    EXPECT_NE(std::string(err_.message).find("the stride is 5"), std::string::npos) << err_.message;
}

TEST_F(Windows, WholeUnpackedStaysInItsDocument)
{
    Make({{1, 2, 3, 4, 5}, {9}, {10, 11}});
    ASSERT_EQ(Whole(0, 2, 1), 0) << err_.message;
    ASSERT_EQ(shd_windows_count(windows_), 4u);
    EXPECT_EQ(Read(0), (Sample{{1, 2}, {2, 3}}));
    EXPECT_EQ(Read(1), (Sample{{2, 3}, {kIgnored, 4}}));
    EXPECT_EQ(Read(2), (Sample{{3, 4}, {kIgnored, 5}}));
    EXPECT_EQ(Read(3), (Sample{{10, 0}, {11, kIgnored}}));
}

TEST_F(Windows, WholeUpToALimit)
{
    Make({{1, 2, 3, 4, 5}, {6, 7, 8}});
    ASSERT_EQ(Whole(1, 4, 0, 5), 0) << err_.message;
    ASSERT_EQ(shd_windows_count(windows_), 2u);
    EXPECT_EQ(Read(1), (Sample{{5, 0, 0, 0}, {kIgnored, kIgnored, kIgnored, kIgnored}}));
    ASSERT_EQ(Whole(0, 4, 0, 6), 0) << err_.message;
    ASSERT_EQ(shd_windows_count(windows_), 2u);
    EXPECT_EQ(Read(1), (Sample{{6, 0, 0, 0}, {7, kIgnored, kIgnored, kIgnored}}));
    ASSERT_EQ(Whole(0, 4, 0, 1000), 0) << err_.message;
    EXPECT_EQ(Read(1), (Sample{{6, 7, 0, 0}, {7, 8, kIgnored, kIgnored}}));
    Make({{1}});
    EXPECT_EQ(Whole(1, 4), SHD_EDATA);
}

// Every target once, whatever the stride, over more documents than are remembered.
TEST_F(Windows, WholeIsExhaustive)
{
    std::vector<std::vector<int32_t>> documents;
    uint64_t targets = 0, tokens = 0;
    for (int32_t d = 0; d < 1500; d++) {
        documents.push_back(std::vector<int32_t>(static_cast<size_t>(1 + d * 7 % 23), d % 1000));
        targets += documents.back().size() - 1;
        tokens += documents.back().size();
    }
    Make(documents);
    for (int packing : {0, 1}) {
        for (uint32_t stride : {1u, 3u, 5u}) {
            ASSERT_EQ(Whole(packing, 5, stride), 0) << err_.message;
            uint64_t counted = 0;
            for (uint64_t i = 0; i < shd_windows_count(windows_); i++) {
                for (int32_t target : Read(i).second) {
                    counted += target != kIgnored;
                }
            }
            EXPECT_EQ(counted, targets); // the first tokens of documents are masked when packed
            const uint64_t all = shd_windows_count(windows_);
            if (packing && stride == 5) {
                EXPECT_EQ(all, (tokens - 1 + 4) / 5);
            }
        }
    }
}

} // namespace
