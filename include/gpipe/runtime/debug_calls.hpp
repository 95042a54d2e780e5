#pragma once

#include <gpipe/core/compiled.hpp>
#include <gpipe/core/error.hpp>
#include <gpipe/runtime/calls.hpp>
#include <gpipe/runtime/poison.hpp>

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

GPIPE_RUNS_ONCE_BEGIN
namespace gpipe {

/// A tensor that a call may write.
struct DebugTensor {
    /// Where a whole one is kept.
    enum class In : std::uint8_t {
        one_place, ///< whatever the micro-batch
        statistics,
        exchanged,
        exchanged_gradient
    };
    char const* what = nullptr;           ///< it is
    std::uint32_t number = 0;             ///< among those of its kind
    std::string_view tag{};               ///< of a skip, in place of the number
    char const* function = nullptr;       ///< of the layer, that writes it
    Place place{};                        ///< where it lies, if it is of samples
    In in = In::one_place;                ///< else
    std::byte* whole = nullptr;           ///< that place; null: it is what the loss comes to
    BufferMemory const* memory = nullptr; ///< of the layer, that has the other ones
    std::size_t offset = 0;               ///< bytes, from where those of a micro-batch begin
    std::size_t bytes = 0;                ///< of a sample, or of the whole
    std::size_t room = 0;                 ///< of the slot; 0: none behind what is written
    std::size_t element = 1;              ///< bytes
    Poison poison{};                      ///< what it holds before; 0: what it holds anyhow
    std::uint64_t guard = 0;              ///< what is behind, see PoisonedBytes
    void const* optional = nullptr;       ///< see ElementInfo

    /// Whether it is of samples.
    bool has_samples() const { return place.region != Region::nothing; }
};

/// A call, with all that it may write. Another stands in its place, whose layer this is.
struct DebugCall {
    Call call;                     ///< as it would be
    CallFunction behind = nullptr; ///< called after it, if there is one
    Array<DebugTensor> tensors;    ///< that it may write
    std::string_view layer{};      ///< its name
    PoisonWork work{};             ///< of the device
};

namespace detail {

// In place of a call in debug mode.
GPIPE_INLINE void debug_call(Call const& call, Frame const& frame);

// Lists what calls may write, and puts others in their place.
class DebugCallMaker {
  public:
    DebugCallMaker(Model const& model, MemoryPlan const& plan, PoisonWork work, Ranks const& ranks)
        : model_(model), plan_(plan), work_(work), ranks_(ranks) {}

    // One for each of so many.
    Array<DebugCall> make(Call* call, std::size_t count) {
        Array<DebugCall> result(count);
        DebugCall* debug = result.data();
        for (std::size_t c = 0; c < plan_.cells.size(); ++c)
            for (std::size_t way = 0; way < way_count && has(c); ++way)
                for (CellCall const& one : plan_.parts.of(c, way).calls.calls) {
                    bool const trains = way != way_evaluates;
                    count_ = 0;
                    add_call(one.kind, *call, trains);
                    debug->tensors = first_of(tensors_, count_);
                    put_in_place_of(*call++, *debug++,
                                    one.kind == CallKind::loss && model_.loss.scales && trains);
                }
        return result;
    }

  private:
    bool has(std::size_t cell) const { return ranks_.own(plan_.lowered.programs.device_of(cell)); }
    void put_in_place_of(Call& call, DebugCall& debug, bool scales) {
        debug.call = call;
        if (scales) { // what is unwritten would be so no longer
            debug.call.function = model_.loss.train;
            debug.behind = model_.loss.scale;
        }
        debug.layer =
            call.index < model_.infos.size() ? model_.infos[call.index].name : model_.loss.name;
        debug.work = work_;
        call.function = &debug_call;
        call.layer = &debug;
    }

