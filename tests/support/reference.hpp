#pragma once

// The plain loop that everything is compared with: no cells, no plan, no threads. Every layer has
// its own memory for every micro-batch, gradients are added micro-batch by micro-batch, every layer
// computes the gradient of its input. It shares the layers' own functions with the library, and
// nothing else.

#include <gpipe/layer/loss.hpp>
#include <gpipe/optimizer/optimizer.hpp>
#include <gpipe/pipeline.hpp>
#include <support/exact_norm.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <span>
#include <type_traits>
#include <utility>
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
struct Samples {
    std::vector<std::byte*> data;
    std::vector<std::size_t> bytes; // of one sample
    std::size_t samples = 0;

    std::byte* at(std::size_t tensor, std::size_t sample) const {
        return data[tensor] + sample * bytes[tensor];
    }
    /// The addresses of all tensors from a sample on.
    std::vector<std::byte*> from(std::size_t sample) const {
        std::vector<std::byte*> table;
        for (std::size_t t = 0; t < data.size(); ++t) table.push_back(at(t, sample));
        return table;
    }
};
template <class Group> struct Arrays : Arrays<gpipe::detail::as_tensors<Group>> {
    using Arrays<gpipe::detail::as_tensors<Group>>::Arrays;
};
template <class... Ts> struct Arrays<gpipe::Tensors<Ts...>> : Samples {
    template <class... Ranges> Arrays(Ranges const&... ranges) {
        std::size_t const sizes[] = {ranges.size() / Ts::size...};
        data = {const_cast<std::byte*>(reinterpret_cast<std::byte const*>(ranges.data()))...};
        bytes = {Ts::bytes...};
        samples = sizes[0];
    }
};

/// Sizes of micro-batches: dealt sample by sample, then laid end to end.
inline std::vector<std::size_t> deal(std::size_t samples, std::size_t micro_batches) {
    std::vector<std::size_t> sizes(micro_batches);
    for (std::size_t s = 0; s < samples; ++s) ++sizes[s % micro_batches];
    return sizes;
}

enum class Backward { ascending, descending };

/// The loop over the layers of any net: all that is the same whatever their types are.
class PlainLoop {
  public:
    PlainLoop(PlainLoop const&) = delete; // calls point to the net's layers
    PlainLoop& operator=(PlainLoop const&) = delete;

