// The yardstick of the planner: bytes, needs and waits, what the waits cost a step, and what it
// takes to plan, for every schedule over the network of train_gpt. Between ranks what costs is the
// order of messages, too: the row of `sent` links says how much; and each of them plans alone.
#include "support/alone.hpp"
#include "support/counting_allocator.hpp"
#include "support/list.hpp"
#include "support/plan_numbers.hpp"
#include "support/record.hpp"
#include "support/summary.hpp"

#include "gpt/host_operations.hpp"
#include "gpt/model.hpp"

#include <gpipe/by_name.hpp>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <limits>
#include <string>
#include <vector>

namespace {

using namespace benchmark;

using Net = gpt::Standard::Net;
constexpr std::size_t draws = 6;

// A hundred layers and more, for as many devices.
struct Linear {
    using Input = gpipe::Tensor<float, 64>;
    using Output = Input;
    using Parameters = gpipe::Tensors<gpipe::Tensor<float, 64, 64>, Input>;
    static constexpr double cost = 2 * 64 * 64;
    void initialize(auto&) const {}
    void forward(auto&, auto, auto) const {}
    void backward(auto&, auto, auto, auto) const {}
};
struct LinearLoss {
    using Target = Linear::Output;
    gpipe::LossValue<> operator()(auto&, auto, auto, auto) const { return {}; }
};
using Long = gpipe::Pipeline<gpipe::Repeat<128, Linear>>;

// Draw 0: as planned. Others: cells up to 2 x apart, and every action up to 20 % off.
double duration(Work const& work, std::size_t draw) {
    if (draw == 0) return work.units;
    auto const uniform = [&](std::size_t micro_batch, std::size_t kind) {
        auto const word = [](std::size_t value) { return static_cast<std::uint32_t>(value); };
        return gpipe::philox({word(draw), word(work.cell), word(micro_batch), word(kind)}, 1)[0] *
               0x1p-32;
    };
    double const of_cell = work.copies ? 1 : 1 + uniform(~0u, ~0u);
    return work.units * of_cell * (0.8 + 0.4 * uniform(work.micro_batch, work.kind));
}

// Plans again and again: the last plan, and what they took.
struct Construction {
    FinishedPlan plan;
    std::vector<double> nanoseconds;
    std::size_t bytes = 0; // allocated at the same time, at most

