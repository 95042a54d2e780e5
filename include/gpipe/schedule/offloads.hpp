#pragma once

#include <gpipe/core/array.hpp>
#include <gpipe/core/compiled.hpp>
#include <gpipe/schedule/programs.hpp>

#include <cstddef>

GPIPE_RUNS_ONCE_BEGIN
namespace gpipe {

/// Which micro-batches leave a cell for slower memory between their forward and their reversal (a
/// recompute, or the backward), and when they come back. They leave as soon as the forward has run,
/// and come back while the reversal before theirs runs on their device. So a micro-batch leaves
/// only if at least two actions run between its forward and that reversal: one hides the copy out,
/// and behind that somebody else can have the room. And they leave a cell only if fewer are in the
/// device's memory at a time because of it: with GPipe two of them, with 1F1B three.
class Offloads {
  public:
    constexpr Offloads() = default;
    /// None leaves yet.
    constexpr explicit Offloads(Programs const& programs)
        : micro_batches_(programs.micro_batches()), moved_(programs.cells() * micro_batches_),
          behind_(programs.size(), none) {}

    /// Whether what this micro-batch keeps in the cell leaves the device.
    constexpr bool moved(std::size_t cell, std::size_t micro_batch) const {
        return !moved_.empty() && moved_[cell * micro_batches_ + micro_batch];
    }
    /// The first action of the reversal whose fetch may begin behind action i; `none` if there is
    /// no such.
    constexpr std::size_t behind(std::size_t i) const {
        return i < behind_.size() ? behind_[i] : none;
    }
    /// "No action".
    static constexpr std::size_t none = static_cast<std::size_t>(-1);

  private:
    friend class OffloadChooser;
    std::size_t micro_batches_ = 0;
    Array<bool> moved_;         // by cell and micro-batch
    Array<std::size_t> behind_; // by action
};

/// Chooses them for those cells c that have something to offload.
class OffloadChooser {
  public:
    /// `cells`: whether there is anything to offload, by cell.
    constexpr OffloadChooser(Programs const& programs, Array<bool> const& cells)
        : programs_(programs), offloads_(programs), forward_(offloads_.moved_.size()),
          end_(forward_.size()), reversal_(forward_.size()),
          trigger_(forward_.size(), Offloads::none) {
        for (std::size_t d = 0; d < programs.devices(); ++d) choose(cells, d);
        for (std::size_t c = 0; c < cells.size(); ++c)
            if (cells[c] && most_at_once(c, true) >= most_at_once(c, false)) keep(c);
        for (std::size_t pair = 0; pair < forward_.size(); ++pair) {
            if (trigger_[pair] == Offloads::none) continue;
            offloads_.moved_[pair] = true;
            offloads_.behind_[trigger_[pair]] = reversal_[pair];
        }
    }
    /// Those that were chosen.
    constexpr Offloads const& offloads() const { return offloads_; }

  private:
    constexpr std::size_t pair_of(Action const& a) const {
        return a.cell * programs_.micro_batches() + a.micro_batch;
    }
    constexpr void choose(Array<bool> const& cells, std::size_t d) {
        std::size_t before = Offloads::none; // the first action of the reversal before
        for (std::size_t i = programs_.begin(d); i < programs_.end(d); ++i) {
            Action const& a = programs_[i];
            std::size_t const pair = pair_of(a);
            if (a.kind == Kind::forward) forward_[pair] = i;
            if (ends_backward(a.kind)) end_[pair] = i;
            // A recompute stands right in front of its backward.
            bool const begun = i > programs_.begin(d) && programs_[i - 1].kind == Kind::recompute;
            if (a.kind != Kind::recompute && (begun || !gives_gradient(a.kind))) continue;
            reversal_[pair] = i;
            if (cells[a.cell] && before != Offloads::none && before >= forward_[pair] + 3)
                trigger_[pair] = before - 1;
            before = i;
        }
    }
    constexpr void keep(std::size_t c) {
        for (std::size_t m = 0; m < programs_.micro_batches(); ++m)
            trigger_[c * programs_.micro_batches() + m] = Offloads::none;
    }
    // How many micro-batches are in the device's memory: from the forward until the action behind
    // it has hidden the copy, and from the trigger to the end of the backward.
    constexpr std::size_t most_at_once(std::size_t c, bool offloads) const {
        std::size_t const d = programs_.device_of(c);
        Array<std::size_t> more(programs_.size(d) + 3);
        Array<std::size_t> fewer(programs_.size(d) + 3);
        std::size_t const begin = programs_.begin(d);
        for (std::size_t m = 0; m < programs_.micro_batches(); ++m) {
            std::size_t const pair = c * programs_.micro_batches() + m;
            ++more[forward_[pair] - begin];
            ++fewer[end_[pair] - begin + 1];
            if (!offloads || trigger_[pair] == Offloads::none) continue;
            ++fewer[forward_[pair] - begin + 2];
            ++more[trigger_[pair] - begin + 1];
        }
        std::size_t now = 0;
        std::size_t most = 0;
        for (std::size_t i = 0; i < more.size(); ++i) {
            now += more[i];
            now -= fewer[i];
            if (now > most) most = now;
        }
        return most;
    }

    Programs const& programs_;
    Offloads offloads_;
    Array<std::size_t> forward_; // by cell and micro-batch, as are these
    Array<std::size_t> end_;
    Array<std::size_t> reversal_; // its first action
    Array<std::size_t> trigger_;  // the action behind which the fetch may begin
};

/// Chooses them for those cells c that have something to offload: `cells[c]`; empty: none. The
/// programs hold recomputes already.
[[gnu::cold]] GPIPE_INLINE constexpr Offloads choose_offloads(Programs const& programs,
                                                              Array<bool> const& cells) {
    bool any = false; // and not of forwards alone
    for (bool const cell : cells) any = any || cell;
    for (std::size_t i = 0; any && i < programs.size(); ++i)
        if (gives_gradient(programs[i].kind)) return OffloadChooser(programs, cells).offloads();
    return {};
}

/// The same where no cell has.
GPIPE_INLINE constexpr Offloads no_offloads(Programs const&, Array<bool> const&) { return {}; }

/// Either: a program that never offloads does without the code of the former.
using ChooseOffloads = decltype(&choose_offloads);

} // namespace gpipe
GPIPE_RUNS_ONCE_END
