// Symmetric memory: an allocation of each rank of a group, all of one size, which all ranks map.
//
// It is a window (pg/backend/window.h) over the allocations. The buffers and signal pads are plain memory,
// for the program's own kernels; the signals of the methods below are the window's, with one channel of the
// window for each of theirs. So a wait sleeps, has a deadline, and ends when the peer dies.
#pragma once

#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/symm_mem/SymmetricMemory.hpp>
#include <vector>

#include "pg/backend/window.h"
#include "pg/symmetric/allocation.h"

namespace occl::pg {

class SymmetricMemoryOCCL final : public c10d::symmetric_memory::SymmetricMemory {
 public:
  /// Of signals. PyTorch has as many as fit into a signal pad.
  static constexpr int kChannels = 64;

  /// A collective call: the others pass allocations of the same size. Raises ValueError on all ranks if the
  /// sizes differ, NotImplementedError in a group of several hosts, and DistBackendError for ranks that did
  /// not come.
  SymmetricMemoryOCCL(ProcessGroupOCCL& group, const Allocation& local);

  bool is_of(ProcessGroupOCCL& group) const { return window_->is_of(group); }

  std::vector<void*> get_buffer_ptrs() override { return buffers_; }
  /// Raises ValueError if the pads were allocated with another size than PyTorch has now, by which it checks
  /// accesses.
  std::vector<void*> get_signal_pad_ptrs() override;
  void** get_buffer_ptrs_dev() override { return buffers_.data(); }
  void** get_signal_pad_ptrs_dev() override { return pads_.data(); }
  std::size_t get_buffer_size() override { return local_.size; }
  std::size_t get_offset() override { return 0; }

  bool has_multicast_support() override { return false; }
  void* get_multicast_ptr() override { return nullptr; }

  // On a side stream of `dev` these queue, and the host goes on. `channel`: below kChannels. A timeout of 0
  // is the group's. After an error the group has ended.

  /// By dissemination: ceil(log2(ranks)) rounds of one signal and one wait (Hensgen, Finkel, Manber 1988).
  void barrier(int channel, std::size_t timeout_ms) override;
  /// Signals count: unlike PyTorch's own, a second one does not wait until the first has been taken.
  void put_signal(int dst_rank, int channel, std::size_t timeout_ms) override;
  void wait_signal(int src_rank, int channel, std::size_t timeout_ms) override;

  int get_rank() override { return rank_; }
  int get_world_size() override { return static_cast<int>(buffers_.size()); }
  c10::Device get_device() override { return local_.memory.device(); }
  const std::vector<int>& get_rank_to_global_rank() override { return global_ranks_; }
  int* get_rank_to_global_rank_dev() override { return global_ranks_.data(); }
  bool world_within_direct_access() override { return true; }

 private:
  const Allocation local_;  // keeps the memory
  const c10::intrusive_ptr<WindowOCCL> window_;
  const int rank_;
  std::vector<int> global_ranks_;
  std::vector<void*> buffers_, pads_;  // by rank
};

}  // namespace occl::pg
