#pragma once

#include <gpipe/core/clock.hpp>
#include <gpipe/core/error.hpp>
#include <gpipe/plan/ranks.hpp>
#include <gpipe/schedule/action.hpp>
#include <gpipe/transport/watch_board.hpp>
#include <gpipe/transport/watch_line.hpp>
#include <gpipe/transport/watch_mesh.hpp>

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <sys/eventfd.h>

namespace gpipe {

/// Has each of several processes know at once when another is lost, which neither MPI nor NCCL
/// tells: a thread in each, a TCP connection between any two, and twenty times a second a message
/// that says where the rank is in its step.
/// - A connection that ends without a farewell: its process has ended. A fifth of a second later,
///   so that all hear the cause that they have agreed on, where one of them ends by that.
/// - Silence for longer than the deadline: it is stopped, or its host is gone.
/// - Somebody has waited for longer than the deadline, and all are alive: whoever is at the end of
///   the chain of those who wait for each other has not gone on.
///
/// Whoever finds out first tells the others, so that all name the same cause, and for each rank
/// where it was: of the lost one what was last heard. For at most 64 ranks, for connections and
/// messages grow with their square.
class Watch {
    using Word = detail::WatchMessage::Word;
    using Place = detail::WatchPlace;

  public:
    static constexpr std::size_t most_ranks = gpipe::most_ranks; ///< more are refused
    static constexpr int nobody = Place::nobody;                 ///< in place of a rank
    static constexpr int everybody = Place::everybody;           ///< likewise

