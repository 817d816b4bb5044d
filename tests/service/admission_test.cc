// Admission beside the loop: files that do not open hold up nobody but whoever named them.
#include <algorithm>
#include <set>

#include "tests/service/service.h"

#define STATE(name) SHARD__V1__JOB_STATE__JOB_STATE_##name

namespace
{

// The user whose files hang, and how many are being opened; -1: nobody's.
std::atomic<int64_t> hanging{-1};
std::atomic<unsigned> opening{0}, opened{0};

} // namespace

extern "C" {
int __real_shd_auth_open(const shd_identity *who, char *const *roots, uint32_t n_roots,
                         const char *path, int *fd_out, shd_error *err);

// The linker leads shd_auth_open here.
int __wrap_shd_auth_open(const shd_identity *who, char *const *roots, uint32_t n_roots,
                         const char *path, int *fd_out, shd_error *err)
{
    opening++;
    while (hanging == static_cast<int64_t>(who->uid)) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    opening--;
    opened++;
    return __real_shd_auth_open(who, roots, n_roots, path, fd_out, err);
}
}

namespace
{

class Admission : public Service
{
  protected:
    static constexpr unsigned kShare = 2, kMost = 128; // of a user: at one time, and all in all
    shd_identity other{getuid() + 1, getgid() + 1, getpid()};

    void SetUp() override
    {
        Service::SetUp();
        limits.max_jobs = limits.max_jobs_per_user = 2 * kMost;
        limits.memory_per_rank = 16ull << 30;
        hanging = -1;
        opened = 0;
    }
    void TearDown() override
    {
        hanging = -1;
        Service::TearDown();
    }
    // Submits `n` jobs whose data do not open.
    void hang(unsigned n)
    {
        hanging = static_cast<int64_t>(me.uid);
        for (unsigned i = 0; i < n; i++) {
            const std::string name = "hangs" + std::to_string(i);
            hung.push_back(create_async(Spec(name).data(data), name.c_str()));
        }
        turn_until([&] { return opening == std::min(n, kShare); });
    }
    bool all_finished(const std::vector<Call> &calls)
    {
        return std::all_of(calls.begin(), calls.end(), [](const Call &c) { return c->finished; });
    }
    Call plan(const Spec &spec, bool advise, const shd_identity *who)
    {
        Shard__V1__JobSpec copy = spec.m;
        Shard__V1__PlanRequest q = SHARD__V1__PLAN_REQUEST__INIT;
        q.spec = &copy;
        q.advise = advise;
        return call("Plan", &q.base, who);
    }
    Call reshard(std::string job, const shd_identity *who)
    {
        Shard__V1__ReshardRequest q = SHARD__V1__RESHARD_REQUEST__INIT;
        std::string strategy = "zero1";
        q.job = &job[0];
        q.strategy = &strategy[0];
        return call("Reshard", &q.base, who);
    }
    void ends_well(Call c)
    {
        turn_until([&] { return c->finished; });
        EXPECT_TRUE(c->ok()) << c->error;
    }
    std::vector<Call> hung;
};

TEST_F(Admission, OfAUserWhoseFilesHangKeepsNobodyElseWaiting)
{
    start(false);
    hang(8);
    Call c = create(Spec("other"), "", &other);
    ASSERT_TRUE(c->ok()) << c->error;
    turn_until([&] { return state("other") == STATE(RUNNING); });
    ends_well(reshard("other", &other));
    ends_well(plan(Spec("p"), false, &other));
    ends_well(plan(Spec("p"), true, &other));
    EXPECT_EQ(opening, kShare);
    EXPECT_TRUE(std::none_of(hung.begin(), hung.end(), [](Call &h) { return h->finished; }));

    hanging = -1;
    turn_until([&] { return all_finished(hung); });
    for (Call &h : hung) {
        EXPECT_TRUE(h->ok()) << h->error;
    }
}

TEST_F(Admission, OfAPlanHoldsUpNoText)
{
    start(false);
    const std::string id = create_running(Spec("own"), false);
    hang(kShare);
    std::string text = "in the beginning", tokenizer = "bytes";
    Shard__V1__TokenizeRequest q = SHARD__V1__TOKENIZE_REQUEST__INIT;
    q.tokenizer = &tokenizer[0];
    q.text.data = reinterpret_cast<uint8_t *>(&text[0]);
    q.text.len = text.size();
    ends_well(call("Tokenize", &q.base));
    EXPECT_EQ(opening, kShare);
}

TEST_F(Admission, TooManyOfAUserAreRefusedAndLeaveNothing)
{
    start(false);
    hang(kMost);
    Call late = create_async(Spec("late").data(data), "late");
    ASSERT_TRUE(late->finished);
    EXPECT_EQ(late->code, SHD_EFULL);
    EXPECT_NE(late->error.find("of yours"), std::string::npos) << late->error;
    Call twice = create_async(Spec("hangs0").data(data), "hangs0");
    EXPECT_FALSE(twice->finished) << "it waits with the first";
    EXPECT_TRUE(create(Spec("other"), "", &other)->ok());

    hanging = -1;
    hung.push_back(std::move(twice));
    turn_until([&] { return all_finished(hung); });
    std::set<std::string> ids;
    for (Call &h : hung) {
        ASSERT_TRUE(h->ok()) << h->error;
        ids.insert(Unpacked<Shard__V1__Job>(h->sent[0])->id);
    }
    EXPECT_EQ(ids.size(), kMost);
    EXPECT_EQ(ref("GetJob", "late")->code, SHD_ENOTFOUND);
    Call again = create(Spec("late").data(data), "late");
    EXPECT_TRUE(again->ok()) << again->error;
}

// Those that wait are held in memory.
TEST_F(Admission, ASpecificationHasABound)
{
    start(false);
    Spec large("large");
    char *pattern = large.text(std::string(300 << 10, '*'));
    large.m.freeze = &pattern;
    large.m.n_freeze = 1;
    Call refused = create(large, "large");
    EXPECT_EQ(refused->code, SHD_EINVAL);
    EXPECT_NE(refused->error.find("at most 262144"), std::string::npos) << refused->error;
}

TEST_F(Admission, AStopTellsThatWhichRunsAndThatWhichWaits)
{
    start(false);
    const std::string id = create_running(Spec("own"), false);
    hang(5);
    hung.push_back(reshard(id, &me));
    hung.push_back(plan(Spec("p"), false, &me));
    bool stopped = false;
    shd_jobs_stop(
        jobs, [](void *flag) { *static_cast<bool *>(flag) = true; }, &stopped);
    turn();
    EXPECT_FALSE(stopped) << "threads are still at work for the table";
    hanging = -1;
    turn_until([&] { return stopped; });
    ASSERT_TRUE(all_finished(hung));
    for (Call &h : hung) {
        EXPECT_EQ(h->code, SHD_EUNAVAILABLE) << h->error;
    }
    EXPECT_EQ(opened, kShare) << "what had not begun opened nothing";
    EXPECT_EQ(fake_alive(), 1u);
    EXPECT_EQ(create_async(Spec("late").data(data), "hangs0")->code, SHD_EUNAVAILABLE);
}

} // namespace
