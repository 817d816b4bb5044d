// Plan: of this daemon, of stated machines, and advice.
#include "tests/service/service.h"

class Plans : public Service
{
  protected:
    /* on NULL: this daemon. */
    Call start_plan(const Spec &spec, Shard__V1__Machine *on = nullptr, bool advise = false)
    {
        Shard__V1__JobSpec copy = spec.m;
        Shard__V1__PlanRequest q = SHARD__V1__PLAN_REQUEST__INIT;
        q.spec = &copy;
        q.machine = on;
        q.advise = advise;
        return call("Plan", &q.base);
    }
    Call plan(const Spec &spec, Shard__V1__Machine *on = nullptr, bool advise = false)
    {
        Call c = start_plan(spec, on, advise);
        turn_until([&] { return c->finished; });
        return c;
    }
    std::string verdict_of(const Spec &spec)
    {
        Call c = plan(spec);
        EXPECT_TRUE(c->ok()) << c->error;
        return c->ok() ? Unpacked<Shard__V1__PlanResponse>(c->sent[0])->verdict : "";
    }
    static Spec &global_batch(Spec &spec, uint32_t n)
    {
        spec.m.has_global_batch_case = SHARD__V1__JOB_SPEC__HAS_GLOBAL_BATCH_GLOBAL_BATCH;
        return spec.m.global_batch = n, spec;
    }
    Shard__V1__Machine machine = SHARD__V1__MACHINE__INIT;
};

TEST_F(Plans, AreMadeWithoutFilesOrMemory)
{
    start(false);
    Call c = plan(Spec("x").strategy("zero3").ranks(4).data("/nowhere/at/all"));
    ASSERT_TRUE(c->ok()) << c->error;
    Unpacked<Shard__V1__PlanResponse> p(c->sent[0]);
    EXPECT_TRUE(p->fits);
    EXPECT_EQ(p->n_memory, 4u);
    EXPECT_EQ(p->memory[0]->total->planned, (64ull + 8) << 20);
    EXPECT_EQ(p->memory[0]->total->now, 0u);
    EXPECT_EQ(p->available, 512ull << 20);
    EXPECT_STREQ(p->spec->strategy, "zero3");
    EXPECT_EQ(p->spec->micro_batch, 8u);
    EXPECT_NE(strstr(p->verdict, "fits: needs 75497472 bytes"), nullptr) << p->verdict;
    EXPECT_EQ(fake_alive(), 0u);
}

TEST_F(Plans, ThatDoNotFitAreAnswersToo)
{
    limits.memory_per_rank = 100ull << 20;
    start(false);
    Call c = plan(Spec("x").strategy("ddp").ranks(4));
    ASSERT_TRUE(c->ok()) << c->error;
    Unpacked<Shard__V1__PlanResponse> p(c->sent[0]);
    EXPECT_FALSE(p->fits);
    EXPECT_NE(strstr(p->verdict, "does not fit: needs"), nullptr) << p->verdict;
    EXPECT_NE(strstr(p->verdict, "--strategy zero3"), nullptr) << p->verdict;
    EXPECT_EQ(p->memory[0]->total->planned, (256ull + 8) << 20);
    EXPECT_EQ(plan(Spec("x").ranks(5))->code, SHD_EINVAL);
}

TEST_F(Plans, OfAStatedMachineHaveItsRanksAndMemory)
{
    start(false);
    machine.ranks_per_node = 8;
    Call c = plan(Spec("x").strategy("zero3").ranks(16384), &machine);
    ASSERT_TRUE(c->ok()) << c->error;
    Unpacked<Shard__V1__PlanResponse> p(c->sent[0]);
    ASSERT_EQ(p->n_memory, 1u) << "one rank stands for all";
    EXPECT_STREQ(p->memory[0]->tier, "device");
    EXPECT_EQ(p->degrees[3], 16384u);
    EXPECT_TRUE(p->fits);
    EXPECT_EQ(p->available, 0u);
    EXPECT_NE(strstr(p->verdict, "give --device-memory"), nullptr) << p->verdict;
    EXPECT_EQ(p->estimate, nullptr);
    EXPECT_EQ(p->n_advice, 0u);

    machine.device_memory = 1 << 20;
    Call tight = plan(Spec("x").strategy("zero3").ranks(16384), &machine);
    ASSERT_TRUE(tight->ok()) << tight->error;
    Unpacked<Shard__V1__PlanResponse> no(tight->sent[0]);
    EXPECT_FALSE(no->fits);
    EXPECT_EQ(no->available, 1u << 20);
    EXPECT_NE(strstr(no->verdict, "does not fit: needs"), nullptr) << no->verdict;
}

