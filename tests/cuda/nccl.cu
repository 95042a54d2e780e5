// What of NCCL works without a GPU, with the library itself: it is found, says its version, makes
// ids, and tells why there is no communicator. With a GPU a rank trains alone.
#include "support/on_gpu.hpp"

#include <gpipe/gpipe.cuh>
#include <gpipe/transport/nccl.hpp>
#include <gpipe/transport/socket_ranks.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

namespace nccl_alone {

using Ranks = gpipe::NcclRanks<gpipe::SocketRanks>;
template <std::size_t K>
using Train = gpipe::Training<
    gpipe::Pipeline<toy::kernel::Linear<float, 5, 6>, toy::kernel::Softsign<float, 6>,
                    toy::kernel::StrictLinear<float, 6, 3>>,
    gpipe::Cells<K>, gpipe::MicroBatches<2>, gpipe::Loss<toy::kernel::MeanSquare<float, 3>>,
    gpipe::transport::Nccl<gpipe::SocketRanks>, gpipe::device::Cuda>;
// Compiled for two ranks, too.
[[maybe_unused]] float train_two(Ranks& ranks, std::vector<float> const& data) {
    typename Train<2>::Options o;
    o.samples = 4;
    o.device.device.gpus = {0};
    o.device.transport = &ranks;
    Train<2> train({}, {}, {}, o);
    return static_cast<float>(train.step(data, data).loss);
}

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
        CHECK_THROWS_AS(Ranks(sockets, 0), gpipe::cuda::Error);
        CHECK(sockets.error());
        return;
    }
    Ranks ranks(sockets, 0);
    typename Train<1>::Options options;
    options.samples = 4;
    options.device.device.gpus = {0};
    options.device.transport = &ranks;
    Train<1> train({}, {}, {}, options);
    std::vector<float> const inputs(20, 0.5f), targets(12, 0.25f);
    double const first = train.step(inputs, targets).loss;
    for (int n = 0; n < 20; ++n) train.step(inputs, targets);
    CHECK(train.step(inputs, targets).loss < first);
}
