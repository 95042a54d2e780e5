#include <support/brief.hpp>
#include <support/faulty.hpp>
#include <support/net.hpp>
#include <support/skip_layers.hpp>

#include <gpipe/check_gradients.hpp>
#include <gpipe/layers/batch_norm.hpp>

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace {

using toy::Brief, toy::Faulty, toy::GradientFault;

/// Every layer of support/layers.hpp.
template <class T>
using Net =
    gpipe::Pipeline<Faulty<toy::Embedding<T, 5, 5>>, Faulty<toy::Linear<T, 5, 6>>,
                    Faulty<toy::Tanh<T, 6>>, Faulty<toy::Saver<T, 6>>,
                    Faulty<toy::Saver<T, 6, true>>, Faulty<toy::Tag<T, 6>>,
                    Faulty<toy::Carry<T, 6>>, Faulty<toy::Untag<T, 6>>, Faulty<toy::Square<T, 6>>,
                    Faulty<toy::Dropout<T, 6>>, Faulty<toy::Softsign<T, 6>>,
                    Faulty<toy::Scale<T, 6>>, Faulty<toy::StrictLinear<T, 6, 3>>>;
template <class T> using FloatLoss = toy::FaultyLoss<toy::MeanSquare<T, 3>>;
template <class T> using ClassLoss = toy::FaultyLoss<toy::CrossEntropy<T, 3>>;
template <class T, class Loss>
using Train = gpipe::Training<Net<T>, gpipe::Cells<3>, gpipe::MicroBatches<2>, gpipe::Loss<Loss>,
                              gpipe::Optimizer<gpipe::AdamW>>;

std::vector<std::int32_t> const tokens{4, 0, 2, 4, 1, 3};
template <class T> std::vector<T> const values = toy::numbers<T>(6 * 3, 5);
std::vector<std::int32_t> const classes{2, 0, -1, 1, 1, 0};

/// Checks the gradients of a net with one fault, in layer `faulty` (L: the loss).
template <class T, class Loss>
gpipe::GradientReport report(std::size_t faulty, GradientFault fault, auto const& targets) {
    Net<T> net;
    std::size_t layer = 0;
    for (void const* object : net.leaf_objects())
        if (layer++ == faulty) [&]<std::size_t... Is>(std::index_sequence<Is...>) {
                ((Is == faulty ? void(static_cast<typename Net<T>::template Layer<Is>*>(
                                          const_cast<void*>(object))
                                          ->fault = fault)
                               : void()),
                 ...);
            }
    (std::make_index_sequence<Net<T>::size>{});
    Loss loss;
    if (faulty == Net<T>::size) loss.fault = fault;
    Train<T, Loss> train(net, loss, {}, {.samples = 6, .seed = 3});
    train.step(tokens, targets);
    return gpipe::check_gradients(train, tokens, targets);
}

template <class T, class Loss> void find_faults(std::size_t layer, auto const& targets) {
    for (std::size_t f = 0; f < toy::fault_count; ++f) {
        auto const fault = static_cast<GradientFault>(f);
        gpipe::GradientReport const found = report<T, Loss>(layer, fault, targets);
        INFO("fault: ", std::string(toy::fault_names[f]), " in layer ", layer, "\n", found);
        std::size_t expected = 0;
        for (gpipe::GradientRow const& row : found.rows) {
            bool const can_have = row.layer == layer && f > 0 &&
                                  (fault != GradientFault::set || row.tensor[0] == 'p');
            CAPTURE(row.layer);
            CAPTURE(row.tensor);
            CHECK(row.fault.empty() != can_have);
            expected += can_have;
            if (can_have && fault == GradientFault::forgotten)
                CHECK(row.fault == (row.tensor[0] == 'i'
                                        ? "backward does not write it, or reads what is unwritten"
                                        : "backward does not add to it"));
            if (can_have && fault == GradientFault::set)
                CHECK(row.fault == "backward does not add to it");
        }
        CHECK(found.faults() == expected);
    }
}

/// max(x, 0), and where x is 0 the slope of the other side.
template <class T, std::size_t N> struct Ramp {
    using Input = gpipe::Tensor<T, N>;
    using Output = gpipe::Tensor<T, N>;
    bool steep = false; ///< gives no gradient at all

    void forward(auto&, auto x, auto y) const {
        for (std::size_t i = 0; i < x.size(); ++i)
            y.data()[i] = x.data()[i] > 0 ? x.data()[i] : T(0);
    }
    void backward(auto&, auto x, auto dy, auto dx) const {
        for (std::size_t i = 0; i < x.size(); ++i)
            dx.data()[i] = x.data()[i] >= 0 && !steep ? dy.data()[i] : T(0);
    }
};
/// y = W x, whose backward takes W for its own transpose.
template <class T, std::size_t N> struct Transposed : toy::Linear<T, N, N> {
    void backward(auto& ctx, auto x, auto dy, auto dx) const {
        this->weight_gradient(ctx, x, dy);
        input_gradient(ctx, x, dy, dx);
    }
    void input_gradient(auto& ctx, auto, auto dy, auto dx) const {
        auto [w, b] = ctx.parameters();
        for (std::size_t s = 0; s < dy.samples(); ++s)
            for (std::size_t i = 0; i < N; ++i) {
                T sum = 0;
                for (std::size_t o = 0; o < N; ++o) sum += w(i, o) * dy(s, o);
                if constexpr (!gpipe::is_none<decltype(dx)>) dx(s, i) = sum;
            }
    }
};
/// x minus its mean: the gradient of a shift of x is nothing but what is rounded.
template <class T, std::size_t N> struct Centred {
    using Input = gpipe::Tensor<T, N>;
    using Output = gpipe::Tensor<T, N>;
    using Parameters = gpipe::Tensor<T, 1>; // the shift

    void initialize(auto& ctx) const { ctx.parameters()[0] = T(0.3); }
    void forward(auto& ctx, auto x, auto y) const {
        for (std::size_t s = 0; s < x.samples(); ++s) {
            T sum = 0;
            for (std::size_t i = 0; i < N; ++i) sum += y(s, i) = x(s, i) + ctx.parameters()[0];
            for (std::size_t i = 0; i < N; ++i) y(s, i) -= sum / T(N);
        }
    }
    void backward(auto& ctx, auto x, auto dy, auto dx) const {
        for (std::size_t s = 0; s < x.samples(); ++s) {
            T sum = 0;
            for (std::size_t i = 0; i < N; ++i) sum += dy(s, i);
            for (std::size_t i = 0; i < N; ++i) {
                dx(s, i) = dy(s, i) - sum / T(N);
                ctx.gradients()[0] += dx(s, i);
            }
        }
    }
};
/// Logarithms: no numbers of what is negative.
template <class T, std::size_t N> struct Logarithm {
    using Input = gpipe::Tensor<T, N>;
    using Output = gpipe::Tensor<T, N>;
    void forward(auto&, auto x, auto y) const {
        for (std::size_t i = 0; i < x.size(); ++i) y.data()[i] = std::log(x.data()[i]);
    }
    void backward(auto&, auto x, auto dy, auto dx) const {
        for (std::size_t i = 0; i < x.size(); ++i) dx.data()[i] = dy.data()[i] / x.data()[i];
    }
};
/// 3 x, whose backward gives nothing for what is larger than a number.
template <class T, std::size_t N> struct Forgets {
    using Input = gpipe::Tensor<T, N>;
    using Output = gpipe::Tensor<T, N>;
    T from = 0;

    void forward(auto&, auto x, auto y) const {
        for (std::size_t i = 0; i < x.size(); ++i) y.data()[i] = 3 * x.data()[i];
    }
    void backward(auto&, auto x, auto dy, auto dx) const {
        for (std::size_t i = 0; i < x.size(); ++i)
            dx.data()[i] = x.data()[i] > from ? T(0) : 3 * dy.data()[i];
    }
};
/// tanh(x), of an x that is rounded as it is beside a large number.
template <class T, std::size_t N> struct Rough {
    using Input = gpipe::Tensor<T, N>;
    using Output = gpipe::Tensor<T, N>;
    T big = 0;
    T factor = 1; ///< that its gradient is wrong by

    void forward(auto&, auto x, auto y) const {
        for (std::size_t i = 0; i < x.size(); ++i) {
            T volatile const sum = x.data()[i] + big; // no compiler takes it away again
            y.data()[i] = std::tanh(sum - big);
        }
    }
    void backward(auto&, auto x, auto dy, auto dx) const {
        for (std::size_t i = 0; i < x.size(); ++i) {
            T const y = std::tanh(x.data()[i]);
            dx.data()[i] = factor * (1 - y * y) * dy.data()[i];
        }
    }
};
template <class T, class Loss, class... Layers>
gpipe::GradientReport report_of(std::vector<T> const& inputs, std::size_t samples,
                                Layers... layers) {
    using Net = gpipe::Pipeline<Layers...>;
    gpipe::Training<Net, gpipe::Cells<1>, gpipe::MicroBatches<1>, gpipe::Loss<Loss>> train(
        Net(layers...), {}, {}, {.samples = samples, .seed = 3});
    std::vector<T> const targets = toy::numbers<T>(samples * Net::Output::size, 9);
    return gpipe::check_gradients(train, inputs, targets);
}
gpipe::GradientRow const& row_of(gpipe::GradientReport const& report, std::size_t layer,
                                 std::string const& tensor) {
    for (gpipe::GradientRow const& row : report.rows)
        if (row.layer == layer && row.tensor == tensor) return row;
    throw std::logic_error("there is no such row");
}

} // namespace

