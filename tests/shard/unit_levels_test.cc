// Levels of determinism: the sums of units are those of the contract, read literally.
#include "tests/shard/units.h"

namespace
{

using namespace units;

// What this rank's o-part is after batches of leaves have been accumulated; leaf i of a batch is
// that batch's i-th flat buffer, those beyond its end are zero.
std::vector<Flat> Accumulate(World *w, const shd_strategy &s,
                             const std::vector<std::vector<Flat>> &batches)
{
    const shd_layout &layout = w->layout();
    std::vector<Flat> got(s.world);
    w->Each([&](Rank &rank) {
        shd_unit &unit = rank.units.units[0];
        for (const std::vector<Flat> &batch : batches) {
            for (size_t first = 0; first < batch.size(); first += s.world) {
                ASSERT_EQ(0, shd_unit_grad_begin(&rank.units, 0, nullptr));
                for (uint32_t i = 0; i < layout.n_params; i++) {
                    const shd_slot &slot = layout.slots[i];
                    float *to = F(unit.local_grad) + slot.offset;
                    if (slot.unit == 0 && first + rank.rank < batch.size()) {
                        std::copy_n(batch[first + rank.rank].begin() + slot.offset, slot.numel, to);
                    } else if (slot.unit == 0) {
                        std::fill_n(to, slot.numel, 0.0f);
                    }
                }
                ASSERT_EQ(0, shd_unit_grad_reduce(&rank.units, 0, nullptr));
                shd_units_round_done(&rank.units);
            }
            shd_units_batch_done(&rank.units);
        }
        ASSERT_EQ(0, shd_unit_grad_finish(&rank.units, 0, nullptr));
        const shd_range range = shd_unit_update_grads(&rank.units, 0);
        got[rank.rank] =
            Load(&rank, range.data, rank.units.config.reduce_dtype, range.end - range.begin);
        shd_units_step_done(&rank.units);
        EXPECT_EQ(0u, rank.units.folded + rank.units.trees + rank.units.open);
    });
    return got;
}

// The contract read literally: a balanced tree over `width` leaves, those that are not there zero,
// folded left from zero over the trees of all batches.
Flat Contract(const std::vector<std::vector<Flat>> &batches, size_t width, size_t n,
              shd_dtype reduce)
{
    Flat sum(n, 0.0f);
    for (const std::vector<Flat> &batch : batches) {
        for (size_t first = 0; first < batch.size(); first += width) {
            std::vector<Flat> leaves;
            for (size_t v = 0; v < width; v++) {
                leaves.push_back(first + v < batch.size() ? Rounded(batch[first + v], reduce)
                                                          : Flat(n, 0.0f));
            }
            sum = RoundedTree({sum, RoundedTree(leaves, 0, width, reduce)}, 0, 2, reduce);
        }
    }
    return sum;
}

TEST(WorldLevel, IsTheTreeOverTheWidthForEveryWorldAndStrategy)
{
    const size_t width = 8;
    for (shd_dtype reduce : {SHD_F32, SHD_BF16, SHD_F16}) {
        for (const std::vector<size_t> &sizes :
             {std::vector<size_t>{1}, {3, 8, 5}, {7, 7}, {24}, {13, 2, 1}}) {
            for (uint32_t world : {1u, 2u, 4u, 8u}) {
                for (const shd_strategy &s : Strategies(world)) {
                    SCOPED_TRACE(Describe(s));
                    World w(s, kNumel, kUnit, 4 << 20,
                            {SHD_F32, reduce, 1, {SHD_DETERMINISM_WORLD, width}});
                    std::vector<std::vector<Flat>> batches;
                    uint32_t seed = 1;
                    for (size_t size : sizes) {
                        batches.emplace_back();
                        for (size_t i = 0; i < size; i++) {
                            Flat flat = RandomFlat(w.layout(), 0, seed++);
                            for (size_t k = 0; k < 2000; k++) { // zeros of either sign
                                flat[k] = (k + i) % 3 == 0 || k % 2 == 0 ? -0.0f : flat[k];
                            }
                            batches.back().push_back(flat);
                        }
                    }
                    const size_t n = static_cast<size_t>(w.layout().units[0].padded);
                    const Flat want = Contract(batches, width, n, reduce);
                    const std::vector<Flat> got = Accumulate(&w, s, batches);
                    for (uint32_t r = 0; r < world; r++) {
                        const size_t part = n / s.o, begin = part * shd_strategy_index_o(&s, r);
                        ASSERT_EQ(part, got[r].size());
                        EXPECT_EQ(0, std::memcmp(want.data() + begin, got[r].data(),
                                                 part * sizeof(float)))
                            << "rank " << r << " " << shd_dtype_name(reduce);
                    }
                }
            }
        }
    }
}

// Each rank folds its own leaves; the sums are added once, as one tree.
TEST(RunLevel, AddsWholeGradientsOncePerStep)
{
    for (shd_dtype reduce : {SHD_F32, SHD_BF16}) {
        for (uint32_t world : {1u, 2u, 3u, 4u, 6u}) {
            for (const shd_strategy &s : Strategies(world)) {
                SCOPED_TRACE(Describe(s));
                World w(s, kNumel, kUnit, 4 << 20,
                        {SHD_F32, reduce, 1, {SHD_DETERMINISM_RUN, world}});
                std::vector<std::vector<Flat>> rounds(3);
                std::vector<Flat> own(world), sums;
                for (uint32_t j = 0; j < 3; j++) {
                    for (uint32_t r = 0; r < world; r++) {
                        rounds[j].push_back(RandomFlat(w.layout(), 0, 10 * j + r));
                        const Flat leaf = Rounded(rounds[j].back(), reduce);
                        own[r] = j == 0 ? leaf : RoundedTree({own[r], leaf}, 0, 2, reduce);
                    }
                    std::vector<Flat> leaves;
                    for (const Flat &leaf : rounds[j]) {
                        leaves.push_back(Rounded(leaf, reduce));
                    }
                    sums.push_back(RoundedTree(leaves, 0, world, reduce));
                }
                const Flat each_round = RoundedTree(
                    {RoundedTree({sums[0], sums[1]}, 0, 2, reduce), sums[2]}, 0, 2, reduce);
                const Flat want = s.g == 1 ? RoundedTree(own, 0, world, reduce) : each_round;
                for (int step = 0; step < 2; step++) { // the second must not see the first
                    const std::vector<Flat> got = Accumulate(&w, s, rounds);
                    for (uint32_t r = 0; r < world; r++) {
                        const size_t part = want.size() / s.o;
                        const size_t begin = part * shd_strategy_index_o(&s, r);
                        EXPECT_TRUE(got[r] == Flat(want.begin() + static_cast<long>(begin),
                                                   want.begin() + static_cast<long>(begin + part)))
                            << "rank " << r << " step " << step << shd_dtype_name(reduce);
                    }
                }
            }
        }
    }
}

} // namespace
