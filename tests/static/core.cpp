// core/: policies in any order, lists, ratios, bytes, version, arrays in constant evaluation.
#include <gpipe/core/array.hpp>
#include <gpipe/core/bytes.hpp>
#include <gpipe/core/dynamic.hpp>
#include <gpipe/core/policy.hpp>
#include <gpipe/core/ratio.hpp>
#include <gpipe/core/type_list.hpp>
#include <gpipe/core/type_name.hpp>
#include <gpipe/core/version.hpp>

#include <cstddef>
#include <type_traits>
#include <utility>

// One number that grows with the version, for #if.
#if GPIPE_VERSION < 100 || GPIPE_VERSION >= 1000000
#error GPIPE_VERSION is no number that #if can compare
#endif
static_assert(GPIPE_VERSION / 10000 == GPIPE_VERSION_MAJOR);
static_assert(GPIPE_VERSION / 100 % 100 == GPIPE_VERSION_MINOR);
static_assert(GPIPE_VERSION % 100 == GPIPE_VERSION_PATCH);

namespace {

using namespace gpipe::literals;
using gpipe::ratio;

// Ratios.
static_assert(ratio(3, 35) == gpipe::Ratio{3, 35} && ratio(6, 70) == ratio(3, 35));
static_assert(ratio(-2, 4) == gpipe::Ratio{-1, 2} && ratio(2, -4) == ratio(-1, 2));
static_assert(ratio(1, 2) < ratio(INT64_MAX, 3) && !(ratio(INT64_MAX, 3) < ratio(1, 2)));
static_assert(ratio(0, 7) == gpipe::Ratio{0, 1} && ratio(5, 0) == gpipe::Ratio{});
static_assert(ratio(1, 3) < ratio(1, 2) && !(ratio(2, 4) < ratio(1, 2)));
static_assert(static_cast<double>(ratio(1, 4)) == 0.25);

// Bytes.
static_assert(1_KiB == 1024 && 2_MiB == 2048_KiB && 2_GiB == 2048_MiB);
static_assert(gpipe::slot_bytes(0) == 0 && gpipe::slot_bytes(1) == 256);
static_assert(gpipe::slot_bytes(256) == 256 && gpipe::slot_bytes(257) == 512);
static_assert(gpipe::dynamic == static_cast<std::size_t>(-1));

// Lists, up to a thousand types.
template <std::size_t> struct Numbered {};
template <class Indices> struct ManyOf;
template <std::size_t... Is> struct ManyOf<std::index_sequence<Is...>> {
    using type = gpipe::List<Numbered<Is>...>;
};
using Many = typename ManyOf<std::make_index_sequence<1000>>::type;
static_assert(Many::size == 1000 && gpipe::List<>::size == 0);
static_assert(std::is_same_v<Many::at<0>, Numbered<0>> &&
              std::is_same_v<Many::at<999>, Numbered<999>>);
static_assert(std::is_same_v<gpipe::List<int, int, float>::at<1>, int>);

// Names.
static_assert(gpipe::type_name<int> == "int");
static_assert(gpipe::type_name<Numbered<7>>.find("Numbered<7") != std::string_view::npos);

// Policies: found by kind, in any order, each with a default.
struct Colour;
struct Size;
struct Red {
    using policy_kind = Colour;
};
struct Blue {
    using policy_kind = Colour;
};
struct Large {
    using policy_kind = Size;
};
template <class... Ps> using ColourOf = gpipe::detail::policy_or<Colour, Blue, Ps...>;
template <class... Ps> using SizeOf = gpipe::detail::policy_or<Size, void, Ps...>;
static_assert(std::is_same_v<ColourOf<>, Blue> && std::is_same_v<ColourOf<Large>, Blue>);
static_assert(std::is_same_v<ColourOf<Red>, Red> && std::is_same_v<ColourOf<Large, Red>, Red>);
static_assert(std::is_same_v<ColourOf<Red, Large>, Red>);
static_assert(std::is_same_v<SizeOf<Red, Large>, Large> && std::is_same_v<SizeOf<Red>, void>);
static_assert(gpipe::detail::check_policies<gpipe::List<Large, Red>, Colour, Size>());
static_assert(gpipe::detail::check_policies<gpipe::List<>, Colour, Size>());
template <class... Ps>
constexpr auto verdict = gpipe::detail::PolicyChecks<gpipe::List<Ps...>, Colour, Size>::find();
static_assert(verdict<Red, Large>.unknown == 2 && verdict<Red, Large>.twice == 2);
static_assert(verdict<Red, int, float>.unknown == 1);
static_assert(verdict<Red, Large, Blue, Red>.twice == 2);
static_assert(verdict<int, int>.unknown == 0 && verdict<int, int>.twice == 2);

// Arrays.
static_assert([] {
    gpipe::Array<int> a(3, 2);
    gpipe::Array<int> b = a;
    b[0] = 5;
    gpipe::Array<int> c = std::move(b);
    a = c;
    gpipe::Array<int> shorter(1);
    shorter = std::move(c);
    return a[0] + a[1] + a[2] == 9 && a.size() == 3 && b.empty() && shorter.size() == 3 &&
           shorter[2] == 2;
}());
// What there may be no memory for is not said to be noexcept, nor of what has one.
struct HasArray {
    gpipe::Array<int> array;
};
static_assert(!std::is_nothrow_copy_assignable_v<HasArray>);
static_assert(std::is_nothrow_move_assignable_v<HasArray>);

} // namespace
