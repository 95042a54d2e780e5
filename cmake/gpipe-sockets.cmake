# Target gpipe::sockets: the library with transport/rendezvous.hpp and transport/socket_ranks.hpp, for which it needs
# OpenSSL's libcrypto (in Debian libssl-dev). Without that the target is not there, and all else is as it was. In this tree
# and in an installed one.
set(scope)
if(TARGET gpipe) # this tree: its targets are known everywhere, what find_package() found only here
    set(scope GLOBAL)
endif()
if(NOT TARGET OpenSSL::Crypto)
    find_package(OpenSSL 1.1.1 QUIET COMPONENTS Crypto)
    if(TARGET OpenSSL::Crypto AND scope)
        set_target_properties(OpenSSL::Crypto PROPERTIES IMPORTED_GLOBAL ON)
    endif()
endif()
if(TARGET OpenSSL::Crypto AND NOT TARGET gpipe::sockets)
    add_library(gpipe::sockets INTERFACE IMPORTED ${scope})
    target_link_libraries(gpipe::sockets INTERFACE gpipe::gpipe OpenSSL::Crypto)
endif()
unset(scope)
