#include "client/options.h"

#include <sys/stat.h>
#include <unistd.h>

#include <climits>
#include <cstdlib>
#include <string>
#include <vector>

#include "client/spec_options.h"
#include "tests/client/client_test_util.h"
#include "gtest/gtest.h"

namespace
{
struct Args {
    shc_spec_args spec; // base 0
    int verbose;
    int has_every;
    double every;
    char *text;
    uint64_t size;
    double rate, seconds;
    char **stops;
    size_t n_stops;
    char *job;
    char *second;
};

const shc_option extra[] = {
    {"verbose", nullptr, SHC_BOOL, offsetof(Args, verbose), 0, 0, 0, 0, "talk", 0},
    {"every", "SECONDS", SHC_OPT_NUM, offsetof(Args, every), offsetof(Args, has_every), 1, 0.1, 60,
     "again", 0},
    {"text", "TEXT", SHC_RAW_TEXT, offsetof(Args, text), 0, 0, 0, 0, "free", 't'},
    {"size", "SIZE", SHC_SIZE, offsetof(Args, size), 0, 0, 1, 0, "bytes", 0},
    {"rate", "RATE", SHC_RATE, offsetof(Args, rate), 0, 0, 0, 0, "per second", 0},
    {"seconds", "TIME", SHC_SECONDS, offsetof(Args, seconds), 0, 0, 0, 0, "time", 0},
    {"stop", "TEXT", SHC_TEXTS, offsetof(Args, stops), offsetof(Args, n_stops), 0, 0, 0, "again",
     0},
};
const shc_option_table extra_table = {extra, 7, 0};

class Options : public ::testing::Test
{
  protected:
    Options()
    {
        syntax.name = "test";
        syntax.about = "Tests.";
        syntax.tables[0] = &shc_spec_table;
        syntax.tables[1] = &extra_table;
    }
    ~Options() override
    {
        shc_given_fini(&given);
        shc_keep_fini(&keep);
        shc_buf_fini(&message);
    }
    int parse(std::vector<std::string> words)
    {
        shc_given_fini(&given);
        shc_buf_clear(&message);
        args = Args{};
        shc_spec_init(&args.spec);
        words_ = std::move(words);
        std::vector<char *> argv;
        for (auto &word : words_)
            argv.push_back(&word[0]);
        return shc_options_parse(&syntax, static_cast<int>(argv.size()), argv.data(), &args, &keep,
                                 &given, &message);
    }
    // The message of a command line that must be refused.
    std::string refused(std::vector<std::string> words)
    {
        EXPECT_EQ(parse(std::move(words)), -1);
        const std::string text = shc_buf_str(&message);
        EXPECT_NE(text.find(';'), std::string::npos) << text;
        return text;
    }
    int read_file(const std::string &path)
    {
        args.spec.file = const_cast<char *>(path.c_str());
        shc_buf_clear(&message);
        return shc_spec_read_file(&args.spec, given.flags[0], &keep, &message);
    }
    std::string file_refused(const std::string &content)
    {
        parse({});
        file_ = dir.write("job.json", content);
        EXPECT_EQ(read_file(file_), -1) << content;
        return shc_buf_str(&message);
    }

    ScratchDir dir;
    shc_syntax syntax{};
    Args args{};
    shc_keep keep{};
    shc_given given{};
    shc_buf message{};

  private:
    std::vector<std::string> words_;
    std::string file_;
};
} // namespace

