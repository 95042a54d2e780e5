// NVTX, when it is asked for: what a profiler hears of a step. The test is the profiler, linked in.
#ifndef GPIPE_NVTX
#define GPIPE_NVTX
#endif

#include <support/net.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace {

std::vector<std::string> heard;
std::vector<std::string> opened;
std::vector<std::uint64_t> payloads;
int domain;

nvtxDomainHandle_t create_domain(char const* name) {
    heard.push_back(std::string("domain ") + name);
    return reinterpret_cast<nvtxDomainHandle_t>(&domain);
}
int push(nvtxDomainHandle_t in, nvtxEventAttributes_t const* event) {
    CHECK(in == reinterpret_cast<nvtxDomainHandle_t>(&domain));
    CHECK(event->messageType == NVTX_MESSAGE_TYPE_ASCII);
    heard.push_back(event->message.ascii); // valid during the call only
    opened.push_back(heard.back());
    payloads.push_back(
        event->payloadType == NVTX_PAYLOAD_TYPE_UNSIGNED_INT32 ? event->payload.uiValue : 999);
    return 0;
}
int pop(nvtxDomainHandle_t) {
    opened.pop_back();
    return 0;
}

template <class Function>
void listen(NvtxFunctionTable table, NvtxCallbackIdCore2 id, Function* function) {
    *table[id] = reinterpret_cast<NvtxFunctionPointer>(function);
}
int attach(NvtxGetExportTableFunc_t tables) {
    auto const* const callbacks =
        static_cast<NvtxExportTableCallbacks const*>(tables(NVTX_ETID_CALLBACKS));
    NvtxFunctionTable table = nullptr;
    unsigned size = 0;
    if (!callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &table, &size)) return 0;
    listen(table, NVTX_CBID_CORE2_DomainCreateA, &create_domain);
    listen(table, NVTX_CBID_CORE2_DomainRangePushEx, &push);
    listen(table, NVTX_CBID_CORE2_DomainRangePop, &pop);
    return 1;
}

// Sees which range is open while a layer is called.
struct Listener : toy::Linear<float, 3, 3> {
    void forward(auto& ctx, auto x, auto y) const {
        CHECK(opened.size() == 1);
        toy::Linear<float, 3, 3>::forward(ctx, x, y);
    }
};

} // namespace

TEST_CASE("with NVTX a profiler hears the name of every action, while its layers are called") {
    InitializeInjectionNvtx2_fnptr = &attach; // before the first range
    using Net = gpipe::Pipeline<Listener, Listener>;
    using Train = gpipe::Training<Net, gpipe::Cells<2>, gpipe::MicroBatches<2>,
                                  gpipe::Loss<toy::MeanSquare<float, 3>>>;
    Train train{Net{}, {}, {}, {.samples = 4, .device = {.threads = 1}}};
    std::vector<float> const x(12, 1), target(12, 2);
    train.step(x, target);
    CHECK(opened.empty());
    REQUIRE(!heard.empty());
    CHECK(heard[0] == "domain gpipe");
    std::string names;
    for (std::size_t i = 1; i < heard.size(); ++i) {
        CHECK(heard[i].back() == static_cast<char>('0' + payloads[i - 1]));
        names += heard[i] + "\n";
    }
    // The last cell puts its first forward off to where it would be recomputed.
    CHECK(names == "forward cell 0 micro-batch 0\n"
                   "forward cell 0 micro-batch 1\n"
                   "forward cell 1 micro-batch 1\n"
                   "backward cell 1 micro-batch 1\n"
                   "backward cell 0 micro-batch 1\n"
                   "recompute cell 0 micro-batch 0\n"
                   "forward cell 1 micro-batch 0\n"
                   "backward cell 1 micro-batch 0\n"
                   "backward cell 0 micro-batch 0\n");
    heard.clear();
    train.evaluate(x, target);
    CHECK(heard.size() == 4);
    CHECK(opened.empty());
}
