// Arrays, ratios, bytes, lists of types and their names.
#include <gpipe/core/array.hpp>
#include <gpipe/core/bytes.hpp>
#include <gpipe/core/finite.hpp>
#include <gpipe/core/ratio.hpp>
#include <gpipe/core/type_list.hpp>
#include <gpipe/core/type_name.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

using gpipe::Array;
using gpipe::ratio;
using namespace gpipe::literals;

TEST_CASE(
    "an Array holds values of its own: copies are equal and independent, moves leave nothing") {
    Array<int> a(3, 7);
    CHECK(a.size() == 3);
    CHECK(std::accumulate(a.begin(), a.end(), 0) == 21);
    Array<int> b = a;
    b[1] = 1;
    CHECK(a[1] == 7);
    CHECK(b[0] + b[1] + b[2] == 15);
    int const* const data = b.data();
    Array<int> c = std::move(b);
    CHECK(c.data() == data);
    CHECK(b.empty()); // NOLINT: what a moved-from Array is, is the point
    a = c;
    CHECK(a[1] == 1);
    CHECK(a.data() != c.data());
    Array<int>& self = a;
    a = self;
    CHECK(a.size() == 3);
    CHECK(a[1] == 1);
    Array<std::string> const strings(2, "text");
    CHECK(strings[1] == "text");
    CHECK(Array<int>(5)[4] == 0);
    CHECK(Array<int>().empty());
    CHECK(Array<int>(0).begin() == Array<int>(0).end());
}

TEST_CASE("ratios are in lowest terms with a positive denominator, and compare as fractions") {
    for (std::int64_t a = -12; a <= 12; ++a)
        for (std::int64_t b = -12; b <= 12; ++b) {
            gpipe::Ratio const r = ratio(a, b);
            CHECK(r.denominator > 0);
            if (b == 0) {
                CHECK(r == gpipe::Ratio{0, 1});
                continue;
            }
            CHECK(r.numerator * b == a * r.denominator);
            CHECK(std::gcd(r.numerator, r.denominator) == 1);
            CHECK(static_cast<double>(r) == doctest::Approx(double(a) / double(b)));
            for (std::int64_t c = 1; c <= 5; ++c)
                CHECK((r < ratio(1, c)) == (static_cast<double>(r) < 1.0 / double(c) - 1e-12));
        }
}

TEST_CASE("what is finite is known by its bits") {
    double const infinity = std::numeric_limits<double>::infinity();
    for (double const x : {0.0, -0.0, 1.0, 5e-324, std::numeric_limits<double>::max()}) {
        CHECK(gpipe::detail::is_finite(x));
        CHECK(gpipe::detail::is_finite(-x));
    }
    for (double const x : {infinity, -infinity, std::numeric_limits<double>::quiet_NaN(),
                           -std::numeric_limits<double>::signaling_NaN()})
        CHECK_FALSE(gpipe::detail::is_finite(x));
}

TEST_CASE("an array of which an element cannot be copied leaves nothing behind") {
    struct Counted {
        int* live = nullptr;
        bool throws = false;
        Counted() = default;
        Counted(int& count, bool refuses) : live(&count), throws(refuses) { ++*live; }
        Counted& operator=(Counted const& other) {
            if (other.throws) throw std::range_error("no");
            live = other.live;
            ++*live;
            return *this;
        }
        ~Counted() {
            if (live) --*live;
        }
    };
    int live = 0;
    {
        Counted const all[] = {{live, false}, {live, false}, {live, true}};
        CHECK_THROWS_AS(gpipe::Array<Counted>::copy_of(all, 3), std::range_error);
        CHECK(live == 3);
    }
    CHECK(live == 0);
}

TEST_CASE("slots are multiples of 256 bytes, none larger than it must be") {
    for (std::size_t bytes = 0; bytes <= 2000; ++bytes) {
        std::size_t const slot = gpipe::slot_bytes(bytes);
        CHECK(slot % gpipe::slot_alignment == 0);
        CHECK(slot >= bytes);
        CHECK(slot < bytes + gpipe::slot_alignment);
    }
    CHECK(3_KiB == 3072);
    CHECK(2_MiB == 2u << 20);
    CHECK(5_GiB == std::size_t{5} << 30);
}

namespace {
struct Named {};
template <class T> struct Wrapped {};
} // namespace

TEST_CASE("a list gives the type at each position, a name is what is written in the source") {
    using L = gpipe::List<int, float, int, Wrapped<Named>>;
    static_assert(L::size == 4);
    CHECK(std::is_same_v<L::at<0>, int>);
    CHECK(std::is_same_v<L::at<1>, float>);
    CHECK(std::is_same_v<L::at<2>, int>);
    CHECK(std::is_same_v<L::at<3>, Wrapped<Named>>);
    CHECK(gpipe::type_name<int> == "int");
    CHECK(gpipe::type_name<double const> == "const double");
    std::string const name(gpipe::type_name<Wrapped<Named>>);
    CHECK(name.find("Wrapped<") != std::string::npos);
    CHECK(name.find("Named>") != std::string::npos);
    CHECK(name.back() == '>');
}