TEST_CASE_TEMPLATE("every fault in a gradient is found in the layer that has it, and no other", T,
                   float, double) {
    std::size_t point = 0;
    for (std::size_t layer = 0; layer < Net<T>::size; ++layer)
        if (!toy::left_out(point, 7)) find_faults<T, FloatLoss<T>>(layer, values<T>);
    find_faults<T, FloatLoss<T>>(Net<T>::size, values<T>);
    find_faults<T, ClassLoss<T>>(Net<T>::size, classes);
}

TEST_CASE_TEMPLATE("no gradient that is right is called wrong, whatever the numbers", T, float,
                   double) {
    std::size_t checked = 0, left_out = 0;
    for (std::uint32_t seed = 0; seed < 4 * 400 / toy::one_of(20); ++seed) {
        toy::Watch watch;
        typename toy::Train<T, gpipe::device::Host>::Options options;
        options.samples = 8;
        options.seed = seed;
        options.cells = options.micro_batches = 2;
        toy::Train<T, gpipe::device::Host> train(toy::make_net<T>(watch), {}, gpipe::Adam{},
                                                 options);
        toy::Data<T> const data(8, seed);
        train.step(data.inputs, data.targets);
        auto const report =
            gpipe::check_gradients(train, data.inputs, data.targets, {.seed = seed});
        INFO("seed ", seed, "\n", report);
        CHECK(report.passed());
        CHECK(report.rows.size() == 17);
        for (gpipe::GradientRow const& row : report.rows) {
            checked += row.checked;
            left_out += row.left_out;
            CHECK(row.checked > 0);
        }
    }
    MESSAGE(checked, " checked, ", left_out, " left out");
    CHECK(left_out * 50 < checked);
}

