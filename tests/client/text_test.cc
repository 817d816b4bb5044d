// shardctl generate, tokenize, export and eval: texts, tokens and files.
#include "tests/client/ctl.h"

TEST_F(Ctl, GenerateBytes)
{
    std::mutex lock;
    std::string seen;
    daemon->reply("GetJob", TestJob().job);
    daemon->on("Generate", [&](fake_call *call, const std::string &request) {
        {
            std::lock_guard<std::mutex> guard(lock);
            seen = request;
        }
        for (int token : std::vector<int>{0x68, 0xC3, 0xB6, 0x1B, 0x0A, 0xFF}) {
            Shard__V1__GenerateResponse r = SHARD__V1__GENERATE_RESPONSE__INIT;
            r.token = token;
            r.logprob = -0.5f;
            r.step = 3;
            fake_send(call, &r.base);
        }
        fake_finish(call, 0, "", 0);
    });
    Result r = ctl({"generate", "7", "--prompt", "\xC3\xA4!", "--temperature", "0", "--seed", "9"});
    EXPECT_EQ(r.status, 0) << r.err;
    EXPECT_EQ(r.out, "h\xC3\xB6\x1B\n\xFF"); // exactly the model's bytes
    {
        std::lock_guard<std::mutex> guard(lock);
        Shard__V1__GenerateRequest *request = shard__v1__generate_request__unpack(
            nullptr, seen.size(), reinterpret_cast<const uint8_t *>(seen.data()));
        ASSERT_EQ(request->n_prompt, 3u);
        EXPECT_EQ(request->prompt[0], 0xC3);
        EXPECT_EQ(request->prompt[2], '!');
        EXPECT_EQ(request->has_temperature_case,
                  SHARD__V1__GENERATE_REQUEST__HAS_TEMPERATURE_TEMPERATURE);
        EXPECT_EQ(request->temperature, 0);
        EXPECT_EQ(request->seed, 9u);
        EXPECT_EQ(request->has_top_k_case, SHARD__V1__GENERATE_REQUEST__HAS_TOP_K__NOT_SET);
        shard__v1__generate_request__free_unpacked(request, nullptr);
    }
    Shardctl run({"--socket", socket, "generate", "7", "--prompt", "P"}, true);
    const std::string shown = run.finish().out;
    EXPECT_NE(shown.find("h\xC3\xB6\xEF\xBF\xBD\r\n\xEF\xBF\xBD\r\n"), std::string::npos) << shown;
    EXPECT_NE(shown.find("\033[2mP\033[0m"), std::string::npos) << shown;
    const auto objects = lines(json({"generate", "7", "--prompt", "P"}).out);
    ASSERT_EQ(objects.size(), 6u);
    EXPECT_EQ(Json(objects[1]).whole("token"), 0xC3);
    daemon.reset(); // before what its handlers hold
}

TEST_F(Ctl, GenerateTokens)
{
    TestJob job;
    std::atomic<uint64_t> left_out{0}; // handlers run on threads
    job.job.vocab = 50257;
    daemon->reply("GetJob", job.job);
    daemon->on("Generate", [&](fake_call *call, const std::string &) {
        for (int token : {11, 50256}) {
            Shard__V1__GenerateResponse r = SHARD__V1__GENERATE_RESPONSE__INIT;
            r.token = token;
            r.prompt_left_out = token == 11 ? left_out.load() : 0;
            fake_send(call, &r.base);
        }
        fake_finish(call, 0, "", 0);
    });
    Result whole = ctl({"generate", "7", "--prompt-tokens", "1,2"});
    EXPECT_EQ(whole.out, "11,50256\n");
    EXPECT_EQ(whole.err, "");
    left_out = 44;
    Result cut = ctl({"generate", "7", "--prompt-tokens", "1,2"});
    EXPECT_EQ(cut.out, "11,50256\n"); // the note is not in it
    EXPECT_NE(cut.err.find("does not see the first 44 tokens of the prompt"), std::string::npos)
        << cut.err;
    const auto objects = lines(json({"generate", "7", "--prompt-tokens", "1,2"}).out);
    EXPECT_EQ(Json(objects[0]).whole("prompt_left_out"), 44);
    left_out = 0;
    Result r = ctl({"generate", "7", "--prompt", "text"});
    EXPECT_EQ(r.status, 2);
    EXPECT_NE(r.err.find("vocabulary of 50257"), std::string::npos) << r.err;
    EXPECT_EQ(ctl({"generate", "7"}).status, 2);
    EXPECT_EQ(ctl({"generate", "7", "--prompt-tokens", "50257"}).status, 2);
    EXPECT_EQ(ctl({"generate", "7", "--prompt-tokens", "1,x"}).status, 2);
    EXPECT_EQ(ctl({"generate", "7", "--prompt", "a", "--prompt-tokens", "1"}).status, 2);
    daemon.reset(); // before what its handlers hold
}