TEST_F(Options, StoresEveryKind)
{
    const std::string data = dir.write("text", "abc");
    ASSERT_EQ(parse({"--model", "gpt2", "--data", data, "--steps=18446744073709551615", "--ranks",
                     "4294967295", "--lr", "3e-4", "--shard-degrees", "1,2,4", "--verbose",
                     "--name=--odd"}),
              0)
        << shc_buf_str(&message);
    const Shard__V1__JobSpec &spec = args.spec.spec;
    EXPECT_STREQ(spec.model, "gpt2");
    EXPECT_EQ(spec.data, data);
    EXPECT_EQ(spec.has_steps_case, SHARD__V1__JOB_SPEC__HAS_STEPS_STEPS);
    EXPECT_EQ(spec.steps, UINT64_MAX);
    EXPECT_EQ(spec.ranks, UINT32_MAX);
    EXPECT_EQ(spec.has_lr_case, SHARD__V1__JOB_SPEC__HAS_LR_LR);
    EXPECT_EQ(spec.lr, 3e-4);
    ASSERT_EQ(spec.n_shard_degrees, 3u);
    EXPECT_EQ(spec.shard_degrees[2], 4u);
    EXPECT_STREQ(spec.name, "--odd");
    EXPECT_EQ(args.verbose, 1);
    EXPECT_EQ(spec.has_seed_case, SHARD__V1__JOB_SPEC__HAS_SEED__NOT_SET);
}

TEST_F(Options, WholeNumbersAreStrict)
{
    for (const char *bad : {"-3", "+3", "3x", " 3", "3 ", "1e3", "0x10", "3.0", "1,000",
                            "18446744073709551616", "99999999999999999999999"}) {
        const std::string text = refused({"--steps", bad});
        EXPECT_NE(text.find("--steps"), std::string::npos) << text;
        EXPECT_NE(text.find(bad), std::string::npos) << text;
    }
    EXPECT_NE(refused({"--ranks", "4294967296"}).find("from 1 to 4294967295"), std::string::npos);
    refused({"--ranks", "0"});
    refused({"--micro-batch", "0"});
    refused({"--priority", "101"});
    refused({"--priority", "0"});
    EXPECT_EQ(refused({"--steps="}), "--steps: the value is empty; give N");
    EXPECT_EQ(refused({"--steps", ""}), "--steps: the value is empty; give N");
}

TEST_F(Options, NumbersAreStrict)
{
    for (const char *bad : {"-1", "nan", "inf", "0x1p3", "1e400", "3e", "1.2.3", "1 ", "."}) {
        const std::string text = refused({"--lr", bad});
        EXPECT_NE(text.find("--lr"), std::string::npos) << text;
        EXPECT_NE(text.find(bad), std::string::npos) << text;
    }
    refused({"--beta1", "1.5"});
    refused({"--eval-split", "-0.1"});
    EXPECT_EQ(parse({"--lr", "1"}), 0);
    EXPECT_EQ(parse({"--lr", ".5"}), 0);
}

TEST_F(Options, ALetterMeansItsFlag)
{
    ASSERT_EQ(parse({"-t", "some text"}), 0) << shc_buf_str(&message);
    EXPECT_STREQ(args.text, "some text");
    EXPECT_NE(refused({"-t"}).find("--text needs a value"), std::string::npos);
    EXPECT_NE(refused({"-t", "a", "--text", "b"}).find("--text is given twice"), std::string::npos);
    EXPECT_NE(refused({"-x", "a"}).find("unknown flag -x"), std::string::npos);
    EXPECT_NE(refused({"-tx"}).find("unknown flag -tx"), std::string::npos);
}

TEST_F(Options, ListsAreStrict)
{
    for (const char *bad : {"1,2", "1,2,3,4", "1,,2", ",1,2", "1,2,", "a,b,c", "0,1,1", "1;2;3"})
        EXPECT_NE(refused({"--shard-degrees", bad}).find("--shard-degrees"), std::string::npos);
}

TEST_F(Options, TextsMayBeGivenAgain)
{
    ASSERT_EQ(parse({"--stop", "a,b", "--freeze", "*.wte.*,x", "--stop=\n", "--freeze", "h.?.*"}),
              0);
    ASSERT_EQ(args.n_stops, 2u);
    EXPECT_STREQ(args.stops[0], "a,b");
    EXPECT_STREQ(args.stops[1], "\n");
    ASSERT_EQ(args.spec.spec.n_freeze, 3u);
    EXPECT_STREQ(args.spec.spec.freeze[0], "*.wte.*");
    EXPECT_STREQ(args.spec.spec.freeze[1], "x");
    EXPECT_STREQ(args.spec.spec.freeze[2], "h.?.*");
    for (const char *bad : {",", "a,", ",a", "a,,b"})
        EXPECT_NE(refused({"--freeze", bad}).find("--freeze"), std::string::npos);
}

