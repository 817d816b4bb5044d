// Token sources: what each format holds, and every way in which a file can be wrong.
#include "daemon/data/source.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

namespace
{

class Source : public ::testing::Test
{
  protected:
    void SetUp() override
    {
        std::string name = ::testing::TempDir() + "/source.XXXXXX";
        ASSERT_NE(mkdtemp(name.data()), nullptr);
        dir_ = name;
    }
    void TearDown() override
    {
        shd_source_free(src_);
        for (const std::string &file : files_) {
            unlink(file.c_str());
        }
        rmdir(dir_.c_str());
    }

    std::string Write(const std::string &name, const std::string &contents)
    {
        const std::string path = dir_ + "/" + name;
        std::ofstream(path, std::ios::binary) << contents;
        files_.push_back(path);
        return path;
    }

    int OpenPath(const std::string &path, shd_data_format format = SHD_DATA_AUTO)
    {
        shd_source_free(src_);
        src_ = nullptr;
        const int fd = open(path.c_str(), O_RDONLY);
        const int rc = shd_source_open(fd, path.c_str(), format, &src_, &err_);
        close(fd); // the source keeps its own
        return rc;
    }

    int Open(const std::string &name, const std::string &contents,
             shd_data_format format = SHD_DATA_AUTO)
    {
        path_ = Write(name, contents);
        return OpenPath(path_, format);
    }

    std::vector<int32_t> Read(uint64_t offset, uint64_t n, uint32_t vocab = 70000)
    {
        std::vector<int32_t> out(n, -7);
        EXPECT_EQ(shd_source_read(src_, offset, n, vocab, out.data(), &err_), 0) << err_.message;
        return out;
    }

    std::string Message() const
    {
        std::string message = err_.message;
        const size_t at = message.find(dir_ + "/");
        return at == std::string::npos ? message : message.erase(at, dir_.size() + 1);
    }

