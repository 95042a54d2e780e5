// Says what happened when somebody touches memory of a device that is not his to touch.
#include "world.hpp"

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <unistd.h>

namespace cuda_double::detail {

namespace {

struct sigaction before_us; // whoever reports crashes else: doctest, a sanitizer
bool watching = false;

void stop_watching() {
    if (watching) sigaction(SIGSEGV, &before_us, nullptr);
    watching = false;
}

// Nothing here allocates. The access happens once more when this returns, and is then for those
// before us.
void explain(int, siginfo_t* info, void*) {
    World& w = world();
    if (Allocation const* a = w.find(info->si_addr)) {
        char sentence[256];
        int const length = std::snprintf(
            sentence, sizeof sentence,
            "cuda_double: touched without leave: byte %td of allocation %zu (device %d)%s; by %s\n",
            static_cast<std::byte*>(info->si_addr) - a->data, a->number, a->device,
            a->live ? "" : ", freed", w.running ? w.log[w.running->call].c_str() : "the host");
        auto const bytes = std::min(sizeof sentence - 1, static_cast<std::size_t>(length));
        [[maybe_unused]] ssize_t const written = write(2, sentence, bytes);
    }
    stop_watching();
}

} // namespace

void World::watch_crashes(bool on) {
    stop_watching();
    if (!on) return;
    struct sigaction action {};
    action.sa_sigaction = explain;
    action.sa_flags = SA_SIGINFO | SA_NODEFER;
    watching = sigaction(SIGSEGV, &action, &before_us) == 0;
    // Somebody (doctest, between its cases) may have put us back: then there is nobody before us.
    // With our flags ThreadSanitizer would take the default for a function.
    if (before_us.sa_sigaction == explain) before_us = {};
}

} // namespace cuda_double::detail
