#pragma once

#include <gpipe/core/exact_sum.hpp>
#include <gpipe/device/device.hpp>
#include <gpipe/runtime/buffers.hpp>
#include <gpipe/runtime/device_work.hpp>
#include <gpipe/runtime/immediate_checks.hpp>
#include <gpipe/runtime/mailboxes.hpp>
#include <gpipe/runtime/run.hpp>
#include <gpipe/runtime/step_faults.hpp>
#include <gpipe/runtime/table.hpp>
#include <gpipe/runtime/tie_reduction.hpp>
#include <gpipe/transport/local.hpp>

#include <cstddef>
#include <exception>
#include <utility>

namespace gpipe::detail {

// Of several ranks: see runtime/rank_commit.hpp.
template <class End, class Device> class RankCommit;

// What a step does beside the calls of layers: what the devices are given before, and what its end
// consists of, see with_ending(). All that is to be done goes on queues, in order.
template <DeviceRuntime Device> class StepEnd {
    using Work = StepWork<Device>;

  public:
    // References outlive it.
    StepEnd(Device& device, Tables const& tables, Mailboxes<Device> const& mail,
            StepChecks step_checks, bool is_immediate)
        : checks(step_checks), immediate(is_immediate), device_(device), tables_(tables),
          mail_(mail) {}

    StepChecks const checks;
    bool const immediate; // see update::Immediate

    // What a lane's devices are to have before its first action.
    void begin(Run& run, StepTable const& table, std::size_t lane) {
        // Other ranks hear of it by what this one sends, and so before they commit.
        if (joins_ranks<Device> && immediate && run.follows_unsound())
            run.failure.tell(FirstFailure::behind_actions(0), begun_too_early());
        RunArguments const& arguments = run.arguments;
        Ranks const& ranks = tables_.ranks;
        for (std::size_t d = ranks.begin(); d < ranks.end(); ++d) {
            std::size_t const stream = table.stream_of_device[d];
            if (!table.serves(lane, stream)) continue;
            mail_.put_constants(device_, stream, arguments.slot, d);
            if (!arguments.training()) continue;
            if (tables_.has_updates(d) && arguments.last)
                mail_.optimizer(arguments.optimizer, d).put(device_, stream);
            if (auto const all = tables_.devices[d].gradients;
                !all.empty() && arguments.before == 0)
                device_.fill(stream, all.data(), all.size());
        }
    }

    // Of a mini-batch of which more will come the sums alone.
    static bool does(Run const& run, Kind kind) {
        return run.arguments.last || kind == Kind::next_buffers || commits(kind);
    }
    // Does what is an action behind the layers'.
    void end(Run& run, Step const& step) {
        switch (step.kind) {
        case Kind::bring_gradient:
        case Kind::reduce:
            return TieReduction<StepEnd, Device>(*this, device_, tables_, run, step).run();
        case Kind::all_reduce:
        case Kind::reduce_scatter:
        case Kind::all_gather:
            return share(run, step);
        case Kind::next_buffers:
            return buffers().find_next(*this, run, step);
        case Kind::sum_squares:
            sum_squares(run, step.device, step.stream);
            if (immediate) immediately().check(run, step.device, step.stream);
            return;
        case Kind::commit:
        case Kind::send_commit:
            return commit_with_others(run, step);
        case Kind::revoke: // hosts look before they update
            if constexpr (calls_enqueue<Device>) immediately().revoke(run, step.stream);
            return;
        case Kind::take_state:
            return mail_.state(run.arguments.slot, step.device).put(device_, step.stream);
        default:
            update(run, step.device, step.stream);
        }
    }

    // Sums the loss up on the last device's stream. A step in which a layer threw is not committed.
    // `joined`: the last device has what other ranks have told it.
    void commit(Run& run, std::size_t stream, bool joined = false) {
        std::size_t const slot = run.arguments.slot;
        bool const trains = run.arguments.training();
        bool const norm = trains && sums_squares(run);
        Mailbox<double> const squares = mail_.all_squares(slot);
        Mailbox<double> const totals = mail_.totals(slot, norm);
        Mailbox<StepState> const state =
            mail_.begin_commit(device_, stream, slot, tables_.last_device, trains && immediate);
        if (norm && !joined) squares.put(device_, stream);
        CommitCall call;
        call.sums = tables_.loss_sums;
        call.micro_batches = trains && tables_.replicas.any()
                                 ? tables_.ranks.replicas * tables_.micro_batches
                                 : run.filled();
        call.row = tables_.loss_row;
        call.count = tables_.sums;
        call.totals = totals.there;
        call.stream = &device_.stream(stream);
        if (trains) {
            call.state = state.there;
            call.carried = mail_.carried();
            call.continues = run.arguments.before > 0;
            call.last = run.arguments.last;
            call.scale = checks.scale;
        }
        call.fails = checks.not_finite == NotFinite::fail;
        if (norm) {
            call.squares = squares.there;
            call.replicas = tables_.ranks.replicas;
            call.rows = tables_.squares();
            if (tables_.replicas.any()) {
                call.exact =
                    reinterpret_cast<std::uint64_t const*>(squares.there + tables_.updates.size());
                call.devices = tables_.learners(tables_.devices.size());
            }
            call.order = mail_.order().there;
            call.tensors = tables_.order.size();
        }
        if (joined && Work::enqueues) {
            call.signs = mail_.sign(slot, tables_.last_device, 0).there;
            call.ranks = tables_.ranks.all();
        }
        device_.launch(stream, [&run, call]() noexcept(noexcept(Work::commit(call))) {
            if (Work::enqueues) return Work::commit(call);
            // It is behind its losses, and so behind all that any device has done before.
            if (run.follows_unsound())
                run.failure.tell(FirstFailure::behind_actions(0), begun_too_early());
            if (!run.failed()) {
                Work::commit(call);
            } else if (call.state) {
                call.state->committed = 0;
                call.state->fault = StepFault::nothing;
            }
            if (call.state && !call.state->committed) run.dropped = true;
        });
        totals.get(device_, stream);
        if (trains) state.get(device_, stream);
    }

    // Between ranks, in the order of a stream; a failure goes with what it has spoilt.
    ///@{
    void send(Run& run, std::size_t stream, std::size_t channel, void const* from,
              std::size_t bytes) {
        device_.send(stream, channel, static_cast<std::byte const*>(from), bytes,
                     [&run] { return run.failure.place(); });
    }
    void receive(Run& run, std::size_t stream, std::size_t channel, void* to, std::size_t bytes) {
        device_.receive(stream, channel, static_cast<std::byte*>(to), bytes,
                        [&run](std::uint32_t place) { run.failure.hear(place); });
    }
    template <class F> void together(std::size_t stream, F f) { device_.together(stream, f); }
    ///@}

    void const* stream(std::size_t number) const { return &device_.stream(number); }
    // Does this with each of these rows, and tells what throws there: the element type of a tensor.
    // It says for how many rows it was, from the one on that it is given.
    template <class F>
    void launch_rows(Run& run, std::size_t stream, FailureOf of, Array<UpdateRow> const& rows,
                     std::size_t first, std::size_t last, F work) {
        auto const all = [this, &run, &rows, of, first, last, work] {
            std::size_t i = first;
            Work::attempt(
                [&] {
                    while (i < last) i += work(rows[i], i);
                },
                [&](std::exception_ptr error) { fail(run, of, i, std::move(error)); });
        };
        device_.launch(stream, [all]() noexcept(Work::catches) { all(); });
    }

    // Of replicas, within a call: see Exchange.
    static void exchange(Exchange const& self, std::byte* all, std::size_t bytes) {
        if constexpr (joins_ranks<Device>) {
            auto& end = *static_cast<StepEnd*>(self.end);
            auto& run = *static_cast<Run*>(self.run);
            try {
                ReplicaExchange<StepEnd>(end, end.tables_, run, self.device, self.stream)
                    .all_gather(all, bytes);
            } catch (...) { // the device refuses
                run.is_cut = true;
                end.device_.cut_short();
                throw;
            }
        }
    }

    ImmediateChecks<Device> immediately() const { return {device_, tables_, mail_}; }

  private:
    // With other ranks, which do so at the same place of their order.
    void commit_with_others(Run& run, Step const& step) {
        if constexpr (joins_ranks<Device>)
            RankCommit<StepEnd, Device>(*this, device_, tables_, mail_, run, step)
                .commit(sums_squares(run));
        else
            commit(run, step.stream);
    }
    // Of replicas: adds gradients up, and gives the sums, or what was updated, to all.
    void share(Run& run, Step const& step) {
        if constexpr (joins_ranks<Device>) {
            ReplicaExchange<StepEnd> exchange(*this, tables_, run, step.device, step.stream);
            if (adds_replicas(step.kind)) exchange.reduce_scatter(step.cell);
            if (step.kind == Kind::all_reduce) exchange.all_gather(step.cell, true);
            if (step.kind == Kind::all_gather) exchange.all_gather(!run.arguments.updates);
        }
    }
    // What is done by each replica, or a part by each.
    Array<UpdateRow> const& rows(bool apart) const {
        return apart && tables_.replicas.any() ? tables_.replicas.rows : tables_.updates;
    }
    bool shards() const { return tables_.replicas.replication.shards; }
    BufferMoves<Device> buffers() { return {device_, tables_}; }
    // Of all gradients, before the commit.
    bool sums_squares(Run const& run) const {
        return checks.squares() && !immediate && run.arguments.last;
    }

    // How many rows from this one on, of so many, one call of its function does.
    template <class Function>
    static std::size_t alike(UpdateRow const& row, Function UpdateRow::*function,
                             std::size_t left) {
        std::size_t count = 1;
        while (count < Work::rows_at_once && count < left &&
               (&row)[count].*function == row.*function)
            ++count;
        return count;
    }

    // For the norm of all gradients: the squares of a device's.
    void sum_squares(Run& run, std::size_t d, std::size_t stream) {
        std::size_t const first = tables_.updates_at[d];
        Mailbox<double> const squares = mail_.squares(run.arguments.slot, d);
        SquaresCall call{squares.there, mail_.workspace(d), &device_.stream(stream)};
        if (tables_.replicas.any() || !tables_.ties.empty())
            device_.fill(stream, reinterpret_cast<std::byte*>(squares.there),
                         squares.count * sizeof(double)); // of ends of ties that do not count
        if (tables_.replicas.any() && !immediate) {
            call.exact = mail_.exact_squares(run.arguments.slot, d);
            device_.fill(stream, reinterpret_cast<std::byte*>(call.exact),
                         exact_words * sizeof(std::uint64_t));
        }
        launch_rows(
            run, stream, FailureOf::gradient, rows(!immediate || shards()), first,
            first + squares.count,
            [call, first, last = first + squares.count](UpdateRow const& row, std::size_t i) {
                if (!row.squares) return std::size_t{1};
                SquaresCall own = call;
                own.result += i - first;
                std::size_t const count = alike(row, &UpdateRow::squares, last - i);
                row.squares(own, &row, count);
                return count;
            });
        squares.get(device_, stream);
    }
    void update(Run& run, std::size_t d, std::size_t stream) {
        RunArguments const& arguments = run.arguments;
        UpdateCall const call{mail_.optimizer(arguments.optimizer, d).there,
                              mail_.state(arguments.slot, d).there, &device_.stream(stream),
                              arguments.updates};
        if (!immediate || !run.failed()) buffers().keep(run, d, stream, call.state);
        launch_rows(run, stream, FailureOf::update, rows(shards()), tables_.updates_at[d],
                    tables_.updates_at[d + 1],
                    [this, &run, call, last = tables_.updates_at[d + 1]](UpdateRow const& row,
                                                                         std::size_t i) {
                        std::size_t const count = alike(row, &UpdateRow::update, last - i);
                        if (!row.update) return count;               // has none of its own
                        if (immediate && run.failed()) return count; // gradients may be missing
                        if (row.update(call, &row, count) &&
                            !run.updated.load(std::memory_order_relaxed))
                            run.updated.store(true, std::memory_order_relaxed);
                        return count;
                    });
        copy_to_held_ends(device_, tables_, d, stream);
    }

    void fail(Run& run, FailureOf of, std::size_t i, std::exception_ptr error) noexcept {
        if (of == FailureOf::update) run.updated.store(true, std::memory_order_relaxed);
        run.failure.tell(FirstFailure::behind_actions(i),
                         failure_of_row(tables_, of, i, std::move(error)));
    }

    Device& device_;
    Tables const& tables_;
    Mailboxes<Device> const& mail_;
};

} // namespace gpipe::detail
