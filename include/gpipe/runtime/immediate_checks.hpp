#pragma once

#include <gpipe/runtime/device_work.hpp>
#include <gpipe/runtime/mailboxes.hpp>
#include <gpipe/runtime/run.hpp>
#include <gpipe/runtime/step_faults.hpp>
#include <gpipe/runtime/tables.hpp>

#include <algorithm>
#include <cstddef>

namespace gpipe::detail {

// Looks at gradients where updates are immediate, and no commit knows all of them: see
// Options::finite_gradients.
template <class Device> class ImmediateChecks {
    using Work = StepWork<Device>;

  public:
    ImmediateChecks(Device& device, Tables const& tables, Mailboxes<Device> const& mail)
        : device_(device), tables_(tables), mail_(mail) {}

    // Before the updates of a device: at its own.
    void check(Run& run, std::size_t d, std::size_t stream) {
        Mailbox<double> const squares = mail_.squares(run.arguments.slot, d);
        RevokeCall call;
        call.squares = squares.there;
        call.tensors = squares.count;
        call.state = mail_.state(run.arguments.slot, d).there;
        call.stream = &device_.stream(stream);
        auto const tell = [&run, &tables = tables_, first = tables_.updates_at[d]](std::size_t i,
                                                                                   double value) {
            run.failure.tell(FirstFailure::behind_actions(first + i),
                             failure_of_row(tables, FailureOf::gradient, first + i,
                                            not_finite_gradient(tables, first + i, value)));
        };
        device_.launch(stream, [call, tell]() noexcept(noexcept(Work::check(call, tell))) {
            Work::check(call, tell);
        });
    }
    // Updates were put on queues before gradients were known: each device has kept itself from
    // updating by gradients of its own that are not finite; now one such takes the step back,
    // before the next begins.
    void revoke(Run const& run, std::size_t stream) {
        std::size_t const slot = run.arguments.slot;
        Mailbox<double> const squares = mail_.all_squares(slot);
        Mailbox<StepState> const state = mail_.state(slot, tables_.last_device);
        squares.put(device_, stream);
        RevokeCall const call{squares.there, mail_.order().there,     tables_.order.size(),
                              state.there,   &device_.stream(stream), true};
        device_.launch(stream,
                       [call]() noexcept(noexcept(Work::revoke(call))) { Work::revoke(call); });
        state.get(device_, stream);
    }
    // After a step that was revoked: whether a device has updated, or moved its buffers, for its
    // own gradients are finite.
    bool has_updated(Run const& run) const {
        double const* const squares = mail_.squares(run.arguments.slot);
        for (std::size_t d = 0; d < tables_.devices.size(); ++d)
            if ((tables_.has_updates(d) || tables_.buffers.devices[d].bytes > 0) &&
                std::all_of(squares + tables_.updates_at[d], squares + tables_.updates_at[d + 1],
                            is_finite))
                return true;
        return false;
    }

  private:
    Device& device_;
    Tables const& tables_;
    Mailboxes<Device> const& mail_;
};

} // namespace gpipe::detail
