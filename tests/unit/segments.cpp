// Who has which bytes of a memory: against a byte by byte account.
#include <gpipe/plan/segments.hpp>

#include <algorithm>
#include <doctest/doctest.h>
#include <random>
#include <set>
#include <vector>

TEST_CASE("G5 whoever is given bytes has them, and all who had some of them are told") {
    std::mt19937_64 random(5);
    std::size_t told = 0, many = 0;
    for (std::size_t n = 0; n < 40; ++n) {
        std::size_t const size = 1 + random() % (n % 4 == 0 ? 4000 : 60);
        std::size_t const longest = n % 4 == 0 ? 3 : 1 + random() % size;
        std::size_t const wide = n % 8 == 0 ? 50 : 1000000; // one of so many takes a lot
        gpipe::detail::Segments segments;
        std::vector<std::size_t> owner(size, 0);
        for (std::size_t value = 1; value <= 3000; ++value) {
            std::size_t const begin = random() % size;
            std::size_t const most = value % wide == 0 ? size : longest;
            std::size_t const end = std::min(size, begin + 1 + random() % most);
            std::multiset<std::size_t> expected, lost;
            for (std::size_t b = begin; b < end; ++b)
                if (owner[b] != 0 && (b == begin || owner[b] != owner[b - 1]))
                    expected.insert(owner[b]);
            segments.give(begin, end, value, [&](std::size_t old) { lost.insert(old); });
            REQUIRE(lost == expected);
            std::fill(owner.begin() + static_cast<std::ptrdiff_t>(begin),
                      owner.begin() + static_cast<std::ptrdiff_t>(end), value);
            told += lost.size();
            many += lost.size() > 64;
        }
    }
    CHECK(told > 10000);
    CHECK(many > 20); // over several blocks
}

static_assert([] {
    gpipe::detail::Segments segments;
    std::size_t sum = 0;
    auto const add = [&](std::size_t old) { sum += old; };
    for (std::size_t v = 1; v <= 200; ++v) segments.give(2 * v, 2 * v + 2, v, add);
    if (sum != 0) return false;
    segments.give(101, 301, 1000, add); // of 50 to 150
    return sum == 101 * 100;
}());