namespace
{
// A job with a tokenizer that makes one token of each letter but <e>, which is 900.
struct TextJob : TestJob {
    TextJob()
    {
        spec.tokenizer = const_cast<char *>("/m/tokenizer.json");
        job.vocab = 1000;
    }
};

void tokenize(fake_call *call, const std::string &packed)
{
    Shard__V1__TokenizeRequest *request = shard__v1__tokenize_request__unpack(
        nullptr, packed.size(), reinterpret_cast<const uint8_t *>(packed.data()));
    const std::string text(reinterpret_cast<const char *>(request->text.data), request->text.len);
    std::vector<int32_t> ids;
    if (text == "<e>")
        ids.push_back(1); // a beginning of text, as some put before every one
    for (size_t i = 0; i < text.size(); i++) {
        if (text.compare(i, 3, "<e>") == 0) {
            ids.push_back(900);
            i += 2;
        } else {
            ids.push_back(500 + text[i]);
        }
    }
    std::string back;
    for (size_t i = 0; i < request->n_tokens; i++)
        back += request->tokens[i] == 900
                    ? "<e>"
                    : std::string(1, static_cast<char>(request->tokens[i] - 500));
    shard__v1__tokenize_request__free_unpacked(request, nullptr);
    // In two messages: they belong together.
    for (size_t half = 0; half < 2; half++) {
        Shard__V1__TokenizeResponse r = SHARD__V1__TOKENIZE_RESPONSE__INIT;
        const size_t middle = ids.size() / 2;
        r.tokens = ids.data() + (half ? middle : 0);
        r.n_tokens = half ? ids.size() - middle : middle;
        r.text.data = reinterpret_cast<uint8_t *>(&back[half ? back.size() / 2 : 0]);
        r.text.len = half ? back.size() - back.size() / 2 : back.size() / 2;
        r.vocab = 1000;
        fake_send(call, &r.base);
    }
    fake_finish(call, 0, "", 0);
}
} // namespace

TEST_F(Ctl, GenerateText)
{
    std::mutex lock;
    std::string seen;
    daemon->reply("GetJob", TextJob().job);
    daemon->on("Tokenize", tokenize);
    daemon->on("Generate", [&](fake_call *call, const std::string &request) {
        {
            std::lock_guard<std::mutex> guard(lock);
            seen = request;
        }
        int token = 600;
        for (std::string text : {"On", "ce ", "", "\xC3\xA4", " there", ""}) {
            Shard__V1__GenerateResponse r = SHARD__V1__GENERATE_RESPONSE__INIT;
            r.token = token++;
            r.text.data = reinterpret_cast<uint8_t *>(&text[0]);
            r.text.len = text.size();
            if (token == 606)
                r.finish = const_cast<char *>("stop");
            fake_send(call, &r.base);
        }
        fake_finish(call, 0, "", 0);
    });
    Result r = ctl({"generate", "7", "--prompt", "\xC3\xA4!", "--repetition-penalty", "1.3",
                    "--ignore-eos", "--stop", "17", "--stop", "<e>", "--stop", "nothing"});
    EXPECT_EQ(r.status, 0) << r.err;
    EXPECT_EQ(r.out, "Once \xC3\xA4 there");
    {
        std::lock_guard<std::mutex> guard(lock);
        Shard__V1__GenerateRequest *request = shard__v1__generate_request__unpack(
            nullptr, seen.size(), reinterpret_cast<const uint8_t *>(seen.data()));
        EXPECT_EQ(request->n_prompt, 0u);
        EXPECT_EQ(std::string(reinterpret_cast<char *>(request->prompt_text.data),
                              request->prompt_text.len),
                  "\xC3\xA4!");
        ASSERT_EQ(request->n_stop, 2u);
        EXPECT_EQ(request->stop[0], 17);
        EXPECT_EQ(request->stop[1], 900);
        EXPECT_TRUE(request->ignore_eos);
        EXPECT_EQ(request->has_repetition_penalty_case,
                  SHARD__V1__GENERATE_REQUEST__HAS_REPETITION_PENALTY_REPETITION_PENALTY);
        EXPECT_EQ(request->repetition_penalty, 1.3);
        shard__v1__generate_request__free_unpacked(request, nullptr);
    }
    EXPECT_EQ(ctl({"generate", "7", "--prompt", "x", "--stop", "e \xC3"}).out, "Onc");
    EXPECT_EQ(ctl({"generate", "7", "--tokens", "1,2"}).out, "Once \xC3\xA4 there");
    const auto objects = lines(json({"generate", "7", "--prompt", "x"}).out);
    ASSERT_EQ(objects.size(), 6u);
    EXPECT_EQ(Json(objects[3]).text("text"), "\xC3\xA4");
    EXPECT_EQ(Json(objects[4]).at("finish"), nullptr);
    EXPECT_EQ(Json(objects[5]).text("finish"), "stop");
    EXPECT_EQ(ctl({"generate", "7", "--prompt", "x", "--stop", "1000"}).status, 2);
    daemon.reset(); // before what its handlers hold
}

