// Evaluate around the ranks: files and who may read them, whose turn it is, and when steps wait.
// (What the ranks compute: tests/train/evaluate_test.cc. A target's loss here is its id.)

#include <cmath>

#include "daemon/service/job.h"
#include "daemon/service/jobs.h"
#include "tests/service/texts.h"

namespace
{

constexpr auto kDone = SHARD__V1__JOB_STATE__JOB_STATE_DONE;

struct Ask {
    std::string job, data, format;
    uint32_t stride;
    uint64_t max_tokens;
    int packing; // -1: not said
    Ask(std::string j, std::string d, std::string f = "", uint32_t s = 0, uint64_t m = 0,
        int p = -1)
        : job(std::move(j)), data(std::move(d)), format(std::move(f)), stride(s), max_tokens(m),
          packing(p)
    {
    }
};

class Evaluate : public Texts
{
  protected:
    Spec Small(const std::string &name)
    {
        Spec spec(name);
        spec.micro_batch(2);
        spec.m.has_seq_len_case = SHARD__V1__JOB_SPEC__HAS_SEQ_LEN_SEQ_LEN;
        spec.m.seq_len = 8;
        return spec;
    }
    Call Begin(const Ask &ask, const shd_identity *who = nullptr)
    {
        Shard__V1__EvaluateRequest q = SHARD__V1__EVALUATE_REQUEST__INIT;
        q.job = const_cast<char *>(ask.job.c_str());
        q.data = const_cast<char *>(ask.data.c_str());
        q.data_format = const_cast<char *>(ask.format.c_str());
        if (ask.stride != 0) {
            q.has_stride_case = SHARD__V1__EVALUATE_REQUEST__HAS_STRIDE_STRIDE;
            q.stride = ask.stride;
        }
        if (ask.max_tokens != 0) {
            q.has_max_tokens_case = SHARD__V1__EVALUATE_REQUEST__HAS_MAX_TOKENS_MAX_TOKENS;
            q.max_tokens = ask.max_tokens;
        }
        if (ask.packing >= 0) {
            q.has_packing_case = SHARD__V1__EVALUATE_REQUEST__HAS_PACKING_PACKING;
            q.packing = ask.packing;
        }
        return call("Evaluate", &q.base, who);
    }
    Call Now(const Ask &ask, const shd_identity *who = nullptr)
    {
        Call c = Begin(ask, who);
        turn_until([&] { return c->finished; });
        return c;
    }
    // Its last message.
    static std::unique_ptr<Unpacked<Shard__V1__EvaluateResponse>> Result(const Call &c)
    {
        EXPECT_TRUE(c->ok()) << c->error;
        EXPECT_FALSE(c->sent.empty());
        auto r = std::make_unique<Unpacked<Shard__V1__EvaluateResponse>>(c->sent.back());
        EXPECT_EQ((*r)->progress, nullptr);
        return r;
    }
    void ExpectError(const Call &c, int code, const std::string &says)
    {
        EXPECT_EQ(c->code, code) << c->error;
        EXPECT_NE(c->error.find(says), std::string::npos) << c->error;
    }
};

TEST_F(Evaluate, EveryFormat)
{
    start(false);
    create_running(Small("j"), false);
    const std::string text = write("a.txt", std::string("\1\2\3\4\5\6\7\10\11\12\13", 11));
    auto r = Result(Now({"j", text}));
    EXPECT_EQ((*r)->tokens, 10u);
    EXPECT_EQ((*r)->windows, 2u);
    EXPECT_DOUBLE_EQ((*r)->loss, 6.5); // 2 .. 11
    EXPECT_DOUBLE_EQ((*r)->perplexity, std::exp(6.5));
    EXPECT_EQ((*r)->text_bytes, 10u);
    EXPECT_DOUBLE_EQ((*r)->bits_per_byte, 6.5 / std::log(2.0));
    EXPECT_EQ((*r)->step, 0u);

    r = Result(Now({"j", text, "", 2}));
    EXPECT_EQ((*r)->tokens, 10u); // each once
    EXPECT_DOUBLE_EQ((*r)->loss, 6.5);
    r = Result(Now({"j", text, "", 0, 3}));
    EXPECT_EQ((*r)->tokens, 3u);
    EXPECT_DOUBLE_EQ((*r)->loss, 3.0);

    const std::string bin = write("a.bin", std::string("\1\0\2\0\3\0", 6));
    r = Result(Now({"j", bin}));
    EXPECT_EQ((*r)->tokens, 2u);
    EXPECT_DOUBLE_EQ((*r)->loss, 2.5);

    std::string llmc(1024, '\0');
    const int32_t header[3] = {20240520, 1, 4};
    memcpy(&llmc[0], header, sizeof(header));
    r = Result(Now({"j", write("b.bin", llmc + std::string("\1\0\2\0\3\0\4\0", 8))}));
    EXPECT_EQ((*r)->tokens, 3u);

    const std::string lines = write("a.jsonl", "{\"text\": \"ab\"}\n"
                                               "{\"prompt\": \"xyz\", \"completion\": \"cde\"}\n");
    r = Result(Now({"j", lines}));
    EXPECT_EQ((*r)->tokens, 4u); // b, c, d, e
    EXPECT_EQ((*r)->windows, 1u);
    EXPECT_EQ((*r)->text_bytes, 4u);
    EXPECT_DOUBLE_EQ((*r)->loss, ('b' + 'c' + 'd' + 'e') / 4.0);
    r = Result(Now({"j", lines, "", 0, 0, 0}));
    EXPECT_EQ((*r)->tokens, 4u);
    EXPECT_EQ((*r)->windows, 2u);
    r = Result(Now({"j", lines, "text"})); // as it stands
    EXPECT_EQ((*r)->text_bytes, (*r)->tokens);
    EXPECT_GT((*r)->tokens, 40u);
}

TEST_F(Evaluate, WhatIsRefused)
{
    start(false);
    create_running(Small("j"), false);
    const std::string text = write("a.txt", "hello");
    ExpectError(Now({"absent", text}), SHD_ENOTFOUND, "no job 'absent'");
    ExpectError(Now({"j", ""}), SHD_EINVAL, "no data given");
    ExpectError(Now({"j", "a.txt"}), SHD_EINVAL, "not an absolute path");
    ExpectError(Now({"j", "/etc/passwd"}), SHD_EPERM, "outside the data roots");
    ExpectError(Now({"j", dir + "/absent"}), SHD_ENOTFOUND, "absent");
    ExpectError(Now({"j", text, "csv"}), SHD_EINVAL, "unknown data format 'csv'");
    ExpectError(Now({"j", text, "", 9}), SHD_EINVAL, "stride 9 is not in 1..8");
    ExpectError(Now({"j", write("one", "x")}), SHD_EDATA, "no two tokens");
    ExpectError(Now({"j", write("empty", "")}), SHD_EDATA, "is empty");
    ExpectError(Now({"j", write("odd.bin", "abc")}), SHD_EDATA, "odd");
    ExpectError(Now({"j", write("high.bin", std::string("\1\0\0\1", 4))}), SHD_EDATA,
                "token 256 at position 1");
    ExpectError(Now({"j", write("x.bin", std::string("\1\0\2\0", 4)), "", 0, 0, 0}), SHD_EINVAL,
                "--packing off");
    ExpectError(Now({"j", write("bad.jsonl", "{\"text\": 1}\n")}), SHD_EDATA, "line 1");
    ExpectError(Now({"j", write("quiet.jsonl", "{\"prompt\": \"a\", \"completion\": \"\"}\n")}),
                SHD_EDATA, "");
    const shd_identity other = {me.uid + 1, me.gid + 1, 1};
    ExpectError(Now({"j", text}, &other), SHD_ENOTFOUND, "no job 'j'");
    ref("CancelJob", "j");
    ExpectError(Now({"j", text}), SHD_ESTATE, "its weights are gone");
}

TEST_F(Evaluate, AJobWithoutATokenizerReadsTokenFilesAlone)
{
    start(false);
    Spec spec = Small("j");
    spec.data(write("a.bin", std::string(4000, '\1'))).steps(1);
    const std::string id = create_running(spec, false);
    turn_until([&] { return state(id) == kDone; });
    ExpectError(Now({"j", data}), SHD_EINVAL, "has no tokenizer");
    auto r = Result(Now({"j", write("b.bin", std::string("\1\0\2\0\3\0", 6))}));
    EXPECT_EQ((*r)->step, 1u);
    EXPECT_EQ((*r)->text_bytes, 0u); // nobody knows
    EXPECT_EQ((*r)->bits_per_byte, 0.0);
}

// Other calls come between the parts; steps do not, so that all is of the same weights.
TEST_F(Evaluate, StepsWaitAndOtherCallsDoNot)
{
    start(true);
    const std::string id = create_running(Small("j").data(data), true);
    const std::string text = write("a.txt", std::string(1000, 'x')); // 125 windows
    Call c = Begin({"j", text});
    turn_until([&] {
        if (fake_running("j") == SHD_WORK_DATA_STEP) {
            finish("j");
        }
        return fake_running("j") == SHD_WORK_EVAL;
    });
    const uint64_t at = step(id);
    OneSequence one({1, 2, 3});
    Shard__V1__ForwardRequest q = SHARD__V1__FORWARD_REQUEST__INIT;
    q.job = const_cast<char *>("j");
    q.batch = &one.batch;
    int parts = 0, forwards = 0;
    Call forward = call("Forward", &q.base);
    while (!c->finished) {
        const int kind = fake_running("j");
        ASSERT_NE(kind, SHD_WORK_DATA_STEP);
        parts += kind == SHD_WORK_EVAL;
        forwards += kind == SHD_WORK_FORWARD;
        finish("j");
        if (forward->finished && forwards < 3 && !c->finished) {
            forward = call("Forward", &q.base);
        }
        turn(2);
    }
    EXPECT_GE(parts, 3);
    EXPECT_GE(forwards, 2);
    auto r = Result(c);
    EXPECT_EQ((*r)->tokens, 999u);
    EXPECT_EQ((*r)->windows, 125u);
    EXPECT_EQ((*r)->step, at);
    turn_until([&] {
        fake_finish("j");
        return step(id) > at + 3;
    });
}

TEST_F(Evaluate, OneAfterTheOtherWithAStepBetween)
{
    start(true);
    const std::string id = create_running(Small("j").data(data), true);
    const std::string text = write("a.txt", std::string(300, 'x'));
    Call first = Begin({"j", text});
    turn_until([&] {
        fake_finish("j");
        turn(2);
        return fake_running("j") == SHD_WORK_EVAL;
    });
    const shd_job *job = shd_jobs_next(jobs, &me, nullptr);
    Call second = Begin({"j", text});
    turn_until([&] { return job->evaluations.n == 1; });
    Call third = Begin({"j", text});
    turn_until([&] { return job->evaluations.n == 2; });
    std::vector<int> kinds;
    while (!third->finished) {
        const int kind = fake_running("j");
        if (kind >= 0 && (kinds.empty() || kinds.back() != kind)) {
            kinds.push_back(kind);
        }
        fake_finish("j");
        turn(2);
    }
    EXPECT_TRUE(first->ok() && second->ok());
    EXPECT_EQ(kinds, (std::vector<int>{SHD_WORK_EVAL, SHD_WORK_DATA_STEP, SHD_WORK_EVAL,
                                       SHD_WORK_DATA_STEP, SHD_WORK_EVAL}));
    EXPECT_LT((*Result(first))->step, (*Result(second))->step);
    EXPECT_LT((*Result(second))->step, (*Result(third))->step);
}

// The client goes: while its text is tokenized, while it waits, between parts, on the ranks.
TEST_F(Evaluate, AClientThatGoesHoldsNothing)
{
    start(true);
    const std::string id = create_running(Small("j").data(data), true);
    std::string lines;
    for (int i = 0; i < 20000; i++) {
        lines += "{\"text\": \"in the beginning\"}\n";
    }
    const std::string slow = write("slow.jsonl", lines);
    const std::string text = write("a.txt", std::string(3000, 'x'));
    Call early = Begin({"j", slow});
    turn(3);
    early->go();
    Call reading = Begin({"j", slow});
    turn_until([&] {
        for (const Packed &p : reading->sent) {
            if (std::string(Unpacked<Shard__V1__EvaluateResponse>(p)->progress->what) ==
                "tokenizing") {
                return true;
            }
        }
        turn(100);
        return reading->sent.size() > 20; /* it was too quick to be seen */
    });
    reading->go();
    Call working = Begin({"j", text}), waiting = Begin({"j", text}), stays = Begin({"j", text});
    turn_until([&] {
        if (fake_running("j") == SHD_WORK_DATA_STEP) {
            finish("j");
        }
        return fake_running("j") == SHD_WORK_EVAL;
    });
    turn(200);
    waiting->go();
    working->go(); // on the ranks, or waiting behind another
    const uint64_t at = step(id);
    turn_until([&] {
        fake_finish("j");
        turn(2);
        return stays->finished;
    });
    EXPECT_EQ((*Result(stays))->tokens, 2999u);
    turn_until([&] {
        fake_finish("j");
        return step(id) > at + 3;
    });
}

TEST_F(Evaluate, WhileTheJobIsPausedAndWhenItIsDone)
{
    start(false);
    const std::string id = create_running(Small("j").data(data).steps(1000000), false);
    ref("PauseJob", id);
    const uint64_t at = step(id);
    const std::string text = write("a.txt", std::string(300, 'x'));
    EXPECT_EQ((*Result(Now({"j", text})))->step, at);
    EXPECT_EQ(step(id), at);
    ref("ResumeJob", id);
    turn_until([&] { return step(id) > at + 2; });
    const std::string done = create_running(Small("k").data(data).steps(3), false);
    turn_until([&] { return state(done) == kDone; });
    EXPECT_EQ((*Result(Now({"k", text})))->step, 3u);
}

TEST_F(Evaluate, CallsOfADrivingClientWait)
{
    start(true);
    const std::string id = create_running(Small("j"), true);
    const std::string text = write("a.txt", std::string(600, 'x'));
    Call c = Begin({"j", text});
    turn_until([&] { return fake_running("j") == SHD_WORK_EVAL; });
    Call step_call = train_step("j", 1);
    turn_until([&] {
        EXPECT_TRUE(c->finished || !step_call->finished);
        if (!c->finished) {
            fake_finish("j");
        }
        turn(2);
        return c->finished;
    });
    EXPECT_EQ((*Result(c))->step, 0u);
    finish("j");
    turn_until([&] { return step_call->finished; });
    EXPECT_TRUE(step_call->ok()) << step_call->error;
}

TEST_F(Evaluate, AJobThatEndsMeanwhile)
{
    start(true);
    create_running(Small("j").data(data), true);
    const std::string text = write("a.txt", std::string(3000, 'x'));
    Call first = Begin({"j", text}), second = Begin({"j", text});
    turn_until([&] {
        if (fake_running("j") == SHD_WORK_DATA_STEP) {
            finish("j");
        }
        return fake_running("j") == SHD_WORK_EVAL;
    });
    turn(200);
    Call cancel = ref_async("CancelJob", "j");
    turn_until([&] { return first->finished && second->finished && cancel->finished; });
    ExpectError(first, SHD_ECANCELLED, "was cancelled");
    ExpectError(second, SHD_ECANCELLED, "was cancelled");
}

TEST_F(Evaluate, AFileThatChangesLeavesTheJobAsItWas)
{
    start(true);
    const std::string id = create_running(Small("j").data(data), true);
    const std::string text = write("a.txt", std::string(3000, 'x'));
    Call c = Begin({"j", text});
    turn_until([&] {
        if (fake_running("j") == SHD_WORK_DATA_STEP) {
            finish("j");
        }
        return fake_running("j") == SHD_WORK_EVAL;
    });
    write("a.txt", "something else");
    turn_until([&] {
        if (fake_running("j") == SHD_WORK_EVAL) {
            fake_finish("j");
        }
        turn(2);
        return c->finished;
    });
    ExpectError(c, SHD_EDATA, "has changed since it was opened");
    const uint64_t at = step(id);
    turn_until([&] {
        fake_finish("j");
        return step(id) > at + 2;
    });
}

TEST_F(Evaluate, ManyAtOnce)
{
    start(true);
    create_running(Small("j").data(data), true);
    const std::string text = write("a.txt", std::string(3000, 'x'));
    std::vector<Call> calls;
    for (int i = 0; i < 9; i++) {
        calls.push_back(Begin({"j", text}));
    }
    ExpectError(calls[8], SHD_EFULL, "8 evaluations of yours are under way");
    turn(300); // max_queue of the tests is 4
    uint32_t refused = 0;
    for (int i = 0; i < 8; i++) {
        refused += calls[static_cast<size_t>(i)]->code == SHD_EFULL;
    }
    EXPECT_GE(refused, 3u);
    for (Call &c : calls) {
        c->go();
    }
    turn_until([&] { return fake_finish("j") != 0; });
    turn(50);
}

TEST_F(Evaluate, AStopEndsIt)
{
    start(true);
    create_running(Small("j").data(data), true);
    const std::string text = write("a.txt", std::string(3000, 'x'));
    Call c = Begin({"j", text}), behind = Begin({"j", text});
    turn_until([&] {
        if (fake_running("j") == SHD_WORK_DATA_STEP) {
            finish("j");
        }
        return fake_running("j") == SHD_WORK_EVAL;
    });
    turn(200);
    stop();
    ExpectError(c, SHD_EUNAVAILABLE, "stopping");
    ExpectError(behind, SHD_EUNAVAILABLE, "stopping");
}

} // namespace
