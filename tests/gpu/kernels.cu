// The library's kernels: the host's functions in every bit.
#include "support/gpu_memory.hpp"

#include <gpipe/gpipe.cuh>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <type_traits>
#include <vector>

using gpipe::cuda::Buffer;
using gpipe::cuda::check;
using gpipe::cuda::Stream;
using toy::read;
using toy::write;
using CudaStream = gpipe::device::Cuda::Stream;

namespace gpu_test {

/// Adds one to each number, and what `*by` says when the kernel runs.
struct CountEach {
    unsigned* counts;
    unsigned by;
    __device__ void operator()(std::size_t i) const { counts[i] += 1 + by; }
};
struct Count {
    unsigned* counts;
    unsigned const* by;
    __device__ CountEach operator()() const { return {counts, *by}; }
};

} // namespace gpu_test

namespace {

// Comparing bits: -0 is not 0, and what is no number equals itself.
template <class T> bool same_bits(std::vector<T> const& a, std::vector<T> const& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

} // namespace

TEST_CASE("for_each_index() meets each index once, and prepares when it runs") {
    Stream const stream(0);
    constexpr std::size_t most = 4096 * 256 * 2 + 3; // of more than one round
    Buffer const counts(0, most * sizeof(unsigned)), by(0, sizeof(unsigned));
    auto* const at = reinterpret_cast<unsigned*>(counts.data());
    unsigned expected = 0;
    for (std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{255}, std::size_t{256},
                              std::size_t{257}, std::size_t{4096 * 256 + 1}, most}) {
        write(by, std::vector<unsigned>{expected});
        check("cudaMemsetAsync", cudaMemsetAsync(at, 0, most * sizeof(unsigned), stream.get()));
        gpipe::cuda::for_each_index(stream.get(), count,
                                    gpu_test::Count{at, reinterpret_cast<unsigned*>(by.data())});
        stream.synchronize();
        std::vector<unsigned> all(most);
        std::fill_n(all.begin(), count, 1 + expected++);
        CHECK(read<unsigned>(counts, most) == all);
    }
}

TEST_CASE("the commit on a GPU is the host's in every bit") {
    double const infinity = std::numeric_limits<double>::infinity();
    std::mt19937_64 random(3);
    std::uniform_real_distribution<double> numbers(-1, 1);
    Stream const stream(0);
    CudaStream const name(stream.get());
    for (double weight : {1.0, 0.3, 0.0, -1.0, infinity, std::nan("")})
        for (std::size_t micro_batches : {0, 1, 2, 7, 64})
            for (int variant = 0; variant < 4; ++variant) {
                std::size_t const count = variant == 0 ? 2 : variant == 1 ? 7 : 3;
                bool const finite = variant < 3;
                std::vector<double> sums(micro_batches * count + count); // totals at the end
                for (double& v : sums) v = numbers(random);
                for (std::size_t m = 0; m < micro_batches; ++m) sums[m * count + 1] = weight;
                bool const spoilt = !finite && micro_batches > 1; // the loss of the second
                if (spoilt) sums[count] = -infinity;
                gpipe::StepState const state{7, 3, 0.5, 1};
                Buffer const on_gpu(0, sums.size() * sizeof(double));
                Buffer const state_on_gpu(0, sizeof state);
                write(on_gpu, sums);
                write(state_on_gpu, std::vector{state});
                auto* const data = reinterpret_cast<double*>(on_gpu.data());
                gpipe::StepWork<gpipe::device::Cuda>::commit(
                    {data, micro_batches, count, count, data + micro_batches * count,
                     reinterpret_cast<gpipe::StepState*>(state_on_gpu.data()), &name});
                stream.synchronize();
                std::vector<gpipe::StepState> own{state};
                gpipe::detail::commit({sums.data(), micro_batches, count, count,
                                       sums.data() + micro_batches * count, own.data(), nullptr});
                INFO("weight ", weight, ", M = ", micro_batches, ", ", count, " numbers");
                if (!std::isnan(weight)) CHECK(same_bits(read<double>(on_gpu, sums.size()), sums));
                auto const theirs = read<gpipe::StepState>(state_on_gpu, 1)[0];
                CHECK(theirs.seed == 7);
                CHECK(theirs.step == 3 + theirs.committed);
                CHECK(theirs.scale == own[0].scale);
                CHECK(theirs.committed == own[0].committed);
                bool const positive = micro_batches > 0 && weight > 0 && weight < infinity;
                CHECK(own[0].committed == (positive && !spoilt));
                CHECK(theirs.fault == own[0].fault);
                CHECK((own[0].fault == gpipe::StepFault::loss) == (positive && spoilt));
                if (!positive || !spoilt) continue;
                CHECK(theirs.fault_at == 1);
                CHECK(theirs.fault_value == -infinity);
            }
}

