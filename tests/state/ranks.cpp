// States that several ranks save and load, each its own part, and replicas with a part of the
// optimizer's state.
#include "support/ranks.hpp"
#include "support/buffer_layers.hpp"
#include "support/counting.hpp"
#include "support/folder.hpp"
#include "support/long_tests.hpp"
#include "support/net.hpp"
#include "support/skip_layers.hpp"
#include "support/system_calls.hpp"

#include <gpipe/replicas.hpp>
#include <gpipe/state/state.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <iterator>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <sched.h>

namespace {

namespace fs = std::filesystem;
using gpipe::Adam;
using gpipe::dynamic;
using gpipe::StateError;
using gpipe::shard::Nothing;
using gpipe::shard::OptimizerState;
using toy::Folder;

using Loss = toy::MeanSquare<float, 3>;
using Sizes = std::vector<std::size_t>;
// With a tie between its ends, and buffers that its loss depends on.
using Nets =
    gpipe::Pipeline<toy::TiedTo<toy::Linear<float, 5, 5>, toy::Factors>, toy::StepCounter<float, 5>,
                    toy::Tanh<float, 5>, toy::TiedTo<toy::Linear<float, 5, 5>, toy::Factors>,
                    toy::StepCounter<float, 5>, toy::StrictLinear<float, 5, 3>>;

template <class Net, class Shard, class... Transport>
using Train = gpipe::Training<Net, gpipe::Cells<dynamic>, gpipe::MicroBatches<dynamic>,
                              gpipe::Loss<Loss>, gpipe::Optimizer<Adam>, gpipe::schedule::Dynamic,
                              gpipe::Replicas<dynamic, Shard>, Transport...>;

// How a state is saved, or loaded: devices of the ranks of one replica; none: in one process.
struct Way {
    std::size_t replicas = 1;
    bool shards = false;
    Sizes devices = {};
    std::size_t k = 1;   // in one process
    bool frozen = false; // the tie is
    std::uint64_t seed = 5;
    bool snapshot = true;
    std::size_t schedule = 0; // of those below

