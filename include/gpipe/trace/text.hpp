#pragma once

#include <gpipe/core/compiled.hpp>
#include <gpipe/core/finite.hpp>
#include <gpipe/trace/timeline.hpp>
#include <gpipe/trace/writer.hpp>

#include <cstddef>
#include <span>
#include <string>

namespace gpipe::trace {

/// How a text is drawn.
struct TextOptions {
    double unit = 0;         ///< time of a column; 0: the shortest action's duration
    std::size_t columns = 0; ///< characters per unit of time; 0: as many as a label needs
    std::size_t width = 0;   ///< the most characters of a row behind its head; 0: 16,384
};

namespace detail {

// The letter of a kind, and of the same in the second of a device's two cells.
GPIPE_INLINE constexpr char letter(Kind kind, bool second) {
    constexpr std::string_view capitals = "FRBIWssssoftTAANQCsVKUG";
    static_assert(capitals.size() == kind_count);
    char const capital = capitals[static_cast<std::size_t>(kind)];
    return second && computes(kind) ? static_cast<char>(capital - 'A' + 'a') : capital;
}

// Draws timelines in one scale.
class TextCanvas {
  public:
    TextCanvas(std::span<Timeline const> timelines, TextOptions const& options) {
        double length = 0;
        double shortest = 0;
        std::size_t devices = 0;
        for (Timeline const& timeline : timelines) {
            length = length < timeline.length() ? timeline.length() : length;
            if (!timeline.memory().empty()) tail_ = memory_letters;
            devices = devices < timeline.devices() ? timeline.devices() : devices;
            std::size_t const label =
                1 + (timeline.cells_per_device() > 2) + digits(last(timeline.micro_batches()));
            label_ = label_ < label ? label : label_;
            for (TimelineEntry const& entry : timeline)
                if (entry.duration() > 0 && computes(entry.action.kind) &&
                    (shortest == 0 || entry.duration() < shortest))
                    shortest = entry.duration();
        }
        double const unit = options.unit > 0 ? options.unit : shortest > 0 ? shortest : 1;
        columns_ = options.columns > 0 ? options.columns : label_ + 1;
        scale_ = static_cast<double>(columns_) / unit;
        device_digits_ = digits(last(devices));
        std::size_t const head = head_letters + device_digits_ + tail_;
        std::size_t const room = options.width == 0     ? most_columns
                                 : options.width > head ? options.width - head
                                                        : 1;
        if (length * scale_ > static_cast<double>(room) + 0.5) {
            scale_ = static_cast<double>(room) / length;
            columns_ = 1;
            compressed_ = true;
        }
        if (!gpipe::detail::is_finite(scale_)) scale_ = 0; // no time that could be told from none
    }

    void draw(Writer& out, Timeline const& timeline) const {
        if (!timeline.title().empty())
            out << timeline.title() << ": " << summary(timeline) << '\n';
        else if (timeline.preemptions() > 0)
            out << preempted(timeline) << '\n';
        Labelled const labelled(timeline, static_cast<double>(label_) / scale_);
        for (std::size_t d = 0; d < timeline.devices(); ++d) {
            std::string const actions = row(timeline, labelled, d);
            out << "device " << std::string(device_digits_ - digits(d), ' ') << d
                << (actions.empty() ? "" : "   ") << actions << '\n';
            if (!timeline.memory().empty())
                out << "memory " << std::string(device_digits_ + 3, ' ')
                    << strip(timeline.memory()[d], column(timeline.makespan())) << '\n';
        }
    }

  private:
    static constexpr std::size_t head_letters = 10;   // "device ", three spaces
    static constexpr std::size_t memory_letters = 22; // behind a strip
    static constexpr std::size_t most_columns = 16384;
    static constexpr char idle = '\0';

    // The kinds whose actions have a label: where their mean has room for it, so that of equal
    // actions those that rounding makes a column longer have none, either.
    class Labelled {
      public:
        Labelled(Timeline const& timeline, double room) : room_(room) {
            for (TimelineEntry const& entry : timeline) {
                sum_[static_cast<std::size_t>(entry.action.kind)] += entry.duration();
                count_[static_cast<std::size_t>(entry.action.kind)] += 1;
            }
        }
        bool has(Kind kind) const {
            std::size_t const k = static_cast<std::size_t>(kind);
            return sum_[k] >= count_[k] * room_ * 0.999999;
        }

      private:
        double room_;
        double sum_[kind_count] = {};
        double count_[kind_count] = {};
    };

