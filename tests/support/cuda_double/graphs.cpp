// Capture, and the graphs that come of it.
#include "world.hpp"

#include <algorithm>

namespace cuda_double::detail {

// Whether the calling thread must not make unsafe calls now. If it does, that spoils the captures.
bool World::prohibits() {
    cudaStreamCaptureMode const mode = thread().mode;
    if (mode == cudaStreamCaptureModeRelaxed) return false;
    bool prohibited = false;
    for (CapturePtr const& capture : captures) {
        bool const own = capture->thread == std::this_thread::get_id();
        bool const everywhere =
            capture->mode == cudaStreamCaptureModeGlobal && mode == cudaStreamCaptureModeGlobal;
        if ((own && capture->mode != cudaStreamCaptureModeRelaxed) || everywhere)
            prohibited = capture->invalid = true;
    }
    return prohibited;
}

void World::end(CapturePtr const& capture) {
    for (auto& [handle, s] : streams) {
        if (s.capture != capture) continue;
        s.capture.reset();
        s.after.clear();
    }
    std::erase(captures, capture);
}

namespace {

// Whether all captured work comes before what the stream goes on with.
bool joined(Capture const& capture, std::vector<std::size_t> const& after) {
    std::vector<bool> reached(capture.works.size());
    for (std::size_t i : after) reached[i] = true;
    for (std::size_t i = capture.works.size(); i-- > 0;)
        if (reached[i])
            for (std::size_t j : capture.works[i].after) reached[j] = true;
    return std::find(reached.begin(), reached.end(), false) == reached.end();
}

cudaError_t end_capture(World& w, cudaStream_t handle, Stream& s, cudaGraph_t* graph) {
    CapturePtr const capture = s.capture;
    if (!capture) return cudaErrorIllegalState;
    if (capture->origin != handle) {
        capture->invalid = true;
        return cudaErrorStreamCaptureUnmatched;
    }
    if (capture->mode != cudaStreamCaptureModeRelaxed &&
        capture->thread != std::this_thread::get_id())
        return cudaErrorStreamCaptureWrongThread;
    bool const whole = joined(*capture, s.after);
    w.end(capture);
    if (capture->invalid) return cudaErrorStreamCaptureInvalidated;
    if (!whole) return cudaErrorStreamCaptureUnjoined;
    if (w.failing) return cudaSuccess;
    Graph g{++w.made, s.device, std::move(capture->works)};
    std::size_t edges = 0;
    for (Captured const& captured : g.works) edges += captured.after.size();
    w.note(": graph " + std::to_string(g.number) + " of " + std::to_string(g.works.size()) +
           " nodes, " + std::to_string(edges) + " edges");
    *graph = make_handle<cudaGraph_t>();
    w.graphs.emplace(*graph, std::move(g));
    return cudaSuccess;
}

void launch_graph(World& w, Stream& s, Executable& executable) {
    Work mark;
    mark.device = s.device;
    mark.call = w.log.size() - 1;
    std::vector<NodePtr> before = w.before(s);
    before.push_back(executable.last);
    NodePtr const first = w.add(mark, s.number, s.chain, before);
    std::vector<NodePtr> nodes;
    for (Captured const& captured : executable.graph.works) {
        std::vector<NodePtr> after;
        for (std::size_t i : captured.after) after.push_back(nodes[i]);
        if (after.empty()) after.push_back(first);
        auto const [chain, fresh] = executable.chain_of_stream.try_emplace(captured.stream);
        if (fresh) chain->second = w.new_chain();
        nodes.push_back(w.add(captured.work, captured.stream, chain->second, after));
    }
    nodes.push_back(first);
    executable.last = s.tail = w.add(mark, s.number, s.chain, nodes);
}

} // namespace

} // namespace cuda_double::detail

using namespace cuda_double::detail;

extern "C" {

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
    return enter("cudaStreamBeginCapture", plain, [&](World& w) {
        Stream* s = w.stream(stream);
        if (!s) return cudaErrorInvalidResourceHandle;
        if (s->capture) return cudaErrorIllegalState;
        if (s->legacy) return cudaErrorStreamCaptureUnsupported;
        if (!w.is_current(s->device)) return cudaErrorInvalidResourceHandle;
        s->capture = std::make_shared<Capture>();
        s->capture->number = ++w.made;
        s->capture->origin = stream;
        s->capture->mode = mode;
        s->capture->thread = std::this_thread::get_id();
        s->after.clear();
        w.captures.push_back(s->capture);
        return cudaSuccess;
    });
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
    *graph = nullptr;
    return enter("cudaStreamEndCapture", happens_anyway, [&](World& w) {
        Stream* s = w.stream(stream);
        return s ? end_capture(w, stream, *s, graph) : cudaErrorInvalidResourceHandle;
    });
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
    return enter("cudaStreamIsCapturing", plain, [&](World& w) {
        Stream* s = w.stream(stream);
        if (!s) return cudaErrorInvalidResourceHandle;
        *status = !s->capture           ? cudaStreamCaptureStatusNone
                  : s->capture->invalid ? cudaStreamCaptureStatusInvalidated
                                        : cudaStreamCaptureStatusActive;
        return cudaSuccess;
    });
}