TEST_CASE_TEMPLATE("a check leaves the training as it was, and the training trains on as without",
                   T, float, double) {
    auto const all_bytes = [](auto& train) {
        std::vector<std::vector<std::byte>> bytes;
        for (std::size_t d = 0; d < train.devices(); ++d)
            bytes.emplace_back(train.arena(d).begin(), train.arena(d).end());
        return bytes;
    };
    auto const make = [] {
        return std::make_unique<Train<T, FloatLoss<T>>>(
            Net<T>{}, FloatLoss<T>{}, gpipe::AdamW{},
            typename Train<T, FloatLoss<T>>::Options{.samples = 6, .seed = 3});
    };
    auto const train = make();
    auto const other = make();
    for (int i = 0; i < 3; ++i) {
        train->step(tokens, values<T>);
        other->step(tokens, values<T>);
        auto const before = all_bytes(*train);
        CHECK(gpipe::check_gradients(*train, tokens, values<T>).passed());
        CHECK(all_bytes(*train) == before);
        CHECK(train->steps() == other->steps());
    }
    CHECK(train->step(tokens, values<T>).loss == other->step(tokens, values<T>).loss);
    CHECK(all_bytes(*train) == all_bytes(*other));
}

TEST_CASE_TEMPLATE("entries at a kink are left out, and the others are not", T, float, double) {
    std::vector<T> inputs{1, -1, 0, T(1e-9), 2, T(-1e-4), 3, -2, 0, 1, 1, -1};
    auto const right = report_of<T, toy::MeanSquare<T, 4>>(inputs, 3, Ramp<T, 4>{});
    INFO(right);
    CHECK(right.passed());
    CHECK(row_of(right, 0, "input 0").left_out >= 3);
    CHECK(row_of(right, 0, "input 0").checked >= 8);
    CHECK_FALSE(report_of<T, toy::MeanSquare<T, 4>>(inputs, 3, Ramp<T, 4>{true}).passed());
}

TEST_CASE_TEMPLATE("a sample of which every entry is at a kink is left out, and no fault", T, float,
                   double) {
    using Layer = Ramp<T, 24>;
    gpipe::Training<gpipe::Pipeline<Layer>, gpipe::MicroBatches<1>,
                    gpipe::Loss<toy::MeanSquare<T, 24>>>
        train({}, {}, {}, {.samples = 3, .seed = 3});
    for (std::uint32_t seed = 0; seed < (toy::sanitized ? 10 : 100); ++seed) {
        std::vector<T> inputs = toy::numbers<T>(72, seed);
        std::fill(inputs.begin() + 48, inputs.end(), T{});
        auto const report =
            gpipe::check_gradients(train, inputs, toy::numbers<T>(72, 9), {.seed = seed});
        INFO(report);
        CHECK(report.passed());
    }
}

