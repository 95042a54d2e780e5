#pragma once

#include <gpipe/chain/item.hpp>
#include <gpipe/core/array.hpp>
#include <gpipe/core/type_name.hpp>
#include <gpipe/layer/dtype.hpp>
#include <gpipe/layer/skip.hpp>
#include <gpipe/layer/traits.hpp>

#include <array>
#include <cstddef>
#include <string_view>
#include <type_traits>

namespace gpipe {

/// The numbers of a tensor as values, for what has to look at tensors of any type between steps.
struct ElementType {
    std::size_t bytes = 0; ///< of one
    /// Null where the elements carry no gradient.
    double (*get)(std::byte const* at) = nullptr;
    void (*set)(std::byte* at, double value) = nullptr; ///< to the nearest that there is

    /// The distance from 1 to the next number.
    double epsilon() const {
        alignas(16) std::byte one[32];
        double step = 1;
        for (double next = step / 2;; next /= 2) {
            set(one, 1 + next);
            if (get(one) == 1 || next < 1e-18) return step;
            step = next;
        }
    }
};

/// A tensor's type as a value: its elements and extents, of a sample or of the whole.
struct TensorType {
    ElementType element;                  ///< how one is read and written
    Dtype dtype = Dtype::other;           ///< as files know it
    std::string_view name;                ///< of the elements' type, as the compiler writes it
    std::size_t count = 0;                ///< elements
    std::size_t const* extents = nullptr; ///< `rank` of them
    std::size_t rank = 0;                 ///< 0: one number
    void const* optional = nullptr;       ///< see ElementInfo
    bool absent = false;                  ///< in the mini-batch that is looked at
};
/// Those of a group of tensors.
using TensorTypes = Part<TensorType>;

/// What the tensors of a layer consist of.
struct LayerElements {
    TensorTypes takes;       ///< of a sample: its input, then what it pops
    TensorTypes gives;       ///< of a sample: its output, then what it stashes
    TensorTypes parameters;  ///< whole
    TensorTypes buffers;     ///< likewise
    std::size_t inputs = 0;  ///< tensors that it takes and does not pop
    std::size_t outputs = 0; ///< that it gives and does not stash

    /// Parts of these.
    ///@{
    constexpr TensorTypes input() const { return {takes.begin(), inputs}; }
    constexpr TensorTypes output() const { return {gives.begin(), outputs}; }
    constexpr TensorTypes popped() const { return {takes.begin() + inputs, takes.size() - inputs}; }
    constexpr TensorTypes stashed() const {
        return {gives.begin() + outputs, gives.size() - outputs};
    }
    ///@}
};

namespace detail {

template <class T> double get_element(std::byte const* at) {
    T const& element = *reinterpret_cast<T const*>(at);
    if constexpr (std::is_floating_point_v<T>)
        return static_cast<double>(element);
    else
        return static_cast<double>(static_cast<float>(element));
}
template <class T> void set_element(std::byte* at, double value) {
    if constexpr (std::is_floating_point_v<T>)
        *reinterpret_cast<T*>(at) = static_cast<T>(value);
    else
        *reinterpret_cast<T*>(at) = static_cast<T>(static_cast<float>(value));
}
template <class T> constexpr ElementType element_type() {
    ElementType type{sizeof(T)};
    if constexpr (CarriesGradient<T>::value) {
        type.get = &get_element<T>;
        type.set = &set_element<T>;
    }
    return type;
}

template <class Group> struct TypesOf;
template <class... Ts> struct TypesOf<Tensors<Ts...>> {
    static constexpr std::array<TensorType, sizeof...(Ts)> value{
        TensorType{element_type<typename Ts::Element>(), DtypeOf<typename Ts::Element>::value,
                   type_name<typename Ts::Element>, Ts::size, Ts::extents.data(), Ts::rank,
                   optional_id<Ts>}...};
};
template <class Group> constexpr TensorTypes types_of() {
    auto const& types = TypesOf<as_tensors<Group>>::value;
    return {types.data(), types.size()};
}

template <class Group, class Skips> struct WithSkips;
template <class... Ts, class... Ss> struct WithSkips<Tensors<Ts...>, Skips<Ss...>> {
    using type = Tensors<Ts..., typename SkipOf<Ss>::Tensor...>;
};
template <class Group, class Skips>
using with_skips = typename WithSkips<as_tensors<Group>, Skips>::type;

// For Pipeline::leaf_table.
struct ElementsOf {
    using Value = LayerElements;
    template <class L> static constexpr Value of() {
        return {types_of<with_skips<typename L::Input, typename PopOf<L>::type>>(),
                types_of<with_skips<typename L::Output, typename StashOf<L>::type>>(),
                types_of<typename LayerTraits<L>::Parameters>(),
                types_of<typename LayerTraits<L>::Buffers>(),
                TensorGroup<typename L::Input>::count,
                TensorGroup<typename L::Output>::count};
    }
};

} // namespace detail

/// By layer of Net, a Pipeline.
template <class Net> Array<LayerElements> elements_of() {
    static constexpr auto leaves = Net::template leaf_table<detail::ElementsOf>();
    return detail::by_layer(Net::extents(), leaves.data());
}

} // namespace gpipe
