// Text of jobs that has to be tokenized first, and the Tokenize call.
#include <sys/stat.h>

#include <fstream>
#include <sstream>

#include "tests/service/texts.h"

namespace
{

constexpr auto kQueued = SHARD__V1__JOB_STATE__JOB_STATE_QUEUED;
constexpr auto kFailed = SHARD__V1__JOB_STATE__JOB_STATE_FAILED;
constexpr auto kCancelled = SHARD__V1__JOB_STATE__JOB_STATE_CANCELLED;
constexpr auto kRunning = SHARD__V1__JOB_STATE__JOB_STATE_RUNNING;

class Tokenize : public Texts
{
  protected:
    std::string tokenizer(const std::string &name)
    {
        std::ifstream in("tests/data/tokenizers/" + name, std::ios::binary);
        std::stringstream contents;
        contents << in.rdbuf();
        return write(name, contents.str());
    }
    static std::string documents(int n)
    {
        std::string out;
        for (int i = 0; i < n; i++) {
            out += "{\"text\": \"in the beginning was document " + std::to_string(i) + "\"}\n";
        }
        return out;
    }
    std::string create_id(const Spec &spec)
    {
        Call c = create(spec);
        EXPECT_TRUE(c->ok()) << c->error;
        return c->ok() ? Unpacked<Shard__V1__Job>(c->sent[0])->id : "";
    }
    std::string reason(const std::string &id)
    {
        Call c = ref_async("GetJob", id);
        return c->ok() ? Unpacked<Shard__V1__Job>(c->sent[0])->reason : c->error;
    }
    Call tokenize(const std::string &tok, const std::string &text, const std::string &file = "",
                  std::vector<int32_t> ids = {}, const std::string &job = "",
                  const shd_identity *who = nullptr)
    {
        Shard__V1__TokenizeRequest q = SHARD__V1__TOKENIZE_REQUEST__INIT;
        q.tokenizer = const_cast<char *>(tok.c_str());
        q.job = const_cast<char *>(job.c_str());
        q.text = {text.size(), reinterpret_cast<uint8_t *>(const_cast<char *>(text.data()))};
        q.data = const_cast<char *>(file.c_str());
        q.tokens = ids.data();
        q.n_tokens = ids.size();
        return call("Tokenize", &q.base, who);
    }
    Call finished(Call c)
    {
        turn_until([&] { return c->finished; });
        return c;
    }
    // All ids of the answers.
    static std::vector<int32_t> ids_of(const Call &c)
    {
        std::vector<int32_t> out;
        for (const Packed &p : c->sent) {
            Unpacked<Shard__V1__TokenizeResponse> m(p);
            out.insert(out.end(), m->tokens, m->tokens + m->n_tokens);
        }
        return out;
    }
};

TEST_F(Tokenize, AJobOnJsonLinesTrains)
{
    start(false);
    const std::string id = create_id(Spec("lines").data(write("d.jsonl", documents(500))).steps(3));
    turn_until([&] { return state(id) == SHARD__V1__JOB_STATE__JOB_STATE_DONE; });
    EXPECT_EQ(step(id), 3u);
}

TEST_F(Tokenize, AJobIsQueuedWithItsProgressUntilTheTextIsThere)
{
    start(false);
    const std::string path = write("d.jsonl", documents(300000)); // some hundred milliseconds
    const std::string id = create_id(Spec("slow").data(path).steps(1));
    uint64_t last = 0, seen = 0;
    turn_until([&] {
        Call c = ref_async("GetJob", id);
        Unpacked<Shard__V1__Job> job(c->sent[0]);
        if (job->progress == nullptr) {
            return true;
        }
        EXPECT_EQ(job->state, kQueued);
        EXPECT_STREQ(job->progress->what, "tokenizing");
        EXPECT_GE(job->progress->done, last);
        EXPECT_LE(job->progress->done, job->progress->total);
        last = job->progress->done;
        seen++;
        return false;
    });
    EXPECT_GT(seen, 1u);
    turn_until([&] { return state(id) == SHARD__V1__JOB_STATE__JOB_STATE_DONE; });
}

TEST_F(Tokenize, ABadLineFailsTheJobWithItsNumber)
{
    start(false);
    const std::string id =
        create_id(Spec("bad").data(write("d.jsonl", documents(3) + "{\"txt\": 1}\n")).steps(1));
    turn_until([&] { return state(id) == kFailed; });
    EXPECT_NE(reason(id).find("line 4: not an object with \"text\""), std::string::npos)
        << reason(id);
    EXPECT_TRUE(ref("DeleteJob", id)->ok());
}

TEST_F(Tokenize, DataThatIsTooShortFailsTheJob)
{
    start(false);
    const std::string id = create_id(Spec("short-data").data(write("d.jsonl", documents(3))));
    turn_until([&] { return state(id) == kFailed; });
    EXPECT_NE(reason(id).find("d.jsonl'"), std::string::npos) << reason(id);
    EXPECT_NE(reason(id).find("tokens"), std::string::npos) << reason(id);
}

TEST_F(Tokenize, CancelEndsTheTokenizing)
{
    start(false);
    const std::string path = write("d.jsonl", documents(600000));
    const std::string id = create_id(Spec("gone").data(path).steps(1));
    EXPECT_EQ(state(id), kQueued);
    EXPECT_TRUE(ref("CancelJob", id)->ok());
    EXPECT_EQ(state(id), kCancelled);
    // Another job on the same file is not hurt by it.
    const std::string other = create_id(Spec("other").data(path).steps(1));
    turn_until([&] { return state(other) == SHARD__V1__JOB_STATE__JOB_STATE_DONE; });
    EXPECT_TRUE(ref("DeleteJob", id)->ok());
}

TEST_F(Tokenize, StoppingTheDaemonDoesNotWaitForTexts)
{
    start(false);
    create_id(Spec("slow").data(write("d.jsonl", documents(600000))).steps(1));
    const auto before = std::chrono::steady_clock::now();
    stop();
    EXPECT_LT(std::chrono::steady_clock::now() - before, std::chrono::seconds(5));
}

// A pattern and a text that take for ever together: for a job, a call, and a prompt.
TEST_F(Tokenize, StoppingTheDaemonDoesNotWaitForHostileTexts)
{
    start(false);
    const std::string hostile = write(
        "tokenizer.json",
        R"({"version":"1.0","truncation":null,"padding":null,"added_tokens":[],"normalizer":null,)"
        R"("pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"Split","pattern":)"
        R"({"Regex":"(?:a(?=[^Z]*Z?))*Q|[\\s\\S]"},"behavior":"Isolated","invert":false},)"
        R"({"type":"ByteLevel","add_prefix_space":false,"use_regex":false}]},)"
        R"("post_processor":null,"decoder":{"type":"ByteLevel"},)"
        R"("model":{"type":"BPE","vocab":{"a":0,"b":1},"merges":[]}})");
    const std::string text(4 << 20, 'a');
    Spec job("slow"), idle("idle");
    job.data(write("d.jsonl", "{\"text\": \"" + text + "\"}\n")).steps(1);
    job.m.tokenizer = job.text(hostile);
    idle.m.tokenizer = idle.text(hostile);
    const std::string slow = create_id(job), id = create_running(idle, false);
    Shard__V1__GenerateRequest q = SHARD__V1__GENERATE_REQUEST__INIT;
    q.job = const_cast<char *>(id.c_str());
    q.prompt_text = {text.size(), reinterpret_cast<uint8_t *>(const_cast<char *>(text.data()))};
    Call ids = tokenize(hostile, text), tokens = call("Generate", &q.base);
    Call gone = tokenize(hostile, text);
    turn(200);
    EXPECT_EQ(state(slow), kQueued);
    gone->go();
    EXPECT_FALSE(ids->finished);
    EXPECT_FALSE(tokens->finished);
    const auto before = std::chrono::steady_clock::now();
    stop();
    EXPECT_LT(std::chrono::steady_clock::now() - before, std::chrono::seconds(20));
    for (const Call *c : {&ids, &tokens}) {
        EXPECT_EQ((*c)->code, SHD_EUNAVAILABLE) << (*c)->error;
    }
}

