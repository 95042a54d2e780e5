#pragma once

#include <gpipe/core/hash.hpp>
#include <gpipe/runtime/agreement.hpp>
#include <gpipe/runtime/machine_plan.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace gpipe::detail {

// What ranks may have chosen otherwise when they have made a plan of one type for as many devices.
struct PlanPart {
    std::uint64_t hash;
    char const* sentence; // with the first rank where it is another than on rank 0
};

// Throws std::invalid_argument, on all ranks, unless all have made the same plan. `tables`: see
// LanePlan::hash.
template <class Transport, class Device>
void compare_plans(Transport& transport, MachinePlan<Device> const& machine, std::uint64_t tables) {
    StepChecks const& checks = machine.checks;
    LossScale const& scale = checks.scale;
    std::uint64_t frozen = 0, cut = 0;
    for (LayerInfo const& layer : machine.model.infos) frozen = mixed(frozen, layer.unwanted());
    for (std::size_t const layer : machine.first) cut = mixed(cut, layer);
    // What differs in one may bring what differs behind it.
    PlanPart const parts[]{
        {machine.seed, "gpipe: rank %zu has another Options::seed than rank 0"},
        {machine.samples, "gpipe: rank %zu has other Options::samples than rank 0"},
        {machine.programs.micro_batches(),
         "gpipe: rank %zu has other Options::micro_batches than rank 0"},
        {hash_of_all(checks.clip, std::uint64_t{checks.finite_gradients},
                     static_cast<std::uint64_t>(checks.not_finite), scale.initial, scale.growth,
                     scale.backoff, scale.least, scale.most, std::uint64_t{scale.interval}),
         "gpipe: rank %zu has another Options::clip_norm, loss_scale, finite_gradients or "
         "not_finite than rank 0"},
        {frozen, "gpipe: rank %zu has frozen other parameters than rank 0: Options::frozen and "
                 "frozen_parameters have to be the same on all ranks"},
        {cut, "gpipe: rank %zu has cut the chain elsewhere than rank 0: Options::balance has to be "
              "the same on all ranks, and so has what is chosen at run time (schedule, "
              "checkpointing)"},
        {tables, "gpipe: rank %zu has made another plan than rank 0: Options have to be the same "
                 "on all ranks, and so has what is chosen at run time (schedule, checkpointing, "
                 "optimizer)"}};
    std::uint64_t whole = 0;
    for (PlanPart const& part : parts) whole = mixed(whole, part.hash);
    Array<std::uint64_t> const all = transport.gather(whole);
    if (std::count(all.begin(), all.end(), all[0]) == std::ptrdiff_t(all.size())) return;
    for (PlanPart const& part : parts) compare(transport, part.hash, part.sentence);
}

} // namespace gpipe::detail
