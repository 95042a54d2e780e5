#pragma once

#include <gpipe/schedule/programs.hpp>

#include <array>
#include <bit>
#include <concepts>
#include <cstddef>
#include <stdexcept>
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
/// - `static constexpr std::size_t least_micro_batches(std::size_t devices)`, or a constant
///   (default 1): for fewer it has no programs;
/// - `static constexpr std::string_view name`, for people.
/// As with the extents of mdspan its numbers are constants, or `dynamic` and then members of an
/// object: see ScheduleObject.
template <class S>
concept ScheduleFunction = requires(std::size_t n) {
    { S::programs(n, n) } -> std::same_as<Programs>;
};

/// A schedule whose programs() is a const member function, because it has numbers that are known at
/// run time only: for schedule::Dynamic, which copies it. `cells_per_device` and
/// `least_micro_batches` may be members, too.
template <class S>
concept ScheduleObject = requires(S const schedule, std::size_t n) {
    { schedule.programs(n, n) } -> std::same_as<Programs>;
};

/// How many cells of the chain a device has under schedule S.
template <class S> inline constexpr std::size_t cells_per_device = 1;
/// As the schedule declares it.
template <class S>
    requires requires { std::integral_constant<std::size_t, S::cells_per_device>{}; }
inline constexpr std::size_t cells_per_device<S> = S::cells_per_device;

/// How many micro-batches schedule S needs.
template <class S> constexpr std::size_t least_micro_batches(std::size_t devices) {
    if constexpr (requires { S::least_micro_batches(devices); })
        return S::least_micro_batches(devices);
    else if constexpr (requires { std::integral_constant<std::size_t, S::least_micro_batches>{}; })
        return S::least_micro_batches;
    else
        return 1;
}

namespace schedule {

/// A schedule that is chosen at construction, with its numbers; also the type that holds the
/// choice. By name: see schedules() in schedule_catalogue.hpp.
class Dynamic {
  public:
    using policy_kind = policy::Schedule;
    constexpr Dynamic() = default;
    // Of Dynamic itself it must not be asked: clang 14 would take its programs() for a static one.
    /// Of any schedule.
    template <class S>
        requires(!std::is_same_v<S, Dynamic> && ScheduleObject<S>)
    constexpr Dynamic(S schedule) {
        if constexpr (is_held<S>()) {
            holds_ = true;
            programs_ = &programs_of<S>;
            least_ = &least_of<S>;
            if constexpr (requires { S::name; }) name_ = S::name;
            if constexpr (requires { schedule.cells_per_device; })
                cells_per_device_ = schedule.cells_per_device;
            if constexpr (!ScheduleFunction<S>) {
                auto const bytes = std::bit_cast<std::array<unsigned char, sizeof(S)>>(schedule);
                for (std::size_t i = 0; i < sizeof(S); ++i) object_[i] = bytes[i];
            }
        }
    }

    /// Whether it holds a schedule.
    constexpr explicit operator bool() const { return holds_; }
    /// One for each of K devices, of the schedule that it holds. Throws std::logic_error if it
    /// holds none.
    constexpr Programs programs(std::size_t devices, std::size_t micro_batches) const {
        check();
        return programs_(object_, devices, micro_batches);
    }
    /// As the schedule has them.
    constexpr std::size_t cells_per_device() const { return cells_per_device_; }
    /// As the schedule has them; 1 where it says nothing. Throws as programs().
    constexpr std::size_t least_micro_batches(std::size_t devices) const {
        check();
        return least_(object_, devices);
    }
    /// Without numbers; empty where the schedule has none.
    constexpr std::string_view name() const { return name_; }

  private:
    constexpr void check() const {
        if (!holds_) throw std::logic_error("gpipe: this schedule::Dynamic holds no schedule");
    }
    // The object's bytes, not a pointer to it: constant evaluation has to get through.
    static constexpr std::size_t most_bytes = 32;
    using Object = unsigned char[most_bytes];

    template <class S> static consteval bool is_held() {
        constexpr bool fits =
            ScheduleFunction<S> || (std::is_trivially_copyable_v<S> && sizeof(S) <= most_bytes);
        static_assert(fits,
                      "gpipe: the object of a schedule holds numbers only, of 32 bytes at most");
        return fits;
    }
    template <class S> static constexpr S object(Object const& from) {
        std::array<unsigned char, sizeof(S)> bytes{};
        for (std::size_t i = 0; i < sizeof(S); ++i) bytes[i] = from[i];
        return std::bit_cast<S>(bytes);
    }
    template <class S>
    static constexpr Programs programs_of(Object const& from, std::size_t devices,
                                          std::size_t micro_batches) {
        if constexpr (ScheduleFunction<S>)
            return S::programs(devices, micro_batches);
        else
            return object<S>(from).programs(devices, micro_batches);
    }
    template <class S>
    static constexpr std::size_t least_of(Object const& from, std::size_t devices) {
        if constexpr (ScheduleFunction<S>)
            return gpipe::least_micro_batches<S>(devices);
        else if constexpr (requires(S const s) { s.least_micro_batches(devices); })
            return object<S>(from).least_micro_batches(devices);
        else if constexpr (requires(S const s) { std::size_t{s.least_micro_batches}; })
            return object<S>(from).least_micro_batches;
        else
            return 1;
    }

    // And not that it has functions: g++ knows of no address in a constant whether it is null where
    // it looks for undefined behaviour (-fsanitize=undefined).
    bool holds_ = false;
    Programs (*programs_)(Object const&, std::size_t, std::size_t) = nullptr;
    std::size_t (*least_)(Object const&, std::size_t) = nullptr;
    std::size_t cells_per_device_ = 1;
    Object object_{};
    std::string_view name_;
};

} // namespace schedule
} // namespace gpipe
