// Ranks: machines for some devices of a pipeline each, joined by messages.
#include "support/ranks.hpp"
#include "support/fragile.hpp"
#include "support/net.hpp"
#include "support/skip_layers.hpp"
#include "support/timeline_entries.hpp"

#include <gpipe/check_gradients.hpp>
#include <gpipe/trace/text.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <exception>
#include <functional>
#include <iterator>
#include <limits>
#include <memory>
#include <numeric>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {

using gpipe::Adam;
using gpipe::device::Host;
using toy::Backward;
using toy::Fault;
using toy::Phase;

using Real = float;
using Loss = toy::MeanSquare<Real, 3>;
constexpr std::size_t L = toy::layers<Real>;
using Sizes = std::vector<std::size_t>;

template <class T> typename T::Options options(std::size_t cells, std::size_t micro_batches) {
    typename T::Options o;
    o.samples = 13;
    o.seed = 7;
    o.cells = cells;
    o.micro_batches = micro_batches;
    return o;
}

// Of Net: as one, with these devices on each rank. What they all have is made by make().
template <class T, class Make>
toy::Crew<T> crew(Sizes const& devices, bool meets, std::size_t threads,
                  typename T::Options const& o, Make make) {
    return {devices, meets, threads, [&](std::size_t, toy::Rank::Options device) {
                auto own = o;
                own.device = device;
                return std::unique_ptr<T>(new T(make(), {}, Adam{1e-2f}, own));
            }};
}

// What the plain loop does over mini-batches of some sizes; an evaluation goes before every step,
// and before the second a part of its mini-batch.
template <class Net> struct Expected {
    toy::Reference<Net, Loss, Adam> plain;
    Sizes sizes;
    std::vector<double> losses;

    Expected(Net net, std::size_t micro_batches, Backward order, Sizes all)
        : plain(std::move(net), {}, Adam{1e-2f}, 7, micro_batches, order), sizes(std::move(all)) {
        for (std::size_t const size : sizes) {
            toy::Data<Real> const data(size, static_cast<std::uint32_t>(size));
            if (losses.size() == 1) plain.accumulate(data.inputs, data.targets);
            losses.push_back(plain.step(data.inputs, data.targets));
        }
    }
    template <class Crew> std::string differs(Crew& crew) {
        for (std::size_t i = 0; i < sizes.size(); ++i) {
            toy::Data<Real> const data(sizes[i], static_cast<std::uint32_t>(sizes[i]));
            if (i == 1) crew.accumulate(data.inputs, data.targets);
            (void)crew.evaluate(data.inputs, data.targets);
            if (crew.step(data.inputs, data.targets).loss != losses[i])
                return "the loss of step " + std::to_string(i);
        }
        toy::Data<Real> const data(5, 99);
        if (crew.evaluate(data.inputs, data.targets).loss !=
            plain.evaluate(data.inputs, data.targets))
            return "the loss of an evaluation";
        return toy::difference(crew, plain);
    }
};

// So many devices on two ranks or more.
std::vector<Sizes> splits(std::size_t devices) {
    if (devices == 2) return {{1, 1}};
    if (devices == 3) return {{1, 2}, {2, 1}, {1, 1, 1}};
    return {{2, 2}, {1, 3}, {3, 1}, {1, 2, 1}, {1, 1, 1, 1}};
}
std::string describe(Sizes const& devices) {
    std::string text;
    for (std::size_t const d : devices) text += std::to_string(d) + " ";
    return text + "devices on ranks";
}

// Every schedule there is, with K from 2 to 4, over ranks; one way of so many.
template <class Net, class Make> void train_alike(std::size_t points, Make make) {
    using Train = toy::Training<Net, Loss, Adam, toy::Rank>;
    Sizes const sizes{13, 7, 13}; // of 7 samples one micro-batch stays empty
    Expected<Net> descending(make(), 8, Backward::descending, sizes);
    Expected<Net> ascending(make(), 8, Backward::ascending, sizes);
    std::size_t point = 0, trained = 0, messages = 0;
    toy::each_of_catalogue(4, Net::size, 8, [&](gpipe::schedule::Dynamic schedule, std::size_t k) {
        if (k < 2) return;
        for (toy::NamedCheckpointing const& checkpointing : toy::every_checkpointing())
            for (Sizes const& devices : splits(k))
                for (bool const meets : {true, false}) {
                    if (point++ % toy::one_of(points) != 0) continue;
                    auto o = options<Train>(k, 8);
                    o.schedule = schedule;
                    o.checkpointing = checkpointing.policy;
                    o.debug = trained % 5 == 0;
                    INFO(schedule.name(), " of ", schedule.cells_per_device(),
                         " cells per device, ", checkpointing.name, ", ", describe(devices),
                         meets ? ", which meet" : "");
                    auto all = crew<Train>(devices, meets, 1 + point % 3, o, make);
                    bool const descends = schedule.name() == "GPipe";
                    CHECK((descends ? descending : ascending).differs(all) == "");
                    messages += all.wire->messages;
                    ++trained;
                }
    });
    MESSAGE(trained << " trainings, " << messages << " messages");
}

} // namespace

TEST_CASE("P1 ranks that share no memory train as the plain loop, in every bit, under every "
          "schedule and checkpointing, whether anything is buffered or not") {
    toy::Watch watch;
    train_alike<toy::Net<Real>>(61, [&] { return toy::make_net<Real>(watch); });
}

TEST_CASE("P1 skips and ties across ranks, too") {
    train_alike<toy::SkipNet<Real>>(89, [] { return toy::SkipNet<Real>{}; });
}

