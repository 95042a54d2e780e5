// expect GPIPE_HOOKS_NOTHING: gpipe: a hook of gradients \(F\) has neither template <class T> GPIPE_HOST
// expect GPIPE_HOOKS_NOTHING: CheckHook<(Mistake,|.*F=Mistake)
// expect GPIPE_HOOK_THROWS: gpipe: a hook of gradients \(F\) may not throw, for updates run after the commit
// expect GPIPE_HOOK_RETURNS: gpipe: a hook of gradients \(F\) may not throw, for updates run after the commit
// expect GPIPE_HOOK_RULE: gpipe: the rule of a hook of gradients \(F\) must return a functor that takes the gr
// expect GPIPE_HOOK_NOT_COPYABLE: gpipe: an optimizer must be copyable
// expect GPIPE_HOOK_NO_RULE: gpipe: a hook of gradients by element stands in the rule of its optimizer, but
// expect GPIPE_HOOK_NO_RULE: CheckHook<(Mistake, Own>|.*O=Own)
#include <gpipe/optimizer/hooked.hpp>
#include <gpipe/training.hpp>
#include <support/blank_layers.hpp>
#include <support/blank_loss.hpp>

#include <memory>
#include <span>

using gpipe::UpdateContext;

struct Own { // without a rule
    static constexpr std::size_t states = 0;
    template <class T> void operator()(UpdateContext, gpipe::UpdateTensor<T, 0>) const noexcept {}
};
#if defined(GPIPE_HOOKS_NOTHING)
struct Mistake {
    void operator()(double) const noexcept {}
};
#elif defined(GPIPE_HOOK_THROWS)
struct Mistake {
    template <class T> void operator()(UpdateContext, std::span<T>) const {}
};
#elif defined(GPIPE_HOOK_RETURNS)
struct Mistake {
    template <class T> bool operator()(UpdateContext, std::span<T>) const noexcept { return true; }
};
#elif defined(GPIPE_HOOK_RULE)
struct Mistake {
    template <class T> struct Rule {
        void operator()(T&) const {}
    };
    template <class T> Rule<T> rule(UpdateContext) const { return {}; }
};
#elif defined(GPIPE_HOOK_NOT_COPYABLE)
struct Mistake {
    std::unique_ptr<int> once;
    template <class T> void operator()(UpdateContext, std::span<T>) const noexcept {}
};
#elif defined(GPIPE_HOOK_NO_RULE)
struct Mistake : gpipe::ClipByValue {};
#else
struct Mistake {
    template <class T> void operator()(UpdateContext, std::span<T>) const noexcept {}
};
#endif
using Train = gpipe::Training<gpipe::Pipeline<blank::Linear<4>>, gpipe::Loss<blank::Loss<4>>,
                              gpipe::Optimizer<gpipe::Hooked<Own, Mistake>>>;
static_assert(Train::layer_count == 1);
