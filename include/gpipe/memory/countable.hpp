#pragma once

#include <gpipe/core/checked.hpp>
#include <gpipe/core/compiled.hpp>
#include <gpipe/memory/memory_plan.hpp>

#include <cstddef>

GPIPE_RUNS_ONCE_BEGIN
namespace gpipe {

namespace detail {

// Bytes so far, or too_large.
class ByteCount {
  public:
    // So often so many samples of these.
    [[gnu::noinline]] constexpr void add(GroupSizes const& group, std::size_t samples,
                                         std::size_t times) {
        for (std::size_t t = 0; t < group.count; ++t)
            add(checked_product(group.bytes[t], samples), times);
    }
    constexpr void add(HandleNeeds const& needs) {
        for (HandleNeed const& need : needs) add(need.workspace, 1);
    }
    constexpr void add(std::size_t bytes, std::size_t times) {
        bytes_ = checked_sum(bytes_, checked_product(checked_sum(bytes, slot_alignment), times));
    }
    constexpr bool countable() const { return bytes_ <= most_bytes; }

  private:
    std::size_t bytes_ = 0;
};

} // namespace detail

/// Whether the bytes of a plan can be counted at all. The bound is generous, so that no sum or
/// product on the way to a plan is larger: of parameters, their gradients and the optimizer's
/// states once each; of buffers two, of statistics one for each replica and micro-batch and one
/// more; of what replicas exchange one for each replica of each micro-batch; of every other tensor
/// of every layer sixteen for each micro-batch and two more; of what is staged all.
GPIPE_INLINE constexpr bool countable(PlanRequest const& request, std::size_t micro_batches) {
    ChainShape const& chain = request.chain;
    Staging const& staging = request.staging;
    std::size_t const replicas = request.replication.count;
    std::size_t const live = checked_product(16, checked_sum(micro_batches, 2));
    detail::ByteCount bytes;
    for (std::size_t i = 0; i < chain.size; ++i) {
        LayerInfo const& layer = chain.layers[i];
        bytes.add(layer.parameters, 1, checked_sum(request.states, 2));
        bytes.add(layer.buffers, 1, 2);
        bytes.add(layer.statistics, 1, checked_sum(replicas, checked_sum(micro_batches, 1)));
        bytes.add(layer.exchanged, 1, checked_product(replicas, micro_batches));
        bytes.add(layer.exchanged_gradient, 1, replicas);
        for (GroupSizes const* group :
             {&layer.input, &layer.output, &layer.saved, &layer.scratch, &layer.deferred,
              &layer.input_gradient, &layer.output_gradient})
            bytes.add(*group, request.capacity, live);
        bytes.add(layer.handles);
        for (SideInfo const& side : layer.sides)
            bytes.add({&side.bytes, 1}, staging.samples, staging.steps);
    }
    for (SkipPair const& skip : chain.skips)
        for (std::size_t const* sample : {&skip.bytes, &skip.gradient_bytes})
            bytes.add({sample, 1}, request.capacity, live);
    bytes.add(chain.loss_scratch, request.capacity, live);
    bytes.add(chain.loss_handles);
    for (GroupSizes const* group : {&staging.inputs, &staging.targets})
        bytes.add(*group, staging.samples, staging.steps);
    bytes.add(staging.sums, 1);
    return bytes.countable();
}

} // namespace gpipe
GPIPE_RUNS_ONCE_END
