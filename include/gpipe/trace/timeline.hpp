#pragma once

#include <gpipe/core/array.hpp>
#include <gpipe/memory/curve.hpp>
#include <gpipe/plan/lowered.hpp>
#include <gpipe/schedule/programs.hpp>

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string_view>

namespace gpipe {

/// An action with its place and time.
struct TimelineEntry {
    Action action;          ///< what ran
    std::size_t device = 0; ///< that of the action's cell
    std::size_t lane = 0;   ///< what ran it: in a simulation the device, in a run a walker of it
    double start = 0;       ///< from the begin of the timeline on
    double end = 0;         ///< from the begin of the timeline on

    /// From start to end.
    constexpr double duration() const { return end - start; }
};

/// What ran when: the same for simulated and for measured runs, in any unit of time, from 0 on.
/// Built entry by entry, in any order; drawn by trace/text.hpp and trace/svg.hpp, written for
/// viewers by trace/chrome.hpp. A row of a picture is a device. It may carry the bytes that are in
/// use over time. What ends a step is there, too, as an action of the first cell of its device, or
/// of the cell whose gradients it adds up; makespan(), busy() and bubble() are of the rest, so that
/// a run can be compared with a simulation of its programs.
class Timeline {
  public:
    constexpr Timeline() = default;
    /// Room for `capacity` entries.
    constexpr Timeline(std::size_t devices, std::size_t cells, std::size_t micro_batches,
                       std::size_t capacity, std::string_view title = {})
        : devices_(devices), cells_(cells), micro_batches_(micro_batches),
          device_of_(cells, devices), entries_(capacity) {
        this->title(title);
    }

    /// Throws std::length_error beyond the capacity, std::invalid_argument for a device, cell or
    /// micro-batch that is not there, and for a time that is negative, beyond 1e15, or runs
    /// backwards.
    constexpr void add(TimelineEntry const& entry) {
        if (size_ == entries_.size())
            throw std::length_error("gpipe: a timeline holds more entries than its capacity");
        if (entry.device >= devices_ || entry.action.cell >= cells_ ||
            entry.action.micro_batch >= micro_batches_)
            throw std::invalid_argument("gpipe: an entry of a timeline names a device, cell or "
                                        "micro-batch that it has not");
        if (!(0 <= entry.start && entry.start <= entry.end && entry.end <= longest))
            throw std::invalid_argument("gpipe: an entry of a timeline ends before it starts, or "
                                        "its times are not within 0 and 1e15");
        entries_[size_++] = entry;
        device_of_[entry.action.cell] = entry.device;
        if (length_ < entry.end) length_ = entry.end;
        if (ends_step(entry.action.kind)) return;
        if (makespan_ < entry.end) makespan_ = entry.end;
        offloads_ = offloads_ || is_offload(entry.action.kind);
        if (is_copy(entry.action.kind)) return;
        if (lanes_ <= entry.lane) lanes_ = entry.lane + 1;
        busy_ += entry.duration();
    }
    /// What stands above the picture.
    constexpr void title(std::string_view title) {
        title_ = Array<char>(title.size());
        for (std::size_t i = 0; i < title.size(); ++i) title_[i] = title[i];
    }

    /// The bytes in use on each device, in the unit of time of the entries: see memory_usage().
    /// Throws std::invalid_argument unless there is one for each, or none.
    constexpr void memory(Array<MemoryCurve> curves) {
        if (!curves.empty() && curves.size() != devices_)
            throw std::invalid_argument("gpipe: a timeline takes a memory curve for each device");
        memory_ = static_cast<Array<MemoryCurve>&&>(curves);
    }

    /// Of a run: how often a lane wanted to go on, and its core was given to another thread. Then
    /// there were not as many free cores as lanes, and the times are longer than they need be.
    constexpr void preemptions(std::uint64_t times) { preemptions_ = times; }
    /// As it was told.
    constexpr std::uint64_t preemptions() const { return preemptions_; }

