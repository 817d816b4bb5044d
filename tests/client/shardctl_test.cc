// The real shardctl against a scripted daemon, and against none.
#include <jansson.h>
#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "proto/shd_errno.h"
#include "tests/client/client_test_util.h"
#include "gtest/gtest.h"

namespace
{
const auto RUNNING = SHARD__V1__JOB_STATE__JOB_STATE_RUNNING;
const auto DONE = SHARD__V1__JOB_STATE__JOB_STATE_DONE;
const auto FAILED = SHARD__V1__JOB_STATE__JOB_STATE_FAILED;
const auto CANCELLED = SHARD__V1__JOB_STATE__JOB_STATE_CANCELLED;

std::vector<std::string> lines(const std::string &text)
{
    std::vector<std::string> out;
    std::istringstream in(text);
    for (std::string line; std::getline(in, line);)
        out.push_back(line);
    return out;
}

// One line of --json, freed with the object.
class Json
{
  public:
    explicit Json(const std::string &line)
    {
        json_error_t error;
        root_ = json_loads(line.c_str(), JSON_REJECT_DUPLICATES, &error);
        EXPECT_NE(root_, nullptr) << error.text << ": " << line;
    }
    Json(const Json &) = delete;
    ~Json()
    {
        json_decref(root_);
    }
    const json_t *at(const char *key) const
    {
        return json_object_get(root_, key);
    }
    std::string text(const char *key) const
    {
        const char *value = json_string_value(at(key));
        return value ? value : "";
    }
    long long whole(const char *key) const
    {
        return json_integer_value(at(key));
    }
    std::set<std::string> keys() const
    {
        std::set<std::string> out;
        const char *key;
        json_t *value;
        json_object_foreach(root_, key, value) out.insert(key);
        return out;
    }

  private:
    json_t *root_;
};

class Ctl : public ::testing::Test
{
  protected:
    Ctl() : socket(dir.path("s")), daemon(new FakeDaemon(socket)) {}
    Result ctl(std::vector<std::string> args)
    {
        args.insert(args.begin(), {"--socket", socket});
        return shardctl(args);
    }
    Result json(std::vector<std::string> args)
    {
        args.insert(args.begin(), {"--socket", socket, "--json"});
        return shardctl(args);
    }
    // A job of `steps` that ends in `last`; Watch from any step.
    void script_job(uint64_t steps, Shard__V1__JobState last, const std::string &reason = "")
    {
        daemon->reply("CreateJob", TestJob(0, steps).job);
        daemon->reply("GetJob", TestJob(0, steps).job);
        daemon->on("Watch", [=](fake_call *call, const std::string &request) {
            for (uint64_t step = first_step(request); step <= steps; step++)
                send_event(call, step_event(step, step, 5.0 / static_cast<double>(step)));
            send_event(call, eval_event(steps + 1, steps, 1.25));
            send_event(call, state_event(steps + 2, last, steps, reason));
            fake_finish(call, 0, "", 0);
        });
    }
    static uint64_t first_step(const std::string &request)
    {
        Shard__V1__WatchRequest *watch = shard__v1__watch_request__unpack(
            nullptr, request.size(), reinterpret_cast<const uint8_t *>(request.data()));
        EXPECT_EQ(watch->has_from_step_case, SHARD__V1__WATCH_REQUEST__HAS_FROM_STEP_FROM_STEP);
        const uint64_t from = watch->from_step ? watch->from_step : 1;
        shard__v1__watch_request__free_unpacked(watch, nullptr);
        return from;
    }

    ScratchDir dir;
    std::string socket;
    std::unique_ptr<FakeDaemon> daemon;
};
} // namespace

// ---- exit statuses ----

TEST_F(Ctl, NoDaemonIsThree)
{
    daemon.reset();
    for (const std::vector<std::string> &args :
         std::vector<std::vector<std::string>>{{"jobs"},
                                               {"status"},
                                               {"status", "--watch"},
                                               {"attach", "7"},
                                               {"submit", "--model", "gpt2"},
                                               {"plan", "--model", "gpt2"},
                                               {"generate", "7", "--prompt", "x"},
                                               {"cancel", "7"},
                                               {"logs", "7"}}) {
        const Result r = ctl(args);
        EXPECT_EQ(r.status, 3) << args[0] << r.out << r.err;
        EXPECT_EQ(r.err.find("shardctl: cannot reach shardd at " + socket), 0u) << r.err;
        EXPECT_NE(r.err.find("; start shardd"), std::string::npos) << r.err;
        EXPECT_EQ(r.out, "");
    }
    const Result r = ctl({"version"});
    EXPECT_EQ(r.status, 0);
    EXPECT_NE(r.out.find("shardctl 0.1.0\nshardd unknown: cannot reach"), std::string::npos)
        << r.out;
}

TEST_F(Ctl, UsageIsTwo)
{
    const std::string empty = dir.write("empty", "");
    for (const std::vector<std::string> &args : std::vector<std::vector<std::string>>{
             {},
             {"fly"},
             {"jobs", "extra"},
             {"jobs", "--frobnicate"},
             {"attach"},
             {"attach", "7", "--from", "-1"},
             {"submit"},
             {"submit", "--model", "gpt2", "--steps", "0x5"},
             {"submit", "--model", "gpt2", "--data", dir.path("none")},
             {"submit", "--model", "gpt2", "--data", empty},
             {"submit", "--file", dir.write("bad.json", "{\"modle\": \"gpt2\"}")},
             {"plan", "--ranks", "two"},
             {"status", "--watch", "0"},
             {"reshard", "7"},
             {"export", "7"},
             {"tokenize"},
             {"eval", "7"},
             {"generate", "7", "--temperature", "-1"}}) {
        const Result r = ctl(args);
        EXPECT_EQ(r.status, 2) << r.out << r.err;
        EXPECT_EQ(r.err.find("shardctl: "), 0u) << r.err;
        EXPECT_NE(r.err.find("; "), std::string::npos) << r.err;
        EXPECT_EQ(lines(r.err).size(), 1u) << r.err;
        EXPECT_EQ(r.out, "");
    }
    EXPECT_EQ(shardctl({"--socket"}).status, 2);
    EXPECT_EQ(shardctl({"--sokcet", "x", "jobs"}).status, 2);
    EXPECT_EQ(shardctl({"--socket", std::string(200, 'x'), "jobs"}).status, 2);
}

TEST_F(Ctl, RefusedIsFourWithTheDaemonsWords)
{
    daemon->refuse("CreateJob", 8, "job needs 5 GiB per rank, 4 are free; use zero3", SHD_ENOMEM);
    Result r = ctl({"submit", "--model", "gpt2"});
    EXPECT_EQ(r.status, 4);
    EXPECT_EQ(r.err, "shardctl: job needs 5 GiB per rank, 4 are free; use zero3\n");
    daemon->refuse("GetJob", 5, "no job \"x\"; see shardctl jobs", SHD_ENOTFOUND);
    EXPECT_EQ(ctl({"attach", "x"}).status, 4);
    for (const auto &args :
         std::vector<std::vector<std::string>>{{"checkpoint", "7"},
                                               {"export", "7", "--output", dir.path("m")},
                                               {"reshard", "7", "--strategy", "zero1"}}) {
        r = ctl(args); // not in the script: UNIMPLEMENTED
        EXPECT_EQ(r.status, 4);
        EXPECT_EQ(r.err, "shardctl: not in this script\n");
    }
}

