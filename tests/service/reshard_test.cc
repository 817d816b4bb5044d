// Reshard as a service: what is accepted, when it is carried out, on which ranks, with how much
// memory planned, and what a job is afterwards.
#include "tests/service/service.h"

#define STATE(name) SHARD__V1__JOB_STATE__JOB_STATE_##name

namespace
{

constexpr uint64_t kMiB = 1ull << 20;
constexpr uint64_t kStaging = 2 * kMiB;

struct Request {
    Shard__V1__ReshardRequest m = SHARD__V1__RESHARD_REQUEST__INIT;
    std::string job_text, strategy_text, determinism_text;
    explicit Request(const std::string &job) : job_text(job) {}
    Request &strategy(const std::string &s)
    {
        return strategy_text = s, *this;
    }
    Request &determinism(const std::string &s)
    {
        return determinism_text = s, *this;
    }
    Request &ranks(uint32_t n)
    {
        return m.ranks = n, *this;
    }
    Request &micro_batch(uint32_t n)
    {
        m.has_micro_batch_case = SHARD__V1__RESHARD_REQUEST__HAS_MICRO_BATCH_MICRO_BATCH;
        return m.micro_batch = n, *this;
    }
    const ProtobufCMessage *base()
    {
        m.job = &job_text[0];
        m.strategy = &strategy_text[0];
        m.determinism = &determinism_text[0];
        return &m.base;
    }
};

class Reshard : public Service
{
  protected:
    // Asks; the plan is made before this returns, or the call has failed.
    Call ask(Request request, const shd_identity *who = nullptr)
    {
        Call c = call("Reshard", request.base(), who);
        return c;
    }
    // The plan is made beside the loop: waits until the item is on the ranks.
    void begun(const std::string &name)
    {
        turn_until([&] { return fake_running(name.c_str()) == SHD_WORK_RESHARD; });
    }
    uint64_t planned(uint32_t rank)
    {
        return shd_jobs_planned(jobs)[rank];
    }
    std::string job_now(const std::string &job)
    {
        Call c = ref("GetJob", job);
        EXPECT_TRUE(c->ok()) << c->error;
        Unpacked<Shard__V1__Job> m(c->sent[0]);
        std::string text = m->spec->strategy;
        for (size_t i = 0; i < m->n_degrees; i++) {
            text += (i == 0 ? " " : ",") + std::to_string(m->degrees[i]);
        }
        text += " on";
        for (size_t i = 0; i < m->n_rank_ids; i++) {
            text += " " + std::to_string(m->rank_ids[i]);
        }
        EXPECT_EQ(m->spec->ranks, m->degrees[3]);
        EXPECT_EQ(m->n_rank_ids, m->degrees[3]);
        return text;
    }
    Spec small(const std::string &name)
    {
        Spec spec(name);
        spec.micro_batch(2);
        return spec;
    }
    // As it was in every way that shows.
    void unharmed(const std::string &id, const std::string &was, const std::vector<uint64_t> &plan)
    {
        EXPECT_EQ(job_now(id), was);
        for (uint32_t r = 0; r < kRanks; r++) {
            EXPECT_EQ(planned(r), plan[r]) << r;
        }
    }
    std::vector<uint64_t> plan_now()
    {
        return {planned(0), planned(1), planned(2), planned(3)};
    }
};

// 8 MiB of activations per two sequences of 1024 tokens.
uint64_t Needs(uint64_t p, uint64_t g, uint64_t o, uint64_t act)
{
    return (64 / p + 64 / g + 128 / o) * kMiB + act;
}

TEST_F(Reshard, HappensBetweenTwoSteps)
{
    start(true);
    Spec spec("j");
    spec.data(data).micro_batch(2);
    const std::string id = create_running(spec, true);
    const uint64_t act = planned(0) - Needs(2, 2, 2, 0);
    EXPECT_EQ(job_now(id), "zero3 2,2,2,2 on 0 1");
    turn_until([&] { return fake_running("j") == SHD_WORK_DATA_STEP; });
    Call c = ask(Request(id).strategy("ddp"));
    turn_until([&] { return planned(0) > Needs(2, 2, 2, act); });
    EXPECT_EQ(planned(0), Needs(2, 2, 2, act) + Needs(1, 1, 1, act) + kStaging);
    EXPECT_EQ(planned(2), 0u);
    EXPECT_FALSE(c->finished);
    EXPECT_EQ(fake_running("j"), SHD_WORK_DATA_STEP) << "the step is not cut off";
    finish("j");
    begun("j");
    EXPECT_EQ(step(id), 1u);
    EXPECT_EQ(job_now(id), "zero3 2,2,2,2 on 0 1") << "until it is done";
    finish("j");
    turn_until([&] { return c->finished; });
    ASSERT_TRUE(c->ok()) << c->error;
    Unpacked<Shard__V1__Job> job(c->sent[0]);
    EXPECT_STREQ(job->spec->strategy, "ddp");
    EXPECT_EQ(job->state, STATE(RUNNING));
    EXPECT_STREQ(job->reason, "");
    EXPECT_EQ(job_now(id), "ddp 1,1,1,2 on 0 1");
    EXPECT_EQ(planned(0), Needs(1, 1, 1, act));
    turn_until([&] { return fake_running("j") == SHD_WORK_DATA_STEP; });
    finish("j");
    turn_until([&] { return step(id) == 2; });
}

TEST_F(Reshard, WatchersSeeIt)
{
    start(true);
    const std::string id = create_running(small("j"), true);
    Call w = make_call();
    watch(w.get(), id, -1, true);
    Call c = ask(Request(id).strategy("zero1"));
    begun("j");
    finish("j");
    turn_until([&] { return c->finished && !w->sent.empty(); });
    ASSERT_EQ(w->sent.size(), 1u);
    Unpacked<Shard__V1__Event> e(w->sent[0]);
    ASSERT_EQ(e->kind_case, SHARD__V1__EVENT__KIND_STATE);
    EXPECT_EQ(e->state->state, STATE(RUNNING));
    EXPECT_NE(strstr(e->state->reason, "resharded from zero3 (2,2,2 of 2) to zero1 (1,1,2 of 2)"),
              nullptr)
        << e->state->reason;
    w->go();
}

// More ranks lie around the old ones, fewer among them; where least is planned.
TEST_F(Reshard, TakesRanksAroundOrAmongTheOldOnes)
{
    start(false);
    const std::string other = create_running(small("other").ranks(1), false); // on rank 0
    const std::string id = create_running(small("j").ranks(2), false);
    EXPECT_EQ(job_now(id), "zero3 2,2,2,2 on 1 2");
    const auto reshard = [&](Request r) {
        Call c = ask(r);
        turn_until([&] { return c->finished; });
        EXPECT_TRUE(c->ok()) << c->error;
        return job_now(id);
    };
    EXPECT_EQ(reshard(Request(id).ranks(1)), "ddp 1,1,1,1 on 1");
    EXPECT_EQ(reshard(Request(id).strategy("zero3").ranks(2)), "zero3 2,2,2,2 on 1 2");
    EXPECT_EQ(reshard(Request(id).ranks(4).micro_batch(1)), "zero3 4,4,4,4 on 0 1 2 3");
    EXPECT_EQ(reshard(Request(id).ranks(2).strategy("zero2")), "zero2 1,2,2,2 on 1 2");
    EXPECT_EQ(job_now(other), "ddp 1,1,1,1 on 0");
}

TEST_F(Reshard, WaitsForAllRanksItNeeds)
{
    start(true);
    const std::string wide = create_running(small("wide").ranks(2), true);
    const std::string busy = create_running(small("busy").data(data).ranks(2), true);
    EXPECT_EQ(job_now(wide), "zero3 2,2,2,2 on 0 1");
    EXPECT_EQ(job_now(busy), "zero3 2,2,2,2 on 2 3");
    turn_until([&] { return fake_running("busy") == SHD_WORK_DATA_STEP; });
    Call c = ask(Request(wide).ranks(4).micro_batch(1));
    turn_until(
        [&] { return planned(3) > planned(0) / 2 && planned(0) > Needs(2, 2, 2, 40 * kMiB); });
    turn();
    EXPECT_EQ(fake_running("wide"), -1) << "rank 2 is busy";
    finish("busy");
    begun("wide");
    EXPECT_EQ(fake_running("busy"), -1) << "and now rank 2 is the other's";
    finish("wide");
    turn_until([&] { return c->finished && fake_running("busy") >= 0; });
    EXPECT_TRUE(c->ok()) << c->error;
    EXPECT_EQ(job_now(wide), "zero3 4,4,4,4 on 0 1 2 3");
}

TEST_F(Reshard, IsRefusedWhileGradientsAreAccumulated)
{
    start(true);
    const std::string id = create_running(small("j"), true);
    Call one = forward_backward(id, 1);
    Call c = ask(Request(id).strategy("ddp"));
    EXPECT_EQ(c->code, SHD_ESTATE);
    EXPECT_NE(c->error.find("OptimStep"), std::string::npos) << c->error;
    finish("j");
    EXPECT_EQ(ask(Request(id).strategy("ddp"))->code, SHD_ESTATE);
    // With the OptimStep on its way it waits for that, and calls that come later for it.
    Call two = optim_step(id, 2);
    c = ask(Request(id).strategy("ddp"));
    EXPECT_FALSE(c->finished) << c->error;
    turn_until([&] { return planned(0) > Needs(1, 1, 1, 0); });
    Call three = train_step(id, 3);
    EXPECT_EQ(fake_running("j"), SHD_WORK_OPTIM_STEP);
    finish("j");
    EXPECT_TRUE(two->ok());
    begun("j");
    EXPECT_FALSE(three->finished);
    finish("j");
    turn_until([&] { return fake_running("j") == SHD_WORK_TRAIN_STEP; });
    EXPECT_TRUE(c->ok()) << c->error;
    finish("j");
    EXPECT_TRUE(three->ok()) << three->error;
    EXPECT_EQ(step(id), 2u);
}

TEST_F(Reshard, OfAPausedJobLeavesItPaused)
{
    start(false);
    const std::string id = create_running(small("j"), false);
    ref("PauseJob", id);
    Call c = ask(Request(id).strategy("zero2"));
    turn_until([&] { return c->finished; });
    EXPECT_TRUE(c->ok()) << c->error;
    EXPECT_EQ(state(id), STATE(PAUSED));
    EXPECT_EQ(job_now(id), "zero2 1,2,2,2 on 0 1");
    ref("ResumeJob", id);
    Call s = train_step(id, 1);
    turn_until([&] { return s->finished; });
    EXPECT_TRUE(s->ok()) << s->error;
}

TEST_F(Reshard, OfADoneJobServesItsWeights)
{
    start(false);
    const std::string id = create_running(small("j").data(data).steps(3), false);
    turn_until([&] { return state(id) == STATE(DONE); });
    Call c = ask(Request(id).ranks(1));
    turn_until([&] { return c->finished; });
    EXPECT_TRUE(c->ok()) << c->error;
    EXPECT_EQ(state(id), STATE(DONE));
    EXPECT_EQ(job_now(id), "ddp 1,1,1,1 on 0");
    EXPECT_EQ(planned(1), 0u);
    EXPECT_TRUE(ref("DeleteJob", id)->ok());
    EXPECT_EQ(planned(0), 0u);
}

TEST_F(Reshard, OfAJobWithoutStateIsRefused)
{
    start(true);
    Call created = create(small("j"));
    const std::string id = Unpacked<Shard__V1__Job>(created->sent[0])->id;
    Call c = ask(Request(id).strategy("ddp"));
    EXPECT_EQ(c->code, SHD_ESTATE) << "not initialised";
    EXPECT_NE(c->error.find("not initialised"), std::string::npos) << c->error;
    finish("j");
    turn_until([&] { return state(id) == STATE(RUNNING); });
    ref("CancelJob", id);
    c = ask(Request(id).strategy("ddp"));
    EXPECT_EQ(c->code, SHD_ESTATE);
    EXPECT_NE(c->error.find("cancelled"), std::string::npos) << c->error;
    EXPECT_EQ(ask(Request("absent").strategy("ddp"))->code, SHD_ENOTFOUND);
}

TEST_F(Reshard, WhatItAsksForIsChecked)
{
    start(false);
    const std::string id = create_running(small("j"), false); // a batch of 4
    const std::string was = job_now(id);
    const auto plan = plan_now();
    const auto refused = [&](Request r, int code, const std::string &word) {
        Call c = ask(r);
        turn_until([&] { return c->finished; });
        EXPECT_EQ(c->code, code) << c->error;
        EXPECT_NE(c->error.find(word), std::string::npos) << c->error;
        unharmed(id, was, plan);
    };
    refused(Request(id), SHD_EINVAL, "nothing to change");
    refused(Request(id).strategy("zero4"), SHD_EINVAL, "zero4");
    refused(Request(id).ranks(9), SHD_EINVAL, "--ranks 9");
    refused(Request(id).ranks(4), SHD_EINVAL,
            "would do: --ranks 2, --ranks 1, --ranks 4 --micro-batch 1");
    refused(Request(id).ranks(3), SHD_EINVAL, "would do: --ranks 2, --ranks 1");
    refused(Request(id).micro_batch(0), SHD_EINVAL, "--micro-batch 0");
    refused(Request(id).micro_batch(UINT32_MAX), SHD_EINVAL, "--micro-batch 4294967295");
    refused(Request(id).determinism("perhaps"), SHD_EINVAL, "perhaps");
    uint32_t degrees[] = {2, 1, 2};
    Request odd(id);
    odd.m.shard_degrees = degrees;
    odd.m.n_shard_degrees = 3;
    refused(odd, SHD_EINVAL, "2");
}

TEST_F(Reshard, WorldNeedsAPowerOfTwoOfRanks)
{
    start(false);
    Spec spec("j");
    spec.micro_batch(1).ranks(4);
    spec.m.determinism = spec.text("world");
    spec.m.has_global_batch_case = SHARD__V1__JOB_SPEC__HAS_GLOBAL_BATCH_GLOBAL_BATCH;
    spec.m.global_batch = 12;
    const std::string id = create_running(spec, false);
    Call c = ask(Request(id).ranks(3));
    turn_until([&] { return c->finished; });
    EXPECT_EQ(c->code, SHD_EINVAL);
    EXPECT_NE(c->error.find("--determinism strategy"), std::string::npos) << c->error;
    c = ask(Request(id).ranks(2));
    turn_until([&] { return c->finished; });
    ASSERT_TRUE(c->ok()) << c->error;
    EXPECT_EQ(Unpacked<Shard__V1__Job>(c->sent[0])->spec->reduction_width, 4u) << "it stays";
    c = ask(Request(id).ranks(3).determinism("strategy"));
    turn_until([&] { return c->finished; });
    ASSERT_TRUE(c->ok()) << c->error;
    Unpacked<Shard__V1__Job> job(c->sent[0]);
    EXPECT_STREQ(job->spec->determinism, "strategy");
    EXPECT_EQ(job->spec->reduction_width, 3u);
}

TEST_F(Reshard, ToWhatIsInUseIsDoneAlready)
{
    start(true);
    const std::string id = create_running(small("j"), true);
    Call c = ask(Request(id).strategy("zero3").ranks(2));
    turn_until([&] { return c->finished; });
    EXPECT_TRUE(c->ok()) << c->error;
    EXPECT_EQ(fake_running("j"), -1);
    Call next = ask(Request(id).strategy("full_shard"));
    EXPECT_FALSE(next->finished) << "none is under way";
    turn_until([&] { return next->finished; });
    EXPECT_TRUE(next->ok()) << next->error;
}

TEST_F(Reshard, OneAtATime)
{
    start(true);
    const std::string id = create_running(small("j"), true);
    Call c = ask(Request(id).strategy("ddp"));
    EXPECT_EQ(ask(Request(id).strategy("zero1"))->code, SHD_ESTATE);
    begun("j");
    EXPECT_EQ(ask(Request(id).strategy("zero1"))->code, SHD_ESTATE);
    finish("j");
    turn_until([&] { return c->finished; });
    Call next = ask(Request(id).strategy("zero1"));
    begun("j");
    finish("j");
    turn_until([&] { return next->finished; });
    EXPECT_TRUE(next->ok()) << next->error;
    EXPECT_EQ(job_now(id), "zero1 1,1,2,2 on 0 1");
}

TEST_F(Reshard, WhatDoesNotFitBesideTheOldIsRefusedWithTheNumbers)
{
    limits.memory_per_rank = 300 * kMiB;
    start(false);
    const std::string id = create_running(small("j"), false);
    const std::string was = job_now(id);
    const auto plan = plan_now();
    Call c = ask(Request(id).strategy("ddp"));
    turn_until([&] { return c->finished; });
    EXPECT_EQ(c->code, SHD_ENOMEM) << "what is new would fit alone";
    for (const std::string &figure :
         {std::to_string(limits.memory_per_rank - plan[0]), std::to_string(limits.memory_per_rank),
          std::to_string(kStaging), std::to_string(plan[0] - Needs(2, 2, 2, 0) + 256 * kMiB)}) {
        EXPECT_NE(c->error.find(figure), std::string::npos) << figure << ": " << c->error;
    }
    unharmed(id, was, plan);
    Call s = train_step(id, 1);
    turn_until([&] { return s->finished; });
    EXPECT_TRUE(s->ok()) << s->error;
}

// The ranks find that they cannot: rc and message are what a trainer reports of it.
TEST_F(Reshard, AFailureLeavesTheJobAsItWas)
{
    start(
        false,
        [](const char *, shd_work *work, void *) {
            if (work->kind == SHD_WORK_RESHARD) {
                work->rc = SHD_ENOMEM;
                snprintf(work->err.message, sizeof(work->err.message), "mmap said no");
                work->err.code = SHD_ENOMEM;
            }
        },
        nullptr);
    const std::string id = create_running(small("j"), false);
    const std::string was = job_now(id);
    const auto plan = plan_now();
    Call c = ask(Request(id).ranks(4).micro_batch(1));
    turn_until([&] { return c->finished; });
    EXPECT_EQ(c->code, SHD_ENOMEM);
    EXPECT_EQ(c->error, "mmap said no");
    EXPECT_EQ(state(id), STATE(RUNNING));
    unharmed(id, was, plan);
    Call s = train_step(id, 1);
    turn_until([&] { return s->finished; });
    EXPECT_TRUE(s->ok()) << s->error;
}

TEST_F(Reshard, GoesOnWithoutItsClient)
{
    start(true);
    const std::string id = create_running(small("j"), true);
    Call c = ask(Request(id).strategy("ddp"));
    c->go();
    begun("j");
    finish("j");
    turn_until([&] { return job_now(id) == "ddp 1,1,1,2 on 0 1"; });
    EXPECT_TRUE(c->sent.empty());
    // Asked again it is there.
    Call again = ask(Request(id).strategy("ddp"));
    turn_until([&] { return again->finished; });
    EXPECT_TRUE(again->ok()) << again->error;
}

TEST_F(Reshard, EndsWithTheJob)
{
    start(true);
    std::string id = create_running(small("j").data(data), true);
    // While it waits.
    turn_until([&] { return fake_running("j") == SHD_WORK_DATA_STEP; });
    Call c = ask(Request(id).strategy("ddp"));
    turn_until([&] { return planned(0) > Needs(1, 1, 1, 0); });
    Call cancel = ref_async("CancelJob", id);
    turn_until([&] { return cancel->finished; });
    EXPECT_TRUE(c->finished);
    EXPECT_EQ(c->code, SHD_ECANCELLED) << c->error;
    EXPECT_EQ(planned(0), 0u);
    ref("DeleteJob", id);
    // While it runs.
    id = create_running(small("j"), true);
    c = ask(Request(id).ranks(4).micro_batch(1));
    begun("j");
    cancel = ref_async("CancelJob", id);
    turn_until([&] { return cancel->finished; });
    EXPECT_EQ(c->code, SHD_ECANCELLED) << c->error;
    for (uint32_t r = 0; r < kRanks; r++) {
        EXPECT_EQ(planned(r), 0u) << r;
    }
    ref("DeleteJob", id);
    // While its plan is made.
    id = create_running(small("j").data(data).steps(1), true);
    finish("j");
    turn_until([&] { return state(id) == STATE(DONE); });
    c = ask(Request(id).strategy("ddp"));
    Call deleted = ref_async("DeleteJob", id);
    turn_until([&] { return c->finished && deleted->finished; });
    EXPECT_TRUE(deleted->ok());
    EXPECT_EQ(c->code, SHD_ECANCELLED) << c->error;
}

TEST_F(Reshard, TheDaemonStops)
{
    start(true);
    const std::string id = create_running(small("j").data(data), true);
    turn_until([&] { return fake_running("j") == SHD_WORK_DATA_STEP; });
    Call waits = ask(Request(id).strategy("ddp"));
    turn_until([&] { return planned(0) > Needs(1, 1, 1, 0); });
    stop();
    EXPECT_EQ(waits->code, SHD_EUNAVAILABLE) << waits->error;
}

TEST_F(Reshard, BelongsToOwnerAndAdmins)
{
    start(false);
    shd_identity owner{50001, 50001, 1}, admin{50002, 50002, 1}, stranger{50003, 50003, 1},
        mate{50004, 50001, 1};
    uid_t admins[] = {50002};
    rules.admin_uids = admins;
    rules.n_admin_uids = 1;
    rules.share_with_group = 1;
    Call created = create(small("j"), "", &owner);
    const std::string id = Unpacked<Shard__V1__Job>(created->sent[0])->id;
    turn_until([&] {
        Call c = ref("GetJob", id, &owner);
        return Unpacked<Shard__V1__Job>(c->sent[0])->state == STATE(RUNNING);
    });
    EXPECT_EQ(ask(Request(id).strategy("ddp"), &stranger)->code, SHD_ENOTFOUND);
    EXPECT_EQ(ask(Request(id).strategy("ddp"), &mate)->code, SHD_EPERM);
    for (const auto &[who, strategy] :
         {std::pair<shd_identity *, const char *>{&owner, "ddp"}, {&admin, "zero1"}}) {
        Call c = ask(Request(id).strategy(strategy), who);
        turn_until([&] { return c->finished; });
        EXPECT_TRUE(c->ok()) << c->error;
        EXPECT_STREQ(Unpacked<Shard__V1__Job>(c->sent[0])->spec->strategy, strategy);
    }
    rules.n_admin_uids = 0;
}

} // namespace
