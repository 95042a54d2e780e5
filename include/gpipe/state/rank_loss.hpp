#pragma once

#include <gpipe/core/version.hpp>

#include <exception>
#include <functional>
#include <mutex>
#include <utility>

namespace gpipe {

/// Why a rank is lost, if one is, for a thread that may outlive who knows.
class RankLoss {
  public:
    using Ask = std::function<std::exception_ptr()>; ///< RankTransport's error()

    /// Until end() that is asked.
    void begin(Ask ask) {
        std::lock_guard const lock(mutex_);
        ask_ = std::move(ask);
    }
    /// From here on it stays what it is.
    void end() {
        std::lock_guard const lock(mutex_);
        if (ask_) error_ = ask_();
        ask_ = nullptr;
    }
    /// Null if none is.
    std::exception_ptr error() const {
        std::lock_guard const lock(mutex_);
        return ask_ ? ask_() : error_;
    }

  private:
    mutable std::mutex mutex_; // held while it is asked: then who knows is there
    Ask ask_;
    std::exception_ptr error_;
};

} // namespace gpipe
