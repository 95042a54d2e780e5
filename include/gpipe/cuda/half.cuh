#pragma once

#include <gpipe/layer/dtype.hpp>
#include <gpipe/layer/tensor.hpp>

#include <type_traits>

// Declared only: cuda_fp16.h and cuda_bf16.h are for those who calculate with them.
struct __half;
struct __nv_bfloat16;

/// Tensors of CUDA's floating-point types of 16 bits carry gradients, of their own type. Parameters
/// are float, in which the library's optimizers calculate: what one adds to a parameter is often
/// less than 16 bits can tell.
template <> struct gpipe::CarriesGradient<__half> : std::true_type {};
/// Likewise.
template <> struct gpipe::CarriesGradient<__nv_bfloat16> : std::true_type {};

/// In saved states.
template <>
struct gpipe::DtypeOf<__half> : std::integral_constant<gpipe::Dtype, gpipe::Dtype::F16> {};
/// In saved states.
template <>
struct gpipe::DtypeOf<__nv_bfloat16> : std::integral_constant<gpipe::Dtype, gpipe::Dtype::BF16> {};
