#pragma once

#include <gpipe/schedule/programs.hpp>

#include <concepts>
#include <cstddef>
#include <string_view>

namespace gpipe {

namespace policy {
struct Schedule;
struct MicroBatches;
} // namespace policy

/// Policy: M, the number of micro-batches that a mini-batch is split into, or `dynamic`.
template <std::size_t M> struct MicroBatches {
    using policy_kind = policy::MicroBatches;
    static constexpr std::size_t count = M;
};

/// A schedule: a type with `static constexpr Programs programs(std::size_t devices, std::size_t
/// micro_batches)` and `using policy_kind = gpipe::policy::Schedule`. It gives forwards and
/// backwards only; recomputation is put in by the checkpointing policy.
template <class S>
concept ScheduleFunction = requires(std::size_t n) {
    { S::programs(n, n) } -> std::same_as<Programs>;
};

namespace schedule {

/// A schedule that is chosen at construction; also the type that holds the choice.
class Dynamic {
  public:
    using policy_kind = policy::Schedule;
    constexpr Dynamic() = default;
    template <ScheduleFunction S> constexpr Dynamic(S) : programs_(&S::programs) {}

    constexpr explicit operator bool() const { return programs_ != nullptr; }
    constexpr Programs programs(std::size_t devices, std::size_t micro_batches) const {
        return programs_(devices, micro_batches);
    }

  private:
    Programs (*programs_)(std::size_t, std::size_t) = nullptr;
};

} // namespace schedule
} // namespace gpipe
