// occl's backend as PyTorch's C++ calls it: tensors, options and works, but no Python and no dispatcher.
//
//   backend ADDRESS RANK SIZE dev|cpu [LISTEN]
//
// LISTEN is the address of this rank's host, if the ranks are on several. TCP connects them then.
#include <ATen/ATen.h>
#include <torch/version.h>
#include <torch/csrc/distributed/c10d/FileStore.hpp>

#include "device/registrations.h"
#include "peer.h"
#include "pg/backend/process_group.h"
#include "pg/process/python_hooks.h"

namespace {

using namespace bench;
using occl::pg::ProcessGroupOCCL;

at::ScalarType scalar_type(Type type) {
  return type == Type::f32 ? at::kFloat : type == Type::bf16 ? at::kBFloat16 : at::kHalf;
}

class Backend : public Library {
 public:
  Backend(const std::string& address, int rank_, int size_, bool dev, const std::string& listen)
      : device_(at::kCPU) {
    rank = rank_, size = size_;
    if (dev) {
      occl::device::register_device([] {});
      device_ = at::Device(at::DeviceType::PrivateUse1, 0);
    }
    auto store = c10::make_intrusive<c10d::FileStore>(address + ".store", size);
    ProcessGroupOCCL::Options options(kPatience);
    if (!listen.empty()) {
      occl::pg::set_prepare_tcp([listen](auto&&...) { return occl::pg::PreparedTcp{"tcp", listen}; });
      options.set_inter_node("tcp");
    }
    group_ = c10::make_intrusive<ProcessGroupOCCL>(store, rank, size, options);
  }

  std::string version() override { return "torch " TORCH_VERSION; }
  bool offers(Op op, Type) override { return op != Op::put; }

  std::byte* memory(std::size_t bytes) override {
    if (device_.is_cpu()) return Library::memory(bytes);
    memory_ = at::Tensor();
    memory_ = at::empty({static_cast<std::int64_t>(bytes)}, at::device(device_).dtype(at::kByte));
    return static_cast<std::byte*>(memory_.data_ptr());
  }

  Call bind(const Task& task, Buffers b) override {
    const auto view = [&](std::byte* p, std::size_t n) {
      const auto options = at::device(device_).dtype(scalar_type(task.type));
      const std::int64_t sizes[] = {static_cast<std::int64_t>(n)};
      return at::for_blob(p, sizes).options(options).target_device(device_).make_tensor();
    };
    const at::Tensor in = view(b.in, task.input()), out = view(b.out, task.output());
    const auto parts = [&](const at::Tensor& t) { return t.chunk(size); };
    const bool at_root = rank == 0;
    ProcessGroupOCCL* pg = group_.get();
    switch (task.op) {
      case Op::all_reduce:
        return call<c10d::AllreduceOptions>([pg](auto& t, auto& o) { return pg->allreduce(t, o); }, in);
      case Op::broadcast:
        return call<c10d::BroadcastOptions>([pg](auto& t, auto& o) { return pg->broadcast(t, o); }, in);
      case Op::reduce:
        return call<c10d::ReduceOptions>([pg](auto& t, auto& o) { return pg->reduce(t, o); }, in);
      case Op::all_gather:
        return [=, o = blocking<c10d::AllgatherOptions>()]() mutable {
          pg->_allgather_base(const_cast<at::Tensor&>(out), const_cast<at::Tensor&>(in), o)->wait();
        };
      case Op::reduce_scatter:
        return [=, o = blocking<c10d::ReduceScatterOptions>()]() mutable {
          pg->_reduce_scatter_base(const_cast<at::Tensor&>(out), const_cast<at::Tensor&>(in), o)->wait();
        };
      case Op::all_to_all:
        return [=, o = blocking<c10d::AllToAllOptions>(), none = std::vector<std::int64_t>{}]() mutable {
          pg->alltoall_base(const_cast<at::Tensor&>(out), const_cast<at::Tensor&>(in), none, none, o)->wait();
        };
      case Op::gather: {
        std::vector<std::vector<at::Tensor>> outputs;
        if (at_root) outputs.push_back(parts(out));
        return [=, o = blocking<c10d::GatherOptions>(), ins = std::vector{in}]() mutable {
          pg->gather(outputs, ins, o)->wait();
        };
      }
      case Op::scatter: {
        std::vector<std::vector<at::Tensor>> inputs;
        if (at_root) inputs.push_back(parts(in));
        return [=, o = blocking<c10d::ScatterOptions>(), outs = std::vector{out}]() mutable {
          pg->scatter(outs, inputs, o)->wait();
        };
      }
      case Op::barrier:
        return [=, o = blocking<c10d::BarrierOptions>()] { pg->barrier(o)->wait(); };
      case Op::send_recv:
        break;
      case Op::unknown:
        throw std::runtime_error("unknown operation");
    }
    const int peer = rank ^ 1;
    if (peer >= size) return [] {};
    const bool first = rank < peer;
    return [=, ins = std::vector{in}, outs = std::vector{out}]() mutable {
      if (first) pg->send(ins, peer, 0)->wait();
      pg->recv(outs, peer, 0)->wait();
      if (!first) pg->send(ins, peer, 0)->wait();
    };
  }

 private:
  /// As torch.distributed sets them for a call that waits.
  template <class Options>
  static Options blocking() {
    Options options;
    options.asyncOp = false;
    return options;
  }
  template <class Options, class F>
  static Call call(F f, const at::Tensor& tensor) {
    return [f, o = blocking<Options>(), tensors = std::vector{tensor}]() mutable { f(tensors, o)->wait(); };
  }

  at::Device device_;
  at::Tensor memory_;
  c10::intrusive_ptr<ProcessGroupOCCL> group_;
};

}  // namespace

int main(int argc, char** argv) {
  return guarded([&] {
    if (argc != 5 && argc != 6) throw std::runtime_error("usage: backend ADDRESS RANK SIZE dev|cpu [LISTEN]");
    // Never destroyed: threads of the process group end with the process.
    auto* backend = new Backend(argv[1], std::atoi(argv[2]), std::atoi(argv[3]),
                                std::string(argv[4]) == "dev", argc == 6 ? argv[5] : "");
    std::_Exit(serve(*backend, argv[1]));
    return 0;
  });
}
