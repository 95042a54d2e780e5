# Target gpipe::state: the library with gpipe/state/, for which it needs nlohmann-json (in Debian nlohmann-json3-dev,
# header-only). Without that the target is not there, and all else is as it was. In this tree and in an installed one.
if(NOT TARGET nlohmann_json::nlohmann_json)
    find_package(nlohmann_json 3.9 QUIET)
endif()
if(TARGET nlohmann_json::nlohmann_json AND NOT TARGET gpipe::state)
    set(scope)
    if(TARGET gpipe) # this tree: its targets are known everywhere, what find_package() found only here
        set(scope GLOBAL)
    endif()
    add_library(gpipe::state INTERFACE IMPORTED ${scope})
    get_target_property(json_headers nlohmann_json::nlohmann_json INTERFACE_INCLUDE_DIRECTORIES)
    target_include_directories(gpipe::state INTERFACE ${json_headers})
    target_link_libraries(gpipe::state INTERFACE gpipe::gpipe)
    target_compile_definitions(gpipe::state INTERFACE GPIPE_STATE) # which compiled.cpp looks at
    unset(json_headers)
    unset(scope)
endif()
