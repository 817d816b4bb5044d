// Watch: from any step, without a gap, at any reader's pace.
#include "tests/service/service.h"

#define STATE(name) SHARD__V1__JOB_STATE__JOB_STATE_##name

class Watch : public Service
{
  protected:
    // Indices without a gap from the first one on; steps are returned.
    static std::vector<uint64_t> steps(const shd_call *c)
    {
        std::vector<uint64_t> out;
        uint64_t next = 0;
        for (size_t i = 0; i < c->sent.size(); i++) {
            Unpacked<Shard__V1__Event> e(c->sent[i]);
            if (i > 0) {
                EXPECT_EQ(e->index, next);
            }
            next = e->index + 1;
            if (e->kind_case == SHARD__V1__EVENT__KIND_STEP) {
                out.push_back(e->step->step);
            }
        }
        return out;
    }
    static std::vector<uint64_t> range(uint64_t from, uint64_t to)
    {
        std::vector<uint64_t> out;
        for (uint64_t s = from; s <= to; s++) {
            out.push_back(s);
        }
        return out;
    }
};

TEST_F(Watch, FromEveryStepWithoutAGapWhileStepsAreTaken)
{
    start(false);
    const std::string id = create_running(Spec("w").data(data).steps(700), false);
    std::vector<Call> calls;
    for (int i = 0; i < 64; i++) { // at 64 moments, from 64 places
        calls.push_back(make_call());
        watch(calls.back().get(), id, i * 7, true);
        turn(1);
    }
    turn_until([&] { return state(id) == STATE(DONE); });
    for (size_t i = 0; i < calls.size(); i++) {
        ASSERT_TRUE(calls[i]->ok()) << calls[i]->error;
        EXPECT_EQ(steps(calls[i].get()), range(i * 7 == 0 ? 1 : i * 7, 700)) << i;
        Unpacked<Shard__V1__Event> last(calls[i]->sent.back());
        ASSERT_EQ(last->kind_case, SHARD__V1__EVENT__KIND_STATE);
        EXPECT_EQ(last->state->state, STATE(DONE));
    }
}

TEST_F(Watch, WithoutFollowItEndsWithTheHistory)
{
    start(true);
    const std::string id = create_running(Spec("w").data(data), true);
    for (int i = 0; i < 3; i++) {
        finish("w");
    }
    Call c = make_call();
    watch(c.get(), id, 2, false);
    ASSERT_TRUE(c->ok());
    EXPECT_EQ(steps(c.get()), range(2, 3));
    Call all = make_call();
    watch(all.get(), id, 0, false);
    ASSERT_EQ(all->sent.size(), 5u) << "queued, running, three steps";
    Unpacked<Shard__V1__Event> first(all->sent[0]);
    EXPECT_EQ(first->index, 0u);
    EXPECT_EQ(first->state->state, STATE(QUEUED));
    EXPECT_GT(first->state->unix, 1.6e9);
}

TEST_F(Watch, WithoutAStepOnlyWhatComesAfter)
{
    start(true);
    const std::string id = create_running(Spec("w").data(data), true);
    finish("w");
    Call c = make_call();
    watch(c.get(), id, -1, true);
    EXPECT_EQ(c->sent.size(), 0u);
    finish("w");
    turn_until([&] { return c->sent.size() == 1; });
    EXPECT_EQ(steps(c.get()), range(2, 2));
    ref("CancelJob", id);
    ASSERT_TRUE(c->ok());
    Unpacked<Shard__V1__Event> last(c->sent.back());
    EXPECT_EQ(last->state->state, STATE(CANCELLED));
    Call late = make_call();
    watch(late.get(), id, -1, true);
    EXPECT_TRUE(late->ok()) << "nothing can follow";
    EXPECT_EQ(late->sent.size(), 0u);
}

TEST_F(Watch, AFutureStepIsWaitedFor)
{
    start(true);
    const std::string id = create_running(Spec("w").data(data).steps(5), true);
    Call c = make_call();
    watch(c.get(), id, 4, true);
    for (int i = 0; i < 5; i++) {
        finish("w");
    }
    turn_until([&] { return c->finished; });
    EXPECT_EQ(steps(c.get()), range(4, 5));
}

TEST_F(Watch, ASlowReaderGetsEverythingWhenItReads)
{
    start(false);
    const std::string id = create_running(Spec("w").data(data).steps(500), false);
    Call c = make_call();
    c->room = 10;
    watch(c.get(), id, 0, true);
    turn_until([&] { return state(id) == STATE(DONE); });
    EXPECT_EQ(c->sent.size(), 10u);
    while (!c->finished) {
        c->read(37);
    }
    EXPECT_EQ(steps(c.get()), range(1, 500));
}

TEST_F(Watch, WhatIsNoLongerKeptIsSaid)
{
    limits.watch_history = 100;
    start(false);
    const std::string id = create_running(Spec("w").data(data).steps(2000), false);
    Call slow = make_call();
    slow->room = 1;
    watch(slow.get(), id, 0, true);
    turn_until([&] { return state(id) == STATE(DONE); });
    Call c = make_call();
    watch(c.get(), id, 5, true);
    EXPECT_EQ(c->code, SHD_ENOTFOUND);
    const size_t at = c->error.find("first step kept is ");
    ASSERT_NE(at, std::string::npos) << c->error;
    const uint64_t first = std::stoull(c->error.substr(at + 19));
    EXPECT_GT(first, 1000u);
    EXPECT_LE(first, 1901u);
    Call kept = make_call();
    watch(kept.get(), id, (int64_t)first, true);
    ASSERT_TRUE(kept->ok()) << kept->error;
    EXPECT_EQ(steps(kept.get()), range(first, 2000));
    slow->read(1000);
    EXPECT_EQ(slow->code, SHD_ESTATE) << slow->error;
}

TEST_F(Watch, DeletingTheJobEndsTheStream)
{
    start(false);
    const std::string id = create_running(Spec("w").data(data).steps(3), false);
    Call slow = make_call();
    slow->room = 1;
    watch(slow.get(), id, 0, true);
    turn_until([&] { return state(id) == STATE(DONE); });
    EXPECT_TRUE(ref("DeleteJob", id)->ok());
    EXPECT_TRUE(slow->finished);
    EXPECT_EQ(slow->code, SHD_ECANCELLED) << "it had not read its events";
}

TEST_F(Watch, AttachAndDetachAThousandTimes)
{
    start(true);
    const std::string id = create_running(Spec("w").data(data), true);
    for (int i = 0; i < 1000; i++) {
        Call c = make_call();
        watch(c.get(), id, 0, true);
        c->go();
        if (i % 100 == 0) {
            finish("w");
        }
    }
    Call c = make_call();
    watch(c.get(), id, 0, false);
    EXPECT_EQ(steps(c.get()), range(1, 10));
}
