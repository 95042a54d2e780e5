#pragma once

#include <gpipe/core/dynamic.hpp>
#include <gpipe/core/thread.hpp>
#include <gpipe/device/bell.hpp>
#include <gpipe/runtime/agreement.hpp>
#include <gpipe/runtime/machine_of.hpp>
#include <gpipe/runtime/one_caller.hpp>
#include <gpipe/transport/local_ranks.hpp>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

namespace gpipe::detail {

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
                        auto of_device = device(options, own->rank);
                        MachineWork work;
                        make_work<Chosen>(work, net, loss, optimizer, constants, options,
                                          of_device);
                        own->machine.reset(new Machine<Device>(of_device, std::move(work)));
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
        if constexpr (outlive_start) machine.finish();
        start_together(machine, f);
    }
    // The same of what only starts, where steps go on when the call has returned.
    template <class F> void start_together(Machine<Device>& machine, F f) {
        detail::OneCaller::Call const call(machine.engine().caller());
        first_ = &machine;
        if constexpr (outlive_start) lead(machine.engine());
        if (lent_) give(machine);
        lent_ = false;
        share(f, true);
    }
    void lend() { lent_ = members_.size() > 1; }

  private:
    static constexpr bool outlive_start = calls_enqueue<Device> || Chosen::Update::immediate;

    struct Member {
        Member(LocalWire& wire, std::size_t r) : rank(wire, r) {}
        typename Device::Transport rank;
        std::unique_ptr<Machine<Device>> machine; // but the first's
        std::thread thread;
        std::atomic<std::uint64_t> done{0};
        std::exception_ptr error;
    };

    template <class Options>
    typename Device::Options device(Options const& options,
                                    typename Device::Transport& rank) const {
        typename Device::Options result;
        result.device = options.device;
        if constexpr (requires { result.device.threads; }) // all of them share the cores
            if (result.device.threads == 0)
                result.device.threads =
                    std::max<std::size_t>(detail::processors() / wire_.ranks(), 1);
        result.transport = &rank;
        result.devices = dynamic; // all of a replica
        return result;
    }
    // Whether it only says that something is wrong in another.
    bool is_elsewhere(std::exception_ptr const& error) const {
        if (error == members_[0]->rank.error()) return true;
        try {
            std::rethrow_exception(error);
        } catch (RankError const&) {
            return true;
        } catch (RefusedElsewhere const&) {
            return true;
        } catch (...) {
            return false;
        }
    }
    void work(Member& own) {
        for (std::uint64_t next = 2;; ++next) {
            bell_.wait([&] { return begun_.load(std::memory_order_acquire) >= next; });
            if (stops_.load(std::memory_order_relaxed)) return;
            own.error = attempt(own, [&] { job_(work_, *own.machine); });
            own.done.store(next, std::memory_order_release);
            bell_.ring();
        }
    }
    void lead(Engine<Device>& first) {
        first.follow(this, [](void* self, Engine<Device>& engine, std::size_t slot) {
            static_cast<ReplicaTeam*>(self)->finish(engine, slot);
        });
        first.make_ready();
    }
    // What the first begins to wait for outside of share(), all do: they agree on it.
    void finish(Engine<Device>& engine, std::size_t slot) {
        if (sharing_) return engine.finish_alone(slot);
        auto const finish = [slot](Machine<Device>& machine, bool first) {
            Engine<Device>& own = machine.engine();
            first ? own.finish_alone(slot) : own.finish_slot(slot);
        };
        share(finish, false);
    }
    // What f() throws. Where calls enqueue, what one cannot start none starts.
    template <class F> std::exception_ptr attempt(Member& own, F f) noexcept {
        constexpr bool refuses = requires { own.rank.leave(true); };
        if constexpr (refuses)
            if (starts_) own.rank.enter();
        std::exception_ptr error;
        try {
            f();
        } catch (...) {
            error = std::current_exception();
            wire_.end(own.rank.rank());
        }
        if constexpr (refuses)
            if (starts_) own.rank.leave(error != nullptr);
        return error;
    }
    template <class F> void share(F const& f, bool starts) {
        job_ = [](void const* work, Machine<Device>& other) {
            (*static_cast<F const*>(work))(other, false);
        };
        work_ = &f;
        starts_ = starts;
        wire_.begin();
        begun_.store(begun_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
        bell_.ring();
        sharing_ = true;
        std::exception_ptr error = attempt(*members_[0], [&] { f(*first_, true); });
        for (std::size_t r = 1; r < members_.size(); ++r) {
            await(*members_[r]);
            if (std::exception_ptr const other = std::exchange(members_[r]->error, nullptr))
                if (!error || is_elsewhere(error)) error = other;
        }
        sharing_ = false;
        if (error) std::rethrow_exception(error);
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
            // What a layer of it calls is the first.
            for (std::size_t slot = 0; slot < Device::depth; ++slot)
                other.engine().runs()[slot].caller = &machine.engine().caller();
            other.engine().go_on(machine.engine().seed(), machine.engine().steps(),
                                 machine.engine().runs().scale());
        }
    }
    void stop() {
        wire_.leave(made_error([] { return std::runtime_error("gpipe: a replica is gone"); }));
        stops_.store(true, std::memory_order_relaxed);
        begun_.fetch_add(1, std::memory_order_release);
        bell_.ring();
        for (auto const& member : members_)
            if (member->thread.joinable()) member->thread.join();
    }

    LocalWire wire_;
    std::vector<std::unique_ptr<Member>> members_;
    Machine<Device>* first_ = nullptr;
    bool sharing_ = false; // what the others do, too
    bool starts_ = false;  // something
    Bell bell_;
    void (*job_)(void const*, Machine<Device>&) = nullptr;
    void const* work_ = nullptr;
    std::atomic<std::uint64_t> begun_{1}; // what was told: first to be made
    std::atomic<bool> stops_{false};
    bool lent_ = false;
};

} // namespace gpipe::detail
