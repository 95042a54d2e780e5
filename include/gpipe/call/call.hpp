#pragma once

#include <gpipe/call/address.hpp>
#include <gpipe/call/constant_table.hpp>
#include <gpipe/call/step_sides.hpp>
#include <gpipe/call/step_state.hpp>

#include <cstddef>
#include <cstdint>

namespace gpipe {

class HandleSet;

/// Which tensors of a mini-batch are absent, of those that may be: see gpipe::Optional.
struct StepOptionals {
    void const* const* tags = nullptr; ///< by tensor: one address per tag
    std::uint64_t absent = 0;          ///< a bit for each tensor

    /// Whether tensors of this tag are.
    constexpr bool lack(void const* tag) const {
        std::size_t i = 0;
        for (std::uint64_t left = absent; left != 0; left >>= 1, ++i)
            if ((left & 1) && tags[i] == tag) return true;
        return false;
    }
};

/// What a layer function is called for: a halved backward's functions and, in the place of the
/// first, whole backwards, know by it that the halves run apart.
enum class Phase : std::uint8_t {
    evaluate,
    forward,
    recompute,
    backward,
    input_gradient,
    weight_gradient
};

/// How the replicas of a device tell each other something within a call: at `all` there are
/// `bytes` of each, in the order of the replicas, and the own ones have been written.
struct Exchange {
    /// On the device's stream, and on all replicas at the same place of their order.
    void (*all_gather)(Exchange const& self, std::byte* all, std::size_t bytes) = nullptr;
    void* end = nullptr;    ///< the detail::StepEnd that does it
    void* run = nullptr;    ///< the Run that this is part of
    std::size_t device = 0; ///< whose replicas
    std::size_t stream = 0; ///< of the device
    bool owed = false;      ///< whether a call that has begun is still to tell its part
};

/// What a run has at the ends of the chain, where their devices find it.
struct ChainEnds {
    GivenTensors inputs;    ///< of the first layer
    GivenTensors targets;   ///< of the loss
    double* sums = nullptr; ///< where the loss leaves its numbers: [micro-batch][row]
    std::size_t row = 0;    ///< how many
};

/// What all actions of a step on one device share.
struct StepFrame {
    std::size_t capacity = 0;           ///< samples that every slot has room for
    std::uint64_t seed = 0;             ///< see Options::seed
    std::uint64_t step = 0;             ///< number of the step, from 0
    void const* stream = nullptr;       ///< the device's stream, as the type that the engine knows
    StepState const* state = nullptr;   ///< in memory that work on the stream can read
    HandleSet const* handles = nullptr; ///< those of the device
    StepConstants constants{};          ///< of the step
    StepSides sides{};                  ///< as the device finds them
    StepOptionals optionals{};          ///< which tensors of the mini-batch are absent
    Exchange* exchange = nullptr;       ///< null where there is one replica
    bool is_probe = false;              ///< whether there is no step: see Context::is_probe()
    std::size_t spare = 0;              ///< samples of the capacity that none ever has
    ChainEnds ends{};                   ///< of the run
};

/// One action on one micro-batch, as its layers see it: the same for all layers of a cell.
struct Frame {
    StepFrame const* shared = nullptr;     ///< see above
    std::size_t first_sample = 0;          ///< position of the first sample in the mini-batch
    std::size_t samples = 0;               ///< in this micro-batch; never 0 when a layer is called
    std::size_t micro_batch = 0;           ///< its number
    std::byte* const* addresses = nullptr; ///< by Region
    Phase phase = Phase::evaluate;         ///< what the layers are called for

    /// Where a region begins.
    std::byte* operator[](Region region) const {
        return addresses[static_cast<std::size_t>(region)];
    }
    /// Of the micro-batch: the chain's inputs, the loss's targets, where that leaves its numbers.
    ///@{
    GroupAddress inputs() const { return shared->ends.inputs[micro_batch]; }
    GroupAddress targets() const { return shared->ends.targets[micro_batch]; }
    double* sums() const { return shared->ends.sums + micro_batch * shared->ends.row; }
    ///@}
};
/// One with its own addresses, for calls that are made by hand.
struct OwnFrame : Frame {
    static constexpr std::size_t room = 32; ///< regions

    /// All are null.
    OwnFrame() { addresses = own_; }
    /// What is shared, then which samples, how many, and for what.
    OwnFrame(StepFrame const* step, std::size_t first, std::size_t count, Phase what) : OwnFrame() {
        shared = step;
        first_sample = first;
        samples = count;
        phase = what;
    }
    /// With addresses of its own, too.
    OwnFrame(OwnFrame const& other) : Frame(other) {
        for (std::size_t r = 0; r < room; ++r) own_[r] = other.own_[r];
        addresses = own_;
    }
    OwnFrame& operator=(OwnFrame const&) = delete;
    ~OwnFrame() = default;