    // Columns whose middle is not before that time.
    std::size_t column(double time) const {
        double const at = std::min(time * scale_ - 0.5, 1e15); // of a time that is none, too
        auto const whole = at > 0 ? static_cast<std::size_t>(at) : 0;
        return at > static_cast<double>(whole) ? whole + 1 : whole;
    }

    // The share of what a device plans for beyond what is always in use: in each column the bytes
    // in the middle of its time, in eighths.
    std::string strip(MemoryCurve const& curve, std::size_t length) const {
        constexpr std::string_view eighths[] = {" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
        std::size_t const room = curve.planned - curve.fixed;
        Writer out;
        for (std::size_t i = 0; i < length; ++i) {
            std::size_t const used =
                curve.at((static_cast<double>(i) + 0.5) / scale_) - curve.fixed;
            out << eighths[room > 0 ? (8 * used + room - 1) / room : 0];
        }
        out << "  " << bytes(curve.peak()) << " of " << bytes(curve.planned);
        return out.take();
    }

    std::string row(Timeline const& timeline, Labelled const& labelled, std::size_t device) const {
        std::size_t length = 0;
        for (TimelineEntry const& entry : timeline)
            if (entry.device == device && length < column(entry.end)) length = column(entry.end);
        std::string line(length, idle);
        std::size_t const cells = timeline.cells_per_device();
        for (TimelineEntry const& entry : timeline) {
            if (entry.device != device || is_copy(entry.action.kind)) continue;
            std::size_t const ordinal = timeline.ordinal(entry.action.cell);
            bool const ends = ends_step(entry.action.kind);
            std::string label(1, letter(entry.action.kind, cells == 2 && ordinal == 1));
            std::size_t const begin = column(entry.start);
            std::size_t const size = column(entry.end) - begin;
            std::string box(size, label[0]);
            if (cells > 2) label += static_cast<char>('a' + ordinal % 26);
            label += std::to_string(entry.action.micro_batch);
            if (!ends && size >= label_ && labelled.has(entry.action.kind)) {
                box = label + std::string(size - label.size(), compressed_ ? '-' : ' ');
                for (std::size_t i = columns_; !compressed_ && i + label_ <= size; i += columns_)
                    box.replace(i, label_, label_, '.');
            }
            line.replace(begin, size, box);
        }
        // A point for each unit, but none that would touch what comes next.
        for (std::size_t i = 0; i < length; ++i)
            if (line[i] == idle) {
                bool const room = columns_ == 1 || i + 1 == length || line[i + 1] == idle;
                line[i] = i % columns_ == 0 && room ? '.' : ' ';
            }
        line.resize(line.find_last_not_of(' ') + 1);
        return line;
    }

    std::size_t tail_ = 0;
    std::size_t label_ = 1;
    std::size_t columns_ = 1;
    std::size_t device_digits_ = 1;
    double scale_ = 1;
    bool compressed_ = false;
};

} // namespace detail

/// Timelines as text, one below the other in one scale, a row per device and time to the right:
///
///     device 0   F0 F1 F2 F3 .  .  .  .  .  .  B3 .. B2 .. B1 .. B0 ..
///     device 1   .  F0 F1 F2 F3 .  .  .  B3 .. B2 .. B1 .. B0 ..
///     device 2   .  .  F0 F1 F2 F3 B3 .. B2 .. B1 .. B0 ..
///
/// F forward, R recompute, B backward, I input gradient, W weight gradient, with the number of the
/// micro-batch; one point: idle, more: the action goes on. Of two cells on a device the second has
/// lower case, of more each has a letter behind the kind's (a, b, c ...). Of what ends a step there
/// are as many letters as it takes of time: A sums over replicas, and G giving their parts to all;
/// T sums of ties, t what is brought to them; N what buffers become; Q squares of gradients; C the
/// commit, which V may revoke, and K its state given to a device; U updates. Where lines would be
/// longer than options.width, they are compressed: every character stands for the same time, and
/// says what the device does in the middle of it, with the micro-batch where there is room.
/// A timeline with a title has it above, with makespan and bubble. Where it knows the bytes in use,
/// a line below each device shows them in UTF-8: from nothing but what is always in use up to all
/// that is planned, in eighths; then the peak and the plan.
GPIPE_INLINE std::string text(std::span<Timeline const> timelines,
                              TextOptions const& options = {}) {
    detail::TextCanvas const canvas(timelines, options);
    detail::Writer out;
    for (Timeline const& timeline : timelines) canvas.draw(out, timeline);
    return out.take();
}
/// The same of one timeline.
GPIPE_INLINE std::string text(Timeline const& timeline, TextOptions const& options = {}) {
    return text(std::span(&timeline, 1), options);
}

} // namespace gpipe::trace
