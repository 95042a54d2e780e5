// Products on a GPU in FP32, TF32 and BF16: for every form, stride and number of products as close
// to the exact ones as the precision promises, and a model that is trained in TF32 or BF16 has the
// same bits however it is run.
#include "support/gpu_memory.hpp"

#include <gpt/cuda_operations.cuh>
#include <gpt/model.hpp>

#include <gpipe/gpipe.cuh>
#include <gpipe/schedule/schedule_catalogue.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <type_traits>
#include <utility>
#include <vector>

#include <cuda_bf16.h>

namespace {

using gpipe::cuda::Buffer;
using gpt::Precision;

// A matrix of `rows` times `columns` as a factor: how it lies, and how it is read. Numbers between
// its rows are not to be read or written.
template <class T> struct Matrix {
    std::size_t rows, columns, stride, step;
    bool transposed;
    std::vector<T> values;

    Matrix(std::size_t r, std::size_t c, bool turned, std::size_t count, std::size_t gap)
        : rows(r), columns(c), stride((turned ? r : c) + gap),
          step((turned ? c : r) * stride + gap), transposed(turned), values(count * step) {}
    std::size_t at(std::size_t n, std::size_t r, std::size_t c) const {
        return n * step + (transposed ? c * stride + r : r * stride + c);
    }
    void fill(unsigned seed) {
        std::mt19937 random{seed};
        std::normal_distribution<double> normal;
        values.assign(values.size(), T(NAN));
        for (std::size_t n = 0; n < values.size() / step; ++n)
            for (std::size_t r = 0; r < rows; ++r)
                for (std::size_t c = 0; c < columns; ++c)
                    values[at(n, r, c)] = static_cast<T>(normal(random));
    }
};

struct Case {
    gpt::Extents extents;
    bool a_turned = false, b_turned = false, add = false;
    std::size_t samples = 1, heads = 1, gap = 0;

    std::size_t count() const { return samples * heads; }
};

class Multiplier {
  public:
    template <class T, class C>
    std::vector<C> operator()(Precision precision, Case const& of, Matrix<T> const& a,
                              Matrix<T> const& b, Matrix<C> const& c, gpt::Real<T> scale) const {
        Buffer const a_on(0, a.values.size() * sizeof(T)), b_on(0, b.values.size() * sizeof(T)),
            c_on(0, c.values.size() * sizeof(C));
        toy::write(a_on, a.values);
        toy::write(b_on, b.values);
        toy::write(c_on, c.values);
        auto const factor = [](Buffer const& on, Matrix<T> const& m) {
            return gpt::Factor<T>{reinterpret_cast<T const*>(on.data()), m.stride, m.transposed};
        };
        auto const steps = [&](auto const& m) { return gpt::Steps{of.heads * m.step, m.step}; };
        gpt::Products const products{of.samples, of.heads, steps(a), steps(b), steps(c)};
        C* const to = reinterpret_cast<C*>(c_on.data());
        Buffer const places_on(0, 3 * of.count() * sizeof(void*));
        if constexpr (std::is_same_v<C, T>)
            gpt::multiply_each(blas_.get(), stream_.get(), precision, products, of.extents,
                               factor(a_on, a), factor(b_on, b), to, c.stride, of.add, scale,
                               reinterpret_cast<void const**>(places_on.data()));
        else
            gpt::multiply(blas_.get(), precision, products, of.extents, factor(a_on, a),
                          factor(b_on, b), to, c.stride, of.add, scale);
        stream_.synchronize();
        return toy::read<C>(c_on, c.values.size());
    }

  private:
    gpipe::cuda::Stream stream_{0};
    Buffer workspace_{0, gpipe::cuda::Blas::workspace};
    gpipe::cuda::Blas blas_{stream_, workspace_.data()};
};

// How far one number may be from its exact value, as a share of the sum of what is added. Both
// factors are rounded for TF32, what is added is, and the result in BF16.
template <class T, class C> double tolerance(Precision precision, std::size_t inner) {
    double const rounded = precision == Precision::tf32 && sizeof(T) == 4 ? 0x1p-9 : 0;
    return rounded + (sizeof(C) == 2 ? 0x1p-8 : 0) +
           static_cast<double>(inner + 4) * std::numeric_limits<gpt::Real<T>>::epsilon();
}

// Of factors of type T to results of type C. Returns whether TF32 gives other bits.
template <class T, class C = T> bool compare(Multiplier const& multiplied, Case const& of) {
    auto const& [rows, columns, inner] = of.extents;
    Matrix<T> a(rows, inner, of.a_turned, of.count(), of.gap),
        b(inner, columns, of.b_turned, of.count(), of.gap);
    Matrix<C> c(rows, columns, false, of.count(), of.gap);
    a.fill(1), b.fill(2), c.fill(3);
    auto const scale = gpt::Real<T>(0.375);
    auto const exactly = [](auto value) { return double(gpt::real(value)); };
    std::vector<C> results[2];
    for (Precision precision : {Precision::fp32, Precision::tf32}) {
        auto& result = results[precision == Precision::tf32];
        result = multiplied(precision, of, a, b, c, scale);
        std::size_t far = 0;
        std::vector<C> untouched = c.values;
        for (std::size_t n = 0; n < of.count(); ++n)
            for (std::size_t row = 0; row < rows; ++row)
                for (std::size_t column = 0; column < columns; ++column) {
                    double exact = 0, size = 0;
                    for (std::size_t p = 0; p < inner; ++p) {
                        double const term = double(scale) * exactly(a.values[a.at(n, row, p)]) *
                                            exactly(b.values[b.at(n, p, column)]);
                        exact += term, size += std::abs(term);
                    }
                    std::size_t const at = c.at(n, row, column);
                    if (of.add)
                        exact += exactly(c.values[at]), size += std::abs(exactly(c.values[at]));
                    far += !(std::abs(exactly(result[at]) - exact) <=
                             tolerance<T, C>(precision, inner) * size);
                    untouched[at] = result[at];
                }
        CHECK(far == 0);
        CHECK(std::memcmp(untouched.data(), result.data(), result.size() * sizeof(C)) == 0);
    }
    return std::memcmp(results[0].data(), results[1].data(), results[0].size() * sizeof(C)) != 0;
}

} // namespace