    std::string words() const {
        return std::to_string(replicas) + (shards ? " replicas, sharded, " : " replicas, ") +
               std::to_string(devices.size()) + " ranks each, schedule " + std::to_string(schedule);
    }
};

// Those of one order of backwards that so many devices can have, in turns.
gpipe::schedule::Dynamic schedule_of(std::size_t number, std::size_t k, std::size_t micro_batches) {
    std::vector<gpipe::schedule::Dynamic> fitting;
    for (gpipe::schedule::Dynamic const& schedule : std::initializer_list<gpipe::schedule::Dynamic>{
             gpipe::schedule::GPipeAscending{}, gpipe::schedule::OneForwardOneBackward{},
             gpipe::schedule::Interleaved1F1B<2>{}, gpipe::schedule::ZeroBubbleV{}})
        if (k * schedule.cells_per_device() <= Nets::size &&
            micro_batches >= schedule.least_micro_batches(k))
            fitting.push_back(schedule);
    return fitting[number % fitting.size()];
}

template <class T> typename T::Options options(Way const& way, std::size_t k) {
    typename T::Options o;
    o.samples = 8;
    o.seed = way.seed;
    o.cells = k;
    o.micro_batches = 4;
    o.replicas = way.replicas;
    if (way.frozen) o.frozen_parameters = {{0, 0}, {3, 0}};
    o.schedule = schedule_of(way.schedule, k, o.micro_batches);
    o.snapshot = way.snapshot;
    return o;
}

// f(train, step) of such a training, which is one for all ranks: step(data) trains them all.
struct Any {
    virtual ~Any() = default;
    virtual double step(toy::Data<float> const& data) = 0;
    virtual void save(std::string const& path) = 0;
    virtual void start_save(std::string const& path) = 0;
    virtual void wait() = 0;             // for that
    virtual void give_up_and_wait() = 0; // likewise: throws what one throws
    virtual gpipe::SavedState load(std::string const& path, gpipe::LoadOptions const& options) = 0;
};
template <class Shard> struct InOne : Any {
    using T = Train<Nets, Shard>;
    T train;
    explicit InOne(Way const& way) : train(Nets{}, Loss{}, Adam{1e-2f}, options<T>(way, way.k)) {}
    double step(toy::Data<float> const& data) override {
        return train.step(data.inputs, data.targets).loss;
    }
    void save(std::string const& path) override { gpipe::save(train, path, {{"place", "7"}}); }
    std::optional<gpipe::PendingSave> pending;
    void start_save(std::string const& path) override {
        pending.reset();
        pending = gpipe::start_save(train, path, {{"place", "7"}});
    }
    void wait() override { pending->wait(); }
    void give_up_and_wait() override { pending->wait(); }
    gpipe::SavedState load(std::string const& path, gpipe::LoadOptions const& o) override {
        return gpipe::load(train, path, o);
    }
};
template <class Shard> struct OnRanks : Any {
    using T = Train<Nets, Shard, toy::Wired>;
    toy::Crew<T> crew;
    static Sizes all(Way const& way) {
        Sizes sizes;
        for (std::size_t r = 0; r < way.replicas; ++r)
            sizes.insert(sizes.end(), way.devices.begin(), way.devices.end());
        return sizes;
    }
    explicit OnRanks(Way const& way)
        : crew(all(way), way.replicas % 2 == 0, 1, [&](std::size_t, toy::Rank::Options device) {
              std::size_t k = 0;
              for (std::size_t const d : way.devices) k += d;
              auto o = options<T>(way, k);
              o.device = device;
              return std::make_unique<T>(Nets{}, Loss{}, Adam{1e-2f}, o);
          }) {}
    double step(toy::Data<float> const& data) override {
        return crew.step(data.inputs, data.targets).loss;
    }
    // What one throws.
    template <class F> void on_all(F f) {
        crew.each(f);
        std::size_t thrown = 0;
        for (auto const& error : crew.errors) thrown += error != nullptr;
        CHECK((thrown == 0 || thrown == crew.ranks()));
        if (thrown) std::rethrow_exception(crew.errors[0]);
    }
    void save(std::string const& path) override {
        on_all([&](std::size_t r) { gpipe::save(crew[r], path, {{"place", "7"}}); });
    }
    std::vector<std::optional<gpipe::PendingSave>> pending;
    void start_save(std::string const& path) override {
        pending.clear();
        pending.resize(crew.ranks());
        on_all([&](std::size_t r) {
            pending[r] = gpipe::start_save(crew[r], path, {{"place", "7"}});
        });
    }
    void wait() override {
        crew.each([&](std::size_t r) { pending[r]->wait(); });
    }
    void give_up_and_wait() override {
        crew.each([&](std::size_t r) {
            if (r == 0) pending[r]->give_up(); // it would wait for who has failed
            pending[r]->wait();
        });
        for (auto const& error : crew.errors)
            if (error) std::rethrow_exception(error);
    }
    gpipe::SavedState load(std::string const& path, gpipe::LoadOptions const& o) override {
        std::vector<gpipe::SavedState> states(crew.ranks());
        on_all([&](std::size_t r) { states[r] = gpipe::load(crew[r], path, o); });
        for (auto const& state : states) CHECK(state.steps == states[0].steps);
        return states.back();
    }
};
std::unique_ptr<Any> make(Way const& way) {
    if (way.devices.empty()) {
        if (way.shards) return std::make_unique<InOne<OptimizerState>>(way);
        return std::make_unique<InOne<Nothing>>(way);
    }
    if (way.shards) return std::make_unique<OnRanks<OptimizerState>>(way);
    return std::make_unique<OnRanks<Nothing>>(way);
}

std::vector<Way> const ways{{1, false, {}, 1},  {1, false, {}, 3},     {1, false, {1, 1}},
                            {1, false, {1, 2}}, {1, false, {1, 1, 1}}, {2, false, {}, 2},
                            {2, false, {1, 1}}, {2, false, {2}},       {2, true, {}, 2},
                            {2, true, {1, 1}},  {3, true, {2}},        {3, true, {}, 1}};

std::size_t files_in(Folder const& folder) { // links, too
    std::size_t count = 0;
    for (auto const& entry : fs::directory_iterator(folder.path)) count += !entry.is_directory();
    return count;
}
toy::Data<float> data_of(std::size_t step) {
    return toy::Data<float>(step % 2 ? 7 : 8, static_cast<std::uint32_t>(step));
}

} // namespace

TEST_CASE("what any ranks and replicas have saved under any schedule any others load, and go on as "
          "those do, in every bit where they have as many replicas and their backwards one order") {
    std::vector<double> expected[2][4]; // by what is frozen, and replicas: of the steps behind
    std::size_t loaded = 0, point = 0;
    std::vector<Way> all = ways;
    for (Way const& way : {ways[0], ways[2], ways[4], ways[6], ways[9]}) {
        all.push_back(way);
        all.back().frozen = true;
    }
    std::size_t turn = 0;
    for (Way from : all) {
        from.schedule = turn++;
        INFO("saved by ", from.words());
        Folder const folder;
        auto const saves = make(from);
        for (std::size_t step = 0; step < 3; ++step) saves->step(data_of(step));
        saves->save(folder / "state");
        std::size_t const savers = from.devices.empty()
                                       ? (from.shards ? from.replicas : 1)
                                       : from.devices.size() * (from.shards ? from.replicas : 1);
        CHECK(files_in(folder) <= savers); // who has nothing of it saves nothing
        CHECK(files_in(folder) >= std::min<std::size_t>(savers, 2));
        std::vector<double> after;
        for (std::size_t step = 3; step < 6; ++step) after.push_back(saves->step(data_of(step)));
        std::vector<double>& known = expected[from.frozen][from.replicas];
        if (known.empty()) known = after;
        CHECK(after == known);
        for (Way to : all) {
            if (to.frozen != from.frozen || toy::left_out(point, 5)) continue;
            to.seed = 9; // what it begins with is not what it loads
            to.schedule = turn++;
            INFO("loaded by ", to.words());
            auto const loads = make(to);
            gpipe::SavedState const state = loads->load(folder / "state", {});
            CHECK(state.steps == 3);
            CHECK(state.seed == 5);
            CHECK(state.metadata == gpipe::StateMetadata{{"place", "7"}});
            CHECK(gpipe::saved_state(folder / "state").steps == 3);
            for (std::size_t step = 3; step < 6; ++step) {
                double const loss = loads->step(data_of(step));
                if (from.replicas == to.replicas)
                    CHECK(loss == after[step - 3]);
                else
                    CHECK(loss == doctest::Approx(after[step - 3]).epsilon(1e-4));
            }
            // What it saves is what it has loaded.
            Folder const again;
            auto const copies = make(to);
            copies->load(folder / "state", {});
            copies->save(again / "state");
            auto const last = make(from);
            last->load(again / "state", {});
            for (std::size_t step = 3; step < 6; ++step)
                CHECK(last->step(data_of(step)) == after[step - 3]);
            ++loaded;
        }
    }
    CHECK((loaded == ways.size() * ways.size() + 5 * 5 || toy::sanitized));
}

