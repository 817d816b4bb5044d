// The simulation of lanes and links against times worked out by hand, and against what must hold of
// any schedule.
#include "daemon/train/simulate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace
{

class Program
{
  public:
    uint32_t Gather(double inside, double between = 0, double latency = 0, double seconds = 0)
    {
        return Add(SHD_INSTR_GATHER, SHD_LANE_GATHER, {seconds, latency, inside, between});
    }
    uint32_t Reduce(double inside, double seconds = 0)
    {
        return Add(SHD_INSTR_REDUCE, SHD_LANE_REDUCE, {seconds, 0, inside, 0});
    }
    uint32_t Compute(double seconds)
    {
        return Add(SHD_INSTR_FORWARD, SHD_LANE_COMPUTE, {seconds, 0, 0, 0});
    }
    uint32_t Wait(uint32_t for_what)
    {
        const uint32_t i = Add(SHD_INSTR_WAIT_GATHER, SHD_LANE_COMPUTE, {});
        instrs[i].waits_for = for_what;
        return i;
    }
    shd_sim_result Run(double inside = 1, double between = 1)
    {
        const shd_sim_links links = {inside, between};
        events.resize(instrs.size());
        return shd_simulate(instrs.data(), static_cast<uint32_t>(instrs.size()), costs.data(),
                            &links, events.data());
    }
    // By instruction.
    const shd_sim_event &Event(uint32_t i) const
    {
        return *std::find_if(events.begin(), events.end(),
                             [i](const shd_sim_event &e) { return e.instruction == i; });
    }
    std::vector<uint32_t> Order() const
    {
        std::vector<uint32_t> order;
        for (const shd_sim_event &e : events) {
            order.push_back(e.instruction);
        }
        return order;
    }

    std::vector<shd_instr> instrs;
    std::vector<shd_sim_cost> costs;
    std::vector<shd_sim_event> events;

  private:
    uint32_t Add(shd_instr_kind kind, shd_lane lane, shd_sim_cost cost)
    {
        shd_instr instr = {};
        instr.kind = kind;
        instr.lane = lane;
        instrs.push_back(instr);
        costs.push_back(cost);
        return static_cast<uint32_t>(instrs.size()) - 1;
    }
};

TEST(Simulate, NothingTakesNoTime)
{
    Program p;
    EXPECT_EQ(0.0, p.Run().seconds);
    p.Wait(p.Gather(0));
    EXPECT_EQ(0.0, p.Run().seconds);
}

// Gathers of 3 s before computing 2 s, one after another: nothing goes on beside anything.
TEST(Simulate, WithoutPrefetchEverythingIsExposed)
{
    Program p;
    for (int i = 0; i < 4; i++) {
        p.Wait(p.Gather(3));
        p.Compute(2);
    }
    const shd_sim_result r = p.Run();
    EXPECT_DOUBLE_EQ(20, r.seconds);
    EXPECT_DOUBLE_EQ(8, r.compute);
    EXPECT_DOUBLE_EQ(12, r.exposed);
}

// The next gather is queued before computing: all but the first go on beside compute, 1 s longer
// each.
TEST(Simulate, WithPrefetchOnlyTheRestIs)
{
    Program p;
    uint32_t gather = p.Gather(3);
    for (int i = 0; i < 4; i++) {
        const uint32_t next = i < 3 ? p.Gather(3) : 0;
        p.Wait(gather);
        p.Compute(2);
        gather = next;
    }
    const shd_sim_result r = p.Run();
    EXPECT_DOUBLE_EQ(4 * 3 + 2, r.seconds);
    EXPECT_DOUBLE_EQ(3 + 3 * 1, r.exposed);
    EXPECT_EQ(0u, p.Event(0).begin);
    EXPECT_DOUBLE_EQ(3, p.Event(1).begin) << "a lane works in order";
}

TEST(Simulate, LanesShareALink)
{
    Program p;
    const uint32_t gather = p.Gather(2), reduce = p.Reduce(6);
    p.Wait(gather);
    p.Wait(reduce);
    EXPECT_DOUBLE_EQ(8, p.Run().seconds) << "8 bytes through 1 byte per second";
    EXPECT_DOUBLE_EQ(4, p.Event(gather).end) << "half of it each while both are on their way";
    EXPECT_DOUBLE_EQ(8, p.Event(reduce).end);
    EXPECT_DOUBLE_EQ(4, p.Run(2).seconds);
}

TEST(Simulate, LinksOfTwoKindsAreTwo)
{
    Program p;
    const uint32_t gather = p.Gather(0, 5), reduce = p.Reduce(4);
    p.Wait(gather);
    p.Wait(reduce);
    EXPECT_DOUBLE_EQ(5, p.Run().seconds);
    EXPECT_DOUBLE_EQ(4, p.Event(reduce).end);
    Program both;
    both.Wait(both.Gather(4, 6));
    EXPECT_DOUBLE_EQ(6, both.Run().seconds) << "a collective uses both at once";
    EXPECT_DOUBLE_EQ(4, both.Run(1, 0).seconds) << "0 is no limit";
    EXPECT_DOUBLE_EQ(0, both.Run(0, 0).seconds);
}

TEST(Simulate, LatencyThenBytesThenOps)
{
    Program p;
    const uint32_t gather = p.Gather(4, 0, 2, 1), reduce = p.Reduce(2, 10);
    p.Compute(1);
    p.Wait(gather);
    p.Wait(reduce);
    const shd_sim_result r = p.Run();
    EXPECT_DOUBLE_EQ(2 + 4 + 1, p.Event(gather).end) << "it waited while the other one moved";
    EXPECT_DOUBLE_EQ(12, p.Event(reduce).end);
    EXPECT_DOUBLE_EQ(12, r.seconds);
    EXPECT_DOUBLE_EQ(1, r.compute) << "the sums of another lane are not the rank's thread's";
}

TEST(Simulate, EventsComeInTheOrderOfTheirBeginning)
{
    Program p;
    const uint32_t a = p.Gather(3), b = p.Gather(1);
    const uint32_t wa = p.Wait(a), ca = p.Compute(5), wb = p.Wait(b), cb = p.Compute(1);
    p.Run();
    EXPECT_EQ((std::vector<uint32_t>{a, wa, b, ca, wb, cb}), p.Order());
    EXPECT_DOUBLE_EQ(0, p.Event(wa).begin);
    EXPECT_DOUBLE_EQ(3, p.Event(wa).end);
    EXPECT_DOUBLE_EQ(8, p.Event(wb).begin);
    EXPECT_DOUBLE_EQ(8, p.Event(wb).end) << "it was there already";
}

// Of any program: no lane is faster than its work, nothing is slower than one after another, no
// lane does two things at once, no wait ends before what it waits for.
TEST(Simulate, BoundsOfAnyProgram)
{
    std::mt19937 random(7);
    const auto draw = [&](int n) { return static_cast<double>(random() % n); };
    for (int round = 0; round < 200; round++) {
        Program p;
        std::vector<uint32_t> open;
        for (int i = 0; i < 60; i++) {
            switch (random() % 4) {
            case 0:
                open.push_back(p.Gather(draw(5), draw(5), draw(2), draw(2)));
                break;
            case 1:
                open.push_back(p.Reduce(draw(5), draw(3)));
                break;
            case 2:
                p.Compute(draw(6));
                break;
            default:
                if (!open.empty()) {
                    p.Wait(open.front());
                    open.erase(open.begin());
                }
            }
        }
        for (uint32_t i : open) {
            p.Wait(i);
        }
        const double inside = 1 + draw(3), between = 1 + draw(3);
        const shd_sim_result r = p.Run(inside, between);
        const shd_sim_links links = {inside, between};
        double lane[SHD_LANE_COUNT] = {}, bytes[2] = {}, serial = 0;
        for (size_t i = 0; i < p.instrs.size(); i++) {
            const double alone = shd_sim_seconds(&p.costs[i], &links);
            lane[p.instrs[i].lane] += alone;
            serial += alone;
            bytes[0] += p.costs[i].inside / inside;
            bytes[1] += p.costs[i].between / between;
        }
        const double eps = 1e-9;
        for (double least : {lane[0], lane[1], lane[2], bytes[0], bytes[1]}) {
            EXPECT_GE(r.seconds + eps, least);
        }
        EXPECT_LE(r.seconds, serial + eps);
        EXPECT_DOUBLE_EQ(r.seconds, r.compute + r.exposed);
        double free_at[SHD_LANE_COUNT] = {};
        for (const shd_sim_event &e : p.events) {
            EXPECT_LE(e.begin, e.end);
            EXPECT_GE(e.begin + eps, free_at[e.lane]);
            free_at[e.lane] = e.end;
            const shd_instr &instr = p.instrs[e.instruction];
            if (instr.kind == SHD_INSTR_WAIT_GATHER) {
                EXPECT_GE(e.end + eps, p.Event(instr.waits_for).end);
            }
        }
    }
}

} // namespace
