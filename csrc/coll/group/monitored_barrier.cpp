#include "coll/group/monitored_barrier.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>
#include <vector>

#include "base/error.h"
#include "coll/mesh/rank_set.h"

namespace occl::coll {
namespace {

std::string why(const Mesh& mesh, int rank) {
  const Member& member = mesh.member(rank);
  return concat(mesh.describe(rank), member.peer->exited() ? " has exited"
                                     : member.gone()       ? " has left the group"
                                                           : " had not called it");
}

/// PyTorch's words at the beginning of the error on a rank other than 0.
std::string reached_words(int rank) {
  return concat("Rank ", rank,
                " successfully reached monitoredBarrier, but received errors while waiting for send/recv "
                "from rank 0: ");
}

void show(RollCall::Absent& place, std::uint64_t number, const std::vector<int>& ranks) {
  place.number.store(0, std::memory_order_relaxed);  // the ranks are stored with release after it
  place.ranks.assign(set_of(ranks));
  place.number.store(number, std::memory_order_release);  // sync: absent-ranks
}

/// The ranks that did not come to barrier `number`. Nothing if a later one has taken the place.
std::optional<RankSet> shown(const RollCall::Absent& place, std::uint64_t number) {
  if (place.number.load(std::memory_order_acquire) != number) return std::nullopt;  // sync: absent-ranks
  const RankSet ranks = place.ranks.all();
  // A rank of a later barrier was read with acquire, and the number was changed before it.
  if (place.number.load(std::memory_order_relaxed) != number) return std::nullopt;
  return ranks;
}

}  // namespace

void monitored_barrier(Group& group, std::chrono::milliseconds timeout, bool all_ranks,
                       const std::function<void()>& interrupted) {
  const Mesh& mesh = group.mesh();
  RollCall& own = mesh.own().roll_call();
  const RollCall& verdict = mesh.member(0).block.roll_call();
  const auto number = own.arrived.fetch_add(1, std::memory_order_seq_cst) + 1;  // sync: barrier-arrived
  mesh.bells().ring_all();
  const Activity::InBarrier shown_to_readers(std::as_const(group).activity(), number);

  const auto missing = [&] {
    std::vector<int> ranks;
    for (int i = 0; i < mesh.size(); ++i)
      // sync: barrier-arrived
      if (mesh.member(i).block.roll_call().arrived.load(std::memory_order_seq_cst) < number)
        ranks.push_back(i);
    return ranks;
  };
  const auto reached = [&] {
    if (const auto error = group.error()) throw *error;
    if (mesh.rank() != 0)
      // sync: barrier-decided
      return verdict.decided.load(std::memory_order_seq_cst) >= number || mesh.member(0).gone();
    // A rank that is gone will not come, so waiting is useless unless all missing ranks are to be named.
    bool waiting = false, hopeless = false;
    for (const int rank : missing()) (mesh.member(rank).gone() ? hopeless : waiting) = true;
    return !waiting || (hopeless && !all_ranks);
  };
  const auto begin = std::chrono::steady_clock::now();
  group.engine().wait_until(reached, Deadline::after(timeout), interrupted);
  // The text names the timeout, or less if a rank was gone and the wait ended early.
  const auto waited = std::min(
      timeout, std::chrono::ceil<std::chrono::milliseconds>(std::chrono::steady_clock::now() - begin));

  BarrierFailure failure{mesh.rank(), mesh.name(), timeout, waited, all_ranks, {}, ""};
  std::vector<int> ranks;
  if (mesh.rank() == 0) {
    ranks = missing();                     // once, so that all ranks name the same; later arrivals are late
    if (!all_ranks && ranks.size() > 1) {  // a rank that is gone is the more likely cause
      const auto first =
          std::find_if(ranks.begin(), ranks.end(), [&](int rank) { return mesh.member(rank).gone(); });
      ranks = {first == ranks.end() ? ranks.front() : *first};
    }
    show(own.absent[number & 1], number, ranks);
    if (ranks.empty()) own.passed.store(number, std::memory_order_seq_cst);  // sync: barrier-passed
    own.decided.store(number, std::memory_order_seq_cst);                    // sync: barrier-decided
    mesh.bells().ring_all();
    if (ranks.empty()) return;
  } else if (verdict.decided.load(std::memory_order_seq_cst) >= number) {  // sync: barrier-decided
    // This rank has called it, so rank 0 cannot have passed a later one.
    if (verdict.passed.load(std::memory_order_seq_cst) == number) return;  // sync: barrier-passed
    const auto absent = shown(verdict.absent[number & 1], number);
    // sync: barrier-decided
    if (!absent) fail_long_after(failure, number, verdict.decided.load(std::memory_order_seq_cst));
    ranks = ranks_of(*absent, mesh.size());
  } else {
    fail_without_answer(failure, why(mesh, 0));
  }

  for (const int rank : ranks) {
    enlist(failure.list, rank);
    failure.reasons += concat(failure.reasons.empty() ? "" : "; ", why(mesh, rank));
  }
  fail_barrier(failure);
}

void fail_without_answer(const BarrierFailure& f, const std::string& why) {
  // In the same words as with rank 0's answer: both often have the same timeout, and either may be first.
  fail(Errc::timeout, "[Rank ", f.rank, "]: ", reached_words(f.rank), "Rank ", f.rank,
       " timed out in monitoredBarrier after ", f.waited.count(), " ms: group ", f.group,
       " has no answer from rank 0, ", why);
}

void fail_long_after(const BarrierFailure& f, std::uint64_t number, std::uint64_t decided) {
  fail(Errc::timeout, "[Rank ", f.rank, "]: ", reached_words(f.rank), "monitoredBarrier #", number,
       " failed before rank ", f.rank, " came (group ", f.group, "). Rank 0 is at #", decided,
       " by now and does not know any more which ranks failed to pass #", number);
}

void fail_barrier(const BarrierFailure& f) {
  std::string prefix;
  if (f.rank != 0)
    prefix = reached_words(f.rank);
  else if (f.timeout.count() <= 0)
    prefix = concat("Rank 0 timed out in monitoredBarrier after ", f.waited.count(), " ms: ");
  fail(Errc::timeout, "[Rank ", f.rank, "]: ", prefix, f.all_ranks ? "Ranks " : "Rank ", f.list,
       " failed to pass monitoredBarrier in ", f.waited.count(), " ms (group ", f.group, "): ", f.reasons);
}

}  // namespace occl::coll
