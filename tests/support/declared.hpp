#pragma once

// The layers of kernels.hpp on the double of the CUDA runtime: the same bodies, launched there. A
// kernel says what memory it may touch: all that the call it is launched by was given.

#include "enqueued.hpp"
#include "kernels.hpp"

#include <cstddef>
#include <string>
#include <utility>

namespace toy {

/// Of the call that goes on.
inline Ranges const* touched = nullptr;
class Touches {
  public:
    explicit Touches(Ranges ranges) : ranges_(std::move(ranges)) { touched = &ranges_; }
    Touches(Touches const&) = delete;
    Touches& operator=(Touches const&) = delete;
    ~Touches() { touched = nullptr; }

  private:
    Ranges ranges_;
};

namespace detail {

struct Declares {
    static void call(auto const& layer, auto& context, Ranges ranges, char const*, auto call,
                     auto... tensors) {
        Touches const now(std::move(ranges));
        call(layer, context, tensors...);
    }
};

} // namespace detail

template <class L> struct Declared : detail::HalvesBy<L, detail::Declares> {
    using detail::HalvesBy<L, detail::Declares>::HalvesBy;
};

template <class Loss> struct DeclaredLoss : Loss {
    void operator()(auto& context, auto y, auto target, auto dy) const {
        Touches const now(of_loss(context, y, target, dy));
        Loss::operator()(context, y, target, dy);
    }
};

namespace body {

template <class Body>
void launch(gpipe::device::Cuda::Stream const& stream, std::size_t count, Body const& body) {
    static_cast<void>(cuda_double::launch(
        stream,
        [count, body] {
            for (std::size_t i = 0; i < count; ++i) body(i);
        },
        touched->reads, touched->writes, std::string(gpipe::type_name<Body>)));
}

} // namespace body
} // namespace toy