TEST_F(Tokenize, NothingBeginsOnceTheDaemonStops)
{
    start(false);
    bool stopped = false;
    shd_jobs_stop(
        jobs, [](void *flag) { *static_cast<bool *>(flag) = true; }, &stopped);
    EXPECT_TRUE(stopped);
    Call c = tokenize("bytes", "abc");
    EXPECT_EQ(c->code, SHD_EUNAVAILABLE) << c->error;
    turn();
}

// The table of documents is read beside the loop.
TEST_F(Tokenize, DataIsCutIntoWindowsBesideTheLoop)
{
    start(false);
    FullLane full(jobs, SHD_WORKERS_TEXT, me.uid);
    Spec spec("apart");
    spec.data(write("d.jsonl", documents(500))).steps(3);
    spec.m.has_packing_case = SHARD__V1__JOB_SPEC__HAS_PACKING_PACKING;
    spec.m.packing = 0;
    const std::string id = create_id(spec);
    const auto prepared = [&] {
        Call c = ref_async("GetJob", id);
        Unpacked<Shard__V1__Job> job(c->sent[0]);
        return job->progress != nullptr && job->progress->total > 0 &&
               job->progress->done == job->progress->total;
    };
    turn_until(prepared);
    turn(200);
    EXPECT_TRUE(prepared());
    EXPECT_EQ(state(id), kQueued);
    const std::string other = create_id(Spec("gone").data(dir + "/d.jsonl").steps(3));
    turn(200);
    EXPECT_TRUE(ref("CancelJob", other)->ok()); // while it waits to be cut
    EXPECT_TRUE(ref("DeleteJob", other)->ok());
    full.let_go();
    turn_until([&] { return state(id) == SHARD__V1__JOB_STATE__JOB_STATE_DONE && full.done(); });
    EXPECT_EQ(step(id), 3u);
}

