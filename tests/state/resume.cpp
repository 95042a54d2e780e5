// A training that is saved and goes on elsewhere: on other devices, under other policies, it is the
// same training, bit for bit.
#include "support/buffer_layers.hpp"
#include "support/folder.hpp"
#include "support/net.hpp"
#include "support/system_calls.hpp"

#include <gpipe/optimizer/one_of.hpp>
#include <gpipe/replicas.hpp>
#include <gpipe/state/state.hpp>

#include <doctest/doctest.h>

#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {

using gpipe::StateError;
using Host = gpipe::device::Host;
using toy::Folder;

using Overflows = gpipe::Pipeline<toy::Linear<float, 5, 6>, toy::Limited<float, 6>,
                                  toy::Dropout<float, 6>, toy::Linear<float, 6, 3>>;

template <class T> using Train = toy::Train<T, Host>;
template <class T> struct Trainer {
    toy::Watch watch;
    std::unique_ptr<Train<T>> train;

    explicit Trainer(std::size_t cells, std::size_t micro_batches, std::uint64_t seed,
                     gpipe::schedule::Dynamic schedule = gpipe::schedule::OneForwardOneBackward{},
                     gpipe::checkpoint::Dynamic checkpointing = gpipe::checkpoint::Never{},
                     std::size_t threads = 1, bool snapshot = false) {
        typename Train<T>::Options options;
        options.samples = 8;
        options.seed = seed;
        options.cells = cells;
        options.micro_batches = micro_batches;
        options.schedule = schedule;
        options.checkpointing = checkpointing;
        options.device.threads = threads;
        options.snapshot = snapshot;
        train = std::make_unique<Train<T>>(toy::make_net<T>(watch), toy::MeanSquare<T, 3>{},
                                           gpipe::Adam{1e-2f}, options);
    }
    Train<T>& operator*() { return *train; }
    // Steps [first, last) of the data; their losses.
    std::vector<double> steps(std::uint64_t first, std::uint64_t last) {
        std::vector<double> losses;
        for (std::uint64_t i = first; i < last; ++i) {
            toy::Data<T> const data(i % 2 ? 7 : 8, static_cast<std::uint32_t>(i));
            losses.push_back(train->step(data.inputs, data.targets).loss);
        }
        return losses;
    }
};

// All that save() would write, in its order.
template <class Train> std::vector<std::byte> state_of(Train& train) {
    std::vector<std::byte> all;
    auto& machine = gpipe::detail::MachineAccess::of(train);
    for (auto const& tensor : gpipe::detail::saved_here(gpipe::detail::state_of(machine, train)))
        all.insert(all.end(), tensor.memory, tensor.memory + tensor.bytes());
    return all;
}
std::string error_of(auto action) {
    try {
        action();
        return {};
    } catch (StateError const& error) {
        return error.what();
    }
}
bool has(std::string const& text, std::string const& words) {
    return text.find(words) != std::string::npos;
}
// A file into whose header so much was put; less, where that wraps.
void with_header_longer(std::string& file, std::size_t more) {
    std::uint64_t size = 0;
    std::memcpy(&size, file.data(), sizeof size);
    size += more;
    std::memcpy(file.data(), &size, sizeof size);
}

// A chain whose second layer can be another.
template <class Middle>
using Chain = gpipe::Pipeline<toy::Linear<float, 5, 6>, Middle, toy::Linear<float, 6, 3>>;
template <class Net, class Optimizer = gpipe::Adam> struct Small {
    using Train = toy::Training<Net, toy::MeanSquare<float, 3>, Optimizer, Host>;
    Train train{Net{}, {}, Optimizer{}, {.samples = 8, .seed = 4, .cells = 1}};
};
using First = Chain<toy::Tanh<float, 6>>;

struct Named : toy::Linear<float, 5, 6> {
    static constexpr char const* parameter_names[] = {"weight", "bias"};
};

} // namespace

TEST_CASE_TEMPLATE(
    "P1 5 steps, saved and loaded under any K, cut, schedule and checkpointing, and 5 "
    "more are 10 steps in every bit",
    T, float, double) {
    Folder const folder;
    std::size_t resumed = 0;
    std::size_t point = 0;
    for (std::size_t micro_batches : {1, 3, 4}) {
        Trainer<T> whole(1, micro_batches, 3);
        std::vector<double> const losses = whole.steps(0, 10);
        std::vector<std::byte> const expected = state_of(*whole);
        for (toy::NamedSchedule const& there : toy::schedules) {
            if (there.order != toy::Backward::ascending) continue;
            Trainer<T> first(4, micro_batches, 3, there.policy, gpipe::checkpoint::ExceptLast{}, 2);
            first.steps(0, 5);
            gpipe::save(*first, folder / "s");
            std::vector<std::byte> const saved = state_of(*first);
            for (std::size_t cells : {1, 2, 8})
                for (toy::NamedSchedule const& here : toy::schedules)
                    for (toy::NamedCheckpointing const& checkpointing :
                         toy::every_checkpointing()) {
                        if (here.order != toy::Backward::ascending) continue;
                        if (point++ % toy::one_of(29) != 0) continue;
                        INFO("M = ", micro_batches, ", ", there.name, ", K = ", cells, ", ",
                             here.name, ", ", checkpointing.name);
                        // Another seed, and what is loaded replaces what a step left.
                        Trainer<T> second(cells, micro_batches, 77, here.policy,
                                          checkpointing.policy, 1 + point % 3);
                        second.steps(20, 21);
                        auto const state = gpipe::load(*second, folder / "s");
                        CHECK(state.seed == 3);
                        CHECK(state.steps == 5);
                        CHECK((*second).steps() == 5);
                        CHECK((*second).seed() == 3);
                        CHECK(state_of(*second) == saved);
                        std::vector<double> const rest = second.steps(5, 10);
                        CHECK(std::equal(rest.begin(), rest.end(), losses.begin() + 5));
                        CHECK(state_of(*second) == expected);
                        ++resumed;
                    }
        }
    }
    MESSAGE(resumed, " resumed");
    CHECK(resumed * toy::one_of(29) >= 3 * 4 * 3 * 4 * 18);
}

