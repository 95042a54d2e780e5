#include <gpt/attention.hpp>
#include <gpt/attention_strips.hpp>
#include <gpt/cross_entropy.hpp>
#include <gpt/embedding.hpp>
#include <gpt/head.hpp>
#include <gpt/host_operations.hpp>
#include <gpt/mlp.hpp>
#include <gpt/model.hpp>
#include <gpt/scatter.hpp>

#include <gpipe/chain/chain.hpp>
#include <gpipe/gpipe.hpp>
#include <gpipe/schedule/schedule_catalogue.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <new>
#include <random>
#include <type_traits>
#include <vector>

namespace {

using namespace gpipe;

// Room as an arena gives it: aligned, and poisoned so that reading it before writing shows.
class Room {
  public:
    explicit Room(std::size_t bytes)
        : size_(bytes + slot_alignment),
          data_(static_cast<std::byte*>(::operator new (size_, std::align_val_t{slot_alignment}))) {
        poison();
    }
    Room(Room const&) = delete;
    ~Room() { ::operator delete (data_, std::align_val_t{slot_alignment}); }
    std::byte* data() { return data_; }
    void clear() { std::memset(data_, 0, size_); }
    void poison() { std::memset(data_, 0xFF, size_); } // every float and double is NaN

  private:
    std::size_t size_;
    std::byte* data_;
};

template <class Group> std::size_t slots(std::size_t capacity) {
    return detail::sizes_of<Group>().slots(capacity);
}

// One layer with everything that an engine would give it. There is room for one sample more than
// are used.
template <class L> struct Driven {
    using Traits = LayerTraits<L>;
    using Element = typename L::Output::Element;
    using InputElement = typename L::Input::Element;

    Driven(L const& which, std::size_t samples, std::size_t layers = 10)
        : layer(which), parameters(slots<typename Traits::Parameters>(1)),
          gradients(slots<typename Traits::Parameters>(1)),
          parameter_table(sizes.addresses(parameters.data())),
          gradient_table(sizes.addresses(gradients.data())),
          saved(slots<typename Traits::Saved>(samples + 1)),
          deferred(slots<typename Traits::Deferred>(samples + 1)),
          scratch(slots<typename Traits::Scratch>(samples + 1)), x(samples * L::Input::size),
          y(samples * L::Output::size), dy(y.size()), dx(x.size()) {
        parameters.clear();
        detail::initialize_thunk<L>(&layer, parameters.data(), nullptr, 7, 3, layers);
        call.layer = &layer;
        call.parameters = parameter_table.data();
        call.gradients = gradient_table.data();
        call.index = 3;
        call.saving = true;
        frame.samples = samples;
        frame.first_sample = 2;
        shared.capacity = samples + 1;
        shared.seed = 5;
        shared.step = 11;
        shared.stream = &stream;
        frame.shared = &shared;
        frame.phase = Phase::forward;
        frame.set(Region::saved, saved.data());
        frame.set(Region::scratch, scratch.data());
        frame.set(Region::deferred, deferred.data());
        point();
    }

    void forward() {
        std::fill(y.begin(), y.end(), std::numeric_limits<Element>::quiet_NaN());
        point();
        functions.forward(call, frame);
    }
    void backward(bool anew = true) {
        if (anew) gradients.clear();
        frame.phase = Phase::backward;
        point();
        functions.backward(call, frame);
        frame.phase = Phase::forward;
    }
    // Where the tensors are now.
    void point() {
        frame.set(Region::input, bytes(x));
        frame.set(Region::output, bytes(y));
        frame.set(Region::output_gradient, bytes(dy));
        frame.set(Region::input_gradient, bytes(dx));
    }
    // The halves of a backward. The first leaves nothing for the second but what it defers.
    void input_gradient() {
        point();
        frame.phase = Phase::input_gradient;
        if (auto const half = std::is_floating_point_v<InputElement>
                                  ? functions.input_gradient
                                  : functions.lowest_input_gradient)
            half(call, frame);
        frame.phase = Phase::forward;
        scratch.poison();
    }
    void weight_gradient() {
        frame.phase = Phase::weight_gradient;
        point();
        functions.weight_gradient(call, frame);
        frame.phase = Phase::forward;
    }
    // The whole layer as one number, whose gradient by y is dy.
    double value() {
        forward();
        double sum = 0;
        for (std::size_t i = 0; i < y.size(); ++i)
            sum += static_cast<double>(y[i]) * static_cast<double>(dy[i]);
        return sum;
    }

    template <class T> static std::byte* bytes(std::vector<T>& v) {
        return reinterpret_cast<std::byte*>(v.data());
    }

    L layer;
    static constexpr gpipe::GroupSizes sizes =
        gpipe::detail::sizes_of<typename Traits::Parameters>();
    Room parameters, gradients;
    gpipe::Array<std::byte*> parameter_table, gradient_table;
    Room saved, deferred, scratch;
    std::vector<InputElement> x;
    std::vector<Element> y, dy;
    std::vector<InputElement> dx;
    Call call;
    StepFrame shared;
    gpipe::OwnFrame frame;
    AnyStream stream;
    LayerFunctions functions = detail::layer_functions<L, AnyStream>();
};

template <class T> void fill_normal(std::vector<T>& values, unsigned seed, double deviation = 1) {
    std::mt19937 random{seed};
    std::normal_distribution<double> normal{0, deviation};
    for (T& value : values) value = static_cast<T>(normal(random));
}

// Central differences of driven.value() by `value`.
template <class L, class T> double slope(Driven<L>& driven, T& value) {
    T const kept = value;
    double const step = 1e-5;
    value = kept + step;
    double const above = driven.value();
    value = kept - step;
    double const below = driven.value();
    value = kept;
    return (above - below) / (2 * step);
}

// The gradients of input and parameters against differences, at up to 60 places of each tensor.
template <class L> void check_gradients(Driven<L>& driven) {
    using Parameters = typename LayerTraits<L>::Parameters;
    fill_normal(driven.dy, 2);
    driven.forward();
    driven.backward();
    auto const close = [](double a, double b) {
        return std::abs(a - b) <= 1e-6 * (1 + std::abs(a) + std::abs(b));
    };
    if constexpr (std::is_floating_point_v<typename Driven<L>::InputElement>) {
        std::size_t const stride = driven.x.size() / 60 + 1;
        for (std::size_t i = 0; i < driven.x.size(); i += stride) {
            CAPTURE(i);
            double const expected = slope(driven, driven.x[i]);
            CAPTURE(expected);
            CHECK(close(driven.dx[i], expected));
        }
    }
    auto const sizes = detail::sizes_of<Parameters>();
    std::size_t offset = 0;
    for (std::size_t t = 0; t < sizes.count; ++t) {
        auto* const values = reinterpret_cast<double*>(driven.parameters.data() + offset);
        auto const* const found = reinterpret_cast<double*>(driven.gradients.data() + offset);
        std::size_t const n = sizes.bytes[t] / sizeof(double);
        double most = 0;
        for (std::size_t i = 0; i < n; i += n / 60 + 1) {
            CAPTURE(t);
            CAPTURE(i);
            double const expected = slope(driven, values[i]);
            CAPTURE(expected);
            CHECK(close(found[i], expected));
            most = std::max(most, std::abs(expected));
        }
        CHECK(most > 1e-4); // else nothing was checked
        offset += slot_bytes(sizes.bytes[t]);
    }
}

// Parameters far from where they start, so that no term is small.
template <class L> void stir_parameters(Driven<L>& driven) {
    auto const sizes = detail::sizes_of<typename LayerTraits<L>::Parameters>();
    std::mt19937 random{3};
    std::normal_distribution<double> normal{0, 0.3};
    std::size_t offset = 0;
    for (std::size_t t = 0; t < sizes.count; ++t) {
        using T = typename Driven<L>::Element;
        auto* const values = reinterpret_cast<T*>(driven.parameters.data() + offset);
        for (std::size_t i = 0; i < sizes.bytes[t] / sizeof(T); ++i)
            values[i] += static_cast<T>(normal(random));
        offset += slot_bytes(sizes.bytes[t]);
    }
}

template <class L> void check_layer(L const& layer, std::size_t samples) {
    CAPTURE(samples);
    Driven<L> driven{layer, samples};
    stir_parameters(driven);
    fill_normal(driven.x, 1);
    check_gradients(driven);
}

// Tokens of a vocabulary of 5.
template <class L> void fill_tokens(Driven<L>& driven) {
    for (std::size_t i = 0; i < driven.x.size(); ++i)
        driven.x[i] = static_cast<std::int32_t>(i * 2 % 5);
}

TEST_CASE("the embedding's gradients are those of differences") {
    using L = gpt::Embedding<double, 5, 4, 3>;
    Driven<L> driven{L{}, 3};
    fill_tokens(driven);
    check_gradients(driven);
}

TEST_CASE("attention's gradients are those of differences") {
    for (std::size_t const samples : {1u, 3u})
        for (float const rate : {0.0f, 0.3f}) {
            CAPTURE(rate);
            check_layer(gpt::Attention<double, 5, 16, 2>{{rate}}, samples);
        }
    check_layer(gpt::Attention<double, 1, 8, 1>{}, 2);
}

TEST_CASE("attention's gradients are those of differences where a context takes several strips") {
    check_layer(gpt::Attention<double, 70, 8, 2>{}, 1);
}

// What a GPU does, by loops: attention `strip` rows of all heads at once, and the rows of the
// embedding.
template <std::size_t strip> struct StripOperations : gpt::HostOperations {
    template <class Context> static StripOperations on(Context const&) { return {}; }
    template <class T, std::size_t context, std::size_t heads>
    static constexpr std::size_t score_elements = gpt::score_elements_of(heads, strip, context);

    template <class T>
    void multiply_each(gpt::Products products, gpt::Extents extents, gpt::Factor<T> a,
                       gpt::Factor<T> b, T* c, std::size_t stride, bool add = false,
                       T scale = T{1}) const {
        for (std::size_t sample = 0; sample < products.samples; ++sample)
            for (std::size_t head = 0; head < products.heads; ++head) {
                auto const at = [=](gpt::Steps steps) {
                    return sample * steps.sample + head * steps.head;
                };
                gpt::multiply<T>(extents, {a.data + at(products.a), a.stride, a.transposed},
                                 {b.data + at(products.b), b.stride, b.transposed},
                                 c + at(products.c), stride, add, scale);
            }
    }
    template <std::size_t context, std::size_t width, std::size_t heads, class T>
    void attend(std::size_t samples, T const* qkv, T* out, T* log_sums, T* scores) const {
        gpt::AttentionStrips<T, context, width, heads, strip>::forward(*this, samples, qkv, out,
                                                                       log_sums, scores);
    }
    template <std::size_t context, std::size_t width, std::size_t heads, class T>
    void attend_backward(std::size_t samples, T const* qkv, T const* out, T const* log_sums,
                         T const* dout, T* dqkv, T* scores) const {
        gpt::AttentionStrips<T, context, width, heads, strip>::backward(
            *this, samples, qkv, out, log_sums, dout, dqkv, scores);
    }
    template <class T>
    void scatter_add(std::size_t rows, std::size_t vocabulary, std::size_t width,
                     std::int32_t const* indices, T const* from, T* to) const {
        for_each_row(rows, width, gpt::ScatterRow<T>{rows, vocabulary, width, indices, from, to});
    }
};

TEST_CASE("attention's gradients are those of differences with scores in memory") {
    for (std::size_t const samples : {1u, 3u}) {
        check_layer(gpt::Attention<double, 5, 16, 4, StripOperations<5>>{}, samples);
        check_layer(gpt::Attention<double, 5, 16, 4, StripOperations<2>>{{0.3f}}, samples);
        check_layer(gpt::Attention<double, 5, 16, 4, StripOperations<1>>{}, samples);
    }
}

TEST_CASE("attention with scores in memory gives what it gives head by head") {
    auto const run = []<class L>(L const& layer) {
        Driven<L> driven{layer, 2};
        stir_parameters(driven);
        fill_normal(driven.x, 1);
        fill_normal(driven.dy, 2);
        driven.forward();
        driven.backward();
        driven.y.insert(driven.y.end(), driven.dx.begin(), driven.dx.end());
        return driven.y;
    };
    auto const heads = run(gpt::Attention<double, 70, 24, 6>{});
    auto const together = run(gpt::Attention<double, 70, 24, 6, StripOperations<16>>{});
    REQUIRE(heads.size() == together.size());
    for (std::size_t i = 0; i < heads.size(); ++i)
        CHECK(together[i] == doctest::Approx(heads[i]).epsilon(1e-9));
}

TEST_CASE("what is no number among queries is none in what their attention puts out") {
    Driven<gpt::Attention<float, 5, 16, 2>> driven{{}, 1};
    stir_parameters(driven);
    fill_normal(driven.x, 1);
    driven.x[2 * 16] = -std::numeric_limits<float>::quiet_NaN(); // of the third token
    driven.forward();
    for (std::size_t i = 2 * 16; i < driven.y.size(); ++i) CHECK(std::isnan(driven.y[i]));
}

TEST_CASE("rows scattered by teams have the bits of a loop") {
    std::size_t const rows = 600; // more than a team looks at together
    std::size_t const width = 3;
    std::vector<std::int32_t> indices(rows);
    for (std::size_t r = 0; r < rows; ++r) indices[r] = static_cast<std::int32_t>(r * r % 7);
    indices[5] = 9; // none
    indices[6] = -1;
    std::vector<float> from(rows * width);
    std::vector<float> by_teams(9 * width);
    fill_normal(from, 1);
    fill_normal(by_teams, 2);
    auto by_loop = by_teams;
    gpt::HostOperations{}.scatter_add(rows, 9, width, indices.data(), from.data(), by_loop.data());
    auto const before = by_teams;
    // In any order of the rows.
    gpt::ScatterRow<float> const scatter{rows,           9,           width,
                                         indices.data(), from.data(), by_teams.data()};
    for (std::size_t r = rows; r-- > 0;) scatter(gpt::HostTeam{}, r);
    CHECK(by_teams == by_loop);
    CHECK(by_teams != before);
    for (std::size_t i = 8 * width; i < 9 * width; ++i) CHECK(by_teams[i] == before[i]);
}

TEST_CASE("columns are summed, and added or written, however many there are") {
    std::size_t const rows = 5;
    for (std::size_t const columns : {1u, 3u, 256u, 257u, 600u}) {
        CAPTURE(columns);
        std::vector<double> matrix(rows * columns);
        fill_normal(matrix, 1);
        std::vector<double> added(columns, 10), written(columns, 10);
        gpt::HostOperations const on;
        on.sum_columns(rows, columns, added.data(), true, gpt::Itself{}, matrix.data());
        on.sum_columns(rows, columns, written.data(), false, gpt::Itself{}, matrix.data());
        for (std::size_t i = 0; i < columns; ++i) {
            double sum = 0;
            for (std::size_t r = 0; r < rows; ++r) sum += matrix[r * columns + i];
            CHECK(written[i] == doctest::Approx(sum));
            CHECK(added[i] == doctest::Approx(10 + sum));
        }
    }
}

// As GPUs see them, where nothing can be thrown.
TEST_CASE("a token or target that is none makes its row and its loss no number") {
    std::vector<std::int32_t> const tokens{1, 5, -1};
    std::vector<double> const table(5 * 2, 1), positions(3 * 2, 2);
    std::vector<double> rows(3 * 2);
    gpt::detail::Gather<5, 3, 2, double> const gather{tokens.data(), table.data(), positions.data(),
                                                      rows.data()};
    for (std::size_t r = 0; r < 3; ++r) gather(gpt::HostTeam{}, r);
    for (std::size_t i = 0; i < 6; ++i) CHECK(std::isnan(rows[i]) == (i >= 2));

    std::vector<double> const logits(3 * 4, 0.5);
    std::vector<std::int32_t> const targets{1, 3, -1};
    std::vector<double> gradient(3 * 4, 7), terms(9, 7);
    gpt::detail::CrossEntropyRow<4, double> const entropy{3, logits.data(), targets.data(),
                                                          gradient.data(), terms.data()};
    for (std::size_t r = 0; r < 3; ++r) entropy(gpt::HostTeam{}, r);
    CHECK(terms[0] == doctest::Approx(std::log(3.0)));
    CHECK(std::isnan(terms[3]));
    CHECK(terms[6] == 0);
    CHECK(terms[1] + terms[4] + terms[7] == 1);
    for (std::size_t i = 4; i < 12; ++i) CHECK(gradient[i] == 0);
}

TEST_CASE("GPT-2's shape has its size") {
    // Embedding, which is the head, too, positions, 12 blocks, and the head's norm.
    std::size_t const block = 4 * 768 * 768 + 8 * 768 * 768 + 6 * 768;
    CHECK(gpt::Gpt2On<gpt::HostOperations>::Net::parameters() ==
          50304 * 768 + 1024 * 768 + 12 * block + 2 * 768);
}

TEST_CASE("the perceptron's gradients are those of differences") {
    for (std::size_t const samples : {1u, 3u})
        for (float const rate : {0.0f, 0.3f}) {
            CAPTURE(rate);
            check_layer(gpt::Mlp<double, 3, 8>{{rate}}, samples);
        }
}

TEST_CASE("the head's gradients are those of differences, clipped or not") {
    check_layer(gpt::Head<double, 3, 8, 12>{}, 3);
    check_layer(gpt::Head<double, 3, 8, 12>{.classes = 7}, 3);
    check_layer(gpt::Head<double, 3, 8, 12>{.classes = 12, .bound = 0.5}, 3);
}

// The halves of two micro-batches, the second halves when both first ones are done, against whole
// backwards: all gradients, by their bits.
template <class L> void check_halves(L const& layer) {
    Driven<L> first{layer, 3};
    Driven<L> second{layer, 2};
    unsigned seed = 1;
    for (Driven<L>* driven : {&first, &second}) {
        stir_parameters(*driven);
        if constexpr (std::is_floating_point_v<typename Driven<L>::InputElement>)
            fill_normal(driven->x, ++seed);
        else
            fill_tokens(*driven);
        fill_normal(driven->dy, ++seed);
        driven->forward();
    }
    std::size_t const bytes = slots<typename L::Parameters>(1);
    auto const gradients = [&](Driven<L> const& driven) {
        std::byte const* const from = *driven.call.gradients;
        return std::vector<std::byte>(from, from + bytes);
    };
    first.backward();
    second.call.gradients = first.call.gradients;
    second.backward(false);
    auto const whole = gradients(first);
    auto const dx_first = first.dx;
    auto const dx_second = second.dx;

    first.gradients.clear();
    for (Driven<L>* driven : {&first, &second}) {
        driven->deferred.poison();
        std::fill(driven->dx.begin(), driven->dx.end(), 99);
    }
    auto const none = gradients(first);
    first.input_gradient();
    second.input_gradient();
    CHECK(gradients(first) == none);
    if constexpr (std::is_floating_point_v<typename Driven<L>::InputElement>) {
        CHECK(first.dx == dx_first);
        CHECK(second.dx == dx_second);
        CHECK(dx_first.front() != 99);
    }
    first.weight_gradient();
    CHECK(gradients(first) != whole);
    second.weight_gradient();
    CHECK(gradients(first) == whole);
}

TEST_CASE_TEMPLATE("the halves of a backward have its bits, however late the second one runs", T,
                   float, double) {
    check_halves(gpt::Embedding<T, 5, 4, 16>{});
    check_halves(gpt::Head<T, 6, 32, 40>{.classes = 33, .bound = T(0.5)});
    for (float const rate : {0.0f, 0.3f}) {
        CAPTURE(rate);
        check_halves(gpt::Attention<T, 70, 32, 2>{{rate}});
        check_halves(gpt::Attention<T, 70, 32, 2, StripOperations<32>>{{rate}});
        check_halves(gpt::Mlp<T, 6, 32>{{rate}});
    }
}

// Counts what layers multiply, but for the heads of attention.
struct CountingOperations : gpt::HostOperations {
    static inline std::size_t multiplied = 0;
    template <class Context> static CountingOperations on(Context const&) { return {}; }

