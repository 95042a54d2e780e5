// Sums in the library's one order, against a plain loop.
#include <gpipe/core/ordered_sum.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <random>
#include <vector>

namespace {

using gpipe::ordered_sum;
using gpipe::ordered_sum_of_squares;

// As the 16-bit types of CUDA: no arithmetic, but a way to float.
struct Small {
    signed char value;
    explicit operator float() const { return value; }
};

template <class T> std::vector<T> numbers(std::size_t count) {
    std::mt19937 random(static_cast<unsigned>(count));
    std::normal_distribution<double> normal;
    std::vector<T> values(count);
    for (T& value : values) value = static_cast<T>(normal(random));
    return values;
}

template <class T> void check_against_loop(std::size_t count) {
    auto const values = numbers<T>(count);
    double sum = 0, squares = 0, absolute = 0;
    for (T const value : values) {
        sum += double(value);
        squares += double(value) * double(value);
        absolute += std::abs(double(value));
    }
    // A double's sum of n numbers errs by n units in the last place of their absolute sum, at most.
    double const bound = double(count) * 0x1p-53;
    CHECK(std::abs(ordered_sum(values.data(), count) - sum) <= bound * absolute);
    CHECK(std::abs(ordered_sum_of_squares(values.data(), count) - squares) <= bound * squares);
}

} // namespace

TEST_CASE("sums are those of a plain loop, up to the rounding of doubles") {
    for (std::size_t count : {0u, 1u, 2u, 255u, 256u, 257u, 2047u, 2048u, 2049u, 4097u, 100000u,
                              1048576u, 1048577u, 2000003u}) {
        CAPTURE(count);
        check_against_loop<float>(count);
        check_against_loop<double>(count);
    }
}

TEST_CASE("every element is added once, whatever the count") {
    std::vector<Small> values(5000);
    for (std::size_t i = 0; i < values.size(); ++i)
        values[i] = {static_cast<signed char>(i % 201 - 100)};
    double sum = 0, squares = 0; // of integers: exact
    for (std::size_t count = 0; count < values.size(); ++count) {
        REQUIRE(ordered_sum(values.data(), count) == sum);
        REQUIRE(ordered_sum_of_squares(values.data(), count) == squares);
        sum += values[count].value;
        squares += values[count].value * values[count].value;
    }
}

TEST_CASE("the order is the documented one") {
    // (1 - big) + (big + 1), where big + 1 = big; a plain loop would give 1.
    double const big = 0x1p60;
    double const four[] = {1, big, -big, 1};
    CHECK(ordered_sum(four, 4) == 0);
    // Thread 0 of block 0 meets the elements 0, 512, ... of two blocks in ascending order.
    static_assert(gpipe::sum_blocks(2049) == 2);
    std::vector<double> two(2049);
    two[0] = big;
    two[512] = 1;
    two[1024] = -big;
    two[1536] = 4;
    CHECK(ordered_sum(two.data(), two.size()) == 4);
    static_assert(gpipe::sum_blocks(0) == 0 && gpipe::sum_blocks(1) == 1);
    static_assert(gpipe::sum_blocks(std::size_t{1} << 40) == 512);
}

TEST_CASE("a square is not rounded before it is added") {
    static_assert(gpipe::sum_blocks(513) == 1); // thread 0 adds elements 0, 256 and 512
    std::vector<double> values(513);
    values[0] = values[256] = 0x1p-27;
    values[512] = 1 + 0x1p-30;
    // 2^-53 + (1 + 2^-29 + 2^-60) lies above the middle of two doubles; without 2^-60, on it.
    CHECK(ordered_sum_of_squares(values.data(), values.size()) == 1 + 0x1p-29 + 0x1p-52);
}
