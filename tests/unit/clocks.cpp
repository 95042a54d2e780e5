// What actions are sure of, as the sweep keeps it: as if every clock were kept.
#include <gpipe/plan/clocks.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

namespace {

// Actions of some streams, in the order in which they begin, and the one that each waits for.
struct Table {
    struct Action {
        std::size_t stream;
        std::size_t needed; // or itself: none
    };
    std::size_t streams;
    std::vector<Action> actions{};
    std::uint32_t apart = 1; // from position to position
};

// Whoever is not sure of what it waits for joins that; all is compared with clocks that are kept.
// Returns how many there was room for.
std::size_t compare(Table const& table) {
    gpipe::Array<std::uint32_t> length(table.streams), position(table.actions.size());
    for (std::size_t i = 0; i < position.size(); ++i)
        position[i] = table.apart * ++length[table.actions[i].stream];
    gpipe::detail::Clocks clocks(length, 1, position);
    std::vector<std::vector<std::uint32_t>> all;
    std::vector<std::vector<std::size_t>> on(table.streams); // the actions of each
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < table.actions.size(); ++i) {
        auto const [stream, needed] = table.actions[i];
        std::vector<std::uint32_t> expected(table.streams);
        auto const join = [&](std::size_t other) {
            for (std::size_t s = 0; s < table.streams; ++s)
                expected[s] = std::max(expected[s], all[other][s]);
            std::size_t const of = table.actions[other].stream;
            expected[of] = std::max(expected[of], position[other]);
        };
        if (!on[stream].empty()) join(on[stream].back());
        clocks.begin(i, stream, position[i]);
        if (needed != i) {
            std::size_t const of = table.actions[needed].stream;
            bool const sure = clocks.now(of) >= position[needed];
            // As the sweep does, which may ask for one of which it is sure.
            clocks.join(needed, of, position[needed]);
            if (!sure)
                for (std::size_t s = 0; s < table.streams; ++s)
                    wrong += clocks.count(needed, s) != all[needed][s];
            join(needed);
        }
        for (std::size_t s = 0; s < table.streams; ++s) wrong += clocks.now(s) != expected[s];
        on[stream].push_back(i);
        all.push_back(expected);
    }
    CHECK(wrong == 0);
    return clocks.room();
}

// The next on a random stream waits for one of the last few on another.
Table random_table(std::size_t streams, std::size_t size, std::size_t reach, unsigned seed) {
    std::mt19937 random(seed);
    Table table{streams, {}};
    for (std::size_t i = 0; i < size; ++i) {
        std::size_t const back = 1 + random() % reach;
        table.actions.push_back({random() % streams, back <= i ? i - back : i});
    }
    return table;
}

} // namespace

TEST_CASE("clocks say what those would that are all kept") {
    for (unsigned seed = 0; seed < 60; ++seed) {
        CAPTURE(seed);
        std::size_t const streams = 1 + seed % 7;
        Table table = random_table(streams, 700, 1 + seed % 40 * 5, seed);
        table.apart = 1 + seed % 3 * 100;
        CHECK(compare(table) <= 704);
    }
}

TEST_CASE("clocks are let go of once all streams that go on are sure of them") {
    std::size_t const streams = 16;
    Table ring{streams, {}};
    for (std::size_t i = 0; i < 20'000; ++i) ring.actions.push_back({i % streams, i ? i - 1 : 0});
    CHECK(compare(ring) == 8 * streams);

    // Nobody hears of the second stream; and then it has ended.
    Table deaf{2, {}};
    for (std::size_t i = 0; i < 3'000; ++i) deaf.actions.push_back({i % 2, i % 2 ? i - 1 : i});
    CHECK(compare(deaf) > 1'500);
    Table ended{2, {{0, 0}}};
    for (std::size_t i = 1; i < 3'000; ++i) ended.actions.push_back({1, i});
    CHECK(compare(ended) == 64);
}

TEST_CASE("clocks count beyond sixteen bits") {
    Table table{2, {}};
    for (std::size_t i = 0; i < 140'000; ++i) table.actions.push_back({i % 2, i ? i - 1 : 0});
    compare(table);
}
