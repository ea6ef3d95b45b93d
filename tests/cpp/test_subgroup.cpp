// Groups that some ranks of a group make: in the right order of ranks, beside each other, after failures.
#include <numeric>
#include <random>

#include "check.h"
#include "cluster.h"
#include "coll/group/subgroup.h"

using namespace occl;
using namespace occl::coll;
using namespace occl::test;

namespace {

constexpr auto kPatience = std::chrono::seconds(60);
constexpr auto kShort = std::chrono::milliseconds(200);

std::shared_ptr<Group> make(Rank& rank, const std::vector<int>& ranks, const std::string& name,
                            std::chrono::nanoseconds patience = kPatience) {
  return make_subgroup(*rank.group, {ranks, name}, [&] { return rank.group->mesh().tuning(); },
                       Deadline::after(patience), {});
}

std::shared_ptr<Group> shrink_to(Rank& rank, const std::vector<int>& survivors,
                                 std::chrono::nanoseconds patience = kPatience) {
  return make_subgroup(*rank.group, {survivors, "smaller", Subgroup::Purpose::shrink},
                       [&] { return rank.group->mesh().tuning(); }, Deadline::after(patience), {});
}

/// Groups that are made within a test must be gone before its cluster's memory is.
void use_and_close(Rank& rank, std::shared_ptr<Group> group, std::int64_t expected) {
  std::swap(rank.group, group);
  std::int64_t value = 1;
  rank.run(all_reduce(&value, 1));
  CHECK(value == expected);
  std::vector<std::int64_t> many(100000, 1);
  rank.run(all_reduce(many.data(), many.size()));
  CHECK(many.back() == expected);
  std::swap(rank.group, group);
  group->close();
}

/// Local peers: no rank takes its memory away while others are at it.
void part(std::atomic<int>& done, int all) {
  for (++done; done < all;) std::this_thread::yield();
}

}  // namespace

TEST("ranks make groups one after the other, whatever the others have made and call them") {
  constexpr int kRanks = 5;
  Cluster cluster(kRanks);
  std::atomic<int> done = 0;
  cluster.each([&](Rank& rank) {
    std::mt19937 same(11);  // on all ranks
    for (int round = 0; round < 60; ++round) {
      std::vector<int> ranks(kRanks);
      std::iota(ranks.begin(), ranks.end(), 0);
      std::shuffle(ranks.begin(), ranks.end(), same);
      ranks.resize(1 + same() % kRanks);
      const auto at = std::find(ranks.begin(), ranks.end(), rank.rank);
      if (at == ranks.end()) continue;
      auto group = make(rank, ranks, concat("of rank ", rank.rank, " ", round));
      CHECK(group->mesh().rank() == at - ranks.begin() &&
            group->mesh().size() == static_cast<int>(ranks.size()));
      use_and_close(rank, std::move(group), static_cast<std::int64_t>(ranks.size()));
    }
    part(done, kRanks);
  });
}

TEST("threads of one process make groups of a parent one at a time") {
  Cluster cluster(2);
  std::atomic<int> done = 0;
  cluster.each([&](Rank& rank) {
    std::vector<std::shared_ptr<Group>> groups(4);
    std::vector<std::thread> threads;
    for (auto& group : groups) threads.emplace_back([&] { group = make(rank, {0, 1}, "one of four"); });
    for (auto& thread : threads) thread.join();
    for (auto& group : groups) group->close();
    part(done, 2);
  });
}

TEST("a rank that cannot take part tells the others why, and may try again") {
  Cluster cluster(3);
  std::atomic<int> done = 0;
  cluster.each([&](Rank& rank) {
    const auto failing = [&]() -> Tuning {
      if (rank.rank == 1) fail(Errc::invalid_argument, "nonsense in the environment");
      return {};
    };
    const Error error = error_of([&] {
      make_subgroup(*rank.group, {{0, 1, 2}, "it"}, failing, Deadline::after(kPatience), {});
    });
    CHECK(contains(error, "nonsense in the environment"), error.what());
    if (rank.rank != 1) CHECK(contains(error, "rank 1 (pid") && error.code() == Errc::aborted, error.what());
    use_and_close(rank, make(rank, {0, 1, 2}, "again"), 3);  // rank 1 may come to it before the others fail
    part(done, 3);
  });
}

