#pragma once

#include <gpipe/device/cuda_memory.hpp>
#include <gpipe/device/cuda_stream.hpp>

#include <cstddef>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

namespace gpipe::cuda {

/// Brings mini-batches from the caller's arrays, wherever these are: each tensor on a stream of its
/// own, behind what the caller has put on his streams by then.
class Feeds {
  public:
    /// One more tensor, to memory of this GPU.
    void add(int gpu) {
        streams_.emplace_back(gpu, Priority::high);
        ends_.emplace_back(gpu);
    }
    /// Another stream waits for all that was fed.
    void join(StreamRef stream) {
        for (std::size_t i = 0; i < streams_.size(); ++i) {
            ends_[i].record(streams_[i]);
            stream.wait(ends_[i]);
        }
    }
    /// f(stream) of each stream.
    template <class F> void each(F f) {
        for (Stream const& stream : streams_) f(stream);
    }

    /// Tensor i of a mini-batch. An array of the host is read at once, into `pinned`, one of a GPU
    /// behind its default stream; all behind the caller's stream within a Feeding of one, and
    /// pageable memory is refused then: throws std::invalid_argument, as for an array at null.
    void feed(std::size_t i, std::byte* to, std::byte const* from, std::size_t bytes,
              std::byte* pinned) {
        if (!from) throw std::invalid_argument("gpipe: an array of the mini-batch begins at null");
        PointerKind const kind = pointer_kind(from);
        Stream const& stream = streams_[i];
        if (follows_ && kind.memory == Memory::pageable)
            throw std::invalid_argument(
                "gpipe: a step that follows a stream was given an array in pageable memory of the "
                "host, which it would read before the stream writes it: give pinned memory, or no "
                "stream");
        if (follows_ || is_on_gpu(kind)) {
            reads_caller_ = true;
            if (!follows_) stream.wait(default_stream_of(kind, stream.device()));
        } else {
            std::memcpy(pinned, from, bytes);
            from = pinned;
        }
        stream.copy(to, from, bytes);
    }
    /// Returns when what is on the default stream of its GPU is done, if an array is on one;
    /// `otherwise`: the GPU of managed memory.
    void await_writers(void const* array, int otherwise) {
        PointerKind const kind = pointer_kind(array);
        if (is_on_gpu(kind)) default_stream_of(kind, otherwise).synchronize();
    }

    /// What is fed while it lives waits for the caller's stream, if there is one.
    class Feeding {
      public:
        Feeding(Feeding const&) = delete;
        Feeding& operator=(Feeding const&) = delete;
        ~Feeding() { feeds_.follows_ = false; }

        /// Returns when the caller's arrays may be written again, or has his stream wait for that.
        void end() {
            bool const read = std::exchange(feeds_.reads_caller_, false);
            if (caller_)
                feeds_.join(*caller_);
            else if (read)
                for (Stream const& stream : feeds_.streams_) stream.synchronize();
        }

      private:
        friend class Feeds;
        explicit Feeding(Feeds& feeds, std::optional<StreamRef> caller = {})
            : feeds_(feeds), caller_(caller) {
            feeds_.follows_ = caller_.has_value();
        }

        Feeds& feeds_;
        std::optional<StreamRef> caller_;
    };
    /// Arrays that nobody writes, or a default stream does.
    [[nodiscard]] Feeding feeding() { return Feeding(*this); }
    /// Arrays that the caller's stream writes, or reads: a run on `hub`, too, is behind it, where
    /// nothing is fed. Throws std::invalid_argument if it is capturing: a step is no part of the
    /// caller's graph.
    [[nodiscard]] Feeding feeding(cudaStream_t caller, StreamRef hub) {
        cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
        check("cudaStreamIsCapturing", cudaStreamIsCapturing(caller, &status));
        if (status != cudaStreamCaptureStatusNone)
            throw std::invalid_argument("gpipe: the stream that the arrays are written on is "
                                        "capturing: what is started would not be in its graph, nor "
                                        "before it");
        int gpu = 0;
        check("cudaStreamGetDevice", cudaStreamGetDevice(caller, &gpu));
        Event& now = callers_event(gpu);
        DeviceGuard const guard(gpu); // whose default stream it may be
        now.record(caller);
        for (Stream const& stream : streams_) stream.wait(now);
        hub.wait(now);
        return Feeding(*this, StreamRef(caller));
    }

    /// Whether what is fed now waits for the caller's stream.
    bool follows() const { return follows_; }

  private:
    static bool is_on_gpu(PointerKind const& kind) {
        return kind.memory == Memory::device || kind.memory == Memory::managed;
    }
    // How far the legacy stream has come, and so every stream that waits for it: the threads'
    // default streams, and all that were not made to do without.
    Event& default_stream_of(PointerKind const& kind, int otherwise) {
        int const gpu = kind.memory == Memory::device ? kind.device : otherwise;
        Event& now = callers_event(gpu);
        DeviceGuard const guard(gpu);
        now.record(cudaStreamLegacy);
        return now;
    }
    // The callers' streams are of few GPUs: one event for each is made when it is first seen.
    Event& callers_event(int gpu) {
        for (auto& [of, event] : callers_)
            if (of == gpu) return event;
        return callers_.emplace_back(gpu, Event(gpu)).second;
    }

    std::vector<Stream> streams_;
    std::vector<Event> ends_;
    std::vector<std::pair<int, Event>> callers_;
    bool follows_ = false;      // whether a stream of the caller is followed
    bool reads_caller_ = false; // whether arrays of the caller are read yet
};

} // namespace gpipe::cuda
