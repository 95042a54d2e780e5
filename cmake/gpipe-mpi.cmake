# Target gpipe::mpi: the library with transport/mpi.hpp, for which it needs MPI 3.1 (in Debian libopenmpi-dev). Without
# that the target is not there, and all else is as it was. In this tree and in an installed one.
set(scope)
if(TARGET gpipe) # this tree: its targets are known everywhere, what find_package() found only here
    set(scope GLOBAL)
endif()
if(NOT TARGET MPI::MPI_CXX)
    set(MPI_CXX_SKIP_MPICXX ON) # the obsolete C++ interface and its library
    find_package(MPI 3.1 QUIET COMPONENTS CXX)
    if(TARGET MPI::MPI_CXX AND scope)
        set_target_properties(MPI::MPI_CXX PROPERTIES IMPORTED_GLOBAL ON)
    endif()
endif()
if(TARGET MPI::MPI_CXX AND NOT TARGET gpipe::mpi)
    add_library(gpipe::mpi INTERFACE IMPORTED ${scope})
    target_link_libraries(gpipe::mpi INTERFACE gpipe::gpipe MPI::MPI_CXX)
endif()
unset(scope)