TEST_CASE("a state that is saved again takes the old one's place, and nothing of that is left") {
    for (Way const& way : ways) {
        INFO(way.words());
        Folder const folder;
        auto const train = make(way);
        // However the folder is written.
        std::string const path = folder.path + (way.k == 2 ? "//state" : "/./state");
        train->save(path);
        std::size_t const files = files_in(folder);
        // Of others, and a rest of a save that was killed.
        folder.write("state.9-more", "mine");
        folder.write("states.1-0123456789abcdef-1-of-2", "mine");
        folder.write("state.1-0123456789abcdef-1-of-2", "left");
        folder.write("state.1-0123456789abcdef-1-of-2.partial", "left");
        fs::create_symlink("left", folder / "state.1-0123456789abcdef-1-of-2.failed");
        for (int n = 0; n < 2; ++n) {
            train->step(data_of(1));
            train->save(path);
            train->save(path); // of the same step
        }
        CHECK(files_in(folder) == files + 2);
        CHECK(fs::exists(folder / "state.9-more"));
        CHECK(make(way)->load(folder / "state", {}).steps == 2);
    }
}

TEST_CASE("all save in the background while they train on, and what is there then is that moment's "
          "state") {
    for (Way const& way : ways) {
        INFO(way.words());
        Folder const folder;
        auto const train = make(way);
        for (std::size_t step = 0; step < 3; ++step) train->step(data_of(step));
        train->start_save(folder / "state");
        std::vector<double> after;
        for (std::size_t step = 3; step < 6; ++step) after.push_back(train->step(data_of(step)));
        train->wait();
        train->wait(); // again
        auto const loads = make(way);
        gpipe::SavedState const state = loads->load(folder / "state", {});
        CHECK(state.steps == 3);
        CHECK(state.metadata == gpipe::StateMetadata{{"place", "7"}});
        for (std::size_t step = 3; step < 6; ++step)
            CHECK(loads->step(data_of(step)) == after[step - 3]);
        // Nobody waits: the next one does, of either kind.
        for (std::size_t n = 0; n < 4; ++n) {
            train->start_save(folder / "state");
            train->step(data_of(n));
        }
        train->save(folder / "whole");
        CHECK(gpipe::saved_state(folder / "state").steps == 9);
        CHECK(gpipe::saved_state(folder / "whole").steps == 10);
        fs::remove(folder / "whole");
        CHECK(make(way)->load(folder / "state", {}).steps == 9);
        // And the end of the training.
        {
            auto const ends = make(way);
            ends->load(folder / "state", {});
            ends->start_save(folder / "last");
        }
        CHECK(make(way)->load(folder / "last", {}).steps == 9);
    }
}

TEST_CASE("what goes wrong in the background on one rank all hear of at the next save, and the old "
          "state is there, or the new") {
    std::size_t failed = 0, old = 0;
    for (Way const& way : {Way{1, false, {1, 1, 1}}, Way{1, false, {2, 1}}, Way{2, true, {1, 1}}})
        for (std::size_t n = 2; n <= 21; ++n) {
            std::size_t const at = n / 2;
            bool const lasts = n % 2; // at all behind it, too
            INFO(way.words(), ", fsync ", at, std::string(lasts ? " and behind" : ""));
            Folder const folder;
            std::string const path = folder / "state";
            auto const train = make(way);
            train->step(data_of(0));
            train->save(path);
            std::size_t const files = files_in(folder);
            train->step(data_of(1));
            bool wrong = false;
            {
                toy::SystemCalls const watch({"fsync", at, toy::CallFault::fails, 28, lasts});
                train->start_save(path);
                train->step(data_of(2));
                std::string said;
                try {
                    train->save(folder / "other");
                } catch (StateError const& error) {
                    said = error.what();
                    wrong = true;
                }
                INFO(said);
                CHECK(wrong == (watch.count() >= at));
                if (wrong)
                    CHECK((said.find("fsync: No space left") != std::string::npos ||
                           said.find("could not save") != std::string::npos));
            }
            std::uint64_t const found = make(way)->load(path, {}).steps;
            CHECK((wrong ? found == 1 || found == 2 : found == 2));
            failed += wrong;
            old += found == 1;
            if (found == 1) CHECK(files_in(folder) == files);
            train->start_save(path);
            train->wait();
            CHECK(make(way)->load(path, {}).steps == 3);
        }
    CHECK(failed > 40);
    CHECK(old > 20);
}

