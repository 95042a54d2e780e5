// What a GPU did between cudaProfilerStart and cudaProfilerStop of any program, PyTorch's too, as a
// timeline for Perfetto, in nanoseconds by the GPU's clock as CUPTI tells them:
//   CUDA_INJECTION64_PATH=libgpu_timeline.so GPIPE_GPU_TIMELINE=FILE PROGRAM
// At the end one line of JSON on stderr: how many kernels and copies there were, and for which
// share of the time between the first and the last of them none ran.
#include <cupti.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cxxabi.h>
#include <mutex>
#include <string>
#include <vector>

namespace {

struct Span {
    std::string name;
    std::uint64_t start, end;
    std::uint32_t device, stream;
    std::uint64_t bytes; ///< of a copy or a fill
};

struct Recording {
    std::mutex mutex; // buffers come back on a thread of CUPTI's
    std::vector<Span> spans;
    std::size_t lost = 0;
};
// Never destroyed: CUPTI may still hand a buffer back when the program's own objects are gone.
Recording& recording() {
    static auto& only = *new Recording;
    return only;
}

constexpr CUpti_ActivityKind kinds[] = {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL,
                                        CUPTI_ACTIVITY_KIND_MEMCPY, CUPTI_ACTIVITY_KIND_MEMSET};

bool good(CUptiResult result, char const* what) {
    if (result == CUPTI_SUCCESS) return true;
    char const* why = nullptr;
    cuptiGetResultString(result, &why);
    std::fprintf(stderr, "gpu_timeline: %s: %s\n", what, why ? why : "unknown");
    return false;
}

std::string demangled(char const* name) {
    int status = 0;
    char* const plain = abi::__cxa_demangle(name, nullptr, nullptr, &status);
    std::string const result = status == 0 ? plain : name;
    std::free(plain);
    return result;
}

void add(Recording& to, CUpti_Activity const* record) {
    auto const span = [&](auto const& of, std::string name, std::uint64_t bytes) {
        if (of.end > of.start) // both 0: CUPTI could not tell
            to.spans.push_back(
                {std::move(name), of.start, of.end, of.deviceId, of.streamId, bytes});
    };
    if (record->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
        auto const& kernel = *reinterpret_cast<CUpti_ActivityKernel10 const*>(record);
        span(kernel, demangled(kernel.name), 0);
    } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMCPY) {
        auto const& copy = *reinterpret_cast<CUpti_ActivityMemcpy6 const*>(record);
        char const* const name = copy.copyKind == CUPTI_ACTIVITY_MEMCPY_KIND_HTOD   ? "copy up"
                                 : copy.copyKind == CUPTI_ACTIVITY_MEMCPY_KIND_DTOH ? "copy down"
                                                                                    : "copy";
        span(copy, name, copy.bytes);
    } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMSET) {
        auto const& fill = *reinterpret_cast<CUpti_ActivityMemset4 const*>(record);
        span(fill, "fill", fill.bytes);
    }
}

void CUPTIAPI buffer_wanted(std::uint8_t** buffer, std::size_t* size, std::size_t* records) {
    *size = std::size_t(1) << 20;
    *buffer = static_cast<std::uint8_t*>(std::aligned_alloc(8, *size)); // CUPTI: by 8 bytes
    *records = 0;                                                       // as many as there is room
    if (*buffer == nullptr) *size = 0;
}

void CUPTIAPI buffer_filled(CUcontext context, std::uint32_t stream, std::uint8_t* buffer,
                            std::size_t, std::size_t bytes) {
    Recording& to = recording();
    std::lock_guard const lock(to.mutex);
    CUpti_Activity* record = nullptr;
    while (bytes > 0 && cuptiActivityGetNextRecord(buffer, bytes, &record) == CUPTI_SUCCESS)
        add(to, record);
    std::size_t lost = 0;
    cuptiActivityGetNumDroppedRecords(context, stream, &lost);
    to.lost += lost;
    std::free(buffer);
}

