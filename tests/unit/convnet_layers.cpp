// The layers of examples/convnet: oneDNN's convolutions against their definition, every backward
// under check_gradients(), and every fault in one of them found where it is.
#include <convnet/convolution_loops.hpp>
#include <convnet/host_convolutions.hpp>
#include <convnet/model.hpp>
#include <convnet/onednn.hpp>

#include <gpipe/check_gradients.hpp>
#include <gpipe/optimizer/sgd.hpp>

#include <support/faulty.hpp>
#include <support/long_tests.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {

using convnet::ConvolutionLoops, convnet::ConvolutionPart, convnet::ConvolutionShape;

// Operands of a part of a convolution, and where its result goes, with what stands there before.
struct Operands {
    std::vector<float> a, b, result;

    Operands(ConvolutionShape const& shape, std::size_t samples, ConvolutionPart part) {
        std::size_t const x = samples * shape.input_size(), y = samples * shape.output_size();
        std::mt19937 random(7);
        std::normal_distribution<float> normal;
        auto const fill = [&](std::vector<float>& values, std::size_t size) {
            values.resize(size);
            for (float& v : values) v = normal(random);
        };
        fill(a, part == ConvolutionPart::input_gradient ? shape.weights() : x);
        fill(b, part == ConvolutionPart::forward ? shape.weights() : y);
        fill(result, part == ConvolutionPart::forward          ? y
                     : part == ConvolutionPart::input_gradient ? x
                                                               : shape.weights());
    }
};
std::vector<double> by_definition(ConvolutionShape const& shape, std::size_t samples,
                                  ConvolutionPart part, Operands const& operands) {
    auto const doubles = [](std::vector<float> const& values) {
        return std::vector<double>(values.begin(), values.end());
    };
    std::vector<double> const a = doubles(operands.a), b = doubles(operands.b);
    std::vector<double> result = doubles(operands.result);
    ConvolutionLoops const loops{shape, samples};
    if (part == ConvolutionPart::forward) loops.forward(a.data(), b.data(), result.data());
    if (part == ConvolutionPart::input_gradient)
        loops.input_gradient(a.data(), b.data(), result.data());
    if (part == ConvolutionPart::weight_gradient)
        loops.weight_gradient(a.data(), b.data(), result.data());
    return result;
}
std::vector<float> by_library(ConvolutionShape const& shape, std::size_t samples,
                              ConvolutionPart part, std::size_t workspace, Operands operands) {
    std::vector<std::byte> memory(workspace + 64);
    auto const past = reinterpret_cast<std::uintptr_t>(memory.data()) % 64;
    convnet::OneDnn(memory.data() + (64 - past) % 64, workspace)
        .run(shape, samples, part, operands.a.data(), operands.b.data(), operands.result.data());
    return operands.result;
}

} // namespace

TEST_CASE("oneDNN's convolutions are what their definition says, with room for copies or little") {
    for (ConvolutionShape const& shape : {ConvolutionShape{1, 28, 16, 3, 2},
                                          {16, 14, 16, 3, 1},
                                          {16, 14, 32, 3, 2},
                                          {16, 14, 32, 1, 2},
                                          {32, 7, 64, 3, 2},
                                          {64, 4, 64, 3, 1},
                                          {3, 5, 7, 3, 2},
                                          {2, 1, 3, 3, 1}})
        for (ConvolutionPart const part : convnet::every_part)
            for (std::size_t const samples : {1, 5}) {
                INFO(shape.text(), ", part ", static_cast<int>(part), ", samples ", samples);
                Operands const operands(shape, samples, part);
                std::vector<double> const expected = by_definition(shape, samples, part, operands);
                std::size_t const little = 400'000; // which are not enough for copies of x and y
                for (std::size_t const room : {convnet::OneDnn::workspace, little}) {
                    auto const found = by_library(shape, samples, part, room, operands);
                    double worst = 0;
                    for (std::size_t i = 0; i < found.size(); ++i)
                        worst = std::max(worst, std::abs(double(found[i]) - expected[i]));
                    CHECK(worst < 3e-4);
                    std::vector<float> again; // on a thread that has called nothing yet
                    std::thread([&] {
                        again = by_library(shape, samples, part, room, operands);
                    }).join();
                    CHECK(again == found);
                }
            }
}

TEST_CASE("a convolution whose workspace is too small is refused by name, with both numbers") {
    auto const refused = [](std::size_t bytes) {
        try {
            convnet::OneDnnWorkspaceCheck{}({16, 14, 32, 3, 2}, 4, bytes);
        } catch (std::runtime_error const& error) {
            return std::string(error.what());
        }
        return std::string();
    };
    CHECK(refused(convnet::OneDnn::workspace).empty());
    std::string const words = refused(1000);
    CHECK(words.find("a convolution 3x3 of 16x14x14 to 32x7x7 with 4 samples needs a workspace "
                     "of ") == 0);
    CHECK(words.find(" bytes, but its bound is 1000") != std::string::npos);
    using Model = convnet::Model<float, 28, 16, 10>;
    CHECK_NOTHROW(Model::check_workspaces(1));
    CHECK_NOTHROW(Model::check_workspaces(4096));
}

