// What is chosen by name: schedules, checkpointing policies and optimizers, a program's own among
// them.
#include <gpipe/by_name.hpp>
#include <gpipe/core/registry.hpp>
#include <gpipe/schedule/simulate.hpp>
#include <gpipe/schedule/verify.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

using gpipe::Array;
using gpipe::Named;
using gpipe::NamedNumber;
using gpipe::Numbers;
using gpipe::Registry;

namespace {

std::size_t const most = std::numeric_limits<std::size_t>::max();

// What was chosen, as words.
using Words = std::string;
template <char c> Words made(Numbers const& n) {
    return c + ('(' + std::to_string(n[0])) + ',' + std::to_string(n[1]) + ')';
}
Named<Words> const entries[] = {
    {"plain", "no numbers", &made<'p'>},
    {"two-words", "one from 3 to 5", &made<'w'>, {{"N", 3, 5}}},
    {"both", "two, the second may be left out", &made<'b'>, {{"A"}, {"B", 1, 9, 7}}},
    {"size", "bytes", &made<'s'>, {{.name = "BYTES", .bytes = true}}},
    {"in", "around another", &made<'i'>, {}, [](Words inner) { return "in " + inner; }}};
Words joined(Array<Words> all) {
    Words result = "each";
    for (Words const& one : all) result += ' ' + one;
    return result;
}
Registry<Words> registry() { return {"choice", entries, &joined, "or several with commas"}; }

template <class Choice>
std::string refusal(Registry<Choice> const& names, std::string const& name) {
    try {
        names.find(name);
    } catch (std::invalid_argument const& error) {
        return error.what();
    }
    return "";
}
template <class Choice>
std::string no_such(Registry<Choice> const& names, std::string const& what,
                    std::string const& name) {
    return "gpipe: there is no " + what + " '" + name + "'; there are " + names.list();
}

// 1F1B that begins with n more forwards, as a user would write it.
struct WarmUp1F1B {
    using policy_kind = gpipe::policy::Schedule;
    static constexpr std::string_view name = "WarmUp1F1B";
    std::size_t more = 0;

    constexpr gpipe::Programs programs(std::size_t devices, std::size_t micro_batches) const {
        gpipe::Programs result(devices, devices, micro_batches, 2 * devices * micro_batches);
        for (std::size_t k = 0; k < devices; ++k) {
            std::size_t const warm_up = std::min(devices - 1 - k + more, micro_batches);
            for (std::size_t i = 0; i < micro_batches + warm_up; ++i) {
                if (i < micro_batches) result.add(gpipe::forward(k, i));
                if (i >= warm_up) result.add(gpipe::backward(k, i - warm_up));
            }
            result.next_device();
        }
        return result;
    }
    constexpr std::size_t least_micro_batches(std::size_t devices) const { return devices + more; }
};
constexpr Named<gpipe::schedule::Dynamic> mine[] = {
    {WarmUp1F1B::name,
     "1F1B that begins with n more forwards",
     [](Numbers const& n) -> gpipe::schedule::Dynamic { return WarmUp1F1B{n[0]}; },
     {{"N", 0, 64}}}};
// At compile time, too.
constexpr auto warm_up_5 = gpipe::schedule::schedules().with(mine).find("WarmUp1F1B-5");
// As a number, too, of the object or of its type.
struct Needs : WarmUp1F1B {
    std::size_t least_micro_batches = 7;
};
struct NeedsSeven : WarmUp1F1B {
    static constexpr std::size_t least_micro_batches = 7;
};
static_assert(gpipe::schedule::Dynamic(Needs{{1}, 9}).least_micro_batches(3) == 9);
static_assert(gpipe::schedule::Dynamic(NeedsSeven{{1}}).least_micro_batches(3) == 7);
static_assert(warm_up_5.name() == "WarmUp1F1B" && warm_up_5.least_micro_batches(3) == 8);
static_assert(gpipe::verify(warm_up_5.programs(3, 8)));

// An optimizer without state.
struct Plain {
    static constexpr std::size_t states = 0;
    float learning_rate = 1;
    template <class T>
    void operator()(gpipe::UpdateContext, gpipe::UpdateTensor<T, 0>) const noexcept {}
};

} // namespace

TEST_CASE("a name is read with its numbers, another name in it, and others beside it") {
    Registry<Words> const names = registry();
    CHECK(names.find("plain") == "p(0,0)");
    for (std::size_t n = 3; n <= 5; ++n) {
        std::string const digits = std::to_string(n);
        CHECK(names.find("two-words-" + digits) == "w(" + digits + ",0)");
        CHECK(names.find("both-" + digits) == "b(" + digits + ",7)");
        CHECK(names.find("both-" + digits + "-" + digits) == "b(" + digits + "," + digits + ")");
    }
    CHECK(names.find("in") == "i(0,0)");
    CHECK(names.find("in-in-two-words-4") == "in in w(4,0)");
    CHECK(names.find("plain,in-plain,both-1-2") == "each p(0,0) in p(0,0) b(1,2)");
    CHECK(names.find("size-" + std::to_string(most)) == "s(" + std::to_string(most) + ",0)");
    CHECK(names.find("size-3KiB") == "s(3072,0)");
    CHECK(names.find("size-5MiB") == "s(5242880,0)");
    CHECK(names.find("size-2GiB") == "s(2147483648,0)");
}