TEST_CASE("P1 likewise in the paper's order of backwards, and with immediate updates") {
    Folder const folder;
    Trainer<float> whole(1, 4, 3, gpipe::schedule::GPipe{});
    whole.steps(0, 10);
    Trainer<float> first(4, 4, 3, gpipe::schedule::GPipe{});
    first.steps(0, 5);
    gpipe::save(*first, folder / "s");
    Trainer<float> second(2, 4, 5, gpipe::schedule::GPipe{});
    gpipe::load(*second, folder / "s");
    second.steps(5, 10);
    CHECK(state_of(*second) == state_of(*whole));

    // Lanes may be in a step yet when save() is called.
    using Immediate =
        gpipe::Training<First, gpipe::Cells<2>, gpipe::MicroBatches<4>,
                        gpipe::Loss<toy::MeanSquare<float, 3>>, gpipe::Optimizer<gpipe::Adam>,
                        gpipe::update::Immediate, gpipe::schedule::OneForwardOneBackward>;
    auto const immediate = [](std::uint64_t seed) {
        Immediate::Options options{.samples = 8, .seed = seed};
        options.device.threads = 2;
        return std::make_unique<Immediate>(First{}, toy::MeanSquare<float, 3>{}, gpipe::Adam{},
                                           options);
    };
    toy::Data<float> const data(8);
    auto const one = immediate(1), two = immediate(1), three = immediate(2);
    for (int i = 0; i < 10; ++i) one->start(data.inputs, data.targets);
    for (int i = 0; i < 5; ++i) two->start(data.inputs, data.targets);
    gpipe::save(*two, folder / "i");
    gpipe::load(*three, folder / "i");
    for (int i = 0; i < 5; ++i) three->start(data.inputs, data.targets);
    CHECK(state_of(*three) == state_of(*one));
    CHECK(three->steps() == 10);
}

namespace {

// The ends of a tie: layers 0, 1 and 4.
struct Shared;
struct Scaled : toy::Linear<float, 5, 5> {
    using Tied = gpipe::Tie<Shared>;
};
using TiedNet =
    gpipe::Pipeline<Scaled, Scaled, toy::Tanh<float, 5>, toy::Linear<float, 5, 5>, Scaled,
                    gpipe::BatchNorm<gpipe::Tensor<float, 5>>, toy::Counter<float, 5>>;
using TrainTied =
    toy::Training<TiedNet, toy::MeanSquare<float, 5>, gpipe::Adam, gpipe::device::Host>;
std::unique_ptr<TrainTied> tied(std::size_t cells, std::uint64_t seed) {
    TrainTied::Options options{.samples = 8, .seed = seed, .cells = cells, .micro_batches = 4};
    options.snapshot = true;
    return std::make_unique<TrainTied>(TiedNet{}, toy::MeanSquare<float, 5>{}, gpipe::Adam{1e-2f},
                                       options);
}

} // namespace

TEST_CASE("tied parameters are saved once, buffers under their layers' names, and all go on from "
          "that") {
    Folder const folder;
    auto const x = toy::numbers<float>(40, 1), target = toy::numbers<float>(40, 2);
    auto const whole = tied(1, 3);
    for (int i = 0; i < 6; ++i) whole->step(x, target);
    for (std::size_t cells : {1, 2, 5}) {
        auto const first = tied(cells, 3), second = tied(6 - cells, 9);
        for (int i = 0; i < 3; ++i) first->step(x, target);
        gpipe::save(*first, folder / "s");
        gpipe::start_save(*first, folder / "t").wait();
        CHECK(folder.content("s") == folder.content("t"));
        CHECK(folder.content("s").find("layer.0000.0") != std::string::npos);
        CHECK(folder.content("s").find("layer.0001.0") == std::string::npos);
        CHECK(folder.content("s").find("layer.0004.1") != std::string::npos);
        for (char const* const name : {"5.running_mean", "5.running_var", "5.num_batches_tracked",
                                       "5.weight", "6.buffer.0", "6.buffer.1"})
            CHECK(folder.content("s").find(std::string("\"layer.000") + name + '"') !=
                  std::string::npos);
        gpipe::load(*second, folder / "s");
        for (int i = 0; i < 3; ++i) second->step(x, target);
        CHECK(second->evaluate(x, target).loss == whole->evaluate(x, target).loss);
        gpipe::save(*second, folder / "s");
        gpipe::save(*whole, folder / "w");
        CHECK(folder.content("s") == folder.content("w"));
    }
    // Nothing is read twice for one place.
    auto const all = gpipe::detail::state_of(gpipe::detail::MachineAccess::of(*whole), *whole);
    auto const& parts = all.own;
    for (std::size_t i = 0; i < parts.size(); ++i)
        for (std::size_t j = 0; j < i; ++j) CHECK(parts[i].memory != parts[j].memory);
    // Of somebody who has named it by another of its layers.
    std::string renamed = folder.content("w");
    std::string const first = "\"layer.0000.0\"";
    renamed.replace(renamed.find(first), first.size(), "\"layer.0001.0\"");
    folder.write("r", renamed);
    std::string const said = error_of([&] { gpipe::load(*whole, folder / "r"); });
    CHECK(has(said, "missing: layer.0000.0 F32[5, 5], as which layer.0001.0 has to be there: they "
                    "are tied\n"));
    CHECK(has(said, "unexpected: \"layer.0001.0\" F32[5, 5], which is tied to layer.0000.0"));
}

TEST_CASE("every bit comes back: payloads of NaN, signs of zero, denormals") {
    Folder const folder;
    Small<First> from, to;
    std::span<float> const values = from.train.parameter<float>(0, 0);
    for (std::size_t i = 0; i < values.size(); ++i) {
        std::uint32_t const bits = std::array<std::uint32_t, 6>{
            0x7fc00001, 0xff800123, 0x80000000, 0x00000001, 0x7f800000, 0xffffffff}[i % 6];
        std::memcpy(&values[i], &bits, sizeof bits);
    }
    gpipe::save(from.train, folder / "s");
    gpipe::load(to.train, folder / "s");
    CHECK(state_of(to.train) == state_of(from.train));
}

TEST_CASE("a file does not depend on how the training that wrote it runs") {
    Folder const folder;
    std::string files[2];
    std::size_t i = 0;
    for (std::size_t cells : {1, 4}) {
        Trainer<float> trainer(cells, 4, 9);
        trainer.steps(0, 3);
        gpipe::save(*trainer, folder / "s", {{"position", "12"}});
        files[i++] = folder.content("s");
    }
    CHECK(files[0] == files[1]);
    Trainer<float> other(1, 4, 9);
    CHECK_THROWS_WITH_AS(gpipe::save(*other, folder / "s", {{"position", "\xff"}}),
                         "gpipe: cannot save this state: a name or the metadata are not UTF-8 text",
                         gpipe::StateError);
    CHECK(folder.content("s") == files[1]);
    CHECK(has(files[0], "layer.0000.0"));
    auto const state = gpipe::saved_state(folder / "s");
    CHECK(state.seed == 9);
    CHECK(state.steps == 3);
    CHECK(state.metadata == gpipe::StateMetadata{{"position", "12"}});
}

