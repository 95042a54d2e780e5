// Ranks that watch each other, as threads.
#include <gpipe/core/clock.hpp>
#include <gpipe/transport/watch.hpp>
#include <gpipe/transport/watched_ranks.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {

using gpipe::Kind;
using gpipe::Watch;
using gpipe::detail::WatchMesh;
using gpipe::detail::WatchPlace;
using Card = WatchMesh::Card;

// What stands in for MPI: all ranks tell each other something.
class Table {
  public:
    explicit Table(std::size_t ranks) : cards_(ranks), meeting_(static_cast<long>(ranks)) {}

    std::vector<Card> exchange(std::size_t rank, Card const& own) {
        cards_[rank] = own;
        meeting_.arrive_and_wait();
        std::vector<Card> const all = cards_;
        meeting_.arrive_and_wait();
        return all;
    }

  private:
    std::vector<Card> cards_;
    std::barrier<> meeting_;
};

// do(rank) of as many threads; what one throws, by rank, "" for nothing.
std::vector<std::string> each(std::size_t ranks, std::function<void(std::size_t)> const& what) {
    std::vector<std::string> thrown(ranks);
    std::vector<std::thread> threads;
    for (std::size_t r = 0; r < ranks; ++r)
        threads.emplace_back([&, r] {
            try {
                what(r);
            } catch (std::exception const& error) {
                thrown[r] = error.what();
            }
        });
    for (std::thread& thread : threads) thread.join();
    return thrown;
}

struct Ranks {
    Table table;
    double deadline;
    std::string address;
    std::vector<std::unique_ptr<Watch>> watches;

    explicit Ranks(std::size_t count, double seconds = 60, std::string where = "")
        : table(count), deadline(seconds), address(std::move(where)), watches(count) {}

    Watch& join(std::size_t rank) {
        watches[rank] = std::make_unique<Watch>(
            rank, watches.size(), deadline, address,
            [this, rank](Card const& own) { return table.exchange(rank, own); });
        return *watches[rank];
    }
    // A rank that makes connections, and then does nothing.
    WatchMesh pretend(std::size_t rank) {
        return WatchMesh(rank, watches.size(), deadline, address,
                         [this, rank](Card const& own) { return table.exchange(rank, own); });
    }
};

template <class Ready> bool comes_true(Ready ready) {
    for (double const end = gpipe::detail::seconds_now() + 30;
         gpipe::detail::seconds_now() < end;) {
        if (ready()) return true;
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return false;
}
std::string words_of(Watch const& watch) {
    if (!comes_true([&] { return watch.lost(); })) return "nobody is lost";
    try {
        std::rethrow_exception(watch.error());
    } catch (std::runtime_error const& error) {
        return error.what();
    }
}
std::string first_line(std::string const& text) { return text.substr(0, text.find('\n')); }
bool contains(std::string const& text, std::string const& part) {
    return text.find(part) != std::string::npos;
}

} // namespace

TEST_CASE("ranks that leave in good order are not lost") {
    for (std::size_t const count : {1u, 2u, 5u})
        for (std::string const address : {"", "127.0.0.1"}) {
            CAPTURE(count);
            Ranks ranks(count, 60, address);
            auto const thrown = each(count, [&](std::size_t rank) {
                Watch& watch = ranks.join(rank);
                watch.leave(true);
                if (!comes_true([&] { return watch.all_left(); }))
                    throw std::runtime_error("not all have left");
                if (watch.lost() || watch.error() || !watch.good())
                    throw std::runtime_error("somebody was lost");
            });
            CHECK(thrown == std::vector<std::string>(count));
        }
}

TEST_CASE("a rank that leaves after a loss says so") {
    Ranks ranks(3);
    each(3, [&](std::size_t rank) { ranks.join(rank).leave(rank != 1); });
    for (auto const& watch : ranks.watches) {
        CHECK(comes_true([&] { return watch->all_left(); }));
        CHECK_FALSE(watch->good());
        CHECK_FALSE(watch->lost());
    }
}

TEST_CASE("whose connection ends without a farewell is lost: all say so, and where all were") {
    for (std::size_t const victim : {0u, 1u, 3u}) {
        CAPTURE(victim);
        Ranks ranks(4);
        each(4, [&](std::size_t rank) {
            Watch& watch = ranks.join(rank);
            if (rank == 2) {
                watch.note(6, Kind::backward, 1, 3);
                watch.wait_for(static_cast<int>(victim));
            }
        });
        ranks.watches[victim].reset();
        for (std::size_t rank = 0; rank < 4; ++rank) {
            if (rank == victim) continue;
            std::string const words = words_of(*ranks.watches[rank]);
            CHECK(first_line(words) == "gpipe: rank " + std::to_string(victim) + " has ended");
            CHECK(contains(words, "\n  rank 2 was at the backward of micro-batch 3, cell 1, in "
                                  "step 7"));
            CHECK(contains(words, ", and waited for rank " + std::to_string(victim)));
            CHECK(contains(words, "\n  rank " + std::to_string(victim) +
                                      ", as last heard, was in no step"));
            CHECK(std::count(words.begin(), words.end(), '\n') == 4);
        }
    }
}