TEST_CASE(
    "what wait() has said of a save in the background, where it went wrong, the next one says "
    "on ranks that have not heard of it, and then it saves") {
    for (Way const& way : {Way{1, false, {1, 1, 1}}, Way{1, false, {}, 2}}) {
        Folder const folder;
        auto const train = make(way);
        train->save(folder / "state");
        train->step(data_of(1));
        bool said = false;
        {
            toy::SystemCalls const watch({"fsync", 1, toy::CallFault::fails, 28});
            train->start_save(folder / "state");
            try {
                train->give_up_and_wait();
            } catch (StateError const&) {
                said = true;
            }
        }
        CHECK(said);
        if (way.devices.size() > 1)
            CHECK_THROWS_WITH_AS(train->save(folder / "state"), doctest::Contains("fsync"),
                                 StateError);
        CHECK_NOTHROW(train->save(folder / "state"));
        CHECK(make(way)->load(folder / "state", {}).steps == 1);
    }
}

TEST_CASE(
    "a rank that is lost while all save in the background, or cannot, nobody waits for, unless its "
    "part is there") {
    // Of two only the second has parameters, and so the first call of each kind.
    using Net = gpipe::Pipeline<toy::Tanh<float, 5>, toy::Linear<float, 5, 3>>;
    using T = Train<Net, Nothing, toy::Wired>;
    auto const made = [] {
        return std::make_unique<toy::Crew<T>>(
            Sizes{1, 1}, false, 1, [](std::size_t, toy::Rank::Options device) {
                auto o = options<T>({}, 2);
                o.device = device;
                return std::make_unique<T>(Net{}, Loss{}, Adam{1e-2f}, o);
            });
    };
    Folder const folder;
    std::string path = folder / "state";
    std::optional<gpipe::PendingSave> pending[2];
    auto const start = [&](toy::Crew<T>& crew) {
        crew.step(data_of(0).inputs, data_of(0).targets);
        crew.each([&](std::size_t r) { pending[r] = gpipe::start_save(crew[r], path); });
        crew.rethrow();
    };
    auto const start_torn = [&](toy::Crew<T>& crew) {
        toy::SystemCalls const watch({"fsync symlink", 1, toy::CallFault::fails, 28, true});
        start(crew);
        CHECK_THROWS_AS(pending[1]->wait(), StateError);
    };
    auto const said = [&] {
        std::string words;
        try {
            pending[0]->wait();
        } catch (StateError const& error) {
            words = error.what();
        }
        return words;
    };
    std::string const late = "which another rank is to write, has not come";
    auto const begin = std::chrono::steady_clock::now();
    {
        auto const crew = made();
        start_torn(*crew);
        crew->wire->leave(1, "has ended\n  rank 0 was in no step");
        std::string const words = said();
        INFO(words);
        CHECK(words.ends_with(late + ": rank 1 has ended"));
        CHECK(files_in(folder) == 0);
    }
    { // who asks is gone by then
        auto crew = made();
        start_torn(*crew);
        crew.reset();
        CHECK_FALSE(pending[0]->ready());
        pending[0]->give_up();
        std::string const words = said();
        INFO(words);
        CHECK(words.ends_with(late + ": do all ranks see this folder?"));
    }
    { // it can say so itself
        auto const crew = made();
        {
            toy::SystemCalls const watch({"fsync", 1, toy::CallFault::fails, 28});
            start(*crew);
            CHECK_THROWS_AS(pending[1]->wait(), StateError);
        }
        std::string const words = said();
        INFO(words);
        CHECK(words.find("-1-of-2 could not be written: " + path) != std::string::npos);
        CHECK(words.ends_with("-1-of-2.partial: fsync: No space left on device"));
        CHECK(files_in(folder) == 0);
    }
    { // in more words than a link has room for, under a long path
        std::string deep = folder.path;
        while (deep.size() + 240 < 4040) fs::create_directory(deep += '/' + std::string(200, 'd'));
        fs::create_directory(deep += '/' + std::string(4040 - deep.size(), 'd'));
        std::string const before = std::exchange(path, deep + "/state");
        auto const crew = made();
        {
            toy::SystemCalls const watch({"fsync", 1, toy::CallFault::fails, 28});
            start(*crew);
            CHECK_THROWS_AS(pending[1]->wait(), StateError);
        }
        CHECK(said().ends_with("-1-of-2.partial: fsync: No space left on device"));
        path = before;
    }
    { // when its part is there, but its folder not on the disk (or the first says that of its own)
        auto const crew = made();
        {
            toy::SystemCalls const watch({"fsync", 2, toy::CallFault::fails, 28});
            start(*crew);
            while (!pending[0]->ready() || !pending[1]->ready()) ::sched_yield();
        }
        std::vector<std::string> notes; // as late as they may come
        for (auto const& entry : fs::directory_iterator(folder.path))
            if (entry.is_regular_file() && entry.path() != path)
                notes.push_back(entry.path().string() + ".failed");
        for (std::string const& note : notes) fs::create_symlink("late", note);
        crew->each([&](std::size_t r) { gpipe::save((*crew)[r], folder / "other"); });
        CHECK_THROWS_AS(crew->rethrow(), StateError);
        for (std::string const& note : notes) CHECK(!fs::is_symlink(note));
        fs::remove(path);
    }
    {
        auto const crew = made();
        start(*crew);
        pending[1]->wait();
        crew->wire->leave(1);
        CHECK(said().empty());
        CHECK(gpipe::saved_state(path).steps == 1);
    }
    CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(30));
}