TEST_F(Tokenize, OtherJobsGoOnMeanwhile)
{
    start(false);
    const std::string slow =
        create_id(Spec("slow").data(write("d.jsonl", documents(600000))).steps(1));
    const std::string quick = create_id(Spec("quick").data(data).steps(5));
    turn_until([&] { return state(quick) == SHARD__V1__JOB_STATE__JOB_STATE_DONE; });
    EXPECT_EQ(state(slow), kQueued);
}

TEST_F(Tokenize, JobsOnTheSameTextShareWhatIsMade)
{
    start(false);
    const std::string path = write("d.jsonl", documents(50000));
    std::vector<std::string> ids;
    for (const char *name : {"a", "b", "c"}) {
        ids.push_back(create_id(Spec(name).data(path).steps(1)));
    }
    for (const std::string &id : ids) {
        turn_until([&] { return state(id) == SHARD__V1__JOB_STATE__JOB_STATE_DONE; });
    }
    Call c = finished(tokenize("bytes", "", path));
    ASSERT_TRUE(c->ok()) << c->error;
    Unpacked<Shard__V1__TokenizeResponse> m(c->sent.back());
    EXPECT_EQ(m->documents, 50000u);
    EXPECT_EQ(std::string(m->path), "/cache/" + std::string(m->digest) + ".tokens");
    struct stat st;
    EXPECT_EQ(stat((dir + "/tokens/" + m->digest + ".tokens").c_str(), &st), 0);
}

TEST_F(Tokenize, SpecsThatDoNotFit)
{
    start(false);
    const std::string llama = tokenizer("llama3.json"), lines = write("d.jsonl", documents(10));
    struct {
        const char *model;
        std::string tok, data;
        bool packing;
        int code;
        std::vector<std::string> words;
    } cases[] = {
        {"gpt-byte-1m", llama, lines, true, SHD_EINVAL, {"--tokenizer", "has 1202 ids", "256"}},
        {"gpt2", "", lines, true, SHD_EINVAL, {"is text", "--tokenizer"}},
        {"gpt-byte-1m", dir, lines, true, SHD_ENOTFOUND, {"neither tokenizer.json nor"}},
        {"gpt-byte-1m", "words", lines, true, SHD_EINVAL, {"'words'", "absolute path"}},
        {"gpt-byte-1m", "/etc/tokenizer.json", lines, true, SHD_EPERM, {"data roots"}},
        {"gpt-byte-1m", write("x.json", "{"), lines, true, SHD_EDATA, {"--tokenizer", "not JSON"}},
        {"gpt-byte-1m", "", write("t.bin", "abcd"), false, SHD_EINVAL, {"--packing off"}},
    };
    for (const auto &c : cases) {
        Spec spec("s");
        spec.m.model = spec.text(c.model);
        spec.m.tokenizer = spec.text(c.tok);
        spec.data(c.data);
        spec.m.has_packing_case = SHARD__V1__JOB_SPEC__HAS_PACKING_PACKING;
        spec.m.packing = c.packing;
        Call made = create(spec);
        EXPECT_EQ(made->code, c.code) << made->error;
        for (const std::string &word : c.words) {
            EXPECT_NE(made->error.find(word), std::string::npos)
                << made->error << " lacks " << word;
        }
    }
}

