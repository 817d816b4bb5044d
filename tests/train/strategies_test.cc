// Every strategy is three numbers: presets and any other degrees give the same losses, norms and
// parameters, bit by bit (contract: level `strategy`), hold what was planned, and send what the
// closed forms say.
#include <gtest/gtest.h>

#include <cmath>
#include <tuple>

#include "tests/train/closed_forms.h"
#include "tests/train/same_bits.h"

namespace
{

void ExpectForms(const shd_spec &spec, const shd_plan &plan)
{
    const shd::FormComm comm = shd::CommOf(spec);
    EXPECT_EQ(comm.all_gather, plan.comm_step[SHD_COMM_ALL_GATHER].bytes);
    EXPECT_EQ(comm.reduce_scatter, plan.comm_step[SHD_COMM_REDUCE_SCATTER].bytes);
    EXPECT_EQ(comm.all_reduce, plan.comm_step[SHD_COMM_ALL_REDUCE].bytes);
    EXPECT_EQ(comm.norm, plan.comm_step[SHD_COMM_NORM].bytes);
    const shd::FormStates states = shd::StatesOf(spec);
    EXPECT_EQ(states.params, plan.steady[SHD_TAG_PARAMS]);
    EXPECT_EQ(states.grads, plan.steady[SHD_TAG_GRADS]);
    EXPECT_EQ(states.optimizer, plan.steady[SHD_TAG_OPTIMIZER]);
    EXPECT_EQ(shd::FormPadding(spec), plan.padding);
}

struct Case {
    uint32_t world, accumulation;
    int architecture;
};

class Strategies : public testing::TestWithParam<Case>
{
};

TEST_P(Strategies, PresetsAndRandomTriplesGiveTheSameBits)
{
    const Case c = GetParam();
    const uint32_t seed =
        1000 * c.world + 100 * c.accumulation + static_cast<uint32_t>(c.architecture);
    std::vector<shd::Sharding> shardings = shd::Sample(shd::Presets(c.world), 3, seed);
    for (const shd::Sharding &triple :
         shd::Sample(shd::RandomTriples(c.world, 20, c.world), 3, seed)) {
        shardings.push_back(triple);
    }
    shd::DataFile file(4000);
    const shd_spec ddp = shd::BitsSpec(c.architecture, c.world, c.accumulation);
    shd::Engine reference(ddp, file.Open());
    const shd::Trace first = reference.Train(shd::kBitsSteps);
    EXPECT_LT(first.losses.back(), first.losses.front() - 0.3) << "it must learn";
    EXPECT_TRUE(std::any_of(first.norms.begin(), first.norms.end(), [&](double norm) {
        return norm > ddp.clip;
    })) << "clipping must have been at work";
    for (const shd::Sharding &sharding : shardings) {
        SCOPED_TRACE(sharding.name);
        shd_spec spec = ddp;
        spec.strategy = sharding.strategy;
        shd::Engine engine(spec, file.Open());
        shd::ExpectSame(first, engine.Train(shd::kBitsSteps));
        shd::ExpectMemory(&engine, shd::Peaks::kButActivations, shd::Peaks::kButActivations);
        shd::ExpectPlannedCommunication(engine);
        ExpectForms(spec, engine.plan());
    }
}

std::vector<Case> Cases()
{
    std::vector<Case> cases;
    for (uint32_t world : {1u, 2u, 4u, 8u}) {
        for (uint32_t accumulation : {1u, 3u}) {
            for (int architecture = 0; architecture < shd::kArchitectures; architecture++) {
                cases.push_back({world, accumulation, architecture});
            }
        }
    }
    return cases;
}

INSTANTIATE_TEST_SUITE_P(Worlds, Strategies, testing::ValuesIn(Cases()), [](const auto &tested) {
    const Case &c = tested.param;
    return "W" + std::to_string(c.world) + "A" + std::to_string(c.accumulation) +
           (c.architecture == 0 ? "Gpt2" : "Llama");
});

// ---- plans: every preset and random triples of worlds that no test could run ----

class Forms : public testing::TestWithParam<uint32_t>
{
};

TEST_P(Forms, OfStatesAndCommunicationAreThePlan)
{
    const uint32_t world = GetParam();
    std::mt19937 random(world);
    std::vector<shd::Sharding> shardings = shd::Sample(shd::Presets(world), 24, world);
    for (const shd::Sharding &triple : shd::RandomTriples(world, 20, world + 1)) {
        shardings.push_back(triple);
    }
    const shd_dtype types[] = {SHD_F32, SHD_BF16, SHD_F16};
    for (const shd::Sharding &sharding : shardings) {
        shd_spec spec = shd::BitsSpec(static_cast<int>(random() % 2), world, 1 + random() % 4);
        spec.strategy = sharding.strategy;
        spec.dtype = types[random() % 3];
        spec.reduce_dtype = types[random() % 3];
        spec.checkpointing = static_cast<shd_checkpointing>(random() % 3);
        spec.determinism = static_cast<shd_determinism>(random() % 3);
        if (spec.determinism == SHD_DETERMINISM_WORLD) {
            if ((world & (world - 1)) == 0) {
                spec.reduction_width = world << random() % 4;
            } else {
                spec.determinism = SHD_DETERMINISM_STRATEGY;
            }
        }
        spec.pipeline.prefetch = random() % 4;
        spec.pipeline.bucket_bytes = random() % 2 ? 0 : 50000;
        spec.pipeline.persist_below = random() % 2 ? 0 : 700; // norms, biases, a few weights
        if (spec.strategy.regather > 1) {
            spec.pipeline.max_gathered = random() % 2 ? 0 : 1 + random() % 4;
        }
        SCOPED_TRACE(sharding.name + " " + shd_arch_name(spec.model.arch) + " A" +
                     std::to_string(spec.accumulation) + " " + shd_dtype_name(spec.dtype) + "/" +
                     shd_dtype_name(spec.reduce_dtype) + " prefetch " +
                     std::to_string(spec.pipeline.prefetch) + " of " +
                     std::to_string(spec.pipeline.max_gathered) + " persist below " +
                     std::to_string(spec.pipeline.persist_below) + " level " +
                     shd_determinism_name(spec.determinism) + " of " +
                     std::to_string(spec.reduction_width));
        shd_plan plan;
        shd_error err = {};
        ASSERT_EQ(0, shd_plan_make(&spec, 1, &plan, &err)) << err.message;
        ExpectForms(spec, plan);
    }
}

INSTANTIATE_TEST_SUITE_P(Worlds, Forms, testing::Values(1u, 2u, 3u, 6u, 8u, 12u, 64u, 1024u),
                         testing::PrintToStringParamName());

// The table of the papers: with Adam and fp32 masters, Ψ parameters of 2 bytes cost 16Ψ bytes, and
// a step's communication is 2Ψ or 3Ψ elements, of which a rank sends (N-1)/N.
TEST(Papers, TheirTableIsTheClosedForm)
{
    const uint32_t N = 8;
    struct {
        const char *strategy;
        uint64_t whole, shared; // bytes per parameter: kept by all, divided by N
        uint64_t moved;         // Ψ
    } const rows[] = {{"ddp", 16, 0, 2},
                      {"zero1", 4, 12, 2},
                      {"zero2", 2, 14, 2},
                      {"zero3", 0, 16, 3},
                      {"full_shard", 0, 16, 3}};
    for (const auto &row : rows) {
        SCOPED_TRACE(row.strategy);
        shd_spec spec = shd::BitsSpec(0, N, 1);
        ASSERT_EQ(0, shd_strategy_make(row.strategy, nullptr, 0, N, &spec.strategy, nullptr));
        spec.dtype = spec.reduce_dtype = SHD_BF16;
        spec.pipeline.prefetch = 0; // else the last blocks are not gathered again
        uint64_t n = 0;
        for (const shd::FormUnit &unit : shd::FormUnits(spec)) {
            n += unit.n;
        }
        shd_plan plan;
        shd_error err = {};
        ASSERT_EQ(0, shd_plan_make(&spec, 1, &plan, &err)) << err.message;
        EXPECT_EQ(n, plan.parameters + plan.padding);
        EXPECT_EQ(row.whole * n + row.shared * n / N, plan.steady[SHD_TAG_PARAMS] +
                                                          plan.steady[SHD_TAG_GRADS] +
                                                          plan.steady[SHD_TAG_OPTIMIZER]);
        EXPECT_EQ(2 * row.moved * (n / N) * (N - 1),
                  plan.comm_step[SHD_COMM_ALL_GATHER].bytes +
                      plan.comm_step[SHD_COMM_REDUCE_SCATTER].bytes +
                      plan.comm_step[SHD_COMM_ALL_REDUCE].bytes);
    }
}

} // namespace
