#include "other.hpp"

#include <gpipe/gpipe.hpp>

#include <cstdio>

// Prints the bits of what a training gives.
int main() {
    Train train{Net{}, Squared{}, gpipe::AdamW{.learning_rate = 0.01f}, {.samples = 8, .seed = 3}};
    float const inputs[] = {1, 2, 3, 4, 5, 6, 7, 8}, targets[] = {2, 4, 6, 8, 10, 12, 14, 16};
    for (int i = 0; i < 8; ++i) std::printf("%a\n", train.step(inputs, targets).loss);
    std::printf("%a\n", double(train.parameters<0>()[0]));
    std::printf("%a\n", loss_elsewhere(inputs, targets));
    return Train::bubble() == gpipe::ratio(1, 5) ? 0 : 1;
}