TEST_F(Tokenize, TextAndBack)
{
    start(false);
    const std::string llama = tokenizer("llama3.json");
    const std::string text = "in the beginning \xff was";
    Call c = finished(tokenize(llama, text));
    ASSERT_TRUE(c->ok()) << c->error;
    const std::vector<int32_t> ids = ids_of(c);
    ASSERT_GT(ids.size(), 2u);
    EXPECT_EQ(ids[0], 1200); // <|begin_of_text|>
    EXPECT_EQ(Unpacked<Shard__V1__TokenizeResponse>(c->sent[0])->count, ids.size());
    EXPECT_EQ(Unpacked<Shard__V1__TokenizeResponse>(c->sent[0])->vocab, 1202u);
    c = finished(tokenize(llama, "", "", ids));
    ASSERT_TRUE(c->ok()) << c->error;
    Unpacked<Shard__V1__TokenizeResponse> m(c->sent[0]);
    EXPECT_EQ(std::string(reinterpret_cast<char *>(m->text.data), m->text.len),
              "<|begin_of_text|>in the beginning \xef\xbf\xbd was");
    // By a job.
    const std::string job = create_id(Spec("job"));
    EXPECT_EQ(ids_of(finished(tokenize("", "ab", "", {}, job))), (std::vector<int32_t>{97, 98}));
}

TEST_F(Tokenize, LongAnswersComeInPartsAsTheyAreRead)
{
    start(false);
    const std::string text(200000, 'x');
    Call c = make_call();
    c->room = 1;
    Shard__V1__TokenizeRequest q = SHARD__V1__TOKENIZE_REQUEST__INIT;
    q.tokenizer = const_cast<char *>("bytes");
    q.text = {text.size(), reinterpret_cast<uint8_t *>(const_cast<char *>(text.data()))};
    dispatch(c.get(), "Tokenize", &q.base);
    turn_until([&] { return !c->sent.empty(); });
    turn();
    EXPECT_EQ(c->sent.size(), 1u);
    EXPECT_FALSE(c->finished);
    c->read(100);
    turn_until([&] { return c->finished; });
    EXPECT_EQ(ids_of(c).size(), text.size());
    EXPECT_GT(c->sent.size(), 3u);
}

TEST_F(Tokenize, WrongRequests)
{
    start(false);
    struct {
        std::string tok, text, file;
        std::vector<int32_t> ids;
        std::string job;
        int code;
        std::string word;
    } cases[] = {
        {"bytes", "", "", {}, "", SHD_EINVAL, "give one of text, tokens and data; 0"},
        {"bytes", "a", "", {1}, "", SHD_EINVAL, "2 are given"},
        {"", "a", "", {}, "", SHD_EINVAL, "neither"},
        {"bytes", "a", "", {}, "job", SHD_EINVAL, "both"},
        {"", "a", "", {}, "nobody", SHD_ENOTFOUND, "no job"},
        {"bytes", "", "", {256}, "", SHD_EINVAL, "256"},
        {"bytes", "", dir + "/none", {}, "", SHD_ENOTFOUND, "does not exist"},
        {"bytes", "", write("t.bin", "abcd"), {}, "", SHD_EINVAL, "token file"},
        {dir + "/none.json", "a", "", {}, "", SHD_ENOTFOUND, "does not exist"},
    };
    for (const auto &c : cases) {
        Call made = finished(tokenize(c.tok, c.text, c.file, c.ids, c.job));
        EXPECT_EQ(made->code, c.code) << made->error;
        EXPECT_NE(made->error.find(c.word), std::string::npos) << made->error;
    }
}

