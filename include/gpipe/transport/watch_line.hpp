#pragma once

#include <gpipe/schedule/action.hpp>
#include <gpipe/transport/descriptor.hpp>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <type_traits>
#include <utility>

namespace gpipe::detail {

/// Where a rank is, as ranks tell each other.
struct WatchPlace {
    static constexpr std::uint64_t no_action = ~std::uint64_t{0}; ///< in no step
    static constexpr std::int32_t nobody = -1, everybody = -2;    ///< in place of a rank

    std::uint64_t steps = 0;          ///< trained before
    std::uint64_t action = no_action; ///< see pack()
    std::int32_t waits_for = nobody;  ///< rank
    std::uint32_t held = 0;           ///< milliseconds that all that is so

    /// An action as a number.
    static std::uint64_t pack(Kind kind, std::uint32_t cell, std::uint32_t micro_batch) {
        return std::uint64_t{static_cast<std::uint8_t>(kind)} << 56 |
               std::uint64_t{cell & 0xFFFFFFu} << 32 | micro_batch;
    }
    /// Whether both are the same, for however long.
    friend bool same(WatchPlace const& a, WatchPlace const& b) {
        return a.steps == b.steps && a.action == b.action && a.waits_for == b.waits_for;
    }
    /// "at the forward of micro-batch 1, cell 2, in step 3, for 0.5 s, and waited for rank 1".
    std::string text() const {
        std::string text = "in no step";
        if (action != no_action) {
            auto const kind = static_cast<Kind>(action >> 56);
            text = "at the " + std::string(name(kind));
            std::string const cell = std::to_string(action >> 32 & 0xFFFFFFu);
            if (adds_replicas(kind))
                text += " of cell " + cell;
            else if (!ends_step(kind))
                text +=
                    " of micro-batch " + std::to_string(action & 0xFFFFFFFFu) + ", cell " + cell;
            text += ", in step " + std::to_string(steps + 1);
        }
        char seconds[32] = {};
        if (held >= 100) std::snprintf(seconds, sizeof seconds, ", for %.1f s", held / 1000.0);
        text += seconds;
        if (waits_for == everybody) text += ", and waited for all";
        if (waits_for >= 0) text += ", and waited for rank " + std::to_string(waits_for);
        return text;
    }
};

/// What ranks say to each other.
struct WatchMessage {
    /// What it is.
    enum class Word : std::uint32_t { lives = 1, leaves, leaves_after_loss, lost };

    Word word{};                            ///< and of `lost`:
    std::int32_t rank = WatchPlace::nobody; ///< who is
    std::uint32_t by = 0;                   ///< who found that out
    std::uint32_t unused = 0;               ///< so that there are no bytes between members
    WatchPlace place;                       ///< of who says it
    char text[88] = {};                     ///< what is said of who is lost
};
static_assert(sizeof(WatchMessage) == 128 && std::is_trivially_copyable_v<WatchMessage>);

/// The end of a connection to another rank. Never waits.
class WatchLine {
  public:
    /// None.
    WatchLine() = default;
    /// This one.
    explicit WatchLine(Descriptor way) : way_(std::move(way)) {}

    /// Whether it is open.
    explicit operator bool() const { return static_cast<bool>(way_); }
    /// For poll().
    int number() const { return way_.get(); }
    /// take(message) of all that have come whole. Closed where there will be no more.
    template <class Take> void hear(Take take) {
        while (way_) {
            std::ptrdiff_t const count = way_.read_some(half_ + bytes_, sizeof half_ - bytes_);
            if (count < 0) return way_.close();
            if (count == 0) return;
            bytes_ += static_cast<std::size_t>(count);
            if (bytes_ < sizeof half_) continue;
            bytes_ = 0;
            WatchMessage message;
            std::memcpy(&message, half_, sizeof half_);
            message.text[sizeof message.text - 1] = 0;
            take(message);
        }
    }
    /// Sends it now or later. Who does not read for long is not told again that this one lives.
    void say(WatchMessage const& message) {
        flush();
        if (!way_ || (!out_.empty() && message.word == WatchMessage::Word::lives)) return;
        out_.append(reinterpret_cast<char const*>(&message), sizeof message);
        flush();
    }

  private:
    void flush() {
        while (way_ && !out_.empty()) {
            std::ptrdiff_t const count = way_.write_some(out_.data(), out_.size());
            if (count <= 0) return; // hear() finds out why
            out_.erase(0, static_cast<std::size_t>(count));
        }
    }

    Descriptor way_;
    std::size_t bytes_ = 0; // of a message that has not come whole
    char half_[sizeof(WatchMessage)] = {};
    std::string out_; // what could not be sent yet
};

} // namespace gpipe::detail