TEST_CASE_TEMPLATE("a norm of channels that are all but constant is not called wrong, and one of "
                   "others is where it is",
                   T, float, double) {
    using Norm = Faulty<gpipe::BatchNorm<gpipe::Tensor<T, 3>>>;
    std::size_t point = 0;
    for (T const constant : {T(0), T(0.1), T(1), T(10), T(1000)})
        for (T const apart : {T(0), T(1e-4), T(1e-3), T(1e-2), T(0.1)})
            for (std::size_t channels = 1; channels <= 3; ++channels) {
                if (toy::left_out(point, 7)) continue;
                std::vector<T> inputs = toy::numbers<T>(9, 4);
                for (std::size_t i = 0; i < 9; ++i)
                    if (i % 3 < channels) inputs[i] = constant + apart * T(i / 3);
                Norm norm;
                auto const right = report_of<T, toy::MeanSquare<T, 3>>(inputs, 3, norm);
                norm.fault = GradientFault::factor;
                auto const wrong = report_of<T, toy::MeanSquare<T, 3>>(inputs, 3, norm);
                INFO(constant, " and ", apart, " in ", channels, "\n", right, wrong);
                CHECK(right.passed());
                // Beside such as are much larger numbers of 1 are all but equal, too.
                if (channels < 3 && constant <= 1)
                    CHECK_FALSE(row_of(wrong, 0, "input 0").fault.empty());
            }
}

TEST_CASE("of what rounds much more within than its outputs show a wrong factor is found") {
    for (float const big : {1.0f, 100.0f, 1000.0f})
        for (float const factor : {1.0f, 1.2f, 2.0f})
            for (std::uint32_t seed = 0; seed < 5; ++seed) {
                auto const report = report_of<float, toy::MeanSquare<float, 4>>(
                    toy::numbers<float>(20, seed), 5, Rough<float, 4>{big, factor});
                INFO(big, " ", factor, "\n", report);
                CHECK(row_of(report, 0, "input 0").fault.empty() == (factor == 1));
            }
}

TEST_CASE_TEMPLATE(
    "a gradient that is forgotten is found though its entry is too large to move with "
    "the others",
    T, float, double) {
    std::size_t found = 0;
    for (std::uint32_t seed = 0; seed < 10; ++seed) {
        std::vector<T> inputs = toy::numbers<T>(5 * 64, seed);
        inputs[5 * 64 / 2 + 1] = T(1e4);
        auto const report = [&](std::size_t forgets) {
            Forgets<T, 64> layer;
            layer.from = T(forgets);
            using Net = gpipe::Pipeline<Forgets<T, 64>>;
            gpipe::Training<Net, gpipe::Cells<1>, gpipe::MicroBatches<1>,
                            gpipe::Loss<toy::MeanSquare<T, 64>>>
                train(Net(layer), {}, {}, {.samples = 5, .seed = 3});
            std::vector<T> const targets(inputs.size());
            return gpipe::check_gradients(train, inputs, targets, {.entries = 4, .seed = seed});
        };
        CHECK(row_of(report(100000), 0, "input 0").fault.empty());
        found += !row_of(report(1000), 0, "input 0").fault.empty();
    }
    CHECK(found == 10);
}

TEST_CASE("a transposed weight is found") {
    using T = float;
    auto const report = report_of<T, toy::MeanSquare<T, 5>>(
        toy::numbers<T>(20, 1), 4, toy::Linear<T, 5, 5>{}, Transposed<T, 5>{});
    INFO(report);
    CHECK(report.faults() == 1);
    CHECK(row_of(report, 1, "input 0").fault == "backward gives something else");
}

TEST_CASE_TEMPLATE("a slope that is lost in rounding is not called wrong, and said to be unchecked",
                   T, float, double) {
    for (std::uint32_t seed = 0; seed < 50; ++seed) {
        auto const report =
            report_of<T, toy::MeanSquare<T, 9>>(toy::numbers<T>(36, seed), 4, Centred<T, 9>{});
        INFO(report);
        CHECK(report.passed());
        CHECK(report.unchecked() == 1);
        CHECK(row_of(report, 0, "parameter 0").checked == 0);
    }
    auto const words =
        to_string(report_of<T, toy::MeanSquare<T, 9>>(toy::numbers<T>(36, 1), 4, Centred<T, 9>{}));
    CHECK(words.find("  not checked: slopes in doubt\n") != std::string::npos);
    CHECK(words.find("No gradient of 3 tensors is wrong, 1 could not be checked.") !=
          std::string::npos);
}

namespace {

/// Large numbers beside a small slope, of which backward says `factor` times as much.
struct Far {
    using Input = gpipe::Tensor<float, 4>;
    using Output = Input;
    static constexpr auto backward_reads = gpipe::Reads::neither;
    float factor;
    void forward(auto&, auto x, auto y) const {
        for (std::size_t i = 0; i < x.size(); ++i) y.data()[i] = 3e7f + x.data()[i] / 2;
    }
    void backward(auto&, auto dy, auto dx) const {
        for (std::size_t i = 0; i < dy.size(); ++i) dx.data()[i] = factor * dy.data()[i] / 2;
    }
};

} // namespace