TEST_F(Options, Sizes)
{
    const std::pair<const char *, uint64_t> good[] = {
        {"5GB", 5000000000},    {"1000", 1000},       {"3B", 3},
        {"2KB", 2000},          {"7MB", 7000000},     {"1KiB", 1024},
        {"512MiB", 512u << 20}, {"2GiB", 2ull << 30}, {"80G", 80000000000},
        {"3K", 3000},           {"4M", 4000000},      {"1T", 1000000000000},
        {"5TB", 5000000000000}, {"1TiB", 1ull << 40},
    };
    for (const auto &[text, value] : good) {
        ASSERT_EQ(parse({"--size", text}), 0) << text;
        EXPECT_EQ(args.size, value) << text;
    }
    for (const char *bad : {"0", "GB", "-1", "5gb", "5 GB", "1.5GB", "99999999999GiB", "5PB", "5g"})
        EXPECT_NE(refused({"--size", bad}).find(bad), std::string::npos);
}

TEST_F(Options, RatesAndTimes)
{
    const std::pair<const char *, double> rates[] = {
        {"989T", 989e12}, {"3.35T", 3.35e12}, {"50GB", 50e9},   {"1e12", 1e12}, {"0.5P", 0.5e15},
        {"7", 7},         {"8K", 8e3},        {"2.5MB", 2.5e6}, {"1e-3G", 1e6}, {"4B", 4},
    };
    for (const auto &[text, value] : rates) {
        ASSERT_EQ(parse({"--rate", text}), 0) << text;
        EXPECT_DOUBLE_EQ(args.rate, value) << text;
    }
    for (const char *bad : {"0", "-1", "T", "50Gb", "50 G", "50GiB", "nan", "inf", "1e999", "5G/s",
                            "1.2.3", "+4G", "400GB/s", "e5"})
        EXPECT_NE(refused({"--rate", bad}).find(bad), std::string::npos) << bad;
    const std::pair<const char *, double> times[] = {
        {"5us", 5e-6}, {"0.1ms", 1e-4}, {"2s", 2}, {"0", 0}, {"3e-6", 3e-6}, {"40ns", 40e-9},
    };
    for (const auto &[text, value] : times) {
        ASSERT_EQ(parse({"--seconds", text}), 0) << text;
        EXPECT_DOUBLE_EQ(args.seconds, value) << text;
    }
    for (const char *bad : {"-1s", "us", "5 us", "5m", "5US", "nan", "1h"})
        EXPECT_NE(refused({"--seconds", bad}).find(bad), std::string::npos) << bad;
}

TEST_F(Options, OnOrOff)
{
    ASSERT_EQ(parse({"--packing", "off", "--nesterov", "--decay-all"}), 0);
    EXPECT_EQ(args.spec.spec.has_packing_case, SHARD__V1__JOB_SPEC__HAS_PACKING_PACKING);
    EXPECT_EQ(args.spec.spec.packing, 0);
    EXPECT_EQ(args.spec.spec.nesterov, 1);
    EXPECT_EQ(args.spec.spec.decay_all, 1);
    ASSERT_EQ(parse({"--packing", "on"}), 0);
    EXPECT_EQ(args.spec.spec.packing, 1);
    ASSERT_EQ(parse({}), 0);
    EXPECT_EQ(args.spec.spec.has_packing_case, SHARD__V1__JOB_SPEC__HAS_PACKING__NOT_SET);
    EXPECT_EQ(refused({"--packing", "yes"}), "--packing: \"yes\" is not on or off; give on or off");
}

