// The jobs of a daemon on fake ranks, on a loop that the test turns.
#ifndef SHD_TESTS_SERVICE_SERVICE_H
#define SHD_TESTS_SERVICE_SERVICE_H

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "daemon/base/log.h"
#include "daemon/service/jobs.h"
#include "daemon/service/prepare.h"
#include "daemon/service/rpc_drive.h"
#include "daemon/service/rpc_evaluate.h"
#include "daemon/service/rpc_export.h"
#include "daemon/service/rpc_generate.h"
#include "daemon/service/rpc_jobs.h"
#include "daemon/service/rpc_plan.h"
#include "daemon/service/rpc_reshard.h"
#include "daemon/service/rpc_status.h"
#include "daemon/service/rpc_tokenize.h"
#include "daemon/service/rpc_trace.h"
#include "daemon/service/rpc_watch.h"
#include "daemon/service/workers.h"
#include "proto/shard.pb-c.h"
#include "tests/service/fake_call.h"
#include "tests/service/fake_trainer.h"

// A spec under construction; text lives in it.
struct Spec {
    Shard__V1__JobSpec m = SHARD__V1__JOB_SPEC__INIT;
    std::vector<std::unique_ptr<std::string>> texts;

    char *text(const std::string &s)
    {
        texts.push_back(std::make_unique<std::string>(s));
        return &(*texts.back())[0];
    }
    explicit Spec(const std::string &name)
    {
        m.name = text(name);
        m.model = text("gpt-byte-1m");
        strategy("zero3");
        ranks(2);
    }
    Spec &strategy(const std::string &s)
    {
        return m.strategy = text(s), *this;
    }
    Spec &data(const std::string &s)
    {
        return m.data = text(s), *this;
    }
    Spec &ranks(uint32_t n)
    {
        m.has_ranks_case = SHARD__V1__JOB_SPEC__HAS_RANKS_RANKS;
        return m.ranks = n, *this;
    }
    Spec &steps(uint64_t n)
    {
        m.has_steps_case = SHARD__V1__JOB_SPEC__HAS_STEPS_STEPS;
        return m.steps = n, *this;
    }
    Spec &priority(uint32_t n)
    {
        m.has_priority_case = SHARD__V1__JOB_SPEC__HAS_PRIORITY_PRIORITY;
        return m.priority = n, *this;
    }
    Spec &micro_batch(uint32_t n)
    {
        m.has_micro_batch_case = SHARD__V1__JOB_SPEC__HAS_MICRO_BATCH_MICRO_BATCH;
        return m.micro_batch = n, *this;
    }
    Spec &eval_every(uint64_t n)
    {
        m.has_eval_every_case = SHARD__V1__JOB_SPEC__HAS_EVAL_EVERY_EVAL_EVERY;
        return m.eval_every = n, *this;
    }
};

// A batch of one sequence.
struct OneSequence {
    std::vector<int32_t> tokens;
    Shard__V1__Sequence sequence = SHARD__V1__SEQUENCE__INIT;
    Shard__V1__Sequence *list = &sequence;
    Shard__V1__Batch batch = SHARD__V1__BATCH__INIT;
    explicit OneSequence(std::vector<int32_t> t) : tokens(std::move(t))
    {
        sequence.tokens = tokens.data();
        sequence.n_tokens = tokens.size();
        batch.sequences = &list;
        batch.n_sequences = 1;
    }
};

class Service : public ::testing::Test
{
  protected:
    using Call = std::unique_ptr<shd_call>;
    static constexpr uint32_t kRanks = 4;

    uv_loop_t loop;
    shd_jobs *jobs = nullptr;
    shd_status *status = nullptr;
    shd_tokenize *tokenizing = nullptr;
    shd_preparer *preparer = nullptr; // of the test; freed by stop()
    shd_auth_rules rules{};
    shd_jobs_limits limits{};
    shd_rank *ranks[kRanks];
    std::string dir, data, state_dir;
    char *roots[1];
    shd_identity me{getuid(), getgid(), getpid()};

    void SetUp() override
    {
        shd_log_set_level(SHD_LOG_ERROR);
        uv_loop_init(&loop);
        for (uint32_t r = 0; r < kRanks; r++) {
            ranks[r] = shd_rank_create(r, shd_device_create_null(1));
        }
        limits.max_jobs = 16;
        limits.max_jobs_per_user = 8;
        limits.max_queue = 4;
        limits.watch_history = 100000;
        limits.memory_per_rank = 512ull << 20;
        char name[] = "/tmp/shd-service-XXXXXX";
        dir = mkdtemp(name);
        data = dir + "/text";
        FILE *f = fopen(data.c_str(), "w");
        for (int i = 0; i < 1000; i++) {
            fputs("in the beginning\n", f);
        }
        fclose(f);
        roots[0] = &dir[0];
    }

