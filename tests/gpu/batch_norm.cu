// The kernels of BatchNorm against its loops. Within trainings: layers.cu.
#include "support/gpu_memory.hpp"

#include <gpipe/cuda/norm_work.cuh>
#include <gpipe/layers/sync_batch_norm.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

namespace norm_kernels {

template <class T> struct Numbers {
    gpipe::detail::Channels shape;
    std::vector<T> x, dy, scale, shift;

    Numbers(std::size_t samples, std::size_t channels, std::size_t positions)
        : shape{samples, channels, positions} {
        std::mt19937 random{7};
        std::normal_distribution<double> normal;
        auto const fill = [&](std::vector<T>& to, std::size_t count, double offset) {
            to.resize(count);
            for (T& v : to) v = static_cast<T>(offset + normal(random));
        };
        fill(x, samples * channels * positions, 1000);
        fill(dy, x.size(), 0.5);
        fill(scale, channels, 1);
        fill(shift, channels, 0);
    }
};
template <class T> struct Results {
    std::vector<T> y, dx, dscale, dshift;
    std::vector<T> fixed_dx, fixed_dscale, fixed_dshift;
    std::vector<T> sync_y, sync_dx, sync_dscale, sync_dshift; // of two replicas with other samples
    std::vector<double> statistics, cleared, copied, running;
    std::vector<std::int64_t> moves;
};

// All that a layer has its work do, on the host and on a GPU.
template <class T, class Work, class Memory>
Results<T> run(Numbers<T> const& numbers, Work const& work, Memory memory) {
    using namespace gpipe::detail;
    Channels const& shape = numbers.shape;
    std::size_t const c = shape.channels;
    auto const x = memory(numbers.x), dy = memory(numbers.dy), scale = memory(numbers.scale),
               shift = memory(numbers.shift);
    auto y = memory(numbers.x), dx = memory(numbers.x), dscale = memory(numbers.scale),
         dshift = memory(numbers.shift);
    auto part = memory(std::vector<double>(4 * c)), sum = memory(std::vector<double>(4 * c));
    auto running = memory(std::vector<double>(2 * c, 1.0));
    auto moves = memory(std::vector<std::int64_t>(1, 2));
    StatisticsRows const rows{part.data(), c}, sums{sum.data(), c};
    work.moments(shape, x.data(), rows);
    work.normalize(shape, x.data(), y.data(), scale.data(), shift.data(), OfMoments{rows, 1e-5});
    work.backward(shape, x.data(), dy.data(), dx.data(), scale.data(), dscale.data(), dshift.data(),
                  OfSamples{1e-5});
    work.each(c, MergeMoments{sums, rows});
    work.each(c, MergeMoments{sums, rows});
    UpdateRunning const update{sums,         running.data(), running.data() + c,
                               moves.data(), {0.25, false},  false};
    work.each(c, update);
    work.each(1, CountMoves{update});

    auto fixed_dx = memory(numbers.x), fixed_dscale = memory(numbers.scale),
         fixed_dshift = memory(numbers.shift);
    work.backward(shape, x.data(), dy.data(), fixed_dx.data(), scale.data(), fixed_dscale.data(),
                  fixed_dshift.data(), OfRunning{running.data(), running.data() + c, 1e-5});
    auto cleared = memory(std::vector<double>(4 * c, 1.0));
    work.each(c, ClearStatistics{{cleared.data(), c}, 3});

    std::size_t const stride = 40 * c; // of what a replica tells
    auto told = memory(std::vector<double>(2 * stride)),
         back = memory(std::vector<double>(2 * stride));
    auto sync_y = memory(numbers.x), sync_dx = memory(numbers.x),
         sync_dscale = memory(numbers.scale), sync_dshift = memory(numbers.shift);
    MomentsOfReplicas const moments{{told.data(), stride, 2, c}, 1e-5};
    SumsOfReplicas const gradients{{back.data(), stride, 2, c}};
    work.moments(shape, x.data(), moments.of.rows(0));
    work.moments(shape, dy.data(), moments.of.rows(1));
    work.normalize(shape, x.data(), sync_y.data(), scale.data(), shift.data(), moments);
    work.gradient_sums(shape, x.data(), dy.data(), moments, gradients.of.rows(0));
    work.gradient_sums(shape, dy.data(), x.data(), moments, gradients.of.rows(1));
    work.each(c, AddGradients<T>{gradients.of.rows(1), sync_dscale.data(), sync_dshift.data()});
    work.input_gradients(shape, x.data(), dy.data(), sync_dx.data(), scale.data(), moments,
                         gradients);
    auto copied = memory(std::vector<double>(4 * c));
    work.each(c, CopyMoments{{copied.data(), c}, moments.of.rows(1)});
    return {y.get(),        dx.get(),           dscale.get(),       dshift.get(),
            fixed_dx.get(), fixed_dscale.get(), fixed_dshift.get(), sync_y.get(),
            sync_dx.get(),  sync_dscale.get(),  sync_dshift.get(),  sum.get(),
            cleared.get(),  copied.get(),       running.get(),      moves.get()};
}

template <class T> struct OnHost {
    std::vector<T> values;
    T* data() { return values.data(); }
    T const* data() const { return values.data(); }
    std::vector<T> get() const { return values; }
};
template <class T> struct OnGpu {
    gpipe::cuda::Buffer buffer;
    std::size_t count;
    cudaStream_t stream;
    OnGpu(std::vector<T> const& values, cudaStream_t on)
        : buffer(0, values.size() * sizeof(T)), count(values.size()), stream(on) {
        toy::write(buffer, values);
    }
    T* data() const { return static_cast<T*>(static_cast<void*>(buffer.data())); }
    std::vector<T> get() const {
        gpipe::cuda::check("a wait", cudaStreamSynchronize(stream));
        return toy::read<T>(buffer, count);
    }
};

template <class T>
void compare(std::vector<T> const& is, std::vector<T> const& expected, double epsilon) {
    REQUIRE(is.size() == expected.size());
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < is.size(); ++i)
        wrong += !(static_cast<double>(is[i]) ==
                   doctest::Approx(static_cast<double>(expected[i])).epsilon(epsilon));
    CHECK(wrong == 0);
}

} // namespace norm_kernels

