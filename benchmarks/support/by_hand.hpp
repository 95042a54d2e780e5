#pragma once

#include "quiet.hpp"

#include <gpipe/core/split.hpp>
#include <gpipe/layer/loss.hpp>
#include <gpipe/optimizer/optimizer.hpp>
#include <gpipe/pipeline.hpp>
#include <gpipe/runtime/loss_thunk.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <vector>

namespace benchmark {

/// What a loop by hand keeps of a micro-batch until its backward.
enum class ByHand {
    segments,  ///< the inputs of segments; each runs again right before its backwards
    everything ///< what its one segment keeps: nothing runs again
};

/// Training on one device without the library: a loop over micro-batches in GPipe's order. Shares
/// the layers' own functions with the library, their updates are the optimizer's; memory and order
/// are as one would write them down. One tensor goes in, one target.
template <class Net, class Loss, class Optimizer, class Stream> class SegmentsByHand {
  public:
    static constexpr std::size_t size = Net::size;

    /// Seconds of a layer's calls for one micro-batch, and of its updates, as they were.
    struct Times {
        std::vector<double> passing[size]; ///< forwards of pass()
        std::vector<double> forward[size], backward[size], update[size];
        std::vector<double> loss;
    };

    SegmentsByHand(Net net, Loss loss, Optimizer optimizer, std::size_t samples,
                   std::size_t micro_batches, std::size_t length, ByHand keeps = ByHand::segments)
        : net_(net), loss_(loss), optimizer_(optimizer), ranges_(micro_batches),
          capacity_((samples + micro_batches - 1) / micro_batches), length_(length), keeps_(keeps) {
        for (std::size_t m = 0; m < micro_batches; ++m)
            ranges_[m] = gpipe::Split(samples, micro_batches)[m];
        auto const objects = net_.leaf_objects();
        std::size_t gradient = 0;
        std::size_t scratch = loss_scratch();
        std::size_t deferred = 0;
        std::size_t output = 0;
        std::vector<std::size_t> saved(length), outputs(length);
        Net::for_each_layer([&](std::size_t i, std::size_t leaf) {
            leaf_[i] = leaf;
            gpipe::LayerInfo const& info = Net::leaf_info[leaf];
            parameters_.push_back(allocate(info.parameters.slots(1)));
            gradients_.push_back(allocate(info.parameters.slots(1)));
            states_.push_back(allocate(Optimizer::states * info.parameters.slots(1)));
            gpipe::Call& call = calls_[i];
            call.layer = objects[leaf];
            for (auto [to, from] :
                 {std::pair{&call.parameters, parameters_[i]}, {&call.gradients, gradients_[i]}}) {
                tables_.push_back(info.parameters.addresses(from));
                *to = tables_.back().data();
            }
            call.index = static_cast<std::uint32_t>(i);
            if (i == 0) call.x.region = gpipe::Region::given;
            Net::template leaf_functions<Stream>[leaf].initialize(call.layer, parameters_[i],
                                                                  nullptr, 1, i, size);
            scratch = std::max(scratch, info.scratch.slots(capacity_));
            deferred = std::max(deferred, info.deferred.slots(capacity_));
            gradient = std::max({gradient, info.output_gradient.slots(capacity_),
                                 info.input_gradient.slots(capacity_)});
            output = std::max(output, info.output.slots(capacity_));
            saved[i % length] = std::max(saved[i % length], info.saved.slots(capacity_));
            outputs[i % length] = std::max(outputs[i % length], info.output.slots(capacity_));
        });
        for (std::size_t set = 0; set < (keeps == ByHand::everything ? micro_batches : 1); ++set)
            for (std::size_t n = 0; n < length; ++n) {
                saved_.push_back(allocate(saved[n]));
                outputs_.push_back(allocate(outputs[n]));
            }
        for (std::size_t i = length; i < size; i += length)
            for (std::size_t m = 0; m < micro_batches; ++m)
                kept_.push_back(allocate(Net::leaf_info[leaf_[i]].input.slots(capacity_)));
        for (std::byte*& each : gradient_) each = allocate(std::max(gradient, output));
        scratch_ = allocate(scratch);
        deferred_ = allocate(deferred);
    }
    SegmentsByHand(SegmentsByHand const&) = delete; // calls point to the net's layers

    /// All that it has allocated.
    std::size_t bytes() const { return bytes_; }
    Times const& times() const { return times_; }
    /// From here on the times of its calls are noted, those before forgotten.
    void time_layers() {
        timed_ = true;
        times_ = {};
    }

    template <class Input, class Target>
    double step(std::vector<Input> const& inputs, std::vector<Target> const& targets) {
        for (std::size_t i = 0; i < size; ++i)
            std::memset(gradients_[i], 0, Net::leaf_info[leaf_[i]].parameters.slots(1));
        std::size_t const in = inputs.size() / (ranges_.back().first + ranges_.back().count);
        std::size_t const out = targets.size() * in / inputs.size();
        double sum = 0;
        weight_ = 0;
        for (std::size_t m = 0; m < ranges_.size(); ++m) {
            table_in_[0] = address(inputs.data() + in * ranges_[m].first);
            if (keeps_ == ByHand::everything) run_segment(m, 0, true);
            for (std::size_t begin = 0; begin + length_ < size; begin += length_)
                run_segment(m, begin, false);
        }
        for (std::size_t m = ranges_.size(); m-- > 0;) {
            table_in_[0] = address(inputs.data() + in * ranges_[m].first);
            table_out_[0] = address(targets.data() + out * ranges_[m].first);
            for (std::size_t begin = (size - 1) / length_ * length_;; begin -= length_) {
                if (keeps_ == ByHand::segments) run_segment(m, begin, true);
                if (begin + length_ >= size) sum += measure(m);
                reverse_segment(m, begin);
                if (begin == 0) break;
            }
        }
        ++steps_;
        for (std::size_t i = 0; i < size; ++i)
            time(&times_.update[i], [&] { updates[leaf_[i]](*this, i); });
        return sum / weight_;
    }
    /// Only runs forwards, of which nobody keeps anything.
    template <class Input> void pass(std::vector<Input> const& inputs) {
        std::size_t const in = inputs.size() / (ranges_.back().first + ranges_.back().count);
        for (std::size_t m = 0; m < ranges_.size(); ++m) {
            table_in_[0] = address(inputs.data() + in * ranges_[m].first);
            for (std::size_t i = 0; i < size; ++i) {
                gpipe::OwnFrame at = frame(m, i, gpipe::Phase::forward);
                if (i > 0) at.set(gpipe::Region::input, gradient_[(i + 1) % 2]);
                at.set(gpipe::Region::output, gradient_[i % 2]);
                run_forward(i, at, &times_.passing[i]);
            }
        }
    }

  private:
    std::size_t loss_scratch() const {
        return gpipe::detail::sizes_of<typename gpipe::detail::ScratchOf<Loss>::type>().slots(
            capacity_);
    }
    std::byte* allocate(std::size_t bytes) {
        bytes_ += bytes;
        memory_.push_back(Memory(static_cast<std::byte*>(
            ::operator new (bytes + 1, std::align_val_t{gpipe::slot_alignment}))));
        std::memset(memory_.back().get(), 0, bytes);
        return memory_.back().get();
    }
    template <class T> static std::byte* address(T const* data) {
        return const_cast<std::byte*>(reinterpret_cast<std::byte const*>(data));
    }
    template <class F> void time(std::vector<double>* to, F call) {
        if (!timed_ || !to) return call();
        double const begin = seconds();
        call();
        to->push_back(seconds() - begin);
    }

    // Where what a layer writes is, in saved_ and outputs_.
    std::size_t place(std::size_t m, std::size_t layer) const {
        return (keeps_ == ByHand::everything ? m * length_ : 0) + layer % length_;
    }
    // Where the input of a layer is: the caller's, a kept one, or the output before it.
    gpipe::GroupAddress input_of(std::size_t m, std::size_t layer) {
        if (layer == 0) return gpipe::GroupAddress::of_arrays(table_in_, 1);
        std::size_t const segment = layer / length_;
        if (layer % length_ == 0) return {kept_[(segment - 1) * ranges_.size() + m], nullptr};
        return {outputs_[place(m, layer) - 1], nullptr};
    }
    gpipe::OwnFrame frame(std::size_t m, std::size_t layer, gpipe::Phase phase) {
        shared_ = {capacity_, 1, steps_, &stream_};
        gpipe::GroupAddress const input = input_of(m, layer);
        gpipe::OwnFrame frame(&shared_, ranges_[m].first, ranges_[m].count, phase);
        if (layer == 0)
            shared_.ends.inputs = {input};
        else
            frame.set(gpipe::Region::input, input.base);
        frame.set(gpipe::Region::output, outputs_[place(m, layer)]);
        frame.set(gpipe::Region::saved, saved_[place(m, layer)]);
        frame.set(gpipe::Region::scratch, scratch_);
        frame.set(gpipe::Region::deferred, deferred_);
        return frame;
    }
    // Where backward does not follow, only the input of the next segment is wanted.
    void run_segment(std::size_t m, std::size_t begin, bool again) {
        std::size_t const end = std::min(begin + length_, size);
        for (std::size_t i = begin; i < end; ++i) {
            gpipe::LayerInfo const& info = Net::leaf_info[leaf_[i]];
            bool const leaves_out =
                again && i + 1 == end && end < size && info.saved.count == 0 && !info.reads_output;
            if (leaves_out) break;
            gpipe::OwnFrame at =
                frame(m, i, again ? gpipe::Phase::recompute : gpipe::Phase::forward);
            if (!again && i + 1 == end)
                at.set(gpipe::Region::output, kept_[begin / length_ * ranges_.size() + m]);
            run_forward(i, at, again ? &times_.forward[i] : nullptr);
        }
    }
    void run_forward(std::size_t i, gpipe::Frame const& at, std::vector<double>* times) {
        gpipe::Call call = calls_[i];
        call.saving = at.phase == gpipe::Phase::recompute;
        time(times, [&] { Net::template leaf_functions<Stream>[leaf_[i]].forward(call, at); });
    }
    double measure(std::size_t m) {
        double sums[2 + gpipe::detail::loss_metrics<Loss, typename Net::Output>] = {};
        gpipe::Call call;
        call.layer = &loss_;
        gpipe::OwnFrame at(&shared_, ranges_[m].first, ranges_[m].count, gpipe::Phase::backward);
        shared_ = {capacity_, 1, steps_, &stream_};
        shared_.ends.targets = {gpipe::GroupAddress::of_arrays(table_out_, 1)};
        shared_.ends.sums = sums;
        at.set(gpipe::Region::output, outputs_[place(m, size - 1)]);
        at.set(gpipe::Region::output_gradient, gradient_[(size - 1) % 2]);
        at.set(gpipe::Region::scratch, scratch_);
        time(&times_.loss, [&] {
            gpipe::detail::loss_thunk<Loss, typename Net::Output, Stream, true>(call, at);
        });
        weight_ += sums[1];
        return sums[0];
    }
    void reverse_segment(std::size_t m, std::size_t begin) {
        for (std::size_t i = std::min(begin + length_, size); i-- > begin;) {
            auto const& functions = Net::template leaf_functions<Stream>[leaf_[i]];
            gpipe::OwnFrame at = frame(m, i, gpipe::Phase::backward);
            at.set(gpipe::Region::output_gradient, gradient_[i % 2]);
            at.set(gpipe::Region::input_gradient, gradient_[(i + 1) % 2]);
            time(&times_.backward[i],
                 [&] { (i > 0 ? functions.backward : functions.lowest_backward)(calls_[i], at); });
        }
    }

    // The optimizer, tensor by tensor; each tensor's states stand behind one another.
    struct UpdateOf {
        using Value = void (*)(SegmentsByHand&, std::size_t);
        template <class L> static void update(SegmentsByHand& self, std::size_t layer) {
            self.update_layer(typename gpipe::LayerTraits<L>::Parameters{}, layer,
                              [](std::size_t t) { return gpipe::LayerTraits<L>::decay(t); });
        }
        template <class L> static constexpr Value of() { return &update<L>; }
    };
    static constexpr auto updates = Net::template leaf_table<UpdateOf>();
    template <class... Ts, class Decay>
    void update_layer(gpipe::Tensors<Ts...>, [[maybe_unused]] std::size_t layer,
                      [[maybe_unused]] Decay decay) {
        [[maybe_unused]] std::size_t tensor = 0;
        [[maybe_unused]] std::size_t at = 0;
        (update_tensor<Ts>(layer, decay(tensor++), at), ...);
    }
    template <class T> void update_tensor(std::size_t layer, float decay, std::size_t& at) {
        using Element = typename T::Element;
        auto* const gradient = reinterpret_cast<Element*>(gradients_[layer] + at);
        auto const scale = static_cast<Element>(1 / weight_);
        for (std::size_t i = 0; i < T::size; ++i) gradient[i] *= scale;
        gpipe::UpdateTensor<Element, Optimizer::states> tensor{
            reinterpret_cast<Element*>(parameters_[layer] + at), gradient, {}, T::size};
        std::size_t const slot = gpipe::slot_bytes(T::bytes);
        for (std::size_t s = 0; s < Optimizer::states; ++s)
            tensor.state[s] =
                reinterpret_cast<Element*>(states_[layer] + Optimizer::states * at + s * slot);
        optimizer_({steps_, decay}, tensor);
        at += slot;
    }

    struct Free {
        void operator()(std::byte* data) const {
            ::operator delete (data, std::align_val_t{gpipe::slot_alignment});
        }
    };
    using Memory = std::unique_ptr<std::byte[], Free>;

    Net net_;
    Loss loss_;
    Optimizer optimizer_;
    std::vector<gpipe::SampleRange> ranges_;
    std::size_t capacity_;
    std::size_t length_; // layers of a segment
    ByHand keeps_;
    std::size_t bytes_ = 0;
    std::uint64_t steps_ = 0;
    double weight_ = 0;
    bool timed_ = false;
    Times times_;
    Stream stream_{};
    gpipe::StepFrame shared_;
    std::size_t leaf_[size] = {};
    gpipe::Call calls_[size];
    std::byte* table_in_[1] = {};
    std::byte* table_out_[1] = {};
    std::vector<Memory> memory_;
    std::vector<std::byte*> parameters_, gradients_, states_; // by layer
    std::vector<gpipe::Array<std::byte*>> tables_;            // of these, by tensor
    std::vector<std::byte*> saved_, outputs_;                 // by place()
    std::vector<std::byte*> kept_; // by segment but the first, micro-batch
    std::byte* gradient_[2] = {};
    std::byte* scratch_ = nullptr;
    std::byte* deferred_ = nullptr;
};

} // namespace benchmark
