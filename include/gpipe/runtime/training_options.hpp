#pragma once

#include <gpipe/checkpoint/dynamic_policy.hpp>
#include <gpipe/core/asked.hpp>
#include <gpipe/memory/memory_plan.hpp>
#include <gpipe/runtime/work.hpp>
#include <gpipe/schedule/schedule.hpp>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace gpipe {

/// A parameter tensor, by number.
struct FrozenParameter {
    std::size_t layer = 0;  ///< of the chain
    std::size_t tensor = 0; ///< of the layer
};

/// What is chosen when a Training is constructed: its Options. `cells` (the K of Cells<K>),
/// `micro_batches`, `balance`, `replicas`, `schedule` and `checkpointing` are for policies that are
/// dynamic.
template <class Device> struct TrainingOptions {
    static_assert(detail::asked<std::vector<std::size_t>, std::vector<FrozenParameter>,
                                schedule::Dynamic, checkpoint::Dynamic, typename Device::Options>);

    std::size_t samples = 0;       ///< largest mini-batch, of a replica, that memory is planned for
    std::uint64_t seed = 0;        ///< of all random numbers: the first parameters, dropout masks
    std::size_t cells = 0;         ///< k of Cells<dynamic>
    std::size_t micro_batches = 0; ///< 0: 4 K
    /// Of Cells<dynamic>, the layers of each cell: see balance::by_time(). Empty: cut by costs.
    std::vector<std::size_t> balance{};
    std::size_t replicas = 0; ///< r of Replicas<dynamic>; 0: one
    /// The most that the norm of all gradients may be: larger ones are scaled down to it (Pascanu,
    /// Mikolov and Bengio, 2013). The norm must be finite, too. 0: none is taken. On a device that
    /// cannot read the host's memory it takes some of its own.
    double clip_norm = 0;
    /// Whether gradients must be finite where nothing is clipped: it takes the same norm. With
    /// update::Immediate each device looks at its own gradients, and updates if they are finite. If
    /// those of others were not the object is then of no use, and says so. Not with
    /// NotFinite::go_on there.
    bool finite_gradients = false;
    /// What gradients are multiplied by on their way, see LossScale. It takes their norm. A step
    /// whose gradients are not finite is then skipped in place of an error, see
    /// StepResult::skipped(): parameters, optimizer state, buffers and the number of steps stay as
    /// they are. Not with update::Immediate.
    LossScale loss_scale{};
    /// What becomes of a step whose loss is not finite, or whose gradients, where they are looked
    /// at.
    NotFinite not_finite = NotFinite::fail;
    /// How late other devices may be before somebody waits for room, in units of a forward. By
    /// default nobody ever waits: each byte is used again only by who is sure that others are done
    /// with it. With less, down to 0, a device may take fewer bytes, and a step whose actions take
    /// longer than planned may take more time. chosen_slack: the fewest bytes for which it does
    /// not, on any device no more than by default; construction then takes longer.
    std::size_t slack = no_wait;
    /// Numbers of layers that are frozen, beside those that say so themselves, see is_frozen.
    std::vector<std::size_t> frozen{};
    /// Single parameter tensors that are frozen, beside those that types name, see frozen_tensors.
    std::vector<FrozenParameter> frozen_parameters{};
    /// For schedule::Dynamic; none: GPipe.
    schedule::Dynamic schedule{};
    /// For checkpoint::Dynamic; none: ExceptLast.
    checkpoint::Dynamic checkpointing{};
    /// What the device lets one choose, e.g. which GPUs.
    typename Device::Options device{};
    /// Whether there is room in the host's memory for a copy of parameters and optimizer state,
    /// from which start_save() writes while training goes on: MemoryPlan::snapshot bytes.
    bool snapshot = false;
    /// Whether every call of a layer, or of the loss, is looked at. What it has to write holds NaNs
    /// before (integers: large numbers), and so does its scratch. Behind what it may write lies
    /// something that must stay. A std::logic_error names layer, function, tensor and place
    /// - of what is left unwritten, or written beyond its end;
    /// - on a CPU, of what is computed from that, as by += for =.
    ///
    /// The step then fails as if the layer had thrown that. No bit of the results of other layers
    /// changes. It takes memory for one sample more in each micro-batch, whatever the bytes of
    /// checkpoint::Optimal, and behind the gradients and statistics of each layer. On a GPU every
    /// call is waited for, so that a kernel's fault has its layer's name; steps that are kept as
    /// graphs are not looked at; and see device::Cuda::Options::blocking.
    ///
    /// It does not notice copies of what was unwritten; fewer than eight bytes in a row of integers
    /// of one or two; what is written on from a parameter's gradient, a layer's statistics, or what
    /// it tells replicas, in those behind it, if its bytes are a multiple of 256; and what
    /// merge_statistics() and update_buffers() write.
    bool debug = false;
};

} // namespace gpipe
