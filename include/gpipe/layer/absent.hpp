#pragma once

#include <gpipe/call/call.hpp>
#include <gpipe/layer/view.hpp>

#include <cstddef>
#include <utility>

namespace gpipe::detail {

// The view of a T for a call: false if its mini-batch comes without.
template <class T, class View> constexpr View as_there(Frame const& frame, View const& view) {
    if constexpr (is_optional<T> && !is_none<View>)
        return frame.shared->optionals.lack(optional_id<T>) ? View{nullptr, 0} : view;
    else
        return view;
}

template <class Group> struct AsThere;
template <class... Ts> struct AsThere<Tensors<Ts...>> {
    template <class Views> static constexpr Views views(Frame const& frame, Views const& all) {
        return each(frame, all, std::index_sequence_for<Ts...>{});
    }

  private:
    template <class Views, std::size_t... is>
    static constexpr Views each(Frame const& frame, Views const& all, std::index_sequence<is...>) {
        if constexpr (sizeof...(Ts) == 1)
            return (as_there<Ts>(frame, all), ...);
        else
            return Views{as_there<Ts>(frame, gpipe::get<is>(all))...};
    }
};

// The same of a group.
template <class Group, class Views>
constexpr Views group_as_there([[maybe_unused]] Frame const& frame, Views const& views) {
    if constexpr (has_optional<as_tensors<Group>>)
        return AsThere<as_tensors<Group>>::views(frame, views);
    else
        return views;
}

} // namespace gpipe::detail