TEST_CASE("A16 a layer may name its parameters") {
    Folder const folder;
    Small<gpipe::Pipeline<Named, toy::Linear<float, 6, 3>>, gpipe::AdamW> one;
    gpipe::save(one.train, folder / "s");
    for (char const* name :
         {"\"layer.0000.weight\"", "\"layer.0000.bias\"", "\"layer.0001.0\"", "\"layer.0001.1\"",
          "\"optimizer.0.layer.0000.weight\"", "\"optimizer.1.layer.0001.1\""})
        CHECK(has(folder.content("s"), name));
}

TEST_CASE("names of types are those without namespaces and arguments") {
    CHECK(gpipe::bare_name("toy::Linear<float, 4ul>") == "Linear");
    CHECK(gpipe::bare_name("(anonymous namespace)::Linear<a::b<c>, 4>") == "Linear");
    CHECK(gpipe::bare_name("{anonymous}::On<Host>::Block") == "Block");
    CHECK(gpipe::bare_name("Linear") == "Linear");
}

TEST_CASE("all that does not fit is in one error, and nothing is loaded") {
    Folder const folder;
    Small<Chain<toy::Square<float, 6>>> from;
    gpipe::save(from.train, folder / "s");

    // Another shape, another type, a tensor that is missing, one that nobody has.
    using Other = gpipe::Pipeline<toy::Linear<float, 5, 4>, toy::Tanh<float, 4>,
                                  toy::Linear<float, 4, 3>, toy::Linear<float, 3, 3>>;
    Small<Other> other;
    std::vector<std::byte> const before = state_of(other.train);
    std::string const error = error_of([&] { gpipe::load(other.train, folder / "s"); });
    for (char const* words :
         {"/s does not fit this training:", "\n  layer.0000.0 is F32[6, 5], not F32[4, 5]",
          "\n  layer.0000.1 is F32[6], not F32[4]",
          "\n  optimizer.1.layer.0000.0 is F32[6, 5], not F32[4, 5]",
          "\n  unexpected: \"layer.0001.0\" F32[6]",
          "\n  unexpected: \"optimizer.0.layer.0001.0\" F32[6]",
          "\n  missing: layer.0003.0 F32[3, 3]", "\n  missing: optimizer.1.layer.0003.1 F32[3]",
          "\n  layer 1 was \"Square F32[6] -> F32[6]\", not \"Tanh F32[4] -> F32[4]\"",
          "\n  it had 3 layers, not 4"}) {
        INFO(error, "\n", words);
        CHECK(has(error, words));
    }
    // What the rest follows from stands in front of it.
    CHECK(has(error, "this training:\n  it had 3 layers, not 4\n  layer 0 was "));
    CHECK(state_of(other.train) == before);

    using Doubles = gpipe::Pipeline<toy::Linear<double, 5, 6>, toy::Square<double, 6>,
                                    toy::Linear<double, 6, 3>>;
    toy::Training<Doubles, toy::MeanSquare<double, 3>, gpipe::Adam, Host> doubles(
        Doubles{}, {}, {}, {.samples = 8, .cells = 1});
    CHECK(has(error_of([&] { gpipe::load(doubles, folder / "s"); }),
              "layer.0001.0 is F32[6], not F64[6]"));

    // Layers without parameters count, too, unless their names do not; so does the optimizer.
    Small<First> tanh;
    Small<Chain<toy::Softsign<float, 6>>> softsign;
    gpipe::save(tanh.train, folder / "t");
    CHECK(has(error_of([&] { gpipe::load(softsign.train, folder / "t"); }),
              "layer 1 was \"Tanh F32[6] -> F32[6]\", not \"Softsign"));
    gpipe::load(softsign.train, folder / "t", {.types = false});
    Small<First, gpipe::AdamW> adamw;
    CHECK(has(error_of([&] { gpipe::load(adamw.train, folder / "t"); }),
              "its optimizer was \"Adam\", not \"AdamW\""));
    gpipe::load(adamw.train, folder / "t", {.types = false});
    CHECK(state_of(adamw.train) == state_of(tanh.train));
    // Groups have no state of their own.
    Small<First, gpipe::Grouped<gpipe::Adam>> grouped;
    gpipe::load(grouped.train, folder / "t");
    CHECK(state_of(grouped.train) == state_of(tanh.train));
    gpipe::save(grouped.train, folder / "grouped");
    gpipe::load(tanh.train, folder / "grouped");
    Small<First, gpipe::Grouped<gpipe::AdamW>> other_groups;
    CHECK(has(error_of([&] { gpipe::load(other_groups.train, folder / "grouped"); }),
              "its optimizer was \"Adam\", not \"AdamW\""));
    // One that is chosen at run time is known by the chosen one's name, and has its state only.
    using Chosen = toy::Training<First, toy::MeanSquare<float, 3>, gpipe::optimizer::Dynamic, Host>;
    auto const chosen = [](gpipe::optimizer::Dynamic optimizer) {
        return std::make_unique<Chosen>(First{}, toy::MeanSquare<float, 3>{}, optimizer,
                                        Chosen::Options{.samples = 8, .seed = 5, .cells = 1});
    };
    auto const dynamic = chosen(gpipe::Adam{});
    gpipe::load(*dynamic, folder / "t");
    CHECK(state_of(*dynamic) == state_of(tanh.train));
    CHECK(has(error_of([&] { gpipe::load(*chosen(gpipe::AdamW{}), folder / "t"); }),
              "its optimizer was \"Adam\", not \"AdamW\""));
    std::string const plain = error_of([&] { gpipe::load(*chosen(gpipe::SGD{}), folder / "t"); });
    INFO(plain);
    CHECK(has(plain, "unexpected: \"optimizer.1.layer.0000.0\""));
    CHECK(has(plain, "this training:\n  its optimizer was \"Adam\", not \"SGD\"\n")); // in front
    CHECK(!has(plain, "frozen"));
    Small<First, gpipe::SGD> sgd;
    CHECK(has(error_of([&] { gpipe::load(sgd.train, folder / "t"); }),
              "unexpected: \"optimizer.1.layer.0002.1\""));
}

