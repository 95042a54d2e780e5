#pragma once

#include <gpipe/core/compiled.hpp>
#include <gpipe/plan/end_needs.hpp>
#include <gpipe/plan/ended_step.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>

GPIPE_RUNS_ONCE_BEGIN
namespace gpipe {

namespace detail {

// Where updates come together they are behind all layers, by operands or, where calls only enqueue,
// by their place in the lane (check_steps() looks): so what a layer throws leaves everything as it
// was (promise P6).
class EndBuilder {
  public:
    EndBuilder(Lowered const& step, Operands const& operands, Ending const& ending)
        : step_(step), programs_(step.programs), ending_(ending), size_(programs_.size()),
          devices_(step.devices()), last_(programs_.device_of(programs_.cells() - 1)),
          ranks_(ending.ranks), gradients_(programs_.cells(), Operands::none),
          ends_(8 * devices_ + 2 + ending.ties.size()), reads_(step, operands, ends_.size()) {
        ranks_.devices = devices_;
        commits_ = Array<std::size_t>(ranks_.count);
        for (std::size_t c = 0; c < programs_.cells(); ++c)
            commits_[ranks_.of(programs_.device_of(c))] = programs_.device_of(c);
        std::size_t const most = size_ + ends_.size();
        for (std::size_t i = 0; i < size_; ++i) chain_ += is_backward(programs_[i].kind);
        each_tie([&](Part<TiedCell> tie) { each_cell(tie, [&](std::uint32_t) { ++chain_; }); });
        for (std::size_t c = 0; c < programs_.cells() && ending.replicas.count > 1; ++c)
            if (ending.updates[programs_.device_of(c)]) chain_ += ending.replicas.shards ? 1 : 2;
        first_ = operands.values.size() + chain_;
        chain_ = operands.values.size();
        all_ = operands;
        all_.begin = Array<std::uint32_t>(most + 1);
        all_.all =
            Array<Operand>(operands.all.size() + 4 * size_ + 9 * programs_.cells() + 20 * devices_ +
                           ending.ties.size() * (programs_.cells() + 2) + 16);
        all_.values = Array<Value>(first_ + kinds * devices_);
        for (std::size_t v = 0; v < chain_; ++v) all_.values[v] = operands.values[v];
        for (std::size_t v = 0; v < kinds * devices_; ++v)
            all_.values[first_ + v] = {Operands::none, static_cast<std::uint32_t>(v % devices_), 0,
                                       static_cast<Holds>(first_kind + v / devices_)};
        needs_ = Needs(most, step.needs.count() + most);
        add_step(operands);
        ending_.immediate ? end_at_once() : end_together();
    }

    EndedStep result() {
        EndedStep result{step_, static_cast<Operands&&>(all_)};
        Programs& programs = result.lowered.programs =
            Programs(step_.streams() + 1, programs_.cells(), programs_.micro_batches(), action_);
        for (std::size_t c = 0; c < programs_.cells(); ++c)
            programs.place(c, programs_.device_of(c));
        for (std::size_t s = 0; s < step_.streams(); ++s) {
            for (Action const& a : programs_.program(s)) programs.add(a);
            programs.next_device();
        }
        for (std::size_t i = size_; i < action_; ++i) programs.add(ends_[i - size_]);
        programs.next_device();
        result.lowered.needs = static_cast<Needs&&>(needs_);
        result.lowered.immediate = ending_.immediate;
        result.lowered.order = Array<std::uint32_t>(action_);
        for (std::size_t r = 0; r < action_; ++r)
            result.lowered.order[r] = r < size_ ? step_.order[r] : static_cast<std::uint32_t>(r);
        result.operands.begin = first_of(result.operands.begin, action_ + 1);
        result.operands.all = first_of(result.operands.all, operands_);
        return result;
    }

  private:
    static constexpr std::size_t first_kind = static_cast<std::size_t>(Holds::squares);
    static constexpr std::size_t kinds =
        static_cast<std::size_t>(Holds::parameters) - first_kind + 1;
    static bool is_backward(Kind kind) { return gives_gradient(kind) || ends_backward(kind); }