namespace {

using Train = toy::Train<Real, toy::Rank>;
constexpr std::size_t N = 7, M = 3; // micro-batches of 3, 2 and 2 samples

Train::Options faulty_options(std::size_t cells, gpipe::schedule::Dynamic schedule,
                              gpipe::checkpoint::Dynamic checkpointing) {
    auto o = options<Train>(cells, M);
    o.schedule = schedule;
    o.checkpointing = checkpointing;
    return o;
}
toy::Crew<Train> watched_crew(toy::Watch& watch, Sizes const& devices, bool meets,
                              std::size_t threads, Train::Options const& o) {
    return {devices, meets, threads, [&](std::size_t, toy::Rank::Options device) {
                auto own = o;
                own.device = device;
                return std::make_unique<Train>(toy::make_net<Real>(watch), Loss{&watch},
                                               Adam{1e-2f}, own);
            }};
}

// Parameters and optimizer state of all ranks, every byte.
template <class T> std::vector<std::byte> state_of(toy::Crew<T>& crew) {
    std::vector<std::byte> bytes;
    for (std::size_t r = 0; r < crew.ranks(); ++r)
        for (std::size_t d = 0; d < crew[r].devices(); ++d) {
            auto const arena = crew[r].arena(d);
            if (arena.empty()) continue;
            auto const& plan = crew[r].plan().devices[d];
            for (auto const& [from, size] : {std::pair{std::size_t{0}, plan.parameters},
                                             {plan.parameters + plan.gradients, plan.optimizer}}) {
                auto const part = arena.subspan(from, size);
                bytes.insert(bytes.end(), part.begin(), part.end());
            }
        }
    return bytes;
}

// A step that must throw what the watch was told to, on the rank that has the layer, and that it
// did on all others; what goes wrong, or nothing.
std::string fails_rightly(toy::Crew<Train>& crew, toy::Watch const& watch,
                          toy::Data<Real> const& data, Fault const& fault) {
    crew.each([&](std::size_t r) { crew[r].step(data.inputs, data.targets); });
    std::size_t const owner = crew.rank_of(std::min(fault.layer, L - 1));
    for (std::size_t r = 0; r < crew.ranks(); ++r) {
        if (!crew.errors[r]) return "nothing was thrown";
        if (!crew[r].failure()) return "no failure()";
        gpipe::Failure const& f = *crew[r].failure();
        if (f.place() != crew[owner].failure()->place()) return "another place: " + f.place();
        if (f.layer != std::min(fault.layer, L)) return "layer " + std::to_string(f.layer);
        try {
            std::rethrow_exception(crew.errors[r]);
        } catch (toy::Thrown const& thrown) {
            if (r != owner) return "thrown elsewhere";
            if (thrown.at != fault || thrown.token != watch.token) return "another failure";
        } catch (gpipe::RankError const& error) {
            if (r == owner) return "not what was thrown";
            if (std::string(error.what()) != "gpipe: on rank " + std::to_string(owner) + ", " +
                                                 f.place() + ": what it threw is no std::exception")
                return error.what();
        } catch (...) {
            return "something else was thrown";
        }
    }
    return crew.wire->fault();
}

} // namespace

TEST_CASE("P6 whatever throws on a rank arrives there as it was thrown, on all others with its "
          "place, changes nothing, and training goes on as if nothing had happened") {
    std::size_t point = 0, faults = 0;
    std::vector<toy::NamedSchedule> schedules(std::begin(toy::schedules), std::end(toy::schedules));
    schedules.push_back({"ZeroBubbleV", gpipe::schedule::ZeroBubbleV{}, Backward::ascending});
    for (toy::NamedSchedule const& schedule : schedules)
        for (toy::NamedCheckpointing const& checkpointing : toy::every_checkpointing())
            for (Sizes const& devices : splits(4)) {
                if (point++ % toy::one_of(37) != 0) continue;
                INFO(schedule.name, ", ", checkpointing.name, ", ", describe(devices));
                toy::Watch watch, other;
                auto crew = watched_crew(watch, devices, point % 2 == 0, 1 + point % 3,
                                         faulty_options(4, schedule.policy, checkpointing.policy));
                toy::Plain<Real> plain(toy::make_net<Real>(other), {}, Adam{1e-2f}, 7, M,
                                       schedule.order);
                toy::Data<Real> const data(N);
                watch.logs = true;
                CHECK(crew.step(data.inputs, data.targets).loss ==
                      plain.step(data.inputs, data.targets));
                watch.logs = false;
                auto const calls = watch.log();
                CHECK(calls.size() >= 2 * L * M + M);
                auto const before = state_of(crew);
                for (toy::Call const& call : calls) {
                    if (point++ % 5 != 0) continue;
                    Fault const fault{call.layer, call.first_sample, call.phase};
                    watch.faults = {fault};
                    INFO("layer ", fault.layer, ", first sample ", fault.first_sample, ", phase ",
                         static_cast<int>(fault.phase));
                    CHECK(fails_rightly(crew, watch, data, fault) == "");
                    CHECK((state_of(crew) == before));
                    ++faults;
                }
                watch.faults.clear();
                for (int step = 0; step < 2; ++step) {
                    CHECK(crew.step(data.inputs, data.targets).loss ==
                          plain.step(data.inputs, data.targets));
                    CHECK(toy::difference(crew, plain) == "");
                    for (std::size_t r = 0; r < crew.ranks(); ++r) {
                        CHECK(!crew[r].failure());
                        CHECK(crew[r].steps() == static_cast<std::size_t>(step) + 2);
                    }
                }
            }
    MESSAGE(faults << " faults");
}

TEST_CASE("P6 of several failures on several ranks the first in the programs' order is told, "
          "whatever the timing") {
    toy::Watch watch;
    auto crew =
        watched_crew(watch, {1, 2, 1}, false, 2,
                     faulty_options(4, toy::schedules[0].policy, gpipe::checkpoint::Never{}));
    toy::Data<Real> const data(N);
    // The last cell's forward of micro-batch 0 stands before the first cell's of micro-batch 2 does
    // not: of equal steps the lower cell is first. So it is that of micro-batch 0 in cell 1.
    watch.faults = {{0, 5, Phase::forward}, {3, 0, Phase::forward}, {L - 1, 3, Phase::forward}};
    for (std::size_t n = 0; n < (toy::long_tests() ? 2000 : 100); ++n)
        CHECK(fails_rightly(crew, watch, data, {3, 0, Phase::forward}) == "");
    // What throws in an evaluation, likewise.
    watch.faults = {{2, 3, Phase::evaluate}};
    crew.each([&](std::size_t r) { crew[r].evaluate(data.inputs, data.targets); });
    for (std::size_t r = 0; r < crew.ranks(); ++r) {
        REQUIRE(crew.errors[r]);
        CHECK(crew[r].failure()->layer == 2);
    }
    // There nothing comes back to the first rank: two ranks know a failure each.
    watch.faults = {{0, 5, Phase::evaluate}, {3, 0, Phase::evaluate}};
    crew.each([&](std::size_t r) { crew[r].evaluate(data.inputs, data.targets); });
    for (std::size_t r = 0; r < crew.ranks(); ++r) {
        REQUIRE(crew.errors[r]);
        CHECK(crew[r].failure()->layer == 3);
    }
    watch.faults.clear();
    CHECK(crew.step(data.inputs, data.targets).loss > 0);
}

