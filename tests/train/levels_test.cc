// Levels of determinism: `world` gives the same bits for every world up to the reduction width,
// `run` the same bits again for fewer bytes (contract: determinism).
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "tests/train/drive.h"

namespace
{

const uint32_t kWidth = 8;
const std::vector<uint32_t> kWorlds = {1, 2, 4, 8};
const std::vector<std::string> kPresets = {
    "ddp", "zero1",   "zero2", "zero3", "shard_grad_op", "hybrid_shard", "hybrid_shard_zero2",
    "hpz", "megatron"};

shd_model_config Architecture(int i)
{
    if (i == 0) {
        return shd_model_config_gpt2(2, 2, 24, 19, 97); // tied
    }
    shd_model_config c = shd_model_config_llama(2, 4, 24, 40, 23, 97);
    c.n_kv_head = 2;
    if (i == 2) { // tied, norms of heads, a window in the second layer
        c.arch = SHD_ARCH_QWEN3;
        c.tied = c.qk_norm = 1;
        c.head_dim = 10;
        c.sliding_window = 4;
        c.windowed[0] = 2;
    }
    return c;
}

// A preset's degrees (groups of two ranks where it has groups), or a random triple p | g | o | W.
shd_strategy StrategyOf(const std::string &preset, uint32_t world, std::mt19937 *random)
{
    const auto divisor = [&](uint32_t n) {
        std::vector<uint32_t> all;
        for (uint32_t d = 1; d <= n; d++) {
            if (n % d == 0) {
                all.push_back(d);
            }
        }
        return all[(*random)() % all.size()];
    };
    const uint32_t o = divisor(world), g = divisor(o), p = divisor(g);
    const uint32_t degrees[3] = {p, g, o};
    const bool grouped = preset[0] == 'h' || preset == "megatron";
    shd_strategy_request request = {};
    request.world = world;
    request.name = preset.c_str();
    request.group = grouped ? (world < 2 ? 1 : 2) : 0;
    if (preset.empty()) {
        request.degrees = degrees;
        request.n_degrees = 3;
    }
    shd_strategy s = {};
    shd_error err = {};
    EXPECT_EQ(0, shd_strategy_resolve(&request, &s, &err)) << err.message;
    return s;
}

shd_spec WorldSpec(int arch, const shd_strategy &strategy, uint32_t leaves, shd_dtype dtype,
                   shd_dtype reduce)
{
    shd_spec spec = shd::SmallSpec("ddp", 1);
    spec.model = Architecture(arch);
    spec.strategy = strategy;
    spec.determinism = SHD_DETERMINISM_WORLD;
    spec.reduction_width = kWidth;
    spec.pipeline.prefetch = 1; // as by default
    spec.pipeline.overlap = 1;
    spec.micro_batch = 1;
    spec.global_batch = leaves;
    spec.accumulation = leaves / strategy.world;
    spec.seq_len = 13;
    spec.clip = 0.5;
    spec.dtype = dtype;
    spec.reduce_dtype = reduce;
    spec.dropout = arch == 2 ? 0.1 : 0.0; // masks are of samples
    if (dtype == SHD_F16) {
        spec.scaler = {1, 0, 10, 3, 2, 1};
    }
    return spec;
}

std::string Describe(const shd_spec &s)
{
    return std::string(shd_arch_name(s.model.arch)) + " " + std::to_string(s.strategy.p) + "," +
           std::to_string(s.strategy.g) + "," + std::to_string(s.strategy.o) + " of " +
           std::to_string(s.strategy.world) + " x " + std::to_string(s.accumulation) + " " +
           shd_dtype_name(s.dtype) + "/" + shd_dtype_name(s.reduce_dtype);
}

// Bits, so that -0 is not 0.
template <class T> bool SameBits(const std::vector<T> &a, const std::vector<T> &b)
{
    return a.size() == b.size() &&
           (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

bool SameBits(const std::vector<std::vector<float>> &a, const std::vector<std::vector<float>> &b)
{
    bool same = a.size() == b.size();
    for (size_t i = 0; same && i < a.size(); i++) {
        same = SameBits(a[i], b[i]);
    }
    return same;
}

// Settings that change no bit.
void DrawSettings(shd_spec *spec, std::mt19937 *random)
{
    spec->pipeline.prefetch = (*random)() % 3;
    spec->pipeline.overlap = (*random)() % 2 != 0;
    spec->pipeline.bucket_bytes = (*random)() % 2 * 20000;
    spec->pipeline.persist_below = (*random)() % 2 * 100;
    spec->checkpointing = static_cast<shd_checkpointing>((*random)() % 3);
}

// Steps on the job's data, then an evaluation.
shd::Trace TrainAndEvaluate(const shd_spec &spec, const shd::DataFile &file,
                            const shd::DataFile &held_out, int steps)
{
    shd::Engine engine(spec, file.Open(), held_out.Open(), 1, nullptr, true);
    shd::Trace trace;
    for (int i = 0; i < steps; i++) {
        engine.Step(&trace);
    }
    shd::ExpectMemory(&engine, shd::Peaks::kButActivations, shd::Peaks::kButActivations);
    trace.losses.push_back(shd::Good(engine, SHD_WORK_EVAL).loss);
    trace.params = engine.Params();
    return trace;
}

struct Numbers {
    int arch;
    uint32_t accumulation; // rounds of the widest world
    shd_dtype dtype, reduce;
};

class WorldLevel : public testing::TestWithParam<Numbers>
{
};

// Every world runs two presets (over all cases every preset meets every world) and random degrees.
TEST_P(WorldLevel, EveryWorldAndStrategyGivesTheSameBits)
{
    const Numbers c = GetParam();
    shd::DataFile file(4000), held_out(300);
    const uint32_t leaves = kWidth * c.accumulation;
    const uint32_t seed = static_cast<uint32_t>(c.arch) * 8 + c.accumulation * 2 + c.dtype;
    std::mt19937 random(seed);
    shd::Trace first;
    for (uint32_t world : kWorlds) {
        std::vector<std::string> which = {kPresets[(seed + world) % kPresets.size()],
                                          kPresets[(seed + world + 2) % kPresets.size()], ""};
        if (world == 1) {
            which.resize(1);
        }
        for (const std::string &preset : which) {
            shd_spec spec =
                WorldSpec(c.arch, StrategyOf(preset, world, &random), leaves, c.dtype, c.reduce);
            DrawSettings(&spec, &random);
            SCOPED_TRACE(Describe(spec));
            const shd::Trace trace = TrainAndEvaluate(spec, file, held_out, 30);
            if (first.losses.empty()) {
                first = trace;
                EXPECT_LT(trace.losses[29], trace.losses[0] - 0.3) << "it must learn";
            }
            EXPECT_TRUE(SameBits(trace.losses, first.losses));
            EXPECT_TRUE(SameBits(trace.norms, first.norms));
            EXPECT_TRUE(SameBits(trace.params, first.params));
        }
    }
}

INSTANTIATE_TEST_SUITE_P(
    Cases, WorldLevel,
    testing::Values(Numbers{0, 1, SHD_F32, SHD_F32}, Numbers{0, 3, SHD_F32, SHD_F32},
                    Numbers{1, 1, SHD_F32, SHD_F32}, Numbers{1, 3, SHD_F32, SHD_F32},
                    Numbers{0, 1, SHD_BF16, SHD_F32}, Numbers{0, 3, SHD_BF16, SHD_BF16},
                    Numbers{1, 1, SHD_BF16, SHD_BF16}, Numbers{1, 3, SHD_BF16, SHD_F32},
                    Numbers{0, 3, SHD_F16, SHD_F16}, Numbers{1, 1, SHD_F16, SHD_F32},
                    Numbers{1, 1, SHD_F32, SHD_BF16}, Numbers{2, 1, SHD_F32, SHD_F32},
                    Numbers{2, 3, SHD_BF16, SHD_F32}),
    [](const auto &tested) {
        const Numbers &c = tested.param;
        return std::string(shd_arch_name(Architecture(c.arch).arch)) + "A" +
               std::to_string(c.accumulation) + shd_dtype_name(c.dtype) + shd_dtype_name(c.reduce);
    });

// What a client sees of a sequence of calls, to the bit.
struct Seen {
    std::vector<double> numbers;
    std::vector<std::vector<float>> floats;
};

// Batches that end inside a tree, fill one, and begin another; several to a step.
Seen Drive(const shd_spec &spec)
{
    shd::Engine engine(spec);
    Seen seen;
    const auto note = [&](const shd::Result &r) {
        seen.numbers.insert(seen.numbers.end(),
                            {r.loss, r.norm, static_cast<double>(r.valid),
                             static_cast<double>(r.samples), static_cast<double>(r.skipped)});
        seen.floats.push_back(r.logprobs);
    };
    shd_model *model = nullptr;
    EXPECT_EQ(0, shd_model_create(&spec.model, &model, nullptr));
    uint32_t seed = 1;
    for (const std::vector<uint32_t> &step :
         {std::vector<uint32_t>{3}, {1, 16, 5}, {40}, {2, 2, 2, 9}, {13}}) {
        for (uint32_t sequences : step) {
            shd::Batch batch = shd::Batch::Random(sequences, 5 + sequences % 7, seed++);
            batch.targets[0] = SHD_IGNORE_INDEX;
            shd::Overrides with_logprobs;
            with_logprobs.logprobs = true;
            note(shd::Good(engine, SHD_WORK_FORWARD_BACKWARD, &batch, with_logprobs));
            note(shd::Good(engine, SHD_WORK_FORWARD, &batch, with_logprobs));
            for (uint32_t i = 0; i < shd_model_n_params(model); i++) {
                seen.floats.emplace_back(shd_param_numel(shd_model_param(model, i)));
                EXPECT_EQ(0, shd_trainer_read_grad(engine.trainer(), i, seen.floats.back().data(),
                                                   nullptr));
            }
        }
        note(shd::Good(engine, SHD_WORK_OPTIM_STEP));
    }
    const std::vector<std::vector<float>> params = engine.Params();
    seen.floats.insert(seen.floats.end(), params.begin(), params.end());
    shd_model_free(model);
    return seen;
}

TEST(WorldLevelClients, SameCallsSameBitsWhateverTheBatches)
{
    std::mt19937 random(11);
    for (int arch : {0, 1}) {
        for (shd_dtype dtype : {SHD_F32, SHD_BF16, SHD_F16}) {
            const shd_dtype reduce = arch == 0 ? SHD_F32 : dtype;
            Seen first;
            for (uint32_t world : kWorlds) {
                shd_spec spec =
                    WorldSpec(arch, StrategyOf("", world, &random), kWidth, dtype, reduce);
                spec.micro_batch = 2;
                spec.dropout = arch == 0 ? 0.1 : 0;
                if (dtype == SHD_F16) {
                    spec.scaler = {1, 1000, 0, 0, 0, 0}; // not a power of two
                }
                SCOPED_TRACE(Describe(spec));
                const Seen seen = Drive(spec);
                if (first.numbers.empty()) {
                    first = seen;
                }
                EXPECT_TRUE(SameBits(seen.numbers, first.numbers));
                EXPECT_TRUE(SameBits(seen.floats, first.floats));
            }
        }
    }
}

// Closed forms of a step's bytes: gradients of Psi (padded) elements travel once per
// round, W-1 of W parts (Rajbhandari et al. 2020, sec. 7); at level run with g = 1 once per step,
// in the reduce dtype, whatever the accumulation.
TEST(RunLevel, UnshardedGradientsTravelOncePerStep)
{
    shd::DataFile file(4000);
    for (const char *preset : {"ddp", "zero1", "zero2", "zero3"}) {
        for (uint32_t accumulation : {1u, 3u}) {
            for (shd_dtype dtype : {SHD_F32, SHD_BF16}) {
                for (uint32_t world : {1u, 2u, 3u}) {
                    shd_spec spec = shd::SmallSpec(preset, world);
                    spec.determinism = SHD_DETERMINISM_RUN;
                    spec.accumulation = accumulation;
                    spec.global_batch = spec.micro_batch * world * accumulation;
                    spec.dtype = dtype;
                    SCOPED_TRACE(Describe(spec));
                    shd::Engine engine(spec, file.Open());
                    const shd_plan &plan = engine.plan();
                    shd_comm_count before[SHD_COMM_KIND_COUNT], after[SHD_COMM_KIND_COUNT];
                    shd_trainer_comm(engine.trainer(), 0, before);
                    engine.Step();
                    shd_trainer_comm(engine.trainer(), 0, after);
                    const uint64_t once = (plan.parameters + plan.padding) * (world - 1) / world;
                    const uint64_t bytes = after[SHD_COMM_REDUCE_SCATTER].bytes -
                                           before[SHD_COMM_REDUCE_SCATTER].bytes;
                    if (spec.strategy.g == 1) {
                        EXPECT_EQ(4 * once, bytes);
                    } else {
                        EXPECT_EQ((dtype == SHD_F32 ? 4 : 2) * accumulation * once, bytes);
                    }
                    for (int k = 0; k < SHD_COMM_KIND_COUNT; k++) {
                        EXPECT_EQ(plan.comm_step[k].bytes, after[k].bytes - before[k].bytes);
                        EXPECT_EQ(plan.comm_step[k].calls, after[k].calls - before[k].calls);
                    }
                    shd::ExpectMemory(&engine, shd::Peaks::kButActivations,
                                      shd::Peaks::kButActivations);
                }
            }
        }
    }
}

TEST(RunLevel, TheSameJobTwiceGivesTheSameBits)
{
    shd::DataFile file(4000);
    for (int arch : {0, 1}) {
        for (const std::string &preset : kPresets) {
            for (shd_dtype dtype : {SHD_F32, SHD_BF16}) {
                std::mt19937 random(1);
                shd_spec spec = shd::SmallSpec("ddp", 4);
                spec.strategy = StrategyOf(preset, 4, &random);
                spec.model = Architecture(arch);
                spec.determinism = SHD_DETERMINISM_RUN;
                spec.accumulation = 3;
                spec.global_batch = spec.micro_batch * 12;
                spec.dtype = spec.reduce_dtype = dtype;
                DrawSettings(&spec, &random);
                SCOPED_TRACE(Describe(spec));
                shd::Engine a(spec, file.Open(), nullptr, 1);
                shd::Engine b(spec, file.Open(), nullptr, 2, nullptr, true);
                EXPECT_TRUE(a.Train(10) == b.Train(10));
            }
        }
    }
}

// One round a step leaves nothing to fold: the levels coincide.
TEST(RunLevel, WithoutAccumulationItIsTheLevelStrategy)
{
    shd::DataFile file(4000);
    for (uint32_t world : {2u, 3u}) {
        shd::Trace first;
        for (const char *preset : {"zero3", "ddp", "zero1"}) {
            shd_spec spec = shd::SmallSpec(preset, world);
            if (!first.losses.empty()) {
                spec.determinism = SHD_DETERMINISM_RUN;
            }
            shd::Engine engine(spec, file.Open());
            const shd::Trace trace = engine.Train(10);
            first = first.losses.empty() ? trace : first;
            EXPECT_TRUE(trace == first) << preset << world;
        }
    }
}

// The gradient norm against the gradients, gathered: replicas and tied parameters counted once,
// frozen ones not at all.
class Norm : public testing::TestWithParam<shd_determinism>
{
};

TEST_P(Norm, IsThatOfTheGatheredGradients)
{
    const char *const frozen[] = {"transformer.h.0.*"};
    for (int arch : {0, 1}) {
        for (uint32_t n_freeze : {0u, 1u}) {
            for (uint32_t world : {1u, 2u, 4u}) {
                std::mt19937 random(world);
                for (std::string preset : {"ddp", "zero1", "zero2", "zero3", ""}) {
                    shd_spec spec = WorldSpec(arch, StrategyOf(preset, world, &random), kWidth,
                                              SHD_F32, SHD_F32);
                    spec.determinism = GetParam();
                    char pattern[32];
                    snprintf(pattern, sizeof pattern, "%s",
                             arch == 0 ? frozen[0] : "model.layers.0.*");
                    char *patterns[] = {pattern};
                    spec.freeze = patterns;
                    spec.n_freeze = n_freeze;
                    SCOPED_TRACE(Describe(spec));
                    shd::Engine engine(spec);
                    uint64_t valid = 0;
                    for (uint32_t k = 0; k < 2; k++) {
                        const shd::Batch batch = shd::Batch::Random(7, 11, k + 1);
                        valid += batch.Valid();
                        shd::Good(engine, SHD_WORK_FORWARD_BACKWARD, &batch);
                    }
                    shd_model *model = nullptr;
                    ASSERT_EQ(0, shd_model_create(&spec.model, &model, nullptr));
                    long double sum = 0;
                    uint64_t n = 0;
                    for (uint32_t i = 0; i < shd_model_n_params(model); i++) {
                        std::vector<float> grad(shd_param_numel(shd_model_param(model, i)));
                        ASSERT_EQ(0,
                                  shd_trainer_read_grad(engine.trainer(), i, grad.data(), nullptr));
                        for (float g : grad) {
                            sum += static_cast<long double>(g) * g;
                        }
                        n += grad.size() / 256 + 1;
                    }
                    const double norm = shd::Good(engine, SHD_WORK_OPTIM_STEP).norm;
                    const double want =
                        static_cast<double>(std::sqrt(sum)) / static_cast<double>(valid);
                    // Squares of floats are exact in double. 16 + 4 additions make a block's sum,
                    // then one for each block and each parameter: a sum of k terms >= 0 is off by
                    // (k - 1) 2^-53 at most, relatively; its root by half of that. Root, inverse of
                    // the count and product round once each, here as there.
                    const double bound =
                        ((20 + static_cast<double>(n + shd_model_n_params(model))) / 2 + 6) *
                        0x1p-53;
                    EXPECT_GT(norm, 0);
                    EXPECT_LE(std::fabs(norm - want), bound * want);
                    shd_model_free(model);
                }
            }
        }
    }
}

INSTANTIATE_TEST_SUITE_P(Levels, Norm,
                         testing::Values(SHD_DETERMINISM_STRATEGY, SHD_DETERMINISM_RUN,
                                         SHD_DETERMINISM_WORLD),
                         [](const auto &tested) {
                             return std::string(shd_determinism_name(tested.param));
                         });

// The sums that wait: log2(V/W) atoms a rank, on top of the model's states.
TEST(WorldLevelMemory, IsWhatTheHeaderSays)
{
    for (uint32_t world : kWorlds) {
        for (const std::string &preset : kPresets) {
            std::mt19937 random(1);
            shd_spec spec = shd::SmallSpec("ddp", world);
            spec.strategy = StrategyOf(preset, world, &random);
            shd_plan without, with;
            ASSERT_EQ(0, shd_plan_make(&spec, 1, &without, nullptr));
            spec.determinism = SHD_DETERMINISM_WORLD;
            spec.reduction_width = 16;
            ASSERT_EQ(0, shd_plan_make(&spec, 1, &with, nullptr));
            const uint64_t padded = with.parameters + with.padding;
            const uint64_t atoms = static_cast<uint64_t>(std::log2(16 / world));
            EXPECT_EQ(without.steady[SHD_TAG_GRADS] + 4 * padded / world * atoms,
                      with.steady[SHD_TAG_GRADS])
                << preset << world;
            EXPECT_EQ(without.steady[SHD_TAG_OPTIMIZER], with.steady[SHD_TAG_OPTIMIZER]);
        }
    }
}

} // namespace
