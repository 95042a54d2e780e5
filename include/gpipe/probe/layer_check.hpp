#pragma once

#include <gpipe/core/finite.hpp>
#include <gpipe/core/split.hpp>
#include <gpipe/layer/random.hpp>
#include <gpipe/probe/gradient_report.hpp>
#include <gpipe/probe/layer_slopes.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace gpipe::detail {

// The check of one layer, or of the loss.
template <class Bench> class LayerCheck {
    using Probe = LayerProbe<Bench>;
    using Place = typename Probe::Place;
    using Way = typename Probe::Way;

  public:
    LayerCheck(Probe& probe, std::size_t layer, std::string_view name,
               GradientCheckOptions const& options)
        : probe_(probe), layer_(layer), name_(name), options_(options),
          slopes_(probe, options.seed + layer),
          tolerance_(options.tolerance > 0 ? options.tolerance
                                           : std::min(16 * std::sqrt(probe.epsilon()), 0.25)) {}

    void add_to(GradientReport& report) {
        std::size_t part = 0, output = 0;
        if (!slopes_.finite(part, output)) {
            GradientRow row = empty_row(probe_.is_loss() ? "sum" : "output");
            row.entry = std::to_string(output) + " of micro-batch " + std::to_string(part);
            row.analytic = row.numeric = slopes_.base(part, output);
            row.fault = Probe::is_rubbish(row.numeric)
                            ? "forward does not write it, or reads what is unwritten"
                            : "forward gives no number";
            return report.rows.push_back(std::move(row));
        }
        for (Way const way : {Way::backward, Way::halves, Way::without_input})
            if (probe_.has(way)) add_gradients(way);
        for (bool const input : {true, false})
            for (std::size_t t = 0;
                 t < (input ? probe_.elements().takes : probe_.elements().parameters).size(); ++t)
                if (Place const place{input, t};
                    (input || probe_.learns(t)) && probe_.size(place) > 0)
                    report.rows.push_back(row_of(place));
        if (probe_.is_loss() && !report.rows.empty() && report.rows.back().layer == layer_)
            report.rows.back().note = of_weights();
    }

  private:
    // What one way to the gradients gives, tensor by tensor.
    struct Gradients {
        Way way;
        bool again; ///< added to those that were there before
        std::vector<std::vector<double>> parameters, inputs;
    };
    // An entry, or a direction, with its derivative.
    struct Look {
        Place place;
        std::size_t way = 0;
        Slope slope;
    };

    GradientRow empty_row(std::string tensor) const {
        GradientRow row;
        row.layer = layer_;
        row.name = name_;
        row.tensor = std::move(tensor);
        return row;
    }

    // A mean with a weight of 1 is right as long as all micro-batches have one size.
    std::string of_weights() const {
        std::size_t const first = probe_.part_samples(0), second = probe_.part_samples(1);
        if (first == second || probe_.weight(0) != probe_.weight(1)) return {};
        char text[160];
        std::snprintf(
            text, sizeof text,
            "the weight is %g for %zu samples and for %zu: those of smaller micro-batches "
            "count more",
            probe_.weight(0), first, second);
        return text;
    }

    void add_gradients(Way way) {
        Gradients first{way, false, {}, {}};
        Gradients second{way, true, {}, {}};
        probe_.clear_gradients();
        for (Gradients* const to : {&first, &second}) {
            probe_.backward(way);
            for (std::size_t t = 0; t < probe_.elements().parameters.size(); ++t)
                to->parameters.push_back(probe_.learns(t) ? probe_.gradients({false, t})
                                                          : std::vector<double>());
            for (std::size_t t = 0; t < probe_.elements().takes.size(); ++t)
                to->inputs.push_back(way != Way::without_input && probe_.size({true, t}) > 0
                                         ? probe_.gradients({true, t})
                                         : std::vector<double>());
        }
        for (std::size_t t = 0; t < first.parameters.size(); ++t)
            for (std::size_t i = 0; i < first.parameters[t].size(); ++i)
                second.parameters[t][i] -= first.parameters[t][i];
        gradients_.push_back(std::move(first));
        gradients_.push_back(std::move(second));
    }
    std::vector<double> const& values(Gradients const& of, Place place) const {
        return (place.input ? of.inputs : of.parameters)[place.tensor];
    }
    double analytic(Gradients const& of, Look const& look) const {
        std::vector<double> const& all = values(of, look.place);
        if (look.place.entry != Probe::whole) return all[look.place.entry];
        double sum = 0;
        for (std::size_t i = 0; i < all.size(); ++i) sum += slopes_.direction(look.way, i) * all[i];
        return sum;
    }

    // One entry of each of as many parts of the tensor, the two largest gradients, two directions.
    std::vector<Look> looks(Place place) const {
        std::size_t const size = probe_.size(place);
        std::size_t const count = std::min(size, std::max<std::size_t>(options_.entries, 1));
        std::vector<std::size_t> entries;
        InitialRandom random(options_.seed, static_cast<std::uint32_t>(layer_),
                             static_cast<std::uint32_t>(2 * place.tensor + place.input));
        for (std::size_t n = 0; n < count; ++n) {
            auto const [first, width] = Split(size, count)[n];
            entries.push_back(n == 0 ? 0 : n + 1 == count ? size - 1 : first + random() % width);
        }
        if (count < size) {
            std::vector<double> const& all = values(gradients_[0], place);
            auto const larger = [&](std::size_t i, std::size_t j) {
                return std::abs(all[i]) > std::abs(all[j]);
            };
            std::size_t largest[2] = {0, 1};
            if (larger(1, 0)) std::swap(largest[0], largest[1]);
            for (std::size_t i = 2; i < size; ++i) {
                if (!larger(i, largest[1])) continue;
                largest[1] = i;
                if (larger(i, largest[0])) std::swap(largest[0], largest[1]);
            }
            entries.insert(entries.end(), largest, largest + 2);
        }
        std::vector<Look> result;
        for (std::size_t const entry : entries)
            result.push_back({{place.input, place.tensor, entry}, 0, {}});
        for (std::size_t way = 0; way < 2; ++way) result.push_back({place, way, {}});
        return result;
    }

    GradientRow row_of(Place place) {
        std::size_t const inputs = probe_.elements().inputs;
        bool const popped = place.input && place.tensor >= inputs;
        GradientRow row = empty_row((popped        ? "popped "
                                     : place.input ? "input "
                                                   : "parameter ") +
                                    std::to_string(place.tensor - popped * inputs));
        double squares = 0;
        std::size_t const size = probe_.size(place);
        Place entry = place;
        for (entry.entry = 0; entry.entry < size; ++entry.entry)
            squares += probe_.value(entry) * probe_.value(entry);
        double const typical = squares > 0 ? std::sqrt(squares / static_cast<double>(size)) : 1;
        auto const scale = [&](Look const& look) {
            return look.place.entry == Probe::whole
                       ? typical
                       : std::max(typical, std::abs(probe_.value(look.place)));
        };
        std::vector<Look> all = looks(place);
        double slopes = 0;
        std::size_t finite = 0;
        for (Look& look : all) {
            look.slope = slopes_.along(look.place, look.way, scale(look));
            if (look.place.entry == Probe::whole || !is_finite(look.slope.doubt)) continue;
            // What is but noise would make little of the errors of all others.
            if (look.slope.within(1)) slopes += look.slope.value * look.slope.value;
            ++finite;
        }
        double const usual = finite ? std::sqrt(slopes / static_cast<double>(finite)) : 0;
        double farthest = -1;
        for (Look const& look : all) {
            bool const one = look.place.entry != Probe::whole;
            double const other = one ? usual : usual * std::sqrt(static_cast<double>(size));
            auto const size_of = [&](double a, Slope const& slope) {
                return std::max({is_finite(a) ? std::abs(a) : 0, std::abs(slope.value), other});
            };
            auto const wrong = [&](double a, Slope const& slope) {
                double const allowed = tolerance_ * size_of(a, slope) + slope.margin();
                return !is_finite(a) || std::abs(a - slope.value) > allowed;
            };
            bool seen = false, faulty = false;
            for (Gradients const& gradients : gradients_) {
                if (values(gradients, place).empty()) continue;
                double const a = analytic(gradients, look);
                Slope slope = look.slope;
                bool fault = wrong(a, slope);
                // Two widths may agree by chance where rounding is all that they see.
                for (double const stretch : {1.37, 0.71})
                    fault = fault &&
                            wrong(a, slopes_.along(look.place, look.way, scale(look), stretch));
                if (fault)
                    if (auto const nearer =
                            slopes_.nearer(look.place, look.way, scale(look), a, tolerance_)) {
                        fault = false;
                        slope = *nearer;
                    }
                double const largest = size_of(a, slope);
                double const error =
                    largest > 0 ? std::abs(a - slope.value) / largest : std::abs(a);
                // In much doubt, what a wrong factor would do could not be told from what is right;
                // in less an error is not right because it might be the doubt's. (A slope of
                // nothing that backward gives as nothing is seen.)
                double const margin = a != 0 && slope.value == 0 ? slope.margin() : 3 * slope.doubt;
                bool const clear = margin <= std::clamp(tolerance_, 1.0 / 64, 0.25) * largest;
                if (!fault && !(clear && error <= tolerance_)) continue;
                seen = true;
                bool const first = fault && row.fault.empty();
                faulty = faulty || fault;
                if (!first && (fault != !row.fault.empty() || error <= farthest)) continue;
                farthest = error;
                row.entry = name_of(look.place);
                row.analytic = a;
                row.numeric = slope.value;
                row.error = is_finite(error) ? error : HUGE_VAL;
                if (first) row.fault = words(gradients, look, a);
            }
            row.checked += seen;
            row.left_out += !seen;
        }
        return row;
    }
    std::string name_of(Place place) const {
        if (place.entry == Probe::whole) return "a sum over all";
        if (!place.input) return std::to_string(place.entry);
        std::size_t const count = probe_.elements().takes[place.tensor].count;
        return std::to_string(place.entry % count) + " of sample " +
               std::to_string(place.entry / count);
    }
    std::string_view words(Gradients const& found, Look const& look, double a) const {
        if (look.place.input && Probe::is_rubbish(a))
            return "backward does not write it, or reads what is unwritten";
        if (!is_finite(a)) return "backward gives no number";
        for (Gradients const& gradients : gradients_)
            if (!look.place.input && gradients.again && gradients.way == found.way &&
                analytic(gradients, look) == 0 && look.slope.value != 0)
                return "backward does not add to it";
        if (found.way == Way::halves) return "the halves of backward give something else";
        if (found.way == Way::without_input) return "backward without dx gives something else";
        return "backward gives something else";
    }

    Probe& probe_;
    std::size_t layer_;
    std::string_view name_;
    GradientCheckOptions options_;
    LayerSlopes<Bench> slopes_;
    double tolerance_;
    std::vector<Gradients> gradients_; ///< the first of them: of the whole backward
};

} // namespace gpipe::detail