TEST_F(Tokenize, AFormatIsAFilesAlone)
{
    start(false);
    Shard__V1__TokenizeRequest q = SHARD__V1__TOKENIZE_REQUEST__INIT;
    q.tokenizer = const_cast<char *>("bytes");
    std::string text = "abc";
    q.text = {text.size(), reinterpret_cast<uint8_t *>(&text[0])};
    q.data_format = const_cast<char *>("jsonl");
    Call c = call("Tokenize", &q.base);
    EXPECT_EQ(c->code, SHD_EINVAL);
    EXPECT_NE(c->error.find("data_format 'jsonl' is given without data"), std::string::npos)
        << c->error;
}

TEST_F(Tokenize, CallersThatGoAway)
{
    start(false);
    const std::string path = write("d.jsonl", documents(600000));
    Call pool = tokenize("bytes", std::string(1000, 'x')); // on the pool
    pool->go();
    Call file = tokenize("bytes", "", path); // being prepared
    turn(200);
    file->go();
    turn();
    Call reading = tokenize("bytes", std::string(200000, 'x')); // not read
    reading->room = 1;
    turn_until([&] { return !reading->sent.empty(); });
    reading->go();
    turn();
    EXPECT_FALSE(file->finished);
}

TEST_F(Tokenize, OneUserHasSoManyTextsInWork)
{
    start(false);
    std::vector<Call> calls;
    for (int i = 0; i < 5; i++) {
        calls.push_back(tokenize("bytes", "abc"));
    }
    EXPECT_EQ(calls[4]->code, SHD_EFULL) << calls[4]->error;
    EXPECT_NE(calls[4]->error.find("of yours"), std::string::npos) << calls[4]->error;
    shd_identity other = me;
    other.uid += 1;
    calls.push_back(tokenize("bytes", "abc", "", {}, "", &other));
    for (int i : {0, 1, 2, 3, 5}) {
        turn_until([&] { return calls[i]->finished; });
        EXPECT_TRUE(calls[i]->ok()) << calls[i]->error;
        EXPECT_EQ(ids_of(calls[i]), (std::vector<int32_t>{'a', 'b', 'c'}));
    }
    EXPECT_TRUE(finished(tokenize("bytes", "abc"))->ok());
}

TEST_F(Tokenize, AUsersFilesDoNotHoldUpAnothers)
{
    start(false);
    std::vector<Call> mine;
    for (const char *name : {"a.jsonl", "b.jsonl", "c.jsonl"}) {
        mine.push_back(tokenize("bytes", "", write(name, documents(600000))));
    }
    shd_identity other = me;
    other.uid += 1;
    ASSERT_EQ(chmod(dir.c_str(), 0755), 0);
    Call theirs = finished(tokenize("bytes", "", write("d.txt", "abc"), {}, "", &other));
    EXPECT_TRUE(theirs->ok()) << theirs->error;
    EXPECT_FALSE(mine[2]->finished);
    for (Call &c : mine) {
        c->go();
    }
    turn();
}

TEST_F(Tokenize, ProgressOfAFile)
{
    start(false);
    const std::string path = write("d.jsonl", documents(600000));
    Call c = finished(tokenize("bytes", "", path));
    ASSERT_TRUE(c->ok()) << c->error;
    ASSERT_GT(c->sent.size(), 1u);
    Unpacked<Shard__V1__TokenizeResponse> first(c->sent.front()), last(c->sent.back());
    ASSERT_NE(first->progress, nullptr);
    EXPECT_GT(first->progress->total, 0u);
    EXPECT_EQ(last->progress, nullptr);
    EXPECT_EQ(last->documents, 600000u);
}

TEST_F(Tokenize, WithoutACacheTextIsRefused)
{
    shd_preparer_free(preparer);
    preparer = nullptr;
    start(false);
    Call c = create(Spec("lines").data(write("d.jsonl", documents(5))));
    EXPECT_EQ(c->code, SHD_EUNSUPPORTED) << c->error;
    EXPECT_EQ(state("lines"), SHARD__V1__JOB_STATE__JOB_STATE_UNSPECIFIED);
    const std::string id = create_id(Spec("bytes").data(data).steps(1));
    turn_until([&] { return state(id) != kQueued && state(id) != kRunning; });
}

} // namespace
