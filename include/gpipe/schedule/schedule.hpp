#pragma once

#include <gpipe/schedule/programs.hpp>

#include <concepts>
#include <cstddef>
#include <string_view>
#include <type_traits>

namespace gpipe {

namespace policy {
struct Schedule;
struct MicroBatches;
} // namespace policy

/// Policy: M, the number of micro-batches that a mini-batch is split into, or `dynamic`.
template <std::size_t M> struct MicroBatches {
    using policy_kind = policy::MicroBatches;
    static constexpr std::size_t count = M; ///< M; `dynamic`: chosen at construction
};

/// A schedule: a type with `static constexpr Programs programs(std::size_t devices, std::size_t
/// micro_batches)` and `using policy_kind = gpipe::policy::Schedule`. It gives forwards and
/// backwards only, a backward whole or in two halves (input gradient, weight gradient);
/// recomputation is put in by the checkpointing policy. It may also declare
/// - `static constexpr std::size_t cells_per_device` (default 1): the chain is cut into so many
///   cells per device, and the programs say with Programs::place() where each of them is;
/// - `static constexpr std::size_t least_micro_batches(std::size_t devices)` (default 1): for fewer
///   it has no programs;
/// - `static constexpr std::string_view name`, for people.
template <class S>
concept ScheduleFunction = requires(std::size_t n) {
    { S::programs(n, n) } -> std::same_as<Programs>;
};

/// How many cells of the chain a device has under schedule S.
template <class S> inline constexpr std::size_t cells_per_device = 1;
template <class S>
    requires requires { S::cells_per_device; }
inline constexpr std::size_t cells_per_device<S> = S::cells_per_device;

/// How many micro-batches schedule S needs.
template <class S> constexpr std::size_t least_micro_batches(std::size_t devices) {
    if constexpr (requires { S::least_micro_batches(devices); })
        return S::least_micro_batches(devices);
    else
        return 1;
}

namespace schedule {

/// A schedule that is chosen at construction; also the type that holds the choice.
class Dynamic {
  public:
    using policy_kind = policy::Schedule;
    constexpr Dynamic() = default;
    // Of Dynamic itself it must not be asked: clang 14 would take its programs() for a static one.
    /// Of any schedule.
    template <class S>
        requires(!std::is_same_v<S, Dynamic> && ScheduleFunction<S>)
    constexpr Dynamic(S)
        : programs_(&S::programs), least_(&gpipe::least_micro_batches<S>),
          cells_per_device_(gpipe::cells_per_device<S>) {
        if constexpr (requires { S::name; }) name_ = S::name;
    }

    /// Whether it holds a schedule.
    constexpr explicit operator bool() const { return programs_ != nullptr; }
    constexpr Programs programs(std::size_t devices, std::size_t micro_batches) const {
        return programs_(devices, micro_batches);
    }
    /// As the schedule has them.
    constexpr std::size_t cells_per_device() const { return cells_per_device_; }
    /// As the schedule has them; 1 where it says nothing.
    constexpr std::size_t least_micro_batches(std::size_t devices) const { return least_(devices); }
    /// Empty where the schedule has none.
    constexpr std::string_view name() const { return name_; }

  private:
    Programs (*programs_)(std::size_t, std::size_t) = nullptr;
    std::size_t (*least_)(std::size_t) = nullptr;
    std::size_t cells_per_device_ = 1;
    std::string_view name_;
};

} // namespace schedule
} // namespace gpipe