TEST_F(Plans, RanksOfADaemonAreItsOwn)
{
    start(false);
    EXPECT_EQ(plan(Spec("x").ranks(5), nullptr, true)->code, SHD_EINVAL);
    EXPECT_TRUE(plan(Spec("x").ranks(5), &machine)->ok());
    EXPECT_EQ(plan(Spec("x").ranks(16385), &machine)->code, SHD_EINVAL);
    machine.ranks_per_node = 3;
    Call c = plan(Spec("x").ranks(4), &machine);
    EXPECT_EQ(c->code, SHD_EINVAL);
    EXPECT_NE(c->error.find("--ranks-per-node 3"), std::string::npos) << c->error;
}

TEST_F(Plans, EstimatesComeWithRates)
{
    start(false);
    machine.flops = 1e12;
    machine.node_bandwidth = 1e9;
    Call c = plan(Spec("x").ranks(4), &machine);
    ASSERT_TRUE(c->ok()) << c->error;
    Unpacked<Shard__V1__PlanResponse> p(c->sent[0]);
    ASSERT_NE(p->estimate, nullptr);
    EXPECT_EQ(p->estimate->step_ms, 1000);
}

/* The fake's states: 256 MiB of which zero3 on 4 ranks leaves 64, and 8 MiB of activations. */
TEST_F(Plans, AdviceIsWhatFits)
{
    limits.memory_per_rank = 100ull << 20;
    start(false);
    Call c = plan(Spec("x").strategy("ddp").ranks(4), nullptr, true);
    ASSERT_TRUE(c->ok()) << c->error;
    Unpacked<Shard__V1__PlanResponse> p(c->sent[0]);
    EXPECT_FALSE(p->fits);
    EXPECT_EQ(p->n_memory, 4u);
    ASSERT_GT(p->n_advice, 0u);
    for (size_t i = 0; i < p->n_advice; i++) {
        EXPECT_TRUE(p->advice[i]->fits);
        EXPECT_LE(p->advice[i]->bytes, 100ull << 20);
        EXPECT_EQ(p->advice[i]->n_degrees, 4u);
        EXPECT_STREQ(p->advice[i]->activation_checkpointing, "none");
    }
    EXPECT_NE(strstr(p->verdict, "would fit: --strategy"), nullptr) << p->verdict;
}

TEST_F(Plans, SayWhatARefusalSays)
{
    limits.memory_per_rank = 100ull << 20;
    start(false);
    for (const char *strategy : {"ddp", "zero3"}) {
        Spec spec("x");
        spec.strategy(strategy).ranks(strategy[0] == 'd' ? 4 : 2);
        Call refused = create(spec), one = plan(spec), advised = plan(spec, nullptr, true);
        ASSERT_EQ(refused->code, SHD_ENOMEM) << refused->error;
        ASSERT_TRUE(one->ok() && advised->ok());
        EXPECT_EQ(refused->error, (Unpacked<Shard__V1__PlanResponse>(one->sent[0])->verdict));
        EXPECT_EQ(refused->error, (Unpacked<Shard__V1__PlanResponse>(advised->sent[0])->verdict));
    }
}

TEST_F(Plans, ThatNothingMakesFitSaySo)
{
    limits.memory_per_rank = 16ull << 20;
    start(false);
    Call here = plan(Spec("x").strategy("ddp").ranks(4), nullptr, true);
    ASSERT_TRUE(here->ok()) << here->error;
    Unpacked<Shard__V1__PlanResponse> p(here->sent[0]);
    EXPECT_NE(strstr(p->verdict, "(--strategy zero3"), nullptr) << p->verdict;
    EXPECT_NE(strstr(p->verdict, "needs 72.00 MiB): take a smaller model"), nullptr) << p->verdict;
    EXPECT_NE(strstr(p->verdict, "memory_per_rank"), nullptr) << p->verdict;
    machine.device_memory = 16 << 20;
    Call there = plan(Spec("x").strategy("ddp").ranks(4), &machine);
    ASSERT_TRUE(there->ok()) << there->error;
    Unpacked<Shard__V1__PlanResponse> q(there->sent[0]);
    EXPECT_NE(strstr(q->verdict, "needs 72.00 MiB): take more ranks"), nullptr) << q->verdict;
    EXPECT_EQ(strstr(q->verdict, "memory_per_rank"), nullptr) << q->verdict;
}

TEST_F(Plans, WhatNeedsNoLessIsNotNamed)
{
    limits.memory_per_rank = 16ull << 20;
    start(false);
    Spec spec("x");
    spec.ranks(4).m.activation_checkpointing = spec.text("full");
    const std::string verdict = verdict_of(spec);
    EXPECT_NE(verdict.find("sequence length makes it fit: take a smaller"), std::string::npos)
        << "without checkpointing it needs as much: " << verdict;
}

