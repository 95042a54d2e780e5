#pragma once

#include <gpipe/core/ratio.hpp>

gpipe::Ratio bubble_elsewhere();
