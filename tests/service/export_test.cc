// Model directories at a job's making, and ExportModel around the ranks: who may, what is left, and
// when. (What the ranks write: tests/train/export_test.cc.)
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "tests/service/service.h"
#include "tests/store/files.h"
#include "tests/train/checkpoint.h"

namespace
{

const char kConfig[] =
    R"({"architectures":["GPT2LMHeadModel"],"model_type":"gpt2","n_embd":8,"n_head":2,"n_layer":1,)"
    R"("n_positions":16,"vocab_size":31,"attn_pdrop":0.0,"embd_pdrop":0.0,"resid_pdrop":0.0,)"
    R"("torch_dtype":"bfloat16"})";

class Export : public Service
{
  protected:
    void TearDown() override
    {
        stop();
        for (const auto &entry : std::filesystem::directory_iterator(dir)) {
            std::filesystem::remove_all(entry.path());
        }
        Service::TearDown();
    }
    // A checkpoint of kConfig; its path.
    std::string Model(const std::string &name = "model")
    {
        const std::string path = dir + "/" + name;
        std::filesystem::create_directory(path);
        shd_model_config config = shd_model_config_gpt2(1, 2, 8, 16, 31);
        shd_model *model = nullptr;
        shd_error err;
        EXPECT_EQ(shd_model_create(&config, &model, &err), 0) << err.message;
        tensors = shd::RandomTensors(model, [](uint32_t) { return SHD_ST_BF16; });
        shd_model_free(model);
        shd::WriteCheckpoint(path, tensors);
        files::Write(path + "/config.json", kConfig);
        files::Write(path + "/tokenizer_config.json", "{\"a\":1}");
        return path;
    }
    Spec Of(const std::string &name, const std::string &path)
    {
        Spec spec(name);
        spec.m.model = spec.text(path);
        return spec;
    }
    Call ExportAsync(const std::string &job, const std::string &path, const char *dtype = "",
                     const shd_identity *who = nullptr)
    {
        Shard__V1__ExportModelRequest q = SHARD__V1__EXPORT_MODEL_REQUEST__INIT;
        q.job = const_cast<char *>(job.c_str());
        q.path = const_cast<char *>(path.c_str());
        q.dtype = const_cast<char *>(dtype);
        return call("ExportModel", &q.base, who);
    }
    Call ExportNow(const std::string &job, const std::string &path, const char *dtype = "",
                   const shd_identity *who = nullptr)
    {
        Call c = ExportAsync(job, path, dtype, who);
        turn_until([&] { return c->finished; });
        return c;
    }
    void ExpectError(const Call &c, int code, const std::string &says)
    {
        EXPECT_EQ(c->code, code) << c->error;
        EXPECT_NE(c->error.find(says), std::string::npos) << c->error;
    }
    // Nothing but what the tests put there.
    void ExpectNothingLeft()
    {
        for (const auto &entry : std::filesystem::directory_iterator(dir)) {
            const std::string name = entry.path().filename();
            EXPECT_TRUE(name == "text" || name == "model" || name == "other") << name;
        }
    }

