#pragma once

#include <gpipe/chain/element.hpp>
#include <gpipe/core/error.hpp>
#include <gpipe/core/takes_copy.hpp>
#include <gpipe/layer/stash.hpp>
#include <gpipe/runtime/parameter_access.hpp>
#include <gpipe/runtime/summary.hpp>
#include <gpipe/runtime/timed.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>

namespace gpipe {

namespace detail {

// Whether F changes a Changed that it is given, not a copy.
template <class F, class Changed> struct CheckChange {
    static consteval bool ok() {
        constexpr bool changes =
            std::is_invocable_v<F, Changed&> && !takes_copy<std::remove_cvref_t<F>, Changed>();
        static_assert(changes,
                      "gpipe: change_layer<i>(f) and change_loss(f) call f with the layer, "
                      "or loss (Changed), that is to be changed: f has to take it by "
                      "reference, (auto& layer)");
        return changes;
    }
};

} // namespace detail

/// What can be looked at in a Training or an Inference of Net, and changed between its runs:
/// layers, parameters, buffers, the plan, and when actions ran.
template <class Self, class Net, class Device> class Inspectable : public Timed<Self> {
  public:
    /// Layer `index` as it is; all repetitions in a Repeat share one.
    template <std::size_t index> typename Net::template Layer<index> const& layer() const {
        return *static_cast<typename Net::template Layer<index> const*>(
            machine().model().layers[index].object);
    }
    /// Calls change(layer), which may set its run-time members, once no run is under way: from the
    /// next one on they hold. Runs that are kept as graphs are captured anew. (nvcc 13 takes what a
    /// generic lambda assigns as `layer = {.member = 1}` by position: `layer.member = 1` is right.)
    template <std::size_t index, class F> void change_layer(F&& change) {
        using Layer = typename Net::template Layer<index>;
        if constexpr (!detail::CheckChange<F, Layer>::ok()) return;
        settled().engine().forget_steps();
        static_cast<F&&>(change)(
            const_cast<Layer&>(layer<index>())); // of a Net that is no constant
    }

    /// The parameters of layer `index` as its context gives them, writable between runs; where the
    /// host can read the device's memory. They may be written until anything else of the training
    /// is called: only then are tied ones, and those of other replicas, given what was written;
    /// where a layer ties two of its own, what is in the first.
    template <std::size_t index> auto parameters() {
        std::byte* const* all = nullptr;
        if constexpr (detail::CheckViews<Device>::ok()) all = lent(index).layer(index).parameters;
        return parameter_views<ParametersOf<index>, detail::Access::write>(all);
    }
    /// Parameter tensor `tensor` of layer `layer`, by number. Throws std::out_of_range, and
    /// std::invalid_argument if its elements are of another type than T; std::byte stands for any.
    template <class T> std::span<T> parameter(std::size_t layer, std::size_t tensor) {
        if constexpr (!detail::CheckViews<Device>::ok()) return {};
        auto const at = parameter_at<T>(settled(), layer, tensor);
        lent(layer, tensor);
        return {reinterpret_cast<T*>(at.parameter), at.bytes / sizeof(T)};
    }
    /// The same by copies, from and to any device's memory: to or from what a std::span is made of,
    /// a vector, an array. T need not be said. Waits for the steps under way, and so for other
    /// ranks in these. Throws std::invalid_argument, too, if the sizes differ.
    template <class T = void, class Range = std::span<T>>
        requires detail::IsArray<Range>
    void read_parameter(std::size_t layer, std::size_t tensor, Range&& to) {
        auto const values = detail::written_span<T, Range>(to);
        auto& machine = settled();
        machine.copy(std::as_writable_bytes(values).data(),
                     parameter_for(machine, layer, tensor, values).parameter, values.size_bytes());
    }
    /// To the parameter.
    template <class T = void, class Range = std::span<T const>>
        requires detail::IsArray<Range>
    void write_parameter(std::size_t layer, std::size_t tensor, Range const& from) {
        auto const values = detail::read_span<T>(from);
        auto& machine = detail::MachineAccess::of(self());
        machine.finish();
        machine.copy(parameter_for(machine, layer, tensor, values).parameter,
                     std::as_bytes(values).data(), values.size_bytes());
        machine.engine().tied().spread(layer, tensor);
    }
    /// Copies buffer `tensor` of layer `layer`, see LayerTraits::Buffers, from and to any device's
    /// memory, as a parameter. Throws std::out_of_range where there is none, std::invalid_argument
    /// if its elements are of another type than T (std::byte stands for any), or not as many.
    template <class T = void, class Range = std::span<T>>
        requires detail::IsArray<Range>
    void read_buffer(std::size_t layer, std::size_t tensor, Range&& to) {
        auto const values = detail::written_span<T, Range>(to);
        auto& machine = settled();
        machine.copy(std::as_writable_bytes(values).data(),
                     buffer_for(machine, layer, tensor, values), values.size_bytes());
    }
    /// To the buffer.
    template <class T = void, class Range = std::span<T const>>
        requires detail::IsArray<Range>
    void write_buffer(std::size_t layer, std::size_t tensor, Range const& from) {
        auto const values = detail::read_span<T>(from);
        auto& machine = settled();
        static_cast<void>(detail::MachineAccess::of(self())); // is written
        machine.copy(buffer_for(machine, layer, tensor, values), std::as_bytes(values).data(),
                     values.size_bytes());
    }
    /// How many parameter tensors a layer has. Throws std::out_of_range.
    std::size_t tensors(std::size_t layer) const {
        check_layer(machine(), layer);
        return machine().model().infos[layer].parameters.count;
    }

    /// Layers, shapes, parameters, cells and bytes as a text of two tables.
    std::string summary() const {
        return gpipe::summary(machine().model().infos, elements_of<Net>(), machine().model().ties,
                              plan());
    }

    /// Where a run failed: of those that came to their end since one last began, a step, evaluation
    /// or prediction, the last that did.
    std::optional<Failure> const& failure() const { return machine().engine().failure(); }
    std::size_t devices() const { return programs().devices(); }             ///< K
    std::size_t cells() const { return programs().cells(); }                 ///< on all devices
    std::size_t micro_batches() const { return programs().micro_batches(); } ///< M
    /// Walkers of a run: threads on the host.
    std::size_t lanes() const { return machine().engine().lanes(); }
    /// Steps, or inferences, that the device has kept as CUDA graphs, and launches without calling
    /// a layer, see device::Cuda::Options::graphs: of each size of mini-batches two, once both have
    /// been captured; none of one that could not be.
    std::size_t kept_runs() const { return machine().device().kept(); }
    std::uint64_t seed() const { return machine().engine().seed(); } ///< Options::seed
    /// Steps trained, and done by now.
    std::uint64_t steps() const { return machine().engine().steps(); }
    std::size_t samples() const { return machine().samples(); } ///< Options::samples
    /// The programs, with their recomputes, as they run.
    Programs const& programs() const { return machine().programs(); }
    MemoryPlan const& plan() const { return machine().plan(); }       ///< where everything lies
    std::size_t planned_bytes() const { return plan().total(); }      ///< of all arenas
    std::size_t used_bytes() const { return machine().used_bytes(); } ///< the same, as allocated
    /// Bytes of the host's memory that copies go to or through: what is offloaded, tensors on their
    /// way between devices that cannot reach each other, and the snapshot, if there is one.
    std::size_t host_bytes() const { return plan().host + plan().snapshot; }
    /// A device's memory. Throws std::out_of_range for a device that is not there.
    std::span<std::byte> arena(std::size_t device) {
        std::size_t const devices = plan().devices.size();
        if (device >= devices)
            detail::throw_error<std::out_of_range>(
                "gpipe: there is no device %zu: there are %zu, numbered from 0", device, devices);
        return detail::MachineAccess::machine(self()).arena(device);
    }

  protected:
    /// Once no run is under way. Throws what was wrong with one that nobody listens to.
    auto& settled() {
        auto& machine = detail::MachineAccess::machine(self());
        machine.finish();
        return machine;
    }

  private:
    template <std::size_t index>
    using ParametersOf = typename LayerTraits<typename Net::template Layer<index>>::Parameters;

    Self& self() { return static_cast<Self&>(*this); }
    auto const& machine() const {
        return detail::MachineAccess::of(static_cast<Self const&>(*this));
    }
    template <class Machine, class T>
    static std::byte* buffer_for(Machine& machine, std::size_t layer, std::size_t tensor,
                                 std::span<T> values) {
        check_layer(machine, layer);
        TensorTypes const types = elements_of<Net>()[layer].buffers;
        std::string const name(machine.model().infos[layer].name);
        if (tensor >= types.size())
            detail::throw_error<std::out_of_range>(
                "gpipe: there is no buffer %zu in layer %zu (%s): it has %zu", tensor, layer,
                name.c_str(), types.size());
        TensorType const& type = types[tensor];
        using Element = std::remove_const_t<T>;
        if (type.name != type_name<Element> && !std::is_same_v<Element, std::byte>)
            detail::throw_error<std::invalid_argument>(
                "gpipe: the elements of buffer %zu of layer %zu (%s) are of type %s, not %s",
                tensor, layer, name.c_str(), std::string(type.name).c_str(),
                std::string(type_name<Element>).c_str());
        if (values.size_bytes() != type.count * type.element.bytes)
            detail::throw_error<std::invalid_argument>(
                "gpipe: buffer %zu of layer %zu has %zu elements, not %zu", tensor, layer,
                type.count, values.size());
        return machine.model().infos[layer].buffers.find(machine.layer(layer).buffers.buffers,
                                                         tensor);
    }
    // Whose parameters of this layer may be written.
    auto& lent(std::size_t layer, std::size_t tensor = 0) {
        auto& machine = settled();
        machine.engine().tied().lend(layer, tensor);
        return detail::MachineAccess::of(self());
    }
};

} // namespace gpipe
