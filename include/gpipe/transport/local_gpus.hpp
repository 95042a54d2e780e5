#pragma once

#include <gpipe/core/array.hpp>
#include <gpipe/device/cuda.hpp>
#include <gpipe/transport/local_ranks.hpp>
#include <gpipe/transport/transport.hpp>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace gpipe {

/// Replicas that are threads of one process with GPUs each, see Replicas: one of them, as
/// StreamTransport says. Who receives a message copies it, from GPU to GPU where these have peer
/// access, behind an event of who sends it, whose stream then waits for an event of the other. No
/// GPU ever waits for what is not put on its streams yet: hosts wait for each other while they put
/// it there.
class LocalGpus final : cuda::Peers {
  public:
    static constexpr bool in_one_process = true; ///< they are threads of it

    /// What one of some replicas in this process has of these options, each with so many devices:
    /// its GPUs stand behind those of the ones before. Throws cuda::TooFewDevices, and
    /// std::invalid_argument where too few are named, and where there are to be graphs: no graph
    /// waits for another's events.
    static device::Cuda::Options share(device::Cuda::Options all, std::size_t replica,
                                       std::size_t replicas, std::size_t devices) {
        if (all.graphs > 0 && replicas > 1)
            throw std::invalid_argument(
                "gpipe: Options::device.graphs is 0 where replicas are in one process: those that "
                "transport::Nccl joins may keep their steps as graphs");
        std::size_t const needed = replicas * devices;
        if (all.gpus.empty()) {
            int const present = cuda::device_count();
            for (int gpu = 0; gpu < present; ++gpu) all.gpus.push_back(gpu);
            if (all.gpus.size() < needed)
                throw cuda::TooFewDevices(static_cast<int>(needed), present);
        }
        if (all.gpus.size() < needed)
            throw std::invalid_argument("gpipe: Options::device.gpus has " +
                                        std::to_string(all.gpus.size()) + " entries for " +
                                        std::to_string(replicas) + " replicas of " +
                                        std::to_string(devices) + " devices each");
        auto const first = all.gpus.begin() + static_cast<std::ptrdiff_t>(replica * devices);
        all.gpus = std::vector<int>(first, first + static_cast<std::ptrdiff_t>(devices));
        return all;
    }

    /// The wire must outlive it.
    LocalGpus(LocalWire& wire, std::size_t rank) : hosts_(wire, rank) {}

    /// As RankTransport says, of hosts.
    ///@{
    std::size_t rank() const { return hosts_.rank(); }
    std::size_t ranks() const { return hosts_.ranks(); }
    Array<std::uint64_t> gather(std::uint64_t number) override { return hosts_.gather(number); }
    void open(Array<Channel> const& channels) {
        std::size_t const count = channels.size();
        Array<Channel> both(2 * count); // of hosts, and behind these of GPUs
        for (std::size_t c = 0; c < count; ++c) both[c] = both[count + c] = channels[c];
        hosts_.open(both);
        ways_ = std::vector<Way>(count);
        for (std::size_t c = 0; c < count; ++c)
            if (channels[c].from == rank() || channels[c].to == rank())
                ways_[c].event = cuda::Event(gpus_[channels[c].device]);
        for (int const gpu : gpus_)
            for (std::uint64_t const other : gather(static_cast<std::uint64_t>(gpu)))
                cuda::natural_link(gpu, static_cast<int>(other));
        together_.reserve(count);
    }
    void send(std::size_t channel, std::byte const* from, std::size_t bytes,
              std::uint32_t word) noexcept {
        hosts_.send(channel, from, bytes, word);
    }
    std::uint32_t receive(std::size_t channel, std::byte* to, std::size_t bytes) noexcept {
        return hosts_.receive(channel, to, bytes);
    }
    std::exception_ptr error() const { return hosts_.error(); }
    void give_up(char const* words) noexcept {
        if (!refusing_) hosts_.give_up(words);
    }
    ///@}
    /// Around what all of them are told to start: until a run of it begins any may refuse it, and
    /// then none begins.
    ///@{
    void enter() {
        hosts_.enter();
        refusing_ = true;
    }
    void leave(bool threw) noexcept {
        if (threw) hosts_.refuse();
        refusing_ = false;
    }
    ///@}

    /// As StreamTransport says. Throw cuda::Error, and why another is gone.
    ///@{
    void send(std::size_t channel, std::byte const* from, std::size_t, cuda::StreamRef stream) {
        Way& way = ways_[channel];
        way.event.record(stream);
        way.from = from;
        way.copied = nullptr;
        hosts_.offer(ways_.size() + channel, &way, 0);
        is_together_ ? together_.push_back(channel) : settle(channel, stream);
    }
    void receive(std::size_t channel, std::byte* to, std::size_t bytes, cuda::StreamRef stream) {
        Way& own = ways_[channel];
        bool const came = hosts_.take(ways_.size() + channel, [&](void* offered, std::uint32_t) {
            Way& other = *static_cast<Way*>(offered);
            stream.wait(other.event);
            if (bytes > 0) stream.copy(to, other.from, bytes);
            try {
                own.event.record(stream);
            } catch (...) { // who waits for no event may write there again
                cuda::detail::forget(cudaStreamSynchronize(stream.get()));
                throw;
            }
            other.copied = &own.event;
        });
        if (!came) std::rethrow_exception(error());
    }
    template <class F> void together(cuda::StreamRef stream, F f) {
        is_together_ = true;
        std::exception_ptr error;
        try {
            f();
        } catch (...) {
            error = std::current_exception();
            give_up("has an error of its device");
        }
        is_together_ = false;
        for (std::size_t const channel : together_) // nobody is to copy from here any more
            try {
                settle(channel, stream);
            } catch (...) {
                if (!error) error = std::current_exception();
            }
        together_.clear();
        if (error) std::rethrow_exception(error);
    }
    cuda::Peers& meets() { return *this; }
    ///@}

  private:
    // Of a channel, at either end.
    struct Way {
        cuda::Event event;                   // that what is sent is there, or has been copied
        std::byte const* from = nullptr;     // what is sent
        cuda::Event const* copied = nullptr; // the other's
    };

    // Throws why nobody has come for it, nor will.
    void settle(std::size_t channel, cuda::StreamRef stream) {
        if (!hosts_.settle(ways_.size() + channel)) std::rethrow_exception(error());
        if (cuda::Event const* const copied = ways_[channel].copied) stream.wait(*copied);
    }

    bool begin() override {
        if (hosts_.arrive()) return refusing_ = false, true;
        if (auto const lost = error()) std::rethrow_exception(lost);
        return false;
    }
    bool lost(double) noexcept override { return hosts_.error() != nullptr; }
    bool meet(std::vector<int> const& gpus) override { return gpus_ = gpus, true; }

    LocalRanks hosts_;
    std::vector<int> gpus_;             // by device
    std::vector<Way> ways_;             // by channel
    std::vector<std::size_t> together_; // channels of what is sent at once
    bool is_together_ = false;
    bool refusing_ = false;
};

/// GPUs are joined by events.
template <> struct LocalTransport<device::Cuda> {
    using type = LocalGpus; ///< what joins them
};

} // namespace gpipe
