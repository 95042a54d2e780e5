// Mini-batches from a source of samples.
#include "support/layers.hpp"
#include "support/long_tests.hpp"
#include "support/losses.hpp"
#include "support/ranks.hpp"

#include <gpipe/gpipe.hpp>
#include <gpipe/loader.hpp>
#include <gpipe/replicas.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <numeric>
#include <set>
#include <span>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

namespace {

using gpipe::Loader;
using gpipe::Shuffle;

// What was read of it, by whoever has a copy.
struct Log {
    std::mutex mutex;
    std::vector<std::uint64_t> inputs, targets; // in the order of reading
    std::atomic<std::uint64_t> throws_at{~std::uint64_t{0}};
    std::atomic<std::size_t> tried{0};
};
// Sample s has the input (s, s, s) and the target (-s).
struct Numbers {
    std::uint64_t count;
    std::shared_ptr<Log> log = std::make_shared<Log>();

    std::uint64_t size() const { return count; }
    void inputs(std::uint64_t sample, std::span<float, 3> to) {
        ++log->tried;
        if (sample == log->throws_at) throw std::runtime_error("no such file");
        std::fill(to.begin(), to.end(), static_cast<float>(sample));
        std::lock_guard const lock(log->mutex);
        log->inputs.push_back(sample);
    }
    void targets(std::uint64_t sample, std::span<float> to) {
        REQUIRE(to.size() == 1);
        to[0] = -static_cast<float>(sample);
        std::lock_guard const lock(log->mutex);
        log->targets.push_back(sample);
    }
};

using Net =
    gpipe::Pipeline<toy::Linear<float, 3, 2>, toy::Linear<float, 2, 2>, toy::Linear<float, 2, 1>>;
template <class... Policies>
using Train = gpipe::Training<Net, gpipe::Cells<gpipe::dynamic>, gpipe::MicroBatches<2>,
                              gpipe::Loss<toy::MeanSquare<float, 1>>, Policies...>;

template <class T> typename T::Options options(std::size_t cells = 1) {
    typename T::Options o;
    o.samples = 6;
    o.cells = cells;
    return o;
}
using Samples = std::vector<std::uint64_t>;

template <class Loaded> Samples samples_of(Loaded const& batch, std::size_t count) {
    auto const inputs = reinterpret_cast<float const*>(batch.inputs.tensors()[0].data);
    auto const targets = reinterpret_cast<float const*>(batch.targets.tensors()[0].data);
    Samples samples;
    for (std::size_t i = 0; i < count; ++i) {
        for (std::size_t e = 0; e < 3; ++e) CHECK(inputs[3 * i + e] == -targets[i]);
        samples.push_back(static_cast<std::uint64_t>(inputs[3 * i]));
    }
    return samples;
}

} // namespace

TEST_CASE("a shuffle has every number once, another order for each seed and number") {
    for (std::uint64_t size = 1; size < 300; ++size) {
        std::set<std::uint64_t> all;
        Shuffle const shuffle(size, 5, 3);
        for (std::uint64_t i = 0; i < size; ++i) all.insert(shuffle[i]);
        CHECK(all.size() == size);
        CHECK(*all.rbegin() == size - 1);
    }
    std::uint64_t const size = 1000;
    std::vector<Shuffle> const shuffles{
        {size, 1, 0}, {size, 2, 0}, {size, 1, 1}, {size, 1, std::uint64_t{1} << 32}};
    for (std::size_t a = 0; a < shuffles.size(); ++a)
        for (std::size_t b = 0; b < a; ++b) {
            std::size_t same = 0;
            for (std::uint64_t i = 0; i < size; ++i) same += shuffles[a][i] == shuffles[b][i];
            CHECK(same < 10); // one is expected
        }
    // Neighbours are not neighbours any more, and every place gets from everywhere.
    double distance = 0;
    for (std::uint64_t i = 0; i + 1 < size; ++i)
        distance += std::abs(double(shuffles[0][i]) - double(shuffles[0][i + 1])) / double(size);
    CHECK(distance / double(size) == doctest::Approx(1.0 / 3).epsilon(0.1));
    // Of few, too, each stands at each place equally often, but for five standard deviations.
    constexpr double times = toy::sanitized ? 100 : 1000;
    for (std::uint64_t const few : {2u, 3u, 5u, 7u, 10u, 17u}) {
        CAPTURE(few);
        std::vector<double> counts(few * few);
        for (std::uint64_t epoch = 0; epoch < few * static_cast<std::uint64_t>(times); ++epoch)
            for (std::uint64_t place = 0; place < few; ++place)
                ++counts[place * few + Shuffle(few, 1, epoch)[place]];
        for (double const count : counts) CHECK(std::abs(count - times) < 5 * std::sqrt(times));
    }
    Shuffle const large(std::uint64_t{1} << 62, 1, 1);
    CHECK(large[0] != large[1]);
    static_assert(Shuffle(1, 0, 0)[0] == 0);
}