TEST_CASE(
    "files that are none of ours, or not there, are errors with the path, and change nothing") {
    Folder const folder;
    Small<First> small;
    gpipe::save(small.train, folder / "s");
    std::string const file = folder.content("s");
    auto const refused = [&](std::string const& content, std::string const& words) {
        folder.write("bad", content);
        std::vector<std::byte> const before = state_of(small.train);
        std::string const error = error_of([&] { gpipe::load(small.train, folder / "bad"); });
        INFO(error);
        CHECK(has(error, "gpipe: " + (folder / "bad") + ": "));
        CHECK(has(error, words));
        CHECK(state_of(small.train) == before);
    };
    auto const with = [&](std::string const& from, std::string const& to) {
        std::string changed = file;
        changed.replace(changed.find(from), from.size(), to);
        return changed;
    };
    refused("", "0 bytes");
    refused("12345678", "the format ends at");
    refused("{\"weight_map\": {}}", "perhaps an index of several files");
    refused(file.substr(0, file.size() - 1), "behind the header the file has");
    refused(with("\"gpipe.step\":\"0\"", "\"gpipe.step\":\"x\""), "gpipe.step is \"x\", no number");
    refused(with("\"gpipe.step\":\"0\"", "\"gpipe.step\":\"\" "), "gpipe.step is \"\", no number");
    refused(with("gpipe.step", "gpipe.stop"), "it has no gpipe.step");
    refused(with("gpipe.format\":\"1", "gpipe.format\":\"2"), "its format is \"2\"");
    refused(with("gpipe.layers", "gpipe.lagers"), "it has no gpipe.layers");
    CHECK(has(error_of([&] { gpipe::load(small.train, folder / "none"); }),
              (folder / "none") + ": open: No such file or directory"));
    CHECK(has(error_of([&] { gpipe::load(small.train, folder.path); }), folder.path + ": read: "));
    REQUIRE(::mkfifo((folder / "pipe").c_str(), 0600) == 0);
    REQUIRE(::mkfifo((folder / "x.partial").c_str(), 0600) == 0);
    CHECK(has(error_of([&] { gpipe::load(small.train, folder / "pipe"); }), "/pipe: "));
    CHECK(has(error_of([&] { gpipe::save(small.train, folder / "x"); }), "/x.partial: open: "));
    CHECK_THROWS_AS(gpipe::save(small.train, folder / "x", {{"gpipe.step", "1"}}),
                    std::invalid_argument);

    // Cut off or with a bit turned anywhere: an error, or what stands there.
    std::size_t loaded = 0;
    for (std::size_t bit = 0; bit < 8 * file.size(); bit += toy::sanitized ? 7 : 1) {
        std::string other = file;
        other[bit / 8] = static_cast<char>(other[bit / 8] ^ (1 << bit % 8));
        folder.write("bad", other);
        std::vector<std::byte> const before = state_of(small.train);
        if (error_of([&] { gpipe::load(small.train, folder / "bad"); }).empty()) {
            ++loaded;
            std::vector<std::byte> const now = state_of(small.train);
            REQUIRE(std::memcmp(now.data(), other.data() + other.size() - now.size(), now.size()) ==
                    0);
        } else {
            REQUIRE(state_of(small.train) == before);
        }
        if (bit % 8 == 0) {
            folder.write("bad", file.substr(0, bit / 8));
            REQUIRE(error_of([&] { gpipe::load(small.train, folder / "bad"); }) != "");
        }
    }
    CHECK(loaded > 0);
}

TEST_CASE("only and except load some tensors by name, and leave all else as it is") {
    Folder const folder;
    Small<First> from;
    toy::Data<float> const data(8);
    for (int i = 0; i < 3; ++i) from.train.step(data.inputs, data.targets);
    gpipe::save(from.train, folder / "s");

    // Another head: only what comes before it.
    using Tuned = gpipe::Pipeline<toy::Linear<float, 5, 6>, toy::Tanh<float, 6>,
                                  toy::Linear<float, 6, 4>, toy::Linear<float, 4, 3>>;
    auto const same = [&](auto& train, std::size_t layer) {
        auto const a = train.template parameter<float>(layer, 0);
        auto const b = from.train.parameter<float>(layer, 0);
        return std::equal(a.begin(), a.end(), b.begin(), b.end());
    };
    for (gpipe::LoadOptions const& options :
         {gpipe::LoadOptions{.only = {"layer.0000"}},
          gpipe::LoadOptions{.only = {"layer."}, .except = {"*.0002.*", "layer.0003."}},
          gpipe::LoadOptions{.except = {"*.000[23].*", "*.0002.?", "*.0003.*", "optimizer."}}}) {
        Small<Tuned> to;
        std::vector<std::byte> const before = state_of(to.train);
        if (options.except.size() == 4) {
            CHECK(has(error_of([&] { gpipe::load(to.train, folder / "s", options); }),
                      "no tensor is called \"*.000[23].*\""));
            CHECK(state_of(to.train) == before);
            continue;
        }
        auto const state = gpipe::load(to.train, folder / "s", options);
        CHECK(state.steps == 3);
        CHECK(to.train.steps() == 0);
        CHECK(same(to.train, 0));
        std::size_t changed = 0;
        std::vector<std::byte> const now = state_of(to.train);
        for (std::size_t i = 0; i < now.size(); ++i) changed += now[i] != before[i];
        CHECK(changed > 0);
        CHECK(changed <= (5 * 6 + 6) * sizeof(float));
    }
    // What Adam has of its moments goes on from the step that they are of, if asked.
    Small<First> all, some;
    auto const begun = gpipe::load(some.train, folder / "s", {.except = {"layer.0000"}});
    CHECK(some.train.steps() == 0);
    gpipe::load(some.train, folder / "s", {.only = {"layer.0000"}, .steps = true});
    gpipe::load(all.train, folder / "s");
    CHECK(some.train.steps() == begun.steps);
    CHECK(some.train.seed() == all.train.seed());
    CHECK(all.train.step(data.inputs, data.targets).loss ==
          some.train.step(data.inputs, data.targets).loss);
    CHECK(state_of(all.train) == state_of(some.train));

    // Among what is chosen everything must fit.
    Small<Tuned> to;
    CHECK(has(error_of([&] { gpipe::load(to.train, folder / "s", {.only = {"layer."}}); }),
              "layer.0002.0 is F32[3, 6], not F32[4, 6]"));

    // Tensors of others: a file without anything of ours.
    std::string begin = gpipe::safetensors::file_begin(
        {{"layer.0000.1", gpipe::Dtype::F32, {6}, 0, 24}}, {{"format", "pt"}});
    std::array<float, 6> const bias{1, 2, 3, 4, 5, 6};
    begin.append(reinterpret_cast<char const*>(bias.data()), sizeof bias);
    folder.write("foreign", begin);
    auto const state = gpipe::load(to.train, folder / "foreign", {.only = {"layer.0000.1"}});
    CHECK(state.metadata == gpipe::StateMetadata{{"format", "pt"}});
    CHECK(to.train.parameter<float>(0, 1)[5] == 6);
    CHECK(has(error_of([&] {
                  gpipe::load(to.train, folder / "foreign",
                              {.only = {"layer.0000.1"}, .steps = true});
              }),
              "it has no gpipe."));
    CHECK(has(error_of([&] { gpipe::load(to.train, folder / "foreign"); }), "it has no gpipe."));
    // With '*' or '?' a whole name is meant; and who loads nothing is told so.
    CHECK(
        has(error_of([&] { gpipe::load(to.train, folder / "foreign", {.only = {"layer.?000."}}); }),
            "no tensor is called \"layer.?000.\": with '*' or '?' that is a whole name, as "
            "\"layer.?000.*\""));
    CHECK(has(error_of([&] {
                  gpipe::load(to.train, folder / "foreign",
                              {.only = {"layer.0000.1"}, .except = {"layer.0000."}});
              }),
              "of what it has, LoadOptions leave nothing to be loaded"));
    CHECK(has(error_of([&] { gpipe::load(to.train, folder / "s", {.only = {"layer.2"}}); }),
              "this training:\n  no tensor is called \"layer.2\": the first is "
              "\"layer.0000.0\"\n"));
    folder.write("archive", std::string("PK\3\4 and so on", 14));
    CHECK(has(error_of([&] { gpipe::load(to.train, folder / "archive"); }),
              "a zip archive, as torch.save() writes them"));
    // The length of a header may begin so, too: 0x4B50.
    std::string long_begin =
        gpipe::safetensors::file_begin({{"layer.0000.1", gpipe::Dtype::F32, {6}, 0, 24}}, {});
    long_begin.replace(0, 8, std::string("PK\0\0\0\0\0\0", 8));
    long_begin.resize(8 + 0x4B50, ' ');
    long_begin.append(reinterpret_cast<char const*>(bias.data()), sizeof bias);
    folder.write("long", long_begin);
    CHECK_NOTHROW(gpipe::load(to.train, folder / "long", {.only = {"layer.0000.1"}}));
}