TEST_CASE("a commit is taken back on a GPU by what takes it back on the host") {
    double const infinity = std::numeric_limits<double>::infinity();
    Stream const stream(0);
    CudaStream const name(stream.get());
    std::vector<std::uint32_t> const order{2, 0, 1};
    for (std::vector<double> const& squares :
         {std::vector{1.0, 2.0, 3.0}, {1.0, infinity, std::nan("")}, {infinity, 1.0, 1.0}})
        for (bool const ordered : {false, true})
            for (gpipe::StepState state : {gpipe::StepState{7, 3, 0.5, 0, 1}, {7, 3, 0.5, 0, 0}})
                for (auto const fault : {gpipe::StepFault::nothing, gpipe::StepFault::loss,
                                         gpipe::StepFault::gradient}) {
                    state.fault = fault;
                    Buffer const on_gpu(0, 3 * sizeof(double)), order_there(0, sizeof order[0] * 3),
                        state_there(0, sizeof state);
                    write(on_gpu, squares);
                    write(order_there, order);
                    write(state_there, std::vector{state});
                    gpipe::RevokeCall call{reinterpret_cast<double*>(on_gpu.data()),
                                           reinterpret_cast<std::uint32_t*>(order_there.data()),
                                           3,
                                           reinterpret_cast<gpipe::StepState*>(state_there.data()),
                                           &name,
                                           ordered};
                    if (!ordered) call.order = nullptr;
                    gpipe::StepWork<gpipe::device::Cuda>::revoke(call);
                    stream.synchronize();
                    bool const blames =
                        (state.committed || fault == gpipe::StepFault::gradient) && squares[2] != 3;
                    gpipe::StepState own = state;
                    call.squares = squares.data();
                    call.order = ordered ? order.data() : nullptr;
                    call.state = &own;
                    gpipe::detail::revoke(call);
                    auto const theirs = read<gpipe::StepState>(state_there, 1)[0];
                    CHECK(std::memcmp(&theirs, &own, sizeof own) == 0);
                    CHECK(own.committed == (blames ? 0 : state.committed));
                    CHECK(own.step == 3u - (blames && ordered));
                    CHECK(own.fault == (blames ? gpipe::StepFault::gradient : fault));
                    if (blames) CHECK(std::isnan(own.fault_value) == (ordered && squares[0] == 1));
                }
}

