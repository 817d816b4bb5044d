// Matches are those of PCRE2 on the whole text, however they are found.
#include "daemon/data/regex.h"

#include <gtest/gtest.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace
{

struct Found {
    int rc;
    size_t begin, end;
    bool operator==(const Found &o) const
    {
        return rc == o.rc && begin == o.begin && end == o.end;
    }
};

// PCRE2 itself, on all of the text at once.
class Reference
{
  public:
    explicit Reference(const std::string &pattern)
    {
        char *translated = nullptr;
        shd_error err = {};
        EXPECT_EQ(shd_regex_translate(pattern.c_str(), &translated, &err), 0) << err.message;
        int number;
        PCRE2_SIZE at;
        pcre2_compile_context *context = pcre2_compile_context_create(nullptr);
        pcre2_set_newline(context, PCRE2_NEWLINE_LF);
        code_ = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated), PCRE2_ZERO_TERMINATED,
                              PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE, &number, &at, context);
        EXPECT_NE(code_, nullptr);
        pcre2_compile_context_free(context);
        free(translated);
        data_ = pcre2_match_data_create(1, nullptr);
    }
    ~Reference()
    {
        pcre2_match_data_free(data_);
        pcre2_code_free(code_);
    }
    Found Find(const std::string &text, size_t from, bool open) const
    {
        const int rc = pcre2_match(code_, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                                   from, open ? PCRE2_PARTIAL_HARD : 0, data_, nullptr);
        const PCRE2_SIZE *at = pcre2_get_ovector_pointer(data_);
        return rc > 0                      ? Found{1, at[0], at[1]}
               : rc == PCRE2_ERROR_PARTIAL ? Found{SHD_REGEX_PARTIAL, at[0], 0}
               : rc == PCRE2_ERROR_NOMATCH ? Found{0, 0, 0}
                                           : Found{rc, 0, 0};
    }

  private:
    pcre2_code *code_;
    pcre2_match_data *data_;
};

class Regex
{
  public:
    explicit Regex(const std::string &pattern)
    {
        shd_error err = {};
        EXPECT_EQ(shd_regex_compile(pattern.c_str(), &regex_, &err), 0) << err.message;
        matcher_ = shd_matcher_create(&ends_);
    }
    ~Regex()
    {
        shd_matcher_free(matcher_);
        shd_regex_free(regex_);
    }
    Found Find(const std::string &text, size_t from, bool open)
    {
        Found f = {0, 0, 0};
        shd_error err = {};
        f.rc = shd_matcher_find(matcher_, regex_, text.data(), text.size(), from, open, &f.begin,
                                &f.end, &err);
        EXPECT_GE(f.rc, 0) << err.message;
        f.end = f.rc == 1 ? f.end : 0;
        f.begin = f.rc != 0 ? f.begin : 0;
        return f;
    }

  private:
    shd_ends ends_ = {};
    shd_regex *regex_ = nullptr;
    shd_matcher *matcher_ = nullptr;
};

// Runs of one kind of character, most of them short, some longer than any window.
std::string RandomText(std::mt19937_64 *rng, size_t size)
{
    static const std::vector<std::vector<std::string>> kinds = {
        {"a", "b", "Z", "q", "\u00e9", "\u0435"},
        {" "},
        {"\n"},
        {" ", "\t", "\n", "\r\n", "\u00a0", "\u3000", "\u0085"},
        {"1", "2", "\u00bd", "\u0663"},
        {"\u4f60", "\u597d", "\u6771", "\ud55c"},
        {".", "!", "-", "'", "\"", "\u2019"},
        {"\u0301", "\u093f", "\u200d"},
        {"\U0001f600", "\U0001f3fd"},
        {"'s", "'LL", "'\u017f", "x'd", "_", "\x01"},
    };
    std::string out;
    while (out.size() < size) {
        const auto &kind = kinds[(*rng)() % kinds.size()];
        const size_t dice = (*rng)() % 40;
        const size_t length = dice == 0 ? (*rng)() % 1500 : dice < 4 ? 100 : 1 + (*rng)() % 6;
        for (size_t i = 0; i < length; i++) {
            out += kind[(*rng)() % kind.size()];
        }
    }
    return out;
}

const char kGpt2[] =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
const char kLlama3[] =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|)"
    R"(\s*[\r\n]+|\s+(?!\S)|\s+)";
const char kDeepSeek[] =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|)"
    R"( ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
const char kO200k[] =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve)"
    R"(|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

class Patterns : public ::testing::TestWithParam<std::string>
{
};

TEST_P(Patterns, EveryMatchIsThatOnTheWholeText)
{
    const Reference reference(GetParam());
    Regex regex(GetParam());
    std::mt19937_64 rng(5);
    size_t long_ones = 0, compared = 0;
    for (int round = 0; round < 12; round++) {
        const std::string text = RandomText(&rng, 12000);
        for (size_t from = 0; from < text.size();) {
            const Found want = reference.Find(text, from, false);
            const Found got = regex.Find(text, from, false);
            ASSERT_EQ(got, want) << "from " << from << " in round " << round << ": " << got.rc
                                 << " " << got.begin << ".." << got.end << ", not " << want.rc
                                 << " " << want.begin << ".." << want.end;
            if (want.rc == 0) {
                break;
            }
            compared++;
            long_ones += want.end - from > 512;
            from = want.end;
        }
    }
    EXPECT_GT(compared, 10u);
    if (GetParam() == kGpt2 || GetParam() == kLlama3 || GetParam() == kO200k) {
        EXPECT_GT(long_ones, 10u) << "matches that leave the window";
    }
}

TEST_P(Patterns, WhatFollowsMayChangeTheAnswer)
{
    const Reference reference(GetParam());
    Regex regex(GetParam());
    std::mt19937_64 rng(6);
    size_t partial = 0;
    for (int round = 0; round < 150; round++) {
        const std::string text = RandomText(&rng, 20 + rng() % 1500);
        for (size_t from = 0; from < text.size();) {
            const Found want = reference.Find(text, from, true);
            ASSERT_EQ(regex.Find(text, from, true), want) << "from " << from;
            partial += want.rc == SHD_REGEX_PARTIAL;
            if (want.rc != 1) {
                break;
            }
            from = want.end;
        }
    }
    EXPECT_GT(partial + (GetParam() == R"(\p{N})"), 0u); // that one needs no second character
}

INSTANTIATE_TEST_SUITE_P(All, Patterns,
                         ::testing::Values(kGpt2, kLlama3, kDeepSeek, kO200k, R"(\p{N})",
                                           R"([^a]+Zq|\s+)", R"(Zq|Z\n)", R"((?<=a)b+|(?<! )\n+)",
                                           R"(^ *\S+$|^\n)", R"((?:ab?|q)+Z|[\s\S])",
                                           R"(\s+(?=\S)|(?:[^\s]|\n(?! ))+)"),
                         [](const auto &p) { return "P" + std::to_string(p.index); });

} // namespace
