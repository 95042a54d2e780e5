#pragma once

#include <gpipe/core/checked.hpp>
#include <gpipe/core/dynamic.hpp>
#include <gpipe/runtime/agreement.hpp>
#include <gpipe/runtime/joined.hpp>
#include <gpipe/runtime/machine_of.hpp>
#include <gpipe/runtime/one_caller.hpp>
#include <gpipe/runtime/one_replica.hpp>
#include <gpipe/transport/local_ranks.hpp>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <stdexcept>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

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

// The replicas of a Training in one process, the first of which is its own machine: each other has
// a machine, whose thread does what the first does.
template <class Chosen, class Net> class ReplicaTeam {
    using Device = typename Chosen::Device;

  public:
    template <class Options>
    ReplicaTeam(Net const& net, typename Chosen::LossFunctor const& loss,
                typename Chosen::OptimizerFunctor const& optimizer, StepConstants constants,
                Options const& options)
        : wire_(chosen_number("replicas", Chosen::ReplicasPolicy::count, options.replicas, 1)) {
        std::size_t const count = wire_.ranks();
        for (std::size_t r = 0; r < count; ++r)
            members_.push_back(std::make_unique<Member>(wire_, r));
        try {
            for (std::size_t r = 1; r < count; ++r)
                members_[r]->thread = std::thread([&, constants, options, own = members_[r].get()] {
                    try {
                        own->machine.reset(new Machine<Device>(machine_parts<Chosen>(
                            net, loss, optimizer, constants, options, device(options, own->rank))));
                    } catch (...) {
                        return wire_.leave(std::current_exception());
                    }
                    own->done.store(1, std::memory_order_release);
                    bell_.ring();
                    work(*own);
                });
        } catch (...) {
            stop();
            throw;
        }
        lend(); // layers may begin with numbers that are not ctx.random()'s
    }
    ReplicaTeam(ReplicaTeam const&) = delete;
    ReplicaTeam& operator=(ReplicaTeam const&) = delete;
    ~ReplicaTeam() { stop(); }

    template <class Options> typename Device::Options device(Options const& options) {
        return device(options, members_[0]->rank);
    }
    // All have to do the same. Throws what the first throws, or if that only tells what was thrown
    // elsewhere, that.
    template <class F> void together(Machine<Device>& machine, F f) {
        // Of the first's: nobody else may be in a call of that when the others are told.
        detail::OneCaller::Call const call(machine.engine().caller());
        if (lent_) give(machine);
        lent_ = false;
        job_ = [](void const* work, Machine<Device>& other) {
            (*static_cast<F const*>(work))(other, false);
        };
        work_ = &f;
        begun_.store(begun_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
        bell_.ring();
        std::exception_ptr error;
        try {
            f(machine, true);
        } catch (...) {
            error = std::current_exception();
        }
        for (std::size_t r = 1; r < members_.size(); ++r) {
            await(*members_[r]);
            if (std::exception_ptr const other = std::exchange(members_[r]->error, nullptr))
                if (!error || is_elsewhere(error)) error = other;
        }
        if (error) std::rethrow_exception(error);
    }
    void lend() { lent_ = members_.size() > 1; }

  private:
    struct Member {
        Member(LocalWire& wire, std::size_t r) : rank(wire, r) {}
        LocalRanks rank;
        std::unique_ptr<Machine<Device>> machine; // but the first's
        std::thread thread;
        std::atomic<std::uint64_t> done{0};
        std::exception_ptr error;
    };

    template <class Options>
    typename Device::Options device(Options const& options, LocalRanks& rank) const {
        typename Device::Options result;
        result.device = options.device;
        if (result.device.threads == 0) // all of them share the cores
            result.device.threads =
                std::max<std::size_t>(std::thread::hardware_concurrency() / wire_.ranks(), 1);
        result.transport = &rank;
        result.devices = dynamic; // all of a replica
        return result;
    }
    static bool is_elsewhere(std::exception_ptr const& error) {
        try {
            std::rethrow_exception(error);
        } catch (RankError const&) {
            return true;
        } catch (...) {
            return false;
        }
    }
    void work(Member& own) {
        for (std::uint64_t next = 2;; ++next) {
            bell_.wait([&] { return begun_.load(std::memory_order_acquire) >= next; });
            if (stops_.load(std::memory_order_relaxed)) return;
            try {
                job_(work_, *own.machine);
            } catch (...) {
                own.error = std::current_exception();
            }
            own.done.store(next, std::memory_order_release);
            bell_.ring();
        }
    }
    // Until it has done what it was told.
    void await(Member const& member) {
        bell_.wait([&] {
            return member.done.load(std::memory_order_acquire) ==
                   begun_.load(std::memory_order_relaxed);
        });
    }
    // What the first has, once it may have been written, to all.
    void give(Machine<Device>& machine) {
        machine.finish();
        for (std::size_t r = 1; r < members_.size(); ++r) {
            await(*members_[r]);
            Machine<Device>& other = *members_[r]->machine;
            for (std::size_t d = 0; d < machine.programs().devices(); ++d) {
                DeviceBytes const& bytes = machine.plan().devices[d];
                std::size_t const state = bytes.parameters + bytes.gradients;
                other.copy(other.arena(d).data(), machine.arena(d).data(), bytes.parameters);
                if (!Chosen::ReplicasPolicy::shards) // else nobody can write that
                    other.copy(other.arena(d).data() + state, machine.arena(d).data() + state,
                               bytes.optimizer);
                std::size_t const rest = machine.plan().begin[d].frozen; // and buffers
                other.copy(other.arena(d).data() + rest, machine.arena(d).data() + rest,
                           machine.plan().begin[d].next - rest);
            }
            other.engine().go_on(machine.engine().seed(), machine.engine().steps(),
                                 machine.engine().runs().scale());
        }
    }
    void stop() {
        wire_.leave(std::make_exception_ptr(std::runtime_error("gpipe: a replica is gone")));
        stops_.store(true, std::memory_order_relaxed);
        begun_.fetch_add(1, std::memory_order_release);
        bell_.ring();
        for (auto const& member : members_)
            if (member->thread.joinable()) member->thread.join();
    }

    LocalWire wire_;
    std::vector<std::unique_ptr<Member>> members_;
    Bell bell_;
    void (*job_)(void const*, Machine<Device>&) = nullptr;
    void const* work_ = nullptr;
    std::atomic<std::uint64_t> begun_{1}; // what was told: first to be made
    std::atomic<bool> stops_{false};
    bool lent_ = false;
};

// The replicas of a Device, and who does the work of those in this process. Of one on which they
// cannot be: nothing, it is said elsewhere.
template <class Device> struct ReplicasOf {
    using Devices = Device;
    template <class Chosen, class Net> using Team = OneReplica::Team<Chosen, Net>;
};
template <class Device>
    requires(Device::most_link == Link::shared)
struct ReplicasOf<Device> {
    using Devices = Joined<Device, LocalRanks>;
    template <class Chosen, class Net> using Team = ReplicaTeam<Chosen, Net>;
};
template <class Device>
    requires joins_ranks<Device>
struct ReplicasOf<Device> {
    using Devices = Device;
    template <class Chosen, class Net> using Team = OneReplica::Team<Chosen, Net>;
};

} // namespace detail

