// Calls of one training in any order, drawn by chance: what comes of them is what comes of a plain
// loop that does what they mean. The words of a failure name the number that it was drawn from.
#include <support/net.hpp>

#include <doctest/doctest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace {

using gpipe::device::Host;
using toy::Deferred, toy::Remote;

using Real = float;
using Data = toy::Data<Real>;
constexpr std::size_t L = toy::layers<Real>;
constexpr std::size_t most = 9; // samples of a mini-batch

enum Calls {
    steps,
    starts,
    drops, // the handle of a step that has been started
    accumulates,
    forgets,
    evaluates,
    predicts,
    takes_gradients,
    fails,
    fails_in_a_part,
    fails_outside_of_steps,
    is_not_finite,
    does_not_fit,
    changes_a_rate,
    changes_a_layer,
    hears,
    kinds
};

template <class Device> class Sequence {
    using Train = toy::Train<Real, Device>;

  public:
    explicit Sequence(std::uint32_t seed)
        : random_(seed), schedule_(any(toy::schedules)), options_(chosen()),
          train_(toy::make_net<Real>(watch_), {}, gpipe::Adam{1e-2f}, options_),
          plain_(toy::make_net<Real>(quiet_), {}, gpipe::Adam{1e-2f}, 3, options_.micro_batches,
                 schedule_.order) {}

    std::string words() const {
        return schedule_.name + ", K = " + std::to_string(options_.cells) +
               ", M = " + std::to_string(options_.micro_batches) + ", " +
               toy::describe(options_.device);
    }
    void run(std::size_t calls, std::array<std::size_t, kinds>& made) {
        for (std::size_t n = 0; n < calls; ++n) {
            auto const kind = static_cast<Calls>(random_() % kinds);
            INFO("call ", n, " of kind ", static_cast<int>(kind));
            ++made[kind];
            make(kind);
        }
        settle();
        step(data());
        CHECK(toy::difference(train_, plain_) == "");
        CHECK(train_.steps() == steps_);
    }

  private:
    template <class All> auto const& any(All const& all) { return all[random_() % std::size(all)]; }
    typename Train::Options chosen() {
        typename Train::Options o;
        o.samples = most;
        o.seed = 3;
        o.micro_batches = 1 + random_() % 6;
        o.cells = 1 + random_() % 4;
        o.schedule = schedule_.policy;
        o.checkpointing = any(toy::checkpointings).policy;
        o.device = any(toy::runs<Device>());
        o.slack = random_() % 2 ? gpipe::no_wait : random_() % 6;
        if (o.slack == 5) o.slack = gpipe::chosen_slack;
        return o;
    }
    Data data() {
        return Data(random_() % 3 ? most : 1 + random_() % most,
                    static_cast<std::uint32_t>(random_()));
    }
    // Of steps that are under way what they say.
    void settle() {
        for (auto& [pending, loss] : pending_) CHECK(pending.result().loss == loss);
        pending_.clear();
    }
    double expected(Data const& last) {
        for (Data const& part : std::exchange(parts_, {}))
            plain_.accumulate(part.inputs, part.targets);
        ++steps_;
        return plain_.step(last.inputs, last.targets);
    }
    void step(Data const& with) {
        double const loss = expected(with);
        CHECK(train_.step(with.inputs, with.targets).loss == loss);
        if (random_() % 4 == 0) CHECK(toy::difference(train_, plain_) == "");
    }
    template <class Error, class F> void thrown(F call) {
        CHECK_THROWS_AS(call(), Error);
        parts_.clear();
        CHECK(train_.accumulated() == 0);
        CHECK(train_.steps() == steps_);
    }
    // Calls under which a layer throws.
    template <class F> void failing(F call) {
        settle();
        std::size_t seen = 0; // samples count on over the parts of a mini-batch
        for (Data const& part : parts_) seen += part.inputs.size() / 5;
        watch_.faults = {{random_() % L, seen, toy::Phase::forward}};
        call();
        watch_.faults.clear();
    }

    void make(Calls kind) {
        Data const with = data();
        std::size_t const samples = with.inputs.size() / 5;
        switch (kind) {
        case steps:
            return step(with);
        case starts: {
            double const loss = expected(with);
            pending_.emplace_back(train_.start(with.inputs, with.targets), loss);
            return;
        }
        case drops:
            if (!pending_.empty()) pending_.erase(pending_.begin() + random_() % pending_.size());
            return;
        case accumulates:
            train_.accumulate(with.inputs, with.targets);
            parts_.push_back(with);
            return;
        case forgets:
            train_.forget_accumulated();
            return parts_.clear();
        case evaluates:
            CHECK(train_.evaluate(with.inputs, with.targets).loss ==
                  plain_.evaluate(with.inputs, with.targets));
            return;
        case predicts: {
            std::vector<Real> outputs(samples * 3);
            train_.predict(with.inputs, outputs);
            auto const bytes = plain_.predict(with.inputs);
            REQUIRE(bytes.size() == outputs.size() * sizeof(Real));
            CHECK(std::memcmp(outputs.data(), bytes.data(), bytes.size()) == 0);
            return;
        }
        case takes_gradients:
            if (!parts_.empty()) {
                CHECK_THROWS_AS(train_.compute_gradients(with.inputs, with.targets),
                                std::logic_error);
            } else {
                double const loss = train_.compute_gradients(with.inputs, with.targets).loss;
                CHECK(loss == expected(with));
                CHECK(train_.step(with.inputs, with.targets).loss == loss);
            }
            return;
        case fails:
            return failing([&] {
                thrown<toy::Thrown>([&] {
                    random_() % 2 ? train_.step(with.inputs, with.targets)
                                  : train_.start(with.inputs, with.targets).result();
                });
            });
        case fails_in_a_part:
            return failing([&] {
                thrown<toy::Thrown>([&] { // at once, or by the step
                    train_.accumulate(with.inputs, with.targets);
                    train_.step(with.inputs, with.targets);
                });
            });
        case fails_outside_of_steps:
            settle();
            watch_.faults = {{random_() % L, 0, toy::Phase::evaluate}};
            CHECK_THROWS_AS(train_.evaluate(with.inputs, with.targets), toy::Thrown);
            return watch_.faults.clear();
        case is_not_finite: {
            settle();
            Data broken = with;
            broken.targets[random_() % broken.targets.size()] =
                std::numeric_limits<Real>::quiet_NaN();
            return thrown<std::domain_error>([&] { train_.step(broken.inputs, broken.targets); });
        }
        case does_not_fit: {
            Data const large(most + 1);
            CHECK_THROWS_AS(train_.step(large.inputs, large.targets), std::invalid_argument);
            CHECK_THROWS_AS(train_.evaluate(with.inputs, large.targets), std::invalid_argument);
            return;
        }
        case changes_a_rate:
            train_.optimizer().learning_rate = plain_.optimizer().learning_rate =
                1e-3f * static_cast<float>(random_() % 20);
            return;
        case changes_a_layer: {
            if (!parts_.empty()) return; // the plain loop runs them with the step
            float const rate = 0.1f * static_cast<float>(random_() % 4);
            plain_.template layer<7>().rate = rate;
            return train_.template change_layer<7>([&](auto& dropout) { dropout.rate = rate; });
        }
        default: // hears
            if (random_() % 2)
                train_.on_action([](gpipe::ActionEvent const&) {});
            else
                train_.on_action(nullptr);
        }
    }

    std::mt19937 random_;
    toy::Watch watch_, quiet_;
    toy::NamedSchedule const& schedule_;
    typename Train::Options options_;
    Train train_;
    toy::Plain<Real> plain_;
    std::vector<std::pair<typename Train::Pending, double>> pending_;
    std::vector<Data> parts_; // of the next step's mini-batch
    std::uint64_t steps_ = 0;
};

} // namespace

TEST_CASE_TEMPLATE("P1, P6 calls in any order do what they mean, in every bit", Device, Host,
                   Deferred, Remote) {
    std::array<std::size_t, kinds> made{};
    std::size_t const sequences = toy::cases(toy::long_tests() ? 20'000 : 200);
    for (std::uint32_t seed = 0; seed < sequences; ++seed) {
        Sequence<Device> sequence(seed);
        INFO("drawn from ", seed, ": ", sequence.words());
        sequence.run(20, made);
    }
    for (std::size_t const calls : made) CHECK(calls > sequences / 4);
}