TEST_CASE("ranks that do not see one folder save nothing, and what was there stays") {
    Folder const folder;
    for (char const* const name : {"one", "other"}) fs::create_directory(folder / name);
    using Net = gpipe::Pipeline<toy::Linear<float, 5, 5>, toy::Linear<float, 5, 3>>;
    using T = Train<Net, Nothing, toy::Wired>;
    toy::Crew<T> crew(Sizes{1, 1}, false, 1, [](std::size_t, toy::Rank::Options device) {
        auto o = options<T>({}, 2);
        o.device = device;
        return std::make_unique<T>(Net{}, Loss{}, Adam{1e-2f}, o);
    });
    auto const files = [&](char const* name) {
        return std::distance(fs::directory_iterator(folder / name), fs::directory_iterator());
    };
    bool apart = false;
    auto const save = [&] {
        crew.each([&](std::size_t r) { // a thread may have a current folder of its own
            if (unshare(CLONE_FS) != 0) throw std::runtime_error("no folder of its own");
            fs::current_path(folder / (apart && r == 1 ? "other" : "one"));
            gpipe::save(crew[r], "state");
        });
    };
    save();
    crew.rethrow();
    crew.step(data_of(0).inputs, data_of(0).targets);
    apart = true;
    save();
    for (std::exception_ptr const& error : crew.errors)
        CHECK_THROWS_WITH_AS(error ? std::rethrow_exception(error) : void(),
                             doctest::Contains("has not come: do all ranks see this folder?"),
                             StateError);
    CHECK(files("other") == 0);
    CHECK(files("one") == 2);
    CHECK(gpipe::saved_state(folder / "one/state").steps == 0);
    apart = false;
    save();
    crew.rethrow();
    CHECK(gpipe::saved_state(folder / "one/state").steps == 1);
}

TEST_CASE("all have room for what is saved in the background, or nobody begins") {
    Folder const folder;
    for (Way way : {Way{1, false, {1, 1}}, Way{2, true, {}, 2}}) {
        way.snapshot = false;
        auto const train = make(way);
        CHECK_THROWS_WITH_AS(train->start_save(folder / "state"),
                             "gpipe: start_save() copies what it saves into host memory that is "
                             "there only if Options::snapshot is true, on all ranks: it is not on "
                             "rank 0",
                             std::invalid_argument);
        CHECK(files_in(folder) == 0);
    }
}

TEST_CASE("through a link all files come to stand beside what it stands for, and are found there") {
    for (Way const& way : ways) {
        INFO(way.words());
        Folder const folder;
        fs::create_directory(folder / "runs");
        fs::create_symlink("runs/last", folder / "latest");
        auto const train = make(way);
        for (int n = 0; n < 2; ++n) {
            train->step(data_of(n));
            train->save(folder / "latest");
        }
        CHECK(fs::is_symlink(folder / "latest"));
        CHECK(files_in(folder) == 1); // the link itself
        CHECK(make(way)->load(folder / "latest", {}).steps == 2);
        CHECK(make(way)->load(folder / "runs/last", {}).steps == 2);
    }
}

TEST_CASE("a state has any name that its files beside can have: those are told by line, as UTF-8") {
    for (Way const& way : {Way{1, false, {}, 2}, Way{1, false, {1, 1}}, Way{2, true, {}, 2}}) {
        INFO(way.words());
        bool const is_alone = way.devices.empty() && !way.shards;
        for (std::string const name : {" ", "a b", "\"\\", "\u00fc@1", ".5-0-1-of-2", "-"}) {
            Folder const folder;
            auto const train = make(way);
            train->save(folder / name);
            CHECK(make(way)->load(folder / name, {}).steps == 0);
        }
        for (std::string const name : {"a\nb", "a\xff"}) {
            Folder const folder;
            auto const train = make(way);
            auto const says = [&](auto f) {
                try {
                    f();
                } catch (StateError const& error) {
                    return std::string(error.what());
                }
                return std::string();
            };
            std::string const words =
                is_alone         ? ""
                : name == "a\nb" ? "gpipe: " + (folder / name) +
                                       ": the name of a state that has files beside it is to be "
                                       "one line"
                                 : "gpipe: cannot save this state: a name or the metadata are not "
                                   "UTF-8 text";
            CHECK(says([&] { train->save(folder / name); }) == words);
            CHECK(says([&] { train->start_save(folder / name); }) == words);
            CHECK(says([&] { train->save(folder / name); }) == words);
            CHECK(files_in(folder) == is_alone);
        }
    }
}