TEST_CASE("what is on its way has time to arrive before who has ended is lost") {
    gpipe::detail::WatchBoard board(0, 3);
    board.ranks[1].ended = board.ranks[2].ended = gpipe::detail::seconds_now();
    board.ranks[2].left = true; // in good order
    CHECK(!board.find_ended(1e6));
    CHECK(!board.verdict().exists);
    CHECK(board.find_ended(0));
    CHECK(board.verdict().rank == 1);
    CHECK(board.verdict().words == "has ended");
}

TEST_CASE("where all wait for everybody, who has been silent since is lost, or else nobody") {
    for (bool const stopped : {false, true}) {
        gpipe::detail::WatchBoard board(0, 3);
        WatchPlace waits;
        waits.waits_for = WatchPlace::everybody;
        board.note_own(waits);
        board.ranks[1].place = board.ranks[2].place = waits;
        if (stopped) board.ranks[1].heard -= 1.5;
        CHECK(board.blame(WatchPlace::everybody));
        CHECK(board.verdict().rank == (stopped ? 1 : WatchPlace::nobody));
        CHECK(contains(board.verdict().words,
                       stopped ? "has been silent for " : "wait for each other"));
    }
}

TEST_CASE("why somebody has ended, if another tells it soon, is said, not that it has") {
    // A machine that others use may be late some times.
    std::string words;
    for (int n = 0; n < 20 && !contains(words, "has said why"); ++n) {
        Ranks ranks(3);
        each(3, [&](std::size_t rank) { ranks.join(rank); });
        ranks.watches[2].reset();
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        ranks.watches[1]->lose(2, "has said why");
        words = words_of(*ranks.watches[0]);
    }
    CHECK(first_line(words) == "gpipe: rank 2 has said why");
}

TEST_CASE("who is silent for longer than the deadline is lost") {
    Ranks ranks(3, 0.6);
    std::vector<std::unique_ptr<WatchMesh>> silent(3);
    each(3, [&](std::size_t rank) {
        if (rank == 1)
            silent[1] = std::make_unique<WatchMesh>(ranks.pretend(1));
        else
            ranks.join(rank);
    });
    for (std::size_t const rank : {0u, 2u})
        CHECK(contains(words_of(*ranks.watches[rank]), "gpipe: rank 1 has been silent for "));
}

TEST_CASE("who speaks another language is lost, and one whose words come in pieces is not") {
    Ranks ranks(2);
    std::unique_ptr<WatchMesh> other;
    each(2, [&](std::size_t rank) {
        if (rank == 1)
            other = std::make_unique<WatchMesh>(ranks.pretend(1));
        else
            ranks.join(rank);
    });
    Watch& watch = *ranks.watches[0];
    using gpipe::detail::WatchMessage;
    auto const send = [&](WatchMessage const& message, std::size_t piece) {
        auto const bytes = reinterpret_cast<char const*>(&message);
        for (std::size_t at = 0; at < sizeof message; at += piece) {
            REQUIRE(::send(other->ways[0].get(), bytes + at, std::min(piece, sizeof message - at),
                           MSG_NOSIGNAL) > 0);
            std::this_thread::sleep_for(std::chrono::milliseconds(piece == 50 ? 1 : 0));
        }
    };
    WatchMessage message;
    message.word = WatchMessage::Word::lives;
    for (std::size_t const piece : {50u, 1u, 128u}) send(message, piece);
    message.word = WatchMessage::Word::leaves;
    SUBCASE("in pieces") {
        send(message, 50);
        CHECK(comes_true([&] { return watch.has_left(1); }));
        CHECK_FALSE(watch.lost());
    }
    SUBCASE("another language") {
        message.word = static_cast<WatchMessage::Word>(99);
        send(message, 128);
        CHECK(first_line(words_of(watch)) == "gpipe: rank 1 says what no rank says");
    }
    SUBCASE("ranks that there are not") {
        message.word = WatchMessage::Word::lost;
        SUBCASE("lost") { message.rank = 2; }
        SUBCASE("lost, before the first") { message.rank = -2; }
        SUBCASE("waited for") { message.place.waits_for = 2; }
        SUBCASE("waited for, before the first") { message.place.waits_for = -3; }
        send(message, 128);
        CHECK(first_line(words_of(watch)) == "gpipe: rank 1 says what no rank says");
    }
    SUBCASE("text without an end, an action that there is not") {
        message.word = WatchMessage::Word::lost;
        std::fill(std::begin(message.text), std::end(message.text), 'x');
        message.place.action = 0xFE00000000000000u;
        send(message, 128);
        CHECK(first_line(words_of(watch)) == "gpipe: all ranks " + std::string(87, 'x'));
    }
}

