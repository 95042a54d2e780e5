// The one source of target gpipe::compiled: every function that has the word of
// gpipe/core/compiled.hpp. Alone: what has been read before it, as a precompiled header or a unity
// build has it, holds no code, and is not read again.
#ifdef GPIPE_INLINE
#error "gpipe: compiled.cpp wants SKIP_PRECOMPILE_HEADERS and SKIP_UNITY_BUILD_INCLUSION"
#endif
#define GPIPE_COMPILED_SOURCE
#include <gpipe/by_name.hpp>
#include <gpipe/gpipe.hpp>
#include <gpipe/layer/dtype.hpp>
#include <gpipe/probe/chain_profile.hpp>
#include <gpipe/probe/gradient_report.hpp>
#include <gpipe/runtime/joined.hpp>
#include <gpipe/trace/chrome.hpp>
#include <gpipe/trace/compare.hpp>
#include <gpipe/trace/svg.hpp>
#include <gpipe/trace/text.hpp>
#ifdef GPIPE_STATE
#include <gpipe/state/header_json.hpp>
#include <gpipe/state/state.hpp>
#endif
