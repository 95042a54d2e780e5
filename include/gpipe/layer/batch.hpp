#pragma once

#include <gpipe/core/compiled.hpp>
#include <gpipe/core/error.hpp>
#include <gpipe/layer/tensor.hpp>

#include <array>
#include <cstddef>
#include <iterator>
#include <stdexcept>
#include <type_traits>
#include <utility>

namespace gpipe {

/// One tensor of a mini-batch in the caller's memory.
struct TensorPointer {
    std::byte* data = nullptr;    ///< of the first sample
    std::size_t sample_bytes = 0; ///< of each sample
};

/// @cond
template <class Group, bool writable = false>
class Batch : public Batch<detail::as_tensors<Group>, writable> {
  public:
    using Batch<detail::as_tensors<Group>, writable>::Batch;
};
/// @endcond

/// A mini-batch in the caller's memory: for each tensor of a group a contiguous range of N samples.
/// Made from one range per tensor (std::vector, std::span, std::array, ...); does not own them.
/// `writable`: what predict() writes, else what is only read.
template <class... Ts, bool writable> class Batch<Tensors<Ts...>, writable> {
    template <class T>
    using Element = std::conditional_t<writable, typename T::Element, typename T::Element const>;
    // A contiguous range with data() and size(); <ranges> would cost more than all other includes.
    template <class Range, class T> static consteval bool fits() {
        if constexpr (requires(Range & range) {
                          std::data(range);
                          std::size(range);
                      }) {
            using Given = std::remove_pointer_t<decltype(std::data(std::declval<Range&>()))>;
            return std::is_convertible_v<Given(*)[], Element<T>(*)[]>;
        } else {
            return false;
        }
    }

  public:
    static constexpr std::size_t count = sizeof...(Ts); ///< tensors

    /// A range for each tensor, of its elements.
    template <class... Ranges>
        requires(sizeof...(Ranges) == sizeof...(Ts) && (fits<Ranges, Ts>() && ...))
    Batch(Ranges&&... ranges)
        : data_{const_cast<std::byte*>(reinterpret_cast<std::byte const*>(std::data(ranges)))...},
          elements_{static_cast<std::size_t>(std::size(ranges))...} {}

    /// N. Throws std::invalid_argument if a range is not a whole number of samples, or if two
    /// disagree; `what` names the batch in the message.
    std::size_t samples(char const* what) const requires(sizeof...(Ts) > 0) {
        constexpr std::size_t sizes[] = {Ts::size...};
        for (std::size_t t = 0; t < count; ++t) {
            if (elements_[t] % sizes[t] != 0)
                detail::throw_error<std::invalid_argument>(
                    "gpipe: tensor %zu of the %s has %zu elements, no multiple of the %zu of a "
                    "sample",
                    t, what, elements_[t], sizes[t]);
            if (elements_[t] / sizes[t] != elements_[0] / sizes[0])
                detail::throw_error<std::invalid_argument>(
                    "gpipe: the tensors of the %s hold %zu and %zu samples", what,
                    elements_[0] / sizes[0], elements_[t] / sizes[t]);
        }
        return elements_[0] / sizes[0];
    }

    /// Where each tensor begins, and what a sample of it takes.
    std::array<TensorPointer, count> tensors() const {
        constexpr std::array<std::size_t, count> bytes{Ts::bytes...};
        std::array<TensorPointer, count> result;
        for (std::size_t t = 0; t < count; ++t) result[t] = {data_[t], bytes[t]};
        return result;
    }

  private:
    std::array<std::byte*, count> data_;
    std::array<std::size_t, count> elements_;
};

namespace detail {

GPIPE_INLINE void check_samples(std::size_t samples, std::size_t others, char const* what) {
    if (samples != others)
        throw_error<std::invalid_argument>("gpipe: %zu inputs, but %zu %s", samples, others, what);
    if (samples == 0) throw_error<std::invalid_argument>("gpipe: the mini-batch is empty");
}

// The samples of a mini-batch and of what goes with it.
template <class Inputs, class Others>
std::size_t checked_batch(Inputs const& inputs, Others const& others, char const* what) {
    std::size_t const samples = inputs.samples("inputs");
    if constexpr (Others::count > 0) // a loss may have no targets
        check_samples(samples, others.samples(what), what);
    else
        check_samples(samples, samples, what);
    return samples;
}

} // namespace detail
} // namespace gpipe