TEST_CASE(
    "a state of another chain, whose layers have moved, is loaded by what they are called now") {
    using Longer = gpipe::Pipeline<toy::Linear<float, 5, 6>, toy::Tanh<float, 6>,
                                   toy::Tanh<float, 6>, toy::Linear<float, 6, 3>>;
    Folder const folder;
    toy::Data<float> const data(8);
    Small<First> from, to;
    for (int i = 0; i < 3; ++i) from.train.step(data.inputs, data.targets);
    gpipe::save(from.train, folder / "old");
    // Tensors whose optimizer states have seen different numbers of steps.
    gpipe::load(to.train, folder / "old", {.only = {"*layer.0002*"}, .steps = true});
    to.train.step(data.inputs, data.targets);
    gpipe::save(to.train, folder / "s");

    Small<Longer> longer;
    std::vector<std::byte> const fresh = state_of(longer.train);
    CHECK(has(error_of([&] { gpipe::load(longer.train, folder / "s"); }), "layer 2 was"));
    CHECK(state_of(longer.train) == fresh);
    auto const put_in = gpipe::moved_layers(2, 1);
    gpipe::load(longer.train, folder / "s", {.rename = put_in});
    CHECK(longer.train.steps() == 4);
    for (std::size_t t : {0, 1})
        CHECK(std::ranges::equal(to.train.parameter<float>(2, t),
                                 longer.train.parameter<float>(3, t)));
    gpipe::save(longer.train, folder / "longer");
    Small<First> back;
    gpipe::load(back.train, folder / "longer", {.rename = gpipe::moved_layers(2, -1)});
    CHECK(state_of(back.train) == state_of(to.train));
    CHECK(back.train.step(data.inputs, data.targets).loss ==
          to.train.step(data.inputs, data.targets).loss);
    CHECK(state_of(back.train) == state_of(to.train));

    // What is taken out stays out, and what is then missing is told by its name here.
    std::string const missing = error_of([&] {
        gpipe::load(back.train, folder / "longer", {.rename = gpipe::moved_layers(0, -1)});
    });
    CHECK(has(missing, "missing: layer.0000.0 F32[6, 5]"));
    // `only` and `except` are about what it is called here.
    Small<Longer> head;
    gpipe::load(head.train, folder / "s", {.only = {"layer.0003"}, .rename = put_in});
    CHECK(
        std::ranges::equal(head.train.parameter<float>(3, 0), longer.train.parameter<float>(3, 0)));
    CHECK_FALSE(
        std::ranges::equal(head.train.parameter<float>(0, 0), longer.train.parameter<float>(0, 0)));
    CHECK(has(error_of([&] {
                  gpipe::load(head.train, folder / "s",
                              {.rename = [](std::string const&) { return "layer.0000.0"; }});
              }),
              "LoadOptions::rename calls several of its tensors \"layer.0000.0\""));
    CHECK_THROWS_WITH_AS(gpipe::load(head.train, folder / "s",
                                     {.rename =
                                          [](std::string const& name) {
                                              return name == "layer.0002.1"
                                                         ? throw std::runtime_error("who is this?")
                                                         : name;
                                          }}),
                         "who is this?", std::runtime_error);
    CHECK(gpipe::moved_layers(1, 9999)("optimizer.1.layer.0001.layer.0001") ==
          "optimizer.1.layer.10000.layer.0001");
    for (std::string const name : {"layer.", "layer.x1.0", "layers.0001.0", "optimizer.layer.3",
                                   "a.layer.0001.0", "layer.99999999999999999999.0", ""})
        CHECK(put_in(name) == name);

    // Names of others.
    std::string file = gpipe::safetensors::file_begin(
        {{"encoder.0.bias", gpipe::Dtype::F32, {6}, 0, 24}}, {{"format", "pt"}});
    std::array<float, 6> const bias{1, 2, 3, 4, 5, 6};
    file.append(reinterpret_cast<char const*>(bias.data()), sizeof bias);
    folder.write("foreign", file);
    gpipe::load(head.train, folder / "foreign",
                {.only = {"layer.0000.1"}, .rename = [](std::string const& name) {
                     return name == "encoder.0.bias" ? "layer.0000.1" : name;
                 }});
    CHECK(std::ranges::equal(head.train.parameter<float>(0, 1), bias));
}

