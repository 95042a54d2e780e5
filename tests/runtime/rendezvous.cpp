// Processes that find each other, as threads.
#include "support/folder.hpp"
#include "support/meeting.hpp"

#include <gpipe/transport/rendezvous.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

namespace {

using gpipe::Rendezvous;
using gpipe::detail::Descriptor;
using gpipe::detail::RendezvousAnswer;
using gpipe::detail::RendezvousChallenge;
using gpipe::detail::RendezvousFile;
using gpipe::detail::RendezvousHello;
using gpipe::detail::RendezvousKey;
using gpipe::detail::RendezvousProof;
using gpipe::detail::RendezvousRecord;
using gpipe::detail::SocketAddress;
using toy::contains;
using toy::each_rank;
using toy::free_port;
using toy::meeting;
using Words = std::vector<std::string>;

std::string const good_token = "a token of all ranks", other_token = "a token of strangers";

// A variable of the environment, while there is one of these: no other thread runs then.
class Variable {
  public:
    Variable(std::string name, char const* value) : name_(std::move(name)) {
        if (char const* const before = std::getenv(name_.c_str())) before_ = before;
        set(value);
    }
    Variable(Variable const&) = delete;
    Variable& operator=(Variable const&) = delete;
    ~Variable() { set(before_ ? before_->c_str() : nullptr); }

  private:
    void set(char const* value) {
        value ? ::setenv(name_.c_str(), value, 1) : ::unsetenv(name_.c_str());
    }
    std::string name_;
    std::optional<std::string> before_;
};
// What launchers and users set, all of it absent at first.
struct Environment {
    Variable rank{"RANK", nullptr}, ranks{"WORLD_SIZE", nullptr}, address{"MASTER_ADDR", nullptr},
        port{"MASTER_PORT", nullptr}, token{"GPIPE_TOKEN", nullptr},
        token_file{"GPIPE_TOKEN_FILE", nullptr}, job{"GPIPE_JOB", nullptr};
};

struct Token {
    toy::Folder folder;
    std::string const path = folder / "token";
    explicit Token(std::string const& token = good_token, ::mode_t mode = 0600) {
        folder.write("token", token);
        ::chmod(path.c_str(), mode);
    }
};

// Of a rank that meets the others, and exchanges a few times.
void meet(Rendezvous::Options const& options) {
    Rendezvous meeting(options);
    struct Card {
        std::uint64_t rank, round;
        char bytes[3000];
    };
    for (std::uint64_t round = 0; round < 3; ++round) {
        Card own{meeting.rank(), round, {}};
        own.bytes[2999] = static_cast<char>('a' + meeting.rank());
        auto const all = meeting.exchange(own);
        if (all.size() != meeting.ranks()) throw std::logic_error("other ranks");
        for (std::size_t r = 0; r < all.size(); ++r)
            if (all[r].rank != r || all[r].round != round ||
                all[r].bytes[2999] != static_cast<char>('a' + r))
                throw std::logic_error("another card");
    }
    if (meeting.ranks() > 1 && meeting.address() != "127.0.0.1")
        throw std::logic_error("another address: " + meeting.address());
}
std::string thrown_by(Rendezvous::Options const& options) {
    return each_rank(1, [&](std::size_t) { meet(options); })[0];
}

// A stranger who connects there, as soon as somebody listens.
Descriptor visit(std::uint16_t port) {
    SocketAddress const address = gpipe::detail::find_addresses("127.0.0.1", port)[0];
    Descriptor way;
    toy::comes_true([&] {
        way = gpipe::detail::connect_to(address, gpipe::detail::seconds_now() + 1);
        return static_cast<bool>(way);
    });
    return way;
}
double soon() { return gpipe::detail::seconds_now() + 20; }

// Who comes by hand, and may say what no rank says; "" or what rank 0 has him know.
std::string come(std::uint16_t port, RendezvousKey const& key, RendezvousHello const& hello) {
    Descriptor const way = visit(port);
    RendezvousProof proof{RendezvousProof::Who::guest, hello, {}, {}};
    if (!way.write(&hello, sizeof hello, soon()) ||
        !way.read(&proof.challenge, sizeof proof.challenge, soon()))
        return "dropped at once";
    RendezvousKey::Proof own = proof.by(key), others{};
    if (!way.write(&own, sizeof own, soon()) ||
        !way.read(&proof.answer, sizeof proof.answer, soon()) ||
        !way.read(&others, sizeof others, soon()))
        return "dropped";
    proof.who = RendezvousProof::Who::host;
    if (proof.by(key) != others) return "somebody else";
    return words_of(hello, proof.answer);
}

} // namespace

