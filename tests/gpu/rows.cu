// The rows of the GPT's layers by a warp and by a block, and sums of columns: what several threads
// give together is what one gives. On the emulation, under ThreadSanitizer, what a thread reads
// although another one may have written it is a failure.
#include "support/gpu_memory.hpp"

#include <gpt/causal_softmax.hpp>
#include <gpt/cross_entropy.hpp>
#include <gpt/cuda_operations.cuh>
#include <gpt/dropout.hpp>
#include <gpt/embedding.hpp>
#include <gpt/head.hpp>
#include <gpt/host_operations.hpp>
#include <gpt/layer_norm.hpp>
#include <gpt/scatter.hpp>

#include <gpipe/layer/random.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

namespace {

constexpr std::size_t width = 600; // each warp of a block has some
constexpr std::size_t classes = width - 7;
constexpr std::size_t rows = 18; // of samples of 6
constexpr std::size_t blocks = 2;

// What a row may read and write.
struct Arrays {
    double *a, *b, *c;
    std::int32_t* indices;
};
struct Numbers {
    std::vector<double> values = std::vector<double>(3 * rows * width);
    std::vector<std::int32_t> indices = std::vector<std::int32_t>(rows);

    Numbers() {
        std::mt19937 random{1};
        std::normal_distribution<double> normal;
        for (double& element : values) element = normal(random);
        for (auto& index : indices) index = static_cast<std::int32_t>(random() % 7) - 1;
    }
};
Arrays arrays(void* values, void* indices) {
    auto* const a = static_cast<double*>(values);
    return {a, a + rows * width, a + 2 * rows * width, static_cast<std::int32_t*>(indices)};
}

template <unsigned threads, class Make>
std::vector<double> shared(Make make, Numbers const& numbers) {
    gpipe::cuda::Buffer const values(0, numbers.values.size() * sizeof(double)),
        indices(0, numbers.indices.size() * sizeof(std::int32_t));
    toy::write(values, numbers.values);
    toy::write(indices, numbers.indices);
    auto const row = make(arrays(values.data(), indices.data()));
    gpipe::cuda::Stream const stream(0);
    gpipe::cuda::launch(stream.get(), blocks, gpt::detail::row_threads, 0,
                        gpt::detail::for_each_row_kernel<threads, decltype(row)>, rows, row);
    stream.synchronize();
    return toy::read<double>(values, numbers.values.size());
}

void compare(std::vector<double> const& is, std::vector<double> const& expected) {
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < expected.size(); ++i)
        wrong += !(is[i] == doctest::Approx(expected[i]).epsilon(1e-12));
    CHECK(wrong == 0);
}

// make(arrays) is the functor for a row; `numbers` are what it finds.
template <class Make> void check(Make make, Numbers const& numbers = {}) {
    Numbers alone = numbers;
    auto const row = make(arrays(alone.values.data(), alone.indices.data()));
    for (std::size_t r = 0; r < rows; ++r) row(gpt::HostTeam{}, r);
    CHECK(alone.values != numbers.values);
    compare(shared<32>(make, numbers), alone.values);
    compare(shared<gpt::detail::row_threads>(make, numbers), alone.values);
}

// For operations without a layer.
struct Streamed {
    cudaStream_t its;
    cudaStream_t stream() const { return its; }
};
using On = gpt::detail::CudaOn<Streamed, gpt::Precision::fp32>;

} // namespace

TEST_CASE("a norm's rows may be shared") {
    check([](Arrays x) {
        return gpt::detail::NormForward<width, double>{
            {x.a, x.a + width, x.b, x.a + 4 * width, x.c}, x.a + 4 * width};
    });
    check([](Arrays x) {
        return gpt::detail::NormApply<width, double>{x.a, x.a + width, x.b, x.a + 4 * width, x.c};
    });
    for (bool const residual : {true, false})
        check([&](Arrays x) {
            return gpt::detail::NormBackward<width, double>{x.a, x.b, x.a + 4 * width,
                                                            residual ? x.a : nullptr, x.c};
        });
}

TEST_CASE("rows with dropout may be shared") {
    gpipe::SampleRandom const random{1, 2, 3, 4};
    check([](Arrays x) { return gpt::detail::AddResidual<width, double>{x.a, x.b, x.c}; });
    check([&](Arrays x) {
        return gpt::detail::AddDropped<6, width, double, gpipe::SampleRandom>{
            {0.5f}, random, x.a, x.b, x.c};
    });
    check([&](Arrays x) {
        return gpt::detail::DropGradient<6, width, double, gpipe::SampleRandom>{
            {0.5f}, random, x.a, x.b};
    });
}

