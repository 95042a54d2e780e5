# The code in README.md and in the pages beside the examples; scripts/readme-blocks says what a block
# may be.
set(readme ${PROJECT_SOURCE_DIR}/README.md)
if(EXISTS ${readme})
    gpipe_add_test(readme readme.length sh -c
        "lines=$(wc -l < \"$0\") && echo README.md has $lines lines && test $lines -lt 150" ${readme})
    gpipe_add_test(readme readme.test_command sh -c
        "grep -E '^[^#]*cmake --workflow --preset test$' \"$0\"" ${readme})
endif()

# Its first program as a compiler sees it that optimises all of a program at once, which finds nothing to warn of, either.
function(gpipe_whole_program_test blocks)
    file(GLOB sources ${blocks}/run_*.cpp)
    list(GET sources 0 source)
    gpipe_add_test(readme readme.whole_program ${CMAKE_CXX_COMPILER} -std=c++20 -O2 -flto=1 -Werror
        -I ${PROJECT_SOURCE_DIR}/include ${source} -pthread -o ${CMAKE_CURRENT_BINARY_DIR}/whole_program)
endfunction()

function(gpipe_document_tests document prefix)
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${document})
    set(blocks ${CMAKE_CURRENT_BINARY_DIR}/${prefix})
    execute_process(
        COMMAND sh ${scripts}/readme-blocks ${document} ${blocks} COMMAND_ERROR_IS_FATAL ANY)

    file(GLOB sources ${blocks}/compile_*.cpp)
    foreach(source IN LISTS sources)
        cmake_path(GET source STEM name)
        gpipe_compile_only_library(readme ${prefix}.${name} ${source})
        # a fragment shows a value without using it
        target_compile_options(${prefix}.${name} PRIVATE -Wno-unused)
        target_compile_definitions(${prefix}.${name} PRIVATE GPIPE_COMPILED) # no code that nobody runs
    endforeach()

    file(GLOB sources ${blocks}/run_*.cpp ${blocks}/ranks_*.cpp)
    foreach(source IN LISTS sources)
        cmake_path(GET source STEM name)
        set(run)
        set(libraries gpipe::gpipe)
        if(name MATCHES "^ranks_([0-9]+)_")
            if(NOT mpi_found)
                gpipe_skip_without(MPI "libopenmpi-dev openmpi-bin" readme ${prefix}.${name})
                continue()
            endif()
            set(run sh ${scripts}/mpi-run ${MPIEXEC_EXECUTABLE} ${CMAKE_MATCH_1})
            set(libraries gpipe::mpi)
        endif()
        file(STRINGS ${source} saves REGEX "gpipe/state/")
        if(saves AND NOT TARGET gpipe::state)
            continue()
        elseif(saves)
            list(APPEND libraries gpipe::state)
        endif()
        add_executable(${prefix}.${name} ${source})
        target_link_libraries(${prefix}.${name} PRIVATE ${libraries} gpipe_warnings)
        if(NOT prefix STREQUAL "readme") # whose programs are built as it says
            gpipe_compile_once(${prefix}.${name} ${source})
        endif()
        if(EXISTS ${blocks}/${name}.txt)
            gpipe_add_test(readme ${prefix}.${name} sh -c
                "output=$(\"$@\") && printf '%s\\n' \"$output\" | diff -u \"$0\" -"
                ${blocks}/${name}.txt ${run} $<TARGET_FILE:${prefix}.${name}>)
        else()
            gpipe_add_test(readme ${prefix}.${name} ${run} $<TARGET_FILE:${prefix}.${name}>)
        endif()
    endforeach()
endfunction()

file(GLOB documents CONFIGURE_DEPENDS ${readme} ${PROJECT_SOURCE_DIR}/examples/*.md)
foreach(document IN LISTS documents)
    cmake_path(GET document STEM name)
    if(name STREQUAL "README")
        gpipe_document_tests(${document} readme)
        if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
            gpipe_whole_program_test(${CMAKE_CURRENT_BINARY_DIR}/readme)
        endif()
    else()
        gpipe_document_tests(${document} readme.${name})
    endif()
endforeach()
