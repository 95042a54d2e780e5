#pragma once

#include <gpipe/core/compiled.hpp>
#include <gpipe/plan/clocks.hpp>
#include <gpipe/plan/flaw.hpp>
#include <gpipe/plan/segments.hpp>
#include <gpipe/plan/walk_order.hpp>

#include <cstddef>
#include <cstdint>
#include <stdexcept>

GPIPE_RUNS_ONCE_BEGIN
namespace gpipe {

/// Where an operand lies: an address of any kind, one past its last byte. Empty: nowhere.
struct Span {
    std::uint64_t begin = 0; ///< the first byte
    std::uint64_t end = 0;   ///< one past the last
    std::uint32_t space = 0; ///< of the memories whose bytes are never the same
};

namespace detail {

// Where operands lie, whoever says it: so all who ask share the sweep's code.
class Spans {
  public:
    virtual constexpr Span operator()(std::size_t action, Operand const& operand) const = 0;

  protected:
    constexpr ~Spans() = default;
};
template <class SpanOf> class SpansOf final : public Spans {
  public:
    constexpr explicit SpansOf(SpanOf const& of) : of_(of) {}
    constexpr Span operator()(std::size_t action, Operand const& operand) const override {
        return of_(action, operand);
    }

  private:
    SpanOf const& of_;
};

// Goes through a walk in its order and knows what every action can be sure of: how many actions of
// each stream have run, whatever the timing (vector clocks; Fidge, Mattern 1988). Every read must
// be sure of the writer, every write of all who use what lies in its bytes; the last occupants
// stand for those before them, for what happens before is transitive. So it is exact: where it
// finds a flaw there is an execution, in an order that streams and needs allow, that loses a value.
//
// It either proves needs that are given, or finds them: the least that make the table sound. What
// it demands counts from then on, else others would demand it again.
class Sweep {
  public:
    // Needs that are to be proven, or else where those go that are found.
    struct Asked {
        Needs const* given = nullptr;
        Needs* found = nullptr;
        constexpr explicit operator bool() const { return given || found; }
    };

    // `own`: of the walk. `before`: of the walk in the one before it, if that may be under way.
    constexpr Sweep(Walk const& walk, Operands const& operands, Spans const& spans, Asked own,
                    Asked before)
        : walk_(walk), operands_(operands), spans_(spans), own_(own), before_(before),
          size_(walk.order.size()), stream_(walk.stream), streams_(number(stream_, walk.streams)),
          values_(operands.values.size()), rounds_(before ? 2 : 1), length_(lengths()),
          clocks_(length_, rounds_, walk.position), states_(rounds_ * values_),
          latest_(streams_, none), demanded_(streams_), needs_(streams_) {
        for (std::size_t v = values_; v-- > 0 && is_lasting(operands.values[v].holds);)
            states_[v].there = true;
    }

    constexpr SweepVerdict run() {
        for (round_ = 0; round_ < rounds_; ++round_)
            for (std::uint32_t const i : walk_.order) {
                Asked const& asked = round_ == 0 ? own_ : before_;
                finds_ = asked.found != nullptr;
                begin(i);
                if (own_.given) join_all((*own_.given)[i], round_);
                if (round_ > 0 && before_.given) join_all((*before_.given)[i], 0);
                for (bool const writes : {false, true}) {
                    for (Operand const& operand : operands_[i])
                        if ((operand.use != Use::read) == writes)
                            writes ? write(i, operand) : read(i, operand);
                    if (!verdict_) return verdict_;
                    take_demanded();
                }
                if (finds_) asked.found->set(i, needs());
                forget_demanded();
            }
        return verdict_;
    }

  private:
    static constexpr std::uint32_t none = 0xFFFFFFFF;
    static constexpr std::size_t most_users = 4;

    // Numbers streams anew, without those that have no action. Returns how many.
    static constexpr std::size_t number(Array<std::uint32_t>& stream, std::size_t streams) {
        Array<std::uint32_t> numbers(streams, none);
        std::uint32_t count = 0;
        for (std::uint32_t& s : stream) {
            if (numbers[s] == none) numbers[s] = count++;
            s = numbers[s];
        }
        return count;
    }
    constexpr Array<std::uint32_t> lengths() const {
        Array<std::uint32_t> result(streams_);
        for (std::uint32_t const s : stream_) ++result[s];
        return result;
    }

