#pragma once

#include <cstdio>
#include <iostream>
#include <string>

namespace benchmark {

/// For programs that are compared: a round for each line on stdin, so that who writes these can run
/// them in turns. Says `ready` before the first, and `done` after each.
template <class Round> void take_turns(Round round) {
    auto const say = [](char const* what) {
        std::puts(what);
        std::fflush(stdout);
    };
    say("ready");
    for (std::string line; std::getline(std::cin, line);) {
        round();
        say("done");
    }
}

} // namespace benchmark
