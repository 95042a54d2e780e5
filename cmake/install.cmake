# find_package(gpipe [COMPONENTS state mpi sockets nccl]): headers, exported targets, and a package file that finds the threads.
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/gpipe)
install(TARGETS gpipe gpipe_compiled EXPORT gpipe FILE_SET HEADERS)
install(EXPORT gpipe NAMESPACE gpipe:: FILE gpipe-targets.cmake DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/gpipe-config-version.cmake
    COMPATIBILITY SameMinorVersion ARCH_INDEPENDENT)
install(FILES ${PROJECT_SOURCE_DIR}/cmake/gpipe-config.cmake ${PROJECT_SOURCE_DIR}/cmake/gpipe-options.cmake
    ${PROJECT_SOURCE_DIR}/cmake/gpipe-state.cmake
    ${PROJECT_SOURCE_DIR}/cmake/gpipe-mpi.cmake ${PROJECT_SOURCE_DIR}/cmake/gpipe-sockets.cmake
    ${PROJECT_SOURCE_DIR}/cmake/gpipe-nccl.cmake
    ${PROJECT_SOURCE_DIR}/cmake/gpipe-profile.cmake ${PROJECT_SOURCE_DIR}/cmake/profile.cpp.in
    ${PROJECT_SOURCE_DIR}/cmake/compiled.cpp
    ${PROJECT_BINARY_DIR}/gpipe-config-version.cmake DESTINATION ${package_dir})
