#pragma once

#include <gpipe/core/array.hpp>
#include <gpipe/core/compiled.hpp>

#include <cstddef>
#include <string_view>

namespace gpipe {

/// A type of constants of a step, as planning and the runtime see it.
struct ConstantNeed {
    void const* id = nullptr;              ///< one address per type
    std::size_t bytes = 0;                 ///< of it
    std::size_t alignment = 1;             ///< likewise
    std::string_view name;                 ///< of the type
    void (*make)(std::byte* to) = nullptr; ///< as a T{}
};
/// The types that a layer or a loss declares.
using ConstantNeeds = Part<ConstantNeed>;
/// Whether a type of this name is among them.
GPIPE_INLINE constexpr bool has(ConstantNeeds needs, std::string_view name) {
    for (ConstantNeed const& need : needs)
        if (need.name == name) return true;
    return false;
}

/// All constants of a step, one behind the other: each type once, in the order in which add() first
/// sees it. They lie so in every memory.
class ConstantTable {
  public:
    /// Those of a layer or a loss.
    constexpr void add(ConstantNeeds needs) {
        for (ConstantNeed const& need : needs) add(need);
    }
    /// Of all of them.
    constexpr std::size_t bytes() const { return bytes_; }
    /// Where in these bytes a type lies that is among them.
    std::size_t offset_of(void const* id) const {
        Entry const* entry = entries_.data();
        while (entry->need.id != id) ++entry;
        return entry->offset;
    }
    /// As they are if nobody sets them.
    [[gnu::cold]] void make(std::byte* to) const {
        for (Entry const& entry : entries_) entry.need.make(to + entry.offset);
    }

  private:
    struct Entry {
        ConstantNeed need;
        std::size_t offset = 0;
    };

    // By name, as HandlePlan.
    constexpr void add(ConstantNeed const& need) {
        for (Entry const& entry : entries_)
            if (entry.need.name == need.name) return;
        std::size_t const count = entries_.size();
        std::size_t const at = (bytes_ + need.alignment - 1) / need.alignment * need.alignment;
        enlarge(entries_, count, count + 1);
        entries_[count] = {need, at};
        bytes_ = at + need.bytes;
    }

    Array<Entry> entries_;
    std::size_t bytes_ = 0;
};

/// The values of a step, in memory that work on a device's stream can read.
struct StepConstants {
    ConstantTable const* table = nullptr; ///< what lies where
    std::byte const* values = nullptr;    ///< null on a device where nobody reads any

    /// Of all of them.
    std::size_t bytes() const { return table ? table->bytes() : 0; }
};

} // namespace gpipe
