// What the ranks did when: every instruction of every micro-batch, in order, and nothing else
// changed.
#include "daemon/train/timeline.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "tests/train/engine.h"

namespace
{

using Spans = std::vector<shd_span>;

Spans SpansOf(shd::Engine *engine, uint32_t rank, shd_lane lane)
{
    const shd_span *spans = nullptr;
    uint64_t dropped = 1;
    const size_t n =
        shd_timeline_spans(shd_trainer_timeline(engine->trainer(), rank), lane, &spans, &dropped);
    EXPECT_EQ(0u, dropped);
    return Spans(spans, spans + n);
}

uint64_t BytesSent(shd::Engine *engine, uint32_t rank)
{
    shd_comm_count counts[SHD_COMM_KIND_COUNT];
    uint64_t sum = 0;
    shd_trainer_comm(engine->trainer(), rank, counts);
    for (const shd_comm_count &count : counts) {
        sum += count.bytes;
    }
    return sum;
}

shd_work Step(shd::Engine *engine, int trace)
{
    shd_work work;
    shd_work_init(&work, SHD_WORK_DATA_STEP);
    work.trace = trace;
    EXPECT_EQ(0, engine->Run(&work)) << work.err.message;
    shd_work_fini(&work);
    return work;
}

// (kind, index, round), which must not depend on the rank.
std::vector<std::vector<uint32_t>> Order(const Spans &spans)
{
    std::vector<std::vector<uint32_t>> out;
    for (const shd_span &s : spans) {
        out.push_back({static_cast<uint32_t>(s.kind), s.index, s.round});
    }
    return out;
}

void CheckRank(shd::Engine *engine, uint32_t rank, uint64_t sent)
{
    uint64_t bytes = 0;
    std::map<int, int> kinds;
    std::vector<std::vector<uint32_t>> forward;
    for (int lane = 0; lane < SHD_LANE_COUNT; lane++) {
        const Spans spans = SpansOf(engine, rank, static_cast<shd_lane>(lane));
        for (size_t i = 0; i < spans.size(); i++) {
            EXPECT_LE(spans[i].begin_ns, spans[i].end_ns);
            if (i > 0) {
                EXPECT_LE(spans[i - 1].end_ns, spans[i].begin_ns) << "a lane works in order";
            }
            kinds[spans[i].kind]++;
            const int kind = spans[i].kind;
            // A wait moves nothing of its own.
            bytes +=
                kind != SHD_INSTR_WAIT_GATHER && kind != SHD_INSTR_WAIT_REDUCE ? spans[i].bytes : 0;
        }
        EXPECT_EQ(Order(spans), Order(SpansOf(engine, 0, static_cast<shd_lane>(lane))));
    }
    EXPECT_EQ(sent, bytes);
    shd_model *model = nullptr;
    shd_error err = {};
    ASSERT_EQ(0, shd_model_create(&engine->spec().model, &model, &err));
    const int segments = static_cast<int>(shd_model_n_segments(model));
    shd_model_free(model);
    const int rounds = static_cast<int>(engine->spec().accumulation);
    EXPECT_EQ(segments * rounds, kinds[SHD_INSTR_FORWARD]);
    EXPECT_EQ(segments * rounds, kinds[SHD_INSTR_BACKWARD]);
    EXPECT_EQ(kinds[SHD_INSTR_GATHER], kinds[SHD_INSTR_WAIT_GATHER]);
    if (engine->spec().strategy.world > 1) { // alone, gradients are folded where they are
        EXPECT_EQ(kinds[SHD_INSTR_REDUCE], kinds[SHD_INSTR_WAIT_REDUCE]);
    }
    EXPECT_EQ(1, kinds[SHD_SPAN_EXCHANGE]);
    EXPECT_EQ(static_cast<int>(engine->plan().units), kinds[SHD_SPAN_OPTIMIZER]);
    EXPECT_EQ(static_cast<int>(engine->plan().units), kinds[SHD_SPAN_UPDATE]);
    EXPECT_EQ(1, kinds[SHD_SPAN_NORM]);
}

TEST(Timeline, EveryInstructionOfEveryRankOnce)
{
    const shd::DataFile data(20000);
    for (const char *strategy : {"ddp", "zero2", "zero3"}) {
        for (uint32_t world : {1u, 2u, 4u}) {
            for (int overlap : {0, 1}) {
                SCOPED_TRACE(std::string(strategy) + "@" + std::to_string(world));
                shd_spec spec = shd::SmallSpec(strategy, world);
                spec.pipeline.prefetch = 1;
                spec.pipeline.overlap = overlap;
                spec.accumulation = 3;
                spec.global_batch *= 3;
                shd::Engine engine(spec, data.Open());
                Step(&engine, 0);
                EXPECT_EQ(0u, SpansOf(&engine, 0, SHD_LANE_COMPUTE).size());
                std::vector<uint64_t> before;
                for (uint32_t r = 0; r < world; r++) {
                    before.push_back(BytesSent(&engine, r));
                }
                const shd_work work = Step(&engine, 1);
                EXPECT_GE(work.exposed_ms, 0);
                EXPECT_LE(work.exposed_ms, work.ms);
                for (uint32_t r = 0; r < world; r++) {
                    CheckRank(&engine, r, BytesSent(&engine, r) - before[r]);
                }
            }
        }
    }
}

TEST(Timeline, LookingChangesNoBit)
{
    const shd::DataFile data(20000);
    shd::Engine plain(shd::SmallSpec("zero3", 2), data.Open());
    shd::Engine seen(shd::SmallSpec("zero3", 2), data.Open());
    for (int i = 0; i < 5; i++) {
        const shd_work a = Step(&plain, 0), b = Step(&seen, 1);
        EXPECT_EQ(a.loss, b.loss);
        EXPECT_EQ(a.grad_norm, b.grad_norm);
    }
    EXPECT_EQ(plain.Params(), seen.Params());
}

// Compute never begins before what it needs is there.
TEST(Timeline, AUnitIsThereBeforeItIsWaitedFor)
{
    const shd::DataFile data(20000);
    shd::Engine engine(shd::SmallSpec("zero3", 2), data.Open());
    Step(&engine, 1);
    for (uint32_t rank = 0; rank < 2; rank++) {
        const Spans gathers = SpansOf(&engine, rank, SHD_LANE_GATHER);
        size_t next = 0;
        for (const shd_span &s : SpansOf(&engine, rank, SHD_LANE_COMPUTE)) {
            if (s.kind == SHD_INSTR_WAIT_GATHER) {
                ASSERT_LT(next, gathers.size());
                EXPECT_EQ(gathers[next].index, s.index);
                EXPECT_LE(gathers[next].end_ns, s.end_ns);
                next++;
            }
        }
        EXPECT_EQ(gathers.size(), next);
    }
}

TEST(Timeline, NamesOfAllKinds)
{
    for (int kind = 0; kind < SHD_SPAN_KIND_COUNT; kind++) {
        EXPECT_NE(nullptr, shd_span_name(kind));
        EXPECT_NE(nullptr, shd_span_lane(kind));
    }
}

} // namespace