TEST_CASE("ranks find each other, and exchange what they need") {
    for (std::size_t const ranks : {1u, 2u, 3u, 4u, 12u}) {
        CAPTURE(ranks);
        std::uint16_t const port = free_port();
        CHECK(each_rank(ranks, [&](std::size_t r) { meet(meeting(r, ranks, port)); }) ==
              Words(ranks));
    }
}

TEST_CASE("a name, the newer family of addresses, rank 0 later than the others, others later") {
    auto const alike = [](char const* address, double first, double others) {
        std::uint16_t const port = free_port();
        return each_rank(3, [&](std::size_t r) {
            toy::pause(r == 0 ? first : r == 1 ? others : 0);
            auto o = meeting(r, 3, port);
            o.address = address;
            Rendezvous meeting(o);
            if (meeting.exchange(r + 5)[2] != 7) throw std::logic_error("another card");
        });
    };
    CHECK(alike("localhost", 0.4, 0) == Words(3));
    CHECK(alike("127.0.0.3", 0, 0.4) == Words(3));
    bool has_newer = true;
    try {
        SocketAddress address = gpipe::detail::find_addresses("::1", 0)[0];
        (void)gpipe::detail::listen_at(address);
    } catch (std::exception const&) {
        has_newer = false; // there are hosts without
    }
    if (has_newer) CHECK(alike("::1", 0, 0) == Words(3));
}

TEST_CASE("O3 what launchers set is enough, and what is wrong with it is named") {
    Environment const none;
    std::string const port = std::to_string(free_port());
    CHECK(contains(thrown_by({}),
                   "gpipe: WORLD_SIZE is not set, and ranks that are started without "
                   "MPI find each other by RANK, WORLD_SIZE, MASTER_ADDR and "
                   "MASTER_PORT"));
    Variable const ranks("WORLD_SIZE", "2");
    CHECK(contains(thrown_by({}), "gpipe: RANK is not set"));
    {
        Variable const rank("RANK", "0"), one("WORLD_SIZE", "1");
        CHECK(thrown_by({}) == "");
    }
    for (char const* const wrong :
         {"2", "-1", "+1", " 1", "1 ", "one", "0x1", "1.0", "99999999999999999999999"}) {
        Variable const rank("RANK", wrong);
        CHECK(thrown_by({}) == "gpipe: RANK=" + std::string(wrong) + " is no number from 0 to 1");
    }
    for (char const* const wrong : {"0", "1025", "x"}) {
        Variable const all("WORLD_SIZE", wrong);
        CHECK(thrown_by({}) ==
              "gpipe: WORLD_SIZE=" + std::string(wrong) + " is no number from 1 to 1024");
    }
    Variable const rank("RANK", "1");
    CHECK(contains(thrown_by({}), "gpipe: MASTER_ADDR is not set"));
    Variable const address("MASTER_ADDR", "127.0.0.1");
    CHECK(contains(thrown_by({}), "gpipe: MASTER_PORT is not set"));
    for (char const* const wrong : {"0", "65536", "http"}) {
        Variable const there("MASTER_PORT", wrong);
        CHECK(thrown_by({}) ==
              "gpipe: MASTER_PORT=" + std::string(wrong) + " is no number from 1 to 65535");
    }
    Variable const there("MASTER_PORT", port.c_str());
    {
        Variable const job("GPIPE_JOB", "mine");
        CHECK(contains(thrown_by({}), "gpipe: GPIPE_JOB=mine is no number from 0 to "));
    }
    Rendezvous::Options first;
    first.ranks = 2; // and rank 0; the rest is as it is set
    CHECK(each_rank(2, [&](std::size_t r) { meet(r == 0 ? first : Rendezvous::Options{}); }) ==
          Words(2));
    Variable const job("GPIPE_JOB", "18446744073709551615");
    first.job = ~std::uint64_t{0};
    CHECK(each_rank(2, [&](std::size_t r) { meet(r == 0 ? first : Rendezvous::Options{}); }) ==
          Words(2));

    Rendezvous::Options o = meeting(2, 2, 1);
    CHECK(thrown_by(o) == "gpipe: rank 2 of 2: ranks count from 0, and there are at most 1024");
    o = meeting(0, 2, 1, 0);
    CHECK(thrown_by(o) == "gpipe: RendezvousOptions asks for a deadline of more than 0");
    CHECK_THROWS_AS(Rendezvous{o}, std::invalid_argument);
}

