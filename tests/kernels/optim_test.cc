// Adam, SGD and Lion on every instruction set: values, thread counts, and that a shard's update has
// the bits of the same elements in the whole buffer.
#include "tests/kernels/op_test.h"

#include <cmath>
#include <string>

using namespace optest;

namespace
{

constexpr double kLr = 1e-2, kBeta1 = 0.9, kBeta2 = 0.95, kEps = 1e-8, kDecay = 0.1, kScale = 0.5;

struct Rule {
    const char *name;
    void (*apply)(const shd_ops *, const shd_opctx *, int step, float *p, const float *g, float *a,
                  float *b, int64_t n);
    void (*exact)(int step, double *p, double g, double *a, double *b);
};

void Adam(const shd_ops *ops, const shd_opctx *ctx, int step, float *p, const float *g, float *a,
          float *b, int64_t n)
{
    const shd_adam_args args = {
        kLr,   kBeta1, kBeta2, kEps, kDecay, 1 - std::pow(kBeta1, step), 1 - std::pow(kBeta2, step),
        kScale};
    ops->adam(ctx, p, g, a, b, n, &args);
}

void Sgd(const shd_ops *ops, const shd_opctx *ctx, int, float *p, const float *g, float *, float *,
         int64_t n)
{
    const shd_sgd_args args = {kLr, 0, kDecay, kScale, 0};
    ops->sgd(ctx, p, g, nullptr, n, &args);
}

template <int nesterov>
void Momentum(const shd_ops *ops, const shd_opctx *ctx, int, float *p, const float *g, float *a,
              float *, int64_t n)
{
    const shd_sgd_args args = {kLr, 0.9, kDecay, kScale, nesterov};
    ops->sgd(ctx, p, g, a, n, &args);
}

void Lion(const shd_ops *ops, const shd_opctx *ctx, int, float *p, const float *g, float *a,
          float *, int64_t n)
{
    const shd_lion_args args = {kLr, kBeta1, kBeta2, kDecay, kScale};
    ops->lion(ctx, p, g, a, n, &args);
}

const Rule kRules[] = {
    {"adam", Adam,
     [](int step, double *p, double g, double *a, double *b) {
         g = g * kScale + kDecay * *p;
         *a = kBeta1 * *a + (1 - kBeta1) * g;
         *b = kBeta2 * *b + (1 - kBeta2) * g * g;
         *p -= kLr * *a / (1 - std::pow(kBeta1, step)) /
               (std::sqrt(*b / (1 - std::pow(kBeta2, step))) + kEps);
     }},
    {"sgd", Sgd,
     [](int, double *p, double g, double *, double *) { *p -= kLr * (g * kScale + kDecay * *p); }},
    {"momentum", Momentum<0>,
     [](int, double *p, double g, double *a, double *) {
         *a = 0.9 * *a + g * kScale + kDecay * *p;
         *p -= kLr * *a;
     }},
    {"nesterov", Momentum<1>,
     [](int, double *p, double g, double *a, double *) {
         g = g * kScale + kDecay * *p;
         *a = 0.9 * *a + g;
         *p -= kLr * (g + 0.9 * *a);
     }},
    {"lion", Lion,
     [](int, double *p, double g, double *a, double *) {
         const double c = kBeta1 * *a + (1 - kBeta1) * g * kScale;
         *p -= kLr * ((c > 0) - (c < 0) + kDecay * *p);
         *a = kBeta2 * *a + (1 - kBeta2) * g * kScale;
     }},
};

TEST(Optimizers, TwentySteps)
{
    for (const Rule &rule : kRules) {
        for (int64_t n : {1, 15, 1000, 40001}) {
            const Floats p0 = Random(n, 1);
            Doubles p = ToDouble(p0), a(p0.size(), 0.0), b(p0.size(), 0.0);
            for (int step = 1; step <= 20; step++) {
                const Floats g = Random(n, 100u + static_cast<uint32_t>(step));
                for (size_t i = 0; i < g.size(); i++) {
                    rule.exact(step, &p[i], static_cast<double>(g[i]), &a[i], &b[i]);
                }
            }
            ExpectOp(
                [&](const shd_ops *ops, const shd_opctx *ctx) {
                    Floats q = p0, s(p0.size(), 0.0f), t(p0.size(), 0.0f);
                    for (int step = 1; step <= 20; step++) {
                        const Floats g = Random(n, 100u + static_cast<uint32_t>(step));
                        rule.apply(ops, ctx, step, q.data(), g.data(), s.data(), t.data(), n);
                    }
                    return Concat({q, s, t});
                },
                Concat({p, a, b}), 5e-6, rule.name);
        }
    }
}

TEST(Optimizers, PositionDoesNotMatter)
{
    const int64_t n = 1000;
    const Floats p0 = Random(n, 2), g = Random(n, 3), a0 = Random(n, 4), b0 = Random(n, 5, 0.1f);
    for (const Rule &rule : kRules) {
        const auto update = [&](const shd_ops *ops, int64_t begin, int64_t end) {
            Context ctx(1);
            Floats p(p0.begin() + begin, p0.begin() + end), a(a0.begin() + begin, a0.begin() + end);
            Floats b(b0.begin() + begin, b0.begin() + end);
            for (float &x : b) {
                x = std::fabs(x);
            }
            rule.apply(ops, ctx.get(), 3, p.data(), g.data() + begin, a.data(), b.data(),
                       end - begin);
            return Concat({p, a});
        };
        for (const shd_ops *ops : Tables()) {
            const Floats whole = update(ops, 0, n);
            for (int64_t begin : {0, 1, 7, 16, 500}) {
                for (int64_t size : {1, 5, 16, 33, 400}) {
                    Floats want(whole.begin() + begin, whole.begin() + begin + size);
                    want.insert(want.end(), whole.begin() + n + begin,
                                whole.begin() + n + begin + size);
                    ASSERT_TRUE(SameBits(want, update(ops, begin, begin + size)))
                        << rule.name << " " << ops->name << " " << begin << " + " << size;
                }
            }
        }
    }
}

} // namespace
