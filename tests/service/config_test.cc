#include "daemon/service/config.h"

#include <grp.h>
#include <gtest/gtest.h>
#include <pwd.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

namespace
{

class Config : public ::testing::Test
{
  protected:
    void SetUp() override
    {
        shd_config_init(&config);
        char dir[] = "/tmp/shd-config-test-XXXXXX";
        base = mkdtemp(dir);
        file = base + "/c";
        std::ofstream(file) << "";
    }
    void TearDown() override
    {
        shd_config_fini(&config);
        unlink(file.c_str());
        rmdir(base.c_str());
    }
    int parse(const std::string &text)
    {
        shd_config_fini(&config);
        shd_config_init(&config);
        return shd_config_parse(&config, "f.conf", text.data(), text.size(), &err);
    }
    // Flags over an empty file, so that nothing of this machine counts.
    int load(std::vector<std::string> flags, const std::string &text = "")
    {
        std::ofstream(file) << text;
        return load_bare([&] {
            flags.insert(flags.begin(), {"--config", file});
            return flags;
        }());
    }
    int load_bare(std::vector<std::string> flags)
    {
        shd_config_fini(&config);
        shd_config_init(&config);
        std::vector<char *> argv = {const_cast<char *>("shardd")};
        for (std::string &f : flags) {
            argv.push_back(&f[0]);
        }
        return shd_config_load(static_cast<int>(argv.size()), argv.data(), &config, &action, &err);
    }
    std::vector<std::string> roots() const
    {
        return {config.data_roots.items, config.data_roots.items + config.data_roots.n};
    }
    void expect_refused(const std::string &text, const std::vector<std::string> &words)
    {
        EXPECT_EQ(parse(text), SHD_EINVAL) << text;
        for (const std::string &word : words) {
            EXPECT_NE(std::string(err.message).find(word), std::string::npos)
                << text << ": " << err.message;
        }
    }

