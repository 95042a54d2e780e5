#pragma once

#include <gpipe/call/address.hpp>
#include <gpipe/core/array.hpp>
#include <gpipe/plan/stage.hpp>
#include <gpipe/schedule/programs.hpp>

#include <cstddef>
#include <cstdint>

namespace gpipe {

/// Which way each cell goes with each micro-batch.
class Ways {
  public:
    constexpr Ways() = default;
    /// What the programs say.
    [[gnu::cold]] constexpr explicit Ways(Programs const& programs)
        : micro_batches_(programs.micro_batches()),
          ways_(programs.cells() * micro_batches_, programs.evaluates() ? way_evaluates : 0) {
        for (Action const& a : programs) {
            if (a.kind != Kind::recompute && a.kind != Kind::weight_gradient) continue;
            ways_.data()[a.cell * micro_batches_ + a.micro_batch] |=
                a.kind == Kind::recompute ? way_recomputes : way_halves;
        }
    }
    /// The same way for all.
    constexpr Ways(std::size_t cells, std::size_t micro_batches, std::uint8_t way)
        : micro_batches_(micro_batches), ways_(cells * micro_batches, way) {}
    /// A number.
    constexpr std::uint8_t operator()(std::size_t cell, std::size_t micro_batch) const {
        return ways_[cell * micro_batches_ + micro_batch];
    }
    /// Whether the cell ever goes that way.
    constexpr bool has(std::size_t cell, std::size_t way) const {
        for (std::size_t m = 0; m < micro_batches_; ++m)
            if ((*this)(cell, m) == way) return true;
        return false;
    }

  private:
    std::size_t micro_batches_ = 0;
    Array<std::uint8_t> ways_; // by cell and micro-batch
};

/// Tensors of a cell and a micro-batch that come and go together. An action's calls are told apart
/// by slices: one each, or several.
struct TensorPart {
    std::size_t bytes = 0;        ///< of all of them
    Stage first = Stage::forward; ///< whose action writes it
    Stage last = Stage::forward;  ///< whose action is the last to read it
    std::uint16_t from = 0;       ///< the slice in which it is written
    std::uint16_t to = 0;         ///< the last in which it is read, of that other action
};

/// That an action uses a part.
struct PartUse {
    std::uint32_t part = 0;    ///< its number among those of the way
    std::uint16_t from = 0;    ///< the first slice that does
    std::uint16_t to = 0xFFFF; ///< the last
};

/// The parts of one way of a cell.
struct WayParts {
    Array<TensorPart> parts; ///< in the order in which they are written
    Array<PartUse> uses;     ///< stage by stage
    Array<std::uint32_t> begin =
        Array<std::uint32_t>(stage_count + 1); ///< by stage: where its uses begin
    Array<std::uint32_t> slices =
        Array<std::uint32_t>(stage_count); ///< by stage: how many there are
    /// By stage: in which slices it uses the cell's input and output and their gradients, which lie
    /// in no part.
    Array<PartUse> others = Array<PartUse>(stage_count * other_count);
    static constexpr std::size_t other_count = 4; ///< of these, in this order

    /// Of these, by the address that calls know.
    constexpr PartUse const& other(Stage stage, Region region) const {
        return others[static_cast<std::size_t>(stage) * other_count +
                      static_cast<std::size_t>(region) - static_cast<std::size_t>(Region::input)];
    }
    /// Those of an action.
    constexpr Part<PartUse> operator[](Stage stage) const {
        auto const s = static_cast<std::size_t>(stage);
        return {uses.data() + begin[s], begin[s + 1] - begin[s]};
    }
};

/// The parts of a table's cells.
struct PartTable {
    Array<WayParts const*> ways; ///< by cell and way; none where a cell never goes that one
    Ways way;                    ///< that a cell goes with a micro-batch
    /// By cell and micro-batch, and the end: the number of its first part among all.
    Array<std::uint32_t> begin;

    /// Those of a cell and a micro-batch; none where nobody asks for parts.
    constexpr WayParts const* of(std::size_t cell, std::size_t micro_batch) const {
        return ways.empty() ? nullptr : ways[cell * way_count + way(cell, micro_batch)];
    }
};

} // namespace gpipe
