// Schedules in execution: which unit is gathered, kept, reduced when, seen from the compute
// callbacks on a device and a communicator that only count.
#include "daemon/shard/pipeline.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace
{

// A chain of segments over units of one parameter each; the log says what compute saw.
class Chain
{
  public:
    Chain(std::vector<shd_segment> segments, uint32_t n_units, int reshard,
          const char *strategy = "zero3", uint32_t world = 4,
          const std::vector<uint32_t> &frozen = {})
        : segments_(std::move(segments))
    {
        const std::vector<int64_t> numel(n_units, 1000);
        std::vector<uint32_t> unit(n_units);
        for (uint32_t u = 0; u < n_units; u++) {
            unit[u] = u;
        }
        shd_layout_init(&layout_, n_units, numel.data(), unit.data(), n_units, world);
        for (uint32_t u : frozen) {
            layout_.units[u].frozen = 1;
        }
        const shd_units_config config = {SHD_F32, SHD_F32, 2, {}};
        shd_strategy s = {};
        EXPECT_EQ(0, shd_strategy_make(strategy, nullptr, 0, world, &s, nullptr));
        s.regather = reshard ? s.p : 1;
        dev_ = shd_device_create_null(1);
        EXPECT_EQ(0, shd_device_arena(dev_, 0, &arena_, nullptr));
        comm_ = shd_comm_null_create(1, world);
        EXPECT_EQ(0, shd_units_init(&units, &layout_, &s, &config, dev_, arena_, comm_, nullptr));
        pipeline = {ForwardSegment, Backward, Recompute, CompleteGrads, this, nullptr, {}};
    }
    ~Chain()
    {
        shd_units_fini(&units);
        for (int t = 0; t < SHD_TAG_COUNT; t++) {
            EXPECT_EQ(0u, Now(static_cast<shd_tag>(t)));
        }
        shd_arena_free(arena_);
        shd_comm_free(comm_);
        shd_device_free(dev_);
        shd_layout_fini(&layout_);
    }
    Chain(const Chain &) = delete;
    Chain &operator=(const Chain &) = delete;

    int Run(bool train, shd_error *err = nullptr)
    {
        const shd_program_config config = {segments_.data(),
                                           static_cast<uint32_t>(segments_.size()),
                                           first_backward,
                                           &layout_,
                                           units.strategy,
                                           settings,
                                           SHD_F32,
                                           SHD_F32,
                                           train,
                                           {}};
        shd_program program = {};
        EXPECT_EQ(0, shd_program_make(&config, &program, nullptr));
        shd_comm_count before[SHD_COMM_KIND_COUNT], after[SHD_COMM_KIND_COUNT], said = {0, 0};
        shd_comm_counts(comm_, before);
        const int rc = shd_pipeline_run(&pipeline, &program, &units, err);
        shd_comm_counts(comm_, after);
        for (int k = 0; k < SHD_COMM_KIND_COUNT; k++) {
            said.bytes += after[k].bytes - before[k].bytes;
            said.calls += after[k].calls - before[k].calls;
        }
        for (uint32_t i = 0; i < program.n && rc == 0; i++) { // instructions say what they move
            said.bytes -= program.instrs[i].bytes;
            said.calls -= program.instrs[i].calls;
        }
        EXPECT_TRUE(rc < 0 || (said.bytes == 0 && said.calls == 0));
        shd_program_fini(&program);
        return rc;
    }
    int Train(shd_error *err = nullptr)
    {
        return Run(true, err);
    }
    int Forward(shd_error *err = nullptr)
    {
        return Run(false, err);
    }

    uint64_t Gathers() const
    {
        return Count(SHD_COMM_ALL_GATHER).calls;
    }
    uint64_t Reduces() const
    {
        return Count(SHD_COMM_REDUCE_SCATTER).calls;
    }
    uint64_t GatheredBytes() const
    {
        return Count(SHD_COMM_ALL_GATHER).bytes;
    }
    uint64_t Now(shd_tag tag) const
    {
        shd_usage usage[SHD_TAG_COUNT];
        shd_arena_usage(arena_, usage);
        return usage[tag].now;
    }
    uint64_t Padded() const
    {
        return static_cast<uint64_t>(layout_.units[0].padded);
    }

    shd_pipeline_settings settings = {}; // one thing after another
    uint32_t first_backward = 0;
    shd_pipeline pipeline = {};
    shd_units units = {};
    std::vector<std::string> log;
    std::string fail_at; // the entry whose compute fails

  private:
    shd_comm_count Count(shd_comm_kind kind) const
    {
        shd_comm_count counts[SHD_COMM_KIND_COUNT];
        shd_comm_counts(comm_, counts);
        return counts[kind];
    }
    std::string Units(bool grads) const
    {
        std::string out;
        for (uint32_t u = 0; u < layout_.n_units; u++) {
            const shd_unit &unit = units.units[u];
            EXPECT_EQ(unit.memory == SHD_UNIT_FULL, unit.full != nullptr);
            if (grads ? unit.local_grad != nullptr : unit.full != nullptr) {
                out += std::to_string(u);
            }
        }
        return out;
    }
    int Compute(const char *what, uint32_t segment, shd_error *err)
    {
        const std::string entry = what + std::to_string(segment);
        log.push_back(entry + " full " + Units(false) + " grads " + Units(true));
        return entry == fail_at ? shd_fail(err, SHD_ENOMEM, "%s fails", entry.c_str()) : 0;
    }
    static int ForwardSegment(void *arg, uint32_t segment, shd_error *err)
    {
        return static_cast<Chain *>(arg)->Compute("F", segment, err);
    }
    static int Backward(void *arg, uint32_t segment, shd_error *err)
    {
        return static_cast<Chain *>(arg)->Compute("B", segment, err);
    }
    static int Recompute(void *arg, uint32_t segment, shd_error *err)
    {
        return static_cast<Chain *>(arg)->Compute("R", segment, err);
    }
    static void CompleteGrads(void *arg, uint32_t unit)
    {
        Chain *self = static_cast<Chain *>(arg);
        EXPECT_NE(nullptr, self->units.units[unit].local_grad);
        self->log.push_back("C" + std::to_string(unit) + " after " +
                            std::to_string(self->Reduces()));
    }

    std::vector<shd_segment> segments_;
    shd_layout layout_ = {};
    shd_device *dev_ = nullptr;
    shd_arena *arena_ = nullptr;
    shd_comm *comm_ = nullptr;
};

using Log = std::vector<std::string>;

// Embedding and head share unit 0, as in a tied model; the embedding's backward reads no weights.
std::vector<shd_segment> Tied()
{
    return {{{0}, 1, 0, 0}, {{1}, 1, 1, 0}, {{2}, 1, 1, 0}, {{0}, 1, 1, 0}};
}

std::vector<shd_segment> Untied()
{
    return {{{0}, 1, 1, 0}, {{1}, 1, 1, 0}, {{2}, 1, 1, 0}};
}

TEST(Train, GathersForEachUseAndReducesAfterTheLast)
{
    Chain c(Tied(), 3, 1);
    shd_error err = {};
    ASSERT_EQ(0, c.Train(&err)) << err.message;
    EXPECT_EQ((Log{
                  "F0 full 0 grads ",
                  "F1 full 1 grads ",
                  "F2 full 2 grads ",
                  "F3 full 0 grads ",
                  "B3 full 0 grads 0", // kept: the very next item needs it
                  "B2 full 2 grads 02",
                  "C2 after 0",
                  "B1 full 1 grads 01",
                  "C1 after 1",
                  "B0 full  grads 0", // reads no parameter; its gradient waited since the head
                  "C0 after 2",
              }),
              c.log);
    EXPECT_EQ(6u, c.Gathers());
    EXPECT_EQ(3u, c.Reduces());
    // Each gather sends this rank's quarter to three others.
    EXPECT_EQ(6u * c.Padded() / 4 * 4 * 3, c.GatheredBytes());
    EXPECT_EQ(0u, c.Now(SHD_TAG_GATHERED));
    EXPECT_EQ(0u, c.Now(SHD_TAG_COMM));
}

TEST(Train, KeepsGatheredParametersWhenAskedTo)
{
    Chain c(Tied(), 3, 0);
    ASSERT_EQ(0, c.Train());
    EXPECT_EQ((Log{
                  "F0 full 0 grads ",
                  "F1 full 01 grads ",
                  "F2 full 012 grads ",
                  "F3 full 012 grads ",
                  "B3 full 012 grads 0",
                  "B2 full 12 grads 02", // unit 0 is not needed any more
                  "C2 after 0",
                  "B1 full 1 grads 01",
                  "C1 after 1",
                  "B0 full  grads 0",
                  "C0 after 2",
              }),
              c.log);
    EXPECT_EQ(3u, c.Gathers());
    EXPECT_EQ(3u, c.Reduces());
    EXPECT_EQ(0u, c.Now(SHD_TAG_GATHERED));
}

TEST(Train, ChainWithoutTiesGathersTheLastUnitOnce)
{
    Chain c(Untied(), 3, 1);
    ASSERT_EQ(0, c.Train());
    EXPECT_EQ((Log{
                  "F0 full 0 grads ",
                  "F1 full 1 grads ",
                  "F2 full 2 grads ",
                  "B2 full 2 grads 2",
                  "C2 after 0",
                  "B1 full 1 grads 1",
                  "C1 after 1",
                  "B0 full 0 grads 0",
                  "C0 after 2",
              }),
              c.log);
    EXPECT_EQ(5u, c.Gathers());
}

TEST(Train, ASegmentOfTwoUnitsSharesOneWithItsNeighbour)
{
    // Unit 1 is used by two segments in a row, unit 2 only together with unit 0.
    Chain c({{{0, 1}, 2, 1, 0}, {{1}, 1, 1, 0}, {{0, 2}, 2, 1, 0}}, 3, 1);
    ASSERT_EQ(0, c.Train());
    EXPECT_EQ((Log{
                  "F0 full 01 grads ",
                  "F1 full 1 grads ",
                  "F2 full 02 grads ",
                  "B2 full 02 grads 02",
                  "C2 after 0",
                  "B1 full 1 grads 01",
                  "B0 full 01 grads 01",
                  "C0 after 1",
                  "C1 after 2",
              }),
              c.log);
    EXPECT_EQ(6u, c.Gathers()); // 0,1 | 0,2 kept for backward | 1 | 0
    EXPECT_EQ(0u, c.Now(SHD_TAG_GATHERED));
    EXPECT_EQ(0u, c.Now(SHD_TAG_COMM));
}

TEST(Train, UnshardedParametersAreNeverGathered)
{
    Chain c(Tied(), 3, 1, "zero2");
    ASSERT_EQ(0, c.Train());
    EXPECT_EQ(0u, c.Gathers());
    EXPECT_EQ(3u, c.Reduces());
}

TEST(Train, ComputesASegmentAgainWithItsUnitsGatheredForBoth)
{
    // Unit 2's backward alone would read no parameter: computing it again does.
    std::vector<shd_segment> segments = Tied();
    segments[1].recompute = segments[2].recompute = 1;
    segments[2].backward_needs_params = 0;
    Chain c(segments, 3, 1);
    ASSERT_EQ(0, c.Train());
    EXPECT_EQ((Log{
                  "F0 full 0 grads ",
                  "F1 full 1 grads ",
                  "F2 full 2 grads ",
                  "F3 full 0 grads ",
                  "B3 full 0 grads 0",
                  "R2 full 2 grads 0", // no gradient memory yet
                  "B2 full 2 grads 02",
                  "C2 after 0",
                  "R1 full 1 grads 0",
                  "B1 full 1 grads 01",
                  "C1 after 1",
                  "B0 full  grads 0",
                  "C0 after 2",
              }),
              c.log);
    EXPECT_EQ(6u, c.Gathers()) << "no more than without";
}

TEST(Train, FrozenUnitsHaveNoGradientAndNothingBelowTheFirstTrainedOneRuns)
{
    // Units: 0 frozen embedding, 1 frozen block, 2 and 3 the trained and frozen halves of a block,
    // 4 the head.
    Chain c({{{0}, 1, 0, 0}, {{1}, 1, 1, 1}, {{2, 3}, 2, 1, 0}, {{4}, 1, 1, 0}}, 5, 1, "zero3", 4,
            {0, 1, 3});
    c.first_backward = 2;
    ASSERT_EQ(0, c.Train());
    EXPECT_EQ((Log{
                  "F0 full 0 grads ",
                  "F1 full 1 grads ",
                  "F2 full 23 grads ",
                  "F3 full 4 grads ",
                  "B3 full 4 grads 4",
                  "C4 after 0",
                  "B2 full 23 grads 2",
                  "C2 after 1",
              }),
              c.log);
    EXPECT_EQ(2u, c.Reduces());
    EXPECT_EQ(7u, c.Gathers());
    EXPECT_EQ(0u, c.Now(SHD_TAG_GATHERED));
    EXPECT_EQ(2 * c.Padded() / 4 * 4, c.Now(SHD_TAG_GRADS));
    EXPECT_EQ(2 * 2 * c.Padded() / 4 * 4, c.Now(SHD_TAG_OPTIMIZER));
    EXPECT_EQ(5 * c.Padded() / 4 * 4, c.Now(SHD_TAG_PARAMS));
}

TEST(Hooks, SeeEveryInstructionOnce)
{
    Chain c(Tied(), 3, 1);
    std::vector<std::string> seen;
    const shd_pipeline_hooks hooks = {[](void *arg, const shd_program *program, uint32_t i) {
                                          static_cast<std::vector<std::string> *>(arg)->push_back(
                                              "<" + std::to_string(program->instrs[i].kind));
                                      },
                                      [](void *arg, const shd_program *program, uint32_t i) {
                                          static_cast<std::vector<std::string> *>(arg)->push_back(
                                              shd_lane_name(program->instrs[i].lane) +
                                              std::string(">"));
                                      },
                                      &seen};
    c.pipeline.hooks = &hooks;
    ASSERT_EQ(0, c.Forward());
    const std::vector<std::string> begin(seen.begin(), seen.begin() + 8);
    const auto began = [](shd_instr_kind kind) { return "<" + std::to_string(kind); };
    EXPECT_EQ((Log{began(SHD_INSTR_GATHER), "gather>", began(SHD_INSTR_WAIT_GATHER), "compute>",
                   began(SHD_INSTR_FORWARD), "compute>", began(SHD_INSTR_RESHARD), "compute>"}),
              begin);
    EXPECT_EQ(32u, seen.size());
}

TEST(Forward, LeavesEverythingSharded)
{
    for (int reshard : {0, 1}) {
        Chain c(Tied(), 3, reshard);
        ASSERT_EQ(0, c.Forward());
        EXPECT_EQ(4u, c.log.size());
        EXPECT_EQ("F3 full 0 grads ", c.log[3]);
        EXPECT_EQ(reshard ? "F2 full 2 grads " : "F2 full 02 grads ", c.log[2]);
        EXPECT_EQ(reshard ? 4u : 3u, c.Gathers());
        EXPECT_EQ(0u, c.Reduces());
        EXPECT_EQ(0u, c.Now(SHD_TAG_GATHERED));
    }
}

TEST(Forward, WithoutComputeRunsTheSameCollectives)
{
    Chain with(Tied(), 3, 1), without(Tied(), 3, 1);
    ASSERT_EQ(0, with.Forward());
    without.pipeline.forward = nullptr;
    ASSERT_EQ(0, without.Forward());
    EXPECT_TRUE(without.log.empty());
    EXPECT_EQ(with.Gathers(), without.Gathers());
    EXPECT_EQ(with.GatheredBytes(), without.GatheredBytes());
}

TEST(Failure, OfComputeStopsTheScheduleAndIsForwarded)
{
    for (const char *at : {"F1", "B3", "B0"}) {
        Chain c(Tied(), 3, 1);
        c.fail_at = at;
        shd_error err = {};
        EXPECT_EQ(SHD_ENOMEM, c.Train(&err));
        EXPECT_EQ(std::string(at) + " fails", err.message);
        EXPECT_EQ(0u, c.log.back().find(at)) << c.log.back();
    }
}

TEST(Failure, OfACollectiveIsForwarded)
{
    Chain c(Tied(), 3, 1);
    shd_comm_abort(c.units.comm, SHD_ECANCELLED, "stopped");
    shd_error err = {};
    EXPECT_EQ(SHD_ECANCELLED, c.Train(&err));
    EXPECT_STREQ("stopped", err.message);
    EXPECT_TRUE(c.log.empty());
}

} // namespace