TEST_CASE("a token of the environment or of a file lets ranks in") {
    Environment const none;
    std::uint16_t const port = free_port();
    Token const same(good_token + "\n");
    Variable const token("GPIPE_TOKEN", good_token.c_str());
    CHECK(each_rank(3, [&](std::size_t r) {
              auto o = meeting(r, 3, port);
              if (r == 1) o.token_file = same.path;
              meet(o);
          }) == Words(3));
    Token const other(other_token);
    {
        Variable const wrong("GPIPE_TOKEN", other_token.c_str());
        Variable const file("GPIPE_TOKEN_FILE", same.path.c_str());
        CHECK(each_rank(2, [&](std::size_t r) { meet(meeting(r, 2, port)); }) == Words(2));
    }
}

TEST_CASE("who has another token, or none, is dropped, and the others meet all the same") {
    Environment const none;
    std::uint16_t const port = free_port();
    Token const same, other(other_token);
    for (std::string const& wrong : {other.path, std::string()}) {
        std::atomic<bool> was_there{false};
        auto const thrown = each_rank(4, [&](std::size_t r) {
            auto o = meeting(r == 3 ? 1 : r, 3, port);
            o.token_file = r == 3 ? wrong : same.path;
            if (r == 1) toy::comes_true([&] { return was_there.load(); });
            if (r < 3) return meet(o);
            std::string const words = thrown_by(o);
            was_there = true;
            throw std::runtime_error(words);
        });
        CHECK(Words(thrown.begin(), thrown.begin() + 3) == Words(3));
        CHECK(contains(thrown[3], "gpipe: who listens at 127.0.0.1:"));
        CHECK(contains(thrown[3], " has another token, or expects nobody"));
    }
}

TEST_CASE("rank 0 has to have the token, too") {
    Environment const none;
    Token const same;
    std::uint16_t const port = free_port();
    SocketAddress address = gpipe::detail::find_addresses("127.0.0.1", port)[0];
    // It says that all is well, and proves it by another token, or by the guest's own proof.
    for (bool const echoes : {false, true}) {
        Descriptor const listener = gpipe::detail::listen_at(address);
        auto const thrown = each_rank(2, [&](std::size_t r) {
            if (r == 1) {
                auto o = meeting(1, 2, port, 0.3);
                o.token_file = same.path;
                meet(o);
            }
            REQUIRE(listener.await(POLLIN, soon()));
            Descriptor const way(::accept(listener.get(), nullptr, nullptr));
            RendezvousProof proof{RendezvousProof::Who::host, {}, {}, {}};
            RendezvousKey::Proof guests{};
            way.read(&proof.hello, sizeof proof.hello, soon());
            way.write(&proof.challenge, sizeof proof.challenge, soon());
            REQUIRE(way.read(&guests, sizeof guests, soon()));
            if (!echoes)
                proof.answer = {0, GPIPE_VERSION, 2, RendezvousAnswer::Verdict::welcome, 0};
            auto const own = echoes ? guests : proof.by(RendezvousKey(other_token));
            way.write(&proof.answer, sizeof proof.answer, soon());
            way.write(&own, sizeof own, soon());
        });
        CHECK(thrown[0] == "");
        CHECK(contains(thrown[1], "gpipe: rank 0 has not come in time: who listens at 127.0.0.1:"));
        CHECK(contains(thrown[1], " does not say what rank 0 says"));
    }
}

