#pragma once

#include <gpipe/core/checked.hpp>
#include <gpipe/core/error.hpp>
#include <gpipe/core/hash.hpp>
#include <gpipe/layer/batch.hpp>
#include <gpipe/layer/shuffle.hpp>
#include <gpipe/runtime/loader_parts.hpp>
#include <gpipe/runtime/pending_step.hpp>

#include <algorithm>
#include <array>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

namespace gpipe {

/// What may be chosen of a Loader.
struct LoaderOptions {
    std::size_t batch = 0;  ///< samples of a mini-batch, of all replicas; 0: as many as fit
    std::uint64_t seed = 0; ///< of the order
    bool shuffled = true;   ///< anew in each epoch; else in the order of the source
    std::size_t ahead = 2;  ///< mini-batches, at most 65,536, that a thread reads beforehand
    std::size_t parts = 1;  ///< that a step consists of, each loaded as one: see accumulate()
};

/// The mini-batches of a Training, from a source of samples that has
/// - size(): how many there are, more than 0;
/// - inputs(sample, span...), targets(sample, span...): writes the tensors of a sample, each a span
///   of its elements (side inputs are the last ones of the inputs); the latter only where the loss
///   has targets. By one thread at a time.
///
/// Which samples a mini-batch has depends on its number, the source's size and the options alone:
/// not on R, K or the number of ranks, and after a resume it goes on where it was: behind as many
/// as steps were trained. (Where some were no step, for a loss scale skipped them or a step threw,
/// keep position() in the saved state's metadata, and seek() it, on all ranks: that they train on
/// one mini-batch is compared.) Each sample comes once in an epoch; the next begins where that
/// ends, in the midst of a mini-batch if need be. A process reads what its devices need: with
/// several ranks of the samples of its replica the inputs where the first cell is, or a side input
/// is read, the targets where the last is.
template <class Train, class Source> class Loader {
    using Input = detail::as_tensors<typename Train::Input>;
    using Target = detail::as_tensors<typename Train::Target>;

  public:
    /// For Training::step(): until the next is asked for.
    struct Loaded {
        std::uint64_t number = 0;              ///< of mini-batches, from the first epoch on
        Batch<typename Train::Input> inputs;   ///< of all samples, as far as they are read here
        Batch<typename Train::Target> targets; ///< likewise
    };

    /// Begins with the mini-batch after the steps that are trained. `train` is looked at here only.
    /// With several replicas in this process, or ranks, all call it. Throws std::invalid_argument
    /// for a source without samples, or of so many that it says none (above 2^63), for more samples
    /// in a mini-batch than there is room for, and for parts of a step, or mini-batches ahead, that
    /// are none or too many; other ranks, on hosts, then throw that this one has refused.
    Loader(Train& train, Source source, LoaderOptions const& options = {})
        : Loader(train, std::move(source), options, false) {}
    Loader(Loader const&) = delete;
    Loader& operator=(Loader const&) = delete;
    ~Loader() {
        if (!thread_.joinable()) return;
        {
            std::lock_guard const lock(mutex_);
            stops_ = true;
        }
        changed_.notify_all();
        thread_.join();
    }

    /// The next one. Throws what the source throws; asked again it tries again, and not before.
    Loaded next() {
        std::unique_lock lock(mutex_);
        if (!thread_.joinable()) {
            read(next_);
        } else {
            if (std::exchange(told_, false)) error_ = nullptr;
            changed_.notify_all();
            changed_.wait(lock, [&] { return read_ > next_ || error_; });
            told_ = read_ == next_;
            if (told_) std::rethrow_exception(error_);
        }
        Slot const& slot = slot_of(next_);
        changed_.notify_all(); // the slot of the one before is free
        std::uint64_t const number = next_++;
        using Inputs = Batch<typename Train::Input>;
        using Targets = Batch<typename Train::Target>;
        return {number, slot.inputs.template batch<Inputs>(samples(number)).numbered(number),
                slot.targets.template batch<Targets>(samples(number)).numbered(number)};
    }
    /// The number of the next one.
    std::uint64_t position() const { return next_; }
    /// Goes on with that one. Throws std::invalid_argument if there are 2^63 samples before it.
    void seek(std::uint64_t number) {
        check_counted(number);
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return !reads_; });
        std::size_t const count = slots_.size(); // of which the caller holds one until next()
        turn_ = (place_of(next_) + count - number % count) % count;
        next_ = read_ = number;
        error_ = nullptr;
        told_ = false;
        changed_.notify_all();
    }
    /// Samples of a mini-batch.
    std::size_t samples() const { return samples_; }
    /// Which sample of the source stands at a place of a mini-batch.
    std::uint64_t sample(std::uint64_t number, std::size_t place) const {
        std::uint64_t const at = number * samples_ + place;
        std::uint64_t const in_epoch = at % size_;
        return options_.shuffled ? Shuffle(size_, options_.seed, at / size_)[in_epoch] : in_epoch;
    }

  private:
    template <class T, class S> friend typename T::Result evaluate(T&, S, std::size_t);

    // `once`: through the source, from its first sample to its last, for evaluate().
    Loader(Train& train, Source&& source, LoaderOptions const& options, bool once)
        : source_(detail::moved_source(train, source)), options_(options), once_(once),
          samples_(options.batch ? options.batch : room(train)), size_(size_of(source_, error_)),
          parts_(detail::loader_parts(train, what_is_wrong(train), number(), once)),
          next_(once ? 0 : train.steps() * options.parts), read_(next_) {
        // From here on other ranks count on this one.
        if (options_.ahead > 0) try {
                thread_ = std::thread([this] { read_ahead(); });
            } catch (...) { // there is none, or no memory for it: next() reads
            }
    }

    struct Slot {
        explicit Slot(std::size_t samples) : inputs(samples), targets(samples) {}
        detail::LoaderTensors<Input> inputs;
        detail::LoaderTensors<Target> targets;
    };

    static std::size_t room(Train const& train) {
        return detail::MachineAccess::of(train).all_samples();
    }
    static constexpr std::uint64_t most = std::uint64_t{1} << 63; // samples
    using Check = detail::CheckSource<Source, Input, Target>;
    static std::uint64_t size_of([[maybe_unused]] Source const& source,
                                 std::exception_ptr& error) noexcept try {
        if constexpr (Check::ok()) return static_cast<std::uint64_t>(source.size());
        return 0;
    } catch (...) { // which other ranks are to hear of
        error = std::current_exception();
        return 0;
    }
    // If nothing is, there are slots.
    std::exception_ptr what_is_wrong(Train const& train) try {
        if (samples_ > room(train))
            detail::throw_error<std::invalid_argument>(
                "gpipe: mini-batches of %zu samples are to be loaded, and there is room for %zu",
                samples_, room(train));
        if (error_) return error_;
        if (size_ == 0) throw std::invalid_argument("gpipe: there are no samples to load");
        if (size_ > most)
            throw std::invalid_argument("gpipe: a source has more samples than can be counted");
        if (options_.parts == 0)
            throw std::invalid_argument("gpipe: a step that is loaded has no parts");
        check_counted(checked_product(train.steps(), options_.parts));
        check_counted(options_.parts);
        if (options_.ahead > 65'536)
            throw std::invalid_argument(
                "gpipe: LoaderOptions::ahead is more than 65,536 mini-batches");
        for (std::size_t n = 0; n <= options_.ahead; ++n) slots_.emplace_back(samples_);
        return nullptr;
    } catch (...) {
        return std::current_exception();
    }
    // Whether its samples can be.
    void check_counted(std::uint64_t number) const {
        if (number > most / samples_)
            throw std::invalid_argument("gpipe: a Loader is to go on where nobody can count to");
    }
    // For all that says which samples a mini-batch has.
    std::uint64_t number() const {
        return detail::hash_of_all(samples_, size_, options_.shuffled ? options_.seed : 0,
                                   std::uint64_t{options_.shuffled}, options_.parts,
                                   std::uint64_t{once_});
    }
    // Of a mini-batch: the last that there is of a source may have fewer.
    std::size_t samples(std::uint64_t number) const {
        return once_ ? static_cast<std::size_t>(
                           std::min<std::uint64_t>(samples_, size_ - number * samples_))
                     : samples_;
    }
    bool is_there(std::uint64_t number) const { return !once_ || number * samples_ < size_; }
    std::size_t place_of(std::uint64_t number) const {
        return (number % slots_.size() + turn_) % slots_.size();
    }
    Slot& slot_of(std::uint64_t number) { return slots_[place_of(number)]; }
    void read(std::uint64_t number) {
        if constexpr (Check::ok())
            for (detail::LoaderPart const& part : parts_) {
                SampleRange const own = part.of(samples(number));
                for (std::size_t i = 0; i < own.count; ++i)
                    read(part, slot_of(number), number, own.first + i);
            }
    }
    void read(detail::LoaderPart const& part, Slot& slot, std::uint64_t number, std::size_t place) {
        std::uint64_t const from = sample(number, place);
        if (part.inputs) slot.inputs.fill(place, [&](auto... to) { source_.inputs(from, to...); });
        if constexpr (!std::is_same_v<Target, Tensors<>>)
            if (part.targets)
                slot.targets.fill(place, [&](auto... to) { source_.targets(from, to...); });
    }
    // In turn, as long as there is a slot that is not the caller's.
    void read_ahead() {
        std::unique_lock lock(mutex_);
        for (;;) {
            changed_.wait(lock, [&] {
                return stops_ || (!error_ && read_ < next_ + options_.ahead && is_there(read_));
            });
            if (stops_) return;
            std::uint64_t const number = read_;
            reads_ = true;
            lock.unlock();
            std::exception_ptr error;
            try {
                read(number);
            } catch (...) {
                error = std::current_exception();
            }
            lock.lock();
            reads_ = false;
            error_ = error;
            read_ += !error;
            changed_.notify_all();
        }
    }

    Source source_;
    LoaderOptions const options_;
    bool const once_;
    std::exception_ptr error_; // of reading the mini-batch read_; at first of asking for the size
    std::size_t const samples_;
    std::uint64_t const size_;
    std::vector<Slot> slots_; // by number of the mini-batch, in turn
    std::vector<detail::LoaderPart> const parts_;
    std::mutex mutex_; // of all below
    std::condition_variable changed_;
    std::uint64_t next_;   // that is given to the caller
    std::uint64_t read_;   // by the thread: all from next_ on to this one have been
    std::size_t turn_ = 0; // slot of mini-batch 0, see seek()
    bool reads_ = false, stops_ = false;
    bool told_ = false; // whether the caller knows of error_, and has not asked again
    std::thread thread_;
};

