// Degrees to groups: presets, refusals, and the nesting that one code path relies on.
#include "daemon/shard/strategy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace
{

shd_strategy Make(const char *name, uint32_t world)
{
    shd_strategy s = {};
    shd_error err = {};
    EXPECT_EQ(0, shd_strategy_make(name, nullptr, 0, world, &s, &err)) << err.message;
    return s;
}

shd_strategy MakeDegrees(uint32_t p, uint32_t g, uint32_t o, uint32_t world)
{
    const uint32_t degrees[3] = {p, g, o};
    shd_strategy s = {};
    shd_error err = {};
    EXPECT_EQ(0, shd_strategy_make("", degrees, 3, world, &s, &err)) << err.message;
    return s;
}

std::vector<shd_strategy> EveryTriple(uint32_t most)
{
    std::vector<shd_strategy> all;
    for (uint32_t world = 1; world <= most; world++) {
        for (uint32_t p = 1; p <= world; p++) {
            for (uint32_t g = p; g <= world; g += p) {
                for (uint32_t o = g; o <= world; o += g) {
                    if (world % o == 0) {
                        all.push_back(MakeDegrees(p, g, o, world));
                    }
                }
            }
        }
    }
    return all;
}

std::string Describe(const shd_strategy &s)
{
    return std::to_string(s.p) + "," + std::to_string(s.g) + "," + std::to_string(s.o) + " of " +
           std::to_string(s.world);
}

std::vector<uint32_t> Group(const shd_strategy &s, uint32_t rank, shd_group group)
{
    std::vector<uint32_t> members(shd_strategy_group_size(&s, group));
    EXPECT_EQ(members.size(), shd_strategy_group(&s, rank, group, members.data()));
    return members;
}

// Every triple of every world up to `most`, with every way to keep gathered parameters.
std::vector<shd_strategy> EveryStrategy(uint32_t most)
{
    std::vector<shd_strategy> all;
    for (shd_strategy s : EveryTriple(most)) {
        for (s.regather = 1; s.regather <= s.p; s.regather++) {
            if (s.p % s.regather == 0) {
                all.push_back(s);
            }
        }
    }
    return all;
}

std::string Reshard(const shd_strategy &s)
{
    char text[SHD_STRATEGY_RESHARD_LEN];
    return shd_strategy_reshard(&s, text);
}

TEST(Presets, AreTheDegreesOfThePapers)
{
    enum { ONE, K, W };
    struct {
        const char *name;
        int p, g, o;
        bool whole;
        const char *known_as;
    } const cases[] = {
        {"ddp", ONE, ONE, ONE, false, "ddp"},
        {"no_shard", ONE, ONE, ONE, false, "ddp"},
        {"zero1", ONE, ONE, W, false, "zero1"},
        {"zero2", ONE, W, W, false, "zero2"},
        {"zero3", W, W, W, false, "zero3"},
        {"full_shard", W, W, W, false, "zero3"},
        {"shard_grad_op", W, W, W, true, "shard_grad_op"},
        {"hybrid_shard", K, K, K, false, "hybrid_shard"},
        {"mics", K, K, K, false, "hybrid_shard"},
        {"hybrid_shard_zero2", K, K, K, true, "hybrid_shard_zero2"},
        {"hpz", K, W, W, false, "hpz"},
        {"megatron", K, K, W, false, "megatron"},
    };
    for (uint32_t world : {1u, 2u, 3u, 8u, 64u, 16384u}) {
        for (uint32_t k = 1; k <= world; k++) {
            if (world % k != 0) {
                continue;
            }
            for (const auto &c : cases) {
                const bool grouped = c.p == K || c.g == K || c.o == K;
                const uint32_t of[] = {1, k, world};
                shd_strategy s = {};
                shd_error err = {};
                const shd_strategy_request request = {world,           c.name, nullptr, 0,
                                                      grouped ? k : 0, 0,      nullptr};
                ASSERT_EQ(0, shd_strategy_resolve(&request, &s, &err)) << err.message;
                EXPECT_EQ(world, s.world);
                EXPECT_EQ(of[c.p], s.p) << c.name;
                EXPECT_EQ(of[c.g], s.g) << c.name;
                EXPECT_EQ(of[c.o], s.o) << c.name;
                EXPECT_EQ(c.whole ? 1 : s.p, s.regather) << c.name;
                if (!grouped || (k > 1 && k < world)) {
                    EXPECT_STREQ(world == 1 ? "ddp" : c.known_as, shd_strategy_name(&s));
                    EXPECT_EQ(grouped ? k : 0, shd_strategy_shard_group(&s)) << c.name;
                }
            }
        }
    }
}

// What coincides with another preset is accepted, and shown as that.
TEST(Presets, DegenerateOnesAreWhatTheyAre)
{
    struct {
        const char *name;
        uint32_t group;
        const char *known_as;
    } const cases[] = {
        {"hybrid_shard", 8, "zero3"}, {"hybrid_shard_zero2", 8, "shard_grad_op"},
        {"mics", 8, "zero3"},         {"hpz", 8, "zero3"},
        {"megatron", 8, "zero3"},     {"hybrid_shard", 1, "ddp"},
        {"mics", 1, "ddp"},           {"hybrid_shard_zero2", 1, "ddp"},
        {"hpz", 1, "zero2"},          {"megatron", 1, "zero1"},
    };
    for (const auto &c : cases) {
        shd_strategy s = {};
        shd_error err = {};
        const shd_strategy_request request = {8, c.name, nullptr, 0, c.group, 0, nullptr};
        ASSERT_EQ(0, shd_strategy_resolve(&request, &s, &err)) << err.message;
        EXPECT_STREQ(c.known_as, shd_strategy_name(&s)) << c.name << " " << c.group;
        EXPECT_EQ(0u, shd_strategy_shard_group(&s));
    }
}

TEST(Presets, GroupsAreNodesUnlessTheyAreGiven)
{
    struct {
        uint32_t world, node, k;
    } const cases[] = {{8, 0, 8}, {8, 4, 4}, {8, 8, 8}, {8, 64, 8}, {16384, 8, 8}, {6, 1, 1}};
    for (const auto &c : cases) {
        shd_strategy s = {};
        shd_error err = {};
        shd_strategy_request request = {c.world, "hybrid_shard", nullptr, 0, 0, c.node, nullptr};
        ASSERT_EQ(0, shd_strategy_resolve(&request, &s, &err)) << err.message;
        EXPECT_EQ(c.k, s.p);
        request.group = 2;
        ASSERT_EQ(0, shd_strategy_resolve(&request, &s, &err)) << err.message;
        EXPECT_EQ(2u, s.p);
    }
}

TEST(Reshard, SaysWhatStaysGathered)
{
    struct {
        const char *name, *reshard;
        uint32_t world, regather;
        const char *known_as, *shown;
    } const cases[] = {
        {"zero3", "", 8, 8, "zero3", "yes"},
        {"zero3", "yes", 8, 8, "zero3", "yes"},
        {"zero3", "8", 8, 8, "zero3", "yes"},
        {"zero3", "no", 8, 1, "shard_grad_op", "no"},
        {"zero3", "1", 8, 1, "shard_grad_op", "no"},
        {"zero3", "2", 8, 2, "zero3", "2"},
        {"full_shard", "4", 8, 4, "zero3", "4"},
        {"shard_grad_op", "", 8, 1, "shard_grad_op", "no"},
        {"shard_grad_op", "no", 8, 1, "shard_grad_op", "no"},
        {"hybrid_shard", "no", 8, 1, "hybrid_shard_zero2", "no"},
        {"hybrid_shard", "2", 8, 2, "hybrid_shard", "2"},
        {"hpz", "no", 8, 1, "hpz", "no"},
        {"hpz", "4", 8, 4, "hpz", "yes"},
        {"megatron", "2", 8, 2, "megatron", "2"},
        {"zero3", "no", 1, 1, "ddp", ""},
        {"zero3", "yes", 1, 1, "ddp", ""},
        {"ddp", "", 8, 1, "ddp", ""},
    };
    for (const auto &c : cases) {
        SCOPED_TRACE(std::string(c.name) + " " + c.reshard);
        shd_strategy s = {};
        shd_error err = {};
        const shd_strategy_request request = {c.world, c.name, nullptr, 0, 0, 4, c.reshard};
        ASSERT_EQ(0, shd_strategy_resolve(&request, &s, &err)) << err.message;
        EXPECT_EQ(c.regather, s.regather);
        EXPECT_STREQ(c.known_as, shd_strategy_name(&s));
        EXPECT_EQ(c.shown, Reshard(s));
    }
}

TEST(Presets, AllAreListedForMessages)
{
    const std::string list = shd_strategy_presets();
    for (const char *name :
         {"ddp", "no_shard", "zero1", "zero2", "zero3", "full_shard", "shard_grad_op",
          "hybrid_shard", "hybrid_shard_zero2", "mics", "hpz", "megatron"}) {
        EXPECT_NE(std::string::npos, list.find(name)) << name;
    }
}

TEST(Presets, NothingGivenIsZero3)
{
    const shd_strategy s = Make("", 4);
    EXPECT_EQ(4u, s.p);
    EXPECT_EQ(4u, s.g);
    EXPECT_EQ(4u, s.o);
}

// Name, group and what stays gathered are what would give the same again; degrees may come along.
TEST(Degrees, WhatTheyAreShownAsGivesThemBack)
{
    std::set<std::string> names;
    for (const shd_strategy &s : EveryStrategy(16)) {
        SCOPED_TRACE(Describe(s));
        const std::string name = shd_strategy_name(&s), reshard = Reshard(s);
        const uint32_t degrees[3] = {s.p, s.g, s.o};
        names.insert(name);
        for (bool with_degrees : {false, true}) {
            if (name == "custom" && !with_degrees) {
                continue;
            }
            const shd_strategy_request request = {s.world,
                                                  name.c_str(),
                                                  degrees,
                                                  with_degrees ? 3u : 0u,
                                                  shd_strategy_shard_group(&s),
                                                  0,
                                                  reshard.c_str()};
            shd_strategy again = {};
            shd_error err = {};
            ASSERT_EQ(0, shd_strategy_resolve(&request, &again, &err)) << err.message;
            EXPECT_EQ(s.p, again.p);
            EXPECT_EQ(s.g, again.g);
            EXPECT_EQ(s.o, again.o);
            EXPECT_EQ(s.regather, again.regather);
        }
    }
    EXPECT_EQ(10u, names.size()) << "nine presets and custom";
}

// The flags of every strategy there is at a world ask for that strategy.
TEST(Degrees, FlagsGiveThemBack)
{
    const uint32_t W = 8;
    char flags[SHD_STRATEGY_FLAGS_LEN];
    for (uint32_t p = 1; p <= W; p *= 2) {
        for (uint32_t g = p; g <= W; g *= 2) {
            for (uint32_t o = g; o <= W; o *= 2) {
                for (uint32_t regather = 1; regather <= p; regather *= 2) {
                    const shd_strategy s = {W, p, g, o, regather};
                    std::istringstream words(shd_strategy_flags(&s, flags));
                    std::string word, name, reshard;
                    std::vector<uint32_t> degrees;
                    shd_strategy_request request = {};
                    request.world = W;
                    while (words >> word) {
                        if (word == "--strategy") {
                            words >> name;
                        } else if (word == "--shard-group") {
                            words >> request.group;
                        } else if (word == "--reshard-after-forward") {
                            words >> reshard;
                        } else {
                            ASSERT_EQ("--shard-degrees", word);
                            char comma;
                            degrees.resize(3);
                            words >> degrees[0] >> comma >> degrees[1] >> comma >> degrees[2];
                        }
                    }
                    request.name = name.c_str();
                    request.degrees = degrees.data();
                    request.n_degrees = static_cast<uint32_t>(degrees.size());
                    request.reshard = reshard.c_str();
                    shd_strategy back = {};
                    shd_error err = {};
                    ASSERT_EQ(0, shd_strategy_resolve(&request, &back, &err))
                        << flags << ": " << err.message;
                    EXPECT_EQ(0, memcmp(&s, &back, sizeof s)) << flags;
                }
            }
        }
    }
}

TEST(Refusals, SayWhatAndWhich)
{
    struct {
        const char *name;
        std::vector<uint32_t> degrees;
        uint32_t world;
        int code;
        std::vector<std::string> says;
    } const cases[] = {
        {"", {0, 1, 1}, 4, SHD_EINVAL, {"--shard-degrees", "P is 0"}},
        {"", {1, 0, 1}, 4, SHD_EINVAL, {"--shard-degrees", "G is 0"}},
        {"", {1, 1, 0}, 4, SHD_EINVAL, {"--shard-degrees", "O is 0"}},
        {"", {2, 3, 6}, 6, SHD_EINVAL, {"--shard-degrees 2,3,6", "--ranks 6", "P = 2", "G = 3"}},
        {"", {1, 2, 3}, 6, SHD_EINVAL, {"--shard-degrees 1,2,3", "G = 2", "O = 3"}},
        {"", {1, 1, 3}, 4, SHD_EINVAL, {"--shard-degrees 1,1,3", "O = 3", "ranks = 4"}},
        {"", {1, 1, 8}, 4, SHD_EINVAL, {"O = 8", "ranks = 4"}},
        {"", {4, 2, 4}, 4, SHD_EINVAL, {"P = 4", "G = 2"}},
        {"", {4294967295u, 4294967295u, 4294967295u}, 4, SHD_EINVAL, {"4294967295", "ranks = 4"}},
        {"", {1, 4}, 4, SHD_EINVAL, {"--shard-degrees has 2 numbers", "P,G,O"}},
        {"", {1, 1, 2, 4}, 4, SHD_EINVAL, {"--shard-degrees has 4 numbers", "P,G,O"}},
        {"zero3",
         {1, 1, 4},
         4,
         SHD_EINVAL,
         {"--strategy zero3", "4,4,4", "--shard-degrees 1,1,4", "both given"}},
        {"custom", {}, 4, SHD_EINVAL, {"--strategy 'custom'", "zero3"}},
        {"zero4", {}, 4, SHD_EINVAL, {"--strategy 'zero4'", "zero1", "full_shard"}},
        {"ZERO3", {}, 4, SHD_EINVAL, {"--strategy 'ZERO3'"}},
        {"hpz", {2, 2, 4}, 4, SHD_EINVAL, {"--strategy hpz (2,4,4", "--shard-degrees 2,2,4"}},
        {"zero3", {}, 0, SHD_EINVAL, {"--ranks 0", "1 to 16384"}},
        {"zero3", {}, 16385, SHD_EINVAL, {"--ranks 16385", "1 to 16384"}},
        {"", {1, 1, 1}, 16385, SHD_EINVAL, {"--ranks 16385", "1 to 16384"}},
        {"zero3", {}, 4294967295u, SHD_EINVAL, {"--ranks 4294967295"}},
    };
    for (const auto &c : cases) {
        shd_strategy s = {};
        shd_error err = {};
        EXPECT_EQ(c.code,
                  shd_strategy_make(c.name, c.degrees.data(),
                                    static_cast<uint32_t>(c.degrees.size()), c.world, &s, &err))
            << c.name;
        EXPECT_EQ(c.code, err.code);
        for (const std::string &part : c.says) {
            EXPECT_NE(std::string::npos, std::string(err.message).find(part))
                << "'" << err.message << "' lacks '" << part << "'";
        }
        EXPECT_EQ(c.code,
                  shd_strategy_make(c.name, c.degrees.data(),
                                    static_cast<uint32_t>(c.degrees.size()), c.world, &s, nullptr));
    }
}

TEST(Refusals, OfGroupsAndOfWhatStaysGathered)
{
    const uint32_t ddp[3] = {1, 1, 1}, hybrid[3] = {2, 2, 2}, hpz[3] = {2, 8, 8};
    struct {
        shd_strategy_request request;
        std::vector<std::string> says;
    } const cases[] = {
        {{8, "hybrid_shard", nullptr, 0, 3, 0, ""},
         {"--shard-group 3", "--ranks 8", "1, 2, 4 or 8"}},
        {{8, "mics", nullptr, 0, 16, 0, ""}, {"--shard-group 16", "--ranks 8"}},
        {{8, "hpz", nullptr, 0, 0, 6, ""},
         {"--strategy hpz", "node", "6", "--ranks 8", "--shard-group 1, 2, 4 or 8"}},
        {{8, "zero3", nullptr, 0, 2, 0, ""}, {"--shard-group 2", "no effect", "zero3", "megatron"}},
        {{8, "", nullptr, 0, 2, 0, ""}, {"--shard-group 2", "--strategy hybrid_shard"}},
        {{8, "", hybrid, 3, 2, 0, ""}, {"--shard-group 2", "--shard-degrees 2,2,2", "one of them"}},
        {{8, "hybrid_shard", hybrid, 3, 4, 0, ""}, {"hybrid_shard (4,4,4", "2,2,2"}},
        {{8, "hybrid_shard", hpz, 3, 2, 0, ""}, {"hybrid_shard (2,2,2", "2,8,8"}},
        {{8, "ddp", nullptr, 0, 0, 0, "no"},
         {"--reshard-after-forward no", "no effect", "1,1,1", "P = 1"}},
        {{8, "", ddp, 3, 0, 0, "yes"}, {"--reshard-after-forward yes", "no effect", "P = 1"}},
        {{8, "zero2", nullptr, 0, 0, 0, "2"}, {"--reshard-after-forward 2", "1 ranks", "(P)"}},
        {{8, "zero3", nullptr, 0, 0, 0, "3"},
         {"--reshard-after-forward 3", "8 ranks", "1, 2, 4 or 8"}},
        {{8, "zero3", nullptr, 0, 0, 0, "16"}, {"--reshard-after-forward 16", "8 ranks"}},
        {{8, "zero3", nullptr, 0, 0, 0, "0"}, {"--reshard-after-forward '0'", "yes, no"}},
        {{8, "zero3", nullptr, 0, 0, 0, "-2"}, {"--reshard-after-forward '-2'", "yes, no"}},
        {{8, "zero3", nullptr, 0, 0, 0, "2x"}, {"--reshard-after-forward '2x'"}},
        {{8, "zero3", nullptr, 0, 0, 0, "maybe"}, {"--reshard-after-forward 'maybe'"}},
        {{8, "zero3", nullptr, 0, 0, 0, "99999999999999999999"}, {"99999999999999999999'"}},
        {{8, "shard_grad_op", nullptr, 0, 0, 0, "yes"},
         {"shard_grad_op", "--reshard-after-forward yes contradicts", "full_shard"}},
        {{8, "shard_grad_op", nullptr, 0, 0, 0, "2"}, {"--reshard-after-forward 2 contradicts"}},
        {{8, "hybrid_shard_zero2", nullptr, 0, 4, 0, "yes"},
         {"--reshard-after-forward yes contradicts", "hybrid_shard"}},
    };
    for (const auto &c : cases) {
        shd_strategy s = {};
        shd_error err = {};
        EXPECT_EQ(SHD_EINVAL, shd_strategy_resolve(&c.request, &s, &err)) << c.says[0];
        for (const std::string &part : c.says) {
            EXPECT_NE(std::string::npos, std::string(err.message).find(part))
                << "'" << err.message << "' lacks '" << part << "'";
        }
        EXPECT_EQ(SHD_EINVAL, shd_strategy_resolve(&c.request, &s, nullptr));
    }
}

TEST(Parts, AreNestedAndCoverEverything)
{
    const std::vector<shd_strategy> all = EveryTriple(24);
    ASSERT_GT(all.size(), 200u);
    for (const shd_strategy &s : all) {
        SCOPED_TRACE(Describe(s));
        std::set<uint32_t> atoms;
        for (uint32_t r = 0; r < s.world; r++) {
            const uint32_t ip = shd_strategy_index_p(&s, r), ig = shd_strategy_index_g(&s, r);
            const uint32_t io = shd_strategy_index_o(&s, r), atom = shd_strategy_atom(&s, r);
            // Part i of d covers [i/d, (i+1)/d): inside part i / (d / d') of d' < d.
            ASSERT_EQ(ip, ig / (s.g / s.p));
            ASSERT_EQ(ig, io / (s.o / s.g));
            ASSERT_EQ(io, atom / (s.world / s.o));
            atoms.insert(atom);
        }
        ASSERT_EQ(s.world, atoms.size());
        ASSERT_EQ(s.world - 1, *atoms.rbegin());
        // d consecutive ranks hold all d parts.
        for (const auto &[degree, index] :
             {std::pair{s.p, shd_strategy_index_p}, std::pair{s.g, shd_strategy_index_g},
              std::pair{s.o, shd_strategy_index_o}}) {
            for (uint32_t first = 0; first < s.world; first += degree) {
                std::set<uint32_t> parts;
                for (uint32_t r = first; r < first + degree; r++) {
                    parts.insert(index(&s, r));
                }
                ASSERT_EQ(degree, parts.size()) << "degree " << degree << " from rank " << first;
                ASSERT_EQ(degree - 1, *parts.rbegin());
            }
        }
    }
}

TEST(Groups, PartitionTheRanksInTheOrderOfTheirParts)
{
    for (const shd_strategy &s : EveryStrategy(24)) {
        SCOPED_TRACE(Describe(s));
        for (int g = 0; g < SHD_GROUP_COUNT; g++) {
            const shd_group group = static_cast<shd_group>(g);
            std::vector<std::vector<uint32_t>> of(s.world);
            for (uint32_t r = 0; r < s.world; r++) {
                of[r] = Group(s, r, group);
                ASSERT_EQ(1, std::count(of[r].begin(), of[r].end(), r));
            }
            for (const std::vector<uint32_t> &members : of) {
                for (uint32_t m : members) {
                    ASSERT_LT(m, s.world);
                    ASSERT_EQ(members, of[m]) << "group " << g << ", rank " << m;
                }
            }
        }
    }
}

TEST(Groups, HoldThePartsThatTheirCollectivesNeed)
{
    for (const shd_strategy &s : EveryStrategy(24)) {
        SCOPED_TRACE(Describe(s));
        for (uint32_t r = 0; r < s.world; r++) {
            const auto kept = Group(s, r, SHD_GROUP_REGATHER);
            ASSERT_EQ(s.regather, kept.size());
            for (uint32_t i = 0; i < s.regather; i++) {
                ASSERT_EQ(i, shd_strategy_index_kept(&s, kept[i]));
                ASSERT_EQ(r / s.p, kept[i] / s.p) << "among those that gather";
            }
            const auto gather = Group(s, r, SHD_GROUP_GATHER);
            ASSERT_EQ(s.p, gather.size());
            for (uint32_t i = 0; i < s.p; i++) {
                ASSERT_EQ(i, shd_strategy_index_p(&s, gather[i]));
                ASSERT_EQ(r / s.p, gather[i] / s.p) << "gathering stays among consecutive ranks";
            }
            const auto reduce = Group(s, r, SHD_GROUP_REDUCE);
            ASSERT_EQ(s.world, reduce.size());
            for (uint32_t i = 0; i < s.world; i++) {
                ASSERT_EQ(i, shd_strategy_atom(&s, reduce[i]));
            }
            // The atoms of one o-part, in order.
            const auto replica = Group(s, r, SHD_GROUP_REPLICA);
            const uint32_t io = shd_strategy_index_o(&s, r);
            ASSERT_EQ(s.world / s.o, replica.size());
            for (uint32_t i = 0; i < replica.size(); i++) {
                ASSERT_EQ(io * (s.world / s.o) + i, shd_strategy_atom(&s, replica[i]));
            }
            // The o-parts of one p-part, in order.
            const auto update = Group(s, r, SHD_GROUP_UPDATE);
            const uint32_t ip = shd_strategy_index_p(&s, r);
            ASSERT_EQ(s.o / s.p, update.size());
            for (uint32_t i = 0; i < update.size(); i++) {
                ASSERT_EQ(ip * (s.o / s.p) + i, shd_strategy_index_o(&s, update[i]));
            }
            const auto norm = Group(s, r, SHD_GROUP_NORM);
            ASSERT_EQ(s.o, norm.size());
            for (uint32_t i = 0; i < s.o; i++) {
                ASSERT_EQ(i, shd_strategy_index_o(&s, norm[i]));
            }
        }
    }
}

// A plan for the largest world asks for groups many times over.
TEST(Groups, OfTheLargestWorldAreListedAtOnce)
{
    const shd_strategy s = MakeDegrees(8, 512, 4096, 16384);
    for (uint32_t r : {0u, 1u, 5000u, 16383u}) {
        for (int g = 0; g < SHD_GROUP_COUNT; g++) {
            const std::vector<uint32_t> members = Group(s, r, static_cast<shd_group>(g));
            EXPECT_EQ(1, std::count(members.begin(), members.end(), r));
            EXPECT_EQ(members.size(), std::set<uint32_t>(members.begin(), members.end()).size());
        }
    }
}

} // namespace