TEST_F(Ctl, DaemonThatStopsIsThree)
{
    daemon->refuse("ListJobs", 14, "the daemon is stopping; try again later", SHD_EUNAVAILABLE);
    const Result r = ctl({"jobs"});
    EXPECT_EQ(r.status, 3);
    EXPECT_EQ(r.err, "shardctl: the daemon is stopping; try again later\n");
}

TEST_F(Ctl, HelpIsZero)
{
    for (const std::vector<std::string> &args : std::vector<std::vector<std::string>>{
             {"--help"}, {"help"}, {"submit", "--help"}, {"help", "submit"}, {"-h"}}) {
        const Result r = ctl(args);
        EXPECT_EQ(r.status, 0);
        EXPECT_EQ(r.out.find("usage: shardctl"), 0u) << r.out;
        EXPECT_EQ(r.err, "");
    }
    EXPECT_EQ(ctl({"help", "submit"}).out.find("--priority") == std::string::npos, false);
    EXPECT_EQ(ctl({"help", "fly"}).status, 2);
}

TEST_F(Ctl, SocketFromTheEnvironment)
{
    Shard__V1__ListJobsResponse list = SHARD__V1__LIST_JOBS_RESPONSE__INIT;
    daemon->reply("ListJobs", list);
    EXPECT_EQ(shardctl({"jobs"}, {"SHARDD_SOCKET=" + socket}).status, 0);
    EXPECT_EQ(shardctl({"jobs"}, {"SHARDD_SOCKET=/none"}).status, 3);
    EXPECT_EQ(shardctl({"--socket", socket, "jobs"}, {"SHARDD_SOCKET=/none"}).status, 0);
    EXPECT_EQ(shardctl({"jobs", "--socket", socket}, {"SHARDD_SOCKET=/none"}).status, 0);
}

// ---- submit and attach ----

TEST_F(Ctl, SubmitShowsEveryOfFewStepsAndEndsWithZero)
{
    script_job(10, DONE);
    const Result r = ctl({"submit", "--model", "gpt-byte-1m", "--steps", "10"});
    EXPECT_EQ(r.status, 0) << r.err;
    EXPECT_EQ(r.err, "");
    const auto out = lines(r.out);
    ASSERT_EQ(out.size(), 13u) << r.out;
    EXPECT_EQ(out[0], "job 7 (tale): gpt-byte-1m, 842k parameters, zero3 on 2 ranks");
    EXPECT_EQ(out[1].find("step 1/10  loss 5.0000  grad norm 0.500  lr 3.00e-04  10.2k tokens/s"),
              0u)
        << out[1];
    EXPECT_EQ(out[10].find("step 10/10  loss 0.5000"), 0u) << out[10];
    EXPECT_EQ(out[11], "eval at step 10  loss 1.2500  on 4.10k tokens in 0.2 s");
    EXPECT_EQ(out[12], "tale: done at step 10");
    EXPECT_EQ(r.out.find('\033'), std::string::npos);
}

TEST_F(Ctl, SubmitSaysWhatIsNotOrdinary)
{
    TestJob job;
    job.spec.dtype = const_cast<char *>("bf16");
    job.job.trainable = 21000;
    daemon->reply("CreateJob", job.job);
    EXPECT_EQ(
        ctl({"submit", "--model", "gpt-byte-1m", "--detach"}).out,
        "job 7 (tale): gpt-byte-1m, 842k parameters, zero3 on 2 ranks, 21.0k of them trained, "
        "bf16\n");
}

TEST_F(Ctl, FailedOrCancelledIsOne)
{
    script_job(2, FAILED, "the loss is not finite at step 2");
    Result r = ctl({"submit", "--model", "gpt-byte-1m"});
    EXPECT_EQ(r.status, 1);
    EXPECT_NE(r.out.find("tale: failed at step 2: the loss is not finite at step 2\n"),
              std::string::npos)
        << r.out;
    script_job(2, CANCELLED, "by ada");
    EXPECT_EQ(ctl({"attach", "tale"}).status, 1);
    daemon->refuse("ExportModel", 1, "job 7 was cancelled", SHD_ECANCELLED);
    r = ctl({"export", "tale", "--output", "model"});
    EXPECT_EQ(r.status, 1);
    EXPECT_EQ(r.err, "shardctl: job 7 was cancelled\n");
}

TEST_F(Ctl, ManyStepsAreThinnedAndTheLastIsShown)
{
    script_job(1234, DONE);
    const Result r = ctl({"attach", "tale", "--from", "1"});
    EXPECT_EQ(r.status, 0);
    EXPECT_LE(lines(r.out).size(), 120u);
    EXPECT_GE(lines(r.out).size(), 100u);
    EXPECT_NE(r.out.find("step 1234/1234"), std::string::npos);
}

TEST_F(Ctl, JsonLinesHaveExactlyTheirKeys)
{
    script_job(3, DONE);
    const Result r = json({"submit", "--model", "gpt-byte-1m", "--steps", "3"});
    EXPECT_EQ(r.status, 0) << r.err;
    const auto out = lines(r.out);
    ASSERT_EQ(out.size(), 6u) << r.out;
    EXPECT_EQ(Json(out[0]).text("job"), "7");
    for (int i = 1; i <= 3; i++) {
        Json step(out[static_cast<size_t>(i)]);
        EXPECT_EQ(step.keys(),
                  (std::set<std::string>{"step", "loss", "grad_norm", "lr", "tokens", "step_ms",
                                         "tokens_per_s", "skipped", "samples", "unix"}));
        EXPECT_EQ(step.whole("step"), i);
        EXPECT_EQ(json_real_value(step.at("loss")), 5.0 / i);
        EXPECT_EQ(step.whole("tokens"), 128);
    }
    Json eval(out[4]);
    EXPECT_EQ(json_real_value(eval.at("eval_loss")), 1.25);
    EXPECT_EQ(eval.whole("step"), 3);
    Json state(out[5]);
    EXPECT_EQ(state.text("state"), "done");
    EXPECT_EQ(state.text("reason"), "");
}

