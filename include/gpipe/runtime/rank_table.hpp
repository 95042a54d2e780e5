#pragma once

#include <gpipe/core/compiled.hpp>
#include <gpipe/core/hash.hpp>
#include <gpipe/memory/memory_plan.hpp>
#include <gpipe/plan/messages.hpp>
#include <gpipe/plan/ranks.hpp>
#include <gpipe/runtime/table.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <stdexcept>

GPIPE_RUNS_ONCE_BEGIN
namespace gpipe::detail {

// Of what ranks have to agree on: where and in which order actions run, what messages bring, and
// where everything lies.
[[gnu::cold]] GPIPE_INLINE std::uint64_t hash_of(StepTable const& all, MemoryPlan const& plan,
                                                 Edges const& edges, std::uint64_t hash) {
    auto const add = [&](std::uint64_t number) { hash = mixed(hash, number); };
    for (Step const& step : all.steps)
        for (std::uint32_t const number : {static_cast<std::uint32_t>(step.kind), step.cell,
                                           step.micro_batch, step.stream, step.place, step.calls})
            add(number);
    for (Edge const& edge : edges) {
        add(edge.bytes);
        add(edge.gradient_bytes);
    }
    for (DeviceBytes const& device : plan.devices) add(device.total());
    for (auto const* offsets :
         {&plan.parameters, &plan.gradients, &plan.frozen, &plan.optimizer, &plan.buffers,
          &plan.statistics, &plan.room.at, &plan.evaluation_room.at})
        for (std::size_t const offset : *offsets) add(offset);
    return hash;
}

// Of a table for all ranks what one of them walks: its lanes, and numbers for its streams alone.
// For another rank nobody waits but by messages: whatever else crosses ranks is between values in
// one rank's memory, so that both ends of a wait are there. Throws std::logic_error if that is not
// so.
[[gnu::cold]] GPIPE_INLINE StepTable rank_table(StepTable const& all, Lowered const& lowered,
                                                Placement const& placement, Ranks const& ranks) {
    constexpr std::uint32_t none = 0xFFFFFFFF;
    Array<std::uint32_t> number(all.streams, none); // by stream
    std::size_t first = placement.lanes, last = 0;  // lane
    StepTable own;
    own.streams = 0;
    for (std::size_t p = 0; p < lowered.streams(); ++p) {
        if (!ranks.own(lowered.device[p])) continue;
        first = std::min(first, placement.lane[p]);
        last = std::max(last, placement.lane[p] + 1);
        number[placement.stream[p]] = 0;
    }
    for (std::uint32_t& n : number)
        if (n != none) n = static_cast<std::uint32_t>(own.streams++);
    own.longest = all.longest;
    own.actions = all.actions;
    own.arenas = all.arenas;
    own.evaluation = all.evaluation;
    own.repeats = all.repeats;
    if (first <= all.sums_up && all.sums_up < last) own.sums_up = all.sums_up - first;
    own.stream_of_device = Array<std::size_t>(all.stream_of_device.size());
    for (std::size_t d = ranks.begin(); d < ranks.end(); ++d)
        own.stream_of_device[d] = number[all.stream_of_device[d]];

    // Who makes what others wait for.
    Array<std::uint32_t> const receives = messages_of(lowered);
    Array<std::uint32_t> sends(lowered.programs.size(), none);
    for (std::uint32_t i = 0; i < receives.size(); ++i)
        if (receives[i] != no_message) sends[receives[i]] = i;
    Array<Step const*> step_of(lowered.programs.size());
    for (Step const& step : all.steps) step_of[step.action] = &step;

    std::size_t const begin = all.begin[first], end = all.begin[last];
    own.begin = Array<std::size_t>(last - first + 1);
    for (std::size_t lane = first; lane <= last; ++lane)
        own.begin[lane - first] = all.begin[lane] - begin;
    own.steps = Array<Step>(end - begin);
    own.waits = Array<Wait>(all.waits.size());
    std::size_t const address = begin < end ? all.steps[begin].first_address : 0;
    std::size_t const addresses_end =
        end < all.steps.size() ? all.steps[end].first_address : all.addresses.size();
    own.addresses = Array<std::byte*>(addresses_end - address);
    std::copy(all.addresses.begin() + address, all.addresses.begin() + addresses_end,
              own.addresses.begin());
    std::uint32_t waits = 0;
    for (std::size_t n = begin; n < end; ++n) {
        Step step = all.steps[n];
        step.first_address -= static_cast<std::uint32_t>(address);
        step.first_wait = waits;
        auto const keep = [&](Wait const& wait) {
            bool const is_own = number[wait.stream] != none;
            if (is_own) own.waits[waits++] = {number[wait.stream], wait.position};
            return is_own;
        };
        for (Wait const& wait : all.waits_of(all.steps[n])) {
            if (keep(wait)) continue;
            Step const* const sent =
                sends[step.action] == none ? nullptr : step_of[sends[step.action]];
            if (!sent || sent->stream != wait.stream || sent->position != wait.position)
                throw std::logic_error("gpipe: a rank waits for another without a message");
        }
        step.waits = static_cast<std::uint16_t>(waits - step.first_wait);
        for (Wait const& wait : all.waits_before(all.steps[n]))
            if (!keep(wait)) throw std::logic_error("gpipe: a rank waits for another's step");
        step.waits_before = static_cast<std::uint16_t>(waits - step.first_wait - step.waits);
        step.stream = number[step.stream];
        own.steps[n - begin] = step;
    }
    own.waits = first_of(own.waits, waits);
    return own;
}

} // namespace gpipe::detail
GPIPE_RUNS_ONCE_END
