#pragma once

#include <gpipe/core/compiled.hpp>
#include <gpipe/memory/cell_way.hpp>
#include <gpipe/memory/gap_list.hpp>
#include <gpipe/memory/lifetimes.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

GPIPE_RUNS_ONCE_BEGIN
namespace gpipe {

/// The parts of all cells and micro-batches, numbered one behind the other.
struct PlacedParts {
    Array<CellWay> ways;       ///< by cell and way
    Ways way;                  ///< that cells go
    Array<std::size_t> at;     ///< by part: offset in its device's room
    Array<std::size_t> height; ///< by device: of that room
    /// The same of an evaluation, by cell and its parts, whatever the micro-batch.
    ///@{
    Array<Array<std::size_t>> evaluation_at;
    Array<std::size_t> evaluation_height;
    ///@}

    /// Of a cell.
    ///@{
    constexpr CellWay& of(std::size_t cell, std::size_t number) {
        return ways[cell * way_count + number];
    }
    constexpr CellWay const& of(std::size_t cell, std::size_t number) const {
        return ways[cell * way_count + number];
    }
    ///@}
    /// For find_operands(); points here.
    constexpr PartTable table(std::size_t cells, std::size_t micro_batches, bool evaluates) const {
        PartTable result;
        result.ways = Array<WayParts const*>(ways.size());
        for (std::size_t w = 0; w < ways.size(); ++w) result.ways[w] = &ways[w].parts;
        if (!evaluates) result.way = way;
        if (evaluates) result.way = Ways(cells, micro_batches, way_evaluates);
        result.begin = Array<std::uint32_t>(cells * micro_batches + 1);
        std::uint32_t* next = result.begin.data();
        for (std::size_t c = 0; c < cells; ++c)
            for (std::size_t m = 0; m < micro_batches; ++m, ++next)
                next[1] = next[0] +
                          static_cast<std::uint32_t>(of(c, result.way(c, m)).parts.parts.size());
        return result;
    }
};

/// Makes the calls of cells, with their tensors in parts.
struct CellMaker {
    ChainShape const& chain;          ///< cut into cells
    Array<std::size_t> const& first;  ///< layer that each begins with, and L
    Array<Reversal> const& reversals; ///< by cell
    Array<CellUse> uses;              ///< by cell
    Array<bool> retains;              ///< by cell: see CellWay::retained

    /// Of a cell, with up to so many slices of an action.
    constexpr CellWay operator()(std::size_t cell, std::size_t way, std::size_t slices) const {
        bool const keeps = retains[cell] && way != way_evaluates;
        return cell_way(
            cell_calls(chain, first[cell], first[cell + 1], uses[cell], reversals[cell], way),
            slices, keeps);
    }
};

/// How tightly tensors inside of cells are placed. None of these needs more bytes than those before
/// it.
enum class Tightness : std::uint8_t {
    constant, ///< as constants do: calls of an action are hardly told apart
    quick,    ///< each call by itself, but no search
    full,     ///< with the tensors between cells, see ValuePlacer
};

namespace detail {

// Of an action: a call each.
inline constexpr std::size_t finest_slices = 0xFFFF;

// What comes and goes in the slices of an action, whose parts lie at `at`.
GPIPE_INLINE constexpr void take_turns(GapList& room, CellWay const& way, Stage stage,
                                       std::size_t* at) {
    auto const s = static_cast<std::size_t>(stage);
    TensorPart const* const parts = way.parts.parts.data();
    std::uint32_t begin = way.starts_at[s];
    std::uint32_t end = way.ends_at[s];
    for (std::uint32_t slice = 0; slice < way.parts.slices[s]; ++slice) {
        for (; begin < way.starts_at[s + 1] && parts[begin].from == slice; ++begin)
            at[begin] = room.take(parts[begin].bytes);
        for (; end < way.ends_at[s + 1] && parts[way.ends[end]].to == slice; ++end)
            room.give_back(at[way.ends[end]], parts[way.ends[end]].bytes);
    }
}

// Those of one device, numbered cell by cell: its own cells, in their order.
struct DeviceParts {
    Array<CellWay> ways; // by own cell and way, as many as there are
    Array<std::size_t> at;
    std::size_t height = 0;
    Array<Array<std::size_t>> evaluation_at; // by own cell
    std::size_t evaluation_height = 0;
};

// The cells of each device, numbered: what a device has is not as long as there are cells.
struct OwnNumbers {
    Array<std::size_t> of;    // by cell: its number among those of its device
    Array<std::size_t> count; // by device

