// The collectives of oneCCL on the CPU. It has no gather and no scatter.
//
//   mpiexec -n 2 oneccl ADDRESS RANK|auto SIZE|auto
#include <memory>
#include <oneapi/ccl.hpp>

#include "peer.h"

// The static library refers to Intel's tracing interface. All of these are pointers to functions, and null
// means that no tool traces.
extern "C" {
void *__itt_domain_create_ptr__3_0, *__itt_event_create_ptr__3_0, *__itt_event_end_ptr__3_0,
    *__itt_event_start_ptr__3_0, *__itt_metadata_add_ptr__3_0, *__itt_string_handle_create_ptr__3_0,
    *__itt_task_begin_ptr__3_0, *__itt_task_end_ptr__3_0, *__itt_thread_set_name_ptr__3_0;
}

namespace {

using namespace bench;

ccl::datatype datatype_of(Type type) {
  return type == Type::f32    ? ccl::datatype::float32
         : type == Type::bf16 ? ccl::datatype::bfloat16
                              : ccl::datatype::float16;
}

class OneCcl : public Library {
 public:
  OneCcl(const std::string& address, int rank_, int size_) {
    rank = rank_, size = size_;
    ccl::init();
    const std::string file = address + ".kvs";
    std::shared_ptr<ccl::kvs> kvs;
    if (rank == 0) {
      kvs = ccl::create_main_kvs();
      const auto own = kvs->get_address();
      publish(file, {own.data(), own.size()});
    } else {
      const std::string text = await(file);
      ccl::kvs::address_type main;
      if (text.size() != main.size()) throw std::runtime_error("a broken address");
      std::copy(text.begin(), text.end(), main.begin());
      kvs = ccl::create_kvs(main);
    }
    comm_ = std::make_unique<ccl::communicator>(ccl::create_communicator(size, rank, kvs));
    kvs_ = kvs;
  }

  std::string version() override { return ccl::get_library_version().full; }
  bool offers(Op op, Type) override { return op != Op::gather && op != Op::scatter && op != Op::put; }

  Call bind(const Task& task, Buffers b) override {
    const auto type = datatype_of(task.type);
    const auto sum = ccl::reduction::sum;
    const std::size_t whole = task.whole, part = task.part;
    ccl::communicator& comm = *comm_;
    switch (task.op) {
      case Op::all_reduce:
        return [=, &comm] { ccl::allreduce(b.in, b.in, whole, type, sum, comm).wait(); };
      case Op::broadcast:
        return [=, &comm] { ccl::broadcast(b.in, whole, type, 0, comm).wait(); };
      case Op::all_gather:
        return [=, &comm] { ccl::allgather(b.in, b.out, part, type, comm).wait(); };
      case Op::reduce_scatter:
        return [=, &comm] { ccl::reduce_scatter(b.in, b.out, part, type, sum, comm).wait(); };
      case Op::all_to_all:
        return [=, &comm] { ccl::alltoall(b.in, b.out, part, type, comm).wait(); };
      case Op::reduce:
        return [=, &comm] { ccl::reduce(b.in, b.in, whole, type, sum, 0, comm).wait(); };
      case Op::barrier:
        return [=, &comm] { ccl::barrier(comm).wait(); };
      case Op::send_recv:
        break;
      default:
        throw std::runtime_error("unknown operation");
    }
    const int peer = rank ^ 1;
    if (peer >= size) return [] {};
    const bool first = rank < peer;
    return [=, &comm] {
      if (first) ccl::send(b.in, whole, type, peer, comm).wait();
      ccl::recv(b.out, whole, type, peer, comm).wait();
      if (!first) ccl::send(b.in, whole, type, peer, comm).wait();
    };
  }

 private:
  std::shared_ptr<ccl::kvs> kvs_;
  std::unique_ptr<ccl::communicator> comm_;
};

/// What a launcher says through the environment.
int from_environment(const char* name) {
  const char* text = std::getenv(name);
  if (!text) throw std::runtime_error(std::string(name) + " is not set: start me with mpiexec");
  return std::atoi(text);
}

}  // namespace

int main(int argc, char** argv) {
  return guarded([&] {
    if (argc != 4) throw std::runtime_error("usage: oneccl ADDRESS RANK|auto SIZE|auto");
    const auto number = [&](int i, const char* name) {
      return std::string(argv[i]) == "auto" ? from_environment(name) : std::atoi(argv[i]);
    };
    // Never destroyed: the library's threads end with the process.
    auto* ccl = new OneCcl(argv[1], number(2, "PMI_RANK"), number(3, "PMI_SIZE"));
    const int code = serve(*ccl, argv[1]);
    std::_Exit(code);
    return code;
  });
}