    // Of a value: the last who used it, as far as none is sure of another; 1 + action + round.
    struct State {
        std::uint32_t users[most_users] = {};
        bool there = false;
        std::uint16_t to = 0; // the last slice in which the last user does
        std::uint64_t at = 0;
    };
    constexpr std::size_t action_of(std::size_t instance) const {
        return instance < size_ ? instance : instance - size_;
    }
    constexpr std::size_t stream_of(std::size_t instance) const {
        return stream_[action_of(instance)];
    }
    constexpr std::uint32_t position_of(std::size_t instance) const {
        std::size_t const i = action_of(instance);
        return walk_.position[i] + (instance < size_ ? 0 : length_[stream_[i]]);
    }
    constexpr bool sure(std::size_t instance) const {
        return clocks_.now(stream_of(instance)) >= position_of(instance);
    }
    constexpr void begin(std::uint32_t i) {
        instance_ = i + round_ * size_;
        clocks_.begin(instance_, stream_[i], position_of(instance_));
    }
    constexpr void join(std::size_t instance) {
        clocks_.join(instance, stream_of(instance), position_of(instance));
    }
    constexpr void join_all(Part<std::uint32_t> needs, std::size_t round) {
        for (std::uint32_t const needed : needs) join(needed + round * size_);
    }

    constexpr void fail(Flaw flaw, std::uint32_t action, std::size_t value) {
        if (verdict_) verdict_ = {flaw, action, static_cast<std::uint32_t>(value % values_)};
    }
    // Of each stream only the latest.
    constexpr void demand(std::size_t instance) {
        std::uint32_t& latest = latest_[stream_of(instance)];
        if (latest == none)
            demanded_[demanded_count_++] = static_cast<std::uint32_t>(stream_of(instance));
        if (latest == none || position_of(latest) < position_of(instance))
            latest = static_cast<std::uint32_t>(instance);
    }
    constexpr void take_demanded() {
        for (std::size_t n = 0; n < demanded_count_; ++n) join(latest_[demanded_[n]]);
    }
    // Of what was demanded, what no other implies.
    constexpr Part<std::uint32_t> needs() {
        std::size_t kept = 0;
        for (std::size_t n = 0; n < demanded_count_; ++n) {
            std::uint32_t const one = latest_[demanded_[n]];
            bool implied = false;
            for (std::size_t o = 0; o < demanded_count_; ++o)
                implied = implied || (o != n && clocks_.count(latest_[demanded_[o]],
                                                              stream_of(one)) >= position_of(one));
            if (!implied) needs_[kept++] = static_cast<std::uint32_t>(action_of(one));
        }
        return {needs_.data(), kept};
    }
    constexpr void forget_demanded() {
        for (std::size_t n = 0; n < demanded_count_; ++n) latest_[demanded_[n]] = none;
        demanded_count_ = 0;
    }

    constexpr void read(std::uint32_t i, Operand const& operand) {
        State& state = states_[operand.value + round_ * values_];
        Value const& value = operands_.values[operand.value];
        bool const lasting = value.holds >= Holds::state;
        Span const span = spans_(i, operand);
        if (!state.there) return fail(Flaw::unwritten, i, operand.value);
        if (span.begin != state.at) return fail(Flaw::misplaced, i, operand.value);
        if (round_ >= lasting) {
            std::size_t const made = value.writer + (round_ - lasting) * size_;
            if (!sure(made)) {
                if (!finds_) return fail(Flaw::unordered, i, operand.value);
                demand(made);
            }
        }
        // Else nobody writes over it.
        if (lasting || span.begin < span.end) use(state, operand.to);
    }
    // From now on this action stands for all users that it is sure of.
    constexpr void use(State& state, std::uint16_t to) {
        std::uint32_t const own = static_cast<std::uint32_t>(instance_ + 1);
        state.to = to;
        for (std::uint32_t& user : state.users)
            if (user == 0 || user == own || sure(user - 1)) {
                for (std::uint32_t& other : state.users)
                    if (other != 0 && sure(other - 1)) other = 0;
                user = own;
                return;
            }
        throw std::length_error("gpipe: a value that too many streams use");
    }
    constexpr void write(std::uint32_t i, Operand const& operand) {
        bool const next = operand.use == Use::next;
        if (next) end(i, operand.value + round_ * values_, 0);
        if (next && round_ + 1 == rounds_) return;
        std::size_t const value = operand.value + (round_ + next) * values_;
        Span const span = spans_(i, operand);
        State& state = states_[value];
        state.there = true;
        state.at = span.begin;
        state.users[0] = static_cast<std::uint32_t>(instance_ + 1);
        state.to = operand.to;
        if (span.begin >= span.end) return;
        if (span.space >= rooms_.size()) enlarge(rooms_, rooms_.size(), span.space + 1);
        rooms_[span.space].give(span.begin, span.end, value,
                                [&](std::size_t old) { end(i, old, operand.from); });
    }
    // Who uses it is done, or is waited for: the action itself when slice `from` begins.
    constexpr void end(std::uint32_t i, std::size_t value, std::uint16_t from) {
        State& state = states_[value];
        state.there = false;
        for (std::uint32_t const user : state.users) {
            if (user == 0 || sure(user - 1)) continue;
            bool const own = user - 1 == instance_;
            if (!(own ? state.to < from : finds_)) return fail(Flaw::overwritten, i, value);
            if (!own) demand(user - 1);
        }
    }

