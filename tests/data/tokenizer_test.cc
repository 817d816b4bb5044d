// Tokenizer files that are wrong or unknown: each is refused by its name.
#include "daemon/data/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "daemon/data/regex.h"
#include "daemon/data/sentencepiece_check.h"
#include "daemon/data/utf8.h"

namespace
{

// Byte-level BPE over "a", "b", "c" and a space; parts can be replaced.
struct File {
    std::string vocab = R"("a":0,"b":1,"c":2,"\u0120":3,"ab":4,"abc":5)";
    std::string merges = R"("a b","ab c")";
    std::string model = R"("type":"BPE")";
    std::string normalizer = "null";
    std::string pre = R"({"type":"ByteLevel","add_prefix_space":false})";
    std::string added;
    std::string post = "null";
    std::string decoder = R"({"type":"ByteLevel"})";
    std::string more;

    std::string text() const
    {
        return R"({"version":"1.0","truncation":null,"padding":null,"added_tokens":[)" + added +
               R"(],"normalizer":)" + normalizer + R"(,"pre_tokenizer":)" + pre +
               R"(,"post_processor":)" + post + R"(,"decoder":)" + decoder + R"(,"model":{)" +
               model + R"(,"vocab":{)" + vocab + R"(},"merges":[)" + merges + "]}" + more + "}";
    }
};

int Create(const std::string &json, const char *config, shd_tokenizer **out, shd_error *err)
{
    shd_tokenizer_files files = {};
    files.path = "t";
    files.json = json.data();
    files.json_size = json.size();
    files.config = config;
    files.config_size = config != nullptr ? strlen(config) : 0;
    return shd_tokenizer_create(&files, out, err);
}

std::vector<int32_t> Encode(shd_tokenizer *tok, const std::string &text, unsigned flags = 0)
{
    shd_encoder *encoder = shd_encoder_create(tok);
    shd_ids ids = SHD_IDS_INIT;
    shd_error err = {};
    EXPECT_EQ(shd_encoder_run(encoder, text.data(), text.size(), flags, &ids, &err), 0)
        << err.message;
    std::vector<int32_t> out(ids.items, ids.items + ids.n);
    shd_ids_fini(&ids);
    shd_encoder_free(encoder);
    return out;
}

std::vector<int32_t> EncodeWith(const File &file, const std::string &text, unsigned flags = 0)
{
    shd_tokenizer *tok = nullptr;
    shd_error err = {};
    EXPECT_EQ(Create(file.text(), nullptr, &tok, &err), 0) << err.message;
    if (tok == nullptr) {
        return {};
    }
    auto ids = Encode(tok, text, flags);
    shd_tokenizer_free(tok);
    return ids;
}

using Ids = std::vector<int32_t>;

void Refused(const std::string &json, int code, const std::vector<std::string> &words,
             const char *config = nullptr)
{
    shd_tokenizer *tok = nullptr;
    shd_error err = {};
    EXPECT_EQ(Create(json, config, &tok, &err), code) << err.message << "\n" << json;
    EXPECT_EQ(tok, nullptr);
    for (const std::string &word : words) {
        EXPECT_NE(std::string(err.message).find(word), std::string::npos)
            << err.message << " lacks " << word;
    }
}

void Refused(const File &file, int code, const std::vector<std::string> &words,
             const char *config = nullptr)
{
    Refused(file.text(), code, words, config);
}

TEST(Bytes, AreTokens)
{
    shd_tokenizer *tok = shd_tokenizer_bytes();
    EXPECT_STREQ(shd_tokenizer_name(tok), "bytes");
    EXPECT_EQ(shd_tokenizer_vocab(tok), 256u);
    EXPECT_EQ(shd_tokenizer_eos(tok), -1);
    EXPECT_EQ(Encode(tok, std::string("a\0\xff", 3), SHD_ENCODE_SPECIAL), (Ids{97, 0, 255}));
    shd_tokenizer_free(tok);
}

TEST(Bpe, MergesByRank)
{
    File f;
    EXPECT_EQ(EncodeWith(f, "abcab cc"), (Ids{5, 4, 3, 2, 2}));
    f.merges = R"(["a","b"],["ab","c"])"; // the same as pairs
    EXPECT_EQ(EncodeWith(f, "abcab cc"), (Ids{5, 4, 3, 2, 2}));
    // "bc" before "ab": the leftmost of the lowest rank.
    f.vocab = R"("a":0,"b":1,"c":2,"bc":3,"ab":4,"abc":5)";
    f.merges = R"("b c","a b","ab c")";
    EXPECT_EQ(EncodeWith(f, "abc"), (Ids{0, 3}));
    // A word that is a token needs no merges when they may be ignored.
    f.model += R"(,"ignore_merges":true)";
    EXPECT_EQ(EncodeWith(f, "abc"), (Ids{5}));
}

TEST(Bpe, LongWordsMergeAsShortOnesDo)
{
    File f;
    std::string word;
    Ids want;
    for (int i = 0; i < 300; i++) {
        word += i % 3 == 0 ? "abc" : i % 3 == 1 ? "ab" : "cab";
        if (i % 3 == 0) {
            want.push_back(5);
        } else if (i % 3 == 1) {
            want.push_back(5); // "ab" + "c" of the next
        } else {
            want.push_back(4);
        }
    }
    EXPECT_EQ(EncodeWith(f, word), want);
}

TEST(Bpe, BytesWithoutAToken)
{
    File f;
    EXPECT_EQ(EncodeWith(f, "axb"), (Ids{4})); // as the library: they are gone
    f.vocab += R"(,"<unk>":6)";
    f.model += R"(,"unk_token":"<unk>")";
    EXPECT_EQ(EncodeWith(f, "axyb"), (Ids{0, 6, 6, 1}));
    f.model += R"(,"fuse_unk":true)";
    EXPECT_EQ(EncodeWith(f, "axyb"), (Ids{0, 6, 1}));
    f.model = R"("type":"BPE","unk_token":"<none>")";
    Refused(f, SHD_EDATA, {"unk_token"});
}

TEST(Added, TheirRules)
{
    File f;
    const std::string tail = R"(,"special":true,"normalized":false,)";
    f.added =
        R"({"id":6,"content":"<s>")" + tail + R"("lstrip":true,"rstrip":true,"single_word":false})";
    EXPECT_EQ(EncodeWith(f, "a <s>  b<s>"), (Ids{0, 6, 1, 6}));
    f.added =
        R"({"id":6,"content":"bc")" + tail + R"("lstrip":false,"rstrip":false,"single_word":true})";
    EXPECT_EQ(EncodeWith(f, "bc abc bc"), (Ids{6, 3, 5, 3, 6}));
    EXPECT_EQ(EncodeWith(f, "abcb\xc3\xa9"
                            "bc"),
              (Ids{5, 1, 1, 2})); // the letter beside counts
}

TEST(Stages, SplitRemovedAndDigits)
{
    File f;
    f.pre = R"({"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"String":" "},)"
            R"("behavior":"Removed","invert":false},{"type":"Digits","individual_digits":true},)"
            R"({"type":"ByteLevel","add_prefix_space":false,"use_regex":false}]})";
    EXPECT_EQ(EncodeWith(f, "ab c"), (Ids{4, 2}));
    f.pre = R"({"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"Regex":"[ab]+"},)"
            R"("behavior":"Removed","invert":true},)"
            R"({"type":"ByteLevel","add_prefix_space":true,"use_regex":false}]})";
    EXPECT_EQ(EncodeWith(f, "abcab"), (Ids{3, 4, 3, 4}));
}

