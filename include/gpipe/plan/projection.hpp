#pragma once

#include <gpipe/core/array.hpp>
#include <gpipe/plan/lowered.hpp>

#include <cstddef>
#include <cstdint>

namespace gpipe {

/// One thing that a rank does: an action of its own, or its end of a message.
struct RankStep {
    /// Which of these.
    enum class Role : std::uint8_t { runs, sends, receives };
    Role role = Role::runs;   ///< what the rank does
    std::uint32_t action = 0; ///< of the table; of a message, the copy that both ends are
    std::uint32_t peer = 0;   ///< rank at the other end; of what runs, itself
};

/// A table as programs of ranks, a device each, that share no memory: its linear order, with a copy
/// between two devices as a message at the same place for both ends. So no two ranks ever wait for
/// each other, even if nothing is buffered, and messages between two of them need no tags: what is
/// sent first is received first. Needs between ranks are implied.
class Projection {
  public:
    /// Of a table without Link::staged.
    [[gnu::cold]] constexpr explicit Projection(Lowered const& lowered)
        : begin_(lowered.devices() + 1), steps_(2 * lowered.order.size()) {
        using Role = RankStep::Role;
        Programs const& programs = lowered.programs;
        auto const each = [&](auto f) {
            for (std::uint32_t const i : lowered.order) {
                Action const& a = programs[i];
                bool const output = a.kind == Kind::send_output;
                std::size_t const own = programs.device_of(a.cell);
                std::size_t peer = own;
                if (output || a.kind == Kind::send_gradient) {
                    Edge const& edge = lowered.edges[a.edge];
                    peer = programs.device_of(output ? edge.to : edge.from);
                }
                f(own, RankStep{own == peer ? Role::runs : Role::sends, i,
                                static_cast<std::uint32_t>(peer)});
                if (own == peer) continue;
                f(peer, RankStep{Role::receives, i, static_cast<std::uint32_t>(own)});
            }
        };
        each([&](std::size_t rank, RankStep const&) { ++begin_[rank + 1]; });
        for (std::size_t r = 1; r < begin_.size(); ++r) begin_[r] += begin_[r - 1];
        Array<std::size_t> next = begin_;
        each([&](std::size_t rank, RankStep const& step) { steps_[next[rank]++] = step; });
    }

    /// How many ranks there are.
    constexpr std::size_t ranks() const { return begin_.size() - 1; }
    /// What a rank does, in its order.
    constexpr Part<RankStep> operator[](std::size_t rank) const {
        return {steps_.data() + begin_[rank], begin_[rank + 1] - begin_[rank]};
    }

  private:
    Array<std::size_t> begin_; // by rank, and the end
    Array<RankStep> steps_;    // rank by rank
};

} // namespace gpipe
