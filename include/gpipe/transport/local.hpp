#pragma once

#include <gpipe/core/version.hpp>

namespace gpipe {

namespace policy {
struct Transport;
} // namespace policy

/// Whether a device belongs to one rank of several: see Joined.
template <class Device> inline constexpr bool joins_ranks = requires {
    typename Device::Transport;
};
/// Whether some of the others are in other processes, which do by themselves what this one does.
template <class Device> inline constexpr bool joins_processes = requires {
    requires !Device::in_one_process;
};

namespace transport {

struct Mpi; // in mpi.hpp; CheckIncluded has the sentence where that is missing

/// All devices in one process and one memory: a boundary tensor is written straight into the slot
/// that the next cell reads, so nothing is copied and nothing is sent; an edge between devices is a
/// wait.
struct Local {
    using policy_kind = policy::Transport;
    template <class Device> using Of = Device; ///< the devices that a machine has
};

} // namespace transport
} // namespace gpipe