TEST(Refusals, FilesThatAreBroken)
{
    const std::string good = File().text();
    Refused(good.substr(0, good.size() / 2), SHD_EDATA, {"tokenizer.json", "not JSON"});
    Refused("", SHD_EDATA, {"not JSON"});
    Refused("[]", SHD_EDATA, {"not an object"});
    File f;
    f.merges = R"("ab")";
    Refused(f, SHD_EDATA, {"merge 0 'ab'", "two names"});
    f.merges = R"("a b","ab c d")";
    Refused(f, SHD_EDATA, {"merge 1"});
    f.merges = R"(["a","b","c"])";
    Refused(f, SHD_EDATA, {"merge 0", "pair"});
    f.merges = R"("a x")";
    Refused(f, SHD_EDATA, {"merge 0", "'x' is not in the vocabulary"});
    f.merges = R"("b c")";
    Refused(f, SHD_EDATA, {"merge 0", "'bc' is not in the vocabulary"});
    f = File();
    f.vocab += R"(,"d":5)";
    Refused(f, SHD_EDATA, {"both have id 5", "'abc'", "'d'"});
    f.vocab = R"("a":0,"a":1)";
    Refused(f, SHD_EDATA, {"not JSON", "duplicate"});
    f.vocab = R"("a":-1)";
    Refused(f, SHD_EDATA, {"id -1"});
    f.vocab = R"("a":99999999)";
    Refused(f, SHD_EDATA, {"id 99999999"});
    f.vocab = R"("a":"x")";
    Refused(f, SHD_EDATA, {"'a' has id -1"});
    f = File();
    f.added = R"({"id":7,"content":"<s>"})";
    Refused(f, SHD_EDATA, {"'<s>' has id 7", "next free one is 6"});
    f.added = R"({"id":7,"content":"ab"})";
    Refused(f, SHD_EDATA, {"'ab' has id 7", "vocabulary it has 4"});
    f.added = R"({"id":6,"content":")" + std::string(1024, 's') + "\"}";
    EXPECT_EQ(EncodeWith(f, std::string(1024, 's')), std::vector<int32_t>{6});
    f.added = R"({"id":6,"content":")" + std::string(1025, 's') + "\"}";
    Refused(f, SHD_EUNSUPPORTED, {"added token 0 has 1025 bytes", "1024"});
    f.added = R"({"id":6})";
    Refused(f, SHD_EDATA, {"added token 0", "no content"});
    f.added = R"({"id":6,"content":"<s>","lstrip":1})";
    Refused(f, SHD_EDATA, {"'lstrip'"});
    f = File();
    f.post =
        R"({"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<s>"}}],"special_tokens":{}})";
    Refused(f, SHD_EDATA, {"post_processor"});
    f.post = R"({"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<s>"}}],)"
             R"("special_tokens":{"<s>":{"ids":[77]}}})";
    Refused(f, SHD_EDATA, {"without a token"});
}

