// Token ids are those of the libraries that define them: `tokenizers` and `sentencepiece`, on 2 MB
// of mixed text (tokenizers/make_tokenizers.py).
#include <gtest/gtest.h>
#include <jansson.h>

#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "daemon/data/tokenizer.h"

namespace
{

constexpr size_t kChunk = 1 << 16;
constexpr int kChunks = 32;

std::string ReadFile(const std::string &name)
{
    std::ifstream in("tests/data/tokenizers/" + name, std::ios::binary);
    std::stringstream out;
    out << in.rdbuf();
    EXPECT_FALSE(out.str().empty()) << name;
    return out.str();
}

using Json = std::unique_ptr<json_t, decltype(&json_decref)>;

Json ReadJson(const std::string &name)
{
    const std::string text = ReadFile(name);
    return Json(json_loadb(text.data(), text.size(), JSON_ALLOW_NUL, nullptr), json_decref);
}

std::string Unhex(const std::string &hex)
{
    std::string out;
    for (size_t i = 0; i + 1 < hex.size(); i += 2) {
        out += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
    }
    return out;
}

// As in make_tokenizers.py.
const std::vector<std::string> &MixedText()
{
    static const std::vector<std::string> chunks = [] {
        const Json list = ReadJson("snippets.json");
        std::vector<std::string> snippets;
        for (size_t i = 0; i < json_array_size(list.get()); i++) {
            const json_t *item = json_array_get(list.get(), i);
            const json_t *hex = json_object_get(item, "hex");
            snippets.push_back(
                hex != nullptr ? Unhex(json_string_value(hex))
                               : std::string(json_string_value(item), json_string_length(item)));
        }
        std::vector<std::string> out;
        uint64_t state = 1;
        for (int i = 0; i < kChunks; i++) {
            std::string text;
            while (text.size() < kChunk) {
                state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
                text += snippets[(state >> 33) % snippets.size()];
            }
            out.push_back(text);
        }
        return out;
    }();
    return chunks;
}

std::string Digest(const shd_ids &ids)
{
    uint64_t h = UINT64_C(14695981039346656037);
    for (size_t i = 0; i < ids.n; i++) {
        h = (h ^ static_cast<uint64_t>(ids.items[i])) * UINT64_C(1099511628211);
    }
    char text[17];
    snprintf(text, sizeof(text), "%016llx", static_cast<unsigned long long>(h));
    return text;
}

// A tokenizer of the folder, with its encoder.
class Tokenizer
{
  public:
    explicit Tokenizer(const std::string &file)
    {
        const std::string bytes = ReadFile(file);
        shd_tokenizer_files files = {};
        files.path = file.c_str();
        if (file.find(".json") != std::string::npos) {
            files.json = bytes.data();
            files.json_size = bytes.size();
        } else {
            files.model = bytes.data();
            files.model_size = bytes.size();
        }
        shd_error err = {};
        EXPECT_EQ(shd_tokenizer_create(&files, &tok_, &err), 0) << err.message;
        encoder_ = shd_encoder_create(tok_);
    }
    ~Tokenizer()
    {
        shd_ids_fini(&ids_);
        shd_encoder_free(encoder_);
        shd_tokenizer_free(tok_);
    }
    const shd_ids &Encode(const std::string &text, unsigned flags = 0)
    {
        shd_error err = {};
        ids_.n = 0;
        EXPECT_EQ(shd_encoder_run(encoder_, text.data(), text.size(), flags, &ids_, &err), 0)
            << err.message;
        return ids_;
    }
    // In pieces as a file is read: `step` more bytes at a time.
    const shd_ids &EncodePieces(const std::string &text, size_t step, int *pieces)
    {
        shd_error err = {};
        ids_.n = 0;
        *pieces = 0;
        size_t taken = 0;
        for (size_t at = 0, n = step; at < text.size(); at += taken) {
            const bool last = at + n >= text.size();
            EXPECT_EQ(shd_encoder_piece(encoder_, text.data() + at, last ? text.size() - at : n,
                                        last, &ids_, &taken, &err),
                      0)
                << err.message;
            *pieces += taken > 0;
            n = taken > 0 ? step : n + step;
        }
        return ids_;
    }
    std::string Decode(unsigned flags = 0)
    {
        char *text = nullptr;
        size_t n = 0;
        shd_error err = {};
        EXPECT_EQ(shd_tokenizer_decode(tok_, ids_.items, ids_.n, flags, &text, &n, &err), 0)
            << err.message;
        std::string out(text, n);
        free(text);
        return out;
    }
    shd_tokenizer *get()
    {
        return tok_;
    }