TEST_F(Ctl, SubmitSendsTheSpecification)
{
    std::mutex lock;
    std::string seen;
    daemon->on("CreateJob", [&](fake_call *call, const std::string &request) {
        std::lock_guard<std::mutex> guard(lock);
        seen = request;
        TestJob job;
        fake_send(call, &job.job.base);
        fake_finish(call, 0, "", 0);
    });
    const std::string data = dir.write("text", "abc");
    const std::string file =
        dir.write("job.json", "{\"lr_min\": 1e-5, \"steps\": 7, \"name\": \"from-file\"}");
    const Result r =
        ctl({"submit", "--file", file, "--model", "gpt-byte-1m", "--data", data, "--steps", "9",
             "--shard-degrees", "1,1,2", "--priority", "20", "--detach"});
    EXPECT_EQ(r.status, 0) << r.err;
    EXPECT_EQ(lines(r.out).size(), 1u) << r.out;
    std::lock_guard<std::mutex> guard(lock);
    Shard__V1__CreateJobRequest *request = shard__v1__create_job_request__unpack(
        nullptr, seen.size(), reinterpret_cast<const uint8_t *>(seen.data()));
    ASSERT_NE(request, nullptr);
    EXPECT_EQ(std::string(request->request_id).size(), 32u);
    EXPECT_STREQ(request->spec->name, "from-file");
    EXPECT_STREQ(request->spec->data, data.c_str());
    EXPECT_EQ(request->spec->steps, 9u);
    EXPECT_EQ(request->spec->lr_min, 1e-5);
    EXPECT_EQ(request->spec->n_shard_degrees, 3u);
    EXPECT_EQ(request->spec->priority, 20u);
    EXPECT_EQ(request->spec->has_lr_case, SHARD__V1__JOB_SPEC__HAS_LR__NOT_SET);
    shard__v1__create_job_request__free_unpacked(request, nullptr);
    daemon.reset(); // before what its handlers hold
}

TEST_F(Ctl, PreparingIsShownUntilItIsOver)
{
    const auto QUEUED = SHARD__V1__JOB_STATE__JOB_STATE_QUEUED;
    script_job(2, DONE);
    daemon->reply("CreateJob", TestJob(0, 2, QUEUED).job);
    std::atomic<int> asked{0};
    daemon->on("GetJob", [&](fake_call *call, const std::string &) {
        TestJob job(0, 2, QUEUED);
        Shard__V1__Progress progress = SHARD__V1__PROGRESS__INIT;
        progress.what = const_cast<char *>("tokenizing");
        progress.done = static_cast<uint64_t>(++asked) << 20;
        progress.total = 4 << 20;
        job.job.progress = &progress;
        fake_send(call, &job.job.base);
        fake_finish(call, 0, "", 0);
    });
    daemon->on("Watch", [&](fake_call *call, const std::string &) {
        for (int waited = 0; asked < 3 && waited < 20000; waited += 10)
            std::this_thread::sleep_for(std::chrono::milliseconds(10));
        std::this_thread::sleep_for(std::chrono::milliseconds(50)); // until it is shown
        asked = 0;
        send_event(call, state_event(1, RUNNING, 0));
        send_event(call, step_event(2, 1, 5));
        send_event(call, state_event(3, DONE, 1));
        fake_finish(call, 0, "", 0);
    });
    Result r = ctl({"submit", "--model", "gpt-byte-1m"});
    EXPECT_EQ(r.status, 0) << r.err;
    EXPECT_NE(r.out.find("tokenizing 1.0 MiB of 4.0 MiB (25%)\n"
                         "tokenizing 2.0 MiB of 4.0 MiB (50%)\n"
                         "tokenizing 3.0 MiB of 4.0 MiB (75%)\n"
                         "tale: running at step 0\nstep 1/2"),
              std::string::npos)
        << r.out;
    Shardctl run({"--socket", socket, "submit", "--model", "gpt-byte-1m"}, true);
    r = run.finish();
    EXPECT_NE(r.out.find("\xE2\x96\x88"), std::string::npos); // a bar, taken away again
    EXPECT_NE(r.out.find("MiB (75%)\033[K\r\033[K\033[1mtale: running"), std::string::npos)
        << r.out;
    const auto objects = lines(json({"submit", "--model", "gpt-byte-1m"}).out);
    ASSERT_GE(objects.size(), 7u);
    EXPECT_EQ(Json(objects[1]).text("progress"), "tokenizing");
    EXPECT_EQ(Json(objects[1]).whole("done"), 1 << 20);
    EXPECT_EQ(Json(objects[1]).whole("total"), 4 << 20);
    daemon.reset(); // before what its handlers hold
}

TEST_F(Ctl, SubmitAsksAgainWithTheSameIdWhenTheConnectionBreaks)
{
    std::mutex lock;
    std::vector<std::string> ids;
    daemon->on("CreateJob", [&](fake_call *call, const std::string &request) {
        Shard__V1__CreateJobRequest *create = shard__v1__create_job_request__unpack(
            nullptr, request.size(), reinterpret_cast<const uint8_t *>(request.data()));
        size_t n;
        {
            std::lock_guard<std::mutex> guard(lock);
            ids.push_back(create->request_id);
            n = ids.size();
        }
        shard__v1__create_job_request__free_unpacked(create, nullptr);
        if (n == 1) {
            daemon->cut(); // the job is made, the answer is lost
            return;
        }
        TestJob job;
        fake_send(call, &job.job.base);
        fake_finish(call, 0, "", 0);
    });
    const Result r = ctl({"submit", "--model", "gpt-byte-1m", "--detach"});
    EXPECT_EQ(r.status, 0) << r.err;
    std::lock_guard<std::mutex> guard(lock);
    ASSERT_EQ(ids.size(), 2u);
    EXPECT_EQ(ids[0], ids[1]);
    daemon.reset(); // before what its handlers hold
}

TEST_F(Ctl, InterruptDetachesWithZero)
{
    script_job(1000, DONE);
    daemon->on("Watch", [](fake_call *call, const std::string &) {
        send_event(call, step_event(1, 1, 5));
        send_event(call, step_event(2, 2, 4));
        send_event(call, eval_event(3, 2, 3.5));
        fake_wait_gone(call, 20000);
    });
    for (const char *command : {"submit", "attach"}) {
        std::vector<std::string> args{"--socket", socket, command};
        if (args[2] == "submit")
            args.insert(args.end(), {"--model", "gpt-byte-1m"});
        else
            args.insert(args.end(), {"tale", "--from", "1"});
        for (bool tty : {false, true}) {
            Shardctl run(args, tty);
            ASSERT_TRUE(run.wait_for("eval at step 2"));
            run.signal(SIGINT);
            const Result r = run.finish();
            EXPECT_EQ(r.status, 0) << r.err;
            EXPECT_NE(r.out.find("detached; the job goes on: shardctl attach tale"),
                      std::string::npos)
                << r.out;
            EXPECT_NE(r.out.find("step 2/1000"), std::string::npos) << r.out; // the last is shown
        }
    }
    EXPECT_EQ(daemon->calls("CancelJob"), 0);
}

