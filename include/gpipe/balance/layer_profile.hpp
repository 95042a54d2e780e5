#pragma once

#include <gpipe/chain/info.hpp>
#include <gpipe/core/array.hpp>
#include <gpipe/core/compiled.hpp>
#include <gpipe/core/error.hpp>
#include <gpipe/core/hash.hpp>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string_view>

namespace gpipe {

/// What one layer takes for a micro-batch, and what it leaves.
struct LayerProfile {
    /// Seconds; of what a layer has not, 0.
    ///@{
    double forward = 0;
    double recompute = 0;       ///< the same as one that runs again
    double backward = 0;        ///< of all of it
    double input_gradient = 0;  ///< of that, its first half; where it has no halves, all of it
    double weight_gradient = 0; ///< its second half
    ///@}
    /// Bytes.
    ///@{
    std::size_t parameters = 0; ///< without gradients and optimizer state
    std::size_t saved = 0;      ///< what it keeps from forward to backward, beside its ends
    std::size_t output = 0;     ///< with what it stashes
    ///@}
};

/// A profile as constants can hold it: what profile() has found, or a header that was written of
/// it.
struct ProfileView {
    std::uint64_t chain = 0;     ///< see chain_number()
    std::size_t samples = 0;     ///< of the micro-batch
    Part<LayerProfile> layers{}; ///< by layer
};

namespace detail {

// Of "a::b<c>::d<e>" b: what g++, clang and nvcc write alike. ("<unnamed>::b" is one of nvcc's.)
GPIPE_INLINE constexpr std::string_view name_without_arguments(std::string_view type) {
    std::size_t begin = 0, end = 0;
    for (; end < type.size() && (type[end] != '<' || begin == end); ++end)
        if (type[end] == ':' || type[end] == ' ') begin = end + 1;
    return {type.data() + begin, end - begin};
}

} // namespace detail

/// A number for a chain of layers: of their types' names (not of template arguments, which
/// compilers spell in several ways), their tensors' elements and bytes, and which of them are
/// frozen, in their order.
GPIPE_INLINE constexpr std::uint64_t chain_number(LayerInfo const* layers, std::size_t size) {
    std::uint64_t number = type_number({});
    auto const add = [&](std::uint64_t value) { number = detail::mixed(number, value); };
    add(size);
    for (std::size_t i = 0; i < size; ++i) {
        LayerInfo const& layer = layers[i];
        add(type_number(detail::name_without_arguments(layer.name)));
        add(std::bit_cast<std::uint64_t>(layer.cost));
        add(layer.frozen * 4u + layer.splits * 2u + layer.accepts_none);
        if (layer.frozen_tensors) add(layer.frozen_tensors);
        // Of floats nothing, so that no profile from before this was there is stale.
        auto const add_element = [&](ElementInfo const& element) {
            if (element.bytes != sizeof(float) || !element.is_real)
                add(element.bytes * 4 + element.is_real * 2u + element.is_bool);
        };
        add(layer.skips.stashes);
        for (std::uint32_t s = 0; s < layer.skips.count(); ++s) {
            add(layer.skips.first[s].bytes);
            add_element(layer.skips.first[s].element);
        }
        auto const add_group = [&](GroupSizes const& group) {
            add(group.count);
            for (std::size_t t = 0; t < group.count; ++t) {
                add(group.bytes[t]);
                add_element(group.elements[t]);
            }
        };
        for (GroupSizes const* group :
             {&layer.input, &layer.output, &layer.saved, &layer.scratch, &layer.parameters,
              &layer.deferred, &layer.buffers, &layer.statistics})
            add_group(*group);
        if (!layer.exchanges()) continue; // else profiles from before there was this would be stale
        add_group(layer.exchanged);
        add_group(layer.exchanged_gradient);
    }
    return number;
}

/// Throws std::invalid_argument unless this is a profile of Net, a Pipeline, for micro-batches of
/// so many samples; returns it.
template <class Net>
constexpr ProfileView const& checked_profile(ProfileView const& profile, std::size_t samples) {
    if (profile.layers.size() != Net::size)
        detail::throw_error<std::invalid_argument>(
            "gpipe: the profile is stale: it is of %zu layers, and the chain has %zu; profile it "
            "again",
            profile.layers.size(), Net::size);
    if (profile.samples != samples)
        detail::throw_error<std::invalid_argument>(
            "gpipe: the profile is stale: it is for micro-batches of %zu samples, not of %zu; "
            "profile the chain again",
            profile.samples, samples);
    if (profile.chain != chain_number(Net::layers().data(), Net::size))
        throw std::invalid_argument("gpipe: the profile is stale: it is of layers of other types "
                                    "or shapes; profile the chain again");
    return profile;
}

/// The same of a constant. A struct so that the compiler's first line names the numbers.
template <std::size_t Profiled, std::size_t Layers, std::size_t ProfiledSamples,
          std::size_t Samples, bool same>
struct CheckProfile {
    static consteval bool ok() {
        static_assert(Profiled == Layers,
                      "gpipe: the profile is stale: it is of Profiled layers, and the chain has "
                      "Layers; profile it again");
        static_assert(Profiled != Layers || ProfiledSamples == Samples,
                      "gpipe: the profile is stale: it is for micro-batches of ProfiledSamples "
                      "samples, not of Samples; profile the chain again");
        static_assert(Profiled != Layers || ProfiledSamples != Samples || same,
                      "gpipe: the profile is stale: it is of layers of other types or shapes; "
                      "profile the chain again");
        return Profiled == Layers && ProfiledSamples == Samples && same;
    }
};

} // namespace gpipe
