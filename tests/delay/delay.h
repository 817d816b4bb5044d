// Random delays around collectives and in streams, to find what depends on timing. For tests.
//
// A test that depends on :delay has its calls of shd_comm_* and shd_stream_* led through here by
// the linker (--wrap); nothing of it is in the product.
#ifndef TESTS_DELAY_DELAY_H
#define TESTS_DELAY_DELAY_H

#include <cstdint>

namespace shd
{

// From now on delays of up to `most_us` microseconds, drawn from `seed` and the number of the call;
// 0: none.
void Delay(uint32_t seed, uint32_t most_us);

// Delays so far.
uint64_t Delays();

} // namespace shd

#endif