    shd_config config;
    shd_config_action action;
    shd_error err;
    std::string base, file;
};

TEST_F(Config, Defaults)
{
    ASSERT_EQ(load({}), 0) << err.message;
    EXPECT_EQ(action, SHD_CONFIG_RUN);
    EXPECT_STREQ(config.socket, "/run/shardd/shardd.sock");
    EXPECT_EQ(config.socket_mode, 0660u);
    EXPECT_STREQ(config.state_dir, "/var/lib/shardd");
    EXPECT_STREQ(config.device, "cpu");
    EXPECT_EQ(config.threads_per_rank, 1u);
    EXPECT_STREQ(config.stream_threads, "auto");
    EXPECT_GE(config.ranks, 1u);
    EXPECT_GE(config.memory_per_rank, 1u << 20);
    EXPECT_EQ(config.log_level, static_cast<uint32_t>(SHD_LOG_INFO));
    EXPECT_EQ(config.max_message, 64u << 20);
    EXPECT_EQ(config.max_connections, 256u);
    EXPECT_EQ(config.data_roots.n, 0u);
    EXPECT_FALSE(config.rules.share_with_group);
}

TEST_F(Config, FileSetsEveryKindOfValue)
{
    ASSERT_EQ(parse("# comment\n"
                    "; comment\n"
                    "[shardd]\n"
                    "socket = /tmp/a b.sock\r\n"
                    "  socket_mode=0600\n"
                    "socket_group =\n"
                    "ranks = 8 ; eight\n"
                    "memory_per_rank = 3G\n"
                    "log_level = debug\n"
                    "admin_users = root, daemon ,4001\n"
                    "share_with_group = yes\n"
                    "data_roots = /data, /srv/x y\n"
                    "max_stream_buffer = 1048576"),
              0)
        << err.message;
    EXPECT_STREQ(config.socket, "/tmp/a b.sock");
    EXPECT_EQ(config.socket_mode, 0600u);
    EXPECT_STREQ(config.socket_group, "");
    EXPECT_EQ(config.ranks, 8u);
    EXPECT_EQ(config.memory_per_rank, 3ull << 30);
    EXPECT_EQ(config.log_level, static_cast<uint32_t>(SHD_LOG_DEBUG));
    ASSERT_EQ(config.admin_users.n, 3u);
    EXPECT_STREQ(config.admin_users.items[1], "daemon");
    EXPECT_EQ(config.share_with_group, 1u);
    EXPECT_EQ(roots(), (std::vector<std::string>{"/data", "/srv/x y"}));
    EXPECT_EQ(config.max_stream_buffer, 1u << 20);
    EXPECT_EQ(parse(""), 0);
    EXPECT_EQ(parse("data_roots =\n"), 0);
    EXPECT_EQ(parse("data_roots = " + std::string("/") + std::string(3000, 'p') + "\n"), 0)
        << err.message;
}

TEST_F(Config, WrongFilesAreRefusedWithTheLine)
{
    expect_refused("\n\nrank = 3\n", {"f.conf:3:", "'rank'", "ranks", "watch_history"});
    expect_refused("ranks = 2\n# x\nranks = 3\n", {"f.conf:3:", "ranks = '3'", "line 1"});
    expect_refused("ranks = many\n", {"f.conf:1:", "ranks = 'many'", "1 to 64"});
    for (const char *bad :
         {"0", "1025", "-1", "+1", " ", "1.5", "1 2", "0x10", "99999999999999999999"}) {
        expect_refused(std::string("ranks = ") + bad + "\n", {"f.conf:1:"});
    }
    for (const char *bad : {"8", "0888", "01000", "rw"}) {
        expect_refused(std::string("socket_mode = ") + bad + "\n", {"f.conf:1:", "octal"});
    }
    for (const char *bad : {"1", "1KB", "2X", "20000000T", "M", "99999999999999999999"}) {
        expect_refused(std::string("max_message = ") + bad + "\n", {"f.conf:1:", "4K to 1G"});
    }
    expect_refused("log_level = loud\n", {"f.conf:1:", "'loud'", "notice"});
    expect_refused("share_with_group = maybe\n", {"f.conf:1:", "yes or no"});
    expect_refused("data_roots = /a, b\n", {"f.conf:1:", "'b'", "absolute"});
    expect_refused("data_roots = /a,,/b\n", {"f.conf:1:", "absolute"});
    expect_refused("admin_users = a,\n", {"f.conf:1:", "a name"});
    expect_refused("socket =\n", {"f.conf:1:", "socket = ''"});
    expect_refused("[other]\n", {"f.conf:1:", "[other]", "[shardd]"});
    expect_refused("[shardd] ranks = 2\n", {"f.conf:1:"});
    expect_refused("\xef\xbb\xbf[other]\nranks = 2\n", {"f.conf:2:", "[shardd]"});
    expect_refused("ranks = 2\nwhat is this\n", {"f.conf:2:", "key = value"});
    expect_refused("[shardd\n", {"f.conf:1:"});
    expect_refused(std::string("ranks = 2\nmax\0jobs = 2\n", 22), {"f.conf:2:", "NUL"});
    expect_refused("\n" + std::string("socket = ") + std::string(5000, 'x') + "\n",
                   {"f.conf:2:", "4096"});
    // No line is a continuation of the one before.
    expect_refused("data_roots = /a\n  /b\n", {"f.conf:2:"});
}

TEST_F(Config, FlagsWin)
{
    ASSERT_EQ(load({"--ranks", "3", "--data-root", "/x,y", "--data-root", "/z", "--log-level=error",
                    "--share-with-group"},
                   "ranks = 2\nthreads_per_rank = 2\ndata_roots = /a, /b\n"),
              0)
        << err.message;
    EXPECT_EQ(config.ranks, 3u);
    EXPECT_EQ(config.threads_per_rank, 2u);
    EXPECT_EQ(roots(), (std::vector<std::string>{"/x,y", "/z"})) << "one item a flag, comma or not";
    EXPECT_EQ(config.log_level, static_cast<uint32_t>(SHD_LOG_ERROR));
    EXPECT_TRUE(config.rules.share_with_group);
    ASSERT_EQ(
        load({"--share-with-group", "no", "--data-roots", "/p, /q", "--ranks", "1", "--ranks", "2"},
             "share_with_group = yes\n"),
        0)
        << err.message;
    EXPECT_FALSE(config.rules.share_with_group);
    EXPECT_EQ(roots(), (std::vector<std::string>{"/p", "/q"}));
    EXPECT_EQ(config.ranks, 2u) << "the last flag counts";
    ASSERT_EQ(load({"--check-config"}), 0);
    EXPECT_EQ(action, SHD_CONFIG_CHECK);
}

TEST_F(Config, WrongFlagsAreRefused)
{
    const struct {
        std::vector<std::string> flags;
        const char *word;
    } cases[] = {
        {{"--rank", "2"}, "--rank;"},
        {{"--ranks"}, "needs a value"},
        {{"--ranks", "x"}, "--ranks 'x'"},
        {{"--max_jobs", "2"}, "--max_jobs"},
        {{"train"}, "'train'"},
        {{"--"}, "'--'"},
        {{"-h"}, "'-h'"},
        {{"--device", "tpu"}, "want cpu"},
        {{"--stream-threads", "maybe"}, "want auto, yes or no"},
        {{"--admin-user", "no-such-user"}, "no-such-user"},
        {{"--allow-group", "no-such-group"}, "no-such-group"},
        {{"--data-root", "relative"}, "absolute"},
    };
    for (const auto &c : cases) {
        EXPECT_EQ(load(c.flags), SHD_EINVAL) << c.word;
        EXPECT_NE(std::string(err.message).find(c.word), std::string::npos) << err.message;
    }
    EXPECT_EQ(load({"--device", "cuda"}), SHD_EUNSUPPORTED);
    EXPECT_NE(std::string(err.message).find("CUDA"), std::string::npos) << err.message;
    EXPECT_EQ(load_bare({"--config", base + "/none"}), SHD_EIO);
    EXPECT_NE(std::string(err.message).find(base + "/none"), std::string::npos) << err.message;
    EXPECT_EQ(load_bare({"--config", base}), SHD_EIO) << err.message;
    EXPECT_EQ(load({}, std::string((1 << 20) + 1, '\n')), SHD_EINVAL) << err.message;
    EXPECT_EQ(load({}, "bogus = 1\n"), SHD_EINVAL);
    EXPECT_NE(std::string(err.message).find(file + ":1:"), std::string::npos) << err.message;
}

TEST_F(Config, HelpAndVersionNeedNoFile)
{
    EXPECT_EQ(load_bare({"--config", base + "/none", "--help"}), 0);
    EXPECT_EQ(action, SHD_CONFIG_HELP);
    EXPECT_EQ(load_bare({"--version", "--config", base + "/none"}), 0);
    EXPECT_EQ(action, SHD_CONFIG_VERSION);

    char *text = nullptr;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    shd_config_help(out);
    fclose(out);
    for (const char *word :
         {"--config", "socket ", "watch_history", "data_roots", "[64M]", "[computed]"}) {
        EXPECT_NE(std::string(text).find(word), std::string::npos) << word;
    }
    free(text);
}

TEST_F(Config, NamesBecomeNumbers)
{
    ASSERT_EQ(load({"--admin-user", "daemon", "--admin-user", "4001", "--admin-group", "daemon",
                    "--allow-group", "5001"}),
              0)
        << err.message;
    ASSERT_EQ(config.rules.n_admin_uids, 2u);
    EXPECT_EQ(config.rules.admin_uids[0], getpwnam("daemon")->pw_uid);
    EXPECT_EQ(config.rules.admin_uids[1], 4001u);
    ASSERT_EQ(config.rules.n_admin_gids, 1u);
    EXPECT_EQ(config.rules.admin_gids[0], getgrnam("daemon")->gr_gid);
    ASSERT_EQ(config.rules.n_allow_gids, 1u);
    EXPECT_EQ(config.rules.allow_gids[0], 5001u);
}

TEST_F(Config, ReloadTakesWhatItMay)
{
    ASSERT_EQ(load({"--ranks", "2"}, "log_level = info\nadmin_users = 1\nmax_jobs = 5\n"), 0);
    shd_config live = config;
    shd_config_init(&config);
    ASSERT_EQ(
        load({"--ranks", "2"},
             "log_level = debug\nadmin_users = 2,3\nmax_jobs = 6\nsocket = /x\ndata_roots=/d\n"),
        0);
    char restart[256];
    shd_config_adopt(&live, &config, restart, sizeof(restart));
    EXPECT_STREQ(restart, "socket, max_jobs");
    EXPECT_EQ(live.log_level, static_cast<uint32_t>(SHD_LOG_DEBUG));
    EXPECT_EQ(live.rules.n_admin_uids, 2u);
    EXPECT_EQ(live.rules.admin_uids[1], 3u);
    EXPECT_EQ(live.data_roots.n, 1u);
    EXPECT_EQ(live.max_jobs, 5u);
    EXPECT_STREQ(live.socket, "/run/shardd/shardd.sock");
    shd_config_fini(&live);
}

} // namespace
