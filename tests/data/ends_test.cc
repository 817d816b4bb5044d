// Texts, patterns and models that are made to take for ever: whoever cancels does not wait for
// them, and a call with a limit ends by itself. Without the looks in between each of these takes
// minutes at least.
#include <gtest/gtest.h>
#include <uninorm.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <fstream>
#include <random>
#include <sstream>
#include <string>
#include <thread>

#include "daemon/data/sentencepiece.h"
#include "daemon/data/tokenizer.h"
#include "daemon/data/utf8.h"

namespace
{

// The bound is about a second on an idle machine.
constexpr double kPatience = 20;

std::string Json(const std::string &pattern, const std::string &normalizer = "null",
                 const std::string &added = "")
{
    std::string vocab = R"("a":0,"b":1,"c":2,"\u0120":3,"aa":4)", escaped;
    for (const char c : pattern) {
        escaped += c == '\\' || c == '"' ? std::string("\\") + c : std::string(1, c);
    }
    return R"({"version":"1.0","truncation":null,"padding":null,"added_tokens":[)" + added +
           R"(],"normalizer":)" + normalizer +
           R"(,"pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"Regex":")" +
           escaped +
           R"("},"behavior":"Isolated","invert":false},{"type":"ByteLevel","add_prefix_space":false,)"
           R"("use_regex":false}]},"post_processor":null,"decoder":{"type":"ByteLevel"},)"
           R"("model":{"type":"BPE","vocab":{)" +
           vocab + R"(},"merges":["a a"]}})";
}

shd_tokenizer *Create(const std::string &json)
{
    shd_tokenizer_files files = {};
    files.path = "t";
    files.json = json.data();
    files.json_size = json.size();
    shd_tokenizer *tok = nullptr;
    shd_error err = {};
    EXPECT_EQ(shd_tokenizer_create(&files, &tok, &err), 0) << err.message;
    return tok;
}

double Since(std::chrono::steady_clock::time_point then)
{
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - then).count();
}

void Repeat(std::string *out, const std::string &unit, size_t size)
{
    while (out->size() < size) {
        *out += unit;
    }
}

struct Hostile {
    const char *name;
    std::string json, text;
};

std::vector<Hostile> MakeHostileOnes()
{
    constexpr size_t kSize = 16 << 20;
    std::string as(kSize, 'a'), ligatures, lines, spaces;
    Repeat(&ligatures, "\uFDFA", kSize);
    Repeat(&spaces, "\t ", kSize);
    std::string longer; // code that is too large for the quick way
    for (int i = 0; i < 400; i++) {
        longer += "(?=[\\s\\S]*Z" + std::to_string(i) + ")|";
    }
    const std::string rest = "|[\\s\\S]";
    const std::string almost = "{\"id\":5,\"content\":\"" + std::string(1023, 'a') +
                               "b\",\"special\":true,\"normalized\":false}";
    const std::string stripping = R"({"id":5,"content":"\t","rstrip":true,"special":true},)"
                                  R"({"id":6,"content":" ","special":true})";
    const std::string all = R"([\s\S]+)", four = R"({"type":"NFKD"})";
    return {
        {"NestedRepeats", Json("(?:a+)+b" + rest), as},
        {"AlternativesThatAreTheSame", Json("(?:a|a|a)*b" + rest), as},
        {"ScanInALoop", Json("(?:a(?=[^Z]*Z?))*Q" + rest), as},
        {"ScanFromEveryPlace", Json("[^Z]*Z" + rest), as},
        {"ManyRepeats", Json("a*a*a*a*a*Z" + rest), as},
        {"LongPattern", Json("(?:" + longer + "b)a" + rest), as},
        {"CountedRepeats", Json("(?:(?:a{1,20}){1,20}){1,8}b" + rest), as},
        {"OneWord", Json(all), as},
        {"AlmostAName", Json(all, "null", almost), as},
        {"NamesThatTakeSpaceAlong", Json(all, "null", stripping), spaces},
        {"NormalForms",
         Json(all, R"({"type":"Sequence","normalizers":[)" + four + "," + four + "," + four + "]}"),
         ligatures},
    };
}

