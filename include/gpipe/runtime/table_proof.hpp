#pragma once

#include <gpipe/core/compiled.hpp>
#include <gpipe/core/error.hpp>
#include <gpipe/runtime/table.hpp>

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

GPIPE_RUNS_ONCE_BEGIN
namespace gpipe {

namespace detail {

// Throws std::logic_error unless the steps are the actions, each once and in its place, and wait
// for each other; and unless each lane has called its layers when the end of the step begins, if
// that is not immediate: sums over replicas may come before.
GPIPE_INLINE void check_steps(StepTable const& table, Lowered const& lowered) {
    Programs const& programs = lowered.programs;
    bool sound = table.steps.size() == programs.size();
    Array<bool> there(programs.size());
    Array<std::uint32_t> length(table.streams);
    for (Step const& step : table.steps) {
        sound = sound && step.action < programs.size() && !there[step.action] &&
                step.stream < table.streams && step.position == ++length[step.stream];
        if (!sound) break;
        there[step.action] = true;
        Action const& a = programs[step.action];
        sound = a.kind == step.kind && a.cell == step.cell && a.micro_batch == step.micro_batch;
    }
    for (std::size_t lane = 0; lane < table.lanes() && !lowered.immediate; ++lane) {
        bool ends = false;
        for (std::size_t n = table.begin[lane]; n < table.begin[lane + 1]; ++n) {
            Kind const kind = table.steps[n].kind;
            sound = sound && (!ends || ends_step(kind));
            ends = ends || (ends_step(kind) && !adds_replicas(kind));
        }
    }
    for (Step const& step : table.steps)
        for (auto const& waits : {table.waits_of(step), table.waits_before(step)})
            for (Wait const& wait : waits)
                sound = sound && wait.stream < table.streams && wait.position > 0 &&
                        wait.position <= length[wait.stream];
    if (!sound) throw std::logic_error("gpipe: the steps of a table are not its actions");
}

// A table as the sweep sees it: nothing but what is walked. Addresses are those of the steps, and a
// mark that nobody publishes holds up nobody.
class TableWalk {
  public:
    TableWalk(StepTable const& table, MemoryPlan const& plan, Operands const& operands)
        : table_(table), plan_(plan), operands_(operands),
          located_(plan, operands, table.evaluation), step_of_(table.steps.size()) {
        std::size_t const size = table.steps.size();
        walk = {table.streams, Array<std::uint32_t>(size), Array<std::uint32_t>(size),
                Array<std::uint32_t>(size)};
        Array<std::size_t> begin(table.streams + 1);
        for (Step const& step : table.steps) ++begin[step.stream + 1];
        for (std::size_t s = 0; s < table.streams; ++s) begin[s + 1] += begin[s];
        Array<std::uint32_t> at(size); // by stream and position: the action
        for (Step const& step : table.steps) {
            step_of_[step.action] = &step;
            walk.stream[step.action] = step.stream;
            walk.position[step.action] = step.position;
            at[begin[step.stream] + step.position - 1] = step.action;
        }
        needs = Needs(size, table.waits.size());
        if (table.repeats) before = Needs(size, table.waits.size());
        Array<std::uint32_t> needed(table.waits.size());
        for (Step const& step : table.steps) {
            auto const set = [&](Needs& all, std::span<Wait const> waits) {
                std::size_t count = 0;
                for (Wait const& wait : waits) {
                    std::uint32_t const action = at[begin[wait.stream] + wait.position - 1];
                    Step const& other = *step_of_[action];
                    if (other.publishes && other.more) needed[count++] = action;
                }
                all.set(step.action, {needed.data(), count});
            };
            set(needs, table.waits_of(step));
            if (table.repeats) set(before, table.waits_before(step));
        }
        find_order();
    }

    // Where the step finds an operand.
    Span operator()(std::size_t action, Operand const& operand) const {
        Span const& there = located_[operand.value];
        if (there.begin == there.end) return {};
        auto const begin =
            reinterpret_cast<std::uintptr_t>(table_.of(*step_of_[action])[operand.address]);
        return {begin, begin + (there.end - there.begin), there.space};
    }

