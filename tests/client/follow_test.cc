// shardctl submit and attach: what is sent, what is shown, and what happens when the daemon goes.
#include "tests/client/ctl.h"

TEST_F(Ctl, SubmitShowsEveryOfFewStepsAndEndsWithZero)
{
    script_job(10, DONE);
    const Result r = ctl({"submit", "--model", "gpt-byte-1m", "--steps", "10"});
    EXPECT_EQ(r.status, 0) << r.err;
    EXPECT_EQ(r.err, "");
    const auto out = lines(r.out);
    ASSERT_EQ(out.size(), 13u) << r.out;
    EXPECT_EQ(out[0], "job 7 (tale): gpt-byte-1m, 842k parameters, zero3 p,g,o 2,2,2 of 2 ranks");
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
        "job 7 (tale): gpt-byte-1m, 842k parameters, 21.0k of them trained, zero3 p,g,o 2,2,2 of 2 "
        "ranks, bf16\n");
}

// A preset says which degrees it means, and what it coincides with.
TEST_F(Ctl, SubmitSaysWhatAPresetIs)
{
    TestJob job;
    job.spec.reshard_after_forward = const_cast<char *>("yes");
    daemon->reply("CreateJob", job.job);
    const std::vector<std::string> argv = {"submit",   "--model",    "gpt-byte-1m",
                                           "--detach", "--strategy", "hybrid_shard"};
    EXPECT_EQ(ctl(argv).out, "job 7 (tale): gpt-byte-1m, 842k parameters, zero3 p,g,o 2,2,2 of 2 "
                             "ranks (what hybrid_shard is here)\n");
    const Json out(json(argv).out);
    EXPECT_EQ(out.text("strategy"), "zero3");
    EXPECT_EQ(out.text("asked_strategy"), "hybrid_shard");
    EXPECT_EQ(out.text("reshard_after_forward"), "yes");
    job.degrees = {2, 2, 2, 4};
    job.job.degrees = job.degrees.data();
    job.spec.strategy = const_cast<char *>("hybrid_shard_zero2");
    job.spec.reshard_after_forward = const_cast<char *>("no");
    daemon->reply("CreateJob", job.job);
    EXPECT_EQ(ctl({"submit", "--model", "gpt-byte-1m", "--detach"}).out,
              "job 7 (tale): gpt-byte-1m, 842k parameters, hybrid_shard_zero2 p,g,o 2,2,2 of 4 "
              "ranks, reshard-after-forward no\n");
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
