#pragma once

#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <cstdio>
#include <string>

namespace support {

/// A progress bar on stderr: on a terminal one line that is written again at most ten times a
/// second; elsewhere a line for every tenth of the way.
class Progress {
  public:
    explicit Progress(std::size_t steps) : steps_(steps), terminal_(isatty(STDERR_FILENO) != 0) {}
    ~Progress() { end(); }
    Progress(Progress const&) = delete;
    Progress& operator=(Progress const&) = delete;

    /// Whether show() should be called after this many steps.
    bool due(std::size_t done) {
        if (done == steps_) return true;
        if (!terminal_) return done * 10 / steps_ > (done - 1) * 10 / steps_;
        auto const now = std::chrono::steady_clock::now();
        if (now - last_ < std::chrono::milliseconds(100)) return false;
        last_ = now;
        return true;
    }
    void show(std::size_t done, std::string const& words) {
        std::size_t const filled = done * width / steps_;
        std::string line = "[";
        line.append(filled, '#').append(width - filled, '.');
        line.append("] ").append(std::to_string(done)).append("/").append(std::to_string(steps_));
        line.append(" ").append(words);
        if (terminal_) {
            std::fprintf(stderr, "\r%s\033[K", line.c_str());
            std::fflush(stderr);
            open_ = true;
        } else {
            std::fprintf(stderr, "%s\n", line.c_str());
        }
    }

    /// Leaves the line for what is printed next.
    void end() {
        if (open_) std::fputc('\n', stderr);
        open_ = false;
    }

  private:
    static constexpr std::size_t width = 20;
    std::size_t steps_;
    bool terminal_;
    bool open_ = false;
    std::chrono::steady_clock::time_point last_{};
};

} // namespace support
