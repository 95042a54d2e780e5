#pragma once

#include <gpipe/core/version.hpp>
#include <gpipe/device/bell.hpp>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <exception>
#include <functional>
#include <future>
#include <memory>
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

/// A state that is being written. May be dropped, and outlive its training. Used by the training's
/// thread.
class PendingSave {
  public:
    /// What who writes and who waits know of each other.
    struct Course {
        /// How long a rank waits for a file of another of which nothing is there; twelve times that
        /// for one that is being written. From the last that it saw of them.
        std::atomic<std::chrono::seconds> patience{std::chrono::seconds(60)};
        std::atomic<bool> failed{false};  ///< whether it has
        RankLoss loss;                    ///< for as long as there is the training
        std::atomic<bool> begun{false};   ///< whether it is to be written
        std::atomic<bool> decided{false}; ///< that it is, or never will be
        detail::Bell bell;                ///< of that
    };

    /// One that has nothing to do.
    PendingSave() : writing_(std::make_shared<Writing>()) {}
    /// All copies are of one: what another is moved from is one of them, too.
    ///@{
    PendingSave(PendingSave const&) = default;
    PendingSave& operator=(PendingSave const&) = default;
    ///@}

    /// Whether wait() will not wait.
    bool ready() const {
        return !writing_->result.valid() ||
               writing_->result.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
    }
    /// Returns when the state is saved; on one of several ranks its part, on the first all. Throws
    /// what was wrong with that, once.
    void wait() {
        if (!heard()) wait_again();
    }
    /// Likewise, what wait() has thrown already, too.
    void wait_again() {
        writing_->heard = true;
        if (writing_->result.valid()) writing_->result.get();
    }
    /// Whether anybody has waited.
    bool heard() const { return writing_->heard; }
    /// Whether something was wrong, as far as that is known.
    bool failed() const { return writing_->course->failed; }
    /// Does not wait for other ranks any more.
    void give_up() { writing_->course->patience = std::chrono::seconds(0); }

    /// What its thread looks at.
    std::shared_ptr<Course> const& course() const { return writing_->course; }

    /// That a thread of its own calls write(course), once begin() says so: never, if all copies go
    /// before. `ask`: of several ranks, see RankLoss.
    ///@{
    template <class Write> static PendingSave prepare(Write write, RankLoss::Ask ask = {}) {
        auto writing = std::make_shared<Writing>();
        writing->course->loss.begin(std::move(ask));
        auto run = [course = writing->course, write = std::move(write)] {
            course->bell.wait([&] { return course->decided.load(); });
            if (!course->begun) return;
            try {
                write(std::as_const(*course));
            } catch (...) {
                course->failed = true;
                throw;
            }
        };
        writing->result = std::async(std::launch::async, std::move(run));
        return PendingSave(std::move(writing));
    }
    void begin() noexcept { writing_->decide(true); }
    ///@}

  private:
    struct Writing {
        std::shared_ptr<Course> course = std::make_shared<Course>();
        std::shared_future<void> result;
        bool heard = false;

        Writing() = default;
        Writing(Writing const&) = delete;
        Writing& operator=(Writing const&) = delete;
        void decide(bool begins) noexcept {
            if (course->decided) return;
            course->begun = begins;
            course->decided = true;
            course->bell.ring();
        }
        ~Writing() {
            decide(false);
            course->patience = std::chrono::seconds(5); // others may be gone
            try {
                if (!heard && result.valid()) result.get();
            } catch (std::exception const& error) {
                std::fprintf(stderr, "%s\n", error.what());
            }
        }
    };
    explicit PendingSave(std::shared_ptr<Writing> writing) : writing_(std::move(writing)) {}

    std::shared_ptr<Writing> writing_;
};

} // namespace gpipe
