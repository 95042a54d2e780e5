#pragma once

#include <gpipe/core/compiled.hpp>
#include <gpipe/core/error.hpp>
#include <gpipe/core/host_device.hpp>
#include <gpipe/optimizer/optimizer.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>

GPIPE_CALLS_USERS_BEGIN
namespace gpipe {

/// Parameter tensors that take a share of the learning rate and of the weight decay. As it is, all
/// of them, with all of it.
struct ParameterGroup {
    /// No bound: every layer above, every tensor.
    static constexpr std::uint32_t every = static_cast<std::uint32_t>(-1);

    std::uint32_t first_layer = 0;    ///< its index in the chain
    std::uint32_t last_layer = every; ///< itself one of the group
    std::uint32_t tensor = every;     ///< of each layer
    std::uint64_t type = 0;           ///< type_id<L>: only layers of type L
    float rate = 1;                   ///< 0: these parameters rest
    float decay = 1;                  ///< share of the weight decay

    /// Whether the tensor that an optimizer is told of belongs to it.
    GPIPE_HOST_DEVICE constexpr bool has(UpdateContext const& context) const {
        return first_layer <= context.layer && context.layer <= last_layer &&
               (tensor == every || tensor == context.tensor) && (type == 0 || type == context.type);
    }
};

namespace detail {

[[gnu::cold]] GPIPE_INLINE void check_group(ParameterGroup const& group, std::size_t number,
                                            std::size_t layers) {
    if (group.first_layer > group.last_layer)
        throw_error<std::invalid_argument>(
            "gpipe: groups[%zu] of the optimizer is of layers %u to %u: there are none", number,
            group.first_layer, group.last_layer);
    bool const open = group.last_layer == ParameterGroup::every;
    if (group.first_layer < layers && (open || group.last_layer < layers)) return;
    std::string const last = open ? "and above" : "to " + std::to_string(group.last_layer);
    throw_error<std::invalid_argument>("gpipe: groups[%zu] of the optimizer is of layers %u %s, "
                                       "but L = %zu: the chain has layers 0 to %zu",
                                       number, group.first_layer, last.c_str(), layers, layers - 1);
}

// What it names has to be there; if nothing is there, it names nothing.
[[gnu::cold]] GPIPE_INLINE void check_group(ParameterGroup const& group, std::size_t number,
                                            std::span<UpdateContext const> tensors) {
    for (UpdateContext const& tensor : tensors)
        if (group.has(tensor)) return;
    if (group.type == 0 && group.tensor == ParameterGroup::every && tensors.empty()) return;
    std::string const which =
        group.tensor == ParameterGroup::every ? "" : " " + std::to_string(group.tensor);
    throw_error<std::invalid_argument>(
        "gpipe: groups[%zu] of the optimizer is of nothing: none of its layers%s has a parameter "
        "tensor%s; tied ones are those of the first of their layers",
        number, group.type ? " of that type" : "", which.c_str());
}

struct NoGroups {};

} // namespace detail

/// Optimizer O with groups of parameters, at most `most`, which may be changed between steps:
///
///     Training<Net, ..., Optimizer<Grouped<AdamW>>> train{
///         net, loss, {{.learning_rate = 3e-4f}, {{.last_layer = 3, .rate = 0}}}, options};
///     train.optimizer().groups[0].rate = 0.1f;
///
/// A tensor takes the product of the shares of all groups that have it, times the layer's
/// `decay[t]`. A group must have some of the chain's tensors when a Training is made. An O of one's
/// own has to honour UpdateContext::rate, as the library's do.
template <class O, std::size_t most = 8> struct Grouped : O {
    static constexpr std::size_t states = O::states; ///< those of O
    using grouped = O;                               ///< whose tensors they are
    ParameterGroup groups[most]{}; ///< those not named have all tensors, with all of both

    /// Of an O, and groups in braces. (As an aggregate g++ 12 makes none of {}.)
    ///@{
    Grouped() = default;
    constexpr Grouped(O optimizer, detail::NoGroups = {}) : O(std::move(optimizer)) {}
    template <std::size_t n>
        requires(n <= most)
    constexpr Grouped(O optimizer, ParameterGroup const (&first)[n]) : O(std::move(optimizer)) {
        for (std::size_t g = 0; g < n; ++g) groups[g] = first[g];
    }
    ///@}

    /// For a chain of L layers: throws std::invalid_argument if a group names any beyond, or
    /// none; and what that of O throws.
    void check_layers(std::size_t layers) const {
        if constexpr (requires { O::check_layers(layers); }) O::check_layers(layers);
        for (std::size_t g = 0; g < most; ++g) detail::check_group(groups[g], g, layers);
    }
    /// For a chain of these parameter tensors, when a Training is made: throws
    /// std::invalid_argument if a group has none of them; and what that of O throws.
    void check_tensors(std::span<UpdateContext const> tensors) const {
        if constexpr (requires { O::check_tensors(tensors); }) O::check_tensors(tensors);
        for (std::size_t g = 0; g < most; ++g) detail::check_group(groups[g], g, tensors);
    }
    /// What O is told of a tensor.
    GPIPE_HOST_DEVICE UpdateContext shared(UpdateContext context) const {
        for (ParameterGroup const& group : groups)
            if (group.has(context)) {
                context.rate *= group.rate;
                context.decay *= group.decay;
            }
        return context;
    }
    /// That of O, with the shares of the tensor that the context names.
    template <class T>
    GPIPE_HOST_DEVICE auto rule(UpdateContext context) const requires(HasRule<O, T>) {
        return O::template rule<T>(shared(context));
    }
    /// Updates one tensor.
    template <class T>
    void operator()(UpdateContext context, UpdateTensor<T, states> tensor) const noexcept
        requires(detail::Updates<O, T>) {
        O::operator()(shared(context), tensor);
    }
};

} // namespace gpipe
GPIPE_CALLS_USERS_END
