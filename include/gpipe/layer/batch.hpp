#pragma once

#include <gpipe/core/compiled.hpp>
#include <gpipe/core/error.hpp>
#include <gpipe/layer/view.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <stdexcept>
#include <type_traits>
#include <utility>

namespace gpipe {

/// One tensor of a mini-batch in the caller's memory.
struct TensorPointer {
    std::byte* data = nullptr;    ///< of the first sample
    std::size_t sample_bytes = 0; ///< of each sample
    bool absent = false;          ///< see Optional
    std::uint64_t number = 0;     ///< one more than that of its mini-batch, if it has one
};

namespace detail {

// A contiguous range with data() and size(); <ranges> would cost more than all other includes.
template <class Range, class Element> consteval bool fits_range() {
    if constexpr (is_none<Range>) {
        return true; // else there would be no sentence where it does not
    } else if constexpr (requires(Range & range) {
                             std::data(range);
                             std::size(range);
                         }) {
        using Given = std::remove_pointer_t<decltype(std::data(std::declval<Range&>()))>;
        return std::is_convertible_v<Given(*)[], Element(*)[]>;
    } else {
        return false;
    }
}

// The template arguments name a tensor and what is given for it.
template <class Tensor, class Given, bool fits> struct CheckRange {
    static consteval bool ok() {
        static_assert(fits, "gpipe: what is given for a tensor of a batch is no range of its "
                            "elements (both in CheckRange<Tensor, Given>): of a "
                            "gpipe::Tensor<float, ...> a std::vector<float>, a std::span<float "
                            "const>, an array, none of them const if it is written; of a pointer "
                            "nobody knows how long it is");
        return fits;
    }
};

} // namespace detail

/// See Batch.
template <class Group, bool writable> class BatchOf;

/// A mini-batch in the caller's memory: for each tensor of a group a contiguous range of N samples.
/// Made from one range per tensor (std::vector, std::span, std::array, ...); does not own them.
/// `writable`: what predict() writes, else what is only read.
template <class Group, bool writable = false>
using Batch = BatchOf<detail::as_tensors<Group>, writable>;

/// See Batch.
template <class... Ts, bool writable> class BatchOf<Tensors<Ts...>, writable> {
    template <class T>
    using Element = std::conditional_t<writable, typename T::Element, typename T::Element const>;
    template <class... Ranges> static consteval bool all_fit() {
        if constexpr (sizeof...(Ranges) != sizeof...(Ts))
            return false;
        else
            return (detail::fits_range<Ranges, Element<Ts>>() && ...);
    }

  public:
    static constexpr std::size_t count = sizeof...(Ts); ///< tensors
    static constexpr bool is_written = writable;        ///< whether the caller has them written
    /// Whether it can be made from these; asked otherwise the answer is a sentence.
    template <class... Ranges> static constexpr bool takes = all_fit<Ranges...>();

    /// A range for each tensor, of its elements; `gpipe::none` for one that is absent, see
    /// Optional.
    template <class... Ranges>
        requires(takes<Ranges...>)
    BatchOf(Ranges&&... ranges) : data_{begin_of(ranges)...}, elements_{elements_of(ranges)...} {
        constexpr bool holds = ((!is_none<Ranges> || detail::is_optional<Ts>)&&...);
        static_assert(holds, "gpipe: gpipe::none is given for a tensor that is always there: one "
                             "that may be absent is a gpipe::Optional<Tag, gpipe::Tensor<...>>");
    }

    /// @cond
    // For its sentence alone.
    template <class... Others>
        requires(sizeof...(Others) > 0 &&
                 !(std::is_base_of_v<BatchOf, std::remove_cvref_t<Others>> || ...) &&
                 !takes<Others...>)
    BatchOf(Others&&...) : data_{}, elements_{} {
        static_assert(
            sizeof...(Others) == sizeof...(Ts),
            "gpipe: a batch is made of one range for each of its tensors, in braces where "
            "there are several, side inputs last: there are more tensors than ranges here, or "
            "fewer");
        if constexpr (sizeof...(Others) == sizeof...(Ts))
            (void)(detail::CheckRange<Ts, std::remove_reference_t<Others>,
                                      detail::fits_range<Others, Element<Ts>>()>::ok() &&
                   ...);
    }
    /// @endcond

    /// The same as number n of those that all ranks see in one order, as a Loader says of its own.
    /// Ranks that are told to do something with others throw std::invalid_argument.
    BatchOf numbered(std::uint64_t n) const {
        BatchOf result = *this;
        result.number_ = n + 1;
        return result;
    }

    /// N. Throws std::invalid_argument if a range is not a whole number of samples or nowhere, if
    /// two disagree, or if none is there; `what` names the batch in the message.
    std::size_t samples(char const* what) const requires(sizeof...(Ts) > 0) {
        constexpr std::size_t sizes[] = {Ts::size...};
        std::size_t const first = there();
        if (first == count)
            detail::throw_error<std::invalid_argument>(
                "gpipe: none of the tensors of the %s is there, and so nothing says how many "
                "samples there are",
                what);
        for (std::size_t t = first; t < count; ++t) {
            if (elements_[t] == absent) continue;
            if (elements_[t] > 0 && !data_[t])
                detail::throw_error<std::invalid_argument>(
                    "gpipe: tensor %zu of the %s has %zu elements at a null pointer", t, what,
                    elements_[t]);
            if (elements_[t] % sizes[t] != 0)
                detail::throw_error<std::invalid_argument>(
                    "gpipe: tensor %zu of the %s has %zu elements, no multiple of the %zu of a "
                    "sample",
                    t, what, elements_[t], sizes[t]);
            if (elements_[t] / sizes[t] != elements_[first] / sizes[first])
                detail::throw_error<std::invalid_argument>(
                    "gpipe: the tensors of the %s hold %zu and %zu samples", what,
                    elements_[first] / sizes[first], elements_[t] / sizes[t]);
        }
        return elements_[first] / sizes[first];
    }

    /// The first tensor that is there; `count` if none is.
    std::size_t there() const {
        std::size_t first = 0;
        while (first < count && elements_[first] == absent) ++first;
        return first;
    }
    /// Where each tensor begins, and what a sample of it takes.
    std::array<TensorPointer, count> tensors() const {
        constexpr std::array<std::size_t, count> bytes{Ts::bytes...};
        std::array<TensorPointer, count> result;
        for (std::size_t t = 0; t != count; ++t) // nvcc warns of what is below none
            result[t] = {data_[t], bytes[t], elements_[t] == absent, number_};
        return result;
    }
    /// By tensor, see ElementInfo::optional.
    static constexpr std::array<void const*, count> optionals{detail::optional_id<Ts>...};
    /// Whether any of them may be absent.
    static constexpr bool may_lack = detail::has_optional<Tensors<Ts...>>;

  private:
    static constexpr std::size_t absent = static_cast<std::size_t>(-1);
    template <class Range> static std::byte* begin_of(Range& range) {
        if constexpr (is_none<Range>)
            return nullptr;
        else
            return const_cast<std::byte*>(reinterpret_cast<std::byte const*>(std::data(range)));
    }
    template <class Range> static std::size_t elements_of(Range& range) {
        if constexpr (is_none<Range>)
            return absent;
        else
            return static_cast<std::size_t>(std::size(range));
    }

    std::array<std::byte*, count> data_;
    std::array<std::size_t, count> elements_;
    std::uint64_t number_ = 0;
};

namespace detail {

GPIPE_INLINE void check_samples(std::size_t samples, std::size_t others, char const* what) {
    if (samples != others)
        throw_error<std::invalid_argument>("gpipe: inputs of %zu samples, but %s of %zu", samples,
                                           what, others);
    if (samples == 0) throw_error<std::invalid_argument>("gpipe: the mini-batch is empty");
}

// Tensors of a mini-batch, with their tags.
struct TaggedTensors {
    TensorPointer const* tensors;
    void const* const* tags;
    std::size_t count;
    char const* what;
};
// Tensors of one tag are absent together; `written`: so are those that are to be written.
[[gnu::cold]] GPIPE_INLINE void check_absent(TaggedTensors const& inputs,
                                             TaggedTensors const& others, bool written) {
    for (TaggedTensors const* some : {&inputs, &others})
        for (std::size_t i = 0; i < some->count; ++i) {
            if (!some->tags[i]) continue;
            std::size_t t = 0;
            while (t < inputs.count && inputs.tags[t] != some->tags[i]) ++t;
            bool const known = t < inputs.count;
            bool const absent = some->tensors[i].absent;
            if (known && absent != inputs.tensors[t].absent)
                throw_error<std::invalid_argument>(
                    "gpipe: tensor %zu of the %s is %s, but tensor %zu of the inputs, of the same "
                    "tag, is %s",
                    i, some->what, absent ? "absent" : "there", t, absent ? "there" : "absent");
            if (!known && absent && written)
                throw_error<std::invalid_argument>(
                    "gpipe: tensor %zu of the %s is absent, but no input of its tag: it would be "
                    "written",
                    i, some->what);
        }
}

// The samples of a mini-batch and of what goes with it.
template <class Inputs, class Others>
std::size_t checked_batch(Inputs const& inputs, Others const& others, char const* what) {
    std::size_t const samples = inputs.samples("inputs");
    if constexpr (Inputs::may_lack || Others::may_lack) {
        auto const own = inputs.tensors();
        auto const theirs = others.tensors();
        check_absent({own.data(), Inputs::optionals.data(), Inputs::count, "inputs"},
                     {theirs.data(), Others::optionals.data(), Others::count, what},
                     Others::is_written);
    }
    std::size_t others_of = samples; // a loss may have no targets
    if constexpr (Others::count > 0)
        if (others.there() < Others::count) others_of = others.samples(what);
    check_samples(samples, others_of, what);
    return samples;
}

} // namespace detail
} // namespace gpipe