/// That there are replicas, that they have parts of something, and that they can meet.
template <std::size_t R, class Shard, class Device> struct CheckReplicas {
    static consteval bool ok() {
        constexpr bool is_shard =
            std::is_same_v<Shard, shard::Nothing> || std::is_same_v<Shard, shard::OptimizerState>;
        constexpr bool meets = Device::most_link == Link::shared || joins_ranks<Device>;
        static_assert(R > 0, "gpipe: Replicas<R> needs at least one replica");
        static_assert(is_shard, "gpipe: what each replica has a part of only (Shard) is "
                                "shard::Nothing or shard::OptimizerState");
        static_assert(meets, "gpipe: replicas are for devices that share the host's memory, "
                             "or that transport::Mpi or transport::Nccl joins");
        return R > 0 && is_shard && meets;
    }
};

/// Policy: data parallelism. R copies of the whole chain, its replicas, each on K devices and with
/// N samples in M micro-batches, train as one: the gradients of all are added up once per
/// mini-batch, a cell's as soon as its last backward is done, in the order of the replicas, and the
/// mean is that over all samples, by weight. `Replicas<dynamic>` takes R at construction.
///
/// Under transport::Local they are in one process, with memory and threads (Options::device, else
/// an equal share of the cores) of their own. What one can look at is the first: plan and arenas,
/// timelines, gradients; parameters that are written in it, until anything else of the training is
/// called, are given to the others. Under
/// transport::Mpi and transport::Nccl each is some of the ranks, one after the other, whose devices
/// are split alike.
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
