// The double of the CUDA runtime: capture, what it refuses, and the graphs that come of it.
#include "support/cuda_double/cuda_double.hpp"

#include <gpipe/device/cuda_memory.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

using cuda_double::Session;
using gpipe::cuda::Buffer;
using gpipe::cuda::check;
using gpipe::cuda::DeviceGuard;
using gpipe::cuda::Event;
using gpipe::cuda::PinnedBuffer;
using gpipe::cuda::Stream;

namespace {

// Captured work that can be run again.
class Replay {
  public:
    Replay(Stream const& stream, std::function<void()> const& work,
           cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal) {
        check("cudaStreamBeginCapture", cudaStreamBeginCapture(stream.get(), mode));
        work();
        cudaGraph_t graph = nullptr;
        check("cudaStreamEndCapture", cudaStreamEndCapture(stream.get(), &graph));
        check("cudaGraphGetNodes", cudaGraphGetNodes(graph, nullptr, &nodes_));
        check("cudaGraphInstantiate", cudaGraphInstantiate(&executable_, graph, 0));
        check("cudaGraphDestroy", cudaGraphDestroy(graph));
    }
    Replay(Replay const&) = delete;
    Replay& operator=(Replay const&) = delete;
    ~Replay() { cudaGraphExecDestroy(executable_); }

    void launch(Stream const& stream) {
        check("cudaGraphLaunch", cudaGraphLaunch(executable_, stream.get()));
    }
    std::size_t nodes() const { return nodes_; }

  private:
    cudaGraphExec_t executable_ = nullptr;
    std::size_t nodes_ = 0;
};

// Two devices: the second takes the first one's numbers and both go on with them; a step is joined
// on the first stream.
struct Machine {
    static constexpr std::size_t numbers = 8;
    static constexpr std::size_t bytes = numbers * sizeof(float);

    PinnedBuffer input{bytes};
    PinnedBuffer output{bytes};
    Buffer here{0, bytes};
    Buffer there{1, bytes};
    Stream first{0};
    Stream second{1};
    Event begun{0};
    Event made{0};
    Event done{1};

    float* at(Buffer const& buffer) { return reinterpret_cast<float*>(buffer.data()); }

    void scale(Stream const& stream, Buffer const& buffer, float by, float plus) {
        DeviceGuard const on(stream.device());
        float* const x = at(buffer);
        check("launch", cuda_double::launch(stream.get(),
                                            [=] {
                                                for (std::size_t i = 0; i < numbers; ++i)
                                                    x[i] = by * x[i] + plus;
                                            },
                                            {{x, bytes}}, {{x, bytes}}));
    }
    void step() {
        check("cudaMemcpyAsync",
              cudaMemcpyAsync(here.data(), input.data(), bytes, cudaMemcpyDefault, first.get()));
        begun.record(first);
        second.wait(begun);
        scale(second, there, 0.75F, 1.0F);
        scale(first, here, 3.0F, 0.1F);
        made.record(first);
        second.wait(made);
        float* const x = at(here);
        float* const y = at(there);
        DeviceGuard const on(1);
        check("launch", cuda_double::launch(second.get(),
                                            [=] {
                                                for (std::size_t i = 0; i < numbers; ++i)
                                                    y[i] += x[i];
                                            },
                                            {{x, bytes}, {y, bytes}}, {{y, bytes}}));
        done.record(second);
        first.wait(done);
        check("cudaMemcpyAsync",
              cudaMemcpyAsync(output.data(), there.data(), bytes, cudaMemcpyDefault, first.get()));
    }
};

// What every step leaves, the input changing from step to step.
std::vector<float> steps(std::uint64_t seed, bool with_graph) {
    Session session({.devices = 2, .seed = seed});
    std::vector<float> results;
    {
        Machine machine;
        {
            DeviceGuard const on(1);
            check("cudaDeviceEnablePeerAccess", cudaDeviceEnablePeerAccess(0, 0));
        }
        std::unique_ptr<Replay> replay;
        if (with_graph) {
            replay = std::make_unique<Replay>(machine.first, [&] { machine.step(); });
            CHECK(replay->nodes() == 5);
            CHECK(cuda_double::progress() == 0); // capturing runs nothing
        }
        for (int n = 0; n < 3; ++n) {
            float const value = 0.3F * float(n + 1);
            cuda_double::host_writes(machine.input.data(), Machine::bytes);
            for (std::size_t i = 0; i < Machine::numbers; ++i)
                std::memcpy(machine.input.data() + i * sizeof value, &value, sizeof value);
            if (replay)
                replay->launch(machine.first);
            else
                machine.step();
            machine.first.synchronize();
            cuda_double::host_reads(machine.output.data(), Machine::bytes);
            results.resize(results.size() + Machine::numbers);
            std::memcpy(&*results.end() - Machine::numbers, machine.output.data(), Machine::bytes);
        }
    }
    CHECK(cuda_double::complaints() == "");
    return results;
}

void put(Stream const& stream, std::string& trail, char letter) {
    cuda_double::launch(stream.get(), [&trail, letter] { trail += letter; }, {}, {});
}

cudaStreamCaptureStatus status(Stream const& stream) {
    cudaStreamCaptureStatus answer{};
    check("cudaStreamIsCapturing", cudaStreamIsCapturing(stream.get(), &answer));
    return answer;
}

// Ends a capture that was spoilt, and shows that the stream is as good as before.
void ends_spoilt(Stream const& stream) {
    CHECK(status(stream) == cudaStreamCaptureStatusInvalidated);
    std::string trail;
    CHECK(cuda_double::launch(stream.get(), [] {}, {}, {}) == cudaErrorStreamCaptureInvalidated);
    cudaGraph_t graph = nullptr;
    CHECK(cudaStreamEndCapture(stream.get(), &graph) == cudaErrorStreamCaptureInvalidated);
    CHECK(graph == nullptr);
    CHECK(status(stream) == cudaStreamCaptureStatusNone);
    put(stream, trail, 'a');
    stream.synchronize();
    CHECK(trail == "a");
}

void begin(Stream const& stream, cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal) {
    check("cudaStreamBeginCapture", cudaStreamBeginCapture(stream.get(), mode));
}

cudaError_t end(Stream const& stream) {
    cudaGraph_t graph = nullptr;
    cudaError_t const answer = cudaStreamEndCapture(stream.get(), &graph);
    CHECK((graph != nullptr) == (answer == cudaSuccess));
    if (graph) cudaGraphDestroy(graph);
    return answer;
}

} // namespace