    /// Sets where a region begins.
    void set(Region region, std::byte* address) {
        own_[static_cast<std::size_t>(region)] = address;
    }

  private:
    std::byte* own_[room] = {};
};

/// Where a tensor lies, relative to a Frame.
struct Place {
    std::size_t offset = 0;          ///< bytes, from the region's begin
    Region region = Region::nothing; ///< that the tensor lies in

    /// Its address.
    std::byte* in(Frame const& frame) const { return frame[region] + offset; }
};

/// Where a skip lies for a layer at one of its ends.
struct SkipPlace {
    Place value;    ///< the tensor
    Place gradient; ///< its gradient
};

/// What replicas tell each other, in its device's memory: see LayerTraits::Exchanged.
struct ExchangeMemory {
    std::byte* all = nullptr;       ///< of all replicas, of the first micro-batch
    std::size_t bytes = 0;          ///< of a replica
    std::byte* gradient = nullptr;  ///< of all replicas, of the micro-batch that is run backward
    std::size_t gradient_bytes = 0; ///< of a replica
    std::size_t replica = 0;        ///< which one this is
    std::size_t replicas = 1;       ///< R

    /// Of a replica, before a forward, and before a backward.
    ///@{
    std::byte* of(Frame const& frame, std::size_t r) const {
        return all + (frame.micro_batch * replicas + r) * bytes;
    }
    std::byte* gradient_of(std::size_t r) const { return gradient + r * gradient_bytes; }
    ///@}
    /// Where this one writes, and then has all of them.
    ///@{
    std::byte* own(Frame const& frame, bool backward) const {
        return backward ? gradient_of(replica) : of(frame, replica);
    }
    void all_gather(Frame const& frame, bool backward) const {
        Exchange* const with = frame.shared->exchange;
        if (!with) return;
        with->owed = false;
        with->all_gather(*with, backward ? gradient : of(frame, 0),
                         backward ? gradient_bytes : bytes);
    }
    ///@}
};

/// What a layer has beside its parameters, in its device's memory: see LayerTraits::Buffers.
struct BufferMemory {
    std::byte* buffers = nullptr;    ///< as layers read them
    std::byte* next = nullptr;       ///< what they become if the step counts
    std::byte* statistics = nullptr; ///< of the mini-batch, once that has run
    std::byte* part = nullptr;       ///< of the first micro-batch
    std::size_t stride = 0;          ///< bytes from one micro-batch's to the next one's
    std::size_t micro_batches = 0;   ///< behind which there is room for what nobody merges
    ExchangeMemory exchange{};       ///< with other replicas

    /// Where a forward leaves them.
    std::byte* part_of(Frame const& frame) const {
        return part + stride * (frame.phase == Phase::forward ? frame.micro_batch : micro_batches);
    }
};

/// A layer at the end of a mini-batch: changes `next`, which is as `buffers` until then, by what
/// `statistics` say; or adds `part` to these. On this stream, as layer `index` of the chain.
using BufferFunction = void (*)(void const* layer, BufferMemory const& memory, void const* stream,
                                std::size_t index);

struct Call;
/// A layer or a loss in one of its functions, for one kind of stream.
using CallFunction = void (*)(Call const&, Frame const&);

/// One call of a layer or of the loss within an action: its function, its data and its places.
/// Filled once, before the run; the type of the layer is known to the function only. As it is, a
/// layer that is a cell of its own.
struct Call {
    CallFunction function = nullptr;        ///< of that layer, for that phase
    void const* layer = nullptr;            ///< the object
    std::byte* const* parameters = nullptr; ///< by tensor: where it lies, in its device's memory
    std::byte* const* gradients = nullptr;  ///< likewise: its gradient
    Place x{0, Region::input};              ///< the input
    Place y{0, Region::output};             ///< the output
    Place dy{0, Region::output_gradient};   ///< the output's gradient
    Place dx{0, Region::input_gradient};    ///< the input's gradient
    Place saved{0, Region::saved};          ///< what forward keeps, see LayerTraits::Saved
    Place deferred{0, Region::deferred};    ///< see LayerTraits::Deferred
    Place scratch{0, Region::scratch};      ///< see LayerTraits::Scratch
    SkipPlace const* skips = nullptr;       ///< what the layer stashes, then what it pops
    BufferMemory const* buffers = nullptr;  ///< null for most layers
    std::uint64_t unwanted = 0;             ///< bit t: nobody wants parameter tensor t's gradient
    std::uint32_t index = 0;                ///< of the layer in the chain
    bool saving = false;                    ///< whether a backward will read what this call saves
    bool again = false;                     ///< a forward within a backward
    bool exchanges = false; ///< whether replicas tell each other something before it

    /// Where the input lies: that of the chain where it was given.
    GroupAddress input(Frame const& frame) const {
        return x.region == Region::given ? frame.inputs() : GroupAddress{x.in(frame)};
    }
};

} // namespace gpipe
