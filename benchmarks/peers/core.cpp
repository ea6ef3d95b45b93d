// The torch-free core of occl, called as its users' backend calls it: one process per rank, real endpoints.
//
//   core ADDRESS RANK SIZE mapped|heap      mapped: buffers that peers can reach, as those of `dev` are
#include <memory>

#include "base/error.h"
#include "coll/group/group.h"
#include "coll/mesh/mesh.h"
#include "coll/progress/engine.h"
#include "peer.h"

namespace {

using namespace bench;
using occl::Deadline;
namespace coll = occl::coll;
namespace shm = occl::shm;

/// An operation that its caller waits for.
class Blocking : public coll::Listener {
 public:
  Blocking(coll::Engine& engine, coll::Group& group, const coll::Task& task)
      : operation_(*this, task, Deadline::after(kPatience)) {
    engine.submit_before_wait(group, operation_);
    if (!engine.wait(group, operation_, Deadline::never(), {}))
      throw std::runtime_error("the operation did not end");
    if (operation_.error()) throw *operation_.error();
    while (!released_.load(std::memory_order_acquire)) std::this_thread::yield();  // pairs with released()
  }
  void completed(coll::Operation&) noexcept override {}
  void released(coll::Operation&) noexcept override {
    released_.store(true, std::memory_order_release);  // pairs with the constructor
  }

 private:
  std::atomic<bool> released_ = false;
  coll::Operation operation_;
};

occl::DType dtype_of(Type type) {
  return type == Type::f32 ? occl::DType::f32 : type == Type::bf16 ? occl::DType::bf16 : occl::DType::f16;
}

class Core : public Library {
 public:
  Core(const std::string& address, int rank_, int size_, bool mapped) : mapped_(mapped) {
    rank = rank_, size = size_;
    regions_ = std::make_shared<shm::RegionTable>();
    auto endpoint = std::make_shared<shm::Endpoint>(regions_, shm::Endpoint::Config{});
    engine_ = std::make_unique<coll::Engine>(endpoint);
    auto mesh = std::make_unique<coll::Mesh>(endpoint, "bench", rank, size, occl::Tuning{});
    const coll::Invitation own = mesh->invitation();
    const auto file = [&](int r) { return address + ".invitation." + std::to_string(r); };
    publish(file(rank), {reinterpret_cast<const char*>(&own), sizeof(own)});
    std::vector<coll::Invitation> all(size);
    for (int r = 0; r < size; ++r) {
      const std::string text = await(file(r));
      if (text.size() != sizeof(own)) throw std::runtime_error("a broken invitation");
      std::memcpy(static_cast<void*>(&all[r]), text.data(), sizeof(own));
    }
    mesh->join(all, Deadline::after(kPatience));
    group_ = std::make_shared<coll::Group>(*engine_, std::move(mesh));
    engine_->add(group_);
  }
  ~Core() override {
    group_->close();
    group_.reset();
  }

  std::string version() override { return "protocol " + std::to_string(shm::kProtocolVersion); }
  bool offers(Op op, Type) override { return op != Op::put; }

  std::byte* memory(std::size_t bytes) override {
    if (!mapped_) return Library::memory(bytes);
    if (!region_) {
      region_ = std::make_shared<shm::Region>(
          shm::Region::create("bench", std::size_t{16} << 30, shm::Access::read_write));
      regions_->add(region_);
    }
    region_->commit(0, bytes);
    return region_->base();
  }

  Call bind(const Task& task, Buffers b) override {
    const occl::DType dtype = dtype_of(task.type);
    if (task.op == Op::send_recv) return round_trip(task, b, dtype);
    coll::Collective c;
    if (task.op == Op::barrier) return [this, c] { Blocking(*engine_, *group_, c); };
    c.kind = kind_of(task.op);
    c.dtype = dtype;
    const coll::Traits& t = coll::traits(c.kind);
    if (t.reduces) c.op = occl::ReduceOp::sum;
    const bool per_rank = t.in_per_rank || t.out_per_rank;
    const std::size_t count = per_rank ? task.part : task.whole;
    const auto blocks = [&](std::byte* base, bool many) {
      return coll::Blocks{base, count, many ? static_cast<std::uint32_t>(size) : 1, nullptr};
    };
    if (!t.in_root_only || rank == 0) c.in = blocks(b.in, t.in_per_rank);
    if (!t.out_root_only || rank == 0) c.out = blocks(b.out, t.out_per_rank);
    c.largest = c.volume = count;
    return [this, c] { Blocking(*engine_, *group_, c); };
  }

 private:
  static coll::Kind kind_of(Op op) {
    using coll::Kind;
    switch (op) {
      case Op::all_reduce:
        return Kind::all_reduce;
      case Op::broadcast:
        return Kind::broadcast;
      case Op::all_gather:
        return Kind::all_gather;
      case Op::reduce_scatter:
        return Kind::reduce_scatter;
      case Op::all_to_all:
        return Kind::all_to_all;
      case Op::reduce:
        return Kind::reduce;
      case Op::gather:
        return Kind::gather;
      case Op::scatter:
        return Kind::scatter;
      default:
        return Kind::barrier;
    }
  }

  Call round_trip(const Task& task, Buffers b, occl::DType dtype) {
    const int peer = rank ^ 1;
    if (peer >= size) return [] {};
    const coll::Transfer send{true, peer, 0, dtype, {b.in, task.whole}};
    const coll::Transfer receive{false, peer, 0, dtype, {b.out, task.whole}};
    const auto& [first, second] = rank < peer ? std::pair{send, receive} : std::pair{receive, send};
    return [this, first = first, second = second] {
      Blocking(*engine_, *group_, first);
      Blocking(*engine_, *group_, second);
    };
  }

  const bool mapped_;
  std::shared_ptr<shm::RegionTable> regions_;
  std::shared_ptr<shm::Region> region_;
  std::unique_ptr<coll::Engine> engine_;
  std::shared_ptr<coll::Group> group_;
};

}  // namespace

int main(int argc, char** argv) {
  return guarded([&] {
    if (argc != 5) throw std::runtime_error("usage: core ADDRESS RANK SIZE mapped|heap");
    Core core(argv[1], std::atoi(argv[2]), std::atoi(argv[3]), std::string(argv[4]) == "mapped");
    return serve(core, argv[1]);
  });
}
