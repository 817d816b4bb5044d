// A model directory's weights: one file, or an index and shards that must agree.
#include "daemon/store/hf_files.h"

#include <errno.h>
#include <fcntl.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>

#include "tests/store/files.h"

namespace
{

using Table = std::unique_ptr<shd_hf_files, decltype(&shd_hf_files_free)>;

int OpenIn(void *arg, const char *name, int *fd, shd_error *err)
{
    const std::string path = *static_cast<const files::Directory *>(arg) / name;
    *fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    return *fd >= 0 ? 0
                    : shd_fail(err, errno == ENOENT ? SHD_ENOTFOUND : SHD_EIO, "%s: %s", name,
                               strerror(errno));
}

Table Open(const files::Directory &dir, shd_error *err)
{
    shd_hf_files *out = nullptr;
    *err = {};
    const int rc =
        shd_hf_files_open("DIR", OpenIn, const_cast<files::Directory *>(&dir), &out, err);
    EXPECT_TRUE(rc == 0 || rc == err->code);
    return Table(rc == 0 ? out : nullptr, shd_hf_files_free);
}

// A file of one-element F32 tensors of these names.
std::string Weights(std::initializer_list<const char *> names)
{
    std::string header = "{";
    size_t at = 0;
    for (const char *name : names) {
        header += (at > 0 ? ",\"" : "\"") + std::string(name) +
                  "\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[" + std::to_string(at) +
                  "," + std::to_string(at + 4) + "]}";
        at += 4;
    }
    return files::Safetensors(header + "}", at);
}

TEST(HfFiles, OneFile)
{
    files::Directory dir;
    files::Write(dir / "model.safetensors", Weights({"b", "a"}));
    shd_error err;
    Table table = Open(dir, &err);
    ASSERT_TRUE(table) << err.message;
    ASSERT_EQ(shd_hf_files_n(table.get()), 2u);
    const shd_hf_tensor *a = shd_hf_files_at(table.get(), 0);
    EXPECT_STREQ(a->tensor->name, "a");
    EXPECT_EQ(shd_hf_files_find(table.get(), "a"), a);
    EXPECT_EQ(shd_hf_files_find(table.get(), "c"), nullptr);
    EXPECT_STREQ(shd_hf_files_path(table.get(), a), "DIR/model.safetensors");
    EXPECT_STREQ(shd_hf_files_source(table.get()), "DIR/model.safetensors");
    unsigned char bytes[4];
    ASSERT_EQ(shd_hf_files_read(table.get(), a, 0, 4, bytes, &err), 0);
    EXPECT_EQ(bytes[0], 4);
}

TEST(HfFiles, Shards)
{
    files::Directory dir;
    files::Write(dir / "model-1.safetensors", Weights({"a", "c"}));
    files::Write(dir / "model-2.safetensors", Weights({"b"}));
    files::Write(dir / "model.safetensors.index.json",
                 R"({"metadata":{"total_size":12},"weight_map":{"c":"model-1.safetensors",)"
                 R"("b":"model-2.safetensors","a":"model-1.safetensors"}})");
    shd_error err;
    Table table = Open(dir, &err);
    ASSERT_TRUE(table) << err.message;
    ASSERT_EQ(shd_hf_files_n(table.get()), 3u);
    EXPECT_STREQ(shd_hf_files_path(table.get(), shd_hf_files_find(table.get(), "b")),
                 "DIR/model-2.safetensors");
    unsigned char bytes[4];
    ASSERT_EQ(
        shd_hf_files_read(table.get(), shd_hf_files_find(table.get(), "c"), 0, 4, bytes, &err), 0);
    EXPECT_EQ(bytes[0], 4);
}

TEST(HfFiles, ADirectoryWithoutWeights)
{
    files::Directory dir;
    files::Write(dir / "pytorch_model.bin", "x");
    shd_error err;
    EXPECT_FALSE(Open(dir, &err));
    EXPECT_EQ(err.code, SHD_ENOTFOUND);
    EXPECT_NE(strstr(err.message, "'DIR' holds neither model.safetensors nor"), nullptr)
        << err.message;
}

TEST(HfFiles, AWrongFileIsNamed)
{
    files::Directory dir;
    files::Write(dir / "model.safetensors", "no");
    shd_error err;
    EXPECT_FALSE(Open(dir, &err));
    EXPECT_EQ(err.code, SHD_EDATA);
    EXPECT_NE(strstr(err.message, "'DIR/model.safetensors': not a safetensors file"), nullptr)
        << err.message;
}

TEST(HfFiles, EveryWrongIndexHasItsOwnError)
{
    const struct {
        const char *what, *index, *says;
    } cases[] = {
        {"empty", "", "JSON: '{' must come"},
        {"no JSON", "{\"weight_map\":", "JSON: '{' must come"},
        {"no map", "{\"metadata\":{}}", "has no weight_map"},
        {"an empty map", "{\"weight_map\":{}}", "has no weight_map, or an empty one"},
        {"a map that is a list", "{\"weight_map\":[]}", "JSON: '{' must come"},
        {"a map twice", "{\"weight_map\":{\"a\":\"s1\"},\"weight_map\":{}}", "comes twice"},
        {"a number as shard", "{\"weight_map\":{\"a\":1}}", "a string must come"},
        {"a shard elsewhere", "{\"weight_map\":{\"a\":\"../s1\"}}",
         "'../s1', which is no file of the directory"},
        {"a shard by its path", "{\"weight_map\":{\"a\":\"/etc/passwd\"}}", "'/etc/passwd'"},
        {"a shard without a name", "{\"weight_map\":{\"a\":\"\"}}", "no file of the directory"},
        {"a tensor twice", "{\"weight_map\":{\"a\":\"s1\",\"a\":\"s1\"}}", "tensor 'a' twice"},
        {"an absent shard", "{\"weight_map\":{\"a\":\"s1\",\"b\":\"s3\"}}",
         "names 's3', which is not there"},
        {"a tensor that its shard lacks",
         "{\"weight_map\":{\"a\":\"s1\",\"b\":\"s2\",\"c\":\"s2\"}}",
         "tensor 'c' is in 'DIR/s2', which does not hold it"},
        {"a tensor in two shards", "{\"weight_map\":{\"a\":\"s1\",\"b\":\"s4\"}}",
         "'DIR/s4' holds tensor 'a', which the index says is in another file"},
        {"a tensor that only the shard knows", "{\"weight_map\":{\"a\":\"s4\"}}",
         "'DIR/s4' holds tensor 'b', which the index does not name"},
        {"something after the end", "{\"weight_map\":{\"a\":\"s1\"}} x", "something follows"},
    };
    for (const auto &c : cases) {
        SCOPED_TRACE(c.what);
        files::Directory dir;
        files::Write(dir / "s1", Weights({"a"}));
        files::Write(dir / "s2", Weights({"b"}));
        files::Write(dir / "s4", Weights({"a", "b"}));
        files::Write(dir / "model.safetensors.index.json", c.index);
        shd_error err;
        Table table = Open(dir, &err);
        EXPECT_FALSE(table);
        EXPECT_EQ(err.code, SHD_EDATA) << err.message;
        EXPECT_NE(strstr(err.message, c.says), nullptr) << err.message;
        EXPECT_NE(strstr(err.message, "DIR/"), nullptr) << err.message;
    }
}

TEST(HfFiles, AnIndexWithoutEnd)
{
    files::Directory dir;
    std::string index = "{\"weight_map\":{\"a\":\"s1\"";
    for (int i = 0; i < 1 << 18; i++) {
        index += ",\"" + std::to_string(i) + "\":\"s1\"";
    }
    files::Write(dir / "model.safetensors.index.json", index + "}}");
    shd_error err;
    EXPECT_FALSE(Open(dir, &err));
    EXPECT_EQ(err.code, SHD_EDATA);
    EXPECT_NE(strstr(err.message, "more than 262144 tensors"), nullptr) << err.message;
}

TEST(HfFiles, AFileThatMayNotBeReadIsNotTakenForAbsent)
{
    files::Directory dir;
    shd_hf_files *out = nullptr;
    shd_error err;
    const int rc = shd_hf_files_open(
        "DIR",
        [](void *, const char *name, int *, shd_error *e) {
            return shd_fail(e, SHD_EPERM, "%s: no", name);
        },
        nullptr, &out, &err);
    EXPECT_EQ(rc, SHD_EPERM);
    EXPECT_STREQ(err.message, "model.safetensors: no");
}

} // namespace
