// A plan of a stated machine as people and as programs read it.
#include "client/plan_view.h"

#include <jansson.h>

#include <string>

#include "gtest/gtest.h"

namespace
{
char *text(const char *s)
{
    return const_cast<char *>(s);
}

// A plan of 16 ranks in nodes of 8, one of which is shown.
struct Plan {
    Shard__V1__PlanResponse plan = SHARD__V1__PLAN_RESPONSE__INIT;
    Shard__V1__JobSpec spec = SHARD__V1__JOB_SPEC__INIT;
    Shard__V1__Machine machine = SHARD__V1__MACHINE__INIT;
    Shard__V1__Bytes bytes = SHARD__V1__BYTES__INIT;
    Shard__V1__TagBytes tag = SHARD__V1__TAG_BYTES__INIT;
    Shard__V1__TagBytes *tags[1] = {&tag};
    Shard__V1__RankMemory memory = SHARD__V1__RANK_MEMORY__INIT;
    Shard__V1__RankMemory *memories[1] = {&memory};
    Shard__V1__CommStats comm = SHARD__V1__COMM_STATS__INIT;
    Shard__V1__CommStats *comms[1] = {&comm};
    Shard__V1__Estimate estimate = SHARD__V1__ESTIMATE__INIT;
    Shard__V1__Advice advice[2];
    Shard__V1__Advice *advices[2] = {&advice[0], &advice[1]};
    uint32_t degrees[4] = {8, 16, 16, 16}, group[4] = {8, 8, 8, 16};
    shc_plan_asked asked = {"hpz", &machine};