TEST("a rank joins only when all ranks have seen the same offers") {
  Cluster cluster(3);
  std::atomic<int> shown = 0, looks = 0, done = 0;
  const auto attempt = [](Rank& rank, const std::function<void()>& interrupted) {
    return make_subgroup(
        *rank.group, {{0, 1, 2}, "it"}, [&] { return rank.group->mesh().tuning(); },
        Deadline::after(std::chrono::seconds(20)), interrupted);
  };
  cluster.each([&](Rank& rank) {
    // Rank 2 shows an offer, does not look at rank 1's, and gives up when rank 0 has seen an offer of each.
    if (rank.rank == 2)
      CHECK(error_of([&] {
              attempt(rank, [&] {
                for (shown = 1; looks < 3;) std::this_thread::yield();
                fail(Errc::closed, "interrupted");
              });
            }).code() == Errc::closed);
    while (shown == 0) std::this_thread::yield();
    use_and_close(rank,
                  attempt(rank,
                          [&] {
                            if (rank.rank == 1) shown = 2;
                            if (rank.rank == 0 && shown == 2) ++looks;
                          }),
                  3);
    part(done, 3);
  });
}

TEST("an attempt that timed out is forgotten") {
  Cluster cluster(3);
  const Error error = error_of([&] { make(cluster[0], {0, 1, 2}, "late", kShort); });
  CHECK(error.code() == Errc::timeout && contains(error, "create group late of ranks 0, 1, 2"), error.what());
  CHECK(contains(error, "rank 1 (pid") && contains(error, "rank 2 (pid"), error.what());
  std::atomic<int> done = 0;
  cluster.each([&](Rank& rank) {
    use_and_close(rank, make(rank, {0, 1, 2}, "again"), 3);
    part(done, 3);
  });
}

TEST("a rank that leaves because its attempt failed says why") {
  Cluster cluster(3);
  const Error error = error_of([&] { make(cluster[1], {0, 1, 2}, "first", kShort); });
  CHECK(error.code() == Errc::timeout, error.what());
  cluster[1].group->close();
  const Error heard = error_of([&] { make(cluster[2], {0, 1, 2}, "first"); });
  CHECK(heard.code() == Errc::peer_left && contains(heard, "rank 1 (pid"), heard.what());
  CHECK(contains(heard, "Its own attempt failed: occl: Timed out after 200 ms on rank 1 of group test"),
        heard.what());
  CHECK(contains(heard, "waiting for rank 0 (pid"), heard.what());
}

TEST("where a rank leaves, a death elsewhere is told as what may be the reason") {
  Cluster cluster(3);
  cluster[0].group->mesh().member(2).peer->set_exited();
  cluster[1].group->close();
  const Error heard = error_of([&] { make(cluster[0], {0, 1}, "next"); });
  CHECK(heard.code() == Errc::peer_left && contains(heard, "rank 1 (pid"), heard.what());
  CHECK(contains(heard, "; rank 2 (pid") && contains(heard, " has exited"), heard.what());
}

TEST("where a rank has aborted and left, its reason is told") {
  Cluster cluster(2);
  cluster[1].group->abort("enough");
  cluster[1].group->close();
  const Error heard = error_of([&] { make(cluster[0], {0, 1}, "next"); });
  CHECK(heard.code() == Errc::aborted && contains(heard, "rank 1 (pid") && contains(heard, "enough"),
        heard.what());
}

TEST("ranks that want different groups of each other are told, others may wait for them") {
  Cluster cluster(4);
  std::atomic<int> done = 0;
  cluster.each([&](Rank& rank) {
    // Rank 3 waits for rank 0, which comes when it has failed; that is no contradiction.
    if (rank.rank == 3) return use_and_close(rank, make(rank, {0, 3}, "later"), 2), part(done, 4);
    if (rank.rank == 2) return part(done, 4);
    const Error error = error_of([&] {
      make(rank, rank.rank == 0 ? std::vector<int>{0, 1} : std::vector<int>{0, 1, 2}, "disputed");
    });
    CHECK(error.code() == Errc::mismatch && contains(error, "ranks 0, 1, 2 of group test"), error.what());
    if (rank.rank == 0) use_and_close(rank, make(rank, {0, 3}, "later"), 2);
    part(done, 4);
  });
}