const std::vector<Hostile> &HostileOnes()
{
    static const std::vector<Hostile> all = MakeHostileOnes();
    return all;
}

class Ends : public ::testing::TestWithParam<size_t>
{
};

TEST_P(Ends, CancelledInTime)
{
    const Hostile &h = HostileOnes()[GetParam()];
    shd_tokenizer *tok = Create(h.json);
    ASSERT_NE(tok, nullptr) << h.name;
    shd_encoder *encoder = shd_encoder_create(tok);
    shd_ids ids = SHD_IDS_INIT;
    int cancel = 0;
    shd_error err = {};
    std::atomic<bool> ended{false};
    shd_encoder_limit(encoder, &cancel, 0);
    std::chrono::steady_clock::time_point then;
    std::thread other([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        then = std::chrono::steady_clock::now();
        __atomic_store_n(&cancel, 1, __ATOMIC_RELAXED);
    });
    const int rc = shd_encoder_run(encoder, h.text.data(), h.text.size(), 0, &ids, &err);
    other.join();
    EXPECT_LT(Since(then), kPatience) << h.name;
    // Quick machines are through with the steps of a word before that.
    EXPECT_TRUE(rc == SHD_ECANCELLED ||
                (rc == SHD_EDATA && std::string(err.message).find("pattern") != std::string::npos))
        << h.name << ": " << rc << " " << err.message;
    // By itself.
    cancel = 0;
    shd_encoder_limit(encoder, nullptr, 0.2);
    const std::string part = h.text.substr(0, h.text.size() / 1024 * 3); // 48 KiB: 0.75 s
    then = std::chrono::steady_clock::now();
    err = {};
    const int limited = shd_encoder_run(encoder, part.data(), part.size(), 0, &ids, &err);
    EXPECT_LT(Since(then), kPatience) << h.name;
    if (limited < 0) { // some are slow with long texts only
        EXPECT_EQ(limited, SHD_EDATA) << h.name << ": " << err.message;
        EXPECT_NE(std::string(err.message).find("pattern"), std::string::npos) << err.message;
    }
    shd_ids_fini(&ids);
    shd_encoder_free(encoder);
    shd_tokenizer_free(tok);
}

INSTANTIATE_TEST_SUITE_P(All, Ends, ::testing::Range<size_t>(0, 11),
                         [](const auto &p) { return std::string(HostileOnes()[p.param].name); });

// ---- normal forms ----

// A token for every byte, so that decoding gives the normalised text back.
std::string EveryByte(const std::string &form)
{
    std::string vocab;
    int next = 256;
    for (int b = 0; b < 256; b++) {
        const bool shown = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
        char name[32];
        snprintf(name, sizeof(name), "%s\"\\u%04x\":%d", b > 0 ? "," : "", shown ? b : next++, b);
        vocab += name;
    }
    return R"({"version":"1.0","truncation":null,"padding":null,"added_tokens":[],"normalizer":)"
           R"({"type":")" +
           form +
           R"("},"pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false,"use_regex":false},)"
           R"("post_processor":null,"decoder":{"type":"ByteLevel"},"model":{"type":"BPE","vocab":{)" +
           vocab + R"(},"merges":[]}})";
}

