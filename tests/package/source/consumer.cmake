# Two translation units that include everything, header-only, compiled, and one of each: a function that
# is not inline would be defined twice, one that is nowhere not at all. The consumer sets no standard, no
# include path and no thread library.
set(source ${CMAKE_CURRENT_LIST_DIR})
foreach(kind gpipe compiled)
    add_library(${kind}_objects OBJECT ${source}/main.cpp ${source}/other.cpp)
    target_link_libraries(${kind}_objects PRIVATE gpipe::${kind})
endforeach()
target_precompile_headers(compiled_objects PRIVATE <gpipe/gpipe.hpp>)
add_executable(consumer $<TARGET_OBJECTS:gpipe_objects>)
add_executable(compiled $<TARGET_OBJECTS:compiled_objects>)
add_executable(mixed $<FILTER:$<TARGET_OBJECTS:gpipe_objects>,INCLUDE,/main>
    $<FILTER:$<TARGET_OBJECTS:compiled_objects>,EXCLUDE,/main>)
foreach(program consumer compiled mixed)
    set_target_properties(${program} PROPERTIES LINKER_LANGUAGE CXX)
    target_link_libraries(${program} PRIVATE gpipe::gpipe)
endforeach()

# Cut by what its layers take on this machine, as told by a program that has to be compiled and linked as this one is,
# and that takes no warning of others for an error. Built for one of the three ways here.
add_executable(profiled EXCLUDE_FROM_ALL ${source}/profiled.cpp)
target_include_directories(profiled SYSTEM PRIVATE ${source}/others)
target_compile_options(profiled PRIVATE -Wall -Werror)
target_link_options(profiled PRIVATE -Wl,--defsym=known_to_the_linker=_start)
target_link_libraries(profiled PRIVATE gpipe::gpipe)
set(CMAKE_CXX_CLANG_TIDY ${CMAKE_COMMAND} -E false) # which finds fault with everything, and is not asked
gpipe_profile(profiled net_profile.hpp INCLUDE ${source}/profiled.hpp NET "linked()" SAMPLES 2 ROUNDS 1)
unset(CMAKE_CXX_CLANG_TIDY)

# The part that needs nlohmann-json, where that is there.
if(TARGET gpipe::state)
    add_executable(saves ${source}/saves.cpp)
    target_link_libraries(saves PRIVATE gpipe::state)
    # Whose functions the one source holds, too. Built for one of the three ways here.
    add_executable(saves_compiled EXCLUDE_FROM_ALL ${source}/saves.cpp)
    target_link_libraries(saves_compiled PRIVATE gpipe::compiled gpipe::state)
endif()

# The part that needs MPI, likewise.
if(TARGET gpipe::mpi)
    add_executable(ranks ${source}/ranks.cpp)
    target_link_libraries(ranks PRIVATE gpipe::mpi)
endif()

# The part that needs OpenSSL, likewise.
if(TARGET gpipe::sockets)
    add_executable(meets ${source}/meets.cpp)
    target_link_libraries(meets PRIVATE gpipe::sockets)
endif()

# An embedded library brings no tests, programs or install rules along.
foreach(target gpipe_warnings gpipe_doctest_main)
    if(TARGET ${target})
        message(FATAL_ERROR "gpipe makes its target ${target} in the consumer's project")
    endif()
endforeach()
foreach(variable CMAKE_CXX_STANDARD CMAKE_CXX_FLAGS)
    if(NOT "${${variable}}" STREQUAL "")
        message(FATAL_ERROR "gpipe sets ${variable} in the consumer's project")
    endif()
endforeach()
