// update::Immediate over ranks: each updates behind its own part of a step, and begins the next.
#include "support/expected.hpp"
#include "support/overlap_layers.hpp"
#include "support/ranks.hpp"
#include "support/skip_layers.hpp"

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <doctest/doctest.h>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {

using gpipe::Adam;
using toy::Backward;
using toy::has;
using toy::thrown_by;
using Real = float;
using Sizes = std::vector<std::size_t>;

template <class Net, class Loss>
using Immediately =
    gpipe::Training<Net, gpipe::Cells<gpipe::dynamic>, gpipe::MicroBatches<gpipe::dynamic>,
                    gpipe::Loss<Loss>, gpipe::Optimizer<Adam>, gpipe::schedule::Dynamic,
                    gpipe::checkpoint::Dynamic, gpipe::update::Immediate, toy::Rank>;

template <class T>
typename T::Options options(gpipe::schedule::Dynamic schedule, std::size_t cells,
                            std::size_t micro_batches) {
    typename T::Options o;
    o.samples = 13;
    o.seed = 7;
    o.cells = cells;
    o.micro_batches = micro_batches;
    o.schedule = schedule;
    return o;
}
// make(options): the Training of a rank.
template <class T, class Make>
toy::Crew<T> crew(Sizes const& devices, bool meets, std::size_t threads,
                  typename T::Options const& o, Make make) {
    return {devices, meets, threads, [&](std::size_t, toy::Rank::Options device) {
                auto own = o;
                own.device = device;
                return make(own);
            }};
}

// What each rank is told of each step of some mini-batches, the one of 7 samples in two parts, of
// which so many are under way at once.
template <class T>
std::vector<std::vector<double>> train(toy::Crew<T>& crew, Sizes const& sizes, std::size_t most) {
    std::vector<std::vector<double>> losses(crew.ranks());
    crew.each([&](std::size_t r) {
        std::vector<typename T::Pending> pending;
        for (std::size_t const size : sizes) {
            toy::Data<Real> const data(size, static_cast<std::uint32_t>(size));
            if (size == 7) crew[r].accumulate(data.inputs, data.targets);
            pending.push_back(crew[r].start(data.inputs, data.targets));
            if (pending.size() < most) continue;
            losses[r].push_back(pending.front().result().loss);
            pending.erase(pending.begin());
        }
        for (auto& step : pending) losses[r].push_back(step.result().loss);
    });
    crew.rethrow();
    return losses;
}

// So many devices on two ranks or more.
std::vector<Sizes> splits(std::size_t devices) {
    if (devices == 2) return {{1, 1}};
    if (devices == 3) return {{1, 2}, {2, 1}, {1, 1, 1}};
    return {{2, 2}, {1, 3}, {3, 1}, {1, 2, 1}, {1, 1, 1, 1}};
}

template <class Net, class Make> void train_alike(std::size_t points, Make make) {
    using Loss = toy::MeanSquare<Real, 3>;
    using Train = Immediately<Net, Loss>;
    Sizes const sizes{13, 7, 13, 1, 13}; // of 7 samples one micro-batch stays empty
    auto const reference = [&](Backward order) {
        return toy::Reference<Net, Loss, Adam>(make(), {}, Adam{1e-2f}, 7, 8, order);
    };
    auto descending = reference(Backward::descending), ascending = reference(Backward::ascending);
    std::vector<double> losses[2];
    for (std::size_t const size : sizes) {
        toy::Data<Real> const data(size, static_cast<std::uint32_t>(size));
        for (auto* plain : {&ascending, &descending})
            if (size == 7) plain->accumulate(data.inputs, data.targets);
        losses[0].push_back(ascending.step(data.inputs, data.targets));
        losses[1].push_back(descending.step(data.inputs, data.targets));
    }
    std::size_t point = 0;
    toy::each_of_catalogue(4, Net::size, 8, [&](gpipe::schedule::Dynamic schedule, std::size_t k) {
        if (k < 2) return;
        for (toy::NamedCheckpointing const& checkpointing : toy::every_checkpointing())
            for (Sizes const& devices : splits(k))
                for (bool const meets : {true, false})
                    for (std::size_t const most : {1, 2, 3}) {
                        if (point++ % toy::one_of(points) != 0) continue;
                        auto o = options<Train>(schedule, k, 8);
                        o.checkpointing = checkpointing.policy;
                        o.finite_gradients = point % 5 == 0;
                        o.debug = point % 3 == 0;
                        std::string ranks;
                        for (std::size_t const d : devices) ranks += std::to_string(d) + " ";
                        INFO(schedule.name(), " of ", schedule.cells_per_device(),
                             " cells per device, ", checkpointing.name, ", ", ranks,
                             "devices on ranks", meets ? ", which meet, " : ", ", most, " steps");
                        auto all =
                            crew<Train>(devices, meets, 1 + point % 3, o, [&](auto const& own) {
                                return std::make_unique<Train>(make(), Loss{}, Adam{1e-2f}, own);
                            });
                        bool const descends = schedule.name() == "GPipe";
                        for (auto const& found : train(all, sizes, most))
                            CHECK(found == losses[descends]);
                        CHECK(toy::difference(all, descends ? descending : ascending) == "");
                        CHECK(all.wire->fault() == "");
                    }
    });
}

} // namespace

