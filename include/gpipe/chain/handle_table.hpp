#pragma once

#include <gpipe/core/type_name.hpp>
#include <gpipe/layer/handles.hpp>

#include <concepts>
#include <cstddef>

namespace gpipe::detail {

template <class H> inline constexpr std::size_t handle_workspace = 0;
template <class H>
    requires requires { H::workspace; }
inline constexpr std::size_t handle_workspace<H> = H::workspace;

template <class H, class Stream>
[[gnu::cold]] void* make_handle(void const* stream, std::byte* workspace) {
    constexpr bool fits = std::constructible_from<H, Stream const&, std::byte*>;
    static_assert(fits, "gpipe: a handle type needs a constructor H(Stream const&, std::byte* "
                        "workspace) for the device's Stream");
    if constexpr (fits)
        return new H(*static_cast<Stream const*>(stream), workspace);
    else
        return nullptr;
}
template <class H> [[gnu::cold]] void destroy_handle(void* object) {
    delete static_cast<H*>(object);
}

template <class Hs, class Stream> struct HandleTable;
template <class Stream> struct HandleTable<Handles<>, Stream> {
    static constexpr HandleNeeds needs() { return {}; }
    static constexpr HandleSpecs specs() { return {}; }
};
template <class... Hs, class Stream> struct HandleTable<Handles<Hs...>, Stream> {
    static constexpr HandleNeed need_table[] = {
        {&type_mark<Hs>, handle_workspace<Hs>, type_name<Hs>}...};
    static constexpr HandleNeeds needs() { return {need_table, sizeof...(Hs)}; }
    static constexpr HandleSpecs specs() {
        static_assert(sizeof(spec_table<Hs...>) > 0);
        return {spec_table<Hs...>, sizeof...(Hs)};
    }

  private:
    // A template, so that no stream needs to be known for needs().
    template <class... Types>
    static constexpr HandleSpec spec_table[] = {
        {{&type_mark<Types>, handle_workspace<Types>, type_name<Types>},
         &make_handle<Types, Stream>,
         &destroy_handle<Types>}...};
};

/// What L, a layer or a loss, declares.
template <class L> constexpr HandleNeeds handle_needs() {
    return HandleTable<handles_of<L>, void>::needs();
}
template <class L, class Stream> constexpr HandleSpecs handle_specs() {
    return HandleTable<handles_of<L>, Stream>::specs();
}

} // namespace gpipe::detail
