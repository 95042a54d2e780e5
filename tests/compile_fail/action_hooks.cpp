// expect GPIPE_ACTION_HOOK: gpipe: a hook of actions \(F\) takes \(gpipe::ActionEvent const&\), or that and
// expect GPIPE_ACTION_HOOK_COPIED: gpipe: a hook of actions \(F\) must be copyable, for each replica has it
#include <gpipe/training.hpp>
#include <support/blank_layers.hpp>
#include <support/blank_loss.hpp>

#include <memory>

using Train = gpipe::Training<gpipe::Pipeline<blank::Linear<4>>, gpipe::Loss<blank::Loss<4>>>;

void on_action(Train& train) {
#ifdef GPIPE_ACTION_HOOK
    train.on_action([](int) {});
#endif
#ifdef GPIPE_ACTION_HOOK_COPIED
    train.on_action([once = std::make_unique<int>()](gpipe::ActionEvent const&) {});
#endif
    train.on_action([](gpipe::ActionEvent const&) {});
    train.on_action([](gpipe::ActionEvent, gpipe::device::Host::Stream const&) {});
    train.on_action(nullptr);
}
