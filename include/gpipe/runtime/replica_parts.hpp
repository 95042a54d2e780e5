#pragma once

#include <gpipe/core/array.hpp>
#include <gpipe/core/compiled.hpp>
#include <gpipe/core/error.hpp>
#include <gpipe/memory/plan.hpp>
#include <gpipe/plan/ranks.hpp>
#include <gpipe/runtime/model.hpp>
#include <gpipe/runtime/update.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <stdexcept>

GPIPE_RUNS_ONCE_BEGIN
namespace gpipe {

/// Which replica adds up, and where state is sharded updates, which of a cell's parameters, and
/// where that lies: all that replicas exchange. Of cells of other ranks there are sizes alone.
struct ReplicaParts {
    /// Where a part begins, in bytes from the first of a device's parameters (as if each end of a
    /// tie had its own, and where state is sharded it has), and gradients: where calls are looked
    /// at there is something behind those of each layer.
    struct Begin {
        std::size_t parameter = 0; ///< from the first of them
        std::size_t gradient = 0;  ///< likewise
    };

    Replication replication{};     ///< how many replicas there are; of one there is nothing else
    Array<Begin> begin;            ///< [cell][replica], and the end
    Array<std::size_t> first_row;  ///< by cell, of Tables::updates
    Array<std::size_t> last_row;   ///< by cell: one past the last
    Array<std::size_t> message;    ///< by device: bytes of a message, at the most
    Array<std::byte*> parameters;  ///< by device: where they begin
    Array<std::byte*> room;        ///< by device: for a message of each other replica
    Array<std::size_t> element;    ///< by row of Tables::updates: bytes
    Array<UpdateRow> rows;         ///< what of these is in the part of this replica
    Array<std::uint32_t> channels; ///< [device][replica]: the Channel there; the next one is back

    /// Whether there are several.
    bool any() const { return replication.count > 1; }
    /// By cell and replica.
    Begin const& at(std::size_t cell, std::size_t replica) const {
        return begin[cell * (replication.count + 1) + replica];
    }
    /// By device and replica.
    std::uint32_t channel(std::size_t device, std::size_t replica) const {
        return channels[device * replication.count + replica];
    }
};

namespace detail {

// Where the parts of a cell begin. `updates`: the rows of its device's parameters, `at`: where each
// begins, as ReplicaParts::Begin counts, with gradients at `gradients`.
[[gnu::cold]] GPIPE_INLINE void add_parts(ReplicaParts& parts, std::size_t cell, std::size_t bytes,
                                          Array<UpdateRow> const& updates,
                                          Array<std::size_t> const& at, std::byte* gradients) {
    std::size_t row = parts.first_row[cell];
    std::size_t const first = at[row], count = parts.replication.count;
    for (std::size_t r = 0; r <= count; ++r) {
        std::size_t const begin = first + parts.replication.begin(bytes, r);
        while (row + 1 < parts.last_row[cell] && at[row + 1] <= begin) ++row;
        parts.begin[cell * (count + 1) + r] = {
            begin, static_cast<std::size_t>(updates[row].gradient - gradients) + begin - at[row]};
    }
}

// What this replica has of a row that begins `at` bytes from the first of its device's parameters.
// `states`: of its part of the cell.
[[gnu::cold]] GPIPE_INLINE void take_part(UpdateRow& row, std::size_t at, std::size_t element,
                                          ReplicaParts::Begin const* own, std::byte* states) {
    std::size_t const end = at + element * row.elements;
    std::size_t const first = std::clamp(own[0].parameter, at, end);
    std::size_t const last = std::clamp(own[1].parameter, first, end);
    row.parameter += first - at;
    row.gradient += first - at;
    row.elements = (last - first) / element;
    if (states && first < last) row.state = states + row.states * (first - own[0].parameter);
}

// `updates`, `order`: as Tables has them.
[[gnu::cold]] GPIPE_INLINE ReplicaParts replica_parts(Model const& model, MemoryPlan const& plan,
                                                      Array<std::byte*> const& arenas,
                                                      Ranks const& ranks,
                                                      Array<UpdateRow> const& updates,
                                                      Array<std::uint32_t> const& order) {
    ReplicaParts parts;
    parts.replication = plan.replication;
    if (!parts.any()) return parts;
    Programs const& programs = plan.lowered.programs;
    std::size_t const cells = programs.cells();
    std::size_t const devices = arenas.size();
    parts.begin = Array<ReplicaParts::Begin>(cells * (parts.replication.count + 1));
    parts.first_row = Array<std::size_t>(cells);
    parts.last_row = Array<std::size_t>(cells);
    parts.message = Array<std::size_t>(devices);
    parts.parameters = Array<std::byte*>(devices);
    parts.room = Array<std::byte*>(devices);
    parts.element = Array<std::size_t>(updates.size());
    parts.rows = updates;
    // Of a tied tensor one end counts.
    for (UpdateRow& part : parts.rows) part.squares = nullptr;
    for (std::uint32_t const row : order) parts.rows[row].squares = updates[row].squares;
    Array<std::size_t> at(updates.size());
    std::size_t row = 0;
    for (std::size_t d = 0; d < devices; ++d) {
        std::size_t next = 0;
        bool const own = ranks.own(d);
        std::byte* const gradients = own ? arenas[d] + plan.devices[d].parameters : nullptr;
        std::byte* states = own ? gradients + plan.devices[d].gradients : nullptr;
        if (own) {
            parts.parameters[d] = arenas[d];
            parts.room[d] = arenas[d] + plan.begin[d].replicas;
        }
        for (std::size_t const c : programs.cells_of(d)) {
            std::size_t const bytes =
                learned_bytes(model.infos.data(), plan.first[c], plan.first[c + 1]);
            parts.message[d] = std::max(parts.message[d], parts.replication.message(bytes));
            parts.first_row[c] = row;
            for (std::size_t i = plan.first[c]; i < plan.first[c + 1]; ++i)
                for (std::size_t t = 0; t < model.infos[i].parameters.count; ++t) {
                    if (!model.infos[i].learns(t)) continue;
                    at[row++] = next;
                    next += slot_bytes(model.infos[i].parameters.bytes[t]);
                }
            parts.last_row[c] = row;
            if (!own || bytes == 0) continue;
            add_parts(parts, c, bytes, updates, at, gradients);
            ReplicaParts::Begin const* const part = &parts.at(c, ranks.replica);
            for (std::size_t i = parts.first_row[c]; i < row; ++i) {
                UpdateRow const& whole = updates[i];
                if (!whole.add)
                    throw_error<std::invalid_argument>(
                        "gpipe: replicas add gradients up, and the elements of parameter tensor "
                        "%u of layer %u have no += for that",
                        whole.number, whole.layer);
                parts.element[i] =
                    model.infos[whole.layer].parameters.bytes[whole.number] / whole.elements;
                take_part(parts.rows[i], at[i], parts.element[i], part,
                          parts.replication.shards ? states : nullptr);
            }
            states += model.states * parts.replication.most(bytes);
        }
    }
    return parts;
}

} // namespace detail
} // namespace gpipe
GPIPE_RUNS_ONCE_END
