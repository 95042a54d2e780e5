#pragma once

/// Everything that needs only standard C++.

#include <gpipe/balance/balance.hpp>
#include <gpipe/balance/metrics.hpp>
#include <gpipe/checkpoint/catalogue.hpp>
#include <gpipe/checkpoint/offload.hpp>
#include <gpipe/checkpoint/optimal.hpp>
#include <gpipe/checkpoint/rotor.hpp>
#include <gpipe/checkpoint/verify_reversal.hpp>
#include <gpipe/optimizer/catalogue.hpp>
#include <gpipe/optimizer/groups.hpp>
#include <gpipe/optimizer/rates.hpp>
#include <gpipe/pipeline.hpp>
#include <gpipe/schedule/catalogue.hpp>
#include <gpipe/schedule/verify.hpp>
#include <gpipe/training.hpp>