    /// As the constructor was told.
    ///@{
    constexpr std::size_t devices() const { return devices_; }
    constexpr std::size_t cells() const { return cells_; }
    constexpr std::size_t micro_batches() const { return micro_batches_; }
    ///@}
    /// One more than the last lane that an entry names, but for copies and what ends a step.
    constexpr std::size_t lanes() const { return lanes_; }
    /// What stands above the picture.
    constexpr std::string_view title() const { return {title_.data(), title_.size()}; }

    /// The entries, in the order in which they were added.
    ///@{
    constexpr std::size_t size() const { return size_; }
    constexpr TimelineEntry const& operator[](std::size_t index) const { return entries_[index]; }
    constexpr TimelineEntry const* begin() const { return entries_.data(); }
    constexpr TimelineEntry const* end() const { return entries_.data() + size_; }
    ///@}

    /// From 0 to the end of the last entry.
    constexpr double length() const { return length_; }
    /// From 0 to the end of the last that is not of a step's end.
    constexpr double makespan() const { return makespan_; }
    /// The durations of all entries but copies, which run beside them, and what ends a step; where
    /// these run between others, as on a host, they count as idle.
    constexpr double busy() const { return busy_; }
    /// The share of the lanes' time in which no action ran. In a simulation every device is a lane.
    constexpr double bubble() const {
        double const available = makespan_ * static_cast<double>(lanes_);
        return busy_ < available ? 1 - busy_ / available : 0;
    }

    /// Whether anything goes to slower memory and back.
    constexpr bool offloads() const { return offloads_; }
    /// By device, or none.
    constexpr Array<MemoryCurve> const& memory() const { return memory_; }

    /// The device that an entry of the cell was added for; devices() without one.
    constexpr std::size_t device_of(std::size_t cell) const { return device_of_[cell]; }
    /// Which of its device's cells it is: 0, 1, ... from the chain's begin on.
    constexpr std::size_t ordinal(std::size_t cell) const {
        std::size_t before = 0;
        for (std::size_t c = 0; c < cell; ++c) before += device_of_[c] == device_of_[cell];
        return before;
    }
    /// The most cells that a device has.
    constexpr std::size_t cells_per_device() const {
        std::size_t most = 0;
        for (std::size_t c = 0; c < cells_; ++c)
            if (device_of_[c] < devices_ && most <= ordinal(c)) most = ordinal(c) + 1;
        return most;
    }

  private:
    // Beyond this no picture is of use; it keeps infinity out.
    static constexpr double longest = 1e15;

    std::size_t devices_ = 0;
    std::size_t cells_ = 0;
    std::size_t micro_batches_ = 0;
    std::size_t lanes_ = 0;
    std::size_t size_ = 0;
    double length_ = 0;
    double makespan_ = 0;
    double busy_ = 0;
    bool offloads_ = false;
    std::uint64_t preemptions_ = 0;
    Array<std::size_t> device_of_;
    Array<TimelineEntry> entries_;
    Array<MemoryCurve> memory_;
    Array<char> title_;
};

/// The timeline of programs whose actions start at times.start and end at times.end, by index of
/// the action among all: what simulate() gives, in any type of time that converts to double.
template <class Times>
constexpr Timeline timeline(Programs const& programs, Times const& times,
                            std::string_view title = {}) {
    Timeline result(programs.devices(), programs.cells(), programs.micro_batches(), programs.size(),
                    title);
    for (std::size_t d = 0; d < programs.devices(); ++d)
        for (std::size_t i = programs.begin(d); i < programs.end(d); ++i)
            result.add({programs[i], d, d, static_cast<double>(times.start[i]),
                        static_cast<double>(times.end[i])});
    return result;
}
/// The same of programs with their copies, of which those to slower memory and back are shown.
template <class Times>
constexpr Timeline timeline(Lowered const& lowered, Times const& times,
                            std::string_view title = {}) {
    Programs const& programs = lowered.programs;
    Timeline result(lowered.devices(), programs.cells(), programs.micro_batches(), programs.size(),
                    title);
    for (std::size_t s = 0; s < lowered.streams(); ++s)
        for (std::size_t i = programs.begin(s); i < programs.end(s); ++i)
            if (!is_transfer(programs[i].kind))
                result.add({programs[i], lowered.device[s], s, static_cast<double>(times.start[i]),
                            static_cast<double>(times.end[i])});
    return result;
}

} // namespace gpipe
