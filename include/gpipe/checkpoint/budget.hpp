#pragma once

#include <gpipe/checkpoint/checkpointing.hpp>
#include <gpipe/core/dynamic.hpp>

#include <concepts>
#include <cstddef>
#include <limits>
#include <string_view>

namespace gpipe {

/// What reversals have to fit into.
struct Budget {
    bool given = false;    ///< else there is none
    std::size_t bytes = 0; ///< that each device has in all
    /// In a micro-batch, at the most; dynamic: those of the training.
    std::size_t samples = dynamic;
    bool offloads = false; ///< whether what is kept may wait in the host's memory: see Offload
    /// Of copies to there and back: bytes per unit of the layers' declared costs, each way and
    /// device. Infinite: they take no time. Refused at construction unless it is positive.
    double bandwidth = std::numeric_limits<double>::infinity();
};

/// A checkpointing policy that reverses all cells within a budget.
template <class C>
concept BudgetPolicy = requires(C const& policy) {
    { policy.budget() } -> std::same_as<Budget>;
};

/// The numbers of Optimal<bytes, samples>.
template <std::size_t bytes, std::size_t samples> struct CheckOptimal {
    static consteval bool ok() {
        static_assert(bytes > 0, "gpipe: Optimal<bytes, samples> needs bytes");
        static_assert(samples > 0, "gpipe: Optimal<bytes, samples> needs samples in a micro-batch");
        return bytes > 0 && samples > 0;
    }
};

namespace checkpoint {

/// The fastest reversals with which every device fits into so many bytes: all that it has, which is
/// what the plan's devices[d].total() says, for micro-batches of up to `samples` samples. On each
/// device the layers that run again take the least time; nothing runs again where everything fits.
/// See BudgetSearch for what is looked at.
///
/// They are searched for at construction, which throws BudgetTooSmall, a std::invalid_argument with
/// the device and the least bytes that would do, if it finds none. A constant for which
/// least_budget() says so already does not compile; that it compiles is no promise. What runs again
/// is then known to no constant: Training::is_constant is false.
///
/// The numbers are constants or `dynamic`: then Optimal<dynamic, dynamic>{bytes} is put into
/// Options::checkpointing, and without samples they are those of Options::samples. Otherwise
/// micro-batches of more are refused at construction, with std::invalid_argument.
template <std::size_t bytes_ = dynamic, std::size_t samples_ = dynamic> struct Optimal {
    static constexpr bool sound = CheckOptimal<bytes_, samples_>::ok();
    static_assert(sound || true); // says it wherever the type is used
    using policy_kind = policy::Checkpointing;
    static constexpr std::string_view name = "optimal"; ///< what it is found by
    /// The numbers, as fit_budget() takes them.
    static constexpr Budget budget() { return {true, bytes_, samples_}; }
};
/// The same with bytes that are chosen at construction.
template <std::size_t samples_> struct Optimal<dynamic, samples_> {
    using policy_kind = policy::Checkpointing;
    static constexpr std::string_view name = "optimal"; ///< what it is found by
    std::size_t bytes = 0;                              ///< that each device has in all
    /// In a micro-batch, at the most; `dynamic`: those of the training.
    std::size_t samples = samples_;
    /// For Offload<Optimal<...>>, see Budget::bandwidth.
    double bandwidth = std::numeric_limits<double>::infinity();
    /// The numbers, as fit_budget() takes them.
    constexpr Budget budget() const { return {true, bytes, samples, false, bandwidth}; }
};

} // namespace checkpoint
} // namespace gpipe
