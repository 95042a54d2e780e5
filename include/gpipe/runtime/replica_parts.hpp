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

/// Which replica adds up, and where state is sharded updates, which of a device's parameters, and
/// where that lies: all that replicas exchange. Of devices of other ranks there are sizes alone.
struct ReplicaParts {
    /// Where a part begins, in bytes from the first of a device's parameters, and gradients: where
    /// calls are looked at there is something behind those of each layer.
    struct Begin {
        std::size_t parameter = 0; ///< from the first of them
        std::size_t gradient = 0;  ///< likewise
    };

    Replication replication{};     ///< how many replicas there are; of one there is nothing else
    Array<Begin> begin;            ///< [device][replica], and the end
    Array<std::size_t> message;    ///< by device: bytes of a message, at the most
    Array<std::byte*> parameters;  ///< by device: where they begin
    Array<std::byte*> room;        ///< by device: for a message of each other replica
    Array<std::size_t> element;    ///< by row of Tables::updates: bytes
    Array<UpdateRow> rows;         ///< what of these is in the part of this replica
    Array<std::uint32_t> channels; ///< [device][replica]: the Channel there; the next one is back

    /// Whether there are several.
    bool any() const { return replication.count > 1; }
    /// By device and replica.
    ///@{
    Begin const& at(std::size_t device, std::size_t replica) const {
        return begin[device * (replication.count + 1) + replica];
    }
    std::uint32_t channel(std::size_t device, std::size_t replica) const {
        return channels[device * replication.count + replica];
    }
    ///@}
};

namespace detail {

// `updates`, `updates_at`, `order`: as Tables has them.
[[gnu::cold]] GPIPE_INLINE ReplicaParts replica_parts(Model const& model, MemoryPlan const& plan,
                                                      Array<std::byte*> const& arenas,
                                                      Ranks const& ranks,
                                                      Array<UpdateRow> const& updates,
                                                      Array<std::size_t> const& updates_at,
                                                      Array<std::uint32_t> const& order) {
    ReplicaParts parts;
    parts.replication = plan.replication;
    if (!parts.any()) return parts;
    std::size_t const devices = arenas.size();
    std::size_t const count = parts.replication.count;
    parts.begin = Array<ReplicaParts::Begin>(devices * (count + 1));
    parts.message = Array<std::size_t>(devices);
    parts.parameters = Array<std::byte*>(devices);
    parts.room = Array<std::byte*>(devices);
    parts.element = Array<std::size_t>(updates.size());
    parts.rows = updates;
    // Of a tied tensor one end counts.
    for (UpdateRow& part : parts.rows) part.squares = nullptr;
    for (std::uint32_t const row : order) parts.rows[row].squares = updates[row].squares;
    for (std::size_t d = 0; d < devices; ++d) {
        DeviceBytes const& bytes = plan.devices[d];
        parts.message[d] = parts.replication.message(bytes.parameters);
        if (!ranks.own(d)) continue;
        parts.parameters[d] = arenas[d];
        parts.room[d] = arenas[d] + plan.begin[d].replicas;
        auto const at = [&](UpdateRow const& row) {
            return static_cast<std::size_t>(row.parameter - parts.parameters[d]);
        };
        std::size_t row = updates_at[d];
        for (std::size_t r = 0; r < count && bytes.parameters > 0; ++r) {
            std::size_t const begin = parts.replication.begin(bytes.parameters, r);
            while (row + 1 < updates_at[d + 1] && at(updates[row + 1]) <= begin) ++row;
            std::byte* const gradients = arenas[d] + bytes.parameters;
            parts.begin[d * (count + 1) + r] = {
                begin, static_cast<std::size_t>(updates[row].gradient - gradients) + begin -
                           at(updates[row])};
        }
        parts.begin[d * (count + 1) + count] = {bytes.parameters, bytes.gradients};
        std::size_t const own = parts.at(d, ranks.replica).parameter;
        std::size_t const end = parts.at(d, ranks.replica + 1).parameter;
        for (std::size_t i = updates_at[d]; i < updates_at[d + 1]; ++i) {
            UpdateRow& part = parts.rows[i];
            if (!part.add)
                throw_error<std::invalid_argument>(
                    "gpipe: replicas add gradients up, and the elements of parameter tensor %u of "
                    "layer %u have no += for that",
                    part.number, part.layer);
            std::size_t const size = parts.element[i] =
                model.infos[part.layer].parameters.bytes[part.number] / part.elements;
            std::size_t const row_begin = at(part), row_end = row_begin + size * part.elements;
            std::size_t const first = std::clamp(own, row_begin, row_end);
            std::size_t const last = std::clamp(end, first, row_end);
            part.parameter += first - row_begin;
            part.gradient += first - row_begin;
            part.elements = (last - first) / size;
            if (parts.replication.shards && first < last)
                part.state =
                    arenas[d] + bytes.parameters + bytes.gradients + model.states * (first - own);
        }
    }
    return parts;
}

} // namespace detail
} // namespace gpipe
GPIPE_RUNS_ONCE_END
