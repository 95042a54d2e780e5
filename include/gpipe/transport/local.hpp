#pragma once

#include <gpipe/core/version.hpp>

namespace gpipe {

namespace policy {
struct Transport;
} // namespace policy

namespace transport {

/// All devices in one process and one memory: a boundary tensor is written straight into the slot
/// that the next cell reads, so nothing is copied and nothing is sent; an edge between devices is a
/// wait.
struct Local {
    using policy_kind = policy::Transport;
    static constexpr bool shares_memory = true; ///< whether all devices are of this process
};

} // namespace transport
} // namespace gpipe
