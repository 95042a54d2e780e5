#pragma once

#include <gpipe/core/compiled.hpp>
#include <gpipe/core/finite.hpp>
#include <gpipe/trace/nvtx.hpp>
#include <gpipe/trace/svg_curves.hpp>
#include <gpipe/trace/svg_shapes.hpp>
#include <gpipe/trace/timeline.hpp>

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace gpipe::trace {

/// How an SVG is drawn.
struct SvgOptions {
    double width = 960;             ///< of the figure, in pixels
    double row = 22;                ///< height of a device's row
    std::string_view axis = "time"; ///< what stands below it
};

namespace detail {

class SvgFigure {
  public:
    SvgFigure(std::span<Timeline const> timelines, SvgOptions const& options)
        : timelines_(timelines), options_(options), curves_(timelines) {
        std::size_t devices = 0;
        for (Timeline const& timeline : timelines) {
            raise(length_, timeline.length());
            raise(devices, timeline.devices());
            raise(micro_batches_, timeline.micro_batches());
            raise(cells_, timeline.cells_per_device());
            idle_ = idle_ || timeline.bubble() > 0;
            for (TimelineEntry const& entry : timeline)
                if (draws(entry)) used_[static_cast<std::size_t>(entry.action.kind)] = true;
        }
        std::size_t const letters = 8 + digits(last(devices));
        left_ = margin + SvgLegend::letter_width * static_cast<double>(letters);
        double const room = options.width - left_ - 2 * margin;
        scale_ = length_ > 0 && room > 0 ? room / length_ : 0;
        if (!gpipe::detail::is_finite(scale_))
            scale_ = length_ = 0; // no time that could be told from none
        if (cells_ > 1) foot_ = 0.45 * options.row / static_cast<double>(cells_ - 1);
        if (foot_ > 3) foot_ = 3;
    }

    std::string draw() {
        double y = margin;
        for (Timeline const& timeline : timelines_) y = panel(timeline, y);
        y = legend(axis(y - between + 3)) + margin;
        Writer whole;
        whole << "<svg xmlns='http://www.w3.org/2000/svg' width='" << px(options_.width)
              << "' height='" << px(y) << "' viewBox='0 0 " << px(options_.width) << ' ' << px(y)
              << "' font-family='Helvetica, Arial, Liberation Sans, sans-serif' font-size='11' "
                 "fill='#222'>\n"
                 "<defs><pattern id='gpipe-idle' width='6' height='6' "
                 "patternUnits='userSpaceOnUse' patternTransform='rotate(45)'>"
                 "<rect width='6' height='6' fill='#f7f7f7'/>"
                 "<path d='M0 0V6' stroke='#d4d4d4' stroke-width='1.2'/></pattern>\n"
                 "<pattern id='gpipe-again' width='4.5' height='4.5' "
                 "patternUnits='userSpaceOnUse' patternTransform='rotate(-45)'>"
                 "<path d='M0 0V4.5' stroke='#fff' stroke-width='3.6' stroke-opacity='.8'/>"
                 "</pattern></defs>\n"
                 "<rect width='100%' height='100%' fill='#fff'/>\n"
              << body_.take() << "</svg>\n";
        return whole.take();
    }

  private:
    static constexpr double margin = 10;
    static constexpr double between = 12; // panels
    static constexpr double font = 11;
    static constexpr double least_font = 6.5;
    static constexpr double digit_width = 0.58;
    static constexpr double row_gap = 2;
    static constexpr double lane_height = 5;
    static constexpr std::string_view idle_fill = "url(#gpipe-idle)";
    static constexpr std::string_view again_fill = "url(#gpipe-again)";
    static constexpr std::string_view foot_fill = "#222' stroke='#fff' stroke-width='.6";

    template <class T> static void raise(T& most, T value) {
        if (most < value) most = value;
    }
    static bool draws(TimelineEntry const& entry) {
        return entry.duration() > 0 && !is_copy(entry.action.kind);
    }
    // Boxes meet and do not overlap, for all that is written of them is hundredths.
    double at(double time) const { return rounded(px(left_ + time * scale_)); }
    // Of the lanes for what goes to slower memory and back.
    static double lanes(Timeline const& timeline) {
        return timeline.offloads() ? 2 * (lane_height + 1) : 0;
    }
    double row_at(Timeline const& timeline, double top, std::size_t device) const {
        double const row = options_.row + row_gap + lanes(timeline) + SvgCurves::room(timeline);
        return rounded(px(top + static_cast<double>(device) * row));
    }

    void text(double x, double y, std::string_view words, std::string_view anchor) {
        body_ << "<text x='" << px(x) << "' y='" << px(y) << "' text-anchor='" << anchor << "'>"
              << Xml{words} << "</text>\n";
    }
    void path(std::string const& outlines, std::string_view fill) {
        if (!outlines.empty()) body_ << "<path fill='" << fill << "' d='" << outlines << "'/>\n";
    }
    void numbers(std::string const& texts, double size, std::string_view fill) {
        if (!texts.empty())
            body_ << "<g text-anchor='middle' font-size='" << px(size) << "' fill='" << fill << "'>"
                  << texts << "</g>\n";
    }

    // Of the narrowest box.
    double least_width(Timeline const& timeline) const {
        double least = options_.width;
        for (TimelineEntry const& entry : timeline)
            if (draws(entry) && computes(entry.action.kind) && entry.duration() * scale_ < least)
                least = entry.duration() * scale_;
        return least;
    }

    // Draws from there on down; returns where the next may begin.
    double panel(Timeline const& timeline, double top) {
        body_ << "<text x='" << px(left_) << "' y='" << px(top + font) << "'>";
        if (!timeline.title().empty())
            body_ << "<tspan font-weight='bold' font-size='12'>" << Xml{timeline.title()}
                  << "</tspan> ";
        body_ << "<tspan fill='#555'>" << summary(timeline) << "</tspan></text>\n";
        top += font + 7;
        double const least = least_width(timeline);
        double const digit = digit_width * double(digits(last(timeline.micro_batches())));
        double const fits = (least - 2) / digit;
        double const size = fits < least_font ? least_font : fits < font ? fits : font;
        Writer idle, boxes, again, feet, dark, light;
        for (std::size_t d = 0; d < timeline.devices(); ++d) {
            double const y = row_at(timeline, top, d);
            text(left_ - 6, y + options_.row / 2 + 0.36 * font, "device " + std::to_string(d),
                 "end");
            idle << Outline{{at(0), y, at(timeline.makespan()) - at(0), options_.row}};
            if (!timeline.memory().empty())
                memory(timeline, d, y + options_.row + lanes(timeline) + 1);
        }
        for (TimelineEntry const& entry : timeline) {
            if (is_offload(entry.action.kind))
                offload(boxes, entry, row_at(timeline, top, entry.device));
            if (!draws(entry)) continue;
            Action const& a = entry.action;
            Box const box{at(entry.start), row_at(timeline, top, entry.device),
                          at(entry.end) - at(entry.start), options_.row};
            Colour const colour = colour_of(a.kind, a.micro_batch);
            boxes << Rectangle{box} << " fill='" << colour << "'><title>"
                  << std::string_view(ActionName(a.kind, a.cell, a.micro_batch)) << ", "
                  << significant(entry.start) << " to " << significant(entry.end)
                  << "</title></rect>\n";
            if (a.kind == Kind::recompute) again << Outline{box};
            double const foot =
                computes(a.kind) ? foot_ * static_cast<double>(timeline.ordinal(a.cell)) : 0;
            if (foot > 0) feet << Outline{{box.x, box.y + box.height - foot, box.width, foot}};
            if (ends_step(a.kind) || box.width < digit * size + 1.5) continue;
            (colour.grey() > 140 ? dark : light)
                << "<text x='" << px(box.x + box.width / 2) << "' y='"
                << px(box.y + (box.height - foot) / 2 + 0.36 * size) << "'>" << a.micro_batch
                << "</text>";
        }
        path(idle.take(), idle_fill);
        body_ << "<g stroke='#fff' stroke-width='" << px(least < 5 ? 0.16 * least : 0.8) << "'>\n"
              << boxes.take() << "</g>\n";
        path(again.take(), again_fill);
        path(feet.take(), foot_fill);
        if (!timeline.memory().empty()) body_ << curves_.take();
        numbers(dark.take(), size, "#111");
        numbers(light.take(), size, "#fff");
        return row_at(timeline, top, timeline.devices()) + between;
    }
    // A box in one of the lanes below the row of its device.
    void offload(Writer& boxes, TimelineEntry const& entry, double row) {
        Action const& a = entry.action;
        bool const back = a.kind == Kind::fetch;
        used_[static_cast<std::size_t>(a.kind)] = true;
        boxes << Rectangle{{at(entry.start), row + options_.row + 1 + (back ? lane_height + 1 : 0),
                            at(entry.end) - at(entry.start), lane_height}}
              << " fill='" << colour_of(like(a.kind), a.micro_batch) << "'><title>"
              << std::string_view(ActionName(a.kind, a.cell, a.micro_batch)) << ", "
              << significant(entry.start) << " to " << significant(entry.end)
              << "</title></rect>\n";
    }
    // What goes has the shade of a forward, what comes back that of a backward.
    static Kind like(Kind kind) {
        return kind == Kind::offload ? Kind::forward : kind == Kind::fetch ? Kind::backward : kind;
    }
    // The strip below a device's row, and what the device plans for.
    void memory(Timeline const& timeline, std::size_t device, double y) {
        MemoryCurve const& curve = timeline.memory()[device];
        curves_.add(curve, timeline.makespan(), y, [this](double time) { return at(time); });
        body_ << "<text x='" << px(left_ - 6) << "' y='" << px(y + SvgCurves::height / 2 + 4)
              << "' text-anchor='end' font-size='9' fill='#555'>"
              << bytes(curve.planned - curve.fixed) << "</text>\n";
    }

    double axis(double y) {
        double const step = tick_step(length_);
        int decimals = 0;
        for (double rest = step; rest < 0.999 && decimals < 9; rest *= 10) ++decimals;
        Writer ticks;
        ticks << 'M' << px(left_) << ' ' << px(y) << 'H' << px(at(length_));
        for (int i = 0; i * step <= length_ * 1.000001; ++i) {
            ticks << 'M' << px(at(i * step)) << ' ' << px(y) << "v4";
            Writer label;
            label << Decimal{i * step, decimals};
            text(at(i * step), y + 15, label.take(), "middle");
        }
        path(ticks.take(), "none' stroke='#555' stroke-width='.8");
        text((left_ + at(length_)) / 2, y + 29, options_.axis, "middle");
        return y + 42;
    }

    double legend(double top) {
        SvgLegend legend(left_, options_.width - margin, top);
        for (std::size_t k = 0; k < kind_count; ++k) {
            if (!used_[k]) continue;
            Kind const kind = static_cast<Kind>(k);
            Box box = legend.add(1, 24, name(kind));
            if (is_offload(kind))
                box = {box.x, box.y + (box.height - lane_height) / 2, box.width, lane_height};
            legend.fill(box, colour_of(like(kind), 0));
            if (kind == Kind::recompute) legend.fill(box, again_fill);
        }
        if (idle_) legend.fill(legend.add(1, 24, "idle"), idle_fill);
        if (cells_ > 1) {
            Box box = legend.add(cells_, 16, "cells of a device, in the chain's order");
            for (std::size_t c = 0; c < cells_; ++c, box.x += box.width) {
                legend.fill(box, colour_of(Kind::forward, 0));
                double const foot = foot_ * static_cast<double>(c);
                legend.fill({box.x, box.y + box.height - foot, box.width, foot}, "#222");
            }
        }
        if (curves_.any()) SvgCurves::explain(legend);
        std::size_t const shown = micro_batches_ < hues ? micro_batches_ : hues;
        Box box = legend.add(shown, 13, "micro-batches 0, 1, ...");
        for (std::size_t m = 0; m < shown; ++m, box.x += box.width)
            legend.fill(box, colour_of(Kind::forward, m));
        body_ << legend.take();
        return legend.bottom();
    }

    std::span<Timeline const> timelines_;
    SvgOptions options_;
    SvgCurves curves_;
    Writer body_;
    double length_ = 0;
    std::size_t micro_batches_ = 0;
    std::size_t cells_ = 0; // the most of a device
    bool idle_ = false;
    bool used_[kind_count] = {};
    double left_ = 0;
    double scale_ = 0; // pixels per unit of time
    double foot_ = 0;  // of a box, for each cell of the device before its own
};

} // namespace detail

/// Timelines as a figure that stands alone: one below the other on a common axis of time, a row for
/// each device. An action is a box with the number of its micro-batch, where there is room for it,
/// and with what it is as a tooltip. The hue says the micro-batch, the shade the kind of action, a
/// bar at the foot which of its device's cells it belongs to; idle time is hatched; what ends a
/// step is grey. Above each timeline stand title, makespan and bubble. Where a timeline knows the
/// bytes in use, those of activations are drawn below the row of each device, all in one scale.
/// What goes to slower memory and back has two narrow lanes below that of the device. The same
/// timelines give the same bytes.
GPIPE_INLINE std::string svg(std::span<Timeline const> timelines, SvgOptions const& options = {}) {
    return detail::SvgFigure(timelines, options).draw();
}
/// The same of one timeline.
GPIPE_INLINE std::string svg(Timeline const& timeline, SvgOptions const& options = {}) {
    return svg(std::span(&timeline, 1), options);
}

} // namespace gpipe::trace
