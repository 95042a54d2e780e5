#pragma once

#include <gpipe/core/error.hpp>
#include <gpipe/device/device.hpp>
#include <gpipe/plan/ranks.hpp>
#include <gpipe/transport/transport.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <stdexcept>

namespace gpipe {

/// The devices of one rank, joined with those of others by a transport. Plans are made for all
/// devices, on every rank the same; memory and work there is of its own alone. Only for devices
/// that share their memory and do what they are told at once: where calls put work on a stream,
/// messages have to go there, too, and a transport has its own device.
template <DeviceRuntime Inner, RankTransport Carrier>
    requires(Inner::most_link == Link::shared)
class Joined : public Inner {
  public:
    using Transport = Carrier; ///< what joins them

    /// What each rank says of itself.
    struct Options {
        typename Inner::Options device{}; ///< of its own devices
        Carrier* transport = nullptr;     ///< must outlive it
        std::size_t devices = 1;          ///< how many it has; they stand in the order of the ranks
    };

    /// Throws std::invalid_argument, on all ranks, unless they have so many devices in all.
    Joined(Options options, std::size_t devices)
        : Inner(options.device, std::max<std::size_t>(options.devices, 1)),
          transport_(options.transport), ranks_(gathered(options, Inner::lanes())) {
        if (std::size_t const all = ranks_.begin[ranks_.size()];
            all != devices ||
            std::adjacent_find(ranks_.begin.begin(), ranks_.begin.end()) != ranks_.begin.end())
            detail::throw_error<std::invalid_argument>(
                "gpipe: %zu devices are to be those of %zu ranks, which have %zu, each at least "
                "one",
                devices, ranks_.size(), all);
    }

    /// Who has which devices.
    Ranks const& ranks() const { return ranks_; }
    /// What joins them.
    Carrier& transport() const { return *transport_; }

    /// As DeviceMemory, DeviceQueue and DeviceExecutor say, by a device's number among all.
    ///@{
    static constexpr Link most_link = Link::sent;
    Link link(std::size_t from, std::size_t to) const {
        return ranks_.of(from) == ranks_.of(to) ? Link::shared : Link::sent;
    }
    auto allocate(std::size_t device, std::size_t bytes) {
        return Inner::allocate(ranks_.number(device), bytes);
    }
    void prepare(Array<std::size_t> device_of_stream, std::size_t marks,
                 Array<std::size_t> device_of_feed) {
        for (std::size_t& device : device_of_stream) device = ranks_.number(device);
        for (std::size_t& device : device_of_feed) device = ranks_.number(device);
        Inner::prepare(device_of_stream, marks, device_of_feed);
    }
    /// The most that any rank has.
    std::size_t lanes() const {
        return *std::max_element(ranks_.lanes.begin(), ranks_.lanes.end());
    }
    /// Ranks would have to choose together.
    static constexpr bool chooses_lanes() { return false; }
    ///@}

    /// In the order of a stream: see RankTransport. word() is asked for, and tell(word) told.
    ///@{
    template <class Word>
    void send(std::size_t stream, std::size_t channel, std::byte const* from, std::size_t bytes,
              Word word) {
        Inner::launch(stream,
                      [=, this]() noexcept { transport_->send(channel, from, bytes, word()); });
    }
    template <class Tell>
    void receive(std::size_t stream, std::size_t channel, std::byte* to, std::size_t bytes,
                 Tell tell) {
        Inner::launch(stream,
                      [=, this]() noexcept { tell(transport_->receive(channel, to, bytes)); });
    }
    ///@}

  private:
    static Ranks gathered(Options const& options, std::size_t lanes) {
        auto const devices = options.transport->gather(options.devices);
        auto const most = options.transport->gather(lanes);
        Ranks ranks{Array<std::size_t>(devices.size() + 1), Array<std::size_t>(devices.size()),
                    options.transport->rank()};
        for (std::size_t r = 0; r < devices.size(); ++r) {
            ranks.begin[r + 1] = ranks.begin[r] + static_cast<std::size_t>(devices[r]);
            ranks.lanes[r] = static_cast<std::size_t>(most[r]);
        }
        return ranks;
    }

    Carrier* transport_;
    Ranks ranks_;
};

/// What the library does in a step is what it does on these devices.
template <class Inner, class Carrier> struct StepWork<Joined<Inner, Carrier>> : StepWork<Inner> {};

} // namespace gpipe
