#pragma once

#include <gpipe/core/compiled.hpp>
#include <gpipe/plan/end_table.hpp>

#include <cstddef>
#include <cstdint>

GPIPE_RUNS_ONCE_BEGIN
namespace gpipe {

namespace detail {

// Where updates come together they are behind all layers, by operands or, where calls only enqueue,
// by their place in the lane (check_steps() looks): so what a layer throws leaves everything as it
// was (promise P6).
class EndBuilder : public EndTable {
  public:
    EndBuilder(Lowered const& step, Operands const& operands, Ending const& ending)
        : EndTable(step, operands, ending) {
        ending.immediate ? end_at_once() : end_together();
    }

  private:
    void end_together() {
        add_up(false, 0, devices_);
        each_tie([&](Part<TiedCell> tie) { bring(tie); });
        each_tie([&](Part<TiedCell> tie) { reduce(tie); });
        add_up(true, 0, devices_);
        for (std::size_t d = 0; d < devices_; ++d) next_buffers(d);
        if (ending_.squares) each_learner([&](std::size_t d) { sum_squares(d); });
        for (std::size_t r = 0; r < ranks_.count; ++r) commit(r);
        for (std::size_t d = 0; d < devices_; ++d) {
            take_state(d, Holds::committed);
            update(d);
        }
        each_learner([&](std::size_t d) { all_gather(d); });
    }
    void writes_parameters(std::size_t d) { use(Holds::parameters, d, Use::next); }
    // The commit is behind the losses, a device's update behind that and its own layers; and those
    // of other devices that its parameters are tied to. Of several ranks the one with the losses
    // tells the others, which look for that, and for gradients of ties, behind all of their layers:
    // so who waits keeps nobody waiting; where messages are put on streams, and so all go in one
    // order, beside the layers. (Of several replicas the first waits there for the losses of the
    // others, which have them at the same time, and they for what it decides.)
    void end_at_once() {
        Array<bool> committed(ranks_.count);
        auto const commit_once = [&](std::size_t rank) {
            if (!committed[rank]) commit(rank);
            committed[rank] = true;
        };
        commit_once(ranks_.of(last_));
        for (std::size_t rank = 0; rank < ranks_.count; ++rank) {
            if (!sends_commit(rank)) continue;
            send_commit(rank);
            commit_once(rank);
        }
        std::size_t const tied = ending_.ties.size(); // of some of all ties
        Array<bool> called(devices_), ended(devices_),
            reduced(tied > 0 ? ending_.ties[tied - 1].tie + 1 : 0);
        auto const all = [&](Part<TiedCell> tie, Array<bool> const& devices) {
            bool result = true;
            for (TiedCell const& end : tie)
                result = result && devices[programs_.device_of(end.cell)];
            return result;
        };
        for (std::uint32_t const i : step_.order) {
            std::size_t const device = programs_.device_of(programs_[i].cell);
            if (i + 1 != programs_.end(device)) continue;
            called[device] = true;
            add_up(false, device, device + 1);
            each_tie([&](Part<TiedCell> tie) {
                if (reduced[tie[0].tie] || !all(tie, called)) return;
                bring(tie);
                reduce(tie);
                reduced[tie[0].tie] = true;
            });
            for (std::size_t d = 0; d < devices_; ++d) {
                bool ends = called[d] && !ended[d];
                for (TiedCell const& end : ending_.ties)
                    ends = ends && (programs_.device_of(end.cell) != d || reduced[end.tie]);
                if (!ends) continue;
                ended[d] = true;
                add_up(true, d, d + 1);
                commit_once(ranks_.of(d));
                take_state(d, Holds::committed);
                next_buffers(d);
                if (ending_.squares && updates_[d]) sum_squares(d);
                update(d);
                if (updates_[d]) all_gather(d);
            }
        }
        if (!ending_.squares || !ending_.calls_enqueue) return;
        each_learner([&](std::size_t d) { read(Holds::squares, d); });
        for (std::size_t d = 0; d < devices_; ++d) read(Holds::committed, d); // which it changes
        use(Holds::revoked, last_, Use::write);
        add_of_device(Kind::revoke, last_);
        for (std::size_t d = 0; d < devices_; ++d) take_state(d, Holds::revoked);
    }
    template <class F> void each_learner(F f) const {
        for (std::size_t d = 0; d < devices_; ++d)
            if (updates_[d]) f(d);
    }