    void start(bool manual, fake_hook hook = nullptr, void *arg = nullptr)
    {
        fake_start(manual, hook, arg);
        shd_jobs_options options{};
        options.loop = &loop;
        options.ranks = ranks;
        options.n_ranks = kRanks;
        options.threads_per_rank = 1;
        options.limits = limits;
        options.rules = &rules;
        options.data_roots = roots;
        options.n_data_roots = 1;
        options.preparer = preparer;
        options.token_cache_path = "/cache";
        options.state_dir = state_dir.empty() ? nullptr : state_dir.c_str();
        shd_error err;
        ASSERT_EQ(shd_jobs_create(&options, &jobs, &err), 0) << err.message;
        const shd_status_info info{"1.2.3", "/run/test.sock", "/var/lib/test"};
        status = shd_status_create(jobs, nullptr, &info);
        tokenizing = shd_tokenize_create(jobs);
    }

    // Ends what runs, as the daemon does when it stops.
    void stop()
    {
        if (jobs == nullptr) {
            return;
        }
        bool stopped = false, closed = false;
        auto set = [](void *flag) { *static_cast<bool *>(flag) = true; };
        shd_jobs_stop(jobs, set, &stopped);
        turn_until([&] {
            for (const auto &name : names) {
                fake_finish(name.c_str());
            }
            return stopped;
        });
        shd_status_free(status);
        shd_tokenize_free(tokenizing);
        shd_jobs_free(jobs, set, &closed);
        shd_preparer_free(preparer);
        preparer = nullptr;
        turn_until([&] { return closed; });
        jobs = nullptr;
    }

    void TearDown() override
    {
        stop();
        fake_stop();
        EXPECT_EQ(fake_alive(), 0u);
        EXPECT_LE(fake_most_on_a_rank(), 1u);
        uv_run(&loop, UV_RUN_DEFAULT);
        EXPECT_EQ(uv_loop_close(&loop), 0);
        for (shd_rank *rank : ranks) {
            shd_rank_free(rank);
        }
        unlink(data.c_str());
        rmdir(dir.c_str());
    }

    void turn_until(const std::function<bool()> &condition)
    {
        for (int i = 0; i < 240000; i++) {
            uv_run(&loop, UV_RUN_NOWAIT);
            if (condition()) {
                return;
            }
            std::this_thread::sleep_for(std::chrono::microseconds(500));
        }
        FAIL() << "waited for two minutes in vain";
    }

    void turn(int times = 20)
    {
        for (int i = 0; i < times; i++) {
            uv_run(&loop, UV_RUN_NOWAIT);
            std::this_thread::sleep_for(std::chrono::microseconds(200));
        }
    }

    // Ends the item that the job has on the ranks, or waits for it first.
    void finish(const std::string &job)
    {
        turn_until([&] { return fake_finish(job.c_str()) != 0; });
        turn(2);
    }

    Call make_call(const shd_identity *who = nullptr)
    {
        Call call = std::make_unique<shd_call>();
        call->who = who != nullptr ? *who : me;
        return call;
    }

    void dispatch(shd_call *call, const char *name, const ProtobufCMessage *request)
    {
        const std::string path = std::string("/shard.v1.Shard/") + name;
        const shd_rpc_method *(*tables[])(size_t *) = {
            shd_rpc_jobs_methods,     shd_rpc_drive_methods,    shd_rpc_generate_methods,
            shd_rpc_watch_methods,    shd_rpc_plan_methods,     shd_rpc_status_methods,
            shd_rpc_export_methods,   shd_rpc_tokenize_methods, shd_rpc_trace_methods,
            shd_rpc_evaluate_methods, shd_rpc_reshard_methods};
        for (auto table : tables) {
            size_t n;
            const shd_rpc_method *methods = table(&n);
            for (size_t i = 0; i < n; i++) {
                if (path == methods[i].path) {
                    ASSERT_EQ(methods[i].request, request->descriptor);
                    void *service = table == shd_rpc_status_methods     ? (void *)status
                                    : table == shd_rpc_tokenize_methods ? (void *)tokenizing
                                                                        : jobs;
                    methods[i].handler(call, request, service);
                    return;
                }
            }
        }
        FAIL() << "no method " << name;
    }

    Call call(const char *name, const ProtobufCMessage *request, const shd_identity *who = nullptr)
    {
        Call c = make_call(who);
        dispatch(c.get(), name, request);
        return c;
    }

    Call create_async(const Spec &spec, const char *request_id = "",
                      const shd_identity *who = nullptr)
    {
        Shard__V1__CreateJobRequest q = SHARD__V1__CREATE_JOB_REQUEST__INIT;
        Shard__V1__JobSpec copy = spec.m;
        q.request_id = const_cast<char *>(request_id);
        q.spec = &copy;
        names.push_back(spec.m.name);
        return call("CreateJob", &q.base, who);
    }

