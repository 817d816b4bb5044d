// Checkpoints as Hugging Face lays them out, made from a model's parameter table with values that
// count as random. For tests.
#ifndef TESTS_TRAIN_CHECKPOINT_H
#define TESTS_TRAIN_CHECKPOINT_H

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "daemon/model/model.h"
#include "daemon/store/convert.h"
#include "daemon/store/hf_files.h"
#include "tests/store/files.h"

namespace shd
{

// One tensor of a checkpoint.
struct Tensor {
    shd_st_dtype dtype;
    std::vector<int64_t> shape;
    std::string bytes;
};
using Tensors = std::map<std::string, Tensor>;

// Numbers in (-1, 1) that `dtype` holds exactly.
inline std::string RandomBytes(shd_st_dtype dtype, size_t n, uint32_t seed)
{
    std::string bytes(n * shd_st_dtype_size(dtype), '\0');
    uint32_t x = seed * 2654435761u + 1;
    std::vector<float> values(n);
    for (float &value : values) {
        x = x * 1664525u + 1013904223u;
        value = static_cast<float>(static_cast<int32_t>(x)) / 2147483648.0f;
    }
    EXPECT_EQ(shd_convert_from_f32(bytes.data(), dtype, values.data(), n), n);
    return bytes;
}

inline std::vector<float> Floats(const Tensor &tensor)
{
    std::vector<float> out(tensor.bytes.size() / shd_st_dtype_size(tensor.dtype));
    shd_convert_to_f32(out.data(), tensor.bytes.data(), tensor.dtype, out.size());
    return out;
}

// Every parameter of the model. dtype_of(i) is the type of parameter i.
inline Tensors RandomTensors(const shd_model *model,
                             const std::function<shd_st_dtype(uint32_t)> &dtype_of)
{
    Tensors out;
    for (uint32_t i = 0; i < shd_model_n_params(model); i++) {
        const shd_param_info *info = shd_model_param(model, i);
        const auto n = static_cast<size_t>(shd_param_numel(info));
        out[info->name] = {dtype_of(i),
                           {info->shape, info->shape + info->ndim},
                           RandomBytes(dtype_of(i), n, i + 1)};
    }
    return out;
}

inline std::string SafetensorsOf(const Tensors &tensors)
{
    std::vector<shd_st_tensor> list;
    for (const auto &[name, tensor] : tensors) {
        shd_st_tensor t = {};
        t.name = const_cast<char *>(name.c_str());
        t.dtype = tensor.dtype;
        t.ndim = static_cast<int>(tensor.shape.size());
        std::copy(tensor.shape.begin(), tensor.shape.end(), t.shape);
        list.push_back(t);
    }
    void *head = nullptr;
    uint64_t head_bytes = 0;
    const uint64_t size =
        shd_safetensors_layout(list.data(), static_cast<uint32_t>(list.size()), &head, &head_bytes);
    std::string file(static_cast<char *>(head), head_bytes);
    free(head);
    for (const auto &[name, tensor] : tensors) {
        file += tensor.bytes;
    }
    EXPECT_EQ(file.size(), size);
    return file;
}

// As one file, or as `shards` files and their index.
inline void WriteCheckpoint(const std::string &dir, const Tensors &tensors, size_t shards = 1)
{
    if (shards == 1) {
        files::Write(dir + "/model.safetensors", SafetensorsOf(tensors));
        return;
    }
    std::vector<Tensors> parts(shards);
    std::string map;
    size_t i = 0;
    for (const auto &[name, tensor] : tensors) {
        const std::string file = "part-" + std::to_string(i % shards) + ".safetensors";
        parts[i++ % shards][name] = tensor;
        map += (map.empty() ? "\"" : ",\"") + name + "\":\"" + file + "\"";
    }
    for (size_t s = 0; s < shards; s++) {
        files::Write(dir + "/part-" + std::to_string(s) + ".safetensors", SafetensorsOf(parts[s]));
    }
    files::Write(dir + "/model.safetensors.index.json",
                 "{\"metadata\":{\"total_size\":0},\"weight_map\":{" + map + "}}");
}

// For shd_hf_files_open: `arg` is the directory's path, a std::string.
inline int OpenIn(void *arg, const char *name, int *fd, shd_error *err)
{
    const std::string path = *static_cast<const std::string *>(arg) + "/" + name;
    *fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    return *fd >= 0 ? 0 : shd_fail(err, SHD_ENOTFOUND, "%s does not exist", path.c_str());
}

inline shd_hf_files *OpenCheckpoint(const std::string &dir, shd_error *err)
{
    shd_hf_files *out = nullptr;
    const int rc =
        shd_hf_files_open(dir.c_str(), OpenIn, const_cast<std::string *>(&dir), &out, err);
    return rc == 0 ? out : nullptr;
}

// What a directory holds, by name.
inline Tensors ReadCheckpoint(const std::string &dir)
{
    Tensors out;
    shd_error err = {};
    shd_hf_files *opened = OpenCheckpoint(dir, &err);
    EXPECT_NE(opened, nullptr) << err.message;
    for (uint32_t i = 0; opened != nullptr && i < shd_hf_files_n(opened); i++) {
        const shd_hf_tensor *t = shd_hf_files_at(opened, i);
        Tensor &tensor = out[t->tensor->name];
        tensor.dtype = t->tensor->dtype;
        tensor.shape.assign(t->tensor->shape, t->tensor->shape + t->tensor->ndim);
        tensor.bytes.resize(t->tensor->bytes);
        EXPECT_EQ(shd_hf_files_read(opened, t, 0, t->tensor->bytes, tensor.bytes.data(), &err), 0)
            << err.message;
    }
    shd_hf_files_free(opened);
    return out;
}

} // namespace shd

#endif