#if CUDART_VERSION >= 13000
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus* status,
                                     unsigned long long* id, cudaGraph_t* graph,
                                     cudaGraphNode_t const** dependencies,
                                     cudaGraphEdgeData const** edges, std::size_t* count) {
    return enter("cudaStreamGetCaptureInfo", plain, [&](World& w) {
        Stream* s = w.stream(stream);
        if (!s) return cudaErrorInvalidResourceHandle;
        if (graph || dependencies || edges) return cudaErrorNotSupported;
        *status = !s->capture           ? cudaStreamCaptureStatusNone
                  : s->capture->invalid ? cudaStreamCaptureStatusInvalidated
                                        : cudaStreamCaptureStatusActive;
        if (id && s->capture) *id = s->capture->number;
        if (count) *count = s->after.size();
        return cudaSuccess;
    });
}
#endif

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
    return enter("cudaThreadExchangeStreamCaptureMode", plain, [&](World& w) {
        std::swap(w.thread().mode, *mode);
        return cudaSuccess;
    });
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, std::size_t* count) {
    return enter("cudaGraphGetNodes", plain, [&](World& w) {
        auto const found = w.graphs.find(graph);
        if (found == w.graphs.end()) return cudaErrorInvalidValue;
        if (nodes) return cudaErrorNotSupported;
        *count = found->second.works.size();
        return cudaSuccess;
    });
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    return enter("cudaGraphDestroy", happens_anyway, [&](World& w) {
        if (w.graphs.erase(graph)) return cudaSuccess;
        w.fault(w.describe(w.log.size() - 1) + " has no such graph");
        return cudaErrorInvalidValue;
    });
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph,
                                 unsigned long long) {
    return enter("cudaGraphInstantiate", plain, [&](World& w) {
        auto const found = w.graphs.find(graph);
        if (found == w.graphs.end()) return cudaErrorInvalidValue;
        Graph const& g = found->second;
        if (!w.is_current(g.device)) return cudaErrorInvalidResourceHandle;
        Executable e;
        e.number = ++w.made;
        e.graph = g;
        e.bytes = g.works.size() * w.options.graph_memory;
        std::size_t& used = w.allocated[static_cast<std::size_t>(g.device)];
        if (e.bytes > w.options.memory - used) return cudaErrorMemoryAllocation;
        used += e.bytes;
        *executable = make_handle<cudaGraphExec_t>();
        w.executables.emplace(*executable, std::move(e));
        return cudaSuccess;
    });
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
    return enter("cudaGraphExecDestroy", happens_anyway, [&](World& w) {
        auto const found = w.executables.find(executable);
        if (found == w.executables.end()) {
            w.fault(w.describe(w.log.size() - 1) + " has no such executable graph");
            return cudaErrorInvalidValue;
        }
        Executable const& e = found->second;
        if (e.last && !e.last->done)
            w.fault(w.describe(w.log.size() - 1) + " of a graph that has not run to its end");
        w.allocated[static_cast<std::size_t>(e.graph.device)] -= e.bytes;
        w.executables.erase(found);
        return cudaSuccess;
    });
}

cudaError_t cudaGraphUpload(cudaGraphExec_t executable, cudaStream_t stream) {
    return enter("cudaGraphUpload", plain, [&](World& w) {
        if (!w.executables.count(executable)) return cudaErrorInvalidValue;
        return w.stream(stream) ? cudaSuccess : cudaErrorInvalidResourceHandle;
    });
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
    return enter("cudaGraphLaunch", plain, [&](World& w) {
        Stream* s = w.stream(stream);
        auto const found = w.executables.find(executable);
        if (!s || found == w.executables.end()) return cudaErrorInvalidResourceHandle;
        if (s->capture) {
            w.fault("the double cannot capture the launch of a graph");
            return cudaErrorNotSupported;
        }
        if (!w.is_current(s->device)) return cudaErrorInvalidResourceHandle;
        launch_graph(w, *s, found->second);
        return cudaSuccess;
    });
}

} // extern "C"