TEST_F(Options, NamesAndPaths)
{
    const std::string file = dir.write("tokenizer.json", "{}");
    const std::string where = file.substr(0, file.rfind('/'));
    char before[PATH_MAX];
    ASSERT_NE(getcwd(before, sizeof before), nullptr);
    ASSERT_EQ(chdir(where.c_str()), 0);
    ASSERT_EQ(mkdir("model", 0755), 0);
    char real[PATH_MAX];
    ASSERT_NE(realpath(".", real), nullptr);
    const std::string here = real;
    EXPECT_EQ(parse({"--model", "model", "--tokenizer", "tokenizer.json", "--init-from", "./none"}),
              0)
        << shc_buf_str(&message);
    EXPECT_EQ(args.spec.spec.model, here + "/model");
    EXPECT_EQ(args.spec.spec.tokenizer, here + "/tokenizer.json");
    EXPECT_EQ(args.spec.spec.init_from, here + "/none");
    EXPECT_EQ(parse({"--model", "gpt2", "--tokenizer", "bytes", "--init-from", "random"}), 0);
    EXPECT_STREQ(args.spec.spec.model, "gpt2");
    EXPECT_STREQ(args.spec.spec.tokenizer, "bytes");
    EXPECT_STREQ(args.spec.spec.init_from, "random");
    EXPECT_NE(refused({"--model", "no/such/dir"}).find("--model: no/such/dir: No such file"),
              std::string::npos);
    EXPECT_EQ(rmdir("model"), 0);
    ASSERT_EQ(chdir(before), 0);
}

TEST_F(Options, FlagsAreStrict)
{
    EXPECT_EQ(refused({"--stps", "3"}),
              "unknown flag --stps; did you mean --steps? see shardctl test --help");
    EXPECT_EQ(refused({"--entirely-else"}),
              "unknown flag --entirely-else; see shardctl test --help");
    EXPECT_EQ(refused({"--step", "3"}).find("unknown flag --step;"), 0u); // no abbreviations
    refused({"--micro_batch", "3"}); // underscores are for files
    EXPECT_EQ(refused({"--steps"}), "--steps needs a value; give --steps N");
    EXPECT_EQ(refused({"--name", "--steps", "3"}), "--name needs a value; give --name NAME");
    EXPECT_EQ(refused({"--steps", "3", "--steps", "4"}), "--steps is given twice; give it once");
    EXPECT_EQ(refused({"--verbose=yes"}), "--verbose takes no value; leave \"=yes\" out");
    EXPECT_NE(refused({"-x"}).find("unknown flag -x"), std::string::npos);
    EXPECT_NE(refused({"word"}).find("unexpected \"word\""), std::string::npos);
    EXPECT_NE(refused({"--\x1b[2J"}).find("--?[2J"), std::string::npos);
}

TEST_F(Options, Operands)
{
    syntax.operands[0] = {"JOB", offsetof(Args, job), 1};
    syntax.operands[1] = {"OTHER", offsetof(Args, second), 0};
    EXPECT_EQ(refused({}), "JOB is missing; see shardctl test --help");
    ASSERT_EQ(parse({"7", "--verbose"}), 0);
    EXPECT_STREQ(args.job, "7");
    EXPECT_EQ(args.second, nullptr);
    ASSERT_EQ(parse({"--", "--7", "-"}), 0);
    EXPECT_STREQ(args.job, "--7");
    EXPECT_STREQ(args.second, "-");
    refused({"1", "2", "3"});
    refused({""});
}

TEST_F(Options, OptionalValue)
{
    syntax.operands[0] = {"JOB", offsetof(Args, job), 0};
    ASSERT_EQ(parse({"--every"}), 0);
    EXPECT_EQ(args.has_every, 1);
    EXPECT_EQ(args.every, 0);
    ASSERT_EQ(parse({"--every", "name"}), 0);
    EXPECT_STREQ(args.job, "name");
    ASSERT_EQ(parse({"--every", "2.5"}), 0);
    EXPECT_EQ(args.every, 2.5);
    ASSERT_EQ(parse({"--every=2"}), 0);
    EXPECT_EQ(args.every, 2);
    refused({"--every=0.01"});
    refused({"--every", "0"});
    refused({"--every", "61"});
}

