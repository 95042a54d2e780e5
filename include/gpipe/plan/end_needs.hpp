#pragma once

#include <gpipe/core/compiled.hpp>
#include <gpipe/plan/happens_before.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>

GPIPE_RUNS_ONCE_BEGIN
namespace gpipe::detail {

// What an action at the end of a step has to wait for: of the writers of all that it reads those
// that no other implies; but of its own device's all, for lanes have places of their own for the
// end.
class EndNeeds {
  public:
    // Of a step, behind which come at most so many actions.
    EndNeeds(Lowered const& step, Operands const& operands, std::size_t most)
        : size_(step.programs.size()), devices_(step.devices()), before_(walk_of(step), operands),
          layer_(devices_), end_(devices_), needs_(2 * devices_), done_(most * devices_) {}

    // That the next action reads what this one, on this device, has written.
    [[gnu::noinline]] void add(std::uint32_t writer, std::size_t device) {
        std::uint32_t& latest = (writer < size_ ? layer_ : end_)[device];
        latest = std::max(latest, writer + 1);
    }
    // The needs of the next action, which is on this device, and forgets what it reads.
    [[gnu::noinline]] Part<std::uint32_t> take(std::size_t action, std::size_t device) {
        std::size_t count = 0;
        for (std::size_t e = 0; e < devices_; ++e) {
            std::uint32_t const layer = layer_[e], end = end_[e];
            bool needs_layer = layer > 0 && (end == 0 || e == device), needs_end = end > 0;
            for (std::size_t o = 0; o < devices_; ++o) {
                if (o == e) continue;
                if (layer > 0 && layer_[o] > 0 && e != device && before_(layer - 1, layer_[o] - 1))
                    needs_layer = false;
                if (end > 0 && end_[o] > 0 && done_before(end_[o])[e] >= end) needs_end = false;
            }
            if (needs_end) needs_[count++] = end - 1;
            if (needs_layer) needs_[count++] = layer - 1;
        }
        std::uint32_t* const done = done_before(static_cast<std::uint32_t>(action + 1));
        for (std::size_t e = 0; e < devices_; ++e) {
            for (std::size_t o = 0; o < devices_ && end_[e] > 0; ++o)
                done[o] = std::max(done[o], done_before(end_[e])[o]);
            done[e] = std::max(done[e], end_[e]);
        }
        for (std::size_t e = 0; e < devices_; ++e) layer_[e] = end_[e] = 0;
        return {needs_.data(), count};
    }

  private:
    std::uint32_t* done_before(std::uint32_t end) {
        return done_.data() + (end - 1 - size_) * devices_;
    }

    std::size_t size_; // actions of the step
    std::size_t devices_;
    HappensBefore before_;             // among those
    Array<std::uint32_t> layer_, end_; // by device: 1 + what the next action needs of either
    Array<std::uint32_t> needs_;       // of the last action that was asked for
    Array<std::uint32_t> done_; // by action of the end and device: 1 + which is done before it
};

} // namespace gpipe::detail
GPIPE_RUNS_ONCE_END
