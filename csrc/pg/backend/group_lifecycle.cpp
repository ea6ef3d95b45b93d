#include "pg/backend/group_lifecycle.h"

#include <torch/csrc/distributed/c10d/logging.h>

#include <algorithm>
#include <utility>

#include "coll/progress/engine.h"
#include "kernels/kernels.h"
#include "pg/backend/registrations.h"
#include "pg/process/engine.h"
#include "pg/process/environment.h"
#include "pg/process/python_hooks.h"
#include "pg/rendezvous/between.h"
#include "pg/rendezvous/rendezvous.h"
#include "pg/request/errors.h"

namespace occl::pg {
namespace {

std::string name_of(const Options& options) { return options.group_name.empty() ? "?" : options.group_name; }

/// What may carry a group without a parent: what the options name, or the environment.
CarrierChoice carriers_for(const Options& options, int rank, int size) {
  const std::string group = name_of(options);
  if (const auto* given = std::get_if<c10::intrusive_ptr<c10d::Backend>>(&options.inter_node()))
    return between_by(*given, rank, size, group);
  const auto* named = std::get_if<std::string>(&options.inter_node());
  return between_by(named ? *named : carrier_from_environment(), rank, size, group);
}

Met meet_at(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, const Options& options,
            const std::function<Tuning()>& tuning) {
  return rendezvous(store, name_of(options), rank, size, tuning, options.timeout,
                    [&] { return carriers_for(options, rank, size); });
}

/// Makes a group of some ranks of another group.
Met meet_in(const GroupLifecycle::Parent& parent, coll::Subgroup::Purpose purpose, const Options& options) {
  check_not_forked(*parent.group);
  const coll::Subgroup wanted{parent.ranks, name_of(options), purpose};
  const auto tuning = [&] { return options.tuning(); };
  const Deadline deadline = Deadline::after(options.timeout);
  return {parent.group->make_subgroup(wanted, tuning, deadline, interrupt_check()), std::nullopt};
}

}  // namespace

GroupLifecycle::GroupLifecycle(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                               const Options& options, const Parent& parent)
    : options_(options.copy()),
      members_(made_by_reconfigure(options) ? std::make_unique<Members>(store, rank) : nullptr) {
  register_for_groups();
  if (members_) return;
  translated([&] {
    Met met = parent.group ? meet_in(parent, coll::Subgroup::Purpose::create, options)
                           : meet_at(store, rank, size, options, [&] { return options.tuning(); });
    group_ = std::move(met.group);
    // Only the default group cares for the server: PyTorch made the store for it, and both end together.
    if (!parent.group && options.global_ranks_in_group.empty() && met.store_host) {
      if (met.store_host->rank == rank)
        serves_store_ = met.store_host->group;
      else
        store_server_.emplace(*store, *met.store_host);
    }
  });
}

GroupLifecycle::GroupLifecycle(Met met, const Options& options)
    : options_(options.copy()), group_(std::move(met.group)) {}

Members& GroupLifecycle::members() const {
  if (!members_)
    raise(Error(Errc::invalid_argument, concat("group ", name_of(*options_),
                                               " cannot be reconfigured: make it with "
                                               "init_process_group(..., enable_reconfigure=True)")));
  return *members_;
}

void GroupLifecycle::reconfigure(const ReconfigureOptions& wanted) {
  Met met = translated([&] {
    const Members::Place place = members().place_among(wanted);
    Options options = *options_;
    options.timeout = wanted.timeout.value_or(options.timeout);
    const bool fresh = members().use_up(wanted.uuid);
    const auto tuning = [&] {  // what this throws, the other members are told
      if (!fresh)
        fail(Errc::invalid_argument, "reconfigure: uuid ", wanted.uuid,
             " was already used in this group: all members give a new one for each attempt");
      return options.tuning();
    };
    try {
      return meet_at(members().store_of(wanted.uuid), place.rank, place.size, options, tuning);
    } catch (const Error& error) {
      if (error.code() != Errc::timeout) throw;
      fail(Errc::timeout, error.what(), ". The members are ", place.describe());
    }
  });
  leave();
  group_ = std::move(met.group);
  options_->global_ranks_in_group.clear();  // of members that have gone
}

std::string GroupLifecycle::describe() const {
  if (!group_)
    return concat("group ", name_of(*options_), " waits for reconfigure, with the handle ", handle());
  return concat("rank ", group_->rank(), " of ", group_->size(), " of group ", group_->name(), ": ",
                group_->describe(), "; waiting ranks ", group_->core_for_each() ? "spin" : "yield their core",
                "; kernels: ", kernels::isa(), "; timeout ", options_->timeout.count(), " ms");
}

GroupLifecycle::~GroupLifecycle() {
  close();
  // In a forked child the group belongs to the parent process. Its destructor must not run: it would leave
  // the group on the parent's behalf.
  if (group_ && is_forked_from(*group_)) new std::shared_ptr<coll::Communicator>(std::move(group_));
}

void GroupLifecycle::close() {
  if (!group_ || is_forked_from(*group_)) return;
  using namespace c10d::detail;
  if (!group_->error() && isLogLevelEnabled(LogLevel::Debug))
    LOG(INFO) << "occl: rank " << group_->rank() << " leaves group " << group_->name();
  if (serves_store_ && !group_->error()) wait_until_others_go_on(*serves_store_);
  group_->close();
}

bool GroupLifecycle::leave() {
  const bool in_good_order = group_ && !is_forked_from(*group_) && !group_->error();
  if (in_good_order) group_->deliver(interrupt_check());
  close();
  return in_good_order;
}

void GroupLifecycle::shutdown() {
  if (leave() && store_server_) store_server_->wait_for_end(interrupt_check());
}

void GroupLifecycle::abort(const std::string& reason) {
  check_not_forked(*group_);
  group_->abort(reason);
}

c10d::ErrorType GroupLifecycle::error() const {
  const auto error = group_ ? group_->error() : std::nullopt;
  if (!error || error->code() == Errc::closed) return c10d::ErrorType::SUCCESS;
  switch (error->code()) {
    case Errc::timeout:
      return c10d::ErrorType::TIMEOUT;
    case Errc::peer_exited:
    case Errc::peer_left:
      return c10d::ErrorType::REMOTE_ERROR;
    default:
      return c10d::ErrorType::COMM_ERROR;
  }
}

Options GroupLifecycle::options_for(const c10::intrusive_ptr<c10d::Backend::Options>& given) const {
  if (given) return Options::of(*given);
  Options options = *options_;
  options.group_name.clear();
  options.group_desc.clear();
  options.global_ranks_in_group.clear();
  let_reconfigure_make(options, false);
  return options;
}

std::vector<std::uint64_t> GroupLifecycle::global_ranks(const std::vector<int>& ranks) const {
  const auto& known = options_->global_ranks_in_group;  // empty: this group's are 0, 1, ...
  std::vector<std::uint64_t> found;
  for (const int rank : ranks)
    found.push_back(known.empty() ? static_cast<std::uint64_t>(rank) : known.at(rank));
  return found;
}

GroupLifecycle::Parent GroupLifecycle::as_parent(std::vector<int> ranks) const {
  for (const int rank : ranks)
    if (rank < 0 || rank >= group_->size())
      raise(Error(Errc::invalid_argument,
                  concat("group ", group_->name(), " of ", group_->size(), " ranks has no rank ", rank)));
  if (std::find(ranks.begin(), ranks.end(), group_->rank()) == ranks.end())
    raise(Error(Errc::invalid_argument, concat("rank ", group_->rank(), " of group ", group_->name(),
                                               " is not among the new group's ranks")));
  return {group_, std::move(ranks)};
}

Met GroupLifecycle::meet(coll::Subgroup::Purpose purpose, const std::vector<int>& ranks,
                         const Options& options) const {
  return translated([&] { return meet_in(as_parent(ranks), purpose, options); });
}

std::unordered_map<std::string, std::uint64_t> GroupLifecycle::memory_stats() const {
  if (!group_) return {};
  const auto memory = group_->memory();
  auto& endpoint = group_->engine().endpoint();
  return {{"group.control_bytes", memory.blocks},
          {"group.staging_bytes", memory.staging},
          {"process.control_bytes", endpoint->arena().committed()},
          {"process.staging_bytes", endpoint->staging_bytes()}};
}

}  // namespace occl::pg