TEST(Refusals, WhatWouldChangeIdsAndIsUnknown)
{
    const auto with = [](std::string File::*part, const std::string &value) {
        File f;
        f.*part = value;
        return f;
    };
    Refused(with(&File::model, R"("type":"WordPiece")"), SHD_EUNSUPPORTED, {"'WordPiece'", "BPE"});
    Refused(with(&File::model, R"("type":"BPE","dropout":0.1)"), SHD_EUNSUPPORTED, {"dropout 0.1"});
    Refused(with(&File::model, R"("type":"BPE","byte_fallback":true)"), SHD_EUNSUPPORTED,
            {"byte_fallback", "tokenizer.model"});
    Refused(with(&File::model, R"("type":"BPE","end_of_word_suffix":"</w>")"), SHD_EUNSUPPORTED,
            {"end_of_word_suffix"});
    Refused(with(&File::model, R"("type":"BPE","new_thing":1)"), SHD_EUNSUPPORTED,
            {"model", "'new_thing'"});
    Refused(with(&File::normalizer, R"({"type":"Lowercase"})"), SHD_EUNSUPPORTED,
            {"normalizer 'Lowercase'"});
    Refused(with(&File::pre, R"({"type":"Metaspace"})"), SHD_EUNSUPPORTED,
            {"pre_tokenizer 'Metaspace'"});
    Refused(with(&File::pre, "null"), SHD_EUNSUPPORTED, {"ByteLevel"});
    Refused(with(&File::pre, R"({"type":"ByteLevel","more":1})"), SHD_EUNSUPPORTED,
            {"ByteLevel", "'more'"});
    Refused(
        with(&File::pre, R"({"type":"Split","pattern":{"Regex":"a"},"behavior":"MergedWithNext"})"),
        SHD_EUNSUPPORTED, {"'MergedWithNext'"});
    Refused(with(&File::pre, R"({"type":"Split","pattern":{"Regex":"\\h"},"behavior":"Isolated"})"),
            SHD_EUNSUPPORTED, {"escape", "\\h"});
    Refused(with(&File::post, R"({"type":"BertProcessing"})"), SHD_EUNSUPPORTED,
            {"post_processor 'BertProcessing'"});
    Refused(with(&File::decoder, R"({"type":"WordPiece"})"), SHD_EUNSUPPORTED,
            {"decoder 'WordPiece'"});
    Refused(with(&File::more, R"(,"surprise":{})"), SHD_EUNSUPPORTED, {"'surprise'"});
    std::string cut = File().text();
    cut.replace(cut.find(R"("truncation":null)"), 17, R"("truncation":{})");
    Refused(cut, SHD_EUNSUPPORTED, {"truncation"});
}

