#pragma once

#include <gpipe/core/version.hpp>

/// @def GPIPE_HOST_DEVICE
/// Before a function that kernels may call, too.
#ifdef __CUDACC__
#define GPIPE_HOST_DEVICE __host__ __device__
#else
#define GPIPE_HOST_DEVICE
#endif

/// @def GPIPE_CALLS_USERS_BEGIN
/// Around functions for kernels that call what a user has written: that it is not
/// GPIPE_HOST_DEVICE is an error, where nvcc would warn and leave an empty kernel.
/// @def GPIPE_CALLS_USERS_END
/// Behind them.
#ifdef __NVCC__
#define GPIPE_CALLS_USERS_BEGIN                                                                    \
    _Pragma("nv_diagnostic push") _Pragma("nv_diag_error 20011, 20012, 20013, 20014, 20015")
#define GPIPE_CALLS_USERS_END _Pragma("nv_diagnostic pop")
#else
#define GPIPE_CALLS_USERS_BEGIN
#define GPIPE_CALLS_USERS_END
#endif