    std::uint32_t& brought(TiedCell const& end) {
        return brought_[static_cast<std::size_t>(&end - ending_.ties.data())];
    }
    // Of several ranks, so that who waits for a message keeps no layer waiting.
    bool waits_for_layers() const { return ending_.immediate && ranks_.count > 1; }
    void read_gradients_of(std::size_t rank) {
        for (std::size_t d = ranks_.begin(rank); d < ranks_.end(rank); ++d) read_gradients(d);
    }
    // Each as soon as it is whole, while other layers go on. Its room is free when there are the
    // parameters that the last sum has led to, which layers that give it have read.
    [[gnu::noinline]] void bring(Part<TiedCell> tie) {
        for (TiedCell const& end : tie) {
            if (!is_away(end, tie[0])) continue;
            bool const crosses = rank_of(end) != rank_of(tie[0]);
            auto const act = [&](TiedCell const& on, bool gives, bool takes) {
                if (waits_for_layers() && !ending_.calls_enqueue) read_gradients_of(rank_of(on));
                if (gives) read(gradients_[end.cell]);
                if (!gives) use(Holds::parameters, programs_.device_of(on.cell), Use::read);
                if (takes) brought(end) = write_of_cell(Holds::brought, on.cell);
                add(Kind::bring_gradient, on.cell, end.end);
            };
            act(end, true, !crosses);
            if (crosses) act(tie[0], false, true);
        }
    }
    void reduce(Part<TiedCell> tie) {
        for (std::size_t r = 0; r < ranks_.count; ++r) reduce(tie, r);
    }
    // Where a rank has its first end, behind all layers there.
    [[gnu::noinline]] void reduce(Part<TiedCell> tie, std::size_t rank) {
        auto const is_own = [&](std::uint32_t cell) {
            return ranks_.of(programs_.device_of(cell)) == rank;
        };
        std::size_t first = 0;
        while (first < tie.size() && !is_own(tie[first].cell)) ++first;
        if (first == tie.size()) return;
        std::size_t const d = programs_.device_of(tie[first].cell);
        waits_for_layers() ? read_gradients_of(rank) : read_gradients(d);
        each_cell(tie, [&](std::uint32_t cell) {
            if (is_own(cell) && programs_.device_of(cell) != d) read(gradients_[cell]);
        });
        for (TiedCell const& end : tie)
            if (first == 0 && is_away(end, tie[0])) read(brought(end));
        each_cell(tie, [&](std::uint32_t cell) {
            if (is_own(cell)) write_gradients(cell);
        });
        add(Kind::reduce, tie[first].cell, tie[0].tie);
    }
    // Over replicas, cell by cell of some devices, in the order in which the last backwards are
    // done; those with ends of ties are not whole before these are reduced.
    [[gnu::noinline]] void add_up(bool tied, std::size_t first, std::size_t last) {
        if (ending_.replicas.count == 1) return;
        Kind const kind = ending_.replicas.shards ? Kind::reduce_scatter : Kind::all_reduce;
        for (std::uint32_t const i : step_.order) {
            Action const& a = programs_[i];
            std::size_t const d = programs_.device_of(a.cell);
            if (whole_[a.cell] != i || !ending_.learns[a.cell] || is_tied(a.cell) != tied ||
                d < first || d >= last)
                continue;
            read(gradients_[a.cell]);
            write_gradients(a.cell);
            add(kind, a.cell);
        }
    }
    bool is_tied(std::uint32_t cell) const {
        bool result = false;
        for (TiedCell const& end : ending_.ties) result = result || end.cell == cell;
        return result;
    }
    // Before the commit, so that a layer that throws here leaves everything as it was.
    [[gnu::noinline]] void next_buffers(std::size_t d) {
        if (!moves_[d]) return;
        std::size_t const batches = programs_.micro_batches();
        for (std::size_t const c : programs_.cells_of(d))
            for (std::size_t m = 0; m < batches; ++m)
                if (ending_.buffers[c].gathers) read(statistics_[c * batches + m]);
        use(Holds::parameters, d, Use::read);
        use(Holds::buffers, d, Use::write);
        add_of_device(Kind::next_buffers, d);
    }
    [[gnu::noinline]] void sum_squares(std::size_t d) {
        read_gradients(d);
        if (ending_.immediate) read_commit(d); // which what is found there may take back
        use(Holds::squares, d, Use::write);
        add_of_device(Kind::sum_squares, d);
    }
    bool sends_commit(std::size_t rank) const {
        return ending_.immediate && ending_.calls_enqueue && commits_[rank] != last_;
    }
    void send_commit(std::size_t rank) {
        read(Holds::committed, last_);
        use(Holds::told, commits_[rank], Use::write);
        add(Kind::send_commit, static_cast<std::uint32_t>(programs_.cells() - 1),
            static_cast<std::uint32_t>(rank));
    }
    // Of what a rank has; with the others it agrees by messages.
    [[gnu::noinline]] void commit(std::size_t rank) {
        std::size_t const at = commits_[rank];
        if (at == last_) read(losses_);
        if (sends_commit(rank)) read(Holds::told, at);
        if (ending_.squares && !ending_.immediate)
            each_learner([&](std::size_t d) {
                if (ranks_.of(d) == rank) read(Holds::squares, d);
            });
        bool const joins =
            ending_.immediate ? at != last_ && !sends_commit(rank) : !ending_.calls_enqueue;
        for (std::size_t d = ranks_.begin(rank); joins && d < ranks_.end(rank); ++d) {
            read_gradients(d);
            if (!ending_.immediate && moves_[d]) read(Holds::buffers, d);
        }
        use(Holds::committed, at, Use::write);
        if (ending_.copies_state && at == last_ && ending_.immediate)
            use(Holds::state, at, Use::read);
        else if (ending_.copies_state && !ending_.immediate)
            use(Holds::state, at, Use::next);
        add_of_device(Kind::commit, at);
    }
    // Where that is decided for a device.
    std::size_t commit_of(std::size_t d) const { return commits_[ranks_.of(d)]; }
    void read_commit(std::size_t d) {
        read(Holds::committed, ending_.copies_state ? d : commit_of(d));
    }
    // Under immediate updates also where it was decided, while layers read what was there.
    [[gnu::noinline]] void take_state(std::size_t d, Holds decided) {
        bool const elsewhere = d != commit_of(d), first = decided == Holds::committed;
        if (!ending_.copies_state || (!elsewhere && !(first && ending_.immediate))) return;
        read(decided, commit_of(d));
        if (first && elsewhere) use(Holds::committed, d, Use::write);
        if (first) use(Holds::state, d, Use::next);
        add_of_device(Kind::take_state, d);
    }
    [[gnu::noinline]] void update(std::size_t d) {
        if (!lasts(d)) return;
        read_gradients(d);
        if (moves_[d]) read(Holds::buffers, d);
        if (ending_.immediate && ending_.squares && updates_[d]) read(Holds::squares, d);
        read_commit(d);
        writes_parameters(d);
        if (ending_.replicas.shards && updates_[d]) use(Holds::updated, d, Use::write);
        add_of_device(Kind::update, d);
    }
    // Where each replica has updated its part.
    void all_gather(std::size_t d) {
        if (ending_.replicas.count == 1 || !ending_.replicas.shards) return;
        read(Holds::updated, d);
        writes_parameters(d);
        add_of_device(Kind::all_gather, d);
    }
};

} // namespace detail

/// Puts the end of a step behind its table: commit, updates and what goes with them, on the streams
/// of the devices.
GPIPE_INLINE EndedStep with_ending(Lowered const& step, Operands const& operands,
                                   Ending const& ending) {
    return detail::EndBuilder(step, operands, ending).result();
}

} // namespace gpipe
GPIPE_RUNS_ONCE_END