TEST_F(Ctl, Tokenize)
{
    daemon->on("Tokenize", tokenize);
    EXPECT_EQ(ctl({"tokenize", "7", "--text", "ab<e>"}).out, "597 598 900\n");
    Json ids(json({"tokenize", "--tokenizer", "bytes", "--text", "ab<e>"}).out);
    EXPECT_EQ(ids.whole("count"), 3);
    EXPECT_EQ(ids.whole("vocab"), 1000);
    EXPECT_EQ(json_integer_value(json_array_get(ids.at("tokens"), 2)), 900);
    EXPECT_EQ(ctl({"tokenize", "7", "--tokens", "597,598,599"}).out, "abc");
    EXPECT_EQ(Json(json({"tokenize", "7", "--tokens", "597"}).out).text("text"), "a");
    const std::string program =
        std::string(getenv("TEST_SRCDIR")) + "/" + getenv("TEST_WORKSPACE") + "/client/shardctl";
    const std::string out = dir.path("out"), into = " >" + out + " 2>&1";
    const auto piped = [&](const std::string &text, const std::string &flags) {
        const std::string in = dir.write("in", text);
        const int rc = std::system(
            (program + " --socket " + socket + " tokenize 7 " + flags + " <" + in + into).c_str());
        std::ifstream file(out);
        return std::to_string(WEXITSTATUS(rc)) + " " +
               std::string(std::istreambuf_iterator<char>(file), {});
    };
    EXPECT_EQ(piped("abc", ""), "0 597 598 599\n");
    EXPECT_EQ(piped("[597, 598]\n599", "--decode"), "0 abc");
    EXPECT_EQ(piped("597 5x", "--decode"),
              "2 shardctl: standard input: \"5x\" is not a token id; give whole numbers\n");
    EXPECT_EQ(piped("", "").substr(0, 30), "2 shardctl: the text is empty;");
    EXPECT_EQ(piped(" ", "--decode").substr(0, 2), "2 ");
    EXPECT_EQ(piped("3000000000", "--decode").substr(0, 2), "2 ");
    EXPECT_EQ(ctl({"tokenize", "--text", "a"}).status, 2);
    EXPECT_EQ(ctl({"tokenize", "7", "--tokenizer", "bytes", "--text", "a"}).status, 2);
    EXPECT_EQ(ctl({"tokenize", "7", "--text", "a", "--tokens", "1"}).status, 2);
    EXPECT_EQ(ctl({"tokenize", "7", "--text", "a", "--data-format", "text"}).status, 2);
}

