#include "daemon/service/sched.h"

#include <gtest/gtest.h>

#include <vector>

namespace
{
struct Rig {
    shd_sched *s;
    std::vector<shd_sched_entity *> on; // running, in the order they began
    explicit Rig(uint32_t ranks) : s(shd_sched_create(ranks)) {}
    ~Rig()
    {
        shd_sched_free(s);
    }
    void begin_all()
    {
        while (shd_sched_entity *e = shd_sched_next(s)) {
            on.push_back(e);
        }
    }
    // The one that began first ends; returns it.
    shd_sched_entity *end_one()
    {
        shd_sched_entity *e = on.front();
        on.erase(on.begin());
        shd_sched_done(s, e);
        return e;
    }
};

shd_sched_entity entity(uint32_t first, uint32_t n, uint32_t weight = 10)
{
    shd_sched_entity e{};
    e.first = first;
    e.n = n;
    e.weight = weight;
    return e;
}
} // namespace

TEST(Sched, TwoShareByWeightToWithinOneItem)
{
    Rig rig(1);
    shd_sched_entity a = entity(0, 1, 10), b = entity(0, 1, 30);
    for (auto *e : {&a, &b}) {
        shd_sched_add(rig.s, e);
        shd_sched_set_ready(rig.s, e, 1);
    }
    int na = 0;
    for (int i = 1; i <= 4000; i++) {
        rig.begin_all();
        na += rig.end_one() == &a;
        EXPECT_NEAR(na, i / 4.0, 1);
    }
}

TEST(Sched, ManyShareByWeight)
{
    Rig rig(1);
    shd_sched_entity a = entity(0, 1, 10), b = entity(0, 1, 30), c = entity(0, 1, 7);
    for (auto *e : {&a, &b, &c}) {
        shd_sched_add(rig.s, e);
        shd_sched_set_ready(rig.s, e, 1);
    }
    int na = 0, nb = 0, nc = 0;
    for (int i = 1; i <= 4700; i++) {
        rig.begin_all();
        ASSERT_EQ(rig.on.size(), 1u) << "one item on a rank";
        shd_sched_entity *e = rig.end_one();
        na += e == &a;
        nb += e == &b;
        nc += e == &c;
        EXPECT_NEAR(na, i * 10.0 / 47, 2);
        EXPECT_NEAR(nb, i * 30.0 / 47, 2);
        EXPECT_NEAR(nc, i * 7.0 / 47, 2);
    }
}

TEST(Sched, DisjointOnesRunTogetherAndAWideOneIsNotStarved)
{
    Rig rig(3);
    shd_sched_entity a = entity(0, 1), b = entity(1, 1), c = entity(2, 1), wide = entity(0, 3);
    for (auto *e : {&a, &b, &c, &wide}) {
        shd_sched_add(rig.s, e);
        shd_sched_set_ready(rig.s, e, 1);
    }
    int n_wide = 0, most = 0;
    for (int i = 0; i < 4000; i++) {
        rig.begin_all();
        most = std::max(most, (int)rig.on.size());
        n_wide += rig.end_one() == &wide;
    }
    EXPECT_EQ(most, 3);
    EXPECT_NEAR(n_wide, 1000, 10) << "as often as each of the others";
}

TEST(Sched, TimeWithoutWorkIsNotSavedUp)
{
    Rig rig(1);
    shd_sched_entity a = entity(0, 1), b = entity(0, 1);
    shd_sched_add(rig.s, &a);
    shd_sched_add(rig.s, &b);
    shd_sched_set_ready(rig.s, &a, 1);
    for (int i = 0; i < 1000; i++) {
        rig.begin_all();
        rig.end_one();
    }
    shd_sched_set_ready(rig.s, &b, 1);
    int nb = 0;
    for (int i = 0; i < 10; i++) {
        rig.begin_all();
        nb += rig.end_one() == &b;
    }
    EXPECT_EQ(nb, 5);
}

TEST(Sched, OneThatComesLateToUnevenRanksWaitsForNobodysPast)
{
    Rig rig(2);
    shd_sched_entity fast = entity(0, 1), slow = entity(1, 1), both = entity(0, 2);
    for (auto *e : {&fast, &slow, &both}) {
        shd_sched_add(rig.s, e);
    }
    shd_sched_set_ready(rig.s, &fast, 1);
    for (int i = 0; i < 10000; i++) { // rank 0 runs far ahead of rank 1
        rig.begin_all();
        rig.end_one();
    }
    shd_sched_set_ready(rig.s, &slow, 1);
    shd_sched_set_ready(rig.s, &both, 1);
    int n = 0;
    for (int i = 0; i < 300; i++) {
        rig.begin_all();
        n += rig.end_one() == &both;
    }
    EXPECT_NEAR(n, 100, 2);
}

TEST(Sched, NotReadyMeansNotServed)
{
    Rig rig(1);
    shd_sched_entity a = entity(0, 1);
    shd_sched_add(rig.s, &a);
    EXPECT_EQ(shd_sched_next(rig.s), nullptr);
    shd_sched_set_ready(rig.s, &a, 1);
    EXPECT_EQ(shd_sched_next(rig.s), &a);
    EXPECT_EQ(shd_sched_next(rig.s), nullptr) << "it runs already";
    shd_sched_set_ready(rig.s, &a, 0);
    shd_sched_done(rig.s, &a);
    EXPECT_EQ(shd_sched_next(rig.s), nullptr);
    shd_sched_remove(rig.s, &a);
}
