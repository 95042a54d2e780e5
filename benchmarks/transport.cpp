// What it takes to run as two processes: a message from one to the other, there and back and one
// behind the other, beside plain calls of MPI; and steps of two processes beside those of two
// threads, in wall time and in seconds of the processors; and steps that overlap beside those that
// do not. All in turns.
#include "support/list.hpp"
#include "support/quiet.hpp"
#include "support/ranks.hpp"
#include "support/record.hpp"
#include "support/statistics.hpp"
#include "support/summary.hpp"

#include <gpipe/gpipe.hpp>
#include <gpipe/replicas.hpp>
#include <gpipe/transport/mpi.hpp>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace {

using namespace benchmark;
using gpipe::MpiRanks;

struct Settings {
    std::vector<std::size_t> bytes;
    std::uint64_t rounds = 21;
    bool json = false;
};
// This process, one of two.
struct World {
    MpiRanks ranks;
    std::size_t self() const { return ranks.rank(); }
    bool speaks() const { return self() == 0; }
    // Of both the sum.
    double sum(double number) {
        auto const all = ranks.gather(std::bit_cast<std::uint64_t>(number));
        return std::bit_cast<double>(all[0]) + std::bit_cast<double>(all[1]);
    }
    void meet() { (void)ranks.gather(0); }
    // Of the second process: until the first calls it, too; hardly ever awake before.
    void rest() {
        MPI_Request request;
        MPI_Ibarrier(MPI_COMM_WORLD, &request);
        for (int done = 0;;) {
            MPI_Test(&request, &done, MPI_STATUS_IGNORE);
            if (done) return;
            std::this_thread::sleep_for(std::chrono::milliseconds(self() == 0 ? 0 : 5));
        }
    }
};

// Ways for messages of so many bytes: send() and receive(), there and back.
struct Plain {
    static constexpr char const* name = "MPI_Send, MPI_Recv";
    std::vector<std::byte> data;
    Plain(std::size_t bytes, bool) : data(bytes) {}
    int size() const { return static_cast<int>(data.size()); }
    void send(std::size_t self) {
        MPI_Send(data.data(), size(), MPI_BYTE, self == 0 ? 1 : 0, 1, MPI_COMM_WORLD);
    }
    void receive(std::size_t self) {
        MPI_Recv(data.data(), size(), MPI_BYTE, self == 0 ? 1 : 0, 1, MPI_COMM_WORLD,
                 MPI_STATUS_IGNORE);
    }
};
struct Ours {
    MpiRanks ranks;
    std::vector<std::byte> data;
    Ours(std::size_t bytes, bool shares) : ranks(options(shares)), data(bytes) {
        gpipe::Array<gpipe::Channel> channels(2);
        channels[0] = {0, 1, bytes};
        channels[1] = {1, 0, bytes};
        ranks.open(channels);
    }
    static MpiRanks::Options options(bool shares) {
        MpiRanks::Options o;
        o.shares = shares;
        return o;
    }
    void send(std::size_t self) { ranks.send(self, data.data(), data.size(), 0); }
    void receive(std::size_t self) { ranks.receive(1 - self, data.data(), data.size()); }
};

// Seconds of a message there and back, halved.
template <class Way> double trip(World& world, Way& way, std::size_t count) {
    world.meet();
    double const begin = seconds();
    for (std::size_t n = 0; n < count; ++n)
        for (std::size_t const sender : {0u, 1u})
            sender == world.self() ? way.send(world.self()) : way.receive(world.self());
    return (seconds() - begin) / static_cast<double>(2 * count);
}
// Of a message in a row of them, of which the last is answered.
template <class Way> double row(World& world, Way& way, std::size_t count) {
    world.meet();
    double const begin = seconds();
    for (std::size_t n = 0; n < count; ++n) world.self() == 0 ? way.send(0) : way.receive(1);
    world.self() == 0 ? way.receive(0) : way.send(1);
    return (seconds() - begin) / static_cast<double>(count + 1);
}

