#pragma once

#include <gpipe/core/array.hpp>
#include <gpipe/core/bytes.hpp>
#include <gpipe/core/type_name.hpp>

#include <concepts>
#include <cstddef>
#include <string_view>
#include <type_traits>

namespace gpipe {

/// The library handles that a layer or a loss works with, e.g. one of cuBLAS: declared as
/// `using Handles = gpipe::Handles<A, B>`, got by `gpipe::handle<A>(context)`. There is one object
/// of each type per device of the pipeline, which has one stream, shared by its layers; made with
/// the training, as H(Stream const&, std::byte* workspace), and destroyed with it. A type that
/// declares `static constexpr std::size_t workspace` is given that many bytes of the device's
/// memory, aligned to slot_alignment; others are given a pointer not to be used.
template <class... Hs> struct Handles {};

/// A type of handle as the memory plan sees it.
struct HandleNeed {
    void const* id = nullptr;  ///< one address per type
    std::size_t workspace = 0; ///< bytes
    std::string_view name;     ///< of the type
};
/// The types that a layer or a loss declares.
struct HandleNeeds {
    HandleNeed const* first = nullptr; ///< of `count`
    std::size_t count = 0;             ///< how many
};

/// A type of handle for one kind of stream.
struct HandleSpec {
    HandleNeed need; ///< see above
    void* (*make)(void const* stream,
                  std::byte* workspace) = nullptr; ///< throws what the constructor does
    void (*destroy)(void* object) = nullptr;       ///< that make has made
};
/// The types that a layer or a loss declares, for one kind of stream.
struct HandleSpecs {
    HandleSpec const* first = nullptr; ///< of `count`
    std::size_t count = 0;             ///< how many
};

namespace detail {

template <class H> inline char handle_mark = 0;
template <class H> inline constexpr void const* handle_id = &handle_mark<H>;

template <class H> inline constexpr std::size_t handle_workspace = 0;
template <class H>
    requires requires { H::workspace; }
inline constexpr std::size_t handle_workspace<H> = H::workspace;

// A and Handles<A> mean the same, as with tensors.
template <class T> struct AsHandles { using type = Handles<T>; };
template <class... Hs> struct AsHandles<Handles<Hs...>> { using type = Handles<Hs...>; };
template <class L, class = void> struct HandlesOf { using type = Handles<>; };
template <class L> struct HandlesOf<L, std::void_t<typename L::Handles>> {
    using type = typename AsHandles<typename L::Handles>::type;
};
template <class L> using handles_of = typename HandlesOf<L>::type;

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
        {handle_id<Hs>, handle_workspace<Hs>, type_name<Hs>}...};
    static constexpr HandleNeeds needs() { return {need_table, sizeof...(Hs)}; }
    static constexpr HandleSpecs specs() {
        static_assert(sizeof(spec_table<Hs...>) > 0);
        return {spec_table<Hs...>, sizeof...(Hs)};
    }

  private:
    // A template, so that no stream needs to be known for needs().
    template <class... Types>
    static constexpr HandleSpec spec_table[] = {
        {{handle_id<Types>, handle_workspace<Types>, type_name<Types>},
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

} // namespace detail

/// The workspaces of a device's handles, one after the other: of each type once, in the order in
/// which add() first sees them. HandleSet, told the same in the same order, hands out the same.
class HandlePlan {
  public:
    /// Those of a layer or a loss.
    constexpr void add(HandleNeeds needs) {
        for (std::size_t i = 0; i < needs.count; ++i) add(needs.first[i]);
    }
    /// Of all workspaces.
    constexpr std::size_t bytes() const { return bytes_; }

  private:
    // By name: g++ with -fsanitize=undefined does not compare addresses in constant expressions.
    constexpr void add(HandleNeed const& need) {
        for (std::string_view const name : names_)
            if (name == need.name) return;
        Array<std::string_view> longer(names_.size() + 1, need.name);
        for (std::size_t i = 0; i < names_.size(); ++i) longer[i] = names_[i];
        names_ = static_cast<Array<std::string_view>&&>(longer);
        bytes_ += slot_bytes(need.workspace);
    }

    Array<std::string_view> names_;
    std::size_t bytes_ = 0;
};

} // namespace gpipe
