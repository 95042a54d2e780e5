#pragma once

#include <gpipe/core/error.hpp>
#include <gpipe/device/device.hpp>
#include <gpipe/plan/ranks.hpp>
#include <gpipe/runtime/agreement.hpp>
#include <gpipe/runtime/channels.hpp>
#include <gpipe/runtime/compare_plans.hpp>
#include <gpipe/runtime/rank_commit.hpp>
#include <gpipe/runtime/rank_table.hpp>
#include <gpipe/runtime/rank_timeline.hpp>
#include <gpipe/runtime/replica_exchange.hpp>
#include <gpipe/transport/transport.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>

namespace gpipe {

/// The devices of one rank, joined with those of others by a transport. Plans are made for all
/// devices, on every rank the same; memory and work there is of its own alone. For devices that
/// share their memory and do what they are told at once; and, where calls put work on a stream,
/// with a transport that puts messages there, too (StreamTransport), for one on each rank, or for
/// all of a replica in one process.
///
/// All ranks call the same functions of their Training, with as many samples; inputs are read where
/// the first cell is, targets and outputs where the last is, and all return the same loss. Where
/// one is told something else (another function, another number of samples, or of steps before,
/// another learning rate) all of them throw std::invalid_argument, on hosts before anything has
/// changed; and where one refuses what it is told (a batch that does not fit), on hosts so do all
/// (but for steps that begin while others are under way: see update::Immediate).
/// What throws in a step is thrown on all (RankError). Parameters and gradients are found on the
/// rank of their layer alone; ends of a tie that are on several are to be written on each.
template <DeviceRuntime Inner, RankTransport Carrier>
    requires(Inner::most_link == Link::shared ||
             StreamTransport<Carrier, typename Inner::Stream const&>)
class Joined : public Inner {
    static constexpr bool on_streams = StreamTransport<Carrier, typename Inner::Stream const&>;

  public:
    using Transport = Carrier; ///< what joins them
    /// Whether all ranks are threads of this process.
    static constexpr bool in_one_process = requires { Carrier::in_one_process; };

    /// What each rank says of itself.
    struct Options {
        typename Inner::Options device{}; ///< of its own devices
        Carrier* transport = nullptr;     ///< must outlive it
        std::size_t devices = 1;          ///< how many it has; they stand in the order of the ranks
        std::size_t replicas = 1;  ///< R, which a Training sets: the first ranks are of the first
        std::uint64_t program = 0; ///< likewise: a number of its types and of this version
        detail::Making* making = nullptr; ///< likewise
    };

