// The life of a backend's group: how this rank creates the group, creates subgroups of it, and leaves it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "coll/group/group.h"
#include "coll/group/subgroup.h"
#include "pg/backend/members.h"
#include "pg/backend/options.h"
#include "pg/rendezvous/rendezvous.h"
#include "pg/rendezvous/store_shutdown.h"

namespace occl::pg {

class GroupLifecycle {
 public:
  /// An existing group that contains every rank of a new one, and their ranks in it. The new group's ranks
  /// meet through it, without the store.
  struct Parent {
    std::shared_ptr<coll::Communicator> group;
    std::vector<int> ranks;
  };

  /// Connects to the other ranks, through `parent` if that has a group, or else through the store. Copies the
  /// options. Raises DistBackendError. If the options leave it to `reconfigure`, there is no group yet.
  GroupLifecycle(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, const Options& options,
                 const Parent& parent);
  /// Takes over a group that the ranks have met for.
  GroupLifecycle(Met met, const Options& options);
  ~GroupLifecycle();
  GroupLifecycle(const GroupLifecycle&) = delete;
  GroupLifecycle& operator=(const GroupLifecycle&) = delete;

  /// Null until `reconfigure` has made the group that the options leave to it.
  const std::shared_ptr<coll::Communicator>& group() const { return group_; }
  Options& options() const { return *options_; }
  /// What was chosen for this group, in a line for logs.
  std::string describe() const;

  /// This group as the parent of a new group of `ranks`. Raises ValueError unless all of them are ranks of
  /// this group and this rank is one of them.
  Parent as_parent(std::vector<int> ranks) const;
  /// Makes a group of some ranks of this one, which meet through this one. Raises what as_parent raises, and
  /// DistBackendError.
  Met meet(coll::Subgroup::Purpose purpose, const std::vector<int>& ranks, const Options& options) const;
  /// Options for a new group: those given, or if null this group's without its name, description and ranks.
  Options options_for(const c10::intrusive_ptr<c10d::Backend::Options>& given) const;
  /// The global ranks of ranks of this group.
  std::vector<std::uint64_t> global_ranks(const std::vector<int>& ranks) const;

  /// The handle of this rank, and a new group of the members whose handles are given, which takes the place
  /// of the one that there is. If that fails, the old one stays. No other call may be made meanwhile. Raise
  /// ValueError if the options do not allow it, or the arguments name no such group, and DistBackendError.
  const std::string& handle() const { return members().handle(); }
  void reconfigure(const ReconfigureOptions& wanted);

  /// Ends the group: every operation in flight, on all ranks, fails with an error.
  void abort(const std::string& reason);
  /// Leaves the group. If another rank runs the store's server, waits a few seconds for that to end.
  void shutdown();
  /// Why the group has ended, in PyTorch's terms.
  c10d::ErrorType error() const;
  /// Bytes of shared memory that the group holds in this process, by what they are for.
  std::unordered_map<std::string, std::uint64_t> memory_stats() const;

 private:
  void close();
  /// Closes when peers have received what is on its way. Whether the group was in good order.
  bool leave();
  Members& members() const;

  const c10::intrusive_ptr<Options> options_;
  const std::unique_ptr<Members> members_;  // if the options leave the group to `reconfigure`
  std::shared_ptr<coll::Communicator> group_;
  std::shared_ptr<const coll::Group> serves_store_;  // the same group, if this rank runs the store's server
  std::optional<StoreServer> store_server_;          // if another rank runs it
};

}  // namespace occl::pg
