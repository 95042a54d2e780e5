#include "other.hpp"

#include <gpipe/gpipe.hpp>

int main() { return bubble_elsewhere() == gpipe::ratio(3, 35) ? 0 : 1; }
