// Random numbers: known answers, uniformity, and what they depend on.
#include <gpipe/layer/random.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <set>
#include <vector>

using gpipe::InitialRandom;
using gpipe::philox;
using gpipe::RandomWords;
using gpipe::SampleRandom;
using gpipe::StepRandom;
using Words = std::array<std::uint32_t, 4>; // can be ordered

TEST_CASE("Philox4x32-10 gives the known answers of Random123") {
    CHECK(philox({0, 0, 0, 0}, 0) == RandomWords{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
    std::uint32_t const ones = 0xffffffff;
    CHECK(philox({ones, ones, ones, ones}, 0xffffffffffffffff) ==
          RandomWords{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
    // The digits of pi.
    CHECK(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, 0x299f31d0a4093822) ==
          RandomWords{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
    static_assert(philox({0, 0, 0, 0}, 0)[0] == 0x6627e8d5);
}

TEST_CASE("uniform numbers lie in [0, 1), with the moments of a uniform distribution") {
    SampleRandom const random(1, 2, 3, 0);
    std::size_t const n = 400000;
    double sum = 0, squares = 0, lowest = 1, highest = 0;
    std::array<int, 16> bins{};
    for (std::size_t i = 0; i < n; ++i) {
        float const u = random.uniform(i / 1000, i % 1000);
        sum += u;
        squares += double(u) * u;
        lowest = std::min<double>(lowest, u);
        highest = std::max<double>(highest, u);
        ++bins[static_cast<std::size_t>(u * 16)];
        if (u != std::floor(u * 0x1p24f) * 0x1p-24f) FAIL("not a multiple of 2^-24");
    }
    CHECK(lowest >= 0);
    CHECK(lowest < 1e-4);
    CHECK(highest < 1);
    CHECK(highest > 1 - 1e-4);
    // Five standard deviations.
    CHECK(sum / n == doctest::Approx(0.5).epsilon(5 * std::sqrt(1.0 / 12 / n) / 0.5));
    CHECK(squares / n == doctest::Approx(1.0 / 3).epsilon(5 * std::sqrt(4.0 / 45 / n) * 3));
    double chi = 0;
    for (int count : bins) chi += (count - n / 16.0) * (count - n / 16.0) / (n / 16.0);
    CHECK(chi < 15 + 5 * std::sqrt(30.0));
}

TEST_CASE("normal numbers have the moments and the tails of a normal distribution") {
    SampleRandom const random(1, 2, 3, 0);
    std::size_t const n = 400000;
    double sums[4] = {}, largest = 0;
    std::size_t beyond = 0; // one standard deviation
    for (std::size_t i = 0; i < n; ++i) {
        double const z = random.normal(i / 1000, i % 1000);
        double power = 1;
        for (double& sum : sums) sum += power *= z;
        beyond += std::abs(z) > 1;
        largest = std::max(largest, std::abs(z));
    }
    // Five standard deviations: of z, z^2, z^3 and z^4, whose variances are 1, 2, 15 and 96.
    double const variances[] = {1, 2, 15, 96}, expected[] = {0, 1, 0, 3};
    for (std::size_t k = 0; k < 4; ++k) {
        INFO("power ", k + 1);
        CHECK(std::abs(sums[k] / n - expected[k]) < 5 * std::sqrt(variances[k] / n));
    }
    double const share = std::erfc(std::sqrt(0.5));
    CHECK(std::abs(double(beyond) / n - share) < 5 * std::sqrt(share * (1 - share) / n));
    CHECK(largest > 4);
    CHECK(largest < 5.8);
}

TEST_CASE("normal numbers are correlated neither with each other nor with the uniform ones") {
    std::size_t const n = 100000;
    SampleRandom const random(1, 2, 3, 0);
    auto const normal = [&](std::size_t i) { return double(random.normal(i / 64, i % 64)); };
    auto const correlation = [&](auto a, auto b) {
        double sum = 0;
        for (std::size_t i = 0; i < n; ++i) sum += a(i) * b(i);
        return sum / n;
    };
    double const bound = 5 / std::sqrt(double(n));
    for (std::size_t apart = 1; apart <= 5; ++apart)
        CHECK(std::abs(correlation(normal, [&](std::size_t i) {
                  return double(random.normal(i / 64, i % 64 + apart));
              })) < bound);
    CHECK(std::abs(correlation(normal, [&](std::size_t i) {
              return double(random.normal(i / 64 + 1, i % 64));
          })) < bound);
    for (std::size_t apart : {0u, 1u, 2u, 3u})
        for (bool radius : {false, true}) // of a pair, which depends on one of its words alone
            CHECK(std::abs(correlation(
                      [&](std::size_t i) {
                          double const z = normal(i);
                          return radius ? (z * z - 1) / std::sqrt(2.0) : z;
                      },
                      [&](std::size_t i) {
                          std::size_t const at = i % 64 / 4 * 4 + (i + apart) % 4;
                          return (random.uniform(i / 64, at) - 0.5) * std::sqrt(12.0);
                      })) < bound);
}

TEST_CASE("who draws a sample's numbers one after the other, or in any order, draws the same") {
    gpipe::StepState state;
    state.seed = 7;
    state.step = 11;
    SampleRandom const random(7, 11, 13, 5);
    for (std::size_t sample : {0u, 3u}) {
        gpipe::SampleNumbers numbers = random.of(sample);
        gpipe::SampleNumbers enqueued = StepRandom(&state, 13, 5).of(sample);
        std::size_t at = 0;
        for (std::size_t i = 0; i < 400; ++i) {
            // Ascending, then wildly.
            at = i < 100 ? i : (at * 5 + 3) % 128;
            REQUIRE(numbers.uniform(at) == random.uniform(sample, at));
            if (i % 3 != 1) REQUIRE(numbers.normal(at) == random.normal(sample, at));
            REQUIRE(enqueued.normal(at) == random.normal(sample, at));
            REQUIRE(enqueued.uniform(at) == random.uniform(sample, at));
        }
    }
    static_assert(SampleRandom(1, 2, 3, 4).of(5).uniform(6) ==
                  SampleRandom(1, 2, 3, 4).uniform(5, 6));
}

TEST_CASE("neighbouring samples, indices, layers, steps and seeds are uncorrelated") {
    std::size_t const n = 100000;
    auto const correlation = [&](auto a, auto b) {
        double sum = 0;
        for (std::size_t i = 0; i < n; ++i) sum += (a(i) - 0.5) * (b(i) - 0.5);
        return 12 * sum / n;
    };
    SampleRandom const base(1, 2, 3, 0);
    auto const of = [](SampleRandom random) {
        return [random](std::size_t i) { return double(random.uniform(i / 64, i % 64)); };
    };
    double const bound = 5 / std::sqrt(double(n));
    CHECK(std::abs(correlation(of(base), of(SampleRandom(2, 2, 3, 0)))) < bound);
    CHECK(std::abs(correlation(of(base), of(SampleRandom(1, 3, 3, 0)))) < bound);
    CHECK(std::abs(correlation(of(base), of(SampleRandom(1, 2, 4, 0)))) < bound);
    CHECK(std::abs(correlation(of(base), of(SampleRandom(1, 2, 3, 1)))) < bound);
    CHECK(std::abs(correlation(of(base), [&](std::size_t i) {
              return double(base.uniform(i / 64, i % 64 + 1));
          })) < bound);
    CHECK(correlation(of(base), of(base)) > 0.9);
}

TEST_CASE("a sample's numbers do not depend on the micro-batch that it is in (P2)") {
    // Sample 29 of the mini-batch, as the third of one micro-batch or the first of another.
    for (std::size_t first = 0; first <= 29; ++first) {
        SampleRandom const random(7, 11, 13, first), whole(7, 11, 13, 0);
        for (std::size_t index : {0u, 1u, 2u, 3u, 4u, 5u, 1000u}) {
            CHECK(random.uniform(29 - first, index) == whole.uniform(29, index));
            CHECK(random.normal(29 - first, index) == whole.normal(29, index));
        }
    }
}

TEST_CASE("work that was enqueued once draws the numbers of the step that it runs in") {
    gpipe::StepState state;
    for (std::uint32_t layer : {0u, 1u, 77u})
        for (std::size_t first : {0u, 5u, 1000u}) {
            StepRandom const enqueued(&state, layer, first);
            for (std::uint64_t seed : {std::uint64_t{0}, std::uint64_t{9} << 33})
                for (std::uint64_t step = 0; step < 4; ++step) {
                    state.seed = seed;
                    state.step = step;
                    SampleRandom const expected(seed, step, layer, first);
                    for (std::size_t sample = 0; sample < 8; ++sample)
                        for (std::uint32_t i = 0; i < 9; ++i) {
                            REQUIRE(enqueued.bits(sample, i) == expected.bits(sample, i));
                            REQUIRE(enqueued.uniform(sample, i) == expected.uniform(sample, i));
                            REQUIRE(enqueued.normal(sample, i) == expected.normal(sample, i));
                            REQUIRE(enqueued.now().uniform(sample, i) ==
                                    expected.uniform(sample, i));
                        }
                }
        }
}

TEST_CASE("seed, step, layer, sample and index each change the numbers") {
    std::set<float> seen;
    std::size_t made = 0;
    for (std::uint64_t seed : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{1} << 32})
        for (std::uint64_t step : {0u, 1u, 2u})
            for (std::uint32_t layer : {0u, 1u, 2u})
                for (std::size_t sample : {0u, 1u, 2u})
                    for (std::size_t index : {0u, 1u, 3u, 4u, 5u}) {
                        seen.insert(SampleRandom(seed, step, layer, 0).uniform(sample, index));
                        ++made;
                    }
    CHECK(seen.size() == made);
}

TEST_CASE("numbers for initialization meet those of no step") {
    std::set<Words> steps;
    for (std::uint64_t step = 0; step < 8; ++step)
        for (std::uint32_t layer = 0; layer < 4; ++layer)
            for (std::size_t sample = 0; sample < 4; ++sample)
                for (std::uint32_t block = 0; block < 8; ++block)
                    steps.insert(
                        std::to_array(SampleRandom(5, step, layer, 0).bits(sample, block).word));
    CHECK(steps.size() == 8 * 4 * 4 * 8);
    for (std::uint32_t layer = 0; layer < 4; ++layer)
        for (std::uint32_t tensor = 0; tensor < 4; ++tensor) {
            InitialRandom random(5, layer, tensor);
            for (int block = 0; block < 8; ++block) {
                Words words;
                for (std::uint32_t& word : words) word = random();
                CHECK(steps.insert(words).second); // nor each other's
            }
        }
}

TEST_CASE("the sequence for initialization starts anew with each object, and has its moments") {
    InitialRandom a(1, 2, 3);
    InitialRandom b(1, 2, 3);
    for (int i = 0; i < 100; ++i) REQUIRE(a() == b());
    static_assert(InitialRandom::min() == 0 && InitialRandom::max() == 0xffffffff);

    InitialRandom random(1, 0, 0);
    std::size_t const n = 200000;
    double sum = 0, squares = 0, low = 0;
    std::size_t within = 0;
    for (std::size_t i = 0; i < n; ++i) {
        double const x = random.normal(2);
        REQUIRE(std::isfinite(x));
        sum += x;
        squares += x * x;
        within += std::abs(x) < 2;
        low = std::min(low, x);
    }
    CHECK(std::abs(sum / n) < 5 * 2 / std::sqrt(double(n)));
    CHECK(squares / n == doctest::Approx(4).epsilon(5 * std::sqrt(2.0 / n)));
    CHECK(double(within) / double(n) == doctest::Approx(0.6827).epsilon(0.01));
    CHECK(low < -6);
    for (int i = 0; i < 1000; ++i) {
        double const u = random.uniform(-3, 5);
        CHECK(u >= -3);
        CHECK(u < 5);
    }
}
