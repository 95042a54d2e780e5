#pragma once

#include <gpipe/core/array.hpp>
#include <gpipe/runtime/agreement.hpp>
#include <gpipe/transport/local.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace gpipe::detail {

// Of ranks that do something together beside a run: all of them gather equally often.
template <class Device> class Gathering {
  public:
    Gathering(Device const& device, char const* where) : device_(device), where_(where) {}
    Gathering(Gathering const&) = delete;
    Gathering& operator=(Gathering const&) = delete;

    // By rank what each has given. Throws where one has thrown instead, or is gone.
    Array<std::uint64_t> gather(std::uint64_t number) {
        if constexpr (joins_processes<Device>) {
            Array<std::uint64_t> all = device_.transport().gather(std::min(number, has_thrown - 1));
            heard_ = std::find(all.begin(), all.end(), has_thrown) != all.end();
            hear(device_.transport(), all, where_);
            return all;
        } else if constexpr (joins_ranks<Device>) {
            return device_.transport().gather(number); // see LocalWire::end()
        } else {
            return {1, number};
        }
    }
    // Of what is being caught, unless it says what another has thrown.
    void tell() noexcept {
        if constexpr (joins_processes<Device>)
            if (!heard_) tell_thrown(device_.transport());
    }

  private:
    Device const& device_;
    char const* where_;
    bool heard_ = false;
};

// f(gathering), on all ranks: what it throws on one all throw, elsewhere as a RankError that says
// where.
template <class Device, class F>
void gathered(Device const& device, [[maybe_unused]] char const* where, F f) {
    Gathering<Device> all(device, where);
    try {
        f(all);
        if constexpr (joins_processes<Device>) all.gather(0); // nobody has thrown behind the last
    } catch (...) {
        all.tell();
        throw;
    }
}

} // namespace gpipe::detail