TEST(Config, NamesBeginAndEnd)
{
    File f;
    f.added = R"({"id":6,"content":"</s>","special":true},{"id":7,"content":"<e>","special":true})";
    shd_tokenizer *tok = nullptr;
    shd_error err = {};
    ASSERT_EQ(Create(f.text(), nullptr, &tok, &err), 0) << err.message;
    EXPECT_EQ(shd_tokenizer_eos(tok), 6);
    const std::string digest = shd_tokenizer_digest(tok);
    shd_tokenizer_free(tok);
    const char *config = R"({"eos_token":"<e>","bos_token":{"content":"</s>"},
                             "model_max_length":1000000000000000019884624838656})";
    ASSERT_EQ(Create(f.text(), config, &tok, &err), 0) << err.message;
    EXPECT_EQ(shd_tokenizer_eos(tok), 7);
    EXPECT_EQ(shd_tokenizer_bos(tok), 6);
    EXPECT_NE(shd_tokenizer_digest(tok), digest);
    shd_tokenizer_free(tok);
    Refused(f, SHD_EDATA, {"tokenizer_config.json", "eos_token", "<none>"},
            R"({"eos_token":"<none>"})");
    Refused(f, SHD_EDATA, {"tokenizer_config.json", "not JSON"}, "{");
}

TEST(SentencePiece, AFileThatIsNone)
{
    shd_tokenizer_files files = {};
    files.path = "t";
    files.model = "nonsense";
    files.model_size = 8;
    shd_tokenizer *tok = nullptr;
    shd_error err = {};
    EXPECT_EQ(shd_tokenizer_create(&files, &tok, &err), SHD_EDATA);
    EXPECT_NE(std::string(err.message).find("tokenizer.model"), std::string::npos) << err.message;
    files.json = "{}";
    EXPECT_EQ(shd_tokenizer_create(&files, &tok, &err), SHD_EINVAL);
}

// A serialized field of `bytes`.
std::string Field(int number, const std::string &bytes)
{
    std::string out(1, static_cast<char>(number << 3 | 2));
    for (size_t n = bytes.size(); true; n >>= 7) {
        out += static_cast<char>((n & 0x7f) | (n > 0x7f ? 0x80 : 0));
        if (n <= 0x7f) {
            return out + bytes;
        }
    }
}

std::string Word(uint32_t value)
{
    std::string out;
    for (int i = 0; i < 4; i++) {
        out += static_cast<char>(value >> 8 * i);
    }
    return out;
}

// Normalizers whose map of characters has these units (256 with those that lead nowhere) and
// `text`.
std::string Charsmap(std::vector<uint32_t> units, const std::string &text)
{
    std::string trie;
    units.resize(256, 1u << 31);
    for (uint32_t unit : units) {
        trie += Word(unit);
    }
    return Field(3, Field(1, "nmt") + Field(2, Word(1024) + trie + text));
}

