// Degrees to groups: presets, refusals, and the nesting that one code path relies on.
#include "daemon/shard/strategy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
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
    std::vector<uint32_t> members(SHD_MAX_WORLD);
    members.resize(shd_strategy_group(&s, rank, group, members.data()));
    return members;
}

TEST(Presets, AreTheDegreesOfThePapers)
{
    struct {
        const char *name;
        uint32_t p, g, o; // 0: W
        int reshard;
        const char *known_as;
    } const cases[] = {
        {"ddp", 1, 1, 1, 1, "ddp"},
        {"no_shard", 1, 1, 1, 1, "ddp"},
        {"zero1", 1, 1, 0, 1, "zero1"},
        {"zero2", 1, 0, 0, 1, "zero2"},
        {"zero3", 0, 0, 0, 1, "zero3"},
        {"full_shard", 0, 0, 0, 1, "zero3"},
        {"shard_grad_op", 0, 0, 0, 0, "shard_grad_op"},
    };
    for (uint32_t world : {1u, 2u, 3u, 8u, 64u}) {
        for (const auto &c : cases) {
            const shd_strategy s = Make(c.name, world);
            EXPECT_EQ(world, s.world);
            EXPECT_EQ(c.p == 0 ? world : c.p, s.p) << c.name;
            EXPECT_EQ(c.g == 0 ? world : c.g, s.g) << c.name;
            EXPECT_EQ(c.o == 0 ? world : c.o, s.o) << c.name;
            EXPECT_EQ(c.reshard, s.reshard_after_forward) << c.name;
            EXPECT_STREQ(world == 1 ? "ddp" : c.known_as, shd_strategy_name(&s));
        }
    }
}

TEST(Presets, AllAreListedForMessages)
{
    const std::string list = shd_strategy_presets();
    for (const char *name :
         {"ddp", "no_shard", "zero1", "zero2", "zero3", "full_shard", "shard_grad_op"}) {
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

TEST(Degrees, NameOfEveryTripleGivesItBack)
{
    int custom = 0;
    for (const shd_strategy &s : EveryTriple(12)) {
        const std::string name = shd_strategy_name(&s);
        if (name == "custom") {
            custom++;
            continue;
        }
        const shd_strategy again = Make(name.c_str(), s.world);
        EXPECT_EQ(s.p, again.p) << Describe(s);
        EXPECT_EQ(s.g, again.g) << Describe(s);
        EXPECT_EQ(s.o, again.o) << Describe(s);
        EXPECT_EQ(s.reshard_after_forward, again.reshard_after_forward) << Describe(s);
    }
    EXPECT_GT(custom, 0);
}

// What a strategy is shown as, name and degrees, is accepted as what was asked for.
TEST(Degrees, AndTheNameTheyAreShownByAgree)
{
    std::vector<shd_strategy> all = EveryTriple(8);
    all.push_back(Make("shard_grad_op", 4));
    for (const shd_strategy &s : all) {
        const uint32_t degrees[3] = {s.p, s.g, s.o};
        shd_strategy again = {};
        shd_error err = {};
        ASSERT_EQ(0, shd_strategy_make(shd_strategy_name(&s), degrees, 3, s.world, &again, &err))
            << err.message;
        EXPECT_EQ(s.p, again.p);
        EXPECT_EQ(s.g, again.g);
        EXPECT_EQ(s.o, again.o);
        EXPECT_EQ(s.reshard_after_forward, again.reshard_after_forward) << Describe(s);
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
        {"hybrid_shard", {}, 4, SHD_EUNSUPPORTED, {"--strategy hybrid_shard", "--shard-degrees"}},
        {"hybrid_shard_zero2", {}, 4, SHD_EUNSUPPORTED, {"hybrid_shard_zero2"}},
        {"hpz", {}, 4, SHD_EUNSUPPORTED, {"--strategy hpz"}},
        {"mics", {}, 4, SHD_EUNSUPPORTED, {"--strategy mics"}},
        {"zero3", {}, 0, SHD_EINVAL, {"--ranks 0", "1 to 64"}},
        {"zero3", {}, 65, SHD_EINVAL, {"--ranks 65", "1 to 64"}},
        {"", {1, 1, 1}, 65, SHD_EINVAL, {"--ranks 65", "1 to 64"}},
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
    for (const shd_strategy &s : EveryTriple(24)) {
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
    for (const shd_strategy &s : EveryTriple(24)) {
        SCOPED_TRACE(Describe(s));
        for (uint32_t r = 0; r < s.world; r++) {
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

} // namespace
