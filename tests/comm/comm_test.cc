// Collectives against their definition, the counters, and every way in which a group can end.
#include "daemon/comm/comm.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace
{

using Bytes = std::vector<uint8_t>;
using Counts = std::array<shd_comm_count, SHD_COMM_KIND_COUNT>;

Counts CountsOf(const shd_comm *comm)
{
    Counts counts;
    shd_comm_counts(comm, counts.data());
    return counts;
}

void ExpectSame(const Counts &a, const Counts &b)
{
    for (int k = 0; k < SHD_COMM_KIND_COUNT; k++) {
        EXPECT_EQ(a[k].bytes, b[k].bytes) << shd_comm_kind_name(static_cast<shd_comm_kind>(k));
        EXPECT_EQ(a[k].calls, b[k].calls) << shd_comm_kind_name(static_cast<shd_comm_kind>(k));
    }
}

// `size` handles, each with a device.
struct Group {
    explicit Group(uint32_t size) : comms(size), devices(size)
    {
        shd_comm_local_create(size, comms.data());
        for (auto &device : devices) {
            device = shd_device_create_cpu(1, 0);
        }
    }
    ~Group()
    {
        for (shd_comm *comm : comms) {
            shd_comm_free(comm);
        }
        for (shd_device *device : devices) {
            shd_device_free(device);
        }
    }
    uint32_t size() const
    {
        return static_cast<uint32_t>(comms.size());
    }

    // Runs fn(rank, comm, device) on a thread for each rank.
    void Run(const std::function<void(uint32_t, shd_comm *, shd_device *)> &fn)
    {
        std::vector<std::thread> threads;
        for (uint32_t r = 0; r < size(); r++) {
            threads.emplace_back([&, r] { fn(r, comms[r], devices[r]); });
        }
        for (auto &thread : threads) {
            thread.join();
        }
    }

    std::vector<shd_comm *> comms;
    std::vector<shd_device *> devices;
};

// What rank `rank` sends at byte i of call number `call`.
uint8_t Value(uint32_t call, uint32_t rank, size_t i)
{
    return static_cast<uint8_t>(call * 151u + rank * 31u + i * 7u + (i >> 8));
}

Bytes Values(uint32_t call, uint32_t rank, size_t n)
{
    Bytes out(n);
    for (size_t i = 0; i < n; i++) {
        out[i] = Value(call, rank, i);
    }
    return out;
}

// One collective of every sort, checked on the calling rank. Ranks are those of `comm`.
void CheckAllGather(shd_comm *comm, shd_device *dev, uint32_t call, size_t bytes, bool in_place)
{
    const uint32_t size = shd_comm_size(comm), rank = shd_comm_rank(comm);
    const Bytes send = Values(call, rank, bytes);
    Bytes recv(size * bytes + 1, 0xee);
    if (in_place) {
        std::copy(send.begin(), send.end(), recv.begin() + rank * bytes);
    }
    shd_error err;
    ASSERT_EQ(shd_comm_all_gather(comm, SHD_COMM_ALL_GATHER, dev,
                                  in_place ? recv.data() + rank * bytes : send.data(), recv.data(),
                                  bytes, &err),
              0)
        << err.message;
    for (uint32_t r = 0; r < size; r++) {
        const Bytes want = Values(call, r, bytes);
        ASSERT_TRUE(std::equal(want.begin(), want.end(), recv.begin() + r * bytes))
            << "rank " << rank << " from " << r << " of " << size << ", " << bytes << " bytes";
    }
    ASSERT_EQ(recv.back(), 0xee);
}

void CheckAllGatherHost(shd_comm *comm, uint32_t call, size_t bytes)
{
    const uint32_t size = shd_comm_size(comm), rank = shd_comm_rank(comm);
    const Bytes send = Values(call, rank, bytes);
    Bytes recv(size * bytes + 1, 0xee);
    ASSERT_EQ(
        shd_comm_all_gather_host(comm, SHD_COMM_CONTROL, send.data(), recv.data(), bytes, nullptr),
        0);
    for (uint32_t r = 0; r < size; r++) {
        const Bytes want = Values(call, r, bytes);
        ASSERT_TRUE(std::equal(want.begin(), want.end(), recv.begin() + r * bytes));
    }
    ASSERT_EQ(recv.back(), 0xee);
}

void CheckAllToAll(shd_comm *comm, shd_device *dev, uint32_t call, size_t bytes, size_t stride)
{
    const uint32_t size = shd_comm_size(comm), rank = shd_comm_rank(comm);
    const Bytes send = Values(call, rank, size * stride);
    Bytes recv(size * bytes + 1, 0xee);
    shd_error err;
    ASSERT_EQ(shd_comm_all_to_all(comm, SHD_COMM_REDUCE_SCATTER, dev, send.data(), stride,
                                  recv.data(), bytes, &err),
              0)
        << err.message;
    for (uint32_t r = 0; r < size; r++) {
        for (size_t i = 0; i < bytes; i++) {
            ASSERT_EQ(recv[r * bytes + i], Value(call, r, rank * stride + i));
        }
    }
    ASSERT_EQ(recv.back(), 0xee);
}

void CheckBroadcast(shd_comm *comm, shd_device *dev, uint32_t call, size_t bytes, uint32_t root)
{
    const uint32_t rank = shd_comm_rank(comm);
    const Bytes want = Values(call, root, bytes);
    Bytes buf = rank == root ? want : Bytes(bytes, 0xee);
    ASSERT_EQ(shd_comm_broadcast(comm, SHD_COMM_ALL_REDUCE, dev, buf.data(), bytes, root, nullptr),
              0);
    ASSERT_EQ(buf, want);
}

TEST(CommLocal, EveryCollectiveEqualsItsDefinition)
{
    for (uint32_t size = 1; size <= 8; size++) {
        Group group(size);
        group.Run([&](uint32_t rank, shd_comm *comm, shd_device *dev) {
            ASSERT_EQ(shd_comm_rank(comm), rank);
            ASSERT_EQ(shd_comm_size(comm), size);
            uint32_t call = 0;
            for (size_t bytes : {size_t{0}, size_t{1}, size_t{7}, size_t{100}, size_t{4099}}) {
                CheckAllGather(comm, dev, call++, bytes, false);
                CheckAllGather(comm, dev, call++, bytes, true);
                CheckAllGatherHost(comm, call++, bytes);
                CheckAllToAll(comm, dev, call++, bytes, bytes);
                CheckAllToAll(comm, dev, call++, bytes, bytes + 13);
                for (uint32_t root = 0; root < size; root++) {
                    CheckBroadcast(comm, dev, call++, bytes, root);
                }
                ASSERT_EQ(shd_comm_barrier(comm, nullptr), 0);
            }
        });
    }
}

TEST(CommLocal, SendersMayUseDifferentStrides)
{
    Group group(3);
    group.Run([&](uint32_t rank, shd_comm *comm, shd_device *dev) {
        const Bytes send = Values(0, rank, 3 * (10 + rank));
        Bytes recv(30);
        ASSERT_EQ(shd_comm_all_to_all(comm, SHD_COMM_REDUCE_SCATTER, dev, send.data(), 10 + rank,
                                      recv.data(), 10, nullptr),
                  0);
        for (uint32_t r = 0; r < 3; r++) {
            for (size_t i = 0; i < 10; i++) {
                ASSERT_EQ(recv[r * 10 + i], Value(0, r, rank * (10 + r) + i));
            }
        }
    });
}

TEST(CommLocal, ABarrierHoldsEveryRankUntilTheLastComes)
{
    Group group(4);
    std::atomic<int> came{0};
    group.Run([&](uint32_t rank, shd_comm *comm, shd_device *) {
        for (int round = 1; round <= 50; round++) {
            if (rank == static_cast<uint32_t>(round) % 4) {
                usleep(500);
            }
            came++;
            ASSERT_EQ(shd_comm_barrier(comm, nullptr), 0);
            ASSERT_GE(came.load(), 4 * round);
        }
    });
}

// The same calls on any handle; used to compare backends.
void CallSequence(shd_comm *comm, shd_device *dev)
{
    const uint32_t size = shd_comm_size(comm);
    Bytes a(size * 512), b(size * 512), host(size * 8);
    ASSERT_EQ(shd_comm_all_gather(comm, SHD_COMM_ALL_GATHER, dev, a.data(), b.data(), 100, nullptr),
              0);
    ASSERT_EQ(shd_comm_all_to_all(comm, SHD_COMM_REDUCE_SCATTER, dev, a.data(), 512, b.data(), 256,
                                  nullptr),
              0);
    ASSERT_EQ(
        shd_comm_all_to_all(comm, SHD_COMM_REDUCE_SCATTER, dev, a.data(), 8, b.data(), 8, nullptr),
        0);
    ASSERT_EQ(shd_comm_all_gather(comm, SHD_COMM_ALL_REDUCE, dev, a.data(), b.data(), 17, nullptr),
              0);
    ASSERT_EQ(shd_comm_broadcast(comm, SHD_COMM_NORM, dev, a.data(), 33, 0, nullptr), 0);
    ASSERT_EQ(shd_comm_all_gather_host(comm, SHD_COMM_CONTROL, a.data(), host.data(), 8, nullptr),
              0);
    ASSERT_EQ(shd_comm_barrier(comm, nullptr), 0);
}

TEST(CommCounts, AreWhatEachRankSends)
{
    for (uint32_t size : {1u, 2u, 3u, 8u}) {
        Group group(size);
        group.Run([](uint32_t, shd_comm *comm, shd_device *dev) { CallSequence(comm, dev); });
        for (uint32_t r = 0; r < size; r++) {
            const uint64_t others = size - 1;
            const Counts counts = CountsOf(group.comms[r]);
            EXPECT_EQ(counts[SHD_COMM_ALL_GATHER].bytes, 100 * others);
            EXPECT_EQ(counts[SHD_COMM_ALL_GATHER].calls, 1u);
            EXPECT_EQ(counts[SHD_COMM_REDUCE_SCATTER].bytes, (256 + 8) * others);
            EXPECT_EQ(counts[SHD_COMM_REDUCE_SCATTER].calls, 2u);
            EXPECT_EQ(counts[SHD_COMM_ALL_REDUCE].bytes, 17 * others);
            EXPECT_EQ(counts[SHD_COMM_ALL_REDUCE].calls, 1u);
            EXPECT_EQ(counts[SHD_COMM_NORM].bytes, r == 0 ? 33 * others : 0);
            EXPECT_EQ(counts[SHD_COMM_NORM].calls, 1u);
            EXPECT_EQ(counts[SHD_COMM_CONTROL].bytes, 8 * others);
            EXPECT_EQ(counts[SHD_COMM_CONTROL].calls, 2u);
        }
    }
}

TEST(CommCounts, ACallThatFailsCountsNothing)
{
    Group group(2);
    shd_comm_abort(group.comms[1], SHD_ECANCELLED, "cancelled");
    EXPECT_EQ(shd_comm_barrier(group.comms[0], nullptr), SHD_ECANCELLED);
    ExpectSame(CountsOf(group.comms[0]), Counts{});
}

TEST(CommNull, CountsAsTheLocalOneDoes)
{
    for (uint32_t size : {1u, 2u, 5u}) {
        Group group(size);
        group.Run([](uint32_t, shd_comm *comm, shd_device *dev) { CallSequence(comm, dev); });
        shd_device *dev = shd_device_create_null(1);
        for (uint32_t r = 0; r < size; r++) {
            shd_comm *comm = shd_comm_null_create(r, size);
            EXPECT_EQ(shd_comm_rank(comm), r);
            EXPECT_EQ(shd_comm_size(comm), size);
            CallSequence(comm, dev);
            ExpectSame(CountsOf(comm), CountsOf(group.comms[r]));
            shd_comm_free(comm);
        }
        shd_device_free(dev);
    }
}

TEST(CommNull, MovesNothingAndRepeatsHostValues)
{
    shd_device *dev = shd_device_create_null(1);
    shd_comm *comm = shd_comm_null_create(2, 4);
    Bytes send = Values(0, 2, 10), recv(40, 0xee);
    ASSERT_EQ(
        shd_comm_all_gather(comm, SHD_COMM_ALL_GATHER, dev, send.data(), recv.data(), 10, nullptr),
        0);
    EXPECT_EQ(recv, Bytes(40, 0xee));
    ASSERT_EQ(
        shd_comm_all_gather_host(comm, SHD_COMM_CONTROL, send.data(), recv.data(), 10, nullptr), 0);
    for (int r = 0; r < 4; r++) {
        EXPECT_TRUE(std::equal(send.begin(), send.end(), recv.begin() + r * 10));
    }

    const uint32_t members[] = {0, 2};
    shd_comm *child = nullptr;
    ASSERT_EQ(shd_comm_split(comm, members, 2, &child, nullptr), 0);
    EXPECT_EQ(shd_comm_rank(child), 1u);
    EXPECT_EQ(shd_comm_size(child), 2u);
    const Counts before = CountsOf(comm);
    ASSERT_EQ(shd_comm_broadcast(child, SHD_COMM_NORM, dev, send.data(), 10, 1, nullptr), 0);
    EXPECT_EQ(CountsOf(comm)[SHD_COMM_NORM].bytes, before[SHD_COMM_NORM].bytes + 10);

    shd_error err;
    const uint32_t strangers[] = {0, 1};
    shd_comm *none = nullptr;
    EXPECT_EQ(shd_comm_split(comm, strangers, 2, &none, &err), SHD_ECOMM);
    EXPECT_STREQ(err.message, "split: rank 2 is not in its own group");

    shd_comm_abort(child, SHD_ECANCELLED, "stopped by a user");
    EXPECT_EQ(shd_comm_barrier(comm, &err), SHD_ECANCELLED);
    EXPECT_STREQ(err.message, "stopped by a user");
    shd_comm_free(child);
    shd_comm_free(comm);
    shd_device_free(dev);
}

// What a rank sends over its node's edge: all-gathers as rings (Thakur, Rabenseifner & Gropp 2005),
// all-to-alls straight.
struct NodeCase {
    uint32_t world, per_node;
    std::vector<uint32_t> members; // of rank 0's group, in any order
    uint32_t least, most, nodes;   // by hand
};

TEST(CommNull, CostsOfNodes)
{
    const NodeCase cases[] = {
        {8, 8, {0, 1, 2, 3, 4, 5, 6, 7}, 8, 8, 1}, // one node
        {8, 4, {0, 1, 2, 3, 4, 5, 6, 7}, 4, 4, 2}, // two
        {8, 4, {0, 4, 2, 6, 1, 5, 3, 7}, 4, 4, 2}, // in another order
        {8, 4, {3, 2, 1, 0}, 4, 4, 1},             // a node's
        {8, 2, {0, 1, 2, 3}, 2, 2, 2},             // two nodes of four
        {8, 4, {0, 4}, 1, 1, 2},                   // one of each node
        {8, 4, {0, 2, 4, 6}, 2, 2, 2},             // every second
        {12, 4, {0, 1, 2, 3, 4, 5}, 2, 4, 2},      // six of nodes of four
        {12, 6, {0, 1, 2, 3}, 2, 4, 2},            // the second group lies on both nodes
        {6, 4, {0, 1, 2, 3, 4, 5}, 2, 4, 2},       // the last node is not full
        {16, 8, {0}, 1, 1, 1},
    };
    const uint64_t bytes = 1000;
    for (const NodeCase &c : cases) {
        const uint32_t n = static_cast<uint32_t>(c.members.size());
        shd_comm *world = shd_comm_null_create_nodes(0, c.world, c.per_node), *group = nullptr;
        shd_device *dev = shd_device_create_null(1);
        ASSERT_EQ(0, shd_comm_split(world, c.members.data(), n, &group, nullptr));
        Bytes buf(bytes * n);
        ASSERT_EQ(0, shd_comm_all_gather(group, SHD_COMM_ALL_GATHER, dev, buf.data(), buf.data(),
                                         bytes, nullptr));
        ASSERT_EQ(0, shd_comm_all_to_all(group, SHD_COMM_REDUCE_SCATTER, dev, buf.data(), bytes,
                                         buf.data(), bytes, nullptr));
        shd_comm_cost costs[SHD_COMM_KIND_COUNT];
        shd_comm_null_costs(world, costs);
        const uint64_t all = bytes * (n - 1);
        const uint64_t ring = c.nodes > 1 ? (all + c.least - 1) / c.least : 0;
        const uint64_t straight = c.nodes > 1 ? bytes * (n - c.least) : 0;
        EXPECT_EQ(ring, costs[SHD_COMM_ALL_GATHER].between);
        EXPECT_EQ(straight, costs[SHD_COMM_REDUCE_SCATTER].between);
        for (shd_comm_kind kind : {SHD_COMM_ALL_GATHER, SHD_COMM_REDUCE_SCATTER}) {
            EXPECT_EQ(all, costs[kind].inside + costs[kind].between);
            EXPECT_EQ(CountsOf(world)[kind].bytes, costs[kind].inside + costs[kind].between);
            EXPECT_DOUBLE_EQ(std::log2(c.most), costs[kind].node_hops);
            EXPECT_DOUBLE_EQ(std::log2(c.nodes), costs[kind].net_hops);
        }
        shd_comm_free(group);
        shd_comm_free(world);
        shd_device_free(dev);
    }
}

TEST(CommNull, CostsAreCountedOnlyOnNodes)
{
    shd_comm *plain = shd_comm_null_create(0, 4);
    ASSERT_EQ(0, shd_comm_barrier(plain, nullptr));
    Group local(1);
    for (shd_comm *comm : {plain, local.comms[0]}) {
        shd_comm_cost costs[SHD_COMM_KIND_COUNT];
        shd_comm_null_costs(comm, costs);
        for (const shd_comm_cost &cost : costs) {
            EXPECT_EQ(0u, cost.inside + cost.between);
            EXPECT_EQ(0.0, cost.node_hops + cost.net_hops);
        }
    }
    shd_comm_free(plain);
}

TEST(CommArguments, AreRefusedBeforeAnyoneWaits)
{
    Group group(2);
    Bytes buf(64);
    shd_error err;
    EXPECT_EQ(
        shd_comm_broadcast(group.comms[0], SHD_COMM_NORM, group.devices[0], buf.data(), 4, 2, &err),
        SHD_EINVAL);
    EXPECT_STREQ(err.message, "broadcast: root 2 is not one of 2 ranks");
    EXPECT_EQ(shd_comm_all_to_all(group.comms[0], SHD_COMM_NORM, group.devices[0], buf.data(), 7,
                                  buf.data(), 8, &err),
              SHD_EINVAL);
    EXPECT_STREQ(err.message, "all_to_all: stride 7 is below the block's 8 bytes");
}

TEST(CommNames, OfKinds)
{
    EXPECT_STREQ(shd_comm_kind_name(SHD_COMM_ALL_GATHER), "all_gather");
    EXPECT_STREQ(shd_comm_kind_name(SHD_COMM_REDUCE_SCATTER), "reduce_scatter");
    EXPECT_STREQ(shd_comm_kind_name(SHD_COMM_ALL_REDUCE), "all_reduce");
    EXPECT_STREQ(shd_comm_kind_name(SHD_COMM_NORM), "norm");
    EXPECT_STREQ(shd_comm_kind_name(SHD_COMM_CONTROL), "control");
    EXPECT_STREQ(shd_comm_kind_name(SHD_COMM_KIND_COUNT), "?");
}

// ---- aborts ----

TEST(CommAbort, WakesEveryBlockedRankAndFailsLaterCalls)
{
    for (uint32_t size : {2u, 5u}) {
        Group group(size);
        std::thread aborter([&] {
            usleep(20000);
            shd_comm_abort(group.comms[0], SHD_ECANCELLED, "job 7 was cancelled");
            shd_comm_abort(group.comms[0], SHD_EIO, "too late to matter");
        });
        group.Run([&](uint32_t rank, shd_comm *comm, shd_device *dev) {
            if (rank == size - 1) {
                return; // never comes
            }
            shd_error err;
            Bytes buf(size);
            ASSERT_EQ(shd_comm_all_gather(comm, SHD_COMM_ALL_GATHER, dev, &buf[rank], buf.data(), 1,
                                          &err),
                      SHD_ECANCELLED);
            ASSERT_STREQ(err.message, "job 7 was cancelled");
        });
        aborter.join();
        shd_error err;
        EXPECT_EQ(shd_comm_barrier(group.comms[size - 1], &err), SHD_ECANCELLED);
        EXPECT_STREQ(err.message, "job 7 was cancelled");
        EXPECT_EQ(shd_comm_barrier(group.comms[0], nullptr), SHD_ECANCELLED);
    }
}

TEST(CommAbort, IsSeenBetweenCollectives)
{
    Group group(1);
    shd_error err;
    EXPECT_EQ(shd_comm_check(group.comms[0], &err), 0);
    shd_comm_abort(group.comms[0], SHD_ECANCELLED, "cancelled");
    EXPECT_EQ(shd_comm_check(group.comms[0], &err), SHD_ECANCELLED);
    EXPECT_STREQ(err.message, "cancelled");
    ExpectSame(CountsOf(group.comms[0]), Counts{});
}

TEST(CommAbort, OfASingleRank)
{
    Group group(1);
    EXPECT_EQ(shd_comm_barrier(group.comms[0], nullptr), 0);
    shd_comm_abort(group.comms[0], 5, "a number that is no error becomes one");
    EXPECT_EQ(shd_comm_barrier(group.comms[0], nullptr), SHD_ECOMM);
}

TEST(CommAbort, ReachesRelativesBothWays)
{
    for (bool from_child : {false, true}) {
        Group group(4);
        std::vector<shd_comm *> children(4);
        group.Run([&](uint32_t rank, shd_comm *comm, shd_device *) {
            const uint32_t members[] = {rank / 2 * 2, rank / 2 * 2 + 1};
            ASSERT_EQ(shd_comm_split(comm, members, 2, &children[rank], nullptr), 0);
        });
        std::thread aborter([&] {
            usleep(10000);
            shd_comm_abort(from_child ? children[3] : group.comms[3], SHD_ENOMEM, "no memory");
        });
        // Rank 0 waits in the whole, rank 2 in a part; nobody else comes.
        group.Run([&](uint32_t rank, shd_comm *comm, shd_device *) {
            if (rank == 0) {
                EXPECT_EQ(shd_comm_barrier(comm, nullptr), SHD_ENOMEM);
            } else if (rank == 2) {
                EXPECT_EQ(shd_comm_barrier(children[rank], nullptr), SHD_ENOMEM);
            }
        });
        aborter.join();
        EXPECT_EQ(shd_comm_barrier(children[1], nullptr), SHD_ENOMEM);
        for (shd_comm *child : children) {
            shd_comm_free(child);
        }
    }
}

TEST(CommAbort, LeavesOtherFamiliesAlone)
{
    Group a(2), b(2);
    shd_comm_abort(a.comms[0], SHD_ECANCELLED, "cancelled");
    b.Run([](uint32_t, shd_comm *comm, shd_device *) {
        EXPECT_EQ(shd_comm_barrier(comm, nullptr), 0);
    });
}

// A rank frees what it sent as soon as its call returns, also when the call failed.
TEST(CommAbort, AtAnyMomentNobodyReadsFreedMemory)
{
    std::mt19937 random(5);
    for (int round = 0; round < 60; round++) {
        Group group(4);
        const unsigned delay = random() % 3000;
        std::thread aborter([&] {
            usleep(delay);
            shd_comm_abort(group.comms[1], SHD_ECANCELLED, "cancelled");
        });
        group.Run([&](uint32_t rank, shd_comm *comm, shd_device *dev) {
            for (;;) {
                auto send = std::make_unique<Bytes>(4 * 20000, static_cast<uint8_t>(rank));
                Bytes recv(4 * 20000);
                const int rc = shd_comm_all_to_all(comm, SHD_COMM_REDUCE_SCATTER, dev, send->data(),
                                                   20000, recv.data(), 20000, nullptr);
                std::fill(send->begin(), send->end(), 0xff);
                send.reset();
                if (rc != 0) {
                    ASSERT_EQ(rc, SHD_ECANCELLED);
                    return;
                }
                for (uint32_t r = 0; r < 4; r++) {
                    ASSERT_EQ(recv[r * 20000 + 19999], r);
                }
            }
        });
        aborter.join();
    }
}

// ---- calls that do not match ----

using Call = std::function<int(shd_comm *, shd_device *, shd_error *)>;

// Rank 0 and 1 call `first`, rank 2 calls `other`.
void ExpectMismatch(const Call &first, const Call &other, const std::string &message)
{
    Group group(3);
    group.Run([&](uint32_t rank, shd_comm *comm, shd_device *dev) {
        shd_error err;
        ASSERT_EQ((rank == 2 ? other : first)(comm, dev, &err), SHD_ECOMM);
        ASSERT_EQ(err.message, "collectives do not match: " + message);
        ASSERT_EQ(shd_comm_barrier(comm, nullptr), SHD_ECOMM);
    });
}

Call Gather(size_t bytes, shd_comm_kind kind = SHD_COMM_ALL_GATHER)
{
    return [=](shd_comm *comm, shd_device *dev, shd_error *err) {
        Bytes send(bytes), recv(3 * bytes);
        return shd_comm_all_gather(comm, kind, dev, send.data(), recv.data(), bytes, err);
    };
}

Call Broadcast(uint32_t root)
{
    return [=](shd_comm *comm, shd_device *dev, shd_error *err) {
        Bytes buf(16);
        return shd_comm_broadcast(comm, SHD_COMM_CONTROL, dev, buf.data(), 16, root, err);
    };
}

TEST(CommMismatch, EndsTheGroupAndNamesBoth)
{
    ExpectMismatch(
        Gather(100),
        [](shd_comm *comm, shd_device *dev, shd_error *err) {
            Bytes send(300), recv(300);
            return shd_comm_all_to_all(comm, SHD_COMM_REDUCE_SCATTER, dev, send.data(), 100,
                                       recv.data(), 100, err);
        },
        "rank 0 calls all_gather of 100 bytes (all_gather), "
        "rank 2 calls all_to_all of 100 bytes (reduce_scatter)");
    ExpectMismatch(Gather(100), Gather(104),
                   "rank 0 calls all_gather of 100 bytes (all_gather), "
                   "rank 2 calls all_gather of 104 bytes (all_gather)");
    ExpectMismatch(Gather(8), Gather(8, SHD_COMM_NORM),
                   "rank 0 calls all_gather of 8 bytes (all_gather), "
                   "rank 2 calls all_gather of 8 bytes (norm)");
    ExpectMismatch(Broadcast(0), Broadcast(1),
                   "rank 0 calls broadcast of 16 bytes from rank 0 (control), "
                   "rank 2 calls broadcast of 16 bytes from rank 1 (control)");
    ExpectMismatch(
        [](shd_comm *comm, shd_device *, shd_error *err) { return shd_comm_barrier(comm, err); },
        [](shd_comm *comm, shd_device *, shd_error *err) {
            const uint32_t members[] = {2};
            shd_comm *child = nullptr;
            return shd_comm_split(comm, members, 1, &child, err);
        },
        "rank 0 calls barrier, rank 2 calls split");
}

// ---- time limits ----

TEST(CommTimeout, NamesTheCollectiveAndTheMissingRank)
{
    Group group(3);
    const auto start = std::chrono::steady_clock::now();
    group.Run([&](uint32_t rank, shd_comm *comm, shd_device *dev) {
        shd_error err;
        if (rank == 1) {
            return;
        }
        shd_comm_set_timeout(comm, rank == 0 ? 50 : 86400000); // which nobody waits for
        Bytes buf(3 * 10);
        ASSERT_EQ(shd_comm_all_gather(comm, SHD_COMM_ALL_GATHER, dev, buf.data() + rank * 10,
                                      buf.data(), 10, &err),
                  SHD_ETIMEOUT);
        ASSERT_STREQ(err.message,
                     "rank 1 of 3 did not come to all_gather of 10 bytes (all_gather) within "
                     "50 ms; rank 0 waited");
    });
    EXPECT_GE(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(50));
    EXPECT_EQ(shd_comm_barrier(group.comms[1], nullptr), SHD_ETIMEOUT);
}

TEST(CommTimeout, IsInheritedAndHarmlessWhenAllCome)
{
    Group group(2);
    group.Run([&](uint32_t rank, shd_comm *comm, shd_device *) {
        shd_comm_set_timeout(comm, 10000);
        const uint32_t members[] = {0, 1};
        shd_comm *child = nullptr;
        ASSERT_EQ(shd_comm_split(comm, members, 2, &child, nullptr), 0);
        for (int i = 0; i < 20; i++) {
            usleep(rank * 500);
            ASSERT_EQ(shd_comm_barrier(child, nullptr), 0);
        }
        shd_comm_set_timeout(comm, 30);
        const uint32_t alone[] = {rank};
        shd_comm *single = nullptr;
        ASSERT_EQ(shd_comm_split(comm, alone, 1, &single, nullptr), 0);
        ASSERT_EQ(shd_comm_barrier(single, nullptr), 0);
        shd_comm *again = nullptr;
        ASSERT_EQ(shd_comm_split(comm, members, 2, &again, nullptr), 0);
        if (rank == 1) {
            ASSERT_EQ(shd_comm_barrier(again, nullptr), SHD_ETIMEOUT); // the 30 ms of its parent
        }
        shd_comm_free(again);
        shd_comm_free(single);
        shd_comm_free(child);
    });
}

// ---- groups ----

TEST(CommSplit, GroupsAreIndependentAndCountForTheParent)
{
    Group group(6);
    group.Run([&](uint32_t rank, shd_comm *comm, shd_device *dev) {
        // {5,3,1} in this order, {0,2}, {4}.
        const std::vector<uint32_t> members = rank % 2 == 1 ? std::vector<uint32_t>{5, 3, 1}
                                              : rank == 4   ? std::vector<uint32_t>{4}
                                                            : std::vector<uint32_t>{0, 2};
        shd_comm *child = nullptr;
        shd_error err;
        ASSERT_EQ(shd_comm_split(comm, members.data(), static_cast<uint32_t>(members.size()),
                                 &child, &err),
                  0)
            << err.message;
        ASSERT_EQ(shd_comm_size(child), members.size());
        ASSERT_EQ(members[shd_comm_rank(child)], rank);

        // Groups run different numbers of calls; then all meet.
        for (uint32_t i = 0; i < 5 + 10 * (rank % 2); i++) {
            CheckAllGather(child, dev, i, 33, false);
            CheckAllToAll(child, dev, i, 9, 11);
        }
        CheckAllGather(comm, dev, 99, 5, true);

        const Counts counts = CountsOf(comm);
        const uint64_t calls = 5 + 10 * (rank % 2), others = members.size() - 1;
        ASSERT_EQ(counts[SHD_COMM_ALL_GATHER].calls, calls + 1);
        ASSERT_EQ(counts[SHD_COMM_ALL_GATHER].bytes, calls * 33 * others + 5 * 5);
        ASSERT_EQ(counts[SHD_COMM_REDUCE_SCATTER].bytes, calls * 9 * others);
        ASSERT_EQ(counts[SHD_COMM_CONTROL].calls, 0u);
        shd_comm_free(child);
    });
}

TEST(CommSplit, GroupsOfGroups)
{
    Group group(8);
    group.Run([&](uint32_t rank, shd_comm *comm, shd_device *dev) {
        const uint32_t base = rank / 4 * 4;
        const uint32_t four[] = {base, base + 1, base + 2, base + 3};
        shd_comm *half = nullptr, *quarter = nullptr;
        ASSERT_EQ(shd_comm_split(comm, four, 4, &half, nullptr), 0);
        const uint32_t two[] = {rank % 4 / 2 * 2, rank % 4 / 2 * 2 + 1};
        ASSERT_EQ(shd_comm_split(half, two, 2, &quarter, nullptr), 0);
        ASSERT_EQ(shd_comm_rank(quarter), rank % 2);
        uint32_t peers[2] = {};
        ASSERT_EQ(shd_comm_all_gather_host(quarter, SHD_COMM_CONTROL, &rank, peers, sizeof(rank),
                                           nullptr),
                  0);
        ASSERT_EQ(peers[0], rank / 2 * 2);
        ASSERT_EQ(peers[1], rank / 2 * 2 + 1);
        CheckAllGather(half, dev, 3, 21, false);
        shd_comm_free(quarter);
        shd_comm_free(half);
    });
}

void ExpectBadSplit(const std::vector<std::vector<uint32_t>> &lists, const std::string &message)
{
    Group group(static_cast<uint32_t>(lists.size()));
    group.Run([&](uint32_t rank, shd_comm *comm, shd_device *) {
        shd_error err;
        shd_comm *child = nullptr;
        const auto members = std::make_unique<std::vector<uint32_t>>(lists[rank]);
        ASSERT_EQ(shd_comm_split(comm, members->data(), static_cast<uint32_t>(members->size()),
                                 &child, &err),
                  SHD_ECOMM);
        ASSERT_EQ(err.message, "split: " + message);
        ASSERT_EQ(child, nullptr);
        ASSERT_EQ(shd_comm_barrier(comm, nullptr), SHD_ECOMM);
    });
}

TEST(CommSplit, ListsThatDoNotFitEndTheGroup)
{
    ExpectBadSplit({{0, 1}, {0, 1, 2}, {2}}, "ranks 0 and 1 do not give the same group");
    ExpectBadSplit({{0, 1}, {1, 0}}, "ranks 0 and 1 do not give the same group");
    ExpectBadSplit({{0}, {0}}, "rank 1 is not in its own group");
    ExpectBadSplit({{0}, {}}, "rank 1 is not in its own group");
    ExpectBadSplit({{0, 7}, {1}}, "rank 0 names member 7 of 2 ranks");
    ExpectBadSplit({{0}, {1, 1}}, "rank 1 names member 1 of 2 ranks twice");
}

// ---- many in a row ----

TEST(CommLocal, RandomSequencesWithRandomDelays)
{
    for (uint32_t size : {2u, 3u, 4u}) {
        constexpr uint32_t kCalls = 2000;
        Group group(size);
        group.Run([&](uint32_t rank, shd_comm *comm, shd_device *dev) {
            std::mt19937 common(size), own(rank + 1000 * size);
            const uint32_t half = size / 2;
            std::vector<uint32_t> members;
            for (uint32_t r = rank < half ? 0 : half; r < (rank < half ? half : size); r++) {
                members.push_back(r);
            }
            shd_comm *part = nullptr;
            ASSERT_EQ(shd_comm_split(comm, members.data(), static_cast<uint32_t>(members.size()),
                                     &part, nullptr),
                      0);
            for (uint32_t call = 0; call < kCalls && !::testing::Test::HasFatalFailure(); call++) {
                const uint32_t what = common() % 7;
                const size_t bytes = common() % 300;
                const uint32_t root = common() % size;
                if (own() % 50 == 0) {
                    usleep(own() % 300);
                }
                switch (what) {
                case 0:
                    CheckAllGather(comm, dev, call, bytes, bytes % 2 == 0);
                    break;
                case 1:
                    CheckAllToAll(comm, dev, call, bytes, bytes + call % 5);
                    break;
                case 2:
                    CheckBroadcast(comm, dev, call, bytes, root);
                    break;
                case 3:
                    CheckAllGatherHost(comm, call, bytes);
                    break;
                case 4:
                    ASSERT_EQ(shd_comm_barrier(comm, nullptr), 0);
                    break;
                case 5:
                    CheckAllGather(part, dev, call, bytes, false);
                    break;
                default:
                    CheckAllToAll(part, dev, call, bytes, bytes);
                    break;
                }
            }
            shd_comm_free(part);
        });
    }
}

} // namespace