TEST_CASE("where one rank cannot save, none has, and the old state is there") {
    Folder const folder;
    std::string const path = folder / "state";
    for (Way const& way : {Way{1, false, {1, 1, 1}}, Way{2, true, {}, 2}}) {
        auto const train = make(way);
        train->step(data_of(0));
        train->save(path);
        std::size_t const files = files_in(folder);
        train->step(data_of(1));
        // A folder by the name of what the first would write: its rename fails.
        fs::rename(path, folder / "kept");
        fs::create_directory(path);
        for (int n = 0; n < 3; ++n) {
            CHECK_THROWS_AS(train->save(path), StateError);
            CHECK(files_in(folder) == files);
        }
        // In the background: the next one removes what it has left.
        for (int n = 0; n < 3; ++n) {
            train->start_save(path);
            CHECK_THROWS_AS(train->save(path), StateError);
            CHECK(files_in(folder) == files);
            train->start_save(path);
            CHECK_THROWS_AS(train->give_up_and_wait(), StateError);
            CHECK_THROWS_AS(train->save(path), StateError);
            CHECK(files_in(folder) == files);
        }
        fs::remove(path);
        fs::rename(folder / "kept", path);
        CHECK(make(way)->load(path, {}).steps == 1);
        train->save(path);
        CHECK(files_in(folder) == files);
        CHECK(make(way)->load(path, {}).steps == 2);
    }
}

TEST_CASE(
    "whichever call fails in a save, no part is left that the state does not name, and all hear "
    "why") {
    for (std::string const call : {"fsync", "rename", "write"})
        for (std::size_t at = 1; at <= 8; ++at) {
            INFO(call, " ", at);
            Folder const folder;
            std::string const path = folder / "state";
            OnRanks<Nothing> train({1, false, {1, 1, 1}});
            train.step(data_of(0));
            train.save(path);
            std::size_t const files = files_in(folder);
            train.step(data_of(1));
            bool struck = false;
            {
                toy::SystemCalls const watch({call, at, toy::CallFault::fails, 28});
                train.crew.each([&](std::size_t r) { gpipe::save(train.crew[r], path); });
                struck = watch.count() >= at;
            }
            auto const errors = train.crew.errors;
            bool const is_new = train.load(path, {}).steps == 2;
            for (auto const& error : errors) {
                CHECK((error != nullptr) == struck);
                std::string const words = gpipe::detail::what_of(error);
                INFO(words);
                CHECK((!struck || words.ends_with(": No space left on device")));
            }
            // The state is new where only its folder could not be brought to the disk.
            CHECK((!struck || !is_new || call == "fsync"));
            CHECK(files_in(folder) == (struck && is_new ? 2 * files - 1 : files));
        }
}

TEST_CASE("files of another state, or none, are refused, on all ranks, and nothing has changed") {
    Way const way{2, true, {1, 1}};
    Folder const folder;
    std::string const path = folder / "state";
    auto const train = make(way), other = make(way);
    train->step(data_of(0));
    train->save(path);
    std::vector<fs::path> shards;
    for (auto const& entry : fs::directory_iterator(folder.path))
        if (entry.path().filename() != "state") shards.push_back(entry.path());
    REQUIRE(shards.size() >= 2);
    auto const refused = [&](std::string const& words) {
        std::string said;
        try {
            other->load(path, {});
        } catch (StateError const& error) {
            said = error.what();
        }
        INFO(said);
        CHECK(said.find(words) != std::string::npos);
    };
    for (fs::path const& shard : shards) {
        std::string const whole = folder.content(shard.filename().string());
        fs::remove(shard);
        refused("No such file or directory");
        folder.write(shard.filename().string(), whole.substr(0, whole.size() / 2));
        refused(shard.filename().string());
        // As many bytes, of another save.
        std::string wrong = whole;
        std::size_t const at = wrong.find("gpipe.save") + 14;
        wrong[at] = wrong[at] == '1' ? '2' : '1';
        folder.write(shard.filename().string(), wrong);
        refused("belongs to another state than");
        // A part that is not where it was.
        wrong = whole;
        std::uint64_t header = 0;
        std::memcpy(&header, wrong.data(), sizeof header);
        if (std::size_t const part = wrong.find('@'); part < sizeof header + header) {
            wrong[part + 1] = wrong[part + 1] == '9' ? '8' : '9';
            folder.write(shard.filename().string(), wrong);
            refused("the parts of optimizer.");
        }
        folder.write(shard.filename().string(), whole);
    }
    std::string const whole = folder.content("state");
    std::string wrong = whole;
    wrong[wrong.find("state.1-")] = '/';
    folder.write("state", wrong);
    refused("no file beside it");
    folder.write("state", whole);
    CHECK(other->load(path, {}).steps == 1);
    CHECK(other->step(data_of(1)) == train->step(data_of(1)));
}