namespace {

// Of one machine, as difference() asks a plain loop.
template <class T> struct Bytes {
    T& train;
    std::vector<std::byte> parameter(std::size_t layer, std::size_t t) const {
        auto const all = train.template parameter<std::byte>(layer, t);
        return {all.begin(), all.end()};
    }
    std::vector<std::byte> gradient(std::size_t layer, std::size_t t) const {
        auto const all = train.template gradient<std::byte>(layer, t);
        return {all.begin(), all.end()};
    }
};

} // namespace

TEST_CASE("P1 the norm of gradients on all ranks is that of one machine's; what is not finite is "
          "told on all ranks, and nothing has changed") {
    using Single = toy::Train<Real, Host>;
    for (Sizes const& devices : splits(4)) {
        INFO(describe(devices));
        toy::Watch watch;
        auto o = options<Train>(4, 4);
        auto single = options<Single>(4, 4);
        o.clip_norm = single.clip_norm = 0.5;
        auto all = crew<Train>(devices, true, 2, o, [&] { return toy::make_net<Real>(watch); });
        Single train(toy::make_net<Real>(watch), {}, Adam{1e-2f}, single);
        toy::Data<Real> data(13);
        for (int n = 0; n < 3; ++n) {
            auto const expected = train.step(data.inputs, data.targets);
            auto const found = all.step(data.inputs, data.targets);
            CHECK(found.loss == expected.loss);
            CHECK(found.metric == expected.metric);
            CHECK(found.gradient_norm == expected.gradient_norm);
            CHECK(expected.gradient_norm > 0.5);
        }
        CHECK(toy::difference(all, Bytes<Single>{train}) == "");
        auto const before = state_of(all);
        for (bool const target : {true, false}) {
            toy::Data<Real> wrong = data;
            (target ? wrong.targets : wrong.inputs)[7] = std::numeric_limits<Real>::infinity();
            std::string words;
            try {
                train.step(wrong.inputs, wrong.targets);
            } catch (std::domain_error const& error) {
                words = error.what();
            }
            all.each([&](std::size_t r) { all[r].step(wrong.inputs, wrong.targets); });
            for (std::exception_ptr const& error : all.errors) {
                REQUIRE(error);
                CHECK_THROWS_WITH_AS(std::rethrow_exception(error), words.c_str(),
                                     std::domain_error);
            }
            CHECK((state_of(all) == before));
        }
        CHECK(all.step(data.inputs, data.targets).loss ==
              train.step(data.inputs, data.targets).loss);
        auto const means = [&](auto& one) {
            return one.compute_gradients(data.inputs, data.targets);
        };
        CHECK(all.all(means).loss == means(train).loss);
        CHECK(toy::difference(all, Bytes<Single>{train}) == "");
    }
}

namespace {

using FragileTrain =
    gpipe::Training<gpipe::Pipeline<toy::Factor, toy::Factor, toy::Factor>, gpipe::Cells<3>,
                    gpipe::MicroBatches<2>, gpipe::Loss<toy::MeanSquare<float, 2>>,
                    gpipe::Optimizer<toy::Descend>, gpipe::schedule::GPipeAscending, toy::Wired>;

std::vector<float> parameters(toy::Crew<FragileTrain>& crew) {
    std::vector<float> all;
    for (std::size_t layer = 0; layer < 3; ++layer)
        for (std::size_t t = 0; t < 2; ++t) {
            std::vector<toy::Fragile> values(t == 0 ? 2 : 1);
            crew.read_parameter(layer, t, std::span<toy::Fragile>(values));
            for (toy::Fragile const& v : values) all.push_back(v.value);
        }
    return all;
}

} // namespace

TEST_CASE("what throws at the end of a step surfaces on all ranks: before the commit nothing has "
          "changed, behind it all are of no use") {
    std::vector<float> const x{1, -2, 0.5f, 1}, target{2, 1, 0, -1};
    std::size_t unchanged = 0, torn = 0;
    int const operations = 3 * (3 + 3); // converted for the norm, then multiplied
    for (int n = 0; n < operations; ++n) {
        INFO("operation ", n);
        toy::Fragile::left = -1;
        toy::Crew<FragileTrain> crew({1, 2}, n % 2 == 0, 2, [](std::size_t, auto device) {
            FragileTrain::Options o;
            o.samples = 2;
            o.clip_norm = 1e6; // wants the norm
            o.device = device;
            return std::make_unique<FragileTrain>(
                gpipe::Pipeline<toy::Factor, toy::Factor, toy::Factor>{},
                toy::MeanSquare<float, 2>{}, toy::Descend{}, o);
        });
        auto const before = parameters(crew);
        toy::Fragile::left = n;
        crew.each([&](std::size_t r) { crew[r].step(x, target); });
        toy::Fragile::left = -1;
        std::size_t thrown = 0;
        for (std::size_t r = 0; r < 2; ++r) {
            REQUIRE(crew.errors[r]);
            REQUIRE(crew[r].failure());
            CHECK(crew[r].failure()->place() == crew[0].failure()->place());
            CHECK(crew[r].steps() == 0);
            try {
                std::rethrow_exception(crew.errors[r]);
            } catch (toy::Broken const&) {
                ++thrown;
            } catch (gpipe::RankError const&) {
            }
        }
        CHECK(thrown == 1);
        CHECK(crew.wire->fault() == "");
        bool const early = crew[0].failure()->of == gpipe::FailureOf::gradient;
        crew.each([&](std::size_t r) { crew[r].step(x, target); });
        for (std::exception_ptr const& error : crew.errors) {
            if (early) {
                CHECK(!error);
                continue;
            }
            REQUIRE(error);
            CHECK_THROWS_WITH_AS(std::rethrow_exception(error), doctest::Contains("of no use"),
                                 std::runtime_error);
        }
        (early ? unchanged : torn)++;
        if (early) CHECK(parameters(crew) != before);
    }
    CHECK(unchanged == 9);
    CHECK(torn == 9);
}

