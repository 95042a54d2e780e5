// expect GPIPE_NO_SIZE: gpipe: the source of a Loader says how many samples it has: std::size_t size\(\) const
// expect GPIPE_INPUTS_TO_A_VECTOR: gpipe: the source of a Loader writes the inputs of a sample, a span for each tensor
// expect GPIPE_NO_TARGETS: gpipe: the source of a Loader writes the targets of a sample, a span for each tensor
#include <gpipe/loader.hpp>
#include <gpipe/training.hpp>
#include <support/blank_layers.hpp>
#include <support/blank_loss.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

using Train = gpipe::Training<gpipe::Pipeline<blank::Linear<4>>, gpipe::Loss<blank::Loss<4>>>;
struct Source {
#ifndef GPIPE_NO_SIZE
    std::size_t size() const { return 3; }
#endif
#ifdef GPIPE_INPUTS_TO_A_VECTOR
    void inputs(std::uint64_t, std::vector<float>&) {}
#else
    void inputs(std::uint64_t, std::span<float>) {}
#endif
#ifndef GPIPE_NO_TARGETS
    void targets(std::uint64_t, std::span<float>) {}
#endif
};

void load(Train& train);
void load(Train& train) {
    gpipe::Loader loader(train, Source{});
    (void)loader.next();
}