TEST_CASE("parameters alone are loaded from the files of several ranks") {
    Folder const folder;
    auto const train = make({2, true, {1, 1}});
    train->step(data_of(0));
    train->save(folder / "state");
    auto const whole = make({1, false, {1, 2}}), one = make({1, false, {}, 1});
    gpipe::LoadOptions only;
    only.only = {"layer."};
    CHECK(whole->load(folder / "state", only).steps == 1);
    one->load(folder / "state", only);
    CHECK(whole->step(data_of(1)) == one->step(data_of(1)));
    only.only = {"optimizer.7."};
    CHECK_THROWS_AS(whole->load(folder / "state", only), StateError);
}

TEST_CASE("ranks that save to other paths, or do something else, are refused, and the state that "
          "was there is whole") {
    Folder const folder;
    OnRanks<Nothing> train({1, false, {1, 2}});
    train.step(data_of(0));
    train.save(folder / "state");
    CHECK_THROWS_WITH_AS(train.on_all([&](std::size_t r) {
        gpipe::save(train.crew[r], folder / (r == 0 ? "state" : "elsewhere"));
    }),
                         "gpipe: rank 1 saves to another path than rank 0", std::invalid_argument);
    CHECK_THROWS_WITH_AS(train.on_all([&](std::size_t r) {
        if (r == 0) return gpipe::save(train.crew[r], folder / "state");
        gpipe::load(train.crew[r], folder / "state");
    }),
                         "gpipe: rank 0 is told to save, but rank 1 to load: all have to be told "
                         "the same",
                         std::invalid_argument);
    CHECK_THROWS_WITH_AS(
        train.on_all([&](std::size_t r) {
            if (r == 0) return gpipe::save(train.crew[r], folder / "state");
            gpipe::start_save(train.crew[r], folder / "state").wait();
        }),
        "gpipe: rank 0 is told to save, but rank 1 to start a save: all have to be "
        "told the same",
        std::invalid_argument);
    train.step(data_of(1));
    CHECK(train.load(folder / "state", {}).steps == 1);
    CHECK(files_in(folder) == 2);
    // And so are ranks that load other states, or other tensors.
    Folder const elsewhere;
    train.step(data_of(1));
    train.save(elsewhere / "state");
    auto const told = [&](std::string const& words, auto path, auto options) {
        CHECK_THROWS_WITH_AS(
            train.on_all([&](std::size_t r) { gpipe::load(train.crew[r], path(r), options(r)); }),
            words.c_str(), std::invalid_argument);
    };
    auto const same = [&](std::size_t) { return folder / "state"; };
    told(
        "gpipe: rank 1 loads from another path than rank 0",
        [&](std::size_t r) { return (r == 0 ? folder : elsewhere) / "state"; },
        [](std::size_t) { return gpipe::LoadOptions{}; });
    told("gpipe: rank 1 loads with other LoadOptions than rank 0", same, [](std::size_t r) {
        return gpipe::LoadOptions{.only = {r == 0 ? "layer." : "layer.0002."}};
    });
    told("gpipe: rank 1 loads with other LoadOptions than rank 0", same,
         [](std::size_t r) { return gpipe::LoadOptions{.types = r == 0}; });
    told("gpipe: rank 1 loads with other LoadOptions than rank 0", same, [](std::size_t r) {
        return r == 0 ? gpipe::LoadOptions{}
                      : gpipe::LoadOptions{.rename = gpipe::moved_layers(9, 1)};
    });
    CHECK(train.load(folder / "state", {.rename = gpipe::moved_layers(9, 1)}).steps == 1);
    CHECK(train.load(folder / "state", {}).steps == 1);
    // One process saves over it: nothing else is left.
    InOne<Nothing> alone({});
    alone.load(folder / "state", {});
    folder.write("state.of-mine", "mine");
    alone.save(folder / "state");
    CHECK(files_in(folder) == 2);
    CHECK(gpipe::saved_state(folder / "state").steps == 1);
    train.save(folder / "state");
    CHECK(files_in(folder) == 3);
    alone.start_save(folder / "state");
    alone.wait();
    CHECK(files_in(folder) == 2);
}

namespace {

// A chain on as many ranks, saved by them, now and in the background, is what one has that loads
// it.
template <class... Layers> void loads_what_ranks_save() {
    using Chain = gpipe::Pipeline<Layers...>;
    constexpr std::size_t K = sizeof...(Layers);
    using OnRanks = gpipe::Training<Chain, gpipe::Cells<K>, gpipe::MicroBatches<2>,
                                    gpipe::Loss<Loss>, toy::Wired>;
    Folder const folder;
    auto crew = toy::Crew<OnRanks>(
        std::vector<std::size_t>(K, 1), false, 1, [](std::size_t, toy::Rank::Options device) {
            typename OnRanks::Options options;
            options.samples = 4;
            options.device = device;
            options.snapshot = true;
            return std::make_unique<OnRanks>(Chain{}, Loss{}, gpipe::SGD{}, options);
        });
    std::vector<float> const data(12, 0.5f);
    for (bool const begun : {false, true, true}) {
        crew.each([&](std::size_t r) {
            crew[r].step(data, data);
            if (begun)
                gpipe::start_save(crew[r], folder / "state").wait();
            else
                gpipe::save(crew[r], folder / "state");
        });
        crew.rethrow();
        gpipe::Training<Chain, gpipe::MicroBatches<2>, gpipe::Loss<Loss>> one{
            Chain{}, Loss{}, {}, {.samples = 4}};
        gpipe::load(one, folder / "state");
        CHECK(one.steps() == crew[0].steps());
        double const loss = one.step(data, data);
        crew.each([&](std::size_t r) { CHECK(crew[r].step(data, data).loss == loss); });
        crew.rethrow();
    }
}

} // namespace