    void add_call(CallKind kind, Call const& call, bool trains) {
        if (kind == CallKind::loss) return add_loss(call, trains);
        LayerInfo const& layer = model_.infos[call.index];
        bool const forward = kind == CallKind::forward;
        bool const halves = kind == CallKind::backward && layer.splits && !layer.has_whole;
        bool const first = kind == CallKind::input_gradient || kind == CallKind::backward;
        using In = DebugTensor::In;
        function_ = forward ? "exchange" : "exchange_gradient";
        if (call.exchanges && forward)
            add_whole("exchanged", layer.exchanged, In::exchanged, call);
        else if (call.exchanges)
            add_whole("exchanged_gradient", layer.exchanged_gradient, In::exchanged_gradient, call);
        function_ = forward                            ? "forward"
                    : !first                           ? "weight_gradient"
                    : kind == CallKind::input_gradient ? "input_gradient"
                    : halves                           ? "input_gradient"
                                                       : "backward";
        if (forward) add("output", layer.output, call.y, true);
        if (forward) add("saved", layer.saved, call.saved, call.saving);
        if (first) add("dx", layer.input_gradient, call.dx, true);
        if (first) add("deferred", layer.deferred, call.deferred, true);
        for (std::uint32_t e = 0; e < layer.skips.count(); ++e) {
            SkipInfo const& skip = layer.skips.first[e];
            SkipPlace const& place = call.skips[e];
            bool const stashes = e < layer.skips.stashes;
            tag_ = skip.tag;
            if (stashes && forward)
                add("stash", {&skip.bytes, 1, &skip.element}, place.value, true);
            if (!stashes && first)
                add("gradient of pop", {&skip.gradient_bytes, 1, &skip.element}, place.gradient,
                    true);
        }
        tag_ = {};
        add("scratch", layer.scratch, call.scratch, false);
        if (forward) add_whole("statistics", layer.statistics, In::statistics, call);
        if (halves) function_ = "weight_gradient";
        if (!forward && kind != CallKind::input_gradient && !layer.frozen)
            add_gradients(layer, call.gradients);
    }
    // In evaluation no gradient is wanted.
    void add_loss(Call const& call, bool trains) {
        function_ = "call";
        add("dy", model_.infos[model_.infos.size() - 1].output_gradient, call.dy, trains);
        add("scratch", model_.loss.scratch, call.scratch, false);
        DebugTensor value;
        value.what = "value";
        value.bytes = model_.sums * sizeof(double);
        value.room = value.bytes + sizeof(double); // see Tables::loss_row
        value.element = sizeof(double);
        value.poison = poison_of(element_info<double>);
        put(value);
    }
    [[gnu::noinline]] void add(char const* what, GroupSizes const& group, Place place, bool must) {
        for (std::uint32_t t = 0; t < group.count && place.region != Region::nothing; ++t) {
            DebugTensor tensor = tensor_of(what, group, t, plan_.capacity);
            tensor.tag = tag_;
            tensor.place = place;
            tensor.optional = group.elements[t].optional;
            if (!must) tensor.poison.unit = 0;
            if (tensor.bytes > 0) put(tensor);
            place.offset += tensor.room;
        }
    }
    [[gnu::noinline]] void add_whole(char const* what, GroupSizes const& group, DebugTensor::In in,
                                     Call const& call) {
        std::size_t offset = 0;
        for (std::uint32_t t = 0; t < group.count; ++t) {
            DebugTensor tensor = tensor_of(what, group, t, 1);
            tensor.in = in;
            tensor.memory = call.buffers;
            tensor.offset = offset;
            if (in == DebugTensor::In::statistics && t + 1 == group.count)
                tensor.room += slot_alignment; // see PlanRequest::guard
            put(tensor);
            offset += tensor.room;
        }
    }
    // Calls add to them. What is behind was zeroed with them.
    void add_gradients(LayerInfo const& layer, std::byte* const* gradients) {
        GroupSizes const& group = layer.parameters;
        std::size_t left = layer.learned_tensors();
        for (std::uint32_t t = 0; t < group.count; ++t) {
            if (!layer.learns(t)) continue;
            DebugTensor tensor = tensor_of("gradient of parameter tensor", group, t, 1);
            tensor.poison = {};
            tensor.whole = gradients[t];
            if (--left == 0) tensor.room += slot_alignment; // see PlanRequest::guard
            put(tensor);
        }
    }
    // In slots with room for `capacity` samples; 1 for whole ones.
    [[gnu::noinline]] static DebugTensor tensor_of(char const* what, GroupSizes const& group,
                                                   std::uint32_t t, std::size_t capacity) {
        DebugTensor tensor{what, t};
        tensor.bytes = group.bytes[t];
        tensor.room = slot_bytes(group.bytes[t] * capacity);
        tensor.element = group.elements[t].bytes;
        tensor.poison = poison_of(group.elements[t]);
        return tensor;
    }
    [[gnu::noinline]] void put(DebugTensor& tensor) {
        tensor.function = function_;
        // Another than behind what the call reads: one that copies too much would not be seen.
        tensor.guard = tensor.poison.pattern ^ (1 + put_++ % 31) * tensor.poison.salt;
        if (count_ == tensors_.size()) enlarge(tensors_, count_, 2 * count_ + 8);
        tensors_[count_++] = tensor;
    }

