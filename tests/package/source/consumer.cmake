# Two translation units that include everything: a function that is not inline would be defined twice.
# The consumer sets no standard, no include path and no thread library.
set(source ${CMAKE_CURRENT_LIST_DIR})
add_executable(consumer ${source}/main.cpp ${source}/other.cpp)
target_link_libraries(consumer PRIVATE gpipe::gpipe)

# The part that needs nlohmann-json, where that is there.
if(TARGET gpipe::state)
    add_executable(saves ${source}/saves.cpp)
    target_link_libraries(saves PRIVATE gpipe::state)
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
