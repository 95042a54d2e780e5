#pragma once

#include <gpipe/trace/svg_shapes.hpp>
#include <gpipe/trace/timeline.hpp>

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace gpipe::trace::detail {

// The bytes of activations on devices over time: strips of one scale, from what is always in use up
// to the most that any device plans for beyond that. A line is what the device plans for.
class SvgCurves {
  public:
    static constexpr double height = 20; // of a strip

    explicit SvgCurves(std::span<Timeline const> timelines) {
        for (Timeline const& timeline : timelines)
            for (MemoryCurve const& curve : timeline.memory())
                if (most_ < curve.planned - curve.fixed) most_ = curve.planned - curve.fixed;
    }
    bool any() const { return most_ > 0; }
    static constexpr double room(Timeline const& timeline) {
        return timeline.memory().empty() ? 0 : height + gap;
    }

    // Puts a curve where its strip begins, below the row of its device; at(time) is the place of a
    // time.
    template <class At>
    void add(MemoryCurve const& curve, double makespan, double top, At const& at) {
        double const left = at(0);
        double const right = at(makespan);
        double const bottom = rounded(px(top + height));
        auto const level = [&](std::size_t bytes) {
            double const most = most_ > 0 ? static_cast<double>(most_) : 1;
            double const share = static_cast<double>(bytes - curve.fixed) / most;
            return rounded(px(bottom - share * (height - 1)));
        };
        Writer line; // without its begin
        double last = bottom;
        for (std::size_t i = 0; i < curve.points.size(); ++i) {
            double const y = level(curve.points[i].bytes);
            double const x = at(curve.points[i].time);
            // Nor what is less for less than half a pixel, as between the actions of a run.
            bool const dips = y > last && i + 1 < curve.points.size() &&
                              level(curve.points[i + 1].bytes) < y &&
                              at(curve.points[i + 1].time) < x + 0.5;
            if (y == last || x >= right || dips) continue;
            line << 'H' << px(x) << 'V' << px(y);
            last = y;
        }
        std::string const steps = line.take();
        areas_ << "<path fill='" << area_fill << "' d='M" << px(left) << ' ' << px(bottom) << steps
               << 'H' << px(right) << 'V' << px(bottom) << "z'><title>" << bytes(curve.peak())
               << " in use at most, " << bytes(curve.fixed) << " of it always; "
               << bytes(curve.planned) << " planned</title></path>\n";
        edges_ << 'M' << px(left) << ' ' << px(bottom) << steps << 'H' << px(right);
        planned_ << 'M' << px(left) << ' ' << px(level(curve.planned)) << 'H' << px(right);
    }

    std::string take() {
        Writer out;
        out << areas_.take() << "<path fill='none' stroke='" << edge_stroke
            << "' stroke-width='.8' d='" << edges_.take() << "'/>\n<path fill='none' stroke='"
            << planned_stroke << "' stroke-dasharray='5 2' d='" << planned_.take() << "'/>\n";
        return out.take();
    }

    static void explain(SvgLegend& legend) {
        legend.fill(legend.add(1, 24, "activations in memory"), area_fill);
        Box const box = legend.add(1, 24, "room planned for them");
        legend.fill({box.x, box.y + box.height / 2 - 1, box.width, 2}, planned_stroke);
    }

  private:
    static constexpr double gap = 5; // below a strip
    static constexpr std::string_view area_fill = "#c9cfd6";
    static constexpr std::string_view edge_stroke = "#56616f";
    static constexpr std::string_view planned_stroke = "#b3423a";

    std::size_t most_ = 0;
    Writer areas_, edges_, planned_;
};

} // namespace gpipe::trace::detail
