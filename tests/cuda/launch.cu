// expect GPIPE_NO_GPUS_STREAM: gpipe: this stream is none of a GPU's: who has kernels names gpipe::device::Cuda
// expect GPIPE_DEFAULT_STREAM: gpipe: this would be the default stream, which nobody waits for
// expect GPIPE_NULL_STREAM: gpipe: this would be the default stream, which nobody waits for
// expect GPIPE_ONE_ARGUMENT_LESS: gpipe: the kernel takes another number of arguments than it is given
// expect GPIPE_ONE_ARGUMENT_MORE: gpipe: the kernel takes another number of arguments than it is given
#include <gpipe/cuda/launch.cuh>

__global__ void add(float* values, int count) {
    if (threadIdx.x < static_cast<unsigned>(count)) values[threadIdx.x] += 1;
}
struct HostStream {};

void all(cudaStream_t stream, float* values) {
    using gpipe::cuda::launch;
#if defined(GPIPE_NO_GPUS_STREAM)
    launch(HostStream{}, 1, 64, 0, add, values, 4);
#elif defined(GPIPE_DEFAULT_STREAM)
    launch(0, 1, 64, 0, add, values, 4);
#elif defined(GPIPE_NULL_STREAM)
    launch(nullptr, 1, 64, 0, add, values, 4);
#elif defined(GPIPE_ONE_ARGUMENT_LESS)
    launch(stream, 1, 64, 0, add, values);
#elif defined(GPIPE_ONE_ARGUMENT_MORE)
    launch(stream, 1, 64, 0, add, values, 4, 5);
#else
    launch(stream, 1, dim3(8, 8), 0, add, values, 4L);
#endif
}
