// A job without a daemon: ranks, plan and trainer, driven synchronously. For tests.
#ifndef TESTS_TRAIN_ENGINE_H
#define TESTS_TRAIN_ENGINE_H

#include <gtest/gtest.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "daemon/train/plan.h"
#include "daemon/train/reshard.h"
#include "daemon/train/trainer.h"

namespace shd
{

// A specification of a small model, for tests to change.
inline shd_spec SmallSpec(const std::string &strategy, uint32_t world)
{
    shd_spec spec = {};
    snprintf(spec.name, sizeof spec.name, "test");
    spec.model = shd_model_config_gpt2(2, 2, 24, 19, 97);
    shd_error err = {};
    EXPECT_EQ(0, shd_strategy_make(strategy.c_str(), nullptr, 0, world, &spec.strategy, &err))
        << err.message;
    spec.determinism = SHD_DETERMINISM_STRATEGY;
    spec.reduction_width = world;
    spec.steps = 50;
    spec.micro_batch = 2;
    spec.accumulation = 1;
    spec.global_batch = spec.micro_batch * world;
    spec.seq_len = 17;
    spec.packing = 1;
    spec.schedule = {SHD_SCHEDULE_COSINE, 1e-2, 1e-3, 5, 50, 0};
    spec.weight_decay = 0.1;
    spec.optim.beta1 = 0.9;
    spec.optim.beta2 = 0.95;
    spec.optim.eps = 1e-8;
    spec.clip = 1.0;
    spec.seed = 7;
    spec.eval_batches = 4;
    spec.priority = 10;
    return spec;
}

// A file of pseudo-random but learnable bytes below `vocab`, removed at the end.
class DataFile
{
  public:
    explicit DataFile(size_t n, int vocab = 97)
    {
        char path[] = "/tmp/shd-test-XXXXXX";
        fd_ = mkstemp(path);
        path_ = path;
        std::string bytes(n, '\0');
        uint32_t x = 12345;
        for (size_t i = 0; i < n; i++) {
            x = x * 1664525u + 1013904223u;
            bytes[i] = static_cast<char>(
                i > 0 && x >> 29 ? (bytes[i - 1] * 3 + 1) % vocab
                                 : static_cast<int>((x >> 8) % static_cast<uint32_t>(vocab)));
        }
        EXPECT_EQ(static_cast<ssize_t>(n), write(fd_, bytes.data(), n));
    }
    ~DataFile()
    {
        close(fd_);
        unlink(path_.c_str());
    }
    shd_source *Open() const
    {
        shd_source *src = nullptr;
        shd_error err = {};
        EXPECT_EQ(0, shd_source_open(fd_, path_.c_str(), SHD_DATA_TEXT, &src, &err)) << err.message;
        return src;
    }
    int fd() const
    {
        return fd_;
    }
    const std::string &path() const
    {
        return path_;
    }

  private:
    int fd_;
    std::string path_;
};

// What a step left behind, for comparison bit by bit.
struct Trace {
    std::vector<double> losses, norms;
    std::vector<std::vector<float>> params;
    bool operator==(const Trace &o) const
    {
        return losses == o.losses && norms == o.norms && params == o.params;
    }
};

class Engine
{
  public:
    explicit Engine(const shd_spec &spec, shd_source *data = nullptr, shd_source *eval = nullptr,
                    int threads = 1, const shd_param_source *from = nullptr,
                    bool stream_threads = false)
    {
        shd_error err = {};
        shd_spec_copy(&spec_, &spec);
        if (data != nullptr && spec_.data_path == nullptr) {
            spec_.data_path = strdup(shd_source_path(data));
        }
        threads_ = threads;
        stream_threads_ = stream_threads;
        EXPECT_EQ(0, shd_plan_make(&spec_, threads, &plan_, &err)) << err.message;
        HaveRanks(spec_.strategy.world);
        EXPECT_EQ(
            0, shd_trainer_create(&spec_, &plan_, ranks_.data(), data, eval, from, &trainer_, &err))
            << err.message;
        if (trainer_ != nullptr) {
            shd_work init;
            shd_work_init(&init, SHD_WORK_INIT);
            init_rc_ = Run(&init);
            init_error_ = init.err.message;
            shd_work_fini(&init);
        }
    }
    ~Engine()
    {
        shd_trainer_free(trainer_);
        for (shd_rank *rank : ranks_) {
            shd_rank_free(rank);
        }
        shd_spec_fini(&spec_);
    }
    Engine(const Engine &) = delete;
    Engine &operator=(const Engine &) = delete;

    int Run(shd_work *work)
    {
        do {
            Turn(work);
        } while (work->more);
        return work->rc;
    }

    // One turn of `work`, which says whether there are more.
    void Turn(shd_work *work)
    {
        std::unique_lock<std::mutex> lock(mutex_);
        finished_ = false;
        work->done = [](shd_work *, void *arg) {
            Engine *self = static_cast<Engine *>(arg);
            std::lock_guard<std::mutex> guard(self->mutex_);
            self->finished_ = true;
            self->cond_.notify_one();
        };
        work->done_arg = this;
        shd_trainer_submit(trainer_, work);
        cond_.wait(lock, [this] { return finished_; });
    }

    // One step on the job's data; fails the test on an error.
    shd_work Step(Trace *trace = nullptr)
    {
        shd_work work;
        shd_work_init(&work, SHD_WORK_DATA_STEP);
        EXPECT_EQ(0, Run(&work)) << work.err.message;
        if (trace != nullptr) {
            trace->losses.push_back(work.loss);
            trace->norms.push_back(work.grad_norm);
        }
        shd_work_fini(&work);
        return work;
    }

    Trace Train(int steps)
    {
        Trace trace;
        for (int i = 0; i < steps; i++) {
            Step(&trace);
        }
        trace.params = Params();
        return trace;
    }