TEST_CASE(
    "a state is saved while training goes on, from planned memory that is there if asked for") {
    Folder const folder;
    Trainer<float> plain(2, 4, 3);
    CHECK((*plain).plan().snapshot == 0);
    CHECK_THROWS_AS(gpipe::start_save(*plain, folder / "s"), std::invalid_argument);

    Trainer<float> trainer(2, 4, 3, gpipe::schedule::OneForwardOneBackward{},
                           gpipe::checkpoint::Never{}, 2, true);
    std::size_t const bytes = state_of(*trainer).size();
    CHECK((*trainer).plan().snapshot == bytes);
    CHECK((*trainer).host_bytes() == (*plain).host_bytes() + bytes);
    CHECK((*trainer).planned_bytes() == (*plain).planned_bytes());
    trainer.steps(0, 3);
    gpipe::save(*trainer, folder / "expected", {{"a", "b"}});
    auto pending = gpipe::start_save(*trainer, folder / "s", {{"a", "b"}});
    trainer.steps(3, 6);
    pending.wait();
    pending.wait(); // again
    CHECK(pending.ready());
    CHECK(folder.content("s") == folder.content("expected"));

    // The handle dropped: the next save waits, and so does the end of the training.
    for (std::uint64_t i = 6; i < 10; ++i) {
        gpipe::start_save(*trainer, folder / "s");
        trainer.steps(i, i + 1);
    }
    CHECK(gpipe::saved_state(folder / "expected").steps == 3);
    {
        Trainer<float> other(1, 4, 8, gpipe::schedule::GPipe{}, gpipe::checkpoint::Never{}, 1,
                             true);
        gpipe::start_save(*other, folder / "late");
    }
    CHECK(gpipe::saved_state(folder / "late").seed == 8);
    std::unique_ptr<gpipe::PendingSave> outlives;
    {
        Trainer<float> other(1, 4, 9, gpipe::schedule::GPipe{}, gpipe::checkpoint::Never{}, 1,
                             true);
        outlives =
            std::make_unique<gpipe::PendingSave>(gpipe::start_save(*other, folder / "later"));
    }
    gpipe::PendingSave const moved = std::move(*outlives);
    outlives->wait();
    CHECK(moved.ready());
    CHECK(gpipe::saved_state(folder / "later").seed == 9);
}

TEST_CASE("a state that is written in the background goes where its path led at start_save()") {
    Folder const folder, other;
    std::string const before = std::filesystem::current_path();
    Trainer<float> trainer(1, 2, 3, gpipe::schedule::GPipe{}, gpipe::checkpoint::Never{}, 1, true);
    std::filesystem::current_path(folder.path);
    {
        // Until then the file cannot be opened.
        toy::SystemCalls const watch({"open", 1, toy::CallFault::interrupts, 0, true});
        auto pending = gpipe::start_save(*trainer, "s");
        while (watch.count() == 0) std::this_thread::yield();
        std::filesystem::current_path(other.path);
    }
    CHECK(error_of([&] { gpipe::save(*trainer, "t"); }) == ""); // which waits
    std::filesystem::current_path(before);
    CHECK(gpipe::saved_state(folder / "s").seed == 3);
    CHECK(!std::filesystem::exists(other / "s"));
    CHECK(gpipe::saved_state(other / "t").seed == 3);
}

TEST_CASE("what goes wrong in the background is heard of once: at wait(), or at the next save") {
    Folder const folder;
    Trainer<float> trainer(1, 2, 3, gpipe::schedule::GPipe{}, gpipe::checkpoint::Never{}, 1, true);
    gpipe::save(*trainer, folder / "s");
    trainer.steps(0, 1);
    auto const failing = [&](auto save) {
        toy::SystemCalls const watch({"fsync", 1, toy::CallFault::fails, 28});
        save();
        while (watch.log().empty() || watch.log().back() != "close s.partial")
            std::this_thread::yield();
    };
    failing([&] {
        auto pending = gpipe::start_save(*trainer, folder / "s");
        CHECK(has(error_of([&] { pending.wait(); }), "s.partial: fsync: No space left on device"));
        pending.wait();
    });
    CHECK(gpipe::saved_state(folder / "s").steps == 0);
    for (bool const background : {false, true}) {
        failing([&] { gpipe::start_save(*trainer, folder / "s"); });
        auto const again = [&] {
            if (background)
                gpipe::start_save(*trainer, folder / "s").wait();
            else
                gpipe::save(*trainer, folder / "s");
        };
        CHECK(has(error_of(again), "s.partial: fsync: No space left on device"));
        again();
        CHECK(gpipe::saved_state(folder / "s").steps == (*trainer).steps());
        trainer.steps(5, 6);
    }
}

TEST_CASE("a save that fails is an error, and leaves the old state") {
    Folder const folder;
    Small<First> small;
    gpipe::save(small.train, folder / "s");
    std::string const before = folder.content("s");
    toy::Data<float> const data(8);
    small.train.step(data.inputs, data.targets);
    for (std::size_t n = 1; n <= 3; ++n) {
        toy::SystemCalls const watch({"write", n, toy::CallFault::fails, 28});
        CHECK(has(error_of([&] { gpipe::save(small.train, folder / "s"); }),
                  "s.partial: write: No space left on device"));
        CHECK(folder.content("s") == before);
    }
    gpipe::save(small.train, folder / "s");
    CHECK(folder.content("s") != before);
}

TEST_CASE("P1 a loss scale goes on as it would have, steps that are skipped included") {
    // What overflows in backward, as it would in a type of smaller range, does not depend on time.
    using Loss = toy::MeanSquare<float, 3>;
    using T = toy::Training<Overflows, Loss, gpipe::Adam, Host>;
    auto const options = [](std::size_t cells, gpipe::LossScale scale) {
        T::Options o;
        o.samples = 8;
        o.cells = cells;
        o.micro_batches = 4;
        o.schedule = gpipe::schedule::GPipeAscending{};
        o.loss_scale = scale;
        return o;
    };
    auto const scale = gpipe::LossScale::dynamic(512, 4, 0.25, 2);
    toy::Data<float> const data(8);
    auto const step = [&](T& train) {
        auto const result = train.step(data.inputs, data.targets);
        return std::array<double, 4>{result.loss, static_cast<double>(result.skipped()),
                                     train.loss_scale(), static_cast<double>(train.steps())};
    };
    Folder const folder;
    T first({}, {}, {1e-3f}, options(1, scale));
    std::size_t skipped = 0;
    std::vector<std::array<double, 4>>
        going; // what others did that were loaded from what was saved
    for (int i = 0; i < 12; ++i) {
        auto const now = step(first);
        skipped += now[1] == 1;
        if (!going.empty()) CHECK(going.back() == now);
        gpipe::save(first, folder / ("s" + std::to_string(i)));
        T other({}, {}, {1e-3f}, options(2, scale));
        gpipe::load(other, folder / ("s" + std::to_string(i)));
        CHECK(gpipe::saved_state(folder / ("s" + std::to_string(i))).loss_scale ==
              first.loss_scale());
        T same({}, {}, {1e-3f}, options(1, scale));
        gpipe::load(same, folder / ("s" + std::to_string(i)));
        going.push_back(step(other));
        CHECK(step(same) == going.back());
    }
    CHECK(skipped > 2);
    CHECK(skipped < 10);
    // One that has none, or had none, takes its own.
    T plain({}, {}, {1e-3f}, options(1, {}));
    gpipe::load(plain, folder / "s3");
    CHECK(plain.loss_scale() == 1);
    CHECK(plain.steps() == gpipe::saved_state(folder / "s3").steps);
    gpipe::save(plain, folder / "plain");
    CHECK(gpipe::saved_state(folder / "plain").loss_scale == 0);
    gpipe::load(first, folder / "plain");
    CHECK(first.loss_scale() > 0);
    // What is no scale is refused.
    std::string const saved = folder.content("s0");
    for (std::string const bad : {"-1", "nan", "inf", "0", "x"}) {
        std::string text = saved;
        std::string const key = "\"gpipe.loss_scale\":\"";
        std::size_t const at = text.find(key) + key.size(), end = text.find('"', at);
        REQUIRE(at > key.size());
        text.replace(at, end - at, bad);
        with_header_longer(text, bad.size() - (end - at));
        std::ofstream(folder / "bad", std::ios::binary) << text;
        CHECK(error_of([&] { gpipe::load(first, folder / "bad"); }) ==
              "gpipe: " + (folder / "bad") + ": its gpipe.loss_scale is \"" + bad + "\", no " +
                  (bad == "x" ? "number" : "scale"));
    }
}

