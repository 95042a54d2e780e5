#pragma once

/// Everything that a training or an inference needs of standard C++.

#include <gpipe/balance/balance.hpp>
#include <gpipe/balance/metrics.hpp>
#include <gpipe/checkpoint/dynamic_policy.hpp>
#include <gpipe/checkpoint/halves_policy.hpp>
#include <gpipe/checkpoint/optimal.hpp>
#include <gpipe/checkpoint/rotor.hpp>
#include <gpipe/checkpoint/verify_reversal.hpp>
#include <gpipe/inference.hpp>
#include <gpipe/optimizer/groups.hpp>
#include <gpipe/optimizer/hooked.hpp>
#include <gpipe/optimizer/one_of.hpp>
#include <gpipe/optimizer/rates.hpp>
#include <gpipe/pipeline.hpp>
#include <gpipe/schedule/breadth_first.hpp>
#include <gpipe/schedule/building_blocks.hpp>
#include <gpipe/schedule/dual_pipe_v.hpp>
#include <gpipe/schedule/interleaved.hpp>
#include <gpipe/schedule/one_forward_one_backward.hpp>
#include <gpipe/schedule/verify.hpp>
#include <gpipe/schedule/zero_bubble.hpp>
#include <gpipe/schedule/zero_bubble_v.hpp>
#include <gpipe/training.hpp>