// The library follows such files out of its memory: they never reach it.
TEST(SentencePiece, AMapOfCharactersLeadsNowhereElse)
{
    const std::string text("abc\0", 4);
    const uint32_t ends = 1u << 8, value = 1u << 31;
    std::vector<uint32_t> once(256, value), endless(256, value);
    once[0] = endless[0] = 2u << 10;
    once[0x63] = 'a' | 1u << 10 | ends; // "a" becomes "abc"
    once[0x62] = value | 0;
    endless[0x63] = endless[3] = 'a' | 1u << 10; // "aa" leads to "aaa" and so on
    const std::vector<std::pair<std::string, const char *>> cases = {
        {Charsmap({1u << 10 | ends, value | 3}, text), nullptr},
        {Charsmap({1u << 10 | ends, value | 4}, text), "unit 0 .* a text outside"},
        {Charsmap({0x1fffffu << 10}, text), "unit 0 .* leads out"},
        {Charsmap({0, 1u << 9 | 1u << 10}, text), "unit 1 .* leads out"},
        {Charsmap({1u << 31 | 0x1fffffu << 10}, text), "unit 0 .* leads out"},
        {Charsmap(once, text), nullptr},
        {Charsmap(endless, text), "more than 256 bytes"},
        {Charsmap({1u << 10 | ends, value | 0}, std::string(5000, 'x')), "text of 4096 bytes"},
        {Field(3, Field(2, Word(8) + Word(0))), "cut off"},
        {Field(5, Field(2, Word(0))), "empty"},
        {Field(3, "\x12\x7f"), "normalizer is damaged"},
        {Field(1, "") + "\x0b\x0c" + Charsmap({0x1fffffu << 10}, text), "byte 2 begins no field"},
    };
    for (const auto &[model, message] : cases) {
        shd_error err = {};
        shd_sp_maps maps;
        const int rc = shd_sp_check(model.data(), model.size(), &maps, &err);
        EXPECT_EQ(rc, message != nullptr ? SHD_EDATA : 0);
        EXPECT_THAT(err.message, testing::ContainsRegex(message != nullptr ? message : ""));
    }
    const std::string wild = Charsmap({0x1fffffu << 10}, text);
    shd_tokenizer_files files = {};
    files.path = "m";
    files.model = wild.data();
    files.model_size = wild.size();
    shd_tokenizer *tok = nullptr;
    shd_error err = {};
    EXPECT_EQ(shd_tokenizer_create(&files, &tok, &err), SHD_EDATA);
    EXPECT_THAT(err.message, testing::ContainsRegex("leads out"));
}

// What such maps make of spaces decides where a text can be cut.
TEST(SentencePiece, AMapThatJoinsWords)
{
    const uint32_t ends = 1u << 8, value = 1u << 31;
    // A trie with one key; its units are far enough apart.
    const auto joins = [&](const std::string &key) {
        std::vector<uint32_t> units(256, value);
        uint32_t at = 0;
        for (size_t i = 0; i < key.size(); i++) {
            const uint32_t offset = 2u << 3 * i, child = at ^ offset ^ static_cast<uint8_t>(key[i]);
            units[at] = (i == 0 ? 0 : static_cast<uint8_t>(key[i - 1])) | offset << 10;
            at = child;
        }
        units[at] = static_cast<uint8_t>(key.back()) | 1u << 10 | ends;
        units[at ^ 1] = value | 0;
        const std::string model = Charsmap(units, std::string("x\0", 2));
        shd_sp_maps maps;
        shd_error err = {};
        EXPECT_EQ(shd_sp_check(model.data(), model.size(), &maps, &err), 0) << err.message;
        return maps.joins;
    };
    EXPECT_FALSE(joins("a"));
    EXPECT_FALSE(joins("ab"));
    EXPECT_FALSE(joins("\n"));
    EXPECT_TRUE(joins(" "));
    EXPECT_TRUE(joins(" a"));
    EXPECT_TRUE(joins("a b"));
    EXPECT_TRUE(joins("\na"));
    EXPECT_TRUE(joins("a\n"));
}

TEST(Decode, IdsThatAreNoToken)
{
    shd_tokenizer *tok = nullptr;
    shd_error err = {};
    ASSERT_EQ(Create(File().text(), nullptr, &tok, &err), 0);
    char *text = nullptr;
    size_t n = 0;
    for (const int32_t id : {-1, 6, INT32_MAX}) {
        EXPECT_EQ(shd_tokenizer_decode(tok, &id, 1, 0, &text, &n, &err), SHD_EINVAL);
        EXPECT_NE(std::string(err.message).find(std::to_string(id)), std::string::npos);
    }
    // A model may have more ids than its tokenizer: in a stream they stand for nothing.
    shd_text_stream *stream = shd_text_stream_create(tok, 1);
    shd_text_stream_push(stream, 600, &n);
    EXPECT_EQ(n, 0u);
    shd_text_stream_free(stream);
    shd_tokenizer_free(tok);
}