TEST_F(Ctl, JsonDetachKeepsStandardOutputClean)
{
    script_job(1000, DONE);
    daemon->on("Watch", [](fake_call *call, const std::string &) {
        send_event(call, step_event(1, 1, 5));
        fake_wait_gone(call, 20000);
    });
    Shardctl run({"--socket", socket, "--json", "attach", "tale", "--from", "1"});
    ASSERT_TRUE(run.wait_for("\"step\": 1"));
    run.signal(SIGINT);
    const Result r = run.finish();
    EXPECT_EQ(r.status, 0);
    for (const auto &line : lines(r.out))
        Json parsed(line);
    EXPECT_NE(r.err.find("detached"), std::string::npos);
}

TEST_F(Ctl, BrokenStreamResumesWithoutGapOrRepetition)
{
    const uint64_t steps = 60;
    script_job(steps, DONE);
    std::atomic<int> streams{0};
    daemon->on("Watch", [&](fake_call *call, const std::string &request) {
        const int nth = ++streams;
        uint64_t step = first_step(request);
        for (; step <= steps; step++) {
            send_event(call, step_event(step, step, 1));
            if (nth < 4 && step == static_cast<uint64_t>(nth) * 15) {
                if (nth == 2)
                    fake_finish(call, 14, "the daemon is busy; try again", SHD_EUNAVAILABLE);
                else
                    daemon->cut();
                return;
            }
        }
        send_event(call, state_event(steps + 1, DONE, steps));
        fake_finish(call, 0, "", 0);
    });
    const Result r = json({"attach", "tale", "--from", "1"});
    EXPECT_EQ(r.status, 0) << r.err;
    EXPECT_GE(streams, 4);
    long long expected = 1;
    for (const auto &line : lines(r.out)) {
        Json event(line);
        if (event.at("loss")) {
            EXPECT_EQ(event.whole("step"), expected++);
        }
    }
    EXPECT_EQ(expected, 61);
    EXPECT_NE(r.err.find("connecting again"), std::string::npos) << r.err;
    daemon.reset(); // before what its handlers hold
}

TEST_F(Ctl, DaemonThatDiesIsThree)
{
    script_job(1000, DONE);
    daemon->on("Watch", [&](fake_call *call, const std::string &) {
        send_event(call, step_event(1, 1, 5));
        fake_wait_gone(call, 20000);
    });
    Shardctl run({"--socket", socket, "attach", "tale", "--from", "1"});
    ASSERT_TRUE(run.wait_for("step 1/1000"));
    daemon.reset();
    const Result r = run.finish();
    EXPECT_EQ(r.status, 3);
    EXPECT_NE(r.err.find("there is no such socket"), std::string::npos) << r.err;
}

TEST_F(Ctl, AttachToAJobThatIsOver)
{
    daemon->reply("GetJob", TestJob(10, 10, DONE).job);
    Result r = ctl({"attach", "tale"});
    EXPECT_EQ(r.status, 0);
    EXPECT_EQ(r.out, "tale: done at step 10\n");
    EXPECT_EQ(daemon->calls("Watch"), 0);
    daemon->reply("GetJob", TestJob(10, 10, FAILED).job);
    EXPECT_EQ(ctl({"attach", "tale"}).status, 1);
}

TEST_F(Ctl, JobThatEndsBetweenTheQuestionAndTheStream)
{
    std::atomic<int> asked{0};
    daemon->on("GetJob", [&](fake_call *call, const std::string &) {
        TestJob job(10, 10, ++asked == 1 ? RUNNING : DONE);
        fake_send(call, &job.job.base);
        fake_finish(call, 0, "", 0);
    });
    daemon->on("Watch", [](fake_call *call, const std::string &) { fake_wait_gone(call, 60000); });
    const Result r = ctl({"attach", "tale"});
    EXPECT_EQ(r.status, 0);
    EXPECT_EQ(r.out, "tale: done at step 10\n");
    daemon.reset(); // before what its handlers hold
}

TEST_F(Ctl, TerminalGetsOneLineRedrawn)
{
    script_job(200, DONE);
    Shardctl run({"--socket", socket, "attach", "tale", "--from", "1"}, true);
    const Result r = run.finish();
    EXPECT_EQ(r.status, 0);
    EXPECT_NE(r.out.find("\r"), std::string::npos);
    EXPECT_NE(r.out.find("\033[K"), std::string::npos);
    EXPECT_NE(r.out.find("step 200/200"), std::string::npos);
    EXPECT_NE(r.out.find("\xE2\x96\x88"), std::string::npos); // a bar
    EXPECT_NE(r.out.find("\033[1mtale: done"), std::string::npos) << r.out;
    Shardctl plain({"--socket", socket, "attach", "tale", "--from", "1"}, true, {"NO_COLOR=1"});
    EXPECT_EQ(plain.finish().out.find("\033[1m"), std::string::npos);
}

// ---- the others ----

TEST_F(Ctl, JobsTableAndJson)
{
    TestJob a(120, 300), b(10, 10, DONE);
    Shard__V1__StepResult last = SHARD__V1__STEP_RESULT__INIT;
    last.step = 120;
    last.loss = 2.5;
    a.job.last = &last;
    b.job.id = const_cast<char *>("8");
    Shard__V1__Job *jobs[] = {&a.job, &b.job};
    Shard__V1__ListJobsResponse list = SHARD__V1__LIST_JOBS_RESPONSE__INIT;
    list.n_jobs = 2;
    list.jobs = jobs;
    daemon->reply("ListJobs", list);
    const auto out = lines(ctl({"jobs"}).out);
    ASSERT_EQ(out.size(), 3u);
    EXPECT_EQ(out[0].find("ID  NAME  OWNER  STATE"), 0u) << out[0];
    EXPECT_EQ(out[1].find("7   tale  ada    running  120/300  2.5000  zero3         2"), 0u)
        << out[1];
    const auto objects = lines(json({"jobs"}).out);
    ASSERT_EQ(objects.size(), 2u);
    EXPECT_EQ(Json(objects[0]).whole("step"), 120);
    EXPECT_EQ(Json(objects[1]).text("state"), "done");
    EXPECT_TRUE(json_is_null(Json(objects[1]).at("loss")));
}