TEST_CASE("P1 ranks that update at once train as the plain loop, in every bit, with several steps "
          "under way, whether anything is buffered or not") {
    toy::Watch watch;
    train_alike<toy::Net<Real>>(179, [&] { return toy::make_net<Real>(watch); });
}

TEST_CASE("P1 so they do with skips and ties across ranks") {
    train_alike<toy::SkipNet<Real>>(269, [] { return toy::SkipNet<Real>{}; });
}

TEST_CASE("the first rank begins the next step while the last is not done with this one") {
    using Net = gpipe::Pipeline<toy::FirstToMeet, toy::SecondToMeet>;
    using T = Immediately<Net, toy::MeanSquare<Real, 2>>;
    toy::Overlap meeting{.samples = 13};
    toy::FirstToMeet first;
    first.meeting = &meeting;
    toy::SecondToMeet second;
    second.meeting = &meeting;
    auto o = options<T>(gpipe::schedule::ZeroBubbleH2{}, 2, 4);
    o.checkpointing = gpipe::checkpoint::Never{};
    auto all = crew<T>({1, 1}, false, 1, o, [&](auto const& own) {
        return std::make_unique<T>(Net(first, second), toy::MeanSquare<Real, 2>{}, Adam{}, own);
    });
    std::vector<Real> const data(26, 0.5f);
    all.each([&](std::size_t r) {
        auto one = all[r].start(data, data);
        auto two = all[r].start(data, data); // its forwards let the first step end
        one.result();
        two.result();
    });
    all.rethrow();
    CHECK(meeting.met);
    CHECK(all[0].steps() == 2);
}

namespace {

using Net = toy::Net<Real>;
using Train = Immediately<Net, toy::MeanSquare<Real, 3>>;

toy::Crew<Train> watched(toy::Watch& watch, Sizes const& devices, bool meets) {
    std::size_t cells = 0;
    for (std::size_t const d : devices) cells += d;
    auto o = options<Train>(gpipe::schedule::ZeroBubbleH2{}, cells, 4);
    return crew<Train>(devices, meets, 2, o, [&](auto const& own) {
        return std::make_unique<Train>(toy::make_net<Real>(watch), toy::MeanSquare<Real, 3>{},
                                       Adam{1e-2f}, own);
    });
}

} // namespace

TEST_CASE("P6 a layer that throws before any rank has updated is thrown on all, so is the step "
          "behind it; nothing has changed") {
    toy::Data<Real> const data(8), more(13); // of these the last micro-batch
    for (Sizes const& devices : {Sizes{1, 1}, Sizes{1, 2}, Sizes{2, 1}, Sizes{1, 1, 1}})
        for (bool const meets : {false, true})
            for (std::size_t const layer : {0, 4, 9}) {
                INFO(devices.size(), " ranks, ", devices[0], " devices on the first, layer ",
                     layer);
                toy::Watch watch, calm;
                auto all = watched(watch, devices, meets);
                toy::Plain<Real> plain(toy::make_net<Real>(calm), {}, Adam{1e-2f}, 7, 4,
                                       Backward::ascending);
                CHECK(all.step(data.inputs, data.targets).loss ==
                      plain.step(data.inputs, data.targets));
                watch.faults = {{layer, 10, gpipe::Phase::forward}};
                std::vector<std::string> words(2 * all.ranks());
                all.each([&](std::size_t r) {
                    auto bad = all[r].start(more.inputs, more.targets);
                    auto good = all[r].start(data.inputs, data.targets);
                    words[2 * r] = thrown_by([&] { bad.result(); });
                    words[2 * r + 1] = thrown_by([&] { good.result(); });
                });
                all.rethrow();
                for (std::size_t r = 0; r < all.ranks(); ++r) {
                    INFO("rank ", r, ": ", words[2 * r], "; ", words[2 * r + 1]);
                    CHECK((r == all.rank_of(layer) ? words[2 * r] == "Thrown"
                                                   : has(words[2 * r], "gpipe: on rank ")));
                    CHECK(has(words[2 * r + 1], "the step before this one failed"));
                    CHECK(all[r].steps() == 1);
                }
                watch.faults.clear();
                for (int i = 0; i < 2; ++i)
                    CHECK(all.step(data.inputs, data.targets).loss ==
                          plain.step(data.inputs, data.targets));
                CHECK(toy::difference(all, plain) == "");
            }
}

