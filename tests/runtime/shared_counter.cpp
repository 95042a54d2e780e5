// Processes that hand something over to each other, again and again.
#include <gpipe/transport/shared_counter.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <new>

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

namespace {

using gpipe::detail::SharedCounter;

struct Shared {
    SharedCounter there, back;
    std::uint64_t data = 0; // not atomic: the counters say whose it is
};

// Sleeps at once, for so long that a call that nobody answers would end the test by its time-out.
void wait_for(SharedCounter& counter, std::uint64_t count) {
    auto const ready = [&] { return counter.get() >= count; };
    while (!ready()) counter.sleep(ready, 900'000'000);
}

} // namespace

TEST_CASE("processes wake each other, and see what was written before") {
    void* const memory =
        ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    REQUIRE(memory != MAP_FAILED);
    auto* const shared = new (memory) Shared;
    constexpr std::uint64_t rounds = 20'000;
    ::pid_t const child = ::fork();
    if (child == 0) {
        for (std::uint64_t n = 1; n <= rounds; ++n) {
            wait_for(shared->there, n);
            if (shared->data != 2 * n) ::_exit(1);
            shared->data = 2 * n + 1;
            shared->back.set(n);
        }
        ::_exit(0);
    }
    std::uint64_t wrong = 0;
    timespec begin{}, end{};
    ::clock_gettime(CLOCK_MONOTONIC, &begin);
    for (std::uint64_t n = 1; n <= rounds; ++n) {
        shared->data = 2 * n;
        shared->there.set(n);
        wait_for(shared->back, n);
        wrong += shared->data != 2 * n + 1;
    }
    ::clock_gettime(CLOCK_MONOTONIC, &end);
    int status = -1;
    CHECK(::waitpid(child, &status, 0) == child);
    CHECK(status == 0);
    CHECK(wrong == 0);
    CHECK(shared->back.get() == rounds);
    MESSAGE(double(end.tv_sec - begin.tv_sec) << " s for " << rounds << " times there and back");
    ::munmap(memory, sizeof(Shared));
}

TEST_CASE("whoever is not woken goes on after a while, and nobody sleeps where all is ready") {
    SharedCounter counter;
    counter.sleep([] { return false; }, 1'000'000);
    counter.sleep([] { return true; }, 900'000'000);
    counter.set(3);
    CHECK(counter.get() == 3);
}
