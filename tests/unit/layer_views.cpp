// Views: row-major strides, const conversions, and groups of several tensors.
#include <gpipe/layer/batch.hpp>
#include <gpipe/layer/view.hpp>
#include <gpipe/runtime/loss_thunk.hpp>

#include <doctest/doctest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <stdexcept>
#include <tuple>
#include <type_traits>
#include <vector>

using gpipe::Batch;
using gpipe::BatchView;
using gpipe::GroupAddress;
using gpipe::None;
using gpipe::Tensor;
using gpipe::Tensors;
using gpipe::TensorView;
using gpipe::detail::Access;

TEST_CASE("a TensorView is row-major: the last index is the fastest") {
    std::array<int, 24> data;
    std::iota(data.begin(), data.end(), 0);
    TensorView<int, 2, 3, 4> const view(data.data());
    int expected = 0;
    for (int i = 0; i < 2; ++i)
        for (int j = 0; j < 3; ++j)
            for (int k = 0; k < 4; ++k) {
                CHECK(view(i, j, k) == expected);
                CHECK(view[static_cast<std::size_t>(expected)] == expected);
                ++expected;
            }
    CHECK(view.size() == 24);
    CHECK(view.rank == 3);
    CHECK(view.extent<0>() == 2);
    CHECK(view.extent<2>() == 4);
    CHECK(std::accumulate(view.begin(), view.end(), 0) == 276);
    view(1, 2, 3) = -1;
    CHECK(data[23] == -1);
    TensorView<int> const scalar(&data[5]);
    CHECK(scalar.size() == 1);
    CHECK(scalar() == 5);
}

TEST_CASE("a BatchView puts samples one behind the other") {
    std::vector<float> data(5 * 6);
    std::iota(data.begin(), data.end(), 0.0f);
    BatchView<float, 2, 3> const view(data.data(), 5);
    CHECK(view.samples() == 5);
    CHECK(view.size() == 30);
    float expected = 0;
    for (std::size_t s = 0; s < 5; ++s)
        for (std::size_t i = 0; i < 2; ++i)
            for (std::size_t j = 0; j < 3; ++j) {
                CHECK(view(s, i, j) == expected);
                CHECK(view[s](i, j) == expected);
                ++expected;
            }
    CHECK(view.end() - view.begin() == 30);
}

TEST_CASE("a view of elements becomes one of const elements, never the other way") {
    using Write = BatchView<float, 2>;
    using Read = BatchView<float const, 2>;
    static_assert(std::is_convertible_v<Write, Read> && !std::is_convertible_v<Read, Write>);
    static_assert(!std::is_convertible_v<BatchView<float, 3>, Read>);
    static_assert(!std::is_convertible_v<BatchView<double, 2>, Read>);
    static_assert(std::is_convertible_v<TensorView<int, 2>, TensorView<int const, 2>>);
    static_assert(!std::is_convertible_v<TensorView<int const, 2>, TensorView<int, 2>>);
    static_assert(!std::is_assignable_v<decltype(std::declval<Read>()(0, 0)), float>);
    static_assert(std::is_trivially_copyable_v<Read>);
    float data[4] = {1, 2, 3, 4};
    Read const view = Write(data, 2);
    CHECK(view.data() == data);
    CHECK(view.samples() == 2);
    CHECK(view(1, 1) == 4);
}

