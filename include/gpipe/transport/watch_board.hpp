#pragma once

#include <gpipe/core/clock.hpp>
#include <gpipe/core/error.hpp>
#include <gpipe/transport/watch_line.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace gpipe::detail {

/// What a rank knows of all, and who of them is lost by that. Times are of seconds_now().
class WatchBoard {
  public:
    /// What is known of a rank.
    struct Rank {
        WatchPlace place;      ///< that was heard of last
        double heard = 0;      ///< when
        bool left = false;     ///< whether it has said farewell
        double ended = 0;      ///< when its connection has; 0: it has not
        bool answered = false; ///< that it knows that somebody is lost
    };
    /// Who is lost, if anybody is.
    struct Verdict {
        bool exists = false;
        int rank = WatchPlace::nobody; ///< nobody: all wait for each other
        std::size_t by = 0;            ///< who found out
        double since = 0;              ///< when this one heard of it
        std::string words;             ///< that go on from the rank's number
    };

    /// Of so many ranks, all of which have been heard just now.
    WatchBoard(std::size_t self, std::size_t count)
        : ranks(count), self_(self), since_(seconds_now()) {
        for (Rank& rank : ranks) rank.heard = since_;
    }

    std::vector<Rank> ranks; ///< by number; of this one the place alone

    /// Who is lost.
    Verdict const& verdict() const { return verdict_; }
    /// Where this one is now.
    void note_own(WatchPlace const& now) {
        WatchPlace& own = ranks[self_].place;
        if (!same(now, own)) {
            own = now;
            since_ = seconds_now();
        }
        own.held = static_cast<std::uint32_t>(1000 * (seconds_now() - since_));
    }
    /// That a rank is lost, as rank `by` has found out. Of what several find out at the same time
    /// that of the lowest stays: each tells all of what it found, and nothing once it has heard of
    /// another's. Returns whether it is the first that is heard of it.
    bool judge(int rank, std::size_t by, char const* words) {
        bool const is_first = !verdict_.exists;
        if (is_first || (by < verdict_.by && by != self_))
            verdict_ = {true, rank, by, is_first ? seconds_now() : verdict_.since, words};
        return is_first;
    }
    /// Finds out who keeps this one, which has waited too long: at the end of the chain of those
    /// who wait for each other, or silent.
    bool blame(int rank) {
        for (std::size_t n = 0; n <= ranks.size(); ++n) {
            if (rank == WatchPlace::everybody) rank = first_elsewhere();
            if (rank == WatchPlace::nobody) break;
            Rank const& who = ranks[static_cast<std::size_t>(rank)];
            if (static_cast<std::size_t>(rank) != self_ && silence(rank) > 1)
                return judge_silent(rank);
            if (who.place.waits_for == WatchPlace::nobody) {
                Message const words("has not gone on for %.1f s", who.place.held / 1000.0);
                return judge(rank, self_, words.text);
            }
            rank = who.place.waits_for;
        }
        // Or one that has been stopped when it waited itself.
        return find_silent(1) || judge(WatchPlace::nobody, self_, "wait for each other");
    }
    /// Likewise a rank that has ended, without a farewell, for longer than this.
    bool find_ended(double patience) {
        for (std::size_t r = 0; r < ranks.size(); ++r)
            if (ranks[r].ended > 0 && !ranks[r].left && seconds_now() - ranks[r].ended >= patience)
                return judge(static_cast<int>(r), self_, "has ended");
        return false;
    }
    /// Likewise a rank that has been silent for longer than this, if there is one.
    bool find_silent(double deadline) {
        for (std::size_t r = 0; r < ranks.size(); ++r)
            if (r != self_ && is_there(r) && silence(static_cast<int>(r)) > deadline)
                return judge_silent(static_cast<int>(r));
        return false;
    }
    /// Whether all who live have said that they know of the verdict: not who is lost, unless it has
    /// found that out itself, which others may tell first.
    bool all_know() const {
        for (std::size_t r = 0; r < ranks.size(); ++r) {
            bool const may_be_silent = static_cast<int>(r) == verdict_.rank && r != verdict_.by;
            if (r != self_ && is_there(r) && !may_be_silent && !ranks[r].answered) return false;
        }
        return true;
    }
    /// All of it: a line of who is lost, and one for each rank.
    std::string report() const {
        std::string text = verdict_.rank == WatchPlace::nobody
                               ? "gpipe: all ranks"
                               : "gpipe: rank " + std::to_string(verdict_.rank);
        text += " " + verdict_.words;
        for (std::size_t r = 0; r < ranks.size(); ++r) {
            Rank const& rank = ranks[r];
            text += "\n  rank " + std::to_string(r);
            if (rank.left)
                text += " has left";
            else if (rank.ended > 0 || static_cast<int>(r) == verdict_.rank)
                text += ", as last heard, was " + rank.place.text();
            else
                text += " was " + rank.place.text();
        }
        return text;
    }

  private:
    bool is_there(std::size_t r) const { return !ranks[r].left && ranks[r].ended == 0; }
    double silence(int rank) const {
        return seconds_now() - ranks[static_cast<std::size_t>(rank)].heard;
    }
    bool judge_silent(int rank) {
        Message const words("has been silent for %.1f s", silence(rank));
        return judge(rank, self_, words.text);
    }
    // Another who does not wait for everybody, too.
    int first_elsewhere() const {
        for (std::size_t r = 0; r < ranks.size(); ++r)
            if (r != self_ && !ranks[r].left && ranks[r].place.waits_for != WatchPlace::everybody)
                return static_cast<int>(r);
        return WatchPlace::nobody;
    }

    std::size_t self_;
    double since_; // has this one been where it is
    Verdict verdict_;
};

} // namespace gpipe::detail