TEST_CASE("products are exact to their precision, in every form, and write nothing else") {
    Multiplier const multiplied;
    for (gpt::Extents extents : {gpt::Extents{1, 1, 1}, {5, 3, 33}, {3, 17, 8}, {32, 16, 64}})
        for (auto [samples, heads] : {std::pair{1u, 1u}, {1, 3}, {3, 1}, {2, 3}})
            for (std::size_t gap : {0, 3})
                for (int form = 0; form < 8; ++form) {
                    Case const of{
                        extents, (form & 1) != 0, (form & 2) != 0, (form & 4) != 0, samples, heads,
                        gap};
                    INFO(extents.rows, " x ", extents.columns, " x ", extents.inner, ", form ",
                         form, ", ", of.heads, " products of ", of.samples, " samples, gap ", gap);
                    compare<float>(multiplied, of);
                    CHECK(!compare<double>(multiplied, of));
                    CHECK(!compare<__nv_bfloat16>(multiplied, of));
                    if (samples == 1) CHECK(!compare<__nv_bfloat16, float>(multiplied, of));
                }
    CHECK(compare<float>(multiplied, {{128, 128, 128}})); // what tensor cores are good at
}

namespace {

// Of two blocks: layers of one type share the room for their rounded weights.
template <class T, Precision precision>
using Model = gpt::Model<T, 16, 32, 2, 2, gpt::CudaOperationsIn<precision>, 64, true>;

// Losses of some steps and what the model then gives.
template <class M>
std::vector<float> trained(std::size_t cells, gpipe::checkpoint::Dynamic checkpointing,
                           gpipe::schedule::Dynamic schedule = gpipe::schedule::GPipe{}) {
    using Train =
        gpipe::Training<typename M::Net, gpipe::Cells<gpipe::dynamic>, gpipe::MicroBatches<2>,
                        gpipe::Loss<typename M::Loss>, gpipe::Optimizer<gpipe::AdamW>,
                        gpipe::schedule::Dynamic, gpipe::checkpoint::Dynamic, gpipe::device::Cuda>;
    Train train(M::net(), M::loss(), gpipe::AdamW{.learning_rate = 1e-2f},
                typename Train::Options{.samples = 3,
                                        .seed = 4,
                                        .cells = cells,
                                        .schedule = schedule,
                                        .checkpointing = checkpointing,
                                        .device = {.gpus = std::vector<int>(cells, 0)}});
    std::mt19937 random{3};
    std::vector<std::int32_t> inputs(3 * 16), targets(3 * 16);
    for (auto& token : inputs) token = static_cast<std::int32_t>(random() % 64);
    for (auto& token : targets) token = static_cast<std::int32_t>(random() % 64);
    std::vector<float> result;
    for (int i = 0; i < 4; ++i)
        result.push_back(static_cast<float>(train.step(inputs, targets).loss));
    std::vector<typename M::Element> logits(inputs.size() * 64);
    train.predict(inputs, logits);
    for (auto logit : logits) result.push_back(gpt::real(logit));
    return result;
}

} // namespace

TEST_CASE_TEMPLATE(
    "P1 a model in TF32 or BF16 has the same bits for every cut and checkpointing, and "
    "nearly the losses of FP32",
    M, Model<float, Precision::tf32>, Model<__nv_bfloat16, Precision::fp32>) {
    auto const expected = trained<M>(1, gpipe::checkpoint::Never{});
    CHECK(trained<M>(1, gpipe::checkpoint::Always{}) == expected);
    CHECK(trained<M>(2, gpipe::checkpoint::ExceptLast{}) == expected);
    CHECK(trained<M>(4, gpipe::checkpoint::Never{}) == expected);
    using gpipe::schedule::GPipeAscending, gpipe::schedule::ZeroBubbleH1;
    auto const ascending = trained<M>(1, gpipe::checkpoint::Never{}, GPipeAscending{});
    CHECK(trained<M>(1, gpipe::checkpoint::Never{}, ZeroBubbleH1{}) == ascending);
    CHECK(trained<M>(2, gpipe::checkpoint::Always{}, ZeroBubbleH1{}) == ascending);
    auto const plain = trained<Model<float, Precision::fp32>>(1, gpipe::checkpoint::Never{});
    CHECK(plain != expected);
    for (std::size_t step = 0; step < 4; ++step)
        CHECK(expected[step] == doctest::Approx(plain[step]).epsilon(1e-2));
    CHECK(plain[3] < plain[0]);
}
