// The real shardctl against a scripted daemon: what the tests of its commands share.
#ifndef SHD_TESTS_CLIENT_CTL_H
#define SHD_TESTS_CLIENT_CTL_H

#include <jansson.h>
#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "proto/shd_errno.h"
#include "tests/client/client_test_util.h"
#include "gtest/gtest.h"

const auto RUNNING = SHARD__V1__JOB_STATE__JOB_STATE_RUNNING;
const auto DONE = SHARD__V1__JOB_STATE__JOB_STATE_DONE;
const auto FAILED = SHARD__V1__JOB_STATE__JOB_STATE_FAILED;
const auto CANCELLED = SHARD__V1__JOB_STATE__JOB_STATE_CANCELLED;

inline std::vector<std::string> lines(const std::string &text)
{
    std::vector<std::string> out;
    std::istringstream in(text);
    for (std::string line; std::getline(in, line);)
        out.push_back(line);
    return out;
}

// One line of --json, freed with the object.
class Json
{
  public:
    explicit Json(const std::string &line)
    {
        json_error_t error;
        root_ = json_loads(line.c_str(), JSON_REJECT_DUPLICATES, &error);
        EXPECT_NE(root_, nullptr) << error.text << ": " << line;
    }
    Json(const Json &) = delete;
    ~Json()
    {
        json_decref(root_);
    }
    const json_t *at(const char *key) const
    {
        return json_object_get(root_, key);
    }
    std::string text(const char *key) const
    {
        const char *value = json_string_value(at(key));
        return value ? value : "";
    }
    long long whole(const char *key) const
    {
        return json_integer_value(at(key));
    }
    std::set<std::string> keys() const
    {
        std::set<std::string> out;
        const char *key;
        json_t *value;
        json_object_foreach(root_, key, value) out.insert(key);
        return out;
    }

  private:
    json_t *root_;
};

class Ctl : public ::testing::Test
{
  protected:
    Ctl() : socket(dir.path("s")), daemon(new FakeDaemon(socket)) {}
    Result ctl(std::vector<std::string> args)
    {
        args.insert(args.begin(), {"--socket", socket});
        return shardctl(args);
    }
    Result json(std::vector<std::string> args)
    {
        args.insert(args.begin(), {"--socket", socket, "--json"});
        return shardctl(args);
    }
    // A job of `steps` that ends in `last`; Watch from any step.
    void script_job(uint64_t steps, Shard__V1__JobState last, const std::string &reason = "")
    {
        daemon->reply("CreateJob", TestJob(0, steps).job);
        daemon->reply("GetJob", TestJob(0, steps).job);
        daemon->on("Watch", [=](fake_call *call, const std::string &request) {
            for (uint64_t step = first_step(request); step <= steps; step++)
                send_event(call, step_event(step, step, 5.0 / static_cast<double>(step)));
            send_event(call, eval_event(steps + 1, steps, 1.25));
            send_event(call, state_event(steps + 2, last, steps, reason));
            fake_finish(call, 0, "", 0);
        });
    }
    static uint64_t first_step(const std::string &request)
    {
        Shard__V1__WatchRequest *watch = shard__v1__watch_request__unpack(
            nullptr, request.size(), reinterpret_cast<const uint8_t *>(request.data()));
        EXPECT_EQ(watch->has_from_step_case, SHARD__V1__WATCH_REQUEST__HAS_FROM_STEP_FROM_STEP);
        const uint64_t from = watch->from_step ? watch->from_step : 1;
        shard__v1__watch_request__free_unpacked(watch, nullptr);
        return from;
    }

    ScratchDir dir;
    std::string socket;
    std::unique_ptr<FakeDaemon> daemon;
};

#endif