TEST(Decode, StreamHoldsCharactersBack)
{
    shd_tokenizer *tok = shd_tokenizer_bytes();
    shd_text_stream *stream = shd_text_stream_create(tok, 1);
    const auto push = [&](unsigned char byte) {
        size_t n = 0;
        const char *text = shd_text_stream_push(stream, byte, &n);
        return std::string(text, n);
    };
    EXPECT_EQ(push('a'), "a");
    EXPECT_EQ(push(0xe2), "");
    EXPECT_EQ(push(0x82), "");
    EXPECT_EQ(push(0xac), "\u20ac");
    EXPECT_EQ(push(0xf0), "");
    EXPECT_EQ(push('b'), "\ufffd"
                         "b");
    EXPECT_EQ(push(0xff), "\ufffd");
    EXPECT_EQ(push(0xe2), "");
    EXPECT_EQ(push(0x82), "");
    size_t n = 0;
    const char *rest = shd_text_stream_end(stream, &n);
    EXPECT_EQ(std::string(rest, n), "\ufffd");
    shd_text_stream_end(stream, &n);
    EXPECT_EQ(n, 0u);
    shd_text_stream_free(stream);
    shd_tokenizer_free(tok);
}

TEST(Regex, WhatIsReadDifferentlyIsRewritten)
{
    const auto translated = [](const std::string &pattern) {
        char *out = nullptr;
        shd_error err = {};
        EXPECT_EQ(shd_regex_translate(pattern.c_str(), &out, &err), 0) << err.message;
        const std::string text = out != nullptr ? out : "";
        free(out);
        return text;
    };
    EXPECT_EQ(translated(R"(\s+(?!\S)|\s+)"),
              R"(\p{White_Space}+(?!\P{White_Space})|\p{White_Space}+)");
    EXPECT_EQ(translated(R"([^\r\n\p{L}\p{N}]?\p{L}+)"), R"([^\r\n\p{L}\p{N}]?\p{L}+)");
    EXPECT_EQ(translated(R"(\p{Han}|\p{^Lu}(a){,3}{x)"), R"(\p{sc:Han}|\p{^Lu}(?:a){0,3}\{x)");
    EXPECT_EQ(translated(R"([\w]\w\d\u00e9)"),
              R"([\p{L}\p{M}\p{Nd}\p{Pc}][\p{L}\p{M}\p{Nd}\p{Pc}]\p{Nd}\x{00e9})");
    EXPECT_EQ(translated(R"((?i:'s|'t)|[]a])"), R"((?i:'s|'t)|[\]a])");
}

TEST(Regex, WhatIsNotKnownIsRefused)
{
    shd_regex *regex = nullptr;
    shd_error err = {};
    for (const char *pattern :
         {R"(\h)", R"(\b)", R"((?<n>a))", R"([a[b]])", R"([a&&b])", R"([[:alpha:]])", R"(a{1,3}+)",
          R"(a{2}?)", R"((*UTF))", R"(\1)", R"([\W])", R"(\x80)", R"([abc)", R"(\pL)", R"(\p{X1})",
          R"(\R)", R"(\)"}) {
        EXPECT_EQ(shd_regex_compile(pattern, &regex, &err), SHD_EUNSUPPORTED) << pattern;
        EXPECT_NE(std::string(err.message).find(pattern), std::string::npos) << err.message;
    }
    EXPECT_EQ(shd_regex_compile("a*", &regex, &err), SHD_EUNSUPPORTED);
    EXPECT_NE(std::string(err.message).find("matches nothing"), std::string::npos);
    EXPECT_EQ(shd_regex_compile("(a", &regex, &err), SHD_EDATA);
    EXPECT_EQ(shd_regex_compile(R"(\p{Nonsense})", &regex, &err), SHD_EDATA);
}