TEST_CASE(
    "P7 O6 nobody waits for a rank that is gone, before a step begins or in the midst of it") {
    toy::Data<Real> const data(N);
    for (std::size_t const gone : Sizes{0, 1, 2})
        for (bool const midst : {false, true}) {
            INFO("rank ", gone, ", in the midst: ", midst);
            toy::Watch watch;
            auto crew = watched_crew(
                watch, {1, 2, 1}, true, 2,
                faulty_options(4, toy::schedules[2].policy, gpipe::checkpoint::Always{}));
            crew.step(data.inputs, data.targets);
            if (midst)
                crew[gone].on_action([&](gpipe::ActionEvent const& event) {
                    if (event.action.micro_batch == 1) crew.wire->leave(gone);
                });
            for (int again = 0; again < 2; ++again) {
                crew.each([&](std::size_t r) {
                    if (r == gone && !midst) return crew.wire->leave(r);
                    crew[r].step(data.inputs, data.targets);
                });
                for (std::size_t r = 0; r < crew.ranks(); ++r) {
                    if (r == gone) continue;
                    REQUIRE(crew.errors[r]);
                    CHECK_THROWS_WITH_AS(std::rethrow_exception(crew.errors[r]),
                                         doctest::Contains("is gone"), std::runtime_error);
                }
            }
        }
}

namespace {

// One that may not begin.
struct Reluctant : toy::Linear<Real, 3, 3> {
    bool throws = false;
    void initialize(auto& ctx) const {
        if (throws) throw std::runtime_error("a layer's own words");
        toy::Linear<Real, 3, 3>::initialize(ctx);
    }
};

} // namespace

TEST_CASE("what a constructor throws on some ranks all hear of at once, in the words of the first, "
          "and they can be made all the same then") {
    using Net = gpipe::Pipeline<Reluctant, Reluctant, Reluctant>;
    using T =
        gpipe::Training<Net, gpipe::Cells<gpipe::dynamic>, gpipe::MicroBatches<gpipe::dynamic>,
                        gpipe::Loss<Loss>, gpipe::Optimizer<Adam>, toy::Wired>;
    // What is thrown before a rank has devices, with them, and with channels between them.
    struct Way {
        std::size_t samples;
        bool begins;
        char const* words;
    };
    for (Way const way : {Way{0, true, "memory is planned for, is zero"},
                          Way{~std::size_t{0} / 4, true, "more bytes than memory has addresses"},
                          Way{N, false, "a layer's own words"}})
        for (std::size_t const first : Sizes{0, 1, 2})
            for (std::size_t const second : Sizes{first, (first + 1) % 3}) {
                INFO(way.words, ", ranks ", first, " and ", second);
                auto const wire = std::make_shared<toy::Wire>(3, true);
                std::vector<std::unique_ptr<toy::Station>> stations;
                for (std::size_t r = 0; r < 3; ++r)
                    stations.push_back(std::make_unique<toy::Station>(wire, r));
                std::vector<std::unique_ptr<T>> all(3);
                std::vector<std::string> words(3);
                auto const make = [&](std::size_t r, bool fails) {
                    auto o = options<T>(3, 4);
                    Reluctant layer;
                    if (fails) {
                        o.samples = way.samples;
                        layer.throws = !way.begins;
                    }
                    o.device = toy::Rank::Options{{1}, stations[r].get(), 1};
                    all[r] = std::make_unique<T>(Net{layer, layer, layer}, Loss{}, Adam{}, o);
                };
                auto const each = [&](auto f) {
                    std::vector<std::thread> threads;
                    for (std::size_t r = 0; r < 3; ++r) threads.emplace_back([&, r] { f(r); });
                    for (std::thread& thread : threads) thread.join();
                };
                each([&](std::size_t r) {
                    try {
                        make(r, r == first || r == second);
                    } catch (gpipe::RankError const& error) {
                        words[r] = std::string("told: ") + error.what();
                    } catch (std::exception const& error) {
                        words[r] = error.what();
                    }
                });
                std::string const told = "told: gpipe: on rank " +
                                         std::to_string(std::min(first, second)) +
                                         ", in a constructor: ";
                for (std::size_t r = 0; r < 3; ++r) {
                    INFO("rank ", r, ": ", words[r]);
                    CHECK(!all[r]);
                    bool const own = r == first || r == second;
                    CHECK(words[r].find(way.words) != std::string::npos);
                    CHECK((words[r].find("told: ") == 0) == !own);
                    if (!own) CHECK(words[r].find(told) == 0);
                }
                each([&](std::size_t r) { make(r, false); });
                for (auto const& train : all) CHECK(train->steps() == 0);
            }
}

TEST_CASE("ranks that are told different things are refused on all, before anything is done") {
    toy::Data<Real> const data(N), other(N - 1), two(2 * N);
    toy::Watch watch;
    auto const o = faulty_options(4, toy::schedules[2].policy, gpipe::checkpoint::Always{});
    auto crew = watched_crew(watch, {1, 2, 1}, true, 2, o);
    auto alike = watched_crew(watch, {1, 2, 1}, true, 2, o);
    std::vector<Real> outputs(N * 3);
    std::function<void(Train&)> const different[] = {
        [&](Train& train) { train.accumulate(data.inputs, data.targets); },
        [&](Train& train) { train.compute_gradients(data.inputs, data.targets); },
        [&](Train& train) { train.evaluate(data.inputs, data.targets); },
        [&](Train& train) { train.predict(data.inputs, outputs); },
        [&](Train& train) { train.step(other.inputs, other.targets); },
        [&](Train& train) { train.evaluate(two.inputs, two.targets); }}; // in two parts
    std::string const words[] = {"accumulate 7 samples", "compute the gradients of 7 samples",
                                 "evaluate 7 samples",   "predict from 7 samples",
                                 "train on 6 samples",   "evaluate 14 samples"};
    for (std::size_t const odd : Sizes{0, 1, 2})
        for (std::size_t i = 0; i < std::size(different); ++i) {
            INFO("rank ", odd, ": ", words[i]);
            crew.each([&](std::size_t r) {
                if (r == odd) return different[i](crew[r]);
                crew[r].step(data.inputs, data.targets);
            });
            // Rank 2 compares.
            std::string const rest = "train on 7 samples",
                              after = " after " + std::to_string(alike[0].steps()) +
                                      " steps of seed " + std::to_string(o.seed);
            std::string const sentence = "gpipe: rank " + std::to_string(odd == 2 ? 0 : odd) +
                                         " is told to " + (odd == 2 ? rest : words[i]) + after +
                                         ", but rank 2 to " + (odd == 2 ? words[i] : rest) + after +
                                         ": all have to be told the same";
            for (std::exception_ptr const& error : crew.errors) {
                REQUIRE(error);
                CHECK_THROWS_WITH_AS(std::rethrow_exception(error), sentence.c_str(),
                                     std::invalid_argument);
            }
            CHECK(crew.step(data.inputs, data.targets).loss ==
                  alike.step(data.inputs, data.targets).loss);
        }
    // What one refuses by itself the others do not wait for, nor take the next call for it.
    std::function<void(Train&)> const refused[] = {
        [&](Train& train) { train.step(two.inputs, two.targets); },
        [&](Train& train) { train.accumulate(data.inputs, other.targets); },
        [&](Train& train) { train.compute_gradients(two.inputs, two.targets); },
        [&](Train& train) { train.evaluate(data.inputs, other.targets); },
        [&](Train& train) { train.predict(other.inputs, outputs); }};
    for (std::size_t const odd : Sizes{0, 1, 2, 3})
        for (auto const& refuse : refused) {
            crew.each([&](std::size_t r) {
                if (r == odd || odd == 3) return refuse(crew[r]);
                crew[r].step(data.inputs, data.targets);
            });
            for (std::size_t r = 0; r < 3; ++r) {
                REQUIRE(crew.errors[r]);
                std::string const said = gpipe::detail::what_of(crew.errors[r]);
                bool const told = said.find("to do what it refuses") != std::string::npos;
                CHECK(told == (r != odd && odd != 3));
            }
            CHECK(crew.step(data.inputs, data.targets).loss ==
                  alike.step(data.inputs, data.targets).loss);
        }
    std::vector<double> own, expected;
    toy::add_state<toy::Net<Real>>(crew, own);
    toy::add_state<toy::Net<Real>>(alike, expected);
    CHECK((own == expected));
    // One has seen another part of the mini-batch.
    crew.accumulate(data.inputs, data.targets);
    crew[1].forget_accumulated();
    crew.each([&](std::size_t r) { crew[r].step(data.inputs, data.targets); });
    CHECK_THROWS_WITH_AS(crew.rethrow(), doctest::Contains("train on 7 samples behind 7 after"),
                         std::invalid_argument);
}