TEST_CASE("a graph does what the streams do that it was captured from, and reads new input") {
    auto const expected = steps(0, false);
    CHECK(expected[0] != expected[Machine::numbers]);
    for (std::uint64_t seed = 0; seed < 16; ++seed) {
        CAPTURE(seed);
        CHECK(steps(seed, false) == expected);
        CHECK(steps(seed, true) == expected);
    }
}

TEST_CASE("a replay keeps the captured order, no other, and its place on the stream") {
    std::set<std::string> trails;
    for (std::uint64_t seed = 0; seed < 64; ++seed) {
        Session session({.seed = seed});
        {
            std::string trail;
            Stream const first(0);
            Stream const second(0);
            Event fork(0);
            Event meet(0);
            Replay replay(first, [&] {
                put(first, trail, 'a');
                fork.record(first);
                second.wait(fork);
                put(second, trail, 'x');
                put(first, trail, 'b');
                put(second, trail, 'y');
                meet.record(second);
                first.wait(meet);
                put(first, trail, 'c');
            });
            put(first, trail, '<');
            replay.launch(first);
            put(first, trail, '|');
            replay.launch(first);
            put(first, trail, '>');
            first.synchronize();
            trails.insert(trail.substr(0, 7));
            CHECK(trail.size() == 13);
            CHECK(trail.front() == '<');
            CHECK(trail[6] == '|');
            CHECK(trail.back() == '>');
        }
        CHECK(cuda_double::complaints() == "");
    }
    CHECK(trails == std::set<std::string>{"<abxyc|", "<axbyc|", "<axybc|"});
}

TEST_CASE("launches of one graph come one after the other, on whatever streams") {
    for (std::uint64_t seed = 0; seed < 16; ++seed) {
        Session session({.seed = seed});
        {
            std::string trail;
            Stream const first(0);
            Stream const second(0);
            Buffer const buffer(0, 64);
            Replay replay(first, [&] {
                put(first, trail, 'a');
                check("cudaMemsetAsync", cudaMemsetAsync(buffer.data(), 1, 64, first.get()));
                put(first, trail, 'b');
            });
            replay.launch(first);
            replay.launch(second);
            replay.launch(first);
            first.synchronize();
            CHECK(trail == "ababab");
            CHECK(cuda_double::races().empty());
            replay.launch(first);
            check("cudaMemsetAsync", cudaMemsetAsync(buffer.data(), 2, 64, second.get()));
            CHECK(cuda_double::races().size() == 1); // nobody waited for that launch
            cuda_double::progress();
            cuda_double::complaints();
        }
        CHECK(cuda_double::complaints() == "");
    }
}