    Construction(PlannedNet const& net, PlanCase const& of, std::size_t rounds) {
        for (std::size_t round = 0; round < rounds; ++round) {
            plan = {};
            std::size_t const before = restart_peak();
            auto const begin = std::chrono::steady_clock::now();
            plan = finish_plan(net, of);
            std::chrono::duration<double, std::nano> const took =
                std::chrono::steady_clock::now() - begin;
            nanoseconds.push_back(took.count());
            bytes = peak_bytes - before;
        }
    }
};

Record record(PlanCase const& of, PlanNumbers const& numbers, std::size_t layers) {
    Record result("plan");
    result.add("K", of.devices).add("M", of.micro_batches).add("L", layers);
    result.add("N", of.samples).add("checkpointing", of.checkpointing.name());
    result.add("schedule", of.schedule.name()).add("per_device", of.schedule.cells_per_device());
    result.add("links", of.links).add("actions", numbers.actions);
    return result;
}

bool exists(PlanCase const& of, std::size_t layers) {
    return of.devices * of.schedule.cells_per_device() <= layers &&
           of.micro_batches >= of.schedule.least_micro_batches(of.devices) &&
           (of.devices > 1 || of.links == "shared");
}

// Over all rows whose devices are ranks, and all draws: what it costs to walk in an order.
std::vector<double> prices_of_messages;

void measure(PlanCase const& of, std::size_t rounds, bool json, Summary& summary) {
    PlannedNet const net = planned_net<Net, gpt::Standard::Loss, gpipe::AdamW>();
    Construction const construction(net, of, rounds);
    PlanNumbers const numbers = plan_numbers(construction.plan, 1 + draws, duration);
    // What a user's constants say.
    std::vector<std::size_t> const most = bytes_at_most(net, of);
    double bound = 0;
    for (std::size_t d = 0; d < of.devices; ++d)
        bound =
            std::max(bound, double(most[d]) / double(construction.plan.memory.devices[d].total()));
    std::vector<double> const prices = ratios(numbers.makespan, numbers.makespan_without_room);
    std::vector<double> const drawn(prices.begin() + 1, prices.end());
    if (of.links == "sent")
        prices_of_messages.insert(prices_of_messages.end(), prices.begin(), prices.end());
    auto const per_action = [&](auto count) { return double(count) / double(numbers.actions); };
    std::string const links = ", " + of.links;
    double const mib = 1 << 20;
    struct {
        char const* key;
        std::string figure;
        double value;
        double unit = 1; // of the figure
        double at_most = std::numeric_limits<double>::infinity();
    } const columns[] = {
        {"bytes_largest", "MiB of the largest device", double(numbers.largest), mib},
        {"bytes", "MiB of all devices", double(numbers.all), mib},
        {"bytes_host", "MiB of the host's memory", double(numbers.host), mib},
        {"bound", "largest peak_bytes() / planned, the worst device", bound, 1, 1.15},
        {"needs", "needs per action", per_action(numbers.needs)},
        {"needs_left", "needs that others do not imply", per_action(numbers.needs_left)},
        {"needs_added", "needs for room alone" + links, per_action(numbers.needs_added)},
        {"waits", "waits per action" + links, per_action(numbers.waits)},
        {"price", "makespan / without waits for room" + links, prices[0]},
        {"price_median", "likewise, median of 6 draws" + links, median(drawn)},
        {"price_largest", "likewise, largest of 6 draws" + links, quantile(drawn, 1)},
        {"construction_ns", "ns of planning per action",
         per_action(median(construction.nanoseconds))},
        {"construction_bytes", "bytes allocated per action", per_action(construction.bytes)},
    };
    Record row = record(of, numbers, Net::size);
    if (!json)
        std::printf("%-27s %zu %2zu %3zu  %-11s %-6s", std::string(of.schedule.name()).c_str(),
                    of.schedule.cells_per_device(), of.devices, of.micro_batches,
                    std::string(of.checkpointing.name()).c_str(), of.links.c_str());
    for (auto const& [key, figure, value, unit, at_most] : columns) {
        row.add(key, value);
        summary.add(figure, value / unit, at_most);
        if (!json) std::printf(" %7.3f", value / unit);
    }
    row.compare("makespan", numbers.makespan[0], "without waits for room",
                numbers.makespan_without_room[0]);
    if (json) return row.print();
    std::printf("\n");
    std::fflush(stdout);
}

// Construction alone, where there are many micro-batches, or devices.
void measure_large(PlanCase const& of, std::size_t rounds, bool json, Summary& summary) {
    Construction const construction(planned_net<Long, LinearLoss, gpipe::AdamW>(), of, rounds);
    PlanNumbers const numbers = plan_numbers(construction.plan, 0, duration);
    auto const actions = double(numbers.actions);
    double const seconds = median(construction.nanoseconds) * 1e-9;
    double const mib = double(construction.bytes) / (1 << 20);
    std::string const which = ", K = " + std::to_string(of.devices) +
                              ", M = " + std::to_string(of.micro_batches) + ", " + of.links;
    double const unjudged = std::numeric_limits<double>::infinity();
    bool const wide = of.devices == 64 && of.micro_batches == 4096;
    bool const deep = of.devices == 2 && of.micro_batches == 40'000;
    summary.add("seconds of planning" + which, seconds, wide ? 10 : deep ? 1 : unjudged);
    summary.add("MiB allocated" + which, mib, wide ? 1024 : unjudged);
    Record row = record(of, numbers, Long::size);
    row.add("construction_ns", seconds * 1e9 / actions)
        .add("construction_bytes", double(construction.bytes) / actions);
    if (json) return row.print();
    std::printf("%-27s %3zu %6zu %-6s %8.3f %8.1f %9.1f %6.0f\n",
                std::string(of.schedule.name()).c_str(), of.devices, of.micro_batches,
                of.links.c_str(), seconds, mib, seconds * 1e9 / actions,
                double(construction.bytes) / actions);
    std::fflush(stdout);
}

// One rank alone, of 1F1B over layers that do nothing.
void measure_alone(std::size_t ranks, std::size_t rounds, bool json, Summary& summary) {
    std::vector<double> seconds;
    std::size_t bytes = 0, own = 0;
    for (std::size_t round = 0; round < rounds; ++round) {
        MadeAlone const made(ranks);
        seconds.push_back(made.seconds);
        bytes = made.bytes, own = made.own;
    }
    double const mib = 1 << 20;
    std::string const of = ", one rank of " + std::to_string(ranks);
    summary.add("seconds of construction" + of, median(seconds));
    summary.add("MiB allocated" + of, double(bytes) / mib);
    Record row("plan");
    row.add("K", ranks).add("M", ranks).add("L", MadeAlone::layers);
    row.add("construction_s", median(seconds)).add("construction_bytes", bytes);
    row.add("bytes", own);
    if (json) return row.print();
    std::printf("%4zu %8.4f %8.3f %8.3f\n", ranks, median(seconds), double(bytes) / mib,
                double(own) / mib);
    std::fflush(stdout);
}

} // namespace

