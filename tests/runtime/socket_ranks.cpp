// Ranks that tell each other numbers, messages and losses by sockets: as threads, and two
// processes.
#include "support/long_tests.hpp"
#include "support/meeting.hpp"
#include "support/net.hpp"

#include <gpipe/runtime/joined.hpp>
#include <gpipe/transport/local_ranks.hpp>
#include <gpipe/transport/socket_ranks.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <iostream>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

namespace {

using gpipe::Array;
using gpipe::Channel;
using gpipe::Kind;
using gpipe::SocketRanks;
using gpipe::detail::SocketFrame;
using toy::contains;
using toy::each_rank;
using toy::free_port;
using Words = std::vector<std::string>;
static_assert(gpipe::RankTransport<SocketRanks>);

SocketRanks::Options options(std::size_t rank, std::size_t ranks, std::uint16_t port,
                             double deadline = 60) {
    SocketRanks::Options o;
    o.rendezvous = toy::meeting(rank, ranks, port);
    o.deadline = deadline;
    return o;
}
// do(its SocketRanks) of as many threads, and what they throw.
template <class What> Words each(std::size_t ranks, double deadline, What what) {
    std::uint16_t const port = free_port();
    return each_rank(ranks, [&](std::size_t r) {
        SocketRanks own(options(r, ranks, port, deadline));
        what(own);
    });
}
// One from each to each, and a second.
Array<Channel> all_channels(std::size_t ranks, std::size_t bytes) {
    Array<Channel> channels(ranks * (ranks - 1) * 2);
    std::size_t c = 0;
    for (int twice = 0; twice < 2; ++twice)
        for (std::uint32_t from = 0; from < ranks; ++from)
            for (std::uint32_t to = 0; to < ranks; ++to)
                if (from != to) channels[c++] = {from, to, bytes};
    return channels;
}
using Bytes = std::vector<std::byte>;
// What only this message has.
Bytes message(std::size_t channel, std::size_t number, std::size_t bytes) {
    Bytes all(bytes);
    for (std::size_t i = 0; i < bytes; ++i)
        all[i] = static_cast<std::byte>(i * 7 + i / 251 + channel * 31 + number * 101);
    return all;
}
std::string words_of(std::exception_ptr const& error) {
    if (!error) return "nobody is lost";
    try {
        std::rethrow_exception(error);
    } catch (std::runtime_error const& thrown) {
        return thrown.what();
    }
}
std::string first_line(std::string const& text) { return text.substr(0, text.find('\n')); }
// As soon as there are any.
std::string loss(SocketRanks const& ranks) {
    toy::comes_true([&] { return static_cast<bool>(ranks.error()); });
    return words_of(ranks.error());
}

} // namespace

TEST_CASE("ranks gather numbers, and leave in good order") {
    for (std::size_t const count : {1u, 2u, 3u, 4u}) {
        CAPTURE(count);
        CHECK(each(count, 60, [&](SocketRanks& ranks) {
                  if (ranks.ranks() != count || ranks.deadline() != 60)
                      throw std::logic_error("other ranks");
                  for (std::uint64_t round = 0; round < 100; ++round) {
                      auto const all = ranks.gather(1000 * round + ranks.rank());
                      for (std::size_t r = 0; r < count; ++r)
                          if (all[r] != 1000 * round + r) throw std::logic_error("another number");
                  }
                  if (ranks.error()) throw std::logic_error("somebody is lost");
              }) == Words(count));
    }
}

TEST_CASE("messages come in the order of their channel, whatever order they are received in") {
    for (std::size_t const count : {2u, 3u, 4u}) {
        CAPTURE(count);
        auto const channels = all_channels(count, 2000);
        CHECK(each(count, 60, [&](SocketRanks& ranks) {
                  ranks.open(channels);
                  std::size_t const rounds = 20;
                  auto const bytes_of = [](std::size_t c, std::size_t n) { return c * n % 2000; };
                  for (std::size_t n = 0; n < rounds; ++n)
                      for (std::size_t c = 0; c < channels.size(); ++c) {
                          if (channels[c].from != ranks.rank()) continue;
                          Bytes const sent = message(c, n, bytes_of(c, n));
                          ranks.send(c, sent.data(), sent.size(),
                                     static_cast<std::uint32_t>(c + n));
                      }
                  (void)ranks.gather(0); // what comes by it is behind all of them
                  for (std::size_t c = channels.size(); c-- > 0;)
                      for (std::size_t n = 0; n < rounds && channels[c].to == ranks.rank(); ++n) {
                          Bytes got(bytes_of(c, n));
                          if (ranks.receive(c, got.data(), got.size()) != c + n)
                              throw std::logic_error("another word");
                          if (got != message(c, n, got.size()))
                              throw std::logic_error("another message");
                      }
              }) == Words(count));
    }
}