TEST_F(Ctl, TokenizeFileShowsItsProgress)
{
    std::mutex lock;
    std::string seen;
    daemon->on("Tokenize", [&](fake_call *call, const std::string &request) {
        {
            std::lock_guard<std::mutex> guard(lock);
            seen = request;
        }
        for (uint64_t done : {0, 1, 1, 2, 4}) {
            Shard__V1__TokenizeResponse r = SHARD__V1__TOKENIZE_RESPONSE__INIT;
            Shard__V1__Progress progress = SHARD__V1__PROGRESS__INIT;
            progress.what = const_cast<char *>("tokenizing");
            progress.done = done << 20;
            progress.total = 4 << 20;
            r.progress = &progress;
            fake_send(call, &r.base);
        }
        Shard__V1__TokenizeResponse r = SHARD__V1__TOKENIZE_RESPONSE__INIT;
        r.path = const_cast<char *>("/state/cache/abc.tok");
        r.digest = const_cast<char *>("abc");
        r.count = 123456;
        r.documents = 2;
        r.vocab = 49152;
        fake_send(call, &r.base);
        fake_finish(call, 0, "", 0);
    });
    const std::string data = dir.write("text.jsonl", "{}");
    Result r = ctl({"tokenize", "--tokenizer", "./t", "--data", data, "--data-format", "jsonl"});
    EXPECT_EQ(r.status, 0) << r.err;
    EXPECT_EQ(r.out, "tokenizing 0 B of 4.0 MiB (0%)\ntokenizing 1.0 MiB of 4.0 MiB (25%)\n"
                     "tokenizing 2.0 MiB of 4.0 MiB (50%)\ntokenizing 4.0 MiB of 4.0 MiB (100%)\n"
                     "/state/cache/abc.tok: 123456 tokens in 2 documents, vocabulary 49152\n");
    {
        std::lock_guard<std::mutex> guard(lock);
        Shard__V1__TokenizeRequest *request = shard__v1__tokenize_request__unpack(
            nullptr, seen.size(), reinterpret_cast<const uint8_t *>(seen.data()));
        EXPECT_STREQ(request->data, data.c_str());
        EXPECT_STREQ(request->data_format, "jsonl");
        EXPECT_EQ(request->tokenizer[0], '/'); // made absolute
        shard__v1__tokenize_request__free_unpacked(request, nullptr);
    }
    const auto objects = lines(json({"tokenize", "7", "--data", data}).out);
    ASSERT_EQ(objects.size(), 5u); // standing still is no news
    EXPECT_EQ(Json(objects[4]).whole("count"), 123456);
    EXPECT_EQ(Json(objects[4]).text("path"), "/state/cache/abc.tok");
    EXPECT_EQ(Json(objects[4]).text("digest"), "abc");
    daemon.reset(); // before what its handlers hold
}

TEST_F(Ctl, Export)
{
    std::mutex lock;
    std::string seen;
    daemon->on("ExportModel", [&](fake_call *call, const std::string &request) {
        std::lock_guard<std::mutex> guard(lock);
        seen = request;
        char first[] = "config.json", second[] = "model.safetensors";
        char *files[] = {first, second};
        Shard__V1__ExportModelResponse r = SHARD__V1__EXPORT_MODEL_RESPONSE__INIT;
        r.bytes = 3 << 20;
        r.n_files = 2;
        r.files = files;
        r.tensors = 39;
        r.step = 120;
        fake_send(call, &r.base);
        fake_finish(call, 0, "", 0);
    });
    const std::string out = dir.path("model");
    Result r = ctl({"export", "7", "--output", out, "--dtype", "bf16", "--max-shard-size", "2GB"});
    EXPECT_EQ(r.status, 0) << r.err;
    EXPECT_EQ(r.out,
              "step 120: 39 tensors, 3.0 MiB in " + out + "\n  config.json\n  model.safetensors\n");
    {
        std::lock_guard<std::mutex> guard(lock);
        Shard__V1__ExportModelRequest *request = shard__v1__export_model_request__unpack(
            nullptr, seen.size(), reinterpret_cast<const uint8_t *>(seen.data()));
        EXPECT_EQ(request->path, out);
        EXPECT_STREQ(request->dtype, "bf16");
        EXPECT_EQ(request->max_shard_bytes, 2000000000u);
        shard__v1__export_model_request__free_unpacked(request, nullptr);
    }
    Json object(json({"export", "7", "--output", out}).out);
    EXPECT_EQ(object.whole("tensors"), 39);
    EXPECT_EQ(object.whole("step"), 120);
    EXPECT_EQ(json_array_size(object.at("files")), 2u);
    EXPECT_EQ(ctl({"export", "7", "--output", out, "--max-shard-size", "0"}).status, 2);
    daemon.reset(); // before what its handlers hold
}