    /// Throws std::invalid_argument, on all ranks, unless all are of one program and have so many
    /// devices, as all say, for each replica, those of one as many as those of another, each.
    Joined(Options options, std::size_t devices)
        : Inner(options.device, std::max<std::size_t>(options.devices, 1)),
          transport_(given(options.transport)), making_(options.making),
          replicas_(options.replicas), first_(transport_->ranks() / replicas_ + 1),
          lanes_(first_.size() - 1) {
        all_made(detail::Making::together);
        detail::compare(*transport_, options.program,
                        "gpipe: rank %zu trains another type than rank 0, with other policies, or "
                        "was compiled with another version of gpipe");
        detail::compare(*transport_, options.replicas,
                        "gpipe: rank %zu has other Options::replicas than rank 0");
        detail::compare(*transport_, devices,
                        "gpipe: rank %zu has a chain for other devices than rank 0, or other "
                        "Options::cells");
        auto const devices_of = transport_->gather(options.devices);
        // One for each that can be walked at a time: a message is waited for within an action, and
        // the lane that has what the other rank waits for must have somebody, too.
        auto const lanes_of = transport_->gather(Inner::walkers());
        std::size_t all = 0;
        bool alike = transport_->ranks() % replicas_ == 0, any = true, one = true, walks = true;
        for (std::size_t r = 0; r < devices_of.size(); ++r) {
            all += static_cast<std::size_t>(devices_of[r]);
            alike = alike && devices_of[r] == devices_of[r % lanes_.size()];
            walks = walks && (!alike || lanes_of[r] == lanes_of[r % lanes_.size()]);
            any = any && devices_of[r] > 0;
            one = one && devices_of[r] == 1;
        }
        if (on_streams && !in_one_process && !one)
            throw std::invalid_argument(
                "gpipe: where messages go from GPU to GPU each rank has one device");
        if constexpr (on_streams)
            detail::require(*transport_, Inner::meet(transport_->meets()),
                            "gpipe: rank %zu trains on another GPU than that of its NcclRanks: "
                            "give both the same, see device::Cuda::Options::gpus");
        if (!any || all != devices * replicas_)
            detail::throw_error<std::invalid_argument>(
                "gpipe: %zu devices are to be those of %zu ranks, which have %zu, each at least "
                "one: start a rank for each, or say in Options::device.devices how many each has",
                devices * replicas_, transport_->ranks(), all);
        if (!alike)
            detail::throw_error<std::invalid_argument>(
                "gpipe: each of %zu replicas has %zu devices on ranks of its own, and those of one "
                "are to have as many as those of another",
                replicas_, devices);
        if (!walks)
            throw std::invalid_argument(
                "gpipe: a rank of one replica has as many threads to walk its devices as that of "
                "another: give all of them the same number");
        for (std::size_t r = 0; r < lanes_.size(); ++r) {
            first_[r + 1] = first_[r] + static_cast<std::size_t>(devices_of[r]);
            lanes_[r] = static_cast<std::size_t>(lanes_of[r]);
        }
        if constexpr (on_streams && in_one_process) meet_links();
        now(detail::Making::alone); // the plan, and memory
    }
    /// What ranks do together while they are made, each once. When one has planned its part and has
    /// memory for it: throws on all what any has thrown. Then their channels, of which the tables
    /// are told. Last of all throws likewise, and std::invalid_argument unless they have made one
    /// plan.
    ///@{
    void all_planned() { all_made(detail::Making::awaited); }
    void open(Tables& tables, Lowered const& lowered, bool immediate) {
        Array<Channel> const channels = detail::make_channels(tables, lowered, immediate);
        now(detail::Making::together);
        transport_->open(channels);
        now(detail::Making::alone);
    }
    template <class Device>
    void compare_plans(MachinePlan<Device> const& plan, std::uint64_t tables) {
        all_made(detail::Making::together);
        detail::compare_plans(*transport_, plan, tables);
    }
    ///@}

    /// What the hosts of ranks agree on beside a step; throws on all of them, or on none. When a
    /// call begins that is a run, or another (see detail::RankCall), or that this one refuses: that
    /// all are told the same. When a run has ended: what has become of it, what the loss comes to
    /// (`totals`; `room`: for those of another), and that again. See runtime/agreement.hpp.
    ///@{
    void agree_on(Tables const& tables, RunArguments const& arguments,
                  MiniBatch const& batch) const {
        detail::RankCall const call(arguments, batch, tables.model->told_rates);
        detail::agree_on(*transport_, tables, call);
        if (call.kind == detail::RankCall::trains)
            tables.model->check_rates(arguments.optimizer, tables.model->states);
    }
    void agree_on(Tables const& tables, std::uint64_t kind) const {
        detail::agree_on(*transport_, tables, detail::RankCall(kind));
    }
    void refuse_call(Tables const& tables) const noexcept {
        try {
            agree_on(tables, detail::RankCall::refuses);
        } catch (...) { // it has an error already
        }
    }
    void agree(Tables const& tables, Run& run, std::span<double> totals,
               std::span<double> room) const {
        detail::agree(*transport_, tables, run, totals, room);
    }
    ///@}
    /// Of a table for all ranks what one walks; `hash` then stands for that of all, too.
    static StepTable own_part(StepTable const& all, Lowered const& lowered,
                              Placement const& placement, MemoryPlan const& plan,
                              Ranks const& ranks, std::uint64_t& hash) {
        hash = detail::hash_of(all, plan, lowered.edges, hash);
        return detail::rank_table(all, lowered, placement, ranks);
    }

    /// Who has which devices; points here.
    Ranks ranks() const {
        return {
            first_[lanes_.size()], lanes_.size(), transport_->rank() % lanes_.size(), first_.data(),
            lanes_.data(),         replicas_,     transport_->rank() / lanes_.size()};
    }
    /// What joins them.
    Carrier& transport() const { return *transport_; }

    /// Nothing more is put on streams in this run: the device refuses. Where others wait for what
    /// is missing, they wait for ever, so they are told.
    void cut_short() noexcept {
        if constexpr (on_streams)
            if (!Inner::is_capturing()) transport_->give_up("has an error of its device");
    }