TEST_CASE("to destroy a graph while it runs is a fault, and it runs to its end") {
    Session session;
    {
        std::string trail;
        Stream const stream(0);
        for (bool waits : {true, false}) {
            Replay replay(stream, [&] { put(stream, trail, 'a'); });
            replay.launch(stream);
            if (waits) stream.synchronize();
        }
        REQUIRE(cuda_double::faults().size() == 1);
        CHECK(cuda_double::complaints().find("has not run to its end") != std::string::npos);
        stream.synchronize();
        CHECK(trail == "aa");
    }
    CHECK(cuda_double::complaints() == "");
}

TEST_CASE("captures are begun, and graphs made and launched, on their own device, or that is a "
          "fault") {
    Session session({.devices = 2});
    {
        Stream const stream(1);
        auto const elsewhere = [&](cudaError_t status) {
            CHECK(status == cudaErrorInvalidResourceHandle);
            REQUIRE(cuda_double::faults().size() == 1);
            CHECK(cuda_double::complaints().find("device is not the current one") !=
                  std::string::npos);
        };
        auto const on = [](int device) { check("cudaSetDevice", cudaSetDevice(device)); };
        cudaGraph_t graph = nullptr;
        cudaGraphExec_t executable = nullptr;
        elsewhere(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal));
        CHECK(status(stream) == cudaStreamCaptureStatusNone);
        on(1);
        begin(stream);
        on(0);
        check("cudaStreamEndCapture", cudaStreamEndCapture(stream.get(), &graph));
        elsewhere(cudaGraphInstantiate(&executable, graph, 0));
        on(1);
        check("cudaGraphInstantiate", cudaGraphInstantiate(&executable, graph, 0));
        on(0);
        elsewhere(cudaGraphLaunch(executable, stream.get()));
        check("cudaGraphExecDestroy", cudaGraphExecDestroy(executable));
        check("cudaGraphDestroy", cudaGraphDestroy(graph));
    }
    CHECK(cuda_double::complaints() == "");
}

TEST_CASE("an executable graph takes memory of its device, gives it back, and is none without") {
    Session session({.memory = 100, .graph_memory = 30});
    {
        Stream const stream(0);
        auto const made = [&](int works) {
            std::string trail;
            begin(stream);
            for (int i = 0; i < works; ++i) put(stream, trail, 'a');
            cudaGraph_t graph = nullptr;
            cudaGraphExec_t executable = nullptr;
            check("cudaStreamEndCapture", cudaStreamEndCapture(stream.get(), &graph));
            cudaError_t const status = cudaGraphInstantiate(&executable, graph, 0);
            CHECK((status == cudaSuccess ? executable != nullptr
                                         : status == cudaErrorMemoryAllocation && !executable));
            check("cudaGraphDestroy", cudaGraphDestroy(graph));
            return executable;
        };
        for (int i = 0; i < 3; ++i) check("cudaGraphExecDestroy", cudaGraphExecDestroy(made(3)));
        CHECK(made(4) == nullptr);
        cudaGraphExec_t const first = made(2);
        CHECK(made(2) == nullptr);
        check("cudaGraphExecDestroy", cudaGraphExecDestroy(first));
        cudaGetLastError();
    }
    CHECK(cuda_double::complaints() == "");
}

TEST_CASE("graphs and captures that are left are leaks") {
    Session session;
    {
        Stream const stream(0);
        begin(stream);
        CHECK(cuda_double::leaks().size() == 2);
        cudaGraph_t graph = nullptr;
        CHECK(cudaStreamEndCapture(stream.get(), &graph) == cudaSuccess);
        CHECK(cuda_double::leaks().size() == 2);
        cudaGraphExec_t executable = nullptr;
        CHECK(cudaGraphInstantiate(&executable, graph, 0) == cudaSuccess);
        CHECK(cuda_double::leaks().size() == 3);
        CHECK(cudaGraphDestroy(graph) == cudaSuccess);
        CHECK(cudaGraphDestroy(graph) == cudaErrorInvalidValue);
        CHECK(cudaGraphExecDestroy(executable) == cudaSuccess);
        CHECK(cudaGraphExecDestroy(executable) == cudaErrorInvalidValue);
        CHECK(cuda_double::faults().size() == 2);
        cuda_double::complaints();
        begin(stream);
    }
    // Its stream is gone, and the capture with it.
    CHECK(cuda_double::complaints() == "");
}