namespace {

// The step is refused with these words on all ranks, and nothing has happened.
template <class Crew> void check_refused(Crew& crew, char const* words) {
    toy::Data<Real> const data(N);
    std::uint64_t const steps = crew[0].steps();
    crew.each([&](std::size_t r) { crew[r].step(data.inputs, data.targets); });
    for (std::exception_ptr const& error : crew.errors) {
        REQUIRE(error);
        CHECK_THROWS_WITH_AS(std::rethrow_exception(error), words, std::invalid_argument);
    }
    CHECK(crew[1].steps() == steps);
}

} // namespace

TEST_CASE("ranks whose optimizers are told different rates are refused on all, and train on once "
          "they are not") {
    toy::Watch watch;
    auto const o = faulty_options(4, toy::schedules[2].policy, gpipe::checkpoint::Always{});
    auto crew = watched_crew(watch, {1, 2, 1}, true, 2, o);
    toy::Data<Real> const data(N);
    crew.step(data.inputs, data.targets);
    crew.each([&](std::size_t r) { crew[r].accumulate(data.inputs, data.targets); });
    crew[1].optimizer().learning_rate = 0.5f;
    check_refused(crew, "gpipe: rank 1 is told to train with learning rate 0.5, but rank 2 with "
                        "0.01: all have to be told the same");
    crew[1].optimizer().learning_rate = std::nextafter(1e-2f, 1.0f);
    check_refused(crew,
                  "gpipe: rank 1 is told to train with learning rate 0.010000000707805157, but "
                  "rank 2 with 0.0099999997764825821: all have to be told the same");
    crew.evaluate(data.inputs, data.targets); // which needs none
    crew[1].optimizer().learning_rate = 1e-2f;
    for (std::size_t r = 0; r < 3; ++r)
        CHECK(crew[r].accumulated() == N); // as nothing has happened
    crew.step(data.inputs, data.targets);
    for (std::size_t r = 0; r < 3; ++r) CHECK(crew[r].accumulated() == 0);
    for (std::size_t r = 0; r < 3; ++r) crew[r].optimizer().learning_rate = NAN;
    check_refused(crew, "gpipe: the optimizer's learning_rate is nan, and has to be finite");
    for (std::size_t r = 0; r < 3; ++r) crew[r].optimizer().learning_rate = 1e-2f;
    crew.step(data.inputs, data.targets);
    for (std::size_t r = 0; r < 3; ++r) crew[r].optimizer().weight_decay = HUGE_VALF;
    check_refused(crew, "gpipe: the optimizer's weight_decay is inf, and has to be finite");
    for (std::size_t r = 0; r < 3; ++r) crew[r].optimizer().weight_decay = 0;
    crew[0].optimizer().weight_decay = 0.5f;
    char const* const others =
        "gpipe: the optimizer of rank 0 is another, or has another weight "
        "decay or other numbers or groups, than that of rank 2: all have to be told "
        "the same";
    check_refused(crew, others);
    for (std::size_t r : {1, 2}) crew[r].optimizer().weight_decay = 0.5f;
    crew.step(data.inputs, data.targets);
}

namespace {

struct NoNumbers {
    static constexpr std::size_t states = 0;
};

} // namespace

TEST_CASE("what groups say, and which optimizer was chosen, is compared, too") {
    auto const told = []<class O>(O const& optimizer) {
        return gpipe::detail::told_rates<O>(&optimizer);
    };
    gpipe::Grouped<gpipe::AdamW> grouped;
    CHECK(told(grouped).learning_rate == double{gpipe::AdamW{}.learning_rate});
    std::vector<gpipe::ToldRates> all{told(grouped)};
    auto const differs = [&](auto const& optimizer) {
        all.push_back(told(optimizer));
        CHECK(std::count(all.begin(), all.end(), all.back()) == 1);
    };
    grouped.groups[3].rate = 0.5f;
    differs(grouped);
    std::swap(grouped.groups[3], grouped.groups[4]);
    differs(grouped);
    grouped.groups[4].first_layer = 1;
    differs(grouped);
    grouped.groups[4].last_layer = 2;
    differs(grouped);
    grouped.groups[4].tensor = 0;
    differs(grouped);
    grouped.groups[4].decay = 2;
    differs(grouped);
    grouped.groups[4].type = 3;
    differs(grouped);
    auto more = grouped;
    more.beta1 = 0.5f;
    differs(more);
    using Chosen = gpipe::optimizer::OneOf<gpipe::RMSProp, gpipe::Adam>;
    differs(Chosen{gpipe::RMSProp{}});
    differs(Chosen{gpipe::Adam{}}); // as many states, the same rate and decay
    gpipe::Grouped<Chosen> both{gpipe::Adam{}};
    differs(both);
    both.groups[0].rate = 0;
    differs(both);
    CHECK(told(NoNumbers{}) == told(NoNumbers{}));
    CHECK(told(gpipe::SGD{.learning_rate = NAN}) == told(gpipe::SGD{.learning_rate = NAN}));
}

