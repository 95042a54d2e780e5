#pragma once

#include <gpipe/device/device.hpp>
#include <gpipe/runtime/exchange.hpp>
#include <gpipe/runtime/failure.hpp>
#include <gpipe/runtime/mini_batch.hpp>
#include <gpipe/runtime/table.hpp>
#include <gpipe/runtime/tables.hpp>
#include <gpipe/runtime/work.hpp>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

namespace gpipe {

/// What is to be done in one run.
struct RunArguments {
    std::uint64_t seed = 0;          ///< see Options::seed
    std::uint64_t step = 0;          ///< steps trained before
    void const* optimizer = nullptr; ///< null: forward only
    bool measures = true;            ///< whether the loss is called
    std::size_t samples = 0;         ///< of the mini-batch
    std::size_t slot = 0;            ///< of the steps that are under way
    bool updates = true;             ///< of a training: whether parameters are updated

    /// Whether there is a backward.
    bool training() const { return optimizer != nullptr; }
};

/// When an action ran, in seconds since its run began, and on which lane.
struct ActionTime {
    Action action;        ///< what ran
    std::size_t lane = 0; ///< that walked it
    double start = 0;     ///< seconds
    double end = 0;       ///< seconds
    bool ran = false;     ///< not where its micro-batch had no samples
};

/// A run that may be under way.
struct Run {
    RunArguments arguments;           ///< what was asked for
    MiniBatch const* batch = nullptr; ///< its samples
    Array<SampleRange> ranges;        ///< by micro-batch
    Array<StepFrame> frames;          ///< by device
    FirstFailure failure;             ///< the first, if any
    std::uint64_t base = 0;           ///< what positions count from
    bool follows = false; ///< whether the run before may be under way, over the same table
    std::atomic<bool> updated = false;          ///< whether a device has updated its parameters
    Array<ActionTime> times;                    ///< by action; empty where nobody wants to know
    double origin = 0;                          ///< what they count from
    std::atomic<std::uint64_t> preemptions = 0; ///< of all lanes, where actions are timed