namespace {

/// y = x^2, of which backward says what it likes.
struct Square {
    using Input = gpipe::Tensor<double, 1>;
    using Output = Input;
    double factor;
    void forward(auto&, auto x, auto y) const {
        for (std::size_t s = 0; s < x.samples(); ++s) y(s, 0) = x(s, 0) * x(s, 0);
    }
    void backward(auto&, auto x, auto dy, auto dx) const {
        for (std::size_t s = 0; s < x.samples(); ++s) dx(s, 0) = factor * x(s, 0) * dy(s, 0);
    }
};

} // namespace

TEST_CASE("a mini-batch of zeros says nothing of a layer, and the report counts it") {
    std::vector<double> const zeros(4, 0), ones(4, 1);
    for (double const factor : {2.0, -7.0}) {
        auto const blind = report_of<double, toy::MeanSquare<double, 1>>(zeros, 4, Square{factor});
        INFO(blind);
        CHECK(blind.faults() == 0);
        CHECK(blind.unchecked() == 1);
        CHECK_FALSE(row_of(blind, 0, "input 0").seen());
        auto const sees = report_of<double, toy::MeanSquare<double, 1>>(ones, 4, Square{factor});
        CHECK(sees.unchecked() == 0);
        CHECK(sees.passed() == (factor == 2));
    }
}

namespace {

/// The mean over the micro-batch, or the sum; with a weight of 1, or of so many samples.
struct Mean {
    using Target = gpipe::Tensor<double, 1>;
    bool mean = true;
    bool counts = false;
    gpipe::LossValue<> operator()(auto&, auto y, auto target, auto dy) const {
        auto const n = static_cast<double>(y.samples()), over = mean ? n : 1;
        double sum = 0;
        for (std::size_t s = 0; s < y.samples(); ++s) {
            double const off = y(s, 0) - target(s, 0);
            sum += off * off / over;
            dy(s, 0) = 2 * off / over;
        }
        return {sum, counts ? n : 1};
    }
};

} // namespace

TEST_CASE("a loss whose weight is the same for any number of samples is noted, and no fault") {
    using Net = gpipe::Pipeline<toy::Linear<double, 1, 1>>;
    std::vector<double> const x{1, 2, 3, 4}, target{2, 1, 2, 1};
    for (bool const mean : {true, false})
        for (bool const counts : {true, false}) {
            Mean loss;
            loss.mean = mean;
            loss.counts = counts;
            gpipe::Training<Net, gpipe::Cells<1>, gpipe::MicroBatches<1>, gpipe::Loss<Mean>> train(
                {}, loss, {}, {.samples = 4});
            auto const report = gpipe::check_gradients(train, x, target);
            INFO(report);
            CHECK(report.passed());
            gpipe::GradientRow const& row = row_of(report, 1, "input 0");
            CHECK(row.note == (counts ? ""
                                      : "the weight is 1 for 2 samples and for 1: those of smaller "
                                        "micro-batches count more"));
            CHECK(toy::has(to_string(report), "ok, but the weight is 1") == !counts);
            CHECK(row_of(report, 0, "input 0").note == "");
        }
}

TEST_CASE("nor is one checked that changes nothing, though backward says that it is one") {
    for (float const factor : {1.0f, -3.0f}) {
        auto const report =
            report_of<float, toy::MeanSquare<float, 4>>(toy::numbers<float>(16, 3), 4, Far{factor});
        INFO(report);
        CHECK(report.passed());
        CHECK(row_of(report, 0, "input 0").checked == 0);
    }
}

namespace {

/// y = x + b, whose backward gives `factor` times b's gradient.
template <class T> struct Shifted {
    using Input = gpipe::Tensor<T, 4>;
    using Output = Input;
    using Parameters = Input;
    static constexpr auto backward_reads = gpipe::Reads::neither;
    T start = 0, factor = 1;

    void initialize(auto& ctx) const { std::fill_n(ctx.parameters().data(), 4, start); }
    void forward(auto& ctx, auto x, auto y) const {
        for (std::size_t s = 0; s < x.samples(); ++s)
            for (std::size_t i = 0; i < 4; ++i) y(s, i) = x(s, i) + ctx.parameters()[i];
    }
    void backward(auto& ctx, auto dy, auto dx) const {
        for (std::size_t s = 0; s < dy.samples(); ++s)
            for (std::size_t i = 0; i < 4; ++i) {
                ctx.gradients()[i] += factor * dy(s, i);
                dx(s, i) = dy(s, i);
            }
    }
};

template <class Loss, class T>
gpipe::GradientReport report_of_shift(Shifted<T> layer, T scale = 1) {
    std::vector<T> inputs(16);
    for (std::size_t i = 0; i < inputs.size(); ++i) inputs[i] = scale * (1 + T(0.37) * T(i));
    return report_of<T, Loss>(inputs, 4, layer);
}

} // namespace

