# What tests, examples and benchmarks share: warnings, CUDA, and one way to make a program.
if(GPIPE_WITH_CUDA)
    if(NOT GPIPE_NVCC)
        message(FATAL_ERROR "gpipe: GPIPE_WITH_CUDA is ON, but there is no nvcc: put it on the PATH "
                            "or configure with -DGPIPE_WITH_CUDA=OFF")
    endif()
    if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
        set(CMAKE_CUDA_ARCHITECTURES 80 90)
    endif()
    set(CMAKE_CUDA_COMPILER ${GPIPE_NVCC})
    enable_language(CUDA)
elseif(NOT GPIPE_NVCC)
    message(STATUS "gpipe: no nvcc, everything that needs CUDA is left out")
endif()

# Without a preset: programs that train and measure are of no use unoptimised.
if(PROJECT_IS_TOP_LEVEL AND NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
    set(CMAKE_BUILD_TYPE Release CACHE STRING "Type of build" FORCE)
endif()

# The language of the standard; consumers in tests/package have their compiler's default.
set(CMAKE_CXX_EXTENSIONS OFF)

set(GPIPE_WARNINGS -Wall -Wextra -Wpedantic -Wshadow -Wconversion)
add_library(gpipe_warnings INTERFACE)
# nvcc's own output breaks -Wpedantic.
set(cuda_warnings ${GPIPE_WARNINGS})
list(REMOVE_ITEM cuda_warnings -Wpedantic)
list(JOIN cuda_warnings "," cuda_warnings)
target_compile_options(gpipe_warnings INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:${GPIPE_WARNINGS}>
    $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=${cuda_warnings}>)

# g++ collects garbage from 128 MiB on: a tenth of what compiling a test takes.
set(less_often --param=ggc-min-heapsize=1048576)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    add_compile_options($<$<COMPILE_LANGUAGE:CXX>:${less_often}> $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=${less_often}>)
endif()

# Stops with the name of the Debian package that is missing.
function(gpipe_require what found package)
    if(NOT ${found})
        message(FATAL_ERROR "gpipe: ${what} not found. On Debian: apt-get install ${package}, "
                            "or everything at once: sh cmake/install-packages test")
    endif()
endfunction()

# The library's functions, compiled once for all programs that are only to be built and tried: half of
# their compilation otherwise. Not for a source that changes a macro of the library.
add_library(gpipe_once STATIC EXCLUDE_FROM_ALL ${PROJECT_SOURCE_DIR}/cmake/compiled.cpp)
target_link_libraries(gpipe_once PUBLIC gpipe::gpipe PRIVATE gpipe_warnings $<TARGET_NAME_IF_EXISTS:gpipe::state>)
# Compiled once, so worth it: programs that are to compile fast run fast all the same where they plan.
set(GPIPE_OPTIMISED $<$<CONFIG:Debug>:-O2>)
target_compile_options(gpipe_once PRIVATE ${GPIPE_OPTIMISED})
function(gpipe_compile_once target source)
    file(STRINGS ${source} changes REGEX "^#define GPIPE_" LIMIT_COUNT 1)
    if(NOT changes)
        target_compile_definitions(${target} PRIVATE GPIPE_COMPILED)
        target_link_libraries(${target} PRIVATE gpipe_once)
    endif()
endfunction()
option(GPIPE_PROGRAMS_ONCE "Examples and benchmarks have the library's functions from one library" OFF)
function(gpipe_program_once target source)
    if(GPIPE_PROGRAMS_ONCE)
        gpipe_compile_once(${target} ${source})
    endif()
endfunction()

# Options and JSON of the programs, in one place: their libraries take seconds to compile.
find_package(CLI11 QUIET)
gpipe_require(CLI11 CLI11_FOUND libcli11-dev)
if(NOT TARGET nlohmann_json::nlohmann_json)
    find_package(nlohmann_json QUIET)
    gpipe_require(nlohmann-json nlohmann_json_FOUND nlohmann-json3-dev)
endif()
add_library(gpipe_command_line STATIC EXCLUDE_FROM_ALL
    ${PROJECT_SOURCE_DIR}/examples/support/options.cpp ${PROJECT_SOURCE_DIR}/examples/support/json.cpp)
target_include_directories(gpipe_command_line PUBLIC ${PROJECT_SOURCE_DIR}/examples)
target_link_libraries(gpipe_command_line
    PUBLIC gpipe::gpipe nlohmann_json::nlohmann_json PRIVATE gpipe_warnings CLI11::CLI11)

# gpipe_program(TARGET NAME library...): NAME.cpp as a program NAME, tested for what every program
# promises, with arguments for a short run in SHORT_RUN_TARGET. The program's own tests, if any, are
# added by whoever calls this.
function(gpipe_program target name)
    add_executable(${target} ${name}.cpp)
    set_target_properties(${target} PROPERTIES OUTPUT_NAME ${name})
    target_include_directories(${target} PRIVATE ${CMAKE_CURRENT_SOURCE_DIR})
    target_link_libraries(${target} PRIVATE gpipe::gpipe gpipe_warnings gpipe_command_line ${ARGN})
    gpipe_program_once(${target} ${name}.cpp)
    if(GPIPE_BUILD_TESTS AND "programs" IN_LIST GPIPE_TEST_KINDS)
        add_test(NAME programs.${target}
            COMMAND sh ${PROJECT_SOURCE_DIR}/tests/scripts/program $<TARGET_FILE:${target}>
                ${SHORT_RUN_${target}})
        set_tests_properties(programs.${target} PROPERTIES LABELS programs)
    endif()
endfunction()

# gpipe_runs_as_ranks(TARGET [NCCL]): a program that starts itself as several processes where there is MPI, see
# examples/support/ranks.hpp; NCCL: one for GPUs, too.
function(gpipe_runs_as_ranks target)
    if(TARGET gpipe::mpi)
        target_compile_definitions(${target} PRIVATE GPIPE_EXAMPLE_MPI)
        target_link_libraries(${target} PRIVATE gpipe::mpi)
        if("NCCL" IN_LIST ARGN AND TARGET gpipe::nccl)
            target_compile_definitions(${target} PRIVATE GPIPE_EXAMPLE_NCCL)
            target_link_libraries(${target} PRIVATE gpipe::nccl)
        endif()
    endif()
endfunction()

# gpipe_cuda_programs(ROOM OUT): every .cu in examples/ or benchmarks/ as a program at
# <build>/ROOM/NAME; sets OUT to their names. Tests need them where their room is not built.
# Beside the benchmarks libgpu_timeline.so, which records what programs do on a GPU.
function(gpipe_cuda_programs room out)
    set(with_gpt gpu_ceilings gpu_gpt gpu_memory)
    set(names)
    file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/${room}/*.cu)
    foreach(source IN LISTS sources)
        cmake_path(GET source STEM name)
        list(APPEND names ${name})
        if(TARGET ${name})
            continue()
        endif()
        add_executable(${name} ${source})
        set_target_properties(${name} PROPERTIES
            RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/${room})
        target_link_libraries(${name} PRIVATE gpipe::gpipe gpipe_warnings gpipe_command_line
            $<$<IN_LIST:${name},${with_gpt}>:gpipe_gpt_cuda>)
        if(NOT name STREQUAL "custom_layer") # as a user compiles it
            gpipe_program_once(${name} ${source})
        endif()
    endforeach()
    set(${out} ${names} PARENT_SCOPE)
    if(room STREQUAL "benchmarks" AND TARGET CUDA::cupti AND NOT TARGET gpu_timeline)
        add_library(gpu_timeline SHARED ${PROJECT_SOURCE_DIR}/benchmarks/support/gpu_timeline.cpp)
        set_target_properties(gpu_timeline PROPERTIES
            LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/benchmarks)
        target_compile_features(gpu_timeline PRIVATE cxx_std_20)
        target_link_libraries(gpu_timeline PRIVATE CUDA::cupti gpipe_warnings)
    endif()
endfunction()

# Which tests to build; see tests/CMakeLists.txt.
set(GPIPE_TEST_KINDS unit runtime state cuda_double emulated static compile_fail headers cuda gpu scripts readme
    docs package programs CACHE STRING "Kinds of tests to build")
set(GPIPE_TESTS_TOGETHER 1 CACHE STRING "How many test files are compiled as one program")
if(NOT GPIPE_TESTS_TOGETHER MATCHES "^[1-9][0-9]*$")
    message(FATAL_ERROR "GPIPE_TESTS_TOGETHER is '${GPIPE_TESTS_TOGETHER}', and a number from 1 on is meant")
endif()
set(GPIPE_SANITIZER_TOOLS "" CACHE STRING "memcheck, racecheck, synccheck: for tests of kind gpu")
option(GPIPE_EVERY_MISTAKE "Try every mistake of compile_fail through nvcc, not one of each file" OFF)
set(GPIPE_SHARE "" CACHE STRING "k/n: of each kind of test every n-th alone, from the k-th on; empty: all")
if(NOT GPIPE_SHARE STREQUAL "" AND (NOT GPIPE_SHARE MATCHES "^([1-9])/([1-9])$" OR CMAKE_MATCH_1 GREATER CMAKE_MATCH_2))
    message(FATAL_ERROR "GPIPE_SHARE is '${GPIPE_SHARE}', and k/n is meant, as in 1/2")
endif()
