#pragma once

#include <gpipe/core/array.hpp>
#include <gpipe/runtime/agreement.hpp>
#include <gpipe/state/state_error.hpp>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <string>

namespace gpipe::detail {

// What ranks do one after another, and all hear of what is wrong. All: a Gathering.
class DoneTogether {
  public:
    // Does it on ranks that do; whether it went wrong anywhere.
    template <class All, class Do> bool failed(All& all, bool does, Do it) {
        if (does) attempt(it);
        return any(all.gather(failed_here()));
    }
    // Here, for any() of what all have of it.
    template <class Do> void attempt(Do it) {
        try {
            it();
        } catch (...) {
            error_ = std::current_exception();
        }
    }
    bool any(Array<std::uint64_t> const& wrong) {
        who_ = 0;
        while (who_ < wrong.size() && !wrong[who_]) ++who_;
        return who_ < wrong.size();
    }
    bool failed_here() const { return error_ != nullptr; }
    void forget() { error_ = nullptr; }
    // All of them, with what was wrong here, or else there.
    template <class All>
    [[noreturn]] void fail(All& all, std::string const& path, char const* what) const {
        Words words(error_);
        spread(all, who_, words.text);
        if (error_) std::rethrow_exception(error_);
        throw StateError("gpipe: " + path + ": rank " + std::to_string(who_) + " could not " +
                         what + ": " + words.text);
    }

  private:
    std::exception_ptr error_;
    std::size_t who_ = 0; // was the first with whom it went wrong
};

} // namespace gpipe::detail
