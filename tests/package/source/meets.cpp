#include <gpipe/gpipe.hpp>
#include <gpipe/transport/socket_ranks.hpp>

int main() {
    gpipe::SocketRanks::Options o;
    o.rendezvous.ranks = 1;
    gpipe::SocketRanks ranks(o);
    return ranks.gather(7)[ranks.rank()] == 7 ? 0 : 1;
}