TEST_CASE("rows of logits may be shared") {
    check([](Arrays x) { return gpt::detail::Clip<double>{classes, width, 0.5, x.a}; });
    check([](Arrays x) {
        return gpt::detail::ClipBackward<double>{classes, width, 0.5, x.a, x.b, x.c};
    });
    Numbers numbers;
    for (auto& target : numbers.indices)
        if (target > 2) target += 10;
    for (bool const training : {true, false})
        check(
            [&](Arrays x) {
                return gpt::detail::CrossEntropyRow<width, double>{classes, x.a, x.indices,
                                                                   training ? x.b : nullptr, x.c};
            },
            numbers);
}

TEST_CASE("rows of scores may be shared") {
    // Two heads of each sample, positions two to four of six, with room for one more.
    gpt::Strip const strip{2, 3, 4};
    check([&](Arrays x) { return gpt::CausalSoftmax<6, double>{strip, x.a, x.b}; });
    check([&](Arrays x) {
        return gpt::CausalSoftmaxBackward<6, 2, 8, double>{strip, 0.5, x.a,      x.b,
                                                           x.b,   x.c, x.c + 200};
    });
}

TEST_CASE("rows of tokens may be shared") {
    Numbers numbers;
    for (auto& token : numbers.indices) token = token < 0 ? 0 : token;
    check(
        [](Arrays x) {
            return gpt::detail::Gather<7, 6, width, double>{x.indices, x.a, x.b, x.c};
        },
        numbers);
    check([](Arrays x) { return gpt::ScatterRow<double>{rows, 7, width, x.indices, x.a, x.b}; });
}

// More rows than a team looks through at once; those with one index lie far apart and near.
TEST_CASE("the rows of a long text may be shared") {
    constexpr std::size_t length = 1000, wide = 8, vocabulary = 300;
    std::vector<std::int32_t> indices(length);
    std::mt19937 random{3};
    for (auto& index : indices) index = static_cast<std::int32_t>(random() % (vocabulary - 1));
    for (std::size_t r : {5, 6, 300, 511, 512, 999}) indices[r] = vocabulary - 1;
    std::vector<double> from(length * wide), expected(vocabulary * wide, 0.5);
    std::normal_distribution<double> normal;
    for (double& element : from) element = normal(random);
    gpipe::cuda::Buffer const of(0, length * sizeof(std::int32_t)),
        in(0, from.size() * sizeof(double)), out(0, expected.size() * sizeof(double));
    toy::write(of, indices);
    toy::write(in, from);
    toy::write(out, expected);
    gpipe::cuda::Stream const stream(0);
    Streamed const context{stream.get()};
    On(context).scatter_add(
        length, vocabulary, wide, reinterpret_cast<std::int32_t const*>(of.data()),
        reinterpret_cast<double const*>(in.data()), reinterpret_cast<double*>(out.data()));
    stream.synchronize();
    for (std::size_t r = 0; r < length; ++r)
        for (std::size_t i = 0; i < wide; ++i)
            expected[static_cast<std::size_t>(indices[r]) * wide + i] += from[r * wide + i];
    CHECK(toy::read<double>(out, expected.size()) == expected);
}

TEST_CASE("sums of columns are those of one thread, set and added") {
    std::mt19937 random{2};
    std::normal_distribution<double> normal;
    gpipe::cuda::Stream const stream(0);
    Streamed const context{stream.get()};
    On const on(context);
    for (std::size_t high : {1, 63, 65, 100, 600, 2049, 5000})
        for (std::size_t wide : {1, 8, 17, 24})
            for (bool add : {false, true}) {
                std::vector<double> from(high * wide), expected(wide, 0.5);
                for (double& element : from) element = normal(random);
                gpipe::cuda::Buffer const in(0, from.size() * sizeof(double)),
                    out(0, wide * sizeof(double));
                toy::write(in, from);
                toy::write(out, expected);
                on.sum_columns(high, wide, reinterpret_cast<double*>(out.data()), add,
                               gpt::Itself{}, reinterpret_cast<double const*>(in.data()));
                stream.synchronize();
                for (std::size_t i = 0; i < wide; ++i) {
                    double sum = 0;
                    for (std::size_t row = 0; row < high; ++row) sum += from[row * wide + i];
                    expected[i] = add ? expected[i] + sum : sum;
                }
                INFO(high, " rows of ", wide);
                compare(toy::read<double>(out, wide), expected);
            }
}
