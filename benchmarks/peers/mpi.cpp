// The collectives of an MPI library: one source for all of them.
//
//   mpirun -n 2 mpi ADDRESS
#define OMPI_SKIP_MPICXX
#define MPICH_SKIP_MPICXX
#include <mpi.h>

#include <memory>

#include "peer.h"

namespace {

using namespace bench;

void must(int code, const char* what) {
  if (code != MPI_SUCCESS) throw std::runtime_error(std::string(what) + " failed");
}

class Mpi : public Library {
 public:
  Mpi(int* argc, char*** argv) {
    must(MPI_Init(argc, argv), "MPI_Init");
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
  }
  ~Mpi() override { MPI_Finalize(); }

  std::string version() override {
    char text[MPI_MAX_LIBRARY_VERSION_STRING];
    int length = 0;
    MPI_Get_library_version(text, &length);
    std::string line(text);  // Open MPI counts the terminating zero in the length
    for (char& c : line)
      if (c == '\t') c = ' ';
    return line;
  }

  // The standard has no 16-bit floating point; Intel's extension is a constant of its header.
  bool offers(Op, Type type) override {
#if defined(MPIX_C_BF16) && defined(MPIX_C_FLOAT16)
    return type == Type::f32 || type == Type::bf16 || type == Type::f16;
#else
    return type == Type::f32;
#endif
  }

  Call bind(const Task& task, Buffers b) override {
    const int whole = static_cast<int>(task.whole), part = static_cast<int>(task.part), root = 0;
    const MPI_Comm comm = MPI_COMM_WORLD;
    MPI_Datatype type = MPI_FLOAT;
#if defined(MPIX_C_BF16) && defined(MPIX_C_FLOAT16)
    if (task.type != Type::f32) type = task.type == Type::bf16 ? MPIX_C_BF16 : MPIX_C_FLOAT16;
#endif
    const bool at_root = rank == root;
    switch (task.op) {
      case Op::all_reduce:
        return [=] { must(MPI_Allreduce(MPI_IN_PLACE, b.in, whole, type, MPI_SUM, comm), "MPI_Allreduce"); };
      case Op::broadcast:
        return [=] { must(MPI_Bcast(b.in, whole, type, root, comm), "MPI_Bcast"); };
      case Op::all_gather:
        return [=] { must(MPI_Allgather(b.in, part, type, b.out, part, type, comm), "MPI_Allgather"); };
      case Op::reduce_scatter:
        return [=] {
          must(MPI_Reduce_scatter_block(b.in, b.out, part, type, MPI_SUM, comm), "MPI_Reduce_scatter_block");
        };
      case Op::all_to_all:
        return [=] { must(MPI_Alltoall(b.in, part, type, b.out, part, type, comm), "MPI_Alltoall"); };
      case Op::reduce:
        return [=] {
          must(MPI_Reduce(at_root ? MPI_IN_PLACE : b.in, at_root ? b.in : nullptr, whole, type, MPI_SUM, root,
                          comm),
               "MPI_Reduce");
        };
      case Op::gather:
        return [=] {
          must(MPI_Gather(b.in, part, type, at_root ? b.out : nullptr, part, type, root, comm), "MPI_Gather");
        };
      case Op::scatter:
        return [=] {
          must(MPI_Scatter(at_root ? b.in : nullptr, part, type, b.out, part, type, root, comm),
               "MPI_Scatter");
        };
      case Op::barrier:
        return [=] { must(MPI_Barrier(comm), "MPI_Barrier"); };
      case Op::send_recv:
        break;
      case Op::unknown:
        throw std::runtime_error("unknown operation");
    }
    const int peer = rank ^ 1;
    if (peer >= size) return [] {};
    const bool first = rank < peer;
    return [=] {
      if (first) must(MPI_Send(b.in, whole, type, peer, 0, comm), "MPI_Send");
      must(MPI_Recv(b.out, whole, type, peer, 0, comm, MPI_STATUS_IGNORE), "MPI_Recv");
      if (!first) must(MPI_Send(b.in, whole, type, peer, 0, comm), "MPI_Send");
    };
  }
};

}  // namespace

int main(int argc, char** argv) {
  return guarded([&] {
    auto mpi = std::make_unique<Mpi>(&argc, &argv);
    if (argc != 2) throw std::runtime_error("usage: mpirun -n RANKS mpi ADDRESS");
    return serve(*mpi, argv[1]);
  });
}
