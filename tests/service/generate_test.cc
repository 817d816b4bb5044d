// Generate: tokens from the ranks' logits, at the reader's pace.
#include <fstream>

#include "tests/service/service.h"

class Generate : public Service
{
  protected:
    std::vector<int32_t> prompt{10};
    std::vector<std::pair<uint32_t, int32_t>> seen_;
    Shard__V1__GenerateRequest q = SHARD__V1__GENERATE_REQUEST__INIT;

    void generate(shd_call *c, const std::string &job, uint32_t tokens, double temperature = 0)
    {
        q.job = const_cast<char *>(job.c_str());
        q.prompt = prompt.data();
        q.n_prompt = prompt.size();
        q.has_max_tokens_case = SHARD__V1__GENERATE_REQUEST__HAS_MAX_TOKENS_MAX_TOKENS;
        q.max_tokens = tokens;
        q.has_temperature_case = SHARD__V1__GENERATE_REQUEST__HAS_TEMPERATURE_TEMPERATURE;
        q.temperature = temperature;
        dispatch(c, "Generate", &q.base);
    }
    static std::vector<int32_t> tokens(const shd_call *c)
    {
        std::vector<int32_t> out;
        for (const Packed &p : c->sent) {
            out.push_back(Unpacked<Shard__V1__GenerateResponse>(p)->token);
        }
        return out;
    }
};

TEST_F(Generate, StreamsAsManyTokensAsAsked)
{
    start(false);
    const std::string id = create_running(Spec("g"), false);
    Call c = make_call();
    generate(c.get(), id, 5);
    turn_until([&] { return c->finished; });
    ASSERT_TRUE(c->ok()) << c->error;
    EXPECT_EQ(tokens(c.get()), (std::vector<int32_t>{11, 12, 13, 14, 15}));
    Unpacked<Shard__V1__GenerateResponse> first(c->sent[0]);
    EXPECT_NEAR(first->logprob, 0, 1e-4);
    EXPECT_STREQ(first->finish, "");
    EXPECT_STREQ(Unpacked<Shard__V1__GenerateResponse>(c->sent[4])->finish, "length");
}

TEST_F(Generate, AStopTokenEndsTheText)
{
    start(false);
    const std::string id = create_running(Spec("g"), false);
    std::vector<int32_t> stops{200, 13};
    q.stop = stops.data();
    q.n_stop = stops.size();
    Call c = make_call();
    generate(c.get(), id, 50);
    turn_until([&] { return c->finished; });
    ASSERT_TRUE(c->ok()) << c->error;
    EXPECT_EQ(tokens(c.get()), (std::vector<int32_t>{11, 12, 13}));
    EXPECT_STREQ(Unpacked<Shard__V1__GenerateResponse>(c->sent[2])->finish, "stop");
    stops[1] = 256;
    Call bad = make_call();
    generate(bad.get(), id, 5);
    EXPECT_EQ(bad->code, SHD_EINVAL);
    EXPECT_NE(bad->error.find("token 1 of stop is 256"), std::string::npos) << bad->error;
    stops.assign(257, 1);
    q.stop = stops.data();
    q.n_stop = stops.size();
    Call many = make_call();
    generate(many.get(), id, 5);
    EXPECT_NE(many->error.find("257 stop tokens"), std::string::npos) << many->error;
}

TEST_F(Generate, ThePenaltySeesPromptAndText)
{
    start(
        false,
        [](const char *, shd_work *work, void *) {
            if (work->kind == SHD_WORK_NEXT_LOGITS) {
                for (int i = 0; i < 256; i++) {
                    work->logits[i] = 10 - static_cast<float>(i) / 100;
                }
            }
        },
        nullptr);
    const std::string id = create_running(Spec("g"), false);
    prompt = {0, 2};
    q.has_repetition_penalty_case =
        SHARD__V1__GENERATE_REQUEST__HAS_REPETITION_PENALTY_REPETITION_PENALTY;
    q.repetition_penalty = 1.5;
    Call c = make_call();
    generate(c.get(), id, 4);
    turn_until([&] { return c->finished; });
    EXPECT_EQ(tokens(c.get()), (std::vector<int32_t>{1, 3, 4, 5}));
    q.repetition_penalty = 0;
    Call bad = make_call();
    generate(bad.get(), id, 4);
    EXPECT_NE(bad->error.find("repetition_penalty 0"), std::string::npos) << bad->error;
}

