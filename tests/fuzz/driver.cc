// Runs one LLVMFuzzerTestOneInput without libFuzzer: the committed corpus, then mutations of it for
// a few seconds. Input number i is a function of (seed, i), so that a crash is found again by the
// number printed: FUZZ_SEED=... FUZZ_INPUT=i runs that one alone. FUZZ_SECONDS lengthens the run.
// With clang, -fsanitize=fuzzer takes this file's place.
#include <dirent.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
extern "C" void __sanitizer_set_death_callback(void (*)()) __attribute__((weak));

namespace
{

using Input = std::vector<uint8_t>;

constexpr size_t kMaxBytes = 1 << 16;

uint64_t NumberFrom(const char *name, uint64_t otherwise)
{
    const char *value = getenv(name);
    return value != nullptr ? strtoull(value, nullptr, 10) : otherwise;
}

std::vector<Input> Corpus()
{
    const char *dir_name = getenv("FUZZ_CORPUS");
    std::vector<std::string> names;
    std::vector<Input> corpus;
    DIR *dir = dir_name != nullptr ? opendir(dir_name) : nullptr;
    if (dir == nullptr) {
        return corpus;
    }
    while (const dirent *entry = readdir(dir)) {
        if (entry->d_name[0] != '.') {
            names.push_back(std::string(dir_name) + "/" + entry->d_name);
        }
    }
    closedir(dir);
    std::sort(names.begin(), names.end());
    for (const std::string &name : names) {
        std::ifstream file(name, std::ios::binary);
        corpus.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
    }
    return corpus;
}

char g_doing[128]; // what a crash is reported with

void Report()
{
    const ssize_t written = write(STDERR_FILENO, g_doing, strlen(g_doing));
    (void)written;
}

void OnSignal(int number)
{
    Report();
    signal(number, SIG_DFL);
    raise(number);
}

void RunInput(const Input &input, uint64_t seed, uint64_t number)
{
    snprintf(g_doing, sizeof(g_doing), "\nfuzz: FUZZ_SEED=%llu FUZZ_INPUT=%llu (%zu bytes)\n",
             static_cast<unsigned long long>(seed), static_cast<unsigned long long>(number),
             input.size());
    // A copy of exact size: a sanitizer sees a read past the end.
    uint8_t *exact = static_cast<uint8_t *>(malloc(input.size() + (input.empty() ? 1 : 0)));
    std::copy(input.begin(), input.end(), exact);
    LLVMFuzzerTestOneInput(exact, input.size());
    free(exact);
}

using Random = std::mt19937_64;

size_t Below(Random &random, size_t n)
{
    return n == 0 ? 0 : static_cast<size_t>(random() % n);
}

void Mutate(Input &input, const std::vector<Input> &corpus, Random &random)
{
    static const uint64_t kNumbers[] = {0,          1,          0x7f,       0x80,
                                        0xff,       0x7fff,     0xffff,     0x7fffffff,
                                        0x80000000, 0xffffffff, UINT64_MAX, INT64_MAX};
    const size_t at = Below(random, input.size());
    switch (random() % 8) {
    case 0: // flip a bit
        if (!input.empty()) {
            input[at] ^= static_cast<uint8_t>(1u << random() % 8);
        }
        break;
    case 1: // another byte
        if (!input.empty()) {
            input[at] = static_cast<uint8_t>(random());
        }
        break;
    case 2: { // a number of 1, 2, 4 or 8 bytes in either order
        const uint64_t number = kNumbers[random() % std::size(kNumbers)] + random() % 3 - 1;
        const size_t width = size_t{1} << random() % 4;
        const bool big = random() % 2 == 0;
        for (size_t i = 0; i < width && at + i < input.size(); i++) {
            input[at + i] = static_cast<uint8_t>(number >> 8 * (big ? width - 1 - i : i));
        }
        break;
    }
    case 3: // cut off the end
        input.resize(at);
        break;
    case 4: // take out a piece
        if (!input.empty()) {
            const size_t n = 1 + Below(random, std::min<size_t>(input.size() - at, 64));
            input.erase(input.begin() + at,
                        input.begin() + static_cast<long>(std::min(at + n, input.size())));
        }
        break;
    case 5: { // insert bytes
        const Input bytes(1 + Below(random, 16), static_cast<uint8_t>(random()));
        input.insert(input.begin() + at, bytes.begin(), bytes.end());
        break;
    }
    case 6: { // repeat a piece
        const size_t n = Below(random, std::min<size_t>(input.size() - at, 256));
        const Input piece(input.begin() + at, input.begin() + static_cast<long>(at + n));
        input.insert(input.begin() + Below(random, input.size()), piece.begin(), piece.end());
        break;
    }
    default: { // the head of this, the tail of another
        const Input &other = corpus[Below(random, corpus.size())];
        input.resize(at);
        input.insert(input.end(), other.begin() + Below(random, other.size()), other.end());
        break;
    }
    }
    if (input.size() > kMaxBytes) {
        input.resize(kMaxBytes);
    }
}

Input Mutation(const std::vector<Input> &corpus, uint64_t seed, uint64_t number)
{
    Random random(seed * 0x9e3779b97f4a7c15u + number);
    Input input = corpus[Below(random, corpus.size())];
    for (size_t n = 1 + Below(random, 6); n > 0; n--) {
        Mutate(input, corpus, random);
    }
    return input;
}

TEST(Fuzz, CorpusThenMutations)
{
    const std::vector<Input> corpus = Corpus();
    ASSERT_FALSE(corpus.empty()) << "FUZZ_CORPUS must name a folder with inputs";
    if (__sanitizer_set_death_callback != nullptr) {
        __sanitizer_set_death_callback(Report);
    } else {
        for (int number : {SIGSEGV, SIGABRT, SIGBUS, SIGFPE, SIGILL}) {
            signal(number, OnSignal);
        }
    }
    const uint64_t seed = NumberFrom("FUZZ_SEED", 1);
    const uint64_t only = NumberFrom("FUZZ_INPUT", UINT64_MAX);
    if (only != UINT64_MAX) {
        RunInput(only < corpus.size() ? corpus[only] : Mutation(corpus, seed, only), seed, only);
        return;
    }
    for (uint64_t i = 0; i < corpus.size(); i++) {
        RunInput(corpus[i], seed, i);
    }
    const auto end =
        std::chrono::steady_clock::now() + std::chrono::seconds(NumberFrom("FUZZ_SECONDS", 3));
    uint64_t number = corpus.size();
    while (std::chrono::steady_clock::now() < end) {
        RunInput(Mutation(corpus, seed, number), seed, number);
        number++;
    }
    printf("%llu inputs\n", static_cast<unsigned long long>(number));
}

} // namespace