    /// The mean loss, with what was accumulated before; parameters are updated.
    double step(Samples const& inputs, Samples const& targets) {
        accumulate(inputs, targets);
        weight_ = total(batches_, &MicroBatch::weight);
        double const loss = total(batches_, &MicroBatch::sum) / weight_;
        add_replicas();
        update_buffers();
        scale_ = 1 / weight_;
        if (clip_norm > 0)
            if (norm_ = norm_of_replicas() * scale_; norm_ > clip_norm) scale_ *= clip_norm / norm_;
        ++steps_;
        for (std::size_t i = 0; i < layers_.size(); ++i) update(i);
        batches_.clear();
        before_ = 0;
        return loss;
    }
    /// Forward and backward of a part of the next step's mini-batch: all replicas together, layer
    /// by layer.
    void accumulate(Samples const& inputs, Samples const& targets) {
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
    double evaluate(Samples const& inputs, Samples const& targets) {
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
    std::vector<std::byte> predict(Samples const& inputs) {
        MicroBatch batch;
        std::size_t const samples = batch.samples = inputs.samples;
        forward({&batch, 1}, inputs, gpipe::Phase::evaluate);
        std::byte const* const y = batch.output.back().data();
        return {y, y + layers_.back().info->output.bytes[0] * samples};
    }

    /// The bytes of a parameter tensor, of its gradient.
    std::vector<std::byte> parameter(std::size_t layer, std::size_t tensor) const {
        return tensor_of(parameters_, layer, tensor);
    }
    std::vector<std::byte> gradient(std::size_t layer, std::size_t tensor) const {
        return tensor_of(own_[0].gradients, layer, tensor);
    }
    /// Of a layer's buffers, one by one.
    std::vector<std::vector<std::byte>> buffers(std::size_t layer) const {
        auto const& sizes = layers_[layer].info->buffers;
        std::vector<std::vector<std::byte>> result;
        for (std::size_t t = 0; t < sizes.count; ++t) {
            std::byte const* const from = buffers_[layer].data() + place_of(sizes, t);
            result.emplace_back(from, from + sizes.bytes[t]);
        }
        return result;
    }
    std::uint64_t steps() const { return steps_; }

    double clip_norm = 0; ///< as Options has it; of several replicas
    /// Of the last step's mean gradients, if these are clipped.
    double gradient_norm() const { return norm_; }

  protected:
    struct Stream {};
    struct Row {
        gpipe::LayerInfo const* info;
        gpipe::LayerFunctions functions;
        void const* object;
        float (*decay)(std::size_t tensor);
    };
    struct MicroBatch {
        std::size_t number = 0, first = 0, samples = 0;
        std::vector<Memory> output, output_gradient, saved;
        std::vector<Memory> skips; // of the chain, each with its gradient behind it
        double sum = 0, weight = 0;
    };
    // What a replica has of the mini-batch so far.
    struct Own {
        std::vector<Memory> gradients, statistics;
    };

    PlainLoop(std::vector<Row> layers, std::span<gpipe::SkipPair const> skips,
              std::span<gpipe::TiedTensor const> ties, std::size_t states, std::uint64_t seed,
              std::size_t micro_batches, Backward order, std::size_t replicas)
        : layers_(std::move(layers)), skips_(skips), ties_(ties), seed_(seed),
          micro_batches_(micro_batches), order_(order), replicas_(replicas), calls_(layers_.size()),
          own_(replicas) {
        for (std::size_t i = 0; i < layers_.size(); ++i) {
            auto const& info = *layers_[i].info;
            auto const bytes = info.parameters.slots(1);
            parameters_.emplace_back(bytes, 0);
            states_.emplace_back(bytes * states, 0);
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
            call.layer = layers_[i].object;
            tables_.push_back(info.parameters.addresses(parameters_[i].data()));
            call.parameters = tables_[i].data();
            call.index = static_cast<std::uint32_t>(i);
            if (i == 0) call.x.region = gpipe::Region::given;
            layers_[i].functions.initialize(call.layer, parameters_[i].data(), buffers_[i].data(),
                                            seed_, i, layers_.size());
        }
        each_tied([&](gpipe::TiedTensor const& first, gpipe::TiedTensor const& other) {
            copy(parameters_, other, first);
        });
    }
    virtual ~PlainLoop() = default;

    virtual void measure(MicroBatch& batch, Samples const& targets) = 0;
    virtual void update(std::size_t layer) = 0;
    /// Elements are those of the net's output.
    virtual void add(std::byte* sum, std::byte const* other, std::size_t bytes) const = 0;
    virtual void add_squares(ExactParts& sum, std::byte const* data, std::size_t bytes) const = 0;

    // Calls f(first, other) for each end of a tie but the first.
    template <class F> void each_tied(F f) const {
        gpipe::TiedTensor const* first = nullptr;
        for (gpipe::TiedTensor const& end : ties_)
            if (!first || first->tie != end.tie)
                first = &end;
            else
                f(*first, end);
    }

    std::vector<Row> layers_;
    std::span<gpipe::SkipPair const> skips_;
    std::span<gpipe::TiedTensor const> ties_;
    std::uint64_t seed_;
    std::size_t micro_batches_;
    Backward order_;
    std::size_t replicas_;
    std::uint64_t steps_ = 0;
    double weight_ = 0;
    double norm_ = 0;
    double scale_ = 0; // from sums of gradients to what the optimizer is given
    Stream stream_;
    gpipe::StepFrame shared_;
    gpipe::StepState state_; // no loss scale
    std::vector<gpipe::Call> calls_;
    std::vector<gpipe::SkipPlace> skip_places_;    // of the layer that is called
    std::vector<gpipe::Array<std::byte*>> tables_; // of parameters
    std::vector<Memory> parameters_, states_;      // each tensor's states stand behind one another
    std::vector<Memory> buffers_, next_, part_;
    std::vector<Own> own_;                 // by replica
    std::vector<Memory> told_, told_back_; // by layer: what replicas tell each other
    std::vector<MicroBatch> batches_;      // of the mini-batch so far
    std::size_t before_ = 0;               // samples of these

  private:
    gpipe::OwnFrame frame(MicroBatch const& batch, std::size_t layer, gpipe::Phase phase,
                          gpipe::GroupAddress input, Memory const& scratch) {
        shared_ = {batch.samples, seed_, steps_, &stream_, &state_};
        gpipe::OwnFrame frame(&shared_, before_ + batch.first, batch.samples, phase);
        frame.micro_batch = batch.number;
        // Behind what any layer has come the ends of its skips.
        constexpr std::uint32_t behind = static_cast<std::uint32_t>(gpipe::Region::scratch) + 1;
        auto const& ends = layers_[layer].info->skips;
        skip_places_.resize(ends.count());
        for (std::uint32_t e = 0; e < ends.count(); ++e) {
            std::size_t const s = gpipe::skip_of({skips_.data(), skips_.size()}, layer, e);
            auto const place = [&](std::uint32_t gradient) {
                auto const region = static_cast<gpipe::Region>(behind + 2 * e + gradient);
                frame.set(region, batch.skips[2 * s + gradient].data());
                return gpipe::Place{0, region};
            };
            skip_places_[e] = {place(0), place(1)};
        }
        if (input.table)
            shared_.ends.inputs = {input};
        else
            frame.set(gpipe::Region::input, input.base);
        frame.set(gpipe::Region::output, batch.output[layer].data());
        frame.set(gpipe::Region::saved, batch.saved[layer].data());
        frame.set(gpipe::Region::scratch, scratch.data());
        return frame;
    }
    gpipe::GroupAddress input_of(MicroBatch const& batch, std::size_t layer, Samples const& inputs,
                                 std::vector<std::byte*>& table) const {
        if (layer > 0) return {batch.output[layer - 1].data(), nullptr};
        table = inputs.from(batch.first);
        return gpipe::GroupAddress::of_arrays(table.data(), table.size());
    }

    // Of one micro-batch in all replicas. Where these tell each other something, each layer is
    // called twice: all have to tell theirs before one can go on.
    void forward(std::span<MicroBatch> row, Samples const& inputs, gpipe::Phase phase) {
        for (MicroBatch& batch : row)
            for (gpipe::SkipPair const& skip : skips_) {
                batch.skips.emplace_back(skip.bytes * batch.samples);
                batch.skips.emplace_back(skip.gradient_bytes * batch.samples);
            }
        for (std::size_t i = 0; i < layers_.size(); ++i) {
            auto const& info = *layers_[i].info;
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
    void forward(MicroBatch& batch, std::size_t replica, std::size_t i, Samples const& inputs,
                 gpipe::Phase phase, bool merges) {
        auto const& info = *layers_[i].info;
        std::vector<std::byte*> table;
        Memory const scratch(info.scratch.slots(batch.samples));
        auto call = calls_[i];
        call.saving = phase != gpipe::Phase::evaluate;
        call.exchanges = info.exchanges();
        gpipe::BufferMemory const memory = memory_of(i, replica);
        call.buffers = &memory;
        auto const at = frame(batch, i, phase, input_of(batch, i, inputs, table), scratch);
        call.skips = skip_places_.data();
        auto const& functions = layers_[i].functions;
        functions.forward(call, at);
        if (functions.merge_statistics && merges && phase == gpipe::Phase::forward)
            functions.merge_statistics(call.layer, memory, &stream_, i);
    }
    void backward(std::span<MicroBatch> row, Samples const& inputs, Samples const& targets) {
        for (MicroBatch& batch : row)
            if (batch.samples) measure(batch, targets);
        for (std::size_t i = layers_.size(); i-- > 0;) {
            if (!layers_[i].functions.backward) break; // no gradient reaches the layers below
            bool const twice = layers_[i].info->exchanged_gradient.count > 0;
            clear(told_back_);
            for (bool const tells : {true, false})
                for (std::size_t r = 0; r < row.size() && (twice || !tells); ++r)
                    if (row[r].samples) backward(row[r], r, i, inputs, !tells);
        }
    }
    void backward(MicroBatch& batch, std::size_t replica, std::size_t i, Samples const& inputs,
                  bool counts) {
        auto const& info = *layers_[i].info;
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
        auto const gradients =
            info.parameters.addresses((counts ? own_[replica].gradients[i] : unwanted).data());
        call.gradients = gradients.data();
        call.exchanges = info.exchanges();
        gpipe::BufferMemory const memory = memory_of(i, replica);
        call.buffers = &memory;
        call.skips = skip_places_.data();
        layers_[i].functions.backward(call, at);
    }
    static double total(std::vector<MicroBatch> const& batches, double MicroBatch::*of) {
        double sum = 0;
        for (auto const& batch : batches) sum += batch.*of;
        return sum;
    }
    static std::size_t place_of(gpipe::GroupSizes const& sizes, std::size_t tensor) {
        std::size_t bytes = 0;
        for (std::size_t t = 0; t < tensor; ++t) bytes += (sizes.bytes[t] + 255) / 256 * 256;
        return bytes;
    }
    std::byte* at(std::vector<Memory> const& memory, gpipe::TiedTensor const& end) const {
        return memory[end.layer].data() + place_of(layers_[end.layer].info->parameters, end.tensor);
    }
    std::vector<std::byte> tensor_of(std::vector<Memory> const& memory, std::size_t layer,
                                     std::size_t tensor) const {
        auto const& sizes = layers_[layer].info->parameters;
        std::byte const* const from = memory[layer].data() + place_of(sizes, tensor);
        return {from, from + sizes.bytes[tensor]};
    }
    void copy(std::vector<Memory> const& memory, gpipe::TiedTensor const& to,
              gpipe::TiedTensor const& from) const {
        std::memcpy(at(memory, to), at(memory, from), from.bytes);
    }
    gpipe::BufferMemory memory_of(std::size_t layer, std::size_t replica) const {
        auto const& info = *layers_[layer].info;
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
    // Adds the gradients of ties, then those of replicas up, in their order.
    void add_replicas() {
        for (Own const& own : own_) {
            each_tied([&](gpipe::TiedTensor const& first, gpipe::TiedTensor const& other) {
                add(at(own.gradients, first), at(own.gradients, other), first.bytes);
            });
            each_tied([&](gpipe::TiedTensor const& first, gpipe::TiedTensor const& other) {
                copy(own.gradients, other, first);
            });
        }
        for (std::size_t r = 1; r < replicas_; ++r)
            for (std::size_t i = 0; i < layers_.size(); ++i)
                add(own_[0].gradients[i].data(), own_[r].gradients[i].data(),
                    own_[0].gradients[i].size());
    }
    // Of a tied tensor one end counts.
    double norm_of_replicas() const {
        ExactParts sum;
        for (std::size_t i = 0; i < layers_.size(); ++i) {
            auto const& sizes = layers_[i].info->parameters;
            for (std::size_t t = 0; t < sizes.count; ++t) {
                bool repeats = false;
                each_tied([&](gpipe::TiedTensor const&, gpipe::TiedTensor const& other) {
                    repeats = repeats || (other.layer == i && other.tensor == t);
                });
                if (!repeats)
                    add_squares(sum, own_[0].gradients[i].data() + place_of(sizes, t),
                                sizes.bytes[t]);
            }
        }
        return std::sqrt(sum.value());
    }
    // By the statistics of all replicas, merged in their order.
    void update_buffers() {
        for (std::size_t i = 0; i < layers_.size(); ++i) {
            auto const& functions = layers_[i].functions;
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
};

/// With what depends on types: the net's objects, the loss and the optimizer.
template <class Net, class Loss, class Optimizer> class Reference : public PlainLoop {
  public:
    using Inputs = Arrays<typename Net::Input>;
    using Targets = Arrays<typename Loss::Target>;

    Reference(Net const& net, Loss loss, Optimizer optimizer, std::uint64_t seed,
              std::size_t micro_batches, Backward order, std::size_t replicas = 1)
        : Reference(std::make_unique<Net>(net), loss, optimizer, seed, micro_batches, order,
                    replicas) {}

    Optimizer& optimizer() { return optimizer_; }
    template <std::size_t index> auto& layer() {
        using Layer = typename Net::template Layer<index>;
        return *static_cast<Layer*>(const_cast<void*>(layers_[index].object));
    }

    double step(Inputs const& inputs, Targets const& targets) {
        return PlainLoop::step(inputs, targets);
    }
    void accumulate(Inputs const& inputs, Targets const& targets) {
        PlainLoop::accumulate(inputs, targets);
    }
    double evaluate(Inputs const& inputs, Targets const& targets) {
        return PlainLoop::evaluate(inputs, targets);
    }
    std::vector<std::byte> predict(Inputs const& inputs) { return PlainLoop::predict(inputs); }

  private:
    using Output = typename Net::Output;

    Reference(std::unique_ptr<Net> net, Loss loss, Optimizer optimizer, std::uint64_t seed,
              std::size_t micro_batches, Backward order, std::size_t replicas)
        : PlainLoop(layers_of(*net), Net::skips, Net::ties, Optimizer::states, seed, micro_batches,
                    order, replicas),
          net_(std::move(net)), loss_(loss), optimizer_(optimizer) {}

    struct DecayOf {
        using Value = float (*)(std::size_t);
        template <class L> static constexpr Value of() { return &gpipe::LayerTraits<L>::decay; }
    };
    static std::vector<Row> layers_of(Net const& net) {
        static constexpr auto decays = Net::template leaf_table<DecayOf>();
        auto const objects = net.leaf_objects();
        std::vector<Row> layers(Net::size);
        Net::for_each_layer([&](std::size_t i, std::size_t leaf) {
            layers[i] = {&Net::leaf_info[leaf], Net::template leaf_functions<Stream>[leaf],
                         objects[leaf], decays[leaf]};
        });
        return layers;
    }

    void measure(MicroBatch& batch, Samples const& targets) override {
        using Group = gpipe::detail::as_tensors<typename Loss::Target>;
        Memory const scratch(
            gpipe::detail::sizes_of<typename gpipe::detail::ScratchOf<Loss>::type>().slots(
                batch.samples));
        auto table = targets.from(batch.first);
        shared_ = {batch.samples, seed_, steps_, &stream_};
        gpipe::OwnFrame const f(&shared_, before_ + batch.first, batch.samples,
                                gpipe::Phase::backward);
        gpipe::LossContext<Loss, Stream> context(f, scratch.data(), nullptr);
        auto const value =
            loss_(context,
                  gpipe::batch_views<Output, gpipe::detail::Access::read>(
                      {batch.output.back().data(), nullptr}, batch.samples, batch.samples),
                  gpipe::batch_views<Group, gpipe::detail::Access::read>(
                      gpipe::GroupAddress::of_arrays(table.data(), table.size()), batch.samples,
                      batch.samples),
                  gpipe::gradient_views<Output, gpipe::detail::Access::write>(
                      batch.output_gradient.back().data(), batch.samples, batch.samples));
        batch.sum = value.sum;
        batch.weight = value.weight;
    }
    void add(std::byte* sum, std::byte const* other, std::size_t bytes) const override {
        add_elements(gpipe::detail::as_tensors<Output>{}, sum, other, bytes);
    }
    void add_squares(ExactParts& sum, std::byte const* data, std::size_t bytes) const override {
        square_elements(gpipe::detail::as_tensors<Output>{}, sum, data, bytes);
    }
    template <class T, class... Ts>
    static void square_elements(gpipe::Tensors<T, Ts...>, ExactParts& sum, std::byte const* data,
                                std::size_t bytes) {
        using Element = typename T::Element;
        toy::add_squares(sum, reinterpret_cast<Element const*>(data), bytes / sizeof(Element));
    }
    template <class T, class... Ts>
    static void add_elements(gpipe::Tensors<T, Ts...>, std::byte* sum, std::byte const* other,
                             std::size_t bytes) {
        using Element = typename T::Element;
        for (std::size_t i = 0; i < bytes / sizeof(Element); ++i)
            reinterpret_cast<Element*>(sum)[i] += reinterpret_cast<Element const*>(other)[i];
    }

    struct UpdateOf {
        using Value = void (*)(Reference&, std::size_t, gpipe::UpdateContext&);
        template <class L>
        static void update(Reference& self, std::size_t layer, gpipe::UpdateContext& context) {
            self.update_layer(typename gpipe::LayerTraits<L>::Parameters{}, layer, context);
        }
        template <class L> static constexpr Value of() { return &update<L>; }
    };
    void update(std::size_t layer) override {
        static constexpr auto updates = Net::template leaf_table<UpdateOf>();
        gpipe::UpdateContext context{steps_};
        context.layer = static_cast<std::uint32_t>(layer);
        updates[static_cast<std::size_t>(layers_[layer].info - Net::leaf_info.data())](*this, layer,
                                                                                       context);
    }
    template <class... Ts>
    void update_layer(gpipe::Tensors<Ts...>, [[maybe_unused]] std::size_t layer,
                      [[maybe_unused]] gpipe::UpdateContext& context) {
        [[maybe_unused]] std::size_t at = 0;
        (update_tensor<typename Ts::Element>(layer, context, Ts::size, at), ...);
    }
    // A tensor's states stand behind one another.
    template <class Element>
    void update_tensor(std::size_t layer, gpipe::UpdateContext& context, std::size_t size,
                       std::size_t& at) {
        auto* const gradient = reinterpret_cast<Element*>(own_[0].gradients[layer].data() + at);
        for (std::size_t i = 0; i < size; ++i) gradient[i] *= static_cast<Element>(scale_);
        gpipe::UpdateTensor<Element, Optimizer::states> tensor{
            reinterpret_cast<Element*>(parameters_[layer].data() + at), gradient, {}, size};
        std::size_t const slot = (size * sizeof(Element) + 255) / 256 * 256;
        for (std::size_t s = 0; s < Optimizer::states; ++s)
            tensor.state[s] = reinterpret_cast<Element*>(states_[layer].data() +
                                                         Optimizer::states * at + s * slot);
        gpipe::UpdateContext own = context;
        each_tied([&](gpipe::TiedTensor const& first, gpipe::TiedTensor const& other) {
            if (other.layer != layer || other.tensor != context.tensor) return;
            own.layer = first.layer;
            own.tensor = first.tensor;
        });
        own.type = gpipe::type_number(layers_[own.layer].info->name);
        own.decay = layers_[own.layer].decay(own.tensor);
        optimizer_(own, tensor);
        ++context.tensor;
        at += slot;
    }

    std::unique_ptr<Net> net_; // calls point to its layers
    Loss loss_;
    Optimizer optimizer_;
};

} // namespace toy
