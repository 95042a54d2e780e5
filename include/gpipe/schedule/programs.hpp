#pragma once

#include <gpipe/core/array.hpp>
#include <gpipe/schedule/action.hpp>

#include <cstddef>
#include <span>
#include <stdexcept>

namespace gpipe {

/// The most forwards of programs, one for each cell and micro-batch: with backwards, recomputes and
/// copies these are at most 16 actions, and actions have numbers of 32 bits.
inline constexpr std::size_t most_forwards = std::size_t{1} << 27;

/// Programs as plain arrays, which constant evaluation reads at the least cost. What proofs and
/// passes work on, whether the arrays are a Programs' or a constant's.
struct ProgramsView {
    std::size_t devices = 0;                ///< K
    std::size_t cells = 0;                  ///< K, or more
    std::size_t micro_batches = 0;          ///< M
    std::size_t const* begin = nullptr;     ///< by device, then the end of the last
    std::size_t const* device_of = nullptr; ///< by cell
    Action const* actions = nullptr;        ///< device by device

    /// Actions in all.
    constexpr std::size_t size() const { return begin[devices]; }
};

/// One program per device: what a schedule is. A value, the same at compile time and at run time;
/// the only description of a schedule (proved, timed, planned and walked from here).
/// Built device by device: `programs.add(action)` appends to the program of the current device,
/// `programs.next_device()` begins the next.
class Programs {
  public:
    constexpr Programs() = default;
    /// Room for `capacity` actions in all, more if there are more; `cells` per device one after the
    /// other unless place() says otherwise.
    constexpr Programs(std::size_t devices, std::size_t cells, std::size_t micro_batches,
                       std::size_t capacity)
        : devices_(devices), cells_(cells), micro_batches_(micro_batches), begin_(devices + 1),
          device_of_(cells), actions_(capacity) {
        for (std::size_t c = 0; c < cells; ++c) device_of_[c] = c * devices / (cells ? cells : 1);
    }

    /// None yet, of so many devices, with room for so many actions; cells are where they are there.
    constexpr Programs(Programs const& other, std::size_t devices, std::size_t capacity)
        : devices_(devices), cells_(other.cells_), micro_batches_(other.micro_batches_),
          begin_(devices + 1), device_of_(other.device_of_), actions_(capacity) {}

    /// Puts a cell on a device (several cells per device in loop or V order).
    /// Throws std::invalid_argument for a cell that is not there.
    constexpr void place(std::size_t cell, std::size_t device) {
        if (cell >= cells_)
            throw std::invalid_argument("gpipe: programs place a cell that does not exist");
        device_of_[cell] = device;
    }
    /// Puts cell c on device c mod K: device k owns cells k, k + K, k + 2 K, ... (Megatron's
    /// loops).
    constexpr void place_in_loops() {
        for (std::size_t c = 0; c < cells_; ++c) device_of_[c] = c % devices_;
    }
    /// Puts cells on devices 0 to K - 1 and back: of 2 K cells, device k owns k and 2 K - 1 - k.
    constexpr void place_in_v() {
        for (std::size_t c = 0; c < cells_; ++c) {
            std::size_t const k = c % (2 * devices_);
            device_of_[c] = k < devices_ ? k : 2 * devices_ - 1 - k;
        }
    }
    /// Appends an action to the program of the current device.
    constexpr void add(Action action) {
        if (size_ == actions_.size()) enlarge(actions_, size_, 2 * size_ + 1);
        actions_[size_++] = action;
    }
    /// Appends `count` forwards of cell 0 to the program of the current device, for the caller to
    /// overwrite at the address returned: a schedule of thousands of actions is then within the
    /// compilers' limits on constant evaluation.
    constexpr Action* append(std::size_t count) {
        if (count > actions_.size() - size_) enlarge(actions_, size_, 2 * size_ + count);
        size_ += count;
        return actions_.data() + (size_ - count);
    }
    /// The current device does these and no more: next_device() is behind them.
    constexpr void add_program(std::span<Action const> actions) {
        Action const* const from = actions.data();
        Action* const to = append(actions.size());
        for (std::size_t i = 0, size = actions.size(); i < size; ++i) to[i] = from[i];
        next_device();
    }

    /// Throws std::invalid_argument beyond the number of devices.
    constexpr void next_device() {
        if (current_ == devices_)
            throw std::invalid_argument("gpipe: programs of more devices than were announced");
        begin_[++current_] = size_;
    }

    /// K.
    constexpr std::size_t devices() const { return devices_; }
    /// On all devices.
    constexpr std::size_t cells() const { return cells_; }
    /// M.
    constexpr std::size_t micro_batches() const { return micro_batches_; }
    /// Actions of all devices.
    constexpr std::size_t size() const { return size_; }
    /// Whether next_device() stands behind the program of each device, and no action behind the
    /// last.
    constexpr bool ended() const {
        return current_ == devices_ && (devices_ == 0 || begin_[devices_] == size_);
    }
    /// The device that a cell is on.
    constexpr std::size_t device_of(std::size_t cell) const { return device_of_[cell]; }
    /// The cells of a device, in the order of the chain.
    constexpr Array<std::size_t> cells_of(std::size_t device) const {
        Array<std::size_t> cells(cells_);
        std::size_t count = 0;
        for (std::size_t c = 0; c < cells_; ++c)
            if (device_of_[c] == device) cells[count++] = c;
        return first_of(cells, count);
    }

    /// Actions of one device.
    constexpr std::size_t size(std::size_t device) const {
        return begin_[device + 1] - begin_[device];
    }
    /// Index of a device's first action among all.
    constexpr std::size_t begin(std::size_t device) const { return begin_[device]; }
    /// One past the last action of a device, among all.
    constexpr std::size_t end(std::size_t device) const { return begin_[device + 1]; }
    /// Any action by its index among all.
    constexpr Action const& operator[](std::size_t index) const { return actions_[index]; }
    /// The action at this place among all.
    constexpr Action& operator[](std::size_t index) { return actions_[index]; }
    /// Whether nothing but forwards is there, which then are those of an evaluation.
    constexpr bool evaluates() const {
        for (Action const& a : *this)
            if (a.kind != Kind::forward) return false;
        return true;
    }
    /// All actions, device after device.
    ///@{
    constexpr Action const* actions() const { return actions_.data(); }
    constexpr Action const* begin() const { return actions_.data(); }
    constexpr Action const* end() const { return actions_.data() + size_; }
    ///@}
    /// The actions of a device, in order.
    constexpr std::span<Action const> program(std::size_t device) const {
        return {actions_.data() + begin(device), size(device)};
    }

    /// All of it, for as long as it is there and as it is.
    constexpr ProgramsView view() const {
        return {devices_,          cells_,         micro_batches_, begin_.data(),
                device_of_.data(), actions_.data()};
    }

  private:
    std::size_t devices_ = 0;
    std::size_t cells_ = 0;
    std::size_t micro_batches_ = 0;
    std::size_t size_ = 0;
    std::size_t current_ = 0;
    Array<std::size_t> begin_;
    Array<std::size_t> device_of_;
    Array<Action> actions_;
};

} // namespace gpipe
