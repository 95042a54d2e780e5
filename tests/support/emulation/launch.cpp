#include "../cuda_double/world.hpp"
#include "worker.hpp"

#include <exception>
#include <thread>
#include <utility>

namespace emulation {

namespace {

std::uint64_t next_seed = 1;
Worker workers[2];

// Even blocks on this thread of the host, odd ones on another.
void run(cudaLaunchConfig_t const& config, void const* kernel, std::function<void()> const& body,
         std::uint64_t seed) {
    std::exception_ptr failures[2];
    auto const half = [&](std::size_t w) {
        try {
            workers[w].run(config, kernel, body, seed + w, w, 2);
        } catch (...) {
            failures[w] = std::current_exception();
        }
    };
    {
        bool const alone = config.gridDim.x * config.gridDim.y * config.gridDim.z == 1;
        std::jthread const other = alone ? std::jthread() : std::jthread(half, 1);
        half(0);
    }
    for (std::exception_ptr const& failure : failures)
        if (failure) std::rethrow_exception(failure);
}

bool can_be(cudaLaunchConfig_t const& config) {
    auto const [grid, block] = std::pair(config.gridDim, config.blockDim);
    auto const among = [](unsigned n, unsigned most) { return n >= 1 && n <= most; };
    return among(grid.x, 0x7FFFFFFF) && among(grid.y, 0xFFFF) && among(grid.z, 0xFFFF) &&
           among(block.x, 1024) && among(block.y, 1024) && among(block.z, 64) &&
           std::size_t{block.x} * block.y * block.z <= 1024;
}

} // namespace

void seed(std::uint64_t value) { next_seed = value; }

cudaError_t launch(cudaLaunchConfig_t const& config, void const* kernel,
                   std::function<void()> body) {
    cudaError_t const refused = !can_be(config)               ? cudaErrorInvalidConfiguration
                                : config.dynamicSmemBytes > 0 ? cudaErrorNotSupported
                                                              : cudaSuccess;
    if (refused != cudaSuccess)
        return cuda_double::detail::enter("cudaLaunchKernel", cuda_double::detail::plain,
                                          [&](auto&) { return refused; });
    return cuda_double::launch(
        config.stream,
        [=, body = std::move(body), seed = next_seed += 2] { run(config, kernel, body, seed); }, {},
        {});
}

} // namespace emulation