    // The first operand that lies outside of its arena, or in what lives for ever.
    SweepVerdict outside() const {
        for (Step const& step : table_.steps)
            for (Operand const& operand : operands_[step.action]) {
                std::size_t const space = located_[operand.value].space;
                bool const host = space == plan_.devices.size();
                std::size_t const room = host ? plan_.host : plan_.devices[space].total();
                std::size_t const state = host ? 0 : plan_.devices[space].state();
                auto const begin = reinterpret_cast<std::uintptr_t>(table_.arenas[space]);
                Span const span = (*this)(step.action, operand);
                if (span.begin < span.end &&
                    (span.begin < begin + state || span.end > begin + room))
                    return {Flaw::outside, step.action, operand.value};
            }
        return {};
    }

    Walk walk;
    Needs needs;
    Needs before;

  private:
    // Of all lanes at once. Throws std::logic_error if they wait for each other.
    void find_order() {
        Array<std::size_t> next(table_.lanes());
        Array<std::uint32_t> reached(table_.streams);
        for (std::size_t lane = 0; lane < next.size(); ++lane) next[lane] = table_.begin[lane];
        for (std::size_t count = 0; count < table_.steps.size();) {
            std::size_t const start = count;
            for (std::size_t lane = 0; lane < next.size(); ++lane)
                for (; next[lane] < table_.begin[lane + 1]; ++next[lane]) {
                    Step const& step = table_.steps[next[lane]];
                    bool ready = step.position == reached[step.stream] + 1;
                    for (Wait const& wait : table_.waits_of(step))
                        ready = ready && reached[wait.stream] >= wait.position;
                    if (!ready) break;
                    reached[step.stream] = step.position;
                    walk.order[count++] = step.action;
                }
            if (count == start)
                throw std::logic_error("gpipe: the lanes of a table wait for each other");
        }
    }

    StepTable const& table_;
    MemoryPlan const& plan_;
    Operands const& operands_;
    Located located_;
    Array<Step const*> step_of_; // by action
};

} // namespace detail

/// Adds to a table what its actions have to wait for in the step before, which may be under way.
GPIPE_INLINE void add_waits_before(StepTable& table, MemoryPlan const& plan,
                                   Operands const& operands) {
    detail::TableWalk const walked(table, plan, operands);
    Needs const before = find_needs_before(walked.walk, operands, walked.needs, walked);
    Array<Step*> step_of(table.steps.size()); // by action
    for (Step& step : table.steps) step_of[step.action] = &step;
    Array<Wait> waits(table.waits.size() + before.count());
    std::uint32_t count = 0;
    for (Step& step : table.steps) {
        std::uint32_t const first = count;
        for (Wait const& wait : table.waits_of(step)) waits[count++] = wait;
        for (std::uint32_t const needed : before[step.action]) {
            Step& other = *step_of[needed];
            other.publishes = other.more = true;
            waits[count++] = {other.stream, other.position};
        }
        step.first_wait = first;
        step.waits_before = static_cast<std::uint16_t>(count - first - step.waits);
    }
    table.waits = std::move(waits);
}

/// Proves that a walk of the table, as it will be walked, loses nothing: see prove(). Throws
/// std::logic_error, naming the action and what it reads or overwrites.
[[gnu::cold]] GPIPE_INLINE void check_table(StepTable const& table, MemoryPlan const& plan,
                                            Lowered const& lowered, Operands const& operands) {
    detail::check_steps(table, lowered);
    detail::TableWalk const walked(table, plan, operands);
    SweepVerdict verdict = walked.outside();
    if (verdict)
        verdict = prove(walked.walk, operands, walked.needs, walked,
                        table.repeats ? &walked.before : nullptr);
    if (verdict) return;
    Action const& a = lowered.programs[verdict.action];
    Value const& value = operands.values[verdict.value];
    detail::throw_error<std::logic_error>(
        "gpipe: the table that would be walked is wrong at the %s of cell %u, micro-batch %u: %s "
        "(%s %u of micro-batch %u)",
        std::string(name(a.kind)).c_str(), a.cell, a.micro_batch,
        std::string(sentence(verdict.flaw)).c_str(), std::string(name(value.holds)).c_str(),
        value.owner, value.micro_batch);
}

} // namespace gpipe
GPIPE_RUNS_ONCE_END
