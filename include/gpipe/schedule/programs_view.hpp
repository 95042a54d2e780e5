#pragma once

#include <gpipe/core/array.hpp>
#include <gpipe/core/compiled.hpp>
#include <gpipe/schedule/programs.hpp>

#include <cstddef>

namespace gpipe {

/// Programs as plain arrays, which constant evaluation reads at the least cost. What proofs and
/// passes work on, whether the arrays are a Programs' or a constant's.
struct ProgramsView {
    std::size_t devices = 0;                ///< K
    std::size_t cells = 0;                  ///< K, or more
    std::size_t micro_batches = 0;          ///< M
    std::size_t const* begin = nullptr;     ///< by device, then the end of the last
    std::size_t const* device_of = nullptr; ///< by cell
    Action const* actions = nullptr;        ///< device by device

    /// Actions in all.
    constexpr std::size_t size() const { return begin[devices]; }
};

/// The view of a Programs, which must outlive it.
class ViewOf {
  public:
    /// Copies what is not an array there.
    constexpr explicit ViewOf(Programs const& programs)
        : begin_(programs.devices() + 1), device_of_(programs.cells()) {
        std::size_t const devices = programs.devices();
        for (std::size_t d = 0; d < devices; ++d) begin_[d + 1] = programs.end(d);
        for (std::size_t c = 0; c < programs.cells(); ++c) device_of_[c] = programs.device_of(c);
        view_ = {devices,       programs.cells(),  programs.micro_batches(),
                 begin_.data(), device_of_.data(), programs.actions()};
    }
    ViewOf(ViewOf const&) = delete;
    /// Valid as long as this object and the programs.
    constexpr ProgramsView const& operator*() const { return view_; }

  private:
    Array<std::size_t> begin_;
    Array<std::size_t> device_of_;
    ProgramsView view_;
};

/// The other way round: a copy of what a view sees.
GPIPE_INLINE constexpr Programs programs_of(ProgramsView const& view) {
    Programs result(view.devices, view.cells, view.micro_batches, view.size());
    for (std::size_t c = 0; c < view.cells; ++c) result.place(c, view.device_of[c]);
    for (std::size_t d = 0; d < view.devices; ++d) {
        std::size_t const size = view.begin[d + 1] - view.begin[d];
        Action const* const from = view.actions + view.begin[d];
        Action* const to = result.append(size);
        for (std::size_t i = 0; i < size; ++i) to[i] = from[i];
        result.next_device();
    }
    return result;
}

} // namespace gpipe