TEST_F(Ctl, EvalOfText)
{
    daemon->reply("GetJob", TextJob().job); // micro-batch 2, 16 tokens
    daemon->on("Tokenize", tokenize);
    daemon->on("Forward", [&](fake_call *call, const std::string &packed) {
        Shard__V1__ForwardRequest *request = shard__v1__forward_request__unpack(
            nullptr, packed.size(), reinterpret_cast<const uint8_t *>(packed.data()));
        Shard__V1__ForwardResponse answer = SHARD__V1__FORWARD_RESPONSE__INIT;
        std::vector<std::vector<float>> values;
        for (size_t i = 0; i < request->batch->n_sequences; i++) {
            const Shard__V1__Sequence *s = request->batch->sequences[i];
            answer.valid_tokens += s->n_targets;
            values.emplace_back();
            for (size_t k = 0; k < s->n_targets; k++) {
                EXPECT_GE(s->tokens[k], 500);
                values.back().push_back(-1.0f / static_cast<float>(s->targets[k]));
            }
        }
        std::vector<Shard__V1__TokenLogprobs> rows(values.size());
        std::vector<Shard__V1__TokenLogprobs *> pointers;
        for (size_t i = 0; i < rows.size(); i++) {
            shard__v1__token_logprobs__init(&rows[i]);
            rows[i].n_values = values[i].size();
            rows[i].values = values[i].data();
            pointers.push_back(&rows[i]);
        }
        answer.loss = 2.0;
        if (request->want_logprobs) {
            answer.n_logprobs = pointers.size();
            answer.logprobs = pointers.data();
        }
        shard__v1__forward_request__free_unpacked(request, nullptr);
        fake_send(call, &answer.base);
        fake_finish(call, 0, "", 0);
    });
    const std::string text = std::string(40, 'a') + "<e>b";
    Json plain(json({"eval", "7", "--text", text}).out);
    EXPECT_EQ(plain.whole("tokens"), 41);
    EXPECT_DOUBLE_EQ(json_real_value(plain.at("loss")), 2.0);
    EXPECT_DOUBLE_EQ(json_real_value(plain.at("perplexity")), 7.38905609893065);
    const auto out = lines(json({"eval", "7", "--text", text, "--logprobs"}).out);
    ASSERT_EQ(out.size(), 42u);
    EXPECT_EQ(Json(out[0]).whole("index"), 1);
    EXPECT_EQ(Json(out[40]).whole("index"), 41);
    EXPECT_EQ(Json(out[40]).whole("token"), 598);
    EXPECT_EQ(Json(out[39]).whole("token"), 900);
    EXPECT_FLOAT_EQ(static_cast<float>(json_real_value(Json(out[39]).at("logprob"))), -1.0f / 900);
    EXPECT_EQ(Json(out[41]).whole("tokens"), 41);
    EXPECT_EQ(lines(ctl({"eval", "7", "--text", text, "--logprobs"}).out)[39],
              "40\t900\t-0.001111");
    EXPECT_EQ(ctl({"eval", "7", "--text", "x"}).status, 2);
    EXPECT_EQ(ctl({"eval", "7", "--text", ""}).status, 2);
}

TEST_F(Ctl, EvalWeighsByTokens)
{
    std::mutex lock;
    std::vector<std::vector<int>> tokens, targets; // of every sequence
    std::vector<size_t> batches;
    daemon->reply("GetJob", TextJob().job); // micro-batch 2, 16 tokens
    daemon->on("Tokenize", tokenize);
    daemon->on("Forward", [&](fake_call *call, const std::string &packed) {
        Shard__V1__ForwardRequest *request = shard__v1__forward_request__unpack(
            nullptr, packed.size(), reinterpret_cast<const uint8_t *>(packed.data()));
        Shard__V1__ForwardResponse answer = SHARD__V1__FORWARD_RESPONSE__INIT;
        {
            std::lock_guard<std::mutex> guard(lock);
            batches.push_back(request->batch->n_sequences);
            for (size_t i = 0; i < request->batch->n_sequences; i++) {
                const Shard__V1__Sequence *s = request->batch->sequences[i];
                tokens.emplace_back(s->tokens, s->tokens + s->n_tokens);
                targets.emplace_back(s->targets, s->targets + s->n_targets);
                answer.valid_tokens += s->n_tokens;
            }
            answer.loss = static_cast<double>(batches.size());
        }
        shard__v1__forward_request__free_unpacked(request, nullptr);
        fake_send(call, &answer.base);
        fake_finish(call, 0, "", 0);
    });
    std::string text;
    for (int i = 0; i < 56; i++)
        text += static_cast<char>(64 + i); // 55 predictions: 16 + 16, 16 + 7
    const Result r = json({"eval", "7", "--text", text});
    ASSERT_EQ(r.status, 0) << r.err;
    Json result(r.out);
    EXPECT_EQ(result.whole("tokens"), 55);
    EXPECT_DOUBLE_EQ(json_real_value(result.at("loss")), (32.0 * 1 + 23.0 * 2) / 55);
    {
        std::lock_guard<std::mutex> guard(lock);
        EXPECT_EQ(batches, (std::vector<size_t>{2, 2}));
        int at = 564;
        for (size_t s = 0; s < tokens.size(); s++) {
            ASSERT_EQ(tokens[s].size(), targets[s].size());
            for (size_t i = 0; i < tokens[s].size(); i++, at++) {
                EXPECT_EQ(tokens[s][i], at);
                EXPECT_EQ(targets[s][i], at + 1);
            }
        }
        EXPECT_EQ(at, 619);
    }
    daemon.reset(); // before what its handlers hold
}

