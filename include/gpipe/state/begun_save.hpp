#pragma once

#include <gpipe/state/pending_save.hpp>

#include <memory>
#include <optional>
#include <utility>

namespace gpipe::detail {

// What a training remembers of the save in the background that it has begun last.
class BegunSave {
  public:
    BegunSave() = default;
    explicit BegunSave(PendingSave save) : pending_(std::move(save)) {}
    BegunSave(BegunSave const&) = delete;
    BegunSave& operator=(BegunSave const&) = delete;
    ~BegunSave() {
        std::shared_ptr<PendingSave::Course> const course = pending_->course();
        pending_.reset(); // which may wait, and hear of a loss as long as it does
        course->loss.end();
    }
    // The one of that place, or one that has nothing to do.
    static std::shared_ptr<BegunSave> at(std::shared_ptr<void> const& place) {
        auto begun = std::static_pointer_cast<BegunSave>(place);
        return begun ? begun : std::make_shared<BegunSave>();
    }

    PendingSave& pending() { return *pending_; }

  private:
    std::optional<PendingSave> pending_ = PendingSave(); // until it goes
};

} // namespace gpipe::detail
