#include "client/view.h"

#include <jansson.h>

#include <string>
#include <vector>

#include "client/status_view.h"
#include "tests/client/client_test_util.h"
#include "gtest/gtest.h"

namespace
{
// Two ranks with equal memory, or unequal when asked; one job.
struct World {
    TestJob job{120, 300};
    Shard__V1__StepResult last = SHARD__V1__STEP_RESULT__INIT;
    Shard__V1__EvalResult eval = SHARD__V1__EVAL_RESULT__INIT;
    Shard__V1__Bytes bytes[2][3];
    Shard__V1__TagBytes tags[2][2];
    Shard__V1__TagBytes *tag_list[2][2];
    Shard__V1__RankMemory memory[2];
    Shard__V1__RankMemory *memory_list[2];
    Shard__V1__CommStats comm[2];
    Shard__V1__CommStats *comm_list[2];
    Shard__V1__JobStatus job_status = SHARD__V1__JOB_STATUS__INIT;
    Shard__V1__JobStatus *jobs[1] = {&job_status};
    Shard__V1__RankStatus ranks[2];
    Shard__V1__RankStatus *rank_list[2];
    Shard__V1__StatusResponse status = SHARD__V1__STATUS_RESPONSE__INIT;

    World()
    {
        static char params[] = "params", optimizer[] = "optimizer", host[] = "host",
                    fp32[] = "fp32", strategy[] = "strategy", zero3[] = "zero3",
                    gather[] = "all_gather", scatter[] = "reduce_scatter", cpu[] = "cpu",
                    isa[] = "avx2", version[] = "0.1.0", sock[] = "/run/shardd/shardd.sock",
                    dir[] = "/var/lib/shardd";
        for (int r = 0; r < 2; r++) {
            for (int b = 0; b < 3; b++)
                shard__v1__bytes__init(&bytes[r][b]);
            set(r, 0, 1684000, 1684000, 1684000);
            set(r, 1, 3368000, 3368000, 3368000);
            set(r, 2, 5052000, 5052000, 5052000);
            for (int t = 0; t < 2; t++) {
                shard__v1__tag_bytes__init(&tags[r][t]);
                tags[r][t].tag = t ? optimizer : params;
                tags[r][t].bytes = &bytes[r][t];
                tag_list[r][t] = &tags[r][t];
            }
            shard__v1__rank_memory__init(&memory[r]);
            memory[r].rank = memory[r].daemon_rank = static_cast<uint32_t>(r);
            memory[r].tier = host;
            memory[r].n_tags = 2;
            memory[r].tags = tag_list[r];
            memory[r].total = &bytes[r][2];
            memory[r].reserved = 6 << 20;
            memory_list[r] = &memory[r];
            shard__v1__comm_stats__init(&comm[r]);
            comm[r].kind = r ? scatter : gather;
            comm[r].bytes = 404160000;
            comm[r].calls = 720;
            comm[r].planned_bytes_per_step = 3368000;
            comm[r].last_step_bytes = 3368000;
            comm_list[r] = &comm[r];
            shard__v1__rank_status__init(&ranks[r]);
            ranks[r].rank = static_cast<uint32_t>(r);
            ranks[r].device = cpu;
            ranks[r].isa = isa;
            ranks[r].threads = 1;
            ranks[r].busy = 0.934;
            ranks[r].budget = 4ull << 30;
            ranks[r].planned = 1ull << 30;
            rank_list[r] = &ranks[r];
        }
        last.step = 120;
        last.loss = 2.1234;
        last.tokens_per_s = 12345;
        eval.step = 100;
        eval.loss = 2.2;
        job.job.last = &last;
        job.job.last_eval = &eval;
        job_status.job = &job.job;
        job_status.strategy = zero3;
        job_status.param_dtype = job_status.reduce_dtype = fp32;
        job_status.master_dtype = job_status.moment_dtype = fp32;
        job_status.determinism = strategy;
        job_status.reduction_width = 2;
        job_status.accumulation = 2;
        job_status.exposed_comm = 0.123;
        job_status.overlap = 1;
        job_status.watchers = 1;
        job_status.n_memory = 2;
        job_status.memory = memory_list;
        job_status.n_comm = 2;
        job_status.comm = comm_list;
        status.version = version;
        status.pid = 4711;
        status.uptime_s = 7984;
        status.resident = 537000000;
        status.connections = 3;
        status.socket = sock;
        status.state_dir = dir;
        status.n_ranks = 2;
        status.ranks = rank_list;
        status.n_jobs = 1;
        status.jobs = jobs;
    }
    void set(int rank, int which, uint64_t planned, uint64_t now, uint64_t peak)
    {
        bytes[rank][which].planned = planned;
        bytes[rank][which].now = now;
        bytes[rank][which].peak = peak;
    }
    std::string render(shc_term term = {})
    {
        shc_buf buf{};
        shc_status_render(&buf, &term, &status);
        std::string out = shc_buf_str(&buf);
        shc_buf_fini(&buf);
        return out;
    }
    json_t *json()
    {
        shc_json out{};
        shc_status_json(&out, &status);
        json_error_t error;
        json_t *root = json_loads(shc_buf_str(&out.text), JSON_REJECT_DUPLICATES, &error);
        EXPECT_NE(root, nullptr) << error.text << shc_buf_str(&out.text);
        shc_json_fini(&out);
        return root;
    }
};
} // namespace

