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

template <class... Ts, class Views, std::size_t... is>
constexpr Views each_as_there(Frame const& frame, Views const& all, Tensors<Ts...>,
                              std::index_sequence<is...>) {
    if constexpr (sizeof...(Ts) == 1)
        return (as_there<Ts>(frame, all), ...);
    else
        return {as_there<Ts>(frame, gpipe::get<is>(all))...};
}

// The same of a group.
template <class Group, class Views>
constexpr Views group_as_there([[maybe_unused]] Frame const& frame, Views const& views) {
    using All = as_tensors<Group>;
    if constexpr (has_optional<All>)
        return each_as_there(frame, views, All{},
                             std::make_index_sequence<TensorGroup<All>::count>{});
    else
        return views;
}

} // namespace gpipe::detail