TEST_CASE(
    "each sample comes once in an epoch, whatever is read ahead, and the order is that of the "
    "number alone") {
    for (std::size_t const ahead : {0u, 1u, 2u, 5u})
        for (bool const shuffled : {true, false}) {
            CAPTURE(ahead);
            CAPTURE(shuffled);
            using T = Train<>;
            T train{{}, {}, {}, options<T>()};
            Numbers const numbers{10};
            Loader loader(train, numbers,
                          {.batch = 4, .seed = 9, .shuffled = shuffled, .ahead = ahead});
            CHECK(loader.samples() == 4);
            Samples seen;
            for (std::uint64_t n = 0; n < 10; ++n) { // four epochs
                CHECK(loader.position() == n);
                auto const batch = loader.next();
                CHECK(batch.number == n);
                for (std::uint64_t const sample : samples_of(batch, 4)) {
                    CHECK(sample == loader.sample(n, seen.size() % 4));
                    seen.push_back(sample);
                }
            }
            for (std::size_t epoch = 0; epoch < 4; ++epoch) {
                Samples const part(seen.begin() + long(10 * epoch),
                                   seen.begin() + long(10 * epoch) + 10);
                Samples sorted = part, all(10);
                std::sort(sorted.begin(), sorted.end());
                std::iota(all.begin(), all.end(), std::uint64_t{0});
                CHECK(sorted == all);
                CHECK((part == all) == !shuffled);
                if (epoch > 0)
                    CHECK(std::equal(part.begin(), part.end(), seen.begin()) == !shuffled);
            }
            loader.seek(3);
            CHECK(samples_of(loader.next(), 4) == Samples(seen.begin() + 12, seen.begin() + 16));
            loader.seek(0);
            CHECK(samples_of(loader.next(), 4) == Samples(seen.begin(), seen.begin() + 4));
            CHECK(samples_of(loader.next(), 4) == Samples(seen.begin() + 4, seen.begin() + 8));
        }
}

TEST_CASE("what the caller holds is not written, and no more is read ahead than was asked for") {
    using T = Train<>;
    T train{{}, {}, {}, options<T>()};
    Numbers const numbers{1000};
    Loader loader(train, numbers, {.batch = 2, .shuffled = false, .ahead = 3});
    auto const read = [&] {
        std::lock_guard const lock(numbers.log->mutex);
        return numbers.log->targets.size();
    };
    for (std::uint64_t n = 0; n < 20; ++n) {
        auto const batch = loader.next();
        std::size_t const most = 2 * (n + 1 + 3);
        for (int i = 0; i < 2000 && read() < most; ++i)
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
        CHECK(read() == most);
        CHECK(samples_of(batch, 2) == Samples{2 * n, 2 * n + 1});
    }
}

TEST_CASE("seek() may come while something is read ahead") {
    struct Slow : Numbers {
        void inputs(std::uint64_t sample, std::span<float, 3> to) {
            std::this_thread::sleep_for(std::chrono::milliseconds(5));
            Numbers::inputs(sample, to);
        }
    };
    using T = Train<>;
    T train{{}, {}, {}, options<T>()};
    Loader loader(train, Slow{{1000}}, {.batch = 2, .shuffled = false});
    for (std::uint64_t const number : {7u, 100u, 3u, 0u}) {
        auto const held = loader.next(); // and the one behind is begun
        Samples const before = samples_of(held, 2);
        loader.seek(number);
        std::this_thread::sleep_for(std::chrono::milliseconds(40)); // all is read ahead
        CHECK(samples_of(held, 2) == before);
        for (std::uint64_t n = number; n < number + 3; ++n)
            CHECK(samples_of(loader.next(), 2) == Samples{2 * n, 2 * n + 1});
    }
}