TEST_CASE("an output is written where the last cell is") {
    toy::Watch watch;
    auto o = options<Train>(4, 4);
    auto all = crew<Train>({3, 1}, true, 2, o, [&] { return toy::make_net<Real>(watch); });
    toy::Train<Real, Host> train(toy::make_net<Real>(watch), {}, Adam{1e-2f},
                                 options<toy::Train<Real, Host>>(4, 4));
    toy::Data<Real> const data(17); // more than a mini-batch
    std::vector<Real> expected(17 * 3), found(17 * 3), other(17 * 3);
    train.predict(data.inputs, expected);
    all.each([&](std::size_t r) { all[r].predict(data.inputs, r == 1 ? found : other); });
    CHECK(found == expected);
    CHECK(other == std::vector<Real>(17 * 3));
}

TEST_CASE("all ranks show what all have run, each action after those that it needs, and one plan") {
    toy::Watch watch;
    for (Sizes const& devices : {Sizes{3, 1}, Sizes{1, 1, 2}}) {
        auto all = crew<Train>(devices, true, 2, options<Train>(4, 4),
                               [&] { return toy::make_net<Real>(watch); });
        toy::Data<Real> const data(13);
        for (std::size_t r = 0; r < all.ranks(); ++r) all[r].time_actions();
        all.step(data.inputs, data.targets);
        std::vector<gpipe::Timeline> shown(all.ranks());
        all.each([&](std::size_t r) { shown[r] = all[r].timeline("all"); });
        gpipe::Timeline const& timeline = shown[0];
        gpipe::Programs const& programs = all[0].programs();
        REQUIRE(toy::entries_of_cells(timeline) == programs.size());
        CHECK(toy::entries_of(timeline, gpipe::Kind::commit).size() == all.ranks());
        for (auto const& update : toy::entries_of(timeline, gpipe::Kind::update))
            CHECK(update.start >= timeline.makespan()); // some clocks are of one host
        std::size_t lanes = 0, noted = 0;
        std::vector<std::size_t> first_lane; // by device: of its rank
        for (std::size_t r = 0; r < all.ranks(); ++r) {
            CHECK(!all.errors[r]);
            CHECK(gpipe::trace::text(shown[r]) == gpipe::trace::text(timeline));
            CHECK(all[r].summary() == all[0].summary());
            CHECK(all[r].lanes() == std::min<std::size_t>(devices[r], 2));
            first_lane.insert(first_lane.end(), devices[r], lanes);
            lanes += all[r].lanes();
            for (gpipe::ActionTime const& time : all[r].times())
                noted += time.ran && !gpipe::is_transfer(time.action.kind);
        }
        CHECK(noted == programs.size()); // each by one of them
        CHECK(timeline.memory().size() == 4);
        auto const of = [&](gpipe::Action const& action) {
            std::size_t i = 0;
            while (!(timeline[i].action == action)) ++i;
            return timeline[i];
        };
        for (std::uint32_t c = 0; c < 4; ++c)
            for (std::uint32_t m = 0; m < 4; ++m) {
                auto const here = of(gpipe::forward(c, m));
                CHECK(here.start >= 0);
                CHECK(here.device == c);
                CHECK(here.lane >= first_lane[c]);
                CHECK(here.lane < first_lane[c] + all.of(all[0].plan().first[c]).lanes());
                if (c > 0) CHECK(of(gpipe::forward(c - 1, m)).end <= here.start);
                if (c > 0)
                    CHECK(of(gpipe::backward(c, m)).end <= of(gpipe::backward(c - 1, m)).start);
            }
    }
}

TEST_CASE("a timeline of ranks of which not all have timed their actions is refused by all") {
    toy::Watch watch;
    toy::Data<Real> const data(13);
    std::string const sentence = " has called time_actions() before the step that timeline() is "
                                 "for, and rank ";
    // By rank: before the step, or after it.
    for (auto const& [before, after, said] :
         {std::tuple(1, -1, "gpipe: rank 1" + sentence + "0 has not: all ranks call it"),
          std::tuple(0, 1, "gpipe: rank 0" + sentence + "1 has not: all ranks call it"),
          std::tuple(-1, 1,
                     std::string("gpipe: there is no timed run to show: call "
                                 "time_actions() before the step that timeline() is for"))}) {
        auto all = crew<Train>({2, 1, 1}, true, 2, options<Train>(4, 4),
                               [&] { return toy::make_net<Real>(watch); });
        if (before >= 0) all[static_cast<std::size_t>(before)].time_actions();
        all.step(data.inputs, data.targets);
        if (after >= 0) all[static_cast<std::size_t>(after)].time_actions();
        all.each([&](std::size_t r) { static_cast<void>(all[r].timeline()); });
        for (std::size_t r = 0; r < all.ranks(); ++r)
            CHECK_THROWS_WITH_AS(std::rethrow_exception(all.errors[r]), said.c_str(),
                                 std::logic_error);
    }
}

namespace {

// Of which check_gradients has something to note.
struct Unweighted : Loss {
    auto operator()(auto& context, auto y, auto target, auto dy) const {
        auto value = Loss::operator()(context, y, target, dy);
        value.weight = 1;
        return value;
    }
};

} // namespace

