#pragma once

#include <gpipe/core/bytes.hpp>
#include <gpipe/cuda/for_each_index.cuh>
#include <gpipe/device/cuda.hpp>
#include <gpipe/runtime/poison.hpp>
#include <gpipe/runtime/work.hpp>

#include <cstddef>
#include <cstdint>

namespace gpipe::cuda {

namespace detail {

struct FillPoison {
    PoisonedBytes all;

    __device__ FillPoison operator()() const { return *this; }
    __device__ void operator()(std::size_t i) const {
        reinterpret_cast<std::uint64_t*>(all.data)[i] = gpipe::detail::word_before(all, 8 * i);
    }
};

// What is found, as its greatest, where nothing is 0.
struct PoisonFound {
    unsigned long long before_end; // the complement of twice the first byte that is unwritten,
                                   // plus one if that was computed
    unsigned long long beyond;
};
// Behind the state of a step, in its slot.
inline PoisonFound* poison_found(StepFrame const& shared) {
    static_assert(sizeof(StepState) + sizeof(PoisonFound) <= decided_at);
    return reinterpret_cast<PoisonFound*>(const_cast<StepState*>(shared.state) + 1);
}

// The units that are to be written, then the bytes behind.
struct FindPoison {
    PoisonedBytes all;
    std::size_t units;
    PoisonFound* found;

    __device__ FindPoison operator()() const { return *this; }
    __device__ void operator()(std::size_t i) const {
        if (i < units) {
            std::size_t const at = i * all.poison.unit;
            if (gpipe::detail::is_unwritten(all, at))
                atomicMax(&found->before_end,
                          ~(2ull * at + (gpipe::detail::is_computed(all, at) ? 1 : 0)));
        } else {
            std::size_t const at = all.bytes + (i - units);
            if (all.data[at] != gpipe::detail::byte_of(all.guard, at))
                atomicMax(&found->beyond, static_cast<unsigned long long>(at + 1 - all.bytes));
        }
    }
};

} // namespace detail

/// What PoisonWork does, by kernels. In a capture, which cannot be waited for, nothing is looked
/// at.
///@{
inline void fill_poison(StepFrame const& shared, PoisonedBytes const& all) {
    for_each_index(*static_cast<device::Cuda::Stream const*>(shared.stream),
                   all.room / sizeof(std::uint64_t), detail::FillPoison{all});
}
inline PoisonFinding find_poison(StepFrame const& shared, PoisonedBytes const& all) {
    auto const& stream = *static_cast<device::Cuda::Stream const*>(shared.stream);
    if (stream.is_captured()) return {};
    detail::PoisonFound* const there = detail::poison_found(shared);
    detail::PoisonFound found{};
    check("cudaMemsetAsync", cudaMemsetAsync(there, 0, sizeof found, stream));
    std::size_t const units = all.poison.unit > 0 ? all.bytes / all.poison.unit : 0;
    for_each_index(stream, units + (all.room - all.bytes), detail::FindPoison{all, units, there});
    stream
        .finish(); // a copy to pageable memory would wait for other ranks, whatever becomes of them
    check("cudaMemcpyAsync",
          cudaMemcpyAsync(&found, there, sizeof found, cudaMemcpyDeviceToHost, stream));
    check("cudaStreamSynchronize", cudaStreamSynchronize(stream));
    PoisonFinding result;
    result.beyond = found.beyond;
    if (found.before_end != 0) {
        result.unwritten = ~found.before_end / 2;
        result.computed = ~found.before_end % 2 == 1;
    }
    return result;
}
///@}

} // namespace gpipe::cuda
