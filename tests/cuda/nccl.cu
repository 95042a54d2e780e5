// What of NCCL works without a GPU, with the library itself: it is found, says its version, makes
// ids, and tells why there is no communicator. With a GPU a rank trains alone.
#include "support/on_gpu.hpp"

#include <gpipe/gpipe.cuh>
#include <gpipe/transport/nccl.hpp>
#include <gpipe/transport/socket_ranks.hpp>

#include <doctest/doctest.h>

#include <cstring>
#include <string>
#include <vector>

namespace nccl_alone {

using Net =
    gpipe::Pipeline<toy::kernel::Linear<float, 5, 6>, toy::kernel::Softsign<float, 6>,
                    toy::kernel::StrictLinear<float, 6, 6>, toy::kernel::Softsign<float, 6>>;
using Loss = toy::kernel::MeanSquare<float, 6>;
// As examples/several_processes.md shows it; compiled, for here are not so many GPUs.
using Train = gpipe::Training<Net, gpipe::Cells<4>, gpipe::Loss<Loss>, gpipe::device::Cuda,
                              gpipe::transport::Nccl<gpipe::SocketRanks>>;
// clang-format off
[[maybe_unused]] double train_four(int gpu, std::vector<float> const& inputs, std::vector<float> const& targets) {
    gpipe::SocketRanks control; // RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT, GPIPE_TOKEN_FILE
    gpipe::NcclRanks ranks(control, gpu);
    Train train{{}, {}, {}, {.samples = 64, .device = {.device = {.gpus = {gpu}, .graphs = 1}, .transport = &ranks}}};
    return train.step(inputs, targets).loss;
}
// clang-format on

bool has_gpu() {
    int count = 0;
    return cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
}

} // namespace nccl_alone

TEST_CASE("NCCL says its version, and no two ids are the same") {
    CHECK(gpipe::NcclCommunicator::version() >= NCCL_VERSION(2, 18, 0));
    ncclUniqueId const a = gpipe::NcclCommunicator::new_id(), b = gpipe::NcclCommunicator::new_id();
    CHECK(std::memcmp(&a, &b, sizeof a) != 0);
}

TEST_CASE(
    "without a GPU there is no communicator, and an error that names the call; with one a rank "
    "trains alone") {
    using namespace nccl_alone;
    gpipe::SocketRanks::Options o;
    o.rendezvous.ranks = 1;
    gpipe::SocketRanks sockets(o);
    if (!has_gpu()) {
        gpipe::NcclCommunicator none;
        CHECK_THROWS_WITH_AS(none.open(gpipe::NcclCommunicator::new_id(), 0, 1),
                             doctest::Contains("ncclCommInitRankConfig failed"), gpipe::NcclError);
        CHECK(!none);
        CHECK_THROWS_AS(gpipe::NcclRanks(sockets, 0), gpipe::cuda::Error);
        CHECK(sockets.error());
        return;
    }
    gpipe::NcclRanks ranks(sockets, 0);
    gpipe::Training<Net, gpipe::Cells<1>, gpipe::MicroBatches<2>, gpipe::Loss<Loss>,
                    gpipe::device::Cuda, gpipe::transport::Nccl<gpipe::SocketRanks>>
        train({}, {}, {}, {.samples = 4, .device = {.device = {.gpus = {0}}, .transport = &ranks}});
    std::vector<float> const inputs(20, 0.5f), targets(24, 0.25f);
    double const first = train.step(inputs, targets).loss;
    for (int n = 0; n < 20; ++n) train.step(inputs, targets);
    CHECK(train.step(inputs, targets).loss < first);
}