TEST_CASE(
    "off the loopback nobody listens or comes without a token, and nobody listens everywhere") {
    Environment const none;
    for (std::size_t const rank : {0u, 1u}) {
        auto o = meeting(rank, 2, free_port(), 0.2);
        for (char const* const address : {"192.0.2.1", "2001:db8::1"}) { // of documentation
            o.address = address;
            CHECK(thrown_by(o) ==
                  "gpipe: rank 0's address " + o.address +
                      " (MASTER_ADDR) is not the loopback, and where others can come ranks need a "
                      "token, in GPIPE_TOKEN or in a file of mode 600 that GPIPE_TOKEN_FILE names");
        }
        Variable const token("GPIPE_TOKEN", good_token.c_str());
        o.address = "192.0.2.1";
        CHECK(contains(thrown_by(o), rank == 0 ? "gpipe: rank 0 cannot listen at 192.0.2.1:"
                                               : "gpipe: rank 0 has not come in time: nobody "
                                                 "listens at 192.0.2.1:"));
        for (char const* const address : {"0.0.0.0", "::", "::ffff:0.0.0.0", "0"}) {
            CAPTURE(address);
            o.address = address;
            CHECK(contains(thrown_by(o), "never on all networks of a host"));
            CHECK_THROWS_AS(Rendezvous{o}, std::invalid_argument);
            o.file = "/nowhere/at/all";
            if (rank == 0) CHECK(contains(thrown_by(o), "never on all networks of a host"));
            o.file = "";
        }
        o.address = "no such address";
        CHECK(contains(thrown_by(o), "gpipe: rank 0's address 'no such address' (MASTER_ADDR) is "
                                     "none: "));
    }
}

TEST_CASE("a file with a token that others can read, or that is none, is refused") {
    Environment const none;
    auto o = meeting(0, 2, free_port(), 0.2);
    auto const refused = [&](Token const& token, std::string const& words) {
        o.token_file = token.path;
        std::string const thrown = thrown_by(o);
        CHECK(contains(thrown, words));
        CHECK_FALSE(contains(thrown, good_token));
        CHECK_THROWS_AS(Rendezvous{o}, std::runtime_error);
    };
    for (::mode_t const mode : {0640, 0604, 0620, 0602, 0610, 0601, 0666})
        refused(Token(good_token, mode), "others may read or write it, and it needs 600");
    refused(Token("fifteen letters"), " has 15 characters: of fewer than 16 it could be guessed");
    refused(Token("\n"), " has 0 characters");
    refused(Token(std::string(4097, 'x')), " has more than 4096 characters");
    Token const token;
    ::symlink(token.path.c_str(), (token.folder / "link").c_str());
    o.token_file = token.folder / "link";
    CHECK(contains(thrown_by(o), "link' is a symbolic link"));
    o.token_file = token.folder / "none";
    CHECK(contains(thrown_by(o), "gpipe: there is no file '"));
    o.token_file = token.folder.path;
    CHECK(thrown_by(o) == "gpipe: '" + o.token_file + "' is no plain file");
    o.token_file = token.folder / "pipe"; // which nobody writes, and is not waited for
    REQUIRE(::mkfifo(o.token_file.c_str(), 0600) == 0);
    CHECK(thrown_by(o) == "gpipe: '" + o.token_file + "' is no plain file");
    o.token_file = token.path + "/below";
    CHECK(thrown_by(o) == "gpipe: '" + o.token_file + "' cannot be read (Not a directory)");
    CHECK_THROWS_AS(Rendezvous{o}, std::runtime_error);
    if (::geteuid() == 0) {
        REQUIRE(::chown(token.path.c_str(), 65534, 65534) == 0);
        refused(token, " belongs to another user");
    }
    Variable const poor("GPIPE_TOKEN", "guess me");
    o.token_file = "";
    std::string const thrown = thrown_by(o);
    CHECK(contains(thrown, "gpipe: the token in GPIPE_TOKEN has 8 characters"));
    CHECK_FALSE(contains(thrown, "guess me"));
    Token const owners(good_token, 0400);
    o.token_file = owners.path;
    CHECK(thrown_by(o) == "gpipe: rank 1 has not come in time");
}