TEST_CASE("after a step that failed when some ranks had updated, that of all ranks is of no use") {
    toy::Data<Real> const data(8), more(13);
    for (bool const behind : {false, true}) {
        toy::Watch watch;
        auto all = watched(watch, {1, 1}, false);
        all.step(data.inputs, data.targets);
        // The last of all: the first rank has updated, for which it needs nothing of the second.
        watch.faults = {{9, 10, gpipe::Phase::weight_gradient}};
        std::vector<std::string> words(3 * all.ranks());
        all.each([&](std::size_t r) {
            auto bad = all[r].start(more.inputs, more.targets);
            std::optional<Train::Pending> next;
            if (behind) next.emplace(all[r].start(data.inputs, data.targets));
            words[3 * r] = thrown_by([&] { bad.result(); });
            if (behind) words[3 * r + 1] = thrown_by([&] { next->result(); });
            words[3 * r + 2] = thrown_by([&] { all[r].step(data.inputs, data.targets); });
        });
        all.rethrow();
        for (std::size_t r = 0; r < 2; ++r) {
            INFO("rank ", r, ": ", words[3 * r], "; ", words[3 * r + 1], "; ", words[3 * r + 2]);
            CHECK((r == 1 ? words[3 * r] == "Thrown" : has(words[3 * r], "gpipe: on rank 1, ")));
            if (behind) CHECK(has(words[3 * r + 1], "of no use"));
            CHECK(has(words[3 * r + 2], "of no use"));
        }
    }
}

TEST_CASE("P6 a loss, or gradients of all ranks, that are not finite change nothing; nor does the "
          "step behind that") {
    using T = Immediately<Net, toy::Spoils>;
    toy::Data<Real> const data(13);
    for (Real const spoilt : {Real{500}, Real{5000}}) {
        toy::Watch watch, calm;
        auto o = options<T>(gpipe::schedule::OneForwardOneBackward{}, 3, 4);
        o.finite_gradients = true;
        auto all = crew<T>({1, 2}, true, 2, o, [&](auto const& own) {
            return std::make_unique<T>(toy::make_net<Real>(watch), toy::Spoils{}, Adam{1e-2f}, own);
        });
        toy::Reference<Net, toy::Spoils, Adam> plain(toy::make_net<Real>(calm), {}, Adam{1e-2f}, 7,
                                                     4, Backward::ascending);
        toy::Data<Real> broken(13);
        for (Real& target : broken.targets) target = spoilt;
        CHECK(all.step(data.inputs, data.targets).loss == plain.step(data.inputs, data.targets));
        std::vector<std::string> words(2 * all.ranks());
        all.each([&](std::size_t r) {
            auto bad = all[r].start(broken.inputs, broken.targets);
            auto good = all[r].start(data.inputs, data.targets);
            words[2 * r] = thrown_by([&] { bad.result(); });
            words[2 * r + 1] = thrown_by([&] { good.result(); });
        });
        all.rethrow();
        for (std::size_t r = 0; r < all.ranks(); ++r) {
            INFO("rank ", r, ": ", words[2 * r], "; ", words[2 * r + 1]);
            CHECK(
                has(words[2 * r], spoilt > 1000 ? "gradient" : "the loss of micro-batch 0 is inf"));
            CHECK(has(words[2 * r + 1], "the step before this one failed"));
        }
        CHECK(all.evaluate(data.inputs, data.targets).loss ==
              plain.evaluate(data.inputs, data.targets));
        CHECK(all.step(data.inputs, data.targets).loss == plain.step(data.inputs, data.targets));
        CHECK(toy::difference(all, plain) == "");
    }
}

