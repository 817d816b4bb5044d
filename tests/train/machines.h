// Models by configuration alone, and machines to plan them for. For tests.
#ifndef TESTS_TRAIN_MACHINES_H
#define TESTS_TRAIN_MACHINES_H

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <string>

#include "daemon/model/hf_config.h"
#include "tests/train/engine.h"

namespace shd
{

inline shd_model_config ReadConfig(const std::string &name)
{
    std::ifstream file("tests/train/configs/" + name + ".json");
    std::stringstream text;
    text << file.rdbuf();
    shd_model_config config = {};
    shd_error err = {};
    EXPECT_EQ(0, shd_hf_config_parse(text.str().data(), text.str().size(), &config, nullptr, &err))
        << name << ": " << err.message;
    return config;
}

// A specification of one micro-batch of one sequence on every rank, in bf16.
inline shd_spec LargeSpec(const shd_model_config &model, const std::string &strategy,
                          uint32_t world, uint32_t seq_len)
{
    shd_spec spec = SmallSpec(strategy, world);
    spec.model = model;
    spec.dtype = SHD_BF16;
    spec.micro_batch = 1;
    spec.global_batch = world;
    spec.seq_len = seq_len;
    return spec;
}

// Nodes of eight ranks: 400 TFLOP/s each, 3 TB/s of memory, 450 GB/s to each other, 50 GB/s out.
inline shd_machine Nodes(uint32_t ranks_per_node = 8)
{
    shd_machine machine = {};
    machine.ranks_per_node = ranks_per_node;
    machine.flops = 400e12;
    machine.memory_bandwidth = 3e12;
    machine.node_bandwidth = 450e9;
    machine.net_bandwidth = 50e9;
    machine.node_latency = 2e-6;
    machine.net_latency = 5e-6;
    return machine;
}

} // namespace shd

#endif
