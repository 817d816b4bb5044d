// Driving a job from a client: sequence numbers, retries, gaps, the queue's limit, overrides.
#include <cmath>

#include "tests/service/service.h"

#define STATE(name) SHARD__V1__JOB_STATE__JOB_STATE_##name

class Drive : public Service
{
  protected:
    uint64_t next_seq(const std::string &id)
    {
        Call c = ref_async("GetJob", id);
        return Unpacked<Shard__V1__Job>(c->sent[0])->next_seq;
    }
};

TEST_F(Drive, CallsRunInOrderAndAnswer)
{
    start(false);
    const std::string id = create_running(Spec("j"), false);
    Call a = forward_backward(id, 1, 2), b = forward_backward(id, 2, 4), c = optim_step(id, 3);
    Call d = train_step(id, 4, 7);
    turn_until([&] { return d->finished; });
    ASSERT_TRUE(a->ok()) << a->error;
    Unpacked<Shard__V1__ForwardBackwardResponse> fb(a->sent[0]);
    EXPECT_DOUBLE_EQ(fb->loss, 2);
    EXPECT_EQ(fb->valid_tokens, 3u);
    ASSERT_EQ(fb->n_logprobs, 1u);
    ASSERT_EQ(fb->logprobs[0]->n_values, 3u);
    EXPECT_EQ(fb->logprobs[0]->values[2], -2.0f);
    ASSERT_TRUE(c->ok()) << c->error;
    Unpacked<Shard__V1__OptimStepResponse> step(c->sent[0]);
    EXPECT_EQ(step->result->step, 1u);
    EXPECT_DOUBLE_EQ(step->result->loss, 3) << "the mean over both accumulated batches";
    EXPECT_EQ(step->result->tokens, 6u);
    EXPECT_DOUBLE_EQ(step->result->step_ms, 6);
    EXPECT_DOUBLE_EQ(step->result->tokens_per_s, 1000);
    ASSERT_TRUE(d->ok()) << d->error;
    Unpacked<Shard__V1__TrainStepResponse> train(d->sent[0]);
    EXPECT_EQ(train->result->step, 2u);
    EXPECT_DOUBLE_EQ(train->result->loss, 7);
    EXPECT_EQ(train->result->samples, 3u);
    EXPECT_EQ(next_seq(id), 5u);
}

TEST_F(Drive, ARetryGetsTheStoredAnswerAndDoesNotStepAgain)
{
    start(false);
    const std::string id = create_running(Spec("j"), false);
    Call a = train_step(id, 1, 9);
    turn_until([&] { return a->finished; });
    const unsigned ended = fake_ended();
    Call again = train_step(id, 1, 9);
    ASSERT_TRUE(again->ok()) << again->error;
    EXPECT_EQ(again->sent[0].bytes, a->sent[0].bytes);
    EXPECT_EQ(fake_ended(), ended);
    EXPECT_EQ(step(id), 1u);
    Call other = optim_step(id, 1);
    EXPECT_EQ(other->code, SHD_ESEQUENCE);
    EXPECT_NE(other->error.find("was TrainStep"), std::string::npos) << other->error;
}

TEST_F(Drive, ARetryInFlightWaitsForTheSameAnswer)
{
    start(true);
    const std::string id = create_running(Spec("j"), true);
    Call a = train_step(id, 1), b = train_step(id, 2);
    Call a2 = train_step(id, 1), b2 = train_step(id, 2);
    a->go(); // the first client is lost; its step is not
    finish("j");
    finish("j");
    turn_until([&] { return b2->finished; });
    ASSERT_TRUE(a2->ok()) << a2->error;
    ASSERT_TRUE(b->ok());
    ASSERT_TRUE(b2->ok());
    EXPECT_EQ(b->sent[0].bytes, b2->sent[0].bytes);
    EXPECT_EQ(step(id), 2u);
}

TEST_F(Drive, GapsAndOldNumbersAreRefused)
{
    start(false);
    const std::string id = create_running(Spec("j"), false);
    Call c = train_step(id, 2);
    EXPECT_EQ(c->code, SHD_ESEQUENCE);
    EXPECT_NE(c->error.find("the next is 1"), std::string::npos) << c->error;
    EXPECT_EQ(train_step(id, 0)->code, SHD_ESEQUENCE);
    for (uint64_t seq = 1; seq <= 300; seq++) {
        Call s = train_step(id, seq);
        turn_until([&] { return s->finished; });
        ASSERT_TRUE(s->ok()) << s->error;
    }
    EXPECT_TRUE(train_step(id, 45)->ok()) << "256 answers are kept";
    c = train_step(id, 44);
    EXPECT_EQ(c->code, SHD_ESEQUENCE);
    EXPECT_NE(c->error.find("no longer kept"), std::string::npos) << c->error;
    EXPECT_EQ(step(id), 300u);
}