TEST_CASE_TEMPLATE("parameters that are all but nothing are checked as others are", T, float,
                   double) {
    using Loss = toy::MeanSquare<T, 4>;
    std::vector<double> starts{0, 1};
    for (double start = 1e-30; start < 1e-4; start *= 10) starts.push_back(start);
    std::size_t point = 0;
    for (double const start : starts)
        for (T const factor : {T(1), T(1.2), T(5)}) {
            if (toy::left_out(point, 7)) continue;
            gpipe::GradientReport const report =
                report_of_shift<Loss>(Shifted<T>{T(start), factor});
            INFO(start, "\n", report);
            CHECK(report.faults() == (factor != 1));
            gpipe::GradientRow const& row = row_of(report, 0, "parameter 0");
            CHECK(row.fault.empty() == (factor == 1));
            CHECK(row.checked == 6);
            CHECK(row.left_out == 0);
        }
}

TEST_CASE_TEMPLATE("no gradient is ok by what rounding might do", T, float, double) {
    // The larger the inputs, the less of what the shift does is left of their sum.
    std::size_t checked = 0, left_out = 0;
    for (double scale = 1; scale < 1e20; scale *= 3)
        for (T const factor : {T(1), T(1.2)}) {
            gpipe::GradientReport const report = report_of_shift<toy::MeanSquare<T, 4>>(
                Shifted<T>{T(1e-3), factor}, static_cast<T>(scale));
            INFO(scale, "\n", report);
            gpipe::GradientRow const& row = row_of(report, 0, "parameter 0");
            CHECK((row.fault.empty() || factor != 1));
            CHECK((!row.fault.empty() || row.checked == 0 || factor == 1));
            if (row.fault.empty())
                CHECK(row.error <= 16 * std::sqrt(std::numeric_limits<T>::epsilon()));
            checked += row.checked;
            left_out += row.left_out;
        }
    CHECK(checked > 0);
    CHECK(left_out > 0);
}

namespace {

struct Across;
/// Passes its input on, and stashes it, if it does.
struct Stasher {
    using Input = gpipe::Tensor<float, 3>;
    using Output = Input;
    using Stash = gpipe::Skip<Across, Input>;
    static constexpr auto backward_reads = gpipe::Reads::neither;
    bool stashes;
    void forward(auto& ctx, auto x, auto y) const {
        std::copy_n(x.data(), x.size(), y.data());
        if (stashes) std::copy_n(x.data(), x.size(), gpipe::stash<Across>(ctx).data());
    }
    void backward(auto& ctx, auto dy, auto dx) const {
        auto const more = gpipe::stash_gradient<Across>(ctx);
        for (std::size_t i = 0; i < dy.size(); ++i) dx.data()[i] = dy.data()[i] + more.data()[i];
    }
};
struct Popper {
    using Input = gpipe::Tensor<float, 3>;
    using Output = Input;
    using Pop = gpipe::Skip<Across, Input>;
    static constexpr auto backward_reads = gpipe::Reads::neither;
    void forward(auto& ctx, auto x, auto y) const {
        auto const other = gpipe::pop<Across>(ctx);
        for (std::size_t i = 0; i < x.size(); ++i) y.data()[i] = x.data()[i] + other.data()[i];
    }
    void backward(auto& ctx, auto dy, auto dx) const {
        std::copy_n(dy.data(), dy.size(), dx.data());
        std::copy_n(dy.data(), dy.size(), gpipe::pop_gradient<Across>(ctx).data());
    }
};
/// Its backward writes what is no number.
struct NoNumbers {
    using Input = gpipe::Tensor<float, 3>;
    using Output = Input;
    static constexpr auto backward_reads = gpipe::Reads::neither;
    void forward(auto&, auto x, auto y) const { std::copy_n(x.data(), x.size(), y.data()); }
    void backward(auto&, auto, auto dx) const {
        std::fill_n(dx.data(), dx.size(), std::numeric_limits<float>::quiet_NaN());
    }
};

} // namespace

TEST_CASE("a stash that forward leaves unwritten is told of the layer that stashes") {
    std::vector<float> const x{1, 2, 3, 4, -5, 6, 7, 8, 9};
    using Loss = toy::MeanSquare<float, 3>;
    CHECK(report_of<float, Loss>(x, 3, Stasher{true}, Popper{}).passed());
    auto const report = report_of<float, Loss>(x, 3, Stasher{false}, Popper{});
    INFO(report);
    REQUIRE(report.rows.size() == 1);
    CHECK(report.rows[0].layer == 0);
    CHECK(report.rows[0].fault == "forward does not write it, or reads what is unwritten");
}

