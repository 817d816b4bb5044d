// Reads a golden file (README.md describes the format). For tests.
#ifndef SHD_TESTS_GOLDEN_GOLDEN_H
#define SHD_TESTS_GOLDEN_GOLDEN_H

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace golden
{

struct Tensor {
    std::vector<int64_t> shape;
    // One of these, by the tensor's type.
    std::vector<float> f32;
    std::vector<double> f64;
    std::vector<int32_t> i32;

    int64_t numel() const;
};

// Every function throws std::runtime_error with a message that names the file and what is wrong.
class File
{
  public:
    explicit File(const std::string &path);

    double number(const std::string &key) const;
    int64_t integer(const std::string &key) const;
    const std::string &text(const std::string &key) const;

    bool has(const std::string &tensor) const;
    const Tensor &tensor(const std::string &name) const;
    const std::vector<float> &f32(const std::string &name) const;
    const std::vector<double> &f64(const std::string &name) const;
    const std::vector<int32_t> &i32(const std::string &name) const;

    // Names of the parameters, in the model's order: NAME of each tensor "init/NAME".
    std::vector<std::string> parameters() const;

  private:
    [[noreturn]] void fail(const std::string &what) const;
    void parse(const std::string &bytes);

    std::string path_;
    std::map<std::string, double> numbers_;
    std::map<std::string, std::string> texts_;
    std::vector<std::string> order_;
    std::map<std::string, Tensor> tensors_;
};

} // namespace golden

#endif