    // Moves the job to `spec` on the ranks from `first` on; 0, or what it failed with.
    int Reshard(const shd_spec &spec, uint32_t first = 0, std::string *why = nullptr)
    {
        shd_plan plan;
        shd_error err = {};
        EXPECT_EQ(0, shd_plan_make(&spec, threads_, &plan, &err)) << err.message;
        return ReshardUnder(spec, plan, first, why);
    }

    int ReshardUnder(const shd_spec &spec, const shd_plan &plan, uint32_t first = 0,
                     std::string *why = nullptr)
    {
        shd_error err = {};
        shd_reshard *reshard = nullptr;
        HaveRanks(first + spec.strategy.world);
        int rc = shd_reshard_create(trainer_, &spec, &plan, ranks_.data() + first, &reshard, &err);
        if (rc == 0) {
            shd_work work;
            shd_work_init(&work, SHD_WORK_RESHARD);
            work.reshard = reshard;
            rc = Run(&work);
            err = work.err;
            shd_work_fini(&work);
        }
        if (rc == 0) {
            reshard_peak_ = shd_reshard_peak(reshard);
            reshard_sent_ = shd_reshard_bytes_sent(reshard);
            shd_reshard_adopt(reshard);
            shd_spec copy = {};
            shd_spec_copy(&copy, &spec);
            shd_spec_fini(&spec_);
            spec_ = copy;
            plan_ = plan;
        } else if (why != nullptr) {
            *why = err.message;
        }
        shd_reshard_free(reshard);
        return rc;
    }

    std::vector<std::vector<float>> Params()
    {
        std::vector<std::vector<float>> out;
        shd_model *model = nullptr;
        shd_error err = {};
        EXPECT_EQ(0, shd_model_create(&spec_.model, &model, &err));
        for (uint32_t i = 0; i < shd_model_n_params(model); i++) {
            out.emplace_back(shd_param_numel(shd_model_param(model, i)));
            EXPECT_EQ(0, shd_trainer_read_param(trainer_, i, out.back().data(), &err));
        }
        shd_model_free(model);
        return out;
    }

    // Ranks beyond those of the job.
    void HaveRanks(uint32_t n)
    {
        while (ranks_.size() < n) {
            shd_device *dev = shd_device_create_cpu(threads_, 0);
            shd_device_set_streams(dev, stream_threads_);
            ranks_.push_back(shd_rank_create(static_cast<uint32_t>(ranks_.size()), dev));
        }
    }
    shd_rank *const *ranks() const
    {
        return ranks_.data();
    }
    shd_trainer *trainer()
    {
        return trainer_;
    }
    const shd_plan &plan() const
    {
        return plan_;
    }
    const shd_spec &spec() const
    {
        return spec_;
    }
    // Of the last resharding.
    uint64_t reshard_peak() const
    {
        return reshard_peak_;
    }
    uint64_t reshard_sent() const
    {
        return reshard_sent_;
    }
    int init_rc() const
    {
        return init_rc_;
    }
    const std::string &init_error() const
    {
        return init_error_;
    }

  private:
    shd_spec spec_ = {};
    shd_plan plan_ = {};
    int threads_ = 1;
    bool stream_threads_ = false;
    uint64_t reshard_peak_ = 0, reshard_sent_ = 0;
    std::vector<shd_rank *> ranks_;
    shd_trainer *trainer_ = nullptr;
    int init_rc_ = -1;
    std::string init_error_;
    std::mutex mutex_;
    std::condition_variable cond_;
    bool finished_ = false;
};

// How peaks by tag are compared with the plan, which holds generations and, for all ranks alike,
// what rank 0 alone generates.
enum class Peaks { kAtMost, kButActivations, kExact };

// What every rank holds is what is planned, to the byte; its peaks are as is said of them.
inline void ExpectMemory(Engine *engine, Peaks of_rank_0, Peaks of_others)
{
    for (uint32_t r = 0; r < engine->spec().strategy.world; r++) {
        const Peaks peaks = r == 0 ? of_rank_0 : of_others;
        shd_usage usage[SHD_TAG_COUNT];
        uint64_t total_peak = 0, reserved = 0;
        shd_trainer_usage(engine->trainer(), r, usage, &total_peak, &reserved);
        EXPECT_EQ(engine->plan().extent, reserved) << "rank " << r;
        for (int t = 0; t < SHD_TAG_COUNT; t++) {
            const char *tag = shd_tag_name(static_cast<shd_tag>(t));
            EXPECT_EQ(engine->plan().steady[t], usage[t].now) << "rank " << r << " " << tag;
            if (peaks == Peaks::kExact ||
                (peaks == Peaks::kButActivations && t != SHD_TAG_ACTIVATIONS)) {
                EXPECT_EQ(engine->plan().peak[t], usage[t].peak) << "rank " << r << " " << tag;
            } else {
                EXPECT_GE(engine->plan().peak[t], usage[t].peak) << "rank " << r << " " << tag;
            }
        }
        if (peaks == Peaks::kExact) {
            EXPECT_EQ(engine->plan().total_peak, total_peak) << "rank " << r;
        } else {
            EXPECT_GE(engine->plan().total_peak, total_peak) << "rank " << r;
        }
    }
}

// A batch with everything valid; caller fills tokens and targets.
inline void MakeBatch(shd_work *work, uint32_t sequences, uint32_t length)
{
    work->batch.sequences = sequences;
    work->batch.length = length;
    const size_t n = static_cast<size_t>(sequences) * length;
    work->batch.tokens = static_cast<int32_t *>(calloc(n, sizeof(int32_t)));
    work->batch.targets = static_cast<int32_t *>(calloc(n, sizeof(int32_t)));
}

} // namespace shd

#endif