TEST_F(Options, FreeTextMayBeAnything)
{
    ASSERT_EQ(parse({"--text", ""}), 0);
    EXPECT_STREQ(args.text, "");
    ASSERT_EQ(parse({"--text=--help"}), 0);
    EXPECT_STREQ(args.text, "--help");
    ASSERT_EQ(parse({"--text", "-5 or so"}), 0);
    EXPECT_STREQ(args.text, "-5 or so");
}

TEST_F(Options, Files)
{
    EXPECT_NE(refused({"--data", dir.path("none")}).find("No such file"), std::string::npos);
    EXPECT_NE(refused({"--data", dir.path("no/such/dir")}).find("directory exists"),
              std::string::npos);
    EXPECT_NE(refused({"--data", dir.write("empty", "")}).find("the file is empty"),
              std::string::npos);
    EXPECT_NE(refused({"--data", dir.path("")}).find("it is a directory"), std::string::npos);
    EXPECT_EQ(refused({"--data", ""}), "--data: the value is empty; give FILE");
    if (geteuid()) {
        const std::string secret = dir.write("secret", "x");
        chmod(secret.c_str(), 0);
        EXPECT_NE(refused({"--data", secret}).find("Permission denied"), std::string::npos);
    }
}

TEST_F(Options, RelativePathsBecomeAbsolute)
{
    dir.write("text", "abc");
    char before[PATH_MAX];
    ASSERT_NE(getcwd(before, sizeof before), nullptr);
    ASSERT_EQ(chdir(dir.path("").c_str()), 0);
    char here[PATH_MAX];
    ASSERT_NE(getcwd(here, sizeof here), nullptr);
    EXPECT_EQ(parse({"--data", "text", "--model", "./model", "--init-from", "random"}), 0)
        << shc_buf_str(&message);
    EXPECT_EQ(chdir(before), 0);
    EXPECT_EQ(args.spec.spec.data, std::string(here) + "/text");
    EXPECT_EQ(args.spec.spec.model, std::string(here) + "/model");
    EXPECT_STREQ(args.spec.spec.init_from, "random");
}

TEST_F(Options, ANewDirectoryMayEndInASlash)
{
    char real[PATH_MAX];
    ASSERT_NE(realpath(dir.path("").c_str(), real), nullptr);
    for (const char *end : {"new", "new/", "new//", "./new/"}) {
        ASSERT_EQ(parse({"--model", dir.path(end)}), 0) << shc_buf_str(&message);
        EXPECT_EQ(args.spec.spec.model, std::string(real) + "/new");
    }
    ASSERT_EQ(parse({"--model", "/"}), 0) << shc_buf_str(&message);
    EXPECT_STREQ(args.spec.spec.model, "/");
}

TEST_F(Options, HelpNamesEveryFlag)
{
    shc_buf help{};
    shc_options_help(&syntax, 80, &help);
    const std::string text = shc_buf_str(&help);
    for (size_t i = 0; i < shc_spec_table.n; i++)
        EXPECT_NE(text.find(std::string("--") + shc_spec_table.options[i].name + " "),
                  std::string::npos)
            << shc_spec_table.options[i].name;
    EXPECT_NE(text.find("--every [SECONDS]"), std::string::npos);
    size_t line = 0;
    for (size_t end; (end = text.find('\n', line)) != std::string::npos; line = end + 1)
        EXPECT_LE(end - line, 80u) << text.substr(line, end - line);
    shc_buf_fini(&help);
    ASSERT_EQ(parse({"--help"}), 0);
    EXPECT_EQ(given.help, 1);
}

