// The accesses of a window as Requests, and the tensors that a window takes. As in normalize.h, wrong
// arguments throw ValueError before anything is sent.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "coll/windows/window.h"
#include "pg/request/request.h"
#include "shm/region_table.h"

namespace occl::pg {

/// The tensor of one rank in a window, as that rank has announced it.
struct WindowTensor {
  at::ScalarType type = at::kByte;
  c10::Device device = at::kCPU;
  std::vector<std::int64_t> sizes;
  std::int64_t elements = 0;
};

/// What all accesses of a window need.
struct WindowAccess {
  ThisRank self;
  std::shared_ptr<coll::Window> window;
  std::byte* own;                            // this rank's memory; null if it has no bytes
  const std::vector<WindowTensor>& tensors;  // by rank
  at::Tensor mark;                           // without elements, on the device of this rank's tensor
  int channels = 1;                          // of signals
};

/// The most dimensions of a window's tensor.
inline constexpr std::size_t kMaxWindowDims = 16;

/// Where the memory of a tensor lies for peers. Requires a contiguous tensor in memory that they can map.
shm::Ref mapped_memory(const char* call, const at::Tensor& tensor, const shm::RegionTable& regions);
/// Returns `rank`, which must be one of the group.
int rank_of(const char* call, ThisRank self, std::int64_t rank);

/// Writes the tensor into that of `rank`, from element `offset` on.
Request put(const WindowAccess& access, const at::Tensor& tensor, std::int64_t rank, std::int64_t offset);
Request signal(const WindowAccess& access, std::int64_t rank, std::int64_t channel);
Request wait_signal(const WindowAccess& access, std::int64_t rank, std::int64_t channel);

}  // namespace occl::pg
