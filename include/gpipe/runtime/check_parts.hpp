#pragma once

#include <gpipe/chain/check_loss.hpp>
#include <gpipe/core/checked.hpp>
#include <gpipe/core/compiled.hpp>
#include <gpipe/core/dynamic.hpp>
#include <gpipe/device/device.hpp>
#include <gpipe/optimizer/optimizer.hpp>
#include <gpipe/runtime/device_work.hpp>
#include <gpipe/runtime/loss_thunk.hpp>
#include <gpipe/schedule/programs.hpp>
#include <gpipe/transport/local.hpp>

#include <cstddef>
#include <type_traits>

namespace gpipe::detail {

struct NoLoss {
    using Target = Tensors<>;
};
// What stands for a loss in a Training with a mistake.
struct AnyLoss {
    using Target = Tensor<float>;
    LossValue<> operator()(auto&, auto, auto, auto) const { return {}; }
};

// Where no policy says how many.
GPIPE_INLINE constexpr std::size_t micro_batches_for(std::size_t devices) {
    return devices == dynamic ? dynamic : checked_product(4, devices ? devices : 1);
}

// M micro-batches of so many cells; either may be dynamic.
template <std::size_t count, std::size_t cells> struct CheckMicroBatches {
    static consteval bool ok() {
        static_assert(count > 0, "gpipe: MicroBatches<M> needs at least one micro-batch");
        constexpr bool few =
            count == dynamic || cells == dynamic || checked_product(count, cells) <= most_forwards;
        static_assert(few, "gpipe: MicroBatches<M> of so many cells are more forwards than "
                           "programs can hold: 2^27");
        return count > 0 && few;
    }
};

// That the device's kernels have been included.
template <class Device> struct CheckKernels {
    static consteval bool ok() {
        constexpr bool has_kernels = requires { sizeof(StepWork<Device>); };
        static_assert(has_kernels,
                      "gpipe: this device needs its kernels: include <gpipe/gpipe.cuh>, through "
                      "nvcc");
        return has_kernels;
    }
};

// That there are a loss and an optimizer, and that the device can work with them.
template <class Chosen, class Net> struct CheckParts {
    using Device = typename Chosen::Device;
    using Update = typename Chosen::Update;
    using Loss = typename Chosen::LossFunctor;
    using Optimizer = typename Chosen::OptimizerFunctor;

    static consteval bool ok() {
        constexpr bool has_loss = !std::is_same_v<Loss, NoLoss>;
        static_assert(has_loss,
                      "gpipe: a Training needs a loss: gpipe::Loss<Functor> among its policies");
        if constexpr (!has_loss || !CheckDevice<Device>::ok())
            return false;
        else if constexpr (!CheckLoss<Loss, Net>::ok() || !CheckOptimizer<Optimizer>::ok())
            return false;
        else if constexpr (!CheckKernels<Device>::ok())
            return false;
        else
            return fits_device();
    }

  private:
    static consteval bool fits_device() {
        constexpr bool loss_enqueues =
            !calls_enqueue<Device> || !returns_value<Loss, typename Net::Output>;
        constexpr bool is_copied = Device::staged([] { return true; });
        constexpr bool trivial = std::is_trivially_copyable_v<Optimizer>;
        static_assert(
            loss_enqueues,
            "gpipe: on this device a loss returns nothing, whatever its stream is: its "
            "work writes sum, weight and metrics to context.value(), as it may on others");
        static_assert(!is_copied || trivial,
                      "gpipe: an optimizer must be trivially copyable to be copied to this device");
        static_assert(is_copied || !Update::immediate || trivial,
                      "gpipe: with update::Immediate an optimizer must be trivially copyable: each "
                      "step that is under way has its own");
        constexpr bool aligned = alignof(Optimizer) <= slot_alignment;
        static_assert(aligned || !(is_copied || Update::immediate),
                      "gpipe: the alignment of the optimizer is more than 256 bytes, the most that "
                      "copies of it have on this device, and with update::Immediate");
        return loss_enqueues && (trivial || (!is_copied && !Update::immediate));
    }
};

// That a device might do with the bytes of a policy. The template arguments name the device that
// needs the most, and at least how much.
template <class Policy, std::size_t device, std::size_t least_bytes, std::size_t bytes>
struct CheckBudget {
    static consteval bool ok() {
        static_assert(least_bytes <= bytes,
                      "gpipe: this device does not fit into the bytes of Policy, however often "
                      "layers run again: it needs least_bytes at least for the samples of Policy");
        return least_bytes <= bytes;
    }
};

} // namespace gpipe::detail
