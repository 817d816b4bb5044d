// Nothing depends on timing: short jobs under random delays in collectives and streams give the
// bits of the undisturbed job, whatever the strategy and the pipeline. SHD_RACE_RUNS is the number
// of jobs (default 100).
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <random>
#include <string>

#include "tests/delay/delay.h"
#include "tests/train/engine.h"

namespace
{

template <class T> T Pick(std::mt19937 *random, const std::vector<T> &from)
{
    return from[(*random)() % from.size()];
}

// What decides the results.
struct Kind {
    uint32_t world, accumulation;
    int llama, checkpointing; // the latter does not
    uint32_t width;           // of the trees of level world; 0: level strategy
    bool operator<(const Kind &o) const
    {
        return std::tie(world, accumulation, llama, width) <
               std::tie(o.world, o.accumulation, o.llama, o.width);
    }
};

shd_spec Spec(const Kind &kind)
{
    shd_spec s = shd::SmallSpec("ddp", kind.world);
    if (kind.llama) {
        s.model = shd_model_config_llama(2, 4, 32, 44, 23, 97);
        s.model.n_kv_head = 2;
    }
    s.accumulation = kind.accumulation;
    s.global_batch = s.micro_batch * s.strategy.world * s.accumulation;
    s.checkpointing = static_cast<shd_checkpointing>(kind.checkpointing);
    if (kind.width > 0) {
        s.determinism = SHD_DETERMINISM_WORLD;
        s.reduction_width = kind.width;
    }
    return s;
}

shd::Trace Train(const shd_spec &spec, const shd::DataFile &file, bool threads, int compute = 1)
{
    shd::Engine engine(spec, file.Open(), nullptr, compute, nullptr, threads);
    EXPECT_EQ(0, engine.init_rc()) << engine.init_error();
    return engine.Train(3);
}

TEST(Races, DelaysChangeNoBit)
{
    const char *given = getenv("SHD_RACE_RUNS");
    const int runs = given != nullptr ? atoi(given) : 100;
    const shd::DataFile file(4000);
    std::map<Kind, shd::Trace> undisturbed;
    std::mt19937 random(99);
    for (int run = 0; run < runs; run++) {
        Kind kind = {Pick<uint32_t>(&random, {2, 3, 4}), Pick<uint32_t>(&random, {1, 3}),
                     static_cast<int>(random() % 2), static_cast<int>(random() % 3), 0};
        kind.width = kind.world != 3 && random() % 3 == 0 ? 8 : 0;
        shd_spec spec = Spec(kind);
        if (undisturbed.count(kind) == 0) {
            shd::Delay(0, 0);
            undisturbed[kind] = Train(spec, file, false);
        }
        std::vector<uint32_t> degrees;
        for (uint32_t d = 1; d <= kind.world; d++) {
            if (kind.world % d == 0) {
                degrees.push_back(d);
            }
        }
        const uint32_t o = Pick(&random, degrees);
        uint32_t g = Pick(&random, degrees), p = Pick(&random, degrees);
        g = o % g == 0 ? g : 1;
        p = g % p == 0 ? p : 1;
        const uint32_t triple[3] = {p, g, o};
        ASSERT_EQ(0, shd_strategy_make("", triple, 3, kind.world, &spec.strategy, nullptr));
        spec.strategy.regather = random() % 2 ? 1 : p;
        spec.pipeline.prefetch = random() % 3;
        spec.pipeline.bucket_bytes = Pick<uint64_t>(&random, {0, 20000, 1 << 30});
        spec.pipeline.overlap = 1;
        spec.pipeline.persist_below = Pick<uint64_t>(&random, {0, 0, 100});
        SCOPED_TRACE("run " + std::to_string(run) + ": W " + std::to_string(kind.world) +
                     " p,g,o " + std::to_string(p) + "," + std::to_string(g) + "," +
                     std::to_string(o) + " regather " + std::to_string(spec.strategy.regather) +
                     " prefetch " + std::to_string(spec.pipeline.prefetch) + " bucket " +
                     std::to_string(spec.pipeline.bucket_bytes));
        shd::Delay(static_cast<uint32_t>(run) + 1, Pick<uint32_t>(&random, {20, 200, 1000}));
        const shd::Trace trace = Train(spec, file, random() % 4 != 0, 1 + random() % 2);
        ASSERT_TRUE(trace == undisturbed[kind]);
    }
    shd::Delay(0, 0);
    EXPECT_LT(100u * static_cast<unsigned>(runs), shd::Delays());
}

} // namespace