    Call create(const Spec &spec, const char *request_id = "", const shd_identity *who = nullptr)
    {
        Call c = create_async(spec, request_id, who);
        turn_until([&] { return c->finished; });
        return c;
    }

    // Creates, and in manual mode ends INIT.
    std::string create_running(const Spec &spec, bool manual)
    {
        Call c = create(spec);
        EXPECT_TRUE(c->ok()) << c->error;
        if (!c->ok()) {
            return "";
        }
        std::string id = Unpacked<Shard__V1__Job>(c->sent[0])->id;
        if (manual) {
            finish(spec.m.name);
        }
        turn_until([&] {
            return state(id) == SHARD__V1__JOB_STATE__JOB_STATE_RUNNING ||
                   state(id) == SHARD__V1__JOB_STATE__JOB_STATE_DONE;
        });
        return id;
    }

    Call ref_async(const char *method, const std::string &ref, const shd_identity *who = nullptr)
    {
        Shard__V1__JobRef q = SHARD__V1__JOB_REF__INIT;
        q.job = const_cast<char *>(ref.c_str());
        return call(method, &q.base, who);
    }

    Call ref(const char *method, const std::string &job, const shd_identity *who = nullptr)
    {
        Call c = ref_async(method, job, who);
        turn_until([&] { return c->finished; });
        return c;
    }

    Shard__V1__JobState state(const std::string &job)
    {
        Call c = ref_async("GetJob", job);
        return c->ok() ? Unpacked<Shard__V1__Job>(c->sent[0])->state
                       : SHARD__V1__JOB_STATE__JOB_STATE_UNSPECIFIED;
    }

    uint64_t step(const std::string &job)
    {
        Call c = ref_async("GetJob", job);
        EXPECT_TRUE(c->ok()) << c->error;
        return c->ok() ? Unpacked<Shard__V1__Job>(c->sent[0])->step : 0;
    }

    Call train_step(const std::string &job, uint64_t seq, int32_t first_token = 1)
    {
        OneSequence one({first_token, 2, 3});
        Shard__V1__TrainStepRequest q = SHARD__V1__TRAIN_STEP_REQUEST__INIT;
        q.job = const_cast<char *>(job.c_str());
        q.seq = seq;
        q.batch = &one.batch;
        return call("TrainStep", &q.base);
    }

    Call forward_backward(const std::string &job, uint64_t seq, int32_t first_token = 1)
    {
        OneSequence one({first_token, 2, 3});
        Shard__V1__ForwardBackwardRequest q = SHARD__V1__FORWARD_BACKWARD_REQUEST__INIT;
        q.job = const_cast<char *>(job.c_str());
        q.seq = seq;
        q.batch = &one.batch;
        q.want_logprobs = 1;
        return call("ForwardBackward", &q.base);
    }

    Call optim_step(const std::string &job, uint64_t seq)
    {
        Shard__V1__OptimStepRequest q = SHARD__V1__OPTIM_STEP_REQUEST__INIT;
        q.job = const_cast<char *>(job.c_str());
        q.seq = seq;
        return call("OptimStep", &q.base);
    }

    void watch(shd_call *c, const std::string &job, int64_t from_step, bool follow)
    {
        Shard__V1__WatchRequest q = SHARD__V1__WATCH_REQUEST__INIT;
        q.job = const_cast<char *>(job.c_str());
        q.follow = follow;
        if (from_step >= 0) {
            q.has_from_step_case = SHARD__V1__WATCH_REQUEST__HAS_FROM_STEP_FROM_STEP;
            q.from_step = (uint64_t)from_step;
        }
        dispatch(c, "Watch", &q.base);
    }

    std::vector<std::string> names; // of every job asked for
};

// Fills a user's share of a lane until it is let go of.
class FullLane
{
  public:
    FullLane(shd_jobs *jobs, shd_workers_kind lane, uid_t uid)
    {
        for (Task &t : tasks_) {
            t.task.uid = uid;
            t.task.run = [](shd_task *task) {
                while (!reinterpret_cast<Task *>(task)->release) {
                    std::this_thread::sleep_for(std::chrono::milliseconds(1));
                }
            };
            t.task.done = [](shd_task *task) { reinterpret_cast<Task *>(task)->done = true; };
            shd_workers_run(shd_jobs_workers(jobs, lane), &t.task);
        }
    }
    void let_go()
    {
        for (Task &t : tasks_) {
            t.release = true;
        }
    }
    bool done() const
    {
        return tasks_[0].done && tasks_[1].done;
    }

  private:
    struct Task {
        shd_task task{}; // first
        std::atomic<bool> release{false};
        bool done = false;
    };
    Task tasks_[2];
};

#endif