namespace {

// A tensor with its gradient and its optimizer's states, one slot each.
template <class T, class Optimizer> struct Updated {
    std::size_t size;
    std::size_t slot = gpipe::slot_bytes(size * sizeof(T));
    std::vector<std::byte> memory = std::vector<std::byte>((2 + Optimizer::states) * slot);

    T* array(std::size_t n) { return reinterpret_cast<T*>(memory.data() + n * slot); }
    std::vector<T> values(std::size_t n) { return {array(n), array(n) + size}; }
    gpipe::UpdateRow row(std::byte* base) const {
        gpipe::UpdateRow result;
        result.parameter = base;
        result.gradient = base + slot;
        result.state = base + 2 * slot;
        result.elements = size;
        result.decay = 0.75f;
        return result;
    }
};

// How far from the host's the change of a parameter may be, as a share of it. The two rates of
// Adam's rule come from pow(), in double, whose last bits differ; 1 - pow(beta2, t) loses up to ten
// more of them in the first steps. Then the rates are rounded to T.
template <class Optimizer>
constexpr bool calls_pow =
    std::is_same_v<Optimizer, gpipe::Adam> || std::is_same_v<Optimizer, gpipe::AdamW>;
template <class T>
constexpr T tolerance = static_cast<T>(4 * std::numeric_limits<T>::epsilon() +
                                       4096 * std::numeric_limits<double>::epsilon());

template <class T, class Optimizer> void compare_updates(Optimizer optimizer, std::size_t size) {
    Stream const stream(0);
    CudaStream const name(stream.get());
    Updated<T, Optimizer> host{size};
    std::mt19937 random(static_cast<unsigned>(size));
    std::normal_distribution<double> numbers(0, 1);
    for (std::size_t i = 0; i < size; ++i) host.array(0)[i] = static_cast<T>(numbers(random));
    // Beside it one of no elements, and one that begins where no thread can read several at once.
    std::vector<std::byte> shifted(sizeof(T) + host.memory.size());
    Buffer const on_gpu(0, host.memory.size()), copy(0, shifted.size()),
        on_gpu_state(0, sizeof(gpipe::StepState)), on_gpu_optimizer(0, sizeof(Optimizer));
    std::vector<gpipe::UpdateRow> rows{
        host.row(on_gpu.data()), {}, host.row(copy.data() + sizeof(T))};
    for (std::uint64_t step = 1; step <= 4; ++step) { // as the commit has counted it
        optimizer.learning_rate /= static_cast<float>(step);
        gpipe::StepState const state{1, step, 1.0 / 24, 0, step != 3}; // not committed: the third
        for (std::size_t i = 0; i < size; ++i) host.array(1)[i] = static_cast<T>(numbers(random));
        std::vector<T> const before = host.values(0);
        write(on_gpu, host.memory);
        std::copy(host.memory.begin(), host.memory.end(), shifted.begin() + sizeof(T));
        write(copy, shifted);
        write(on_gpu_state, std::vector{state});
        write(on_gpu_optimizer, std::vector{optimizer});
        gpipe::StepWork<gpipe::device::Cuda>::update<T, Optimizer>(
            {on_gpu_optimizer.data(), reinterpret_cast<gpipe::StepState*>(on_gpu_state.data()),
             &name},
            rows.data(), rows.size());
        stream.synchronize();
        gpipe::detail::update_tensor<T, Optimizer>({&optimizer, &state, nullptr},
                                                   host.row(host.memory.data()));
        INFO(sizeof(T), " bytes, ", size, " elements, step ", step);
        for (std::size_t n = 1; n < 2 + Optimizer::states; ++n) // the gradient and the states
            CHECK(same_bits(read<T>(on_gpu, size, n * host.slot), host.values(n)));
        std::vector<T> const theirs = read<T>(on_gpu, size), ours = host.values(0);
        CHECK(read<std::byte>(copy, host.memory.size(), sizeof(T)) ==
              read<std::byte>(on_gpu, host.memory.size()));
        std::size_t far = 0;
        for (std::size_t i = 0; i < size; ++i) {
            // The parameter itself is rounded, too, and shrunk a little.
            T const change = std::abs(ours[i] - before[i]) + std::abs(before[i]) / 128;
            T const last_bit = std::numeric_limits<T>::epsilon() * std::abs(ours[i]);
            far += !(std::abs(theirs[i] - ours[i]) <= tolerance<T> * change + last_bit);
        }
        CHECK(far == 0);
        if (!calls_pow<Optimizer> || !state.committed) CHECK(same_bits(theirs, ours));
        if (state.committed && size > 0) CHECK(ours != before);
    }
}

} // namespace

