#pragma once

#include <gpipe/plan/edge.hpp>
#include <gpipe/schedule/offloads.hpp>

#include <cstddef>
#include <cstdint>

namespace gpipe {

/// What has to have run before each action starts, beside its predecessor on its stream: actions of
/// other streams.
class Needs {
  public:
    constexpr Needs() = default;
    /// Of so many actions; none yet, and room for so many needs in all.
    constexpr Needs(std::size_t actions, std::size_t room)
        : first_(actions), last_(actions), all_(room) {}

    /// Those of an action, in no particular order.
    [[gnu::always_inline]] constexpr Part<std::uint32_t> operator[](std::size_t action) const {
        return {all_.data() + first_[action], last_[action] - first_[action]};
    }
    /// Actions.
    constexpr std::size_t size() const { return first_.size(); }
    /// Needs in all.
    constexpr std::size_t count() const { return count_; }
    /// Gives an action, which has none yet, these.
    constexpr void set(std::size_t action, Part<std::uint32_t> needs) {
        while (count_ + needs.size() > all_.size()) enlarge(all_, count_, 2 * all_.size() + 16);
        first_[action] = static_cast<std::uint32_t>(count_);
        for (std::uint32_t const needed : needs) all_[count_++] = needed;
        last_[action] = static_cast<std::uint32_t>(count_);
    }

  private:
    Array<std::uint32_t> first_, last_; // by action
    Array<std::uint32_t> all_;
    std::size_t count_ = 0;
};

/// The actions of a step, copies included, and the streams that they run on: first those of the
/// devices, which compute, with their programs as they were; then those that copy. Actions of the
/// devices keep their indices.
struct Lowered {
    Programs programs;         ///< one per stream
    Array<std::size_t> device; ///< by stream: whose it is
    Edges edges;               ///< between the cells
    Offloads offloads;         ///< what leaves the devices' memory for a while
    /// By device the stream, with no actions of a step's, for what its layers go on beside:
    /// gradients of replicas are added up, and what another rank has decided is heard; none at all:
    /// it is the one that computes.
    Array<std::size_t> beside{};
    /// One linear order of all actions: values are placed, and proven to keep apart, along it.
    Array<std::uint32_t> order;
    Needs needs; ///< by action, see find_needs() and sweep(); empty before
    /// Of a step with its end, see with_ending(): whether that begins before all layers are called.
    bool immediate = false;

    /// How many there are.
    constexpr std::size_t streams() const { return device.size(); }
    /// Those that compute: the first of the streams.
    constexpr std::size_t devices() const {
        std::size_t count = 0;
        while (count < device.size() && device[count] == count) ++count;
        return count;
    }
    /// The stream of what ends a step on the device that has it.
    constexpr std::size_t stream_of_end(Kind kind, std::size_t owner) const {
        bool const hears =
            kind == Kind::commit && immediate && owner != programs.device_of(programs.cells() - 1);
        bool const apart = adds_replicas(kind) || kind == Kind::bring_gradient ||
                           kind == Kind::send_commit || hears;
        return apart && !beside.empty() ? beside[owner] : owner;
    }
    /// The programs of these alone, as they were.
    constexpr Programs computing() const {
        Programs result(programs, devices(), programs.size());
        for (std::size_t d = 0; d < result.devices(); ++d) result.add_program(programs.program(d));
        return result;
    }
};

} // namespace gpipe