TEST_F(Drive, AFullQueueLosesNothing)
{
    start(true);
    const std::string id = create_running(Spec("j"), true);
    std::vector<Call> calls;
    for (uint64_t seq = 1; seq <= 5; seq++) { // one on the ranks, four wait
        calls.push_back(train_step(id, seq));
        EXPECT_FALSE(calls.back()->finished) << calls.back()->error;
    }
    Call full = train_step(id, 6);
    EXPECT_EQ(full->code, SHD_EFULL);
    EXPECT_NE(full->error.find("queue full: 4 calls"), std::string::npos) << full->error;
    EXPECT_EQ(next_seq(id), 6u);
    finish("j");
    turn();
    calls.push_back(train_step(id, 6));
    for (int i = 0; i < 5; i++) {
        finish("j");
    }
    for (const Call &c : calls) {
        EXPECT_TRUE(c->ok()) << c->error;
    }
    EXPECT_EQ(step(id), 6u);
}

TEST_F(Drive, WaitingBatchesAreBoundedInBytes)
{
    limits.max_waiting_bytes = 60; // a batch of three tokens takes 24
    start(true);
    const std::string id = create_running(Spec("j"), true);
    Call a = train_step(id, 1), b = train_step(id, 2), c = train_step(id, 3);
    Call d = train_step(id, 4);
    EXPECT_EQ(d->code, SHD_EFULL);
    EXPECT_NE(d->error.find("batches of 48 bytes wait"), std::string::npos) << d->error;
    EXPECT_EQ(next_seq(id), 4u);
    finish("j");
    turn();
    d = train_step(id, 4);
    for (int i = 0; i < 3; i++) {
        finish("j");
    }
    EXPECT_TRUE(d->ok()) << d->error;
}

TEST_F(Drive, RefusedCallsTakeNoNumber)
{
    start(false);
    const std::string id = create_running(Spec("j"), false);
    EXPECT_EQ(train_step(id, 1, 256)->code, SHD_EINVAL) << "token outside of the vocabulary";
    Call c = optim_step(id, 1);
    EXPECT_EQ(c->code, SHD_ESTATE);
    EXPECT_NE(c->error.find("ForwardBackward first"), std::string::npos) << c->error;
    Shard__V1__TrainStepRequest q = SHARD__V1__TRAIN_STEP_REQUEST__INIT;
    q.job = const_cast<char *>(id.c_str());
    q.seq = 1;
    EXPECT_EQ(call("TrainStep", &q.base)->code, SHD_EINVAL) << "no batch";
    Shard__V1__StepOverrides o = SHARD__V1__STEP_OVERRIDES__INIT;
    o.has_lr_case = SHARD__V1__STEP_OVERRIDES__HAS_LR_LR;
    OneSequence one({1, 2});
    q.batch = &one.batch;
    q.overrides = &o;
    for (double bad : {-1.0, 101.0, 1e308, HUGE_VAL, std::nan("")}) {
        o.lr = bad;
        c = call("TrainStep", &q.base);
        EXPECT_EQ(c->code, SHD_EINVAL) << bad;
        EXPECT_NE(c->error.find("override lr"), std::string::npos) << c->error;
    }
    EXPECT_EQ(next_seq(id), 1u);
    o.lr = 0.5;
    c = call("TrainStep", &q.base);
    turn_until([&] { return c->finished; });
    ASSERT_TRUE(c->ok()) << c->error;
    EXPECT_DOUBLE_EQ((Unpacked<Shard__V1__TrainStepResponse>(c->sent[0])->result->lr), 0.5);
}

TEST_F(Drive, OptimStepCountsWhatIsQueuedBeforeIt)
{
    start(true);
    const std::string id = create_running(Spec("j"), true);
    Call a = forward_backward(id, 1), b = optim_step(id, 2), c = optim_step(id, 3);
    EXPECT_FALSE(b->finished) << b->error;
    EXPECT_EQ(c->code, SHD_ESTATE) << "nothing will be left for a second one";
    finish("j");
    finish("j");
    EXPECT_TRUE(b->ok()) << b->error;
}

TEST_F(Drive, ARefusalByTheRanksIsAnAnswer)
{
    start(
        false,
        [](const char *, shd_work *work, void *) {
            if (work->kind == SHD_WORK_FORWARD_BACKWARD && work->batch.tokens[0] == 13) {
                work->rc = shd_fail(&work->err, SHD_EINVAL, "unlucky");
            }
        },
        nullptr);
    const std::string id = create_running(Spec("j"), false);
    Call a = forward_backward(id, 1, 13);
    turn_until([&] { return a->finished; });
    EXPECT_EQ(a->code, SHD_EINVAL);
    EXPECT_EQ(a->error, "unlucky");
    Call again = forward_backward(id, 1, 13);
    EXPECT_EQ(again->error, "unlucky");
    EXPECT_EQ(state(id), STATE(RUNNING)) << "the job goes on";
    EXPECT_EQ(next_seq(id), 2u);
}

