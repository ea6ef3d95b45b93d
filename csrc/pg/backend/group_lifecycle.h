// The backend without its operations: how it creates and leaves a group of the core, and what it reports.
// process_group.h adds the operations.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "coll/group/group.h"
#include "coll/group/subgroup.h"
#include "pg/backend/options.h"
#include "pg/compat/backend_base.h"
#include "pg/observe/completion_hook.h"
#include "pg/observe/flight_recorder.h"
#include "pg/observe/param_comms.h"
#include "pg/rendezvous/rendezvous.h"
#include "pg/rendezvous/store_shutdown.h"
#include "pg/request/request.h"

namespace occl::pg {

class GroupBackend : public BackendBase {
 public:
  using Options = pg::Options;

  /// An existing group that contains every rank of a new one, and their ranks in it. The new group's ranks
  /// meet through it, without the store.
  struct Parent {
    std::shared_ptr<coll::Communicator> group;
    std::shared_ptr<coll::Group> node;  // the same if all its ranks share memory, otherwise null
    Between between;                    // otherwise: of `ranks`
    std::vector<int> ranks;
  };
  /// This group as the parent of a new group of `ranks`. Raises ValueError unless all of them are ranks of
  /// this group and this rank is one of them.
  Parent as_parent(std::vector<int> ranks) const;

  ~GroupBackend() override;

  const std::string getBackendName() const override { return "occl"; }
  /// What was chosen for this group, in a line for logs.
  std::string describe() const;
  /// A copy: PyTorch writes into it when it splits the group.
  c10::intrusive_ptr<c10d::Backend::Options> getBackendOptions() override { return options_->copy(); }
  void setTimeout(std::chrono::milliseconds timeout) override { options_->timeout = timeout; }
  void enableCollectivesTiming() override {}  // every Work measures its duration

  void setSequenceNumberForGroup() override {}  // starts at 0 on every rank
  uint64_t getSequenceNumberForGroup() override { return group_->sequence(); }
  c10d::ErrorType getError() override;

  /// From now on calls `hook` once for each Work, when it has ended, on the thread that saw it end. Raises
  /// ValueError if there is a hook already.
  void registerOnCompletionHook(std::function<void(std::shared_ptr<c10d::WorkInfo>)>&& hook) override;
  /// Returns when the hook has been called for every Work launched so far. Raises ValueError without a hook.
  void waitForPendingWorks() override;

  /// Tensors in memory that peers can map, on `dev` and on the CPU (shared_tensors.h).
  bool supportsTensorAlloc(c10::DeviceIndex) override;
  std::shared_ptr<c10::Allocator> getMemAllocator() override;
  at::Tensor allocateTensor(long size, at::TensorOptions options) override;
  /// Bytes of shared memory that the group holds in this process, by what they are for.
  std::unordered_map<std::string, uint64_t> getMemoryStats() override;

  /// Ends the group: every operation in flight, on all ranks, fails with an error.
  void abort() override;
  /// Leaves the group. If another rank runs the store's server, waits a few seconds for that to end.
  void shutdown() override;

 protected:
  /// Connects to the other ranks, through `parent` if that has a group, or else through the store.
  GroupBackend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, const Options& options,
               const Parent& parent);
  GroupBackend(Met met, const Options& options);

  /// Makes a group of some ranks of this one, which meet through this one. Raises what as_parent raises, and
  /// DistBackendError.
  Met meet(coll::Subgroup::Purpose purpose, const std::vector<int>& ranks, const Options& options) const;
  /// Options for a new group: those given, or if null this group's without its name, description and ranks.
  Options options_for(const c10::intrusive_ptr<c10d::Backend::Options>& given) const;
  /// What ranks of this group are in the default group, as far as this group knows.
  std::vector<std::uint64_t> global_ranks(const std::vector<int>& ranks) const;
  std::chrono::milliseconds or_default(std::chrono::milliseconds timeout) const;
  ThisRank self() const { return {getRank(), getSize()}; }
  /// What instruments say about this group.
  GroupFacts facts() const;
  /// Records a call in the flight recorder; null if there is none. `manager`: see FlightRecorder::record.
  std::unique_ptr<FlightRecorder::Entries> record(std::span<const Request> requests, bool manager = false) {
    return recorded_ ? record_in(*FlightRecorder::get(), requests, manager) : nullptr;
  }
  /// The number that the next operation of this kind will have in the group.
  std::uint64_t next_number(const Request& request) const {
    return (request.transfer() ? group_->messages() : group_->sequence()) + 1;
  }

  const c10::intrusive_ptr<Options> options_;
  std::shared_ptr<coll::Communicator> group_;
  std::shared_ptr<coll::Group> node_;     // the same if all ranks share memory, otherwise null
  Between between_;                       // otherwise
  std::shared_ptr<CompletionHook> hook_;  // null if there is none

 private:
  void made();
  std::unique_ptr<FlightRecorder::Entries> record_in(FlightRecorder& recorder,
                                                     std::span<const Request> requests, bool manager);
  void close();

  std::shared_ptr<RecordedGroup> recorded_;  // null without a flight recorder

  bool serves_store_ = false;
  std::optional<StoreServer> store_server_;  // if another rank runs it
};

}  // namespace occl::pg
