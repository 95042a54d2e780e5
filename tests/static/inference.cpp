// Inference: policies in any order, and everything known before the run as a constant.
#include <support/blank_layers.hpp>
#include <support/blank_loss.hpp>

#include <gpipe/gpipe.hpp>
#include <gpipe/inference.hpp>

#include <cstddef>

namespace {

using gpipe::Balance;
using gpipe::Cells;
using gpipe::Inference;
using gpipe::MicroBatches;
using gpipe::Repeat;

using Net = gpipe::Pipeline<blank::Costly<64>, Repeat<6, blank::Costly<64>>, blank::Costly<64>>;
template <class... Policies>
using Training = gpipe::Training<Net, gpipe::Loss<blank::Loss<64>>, Policies...>;

using A = Inference<Net, Cells<4>, MicroBatches<32>, gpipe::transport::Local, gpipe::device::Host>;
using B = Inference<Net, gpipe::device::Host, gpipe::transport::Local, MicroBatches<32>, Cells<4>>;
static_assert(A::is_constant && A::device_count == 4 && A::micro_batch_count == 32);
static_assert(B::is_constant && B::device_count == 4 && B::micro_batch_count == 32);
static_assert(A::layer_count == 8 && A::peak_bytes(1, 8) == B::peak_bytes(1, 8));
static_assert(A::first_layers()[1] == 2 && A::first_layers()[3] == 6);

// Defaults, and what is chosen at construction.
static_assert(Inference<Net>::device_count == 1 && Inference<Net>::micro_batch_count == 4);
static_assert(Inference<Net, Cells<8>>::micro_batch_count == 32);
static_assert(!Inference<Net, Cells<gpipe::dynamic>>::is_constant);
static_assert(!Inference<Net, MicroBatches<gpipe::dynamic>>::is_constant);
using ByHand = Inference<Net, Balance<3, 1, 4>>;
static_assert(ByHand::first_layers()[1] == 3 && ByHand::first_layers()[2] == 4);

// On a device fewer bytes than any training needs, whatever that keeps.
using Small = Inference<Net, Cells<4>, MicroBatches<8>>;
template <class... Policies> using Trains = Training<Cells<4>, MicroBatches<8>, Policies...>;
static_assert(Small::peak_bytes(0, 8) < Trains<gpipe::checkpoint::Always>::peak_bytes(0, 8));
static_assert(Small::peak_bytes(3, 8) < Trains<gpipe::checkpoint::Always>::peak_bytes(3, 8));
static_assert(Small::peak_bytes(2, 8) <
              Trains<gpipe::schedule::OneForwardOneBackward>::peak_bytes(2, 8));
static_assert(Inference<Net>::peak_bytes(0, 1) < Training<>::peak_bytes(0, 1));

// Of the middle device: parameters, two slots, and nothing that grows with M.
constexpr std::size_t tensor = 64 * 4 * 8; // of a micro-batch of 8 samples
static_assert([] {
    gpipe::MemoryPlan const plan = A::plan_for(8);
    gpipe::DeviceBytes const& bytes = plan.devices[1];
    return bytes.boundary == 2 * tensor && bytes.gradients == 0 && bytes.optimizer == 0 &&
           bytes.parameters == 2 * (64 * 64 * 4 + 64 * 4) && bytes.activations == tensor &&
           plan.lowered.programs.evaluates();
}());
static_assert(Inference<Net, Cells<4>, MicroBatches<128>>::peak_bytes(1, 8) == A::peak_bytes(1, 8));
// Of the last its output, and no gradient of that.
static_assert(Inference<Net, Cells<8>, MicroBatches<8>>::plan_for(8).devices[7].activations ==
              tensor);
// With what copies need, where devices share nothing.
static_assert(A::peak_bytes(1, 8, gpipe::Link::copied) > A::peak_bytes(1, 8));

// Each gives what the next takes; nobody wants a gradient.
static_assert([] {
    gpipe::MemoryPlan const plan = A::plan_for(8, gpipe::Link::copied);
    for (gpipe::Edge const& edge : plan.lowered.edges)
        if (edge.gradient || edge.gradient_bytes > 0) return false;
    return plan.lowered.edges.size() == 3;
}());

// Layers without a backward, by their own word.
struct Evaluates {
    using Input = gpipe::Tensor<float, 64>;
    using Output = Input;
    static constexpr bool only_evaluates = true;
    void forward(auto&, auto, auto) const {}
};
using Some = gpipe::Pipeline<blank::Linear<64>, Evaluates, blank::Linear<64>, Evaluates>;
static_assert(Inference<Some, Cells<2>>::is_constant);
static_assert(!Some::leaf_info[1].output_carries_gradient);
// A Training of what learns above one.
using Above = gpipe::Pipeline<gpipe::Frozen<blank::Linear<64>>, Evaluates, blank::Linear<64>>;
static_assert(gpipe::Training<Above, gpipe::Loss<blank::Loss<64>>>::is_constant);

} // namespace