namespace {

using toy::Faulty, toy::GradientFault;

constexpr std::size_t samples = 6, classes = 5;
// In float oneDNN convolves, in double loops do.
template <class T> using Wide = gpipe::Tensor<T, 3, 5, 5>;
template <class T> using Narrow = gpipe::Tensor<T, 4, 3, 3>;
template <class T> using First = convnet::Convolution<T, 2, 9, 3, 3, 2>;
template <class T> using Main = convnet::Convolution<T, 3, 5, 4, 3, 2>;
template <class T> using Shortcut = convnet::Convolution<T, 3, 5, 4, 1, 2>;

template <class T>
using Layers =
    gpipe::Pipeline<Faulty<First<T>>, Faulty<convnet::Norm<T, 3, 5>>,
                    Faulty<convnet::Relu<Wide<T>>>, Faulty<convnet::Fork<convnet::Around, Wide<T>>>,
                    Faulty<Main<T>>,
                    Faulty<convnet::Exchange<convnet::Around, convnet::Aside, Narrow<T>, Wide<T>>>,
                    Faulty<Shortcut<T>>, Faulty<convnet::Join<convnet::Aside, Narrow<T>>>,
                    Faulty<convnet::MeanPool<T, 4, 3>>, Faulty<convnet::Classify<T, 4, classes>>>;
template <class T> using Loss = gpt::CrossEntropy<T, 1, classes>;
template <class T>
using Train =
    gpipe::Training<Layers<T>, gpipe::Cells<2>, gpipe::MicroBatches<2>, gpipe::Loss<Loss<T>>>;

// With a fault in every second layer, from `first` on; 2: in none.
template <class T, std::size_t... Is>
Layers<T> net(std::size_t first, GradientFault fault, std::index_sequence<Is...>) {
    auto const made = [&]<class L>(L layer, bool faulty) {
        if (faulty) layer.fault = fault;
        return layer;
    };
    return Layers<T>(made(typename Layers<T>::template Layer<Is>{}, Is % 2 == first)...);
}

template <class T>
gpipe::GradientReport report(std::uint32_t seed, std::size_t entries, std::size_t first = 2,
                             GradientFault fault = GradientFault::none) {
    Train<T> train(net<T>(first, fault, std::make_index_sequence<Layers<T>::size>()), Loss<T>{},
                   {.learning_rate = 0.01f}, {.samples = samples, .seed = seed});
    std::mt19937 random(seed);
    std::normal_distribution<double> normal;
    std::vector<T> x(samples * 2 * 9 * 9);
    for (T& v : x) v = static_cast<T>(normal(random));
    std::vector<std::int32_t> target(samples);
    for (std::int32_t& v : target) v = static_cast<std::int32_t>(random() % classes);
    return gpipe::check_gradients(train, x, target, {.entries = entries, .seed = seed});
}

} // namespace

TEST_CASE_TEMPLATE("no gradient of the convolution network's layers is called wrong", T, float,
                   double) {
    std::size_t checked = 0, left_out = 0;
    for (std::uint32_t seed = 1; seed <= 1 + 60 / toy::one_of(30); ++seed) {
        auto const found = report<T>(seed, 32);
        INFO(found);
        CHECK(found.passed());
        for (gpipe::GradientRow const& row : found.rows) {
            CHECK(row.checked > 0);
            checked += row.checked;
            left_out += row.left_out;
        }
    }
    MESSAGE(checked, " checked, ", left_out, " left out");
    CHECK(left_out * 20 < checked);
}

TEST_CASE_TEMPLATE("every fault in the gradients of the convolution network is found where it is",
                   T, float, double) {
    for (std::size_t first = 0; first < 2; ++first)
        for (std::size_t f = 1; f < toy::fault_count; ++f) {
            if ((first * toy::fault_count + f) % (toy::sanitized ? 5 : 1) != 0) continue;
            auto const fault = static_cast<GradientFault>(f);
            auto const found = report<T>(7, 8, first, fault);
            INFO(std::string(toy::fault_names[f]), " in every second layer from ", first, "\n",
                 found);
            for (gpipe::GradientRow const& row : found.rows) {
                CAPTURE(row.layer);
                CAPTURE(row.tensor);
                bool const can_have = row.layer < Layers<T>::size && row.layer % 2 == first &&
                                      toy::spoils(fault, row.tensor);
                CHECK(row.fault.empty() != can_have);
            }
        }
}