TEST_F(Generate, OnlySomeMakeTokensAtOnce)
{
    limits.max_queue = 16;
    start(true);
    const std::string id = create_running(Spec("g"), true);
    std::vector<Call> calls;
    for (int i = 0; i < 6; i++) {
        calls.push_back(make_call());
        generate(calls.back().get(), id, 2);
        if (i == 4) {
            finish("g"); // the first one's first token
        }
    }
    turn_until([&] { return calls[0]->sent.size() == 1; });
    calls[1]->go();
    for (int i = 0; i < 3; i++) {
        finish("g");
    }
    turn_until([&] { return calls[3]->sent.size() == 1; });
    // The first four in turn; when the second had left, the fifth got its place.
    EXPECT_EQ(calls[2]->sent.size(), 1u);
    EXPECT_EQ(calls[3]->sent.size(), 1u);
    EXPECT_EQ(calls[0]->sent.size(), 1u);
    EXPECT_EQ(calls[4]->sent.size(), 0u);
    for (int i : {0, 2, 3, 4, 5}) {
        turn_until([&] {
            fake_finish("g");
            return calls[i]->finished;
        });
        EXPECT_EQ(calls[i]->sent.size(), 2u) << i;
        EXPECT_TRUE(calls[i]->ok()) << calls[i]->error;
    }
}

TEST_F(Generate, TheEndOfTheJobEndsThoseThatWaitForATurn)
{
    start(true);
    const std::string id = create_running(Spec("g"), true);
    std::vector<Call> calls;
    for (int i = 0; i < 5; i++) {
        calls.push_back(make_call());
        generate(calls.back().get(), id, 2);
    }
    Call cancel = ref("CancelJob", id);
    turn();
    for (const Call &c : calls) {
        EXPECT_EQ(c->code, SHD_ECANCELLED) << c->error;
    }
}

TEST_F(Generate, TextGoesThroughTheTokenizer)
{
    start(false);
    const std::string id = create_running(Spec("g").data(data).steps(1000000), false);
    // The fake likes the byte after the last one: C3 A4 A5 A6 is a character and two torn ones.
    std::string text = "x\xC2";
    prompt.clear();
    q.prompt_text.data = reinterpret_cast<uint8_t *>(&text[0]);
    q.prompt_text.len = text.size();
    auto texts = [&](uint32_t tokens) {
        Call c = make_call();
        generate(c.get(), id, tokens);
        turn_until([&] { return c->finished; });
        EXPECT_TRUE(c->ok()) << c->error;
        std::vector<std::string> out;
        for (const Packed &p : c->sent) {
            Unpacked<Shard__V1__GenerateResponse> r(p);
            out.emplace_back(reinterpret_cast<const char *>(r->text.data), r->text.len);
        }
        return out;
    };
    EXPECT_EQ(texts(1), (std::vector<std::string>{"\xEF\xBF\xBD"})); // torn at the end
    text = "xy";
    EXPECT_EQ(texts(3), (std::vector<std::string>{"z", "{", "|"}));
    int32_t stop = '|';
    q.stop = &stop;
    q.n_stop = 1;
    EXPECT_EQ(texts(9), (std::vector<std::string>{"z", "{", ""})) << "a stop token is no text";
    prompt = {1};
    Call both = make_call();
    generate(both.get(), id, 1);
    EXPECT_NE(both->error.find("as text and as tokens"), std::string::npos) << both->error;
    // Who leaves while the prompt is being tokenized, and a job that goes meanwhile.
    prompt.clear();
    Call gone = make_call();
    generate(gone.get(), id, 1);
    gone->go();
    Call late = make_call();
    generate(late.get(), id, 1);
    ref("CancelJob", id);
    ref("DeleteJob", id);
    turn_until([&] { return late->finished; });
    EXPECT_FALSE(late->ok());
    turn();
}

