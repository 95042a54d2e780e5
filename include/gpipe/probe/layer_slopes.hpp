#pragma once

#include <gpipe/core/finite.hpp>
#include <gpipe/layer/random.hpp>
#include <gpipe/probe/layer_probe.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

namespace gpipe::detail {

/// A derivative by central differences.
struct Slope {
    double value = 0;
    /// By how much it may be off, about: what two widths disagree by, what the function bends
    /// unlike a parabola, and what rounding may do. Large where the function has a kink.
    double doubt = std::numeric_limits<double>::infinity();
    /// What rounding may hide where outputs do not change: all of the slope, or nothing of it if
    /// they do not depend on what is moved.
    double hidden = 0;
    bool moved = false; ///< whether all that was moved has, by about as much as it was told to

    /// The largest error that is to be expected; of one kink it is at most 2/3 of the doubt.
    double margin() const { return 3 * (doubt + hidden); }
    /// Whether it is known to this relative error, about.
    bool within(double error) const { return doubt + hidden <= error * std::abs(value); }
};

/// A layer, or the loss, as a function from what it is given to one number: the sum of its outputs
/// times fixed random numbers, which are given to its backward as gradients of its outputs, or the
/// loss's sum. Sums are of doubles, and of what a change reaches only.
template <class Bench> class LayerSlopes {
    using Probe = LayerProbe<Bench>;
    using Place = typename Probe::Place;

  public:
    LayerSlopes(Probe& probe, std::uint64_t seed)
        : probe_(probe), seed_(seed), epsilon_(probe.epsilon()) {
        InitialRandom random(seed, 0, 0);
        for (std::size_t p = 0; p < Probe::parts; ++p) {
            probe.forward(p, base_[p]);
            weights_[p].assign(base_[p].size(), 1);
            if (probe.is_loss()) continue;
            for (double& weight : weights_[p])
                weight = random.uniform(0.5, 1.5) * (random() % 2 ? 1 : -1);
            probe.set_output_gradients(p, weights_[p]);
        }
    }

    /// Whether all that the layer gives is finite; else `p` and `output` tell where not.
    bool finite(std::size_t& p, std::size_t& output) const {
        for (p = 0; p < Probe::parts; ++p)
            for (output = 0; output < base_[p].size(); ++output)
                if (!is_finite(base_[p][output])) return false;
        return true;
    }
    double base(std::size_t p, std::size_t output) const { return base_[p][output]; }

    /// Along all entries of a tensor: which way entry `i` goes, 1 or -1.
    double direction(std::size_t way, std::size_t i) const {
        RandomWords const words =
            philox({static_cast<std::uint32_t>(i / 32), static_cast<std::uint32_t>(i >> 37),
                    static_cast<std::uint32_t>(way), 1},
                   seed_);
        return words[0] >> (i % 32) & 1 ? 1 : -1;
    }

    /// The derivative by an element, or along a direction: at the width, of several, at which it
    /// is least in doubt. Widths are relative to `scale`; where those leave it in doubt, as those
    /// of a bias that is all but nothing do, whose changes rounding hides, also to 1. `stretch`
    /// times as wide they see something else of what is rounded.
    Slope along(Place place, std::size_t way, double scale, double stretch = 1) {
        double const well = std::sqrt(epsilon_);
        Slope best;
        each_width(place, way, widths(stretch * scale), [&](Slope const& slope) {
            if (slope.margin() < best.margin()) best = slope;
            return !best.within(1e-3 * well);
        });
        if (scale >= 1 || best.within(well)) return best;
        each_width(place, way, widths(stretch), [&](Slope const& slope) {
            // The function may be flat so far away, where a slope of little is little in doubt.
            if (slope.within(0.1) && slope.margin() < best.margin()) best = slope;
            return !best.within(1e-3 * well);
        });
        return best;
    }
    /// What a backward gives is right, too, where two widths in a row, ever narrower, see it, to
    /// this relative error: a norm of values that are all but equal is steep within the widths of
    /// along() and flat beyond, which leaves little in doubt there. (What is rounded may look like
    /// anything once, but not twice. Where some of many entries are too large to move, all widths
    /// see the others alone: there it ends.)
    std::optional<Slope> nearer(Place place, std::size_t way, double scale, double given,
                                double error) {
        // Powers of two, by which floats of a like size are moved as they are told.
        std::vector<double> widths;
        int const first = std::ilogb(middle(scale)) - 1;
        for (int e = first; e > first - 30; e -= 2) widths.push_back(std::ldexp(1.0, e));
        std::optional<Slope> found;
        bool agreed = false;
        each_width(place, way, widths, [&](Slope const& slope) {
            double const least = std::min(std::abs(given), std::abs(slope.value));
            bool const agrees = std::abs(given - slope.value) < error * least;
            if (agrees && agreed && slope.moved) found = slope;
            agreed = agrees;
            return !found && slope.moved;
        });
        return found;
    }

  private:
    struct Change {
        double sum = 0;
        double noise = 0;  ///< of rounding, squared
        double hidden = 0; ///< likewise, of what has not changed
        double step = 0;
        bool moved = true;        ///< see Slope
        std::vector<double> each; ///< the sum's terms, by output
    };

    // About the fourth root of the elements' precision what is left out of the series and what is
    // rounded are about as small. To each width belongs another, twice as wide.
    double middle(double scale) const { return scale * std::sqrt(std::sqrt(epsilon_)); }
    std::vector<double> widths(double scale) const {
        double const h = middle(scale);
        return {h, 4 * h, 0.25 * h, 0.0625 * h, 16 * h};
    }
    template <class F>
    void each_width(Place place, std::size_t way, std::vector<double> const& widths, F f) {
        std::vector<double> from;
        Place entry = place;
        if (place.entry == Probe::whole) {
            for (entry.entry = 0; entry.entry < probe_.size(place); ++entry.entry)
                from.push_back(probe_.value(entry));
        } else {
            from.push_back(probe_.value(place));
        }
        auto const move = [&](double step) {
            if (place.entry != Probe::whole) return probe_.set(place, from[0] + step) - from[0];
            probe_.set_all(place, from, step, [&](std::size_t i) { return direction(way, i); });
            return step;
        };
        auto const change = [&](double step) {
            Change result = changed(place, move(step));
            Place at = place;
            for (at.entry = 0; at.entry < from.size() && place.entry == Probe::whole; ++at.entry)
                if (double const told = from[at.entry] + step * direction(way, at.entry);
                    std::abs(probe_.value(at) - told) > std::abs(step) / 1024)
                    result.moved = false;
            return result;
        };
        for (double const h : widths)
            if (!f(slope(change(h), change(-h), change(2 * h), change(-2 * h)))) break;
        move(0);
    }

    static Slope slope(Change const& right, Change const& left, Change const& far_right,
                       Change const& far_left) {
        auto const slope_of = [](Change const& a, Change const& b) {
            return (a.sum - b.sum) / (a.step - b.step);
        };
        // What the slopes of the two sides differ by grows as the width if the function is smooth.
        // Of many kinks, as all units of a layer at zero, the signs may hide most from the sum.
        double bend = 0, bends = 0;
        for (std::size_t i = 0; i < right.each.size(); ++i) {
            auto const differ = [i](Change const& a, Change const& b) {
                return a.each[i] / a.step - b.each[i] / b.step;
            };
            double const kink = differ(far_right, far_left) - 2 * differ(right, left);
            bend += kink;
            bends += kink * kink;
        }
        double const near = slope_of(right, left);
        double const far = slope_of(far_right, far_left);
        double const width = right.step - left.step;
        double const noise = std::sqrt(right.noise + left.noise) / width;
        double const hidden = std::sqrt(right.hidden + left.hidden) / width;
        return {(4 * near - far) / 3,
                std::abs(near - far) + std::max(std::abs(bend), std::sqrt(bends)) + noise, hidden,
                right.moved && left.moved && far_right.moved && far_left.moved};
    }

    Change changed(Place place, double step) {
        Change change;
        change.step = step;
        std::size_t const reached = probe_.reached(place);
        for (std::size_t p = 0; p < Probe::parts; ++p) {
            if (reached != Probe::parts && reached != p) continue;
            probe_.forward(p, now_);
            for (std::size_t i = 0; i < now_.size(); ++i) {
                double const weight = weights_[p][i];
                double const rounded = weight * epsilon_ / std::sqrt(12.0) * now_[i];
                bool const same = now_[i] == base_[p][i];
                (same ? change.hidden : change.noise) += rounded * rounded;
                change.each.push_back(weight * (now_[i] - base_[p][i]));
                change.sum += change.each.back();
            }
        }
        return change;
    }

    Probe& probe_;
    std::uint64_t seed_;
    double epsilon_;
    std::vector<double> base_[Probe::parts];    ///< what the layer gives
    std::vector<double> weights_[Probe::parts]; ///< what that is multiplied by
    std::vector<double> now_;
};

} // namespace gpipe::detail
