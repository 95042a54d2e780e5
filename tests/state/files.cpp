// How states get onto the disk: whatever call fails, and whenever the process dies, a path holds
// the old state or the new, as a whole.
#include "support/folder.hpp"
#include "support/long_tests.hpp"
#include "support/system_calls.hpp"

#include <gpipe/state/file.hpp>
#include <gpipe/state/safetensors.hpp>

#include <doctest/doctest.h>

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <vector>

namespace {

namespace fs = std::filesystem;
using gpipe::AtomicFile;
using gpipe::StateError;
using toy::CallFault;

using toy::Folder;

std::string content(std::string const& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}
void write(std::string const& path, std::string const& text) {
    AtomicFile file(path);
    std::size_t const half = text.size() / 2;
    auto const bytes = std::as_bytes(std::span(text));
    file.write(bytes.first(half));
    file.write(bytes.subspan(half));
    file.commit();
}

char const* const calls[] = {"open", "write", "fsync", "close", "rename"};
std::string const before(3000, 'o');
std::string const after(5000, 'n');

} // namespace

TEST_CASE("the calls come in the order that makes it last: all of the file before its name, then "
          "the folder") {
    Folder const folder;
    toy::SystemCalls const watch;
    write(folder / "s", after);
    std::string const in = fs::path(folder.path).filename().string();
    CHECK(watch.log() == std::vector<std::string>{"open s.partial", "write s.partial",
                                                  "fsync s.partial", "close s.partial",
                                                  "rename s.partial s", "open " + in, "fsync " + in,
                                                  "close " + in, "close s.partial"});
    CHECK(content(folder / "s") == after);
}

TEST_CASE(
    "whichever call fails, an error names the path and the system's words, and the path holds "
    "the old or the new") {
    Folder const folder;
    std::size_t failed = 0;
    for (char const* call : calls)
        for (int error : {ENOSPC, EIO})
            for (std::size_t n = 1;; ++n) {
                std::string const path = folder / "s";
                write(path, before);
                std::string said;
                bool struck = false;
                std::size_t renames = 0;
                {
                    toy::SystemCalls const watch({call, n, CallFault::fails, error});
                    try {
                        write(path, after);
                    } catch (StateError const& thrown) {
                        said = thrown.what();
                    }
                    struck = watch.count() >= n;
                    for (std::string const& line : watch.log()) renames += line[0] == 'r';
                }
                if (!struck) break;
                ++failed;
                INFO(call, " ", n, ": ", said);
                // The lock has nothing to say that matters when it is closed.
                bool const last_close = std::string(call) == "close" && said.empty();
                if (!last_close) {
                    CHECK(said.find(std::string(call) + ": " + std::strerror(error)) !=
                          std::string::npos);
                    CHECK(said.find(folder.path) != std::string::npos);
                }
                bool const named = renames > 0 && std::string(call) != "rename";
                CHECK(content(path) == (named ? after : before));
                CHECK((named || !last_close));
                CHECK(!fs::exists(path + ".partial"));
                // The next one is none the worse for it.
                write(path, after + "!");
                CHECK(content(path) == after + "!");
                CHECK(!fs::exists(path + ".partial"));
            }
    CHECK(failed == 2 * (3 + 2 + 2 + 3 + 1));
}

TEST_CASE("calls that are interrupted or write less than asked for are made again") {
    Folder const folder;
    for (char const* call : {"open", "write", "fsync"})
        for (std::size_t n = 1; n <= 2; ++n) {
            toy::SystemCalls const watch({call, n, CallFault::interrupts});
            write(folder / "s", after);
            CHECK(watch.count() > n);
            CHECK(content(folder / "s") == after);
        }
    toy::SystemCalls const watch({"write", 0, CallFault::shortens});
    write(folder / "s", before);
    CHECK(watch.count() > 20);
    CHECK(content(folder / "s") == before);
}

TEST_CASE(
    "killed before or after any call, the process leaves the old or the new, and the next one "
    "clears up") {
    Folder const folder;
    std::string const path = folder / "s";
    std::size_t news = 0;
    std::size_t killed = 0;
    for (CallFault::Kind const kind : {CallFault::kills_before, CallFault::kills_after})
        for (std::size_t n = 1;; ++n) {
            write(path, before);
            pid_t const child = ::fork();
            REQUIRE(child >= 0);
            if (child == 0) {
                toy::SystemCalls const watch({"", n, kind});
                write(path, after);
                ::_exit(0);
            }
            int status = 0;
            REQUIRE(::waitpid(child, &status, 0) == child);
            if (WIFEXITED(status)) {
                CHECK(WEXITSTATUS(status) == 0);
                break;
            }
            REQUIRE(WTERMSIG(status) == SIGKILL);
            ++killed;
            std::string const now = content(path);
            CHECK((now == before || now == after));
            news += now == after;
            write(path, before);
            CHECK(content(path) == before);
            CHECK(std::distance(fs::directory_iterator(folder.path), {}) == 1);
        }
    CHECK(killed == 2 * 11);
    CHECK(news >= 5 + 4);
    CHECK(news < killed);
}

