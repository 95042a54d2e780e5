// Processes that train and save one state, again and again, until one of them is killed at some
// moment; and one that looks at what is there then.
//   mpi_saver PATH SEED     a process of several: the SEED says which is killed, and when
//   mpi_saver PATH          alone: whether the state is that after as many steps as it says
#include "net.hpp"

#include <gpipe/gpipe.hpp>
#include <gpipe/replicas.hpp>
#include <gpipe/state/state.hpp>
#include <gpipe/transport/mpi.hpp>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>

namespace {

using Net = gpipe::Pipeline<toy::Linear<float, 5, 60>, toy::Tanh<float, 60>,
                            toy::Linear<float, 60, 60>, toy::Linear<float, 60, 3>>;
using Loss = toy::MeanSquare<float, 3>;
template <class... Transport>
using Train = gpipe::Training<Net, gpipe::Cells<gpipe::dynamic>, gpipe::MicroBatches<2>,
                              gpipe::Loss<Loss>, gpipe::Optimizer<gpipe::Adam>,
                              gpipe::Replicas<2, gpipe::shard::OptimizerState>, Transport...>;

template <class T> typename T::Options options(std::size_t cells) {
    typename T::Options o;
    o.samples = 4;
    o.cells = cells;
    o.snapshot = true;
    return o;
}
template <class T> void step(T& train) {
    toy::Data<float> const data(7, static_cast<std::uint32_t>(train.steps()));
    train.step(data.inputs, data.targets);
}

void save(std::string const& path, std::uint64_t seed) {
    gpipe::MpiRanks ranks;
    using T = Train<gpipe::transport::Mpi>;
    auto o = options<T>(ranks.ranks() / 2);
    o.device.transport = &ranks;
    T train{Net{}, {}, gpipe::Adam{1e-2f}, o};
    std::mt19937_64 random(seed);
    bool const dies = random() % ranks.ranks() == ranks.rank();
    auto const moment = std::chrono::microseconds(random() % 200'000);
    for (int n = 0;; ++n) {
        step(train);
        if (n % 3 == 1)
            gpipe::start_save(train, path);
        else
            gpipe::save(train, path);
        if (n == 0 && dies) // from the first state on there is one
            std::thread([=] {
                std::this_thread::sleep_for(moment);
                ::raise(SIGKILL);
            }).detach();
    }
}
void check(std::string const& path) {
    using T = Train<>;
    T found{Net{}, {}, gpipe::Adam{1e-2f}, options<T>(1)},
        train{Net{}, {}, gpipe::Adam{1e-2f}, options<T>(1)};
    gpipe::load(found, path);
    while (train.steps() < found.steps()) step(train);
    for (int more = 0; more < 2; ++more) { // the second time with the optimizer's state
        for (std::size_t layer = 0; layer < Net::size; ++layer)
            for (std::size_t t = 0; t < train.tensors(layer); ++t) {
                auto const a = train.parameter<float>(layer, t),
                           b = found.parameter<float>(layer, t);
                if (!std::equal(a.begin(), a.end(), b.begin(), b.end()))
                    throw std::runtime_error("parameters are not those of that step");
            }
        step(train);
        step(found);
    }
    std::printf("the state after %zu steps\n", static_cast<std::size_t>(found.steps()) - 2);
}

} // namespace

int main(int count, char** arguments) {
    try {
        if (count == 3)
            save(arguments[1], std::strtoull(arguments[2], nullptr, 10));
        else
            check(arguments[1]);
    } catch (std::exception const& error) {
        std::printf("%s\n", error.what());
        return 1;
    }
}
