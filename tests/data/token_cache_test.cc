// The cache of token files: what is in them, when they are made and used again, and what is
// refused.
#include "daemon/data/token_cache.h"

#include <dirent.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>
#include <string>
#include <thread>
#include <vector>

#include "daemon/base/log.h"
#include "tests/data/data_files.h"

namespace
{

class Cache : public ::testing::Test
{
  protected:
    void SetUp() override
    {
        shd_log_set_level(SHD_LOG_ERROR);
        Open(0);
        tok_ = shd_tokenizer_bytes();
    }
    void TearDown() override
    {
        shd_source_free(source_);
        shd_token_cache_free(cache_);
        shd_tokenizer_free(tok_);
    }
    void Open(uint64_t limit)
    {
        shd_token_cache_free(cache_);
        ASSERT_EQ(shd_token_cache_open(folder_.fd(), "tokens", limit, &cache_, &err_), 0)
            << err_.message;
    }
    int Get(const std::string &path, shd_data_format format = SHD_DATA_JSONL)
    {
        shd_source_free(source_);
        source_ = nullptr;
        progress_ = {};
        progress_.cancel = cancel_;
        const int fd = open(path.c_str(), O_RDONLY);
        const int rc = shd_token_cache_get(cache_, fd, path.c_str(), format, tok_, &progress_,
                                           &source_, &err_);
        close(fd);
        return rc;
    }
    int GetText(const std::string &contents, shd_data_format format = SHD_DATA_JSONL)
    {
        return Get(folder_.Write("data", contents), format);
    }
    // Tokens as text, masked ones in lower case: documents are written in upper case.
    std::string Tokens()
    {
        const uint64_t n = shd_source_tokens(source_);
        std::vector<int32_t> ids(n);
        std::vector<unsigned char> ignored(n);
        EXPECT_EQ(shd_source_read(source_, 0, n, 256, ids.data(), &err_), 0) << err_.message;
        EXPECT_EQ(shd_source_read_mask(source_, 0, n, ignored.data(), &err_), 0);
        std::string out;
        for (uint64_t i = 0; i < n; i++) {
            out += static_cast<char>(ignored[i] ? tolower(ids[i]) : ids[i]);
        }
        return out;
    }
    std::vector<std::string> Files()
    {
        std::vector<std::string> out;
        DIR *dir = opendir(folder_.path("tokens").c_str());
        for (dirent *e; (e = readdir(dir)) != nullptr;) {
            if (e->d_name[0] != '.' && std::string(e->d_name) != "secret") {
                out.push_back(e->d_name);
            }
        }
        closedir(dir);
        return out;
    }
    void Fails(const std::string &contents, const std::string &message)
    {
        EXPECT_EQ(GetText(contents), SHD_EDATA) << contents;
        EXPECT_NE(std::string(err_.message).find(message), std::string::npos) << err_.message;
        EXPECT_TRUE(Files().empty());
    }

