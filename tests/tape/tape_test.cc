// Reverse mode through small graphs against finite differences of the same graph in double, and
// the tape's dealing with memory and misuse.
#include "daemon/tape/tape.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

namespace
{

struct Param {
    int64_t rows, cols; // cols 0: a vector
    double mean = 0, std = 0.5;
    int64_t numel() const
    {
        return cols > 0 ? rows * cols : rows;
    }
};

std::vector<int32_t> Identity(int64_t n)
{
    std::vector<int32_t> ids;
    for (int64_t i = 0; i < n; i++) {
        ids.push_back(static_cast<int32_t>(i));
    }
    return ids;
}

// Weights of an output in the scalar that gradients are of.
double Weight(int64_t i)
{
    return std::sin(0.7 * static_cast<double>(i) + 0.3);
}

// ---- the graph's ops in double, forward only ----

class Naive
{
  public:
    struct Matrix {
        int64_t rows, cols;
        std::vector<double> x;
        double &at(int64_t r, int64_t c)
        {
            return x[static_cast<size_t>(r * cols + c)];
        }
        double at(int64_t r, int64_t c) const
        {
            return x[static_cast<size_t>(r * cols + c)];
        }
    };
    using T = std::vector<Matrix>; // empty: none

    Naive(const std::vector<Param> &defs, const std::vector<std::vector<double>> &values)
        : defs_(defs), values_(values)
    {
    }
    T param(size_t i) const
    {
        const Param &d = defs_[i];
        return {{d.cols > 0 ? d.rows : 1, d.cols > 0 ? d.cols : d.rows, values_[i]}};
    }
    T none() const
    {
        return {};
    }
    T embedding(const T &wte, const T &wpe, const std::vector<int32_t> &ids, int64_t tokens)
    {
        T out = {{static_cast<int64_t>(ids.size()), wte[0].cols, {}}};
        out[0].x.resize(ids.size() * static_cast<size_t>(wte[0].cols));
        for (int64_t r = 0; r < out[0].rows; r++) {
            for (int64_t c = 0; c < out[0].cols; c++) {
                out[0].at(r, c) = wte[0].at(ids[static_cast<size_t>(r)], c) +
                                  (wpe.empty() ? 0 : wpe[0].at(r % tokens, c));
            }
        }
        return out;
    }
    T layernorm(const T &x, const T &w, const T &b, float eps)
    {
        T out = x;
        for (int64_t r = 0; r < x[0].rows; r++) {
            double mean = 0, var = 0;
            for (int64_t c = 0; c < x[0].cols; c++) {
                mean += x[0].at(r, c) / static_cast<double>(x[0].cols);
            }
            for (int64_t c = 0; c < x[0].cols; c++) {
                var += std::pow(x[0].at(r, c) - mean, 2) / static_cast<double>(x[0].cols);
            }
            for (int64_t c = 0; c < x[0].cols; c++) {
                out[0].at(r, c) =
                    (x[0].at(r, c) - mean) / std::sqrt(var + static_cast<double>(eps)) * w[0].x[c] +
                    b[0].x[c];
            }
        }
        return out;
    }
    T linear(const T &x, const T &w, const T &bias, const T &residual, int w_kn)
    {
        const int64_t K = x[0].cols, N = w_kn ? w[0].cols : w[0].rows;
        T out = {{x[0].rows, N, std::vector<double>(static_cast<size_t>(x[0].rows * N))}};
        for (int64_t r = 0; r < x[0].rows; r++) {
            for (int64_t n = 0; n < N; n++) {
                double sum = (bias.empty() ? 0 : bias[0].x[n]) +
                             (residual.empty() ? 0 : residual[0].at(r, n));
                for (int64_t k = 0; k < K; k++) {
                    sum += x[0].at(r, k) * (w_kn ? w[0].at(k, n) : w[0].at(n, k));
                }
                out[0].at(r, n) = sum;
            }
        }
        return out;
    }
    T gelu(const T &x)
    {
        T out = x;
        for (double &v : out[0].x) {
            v = 0.5 * v *
                (1 + std::tanh(std::sqrt(2 / std::acos(-1.0)) * (v + 0.044715 * v * v * v)));
        }
        return out;
    }
    T attention(const T &qkv, int64_t heads, int64_t tokens)
    {
        const int64_t C = qkv[0].cols / 3, D = C / heads;
        T out = {{qkv[0].rows, C, std::vector<double>(static_cast<size_t>(qkv[0].rows * C))}};
        for (int64_t r = 0; r < qkv[0].rows; r++) {
            const int64_t first = r / tokens * tokens;
            for (int64_t h = 0; h < heads; h++) {
                std::vector<double> p;
                double sum = 0;
                for (int64_t j = first; j <= r; j++) {
                    double dot = 0;
                    for (int64_t d = 0; d < D; d++) {
                        dot += qkv[0].at(r, h * D + d) * qkv[0].at(j, C + h * D + d);
                    }
                    p.push_back(std::exp(dot / std::sqrt(static_cast<double>(D))));
                    sum += p.back();
                }
                for (int64_t j = first; j <= r; j++) {
                    for (int64_t d = 0; d < D; d++) {
                        out[0].at(r, h * D + d) += p[static_cast<size_t>(j - first)] / sum *
                                                   qkv[0].at(j, 2 * C + h * D + d);
                    }
                }
            }
        }
        return out;
    }
    void cross_entropy(const T &h, const T &w, const std::vector<int32_t> &targets)
    {
        const T logits = linear(h, w, none(), none(), 0);
        for (int64_t r = 0; r < h[0].rows; r++) {
            const int32_t target = targets[static_cast<size_t>(r)];
            double sum = 0;
            for (int64_t v = 0; v < logits[0].cols; v++) {
                sum += std::exp(logits[0].at(r, v));
            }
            losses.push_back(target < 0 ? 0 : std::log(sum) - logits[0].at(r, target));
            loss += losses.back();
        }
    }
    void weigh(const T &out)
    {
        for (size_t i = 0; i < out[0].x.size(); i++) {
            loss += Weight(static_cast<int64_t>(i)) * out[0].x[i];
        }
    }
    void drop(const T &) {}