TEST_CASE("one tensor comes as a view, several together in slots for the capacity, none as None") {
    alignas(256) std::byte memory[4096];
    GroupAddress const at{memory, nullptr};
    auto const one = gpipe::batch_views<Tensor<float, 3>, Access::read>(at, 2, 5);
    static_assert(std::is_same_v<decltype(one), BatchView<float const, 3> const>);
    CHECK(one.samples() == 2);
    static_assert(std::is_same_v<
                  decltype(gpipe::batch_views<Tensors<Tensor<float, 3>>, Access::read>(at, 2, 5)),
                  BatchView<float const, 3>>);
    static_assert(gpipe::is_none<decltype(gpipe::batch_views<Tensors<>, Access::write>(at, 1, 1))>);
    static_assert(gpipe::is_none<decltype(gpipe::batch_views<void, Access::write>(at, 1, 1))>);

    using Three = Tensors<Tensor<float, 60>, Tensor<std::int32_t>, Tensor<double, 2, 2>>;
    auto const [a, b, c] = gpipe::batch_views<Three, Access::write>(at, 3, 5);
    // 60 floats for 5 samples are 1,200 bytes, that is 5 slots; 5 integers are 1.
    CHECK(reinterpret_cast<std::byte*>(a.data()) == memory);
    CHECK(reinterpret_cast<std::byte*>(b.data()) == memory + 5 * 256);
    CHECK(reinterpret_cast<std::byte*>(c.data()) == memory + 6 * 256);
    CHECK(a.samples() == 3);

    auto const [da, db, dc] = gpipe::gradient_views<Three, Access::write>(memory, 3, 5);
    static_assert(gpipe::is_none<decltype(db)>); // integers carry none, and take no room
    CHECK(reinterpret_cast<std::byte*>(da.data()) == memory);
    CHECK(reinterpret_cast<std::byte*>(dc.data()) == memory + 5 * 256);

    auto const [w, bias] =
        gpipe::tensor_views<Tensors<Tensor<float, 10, 10>, Tensor<float, 10>>, Access::read>(
            memory);
    static_assert(std::is_same_v<decltype(w), TensorView<float const, 10, 10> const>);
    CHECK(reinterpret_cast<std::byte const*>(bias.data()) == memory + 512);
}

namespace {

template <std::size_t> using OneInt = Tensor<int>;

// Of a group of integer tensors, each in a slot of its own: tensor i starts at slot i.
template <std::size_t... Is> void check_group(std::index_sequence<Is...>, std::byte* memory) {
    using Group = Tensors<OneInt<Is>...>;
    auto const at = [&](auto const* data) {
        return (reinterpret_cast<std::byte const*>(data) - memory) / 256;
    };
    auto const batch = gpipe::batch_views<Group, Access::write>({memory, nullptr}, 2, 3);
    CHECK(((at(gpipe::get<Is>(batch).data()) == Is) && ...));
    CHECK(((gpipe::get<Is>(batch).samples() == 2) && ...));
    auto const whole = gpipe::tensor_views<Group, Access::read>(memory);
    CHECK(((at(gpipe::get<Is>(whole).data()) == Is) && ...));
}

} // namespace

TEST_CASE("groups of two to ten tensors are taken apart alike") {
    alignas(256) std::byte memory[10 * 256];
    check_group(std::make_index_sequence<2>{}, memory);
    check_group(std::make_index_sequence<3>{}, memory);
    check_group(std::make_index_sequence<4>{}, memory);
    check_group(std::make_index_sequence<5>{}, memory);
    check_group(std::make_index_sequence<6>{}, memory);
    check_group(std::make_index_sequence<7>{}, memory);
    check_group(std::make_index_sequence<8>{}, memory);
    check_group(std::make_index_sequence<9>{}, memory);
    check_group(std::make_index_sequence<10>{}, memory);

    using Eight = Tensors<Tensor<int>, Tensor<int>, Tensor<int>, Tensor<int>, Tensor<int>,
                          Tensor<int>, Tensor<int>, Tensor<float>>;
    auto const [a, b, c, d, e, f, g, h] = gpipe::tensor_views<Eight, Access::write>(memory);
    static_assert(std::is_same_v<decltype(h), TensorView<float> const>);
    CHECK(reinterpret_cast<std::byte*>(h.data()) - reinterpret_cast<std::byte*>(a.data()) ==
          7 * 256);
}

TEST_CASE("a table of addresses says where each tensor of the caller's lies") {
    std::vector<float> x(8);
    std::vector<int> t(4);
    std::byte* const table[] = {reinterpret_cast<std::byte*>(x.data()),
                                reinterpret_cast<std::byte*>(t.data())};
    auto const [a, b] = gpipe::batch_views<Tensors<Tensor<float, 2>, Tensor<int>>, Access::read>(
        {nullptr, table}, 4, 9);
    CHECK(a.data() == x.data());
    CHECK(b.data() == t.data());
}

