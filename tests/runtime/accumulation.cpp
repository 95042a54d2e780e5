// Gradient accumulation: parts of a mini-batch that are one step. On streams:
// cuda_double/buffers.cpp; over ranks and replicas: ranks.cpp, replicas.cpp.
#include "support/buffer_layers.hpp"
#include "support/skip_layers.hpp"
#include "support/ways.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

namespace {

using gpipe::Adam;
using gpipe::device::Host;
using toy::Backward;
using toy::Remote;
using Real = float;

using Loss = toy::MeanSquare<Real, 3>;
template <class Net, class Device> using Train = toy::Training<Net, Loss, Adam, Device>;
template <class Net> using Plain = toy::Reference<Net, Loss, Adam>;
constexpr std::size_t micro_batches = 4;

/// The samples of a mini-batch, cut into parts.
struct Parts {
    toy::Data<Real> whole;
    std::vector<toy::Data<Real>> parts;

    explicit Parts(std::vector<std::size_t> const& sizes, std::uint32_t seed)
        : whole(sum(sizes), seed) {
        std::size_t first = 0;
        for (std::size_t const size : sizes) {
            toy::Data<Real> part(0);
            auto const take = [&](std::vector<Real> const& from, std::size_t each) {
                auto const begin = from.begin() + static_cast<std::ptrdiff_t>(first * each);
                return std::vector<Real>(begin, begin + static_cast<std::ptrdiff_t>(size * each));
            };
            part.inputs = take(whole.inputs, 5);
            part.targets = take(whole.targets, 3);
            parts.push_back(std::move(part));
            first += size;
        }
    }
    /// All but the last one; then the step with that.
    template <class T> double train(T& with) const {
        for (std::size_t p = 0; p + 1 < parts.size(); ++p)
            with.accumulate(parts[p].inputs, parts[p].targets);
        auto const result = with.step(parts.back().inputs, parts.back().targets);
        return static_cast<double>(result);
    }
    static std::size_t sum(std::vector<std::size_t> const& sizes) {
        std::size_t all = 0;
        for (std::size_t const size : sizes) all += size;
        return all;
    }
};
/// Equal ones; then others, of which one leaves a micro-batch empty; then none.
std::vector<Parts> const& mini_batches() {
    static std::vector<Parts> const all{Parts({8, 8, 8}, 1), Parts({8, 3, 5}, 2), Parts({7}, 3)};
    return all;
}

template <class Net> struct Expected {
    Plain<Net> plain;
    std::vector<double> losses;

    explicit Expected(Backward order) : plain(Net{}, {}, Adam{1e-2f}, 7, micro_batches, order) {
        for (Parts const& parts : mini_batches()) losses.push_back(parts.train(plain));
    }
    template <class T> std::string differs(T& train) {
        for (std::size_t i = 0; i < losses.size(); ++i) {
            Parts const& parts = mini_batches()[i];
            for (std::size_t p = 0; p + 1 < parts.parts.size(); ++p) {
                train.accumulate(parts.parts[p].inputs, parts.parts[p].targets);
                (void)train.evaluate(parts.whole.inputs, parts.whole.targets);
            }
            if (train.steps() != i) return "a part counts as a step";
            auto const& last = parts.parts.back();
            if (train.step(last.inputs, last.targets).loss != losses[i])
                return "the loss of step " + std::to_string(i);
        }
        return toy::difference(train, plain);
    }
};

template <class T> typename T::Options options(std::size_t devices, std::size_t m = micro_batches) {
    typename T::Options o;
    o.samples = m == micro_batches ? 8 : 24;
    o.seed = 7;
    o.cells = devices;
    o.micro_batches = m;
    return o;
}

template <class Net, class Device> void sweep(std::size_t one_in) {
    using T = Train<Net, Device>;
    Expected<Net> descending(Backward::descending), ascending(Backward::ascending);
    toy::each_training<Device>(
        4, Net::size, micro_batches, one_in, [&](toy::Way<Device> const& way) {
            auto o = way.chosen(options<T>(way.cells));
            o.debug = way.number % 4 == 0;
            T train(Net{}, {}, Adam{1e-2f}, o);
            CHECK((way.descends() ? descending : ascending).differs(train) == "");
            CHECK(train.used_bytes() == train.planned_bytes());
        });
}

/// A layer that throws when it is told to, after a while.
struct Throws {
    using Input = gpipe::Tensor<Real, 6>;
    using Output = Input;
    static constexpr gpipe::Reads backward_reads = gpipe::Reads::neither;
    std::atomic<bool>* now = nullptr;