TEST_CASE("what a source throws leaves next(), behind what was read before; then it tries again") {
    for (std::size_t const ahead : {0u, 2u}) {
        CAPTURE(ahead);
        using T = Train<>;
        T train{{}, {}, {}, options<T>()};
        Numbers const numbers{100};
        numbers.log->throws_at = 5;
        Loader loader(train, numbers, {.batch = 2, .shuffled = false, .ahead = ahead});
        CHECK(samples_of(loader.next(), 2) == Samples{0, 1});
        CHECK(samples_of(loader.next(), 2) == Samples{2, 3});
        CHECK_THROWS_WITH_AS(loader.next(), "no such file", std::runtime_error);
        CHECK_THROWS_WITH_AS(loader.next(), "no such file", std::runtime_error);
        CHECK(loader.position() == 2);
        std::size_t const tried = numbers.log->tried;
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        CHECK(numbers.log->tried == tried); // nobody has asked
        numbers.log->throws_at = ~std::uint64_t{0};
        CHECK(samples_of(loader.next(), 2) == Samples{4, 5});
        CHECK(samples_of(loader.next(), 2) == Samples{6, 7});
    }
}

TEST_CASE("replicas of one process get the same mini-batches as one, and train on them") {
    using One = Train<>;
    using Two = Train<gpipe::Replicas<gpipe::dynamic>>;
    One one{{}, {}, {}, options<One>()};
    for (std::size_t const replicas : {2u, 3u}) {
        auto o = options<Two>(2);
        o.replicas = replicas;
        Two two{{}, {}, gpipe::SGD{1e-6f}, o};
        Numbers const numbers{50};
        Loader a(one, numbers, {.batch = 5, .seed = 2});
        Loader b(two, numbers, {.batch = 5, .seed = 2});
        for (int n = 0; n < 12; ++n) {
            auto const batch = b.next();
            CHECK(samples_of(a.next(), 5) == samples_of(batch, 5));
            two.step(batch.inputs, batch.targets);
        }
        CHECK(Loader(two, numbers, {.batch = 5, .seed = 2}).position() == two.steps());
        CHECK(Loader(two, numbers).samples() == 6 * replicas);
    }
}

TEST_CASE(
    "a rank reads the samples of its replica alone, inputs and targets where they are needed") {
    using T = Train<toy::Wired, gpipe::Replicas<gpipe::dynamic>>;
    for (std::size_t const replicas : {1u, 2u}) {
        std::vector<std::size_t> const devices(3 * replicas, 1);
        std::vector<Numbers> numbers;
        for (std::size_t r = 0; r < devices.size(); ++r) numbers.push_back({40});
        std::vector<std::unique_ptr<Loader<T, Numbers>>> loaders(devices.size());
        auto crew = toy::Crew<T>(devices, false, 1, [&](std::size_t, toy::Rank::Options device) {
            auto o = options<T>(3);
            o.replicas = replicas;
            o.device = device;
            return std::make_unique<T>(Net{}, toy::MeanSquare<float, 1>{}, gpipe::SGD{1e-6f}, o);
        });
        crew.each([&](std::size_t r) {
            T& train = crew[r];
            loaders[r] = std::make_unique<Loader<T, Numbers>>(
                train, numbers[r], gpipe::LoaderOptions{.batch = 5, .seed = 4, .ahead = 0});
            for (int n = 0; n < 3; ++n) {
                auto const batch = loaders[r]->next();
                train.step(batch.inputs, batch.targets);
            }
        });
        for (std::size_t r = 0; r < devices.size(); ++r) {
            CAPTURE(r);
            CHECK_FALSE(crew.errors[r]);
            gpipe::SampleRange const part = gpipe::Split(5, replicas)[r / 3];
            Samples expected;
            for (std::uint64_t n = 0; n < 3; ++n)
                for (std::size_t i = 0; i < part.count; ++i)
                    expected.push_back(loaders[r]->sample(n, part.first + i));
            CHECK(numbers[r].log->inputs == (r % 3 == 0 ? expected : Samples{}));
            CHECK(numbers[r].log->targets == (r % 3 == 2 ? expected : Samples{}));
        }
    }
}

