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

// An instruction as something that happened: in a simulation or on a rank.
struct Happened {
    uint32_t instruction;
    double begin, end;
};

// Instructions in the order of a lane's spans are those of the program on that lane.
std::vector<Happened> Match(const shd_plan_schedule &schedule, shd::Engine *engine, uint32_t rank)
{
    std::vector<Happened> out;
    for (int lane = 0; lane < SHD_LANE_COUNT; lane++) {
        const Spans spans = SpansOf(engine, rank, static_cast<shd_lane>(lane));
        size_t at = 0;
        for (uint32_t i = 0; i < schedule.n; i++) {
            const shd_instr &instr = schedule.instrs[i];
            if (instr.lane != lane) {
                continue;
            }
            EXPECT_LT(at, spans.size());
            EXPECT_EQ(static_cast<int>(instr.kind), spans[at].kind) << "instruction " << i;
            EXPECT_EQ(instr.index, spans[at].index) << "instruction " << i;
            EXPECT_EQ(instr.bytes, spans[at].bytes) << "instruction " << i;
            out.push_back({i, static_cast<double>(spans[at].begin_ns),
                           static_cast<double>(spans[at].end_ns)});
            at++;
        }
        for (; at < spans.size(); at++) { // the optimizer's are on the rank's thread, and come last
            EXPECT_GE(spans[at].kind, static_cast<int>(SHD_INSTR_KIND_COUNT));
        }
    }
    return out;
}

// Everything that the order of a program fixes, however fast compute and links are: lanes work in
// order, what is queued begins after the rank's thread got there, and waits end after what they
// wait for.
void CheckOrder(const shd_plan_schedule &schedule, std::vector<Happened> events)
{
    std::sort(events.begin(), events.end(),
              [](const Happened &a, const Happened &b) { return a.instruction < b.instruction; });
    ASSERT_EQ(schedule.n, events.size());
    double lane_end[SHD_LANE_COUNT] = {0}, reached = 0;
    for (uint32_t i = 0; i < schedule.n; i++) {
        const shd_instr &instr = schedule.instrs[i];
        EXPECT_EQ(i, events[i].instruction);
        EXPECT_LE(events[i].begin, events[i].end);
        EXPECT_GE(events[i].begin, lane_end[instr.lane]) << "lanes work in order";
        EXPECT_GE(events[i].begin, reached)
            << "instruction " << i << " began before it was reached";
        if (instr.kind == SHD_INSTR_WAIT_GATHER || instr.kind == SHD_INSTR_WAIT_REDUCE) {
            EXPECT_GE(events[i].end, events[instr.waits_for].end) << "instruction " << i;
        }
        lane_end[instr.lane] = events[i].end;
        reached = instr.lane == SHD_LANE_COMPUTE ? events[i].end : reached;
    }
}

TEST(Timeline, TheSimulatorsOrderIsThatOfTheRanks)
{
    const shd::DataFile data(20000);
    const shd_machine machine = {.ranks_per_node = 4,
                                 .device_memory = 0,
                                 .flops = 1e9,
                                 .memory_bandwidth = 0,
                                 .node_bandwidth = 1e9,
                                 .net_bandwidth = 1e9,
                                 .node_latency = 1e-6,
                                 .net_latency = 1e-6};
    for (const char *strategy : {"zero2", "zero3"}) {
        for (uint32_t world : {2u, 4u}) {
            for (bool threads : {false, true}) {
                SCOPED_TRACE(std::string(strategy) + "@" + std::to_string(world));
                shd_spec spec = shd::SmallSpec(strategy, world);
                spec.data_path = strdup(data.path().c_str());
                spec.pipeline.prefetch = 2;
                spec.pipeline.overlap = 1;
                spec.checkpointing = SHD_CHECKPOINT_SELECTIVE;
                shd::Engine engine(spec, data.Open(), nullptr, 1, nullptr, threads);
                shd_plan plan;
                shd_estimate estimate;
                shd_plan_schedule schedule = {};
                shd_error err = {};
                ASSERT_EQ(0, shd_plan_for(&spec, 1, &machine, &plan, &estimate, &schedule, &err))
                    << err.message;
                std::vector<Happened> simulated;
                for (uint32_t i = 0; i < schedule.n; i++) {
                    simulated.push_back({schedule.events[i].instruction, schedule.events[i].begin,
                                         schedule.events[i].end});
                }
                CheckOrder(schedule, simulated);
                Step(&engine, 1);
                for (uint32_t rank = 0; rank < world; rank++) {
                    CheckOrder(schedule, Match(schedule, &engine, rank));
                }
                shd_plan_schedule_fini(&schedule);
                free(spec.data_path);
            }
        }
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
