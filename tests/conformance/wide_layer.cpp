// M: a layer that is split itself, in blocks along the chain (examples/wide).

#include "../../examples/wide/blocks.hpp"
#include "support/conformance.hpp"

#include <cstddef>
#include <cstring>
#include <doctest/doctest.h>
#include <string>
#include <utility>
#include <vector>

namespace {

using conformance::SGD;
using conformance::Train;
using gpipe::device::Host;
using toy::Backward;

constexpr std::size_t in = 32, out = 48, parts = 4;

struct Line : toy::Linear<float, 5, in> {
    static constexpr double cost = 2.0 * 5 * in;
};
struct Bend : toy::Tanh<float, in> {
    static constexpr double cost = 20.0 * in;
};
// Behind these two so many blocks.
template <template <std::size_t, std::size_t, std::size_t, std::size_t> class Block, class Parts>
struct NetOf;
template <template <std::size_t, std::size_t, std::size_t, std::size_t> class Block,
          std::size_t... part>
struct NetOf<Block, std::index_sequence<part...>> {
    using type = gpipe::Pipeline<Line, Bend, Block<in, out, sizeof...(part), part>...>;
};
template <template <std::size_t, std::size_t, std::size_t, std::size_t> class Block,
          std::size_t blocks>
using Net = typename NetOf<Block, std::make_index_sequence<blocks>>::type;
using Loss = toy::MeanSquare<float, out>;

// The plain net's: what it gives before and after each step, its losses, its matrix, and the
// parameters before that.
struct Run {
    std::vector<std::vector<float>> outputs;
    std::vector<double> losses;
    std::vector<std::byte> matrix, front;
};
constexpr std::size_t sizes[] = {13, 3, 13}; // of 3 samples one micro-batch stays empty
constexpr std::size_t micro_batches = 4;
std::vector<float> inputs(std::size_t samples) { return toy::numbers<float>(samples * 5, 1); }
std::vector<float> targets(std::size_t samples) { return toy::numbers<float>(samples * out, 2); }
SGD const sgd{.learning_rate = 0.01f, .momentum = 0.9f};

void append(std::vector<std::byte>& to, std::vector<std::byte> const& bytes) {
    to.insert(to.end(), bytes.begin(), bytes.end());
}
template <template <std::size_t, std::size_t, std::size_t, std::size_t> class Block>
Run plain(Backward order) {
    toy::Reference<Net<Block, 1>, Loss, SGD> net({}, {}, sgd, 1, micro_batches, order);
    Run run;
    auto const predict = [&] {
        auto const bytes = net.predict(inputs(13));
        run.outputs.emplace_back(13 * out);
        std::memcpy(run.outputs.back().data(), bytes.data(), bytes.size());
    };
    predict();
    for (std::size_t const samples : sizes) {
        run.losses.push_back(net.step(inputs(samples), targets(samples)));
        predict();
    }
    run.matrix = net.parameter(2, 0);
    for (std::size_t t = 0; t < 2; ++t) append(run.front, net.parameter(0, t));
    return run;
}
template <class T> Run trained(T& train) {
    Run run;
    auto const predict = [&] {
        run.outputs.emplace_back(13 * out);
        train.predict(inputs(13), run.outputs.back());
    };
    predict();
    for (std::size_t const samples : sizes) {
        run.losses.push_back(train.step(inputs(samples), targets(samples)).loss);
        predict();
    }
    auto const read = [&](std::vector<std::byte>& to, std::size_t layer, std::size_t tensor) {
        auto const bytes = train.template parameter<std::byte>(layer, tensor);
        append(to, {bytes.begin(), bytes.end()});
    };
    for (std::size_t block = 0; block < parts; ++block) read(run.matrix, 2 + block, 0);
    for (std::size_t t = 0; t < 2; ++t) read(run.front, 0, t);
    return run;
}
std::string difference(Run const& run, Run const& expected) {
    for (std::size_t i = 0; i < expected.outputs.size(); ++i)
        if (std::memcmp(run.outputs[i].data(), expected.outputs[i].data(),
                        expected.outputs[i].size() * sizeof(float)) != 0)
            return "outputs after " + std::to_string(i) + " steps";
    if (run.losses != expected.losses) return "losses";
    if (run.matrix != expected.matrix) return "the matrix";
    return run.front != expected.front ? "what is in front of it" : "";
}

template <template <std::size_t, std::size_t, std::size_t, std::size_t> class Block>
void check_bits() {
    Run const descending = plain<Block>(Backward::descending);
    Run const ascending = plain<Block>(Backward::ascending);
    CHECK(ascending.losses.back() < 0.99 * ascending.losses.front());
    using T = Train<Net<Block, parts>, Loss>;
    std::size_t trainings = 0;
    toy::each_way<Host>(
        T::layer_count, T::layer_count, micro_batches, 29,
        [&](auto schedule, std::size_t k, auto checkpointing, auto const& device,
            std::string const& words) {
            INFO(words);
            typename T::Options o = conformance::options<T>(13, k, micro_batches, checkpointing);
            o.schedule = schedule;
            o.device = device;
            T train({}, {}, sgd, o);
            bool const descends = schedule.name() == "GPipe";
            CHECK(difference(trained(train), descends ? descending : ascending) == "");
            ++trainings;
        });
    CHECK(trainings > 5);
}

} // namespace

