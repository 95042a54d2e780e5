#pragma once

#include <gpipe/core/clock.hpp>
#include <gpipe/transport/descriptor.hpp>

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace gpipe::detail {

/// What goes before the bytes of a message.
struct SocketFrame {
    std::uint32_t channel = 0;
    std::uint32_t word = 0;
    std::uint64_t bytes = 0; ///< that follow
};

/// The end of a connection to another rank, by which messages of all channels go, one behind the
/// other. Never waits.
class SocketLine {
  public:
    /// None.
    SocketLine() = default;
    /// This one.
    explicit SocketLine(Descriptor way) : way_(std::move(way)) {}

    /// For poll(): -1 where it has ended, and whether there is something to send.
    ///@{
    int number() const { return way_.get(); }
    bool is_full() const { return sent_ < said_; }
    ///@}
    /// How many bytes were to be sent, and how many the system has taken.
    ///@{
    std::uint64_t said() const { return said_; }
    std::uint64_t sent() const { return sent_; }
    ///@}
    /// When it has ended, by seconds_now(); 0 while it has not.
    double ended() const { return ended_; }

    /// Sends a message, now or with flush().
    void say(SocketFrame const& frame, std::byte const* from) {
        say(reinterpret_cast<std::byte const*>(&frame), sizeof frame);
        say(from, static_cast<std::size_t>(frame.bytes));
    }
    /// Sends what could not be sent before, as far as it goes now.
    void flush() {
        std::size_t const rest = out_.size() - begin_;
        begin_ += write(out_.data() + begin_, rest);
        if (begin_ < out_.size()) return;
        out_.clear();
        begin_ = 0;
    }
    /// take(frame, bytes) of what has come whole; is_sound(frame) is asked before there is memory
    /// for one, and where it says no nothing more is heard. Returns whether it said so.
    template <class IsSound, class Take> bool hear(IsSound is_sound, Take take) {
        for (int turn = 0; way_ && turn < most_turns; ++turn) {
            bool const is_head = got_ < sizeof frame_;
            std::byte* const to = is_head ? reinterpret_cast<std::byte*>(&frame_) + got_
                                          : bytes_.data() + (got_ - sizeof frame_);
            std::size_t const all = sizeof frame_ + (is_head ? 0 : bytes_.size());
            std::ptrdiff_t const count = way_.read_some(to, all - got_);
            if (count < 0) end();
            if (count <= 0) return false;
            got_ += static_cast<std::size_t>(count);
            if (got_ < all) continue;
            if (is_head) {
                if (!is_sound(std::as_const(frame_))) {
                    end();
                    return true;
                }
                bytes_ = std::vector<std::byte>(static_cast<std::size_t>(frame_.bytes));
            }
            if (got_ < sizeof frame_ + bytes_.size()) continue;
            take(std::as_const(frame_), std::move(bytes_));
            bytes_ = {};
            got_ = 0;
        }
        return false;
    }

  private:
    static constexpr int most_turns = 256; // who sends without end does not keep us from others

    void end() {
        way_.close();
        ended_ = seconds_now();
    }
    void say(std::byte const* from, std::size_t bytes) {
        said_ += bytes;
        std::size_t const now = out_.empty() ? write(from, bytes) : 0;
        if (now < bytes) out_.insert(out_.end(), from + now, from + bytes);
    }
    std::size_t write(std::byte const* from, std::size_t bytes) {
        std::size_t done = 0;
        while (way_ && done < bytes) {
            std::ptrdiff_t const count = way_.write_some(from + done, bytes - done);
            if (count <= 0) break; // hear() finds out why
            done += static_cast<std::size_t>(count);
        }
        sent_ += done;
        return done;
    }

    Descriptor way_;
    double ended_ = 0;
    std::uint64_t said_ = 0, sent_ = 0;
    std::vector<std::byte> out_; // from begin_ on: what could not be sent yet
    std::size_t begin_ = 0;
    std::size_t got_ = 0; // of a message that has not come whole, head included
    SocketFrame frame_;
    std::vector<std::byte> bytes_;
};

} // namespace gpipe::detail
