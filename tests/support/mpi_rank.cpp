// One process of several that train: mpi_rank WAY shared|apart VICTIM MOMENT. The victim is lost,
// or is another than the rest, in the way that is named; at the MOMENT: "made", before there is a
// Training, "between" two steps, or at so many calls of its layers in steps. Adds to the file when
// that is, and when and with which words this process has left (what is printed a launcher that
// ends the others may drop); status 0 if it has trained to the end.
#include <gpipe/core/version.hpp>

#include <cstdint>

namespace {
// Of the library that this process was compiled with, as it were.
std::uint32_t version = GPIPE_VERSION;
} // namespace
#undef GPIPE_VERSION
#define GPIPE_VERSION ::version

#include "layers.hpp"
#include "losses.hpp"

#include <gpipe/core/clock.hpp>
#include <gpipe/gpipe.hpp>
#include <gpipe/transport/mpi.hpp>

#include <algorithm>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include <unistd.h>

namespace {

std::string way, moment; // of the victim; else empty
std::size_t calls = 0;   // of layers in steps
std::size_t const processes = 3;

std::FILE* file = nullptr;

// At once, on one line: those of several processes are not mixed.
void say(char const* what, std::string words = {}) {
    std::replace(words.begin(), words.end(), '\n', ';');
    std::fprintf(file, "%s %.6f %s\n", what, gpipe::detail::seconds_now(), words.c_str());
    std::fflush(file);
}
void get_lost() {
    if (way == "none" || way.empty()) return;
    say("FAULT");
    if (way == "exit") std::_Exit(3);
    if (way == "kill") ::raise(SIGKILL);
    if (way == "segv") ::raise(SIGSEGV);
    if (way == "stop") ::raise(SIGSTOP);
    if (way == "hang")
        for (;;) ::pause();
    if (way == "throw") throw std::runtime_error("a layer's own words");
}
void at(char const* here) {
    if (moment == here) get_lost();
}

struct Fragile : toy::Linear<float, 4, 4> {
    void initialize(auto& ctx) const {
        if (way == "begin") throw std::runtime_error("a layer's own words");
        toy::Linear<float, 4, 4>::initialize(ctx);
    }
    void forward(auto& ctx, auto x, auto y) const {
        call(ctx);
        toy::Linear<float, 4, 4>::forward(ctx, x, y);
    }
    void backward(auto& ctx, auto x, auto dy, auto dx) const {
        call(ctx);
        toy::Linear<float, 4, 4>::backward(ctx, x, dy, dx);
    }

  private:
    static void call(auto& ctx) {
        if (ctx.training() && std::to_string(++calls) == moment) get_lost();
    }
};
struct Other : Fragile {}; // which does the same

template <class Layer, class Functor>
using Train =
    gpipe::Training<gpipe::Pipeline<gpipe::Repeat<4, Layer>>, gpipe::Cells<gpipe::dynamic>,
                    gpipe::MicroBatches<4>, gpipe::Loss<toy::MeanSquare<float, 4>>,
                    gpipe::Optimizer<Functor>, gpipe::transport::Mpi>;

template <class T> void train(gpipe::MpiRanks& ranks) {
    typename T::Options o;
    o.samples = way == "refused" ? 0 : 8;
    o.debug = way == "plan"; // there is room behind what it has
    o.cells = processes + (way == "world");
    o.seed = way == "seed" ? 1 : 0;
    o.device.transport = &ranks;
    at("made");
    version += way == "version";
    for (char const* const differs :
         {"refused", "begin", "world", "type", "policy", "plan", "seed", "version"})
        if (way == differs) say("FAULT");
    T train{{}, {}, {}, o};
    std::vector<float> const x(8 * 4, 1), target(8 * 4);
    for (int step = 0; step < 3; ++step) {
        if (step == 1) at("between");
        if (step == 2 && way == "leave") return say("FAULT");
        if (step == 2 && way == "give_up") {
            say("FAULT");
            ranks.give_up("has an error of its own");
        }
        try {
            train.step(x, target);
        } catch (gpipe::RankError const& error) {
            say("GOES ON", error.what());
        } catch (std::runtime_error const& error) {
            if (way != "throw") throw;
            say("THREW", error.what());
        }
    }
    say("DONE", "after " + std::to_string(train.steps()) + " steps");
}

// A message of other bytes than are awaited, or of more than the channel is for, or ranks of which
// one never opens its channels.
void exchange(gpipe::MpiRanks& ranks, std::uint32_t victim, std::string const& what) {
    std::uint32_t const other = victim == 0;
    gpipe::Array<gpipe::Channel> channels(1);
    channels[0] = {victim, other, 8};
    if (ranks.rank() == victim) say("FAULT");
    if (ranks.rank() == victim && what == "open")
        for (;;) ::pause();
    ranks.open(channels);
    std::vector<std::byte> data(4096);
    for (std::size_t const bytes :
         {std::size_t{8}, what == "long" ? data.size() : 4, std::size_t{8}}) {
        if (ranks.rank() == victim) ranks.send(0, data.data(), bytes, 0);
        if (ranks.rank() == other) ranks.receive(0, data.data(), what == "long" ? bytes : 8);
    }
    (void)ranks.gather(0);
}

// Whether this is the victim, which is then a rank among none but itself.
bool is_alone(std::uint32_t victim, gpipe::MpiRanks::Options& o) {
    int threads = 0, rank = 0;
    MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &threads);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (static_cast<std::uint32_t>(rank) != victim) return false;
    say("FAULT");
    o.communicator = MPI_COMM_SELF;
    return true;
}
gpipe::MpiRanks join(gpipe::MpiRanks::Options const& o) {
    try {
        return gpipe::MpiRanks(o);
    } catch (std::exception const& error) {
        say("LEFT", error.what());
        throw;
    }
}

} // namespace

int main(int, char** arguments) {
    std::string const what = arguments[1];
    auto const victim = static_cast<std::uint32_t>(std::atoi(arguments[3]));
    file = std::fopen(arguments[5], "a");
    gpipe::MpiRanks::Options o;
    o.deadline = 2;
    o.shares = arguments[2] == std::string("shared");
    try {
        bool const alone = what == "size" && is_alone(victim, o);
        gpipe::MpiRanks ranks = join(o);
        bool const is_victim = what == "size" ? alone : ranks.rank() == victim;
        if (is_victim) way = what, moment = arguments[4];
        try { // said before the others are left
            if (what == "bytes" || what == "long" || what == "open")
                exchange(ranks, victim, what);
            else if (way == "type")
                train<Train<Other, gpipe::SGD>>(ranks);
            else if (way == "policy")
                train<Train<Fragile, gpipe::Adam>>(ranks);
            else
                train<Train<Fragile, gpipe::SGD>>(ranks);
        } catch (std::exception const& error) {
            say("LEFT", error.what());
            throw;
        }
        return way == "leave"; // of a 0 without MPI_Finalize MPICH's mpiexec may make one of all
    } catch (std::exception const& error) {
        say("ENDS", error.what());
        return 1;
    }
}
