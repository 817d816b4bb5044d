// Live resharding: state arrives bit by bit whatever the strategies and numbers of ranks, memory
// follows the new plan, and what fails changes nothing.
#include "daemon/train/reshard.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <random>

#include "tests/train/drive.h"

namespace
{

using shd::Batch;
using shd::Result;

using Degrees = std::array<uint32_t, 3>;

std::vector<Degrees> TriplesOf(uint32_t world)
{
    std::vector<Degrees> all;
    for (uint32_t p = 1; p <= world; p++) {
        for (uint32_t g = p; g <= world; g += p) {
            for (uint32_t o = g; o <= world; o += g) {
                if (world % o == 0) {
                    all.push_back({p, g, o});
                }
            }
        }
    }
    return all;
}

// The same job on `world` ranks, cut otherwise; the batch of a step stays.
shd_spec Cut(const shd_spec &spec, const Degrees &degrees, uint32_t world)
{
    shd_spec cut = spec;
    shd_error err = {};
    EXPECT_EQ(0, shd_strategy_make("", degrees.data(), 3, world, &cut.strategy, &err))
        << err.message;
    cut.accumulation = spec.global_batch / (spec.micro_batch * world);
    if (cut.determinism != SHD_DETERMINISM_WORLD) {
        cut.reduction_width = world;
    }
    EXPECT_EQ(spec.global_batch, cut.accumulation * spec.micro_batch * world);
    return cut;
}

shd_spec SpecOf(uint32_t world, uint32_t global_batch)
{
    shd_spec spec = shd::SmallSpec("zero3", world);
    spec.global_batch = global_batch;
    spec.accumulation = global_batch / (spec.micro_batch * world);
    return spec;
}

std::string Name(const Degrees &d, uint32_t world)
{
    return std::to_string(d[0]) + "," + std::to_string(d[1]) + "," + std::to_string(d[2]) + " of " +
           std::to_string(world);
}

uint64_t Sum(const uint64_t (&bytes)[SHD_TAG_COUNT])
{
    uint64_t sum = 0;
    for (uint64_t b : bytes) {
        sum += b;
    }
    return sum;
}

// ---- bits ----

TEST(SameWorld, EveryTripleGoesOnAsIfNothingHadHappened)
{
    shd::DataFile file(4000);
    std::mt19937 random(3);
    for (uint32_t world : {1u, 2u, 3u, 4u, 6u, 8u}) {
        const shd_spec spec = SpecOf(world, 2 * world);
        std::vector<Degrees> triples = TriplesOf(world);
        std::shuffle(triples.begin(), triples.end(), random);
        const int steps = static_cast<int>(triples.size()) + 1;
        shd::Engine whole(spec, file.Open()), cut(spec, file.Open());
        const shd::Trace want = whole.Train(steps);
        shd::Trace got;
        cut.Step(&got);
        for (const Degrees &d : triples) {
            ASSERT_EQ(0, cut.Reshard(Cut(spec, d, world))) << Name(d, world);
            cut.Step(&got);
        }
        got.params = cut.Params();
        EXPECT_TRUE(want == got) << world;
    }
}

// Through other worlds, primes among them, and back: the steps that follow need every state and
// counter to have come through bit by bit.
TEST(OtherWorlds, StateComesBackBitByBit)
{
    shd::DataFile file(8000);
    const shd_spec spec = SpecOf(4, 840);
    for (const std::vector<uint32_t> &chain : {std::vector<uint32_t>{1, 4}, {5, 4}, {3, 7, 2, 4}}) {
        shd::Engine stays(spec, file.Open()), moves(spec, file.Open());
        shd::Trace want, got;
        for (int i = 0; i < 2; i++) {
            stays.Step(&want);
            moves.Step(&got);
        }
        std::mt19937 random(static_cast<uint32_t>(chain.size()));
        for (uint32_t world : chain) {
            const std::vector<Degrees> triples = TriplesOf(world);
            const Degrees &d = triples[random() % triples.size()];
            ASSERT_EQ(0, moves.Reshard(Cut(spec, d, world))) << Name(d, world);
            EXPECT_TRUE(stays.Params() == moves.Params()) << Name(d, world);
        }
        for (int i = 0; i < 2; i++) {
            stays.Step(&want);
            moves.Step(&got);
        }
        want.params = stays.Params();
        got.params = moves.Params();
        EXPECT_TRUE(want == got);
    }
}

// Forty steps: zero3 on 4 ranks, ddp on 2, hybrid_shard on 4, zero2 on 3. Under the level world the
// first thirty are those of one rank that is left alone, to the bit. Three ranks sum the same
// M = 12 leaves in another order: each of the two sums is within (M-1)u of the sum of magnitudes,
// u = 2^-24, so an element of the gradient is off by at most 2(M-1)u k = 1.3e-6 k of itself, k the
// ratio of the sum of the leaves' magnitudes to the magnitude of their sum. AdamW divides one
// average of gradients by the root of another: an update, of at most about lr = 1e-2, is off by
// twice that, the parameters after n = 10 steps by 2.6e-6 k n lr each, and a loss whose gradient g
// is of |g|_1 <= sqrt(N) |g|_2 by that times |g|_1: with N = 17280 elements, |g|_2 about 1 and k
// about 10 for most elements that is 3.4e-4. The first loss after the switch is of the same
// parameters, and summed in leaf order by all: it is the same.
TEST(Acceptance, FortyStepsOverFourStrategies)
{
    shd::DataFile file(8000);
    shd_spec alone = SpecOf(1, 24);
    alone.determinism = SHD_DETERMINISM_WORLD;
    alone.reduction_width = 4;
    shd_spec spec = SpecOf(4, 24);
    spec.determinism = SHD_DETERMINISM_WORLD;
    spec.reduction_width = 4;
    shd::Engine stays(alone, file.Open()), moves(spec, file.Open());
    const struct {
        Degrees degrees;
        uint32_t world;
    } parts[] = {{{4, 4, 4}, 4}, {{1, 1, 1}, 2}, {{2, 2, 2}, 4}, {{1, 3, 3}, 3}};
    shd::Trace want, got;
    for (const auto &part : parts) {
        if (part.world == 3) {
            EXPECT_TRUE(want.losses == got.losses);
            EXPECT_TRUE(want.norms == got.norms);
            EXPECT_TRUE(stays.Params() == moves.Params());
            spec.determinism = SHD_DETERMINISM_STRATEGY;
        }
        if (!got.losses.empty()) {
            ASSERT_EQ(0, moves.Reshard(Cut(spec, part.degrees, part.world)));
            shd::ExpectMemory(&moves, shd::Peaks::kAtMost, shd::Peaks::kAtMost);
        }
        for (int i = 0; i < 10; i++) {
            stays.Step(&want);
            moves.Step(&got);
        }
        shd::ExpectMemory(&moves, shd::Peaks::kExact, shd::Peaks::kExact);
    }
    EXPECT_LT(got.losses.back(), got.losses.front() - 0.5) << "it must learn";
    EXPECT_EQ(want.losses[30], got.losses[30]);
    double loss = 0, norm = 0;
    for (int i = 30; i < 40; i++) {
        loss = std::max(loss, std::fabs(want.losses[i] - got.losses[i]));
        norm = std::max(norm, std::fabs(want.norms[i] - got.norms[i]) / want.norms[i]);
    }
    printf("losses at most %.2e apart, norms %.2e of themselves\n", loss, norm);
    EXPECT_LE(loss, 3.4e-4);
    EXPECT_LE(norm, 1e-3); // of the gradient, which moves faster than the loss
}

// What a job can be: precision, optimizer, what is frozen or tied, dropout, checkpointing.
struct Kind {
    const char *name;
    int arch;
    shd_dtype dtype, reduce;
    shd_optim optim;
    const char *freeze;
    double dropout;
    shd_checkpointing checkpointing;
    uint64_t persist_below; // elements
};

const Kind kKinds[] = {
    {"Fp32",
     0,
     SHD_F32,
     SHD_F32,
     {SHD_OPTIM_ADAMW, 0.9, 0.95, 1e-8, 0, 0},
     nullptr,
     0.1,
     SHD_CHECKPOINT_NONE,
     0},
    {"Bf16",
     1,
     SHD_BF16,
     SHD_F32,
     {SHD_OPTIM_ADAMW, 0.9, 0.95, 1e-8, 0, 0},
     nullptr,
     0,
     SHD_CHECKPOINT_FULL,
     0},
    {"Fp16",
     0,
     SHD_F16,
     SHD_F32,
     {SHD_OPTIM_ADAM, 0.9, 0.95, 1e-8, 0, 0},
     nullptr,
     0,
     SHD_CHECKPOINT_NONE,
     0},
    {"Sgd",
     0,
     SHD_F32,
     SHD_F32,
     {SHD_OPTIM_SGD, 0, 0, 0, 0, 0},
     nullptr,
     0,
     SHD_CHECKPOINT_NONE,
     0},
    {"Momentum",
     1,
     SHD_F32,
     SHD_BF16,
     {SHD_OPTIM_SGD, 0, 0, 0, 0.9, 1},
     "*mlp*",
     0,
     SHD_CHECKPOINT_SELECTIVE,
     0},
    {"Lion",
     2,
     SHD_BF16,
     SHD_BF16,
     {SHD_OPTIM_LION, 0.9, 0.99, 0, 0, 0},
     "*embed_tokens*",
     0,
     SHD_CHECKPOINT_NONE,
     0},
    {"FrozenFp32",
     2,
     SHD_F32,
     SHD_F32,
     {SHD_OPTIM_ADAMW, 0.9, 0.95, 1e-8, 0, 0},
     "*mlp*",
     0,
     SHD_CHECKPOINT_NONE,
     0},
    {"Whole",
     0,
     SHD_F32,
     SHD_F32,
     {SHD_OPTIM_ADAMW, 0.9, 0.95, 1e-8, 0, 0},
     nullptr,
     0.1,
     SHD_CHECKPOINT_NONE,
     100},
    {"WholeFrozenBf16",
     1,
     SHD_BF16,
     SHD_F32,
     {SHD_OPTIM_ADAMW, 0.9, 0.95, 1e-8, 0, 0},
     "*norm*",
     0,
     SHD_CHECKPOINT_FULL,
     1000},
};

shd_spec SpecOf(const Kind &kind, uint32_t world)
{
    shd_spec spec = SpecOf(world, 24);
    if (kind.arch > 0) { // tied, or with a head of its own
        spec.model = shd_model_config_llama(2, 4, 32, 44, 23, 97);
        spec.model.n_kv_head = 2;
        spec.model.tied = kind.arch == 2;
    }
    spec.dtype = kind.dtype;
    spec.reduce_dtype = kind.reduce;
    spec.optim = kind.optim;
    spec.dropout = kind.dropout;
    spec.checkpointing = kind.checkpointing;
    spec.pipeline.persist_below = kind.persist_below;
    spec.decay_all = 1;
    if (kind.dtype == SHD_F16) { // begins so high that it overflows, and grows again soon
        spec.scaler = {1, 0, 24, 3, 1, 1};
    }
    return spec;
}

class Kinds : public testing::TestWithParam<Kind>
{
};

TEST_P(Kinds, GoOnAsIfNothingHadHappened)
{
    shd::DataFile file(4000);
    shd_spec spec = SpecOf(GetParam(), 4);
    char *freeze[] = {const_cast<char *>(GetParam().freeze)};
    if (GetParam().freeze != nullptr) {
        spec.freeze = freeze;
        spec.n_freeze = 1;
    }
    shd::Engine whole(spec, file.Open()), cut(spec, file.Open());
    const std::vector<std::vector<std::pair<Degrees, uint32_t>>> chains = {
        {{{1, 1, 1}, 4}},
        {{{2, 2, 2}, 2}, {{2, 2, 4}, 4}},
        {{{1, 3, 3}, 3}, {{1, 1, 1}, 1}, {{1, 2, 4}, 4}},
        {{{6, 6, 6}, 6}, {{4, 4, 4}, 4}},
    };
    shd::Trace want, got;
    int overflows = 0;
    for (const auto &chain : chains) {
        for (int i = 0; i < 5; i++) {
            const shd_work a = whole.Step(&want), b = cut.Step(&got);
            EXPECT_EQ(a.loss_scale, b.loss_scale);
            EXPECT_EQ(a.lr_used, b.lr_used);
            EXPECT_EQ(a.samples, b.samples);
            EXPECT_EQ(a.step, b.step);
            overflows += a.overflow;
        }
        for (const auto &[degrees, world] : chain) {
            ASSERT_EQ(0, cut.Reshard(Cut(spec, degrees, world))) << Name(degrees, world);
            EXPECT_EQ(shd_trainer_loss_scale(whole.trainer()),
                      shd_trainer_loss_scale(cut.trainer()));
            EXPECT_TRUE(whole.Params() == cut.Params()) << Name(degrees, world);
        }
    }
    for (int i = 0; i < 5; i++) {
        whole.Step(&want);
        cut.Step(&got);
    }
    want.params = whole.Params();
    got.params = cut.Params();
    EXPECT_TRUE(want.losses == got.losses);
    EXPECT_EQ(0, memcmp(want.norms.data(), got.norms.data(), want.norms.size() * sizeof(double)))
        << "of overflows too, which are no numbers";
    EXPECT_TRUE(want.params == got.params);
    EXPECT_EQ(GetParam().dtype == SHD_F16, overflows > 0);
    EXPECT_TRUE(std::isfinite(want.losses.back()));
}

INSTANTIATE_TEST_SUITE_P(All, Kinds, testing::ValuesIn(kKinds),
                         [](const auto &tested) { return std::string(tested.param.name); });

// Batches of a client, then of another micro-batch size.
TEST(ClientDriven, GoesOnAndMayChangeTheMicroBatch)
{
    const shd_spec spec = SpecOf(2, 8);
    shd::Engine whole(spec), cut(spec);
    for (uint32_t i = 0; i < 3; i++) {
        const Batch batch = Batch::Random(8, 17, i);
        EXPECT_EQ(Good(whole, SHD_WORK_TRAIN_STEP, &batch).norm,
                  Good(cut, SHD_WORK_TRAIN_STEP, &batch).norm);
        ASSERT_EQ(0, cut.Reshard(Cut(spec, i % 2 ? Degrees{2, 2, 2} : Degrees{1, 1, 2}, 2)));
    }
    // The same leaves on the same number of ranks are what a job has that was made that way.
    shd_spec small = spec;
    small.micro_batch = 1;
    small.accumulation = 4;
    ASSERT_EQ(0, cut.Reshard(small));
    shd::Engine other(small);
    shd_error err = {};
    const auto params = cut.Params();
    for (uint32_t i = 0; i < params.size(); i++) {
        ASSERT_EQ(0, shd_trainer_write_param(other.trainer(), i, params[i].data(), &err));
    }
    const Batch batch = Batch::Random(8, 17, 9);
    const Result a = Good(cut, SHD_WORK_FORWARD_BACKWARD, &batch);
    const Result b = Good(other, SHD_WORK_FORWARD_BACKWARD, &batch);
    EXPECT_EQ(b.loss, a.loss);
    for (uint32_t i = 0; i < params.size(); i++) {
        std::vector<float> x(params[i].size()), y(params[i].size());
        ASSERT_EQ(0, shd_trainer_read_grad(cut.trainer(), i, x.data(), &err));
        ASSERT_EQ(0, shd_trainer_read_grad(other.trainer(), i, y.data(), &err));
        EXPECT_TRUE(x == y) << i;
    }
}

Result NextLogits(shd::Engine *engine, const Batch &batch, uint32_t prefill, uint64_t step)
{
    shd_work work;
    shd_work_init(&work, SHD_WORK_NEXT_LOGITS);
    Set(&work, batch);
    work.stream = 7;
    work.prefill = prefill;
    work.cache_step = step;
    EXPECT_EQ(0, engine->Run(&work)) << work.err.message;
    Result r = {};
    r.logits.assign(work.logits, work.logits + engine->spec().model.vocab);
    shd_work_fini(&work);
    return r;
}

// The kept keys and values stay behind; they are computed again, to the same bits.
TEST(Generation, GoesOnToTheSameBits)
{
    const shd_spec spec = SpecOf(2, 12);
    shd::Engine stays(spec), moves(spec);
    const Batch text = Batch::Random(1, 12, 4);
    for (uint32_t n = 6; n < 12; n++) {
        Batch so_far = text.Part(0, 1);
        so_far.length = n;
        so_far.tokens.resize(n);
        so_far.targets.resize(n);
        const uint64_t step = n == 6 ? UINT64_MAX : 0;
        const Result want = NextLogits(&stays, so_far, 6, step);
        const Result got = NextLogits(&moves, so_far, 6, step);
        EXPECT_TRUE(want.logits == got.logits) << n;
        if (n == 8) {
            ASSERT_EQ(0, moves.Reshard(Cut(spec, {3, 3, 3}, 3)));
        }
        if (n == 9) {
            ASSERT_EQ(0, moves.Reshard(Cut(spec, {1, 1, 1}, 1)));
        }
    }
}

// ---- memory and communication ----

TEST(Memory, FollowsThePlanAfterEverySwitch)
{
    shd::DataFile file(8000);
    const shd_spec spec = SpecOf(4, 24);
    const std::pair<Degrees, uint32_t> chain[] = {{{1, 1, 1}, 2}, {{2, 2, 2}, 4}, {{1, 3, 3}, 3},
                                                  {{1, 1, 1}, 1}, {{6, 6, 6}, 6}, {{1, 1, 6}, 6}};
    shd::Engine engine(spec, file.Open());
    engine.Step();
    for (const auto &[degrees, world] : chain) {
        const shd_plan before = engine.plan();
        ASSERT_EQ(0, engine.Reshard(Cut(spec, degrees, world)));
        shd::ExpectMemory(&engine, shd::Peaks::kAtMost, shd::Peaks::kAtMost);
        const uint64_t piece = SHD_RESHARD_PIECE * sizeof(float);
        EXPECT_LE(piece, SHD_RESHARD_STAGING);
        EXPECT_EQ(Sum(before.steady) + Sum(engine.plan().steady) + piece, engine.reshard_peak())
            << Name(degrees, world);
        EXPECT_LE(engine.reshard_peak(),
                  before.extent + engine.plan().extent + SHD_RESHARD_STAGING);
        engine.Step();
        shd::ExpectMemory(&engine, shd::Peaks::kExact, shd::Peaks::kExact);
    }
}

// Each element of master and states is broadcast once to all that take part, and counted.
TEST(Communication, IsTheClosedForm)
{
    shd::DataFile file(8000);
    const shd_spec spec = SpecOf(4, 24);
    shd::Engine engine(spec, file.Open());
    const uint64_t state = 3 * 4 * engine.plan().parameters; // master and two moments, fp32
    engine.Step();
    const auto sent_before = [&] {
        shd_comm_count count[SHD_COMM_KIND_COUNT];
        shd_trainer_comm(engine.trainer(), 0, count);
        return count[SHD_COMM_REDUCE_SCATTER].bytes;
    };
    const uint64_t before = sent_before();
    EXPECT_GT(before, 0u);
    ASSERT_EQ(0, engine.Reshard(Cut(spec, {1, 1, 1}, 2)));
    EXPECT_EQ(3 * state, engine.reshard_sent());
    EXPECT_EQ(before, sent_before()) << "what was sent before goes on being counted";
    ASSERT_EQ(0, engine.Reshard(Cut(spec, {1, 1, 1}, 6)));
    EXPECT_EQ(5 * state, engine.reshard_sent());
    ASSERT_EQ(0, engine.Reshard(Cut(spec, {6, 6, 6}, 6)));
    EXPECT_EQ(0u, engine.reshard_sent()) << "from whole to part everything is there";
    // What stays where it is is not sent: the optimizer's parts are the same ones.
    ASSERT_EQ(0, engine.Reshard(Cut(spec, {1, 1, 6}, 6)));
    EXPECT_EQ(0u, engine.reshard_sent());
}

TEST(Ranks, OldAndNewOnesInAnyMixture)
{
    shd::DataFile file(8000);
    const shd_spec spec = SpecOf(2, 24);
    shd::Engine stays(spec, file.Open()), moves(spec, file.Open());
    const struct {
        uint32_t first, world;
    } windows[] = {{1, 2}, {3, 2}, {1, 6}, {4, 3}, {0, 1}, {5, 2}, {0, 2}};
    for (const auto &w : windows) {
        ASSERT_EQ(0, moves.Reshard(Cut(spec, {w.world, w.world, w.world}, w.world), w.first));
        EXPECT_TRUE(stays.Params() == moves.Params());
        shd::ExpectMemory(&moves, shd::Peaks::kAtMost, shd::Peaks::kAtMost);
    }
    EXPECT_TRUE(stays.Train(3) == moves.Train(3));
}

// ---- what fails or is refused leaves the job as it was ----

TEST(Failure, HalfWayLeavesTheJobAsItWas)
{
    shd::DataFile file(4000);
    shd_spec spec = SpecOf(4, 24);
    spec.model = shd_model_config_gpt2(2, 2, 128, 19, 97); // states of several MiB
    shd::Engine stays(spec, file.Open()), fails(spec, file.Open());
    shd::Trace want, got;
    stays.Step(&want);
    fails.Step(&got);
    const shd_spec to = Cut(spec, {1, 1, 1}, 6);
    shd_plan plan;
    shd_error err = {};
    ASSERT_EQ(0, shd_plan_make(&to, 1, &plan, &err));
    // The states do not fit into the new arenas; then the system refuses these altogether.
    for (uint64_t extent : {Sum(plan.steady) / 2, UINT64_C(1) << 47}) {
        shd_plan wrong = plan;
        wrong.extent = extent;
        std::string why;
        EXPECT_EQ(SHD_ENOMEM, fails.ReshardUnder(to, wrong, 0, &why));
        EXPECT_NE(std::string::npos, why.find("bytes")) << why;
        shd::ExpectMemory(&fails, shd::Peaks::kAtMost, shd::Peaks::kAtMost);
        stays.Step(&want);
        fails.Step(&got);
        EXPECT_TRUE(want.losses == got.losses);
    }
    EXPECT_EQ(0, fails.Reshard(to)) << "it is possible afterwards";
    EXPECT_EQ(0, fails.Reshard(Cut(spec, {4, 4, 4}, 4)));
    stays.Step(&want);
    fails.Step(&got);
    want.params = stays.Params();
    got.params = fails.Params();
    EXPECT_TRUE(want == got);
}

struct Trial {
    shd_reshard *reshard = nullptr;
    shd_work work;
    Trial(shd::Engine *engine, const shd_spec &to)
    {
        shd_plan plan;
        shd_error err = {};
        EXPECT_EQ(0, shd_plan_make(&to, 1, &plan, &err));
        engine->HaveRanks(to.strategy.world);
        EXPECT_EQ(
            0, shd_reshard_create(engine->trainer(), &to, &plan, engine->ranks(), &reshard, &err))
            << err.message;
        shd_work_init(&work, SHD_WORK_RESHARD);
        work.reshard = reshard;
    }
    ~Trial()
    {
        shd_reshard_free(reshard);
        shd_work_fini(&work);
    }
};

// An item of many parameters takes several turns; one that had some can be given up.
TEST(Turns, GivenUpBetweenThem)
{
    shd::DataFile file(4000);
    const shd_spec spec = SpecOf(2, 24);
    shd::Engine stays(spec, file.Open()), moves(spec, file.Open());
    shd::Trace want, got;
    stays.Step(&want);
    moves.Step(&got);
    {
        Trial trial(&moves, Cut(spec, {3, 3, 3}, 3));
        moves.Turn(&trial.work);
        EXPECT_EQ(0, trial.work.rc) << trial.work.err.message;
        EXPECT_TRUE(trial.work.more) << "the first turn is one round, until the pace is known";
        EXPECT_EQ(1u, trial.work.step);
    }
    stays.Step(&want);
    moves.Step(&got);
    EXPECT_EQ(0, moves.Reshard(Cut(spec, {1, 1, 2}, 2)));
    stays.Step(&want);
    moves.Step(&got);
    want.params = stays.Params();
    got.params = moves.Params();
    EXPECT_TRUE(want == got);
}

TEST(Turns, AnAbortEndsItAtTheNext)
{
    shd::Engine engine(SpecOf(2, 24));
    Trial trial(&engine, Cut(engine.spec(), {3, 3, 3}, 3));
    engine.Turn(&trial.work);
    shd_trainer_abort(engine.trainer());
    engine.Turn(&trial.work);
    EXPECT_EQ(SHD_ECANCELLED, trial.work.rc);
    EXPECT_FALSE(trial.work.more);
}

int Refused(shd::Engine *engine, const shd_spec &to, std::string *why)
{
    shd_plan plan = engine->plan();
    return engine->ReshardUnder(to, plan, 0, why);
}

TEST(Refusals, NameTheReason)
{
    const shd_spec spec = SpecOf(2, 24);
    shd::Engine engine(spec);
    std::string why;
    const Batch batch = Batch::Random(4, 17, 1);
    Good(engine, SHD_WORK_FORWARD_BACKWARD, &batch);
    EXPECT_EQ(SHD_ESTATE, Refused(&engine, spec, &why));
    EXPECT_NE(std::string::npos, why.find("OptimStep")) << why;
    Good(engine, SHD_WORK_OPTIM_STEP);

    const auto changed = [&](auto change) {
        shd_spec other = spec;
        change(&other);
        EXPECT_EQ(SHD_EINVAL, Refused(&engine, other, &why));
        EXPECT_NE(std::string::npos, why.find("cannot change")) << why;
    };
    changed([](shd_spec *s) { s->global_batch = 48; });
    changed([](shd_spec *s) { s->seq_len = 9; });
    changed([](shd_spec *s) { s->dtype = SHD_BF16; });
    changed([](shd_spec *s) { s->optim.kind = SHD_OPTIM_LION; });
    changed([](shd_spec *s) { s->seed++; });
    char *freeze[] = {const_cast<char *>("*wte*")};
    changed([&](shd_spec *s) {
        s->freeze = freeze;
        s->n_freeze = 1;
    });
    EXPECT_EQ(0, engine.Reshard(Cut(spec, {1, 1, 1}, 1)));
}

} // namespace