TEST_F(Generate, TheContextSlides)
{
    start(
        false,
        [](const char *, shd_work *work, void *seen) {
            if (work->kind == SHD_WORK_NEXT_LOGITS) {
                auto *lengths = static_cast<std::vector<std::pair<uint32_t, int32_t>> *>(seen);
                lengths->push_back({work->batch.length, work->batch.tokens[0]});
            }
        },
        &seen_);
    const std::string id = create_running(Spec("g"), false);
    prompt.assign(254, 0);
    for (int i = 0; i < 254; i++) {
        prompt[i] = i;
    }
    Call c = make_call();
    generate(c.get(), id, 600);
    turn_until([&] { return c->finished; });
    ASSERT_TRUE(c->ok()) << c->error;
    ASSERT_EQ(seen_.size(), 600u);
    for (int i = 0; i < 600; i++) {
        EXPECT_EQ(seen_[i].first, std::min(254u + i, 256u)) << i;
        EXPECT_EQ(seen_[i].second, i < 2 ? 0 : (i - 2) % 256) << "the oldest token leaves: " << i;
    }
    prompt.assign(1000, 3);
    Call long_prompt = make_call();
    generate(long_prompt.get(), id, 1);
    turn_until([&] { return long_prompt->finished; });
    EXPECT_TRUE(long_prompt->ok()) << long_prompt->error;
    EXPECT_EQ(seen_.back().first, 256u);
}

TEST_F(Generate, SaysHowItsTokensWereRun)
{
    struct Seen {
        uint64_t stream, cache_step;
        uint32_t prefill, length;
    };
    static std::vector<Seen> seen; // of the hook's thread while work is in flight
    seen.clear();
    start(
        false,
        [](const char *, shd_work *work, void *) {
            if (work->kind == SHD_WORK_NEXT_LOGITS) {
                seen.push_back({work->stream, work->cache_step, work->prefill, work->batch.length});
                work->step = seen.size() < 4 ? 7 : 8; // training goes on
            }
        },
        nullptr);
    const std::string id = create_running(Spec("g"), false);
    prompt = {1, 2, 3};
    Call a = make_call();
    generate(a.get(), id, 6);
    turn_until([&] { return a->finished; });
    ASSERT_EQ(seen.size(), 6u);
    for (const Seen &s : seen) {
        EXPECT_EQ(s.stream, seen[0].stream);
        EXPECT_NE(s.stream, 0u);
    }
    EXPECT_EQ(seen[0].cache_step, UINT64_MAX);
    for (size_t i : {1, 2, 3}) {
        EXPECT_EQ(seen[i].cache_step, 7u);
        EXPECT_EQ(seen[i].prefill, 3u);
    }
    for (size_t i : {4, 5}) { // the fourth was run on new weights: all of its tokens at once
        EXPECT_EQ(seen[i].cache_step, 8u);
        EXPECT_EQ(seen[i].prefill, 6u);
    }
    const uint64_t first = seen[0].stream;
    Call b = make_call();
    generate(b.get(), id, 1);
    turn_until([&] { return b->finished; });
    EXPECT_NE(seen.back().stream, first);
    prompt.assign(255, 1);
    Call c = make_call();
    generate(c.get(), id, 4);
    turn_until([&] { return c->finished; });
    EXPECT_NE(seen[seen.size() - 3].stream, 0u); // 256 tokens
    EXPECT_EQ(seen[seen.size() - 2].stream, 0u); // a token left, the others moved
    EXPECT_EQ(seen.back().stream, 0u);
}

TEST_F(Generate, ASeedGivesTheSameTextAgain)
{
    start(
        false,
        [](const char *, shd_work *work, void *) {
            if (work->kind == SHD_WORK_NEXT_LOGITS) {
                memset(work->logits, 0, 256 * sizeof(float)); // any token
            }
        },
        nullptr);
    const std::string id = create_running(Spec("g"), false);
    Call a = make_call(), b = make_call(), c = make_call();
    generate(a.get(), id, 30, 1);
    generate(b.get(), id, 30, 1);
    q.has_seed_case = SHARD__V1__GENERATE_REQUEST__HAS_SEED_SEED;
    q.seed = 2;
    generate(c.get(), id, 30, 1);
    turn_until([&] { return a->finished && b->finished && c->finished; });
    EXPECT_EQ(tokens(a.get()), tokens(b.get()));
    EXPECT_NE(tokens(a.get()), tokens(c.get()));
}

