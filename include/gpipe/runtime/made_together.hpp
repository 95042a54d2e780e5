#pragma once

#include <gpipe/core/error.hpp>
#include <gpipe/runtime/agreement.hpp>
#include <gpipe/runtime/machine.hpp>
#include <gpipe/transport/local.hpp>

#include <exception>
#include <utility>

namespace gpipe::detail {

// Tells other ranks, which are making theirs or wait for this one, what it has thrown by itself.
template <class Transport> void tell_unmade(Transport& transport, Making how) {
    if (how == Making::together || transport.error()) return;
    if (how == Making::alone) {
        try {
            return agree_made(transport, std::current_exception());
        } catch (...) { // its own, or that of a rank that is gone, which matters less
            return;
        }
    }
    if constexpr (requires { transport.give_up(""); }) {
        Message const words("could not be made: %s", what_of(std::current_exception()).c_str());
        transport.give_up(words.text);
    }
}

// The machine of the parts that `parts(options)` makes. Where ranks in other processes make theirs,
// too, what is thrown on one is thrown on all: elsewhere as a RankError.
template <class Device, class Parts>
Machine<Device> made_together(typename Device::Options options, Parts parts) {
    if constexpr (joins_processes<Device>) {
        Making how = Making::alone;
        options.making = &how;
        try {
            return Machine<Device>(parts(options));
        } catch (...) {
            if (options.transport) tell_unmade(*options.transport, how);
            throw;
        }
    } else {
        return Machine<Device>(parts(std::move(options)));
    }
}

} // namespace gpipe::detail
