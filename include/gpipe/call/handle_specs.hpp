#pragma once

#include <gpipe/core/array.hpp>
#include <gpipe/core/bytes.hpp>

#include <cstddef>
#include <string_view>

namespace gpipe {

/// A type of handle as the memory plan sees it.
struct HandleNeed {
    void const* id = nullptr;  ///< one address per type
    std::size_t workspace = 0; ///< bytes
    std::string_view name;     ///< of the type
};
/// The types that a layer or a loss declares.
using HandleNeeds = Part<HandleNeed>;

/// A type of handle for one kind of stream.
struct HandleSpec {
    HandleNeed need; ///< see above
    void* (*make)(void const* stream,
                  std::byte* workspace) = nullptr; ///< throws what the constructor does
    void (*destroy)(void* object) = nullptr;       ///< that make has made
};
/// The types that a layer or a loss declares, for one kind of stream.
using HandleSpecs = Part<HandleSpec>;

/// The workspaces of a device's handles, one after the other: of each type once, in the order in
/// which add() first sees them. HandleSet, told the same in the same order, hands out the same.
class HandlePlan {
  public:
    /// Those of a layer or a loss.
    constexpr void add(HandleNeeds needs) {
        for (HandleNeed const& need : needs) add(need);
    }
    /// Of all workspaces.
    constexpr std::size_t bytes() const { return bytes_; }

  private:
    // By name: g++ with -fsanitize=undefined does not compare addresses in constant expressions.
    constexpr void add(HandleNeed const& need) {
        for (std::string_view const name : names_)
            if (name == need.name) return;
        std::size_t const count = names_.size();
        enlarge(names_, count, count + 1);
        names_[count] = need.name;
        bytes_ += slot_bytes(need.workspace);
    }

    Array<std::string_view> names_;
    std::size_t bytes_ = 0;
};

} // namespace gpipe
