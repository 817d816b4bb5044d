// Schedules as lists: what is gathered, kept and reduced when, by settings; and what holds for
// every list, over random models.
#include "daemon/shard/schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <string>
#include <vector>

namespace
{

// A model of units of one parameter each.
struct Model {
    std::vector<shd_segment> segments;
    std::vector<int64_t> numel; // of the units
    std::vector<uint32_t> frozen;
    uint32_t first_backward = 0;
    shd_dtype dtype = SHD_F32, reduce_dtype = SHD_F32;
    int train = 1;
};

class Program
{
  public:
    Program(const Model &model, const char *strategy, uint32_t world,
            const shd_pipeline_settings &settings, uint32_t regather = 0)
    {
        const uint32_t n = static_cast<uint32_t>(model.numel.size());
        std::vector<uint32_t> unit(n);
        for (uint32_t u = 0; u < n; u++) {
            unit[u] = u;
        }
        shd_layout_init(&layout, n, model.numel.data(), unit.data(), n, world);
        for (uint32_t u : model.frozen) {
            layout.units[u].frozen = 1;
        }
        shd_program_config config = {model.segments.data(),
                                     static_cast<uint32_t>(model.segments.size()),
                                     model.first_backward,
                                     &layout,
                                     {},
                                     settings,
                                     model.dtype,
                                     model.reduce_dtype,
                                     model.train,
                                     {}};
        EXPECT_EQ(0, shd_strategy_make(strategy, nullptr, 0, world, &config.strategy, nullptr));
        if (regather > 0 && config.strategy.p > 1) {
            config.strategy.regather = regather;
        }
        rc = shd_program_make(&config, &list, &err);
    }
    ~Program()
    {
        shd_program_fini(&list);
        shd_layout_fini(&layout);
    }
    Program(const Program &) = delete;
    Program &operator=(const Program &) = delete;

    // "G0 w0 F0 -0 ...": G gather, w its wait, F R B compute, - reshard, g gradient memory, +[..]
    // reduction of units, . its wait.
    std::string Text() const
    {
        static const char *const marks[] = {"G", "w", "F", "R", "B", "-", "g", "+", "."};
        std::string out;
        for (uint32_t i = 0; i < list.n; i++) {
            const shd_instr &instr = list.instrs[i];
            out += (i > 0 ? " " : "") + std::string(marks[instr.kind]);
            if (instr.kind == SHD_INSTR_REDUCE) {
                out += "[";
                for (uint32_t u : Bucket(instr.index)) {
                    out += std::to_string(u);
                }
                out += "]";
            } else if (instr.kind == SHD_INSTR_WAIT_REDUCE) {
                out += std::to_string(Bucket(instr.index).front());
            } else {
                out += std::to_string(instr.index);
            }
        }
        return out;
    }
    std::vector<uint32_t> Bucket(uint32_t i) const
    {
        return std::vector<uint32_t>(list.bucket_units + list.bucket_first[i],
                                     list.bucket_units + list.bucket_first[i + 1]);
    }