TEST_CASE("every other name is refused, the whole of it, with all there are") {
    Registry<Words> const names = registry();
    CHECK(names.list() ==
          "plain, two-words-N (N from 3 to 5), both-A[-B] (B from 1 to 9, else 7), size-BYTES "
          "(KiB, MiB or GiB may follow), in[-NAME], or several with commas");
    for (std::string const name : {"",
                                   "Plain",
                                   "plai",
                                   "plain-",
                                   "plain-1",
                                   "plainx",
                                   " plain",
                                   "two-words",
                                   "two-words-",
                                   "two-words-2",
                                   "two-words-6",
                                   "two-words-4x",
                                   "two-words--4",
                                   "two-words-4-4",
                                   "two-words-+4",
                                   "two-words-4KiB",
                                   "both",
                                   "both-1-0",
                                   "both-1-10",
                                   "both-1-2-3",
                                   "both-1-",
                                   "size-",
                                   "size-MiB",
                                   "size-3TiB",
                                   "size-3MiBx",
                                   "size-99999999999GiB",
                                   "size-18446744073709551616",
                                   "in-",
                                   "in-x",
                                   "in-in-two-words-6",
                                   "inn"}) {
        CAPTURE(name);
        CHECK(refusal(names, name) == no_such(names, "choice", name));
    }
    for (std::string const name : {"plain,", ",plain", "plain,,in"})
        CHECK(refusal(names, name) == no_such(names, "choice", ""));
    CHECK(refusal(names, "plain,two-words-9,in") == no_such(names, "choice", "two-words-9"));
    // A fallback is held against the range, too; without `each` a comma is no separator.
    Named<Words> const beyond[] = {{"beyond", "too many", &made<'y'>, {{"N", 1, 9, 10}}}};
    CHECK_THROWS_AS(names.with(beyond).find("beyond"), std::invalid_argument);
    CHECK(names.with(beyond).find("beyond-9") == "y(9,0)");
    Registry<Words> const single("choice", entries);
    CHECK(refusal(single, "plain,plain") == no_such(single, "choice", "plain,plain"));
}

TEST_CASE("help has a line for each name, as the list shows it") {
    std::string const help = registry().help();
    CHECK(std::count(help.begin(), help.end(), '\n') == std::ssize(entries));
    CHECK(help.find("  two-words-N (N from 3 to 5): one from 3 to 5\n") != std::string::npos);
    for (Named<Words> const& entry : entries)
        CHECK(help.find(": " + std::string(entry.help) + '\n') != std::string::npos);
}

TEST_CASE("a schedule of a user's own has its number at run time") {
    Registry<gpipe::schedule::Dynamic> const all = gpipe::schedule::schedules().with(mine);
    CHECK(all.list() == gpipe::schedule::schedules().list() + ", WarmUp1F1B-N (N from 0 to 64)");
    for (std::size_t n = 0; n <= 64; n += 7)
        for (std::size_t k = 1; k <= 4; ++k) {
            auto const found = all.find("WarmUp1F1B-" + std::to_string(n));
            std::size_t const m = found.least_micro_batches(k);
            CHECK(m == k + n);
            gpipe::Programs const programs = found.programs(k, m);
            CHECK(gpipe::verify(programs));
            CHECK(gpipe::peak_micro_batches(programs, 0) == std::min(m, k + n));
        }
    CHECK(refusal(all, "WarmUp1F1B-65") == no_such(all, "schedule", "WarmUp1F1B-65"));
    // What was there is found as before.
    CHECK(all.find("Interleaved1F1B-3").cells_per_device() == 3);
    CHECK(all.find("GPipe").name() == "GPipe");
}

TEST_CASE(
    "a checkpointing policy and an optimizer of a user's own are found beside the library's") {
    using gpipe::checkpoint::Dynamic;
    constexpr Named<Dynamic> twice[] = {{"pairs", "segments of two", [](Numbers const&) -> Dynamic {
                                             return gpipe::checkpoint::EverySegment<2>{};
                                         }}};
    auto const policies = gpipe::checkpoint::policies().with(twice);
    CHECK(policies.find("pairs").name() == "every-segment");
    CHECK(policies.find("offload-pairs").name() == "offload");
    CHECK(policies.find("never,pairs").name() == "per-cell");
    CHECK(policies.list().find(", pairs, or one for each cell") != std::string::npos);

    using Mine = gpipe::optimizer::Dynamic::with<Plain>;
    constexpr Named<Mine> plain[] = {
        {"plain", "nothing", [](Numbers const&) -> Mine { return Plain{}; }}};
    auto const optimizers = gpipe::optimizer::optimizers<Mine>().with(plain);
    CHECK(optimizers.find("plain").chosen_states() == 0);
    CHECK(optimizers.find("adamw").chosen_states() == 2);
    CHECK(optimizers.find("adamw").chosen_name() == "gpipe::AdamW");
    CHECK(optimizers.list() == gpipe::optimizer::optimizers().list() + ", plain");
    CHECK(optimizers.list().find("sgd, rmsprop, adam, adamw") == 0);
}

TEST_CASE("every unknown name of the library's is refused with its list") {
    for (std::string const name : {"", "none", "gpipe", "Never", "SGD", "adam-1"}) {
        CAPTURE(name);
        CHECK(refusal(gpipe::schedule::schedules(), name) ==
              no_such(gpipe::schedule::schedules(), "schedule", name));
        CHECK(refusal(gpipe::checkpoint::policies(), name) ==
              no_such(gpipe::checkpoint::policies(), "checkpointing policy", name));
        CHECK(refusal(gpipe::optimizer::optimizers(), name) ==
              no_such(gpipe::optimizer::optimizers(), "optimizer", name));
    }
    CHECK_THROWS_AS(gpipe::schedule::find_schedule("Nope"), std::invalid_argument);
    CHECK_THROWS_AS(gpipe::optimizer::find_optimizer("Nope"), std::invalid_argument);
}