TEST(StatusView, Golden)
{
    EXPECT_EQ(World().render(),
              "shardd 0.1.0 | up 2:13:04 | pid 4711 | resident 512.1 MiB | 3 connections\n"
              "socket /run/shardd/shardd.sock | state /var/lib/shardd\n"
              "\n"
              "RANK  DEVICE  ISA   THREADS  BUSY  PLANNED   BUDGET\n"
              "   0  cpu     avx2        1   93%  1.0 GiB  4.0 GiB  [####............]\n"
              "   1  cpu     avx2        1   93%  1.0 GiB  4.0 GiB  [####............]\n"
              "\n"
              "tale | job 7 | running | step 120/300 | loss 2.1234 | 12.3k tokens/s"
              " | eval 2.2000 at step 100\n"
              "  gpt-byte-1m | 842k parameters | zero3 p,g,o 2,2,2 of 2 ranks"
              " | batch 8 = 2 x 2 x 2 of 16 tokens\n"
              "  compute fp32, params fp32 | reduce fp32, master fp32, moments fp32\n"
              "  determinism strategy (width 2) | exposed communication 12% | 0 "
              "queued | 1 watching | owner ada\n"
              "\n"
              "  memory  per rank (x2)  planned      now     peak\n"
              "  host    params         1.6 MiB  1.6 MiB  1.6 MiB\n"
              "          optimizer      3.2 MiB  3.2 MiB  3.2 MiB\n"
              "          total          4.8 MiB  4.8 MiB  4.8 MiB\n"
              "\n"
              "  sent by a rank  planned/step  last step      total  calls\n"
              "  all_gather           3.2 MiB    3.2 MiB  385.4 MiB    720\n"
              "  reduce_scatter       3.2 MiB    3.2 MiB  385.4 MiB    720\n");
}

TEST(StatusView, WhatIsInUse)
{
    World world;
    Shard__V1__Progress progress = SHARD__V1__PROGRESS__INIT;
    static char what[] = "tokenizing", fp16[] = "fp16", lion[] = "lion", full[] = "full",
                tokenizer[] = "/m/tokenizer.json";
    progress.what = what;
    progress.done = 3 << 20;
    progress.total = 12 << 20;
    world.job.job.progress = &progress;
    world.job.job.trainable = 42000;
    world.job_status.compute_dtype = world.job_status.param_dtype = fp16;
    world.job_status.optimizer = lion;
    world.job_status.checkpointing = full;
    world.job_status.tokenizer = tokenizer;
    world.job_status.loss_scale = 32768;
    const std::string out = world.render();
    EXPECT_NE(out.find("tale | job 7 | running | tokenizing 3.0 MiB of 12.0 MiB (25%) | step"),
              std::string::npos)
        << out;
    EXPECT_NE(out.find(" | loss scale 32768 | 0 skipped\n"), std::string::npos) << out;
    EXPECT_NE(out.find(" | 42.0k of 842k parameters trained | "), std::string::npos) << out;
    EXPECT_NE(out.find("  compute fp16, params fp16 | reduce fp32, master fp32, moments fp32 | lion"
                       " | checkpointing full\n  tokenizer /m/tokenizer.json | determinism"),
              std::string::npos)
        << out;
    json_t *root = world.json();
    const json_t *job = json_array_get(json_object_get(root, "jobs"), 0);
    EXPECT_STREQ(json_string_value(json_object_get(job, "compute_dtype")), "fp16");
    EXPECT_STREQ(json_string_value(json_object_get(job, "optimizer")), "lion");
    EXPECT_STREQ(json_string_value(json_object_get(job, "checkpointing")), "full");
    EXPECT_STREQ(json_string_value(json_object_get(job, "tokenizer")), "/m/tokenizer.json");
    EXPECT_EQ(json_real_value(json_object_get(job, "loss_scale")), 32768);
    EXPECT_EQ(json_integer_value(json_object_get(job, "trainable")), 42000);
    const json_t *done = json_object_get(job, "progress");
    EXPECT_STREQ(json_string_value(json_object_get(done, "what")), "tokenizing");
    EXPECT_EQ(json_integer_value(json_object_get(done, "done")), 3 << 20);
    json_decref(root);
}

