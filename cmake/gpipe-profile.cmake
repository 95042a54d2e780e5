# gpipe_profile(TARGET HEADER INCLUDE FILE NET EXPRESSION SAMPLES n [ROUNDS n] [CUDA]): before TARGET is built, a
# program that is compiled as it is times every layer of EXPRESSION, a Pipeline that FILE declares, for
# micro-batches of n samples; what it finds is TARGET's HEADER, a constant gpipe::ProfileView of the header's
# name: for gpipe::balance::ByTime. FILE is not to include HEADER. CUDA: on a GPU, which whoever builds must
# have. In this tree and in an installed one.
function(gpipe_profile target header)
    cmake_parse_arguments(PARSE_ARGV 2 arg CUDA "INCLUDE;NET;SAMPLES;ROUNDS" "")
    foreach(word INCLUDE NET SAMPLES)
        if("${arg_${word}}" STREQUAL "")
            message(FATAL_ERROR "gpipe_profile(${target} ${header}): ${word} is missing")
        endif()
    endforeach()
    if(NOT "${arg_UNPARSED_ARGUMENTS}" STREQUAL "")
        message(FATAL_ERROR "gpipe_profile(${target} ${header}): nobody knows ${arg_UNPARSED_ARGUMENTS}")
    endif()
    if(NOT arg_ROUNDS)
        set(arg_ROUNDS 9)
    endif()
    set(umbrella gpipe.hpp)
    set(device Host)
    set(ending cpp)
    if(arg_CUDA)
        set(umbrella gpipe.cuh)
        set(device Cuda)
        set(ending cu)
    endif()
    cmake_path(GET header STEM name)
    string(MAKE_C_IDENTIFIER ${name} name)
    set(program ${target}_${name})
    set(folder ${CMAKE_CURRENT_BINARY_DIR}/${program}.dir)
    configure_file(${CMAKE_CURRENT_FUNCTION_LIST_DIR}/profile.cpp.in ${folder}/main.${ending} @ONLY)
    add_executable(${program} EXCLUDE_FROM_ALL ${folder}/main.${ending})
    target_include_directories(${program} PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}
        $<TARGET_PROPERTY:${target},INCLUDE_DIRECTORIES>)
    target_compile_definitions(${program} PRIVATE $<TARGET_PROPERTY:${target},COMPILE_DEFINITIONS>)
    target_compile_options(${program} PRIVATE $<TARGET_PROPERTY:${target},COMPILE_OPTIONS>)
    target_link_libraries(${program} PRIVATE gpipe::gpipe $<TARGET_PROPERTY:${target},LINK_LIBRARIES>)
    add_custom_command(OUTPUT ${folder}/include/${header}
        COMMAND ${program} ${folder}/include/${header}
        DEPENDS ${program} COMMENT "Timing the layers of ${arg_NET}" VERBATIM)
    file(MAKE_DIRECTORY ${folder}/include)
    target_sources(${target} PRIVATE ${folder}/include/${header})
    target_include_directories(${target} PRIVATE ${folder}/include)
endfunction()