TEST_CASE_TEMPLATE("kernels of BatchNorm give what its loops give", T, float, double) {
    using namespace norm_kernels;
    double const epsilon = sizeof(T) == 4 ? 1e-5 : 1e-10;
    for (Numbers<T> const& numbers :
         {Numbers<T>(5, 3, 7), Numbers<T>(1, 2, 1), Numbers<T>(40, 2, 9)}) {
        gpipe::cuda::Stream const stream(0);
        Results<T> const host = run(numbers, gpipe::detail::NormLoops{}, [](auto const& values) {
            return OnHost<typename std::remove_cvref_t<decltype(values)>::value_type>{values};
        });
        gpipe::device::Cuda::Stream const on(stream.get());
        Results<T> const gpu = run(numbers, gpipe::detail::norm_work(on), [&](auto const& values) {
            return OnGpu<typename std::remove_cvref_t<decltype(values)>::value_type>(values,
                                                                                     stream.get());
        });
        compare(gpu.y, host.y, epsilon);
        compare(gpu.dx, host.dx, epsilon);
        compare(gpu.dscale, host.dscale, epsilon);
        compare(gpu.dshift, host.dshift, epsilon);
        compare(gpu.fixed_dx, host.fixed_dx, epsilon);
        compare(gpu.fixed_dscale, host.fixed_dscale, epsilon);
        compare(gpu.fixed_dshift, host.fixed_dshift, epsilon);
        CHECK(gpu.cleared == host.cleared);
        compare(gpu.sync_y, host.sync_y, epsilon);
        compare(gpu.sync_dx, host.sync_dx, epsilon);
        compare(gpu.sync_dscale, host.sync_dscale, epsilon);
        compare(gpu.sync_dshift, host.sync_dshift, epsilon);
        compare(gpu.statistics, host.statistics, 1e-10);
        compare(gpu.copied, host.copied, 1e-10);
        compare(gpu.running, host.running, 1e-10);
        CHECK(gpu.moves == host.moves);
        CHECK(host.moves[0] == 3);
    }
}