TEST_CASE("who refuses a step while another is under way is lost to the others, who do not wait") {
    toy::Data<Real> const data(8), none(0);
    toy::Watch watch;
    auto all = watched(watch, {1, 1}, false);
    std::vector<std::string> words(2);
    all.each([&](std::size_t r) {
        words[r] = thrown_by([&] { // the first, too, if the other has not begun it
            auto one = all[r].start(data.inputs, data.targets);
            auto const& given = r == 0 ? none : data;
            auto two = all[r].start(given.inputs, given.targets);
            one.result();
            two.result();
        });
    });
    INFO(words[0], "; ", words[1]);
    CHECK(has(words[0], "the mini-batch is empty"));
    CHECK(has(words[1], "rank 0 has refused what it was told while steps were under way"));
}

TEST_CASE("who refuses another call then tells the others, behind the step, and all go on") {
    toy::Data<Real> const data(8), none(0);
    toy::Watch watch, calm;
    toy::Plain<Real> plain(toy::make_net<Real>(calm), {}, Adam{1e-2f}, 7, 4, Backward::ascending);
    auto all = watched(watch, {1, 1}, true);
    std::vector<std::string> words(2);
    std::vector<double> losses(2);
    all.each([&](std::size_t r) {
        auto one = all[r].start(data.inputs, data.targets);
        auto const& given = r == 0 ? none : data;
        words[r] = thrown_by([&] { (void)all[r].evaluate(given.inputs, given.targets); });
        losses[r] = one.result().loss;
    });
    all.rethrow();
    INFO(words[0], "; ", words[1]);
    CHECK(has(words[0], "the mini-batch is empty"));
    CHECK(has(words[1], "gpipe: rank 0 is told to do what it refuses"));
    CHECK(losses == std::vector<double>(2, plain.step(data.inputs, data.targets)));
    CHECK(all.step(data.inputs, data.targets).loss == plain.step(data.inputs, data.targets));
    CHECK(toy::difference(all, plain) == "");
}

namespace {

std::atomic<bool> is_late = false;
// Throws in the last of all calls of a step, when its loss is known to all.
struct Late : toy::Linear<Real, 3, 3> {
    void weight_gradient(auto& ctx, auto x, auto dy) const {
        if (ctx.first_sample() + ctx.samples() == 8 && is_late.exchange(false)) throw toy::Thrown{};
        toy::Linear<Real, 3, 3>::weight_gradient(ctx, x, dy);
    }
};

} // namespace

TEST_CASE(
    "P6 a step behind one that failed when its loss was committed, and nobody had anything to "
    "update, is committed nowhere") {
    using Alone = gpipe::Pipeline<Late, toy::Tanh<Real, 3>>;
    using T = Immediately<Alone, toy::MeanSquare<Real, 3>>;
    auto o = options<T>(gpipe::schedule::ZeroBubbleH1{}, 2, 4);
    auto all = crew<T>({1, 1}, false, 1, o, [](auto const& own) {
        return std::make_unique<T>(Alone{}, toy::MeanSquare<Real, 3>{}, Adam{1e-2f}, own);
    });
    toy::Reference<Alone, toy::MeanSquare<Real, 3>, Adam> plain({}, {}, Adam{1e-2f}, 7, 4,
                                                                Backward::ascending);
    std::vector<Real> const data(24, 0.5f);
    CHECK(all.step(data, data).loss == plain.step(data, data));
    is_late = true;
    std::vector<std::string> words(4);
    all.each([&](std::size_t r) {
        auto bad = all[r].start(data, data);
        auto good = all[r].start(data, data);
        std::this_thread::sleep_for(std::chrono::milliseconds(100)); // both are walked by then
        words[2 * r] = thrown_by([&] { bad.result(); });
        words[2 * r + 1] = thrown_by([&] { good.result(); });
    });
    all.rethrow();
    CHECK(words[0] == "Thrown");
    CHECK(has(words[2], "gpipe: on rank 0, layer 0"));
    for (std::size_t r : {0, 1}) CHECK(has(words[2 * r + 1], "the step before this one failed"));
    CHECK(all.step(data, data).loss == plain.step(data, data));
    CHECK(toy::difference(all, plain) == "");
}
