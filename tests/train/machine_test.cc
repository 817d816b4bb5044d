// Machines as they are asked for: defaults, and refusals that name the flag.
#include "daemon/train/machine.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>

namespace
{

Shard__V1__Machine Asked()
{
    Shard__V1__Machine m = SHARD__V1__MACHINE__INIT;
    m.ranks_per_node = 4;
    m.flops = 1e12;
    m.node_bandwidth = 1e9;
    m.net_bandwidth = 1e8;
    return m;
}

std::string Refused(const Shard__V1__Machine &in, uint32_t world)
{
    shd_machine out;
    shd_error err = {};
    EXPECT_EQ(SHD_EINVAL, shd_machine_resolve(&in, world, &out, &err));
    return err.message;
}

TEST(Machine, WhatIsNotSaidIsOneNodeOfAnySpeed)
{
    const Shard__V1__Machine nothing = SHARD__V1__MACHINE__INIT;
    shd_machine out;
    ASSERT_EQ(0, shd_machine_resolve(&nothing, 12, &out, nullptr));
    EXPECT_EQ(12u, out.ranks_per_node);
    EXPECT_EQ(0u, out.device_memory);
    EXPECT_EQ(0, out.flops);
}

TEST(Machine, IsTakenOver)
{
    Shard__V1__Machine in = Asked();
    in.device_memory = 80;
    in.memory_bandwidth = 7;
    in.node_latency = 1e-6;
    in.net_latency = 2e-6;
    shd_machine out;
    ASSERT_EQ(0, shd_machine_resolve(&in, 8, &out, nullptr));
    EXPECT_EQ(4u, out.ranks_per_node);
    EXPECT_EQ(80u, out.device_memory);
    EXPECT_EQ(1e12, out.flops);
    EXPECT_EQ(7, out.memory_bandwidth);
    EXPECT_EQ(1e9, out.node_bandwidth);
    EXPECT_EQ(1e8, out.net_bandwidth);
    EXPECT_EQ(1e-6, out.node_latency);
    EXPECT_EQ(2e-6, out.net_latency);
}

TEST(Machine, NodesAreAlike)
{
    Shard__V1__Machine in = Asked();
    EXPECT_NE(Refused(in, 6).find("--ranks-per-node 4 does not divide"), std::string::npos);
    EXPECT_NE(Refused(in, 2).find("--ranks-per-node 4: there are only 2"), std::string::npos);
}

// A time without the links that it depends on would be a guess.
TEST(Machine, TimeNeedsTheLinksThereAre)
{
    Shard__V1__Machine in = Asked();
    in.node_bandwidth = 0;
    EXPECT_NE(Refused(in, 8).find("--node-bandwidth"), std::string::npos);
    in = Asked();
    in.net_bandwidth = 0;
    EXPECT_NE(Refused(in, 8).find("--net-bandwidth"), std::string::npos);
    shd_machine out;
    EXPECT_EQ(0, shd_machine_resolve(&in, 4, &out, nullptr)) << "one node";
    in.ranks_per_node = 1;
    in.node_bandwidth = 0;
    in.net_bandwidth = 1;
    EXPECT_EQ(0, shd_machine_resolve(&in, 4, &out, nullptr)) << "one rank a node";
    in = Asked();
    in.flops = in.node_bandwidth = in.net_bandwidth = 0;
    EXPECT_EQ(0, shd_machine_resolve(&in, 8, &out, nullptr)) << "no time is asked for";
}

TEST(Machine, NonsenseIsRefusedByName)
{
    const struct {
        const char *flag;
        double Shard__V1__Machine::*field;
    } fields[] = {
        {"--flops", &Shard__V1__Machine::flops},
        {"--memory-bandwidth", &Shard__V1__Machine::memory_bandwidth},
        {"--node-bandwidth", &Shard__V1__Machine::node_bandwidth},
        {"--net-bandwidth", &Shard__V1__Machine::net_bandwidth},
        {"--node-latency", &Shard__V1__Machine::node_latency},
        {"--net-latency", &Shard__V1__Machine::net_latency},
    };
    for (const auto &f : fields) {
        for (double bad : {-1.0, std::nan(""), HUGE_VAL, 1e30}) {
            Shard__V1__Machine in = Asked();
            in.*f.field = bad;
            EXPECT_EQ(0u, Refused(in, 8).find(f.flag)) << bad;
        }
    }
}

} // namespace