void messages(Settings const& settings, World& world, Summary& summary) {
    if (!settings.json && world.speaks())
        std::printf("a message between two processes, us, medians of %zu rounds: there and back "
                    "halved; in a row\n"
                    "     bytes  plain MPI    messages / plain      window / plain |  plain MPI    "
                    "messages / plain      window / plain\n",
                    static_cast<std::size_t>(settings.rounds));
    for (std::size_t const bytes : settings.bytes) {
        Plain plain(bytes, false);
        Ours apart(bytes, false), shared(bytes, true);
        std::size_t const count = std::clamp<std::size_t>((std::size_t{1} << 22) / bytes, 4, 500);
        std::vector<double> taken[2][3];
        for (std::uint64_t round = 0; round <= settings.rounds; ++round) {
            double const all[2][3] = {
                {trip(world, plain, count), trip(world, apart, count), trip(world, shared, count)},
                {row(world, plain, count), row(world, apart, count), row(world, shared, count)}};
            for (int kind = 0; kind < 2 && round > 0; ++kind) // the first touches pages
                for (int way = 0; way < 3; ++way) taken[kind][way].push_back(all[kind][way]);
        }
        if (!world.speaks()) continue;
        char const* const kinds[] = {"there and back", "in a row"};
        char const* const ways[] = {"plain", "messages", "window"};
        if (!settings.json) std::printf("%10zu", bytes);
        for (int kind = 0; kind < 2; ++kind) {
            if (!settings.json)
                std::printf("%s %10.2f", kind ? " |" : "", 1e6 * median(taken[kind][0]));
            for (int way = 1; way < 3; ++way) {
                double const ratio = median(ratios(taken[kind][way], taken[kind][0]));
                summary.add(std::string(kinds[kind]) + ", " + ways[way] + " / plain MPI", ratio,
                            1 / 0.95);
                if (settings.json)
                    Record("transport")
                        .add("bytes", bytes)
                        .add("kind", kinds[kind])
                        .add("way", ways[way])
                        .compare("s", taken[kind][way], "plain MPI", taken[kind][0])
                        .print();
                else
                    std::printf(" %10.2f %8.3f", 1e6 * median(taken[kind][way]), ratio);
            }
        }
        if (!settings.json) std::printf("\n");
        std::fflush(stdout);
    }
}

/// So many multiplications for each element.
struct Work {
    static constexpr std::size_t width = 256;
    using Input = gpipe::Tensor<float, width>;
    using Output = Input;
    using Parameters = gpipe::Tensor<float, width>;
    std::size_t rounds = 0;

    void initialize(auto& ctx) const {
        for (float& p : ctx.parameters()) p = 1;
    }
    void forward(auto& ctx, auto x, auto y) const { work(ctx.parameters(), x, y); }
    void backward(auto& ctx, auto x, auto dy, auto dx) const {
        work(ctx.parameters(), dy, dx);
        for (std::size_t s = 0; s < x.samples(); ++s)
            for (std::size_t i = 0; i < width; ++i) ctx.gradients()(i) += dy(s, i) * x(s, i);
    }
    void work(auto const& p, auto const& from, auto& to) const {
        for (std::size_t s = 0; s < from.samples(); ++s)
            for (std::size_t i = 0; i < width; ++i) {
                float value = from(s, i);
                for (std::size_t n = 0; n < rounds; ++n) value = value * p(i) + 1e-9f;
                to(s, i) = value;
            }
    }
};
struct Half {
    using Target = gpipe::Tensors<>;
    gpipe::LossValue<> operator()(auto&, auto y, auto, auto dy) const {
        for (std::size_t i = 0; i < y.size(); ++i) dy.data()[i] = 1e-6f * y.data()[i];
        return {0, static_cast<double>(y.samples())};
    }
};
using Net = gpipe::Pipeline<gpipe::Repeat<8, Work>>;
template <class Transport>
using Train = gpipe::Training<Net, gpipe::Cells<2>, gpipe::MicroBatches<gpipe::dynamic>,
                              gpipe::Loss<Half>, gpipe::schedule::OneForwardOneBackward, Transport>;