TEST_CASE("who sends more than sockets hold reads meanwhile: all may send first") {
    for (std::size_t const count : {2u, 3u}) {
        CAPTURE(count);
        auto const channels = all_channels(count, SocketRanks::most_bytes);
        CHECK(each(count, 60, [&](SocketRanks& ranks) {
                  ranks.open(channels);
                  std::size_t const bytes = SocketRanks::most_bytes / (toy::sanitized ? 2 : 1);
                  for (std::size_t c = 0; c < channels.size(); ++c) {
                      if (channels[c].from != ranks.rank()) continue;
                      Bytes const sent = message(c, 0, bytes);
                      ranks.send(c, sent.data(), sent.size(), 5);
                  }
                  for (std::size_t c = 0; c < channels.size(); ++c) {
                      if (channels[c].to != ranks.rank()) continue;
                      Bytes got(bytes);
                      if (ranks.receive(c, got.data(), got.size()) != 5 ||
                          got != message(c, 0, bytes))
                          throw std::logic_error("another message");
                  }
              }) == Words(count));
    }
}

TEST_CASE("several threads send and receive at once, in both directions") {
    auto const channels = all_channels(2, 3'000'000);
    CHECK(each(2, 60, [&](SocketRanks& ranks) {
              ranks.open(channels);
              std::atomic<int> wrong{0};
              std::vector<std::thread> threads;
              for (std::size_t c = 0; c < channels.size(); ++c)
                  threads.emplace_back([&, c] {
                      if (ranks.rank() == 1) toy::pause(0.05); // sockets are full at first
                      for (std::size_t n = 0; n < 100; ++n) {
                          std::size_t const bytes = n % 20 == 0 ? 3'000'000 : n;
                          Bytes const expected = message(c, n, bytes);
                          if (channels[c].from == ranks.rank())
                              ranks.send(c, expected.data(), bytes, static_cast<std::uint32_t>(n));
                          Bytes got(bytes);
                          if (channels[c].to == ranks.rank())
                              wrong += ranks.receive(c, got.data(), bytes) != n || got != expected;
                      }
                  });
              for (std::thread& thread : threads) thread.join();
              if (wrong > 0) throw std::logic_error("another message");
          }) == Words(2));
}

TEST_CASE("what is said while a socket is full goes behind what was said before") {
    int ways[2] = {};
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ways) == 0);
    gpipe::detail::SocketLine line{gpipe::detail::Descriptor(ways[0])};
    gpipe::detail::Descriptor const other(ways[1]);
    Bytes expected, got;
    auto const say = [&](std::uint32_t channel, std::size_t bytes) {
        SocketFrame const frame{channel, 3, bytes};
        Bytes const all = message(channel, 0, bytes);
        auto const head = reinterpret_cast<std::byte const*>(&frame);
        expected.insert(expected.end(), head, head + sizeof frame);
        expected.insert(expected.end(), all.begin(), all.end());
        line.say(frame, all.data());
    };
    auto const read = [&](std::size_t most) {
        Bytes some(most);
        ssize_t const count = ::recv(other.get(), some.data(), most, 0);
        got.insert(got.end(), some.begin(), some.begin() + std::max<ssize_t>(count, 0));
    };
    say(1, 5);
    CHECK_FALSE(line.is_full());
    say(2, 3'000'000);
    CHECK(line.is_full());
    read(200'000); // now there is room
    say(3, 1000);
    for (int turn = 0; turn < 10'000 && got.size() < expected.size(); ++turn) {
        line.flush();
        read(1'000'000);
    }
    CHECK(got == expected);
    CHECK_FALSE(line.is_full());
    CHECK(line.said() == expected.size());
}

