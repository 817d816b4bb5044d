#include "tests/golden/golden.h"

#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <sstream>
#include <stdexcept>

namespace golden
{

namespace
{

const char kFirstLine[] = "shardd golden 1";

// The files are little endian, as every machine that this runs on.
template <typename T> std::vector<T> Take(const char *from, int64_t n)
{
    std::vector<T> out(static_cast<size_t>(n));
    if (n > 0) {
        memcpy(out.data(), from, out.size() * sizeof(T));
    }
    return out;
}

struct Entry {
    std::string name, type;
    std::vector<int64_t> shape;
    uint64_t offset = 0;
};

} // namespace

int64_t Tensor::numel() const
{
    int64_t n = 1;
    for (int64_t dim : shape) {
        n *= dim;
    }
    return n;
}

File::File(const std::string &path) : path_(path)
{
    std::ifstream in(path, std::ios::binary);
    if (!in) {
        fail("cannot be opened");
    }
    parse(std::string(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()));
}

void File::parse(const std::string &bytes)
{
    std::vector<Entry> entries;
    size_t at = 0;
    bool first = true;
    for (;;) {
        const size_t end = bytes.find('\n', at);
        if (end == std::string::npos) {
            fail("its header does not end");
        }
        const std::string line = bytes.substr(at, end - at);
        at = end + 1;
        if (first) {
            if (line != kFirstLine) {
                fail("it does not begin with '" + std::string(kFirstLine) + "'");
            }
            first = false;
            continue;
        }
        std::istringstream words(line);
        std::string key;
        words >> key;
        if (key == "data") {
            uint64_t n = 0;
            if (!(words >> n) || n != bytes.size() - at) {
                fail("it holds " + std::to_string(bytes.size() - at) + " bytes of data: " + line);
            }
            break;
        }
        if (key == "text") {
            words >> key >> std::ws;
            std::getline(words, texts_[key]);
        } else if (key == "tensor") {
            Entry entry;
            size_t ndim = 0;
            words >> entry.name >> entry.type >> ndim;
            for (size_t i = 0; words && i < ndim; i++) {
                int64_t dim = -1;
                words >> dim;
                entry.shape.push_back(dim);
            }
            if (!(words >> entry.offset)) {
                fail("bad line: " + line);
            }
            entries.push_back(entry);
        } else if (!(words >> numbers_[key])) {
            fail("bad line: " + line);
        }
    }
    for (const Entry &entry : entries) {
        Tensor tensor;
        tensor.shape = entry.shape;
        const int64_t n = tensor.numel();
        const uint64_t width = entry.type == "f64" ? 8 : 4;
        const uint64_t held = bytes.size() - at;
        if (n < 0 || entry.offset > held ||
            static_cast<uint64_t>(n) > (held - entry.offset) / width) {
            fail("tensor " + entry.name + " lies outside of the data");
        }
        const char *from = bytes.data() + at + entry.offset;
        if (entry.type == "f32") {
            tensor.f32 = Take<float>(from, n);
        } else if (entry.type == "f64") {
            tensor.f64 = Take<double>(from, n);
        } else if (entry.type == "i32") {
            tensor.i32 = Take<int32_t>(from, n);
        } else {
            fail("tensor " + entry.name + " has the unknown type " + entry.type);
        }
        order_.push_back(entry.name);
        tensors_[entry.name] = std::move(tensor);
    }
}

void File::fail(const std::string &what) const
{
    throw std::runtime_error(path_ + ": " + what);
}

double File::number(const std::string &key) const
{
    const auto found = numbers_.find(key);
    if (found == numbers_.end()) {
        fail("no value " + key);
    }
    return found->second;
}

int64_t File::integer(const std::string &key) const
{
    const double value = number(key);
    if (value != std::floor(value)) {
        fail(key + " is not a whole number");
    }
    return static_cast<int64_t>(value);
}

const std::string &File::text(const std::string &key) const
{
    const auto found = texts_.find(key);
    if (found == texts_.end()) {
        fail("no text " + key);
    }
    return found->second;
}

bool File::has(const std::string &tensor) const
{
    return tensors_.count(tensor) > 0;
}

const Tensor &File::tensor(const std::string &name) const
{
    const auto found = tensors_.find(name);
    if (found == tensors_.end()) {
        fail("no tensor " + name);
    }
    return found->second;
}

const std::vector<float> &File::f32(const std::string &name) const
{
    const Tensor &found = tensor(name);
    if (static_cast<int64_t>(found.f32.size()) != found.numel()) {
        fail(name + " is not f32");
    }
    return found.f32;
}

const std::vector<double> &File::f64(const std::string &name) const
{
    const Tensor &found = tensor(name);
    if (static_cast<int64_t>(found.f64.size()) != found.numel()) {
        fail(name + " is not f64");
    }
    return found.f64;
}

const std::vector<int32_t> &File::i32(const std::string &name) const
{
    const Tensor &found = tensor(name);
    if (static_cast<int64_t>(found.i32.size()) != found.numel()) {
        fail(name + " is not i32");
    }
    return found.i32;
}

std::vector<std::string> File::parameters() const
{
    const std::string prefix = "init/";
    std::vector<std::string> names;
    for (const std::string &name : order_) {
        if (name.compare(0, prefix.size(), prefix) == 0) {
            names.push_back(name.substr(prefix.size()));
        }
    }
    return names;
}

} // namespace golden
