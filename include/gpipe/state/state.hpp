#pragma once

/// Saving the state of a Training, and going on from it; CMake target gpipe::state, which brings
/// nlohmann-json along.
#include <gpipe/state/load.hpp>
#include <gpipe/state/save.hpp>