TEST_CASE("a state is whole, whichever ranks have nothing to save") {
    using Learns = toy::Linear<float, 3, 3>;
    using Learned = toy::Tanh<float, 3>;
    loads_what_ranks_save<Learned, Learns>();
    loads_what_ranks_save<Learns, Learned>();
    loads_what_ranks_save<Learned, Learns, Learned, Learns>();
    loads_what_ranks_save<Learns, Learned, Learns>();
    loads_what_ranks_save<Learned, Learned>();
}

TEST_CASE(
    "where one rank has no memory in the midst of a save, or a load, all throw, nobody waits, "
    "and nothing is lost") {
    double expected[3] = {}; // of the next step, by steps before
    auto const plain = make({});
    for (std::size_t step = 0; step < 3; ++step) {
        Folder const folder;
        plain->save(folder / "state");
        expected[step] = plain->step(data_of(2));
        plain->load(folder / "state", {});
        plain->step(data_of(step));
    }
    enum { saves, starts, loads };
    std::string const where[] = {"save()", "start_save()", "load()"};
    for (Sizes const& devices : {Sizes{1, 2}, Sizes{1, 1, 1}})
        for (int const what : {saves, starts, loads})
            for (std::size_t rank = 0; rank < devices.size(); ++rank) {
                INFO(where[what], ", rank ", rank, " of ", devices.size());
                Folder const folder;
                std::string const path = folder / "state";
                OnRanks<Nothing> train({1, false, devices});
                train.step(data_of(0));
                train.save(folder / "before");
                train.save(path);
                train.step(data_of(1));
                train.save(folder / "behind");
                std::size_t gathers = 0;
                train.crew.without_memory(
                    rank, where[what],
                    [&](std::size_t r) {
                        if (what == saves)
                            gpipe::save(train.crew[r], path);
                        else if (what == starts)
                            gpipe::start_save(train.crew[r], path).wait();
                        else
                            gpipe::load(train.crew[r], path);
                    },
                    [&](bool had_memory, std::string const& wrong) {
                        CHECK(wrong == "");
                        auto const one = make({});
                        std::size_t const there = one->load(path, {}).steps;
                        CHECK((there == 1 || there == 2));
                        if (had_memory) CHECK(there == (what == loads ? 1 : 2));
                        CHECK(one->step(data_of(2)) == expected[there]);
                        std::size_t const steps = had_memory && what == loads ? 1 : 2;
                        CHECK(train.step(data_of(2)) == expected[steps]);
                        train.load(folder / "before", {});
                        train.save(path);
                        CHECK(files_in(folder) == 3 * devices.size());
                        train.load(folder / "behind", {});
                        ++gathers;
                    });
                CHECK(gathers > 3);
            }
}

#ifdef GPIPE_COUNTS_ALLOCATIONS
TEST_CASE("where there is no memory to save, or to load, that is thrown, and what was there is "
          "there") {
    for (Way const& way : {Way{1, false, {}, 2}, Way{2, true, {}, 1}}) {
        Folder const folder;
        std::string const path = folder / "state";
        auto const train = make(way), other = make(way);
        double expected[3] = {}; // of the next step, by steps before
        for (std::size_t step = 1; step < 3; ++step) {
            train->step(data_of(step));
            train->save(folder / "behind");
            other->load(folder / "behind", {});
            expected[step] = other->step(data_of(3));
            if (step == 1) train->save(folder / "before");
        }
        enum { saves, starts, loads };
        for (int const what : {saves, starts, loads}) {
            long n = 0;
            std::size_t there = 0; // steps of the state at the path
            for (bool ends = false; !ends; n += toy::long_tests() ? 1 : 7) {
                INFO(way.words(), ", ", what, ", allocation ", n);
                if (there != 1) {
                    train->load(folder / "before", {});
                    train->save(path);
                }
                train->load(folder / "behind", {});
                bool thrown = false;
                toy::allocations_left = n;
                try {
                    if (what == saves) train->save(path);
                    if (what == starts) train->start_save(path), train->wait();
                    if (what == loads) train->load(path, {});
                } catch (std::exception const& error) { // perhaps with another replica's words
                    thrown = true;
                    CHECK(std::string(error.what()).find("std::bad_alloc") != std::string::npos);
                }
                ends = toy::allocations_left.exchange(-1) >= 0;
                CHECK((!thrown || !ends));
                there = other->load(path, {}).steps;
                CHECK((there == 1 || there == 2));
                if (!thrown) CHECK(there == (what == loads ? 1 : 2));
                CHECK(other->step(data_of(3)) == expected[there]);
                CHECK(train->step(data_of(3)) == expected[what == loads && !thrown ? 1 : 2]);
            }
            CHECK(n > 100);
        }
    }
}
#endif
