// Elements of 16 bits, a user's own: they and their gradients cross boundaries, and what is trained
// is bitwise the same wherever the chain is cut.
#include <gpipe/layers/batch_norm.hpp>
#include <support/brief.hpp>
#include <support/net.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <random>
#include <vector>

static_assert(gpipe::TensorGroup<gpipe::Tensor<toy::Brief, 7>>::gradient_bytes[0] == 14);

namespace {

using toy::Brief, toy::Dense;
using Squares = toy::BriefSquares<3>;

using Net = gpipe::Pipeline<Dense<float, 5, 7>, Dense<Brief, 7, 7>,
                            gpipe::BatchNorm<gpipe::Tensor<Brief, 7>>, Dense<Brief, 7, 9>,
                            Dense<Brief, 9, 3>>;

constexpr std::size_t samples = 11;

template <class Device>
std::vector<float> trained(std::size_t cells, std::size_t micro_batches,
                           toy::NamedSchedule const& schedule,
                           toy::NamedCheckpointing const& checkpointing,
                           typename Device::Options device, gpipe::LossScale scale = {}) {
    using Train = toy::Training<Net, Squares, gpipe::SGD, Device>;
    typename Train::Options o;
    o.samples = samples;
    o.cells = cells;
    o.micro_batches = micro_batches;
    o.schedule = schedule.policy;
    o.checkpointing = checkpointing.policy;
    o.device = device;
    o.loss_scale = scale;
    Train train(Net{}, {}, {.learning_rate = 0.5f}, o);
    std::mt19937 random(3);
    std::uniform_real_distribution<float> uniform(-1, 1);
    std::vector<float> x(samples * 5), target(samples * 3);
    for (float& value : x) value = uniform(random);
    for (float& value : target) value = uniform(random);
    std::vector<float> values;
    for (int step = 0; step < 4; ++step) values.push_back(train.step(x, target));
    for (std::size_t layer = 0; layer < Net::size; ++layer) {
        auto const w = train.template parameter<float>(layer, 0);
        values.insert(values.end(), w.begin(), w.end());
    }
    std::vector<Brief> y(samples * 3);
    train.predict(x, y);
    values.insert(values.end(), y.begin(), y.end());
    return values;
}

} // namespace

TEST_CASE("P1 M2 elements of 16 bits give the same for every cut, schedule and checkpointing") {
    using gpipe::device::Host;
    for (toy::NamedSchedule const& schedule : toy::schedules)
        for (std::size_t micro_batches : {1, 3, 4}) {
            auto const expected =
                trained<Host>(1, micro_batches, schedule, toy::checkpointings[0], {1});
            CHECK(expected[3] < 0.8f * expected[0]); // it learns
            for (toy::NamedCheckpointing const& checkpointing : toy::checkpointings)
                for (std::size_t cells = 1; cells <= 4; ++cells) {
                    INFO(schedule.name, ", ", checkpointing.name, ", K = ", cells,
                         ", M = ", micro_batches);
                    CHECK(trained<Host>(cells, micro_batches, schedule, checkpointing, {2}) ==
                          expected);
                    CHECK(trained<Host>(cells, micro_batches, schedule, checkpointing, {2},
                                        gpipe::LossScale::dynamic(64, 2, 0.5, 2)) == expected);
                    CHECK(trained<toy::Deferred>(cells, micro_batches, schedule, checkpointing,
                                                 {cells}) == expected);
                }
        }
}