    Folder folder_;
    shd_token_cache *cache_ = nullptr;
    shd_tokenizer *tok_ = nullptr;
    shd_source *source_ = nullptr;
    shd_token_progress progress_ = {};
    int cancel_ = 0;
    shd_error err_ = {};
};

TEST_F(Cache, DocumentsOfJsonLines)
{
    ASSERT_EQ(GetText("\xef\xbb\xbf{\"text\": \"ABC\", \"id\": 7}\n\n  \r\n"
                      "{\"prompt\": \"PQ\", \"completion\": \"RS\", \"id\": 18446744073709551615}\n"
                      "{\"text\": \"\"}\n{\"text\":\"X\\u0000Y\\u00e9\"}"),
              0)
        << err_.message;
    EXPECT_EQ(Tokens(), std::string("aBCpqRSx\0Y\xc3\xa9", 12));
    EXPECT_EQ(shd_source_documents(source_), 3u);
    uint64_t begins[3];
    ASSERT_EQ(shd_source_read_documents(source_, 0, 3, begins, &err_), 0);
    EXPECT_EQ(begins[1], 3u);
    EXPECT_EQ(begins[2], 7u);
    EXPECT_EQ(std::string(shd_source_path(source_)), folder_.path("data"));
    EXPECT_EQ(std::string(shd_source_key(source_)).size(), 32u);
    EXPECT_EQ(progress_.done, progress_.total);
    struct stat st;
    ASSERT_EQ(stat(folder_.path("tokens/" + Files().at(0)).c_str(), &st), 0);
    EXPECT_EQ(st.st_mode & 0777, 0600u);
}

TEST_F(Cache, ATextIsOneDocument)
{
    std::string text;
    for (int i = 0; i < 400000; i++) { // more than one piece
        text += "LINE\n";
    }
    ASSERT_EQ(GetText(text, SHD_DATA_TEXT), 0) << err_.message;
    EXPECT_EQ(shd_source_tokens(source_), text.size());
    EXPECT_EQ(shd_source_documents(source_), 1u);
    text[0] = 'l';
    EXPECT_EQ(Tokens(), text);
}

TEST_F(Cache, LongLinesAndManyOfThem)
{
    std::string lines, want;
    for (int i = 0; i < 3000; i++) {
        const std::string word(static_cast<size_t>(i % 7 == 0 ? 5000 : 3),
                               static_cast<char>('A' + i % 26));
        lines += "{\"text\":\"" + word + "\"}\n";
        std::string document = word;
        document[0] = static_cast<char>(tolower(document[0]));
        want += document;
    }
    const std::string huge(3 << 20, 'Z'); // longer than any read
    lines += "{\"text\":\"" + huge + "\"}";
    want += 'z' + huge.substr(1);
    ASSERT_EQ(GetText(lines), 0) << err_.message;
    EXPECT_EQ(Tokens(), want);
    EXPECT_EQ(shd_source_documents(source_), 3001u);
}

TEST_F(Cache, IsMadeOnceAndUsedAgain)
{
    const std::string path = folder_.Write("a", "{\"text\":\"ABC\"}");
    ASSERT_EQ(Get(path), 0);
    const std::string key = shd_source_key(source_);
    struct stat made, again;
    ASSERT_EQ(stat(folder_.path("tokens/" + Files().at(0)).c_str(), &made), 0);
    // The same content under another name, and after a restart.
    Open(0);
    ASSERT_EQ(Get(folder_.Write("b", "{\"text\":\"ABC\"}")), 0);
    EXPECT_EQ(shd_source_key(source_), key);
    ASSERT_EQ(stat(folder_.path("tokens/" + Files().at(0)).c_str(), &again), 0);
    EXPECT_EQ(made.st_ino, again.st_ino);
    EXPECT_EQ(Files().size(), 1u);
    // Other content, and the same read otherwise.
    ASSERT_EQ(Get(folder_.Write("b", "{\"text\":\"ABD\"}")), 0);
    EXPECT_NE(shd_source_key(source_), key);
    ASSERT_EQ(Get(path, SHD_DATA_TEXT), 0);
    EXPECT_NE(shd_source_key(source_), key);
    EXPECT_EQ(Files().size(), 3u);
}

// What the file is called depends on every byte of the tokenizer, and on a secret.
TEST_F(Cache, NobodyKnowsTheNameOfAFile)
{
    const std::string path = folder_.Write("a", "{\"text\":\"ABC\"}");
    std::ifstream in("tests/data/tokenizers/gpt2.json", std::ios::binary);
    std::stringstream json;
    json << in.rdbuf();
    std::vector<std::string> keys, digests;
    for (const std::string &bytes : {json.str(), json.str() + " ", json.str()}) {
        shd_tokenizer_files files = {};
        files.path = "t";
        files.json = bytes.data();
        files.json_size = bytes.size();
        shd_tokenizer_free(tok_);
        ASSERT_EQ(shd_tokenizer_create(&files, &tok_, &err_), 0) << err_.message;
        ASSERT_EQ(Get(path), 0) << err_.message;
        keys.push_back(shd_source_key(source_));
        digests.push_back(shd_tokenizer_digest(tok_));
    }
    EXPECT_NE(keys[0], keys[1]);
    EXPECT_EQ(keys[0], keys[2]);
    EXPECT_NE(digests[0], digests[1]);
    EXPECT_EQ(digests[0].size(), static_cast<size_t>(SHD_TOKENIZER_DIGEST));
    EXPECT_EQ(Files().size(), 2u);
    ASSERT_EQ(unlink(folder_.path("tokens/secret").c_str()), 0); // as on another machine
    Open(0);
    ASSERT_EQ(Get(path), 0) << err_.message;
    EXPECT_NE(shd_source_key(source_), keys[0]);
    EXPECT_EQ(Files().size(), 3u);
}

TEST_F(Cache, ADamagedFileIsMadeAnew)
{
    const std::string path = folder_.Write("a", "{\"text\":\"ABCDEF\"}");
    ASSERT_EQ(Get(path), 0);
    const std::string file = "tokens/" + Files().at(0);
    const std::string good = folder_.Read(file);
    shd_log_set_level(SHD_LOG_ERROR);
    std::vector<std::string> bad = {good.substr(0, 50), good.substr(0, good.size() - 1), good + "x",
                                    std::string(good.size(), '\0'), ""};
    for (const size_t at : {0u, 9u, 20u, 30u, 60u, 122u, 130u, 150u}) {
        bad.push_back(good);
        bad.back()[at] = static_cast<char>(bad.back()[at] ^ 4);
    }
    for (const std::string &contents : bad) {
        folder_.Write(file, contents);
        ASSERT_EQ(Get(path), 0) << err_.message;
        EXPECT_EQ(Tokens(), "aBCDEF");
        EXPECT_EQ(folder_.Read(file), good);
    }
}

TEST_F(Cache, BadLinesAreNamed)
{
    Fails("{\"text\":\"A\"}\n{\"text\":\"B\"", "data': line 2: not JSON");
    Fails("{\"text\":\"A\"}\n\n[1]\n", "line 3: not an object with \"text\"");
    Fails("{\"texts\":\"A\"}", "line 1: not an object");
    Fails("{\"text\":1}", "line 1: not an object");
    Fails("{\"text\":\"A\",\"prompt\":\"B\"}", "line 1: not an object");
    Fails("{\"prompt\":\"B\"}", "line 1: not an object");
    Fails("{\"text\":\"A\",\"text\":\"B\"}", "line 1: not JSON: duplicate");
    Fails("{\"text\":\"\xff\"}", "line 1: not JSON");
    Fails("{\"text\":\"\\ud800\"}", "line 1: not JSON");
    Fails("\n\n", "no tokens");
    Fails("{\"text\":\"\"}", "no tokens");
    Fails("", "is empty");
}

TEST_F(Cache, AFileThatChangesIsRefused)
{
    ASSERT_EQ(GetText("{\"text\":\"ABC\"}"), 0);
    int32_t id;
    EXPECT_EQ(shd_source_read(source_, 0, 1, 256, &id, &err_), 0);
    std::ofstream(folder_.path("data"), std::ios::app) << "\n";
    EXPECT_EQ(shd_source_read(source_, 0, 1, 256, &id, &err_), SHD_EDATA);
    EXPECT_EQ(std::string(err_.message), "'" + folder_.path("data") +
                                             "' has changed since it was opened; start a new "
                                             "job on the new file");
    EXPECT_EQ(shd_source_check(source_, 256, &err_), SHD_EDATA);
}

TEST_F(Cache, AFileThatGrowsWhileItIsReadIsRefused)
{
    std::string text(8 << 20, 'A');
    const std::string path = folder_.Write("grows", text);
    std::atomic<bool> stop{false};
    std::thread writer([&] {
        while (!stop) {
            std::ofstream(path, std::ios::app) << "BBBB";
            std::this_thread::sleep_for(std::chrono::microseconds(100));
        }
    });
    EXPECT_EQ(Get(path, SHD_DATA_TEXT), SHD_EDATA);
    stop = true;
    writer.join();
    EXPECT_NE(std::string(err_.message).find("changed while it was read"), std::string::npos)
        << err_.message;
    EXPECT_TRUE(Files().empty());
}

TEST_F(Cache, Cancelled)
{
    cancel_ = 1;
    EXPECT_EQ(GetText("{\"text\":\"ABC\"}"), SHD_ECANCELLED);
    EXPECT_TRUE(Files().empty());
}

TEST_F(Cache, NoRoom)
{
    const std::string path = folder_.Write("a", std::string(4 << 20, 'A'));
    const rlimit small = {1 << 20, RLIM_INFINITY}; // as a full disk: writing fails on the way
    rlimit before;
    getrlimit(RLIMIT_FSIZE, &before);
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &small);
    EXPECT_EQ(Get(path, SHD_DATA_TEXT), SHD_EIO);
    setrlimit(RLIMIT_FSIZE, &before);
    EXPECT_NE(std::string(err_.message).find("cannot write the cached tokens: File too large"),
              std::string::npos)
        << err_.message;
    EXPECT_TRUE(Files().empty());
    EXPECT_EQ(Get(path, SHD_DATA_TEXT), 0); // and later there is
}

