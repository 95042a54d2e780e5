#pragma once

// The calls of the system that write files, watched and made to fail. Programs that link
// gpipe_system_calls make them through here; see system_calls.cpp.

#include <cstddef>
#include <string>
#include <vector>

namespace toy {

/// What happens at the `at`-th of the watched calls, counted from 1.
struct CallFault {
    enum Kind { fails, interrupts, shortens, kills_before, kills_after };
    std::string call; ///< which are counted: "open", "write fsync", ...; empty: all
    std::size_t at = 0;
    Kind kind = fails;
    int error = 0;      ///< errno
    bool lasts = false; ///< at all behind it, too
};

/// From its construction on calls are logged, and one goes wrong. One at a time.
class SystemCalls {
  public:
    explicit SystemCalls(CallFault fault = {});
    ~SystemCalls();
    SystemCalls(SystemCalls const&) = delete;
    SystemCalls& operator=(SystemCalls const&) = delete;

    /// As "open NAME", "write NAME", "rename NAME NAME", the last parts of paths only; the same
    /// call several times in a row once.
    std::vector<std::string> log() const;
    /// Calls so far that the fault counts.
    std::size_t count() const;
};

} // namespace toy
