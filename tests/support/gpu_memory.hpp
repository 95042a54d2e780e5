#pragma once

// Memory of a GPU from the host, done when a function returns. cudaMemcpy() will not do: from
// pageable memory it may return before the GPU's has it, and streams of the library do not wait for
// the legacy stream that the rest goes on.

#include <gpipe/device/cuda_memory.hpp>

#include <cstddef>
#include <vector>

namespace toy {

inline void copy(void* to, void const* from, std::size_t bytes, gpipe::cuda::StreamRef stream) {
    if (bytes == 0) return;
    gpipe::cuda::check("cudaMemcpyAsync",
                       cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream.get()));
}
template <class T> void write(gpipe::cuda::Buffer const& to, std::vector<T> const& values) {
    gpipe::cuda::Stream const stream(to.device());
    copy(to.data(), values.data(), values.size() * sizeof(T), stream);
    stream.synchronize();
}
/// `count` elements from byte `at` on.
template <class T>
std::vector<T> read(gpipe::cuda::Buffer const& from, std::size_t count, std::size_t at = 0) {
    gpipe::cuda::Stream const stream(from.device());
    std::vector<T> values(count);
    copy(values.data(), from.data() + at, count * sizeof(T), stream);
    stream.synchronize();
    return values;
}

} // namespace toy
