// expect GPIPE_STEP_OF_ANOTHER_TIME: gpipe: on this device the work of one step is replayed in others
// expect GPIPE_STEP_OF_ANOTHER_TIME: context.step\(\) would not change
#include <gpipe/chain/thunk.hpp>
#include <support/blank_layers.hpp>

struct Stream {
    static constexpr bool replays = true;
};

// The control: the same by a pointer.
struct Warm : blank::Map<4> {
    void forward(auto& context, auto, auto) const {
#ifdef GPIPE_STEP_OF_ANOTHER_TIME
        static_cast<void>(context.step());
#else
        static_cast<void>(context.state());
        static_cast<void>(context.random());
#endif
    }
};
template void gpipe::detail::forward_thunk<Warm, Stream>(gpipe::Call const&, gpipe::Frame const&);
