// Status and WatchStatus: what is shown is what is.
#include "tests/service/service.h"

#define STATE(name) SHARD__V1__JOB_STATE__JOB_STATE_##name

class Status : public Service
{
  protected:
    Call get(const shd_identity *who = nullptr)
    {
        Shard__V1__StatusRequest q = SHARD__V1__STATUS_REQUEST__INIT;
        return call("Status", &q.base, who);
    }
};

TEST_F(Status, ShowsRanksJobsAndBytes)
{
    start(false);
    const std::string id = create_running(Spec("s").strategy("zero2").ranks(2), false);
    Call w = make_call();
    watch(w.get(), id, 0, true);
    Call t = train_step(id, 1);
    turn_until([&] { return t->finished; });
    Call c = get();
    ASSERT_TRUE(c->ok());
    Unpacked<Shard__V1__StatusResponse> s(c->sent[0]);
    EXPECT_STREQ(s->version, "1.2.3");
    EXPECT_EQ(s->pid, (uint32_t)getpid());
    EXPECT_GT(s->resident, 1u << 20);
    EXPECT_EQ(s->connections, 7u);
    EXPECT_STREQ(s->socket, "/run/test.sock");
    ASSERT_EQ(s->n_ranks, kRanks);
    EXPECT_STREQ(s->ranks[0]->device, "null");
    EXPECT_EQ(s->ranks[0]->budget, 512ull << 20);
    ASSERT_EQ(s->n_jobs, 1u);
    const Shard__V1__JobStatus *j = s->jobs[0];
    EXPECT_STREQ(j->strategy, "zero2");
    EXPECT_STREQ(j->param_dtype, "fp32");
    EXPECT_STREQ(j->determinism, "strategy");
    EXPECT_EQ(j->reduction_width, 2u);
    EXPECT_EQ(j->watchers, 1u);
    EXPECT_EQ(j->accumulation, 1u);
    ASSERT_EQ(j->n_memory, 2u);
    const Shard__V1__RankMemory *m = j->memory[1];
    EXPECT_EQ(m->rank, 1u);
    ASSERT_EQ(m->n_tags, (size_t)SHD_TAG_COUNT);
    EXPECT_STREQ(m->tags[0]->tag, "params");
    EXPECT_EQ(m->tags[0]->bytes->planned, 64ull << 20);
    EXPECT_EQ(m->tags[0]->bytes->now, 64ull << 20);
    EXPECT_EQ(m->tags[1]->bytes->planned, 32ull << 20);
    EXPECT_EQ(m->total->planned, m->total->peak);
    EXPECT_EQ(s->ranks[0]->planned, m->reserved);
    EXPECT_EQ(s->ranks[2]->planned, 0u);
    ASSERT_EQ(j->n_comm, (size_t)SHD_COMM_KIND_COUNT);
    EXPECT_STREQ(j->comm[0]->kind, "all_gather");
    EXPECT_EQ(j->comm[0]->bytes, 1000u);
    EXPECT_EQ(j->comm[0]->last_step_bytes, j->comm[0]->planned_bytes_per_step);
    w->go();
}

TEST_F(Status, MomentsThatAreNotKeptAreNotShown)
{
    start(false);
    Spec with("with"), without("without");
    with.m.optimizer = with.text("sgd");
    without.m.optimizer = without.text("sgd");
    without.m.has_momentum_case = SHARD__V1__JOB_SPEC__HAS_MOMENTUM_MOMENTUM;
    without.m.momentum = 0;
    create_running(with, false);
    create_running(without, false);
    Call c = get();
    Unpacked<Shard__V1__StatusResponse> s(c->sent[0]);
    ASSERT_EQ(s->n_jobs, 2u);
    EXPECT_STREQ(s->jobs[0]->moment_dtype, "fp32");
    EXPECT_STREQ(s->jobs[1]->moment_dtype, "none");
}

TEST_F(Status, PeaksStayWhenTheMemoryIsFreed)
{
    start(false);
    const std::string id = create_running(Spec("s"), false);
    ref("CancelJob", id);
    Call c = get();
    Unpacked<Shard__V1__StatusResponse> s(c->sent[0]);
    EXPECT_EQ(s->ranks[0]->planned, 0u);
    const Shard__V1__RankMemory *m = s->jobs[0]->memory[0];
    EXPECT_EQ(m->total->now, 0u);
    EXPECT_EQ(m->total->peak, m->total->planned);
    EXPECT_EQ(m->tags[0]->bytes->now, 0u);
    EXPECT_GT(m->tags[0]->bytes->peak, 0u);
    EXPECT_EQ(m->reserved, 0u);
}

TEST_F(Status, OthersJobsAreNotShown)
{
    start(false);
    create_running(Spec("s"), false);
    shd_identity other{50001, 50001, 1};
    Call c = get(&other);
    Unpacked<Shard__V1__StatusResponse> s(c->sent[0]);
    EXPECT_EQ(s->n_jobs, 0u);
    EXPECT_GT(s->ranks[0]->planned, 0u) << "that the memory is taken is no secret";
}

TEST_F(Status, WatchStatusReportsUntilTheClientLeaves)
{
    start(false);
    Shard__V1__WatchStatusRequest q = SHARD__V1__WATCH_STATUS_REQUEST__INIT;
    q.interval_ms = 50;
    EXPECT_EQ(call("WatchStatus", &q.base)->code, SHD_EINVAL);
    q.interval_ms = 100;
    Call c = call("WatchStatus", &q.base);
    EXPECT_EQ(c->sent.size(), 1u) << "the first report comes at once";
    turn_until([&] { return c->sent.size() >= 3; });
    c->go();
}

TEST_F(Status, OneUserWatchesTheStatusOnlySoOften)
{
    start(false);
    Shard__V1__WatchStatusRequest q = SHARD__V1__WATCH_STATUS_REQUEST__INIT;
    std::vector<Call> calls;
    while (calls.empty() || !calls.back()->finished) {
        ASSERT_LT(calls.size(), 1000u);
        calls.push_back(call("WatchStatus", &q.base));
    }
    EXPECT_EQ(calls.back()->code, SHD_EFULL) << calls.back()->error;
    const shd_identity other{me.uid + 1, me.gid + 1, 1};
    calls.push_back(call("WatchStatus", &q.base, &other));
    EXPECT_FALSE(calls.back()->finished) << calls.back()->error;
    calls[3]->go(); // makes room
    calls.push_back(call("WatchStatus", &q.base));
    EXPECT_FALSE(calls.back()->finished) << calls.back()->error;
    for (const Call &c : calls) {
        if (!c->finished && !c->gone) {
            c->go();
        }
    }
}
