#pragma once

// Choices of everything at once, so few that a test can try them all, in which any two levels of
// any two factors stand together once at least.

#include <algorithm>
#include <cstddef>
#include <functional>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

namespace toy {

/// A level of each factor.
using Choice = std::vector<std::size_t>;
/// None yet.
inline constexpr std::size_t undecided = static_cast<std::size_t>(-1);

/// Deals such choices, each by greed: of some that are made by chance the one with most pairs that
/// none before had.
class Covering {
  public:
    /// What speaks against a choice, some of which may be undecided; null: nothing so far.
    using Refused = std::function<char const*(Choice const&)>;

    /// `levels`: how many each factor has.
    Covering(std::vector<std::size_t> levels, Refused refused, std::size_t seed)
        : levels_(std::move(levels)), refused_(std::move(refused)), random_(seed),
          first_(levels_.size()) {
        std::exclusive_scan(levels_.begin(), levels_.end(), first_.begin(), std::size_t{0});
        std::size_t const all = first_.back() + levels_.back();
        wanted_.assign(all, std::vector<bool>(all));
        dealt_.assign(all, 0);
        std::vector<bool> bound(levels_.size());
        each_pair([&](Pair const& pair) {
            if (refused_(with(pair))) bound[pair.a] = bound[pair.b] = true;
        });
        for (bool const first : {true, false})
            for (std::size_t f = 0; f < levels_.size(); ++f)
                if (bound[f] == first) decided_.push_back(f);
        each_pair(
            [&](Pair const& pair) { (completes(with(pair)) ? left_ : never_).push_back(pair); });
        for (Pair const& pair : left_) want(pair, true);
        had_ = left_.size();
    }

    /// The next; from when there are all pairs on any.
    Choice next() {
        Choice best;
        std::size_t most = 0;
        for (std::size_t tries = left_.empty() ? 1 : 20; best.empty() || tries-- > 0;)
            if (auto [choice, gain] = any(); !choice.empty() && (best.empty() || gain > most)) {
                best = std::move(choice);
                most = gain;
            }
        for (std::size_t f = 0; f < best.size(); ++f) ++dealt_[first_[f] + best[f]];
        std::erase_if(left_, [&](Pair const& pair) {
            bool const seen = best[pair.a] == pair.i && best[pair.b] == pair.j;
            if (seen) want(pair, false);
            return seen;
        });
        return best;
    }

    struct Pair {
        std::size_t a, i, b, j; ///< level i of factor a, and j of b
    };
    /// Those that no choice had yet, those that no choice can have, and how many there are else.
    ///@{
    std::vector<Pair> const& left() const { return left_; }
    std::vector<Pair> const& never() const { return never_; }
    std::size_t to_be_had() const { return had_; }
    ///@}
    /// A choice of two levels and nothing else.
    Choice with(Pair const& pair) const {
        Choice choice(levels_.size(), undecided);
        choice[pair.a] = pair.i;
        choice[pair.b] = pair.j;
        return choice;
    }

  private:
    void want(Pair const& pair, bool wanted) {
        std::size_t const x = first_[pair.a] + pair.i, y = first_[pair.b] + pair.j;
        wanted_[x][y] = wanted_[y][x] = wanted;
    }
    template <class F> void each_pair(F f) const {
        for (std::size_t a = 0; a < levels_.size(); ++a)
            for (std::size_t b = 0; b < a; ++b)
                for (std::size_t i = 0; i < levels_[a] * levels_[b]; ++i)
                    f(Pair{a, i % levels_[a], b, i / levels_[a]});
    }
    // Whether what is undecided can be decided.
    bool completes(Choice choice) const {
        if (refused_(choice)) return false;
        auto const at = std::find_if(decided_.begin(), decided_.end(),
                                     [&](std::size_t f) { return choice[f] == undecided; });
        if (at == decided_.end()) return true;
        for (std::size_t i = 0; i < levels_[*at]; ++i) {
            choice[*at] = i;
            if (completes(choice)) return true;
        }
        return false;
    }
    // How many wanted pairs a level has with those that are chosen.
    std::size_t gain(Choice const& choice, std::size_t factor, std::size_t level) const {
        std::vector<bool> const& row = wanted_[first_[factor] + level];
        std::size_t count = 0;
        for (std::size_t f = 0; f < choice.size(); ++f)
            count += choice[f] != undecided && row[first_[f] + choice[f]];
        return count;
    }
    // One around a wanted pair, the other factors in any order, each as it gains most, of levels
    // that gain as much the one that was dealt least; and how much that is. None where it has come
    // to nothing.
    std::pair<Choice, std::size_t> any() {
        Choice choice(levels_.size(), undecided);
        std::size_t total = 0;
        if (!left_.empty()) choice = with(left_[random_() % left_.size()]);
        std::vector<std::size_t> order(levels_.size());
        std::iota(order.begin(), order.end(), std::size_t{0});
        for (std::size_t n = order.size(); n > 1; --n)
            std::swap(order[n - 1], order[random_() % n]);
        for (std::size_t const f : order) {
            if (choice[f] != undecided) continue;
            std::size_t best = undecided, most = 0;
            std::size_t const start = random_() % levels_[f];
            for (std::size_t i = 0; i < levels_[f]; ++i) {
                choice[f] = (start + i) % levels_[f];
                if (refused_(choice)) continue;
                std::size_t const level = std::exchange(choice[f], undecided);
                std::size_t const count = gain(choice, f, level);
                if (best != undecided &&
                    (count < most ||
                     (count == most && dealt_[first_[f] + level] >= dealt_[first_[f] + best])))
                    continue;
                best = level;
                most = count;
            }
            choice[f] = best;
            if (best == undecided) return {};
            total += most;
        }
        return {choice, total};
    }

    std::vector<std::size_t> levels_;
    Refused refused_;
    std::mt19937_64 random_;
    std::vector<std::size_t> first_;   // of each factor's levels, among those of all
    std::vector<std::size_t> decided_; // factors in turn, first those that do not go with all
    std::vector<std::vector<bool>> wanted_;
    std::vector<std::size_t> dealt_;
    std::vector<Pair> left_, never_;
    std::size_t had_ = 0;
};

} // namespace toy
