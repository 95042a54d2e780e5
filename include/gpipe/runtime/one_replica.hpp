#pragma once

#include <gpipe/runtime/one_caller.hpp>

#include <cstddef>

namespace gpipe {

namespace policy {
/// The kind of the policies that say how often the chain is there.
struct Replicas;
} // namespace policy

/// Policy: the chain is there once. The default; see Replicas.
struct OneReplica {
    using policy_kind = policy::Replicas;
    static constexpr std::size_t count = 1;    ///< of the chain
    static constexpr bool shards = false;      ///< nothing to share out
    template <class Device> using Of = Device; ///< the devices that a machine has

    /// Whether that is possible.
    template <class Device> static consteval bool check() { return true; }

    /// Who does what a Training is told, beside its machine: nobody.
    template <class Chosen, class Net> struct Team {
        /// For its members' machines, of what a Training has, which must outlive it.
        template <class... What> explicit Team(What const&...) {}
        /// The first machine's device.
        template <class Options> auto device(Options const& options) const {
            return options.device;
        }
        /// f(machine, whether that is the first).
        template <class Machine, class F> decltype(auto) together(Machine& machine, F f) {
            detail::OneCaller::Call const call(machine.engine().caller());
            return f(machine, true);
        }
        /// The same, of what only starts.
        template <class Machine, class F> decltype(auto) start_together(Machine& machine, F f) {
            return together(machine, f);
        }
        /// That somebody may write parameters of the first machine.
        void lend() {}
    };
};

} // namespace gpipe
