#include <gpipe/gpipe.hpp>
#include <gpipe/transport/mpi.hpp>

int main() {
    gpipe::MpiRanks ranks;
    return ranks.gather(7)[ranks.rank()] == 7 ? 0 : 1;
}