TEST_CASE("check_gradients over ranks finds, on all of them, what it finds on one") {
    using Ranked = toy::Training<toy::SkipNet<Real>, Unweighted, Adam, toy::Rank>;
    using One = toy::Training<toy::SkipNet<Real>, Unweighted, Adam, Host>;
    toy::Data<Real> const data(7);
    One one(toy::SkipNet<Real>{}, {}, Adam{1e-2f}, options<One>(4, 4));
    gpipe::GradientReport const expected =
        gpipe::check_gradients(one, data.inputs, data.targets, {.entries = 3});
    CHECK(toy::has(to_string(expected), "ok, but the weight is 1"));
    for (Sizes const& devices : splits(4)) {
        INFO(describe(devices));
        auto all = crew<Ranked>(devices, true, 1, options<Ranked>(4, 4),
                                [] { return toy::SkipNet<Real>{}; });
        std::vector<gpipe::GradientReport> found(all.ranks());
        all.each([&](std::size_t r) {
            found[r] = gpipe::check_gradients(all[r], data.inputs, data.targets, {.entries = 3});
        });
        for (std::size_t r = 0; r < all.ranks(); ++r) {
            CHECK(!all.errors[r]);
            CHECK(found[r].rows.size() == expected.rows.size());
            CHECK(to_string(found[r]) == to_string(expected)); // every digit that it shows
        }
        all.each([&](std::size_t r) {
            (void)gpipe::check_gradients(all[r], data.inputs, data.targets,
                                         {.samples = r + 1 == all.ranks() ? 50u : 3u});
        });
        for (std::size_t r = 0; r < all.ranks() && all.ranks() > 1; ++r) {
            REQUIRE(all.errors[r]);
            std::string const said =
                "gpipe: rank " + std::to_string(all.ranks() - 1) +
                " is told to check gradients of another number of samples, or with other options, "
                "than rank 0";
            CHECK_THROWS_WITH_AS(std::rethrow_exception(all.errors[r]), said.c_str(),
                                 std::invalid_argument);
        }
        all.each([&](std::size_t r) {
            if (r == 0 && all.ranks() > 1)
                (void)gpipe::check_gradients(all[r], data.inputs, data.targets);
            else
                all[r].step(data.inputs, data.targets);
        });
        for (std::size_t r = 0; r < all.ranks() && all.ranks() > 1; ++r) {
            REQUIRE(all.errors[r]);
            CHECK_THROWS_WITH_AS(std::rethrow_exception(all.errors[r]),
                                 doctest::Contains("rank 0 is told to check gradients, but rank "),
                                 std::invalid_argument);
        }
        all.step(data.inputs, data.targets);
    }
}

TEST_CASE("what a layer throws in a check is told on all ranks, and they train on") {
    toy::Watch watch;
    auto all = crew<Train>({1, 2, 1}, false, 1, options<Train>(4, 4),
                           [&] { return toy::make_net<Real>(watch); });
    toy::Data<Real> const data(13);
    watch.faults = {{4, 0, Phase::backward}};
    all.each(
        [&](std::size_t r) { (void)gpipe::check_gradients(all[r], data.inputs, data.targets); });
    watch.faults.clear();
    std::size_t const owner = all.rank_of(4);
    for (std::size_t r = 0; r < 3; ++r) {
        REQUIRE(all.errors[r]);
        if (r == owner)
            CHECK_THROWS_AS(std::rethrow_exception(all.errors[r]), toy::Thrown);
        else
            CHECK_THROWS_WITH_AS(std::rethrow_exception(all.errors[r]),
                                 ("gpipe: on rank " + std::to_string(owner) +
                                  ", in check_gradients(): what it threw is no std::exception")
                                     .c_str(),
                                 gpipe::RankError);
    }
    all.step(data.inputs, data.targets);
}

TEST_CASE("where one rank has no memory in the midst of a check, or of a timeline, all throw, and "
          "they train on") {
    toy::Watch watch;
    toy::Data<Real> const data(13);
    for (std::size_t const rank : Sizes{0, 1, 2}) {
        auto all = crew<Train>({1, 2, 1}, true, 1, options<Train>(4, 4),
                               [&] { return toy::make_net<Real>(watch); });
        all.each([&](std::size_t r) { all[r].time_actions(); });
        double const loss = all.compute_gradients(data.inputs, data.targets).loss;
        std::size_t tries = 0;
        auto const tried = [&](bool, std::string const& wrong) {
            CHECK(wrong == "");
            CHECK(all.compute_gradients(data.inputs, data.targets).loss == loss);
            ++tries;
        };
        all.without_memory(
            rank, "check_gradients()",
            [&](std::size_t r) {
                (void)gpipe::check_gradients(all[r], data.inputs, data.targets, {.entries = 1});
            },
            tried);
        CHECK(tries > L);
        all.without_memory(
            rank, "timeline()", [&](std::size_t r) { (void)all[r].timeline(); }, tried);
    }
}

TEST_CASE("where one rank has no memory in the midst of a constructor all throw") {
    toy::Watch watch;
    for (std::size_t const rank : Sizes{0, 1, 2}) {
        bool ends = false;
        for (long n = 0; !ends; ++n) {
            std::vector<std::string> said(3);
            toy::Station* station = nullptr;
            auto const make = [&](std::size_t r, toy::Rank::Options device) {
                auto o = options<Train>(3, 4);
                o.device = device;
                if (r == rank) (station = device.transport)->gathers_left = n;
                try {
                    auto train = std::make_unique<Train>(toy::make_net<Real>(watch), Loss{&watch},
                                                         Adam{}, o);
                    if (r == rank) ends = std::exchange(station->gathers_left, -1) >= 0;
                    return train;
                } catch (std::exception const& error) {
                    said[r] = error.what();
                    throw;
                }
            };
            try {
                toy::Crew<Train>({1, 1, 1}, true, 1, make);
            } catch (std::exception const&) {
            }
            INFO("rank ", rank, ", gather ", n);
            for (std::string const& words : said) CHECK(toy::has(words, "std::bad_alloc") == !ends);
        }
    }
}