    void add_step(Operands const& operands) {
        std::size_t loss = programs_.end(last_) - 1;
        while (programs_[loss].cell + 1 < programs_.cells() ||
               !gives_gradient(programs_[loss].kind))
            --loss;
        for (std::size_t i = 0; i < size_; ++i) {
            Action const& a = programs_[i];
            std::size_t const d = programs_.device_of(a.cell);
            if (computes(a.kind) && ending_.updates[d]) use(Holds::parameters, d, Use::read);
            if (computes(a.kind) && ending_.copies_state) use(Holds::state, d, Use::read);
            for (Operand const& operand : operands[i]) all_.all[operands_++] = operand;
            if (is_backward(a.kind)) add_gradients(a.cell);
            if (i == loss) losses_ = gradients_[a.cell];
            needs_.set(i, step_.needs[i]);
            all_.begin[++action_] = static_cast<std::uint32_t>(operands_);
        }
    }
    // In one order: that of the program.
    void add_gradients(std::uint32_t cell) {
        if (std::uint32_t const now = gradients_[cell]; now != Operands::none)
            all_.all[operands_++] = {now, 0, Use::read};
        write_gradients(cell);
    }
    [[gnu::noinline]] void write_gradients(std::uint32_t cell) {
        std::uint32_t const now = gradients_[cell] = static_cast<std::uint32_t>(chain_++);
        all_.values[now] = {static_cast<std::uint32_t>(action_), cell, 0, Holds::gradients};
        all_.all[operands_++] = {now, 0, Use::write};
    }