    constexpr explicit OwnNumbers(Programs const& programs)
        : of(programs.cells()), count(programs.devices()) {
        for (std::size_t c = 0; c < of.size(); ++c) of[c] = count[programs.device_of(c)]++;
    }
};

// Places the parts of one device, in the order of its program.
class DevicePlacer {
  public:
    constexpr DevicePlacer(Programs const& programs, Ways const& ways, std::size_t device,
                           OwnNumbers const& own, CellMaker const& make)
        : programs_(programs), way_(ways), device_(device), own_(own), make_(make),
          micro_batches_(programs.micro_batches()), begin_(own.count[device] * micro_batches_) {}

    // Never more than what constants have.
    constexpr DeviceParts place(Tightness tightness) {
        // Of parts, by actions: a plan with more is told apart by actions alone.
        std::size_t const most_uses = (std::size_t{1} << 20) / programs_.devices();
        DeviceParts coarse = placed(std::max<std::size_t>(1, 16 / micro_batches_));
        if (tightness == Tightness::constant || std::is_constant_evaluated()) return coarse;
        DeviceParts fine = placed(finest_slices);
        std::size_t uses = 0;
        each_action(
            [&](Action const& a) { uses += way_of(fine, a).parts[stage_of(a.kind)].size(); });
        if (uses > most_uses) return coarse;
        if (tightness == Tightness::full && fine.height > coarse.height) search(fine);
        bool const finer = fine.height <= coarse.height;
        DeviceParts& best = finer ? fine : coarse;
        take_evaluation(best, finer ? coarse : fine);
        return static_cast<DeviceParts&&>(best);
    }

  private:
    template <class F> constexpr void each_action(F f) const {
        for (std::size_t i = programs_.begin(device_); i < programs_.end(device_); ++i)
            f(programs_[i]);
    }
    constexpr CellWay const& way_of(DeviceParts const& of, Action const& a) const {
        return of.ways[own_.of[a.cell] * way_count + way_(a.cell, a.micro_batch)];
    }
    constexpr std::size_t first_of(Action const& a) const {
        return begin_[own_.of[a.cell] * micro_batches_ + a.micro_batch];
    }

