#pragma once

// What toy layers report and what makes them throw: shared by all layers of a net, from any thread.

#include <gpipe/call/call.hpp>
#include <gpipe/layer/traits.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <exception>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace toy {

using gpipe::Phase;

/// A place at which to throw: the call of `layer` on the micro-batch that begins with
/// `first_sample`.
struct Fault {
    std::size_t layer = 0; ///< any number of layers or more: the loss
    std::size_t first_sample = 0;
    Phase phase = Phase::forward;

    friend bool operator==(Fault const&, Fault const&) = default;
};

/// What is thrown: of no standard type, with contents by which it is known again.
struct Thrown {
    Fault at;
    std::shared_ptr<int> token;
};
/// What f() throws, in words, "Thrown" of one of these; none if nothing.
template <class F> std::string thrown_by(F f) {
    try {
        f();
    } catch (Thrown const&) {
        return "Thrown";
    } catch (std::exception const& error) {
        return error.what();
    }
    return {};
}
/// Whether a text has that part.
inline bool has(std::string const& text, char const* part) {
    return text.find(part) != std::string::npos;
}

struct Call {
    std::size_t layer = 0;
    std::size_t first_sample = 0;
    std::size_t samples = 0;
    Phase phase = Phase::evaluate;
    bool saving = false;
    bool training = false;
    bool wants_input_gradient = true;

    friend bool operator==(Call const&, Call const&) = default;
};

class Watch {
  public:
    static constexpr std::size_t loss = 1000; ///< the "layer" of the loss

    std::vector<Fault> faults; ///< set between runs
    bool logs = false;         ///< whether calls are kept
    std::shared_ptr<int> token = std::make_shared<int>(42);

    void enter(Call const& call) {
        if (call.samples == 0) throw std::logic_error("a layer is called for no samples");
        if (call.phase == Phase::evaluate && call.saving)
            throw std::logic_error("a layer saves what no backward reads");
        if (call.layer < layers)
            ++counts_[call.layer][static_cast<std::size_t>(call.phase)];
        else
            ++loss_calls_;
        if (logs) {
            std::lock_guard lock(mutex_);
            log_.push_back(call);
        }
        Fault const here{call.layer, call.first_sample, call.phase};
        if (std::find(faults.begin(), faults.end(), here) != faults.end())
            throw Thrown{here, token};
    }

    std::size_t count(std::size_t layer, Phase phase) const {
        return counts_[layer][static_cast<std::size_t>(phase)];
    }
    std::size_t loss_calls() const { return loss_calls_; }
    std::vector<Call> const& log() const { return log_; }
    void reset() {
        for (auto& layer : counts_)
            for (auto& count : layer) count = 0;
        loss_calls_ = 0;
        log_.clear();
    }

  private:
    static constexpr std::size_t layers = 32;
    std::array<std::array<std::atomic<std::size_t>, 6>, layers> counts_{};
    std::atomic<std::size_t> loss_calls_{0};
    std::mutex mutex_;
    std::vector<Call> log_;
};

namespace detail {

template <class L> struct WatchedForward : L {
    Watch* watch = nullptr;

    WatchedForward() = default;
    explicit WatchedForward(Watch& by, L layer = {}) : L(std::move(layer)), watch(&by) {}

    void forward(auto& ctx, auto x, auto y) const {
        enter(ctx, ctx.saving(), true);
        L::forward(ctx, x, y);
    }

  protected:
    void enter(auto& ctx, bool saving, bool wants_input_gradient) const {
        if (watch)
            watch->enter({ctx.layer(), ctx.first_sample(), ctx.samples(), ctx.phase(), saving,
                          ctx.training(), wants_input_gradient});
    }
};
template <class L, bool = gpipe::detail::names_backward<L>>
struct WatchedWhole : WatchedForward<L> {
    using WatchedForward<L>::WatchedForward;
    template <class Context, class... Views>
    void backward(Context& ctx, Views... views) const requires requires(L const& layer) {
        layer.backward(ctx, views...);
    }
    {
        this->enter(ctx, false, !(... || gpipe::is_none<Views>));
        L::backward(ctx, views...);
    }
};
template <class L> struct WatchedWhole<L, false> : WatchedForward<L> {
    using WatchedForward<L>::WatchedForward;
};
template <class L, bool = gpipe::splits_backward<L>> struct WatchedHalves : WatchedWhole<L> {
    using WatchedWhole<L>::WatchedWhole;
    template <class Context, class... Views>
    void input_gradient(Context& ctx, Views... views) const requires requires(L const& layer) {
        layer.input_gradient(ctx, views...);
    }
    {
        this->enter(ctx, false, !(... || gpipe::is_none<Views>));
        L::input_gradient(ctx, views...);
    }
    // Of two halves that run as one the first has reported.
    template <class Context, class... Views>
    void weight_gradient(Context& ctx, Views... views) const requires requires(L const& layer) {
        layer.weight_gradient(ctx, views...);
    }
    {
        if (ctx.phase() == Phase::weight_gradient) this->enter(ctx, false, false);
        L::weight_gradient(ctx, views...);
    }
};
template <class L> struct WatchedHalves<L, false> : WatchedWhole<L> {
    using WatchedWhole<L>::WatchedWhole;
};

} // namespace detail

/// Layer L, reporting each call to a Watch that is its run-time member.
template <class L> struct Watched : detail::WatchedHalves<L> {
    using detail::WatchedHalves<L>::WatchedHalves;
};

} // namespace toy
