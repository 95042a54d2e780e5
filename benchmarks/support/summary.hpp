#pragma once

#include "record.hpp"
#include "statistics.hpp"

#include <cstdio>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace benchmark {

/// What a benchmark says of all its rows, last: of each figure the least, the median and the
/// largest. A page quotes these lines and no others.
class Summary {
  public:
    Summary(std::string_view benchmark, bool json) : benchmark_(benchmark), json_(json) {}

    /// One row's value of a figure; figures keep the order in which they are first named.
    void add(std::string_view figure, double value) {
        for (auto& [name, values] : figures_)
            if (name == figure) return values.push_back(value);
        figures_.push_back({std::string(figure), {value}});
    }

    void print() const {
        if (!json_) std::printf("\n%-52s rows    least   median  largest\n", "all rows");
        for (auto const& [name, values] : figures_) {
            if (json_)
                Record(benchmark_)
                    .add("summary", name)
                    .add("rows", values.size())
                    .add("least", quantile(values, 0))
                    .add("median", median(values))
                    .add("largest", quantile(values, 1))
                    .print();
            else
                std::printf("%-52s %4zu %8.3f %8.3f %8.3f\n", name.c_str(), values.size(),
                            quantile(values, 0), median(values), quantile(values, 1));
        }
        std::fflush(stdout);
    }

  private:
    std::string benchmark_;
    bool json_;
    std::vector<std::pair<std::string, std::vector<double>>> figures_;
};

} // namespace benchmark