    shd::Tensors tensors;
};

// ---- model directories ----

TEST_F(Export, AModelDirectoryIsAModel)
{
    start(true);
    const std::string path = Model();
    Call c = create(Of("j", path + "/"));
    ASSERT_TRUE(c->ok()) << c->error;
    Unpacked<Shard__V1__Job> job(c->sent[0]);
    EXPECT_STREQ(job->spec->model, path.c_str());
    EXPECT_STREQ(job->spec->init_from, "pretrained");
    EXPECT_EQ(job->vocab, 31u);
    EXPECT_EQ(job->context, 16u);
    ASSERT_NE(job->progress, nullptr);
    EXPECT_STREQ(job->progress->what, "loading");
    uint64_t bytes = 0;
    for (const auto &[name, tensor] : tensors) {
        bytes += tensor.bytes.size();
    }
    EXPECT_EQ(job->progress->total, bytes);
    EXPECT_EQ(job->progress->done, 0u);
    finish("j");
    Call after = ref("GetJob", "j");
    EXPECT_EQ(Unpacked<Shard__V1__Job>(after->sent[0])->progress, nullptr);
}

TEST_F(Export, EveryRankThatHoldsACopyReadsIt)
{
    start(true);
    Call c = create(Of("j", Model()).strategy("ddp").ranks(3));
    ASSERT_TRUE(c->ok()) << c->error;
    Unpacked<Shard__V1__Job> job(c->sent[0]);
    uint64_t bytes = 0;
    for (const auto &[name, tensor] : tensors) {
        bytes += tensor.bytes.size();
    }
    EXPECT_EQ(job->progress->total, 3 * bytes);
    finish("j");
}

TEST_F(Export, APlanNeedsTheConfigurationAlone)
{
    start(false);
    const std::string path = Model();
    std::filesystem::remove(path + "/model.safetensors");
    Spec spec = Of("", path);
    Shard__V1__PlanRequest q = SHARD__V1__PLAN_REQUEST__INIT;
    q.spec = &spec.m;
    Call c = call("Plan", &q.base);
    turn_until([&] { return c->finished; });
    EXPECT_TRUE(c->ok()) << c->error;
    ExpectError(create(spec), SHD_ENOTFOUND, "--model: '" + path + "' holds neither");
}

TEST_F(Export, WhatIsWrongWithADirectoryIsNamed)
{
    start(false);
    const std::string path = Model();
    ExpectError(create(Of("a", dir + "/absent")), SHD_ENOTFOUND, "--model: " + dir + "/absent");
    ExpectError(create(Of("a", "/etc")), SHD_EPERM, "outside the data roots");
    ExpectError(create(Of("a", "./model")), SHD_EINVAL, "not an absolute path");
    files::Write(path + "/config.json", "{");
    ExpectError(create(Of("a", path)), SHD_EINVAL, "--model: '" + path + "/config.json'");
    files::Write(path + "/config.json", std::string(2 << 20, ' '));
    ExpectError(create(Of("a", path)), SHD_EDATA, "at most 1048576 are read");
    files::Write(path + "/config.json", R"({"model_type":"mamba"})");
    ExpectError(create(Of("a", path)), SHD_EUNSUPPORTED, "mamba");
    std::string nonsense = kConfig;
    nonsense.replace(nonsense.find("\"n_head\":2"), 10, "\"n_head\":-2");
    files::Write(path + "/config.json", nonsense);
    ExpectError(create(Of("a", path)), SHD_EINVAL, "n_head");
    files::Write(path + "/config.json", kConfig);
    tensors.erase("transformer.ln_f.bias");
    shd::WriteCheckpoint(path, tensors);
    ExpectError(create(Of("a", path)), SHD_EDATA, "has no tensor 'transformer.ln_f.bias'");
    std::filesystem::resize_file(path + "/model.safetensors", 1000);
    ExpectError(create(Of("a", path)), SHD_EDATA, "--model: '" + path + "/model.safetensors'");
    files::Write(path + "/merges.txt", "");
    std::filesystem::resize_file(path + "/merges.txt", 300 << 20);
    shd::WriteCheckpoint(Model(), tensors);
    files::Write(path + "/config.json", kConfig);
    Model();
    ExpectError(create(Of("a", path)), SHD_EDATA, "more than 268435456 bytes");
}

// Files that go along lie in the state directory, and nowhere else in silence.
TEST_F(Export, CopiesNeedTheStateDirectory)
{
    state_dir = dir + "/none";
    start(false);
    const std::string path = Model();
    ExpectError(create(Of("a", path)), SHD_EIO,
                "cannot make a file without a name in " + state_dir + " for a copy of '" + path +
                    "/tokenizer_config.json': No such file or directory");
    std::filesystem::create_directory(state_dir);
    EXPECT_TRUE(create(Of("a", path))->ok());
    EXPECT_TRUE(std::filesystem::is_empty(state_dir));
}

TEST_F(Export, InitFromAnotherDirectory)
{
    start(false);
    const std::string path = Model(), other = Model("other");
    Spec spec = Of("j", path);
    spec.m.init_from = spec.text(other + "//");
    Call c = create(spec);
    ASSERT_TRUE(c->ok()) << c->error;
    EXPECT_EQ(Unpacked<Shard__V1__Job>(c->sent[0])->spec->init_from, other);
    Spec wrong = Of("k", path);
    wrong.m.init_from = wrong.text(dir + "/absent");
    ExpectError(create(wrong), SHD_ENOTFOUND,
                "--init-from: there is no directory '" + dir + "/absent'");
    std::filesystem::create_directory(dir + "/empty");
    wrong.m.init_from = wrong.text(dir + "/empty");
    ExpectError(create(wrong), SHD_ENOTFOUND, "--init-from: '" + dir + "/empty' holds neither");
    wrong.m.init_from = wrong.text(path + "/model.safetensors");
    ExpectError(create(wrong), SHD_EINVAL, "is a file; give the directory it is in");
    Spec preset("l");
    preset.m.init_from = preset.text(path);
    ExpectError(create(preset), SHD_EDATA, "--init-from: tensor 'transformer.wte.weight'");
}

// ---- exports ----

// A user whose file system hangs: another's exports go on.
TEST_F(Export, OneUsersFilesDoNotHoldUpAnothers)
{
    start(false);
    const std::string id = create_running(Of("j", Model()), false);
    shd_identity other = me;
    other.uid += 1;
    FullLane full(jobs, SHD_WORKERS_FILES, other.uid);
    Call c = ExportNow(id, dir + "/out");
    EXPECT_TRUE(c->ok()) << c->error;
    full.let_go();
    turn_until([&] { return full.done(); });
    FullLane mine(jobs, SHD_WORKERS_FILES, me.uid);
    std::vector<Call> calls;
    for (int i = 0; i < 5; i++) {
        calls.push_back(ExportAsync(id, dir + "/out" + std::to_string(i)));
    }
    ExpectError(calls[4], SHD_EFULL, "4 exports of yours are under way");
    turn();
    EXPECT_FALSE(calls[0]->finished);
    EXPECT_EQ(state(id), SHARD__V1__JOB_STATE__JOB_STATE_RUNNING);
    mine.let_go();
    for (int i = 0; i < 4; i++) {
        turn_until([&] { return calls[i]->finished; });
        EXPECT_TRUE(calls[i]->ok()) << calls[i]->error;
    }
    turn_until([&] { return mine.done(); });
}

TEST_F(Export, AnImportedModel)
{
    start(true);
    const std::string id = create_running(Of("j", Model()), true), out = dir + "/out";
    Call c = ExportAsync("j", out);
    turn_until([&] { return fake_running("j") == SHD_WORK_EXPORT; });
    EXPECT_FALSE(std::filesystem::exists(out));
    finish("j");
    turn_until([&] { return c->finished; });
    ASSERT_TRUE(c->ok()) << c->error;
    Unpacked<Shard__V1__ExportModelResponse> r(c->sent[0]);
    ASSERT_EQ(r->n_files, 3u);
    EXPECT_STREQ(r->files[0], "model.safetensors");
    EXPECT_STREQ(r->files[1], "config.json");
    EXPECT_STREQ(r->files[2], "tokenizer_config.json");
    EXPECT_EQ(r->tensors, tensors.size());
    EXPECT_EQ(files::Read(out + "/config.json"), kConfig);
    EXPECT_EQ(files::Read(out + "/tokenizer_config.json"), "{\"a\":1}");
    EXPECT_EQ(shd::ReadCheckpoint(out).at("transformer.wte.weight").dtype, SHD_ST_BF16);
    // In another type, which the configuration then says.
    Call again = ExportAsync("j", dir + "/out2", "fp16");
    finish("j");
    turn_until([&] { return again->finished; });
    ASSERT_TRUE(again->ok()) << again->error;
    EXPECT_EQ(shd::ReadCheckpoint(dir + "/out2").at("transformer.wte.weight").dtype, SHD_ST_F16);
    EXPECT_NE(files::Read(dir + "/out2/config.json").find("float16"), std::string::npos);
}

// What was there when the job was made, whatever became of it since.
TEST_F(Export, FilesThatAreCarriedAlongAreCopies)
{
    start(true);
    const std::string path = Model(), id = create_running(Of("j", path), true);
    std::filesystem::remove_all(path);
    Call c = ExportAsync("j", dir + "/out");
    finish("j");
    turn_until([&] { return c->finished; });
    ASSERT_TRUE(c->ok()) << c->error;
    EXPECT_EQ(files::Read(dir + "/out/tokenizer_config.json"), "{\"a\":1}");
    EXPECT_EQ(files::Read(dir + "/out/config.json"), kConfig);
}

TEST_F(Export, APreset)
{
    start(true);
    create_running(Spec("j"), true);
    Call c = ExportAsync("j", dir + "/out", "bf16");
    finish("j");
    turn_until([&] { return c->finished; });
    ASSERT_TRUE(c->ok()) << c->error;
    EXPECT_EQ(Unpacked<Shard__V1__ExportModelResponse>(c->sent[0])->n_files, 2u);
    const std::string config = files::Read(dir + "/out/config.json");
    EXPECT_NE(config.find("bfloat16"), std::string::npos) << config;
    EXPECT_NE(config.find("GPT2LMHeadModel"), std::string::npos) << config;
}

TEST_F(Export, WhatIsRefused)
{
    start(true);
    create_running(Spec("j"), true);
    ExpectError(ExportNow("absent", dir + "/out"), SHD_ENOTFOUND, "no job 'absent'");
    ExpectError(ExportNow("j", ""), SHD_EINVAL, "no path");
    ExpectError(ExportNow("j", "out"), SHD_EINVAL, "not an absolute path");
    ExpectError(ExportNow("j", dir + "/out", "int8"), SHD_EINVAL, "dtype 'int8'");
    ExpectError(ExportNow("j", "/nowhere/out"), SHD_EPERM, "outside the data roots");
    ExpectError(ExportNow("j", dir + "/nowhere/out"), SHD_ENOTFOUND, "does not exist");
    ExpectError(ExportNow("j", data), SHD_EEXIST, "exists already");
    ExpectError(ExportNow("j", dir + "/.."), SHD_EINVAL, "something new");
    const shd_identity other = {me.uid + 1, me.gid + 1, 1};
    ExpectError(ExportNow("j", dir + "/out", "", &other), SHD_ENOTFOUND, "no job 'j'");
    ExpectNothingLeft();
    ref("CancelJob", "j");
    ExpectError(ExportNow("j", dir + "/out"), SHD_ESTATE, "its weights are gone");
}

TEST_F(Export, AJobThatEndsMeanwhileLeavesNothing)
{
    start(true);
    create_running(Spec("j"), true);
    Call c = ExportAsync("j", dir + "/out");
    turn_until([&] { return fake_running("j") == SHD_WORK_EXPORT; });
    Call cancel = ref_async("CancelJob", "j"); // ends what runs
    turn_until([&] { return c->finished && cancel->finished; });
    ExpectError(c, SHD_ECANCELLED, "was cancelled");
    ExpectNothingLeft();
}

TEST_F(Export, ACallerWhoGoesLeavesNothing)
{
    start(true);
    create_running(Spec("j").data(data), true); // steps of its own keep the ranks busy
    Call waits = ExportAsync("j", dir + "/out");
    turn(50);
    waits->go();
    finish("j");
    Call early = ExportAsync("j", dir + "/out2");
    early->go();
    turn(50);
    finish("j");
    turn_until([&] {
        for (const auto &entry : std::filesystem::directory_iterator(dir)) {
            if (entry.path() != data) {
                return false;
            }
        }
        return true;
    });
}

TEST_F(Export, AStopLeavesNothing)
{
    start(true);
    create_running(Spec("j").data(data), true);
    Call c = ExportAsync("j", dir + "/out");
    turn(50);
    stop();
    EXPECT_TRUE(c->finished);
    ExpectError(c, SHD_EUNAVAILABLE, "stopping");
    ExpectNothingLeft();
}

} // namespace