TEST(NormalForms, InPartsAreThoseOfTheWholeText)
{
    static const char *const units[] = {"a",      "e",      "\u0301", "\u0323",     "\u0307",
                                        "\uac00", "\u1112", "\u1161", "\u11ab",     "\u0928",
                                        "\u093c", "\ufb01", "\u212b", "\U0002f800", "\ufdfa"};
    const std::pair<const char *, uninorm_t> forms[] = {
        {"NFC", UNINORM_NFC}, {"NFD", UNINORM_NFD}, {"NFKC", UNINORM_NFKC}, {"NFKD", UNINORM_NFKD}};
    std::mt19937_64 rng(3);
    for (int round = 0; round < 6; round++) {
        std::string text;
        while (text.size() < 400000) { // runs without an ASCII character that no part can end in
            const size_t ascii = rng() % 8 == 0 ? 0 : 2, n = ascii == 0 ? rng() % 60000 : 10;
            for (size_t i = 0; i < n; i++) {
                text += units[ascii == 0 ? 2 + rng() % 13 : rng() % 15];
            }
        }
        for (const auto &[name, form] : forms) {
            shd_tokenizer *tok = Create(EveryByte(name));
            shd_encoder *encoder = shd_encoder_create(tok);
            shd_ids ids = SHD_IDS_INIT;
            shd_error err = {};
            ASSERT_EQ(shd_encoder_run(encoder, text.data(), text.size(), 0, &ids, &err), 0)
                << err.message;
            char *got = nullptr;
            size_t n = 0, size = 0;
            ASSERT_EQ(shd_tokenizer_decode(tok, ids.items, ids.n, 0, &got, &n, &err), 0);
            uint8_t *want = u8_normalize(form, reinterpret_cast<const uint8_t *>(text.data()),
                                         text.size(), nullptr, &size);
            EXPECT_EQ(std::string(got, n), std::string(reinterpret_cast<char *>(want), size))
                << name << " in round " << round;
            free(got);
            free(want);
            shd_ids_fini(&ids);
            shd_encoder_free(encoder);
            shd_tokenizer_free(tok);
        }
    }
}

// ---- sentencepiece ----

std::string ReadFile(const std::string &name)
{
    std::ifstream in("tests/data/tokenizers/" + name, std::ios::binary);
    std::stringstream out;
    out << in.rdbuf();
    return out.str();
}

class Model
{
  public:
    // `more` fields of the message override the file's.
    explicit Model(const std::string &name, const std::string &more = "")
    {
        const std::string bytes = ReadFile(name) + more;
        shd_tokenizer_files files = {};
        files.path = "m";
        files.model = bytes.data();
        files.model_size = bytes.size();
        shd_error err = {};
        shd_sp_maps maps;
        EXPECT_EQ(shd_tokenizer_create(&files, &tok_, &err), 0) << err.message;
        EXPECT_EQ(shd_sp_create(bytes.data(), bytes.size(), &sp_, &maps, &err), 0) << err.message;
        encoder_ = shd_encoder_create(tok_);
    }
    ~Model()
    {
        shd_encoder_free(encoder_);
        shd_tokenizer_free(tok_);
        shd_sp_free(sp_);
    }
    // As the library does it, in one go.
    std::vector<int32_t> Uncut(const std::string &text) const
    {
        std::vector<int32_t> out;
        shd_error err = {};
        const auto push = [](void *arg, int32_t id) {
            static_cast<std::vector<int32_t> *>(arg)->push_back(id);
        };
        EXPECT_EQ(shd_sp_encode(sp_, text.data(), text.size(), push, &out, &err), 0) << err.message;
        return out;
    }
    int Run(const std::string &text, std::vector<int32_t> *out, std::string *message)
    {
        shd_ids ids = SHD_IDS_INIT;
        shd_error err = {};
        const int rc = shd_encoder_run(encoder_, text.data(), text.size(), 0, &ids, &err);
        out->assign(ids.items, ids.items + ids.n);
        *message = err.message;
        shd_ids_fini(&ids);
        return rc;
    }
    std::vector<int32_t> Pieces(const std::string &text, size_t step, size_t *pieces)
    {
        shd_ids ids = SHD_IDS_INIT;
        shd_error err = {};
        *pieces = 0;
        for (size_t at = 0, n = step, taken; at < text.size();) {
            const bool last = at + n >= text.size();
            const size_t size = last ? text.size() - at : n;
            EXPECT_EQ(shd_encoder_piece(encoder_, text.data() + at, size, last, &ids, &taken, &err),
                      0)
                << err.message;
            *pieces += taken > 0;
            at += taken;
            n = taken > 0 ? step : 2 * n;
        }
        std::vector<int32_t> out(ids.items, ids.items + ids.n);
        shd_ids_fini(&ids);
        return out;
    }