int main(int argc, char** argv) {
    std::string schedules, cells, micro_batches, checkpointing, links;
    std::size_t samples = 0, rounds = 5;
    bool large = false, alone = false, json = false;
    support::Options options(
        "plan",
        "What the planner makes of train_gpt's network: bytes, needs and waits per action,\n"
        "what waits for room cost a simulated step, and what planning takes. Where nothing is\n"
        "said: all schedules, K = 1,2,4,8, M = 1,4,8,32, never,always,except-last,offload,\n"
        "shared,copied,staged,sent links and N = 32; with --large OneForwardOneBackward, GPipe "
        "and\n"
        "ZeroBubbleV over 128 layers, K = 2, M = 1000,4000,40000, always, shared links and N = M, "
        "and\n"
        "K = 64, M = 4096, shared and copied links; with --alone 1F1B over 128 layers that do\n"
        "nothing, K = 4,16,64 and N = M = K.");
    options.names("schedule", "schedules, or all that there are", gpipe::schedule::schedules(),
                  schedules, "all");
    options.text("cells", "K,...", "numbers of devices", cells);
    options.text("micro-batches", "M,...", "numbers of micro-batches", micro_batches);
    options.names("checkpointing", "policies", gpipe::checkpoint::policies(), checkpointing);
    options.text("links", "NAME,...", "between devices", links);
    options.number("samples", "N, samples in a mini-batch; 0: see above", samples, 0, 100'000);
    options.number("rounds", "plans of each row, whose median time counts", rounds, 1, 1000);
    options.flag("large", "time planning alone, with many micro-batches", large);
    options.flag("alone", "make the one rank in the middle of K, with a device each", alone);
    options.flag("json", "one JSON object per line", json);
    if (auto const status = options.parse(argc, argv)) return *status;
    auto const unless_said = [&](std::string& text, char const* usual, char const* if_large) {
        if (text.empty()) text = large ? if_large : usual;
    };
    if (alone && (samples > 0 || large || schedules + micro_batches + checkpointing + links != ""))
        return options.refuse("--alone goes with --cells, --rounds and --json, and with no other");
    if (alone) {
        Summary summary("plan", json);
        std::vector<std::size_t> ranks;
        try {
            ranks = numbers("--cells", cells.empty() ? "4,16,64" : cells, {}, MadeAlone::layers);
        } catch (std::exception const& error) {
            return options.refuse(error.what());
        }
        if (!json) std::printf("   K  seconds MiB at most, of these its device's\n");
        for (std::size_t const k : ranks) measure_alone(k, rounds, json, summary);
        summary.print();
        return 0;
    }
    bool const usual = cells.empty() && micro_batches.empty() && links.empty();
    std::size_t const layers = large ? Long::size : Net::size;
    unless_said(schedules, "all", "OneForwardOneBackward,GPipe,ZeroBubbleV");
    unless_said(cells, "1,2,4,8", "2");
    unless_said(micro_batches, "1,4,8,32", "1000,4000,40000");
    unless_said(checkpointing, "never,always,except-last,offload", "always");
    unless_said(links, "shared,copied,staged,sent", "shared");
    std::vector<PlanCase> cases;
    try {
        std::vector<gpipe::schedule::Dynamic> chosen;
        if (schedules == "all")
            for (auto const& each : gpipe::schedule::catalogue(2)) chosen.push_back(each);
        else
            for (std::string const& name : split(schedules))
                chosen.push_back(gpipe::schedule::find_schedule(name));
        std::vector<gpipe::checkpoint::Dynamic> policies;
        for (std::string const& name : split(checkpointing))
            policies.push_back(gpipe::checkpoint::find_checkpointing(name));
        auto const kinds = words("--links", links, {"shared", "copied", "staged", "sent"});
        for (auto const& schedule : chosen)
            for (std::size_t k : numbers("--cells", cells, {}, layers))
                for (std::size_t m : numbers("--micro-batches", micro_batches, {}, 100'000))
                    for (auto const& policy : policies)
                        for (std::string const& kind : kinds) {
                            std::size_t const n = samples > 0 ? samples : large ? m : 32;
                            PlanCase const of{schedule, policy, kind, k, m, n};
                            if (exists(of, layers)) cases.push_back(of);
                        }
        for (auto const& schedule : chosen)
            for (char const* kind : {"shared", "copied"})
                if (large && usual)
                    cases.push_back({schedule, policies.front(), kind, 64, 4096, 4096});
    } catch (std::exception const& error) {
        return options.refuse(error.what());
    }
    if (!json)
        std::printf(
            large
                ? "schedule                      K      M links   seconds      MiB ns/action "
                  "B/action\n"
                : "MiB of the largest device, of all, of the host; largest peak_bytes() / planned; "
                  "per action: needs, "
                  "those not implied, those for room, waits;\nmakespan / without waits "
                  "for room: as planned, median and largest of 6 draws; planning: ns and "
                  "bytes per action\nschedule                    v  K   M  checkpoints "
                  "links  largest     all    host   bound   needs    left    room   waits   price "
                  " median largest      ns   bytes\n");
    Summary summary("plan", json);
    for (PlanCase const& of : cases) (large ? measure_large : measure)(of, rounds, json, summary);
    if (!prices_of_messages.empty())
        summary.add("of these, sent: 95 % quantile over rows and draws",
                    quantile(prices_of_messages, 0.95), 1.1);
    summary.print();
}