TEST_CASE("a Batch counts its samples, and names what does not fit") {
    std::vector<float> x(12);
    std::array<int, 4> t{};
    Batch<Tensors<Tensor<float, 3>, Tensor<int>>> const batch(x, t);
    CHECK(batch.samples("inputs") == 4);
    auto const tensors = batch.tensors();
    CHECK(tensors[0].data == reinterpret_cast<std::byte*>(x.data()));
    CHECK(tensors[0].sample_bytes == 12);
    CHECK(tensors[1].data == reinterpret_cast<std::byte*>(t.data()));
    CHECK(tensors[1].sample_bytes == 4);
    x.resize(9);
    Batch<Tensors<Tensor<float, 3>, Tensor<int>>> const uneven(x, t);
    CHECK_THROWS_WITH_AS(uneven.samples("inputs"),
                         "gpipe: the tensors of the inputs hold 3 and 4 samples",
                         std::invalid_argument);
    x.resize(11);
    Batch<Tensor<float, 3>> const broken(x);
    CHECK_THROWS_WITH_AS(
        broken.samples("targets"),
        "gpipe: tensor 0 of the targets has 11 elements, no multiple of the 3 of a sample",
        std::invalid_argument);
    Batch<Tensor<float, 3>> const nowhere(std::span<float>(static_cast<float*>(nullptr), 6));
    CHECK_THROWS_WITH_AS(nowhere.samples("inputs"),
                         "gpipe: tensor 0 of the inputs has 6 elements at a null pointer",
                         std::invalid_argument);
}

TEST_CASE("a result has the metrics of its loss, and of none says so") {
    gpipe::StepResult<2> const two{.loss = 1, .weight = 1, .metric = {2, 3}};
    auto const [first, second] = two.metric;
    CHECK(first + second == 5);
    gpipe::StepResult<0> const none{.loss = 1, .weight = 1};
    CHECK(none.metric.empty());
    CHECK_THROWS_WITH_AS(static_cast<void>(none.metric[0]),
                         "gpipe: this loss has no metrics: LossValue<n> has n, LossValue<> none",
                         std::out_of_range);
}

TEST_CASE("a Batch takes ranges of its element only, and to be written none that are const") {
    using Floats = Batch<Tensor<float, 2>>;
    using Written = Batch<Tensor<float, 2>, true>;
    static_assert(Floats::takes<std::vector<float> const&>);
    static_assert(Floats::takes<std::span<float const>>);
    static_assert(!Floats::takes<std::vector<double>&>);
    static_assert(!Floats::takes<std::vector<int>&>);
    static_assert(!Floats::takes<std::vector<float>&, std::vector<float>&>);
    static_assert(Written::takes<std::vector<float>&>);
    static_assert(!Written::takes<std::vector<float> const&>);
    CHECK(Floats::count == 1);
}

TEST_CASE("one view of several is a value: it outlives the several") {
    alignas(256) std::array<std::byte, 512> memory{};
    using Group = Tensors<Tensor<int, 3>, Tensor<float, 2>>;
    using gpipe::tensor_views;
    static_assert(!std::is_reference_v<decltype(gpipe::get<0>(
                      tensor_views<Group, Access::write>(memory.data())))>);
    for (int& value : gpipe::get<0>(tensor_views<Group, Access::write>(memory.data()))) value = 7;
    auto const [whole, real] = tensor_views<Group, Access::read>(memory.data());
    CHECK(std::accumulate(whole.begin(), whole.end(), 0) == 21);
    CHECK(real[0] == 0);
}

TEST_CASE("one view is taken apart as several are") {
    float numbers[] = {1, 2, 3, 4, 5, 6};
    gpipe::TensorView<float, 2, 3> const tensor{numbers};
    auto const [w] = tensor;
    static_assert(std::is_same_v<decltype(w), gpipe::TensorView<float, 2, 3> const>);
    CHECK(w.data() == numbers);
    w(1, 2) = 7;
    CHECK(numbers[5] == 7);
    CHECK(get<0>(tensor).data() == numbers);
    gpipe::BatchView<float const, 3> const batch{numbers, 2};
    auto [x] = batch;
    static_assert(std::is_same_v<decltype(x), gpipe::BatchView<float const, 3>>);
    CHECK(x.samples() == 2);
    CHECK(gpipe::get<0>(batch).data() == numbers);
    CHECK(x(1, 2) == 7);
    auto const [there] = gpipe::OptionalView<float, 3>{numbers, 2};
    auto const [absent] = gpipe::OptionalView<float, 3>{nullptr, 2};
    CHECK(there);
    CHECK_FALSE(absent);
}