TEST_F(Ctl, StatusOnceAndWatched)
{
    Shard__V1__StatusResponse status = SHARD__V1__STATUS_RESPONSE__INIT;
    status.version = const_cast<char *>("0.1.0");
    status.pid = 5;
    daemon->reply("Status", status);
    std::atomic<unsigned> interval{0};
    daemon->on("WatchStatus", [&](fake_call *call, const std::string &request) {
        Shard__V1__WatchStatusRequest *watch = shard__v1__watch_status_request__unpack(
            nullptr, request.size(), reinterpret_cast<const uint8_t *>(request.data()));
        interval = watch->interval_ms;
        shard__v1__watch_status_request__free_unpacked(watch, nullptr);
        for (int i = 0; i < 3; i++)
            fake_send(call, &status.base);
        fake_wait_gone(call, 20000);
    });
    EXPECT_NE(ctl({"status"}).out.find("shardd 0.1.0"), std::string::npos);
    EXPECT_EQ(Json(json({"status"}).out).whole("pid"), 5);
    EXPECT_NE(ctl({"version"}).out.find("shardctl 0.1.0\nshardd 0.1.0\n"), std::string::npos);

    Shardctl run({"--socket", socket, "status", "--watch", "2.5"}, true);
    ASSERT_TRUE(run.wait_for("no jobs"));
    run.signal(SIGINT);
    const Result r = run.finish();
    EXPECT_EQ(r.status, 0);
    EXPECT_EQ(interval, 2500u);
    EXPECT_EQ(r.out.find("\033[?1049h\033[?25l"), 0u);
    EXPECT_EQ(r.out.rfind("\033[?25h\033[?1049l"), r.out.size() - 14); // the screen comes back
    Shardctl objects({"--socket", socket, "--json", "status", "--watch"});
    ASSERT_TRUE(objects.wait_for("}\n"));
    objects.signal(SIGINT);
    const Result watched = objects.finish();
    EXPECT_EQ(watched.status, 0);
    for (const auto &line : lines(watched.out))
        EXPECT_EQ(Json(line).whole("pid"), 5);
    daemon.reset(); // before what its handlers hold
}

TEST_F(Ctl, PlanThatDoesNotFitIsFour)
{
    Shard__V1__PlanResponse plan = SHARD__V1__PLAN_RESPONSE__INIT;
    plan.verdict =
        const_cast<char *>("does not fit: needs 5 GiB per rank, 4 are free; zero3 would fit");
    daemon->reply("Plan", plan);
    Result r = ctl({"plan", "--model", "gpt2"});
    EXPECT_EQ(r.status, 4);
    EXPECT_NE(r.out.find("\ndoes not fit: needs 5 GiB"), std::string::npos) << r.out;
    plan.fits = 1;
    TestJob job;
    job.spec.dtype = const_cast<char *>("bf16");
    job.spec.reduce_dtype = const_cast<char *>("fp32");
    job.spec.activation_checkpointing = const_cast<char *>("full");
    job.spec.optimizer = const_cast<char *>("lion");
    plan.spec = &job.spec;
    daemon->reply("Plan", plan);
    EXPECT_NE(ctl({"plan", "--model", "gpt2"})
                  .out.find("\nzero3; bf16, reduced in fp32; checkpointing full; lion\n"),
              std::string::npos);
    EXPECT_EQ(ctl({"plan", "--model", "gpt2"}).status, 0);
    r = json({"plan", "--model", "gpt2"});
    EXPECT_TRUE(json_is_true(Json(r.out).at("fits")));
}

TEST_F(Ctl, PauseResumeCancelDelete)
{
    for (const char *method : {"PauseJob", "ResumeJob", "CancelJob"})
        daemon->reply(method, TestJob(4, 10).job);
    Shard__V1__DeleteJobResponse gone = SHARD__V1__DELETE_JOB_RESPONSE__INIT;
    daemon->reply("DeleteJob", gone);
    EXPECT_EQ(ctl({"pause", "7"}).out, "tale: running at step 4\n");
    EXPECT_EQ(ctl({"resume", "7"}).status, 0);
    EXPECT_EQ(Json(json({"cancel", "7"}).out).text("id"), "7");
    EXPECT_EQ(ctl({"delete", "7"}).out, "7: deleted\n");
    for (const char *method : {"PauseJob", "ResumeJob", "CancelJob", "DeleteJob"})
        EXPECT_EQ(daemon->calls(method), 1) << method;
}

TEST_F(Ctl, GenerateBytes)
{
    std::mutex lock;
    std::string seen;
    daemon->reply("GetJob", TestJob().job);
    daemon->on("Generate", [&](fake_call *call, const std::string &request) {
        {
            std::lock_guard<std::mutex> guard(lock);
            seen = request;
        }
        for (int token : std::vector<int>{0x68, 0xC3, 0xB6, 0x1B, 0x0A, 0xFF}) {
            Shard__V1__GenerateResponse r = SHARD__V1__GENERATE_RESPONSE__INIT;
            r.token = token;
            r.logprob = -0.5f;
            r.step = 3;
            fake_send(call, &r.base);
        }
        fake_finish(call, 0, "", 0);
    });
    Result r = ctl({"generate", "7", "--prompt", "\xC3\xA4!", "--temperature", "0", "--seed", "9"});
    EXPECT_EQ(r.status, 0) << r.err;
    EXPECT_EQ(r.out, "h\xC3\xB6\x1B\n\xFF"); // exactly the model's bytes
    {
        std::lock_guard<std::mutex> guard(lock);
        Shard__V1__GenerateRequest *request = shard__v1__generate_request__unpack(
            nullptr, seen.size(), reinterpret_cast<const uint8_t *>(seen.data()));
        ASSERT_EQ(request->n_prompt, 3u);
        EXPECT_EQ(request->prompt[0], 0xC3);
        EXPECT_EQ(request->prompt[2], '!');
        EXPECT_EQ(request->has_temperature_case,
                  SHARD__V1__GENERATE_REQUEST__HAS_TEMPERATURE_TEMPERATURE);
        EXPECT_EQ(request->temperature, 0);
        EXPECT_EQ(request->seed, 9u);
        EXPECT_EQ(request->has_top_k_case, SHARD__V1__GENERATE_REQUEST__HAS_TOP_K__NOT_SET);
        shard__v1__generate_request__free_unpacked(request, nullptr);
    }
    Shardctl run({"--socket", socket, "generate", "7", "--prompt", "P"}, true);
    const std::string shown = run.finish().out;
    EXPECT_NE(shown.find("h\xC3\xB6\xEF\xBF\xBD\r\n\xEF\xBF\xBD\r\n"), std::string::npos) << shown;
    EXPECT_NE(shown.find("\033[2mP\033[0m"), std::string::npos) << shown;
    const auto objects = lines(json({"generate", "7", "--prompt", "P"}).out);
    ASSERT_EQ(objects.size(), 6u);
    EXPECT_EQ(Json(objects[1]).whole("token"), 0xC3);
    daemon.reset(); // before what its handlers hold
}

TEST_F(Ctl, GenerateTokens)
{
    TestJob job;
    job.job.vocab = 50257;
    daemon->reply("GetJob", job.job);
    daemon->on("Generate", [&](fake_call *call, const std::string &) {
        for (int token : {11, 50256}) {
            Shard__V1__GenerateResponse r = SHARD__V1__GENERATE_RESPONSE__INIT;
            r.token = token;
            fake_send(call, &r.base);
        }
        fake_finish(call, 0, "", 0);
    });
    EXPECT_EQ(ctl({"generate", "7", "--prompt-tokens", "1,2"}).out, "11,50256\n");
    Result r = ctl({"generate", "7", "--prompt", "text"});
    EXPECT_EQ(r.status, 2);
    EXPECT_NE(r.err.find("vocabulary of 50257"), std::string::npos) << r.err;
    EXPECT_EQ(ctl({"generate", "7"}).status, 2);
    EXPECT_EQ(ctl({"generate", "7", "--prompt-tokens", "50257"}).status, 2);
    EXPECT_EQ(ctl({"generate", "7", "--prompt-tokens", "1,x"}).status, 2);
    EXPECT_EQ(ctl({"generate", "7", "--prompt", "a", "--prompt-tokens", "1"}).status, 2);
    daemon.reset(); // before what its handlers hold
}