    template <class T, class... Rest>
    void multiply(gpt::Extents extents, gpt::Factor<T> a, gpt::Factor<T> b, T* c,
                  Rest... rest) const {
        multiplied += extents.rows * extents.columns * extents.inner;
        gpt::HostOperations::multiply<T>(extents, a, b, c, rest...);
    }
};

// As schedules with halves take for granted, and what a whole backward takes.
TEST_CASE("each half of a backward multiplies as much as the forward") {
    auto const check = [](auto const& layer) {
        Driven<std::remove_cvref_t<decltype(layer)>> driven{layer, 2};
        fill_normal(driven.x, 1);
        fill_normal(driven.dy, 2);
        auto const multiplied = [](auto run) {
            CountingOperations::multiplied = 0;
            run();
            return CountingOperations::multiplied;
        };
        std::size_t const forward = multiplied([&] { driven.forward(); });
        CHECK(forward > 0);
        CHECK(multiplied([&] { driven.input_gradient(); }) == forward);
        CHECK(multiplied([&] { driven.weight_gradient(); }) == forward);
        CHECK(multiplied([&] { driven.backward(); }) == 2 * forward);
    };
    check(gpt::Attention<double, 5, 16, 2, CountingOperations>{});
    check(gpt::Mlp<double, 3, 8, CountingOperations>{});
    check(gpt::Head<double, 3, 8, 12, CountingOperations>{.classes = 7});
}

TEST_CASE("a logit beyond the bound becomes the bound and passes no gradient on") {
    using L = gpt::Head<double, 3, 8, 12>;
    auto const driven_with = [](double bound) {
        Driven<L> driven{L{.classes = 10, .bound = bound}, 2};
        stir_parameters(driven);
        fill_normal(driven.x, 1);
        fill_normal(driven.dy, 2);
        driven.forward();
        return driven.y;
    };
    auto const free = driven_with(1e9);
    auto const held = driven_with(0.5);
    std::size_t clipped = 0;
    for (std::size_t i = 0; i < free.size(); ++i) {
        if (i % 12 >= 10) {
            CHECK(held[i] == -0.5); // no class
            continue;
        }
        CHECK(held[i] == std::clamp(free[i], -0.5, 0.5));
        clipped += std::abs(free[i]) > 0.5;
    }
    CHECK(clipped > 5);

    // With gradients at clipped logits only, nothing is left.
    Driven<L> driven{L{.classes = 10, .bound = 0.5}, 2};
    stir_parameters(driven);
    fill_normal(driven.x, 1);
    driven.forward();
    for (std::size_t i = 0; i < driven.y.size(); ++i)
        driven.dy[i] = std::abs(driven.y[i]) < 0.5 ? 0 : 1;
    driven.backward();
    for (double const element : driven.dx) CHECK(element == 0);
}

TEST_CASE("a position sees itself and those before it, nothing after it") {
    using L = gpt::Attention<double, 70, 8, 2>;
    Driven<L> driven{L{}, 2};
    stir_parameters(driven);
    fill_normal(driven.x, 1);
    driven.forward();
    auto const before = driven.y;
    std::size_t const changed = 66; // of the second sample
    driven.x[(70 + changed) * 8] += 1;
    driven.forward();
    for (std::size_t t = 0; t < 140; ++t) {
        CAPTURE(t);
        bool const same = std::equal(before.begin() + static_cast<std::ptrdiff_t>(t * 8),
                                     before.begin() + static_cast<std::ptrdiff_t>(t * 8 + 8),
                                     driven.y.begin() + static_cast<std::ptrdiff_t>(t * 8));
        CHECK(same == (t < 70 + changed));
    }
}

TEST_CASE("float layers compute what double layers do") {
    auto const compare = []<class F, class D>(F const& layer, D const& exact) {
        Driven<F> single{layer, 3};
        Driven<D> reference{exact, 3};
        stir_parameters(single);
        stir_parameters(reference);
        fill_normal(single.x, 1);
        fill_normal(reference.x, 1);
        fill_normal(single.dy, 2);
        fill_normal(reference.dy, 2);
        single.forward();
        single.backward();
        reference.forward();
        reference.backward();
        auto const close = [](auto const& a, auto const& b) {
            for (std::size_t i = 0; i < a.size(); ++i)
                if (!(std::abs(static_cast<double>(a[i]) - b[i]) < 1e-3 * (1 + std::abs(b[i]))))
                    return false;
            return true;
        };
        CHECK(close(single.y, reference.y));
        CHECK(close(single.dx, reference.dx));
    };
    compare(gpt::Attention<float, 70, 32, 2>{{0.2f}}, gpt::Attention<double, 70, 32, 2>{{0.2f}});
    compare(gpt::Mlp<float, 6, 32>{{0.2f}}, gpt::Mlp<double, 6, 32>{{0.2f}});
    compare(gpt::Head<float, 6, 32, 40>{.classes = 33},
            gpt::Head<double, 6, 32, 40>{.classes = 33});
}

TEST_CASE(
    "dropout's mask is the same in a recomputation, and that of a sample in any micro-batch") {
    using L = gpt::Mlp<float, 4, 16>;
    Driven<L> whole{L{{0.5f}}, 4};
    fill_normal(whole.x, 1);
    whole.forward();
    auto const first = whole.y;
    whole.frame.phase = Phase::recompute;
    whole.forward();
    CHECK(whole.y == first);

    Driven<L> last{L{{0.5f}}, 1};
    last.x.assign(whole.x.end() - 4 * 16, whole.x.end());
    last.frame.first_sample = whole.frame.first_sample + 3;
    last.forward();
    for (std::size_t i = 0; i < last.y.size(); ++i)
        CHECK(last.y[i] == doctest::Approx(first[3 * 4 * 16 + i]).epsilon(1e-5));
}

TEST_CASE("dropout's mask is another one in every layer, step and row, and drops its share") {
    gpt::Dropout const dropout{0.25f};
    auto const row = [&](std::uint64_t step, std::uint32_t layer, std::size_t sample,
                         std::size_t index) {
        std::vector<float> factors(64);
        dropout.each<64, float>(gpt::HostTeam{}, SampleRandom{1, step, layer, 0}, sample, index,
                                [&](std::size_t i, float factor) { factors[i] = factor; });
        return factors;
    };
    auto const here = row(0, 0, 0, 0);
    CHECK(here == row(0, 0, 0, 0));
    CHECK(here != row(1, 0, 0, 0));
    CHECK(here != row(0, 1, 0, 0));
    CHECK(here != row(0, 0, 1, 0));
    CHECK(here != row(0, 0, 0, 1));
    double kept = 0;
    for (std::size_t i = 0; i < 1000; ++i)
        for (float const factor : row(0, 0, 0, i)) {
            CHECK((factor == 0.0f || factor == doctest::Approx(4.0 / 3)));
            kept += factor > 0;
        }
    CHECK(kept / 64000 == doctest::Approx(0.75).epsilon(0.01));
}

TEST_CASE("evaluation drops nothing") {
    using L = gpt::Attention<float, 4, 16, 2>;
    Driven<L> with{L{{0.5f}}, 2};
    Driven<L> without{L{}, 2};
    fill_normal(with.x, 1);
    without.x = with.x;
    with.frame.phase = Phase::evaluate;
    with.call.saving = false;
    with.forward();
    without.forward();
    CHECK(with.y == without.y);
}

TEST_CASE("a token outside the vocabulary is refused") {
    using L = gpt::Embedding<float, 5, 2, 3>;
    Driven<L> driven{L{}, 1};
    for (std::int32_t const token : {5, -1}) {
        driven.x = {0, token};
        CHECK_THROWS_AS(driven.forward(), std::out_of_range);
    }
}

TEST_CASE(
    "initialisation depends on seed and layer, and shrinks what is added to the residual stream") {
    using L = gpt::Mlp<float, 2, 32>;
    auto const deviation = [](std::size_t layers, std::size_t tensor) {
        Driven<L> driven{L{}, 1, layers};
        auto const sizes = detail::sizes_of<L::Parameters>();
        std::size_t offset = 0;
        for (std::size_t t = 0; t < tensor; ++t) offset += slot_bytes(sizes.bytes[t]);
        auto const* const values = reinterpret_cast<float*>(driven.parameters.data() + offset);
        std::size_t const n = sizes.bytes[tensor] / sizeof(float);
        double sum = 0;
        for (std::size_t i = 0; i < n; ++i) sum += static_cast<double>(values[i] * values[i]);
        return std::sqrt(sum / static_cast<double>(n));
    };
    CHECK(deviation(4, 2) == doctest::Approx(deviation(400, 2)));
    CHECK(deviation(4, 3) == doctest::Approx(10 * deviation(400, 3)));

    Driven<L> one{L{}, 1};
    Driven<L> same{L{}, 1};
    auto const bytes = slots<L::Parameters>(1);
    CHECK(std::memcmp(one.parameters.data(), same.parameters.data(), bytes) == 0);
    detail::initialize_thunk<L>(&one.layer, same.parameters.data(), nullptr, 7, 4, 10);
    CHECK(std::memcmp(one.parameters.data(), same.parameters.data(), bytes) != 0);
}

TEST_CASE("a model trains the same bits under every schedule, descending backwards apart") {
    using Model = gpt::Model<float, 6, 16, 2, 2>; // six layers
    using Train =
        Training<Model::Net, Cells<dynamic>, MicroBatches<dynamic>, gpipe::Loss<Model::Loss>,
                 Optimizer<AdamW>, schedule::Dynamic, checkpoint::Dynamic>;
    std::size_t const samples = 9;
    std::vector<std::int32_t> inputs(samples * Model::context), targets(inputs.size());
    for (std::size_t i = 0; i < inputs.size(); ++i) {
        inputs[i] = static_cast<std::int32_t>(i * i % 31);
        targets[i] = static_cast<std::int32_t>(i * 7 % 29);
    }
    // Losses, then all parameters.
    auto const run = [&](schedule::Dynamic schedule, std::size_t devices, bool recomputes) {
        Train train(Model::net(31, 0.25f), Model::loss(31), AdamW{.learning_rate = 0.01f},
                    {.samples = samples,
                     .seed = 3,
                     .cells = devices,
                     .micro_batches = 7,
                     .schedule = schedule,
                     .checkpointing = recomputes ? checkpoint::Dynamic(checkpoint::Always{})
                                                 : checkpoint::Dynamic(checkpoint::Never{})});
        std::vector<double> result;
        for (int step = 0; step < 3; ++step) result.push_back(train.step(inputs, targets));
        for (std::size_t layer = 0; layer < Model::Net::size; ++layer)
            for (std::size_t t = 0; t < train.tensors(layer); ++t)
                for (float const value : train.parameter<float>(layer, t)) result.push_back(value);
        return result;
    };
    auto const ascending = run(schedule::GPipeAscending{}, 1, false);
    auto const descending = run(schedule::GPipe{}, 1, false);
    CHECK(ascending != descending);
    for (std::size_t devices = 1; devices <= 3; ++devices)
        for (auto const& schedule : schedule::catalogue(2))
            for (bool const recomputes : {false, true}) {
                CAPTURE(devices);
                CAPTURE(schedule.name());
                CAPTURE(recomputes);
                bool const descends = schedule.name() == schedule::GPipe::name;
                CHECK((run(schedule, devices, recomputes) == (descends ? descending : ascending)));
            }
}

// Two positions, three samples; classes 0 to 3 of 6.
using Loss = gpt::CrossEntropy<double, 2, 6>;
struct LossRun {
    StepFrame shared;
    gpipe::OwnFrame frame;
    std::vector<double> y = std::vector<double>(36), dy = std::vector<double>(36);
    std::vector<std::int32_t> target{0, 3, -1, 2, 1, -1};
    std::vector<double> scratch = std::vector<double>(18);
    Loss loss{4};

