// expect GPIPE_NO_DEVICE: gpipe: a device is a queue: see DeviceQueue in gpipe/device/queue.hpp
// expect GPIPE_NO_QUEUE: gpipe: a device is a queue: see DeviceQueue in gpipe/device/queue.hpp
// expect GPIPE_NO_QUEUE: CheckDevice<(NoQueue>|.*D=NoQueue)
// expect GPIPE_NO_MEMORY: gpipe: a device has memory: see DeviceMemory in gpipe/device/memory.hpp
// expect GPIPE_NO_EXECUTOR: gpipe: a device is an executor: see DeviceExecutor in gpipe/device/exec
// expect GPIPE_NOT_MADE: gpipe: a device is made of its Options and the number of devices
// expect GPIPE_A5_NO_MICRO_BATCHES: gpipe: MicroBatches<M> needs at least one micro-batch
// expect GPIPE_TOO_MANY: gpipe: MicroBatches<M> of so many cells are more forwards than programs can
// expect GPIPE_NO_LOSS: gpipe: a Training needs a loss: gpipe::Loss<Functor> among its policies
// expect GPIPE_NO_POLICIES: gpipe: a Training needs a loss: gpipe::Loss<Functor> among its policies
// expect GPIPE_A8_UNKNOWN: gpipe: policy Index is none that this template knows
// expect GPIPE_A8_UNKNOWN: CheckPolicy<(1, Unknown, false>|.*Index=1, Policy=Unknown)
// expect GPIPE_NO_POLICY: CheckPolicy<(2, int, false>|.*Index=2, Policy=int)
// expect GPIPE_NO_POLICY: gpipe: policy Index is none that this template knows
// expect GPIPE_NO_MPI: gpipe: Policy is declared, but its header is not included: for gpipe::device::Cuda
// expect GPIPE_NO_MPI: CheckIncluded<(gpipe::transport::Mpi|.*Policy=gpipe::transport::Mpi)
// expect GPIPE_SAYS_NO_KIND: gpipe: policy Index is a schedule or a checkpointing policy that does not say so
// expect GPIPE_UNKNOWN_KIND: CheckPolicy<(1, OtherKind, false>|.*Index=1, Policy=OtherKind)
// expect GPIPE_UNKNOWN_KIND: gpipe: policy Index is none that this template knows
// expect GPIPE_TWICE: gpipe: policy Index is given twice: there is one of each kind
// expect GPIPE_TWICE: CheckPolicyOnce<(2, gpipe::MicroBatches<8>|.*Index=2, Policy=gpipe::MicroBat)
// expect GPIPE_CELLS_AND_BALANCE: gpipe: policy Index is given twice: there is one of each kind
// expect GPIPE_CELLS_AND_BALANCE: CheckPolicyOnce<(2, gpipe::Balance<|.*Index=2, Policy=gpipe::Balanc)
// expect GPIPE_A10_NO_PIPELINE: gpipe: the first argument of Training is the model: a gpipe::Pipeline
// expect GPIPE_NO_PASS: gpipe: a checkpointing policy needs: static constexpr gpipe::Programs lower
// expect GPIPE_PASS_BY_OBJECT: gpipe: a checkpointing policy needs: static constexpr gpipe::Programs lower
// expect GPIPE_PASS_AT_RUN_TIME: gpipe: lower.programs. of the checkpointing policy is no constant: it must be
// expect GPIPE_NO_REPLICA: gpipe: Replicas<R> needs at least one replica
// expect GPIPE_NO_SHARD: gpipe: what each replica has a part of only .Shard. is shard::Nothing or
// expect GPIPE_NO_SHARD: CheckReplicas<(2, Unknown|.*R=2, Shard=Unknown)
// expect GPIPE_REPLICAS_APART: gpipe: replicas are for devices that share the host's memory
#include <gpipe/replicas.hpp>
#include <gpipe/training.hpp>
#include <support/blank_layers.hpp>
#include <support/blank_loss.hpp>

using Net = gpipe::Pipeline<blank::Linear<4>, blank::Linear<4>>;
using Loss = gpipe::Loss<blank::Loss<4>>;

struct Unknown {};
struct OtherKind {
    using policy_kind = Unknown;
};
struct NoPass {
    using policy_kind = gpipe::policy::Checkpointing;
};

// Each hides one thing.
struct NoQueue : gpipe::device::Host {
    using gpipe::device::Host::Host;
    void wait();
};
struct NoMemory : gpipe::device::Host {
    using gpipe::device::Host::Host;
    void feeding();
};
struct NoExecutor : gpipe::device::Host {
    using gpipe::device::Host::Host;
    void submit();
};
struct NotMade : gpipe::device::Host {};
struct Apart : gpipe::device::Host {
    using gpipe::device::Host::Host;
    static constexpr gpipe::Link most_link = gpipe::Link::copied;
};
struct NoDevice {
    using policy_kind = gpipe::policy::Device;
};