namespace
{
// A job with a tokenizer that makes one token of each letter but <e>, which is 900.
struct TextJob : TestJob {
    TextJob()
    {
        spec.tokenizer = const_cast<char *>("/m/tokenizer.json");
        job.vocab = 1000;
    }
};

void tokenize(fake_call *call, const std::string &packed)
{
    Shard__V1__TokenizeRequest *request = shard__v1__tokenize_request__unpack(
        nullptr, packed.size(), reinterpret_cast<const uint8_t *>(packed.data()));
    const std::string text(reinterpret_cast<const char *>(request->text.data), request->text.len);
    std::vector<int32_t> ids;
    if (text == "<e>")
        ids.push_back(1); // a beginning of text, as some put before every one
    for (size_t i = 0; i < text.size(); i++) {
        if (text.compare(i, 3, "<e>") == 0) {
            ids.push_back(900);
            i += 2;
        } else {
            ids.push_back(500 + text[i]);
        }
    }
    std::string back;
    for (size_t i = 0; i < request->n_tokens; i++)
        back += request->tokens[i] == 900
                    ? "<e>"
                    : std::string(1, static_cast<char>(request->tokens[i] - 500));
    shard__v1__tokenize_request__free_unpacked(request, nullptr);
    // In two messages: they belong together.
    for (size_t half = 0; half < 2; half++) {
        Shard__V1__TokenizeResponse r = SHARD__V1__TOKENIZE_RESPONSE__INIT;
        const size_t middle = ids.size() / 2;
        r.tokens = ids.data() + (half ? middle : 0);
        r.n_tokens = half ? ids.size() - middle : middle;
        r.text.data = reinterpret_cast<uint8_t *>(&back[half ? back.size() / 2 : 0]);
        r.text.len = half ? back.size() - back.size() / 2 : back.size() / 2;
        r.vocab = 1000;
        fake_send(call, &r.base);
    }
    fake_finish(call, 0, "", 0);
}
} // namespace

TEST_F(Ctl, GenerateText)
{
    std::mutex lock;
    std::string seen;
    daemon->reply("GetJob", TextJob().job);
    daemon->on("Tokenize", tokenize);
    daemon->on("Generate", [&](fake_call *call, const std::string &request) {
        {
            std::lock_guard<std::mutex> guard(lock);
            seen = request;
        }
        int token = 600;
        for (std::string text : {"On", "ce ", "", "\xC3\xA4", " there", ""}) {
            Shard__V1__GenerateResponse r = SHARD__V1__GENERATE_RESPONSE__INIT;
            r.token = token++;
            r.text.data = reinterpret_cast<uint8_t *>(&text[0]);
            r.text.len = text.size();
            if (token == 606)
                r.finish = const_cast<char *>("stop");
            fake_send(call, &r.base);
        }
        fake_finish(call, 0, "", 0);
    });
    Result r = ctl({"generate", "7", "--prompt", "\xC3\xA4!", "--repetition-penalty", "1.3",
                    "--ignore-eos", "--stop", "17", "--stop", "<e>", "--stop", "nothing"});
    EXPECT_EQ(r.status, 0) << r.err;
    EXPECT_EQ(r.out, "Once \xC3\xA4 there");
    {
        std::lock_guard<std::mutex> guard(lock);
        Shard__V1__GenerateRequest *request = shard__v1__generate_request__unpack(
            nullptr, seen.size(), reinterpret_cast<const uint8_t *>(seen.data()));
        EXPECT_EQ(request->n_prompt, 0u);
        EXPECT_EQ(std::string(reinterpret_cast<char *>(request->prompt_text.data),
                              request->prompt_text.len),
                  "\xC3\xA4!");
        ASSERT_EQ(request->n_stop, 2u);
        EXPECT_EQ(request->stop[0], 17);
        EXPECT_EQ(request->stop[1], 900);
        EXPECT_TRUE(request->ignore_eos);
        EXPECT_EQ(request->has_repetition_penalty_case,
                  SHARD__V1__GENERATE_REQUEST__HAS_REPETITION_PENALTY_REPETITION_PENALTY);
        EXPECT_EQ(request->repetition_penalty, 1.3);
        shard__v1__generate_request__free_unpacked(request, nullptr);
    }
    EXPECT_EQ(ctl({"generate", "7", "--prompt", "x", "--stop", "e \xC3"}).out, "Onc");
    EXPECT_EQ(ctl({"generate", "7", "--tokens", "1,2"}).out, "Once \xC3\xA4 there");
    const auto objects = lines(json({"generate", "7", "--prompt", "x"}).out);
    ASSERT_EQ(objects.size(), 6u);
    EXPECT_EQ(Json(objects[3]).text("text"), "\xC3\xA4");
    EXPECT_EQ(Json(objects[4]).at("finish"), nullptr);
    EXPECT_EQ(Json(objects[5]).text("finish"), "stop");
    EXPECT_EQ(ctl({"generate", "7", "--prompt", "x", "--stop", "1000"}).status, 2);
    daemon.reset(); // before what its handlers hold
}

TEST_F(Ctl, Tokenize)
{
    daemon->on("Tokenize", tokenize);
    EXPECT_EQ(ctl({"tokenize", "7", "--text", "ab<e>"}).out, "597 598 900\n");
    Json ids(json({"tokenize", "--tokenizer", "bytes", "--text", "ab<e>"}).out);
    EXPECT_EQ(ids.whole("count"), 3);
    EXPECT_EQ(ids.whole("vocab"), 1000);
    EXPECT_EQ(json_integer_value(json_array_get(ids.at("tokens"), 2)), 900);
    EXPECT_EQ(ctl({"tokenize", "7", "--tokens", "597,598,599"}).out, "abc");
    EXPECT_EQ(Json(json({"tokenize", "7", "--tokens", "597"}).out).text("text"), "a");
    const std::string program =
        std::string(getenv("TEST_SRCDIR")) + "/" + getenv("TEST_WORKSPACE") + "/client/shardctl";
    const std::string out = dir.path("out"), into = " >" + out + " 2>&1";
    const auto piped = [&](const std::string &text, const std::string &flags) {
        const std::string in = dir.write("in", text);
        const int rc = std::system(
            (program + " --socket " + socket + " tokenize 7 " + flags + " <" + in + into).c_str());
        std::ifstream file(out);
        return std::to_string(WEXITSTATUS(rc)) + " " +
               std::string(std::istreambuf_iterator<char>(file), {});
    };
    EXPECT_EQ(piped("abc", ""), "0 597 598 599\n");
    EXPECT_EQ(piped("[597, 598]\n599", "--decode"), "0 abc");
    EXPECT_EQ(piped("597 5x", "--decode"),
              "2 shardctl: standard input: \"5x\" is not a token id; give whole numbers\n");
    EXPECT_EQ(piped("", "").substr(0, 30), "2 shardctl: the text is empty;");
    EXPECT_EQ(piped(" ", "--decode").substr(0, 2), "2 ");
    EXPECT_EQ(piped("3000000000", "--decode").substr(0, 2), "2 ");
    EXPECT_EQ(ctl({"tokenize", "--text", "a"}).status, 2);
    EXPECT_EQ(ctl({"tokenize", "7", "--tokenizer", "bytes", "--text", "a"}).status, 2);
    EXPECT_EQ(ctl({"tokenize", "7", "--text", "a", "--tokens", "1"}).status, 2);
    EXPECT_EQ(ctl({"tokenize", "7", "--text", "a", "--data-format", "text"}).status, 2);
}

