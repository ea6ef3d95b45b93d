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
  ~Mpi() override {
    free_window();
    MPI_Finalize();
  }

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
  bool offers(Op op, Type type) override {
    puts_ = op == Op::put;
#if defined(MPIX_C_BF16) && defined(MPIX_C_FLOAT16)
    return type == Type::f32 || type == Type::bf16 || type == Type::f16;
#else
    return type == Type::f32;
#endif
  }

  /// For puts that of a window, the kind of memory for which libraries have their fastest way.
  std::byte* memory(std::size_t bytes) override {
    if (!puts_) return Library::memory(bytes);
    free_window();
    flag_at_ = static_cast<MPI_Aint>((bytes + 63) / 64 * 64);
    must(MPI_Win_allocate(flag_at_ + 64, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &window_memory_, &window_),
         "MPI_Win_allocate");
    must(MPI_Win_lock_all(0, window_), "MPI_Win_lock_all");
    flag() = sent_ = seen_ = 0;
    must(MPI_Win_sync(window_), "MPI_Win_sync");
    must(MPI_Barrier(MPI_COMM_WORLD), "MPI_Barrier");
    return window_memory_;
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
      case Op::put:
        return puts(b, whole * static_cast<int>(size_of(task.type)));
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

 private:
  volatile std::uint64_t& flag() { return *reinterpret_cast<std::uint64_t*>(window_memory_ + flag_at_); }

  void free_window() {
    if (!window_memory_) return;
    must(MPI_Win_unlock_all(window_), "MPI_Win_unlock_all");
    must(MPI_Win_free(&window_), "MPI_Win_free");
    window_memory_ = nullptr;
  }

  /// Data, a flush, and a flag, for which the other rank looks.
  Call puts(Buffers b, int bytes) {
    const int peer = rank ^ 1;
    if (peer >= size) return [] {};
    const MPI_Aint to = b.out - window_memory_;
    const auto put = [=, this] {
      must(MPI_Put(b.in, bytes, MPI_BYTE, peer, to, bytes, MPI_BYTE, window_), "MPI_Put");
      must(MPI_Win_flush(peer, window_), "MPI_Win_flush");
      ++sent_;
      must(MPI_Put(&sent_, 1, MPI_UINT64_T, peer, flag_at_, 1, MPI_UINT64_T, window_), "MPI_Put");
      must(MPI_Win_flush(peer, window_), "MPI_Win_flush");
    };
    const auto wait = [this] {
      ++seen_;
      for (int turn = 1; flag() < seen_; ++turn) {
        must(MPI_Win_sync(window_), "MPI_Win_sync");
        int there = 0;  // lets a library progress that carries puts by messages
        if (turn % 16 == 0)
          must(MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &there, MPI_STATUS_IGNORE),
               "MPI_Iprobe");
      }
      must(MPI_Win_sync(window_), "MPI_Win_sync");
    };
    const bool first = rank < peer;
    return [=] {
      if (!first) wait();
      put();
      if (first) wait();
    };
  }

  bool puts_ = false;
  MPI_Win window_ = MPI_WIN_NULL;
  std::byte* window_memory_ = nullptr;
  MPI_Aint flag_at_ = 0;
  std::uint64_t sent_ = 0, seen_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  return guarded([&] {
    auto mpi = std::make_unique<Mpi>(&argc, &argv);
    if (argc != 2) throw std::runtime_error("usage: mpirun -n RANKS mpi ADDRESS");
    return serve(*mpi, argv[1]);
  });
}
