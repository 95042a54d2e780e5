#pragma once

#include <gpipe/state/pending_save.hpp>
#include <gpipe/state/shards.hpp>
#include <gpipe/state/state_files.hpp>
#include <gpipe/state/state_inline.hpp>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

#include <unistd.h>

namespace gpipe::detail {

// Whether the state of that save may be there: its rename() can be done although the save throws.
GPIPE_STATE_INLINE bool may_be_there(Shards const& shards) {
    namespace fs = std::filesystem;
    std::error_code error;
    fs::file_type const type = fs::status(shards.path(), error).type();
    if (type == fs::file_type::not_found || type == fs::file_type::directory) return false;
    try {
        StateFile const file(shards.path());
        StateMetadata const &found = file.header.metadata, mark = shards.mark();
        return std::includes(found.begin(), found.end(), mark.begin(), mark.end());
    } catch (...) { // who cannot read it does not know
        return true;
    }
}
// All hear of a save that went wrong on one of them: its parts go, each by who has written it.
// `shards`: of that save, which may not have come so far on this rank.
template <class All> void remove_parts(All& all, Shards const* shards) {
    bool const stay = all.gather(shards && shards->is_first() && may_be_there(*shards))[0];
    if (!shards || !shards->beside()) return;
    ::unlink(shards->note().c_str()); // which nobody reads any more
    if (!stay) ::unlink(shards->own().c_str());
}

// What a training remembers of the save in the background that it has begun last.
class BegunSave : public Counted {
  public:
    BegunSave() = default;
    BegunSave(PendingSave save, std::optional<Shards> shards)
        : pending_(std::move(save)), shards_(std::move(shards)) {}
    BegunSave(BegunSave const&) = delete;
    BegunSave& operator=(BegunSave const&) = delete;
    ~BegunSave() {
        std::shared_ptr<PendingSave::Course> const course = pending_->course();
        pending_.reset(); // which may wait, and hear of a loss as long as it does
        course->loss.end();
    }
    // The one of that place, or one that has nothing to do.
    static Shared<BegunSave> at(Shared<Counted> const& place) {
        return Shared(place ? static_cast<BegunSave*>(place.get()) : new BegunSave);
    }

    PendingSave& pending() { return *pending_; }
    // Null where only one rank saves, or nothing has begun.
    Shards const* shards() const { return shards_ ? &*shards_ : nullptr; }

  private:
    std::optional<PendingSave> pending_ = PendingSave(); // until it goes
    std::optional<Shards> shards_;
};

} // namespace gpipe::detail
