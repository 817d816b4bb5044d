// Work as a client gives it, run to its end. For tests.
#ifndef TESTS_TRAIN_DRIVE_H
#define TESTS_TRAIN_DRIVE_H

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "tests/train/engine.h"

namespace shd
{

// Sequences of one length, with targets of their own.
struct Batch {
    uint32_t sequences, length;
    std::vector<int32_t> tokens, targets;

    static Batch Random(uint32_t sequences, uint32_t length, uint32_t seed, int vocab = 97)
    {
        Batch b = {sequences, length, {}, {}};
        uint32_t x = seed * 7919 + 1;
        int last = 0;
        for (uint32_t i = 0; i < sequences * length; i++) {
            x = x * 1664525u + 1013904223u;
            last = x >> 30 ? (last * 3 + 1) % vocab
                           : static_cast<int>((x >> 8) % static_cast<uint32_t>(vocab));
            b.tokens.push_back(last);
            b.targets.push_back((last * 3 + 1) % vocab);
        }
        return b;
    }
    Batch Part(uint32_t first, uint32_t n) const
    {
        const auto cut = [&](const std::vector<int32_t> &v) {
            return std::vector<int32_t>(v.begin() + first * length,
                                        v.begin() + (first + n) * length);
        };
        return {n, length, cut(tokens), cut(targets)};
    }
    uint64_t Valid() const
    {
        uint64_t n = 0;
        for (int32_t target : targets) {
            n += target >= 0;
        }
        return n;
    }
};

inline void Set(shd_work *work, const Batch &batch)
{
    MakeBatch(work, batch.sequences, batch.length);
    std::copy(batch.tokens.begin(), batch.tokens.end(), work->batch.tokens);
    std::copy(batch.targets.begin(), batch.targets.end(), work->batch.targets);
}

struct Result {
    int rc;
    std::string error;
    double loss;
    uint64_t valid;
    double norm, lr;
    uint64_t step, samples;
    int skipped;
    std::vector<float> logprobs, logits;
};

struct Overrides {
    double lr = NAN, clip = NAN, weight_decay = NAN;
    bool logprobs = false;
};

template <class Job>
inline Result Do(Job &job, shd_work_kind kind, const Batch *batch = nullptr,
                 Overrides overrides = {})
{
    shd_work work;
    shd_work_init(&work, kind);
    if (batch != nullptr) {
        Set(&work, *batch);
        if (kind != SHD_WORK_NEXT_LOGITS) {
            shd_error err = {};
            EXPECT_EQ(0, shd_trainer_check_batch(job.trainer(), &work, &err)) << err.message;
        }
    }
    work.lr = overrides.lr;
    work.clip = overrides.clip;
    work.weight_decay = overrides.weight_decay;
    work.want_logprobs = overrides.logprobs;
    job.Run(&work);
    Result r = {work.rc,
                work.err.message,
                work.loss,
                work.valid_tokens,
                work.grad_norm,
                work.lr_used,
                work.step,
                work.samples,
                work.skipped,
                {},
                {}};
    if (work.rc == 0 && work.logprobs != nullptr) {
        r.logprobs.assign(work.logprobs, work.logprobs + work.batch.sequences * work.batch.length);
    }
    if (work.rc == 0 && work.logits != nullptr) {
        r.logits.assign(work.logits, work.logits + job.spec().model.vocab);
    }
    shd_work_fini(&work);
    return r;
}

template <class Job>
inline Result Good(Job &job, shd_work_kind kind, const Batch *batch = nullptr,
                   Overrides overrides = {})
{
    const Result r = Do(job, kind, batch, overrides);
    EXPECT_EQ(0, r.rc) << r.error;
    return r;
}

struct Case {
    const char *strategy;
    uint32_t world;
};

const Case kCases[] = {{"ddp", 1}, {"zero1", 2}, {"zero3", 2}, {"zero3", 3}};

} // namespace shd

#endif