// Neither the loop nor other users wait while a token is being chosen.
TEST_F(Generate, TokensAreChosenBesideTheLoop)
{
    start(false);
    const std::string id = create_running(Spec("g"), false);
    FullLane full(jobs, SHD_WORKERS_SAMPLING, me.uid);
    Call mine = make_call();
    generate(mine.get(), id, 3);
    turn(100);
    EXPECT_TRUE(mine->sent.empty());
    EXPECT_EQ(state(id), SHARD__V1__JOB_STATE__JOB_STATE_RUNNING); // the loop answers
    Call leaves = make_call(), ends = make_call();
    generate(leaves.get(), id, 3);
    turn();
    leaves->go();
    full.let_go();
    turn_until([&] { return mine->finished && full.done(); });
    EXPECT_EQ(tokens(mine.get()), (std::vector<int32_t>{11, 12, 13}));
    EXPECT_TRUE(leaves->sent.empty());
    // The job ends meanwhile, and goes.
    FullLane again(jobs, SHD_WORKERS_SAMPLING, me.uid);
    generate(ends.get(), id, 3);
    turn();
    ref("CancelJob", id);
    EXPECT_EQ(ends->code, SHD_ECANCELLED) << ends->error;
    EXPECT_TRUE(ref("DeleteJob", id)->ok());
    again.let_go();
    turn_until([&] { return again.done(); });
    turn();
}

// With a large vocabulary a token takes long; a call that has nothing to do with it does not.
TEST_F(Generate, TheLoopAnswersWhileTokensAreChosen)
{
    constexpr uint32_t kVocab = 2000000;
    start(false);
    std::ofstream(dir + "/config.json")
        << R"({"architectures":["GPT2LMHeadModel"],"model_type":"gpt2","n_embd":8,"n_head":2,)"
        << R"("n_layer":1,"n_positions":16,"vocab_size":)" << kVocab
        << R"(,"attn_pdrop":0.0,"embd_pdrop":0.0,"resid_pdrop":0.0})";
    Spec spec("large");
    spec.m.model = spec.text(dir);
    spec.m.init_from = spec.text("random");
    const std::string id = create_running(spec, false);
    q.has_top_p_case = SHARD__V1__GENERATE_REQUEST__HAS_TOP_P_TOP_P;
    q.top_p = 0.9;
    double slowest = 1, token = 0;
    for (int i = 0; i < 10 && slowest > token / 4; i++) { // the machine may be busy otherwise
        Call c = make_call();
        const auto begin = std::chrono::steady_clock::now();
        auto last = begin;
        const auto since = [](auto then) {
            return std::chrono::duration<double>(std::chrono::steady_clock::now() - then).count();
        };
        generate(c.get(), id, 2, 1);
        slowest = 0;
        turn_until([&] {
            EXPECT_EQ(state(id), SHARD__V1__JOB_STATE__JOB_STATE_RUNNING);
            slowest = std::max(slowest, since(last));
            last = std::chrono::steady_clock::now();
            return c->finished;
        });
        EXPECT_TRUE(c->ok()) << c->error;
        token = since(begin) / 2;
    }
    EXPECT_LE(slowest, token / 4) << token << " s for a token";
    unlink((dir + "/config.json").c_str());
}

TEST_F(Generate, ALongPromptLosesItsBeginAndSaysSo)
{
    start(false);
    const std::string id = create_running(Spec("g"), false);
    for (const auto &[length, left_out] : {std::pair<size_t, uint64_t>{256, 0}, {260, 4}}) {
        prompt.assign(length, 7);
        Call c = make_call();
        generate(c.get(), id, 2);
        turn_until([&] { return c->finished; });
        ASSERT_TRUE(c->ok()) << c->error;
        EXPECT_EQ(Unpacked<Shard__V1__GenerateResponse>(c->sent[0])->prompt_left_out, left_out);
        EXPECT_EQ(Unpacked<Shard__V1__GenerateResponse>(c->sent[1])->prompt_left_out, 0u);
    }
}

