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
    explicit Context(int nthreads) : ctx_{shd_pool_create(nthreads, 0, "test"), nullptr} {}
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

constexpr const char *kIsas[] = {"x86-64", "x86-64-v3", "x86-64-v4", "x86-64-v4-bf16",
                                 "x86-64-v4-amx"};

/* Every table once: instruction sets may share one. */
inline std::vector<const shd_ops *> Tables()
{
    std::vector<const shd_ops *> tables;
    for (const char *name : kIsas) {
        const shd_ops *ops = shd_ops_cpu_named(name);
        if (ops != nullptr && (tables.empty() || tables.back() != ops)) {
            tables.push_back(ops);
        }
    }
    return tables;
}

inline std::vector<const shd_compute_ops *> ComputeTables(shd_dtype dtype)
{
    std::vector<const shd_compute_ops *> tables;
    for (const char *name : kIsas) {
        const shd_compute_ops *ops = shd_compute_ops_cpu_named(name, dtype);
        if (ops != nullptr && (tables.empty() || tables.back() != ops)) {
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
    return a.size() == b.size() &&
           (a.empty() || memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
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

/* ---- bf16 and fp16 ---- */

/* x rounded to the nearest value of dtype (ties to even), by arithmetic on numbers. */
inline float Rounded(shd_dtype dtype, float x)
{
    if (dtype == SHD_F32 || x == 0.0f || !std::isfinite(x)) {
        return x;
    }
    const int bits = dtype == SHD_BF16 ? 8 : 11, least = dtype == SHD_BF16 ? -133 : -24;
    int exponent = 0;
    std::frexp(x, &exponent);
    const int unit = std::max(exponent - bits, least);
    const double r = std::ldexp(std::nearbyint(std::ldexp(static_cast<double>(x), -unit)), unit);
    const double limit = dtype == SHD_BF16 ? 0x1p128 : 0x1p16;
    return std::fabs(r) >= limit ? std::copysign(INFINITY, x) : static_cast<float>(r);
}

inline Floats Rounded(shd_dtype dtype, Floats x)
{
    for (float &v : x) {
        v = Rounded(dtype, v);
    }
    return x;
}

/* Elements of a table's dtype. */
class Elts
{
  public:
    Elts(shd_dtype dtype, const Floats &x) : dtype_(dtype), size_(x.size())
    {
        bytes_.resize(x.size() * shd_dtype_size(dtype) + 1);
        for (size_t i = 0; i < x.size(); i++) {
            Set(i, x[i]);
        }
    }
    Elts(const shd_compute_ops *ops, const Floats &x) : Elts(ops->dtype, x) {}
    void *data()
    {
        return bytes_.data();
    }
    void *at(int64_t i)
    {
        return bytes_.data() + static_cast<size_t>(i) * shd_dtype_size(dtype_);
    }
    Floats floats() const
    {
        Floats x;
        for (size_t i = 0; i < size_; i++) {
            x.push_back(Get(i));
        }
        return x;
    }

  private:
    void Set(size_t i, float x)
    {
        if (dtype_ == SHD_F32) {
            memcpy(&bytes_[4 * i], &x, 4);
        } else if (dtype_ == SHD_BF16) {
            const float r = Rounded(SHD_BF16, x);
            uint32_t u;
            memcpy(&u, &r, 4);
            const uint16_t h = static_cast<uint16_t>(u >> 16 | (std::isnan(r) ? 0x40u : 0u));
            memcpy(&bytes_[2 * i], &h, 2);
        } else {
            const _Float16 h = static_cast<_Float16>(x);
            memcpy(&bytes_[2 * i], &h, 2);
        }
    }
    float Get(size_t i) const
    {
        float x;
        if (dtype_ == SHD_F32) {
            memcpy(&x, &bytes_[4 * i], 4);
        } else if (dtype_ == SHD_BF16) {
            uint16_t h;
            memcpy(&h, &bytes_[2 * i], 2);
            const uint32_t u = static_cast<uint32_t>(h) << 16;
            memcpy(&x, &u, 4);
        } else {
            _Float16 h;
            memcpy(&h, &bytes_[2 * i], 2);
            x = static_cast<float>(h);
        }
        return x;
    }
    shd_dtype dtype_;
    size_t size_;
    std::vector<char> bytes_;
};

/* Half the distance of neighbours relative to the number: what one rounding may change. */
inline double UnitRoundoff(shd_dtype dtype)
{
    return dtype == SHD_BF16 ? 0x1p-8 : dtype == SHD_F16 ? 0x1p-11 : 0x1p-24;
}

/* Runs an op on every bf16 and fp16 table and on the fp32 table of the same instruction set, all on
 * the same operands (those of `run` are rounded to the dtype by Elts; it must round what goes into
 * the fp32 table as well, by Rounded(dtype, ...)). A half result is the exact one, rounded
 * `roundings` times, give or take fp32 arithmetic on both sides: with u the unit roundoff,
 *   |half - fp32| <= roundings · u |fp32| + tolerance (rms + |fp32|) + the least subnormal.
 * Also: the same bits whatever the number of threads. */
using TypedRun = std::function<Floats(const shd_compute_ops *, const shd_opctx *, shd_dtype)>;

inline void ExpectHalf(const TypedRun &run, double tolerance, const std::string &what,
                       int roundings = 1)
{
    Context one(1);
    for (const char *isa : kIsas) {
        for (shd_dtype dtype : {SHD_BF16, SHD_F16}) {
            const shd_compute_ops *half = shd_compute_ops_cpu_named(isa, dtype);
            const shd_compute_ops *full = shd_compute_ops_cpu_named(isa, SHD_F32);
            if (half == nullptr) {
                continue;
            }
            const std::string name = what + " in " + shd_dtype_name(dtype) + " on " + isa;
            const Floats want = run(full, one.get(), dtype), got = run(half, one.get(), dtype);
            ASSERT_EQ(want.size(), got.size()) << name;
            double square = 0.0;
            for (float w : want) {
                square += static_cast<double>(w) * w;
            }
            const double rms = std::sqrt(square / static_cast<double>(want.size()));
            for (size_t i = 0; i < want.size(); i++) {
                const double w = std::fabs(static_cast<double>(want[i]));
                const double bound =
                    roundings * 1.001 * UnitRoundoff(dtype) * w + tolerance * (rms + w) + 0x1p-24;
                ASSERT_LE(std::fabs(static_cast<double>(got[i]) - want[i]), bound)
                    << name << ": element " << i << " is " << got[i] << ", wanted " << want[i];
            }
            for (int nthreads : {2, 3, 5}) {
                Context many(nthreads);
                ASSERT_TRUE(SameBits(got, run(half, many.get(), dtype)))
                    << name << " with " << nthreads << " threads";
            }
        }
    }
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
