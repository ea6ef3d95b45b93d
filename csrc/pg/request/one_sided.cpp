#include "pg/request/one_sided.h"

#include "pg/request/checks.h"
#include "pg/request/dense_copies.h"
#include "pg/request/staging.h"
#include "pg/request/tensor_blocks.h"

namespace occl::pg {
namespace {

Request access_of(const WindowAccess& access, const char* title, coll::Access kind, int rank) {
  Request r;
  r.title = title;
  r.window = access.window;
  coll::Transfer transfer;
  transfer.send = kind != coll::Access::wait_signal;
  transfer.peer = rank;
  transfer.access = kind;
  transfer.window = access.window.get();
  r.task = transfer;
  return r;
}

/// A signal or a wait, on the stream that is current on the device of this rank's tensor.
Request without_data(const WindowAccess& access, const char* title, coll::Access kind, std::int64_t rank,
                     std::int64_t channel) {
  const char* call = kind == coll::Access::signal ? "signal" : "wait_signal";
  const int peer = rank_of(call, access.self, rank);
  if (channel < 0 || channel >= access.channels)
    invalid(call, "invalid channel ", channel, " (there are ", access.channels, ")");
  Request r = access_of(access, title, kind, peer);
  std::get<coll::Transfer>(r.task).tag = static_cast<std::uint32_t>(channel);
  r.inputs = r.outputs = {access.mark};
  return r;
}

}  // namespace

shm::Ref mapped_memory(const char* call, const at::Tensor& t, const shm::RegionTable& regions) {
  check_tensor(call, t);
  check_dense(call, t, Density::contiguous);
  if (t.is_quantized()) invalid(call, "quantized tensors cannot be registered with a window");
  if (static_cast<std::size_t>(t.dim()) > kMaxWindowDims)
    invalid(call, "a tensor of a window has at most ", kMaxWindowDims, " dimensions, and this one has ",
            t.dim());
  if (t.numel() == 0) return {};
  const auto found = is_on_host(t) ? regions.find(t.const_data_ptr(), t.nbytes()) : std::nullopt;
  if (!found)
    invalid(call, "the tensor (on ", c10::str(t.device()),
            ") is not in memory that peers can map: make it with torch_occl.empty_shared(...), on the device "
            "\"dev\", or after torch_occl.share_cpu_memory()");
  return *found;
}

int rank_of(const char* call, ThisRank self, std::int64_t rank) {
  if (rank < 0 || rank >= self.size)
    invalid(call, "invalid rank ", rank, " (the group has ", self.size, " ranks)");
  return static_cast<int>(rank);
}

Request put(const WindowAccess& access, const at::Tensor& t, std::int64_t rank, std::int64_t offset) {
  const char* call = "put";
  const int to = rank_of(call, access.self, rank);
  check_tensor(call, t);
  const WindowTensor& target = access.tensors[to];
  if (t.scalar_type() != target.type)
    invalid(call, "the tensor has the type ", c10::str(t.scalar_type()), ", and that of rank ", to,
            " in the window has ", c10::str(target.type));
  if (t.is_quantized()) invalid(call, "quantized tensors cannot be put");
  if (t.device().type() != target.device.type())
    invalid(call, "the tensor is on ", c10::str(t.device()), ", and that of rank ", to, " in the window on ",
            c10::str(target.device));
  if (offset < 0 || offset > target.elements || t.numel() > target.elements - offset)
    invalid(call, "elements ", offset, " to ", offset, " + ", t.numel(), " do not lie in the ",
            target.elements, " that rank ", to, " has in the window");
  Request r = access_of(access, "occl:put", coll::Access::put, to);
  const StandIn read = for_reading(call, r, t);
  auto& transfer = std::get<coll::Transfer>(r.task);
  transfer.dtype = dtype_of(*read);
  transfer.buffer = block_of(*read);
  // Elements of a type that the core does not know are bytes.
  transfer.offset = static_cast<std::size_t>(offset) * t.element_size() / size_of(transfer.dtype);
  if (to == access.self.rank && t.numel() > 0) {
    const std::byte* const at = access.own + transfer.offset * size_of(transfer.dtype);
    const coll::Block written{const_cast<std::byte*>(at), transfer.buffer.count};
    check_overlap(call, transfer.buffer, written, size_of(transfer.dtype), at);
  }
  r.inputs = r.outputs = {t};
  return r;
}

Request signal(const WindowAccess& access, std::int64_t rank, std::int64_t channel) {
  return without_data(access, "occl:signal", coll::Access::signal, rank, channel);
}

Request wait_signal(const WindowAccess& access, std::int64_t rank, std::int64_t channel) {
  return without_data(access, "occl:wait_signal", coll::Access::wait_signal, rank, channel);
}

}  // namespace occl::pg
