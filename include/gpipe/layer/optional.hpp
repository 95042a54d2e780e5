#pragma once

#include <gpipe/core/type_name.hpp>
#include <gpipe/layer/tensor.hpp>

#include <cstddef>

namespace gpipe {

/// A tensor that whole mini-batches may come without: a mask that not every text has. It stands for
/// T, a Tensor, in the Input and Output of layers, in skips, side inputs and targets; its view is
/// false where it is absent, and has no samples then. The caller decides, by `gpipe::none` in place
/// of an array: `train.step({x, gpipe::none}, t)`. All tensors of one Tag, any type, are absent
/// together, wherever they stand, and so are their gradients; those of a tag that no array is given
/// for are always there. Memory and copies are planned for tensors that are there. After the None
/// that torchgpipe and PyTorch pass between stages.
template <class Tag, class T> struct Optional;
/// Of one that is there it has all that the tensor has.
template <class Tag, class T, std::size_t... Extents>
struct Optional<Tag, Tensor<T, Extents...>> : Tensor<T, Extents...> {};

namespace detail {

template <class Tag, class T>
inline constexpr void const* optional_id<Optional<Tag, T>> = &type_mark<Tag>;

template <class T> inline constexpr bool is_optional = false;
template <class Tag, class T> inline constexpr bool is_optional<Optional<Tag, T>> = true;
template <class Group> inline constexpr bool has_optional = is_optional<Group>;
template <class... Ts>
inline constexpr bool has_optional<Tensors<Ts...>> = (false || ... || is_optional<Ts>);

// Where what is a layer's own is viewed.
template <class Group> consteval bool always_there() {
    constexpr bool holds = !has_optional<Group>;
    static_assert(holds, "gpipe: a gpipe::Optional stands in Input and Output, skips, side inputs "
                         "and targets: what a layer has for itself is always there");
    return holds;
}

template <class Tag, class T, std::size_t... Es>
inline constexpr bool is_tensor<Optional<Tag, Tensor<T, Es...>>> = true;

} // namespace detail
} // namespace gpipe