TEST(Regex, APatternWithoutEndIsStopped)
{
    File f;
    f.pre = R"({"type":"Sequence","pretokenizers":[{"type":"Split","pattern":)"
            R"({"Regex":"(?:(?:a|aa)+)+[bc]"},"behavior":"Isolated"},)"
            R"({"type":"ByteLevel","add_prefix_space":false}]})";
    shd_tokenizer *tok = nullptr;
    shd_error err = {};
    ASSERT_EQ(Create(f.text(), nullptr, &tok, &err), 0) << err.message;
    shd_encoder *encoder = shd_encoder_create(tok);
    shd_ids ids = SHD_IDS_INIT;
    const std::string text(40, 'a');
    EXPECT_EQ(shd_encoder_run(encoder, text.data(), text.size(), 0, &ids, &err), SHD_EDATA);
    EXPECT_NE(std::string(err.message).find("pattern takes more than 100000000 steps"),
              std::string::npos)
        << err.message;
    shd_ids_fini(&ids);
    shd_encoder_free(encoder);
    shd_tokenizer_free(tok);
}

TEST(Encoder, Ends)
{
    File f;
    f.pre = R"({"type":"Sequence","pretokenizers":[{"type":"Split","pattern":)"
            R"({"Regex":"[ab]+[cd]|a"},"behavior":"Isolated"},)"
            R"({"type":"ByteLevel","add_prefix_space":false}]})";
    shd_tokenizer *tok = nullptr;
    shd_error err = {};
    ASSERT_EQ(Create(f.text(), nullptr, &tok, &err), 0) << err.message;
    shd_encoder *encoder = shd_encoder_create(tok);
    shd_ids ids = SHD_IDS_INIT;
    const std::string text(300000, 'a'); // every word looks through the rest of the text
    shd_encoder_limit(encoder, nullptr, 0.05);
    EXPECT_EQ(shd_encoder_run(encoder, text.data(), 2000, 0, &ids, &err), 0) << err.message;
    shd_encoder_limit(encoder, nullptr, 1e-9);
    EXPECT_EQ(shd_encoder_run(encoder, text.data(), text.size(), 0, &ids, &err), SHD_EDATA);
    EXPECT_NE(std::string(err.message).find("64 KiB"), std::string::npos) << err.message;
    int cancel = 1;
    shd_encoder_limit(encoder, &cancel, 0);
    EXPECT_EQ(shd_encoder_run(encoder, text.data(), text.size(), 0, &ids, &err), SHD_ECANCELLED);
    cancel = 0;
    EXPECT_EQ(shd_encoder_run(encoder, text.data(), 2000, 0, &ids, &err), 0) << err.message;
    shd_ids_fini(&ids);
    shd_encoder_free(encoder);
    shd_tokenizer_free(tok);
}

TEST(Utf8, MaximalSubparts)
{
    const auto lossy = [](const std::string &s) {
        std::string out(3 * s.size() + 3, '\0');
        out.resize(shd_utf8_lossy(s.data(), s.size(), &out[0]));
        EXPECT_EQ(out.size(), shd_utf8_lossy(s.data(), s.size(), nullptr));
        return out;
    };
    const std::string r = "\xef\xbf\xbd";
    // Unicode 15, tables 3-8 to 3-11.
    EXPECT_EQ(lossy("\xc0\xaf\xe0\x80\xbf\xf0\x81\x82\x41"), r + r + r + r + r + r + r + r + "A");
    EXPECT_EQ(lossy("\xed\xa0\x80\xed\xbf\xbf\xed\xaf\x41"), r + r + r + r + r + r + r + r + "A");
    EXPECT_EQ(lossy("\xf4\x91\x92\x93\xff\x41\x80\xbf\x42"), r + r + r + r + r + "A" + r + r + "B");
    EXPECT_EQ(lossy("\xe1\x80\xe2\xf0\x91\x92\xf1\xbf\x41"), r + r + r + r + "A");
    EXPECT_EQ(lossy("plain \u00e9\u4e2d\U0001f600 text"), "plain \u00e9\u4e2d\U0001f600 text");
    EXPECT_EQ(lossy("cut\xf0\x9f"), "cut" + r);
}

} // namespace
