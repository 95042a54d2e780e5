// Near-empty layers on one lane, so many steps: for scripts/instructions, which counts what they
// take.
#include "../benchmarks/support/handwritten.hpp"

#include <gpipe/gpipe.hpp>

#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <vector>

namespace {

using namespace benchmark;

template <std::size_t K> int run(bool ours, std::size_t micro_batches, int steps) {
    std::vector<float> const inputs(micro_batches * Tiny::width, 0.1f);
    std::vector<float> const targets(micro_batches * Tiny::width, 0.05f);
    gpipe::SGD const optimizer{1e-3f};
    double loss = 0;
    if (ours) {
        gpipe::Training<gpipe::Pipeline<gpipe::Repeat<K, Tiny>>, gpipe::Cells<K>,
                        gpipe::MicroBatches<gpipe::dynamic>, gpipe::Loss<TinyLoss>,
                        gpipe::Optimizer<gpipe::SGD>, gpipe::checkpoint::Never>
            train{{},
                  {},
                  optimizer,
                  {.samples = micro_batches,
                   .micro_batches = micro_batches,
                   .device = {.threads = 1}}};
        for (int i = 0; i < steps; ++i) loss = train.step(inputs, targets);
    } else {
        Handwritten<K, 1> train{micro_batches, micro_batches, optimizer};
        for (int i = 0; i < steps; ++i) loss = train.step(inputs.data(), targets.data());
    }
    std::printf("%.17g\n", loss);
    return 0;
}

} // namespace

int main(int argc, char** argv) {
    if (argc != 5) return std::fputs("usage: instructions ours|handwritten K M STEPS\n", stderr), 2;
    bool const ours = argv[1] == std::string_view("ours");
    auto const micro_batches = static_cast<std::size_t>(std::atoi(argv[3]));
    int const steps = std::atoi(argv[4]);
    switch (std::atoi(argv[2])) {
    case 2:
        return run<2>(ours, micro_batches, steps);
    case 8:
        return run<8>(ours, micro_batches, steps);
    default:
        return std::fputs("K is 2 or 8\n", stderr), 2;
    }
}
