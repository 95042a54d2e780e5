#pragma once

#include <gpipe/chain/handle_table.hpp>
#include <gpipe/chain/layer_fits.hpp>
#include <gpipe/core/array.hpp>
#include <gpipe/core/bytes.hpp>
#include <gpipe/core/compiled.hpp>
#include <gpipe/core/type_name.hpp>
#include <gpipe/layer/given.hpp>

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace gpipe {

/// The sizes of a group of tensors as a value.
struct GroupSizes {
    std::size_t const* bytes = nullptr;    ///< of each tensor
    std::size_t count = 0;                 ///< tensors
    ElementInfo const* elements = nullptr; ///< of each tensor, if anybody has said

    /// The bytes of the group's slots with room for `capacity` samples; 1 for whole tensors.
    [[gnu::noinline]] constexpr std::size_t slots(std::size_t capacity) const {
        std::size_t total = 0;
        for (std::size_t i = 0; i < count; ++i) total += slot_bytes(bytes[i] * capacity);
        return total;
    }
    /// Where one of whole tensors lies that begin at `base`; null where that is.
    constexpr std::byte* find(std::byte* base, std::size_t tensor) const {
        for (std::size_t i = 0; base && i < tensor; ++i) base += slot_bytes(bytes[i]);
        return base;
    }
    /// Where each of them does.
    constexpr Array<std::byte*> addresses(std::byte* base) const {
        Array<std::byte*> table(count);
        for (std::size_t i = 0; i < count; ++i) table[i] = find(base, i);
        return table;
    }
};

/// One layer as a value: all that cutting, planning and running need to know of its type. Types
/// become values once, so that nothing after this is instantiated per layer.
struct LayerInfo {
    std::string_view name; ///< its type, as the compiler writes it
    /// Of its tensors: of one sample, of parameters the whole.
    ///@{
    GroupSizes input, output, saved, scratch, parameters;
    ///@}
    GroupSizes deferred; ///< left by the input gradient for the weight gradient
    /// As large as the tensors that carry a gradient, none for others.
    ///@{
    GroupSizes input_gradient, output_gradient;
    ///@}
    std::size_t parameter_elements = 0;   ///< of all tensors
    double cost = 1;                      ///< of one sample's forward, see LayerTraits::cost
    bool reads_input = false;             ///< whether its backward does
    bool reads_output = false;            ///< likewise
    bool output_carries_gradient = false; ///< whether any tensor of it does, and backward runs
    bool accepts_none = false;            ///< see gpipe::accepts_none
    bool splits = false;                  ///< whether its backward comes in two halves
    bool has_whole = false;               ///< and also as one function of its own
    bool recompute_is_cheap = false;      ///< see gpipe::recompute_is_cheap
    bool frozen = false;                  ///< see gpipe::is_frozen
    HandleNeeds handles;                  ///< that it declares
    SkipEnds skips{};                     ///< what it stashes and pops
    TieEnds ties{};                       ///< which of its parameters are one with others
    GroupSizes buffers{};                 ///< whole tensors, see LayerTraits::Buffers
    GroupSizes statistics{};              ///< likewise
    bool wants_gradient = false;          ///< see gpipe::wants_gradient
    ConstantNeeds constants{};            ///< of the step, that it reads
    SideEnds sides{};                     ///< likewise: side inputs
    GroupSizes exchanged{};               ///< whole tensors, see LayerTraits::Exchanged
    GroupSizes exchanged_gradient{};      ///< likewise
    std::uint64_t frozen_tensors = 0;     ///< of a layer that is not: see gpipe::frozen_tensors

    /// Whether the gradient of its output is wanted: for parameters that are trained, or by itself.
    constexpr bool learns() const { return (parameters.count > 0 && !frozen) || wants_gradient; }
    /// Whether a parameter tensor is trained.
    constexpr bool learns(std::size_t tensor) const {
        return !frozen && (tensor > 63 || (frozen_tensors >> tensor & 1) == 0);
    }
    /// How many of the parameter tensors in front of this one are.
    constexpr std::size_t learned_before(std::size_t tensor) const {
        std::size_t learned = 0;
        for (std::size_t t = 0; t < tensor; ++t) learned += learns(t);
        return learned;
    }
    /// How many parameter tensors are.
    constexpr std::size_t learned_tensors() const { return learned_before(parameters.count); }
    /// The bytes of the slots of those that are.
    constexpr std::size_t learned_slots() const {
        std::size_t bytes = 0;
        for (std::size_t t = 0; t < parameters.count; ++t)
            if (learns(t)) bytes += slot_bytes(parameters.bytes[t]);
        return bytes;
    }
    /// Of those that are not.
    constexpr std::size_t frozen_slots() const { return parameters.slots(1) - learned_slots(); }
    /// Those of gradients that it adds to all the same, unless no backward reaches it.
    constexpr std::size_t unwanted_slots() const {
        return has_whole || !frozen ? frozen_slots() : 0;
    }
    /// Whose gradients nobody wants, a bit each.
    constexpr std::uint64_t unwanted() const { return frozen ? ~std::uint64_t{0} : frozen_tensors; }
    /// Makes it frozen: of its backward there is only what gives the input's gradient.
    constexpr void freeze() {
        frozen = true;
        frozen_tensors = 0;
        if (splits) splits = has_whole = false;
    }
    /// Makes these of its parameter tensors frozen, all of them the layer.
    constexpr void freeze_tensors(std::uint64_t tensors) {
        if (frozen) return;
        frozen_tensors |= tensors;
        if (parameters.count > 0 && learned_tensors() == 0) freeze();
    }
    /// Whether replicas tell each other anything for it within a step.
    constexpr bool exchanges() const { return exchanged.count + exchanged_gradient.count > 0; }
    /// Whether it has buffers.
    constexpr bool has_buffers() const { return buffers.count > 0; }
};

namespace detail {

template <class Group> constexpr GroupSizes sizes_of() {
    return {TensorGroup<Group>::bytes.data(), TensorGroup<Group>::count,
            TensorGroup<Group>::elements_of.data()};
}

template <class Group> constexpr GroupSizes gradient_sizes_of() {
    return {TensorGroup<Group>::gradient_bytes.data(), TensorGroup<Group>::count,
            TensorGroup<Group>::elements_of.data()};
}

template <class L> constexpr TieEnds tie_ends() {
    if constexpr (ties_parameters<L>)
        return ties_of<L>::ends();
    else
        return {};
}

template <class L> constexpr LayerInfo layer_info() {
    using Traits = LayerTraits<L>;
    LayerInfo info{type_name<L>,
                   sizes_of<typename Traits::Input>(),
                   sizes_of<typename Traits::Output>(),
                   sizes_of<typename Traits::Saved>(),
                   sizes_of<typename Traits::Scratch>(),
                   sizes_of<typename Traits::Parameters>(),
                   sizes_of<typename Traits::Deferred>(),
                   gradient_sizes_of<typename Traits::Input>(),
                   gradient_sizes_of<typename Traits::Output>(),
                   TensorGroup<typename Traits::Parameters>::elements,
                   Traits::cost,
                   Traits::reads_input,
                   Traits::reads_output,
                   TensorGroup<typename Traits::Output>::carries_gradient && !only_evaluates<L>,
                   accepts_none<L>,
                   splits_backward<L>,
                   names_backward<L>,
                   recompute_is_cheap<L>,
                   false,
                   handle_needs<L>(),
                   skips_of<L>::ends(),
                   tie_ends<L>(),
                   sizes_of<typename Traits::Buffers>(),
                   sizes_of<typename Traits::Statistics>()};
    info.wants_gradient = wants_gradient<L>;
    if constexpr (exchanges<L> || exchanges_gradient<L>) {
        info.exchanged = sizes_of<typename Traits::Exchanged>();
        info.exchanged_gradient = sizes_of<typename Traits::ExchangedGradient>();
    }
    if constexpr (is_given_more<L>) {
        info.constants = constant_needs<L>();
        info.sides = SideTypes<sides_of<L>>::ends();
    }
    if (is_frozen<L>) info.freeze();
    if constexpr (frozen_tensors<L> != 0) info.freeze_tensors(frozen_tensors<L>);
    return info;
}

} // namespace detail

/// The lowest layer that a gradient is wanted for: the first that learns above the last layer
/// whose output carries no gradient. L if there is none.
GPIPE_INLINE constexpr std::size_t lowest_learner(LayerInfo const* layers, std::size_t size) {
    std::size_t lowest = size;
    for (std::size_t i = size; i-- > 0 && layers[i].output_carries_gradient;)
        if (layers[i].learns()) lowest = i;
    return lowest;
}

/// Has it that nobody wants a gradient of this chain: there is no loss on top.
GPIPE_INLINE constexpr void only_evaluate(Array<LayerInfo>& layers) {
    LayerInfo& last = layers[layers.size() - 1];
    last.output_gradient = {};
    last.output_carries_gradient = false;
}

/// By layer its cost, as declared.
GPIPE_INLINE constexpr Array<double> layer_costs(LayerInfo const* layers, std::size_t size) {
    Array<double> costs(size);
    for (std::size_t i = 0; i < size; ++i) costs[i] = layers[i].cost;
    return costs;
}

/// By layer what cuts balance: its cost; where layers are frozen, what it does in a step, forwards,
/// backwards, and of a frozen layer that something flows through half of one, in thirds of that.
GPIPE_INLINE constexpr Array<double> cut_costs(LayerInfo const* layers, std::size_t size) {
    Array<double> costs = layer_costs(layers, size);
    bool frozen = false;
    for (std::size_t i = 0; i < size; ++i) frozen = frozen || layers[i].frozen;
    std::size_t const lowest = lowest_learner(layers, size);
    for (std::size_t i = 0; i < size && frozen; ++i)
        costs[i] *= (i < lowest ? 1.0 : layers[i].frozen ? 2.0 : 3.0) / 3;
    return costs;
}

} // namespace gpipe
