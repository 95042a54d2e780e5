// Views that look at their indices: this is compiled with GPIPE_CHECK_INDICES, and header-only.
#include <gpipe/gpipe.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

using gpipe::BatchView, gpipe::OptionalView, gpipe::TensorView;

/// Reads one element, of which sample and index are set.
struct Reads {
    using Input = gpipe::Tensor<float, 3, 2>;
    using Output = gpipe::Tensor<float, 3, 2>;
    static constexpr auto backward_reads = gpipe::Reads::neither;
    std::size_t sample = 0, row = 0;
    int column = 0;

    void forward(auto& ctx, auto x, auto y) const {
        std::copy(x.begin(), x.end(), y.begin());
        if (ctx.training()) y(0, 0, 0) += x(sample, row, column);
    }
    void backward(auto&, auto dy, auto dx) const { std::copy(dy.begin(), dy.end(), dx.begin()); }
};
struct Sum {
    using Target = gpipe::Tensor<float, 1>;
    gpipe::LossValue<> operator()(auto&, auto y, auto, auto dy) const {
        std::fill(dy.begin(), dy.end(), 1.0f);
        return {y[0][0], double(y.samples())};
    }
};

} // namespace

TEST_CASE("an index that is not below its extent throws, every other one is as without") {
    float numbers[2 * 3 * 4] = {};
    for (int i = 0; i < 24; ++i) numbers[i] = float(i);
    TensorView<float, 3, 4> const tensor(numbers + 12);
    BatchView<float, 3, 4> const batch(numbers, 2);
    for (std::size_t i = 0; i < 5; ++i)
        for (int j = -1; j < 6; ++j) {
            CAPTURE(i);
            CAPTURE(j);
            bool const is_there = i < 3 && 0 <= j && j < 4;
            for (std::size_t s = 0; s < 4; ++s)
                if (is_there && s < 2)
                    CHECK(batch(s, i, j) == float(s * 12 + i * 4 + std::size_t(j)));
                else
                    CHECK_THROWS_AS(batch(s, i, j), std::out_of_range);
            if (is_there)
                CHECK(tensor(i, j) == float(12 + i * 4 + std::size_t(j)));
            else
                CHECK_THROWS_AS(tensor(i, j), std::out_of_range);
        }
    for (std::size_t i = 0; i < 12; ++i) CHECK(tensor[i] == float(12 + i));
    CHECK(batch[1](2, 3) == 23);
    CHECK_THROWS_WITH_AS(tensor[12], "gpipe: a view is asked for index 12 of an extent of 12",
                         std::out_of_range);
    CHECK_THROWS_WITH_AS(batch[2], "gpipe: a view is asked for index 2 of an extent of 2",
                         std::out_of_range);
    CHECK_THROWS_WITH_AS(batch(0, 0, -1), "gpipe: a view is asked for index -1 of an extent of 4",
                         std::out_of_range);
    OptionalView<float, 3, 4> const absent(nullptr, 0);
    CHECK_THROWS_WITH_AS(absent(0, 0, 0), "gpipe: a view is asked for index 0 of an extent of 0",
                         std::out_of_range);
}

TEST_CASE("in a layer it is an error of the step, with its place") {
    using Net = gpipe::Pipeline<Reads, Reads>;
    using Train = gpipe::Training<Net, gpipe::Cells<2>, gpipe::MicroBatches<2>, gpipe::Loss<Sum>>;
    std::vector<float> const x(4 * 6, 1.0f), target(4);
    auto const said = [&](Reads const& second) {
        Train train(Net{{}, second}, {}, {}, {.samples = 4});
        try {
            train.step(x, target);
        } catch (std::out_of_range const& error) {
            return train.failure()->place() + ": " + error.what();
        }
        return std::string();
    };
    CHECK(said({1, 2, 1}) == "");
    for (Reads const wrong : {Reads{2, 2, 1}, {1, 3, 1}, {1, 2, -1}})
        CHECK(said(wrong).find("layer 1 (") == 0);
    std::string const words = said({2, 2, 1});
    CHECK(words.substr(words.find(") in")) == ") in the forward of micro-batch 1, cell 1: gpipe: a "
                                              "view is asked for index 2 of an extent of 2");
}