TEST_CASE("of all ranks the same is loaded, or nothing") {
    using T = Train<toy::Wired>;
    std::vector<gpipe::LoaderOptions> const others = {{.batch = 4, .seed = 4},
                                                      {.batch = 5, .seed = 5},
                                                      {.batch = 5, .seed = 4, .shuffled = false},
                                                      {.batch = 5, .seed = 4, .parts = 2},
                                                      {.batch = 5, .seed = 4}};
    for (std::size_t n = 0; n < others.size(); ++n) {
        auto crew = toy::Crew<T>({1, 1}, false, 1, [&](std::size_t, toy::Rank::Options device) {
            auto o = options<T>(2);
            o.device = device;
            return std::make_unique<T>(Net{}, toy::MeanSquare<float, 1>{}, gpipe::SGD{1e-6f}, o);
        });
        crew.each([&](std::size_t r) {
            Loader<T, Numbers>(crew[r], Numbers{r == 1 && n == 4 ? 41u : 40u},
                               r == 1 ? others[n] : gpipe::LoaderOptions{.batch = 5, .seed = 4});
        });
        for (auto const& error : crew.errors) {
            REQUIRE(error);
            CHECK_THROWS_WITH_AS(std::rethrow_exception(error),
                                 "gpipe: rank 1 has a Loader of another source, or with other "
                                 "options, than rank 0: all have to load the same",
                                 std::invalid_argument);
        }
    }
}

namespace {

/// One whose file is not there.
struct Missing : Numbers {
    std::size_t size() const { throw std::runtime_error("no such file"); }
};

} // namespace

TEST_CASE("what a rank refuses to load, the others hear of") {
    using T = Train<toy::Wired>;
    auto crew = toy::Crew<T>({1, 1}, false, 1, [&](std::size_t, toy::Rank::Options device) {
        auto o = options<T>(2);
        o.device = device;
        return std::make_unique<T>(Net{}, toy::MeanSquare<float, 1>{}, gpipe::SGD{1e-6f}, o);
    });
    auto const check = [&](char const* words, auto refused) {
        for (std::size_t const at : {0, 1}) {
            crew.each([&](std::size_t r) {
                if (r == at) return refused(crew[r]);
                Loader<T, Numbers>(crew[r], Numbers{40});
            });
            for (std::size_t r : {0, 1}) REQUIRE(crew.errors[r]);
            CHECK_THROWS_WITH(std::rethrow_exception(crew.errors[at]), words);
            try {
                std::rethrow_exception(crew.errors[1 - at]);
            } catch (std::invalid_argument const& error) {
                CHECK(std::string(error.what()).find("do what it refuses") != std::string::npos);
            }
        }
    };
    check("gpipe: there are no samples to load",
          [](T& train) { Loader<T, Numbers>(train, Numbers{0}); });
    check("gpipe: mini-batches of 700 samples are to be loaded, and there is room for 6",
          [](T& train) { Loader<T, Numbers>(train, Numbers{40}, {.batch = 700}); });
    check("no such file", [](T& train) { Loader<T, Missing>(train, Missing{}); });
    crew.each([&](std::size_t r) { Loader<T, Numbers>(crew[r], Numbers{40}); });
    crew.rethrow();
}

