// Items of many micro-batches take turns, so that no job holds up another.
#include "tests/service/service.h"

#define STATE(name) SHARD__V1__JOB_STATE__JOB_STATE_##name

class Turns : public Service
{
  protected:
    void TearDown() override
    {
        fake_turns(1); // what is under way ends with its next turn
        Service::TearDown();
    }
    // Two jobs on the same ranks, both with steps to take.
    void two_jobs(std::string *a, std::string *b)
    {
        *a = create_running(Spec("a").data(data).ranks(4), true);
        Call pause = ref_async("PauseJob", *a);
        finish("a");
        turn_until([&] { return state(*a) == STATE(PAUSED); });
        *b = create_running(Spec("b").data(data).ranks(4), true);
        ref("ResumeJob", *a);
        turn_until([&] { return busy("a") || busy("b"); });
    }
    static bool busy(const char *name)
    {
        return fake_running(name) >= 0;
    }
    // Ends turns of `other` until `name` is on the ranks: what `other` has not finished waits.
    void until_on_ranks(const char *name, const char *other)
    {
        turn_until([&] {
            const bool on = busy(name);
            if (!on) {
                fake_finish(other);
            }
            return on;
        });
    }
    Call forward(const std::string &id)
    {
        OneSequence one({1, 2, 3});
        Shard__V1__ForwardRequest q = SHARD__V1__FORWARD_REQUEST__INIT;
        q.job = const_cast<char *>(id.c_str());
        q.batch = &one.batch;
        return call("Forward", &q.base);
    }
    // A Forward of `a` that waits for its next turn while `b` is on the ranks, and whose caller
    // has gone.
    void lose_the_caller(const std::string &a)
    {
        fake_turns(1000000);
        Call f = forward(a);
        until_on_ranks("a", "b");
        ASSERT_EQ(fake_running("a"), SHD_WORK_FORWARD);
        until_on_ranks("b", "a");
        f->go();
    }
    void stop_into(bool *stopped)
    {
        shd_jobs_stop(
            jobs, [](void *flag) { *static_cast<bool *>(flag) = true; }, stopped);
    }
    // `method` of `a`, while `b` is on the ranks, is answered once these are free, with the memory
    // given back; `b` goes on.
    void ends_when_b_makes_way(const char *method, const std::string &a, const std::string &b)
    {
        Call c = ref_async(method, a);
        turn();
        EXPECT_FALSE(c->finished) << "b is on the ranks";
        finish("b");
        turn_until([&] { return c->finished; });
        EXPECT_TRUE(c->ok()) << c->error;
        EXPECT_EQ(fake_alive(), 1u);
        until_on_ranks("b", "a");
        EXPECT_EQ(state(b), STATE(RUNNING));
    }
};

TEST_F(Turns, AnItemOfManyTurnsLetsOthersComeBetween)
{
    start(true);
    std::string a, b;
    two_jobs(&a, &b);
    fake_turns(10);
    const uint64_t a0 = step(a), b0 = step(b);
    unsigned a_turns = 0, b_turns = 0, in_a_row = 0, most_in_a_row = 0;
    for (int i = 0; i < 40; i++) {
        turn_until([&] { return busy("a") || busy("b"); });
        const bool was_a = fake_finish("a");
        const bool was_b = !was_a && fake_finish("b");
        a_turns += was_a;
        b_turns += was_b;
        in_a_row = was_a ? in_a_row + 1 : 0;
        most_in_a_row = std::max(most_in_a_row, in_a_row);
        turn(1);
    }
    turn();
    EXPECT_NEAR(a_turns, b_turns, 2);
    EXPECT_LE(most_in_a_row, 2u);
    EXPECT_NEAR(static_cast<double>(step(a) - a0), 2, 1) << "ten turns make one step";
    EXPECT_NEAR(static_cast<double>(step(b) - b0), 2, 1);
}