TEST_F(Ctl, EvalOfAFile)
{
    std::mutex lock;
    std::string seen;
    daemon->on("Evaluate", [&](fake_call *call, const std::string &request) {
        {
            std::lock_guard<std::mutex> guard(lock);
            seen = request;
        }
        for (int i = 0; i < 4; i++) {
            Shard__V1__EvaluateResponse r = SHARD__V1__EVALUATE_RESPONSE__INIT;
            Shard__V1__Progress progress = SHARD__V1__PROGRESS__INIT;
            progress.what = const_cast<char *>(i == 0   ? "waiting"
                                               : i == 1 ? "tokenizing"
                                                        : "evaluating");
            progress.unit = const_cast<char *>(i == 1 ? "" : "windows");
            progress.done = i == 1 ? 1 << 20 : static_cast<uint64_t>(i);
            progress.total = i == 0 ? 0 : i == 1 ? 4 << 20 : 8;
            r.progress = &progress;
            fake_send(call, &r.base);
        }
        Shard__V1__EvaluateResponse r = SHARD__V1__EVALUATE_RESPONSE__INIT;
        r.step = 12;
        r.loss = 2;
        r.perplexity = 7.389056;
        r.tokens = 123;
        r.windows = 8;
        r.text_bytes = 2048;
        r.bits_per_byte = 0.25;
        r.ms = 30;
        fake_send(call, &r.base);
        fake_finish(call, 0, "", 0);
    });
    const std::string data = dir.write("text.jsonl", "{}");
    const Result r = ctl({"eval", "7", "--data", data});
    EXPECT_EQ(r.status, 0) << r.err;
    EXPECT_EQ(r.out, "waiting\ntokenizing 1.0 MiB of 4.0 MiB (25%)\n"
                     "evaluating 2 of 8 windows (25%)\nevaluating 3 of 8 windows (37%)\n"
                     "step 12: loss 2.0000 nats per token  perplexity 7.389  123 tokens in 8 "
                     "windows  0.2500 bits per byte of 2.0 KiB\n");
    const auto request = [&] {
        std::lock_guard<std::mutex> guard(lock);
        return shard__v1__evaluate_request__unpack(nullptr, seen.size(),
                                                   reinterpret_cast<const uint8_t *>(seen.data()));
    };
    Shard__V1__EvaluateRequest *q = request();
    EXPECT_EQ(q->data, data);
    EXPECT_EQ(q->has_stride_case, 0);
    EXPECT_EQ(q->has_max_tokens_case, 0);
    EXPECT_EQ(q->has_packing_case, 0);
    shard__v1__evaluate_request__free_unpacked(q, nullptr);
    const auto objects = lines(json({"eval", "7", "--data", data, "--stride", "5", "--max-tokens",
                                     "1000", "--packing", "off", "--data-format", "jsonl"})
                                   .out);
    ASSERT_EQ(objects.size(), 5u);
    EXPECT_EQ(Json(objects[2]).text("unit"), "windows");
    EXPECT_EQ(Json(objects[4]).whole("tokens"), 123);
    EXPECT_EQ(Json(objects[4]).whole("step"), 12);
    EXPECT_EQ(Json(objects[4]).whole("text_bytes"), 2048);
    EXPECT_DOUBLE_EQ(json_real_value(Json(objects[4]).at("bits_per_byte")), 0.25);
    q = request();
    EXPECT_EQ(q->stride, 5u);
    EXPECT_EQ(q->max_tokens, 1000u);
    EXPECT_NE(q->has_packing_case, 0);
    EXPECT_EQ(q->packing, 0);
    EXPECT_STREQ(q->data_format, "jsonl");
    shard__v1__evaluate_request__free_unpacked(q, nullptr);
    daemon->on("Evaluate", [](fake_call *call, const std::string &) {
        fake_finish(call, 9, "job 7 has no tokenizer", SHD_ESTATE);
    });
    EXPECT_EQ(ctl({"eval", "7", "--data", data}).status, 4);
    daemon.reset(); // before what its handlers hold
}
