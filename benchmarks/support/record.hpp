#pragma once

#include "statistics.hpp"

#include "support/json.hpp" // examples/

#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

namespace benchmark {

/// One line of a benchmark's output: which one, parameters by name, then what was compared.
class Record {
  public:
    explicit Record(std::string_view benchmark) { add("benchmark", benchmark); }

    Record& add(std::string_view name, auto value) {
        object_.add(name, value);
        return *this;
    }

    /// Ours against a baseline: single figures.
    Record& compare(std::string_view unit, double ours, std::string_view baseline, double theirs) {
        add("unit", unit).add("ours", ours).add("baseline", baseline).add("theirs", theirs);
        add("ratio", ours / theirs);
        return *this;
    }
    /// Ours against a baseline: medians over interleaved rounds, and the spread of the ratios round
    /// by round.
    Record& compare(std::string_view unit, std::vector<double> const& ours,
                    std::string_view baseline, std::vector<double> const& theirs) {
        compare(unit, median(ours), baseline, median(theirs));
        std::vector<double> const each = ratios(ours, theirs);
        add("ratio_q1", quantile(each, 0.25)).add("ratio_q3", quantile(each, 0.75));
        add("ratio_min", quantile(each, 0)).add("ratio_max", quantile(each, 1));
        add("rounds", each.size());
        return *this;
    }

    void print() const {
        std::printf("%s\n", text().c_str());
        std::fflush(stdout);
    }
    std::string text() const { return object_.text(); }

  private:
    support::JsonObject object_;
};

} // namespace benchmark
