#pragma once

// The plain loop that everything is compared with: no cells, no plan, no threads. Every layer has
// its own memory for every micro-batch, gradients are added micro-batch by micro-batch, every layer
// computes the gradient of its input. It shares the layers' own functions with the library, and
// nothing else.

#include <gpipe/layer/loss.hpp>
#include <gpipe/optimizer/optimizer.hpp>
#include <gpipe/pipeline.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <span>
#include <type_traits>
#include <vector>

namespace toy {

/// Memory of one group of tensors; filled with rubbish unless it is to be zero.
class Memory {
  public:
    Memory() = default;
    explicit Memory(std::size_t bytes, int fill = 0x7B)
        : data_(static_cast<std::byte*>(
              ::operator new (bytes + 1, std::align_val_t{gpipe::slot_alignment}))),
          size_(bytes) {
        std::memset(data_.get(), fill, bytes + 1);
    }
    std::byte* data() const { return data_.get(); }
    std::size_t size() const { return size_; }

  private:
    struct Free {
        void operator()(std::byte* data) const {
            ::operator delete (data, std::align_val_t{gpipe::slot_alignment});
        }
    };
    std::unique_ptr<std::byte[], Free> data_;
    std::size_t size_ = 0;
};

/// The tensors of a whole mini-batch in the caller's memory, one range for each.
template <class Group> struct Arrays : Arrays<gpipe::detail::as_tensors<Group>> {
    using Arrays<gpipe::detail::as_tensors<Group>>::Arrays;
};
template <class... Ts> struct Arrays<gpipe::Tensors<Ts...>> {
    static constexpr std::size_t count = sizeof...(Ts);
    static constexpr std::size_t bytes[] = {Ts::bytes...};
    std::byte* data[count];
    std::size_t samples = 0;

    template <class... Ranges>
    Arrays(Ranges const&... ranges)
        : data{const_cast<std::byte*>(reinterpret_cast<std::byte const*>(ranges.data()))...} {
        std::size_t const sizes[] = {ranges.size() / Ts::size...};
        samples = sizes[0];
    }
    std::byte* at(std::size_t tensor, std::size_t sample) const {
        return data[tensor] + sample * bytes[tensor];
    }
};

/// Sizes of micro-batches: dealt sample by sample, then laid end to end.
inline std::vector<std::size_t> deal(std::size_t samples, std::size_t micro_batches) {
    std::vector<std::size_t> sizes(micro_batches);
    for (std::size_t s = 0; s < samples; ++s) ++sizes[s % micro_batches];
    return sizes;
}

enum class Backward { ascending, descending };

template <class Net, class Loss, class Optimizer> class Reference {
    struct Stream {};
    static constexpr std::size_t size = Net::size;

  public:
    using Inputs = Arrays<typename Net::Input>;
    using Targets = Arrays<typename Loss::Target>;

    Reference(Net net, Loss loss, Optimizer optimizer, std::uint64_t seed,
              std::size_t micro_batches, Backward order, std::size_t replicas = 1)
        : net_(net), loss_(loss), optimizer_(optimizer), seed_(seed), micro_batches_(micro_batches),
          order_(order), replicas_(replicas), own_(replicas) {
        auto const objects = net_.leaf_objects();
        Net::for_each_layer([&](std::size_t i, std::size_t leaf) {
            leaf_[i] = leaf;
            auto const bytes = Net::leaf_info[leaf].parameters.slots(1);
            parameters_.emplace_back(bytes, 0);
            states_.emplace_back(bytes * Optimizer::states, 0);
            auto const& info = Net::leaf_info[leaf];
            for (auto* const memory : {&buffers_, &next_})
                memory->emplace_back(info.buffers.slots(1), 0);
            part_.emplace_back(info.statistics.slots(1), 0);
            for (Own& own : own_) {
                own.gradients.emplace_back(bytes, 0);
                own.statistics.emplace_back(info.statistics.slots(1), 0);
            }
            told_.emplace_back(micro_batches * replicas * info.exchanged.slots(1), 0);
            told_back_.emplace_back(replicas * info.exchanged_gradient.slots(1), 0);
            auto& call = calls_[i];
            call.layer = objects[leaf];
            call.parameters = parameters_[i].data();
            call.index = static_cast<std::uint32_t>(i);
            Net::template leaf_functions<Stream>[leaf].initialize(
                call.layer, call.parameters, buffers_[i].data(), seed_, i, size);
        });
        each_tied([&](gpipe::TiedTensor const& first, gpipe::TiedTensor const& other) {
            copy(parameters_, other, first);
        });
    }

    Reference(Reference const&) = delete; // calls point to the net's layers
    Reference& operator=(Reference const&) = delete;

    Optimizer& optimizer() { return optimizer_; }
    template <std::size_t index> auto& layer() {
        using Layer = typename Net::template Layer<index>;
        return *static_cast<Layer*>(const_cast<void*>(net_.leaf_objects()[leaf_[index]]));
    }

    /// The mean loss, with what was accumulated before; parameters are updated.
    double step(Inputs const& inputs, Targets const& targets) {
        accumulate(inputs, targets);
        double const loss = mean(batches_);
        add_replicas();
        update_buffers();
        ++steps_;
        for (std::size_t i = 0; i < size; ++i) updates[leaf_[i]](*this, i);
        batches_.clear();
        before_ = 0;
        return loss;
    }
    /// Forward and backward of a part of the next step's mini-batch: all replicas together, layer
    /// by layer.
    void accumulate(Inputs const& inputs, Targets const& targets) {
        if (before_ == 0)
            for (Own& own : own_) clear(own.gradients), clear(own.statistics);
        clear(told_); // a replica without samples tells zeros
        std::vector<std::vector<MicroBatch>> rows(micro_batches_); // then by replica
        std::size_t first = 0;
        for (std::size_t const part : deal(inputs.samples, replicas_))
            for (std::size_t m = 0; m < micro_batches_; ++m) {
                MicroBatch& batch = rows[m].emplace_back();
                batch.number = m;
                batch.first = first;
                first += batch.samples = deal(part, micro_batches_)[m];
            }
        for (auto& row : rows) forward(row, inputs, gpipe::Phase::forward);
        for (std::size_t n = 0; n < micro_batches_; ++n)
            backward(rows[order_ == Backward::ascending ? n : micro_batches_ - 1 - n], inputs,
                     targets);
        for (std::size_t r = 0; r < replicas_; ++r)
            for (auto& row : rows) batches_.push_back(std::move(row[r]));
        before_ += inputs.samples;
    }
    double evaluate(Inputs const& inputs, Targets const& targets) {
        double sum = 0;
        double weight = 0;
        std::size_t first = 0;
        for (std::size_t const part : deal(inputs.samples, replicas_)) {
            std::vector<MicroBatch> batches(micro_batches_);
            for (std::size_t m = 0; m < micro_batches_; ++m) {
                batches[m].first = first;
                first += batches[m].samples = deal(part, micro_batches_)[m];
                forward({&batches[m], 1}, inputs, gpipe::Phase::evaluate);
                if (batches[m].samples) measure(batches[m], targets);
            }
            sum += total(batches, &MicroBatch::sum);
            weight += total(batches, &MicroBatch::weight);
        }
        return sum / weight;
    }
    /// The outputs of all samples as one micro-batch, of a net whose output is one tensor.
    std::vector<std::byte> predict(Inputs const& inputs) {
        MicroBatch batch;
        std::size_t const samples = batch.samples = inputs.samples;
        forward({&batch, 1}, inputs, gpipe::Phase::evaluate);
        std::byte const* const y = batch.output[size - 1].data();
        return {y, y + Net::leaf_info[leaf_[size - 1]].output.bytes[0] * samples};
    }

    /// The bytes of a parameter tensor, of its gradient, of an optimizer state.
    std::vector<std::byte> parameter(std::size_t layer, std::size_t tensor) const {
        return tensor_of(parameters_[layer], layer, tensor);
    }
    std::vector<std::byte> gradient(std::size_t layer, std::size_t tensor) const {
        return tensor_of(own_[0].gradients[layer], layer, tensor);
    }
    /// Of a layer's buffers, one by one.
    std::vector<std::vector<std::byte>> buffers(std::size_t layer) const {
        auto const& sizes = Net::leaf_info[leaf_[layer]].buffers;
        std::vector<std::vector<std::byte>> result;
        std::byte const* from = buffers_[layer].data();
        for (std::size_t t = 0; t < sizes.count; ++t) {
            result.emplace_back(from, from + sizes.bytes[t]);
            from += (sizes.bytes[t] + 255) / 256 * 256;
        }
        return result;
    }
    std::uint64_t steps() const { return steps_; }

  private:
    struct MicroBatch {
        std::size_t number = 0, first = 0, samples = 0;
        std::vector<Memory> output, output_gradient, saved;
        std::vector<Memory> skips; // of the chain, each with its gradient behind it
        double sum = 0, weight = 0;
    };

    gpipe::OwnFrame frame(MicroBatch const& batch, std::size_t layer, gpipe::Phase phase,
                          gpipe::GroupAddress input, Memory const& scratch) {
        shared_ = {batch.samples, seed_, steps_, &stream_, &state_};
        gpipe::OwnFrame frame(&shared_, before_ + batch.first, batch.samples, phase);
        frame.micro_batch = batch.number;
        // Behind what any layer has come the ends of its skips.
        constexpr std::uint32_t behind = static_cast<std::uint32_t>(gpipe::Region::scratch) + 1;
        auto const& ends = Net::leaf_info[leaf_[layer]].skips;
        skip_places_.resize(ends.count());
        for (std::uint32_t e = 0; e < ends.count(); ++e) {
            std::size_t const s = gpipe::skip_of({Net::skips.data(), Net::skips.size()}, layer, e);
            auto const place = [&](std::uint32_t gradient) {
                auto const region = static_cast<gpipe::Region>(behind + 2 * e + gradient);
                frame.set(region, batch.skips[2 * s + gradient].data());
                return gpipe::Place{0, region};
            };
            skip_places_[e] = {place(0), place(1)};
        }
        frame.inputs = input;
        frame.set(gpipe::Region::output, batch.output[layer].data());
        frame.set(gpipe::Region::saved, batch.saved[layer].data());
        frame.set(gpipe::Region::scratch, scratch.data());
        return frame;
    }
    gpipe::GroupAddress input_of(MicroBatch const& batch, std::size_t layer, Inputs const& inputs,
                                 std::vector<std::byte*>& table) const {
        if (layer > 0) return {batch.output[layer - 1].data(), nullptr};
        table.resize(Inputs::count);
        for (std::size_t t = 0; t < Inputs::count; ++t) table[t] = inputs.at(t, batch.first);
        return gpipe::GroupAddress::of_arrays(table.data(), table.size());
    }

    // Of one micro-batch in all replicas. Where these tell each other something, each layer is
    // called twice: all have to tell theirs before one can go on.
    void forward(std::span<MicroBatch> row, Inputs const& inputs, gpipe::Phase phase) {
        for (MicroBatch& batch : row)
            for (gpipe::SkipPair const& skip : Net::skips) {
                batch.skips.emplace_back(skip.bytes * batch.samples);
                batch.skips.emplace_back(skip.gradient_bytes * batch.samples);
            }
        for (std::size_t i = 0; i < size; ++i) {
            auto const& info = Net::leaf_info[leaf_[i]];
            bool const twice = info.exchanged.count > 0 && phase == gpipe::Phase::forward;
            for (MicroBatch& batch : row) {
                batch.output.emplace_back(info.output.slots(batch.samples));
                batch.output_gradient.emplace_back(info.output_gradient.slots(batch.samples));
                batch.saved.emplace_back(info.saved.slots(batch.samples));
            }
            for (bool const tells : {true, false})
                for (std::size_t r = 0; r < row.size() && (twice || !tells); ++r)
                    if (row[r].samples) forward(row[r], r, i, inputs, phase, !tells);
        }
    }
    void forward(MicroBatch& batch, std::size_t replica, std::size_t i, Inputs const& inputs,
                 gpipe::Phase phase, bool merges) {
        auto const& info = Net::leaf_info[leaf_[i]];
        std::vector<std::byte*> table;
        Memory const scratch(info.scratch.slots(batch.samples));
        auto call = calls_[i];
        call.saving = phase != gpipe::Phase::evaluate;
        call.exchanges = info.exchanges();
        gpipe::BufferMemory const memory = memory_of(i, replica);
        call.buffers = &memory;
        auto const at = frame(batch, i, phase, input_of(batch, i, inputs, table), scratch);
        call.skips = skip_places_.data();
        auto const& functions = Net::template leaf_functions<Stream>[leaf_[i]];
        functions.forward(call, at);
        if (functions.merge_statistics && merges && phase == gpipe::Phase::forward)
            functions.merge_statistics(call.layer, memory, &stream_, i);
    }
    void measure(MicroBatch& batch, Targets const& targets) {
        using Group = gpipe::detail::as_tensors<typename Loss::Target>;
        Memory const scratch(
            gpipe::detail::sizes_of<typename gpipe::detail::ScratchOf<Loss>::type>().slots(
                batch.samples));
        std::vector<std::byte*> table(Targets::count);
        for (std::size_t t = 0; t < Targets::count; ++t) table[t] = targets.at(t, batch.first);
        shared_ = {batch.samples, seed_, steps_, &stream_};
        gpipe::OwnFrame const f(&shared_, before_ + batch.first, batch.samples,
                                gpipe::Phase::backward);
        gpipe::LossContext<Loss, Stream> context(f, scratch.data(), nullptr);
        auto const value =
            loss_(context,
                  gpipe::batch_views<typename Net::Output, gpipe::detail::Access::read>(
                      {batch.output[size - 1].data(), nullptr}, batch.samples, batch.samples),
                  gpipe::batch_views<Group, gpipe::detail::Access::read>(
                      gpipe::GroupAddress::of_arrays(table.data(), table.size()), batch.samples,
                      batch.samples),
                  gpipe::gradient_views<typename Net::Output, gpipe::detail::Access::write>(
                      batch.output_gradient[size - 1].data(), batch.samples, batch.samples));
        batch.sum = value.sum;
        batch.weight = value.weight;
    }
    void backward(std::span<MicroBatch> row, Inputs const& inputs, Targets const& targets) {
        for (MicroBatch& batch : row)
            if (batch.samples) measure(batch, targets);
        for (std::size_t i = size; i-- > 0;) {
            if (!Net::template leaf_functions<Stream>[leaf_[i]].backward)
                break; // no gradient reaches the layers below
            bool const twice = Net::leaf_info[leaf_[i]].exchanged_gradient.count > 0;
            clear(told_back_);
            for (bool const tells : {true, false})
                for (std::size_t r = 0; r < row.size() && (twice || !tells); ++r)
                    if (row[r].samples) backward(row[r], r, i, inputs, !tells);
        }
    }
    void backward(MicroBatch& batch, std::size_t replica, std::size_t i, Inputs const& inputs,
                  bool counts) {
        auto const& info = Net::leaf_info[leaf_[i]];
        std::vector<std::byte*> table;
        Memory const scratch(info.scratch.slots(batch.samples));
        Memory const nobody_wants(info.input_gradient.slots(batch.samples));
        Memory const deferred(info.deferred.slots(batch.samples));
        Memory const unwanted(info.parameters.slots(1), 0);
        auto at =
            frame(batch, i, gpipe::Phase::backward, input_of(batch, i, inputs, table), scratch);
        at.set(gpipe::Region::deferred, deferred.data());
        at.set(gpipe::Region::output_gradient, batch.output_gradient[i].data());
        at.set(gpipe::Region::input_gradient,
               i > 0 ? batch.output_gradient[i - 1].data() : nobody_wants.data());
        auto call = calls_[i];
        call.gradients = (counts ? own_[replica].gradients[i] : unwanted).data();
        call.exchanges = info.exchanges();
        gpipe::BufferMemory const memory = memory_of(i, replica);
        call.buffers = &memory;
        call.skips = skip_places_.data();
        Net::template leaf_functions<Stream>[leaf_[i]].backward(call, at);
    }
    double mean(std::vector<MicroBatch> const& batches) {
        weight_ = total(batches, &MicroBatch::weight);
        return total(batches, &MicroBatch::sum) / weight_;
    }
    static double total(std::vector<MicroBatch> const& batches, double MicroBatch::*of) {
        double sum = 0;
        for (auto const& batch : batches) sum += batch.*of;
        return sum;
    }
    // Calls f(first, other) for each end of a tie but the first.
    template <class F> static void each_tied(F f) {
        gpipe::TiedTensor const* first = nullptr;
        for (gpipe::TiedTensor const& end : Net::ties)
            if (!first || first->tie != end.tie)
                first = &end;
            else
                f(*first, end);
    }
    std::byte* at(std::vector<Memory> const& memory, gpipe::TiedTensor const& end) const {
        auto const& sizes = Net::leaf_info[leaf_[end.layer]].parameters;
        std::byte* from = memory[end.layer].data();
        for (std::size_t t = 0; t < end.tensor; ++t) from += (sizes.bytes[t] + 255) / 256 * 256;
        return from;
    }
    void copy(std::vector<Memory> const& memory, gpipe::TiedTensor const& to,
              gpipe::TiedTensor const& from) const {
        std::memcpy(at(memory, to), at(memory, from), from.bytes);
    }
    // Elements are those of the net's output.
    template <class T, class... Ts>
    static void add(gpipe::Tensors<T, Ts...>, std::byte* sum, std::byte const* other,
                    std::size_t bytes) {
        using Element = typename T::Element;
        for (std::size_t i = 0; i < bytes / sizeof(Element); ++i)
            reinterpret_cast<Element*>(sum)[i] += reinterpret_cast<Element const*>(other)[i];
    }
    void reduce_ties(std::vector<Memory> const& gradients) {
        using Output = gpipe::detail::as_tensors<typename Net::Output>;
        each_tied([&](gpipe::TiedTensor const& first, gpipe::TiedTensor const& other) {
            add(Output{}, at(gradients, first), at(gradients, other), first.bytes);
        });
        each_tied([&](gpipe::TiedTensor const& first, gpipe::TiedTensor const& other) {
            copy(gradients, other, first);
        });
    }
    gpipe::BufferMemory memory_of(std::size_t layer, std::size_t replica) const {
        auto const& info = Net::leaf_info[leaf_[layer]];
        return {buffers_[layer].data(),
                next_[layer].data(),
                own_[replica].statistics[layer].data(),
                part_[layer].data(),
                0,
                0,
                {told_[layer].data(), info.exchanged.slots(1), told_back_[layer].data(),
                 info.exchanged_gradient.slots(1), replica, replicas_}};
    }
    static void clear(std::vector<Memory> const& all) {
        for (Memory const& memory : all) std::memset(memory.data(), 0, memory.size());
    }
    // Adds their gradients up, in their order.
    void add_replicas() {
        for (Own const& own : own_) reduce_ties(own.gradients);
        for (std::size_t r = 1; r < replicas_; ++r)
            for (std::size_t i = 0; i < size; ++i)
                add(gpipe::detail::as_tensors<typename Net::Output>{}, own_[0].gradients[i].data(),
                    own_[r].gradients[i].data(), own_[0].gradients[i].size());
    }
    // By the statistics of all replicas, merged in their order.
    void update_buffers() {
        for (std::size_t i = 0; i < size; ++i) {
            auto const& functions = Net::template leaf_functions<Stream>[leaf_[i]];
            if (!functions.update_buffers) continue;
            gpipe::BufferMemory memory = memory_of(i, 0);
            for (std::size_t r = 1; r < replicas_ && functions.merge_statistics; ++r) {
                memory.part = own_[r].statistics[i].data();
                functions.merge_statistics(calls_[i].layer, memory, &stream_, i);
            }
            std::memcpy(memory.next, memory.buffers, buffers_[i].size());
            functions.update_buffers(calls_[i].layer, memory, &stream_, i);
            std::memcpy(memory.buffers, memory.next, buffers_[i].size());
        }
    }

    // The optimizer, tensor by tensor; each tensor's states stand behind one another.
    struct UpdateOf {
        using Value = void (*)(Reference&, std::size_t);
        template <class L> static void update(Reference& self, std::size_t layer) {
            self.update_layer(typename gpipe::LayerTraits<L>::Parameters{}, layer,
                              gpipe::type_id<L>,
                              [](std::size_t t) { return gpipe::LayerTraits<L>::decay(t); });
        }
        template <class L> static constexpr Value of() { return &update<L>; }
    };
    static constexpr auto updates = Net::template leaf_table<UpdateOf>();
    struct DecayOf {
        using Value = float (*)(std::size_t);
        template <class L> static constexpr Value of() { return &gpipe::LayerTraits<L>::decay; }
    };
    static constexpr auto decays = Net::template leaf_table<DecayOf>();

    template <class... Ts, class Decay>
    void update_layer(gpipe::Tensors<Ts...>, [[maybe_unused]] std::size_t layer, std::uint64_t type,
                      [[maybe_unused]] Decay decay) {
        [[maybe_unused]] gpipe::UpdateContext context{steps_};
        context.layer = static_cast<std::uint32_t>(layer);
        context.type = type;
        [[maybe_unused]] std::size_t at = 0;
        (update_tensor<Ts>(layer, context, decay(context.tensor), at), ...);
    }
    template <class T>
    void update_tensor(std::size_t layer, gpipe::UpdateContext& context, float decay,
                       std::size_t& at) {
        using Element = typename T::Element;
        auto* const gradient = reinterpret_cast<Element*>(own_[0].gradients[layer].data() + at);
        for (std::size_t i = 0; i < T::size; ++i) gradient[i] *= static_cast<Element>(1 / weight_);
        gpipe::UpdateTensor<Element, Optimizer::states> tensor{
            reinterpret_cast<Element*>(parameters_[layer].data() + at), gradient, {}, T::size};
        std::size_t const slot = (T::bytes + 255) / 256 * 256;
        for (std::size_t s = 0; s < Optimizer::states; ++s)
            tensor.state[s] = reinterpret_cast<Element*>(states_[layer].data() +
                                                         Optimizer::states * at + s * slot);
        context.decay = decay;
        gpipe::UpdateContext own = context;
        each_tied([&](gpipe::TiedTensor const& first, gpipe::TiedTensor const& other) {
            if (other.layer != layer || other.tensor != context.tensor) return;
            own.layer = first.layer;
            own.tensor = first.tensor;
            own.type = gpipe::type_number(Net::leaf_info[leaf_[first.layer]].name);
            own.decay = decays[leaf_[first.layer]](first.tensor);
        });
        optimizer_(own, tensor);
        ++context.tensor;
        at += slot;
    }

    std::vector<std::byte> tensor_of(Memory const& memory, std::size_t layer,
                                     std::size_t tensor) const {
        auto const& sizes = Net::leaf_info[leaf_[layer]].parameters;
        std::byte const* from = memory.data();
        for (std::size_t t = 0; t < tensor; ++t) from += (sizes.bytes[t] + 255) / 256 * 256;
        return {from, from + sizes.bytes[tensor]};
    }

    Net net_;
    Loss loss_;
    Optimizer optimizer_;
    std::uint64_t seed_;
    std::size_t micro_batches_;
    Backward order_;
    std::size_t replicas_;
    std::uint64_t steps_ = 0;
    double weight_ = 0;
    Stream stream_;
    gpipe::StepFrame shared_;
    gpipe::StepState state_; // no loss scale
    std::size_t leaf_[size] = {};
    gpipe::Call calls_[size];
    std::vector<gpipe::SkipPlace> skip_places_; // of the layer that is called
    std::vector<Memory> parameters_, states_;
    std::vector<Memory> buffers_, next_, part_;
    // What a replica has of the mini-batch so far.
    struct Own {
        std::vector<Memory> gradients, statistics;
    };
    std::vector<Own> own_;                 // by replica
    std::vector<Memory> told_, told_back_; // by layer: what replicas tell each other
    std::vector<MicroBatch> batches_;      // of the mini-batch so far
    std::size_t before_ = 0;               // samples of these
};

} // namespace toy
