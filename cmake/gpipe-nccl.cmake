# Target gpipe::nccl: the library with transport/nccl.hpp, for which it needs NCCL 2.18 (from a CUDA Toolkit or
# NVIDIA's packages; NCCL_HOME says where). Without that the target is not there, and all else is as it was.
# In this tree and in an installed one.
set(scope)
if(TARGET gpipe) # this tree: its targets are known everywhere
    set(scope GLOBAL)
endif()
set(places)
find_program(GPIPE_NCCL_NVCC nvcc HINTS ENV CUDA_PATH PATHS /usr/local/cuda PATH_SUFFIXES bin)
if(GPIPE_NCCL_NVCC)
    cmake_path(GET GPIPE_NCCL_NVCC PARENT_PATH places)
    set(places ${places}/..)
endif()
find_path(GPIPE_NCCL_INCLUDE nccl.h HINTS ENV NCCL_HOME ${places} PATHS /usr/local/cuda PATH_SUFFIXES include)
find_library(GPIPE_NCCL_LIBRARY NAMES nccl libnccl.so.2 HINTS ENV NCCL_HOME ${places} PATHS /usr/local/cuda
    PATH_SUFFIXES lib lib64)
mark_as_advanced(GPIPE_NCCL_NVCC GPIPE_NCCL_INCLUDE GPIPE_NCCL_LIBRARY)
if(GPIPE_NCCL_INCLUDE AND GPIPE_NCCL_LIBRARY AND NOT TARGET gpipe::nccl)
    add_library(gpipe::nccl INTERFACE IMPORTED ${scope})
    set_target_properties(gpipe::nccl PROPERTIES INTERFACE_SYSTEM_INCLUDE_DIRECTORIES ${GPIPE_NCCL_INCLUDE})
    target_link_libraries(gpipe::nccl INTERFACE gpipe::gpipe ${GPIPE_NCCL_LIBRARY})
endif()
unset(scope)
unset(places)
