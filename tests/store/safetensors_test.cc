// safetensors: what a file says of itself is checked before a byte of it is used, and what is
// written reads back.
#include "daemon/store/safetensors.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "tests/store/files.h"

namespace
{

using File = std::unique_ptr<shd_safetensors, decltype(&shd_safetensors_free)>;

File Open(const std::string &bytes, shd_error *err)
{
    shd_safetensors *file = nullptr;
    *err = {};
    const int rc = shd_safetensors_open(files::Anonymous(bytes), "weights", &file, err);
    EXPECT_TRUE(rc == 0 || rc == err->code);
    return File(rc == 0 ? file : nullptr, shd_safetensors_free);
}

const char kTwo[] = R"({"b":{"dtype":"BF16","shape":[2,3],"data_offsets":[4,16]},)"
                    R"("__metadata__":{"format":"pt"},)"
                    R"("a":{"dtype":"F32","shape":[],"data_offsets":[0,4]}})";

TEST(Safetensors, TableInTheOrderOfBytes)
{
    shd_error err;
    const std::string bytes = files::Safetensors(std::string(kTwo) + "   ", 16);
    File file = Open(bytes, &err);
    ASSERT_TRUE(file) << err.message;
    ASSERT_EQ(shd_safetensors_n(file.get()), 2u);
    const shd_st_tensor *a = shd_safetensors_at(file.get(), 0);
    EXPECT_STREQ(a->name, "a");
    EXPECT_EQ(a->dtype, SHD_ST_F32);
    EXPECT_EQ(a->ndim, 0);
    EXPECT_EQ(a->bytes, 4u);
    const shd_st_tensor *b = shd_safetensors_find(file.get(), "b");
    ASSERT_EQ(b, shd_safetensors_at(file.get(), 1));
    EXPECT_EQ(b->ndim, 2);
    EXPECT_EQ(b->shape[1], 3);
    EXPECT_EQ(b->offset, bytes.size() - 12);
    EXPECT_EQ(shd_safetensors_find(file.get(), "c"), nullptr);
    unsigned char read[5];
    ASSERT_EQ(shd_safetensors_read(file.get(), b, 7, 5, read, &err), 0) << err.message;
    for (int i = 0; i < 5; i++) {
        EXPECT_EQ(read[i], 4 + 7 + i);
    }
    EXPECT_EQ(shd_safetensors_read(file.get(), b, 8, 5, read, &err), SHD_EINVAL);
    EXPECT_EQ(shd_safetensors_read(file.get(), b, UINT64_MAX, 2, read, &err), SHD_EINVAL);
    char text[64];
    EXPECT_STREQ(shd_st_shape_text(b->ndim, b->shape, text, sizeof(text)), "[2, 3]");
    EXPECT_STREQ(shd_st_shape_text(0, nullptr, text, sizeof(text)), "[]");
}

TEST(Safetensors, NoTensorsIsAFile)
{
    shd_error err;
    File file = Open(files::Safetensors("{}", 0), &err);
    ASSERT_TRUE(file) << err.message;
    EXPECT_EQ(shd_safetensors_n(file.get()), 0u);
    EXPECT_EQ(shd_safetensors_find(file.get(), "a"), nullptr);
}

std::string Entry(const std::string &fields)
{
    return files::Safetensors("{\"w\":" + fields + "}", 16);
}

TEST(Safetensors, EveryWrongFileHasItsOwnError)
{
    const std::string good = R"({"dtype":"F32","shape":[4],"data_offsets":[0,16]})";
    const std::string two = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                            R"("b":{"dtype":"F32","shape":[2],"data_offsets":[)";
    const struct {
        const char *what;
        std::string bytes;
        const char *says;
    } cases[] = {
        {"empty", "", "0 bytes are less than the 8"},
        {"pointer", "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n",
         "a pointer of Git LFS"},
        {"no length", "1234567", "7 bytes are less than the 8"},
        {"header larger than the file", files::Length(1000) + "{}",
         "said to have 1000 bytes, the file has 2"},
        {"header larger than the format allows", files::Length(100000001) + "{}",
         "the format allows 100000000"},
        {"header that overflows", files::Length(UINT64_MAX) + "{}", "the format allows"},
        {"empty header", files::Safetensors("", 0), "does not begin with '{'"},
        {"blanks first", files::Safetensors(" {}", 0), "does not begin with '{'"},
        {"a list", files::Safetensors("[]", 0), "does not begin with '{'"},
        {"cut JSON", files::Safetensors("{\"a\":{\"dtype\":", 0), "JSON: "},
        {"bytes after the header's object", files::Safetensors("{}x", 0),
         "something follows the end at byte 2"},
        {"no comma", files::Safetensors("{\"__metadata__\":{} \"a\":1}", 0), "',' must come"},
        {"no UTF-8", files::Safetensors("{\"\xff\":{}}", 0), "JSON: "},
        {"a number as name", files::Safetensors("{1:{}}", 0), "a string must come"},
        {"metadata that is no object", files::Safetensors("{\"__metadata__\":[]}", 0),
         "__metadata__: JSON: '{'"},
        {"metadata that is no string", files::Safetensors("{\"__metadata__\":{\"a\":1}}", 0),
         "__metadata__: JSON: a string"},
        {"metadata twice", files::Safetensors("{\"__metadata__\":{},\"__metadata__\":{}}", 0),
         "__metadata__ comes twice"},
        {"entry that is no object", Entry("[]"), "tensor 'w': its entry is no object"},
        {"no dtype", Entry(R"({"shape":[4],"data_offsets":[0,16]})"), "no dtype"},
        {"no shape", Entry(R"({"dtype":"F32","data_offsets":[0,16]})"), "no shape"},
        {"no offsets", Entry(R"({"dtype":"F32","shape":[4]})"), "no data_offsets"},
        {"another field", Entry(R"({"dtype":"F32","shape":[4],"data_offsets":[0,16],"x":1})"),
         "other fields"},
        {"a field twice",
         Entry(R"({"dtype":"F32","dtype":"F32","shape":[4],"data_offsets":[0,16]})"), "duplicate"},
        {"unknown dtype", Entry(R"({"dtype":"F31","shape":[4],"data_offsets":[0,16]})"),
         "dtype 'F31' is unknown"},
        {"dtype that is no string", Entry(R"({"dtype":4,"shape":[4],"data_offsets":[0,16]})"),
         "dtype is no string"},
        {"shape that is no list", Entry(R"({"dtype":"F32","shape":4,"data_offsets":[0,16]})"),
         "shape is no list"},
        {"negative dimension", Entry(R"({"dtype":"F32","shape":[-4],"data_offsets":[0,16]})"),
         "dimension 0"},
        {"broken dimension", Entry(R"({"dtype":"F32","shape":[1,4.5],"data_offsets":[0,16]})"),
         "dimension 1"},
        {"nine dimensions",
         Entry(R"({"dtype":"F32","shape":[1,1,1,1,1,1,1,1,4],"data_offsets":[0,16]})"),
         "9 dimensions"},
        {"too many elements",
         Entry(R"({"dtype":"F32","shape":[4294967296,4294967296,4],"data_offsets":[0,16]})"),
         "more elements than can be counted"},
        {"dtype that does not match the bytes",
         Entry(R"({"dtype":"F64","shape":[4],"data_offsets":[0,16]})"),
         "shape [4] of F64 takes 32 bytes, its data_offsets give 16"},
        {"shape that does not match the bytes",
         Entry(R"({"dtype":"F32","shape":[5],"data_offsets":[0,16]})"),
         "shape [5] of F32 takes 20 bytes, its data_offsets give 16"},
        {"one offset", Entry(R"({"dtype":"F32","shape":[4],"data_offsets":[16]})"), "data_offsets"},
        {"falling offsets", Entry(R"({"dtype":"F32","shape":[4],"data_offsets":[16,0]})"),
         "rising order"},
        {"negative offset", Entry(R"({"dtype":"F32","shape":[4],"data_offsets":[-16,0]})"),
         "data_offsets"},
        {"huge offsets",
         Entry(
             R"({"dtype":"F32","shape":[4],"data_offsets":[9223372036854775791,9223372036854775807]})"),
         "belong to no tensor"},
        {"offsets beyond all numbers",
         Entry(R"({"dtype":"F32","shape":[4],"data_offsets":[0,99999999999999999999]})"), "JSON: "},
        {"a gap first", Entry(R"({"dtype":"F32","shape":[3],"data_offsets":[4,16]})"),
         "4 bytes before tensor 'w' belong to no tensor"},
        {"a gap", files::Safetensors(two + "12,20]}}", 20),
         "4 bytes before tensor 'b' belong to no tensor"},
        {"an overlap", files::Safetensors(two + "4,12]}}", 12), "tensors 'a' and 'b' overlap"},
        {"the same bytes twice", files::Safetensors(two + "0,8]}}", 8),
         "tensors 'a' and 'b' overlap"},
        {"a tensor twice", files::Safetensors("{\"w\":" + good + ",\"w\":" + good + "}", 16),
         "tensor 'w' comes twice"},
        {"cut off", files::Safetensors("{\"w\":" + good + "}", 15),
         "cut off: tensor 'w' ends at byte"},
        {"bytes after the last tensor", files::Safetensors("{\"w\":" + good + "}", 19),
         "3 bytes after the last tensor"},
        {"an endless entry", Entry("[" + std::string(5000, ' ') + "]"), "more than 4096 bytes"},
    };
    for (const auto &c : cases) {
        SCOPED_TRACE(c.what);
        shd_error err;
        EXPECT_FALSE(Open(c.bytes, &err));
        EXPECT_EQ(err.code, SHD_EDATA);
        EXPECT_NE(std::string(err.message).find("'weights'"), std::string::npos) << err.message;
        EXPECT_NE(std::string(err.message).find(c.says), std::string::npos) << err.message;
    }
}

TEST(Safetensors, OnlyRegularFiles)
{
    int ends[2];
    shd_safetensors *file;
    shd_error err;
    ASSERT_EQ(pipe(ends), 0);
    EXPECT_EQ(shd_safetensors_open(ends[0], "pipe", &file, &err), SHD_EDATA);
    EXPECT_STREQ(err.message, "'pipe' is not a regular file");
    close(ends[1]);
}

TEST(Safetensors, AFileThatChangesIsNoticed)
{
    const std::string bytes = files::Safetensors(kTwo, 16);
    for (const char *how : {"cut", "touched"}) {
        SCOPED_TRACE(how);
        const int fd = files::Anonymous(bytes);
        const int writer = dup(fd);
        shd_safetensors *opened = nullptr;
        shd_error err;
        ASSERT_EQ(shd_safetensors_open(fd, "weights", &opened, &err), 0);
        File file(opened, shd_safetensors_free);
        char buffer[12];
        const shd_st_tensor *b = shd_safetensors_find(opened, "b");
        ASSERT_EQ(shd_safetensors_read(opened, b, 0, 12, buffer, &err), 0);
        if (strcmp(how, "cut") == 0) {
            ASSERT_EQ(ftruncate(writer, static_cast<off_t>(bytes.size()) - 6), 0);
        } else {
            const timespec times[2] = {{1, 0}, {1, 0}};
            ASSERT_EQ(futimens(writer, times), 0);
        }
        EXPECT_EQ(shd_safetensors_read(opened, b, 0, 12, buffer, &err), SHD_EDATA);
        EXPECT_NE(strstr(err.message, "'weights' has changed"), nullptr) << err.message;
        close(writer);
    }
}

TEST(Safetensors, WhatIsWrittenReadsBack)
{
    char first[] = "a", second[] = "quote\" and \\ and \xc3\xa9", third[] = "nothing";
    shd_st_tensor tensors[] = {
        {first, SHD_ST_BF16, 1, {3}, 0, 0},
        {second, SHD_ST_F32, 2, {2, 2}, 0, 0},
        {third, SHD_ST_F16, 2, {0, 5}, 0, 0},
    };
    void *head = nullptr;
    uint64_t head_bytes = 0;
    const uint64_t size = shd_safetensors_layout(tensors, 3, &head, &head_bytes);
    EXPECT_EQ(head_bytes % 8, 0u);
    EXPECT_EQ(size, head_bytes + 6 + 16);
    EXPECT_EQ(tensors[0].offset, head_bytes);
    const int fd = files::Anonymous("");
    shd_error err;
    ASSERT_EQ(shd_safetensors_write(fd, "out", head, head_bytes, 0, &err), 0);
    free(head);
    const std::vector<float> values = {1, 2, 3, 4};
    ASSERT_EQ(shd_safetensors_write(fd, "out", values.data(), 16, tensors[1].offset, &err), 0);
    ASSERT_EQ(shd_safetensors_write(fd, "out", "abcdef", 6, tensors[0].offset, &err), 0);
    shd_safetensors *opened = nullptr;
    ASSERT_EQ(shd_safetensors_open(fd, "out", &opened, &err), 0) << err.message;
    File file(opened, shd_safetensors_free);
    ASSERT_EQ(shd_safetensors_n(opened), 3u);
    for (const shd_st_tensor &t : tensors) {
        const shd_st_tensor *read = shd_safetensors_find(opened, t.name);
        ASSERT_NE(read, nullptr) << t.name;
        EXPECT_EQ(read->dtype, t.dtype);
        EXPECT_EQ(read->offset, t.offset);
        EXPECT_EQ(read->bytes, t.bytes);
    }
    float back[4];
    ASSERT_EQ(shd_safetensors_read(opened, shd_safetensors_find(opened, second), 0, 16, back, &err),
              0);
    EXPECT_EQ(memcmp(back, values.data(), 16), 0);
}

TEST(Safetensors, AFullDiskIsNamed)
{
    shd_error err;
    const int fd = open("/dev/full", O_WRONLY | O_CLOEXEC);
    ASSERT_GE(fd, 0);
    EXPECT_EQ(shd_safetensors_write(fd, "out", "abc", 3, 0, &err), SHD_EIO);
    EXPECT_STREQ(err.message, "cannot write 'out': No space left on device");
    close(fd);
}

} // namespace
