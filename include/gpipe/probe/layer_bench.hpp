#pragma once

#include <gpipe/call/handle_set.hpp>
#include <gpipe/call/handle_specs.hpp>
#include <gpipe/device/device.hpp>
#include <gpipe/runtime/calls.hpp>
#include <gpipe/runtime/has_constants.hpp>
#include <gpipe/runtime/model.hpp>
#include <gpipe/transport/local.hpp>

#include <cstddef>
#include <cstdint>
#include <utility>

namespace gpipe::detail {

/// What a LayerProbe needs without a training: a device of its own, and of that no memory but
/// workspaces. Its layers have the parameters, and the constants, that they begin with.
template <DeviceRuntime Device> class LayerBench {
    static_assert(!joins_ranks<Device>,
                  "gpipe: layers are timed in one process: on a device, not on "
                  "what joins those of ranks");

  public:
    /// The model's objects must outlive it.
    LayerBench(Model model, std::uint64_t seed, typename Device::Options options)
        : model_(std::move(model)), constants_(model_.infos.data(), model_.infos.size(), {}),
          seed_(seed), device_(std::move(options), 1) {
        model_.constants = constants_.all();
        device_.prepare(Array<std::size_t>(1), 1, {});
        HandlePlan plan;
        for (LayerInfo const& info : model_.infos) plan.add(info.handles);
        workspaces_ = device_.allocate(0, plan.bytes());
        for (LayerParts const& parts : model_.layers)
            handles_.add(parts.functions.handles, &device_.stream(0), workspaces_.data());
    }

    Model const& model() const { return model_; }
    std::uint64_t seed() const { return seed_; }
    static std::uint64_t steps() { return 0; }
    static std::size_t device_of(std::size_t) { return 0; }
    HandleSet const& handles(std::size_t) const { return handles_; }
    /// Initializes them in the host's memory, until the next call.
    LayerMemory layer(std::size_t i) {
        LayerParts const& parts = model_.layers[i];
        LayerInfo const& info = model_.infos[i];
        values_ = device_.allocate_host(info.parameters.slots(1));
        buffers_ = device_.allocate_host(info.buffers.slots(1));
        parts.functions.initialize(parts.object, values_.data(), buffers_.data(), seed_, i,
                                   model_.layers.size());
        parameters_ = info.parameters.addresses(values_.data());
        return {parameters_.data(), nullptr, {buffers_.data()}};
    }
    auto allocate(std::size_t device, std::size_t bytes) { return device_.allocate(device, bytes); }
    void copy(std::byte* to, std::byte const* from, std::size_t bytes) {
        if (bytes > 0) device_.run([&] { device_.copy(0, to, from, bytes); });
    }
    template <class F> void call(std::size_t, F f) { call_on(device_, 0, f); }

  private:
    Model model_;
    ConstantValues constants_;
    std::uint64_t seed_;
    Device device_;
    decltype(std::declval<Device&>().allocate(0, 0)) workspaces_;
    decltype(std::declval<Device&>().allocate_host(0)) values_, buffers_;
    Array<std::byte*> parameters_; // by tensor
    HandleSet handles_;            ///< goes before its workspaces and stream
};

} // namespace gpipe::detail
