// Plans for stated machines: models without weights, communication by node, FLOPs and the estimate
// of a step, against closed forms.
#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/train/machines.h"

namespace
{

struct Planned {
    shd_plan plan;
    shd_estimate estimate;
};

Planned PlanFor(const shd_spec &spec, const shd_machine &machine)
{
    Planned p = {};
    shd_error err = {};
    EXPECT_EQ(0, shd_plan_for(&spec, 1, &machine, &p.plan, &p.estimate, nullptr, &err))
        << err.message;
    return p;
}

shd_strategy Groups(const char *name, uint32_t world, uint32_t k)
{
    shd_strategy s = {};
    shd_error err = {};
    shd_strategy_request request = {};
    request.world = world;
    request.name = name;
    request.group = k;
    EXPECT_EQ(0, shd_strategy_resolve(&request, &s, &err)) << err.message;
    return s;
}

// ---- the same plan ----

TEST(PlanFor, IsThePlanOfADaemon)
{
    for (const char *strategy : {"ddp", "zero2", "zero3", "shard_grad_op"}) {
        for (uint32_t accumulation : {1u, 2u, 5u}) {
            shd_spec spec = shd::SmallSpec(strategy, 4);
            spec.accumulation = accumulation;
            spec.global_batch *= accumulation;
            shd_plan plan;
            ASSERT_EQ(0, shd_plan_make(&spec, 1, &plan, nullptr));
            const Planned p = PlanFor(spec, shd::Nodes(2));
            EXPECT_EQ(plan.extent, p.plan.extent);
            EXPECT_EQ(plan.total_peak, p.plan.total_peak);
            for (int t = 0; t < SHD_TAG_COUNT; t++) {
                EXPECT_EQ(plan.peak[t], p.plan.peak[t]);
                EXPECT_EQ(plan.steady[t], p.plan.steady[t]);
            }
            for (int k = 0; k < SHD_COMM_KIND_COUNT; k++) {
                EXPECT_EQ(plan.comm_step[k].bytes, p.plan.comm_step[k].bytes);
                EXPECT_EQ(plan.comm_step[k].calls, p.plan.comm_step[k].calls);
                EXPECT_EQ(0u, plan.comm_between[k]);
                EXPECT_LE(p.plan.comm_between[k], p.plan.comm_step[k].bytes);
            }
        }
    }
}

// ---- large models ----

// Parameters as published; states as the table of ZeRO (Rajbhandari et al. 2020, section 3) says:
// 2, 4 and 12 bytes a parameter of bf16 with fp32 gradients and Adam, cut into p, g and o parts.
TEST(PlanFor, ModelsByConfigurationAlone)
{
    const struct {
        const char *name;
        uint64_t parameters;
    } models[] = {{"gpt3-175b", 174604259328},
                  {"llama-3.1-405b", 405853388800},
                  {"megatron-1t", 1008038758400}};
    for (const auto &model : models) {
        for (const char *strategy : {"zero3", "zero2"}) {
            const uint32_t world = 1024;
            const shd_spec spec =
                shd::LargeSpec(shd::ReadConfig(model.name), strategy, world, 2048);
            const Planned p = PlanFor(spec, shd::Nodes());
            EXPECT_EQ(model.parameters, p.plan.parameters) << model.name;
            const uint64_t all = p.plan.parameters + p.plan.padding;
            EXPECT_EQ(2 * all / spec.strategy.p, p.plan.steady[SHD_TAG_PARAMS]) << model.name;
            EXPECT_EQ(4 * all / spec.strategy.g, p.plan.steady[SHD_TAG_GRADS]) << model.name;
            EXPECT_EQ(12 * all / spec.strategy.o, p.plan.steady[SHD_TAG_OPTIMIZER]) << model.name;
        }
    }
}

// Narayanan et al. 2021, table 1: 1008.0 billion parameters. What planning does is counted, not
// timed: it must not grow with the ranks, nor with the micro-batches of a step.
TEST(PlanFor, ATrillionParametersOn16384Ranks)
{
    const shd_model_config model = shd::ReadConfig("megatron-1t");
    const shd_spec small = shd::LargeSpec(model, "zero3", 64, 2048);
    shd_spec large = shd::LargeSpec(model, "zero3", SHD_MAX_WORLD, 2048);
    large.checkpointing = SHD_CHECKPOINT_FULL;
    large.accumulation = 32;
    large.global_batch = 32 * SHD_MAX_WORLD;
    const Planned p = PlanFor(large, shd::Nodes());
    EXPECT_EQ(1008.0, std::round(static_cast<double>(p.plan.parameters) / 1e8) / 10);
    EXPECT_GT(p.estimate.step_s, 0);
    EXPECT_LT(p.plan.total_peak, UINT64_C(80) << 30);
    EXPECT_LT(p.estimate.dry_calls, 4 * PlanFor(small, shd::Nodes()).estimate.dry_calls);
    EXPECT_LT(p.estimate.dry_calls, 3000000u);
    for (const shd_strategy &strategy :
         {Groups("hpz", SHD_MAX_WORLD, 8), Groups("hybrid_shard", SHD_MAX_WORLD, 4096)}) {
        large.strategy = strategy;
        EXPECT_LT(PlanFor(large, shd::Nodes()).estimate.dry_calls, 3000000u);
    }
}

// ---- between nodes ----

TEST(PlanFor, BytesBetweenNodes)
{
    const uint32_t world = 16, per_node = 4;
    shd_spec spec = shd::SmallSpec("zero3", world);
    const auto of = [&](const shd_strategy &strategy) {
        spec.strategy = strategy;
        return PlanFor(spec, shd::Nodes(per_node)).plan;
    };
    // Rounded up once a call.
    const auto share = [](const shd_plan &p, shd_comm_kind kind, double of_bytes) {
        const double bytes = static_cast<double>(p.comm_step[kind].bytes) * of_bytes;
        EXPECT_GE(static_cast<double>(p.comm_between[kind]), bytes - 1);
        EXPECT_LE(static_cast<double>(p.comm_between[kind]),
                  bytes + static_cast<double>(p.comm_step[kind].calls));
    };
    const shd_plan zero3 = of(Groups("zero3", world, 0));
    share(zero3, SHD_COMM_ALL_GATHER, 1.0 / per_node); // a ring over all ranks
    share(zero3, SHD_COMM_REDUCE_SCATTER, 12.0 / 15);  // 12 of 15 others are elsewhere
    const shd_plan hybrid = of(Groups("hybrid_shard", world, per_node));
    EXPECT_GT(hybrid.comm_step[SHD_COMM_ALL_GATHER].bytes, 0u);
    EXPECT_EQ(0u, hybrid.comm_between[SHD_COMM_ALL_GATHER]); // parameters stay in the node
    share(hybrid, SHD_COMM_ALL_REDUCE, 1);                   // replicas are one of each node
    const shd_plan hpz = of(Groups("hpz", world, per_node));
    const uint64_t update = hpz.comm_between[SHD_COMM_ALL_GATHER];
    EXPECT_GT(update, 0u) << "what the optimizer changed comes from all nodes";
    EXPECT_LT(update, zero3.comm_between[SHD_COMM_ALL_GATHER]);
    const shd_plan one = [&] {
        spec.strategy = Groups("zero3", world, 0);
        return PlanFor(spec, shd::Nodes(world)).plan;
    }();
    for (int k = 0; k < SHD_COMM_KIND_COUNT; k++) {
        EXPECT_EQ(0u, one.comm_between[k]) << "on one node";
    }
}

// ---- FLOPs ----

shd_machine ComputeAlone()
{
    shd_machine machine = {};
    machine.ranks_per_node = 1;
    machine.flops = 1e12;
    return machine;
}

// Every product of GPT-2 by its shape. Per token, layer and pass: 12 d² multiply-adds in the
// projections, d (T+1)/2 for the scores and as many for their values; d V in the head. Backward
// takes twice forward. To first order that is the 6 N of Kaplan et al. 2020 and the 12 L H Q T of
// Chowdhery et al. 2022 (PaLM, appendix B), the latter halved by the causal mask.
TEST(Flops, OfGpt2)
{
    shd_model_config model = {};
    ASSERT_EQ(0, shd_model_preset("gpt2", &model, nullptr));
    const double L = 12, d = 768, V = 50257, T = 1024, B = 2, tokens = B * T;
    shd_spec spec = shd::LargeSpec(model, "ddp", 1, 1024);
    spec.micro_batch = spec.global_batch = 2;
    const Planned p = PlanFor(spec, ComputeAlone());
    const double forward = 2 * (12 * L * d * d + V * d) + 2 * 2 * L * d * (T + 1) / 2;
    EXPECT_DOUBLE_EQ(3 * forward * tokens, p.estimate.flops);
    const double N = static_cast<double>(p.plan.parameters);
    EXPECT_NEAR((6 * N + 12 * L * d * T / 2) * tokens, p.estimate.flops, 0.01 * p.estimate.flops);
    // The scores are computed once more in backward: a fifth product there.
    const double executed = p.estimate.flops + 2 * L * d * (T + 1) / 2 * tokens;
    EXPECT_NEAR(executed / 1e12, p.estimate.compute_s, 1e-9 * p.estimate.compute_s);
    EXPECT_NEAR(p.estimate.flops / executed, p.estimate.flops_share, 1e-3);
}

// Narayanan et al. 2021, equation 3 counts 96 B s l h² (1 + s/6h + V/16lh) for a step with the
// activations of all layers computed again; with the causal mask (which it does not use) its s/6h
// is less, by shape: 9 instead of 16 products of B s² l h.
TEST(Flops, OfCheckpointedGpt3)
{
    const double l = 96, h = 12288, V = 50257, s = 2048;
    shd_spec spec = shd::LargeSpec(shd::ReadConfig("gpt3-175b"), "ddp", 1, 2048);
    spec.checkpointing = SHD_CHECKPOINT_FULL;
    const Planned p = PlanFor(spec, ComputeAlone());
    const double once = 72 * s * l * h * h + 6 * l * h * s * (s + 1) + 6 * s * h * V;
    const double executed = 96 * s * l * h * h + 9 * l * h * s * (s + 1) + 6 * s * h * V;
    EXPECT_NEAR(once, p.estimate.flops, 1e-12 * once);
    EXPECT_NEAR(executed / 1e12, p.estimate.compute_s, 1e-9 * p.estimate.compute_s);
    const double published = 96 * s * l * h * h * (1 + s / (6 * h) + V / (16 * l * h));
    EXPECT_NEAR(published, executed, 0.02 * published);
}

// Grouped key heads, SwiGLU and an untied head: 2 per weight of a matrix and token.
TEST(Flops, OfLlama)
{
    shd_model_config model = shd_model_config_llama(3, 8, 64, 96, 32, 101);
    model.n_kv_head = 2;
    const double d = 64, f = static_cast<double>(model.d_ff), T = 32;
    const double weights = 3 * (2 * d * d + 2 * d * d / 4 + 3 * d * f) + 101 * d;
    const Planned p = PlanFor(shd::LargeSpec(model, "ddp", 1, 32), ComputeAlone());
    EXPECT_DOUBLE_EQ(3 * (2 * weights + 2 * 2 * 3 * d * (T + 1) / 2) * T, p.estimate.flops);
}

// A frozen model's backward is shorter: no gradient of a frozen weight, none at all below.
TEST(Flops, OfFrozenParameters)
{
    shd_spec spec = shd::SmallSpec("ddp", 1);
    const double all = PlanFor(spec, ComputeAlone()).estimate.flops;
    char pattern[] = "transformer.h.*";
    char *patterns[] = {pattern};
    spec.freeze = patterns;
    spec.n_freeze = 1;
    const double frozen = PlanFor(spec, ComputeAlone()).estimate.flops;
    EXPECT_LT(frozen, 0.85 * all);
    EXPECT_GT(frozen, all / 3);
}

// ---- the estimate ----

TEST(Estimate, ComputeAndNothingElseOnOneRank)
{
    const shd_spec spec = shd::SmallSpec("ddp", 1);
    const shd_estimate e = PlanFor(spec, ComputeAlone()).estimate;
    EXPECT_EQ(0, e.exposed_s);
    EXPECT_EQ(0, e.optimizer_s) << "memory has no limit";
    EXPECT_EQ(e.step_s, e.compute_s);
    EXPECT_DOUBLE_EQ(2 * 17 / e.step_s, e.tokens_per_s);
    shd_machine slow = ComputeAlone();
    slow.memory_bandwidth = 1e9;
    const shd_estimate bound = PlanFor(spec, slow).estimate;
    EXPECT_GT(bound.compute_s, e.compute_s);
    // AdamW moves 28 bytes an element, the norm reads 4.
    const Planned p = PlanFor(spec, slow);
    EXPECT_NEAR(32e-9 * static_cast<double>(p.plan.parameters), bound.optimizer_s,
                0.05 * bound.optimizer_s);
}

TEST(Estimate, WithoutRatesThereIsNone)
{
    shd_machine machine = {};
    machine.ranks_per_node = 2;
    const shd_estimate e = PlanFor(shd::SmallSpec("zero3", 4), machine).estimate;
    EXPECT_EQ(0, e.step_s);
    EXPECT_EQ(0, e.tokens_per_s);
}

// What the bytes of a step need at the least, and at the most.
TEST(Estimate, CommunicationIsHiddenOrExposed)
{
    shd_model_config model = {};
    ASSERT_EQ(0, shd_model_preset("gpt2", &model, nullptr));
    shd_spec spec = shd::LargeSpec(model, "zero3", 16, 1024);
    const shd_machine machine = shd::Nodes();
    const auto estimate = [&](bool overlap, uint32_t prefetch) {
        spec.pipeline.overlap = overlap;
        spec.pipeline.prefetch = prefetch;
        const Planned p = PlanFor(spec, machine);
        double inside = 0, between = 0;
        for (int k = 0; k < SHD_COMM_KIND_COUNT; k++) {
            between += static_cast<double>(p.plan.comm_between[k]);
            inside += static_cast<double>(p.plan.comm_step[k].bytes - p.plan.comm_between[k]);
        }
        const double least =
            std::max(inside / machine.node_bandwidth, between / machine.net_bandwidth);
        EXPECT_GE(p.estimate.step_s, least);
        EXPECT_GE(p.estimate.step_s, p.estimate.compute_s);
        return p.estimate;
    };
    const shd_estimate serial = estimate(false, 0), lanes = estimate(true, 0);
    const shd_estimate ahead = estimate(true, 1);
    EXPECT_LT(lanes.step_s, serial.step_s) << "reductions go on beside backward";
    EXPECT_LT(ahead.step_s, lanes.step_s) << "and gathers ahead of compute";
    EXPECT_DOUBLE_EQ(serial.compute_s, ahead.compute_s);
    EXPECT_LT(ahead.flops_share, 1);
}

// Micro-batches after the first are alike: the time of a step is a straight line.
TEST(Estimate, MicroBatchesAddUp)
{
    shd_spec spec = shd::SmallSpec("zero3", 4);
    std::vector<shd_estimate> e;
    for (uint32_t rounds : {2u, 3u, 4u, 100u}) {
        spec.accumulation = rounds;
        spec.global_batch = rounds * spec.micro_batch * 4;
        e.push_back(PlanFor(spec, shd::Nodes(2)).estimate);
    }
    const double one = e[1].step_s - e[0].step_s;
    EXPECT_GT(one, 0);
    EXPECT_NEAR(one, e[2].step_s - e[1].step_s, 1e-9 * one);
    EXPECT_NEAR(e[0].step_s + 98 * one, e[3].step_s, 1e-9 * e[3].step_s);
    EXPECT_EQ(e[1].dry_calls, e[3].dry_calls);
}

// What is reduced once a step, on the rank's thread, is part of what follows the micro-batches.
TEST(Estimate, LevelRunReducesOnce)
{
    shd_spec spec = shd::SmallSpec("ddp", 4);
    spec.accumulation = 8;
    spec.global_batch = 8 * spec.micro_batch * 4;
    const Planned each = PlanFor(spec, shd::Nodes(2));
    spec.determinism = SHD_DETERMINISM_RUN;
    const Planned once = PlanFor(spec, shd::Nodes(2));
    EXPECT_LT(once.plan.comm_step[SHD_COMM_REDUCE_SCATTER].bytes,
              each.plan.comm_step[SHD_COMM_REDUCE_SCATTER].bytes);
    EXPECT_LT(once.estimate.step_s, each.estimate.step_s);
    EXPECT_GT(once.estimate.optimizer_s, each.estimate.optimizer_s);
}

// ---- the schedule ----

TEST(Timeline, GathersGoOnUnderCompute)
{
    shd_model_config model = {};
    ASSERT_EQ(0, shd_model_preset("gpt-byte-10m", &model, nullptr));
    shd_spec spec = shd::LargeSpec(model, "zero3", 2, 256);
    spec.pipeline.prefetch = 1;
    spec.pipeline.overlap = 1;
    const shd_machine machine = shd::Nodes(2);
    shd_plan plan;
    shd_estimate estimate;
    shd_plan_schedule schedule;
    ASSERT_EQ(0, shd_plan_for(&spec, 1, &machine, &plan, &estimate, &schedule, nullptr));
    ASSERT_GT(schedule.n, 0u);
    std::vector<double> free_at(SHD_LANE_COUNT);
    int beside = 0;
    for (uint32_t i = 0; i < schedule.n; i++) {
        const shd_sim_event &e = schedule.events[i];
        EXPECT_EQ(schedule.instrs[e.instruction].lane, e.lane);
        EXPECT_GE(e.begin, free_at[e.lane]);
        free_at[e.lane] = e.end;
        for (uint32_t k = 0; k < schedule.n; k++) {
            const shd_sim_event &c = schedule.events[k];
            const shd_instr_kind kind = schedule.instrs[c.instruction].kind;
            beside += schedule.instrs[e.instruction].kind == SHD_INSTR_GATHER &&
                      (kind == SHD_INSTR_FORWARD || kind == SHD_INSTR_BACKWARD) &&
                      c.begin < e.end && e.begin < c.end;
        }
    }
    EXPECT_GE(beside, 6) << "gathers of six blocks under the computing of others";
    shd_plan_schedule_fini(&schedule);
}

} // namespace
