#pragma once

#include <gpipe/core/array.hpp>
#include <gpipe/core/compiled.hpp>
#include <gpipe/schedule/message_order.hpp>
#include <gpipe/schedule/message_slots.hpp>

#include <cstddef>
#include <cstdint>
#include <stdexcept>

namespace gpipe {

/// Programs that say everything which a device does in a step, its messages, too: what a transport
/// between processes walks. Between cells on different devices
/// - send_output(c, m) gives the output of cell c to the device of cell c + 1, where
///   receive_input(c + 1, m) takes it;
/// - send_gradient(c, m) gives the gradient of the input of cell c to the device of cell c - 1,
///   where receive_gradient(c - 1, m) takes it.
/// A send blocks until its receive takes it, a receive until it has it. Messages have no tags: the
/// k-th that a device sends to another is the k-th that the other receives from it.
///
/// A cell has one place for the output, and one for the gradient, that it sends; every receive has
/// a slot of its cell's, free again behind the backward (or weight gradient) of its micro-batch.
struct MessagePrograms {
    Programs programs;                   ///< with sends and receives as actions
    Array<std::uint32_t> slot;           ///< by action: where a receive puts what it gets, or 0
    Array<std::uint32_t> input_slots;    ///< by cell: slots of its inputs
    Array<std::uint32_t> gradient_slots; ///< by cell: slots of the gradients of its outputs
};

namespace detail {

// From the cell of a message to the cell at its other end, by kind; one back wraps round.
inline constexpr std::size_t back = static_cast<std::size_t>(-1);
inline constexpr std::size_t toward[] = {0, 0, 0, 0, 0, 1, back, back, 1, 0, 0, 0, 0};

} // namespace detail

/// The cell at the other end of a message.
GPIPE_INLINE constexpr std::size_t other_cell(Action const& message) {
    return message.cell + detail::toward[static_cast<std::size_t>(message.kind)];
}

/// Puts the messages in, of gradients before cell c only if a gradient `crosses[c]`. The programs
/// must have passed verify(); they may hold recomputes. Throws std::logic_error if they deadlock.
///
/// All programs that result are projections of one linear order of actions and messages, so that
/// none of them can wait for ever, whatever is buffered or not: by start at unit costs, and a
/// message between the actions that start before its moment and the others. A send so comes right
/// behind what made it, or behind receives there, and its moment is the last at which neither the
/// sender's next action nor the receiver's use is late, were everything on time.
[[gnu::cold]] GPIPE_INLINE constexpr MessagePrograms with_messages(Programs const& programs,
                                                                   Array<bool> const& crosses) {
    ViewOf const owner(programs);
    ProgramsView const& view = *owner;
    Array<std::uint32_t> start(view.size());
    Array<std::uint32_t> used(view.size());
    Array<std::size_t> const reached = detail::start_times(view, start.data(), used.data());
    for (std::size_t d = 0; d < view.devices; ++d)
        if (reached[d] < view.begin[d + 1])
            throw std::logic_error("gpipe: the programs wait for each other");
    std::size_t const count = detail::message_count(view, crosses.data());
    Array<std::uint32_t> producer(count);
    Array<std::uint32_t> moment(count);
    detail::order_messages(view, crosses.data(), start.data(), used.data(), count, producer.data(),
                           moment.data());
    Array<std::size_t> begin(view.devices + 1);
    Array<Action> actions(view.size() + 2 * count);
    detail::put_messages_in(view, crosses.data(), start.data(), count, producer.data(),
                            moment.data(), begin.data(), actions.data());
    ProgramsView lowered = view;
    lowered.begin = begin.data();
    lowered.actions = actions.data();
    MessagePrograms result{programs_of(lowered), Array<std::uint32_t>(actions.size()),
                           Array<std::uint32_t>(view.cells), Array<std::uint32_t>(view.cells)};
    detail::assign_slots(lowered, result.slot.data(), result.input_slots.data(),
                         result.gradient_slots.data());
    return result;
}
/// With a gradient over every boundary.
[[gnu::cold]] GPIPE_INLINE constexpr MessagePrograms with_messages(Programs const& programs) {
    return with_messages(programs, Array<bool>(programs.cells(), true));
}

} // namespace gpipe
