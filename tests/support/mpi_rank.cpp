// One process of several that train, the last of which is lost in the way that the first argument
// names. Says on one line what that comes to for it; status 0 if it has trained to the end.
#include "layers.hpp"
#include "losses.hpp"

#include <gpipe/gpipe.hpp>
#include <gpipe/transport/mpi.hpp>

#include <csignal>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <stdexcept>
#include <string>
#include <vector>

#include <unistd.h>

namespace {

std::string how;     // if this is the last rank: what it does
bool in_step = true; // in the midst of a step, or else between two

void get_lost() {
    if (how == "exit") std::_Exit(3);
    if (how == "kill") ::raise(SIGKILL);
    if (how == "segv") ::raise(SIGSEGV);
    if (how == "stop") ::raise(SIGSTOP);
    if (how == "hang")
        for (;;) ::pause();
    if (how == "throw") throw std::runtime_error("a layer's own words");
}

struct Fragile : toy::Linear<float, 4, 4> {
    void forward(auto& ctx, auto x, auto y) const {
        if (in_step && ctx.samples() > 0 && ctx.training()) get_lost();
        toy::Linear<float, 4, 4>::forward(ctx, x, y);
    }
};
using Net = gpipe::Pipeline<gpipe::Repeat<4, Fragile>>;
using Train = gpipe::Training<Net, gpipe::Cells<gpipe::dynamic>, gpipe::MicroBatches<4>,
                              gpipe::Loss<toy::MeanSquare<float, 4>>, gpipe::transport::Mpi>;

void train(gpipe::MpiRanks& ranks) {
    Train::Options o;
    o.samples = how == "refused" ? 0 : 8;
    o.cells = ranks.ranks();
    o.seed = how == "seed" ? 1 : 0;
    o.device.transport = &ranks;
    Train train{Net{}, {}, {}, o};
    std::vector<float> const x(8 * 4, 1), target(8 * 4);
    for (int step = 0; step < 3; ++step) {
        in_step = step == 1 && how != "leave";
        if (step == 2 && how == "leave") return;
        try {
            train.step(x, target);
        } catch (gpipe::RankError const& error) {
            std::printf("rank %zu goes on: %s\n", ranks.rank(), error.what());
        } catch (std::runtime_error const& error) {
            if (how != "throw") throw;
            std::printf("rank %zu threw: %s\n", ranks.rank(), error.what());
        }
    }
    std::printf("rank %zu is done after %d steps\n", ranks.rank(), int(train.steps()));
}

// Messages of which the last rank sends one that is too short.
void exchange(gpipe::MpiRanks& ranks) {
    gpipe::Array<gpipe::Channel> channels(1);
    channels[0] = {2, 1, 8};
    ranks.open(channels);
    std::byte data[8] = {};
    for (std::size_t const bytes : {8u, 4u, 8u}) {
        if (ranks.rank() == 2) ranks.send(0, data, bytes, 0);
        if (ranks.rank() == 1) ranks.receive(0, data, 8);
    }
    if (ranks.error()) std::rethrow_exception(ranks.error());
    (void)ranks.gather(0);
}

} // namespace

int main(int, char** arguments) {
    gpipe::MpiRanks::Options o;
    o.deadline = 3;
    o.shares = arguments[2] == std::string("shared");
    try {
        gpipe::MpiRanks ranks(o);
        if (ranks.rank() + 1 == ranks.ranks()) how = arguments[1];
        try {
            arguments[1] == std::string("bytes") ? exchange(ranks) : train(ranks);
        } catch (std::exception const& error) {
            std::printf("rank %zu: %s\n", ranks.rank(), error.what());
            std::fflush(stdout);
            throw;
        }
    } catch (std::exception const&) {
        return 1;
    }
}