    // For a lower placement than in the order of the program.
    void search(DeviceParts& fine) const {
        if (fine.at.size() > most_placed) return;
        Array<Lifetime> all(fine.at.size());
        std::uint32_t slices = 0;
        each_action([&](Action const& a) {
            Stage const stage = stage_of(a.kind);
            WayParts const& parts = way_of(fine, a).parts;
            Lifetime* one = all.data() + first_of(a);
            for (TensorPart const& part : parts.parts) {
                one->bytes = part.bytes;
                if (part.first == stage) one->begin = slices + part.from;
                if (part.last == stage) one->end = slices + part.to;
                ++one;
            }
            slices += parts.slices[static_cast<std::size_t>(stage)];
        });
        fine.height = lower(all, slices, live_bytes(all, slices), fine.at, fine.height,
                            looks_per_device(programs_.devices()), {});
    }
    // Where that is lower in the other.
    constexpr void take_evaluation(DeviceParts& best, DeviceParts& other) const {
        if (best.evaluation_height <= other.evaluation_height) return;
        best.evaluation_height = other.evaluation_height;
        best.evaluation_at = static_cast<Array<Array<std::size_t>>&&>(other.evaluation_at);
        for (std::size_t w = way_evaluates; w < best.ways.size(); w += way_count)
            best.ways[w] = static_cast<CellWay&&>(other.ways[w]);
    }
    constexpr DeviceParts placed(std::size_t slices) {
        DeviceParts result;
        result.ways = Array<CellWay>(own_.count[device_] * way_count);
        result.evaluation_at = Array<Array<std::size_t>>(own_.count[device_]);
        std::size_t count = 0;
        for (std::size_t const c : programs_.cells_of(device_)) {
            CellWay* const ways = result.ways.data() + own_.of[c] * way_count;
            for (std::size_t w = 0; w < way_count; ++w)
                if (w == way_evaluates || way_.has(c, w)) ways[w] = make_(c, w, slices);
            for (std::size_t m = 0; m < micro_batches_; ++m) {
                begin_[own_.of[c] * micro_batches_ + m] = count;
                count += ways[way_(c, m)].parts.parts.size();
            }
            Array<std::size_t>& at = result.evaluation_at[own_.of[c]];
            at = Array<std::size_t>(ways[way_evaluates].parts.parts.size());
            GapList room;
            take_turns(room, ways[way_evaluates], Stage::forward, at.data());
            result.evaluation_height = std::max(result.evaluation_height, room.height());
        }
        result.at = Array<std::size_t>(count);
        GapList room;
        each_action([&](Action const& a) {
            take_turns(room, way_of(result, a), stage_of(a.kind), result.at.data() + first_of(a));
        });
        result.height = room.height();
        return result;
    }
    Programs const& programs_;
    Ways const& way_;
    std::size_t device_;
    OwnNumbers const& own_;
    CellMaker const& make_;
    std::size_t micro_batches_;
    Array<std::size_t> begin_; // by own cell and micro-batch: its first part
};

} // namespace detail

/// Places the parts of all devices, each in a room of its own.
[[gnu::cold]] GPIPE_INLINE constexpr PlacedParts
place_parts(Programs const& programs, Ways ways, Tightness tightness, CellMaker const& make) {
    std::size_t const cells = programs.cells(), micro_batches = programs.micro_batches();
    PlacedParts result;
    result.way = static_cast<Ways&&>(ways);
    result.ways = Array<CellWay>(cells * way_count);
    result.height = result.evaluation_height = Array<std::size_t>(programs.devices());
    result.evaluation_at = Array<Array<std::size_t>>(cells);
    Array<detail::DeviceParts> devices(programs.devices());
    detail::OwnNumbers const own(programs);
    std::size_t count = 0;
    for (std::size_t d = 0; d < devices.size(); ++d) {
        devices[d] = detail::DevicePlacer(programs, result.way, d, own, make).place(tightness);
        count += devices[d].at.size();
        result.height[d] = devices[d].height;
        result.evaluation_height[d] = devices[d].evaluation_height;
    }
    result.at = Array<std::size_t>(count);
    std::size_t* at = result.at.data();
    Array<std::size_t> next(devices.size());
    for (std::size_t c = 0; c < cells; ++c) {
        std::size_t const d = programs.device_of(c);
        for (std::size_t w = 0; w < way_count; ++w)
            result.of(c, w) = static_cast<CellWay&&>(devices[d].ways[own.of[c] * way_count + w]);
        result.evaluation_at[c] =
            static_cast<Array<std::size_t>&&>(devices[d].evaluation_at[own.of[c]]);
        std::size_t parts = 0; // of all micro-batches
        for (std::size_t m = 0; m < micro_batches; ++m)
            parts += result.of(c, result.way(c, m)).parts.parts.size();
        for (; parts > 0; --parts) *at++ = devices[d].at[next[d]++];
    }
    return result;
}

} // namespace gpipe
GPIPE_RUNS_ONCE_END
