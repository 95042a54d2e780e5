#pragma once

#include <gpipe/core/array.hpp>
#include <gpipe/schedule/programs.hpp>

#include <concepts>
#include <cstddef>
#include <string_view>

namespace gpipe {

namespace policy {
struct Checkpointing;
} // namespace policy

/// A checkpointing policy: a pass over a schedule's programs that puts recomputations in, each in
/// front of its backward and so of the wait for the gradient: it runs in the bubble. What is kept
/// follows from the result: the activations of a forward or recompute until the next backward of
/// the same micro-batch, if no recompute comes between.
template <class C>
concept CheckpointingPass = requires(Programs const& schedule) {
    { C::lower(schedule) } -> std::same_as<Programs>;
};

/// That a policy offers what a checkpointing policy must.
template <class C> struct CheckCheckpointing {
    static constexpr bool ok = CheckpointingPass<C>;
    static_assert(ok, "gpipe: a checkpointing policy needs: static constexpr gpipe::Programs "
                      "lower(gpipe::Programs const& schedule)");
};

namespace checkpoint {

/// Keeps every activation of every micro-batch in flight; recomputes nothing.
struct Never {
    using policy_kind = policy::Checkpointing;
    static constexpr std::string_view name = "never";
    static constexpr Programs lower(Programs const& schedule) { return schedule; }
};

/// Keeps boundary inputs only and recomputes before every backward, as torchgpipe's "always".
struct Always {
    using policy_kind = policy::Checkpointing;
    static constexpr std::string_view name = "always";
    static constexpr Programs lower(Programs const& schedule);
};

/// One working set per cell: a forward or recompute makes its micro-batch the holder, and a
/// backward recomputes if and only if it is not the holder. Under GPipe that spares the last
/// micro-batch, as torchgpipe's "except_last"; under 1F1B it spares every micro-batch in the last
/// cell. In the last cell a forward whose result would be recomputed is not run early at all:
/// nobody waits for it, so it takes the place of its recomputation.
struct ExceptLast {
    using policy_kind = policy::Checkpointing;
    static constexpr std::string_view name = "except-last";
    static constexpr Programs lower(Programs const& schedule);
};

/// A policy that is chosen at construction; also the type that holds the choice.
class Dynamic {
  public:
    using policy_kind = policy::Checkpointing;
    constexpr Dynamic() = default;
    template <CheckpointingPass C> constexpr Dynamic(C) : lower_(&C::lower) {}

    constexpr explicit operator bool() const { return lower_ != nullptr; }
    constexpr Programs lower(Programs const& schedule) const { return lower_(schedule); }

  private:
    Programs (*lower_)(Programs const&) = nullptr;
};

} // namespace checkpoint

namespace detail {

// An empty copy of the schedule's shape with room for a recompute before every backward.
constexpr Programs same_shape(Programs const& schedule) {
    Programs result(schedule.devices(), schedule.cells(), schedule.micro_batches(),
                    schedule.size() + schedule.cells() * schedule.micro_batches());
    for (std::size_t c = 0; c < schedule.cells(); ++c) result.place(c, schedule.device_of(c));
    return result;
}

} // namespace detail

constexpr Programs checkpoint::Always::lower(Programs const& schedule) {
    Programs result = detail::same_shape(schedule);
    for (std::size_t d = 0; d < schedule.devices(); ++d) {
        for (std::size_t i = schedule.begin(d); i < schedule.end(d); ++i) {
            if (gives_gradient(schedule[i].kind))
                result.add(recompute(schedule[i].cell, schedule[i].micro_batch));
            result.add(schedule[i]);
        }
        result.next_device();
    }
    return result;
}

constexpr Programs checkpoint::ExceptLast::lower(Programs const& schedule) {
    Programs result = detail::same_shape(schedule);
    for (std::size_t d = 0; d < schedule.devices(); ++d) {
        // Backwards whose micro-batch is no longer the holder of its cell.
        Array<bool> recomputes(schedule.cells() * schedule.micro_batches());
        Array<std::size_t> holder(schedule.cells(), schedule.micro_batches());
        for (std::size_t i = schedule.begin(d); i < schedule.end(d); ++i) {
            Action const& a = schedule[i];
            if (gives_gradient(a.kind) && holder[a.cell] != a.micro_batch)
                recomputes[a.cell * schedule.micro_batches() + a.micro_batch] = true;
            if (a.kind == Kind::forward || gives_gradient(a.kind)) holder[a.cell] = a.micro_batch;
        }
        for (std::size_t i = schedule.begin(d); i < schedule.end(d); ++i) {
            Action const& a = schedule[i];
            bool const again = recomputes[a.cell * schedule.micro_batches() + a.micro_batch];
            bool const last_cell = a.cell + 1 == schedule.cells();
            if (again && last_cell && a.kind == Kind::forward) continue;
            if (again && gives_gradient(a.kind))
                result.add(last_cell ? forward(a.cell, a.micro_batch)
                                     : recompute(a.cell, a.micro_batch));
            result.add(a);
        }
        result.next_device();
    }
    return result;
}

} // namespace gpipe
