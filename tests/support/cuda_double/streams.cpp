// Streams and events.
#include "world.hpp"

#include <algorithm>

using namespace cuda_double::detail;

namespace {

cudaError_t create_stream(char const* name, cudaStream_t* stream, unsigned flags, int priority) {
    return enter(name, plain, [&](World& w) {
        Stream s;
        s.number = ++w.made;
        s.device = w.thread().device;
        s.priority = std::clamp(priority, -5, 0);
        s.blocking = !(flags & cudaStreamNonBlocking);
        s.chain = w.new_chain();
        w.note(": stream " + std::to_string(s.number) + " of device " + std::to_string(s.device));
        *stream = make_handle<cudaStream_t>();
        w.streams.emplace(*stream, std::move(s));
        return cudaSuccess;
    });
}

cudaError_t create_event(char const* name, cudaEvent_t* event) {
    return enter(name, plain, [&](World& w) {
        Event e;
        e.number = ++w.made;
        e.device = w.thread().device;
        w.note(": event " + std::to_string(e.number) + " of device " + std::to_string(e.device));
        *event = make_handle<cudaEvent_t>();
        w.events.emplace(*event, std::move(e));
        return cudaSuccess;
    });
}

// The stream goes on after the captured event, and thereby becomes part of its capture.
cudaError_t wait_captured(World& w, Stream& s, Event& e) {
    if (std::find(w.captures.begin(), w.captures.end(), e.capture) == w.captures.end()) {
        w.fault(w.describe(w.log.size() - 1) + " waits for an event of a capture that has ended");
        return cudaErrorInvalidValue;
    }
    if (s.capture && s.capture != e.capture) {
        s.capture->invalid = e.capture->invalid = true;
        return cudaErrorStreamCaptureMerge;
    }
    if (e.capture->invalid) return cudaErrorStreamCaptureInvalidated;
    if (!s.capture) s.after.clear();
    s.capture = e.capture;
    for (std::size_t i : e.after)
        if (std::find(s.after.begin(), s.after.end(), i) == s.after.end()) s.after.push_back(i);
    return cudaSuccess;
}

cudaError_t wait(World& w, Stream& s, Event& e) {
    if (e.capture) return wait_captured(w, s, e);
    if (!e.node) return cudaSuccess;
    if (s.capture) {
        s.capture->invalid = true;
        return cudaErrorStreamCaptureIsolation;
    }
    Work work;
    work.kind = Kind::wait;
    work.device = s.device;
    work.call = w.log.size() - 1;
    std::vector<NodePtr> after = w.before(s);
    after.push_back(e.node);
    s.tail = w.add(std::move(work), s.number, s.chain, after);
    return cudaSuccess;
}

cudaError_t record(World& w, Stream& s, Event& e) {
    if (s.capture) {
        if (s.capture->invalid) return cudaErrorStreamCaptureInvalidated;
        e.capture = s.capture;
        e.after = s.after;
        e.node.reset();
        return cudaSuccess;
    }
    Work work;
    work.kind = Kind::record;
    cudaError_t const status = w.enqueue(s, std::move(work));
    e.capture.reset();
    e.node = s.tail;
    return status;
}

cudaError_t query(World& w, NodePtr const& node) {
    // Whoever asks again and again comes to an end; soon, if that is how everybody waits.
    std::size_t const pieces = w.single.empty() ? 1 : 64;
    for (std::size_t n = 0; n < pieces && node && !node->done; ++n) w.run_one();
    if (node && !node->done) return cudaErrorNotReady;
    w.host_waits_for(node);
    return cudaSuccess;
}

} // namespace

extern "C" {

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
    return create_stream("cudaStreamCreate", stream, cudaStreamDefault, 0);
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
    return create_stream("cudaStreamCreateWithFlags", stream, flags, 0);
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
    return create_stream("cudaStreamCreateWithPriority", stream, flags, priority);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    return enter("cudaStreamDestroy", happens_anyway, [&](World& w) {
        Stream* s = w.stream(stream);
        if (!s) return cudaErrorInvalidResourceHandle;
        if (s->capture) {
            s->capture->invalid = true;
            if (CapturePtr const ended = s->capture; ended->origin == stream) w.end(ended);
        }
        return w.streams.erase(stream) ? cudaSuccess : cudaErrorInvalidResourceHandle;
    });
}

cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* priority) {
    return enter("cudaStreamGetPriority", plain, [&](World& w) {
        Stream* s = w.stream(stream);
        if (!s) return cudaErrorInvalidResourceHandle;
        *priority = s->priority;
        return cudaSuccess;
    });
}

cudaError_t cudaStreamGetDevice(cudaStream_t stream, int* device) {
    return enter("cudaStreamGetDevice", plain, [&](World& w) {
        Stream* s = w.stream(stream);
        if (!s) return cudaErrorInvalidResourceHandle;
        *device = s->device;
        return cudaSuccess;
    });
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    return enter("cudaStreamSynchronize", unsafe | happens_anyway, [&](World& w) {
        Stream* s = w.stream(stream);
        if (!s) return cudaErrorInvalidResourceHandle;
        if (s->capture) {
            s->capture->invalid = true;
            return cudaErrorStreamCaptureUnsupported;
        }
        if (!w.drops_synchronization())
            for (NodePtr const& node : w.before(*s))
                if (s->legacy || node == s->tail) w.host_waits_for(node);
        return cudaSuccess;
    });
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
    return enter("cudaStreamQuery", unsafe, [&](World& w) {
        Stream* s = w.stream(stream);
        if (!s) return cudaErrorInvalidResourceHandle;
        if (s->capture) {
            s->capture->invalid = true;
            return cudaErrorStreamCaptureUnsupported;
        }
        return query(w, s->tail);
    });
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
    return enter("cudaStreamWaitEvent", plain, [&](World& w) {
        Stream* s = w.stream(stream);
        Event* e = w.event(event);
        if (!s || !e) return cudaErrorInvalidResourceHandle;
        if (w.drops_call()) return cudaSuccess;
        return s->capture && s->capture->invalid ? cudaErrorStreamCaptureInvalidated
                                                 : wait(w, *s, *e);
    });
}

cudaError_t cudaEventCreate(cudaEvent_t* event) { return create_event("cudaEventCreate", event); }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
    return create_event("cudaEventCreateWithFlags", event);
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
    return enter("cudaEventDestroy", happens_anyway, [&](World& w) {
        if (!w.event(event)) return cudaErrorInvalidResourceHandle;
        w.events.erase(event);
        return cudaSuccess;
    });
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    return enter("cudaEventRecord", plain, [&](World& w) {
        Stream* s = w.stream(stream);
        Event* e = w.event(event);
        if (!s || !e) return cudaErrorInvalidResourceHandle;
        if (s->device != e->device) {
            w.fault(w.describe(w.log.size() - 1) + " is of two devices");
            return cudaErrorInvalidResourceHandle;
        }
        return w.drops_call() ? cudaSuccess : record(w, *s, *e);
    });
}

// One that is external is no part of what it lies in.
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) {
    if (flags != cudaEventRecordExternal) return cudaEventRecord(event, stream);
    return enter("cudaEventRecordWithFlags", plain, [&](World& w) {
        return w.stream(stream) && w.event(event) ? cudaSuccess : cudaErrorInvalidResourceHandle;
    });
}

// There is no time.
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
    return enter("cudaEventElapsedTime", plain, [&](World& w) {
        *milliseconds = 1;
        return w.event(begin) && w.event(end) ? cudaSuccess : cudaErrorInvalidResourceHandle;
    });
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
    return enter("cudaEventQuery", unsafe, [&](World& w) {
        Event* e = w.event(event);
        if (!e) return cudaErrorInvalidResourceHandle;
        return e->capture ? cudaErrorCapturedEvent : query(w, e->node);
    });
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    return enter("cudaEventSynchronize", unsafe | happens_anyway, [&](World& w) {
        Event* e = w.event(event);
        if (!e) return cudaErrorInvalidResourceHandle;
        if (e->capture) return cudaErrorCapturedEvent;
        if (!w.drops_synchronization()) w.host_waits_for(e->node);
        return cudaSuccess;
    });
}

} // extern "C"
