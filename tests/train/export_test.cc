// From files into the ranks and back: with no step between, to the byte; afterwards, what the
// parameters are.
#include "daemon/train/export.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "daemon/train/import.h"
#include "tests/train/checkpoint.h"
#include "tests/train/engine.h"

namespace
{

using shd::Engine;
using shd::Tensors;

// A checkpoint in a directory, and the jobs that begin with it.
class Export : public ::testing::Test
{
  protected:
    void SetUp() override
    {
        spec_ = shd::SmallSpec("zero3", 2);
    }
    void TearDown() override
    {
        engine_.reset();
        shd_import_free(import_);
        shd_model_free(model_);
    }
    void Checkpoint(shd_st_dtype dtype, size_t shards = 1)
    {
        shd_error err = {};
        shd_model_free(model_);
        ASSERT_EQ(shd_model_create(&spec_.model, &model_, &err), 0) << err.message;
        tensors_ = shd::RandomTensors(model_, [dtype](uint32_t) { return dtype; });
        in_ = std::make_unique<files::Directory>();
        shd::WriteCheckpoint(in_->path(), tensors_, shards);
    }
    // A job whose parameters come from the checkpoint.
    Engine &Start()
    {
        shd_error err = {};
        engine_.reset();
        shd_import_free(import_);
        import_ = nullptr;
        shd_hf_files *opened = shd::OpenCheckpoint(in_->path(), &err);
        EXPECT_EQ(shd_import_create(model_, opened, &import_, &err), 0) << err.message;
        const shd_param_source from = {shd_import_load, import_};
        engine_ = std::make_unique<Engine>(spec_, data_.Open(), nullptr, 1, &from);
        EXPECT_EQ(engine_->init_rc(), 0) << engine_->init_error();
        return *engine_;
    }
    std::vector<shd_export_tensor> AsImported()
    {
        std::vector<shd_export_tensor> out;
        for (uint32_t i = 0; i < shd_model_n_params(model_); i++) {
            out.push_back({shd_import_name(import_, i), shd_import_dtype(import_, i)});
        }
        return out;
    }
    std::vector<shd_export_tensor> As(shd_st_dtype dtype)
    {
        return std::vector<shd_export_tensor>(shd_model_n_params(model_), {nullptr, dtype});
    }
    // 0, or what kept the export from being written; `out_` then holds what it made.
    int Run(const std::vector<shd_export_tensor> &tensors, uint64_t shard_bytes = 0,
            void (*meanwhile)(const std::string &) = nullptr)
    {
        out_ = std::make_unique<files::Directory>();
        return RunIn(out_->path(), tensors, shard_bytes, meanwhile);
    }
    int RunIn(const std::string &parent, const std::vector<shd_export_tensor> &tensors,
              uint64_t shard_bytes = 0, void (*meanwhile)(const std::string &) = nullptr)
    {
        shd_out_dir *dir = nullptr;
        shd_export *exp = nullptr;
        err_ = {};
        const std::string path = parent + "/model";
        const int fd = open(parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        EXPECT_EQ(shd_out_dir_create(fd, path.c_str(), "model", geteuid(), getegid(), &dir, &err_),
                  0)
            << err_.message;
        int rc = shd_export_create(model_, tensors.data(), spec_.strategy.world, shard_bytes, dir,
                                   &exp, &err_);
        if (rc == 0) {
            if (meanwhile != nullptr) {
                meanwhile(parent);
            }
            shd_work work;
            shd_work_init(&work, SHD_WORK_EXPORT);
            work.exp = exp;
            EXPECT_EQ(engine_->Run(&work), 0) << work.err.message;
            rc = shd_export_result(exp, &err_);
            shd_work_fini(&work);
        }
        if (rc == 0) {
            bytes_ = shd_export_bytes(exp);
            EXPECT_EQ(shd_export_tensors(exp), shd_model_n_params(model_));
            rc = shd_out_dir_finish(dir, &err_);
        } else {
            shd_out_dir_discard(dir);
        }
        shd_export_free(exp);
        return rc;
    }
    std::string Made() const
    {
        return *out_ / "model";
    }
    void ExpectSame(const Tensors &got, const char *what)
    {
        ASSERT_EQ(got.size(), tensors_.size()) << what;
        for (const auto &[name, tensor] : tensors_) {
            ASSERT_EQ(got.count(name), 1u) << what << name;
            EXPECT_EQ(got.at(name).dtype, tensor.dtype) << what << name;
            EXPECT_EQ(got.at(name).shape, tensor.shape) << what << name;
            EXPECT_TRUE(got.at(name).bytes == tensor.bytes) << what << name;
        }
    }

    shd_spec spec_ = {};
    shd_model *model_ = nullptr;
    shd_import *import_ = nullptr;
    Tensors tensors_;
    std::unique_ptr<files::Directory> in_, out_;
    shd::DataFile data_{4000};
    std::unique_ptr<Engine> engine_;
    shd_error err_ = {};
    uint64_t bytes_ = 0;
};

TEST_F(Export, WithNoStepBetweenToTheByte)
{
    const struct {
        const char *strategy;
        uint32_t world;
        shd_dtype compute;
        size_t in_shards;
        uint64_t out_shards; // bytes
    } cases[] = {
        {"ddp", 1, SHD_F32, 1, 0},        {"zero3", 2, SHD_F32, 3, 4000},
        {"zero1", 3, SHD_F32, 1, 20000},  {"zero2", 4, SHD_F32, 2, 0},
        {"zero3", 2, SHD_BF16, 1, 1},     {"ddp", 2, SHD_BF16, 1, 0},
        {"zero1", 3, SHD_F16, 2, 9000},   {"zero3", 4, SHD_F16, 1, 0},
        {"zero3", 8, SHD_BF16, 1, 10000},
    };
    for (const shd_st_dtype dtype : {SHD_ST_F32, SHD_ST_BF16, SHD_ST_F16}) {
        for (const auto &c : cases) {
            const std::string what = std::string(shd_st_dtype_name(dtype)) + " " + c.strategy +
                                     " " + std::to_string(c.world) + " " +
                                     shd_dtype_name(c.compute) + " ";
            spec_ = shd::SmallSpec(c.strategy, c.world);
            spec_.dtype = c.compute;
            spec_.model.tied = c.world % 2;
            Checkpoint(dtype, c.in_shards);
            Start();
            ASSERT_EQ(Run(AsImported(), c.out_shards), 0) << what << err_.message;
            ExpectSame(shd::ReadCheckpoint(Made()), what.c_str());
        }
    }
}

TEST_F(Export, ShardsAreNoLargerThanAsked)
{
    Checkpoint(SHD_ST_F32);
    Start();
    const uint64_t most = 20000;
    ASSERT_EQ(Run(AsImported(), most), 0) << err_.message;
    size_t shards = 0;
    for (const auto &entry : std::filesystem::directory_iterator(Made())) {
        if (entry.path().extension() != ".safetensors") {
            EXPECT_EQ(entry.path().filename(), "model.safetensors.index.json");
            continue;
        }
        shards++;
        shd_safetensors *file = nullptr;
        ASSERT_EQ(shd_safetensors_open(open(entry.path().c_str(), O_RDONLY), "x", &file, &err_), 0);
        uint64_t bytes = 0;
        for (uint32_t i = 0; i < shd_safetensors_n(file); i++) {
            bytes += shd_safetensors_at(file, i)->bytes;
        }
        EXPECT_TRUE(bytes <= most || shd_safetensors_n(file) == 1) << entry.path();
        shd_safetensors_free(file);
    }
    EXPECT_GT(shards, 2u);
    const std::string index = files::Read(Made() + "/model.safetensors.index.json");
    EXPECT_NE(index.find("\"total_size\": " + std::to_string(bytes_)), std::string::npos) << index;
    EXPECT_NE(index.find("\"transformer.wte.weight\": \"model-00001-of-0000"), std::string::npos);
}

TEST_F(Export, AfterStepsWhatTheParametersAre)
{
    for (const shd_dtype compute : {SHD_F32, SHD_BF16}) {
        spec_ = shd::SmallSpec("zero2", 3);
        spec_.dtype = compute;
        Checkpoint(SHD_ST_BF16);
        Start();
        engine_->Train(3);
        const std::vector<std::vector<float>> params = engine_->Params();
        for (const shd_st_dtype dtype : {SHD_ST_F32, SHD_ST_BF16, SHD_ST_F16}) {
            ASSERT_EQ(Run(As(dtype)), 0) << err_.message;
            const Tensors got = shd::ReadCheckpoint(Made());
            for (uint32_t i = 0; i < shd_model_n_params(model_); i++) {
                const char *name = shd_model_param(model_, i)->name;
                std::string wanted(params[i].size() * shd_st_dtype_size(dtype), '\0');
                shd_convert_from_f32(wanted.data(), dtype, params[i].data(), params[i].size());
                EXPECT_TRUE(got.at(name).bytes == wanted) << name;
                EXPECT_EQ(got.at(name).dtype, dtype);
            }
        }
        const shd::Tensor &table = tensors_.at("transformer.wte.weight");
        EXPECT_NE(shd::Floats(table), params[0]) << "nothing was trained";
        engine_->Step();
    }
}

TEST_F(Export, TheJobGoesOnToTheSameBits)
{
    Checkpoint(SHD_ST_F32);
    const shd::Trace alone = Start().Train(4);
    Start();
    shd::Trace with;
    for (int i = 0; i < 4; i++) {
        ASSERT_EQ(Run(As(SHD_ST_BF16)), 0) << err_.message;
        engine_->Step(&with);
    }
    with.params = engine_->Params();
    EXPECT_TRUE(alone == with);
}

TEST_F(Export, EveryWorldBeginsWithTheSameBits)
{
    std::vector<std::vector<float>> first;
    for (uint32_t world = 1; world <= 8; world++) {
        spec_ = shd::SmallSpec("zero3", world);
        Checkpoint(SHD_ST_F16);
        Start();
        const std::vector<std::vector<float>> params = engine_->Params();
        for (uint32_t i = 0; i < shd_model_n_params(model_); i++) {
            EXPECT_EQ(params[i], shd::Floats(tensors_.at(shd_model_param(model_, i)->name)));
        }
        if (world == 1) {
            first = params;
        }
        EXPECT_EQ(params, first) << world;
        EXPECT_EQ(shd_import_done(import_), [&] {
            uint64_t bytes = 0;
            for (uint32_t i = 0; i < shd_model_n_params(model_); i++) {
                bytes += shd_import_param_bytes(import_, i);
            }
            return bytes; // each once: no rank reads another's
        }());
    }
}

TEST_F(Export, MemoryIsWhatWasPlanned)
{
    for (const shd_dtype compute : {SHD_F32, SHD_BF16, SHD_F16}) {
        spec_ = shd::SmallSpec("zero3", 4);
        spec_.dtype = compute;
        Checkpoint(SHD_ST_BF16);
        Start();
        ASSERT_EQ(Run(AsImported()), 0) << err_.message;
        engine_->Step();
        ASSERT_EQ(Run(As(SHD_ST_F32)), 0) << err_.message;
        shd_usage usage[SHD_TAG_COUNT];
        uint64_t total, reserved;
        for (uint32_t r = 0; r < 4; r++) {
            shd_trainer_usage(engine_->trainer(), r, usage, &total, &reserved);
            for (const shd_tag tag : {SHD_TAG_PARAMS, SHD_TAG_GRADS, SHD_TAG_OPTIMIZER}) {
                EXPECT_EQ(usage[tag].peak, engine_->plan().peak[tag]) << shd_tag_name(tag);
            }
            EXPECT_LE(total, engine_->plan().total_peak);
        }
    }
}

TEST_F(Export, WhatAFrozenParameterIs)
{
    spec_.dtype = SHD_BF16;
    static char pattern[] = "transformer.h.0.*";
    char *patterns[] = {pattern};
    Checkpoint(SHD_ST_F32);
    spec_.freeze = patterns;
    spec_.n_freeze = 1;
    Start();
    spec_.freeze = nullptr; // the job has copies
    spec_.n_freeze = 0;
    engine_->Step();
    ASSERT_EQ(Run(AsImported()), 0) << err_.message;
    const Tensors got = shd::ReadCheckpoint(Made());
    for (const auto &[name, tensor] : tensors_) {
        if (name.rfind("transformer.h.0.", 0) == 0) {
            // Held in the compute dtype alone.
            const std::vector<float> was = shd::Floats(tensor), is = shd::Floats(got.at(name));
            std::string rounded(was.size() * 2, '\0');
            shd_convert_from_f32(rounded.data(), SHD_ST_BF16, was.data(), was.size());
            std::vector<float> wanted(was.size());
            shd_convert_to_f32(wanted.data(), rounded.data(), SHD_ST_BF16, was.size());
            EXPECT_EQ(is, wanted) << name;
        } else {
            EXPECT_FALSE(got.at(name).bytes == tensor.bytes) << name;
        }
    }
}

TEST_F(Export, AValueBeyondTheTypeIsTold)
{
    Checkpoint(SHD_ST_F32);
    Start();
    std::vector<float> table(97 * 24, 0.5f);
    table[1234] = -70000;
    shd_error err;
    ASSERT_EQ(shd_trainer_write_param(engine_->trainer(), 0, table.data(), &err), 0);
    EXPECT_EQ(Run(As(SHD_ST_F16)), SHD_EINVAL);
    EXPECT_STREQ(err_.message, "parameter 'transformer.wte.weight' holds -70000, which F16 cannot; "
                               "export as bf16 or fp32");
    EXPECT_TRUE(std::filesystem::is_empty(out_->path()));
    EXPECT_EQ(Run(As(SHD_ST_BF16)), 0) << err_.message;
    engine_->Step();
}

TEST_F(Export, TooManyShardsAreRefused)
{
    spec_.model = shd_model_config_gpt2(100, 1, 8, 19, 97);
    Checkpoint(SHD_ST_F32);
    Start();
    EXPECT_EQ(Run(As(SHD_ST_F32), 1), SHD_EINVAL);
    EXPECT_NE(strstr(err_.message, "at most 1000 are written"), nullptr) << err_.message;
    EXPECT_TRUE(std::filesystem::is_empty(out_->path()));
}

TEST_F(Export, AWriteThatFailsEndsTheExportAndNotTheJob)
{
    Checkpoint(SHD_ST_F32);
    Start();
    EXPECT_EQ(Run(As(SHD_ST_F32), 0,
                  [](const std::string &parent) { // somebody removes what was made
                      for (const auto &dir : std::filesystem::directory_iterator(parent)) {
                          std::filesystem::remove(dir.path() / "model.safetensors");
                      }
                  }),
              SHD_EIO);
    EXPECT_NE(strstr(err_.message, "/model/model.safetensors': No such file"), nullptr)
        << err_.message;
    EXPECT_TRUE(std::filesystem::is_empty(out_->path()));
    engine_->Step();
    EXPECT_EQ(Run(As(SHD_ST_F32)), 0) << err_.message;
}

TEST_F(Export, AFullDiskIsTold)
{
    ASSERT_EQ(geteuid(), 0u) << "needs root";
    Checkpoint(SHD_ST_F32);
    Start();
    files::Directory small;
    ASSERT_EQ(mount("tmpfs", small.path().c_str(), "tmpfs", 0, "size=16k"), 0) << strerror(errno);
    EXPECT_EQ(RunIn(small.path(), As(SHD_ST_F32)), SHD_EIO);
    EXPECT_NE(strstr(err_.message, "No space left on device"), nullptr) << err_.message;
    EXPECT_TRUE(std::filesystem::is_empty(small.path()));
    EXPECT_EQ(umount2(small.path().c_str(), MNT_DETACH), 0);
    engine_->Step();
}

// What is wrong with a file while the ranks read it ends the job, with its name.
TEST_F(Export, AFileThatChangesWhileItIsLoaded)
{
    Checkpoint(SHD_ST_F32);
    shd_error err = {};
    shd_hf_files *opened = shd::OpenCheckpoint(in_->path(), &err);
    ASSERT_EQ(shd_import_create(model_, opened, &import_, &err), 0) << err.message;
    ASSERT_EQ(truncate((*in_ / "model.safetensors").c_str(), 5000), 0);
    const shd_param_source from = {shd_import_load, import_};
    engine_ = std::make_unique<Engine>(spec_, data_.Open(), nullptr, 1, &from);
    EXPECT_EQ(engine_->init_rc(), SHD_EDATA);
    EXPECT_NE(engine_->init_error().find("has changed since it was opened"), std::string::npos)
        << engine_->init_error();
}

} // namespace
