# Target gpipe_gpt: what the example's layers (examples/gpt) need, if this machine has it: oneDNN for their
# products, the include path, and in Release builds flags for their element-wise work. Not part of gpipe.
include_guard(DIRECTORY)
include(CheckCXXCompilerFlag)

option(GPIPE_NATIVE "Compile the GPT for this machine's processor in Release builds" ON)

function(gpipe_find_blas)
    find_path(GPIPE_DNNL_INCLUDE_DIR dnnl.h)
    find_library(GPIPE_DNNL_LIBRARY dnnl)
    mark_as_advanced(GPIPE_DNNL_INCLUDE_DIR GPIPE_DNNL_LIBRARY)
    if(NOT GPIPE_DNNL_INCLUDE_DIR OR NOT GPIPE_DNNL_LIBRARY OR TARGET gpipe_blas)
        return()
    endif()
    add_library(gpipe_blas INTERFACE)
    target_include_directories(gpipe_blas SYSTEM INTERFACE ${GPIPE_DNNL_INCLUDE_DIR})
    # oneDNN's threads are those of GNU OpenMP; the example asks it for one per caller.
    target_link_libraries(gpipe_blas INTERFACE ${GPIPE_DNNL_LIBRARY} gomp)

    add_library(gpipe_gpt INTERFACE)
    target_include_directories(gpipe_gpt INTERFACE ${PROJECT_SOURCE_DIR}/examples)
    target_link_libraries(gpipe_gpt INTERFACE gpipe_blas)
    # errno keeps square roots from vectorising: the optimizer would take as long as a layer.
    set(flags -O3 -fno-math-errno)
    if(GPIPE_NATIVE)
        check_cxx_compiler_flag(-march=native GPIPE_HAS_MARCH_NATIVE)
        if(GPIPE_HAS_MARCH_NATIVE)
            list(APPEND flags -march=native)
        endif()
        # The products use whole vectors, so narrower ones elsewhere would spare no clock speed.
        check_cxx_compiler_flag(-mprefer-vector-width=512 GPIPE_HAS_VECTOR_WIDTH)
        if(GPIPE_HAS_VECTOR_WIDTH)
            list(APPEND flags -mprefer-vector-width=512)
        endif()
    endif()
    list(JOIN flags "," cuda_flags)
    target_compile_options(gpipe_gpt INTERFACE
        $<$<AND:$<CONFIG:Release>,$<COMPILE_LANGUAGE:CXX>>:${flags}>
        $<$<AND:$<CONFIG:Release>,$<COMPILE_LANGUAGE:CUDA>>:-Xcompiler=${cuda_flags}>)

    # For examples/convnet: oneDNN's convolutions, apart, for nvcc does not compile its C++ header.
    add_library(gpipe_convnet STATIC EXCLUDE_FROM_ALL ${PROJECT_SOURCE_DIR}/examples/convnet/onednn.cpp)
    target_link_libraries(gpipe_convnet PUBLIC gpipe::gpipe gpipe_gpt PRIVATE gpipe_warnings)
endfunction()
gpipe_find_blas()

# Target gpipe_gpt_cuda: what the same layers need on GPUs: cuBLAS. Without oneDNN they work there, too.
if(GPIPE_WITH_CUDA)
    find_package(CUDAToolkit REQUIRED)
    add_library(gpipe_gpt_cuda INTERFACE)
    target_include_directories(gpipe_gpt_cuda INTERFACE ${PROJECT_SOURCE_DIR}/examples)
    target_link_libraries(gpipe_gpt_cuda INTERFACE CUDA::cublas)
endif()

# Target gpipe_convnet_cuda: what the layers in examples/convnet need on GPUs: cuDNN 9, too (of a CUDA Toolkit or
# NVIDIA's packages; CUDNN_HOME says where). Of it the tests without a GPU need the header alone.
set(places)
if(GPIPE_NVCC)
    cmake_path(GET GPIPE_NVCC PARENT_PATH places)
    set(places ${places}/..)
endif()
find_path(GPIPE_CUDNN_INCLUDE cudnn.h
    HINTS ENV CUDNN_HOME ENV CUDA_PATH ${places} PATHS /usr/local/cuda PATH_SUFFIXES include)
find_library(GPIPE_CUDNN_LIBRARY NAMES cudnn libcudnn.so.9
    HINTS ENV CUDNN_HOME ENV CUDA_PATH ${places} PATHS /usr/local/cuda PATH_SUFFIXES lib lib64)
mark_as_advanced(GPIPE_CUDNN_INCLUDE GPIPE_CUDNN_LIBRARY)
unset(places)
if(GPIPE_WITH_CUDA AND GPIPE_CUDNN_INCLUDE AND GPIPE_CUDNN_LIBRARY)
    add_library(gpipe_convnet_cuda INTERFACE)
    target_include_directories(gpipe_convnet_cuda SYSTEM INTERFACE ${GPIPE_CUDNN_INCLUDE})
    target_link_libraries(gpipe_convnet_cuda INTERFACE gpipe_gpt_cuda ${GPIPE_CUDNN_LIBRARY})
elseif(GPIPE_WITH_CUDA)
    message(STATUS "gpipe: no cuDNN, example convnet runs on the host alone")
endif()
