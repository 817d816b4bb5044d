// A model on a tape without trainer: losses, gradients, logits and generation. For tests.
#ifndef TESTS_MODEL_RUN_H
#define TESTS_MODEL_RUN_H

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "daemon/model/hf_config.h"
#include "daemon/model/model.h"
#include "daemon/tape/tape.h"
#include "tests/golden/golden.h"

namespace model
{

inline shd_model_config ConfigOf(const golden::File &file)
{
    const std::string &json = file.text("config");
    shd_model_config config = {};
    shd_error err = {};
    EXPECT_EQ(0, shd_hf_config_parse(json.data(), json.size(), &config, nullptr, &err))
        << err.message;
    return config;
}

// `x` as memory of `dtype`, rounded to nearest even.
inline std::vector<uint8_t> Stored(const std::vector<float> &x, shd_dtype dtype)
{
    std::vector<uint8_t> out(x.size() * shd_dtype_size(dtype));
    for (size_t i = 0; i < x.size(); i++) {
        uint32_t bits = 0;
        memcpy(&bits, &x[i], sizeof bits);
        const uint16_t bf16 = static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
        const _Float16 f16 = static_cast<_Float16>(x[i]);
        const void *from = dtype == SHD_F32    ? static_cast<const void *>(&x[i])
                           : dtype == SHD_BF16 ? static_cast<const void *>(&bf16)
                                               : static_cast<const void *>(&f16);
        memcpy(&out[i * shd_dtype_size(dtype)], from, shd_dtype_size(dtype));
    }
    return out;
}

// Parameters are those of the file, computed on in `dtype`. Gradients are for fp32.
class Run
{
  public:
    explicit Run(const golden::File &file, int threads = 1, shd_dtype dtype = SHD_F32)
        : config_(ConfigOf(file)), dtype_(dtype), dev_(shd_device_create_cpu(threads, 0))
    {
        shd_error err = {};
        EXPECT_EQ(0, shd_model_create(&config_, &model_, &err)) << err.message;
        EXPECT_EQ(0, shd_device_arena(dev_, 256 << 20, &arena_, &err)) << err.message;
        tape_ = shd_tape_create(dev_, arena_, dtype);
        const uint32_t n = shd_model_n_params(model_);
        EXPECT_EQ(file.parameters().size(), n);
        for (uint32_t i = 0; i < n; i++) {
            const shd_param_info *info = shd_model_param(model_, i);
            const golden::Tensor &value = file.tensor(std::string("init/") + info->name);
            std::vector<int64_t> shape(info->shape, info->shape + info->ndim);
            EXPECT_EQ(value.shape, shape) << info->name;
            values_.push_back(Stored(value.f32, dtype));
            grads_.emplace_back(value.f32.size());
        }
        for (uint32_t i = 0; i < n; i++) {
            const shd_param_info *info = shd_model_param(model_, i);
            shd_tensor t = {};
            t.ndim = info->ndim;
            memcpy(t.shape, info->shape, sizeof info->shape);
            t.dtype = dtype;
            t.data = values_[i].data();
            t.is_param = t.requires_grad = t.refs = 1;
            tensors_.push_back(t);
        }
        for (shd_tensor &t : tensors_) {
            params_.push_back(&t);
        }
    }
    ~Run()
    {
        shd_tape_free(tape_);
        shd_arena_free(arena_);
        shd_device_free(dev_);
        shd_model_free(model_);
    }
    Run(const Run &) = delete;
    Run &operator=(const Run &) = delete;

    const shd_model_config &config() const
    {
        return config_;
    }
    const shd_model *get() const
    {
        return model_;
    }
    // Of the last Losses with gradients: of the sum of the losses.
    const std::vector<float> &grad(uint32_t i) const
    {
        return grads_[i];
    }

    // The loss of every position.
    std::vector<float> Losses(const std::vector<int32_t> &ids, const std::vector<int32_t> &targets,
                              int64_t tokens, int record = 0, shd_model_dropout dropout = {})
    {
        std::vector<float> losses(ids.size());
        shd_model_input in = {};
        in.ids = ids.data();
        in.targets = targets.data();
        in.losses = losses.data();
        in.tokens = tokens;
        in.sequences = static_cast<int64_t>(ids.size()) / tokens;
        in.dropout = dropout;
        for (size_t i = 0; i < params_.size(); i++) {
            tensors_[i].grad = record ? grads_[i].data() : nullptr;
            tensors_[i].grad_defined = 0;
        }
        shd_tape_reset(tape_, record);
        EXPECT_EQ(nullptr, Forward(in));
        shd_error err = {};
        if (record) {
            EXPECT_EQ(0, shd_tape_backward(tape_, 0, &err)) << err.message;
        }
        EXPECT_EQ(0, shd_tape_error(tape_, &err)) << err.message;
        shd_tape_reset(tape_, 0);
        return losses;
    }

    // After the last of `ids`, which follow what `cache` holds.
    std::vector<float> Logits(const std::vector<int32_t> &ids,
                              std::vector<shd_kv_cache> *cache = nullptr)
    {
        shd_model_input in = {};
        in.ids = ids.data();
        in.tokens = static_cast<int64_t>(ids.size());
        in.sequences = 1;
        in.cache = cache != nullptr ? cache->data() : nullptr;
        shd_tape_reset(tape_, 0);
        shd_tensor *x = Forward(in);
        shd_error err = {};
        EXPECT_EQ(0, shd_tape_error(tape_, &err)) << err.message;
        std::vector<float> out(static_cast<size_t>(config_.vocab));
        if (x != nullptr) {
            EXPECT_EQ(config_.vocab, shd_tensor_numel(x));
            memcpy(out.data(), x->data, out.size() * sizeof(float));
        }
        shd_tape_reset(tape_, 0);
        for (size_t i = 0; cache != nullptr && i < cache->size(); i++) {
            (*cache)[i].length += in.tokens;
        }
        return out;
    }

    // An empty cache; its memory lives in `memory`.
    std::vector<shd_kv_cache> Cache(int64_t capacity,
                                    std::vector<std::vector<uint8_t>> *memory) const
    {
        const size_t n = static_cast<size_t>(capacity * shd_model_kv_width(model_));
        const std::vector<float> unset(n, NAN);
        memory->assign(static_cast<size_t>(2 * config_.n_layer), Stored(unset, dtype_));
        std::vector<shd_kv_cache> cache;
        for (size_t i = 0; i < memory->size(); i += 2) {
            shd_kv_cache layer = {};
            layer.k = (*memory)[i].data();
            layer.v = (*memory)[i + 1].data();
            layer.capacity = capacity;
            cache.push_back(layer);
        }
        return cache;
    }

  private:
    shd_tensor *Forward(const shd_model_input &in)
    {
        shd_tensor *x = nullptr;
        for (uint32_t s = 0; s < shd_model_n_segments(model_); s++) {
            shd_model_forward(model_, s, tape_, params_.data(), &in, &x);
        }
        return x;
    }

    shd_model_config config_;
    shd_dtype dtype_;
    shd_device *dev_;
    shd_arena *arena_ = nullptr;
    shd_tape *tape_ = nullptr;
    shd_model *model_ = nullptr;
    std::vector<std::vector<uint8_t>> values_;
    std::vector<std::vector<float>> grads_;
    std::vector<shd_tensor> tensors_;
    std::vector<shd_tensor *> params_;
};

} // namespace model

#endif
