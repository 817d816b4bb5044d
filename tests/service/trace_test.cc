// Trace: whole steps, of all ranks, at any reader's pace.
#include "tests/service/service.h"

#define STATE(name) SHARD__V1__JOB_STATE__JOB_STATE_##name

class Trace : public Service
{
  protected:
    void trace(shd_call *c, const std::string &job, uint32_t steps)
    {
        Shard__V1__TraceRequest q = SHARD__V1__TRACE_REQUEST__INIT;
        q.job = const_cast<char *>(job.c_str());
        q.steps = steps;
        dispatch(c, "Trace", &q.base);
    }
    // The steps of all events of a rank, in order.
    static std::vector<uint64_t> steps(const shd_call *c, uint32_t rank)
    {
        std::vector<uint64_t> out;
        for (const Packed &p : c->sent) {
            Unpacked<Shard__V1__TraceResponse> m(p);
            for (size_t i = 0; i < m->n_events; i++) {
                EXPECT_EQ(m->events[i]->step, m->step);
                EXPECT_STREQ(m->events[i]->name, "optimizer");
                EXPECT_STREQ(m->events[i]->lane, "optimizer");
                EXPECT_GE(m->events[i]->end_ns, m->events[i]->begin_ns);
                if (m->events[i]->rank == rank) {
                    out.push_back(m->events[i]->step);
                }
            }
        }
        return out;
    }
};

TEST_F(Trace, TheNextStepsOfEveryRankAndThenTheEnd)
{
    start(true);
    const std::string id = create_running(Spec("t").data(data).ranks(2), true);
    finish("t");
    Call c = make_call();
    trace(c.get(), id, 3);
    // The step that is under way began before.
    for (int i = 0; i < 3; i++) {
        finish("t");
        EXPECT_FALSE(c->finished);
    }
    finish("t");
    ASSERT_TRUE(c->ok()) << c->error;
    EXPECT_EQ(steps(c.get(), 0), (std::vector<uint64_t>{3, 4, 5}));
    EXPECT_EQ(steps(c.get(), 1), (std::vector<uint64_t>{3, 4, 5}));
    finish("t");
}

TEST_F(Trace, ASlowReaderGetsEverythingLater)
{
    start(true);
    const std::string id = create_running(Spec("t").data(data), true);
    Call c = make_call();
    c->read(0);
    trace(c.get(), id, 2);
    for (int i = 0; i < 5; i++) {
        finish("t");
    }
    EXPECT_TRUE(c->sent.empty());
    EXPECT_FALSE(c->finished);
    c->read(1);
    EXPECT_EQ(c->sent.size(), 1u);
    c->read(10);
    ASSERT_TRUE(c->ok()) << c->error;
    EXPECT_EQ(steps(c.get(), 0), (std::vector<uint64_t>{2, 3}));
}

TEST_F(Trace, AJobThatEndsBeforeSaysSo)
{
    start(true);
    const std::string id = create_running(Spec("t").data(data).steps(3), true);
    Call c = make_call(), enough = make_call(), gone = make_call();
    trace(c.get(), id, 10);
    trace(enough.get(), id, 2);
    trace(gone.get(), id, 2);
    gone->go();
    for (int i = 0; i < 3; i++) {
        finish("t");
    }
    EXPECT_EQ(state(id), STATE(DONE));
    EXPECT_TRUE(enough->ok()) << enough->error;
    EXPECT_TRUE(c->finished);
    EXPECT_EQ(c->code, SHD_ESTATE);
    EXPECT_NE(c->error.find("8 of the steps"), std::string::npos) << c->error;
    EXPECT_EQ(steps(c.get(), 0), (std::vector<uint64_t>{2, 3}));
    Call late = make_call();
    trace(late.get(), id, 1);
    EXPECT_EQ(late->code, SHD_ESTATE);
}

TEST_F(Trace, ASlowReaderOutlivesTheJob)
{
    start(true);
    const std::string id = create_running(Spec("t").data(data).steps(3), true);
    Call c = make_call(), gone = make_call();
    for (Call *call : {&c, &gone}) {
        (*call)->read(0);
        trace(call->get(), id, 2);
    }
    for (int i = 0; i < 3; i++) {
        finish("t");
    }
    EXPECT_TRUE(ref("DeleteJob", id)->ok());
    gone->go();
    c->read(10);
    ASSERT_TRUE(c->ok()) << c->error;
    EXPECT_EQ(steps(c.get(), 0), (std::vector<uint64_t>{2, 3}));
}

TEST_F(Trace, LimitsAndRights)
{
    start(true);
    const std::string id = create_running(Spec("t").data(data), true);
    Call many = make_call();
    trace(many.get(), id, 1001);
    EXPECT_EQ(many->code, SHD_EINVAL);
    EXPECT_NE(many->error.find("1001"), std::string::npos);
    Call nobody = make_call();
    trace(nobody.get(), "nothing", 1);
    EXPECT_EQ(nobody->code, SHD_ENOTFOUND);
    std::vector<Call> calls;
    for (int i = 0; i < 5; i++) {
        calls.push_back(make_call());
        trace(calls.back().get(), id, 1);
        EXPECT_EQ(calls.back()->finished, i == 4) << i;
    }
    EXPECT_EQ(calls[4]->code, SHD_EFULL);
    finish("t");
    finish("t");
    for (int i = 0; i < 4; i++) {
        EXPECT_TRUE(calls[i]->ok()) << i;
    }
}
