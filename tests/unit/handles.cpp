// Library handles of layers: who makes them, how often, where their workspaces lie, when they go.
#include <gpipe/chain/chain.hpp>
#include <gpipe/layer/loss.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

using gpipe::HandlePlan;
using gpipe::Handles;
using gpipe::HandleSet;

struct Stream {
    std::string name;
};

std::vector<std::string> events;
std::vector<std::byte*> workspaces;
int live = 0;
std::string refuses;

template <char letter> struct Library {
    std::string name;
    int uses = 0;

    Library(Stream const& stream, std::byte* at)
        : name(std::string{letter} + " on " + stream.name) {
        if (name == refuses) throw std::runtime_error(name);
        ++live;
        events.push_back("make " + name);
        workspaces.push_back(at);
    }
    Library(Library const&) = delete;
    ~Library() {
        --live;
        events.push_back("destroy " + name);
    }
};
using A = Library<'A'>;
struct B : Library<'B'> {
    static constexpr std::size_t workspace = 300;
    using Library::Library;
};
struct C : Library<'C'> {
    static constexpr std::size_t workspace = 256;
    using Library::Library;
};

struct Plain {
    using Input = gpipe::Tensor<float>;
    using Output = Input;
    void forward(auto&, auto, auto) const {}
    void backward(auto&, auto, auto, auto) const {}
};
struct WithB : Plain {
    using Handles = B; // the same as gpipe::Handles<B>
    void forward(auto& context, auto, auto) const { gpipe::handle<B>(context).uses += 1; }
    void backward(auto& context, auto, auto, auto) const { gpipe::handle<B>(context).uses += 10; }
};
struct WithAll : Plain {
    using Handles = gpipe::Handles<A, B, C>;
    void forward(auto& context, auto, auto) const {
        gpipe::handle<A>(context).uses += 1;
        gpipe::handle<B>(context).uses += 100;
    }
};
struct LossWithC {
    using Target = gpipe::Tensor<float>;
    using Handles = gpipe::Handles<C>;
};

template <class L> constexpr gpipe::LayerInfo info = gpipe::detail::layer_info<L>();
template <class L>
constexpr gpipe::LayerFunctions functions = gpipe::detail::layer_functions<L, Stream>();

constexpr std::size_t planned(bool loss) {
    HandlePlan plan;
    for (gpipe::HandleNeeds needs :
         {info<Plain>.handles, info<WithB>.handles, info<WithAll>.handles, info<WithB>.handles})
        plan.add(needs);
    if (loss) plan.add(gpipe::detail::handle_needs<LossWithC>());
    return plan.bytes();
}
static_assert(planned(false) == 512 + 256);
static_assert(planned(true) == planned(false));
static_assert(HandlePlan{}.bytes() == 0 && info<Plain>.handles.size() == 0);

// What a machine does for the layers Plain, WithB, WithAll, WithB of one device, and a loss.
void make(HandleSet& set, Stream const& stream, std::byte* at) {
    for (gpipe::HandleSpecs specs :
         {functions<Plain>.handles, functions<WithB>.handles, functions<WithAll>.handles,
          functions<WithB>.handles, gpipe::detail::handle_specs<LossWithC, Stream>()})
        set.add(specs, &stream, at);
}

struct Fresh {
    Fresh() {
        events.clear();
        workspaces.clear();
        refuses.clear();
    }
};

template <class H> H& in(HandleSet const& set) {
    return *static_cast<H*>(set.find(&gpipe::detail::type_mark<H>));
}

} // namespace

TEST_CASE_FIXTURE(Fresh, "each device has one handle of each type, destroyed in reverse order") {
    Stream const one{"one"}, two{"two"};
    alignas(gpipe::slot_alignment) std::byte first[planned(true)], second[planned(true)];
    {
        gpipe::Array<HandleSet> sets(2);
        make(sets[0], one, first);
        make(sets[1], two, second);
        CHECK(sets[0].size() == 3);
        CHECK(live == 6);
        CHECK(&in<A>(sets[0]) != &in<A>(sets[1]));
        CHECK(in<B>(sets[1]).name == "B on two");
        // In the planned order: B, A without a workspace, C.
        CHECK(workspaces ==
              std::vector{first, first + 512, first + 512, second, second + 512, second + 512});
    }
    CHECK(events == std::vector<std::string>{"make B on one", "make A on one", "make C on one",
                                             "make B on two", "make A on two", "make C on two",
                                             "destroy C on two", "destroy A on two",
                                             "destroy B on two", "destroy C on one",
                                             "destroy A on one", "destroy B on one"});
    CHECK(live == 0);
}

TEST_CASE_FIXTURE(Fresh, "a handle that cannot be made leaves nothing behind") {
    Stream const one{"one"};
    alignas(gpipe::slot_alignment) std::byte memory[planned(true)];
    for (std::string const name : {"B on one", "A on one", "C on one"}) {
        events.clear();
        refuses = name;
        {
            HandleSet set;
            CHECK_THROWS_WITH_AS(make(set, one, memory), name.c_str(), std::runtime_error);
            CHECK(set.size() == std::size_t(live));
            CHECK(set.size() == events.size());
        }
        CHECK(live == 0);
    }
}

TEST_CASE_FIXTURE(Fresh, "layers of one device work with the same handle, the loss as well") {
    Stream const one{"one"};
    alignas(gpipe::slot_alignment) std::byte memory[planned(true)];
    HandleSet set;
    make(set, one, memory);
    gpipe::StepFrame shared;
    shared.capacity = 1;
    shared.stream = &one;
    shared.handles = &set;
    gpipe::OwnFrame frame;
    frame.shared = &shared;
    frame.samples = 1;
    WithB const b;
    WithAll const all;
    for (std::size_t r = 0; r < gpipe::OwnFrame::room; ++r)
        frame.set(static_cast<gpipe::Region>(r), memory);
    gpipe::Call call;
    call.layer = &b;
    functions<WithB>.forward(call, frame);
    functions<WithB>.backward(call, frame);
    call.layer = &all;
    functions<WithAll>.forward(call, frame);
    CHECK(in<B>(set).uses == 111);
    CHECK(in<A>(set).uses == 1);
    gpipe::LossContext<LossWithC, Stream> context(frame, nullptr, nullptr);
    CHECK(&gpipe::handle<C>(context) == &in<C>(set));
}
