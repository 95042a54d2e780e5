#pragma once

#include <gpipe/core/error.hpp>
#include <gpipe/runtime/agreement.hpp>
#include <gpipe/runtime/machine.hpp>
#include <gpipe/transport/local.hpp>

#include <exception>
#include <new>

namespace gpipe::detail {

// Tells other ranks, which are making theirs or wait for this one, what it has thrown by itself.
template <class Transport> void tell_unmade(Transport& transport, Making how) noexcept {
    if (how == Making::alone) return tell_thrown(transport);
    Words const words(std::current_exception());
    try {
        throw;
    } catch (std::bad_alloc const&) {
    } catch (...) {
        if (how == Making::together) return;
    }
    Message const lost("could not be made: %s", words.text);
    lose_self(transport, lost.text);
}

// The machine of the work that `work(options)` makes, which says more of the device. Where ranks in
// other processes make theirs, too, what is thrown on one is thrown on all: elsewhere as a
// RankError.
template <class Device, class Work>
Machine<Device> made_together(typename Device::Options options, Work work) {
    if constexpr (joins_processes<Device>) {
        Making how = Making::alone;
        options.making = &how;
        try {
            return Machine<Device>(options, work(options));
        } catch (...) {
            if (options.transport) tell_unmade(*options.transport, how);
            throw;
        }
    } else {
        return Machine<Device>(options, work(options));
    }
}

} // namespace gpipe::detail