TEST_CASE("ranks that would do something with different mini-batches are refused on all, and train "
          "on once they have one") {
    using T = Train<toy::Wired>;
    auto crew = toy::Crew<T>({1, 1, 1}, false, 1, [&](std::size_t, toy::Rank::Options device) {
        auto o = options<T>(3);
        o.device = device;
        return std::make_unique<T>(Net{}, toy::MeanSquare<float, 1>{}, gpipe::SGD{1e-6f}, o);
    });
    for (std::size_t odd = 0; odd < 3; ++odd) {
        std::vector<std::string> words(6);
        crew.each([&](std::size_t r) {
            T& train = crew[r];
            Loader loader(train, Numbers{40});
            loader.seek(r == odd ? 4 : 3); // as if next() had thrown on the others once
            auto batch = loader.next();
            try {
                train.evaluate(batch.inputs, batch.targets);
            } catch (std::invalid_argument const& error) {
                words[2 * r] = error.what();
            }
            try {
                train.step(batch.inputs, batch.targets);
            } catch (std::invalid_argument const& error) {
                words[2 * r + 1] = error.what();
            }
            loader.seek(4);
            batch = loader.next();
            train.step(batch.inputs, batch.targets);
            CHECK(train.steps() == odd + 1);
        });
        crew.rethrow();
        // The last one decides.
        std::string const first = std::to_string(odd == 2 ? 0 : odd);
        std::string const there = odd == 2 ? "3" : "4", here = odd == 2 ? "4" : "3";
        for (std::size_t n = 0; n < words.size(); ++n) {
            std::string const what =
                n % 2 ? "train on 6 samples of mini-batch " : "evaluate 6 samples of mini-batch ";
            std::string const after = " after " + std::to_string(odd) + " steps of seed 0";
            CHECK(words[n] == "gpipe: rank " + first + " is told to " + what + there + after +
                                  ", but rank 2 to " + what + here + after +
                                  ": all have to be told the same");
        }
    }
    // One that is not a Loader's says no number.
    crew.each([&](std::size_t r) {
        Loader loader(crew[r], Numbers{40});
        auto const batch = loader.next();
        std::vector<float> const inputs(18), targets(6);
        r == 0 ? crew[r].step(inputs, targets) : crew[r].step(batch.inputs, batch.targets);
    });
    crew.rethrow();
}

TEST_CASE("a number that nobody can count to is refused, and the next mini-batch comes") {
    using T = Train<>;
    T train{{}, {}, {}, options<T>()};
    for (std::size_t const ahead : {0, 2}) {
        Loader loader(train, Numbers{5}, {.ahead = ahead});
        CHECK_THROWS_WITH_AS(loader.seek(~std::uint64_t{0}), doctest::Contains("count to"),
                             std::invalid_argument);
        CHECK(loader.next().number == 0);
        loader.seek((std::uint64_t{1} << 63) / 6);
        CHECK(loader.next().number == (std::uint64_t{1} << 63) / 6);
    }
}

