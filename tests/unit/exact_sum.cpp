// Sums in which nothing is rounded, against another way of adding exactly.
#include <gpipe/core/exact_sum.hpp>
#include <support/exact_norm.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

namespace {

using Words = std::array<std::uint64_t, gpipe::exact_words>;

void add(Words& words, double value) {
    auto const digits = gpipe::detail::exact_digits(value);
    for (std::size_t d = 0; d < 3; ++d) words[digits.at + d] += digits.digit[d];
}
double value(Words const& words) { return gpipe::exact_value(words.data(), 1, 0, 1); }
double sum(std::vector<double> const& numbers) {
    Words words{};
    for (double const x : numbers) add(words, x);
    return value(words);
}
double expected(std::vector<double> const& numbers) {
    toy::ExactParts parts;
    for (double const x : numbers) parts.add(x);
    return parts.value();
}

} // namespace

TEST_CASE("one number is itself, whatever its exponent") {
    CHECK(sum({}) == 0);
    CHECK(sum({0}) == 0);
    std::mt19937_64 random(1);
    for (int exponent = -1074; exponent < 1024; ++exponent) {
        double const power = std::ldexp(1.0, exponent);
        REQUIRE(sum({power}) == power);
        double const x = std::ldexp(std::ldexp(double(random() >> 11), -53), exponent);
        REQUIRE(sum({x}) == x);
    }
    double const most = std::numeric_limits<double>::max();
    CHECK(sum({most}) == most);
    CHECK(sum({most, most}) == HUGE_VAL);
    CHECK(sum({most, std::ldexp(1.0, 969)}) == most);
    CHECK(sum({most, std::ldexp(1.0, 970)}) == HUGE_VAL);
}

TEST_CASE("a sum is rounded once, and the same in every order and in whatever parts") {
    std::mt19937_64 random(2);
    for (int trial = 0; trial < 2000; ++trial) {
        CAPTURE(trial);
        int const width = 1 + trial % 120;
        std::vector<double> numbers(1 + random() % 40);
        for (double& x : numbers)
            x = std::ldexp(double(random() >> 11), int(random() % unsigned(width)) - 500);
        // Ties, and what is a little more than one.
        if (trial % 3 == 0) numbers = {0x1p53, 1};
        if (trial % 3 == 1) numbers = {0x1p53 + 2, 1, std::ldexp(1.0, -trial / 2)};
        double const all = sum(numbers);
        REQUIRE(all == expected(numbers));
        std::shuffle(numbers.begin(), numbers.end(), random);
        REQUIRE(sum(numbers) == all);

        // Four parts, two by two with something behind each pair.
        constexpr std::size_t stride = 2 * gpipe::exact_words + 3;
        std::vector<std::uint64_t> parts(2 * stride);
        for (std::size_t i = 0; i < numbers.size(); ++i) {
            std::size_t const part = random() % 4;
            auto const digits = gpipe::detail::exact_digits(numbers[i]);
            for (std::size_t d = 0; d < 3; ++d)
                parts[part / 2 * stride + part % 2 * gpipe::exact_words + digits.at + d] +=
                    digits.digit[d];
        }
        REQUIRE(gpipe::exact_value(parts.data(), 2, stride, 2) == all);
    }
}

TEST_CASE("carries of many numbers arrive") {
    Words words{};
    double const x = std::nextafter(1.0, 0.0);
    auto const digits = gpipe::detail::exact_digits(x);
    std::uint64_t const count = (std::uint64_t{1} << 32) - 1; // all that there is room for
    for (std::size_t d = 0; d < 3; ++d) words[digits.at + d] = digits.digit[d] * count;
    // count - count / 2^53: of these a double has 53 bits.
    CHECK(value(words) == std::fma(-double(count), 0x1p-53, double(count)));
}

TEST_CASE("what is not finite makes a sum infinite, whatever its sign") {
    for (double const x :
         {std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity(),
          std::numeric_limits<double>::quiet_NaN(), -std::numeric_limits<double>::quiet_NaN()}) {
        CHECK(sum({1, x, 2}) == HUGE_VAL);
        CHECK(sum({x}) == HUGE_VAL);
    }
}

TEST_CASE_TEMPLATE("squares are added slot by slot, wherever a gradient is cut at one", T, float,
                   double) {
    constexpr std::size_t slot = 256 / sizeof(T);
    std::mt19937 random(3);
    std::normal_distribution<double> normal;
    for (std::size_t const count :
         {std::size_t{0}, std::size_t{1}, slot - 1, slot, slot + 1, 7 * slot + 5, 40 * slot}) {
        CAPTURE(count);
        std::vector<T> data(count);
        for (T& x : data)
            x = static_cast<T>(normal(random) * std::ldexp(1.0, int(random() % 60) - 30));
        toy::ExactParts parts;
        toy::add_squares(parts, data.data(), count);
        for (std::size_t cut = 0; cut <= count; cut += slot) {
            Words words{}, other{};
            double const first = gpipe::add_squares_exactly(words.data(), data.data(), cut);
            CHECK(first == doctest::Approx(value(words)).epsilon(1e-12));
            gpipe::add_squares_exactly(other.data(), data.data() + cut, count - cut);
            for (std::size_t i = 0; i < words.size(); ++i) words[i] += other[i];
            REQUIRE(value(words) == parts.value());
        }
    }
}