TEST_F(Ctl, TokenizeFileShowsItsProgress)
{
    std::mutex lock;
    std::string seen;
    daemon->on("Tokenize", [&](fake_call *call, const std::string &request) {
        {
            std::lock_guard<std::mutex> guard(lock);
            seen = request;
        }
        for (uint64_t done : {0, 1, 1, 2, 4}) {
            Shard__V1__TokenizeResponse r = SHARD__V1__TOKENIZE_RESPONSE__INIT;
            Shard__V1__Progress progress = SHARD__V1__PROGRESS__INIT;
            progress.what = const_cast<char *>("tokenizing");
            progress.done = done << 20;
            progress.total = 4 << 20;
            r.progress = &progress;
            fake_send(call, &r.base);
        }
        Shard__V1__TokenizeResponse r = SHARD__V1__TOKENIZE_RESPONSE__INIT;
        r.path = const_cast<char *>("/state/cache/abc.tok");
        r.digest = const_cast<char *>("abc");
        r.count = 123456;
        r.documents = 2;
        r.vocab = 49152;
        fake_send(call, &r.base);
        fake_finish(call, 0, "", 0);
    });
    const std::string data = dir.write("text.jsonl", "{}");
    Result r = ctl({"tokenize", "--tokenizer", "./t", "--data", data, "--data-format", "jsonl"});
    EXPECT_EQ(r.status, 0) << r.err;
    EXPECT_EQ(r.out, "tokenizing 0 B of 4.0 MiB (0%)\ntokenizing 1.0 MiB of 4.0 MiB (25%)\n"
                     "tokenizing 2.0 MiB of 4.0 MiB (50%)\ntokenizing 4.0 MiB of 4.0 MiB (100%)\n"
                     "/state/cache/abc.tok: 123456 tokens in 2 documents, vocabulary 49152\n");
    {
        std::lock_guard<std::mutex> guard(lock);
        Shard__V1__TokenizeRequest *request = shard__v1__tokenize_request__unpack(
            nullptr, seen.size(), reinterpret_cast<const uint8_t *>(seen.data()));
        EXPECT_STREQ(request->data, data.c_str());
        EXPECT_STREQ(request->data_format, "jsonl");
        EXPECT_EQ(request->tokenizer[0], '/'); // made absolute
        shard__v1__tokenize_request__free_unpacked(request, nullptr);
    }
    const auto objects = lines(json({"tokenize", "7", "--data", data}).out);
    ASSERT_EQ(objects.size(), 5u); // standing still is no news
    EXPECT_EQ(Json(objects[4]).whole("count"), 123456);
    EXPECT_EQ(Json(objects[4]).text("path"), "/state/cache/abc.tok");
    EXPECT_EQ(Json(objects[4]).text("digest"), "abc");
    daemon.reset(); // before what its handlers hold
}

TEST_F(Ctl, Export)
{
    std::mutex lock;
    std::string seen;
    daemon->on("ExportModel", [&](fake_call *call, const std::string &request) {
        std::lock_guard<std::mutex> guard(lock);
        seen = request;
        char first[] = "config.json", second[] = "model.safetensors";
        char *files[] = {first, second};
        Shard__V1__ExportModelResponse r = SHARD__V1__EXPORT_MODEL_RESPONSE__INIT;
        r.bytes = 3 << 20;
        r.n_files = 2;
        r.files = files;
        r.tensors = 39;
        r.step = 120;
        fake_send(call, &r.base);
        fake_finish(call, 0, "", 0);
    });
    const std::string out = dir.path("model");
    Result r = ctl({"export", "7", "--output", out, "--dtype", "bf16", "--max-shard-size", "2GB"});
    EXPECT_EQ(r.status, 0) << r.err;
    EXPECT_EQ(r.out,
              "step 120: 39 tensors, 3.0 MiB in " + out + "\n  config.json\n  model.safetensors\n");
    {
        std::lock_guard<std::mutex> guard(lock);
        Shard__V1__ExportModelRequest *request = shard__v1__export_model_request__unpack(
            nullptr, seen.size(), reinterpret_cast<const uint8_t *>(seen.data()));
        EXPECT_EQ(request->path, out);
        EXPECT_STREQ(request->dtype, "bf16");
        EXPECT_EQ(request->max_shard_bytes, 2000000000u);
        shard__v1__export_model_request__free_unpacked(request, nullptr);
    }
    Json object(json({"export", "7", "--output", out}).out);
    EXPECT_EQ(object.whole("tensors"), 39);
    EXPECT_EQ(object.whole("step"), 120);
    EXPECT_EQ(json_array_size(object.at("files")), 2u);
    EXPECT_EQ(ctl({"export", "7", "--output", out, "--max-shard-size", "0"}).status, 2);
    daemon.reset(); // before what its handlers hold
}

