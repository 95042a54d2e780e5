#pragma once

#include <gpipe/core/version.hpp>

/// @def GPIPE_HOST_DEVICE
/// Before a function that kernels may call, too.
#ifdef __CUDACC__
#define GPIPE_HOST_DEVICE __host__ __device__
#else
#define GPIPE_HOST_DEVICE
#endif
