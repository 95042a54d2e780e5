#pragma once

#include <gpipe/core/compiled.hpp>
#include <gpipe/plan/happens_before.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>

GPIPE_RUNS_ONCE_BEGIN
namespace gpipe::detail {

// What an action at the end of a step has to wait for: of the writers of all that it reads those
// that no other implies.
class EndNeeds {
  public:
    // Of a step, behind which come at most so many actions.
    EndNeeds(Lowered const& step, Operands const& operands, std::size_t most)
        : size_(step.programs.size()), devices_(step.devices()), streams_(step.streams()),
          before_(walk_of(step), operands), layer_(devices_), end_(streams_),
          needs_(devices_ + streams_), done_(most * (devices_ + streams_)) {}

    // That the next action reads what this one, on this stream, has written.
    [[gnu::noinline]] void add(std::uint32_t writer, std::size_t stream) {
        std::uint32_t& latest = (writer < size_ ? layer_ : end_)[stream];
        latest = std::max(latest, writer + 1);
    }
    // The needs of the next action, which forgets what it reads.
    [[gnu::noinline]] Part<std::uint32_t> take(std::size_t action) {
        std::size_t count = 0;
        for (std::size_t s = 0; s < streams_; ++s)
            if (end_[s] > 0 && !done_by_end(devices_ + s, end_[s], s))
                needs_[count++] = end_[s] - 1;
        for (std::size_t d = 0; d < devices_; ++d)
            if (layer_[d] > 0 && !done_by_layer(d) && !done_by_end(d, layer_[d], streams_))
                needs_[count++] = layer_[d] - 1;
        std::uint32_t* const done = done_before(static_cast<std::uint32_t>(action + 1));
        for (std::size_t d = 0; d < devices_; ++d) done[d] = layer_[d];
        for (std::size_t s = 0; s < streams_; ++s) {
            for (std::size_t k = 0; k < devices_ + streams_ && end_[s] > 0; ++k)
                done[k] = std::max(done[k], done_before(end_[s])[k]);
            done[devices_ + s] = std::max(done[devices_ + s], end_[s]);
        }
        for (std::uint32_t& latest : layer_) latest = 0;
        for (std::uint32_t& latest : end_) latest = 0;
        return {needs_.data(), count};
    }

  private:
    // By device the last action of layers, then by stream the last of the end, 1 + each.
    std::uint32_t* done_before(std::uint32_t end) {
        return done_.data() + (end - 1 - size_) * (devices_ + streams_);
    }
    // Whether any that is read, on another stream than this, implies it.
    bool done_by_end(std::size_t where, std::uint32_t what, std::size_t but) {
        bool result = false;
        for (std::size_t s = 0; s < streams_; ++s)
            result = result || (s != but && end_[s] > 0 && done_before(end_[s])[where] >= what);
        return result;
    }
    bool done_by_layer(std::size_t d) const {
        bool result = false;
        for (std::size_t o = 0; o < devices_; ++o)
            result = result || (o != d && layer_[o] > 0 && before_(layer_[d] - 1, layer_[o] - 1));
        return result;
    }

    std::size_t size_; // actions of the step
    std::size_t devices_;
    std::size_t streams_;
    HappensBefore before_;       // among those
    Array<std::uint32_t> layer_; // by device: 1 + what the next action needs of its layers
    Array<std::uint32_t> end_;   // by stream: likewise, of the end
    Array<std::uint32_t> needs_; // of the last action that was asked for
    Array<std::uint32_t> done_;  // by action of the end, see done_before()
};

} // namespace gpipe::detail
GPIPE_RUNS_ONCE_END