namespace {

// Two layers, of which one may be frozen.
using Two = gpipe::Pipeline<toy::Linear<float, 5, 6>, toy::Linear<float, 6, 3>>;
template <class Shard>
using TwoTrain =
    gpipe::Training<Two, gpipe::Cells<gpipe::dynamic>, gpipe::MicroBatches<2>,
                    gpipe::Loss<toy::MeanSquare<float, 3>>, gpipe::Optimizer<gpipe::Adam>,
                    gpipe::Replicas<gpipe::dynamic, Shard>>;
template <class Shard>
std::unique_ptr<TwoTrain<Shard>> two(std::size_t cells, std::size_t replicas, bool frozen) {
    typename TwoTrain<Shard>::Options o;
    o.samples = 8;
    o.cells = cells;
    o.replicas = replicas;
    if (frozen) o.frozen = {0};
    return std::make_unique<TwoTrain<Shard>>(
        Two{}, toy::MeanSquare<float, 3>{},
        gpipe::Adam{.learning_rate = 0x1p-10f, .epsilon = 1e-12f}, o);
}
template <class Train> void steps(Train& train, int count) {
    toy::Data<float> const data(8, 3);
    for (int step = 0; step < count; ++step) train.step(data.inputs, data.targets);
}
template <class Train> std::vector<float> values(Train& train, std::size_t layer) {
    auto const own = train.template parameter<float>(layer, 0);
    return {own.begin(), own.end()};
}

} // namespace

TEST_CASE("optimizer state of what is frozen here is said to be that") {
    using gpipe::shard::Nothing;
    Folder const folder;
    gpipe::save(*two<Nothing>(1, 1, false), folder / "s");
    std::string const error =
        error_of([&] { gpipe::load(*two<Nothing>(1, 1, true), folder / "s"); });
    INFO(error);
    CHECK(has(error, "unexpected: \"optimizer.1.layer.0000.0\" F32[6, 5], of what is frozen here"));
    CHECK(!has(error, "layer.0001"));
}

TEST_CASE_TEMPLATE("a tensor's steps are those that its optimizer state has seen", Shard,
                   gpipe::shard::Nothing, gpipe::shard::OptimizerState) {
    Folder const folder;
    for (std::size_t const replicas : {1u, 2u}) {
        CAPTURE(replicas);
        auto const frozen = two<Shard>(1, replicas, true);
        steps(*frozen, 60);
        gpipe::save(*frozen, folder / "frozen");
        // What learns again begins with Adam's first step, as long as the learning rate.
        auto const thawed = two<Shard>(2, replicas, false);
        gpipe::load(*thawed, folder / "frozen",
                    {.except = {"optimizer.?.layer.0000.*"}, .steps = true});
        CHECK(thawed->steps() == 60);
        auto const before = values(*thawed, 0), above = values(*thawed, 1);
        steps(*frozen, 1);
        steps(*thawed, 1);
        auto const after = values(*thawed, 0);
        for (std::size_t i = 0; i < before.size(); ++i)
            CHECK(std::abs(after[i] - before[i]) == doctest::Approx(0x1p-10).epsilon(1e-3));
        CHECK(values(*thawed, 1) == values(*frozen, 1)); // the others go on
        CHECK(values(*thawed, 1) != above);

        // It is saved, and goes on as it was; so do states that are loaded without their step.
        gpipe::save(*thawed, folder / "thawed");
        steps(*thawed, 3);
        for (bool const all : {true, false}) {
            auto const again = two<Shard>(1, replicas, false);
            steps(*again, all ? 7 : 0);
            gpipe::load(*again, folder / "thawed",
                        all ? gpipe::LoadOptions{} : gpipe::LoadOptions{.only = {"*"}});
            CHECK(again->steps() == (all ? 61 : 0));
            steps(*again, 3);
            for (std::size_t const layer : {0u, 1u})
                CHECK(values(*again, layer) == values(*thawed, layer));
        }
    }
}

TEST_CASE("files of others: how many steps their optimizer state has seen has to be said") {
    Folder const folder;
    auto const make = [] { return two<gpipe::shard::Nothing>(1, 1, false); };
    auto const own = make();
    steps(*own, 60);
    gpipe::save(*own, folder / "own");
    // The same tensors, and nothing of ours beside them.
    gpipe::detail::StateFile const file(folder / "own");
    std::string data(file.header.tensors.back().end, 0);
    file.file.read_at(file.header.data_at, std::as_writable_bytes(std::span(data)));
    folder.write("others", gpipe::safetensors::file_begin(file.header.tensors, {}) + data);

    auto const there = make();
    std::string const said = error_of([&] {
        gpipe::load(*there, folder / "others", {.only = {"layer.", "optimizer."}});
    });
    for (char const* tensor : {"layer.0000.0", "layer.0000.1", "layer.0001.0", "layer.0001.1"})
        CHECK(has(said, std::string("\n  optimizer state of ") + tensor +
                            ": nobody says how many steps it has seen, see "
                            "LoadOptions::state_steps"));
    CHECK(values(*there, 0) == values(*make(), 0)); // nothing is loaded
    gpipe::load(*there, folder / "others", {.only = {"layer.", "optimizer."}, .state_steps = 60});
    CHECK(there->steps() == 0);
    steps(*own, 5);
    steps(*there, 5);
    for (std::size_t const layer : {0u, 1u}) CHECK(values(*there, layer) == values(*own, layer));
    // Parameters alone say nothing of that; a file that does is not contradicted.
    gpipe::load(*make(), folder / "others", {.only = {"layer."}});
    CHECK(has(error_of([&] {
                  gpipe::load(*make(), folder / "others", {.only = {"layer."}, .state_steps = 60});
              }),
              "LoadOptions::state_steps is given, and no optimizer state loaded"));
    CHECK(has(error_of([&] { gpipe::load(*make(), folder / "own", {.state_steps = 60}); }),
              "LoadOptions::state_steps is given, and the file says how many"));
}

