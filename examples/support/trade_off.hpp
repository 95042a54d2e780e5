#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

namespace support {

/// Step time over memory as a figure: a point for each policy, those of a family in one colour, and
/// one family as a line of steps: what that budget can do.
class TradeOff {
  public:
    static constexpr double width = 960;
    static constexpr double height = 430;

    struct Point {
        std::string family; ///< as the legend has it
        std::string label;  ///< beside the point
        double mebibytes = 0;
        double milliseconds = 0;
    };

    /// `line`: the family whose points are joined, in the order of their memory.
    TradeOff(std::vector<Point> points, std::string line, double budget)
        : points_(std::move(points)), line_(std::move(line)), budget_(budget) {
        for (Point const& point : points_)
            if (std::find(families_.begin(), families_.end(), point.family) == families_.end())
                families_.push_back(point.family);
        std::stable_sort(points_.begin(), points_.end(),
                         [](Point const& a, Point const& b) { return a.mebibytes < b.mebibytes; });
        x_ = Axis(left, width - right, points_, &Point::mebibytes, budget);
        y_ = Axis(height - bottom, top, points_, &Point::milliseconds,
                  points_.empty() ? 0 : points_[0].milliseconds);
    }

    /// Elements to be put into a figure of that width and height.
    std::string draw(std::string const& title) {
        text(left, 17, title, "start' font-size='12' font-weight='bold");
        axes();
        std::string path;
        for (Point const& point : points_)
            if (point.family == line_)
                path += (path.empty() ? "M" + number(x_(point.mebibytes)) + ' '
                                      : "H" + number(x_(point.mebibytes)) + 'V') +
                        number(y_(point.milliseconds));
        if (!path.empty())
            out_ += "<path fill='none' stroke='" + std::string(colour(line_)) +
                    "' stroke-width='1.8' d='" + path + "'/>\n";
        for (Point const& point : points_) mark(point);
        for (Point const& point : points_)
            labels_.push_back({x_(point.mebibytes) - 4, y_(point.milliseconds) + 3.5, 8});
        for (Point const& point : points_) label(point);
        legend();
        return std::move(out_);
    }

  private:
    static constexpr double left = 66, right = 24, top = 34, bottom = 74;

    // A scale with ticks at round numbers, from below the least to above the most.
    class Axis {
      public:
        Axis() = default;
        Axis(double begin, double end, std::vector<Point> const& points, double Point::*member,
             double also)
            : begin_(begin), end_(end), low_(also), high_(also) {
            for (Point const& point : points) {
                low_ = std::min(low_, point.*member);
                high_ = std::max(high_, point.*member);
            }
            double const span = high_ > low_ ? high_ - low_ : 1;
            step_ = std::pow(10, std::floor(std::log10(span)));
            if (span / step_ < 2) step_ /= 5;
            if (span / step_ < 5) step_ /= 2;
            low_ = std::max(0.0, std::floor((low_ - 0.03 * span) / step_) * step_);
            high_ = std::ceil((high_ + 0.03 * span) / step_) * step_;
        }
        double operator()(double value) const {
            return begin_ + (end_ - begin_) * (value - low_) / (high_ - low_);
        }
        std::vector<double> ticks() const {
            std::vector<double> result;
            for (int i = 0; low_ + i * step_ <= high_ + 0.01 * step_; ++i)
                result.push_back(low_ + i * step_);
            return result;
        }

      private:
        double begin_ = 0, end_ = 1, low_ = 0, high_ = 1, step_ = 1;
    };

    static std::string number(double value, char const* format = "%.2f") {
        char buffer[32];
        std::snprintf(buffer, sizeof buffer, format, value);
        return buffer;
    }
    std::string_view colour(std::string const& family) const {
        constexpr std::string_view colours[] = {"#4e87de", "#639f3d", "#8365c5", "#a36e05",
                                                "#0b919d", "#bd67b3", "#7a7a7a", "#2c4188"};
        if (family == line_) return "#c6362f";
        std::size_t n = 0;
        for (std::string const& other : families_) {
            if (other == family) break;
            n += other != line_;
        }
        return colours[n % std::size(colours)];
    }