TEST("the same ranks in another order are another group") {
  Cluster cluster(2);
  cluster.each([](Rank& rank) {
    const Error error = error_of([&] {
      make(rank, rank.rank ? std::vector<int>{1, 0} : std::vector<int>{0, 1}, "x");
    });
    CHECK(error.code() == Errc::mismatch && contains(error, "ranks 1, 0 of"), error.what());
  });
}

TEST("a list of ranks that a group cannot have is an error of the rank that shows it") {
  for (const bool too_many : {false, true}) {
    Cluster cluster(2);
    Offer offer;
    offer.ranks = RankList({0, 1});
    if (too_many)
      offer.ranks.size = 1 << 20;
    else
      offer.ranks.ranks[1] = 200;
    cluster[1].group->mesh().own().offers().show(offer);
    const Error error = error_of([&] { make(cluster[0], {0, 1}, "x"); });
    CHECK(error.code() == Errc::protocol && contains(error, "rank 1 (pid"), error.what());
  }
}

TEST("survivors shrink the group and go on, also after it has ended") {
  for (const bool ended : {false, true}) {
    Cluster cluster(4);
    std::atomic<int> done = 0;
    cluster.each([&](Rank& rank) {
      if (rank.rank == 2) return;
      if (ended && rank.rank == 0) rank.group->abort("for the test");
      use_and_close(rank, shrink_to(rank, {0, 1, 3}), 3);
      // Local peers: no process takes its memory away while others are at it.
      for (++done; done < 3;) std::this_thread::yield();
    });
  }
}

TEST("a survivor that has moved on has still done its part") {
  Cluster cluster(3);
  std::shared_ptr<Group> first;
  std::thread other([&] { first = shrink_to(cluster[0], {0, 2}); });
  const auto second = shrink_to(cluster[2], {0, 2});
  other.join();
  CHECK(first->mesh().rank() == 0 && second->mesh().rank() == 1 && second->mesh().size() == 2);
  first->close();
  second->close();
}

TEST("ranks that shrink to different groups are told") {
  Cluster cluster(3);
  cluster.each([](Rank& rank) {
    if (rank.rank == 2) return;
    const Error error = error_of([&] {
      shrink_to(rank, rank.rank == 0 ? std::vector<int>{0, 1} : std::vector<int>{0, 1, 2});
    });
    CHECK(error.code() == Errc::mismatch, error.what());
    CHECK(contains(error, "to ranks 0, 1, 2") && contains(error, "to ranks 0, 1"), error.what());
  });
}

TEST("a survivor that dies meanwhile is named, and the others may try again without it") {
  Cluster cluster(3);
  std::thread other([&] {
    const Error error = error_of([&] { shrink_to(cluster[1], {0, 1, 2}); });
    CHECK(error.code() == Errc::peer_exited && contains(error, "rank 2 (pid"), error.what());
    use_and_close(cluster[1], shrink_to(cluster[1], {0, 1}), 2);
  });
  // Rank 0 knows of the death first: the other's older choice is no disagreement.
  cluster[0].group->mesh().member(2).peer->set_exited();
  std::thread later([&] {
    std::this_thread::sleep_for(kShort);  // not needed: any order must do
    cluster[1].group->mesh().member(2).peer->set_exited();
  });
  use_and_close(cluster[0], shrink_to(cluster[0], {0, 1}), 2);
  later.join();
  other.join();
}

TEST("a rank that does not come to shrink is named") {
  Cluster cluster(3);
  const Error error = error_of([&] { shrink_to(cluster[0], {0, 2}, kShort); });
  CHECK(error.code() == Errc::timeout && contains(error, "rank 2 (pid") && !contains(error, "rank 1"),
        error.what());
  cluster[2].group->close();
  CHECK(error_of([&] { shrink_to(cluster[0], {0, 2}); }).code() == Errc::peer_left);
}
