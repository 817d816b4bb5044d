// Which tensor is which parameter, and what a rank gets of it.
#include "daemon/train/import.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "tests/train/checkpoint.h"

namespace
{

using shd::Tensors;

class Import : public ::testing::Test
{
  protected:
    void SetUp() override
    {
        config_ = shd_model_config_gpt2(2, 2, 8, 11, 23);
        Make();
        dev_ = shd_device_create_cpu(1, 0);
    }
    void TearDown() override
    {
        shd_import_free(import_);
        shd_model_free(model_);
        shd_device_free(dev_);
    }
    void Make()
    {
        shd_model_free(model_);
        model_ = nullptr;
        ASSERT_EQ(shd_model_create(&config_, &model_, &err_), 0) << err_.message;
        tensors_ = shd::RandomTensors(model_, [](uint32_t i) {
            return std::vector<shd_st_dtype>{SHD_ST_F32, SHD_ST_BF16, SHD_ST_F16}[i % 3];
        });
    }
    // 0, or the error of importing what tensors_ holds.
    int Open(size_t shards = 1)
    {
        shd_import_free(import_);
        import_ = nullptr;
        dir_ = std::make_unique<files::Directory>();
        shd::WriteCheckpoint(dir_->path(), tensors_, shards);
        shd_hf_files *opened = shd::OpenCheckpoint(dir_->path(), &err_);
        EXPECT_NE(opened, nullptr) << err_.message;
        const int rc = shd_import_create(model_, opened, &import_, &err_);
        if (rc < 0) {
            shd_hf_files_free(opened);
            import_ = nullptr;
            EXPECT_EQ(rc, err_.code);
        }
        return rc;
    }
    // Every parameter, in pieces of `piece`, is what the file `names` has.
    void ExpectLoads(int64_t piece, const std::string &cut_prefix = "")
    {
        for (uint32_t i = 0; i < shd_model_n_params(model_); i++) {
            const shd_param_info *info = shd_model_param(model_, i);
            std::string name = info->name;
            if (name.rfind(cut_prefix, 0) == 0) {
                name = name.substr(cut_prefix.size());
            }
            EXPECT_EQ(shd_import_name(import_, i), name);
            const std::vector<float> wanted = shd::Floats(tensors_.at(name));
            std::vector<float> got(wanted.size());
            for (int64_t at = 0; at < static_cast<int64_t>(got.size()); at += piece) {
                const int64_t n = std::min<int64_t>(piece, got.size() - at);
                ASSERT_EQ(shd_import_load(import_, dev_, i, at, n, &got[at], &err_), 0)
                    << err_.message;
            }
            EXPECT_EQ(got, wanted) << name;
            EXPECT_EQ(shd_import_dtype(import_, i), tensors_.at(name).dtype);
        }
    }
    void ExpectRefused(const char *says)
    {
        EXPECT_EQ(Open(), SHD_EDATA);
        EXPECT_NE(strstr(err_.message, says), nullptr) << err_.message;
    }