TEST_CASE("a backward that writes what is no number has written it") {
    auto const report = report_of<float, toy::MeanSquare<float, 3>>(
        {1, 2, 3, 4, -5, 6, 7, 8, 9}, 3, NoNumbers{}, toy::Scale<float, 3>{});
    INFO(report);
    CHECK(report.faults() == 1);
    CHECK(report.rows[0].fault == "backward gives no number");
}

TEST_CASE("what is no number is told, and layers behind it are not looked at") {
    auto const report = report_of<float, toy::MeanSquare<float, 3>>(
        {1, 2, 3, 4, -5, 6, 7, 8, 9}, 3, toy::Scale<float, 3>{2}, Logarithm<float, 3>{},
        toy::Scale<float, 3>{});
    INFO(report);
    CHECK(report.faults() == 1);
    REQUIRE(report.rows.size() == 2);
    CHECK(report.rows[1].layer == 1);
    CHECK(report.rows[1].fault == "forward gives no number");
    CHECK(report.rows[1].entry == "4 of micro-batch 0");
}

TEST_CASE("elements of 16 bits are checked as far as they go") {
    auto const report = report_of<float, toy::BriefSquares<6>>(toy::numbers<float>(24, 3), 4,
                                                               Faulty<toy::Dense<float, 6, 6>>{},
                                                               Faulty<toy::Dense<Brief, 6, 6>>{});
    INFO(report);
    CHECK(report.passed());
    for (gpipe::GradientRow const& row : report.rows) CHECK(row.checked > row.left_out);
    Faulty<toy::Dense<Brief, 6, 6>> twice;
    twice.fault = GradientFault::factor;
    auto const found = report_of<float, toy::BriefSquares<6>>(
        toy::numbers<float>(24, 3), 4, Faulty<toy::Dense<float, 6, 6>>{}, twice);
    CHECK(found.faults() == 2);
}

TEST_CASE("one sample is enough, and batches that do not fit are refused") {
    std::vector<float> const one = toy::numbers<float>(5, 2);
    // What samples do together is looked at where they differ.
    for (std::uint32_t seed = 0; seed < 20; ++seed) {
        auto const report = report_of<float, toy::MeanSquare<float, 5>>(
            toy::numbers<float>(5, seed), 1, gpipe::BatchNorm<gpipe::Tensor<float, 5>>{});
        INFO(report);
        CHECK(report.passed());
        CHECK(row_of(report, 0, "input 0").checked > 0);
    }
    CHECK(report_of<float, toy::MeanSquare<float, 5>>(one, 1, toy::Linear<float, 5, 5>{}).passed());
    CHECK_THROWS_WITH_AS((report_of<float, toy::MeanSquare<float, 5>>(toy::numbers<float>(10, 2), 1,
                                                                      toy::Linear<float, 5, 5>{})),
                         "gpipe: inputs of 2 samples, but targets of 1", std::invalid_argument);
    toy::Watch watch;
    toy::Train<float, gpipe::device::Host>::Options options;
    options.samples = 8;
    options.cells = 1;
    toy::Train<float, gpipe::device::Host> train(toy::make_net<float>(watch), {}, {}, options);
    toy::Data<float> const data(8);
    for (double const tolerance :
         {-1.0, std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()})
        CHECK_THROWS_WITH_AS((void)gpipe::check_gradients(train, data.inputs, data.targets,
                                                          {.tolerance = tolerance}),
                             doctest::Contains("GradientCheckOptions::tolerance is"),
                             std::invalid_argument);
}

TEST_CASE("what a layer throws in a check leaves as it was thrown, and the training trains on") {
    toy::Watch watch;
    toy::Train<float, gpipe::device::Host>::Options options;
    options.samples = 8;
    options.cells = options.micro_batches = 2;
    toy::Train<float, gpipe::device::Host> train(toy::make_net<float>(watch), {}, {}, options);
    toy::Data<float> const data(8);
    watch.faults = {{6, 2, toy::Phase::weight_gradient}};
    CHECK_THROWS_AS((void)gpipe::check_gradients(train, data.inputs, data.targets), toy::Thrown);
    watch.faults.clear();
    CHECK(gpipe::check_gradients(train, data.inputs, data.targets).passed());
    train.step(data.inputs, data.targets);
}

TEST_CASE("so it is on a device that runs later what it is told, in memory of its own") {
    for (auto const& run : toy::runs<toy::Remote>()) {
        toy::Train<double, toy::Remote>::Options options;
        options.samples = 8;
        options.cells = 3;
        options.micro_batches = 2;
        options.device = run;
        toy::Watch watch;
        toy::Train<double, toy::Remote> train(toy::make_net<double>(watch), {}, {}, options);
        toy::Data<double> const data(8);
        train.step(data.inputs, data.targets);
        auto const report =
            gpipe::check_gradients(train, data.inputs, data.targets, {.entries = 1});
        INFO(toy::describe(run), "\n", report);
        CHECK(report.passed());
        for (gpipe::GradientRow const& row : report.rows) CHECK(row.checked > 0);
    }
}

