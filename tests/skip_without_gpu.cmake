# gpipe_skip_without_gpu(NAME...): these tests are skipped where there is no GPU, by what they all say
# then; with GPIPE_GPU_REQUIRED (preset gpu) they fail, with that as the reason.
option(GPIPE_GPU_REQUIRED "Tests that find no GPU fail instead of being skipped" OFF)
function(gpipe_skip_without_gpu)
    if(NOT GPIPE_GPU_REQUIRED)
        set_tests_properties(${ARGN} PROPERTIES
            SKIP_REGULAR_EXPRESSION "there is no (GPU|NVIDIA driver|compute-sanitizer) here")
    endif()
endfunction()
