#pragma once

#include <gpipe/core/checked.hpp>
#include <gpipe/core/error.hpp>
#include <gpipe/core/split.hpp>
#include <gpipe/layer/batch.hpp>
#include <gpipe/runtime/agreement.hpp>
#include <gpipe/runtime/gathering.hpp>
#include <gpipe/runtime/machine.hpp>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <span>
#include <stdexcept>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace gpipe::detail {

template <class Group> struct LoaderTensors;
// Of a mini-batch: memory that costs nothing where nobody writes.
template <class... Ts> struct LoaderTensors<Tensors<Ts...>> {
    std::tuple<std::unique_ptr<typename Ts::Element[]>...> arrays;

    explicit LoaderTensors([[maybe_unused]] std::size_t samples)
        : arrays(std::unique_ptr<typename Ts::Element[]>(
              new typename Ts::Element[checked_product(samples, Ts::size)])...) {}
    // read(span of each tensor) for a sample.
    template <class Read> void fill([[maybe_unused]] std::size_t sample, Read read) {
        std::apply(
            [&](auto&... array) {
                read(std::span<typename Ts::Element, Ts::size>(array.get() + sample * Ts::size,
                                                               Ts::size)...);
            },
            arrays);
    }
    template <class Batch> Batch batch([[maybe_unused]] std::size_t first_samples) const {
        return std::apply(
            [&](auto const&... array) {
                return Batch(std::span<typename Ts::Element const>(array.get(),
                                                                   first_samples * Ts::size)...);
            },
            arrays);
    }
};

// Whether a source has what a Loader asks it for.
template <class Source, class Inputs, class Targets> struct CheckSource;
template <class Source, class... Is, class... Ts>
struct CheckSource<Source, Tensors<Is...>, Tensors<Ts...>> {
    template <class T> using Span = std::span<typename T::Element, T::size>;

    static consteval bool ok() {
        constexpr bool counts = requires(Source const source) {
            static_cast<std::uint64_t>(source.size());
        };
        constexpr bool inputs = requires(Source source, std::uint64_t const sample) {
            source.inputs(sample, std::declval<Span<Is>&>()...);
        };
        constexpr bool targets =
            sizeof...(Ts) == 0 || requires(Source source, std::uint64_t const sample) {
            source.targets(sample, std::declval<Span<Ts>&>()...);
        };
        static_assert(counts, "gpipe: the source of a Loader says how many samples it has: "
                              "std::size_t size() const");
        static_assert(inputs, "gpipe: the source of a Loader writes the inputs of a sample, a span "
                              "for each tensor: void inputs(std::uint64_t sample, "
                              "std::span<float>...)");
        static_assert(targets, "gpipe: the source of a Loader writes the targets of a sample, a "
                               "span for each tensor: void targets(std::uint64_t sample, "
                               "std::span<float>...)");
        return counts && inputs && targets;
    }
};

// The samples of which replica are read in this process, and what of them.
struct LoaderPart {
    std::size_t replica, replicas;
    bool inputs, targets;

    // Of so many of a mini-batch.
    SampleRange of(std::size_t samples) const { return Split(samples, replicas)[replica]; }
};
template <class Machine> bool reads_sides(Machine const& machine) {
    for (std::size_t i = 0; i < machine.model().infos.size(); ++i)
        if (machine.model().infos[i].sides.size() > 0 && machine.ranks().own(machine.device_of(i)))
            return true;
    return false;
}
// Throws what was wrong with what the Loader was told, which other ranks then hear of. `what`: a
// number for all that says which samples a mini-batch has; `all_count`: those that read nothing
// have to have the same.
template <class Train>
std::vector<LoaderPart> loader_parts(Train& train, std::exception_ptr const& wrong,
                                     std::uint64_t what, bool all_count) {
    std::vector<LoaderPart> parts;
    std::mutex mutex; // replicas of one process do this at once
    MachineAccess::together(train, [&](auto& machine, bool) {
        or_refuse(machine, [&] {
            if (wrong) std::rethrow_exception(wrong);
        });
        machine.begin_together(RankCall::reads);
        gathered(machine.device(), "a Loader", [&](auto& gathering) {
            Ranks const& ranks = machine.ranks();
            Programs const& programs = machine.programs();
            LoaderPart const part{ranks.replica, ranks.replicas,
                                  ranks.own(programs.device_of(0)) || reads_sides(machine),
                                  ranks.own(programs.device_of(programs.cells() - 1))};
            bool const compared = all_count || part.inputs || part.targets;
            auto const all = gathering.gather(compared ? what | 1 : 0);
            std::size_t first = 0;
            while (first + 1 < all.size() && !all[first]) ++first;
            for (std::size_t r = first; r < all.size(); ++r)
                if (all[r] && all[r] != all[first])
                    throw_error<std::invalid_argument>(
                        "gpipe: rank %zu has a Loader of another source, or with other options, "
                        "than rank %zu: all have to load the same",
                        r, first);
            std::lock_guard const lock(mutex);
            parts.push_back(part);
        });
    });
    return parts;
}
// What that throws other ranks are to hear of.
template <class Train, class Source> Source moved_source(Train& train, Source& source) try {
    return std::move(source);
} catch (...) {
    loader_parts(train, std::current_exception(), 0, false);
    throw;
}

} // namespace gpipe::detail
