#pragma once

#include <gpipe/core/compiled.hpp>
#include <gpipe/core/error.hpp>
#include <gpipe/layer/batch.hpp>

#include <cstddef>
#include <stdexcept>
#include <string_view>

namespace gpipe::detail {

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

GPIPE_INLINE void check_room(std::size_t samples, std::size_t planned) {
    if (samples > planned)
        throw_error<std::invalid_argument>(
            "gpipe: a mini-batch of %zu samples, but memory was planned for %zu", samples, planned);
}

// Another optimizer would take the state for its own.
GPIPE_INLINE void check_optimizer(std::string_view chosen, std::string_view planned) {
    if (chosen != planned)
        throw_error<std::invalid_argument>(
            "gpipe: the optimizer is %.*s now, but state was planned for %.*s",
            static_cast<int>(chosen.size()), chosen.data(), static_cast<int>(planned.size()),
            planned.data());
}

} // namespace gpipe::detail