void CUPTIAPI profiler_called(void*, CUpti_CallbackDomain, CUpti_CallbackId id, void const* data) {
    if (static_cast<CUpti_CallbackData const*>(data)->callbackSite != CUPTI_API_ENTER) return;
    bool const starts = id == CUPTI_DRIVER_TRACE_CBID_cuProfilerStart;
    if (!starts) good(cuptiActivityFlushAll(0), "what was recorded");
    for (CUpti_ActivityKind const kind : kinds)
        good(starts ? cuptiActivityEnable(kind) : cuptiActivityDisable(kind), "recording");
}

std::string quoted(std::string const& text) {
    std::string result = "\"";
    for (char const c : text) {
        if (c == '"' || c == '\\') result += '\\';
        if (static_cast<unsigned char>(c) >= ' ') result += c;
    }
    return result + '"';
}

bool write(std::vector<Span> const& spans, std::string const& path) {
    std::FILE* const file = std::fopen(path.c_str(), "w");
    if (file == nullptr) return false;
    std::fputs("{\"traceEvents\": [", file);
    for (Span const& span : spans) {
        std::fprintf(file,
                     "%s\n{\"ph\": \"X\", \"pid\": %u, \"tid\": %u, \"ts\": %.3f, \"dur\": %.3f, "
                     "\"name\": %s",
                     &span == spans.data() ? "" : ",", span.device, span.stream,
                     static_cast<double>(span.start - spans[0].start) / 1e3,
                     static_cast<double>(span.end - span.start) / 1e3, quoted(span.name).c_str());
        if (span.bytes > 0)
            std::fprintf(file, ", \"args\": {\"bytes\": %llu}",
                         static_cast<unsigned long long>(span.bytes));
        std::fputs("}", file);
    }
    std::fputs("\n]}\n", file);
    bool const whole = std::ferror(file) == 0;
    return std::fclose(file) == 0 && whole;
}

void report() {
    good(cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED), "what was recorded");
    Recording& from = recording();
    std::lock_guard const lock(from.mutex);
    std::vector<Span>& spans = from.spans;
    std::sort(spans.begin(), spans.end(),
              [](Span const& a, Span const& b) { return a.start < b.start; });
    std::size_t copies = 0;
    std::uint64_t busy = 0, until = spans.empty() ? 0 : spans[0].start; // of all devices together
    for (Span const& span : spans) {
        copies += span.bytes > 0;
        if (span.end > until) busy += span.end - std::max(span.start, until);
        until = std::max(until, span.end);
    }
    auto const all = spans.empty() ? 0. : static_cast<double>(until - spans[0].start);
    char const* const path = std::getenv("GPIPE_GPU_TIMELINE");
    if (path == nullptr || !write(spans, path))
        std::fprintf(stderr, "gpu_timeline: cannot write GPIPE_GPU_TIMELINE=%s\n",
                     path ? path : "");
    std::fprintf(stderr,
                 "{\"kernels\": %zu, \"copies\": %zu, \"lost\": %zu, \"timeline_ms\": %.3f, "
                 "\"idle_share\": %.4f}\n",
                 spans.size() - copies, copies, from.lost, all / 1e6,
                 all > 0 ? 1 - static_cast<double>(busy) / all : 0.);
}

} // namespace

// The CUDA driver calls it, before the program's first call of it returns.
extern "C" __attribute__((visibility("default"))) int InitializeInjection() {
    static CUpti_SubscriberHandle subscriber;
    recording();
    bool const ready =
        good(cuptiSubscribe(&subscriber, profiler_called, nullptr), "subscribing") &&
        good(cuptiEnableCallback(1, subscriber, CUPTI_CB_DOMAIN_DRIVER_API,
                                 CUPTI_DRIVER_TRACE_CBID_cuProfilerStart),
             "waiting for a start") &&
        good(cuptiEnableCallback(1, subscriber, CUPTI_CB_DOMAIN_DRIVER_API,
                                 CUPTI_DRIVER_TRACE_CBID_cuProfilerStop),
             "waiting for a stop") &&
        good(cuptiActivityRegisterCallbacks(buffer_wanted, buffer_filled), "buffers");
    if (ready) std::atexit(report);
    return ready ? 1 : 0;
}