    double loss = 0;
    std::vector<double> losses;

  private:
    const std::vector<Param> &defs_;
    const std::vector<std::vector<double>> &values_;
};

// ---- the same ops on a tape ----

class Taped
{
  public:
    using T = shd_tensor *;

    explicit Taped(const std::vector<Param> &defs, uint64_t extent = 16 << 20) : defs_(defs)
    {
        dev_ = shd_device_create_cpu(1, 0);
        shd_error err = {};
        EXPECT_EQ(0, shd_device_arena(dev_, extent, &arena, &err)) << err.message;
        tape = shd_tape_create(dev_, arena);
        params.resize(defs.size());
        for (size_t i = 0; i < defs.size(); i++) {
            shd_tensor &t = params[i];
            t = {};
            t.ndim = defs[i].cols > 0 ? 2 : 1;
            t.shape[0] = defs[i].rows;
            t.shape[1] = defs[i].cols;
            t.is_param = 1;
            t.refs = 1;
            t.data = Take(SHD_TAG_PARAMS, defs[i].numel());
            t.grad = Take(SHD_TAG_GRADS, defs[i].numel());
            std::fill(t.grad, t.grad + defs[i].numel(), NAN); // must not be read
        }
    }
    ~Taped()
    {
        shd_tape_free(tape);
        EXPECT_EQ(0u, Transient());
        shd_arena_free(arena);
        shd_device_free(dev_);
    }
    Taped(const Taped &) = delete;
    Taped &operator=(const Taped &) = delete;

    T param(size_t i)
    {
        return &params[i];
    }
    T none() const
    {
        return nullptr;
    }
    T embedding(T wte, T wpe, const std::vector<int32_t> &ids, int64_t tokens)
    {
        return shd_tape_embedding(tape, wte, wpe, ids.data(), static_cast<int64_t>(ids.size()),
                                  tokens);
    }
    T layernorm(T x, T w, T b, float eps)
    {
        return shd_tape_layernorm(tape, x, w, b, eps);
    }
    T linear(T x, T w, T bias, T residual, int w_kn)
    {
        return shd_tape_linear(tape, x, w, bias, residual, w_kn);
    }
    T gelu(T x)
    {
        return shd_tape_gelu(tape, x);
    }
    T attention(T qkv, int64_t heads, int64_t tokens)
    {
        return shd_tape_attention(tape, qkv, heads, tokens);
    }
    void cross_entropy(T h, T w, const std::vector<int32_t> &targets)
    {
        losses.assign(targets.size(), NAN);
        shd_tape_cross_entropy(tape, h, w, targets.data(), losses.data());
    }
    // Makes an output part of the scalar: its gradient is given.
    void weigh(T out)
    {
        if (out == nullptr) {
            return;
        }
        const int64_t n = shd_tensor_numel(out);
        if (out->grad == nullptr) {
            out->grad = Take(SHD_TAG_ACTIVATIONS, n);
        }
        for (int64_t i = 0; out->grad != nullptr && i < n; i++) {
            out->grad[i] = static_cast<float>(Weight(i));
            loss += Weight(i) * static_cast<double>(out->data[i]);
        }
        out->grad_defined = 1;
    }
    void drop(T x)
    {
        shd_tape_drop(tape, x);
    }

    float *Take(shd_tag tag, int64_t n)
    {
        void *out = nullptr;
        shd_arena_alloc(arena, tag, static_cast<uint64_t>(n) * sizeof(float), &out, nullptr);
        return static_cast<float *>(out);
    }
    uint64_t Transient() const
    {
        shd_usage usage[SHD_TAG_COUNT];
        shd_arena_usage(arena, usage);
        return usage[SHD_TAG_ACTIVATIONS].now + usage[SHD_TAG_WORKSPACE].now;
    }

    shd_tape *tape;
    shd_arena *arena = nullptr;
    std::vector<shd_tensor> params;
    std::vector<float> losses;
    double loss = 0;