TEST_F(Cache, TheLeastRecentlyUsedGoFirst)
{
    const std::string text(100000, 'A'); // 200,000 bytes of tokens, and the mask
    Open(500000);
    const auto name = [this](const char *file) {
        EXPECT_EQ(Get(folder_.path(file), SHD_DATA_TEXT), 0) << err_.message;
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        return std::string(shd_source_key(source_)) + ".tokens";
    };
    folder_.Write("a", text + "a");
    folder_.Write("b", text + "b");
    folder_.Write("c", text + "c");
    const std::string a = name("a"), b = name("b");
    EXPECT_EQ(name("a"), a); // used again
    const std::string c = name("c");
    std::vector<std::string> files = Files();
    EXPECT_EQ(files.size(), 2u);
    EXPECT_EQ(std::count(files.begin(), files.end(), b), 0);
    EXPECT_EQ(std::count(files.begin(), files.end(), a), 1);
    EXPECT_EQ(name("b"), b); // comes again
}

TEST_F(Cache, LeftOversAreDeleted)
{
    folder_.Write("tokens/new-0", "torn");
    Open(0);
    EXPECT_TRUE(Files().empty());
}

TEST_F(Cache, ManyAtOnce)
{
    const std::string path = folder_.Write("a", "{\"text\":\"ABC\"}");
    std::vector<std::thread> threads;
    for (int i = 0; i < 8; i++) {
        threads.emplace_back([&] {
            for (int j = 0; j < 20; j++) {
                shd_token_progress progress = {};
                shd_source *source = nullptr;
                shd_error err = {};
                const int fd = open(path.c_str(), O_RDONLY);
                ASSERT_EQ(shd_token_cache_get(cache_, fd, path.c_str(), SHD_DATA_JSONL, tok_,
                                              &progress, &source, &err),
                          0)
                    << err.message;
                close(fd);
                EXPECT_EQ(shd_source_tokens(source), 3u);
                shd_source_free(source);
            }
        });
    }
    for (auto &t : threads) {
        t.join();
    }
    EXPECT_EQ(Files().size(), 1u);
}

} // namespace
