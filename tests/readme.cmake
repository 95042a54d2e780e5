# The code in README.md; scripts/readme-blocks says what a block may be.
set(readme ${PROJECT_SOURCE_DIR}/README.md)
if(NOT EXISTS ${readme})
    message(STATUS "gpipe: no README.md, its code is not tested")
    return()
endif()
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${readme})
set(blocks ${CMAKE_CURRENT_BINARY_DIR}/readme)
execute_process(COMMAND sh ${scripts}/readme-blocks ${readme} ${blocks} COMMAND_ERROR_IS_FATAL ANY)

gpipe_add_test(readme readme.length sh -c
    "lines=$(wc -l < \"$0\") && echo README.md has $lines lines && test $lines -lt 150" ${readme})
gpipe_add_test(readme readme.test_command sh -c
    "grep -E '^[^#]*cmake --workflow --preset test$' \"$0\"" ${readme})

file(GLOB sources ${blocks}/compile_*.cpp)
foreach(source IN LISTS sources)
    cmake_path(GET source STEM name)
    gpipe_compile_only_library(readme readme.${name} ${source})
    # a fragment shows a value without using it
    target_compile_options(readme.${name} PRIVATE -Wno-unused)
endforeach()

file(GLOB sources ${blocks}/run_*.cpp)
foreach(source IN LISTS sources)
    cmake_path(GET source STEM name)
    add_executable(readme.${name} ${source})
    target_link_libraries(readme.${name} PRIVATE gpipe::gpipe gpipe_warnings)
    if(EXISTS ${blocks}/${name}.txt)
        gpipe_add_test(readme readme.${name} sh -c
            "output=$(\"$1\") && printf '%s\\n' \"$output\" | diff -u \"$0\" -"
            ${blocks}/${name}.txt $<TARGET_FILE:readme.${name}>)
    else()
        gpipe_add_test(readme readme.${name} $<TARGET_FILE:readme.${name}>)
    endif()
endforeach()