TEST_CASE("another world, rank, version or job, and a rank that comes twice: both ends say which") {
    std::uint16_t const port = free_port();
    std::string at_rank_1, sentence;
    bool ends = true;
    RendezvousHello hello;
    hello.rank = 2;
    hello.ranks = 3;
    SUBCASE("world") {
        hello.ranks = 4;
        sentence = "gpipe: rank 2 is one of 4 ranks, and rank 0 one of 3";
    }
    SUBCASE("rank beyond the last") {
        hello.rank = 3;
        sentence = "gpipe: rank 3 comes to rank 0, and those who do are 1 to 2";
    }
    SUBCASE("rank 0") {
        hello.rank = 0;
        sentence = "gpipe: rank 0 comes to rank 0, and those who do are 1 to 2";
    }
    SUBCASE("version") {
        hello.version = 99;
        sentence = "gpipe: rank 2 has version 99 of gpipe, and rank 0 has version " +
                   std::to_string(GPIPE_VERSION);
    }
    SUBCASE("twice") {
        hello.rank = 1;
        sentence = "gpipe: rank 1 has come twice";
    }
    SUBCASE("job") { // who is of another one may come to the wrong place: the others are not
        hello.job = 5;
        sentence = "gpipe: rank 2 is of job 5, and rank 0 of job 0";
        ends = false;
    }
    std::string heard;
    std::atomic<bool> was_there{false};
    auto const thrown = each_rank(4, [&](std::size_t r) {
        if (r < 2) return meet(meeting(r, 3, port));
        if (r == 3) {
            toy::pause(0.4); // rank 1 has been let in
            heard = come(port, RendezvousKey(), hello);
            was_there = true;
        } else if (!ends) { // rank 2 itself
            toy::comes_true([&] { return was_there.load(); });
            meet(meeting(2, 3, port));
        }
    });
    CHECK(heard == sentence);
    CHECK(thrown[0] == (ends ? sentence : ""));
    CHECK(thrown[1] == (ends ? sentence : ""));
}

TEST_CASE("a rank of another world or job throws what rank 0 says of it") {
    std::uint16_t const port = free_port();
    auto thrown = each_rank(2, [&](std::size_t r) { meet(meeting(r, r == 0 ? 2 : 3, port)); });
    CHECK(thrown == Words(2, "gpipe: rank 1 is one of 3 ranks, and rank 0 one of 2"));
    thrown = each_rank(2, [&](std::size_t r) {
        auto o = meeting(r, 2, port, r == 0 ? 1 : 60);
        o.job = 7 + r;
        meet(o);
    });
    CHECK(thrown[1] == "gpipe: rank 1 is of job 8, and rank 0 of job 7");
    CHECK(thrown[0] == "gpipe: rank 1 has not come in time; who came with another token was sent "
                       "away 0 times, and of another job (GPIPE_JOB) 1 times");
    thrown = each_rank(2, [&](std::size_t) { meet(meeting(0, 2, port, 0.3)); });
    CHECK(contains(thrown[0] + thrown[1], "gpipe: rank 0 cannot listen at 127.0.0.1:"));
}

TEST_CASE("a rank that was let in, ended and was started again comes in its own place") {
    std::uint16_t const port = free_port();
    std::atomic<bool> was_there{false};
    RendezvousHello hello;
    hello.rank = 1;
    hello.ranks = 3;
    auto const thrown = each_rank(4, [&](std::size_t r) {
        if (r == 3) {
            CHECK(come(port, RendezvousKey(), hello) == "gpipe: rank 1 is welcome");
            was_there = true;
            return;
        }
        if (r > 0) toy::comes_true([&] { return was_there.load(); });
        if (r == 2) toy::pause(0.2); // rank 1 is there again
        meet(meeting(r, 3, port));
    });
    CHECK(thrown == Words(4));
}

TEST_CASE("who does not come in time is named, on all that have") {
    std::uint16_t const port = free_port();
    double const since = gpipe::detail::seconds_now();
    auto thrown = each_rank(3, [&](std::size_t r) {
        if (r != 1) meet(meeting(r, 3, port, 0.4));
    });
    CHECK(thrown ==
          Words{"gpipe: rank 1 has not come in time", "", "gpipe: rank 1 has not come in time"});
    thrown = each_rank(4, [&](std::size_t r) {
        if (r == 0) meet(meeting(r, 4, port, 0.2));
    });
    CHECK(thrown[0] == "gpipe: rank 1 has not come in time, nor 2 more");
    thrown = each_rank(2, [&](std::size_t r) {
        if (r == 1) meet(meeting(r, 2, port, 0.2));
    });
    CHECK(contains(thrown[1], "gpipe: rank 0 has not come in time: nobody listens at 127.0.0.1:"));
    CHECK(gpipe::detail::seconds_now() - since < 5);
}