    Model const& model_;
    MemoryPlan const& plan_;
    PoisonWork work_;
    Ranks ranks_;
    Array<DebugTensor> tensors_;     // of the call that is looked at, and room for more
    std::size_t count_ = 0;          // of these
    std::size_t put_ = 0;            // of all calls so far
    char const* function_ = nullptr; // of the layer, that writes what is added
    std::string_view tag_;           // of the skip that it is of
};

GPIPE_INLINE PoisonedBytes bytes_of(DebugTensor const& tensor, Frame const& frame) {
    PoisonedBytes all;
    all.poison = tensor.poison;
    all.guard = tensor.guard;
    using In = DebugTensor::In;
    if (tensor.in == In::one_place)
        all.data = tensor.whole           ? tensor.whole
                   : tensor.has_samples() ? tensor.place.in(frame)
                                          : reinterpret_cast<std::byte*>(frame.sums());
    else if (tensor.in == In::statistics)
        all.data = tensor.memory->part_of(frame) + tensor.offset;
    else
        all.data =
            tensor.memory->exchange.own(frame, tensor.in == In::exchanged_gradient) + tensor.offset;
    // ForwardContext::gathering().
    if (tensor.in == In::statistics && frame.phase != Phase::forward) all.poison.unit = 0;
    all.bytes = tensor.bytes * (tensor.has_samples() ? frame.samples : 1);
    all.room = tensor.room > 0 ? tensor.room : all.bytes;
    return all;
}

[[noreturn, gnu::cold]] GPIPE_INLINE void throw_finding(DebugCall const& debug,
                                                        DebugTensor const& tensor,
                                                        Frame const& frame,
                                                        PoisonFinding const& found) {
    std::size_t const at = found.unwritten;
    std::size_t const beyond = (found.beyond + tensor.element - 1) / tensor.element;
    Message const number("%u", tensor.number);
    Message const sample(" of sample %zu of the mini-batch",
                         frame.first_sample + at / tensor.bytes);
    Message const fault =
        beyond > 0
            ? Message("written up to %zu bytes beyond its end", beyond * tensor.element)
            : Message("%s, first at element %zu%s",
                      found.computed ? "computed from what is unwritten (by += for =, say)"
                                     : "left unwritten",
                      at % tensor.bytes / tensor.element, tensor.has_samples() ? sample.text : "");
    std::string const which(tensor.tag.empty() ? number.text : tensor.tag);
    throw_error<std::logic_error>("gpipe: %s %s is %s, by the %s of layer %u (%s)", tensor.what,
                                  which.c_str(), fault.text, tensor.function, debug.call.index,
                                  std::string(debug.layer).c_str());
}

GPIPE_INLINE void debug_call(Call const& call, Frame const& frame) {
    DebugCall const& debug = *static_cast<DebugCall const*>(call.layer);
    // If what comes before the call throws.
    if (call.exchanges && frame.shared->exchange) frame.shared->exchange->owed = true;
    for (DebugTensor const& tensor : debug.tensors)
        if (tensor.poison.pattern != 0) debug.work.fill(*frame.shared, bytes_of(tensor, frame));
    debug.call.function(debug.call, frame);
    for (DebugTensor const& tensor : debug.tensors) {
        PoisonFinding found = debug.work.find(*frame.shared, bytes_of(tensor, frame));
        if (frame.shared->optionals.lack(tensor.optional)) found.unwritten = PoisonFinding::none;
        if (found.beyond > 0 || found.unwritten != PoisonFinding::none)
            throw_finding(debug, tensor, frame, found);
    }
    if (debug.behind) debug.behind(debug.call, frame);
}

} // namespace detail

/// Has these calls, of a plan with room behind every tensor, look at what they write: see
/// Options::debug. `work`: of the device.
[[gnu::cold]] GPIPE_INLINE Array<DebugCall> debug_calls(Calls& calls, Model const& model,
                                                        MemoryPlan const& plan, PoisonWork work,
                                                        Ranks const& ranks) {
    return detail::DebugCallMaker(model, plan, work, ranks).make(calls.data(), calls.size());
}

} // namespace gpipe
GPIPE_RUNS_ONCE_END
