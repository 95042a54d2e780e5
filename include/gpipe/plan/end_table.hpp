#pragma once

#include <gpipe/core/compiled.hpp>
#include <gpipe/plan/ended_step.hpp>
#include <gpipe/plan/sweep.hpp>

#include <cstddef>
#include <cstdint>

GPIPE_RUNS_ONCE_BEGIN
namespace gpipe::detail {

// The table of a step and, action by action, that of its end: what each reads and writes.
class EndTable {
  public:
    EndTable(Lowered const& step, Operands const& operands, Ending const& ending)
        : step_(step), programs_(step.programs), ending_(ending), size_(programs_.size()),
          devices_(step.devices()), last_(programs_.device_of(programs_.cells() - 1)),
          ranks_(ending.ranks), gradients_(programs_.cells(), Operands::none),
          whole_(programs_.cells(), Operands::none), brought_(ending.ties.size()),
          statistics_(ending.buffers.empty() ? 0 : programs_.cells() * programs_.micro_batches()),
          updates_(devices_), moves_(devices_),
          ends_(9 * devices_ + programs_.cells() + 2 + 3 * ending.ties.size()) {
        ranks_.devices = devices_;
        for (std::size_t c = 0; c < programs_.cells(); ++c)
            if (ending.learns[c]) updates_[programs_.device_of(c)] = true;
        for (std::size_t c = 0; c < ending.buffers.size(); ++c)
            if (ending.buffers[c].any) moves_[programs_.device_of(c)] = true;
        commits_ = Array<std::size_t>(ranks_.count);
        for (std::size_t c = 0; c < programs_.cells(); ++c)
            commits_[ranks_.of(programs_.device_of(c))] = programs_.device_of(c);
        std::size_t const most = size_ + ends_.size();
        for (std::size_t i = 0; i < size_; ++i)
            chain_ += is_backward(programs_[i].kind) || finds(programs_[i]);
        each_tie([&](Part<TiedCell> tie) {
            each_cell(tie, [&](std::uint32_t) { ++chain_; });
            for (TiedCell const& end : tie) chain_ += is_away(end, tie[0]);
        });
        for (std::size_t c = 0; c < programs_.cells(); ++c)
            chain_ += ending.replicas.count > 1 && ending.learns[c];
        first_ = operands.values.size() + chain_;
        chain_ = operands.values.size();
        all_ = operands;
        all_.begin = Array<std::uint32_t>(most + 1);
        all_.all = Array<Operand>(operands.all.size() + (statistics_.empty() ? 4 : 6) * size_ +
                                  9 * programs_.cells() + 27 * devices_ +
                                  ending.ties.size() * (3 * programs_.cells() + 7) + 16);
        all_.values = Array<Value>(first_ + kinds * devices_);
        for (std::size_t v = 0; v < chain_; ++v) all_.values[v] = operands.values[v];
        for (std::size_t v = 0; v < kinds * devices_; ++v)
            all_.values[first_ + v] = {Operands::none, static_cast<std::uint32_t>(v % devices_), 0,
                                       static_cast<Holds>(first_kind + v / devices_)};
        add_step(operands);
    }

    EndedStep result() {
        EndedStep result{step_, static_cast<Operands&&>(all_)};
        Programs& programs = result.lowered.programs =
            Programs(programs_, step_.streams() + 1, action_);
        for (std::size_t s = 0; s < step_.streams(); ++s)
            programs.add_program(programs_.program(s));
        programs.add_program({ends_.data(), action_ - size_});
        result.lowered.immediate = ending_.immediate;
        result.lowered.order = Array<std::uint32_t>(action_);
        for (std::size_t r = 0; r < action_; ++r)
            result.lowered.order[r] = r < size_ ? step_.order[r] : static_cast<std::uint32_t>(r);
        result.operands.begin = first_of(result.operands.begin, action_ + 1);
        result.operands.all = first_of(result.operands.all, operands_);
        find_needs_of_end(result);
        return result;
    }

  protected:
    static constexpr std::size_t first_kind = static_cast<std::size_t>(Holds::buffers);
    static constexpr std::size_t kinds =
        static_cast<std::size_t>(Holds::parameters) - first_kind + 1;
    static bool is_backward(Kind kind) { return gives_gradient(kind) || ends_backward(kind); }

    // Whether it leaves something beside its outputs: statistics, or what replicas exchange; and
    // whether it reads the latter.
    bool finds(Action const& a) const {
        return a.kind == Kind::forward && !ending_.buffers.empty() &&
               (ending_.buffers[a.cell].gathers || ending_.buffers[a.cell].exchanges);
    }
    bool reads_found(Action const& a) const {
        return a.kind != Kind::forward && computes(a.kind) && !ending_.buffers.empty() &&
               ending_.buffers[a.cell].exchanges;
    }
    std::size_t part_of(Action const& a) const {
        return a.cell * programs_.micro_batches() + a.micro_batch;
    }
    // Whether its layers read what is there from step to step.
    bool lasts(std::size_t d) const { return updates_[d] || moves_[d]; }