    LossRun() {
        frame.samples = shared.capacity = 3;
        frame.shared = &shared;
        frame.phase = Phase::forward;
        fill_normal(y, 4, 2);
        fill_normal(dy, 5);
    }
    LossValue<1> operator()() {
        double numbers[3] = {-1, -1, -1};
        LossContext<Loss, AnyStream> context{frame, reinterpret_cast<std::byte*>(scratch.data()),
                                             numbers};
        loss(context, BatchView<double const, 2, 6>{y.data(), 3},
             BatchView<std::int32_t const, 2>{target.data(), 3},
             BatchView<double, 2, 6>{dy.data(), 3});
        return {numbers[0], numbers[1], {numbers[2]}};
    }
};

TEST_CASE("the loss is that of its definition, and its gradient that of differences") {
    LossRun run;
    LossValue<1> const value = run();
    double expected = 0;
    double right = 0;
    for (std::size_t row = 0; row < 6; ++row) {
        if (run.target[row] < 0) continue;
        double const* const y = run.y.data() + row * 6;
        double sum = 0;
        for (std::size_t i = 0; i < 4; ++i) sum += std::exp(y[i]);
        expected -= std::log(std::exp(y[run.target[row]]) / sum);
        right += std::max_element(y, y + 4) - y == run.target[row];
    }
    CHECK(value.sum == doctest::Approx(expected));
    CHECK(value.weight == 4);
    CHECK(value.metric[0] == right);

    auto const gradient = run.dy;
    for (std::size_t i = 0; i < run.y.size(); ++i) {
        CAPTURE(i);
        double const kept = run.y[i];
        run.y[i] = kept + 1e-6;
        double const above = run().sum;
        run.y[i] = kept - 1e-6;
        double const below = run().sum;
        run.y[i] = kept;
        CHECK(gradient[i] == doctest::Approx((above - below) / 2e-6).epsilon(1e-4));
    }
}

TEST_CASE("an ignored target weighs nothing and has no gradient") {
    LossRun run;
    run.target.assign(6, -1);
    LossValue<1> const value = run();
    CHECK(value.sum == 0);
    CHECK(value.weight == 0);
    CHECK(value.metric[0] == 0);
    for (double const element : run.dy) CHECK(element == 0);
}

TEST_CASE("in evaluation the loss leaves the gradient alone") {
    LossRun run;
    auto const before = run.dy;
    double const training = run().sum;
    run.dy = before;
    run.frame.phase = Phase::evaluate;
    CHECK(run().sum == training);
    CHECK(run.dy == before);
}

TEST_CASE("a target that is no class is refused") {
    for (std::int32_t const target : {4, -2}) {
        LossRun run;
        run.target[1] = target;
        CHECK_THROWS_AS(run(), std::out_of_range);
    }
}

} // namespace
