#include <gpipe/core/version.hpp>

// One number that grows with the version, for #if.
#if GPIPE_VERSION < 100 || GPIPE_VERSION >= 1000000
#error GPIPE_VERSION is no number that #if can compare
#endif
static_assert(GPIPE_VERSION / 10000 == GPIPE_VERSION_MAJOR);
static_assert(GPIPE_VERSION / 100 % 100 == GPIPE_VERSION_MINOR);
static_assert(GPIPE_VERSION % 100 == GPIPE_VERSION_PATCH);
