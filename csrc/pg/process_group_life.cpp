// The life of a process group, from its beginning over its descendants to its end.
#include <algorithm>
#include <utility>

#include "coll/monitored_barrier.h"
#include "coll/shrink.h"
#include "pg/errors.h"
#include "pg/process_group.h"
#include "pg/rendezvous.h"
#include "pg/runtime.h"

namespace occl::pg {

ProcessGroupOCCL::ProcessGroupOCCL(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                   c10::intrusive_ptr<Options> options, const Parent& parent)
    : CapableBackend(rank, size), options_(std::move(options)) {
  const std::string name = options_->group_name.empty() ? "?" : options_->group_name;
  const auto look = [&] {
    interrupt_check()();
    std::string exited;  // all of them: one may have failed because of another
    for (const int i : parent.ranks)
      if (const coll::Mesh& mesh = parent.group->mesh(); mesh.member(i).peer->has_exited())
        enlist(exited, mesh.describe(i));
    if (!exited.empty())
      fail(Errc::peer_exited, exited, " of group ", parent.group->mesh().name(), " exited while group ", name,
           " was created");
  };
  group_ = translated([&] { return rendezvous(*store, name, rank, size, options_->timeout, look); });
  init();
}

ProcessGroupOCCL::ProcessGroupOCCL(std::shared_ptr<coll::Group> group, c10::intrusive_ptr<Options> options)
    : CapableBackend(group->mesh().rank(), group->mesh().size()),
      options_(std::move(options)),
      group_(std::move(group)) {
  init();
}

ProcessGroupOCCL::~ProcessGroupOCCL() {
  shutdown();
  // In a forked child the group is the parent's: not even its destructor may run, it would leave the group.
  if (is_forked_from(*group_)) new std::shared_ptr<coll::Group>(std::move(group_));
}

void ProcessGroupOCCL::shutdown() {
  if (group_ && !is_forked_from(*group_)) group_->close();
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

c10::intrusive_ptr<ProcessGroupOCCL::Options> ProcessGroupOCCL::options_for(
    const c10::intrusive_ptr<c10d::Backend::Options>& given) const {
  auto options = c10::make_intrusive<Options>(given ? given->timeout : options_->timeout);
  if (given) {
    options->group_name = given->group_name;
    options->group_desc = given->group_desc;
    options->global_ranks_in_group = given->global_ranks_in_group;
  }
  return options;
}

ProcessGroupOCCL::Parent ProcessGroupOCCL::as_parent(std::vector<int> ranks) const {
  for (const int rank : ranks)
    if (rank < 0 || rank >= getSize())
      raise(Error(Errc::invalid_argument,
                  concat("group ", group_->mesh().name(), " of ", getSize(), " ranks has no rank ", rank)));
  return {group_, std::move(ranks)};
}

c10::intrusive_ptr<c10d::Backend> ProcessGroupOCCL::split(
    const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
    const c10::intrusive_ptr<c10d::Backend::Options>& opts) {
  check_usable();
  const auto at = std::find(ranks.begin(), ranks.end(), getRank());
  if (at == ranks.end()) return nullptr;
  return c10::make_intrusive<ProcessGroupOCCL>(store, static_cast<int>(at - ranks.begin()),
                                               static_cast<int>(ranks.size()), options_for(opts),
                                               as_parent(ranks));
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
  auto options = options_for(opts);
  if (options->group_name.empty()) options->group_name = group_->mesh().name() + "/shrunk";
  auto smaller = translated([&] {
    return coll::shrink(*group_, survivors, options->group_name, Deadline::after(options->timeout),
                        interrupt_check());
  });
  return c10::make_intrusive<ProcessGroupOCCL>(std::move(smaller), std::move(options));
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
