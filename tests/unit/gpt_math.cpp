#include <gpt/blas.hpp>
#include <gpt/math.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <thread>
#include <vector>

namespace {

std::vector<float> normal(std::size_t n, unsigned seed) {
    std::vector<float> values(n);
    std::mt19937 random{seed};
    std::normal_distribution<float> distribution;
    for (float& value : values) value = distribution(random);
    return values;
}

TEST_CASE("the exponential is right to a millionth, and finite everywhere") {
    for (int i = -6000; i <= 6000; ++i) {
        float const x = static_cast<float>(i) * 0.01f;
        double const exact = std::exp(static_cast<double>(x));
        CHECK(std::abs(static_cast<double>(gpt::exponential(x)) / exact - 1) < 1e-6);
    }
    CHECK(gpt::exponential(0.0f) == 1.0f);
    CHECK(gpt::exponential(-1e30f) < 1e-25f);
    CHECK(gpt::exponential(1e30f) > 1e25f);
    CHECK(std::isfinite(gpt::exponential(std::numeric_limits<float>::infinity())));
}

TEST_CASE("GELU is that of its definition, its slope that of differences") {
    for (double u = -12; u <= 12; u += 0.037) {
        double const z = std::sqrt(2 / std::acos(-1.0)) * (u + 0.044715 * u * u * u);
        double const exact = 0.5 * u * (1 + std::tanh(z));
        CAPTURE(u);
        CHECK(std::abs(gpt::gelu(u) - exact) < 1e-12 * (1 + std::abs(u)));
        CHECK(std::abs(static_cast<double>(gpt::gelu(static_cast<float>(u))) - exact) <
              1e-5 * (1 + std::abs(u)));
        double const slope = (gpt::gelu(u + 1e-6) - gpt::gelu(u - 1e-6)) / 2e-6;
        CHECK(std::abs(gpt::gelu_slope(u) - slope) < 1e-8);
        CHECK(std::abs(static_cast<double>(gpt::gelu_slope(static_cast<float>(u))) - slope) < 1e-5);
    }
}

TEST_CASE("GELU of large numbers is 0 or the number itself") {
    for (float const u : {100.0f, 1e3f, 1e5f}) {
        CHECK(gpt::gelu(u) == u);
        CHECK(gpt::gelu_slope(u) == doctest::Approx(1));
        CHECK(std::abs(gpt::gelu(-u)) < 1e-10f);
        CHECK(std::abs(gpt::gelu_slope(-u)) < 1e-10f);
    }
}

TEST_CASE("a sum takes every element once, whatever their number") {
    for (std::size_t n = 0; n < 70; ++n) {
        auto const number = [](std::size_t i) { return static_cast<double>(i * i % 31); };
        double sum = 0;
        for (std::size_t i = 0; i < n; ++i) sum += number(i);
        CHECK(gpt::sum_over(n, number) == sum);
    }
}

TEST_CASE_TEMPLATE("the greatest number is found wherever it is, and whatever its sign", T, float,
                   double) {
    std::mt19937 random{1};
    std::normal_distribution<double> distribution;
    for (std::size_t n = 1; n < 70; ++n)
        for (double const shift : {-100.0, 0.0, 100.0}) {
            std::vector<T> values(n);
            for (T& value : values) value = static_cast<T>(distribution(random) + shift);
            CHECK(gpt::most_of(values.data(), n) ==
                  *std::max_element(values.begin(), values.end()));
        }
    T const infinite = std::numeric_limits<T>::infinity();
    T const values[] = {T{-1}, -infinite, T{-2}, infinite};
    CHECK(gpt::most_of(values, 3) == T{-1});
    CHECK(gpt::most_of(values, 4) == infinite);
    CHECK(gpt::most_of(values + 1, 1) == -infinite);
    // Of either sign: x86 makes those with one.
    T const none = std::numeric_limits<T>::quiet_NaN();
    for (T const no_number : {none, std::copysign(none, T{-1})}) {
        T const with[] = {T{-1}, no_number, infinite};
        CHECK(std::isnan(gpt::most_of(with, 3)));
    }
}

// A product of float, checked against plain loops in double.
void check_product(gpt::Extents e, bool a_transposed, bool b_transposed, bool add, float scale) {
    auto const a = normal(e.rows * e.inner, 1);
    auto const b = normal(e.inner * e.columns, 2);
    std::size_t const stride = e.columns + 3;
    auto c = add ? normal(e.rows * stride, 3)
                 : std::vector<float>(e.rows * stride, std::numeric_limits<float>::quiet_NaN());
    auto const before = c;
    std::vector<double> const wide_a(a.begin(), a.end());
    std::vector<double> const wide_b(b.begin(), b.end());
    std::vector<double> exact(c.begin(), c.end());

    std::size_t const a_stride = a_transposed ? e.rows : e.inner;
    std::size_t const b_stride = b_transposed ? e.inner : e.columns;
    gpt::multiply<float>(e, {a.data(), a_stride, a_transposed}, {b.data(), b_stride, b_transposed},
                         c.data(), stride, add, scale);
    gpt::multiply<double>(e, {wide_a.data(), a_stride, a_transposed},
                          {wide_b.data(), b_stride, b_transposed}, exact.data(), stride, add,
                          static_cast<double>(scale));
    bool close = true;
    bool untouched = true;
    for (std::size_t i = 0; i < c.size(); ++i) {
        if (i % stride < e.columns)
            close = close && std::abs(static_cast<double>(c[i]) - exact[i]) < 1e-3;
        else
            untouched = untouched && (c[i] == before[i] || (std::isnan(c[i]) && !add));
    }
    CHECK(close);
    CHECK(untouched);
}

TEST_CASE("a product is that of plain loops, and does not read what it overwrites") {
    for (gpt::Extents const e : {gpt::Extents{1, 1, 1},
                                 {5, 7, 3},
                                 {64, 64, 32},
                                 {64, 32, 64},
                                 {192, 80, 128},
                                 {128, 65, 200}})
        for (bool const a : {false, true})
            for (bool const b : {false, true})
                for (bool const add : {false, true}) {
                    CAPTURE(e.rows);
                    CAPTURE(e.columns);
                    CAPTURE(a);
                    CAPTURE(b);
                    CAPTURE(add);
                    check_product(e, a, b, add, 1.0f);
                    check_product(e, a, b, add, 0.25f);
                }
}

TEST_CASE("a product has the same bits on every thread, and while others multiply") {
    gpt::Extents const e{192, 384, 128};
    auto const a = normal(e.rows * e.inner, 1);
    auto const b = normal(e.columns * e.inner, 2);
    auto const product = [&] {
        std::vector<float> c(e.rows * e.columns);
        gpt::multiply<float>(e, gpt::rows_of(a.data(), e.inner),
                             gpt::transpose_of(b.data(), e.inner), c.data(), e.columns);
        return c;
    };
    auto const expected = product();
    std::vector<int> same(3);
    std::vector<std::thread> threads;
    for (int& result : same)
        threads.emplace_back([&] {
            result = 1;
            for (int i = 0; i < 20; ++i) result = result && product() == expected;
        });
    for (std::thread& thread : threads) thread.join();
    for (int const result : same) CHECK(result == 1);
}

TEST_CASE("the program can say which kernels it got") { CHECK(gpt::kernels().find("oneDNN") == 0); }

} // namespace
