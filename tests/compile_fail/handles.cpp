// expect GPIPE_HANDLE_UNDECLARED: gpipe: who works with gpipe::handle<H>\(context\) must declare it
// expect GPIPE_HANDLE_OF_NO_STREAM: gpipe: a handle type needs a constructor H\(Stream const&, std::b
#include <gpipe/chain/chain.hpp>
#include <support/blank_layers.hpp>

struct Stream {};
struct Library {
#ifdef GPIPE_HANDLE_OF_NO_STREAM
    Library() = default;
#else
    Library(Stream const&, std::byte*) {}
#endif
};
struct Other {
    Other(Stream const&, std::byte*) {}
};

struct Worker : blank::Map<4> {
    using Handles = gpipe::Handles<Library>;
    void forward(auto& context, auto, auto) const {
#ifdef GPIPE_HANDLE_UNDECLARED
        gpipe::handle<Other>(context);
#else
        gpipe::handle<Library>(context);
#endif
    }
};
constexpr auto functions = gpipe::detail::layer_functions<Worker, Stream>();
static_assert(functions.handles.size() == 1);