    void text(double x, double y, std::string_view words, std::string_view anchor) {
        out_ += "<text x='" + number(x) + "' y='" + number(y) + "' text-anchor='" +
                std::string(anchor) + "'>" + std::string(words) + "</text>\n";
    }
    void line(double x1, double y1, double x2, double y2, std::string_view stroke) {
        out_ += "<path fill='none' stroke='" + std::string(stroke) + "' d='M" + number(x1) + ' ' +
                number(y1) + 'L' + number(x2) + ' ' + number(y2) + "'/>\n";
    }
    void axes() {
        double const foot = height - bottom;
        for (double const tick : x_.ticks()) {
            line(x_(tick), top, x_(tick), foot, "#e4e4e4");
            text(x_(tick), foot + 15, number(tick, "%.4g"), "middle");
        }
        for (double const tick : y_.ticks()) {
            line(left, y_(tick), width - right, y_(tick), "#e4e4e4");
            text(left - 7, y_(tick) + 4, number(tick, "%.4g"), "end");
        }
        line(left, foot, width - right, foot, "#555");
        line(left, top, left, foot, "#555");
        text((left + width - right) / 2, foot + 31, "MiB planned on the largest device", "middle");
        double const middle = (top + foot) / 2;
        text(16, middle, "predicted milliseconds per step",
             "middle' transform='rotate(-90 16 " + number(middle) + ")");
        line(x_(budget_), top, x_(budget_), foot, "#c6362f' stroke-dasharray='5 3");
        text(x_(budget_) - 5, top + 11, "budget", "end' fill='#c6362f");
    }
    void mark(Point const& point) {
        double const x = x_(point.mebibytes);
        double const y = y_(point.milliseconds);
        double const size = point.family == line_ ? 2.4 : 4;
        out_ += "<circle cx='" + number(x) + "' cy='" + number(y) + "' r='" + number(size) +
                "' fill='" + std::string(colour(point.family)) +
                "' stroke='#fff' stroke-width='.7'><title>" + point.family +
                (point.label.empty() || point.label == point.family ? "" : " " + point.label) +
                ": " + number(point.mebibytes, "%.4g") + " MiB, " +
                number(point.milliseconds, "%.4g") + " ms</title></circle>\n";
    }
    // Where no point and no other label is.
    void label(Point const& point) {
        if (point.label.empty()) return;
        double const length = 5.4 * double(point.label.size());
        double const x = x_(point.mebibytes);
        double const y = y_(point.milliseconds) + 3.5;
        struct {
            double x, y;
        } const tries[] = {{x + 7, y},
                           {x - length - 7, y},
                           {x + 5, y - 9},
                           {x + 5, y + 9},
                           {x - length - 5, y - 9},
                           {x - length - 5, y + 9},
                           {x - length / 2, y - 11},
                           {x - length / 2, y + 11}};
        for (auto const& at : tries) {
            bool free = at.x > left && at.x + length < width - 4;
            for (auto const& other : labels_)
                free = free && (at.x + length < other.x || other.x + other.length < at.x ||
                                std::abs(at.y - other.y) >= 9);
            if (!free) continue;
            labels_.push_back({at.x, at.y, length});
            text(at.x, at.y, point.label,
                 "start' font-size='10' stroke='#fff' stroke-width='2.5' paint-order='stroke' "
                 "fill='" +
                     std::string(colour(point.family)));
            return;
        }
    }
    void legend() {
        double x = left;
        for (std::string const& family : families_) {
            out_ += "<circle cx='" + number(x + 4) + "' cy='" + number(height - 18) +
                    "' r='4' fill='" + std::string(colour(family)) + "'/>\n";
            text(x + 12, height - 14, family, "start");
            x += 12 + 6 * double(family.size()) + 18;
        }
    }

    struct Label {
        double x, y, length;
    };
    std::vector<Point> points_;
    std::vector<std::string> families_;
    std::vector<Label> labels_;
    std::string line_;
    double budget_;
    Axis x_, y_;
    std::string out_;
};

} // namespace support
