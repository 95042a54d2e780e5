# The reference: HTML of every public declaration that users meet, by doxygen, whose warnings are
# errors. Target `docs`; test docs.reference.
find_program(GPIPE_DOXYGEN doxygen)
mark_as_advanced(GPIPE_DOXYGEN)
set(GPIPE_DOCS ${CMAKE_CURRENT_BINARY_DIR}/docs)

# What it shows: rooms, or headers of rooms that also hold what only the library itself needs.
set(documented
    pipeline.hpp training.hpp core/version.hpp core/host_device.hpp core/ratio.hpp
    core/bytes.hpp core/dynamic.hpp core/array.hpp layer/tensor.hpp layer/traits.hpp
    layer/view.hpp layer/context.hpp layer/random.hpp layer/loss.hpp layer/item.hpp
    layer/handles.hpp optimizer balance/balance.hpp balance/metrics.hpp schedule/gpipe.hpp
    schedule/one_forward_one_backward.hpp schedule/zero_bubble.hpp schedule/zero_bubble_v.hpp
    schedule/interleaved.hpp schedule/breadth_first.hpp schedule/dual_pipe_v.hpp
    schedule/building_blocks.hpp schedule/action.hpp schedule/programs.hpp schedule/schedule.hpp
    schedule/simulate.hpp schedule/costs.hpp schedule/best.hpp schedule/catalogue.hpp
    checkpoint/checkpointing.hpp checkpoint/policies.hpp checkpoint/per_cell.hpp
    checkpoint/budget.hpp checkpoint/offload.hpp checkpoint/optimal.hpp checkpoint/catalogue.hpp
    checkpoint/dynamic.hpp checkpoint/cell_to_reverse.hpp checkpoint/reversal.hpp
    transport/local.hpp trace cuda check_gradients.hpp state/state.hpp state/save.hpp
    state/load.hpp state/pending_save.hpp state/state_error.hpp runtime/summary.hpp
    runtime/gradient_report.hpp runtime/loss_thunk.hpp runtime/pending_step.hpp
    runtime/failure.hpp)
list(TRANSFORM documented PREPEND "${PROJECT_SOURCE_DIR}/include/gpipe/")
file(GLOB pages ${PROJECT_SOURCE_DIR}/*.md ${PROJECT_SOURCE_DIR}/examples/*.md)
list(JOIN pages "\" \"" pages)
list(JOIN documented "\" \"" documented)
set(GPIPE_DOCUMENTED "\"${pages}\" \"${documented}\"")
configure_file(cmake/Doxyfile.in docs/Doxyfile @ONLY)

if(GPIPE_DOXYGEN)
    add_custom_target(docs COMMAND ${GPIPE_DOXYGEN} ${GPIPE_DOCS}/Doxyfile
        COMMENT "HTML: ${GPIPE_DOCS}/html/index.html" VERBATIM)
elseif(GPIPE_BUILD_DOCS)
    message(FATAL_ERROR "gpipe: doxygen not found. On Debian: apt-get install doxygen, "
                        "or everything at once: sh cmake/install-packages test")
endif()
