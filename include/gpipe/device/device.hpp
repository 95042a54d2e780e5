#pragma once

#include <gpipe/device/executor.hpp>
#include <gpipe/device/memory.hpp>
#include <gpipe/device/queue.hpp>

#include <concepts>
#include <cstddef>
#include <exception>

namespace gpipe {

namespace policy {
struct Device;
} // namespace policy

namespace device {
class Cuda; // in gpipe.cuh; CheckIncluded has the sentence where that is missing
} // namespace device

/// What runs programs: a policy, made, with its Options, for K devices of a pipeline. Nothing that
/// uses one may rely on a call's having finished before the run has.
template <class D>
concept DeviceRuntime = DeviceQueue<D> && DeviceMemory<D> && DeviceExecutor<D> &&
    requires(typename D::Options options, std::size_t devices) {
    requires std::same_as<typename D::policy_kind, policy::Device>;
    D(options, devices);
};

/// What a type must offer to be a device.
template <class D> struct CheckDevice {
    static consteval bool ok() {
        constexpr bool queue = DeviceQueue<D>; // the first that is wrong is said
        constexpr bool memory = !queue || DeviceMemory<D>;
        constexpr bool executor = !queue || !memory || DeviceExecutor<D>;
        constexpr bool made = !queue || !memory || !executor || DeviceRuntime<D>;
        static_assert(queue,
                      "gpipe: a device is a queue: see DeviceQueue in gpipe/device/queue.hpp");
        static_assert(memory,
                      "gpipe: a device has memory: see DeviceMemory in gpipe/device/memory.hpp");
        static_assert(executor, "gpipe: a device is an executor: see DeviceExecutor in "
                                "gpipe/device/executor.hpp");
        static_assert(made, "gpipe: a device is made of its Options and the number of devices");
        return DeviceRuntime<D>;
    }
};

namespace detail {

// Calls f(stream) on a device's stream, and returns when that and what it has enqueued is done.
// Throws what f throws.
template <class Device, class F> void call_on(Device& device, std::size_t stream, F&& f) {
    std::exception_ptr error;
    device.run([&] {
        device.launch(stream, [&]() noexcept {
            try {
                f(device.stream(stream));
            } catch (...) {
                error = std::current_exception();
            }
        });
    });
    if (error) std::rethrow_exception(error);
}

} // namespace detail

/// What the library itself does in a step: see runtime/device_work.hpp. A device on which the
/// functions of layers put work on a stream, instead of doing it, has its own.
template <class Device> struct StepWork;

} // namespace gpipe
