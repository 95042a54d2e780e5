#pragma once

#include "record.hpp"
#include "statistics.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

namespace benchmark {

/// What a benchmark says of all its rows, last: of each figure the least, the median and the
/// largest, and in how many rows it is what it should be. A page quotes these lines and no others.
class Summary {
  public:
    Summary(std::string_view benchmark, bool json) : benchmark_(benchmark), json_(json) {}

    /// One row's value of a figure; figures keep the order in which they are first named. The goal
    /// is that none is above `at_most`.
    void add(std::string_view name, double value,
             double at_most = std::numeric_limits<double>::infinity()) {
        for (Figure& figure : figures_)
            if (figure.name == name) return figure.values.push_back(value);
        figures_.push_back({std::string(name), at_most, {value}});
    }

    void print() const {
        if (!json_) std::printf("\n%-52s rows    least   median  largest\n", "all rows");
        for (auto const& [name, at_most, values] : figures_) {
            auto const good = std::count_if(values.begin(), values.end(),
                                            [most = at_most](double v) { return v <= most; });
            bool const judged = std::isfinite(at_most);
            if (json_) {
                Record record(benchmark_);
                record.add("summary", name)
                    .add("rows", values.size())
                    .add("least", quantile(values, 0))
                    .add("median", median(values))
                    .add("largest", quantile(values, 1));
                if (judged)
                    record.add("at_most", at_most)
                        .add("rows_at_most", static_cast<std::size_t>(good));
                record.print();
                continue;
            }
            std::printf("%-52s %4zu %8.3f %8.3f %8.3f", name.c_str(), values.size(),
                        quantile(values, 0), median(values), quantile(values, 1));
            if (judged) std::printf("   at most %.3f: %td of %zu", at_most, good, values.size());
            std::printf("\n");
        }
        std::fflush(stdout);
    }

  private:
    struct Figure {
        std::string name;
        double at_most;
        std::vector<double> values;
    };
    std::string benchmark_;
    bool json_;
    std::vector<Figure> figures_;
};

} // namespace benchmark