  private:
    shd_tokenizer *tok_ = nullptr;
    shd_sp *sp_ = nullptr;
    shd_encoder *encoder_ = nullptr;
};

std::string RandomLines(std::mt19937_64 *rng, size_t size)
{
    static const char *const units[] = {
        "\u4f60", "\u597d", "\u3002",     "in the", "beginning", " ",           "  ",     "\n",
        "\n\n",   " \n ",   "\r\n",       "1",      "23",        ".",           "\u0301", "\t",
        "\u2581", "<s>",    "\U0001f600", "a",      " b",        "\xef\xbf\xbd"};
    std::string out;
    while (out.size() < size) {
        const char *unit = units[(*rng)() % (sizeof(units) / sizeof(units[0]))];
        for (size_t i = (*rng)() % 20 == 0 ? 60 : 1; i > 0; i--) {
            out += unit;
        }
    }
    return out;
}

TEST(SentencePieceCuts, GiveTheIdsOfTheWholeText)
{
    Model model("sp_bpe.model");
    std::mt19937_64 rng(9);
    for (int round = 0; round < 30; round++) {
        const std::string text = RandomLines(&rng, 60000);
        const std::vector<int32_t> want = model.Uncut(text);
        std::vector<int32_t> got;
        std::string message;
        ASSERT_EQ(model.Run(text, &got, &message), 0) << message;
        ASSERT_EQ(got, want) << round;
        for (const size_t step : {700u, 9000u, 20000u}) {
            size_t pieces = 0;
            ASSERT_EQ(model.Pieces(text, step, &pieces), want) << round << ", " << step;
            EXPECT_GT(pieces, 60000u / std::max<size_t>(step, 16384) / 2);
        }
    }
}

// Whether the library puts a space before a text, keeps those that are there, or writes them behind
// words decides where cuts leave them.
TEST(SentencePieceCuts, WhateverTheModelDoesWithSpaces)
{
    using namespace std::string_literals;
    const std::string no_prefix = "\x1a\x02\x18\x00"s, // normalizer_spec.add_dummy_prefix
        no_extra = "\x1a\x02\x20\x01"s,                // .remove_extra_whitespaces
        suffix = "\x12\x03\xc0\x01\x01"s;              // trainer_spec.treat_whitespace_as_suffix
    std::mt19937_64 rng(10);
    for (const std::string &more : {no_prefix, no_extra, suffix, no_prefix + no_extra,
                                    no_prefix + suffix, no_extra + suffix}) {
        Model model("sp_bpe.model", more);
        for (int round = 0; round < 5; round++) {
            const std::string text = RandomLines(&rng, 40000);
            const std::vector<int32_t> want = model.Uncut(text);
            std::vector<int32_t> got;
            std::string message;
            ASSERT_EQ(model.Run(text, &got, &message), 0) << message;
            ASSERT_EQ(got, want) << testing::PrintToString(more) << ", " << round;
            size_t pieces = 0;
            ASSERT_EQ(model.Pieces(text, 9000, &pieces), want) << testing::PrintToString(more);
        }
    }
}

TEST(SentencePieceCuts, LinesOfAScriptWithoutSpaces)
{
    Model model("sp_bpe.model");
    std::string text;
    while (text.size() < 200000) {
        for (int i = 0; i < 60; i++) {
            text += i % 3 == 0 ? "\u4f60" : "\u597d";
        }
        text += "\n";
    }
    size_t pieces = 0;
    EXPECT_EQ(model.Pieces(text, 10000, &pieces), model.Uncut(text));
    EXPECT_GT(pieces, 10u);
}