TEST_CASE("who does not exchange in time, has gone, or exchanges something else, is named") {
    std::uint16_t const port = free_port();
    auto const exchange = [&](auto what) {
        return each_rank(4, [&](std::size_t r) {
            Rendezvous all(meeting(r, 4, port, 0.5));
            (void)all.exchange(r);
            what(all);
        });
    };
    auto thrown = exchange([](Rendezvous& all) {
        if (all.rank() == 2) return toy::pause(1);
        (void)all.exchange(all.rank());
    });
    std::string words = "gpipe: rank 2 has not told the others in time how they reach it";
    CHECK(thrown == Words{words, words, "", words});
    thrown = exchange([](Rendezvous& all) {
        if (all.rank() != 1) (void)all.exchange(all.rank());
    });
    words = "gpipe: rank 1 has gone before all were connected";
    CHECK(thrown == Words{words, "", words, words});
    thrown = exchange([](Rendezvous& all) {
        if (all.rank() != 0) (void)all.exchange(all.rank());
    });
    words = "gpipe: rank 0 has gone before all were connected";
    CHECK(thrown == Words{"", words, words, words});
    thrown = exchange([](Rendezvous& all) {
        if (all.rank() == 3) return (void)all.exchange('3');
        (void)all.exchange(all.rank());
    });
    words = "gpipe: rank 3 exchanges something else than rank 0";
    CHECK(thrown == Words(4, words));
}

