// When a rank makes its moves of a large operation: at once, or when the ranks that wait for it have made
// theirs. One thread plays all ranks, so that it decides which of them waits and what happens first.
// modes: plain asan tsan
#include "check.h"
#include "cluster.h"
#include "coll/mesh/mesh.h"
#include "collective_cases.h"

using namespace occl;
using namespace occl::coll;
using namespace occl::test;

namespace {

constexpr std::size_t kLarge = kSliceBytes / sizeof(std::int64_t), kSmall = kLarge / 2;

/// An all_reduce of ones in memory that all ranks map. Rank r makes the moves of the r-th part, which brings
/// the sum into that part of all tensors.
class Sum {
 public:
  Sum(int size, std::size_t count, std::chrono::seconds patience = std::chrono::minutes(5))
      : count_(count), cluster_(size) {
    for (int i = 0; i < size; ++i) {
      cluster_[i].engine->stop_background();
      memory_.push_back(std::make_unique<Memory>(cluster_[i], count, true));
      std::fill_n(memory_[i]->data, count, 1);
      calls_.push_back(
          std::make_unique<Call>(all_reduce(memory_[i]->data, count), Deadline::after(patience)));
    }
  }

  void submit(int rank) { cluster_[rank].submit(*calls_[rank]); }
  /// A thread of the rank waits, and goes when it can do nothing more now.
  void wait(int rank) {
    const Rank& r = cluster_[rank];
    r.engine->wait(*r.group, calls_[rank]->operation, Deadline::after(std::chrono::seconds(0)), {});
  }
  /// Rank 1 waits, and then rank 0 submits and finds that both have posted.
  void begin() {
    submit(1);
    wait(1);
    submit(0);
  }
  /// A thread of the rank drives and goes on.
  void poll(int rank) { cluster_[rank].engine->poll(*cluster_[rank].group); }

  /// Whether the rank has made its moves.
  bool moved(int rank) const {
    const std::size_t first = count_ / memory_.size() * rank;
    for (const auto& memory : memory_)
      if (memory->data[first] != static_cast<std::int64_t>(memory_.size())) return false;
    return true;
  }
  bool ended(int rank) const { return calls_[rank]->operation.finished(); }
  /// What the rank's call ends with when the rank looks for a reason why nothing moves.
  Error end(int rank) {
    cluster_[rank].group->look();
    return *calls_[rank]->operation.error();
  }
  std::vector<int> missing(int rank) { return cluster_[rank].group->missing(); }

 private:
  const std::size_t count_;
  std::vector<std::unique_ptr<Memory>> memory_;
  std::vector<std::unique_ptr<Call>> calls_;
  Cluster cluster_;  // closes its groups first
};

}  // namespace

TEST("a rank that computes makes its moves when a rank that waits has made its own") {
  Sum sum(2, kLarge);
  sum.begin();
  sum.poll(0);
  CHECK(!sum.moved(0) && sum.missing(0) == std::vector<int>{1});
  sum.poll(1);
  CHECK(sum.moved(1) && !sum.moved(0) && !sum.ended(1));
  CHECK(sum.missing(0).empty() && sum.missing(1) == std::vector<int>{0});
  sum.poll(0);
  CHECK(sum.moved(0) && sum.ended(0));
  sum.poll(1);
  CHECK(sum.ended(1));
}

TEST("a rank that begins to wait itself makes its moves at once") {
  Sum sum(2, kLarge);
  sum.begin();
  CHECK(!sum.moved(0));
  sum.wait(0);
  CHECK(sum.moved(0) && !sum.moved(1) && !sum.ended(0));
  sum.poll(1);
  CHECK(sum.moved(1) && sum.ended(1));
  sum.poll(0);
  CHECK(sum.ended(0));
}

TEST("ranks whose threads have waited in vain do not wait for each other") {
  Sum sum(2, kLarge);
  for (int rank : {0, 1}) {
    sum.submit(rank);
    sum.wait(rank);
  }
  for (int i = 0; i < 2; ++i)
    for (int rank : {0, 1}) sum.poll(rank);
  CHECK(sum.ended(0) && sum.ended(1));
}

TEST("a rank lets half of the ranks by, and not fewer") {
  for (int waiting : {1, 2}) {
    Sum sum(4, kLarge);
    for (int rank = 1; rank < 4; ++rank) {
      sum.submit(rank);
      if (rank <= waiting) sum.wait(rank);
    }
    sum.submit(0);
    CHECK(sum.moved(0) == (waiting == 1));
    for (int i = 0; i < 4; ++i)
      for (int rank = 0; rank < 4; ++rank) sum.poll(rank);
    for (int rank = 0; rank < 4; ++rank) CHECK(sum.ended(rank));
  }
}

TEST("of an operation that takes no time, a rank makes its moves at once") {
  Sum sum(2, kSmall);
  sum.begin();
  CHECK(sum.moved(0));
  sum.poll(1);
  CHECK(sum.ended(1));
  sum.poll(0);
}

TEST("the rank that is let by is named if it does not move until the deadline") {
  Sum sum(2, kLarge, std::chrono::seconds(0));
  sum.begin();
  const Error error = sum.end(0);
  CHECK(error.code() == Errc::timeout && contains(error, "rank 1"), error.what());
}