TEST_CASE_TEMPLATE("updates on a GPU are the host's in every bit, but for Adam's pow()", T, float,
                   double) {
    for (std::size_t size : {0, 1, 64, 255, 1000, 70'000}) {
        compare_updates<T>(gpipe::SGD{1e-2f}, size);
        compare_updates<T>(gpipe::SGD{1e-2f, 0.9f, 1e-2f}, size);
        compare_updates<T>(gpipe::RMSProp{1e-2f, 0.9f, 0.5f, 1e-6f, 1e-2f}, size);
        compare_updates<T>(gpipe::Adam{.weight_decay = 1e-2f}, size);
        compare_updates<T>(gpipe::AdamW{}, size);
    }
}

TEST_CASE_TEMPLATE("squares of many gradients, summed up at once, are those of each on the host", T,
                   float, double) {
    Stream const stream(0);
    CudaStream const name(stream.get());
    std::mt19937 random(3);
    std::normal_distribution<double> numbers(0, 1);
    std::vector<T> values(150'000);
    for (T& value : values) value = static_cast<T>(numbers(random));
    Buffer const data(0, values.size() * sizeof(T)), workspace(0, gpipe::squares_workspace),
        exact(0, gpipe::exact_words * sizeof(std::uint64_t));
    write(data, values);
    for (std::size_t const count : {std::size_t{1}, std::size_t{5}, gpipe::most_rows_at_once}) {
        std::vector<gpipe::UpdateRow> rows(count);
        std::vector<double> expected;
        std::vector<std::uint64_t> words(gpipe::exact_words), untouched = words;
        for (std::size_t r = 0; r < count; ++r) {
            std::size_t const first = r * 64;
            std::size_t const sizes[] = {70'000, 1, 0, 2'049, 255};
            rows[r].gradient = data.data() + first * sizeof(T);
            rows[r].elements = sizes[(r + count) % 5];
            expected.push_back(
                gpipe::ordered_sum_of_squares(values.data() + first, rows[r].elements));
            gpipe::add_squares_exactly(words.data(), values.data() + first, rows[r].elements);
        }
        for (bool const exactly : {false, true}) {
            CAPTURE(count);
            CAPTURE(exactly);
            Buffer const results(0, (count + 1) * sizeof(double));
            write(exact, untouched);
            gpipe::SquaresCall call{reinterpret_cast<double*>(results.data()), workspace.data(),
                                    &name};
            if (exactly) call.exact = reinterpret_cast<std::uint64_t*>(exact.data());
            gpipe::StepWork<gpipe::device::Cuda>::squares<T>(call, rows.data(), count);
            stream.synchronize();
            CHECK(same_bits(read<double>(results, count), expected));
            CHECK(read<double>(results, 1, count * sizeof(double))[0] == 0);
            CHECK((read<std::uint64_t>(exact, words.size()) == (exactly ? words : untouched)));
        }
    }
}

namespace {

// An element of twelve bytes, of which no thread reads several at once.
struct Color {
    float red, green, blue;

    Color() = default;
    GPIPE_HOST_DEVICE explicit Color(double all)
        : red(static_cast<float>(all)), green(red), blue(red) {}
    GPIPE_HOST_DEVICE Color& operator*=(Color by) {
        red *= by.red, green *= by.green, blue *= by.blue;
        return *this;
    }
};
struct Fade {
    static constexpr std::size_t states = 1;
    struct Rule {
        GPIPE_HOST_DEVICE void operator()(Color& parameter, Color gradient, Color& state) const {
            state.green += gradient.red;
            parameter.red -= gradient.blue, parameter.blue += state.green;
        }
    };
    template <class T> GPIPE_HOST_DEVICE Rule rule(gpipe::UpdateContext) const { return {}; }
    template <class T>
    void operator()(gpipe::UpdateContext context, gpipe::UpdateTensor<T, 1> tensor) const noexcept {
        gpipe::apply_to_all(*this, context, tensor);
    }
};

} // namespace

TEST_CASE("an element may have any size") {
    Stream const stream(0);
    CudaStream const name(stream.get());
    Updated<Color, Fade> host{100};
    for (std::size_t i = 0; i < host.memory.size() / sizeof(float); ++i)
        reinterpret_cast<float*>(host.memory.data())[i] = static_cast<float>(i);
    gpipe::StepState const state{1, 1, 0.5, 0, true};
    Buffer const on_gpu(0, host.memory.size()), on_gpu_state(0, sizeof state), on_gpu_fade(0, 1);
    write(on_gpu, host.memory);
    write(on_gpu_state, std::vector{state});
    gpipe::UpdateRow const row = host.row(on_gpu.data());
    gpipe::StepWork<gpipe::device::Cuda>::update<Color, Fade>(
        {on_gpu_fade.data(), reinterpret_cast<gpipe::StepState*>(on_gpu_state.data()), &name}, &row,
        1);
    stream.synchronize();
    Fade const fade;
    gpipe::detail::update_tensor<Color, Fade>({&fade, &state, nullptr},
                                              host.row(host.memory.data()));
    CHECK(read<std::byte>(on_gpu, host.memory.size()) == host.memory);
}

TEST_CASE_TEMPLATE("gradients of tied parameters are added up on a GPU as on the host", T, float,
                   double) {
    Stream const stream(0);
    CudaStream const name(stream.get());
    for (std::size_t size : {0, 1, 64, 255, 1000, 70'000}) {
        Updated<T, gpipe::SGD> host{size};
        std::mt19937 random(static_cast<unsigned>(size));
        std::normal_distribution<double> numbers(0, 1);
        for (std::size_t n : {1, 2}) // the gradient, and what stands behind it
            for (std::size_t i = 0; i < size; ++i)
                host.array(n)[i] = static_cast<T>(numbers(random));
        std::vector<T> const before = host.values(1);
        Buffer const on_gpu(0, host.memory.size());
        write(on_gpu, host.memory);
        gpipe::StepWork<gpipe::device::Cuda>::add<T>({on_gpu.data() + 2 * host.slot, &name},
                                                     host.row(on_gpu.data()));
        stream.synchronize();
        gpipe::detail::add_gradient<T>({host.memory.data() + 2 * host.slot, nullptr},
                                       host.row(host.memory.data()));
        INFO(sizeof(T), " bytes, ", size, " elements");
        CHECK(same_bits(read<T>(on_gpu, host.memory.size() / sizeof(T)),
                        {host.array(0), host.array(0) + host.memory.size() / sizeof(T)}));
        CHECK((size == 0 || host.values(1) != before));
    }
}
