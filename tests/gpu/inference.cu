// An Inference on GPUs gives what a Training predicts there, in every bit, several under way.
#include "support/on_gpu.hpp"

#include <gpipe/device/cuda_memory.hpp>
#include <gpipe/inference.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace {

constexpr gpipe::RMSProp optimizer{1e-2f, 0.9f, 0.5f, 1e-6f, 1e-2f};
template <class T> using Net = toy::KernelNet<T, true>;
template <class T> using Train = toy::CudaTrain<T, gpipe::RMSProp>;
template <class T>
using Inference = gpipe::Inference<Net<T>, gpipe::Cells<gpipe::dynamic>,
                                   gpipe::MicroBatches<gpipe::dynamic>, gpipe::device::Cuda>;
constexpr gpipe::Link links[] = {gpipe::Link::shared, gpipe::Link::copied, gpipe::Link::staged};

std::size_t gpu_count() { return static_cast<std::size_t>(gpipe::cuda::device_count()); }
template <class Of>
typename Of::Options options(std::size_t cells, std::size_t micro_batches, gpipe::Link link) {
    typename Of::Options result;
    result.samples = 8;
    result.seed = 7;
    result.cells = cells;
    result.micro_batches = micro_batches;
    for (std::size_t k = 0; k < cells; ++k)
        result.device.gpus.push_back(static_cast<int>(k % gpu_count()));
    result.device.link = link;
    return result;
}

// Pinned, so that nobody waits for a copy.
template <class T> struct Outputs {
    gpipe::cuda::PinnedBuffer memory;
    std::span<T> numbers;
    explicit Outputs(std::size_t samples)
        : memory(samples * 3 * sizeof(T)),
          numbers(reinterpret_cast<T*>(memory.data()), samples * 3) {}
    bool operator==(std::vector<T> const& other) const {
        return std::equal(numbers.begin(), numbers.end(), other.begin(), other.end());
    }
};

} // namespace

TEST_CASE_TEMPLATE("on one GPU or several an inference gives what a training predicts, in every "
                   "bit, for every K, M and link, eager and as graphs, and takes fewer bytes",
                   T, float, double) {
    std::size_t inferences = 0;
    for (std::size_t const m : {1, 3, 8})
        for (std::size_t cells = 1; cells <= 4; ++cells)
            for (gpipe::Link const link : links) {
                toy::Session const session(inferences % 4);
                bool const graphs = inferences % 2 == 1;
                INFO("K = ", cells, ", M = ", m, ", link ", static_cast<int>(link),
                     graphs ? ", graphs" : "");
                toy::Watch watch;
                Train<T> train(watched(Net<T>{}, watch), {}, optimizer,
                               options<Train<T>>(2, 4, gpipe::Link::shared));
                for (std::uint32_t i = 0; i < 2; ++i) {
                    toy::Data<T> const data(8, i);
                    train.step(data.inputs, data.targets);
                }
                auto o = options<Inference<T>>(cells, m, link);
                o.device.graphs = 2 * graphs;
                Inference<T> inference(watched(Net<T>{}, watch), o);
                inference.copy_from(train);
                CHECK(inference.used_bytes() == inference.planned_bytes());
                CHECK(inference.planned_bytes() < train.planned_bytes());
                toy::Data<T> const many(27, 9), whole(8, 10), few(3, 11);
                std::vector<T> expected(27 * 3), of_whole(8 * 3), of_few(3 * 3);
                train.predict(many.inputs, expected);
                train.predict(whole.inputs, of_whole);
                train.predict(few.inputs, of_few);
                for (int round = 0; round < 1 + 2 * graphs; ++round) {
                    Outputs<T> outputs(27), one(8), two(3), three(8);
                    inference.predict(many.inputs, outputs.numbers);
                    CHECK(outputs == expected);
                    auto first = inference.start(whole.inputs, one.numbers);
                    auto second = inference.start(few.inputs, two.numbers);
                    auto third = inference.start(whole.inputs, three.numbers);
                    third.wait();
                    second.wait();
                    first.wait();
                    CHECK(one == of_whole);
                    CHECK(two == of_few);
                    CHECK(three == of_whole);
                }
                ++inferences;
            }
    MESSAGE(inferences, " inferences");
}