  private:
    const std::vector<Param> &defs_;
    shd_device *dev_;
};

std::vector<std::vector<double>> Values(const std::vector<Param> &defs)
{
    std::mt19937 random(5);
    std::normal_distribution<double> normal;
    std::vector<std::vector<double>> values;
    for (const Param &d : defs) {
        values.emplace_back();
        for (int64_t i = 0; i < d.numel(); i++) { // as fp32, so that both sides compute on the same
            values.back().push_back(static_cast<float>(d.mean + d.std * normal(random)));
        }
    }
    return values;
}

// Runs `graph` on a tape, forward and back twice, and compares every gradient with central
// differences of the naive graph: their error is about h² = 1e-10, so fp32 arithmetic is what is
// left, some units of 6e-8 times the terms of a sum. Parameters that nothing flows to stay
// undefined.
template <class Graph> void Check(const std::vector<Param> &defs, const Graph &graph)
{
    std::vector<std::vector<double>> values = Values(defs);
    Taped taped(defs);
    Naive naive(defs, values);
    graph(naive);
    for (int again = 0; again < 2; again++) {
        for (size_t i = 0; i < defs.size(); i++) {
            std::copy(values[i].begin(), values[i].end(), taped.params[i].data);
            taped.params[i].grad_defined = 0;
        }
        taped.loss = 0;
        shd_tape_reset(taped.tape, 1);
        graph(taped);
        shd_error err = {};
        ASSERT_EQ(0, shd_tape_error(taped.tape, &err)) << err.message;
        ASSERT_EQ(0, shd_tape_backward(taped.tape, 0, &err)) << err.message;
        EXPECT_EQ(0, shd_tape_mark(taped.tape));
        shd_tape_reset(taped.tape, 1);
        EXPECT_EQ(0u, taped.Transient()) << "everything is given back";
        for (float loss : taped.losses) {
            taped.loss += static_cast<double>(loss);
        }
        EXPECT_NEAR(naive.loss, taped.loss, 2e-6 * (1 + std::fabs(naive.loss)));
    }
    const double h = 1e-5;
    for (size_t i = 0; i < defs.size(); i++) {
        std::vector<double> want;
        double largest = 0;
        for (double &value : values[i]) {
            const double kept = value;
            double at[2];
            for (int side = 0; side < 2; side++) {
                value = kept + (side == 0 ? -h : h);
                Naive moved(defs, values);
                graph(moved);
                at[side] = moved.loss;
            }
            value = kept;
            want.push_back((at[1] - at[0]) / (2 * h));
            largest = std::fmax(largest, std::fabs(want.back()));
        }
        if (!taped.params[i].grad_defined) {
            EXPECT_EQ(0.0, largest) << "parameter " << i;
            continue;
        }
        for (size_t k = 0; k < want.size(); k++) {
            ASSERT_NEAR(want[k], static_cast<double>(taped.params[i].grad[k]),
                        1e-5 * largest + 1e-6)
                << "parameter " << i << " element " << k;
        }
    }
}

// ---- each op ----

TEST(Gradient, EmbeddingWithRepeatedTokens)
{
    const std::vector<int32_t> ids = {3, 1, 3, 0, 3, 6};
    Check({{7, 5}, {4, 5}}, [&](auto &b) {
        auto x = b.embedding(b.param(0), b.param(1), ids, 3);
        b.weigh(x);
        b.drop(x);
    });
    Check({{7, 5}}, [&](auto &b) {
        auto x = b.embedding(b.param(0), b.none(), ids, 3);
        b.weigh(x);
        b.drop(x);
    });
}

TEST(Gradient, LayerNorm)
{
    const std::vector<int32_t> ids = Identity(6);
    Check({{6, 13}, {13, 0, 1.0}, {13, 0}}, [&](auto &b) {
        auto x = b.embedding(b.param(0), b.none(), ids, 6);
        auto y = b.layernorm(x, b.param(1), b.param(2), 1e-3f);
        b.drop(x);
        b.weigh(y);
        b.drop(y);
    });
}

TEST(Gradient, LinearInBothLayoutsWithAndWithoutWhatIsAdded)
{
    const std::vector<int32_t> ids = Identity(5);
    for (int w_kn : {0, 1}) {
        for (int bias : {0, 1}) {
            for (int residual : {0, 1}) {
                const std::vector<Param> defs = {
                    {5, 7}, w_kn ? Param{7, 9} : Param{9, 7}, {9, 0}, {5, 9}};
                Check(defs, [&](auto &b) {
                    auto x = b.embedding(b.param(0), b.none(), ids, 5);
                    auto r = residual ? b.embedding(b.param(3), b.none(), ids, 5) : b.none();
                    auto y = b.linear(x, b.param(1), bias ? b.param(2) : b.none(), r, w_kn);
                    b.drop(x);
                    b.drop(r);
                    b.weigh(y);
                    b.drop(y);
                });
            }
        }
    }
}

TEST(Gradient, Gelu)
{
    const std::vector<int32_t> ids = Identity(4);
    Check({{4, 33, 0.0, 2.0}}, [&](auto &b) {
        auto x = b.embedding(b.param(0), b.none(), ids, 4);
        auto y = b.gelu(x);
        b.drop(x);
        b.weigh(y);
        b.drop(y);
    });
}

TEST(Gradient, Attention)
{
    for (int64_t tokens : {1, 3, 6}) {
        const std::vector<int32_t> ids = Identity(6);
        Check({{6, 3 * 10, 0.0, 1.0}}, [&](auto &b) {
            auto qkv = b.embedding(b.param(0), b.none(), ids, 6);
            auto y = b.attention(qkv, 2, tokens);
            b.drop(qkv);
            b.weigh(y);
            b.drop(y);
        });
    }
}

TEST(Gradient, CrossEntropyOverSeveralChunksWithIgnoredRows)
{
    for (int64_t rows : {1, 5, 33, 64, 97}) {
        const std::vector<int32_t> ids = Identity(rows);
        std::vector<int32_t> targets;
        for (int64_t r = 0; r < rows; r++) {
            targets.push_back(r % 4 == 3 ? -100 : static_cast<int32_t>(r * 7 % 11));
        }
        Check({{rows, 4, 0.0, 1.0}, {11, 4, 0.0, 1.0}}, [&](auto &b) {
            auto h = b.embedding(b.param(0), b.none(), ids, rows);
            b.cross_entropy(h, b.param(1), targets);
            b.drop(h);
        });
    }
}

TEST(Gradient, CrossEntropyOfIgnoredRowsAloneIsZero)
{
    const std::vector<int32_t> ids = Identity(3), targets(3, -100);
    const std::vector<Param> defs = {{3, 4}, {11, 4}};
    Taped t(defs);
    for (size_t i = 0; i < 2; i++) {
        std::fill(t.params[i].data, t.params[i].data + defs[i].numel(), 0.5f);
    }
    shd_tape_reset(t.tape, 1);
    shd_tensor *h = t.embedding(t.param(0), t.none(), ids, 3);
    t.cross_entropy(h, t.param(1), targets);
    t.drop(h);
    ASSERT_EQ(0, shd_tape_backward(t.tape, 0, nullptr));
    for (size_t i = 0; i < 2; i++) {
        for (int64_t k = 0; k < defs[i].numel(); k++) {
            EXPECT_EQ(0.0f, t.params[i].grad[k]);
        }
    }
    EXPECT_EQ(std::vector<float>(3, 0.0f), t.losses);
}

// ---- how gradients meet ----

TEST(Gradient, OfATensorWithTwoConsumers)
{
    const std::vector<int32_t> ids = Identity(4);
    // As in a block: norm of x, and x again as the residual.
    Check({{4, 6}, {6, 0, 1.0}, {6, 0}, {6, 6}}, [&](auto &b) {
        auto x = b.embedding(b.param(0), b.none(), ids, 4);
        auto n = b.layernorm(x, b.param(1), b.param(2), 1e-3f);
        auto y = b.linear(n, b.param(3), b.none(), x, 1);
        b.drop(n);
        b.drop(x);
        b.weigh(y);
        b.drop(y);
    });
    // Input and residual of the same product.
    Check({{4, 6}, {6, 6}}, [&](auto &b) {
        auto x = b.embedding(b.param(0), b.none(), ids, 4);
        auto y = b.linear(x, b.param(1), b.none(), x, 0);
        b.drop(x);
        b.weigh(y);
        b.drop(y);
    });
    // Residual twice: the later one hands its buffer over, the earlier one adds to it.
    Check({{4, 6}, {6, 6}, {6, 6}}, [&](auto &b) {
        auto x = b.embedding(b.param(0), b.none(), ids, 4);
        auto y = b.linear(x, b.param(1), b.none(), x, 1);
        auto z = b.linear(y, b.param(2), b.none(), x, 1);
        b.drop(x);
        b.drop(y);
        b.weigh(z);
        b.drop(z);
    });
    // GELU in place, and GELU of something that has a gradient already.
    for (int gelu_first : {0, 1}) {
        Check({{4, 6}, {6, 6}}, [&](auto &b) {
            auto x = b.embedding(b.param(0), b.none(), ids, 4);
            auto g = gelu_first ? b.gelu(x) : b.none();
            auto y = b.linear(x, b.param(1), b.none(), b.none(), 1);
            g = gelu_first ? g : b.gelu(x);
            b.drop(x);
            b.weigh(g);
            b.weigh(y);
            b.drop(g);
            b.drop(y);
        });
    }
}

TEST(Gradient, OfParametersUsedTwice)
{
    const std::vector<int32_t> ids = {2, 0, 5, 2}, targets = {1, 7, -100, 3};
    // The token table is also the head, as in GPT-2.
    Check({{8, 6}, {6, 0, 1.0}, {6, 0}}, [&](auto &b) {
        auto x = b.embedding(b.param(0), b.none(), ids, 2);
        auto n = b.layernorm(x, b.param(1), b.param(2), 1e-3f);
        b.drop(x);
        b.cross_entropy(n, b.param(0), targets);
        b.drop(n);
    });
    // A gain shared by two norms with biases of their own, and the other way round.
    for (int gain : {0, 1}) {
        Check({{8, 6}, {6, 0, 1.0}, {6, 0, 1.0}, {6, 0}, {6, 0}}, [&](auto &b) {
            auto x = b.embedding(b.param(0), b.none(), ids, 2);
            auto y = b.layernorm(x, b.param(1), b.param(3), 1e-3f);
            b.drop(x);
            auto z = b.layernorm(y, b.param(gain ? 1 : 2), b.param(gain ? 4 : 3), 1e-3f);
            b.drop(y);
            b.weigh(z);
            b.drop(z);
        });
    }
    // The same of a product's weight and bias.
    for (int weight : {0, 1}) {
        Check({{8, 6}, {6, 6}, {6, 6}, {6, 0}, {6, 0}}, [&](auto &b) {
            auto x = b.embedding(b.param(0), b.none(), ids, 2);
            auto y = b.linear(x, b.param(1), b.param(3), b.none(), 1);
            b.drop(x);
            auto z = b.linear(y, b.param(weight ? 1 : 2), b.param(weight ? 4 : 3), b.none(), 0);
            b.drop(y);
            b.weigh(z);
            b.drop(z);
        });
    }
}

// A whole block between embedding and head, all gradients at once.
const std::vector<Param> kBlock = {{9, 8},  {5, 8}, {8, 0, 1.0}, {8, 0}, {8, 24}, {24, 0},
                                   {8, 8},  {8, 0}, {8, 0, 1.0}, {8, 0}, {8, 32}, {32, 0},
                                   {32, 8}, {8, 0}, {8, 0, 1.0}, {8, 0}};

template <class B>
void Block(B &b, const std::vector<int32_t> &ids, const std::vector<int32_t> &targets,
           int64_t tokens = 5)
{
    auto x = b.embedding(b.param(0), b.param(1), ids, tokens);
    auto n1 = b.layernorm(x, b.param(2), b.param(3), 1e-5f);
    auto qkv = b.linear(n1, b.param(4), b.param(5), b.none(), 1);
    b.drop(n1);
    auto a = b.attention(qkv, 2, tokens);
    b.drop(qkv);
    auto mid = b.linear(a, b.param(6), b.param(7), x, 1);
    b.drop(a);
    b.drop(x);
    auto n2 = b.layernorm(mid, b.param(8), b.param(9), 1e-5f);
    auto f = b.linear(n2, b.param(10), b.param(11), b.none(), 1);
    b.drop(n2);
    auto g = b.gelu(f);
    b.drop(f);
    auto y = b.linear(g, b.param(12), b.param(13), mid, 1);
    b.drop(g);
    b.drop(mid);
    auto n = b.layernorm(y, b.param(14), b.param(15), 1e-5f);
    b.drop(y);
    b.cross_entropy(n, b.param(0), targets);
    b.drop(n);
}

const std::vector<int32_t> kIds = {1, 8, 1, 0, 4, 4, 2, 7, 7, 1};
const std::vector<int32_t> kTargets = {8, 1, 0, 4, -100, 2, 7, 7, 1, 3};

TEST(Gradient, OfATransformerBlock)
{
    Check(kBlock, [&](auto &b) { Block(b, kIds, kTargets); });
}

// ---- memory ----

void Fill(Taped *t, const std::vector<Param> &defs)
{
    const std::vector<std::vector<double>> values = Values(defs);
    for (size_t i = 0; i < defs.size(); i++) {
        std::copy(values[i].begin(), values[i].end(), t->params[i].data);
        t->params[i].grad_defined = 0;
    }
}

TEST(Memory, LossesAreTheSameWithAndWithoutRecording)
{
    Taped t(kBlock);
    Fill(&t, kBlock);
    shd_tape_reset(t.tape, 0);
    Block(t, kIds, kTargets);
    ASSERT_EQ(0, shd_tape_error(t.tape, nullptr));
    EXPECT_EQ(0u, t.Transient()) << "forward alone keeps nothing that was dropped";
    EXPECT_EQ(0, shd_tape_mark(t.tape));
    const std::vector<float> forward = t.losses;
    shd_tape_reset(t.tape, 1);
    Block(t, kIds, kTargets);
    EXPECT_GT(t.Transient(), 0u);
    ASSERT_EQ(0, shd_tape_backward(t.tape, 0, nullptr));
    EXPECT_EQ(0u, t.Transient()) << "backward gives back what the last reader has read";
    EXPECT_EQ(forward, t.losses);
}

TEST(Memory, AResidualGradientIsHandedOverNotCopied)
{
    const std::vector<int32_t> ids = Identity(4);
    const std::vector<Param> defs = {{4, 6}, {6, 6}, {4, 6}};
    Taped t(defs);
    Fill(&t, defs);
    shd_tape_reset(t.tape, 1);
    shd_tensor *x = t.embedding(t.param(0), t.none(), ids, 4);
    shd_tensor *r = t.embedding(t.param(2), t.none(), ids, 4);
    const int64_t mark = shd_tape_mark(t.tape);
    shd_tensor *y = t.linear(x, t.param(1), t.none(), r, 1);
    t.weigh(y);
    const float *grad = y->grad;
    ASSERT_EQ(0, shd_tape_backward(t.tape, mark, nullptr));
    EXPECT_EQ(mark, shd_tape_mark(t.tape)) << "the nodes below stay";
    EXPECT_EQ(grad, r->grad);
    EXPECT_EQ(nullptr, y->grad);
    EXPECT_EQ(1, r->grad_defined);
    ASSERT_EQ(0, shd_tape_backward(t.tape, 0, nullptr));
}

TEST(Memory, GeluMakesItsGradientInPlace)
{
    const std::vector<int32_t> ids = Identity(4);
    const std::vector<Param> defs = {{4, 6}};
    Taped t(defs);
    Fill(&t, defs);
    shd_tape_reset(t.tape, 1);
    shd_tensor *x = t.embedding(t.param(0), t.none(), ids, 4);
    const int64_t mark = shd_tape_mark(t.tape);
    shd_tensor *y = t.gelu(x);
    t.weigh(y);
    const float *grad = y->grad;
    ASSERT_EQ(0, shd_tape_backward(t.tape, mark, nullptr));
    EXPECT_EQ(grad, x->grad);
}

TEST(Memory, DroppedTensorsGoAndKeptOnesStay)
{
    const std::vector<int32_t> ids = Identity(4);
    const std::vector<Param> defs = {{4, 64}};
    Taped t(defs);
    Fill(&t, defs);
    for (int record : {0, 1}) {
        shd_tape_reset(t.tape, record);
        shd_tensor *x = t.embedding(t.param(0), t.none(), ids, 4);
        const uint64_t one = t.Transient();
        shd_tensor *y = t.gelu(x);
        EXPECT_EQ(2 * one, t.Transient());
        t.drop(x);
        EXPECT_EQ(record ? 2 * one : one, t.Transient()) << "backward of GELU reads its input";
        t.drop(y);
        EXPECT_EQ(record ? one : 0, t.Transient());
        t.drop(nullptr);
        t.drop(t.param(0));
        EXPECT_NE(nullptr, t.params[0].data);
    }
    shd_tape_reset(t.tape, 0);
    EXPECT_EQ(0u, t.Transient());
}

// Whatever allocation is the one that fails: the error sticks, nothing is lost, and the tape works
// again after a reset.
TEST(Memory, EveryAllocationMayFail)
{
    const uint64_t extent = 2 << 20;
    Taped t(kBlock, extent);
    Fill(&t, kBlock);
    shd_usage usage[SHD_TAG_COUNT];
    shd_arena_usage(t.arena, usage);
    uint64_t held = 0;
    for (const shd_usage &u : usage) {
        held += u.now;
    }
    int failures = 0, in_backward = 0;
    bool done = false;
    for (uint64_t left = 0; !done; left += SHD_ARENA_ALIGN) {
        ASSERT_LT(left, extent - held);
        void *filler = nullptr;
        ASSERT_EQ(0,
                  shd_arena_alloc(t.arena, SHD_TAG_DATA, extent - held - left, &filler, nullptr));
        for (shd_tensor &param : t.params) {
            param.grad_defined = 0;
        }
        shd_tape_reset(t.tape, 1);
        Block(t, kIds, kTargets);
        const int forward = shd_tape_error(t.tape, nullptr);
        shd_error err = {};
        const int rc = shd_tape_backward(t.tape, 0, &err);
        if (rc == 0) {
            done = true;
        } else {
            EXPECT_EQ(SHD_ENOMEM, rc);
            EXPECT_NE(std::string::npos, std::string(err.message).find("bytes")) << err.message;
            failures++;
            in_backward += forward == 0;
            // Sticky: nothing works until the reset, and nothing crashes.
            EXPECT_EQ(nullptr, t.embedding(t.param(0), t.none(), kIds, 5));
            EXPECT_EQ(nullptr, t.gelu(nullptr));
            EXPECT_EQ(nullptr, t.attention(nullptr, 2, 5));
            EXPECT_EQ(nullptr, t.linear(nullptr, t.param(4), nullptr, nullptr, 1));
            EXPECT_EQ(nullptr, t.layernorm(nullptr, t.param(2), t.param(3), 1e-5f));
            EXPECT_EQ(nullptr, shd_tape_rows(t.tape, nullptr, 0, 1));
            shd_tape_cross_entropy(t.tape, nullptr, t.param(0), kTargets.data(), t.losses.data());
            shd_error again = {};
            EXPECT_EQ(rc, shd_tape_error(t.tape, &again));
            EXPECT_STREQ(err.message, again.message) << "the first failure is the one that is told";
        }
        shd_tape_reset(t.tape, 0);
        EXPECT_EQ(0u, t.Transient());
        shd_arena_release(t.arena, filler);
    }
    EXPECT_GT(failures, 10);
    EXPECT_GT(in_backward, 0);
    EXPECT_LT(in_backward, failures);
}

// Forward alone, the same.
TEST(Memory, EveryAllocationMayFailWithoutRecording)
{
    const uint64_t extent = 2 << 20;
    Taped t(kBlock, extent);
    Fill(&t, kBlock);
    shd_usage usage[SHD_TAG_COUNT];
    shd_arena_usage(t.arena, usage);
    uint64_t held = 0;
    for (const shd_usage &u : usage) {
        held += u.now;
    }
    int rc = -1, failures = 0;
    for (uint64_t left = 0; rc != 0; left += SHD_ARENA_ALIGN) {
        void *filler = nullptr;
        ASSERT_EQ(0,
                  shd_arena_alloc(t.arena, SHD_TAG_DATA, extent - held - left, &filler, nullptr));
        shd_tape_reset(t.tape, 0);
        Block(t, kIds, kTargets);
        rc = shd_tape_error(t.tape, nullptr);
        failures += rc != 0;
        shd_tape_reset(t.tape, 0);
        EXPECT_EQ(0u, t.Transient());
        shd_arena_release(t.arena, filler);
    }
    EXPECT_GT(failures, 5);
}

// A batch smaller than the planned one must fit into the planned memory.
TEST(Memory, FewerRowsNeverTakeMore)
{
    shd_device *dev = shd_device_create_null(1);
    for (int64_t vocab : {61, 5003, 50257, 300000}) {
        uint64_t most = 0;
        for (int64_t rows = 1; rows <= 2300; rows++) {
            shd_arena *arena = nullptr;
            ASSERT_EQ(0, shd_device_arena(dev, 0, &arena, nullptr));
            shd_tape *tape = shd_tape_create(dev, arena);
            shd_tape_reset(tape, 0);
            shd_tensor table = {};
            table.ndim = 2;
            table.shape[0] = vocab;
            table.shape[1] = 8;
            table.is_param = 1;
            shd_tensor *h = shd_tape_embedding(tape, &table, nullptr, nullptr, rows, rows);
            shd_tape_cross_entropy(tape, h, &table, nullptr, nullptr);
            ASSERT_EQ(0, shd_tape_error(tape, nullptr));
            const uint64_t peak = shd_arena_total_peak(arena);
            EXPECT_GE(peak, most) << rows << " rows of " << vocab;
            most = peak;
            shd_tape_free(tape);
            shd_arena_free(arena);
        }
    }
    const shd_ops *ops = shd_device_ops(dev);
    const shd_opctx *ctx = shd_device_opctx(dev);
    size_t norm = 0, product = 0;
    for (int64_t rows = 1; rows <= 2300; rows++) {
        EXPECT_GE(ops->layernorm_backward_ws(ctx, rows, 24), norm) << rows;
        norm = ops->layernorm_backward_ws(ctx, rows, 24);
        EXPECT_GE(ops->linear_backward_weight_ws(ctx, rows, 24, 40), product) << rows;
        product = ops->linear_backward_weight_ws(ctx, rows, 24, 40);
    }
    for (int backward : {0, 1}) {
        size_t attention = 0;
        for (int64_t tokens = 1; tokens <= 600; tokens++) {
            const shd_attn_shape shape = {1, tokens, 2, 2, 24, 144, 144, 48, 1.0f};
            EXPECT_GE(ops->attention_ws(ctx, &shape, backward), attention) << tokens;
            attention = ops->attention_ws(ctx, &shape, backward);
        }
    }
    shd_device_free(dev);
}

// With a reserve, smaller shapes do not only fit, they take the very same memory.
TEST(Memory, WithinTheReserveEveryShapeTakesTheSame)
{
    for (int record : {0, 1}) {
        uint64_t extent = 0;
        std::vector<uint64_t> peaks;
        for (auto [sequences, tokens] : {std::pair{30, 5}, std::pair{1, 1}, std::pair{30, 1},
                                         std::pair{7, 3}, std::pair{1, 5}, std::pair{29, 5}}) {
            Taped t(kBlock);
            Fill(&t, kBlock);
            shd_tape_reserve(t.tape, 150, 5);
            const std::vector<int32_t> ids(static_cast<size_t>(sequences * tokens), 3);
            for (int again = 0; again < 2; again++) {
                shd_tape_reset(t.tape, record);
                Block(t, ids, ids, tokens);
                ASSERT_EQ(0, shd_tape_backward(t.tape, 0, nullptr));
                EXPECT_EQ(0u, t.Transient());
            }
            shd_usage usage[SHD_TAG_COUNT];
            shd_arena_usage(t.arena, usage);
            std::vector<uint64_t> now;
            for (const shd_usage &u : usage) {
                now.push_back(u.peak);
            }
            if (peaks.empty()) {
                extent = shd_arena_extent(t.arena);
                peaks = now;
            }
            EXPECT_EQ(extent, shd_arena_extent(t.arena)) << sequences << " x " << tokens;
            EXPECT_EQ(peaks, now) << sequences << " x " << tokens;
        }
    }
}

// The logits of one row alone are not made as large as the micro-batch.
TEST(Memory, RowsTakenOutTakeTheirOwn)
{
    const std::vector<Param> defs = {{4, 64}, {1000, 64}};
    const std::vector<int32_t> ids = Identity(4);
    Taped t(defs);
    Fill(&t, defs);
    shd_tape_reserve(t.tape, 100, 4);
    shd_tape_reset(t.tape, 0);
    shd_tensor *x = t.embedding(t.param(0), t.none(), ids, 4);
    EXPECT_EQ(100u * 64 * 4, t.Transient());
    shd_tensor *last = shd_tape_rows(t.tape, x, 3, 1);
    t.drop(x);
    shd_tensor *logits = t.linear(last, t.param(1), t.none(), t.none(), 0);
    t.drop(last);
    EXPECT_EQ(4096u, t.Transient()); // 4,000 bytes, rounded up
    EXPECT_EQ(1000, logits->shape[1]);
    shd_tape_reset(t.tape, 0);
    t.drop(t.embedding(t.param(0), t.none(), ids, 4));
}

// ---- misuse ----

class Misuse : public testing::Test
{
  protected:
    Misuse() : t_(kDefs)
    {
        Fill(&t_, kDefs);
        shd_tape_reset(t_.tape, 1);
        x_ = t_.embedding(t_.param(0), t_.none(), kFour, 4);
    }
    void ExpectInternal(const std::vector<std::string> &says)
    {
        shd_error err = {};
        EXPECT_EQ(SHD_EINTERNAL, shd_tape_error(t_.tape, &err));
        for (const std::string &part : says) {
            EXPECT_NE(std::string::npos, std::string(err.message).find(part))
                << "'" << err.message << "' lacks '" << part << "'";
        }
    }
    static const std::vector<Param> kDefs;
    static const std::vector<int32_t> kFour;
    Taped t_;
    shd_tensor *x_;
};

const std::vector<Param> Misuse::kDefs = {{4, 6}, {5, 6}, {6, 0}, {5, 0}, {3, 7}};
const std::vector<int32_t> Misuse::kFour = Identity(4);

TEST_F(Misuse, EmbeddingOfBrokenSequences)
{
    EXPECT_EQ(nullptr, t_.embedding(t_.param(0), t_.none(), kFour, 3));
    ExpectInternal({"embedding", "4 rows of 3"});
}

TEST_F(Misuse, EmbeddingLongerThanItsPositions)
{
    const std::vector<int32_t> six(6);
    EXPECT_EQ(nullptr, t_.embedding(t_.param(0), t_.param(1), six, 6));
    ExpectInternal({"embedding", "6 rows of 6"});
}

TEST_F(Misuse, EmbeddingOfTablesOfDifferentWidth)
{
    EXPECT_EQ(nullptr, t_.embedding(t_.param(0), t_.param(4), kFour, 2));
    ExpectInternal({"embedding"});
}

TEST_F(Misuse, LinearThatDoesNotFit)
{
    EXPECT_EQ(nullptr, t_.linear(x_, t_.param(1), t_.none(), t_.none(), 1));
    ExpectInternal({"linear", "[4,6]", "[5,6]"});
}

TEST_F(Misuse, LinearWithABiasOfAnotherWidth)
{
    EXPECT_EQ(nullptr, t_.linear(x_, t_.param(1), t_.param(2), t_.none(), 0));
    ExpectInternal({"linear"});
}

TEST_F(Misuse, LinearWithAResidualOfAnotherShape)
{
    EXPECT_EQ(nullptr, t_.linear(x_, t_.param(1), t_.param(3), x_, 0));
    ExpectInternal({"linear"});
}

TEST_F(Misuse, AttentionOverBrokenHeadsOrSequences)
{
    EXPECT_EQ(nullptr, t_.attention(x_, 4, 4));
    ExpectInternal({"attention", "[4,6]", "4 heads"});
    shd_tape_reset(t_.tape, 1);
    x_ = t_.embedding(t_.param(0), t_.none(), kFour, 4);
    EXPECT_EQ(nullptr, t_.attention(x_, 2, 3));
    ExpectInternal({"attention", "sequences of 3"});
}

TEST_F(Misuse, AttentionOverRowsThatAreNotThreeTimesAWidth)
{
    shd_tensor *y = t_.linear(x_, t_.param(1), t_.none(), t_.none(), 0); // [4,5]
    EXPECT_EQ(nullptr, t_.attention(y, 1, 4));
    ExpectInternal({"attention", "[4,5]"});
}

TEST_F(Misuse, CrossEntropyWithAHeadOfAnotherWidth)
{
    t_.cross_entropy(x_, t_.param(4), kFour);
    ExpectInternal({"cross-entropy", "6", "7"});
}

TEST_F(Misuse, CrossEntropyOfSomethingUsedAfterIt)
{
    t_.cross_entropy(x_, t_.param(1), kFour);
    shd_tensor *y = t_.gelu(x_);
    t_.weigh(y);
    EXPECT_EQ(SHD_EINTERNAL, shd_tape_backward(t_.tape, 0, nullptr));
    ExpectInternal({"cross-entropy", "twice"});
}

TEST_F(Misuse, AttentionOfSomethingUsedAfterIt)
{
    shd_tensor *a = t_.attention(x_, 2, 4);
    shd_tensor *y = t_.gelu(x_);
    t_.weigh(y);
    t_.weigh(a);
    EXPECT_EQ(SHD_EINTERNAL, shd_tape_backward(t_.tape, 0, nullptr));
    ExpectInternal({"attention", "twice"});
}

TEST_F(Misuse, RowsOutsideOrWhileRecording)
{
    EXPECT_EQ(nullptr, shd_tape_rows(t_.tape, x_, 0, 1));
    ExpectInternal({"rows 0..1 of 4", "forward only"});
    for (auto [first, n] : {std::pair{-1, 1}, std::pair{3, 2}, std::pair{4, 1}}) {
        shd_tape_reset(t_.tape, 0);
        x_ = t_.embedding(t_.param(0), t_.none(), kFour, 4);
        EXPECT_EQ(nullptr, shd_tape_rows(t_.tape, x_, first, n));
        ExpectInternal({"of 4"});
    }
    shd_tape_reset(t_.tape, 0);
    x_ = t_.embedding(t_.param(0), t_.none(), kFour, 4);
    shd_tensor *last = shd_tape_rows(t_.tape, x_, 3, 1);
    ASSERT_NE(nullptr, last);
    EXPECT_EQ(0, std::memcmp(last->data, t_.params[0].data + 3 * 6, 6 * sizeof(float)));
}

TEST_F(Misuse, BackwardFromATensorWithoutGradient)
{
    t_.gelu(x_);
    EXPECT_EQ(SHD_EINTERNAL, shd_tape_backward(t_.tape, 0, nullptr));
    ExpectInternal({"without a gradient"});
}

TEST_F(Misuse, BackwardIntoAParameterWithoutGradientMemory)
{
    float *kept = t_.params[0].grad;
    t_.params[0].grad = nullptr;
    t_.weigh(x_);
    EXPECT_EQ(SHD_EINTERNAL, shd_tape_backward(t_.tape, 0, nullptr));
    ExpectInternal({"parameter", "no gradient memory"});
    t_.params[0].grad = kept;
}

} // namespace
