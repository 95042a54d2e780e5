#pragma once

#include <gpipe/call/handle_specs.hpp>
#include <gpipe/core/array.hpp>
#include <gpipe/core/bytes.hpp>

#include <cstddef>
#include <utility>

namespace gpipe {

/// The handles of one device of a pipeline. Owns them; the last made goes first.
class HandleSet {
  public:
    HandleSet() = default;
    HandleSet(HandleSet const&) = delete;
    HandleSet& operator=(HandleSet const&) = delete;
    ~HandleSet() {
        for (std::size_t i = entries_.size(); i-- > 0;) entries_[i].destroy(entries_[i].object);
    }

    /// Makes the handles of these types that it does not have yet, for a stream of the type that
    /// the specs are for. `workspaces`: room for what HandlePlan says of all that is ever added.
    /// Throws what their constructors throw; those made before stay.
    [[gnu::cold]] void add(HandleSpecs specs, void const* stream, std::byte* workspaces) {
        for (HandleSpec const& spec : specs)
            if (!find(spec.need.id)) add(spec, stream, workspaces);
    }
    /// The handle of a type; null if there is none.
    void* find(void const* id) const {
        for (Entry const& entry : entries_)
            if (entry.id == id) return entry.object;
        return nullptr;
    }
    /// How many types there are.
    std::size_t size() const { return entries_.size(); }

  private:
    struct Entry {
        void const* id = nullptr;
        void* object = nullptr;
        void (*destroy)(void*) = nullptr;
    };

    void add(HandleSpec const& spec, void const* stream, std::byte* workspaces) {
        std::size_t const count = entries_.size();
        Array<Entry> longer(count + 1);
        for (std::size_t i = 0; i < count; ++i) longer[i] = entries_[i];
        longer[count] = {spec.need.id, spec.make(stream, workspaces + bytes_), spec.destroy};
        entries_ = std::move(longer);
        bytes_ += slot_bytes(spec.need.workspace);
    }

    Array<Entry> entries_;
    std::size_t bytes_ = 0; ///< of the workspaces handed out
};

} // namespace gpipe
