// expect GPIPE_NO_PIPELINE: gpipe: the first argument of Inference is the model: a gpipe::Pipeline
// expect GPIPE_LOSS: gpipe: policy Index is none that an Inference knows: Cells or Balance, MicroB
// expect GPIPE_LOSS: CheckInferencePolicy<(1, gpipe::Loss<.*, false>|.*Index=1, Policy=gpipe::Loss<)
// expect GPIPE_CHECKPOINTING: gpipe: policy Index is none that an Inference knows: Cells or Balance
// expect GPIPE_UNKNOWN: gpipe: policy Index is none that an Inference knows: Cells or Balance, Micr
// expect GPIPE_NO_CUDA: gpipe: Policy is declared, but its header is not included: for gpipe::device::Cuda
// expect GPIPE_TWICE: gpipe: policy Index is given twice: there is one of each kind
// expect GPIPE_TOO_MANY_CELLS: gpipe: there are more cells .K. than layers .Layers.; every cell hol
// expect GPIPE_NO_MICRO_BATCHES: gpipe: MicroBatches<M> needs at least one micro-batch
// expect GPIPE_NO_DEVICE: gpipe: a device is a queue: see DeviceQueue in gpipe/device/queue.hpp
// expect GPIPE_NO_KERNELS: gpipe: this device needs its kernels: include <gpipe/gpipe.cuh>, through
// expect GPIPE_NO_FORWARD: gpipe: layer Index .L. has no forward: void forward.auto& context, auto
#include <gpipe/inference.hpp>
#include <support/blank_layers.hpp>
#include <support/blank_loss.hpp>

using Net = gpipe::Pipeline<blank::Linear<4>, blank::Linear<4>>;
struct NoForward {
    using Input = gpipe::Tensor<float, 4>;
    using Output = Input;
    static constexpr bool only_evaluates = true;
};
struct NoDevice {
    using policy_kind = gpipe::policy::Device;
};
struct NoKernels : gpipe::device::Host {
    using gpipe::device::Host::Host;
};
template <> struct gpipe::StepWork<NoKernels>;

#if defined(GPIPE_NO_PIPELINE)
using Infer = gpipe::Inference<blank::Linear<4>>;
#elif defined(GPIPE_LOSS)
using Infer = gpipe::Inference<Net, gpipe::Cells<2>, gpipe::Loss<blank::Loss<4>>>;
#elif defined(GPIPE_CHECKPOINTING)
using Infer = gpipe::Inference<Net, gpipe::checkpoint::Never>;
#elif defined(GPIPE_UNKNOWN)
using Infer = gpipe::Inference<Net, NoForward>;
#elif defined(GPIPE_NO_CUDA)
using Infer = gpipe::Inference<Net, gpipe::device::Cuda>;
#elif defined(GPIPE_TWICE)
using Infer = gpipe::Inference<Net, gpipe::Cells<2>, gpipe::Balance<1, 1>>;
#elif defined(GPIPE_TOO_MANY_CELLS)
using Infer = gpipe::Inference<Net, gpipe::Cells<3>>;
#elif defined(GPIPE_NO_MICRO_BATCHES)
using Infer = gpipe::Inference<Net, gpipe::MicroBatches<0>>;
#elif defined(GPIPE_NO_DEVICE)
using Infer = gpipe::Inference<Net, NoDevice>;
#elif defined(GPIPE_NO_KERNELS)
using Infer = gpipe::Inference<Net, NoKernels>;
#elif defined(GPIPE_NO_FORWARD)
using Infer = gpipe::Inference<gpipe::Pipeline<NoForward, NoForward>>;
#else
using Infer = gpipe::Inference<Net, gpipe::MicroBatches<4>, gpipe::Cells<2>>;
#endif
static_assert(Infer::layer_count == Infer::layer_count);
void use(float const* data) {
    Infer infer(Net{}, {.samples = 4});
    float const(&x)[8] = *reinterpret_cast<float const(*)[8]>(data);
    float y[8];
    infer.predict(x, y);
}