    /// As DeviceMemory, DeviceQueue and DeviceExecutor say, by a device's number among all.
    ///@{
    static constexpr Link most_link = Link::sent;
    Link link(std::size_t from, std::size_t to) const {
        if (ranks().of(from) != ranks().of(to)) return Link::sent;
        std::size_t const own = first_[1], first = ranks().begin(ranks().of(from));
        return links_.empty() ? Link::shared : links_[(from - first) * own + to - first];
    }
    auto allocate(std::size_t device, std::size_t bytes) {
        return Inner::allocate(device - ranks().begin(), bytes);
    }
    void prepare(Array<std::size_t> const& device_of_stream, std::size_t marks,
                 Array<std::size_t> const& device_of_feed) {
        Inner::prepare(own_of(device_of_stream), marks, own_of(device_of_feed));
    }
    /// The most that any rank has.
    std::size_t lanes() const { return *std::max_element(lanes_.begin(), lanes_.end()); }
    /// Ranks would have to choose together.
    static constexpr bool chooses_lanes() { return false; }
    ///@}

    /// Where this rank is: see RankTransport.
    ///@{
    void note(std::uint64_t steps, Kind kind, std::uint32_t cell,
              std::uint32_t micro_batch) noexcept {
        if constexpr (requires { transport_->note(steps, kind, cell, micro_batch); })
            transport_->note(steps, kind, cell, micro_batch);
    }
    void rest() noexcept {
        if constexpr (requires { transport_->rest(); }) transport_->rest();
    }
    ///@}
    /// In the order of a stream: see RankTransport. word() is asked for, and tell(word) told.
    ///@{
    template <class Word>
    void send(std::size_t stream, std::size_t channel, std::byte const* from, std::size_t bytes,
              Word word) {
        if constexpr (on_streams)
            transport_->send(channel, from, bytes, Inner::stream(stream));
        else
            Inner::launch(stream,
                          [=, this]() noexcept { transport_->send(channel, from, bytes, word()); });
    }
    template <class Tell>
    void receive(std::size_t stream, std::size_t channel, std::byte* to, std::size_t bytes,
                 Tell tell) {
        if constexpr (on_streams)
            transport_->receive(channel, to, bytes, Inner::stream(stream));
        else
            Inner::launch(stream,
                          [=, this]() noexcept { tell(transport_->receive(channel, to, bytes)); });
    }
    /// What f() sends and receives may go on at once: so do all who are at the other ends.
    template <class F> void together(std::size_t stream, F f) {
        if constexpr (on_streams)
            transport_->together(Inner::stream(stream), f);
        else
            f();
    }
    ///@}

  private:
    // What is thrown from here on is told as it says.
    void now(detail::Making making) {
        if (making_) *making_ = making;
    }
    void all_made(detail::Making then) {
        now(detail::Making::together);
        detail::hear(*transport_, transport_->gather(0), "a constructor");
        now(then);
    }
    // Between devices of a replica, of which all have the same plan: the slowest.
    void meet_links() {
        std::size_t const own = first_[1];
        links_ = Array<Link>(own * own, Link::shared);
        for (std::size_t a = 0; a < own; ++a)
            for (std::size_t b = 0; b < a; ++b) {
                auto slowest = Link::shared;
                for (std::uint64_t const link :
                     transport_->gather(static_cast<std::uint64_t>(Inner::link(a, b))))
                    slowest = std::max(slowest, static_cast<Link>(link));
                links_[a * own + b] = links_[b * own + a] = slowest;
            }
    }
    static Carrier* given(Carrier* transport) {
        if (!transport)
            throw std::invalid_argument("gpipe: Options::device.transport is null: it has to name "
                                        "what joins this rank to the others");
        return transport;
    }
    // Of some devices its own, by their numbers among these.
    Array<std::size_t> own_of(Array<std::size_t> const& devices) const {
        Array<std::size_t> own(devices.size());
        std::size_t count = 0;
        for (std::size_t const device : devices)
            if (ranks().own(device)) own[count++] = device - ranks().begin();
        return first_of(own, count);
    }

    Carrier* transport_;
    detail::Making* making_; // until then
    std::size_t replicas_;
    Array<std::size_t> first_; // device of each rank, and the end
    Array<std::size_t> lanes_; // of each rank
    Array<Link> links_;        // between the devices of a rank, if they have memory of their own
};

/// @cond
// What the library does in a step is what it does on these devices; but nobody stops in the midst
// of one, for others wait for messages.
template <class Inner, class Carrier> struct StepWork<Joined<Inner, Carrier>> : StepWork<Inner> {
    static constexpr bool stops(bool) { return false; }
};
/// @endcond

} // namespace gpipe
