#pragma once

#include <gpipe/core/array.hpp>
#include <gpipe/schedule/programs.hpp>

#include <cstddef>

namespace gpipe {

/// Programs as plain arrays, which constant evaluation reads at the least cost. What proofs and
/// passes work on, whether the arrays are a Programs' or a constant's.
struct ProgramsView {
    std::size_t devices = 0;
    std::size_t cells = 0;
    std::size_t micro_batches = 0;
    std::size_t const* begin = nullptr;     ///< by device, then the end of the last
    std::size_t const* device_of = nullptr; ///< by cell
    Action const* actions = nullptr;

    constexpr std::size_t size() const { return begin[devices]; }
};

/// The view of a Programs, which must outlive it.
class ViewOf {
  public:
    constexpr explicit ViewOf(Programs const& programs)
        : begin_(programs.devices() + 1), device_of_(programs.cells()) {
        std::size_t const devices = programs.devices();
        for (std::size_t d = 0; d < devices; ++d) begin_[d + 1] = programs.end(d);
        for (std::size_t c = 0; c < programs.cells(); ++c) device_of_[c] = programs.device_of(c);
        view_ = {devices,       programs.cells(),  programs.micro_batches(),
                 begin_.data(), device_of_.data(), programs.size() ? &programs[0] : nullptr};
    }
    ViewOf(ViewOf const&) = delete;
    constexpr ProgramsView const& operator*() const { return view_; }

  private:
    Array<std::size_t> begin_;
    Array<std::size_t> device_of_;
    ProgramsView view_;
};

} // namespace gpipe
