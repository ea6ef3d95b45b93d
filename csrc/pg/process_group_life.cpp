// The life of a process group, from its beginning over its descendants to its end.
#include <algorithm>
#include <utility>

#include "coll/monitored_barrier.h"
#include "pg/errors.h"
#include "pg/process_group.h"
#include "pg/registrations.h"
#include "pg/rendezvous.h"
#include "pg/runtime.h"

namespace occl::pg {

namespace {

std::string name_of(const Options& options) { return options.group_name.empty() ? "?" : options.group_name; }

std::shared_ptr<coll::Group> meet_in(const ProcessGroupOCCL::Parent& parent, coll::Subgroup::Purpose purpose,
                                     const Options& options) {
  check_not_forked(*parent.group);
  return coll::make_subgroup(
      *parent.group, {parent.ranks, name_of(options), purpose}, [&] { return options.tuning(); },
      Deadline::after(options.timeout), interrupt_check());
}

}  // namespace

ProcessGroupOCCL::ProcessGroupOCCL(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
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
    // Only the default group ends with the store that PyTorch made for it.
    if (options.global_ranks_in_group.empty() && met.store_host && *met.store_host != rank)
      store_server_.emplace(*store, *met.store_host);
  });
  init();
}

ProcessGroupOCCL::ProcessGroupOCCL(std::shared_ptr<coll::Group> group, const Options& options)
    : CapableBackend(group->mesh().rank(), group->mesh().size()),
      options_(options.copy()),
      group_(std::move(group)) {
  init();
}

ProcessGroupOCCL::~ProcessGroupOCCL() {
  close();
  // In a forked child the group is the parent's: not even its destructor may run, it would leave the group.
  if (is_forked_from(*group_)) new std::shared_ptr<coll::Group>(std::move(group_));
}

void ProcessGroupOCCL::close() {
  if (group_ && !is_forked_from(*group_)) group_->close();
}

void ProcessGroupOCCL::shutdown() {
  const bool in_good_order = group_ && !is_forked_from(*group_) && !group_->error();
  close();
  if (in_good_order && store_server_) store_server_->wait_for_end(*group_, interrupt_check());
}

void ProcessGroupOCCL::abort() {
  check_usable();
  group_->abort("abort() was called");
}

c10d::ErrorType ProcessGroupOCCL::getError() {
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

void ProcessGroupOCCL::check_usable() const {
  check_not_forked(*group_);
  if (suspended_.load(std::memory_order_relaxed))  // the caller orders this: it calls suspend() and resume()
    raise(Error(Errc::closed, concat("group ", group_->mesh().name(), " of rank ", getRank(),
                                     " is suspended: call resume() first")));
}

std::chrono::milliseconds ProcessGroupOCCL::or_default(std::chrono::milliseconds timeout) const {
  return timeout == c10d::kUnsetTimeout ? options_->timeout : timeout;
}

Options ProcessGroupOCCL::options_for(const c10::intrusive_ptr<c10d::Backend::Options>& given) const {
  Options options = given ? Options::of(*given) : *options_;
  if (!given) options.group_name.clear();
  return options;
}

ProcessGroupOCCL::Parent ProcessGroupOCCL::as_parent(std::vector<int> ranks) const {
  for (const int rank : ranks)
    if (rank < 0 || rank >= getSize())
      raise(Error(Errc::invalid_argument,
                  concat("group ", group_->mesh().name(), " of ", getSize(), " ranks has no rank ", rank)));
  if (std::find(ranks.begin(), ranks.end(), getRank()) == ranks.end())
    raise(Error(Errc::invalid_argument, concat("rank ", getRank(), " of group ", group_->mesh().name(),
                                               " is not among the new one's")));
  return {group_, std::move(ranks)};
}

c10::intrusive_ptr<ProcessGroupOCCL> ProcessGroupOCCL::descendant(coll::Subgroup::Purpose purpose,
                                                                  const std::vector<int>& ranks,
                                                                  const Options& options) {
  auto group = translated([&] { return meet_in(as_parent(ranks), purpose, options); });
  return c10::intrusive_ptr<ProcessGroupOCCL>::unsafe_steal_from_new(
      new ProcessGroupOCCL(std::move(group), options));
}

c10::intrusive_ptr<c10d::Backend> ProcessGroupOCCL::split(
    const c10::intrusive_ptr<c10d::Store>&, const std::vector<int>& ranks,
    const c10::intrusive_ptr<c10d::Backend::Options>& opts) {
  check_usable();
  if (std::find(ranks.begin(), ranks.end(), getRank()) == ranks.end()) return nullptr;
  return descendant(coll::Subgroup::Purpose::create, ranks, options_for(opts));
}

c10::intrusive_ptr<c10d::Backend> ProcessGroupOCCL::merge(
    const c10::intrusive_ptr<c10d::Store>& store, const c10::intrusive_ptr<c10d::Backend::Options>& opts,
    const int& rank, const int& size) {
  check_usable();
  return c10::make_intrusive<ProcessGroupOCCL>(store, rank, size, options_for(opts));
}

c10::intrusive_ptr<c10d::Backend> ProcessGroupOCCL::shrink(
    const std::vector<int64_t>& ranks_to_exclude, int shrink_flags,
    const c10::intrusive_ptr<c10d::Backend::Options>& opts) {
  check_usable();
  constexpr int kAbort = 1;  // torch.distributed.distributed_c10d.SHRINK_ABORT
  std::vector<int> survivors;
  for (int rank = 0; rank < getSize(); ++rank)
    if (std::find(ranks_to_exclude.begin(), ranks_to_exclude.end(), rank) == ranks_to_exclude.end())
      survivors.push_back(rank);
  for (const int64_t rank : ranks_to_exclude)
    if (rank < 0 || rank >= getSize() || rank == getRank())
      raise(Error(Errc::invalid_argument,
                  concat("shrink: rank ", getRank(), " of ", getSize(), " cannot exclude rank ", rank,
                         rank == getRank() ? ", which is itself" : "")));
  if (shrink_flags & kAbort) group_->abort("shrink() with SHRINK_ABORT was called");
  Options options = options_for(opts);
  if (options.group_name.empty()) options.group_name = group_->mesh().name() + "/shrunk";
  return descendant(coll::Subgroup::Purpose::shrink, survivors, options);
}

void ProcessGroupOCCL::monitoredBarrier(const c10d::BarrierOptions& opts, bool wait_all_ranks) {
  check_usable();
  translated(
      [&] { coll::monitored_barrier(*group_, or_default(opts.timeout), wait_all_ranks, interrupt_check()); });
}

void ProcessGroupOCCL::registerOnCompletionHook(std::function<void(std::shared_ptr<c10d::WorkInfo>)>&& hook) {
  check_usable();
  if (hook_) raise(Error(Errc::invalid_argument, "registerOnCompletionHook: the group has a hook already"));
  hook_ = std::make_shared<CompletionHook>(std::move(hook));
}

void ProcessGroupOCCL::waitForPendingWorks() {
  check_usable();
  if (!hook_)
    raise(Error(Errc::invalid_argument, "waitForPendingWorks: call registerOnCompletionHook first"));
  while (!hook_->wait(std::chrono::milliseconds(50)))  // every work has a timeout, so this ends
    interrupt_check()();
}

}  // namespace occl::pg
