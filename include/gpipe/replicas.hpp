#pragma once

#include <gpipe/runtime/joined.hpp>
#include <gpipe/runtime/one_replica.hpp>
#include <gpipe/runtime/replica_team.hpp>
#include <gpipe/transport/local_ranks.hpp>

#include <cstddef>
#include <type_traits>

namespace gpipe {

/// What each replica has a part of only.
namespace shard {

/// Nothing: each has all parameters and their optimizer state. The default.
struct Nothing {};
/// The optimizer's state: each updates a part of the parameters and gives them to the others
/// (ZeRO-1: Rajbhandari, Rasley, Ruwase and He, 2020). For optimizers that treat every element
/// alike: they are called for parts of tensors. Between steps each replica has its part of the
/// mean gradients only; compute_gradients() leaves all of them everywhere.
struct OptimizerState {};

} // namespace shard

namespace detail {

// The replicas of a Device, and who does the work of those in this process: nobody, if it joins
// ranks already. (Where they cannot be it is said elsewhere.)
template <class Device> struct ReplicasOf {
    using Devices = Device;
    template <class Chosen, class Net> using Team = OneReplica::Team<Chosen, Net>;
};
template <class Device>
concept MeetsReplicas = requires {
    typename LocalTransport<Device>::type;
};
template <MeetsReplicas Device> struct ReplicasOf<Device> {
    using Devices = Joined<Device, typename LocalTransport<Device>::type>;
    template <class Chosen, class Net> using Team = ReplicaTeam<Chosen, Net>;
};

} // namespace detail

/// That there are replicas, that they have parts of something, and that they can meet.
template <std::size_t R, class Shard, class Device> struct CheckReplicas {
    static consteval bool ok() {
        constexpr bool is_shard =
            std::is_same_v<Shard, shard::Nothing> || std::is_same_v<Shard, shard::OptimizerState>;
        constexpr bool meets = detail::MeetsReplicas<Device> || joins_ranks<Device>;
        static_assert(R > 0, "gpipe: Replicas<R> needs at least one replica");
        static_assert(is_shard, "gpipe: what each replica has a part of only (Shard) is "
                                "shard::Nothing or shard::OptimizerState");
        static_assert(meets, "gpipe: replicas are for devices that share the host's memory, for "
                             "GPUs (include <gpipe/transport/local_gpus.hpp>, as "
                             "<gpipe/gpipe.cuh> does), or that transport::Mpi or transport::Nccl "
                             "joins");
        return R > 0 && is_shard && meets;
    }
};

/// Policy: data parallelism. R copies of the whole chain, its replicas, each on K devices and with
/// N samples in M micro-batches, train as one: the gradients of all are added up once per
/// mini-batch, a cell's as soon as its last backward is done, in the order of the replicas, and the
/// mean is that over all samples, by weight. `Replicas<dynamic>` takes R at construction.
///
/// Under transport::Local they are in one process, with memory and threads (Options::device, else
/// an equal share of the cores) or GPUs of their own (Options::device.gpus, replica after replica,
/// or all in turn; see LocalGpus; without graphs). What one can look at is the first: plan and
/// arenas, timelines, gradients; parameters that are written in it, until anything else of the
/// training is called, are given to the others. Under transport::Mpi and transport::Nccl each is
/// some of the ranks, one after the other, whose devices are split alike.
///
/// A mini-batch is given whole, up to R times Options::samples, on every rank; a replica reads its
/// part of it, Split(samples, R), and writes that part of what predict() puts out. Random numbers
/// go by the place in the whole. The same bits for a fixed R, whatever is sharded, for any K and
/// transport; over R losses, gradients and parameters differ by rounding, for floats are added in
/// another order.
template <std::size_t R, class Shard = shard::Nothing> struct Replicas {
    using policy_kind = policy::Replicas;
    static constexpr std::size_t count = R; ///< R, or dynamic
    /// Whether each replica has its part of the optimizer's state only.
    static constexpr bool shards = std::is_same_v<Shard, shard::OptimizerState>;
    /// The devices that a machine has, each for one replica.
    template <class Device> using Of = typename detail::ReplicasOf<Device>::Devices;
    /// Who does what a Training is told, beside its machine.
    template <class Chosen, class Net>
    using Team = typename detail::ReplicasOf<typename Chosen::Joins>::template Team<Chosen, Net>;
    /// Whether there can be such replicas of a device; says what is wrong.
    template <class Device> static consteval bool check() {
        return CheckReplicas<R, Shard, Device>::ok();
    }
};

} // namespace gpipe