    /// Whether any layer or update threw.
    bool failed() const { return failure.exists(); }
};

namespace detail {

// What goes round the calls of layers in a step: what the devices are given before, and what its
// end does, see with_ending().
template <DeviceRuntime Device> class StepProtocol {
  protected:
    explicit StepProtocol(Device& device) : device_(device) {}

    // Of all gradients, before the commit.
    bool sums_squares() const { return checks_.squares() && !immediate_; }
    StepState* state_of(std::size_t slot, std::size_t device) const {
        return Device::reads_host ? &exchange_.state(slot) : tables_.states[device];
    }

    void const* optimizer_of(Run const& run, std::size_t device) const {
        if (!Device::reads_host) return tables_.optimizers[device];
        // The caller may change his as soon as the step has been started.
        return immediate_ ? exchange_.optimizer(run.arguments.slot) : run.arguments.optimizer;
    }

    // What is to be in the devices' memory before the first action.
    void begin(Run const& run, StepTable const& table, std::size_t lane) {
        RunArguments const& arguments = run.arguments;
        for (std::size_t d = 0; d < tables_.gradients.size() && arguments.training(); ++d) {
            std::size_t const stream = table.stream_of_device[d];
            if (!table.serves(lane, stream)) continue;
            if constexpr (!Device::reads_host)
                if (tables_.has_updates(d))
                    device_.copy(stream, tables_.optimizers[d], exchange_.optimizer(arguments.slot),
                                 tables_.optimizer_bytes);
            if (tables_.gradients[d].size > 0)
                device_.fill(stream, tables_.gradients[d].data, tables_.gradients[d].size);
        }
        if constexpr (!Device::reads_host)
            // start() has fed a step.
            if (!(Device::calls_enqueue && arguments.training() && arguments.updates))
                for (MiniBatch::Copy const& copy : run.batch->copies())
                    device_.copy(table.stream_of_device[copy.device], copy.to, copy.from,
                                 copy.bytes);
    }

    // Does what is an action behind the layers'. Where calls enqueue, all that were to be called
    // before have been.
    [[gnu::noinline]] void end(Run& run, Step const& step) {
        if (Device::calls_enqueue && run.failed()) return;
        switch (step.kind) {
        case Kind::reduce:
            return reduce(run, step);
        case Kind::sum_squares:
            sum_squares(run, step.device, step.stream);
            if (immediate_) check_gradients(run, step.device, step.stream);
            return;
        case Kind::commit:
            if constexpr (!Device::reads_host)
                if (sums_squares()) copy_squares(run, step.stream);
            return commit(run, step.stream);
        case Kind::revoke:
            if constexpr (Device::calls_enqueue) revoke(run, step.stream);
            return;
        case Kind::take_state:
            return device_.copy(step.stream, bytes_of(tables_.states[step.device]),
                                bytes_of(&exchange_.state(run.arguments.slot)), sizeof(StepState));
        default:
            if constexpr (Device::calls_enqueue)
                if (!device_.captures() && run.arguments.updates)
                    torn_ = true; // until all of it is enqueued
            update(run, step.device, step.stream);
        }
    }
    // After a step that was revoked: whether a device has updated, for its own gradients are
    // finite.
    bool has_updated(Run const& run) const {
        double const* const squares = exchange_.squares(run.arguments.slot);
        for (std::size_t d = 0; d < tables_.gradients.size(); ++d)
            if (tables_.has_updates(d) &&
                std::all_of(squares + tables_.updates_at[d], squares + tables_.updates_at[d + 1],
                            detail::is_finite))
                return true;
        return false;
    }
    // Adds the gradients of a tie to that of its first end, in order, and copies the sum to all.
    void reduce(Run& run, Step const& step) {
        Tables::Tie const& tie = tables_.ties[step.calls];
        std::uint32_t const first = tables_.tied[tie.first];
        for (std::size_t i = tie.first + 1; i < tie.last; ++i) {
            std::byte const* other = tables_.updates[tables_.tied[i]].gradient;
            if constexpr (!Device::reads_host)
                if (!tables_.has_row(step.device, tables_.tied[i])) {
                    std::byte* const here = tables_.gradients_to_add[step.device];
                    device_.copy(step.stream, here, other, tie.bytes);
                    other = here;
                }
            launch_rows(run, step.stream, FailureOf::gradient, first, first + 1,
                        [call = AddCall{other, &device_.stream(step.stream)}](
                            UpdateRow const& row, std::size_t) { row.add(call, row); });
        }
        for (std::size_t i = tie.first + 1; i < tie.last; ++i)
            device_.copy(step.stream, tables_.updates[tables_.tied[i]].gradient,
                         tables_.updates[first].gradient, tie.bytes);
    }

    // For the norm of all gradients: the squares of a device's.
    void sum_squares(Run& run, std::size_t d, std::size_t stream) {
        std::size_t const first = tables_.updates_at[d];
        std::size_t const last = tables_.updates_at[d + 1];
        double* const collected = exchange_.squares(run.arguments.slot) + first;
        double* results = collected;
        std::byte* workspace = nullptr;
        if constexpr (!Device::reads_host) {
            workspace = tables_.squares[d];
            results = reinterpret_cast<double*>(workspace + squares_workspace);
        }
        launch_rows(run, stream, FailureOf::gradient, first, last,
                    [first, results, workspace, on = &device_.stream(stream)](UpdateRow const& row,
                                                                              std::size_t i) {
                        row.squares({results + (i - first), workspace, on}, row);
                    });
        if constexpr (!Device::reads_host)
            device_.copy(stream, bytes_of(collected), bytes_of(results),
                         (last - first) * sizeof(double));
    }

    // Of all devices, to the last.
    void copy_squares(Run const& run, std::size_t last) {
        device_.copy(last, bytes_of(tables_.all_squares),
                     bytes_of(exchange_.squares(run.arguments.slot)),
                     tables_.updates.size() * sizeof(double));
    }
    // Where updates are immediate, and were enqueued before gradients were known: each device has
    // kept itself from updating by gradients of its own that are not finite; now one such takes the
    // step back, before the next begins.
    void revoke(Run const& run, std::size_t last) {
        StepState* const state = tables_.states[tables_.last_device];
        copy_squares(run, last);
        launch_revoke({tables_.all_squares, tables_.order_there, tables_.order.size(), state,
                       &device_.stream(last), true},
                      last);
        copy_state(run, last);
    }
    // For the host, and the other devices.
    void copy_state(Run const& run, std::size_t last) {
        device_.copy(last, bytes_of(&exchange_.state(run.arguments.slot)),
                     bytes_of(tables_.states[tables_.last_device]), sizeof(StepState));
    }
    void launch_revoke(RevokeCall const& call, std::size_t stream) {
        device_.launch(stream, [call] { StepWork<Device>::revoke(call); });
    }

    // Sums the loss up on the last device's stream. A step in which a layer threw is not committed.
    void commit(Run const& run, std::size_t stream) {
        RunArguments const& arguments = run.arguments;
        StepState* const state = state_of(run.arguments.slot, tables_.last_device);
        device_.launch(stream, [this, &run, &arguments, state,
                                stream]() noexcept(!Device::calls_enqueue) {
            if (run.failed()) {
                state->committed = 0;
                state->fault = StepFault::nothing;
                return;
            }
            std::size_t count = 0;
            while (count < tables_.micro_batches && run.ranges[count].count > 0) ++count;
            double* const totals = Device::reads_host
                                       ? exchange_.totals(arguments.slot)
                                       : tables_.loss_sums + tables_.micro_batches * tables_.sums;
            CommitCall call;
            call.sums = tables_.loss_sums;
            call.micro_batches = count;
            call.count = tables_.sums;
            call.totals = totals;
            call.stream = &device_.stream(stream);
            if (arguments.training()) call.state = state;
            call.fails = checks_.not_finite == NotFinite::fail;
            if (arguments.training() && sums_squares()) {
                bool const here = Device::reads_host;
                call.squares = here ? exchange_.squares(arguments.slot) : tables_.all_squares;
                call.order = here ? tables_.order.data() : tables_.order_there;
                call.tensors = tables_.order.size();
            }
            if constexpr (Device::calls_enqueue)
                StepWork<Device>::commit(call);
            else
                detail::commit(call);
        });
        if constexpr (!Device::reads_host) {
            device_.copy(stream, bytes_of(exchange_.totals(arguments.slot)),
                         bytes_of(tables_.loss_sums + tables_.micro_batches * tables_.sums),
                         (tables_.sums + (arguments.training() && sums_squares())) *
                             sizeof(double));
            if (arguments.training()) copy_state(run, stream);
        }
    }
    void update(Run& run, std::size_t d, std::size_t stream) {
        UpdateCall const call{optimizer_of(run, d), state_of(run.arguments.slot, d),
                              &device_.stream(stream), run.arguments.updates};
        launch_rows(run, stream, FailureOf::update, tables_.updates_at[d],
                    tables_.updates_at[d + 1],
                    [this, &run, call](UpdateRow const& row, std::size_t) {
                        if (immediate_) {
                            if (run.failed()) return; // gradients may be missing
                            if constexpr (!Device::calls_enqueue)
                                if (!call.state->committed) return;
                            if (call.updates) run.updated.store(true, std::memory_order_relaxed);
                        }
                        row.update(call, row);
                    });
    }

    // Does this with each of these rows. What throws there, the element type of a
    // tensor, is told and goes no further: other lanes wait for the marks behind. Only where calls
    // enqueue it is the device that refuses, on the one lane.
    template <class Work>
    void launch_rows(Run& run, std::size_t stream, FailureOf of, std::size_t first,
                     std::size_t last, Work work) {
        device_.launch(
            stream, [this, &run, of, first, last, work]() noexcept(!Device::calls_enqueue) {
                std::size_t i = first;
                auto const each = [&] {
                    for (; i < last; ++i) work(tables_.updates[i], i);
                };
                if constexpr (Device::calls_enqueue) {
                    static_cast<void>(run), static_cast<void>(of); // clang: captured for nothing
                    each();
                } else {
                    try {
                        each();
                    } catch (...) {
                        fail(run, of, i, std::current_exception());
                    }
                }
            });
    }
    // Where updates are immediate: before those of a device.
    void check_gradients(Run& run, std::size_t d, std::size_t stream) {
        if constexpr (Device::calls_enqueue)
            launch_revoke({reinterpret_cast<double const*>(tables_.squares[d] + squares_workspace),
                           nullptr, tables_.updates_at[d + 1] - tables_.updates_at[d],
                           tables_.states[d], &device_.stream(stream)},
                          stream);
        else
            device_.launch(stream, [this, &run, d]() noexcept {
                for (std::size_t i = tables_.updates_at[d]; i < tables_.updates_at[d + 1]; ++i) {
                    double const squares = exchange_.squares(run.arguments.slot)[i];
                    if (!detail::is_finite(squares))
                        return fail(run, FailureOf::gradient, i, not_finite_gradient(i, squares));
                }
            });
    }
    [[gnu::cold]] std::exception_ptr not_finite_gradient(std::size_t i, double squares) const {
        UpdateRow const& row = tables_.updates[i];
        char message[512];
        std::snprintf(message, sizeof message,
                      "gpipe: the gradient of parameter tensor %u of layer %u (%s) is not finite: "
                      "the sum of its squares is %g",
                      row.number, row.layer, std::string(tables_.layer_names[row.layer]).c_str(),
                      std::fabs(squares));
        return std::make_exception_ptr(std::domain_error(message));
    }
    // What the commit has found not to be finite.
    [[gnu::cold]] Failure not_finite(StepState const& state) const {
        std::size_t const loss = tables_.layer_names.size() - 1;
        double const value = std::isinf(state.fault_value)
                                 ? state.fault_value
                                 : std::fabs(state.fault_value); // no -nan
        if (state.fault == StepFault::gradient) {
            std::size_t const i = tables_.order[state.fault_at];
            UpdateRow const& row = tables_.updates[i];
            return {row.layer,
                    tables_.layer_names[row.layer],
                    tables_.cell_of(row.layer),
                    0,
                    Kind::update,
                    not_finite_gradient(i, value),
                    FailureOf::gradient,
                    row.number};
        }
        char message[512];
        std::size_t m = state.fault_at;
        if (state.fault == StepFault::norm)
            std::snprintf(message, sizeof message, "gpipe: the norm of all gradients is %g", value);
        else if (m < tables_.micro_batches)
            std::snprintf(message, sizeof message, "gpipe: the loss of micro-batch %zu is %g", m,
                          value);
        else
            std::snprintf(message, sizeof message,
                          "gpipe: the sum of the loss over all micro-batches is %g", value);
        if (m >= tables_.micro_batches) m = Failure::all;
        return {loss,
                tables_.layer_names[loss],
                tables_.cells.size() - 1,
                m,
                Kind::backward,
                std::make_exception_ptr(std::domain_error(message)),
                state.fault == StepFault::norm ? FailureOf::norm : FailureOf::loss};
    }
    void fail(Run& run, FailureOf of, std::size_t i, std::exception_ptr error) noexcept {
        if (of == FailureOf::update) run.updated.store(true, std::memory_order_relaxed);
        UpdateRow const& row = tables_.updates[i];
        run.failure.tell(FirstFailure::behind_actions(i),
                         {row.layer, tables_.layer_names[row.layer], tables_.cell_of(row.layer), 0,
                          Kind::update, std::move(error), of, row.number});
    }

    using HostMemory = decltype(std::declval<Device&>().allocate_host(0));

    Device& device_;
    Tables tables_;
    StepChecks checks_;
    Exchange<HostMemory> exchange_;
    bool immediate_ = false; ///< whether updates are
    bool torn_ = false;      ///< whether some parameters were updated, and others not

  private:
    template <class T> static auto bytes_of(T* data) {
        using Byte = std::conditional_t<std::is_const_v<T>, std::byte const, std::byte>;
        return reinterpret_cast<Byte*>(data);
    }
};

} // namespace detail
} // namespace gpipe