    void forward(auto&, auto x, auto y) const {
        if (now && *now) {
            std::this_thread::sleep_for(std::chrono::milliseconds(3));
            throw std::range_error("now");
        }
        for (std::size_t i = 0; i < x.size(); ++i) y.data()[i] = x.data()[i];
    }
    void backward(auto&, auto dy, auto dx) const {
        for (std::size_t i = 0; i < dy.size(); ++i) dx.data()[i] = dy.data()[i];
    }
};

/// Throws in the last half of a backward, after a while.
struct ThrowsLate : toy::Linear<Real, 6, 3> {
    std::atomic<bool>* now = nullptr;

    void weight_gradient(auto& ctx, auto x, auto dy) const {
        if (now && *now) {
            std::this_thread::sleep_for(std::chrono::milliseconds(10));
            throw std::range_error("now");
        }
        toy::Linear<Real, 6, 3>::weight_gradient(ctx, x, dy);
    }
};

} // namespace

TEST_CASE_TEMPLATE("P1 parts of a mini-batch train as the plain loop over them", Device, Host,
                   Remote) {
    sweep<toy::BufferNet<Real>, Device>(157);
    sweep<toy::SkipNet<Real>, Device>(263);
}

TEST_CASE("P1 parts are one step of all their micro-batches, whatever is done with gradients") {
    using Net = toy::BufferNet<Real>;
    using T = Train<Net, Host>;
    Parts const& parts = mini_batches()[0];
    for (int what = 0; what < 5; ++what) {
        auto few = options<T>(3), all = options<T>(3, 3 * micro_batches);
        for (auto* o : {&few, &all}) {
            o->schedule = gpipe::schedule::OneForwardOneBackward{};
            o->clip_norm = what == 1 ? 1e-3 : 0;
            o->finite_gradients = what == 2;
            if (what == 3) o->frozen = {1, 4};
            if (what == 4) o->loss_scale = gpipe::LossScale::dynamic(1024, 2, 0.5, 2);
        }
        CAPTURE(what);
        T in_parts(Net{}, {}, Adam{1e-2f}, few), whole(Net{}, {}, Adam{1e-2f}, all);
        for (int step = 0; step < 3; ++step) {
            auto const expected = whole.step(parts.whole.inputs, parts.whole.targets);
            for (std::size_t p = 0; p < 2; ++p) {
                in_parts.accumulate(parts.parts[p].inputs, parts.parts[p].targets);
                CHECK(in_parts.accumulated() == 8 * (p + 1));
            }
            auto const result = in_parts.step(parts.parts[2].inputs, parts.parts[2].targets);
            CHECK(in_parts.accumulated() == 0);
            CHECK(result.loss == expected.loss);
            CHECK(result.weight == expected.weight);
            CHECK(result.metric == expected.metric);
            CHECK(result.gradient_norm == expected.gradient_norm);
            CHECK(in_parts.steps() == whole.steps());
        }
        for (std::size_t layer : {0, 4, 8})
            for (std::size_t t = 0; t < whole.tensors(layer); ++t) {
                auto const a = whole.parameter<Real>(layer, t),
                           b = in_parts.parameter<Real>(layer, t);
                CHECK(std::vector<Real>(a.begin(), a.end()) ==
                      std::vector<Real>(b.begin(), b.end()));
            }
    }
}

TEST_CASE("P1 parts with updates that wait for no other device, and steps that overlap") {
    using Net = toy::BufferNet<Real>;
    using Immediate =
        gpipe::Training<Net, gpipe::Cells<gpipe::dynamic>, gpipe::MicroBatches<gpipe::dynamic>,
                        gpipe::Loss<Loss>, gpipe::Optimizer<Adam>, gpipe::schedule::Dynamic,
                        gpipe::checkpoint::Dynamic, gpipe::update::Immediate, Remote>;
    Expected<Net> expected(Backward::ascending);
    for (std::size_t k = 1; k <= 4; ++k)
        for (auto const& run : toy::runs<Remote>())
            for (bool const finite : {false, true}) {
                auto o = options<Immediate>(k);
                o.schedule = gpipe::schedule::OneForwardOneBackward{};
                o.device = run;
                o.finite_gradients = finite;
                Immediate train(Net{}, {}, Adam{1e-2f}, o);
                INFO("K = ", k, ", ", toy::describe(run));
                CHECK(expected.differs(train) == "");
            }
}