    Walk const& walk_;
    Operands const& operands_;
    Spans const& spans_;
    Asked own_, before_;
    std::size_t size_;
    Array<std::uint32_t> stream_; // by action, see number()
    std::size_t streams_;
    std::size_t values_;
    std::size_t rounds_;
    Array<std::uint32_t> length_;   // by stream
    Clocks clocks_;                 // by action, with its round
    Array<State> states_;           // by round and value
    Array<Segments> rooms_;         // by space: what lies there
    Array<std::uint32_t> latest_;   // by stream: what is demanded of it
    Array<std::uint32_t> demanded_; // streams
    std::size_t demanded_count_ = 0;
    Array<std::uint32_t> needs_; // what needs() returns
    std::size_t round_ = 0;
    std::size_t instance_ = 0;
    bool finds_ = false;
    SweepVerdict verdict_;
};

[[gnu::cold]] GPIPE_INLINE constexpr Needs found_needs(Walk const& walk, Operands const& operands,
                                                       Spans const& spans, Needs const* own) {
    Needs found(walk.order.size(), own ? walk.streams : walk.order.size());
    Sweep::Asked const finds{nullptr, &found};
    Sweep sweep(walk, operands, spans, own ? Sweep::Asked{own} : finds,
                own ? finds : Sweep::Asked{});
    SweepVerdict const verdict = sweep.run();
    if (!verdict) throw SweepFlaw(verdict, operands.values[verdict.value]);
    return found;
}
[[gnu::cold]] GPIPE_INLINE constexpr SweepVerdict proven(Walk const& walk, Operands const& operands,
                                                         Needs const& needs, Spans const& spans,
                                                         Needs const* before) {
    return Sweep(walk, operands, spans, {&needs}, {before}).run();
}

} // namespace detail

/// What actions have to wait for, beside what their streams have done before: the writers of what
/// they read, and those who use what lies where they write, span_of(action, operand) being a Span.
/// Of all that no more than it takes. Throws SweepFlaw if they read what is not there.
template <class SpanOf>
constexpr Needs find_needs(Walk const& walk, Operands const& operands, SpanOf const& span_of) {
    return detail::found_needs(walk, operands, detail::SpansOf<SpanOf>(span_of), nullptr);
}
/// What actions of a walk with these needs have to wait for in the walk before, if that may still
/// be under way. Throws as find_needs().
template <class SpanOf>
constexpr Needs find_needs_before(Walk const& walk, Operands const& operands, Needs const& needs,
                                  SpanOf const& span_of) {
    return detail::found_needs(walk, operands, detail::SpansOf<SpanOf>(span_of), &needs);
}
/// Proves that with these needs no execution loses a value; with `before`, of walk behind walk,
/// each of which may begin while the one before it is under way.
template <class SpanOf>
constexpr SweepVerdict prove(Walk const& walk, Operands const& operands, Needs const& needs,
                             SpanOf const& span_of, Needs const* before = nullptr) {
    return detail::proven(walk, operands, needs, detail::SpansOf<SpanOf>(span_of), before);
}

} // namespace gpipe
GPIPE_RUNS_ONCE_END
