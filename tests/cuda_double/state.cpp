// A training goes on from host to GPU and back, over the double of the CUDA runtime: a saved state
// knows no device.
#include "support/enqueued.hpp"
#include "support/folder.hpp"
#include "support/net.hpp"

#include <gpipe/cuda/half.cuh>
#include <gpipe/state/state.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace {

using gpipe::device::Cuda;
using gpipe::device::Host;
using toy::Enqueued;

using Real = float;
using HostNet = gpipe::Pipeline<toy::Linear<Real, 5, 6>, toy::Dropout<Real, 6>, toy::Tanh<Real, 6>,
                                toy::Linear<Real, 6, 3>>;
using CudaNet = gpipe::Pipeline<Enqueued<toy::Linear<Real, 5, 6>>, Enqueued<toy::Dropout<Real, 6>>,
                                Enqueued<toy::Tanh<Real, 6>>, Enqueued<toy::Linear<Real, 6, 3>>>;
using HostTrain = toy::Training<HostNet, toy::MeanSquare<Real, 3>, gpipe::Adam, Host>;
using CudaTrain =
    toy::Training<CudaNet, toy::EnqueuedLoss<toy::MeanSquare<Real, 3>>, gpipe::Adam, Cuda>;

template <class Train, class Net, class Loss>
std::unique_ptr<Train> made(std::uint64_t seed, std::size_t cells, bool graphs = false) {
    typename Train::Options o;
    o.samples = 8;
    o.seed = seed;
    o.cells = cells;
    o.micro_batches = 3;
    o.clip_norm = 0.5;
    o.snapshot = true;
    o.schedule = gpipe::schedule::OneForwardOneBackward{};
    if constexpr (requires { o.device.gpus; }) {
        for (std::size_t d = 0; d < cells; ++d) o.device.gpus.push_back(static_cast<int>(d % 2));
        o.device.graphs = graphs ? 2 : 0;
    }
    return std::make_unique<Train>(Net{}, Loss{}, gpipe::Adam{1e-2f}, o);
}
auto on_host(std::uint64_t seed, std::size_t cells) {
    return made<HostTrain, HostNet, toy::MeanSquare<Real, 3>>(seed, cells);
}
auto on_cuda(std::uint64_t seed, std::size_t cells, bool graphs) {
    return made<CudaTrain, CudaNet, toy::EnqueuedLoss<toy::MeanSquare<Real, 3>>>(seed, cells,
                                                                                 graphs);
}
// Steps [first, last); their losses.
template <class Train>
std::vector<double> steps(Train& train, std::uint32_t first, std::uint32_t last) {
    std::vector<double> losses;
    for (std::uint32_t i = first; i < last; ++i) {
        toy::Data<Real> const data(i % 2 ? 7 : 8, i);
        losses.push_back(train.step(data.inputs, data.targets).loss);
    }
    return losses;
}
// Layers and losses are wrapped here, so the names of their types differ.
constexpr auto any_types = [] { return gpipe::LoadOptions{.types = false}; };

} // namespace

static_assert(gpipe::DtypeOf<__half>::value == gpipe::Dtype::F16);
static_assert(gpipe::DtypeOf<__nv_bfloat16>::value == gpipe::Dtype::BF16);

TEST_CASE("P1 steps on the host, then on GPUs, then on the host again are steps on the host, with "
          "dropout, in every bit, with and without graphs") {
    toy::Folder const folder;
    auto const whole = on_host(3, 1);
    std::vector<double> const expected = steps(*whole, 0, 12);
    gpipe::save(*whole, folder / "whole");
    for (bool const graphs : {false, true})
        for (std::size_t cells : {1, 2, 4}) {
            cuda_double::Session const session({.devices = 2, .seed = cells});
            auto const first = on_host(3, 2);
            std::vector<double> losses = steps(*first, 0, 3);
            gpipe::save(*first, folder / "a");

            // It has trained before, with another seed, so graphs are there.
            auto const second = on_cuda(9, cells, graphs);
            steps(*second, 20, 24);
            gpipe::load(*second, folder / "a", any_types());
            CHECK(second->steps() == 3);
            std::vector<double> const middle = steps(*second, 3, 8);
            losses.insert(losses.end(), middle.begin(), middle.end());
            gpipe::save(*second, folder / "b");
            gpipe::start_save(*second, folder / "c");
            steps(*second, 8, 10);
            auto const third = on_host(5, 4);
            gpipe::load(*third, folder / "b", any_types());
            CHECK(third->steps() == 8);
            std::vector<double> const rest = steps(*third, 8, 12);
            losses.insert(losses.end(), rest.begin(), rest.end());
            INFO("K = ", cells, graphs ? ", graphs" : "");
            CHECK(losses == expected);
            gpipe::save(*third, folder / "third");
            CHECK(folder.content("third") == folder.content("whole"));
            gpipe::save(*second, folder / "d"); // has waited for the one in the background
            CHECK(folder.content("b") == folder.content("c"));
        }
}

TEST_CASE("an optimizer state that is loaded without its step is as old on GPUs, also where steps "
          "are kept as graphs") {
    toy::Folder const folder;
    auto const first = on_host(3, 1);
    steps(*first, 0, 4);
    gpipe::save(*first, folder / "s");
    auto const after = [&](auto& train) {
        steps(train, 0, 20);
        auto options = any_types();
        options.only = {"optimizer."};
        gpipe::load(train, folder / "s", options);
        return steps(train, 0, 4);
    };
    auto const host = on_host(5, 1);
    std::vector<double> const expected = after(*host);
    for (bool const graphs : {false, true})
        for (std::size_t const cells : {1u, 2u}) {
            INFO("graphs ", graphs, ", K = ", cells);
            cuda_double::Session const doubles({.devices = 2});
            auto const cuda = on_cuda(5, cells, graphs);
            CHECK(after(*cuda) == expected);
        }
}
