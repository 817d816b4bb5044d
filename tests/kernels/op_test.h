/* What the tests of the ops share: every table this processor can run, pools of several sizes, and
 * comparison with a reference in double. */
#ifndef SHD_TESTS_KERNELS_OP_TEST_H
#define SHD_TESTS_KERNELS_OP_TEST_H

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "daemon/base/pool.h"
#include "kernels/compute_ops.h"

namespace optest
{

using Floats = std::vector<float>;
using Doubles = std::vector<double>;

/* A pool and the context of an op over it. */
class Context
{
  public:
    explicit Context(int nthreads) : ctx_{shd_pool_create(nthreads, 0, "test")} {}
    ~Context()
    {
        shd_pool_free(ctx_.pool);
    }
    Context(const Context &) = delete;
    Context &operator=(const Context &) = delete;
    const shd_opctx *get() const
    {
        return &ctx_;
    }

  private:
    shd_opctx ctx_;
};

constexpr const char *kIsas[] = {"x86-64", "x86-64-v3", "x86-64-v4"};

inline std::vector<const shd_ops *> Tables()
{
    std::vector<const shd_ops *> tables;
    for (const char *name : kIsas) {
        if (const shd_ops *ops = shd_ops_cpu_named(name)) {
            tables.push_back(ops);
        }
    }
    return tables;
}

inline std::vector<const shd_compute_ops *> ComputeTables(shd_dtype dtype)
{
    std::vector<const shd_compute_ops *> tables;
    for (const char *name : kIsas) {
        if (const shd_compute_ops *ops = shd_compute_ops_cpu_named(name, dtype)) {
            tables.push_back(ops);
        }
    }
    return tables;
}

/* Uniform in [-scale, scale]. */
inline Floats Random(int64_t n, uint32_t seed, float scale = 1.0f)
{
    std::mt19937 engine(seed);
    std::uniform_real_distribution<float> uniform(-scale, scale);
    Floats x(static_cast<size_t>(n));
    for (float &v : x) {
        v = uniform(engine);
    }
    return x;
}

inline std::vector<int32_t> RandomIds(int64_t n, int32_t below, uint32_t seed)
{
    std::mt19937 engine(seed);
    std::vector<int32_t> ids(static_cast<size_t>(n));
    for (int32_t &id : ids) {
        id = static_cast<int32_t>(engine() % static_cast<uint32_t>(below));
    }
    return ids;
}

inline Doubles ToDouble(const Floats &x)
{
    return Doubles(x.begin(), x.end());
}

inline Floats Concat(std::initializer_list<Floats> parts)
{
    Floats all;
    for (const Floats &p : parts) {
        all.insert(all.end(), p.begin(), p.end());
    }
    return all;
}

inline Doubles Concat(std::initializer_list<Doubles> parts)
{
    Doubles all;
    for (const Doubles &p : parts) {
        all.insert(all.end(), p.begin(), p.end());
    }
    return all;
}

/* A float that no op may read: outputs start as this. */
inline Floats Garbage(int64_t n)
{
    return Floats(static_cast<size_t>(n), std::nanf(""));
}

/* Every element within tolerance × (root mean square of `want` + |want|). */
inline void ExpectClose(const Floats &got, const Doubles &want, double tolerance,
                        const std::string &what)
{
    ASSERT_EQ(want.size(), got.size()) << what;
    double square = 0.0;
    for (double w : want) {
        square += w * w;
    }
    const double rms = want.empty() ? 0.0 : std::sqrt(square / static_cast<double>(want.size()));
    for (size_t i = 0; i < want.size(); i++) {
        ASSERT_LE(std::fabs(got[i] - want[i]), tolerance * (rms + std::fabs(want[i])))
            << what << ": element " << i << " is " << got[i] << ", wanted " << want[i];
    }
}

inline bool SameBits(const Floats &a, const Floats &b)
{
    return a.size() == b.size() && memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

using OpRun = std::function<Floats(const shd_ops *, const shd_opctx *)>;
using ComputeRun = std::function<Floats(const shd_compute_ops *, const shd_opctx *)>;

template <class Run, class Table>
void ExpectOpOnTables(const std::vector<const Table *> &tables, const Run &run, const Doubles &want,
                      double tolerance, const std::string &what)
{
    Context one(1);
    for (const Table *ops : tables) {
        const std::string name = what + " on " + ops->name;
        const Floats first = run(ops, one.get());
        ExpectClose(first, want, tolerance, name);
        for (int nthreads : {2, 3, 5}) {
            Context many(nthreads);
            ASSERT_TRUE(SameBits(first, run(ops, many.get())))
                << name << " with " << nthreads << " threads";
        }
    }
}

/* Runs an op on every table with 1, 2, 3 and 5 threads: close to `want`, and the same bits whatever
 * the number of threads. */
inline void ExpectOp(const OpRun &run, const Doubles &want, double tolerance,
                     const std::string &what)
{
    ExpectOpOnTables(Tables(), run, want, tolerance, what);
}

/* The same for an op on fp32 activations. */
inline void ExpectOp(const ComputeRun &run, const Doubles &want, double tolerance,
                     const std::string &what)
{
    ExpectOpOnTables(ComputeTables(SHD_F32), run, want, tolerance, what);
}

/* d(weights · f(x)) / dx by central differences, in double. */
inline Doubles NumericGradient(const std::function<Doubles(const Doubles &)> &f, Doubles x,
                               const Floats &weights)
{
    const double h = 1e-5;
    const auto value = [&] {
        const Doubles y = f(x);
        double sum = 0.0;
        for (size_t i = 0; i < y.size(); i++) {
            sum += weights[i] * y[i];
        }
        return sum;
    };
    Doubles gradient(x.size());
    for (size_t i = 0; i < x.size(); i++) {
        const double saved = x[i];
        x[i] = saved + h;
        const double above = value();
        x[i] = saved - h;
        gradient[i] = (above - value()) / (2 * h);
        x[i] = saved;
    }
    return gradient;
}

} // namespace optest

#endif