    /// Throws std::invalid_argument for more than 64.
    static void check(std::size_t ranks) {
        if (ranks > most_ranks)
            detail::throw_error<std::invalid_argument>(
                "gpipe: %zu ranks are more than the %zu that can watch each other", ranks,
                most_ranks);
    }
    /// All ranks make one at once. `deadline`: seconds; `address`: where to listen, a name or
    /// number, by default the loopback or, on several hosts, the first other interface; `exchange`:
    /// see detail::WatchMesh. Throws std::invalid_argument for more than 64 ranks, and as that
    /// does.
    template <class Exchange>
    Watch(std::size_t rank, std::size_t ranks, double deadline, std::string const& address,
          Exchange exchange)
        : self_(rank), deadline_(deadline), lines_(ranks), board_(rank, ranks) {
        check(ranks);
        if (ranks == 1) return;
        wake_ = detail::Descriptor(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
        if (!wake_) throw std::runtime_error("gpipe: ranks cannot watch each other: no eventfd");
        detail::WatchMesh mesh(rank, ranks, deadline, address, exchange);
        for (std::size_t r = 0; r < ranks; ++r)
            lines_[r] = detail::WatchLine(std::move(mesh.ways[r]));
        board_ = {rank, ranks};
        detail::WithoutSignals const without_signals; // which are for the program's own threads
        thread_ = std::thread([this] { run(); });
    }
    Watch(Watch const&) = delete;
    Watch& operator=(Watch const&) = delete;
    ~Watch() {
        if (!thread_.joinable()) return;
        stops_.store(true);
        wake();
        thread_.join();
    }

    /// Where this rank is: at an action, after so many steps; or at none.
    ///@{
    void note(std::uint64_t steps, Kind kind, std::uint32_t cell,
              std::uint32_t micro_batch) noexcept {
        steps_.store(steps, std::memory_order_relaxed);
        action_.store(Place::pack(kind, cell, micro_batch), std::memory_order_relaxed);
    }
    void rest() noexcept { action_.store(Place::no_action, std::memory_order_relaxed); }
    ///@}
    /// Whom it waits for.
    void wait_for(int rank) noexcept { waits_for_.store(rank, std::memory_order_relaxed); }

    /// Whether a rank is lost, and what is said of that. It stays so.
    ///@{
    bool lost() const noexcept { return lost_.load(std::memory_order_acquire); }
    std::exception_ptr error() const { return lost() ? error_ : nullptr; } // written once
    /// The same as soon as anybody has told: then it waits until all know.
    bool anybody_lost() const noexcept {
        if (told_.load(std::memory_order_acquire)) await_loss();
        return lost();
    }
    ///@}
    /// Tells that a rank is lost, in words that go on from its number. Returns when lost().
    void lose(int rank, char const* words) {
        tell_loss([&] { return board_.judge(rank, self_, words); });
    }
    /// The same where this one has waited for a rank, or for everybody, for longer than the
    /// deadline: finds out who keeps them.
    void overdue(int rank) {
        tell_loss([&] { return board_.blame(rank); });
    }

    /// Tells the others that this rank needs them no more; `good`: that none of them was lost.
    void leave(bool good) {
        std::lock_guard const lock(mutex_);
        leaves_ = true;
        good_ = good_ && good;
        say_all(good ? Word::leaves : Word::leaves_after_loss);
    }
    /// Whether a rank has told so; which one it was of a rank or of everybody, or nobody; whether
    /// all others have, and all that nobody was lost.
    ///@{
    bool has_left(std::size_t rank) const noexcept { return left_.load() >> rank & 1; }
    int first_left(int of) const noexcept {
        for (std::size_t r = 0; r < lines_.size(); ++r)
            if ((of == everybody || of == static_cast<int>(r)) && has_left(r))
                return static_cast<int>(r);
        return nobody;
    }
    bool all_left() const noexcept {
        return static_cast<std::size_t>(std::popcount(left_.load())) + 1 == lines_.size();
    }
    bool good() const {
        std::lock_guard const lock(mutex_);
        return good_;
    }
    ///@}

    /// While there is one this thread is in calls that end only when all ranks are in them: where
    /// one is lost the process ends, with what would be thrown on stderr, and status 1.
    class Section {
      public:
        /// It begins.
        explicit Section(Watch& watch) : watch_(watch) { watch_.enter(detail::seconds_now()); }
        Section(Section const&) = delete;
        Section& operator=(Section const&) = delete;
        ~Section() { watch_.enter(0); }

      private:
        Watch& watch_;
    };

  private:
    double period() const { return std::min(0.05, deadline_ / 10); }
    void wake() noexcept {
        std::uint64_t const one = 1;
        [[maybe_unused]] auto const written = ::write(wake_.get(), &one, sizeof one);
    }
    void enter(double since) {
        std::lock_guard const lock(mutex_);
        section_since_ = since;
        wait_for(since > 0 ? everybody : nobody);
    }
    template <class Tell> void tell_loss(Tell tell) {
        {
            std::lock_guard const lock(mutex_);
            note_own();
            if (tell()) say_all(Word::lost);
            if (!thread_.joinable() && !lost()) settle(); // there are no others
        }
        wake();
        await_loss();
    }
    void await_loss() const noexcept {
        while (!lost()) std::this_thread::sleep_for(std::chrono::microseconds(200));
    }

    void run() {
        std::vector<pollfd> ready(lines_.size() + 1);
        double next = 0, last = detail::seconds_now();
        while (!stops_.load()) {
            for (std::size_t r = 0; r < lines_.size(); ++r)
                ready[r] = {lines_[r].number(), POLLIN, 0};
            ready.back() = {wake_.get(), POLLIN, 0};
            double const pause = std::max(0.0, next - detail::seconds_now());
            ::poll(ready.data(), ready.size(), static_cast<int>(1000 * pause) + 1);
            std::uint64_t count = 0;
            [[maybe_unused]] auto const taken = ::read(wake_.get(), &count, sizeof count);

            std::lock_guard const lock(mutex_);
            double const now = detail::seconds_now();
            bool const was_away = now - std::exchange(last, now) > 1; // this one was stopped
            for (std::size_t r = 0; r < lines_.size(); ++r) {
                if (was_away) board_.ranks[r].heard = now;
                if (lines_[r]) hear(r, now);
            }
            note_own();
            if (!board_.verdict().exists && find_lost(now)) say_all(Word::lost);
            if (board_.verdict().exists && !lost()) settle();
            if (now < next) continue;
            next = now + period();
            if (!leaves_) say_all(Word::lives);
        }
    }

    // What a rank has said. The others are told of a loss at once.
    void hear(std::size_t r, double now) {
        detail::WatchBoard::Rank& rank = board_.ranks[r];
        auto const judge = [&](int who, std::size_t by, char const* words) {
            if (!lost() && board_.judge(who, by, words)) say_all(Word::lost);
        };
        lines_[r].hear([&](detail::WatchMessage const& message) {
            auto const is_rank = [&](int who) { return who < static_cast<int>(lines_.size()); };
            std::int32_t const awaited = message.place.waits_for;
            bool const is_sound = is_rank(message.rank) && message.rank >= nobody &&
                                  is_rank(awaited) && awaited >= everybody;
            if (!is_sound) return judge(static_cast<int>(r), self_, "says what no rank says");
            rank.heard = now;
            rank.place = message.place;
            switch (message.word) {
            case Word::lives:
                return;
            case Word::leaves_after_loss:
                good_ = false;
                [[fallthrough]];
            case Word::leaves:
                rank.left = true;
                left_.fetch_or(std::uint64_t{1} << r);
                return;
            case Word::lost:
                rank.answered = true;
                return judge(message.rank, message.by, message.text);
            }
            judge(static_cast<int>(r), self_, "says what no rank says");
        });
        rank.ended = lines_[r] ? 0 : now;
    }
    bool find_lost(double now) {
        if (board_.find_ended(0.2) || board_.find_silent(deadline_)) return true;
        double const waited = section_since_ > 0 ? now - section_since_ : 0;
        if (int const left = first_left(everybody); left != nobody && waited > 1)
            return board_.judge(left, self_, "has left");
        return waited > deadline_ && board_.blame(everybody);
    }
    // Makes it known here when all who live have answered: then they know, too, and their places
    // are of now. Who is stopped beside who is lost does not answer.
    void settle() {
        if (!board_.all_know() && detail::seconds_now() < board_.verdict().since + 10 * period())
            return;
        std::string const text = board_.report();
        error_ = std::make_exception_ptr(std::runtime_error(text));
        lost_.store(true, std::memory_order_release);
        if (section_since_ == 0) return;
        std::fprintf(stderr, "%s\n", text.c_str());
        // A launcher that sees the end first may drop the words.
        std::this_thread::sleep_for(std::chrono::milliseconds(200));
        std::_Exit(1);
    }

    void note_own() {
        board_.note_own({steps_.load(std::memory_order_relaxed),
                         action_.load(std::memory_order_relaxed),
                         waits_for_.load(std::memory_order_relaxed)});
    }
    void say_all(Word word) {
        note_own();
        detail::WatchBoard::Verdict const& lost = board_.verdict();
        if (lost.exists) told_.store(true, std::memory_order_release); // before others hear of it
        detail::WatchMessage message{word, lost.rank, static_cast<std::uint32_t>(lost.by), 0,
                                     board_.ranks[self_].place};
        std::strncpy(message.text, lost.words.c_str(), sizeof message.text - 1);
        for (detail::WatchLine& line : lines_) line.say(message);
    }

    std::size_t const self_;
    double const deadline_;
    std::atomic<std::uint64_t> steps_{0}, action_{Place::no_action};
    std::atomic<int> waits_for_{nobody};
    std::atomic<std::uint64_t> left_{0}; // a bit for each rank
    std::atomic<bool> told_{false}, lost_{false}, stops_{false};
    std::exception_ptr error_; // of lost_

    mutable std::mutex mutex_;             // of all below
    std::vector<detail::WatchLine> lines_; // by rank; none to itself
    detail::WatchBoard board_;
    double section_since_ = 0; // has it been in a Section, if it is
    bool leaves_ = false, good_ = true;

    detail::Descriptor wake_;
    std::thread thread_;
};

} // namespace gpipe
