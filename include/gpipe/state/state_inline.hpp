#pragma once

#include <gpipe/core/compiled.hpp>

/// @def GPIPE_STATE_INLINE
/// The word of core/compiled.hpp in this folder, which needs more than the core: cmake/compiled.cpp
/// holds its functions, too, where target gpipe::state is linked, which says so by GPIPE_STATE.
#ifdef GPIPE_STATE
#define GPIPE_STATE_INLINE GPIPE_INLINE
#else
#define GPIPE_STATE_INLINE inline
#endif
