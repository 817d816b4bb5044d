// What the tests of "the same bits" share: the jobs, the ways to shard them, and what must be
// equal. A run takes samples, drawn by fixed seeds; with SHARDD_WHOLE_MATRIX=1 in the environment
// (bazel test --test_env=SHARDD_WHOLE_MATRIX=1) it takes all there is.
#ifndef TESTS_TRAIN_SAME_BITS_H
#define TESTS_TRAIN_SAME_BITS_H

#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/train/engine.h"

namespace shd
{

inline bool WholeMatrix()
{
    const char *whole = getenv("SHARDD_WHOLE_MATRIX");
    return whole != nullptr && std::string(whole) == "1";
}

// n of them in their order, drawn by the seed; all in a run of the whole.
template <class T> std::vector<T> Sample(const std::vector<T> &all, size_t n, uint32_t seed)
{
    if (WholeMatrix() || all.size() <= n) {
        return all;
    }
    std::vector<size_t> places(all.size());
    for (size_t i = 0; i < places.size(); i++) {
        places[i] = i;
    }
    std::mt19937 random(seed);
    for (size_t i = 0; i < n; i++) {
        std::swap(places[i], places[i + random() % (places.size() - i)]);
    }
    std::sort(places.begin(), places.begin() + static_cast<std::ptrdiff_t>(n));
    std::vector<T> out;
    for (size_t i = 0; i < n; i++) {
        out.push_back(all[places[i]]);
    }
    return out;
}

// ---- jobs ----

constexpr int kArchitectures = 2;

// 0: GPT-2, head tied to the embedding, biases. 1: Llama, a head of its own, grouped queries.
inline shd_model_config BitsModel(int architecture)
{
    if (architecture == 0) {
        return shd_model_config_gpt2(3, 2, 24, 19, 97);
    }
    shd_model_config c = shd_model_config_llama(2, 4, 32, 44, 23, 97);
    c.n_kv_head = 2;
    return c;
}

constexpr int kBitsSteps = 30;

// kBitsSteps steps of ddp on DataFile(4000), with clipping at work.
inline shd_spec BitsSpec(int architecture, uint32_t world, uint32_t accumulation)
{
    shd_spec spec = SmallSpec("ddp", world);
    spec.model = BitsModel(architecture);
    spec.pipeline.prefetch = 1; // as by default
    spec.pipeline.overlap = 1;
    spec.steps = kBitsSteps;
    spec.schedule.steps = kBitsSteps;
    spec.accumulation = accumulation;
    spec.global_batch = spec.micro_batch * world * accumulation;
    spec.clip = 0.5;
    return spec;
}

// ---- strategies ----

struct Sharding {
    std::string name; // preset, group, degrees, what stays gathered
    shd_strategy strategy;
};

inline Sharding Named(const std::string &preset, const shd_strategy &s)
{
    char reshard[SHD_STRATEGY_RESHARD_LEN];
    std::string name = preset + " " + std::to_string(s.p) + "," + std::to_string(s.g) + "," +
                       std::to_string(s.o) + " of " + std::to_string(s.world);
    if (*shd_strategy_reshard(&s, reshard) != '\0') {
        name += std::string(" reshard ") + reshard;
    }
    return {name, s};
}

// All presets, ddp first; those with groups once for every k that divides the world, or with a
// drawn k. Degenerate ones too.
inline std::vector<Sharding> Presets(uint32_t world, std::mt19937 *random = nullptr)
{
    const std::pair<const char *, bool> presets[] = {{"ddp", false},
                                                     {"no_shard", false},
                                                     {"zero1", false},
                                                     {"zero2", false},
                                                     {"zero3", false},
                                                     {"full_shard", false},
                                                     {"shard_grad_op", false},
                                                     {"hybrid_shard", true},
                                                     {"mics", true},
                                                     {"hybrid_shard_zero2", true},
                                                     {"hpz", true},
                                                     {"megatron", true}};
    std::vector<uint32_t> divisors;
    for (uint32_t k = 1; k <= world; k++) {
        if (world % k == 0) {
            divisors.push_back(k);
        }
    }
    std::vector<Sharding> all;
    for (const auto &[name, grouped] : presets) {
        std::vector<uint32_t> groups = grouped ? divisors : std::vector<uint32_t>{0};
        if (grouped && random != nullptr) {
            groups = {divisors[(*random)() % divisors.size()]};
        }
        for (uint32_t k : groups) {
            const shd_strategy_request request = {world, name, nullptr, 0, k, 0, nullptr};
            shd_strategy s = {};
            shd_error err = {};
            EXPECT_EQ(0, shd_strategy_resolve(&request, &s, &err)) << err.message;
            all.push_back(Named(name, s));
        }
    }
    return all;
}

// n different valid degrees with different ways to keep what was gathered, drawn by the seed; all
// when there are fewer.
inline std::vector<Sharding> RandomTriples(uint32_t world, size_t n, uint32_t seed)
{
    std::vector<Sharding> all;
    for (uint32_t p = 1; p <= world; p++) {
        for (uint32_t g = p; g <= world; g += p) {
            for (uint32_t o = g; o <= world; o += g) {
                for (uint32_t kept = 1; kept <= p && world % o == 0; kept++) {
                    if (p % kept == 0) {
                        all.push_back(Named("triple", {world, p, g, o, kept}));
                    }
                }
            }
        }
    }
    std::mt19937 random(seed);
    for (size_t i = 0; i + 1 < all.size(); i++) {
        std::swap(all[i], all[i + random() % (all.size() - i)]);
    }
    all.resize(std::min(n, all.size()));
    return all;
}

// ---- what must be equal ----

inline void ExpectSame(const Trace &first, const Trace &trace)
{
    EXPECT_TRUE(trace.losses == first.losses) << "losses";
    EXPECT_TRUE(trace.norms == first.norms) << "norms";
    EXPECT_TRUE(trace.params == first.params) << "parameters";
}

inline std::vector<shd_comm_count> Counts(Engine &engine, uint32_t rank)
{
    std::vector<shd_comm_count> counts(SHD_COMM_KIND_COUNT);
    shd_trainer_comm(engine.trainer(), rank, counts.data());
    return counts;
}

// Takes another step: what every rank sends in it is the plan, per kind, in bytes and calls.
inline void ExpectPlannedCommunication(Engine &engine)
{
    const uint32_t world = engine.spec().strategy.world;
    std::vector<std::vector<shd_comm_count>> before;
    for (uint32_t r = 0; r < world; r++) {
        before.push_back(Counts(engine, r));
    }
    engine.Step();
    for (uint32_t r = 0; r < world; r++) {
        const std::vector<shd_comm_count> after = Counts(engine, r);
        for (int k = 0; k < SHD_COMM_KIND_COUNT; k++) {
            const char *kind = shd_comm_kind_name(static_cast<shd_comm_kind>(k));
            EXPECT_EQ(engine.plan().comm_step[k].bytes, after[k].bytes - before[r][k].bytes)
                << "rank " << r << " " << kind;
            EXPECT_EQ(engine.plan().comm_step[k].calls, after[k].calls - before[r][k].calls)
                << "rank " << r << " " << kind;
        }
    }
}

} // namespace shd

#endif