TEST_CASE(
    "O1 ranks that do not fit together are refused on all of them; what a rank does not have is "
    "named with who has it") {
    toy::Watch watch;
    // Which rank is told what, if rank 1 has these devices and options.
    auto const told = [&]<class T>(Sizes const& devices, T change_options) {
        std::vector<std::string> words(2);
        auto const wire = std::make_shared<toy::Wire>(2, true);
        std::vector<std::thread> threads;
        for (std::size_t r = 0; r < 2; ++r)
            threads.emplace_back([&, r] {
                toy::Station station(wire, r);
                try {
                    auto o = options<Train>(3, 4);
                    o.device = {{1}, &station, devices[r]};
                    o.frozen_parameters = {{0, 0}};
                    if (r == 1) change_options(o);
                    Train train(toy::make_net<Real>(watch), Loss{}, Adam{}, o);
                } catch (std::exception const& error) {
                    words[r] = error.what();
                }
            });
        for (std::thread& thread : threads) thread.join();
        return words;
    };
    auto const same = [](auto&) {};
    for (std::string const& words : told({1, 2}, same)) CHECK(words == "");
    for (std::string const& words : told({1, 1}, same))
        CHECK(words == "gpipe: 3 devices are to be those of 2 ranks, which have 2, each at least "
                       "one: start a rank for each, or say in Options::device.devices how many "
                       "each has");
    for (std::string const& words : told({3, 0}, same))
        CHECK(words.find("each at least one") != std::string::npos);
    // Each is told what is another, not what follows from it.
    auto const refused = [&](std::string const& sentence, auto change_options) {
        for (std::string const& words : told({1, 2}, change_options))
            CHECK(words.find("gpipe: rank 1 has " + sentence) == 0);
    };
    refused("another Options::seed than", [](auto& o) { ++o.seed; });
    refused("other Options::samples than", [](auto& o) { ++o.samples; });
    refused("other Options::micro_batches than", [](auto& o) { ++o.micro_batches; });
    std::string const checks = "another Options::clip_norm, loss_scale, finite_gradients or not_"
                               "finite than";
    refused(checks, [](auto& o) { o.clip_norm = 1; });
    refused(checks, [](auto& o) { o.finite_gradients = true; });
    refused(checks, [](auto& o) { o.not_finite = gpipe::NotFinite::go_on; });
    refused(checks, [](auto& o) { o.loss_scale = gpipe::LossScale::fixed(16); });
    refused("frozen other parameters than", // of as many bytes
            [](auto& o) {
                o.frozen_parameters = {{0, 1}};
            });
    refused("frozen other parameters than", [](auto& o) { o.frozen = {2}; });
    refused("cut the chain elsewhere than", [](auto& o) { o.balance = {4, 3, 3}; });
    refused("made another plan than",
            [](auto& o) { o.schedule = gpipe::schedule::OneForwardOneBackward{}; });
    refused("made another plan than",
            [](auto& o) { o.checkpointing = gpipe::checkpoint::Never{}; });
    refused("made another plan than", [](auto& o) { o.debug = !o.debug; });
    CHECK(told({1, 2}, [](auto& o) { o.frozen = {99}; }) ==
          std::vector<std::string>{"gpipe: on rank 1, in a constructor: gpipe: Options::frozen "
                                   "names layer 99: the layers of the pipeline are 0 to 9",
                                   "gpipe: Options::frozen names layer 99: the layers of the "
                                   "pipeline are 0 to 9"});

    auto alone = options<Train>(3, 4);
    alone.device = {{1}, nullptr, 3};
    CHECK_THROWS_WITH_AS(Train(toy::make_net<Real>(watch), Loss{}, Adam{}, alone),
                         "gpipe: Options::device.transport is null: it has to name what joins this "
                         "rank to the others",
                         std::invalid_argument);

    auto all = crew<Train>({1, 2}, true, 1, options<Train>(3, 4),
                           [&] { return toy::make_net<Real>(watch); });
    std::vector<Real> values(18);
    CHECK_THROWS_WITH_AS(all[0].read_parameter(9, 0, std::span(values)),
                         "gpipe: layer 9 is on rank 1, and this is rank 0", std::out_of_range);
    CHECK_THROWS_WITH_AS(all[1].parameters<0>(), "gpipe: layer 0 is on rank 0, and this is rank 1",
                         std::out_of_range);
}

namespace {

// One of many ranks, which hears nobody.
struct Alone {
    std::size_t self = 0;
    std::size_t channels = 0;
    std::size_t rank() const { return self; }
    static constexpr std::size_t ranks() { return 64; }
    static gpipe::Array<std::uint64_t> gather(std::uint64_t number) { return {ranks(), number}; }
    void open(gpipe::Array<gpipe::Channel> const& all) { channels = all.size(); }
    void send(std::size_t, std::byte const*, std::size_t, std::uint32_t) noexcept {}
    std::uint32_t receive(std::size_t, std::byte*, std::size_t) noexcept { return 0; }
    std::exception_ptr error() const { return nullptr; }
};
// Counts what it allocates.
struct Counted : Host {
    using Host::Host;
    static inline std::size_t allocated = 0;
    static gpipe::device::HostBuffer allocate(std::size_t device, std::size_t bytes) {
        CHECK(device == 0); // of its own
        allocated += bytes;
        return Host::allocate(device, bytes);
    }
};
// Counts itself.
struct Initialized : toy::Linear<Real, 4, 4> {
    static inline std::size_t count = 0;
    void initialize(auto& ctx) const {
        ++count;
        toy::Linear<Real, 4, 4>::initialize(ctx);
    }
};

} // namespace

TEST_CASE("O1 O2 one rank of 64 has the layers and the bytes of its device, and nothing else") {
    using Net = gpipe::Pipeline<gpipe::Repeat<128, Initialized>>;
    using One = toy::Training<Net, toy::MeanSquare<Real, 4>, Adam, gpipe::Joined<Counted, Alone>>;
    std::size_t point = 0;
    for (std::size_t const rank : Sizes{0, 1, 31, 63}) {
        if (toy::left_out(point, 3)) continue;
        Alone alone{rank};
        auto o = options<One>(64, 64);
        o.samples = 64 * 3;
        o.schedule = gpipe::schedule::OneForwardOneBackward{};
        o.device = {{1}, &alone, 1};
        Counted::allocated = Initialized::count = 0;
        One one(Net{}, {}, Adam{}, o);
        CHECK(Initialized::count == 2);
        CHECK(Counted::allocated == one.plan().devices[rank].total());
        CHECK(one.used_bytes() == one.plan().devices[rank].total());
        CHECK(one.lanes() == 1);
        CHECK(alone.channels == 2 * 63 + 2 * 63); // edges; and what a commit takes
        for (std::size_t d = 0; d < 64; ++d) {
            CHECK(one.arena(d).empty() == (d != rank));
            if (d != rank) CHECK_THROWS_AS(one.parameter<Real>(2 * d, 0), std::out_of_range);
        }
        CHECK(one.parameter<Real>(2 * rank, 0).size() == 16);
    }
}

TEST_CASE("P5 ranks send what has no samples, too, for waits that others imply rest on it") {
    for (Sizes const& devices : splits(4)) {
        INFO(describe(devices));
        toy::Watch watch;
        auto all = crew<Train>(devices, true, 2, options<Train>(4, 8),
                               [&] { return toy::make_net<Real>(watch); });
        std::vector<std::size_t> messages;
        for (std::size_t const samples : {13, 8, 7, 1}) {
            std::size_t const before = all.wire->messages;
            toy::Data<Real> const data(samples);
            all.step(data.inputs, data.targets);
            messages.push_back(all.wire->messages - before);
        }
        CHECK(messages == std::vector<std::size_t>(4, messages[0]));
        CHECK(all.wire->fault() == "");
    }
}
