#pragma once

#include <gpipe/device/host.hpp>
#include <gpipe/pipeline.hpp>
#include <gpipe/probe/profile_layers.hpp>
#include <gpipe/runtime/model_of.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <type_traits>
#include <utility>

namespace gpipe {

/// How profile() measures.
template <class Device = device::Host> struct ProfileOptions {
    std::size_t samples = 0;           ///< of the micro-batch: those of a mini-batch, over M
    std::size_t rounds = 9;            ///< in which each function runs once; their median counts
    std::uint64_t seed = 0;            ///< of parameters and inputs
    typename Device::Options device{}; ///< on which the first device is taken
};

namespace detail {

// Whether two layers of one type do the same work, for Pipeline::leaf_table.
struct AlikeOf {
    using Value = bool (*)(void const*, void const*);
    template <class L> static bool alike(void const* a, void const* b) {
        if constexpr (std::is_empty_v<L>)
            return true;
        else if constexpr (std::equality_comparable<L>)
            return a == b || *static_cast<L const*>(a) == *static_cast<L const*>(b);
        else
            return a == b;
    }
    template <class L> static constexpr Value of() { return &alike<L>; }
};

// By layer the first one like it, as profile() has it.
template <class Net> Array<std::size_t> first_alike(Model const& model) {
    auto const alike = Net::template leaf_table<AlikeOf>();
    std::size_t const learner = lowest_learner(model.infos.data(), Net::size);
    auto const role = [&](std::size_t i) { return (i >= learner) + (i > learner); };
    Array<std::size_t> first(Net::size);
    Net::for_each_layer([&](std::size_t i, std::size_t leaf) {
        std::size_t j = 0;
        while (j < i &&
               (first[j] != j || role(i) != role(j) || model.infos[i].name != model.infos[j].name ||
                !alike[leaf](model.layers[i].object, model.layers[j].object)))
            ++j;
        first[i] = j;
    });
    return first;
}

} // namespace detail

/// Times forward, recompute, backward and its halves of every distinct layer of `net`, a Pipeline,
/// on one device: each once in a round, one behind the other, and waits for each; less what it
/// takes to wait for nothing. Layers are one if their types are, their run-time members, too (those
/// in a Repeat share theirs; else there are none, or == says so), and both or neither are the
/// lowest with parameters, whose input's gradient nobody wants.
///
/// Layers run as in the first step of a training, on what those before give them; the first is
/// given normal numbers, and zeros where elements carry no gradient. They have memory of their own,
/// of each distinct one as much as for one micro-batch: nothing of a training is read or changed.
/// Throws what a layer throws, and std::invalid_argument for no samples or rounds.
template <class Net, class Device = device::Host>
Profile profile(Net const& net, ProfileOptions<Device> const& options) {
    if (options.samples == 0 || options.rounds == 0)
        throw std::invalid_argument("gpipe: a profile is of one sample and one round at least");
    Model model;
    detail::make_layers<Device, void>(model, net);
    Array<std::size_t> const like = detail::first_alike<Net>(model);
    detail::LayerBench<Device> bench(std::move(model), options.seed, options.device);
    return detail::profile_layers(bench, elements_of<Net>(), like, options.samples, options.rounds);
}

} // namespace gpipe
