// The golden files are complete and mean what README.md says.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>

#include "tests/golden/golden.h"

namespace
{

std::vector<std::string> Files()
{
    std::vector<std::string> files;
    for (const char *name :
         {"gpt2_a", "gpt2_b", "gpt2_c", "gpt2_d", "gpt2_e", "llama_a", "llama_b", "llama_c",
          "smollm2", "mistral", "qwen2", "qwen2_b", "qwen3", "qwen3_b"}) {
        files.push_back(std::string("tests/golden/") + name + ".golden");
    }
    return files;
}

TEST(Golden, EveryParameterHasItsTensors)
{
    for (const std::string &path : Files()) {
        const golden::File file(path);
        EXPECT_GE(file.parameters().size(), 12u);
        EXPECT_EQ('{', file.text("config")[0]);
        EXPECT_EQ('}', file.text("config").back());
        for (const std::string &name : file.parameters()) {
            const auto &shape = file.tensor("init/" + name).shape;
            EXPECT_EQ(file.tensor("grad/" + name).shape, shape);
            if (file.has("final/" + name)) {
                EXPECT_EQ(file.tensor("final/" + name).shape, shape);
                EXPECT_NE(file.f32("final/" + name), file.f32("init/" + name)) << name;
            }
        }
        EXPECT_EQ(file.tensor("tokens").shape,
                  (std::vector<int64_t>{file.integer("steps"), file.integer("batch"),
                                        file.integer("length")}));
        EXPECT_EQ(file.tensor("targets").shape, file.tensor("tokens").shape);
        EXPECT_EQ(file.tensor("logits").shape[0], file.integer("length"));
        for (int32_t token : file.i32("tokens")) {
            ASSERT_TRUE(token >= 0 && token < file.tensor("logits").shape[1]);
        }
    }
}

TEST(Golden, StepsFollowTheStatedFormulas)
{
    for (const std::string &path : Files()) {
        const golden::File file(path);
        const double lr = file.number("lr"), low = file.number("lr_min");
        const double warmup = file.number("warmup"), steps = file.number("steps");
        ASSERT_EQ(file.f64("lr").size(), static_cast<size_t>(steps));
        for (size_t i = 0; i < file.f64("lr").size(); i++) {
            const double s = static_cast<double>(i + 1);
            const double want =
                s <= warmup ? lr * s / warmup
                            : low + (lr - low) * 0.5 *
                                        (1 + std::cos(M_PI * (s - warmup) / (steps - warmup)));
            EXPECT_NEAR(file.f64("lr")[i], want, 1e-15);
        }
        // The stored gradients are those of the first step before clipping.
        double sum = 0;
        for (const std::string &name : file.parameters()) {
            for (float g : file.f32("grad/" + name)) {
                sum += static_cast<double>(g) * g;
            }
        }
        EXPECT_NEAR(std::sqrt(sum), file.f64("grad_norm")[0], 1e-5 * std::sqrt(sum));
        EXPECT_LT(file.f64("loss").back(), file.f64("loss").front());
    }
}

std::string Error(const std::string &bytes)
{
    const std::string path = ::testing::TempDir() + "/golden." + std::to_string(getpid());
    std::ofstream(path, std::ios::binary) << bytes;
    std::string message;
    try {
        const golden::File file(path);
        file.f32("x");
    } catch (const std::runtime_error &error) {
        message = std::string(error.what()).substr(path.size() + 2);
    }
    unlink(path.c_str());
    return message;
}

TEST(Golden, BrokenFilesAreNamed)
{
    const std::string first = "shardd golden 1\n";
    EXPECT_EQ(Error(first + "tensor x f32 1 2 0\ndata 8\n12345678"), "");
    EXPECT_EQ(Error(first + "text t {\"a\": 1}\ntensor x f32 1 2 0\ndata 8\n12345678"), "");
    EXPECT_EQ(Error("something\n"), "it does not begin with 'shardd golden 1'");
    EXPECT_EQ(Error(first + "n_layer 3"), "its header does not end");
    EXPECT_EQ(Error(first + "n_layer three\n"), "bad line: n_layer three");
    EXPECT_EQ(Error(first + "tensor x f32 2 2 0\ndata 8\n12345678"),
              "bad line: tensor x f32 2 2 0");
    EXPECT_EQ(Error(first + "tensor x f32 1 2 0\ndata 8\n1234"),
              "it holds 4 bytes of data: data 8");
    EXPECT_EQ(Error(first + "tensor x f32 1 3 0\ndata 8\n12345678"),
              "tensor x lies outside of the data");
    EXPECT_EQ(Error(first + "tensor x f16 1 2 0\ndata 8\n12345678"),
              "tensor x has the unknown type f16");
    EXPECT_EQ(Error(first + "tensor x i32 1 2 0\ndata 8\n12345678"), "x is not f32");
    EXPECT_EQ(Error(first + "data 0\n"), "no tensor x");
    EXPECT_THROW(golden::File("/nonexistent"), std::runtime_error);
}

} // namespace
