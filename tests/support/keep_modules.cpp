// For programs that a leak checker watches: what a library has loaded stays, so that whoever has
// taken memory until the end can be named, and tests/support/lsan.supp has his name.
#include <dlfcn.h>

extern "C" int dlclose(void*) noexcept { return 0; }