void steps(Settings const& settings, World& world, Summary& summary) {
    constexpr std::size_t samples = 64;
    if (!settings.json && world.speaks())
        std::printf("\nsteps of %zu samples of 1 KiB, 8 layers, K = 2, medians of %zu rounds\n"
                    "   M      work  threads ms  processes ms  / threads  processors' seconds "
                    "/ threads'\n",
                    samples, static_cast<std::size_t>(settings.rounds));
    for (std::size_t const m : {std::size_t{4}, std::size_t{8}, std::size_t{32}})
        for (std::size_t const rounds : {std::size_t{2}, std::size_t{20}}) {
            Net const net{gpipe::Repeat<8, Work>{Work{rounds}}};
            std::vector<float> const data(samples * Work::width, 1);
            MpiRanks ranks;
            typename Train<gpipe::transport::Mpi>::Options many{
                .samples = samples, .micro_batches = m, .device = {{1}, &ranks, 1}};
            Train<gpipe::transport::Mpi> processes{net, {}, {}, many};
            std::optional<Train<gpipe::transport::Local>> threads;
            if (world.speaks())
                threads.emplace(net, Half{}, gpipe::SGD{},
                                typename Train<gpipe::transport::Local>::Options{
                                    .samples = samples, .micro_batches = m, .device = {2}});
            std::vector<double> wall[2], processors[2];
            for (std::uint64_t round = 0; round <= settings.rounds; ++round)
                for (int kind = 0; kind < 2; ++kind) {
                    world.meet();
                    double const begin = seconds(), used = processor_seconds();
                    for (int n = 0; n < 8; ++n)
                        if (kind == 1)
                            processes.step(data, {});
                        else if (threads)
                            threads->step(data, {});
                    double const end = seconds();
                    if (kind == 0) world.rest();
                    // Threads have had only what this process has.
                    double const own = processor_seconds() - used;
                    double const all = kind == 1 ? world.sum(own) : own;
                    if (round == 0) continue;
                    wall[kind].push_back((end - begin) / 8);
                    processors[kind].push_back(all / 8);
                }
            if (!world.speaks()) continue;
            double const slower = median(ratios(wall[1], wall[0]));
            double const dearer = median(ratios(processors[1], processors[0]));
            summary.add("processes / threads, time", slower);
            summary.add("processes / threads, processors' seconds", dearer, 1.05);
            if (settings.json)
                Record("transport")
                    .add("M", m)
                    .add("rounds_of_work", rounds)
                    .compare("s per step", wall[1], "threads", wall[0])
                    .print();
            else
                std::printf("%4zu %9zu %11.3f %13.3f %10.3f %31.3f\n", m, rounds,
                            1e3 * median(wall[0]), 1e3 * median(wall[1]), slower, dearer);
            std::fflush(stdout);
        }
}

/// Takes a while of no processor: what a device does that is not this one.
struct Elsewhere {
    using Input = gpipe::Tensor<float>;
    using Output = Input;
    using Parameters = gpipe::Tensor<float>;

    void initialize(auto&) const {}
    void forward(auto&, auto x, auto y) const {
        wait();
        for (std::size_t s = 0; s < x.samples(); ++s) y(s) = x(s);
    }
    void input_gradient(auto&, auto, auto dy, auto dx) const {
        wait();
        for (std::size_t s = 0; s < dy.samples(); ++s) dx(s) = dy(s);
    }
    void weight_gradient(auto&, auto, auto) const { wait(); }
    static void wait() { std::this_thread::sleep_for(std::chrono::milliseconds(2)); }
};
template <class Schedule, class Update, std::size_t replicas>
using Far =
    gpipe::Training<gpipe::Pipeline<gpipe::Repeat<8, Elsewhere>>, gpipe::Cells<4>,
                    gpipe::MicroBatches<8>, gpipe::Loss<Half>, Schedule, Update,
                    gpipe::checkpoint::Never, gpipe::Replicas<replicas>, gpipe::transport::Mpi>;