TEST_CASE("strangers that say nothing, half of it or garbage are dropped, however many come") {
    Environment const none;
    Token const token;
    std::uint16_t const port = free_port();
    SocketAddress const address = gpipe::detail::find_addresses("127.0.0.1", port)[0];
    std::mt19937 random(7);
    std::atomic<std::size_t> visits{0};
    std::size_t answered = 0;
    double last = 0; // visit, before rank 1 comes
    std::vector<Descriptor> silent;
    auto const of = [&](std::size_t r) {
        auto o = meeting(r, 3, port);
        o.token_file = token.path;
        return o;
    };
    auto const thrown = each_rank(4, [&](std::size_t r) {
        if (r == 1) {
            toy::comes_true([&] { return visits == 300; });
            last = gpipe::detail::seconds_now();
        }
        if (r < 3) return meet(of(r));
        for (std::size_t n = 0; n < 300; ++n) {
            // The first waits for rank 0; when all have met nobody listens any more.
            Descriptor way = n == 0 ? visit(port) : gpipe::detail::connect_to(address, soon());
            if (!way) break;
            RendezvousHello hello;
            hello.ranks = 3;
            hello.rank = 1;
            std::vector<unsigned char> bytes(n % 2 == 0 ? random() % sizeof hello : random() % 200);
            for (unsigned char& byte : bytes) byte = static_cast<unsigned char>(random());
            // Some as one of us at first.
            if (n % 4 >= 2) std::memcpy(bytes.data(), &hello, std::min(bytes.size(), sizeof hello));
            bool const says = ::send(way.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) > 0;
            if (says && n % 5 == 1) {
                char said[256];
                ::timeval const patience{0, 20'000};
                ::setsockopt(way.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
                // A challenge at the most.
                ssize_t const count = ::recv(way.get(), said, sizeof said, MSG_WAITALL);
                answered += count > static_cast<ssize_t>(sizeof(RendezvousChallenge));
            }
            if (n % 2 == 0) silent.push_back(std::move(way)); // stays, with less than a hello
            ++visits;
        }
    });
    CHECK(Words(thrown.begin(), thrown.begin() + 3) == Words(3));
    CHECK(answered == 0);
    CHECK(visits == 300);
    CHECK(silent.size() > 2 * gpipe::detail::most_arrivals);
    CHECK(gpipe::detail::seconds_now() - last < 0.9 * gpipe::detail::arrival_patience); // of nobody
}

TEST_CASE("rank 0 waits for nobody who is silent, and the others not for one in its place") {
    std::uint16_t const port = free_port();
    SocketAddress address = gpipe::detail::find_addresses("127.0.0.1", port)[0];
    // Listens, and never answers, or hangs up; then goes, and rank 0 comes.
    for (bool const hangs_up : {false, true}) {
        double const since = gpipe::detail::seconds_now();
        auto const thrown = each_rank(3, [&](std::size_t r) {
            if (r > 0) return meet(meeting(r, 3, port));
            {
                Descriptor const listener = gpipe::detail::listen_at(address);
                REQUIRE(listener.await(POLLIN, soon()));
                for (double const end = gpipe::detail::seconds_now() + 0.3;
                     hangs_up && gpipe::detail::seconds_now() < end;)
                    if (listener.await(POLLIN, end))
                        Descriptor(::accept(listener.get(), nullptr, nullptr));
            }
            meet(meeting(0, 3, port));
        });
        CHECK(thrown == Words(3));
        CHECK(gpipe::detail::seconds_now() - since < 10);
    }
}

TEST_CASE("ranks find each other by a file, which goes") {
    Environment const none;
    toy::Folder const folder;
    std::string const path = folder / "ranks";
    for (std::size_t const ranks : {1u, 2u, 4u})
        for (std::size_t const late : {0u, 1u}) {
            auto const thrown = each_rank(ranks, [&](std::size_t r) {
                auto o = meeting(r, ranks, 0);
                o.address = "";
                o.file = path;
                if (r > 0 && ranks == 2) // which UBSan looks at
                    o.deadline = std::numeric_limits<double>::infinity();
                if (r == late) toy::pause(0.1);
                meet(o);
            });
            CHECK(thrown == Words(ranks));
            CHECK(std::filesystem::is_empty(folder.path));
        }
}

namespace {

Rendezvous::Options by_file(std::size_t rank, std::string const& path, double deadline = 60) {
    auto o = meeting(rank, 2, 0, deadline);
    o.file = path;
    return o;
}
// As rank 0 of this port would have written it.
RendezvousRecord record_of(std::uint16_t port) {
    RendezvousRecord record;
    record.address = gpipe::detail::find_addresses("127.0.0.1", port)[0];
    record.token = gpipe::detail::random_bytes<32>();
    return record;
}

} // namespace

TEST_CASE("a file that was left behind keeps nobody, and is replaced") {
    toy::Folder const folder;
    std::string const path = folder / "ranks";
    std::uint16_t const port = free_port();
    SocketAddress address = gpipe::detail::find_addresses("127.0.0.1", port)[0];
    Descriptor listener; // of another program, where there is one
    bool answers = false;
    SUBCASE("nobody listens there any more") {}
    SUBCASE("somebody else does") { listener = gpipe::detail::listen_at(address); }
    SUBCASE("rank 0 of others does") {
        listener = gpipe::detail::listen_at(address);
        answers = true;
    }
    auto stale = std::make_unique<RendezvousFile>(path, record_of(port));
    CHECK((std::filesystem::status(path).permissions() & std::filesystem::perms::all) ==
          std::filesystem::perms(0600));
    double const since = gpipe::detail::seconds_now();
    auto const thrown = each_rank(3, [&](std::size_t r) {
        if (r == 2) { // hangs up
            for (double const end = gpipe::detail::seconds_now() + 0.5;
                 listener && gpipe::detail::seconds_now() < end;)
                if (listener.await(POLLIN, end)) {
                    Descriptor const way(::accept(listener.get(), nullptr, nullptr));
                    RendezvousChallenge const challenge;
                    char said[sizeof(RendezvousHello) + sizeof(RendezvousKey::Proof)];
                    if (!answers) continue;
                    way.write(&challenge, sizeof challenge, soon());
                    way.read(said, sizeof said, soon());
                }
            return;
        }
        if (r == 0) toy::pause(0.3);
        meet(by_file(r, path));
    });
    CHECK(thrown == Words(3));
    CHECK(gpipe::detail::seconds_now() - since < 20);
    CHECK(std::filesystem::is_empty(folder.path));
    stale.reset(); // which is not there any more
    auto const next = record_of(port);
    auto own = std::make_unique<RendezvousFile>(path, next);
    {
        RendezvousFile const newer(path, next);
        own.reset();
        CHECK(std::filesystem::exists(path)); // it is another's
    }
    CHECK(std::filesystem::is_empty(folder.path));
}

TEST_CASE("a file from before is not looked at, and who finds no other says so in time") {
    toy::Folder const folder;
    std::string const path = folder / "ranks";
    std::uint16_t const port = free_port();
    SocketAddress address = gpipe::detail::find_addresses("127.0.0.1", port)[0];
    Descriptor const listener = gpipe::detail::listen_at(address);
    RendezvousFile const stale(path, record_of(port));
    ::timespec const then[2] = {{std::time(nullptr) - 100, 0}, {std::time(nullptr) - 100, 0}};
    REQUIRE(::utimensat(AT_FDCWD, path.c_str(), then, 0) == 0);
    CHECK(thrown_by(by_file(1, path, 0.3)) ==
          "gpipe: rank 0 has not come in time: there is no file '" + path + "', or an old one");
    CHECK_FALSE(listener.await(POLLIN, 0)); // nobody was there
    CHECK(contains(thrown_by(by_file(1, folder / "none", 0.2)), "there is no file '"));
    CHECK(thrown_by(by_file(0, path, 0.2)) == "gpipe: rank 1 has not come in time");
    CHECK(std::filesystem::is_empty(folder.path));
}

TEST_CASE("a file that others could have written, or that is none of ours, is refused") {
    toy::Folder const folder;
    std::string const path = folder / "ranks";
    std::uint16_t const port = free_port();
    {
        RendezvousFile const file(path, record_of(port));
        for (::mode_t const mode : {0640, 0604, 0660}) {
            ::chmod(path.c_str(), mode);
            CHECK(contains(thrown_by(by_file(1, path)), "others may read or write it"));
        }
        ::chmod(path.c_str(), 0600);
        if (::geteuid() == 0) {
            REQUIRE(::chown(path.c_str(), 65534, 65534) == 0);
            CHECK(contains(thrown_by(by_file(1, path)), " belongs to another user"));
        }
    }
    CHECK(std::filesystem::is_empty(folder.path));
    for (std::string const& content :
         {std::string("short"), std::string(184, 'x'), std::string(184, 0)}) {
        folder.write("ranks", content);
        ::chmod(path.c_str(), 0600);
        CHECK(contains(thrown_by(by_file(1, path)), " is no file that rank 0 of this version has "
                                                    "written"));
    }
    CHECK(contains(thrown_by(by_file(0, "/nowhere/at/all")),
                   "gpipe: '/nowhere/at/all' cannot be written ("));
    std::filesystem::remove(path);
    std::filesystem::create_directory(path);
    CHECK(contains(thrown_by(by_file(0, path)), "' cannot be written ("));
    CHECK(thrown_by(by_file(1, path)) == "gpipe: '" + path + "' is no plain file");
    std::filesystem::remove(path);
    folder.write("ranks", "short");
    CHECK(thrown_by(by_file(1, path + "/below")) ==
          "gpipe: '" + path + "/below' cannot be read (Not a directory)");
    std::filesystem::remove(path);
    CHECK(std::filesystem::is_empty(folder.path)); // nor is there a part of it
}

TEST_CASE("one who has the file's token and is of another file's job is told so") {
    toy::Folder const folder;
    std::string const path = folder / "ranks";
    auto const thrown = each_rank(2, [&](std::size_t r) {
        if (r == 0) return meet(by_file(0, path, 2));
        RendezvousRecord record;
        REQUIRE(toy::comes_true([&] { return RendezvousFile::read(path, 0, record); }));
        std::string const text = record.address.text();
        RendezvousHello hello;
        hello.rank = 1;
        hello.ranks = 2;
        hello.job = record.job + 1;
        auto const port = static_cast<std::uint16_t>(std::stoi(text.substr(text.find(':') + 1)));
        CHECK(contains(come(port, record.key(), hello), ", and rank 0 of job "));
        CHECK(come(port, RendezvousKey(), hello) == "dropped");
        hello.magic ^= 1;
        CHECK(come(port, record.key(), hello) == "dropped at once");
    });
    CHECK(thrown[0].rfind("gpipe: rank 1 has not come in time; who came with another token", 0) ==
          0);
}