TEST_CASE("what waits or allocates is refused while capturing, and spoils the capture") {
    Session session;
    {
        Stream const stream(0);
        Stream const other(0);
        Event const event(0);
        Buffer const buffer(0, 4);
        PinnedBuffer const pinned(4);
        void* memory = nullptr;
        int pageable = 0;
        std::vector<std::function<cudaError_t()>> const refused{
            [&] { return cudaStreamSynchronize(stream.get()); },
            [&] { return cudaStreamSynchronize(other.get()); },
            [&] { return cudaStreamQuery(stream.get()); },
            [&] { return cudaEventSynchronize(event.get()); },
            [&] { return cudaEventQuery(event.get()); },
            [&] { return cudaDeviceSynchronize(); },
            [&] { return cudaMalloc(&memory, 4); },
            [&] { return cudaFree(buffer.data()); },
            [&] { return cudaHostAlloc(&memory, 4, cudaHostAllocDefault); },
            [&] { return cudaFreeHost(pinned.data()); },
            [&] {
                return cudaMemcpyAsync(&pageable, buffer.data(), 4, cudaMemcpyDefault,
                                       stream.get());
            },
        };
        for (std::size_t i = 0; i < refused.size(); ++i) {
            CAPTURE(i);
            begin(stream);
            CHECK(status(stream) == cudaStreamCaptureStatusActive);
            CHECK(refused[i]() == cudaErrorStreamCaptureUnsupported);
            ends_spoilt(stream);
        }
        CHECK(memory == nullptr);
        cudaGetLastError();
    }
    CHECK(cuda_double::complaints() == "");
}

TEST_CASE("a relaxed capture lets others wait and allocate, only not on what is captured") {
    Session session;
    {
        Stream const stream(0);
        Stream const other(0);
        Event event(0);
        begin(stream, cudaStreamCaptureModeRelaxed);
        other.synchronize();
        Buffer const buffer(0, 64);
        CHECK(status(stream) == cudaStreamCaptureStatusActive);
        event.record(stream);
        CHECK(cudaEventQuery(event.get()) == cudaErrorCapturedEvent);
        CHECK(cudaEventSynchronize(event.get()) == cudaErrorCapturedEvent);
        CHECK(status(stream) == cudaStreamCaptureStatusActive);
        CHECK(cudaStreamSynchronize(stream.get()) == cudaErrorStreamCaptureUnsupported);
        ends_spoilt(stream);
    }
    CHECK(cuda_double::complaints() == "");
}

TEST_CASE("a capture of one thread binds others only if it is global") {
    for (auto mode : {cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal}) {
        CAPTURE(mode);
        Session session;
        {
            Stream const stream(0);
            Stream const other(0);
            begin(stream, mode);
            cudaError_t answer = cudaSuccess;
            cudaError_t ended = cudaSuccess;
            std::thread([&] {
                cudaGraph_t graph = nullptr;
                ended = cudaStreamEndCapture(stream.get(), &graph);
                answer = cudaStreamSynchronize(other.get());
            }).join();
            bool const global = mode == cudaStreamCaptureModeGlobal;
            CHECK(ended == cudaErrorStreamCaptureWrongThread);
            CHECK(answer == (global ? cudaErrorStreamCaptureUnsupported : cudaSuccess));
            CHECK(end(stream) == (global ? cudaErrorStreamCaptureInvalidated : cudaSuccess));
        }
        CHECK(cuda_double::complaints() == "");
    }
}

TEST_CASE("streams must come back to where a capture began, and must not meet from outside") {
    Session session;
    {
        Stream const first(0);
        Stream const second(0);
        Event fork(0);
        Event outside(0);
        std::string trail;

        begin(first);
        fork.record(first);
        second.wait(fork);
        CHECK(status(second) == cudaStreamCaptureStatusActive);
        put(second, trail, 'x');
        CHECK(end(first) == cudaErrorStreamCaptureUnjoined);
        CHECK(status(second) == cudaStreamCaptureStatusNone);

        begin(first);
        fork.record(first);
        second.wait(fork);
        CHECK(end(second) == cudaErrorStreamCaptureUnmatched);
        CHECK(end(first) == cudaErrorStreamCaptureInvalidated);

        put(second, trail, 'o');
        outside.record(second);
        begin(first);
        CHECK(cudaStreamWaitEvent(first.get(), outside.get(), 0) ==
              cudaErrorStreamCaptureIsolation);
        ends_spoilt(first);

        begin(first);
        begin(second);
        fork.record(first);
        CHECK(cudaStreamWaitEvent(second.get(), fork.get(), 0) == cudaErrorStreamCaptureMerge);
        CHECK(end(first) == cudaErrorStreamCaptureInvalidated);
        CHECK(end(second) == cudaErrorStreamCaptureInvalidated);
        CHECK(cudaStreamBeginCapture(second.get(), cudaStreamCaptureModeGlobal) == cudaSuccess);
        CHECK(cudaStreamBeginCapture(second.get(), cudaStreamCaptureModeGlobal) ==
              cudaErrorIllegalState);
        CHECK(end(second) == cudaSuccess);
        CHECK(end(second) == cudaErrorIllegalState);

        CHECK(cuda_double::faults().empty());
        CHECK(cudaStreamWaitEvent(second.get(), fork.get(), 0) == cudaErrorInvalidValue);
        CHECK(cuda_double::faults().size() == 1);
        cuda_double::complaints();
        second.synchronize();
        CHECK(trail == "o"); // what was captured has not run
    }
    CHECK(cuda_double::complaints() == "");
}

