#pragma once

#include <gpipe/cuda/for_each_index.cuh>
#include <gpipe/cuda/poison_work.cuh>
#include <gpipe/cuda/reduce.cuh>
#include <gpipe/device/cuda.hpp>
#include <gpipe/optimizer/optimizer.hpp>
#include <gpipe/runtime/device_work.hpp>

#include <cstddef>

namespace gpipe {

namespace detail {

// One thread: the additions must come in one order.
struct Commit {
    CommitCall call;

    __device__ Commit operator()() const { return *this; }
    __device__ void operator()(std::size_t) const { commit(call); }
};
struct Revoke {
    RevokeCall call;

    __device__ Revoke operator()() const { return *this; }
    __device__ void operator()(std::size_t) const { revoke(call); }
};

// Sixteen bytes of what is kept: buffers lie in slots.
struct KeepWord {
    ulonglong2* to;
    ulonglong2 const* from;
    bool committed;

    __device__ void operator()(std::size_t i) const {
        if (committed) to[i] = from[i];
    }
};
struct PrepareKeep {
    KeepCall call;

    __device__ KeepWord operator()() const {
        return {reinterpret_cast<ulonglong2*>(call.to),
                reinterpret_cast<ulonglong2 const*>(call.from), call.state->committed != 0};
    }
};

// The sum of one element.
template <class T> struct AddElement {
    T* gradient;
    T const* other;

    __device__ AddElement operator()() const { return *this; }
    __device__ void operator()(std::size_t i) const { gradient[i] += other[i]; }
};

// One element of a gradient of the loss.
template <class T> struct ScaleElement {
    T* gradient;
    FactorOf<T> factor;

    __device__ void operator()(std::size_t i) const { gradient[i] = scaled(gradient[i], factor); }
};
template <class T> struct PrepareScale {
    ScaleCall call;

    __device__ ScaleElement<T> operator()() const {
        return {reinterpret_cast<T*>(call.gradient),
                static_cast<FactorOf<T>>(call.state->loss_scale)};
    }
};

// The update of one element.
template <class T, class Optimizer> struct UpdateElement {
    UpdateTensor<T, Optimizer::states> tensor;
    T* gradient;
    MeanFactor<T> mean;
    bool committed, updates;
    decltype(Optimizer{}.template rule<T>(UpdateContext{})) rule;

    __device__ void operator()(std::size_t i) const {
        if (!committed) return;
        T const its_mean = mean(gradient[i]);
        if (updates) apply_rule(rule, tensor, i, its_mean);
        gradient[i] = its_mean; // last: it stands for states that are not planned, too
    }
};
template <class T, class Optimizer> struct PrepareUpdate {
    UpdateCall call;
    UpdateRow row;

    __device__ UpdateElement<T, Optimizer> operator()() const {
        auto const& optimizer = *static_cast<Optimizer const*>(call.optimizer);
        return {row.template tensor<T, Optimizer::states>(),
                reinterpret_cast<T*>(row.gradient),
                MeanFactor<T>::of(*call.state),
                call.state->committed != 0,
                call.updates,
                optimizer.template rule<T>(row.context(call.state->step))};
    }
};

} // namespace detail

/// Commit and updates as kernels. Sums are added in one order, and no two threads add to one number
/// but to integers: results do not depend on timing.
template <> struct StepWork<device::Cuda> : EnqueuingWork<StepWork<device::Cuda>> {
    /// As StepWork says.
    ///@{
    static void commit(CommitCall const& call) {
        cuda::for_each_index(stream(call.stream), 1, detail::Commit{call});
    }
    static void revoke(RevokeCall const& call) {
        cuda::for_each_index(stream(call.stream), 1, detail::Revoke{call});
    }
    static bool keep(KeepCall const& call) {
        cuda::for_each_index(stream(call.stream), call.bytes / sizeof(ulonglong2),
                             detail::PrepareKeep{call});
        return true;
    }
    template <class T> static void scale(ScaleCall const& call) {
        cuda::for_each_index(stream(call.stream), call.elements, detail::PrepareScale<T>{call});
    }
    template <class T> static void squares(SquaresCall const& call, UpdateRow const& row) {
        auto const* const gradient = reinterpret_cast<T const*>(row.gradient);
        cuda::sum_of_squares(stream(call.stream), gradient, row.elements, call.result,
                             call.workspace);
        if (call.exact)
            cuda::add_squares_exactly(stream(call.stream), call.exact, gradient, row.elements);
    }
    template <class T> static void add(AddCall const& call, UpdateRow const& row) {
        cuda::for_each_index(stream(call.stream), row.elements,
                             detail::AddElement<T>{reinterpret_cast<T*>(row.gradient),
                                                   reinterpret_cast<T const*>(call.other)});
    }
    template <class T, class Optimizer>
    static bool update(UpdateCall const& call, UpdateRow const& row) {
        if constexpr (CheckOptimizerOf<Optimizer, T>::ok()) {
            static_assert(HasRule<Optimizer, T>,
                          "gpipe: on this device an optimizer needs: template <class T> "
                          "GPIPE_HOST_DEVICE auto rule(gpipe::UpdateContext) const, which returns "
                          "a functor (T& parameter, T gradient, T& state...)");
            if constexpr (HasRule<Optimizer, T>)
                cuda::for_each_index(stream(call.stream), row.elements,
                                     detail::PrepareUpdate<T, Optimizer>{call, row});
        }
        return call.updates;
    }
    static void fill_poison(StepFrame const& shared, PoisonedBytes const& bytes) {
        cuda::fill_poison(shared, bytes);
    }
    static PoisonFinding find_poison(StepFrame const& shared, PoisonedBytes const& bytes) {
        return cuda::find_poison(shared, bytes);
    }
    ///@}

  private:
    static cudaStream_t stream(void const* of) {
        return *static_cast<device::Cuda::Stream const*>(of);
    }
};

} // namespace gpipe
