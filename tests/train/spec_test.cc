// A job's specification: defaults, every refusal with flag and value, and the way there and back.
#include "daemon/train/spec.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <vector>

namespace
{

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

using Proto = Shard__V1__JobSpec;
using Change = std::function<void(Proto *)>;

#define SET(field, Case, v)                                                                        \
    [](Proto *p) {                                                                                 \
        p->has_##field##_case = SHARD__V1__JOB_SPEC__HAS_##Case##_##Case;                          \
        p->field = (v);                                                                            \
    }
#define TEXT(field, v) [](Proto *p) { p->field = const_cast<char *>(v); }

// A small job on a data file, changed by each of `changes`.
int Resolve(const std::vector<Change> &changes, shd_spec *out, shd_error *err, uint32_t ranks = 4)
{
    Proto proto;
    shard__v1__job_spec__init(&proto);
    proto.model = const_cast<char *>("gpt-byte-1m");
    proto.data = const_cast<char *>("/data/text");
    for (const Change &change : changes) {
        change(&proto);
    }
    return shd_spec_resolve(&proto, ranks, 0, nullptr, out, err);
}

const Change kClientDriven = TEXT(data, "");

void Refused(const std::vector<Change> &changes, int code, const std::vector<std::string> &says,
             uint32_t ranks = 4)
{
    shd_spec spec;
    shd_error err = {};
    EXPECT_EQ(code, Resolve(changes, &spec, &err, ranks)) << says[0];
    EXPECT_EQ(code, err.code);
    for (const std::string &part : says) {
        EXPECT_NE(std::string::npos, std::string(err.message).find(part))
            << "'" << err.message << "' lacks '" << part << "'";
    }
    EXPECT_EQ(nullptr, spec.data_path) << "nothing is held after a refusal";
    EXPECT_EQ(nullptr, spec.eval_path);
    EXPECT_EQ(code, Resolve(changes, &spec, nullptr, ranks));
}

class Accepted
{
  public:
    explicit Accepted(const std::vector<Change> &changes, uint32_t ranks = 4)
    {
        shd_error err = {};
        EXPECT_EQ(0, Resolve(changes, &spec, &err, ranks)) << err.message;
    }
    ~Accepted()
    {
        shd_spec_fini(&spec);
    }
    Accepted(const Accepted &) = delete;
    Accepted &operator=(const Accepted &) = delete;
    shd_spec spec;
};

TEST(Defaults, AreTheDocumentedOnes)
{
    Accepted a({});
    const shd_spec &s = a.spec;
    EXPECT_STREQ("", s.name);
    EXPECT_STREQ("gpt-byte-1m", s.model_name);
    EXPECT_STREQ("/data/text", s.data_path);
    EXPECT_EQ(nullptr, s.eval_path);
    EXPECT_EQ(SHD_DATA_AUTO, s.data_format);
    EXPECT_EQ(4u, s.strategy.world) << "all ranks of the daemon";
    EXPECT_EQ(4u, s.strategy.p) << "zero3";
    EXPECT_EQ(4u, s.strategy.regather) << "nothing stays gathered";
    EXPECT_EQ(SHD_DETERMINISM_STRATEGY, s.determinism);
    EXPECT_EQ(4u, s.reduction_width);
    EXPECT_EQ(1000u, s.steps);
    EXPECT_EQ(8u, s.micro_batch);
    EXPECT_EQ(32u, s.global_batch);
    EXPECT_EQ(1u, s.accumulation);
    EXPECT_EQ(256u, s.seq_len) << "the model's context";
    EXPECT_EQ(SHD_SCHEDULE_COSINE, s.schedule.kind);
    EXPECT_EQ(3e-4, s.schedule.lr);
    EXPECT_DOUBLE_EQ(3e-5, s.schedule.lr_min);
    EXPECT_EQ(0u, s.schedule.warmup);
    EXPECT_EQ(1000u, s.schedule.steps);
    EXPECT_EQ(0.1, s.weight_decay);
    EXPECT_EQ(0.9, s.optim.beta1);
    EXPECT_EQ(0.95, s.optim.beta2);
    EXPECT_EQ(1e-8, s.optim.eps);
    EXPECT_EQ(1.0, s.clip);
    EXPECT_EQ(1u, s.seed);
    EXPECT_EQ(0.0, s.eval_split);
    EXPECT_EQ(0u, s.eval_every);
    EXPECT_EQ(64u, s.eval_batches);
    EXPECT_EQ(10u, s.priority);
    EXPECT_EQ(1u, s.pipeline.prefetch);
    EXPECT_EQ(0u, s.pipeline.max_gathered);
    EXPECT_EQ(0u, s.pipeline.bucket_bytes);
    EXPECT_EQ(1, s.pipeline.overlap);
    EXPECT_EQ(0u, s.pipeline.persist_below);
}

TEST(Defaults, OfAJobThatClientsDrive)
{
    Accepted a({kClientDriven});
    EXPECT_EQ(nullptr, a.spec.data_path);
    EXPECT_EQ(0u, a.spec.steps) << "no end";
    EXPECT_EQ(SHD_SCHEDULE_CONSTANT, a.spec.schedule.kind) << "no end to decay to";
    Accepted b({kClientDriven, SET(steps, STEPS, 50)});
    EXPECT_EQ(50u, b.spec.steps);
    EXPECT_EQ(SHD_SCHEDULE_COSINE, b.spec.schedule.kind);
}

TEST(Defaults, WhatIsGivenIsTaken)
{
    Accepted a({TEXT(name, "My_job-1.x"),
                TEXT(strategy, "zero1"),
                SET(ranks, RANKS, 2),
                SET(steps, STEPS, 7),
                SET(micro_batch, MICRO_BATCH, 3),
                SET(global_batch, GLOBAL_BATCH, 24),
                SET(seq_len, SEQ_LEN, 100),
                SET(lr, LR, 0.5),
                TEXT(schedule, "linear"),
                SET(warmup, WARMUP, 7),
                SET(lr_min, LR_MIN, 0.25),
                SET(weight_decay, WEIGHT_DECAY, 0),
                SET(beta1, BETA1, 0),
                SET(beta2, BETA2, 0.5),
                SET(eps, EPS, 1),
                SET(clip, CLIP, 0),
                SET(seed, SEED, UINT64_MAX),
                SET(eval_split, EVAL_SPLIT, 0.9),
                SET(eval_every, EVAL_EVERY, 3),
                SET(eval_batches, EVAL_BATCHES, 0),
                SET(priority, PRIORITY, 100),
                TEXT(data_format, "llmc"),
                TEXT(tokenizer, "bytes"),
                TEXT(optimizer, "adamw"),
                TEXT(dtype, "fp32"),
                TEXT(reduce_dtype, "fp32"),
                TEXT(determinism, "run"),
                TEXT(activation_checkpointing, "none"),
                TEXT(offload_optimizer, "none"),
                TEXT(offload_params, "none"),
                TEXT(init_from, "random"),
                SET(reduction_width, REDUCTION_WIDTH, 2),
                SET(checkpoint_every, CHECKPOINT_EVERY, 0)});
    const shd_spec &s = a.spec;
    EXPECT_STREQ("My_job-1.x", s.name);
    EXPECT_EQ(2u, s.strategy.world);
    EXPECT_EQ(1u, s.strategy.g);
    EXPECT_EQ(2u, s.strategy.o);
    EXPECT_EQ(7u, s.steps);
    EXPECT_EQ(3u, s.micro_batch);
    EXPECT_EQ(24u, s.global_batch);
    EXPECT_EQ(4u, s.accumulation);
    EXPECT_EQ(100u, s.seq_len);
    EXPECT_EQ(SHD_SCHEDULE_LINEAR, s.schedule.kind);
    EXPECT_EQ(0.5, s.schedule.lr);
    EXPECT_EQ(0.25, s.schedule.lr_min);
    EXPECT_EQ(7u, s.schedule.warmup);
    EXPECT_EQ(7u, s.schedule.steps);
    EXPECT_EQ(0.0, s.weight_decay);
    EXPECT_EQ(0.0, s.optim.beta1);
    EXPECT_EQ(0.5, s.optim.beta2);
    EXPECT_EQ(1.0, s.optim.eps);
    EXPECT_EQ(0.0, s.clip);
    EXPECT_EQ(UINT64_MAX, s.seed);
    EXPECT_EQ(0.9, s.eval_split);
    EXPECT_EQ(3u, s.eval_every);
    EXPECT_EQ(0u, s.eval_batches);
    EXPECT_EQ(100u, s.priority);
    EXPECT_EQ(SHD_DATA_LLMC, s.data_format);
}

TEST(Defaults, OfEvaluation)
{
    Accepted a({SET(eval_every, EVAL_EVERY, 10)});
    EXPECT_EQ(0.1, a.spec.eval_split);
    Accepted b({SET(eval_every, EVAL_EVERY, 10), TEXT(eval_data, "/data/eval")});
    EXPECT_STREQ("/data/eval", b.spec.eval_path);
    EXPECT_EQ(0.0, b.spec.eval_split);
    Accepted c({SET(eval_split, EVAL_SPLIT, 0.25)});
    EXPECT_EQ(0.25, c.spec.eval_split) << "kept apart though never evaluated";
}

TEST(Refusals, Names)
{
    static const std::string most(64, 'a'), more(65, 'a');
    Accepted a({[](Proto *p) { p->name = const_cast<char *>(most.c_str()); }});
    EXPECT_EQ(most, a.spec.name);
    Refused({[](Proto *p) { p->name = const_cast<char *>(more.c_str()); }}, SHD_EINVAL,
            {"--name", "65", "64"});
    Refused({TEXT(name, "a b")}, SHD_EINVAL, {"--name 'a b'", "letters"});
    Refused({TEXT(name, "a/b")}, SHD_EINVAL, {"--name 'a/b'"});
    Refused({TEXT(name, "j\xc3\xb6"
                        "b")},
            SHD_EINVAL, {"--name"});
}

TEST(Refusals, Models)
{
    Refused({TEXT(model, "")}, SHD_EINVAL, {"--model is missing", "gpt2"});
    Refused({TEXT(model, "gpt5")}, SHD_ENOTFOUND, {"--model 'gpt5'", "gpt-byte-1m"});
    Refused({TEXT(init_from, "else")}, SHD_EINVAL, {"--init-from 'else'", "directory"});
    Refused({TEXT(init_from, "pretrained")}, SHD_EINVAL, {"--init-from pretrained", "preset"});
}

TEST(Refusals, WhatThisVersionDoesNotHave)
{
    Refused({TEXT(offload_optimizer, "host")}, SHD_EUNSUPPORTED,
            {"--offload-optimizer 'host'", "none"});
    Refused({TEXT(offload_params, "nvme")}, SHD_EUNSUPPORTED, {"--offload-params 'nvme'", "none"});
    Refused({SET(checkpoint_every, CHECKPOINT_EVERY, 100)}, SHD_EUNSUPPORTED,
            {"--checkpoint-every 100"});
}

TEST(Optimizers, HaveTheirOwnDefaults)
{
    Accepted adam({TEXT(optimizer, "adam")});
    EXPECT_EQ(SHD_OPTIM_ADAM, adam.spec.optim.kind);
    EXPECT_EQ(0.95, adam.spec.optim.beta2);
    Accepted sgd({TEXT(optimizer, "sgd")});
    EXPECT_EQ(SHD_OPTIM_SGD, sgd.spec.optim.kind);
    EXPECT_EQ(0.9, sgd.spec.optim.momentum);
    EXPECT_EQ(0.0, sgd.spec.weight_decay);
    Accepted nesterov(
        {TEXT(optimizer, "sgd"), SET(momentum, MOMENTUM, 0.5), [](Proto *p) { p->nesterov = 1; }});
    EXPECT_EQ(0.5, nesterov.spec.optim.momentum);
    EXPECT_TRUE(nesterov.spec.optim.nesterov);
    Accepted lion({TEXT(optimizer, "lion"), [](Proto *p) { p->decay_all = 1; }});
    EXPECT_EQ(SHD_OPTIM_LION, lion.spec.optim.kind);
    EXPECT_EQ(0.9, lion.spec.optim.beta1);
    EXPECT_EQ(0.99, lion.spec.optim.beta2);
    EXPECT_EQ(0.1, lion.spec.weight_decay);
    EXPECT_TRUE(lion.spec.decay_all);
}

TEST(Refusals, Optimizers)
{
    Refused({TEXT(optimizer, "adafactor")}, SHD_EINVAL, {"--optimizer 'adafactor'", "lion"});
    const Change momentum = SET(momentum, MOMENTUM, 0.9), eps = SET(eps, EPS, 1e-8);
    const Change beta1 = SET(beta1, BETA1, 0.9), beta2 = SET(beta2, BETA2, 0.9);
    const Change nesterov = [](Proto *p) { p->nesterov = 1; };
    for (const char *name : {"adamw", "adam", "lion"}) {
        const Change kind = [name](Proto *p) { p->optimizer = const_cast<char *>(name); };
        Refused({kind, momentum}, SHD_EINVAL, {"--momentum", name});
        Refused({kind, nesterov}, SHD_EINVAL, {"--nesterov", name});
    }
    Refused({momentum}, SHD_EINVAL, {"--momentum", "--optimizer adamw"});
    const Change sgd = TEXT(optimizer, "sgd");
    Refused({sgd, beta1}, SHD_EINVAL, {"--beta1", "--optimizer sgd"});
    Refused({sgd, beta2}, SHD_EINVAL, {"--beta2", "--optimizer sgd"});
    Refused({sgd, eps}, SHD_EINVAL, {"--eps", "--optimizer sgd"});
    Refused({TEXT(optimizer, "lion"), eps}, SHD_EINVAL, {"--eps", "--optimizer lion"});
    Refused({sgd, SET(momentum, MOMENTUM, 0), nesterov}, SHD_EINVAL,
            {"--nesterov", "--momentum 0"});
    for (double bad : {-0.1, 1.0, kInf, kNan}) {
        Refused({sgd,
                 [bad](Proto *p) {
                     p->has_momentum_case = SHARD__V1__JOB_SPEC__HAS_MOMENTUM_MOMENTUM;
                     p->momentum = bad;
                 }},
                SHD_EINVAL, {"--momentum "});
    }
}

TEST(Schedules, OfThreePhasesAndWithoutAnEnd)
{
    Accepted a({TEXT(schedule, "wsd"), SET(steps, STEPS, 200)});
    EXPECT_EQ(20u, a.spec.schedule.decay_steps) << "a tenth";
    Accepted b({TEXT(schedule, "wsd"), SET(steps, STEPS, 200), SET(warmup, WARMUP, 190)});
    EXPECT_EQ(10u, b.spec.schedule.decay_steps) << "what warm-up leaves";
    Accepted c({TEXT(schedule, "wsd"), SET(steps, STEPS, 5)});
    EXPECT_EQ(1u, c.spec.schedule.decay_steps);
    Accepted d({kClientDriven, TEXT(schedule, "inverse_sqrt"), SET(warmup, WARMUP, 9)});
    EXPECT_EQ(SHD_SCHEDULE_INVERSE_SQRT, d.spec.schedule.kind);
    EXPECT_EQ(0u, d.spec.steps);
    const Change wsd = TEXT(schedule, "wsd"), steps = SET(steps, STEPS, 100);
    Refused({kClientDriven, wsd}, SHD_EINVAL, {"--schedule wsd", "--steps"});
    Refused({wsd, steps, SET(warmup, WARMUP, 100)}, SHD_EINVAL, {"--schedule wsd", "--warmup 100"});
    Refused({wsd, steps, SET(warmup, WARMUP, 50), SET(decay_steps, DECAY_STEPS, 51)}, SHD_EINVAL,
            {"--decay-steps 51", "1 to 50"});
    Refused({wsd, steps, SET(decay_steps, DECAY_STEPS, 0)}, SHD_EINVAL, {"--decay-steps 0"});
    Refused({SET(decay_steps, DECAY_STEPS, 5)}, SHD_EINVAL, {"--decay-steps", "--schedule cosine"});
    for (const Change &kind :
         {Change(TEXT(schedule, "constant")), Change(TEXT(schedule, "inverse_sqrt"))}) {
        Refused({kind, SET(lr_min, LR_MIN, 1e-5)}, SHD_EINVAL, {"--lr-min", "--schedule "});
    }
}

TEST(Refusals, LossScaling)
{
    Refused({SET(loss_scale, LOSS_SCALE, 128)}, SHD_EINVAL, {"--loss-scale", "fp16"});
    Refused({SET(initial_scale_power, INITIAL_SCALE_POWER, 8)}, SHD_EINVAL,
            {"--initial-scale-power", "fp16"});
    Refused({SET(loss_scale_window, LOSS_SCALE_WINDOW, 8)}, SHD_EINVAL,
            {"--loss-scale-window", "fp16"});
    Refused({SET(hysteresis, HYSTERESIS, 2)}, SHD_EINVAL, {"--hysteresis", "fp16"});
    Refused({SET(min_loss_scale, MIN_LOSS_SCALE, 1)}, SHD_EINVAL, {"--min-loss-scale", "fp16"});
    const Change fp16 = TEXT(dtype, "fp16");
    const Change fixed = SET(loss_scale, LOSS_SCALE, 128);
    Refused({fp16, fixed, SET(hysteresis, HYSTERESIS, 2)}, SHD_EINVAL,
            {"--hysteresis", "static --loss-scale"});
    Refused({fp16, SET(loss_scale, LOSS_SCALE, -1)}, SHD_EINVAL, {"--loss-scale -1"});
    Refused({fp16, SET(loss_scale, LOSS_SCALE, 1e-300)}, SHD_EINVAL, {"--loss-scale 1e-300"});
    Refused({fp16, SET(loss_scale, LOSS_SCALE, kNan)}, SHD_EINVAL, {"--loss-scale nan"});
    Refused({fp16, SET(initial_scale_power, INITIAL_SCALE_POWER, 33)}, SHD_EINVAL,
            {"--initial-scale-power 33", "32"});
    Refused({fp16, SET(loss_scale_window, LOSS_SCALE_WINDOW, 0)}, SHD_EINVAL,
            {"--loss-scale-window 0"});
    Refused({fp16, SET(hysteresis, HYSTERESIS, 0)}, SHD_EINVAL, {"--hysteresis 0"});
    Refused({fp16, SET(min_loss_scale, MIN_LOSS_SCALE, 0)}, SHD_EINVAL, {"--min-loss-scale 0"});
    Refused({fp16, SET(min_loss_scale, MIN_LOSS_SCALE, 4),
             SET(initial_scale_power, INITIAL_SCALE_POWER, 1)},
            SHD_EINVAL, {"--min-loss-scale 4", "2^1"});
}

TEST(Refusals, FreezingAndOthers)
{
    static char *none[] = {const_cast<char *>("transformer.h.*"), const_cast<char *>("lora_*")};
    static char *all[] = {const_cast<char *>("*")};
    Refused({[](Proto *p) {
                p->n_freeze = 2;
                p->freeze = none;
            }},
            SHD_EINVAL, {"--freeze 'lora_*'", "transformer."});
    Refused({[](Proto *p) {
                p->n_freeze = 1;
                p->freeze = all;
            }},
            SHD_EINVAL, {"--freeze", "nothing to train"});
    Refused({SET(dropout, DROPOUT, -0.1)}, SHD_EINVAL, {"--dropout -0.1", "0 to 0.99"});
    Refused({SET(dropout, DROPOUT, 1)}, SHD_EINVAL, {"--dropout 1"});
    Refused({SET(dropout, DROPOUT, kNan)}, SHD_EINVAL, {"--dropout nan"});
    Refused({TEXT(activation_checkpointing, "unit")}, SHD_EINVAL,
            {"--activation-checkpointing 'unit'", "none", "selective", "full"});
    Refused({TEXT(dtype, "fp8")}, SHD_EINVAL, {"--dtype 'fp8'", "fp32, bf16 or fp16"});
    Refused({TEXT(reduce_dtype, "half")}, SHD_EINVAL, {"--reduce-dtype 'half'"});
    for (const Change &dtype : {Change(TEXT(dtype, "fp32")), Change(TEXT(dtype, "bf16"))}) {
        Refused({dtype, TEXT(reduce_dtype, "fp16")}, SHD_EINVAL,
                {"--reduce-dtype fp16", "--dtype fp16"});
    }
    Refused({TEXT(data, ""), TEXT(data_format, "jsonl")}, SHD_EINVAL,
            {"--data-format has no effect with no --data"});
    Refused({TEXT(data, ""),
             [](Proto *p) {
                 p->has_packing_case = SHARD__V1__JOB_SPEC__HAS_PACKING_PACKING;
                 p->packing = 0;
             }},
            SHD_EINVAL, {"--packing has no effect with no --data"});
    Refused({TEXT(init_from, "pretrained")}, SHD_EINVAL, {"--init-from pretrained", "gpt-byte-1m"});
    Refused({TEXT(init_from, "zeros")}, SHD_EINVAL, {"--init-from 'zeros'", "directory"});
}

TEST(Refusals, Ranks)
{
    Refused({SET(ranks, RANKS, 0)}, SHD_EINVAL, {"--ranks 0", "1 to 4"});
    Refused({SET(ranks, RANKS, 65)}, SHD_EINVAL, {"--ranks 65", "has 64"}, 64);
    Refused({SET(ranks, RANKS, UINT32_MAX)}, SHD_EINVAL, {"--ranks 4294967295", "1 to 4"});
    Refused({SET(ranks, RANKS, 16385)}, SHD_EINVAL, {"--ranks 16385", "1 to 16384"}, 16384);
    Refused({SET(ranks, RANKS, 5)}, SHD_EINVAL, {"--ranks 5", "has 4"});
}

TEST(Refusals, Strategies)
{
    Refused({TEXT(strategy, "zero9")}, SHD_EINVAL, {"--strategy 'zero9'", "zero3"});
    Refused({SET(shard_group, SHARD_GROUP, 0), TEXT(strategy, "hpz")}, SHD_EINVAL,
            {"--shard-group 0", "1 to 4"});
    Refused({SET(shard_group, SHARD_GROUP, 5), TEXT(strategy, "hpz")}, SHD_EINVAL,
            {"--shard-group 5", "1 to 4"});
    Refused({SET(shard_group, SHARD_GROUP, 3), TEXT(strategy, "hpz")}, SHD_EINVAL,
            {"--shard-group 3", "--ranks 4", "1, 2 or 4"});
    Refused({SET(shard_group, SHARD_GROUP, 2), TEXT(strategy, "zero3")}, SHD_EINVAL,
            {"--shard-group 2", "no effect", "--strategy zero3", "hybrid_shard"});
    Refused({SET(shard_group, SHARD_GROUP, 2)}, SHD_EINVAL,
            {"--shard-group 2", "--strategy hybrid_shard"});
    Refused({TEXT(reshard_after_forward, "3")}, SHD_EINVAL,
            {"--reshard-after-forward 3", "4 ranks", "1, 2 or 4"});
    Refused({TEXT(reshard_after_forward, "no"), TEXT(strategy, "zero2")}, SHD_EINVAL,
            {"--reshard-after-forward no", "no effect", "1,4,4", "P = 1"});
    static uint32_t degrees[3] = {1, 2, 3};
    Refused({[](Proto *p) {
                p->n_shard_degrees = 3;
                p->shard_degrees = degrees;
            }},
            SHD_EINVAL, {"--shard-degrees 1,2,3", "G = 2"});
}

TEST(Strategies, OfGroups)
{
    const auto group = SET(shard_group, SHARD_GROUP, 2);
    const Accepted hpz({TEXT(strategy, "hpz"), group, TEXT(reshard_after_forward, "no")});
    EXPECT_EQ(2u, hpz.spec.strategy.p);
    EXPECT_EQ(4u, hpz.spec.strategy.g);
    EXPECT_EQ(1u, hpz.spec.strategy.regather);
    const Accepted all({TEXT(strategy, "hybrid_shard")});
    EXPECT_EQ(4u, all.spec.strategy.p) << "the daemon is one node";
    Proto proto;
    shard__v1__job_spec__init(&proto);
    proto.model = const_cast<char *>("gpt-byte-1m");
    proto.strategy = const_cast<char *>("megatron");
    shd_spec spec;
    shd_error err = {};
    ASSERT_EQ(0, shd_spec_resolve(&proto, 16, 8, nullptr, &spec, &err)) << err.message;
    EXPECT_EQ(8u, spec.strategy.p) << "the ranks of a node";
    EXPECT_EQ(8u, spec.strategy.g);
    EXPECT_EQ(16u, spec.strategy.o);
    shd_spec_fini(&spec);
}

TEST(Determinism, Levels)
{
    const auto world = TEXT(determinism, "world");
    const Accepted run({TEXT(determinism, "run")});
    EXPECT_EQ(SHD_DETERMINISM_RUN, run.spec.determinism);
    EXPECT_EQ(4u, run.spec.reduction_width);
    const Accepted narrow({world});
    EXPECT_EQ(SHD_DETERMINISM_WORLD, narrow.spec.determinism);
    EXPECT_EQ(4u, narrow.spec.reduction_width);
    const Accepted wide({world, SET(reduction_width, REDUCTION_WIDTH, 16)});
    EXPECT_EQ(16u, wide.spec.reduction_width);
    EXPECT_EQ(128u, wide.spec.global_batch) << "as with any number of ranks";
    EXPECT_EQ(4u, wide.spec.accumulation);
    Refused({TEXT(determinism, "all")}, SHD_EINVAL,
            {"--determinism 'all'", "strategy, run or world"});
    for (uint32_t width : {0u, 1u, 8u, UINT32_MAX}) {
        Refused({[width](Proto *p) {
                    p->has_reduction_width_case =
                        SHARD__V1__JOB_SPEC__HAS_REDUCTION_WIDTH_REDUCTION_WIDTH;
                    p->reduction_width = width;
                }},
                SHD_EINVAL,
                {"--reduction-width " + std::to_string(width), "(4)", "--determinism world"});
    }
    Refused({world, SET(reduction_width, REDUCTION_WIDTH, 6)}, SHD_EINVAL,
            {"--reduction-width 6", "power of two"});
    Refused({world, SET(reduction_width, REDUCTION_WIDTH, 2)}, SHD_EINVAL,
            {"--reduction-width 2", "at least --ranks 4"});
    Refused({world, SET(reduction_width, REDUCTION_WIDTH, 0)}, SHD_EINVAL,
            {"--reduction-width 0", "1 to 16384"});
    Refused({world, SET(ranks, RANKS, 3)}, SHD_EINVAL,
            {"--determinism world", "--ranks 3", "--ranks 2", "--determinism strategy"});
}

TEST(Refusals, Batches)
{
    Refused({SET(micro_batch, MICRO_BATCH, 0)}, SHD_EINVAL, {"--micro-batch 0", "1 to 1048576"});
    Refused({SET(micro_batch, MICRO_BATCH, UINT32_MAX)}, SHD_EINVAL, {"--micro-batch 4294967295"});
    Refused({SET(global_batch, GLOBAL_BATCH, 0)}, SHD_EINVAL, {"--global-batch 0"});
    Refused({SET(global_batch, GLOBAL_BATCH, UINT32_MAX)}, SHD_EINVAL,
            {"--global-batch 4294967295"});
    Refused({SET(global_batch, GLOBAL_BATCH, 33)}, SHD_EINVAL,
            {"--global-batch 33", "--ranks 4", "--micro-batch 8", "multiple of 32", "64"});
    Refused({SET(global_batch, GLOBAL_BATCH, 1)}, SHD_EINVAL, {"--global-batch 1", "example 32"});
    // Too many sequences a round, though each number alone is allowed.
    Refused({SET(micro_batch, MICRO_BATCH, 300000)}, SHD_EINVAL,
            {"--micro-batch 300000", "--ranks 4", "1200000", "1048576", "at most 262144"});
    Accepted most({SET(micro_batch, MICRO_BATCH, 262144)});
    EXPECT_EQ(1048576u, most.spec.global_batch);
    // The advice can be followed.
    Refused({SET(micro_batch, MICRO_BATCH, 200000), SET(global_batch, GLOBAL_BATCH, 1000000)},
            SHD_EINVAL, {"--global-batch 1000000", "multiple of 800000", "example 800000"});
    Refused({SET(seq_len, SEQ_LEN, 0)}, SHD_EINVAL, {"--seq-len 0"});
    Refused({SET(seq_len, SEQ_LEN, 257)}, SHD_EINVAL, {"--seq-len 257", "256"});
    Refused({SET(seq_len, SEQ_LEN, UINT32_MAX)}, SHD_EINVAL, {"--seq-len 4294967295"});
    Refused({TEXT(data_format, "csv")}, SHD_EINVAL, {"--data-format", "'csv'", "nanogpt"});
}

TEST(Refusals, StepsAndSchedules)
{
    Refused({SET(steps, STEPS, 0)}, SHD_EINVAL, {"--steps 0", "1 to"});
    Refused({SET(steps, STEPS, UINT64_MAX)}, SHD_EINVAL, {"--steps 18446744073709551615"});
    Refused({kClientDriven, SET(steps, STEPS, UINT64_C(1000000001))}, SHD_EINVAL,
            {"--steps 1000000001", "1000000000"});
    Refused({TEXT(schedule, "step")}, SHD_EINVAL, {"--schedule 'step'", "cosine"});
    for (const Change &kind :
         {Change(TEXT(schedule, "cosine")), Change(TEXT(schedule, "linear"))}) {
        Refused({kClientDriven, kind}, SHD_EINVAL, {"--schedule", "--steps"});
    }
    Refused({SET(steps, STEPS, 10), SET(warmup, WARMUP, 11)}, SHD_EINVAL, {"--warmup 11", "10"});
    Refused({SET(warmup, WARMUP, UINT64_MAX)}, SHD_EINVAL, {"--warmup 18446744073709551615"});
    Refused({kClientDriven, SET(warmup, WARMUP, UINT64_MAX)}, SHD_EINVAL, {"--warmup"});
    Accepted a({kClientDriven, SET(warmup, WARMUP, 1000)});
    EXPECT_EQ(1000u, a.spec.schedule.warmup);
}

// Every real-valued field: what is not a number, what is no finite one, and what is out of bounds.
TEST(Refusals, RealNumbers)
{
    struct Field {
        const char *flag;
        void (*set)(Proto *, double);
        std::vector<double> bad;
        std::vector<std::string> bounds;
    };
#define REAL(f, Case)                                                                              \
    [](Proto *p, double v) {                                                                       \
        p->has_##f##_case = SHARD__V1__JOB_SPEC__HAS_##Case##_##Case;                              \
        p->f = v;                                                                                  \
    }
    const std::vector<Field> fields = {
        {"--lr ", REAL(lr, LR), {-1e-9, 100.1}, {"0 to 100"}},
        {"--lr-min ", REAL(lr_min, LR_MIN), {-1, 101}, {"0 to 100"}},
        {"--weight-decay ", REAL(weight_decay, WEIGHT_DECAY), {-0.1, 1e3}, {"0 to 100"}},
        {"--beta1 ", REAL(beta1, BETA1), {-0.5, 1.0, 2.0}, {"0 to 0.9999999"}},
        {"--beta2 ", REAL(beta2, BETA2), {-0.5, 1.0, 2.0}, {"0 to 0.9999999"}},
        {"--eps ", REAL(eps, EPS), {0, -1e-8, 1e-31, 1.5}, {"1e-30 to 1"}},
        {"--clip ", REAL(clip, CLIP), {-1, 1e31}, {"0 to 1e+30"}},
        {"--eval-split ", REAL(eval_split, EVAL_SPLIT), {-0.1, 0.91, 1.0}, {"0 to 0.9"}},
    };
    for (const Field &field : fields) {
        std::vector<double> bad = field.bad;
        for (double x : {kInf, -kInf, kNan, 1e308, -1e308}) {
            bad.push_back(x);
        }
        for (double x : bad) {
            char value[64];
            snprintf(value, sizeof value, "%.9g", x);
            std::vector<std::string> says = field.bounds;
            says.push_back(field.flag + std::string(value));
            Refused({[&](Proto *p) { field.set(p, x); }}, SHD_EINVAL, says);
        }
        // Clients that drive a job get the same checks.
        if (strcmp(field.flag, "--eval-split ") != 0) {
            Refused({kClientDriven, [&](Proto *p) { field.set(p, kNan); }}, SHD_EINVAL,
                    {field.flag});
        }
    }
}

TEST(Refusals, Evaluation)
{
    Refused({SET(eval_every, EVAL_EVERY, UINT64_MAX)}, SHD_EINVAL,
            {"--eval-every 18446744073709551615"});
    Refused({SET(eval_batches, EVAL_BATCHES, UINT32_MAX)}, SHD_EINVAL,
            {"--eval-batches 4294967295"});
    Refused({SET(eval_every, EVAL_EVERY, 5), SET(eval_split, EVAL_SPLIT, 0)}, SHD_EINVAL,
            {"--eval-every 5", "--eval-split"});
    Refused({TEXT(eval_data, "/e")}, SHD_EINVAL, {"--eval-data", "--eval-every 0"});
    const auto every = SET(eval_every, EVAL_EVERY, 5);
    Refused({every, TEXT(eval_data, "/e"), SET(eval_split, EVAL_SPLIT, 0.2)}, SHD_EINVAL,
            {"--eval-data", "--eval-split 0.2"});
    Refused({every, TEXT(eval_data, "/e"), SET(eval_split, EVAL_SPLIT, kNan)}, SHD_EINVAL,
            {"--eval-split nan"});
    Refused({kClientDriven, TEXT(eval_data, "/e")}, SHD_EINVAL, {"--eval-data", "--data"});
    Refused({kClientDriven, SET(eval_every, EVAL_EVERY, 5)}, SHD_EINVAL, {"--eval-every"});
    Refused({kClientDriven, SET(eval_split, EVAL_SPLIT, 0.1)}, SHD_EINVAL, {"--eval-split"});
    Refused({kClientDriven, SET(eval_split, EVAL_SPLIT, kNan)}, SHD_EINVAL, {"--eval-split"});
}

TEST(Refusals, WhatHasNoEffect)
{
    Refused({SET(eval_batches, EVAL_BATCHES, 3)}, SHD_EINVAL, {"--eval-batches", "--eval-every 0"});
    Refused({kClientDriven, TEXT(data_format, "text")}, SHD_EINVAL, {"--data-format", "--data"});
    Refused({kClientDriven, SET(packing, PACKING, 1)}, SHD_EINVAL, {"--packing", "--data"});
    Refused({TEXT(dtype, "fp16"), SET(loss_scale, LOSS_SCALE, 1e-300)}, SHD_EINVAL,
            {"--loss-scale 1e-300"});
}

TEST(Refusals, Priorities)
{
    Refused({SET(priority, PRIORITY, 0)}, SHD_EINVAL, {"--priority 0", "1 to 100"});
    Refused({SET(priority, PRIORITY, 101)}, SHD_EINVAL, {"--priority 101"});
    Refused({SET(priority, PRIORITY, UINT32_MAX)}, SHD_EINVAL, {"--priority 4294967295"});
}

TEST(Refusals, ThePipeline)
{
    Refused({SET(prefetch, PREFETCH, UINT32_MAX)}, SHD_EINVAL, {"--prefetch 4294967295"});
    Refused({SET(bucket_bytes, BUCKET_BYTES, UINT64_MAX)}, SHD_EINVAL, {"--bucket-bytes"});
    Refused({SET(persist_below, PERSIST_BELOW, UINT64_MAX)}, SHD_EINVAL, {"--persist-below"});
    Refused({SET(max_gathered, MAX_GATHERED, 3), TEXT(strategy, "shard_grad_op")}, SHD_EINVAL,
            {"--max-gathered 3", "shard_grad_op"});
}

void ExpectEqual(const shd_spec &a, const shd_spec &b)
{
    const auto text = [](const char *s) { return std::string(s != nullptr ? s : "(none)"); };
    EXPECT_STREQ(a.name, b.name);
    EXPECT_STREQ(a.model_name, b.model_name);
    EXPECT_EQ(text(a.data_path), text(b.data_path));
    EXPECT_EQ(text(a.eval_path), text(b.eval_path));
    EXPECT_EQ(a.data_format, b.data_format);
    EXPECT_EQ(a.model.n_layer, b.model.n_layer);
    EXPECT_EQ(a.model.d_model, b.model.d_model);
    EXPECT_EQ(a.strategy.world, b.strategy.world);
    EXPECT_EQ(a.strategy.p, b.strategy.p);
    EXPECT_EQ(a.strategy.g, b.strategy.g);
    EXPECT_EQ(a.strategy.o, b.strategy.o);
    EXPECT_EQ(a.strategy.regather, b.strategy.regather);
    EXPECT_EQ(a.determinism, b.determinism);
    EXPECT_EQ(a.reduction_width, b.reduction_width);
    EXPECT_EQ(a.pipeline.prefetch, b.pipeline.prefetch);
    EXPECT_EQ(a.pipeline.max_gathered, b.pipeline.max_gathered);
    EXPECT_EQ(a.pipeline.bucket_bytes, b.pipeline.bucket_bytes);
    EXPECT_EQ(a.pipeline.overlap, b.pipeline.overlap);
    EXPECT_EQ(a.pipeline.persist_below, b.pipeline.persist_below);
    EXPECT_EQ(a.steps, b.steps);
    EXPECT_EQ(a.micro_batch, b.micro_batch);
    EXPECT_EQ(a.global_batch, b.global_batch);
    EXPECT_EQ(a.accumulation, b.accumulation);
    EXPECT_EQ(a.seq_len, b.seq_len);
    EXPECT_EQ(a.schedule.kind, b.schedule.kind);
    EXPECT_EQ(a.schedule.lr, b.schedule.lr);
    EXPECT_EQ(a.schedule.lr_min, b.schedule.lr_min);
    EXPECT_EQ(a.schedule.warmup, b.schedule.warmup);
    EXPECT_EQ(a.schedule.steps, b.schedule.steps);
    EXPECT_EQ(a.schedule.decay_steps, b.schedule.decay_steps);
    EXPECT_EQ(a.weight_decay, b.weight_decay);
    EXPECT_EQ(a.decay_all, b.decay_all);
    EXPECT_EQ(a.optim.kind, b.optim.kind);
    EXPECT_EQ(a.optim.momentum, b.optim.momentum);
    EXPECT_EQ(a.optim.nesterov, b.optim.nesterov);
    EXPECT_EQ(a.dtype, b.dtype);
    EXPECT_EQ(a.reduce_dtype, b.reduce_dtype);
    EXPECT_EQ(a.scaler.enabled, b.scaler.enabled);
    EXPECT_EQ(a.scaler.loss_scale, b.scaler.loss_scale);
    EXPECT_EQ(a.scaler.initial_scale_power, b.scaler.initial_scale_power);
    EXPECT_EQ(a.scaler.loss_scale_window, b.scaler.loss_scale_window);
    EXPECT_EQ(a.scaler.hysteresis, b.scaler.hysteresis);
    EXPECT_EQ(a.scaler.min_loss_scale, b.scaler.min_loss_scale);
    EXPECT_EQ(a.checkpointing, b.checkpointing);
    EXPECT_EQ(a.dropout, b.dropout);
    EXPECT_EQ(a.packing, b.packing);
    EXPECT_EQ(text(a.tokenizer), text(b.tokenizer));
    EXPECT_EQ(text(a.init_from), text(b.init_from));
    EXPECT_EQ(a.n_freeze, b.n_freeze);
    for (uint32_t k = 0; k < std::min(a.n_freeze, b.n_freeze); k++) {
        EXPECT_STREQ(a.freeze[k], b.freeze[k]);
    }
    EXPECT_EQ(a.optim.beta1, b.optim.beta1);
    EXPECT_EQ(a.optim.beta2, b.optim.beta2);
    EXPECT_EQ(a.optim.eps, b.optim.eps);
    EXPECT_EQ(a.clip, b.clip);
    EXPECT_EQ(a.seed, b.seed);
    EXPECT_EQ(a.eval_split, b.eval_split);
    EXPECT_EQ(a.eval_every, b.eval_every);
    EXPECT_EQ(a.eval_batches, b.eval_batches);
    EXPECT_EQ(a.priority, b.priority);
}

// What a job is shown as is what would make the same job again.
TEST(ToProto, ThereAndBack)
{
    static uint32_t degrees[3] = {1, 2, 4};
    const std::vector<std::vector<Change>> jobs = {
        {},
        {kClientDriven},
        {kClientDriven, SET(steps, STEPS, 20), SET(warmup, WARMUP, 20), TEXT(name, "n")},
        {TEXT(strategy, "ddp")},
        {TEXT(strategy, "zero1"), SET(ranks, RANKS, 3)},
        {TEXT(strategy, "shard_grad_op"), SET(ranks, RANKS, 2)},
        {TEXT(strategy, "shard_grad_op"), SET(ranks, RANKS, 1)},
        {[](Proto *p) {
            p->n_shard_degrees = 3;
            p->shard_degrees = degrees;
        }},
        {TEXT(strategy, "hybrid_shard")},
        {TEXT(strategy, "mics"), SET(shard_group, SHARD_GROUP, 2)},
        {TEXT(strategy, "hybrid_shard_zero2"), SET(shard_group, SHARD_GROUP, 2)},
        {TEXT(strategy, "hpz"), SET(shard_group, SHARD_GROUP, 2)},
        {TEXT(strategy, "hpz"), SET(shard_group, SHARD_GROUP, 2),
         TEXT(reshard_after_forward, "no")},
        {TEXT(strategy, "megatron"), SET(shard_group, SHARD_GROUP, 2)},
        {TEXT(strategy, "megatron"), SET(shard_group, SHARD_GROUP, 1)},
        {TEXT(reshard_after_forward, "2")},
        {TEXT(reshard_after_forward, "no"), SET(ranks, RANKS, 1)},
        {TEXT(determinism, "world"), SET(reduction_width, REDUCTION_WIDTH, 32)},
        {SET(eval_every, EVAL_EVERY, 10)},
        {SET(prefetch, PREFETCH, 0), SET(max_gathered, MAX_GATHERED, 3),
         SET(bucket_bytes, BUCKET_BYTES, 1 << 20), SET(overlap, OVERLAP, 0),
         SET(persist_below, PERSIST_BELOW, 1000)},
        {TEXT(dtype, "bf16"), TEXT(reduce_dtype, "bf16"), TEXT(activation_checkpointing, "full"),
         SET(dropout, DROPOUT, 0.25)},
        {TEXT(dtype, "fp16"), TEXT(activation_checkpointing, "selective"),
         SET(hysteresis, HYSTERESIS, 5)},
        {TEXT(dtype, "fp16"), SET(loss_scale, LOSS_SCALE, 1024)},
        {[](Proto *p) {
            static char *freeze[] = {const_cast<char *>("*.h.0.*"), const_cast<char *>("*wpe*")};
            p->n_freeze = 2;
            p->freeze = freeze;
        }},
        {TEXT(optimizer, "adam"), TEXT(schedule, "wsd"), SET(decay_steps, DECAY_STEPS, 77)},
        {TEXT(optimizer, "sgd"), SET(momentum, MOMENTUM, 0.5), [](Proto *p) { p->nesterov = 1; },
         TEXT(schedule, "inverse_sqrt")},
        {TEXT(optimizer, "sgd"), SET(momentum, MOMENTUM, 0), TEXT(schedule, "constant")},
        {TEXT(optimizer, "lion"), [](Proto *p) { p->decay_all = 1; }},
        {SET(eval_every, EVAL_EVERY, 10), TEXT(eval_data, "/e"), TEXT(determinism, "run")},
        {SET(eval_split, EVAL_SPLIT, 1.0 / 3), SET(lr, LR, 0.1), SET(clip, CLIP, 0),
         SET(seed, SEED, UINT64_MAX), SET(global_batch, GLOBAL_BATCH, 96), SET(seq_len, SEQ_LEN, 1),
         SET(priority, PRIORITY, 1), TEXT(schedule, "linear"), TEXT(data, "/d"),
         TEXT(data_format, "text"),
         [](Proto *p) {
             p->has_packing_case = SHARD__V1__JOB_SPEC__HAS_PACKING_PACKING;
             p->packing = 0;
         }},
    };
    for (const std::vector<Change> &job : jobs) {
        Accepted a(job);
        Proto *proto = shd_spec_to_proto(&a.spec);
        shd_spec again;
        shd_error err = {};
        EXPECT_EQ(0, shd_spec_resolve(proto, 4, 0, nullptr, &again, &err)) << err.message;
        ExpectEqual(a.spec, again);
        shd_spec_fini(&again);
        // Also over the wire.
        std::vector<uint8_t> wire(shard__v1__job_spec__get_packed_size(proto));
        shard__v1__job_spec__pack(proto, wire.data());
        shard__v1__job_spec__free_unpacked(proto, nullptr);
        Proto *unpacked = shard__v1__job_spec__unpack(nullptr, wire.size(), wire.data());
        ASSERT_NE(nullptr, unpacked);
        EXPECT_EQ(0, shd_spec_resolve(unpacked, 4, 0, nullptr, &again, &err)) << err.message;
        ExpectEqual(a.spec, again);
        shd_spec_fini(&again);
        shard__v1__job_spec__free_unpacked(unpacked, nullptr);
    }
}

TEST(ToProto, EveryFieldIsSet)
{
    Accepted a({});
    Proto *p = shd_spec_to_proto(&a.spec);
    EXPECT_STREQ("zero3", p->strategy);
    ASSERT_EQ(3u, p->n_shard_degrees);
    EXPECT_EQ(4u, p->shard_degrees[0]);
    EXPECT_STREQ("adamw", p->optimizer);
    EXPECT_STREQ("cosine", p->schedule);
    EXPECT_STREQ("fp32", p->dtype);
    EXPECT_STREQ("strategy", p->determinism);
    EXPECT_EQ(4u, p->ranks);
    EXPECT_EQ(4u, p->reduction_width);
    EXPECT_EQ(1000u, p->steps);
    EXPECT_EQ(256u, p->seq_len);
    EXPECT_EQ(0.95, p->beta2);
    for (int set :
         {static_cast<int>(p->has_ranks_case), static_cast<int>(p->has_steps_case),
          static_cast<int>(p->has_micro_batch_case), static_cast<int>(p->has_global_batch_case),
          static_cast<int>(p->has_seq_len_case), static_cast<int>(p->has_lr_case),
          static_cast<int>(p->has_lr_min_case), static_cast<int>(p->has_warmup_case),
          static_cast<int>(p->has_weight_decay_case), static_cast<int>(p->has_beta1_case),
          static_cast<int>(p->has_beta2_case), static_cast<int>(p->has_eps_case),
          static_cast<int>(p->has_clip_case), static_cast<int>(p->has_reduction_width_case),
          static_cast<int>(p->has_seed_case), static_cast<int>(p->has_checkpoint_every_case),
          static_cast<int>(p->has_eval_split_case), static_cast<int>(p->has_eval_every_case),
          static_cast<int>(p->has_priority_case)}) {
        EXPECT_NE(0, set);
    }
    shard__v1__job_spec__free_unpacked(p, nullptr);
}

TEST(Copy, OwnsItsStrings)
{
    shd_spec copy;
    {
        Accepted a({SET(eval_every, EVAL_EVERY, 10), TEXT(eval_data, "/e")});
        shd_spec_copy(&copy, &a.spec);
        EXPECT_NE(a.spec.data_path, copy.data_path);
    }
    EXPECT_STREQ("/data/text", copy.data_path);
    EXPECT_STREQ("/e", copy.eval_path);
    shd_spec_fini(&copy);
    EXPECT_EQ(nullptr, copy.data_path);
}

} // namespace