// Lines of several scripts, with numbers, marks and ill-formed bytes, until there are `size` bytes.
std::vector<std::string> MixedLines(size_t size)
{
    static const char *const words[] = {"In",
                                        "the",
                                        "beginning",
                                        "God",
                                        "created,",
                                        "heaven",
                                        "1234",
                                        "e\u0301t\u00e9",
                                        "\u0432",
                                        "\u043d\u0430\u0447\u0430\u043b\u0435",
                                        "\u0928\u092e\u0938\u094d\u0924\u0947",
                                        "\u8d77\u521d\uff0c",
                                        "\u0645\u0631\u062d\u0628\u0627",
                                        "don't",
                                        "\ufb01ne",
                                        "x=1;",
                                        "\xff\xe4",
                                        "\u2581",
                                        "  ",
                                        "\u00a0",
                                        "\U0001f600",
                                        "\ufeff"};
    std::mt19937_64 rng(21);
    std::vector<std::string> lines;
    for (size_t n = 0; n < size; n += lines.back().size() + 1) {
        std::string line = "And"; // a letter begins it, a letter ends it
        for (size_t i = rng() % 30; i > 0; i--) {
            line += " " + std::string(words[rng() % (sizeof(words) / sizeof(words[0]))]);
        }
        lines.push_back(line + (rng() % 2 == 0 ? " said" : " \u0438"));
    }
    return lines;
}

// The same ids however the text comes, and those that the library gives for each line: in lines,
// sums of scores are short enough for single precision.
TEST(SentencePieceCuts, LongTextsOfAUnigramModel)
{
    Model model("sp_unigram.model");
    const std::vector<std::string> lines = MixedLines(size_t{3} << 20);
    std::string text;
    std::vector<int32_t> want;
    for (const std::string &line : lines) {
        text += (text.empty() ? "" : "\n") + line;
        std::string lossy(shd_utf8_lossy(line.data(), line.size(), nullptr), ' ');
        shd_utf8_lossy(line.data(), line.size(), lossy.data());
        const std::vector<int32_t> ids = model.Uncut(lossy);
        want.insert(want.end(), ids.begin(), ids.end());
    }
    std::vector<int32_t> got;
    std::string message;
    ASSERT_EQ(model.Run(text, &got, &message), 0) << message;
    EXPECT_TRUE(got == want) << got.size() << " ids, not " << want.size();
    for (const size_t step : {size_t{65536}, size_t{1} << 20, (size_t{1} << 20) + 3}) {
        size_t pieces = 0;
        EXPECT_TRUE(model.Pieces(text, step, &pieces) == want) << step;
        EXPECT_GE(pieces, 2u);
    }
}

// Up to the bound the library sees the whole text.
TEST(SentencePieceCuts, ShorterTextsOfAUnigramModelAreWhole)
{
    Model model("sp_unigram.model");
    std::string text;
    for (const std::string &line : MixedLines((size_t{1} << 20) - 4096)) {
        text += line + "\n";
    }
    std::string lossy(shd_utf8_lossy(text.data(), text.size(), nullptr), ' ');
    shd_utf8_lossy(text.data(), text.size(), lossy.data());
    lossy.resize(shd_utf8_valid(lossy.data(), std::min<size_t>(lossy.size(), 1 << 20)));
    size_t pieces = 0;
    EXPECT_TRUE(model.Pieces(lossy, 65536, &pieces) == model.Uncut(lossy));
    EXPECT_EQ(pieces, 1u);
}

TEST(SentencePieceCuts, WhatCannotBeCutHasABound)
{
    for (const char *name : {"sp_unigram.model", "sp_bpe.model"}) {
        Model model(name);
        std::string text, message;
        Repeat(&text, "\u4f60a", 1 << 20);
        text.resize(1 << 20);
        text += text;
        std::vector<int32_t> ids;
        const auto then = std::chrono::steady_clock::now();
        EXPECT_EQ(model.Run(text, &ids, &message), SHD_EDATA) << name;
        EXPECT_LT(Since(then), kPatience) << name;
        EXPECT_NE(message.find("at most 1048576 bytes"), std::string::npos) << message;
        EXPECT_NE(message.find("shorter documents"), std::string::npos) << message;
        const auto begin = std::chrono::steady_clock::now();
        EXPECT_EQ(model.Run(text.substr(0, 1048576), &ids, &message), 0) << message;
        printf("%s: %.2f s for 1 MiB in one go\n", name, Since(begin));
        EXPECT_LT(Since(begin), kPatience) << name;
    }
}

} // namespace