TEST_F(Turns, OneResultComesOfAllTurns)
{
    start(true);
    const std::string id = create_running(Spec("j"), true);
    fake_turns(3);
    Call c = train_step(id, 1);
    for (int i = 0; i < 2; i++) {
        finish("j");
        turn();
        EXPECT_FALSE(c->finished);
        EXPECT_EQ(step(id), 0u);
    }
    finish("j");
    turn_until([&] { return c->finished; });
    EXPECT_TRUE(c->ok()) << c->error;
    EXPECT_EQ(step(id), 1u);
    EXPECT_TRUE(train_step(id, 1)->ok()) << "the stored answer";
    EXPECT_EQ(fake_running("j"), -1);
}

TEST_F(Turns, APauseComesAfterTheLastTurn)
{
    start(true);
    const std::string id = create_running(Spec("p").data(data).steps(100), true);
    fake_turns(3);
    finish("p");
    turn();
    Call pause = ref_async("PauseJob", id);
    finish("p");
    turn();
    EXPECT_FALSE(pause->finished) << "a turn is to come";
    finish("p");
    turn_until([&] { return pause->finished; });
    EXPECT_EQ(state(id), STATE(PAUSED));
    EXPECT_EQ(step(id), 1u);
    turn();
    EXPECT_EQ(fake_running("p"), -1);
}

TEST_F(Turns, CancellingBetweenTurnsFreesTheMemory)
{
    start(true);
    std::string a, b;
    two_jobs(&a, &b);
    fake_turns(100);
    // One of them waits for its next turn while the other is on the ranks.
    for (int i = 0; i < 3; i++) {
        finish(busy("a") ? "a" : "b");
        turn_until([&] { return busy("a") || busy("b"); });
    }
    const bool a_waits = !busy("a");
    Call c = ref_async("CancelJob", a_waits ? a : b);
    finish(a_waits ? "b" : "a");
    turn_until([&] { return c->finished; });
    EXPECT_TRUE(c->ok()) << c->error;
    EXPECT_EQ(state(a_waits ? a : b), STATE(CANCELLED));
    EXPECT_EQ(fake_alive(), 1u);
    EXPECT_EQ(state(a_waits ? b : a), STATE(RUNNING));
}

TEST_F(Turns, NoTurnIsSpentOnACallerThatHasGone)
{
    start(true);
    const std::string id = create_running(Spec("g"), true);
    fake_turns(100);
    Call f = forward(id);
    turn_until([&] { return fake_running("g") == SHD_WORK_FORWARD; });
    f->go();
    finish("g");
    turn();
    EXPECT_EQ(fake_running("g"), -1);
    fake_turns(1);
    Call c = train_step(id, 1);
    finish("g");
    turn_until([&] { return c->finished; });
    EXPECT_TRUE(c->ok()) << c->error;
}

TEST_F(Turns, CancellingIsAnsweredAlthoughTheCallerOfTheItemHasGone)
{
    start(true);
    const std::string a = create_running(Spec("a").ranks(4), true);
    const std::string b = create_running(Spec("b").data(data).ranks(4), true);
    lose_the_caller(a);
    ends_when_b_makes_way("CancelJob", a, b);
    EXPECT_EQ(state(a), STATE(CANCELLED));
}

TEST_F(Turns, DeletingIsAnsweredAlthoughTheCallerOfTheItemHasGone)
{
    start(true);
    const std::string a = create_running(Spec("a").data(data).steps(1).ranks(4), true);
    finish("a");
    turn_until([&] { return state(a) == STATE(DONE); });
    const std::string b = create_running(Spec("b").data(data).ranks(4), true);
    lose_the_caller(a);
    ends_when_b_makes_way("DeleteJob", a, b);
    EXPECT_EQ(ref_async("GetJob", a)->code, SHD_ENOTFOUND);
}

