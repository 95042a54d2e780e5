#pragma once

#include <gpipe/transport/transport.hpp>

namespace gpipe::transport {

/// All devices in one process and one memory: a boundary tensor is written straight into the slot
/// that the next cell reads, so nothing is copied and nothing is sent; an edge between devices is a
/// wait.
struct Local {
    using policy_kind = policy::Transport;
    template <class Device> using Of = Device; ///< the devices that a machine has
};

} // namespace gpipe::transport
