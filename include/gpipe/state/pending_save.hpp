#pragma once

#include <gpipe/core/version.hpp>

#include <chrono>
#include <cstdio>
#include <exception>
#include <future>
#include <memory>
#include <utility>

namespace gpipe {

/// A state that is being written. May be dropped, and outlive its training. Used by the training's
/// thread.
class PendingSave {
  public:
    /// Whether wait() will not wait.
    bool ready() const {
        return !writing_->result.valid() ||
               writing_->result.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
    }
    /// Returns when the state is saved. Throws what was wrong with that, once.
    void wait() {
        if (writing_->result.valid()) writing_->result.get();
    }

    /// Calls write() on a thread of its own. `place`: where the training remembers it.
    template <class Write> static PendingSave start(std::shared_ptr<void>& place, Write write) {
        auto writing = std::make_shared<Writing>();
        writing->result = std::async(std::launch::async, std::move(write));
        place = writing;
        return PendingSave(std::move(writing));
    }
    /// Waits for the one that a training remembers.
    static void finish(std::shared_ptr<void>& place) {
        if (auto const writing = std::static_pointer_cast<Writing>(std::exchange(place, nullptr)))
            PendingSave(writing).wait();
    }

  private:
    struct Writing {
        std::future<void> result;

        Writing() = default;
        Writing(Writing const&) = delete;
        Writing& operator=(Writing const&) = delete;
        ~Writing() {
            try {
                if (result.valid()) result.get();
            } catch (std::exception const& error) {
                std::fprintf(stderr, "%s\n", error.what());
            }
        }
    };
    explicit PendingSave(std::shared_ptr<Writing> writing) : writing_(std::move(writing)) {}

    std::shared_ptr<Writing> writing_;
};

} // namespace gpipe
