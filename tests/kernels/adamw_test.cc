#include "tests/kernels/op_test.h"

using namespace optest;

namespace
{

struct State {
    Doubles p, m, v;
};

void Step(State *s, const Floats &g, const shd_adam_args &a)
{
    for (size_t i = 0; i < g.size(); i++) {
        const double gi = static_cast<double>(g[i]) * a.grad_scale;
        s->p[i] *= 1.0 - static_cast<double>(a.lr) * a.weight_decay;
        s->m[i] = a.beta1 * s->m[i] + (1.0 - a.beta1) * gi;
        s->v[i] = a.beta2 * s->v[i] + (1.0 - a.beta2) * gi * gi;
        const double denominator =
            std::sqrt(s->v[i]) / std::sqrt(static_cast<double>(a.bias_correction2)) + a.eps;
        s->p[i] -= a.lr / static_cast<double>(a.bias_correction1) * s->m[i] / denominator;
    }
}

shd_adam_args Args(int step)
{
    shd_adam_args a = {1e-2f, 0.9f, 0.95f, 1e-8f, 0.1f, 0.0f, 0.0f, 0.5f};
    a.bias_correction1 = static_cast<float>(1.0 - std::pow(0.9, step));
    a.bias_correction2 = static_cast<float>(1.0 - std::pow(0.95, step));
    return a;
}

TEST(AdamW, TwentySteps)
{
    for (int64_t n : {1, 15, 1000, 40001}) {
        const Floats p0 = Random(n, 1);
        State want = {ToDouble(p0), Doubles(p0.size(), 0.0), Doubles(p0.size(), 0.0)};
        for (int step = 1; step <= 20; step++) {
            Step(&want, Random(n, 100u + static_cast<uint32_t>(step)), Args(step));
        }
        ExpectOp(
            [&](const shd_ops *ops, const shd_opctx *ctx) {
                Floats p = p0, m(p0.size(), 0.0f), v(p0.size(), 0.0f);
                for (int step = 1; step <= 20; step++) {
                    const Floats g = Random(n, 100u + static_cast<uint32_t>(step));
                    const shd_adam_args a = Args(step);
                    ops->adamw(ctx, p.data(), g.data(), m.data(), v.data(), n, &a);
                }
                return Concat({p, m, v});
            },
            Concat({want.p, want.m, want.v}), 5e-6, "adamw");
    }
}

/* A shard's update has the bits of the same elements in the whole buffer. */
TEST(AdamW, PositionDoesNotMatter)
{
    const int64_t n = 1000;
    const Floats p0 = Random(n, 2), g = Random(n, 3), m0 = Random(n, 4), v0 = Random(n, 5, 0.1f);
    const shd_adam_args a = Args(3);
    const auto update = [&](const shd_ops *ops, int64_t begin, int64_t end) {
        Context ctx(1);
        Floats p(p0.begin() + begin, p0.begin() + end), m(m0.begin() + begin, m0.begin() + end);
        Floats v(v0.begin() + begin, v0.begin() + end);
        for (float &x : v) {
            x = std::fabs(x);
        }
        ops->adamw(ctx.get(), p.data(), g.data() + begin, m.data(), v.data(), end - begin, &a);
        return p;
    };
    for (const shd_ops *ops : Tables()) {
        const Floats whole = update(ops, 0, n);
        for (int64_t begin : {0, 1, 7, 16, 500}) {
            for (int64_t size : {1, 5, 16, 33, 400}) {
                ASSERT_TRUE(SameBits(Floats(whole.begin() + begin, whole.begin() + begin + size),
                                     update(ops, begin, begin + size)))
                    << ops->name << " " << begin << " + " << size;
            }
        }
    }
}

TEST(AdamW, NonFiniteGradientShows)
{
    for (const shd_ops *ops : Tables()) {
        Context ctx(1);
        Floats p = {1.0f}, g = {std::nanf("")}, m = {0.0f}, v = {0.0f};
        const shd_adam_args a = Args(1);
        ops->adamw(ctx.get(), p.data(), g.data(), m.data(), v.data(), 1, &a);
        EXPECT_TRUE(std::isnan(p[0])) << ops->name;
    }
}

} // namespace
