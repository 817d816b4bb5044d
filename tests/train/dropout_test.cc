// Dropout's masks belong to samples: not to ranks, micro-batches or recomputation; and evaluation
// has none.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "tests/train/drive.h"

namespace
{

using shd::Batch;
using shd::Good;

shd_spec Spec(uint32_t world, uint32_t micro_batch, double dropout)
{
    shd_spec spec = shd::SmallSpec("zero3", world);
    spec.model = shd_model_config_gpt2(2, 2, 24, 19, 97);
    spec.micro_batch = micro_batch;
    spec.global_batch = 4;
    spec.accumulation = 4 / (world * micro_batch);
    spec.dropout = dropout;
    return spec;
}

TEST(Dropout, DoesNotDependOnHowTheBatchIsCut)
{
    const Batch batch = Batch::Random(4, 17, 1);
    double want = 0;
    std::vector<float> gradient;
    for (const auto &[world, micro_batch] : std::vector<std::pair<uint32_t, uint32_t>>{
             {1, 4}, {1, 2}, {1, 1}, {2, 1}, {2, 2}, {4, 1}}) {
        shd::Engine engine(Spec(world, micro_batch, 0.3));
        const double loss = Good(engine, SHD_WORK_FORWARD_BACKWARD, &batch).loss;
        std::vector<float> grad(97 * 24);
        ASSERT_EQ(0, shd_trainer_read_grad(engine.trainer(), 0, grad.data(), nullptr));
        if (gradient.empty()) {
            want = loss;
            gradient = grad;
        }
        // The same masks; sums over rows are taken in another order.
        EXPECT_NEAR(want, loss, 1e-6 * want) << world << " ranks of " << micro_batch;
        double most = 0, diff = 0;
        for (size_t i = 0; i < grad.size(); i++) {
            most = std::max(most, std::fabs(static_cast<double>(gradient[i])));
            diff = std::max(diff, std::fabs(static_cast<double>(grad[i]) - gradient[i]));
        }
        EXPECT_LT(diff, 1e-5 * most) << world << " ranks of " << micro_batch;
    }
}

TEST(Dropout, IsAnotherInEveryStepSampleAndSeed)
{
    shd_spec spec = Spec(2, 2, 0.3);
    spec.schedule = {SHD_SCHEDULE_CONSTANT, 0, 0, 0, 0, 0}; // the weights stay
    spec.optim = {SHD_OPTIM_SGD, 0, 0, 0, 0, 0};
    shd::Engine engine(spec);
    const Batch batch = Batch::Random(4, 17, 1);
    std::vector<double> losses;
    for (int i = 0; i < 3; i++) {
        losses.push_back(Good(engine, SHD_WORK_TRAIN_STEP, &batch).loss);
    }
    spec.seed = 8;
    shd::Engine seeded(spec);
    const std::vector<std::vector<float>> params = engine.Params();
    for (uint32_t i = 0; i < params.size(); i++) {
        ASSERT_EQ(0, shd_trainer_write_param(seeded.trainer(), i, params[i].data(), nullptr));
    }
    losses.push_back(Good(seeded, SHD_WORK_FORWARD_BACKWARD, &batch).loss);
    // The same batch again in the same step: other samples.
    losses.push_back(Good(seeded, SHD_WORK_FORWARD_BACKWARD, &batch).loss);
    for (size_t i = 0; i < losses.size(); i++) {
        for (size_t j = 0; j < i; j++) {
            EXPECT_GT(std::fabs(losses[i] - losses[j]), 1e-4) << i << " and " << j;
        }
    }
}

TEST(Dropout, IsNotInEvaluation)
{
    shd::Engine with(Spec(2, 2, 0.3)), without(Spec(2, 2, 0));
    const Batch batch = Batch::Random(4, 17, 1);
    const double loss = Good(without, SHD_WORK_FORWARD, &batch).loss;
    EXPECT_EQ(loss, Good(with, SHD_WORK_FORWARD, &batch).loss);
    EXPECT_NE(loss, Good(with, SHD_WORK_FORWARD_BACKWARD, &batch).loss);
    EXPECT_EQ(loss, Good(without, SHD_WORK_FORWARD_BACKWARD, &batch).loss);
}

} // namespace