TEST_F(Ctl, EvalOfText)
{
    daemon->reply("GetJob", TextJob().job); // micro-batch 2, 16 tokens
    daemon->on("Tokenize", tokenize);
    daemon->on("Forward", [&](fake_call *call, const std::string &packed) {
        Shard__V1__ForwardRequest *request = shard__v1__forward_request__unpack(
            nullptr, packed.size(), reinterpret_cast<const uint8_t *>(packed.data()));
        Shard__V1__ForwardResponse answer = SHARD__V1__FORWARD_RESPONSE__INIT;
        std::vector<std::vector<float>> values;
        for (size_t i = 0; i < request->batch->n_sequences; i++) {
            const Shard__V1__Sequence *s = request->batch->sequences[i];
            answer.valid_tokens += s->n_targets;
            values.emplace_back();
            for (size_t k = 0; k < s->n_targets; k++) {
                EXPECT_GE(s->tokens[k], 500);
                values.back().push_back(-1.0f / static_cast<float>(s->targets[k]));
            }
        }
        std::vector<Shard__V1__TokenLogprobs> rows(values.size());
        std::vector<Shard__V1__TokenLogprobs *> pointers;
        for (size_t i = 0; i < rows.size(); i++) {
            shard__v1__token_logprobs__init(&rows[i]);
            rows[i].n_values = values[i].size();
            rows[i].values = values[i].data();
            pointers.push_back(&rows[i]);
        }
        answer.loss = 2.0;
        if (request->want_logprobs) {
            answer.n_logprobs = pointers.size();
            answer.logprobs = pointers.data();
        }
        shard__v1__forward_request__free_unpacked(request, nullptr);
        fake_send(call, &answer.base);
        fake_finish(call, 0, "", 0);
    });
    const std::string data = dir.write("text", std::string(40, 'a') + "<e>b");
    Json plain(json({"eval", "7", "--data", data}).out);
    EXPECT_EQ(plain.whole("tokens"), 41);
    EXPECT_EQ(plain.whole("batches"), 2);
    EXPECT_DOUBLE_EQ(json_real_value(plain.at("loss")), 2.0);
    EXPECT_DOUBLE_EQ(json_real_value(plain.at("perplexity")), 7.38905609893065);
    const auto out = lines(json({"eval", "7", "--data", data, "--logprobs"}).out);
    ASSERT_EQ(out.size(), 42u);
    EXPECT_EQ(Json(out[0]).whole("index"), 1);
    EXPECT_EQ(Json(out[40]).whole("index"), 41);
    EXPECT_EQ(Json(out[40]).whole("token"), 598);
    EXPECT_EQ(Json(out[39]).whole("token"), 900);
    EXPECT_FLOAT_EQ(static_cast<float>(json_real_value(Json(out[39]).at("logprob"))), -1.0f / 900);
    EXPECT_EQ(Json(out[41]).whole("tokens"), 41);
    EXPECT_EQ(lines(ctl({"eval", "7", "--data", data, "--logprobs"}).out)[39],
              "40\t900\t-0.001111");
    TestJob none;
    none.job.vocab = 50257;
    daemon->reply("GetJob", none.job);
    const Result r = ctl({"eval", "7", "--data", data});
    EXPECT_EQ(r.status, 2);
    EXPECT_NE(r.err.find("no tokenizer"), std::string::npos) << r.err;
}

TEST_F(Ctl, EvalWeighsByTokens)
{
    std::mutex lock;
    std::vector<std::vector<int>> tokens, targets; // of every sequence
    std::vector<size_t> batches;
    daemon->reply("GetJob", TestJob().job); // micro-batch 2, 16 tokens
    daemon->on("Forward", [&](fake_call *call, const std::string &packed) {
        Shard__V1__ForwardRequest *request = shard__v1__forward_request__unpack(
            nullptr, packed.size(), reinterpret_cast<const uint8_t *>(packed.data()));
        Shard__V1__ForwardResponse answer = SHARD__V1__FORWARD_RESPONSE__INIT;
        {
            std::lock_guard<std::mutex> guard(lock);
            batches.push_back(request->batch->n_sequences);
            for (size_t i = 0; i < request->batch->n_sequences; i++) {
                const Shard__V1__Sequence *s = request->batch->sequences[i];
                tokens.emplace_back(s->tokens, s->tokens + s->n_tokens);
                targets.emplace_back(s->targets, s->targets + s->n_targets);
                answer.valid_tokens += s->n_tokens;
            }
            answer.loss = static_cast<double>(batches.size());
        }
        shard__v1__forward_request__free_unpacked(request, nullptr);
        fake_send(call, &answer.base);
        fake_finish(call, 0, "", 0);
    });
    std::string text;
    for (int i = 0; i < 56; i++)
        text += static_cast<char>(200 + i); // 55 predictions: 16 + 16, 16 + 7
    const std::string data = dir.write("text", text);
    const Result r = json({"eval", "7", "--data", data});
    ASSERT_EQ(r.status, 0) << r.err;
    Json result(r.out);
    EXPECT_EQ(result.whole("tokens"), 55);
    EXPECT_EQ(result.whole("batches"), 2);
    EXPECT_DOUBLE_EQ(json_real_value(result.at("loss")), (32.0 * 1 + 23.0 * 2) / 55);
    {
        std::lock_guard<std::mutex> guard(lock);
        EXPECT_EQ(batches, (std::vector<size_t>{2, 2}));
        int at = 200;
        for (size_t s = 0; s < tokens.size(); s++) {
            ASSERT_EQ(tokens[s].size(), targets[s].size());
            for (size_t i = 0; i < tokens[s].size(); i++, at++) {
                EXPECT_EQ(tokens[s][i], at);
                EXPECT_EQ(targets[s][i], at + 1);
            }
        }
        EXPECT_EQ(at, 255);
    }
    EXPECT_EQ(Json(json({"eval", "7", "--data", data, "--batches", "1"}).out).whole("tokens"), 32);
    EXPECT_EQ(ctl({"eval", "7", "--data", dir.write("one", "x")}).status, 2);
    daemon.reset(); // before what its handlers hold
}

TEST_F(Ctl, Logs)
{
    daemon->on("Watch", [](fake_call *call, const std::string &request) {
        Shard__V1__WatchRequest *watch = shard__v1__watch_request__unpack(
            nullptr, request.size(), reinterpret_cast<const uint8_t *>(request.data()));
        EXPECT_FALSE(watch->follow);
        shard__v1__watch_request__free_unpacked(watch, nullptr);
        send_event(call, state_event(0, RUNNING, 0));
        send_event(call, step_event(1, 1, 5));
        send_event(call, eval_event(2, 1, 2.5));
        send_event(call, state_event(3, FAILED, 1, "disk full"));
        fake_finish(call, 0, "", 0);
    });
    const Result r = ctl({"logs", "7"});
    EXPECT_EQ(r.status, 0);
    EXPECT_EQ(r.out, "2023-11-14 22:13:20  step 0         running\n"
                     "2023-11-14 22:13:22  step 1         eval loss 2.5000, perplexity 12.18\n"
                     "2023-11-14 22:13:20  step 1         failed: disk full\n");
    const auto objects = lines(json({"logs", "7"}).out);
    ASSERT_EQ(objects.size(), 3u);
    EXPECT_EQ(Json(objects[2]).text("reason"), "disk full");
}

TEST_F(Ctl, OutputThatCannotBeWrittenIsSaid)
{
    Shard__V1__ListJobsResponse list = SHARD__V1__LIST_JOBS_RESPONSE__INIT;
    daemon->reply("ListJobs", list);
    const std::string program =
        std::string(getenv("TEST_SRCDIR")) + "/" + getenv("TEST_WORKSPACE") + "/client/shardctl";
    const std::string error = dir.path("err");
    const int rc =
        std::system((program + " --socket " + socket + " jobs >/dev/full 2>" + error).c_str());
    EXPECT_EQ(WEXITSTATUS(rc), 1);
}