    shd_layout layout = {};
    shd_program list = {};
    shd_error err = {};
    int rc = 0;
};

// Embedding and head share unit 0, as in a tied model; the embedding's backward reads no weights.
Model Tied()
{
    Model m;
    m.segments = {{{0}, 1, 0, 0}, {{1}, 1, 1, 0}, {{2}, 1, 1, 0}, {{0}, 1, 1, 0}};
    m.numel = {4096, 1024, 1024};
    return m;
}

Model Chain(uint32_t n)
{
    Model m;
    for (uint32_t u = 0; u < n; u++) {
        m.segments.push_back({{u}, 1, u > 0, 0});
        m.numel.push_back(1024);
    }
    return m;
}

TEST(Schedule, OneThingAfterAnother)
{
    const Program p(Tied(), "zero3", 4, {});
    EXPECT_EQ("G0 w0 F0 -0 G1 w1 F1 -1 G2 w2 F2 -2 G0 w0 F3 "
              "g0 B3 -0 G2 w2 g2 B2 -2 +[2] .2 G1 w1 g1 B1 -1 +[1] .1 B0 +[0] .0",
              p.Text());
}

TEST(Schedule, PrefetchGathersAheadOfForwardAndBackward)
{
    const shd_pipeline_settings one = {1, 0, 0, 1, 0}, two = {2, 0, 0, 1, 0};
    // A unit that the next item would prefetch stays; so does the head's neighbour.
    EXPECT_EQ("G0 G1 w0 F0 -0 G2 w1 F1 -1 G3 w2 F2 w3 F3 "
              "g3 B3 -3 +[3] G1 g2 B2 -2 .3 +[2] w1 g1 B1 -1 .2 +[1] g0 B0 .1 +[0] .0",
              Program(Chain(4), "zero3", 2, one).Text());
    EXPECT_EQ("G0 G1 G2 w0 F0 -0 G3 w1 F1 w2 F2 w3 F3 "
              "g3 B3 -3 +[3] g2 B2 -2 .3 +[2] g1 B1 -1 .2 +[1] g0 B0 .1 +[0] .0",
              Program(Chain(4), "zero3", 2, two).Text());
}

TEST(Schedule, WithoutOverlapAReductionIsWaitedForAtOnce)
{
    const shd_pipeline_settings one = {1, 0, 0, 0, 0};
    EXPECT_EQ("G0 G1 w0 F0 -0 G2 w1 F1 w2 F2 g2 B2 -2 +[2] .2 g1 B1 -1 +[1] .1 g0 B0 +[0] .0",
              Program(Chain(3), "zero3", 2, one).Text());
}

TEST(Schedule, KeepsGatheredParametersUntilBackward)
{
    const shd_pipeline_settings one = {1, 0, 0, 0, 0};
    EXPECT_EQ("G0 G1 w0 F0 G2 w1 F1 w2 F2 F3 g0 B3 -0 g2 B2 -2 +[2] .2 g1 B1 -1 +[1] .1 B0 +[0] .0",
              Program(Tied(), "zero3", 4, one, 1).Text());
}

TEST(Schedule, KeepsAPartUntilBackwardAndGathersFromThere)
{
    const Program p(Chain(3), "zero3", 4, {}, 2);
    EXPECT_EQ(
        "G0 w0 F0 -0 G1 w1 F1 -1 G2 w2 F2 g2 B2 -2 +[2] .2 G1 w1 g1 B1 -1 +[1] .1 g0 B0 +[0] .0",
        p.Text());
    std::vector<uint32_t> parts;
    for (uint32_t i = 0; i < p.list.n; i++) {
        if (p.list.instrs[i].kind == SHD_INSTR_GATHER ||
            p.list.instrs[i].kind == SHD_INSTR_RESHARD) {
            parts.push_back(p.list.instrs[i].parts);
        }
    }
    // 0 is not needed again; 1 is kept as a half, gathered from halves, and dropped.
    EXPECT_EQ((std::vector<uint32_t>{4, 4, 4, 2, 4, 4, 2, 4}), parts);
    EXPECT_EQ(1024u / 2 * 4, p.list.instrs[16].bytes);
}

TEST(Schedule, TheLimitHoldsPrefetchBack)
{
    Model m = Chain(4);
    m.train = 0;
    EXPECT_EQ("G0 G1 w0 F0 -0 G2 w1 F1 -1 G3 w2 F2 -2 w3 F3 -3",
              Program(m, "zero3", 2, {3, 2, 0, 1, 0}).Text());
    EXPECT_EQ("G0 w0 F0 -0 G1 w1 F1 -1 G2 w2 F2 -2 G3 w3 F3 -3",
              Program(m, "zero3", 2, {3, 1, 0, 1, 0}).Text());
    m.segments[2] = {{2, 3}, 2, 1, 0};
    const Program refused(m, "zero3", 2, {3, 1, 0, 1, 0});
    EXPECT_EQ(SHD_EINVAL, refused.rc);
    EXPECT_STREQ("--max-gathered 1: part 2 of the model needs 2 units gathered at once; allow at "
                 "least that",
                 refused.err.message);
}

TEST(Schedule, UnshardedParametersAndSingleRanksHaveNoInstructionsForThem)
{
    const shd_pipeline_settings one = {1, 0, 0, 1, 0};
    EXPECT_EQ("F0 F1 F2 F3 g0 B3 g2 B2 +[2] g1 B1 .2 +[1] B0 .1 +[0] .0",
              Program(Tied(), "zero2", 4, one).Text());
    const Program alone(Tied(), "zero3", 1, one);
    EXPECT_EQ("F0 F1 F2 F3 g0 B3 g2 B2 +[2] g1 B1 +[1] B0 +[0]", alone.Text());
    for (uint32_t i = 0; i < alone.list.n; i++) {
        EXPECT_EQ(SHD_LANE_COMPUTE, alone.list.instrs[i].lane);
        EXPECT_EQ(0u, alone.list.instrs[i].bytes);
    }
}

TEST(Schedule, BucketsCollectUnitsUntilTheyAreFull)
{
    // 4 KiB of gradients a unit of 1024 elements, 16 KiB of unit 0.
    EXPECT_EQ("F0 F1 F2 F3 g0 B3 g2 B2 g1 B1 +[21] B0 .2 +[0] .0",
              Program(Tied(), "zero2", 4, {0, 0, 8192, 1, 0}).Text());
    EXPECT_EQ("F0 F1 F2 F3 g0 B3 g2 B2 g1 B1 B0 +[210] .2",
              Program(Tied(), "zero2", 4, {0, 0, 1 << 20, 1, 0}).Text());
    Model half = Tied(); // travels in two bytes an element
    half.dtype = SHD_BF16;
    EXPECT_EQ("F0 F1 F2 F3 g0 B3 g2 B2 g1 B1 B0 +[210] .2",
              Program(half, "zero2", 4, {0, 0, 8192, 1, 0}).Text());
}

TEST(Schedule, InstructionsSayWhatTheyMove)
{
    Model m = Tied();
    m.dtype = SHD_BF16;
    const Program p(m, "zero3", 4, {});
    const shd_instr &gather = p.list.instrs[0];
    EXPECT_EQ(SHD_LANE_GATHER, gather.lane);
    EXPECT_EQ(4u, gather.parts);
    EXPECT_EQ(1u, gather.calls);
    EXPECT_EQ(4096u / 4 * 2 * 3, gather.bytes);
    EXPECT_EQ(SHD_INSTR_WAIT_GATHER, p.list.instrs[1].kind);
    EXPECT_EQ(0u, p.list.instrs[1].waits_for);
    EXPECT_EQ(SHD_LANE_COMPUTE, p.list.instrs[1].lane);
    for (uint32_t i = 0; i < p.list.n; i++) {
        if (p.list.instrs[i].kind == SHD_INSTR_REDUCE) {
            const uint32_t u = p.Bucket(p.list.instrs[i].index)[0];
            EXPECT_EQ(SHD_LANE_REDUCE, p.list.instrs[i].lane);
            EXPECT_EQ(1u, p.list.instrs[i].calls);
            EXPECT_EQ(static_cast<uint64_t>(p.layout.units[u].padded) * 2 / 4 * 3,
                      p.list.instrs[i].bytes);
        }
    }
    m.reduce_dtype = SHD_F16;
    EXPECT_EQ(SHD_F16, shd_schedule_wire(SHD_BF16, SHD_F16));
    EXPECT_EQ(SHD_BF16, shd_schedule_wire(SHD_BF16, SHD_F32));
}

TEST(Schedule, ExchangesAreBoundedPerRankAndInAll)
{
    EXPECT_EQ(1000, shd_schedule_chunk(2, 1000));
    EXPECT_EQ(1 << 18, shd_schedule_chunk(2, 10000000));
    EXPECT_EQ(1 << 16, shd_schedule_chunk(64, 10000000));
    EXPECT_EQ(SHD_BLOCK, shd_schedule_chunk(SHD_MAX_WORLD, 10000000));
    Model m = Chain(1);
    m.numel[0] = 1000000;
    const Program p(m, "ddp", 2, {});
    EXPECT_EQ(SHD_INSTR_REDUCE, p.list.instrs[3].kind);
    EXPECT_EQ(2u, p.list.instrs[3].calls) << "half a million elements a rank";
}

Model Random(std::mt19937 *random)
{
    const auto upto = [&](uint32_t n) { return (*random)() % n; };
    Model m;
    const uint32_t n_segments = 1 + upto(9), n_units = 1 + upto(8);
    for (uint32_t u = 0; u < n_units; u++) {
        m.numel.push_back(1 + upto(5000));
        if (upto(4) == 0) {
            m.frozen.push_back(u);
        }
    }
    for (uint32_t s = 0; s < n_segments; s++) {
        shd_segment segment = {};
        std::set<uint32_t> used;
        for (uint32_t k = 1 + upto(3); k > 0; k--) {
            used.insert(upto(n_units));
        }
        for (uint32_t u : used) {
            segment.units[segment.n_units++] = u;
        }
        segment.backward_needs_params = upto(4) != 0;
        segment.recompute = upto(3) == 0;
        m.segments.push_back(segment);
    }
    m.first_backward = upto(3) == 0 ? upto(n_segments) : 0;
    m.train = upto(4) != 0;
    return m;
}

// Runs a list and holds it to what every list promises.
void Check(const Model &m, const Program &p, const shd_pipeline_settings &settings, bool sharded,
           bool kept, uint32_t world)
{
    std::set<uint32_t> coming, full, grads, reduced, frozen(m.frozen.begin(), m.frozen.end());
    std::vector<bool> waited(p.list.n, false);
    std::vector<std::string> compute;
    uint32_t reducing = 0;
    const auto ready = [&](const shd_segment &s) {
        for (uint32_t k = 0; k < s.n_units; k++) {
            EXPECT_TRUE(!sharded || full.count(s.units[k])) << s.units[k];
        }
    };
    for (uint32_t i = 0; i < p.list.n; i++) {
        const shd_instr &instr = p.list.instrs[i];
        switch (instr.kind) {
        case SHD_INSTR_GATHER:
            EXPECT_FALSE(full.count(instr.index) || coming.count(instr.index));
            coming.insert(instr.index);
            EXPECT_LT(0u, instr.bytes);
            break;
        case SHD_INSTR_WAIT_GATHER:
        case SHD_INSTR_WAIT_REDUCE: {
            const shd_instr &of = p.list.instrs[instr.waits_for];
            EXPECT_LT(instr.waits_for, i);
            EXPECT_EQ(instr.kind, of.kind + 1);
            EXPECT_EQ(instr.index, of.index);
            EXPECT_FALSE(waited[instr.waits_for]);
            waited[instr.waits_for] = true;
            if (of.kind == SHD_INSTR_GATHER) {
                EXPECT_EQ(1u, coming.erase(instr.index));
                full.insert(instr.index);
            } else {
                reducing--;
            }
            break;
        }
        case SHD_INSTR_RESHARD:
            EXPECT_EQ(1u, full.erase(instr.index));
            break;
        case SHD_INSTR_FORWARD:
            ready(m.segments[instr.index]);
            compute.push_back("F" + std::to_string(instr.index));
            break;
        case SHD_INSTR_RECOMPUTE:
            EXPECT_TRUE(m.segments[instr.index].recompute);
            ready(m.segments[instr.index]);
            compute.push_back("R" + std::to_string(instr.index));
            break;
        case SHD_INSTR_BACKWARD: {
            const shd_segment &s = m.segments[instr.index];
            if (s.backward_needs_params || s.recompute) {
                ready(s);
            }
            for (uint32_t k = 0; k < s.n_units; k++) {
                EXPECT_EQ(!frozen.count(s.units[k]), grads.count(s.units[k]) == 1);
            }
            compute.push_back("B" + std::to_string(instr.index));
            break;
        }
        case SHD_INSTR_GRAD_BEGIN:
            EXPECT_FALSE(frozen.count(instr.index) || reduced.count(instr.index));
            EXPECT_TRUE(grads.insert(instr.index).second);
            break;
        case SHD_INSTR_REDUCE:
            for (uint32_t u : p.Bucket(instr.index)) {
                EXPECT_EQ(1u, grads.erase(u));
                EXPECT_TRUE(reduced.insert(u).second);
            }
            reducing += world > 1;
            EXPECT_GE(1u, reducing);
            break;
        case SHD_INSTR_KIND_COUNT:
            ADD_FAILURE();
        }
        if (settings.max_gathered > 0 && !kept) {
            EXPECT_GE(settings.max_gathered, coming.size() + full.size());
        }
    }
    EXPECT_TRUE(coming.empty());
    EXPECT_TRUE(full.empty());
    EXPECT_TRUE(grads.empty());
    EXPECT_EQ(0u, reducing);
    std::vector<std::string> want;
    std::set<uint32_t> trained;
    const uint32_t n = static_cast<uint32_t>(m.segments.size());
    for (uint32_t s = 0; s < n; s++) {
        want.push_back("F" + std::to_string(s));
    }
    for (uint32_t s = n; m.train && s-- > m.first_backward;) {
        if (m.segments[s].recompute) {
            want.push_back("R" + std::to_string(s));
        }
        want.push_back("B" + std::to_string(s));
        for (uint32_t k = 0; k < m.segments[s].n_units; k++) {
            if (!frozen.count(m.segments[s].units[k])) {
                trained.insert(m.segments[s].units[k]);
            }
        }
    }
    EXPECT_EQ(want, compute);
    EXPECT_EQ(trained, reduced);
}

TEST(Schedule, PromisesHoldForRandomModelsAndSettings)
{
    std::mt19937 random(1);
    for (int round = 0; round < 3000; round++) {
        SCOPED_TRACE(round);
        const Model m = Random(&random);
        const char *const strategies[] = {"ddp", "zero2", "zero3"};
        const char *strategy = strategies[random() % 3];
        const uint32_t world = 1 + random() % 4;
        const bool sharded = strategy == std::string("zero3") && world > 1;
        const bool kept = random() % 3 == 0;
        shd_pipeline_settings settings = {};
        settings.prefetch = random() % 4;
        settings.max_gathered = random() % 2 ? 3 + random() % 4 : 0;
        settings.bucket_bytes = random() % 2 ? random() % 60000 : 0;
        settings.overlap = static_cast<int>(random() % 2);
        const Program p(m, strategy, world, settings, kept ? 1 : 0);
        ASSERT_EQ(0, p.rc) << p.err.message;
        Check(m, p, settings, sharded, kept, world);
        if (HasFailure()) {
            FAIL() << p.Text();
        }
    }
}

// More prefetch never means more gathers, and what is ahead is as much as was asked for.
TEST(Schedule, PrefetchReusesWhatItHolds)
{
    std::mt19937 random(2);
    for (int round = 0; round < 500; round++) {
        SCOPED_TRACE(round);
        const Model m = Random(&random);
        size_t last = SIZE_MAX;
        for (uint32_t depth = 0; depth < 4; depth++) {
            const Program p(m, "zero3", 2, {depth, 0, 0, 1, 0});
            size_t gathers = 0;
            for (uint32_t i = 0; i < p.list.n; i++) {
                gathers += p.list.instrs[i].kind == SHD_INSTR_GATHER;
            }
            EXPECT_LE(gathers, last) << depth;
            last = gathers;
        }
    }
}

} // namespace