TEST_F(Options, JsonFile)
{
    const std::string data = dir.write("text", "abc");
    const std::string file =
        dir.write("job.json", "{\"name\": \"f\", \"model\": \"gpt2\", \"micro_batch\": 4,\n"
                              " \"global-batch\": 16, \"lr\": 1, \"eps\": 1e-9,\n"
                              " \"shard_degrees\": [1, 1, 2], \"data\": \"" +
                                  data + "\"}");
    ASSERT_EQ(parse({"--name", "c", "--lr", "0.5"}), 0);
    ASSERT_EQ(read_file(file), 0) << shc_buf_str(&message);
    EXPECT_STREQ(args.spec.spec.name, "c"); // the command line wins
    EXPECT_EQ(args.spec.spec.lr, 0.5);
    EXPECT_STREQ(args.spec.spec.model, "gpt2");
    EXPECT_EQ(args.spec.spec.micro_batch, 4u);
    EXPECT_EQ(args.spec.spec.global_batch, 16u);
    EXPECT_EQ(args.spec.spec.eps, 1e-9);
    EXPECT_EQ(args.spec.spec.n_shard_degrees, 3u);
    EXPECT_STREQ(args.spec.spec.data, data.c_str());
}

TEST_F(Options, JsonFileOfListsAndSwitches)
{
    const std::string file =
        dir.write("job.json", "{\"freeze\": [\"*.wte.*\", \"h.0.*\"], \"packing\": false,\n"
                              " \"nesterov\": true, \"decay_all\": false, \"momentum\": 0.5,\n"
                              " \"dtype\": \"fp16\", \"loss-scale-window\": 20}");
    ASSERT_EQ(parse({}), 0);
    ASSERT_EQ(read_file(file), 0) << shc_buf_str(&message);
    ASSERT_EQ(args.spec.spec.n_freeze, 2u);
    EXPECT_STREQ(args.spec.spec.freeze[1], "h.0.*");
    EXPECT_EQ(args.spec.spec.has_packing_case, SHARD__V1__JOB_SPEC__HAS_PACKING_PACKING);
    EXPECT_EQ(args.spec.spec.packing, 0);
    EXPECT_EQ(args.spec.spec.nesterov, 1);
    EXPECT_EQ(args.spec.spec.decay_all, 0);
    EXPECT_EQ(args.spec.spec.momentum, 0.5);
    EXPECT_STREQ(args.spec.spec.dtype, "fp16");
    EXPECT_EQ(args.spec.spec.loss_scale_window, 20u);
    ASSERT_EQ(parse({"--freeze", "x"}), 0); // the command line replaces the list
    ASSERT_EQ(read_file(file), 0) << shc_buf_str(&message);
    ASSERT_EQ(args.spec.spec.n_freeze, 1u);
    EXPECT_STREQ(args.spec.spec.freeze[0], "x");
    EXPECT_NE(file_refused("{\"packing\": \"no\"}").find("\"packing\" is not true or false"),
              std::string::npos);
    EXPECT_NE(file_refused("{\"nesterov\": 1}").find("true or false"), std::string::npos);
    EXPECT_NE(file_refused("{\"freeze\": [1]}").find("array of strings"), std::string::npos);
    EXPECT_NE(file_refused("{\"freeze\": \"a,\"}").find("--freeze"), std::string::npos);
}