TEST_CASE("who has kept others waiting is at the end of the chain of those who wait") {
    Ranks ranks(4);
    each(4, [&](std::size_t rank) { ranks.join(rank); });
    auto const wait_for = [&](std::vector<int> const& whom) {
        for (std::size_t r = 0; r < 4; ++r) {
            ranks.watches[r]->note(0, Kind::forward, static_cast<std::uint32_t>(r), 0);
            ranks.watches[r]->wait_for(whom[r]);
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(300)); // all have heard of it
    };
    auto const all_say = [&](std::string const& sentence) {
        for (auto const& watch : ranks.watches) CHECK(contains(words_of(*watch), sentence));
    };
    SUBCASE("who works") {
        wait_for({1, 2, 3, Watch::nobody});
        ranks.watches[0]->overdue(1);
        all_say("gpipe: rank 3 has not gone on for ");
    }
    SUBCASE("the one that all wait for") {
        wait_for({Watch::everybody, Watch::everybody, Watch::nobody, Watch::everybody});
        ranks.watches[3]->overdue(Watch::everybody);
        all_say("gpipe: rank 2 has not gone on for ");
    }
    SUBCASE("nobody, in a circle") {
        wait_for({1, 2, 0, 0});
        ranks.watches[3]->overdue(0);
        all_say("gpipe: all ranks wait for each other");
    }
    SUBCASE("nobody, if all are there") {
        wait_for({-2, -2, -2, -2});
        ranks.watches[1]->overdue(Watch::everybody);
        all_say("gpipe: all ranks wait for each other");
    }
}

TEST_CASE("what several find out at the same time: all say the same") {
    for (int round = 0; round < 20; ++round) {
        Ranks ranks(4);
        each(4, [&](std::size_t rank) {
            Watch& watch = ranks.join(rank);
            watch.lose(static_cast<int>(rank), ("is blamed by " + std::to_string(rank)).c_str());
        });
        std::string const first = first_line(words_of(*ranks.watches[0]));
        CHECK(contains(first, " is blamed by "));
        for (auto const& watch : ranks.watches) CHECK(first_line(words_of(*watch)) == first);
    }
}

TEST_CASE("who gives up is heard itself, if others tell it first: where it was is of then") {
    using gpipe::detail::WatchLine;
    using gpipe::detail::WatchMessage;
    Ranks ranks(3);
    std::vector<WatchLine> lines(3);
    each(3, [&](std::size_t rank) {
        if (rank != 1) return void(ranks.join(rank));
        WatchMesh mesh = ranks.pretend(1);
        for (std::size_t const r : {0u, 2u}) lines[r] = WatchLine(std::move(mesh.ways[r]));
    });
    WatchMessage message;
    message.word = WatchMessage::Word::lives;
    for (std::size_t const rank : {0u, 2u}) lines[rank].say(message);
    message = {WatchMessage::Word::lost, 1, 1, 0, {}, "gives up"};
    message.place.action = WatchPlace::pack(Kind::backward, 1, 2);
    lines[0].say(message);
    bool has_told = false;
    CHECK(comes_true([&] {
        lines[2].hear(
            [&](auto const& heard) { has_told |= heard.word == WatchMessage::Word::lost; });
        return has_told;
    }));
    lines[2].say(message);
    for (std::size_t const rank : {0u, 2u}) {
        std::string const words = words_of(*ranks.watches[rank]);
        CHECK(first_line(words) == "gpipe: rank 1 gives up");
        CHECK(contains(words, "\n  rank 1, as last heard, was at the backward of micro-batch 2"));
    }
}

TEST_CASE("one rank alone can be lost, too") {
    Ranks ranks(1);
    Watch& watch = ranks.join(0);
    watch.lose(0, "is out of reach");
    CHECK(contains(words_of(watch), "gpipe: rank 0 is out of reach"));
}