    std::string dir_, path_;
    std::vector<std::string> files_;
    shd_source *src_ = nullptr;
    shd_error err_ = {};
};

std::string U16(const std::vector<uint32_t> &values)
{
    std::string out;
    for (uint32_t v : values) {
        out += static_cast<char>(v & 255);
        out += static_cast<char>(v >> 8);
    }
    return out;
}

std::string U32(const std::vector<uint32_t> &values)
{
    std::string out;
    for (uint32_t v : values) {
        for (int shift = 0; shift < 32; shift += 8) {
            out += static_cast<char>(v >> shift & 255);
        }
    }
    return out;
}

std::string Header(uint32_t magic, uint32_t version, uint32_t tokens)
{
    std::string header = U32({magic, version, tokens});
    header.resize(1024);
    return header;
}

TEST_F(Source, TextIsBytes)
{
    ASSERT_EQ(Open("a.txt", std::string("Az\0\xff\xc3\n", 6)), 0);
    EXPECT_EQ(shd_source_format(src_), SHD_DATA_TEXT);
    EXPECT_EQ(shd_source_tokens(src_), 6u);
    EXPECT_EQ(shd_source_path(src_), path_);
    EXPECT_EQ(Read(0, 6, 256), (std::vector<int32_t>{65, 122, 0, 255, 195, 10}));
    EXPECT_EQ(Read(2, 3, 256), (std::vector<int32_t>{0, 255, 195}));
    EXPECT_EQ(Read(6, 0), (std::vector<int32_t>{}));
    EXPECT_EQ(shd_source_check(src_, 256, &err_), 0);
}

TEST_F(Source, NanoGptIsUint16)
{
    ASSERT_EQ(Open("train.bin", U16({0, 1, 50256, 65535, 258})), 0);
    EXPECT_EQ(shd_source_format(src_), SHD_DATA_NANOGPT);
    EXPECT_EQ(shd_source_tokens(src_), 5u);
    EXPECT_EQ(Read(0, 5), (std::vector<int32_t>{0, 1, 50256, 65535, 258}));
    EXPECT_EQ(Read(3, 2), (std::vector<int32_t>{65535, 258}));
}

TEST_F(Source, LlmcInBothWidths)
{
    ASSERT_EQ(Open("a.bin", Header(20240520, 1, 3) + U16({50256, 7, 65535})), 0);
    EXPECT_EQ(shd_source_format(src_), SHD_DATA_LLMC);
    EXPECT_EQ(shd_source_tokens(src_), 3u);
    EXPECT_EQ(Read(0, 3), (std::vector<int32_t>{50256, 7, 65535}));

    // By its magic, whatever the name.
    ASSERT_EQ(Open("a.dat", Header(20240801, 7, 3) + U32({128255, 7, 2000000000})), 0);
    EXPECT_EQ(shd_source_format(src_), SHD_DATA_LLMC);
    EXPECT_EQ(Read(0, 3, 4000000000u), (std::vector<int32_t>{128255, 7, 2000000000}));
    EXPECT_EQ(Read(1, 1), (std::vector<int32_t>{7}));
}

TEST_F(Source, AFormatThatIsNamedWins)
{
    const std::string bytes = Header(20240520, 1, 2) + U16({1, 2});
    ASSERT_EQ(Open("a.bin", bytes, SHD_DATA_NANOGPT), 0);
    EXPECT_EQ(shd_source_tokens(src_), bytes.size() / 2);
    ASSERT_EQ(Open("b.bin", bytes, SHD_DATA_TEXT), 0);
    EXPECT_EQ(shd_source_tokens(src_), bytes.size());
    ASSERT_EQ(Open("c.txt", "ab", SHD_DATA_NANOGPT), 0);
    EXPECT_EQ(Read(0, 1), (std::vector<int32_t>{'a' + 256 * 'b'}));
    ASSERT_EQ(Open("bin", "ab"), 0);
    EXPECT_EQ(shd_source_format(src_), SHD_DATA_TEXT);
}

TEST_F(Source, FilesThatAreNotWhatTheyMustBe)
{
    EXPECT_EQ(Open("empty.txt", ""), SHD_EDATA);
    EXPECT_EQ(Message(), "'empty.txt' is empty");
    EXPECT_EQ(Open("odd.bin", "abc"), SHD_EDATA);
    EXPECT_EQ(Message(), "'odd.bin' cannot be uint16 tokens: its length of 3 bytes is odd");
    EXPECT_EQ(Open("short.bin", U32({20240520, 1, 3})), SHD_EDATA);
    EXPECT_EQ(Message(),
              "'short.bin' is not an llm.c data file: 12 bytes are less than its header of 1024");
    EXPECT_EQ(Open("magic.bin", Header(1234, 1, 1) + U16({1}), SHD_DATA_LLMC), SHD_EDATA);
    EXPECT_EQ(Message(), "'magic.bin' is not an llm.c data file: it begins with 1234, not with the "
                         "magic 20240520 or 20240801");
    EXPECT_EQ(Open("version.bin", Header(20240520, 2, 1) + U16({1})), SHD_EDATA);
    EXPECT_EQ(Message(), "'version.bin': version 2 of llm.c data files with magic 20240520 is "
                         "unknown; version 1 is known");
    EXPECT_EQ(Open("version7.bin", Header(20240801, 1, 1) + U32({1})), SHD_EDATA);
    EXPECT_EQ(Message(), "'version7.bin': version 1 of llm.c data files with magic 20240801 is "
                         "unknown; version 7 is known");
    EXPECT_EQ(Open("none.bin", Header(20240520, 1, 0)), SHD_EDATA);
    EXPECT_EQ(Message(), "'none.bin' holds no tokens: its header says 0");
    EXPECT_EQ(Open("minus.bin", Header(20240520, 1, 0xffffffff) + U16({1})), SHD_EDATA);
    EXPECT_EQ(Message(), "'minus.bin' holds no tokens: its header says -1");
    EXPECT_EQ(Open("cut.bin", Header(20240520, 1, 3) + U16({1, 2})), SHD_EDATA);
    EXPECT_EQ(Message(), "'cut.bin': the header promises 3 tokens of 2 bytes, the file holds 4 "
                         "bytes after it");
    EXPECT_EQ(Open("more.bin", Header(20240801, 7, 1) + U32({1, 2})), SHD_EDATA);
    EXPECT_EQ(Message(), "'more.bin': the header promises 1 tokens of 4 bytes, the file holds 8 "
                         "bytes after it");
    EXPECT_EQ(OpenPath(dir_), SHD_EDATA);
    EXPECT_NE(Message().find("is not a regular file"), std::string::npos);
    EXPECT_EQ(shd_source_open(-1, "gone", SHD_DATA_AUTO, &src_, &err_), SHD_EIO);
    EXPECT_EQ(Message(), "cannot open 'gone': Bad file descriptor");
    EXPECT_EQ(src_, nullptr);
}

TEST_F(Source, WhatTheSystemRefusesIsSaid)
{
    path_ = Write("write-only.txt", "abc");
    const int fd = open(path_.c_str(), O_WRONLY);
    EXPECT_EQ(shd_source_open(fd, "w", SHD_DATA_AUTO, &src_, &err_), 0); // too short for a magic
    int32_t token;
    EXPECT_EQ(shd_source_read(src_, 0, 1, 256, &token, &err_), SHD_EIO);
    EXPECT_EQ(Message(), "cannot read 'w': Bad file descriptor");
    close(fd);
}

TEST_F(Source, ATokenBeyondTheVocabularyIsNamedWithItsPlace)
{
    std::vector<uint32_t> tokens(150001, 11);
    tokens[140000] = 300;
    ASSERT_EQ(Open("v.bin", U16(tokens)), 0);
    const std::string message = "token 300 at position 140000 of 'v.bin' is not below the "
                                "vocabulary size 300; is the model or the data format right?";
    EXPECT_EQ(shd_source_check(src_, 301, &err_), 0);
    EXPECT_EQ(shd_source_check(src_, 300, &err_), SHD_EDATA);
    EXPECT_EQ(Message(), message);
    std::vector<int32_t> out(100);
    EXPECT_EQ(shd_source_read(src_, 139950, 100, 300, out.data(), &err_), SHD_EDATA);
    EXPECT_EQ(Message(), message);
    EXPECT_EQ(shd_source_read(src_, 139900, 100, 300, out.data(), &err_), 0);

    // Ids are int32: one past that is never valid.
    ASSERT_EQ(Open("w.bin", Header(20240801, 7, 2) + U32({5, 0x80000001})), 0);
    EXPECT_EQ(shd_source_check(src_, UINT32_MAX, &err_), SHD_EDATA);
    EXPECT_NE(Message().find("token 2147483649 at position 1 of"), std::string::npos);
}

TEST_F(Source, AFileOfAnySizeIsCheckedInBoundedTime)
{
    const uint64_t size = UINT64_C(4) << 40; // sparse; reading it all would take an hour
    for (const char *name : {"huge.txt", "huge.bin"}) {
        path_ = Write(name, "ab");
        ASSERT_EQ(truncate(path_.c_str(), (off_t)size), 0);
        const int fd = open(path_.c_str(), O_RDONLY);
        shd_source_free(src_);
        src_ = nullptr;
        ASSERT_EQ(shd_source_open(fd, name, SHD_DATA_AUTO, &src_, &err_), 0) << Message();
        close(fd);
        const uint32_t vocab = shd_source_format(src_) == SHD_DATA_TEXT ? 256 : 50257;
        EXPECT_EQ(shd_source_check(src_, vocab, &err_), 0) << Message();
        EXPECT_EQ(shd_source_check(src_, 97, &err_), SHD_EDATA);
        unlink(path_.c_str());
    }
}

TEST_F(Source, ReadingPastTheEnd)
{
    ASSERT_EQ(Open("a.txt", "abcdef"), 0);
    int32_t out[8];
    EXPECT_EQ(shd_source_read(src_, 4, 3, 256, out, &err_), SHD_EINVAL);
    EXPECT_EQ(Message(), "'a.txt' has 6 tokens; 3 from position 4 on are more");
    EXPECT_EQ(shd_source_read(src_, 7, 0, 256, out, nullptr), SHD_EINVAL);
    EXPECT_EQ(shd_source_read(src_, 2, UINT64_MAX, 256, out, nullptr), SHD_EINVAL);
    EXPECT_EQ(shd_source_read(src_, UINT64_MAX, 1, 256, out, nullptr), SHD_EINVAL);
}

TEST_F(Source, AFileThatChangesIsRefused)
{
    const std::string changed =
        "'a.txt' has changed since it was opened; start a new job on the new file";
    int32_t out[6];

    // Cut.
    ASSERT_EQ(Open("a.txt", "abcdef"), 0);
    ASSERT_EQ(truncate(path_.c_str(), 3), 0);
    EXPECT_EQ(shd_source_read(src_, 0, 6, 256, out, &err_), SHD_EDATA);
    EXPECT_EQ(Message(), changed);
    EXPECT_EQ(shd_source_read(src_, 0, 2, 256, out, &err_), SHD_EDATA);
    EXPECT_EQ(Message(), changed);
    EXPECT_EQ(shd_source_check(src_, 256, &err_), SHD_EDATA);

    // Grown.
    ASSERT_EQ(Open("a.txt", "abcdef"), 0);
    std::ofstream(path_, std::ios::app) << "g";
    EXPECT_EQ(shd_source_read(src_, 0, 2, 256, out, &err_), SHD_EDATA);
    EXPECT_EQ(Message(), changed);

    // Same length, another time. A token that is wrong because of it is not what is reported.
    ASSERT_EQ(Open("a.txt", "abcdef"), 0);
    const int fd = open(path_.c_str(), O_WRONLY);
    ASSERT_EQ(pwrite(fd, "\xff", 1, 0), 1);
    const struct timespec times[2] = {{0, UTIME_OMIT}, {1000000000, 5}};
    ASSERT_EQ(futimens(fd, times), 0);
    close(fd);
    EXPECT_EQ(shd_source_read(src_, 0, 2, 128, out, &err_), SHD_EDATA);
    EXPECT_EQ(Message(), changed);

    // Replaced under the same name: the opened file is still what it was.
    ASSERT_EQ(Open("a.txt", "abcdef"), 0);
    ASSERT_EQ(unlink(path_.c_str()), 0);
    Write("a.txt", "something else");
    EXPECT_EQ(Read(0, 2, 256), (std::vector<int32_t>{'a', 'b'}));
}

TEST_F(Source, ManyThreadsReadAtOnce)
{
    std::vector<uint32_t> tokens(50000);
    for (size_t i = 0; i < tokens.size(); i++) {
        tokens[i] = static_cast<uint32_t>(i);
    }
    ASSERT_EQ(Open("t.bin", U16(tokens)), 0);
    std::vector<std::thread> threads;
    for (uint64_t t = 0; t < 4; t++) {
        threads.emplace_back([this, t] {
            for (uint64_t i = 0; i < 300; i++) {
                const uint64_t at = (i * 977 + t * 7919) % 49000;
                std::vector<int32_t> out(1000);
                ASSERT_EQ(shd_source_read(src_, at, 1000, 65536, out.data(), nullptr), 0);
                ASSERT_EQ(out.front(), static_cast<int32_t>(at));
                ASSERT_EQ(out.back(), static_cast<int32_t>(at + 999));
            }
        });
    }
    for (auto &thread : threads) {
        thread.join();
    }
}

TEST_F(Source, WhatIsNoTextIsNotReadAsOne)
{
    const struct {
        const char *name;
        std::string bytes;
        const char *message;
    } cases[] = {
        {"a.txt", "\x1f\x8b\x08 and so on", "compressed with gzip"},
        {"a.txt.zst", "\x28\xb5\x2f\xfd", "compressed with zstd"},
        {"a.xz",
         "\xfd"
         "7zXZ",
         "compressed with xz"},
        {"a.bz2", "BZh9", "compressed with bzip2"},
        {"a.jsonl", "PK\x03\x04", "a zip archive"},
        {"a.parquet", "PAR1", "a Parquet table"},
        {"a.json", "{}\n{}\n", "may be text or a document a line"},
    };
    for (const auto &c : cases) {
        EXPECT_EQ(Open(c.name, c.bytes), c.bytes[0] == '{' ? SHD_EINVAL : SHD_EDATA) << c.name;
        EXPECT_NE(Message().find(c.message), std::string::npos) << Message();
        EXPECT_NE(Message().find("--data-format"), std::string::npos) << Message();
        EXPECT_EQ(Open(c.name, c.bytes, SHD_DATA_TEXT), 0) << Message(); // who says so, means it
    }
    EXPECT_EQ(Open("a.bin", "PK\x03\x04"), 0) << Message(); // tokens are any bytes
}

TEST(DataFormat, NamesGoBothWays)
{
    for (const char *word : {"auto", "text", "nanogpt", "llmc"}) {
        shd_data_format format;
        ASSERT_EQ(shd_data_format_parse(word, &format, nullptr), 0);
        EXPECT_STREQ(shd_data_format_name(format), word);
    }
    shd_data_format format = SHD_DATA_LLMC;
    EXPECT_EQ(shd_data_format_parse("", &format, nullptr), 0);
    EXPECT_EQ(format, SHD_DATA_AUTO);
    shd_error err;
    EXPECT_EQ(shd_data_format_parse("parquet", &format, &err), SHD_EINVAL);
    EXPECT_STREQ(err.message,
                 "unknown data format 'parquet'; use one of auto, text, nanogpt, llmc, jsonl");
    EXPECT_STREQ(shd_data_format_name(static_cast<shd_data_format>(9)), "?");
}

} // namespace