TEST_CASE_TEMPLATE("P6 what fails in a part surfaces, and all parts are forgotten", Device, Host,
                   Remote) {
    using Net = gpipe::Pipeline<toy::Linear<Real, 5, 6>, Throws, toy::Linear<Real, 6, 3>>;
    using T = Train<Net, Device>;
    Parts const& parts = mini_batches()[1];
    auto const& [first, second, last] = std::tie(parts.parts[0], parts.parts[1], parts.parts[2]);
    for (bool const throws : {true, false})
        for (std::size_t const fails : {0, 1, 2}) {
            CAPTURE(throws);
            CAPTURE(fails);
            T train(Net{}, {}, Adam{1e-2f}, options<T>(3));
            Plain<Net> plain(Net{}, {}, Adam{1e-2f}, 7, micro_batches, Backward::descending);
            std::atomic<bool> now = false;
            train.template change_layer<1>([&](Throws& layer) { layer.now = &now; });
            toy::Data<Real> broken = last;
            broken.targets[3] = std::numeric_limits<Real>::quiet_NaN();
            auto const all = [&] {
                for (std::size_t p = 0; p < 3; ++p) {
                    now = throws && p == fails;
                    toy::Data<Real> const& data = !throws && p == fails ? broken : parts.parts[p];
                    if (p < 2)
                        train.accumulate(data.inputs, data.targets);
                    else
                        (void)train.step(data.inputs, data.targets);
                }
            };
            for (int step = 0; step < 2; ++step) {
                if (throws)
                    CHECK_THROWS_AS(all(), std::range_error);
                else
                    CHECK_THROWS_AS(all(), std::domain_error);
                CHECK(train.failure().has_value());
                CHECK(train.accumulated() == 0);
                CHECK(train.steps() == static_cast<std::size_t>(step));
                now = false;
                CHECK(parts.train(train) == parts.train(plain));
                CHECK(toy::difference(train, plain) == "");
            }
        }
}

TEST_CASE(
    "P6 likewise where updates wait for no other device, and a part may be under way when the "
    "next begins") {
    using Net = gpipe::Pipeline<toy::Linear<Real, 5, 6>, toy::Linear<Real, 6, 6>, ThrowsLate>;
    using Immediate = gpipe::Training<Net, gpipe::Cells<3>, gpipe::MicroBatches<micro_batches>,
                                      gpipe::Loss<Loss>, gpipe::Optimizer<Adam>,
                                      gpipe::schedule::ZeroBubbleH1, gpipe::update::Immediate>;
    auto const& parts = mini_batches()[0];
    Immediate::Options o;
    o.samples = 8;
    o.seed = 7;
    o.device.threads = 3;
    Immediate train(Net{}, {}, Adam{1e-2f}, o);
    Plain<Net> plain(Net{}, {}, Adam{1e-2f}, 7, micro_batches, Backward::ascending);
    std::atomic<bool> now = false;
    train.change_layer<2>([&](ThrowsLate& layer) { layer.now = &now; });
    for (std::size_t step = 0; step < 3; ++step) {
        now = true;
        auto const all = [&] {
            train.accumulate(parts.parts[0].inputs, parts.parts[0].targets);
            (void)train.step(parts.parts[1].inputs, parts.parts[1].targets);
        };
        CHECK_THROWS_AS(all(), std::range_error);
        CHECK(train.accumulated() == 0);
        CHECK(train.steps() == step);
        now = false;
        CHECK(parts.train(train) == parts.train(plain));
        CHECK(toy::difference(train, plain) == "");
    }
}

TEST_CASE("what has been accumulated is not lost in silence") {
    using Net = toy::BufferNet<Real>;
    using T = Train<Net, Host>;
    T train(Net{}, {}, Adam{1e-2f}, options<T>(2));
    Plain<Net> plain(Net{}, {}, Adam{1e-2f}, 7, micro_batches, Backward::descending);
    auto const& data = mini_batches()[2].whole;
    train.accumulate(data.inputs, data.targets);
    CHECK_THROWS_WITH_AS(train.compute_gradients(data.inputs, data.targets),
                         "gpipe: gradients of 7 samples are accumulated for the next step: train "
                         "it, or forget_accumulated(), first",
                         std::logic_error);
    CHECK(train.accumulated() == 7);
    train.forget_accumulated();
    CHECK(train.accumulated() == 0);
    (void)train.compute_gradients(data.inputs, data.targets);
    CHECK(train.step(data.inputs, data.targets).loss == plain.step(data.inputs, data.targets));
    CHECK(toy::difference(train, plain) == "");
    toy::Data<Real> const many(9);
    CHECK_THROWS_AS(train.accumulate(many.inputs, many.targets), std::invalid_argument);
}