    Plan()
    {
        spec.model = text("/models/big");
        spec.strategy = text("hpz");
        spec.dtype = text("bf16");
        spec.reduce_dtype = text("fp32");
        spec.activation_checkpointing = text("full");
        spec.optimizer = text("adamw");
        spec.micro_batch = 2;
        spec.global_batch = 96;
        spec.seq_len = 4096;
        machine.ranks_per_node = 8;
        machine.device_memory = 80000000000;
        machine.flops = 4e14;
        bytes.planned = 3u << 20;
        tag.tag = text("params");
        tag.bytes = &bytes;
        memory.tier = text("device");
        memory.n_tags = 1;
        memory.tags = tags;
        memory.total = &bytes;
        comm.kind = text("all_gather");
        comm.planned_bytes_per_step = 8u << 20;
        comm.planned_between_nodes = 1u << 20;
        estimate.step_ms = 2000;
        estimate.compute_ms = 1500;
        estimate.exposed_comm_ms = 400;
        estimate.optimizer_ms = 100;
        estimate.tokens_per_s = 196608;
        estimate.flops_share = 0.4125;
        for (int i = 0; i < 2; i++) {
            shard__v1__advice__init(&advice[i]);
            advice[i].strategy = text(i ? "zero3" : "hybrid_shard");
            advice[i].flags =
                text(i ? "--strategy zero3" : "--strategy hybrid_shard --shard-group 8");
            advice[i].n_degrees = 4;
            advice[i].degrees = i ? degrees : group;
            advice[i].reshard_after_forward = text("yes");
            advice[i].activation_checkpointing = text("selective");
            advice[i].bytes = 5u << 20;
            advice[i].fits = 1;
            advice[i].comm_bytes = 7u << 20;
            advice[i].between_nodes = 2u << 20;
            advice[i].step_ms = 1900.5;
        }
        plan.spec = &spec;
        plan.parameters = 405853388800;
        plan.units = 128;
        plan.padding = 96;
        plan.n_degrees = 4;
        plan.degrees = degrees;
        plan.n_memory = 1;
        plan.memory = memories;
        plan.n_comm = 1;
        plan.comm = comms;
        plan.fits = 1;
        plan.verdict = text("fits: all of it");
        plan.available = 80000000000;
        plan.estimate = &estimate;
    }
    std::string Text()
    {
        const shc_term term = {};
        shc_buf out = {};
        shc_plan_render(&out, &term, &plan, &asked);
        std::string result = shc_buf_str(&out);
        shc_buf_fini(&out);
        return result;
    }
    json_t *Json()
    {
        shc_json json = {};
        shc_plan_json(&json, &plan, &asked);
        json_t *root = json_loads(shc_buf_str(&json.text), JSON_REJECT_DUPLICATES, nullptr);
        shc_json_fini(&json);
        EXPECT_NE(root, nullptr);
        return root;
    }
};

TEST(PlanView, Text)
{
    Plan p;
    EXPECT_EQ(p.Text(),
              "/models/big: 406G parameters in 128 units, 96 elements of padding\n"
              "hpz p,g,o 8,16,16 of 16 ranks in 2 nodes of 8; bf16, reduced in fp32; checkpointing "
              "full; adamw\n"
              "a step of 96 sequences of 4096 tokens, 3 micro-batches of 2 on a rank\n"
              "\n"
              "  memory  per rank (x16)  planned\n"
              "  device  params          3.0 MiB\n"
              "          total           3.0 MiB\n"
              "\n"
              "  sent by a rank  planned/step  between nodes\n"
              "  all_gather           8.0 MiB        1.0 MiB\n"
              "\n"
              "  a step would take            time   share\n"
              "  compute                    1.50 s   75.0%\n"
              "  waits for communication  400.0 ms   20.0%\n"
              "  norm, optimizer, update  100.0 ms    5.0%\n"
              "  total                      2.00 s  100.0%\n"
              "  197k tokens/s on all ranks, 41.2% of the stated FLOP rate\n"
              "\n"
              "fits: all of it\n");
}

TEST(PlanView, Advice)
{
    Plan p;
    p.plan.n_advice = 2;
    p.plan.advice = p.advices;
    std::string out = p.Text();
    EXPECT_NE(out.find("  what fits, cheapest first                checkpointing    bytes  "
                       "sent/step  between nodes    step\n"
                       "  --strategy hybrid_shard --shard-group 8  selective      5.0 MiB    "
                       "7.0 MiB        2.0 MiB  1.90 s\n"
                       "  --strategy zero3                         selective      5.0 MiB"),
              std::string::npos)
        << out;
    for (auto &a : p.advice)
        a.fits = 0, a.step_ms = 0;
    out = p.Text();
    EXPECT_NE(out.find("  what needs least  "), std::string::npos) << out;
    EXPECT_EQ(out.find("1.90 s"), std::string::npos) << "no time is known";
}

TEST(PlanView, NamesOfTheDaemonAreClean)
{
    Plan p;
    p.spec.model = p.plan.verdict = p.spec.strategy = text("\033[2J");
    p.advice[0].strategy = p.advice[0].flags = text("\033[2J");
    p.plan.n_advice = 1;
    p.plan.advice = p.advices;
    EXPECT_EQ(p.Text().find('\033'), std::string::npos);
}

TEST(PlanView, Json)
{
    Plan p;
    p.plan.n_advice = 2;
    p.plan.advice = p.advices;
    json_t *root = p.Json();
    EXPECT_TRUE(json_is_true(json_object_get(root, "fits")));
    const json_t *machine = json_object_get(root, "machine");
    EXPECT_EQ(json_integer_value(json_object_get(machine, "ranks_per_node")), 8);
    EXPECT_EQ(json_integer_value(json_object_get(machine, "device_memory")), 80000000000);
    EXPECT_EQ(json_number_value(json_object_get(machine, "flops")), 4e14);
    const json_t *estimate = json_object_get(root, "estimate");
    EXPECT_EQ(json_number_value(json_object_get(estimate, "step_ms")), 2000);
    EXPECT_EQ(json_number_value(json_object_get(estimate, "flops_share")), 0.4125);
    const json_t *comm = json_array_get(json_object_get(root, "comm"), 0);
    EXPECT_EQ(
        json_integer_value(json_object_get(json_object_get(comm, "between_nodes"), "planned")),
        1 << 20);
    const json_t *first = json_array_get(json_object_get(root, "advice"), 0);
    EXPECT_STREQ(json_string_value(json_object_get(first, "strategy")), "hybrid_shard");
    EXPECT_EQ(json_array_size(json_object_get(first, "degrees")), 4u);
    EXPECT_TRUE(json_is_true(json_object_get(first, "fits")));
    EXPECT_EQ(json_number_value(json_object_get(first, "step_ms")), 1900.5);
    json_decref(root);
}

TEST(PlanView, WhatIsNotKnownIsNull)
{
    Plan p;
    p.plan.estimate = nullptr;
    p.machine.device_memory = 0;
    json_t *root = p.Json();
    EXPECT_TRUE(json_is_null(json_object_get(root, "fits")));
    EXPECT_TRUE(json_is_null(json_object_get(json_object_get(root, "available"), "planned")));
    EXPECT_TRUE(json_is_null(json_object_get(root, "estimate")));
    EXPECT_EQ(json_array_size(json_object_get(root, "advice")), 0u);
    json_decref(root);
    p.asked.machine = nullptr;
    root = p.Json();
    EXPECT_TRUE(json_is_true(json_object_get(root, "fits")));
    EXPECT_TRUE(json_is_null(json_object_get(root, "machine")));
    json_decref(root);
}
} // namespace