TEST_CASE("killed at random moments the process leaves one of its states, as a whole") {
    // State n: a header, 1 MiB of n, in sound form.
    auto const state = [](std::uint64_t n) {
        std::vector<gpipe::safetensors::Entry> entries{
            {"n", gpipe::Dtype::U64, {(std::uint64_t{1} << 17)}}};
        gpipe::safetensors::arrange(entries);
        std::vector<std::uint64_t> const numbers(std::size_t{1} << 17, n);
        std::string file = gpipe::safetensors::file_begin(entries, {{"n", std::to_string(n)}});
        return file.append(reinterpret_cast<char const*>(numbers.data()),
                           numbers.size() * sizeof n);
    };
    Folder const folder;
    std::string const path = folder / "s";
    std::size_t const rounds = toy::long_tests() ? 1000 : 50;
    std::uint64_t last = 0;
    std::size_t advances = 0;
    std::size_t torn = 0; // processes that died within a save
    std::mt19937 random(1);
    write(path, state(0));
    for (std::size_t round = 0; round < rounds; ++round) {
        pid_t const child = ::fork();
        REQUIRE(child >= 0);
        if (child == 0)
            for (std::uint64_t n = last + 1;; ++n) write(path, state(n));
        std::this_thread::sleep_for(std::chrono::microseconds(1000 + random() % 40'000));
        REQUIRE(::kill(child, SIGKILL) == 0);
        int status = 0;
        REQUIRE(::waitpid(child, &status, 0) == child);
        REQUIRE(WIFSIGNALED(status));
        std::string const now = content(path);
        std::string said;
        try {
            auto const header = gpipe::safetensors::parse_file(std::as_bytes(std::span(now)));
            std::uint64_t const n = std::stoull(header.metadata.at("n"));
            CHECK(n >= last);
            CHECK(now == state(n));
            advances += n > last;
            last = n;
        } catch (StateError const& error) {
            said = error.what();
        }
        CHECK(said == "");
        torn += fs::exists(path + ".partial");
    }
    MESSAGE(rounds, " kills, ", torn, " within a save; state ", last);
    CHECK(torn > 0);
    CHECK(advances > 0);
    write(path, state(last + 1));
    CHECK(content(path) == state(last + 1));
}

TEST_CASE("a link stays one and what it stands for is replaced, with the permissions that it had; "
          "what is no file is refused") {
    Folder const folder;
    fs::create_directory(folder / "disk");
    write(folder / "disk/run", before);
    fs::permissions(folder / "disk/run", fs::perms(0600));
    fs::create_symlink("disk/run", folder / "latest");
    fs::create_symlink(folder / "latest", folder / "last of all");
    fs::create_symlink("disk/next", folder / "dangling");
    for (char const* link : {"latest", "last of all"}) {
        write(folder / "disk/run", before);
        write(folder / link, after);
        CHECK(fs::is_symlink(folder / link));
        CHECK(content(folder / "disk/run") == after);
        CHECK(fs::status(folder / "disk/run").permissions() == fs::perms(0600));
    }
    write(folder / "dangling", after);
    CHECK(content(folder / "disk/next") == after);
    CHECK(::mkfifo((folder / "pipe").c_str(), 0600) == 0);
    CHECK_THROWS_WITH_AS(write(folder / "pipe", after),
                         doctest::Contains("/pipe: it is there, but no file that can be replaced"),
                         StateError);
    CHECK(fs::is_fifo(folder / "pipe"));
    fs::create_symlink("itself", folder / "itself");
    CHECK_THROWS_AS(write(folder / "itself", after), StateError);
    CHECK(fs::is_symlink(folder / "itself"));
}

TEST_CASE("two who write the same path do not meet: the second is told so") {
    Folder const folder;
    std::string const path = folder / "s";
    AtomicFile first(path);
    first.write(std::as_bytes(std::span(after)));
    CHECK_THROWS_AS(write(path, before), StateError);
    first.commit();
    CHECK(content(path) == after);
    write(path, before);
    CHECK(content(path) == before);
}

TEST_CASE("a path without a folder is one in the folder where the process is, and a folder that is "
          "not there is an error") {
    Folder const folder;
    fs::path const here = fs::current_path();
    fs::current_path(folder.path);
    write("s", after);
    fs::current_path(here);
    CHECK(content(folder / "s") == after);
    CHECK_THROWS_AS(write(folder / "no/s", after), StateError);
}
