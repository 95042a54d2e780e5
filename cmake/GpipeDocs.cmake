# The reference: HTML of every public declaration, by doxygen, whose warnings are errors. Target
# `docs`; test docs.reference.
find_program(GPIPE_DOXYGEN doxygen)
mark_as_advanced(GPIPE_DOXYGEN)
set(GPIPE_DOCS ${CMAKE_CURRENT_BINARY_DIR}/docs)
configure_file(cmake/Doxyfile.in docs/Doxyfile @ONLY)

if(GPIPE_DOXYGEN)
    add_custom_target(docs COMMAND ${GPIPE_DOXYGEN} ${GPIPE_DOCS}/Doxyfile
        COMMENT "HTML: ${GPIPE_DOCS}/html/index.html" VERBATIM)
elseif(GPIPE_BUILD_DOCS)
    message(FATAL_ERROR "gpipe: doxygen not found. On Debian: apt-get install doxygen, "
                        "or everything at once: sh cmake/install-packages test")
endif()