TEST_F(Generate, ASlowReaderStopsTheWork)
{
    start(false);
    const std::string id = create_running(Spec("g"), false);
    Call c = make_call();
    c->room = 3;
    generate(c.get(), id, 10);
    turn_until([&] { return c->sent.size() == 3; });
    turn();
    const unsigned ended = fake_ended();
    turn();
    EXPECT_EQ(fake_ended(), ended);
    c->read(100);
    turn_until([&] { return c->finished; });
    EXPECT_EQ(c->sent.size(), 10u);
    Call idle = make_call();
    idle->room = 1;
    generate(idle.get(), id, 10);
    turn_until([&] { return idle->sent.size() == 1; });
    idle->go(); // leaves while it is waited for
}

TEST_F(Generate, AReaderThatLeavesStopsTheWork)
{
    start(true);
    const std::string id = create_running(Spec("g"), true);
    Call c = make_call();
    generate(c.get(), id, 100);
    finish("g");
    turn_until([&] { return c->sent.size() == 1; });
    c->go();
    finish("g");
    turn();
    EXPECT_EQ(fake_running("g"), -1);
}

TEST_F(Generate, TheEndOfTheJobEndsAStreamThatWaitsForItsReader)
{
    start(false);
    const std::string id = create_running(Spec("g"), false);
    Call c = make_call(), deleted = make_call();
    c->room = deleted->room = 1;
    generate(c.get(), id, 10);
    generate(deleted.get(), id, 10);
    turn_until([&] { return c->sent.size() == 1 && deleted->sent.size() == 1; });
    turn();
    ref("CancelJob", id);
    EXPECT_TRUE(c->finished);
    EXPECT_EQ(c->code, SHD_ECANCELLED) << c->error;
    ref("DeleteJob", id);
    turn();
    c->read(100);
    deleted->read(100);
    EXPECT_EQ(deleted->code, SHD_ECANCELLED) << deleted->error;
}

TEST_F(Generate, DeletingADoneJobEndsAStreamThatWaitsForItsReader)
{
    start(false);
    const std::string id = create_running(Spec("g").data(data).steps(1), false);
    Call c = make_call();
    c->room = 1;
    generate(c.get(), id, 10);
    turn_until([&] { return c->sent.size() == 1; });
    turn();
    ref("DeleteJob", id);
    turn();
    EXPECT_EQ(c->code, SHD_ECANCELLED) << c->error;
    c->read(100);
}

TEST_F(Generate, BadRequestsAreNamed)
{
    start(false);
    const std::string id = create_running(Spec("g"), false);
    auto refused = [&](uint32_t n, double temperature) {
        Call c = make_call();
        generate(c.get(), id, n, temperature);
        EXPECT_EQ(c->code, SHD_EINVAL) << c->error;
        return c->error;
    };
    EXPECT_NE(refused(0, 1).find("max_tokens 0"), std::string::npos);
    EXPECT_NE(refused(100001, 1).find("100001"), std::string::npos);
    EXPECT_NE(refused(5, -1).find("temperature -1"), std::string::npos);
    prompt = {3, 256};
    EXPECT_NE(refused(5, 1).find("token 1 of the prompt is 256"), std::string::npos);
    prompt = {-1};
    EXPECT_NE(refused(5, 1).find("-1"), std::string::npos);
    prompt.clear();
    EXPECT_NE(refused(5, 1).find("empty"), std::string::npos);
    prompt = {1};
    ref("CancelJob", id);
    Call c = make_call();
    generate(c.get(), id, 5);
    EXPECT_EQ(c->code, SHD_ESTATE);
}

TEST_F(Generate, TooManyStreamsAreRefused)
{
    start(true);
    const std::string id = create_running(Spec("g"), true);
    std::vector<Call> calls;
    for (int i = 0; i < 5; i++) { // one on the ranks, four wait
        calls.push_back(make_call());
        generate(calls.back().get(), id, 2);
        EXPECT_FALSE(calls.back()->finished);
    }
    Call c = make_call();
    generate(c.get(), id, 2);
    EXPECT_EQ(c->code, SHD_EFULL) << c->error;
    Shard__V1__StatusRequest ask = SHARD__V1__STATUS_REQUEST__INIT;
    Call shown = call("Status", &ask.base);
    EXPECT_EQ(Unpacked<Shard__V1__StatusResponse>(shown->sent[0])->jobs[0]->queued, 4u);
    for (int i = 0; i < 10; i++) {
        finish("g");
    }
    for (const Call &g : calls) {
        turn_until([&] { return g->finished; });
        EXPECT_TRUE(g->ok()) << g->error;
    }
}