TEST(StatusView, RanksThatDifferStandApart)
{
    World world;
    world.set(1, 1, 3368000, 1024, 3368000);
    const std::string out = world.render();
    EXPECT_NE(out.find("  memory  rank 0     planned      now     peak\n"
                       "  host    params     1.6 MiB  1.6 MiB  1.6 MiB\n"
                       "          optimizer  3.2 MiB  3.2 MiB  3.2 MiB\n"
                       "          total      4.8 MiB  4.8 MiB  4.8 MiB\n"
                       "  memory  rank 1     planned      now     peak\n"
                       "  host    params     1.6 MiB  1.6 MiB  1.6 MiB\n"
                       "          optimizer  3.2 MiB  1.0 KiB  3.2 MiB\n"
                       "          total      4.8 MiB  4.8 MiB  4.8 MiB\n"),
              std::string::npos)
        << out;
}

TEST(StatusView, NoJobsAndStyles)
{
    World world;
    world.status.n_jobs = 0;
    EXPECT_NE(world.render().find("no jobs; shardctl submit makes one\n"), std::string::npos);
    shc_term term{};
    term.style = term.utf8 = 1;
    EXPECT_NE(World().render(term).find("\033[1mtale\033[0m \xC2\xB7 job 7 \xC2\xB7 running"),
              std::string::npos);
}

TEST(StatusView, LinesBreakWhereTheTerminalEnds)
{
    shc_term term{};
    term.width = 60;
    const std::string out = World().render(term);
    EXPECT_NE(out.find("tale | job 7 | running | step 120/300 | loss 2.1234\n"
                       "  12.3k tokens/s | eval 2.2000 at step 100\n"),
              std::string::npos)
        << out;
    size_t at = 0;
    for (size_t end; (end = out.find('\n', at)) != std::string::npos; at = end + 1) {
        if (out.substr(at, 4) != "RANK" && out.substr(at, 3) != "   ") {
            EXPECT_LE(end - at, 60u) << out.substr(at, end - at);
        }
    }
}

TEST(StatusView, JobsAtWorkComeFirst)
{
    World world;
    TestJob over(10, 10, SHARD__V1__JOB_STATE__JOB_STATE_DONE);
    over.spec.name = const_cast<char *>("over");
    Shard__V1__JobStatus status = SHARD__V1__JOB_STATUS__INIT;
    status.job = &over.job;
    Shard__V1__JobStatus *jobs[] = {&status, &world.job_status};
    world.status.jobs = jobs;
    world.status.n_jobs = 2;
    const std::string out = world.render();
    EXPECT_LT(out.find("\ntale | job 7"), out.find("\nover | job 7"));
    EXPECT_NE(out.find("\nover | job 7"), std::string::npos);
}

// Every object with "planned" has now and peak beside it.
static void expect_figure(const json_t *figure, json_int_t planned, json_int_t now, json_int_t peak)
{
    ASSERT_TRUE(json_is_object(figure));
    EXPECT_EQ(json_object_size(figure), 3u);
    EXPECT_EQ(json_integer_value(json_object_get(figure, "planned")), planned);
    EXPECT_EQ(json_integer_value(json_object_get(figure, "now")), now);
    EXPECT_EQ(json_integer_value(json_object_get(figure, "peak")), peak);
}