    void add_step(Operands const& operands) {
        std::size_t loss = programs_.end(last_) - 1;
        while (programs_[loss].cell + 1 < programs_.cells() ||
               !gives_gradient(programs_[loss].kind))
            --loss;
        for (std::size_t i = 0; i < size_; ++i) {
            Action const& a = programs_[i];
            std::size_t const d = programs_.device_of(a.cell);
            if (computes(a.kind) && lasts(d)) use(Holds::parameters, d, Use::read);
            if (computes(a.kind) && ending_.copies_state) use(Holds::state, d, Use::read);
            for (Operand const& operand : operands[i]) all_.all[operands_++] = operand;
            if (is_backward(a.kind)) add_gradients(a.cell);
            if (reads_found(a)) all_.all[operands_++] = {statistics_[part_of(a)], 0, Use::read};
            if (finds(a)) statistics_[part_of(a)] = write_of_cell(Holds::statistics, a.cell);
            if (i == loss) losses_ = gradients_[a.cell];
            all_.begin[++action_] = static_cast<std::uint32_t>(operands_);
        }
    }
    // In one order: that of the program.
    void add_gradients(std::uint32_t cell) {
        if (std::uint32_t const now = gradients_[cell]; now != Operands::none)
            all_.all[operands_++] = {now, 0, Use::read};
        write_gradients(cell);
        whole_[cell] = static_cast<std::uint32_t>(action_);
    }
    void write_gradients(std::uint32_t cell) {
        gradients_[cell] = write_of_cell(Holds::gradients, cell);
    }
    [[gnu::noinline]] std::uint32_t write_of_cell(Holds holds, std::uint32_t cell) {
        auto const now = static_cast<std::uint32_t>(chain_++);
        all_.values[now] = {static_cast<std::uint32_t>(action_), cell, 0, holds};
        all_.all[operands_++] = {now, 0, Use::write};
        return now;
    }

    template <class F> void each_tie(F f) const {
        Array<TiedCell> const& ties = ending_.ties;
        for (std::size_t first = 0, last = 0; first < ties.size(); first = last) {
            while (last < ties.size() && ties[last].tie == ties[first].tie) ++last;
            f(Part<TiedCell>{ties.data() + first, last - first});
        }
    }

    // Whether the gradient of this end cannot be read where the first one is.
    bool is_away(TiedCell const& end, TiedCell const& first) const {
        return programs_.device_of(end.cell) != programs_.device_of(first.cell) &&
               (ending_.copies_state || rank_of(end) != rank_of(first));
    }
    std::size_t rank_of(TiedCell const& end) const {
        return ranks_.of(programs_.device_of(end.cell));
    }
    // Once each, however many ends a cell has.
    template <class F> static void each_cell(Part<TiedCell> tie, F f) {
        for (std::size_t i = 0; i < tie.size(); ++i)
            if (i == 0 || tie[i].cell != tie[i - 1].cell) f(tie[i].cell);
    }

    [[gnu::noinline]] void use(Holds holds, std::size_t d, Use how) {
        std::size_t const v =
            first_ + (static_cast<std::size_t>(holds) - first_kind) * devices_ + d;
        if (how != Use::read) all_.values[v].writer = static_cast<std::uint32_t>(action_);
        all_.all[operands_++] = {static_cast<std::uint32_t>(v), 0, how};
    }
    void read(Holds holds, std::size_t d) { use(holds, d, Use::read); }
    void read(std::uint32_t v) { all_.all[operands_++] = {v, 0, Use::read}; }
    [[gnu::noinline]] void read_gradients(std::size_t d) {
        for (std::size_t const c : programs_.cells_of(d)) read(gradients_[c]);
    }
    [[gnu::noinline]] void add_of_device(Kind kind, std::size_t d) {
        add(kind, static_cast<std::uint32_t>(programs_.cells_of(d)[0]));
    }
    [[gnu::noinline]] void add(Kind kind, std::uint32_t cell, std::uint32_t tie = 0) {
        ends_[action_ - size_] = {kind, cell, 0, tie};
        all_.begin[++action_] = static_cast<std::uint32_t>(operands_);
    }
    // Whoever reads needs the writer; where anything lies the step's own needs know. As if a
    // device's end were on a stream of its own: who merges lanes is told which layers there it is
    // behind.
    [[gnu::noinline]] void find_needs_of_end(EndedStep& result) const {
        Lowered& all = result.lowered;
        Walk walk = walk_of(all);
        Array<std::uint32_t> count(walk.streams);
        for (std::size_t i = size_; i < action_; ++i) {
            Action const& a = all.programs[i];
            std::size_t const s = all.stream_of_end(a.kind, programs_.device_of(a.cell));
            walk.stream[i] = static_cast<std::uint32_t>(s < devices_ ? walk.streams + s : s);
            walk.position[i] = ++count[s];
        }
        walk.streams += devices_;
        Needs const of_data =
            find_needs(walk, result.operands, [](std::size_t, Operand const&) { return Span{}; });
        all.needs = Needs(action_, step_.needs.count() + of_data.count());
        for (std::size_t i = 0; i < action_; ++i)
            all.needs.set(i, i < size_ ? step_.needs[i] : of_data[i]);
    }

    Lowered const& step_;
    Programs const& programs_;
    Ending const& ending_;
    std::size_t size_; // actions of the step
    std::size_t devices_;
    std::size_t last_; // device
    Ranks ranks_;
    Array<std::size_t> commits_;      // by rank: the device whose stream commits
    Array<std::uint32_t> gradients_;  // by cell: the value that has all so far
    Array<std::uint32_t> whole_;      // by cell: the last backward
    Array<std::uint32_t> brought_;    // by end of a tie: the value that comes from there
    Array<std::uint32_t> statistics_; // by cell and micro-batch, if any layer has them: the value
    Array<bool> updates_, moves_;     // by device: whether its layers learn, and have buffers
    Array<Action> ends_;
    std::uint32_t losses_ = 0; // the value that is there when all of them are
    std::size_t chain_ = 0;    // the next of the gradients' values
    std::size_t first_ = 0;    // of the devices' values
    std::size_t action_ = 0;
    std::size_t operands_ = 0;
    Operands all_;
};

} // namespace gpipe::detail
GPIPE_RUNS_ONCE_END