    shd_model_config config_;
    shd_model *model_ = nullptr;
    shd_device *dev_ = nullptr;
    Tensors tensors_;
    std::unique_ptr<files::Directory> dir_;
    shd_import *import_ = nullptr;
    shd_error err_ = {};
};

TEST_F(Import, EveryTypeInPiecesOfAnySize)
{
    ASSERT_EQ(Open(), 0) << err_.message;
    ExpectLoads(7);
    ExpectLoads(1 << 20);
}

TEST_F(Import, Shards)
{
    ASSERT_EQ(Open(3), 0) << err_.message;
    ExpectLoads(100);
}

TEST_F(Import, ProgressIsBytesRead)
{
    ASSERT_EQ(Open(), 0) << err_.message;
    EXPECT_EQ(shd_import_done(import_), 0u);
    float x[3];
    ASSERT_EQ(shd_import_load(import_, dev_, 1, 5, 3, x, &err_), 0);
    EXPECT_EQ(shd_import_dtype(import_, 1), SHD_ST_BF16);
    EXPECT_EQ(shd_import_done(import_), 6u);
    EXPECT_EQ(shd_import_param_bytes(import_, 1), 11u * 8 * 2);
}

TEST_F(Import, NamesOfTheBaseModel)
{
    Tensors bare;
    for (const auto &[name, tensor] : tensors_) {
        bare[name.substr(strlen("transformer."))] = tensor;
    }
    tensors_ = bare;
    ASSERT_EQ(Open(), 0) << err_.message;
    ExpectLoads(50, "transformer.");
}

TEST_F(Import, BuffersArePassedOver)
{
    tensors_["transformer.h.0.attn.bias"] = {SHD_ST_BOOL, {1, 1, 2, 2}, "\1\0\1\1"};
    tensors_["transformer.h.1.attn.bias"] = {SHD_ST_U8, {1}, "x"};
    tensors_["h.1.attn.masked_bias"] = {SHD_ST_F32, {}, "1234"};
    tensors_["transformer.h.0.attn.bias"].bytes.resize(4);
    ASSERT_EQ(Open(), 0) << err_.message;
    ExpectLoads(50);
    tensors_["transformer.h.x.attn.bias"] = {SHD_ST_U8, {1}, "x"};
    ExpectRefused("'transformer.h.x.attn.bias'");
}

TEST_F(Import, MissingTensors)
{
    tensors_.erase("transformer.h.1.mlp.c_fc.bias");
    ExpectRefused("/model.safetensors' has no tensor 'transformer.h.1.mlp.c_fc.bias', which");
    tensors_.erase("transformer.ln_f.bias");
    ExpectRefused("has no tensor 'transformer.ln_f.bias' (and 1 more), which");
}

TEST_F(Import, NoTensorsAtAll)
{
    tensors_.clear();
    ExpectRefused("has no tensor 'transformer.wte.weight' (and 27 more)");
}

TEST_F(Import, UnexpectedTensors)
{
    tensors_["transformer.h.2.ln_1.bias"] = {SHD_ST_F32, {1}, "1234"};
    ExpectRefused("model.safetensors' holds tensor 'transformer.h.2.ln_1.bias', which");
    tensors_["wte.weight"] = {SHD_ST_F32, {1}, "1234"};
    ExpectRefused("(and 1 more)");
}

TEST_F(Import, WrongShapes)
{
    tensors_["transformer.wpe.weight"] = {SHD_ST_F32, {8, 11}, std::string(352, 'x')};
    ExpectRefused("'transformer.wpe.weight' of '");
    ExpectRefused("has the shape [8, 11]; the model's configuration needs [11, 8]");
    tensors_["transformer.wpe.weight"] = {SHD_ST_F32, {88}, std::string(352, 'x')};
    ExpectRefused("has the shape [88]; the model's configuration needs [11, 8]");
}

TEST_F(Import, WrongTypes)
{
    tensors_["transformer.wpe.weight"] = {SHD_ST_I32, {11, 8}, std::string(352, 'x')};
    ExpectRefused("is I32; F32, BF16 and F16 are read");
    tensors_["transformer.wpe.weight"] = {SHD_ST_F64, {11, 8}, std::string(704, 'x')};
    ExpectRefused("is F64; F32, BF16 and F16 are read");
}

TEST_F(Import, ATiedHeadMustBeTheTable)
{
    const shd::Tensor table = tensors_["transformer.wte.weight"];
    tensors_["lm_head.weight"] = table;
    ASSERT_EQ(Open(), 0) << err_.message;
    ExpectLoads(50);
    tensors_["lm_head.weight"].bytes[12] ^= 1;
    ASSERT_EQ(Open(), 0) << err_.message;
    std::vector<float> x(23 * 8);
    EXPECT_EQ(shd_import_load(import_, dev_, 0, 4, 20, x.data(), &err_), 0) << err_.message;
    EXPECT_EQ(shd_import_load(import_, dev_, 0, 0, 20, x.data(), &err_), SHD_EDATA);
    EXPECT_NE(strstr(err_.message, "ties lm_head.weight to 'transformer.wte.weight'"), nullptr)
        << err_.message;
    tensors_["lm_head.weight"].shape = {8, 23};
    ExpectRefused("'lm_head.weight'");
    tensors_["lm_head.weight"] = {SHD_ST_BF16, {23, 8}, std::string(368, 'x')};
    ExpectRefused("one is BF16 and the other F32");
}

TEST_F(Import, AnUntiedHeadIsAParameter)
{
    config_.tied = 0;
    Make();
    ASSERT_EQ(Open(), 0) << err_.message;
    ExpectLoads(50);
    tensors_.erase("lm_head.weight");
    ExpectRefused("has no tensor 'lm_head.weight'");
}

TEST_F(Import, AFileThatChangesIsNoticed)
{
    ASSERT_EQ(Open(), 0) << err_.message;
    ASSERT_EQ(truncate((*dir_ / "model.safetensors").c_str(), 1000), 0);
    float x;
    EXPECT_EQ(shd_import_load(import_, dev_, 0, 0, 1, &x, &err_), SHD_EDATA);
    EXPECT_NE(strstr(err_.message, "model.safetensors' has changed"), nullptr) << err_.message;
}

TEST_F(Import, WhatIsKnownStaysWhenTheFilesAreClosed)
{
    ASSERT_EQ(Open(), 0) << err_.message;
    shd_import_close(import_);
    EXPECT_STREQ(shd_import_name(import_, 0), "transformer.wte.weight");
    float x;
    EXPECT_EQ(shd_import_load(import_, dev_, 0, 0, 1, &x, &err_), SHD_EIO);
}

// A value that the compute type cannot hold would be infinite in every product.
TEST_F(Import, ValuesThatWouldBeInfiniteAreRefused)
{
    const std::string name = "transformer.wpe.weight"; // fp32 in the file or bf16: the third is F16
    const uint32_t index = 1;
    ASSERT_EQ(shd_model_param(model_, index)->name, name);
    tensors_.at(name).dtype = SHD_ST_F32;
    std::vector<float> values(11 * 8, 1.0f);
    const auto set = [&](float value) {
        values[37] = value;
        tensors_.at(name).bytes.assign(reinterpret_cast<const char *>(values.data()),
                                       values.size() * sizeof(float));
        ASSERT_EQ(Open(), 0) << err_.message;
    };
    std::vector<float> got(values.size());
    const auto load = [&](shd_dtype dtype) {
        shd_import_limit(import_, dtype);
        return shd_import_load(import_, dev_, index, 8, 80, got.data(), &err_);
    };
    set(65519.9f); // rounds to the largest
    EXPECT_EQ(load(SHD_F16), 0) << err_.message;
    set(-65520.0f);
    EXPECT_EQ(load(SHD_F16), SHD_EDATA);
    EXPECT_NE(strstr(err_.message, "tensor 'transformer.wpe.weight'"), nullptr) << err_.message;
    EXPECT_NE(strstr(err_.message, "holds -65520 (element 37), which is infinite in fp16"), nullptr)
        << err_.message;
    EXPECT_NE(strstr(err_.message, "--dtype bf16 or fp32"), nullptr) << err_.message;
    EXPECT_EQ(load(SHD_BF16), 0) << err_.message;
    EXPECT_EQ(load(SHD_F32), 0) << err_.message;
    set(3.4e38f);
    EXPECT_EQ(load(SHD_BF16), SHD_EDATA);
    EXPECT_EQ(load(SHD_F32), 0) << err_.message;
}

} // namespace
