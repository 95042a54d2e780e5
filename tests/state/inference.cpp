// An Inference of what a training has saved.
#include "support/buffer_layers.hpp"
#include "support/folder.hpp"
#include "support/net.hpp"
#include "support/ranks.hpp"
#include "support/skip_layers.hpp"

#include <gpipe/inference.hpp>
#include <gpipe/state/state.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace {

using gpipe::StateError;
using Host = gpipe::device::Host;
using toy::Folder;
using Real = float;
using Loss = toy::MeanSquare<Real, 3>;

template <class Net, class Device = Host>
using Inference = gpipe::Inference<Net, gpipe::Cells<gpipe::dynamic>,
                                   gpipe::MicroBatches<gpipe::dynamic>, Device>;
template <class Net, class Optimizer = gpipe::Adam>
using Train = toy::Training<Net, Loss, Optimizer, Host>;

template <class T> typename T::Options options(std::size_t cells, std::uint64_t seed) {
    typename T::Options o;
    o.samples = 8;
    o.seed = seed;
    o.cells = cells;
    o.micro_batches = 4;
    return o;
}
template <class T> std::vector<Real> predicted(T& model, std::vector<Real> const& inputs) {
    std::vector<Real> outputs(inputs.size() / 5 * 3);
    model.predict(inputs, outputs);
    return outputs;
}
std::string error_of(auto action) {
    try {
        action();
        return {};
    } catch (StateError const& error) {
        return error.what();
    }
}
bool has(std::string const& text, std::string const& words) {
    return text.find(words) != std::string::npos;
}

// Saved by a training of any K, schedule and checkpointing, with some layers frozen.
template <class Net, class Optimizer> void goes_on(Optimizer optimizer) {
    Folder const folder;
    toy::Data<Real> const data(8), many(21, 5);
    std::size_t point = 0;
    for (std::size_t const saved_at : {1, 2, 4})
        for (toy::NamedSchedule const& schedule : toy::schedules)
            for (toy::NamedCheckpointing const& checkpointing : toy::every_checkpointing()) {
                if (point++ % toy::one_of(41) != 0) continue;
                INFO("saved at K = ", saved_at, ", ", schedule.name, ", ", checkpointing.name);
                using T = Train<Net, Optimizer>;
                auto o = options<T>(saved_at, 3);
                o.schedule = schedule.policy;
                o.checkpointing = checkpointing.policy;
                if (Net::ties.size() == 0) o.frozen = {4};
                T train(Net{}, {}, optimizer, o);
                for (int i = 0; i < 3; ++i) train.step(data.inputs, data.targets);
                gpipe::save(train, folder / "s", {{"position", "12"}});
                auto const expected = predicted(train, many.inputs);
                for (std::size_t const k : {1, 3, 5}) {
                    using I = Inference<Net>;
                    auto own = options<I>(k, 77);
                    own.device.threads = k;
                    I inference(Net{}, own);
                    CHECK(predicted(inference, many.inputs) != expected);
                    auto const state = gpipe::load(inference, folder / "s");
                    CHECK(predicted(inference, many.inputs) == expected);
                    CHECK(state.metadata == gpipe::StateMetadata{{"position", "12"}});
                    CHECK(inference.steps() == 3);
                    CHECK(inference.seed() == 3);
                }
            }
}

} // namespace

TEST_CASE("an inference of any K gives what the training predicted that saved its state, under any "
          "policies and optimizer") {
    goes_on<toy::BufferNet<Real>>(gpipe::Adam{1e-2f});
    goes_on<toy::BufferNet<Real>>(gpipe::SGD{.learning_rate = 1e-2f});
    goes_on<toy::SkipNet<Real>>(gpipe::RMSProp{});
}

TEST_CASE("each rank of an inference loads what it has, ties on several, too") {
    Folder const folder;
    using Net = toy::SkipNet<Real>;
    using I = Inference<Net, toy::Rank>;
    Train<Net> train(Net{}, {}, gpipe::Adam{1e-2f}, options<Train<Net>>(2, 3));
    toy::Data<Real> const data(8), many(21, 5);
    train.step(data.inputs, data.targets);
    gpipe::save(train, folder / "s");
    for (std::vector<std::size_t> const& devices :
         {std::vector<std::size_t>{1, 1}, {2, 1}, {1, 1, 1}}) {
        std::size_t k = 0;
        for (std::size_t const d : devices) k += d;
        toy::Crew<I> all(devices, true, 1, [&](std::size_t, toy::Rank::Options device) {
            auto o = options<I>(k, 9);
            o.device = device;
            return std::make_unique<I>(Net{}, o);
        });
        all.each([&](std::size_t r) { gpipe::load(all[r], folder / "s"); });
        all.rethrow();
        std::vector<Real> found(21 * 3), other(21 * 3);
        all.each([&](std::size_t r) {
            all[r].predict(many.inputs, r + 1 == all.ranks() ? found : other);
        });
        all.rethrow();
        CHECK(found == predicted(train, many.inputs));
    }
}

TEST_CASE(
    "what does not fit an inference is in one error, and nothing is loaded; a part of a state "
    "may be") {
    Folder const folder;
    using Net =
        gpipe::Pipeline<toy::Linear<Real, 5, 6>, toy::Tanh<Real, 6>, toy::Linear<Real, 6, 3>>;
    using Other = gpipe::Pipeline<toy::Linear<Real, 5, 4>, toy::Tanh<Real, 4>,
                                  toy::Linear<Real, 4, 3>, toy::Linear<Real, 3, 3>>;
    Train<Net> train(Net{}, {}, gpipe::Adam{1e-2f}, options<Train<Net>>(2, 3));
    toy::Data<Real> const data(8);
    train.step(data.inputs, data.targets);
    gpipe::save(train, folder / "s");
    Inference<Other> other(Other{}, options<Inference<Other>>(2, 3));
    auto const before = predicted(other, data.inputs);
    std::string const error = error_of([&] { gpipe::load(other, folder / "s"); });
    for (char const* words :
         {"/s does not fit this inference:", "\n  layer.0000.0 is F32[6, 5], not F32[4, 5]",
          "\n  missing: layer.0003.0 F32[3, 3]", "\n  it had 3 layers, not 4",
          "\n  layer 1 was \"Tanh F32[6] -> F32[6]\", not \"Tanh F32[4] -> F32[4]\""}) {
        INFO(error, "\n", words);
        CHECK(has(error, words));
    }
    CHECK(!has(error, "optimizer"));
    CHECK(predicted(other, data.inputs) == before);
    CHECK(other.steps() == 0);

    Inference<Net> part(Net{}, options<Inference<Net>>(3, 9));
    std::vector<Real> const head(part.parameter<Real>(2, 0).begin(),
                                 part.parameter<Real>(2, 0).end());
    gpipe::load(part, folder / "s", {.except = {"layer.0002.", "optimizer."}});
    std::vector<Real> there(30), here(30);
    train.read_parameter(0, 0, std::span(there));
    part.read_parameter(0, 0, std::span(here));
    CHECK(here == there);
    CHECK(std::vector<Real>(part.parameter<Real>(2, 0).begin(), part.parameter<Real>(2, 0).end()) ==
          head);
    CHECK(part.seed() == 9);
}