    void end_together() {
        each_tie([&](Part<TiedCell> tie) {
            for (std::size_t r = 0; r < ranks_.count; ++r) reduce(tie, r);
        });
        Replication const& replicas = ending_.replicas;
        if (replicas.count > 1) each_learner([&](std::size_t d) { add_up(d); });
        if (ending_.squares) each_learner([&](std::size_t d) { sum_squares(d); });
        for (std::size_t r = 0; r < ranks_.count; ++r) commit(r);
        for (std::size_t d = 0; d < devices_; ++d) {
            take_state(d, Holds::committed);
            update(d);
        }
        if (replicas.count > 1 && replicas.shards)
            each_learner([&](std::size_t d) {
                read(Holds::updated, d);
                writes_parameters(d);
                add_of_device(Kind::all_gather, d);
            });
    }
    void writes_parameters(std::size_t d) { use(Holds::parameters, d, Use::next); }
    // The commit is behind the losses, a device's update behind that and its own layers; and those
    // of other devices that its parameters are tied to.
    void end_at_once() {
        commit(0);
        Array<bool> called(devices_), ended(devices_), reduced(ending_.ties.size());
        auto const all = [&](Part<TiedCell> tie, Array<bool> const& devices) {
            bool result = true;
            for (TiedCell const& end : tie)
                result = result && devices[programs_.device_of(end.cell)];
            return result;
        };
        for (std::uint32_t const i : step_.order) {
            if (i + 1 != programs_.end(programs_.device_of(programs_[i].cell))) continue;
            called[programs_.device_of(programs_[i].cell)] = true;
            each_tie([&](Part<TiedCell> tie) {
                if (!reduced[tie[0].tie] && all(tie, called)) reduce(tie, 0);
                reduced[tie[0].tie] = all(tie, called);
            });
            for (std::size_t d = 0; d < devices_; ++d) {
                bool ends = called[d] && !ended[d];
                for (TiedCell const& end : ending_.ties)
                    ends = ends && (programs_.device_of(end.cell) != d || reduced[end.tie]);
                if (!ends) continue;
                ended[d] = true;
                take_state(d, Holds::committed);
                if (ending_.squares && ending_.updates[d]) sum_squares(d);
                update(d);
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
            if (ending_.updates[d]) f(d);
    }

    template <class F> void each_tie(F f) const {
        Array<TiedCell> const& ties = ending_.ties;
        for (std::size_t first = 0, last = 0; first < ties.size(); first = last) {
            while (last < ties.size() && ties[last].tie == ties[first].tie) ++last;
            f(Part<TiedCell>{ties.data() + first, last - first});
        }
    }

    // Once each, however many ends a cell has.
    template <class F> static void each_cell(Part<TiedCell> tie, F f) {
        for (std::size_t i = 0; i < tie.size(); ++i)
            if (i == 0 || tie[i].cell != tie[i - 1].cell) f(tie[i].cell);
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
        read_gradients(d);
        each_cell(tie, [&](std::uint32_t cell) {
            if (is_own(cell) && programs_.device_of(cell) != d) read(gradients_[cell]);
        });
        each_cell(tie, [&](std::uint32_t cell) {
            if (is_own(cell)) write_gradients(cell);
        });
        add(Kind::reduce, tie[first].cell, tie[0].tie);
    }
    // Over replicas, as soon as the device is through with its layers: behind a tie's sum, for its
    // ends lie in other parts.
    [[gnu::noinline]] void add_up(std::size_t d) {
        for (Kind const kind : {Kind::reduce_scatter, Kind::all_gather}) {
            if (kind == Kind::all_gather && ending_.replicas.shards) return;
            read_gradients(d);
            for (std::uint32_t c = 0; c < programs_.cells(); ++c)
                if (programs_.device_of(c) == d) write_gradients(c);
            add_of_device(kind, d);
        }
    }
    [[gnu::noinline]] void sum_squares(std::size_t d) {
        read_gradients(d);
        if (ending_.immediate && ending_.copies_state) read(Holds::committed, d);
        use(Holds::squares, d, Use::write);
        add_of_device(Kind::sum_squares, d);
    }
    // Of what a rank has; with the others it agrees by messages.
    [[gnu::noinline]] void commit(std::size_t rank) {
        std::size_t const at = commits_[rank];
        if (at == last_) read(losses_);
        if (ending_.squares && !ending_.immediate)
            each_learner([&](std::size_t d) {
                if (ranks_.of(d) == rank) read(Holds::squares, d);
            });
        bool const joins = !ending_.immediate && !ending_.calls_enqueue;
        for (std::size_t d = ranks_.begin(rank); d < ranks_.end(rank); ++d)
            if (joins || (ending_.copies_state && d == at)) read_gradients(d);
        use(Holds::committed, at, Use::write);
        if (ending_.copies_state) use(Holds::state, at, Use::next);
        add_of_device(Kind::commit, at);
    }
    // Where that is decided for a device.
    std::size_t commit_of(std::size_t d) const { return commits_[ranks_.of(d)]; }
    [[gnu::noinline]] void take_state(std::size_t d, Holds decided) {
        if (!ending_.copies_state || d == commit_of(d)) return;
        read_gradients(d);
        read(decided, commit_of(d));
        if (decided == Holds::committed) {
            use(Holds::committed, d, Use::write);
            use(Holds::state, d, Use::next);
        }
        add_of_device(Kind::take_state, d);
    }
    [[gnu::noinline]] void update(std::size_t d) {
        if (!ending_.updates[d]) return;
        read_gradients(d);
        if (ending_.immediate && ending_.squares) read(Holds::squares, d);
        read(Holds::committed, ending_.copies_state ? d : commit_of(d));
        writes_parameters(d);
        if (ending_.replicas.shards) use(Holds::updated, d, Use::write);
        add_of_device(Kind::update, d);
    }

    [[gnu::noinline]] void use(Holds holds, std::size_t d, Use how) {
        std::size_t const v =
            first_ + (static_cast<std::size_t>(holds) - first_kind) * devices_ + d;
        if (how != Use::read) all_.values[v].writer = static_cast<std::uint32_t>(action_);
        all_.all[operands_++] = {static_cast<std::uint32_t>(v), 0, how};
    }
    // By what is added next, which then needs the writer.
    void read(Holds holds, std::size_t d) {
        read(first_ + (static_cast<std::size_t>(holds) - first_kind) * devices_ + d);
    }
    [[gnu::noinline]] void read(std::size_t v) {
        all_.all[operands_++] = {static_cast<std::uint32_t>(v), 0, Use::read};
        std::uint32_t const writer = all_.values[v].writer;
        Action const& a = writer < size_ ? programs_[writer] : ends_[writer - size_];
        reads_.add(writer, programs_.device_of(a.cell));
    }
    [[gnu::noinline]] void read_gradients(std::size_t d) {
        for (std::size_t c = 0; c < programs_.cells(); ++c)
            if (programs_.device_of(c) == d) read(gradients_[c]);
    }
    [[gnu::noinline]] void add_of_device(Kind kind, std::size_t d) {
        std::uint32_t cell = 0;
        while (programs_.device_of(cell) != d) ++cell;
        add(kind, cell);
    }
    [[gnu::noinline]] void add(Kind kind, std::uint32_t cell, std::uint32_t tie = 0) {
        std::size_t const d = programs_.device_of(cell);
        ends_[action_ - size_] = {kind, cell, 0, tie};
        needs_.set(action_, reads_.take(action_, d));
        all_.begin[++action_] = static_cast<std::uint32_t>(operands_);
    }

    Lowered const& step_;
    Programs const& programs_;
    Ending const& ending_;
    std::size_t size_; // actions of the step
    std::size_t devices_;
    std::size_t last_; // device
    Ranks ranks_;
    Array<std::size_t> commits_;     // by rank: the device whose stream commits
    Array<std::uint32_t> gradients_; // by cell: the value that has all so far
    Array<Action> ends_;
    EndNeeds reads_;         // of the next of these
    std::size_t losses_ = 0; // the value that is there when all of them are
    std::size_t chain_ = 0;  // the next of the gradients' values
    std::size_t first_ = 0;  // of the devices' values
    std::size_t action_ = 0;
    std::size_t operands_ = 0;
    Needs needs_;
    Operands all_;
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
