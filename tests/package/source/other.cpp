#include "other.hpp"

#include <gpipe/gpipe.hpp>

gpipe::Ratio bubble_elsewhere() { return gpipe::ratio(6, 70); }
