// The promises of determinism and memory over what a job can be: architecture, precision,
// checkpointing, freezing, optimizer, accumulation, world. Choices are drawn by a fixed seed; every
// draw is run under every strategy, each time with a pipeline drawn anew: prefetch, limits,
// buckets, overlap, streams with threads and without. The first run of a draw does one thing after
// another.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "tests/train/drive.h"
#include "tests/train/same_bits.h"

namespace
{

struct Draw {
    std::string name;
    shd_spec spec;
    std::vector<std::string> freeze;
};

template <class T> const T &Pick(std::mt19937 *random, const std::vector<T> &from)
{
    return from[(*random)() % from.size()];
}

const uint32_t kModels = 6;

// Small relatives of every architecture: tied and untied, key heads of every share, biases, norms
// of heads, windows shorter than the sequence, stretched positions, a padding token.
shd_model_config Model(uint32_t i)
{
    if (i == 0) {
        return shd_model_config_gpt2(3, 2, 24, 19, 97);
    }
    if (i == 1) {
        shd_model_config c = shd_model_config_gpt2(2, 3, 21, 19, 97);
        c.d_ff = 50;
        c.tied = 0;
        c.activation = SHD_ACT_GELU;
        return c;
    }
    shd_model_config c = shd_model_config_llama(3, 4, 32, 44, 23, 97);
    c.n_kv_head = 2;
    switch (i) {
    case 2:
        c.qkv_bias = c.o_bias = c.mlp_bias = 1;
        c.rope = {SHD_ROPE_LLAMA3, 500.0, 4.0, 1.0, 4.0, 8};
        break;
    case 3:
        c.arch = SHD_ARCH_MISTRAL;
        c.sliding_window = 5;
        c.windowed[0] = 7;
        break;
    case 4:
        c.arch = SHD_ARCH_QWEN2;
        c.n_kv_head = 4;
        c.qkv_bias = 1;
        c.tied = 1;
        c.pad = 3;
        c.sliding_window = 4;
        c.windowed[0] = 6; // but the first layer
        break;
    default:
        c.arch = SHD_ARCH_QWEN3;
        c.head_dim = 10;
        c.n_kv_head = 1;
        c.tied = 1;
        c.qk_norm = 1;
        break;
    }
    return c;
}

Draw Make(uint32_t seed)
{
    std::mt19937 random(seed);
    const std::vector<shd_dtype> types = {SHD_F32, SHD_BF16, SHD_F16};
    const std::vector<shd_optim> optims = {{SHD_OPTIM_ADAMW, 0.9, 0.95, 1e-8, 0, 0},
                                           {SHD_OPTIM_ADAM, 0.9, 0.95, 1e-8, 0, 0},
                                           {SHD_OPTIM_SGD, 0, 0, 0, 0.9, 1},
                                           {SHD_OPTIM_SGD, 0, 0, 0, 0, 0},
                                           {SHD_OPTIM_LION, 0.9, 0.99, 0, 0, 0}};
    Draw d;
    const uint32_t model = seed / 3 % kModels, // each in every precision
        world = Pick<uint32_t>(&random, {1, 2, 3, 4, 4, 6, 8});
    shd_spec &s = d.spec = shd::SmallSpec("ddp", world);
    s.model = Model(model);
    const bool gpt2 = s.model.arch == SHD_ARCH_GPT2;
    s.dtype = types[seed % 3];
    s.reduce_dtype = Pick(&random, types);
    s.checkpointing = static_cast<shd_checkpointing>(random() % 3);
    s.optim = Pick(&random, optims);
    s.decay_all = static_cast<int>(random() % 2);
    s.dropout = random() % 2 ? 0.1 : 0.0;
    s.accumulation = 1 + random() % 3;
    s.global_batch = s.micro_batch * world * s.accumulation;
    if (s.dtype == SHD_F16) {
        s.scaler = {1, random() % 2 ? 256.0 : 0.0, 10, 3, 2, 1};
    }
    switch (random() % 4) {
    case 0:
        d.freeze = {gpt2 ? "*wte*" : "*embed_tokens*"};
        break;
    case 1: // the embedding and the first block: backward ends early
        d.freeze = {gpt2 ? "*wte*" : "*embed_tokens*", gpt2 ? "*wpe*" : "*layers.0.*",
                    gpt2 ? "*.h.0.*" : "*layers.0.*"};
        break;
    case 2: // half of each block
        d.freeze = {"*mlp*"};
        break;
    default:
        break;
    }
    d.name = std::string(shd_arch_name(s.model.arch)) + " W" + std::to_string(world) + " A" +
             std::to_string(s.accumulation) + " " + shd_dtype_name(s.dtype) + "/" +
             shd_dtype_name(s.reduce_dtype) + " " + shd_checkpointing_name(s.checkpointing) + " " +
             shd_optim_name(s.optim.kind) + " dropout " + std::to_string(s.dropout) + " frozen " +
             (d.freeze.empty() ? "nothing" : d.freeze.back());
    return d;
}

uint32_t Divisor(std::mt19937 *random, uint32_t of)
{
    std::vector<uint32_t> all;
    for (uint32_t d = 1; d <= of; d++) {
        if (of % d == 0) {
            all.push_back(d);
        }
    }
    return Pick(random, all);
}

// Every preset, those with groups of a drawn size, and two drawn triples; ddp comes first.
std::vector<shd::Sharding> Strategies(std::mt19937 *random, uint32_t world)
{
    std::vector<shd::Sharding> all = shd::Presets(world, random);
    for (const shd::Sharding &triple : shd::RandomTriples(world, 2, (*random)())) {
        all.push_back(triple);
    }
    return all;
}

// How movement is laid beside compute: nothing of it may show in the results.
struct Movement {
    shd_pipeline_settings settings = {};
    uint32_t regather = 0; // 0: the preset's
    bool threads = false;
    std::string name = "plain";
};

Movement Move(std::mt19937 *random, const shd_strategy &strategy)
{
    Movement m;
    m.settings.prefetch = (*random)() % 3;
    m.settings.overlap = static_cast<int>((*random)() % 4 != 0);
    m.settings.bucket_bytes = Pick<uint64_t>(random, {0, 0, 10000, 40000, 1 << 30});
    m.settings.persist_below = Pick<uint64_t>(random, {0, 0, 25, 200, 1000});
    m.threads = (*random)() % 2;
    if (strategy.p > 1 && (*random)() % 2) {
        m.regather = Divisor(random, strategy.p);
    }
    if (strategy.p > 1 && (m.regather > 0 ? m.regather : strategy.regather) > 1 &&
        (*random)() % 2) {
        m.settings.max_gathered = 2 + (*random)() % 3;
    }
    m.name = "prefetch " + std::to_string(m.settings.prefetch) + " limit " +
             std::to_string(m.settings.max_gathered) + " bucket " +
             std::to_string(m.settings.bucket_bytes) + " overlap " +
             std::to_string(m.settings.overlap) + " threads " + std::to_string(m.threads) +
             " persist " + std::to_string(m.settings.persist_below) + " regather " +
             std::to_string(m.regather);
    return m;
}

// All kinds of work that a plan knows, as large as they come.
void Generate(shd::Engine *engine)
{
    const shd::Batch batch = shd::Batch::Random(1, engine->spec().seq_len, 5);
    for (uint64_t stream = 1; stream <= engine->plan().generate_caches; stream++) {
        shd_work work;
        shd_work_init(&work, SHD_WORK_NEXT_LOGITS);
        shd::Set(&work, batch);
        work.stream = stream;
        work.cache_step = UINT64_MAX;
        EXPECT_EQ(0, engine->Run(&work)) << work.err.message;
        shd_work_fini(&work);
    }
    const shd::Batch forward = shd::Batch::Random(
        engine->spec().micro_batch * engine->spec().strategy.world, engine->spec().seq_len, 6);
    shd::Good(*engine, SHD_WORK_FORWARD, &forward);
}

class Matrix : public testing::TestWithParam<uint32_t>
{
};

TEST_P(Matrix, EveryStrategyAndCheckpointingGivesTheSameBitsInThePlannedMemory)
{
    Draw d = Make(GetParam());
    SCOPED_TRACE(d.name);
    std::vector<char *> patterns;
    for (std::string &pattern : d.freeze) {
        patterns.push_back(&pattern[0]);
    }
    d.spec.freeze = patterns.data();
    d.spec.n_freeze = static_cast<uint32_t>(patterns.size());
    shd::DataFile file(4000);
    shd::Trace first;
    std::mt19937 random(1000 + GetParam());
    for (const shd::Sharding &sharding : Strategies(&random, d.spec.strategy.world)) {
        for (int checkpointing : {0, 1, 2}) {
            // Every strategy as drawn; the other ways to checkpoint under one of them.
            if (checkpointing != d.spec.checkpointing && sharding.name.rfind("zero3 ", 0) != 0) {
                continue;
            }
            shd_spec spec = d.spec;
            spec.checkpointing = static_cast<shd_checkpointing>(checkpointing);
            spec.strategy = sharding.strategy;
            const Movement move = first.losses.empty() ? Movement() : Move(&random, spec.strategy);
            SCOPED_TRACE(sharding.name + " checkpointing " + std::to_string(checkpointing) + " " +
                         move.name);
            spec.pipeline = move.settings;
            spec.strategy.regather = move.regather > 0 ? move.regather : spec.strategy.regather;
            shd::Engine engine(spec, file.Open(), nullptr, 1, nullptr, move.threads);
            ASSERT_EQ(0, engine.init_rc()) << engine.init_error();
            const shd::Trace trace = engine.Train(5);
            Generate(&engine);
            engine.Step(); // gives the caches back
            shd::ExpectMemory(&engine, shd::Peaks::kExact, shd::Peaks::kAtMost);
            if (first.losses.empty()) {
                first = trace;
                for (double loss : trace.losses) {
                    EXPECT_TRUE(std::isfinite(loss));
                }
                continue;
            }
            shd::ExpectSame(first, trace);
        }
    }
}

INSTANTIATE_TEST_SUITE_P(Draws, Matrix, testing::Range(1u, 43u));

} // namespace