TEST(StatusView, Json)
{
    World world;
    world.set(1, 0, 10, 20, 30);
    json_t *root = world.json();
    EXPECT_STREQ(json_string_value(json_object_get(root, "version")), "0.1.0");
    EXPECT_EQ(json_integer_value(json_object_get(root, "pid")), 4711);
    expect_figure(json_object_get(root, "resident"), 0, 537000000, 0); // null reads as 0
    EXPECT_TRUE(json_is_null(json_object_get(json_object_get(root, "resident"), "planned")));
    const json_t *rank = json_array_get(json_object_get(root, "ranks"), 1);
    EXPECT_EQ(json_integer_value(json_object_get(json_object_get(rank, "budget"), "planned")),
              4ll << 30);
    const json_t *job = json_array_get(json_object_get(root, "jobs"), 0);
    EXPECT_STREQ(json_string_value(json_object_get(job, "name")), "tale");
    EXPECT_EQ(json_integer_value(json_object_get(job, "step")), 120);
    EXPECT_EQ(json_real_value(json_object_get(job, "loss")), 2.1234);
    EXPECT_EQ(json_array_size(json_object_get(job, "degrees")), 4u);
    const json_t *memory = json_array_get(json_object_get(job, "memory"), 1);
    const json_t *tags = json_object_get(memory, "tags");
    EXPECT_EQ(json_object_size(tags), 2u);
    expect_figure(json_object_get(tags, "params"), 10, 20, 30);
    expect_figure(json_object_get(tags, "optimizer"), 3368000, 3368000, 3368000);
    expect_figure(json_object_get(memory, "total"), 5052000, 5052000, 5052000);
    expect_figure(json_object_get(memory, "reserved"), 0, 6 << 20, 0);
    const json_t *comm = json_array_get(json_object_get(job, "comm"), 0);
    EXPECT_STREQ(json_string_value(json_object_get(comm, "kind")), "all_gather");
    EXPECT_EQ(json_integer_value(json_object_get(comm, "calls")), 720);
    expect_figure(json_object_get(comm, "step_bytes"), 3368000, 3368000, 0);
    expect_figure(json_object_get(comm, "total_bytes"), 0, 404160000, 0);
    const json_t *spec = json_object_get(job, "spec");
    EXPECT_STREQ(json_string_value(json_object_get(spec, "model")), "gpt-byte-1m");
    EXPECT_EQ(json_integer_value(json_object_get(spec, "global-batch")), 8);
    EXPECT_EQ(json_object_get(spec, "seed"), nullptr); // not set
    json_decref(root);
}

TEST(View, Strategy)
{
    shc_buf buf{};
    const uint32_t degrees[] = {1, 2, 4, 4};
    EXPECT_STREQ(shc_view_strategy(&buf, "zero2", degrees, 4), "zero2");
    EXPECT_STREQ(shc_view_strategy(&buf, "", degrees, 4), "1,2,4");
    EXPECT_STREQ(shc_view_strategy(&buf, "", nullptr, 0), "-");
    EXPECT_STREQ(shc_view_degrees(&buf, "custom", degrees, 4, "", ""),
                 "custom p,g,o 1,2,4 of 4 ranks");
    EXPECT_STREQ(shc_view_degrees(&buf, "zero3", degrees, 4, "yes", "zero3"),
                 "zero3 p,g,o 1,2,4 of 4 ranks");
    EXPECT_STREQ(shc_view_degrees(&buf, "hpz", degrees, 4, "2", "hpz"),
                 "hpz p,g,o 1,2,4 of 4 ranks, reshard-after-forward 2");
    EXPECT_STREQ(shc_view_degrees(&buf, "zero1", degrees, 4, "", "megatron"),
                 "zero1 p,g,o 1,2,4 of 4 ranks (what megatron is here)");
    EXPECT_STREQ(shc_view_degrees(&buf, "zero1", nullptr, 0, "", ""), "zero1");
    shc_buf_fini(&buf);
}