// Seconds of a step, of which so many are under way when the next is started.
template <class Train> double seconds_of_steps(World& world, Train& train, std::size_t ahead) {
    constexpr std::size_t count = 6;
    std::vector<float> const data(16, 1);
    world.meet();
    double const begin = seconds();
    std::vector<typename Train::Pending> under_way;
    for (std::size_t n = 0; n < count; ++n) {
        under_way.push_back(train.start(data, {}));
        if (under_way.size() <= ahead) continue;
        under_way.front().result();
        under_way.erase(under_way.begin());
    }
    for (auto& step : under_way) step.result();
    return (seconds() - begin) / count;
}
template <class Schedule, std::size_t replicas>
void overlaps(char const* name, Settings const& settings, World& world, Summary& summary) {
    auto const options = [](MpiRanks& ranks) {
        constexpr std::size_t devices = 4 * replicas / 2;
        return typename Far<Schedule, gpipe::update::AfterCommit, replicas>::Options{
            .samples = 16 / replicas, .device = {{devices}, &ranks, devices}};
    };
    MpiRanks ranks, others;
    Far<Schedule, gpipe::update::AfterCommit, replicas> after{{}, {}, {}, options(ranks)};
    Far<Schedule, gpipe::update::Immediate, replicas> immediate{{}, {}, {}, options(others)};
    std::vector<double> taken[2];
    for (std::uint64_t round = 0; round <= std::min<std::uint64_t>(settings.rounds, 5); ++round) {
        double const all[] = {seconds_of_steps(world, after, 0),
                              seconds_of_steps(world, immediate, 1)};
        for (int kind = 0; kind < 2 && round > 0; ++kind) taken[kind].push_back(all[kind]);
    }
    if (!world.speaks()) return;
    double const ratio = median(ratios(taken[1], taken[0]));
    summary.add("steps that overlap (update::Immediate) / that do not", ratio);
    if (settings.json)
        Record("transport")
            .add("schedule", name)
            .add("replicas", replicas)
            .compare("s per step", taken[1], "after commit", taken[0])
            .print();
    else
        std::printf("%24s %8zu %13.2f %12.2f %10.3f\n", name, replicas, 1e3 * median(taken[0]),
                    1e3 * median(taken[1]), ratio);
    std::fflush(stdout);
}
void overlaps(Settings const& settings, World& world, Summary& summary) {
    if (!settings.json && world.speaks())
        std::printf(
            "\nsteps of layers that take 2 ms elsewhere, K = 4, M = 8, two processes\n"
            "                schedule replicas  after commit ms  immediate ms  / after commit\n");
    using namespace gpipe::schedule;
    overlaps<OneForwardOneBackward, 1>("OneForwardOneBackward", settings, world, summary);
    overlaps<ZeroBubbleH1, 1>("ZeroBubbleH1", settings, world, summary);
    overlaps<ZeroBubbleH2, 1>("ZeroBubbleH2", settings, world, summary);
    overlaps<ZeroBubbleH2, 2>("ZeroBubbleH2", settings, world, summary);
}

} // namespace

int main(int argc, char** argv) {
    Settings settings;
    std::string bytes = "64,4096,65536,1048576,16777216";
    support::Options options("transport",
                             "Messages between two processes beside plain calls of MPI, and steps "
                             "of two processes\nbeside those of two threads. Starts the second "
                             "process itself, by mpirun.");
    options.text("bytes", "N,...", "of a message", bytes);
    options.number("rounds", "of each measurement", settings.rounds, 1, 1000);
    options.flag("json", "one JSON object per line", settings.json);
    if (auto const status = options.parse(argc, argv)) return *status;
    try {
        settings.bytes = numbers("--bytes", bytes, {}, std::size_t{1} << 28);
        if (!support::is_launched()) support::launch(2, argc, argv);
        World world;
        if (world.ranks.ranks() != 2) throw support::UsageError("takes two processes");
        Summary summary("transport", settings.json);
        messages(settings, world, summary);
        steps(settings, world, summary);
        overlaps(settings, world, summary);
        if (world.speaks()) summary.print();
    } catch (support::UsageError const& error) {
        return options.refuse(error.what());
    } catch (std::exception const& error) {
        std::fprintf(stderr, "transport: %s\n", error.what());
        return 1;
    }
}
