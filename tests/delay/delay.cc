#include "tests/delay/delay.h"

#include <sched.h>
#include <unistd.h>

#include <atomic>

#include "daemon/comm/comm.h"
#include "daemon/device/stream.h"

namespace
{

std::atomic<uint32_t> seed{0}, most_us{0};
std::atomic<uint64_t> calls{0}, delays{0};

// SplitMix64 (Steele et al. 2014): a good bit mixer.
uint64_t Mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

// Half of the calls go straight on, a quarter gives the core away, a quarter sleeps.
void Wait()
{
    const uint32_t most = most_us.load(std::memory_order_relaxed);
    if (most == 0) {
        return;
    }
    const uint64_t r = Mix(Mix(seed.load(std::memory_order_relaxed)) +
                           calls.fetch_add(1, std::memory_order_relaxed));
    if (r % 4 == 0) {
        delays.fetch_add(1, std::memory_order_relaxed);
        usleep(static_cast<useconds_t>((r >> 8) % most));
    } else if (r % 4 == 1) {
        sched_yield();
    }
}

// What was submitted, with the delay before it.
struct Late {
    shd_stream_fn fn;
    void *arg;
};

int RunLate(void *arg, shd_device *dev, shd_error *err)
{
    const Late late = *static_cast<Late *>(arg);
    delete static_cast<Late *>(arg);
    Wait();
    const int rc = late.fn(late.arg, dev, err);
    Wait();
    return rc;
}

} // namespace

void shd::Delay(uint32_t new_seed, uint32_t new_most_us)
{
    seed = new_seed;
    calls = 0;
    most_us = new_most_us;
}

uint64_t shd::Delays()
{
    return delays;
}

// NOLINTBEGIN(bugprone-reserved-identifier): the names that the linker asks for
extern "C" {
int __real_shd_comm_all_gather(shd_comm *, shd_comm_kind, shd_device *, const void *, void *,
                               size_t, shd_error *);
int __real_shd_comm_all_to_all(shd_comm *, shd_comm_kind, shd_device *, const void *, size_t,
                               void *, size_t, shd_error *);
int __real_shd_comm_all_gather_host(shd_comm *, shd_comm_kind, const void *, void *, size_t,
                                    shd_error *);
uint64_t __real_shd_stream_submit(shd_stream *, shd_stream_fn, void *);
int __real_shd_stream_wait(shd_stream *, uint64_t, shd_error *);

int __wrap_shd_comm_all_gather(shd_comm *comm, shd_comm_kind kind, shd_device *dev,
                               const void *send, void *recv, size_t bytes, shd_error *err)
{
    Wait();
    const int rc = __real_shd_comm_all_gather(comm, kind, dev, send, recv, bytes, err);
    Wait();
    return rc;
}

int __wrap_shd_comm_all_to_all(shd_comm *comm, shd_comm_kind kind, shd_device *dev,
                               const void *send, size_t stride, void *recv, size_t bytes,
                               shd_error *err)
{
    Wait();
    const int rc = __real_shd_comm_all_to_all(comm, kind, dev, send, stride, recv, bytes, err);
    Wait();
    return rc;
}

int __wrap_shd_comm_all_gather_host(shd_comm *comm, shd_comm_kind kind, const void *send,
                                    void *recv, size_t bytes, shd_error *err)
{
    Wait();
    return __real_shd_comm_all_gather_host(comm, kind, send, recv, bytes, err);
}

uint64_t __wrap_shd_stream_submit(shd_stream *stream, shd_stream_fn fn, void *arg)
{
    return __real_shd_stream_submit(stream, RunLate, new Late{fn, arg});
}

int __wrap_shd_stream_wait(shd_stream *stream, uint64_t ticket, shd_error *err)
{
    Wait();
    return __real_shd_stream_wait(stream, ticket, err);
}
}
// NOLINTEND(bugprone-reserved-identifier)
