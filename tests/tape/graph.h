// Graphs of tape ops twice: on a tape, and naively in double, forward only. For tests of the tape.
#ifndef TESTS_TAPE_GRAPH_H
#define TESTS_TAPE_GRAPH_H

#include "daemon/tape/tape.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

namespace graph
{

struct Param {
    int64_t rows, cols; // cols 0: a vector
    double mean = 0, std = 0.5;
    int64_t numel() const
    {
        return cols > 0 ? rows * cols : rows;
    }
};

inline float *Data(const shd_tensor *t)
{
    return static_cast<float *>(t->data);
}

inline float *Grad(const shd_tensor *t)
{
    return static_cast<float *>(t->grad);
}

inline std::vector<int32_t> Identity(int64_t n)
{
    std::vector<int32_t> ids;
    for (int64_t i = 0; i < n; i++) {
        ids.push_back(static_cast<int32_t>(i));
    }
    return ids;
}

// Weights of an output in the scalar that gradients are of.
inline double Weight(int64_t i)
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
    T gelu_erf(const T &x)
    {
        T out = x;
        for (double &v : out[0].x) {
            v = 0.5 * v * std::erfc(-v / std::sqrt(2.0));
        }
        return out;
    }
    T swiglu(const T &gate, const T &up)
    {
        T out = gate;
        for (size_t i = 0; i < out[0].x.size(); i++) {
            out[0].x[i] = gate[0].x[i] / (1 + std::exp(-gate[0].x[i])) * up[0].x[i];
        }
        return out;
    }
    T rmsnorm(const T &x, const T &w, float eps)
    {
        T out = x;
        const int64_t C = static_cast<int64_t>(w[0].x.size());
        for (int64_t r = 0; r < x[0].rows; r++) {
            for (int64_t g = 0; g < x[0].cols; g += C) {
                double square = 0;
                for (int64_t c = g; c < g + C; c++) {
                    square += std::pow(x[0].at(r, c), 2) / static_cast<double>(C);
                }
                for (int64_t c = g; c < g + C; c++) {
                    out[0].at(r, c) = x[0].at(r, c) / std::sqrt(square + static_cast<double>(eps)) *
                                      w[0].x[static_cast<size_t>(c - g)];
                }
            }
        }
        return out;
    }
    T rope(const T &x, const std::vector<float> &inv_freq, int64_t tokens, int64_t pos0)
    {
        T out = x;
        const int64_t half = static_cast<int64_t>(inv_freq.size());
        for (int64_t r = 0; r < x[0].rows; r++) {
            for (int64_t h = 0; h < x[0].cols; h += 2 * half) {
                for (int64_t i = 0; i < half; i++) {
                    const double angle = static_cast<double>(static_cast<float>(pos0 + r % tokens) *
                                                             inv_freq[static_cast<size_t>(i)]);
                    const double a = x[0].at(r, h + i), b = x[0].at(r, h + half + i);
                    out[0].at(r, h + i) = a * std::cos(angle) - b * std::sin(angle);
                    out[0].at(r, h + half + i) = b * std::cos(angle) + a * std::sin(angle);
                }
            }
        }
        return out;
    }
    T heads(const T &q, const T &k, const T &v, const shd_attn_spec &spec, int64_t tokens)
    {
        const int64_t D = spec.head_dim, group = spec.heads / spec.kv_heads;
        T out = {{q[0].rows, spec.heads * D, {}}};
        out[0].x.resize(static_cast<size_t>(q[0].rows * spec.heads * D));
        for (int64_t r = 0; r < q[0].rows; r++) {
            int64_t first = r / tokens * tokens;
            if (spec.window > 0) {
                first = std::max(first, r - spec.window + 1);
            }
            for (int64_t h = 0; h < spec.heads; h++) {
                std::vector<double> p;
                double sum = 0;
                for (int64_t j = first; j <= r; j++) {
                    double dot = 0;
                    for (int64_t d = 0; d < D; d++) {
                        dot += q[0].at(r, h * D + d) * k[0].at(j, h / group * D + d);
                    }
                    p.push_back(std::exp(dot * static_cast<double>(spec.scale)));
                    sum += p.back();
                }
                for (int64_t j = first; j <= r; j++) {
                    for (int64_t d = 0; d < D; d++) {
                        out[0].at(r, h * D + d) +=
                            p[static_cast<size_t>(j - first)] / sum * v[0].at(j, h / group * D + d);
                    }
                }
            }
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

    explicit Taped(const std::vector<Param> &defs, uint64_t extent = 16 << 20,
                   shd_dtype dtype = SHD_F32)
        : defs_(defs)
    {
        dev_ = shd_device_create_cpu(1, 0);
        shd_error err = {};
        EXPECT_EQ(0, shd_device_arena(dev_, extent, &arena, &err)) << err.message;
        tape = shd_tape_create(dev_, arena, dtype);
        params.resize(defs.size());
        for (size_t i = 0; i < defs.size(); i++) {
            shd_tensor &t = params[i];
            t = {};
            t.ndim = defs[i].cols > 0 ? 2 : 1;
            t.shape[0] = defs[i].rows;
            t.shape[1] = defs[i].cols;
            t.dtype = dtype;
            t.is_param = 1;
            t.requires_grad = 1;
            t.refs = 1;
            t.data = Take(SHD_TAG_PARAMS, defs[i].numel());
            t.grad = Take(SHD_TAG_GRADS, defs[i].numel());
            std::fill(Grad(&t), Grad(&t) + defs[i].numel(), NAN); // must not be read
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
                                  tokens, 0, -1);
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
        return shd_tape_gelu(tape, x, SHD_GELU_TANH);
    }
    T gelu_erf(T x)
    {
        return shd_tape_gelu(tape, x, SHD_GELU_ERF);
    }
    T swiglu(T gate, T up)
    {
        return shd_tape_swiglu(tape, gate, up);
    }
    T rmsnorm(T x, T w, float eps)
    {
        return shd_tape_rmsnorm(tape, x, w, eps);
    }
    // Takes the handle.
    T rope(T x, const std::vector<float> &inv_freq, int64_t tokens, int64_t pos0)
    {
        return shd_tape_rope(tape, x, inv_freq.data(), 2 * static_cast<int64_t>(inv_freq.size()),
                             tokens, pos0);
    }
    T heads(T q, T k, T v, const shd_attn_spec &spec, int64_t tokens)
    {
        return shd_tape_attention(tape, q, k, v, &spec, tokens, nullptr);
    }
    T attention(T qkv, int64_t heads, int64_t tokens)
    {
        if (qkv == nullptr) {
            return nullptr;
        }
        const int64_t D = qkv->shape[1] / 3 / heads;
        const shd_attn_spec spec = {heads, heads, D, 0,
                                    static_cast<float>(1 / std::sqrt(static_cast<double>(D)))};
        return shd_tape_attention_packed(tape, qkv, &spec, tokens, nullptr);
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
            Grad(out)[i] = static_cast<float>(Weight(i));
            loss += Weight(i) * static_cast<double>(Data(out)[i]);
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

inline std::vector<std::vector<double>> Values(const std::vector<Param> &defs)
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

// A whole block between embedding and head, all gradients at once.
inline const std::vector<Param> kBlock = {{9, 8},  {5, 8}, {8, 0, 1.0}, {8, 0}, {8, 24}, {24, 0},
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

inline const std::vector<int32_t> kIds = {1, 8, 1, 0, 4, 4, 2, 7, 7, 1};
inline const std::vector<int32_t> kTargets = {8, 1, 0, 4, -100, 2, 7, 7, 1, 3};

inline void Fill(Taped *t, const std::vector<Param> &defs)
{
    const std::vector<std::vector<double>> values = Values(defs);
    for (size_t i = 0; i < defs.size(); i++) {
        std::copy(values[i].begin(), values[i].end(), Data(&t->params[i]));
        t->params[i].grad_defined = 0;
    }
}

} // namespace graph

#endif