TEST_F(Drive, OptimStepAfterFailedGradientsIsRefusedWhenItsTurnComes)
{
    start(
        true,
        [](const char *, shd_work *work, void *) {
            if (work->kind == SHD_WORK_FORWARD_BACKWARD) {
                work->rc = shd_fail(&work->err, SHD_EINVAL, "unlucky");
            }
        },
        nullptr);
    const std::string id = create_running(Spec("j"), true);
    Call a = forward_backward(id, 1), b = optim_step(id, 2), c = train_step(id, 3);
    finish("j");
    turn_until([&] { return b->finished; });
    EXPECT_EQ(b->code, SHD_ESTATE) << b->error;
    finish("j");
    EXPECT_TRUE(c->ok()) << c->error;
    EXPECT_EQ(step(id), 1u);
}

TEST_F(Drive, TheStepLimitEndsTheJob)
{
    start(true);
    const std::string id = create_running(Spec("j").steps(2), true);
    Call a = train_step(id, 1), b = train_step(id, 2), c = train_step(id, 3);
    EXPECT_EQ(c->code, SHD_ESTATE);
    EXPECT_NE(c->error.find("2 steps"), std::string::npos) << c->error;
    finish("j");
    finish("j");
    EXPECT_TRUE(b->ok());
    EXPECT_EQ(state(id), STATE(DONE));
    c = train_step(id, 3);
    EXPECT_EQ(c->code, SHD_ESTATE);
    EXPECT_NE(c->error.find("done"), std::string::npos) << c->error;
    EXPECT_TRUE(train_step(id, 2)->ok()) << "answers stay after the end";
}

TEST_F(Drive, APausedJobKeepsCallsForLater)
{
    start(true);
    const std::string id = create_running(Spec("j"), true);
    EXPECT_TRUE(ref("PauseJob", id)->ok());
    Call a = train_step(id, 1);
    turn();
    EXPECT_EQ(fake_running("j"), -1);
    EXPECT_FALSE(a->finished);
    ref("ResumeJob", id);
    finish("j");
    EXPECT_TRUE(a->ok());
}

TEST_F(Drive, AJobsEndAnswersAllThatWait)
{
    start(
        true,
        [](const char *, shd_work *work, void *) {
            if (work->step == 2) {
                work->rc = shd_fail(&work->err, SHD_ENOMEM, "the arena is full");
            }
        },
        nullptr);
    const std::string id = create_running(Spec("j"), true);
    Call a = train_step(id, 1), b = train_step(id, 2), c = train_step(id, 3);
    finish("j");
    finish("j");
    EXPECT_TRUE(a->ok());
    EXPECT_EQ(b->code, SHD_ENOMEM) << b->error;
    EXPECT_EQ(c->code, SHD_ENOMEM) << c->error;
    EXPECT_NE(c->error.find("failed: the arena is full"), std::string::npos) << c->error;
    EXPECT_TRUE(train_step(id, 1)->ok()) << "what was answered stays answered";
    Call again = train_step(id, 3);
    EXPECT_EQ(again->code, SHD_ESTATE);
    EXPECT_NE(again->error.find("was not executed"), std::string::npos) << again->error;
}

TEST_F(Drive, ADataDrivenJobTakesNoBatches)
{
    start(false);
    const std::string id = create_running(Spec("j").data(data), false);
    Call c = train_step(id, 1);
    EXPECT_EQ(c->code, SHD_ESTATE);
    EXPECT_NE(c->error.find("its own data"), std::string::npos) << c->error;
}

TEST_F(Drive, AForwardOfAClientThatLeftIsNotRun)
{
    start(true);
    const std::string id = create_running(Spec("j"), true);
    Call busy = train_step(id, 1);
    OneSequence one({1, 2, 3});
    Shard__V1__ForwardRequest q = SHARD__V1__FORWARD_REQUEST__INIT;
    q.job = const_cast<char *>(id.c_str());
    q.batch = &one.batch;
    Call f = call("Forward", &q.base), g = call("Forward", &q.base);
    f->go();
    finish("j");
    turn_until([&] { return fake_running("j") == SHD_WORK_FORWARD; });
    g->go(); // while it runs
    finish("j");
    turn();
    EXPECT_EQ(fake_running("j"), -1);
}