TEST_CASE("tensors do not go this way, and channels are opened once") {
    auto thrown = each(2, 60, [&](SocketRanks& ranks) {
        ranks.open(all_channels(2, SocketRanks::most_bytes + 1));
    });
    CHECK(thrown == Words(2, "gpipe: a message from rank 0 to rank 1 has 16777217 bytes, more than "
                             "the 16777216 that SocketRanks sends at a time: tensors do not go "
                             "this way, but by MPI or NCCL"));
    thrown = each(2, 60, [&](SocketRanks& ranks) {
        ranks.open(all_channels(2, 1));
        ranks.open(all_channels(2, 1));
    });
    CHECK(thrown ==
          Words(2, "gpipe: a SocketRanks joins the devices of one Training, be it a refused one"));
    // Nobody is waited for.
    CHECK_THROWS_WITH_AS(SocketRanks{options(0, 65, 1, 60)},
                         "gpipe: 65 ranks are more than the 64 that can watch each other",
                         std::invalid_argument);
    SocketRanks::Options o = options(0, 1, 1, 0);
    CHECK_THROWS_WITH_AS(SocketRanks{o},
                         "gpipe: SocketRanks::Options asks for a deadline of more than 0",
                         std::invalid_argument);
}

TEST_CASE("channels are open when all ranks have opened them") {
    std::atomic<std::size_t> opening{0};
    CHECK(each(3, 60, [&](SocketRanks& ranks) {
              toy::pause(0.1 * static_cast<double>(ranks.rank()));
              ++opening;
              ranks.open(all_channels(3, 1));
              CHECK(opening == 3);
          }) == Words(3));
}

TEST_CASE("a message of other bytes than are received is a loss") {
    auto const channels = all_channels(2, 100);
    CHECK(each(2, 60, [&](SocketRanks& ranks) {
              ranks.open(channels);
              Bytes bytes(100);
              if (ranks.rank() == 0)
                  ranks.send(0, bytes.data(), 99, 7);
              else if (ranks.receive(0, bytes.data(), 100) != 0)
                  throw std::logic_error("it is taken for another");
              CHECK(first_line(loss(ranks)) ==
                    "gpipe: rank 0 has sent a message of other bytes than are received");
          }) == Words(2));
}

