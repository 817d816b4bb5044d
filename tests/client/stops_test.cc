#include "client/stops.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace
{
// What comes through of the pieces; "|" where the text was ended.
std::string through(std::vector<std::string> stops, const std::vector<std::string> &pieces)
{
    std::vector<char *> texts;
    for (auto &stop : stops)
        texts.push_back(&stop[0]);
    shc_stops state{texts.data(), texts.size(), {}};
    shc_buf out{};
    bool stopped = false;
    for (const auto &piece : pieces) {
        stopped = shc_stops_put(&state, piece.data(), piece.size(), &out);
        if (stopped)
            break;
    }
    if (!stopped)
        shc_stops_end(&state, &out);
    const std::string text = std::string(shc_buf_str(&out), out.len) + (stopped ? "|" : "");
    shc_buf_fini(&out);
    shc_stops_fini(&state);
    return text;
}
} // namespace

TEST(Stops, EndsBeforeTheText)
{
    EXPECT_EQ(through({"END"}, {"one END two"}), "one |");
    EXPECT_EQ(through({"END"}, {"one E", "N", "D two"}), "one |");
    EXPECT_EQ(through({"END"}, {"one EN", "END"}), "one EN|");
    EXPECT_EQ(through({"END"}, {"one EN"}), "one EN");
    EXPECT_EQ(through({"END"}, {""}), "");
    EXPECT_EQ(through({}, {"END"}), "END");
    EXPECT_EQ(through({"aab"}, {"a", "a", "a", "b"}), "a|");
    EXPECT_EQ(through({"\n\n"}, {std::string("x\0y\n", 4), "\n"}), std::string("x\0y|", 4));
}

TEST(Stops, FirstOfSeveral)
{
    EXPECT_EQ(through({"abcd", "bc"}, {"xabc", "d"}), "xa|");
    EXPECT_EQ(through({"two", "one"}, {"a one two"}), "a |");
    EXPECT_EQ(through({"xyz", "b"}, {"xy", "b"}), "xy|");
}

TEST(Stops, HoldsBackOnlyWhatMayBecomeOne)
{
    char stop[] = "stop";
    char *texts[] = {stop};
    shc_stops state{texts, 1, {}};
    shc_buf out{};
    EXPECT_EQ(shc_stops_put(&state, "past", 4, &out), 0);
    EXPECT_STREQ(shc_buf_str(&out), "pa");
    EXPECT_EQ(shc_stops_put(&state, "e", 1, &out), 0);
    EXPECT_STREQ(shc_buf_str(&out), "paste");
    shc_buf_fini(&out);
    shc_stops_fini(&state);
}