/* 128 MiB of states on 2 ranks, 64 on 4; 1 MiB of activations a sequence. */
TEST_F(Plans, MoreRanksAndASmallerMicroBatchAreNamedTogether)
{
    limits.memory_per_rank = 66ull << 20;
    start(false);
    Spec spec("x");
    const std::string verdict = verdict_of(spec.ranks(2).micro_batch(8));
    EXPECT_NE(verdict.find("would fit: --ranks 4 --micro-batch 2 --global-batch 16 (66.00 MiB)"),
              std::string::npos)
        << verdict;
    EXPECT_TRUE(create(global_batch(spec.ranks(4).micro_batch(2), 16))->ok());
}

TEST_F(Plans, MoreRanksAndShorterSequencesAreNamedTogether)
{
    limits.memory_per_rank = 66ull << 20;
    start(false);
    Spec spec("x");
    spec.ranks(2).micro_batch(8).m.model = spec.text("gpt2"); /* of 1024 tokens */
    const std::string verdict = verdict_of(spec);
    EXPECT_NE(verdict.find("would fit: --ranks 4 --activation-checkpointing full --micro-batch 1 "
                           "--global-batch 16 --seq-len 512 (66.00 MiB)"),
              std::string::npos)
        << verdict;
}

TEST_F(Plans, ASmallerMicroBatchKeepsTheGlobalBatch)
{
    limits.memory_per_rank = 80ull << 20;
    start(false);
    Spec spec("x");
    spec.ranks(4).micro_batch(64);
    std::string verdict = verdict_of(spec);
    EXPECT_NE(verdict.find("would fit: --micro-batch 16 --global-batch 256 (80.00 MiB)"),
              std::string::npos)
        << verdict;
    verdict = verdict_of(global_batch(spec, 512));
    EXPECT_NE(verdict.find("would fit: --micro-batch 16 (80.00 MiB)"), std::string::npos)
        << "it was given: " << verdict;
}

TEST_F(Plans, WhatAProposalLeavesOutIsNamed)
{
    limits.memory_per_rank = 100ull << 20;
    start(false);
    uint32_t degrees[] = {1, 1, 2};
    Spec custom("x"), grouped("x"), kept("x"), whole("x"), wide("x");
    custom.strategy("").ranks(2).m.shard_degrees = degrees;
    custom.m.n_shard_degrees = 3;
    for (Spec *spec : {&grouped, &kept}) {
        spec->strategy("hybrid_shard").ranks(4);
        spec->m.has_shard_group_case = SHARD__V1__JOB_SPEC__HAS_SHARD_GROUP_SHARD_GROUP;
        spec->m.shard_group = 2;
    }
    for (Spec *spec : {&kept, &whole}) {
        spec->m.reshard_after_forward = spec->text("no");
    }
    wide.m.has_reduction_width_case = SHARD__V1__JOB_SPEC__HAS_REDUCTION_WIDTH_REDUCTION_WIDTH;
    wide.m.reduction_width = 2;
    const struct {
        const Spec &spec;
        const char *proposal;
    } all[] = {
        {custom, "--strategy zero3 --ranks 3 without --shard-degrees (94.00 MiB)"},
        {grouped, "--strategy zero3 without --shard-group (72.00 MiB)"},
        {kept, "--strategy zero3 without --shard-group and --reshard-after-forward (72.00 MiB)"},
        {whole, "--strategy zero3 --ranks 3 without --reshard-after-forward (94.00 MiB)"},
        {wide, "--ranks 3 without --reduction-width (94.00 MiB)"},
    };
    for (const auto &one : all) {
        const std::string verdict = verdict_of(one.spec);
        EXPECT_NE(verdict.find(std::string("would fit: ") + one.proposal), std::string::npos)
            << one.proposal << ": " << verdict;
    }
}

TEST_F(Plans, AUserMakesFewAtOneTime)
{
    start(false);
    std::vector<Call> calls;
    for (int i = 0; i < 6; i++) {
        calls.push_back(start_plan(Spec("x").ranks(4), &machine));
    }
    turn_until([&] {
        return std::all_of(calls.begin(), calls.end(), [](Call &c) { return c->finished; });
    });
    int ok = 0;
    for (Call &c : calls) {
        ok += c->ok();
        EXPECT_TRUE(c->ok() || c->code == SHD_EFULL) << c->error;
    }
    EXPECT_EQ(ok, 4);
    EXPECT_TRUE(plan(Spec("x").ranks(4), &machine)->ok());
}