TEST_CASE(
    "a rank that gives up is lost: all say so in its words, where all were, and nobody waits") {
    auto const channels = all_channels(3, 1000);
    double const since = gpipe::detail::seconds_now();
    CHECK(each(3, 60, [&](SocketRanks& ranks) {
              ranks.open(channels);
              Bytes bytes(1000);
              if (ranks.rank() == 1) {
                  ranks.note(4, Kind::backward, 1, 2);
                  toy::pause(0.2);
                  ranks.give_up("has an error of its GPU");
              } else if (ranks.receive(ranks.rank() == 0 ? 2 : 3, bytes.data(), 1000) != 0) {
                  throw std::logic_error("nobody sends that");
              }
              CHECK(first_line(loss(ranks)) == "gpipe: rank 1 has an error of its GPU");
              CHECK(contains(loss(ranks), "\n  rank 1, as last heard, was at the backward of "
                                          "micro-batch 2, cell 1, in step 5"));
              CHECK(contains(loss(ranks), "waited for rank 1"));
              // From now on nothing waits for anybody.
              CHECK(ranks.receive(ranks.rank() == 2   ? 1
                                  : ranks.rank() == 1 ? 0
                                                      : 2,
                                  bytes.data(), 1000) == 0);
              for (std::size_t n = 0; n < 10'000; ++n)
                  ranks.send(2 * ranks.rank(), bytes.data(), bytes.size(), 1);
              CHECK_THROWS_AS(ranks.gather(1), std::runtime_error);
              ranks.give_up("says so again");
              CHECK(first_line(loss(ranks)) == "gpipe: rank 1 has an error of its GPU");
          }) == Words(3));
    CHECK(gpipe::detail::seconds_now() - since < 20);
}

TEST_CASE("who has waited elsewhere for too long finds out for whom") {
    auto const all_say = [](int for_whom, std::string const& words) {
        CHECK(each(3, 60, [&](SocketRanks& ranks) {
                  if (ranks.rank() == 2) ranks.note(0, Kind::forward, 2, 1);
                  (void)ranks.gather(0);
                  if (ranks.rank() != 1) toy::pause(0.3); // all have heard where it is
                  if (ranks.rank() == 0)
                      for_whom == SocketRanks::everybody ? ranks.overdue()
                                                         : ranks.overdue(for_whom);
                  else if (ranks.rank() == 1)
                      CHECK_THROWS_AS(ranks.gather(1), std::runtime_error);
                  CHECK(contains(loss(ranks), words));
              }) == Words(3));
    };
    all_say(2, "gpipe: rank 2 has not gone on for ");
    all_say(SocketRanks::everybody, "gpipe: rank 2 has not gone on for ");
}

TEST_CASE("nobody waits for longer than the deadline, and all know for whom") {
    auto const channels = all_channels(3, 10);
    double const since = gpipe::detail::seconds_now();
    CHECK(each(3, 0.5, [&](SocketRanks& ranks) {
              ranks.open(channels);
              std::byte byte{};
              if (ranks.rank() == 0) CHECK(ranks.receive(2, &byte, 1) == 0); // of rank 1
              if (ranks.rank() == 1) CHECK(ranks.receive(5, &byte, 1) == 0); // of rank 2
              CHECK(contains(loss(ranks), "gpipe: rank 2 has not gone on for "));
          }) == Words(3));
    CHECK(each(2, 0.5, [&](SocketRanks& ranks) {
              if (ranks.rank() == 0) CHECK_THROWS_AS(ranks.gather(1), std::runtime_error);
              CHECK(contains(loss(ranks), "gpipe: rank 1 has not gone on for "));
          }) == Words(2));
    // Who does not read: what is sent to it does not go on.
    CHECK(each(2, 0.5, [&](SocketRanks& ranks) {
              ranks.open(all_channels(2, SocketRanks::most_bytes));
              Bytes const bytes(SocketRanks::most_bytes);
              if (ranks.rank() == 0) ranks.send(0, bytes.data(), bytes.size(), 1);
              CHECK(contains(loss(ranks), "gpipe: rank 1 has not gone on for "));
          }) == Words(2));
    CHECK(gpipe::detail::seconds_now() - since < 20);
}

TEST_CASE("a rank that leaves while others wait for it is lost; what it has sent before is not") {
    auto const channels = all_channels(3, 100'000);
    double const since = gpipe::detail::seconds_now();
    CHECK(each(3, 60, [&](SocketRanks& ranks) {
              ranks.open(channels);
              Bytes bytes = message(0, 0, 100'000);
              if (ranks.rank() == 0) return ranks.send(0, bytes.data(), bytes.size(), 9);
              if (ranks.rank() == 2) {
                  CHECK(first_line(loss(ranks)) == "gpipe: rank 0 has left");
                  return;
              }
              toy::pause(0.2); // it has left
              Bytes got(100'000);
              CHECK(ranks.receive(0, got.data(), got.size()) == 9);
              CHECK(got == bytes);
              CHECK_FALSE(ranks.error());
              CHECK(ranks.receive(0, got.data(), got.size()) == 0);
              CHECK(first_line(loss(ranks)) == "gpipe: rank 0 has left");
          }) == Words(3));
    CHECK(gpipe::detail::seconds_now() - since < 20);
}

TEST_CASE("who leaves waits for the others to leave") {
    std::uint16_t const port = free_port();
    std::atomic<bool> leaves{false};
    CHECK(each_rank(2, [&](std::size_t r) {
              auto ranks = std::make_unique<SocketRanks>(options(r, 2, port));
              if (r == 1) toy::pause(0.3);
              if (r == 1) leaves = true;
              ranks.reset();
              CHECK(leaves);
          }) == Words(2));
}

TEST_CASE("who leaves waits for those who live, longer than the deadline, too") {
    std::uint16_t const port = free_port();
    std::atomic<bool> leaves{false};
    CHECK(each_rank(2, [&](std::size_t r) {
              auto ranks = std::make_unique<SocketRanks>(options(r, 2, port, 0.3));
              CHECK(ranks->gather(r).size() == 2);
              if (r == 1) toy::pause(1.2);
              if (r == 1) leaves = true;
              ranks.reset();
              CHECK(leaves);
          }) == Words(2));
}

namespace {

// A rank that has connections as others have, and does with them what it likes.
struct Pretender {
    gpipe::Rendezvous meeting;
    gpipe::detail::WatchMesh lines, messages;

    Pretender(std::size_t rank, std::size_t ranks, std::uint16_t port)
        : meeting(toy::meeting(rank, ranks, port)), lines(mesh()), messages(mesh()) {}
    void say(std::size_t to, void const* bytes, std::size_t size) {
        messages.ways[to].write(bytes, size, gpipe::detail::seconds_now() + 20);
    }
    // So that it is not taken for one that is silent, or has ended.
    void live() {
        gpipe::detail::WatchMessage message;
        message.word = gpipe::detail::WatchMessage::Word::lives;
        for (auto const& way : lines.ways)
            if (way) ::send(way.get(), &message, sizeof message, MSG_NOSIGNAL);
    }

  private:
    gpipe::detail::WatchMesh mesh() {
        return {meeting.rank(), meeting.ranks(), 60, "127.0.0.1",
                [&](gpipe::detail::WatchMesh::Card const& own) { return meeting.exchange(own); }};
    }
};

// Of rank 0, which opens channels with one that does so, and then receives until it is lost.
std::string heard_of(std::size_t ranks, void (*what)(Pretender&)) {
    std::uint16_t const port = free_port();
    std::string heard;
    std::atomic<bool> is_over{false};
    auto const thrown = each_rank(ranks, [&](std::size_t r) {
        if (r + 1 == ranks) {
            Pretender pretender(r, ranks, port);
            std::uint64_t const number = 0;
            SocketFrame const gathers{0xFFFFFFFFu, 0, sizeof number};
            for (std::size_t to = 0; to + 1 < ranks; ++to) {
                pretender.say(to, &gathers, sizeof gathers);
                pretender.say(to, &number, sizeof number);
            }
            what(pretender);
            while (!is_over) {
                pretender.live();
                toy::pause(0.02);
            }
            return;
        }
        SocketRanks own(options(r, ranks, port));
        std::string text;
        try {
            own.open(all_channels(ranks, 100));
            // Of the last rank: channels are sorted by who sends.
            std::size_t const last = (ranks - 1) * (ranks - 1) + r;
            std::byte bytes[100];
            std::uint32_t const word = own.receive(last, bytes, 5);
            text = word == 77 ? "word 77" : first_line(loss(own));
        } catch (std::exception const& error) { // it was lost before all had opened them
            text = first_line(error.what());
        }
        own.give_up("has heard enough");
        if (r == 0) heard = text;
        is_over = true;
    });
    CHECK(thrown == Words(ranks));
    return heard;
}

} // namespace

TEST_CASE("who says what no rank says is lost, and one whose words come in pieces is not") {
    using Frame = SocketFrame;
    for (std::size_t const ranks : {2u, 3u}) {
        CAPTURE(ranks);
        CHECK(heard_of(ranks, [](Pretender& p) {
                  for (std::size_t to = 0; to + 1 < p.meeting.ranks(); ++to) {
                      std::size_t const last = p.meeting.rank() * p.meeting.rank() + to;
                      Frame const frame{static_cast<std::uint32_t>(last), 77, 5};
                      auto const bytes = reinterpret_cast<char const*>(&frame);
                      for (std::size_t i = 0; i < sizeof frame; ++i) {
                          p.say(to, bytes + i, 1);
                          if (i % 5 == 0) toy::pause(0.01);
                      }
                      p.say(to, "ab", 2);
                      toy::pause(0.02);
                      p.say(to, "cde", 3);
                  }
              }) == "word 77");
    }
    std::string const words = "gpipe: rank 1 says what no rank says";
    auto const one = [](Pretender& p, Frame const& frame) { p.say(0, &frame, sizeof frame); };
    static auto const say = one;
    CHECK(heard_of(2, [](Pretender& p) { say(p, {1, 0, 101}); }) == words); // longer
    CHECK(heard_of(2, [](Pretender& p) { say(p, {0, 0, 5}); }) == words);   // not its own
    CHECK(heard_of(2, [](Pretender& p) { say(p, {4, 0, 5}); }) == words);   // of none
    CHECK(heard_of(2, [](Pretender& p) { say(p, {0xFFFFFFFFu, 0, 9}); }) == words);
    CHECK(heard_of(2, [](Pretender& p) { say(p, {1, 0, ~std::uint64_t{0}}); }) == words);
    CHECK(heard_of(2, [](Pretender& p) { p.messages.ways[0].close(); }) ==
          "gpipe: rank 1 has closed the connection of its messages");
    CHECK(heard_of(2, [](Pretender& p) { p.lines.ways[0].close(); }) == "gpipe: rank 1 has ended");
}

TEST_CASE("a process that ends is known at once, and who waits for it does not") {
    std::uint16_t const port = free_port();
    std::cout.flush();              // or the child may print it again
    ::pid_t const child = ::fork(); // there are no other threads now
    if (child == 0) {
        try {
            SocketRanks ranks(options(1, 2, port));
            ranks.open(all_channels(2, 10));
            (void)ranks.gather(1);
            ::_exit(3);
        } catch (...) {
            ::_exit(4);
        }
    }
    REQUIRE(child > 0);
    {
        SocketRanks ranks(options(0, 2, port));
        ranks.open(all_channels(2, 10));
        (void)ranks.gather(0);
        double const since = gpipe::detail::seconds_now();
        std::byte byte{};
        CHECK(ranks.receive(1, &byte, 1) == 0);
        CHECK(first_line(words_of(ranks.error())) == "gpipe: rank 1 has ended");
        CHECK(gpipe::detail::seconds_now() - since < (toy::sanitized ? 10 : 2));
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    CHECK(WEXITSTATUS(status) == 3);
}

TEST_CASE("ranks that are threads have the same words for it") {
    for (int const for_whom : {gpipe::LocalRanks::everybody, 0, 99}) {
        gpipe::LocalWire wire(2);
        gpipe::LocalRanks first(wire, 0), second(wire, 1, 7.5);
        CHECK(first.deadline() > 1e6);
        CHECK(second.deadline() == 7.5);
        CHECK_FALSE(first.error());
        first.open(all_channels(2, 1));
        second.open(all_channels(2, 1));
        CHECK_THROWS_WITH_AS(
            second.open(all_channels(2, 9)),
            "gpipe: a LocalWire joins the devices of one Training, be it a refused one",
            std::logic_error);
        if (for_whom == 99)
            second.give_up("has an error of its GPU");
        else
            for_whom == 0 ? second.overdue(0) : second.overdue();
        CHECK(words_of(first.error()) ==
              (for_whom == 99  ? "gpipe: rank 1 has an error of its GPU"
               : for_whom == 0 ? "gpipe: rank 1 has waited for rank 0 for longer than the deadline"
                               : "gpipe: rank 1 has waited for all for longer than the deadline"));
        first.give_up("is later");
        CHECK(contains(words_of(second.error()), "gpipe: rank 1 "));
        CHECK_THROWS_AS(first.gather(0), std::runtime_error);
    }
}

TEST_CASE("a message of threads that waits for who receives it keeps nobody waiting") {
    gpipe::LocalWire wire(2);
    gpipe::LocalRanks from(wire, 0), to(wire, 1);
    gpipe::Array<gpipe::Channel> channels(1);
    channels[0] = {0, 1, 8, false, 0, true};
    from.open(channels);
    to.open(channels);
    for (std::uint64_t number = 1; number < 4; ++number) {
        std::uint64_t sent = number, received = 0;
        from.send(0, reinterpret_cast<std::byte const*>(&sent), 8, 7);
        sent = 0;
        CHECK(to.receive(0, reinterpret_cast<std::byte*>(&received), 8) == 7);
        CHECK(received == number);
    }
}

TEST_CASE(
    "what a thread has sent stays while another copies it, though a third is lost meanwhile") {
    Bytes const sent = message(0, 0, 16'000'000);
    auto const channels = all_channels(3, sent.size());
    int whole = 0;
    for (int n = 0; n < 20; ++n) {
        CAPTURE(n);
        gpipe::LocalWire wire(3);
        std::atomic<bool> receives{false};
        Bytes own = sent;
        // Nobody has touched it, so that to write there takes longer than to wake somebody.
        auto const received = std::make_unique_for_overwrite<std::byte[]>(sent.size());
        std::uint32_t word = 0;
        CHECK(each_rank(3, [&](std::size_t r) {
                  gpipe::LocalRanks ranks(wire, r);
                  ranks.open(channels);
                  if (r == 0) {
                      ranks.send(0, own.data(), own.size(), 7);
                      std::memset(own.data(), 0xFF, own.size());
                  } else if (r == 1) {
                      receives = true;
                      word = ranks.receive(0, received.get(), sent.size());
                  } else {
                      while (!receives) std::this_thread::yield();
                      std::this_thread::sleep_for(std::chrono::microseconds(n * 50));
                      ranks.give_up("has had enough");
                  }
              }) == Words(3));
        if (word != 7) continue;
        CHECK(std::memcmp(received.get(), sent.data(), sent.size()) == 0);
        ++whole;
    }
    CHECK(whole > 0);

    gpipe::LocalWire wire(2);
    gpipe::LocalRanks from(wire, 0), to(wire, 1);
    from.open(channels);
    to.give_up("is gone");
    for (int twice = 0; twice < 2; ++twice) {
        Bytes received(sent.size());
        from.send(0, sent.data(), sent.size(), 7); // and takes it back
        CHECK(to.receive(0, received.data(), received.size()) == 0);
        CHECK((received == Bytes(sent.size())));
    }
}

namespace {

using gpipe::Adam;
using Real = float;
using Loss = toy::MeanSquare<Real, 3>;
using Net = toy::Net<Real>;

// As the policy of a Training: for these tests, whose tensors are small.
struct BySockets {
    using policy_kind = gpipe::policy::Transport;
    template <class Device> using Of = gpipe::Joined<Device, SocketRanks>;
};
using Rank = BySockets::Of<gpipe::device::Host>;
static_assert(gpipe::DeviceRuntime<Rank>);
template <class Transport>
using Training =
    gpipe::Training<Net, gpipe::Cells<gpipe::dynamic>, gpipe::MicroBatches<gpipe::dynamic>,
                    gpipe::Loss<Loss>, gpipe::Optimizer<Adam>, gpipe::schedule::Dynamic, Transport>;

template <class Train>
typename Train::Options training(gpipe::schedule::Dynamic schedule, std::size_t cells) {
    typename Train::Options o;
    o.samples = 13;
    o.seed = 7;
    o.cells = cells;
    o.micro_batches = 8;
    o.schedule = schedule;
    return o;
}

// Of two ranks.
Training<BySockets>::Options on(SocketRanks& ranks) {
    auto o = training<Training<BySockets>>(gpipe::schedule::OneForwardOneBackward{}, 2);
    o.device.transport = &ranks;
    return o;
}

// By step what it loses; then all parameters that it has, one behind the other, by layer.
struct Trained {
    std::vector<double> losses;
    std::vector<Bytes> parameters{Net::size};
};
template <class Train> Trained train_some(Train& train) {
    Trained trained;
    for (std::size_t const size : {13u, 7u, 13u}) { // of 7 samples one micro-batch stays empty
        toy::Data<Real> const data(size, static_cast<std::uint32_t>(size));
        trained.losses.push_back(train.step(data.inputs, data.targets).loss);
        trained.losses.push_back(train.evaluate(data.inputs, data.targets).loss);
    }
    for (std::size_t layer = 0; layer < Net::size; ++layer) {
        std::size_t cell = 0;
        while (train.plan().first[cell + 1] <= layer) ++cell;
        if (train.arena(train.programs().device_of(cell)).empty()) continue; // elsewhere
        for (std::size_t t = 0; t < train.tensors(layer); ++t) {
            auto const values = train.template parameter<Real>(layer, t);
            auto const bytes = std::as_bytes(std::span(values.begin(), values.end()));
            trained.parameters[layer].insert(trained.parameters[layer].end(), bytes.begin(),
                                             bytes.end());
        }
    }
    return trained;
}

} // namespace

TEST_CASE("P1 two ranks that are joined by sockets train as one process, in every bit") {
    std::size_t point = 0, trained = 0;
    toy::each_of_catalogue(4, Net::size, 8, [&](gpipe::schedule::Dynamic schedule, std::size_t k) {
        if (k < 2 || point++ % toy::one_of(7) != 0) return;
        INFO(schedule.name(), ", K = ", k);
        toy::Watch watch;
        using Local = Training<gpipe::transport::Local>;
        Local local(toy::make_net<Real>(watch), Loss{}, Adam{1e-2f}, training<Local>(schedule, k));
        Trained const expected = train_some(local);
        toy::Watch watches[2];
        Trained found[2];
        CHECK(each(2, 60, [&](SocketRanks& ranks) {
                  using Train = Training<BySockets>;
                  auto o = training<Train>(schedule, k);
                  o.device.transport = &ranks;
                  o.device.devices = ranks.rank() == point % 2 ? k - 1 : 1;
                  o.device.device.threads = 1 + point % 3;
                  Train train(toy::make_net<Real>(watches[ranks.rank()]), Loss{}, Adam{1e-2f}, o);
                  found[ranks.rank()] = train_some(train);
              }) == Words(2));
        std::size_t layers = 0;
        for (Trained const& half : found) {
            CHECK(half.losses == expected.losses);
            for (std::size_t layer = 0; layer < Net::size; ++layer) {
                if (half.parameters[layer].empty()) continue;
                CHECK(half.parameters[layer] == expected.parameters[layer]);
                ++layers;
            }
        }
        std::size_t all = 0;
        for (Bytes const& layer : expected.parameters) all += !layer.empty();
        CHECK(layers == all);
        ++trained;
    });
    MESSAGE(trained << " trainings");
    CHECK(trained > 0);
}

TEST_CASE("what a rank says of itself in the midst of training is thrown by the others' step") {
    std::atomic<bool> goes_on = false;
    CHECK(each(2, 60, [&](SocketRanks& ranks) {
              using Train = Training<BySockets>;
              toy::Watch watch;
              Train train(toy::make_net<Real>(watch), Loss{}, Adam{1e-2f}, on(ranks));
              toy::Data<Real> const data(13);
              train.step(data.inputs, data.targets);
              if (ranks.rank() == 0) goes_on = true; // and hears of no error before
              if (ranks.rank() == 1) {
                  CHECK(toy::comes_true([&] { return goes_on.load(); }));
                  return ranks.give_up("has an error of its GPU");
              }
              std::string thrown;
              try {
                  train.step(data.inputs, data.targets);
              } catch (std::exception const& error) {
                  thrown = error.what();
              }
              CHECK(first_line(thrown) == "gpipe: rank 1 has an error of its GPU");
          }) == Words(2));
}

TEST_CASE("a second training on what joins one is refused, and the first goes on") {
    CHECK(each(2, 60, [&](SocketRanks& ranks) {
              using Train = Training<BySockets>;
              toy::Watch watch;
              Train train(toy::make_net<Real>(watch), Loss{}, Adam{1e-2f}, on(ranks));
              toy::Data<Real> const data(13);
              for (int step = 0; step < 2; ++step) {
                  train.step(data.inputs, data.targets);
                  CHECK_THROWS_WITH_AS(
                      Train(toy::make_net<Real>(watch), Loss{}, Adam{1e-2f}, on(ranks)),
                      "gpipe: a SocketRanks joins the devices of one Training, be it a refused one",
                      std::logic_error);
              }
          }) == Words(2));
}

TEST_CASE("what a constructor throws while no other rank comes to hear it is what it throws") {
    std::string thrown;
    each(2, 1, [&](SocketRanks& ranks) {
        if (ranks.rank() == 1) // alive, and elsewhere, until the other has had enough
            while (!ranks.error()) std::this_thread::sleep_for(std::chrono::milliseconds(10));
        if (ranks.rank() == 1) return;
        using Train = Training<BySockets>;
        auto o = on(ranks);
        o.samples = 0;
        toy::Watch watch;
        try {
            Train(toy::make_net<Real>(watch), Loss{}, Adam{1e-2f}, o);
        } catch (std::invalid_argument const& error) {
            thrown = error.what();
        }
    });
    CHECK(contains(thrown, "memory is planned for, is zero"));
}
