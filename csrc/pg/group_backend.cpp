#include "pg/group_backend.h"

#include <algorithm>
#include <utility>

#include "coll/engine.h"
#include "pg/errors.h"
#include "pg/registrations.h"
#include "pg/rendezvous.h"
#include "pg/runtime.h"
#include "pg/shared_tensors.h"

namespace occl::pg {
namespace {

std::string name_of(const Options& options) { return options.group_name.empty() ? "?" : options.group_name; }

std::shared_ptr<coll::Group> meet_in(const GroupBackend::Parent& parent, coll::Subgroup::Purpose purpose,
                                     const Options& options) {
  check_not_forked(*parent.group);
  return coll::make_subgroup(
      *parent.group, {parent.ranks, name_of(options), purpose}, [&] { return options.tuning(); },
      Deadline::after(options.timeout), interrupt_check());
}

}  // namespace

GroupBackend::GroupBackend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                           const Options& options, const Parent& parent)
    : CapableBackend(rank, size), options_(options.copy()) {
  register_for_groups();
  translated([&] {
    if (parent.group) {
      group_ = meet_in(parent, coll::Subgroup::Purpose::create, options);
      return;
    }
    auto met = rendezvous(
        *store, name_of(options), rank, size, [&] { return options.tuning(); }, options.timeout);
    group_ = std::move(met.group);
    // Only the default group waits for the server: PyTorch made the store for it, and both end together.
    if (options.global_ranks_in_group.empty() && met.store_host && *met.store_host != rank)
      store_server_.emplace(*store, *met.store_host);
  });
  init();
}

GroupBackend::GroupBackend(std::shared_ptr<coll::Group> group, const Options& options)
    : CapableBackend(group->mesh().rank(), group->mesh().size()),
      options_(options.copy()),
      group_(std::move(group)) {
  init();
}

GroupBackend::~GroupBackend() {
  close();
  // In a forked child the group belongs to the parent process. Its destructor must not run: it would leave
  // the group on the parent's behalf.
  if (is_forked_from(*group_)) new std::shared_ptr<coll::Group>(std::move(group_));
}

void GroupBackend::close() {
  if (group_ && !is_forked_from(*group_)) group_->close();
}

void GroupBackend::shutdown() {
  const bool in_good_order = group_ && !is_forked_from(*group_) && !group_->error();
  close();
  if (in_good_order && store_server_) store_server_->wait_for_end(*group_, interrupt_check());
}

void GroupBackend::abort() {
  check_not_forked(*group_);
  group_->abort("abort() was called");
}

c10d::ErrorType GroupBackend::getError() {
  const auto error = group_->error();
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

std::chrono::milliseconds GroupBackend::or_default(std::chrono::milliseconds timeout) const {
  return timeout == c10d::kUnsetTimeout ? options_->timeout : timeout;
}

Options GroupBackend::options_for(const c10::intrusive_ptr<c10d::Backend::Options>& given) const {
  Options options = given ? Options::of(*given) : *options_;
  if (!given) options.group_name.clear();
  return options;
}

GroupBackend::Parent GroupBackend::as_parent(std::vector<int> ranks) const {
  for (const int rank : ranks)
    if (rank < 0 || rank >= getSize())
      raise(Error(Errc::invalid_argument,
                  concat("group ", group_->mesh().name(), " of ", getSize(), " ranks has no rank ", rank)));
  if (std::find(ranks.begin(), ranks.end(), getRank()) == ranks.end())
    raise(Error(Errc::invalid_argument, concat("rank ", getRank(), " of group ", group_->mesh().name(),
                                               " is not among the new group's ranks")));
  return {group_, std::move(ranks)};
}

std::shared_ptr<coll::Group> GroupBackend::meet(coll::Subgroup::Purpose purpose,
                                                const std::vector<int>& ranks, const Options& options) const {
  return translated([&] { return meet_in(as_parent(ranks), purpose, options); });
}

void GroupBackend::registerOnCompletionHook(std::function<void(std::shared_ptr<c10d::WorkInfo>)>&& hook) {
  check_not_forked(*group_);
  if (hook_) raise(Error(Errc::invalid_argument, "registerOnCompletionHook: the group has a hook already"));
  hook_ = std::make_shared<CompletionHook>(std::move(hook));
}

void GroupBackend::waitForPendingWorks() {
  check_not_forked(*group_);
  if (!hook_)
    raise(Error(Errc::invalid_argument, "waitForPendingWorks: call registerOnCompletionHook first"));
  while (!hook_->wait(std::chrono::milliseconds(50)))  // every work has a timeout, so this ends
    interrupt_check()();
}

bool GroupBackend::supportsTensorAlloc(c10::DeviceIndex) { return has_shared_tensors(); }

std::shared_ptr<c10::Allocator> GroupBackend::getMemAllocator() { return shared_allocator(); }

at::Tensor GroupBackend::allocateTensor(long size, at::TensorOptions options) {
  return allocate_shared(size, options);
}

std::unordered_map<std::string, uint64_t> GroupBackend::getMemoryStats() {
  const auto memory = group_->memory();
  auto& endpoint = group_->engine().endpoint();
  return {{"group.control_bytes", memory.blocks},
          {"group.staging_bytes", memory.staging},
          {"process.control_bytes", endpoint->arena().committed()},
          {"process.staging_bytes", endpoint->staging_bytes()}};
}

}  // namespace occl::pg
