// A c10d::Backend with a group of the core: how it begins, what it tells, how it ends. Its operations are in
// process_group.h.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "coll/group.h"
#include "coll/subgroup.h"
#include "pg/capabilities.h"
#include "pg/completion_hook.h"
#include "pg/options.h"
#include "pg/request.h"
#include "pg/store_server.h"

namespace occl::pg {

class GroupBackend : public CapableBackend {
 public:
  using Options = pg::Options;

  /// An existing group that has every rank of the new one, and their ranks in it: the ranks meet through it.
  struct Parent {
    std::shared_ptr<coll::Group> group;
    std::vector<int> ranks;
  };
  /// Raises ValueError unless these are ranks of this group and this rank is one of them.
  Parent as_parent(std::vector<int> ranks) const;

  ~GroupBackend() override;

  const std::string getBackendName() const override { return "occl"; }
  /// A copy: PyTorch writes into it when it splits the group.
  c10::intrusive_ptr<c10d::Backend::Options> getBackendOptions() override { return options_->copy(); }
  void setTimeout(std::chrono::milliseconds timeout) override { options_->timeout = timeout; }
  void enableCollectivesTiming() override {}  // every work has its duration

  void setSequenceNumberForGroup() override {}  // starts at 0 on every rank
  uint64_t getSequenceNumberForGroup() override { return group_->sequence(); }
  c10d::ErrorType getError() override;

  /// Called once for every work that is launched from now on and ends, by the thread that saw it end.
  void registerOnCompletionHook(std::function<void(std::shared_ptr<c10d::WorkInfo>)>&& hook) override;
  /// Returns when the hook has been called for every work launched so far.
  void waitForPendingWorks() override;

  /// Tensors in memory that peers map, on `dev` and on the CPU (shared_tensors.h).
  bool supportsTensorAlloc(c10::DeviceIndex) override;
  std::shared_ptr<c10::Allocator> getMemAllocator() override;
  at::Tensor allocateTensor(long size, at::TensorOptions options) override;
  /// Bytes of shared memory that the group holds in this process, by what they are for.
  std::unordered_map<std::string, uint64_t> getMemoryStats() override;

  /// Ends everything that is in flight, on all ranks, with an error.
  void abort() override;
  /// Leaves the group. Where another rank runs the store's server, it returns after that has ended.
  void shutdown() override;

 protected:
  /// Connects to the other ranks, through the parent if there is one, or else through the store.
  GroupBackend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, const Options& options,
               const Parent& parent);
  GroupBackend(std::shared_ptr<coll::Group> group, const Options& options);

  /// The group of some ranks of this one, which meet through this one.
  std::shared_ptr<coll::Group> meet(coll::Subgroup::Purpose purpose, const std::vector<int>& ranks,
                                    const Options& options) const;
  /// For a new group: the given options, or this group's without its name.
  Options options_for(const c10::intrusive_ptr<c10d::Backend::Options>& given) const;
  std::chrono::milliseconds or_default(std::chrono::milliseconds timeout) const;
  ThisRank self() const { return {getRank(), getSize()}; }

  const c10::intrusive_ptr<Options> options_;
  std::shared_ptr<coll::Group> group_;
  std::shared_ptr<CompletionHook> hook_;  // null if there is none

 private:
  void close();

  std::optional<StoreServer> store_server_;  // of another rank
};

}  // namespace occl::pg
