#pragma once

// A Training on ranks with a GPU each, whose tensors go by NCCL, as if it were one.

#include "crew.hpp"

#include <gpipe/device/cuda.hpp>
#include <gpipe/transport/local_ranks.hpp>
#include <gpipe/transport/nccl.hpp>

#include <cstddef>
#include <exception>
#include <memory>
#include <vector>

namespace toy {

using NcclRanks = gpipe::NcclRanks<gpipe::LocalRanks>;

template <class Train> struct NcclMember {
    std::unique_ptr<gpipe::LocalRanks> control;
    std::unique_ptr<NcclRanks> ranks;
    std::unique_ptr<Train> train;
};

/// make(rank, ranks) makes what trains there, on the GPU of that number.
template <class Train> class NcclCrew : public AnyCrew<NcclMember<Train>> {
    using Base = AnyCrew<NcclMember<Train>>;

  public:
    /// What was thrown when it was made is in `errors`.
    template <class Make>
    NcclCrew(std::size_t ranks, double deadline, Make make)
        : Base(std::vector<std::size_t>(ranks, 1)), wire_(ranks) {
        this->each([&](std::size_t r) {
            NcclMember<Train>& own = this->members_[r];
            struct AtTheEnd { // of a program that goes down
                NcclMember<Train>& of;
                int before = std::uncaught_exceptions();
                ~AtTheEnd() {
                    if (std::uncaught_exceptions() > before) of.control->give_up("has ended");
                }
            } const end{own};
            own.control = std::make_unique<gpipe::LocalRanks>(wire_, r, deadline);
            own.ranks = std::make_unique<NcclRanks>(*own.control, static_cast<int>(r));
            own.train = make(r, *own.ranks);
        });
    }
    ~NcclCrew() {
        this->each([&](std::size_t r) {
            this->members_[r].train.reset();
            this->members_[r].ranks.reset();
        });
    }

  private:
    gpipe::LocalWire wire_;
};

} // namespace toy
