// GPT-2: sizes of the presets, the parameter table, units and segments, and what is refused.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "daemon/model/model.h"

namespace
{

struct Model {
    explicit Model(const shd_model_config &config)
    {
        shd_error err = {};
        EXPECT_EQ(0, shd_model_create(&config, &model, &err)) << err.message;
    }
    ~Model()
    {
        shd_model_free(model);
    }
    Model(const Model &) = delete;
    Model &operator=(const Model &) = delete;
    int64_t Numel() const
    {
        int64_t n = 0;
        for (uint32_t i = 0; i < shd_model_n_params(model); i++) {
            n += shd_param_numel(shd_model_param(model, i));
        }
        return n;
    }
    shd_model *model = nullptr;
};

shd_model_config Preset(const char *name)
{
    shd_model_config config = {};
    shd_error err = {};
    EXPECT_EQ(0, shd_model_preset(name, &config, &err)) << err.message;
    return config;
}

TEST(Presets, HaveThePublishedNumbersOfParameters)
{
    const std::map<std::string, int64_t> published = {
        {"gpt2", 124439808},
        {"gpt2-medium", 354823168},
        {"gpt2-large", 774030080},
        {"gpt2-xl", 1557611200},
    };
    for (const auto &[name, numel] : published) {
        Model m(Preset(name.c_str()));
        EXPECT_EQ(numel, m.Numel()) << name;
    }
    // V·C + T·C + 2C + L(12C² + 13C), the tied head once.
    Model one(Preset("gpt-byte-1m"));
    EXPECT_EQ(256 * 128 + 256 * 128 + 2 * 128 + 4 * (12 * 128 * 128 + 13 * 128), one.Numel());
    Model ten(Preset("gpt-byte-10m"));
    EXPECT_EQ(256 * 384 + 256 * 384 + 2 * 384 + 6 * (12 * 384 * 384 + 13 * 384), ten.Numel());
}

TEST(Presets, AllThatAreListedExist)
{
    const std::string list = std::string(shd_model_presets()) + ", ";
    size_t at = 0, n = 0;
    for (size_t comma; (comma = list.find(", ", at)) != std::string::npos; at = comma + 2, n++) {
        Model m(Preset(list.substr(at, comma - at).c_str()));
        EXPECT_NE(nullptr, m.model);
    }
    EXPECT_EQ(18u, n);
}

TEST(Presets, AnUnknownOneIsNamedWithTheChoices)
{
    for (const char *name : {"gpt3", "", "GPT2", "gpt2 "}) {
        shd_model_config config;
        shd_error err = {};
        EXPECT_EQ(SHD_ENOTFOUND, shd_model_preset(name, &config, &err));
        EXPECT_NE(std::string::npos, std::string(err.message).find("'" + std::string(name) + "'"));
        EXPECT_NE(std::string::npos, std::string(err.message).find(shd_model_presets()));
    }
}

const shd_model_config kOdd = shd_model_config_gpt2(3, 5, 35, 19, 97);

TEST(Parameters, AreThoseOfHuggingFaceCheckpoints)
{
    Model m(kOdd);
    struct Want {
        std::string name;
        int64_t rows, cols;
        uint32_t unit;
    };
    const int64_t C = 35;
    std::vector<Want> want = {
        {"transformer.wte.weight", 97, C, 0},
        {"transformer.wpe.weight", 19, C, 0},
        {"transformer.ln_f.weight", C, 0, 0},
        {"transformer.ln_f.bias", C, 0, 0},
    };
    for (uint32_t i = 0; i < 3; i++) {
        const std::string h = "transformer.h." + std::to_string(i) + ".";
        const std::vector<Want> block = {
            {h + "ln_1.weight", C, 0, i + 1},
            {h + "ln_1.bias", C, 0, i + 1},
            {h + "attn.c_attn.weight", C, 3 * C, i + 1},
            {h + "attn.c_attn.bias", 3 * C, 0, i + 1},
            {h + "attn.c_proj.weight", C, C, i + 1},
            {h + "attn.c_proj.bias", C, 0, i + 1},
            {h + "ln_2.weight", C, 0, i + 1},
            {h + "ln_2.bias", C, 0, i + 1},
            {h + "mlp.c_fc.weight", C, 4 * C, i + 1},
            {h + "mlp.c_fc.bias", 4 * C, 0, i + 1},
            {h + "mlp.c_proj.weight", 4 * C, C, i + 1},
            {h + "mlp.c_proj.bias", C, 0, i + 1},
        };
        want.insert(want.end(), block.begin(), block.end());
    }
    ASSERT_EQ(want.size(), shd_model_n_params(m.model));
    for (uint32_t i = 0; i < want.size(); i++) {
        const shd_param_info *info = shd_model_param(m.model, i);
        EXPECT_EQ(want[i].name, info->name);
        EXPECT_EQ(want[i].cols > 0 ? 2 : 1, info->ndim) << info->name;
        EXPECT_EQ(want[i].rows, info->shape[0]) << info->name;
        EXPECT_EQ(want[i].cols, info->shape[1]) << info->name;
        EXPECT_EQ(want[i].unit, info->unit) << info->name;
        EXPECT_EQ(want[i].cols > 0, info->decay != 0) << "matrices decay: " << info->name;
        const std::string name = info->name;
        const bool gain =
            name.find(".ln_") != std::string::npos && name.find(".weight") != std::string::npos;
        EXPECT_EQ(gain ? 1.0f : 0.0f, info->init_mean) << name;
        const bool into_residual = name.find("c_proj.weight") != std::string::npos;
        EXPECT_FLOAT_EQ(info->ndim == 1 ? 0.0f
                        : into_residual ? static_cast<float>(0.02 / std::sqrt(6.0))
                                        : 0.02f,
                        info->init_std)
            << name;
    }
}

TEST(Parameters, OfTheDeepestModelHaveNamesOfTheirOwn)
{
    shd_model_config config = kOdd;
    config.n_layer = 1024;
    Model m(config);
    std::set<std::string> names;
    for (uint32_t i = 0; i < shd_model_n_params(m.model); i++) {
        names.insert(shd_model_param(m.model, i)->name);
    }
    EXPECT_EQ(shd_model_n_params(m.model), names.size());
}

TEST(Segments, AreEmbeddingBlocksAndHead)
{
    Model m(kOdd);
    ASSERT_EQ(4u, shd_model_n_units(m.model));
    ASSERT_EQ(5u, shd_model_n_segments(m.model));
    const uint32_t unit[] = {0, 1, 2, 3, 0};
    for (uint32_t s = 0; s < 5; s++) {
        uint32_t units[2] = {99, 99};
        int needs = -1;
        ASSERT_EQ(1u, shd_model_segment_units(m.model, s, units, &needs));
        EXPECT_EQ(unit[s], units[0]) << "the head is the token table";
        EXPECT_EQ(s != 0, needs != 0) << "looking up reads no weight on the way back";
    }
    EXPECT_EQ(kOdd.vocab, shd_model_config_of(m.model)->vocab);
}

TEST(Segments, OfAnUntiedHeadAreThreeKindsOfUnits)
{
    shd_model_config config = kOdd;
    config.tied = 0;
    config.d_ff = 51;
    Model m(config);
    ASSERT_EQ(5u, shd_model_n_units(m.model));
    ASSERT_EQ(5u, shd_model_n_segments(m.model));
    for (uint32_t s = 0; s < 5; s++) {
        uint32_t units[2] = {99, 99};
        int needs = -1;
        ASSERT_EQ(1u, shd_model_segment_units(m.model, s, units, &needs));
        EXPECT_EQ(s, units[0]);
    }
    const uint32_t last = shd_model_n_params(m.model) - 1;
    EXPECT_STREQ("lm_head.weight", shd_model_param(m.model, last)->name);
    EXPECT_EQ(97, shd_model_param(m.model, last)->shape[0]);
    EXPECT_EQ(4u, shd_model_param(m.model, last)->unit);
    EXPECT_EQ(4u, shd_model_param(m.model, 2)->unit) << "the final norm is with the head";
    EXPECT_EQ(0u, shd_model_param(m.model, 1)->unit) << "positions are with the token table";
    EXPECT_EQ(51, shd_model_param(m.model, 4 + 8)->shape[1]);
}

TEST(Refusals, NameTheFieldAndTheValue)
{
    struct Case {
        const char *field;
        int64_t shd_model_config::*value;
        int64_t most;
    };
    const Case cases[] = {
        {"n_layer", &shd_model_config::n_layer, 1024},
        {"n_head", &shd_model_config::n_head, 1024},
        {"d_model", &shd_model_config::d_model, 1 << 20},
        {"context", &shd_model_config::context, 1 << 24},
        {"vocab", &shd_model_config::vocab, 1 << 24},
        {"d_ff", &shd_model_config::d_ff, 1 << 22},
        {"n_kv_head", &shd_model_config::n_kv_head, 1024},
        {"head_dim", &shd_model_config::head_dim, 1 << 16},
    };
    for (const Case &c : cases) {
        for (int64_t bad :
             {int64_t{0}, int64_t{-1}, c.most + 1, std::numeric_limits<int64_t>::max(),
              std::numeric_limits<int64_t>::min()}) {
            shd_model_config config = kOdd;
            config.*c.value = bad;
            shd_model *model = nullptr;
            shd_error err = {};
            EXPECT_EQ(SHD_EINVAL, shd_model_create(&config, &model, &err)) << c.field << bad;
            EXPECT_EQ(nullptr, model);
            for (const std::string &part :
                 {std::string(c.field), std::to_string(bad), std::to_string(c.most)}) {
                EXPECT_NE(std::string::npos, std::string(err.message).find(part)) << err.message;
            }
        }
    }
}

TEST(Refusals, HeadsThatDoNotDivideAndBadNormEps)
{
    shd_model *model = nullptr;
    shd_error err = {};
    shd_model_config config = kOdd;
    config.n_head = 4;
    EXPECT_EQ(SHD_EINVAL, shd_model_create(&config, &model, &err));
    EXPECT_NE(std::string::npos, std::string(err.message).find("d_model 35")) << err.message;
    EXPECT_NE(std::string::npos, std::string(err.message).find("n_head 4")) << err.message;
    config = kOdd;
    config.n_kv_head = 1;
    EXPECT_EQ(SHD_EINVAL, shd_model_create(&config, &model, &err));
    EXPECT_NE(std::string::npos, std::string(err.message).find("n_kv_head 1")) << err.message;
    config = kOdd;
    config.head_dim = 8;
    EXPECT_EQ(SHD_EINVAL, shd_model_create(&config, &model, &err));
    EXPECT_NE(std::string::npos, std::string(err.message).find("head_dim 8")) << err.message;
    config = kOdd;
    config.pad = 3;
    EXPECT_EQ(SHD_EINVAL, shd_model_create(&config, &model, &err));
    EXPECT_NE(std::string::npos, std::string(err.message).find("pad is 3")) << err.message;
    config = kOdd;
    config.activation = SHD_ACT_SILU;
    EXPECT_EQ(SHD_EINVAL, shd_model_create(&config, &model, &err));
    for (float bad : {-0.1f, 1.5f, NAN}) {
        config = kOdd;
        config.init_range = bad;
        EXPECT_EQ(SHD_EINVAL, shd_model_create(&config, &model, &err)) << bad;
        EXPECT_NE(std::string::npos, std::string(err.message).find("init_range")) << err.message;
    }
    for (float bad : {0.0f, -1e-5f, 1.5f, INFINITY, NAN}) {
        config = kOdd;
        config.norm_eps = bad;
        EXPECT_EQ(SHD_EINVAL, shd_model_create(&config, &model, &err)) << bad;
        EXPECT_NE(std::string::npos, std::string(err.message).find("norm_eps")) << err.message;
    }
    EXPECT_EQ(nullptr, model);
    shd_model_free(nullptr);
}

} // namespace
