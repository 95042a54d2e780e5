#pragma once

#include <gpipe/core/version.hpp>

#if !defined __CUDACC__ && !defined GPIPE_EMULATES_KERNELS
#error gpipe: gpipe.cuh has kernels, and is for nvcc: name the source .cu, or include gpipe.hpp
#include <gpipe.cuh_is_for_nvcc> // nobody reads what would follow
#endif

// Everything for pipelines on GPUs, through nvcc: gpipe.hpp, device::Cuda and its kernels.
#include <gpipe/cuda/half.cuh>
#include <gpipe/cuda/launch.cuh>
#include <gpipe/cuda/step_work.cuh>
#include <gpipe/device/cuda.hpp>
#include <gpipe/gpipe.hpp>
#include <gpipe/transport/local_gpus.hpp>
