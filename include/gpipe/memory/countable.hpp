#pragma once

#include <gpipe/core/checked.hpp>
#include <gpipe/core/compiled.hpp>
#include <gpipe/memory/memory_plan.hpp>

#include <cstddef>

GPIPE_RUNS_ONCE_BEGIN
namespace gpipe {

/// Whether the bytes of a plan can be counted at all. The bound is generous, so that no sum or
/// product on the way to a plan is larger: of parameters, their gradients and the optimizer's
/// states once each; of buffers two, of statistics one for each replica and micro-batch and one
/// more; of what replicas exchange one for each replica of each micro-batch; of every other tensor
/// of every layer sixteen for each micro-batch and two more; of what is staged all.
GPIPE_INLINE constexpr bool countable(PlanRequest const& request, std::size_t micro_batches) {
    ChainShape const& chain = request.chain;
    Staging const& staging = request.staging;
    std::size_t bytes = 0;
    auto const add = [&](GroupSizes const& group, std::size_t samples, std::size_t times) {
        for (std::size_t t = 0; t < group.count; ++t) {
            std::size_t const tensor = checked_product(group.bytes[t], samples);
            bytes = checked_sum(bytes, checked_product(checked_sum(tensor, slot_alignment), times));
        }
    };
    auto const handles = [&](HandleNeeds const& needs) {
        for (std::size_t i = 0; i < needs.count; ++i)
            bytes = checked_sum(bytes, checked_sum(needs.first[i].workspace, slot_alignment));
    };
    std::size_t const live = checked_product(16, checked_sum(micro_batches, 2));
    for (std::size_t i = 0; i < chain.size; ++i) {
        LayerInfo const& layer = chain.layers[i];
        add(layer.parameters, 1, checked_sum(request.states, 2));
        add(layer.buffers, 1, 2);
        add(layer.statistics, 1,
            checked_sum(request.replication.count, checked_sum(micro_batches, 1)));
        add(layer.exchanged, 1, checked_product(request.replication.count, micro_batches));
        add(layer.exchanged_gradient, 1, request.replication.count);
        for (GroupSizes const* group :
             {&layer.input, &layer.output, &layer.saved, &layer.scratch, &layer.deferred,
              &layer.input_gradient, &layer.output_gradient})
            add(*group, request.capacity, live);
        handles(layer.handles);
        for (std::size_t s = 0; s < layer.sides.count; ++s)
            add({&layer.sides.first[s].bytes, 1}, staging.samples, staging.steps);
    }
    for (SkipPair const& skip : chain.skips)
        for (std::size_t const* sample : {&skip.bytes, &skip.gradient_bytes})
            add({sample, 1}, request.capacity, live);
    add(chain.loss_scratch, request.capacity, live);
    handles(chain.loss_handles);
    add(staging.inputs, staging.samples, staging.steps);
    add(staging.targets, staging.samples, staging.steps);
    return checked_sum(bytes, staging.sums) <= most_bytes;
}

} // namespace gpipe
GPIPE_RUNS_ONCE_END