TEST_CASE("narrower numbers of others become those that are here, every one of them") {
    using gpipe::Dtype;
    for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
        auto const half = static_cast<std::uint16_t>(bits);
        auto const of = [&](Dtype from) {
            double wide;
            float single;
            auto const at = reinterpret_cast<std::byte const*>(&half);
            gpipe::detail::widen(from, at, 1, Dtype::F64, reinterpret_cast<std::byte*>(&wide));
            gpipe::detail::widen(from, at, 1, Dtype::F32, reinterpret_cast<std::byte*>(&single));
            REQUIRE((wide == double(single) || (wide != wide && single != single)));
            return wide;
        };
        float const upper = std::bit_cast<float>(bits << 16);
        bool const sign = bits >> 15;
        std::uint64_t const exponent = bits >> 10 & 31, fraction = bits & 1023;
        double const brain = of(Dtype::BF16), ieee = of(Dtype::F16);
        REQUIRE((brain == double(upper) || (brain != brain && upper != upper)));
        REQUIRE((ieee != ieee || std::signbit(ieee) == sign));
        if (exponent == 31)
            REQUIRE((fraction == 0 ? std::isinf(ieee) : std::isnan(ieee)));
        else // in units of the smallest
            REQUIRE(std::abs(ieee) * 0x1p24 ==
                    double(exponent ? (1024 + fraction) << (exponent - 1) : fraction));
    }
    float const third = 1.0f / 3;
    double wide = 0;
    gpipe::detail::widen(Dtype::F32, reinterpret_cast<std::byte const*>(&third), 1, Dtype::F64,
                         reinterpret_cast<std::byte*>(&wide));
    CHECK(wide == double(third));

    Folder const folder;
    auto const write = [&](Dtype dtype, std::string const& data) {
        folder.write("others", gpipe::safetensors::file_begin(
                                   {{"layer.0000.1", dtype, {6}, 0, data.size()}}, {}) +
                                   data);
    };
    auto const load = [&](auto& train) {
        gpipe::load(train, folder / "others", {.only = {"layer.0000.1"}});
    };
    Small<First> single;
    write(Dtype::BF16, std::string("\x80\x3f\x00\x40\x40\x40\x80\x40\xa0\x40\xc0\x40", 12));
    load(single.train);
    for (std::size_t i = 0; i < 6; ++i)
        CHECK(single.train.parameter<float>(0, 1)[i] == float(i + 1));
    write(Dtype::F64, std::string(48, 0)); // no wider one becomes a narrower
    CHECK(has(error_of([&] { load(single.train); }), "layer.0000.1 is F64[6], not F32[6]"));
}

TEST_CASE("a tensor that is there as a whole and in parts, too, is there twice, be it one number") {
    Folder const folder;
    using gpipe::Dtype;
    // The number is first in the text and last in the data, as arrange() would not have it.
    std::vector<gpipe::safetensors::Entry> const tensors{
        {"layer.0000.1", Dtype::F32, {}, 24, 28}, {"layer.0000.1@0", Dtype::F32, {6}, 0, 24}};
    folder.write("others", gpipe::safetensors::file_begin(tensors, {{"gpipe.shards", ""}}) +
                               std::string(28, 0));
    Small<First> small;
    CHECK(has(
        error_of([&] { gpipe::load(small.train, folder / "others", {.only = {"layer.0000.1"}}); }),
        "layer.0000.1 is there twice"));
}

TEST_CASE("steps of a state that are none are refused") {
    Folder const folder;
    auto const thawed = two<gpipe::shard::Nothing>(1, 1, false);
    gpipe::save(*thawed, folder / "s");
    gpipe::load(*thawed, folder / "s", {.except = {"optimizer.?.layer.0000.*"}, .steps = true});
    steps(*thawed, 2);
    gpipe::load(*thawed, folder / "s", {.only = {"optimizer.?.layer.0000.*"}});
    gpipe::save(*thawed, folder / "s");
    std::string content = folder.content("s");
    std::size_t const at = content.find("gpipe.begun\":\"layer.0000.0 2\\nlayer.0000.1 2\\n\"");
    REQUIRE(at != std::string::npos);
    content[content.find(" 2", at) + 1] = 'x';
    std::ofstream(folder / "s", std::ios::binary) << content;
    CHECK(has(error_of([&] { gpipe::load(*thawed, folder / "s"); }),
              ": its gpipe.begun is \"x\", no number"));
    // Nor may a state be older than its step, or the step be the last: an update counts from 1.
    auto const error = [&](std::string const& from, std::string const& to) {
        gpipe::save(*thawed, folder / "s");
        std::string text = folder.content("s");
        std::size_t const place = text.find(from);
        REQUIRE(place != std::string::npos);
        text.replace(place, from.size(), to);
        with_header_longer(text, to.size() - from.size());
        std::ofstream(folder / "s", std::ios::binary) << text;
        return error_of([&] { gpipe::load(*thawed, folder / "s"); });
    };
    CHECK(has(error("layer.0000.0 2", "layer.0000.0 3"),
              "that has seen 18446744073709551615 steps is none"));
    for (std::string const too_many : {"9223372036854775808", "18446744073709551615"})
        CHECK(error("\"gpipe.step\":\"2\"", "\"gpipe.step\":\"" + too_many + "\"") ==
              "gpipe: " + (folder / "s") + ": its gpipe.step is \"" + too_many +
                  "\", no number of steps");
    CHECK(has(error("\"gpipe.step\":\"2\"", "\"gpipe.step\":\"18446744073709551616\""),
              ": its gpipe.step is \"18446744073709551616\", no number"));
    CHECK(error("\"gpipe.step\":\"2\"", "\"gpipe.step\":\"9223372036854775807\"") == "");
    CHECK(thawed->steps() == 9223372036854775807);
}