/// The mean loss over all samples of a source, see Loader, in its order: bit by bit what
/// train.evaluate() says of all of them at once. In memory are one mini-batch and `ahead` more,
/// which a thread reads meanwhile. Several ranks call it together, and each reads what its devices
/// need. Throws what a Loader throws, what evaluate() throws, and what the source throws; other
/// ranks, on hosts, then throw that this one has refused.
template <class Train, class Source>
typename Train::Result evaluate(Train& train, Source source, std::size_t ahead = 2) {
    using Loading = Loader<Train, Source>;
    Loading loader(train, std::move(source), {.shuffled = false, .ahead = ahead}, true);
    constexpr std::size_t metrics = detail::metric_count<typename Train::Result>;
    using Sums = std::array<double, 3 + metrics>;
    Sums total{};
    for (std::uint64_t n = 0; loader.is_there(n); ++n) {
        std::optional<typename Loading::Loaded> part;
        std::exception_ptr error;
        try {
            part.emplace(loader.next());
        } catch (...) {
            error = std::current_exception();
        }
        detail::MachineAccess::together(train, [&](auto& machine, bool first) {
            detail::or_refuse(machine, [&] {
                if (error) std::rethrow_exception(error);
            });
            Sums unheard{};
            machine.engine().evaluate_part(
                part->inputs.tensors(), part->targets.tensors(),
                {static_cast<std::size_t>(n * loader.samples_), loader.samples(n)},
                static_cast<std::size_t>(loader.size_), (first ? total : unheard).data());
        });
    }
    return detail::mean<metrics>(total.data());
}

} // namespace gpipe
