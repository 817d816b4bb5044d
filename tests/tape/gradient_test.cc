// Reverse mode through small graphs against finite differences of the same graph in double.
#include "tests/tape/graph.h"

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

using namespace graph;

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
            std::copy(values[i].begin(), values[i].end(), Data(&taped.params[i]));
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
            ASSERT_NEAR(want[k], static_cast<double>(Grad(&taped.params[i])[k]),
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

TEST(Gradient, GeluWithErf)
{
    const std::vector<int32_t> ids = Identity(4);
    Check({{4, 33, 0.0, 2.0}}, [&](auto &b) {
        auto x = b.embedding(b.param(0), b.none(), ids, 4);
        auto y = b.gelu_erf(x);
        b.drop(x);
        b.weigh(y);
        b.drop(y);
    });
}

TEST(Gradient, RmsNormOfRowsAndOfHeads)
{
    const std::vector<int32_t> ids = Identity(6);
    for (int64_t width : {12, 4}) {
        Check({{6, 12}, {width, 0, 1.0}}, [&](auto &b) {
            auto x = b.embedding(b.param(0), b.none(), ids, 6);
            auto y = b.rmsnorm(x, b.param(1), 1e-3f);
            b.drop(x);
            b.weigh(y);
            b.drop(y);
        });
    }
}

TEST(Gradient, SwiGlu)
{
    const std::vector<int32_t> ids = Identity(4);
    Check({{4, 33, 0.0, 2.0}, {4, 33}}, [&](auto &b) {
        auto gate = b.embedding(b.param(0), b.none(), ids, 4);
        auto up = b.embedding(b.param(1), b.none(), ids, 4);
        auto y = b.swiglu(gate, up);
        b.drop(gate);
        b.drop(up);
        b.weigh(y);
        b.drop(y);
    });
    // Both from the same rows, and these have other users.
    Check({{4, 6}, {6, 6}, {6, 6}}, [&](auto &b) {
        auto x = b.embedding(b.param(0), b.none(), ids, 4);
        auto gate = b.linear(x, b.param(1), b.none(), b.none(), 0);
        auto up = b.linear(x, b.param(2), b.none(), gate, 0);
        auto y = b.swiglu(gate, up);
        b.drop(gate);
        b.drop(up);
        auto z = b.linear(y, b.param(1), b.none(), x, 0);
        b.drop(x);
        b.drop(y);
        b.weigh(z);
        b.drop(z);
    });
}

TEST(Gradient, Rope)
{
    const std::vector<int32_t> ids = Identity(6);
    const std::vector<float> inv_freq = {1.0f, 0.1f, 0.01f};
    for (int64_t pos0 : {0, 5}) {
        for (int kept : {0, 1}) { // whether x has another reader, so that it is not turned in place
            Check({{6, 12}, {12, 12}}, [&](auto &b) {
                auto x = b.embedding(b.param(0), b.none(), ids, 6);
                auto y = kept ? b.linear(x, b.param(1), b.none(), b.none(), 0) : b.none();
                auto z = b.rope(x, inv_freq, 3, pos0);
                if (kept) {
                    b.weigh(y);
                    b.drop(y);
                }
                b.weigh(z);
                b.drop(z);
            });
        }
    }
}

TEST(Gradient, AttentionOfSeparateProjections)
{
    const std::vector<int32_t> ids = Identity(8);
    for (int64_t kv_heads : {1, 2, 4}) {
        for (int64_t window : {0, 1, 3}) {
            for (int64_t tokens : {4, 8}) {
                const shd_attn_spec spec = {4, kv_heads, 3, window, 0.6f};
                Check({{8, 12, 0.0, 1.0}, {8, kv_heads * 3, 0.0, 1.0}, {8, kv_heads * 3, 0.0, 1.0}},
                      [&](auto &b) {
                          auto q = b.embedding(b.param(0), b.none(), ids, 8);
                          auto k = b.embedding(b.param(1), b.none(), ids, 8);
                          auto v = b.embedding(b.param(2), b.none(), ids, 8);
                          auto y = b.heads(q, k, v, spec, tokens);
                          b.drop(q);
                          b.drop(k);
                          b.drop(v);
                          b.weigh(y);
                          b.drop(y);
                      });
            }
        }
    }
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
        std::fill(Data(&t.params[i]), Data(&t.params[i]) + defs[i].numel(), 0.5f);
    }
    shd_tape_reset(t.tape, 1);
    shd_tensor *h = t.embedding(t.param(0), t.none(), ids, 3);
    t.cross_entropy(h, t.param(1), targets);
    t.drop(h);
    ASSERT_EQ(0, shd_tape_backward(t.tape, 0, nullptr));
    for (size_t i = 0; i < 2; i++) {
        for (int64_t k = 0; k < defs[i].numel(); k++) {
            EXPECT_EQ(0.0f, Grad(&t.params[i])[k]);
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

// As Llama and Qwen3 have it: RMS norms, also of heads, rotary positions, grouped heads, SwiGLU.
TEST(Gradient, OfALlamaBlock)
{
    const shd_attn_spec spec = {4, 2, 6, 3, 0.4f};
    const std::vector<float> inv_freq = {1.0f, 0.3f, 0.05f};
    Check({{9, 8},
           {8, 0, 1.0},
           {24, 8},
           {12, 8},
           {12, 8},
           {6, 0, 1.0},
           {8, 24},
           {8, 0, 1.0},
           {20, 8},
           {20, 8},
           {8, 20},
           {9, 8}},
          [&](auto &b) {
              auto x = b.embedding(b.param(0), b.none(), kIds, 5);
              auto n = b.rmsnorm(x, b.param(1), 1e-5f);
              auto q = b.linear(n, b.param(2), b.none(), b.none(), 0);
              auto k = b.linear(n, b.param(3), b.none(), b.none(), 0);
              auto v = b.linear(n, b.param(4), b.none(), b.none(), 0);
              b.drop(n);
              auto qn = b.rmsnorm(q, b.param(5), 1e-5f);
              b.drop(q);
              auto qr = b.rope(qn, inv_freq, 5, 0);
              auto kr = b.rope(k, inv_freq, 5, 0);
              auto a = b.heads(qr, kr, v, spec, 5);
              b.drop(qr);
              b.drop(kr);
              b.drop(v);
              auto mid = b.linear(a, b.param(6), b.none(), x, 0);
              b.drop(a);
              b.drop(x);
              auto n2 = b.rmsnorm(mid, b.param(7), 1e-5f);
              auto gate = b.linear(n2, b.param(8), b.none(), b.none(), 0);
              auto up = b.linear(n2, b.param(9), b.none(), b.none(), 0);
              b.drop(n2);
              auto f = b.swiglu(gate, up);
              b.drop(gate);
              b.drop(up);
              auto y = b.linear(f, b.param(10), b.none(), mid, 0);
              b.drop(f);
              b.drop(mid);
              b.cross_entropy(y, b.param(11), kTargets);
              b.drop(y);
          });
}

TEST(Gradient, OfATransformerBlock)
{
    Check(kBlock, [&](auto &b) { Block(b, kIds, kTargets); });
}

} // namespace