TEST_CASE("a report prints as a table with a sentence") {
    gpipe::GradientReport report;
    report.rows.push_back({0, "Scale", "input 0", 20, 1, "3 of sample 1", 0.5, 0.5, 1e-9, {}});
    report.rows.push_back({1, "A<very, long, type, of, a, layer>", "parameter 1", 20, 0, "7", 1,
                           0.5, 0.5, "backward gives something else"});
    std::ostringstream text;
    text << report;
    CHECK(text.str() ==
          "layer  type                          tensor       checked  left out  worst entry    "
          "analytic  numeric    error\n"
          "    0  Scale                         input 0           20         1  3 of sample 1  "
          "     0.5      0.5  1.0e-09  ok\n"
          "    1  A<very, long, type, of, a...  parameter 1       20         0  7              "
          "       1      0.5  5.0e-01  WRONG: backward gives something else\n"
          "1 of 2 tensors is wrong.\n");
    CHECK_FALSE(report.passed());
}

namespace {

// What goes wrong around a skip.
enum class SkipFault { none, pop_unwritten, pop_halved, stash_forgotten, stashes_twice };
template <class T> struct Gives : toy::Copy<T, 5, 0> {
    SkipFault fault = SkipFault::none;
    void forward(auto& ctx, auto x, auto y) const {
        toy::Copy<T, 5, 0>::forward(ctx, x, y);
        if (fault == SkipFault::stashes_twice)
            for (T& v : gpipe::stash<toy::SkipTag<0>>(ctx)) v *= 2;
    }
    void backward(auto& ctx, auto x, auto dy, auto dx) const {
        if (fault == SkipFault::stash_forgotten)
            std::copy_n(dy.data(), dy.size(), dx.data());
        else
            toy::Copy<T, 5, 0>::backward(ctx, x, dy, dx);
    }
};
template <class T> struct Takes : toy::Plus<T, 5, 0> {
    SkipFault fault = SkipFault::none;
    void backward(auto& ctx, auto dy, auto dx) const {
        if (fault == SkipFault::pop_unwritten) {
            std::copy_n(dy.data(), dy.size(), dx.data());
            return;
        }
        toy::Plus<T, 5, 0>::backward(ctx, dy, dx);
        if (fault == SkipFault::pop_halved)
            for (T& d : gpipe::pop_gradient<toy::SkipTag<0>>(ctx)) d /= 2;
    }
};
template <class T>
using Around = gpipe::Pipeline<toy::Linear<T, 5, 5>, Gives<T>, toy::Tanh<T, 5>, Takes<T>,
                               toy::StrictLinear<T, 5, 3>>;

template <class Net> gpipe::GradientReport report_of_skips(Net net) {
    using T = typename Net::Output::Element;
    gpipe::Training<Net, gpipe::Cells<3>, gpipe::MicroBatches<2>,
                    gpipe::Loss<toy::MeanSquare<T, 3>>>
        train(net, {}, {}, {.samples = 6, .seed = 3});
    return gpipe::check_gradients(train, toy::numbers<T>(6 * 5, 4), toy::numbers<T>(6 * 3, 5));
}
// The one fault there is.
template <class T> std::string fault_of_skips(SkipFault fault) {
    Gives<T> gives;
    Takes<T> takes;
    gives.fault = takes.fault = fault;
    std::string all;
    for (gpipe::GradientRow const& row : report_of_skips(Around<T>({}, gives, {}, takes, {})).rows)
        if (!row.fault.empty())
            all += std::to_string(row.layer) + ", " + row.tensor + ": " + std::string(row.fault);
    return all;
}

} // namespace

TEST_CASE_TEMPLATE("skips: what a layer pops is one of its inputs, what it stashes of its outputs",
                   T, float, double) {
    gpipe::GradientReport const sound = report_of_skips(toy::SkipNet<T>{});
    INFO(sound);
    CHECK(sound.faults() == 0);
    std::size_t popped = 0;
    for (gpipe::GradientRow const& row : sound.rows) popped += row.tensor == "popped 0";
    CHECK(popped == 12); // integers have no gradient

    CHECK(fault_of_skips<T>(SkipFault::none) == "");
    CHECK(fault_of_skips<T>(SkipFault::pop_unwritten) ==
          "3, popped 0: backward does not write it, or reads what is unwritten");
    CHECK(fault_of_skips<T>(SkipFault::pop_halved) == "3, popped 0: backward gives something else");
    CHECK(fault_of_skips<T>(SkipFault::stash_forgotten) ==
          "1, input 0: backward gives something else");
    CHECK(fault_of_skips<T>(SkipFault::stashes_twice) ==
          "1, input 0: backward gives something else");
}
