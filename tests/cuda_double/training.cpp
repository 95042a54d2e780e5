// device::Cuda under a whole training, over the double of the CUDA runtime: what it computes, in
// what order, and what happens when calls fail or are left out.
#include "support/enqueued.hpp"
#include "support/net.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace {

using gpipe::Adam;
using gpipe::device::Cuda;
using toy::Backward;
using toy::Enqueued;
using toy::Watched;

using Real = float;
constexpr std::uint64_t seed = 7;

template <class L> using Layer = Watched<Enqueued<L>>;
using Net = gpipe::Pipeline<Layer<toy::Linear<Real, 5, 6>>, Layer<toy::Tanh<Real, 6>>,
                            Layer<toy::Saver<Real, 6>>, Layer<toy::Tag<Real, 6>>,
                            Layer<toy::Carry<Real, 6>>, Layer<toy::Untag<Real, 6>>,
                            Layer<toy::Square<Real, 6>>, Layer<toy::Dropout<Real, 6>>,
                            Layer<toy::Scale<Real, 6>>, Layer<toy::StrictLinear<Real, 6, 3>>>;
constexpr std::size_t L = Net::size;
using Loss = toy::EnqueuedLoss<toy::MeanSquare<Real, 3>>;
using Train = toy::Training<Net, Loss, Adam, Cuda>;
using Plain = toy::Plain<Real>;

template <class T> Layer<T> layer(toy::Watch& watch, T values = {}) {
    return Layer<T>(watch, Enqueued<T>(values));
}
Net make_net(toy::Watch& watch) {
    return Net(layer<toy::Linear<Real, 5, 6>>(watch), layer<toy::Tanh<Real, 6>>(watch),
               layer<toy::Saver<Real, 6>>(watch), layer<toy::Tag<Real, 6>>(watch),
               layer<toy::Carry<Real, 6>>(watch), layer<toy::Untag<Real, 6>>(watch),
               layer<toy::Square<Real, 6>>(watch), layer<toy::Dropout<Real, 6>>(watch),
               layer<toy::Scale<Real, 6>>(watch, {Real(1.5)}),
               layer<toy::StrictLinear<Real, 6, 3>>(watch));
}

Train::Options options(std::size_t samples, std::size_t cells, std::size_t micro_batches,
                       std::size_t gpus) {
    Train::Options o;
    o.samples = samples;
    o.seed = seed;
    o.cells = cells;
    o.micro_batches = micro_batches;
    for (std::size_t k = 0; k < cells; ++k) o.device.gpus.push_back(static_cast<int>(k % gpus));
    return o;
}

// Parameters and mean gradients, tensor by tensor.
template <class Read> std::vector<Real> state_of(Read read) {
    std::vector<Real> all;
    for (std::size_t layer = 0; layer < L; ++layer) {
        auto const& sizes = Net::leaf_info[layer].parameters;
        for (std::size_t t = 0; t < sizes.count; ++t)
            for (bool gradient : {false, true}) {
                std::vector<Real> values(sizes.bytes[t] / sizeof(Real));
                read(layer, t, gradient, std::span(values));
                all.insert(all.end(), values.begin(), values.end());
            }
    }
    return all;
}
std::vector<Real> state_of(Train& train) {
    return state_of([&](std::size_t layer, std::size_t t, bool gradient, std::span<Real> to) {
        gradient ? train.read_gradient(layer, t, to) : train.read_parameter(layer, t, to);
    });
}

// What the same net on the host gives after three steps of these sizes.
struct Expected {
    std::vector<std::size_t> sizes;
    std::vector<double> losses;
    std::vector<Real> state;
    double evaluated = 0;
    std::vector<Real> predicted;

    Expected(std::size_t micro_batches, gpipe::schedule::Dynamic schedule,
             std::vector<std::size_t> batches)
        : sizes(std::move(batches)), predicted(8 * 3) {
        using Host = gpipe::device::Host;
        toy::Train<Real, Host>::Options o;
        o.samples = 8;
        o.seed = seed;
        o.cells = 1;
        o.micro_batches = micro_batches;
        o.schedule = schedule;
        toy::Watch watch;
        toy::Train<Real, Host> train(toy::make_net<Real>(watch), {}, Adam{1e-2f}, o);
        for (std::size_t i = 0; i < sizes.size(); ++i) {
            toy::Data<Real> const data(sizes[i], static_cast<std::uint32_t>(i));
            losses.push_back(train.step(data.inputs, data.targets).loss);
        }
        state = state_of([&](std::size_t layer, std::size_t t, bool gradient, std::span<Real> to) {
            gradient ? train.read_gradient(layer, t, to) : train.read_parameter(layer, t, to);
        });
        toy::Data<Real> const data(8, 9);
        evaluated = train.evaluate(data.inputs, data.targets).loss;
        train.predict(data.inputs, predicted);
    }

    // The first thing that is otherwise; empty if nothing.
    std::string differs(Train& train) const {
        for (std::size_t i = 0; i < sizes.size(); ++i) {
            toy::Data<Real> const data(sizes[i], static_cast<std::uint32_t>(i));
            if (train.step(data.inputs, data.targets).loss != losses[i])
                return "the loss of step " + std::to_string(i);
        }
        if (state_of(train) != state) return "parameters or gradients";
        toy::Data<Real> const data(8, 9);
        if (train.evaluate(data.inputs, data.targets).loss != evaluated) return "an evaluation";
        std::vector<Real> outputs(predicted.size());
        train.predict(data.inputs, outputs);
        return outputs == predicted ? "" : "a prediction";
    }
};

} // namespace

TEST_CASE("P1 on streams of one to four GPUs a training gives what it gives on the host, in any "
          "order that streams and events allow, and nothing races") {
    for (std::size_t micro_batches : {1, 2, 3, 8}) {
        for (toy::NamedSchedule const& schedule : toy::schedules) {
            Expected const expected(micro_batches, schedule.policy, {8, 7, 1});
            for (toy::NamedCheckpointing const& checkpointing : toy::checkpointings)
                for (std::size_t cells = 1; cells <= 4; ++cells)
                    for (std::size_t gpus = 1; gpus <= cells; ++gpus) {
                        std::uint64_t const order = (cells + gpus + micro_batches) % 4;
                        cuda_double::Session session(
                            {.devices = static_cast<int>(gpus), .seed = order});
                        auto o = options(8, cells, micro_batches, gpus);
                        o.schedule = schedule.policy;
                        o.checkpointing = checkpointing.policy;
                        toy::Watch watch;
                        Train train(make_net(watch), {}, Adam{1e-2f}, o);
                        INFO(schedule.name, ", ", checkpointing.name, ", K = ", cells,
                             ", M = ", micro_batches, ", ", gpus, " GPUs, order ", order);
                        CHECK(expected.differs(train) == "");
                        CHECK(cuda_double::races() == std::vector<std::string>{});
                    }
        }
    }
}