TEST_CASE("strangers are not let in, and ranks come all the same") {
    Ranks ranks(3);
    std::vector<gpipe::detail::Descriptor> strangers;
    auto const connect = [&](Card const& card) {
        strangers.emplace_back(::socket(card.address.ss_family, SOCK_STREAM, 0));
        REQUIRE(::connect(strangers.back().get(), reinterpret_cast<sockaddr const*>(&card.address),
                          card.length) == 0);
        return strangers.back().get();
    };
    std::size_t rounds = 0;
    auto const exchange = [&](Card const& own) {
        auto const cards = ranks.table.exchange(2, own);
        if (++rounds < 2) return cards;
        for (std::uint32_t const as_rank : {1u, 2u, 3u, 0u}) // none knows the token, or all of it
            for (int const known : {0, 1}) {
                struct {
                    std::uint64_t token[2];
                    std::uint32_t rank, ranks;
                } const hello{{known ? cards[0].token[0] : 0, 0}, as_rank, 3};
                CHECK(::send(connect(cards[0]), &hello, sizeof hello, MSG_NOSIGNAL) > 0);
            }
        CHECK(::send(connect(cards[1]), "half of it", 10, MSG_NOSIGNAL) == 10);
        connect(cards[1]); // says nothing
        return cards;
    };
    auto const thrown = each(3, [&](std::size_t rank) {
        Watch& watch =
            rank < 2 ? ranks.join(rank)
                     : *(ranks.watches[2] = std::make_unique<Watch>(2, 3, 60.0, "", exchange));
        watch.leave(true);
        if (!comes_true([&] { return watch.all_left(); })) throw std::runtime_error("alone");
    });
    CHECK(thrown == std::vector<std::string>(3));
    for (auto const& watch : ranks.watches) CHECK_FALSE(watch->lost());
}

TEST_CASE("who does not come in time is named, and too many are refused") {
    Ranks ranks(3, 0.3);
    auto const thrown = each(3, [&](std::size_t rank) {
        if (rank != 1) {
            ranks.join(rank);
            return;
        }
        for (int round = 0; round < 2; ++round) // tells of a place where nobody listens for long
            ranks.table.exchange(1, [] {
                Card card;
                auto const at = reinterpret_cast<sockaddr_in*>(&card.address);
                at->sin_family = AF_INET;
                at->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
                at->sin_port = htons(1);
                card.length = sizeof(sockaddr_in);
                return card;
            }());
    });
    CHECK(thrown[0] == "gpipe: rank 1 has not come in time");
    CHECK(contains(thrown[2], "rank 1 does not listen (Connection refused)"));
    auto const alone = [](Card const&) { return std::vector<Card>(); };
    CHECK_THROWS_WITH_AS(Watch(0, 65, 1.0, "", alone),
                         "gpipe: 65 ranks are more than the 64 that can watch each other",
                         std::invalid_argument);
    auto const own = [](Card const& card) { return std::vector<Card>(2, card); };
    CHECK_THROWS_WITH_AS(Watch(0, 2, 1.0, "no such address", own),
                         doctest::Contains("gpipe: 'no such address' is no address of this host"),
                         std::runtime_error);
    CHECK_THROWS_WITH_AS(Watch(0, 2, 1.0, "192.0.2.1", own), // of nobody (RFC 5737)
                         doctest::Contains("nobody can listen at 192.0.2.1 ("), std::runtime_error);
}

namespace {

// As a transport has it.
struct Waiters : gpipe::WatchedRanks {
    Waiters(Table& table, std::size_t rank, std::size_t ranks) : WatchedRanks(60) {
        begin(rank, ranks, "",
              [&table, rank](Card const& own) { return table.exchange(rank, own); });
    }
    using WatchedRanks::wait;
    Watch& watch() { return *watch_; }
};

} // namespace

TEST_CASE("of several threads of a rank that wait at once it is known for whom one still does") {
    Table table(3);
    std::unique_ptr<Waiters> ranks[3];
    auto const thrown =
        each(3, [&](std::size_t rank) { ranks[rank] = std::make_unique<Waiters>(table, rank, 3); });
    REQUIRE(thrown == std::vector<std::string>(3));
    Waiters& own = *ranks[0];
    own.note(2, Kind::forward, 0, 1);
    std::atomic<bool> first = false, second = false, third = false;
    auto const waiter = [&](int peer, std::atomic<bool>& ready) {
        return std::thread([&own, peer, &ready] { own.wait(peer, [&] { return ready.load(); }); });
    };
    auto const pause = [] { std::this_thread::sleep_for(std::chrono::milliseconds(20)); };
    std::thread lane = waiter(1, first);
    pause();
    std::thread host = waiter(2, second);
    pause();
    std::thread other = waiter(2, third);
    pause();
    second = third = true; // they end in any order
    host.join();
    other.join();
    pause();
    ranks[2]->watch().lose(1, "is slow");
    std::string const words = words_of(own.watch());
    INFO(words);
    CHECK(contains(words, "gpipe: rank 1 is slow"));
    CHECK(contains(words, "rank 0 was at the forward of micro-batch 1, cell 0, in step 3"));
    CHECK(contains(words, "and waited for rank 1"));
    first = true;
    lane.join();
}