TEST_F(Turns, AStopFinishesTheTurnsOfTheRunningStep)
{
    start(true);
    const std::string id = create_running(Spec("s"), true);
    fake_turns(3);
    Call one = train_step(id, 1);
    finish("s");
    turn();
    bool stopped = false;
    stop_into(&stopped);
    finish("s");
    turn();
    EXPECT_FALSE(stopped);
    finish("s");
    turn_until([&] { return stopped; });
    EXPECT_TRUE(one->ok()) << one->error;
    EXPECT_EQ(step(id), 1u);
}

TEST_F(Turns, AStopWaitsForNoMoreThanATurnOfAJobsOwnEvaluation)
{
    start(true);
    const std::string id = create_running(Spec("s").data(data).steps(5).eval_every(1), true);
    finish("s");
    turn_until([&] { return fake_running("s") == SHD_WORK_EVAL; });
    fake_turns(1000000);
    finish("s");
    turn_until([&] { return fake_running("s") == SHD_WORK_EVAL; });
    bool stopped = false;
    stop_into(&stopped);
    turn();
    EXPECT_FALSE(stopped);
    finish("s");
    turn_until([&] { return stopped; });
    EXPECT_EQ(fake_running("s"), -1) << "nothing begins any more";
    EXPECT_EQ(state(id), STATE(RUNNING));
    EXPECT_EQ(step(id), 1u);
}

TEST_F(Turns, AStopWaitsForNoMoreThanATurnOfLoading)
{
    // Loading has no end.
    start(true, [](const char *, shd_work *work, void *) {
        work->more = work->rc == 0 && work->kind == SHD_WORK_INIT;
    });
    Call c = create(Spec("s"));
    ASSERT_TRUE(c->ok()) << c->error;
    const std::string id = Unpacked<Shard__V1__Job>(c->sent[0])->id;
    for (int i = 0; i < 3; i++) {
        turn_until([&] { return fake_running("s") == SHD_WORK_INIT; });
        finish("s");
    }
    turn_until([&] { return fake_running("s") == SHD_WORK_INIT; });
    Call pause = ref_async("PauseJob", id);
    bool stopped = false;
    stop_into(&stopped);
    turn();
    EXPECT_FALSE(stopped);
    finish("s");
    turn_until([&] { return stopped; });
    EXPECT_EQ(fake_running("s"), -1) << "nothing begins any more";
    EXPECT_EQ(state(id), STATE(QUEUED));
    EXPECT_EQ(pause->code, SHD_EUNAVAILABLE) << pause->error;
}

TEST_F(Turns, AStopAnswersACancelThatCameBetweenTurnsOfTheJobsOwnEvaluation)
{
    start(true);
    const std::string a =
        create_running(Spec("a").data(data).ranks(4).steps(5).eval_every(1), true);
    finish("a");
    turn_until([&] { return fake_running("a") == SHD_WORK_EVAL; });
    fake_turns(1000000);
    Call other = create(Spec("b").data(data).ranks(4));
    ASSERT_TRUE(other->ok()) << other->error;
    until_on_ranks("b", "a"); // INIT
    Call c = ref_async("CancelJob", a);
    bool stopped = false;
    stop_into(&stopped);
    turn();
    EXPECT_FALSE(c->finished) << "the other job is on the ranks";
    finish("b");
    turn_until([&] { return stopped; });
    EXPECT_TRUE(c->ok()) << c->error;
    EXPECT_EQ(state(a), STATE(CANCELLED));
    EXPECT_EQ(fake_alive(), 1u);
}

TEST_F(Turns, WhenACallerGoesDuringAStopNothingElseBegins)
{
    start(true);
    const std::string id = create_running(Spec("g").data(data), true);
    Call pause = ref_async("PauseJob", id);
    finish("g");
    turn_until([&] { return pause->finished; });
    fake_turns(1000000);
    Call f = forward(id);
    turn_until([&] { return fake_running("g") == SHD_WORK_FORWARD; });
    ref("ResumeJob", id);
    bool stopped = false;
    stop_into(&stopped);
    f->go();
    finish("g");
    turn_until([&] { return stopped; });
    EXPECT_EQ(fake_running("g"), -1);
}