#if defined(GPIPE_A5_NO_MICRO_BATCHES)
using Train = gpipe::Training<Net, Loss, gpipe::MicroBatches<0>>;
#elif defined(GPIPE_TOO_MANY)
using Train =
    gpipe::Training<Net, Loss, gpipe::MicroBatches<(std::size_t{1} << 62) + 1>, gpipe::Cells<2>>;
#elif defined(GPIPE_NO_LOSS)
using Train = gpipe::Training<Net, gpipe::Cells<2>, gpipe::MicroBatches<4>>;
#elif defined(GPIPE_NO_POLICIES)
using Train = gpipe::Training<Net>;
#elif defined(GPIPE_A8_UNKNOWN)
using Train = gpipe::Training<Net, Loss, Unknown>;
#elif defined(GPIPE_NO_POLICY)
using Train = gpipe::Training<Net, Loss, gpipe::Cells<2>, int>;
#elif defined(GPIPE_NO_MPI)
using Train = gpipe::Training<Net, Loss, gpipe::Cells<2>, gpipe::transport::Mpi>;
#elif defined(GPIPE_SAYS_NO_KIND)
struct Kindless {
    static constexpr gpipe::Programs programs(std::size_t devices, std::size_t micro_batches) {
        return gpipe::schedule::GPipe::programs(devices, micro_batches);
    }
};
using Train = gpipe::Training<Net, gpipe::Cells<2>, Kindless, Loss>;
#elif defined(GPIPE_UNKNOWN_KIND)
using Train = gpipe::Training<Net, Loss, OtherKind>;
#elif defined(GPIPE_TWICE)
using Train = gpipe::Training<Net, gpipe::MicroBatches<4>, Loss, gpipe::MicroBatches<8>>;
#elif defined(GPIPE_CELLS_AND_BALANCE)
using Train = gpipe::Training<Net, gpipe::Cells<2>, Loss, gpipe::Balance<1, 1>>;
#elif defined(GPIPE_A10_NO_PIPELINE)
using Train = gpipe::Training<blank::Linear<4>, Loss>;
#elif defined(GPIPE_NO_PASS)
using Train = gpipe::Training<Net, Loss, NoPass>;
#elif defined(GPIPE_PASS_BY_OBJECT)
struct Pass {
    using policy_kind = gpipe::policy::Checkpointing;
    constexpr gpipe::Programs lower(gpipe::Programs const& schedule) const { return schedule; }
};
using Train = gpipe::Training<Net, gpipe::Cells<2>, gpipe::MicroBatches<4>, Loss, Pass>;
#elif defined(GPIPE_PASS_AT_RUN_TIME)
struct Pass {
    using policy_kind = gpipe::policy::Checkpointing;
    static gpipe::Programs lower(gpipe::Programs const& schedule) { return schedule; }
};
using Train = gpipe::Training<Net, gpipe::Cells<2>, gpipe::MicroBatches<4>, Loss, Pass>;
#elif defined(GPIPE_NO_REPLICA)
using Train = gpipe::Training<Net, gpipe::MicroBatches<4>, Loss, gpipe::Replicas<0>>;
#elif defined(GPIPE_NO_SHARD)
using Train = gpipe::Training<Net, gpipe::MicroBatches<4>, Loss, gpipe::Replicas<2, Unknown>>;
#elif defined(GPIPE_REPLICAS_APART)
using Train = gpipe::Training<Net, gpipe::MicroBatches<4>, Loss, Apart, gpipe::Replicas<2>>;
#elif defined(GPIPE_NO_DEVICE)
using Train = gpipe::Training<Net, Loss, NoDevice>;
#elif defined(GPIPE_NO_QUEUE)
using Train = gpipe::Training<Net, Loss, NoQueue>;
#elif defined(GPIPE_NO_MEMORY)
using Train = gpipe::Training<Net, Loss, NoMemory>;
#elif defined(GPIPE_NO_EXECUTOR)
using Train = gpipe::Training<Net, Loss, NoExecutor>;
#elif defined(GPIPE_NOT_MADE)
using Train = gpipe::Training<Net, Loss, NotMade>;
#else
struct Pass {
    using policy_kind = gpipe::policy::Checkpointing;
    static constexpr gpipe::Programs lower(gpipe::Programs const& schedule) { return schedule; }
};
static_assert(
    gpipe::Training<Net, gpipe::Cells<2>, gpipe::MicroBatches<4>, Loss, Pass>::cell_count == 2);
using Train = gpipe::Training<Net, gpipe::checkpoint::Never, gpipe::MicroBatches<4>, Loss,
                              gpipe::Replicas<2>>;
#endif
static_assert(Train::micro_batch_count == 4);
