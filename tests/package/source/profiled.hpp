#pragma once

#include "other.hpp"

#include <others.hpp>

#include <stdexcept>

extern "C" void known_to_the_linker(); // which is told by consumer.cmake

// For who is linked without that nothing would be there.
inline Net linked() {
    void (*volatile const at)() = known_to_the_linker;
    if (!at) throw std::logic_error("nobody has told the linker");
    return {};
}