  private:
    shd_tokenizer *tok_ = nullptr;
    shd_encoder *encoder_ = nullptr;
    shd_ids ids_ = SHD_IDS_INIT;
};

class Golden : public ::testing::TestWithParam<const char *>
{
  protected:
    Golden()
        : name_(GetParam()), golden_(ReadJson("golden.json")),
          mine_(json_object_get(golden_.get(), name_.substr(0, name_.find('.')).c_str())),
          tok_(name_)
    {
    }
    std::string name_;
    Json golden_;
    const json_t *mine_;
    Tokenizer tok_;
};

TEST_P(Golden, IdsOfEveryChunk)
{
    const json_t *chunks = json_object_get(mine_, "chunks");
    ASSERT_EQ(json_array_size(chunks), MixedText().size());
    for (size_t i = 0; i < MixedText().size(); i++) {
        const json_t *want = json_array_get(chunks, i);
        const shd_ids &ids = tok_.Encode(MixedText()[i]);
        EXPECT_EQ(static_cast<json_int_t>(ids.n), json_integer_value(json_array_get(want, 0)))
            << "chunk " << i;
        EXPECT_EQ(Digest(ids), json_string_value(json_array_get(want, 1))) << "chunk " << i;
    }
}

TEST_P(Golden, SampleOfIds)
{
    const json_t *sample = json_object_get(mine_, "sample");
    const shd_ids &ids = tok_.Encode(MixedText()[0]);
    ASSERT_EQ(json_array_size(sample), 64u);
    for (size_t i = 0; i < 64; i++) {
        EXPECT_EQ(ids.items[i], json_integer_value(json_array_get(sample, i))) << i;
    }
}

TEST_P(Golden, PiecesGiveTheSameIds)
{
    std::string all;
    for (int i = 0; i < 6; i++) {
        all += MixedText()[static_cast<size_t>(i)];
    }
    const shd_ids &ids = tok_.Encode(all);
    const std::string whole = Digest(ids);
    for (const size_t step : {9001u, 50000u}) {
        int pieces = 0;
        EXPECT_EQ(Digest(tok_.EncodePieces(all, step, &pieces)), whole) << step;
        // Unigram models see a text as a whole, and so does what looks for added tokens after
        // normalisation.
        const bool whole_only = name_ == "sp_unigram.model" || name_ == "rules.json";
        EXPECT_EQ(pieces > 2, !whole_only) << pieces << " pieces of " << step;
    }
}

INSTANTIATE_TEST_SUITE_P(Layouts, Golden,
                         ::testing::Values("gpt2.json", "llama3.json", "qwen2.json", "smollm2.json",
                                           "rules.json", "sp_bpe.model", "sp_unigram.model"),
                         [](const auto &p) {
                             const std::string name = p.param;
                             return name.substr(0, name.find('.'));
                         });

TEST(GoldenText, WhatThePostProcessorAdds)
{
    const Json golden = ReadJson("golden.json");
    for (const char *name : {"gpt2", "llama3", "qwen2", "smollm2", "rules"}) {
        Tokenizer tok(std::string(name) + ".json");
        const json_t *want = json_object_get(json_object_get(golden.get(), name), "special");
        const shd_ids &ids = tok.Encode("a b", SHD_ENCODE_SPECIAL);
        ASSERT_EQ(ids.n, json_array_size(want)) << name;
        for (size_t i = 0; i < ids.n; i++) {
            EXPECT_EQ(ids.items[i], json_integer_value(json_array_get(want, i))) << name;
        }
    }
}

// U+FFFD as Python's bytes.decode(errors="replace") puts it; golden.json saw that text.
TEST(GoldenText, HoldsIllFormedBytes)
{
    size_t bytes = 0, replaced = 0;
    Tokenizer tok("gpt2.json");
    for (const std::string &chunk : MixedText()) {
        bytes += chunk.size();
        tok.Encode(chunk);
        const std::string text = tok.Decode();
        for (size_t at = 0; (at = text.find("\xef\xbf\xbd", at)) != std::string::npos; at++) {
            replaced++;
        }
    }
    EXPECT_GE(bytes, 2u << 20);
    EXPECT_GT(replaced, 1000u);
}

TEST(GoldenText, DecodedTextIsTheTextAgain)
{
    for (const char *name : {"gpt2.json", "llama3.json", "smollm2.json", "sp_bpe.model"}) {
        Tokenizer tok(name);
        for (const std::string text :
             {"Hello, world!\n\n\tx = 1;  y",
              "caf\u00e9 \u4f60\u597d \U0001f600 \u0928\u092e\u0938\u094d\u0924\u0947", " lead",
              "  two  ", "a", "<|endoftext|>x"}) {
            tok.Encode(text);
            EXPECT_EQ(tok.Decode(), text) << name;

            // The stream gives the same, special tokens left out, always in whole characters.
            const std::string plain = tok.Decode(SHD_DECODE_SKIP_SPECIAL);
            const shd_ids &ids = tok.Encode(text);
            shd_text_stream *stream = shd_text_stream_create(tok.get(), 1);
            std::string out;
            size_t n = 0;
            for (size_t i = 0; i < ids.n; i++) {
                const char *part = shd_text_stream_push(stream, ids.items[i], &n);
                out.append(part, n);
                EXPECT_TRUE(n == 0 || (static_cast<unsigned char>(part[0]) & 0xc0) != 0x80);
            }
            const char *rest = shd_text_stream_end(stream, &n);
            out.append(rest, n);
            shd_text_stream_free(stream);
            EXPECT_EQ(out, plain) << name;
        }
    }
}

TEST(GoldenText, SentencePieceTextIsWhatItsLibraryMakes)
{
    Tokenizer tok("sp_unigram.model");
    tok.Encode("In the beginning");
    EXPECT_EQ(tok.Decode(), "In the beginning"); // without the space of its own
    tok.Encode("<|im_start|>God");
    EXPECT_EQ(tok.Decode(), "<|im_start|>God");
}

TEST(GoldenText, BeginAndEnd)
{
    struct {
        const char *file;
        const char *bos, *eos;
    } cases[] = {{"gpt2.json", nullptr, "<|endoftext|>"},
                 {"llama3.json", "<|begin_of_text|>", "<|end_of_text|>"},
                 {"qwen2.json", nullptr, "<|endoftext|>"},
                 {"sp_bpe.model", "<s>", "</s>"}};
    for (const auto &c : cases) {
        Tokenizer tok(c.file);
        const auto id = [&](const char *name) {
            return name == nullptr ? -1 : shd_tokenizer_find(tok.get(), name, strlen(name));
        };
        EXPECT_EQ(shd_tokenizer_bos(tok.get()), id(c.bos)) << c.file;
        EXPECT_EQ(shd_tokenizer_eos(tok.get()), id(c.eos)) << c.file;
        EXPECT_EQ(strlen(shd_tokenizer_digest(tok.get())), size_t{SHD_TOKENIZER_DIGEST});
    }
}

} // namespace