TEST_CASE("sources without samples, and too large mini-batches, are refused") {
    using T = Train<>;
    T train{{}, {}, {}, options<T>()};
    CHECK_THROWS_WITH_AS(Loader(train, Numbers{0}), "gpipe: there are no samples to load",
                         std::invalid_argument);
    CHECK_THROWS_WITH_AS(
        Loader(train, Numbers{5}, {.batch = 7}),
        "gpipe: mini-batches of 7 samples are to be loaded, and there is room for 6",
        std::invalid_argument);
    CHECK_THROWS_WITH_AS(Loader(train, Numbers{5}, {.parts = 0}),
                         "gpipe: a step that is loaded has no parts", std::invalid_argument);
    CHECK_THROWS_WITH_AS(Loader(train, Numbers{~std::uint64_t{0}}),
                         "gpipe: a source has more samples than can be counted",
                         std::invalid_argument);
    CHECK_THROWS_WITH_AS(Loader(train, Numbers{5}, {.ahead = 65'537}),
                         "gpipe: LoaderOptions::ahead is more than 65,536 mini-batches",
                         std::invalid_argument);
    for (std::size_t const parts : {~std::size_t{0}, ~std::size_t{0} / 6})
        CHECK_THROWS_WITH_AS(Loader(train, Numbers{5}, {.parts = parts}),
                             "gpipe: a Loader is to go on where nobody can count to",
                             std::invalid_argument);
}

namespace {

// A loss with a metric, and weights by the sample's place in the call.
struct Weighted {
    using Target = gpipe::Tensor<float, 1>;
    gpipe::LossValue<1> operator()(auto& ctx, auto y, auto target, auto dy) const {
        gpipe::LossValue<1> value;
        for (std::size_t s = 0; s < y.samples(); ++s) {
            float const weight = 1 + static_cast<float>((ctx.first_sample() + s) % 7);
            float const distance = y(s, 0) - target(s, 0);
            value.sum += double(weight) * double(distance) * double(distance);
            value.weight += double(weight);
            value.metric[0] += std::abs(double(distance));
            dy(s, 0) = 2 * weight * distance;
        }
        return value;
    }
};
template <class... Policies>
using Evaluated = gpipe::Training<Net, gpipe::Cells<gpipe::dynamic>, gpipe::MicroBatches<2>,
                                  gpipe::Loss<Weighted>, Policies...>;

// All samples of such a source at once.
struct Whole {
    std::vector<float> inputs, targets;
    explicit Whole(std::uint64_t count) {
        for (std::uint64_t s = 0; s < count; ++s) {
            inputs.insert(inputs.end(), 3, static_cast<float>(s));
            targets.push_back(-static_cast<float>(s));
        }
    }
};
template <class T> void same(T& train, Numbers const& numbers, std::size_t ahead) {
    Whole const whole(numbers.count);
    auto const a = train.evaluate(whole.inputs, whole.targets);
    auto const b = gpipe::evaluate(train, numbers, ahead);
    CHECK(a.loss == b.loss);
    CHECK(a.weight == b.weight);
    CHECK(a.metric[0] == b.metric[0]);
}

} // namespace

TEST_CASE("a source is evaluated bit by bit as all of its samples at once, each read once") {
    using One = Evaluated<>;
    using Some = Evaluated<gpipe::Replicas<gpipe::dynamic>>;
    One one{{}, {}, {}, options<One>(2)};
    for (std::size_t const replicas : {1u, 2u, 3u}) {
        auto o = options<Some>(2);
        o.replicas = replicas;
        Some some{{}, {}, gpipe::SGD{1e-6f}, o};
        Loader loader(some, Numbers{50}, {.batch = 5});
        for (std::uint64_t const count : {1u, 2u, 5u, 6u, 7u, 12u, 17u, 18u, 19u, 36u, 41u})
            for (std::size_t const ahead : {0u, 1u, 2u, 9u}) {
                CAPTURE(replicas);
                CAPTURE(count);
                CAPTURE(ahead);
                Numbers const numbers{count};
                same(some, numbers, ahead);
                if (replicas == 1) same(one, {count}, ahead);
                Samples read = numbers.log->inputs, all(count);
                std::iota(all.begin(), all.end(), std::uint64_t{0});
                std::sort(read.begin(), read.end());
                CHECK(read == all);
                // Between steps, and nothing that is loaded for these is lost.
                std::uint64_t const before = loader.position();
                auto const batch = loader.next();
                CHECK(batch.number == before);
                some.step(batch.inputs, batch.targets);
            }
    }
}

TEST_CASE("ranks evaluate a source together, each reads its part of what it needs") {
    using T = Evaluated<toy::Wired, gpipe::Replicas<gpipe::dynamic>>;
    for (std::size_t const replicas : {1u, 2u}) {
        std::vector<std::size_t> const devices(3 * replicas, 1);
        auto crew = toy::Crew<T>(devices, false, 1, [&](std::size_t, toy::Rank::Options device) {
            auto o = options<T>(3);
            o.replicas = replicas;
            o.device = device;
            return std::make_unique<T>(Net{}, Weighted{}, gpipe::SGD{1e-6f}, o);
        });
        for (std::uint64_t const count : {1u, 13u, 24u, 31u}) {
            std::vector<Numbers> numbers;
            for (std::size_t r = 0; r < devices.size(); ++r) numbers.push_back({count});
            crew.each([&](std::size_t r) { same(crew[r], numbers[r], r % 2); });
            crew.rethrow();
            std::size_t const most = 6 * replicas;
            for (std::size_t r = 0; r < devices.size(); ++r) {
                CAPTURE(r);
                Samples expected;
                for (std::uint64_t first = 0; first < count; first += most) {
                    auto const part =
                        gpipe::Split(std::min<std::size_t>(most, count - first), replicas)[r / 3];
                    for (std::size_t i = 0; i < part.count; ++i)
                        expected.push_back(first + part.first + i);
                }
                CHECK(numbers[r].log->inputs == (r % 3 == 0 ? expected : Samples{}));
                CHECK(numbers[r].log->targets == (r % 3 == 2 ? expected : Samples{}));
            }
        }
    }
}

TEST_CASE("what a source throws while it is evaluated leaves on all ranks, which then train on") {
    for (std::size_t const ahead : {0u, 2u}) {
        using One = Evaluated<>;
        One one{{}, {}, {}, options<One>(2)};
        Numbers numbers{40};
        numbers.log->throws_at = 15;
        CHECK_THROWS_WITH_AS(gpipe::evaluate(one, numbers, ahead), "no such file",
                             std::runtime_error);
        CHECK_THROWS_WITH_AS(gpipe::evaluate(one, Numbers{0}, ahead),
                             "gpipe: there are no samples to load", std::invalid_argument);
        numbers.log->throws_at = ~std::uint64_t{0};
        same(one, numbers, ahead);

        using T = Evaluated<toy::Wired>;
        auto crew = toy::Crew<T>({1, 1, 1}, false, 1, [&](std::size_t, toy::Rank::Options device) {
            auto o = options<T>(3);
            o.device = device;
            return std::make_unique<T>(Net{}, Weighted{}, gpipe::SGD{1e-6f}, o);
        });
        crew.each([&](std::size_t r) {
            Numbers own{40};
            if (r == 0) own.log->throws_at = 15;
            gpipe::evaluate(crew[r], own, ahead);
        });
        for (std::size_t r : {0, 1, 2}) REQUIRE(crew.errors[r]);
        CHECK_THROWS_WITH_AS(std::rethrow_exception(crew.errors[0]), "no such file",
                             std::runtime_error);
        for (std::size_t r : {1, 2})
            CHECK_THROWS_WITH(std::rethrow_exception(crew.errors[r]),
                              doctest::Contains("rank 0 is told to do what it refuses"));
        // One that reads nothing has to know how many there are, too.
        crew.each(
            [&](std::size_t r) { gpipe::evaluate(crew[r], Numbers{r == 1 ? 41u : 40u}, ahead); });
        for (std::size_t r : {0, 1, 2}) {
            REQUIRE(crew.errors[r]);
            CHECK_THROWS_WITH(std::rethrow_exception(crew.errors[r]),
                              doctest::Contains("rank 1 has a Loader of another source"));
        }
        crew.each([&](std::size_t r) {
            same(crew[r], Numbers{40}, ahead);
            Loader loader(crew[r], Numbers{40});
            auto const batch = loader.next();
            crew[r].step(batch.inputs, batch.targets);
            CHECK(crew[r].steps() == 1);
        });
        crew.rethrow();
    }
}

namespace {

struct Heavy : Numbers { // there may be no memory to move it
    bool fits = true;

    Heavy(std::uint64_t n, bool there_is) : Numbers{n}, fits(there_is) {}
    Heavy(Heavy const& other) : Numbers(other), fits(other.fits) {
        if (!fits) throw std::bad_alloc();
    }
};

} // namespace

TEST_CASE("where one rank has no memory for a Loader all throw, and then load") {
    using T = Evaluated<toy::Wired>;
    for (std::size_t const rank : {0, 1}) {
        auto crew = toy::Crew<T>({1, 1}, false, 1, [&](std::size_t, toy::Rank::Options device) {
            auto o = options<T>(2);
            o.device = device;
            return std::make_unique<T>(Net{}, Weighted{}, gpipe::SGD{1e-6f}, o);
        });
        crew.without_memory(
            rank, "a Loader", [&](std::size_t r) { Loader(crew[r], Numbers{40}).next(); },
            [&](bool, std::string const& wrong) { CHECK(wrong == ""); });
        // Nor for its source.
        crew.each([&](std::size_t r) { Loader(crew[r], Heavy(40, r != rank)).next(); });
        for (std::size_t r : {0, 1}) {
            REQUIRE(crew.errors[r]);
            if (r == rank)
                CHECK_THROWS_AS(std::rethrow_exception(crew.errors[r]), std::bad_alloc);
            else
                CHECK_THROWS_WITH(std::rethrow_exception(crew.errors[r]),
                                  doctest::Contains("to do what it refuses"));
        }
        crew.each([&](std::size_t r) { same(crew[r], Numbers{40}, 2); });
        crew.rethrow();
    }
}
