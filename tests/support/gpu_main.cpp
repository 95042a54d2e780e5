// The main of the programs in gpu/: where there is no GPU they say so and are skipped.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <gpipe/device/cuda_error.hpp>

#include <cstdio>

int main(int argc, char** argv) {
    doctest::Context context(argc, argv);
    try {
        gpipe::cuda::device_count();
    } catch (gpipe::cuda::NoDevice const& none) {
        std::printf("%s\n", none.what()); // SKIP_REGULAR_EXPRESSION in tests/CMakeLists.txt
        return 1;
    }
    int const result = context.run();
    gpipe::cuda::detail::forget(cudaDeviceReset()); // so that compute-sanitizer sees what leaks
    return result;
}
