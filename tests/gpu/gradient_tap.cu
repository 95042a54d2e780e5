// The kernels of a GradientTap against its loops. Within trainings: layers.cu.
#include "support/gpu_memory.hpp"

#include <gpipe/cuda/tap_work.cuh>

#include <doctest/doctest.h>

#include <cstddef>
#include <vector>

TEST_CASE_TEMPLATE("kernels of a GradientTap give what its loops give", T, float, double) {
    gpipe::cuda::Stream const stream(0);
    gpipe::detail::TapWork<gpipe::device::Cuda::Stream> const on_gpu(
        gpipe::device::Cuda::Stream(stream.get()));
    gpipe::detail::TapWork<int> const loops(0);
    for (std::size_t const count : {1, 7, 1000}) {
        std::vector<T> values(count), expected(count), copied(count);
        for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<T>(i) / 3 - 1;
        gpipe::StepState state;
        state.loss_scale = 3;
        loops.unscale(values.data(), expected.data(), count, &state);
        loops.copy(values.data(), copied.data(), count);
        gpipe::cuda::Buffer const from(0, count * sizeof(T)), to(0, count * sizeof(T)),
            copy(0, count * sizeof(T)), there(0, sizeof state);
        toy::write(from, values);
        toy::write(there, std::vector<gpipe::StepState>{state});
        auto const at = [](gpipe::cuda::Buffer const& buffer) {
            return static_cast<T*>(static_cast<void*>(buffer.data()));
        };
        on_gpu.unscale<T>(
            at(from), at(to), count,
            static_cast<gpipe::StepState const*>(static_cast<void const*>(there.data())));
        on_gpu.copy<T>(at(from), at(copy), count);
        gpipe::cuda::check("a wait", cudaStreamSynchronize(stream.get()));
        CHECK(toy::read<T>(to, count) == expected);
        CHECK(toy::read<T>(copy, count) == copied);
        CHECK(copied == values);
    }
}
