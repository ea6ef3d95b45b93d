#include "pg/symmetric/memory.h"

#include <numeric>

#include "pg/backend/process_group.h"
#include "pg/process/python_hooks.h"
#include "pg/request/checks.h"

namespace occl::pg {
namespace {

constexpr WindowPurpose kRendezvous{"rendezvous", "occl:rendezvous", coll::Composite::rendezvous,
                                    SymmetricMemoryOCCL::kChannels};

c10::intrusive_ptr<WindowOCCL> window_of(ProcessGroupOCCL& group, const Allocation& local) {
  if (!dynamic_cast<coll::Group*>(group.communicator().get()))
    raise(Error(Errc::not_implemented, concat("rendezvous: the ranks of group ", group.communicator()->name(),
                                              " are on several hosts, and symmetric memory needs one")));
  return WindowOCCL::make(group, local.memory, kRendezvous);
}

std::chrono::milliseconds timeout_of(std::size_t milliseconds) {
  return milliseconds ? std::chrono::milliseconds(milliseconds) : c10d::kUnsetTimeout;
}

std::vector<int> global_ranks_of(ProcessGroupOCCL& group) {
  std::vector<int> ranks;
  for (const auto rank : group.getBackendOptions()->global_ranks_in_group)
    ranks.push_back(static_cast<int>(rank));
  if (!ranks.empty()) return ranks;
  ranks.resize(group.getSize());
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

}  // namespace

SymmetricMemoryOCCL::SymmetricMemoryOCCL(ProcessGroupOCCL& group, const Allocation& local)
    : local_(local),
      window_(window_of(group, local)),
      rank_(group.getRank()),
      global_ranks_(global_ranks_of(group)) {
  for (int rank = 0; rank < group.getSize(); ++rank) {
    if (window_->bytes(rank) != window_->bytes(0))
      invalid(kRendezvous.call, "the allocation of rank ", rank, " has ", window_->bytes(rank),
              " bytes with its signal pad, and that of rank 0 ", window_->bytes(0),
              ": all ranks allocate the same size");
    std::byte* const memory = window_->memory(rank);
    pads_.push_back(memory);
    buffers_.push_back(memory + local.data_at);
  }
}

std::vector<void*> SymmetricMemoryOCCL::get_signal_pad_ptrs() {
  if (get_signal_pad_size() != local_.pad_size)
    invalid("get_signal_pad", "the signal pad was allocated with ", local_.pad_size, " bytes, and now ",
            get_signal_pad_size(), " are set: set_signal_pad_size comes before the first allocation");
  return pads_;
}

void SymmetricMemoryOCCL::barrier(int channel, std::size_t timeout_ms) {
  const int size = get_world_size();
  without_gil([&] {
    for (int distance = 1; distance < size; distance *= 2) {
      window_->signal_on(channel, (rank_ + distance) % size, true, timeout_of(timeout_ms));
      window_->wait_signal_on(channel, (rank_ + size - distance) % size, false, timeout_of(timeout_ms));
    }
  });
}

void SymmetricMemoryOCCL::put_signal(int dst_rank, int channel, std::size_t timeout_ms) {
  without_gil([&] { window_->signal_on(channel, dst_rank, false, timeout_of(timeout_ms)); });
}

void SymmetricMemoryOCCL::wait_signal(int src_rank, int channel, std::size_t timeout_ms) {
  without_gil([&] { window_->wait_signal_on(channel, src_rank, false, timeout_of(timeout_ms)); });
}

}  // namespace occl::pg