TEST_F(Options, JsonFileOfShardingAndOverlap)
{
    const std::string file =
        dir.write("job.json", "{\"strategy\": \"hpz\", \"shard-group\": 4,\n"
                              " \"reshard_after_forward\": \"no\", \"prefetch\": 0,\n"
                              " \"max-gathered\": 3, \"bucket-bytes\": \"25MB\",\n"
                              " \"overlap\": false, \"persist_below\": 100000}");
    ASSERT_EQ(parse({"--shard-group", "2"}), 0);
    ASSERT_EQ(read_file(file), 0) << shc_buf_str(&message);
    const Shard__V1__JobSpec &spec = args.spec.spec;
    EXPECT_EQ(spec.has_shard_group_case, SHARD__V1__JOB_SPEC__HAS_SHARD_GROUP_SHARD_GROUP);
    EXPECT_EQ(spec.shard_group, 2u);
    EXPECT_STREQ(spec.reshard_after_forward, "no");
    EXPECT_EQ(spec.has_prefetch_case, SHARD__V1__JOB_SPEC__HAS_PREFETCH_PREFETCH);
    EXPECT_EQ(spec.prefetch, 0u);
    EXPECT_EQ(spec.max_gathered, 3u);
    EXPECT_EQ(spec.bucket_bytes, 25000000u);
    EXPECT_EQ(spec.has_overlap_case, SHARD__V1__JOB_SPEC__HAS_OVERLAP_OVERLAP);
    EXPECT_EQ(spec.overlap, 0);
    EXPECT_EQ(spec.persist_below, 100000u);
    ASSERT_EQ(parse({"--bucket-bytes", "1MiB", "--overlap", "on", "--reshard-after-forward", "4"}),
              0);
    EXPECT_EQ(args.spec.spec.bucket_bytes, 1048576u);
    EXPECT_EQ(args.spec.spec.overlap, 1);
    EXPECT_STREQ(args.spec.spec.reshard_after_forward, "4");
    EXPECT_NE(refused({"--overlap", "yes"}).find("on or off"), std::string::npos);
    EXPECT_NE(refused({"--shard-group", "0"}).find("--shard-group"), std::string::npos);
    EXPECT_NE(file_refused("{\"bucket-bytes\": true}").find("whole number or a size"),
              std::string::npos);
    EXPECT_NE(file_refused("{\"bucket-bytes\": \"lots\"}").find("--bucket-bytes"),
              std::string::npos);
}

TEST_F(Options, StrategyOnTheCommandLineOverridesDegreesInTheFile)
{
    const std::string file = dir.write("job.json", "{\"shard-degrees\": [1, 1, 2]}");
    ASSERT_EQ(parse({"--strategy", "zero3"}), 0);
    ASSERT_EQ(read_file(file), 0) << shc_buf_str(&message);
    EXPECT_EQ(args.spec.spec.n_shard_degrees, 0u);
}

TEST_F(Options, JsonFileRefusals)
{
    EXPECT_NE(file_refused("{\"name\": \"x\",\n \"stps\": 5}").find(":2: unknown key \"stps\";"),
              std::string::npos);
    EXPECT_NE(file_refused("{\"file\": \"x\"}").find("unknown key \"file\""), std::string::npos);
    EXPECT_NE(file_refused("{\"steps\": 5,\n oops}").find(":2:"), std::string::npos);
    EXPECT_NE(file_refused("[1]").find("not a JSON object"), std::string::npos);
    EXPECT_NE(file_refused("{\"steps\": \"5\"}").find("\"steps\" is not a whole number"),
              std::string::npos);
    EXPECT_NE(file_refused("{\"steps\": 5.5}").find("whole number"), std::string::npos);
    EXPECT_NE(file_refused("{\"steps\": -5}").find("--steps: \"-5\""), std::string::npos);
    EXPECT_NE(file_refused("{\"name\": 5}").find("\"name\" is not a string"), std::string::npos);
    EXPECT_NE(file_refused("{\"lr\": true}").find("\"lr\" is not a number"), std::string::npos);
    EXPECT_NE(file_refused("{\"shard-degrees\": [1, \"2\", 3]}").find("array of whole numbers"),
              std::string::npos);
    EXPECT_NE(file_refused("{\"shard-degrees\": []}").find("array of whole numbers"),
              std::string::npos);
    EXPECT_NE(file_refused("{\"steps\": 5, \"steps\": 6}").find("duplicate"), std::string::npos);
    EXPECT_NE(file_refused("{\"seq-len\": 5, \"seq_len\": 6}").find("given twice"),
              std::string::npos);
    EXPECT_NE(file_refused("{\"data\": \"/none\"}").find("/none: No such file"), std::string::npos);
}
