// The recorder of timelines, on a double of CUPTI that hands it records made here.
#include <support/folder.hpp>
#include <support/json_reader.hpp>

#include <doctest/doctest.h>

#include <cupti.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <sys/wait.h>
#include <unistd.h>

extern "C" int InitializeInjection();

namespace {

CUpti_CallbackFunc called;
CUpti_BuffersCallbackRequestFunc buffer_wanted;
CUpti_BuffersCallbackCompleteFunc buffer_filled;
std::string calls; // + and - of the kinds of records, F for what is flushed
bool no_subscriber = false;

void profiler(CUpti_CallbackId id) {
    CUpti_CallbackData data{};
    for (auto const site : {CUPTI_API_ENTER, CUPTI_API_EXIT}) {
        data.callbackSite = site;
        called(nullptr, CUPTI_CB_DOMAIN_DRIVER_API, id, &data);
    }
}

struct Buffer {
    std::uint8_t* bytes = nullptr;
    std::size_t size = 0, records = 0, used = 0;
    Buffer() { buffer_wanted(&bytes, &size, &records); }
    template <class Record>
    void add(CUpti_ActivityKind kind, Record record, std::uint64_t start, std::uint64_t end) {
        record.kind = kind;
        record.start = start;
        record.end = end;
        record.streamId = 7;
        std::memcpy(bytes + used, &record, sizeof record);
        used += sizeof record;
    }
};

// What a profiled program does; it never returns.
[[noreturn]] void record() {
    if (InitializeInjection() != 1) std::exit(3);
    profiler(CUPTI_DRIVER_TRACE_CBID_cuProfilerStart);
    Buffer buffer;
    CUpti_ActivityKernel10 kernel{};
    CUpti_ActivityMemcpy6 copy{};
    kernel.name = "no \"name\" of C++";
    buffer.add(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, kernel, 12'000, 14'000);
    kernel.name = "_Z3addPfi";
    buffer.add(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, kernel, 11'000, 13'000);
    buffer.add(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, kernel, 0, 0);
    copy.copyKind = CUPTI_ACTIVITY_MEMCPY_KIND_HTOD;
    copy.bytes = 4096;
    buffer.add(CUPTI_ACTIVITY_KIND_MEMCPY, copy, 16'000, 17'000);
    buffer_filled(nullptr, 0, buffer.bytes, buffer.size, buffer.used);
    profiler(CUPTI_DRIVER_TRACE_CBID_cuProfilerStop);
    std::exit(calls == "+++F---" ? 0 : 4);
}

struct Ran {
    int status = -1;
    std::string errors;
};
// In a process of its own, as the recorder writes when its process ends.
Ran recorded() {
    int ends[2];
    REQUIRE(pipe(ends) == 0);
    pid_t const child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        dup2(ends[1], 2);
        close(ends[0]);
        record();
    }
    close(ends[1]);
    Ran ran;
    char text[512];
    for (ssize_t n; (n = read(ends[0], text, sizeof text)) > 0;)
        ran.errors.append(text, static_cast<std::size_t>(n));
    close(ends[0]);
    int status = 0;
    waitpid(child, &status, 0);
    ran.status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    return ran;
}

std::string const summary = "{\"kernels\": 2, \"copies\": 1, \"lost\": 5, \"timeline_ms\": 0.006, "
                            "\"idle_share\": 0.3333}\n";

} // namespace

extern "C" {
CUptiResult cuptiSubscribe(CUpti_SubscriberHandle*, CUpti_CallbackFunc callback, void*) {
    called = callback;
    return no_subscriber ? CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED : CUPTI_SUCCESS;
}
CUptiResult cuptiEnableCallback(std::uint32_t, CUpti_SubscriberHandle, CUpti_CallbackDomain,
                                CUpti_CallbackId) {
    return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityRegisterCallbacks(CUpti_BuffersCallbackRequestFunc wanted,
                                           CUpti_BuffersCallbackCompleteFunc filled) {
    buffer_wanted = wanted;
    buffer_filled = filled;
    return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityEnable(CUpti_ActivityKind) {
    calls += '+';
    return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityDisable(CUpti_ActivityKind) {
    calls += '-';
    return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityFlushAll(std::uint32_t) {
    calls += 'F';
    return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityGetNextRecord(std::uint8_t* buffer, std::size_t valid,
                                       CUpti_Activity** record) {
    std::uint8_t* next = buffer;
    if (*record != nullptr)
        next = reinterpret_cast<std::uint8_t*>(*record) +
               ((*record)->kind == CUPTI_ACTIVITY_KIND_MEMCPY ? sizeof(CUpti_ActivityMemcpy6)
                                                              : sizeof(CUpti_ActivityKernel10));
    *record = reinterpret_cast<CUpti_Activity*>(next);
    return next < buffer + valid ? CUPTI_SUCCESS : CUPTI_ERROR_MAX_LIMIT_REACHED;
}
CUptiResult cuptiActivityGetNumDroppedRecords(CUcontext, std::uint32_t, std::size_t* dropped) {
    *dropped = 5;
    return CUPTI_SUCCESS;
}
CUptiResult cuptiGetResultString(CUptiResult, char const** text) {
    *text = "there is another one";
    return CUPTI_SUCCESS;
}
}

TEST_CASE("a timeline holds what ran, and says for how long nothing did") {
    toy::Folder const folder;
    std::string const path = folder / "timeline.json";
    setenv("GPIPE_GPU_TIMELINE", path.c_str(), 1);
    Ran const ran = recorded();
    CHECK(ran.status == 0);
    CHECK(ran.errors == summary);

    std::ifstream file(path);
    std::string const text(std::istreambuf_iterator<char>(file), {});
    toy::Json const json = toy::Json::parse(text);
    auto const& events = json.at("traceEvents").array;
    REQUIRE(events.size() == 3);
    char const* const names[] = {"add(float*, int)", "no \"name\" of C++", "copy up"};
    double const starts[] = {0, 1, 5}, lengths[] = {2, 2, 1};
    for (std::size_t e = 0; e < 3; ++e) {
        CHECK(events[e].at("name").string == names[e]);
        CHECK(events[e].at("ts").number == starts[e]);
        CHECK(events[e].at("dur").number == lengths[e]);
        CHECK(events[e].at("tid").number == 7);
    }
    CHECK(events[2].at("args").at("bytes").number == 4096);
}

TEST_CASE("a timeline that cannot be written is told, and its summary is there") {
    setenv("GPIPE_GPU_TIMELINE", "/dev/full", 1);
    CHECK(recorded().errors ==
          "gpu_timeline: cannot write GPIPE_GPU_TIMELINE=/dev/full\n" + summary);
    unsetenv("GPIPE_GPU_TIMELINE");
    CHECK(recorded().errors == "gpu_timeline: cannot write GPIPE_GPU_TIMELINE=\n" + summary);
}

TEST_CASE("without a subscription nothing is recorded, and the program goes on") {
    no_subscriber = true;
    Ran const ran = recorded();
    no_subscriber = false;
    CHECK(ran.status == 3);
    CHECK(ran.errors == "gpu_timeline: subscribing: there is another one\n");
}
