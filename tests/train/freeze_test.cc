// Frozen parameters: they stay, cost no gradient and no optimizer, and the rest trains as it would.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "tests/train/drive.h"

namespace
{

// A specification with patterns, which live as long.
struct Frozen {
    Frozen(shd_spec s, std::vector<std::string> p) : spec(s), patterns(std::move(p))
    {
        for (std::string &pattern : patterns) {
            pointers.push_back(&pattern[0]);
        }
        spec.freeze = pointers.data();
        spec.n_freeze = static_cast<uint32_t>(pointers.size());
    }
    Frozen(const Frozen &) = delete;
    Frozen &operator=(const Frozen &) = delete;
    shd_spec spec;
    std::vector<std::string> patterns;
    std::vector<char *> pointers;
};

class Model
{
  public:
    explicit Model(const shd_spec &spec) : spec_(&spec)
    {
        EXPECT_EQ(0, shd_model_create(&spec.model, &model_, nullptr));
    }
    ~Model()
    {
        shd_model_free(model_);
    }
    Model(const Model &) = delete;
    Model &operator=(const Model &) = delete;
    uint32_t size() const
    {
        return shd_model_n_params(model_);
    }
    const char *Name(uint32_t i) const
    {
        return shd_model_param(model_, i)->name;
    }
    size_t Numel(uint32_t i) const
    {
        return static_cast<size_t>(shd_param_numel(shd_model_param(model_, i)));
    }
    bool IsFrozen(uint32_t i) const
    {
        return shd_spec_freezes(spec_, Name(i)) != 0;
    }

  private:
    const shd_spec *spec_;
    shd_model *model_ = nullptr;
};

std::vector<float> Gradient(shd::Engine *engine, const Model &model, uint32_t i)
{
    std::vector<float> out(model.Numel(i), 0.0f);
    EXPECT_EQ(0, shd_trainer_read_grad(engine->trainer(), i, out.data(), nullptr));
    return out;
}

struct Case {
    std::vector<std::string> patterns;
    const char *strategy;
    uint32_t world;
};

const std::vector<Case> kCases = {
    {{"transformer.wte.weight"}, "zero3", 2},
    {{"transformer.w?e.*", "transformer.h.0.*"}, "zero3", 3},
    {{"*bias", "*ln_*"}, "zero2", 2},
    {{"*attn*"}, "zero1", 4},
    {{"*.h.*"}, "ddp", 2},
    {{"transformer.w*", "*.h.*"}, "zero3", 2}, // the final norm alone is left
    {{"*.h.1.*", "*ln_f*"}, "ddp", 1},
};

TEST(Freezing, LeavesTheOthersGradientsAndTheNormOfThese)
{
    for (const Case &c : kCases) {
        SCOPED_TRACE(c.patterns.back());
        const shd_spec plain = shd::SmallSpec(c.strategy, c.world);
        const Frozen frozen(plain, c.patterns);
        const Model model(frozen.spec);
        shd::Engine all(plain), some(frozen.spec);
        const std::vector<std::vector<float>> before = some.Params();
        ASSERT_TRUE(before == all.Params());
        const shd::Batch batch = shd::Batch::Random(2 * c.world, 17, 3);
        EXPECT_EQ(shd::Good(all, SHD_WORK_FORWARD_BACKWARD, &batch).loss,
                  shd::Good(some, SHD_WORK_FORWARD_BACKWARD, &batch).loss);
        double sumsq = 0;
        for (uint32_t i = 0; i < model.size(); i++) {
            if (model.IsFrozen(i)) {
                continue;
            }
            const std::vector<float> want = Gradient(&all, model, i);
            EXPECT_TRUE(want == Gradient(&some, model, i)) << model.Name(i);
            for (float g : want) {
                sumsq += static_cast<double>(g) * static_cast<double>(g);
            }
        }
        const double norm = std::sqrt(sumsq) / static_cast<double>(batch.Valid());
        const shd::Result step = shd::Good(some, SHD_WORK_OPTIM_STEP);
        EXPECT_NEAR(norm, step.norm, 1e-12 * norm);
        const std::vector<std::vector<float>> after = some.Params();
        for (uint32_t i = 0; i < model.size(); i++) {
            EXPECT_EQ(model.IsFrozen(i), after[i] == before[i]) << model.Name(i);
        }
    }
}

TEST(Freezing, CostsNoGradientNoOptimizerAndNoReduction)
{
    for (const Case &c : kCases) {
        for (shd_dtype dtype : {SHD_F32, SHD_BF16}) {
            SCOPED_TRACE(c.patterns.back());
            shd_spec spec = shd::SmallSpec(c.strategy, c.world);
            spec.dtype = dtype;
            const Frozen frozen(spec, c.patterns);
            const Model model(frozen.spec);
            uint64_t trained = 0, numel = 0;
            for (uint32_t i = 0; i < model.size(); i++) {
                numel += model.Numel(i);
                trained += model.IsFrozen(i) ? 0 : model.Numel(i);
            }
            shd_plan plan, full;
            ASSERT_EQ(0, shd_plan_make(&frozen.spec, 1, &plan, nullptr));
            ASSERT_EQ(0, shd_plan_make(&spec, 1, &full, nullptr));
            EXPECT_EQ(numel, plan.parameters);
            EXPECT_EQ(trained, plan.trainable);
            EXPECT_EQ(numel, full.trainable);
            // Below 256 elements of padding a parameter, below 256 W a unit.
            const uint64_t padding = 256 * model.size() + 256 * c.world * plan.units;
            const uint64_t state = dtype == SHD_F32 ? 8 : 12; // moments, and the master
            const auto within = [&](uint64_t bytes, uint64_t per_element, uint64_t parts) {
                EXPECT_GE(bytes * parts, per_element * trained);
                EXPECT_LT(bytes * parts, per_element * (trained + padding));
            };
            within(plan.steady[SHD_TAG_GRADS], 4, spec.strategy.g);
            within(plan.steady[SHD_TAG_OPTIMIZER], state, spec.strategy.o);
            EXPECT_GE(plan.steady[SHD_TAG_PARAMS], shd_dtype_size(dtype) * numel / spec.strategy.p);
            if (c.world > 1) {
                within(plan.comm_step[SHD_COMM_REDUCE_SCATTER].bytes / (c.world - 1),
                       shd_dtype_size(dtype), c.world);
            }
            EXPECT_LE(plan.peak[SHD_TAG_ACTIVATIONS], full.peak[SHD_TAG_ACTIVATIONS]);
        }
    }
}

// With the first layers frozen nothing is kept of them, and their parameters are not gathered
// again.
TEST(Freezing, OfTheFirstLayersEndsBackwardThere)
{
    shd_spec spec = shd::SmallSpec("zero3", 2);
    spec.model = shd_model_config_gpt2(6, 2, 24, 19, 97);
    const Frozen frozen(spec, {"*wte*", "*wpe*", "*.h.[0-3].*"});
    shd_plan plan, full;
    ASSERT_EQ(0, shd_plan_make(&frozen.spec, 1, &plan, nullptr));
    ASSERT_EQ(0, shd_plan_make(&spec, 1, &full, nullptr));
    EXPECT_LT(plan.peak[SHD_TAG_ACTIVATIONS], full.peak[SHD_TAG_ACTIVATIONS] * 2 / 3);
    // Forward gathers all; backward two blocks of six, and the head's unit stays from forward.
    EXPECT_LT(plan.comm_step[SHD_COMM_ALL_GATHER].bytes,
              full.comm_step[SHD_COMM_ALL_GATHER].bytes * 3 / 4);
}

} // namespace