TEST_CASE("a wait or a record left out of a capture is an error or a race") {
    std::size_t dropped = 0;
    for (std::size_t n = 0; n < 8; ++n) {
        CAPTURE(n);
        Session session({.devices = 2});
        {
            Machine machine;
            {
                DeviceGuard const on(1);
                check("cudaDeviceEnablePeerAccess", cudaDeviceEnablePeerAccess(0, 0));
            }
            bool noticed = false;
            cuda_double::drop_call(n);
            begin(machine.first);
            try {
                machine.step();
            } catch (gpipe::cuda::Error const&) {
                noticed = true;
            }
            std::string const what = cuda_double::dropped();
            cudaGraph_t graph = nullptr;
            noticed = cudaStreamEndCapture(machine.first.get(), &graph) != cudaSuccess || noticed;
            if (graph) {
                cudaGraphExec_t executable = nullptr;
                check("cudaGraphInstantiate", cudaGraphInstantiate(&executable, graph, 0));
                for (int i = 0; i < 2; ++i)
                    check("cudaGraphLaunch", cudaGraphLaunch(executable, machine.first.get()));
                cudaGraphExecDestroy(executable);
                cudaGraphDestroy(graph);
            }
            noticed = noticed || !cuda_double::races().empty();
            INFO(what);
            if (what.find("cudaMemcpyAsync") == std::string::npos) {
                ++dropped;
                CHECK(noticed);
            }
            cudaGetLastError();
            cuda_double::progress();
            cuda_double::complaints();
        }
        CHECK(cuda_double::complaints() == "");
    }
    CHECK(dropped == 6);
}

TEST_CASE("whichever call of a captured step fails, nothing is left, and the next one works") {
    auto const captured_step = [](Machine& machine) {
        begin(machine.first);
        try {
            machine.step();
        } catch (...) {
            end(machine.first); // whatever it answers, the stream is free again
            cudaGetLastError();
            throw;
        }
        cudaSetDevice(0); // a guard may have failed to
        cudaGraph_t graph = nullptr;
        check("cudaStreamEndCapture", cudaStreamEndCapture(machine.first.get(), &graph));
        cudaGraphExec_t executable = nullptr;
        cudaError_t const made = cudaGraphInstantiate(&executable, graph, 0);
        cudaGraphDestroy(graph);
        check("cudaGraphInstantiate", made);
        cudaError_t const launched = cudaGraphLaunch(executable, machine.first.get());
        static_cast<void>(cudaStreamSynchronize(machine.first.get()));
        cudaGraphExecDestroy(executable);
        check("cudaGraphLaunch", launched);
        machine.first.synchronize();
    };
    std::size_t failed = 0;
    for (std::size_t n = 0;; ++n) {
        CAPTURE(n);
        Session session({.devices = 2});
        bool reached = false;
        {
            Machine machine;
            {
                DeviceGuard const on(1);
                check("cudaDeviceEnablePeerAccess", cudaDeviceEnablePeerAccess(0, 0));
            }
            std::size_t const before = cuda_double::calls();
            cuda_double::fail_call(n, cudaErrorInvalidValue);
            try {
                captured_step(machine);
            } catch (gpipe::cuda::Error const& e) {
                ++failed;
                CHECK(cuda_double::call_log().at(before + n).find("made to fail") !=
                      std::string::npos);
            }
            reached = cuda_double::calls() > before + n;
            cudaSetDevice(0);
            cudaGetLastError();
            CHECK(status(machine.first) == cudaStreamCaptureStatusNone);
            if (reached) captured_step(machine);
            machine.first.synchronize();
        }
        CHECK(cuda_double::complaints() == "");
        if (!reached) break;
    }
    CHECK(failed > 20);
}