TEST_CASE("M3 a layer in blocks of rows gives the plain net's outputs, losses and parameters in "
          "every bit, wherever the chain is cut") {
    check_bits<wide::RowBlock>();
}
TEST_CASE("M3 so does one in blocks of columns, whose sum goes on in one order") {
    check_bits<wide::ColumnBlock>();
}

TEST_CASE("M3 the plain net's layer is the product of a matrix, and both ways to cut it are one") {
    Run const rows = plain<wide::RowBlock>(Backward::ascending);
    Run const columns = plain<wide::ColumnBlock>(Backward::ascending);
    for (std::size_t i = 0; i < rows.outputs.size(); ++i)
        for (std::size_t o = 0; o < rows.outputs[i].size(); ++o)
            CHECK(rows.outputs[i][o] == doctest::Approx(columns.outputs[i][o]).epsilon(1e-4));
    using N = gpipe::Pipeline<wide::RowBlock<in, out>>;
    using T = Train<N, Loss>;
    T train({}, {}, sgd, conformance::options<T>(7, 1, 2));
    auto const x = toy::numbers<float>(7 * in, 3);
    std::vector<float> y(7 * out);
    train.predict(x, y);
    auto const w = train.template parameter<float>(0, 0);
    for (std::size_t s = 0; s < 7; ++s)
        for (std::size_t o = 0; o < out; ++o) {
            double sum = 0;
            for (std::size_t i = 0; i < in; ++i)
                sum += double(w[o * in + i]) * double(x[s * in + i]);
            CHECK(y[s * out + o] == doctest::Approx(sum).epsilon(1e-4));
        }
}

TEST_CASE("M3 with a block on each device each holds its share of the matrix, of its gradient and "
          "of the optimizer's state") {
    auto const check = []<class N>(N) {
        using T = Train<N, Loss>;
        toy::hand = {3, 1, 1, 1};
        T train({}, {}, sgd, conformance::options<T>(13, parts, micro_batches));
        toy::hand.clear();
        for (std::size_t d = 1; d < parts; ++d) {
            gpipe::DeviceBytes const& device = train.plan().devices[d];
            CHECK(device.parameters == sizeof(float) * in * out / parts);
            CHECK(device.gradients == device.parameters);
            CHECK(device.optimizer == device.parameters);
        }
    };
    check(Net<wide::RowBlock, parts>{});
    check(Net<wide::ColumnBlock, parts>{});
}
