// Groups of some ranks of a group over several nodes: in any order of ranks, beside each other, and all that
// can go wrong on one rank while the others wait.
#include <condition_variable>
#include <mutex>
#include <numeric>
#include <random>

#include "check.h"
#include "hosts.h"
#include "hosts/subgroup.h"

using namespace occl;
using namespace occl::test;
using coll::Subgroup;

namespace {

using Milliseconds = std::chrono::milliseconds;

constexpr Milliseconds kPatience = std::chrono::minutes(1);
constexpr Milliseconds kShort{200};
constexpr int kNone = -1;
const std::vector<int> kAll{0, 1, 2, 3};

struct Attempt {
  std::vector<int> ranks = kAll;
  Milliseconds patience = kPatience;
  std::function<Tuning()> tuning = [] { return Tuning{}; };
  std::function<void()> interrupted = [] {};
  std::string name = "new";
};

std::shared_ptr<coll::Communicator> make(Rank& rank, const Attempt& attempt, coll::Communicator& parent) {
  return parent.make_subgroup({attempt.ranks, attempt.name}, attempt.tuning,
                              Deadline::after(attempt.patience), attempt.interrupted);
}

std::shared_ptr<coll::Communicator> make(Rank& rank, const Attempt& attempt) {
  return make(rank, attempt, *rank.wide);
}

void use(Rank& rank, std::shared_ptr<coll::Communicator> group) {
  std::swap(rank.wide, group);
  const std::int64_t expected = rank.wide->size();
  for (const std::size_t count : {1, 50000}) {
    std::vector<std::int64_t> data(count, 1);
    rank.run(all_reduce(data.data(), count));
    CHECK(data.front() == expected && data.back() == expected);
  }
  std::swap(rank.wide, group);
}

void use_and_close(Rank& rank, const std::shared_ptr<coll::Communicator>& group) {
  use(rank, group);
  group->close();
}

/// Waits for the others: a node's memory stays until all its ranks are done with it.
class Meeting {
 public:
  explicit Meeting(int ranks) : ranks_(ranks) {}
  void wait(const Rank& rank) {
    std::unique_lock lock(mutex_);
    const int round = come_++ / ranks_;
    changed_.notify_all();
    while (!changed_.wait_for(lock, Milliseconds(10), [&] { return come_ >= (round + 1) * ranks_; }))
      if (const auto failed = rank.wide->error()) throw *failed;  // the test has failed on another rank
  }

 private:
  const int ranks_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int come_ = 0;
};

int messages_of(Hosts& hosts, int rank) {
  std::lock_guard lock(hosts.wire.mutex);
  return static_cast<int>(hosts.wire.sent[rank] / sizeof(hosts::SubgroupMessage));
}

/// A short attempt, which begins when rank `patient` has written a message, or that rank's, which is long.
Attempt impatient(Hosts& hosts, const Rank& rank, const std::vector<int>& ranks, int patient) {
  if (rank.rank == patient) return {.ranks = ranks};
  const auto tuning = [&hosts, &rank, patient] {
    while (patient != kNone && messages_of(hosts, patient) == 0 && !rank.wide->error())
      std::this_thread::yield();
    return Tuning{};
  };
  return {.ranks = ranks, .patience = kShort, .tuning = tuning};
}

/// All ranks make a group together.
void all_succeed(Rank& rank) { use_and_close(rank, make(rank, {})); }

}  // namespace

TEST("ranks of any nodes make groups in any order of ranks, whatever they call them") {
  for (const std::vector<int>& shape : {kAll, {0, 0, 1, 1, 1}, {0, 1, 0, 2, 1}}) {
    Hosts hosts(shape);
    const int size = static_cast<int>(shape.size());
    Meeting meeting(size);
    hosts.each([&](Rank& rank) {
      std::mt19937 same(11);  // on all ranks
      for (int round = 0; round < 30; ++round) {
        std::vector<int> ranks(size);
        std::iota(ranks.begin(), ranks.end(), 0);
        std::shuffle(ranks.begin(), ranks.end(), same);
        ranks.resize(1 + same() % size);
        const auto at = std::find(ranks.begin(), ranks.end(), rank.rank);
        if (at == ranks.end()) continue;
        const auto made = make(rank, {.ranks = ranks, .name = concat(rank.rank, " ", round)}, *rank.wide);
        CHECK(made->rank() == at - ranks.begin() && made->size() == static_cast<int>(ranks.size()));
        const bool here =
            std::all_of(ranks.begin(), ranks.end(), [&](int it) { return shape[it] == shape[rank.rank]; });
        CHECK((dynamic_cast<coll::Group*>(made.get()) != nullptr) == here);
        use_and_close(rank, made);
      }
      meeting.wait(rank);
    });
  }
}

TEST("groups of the same ranks, of disjoint ranks and of ranks of a group work side by side") {
  Hosts hosts({0, 0, 1, 1});
  Meeting meeting(4);
  hosts.each([&](Rank& rank) {
    const std::vector<int> pair = rank.rank % 2 == 0 ? std::vector{0, 2} : std::vector{3, 1};
    std::vector<std::shared_ptr<coll::Communicator>> groups;
    for (int i = 0; i < 2; ++i) {
      groups.push_back(make(rank, {.ranks = pair}));
      groups.push_back(make(rank, {}));
    }
    const std::vector<int> reversed{3, 2, 1, 0};
    groups.push_back(make(rank, {.ranks = reversed}));
    if (rank.rank != 0) groups.push_back(make(rank, {.ranks = {2, 1, 0}}, *groups.back()));
    for (int round = 0; round < 3; ++round)
      for (const auto& group : groups) use(rank, group);
    meeting.wait(rank);
    for (const auto& group : groups) group->close();
    meeting.wait(rank);
  });
}

TEST("threads of one process make groups of a parent one at a time") {
  Hosts hosts({0, 1});
  hosts.each([&](Rank& rank) {
    std::vector<std::shared_ptr<coll::Communicator>> groups(4);
    std::vector<std::thread> threads;
    for (auto& group : groups) threads.emplace_back([&] { group = make(rank, {.ranks = {0, 1}}); });
    for (auto& thread : threads) thread.join();
    for (auto& group : groups) group->close();
  });
}

TEST("a rank that cannot take part tells all others why, and may try again") {
  for (const int odd : kAll)
    for (const bool before : {false, true}) {
      Hosts hosts({0, 0, 1, 1});
      Meeting meeting(4);
      std::atomic<bool> failed = !before;
      hosts.each([&](Rank& rank) {
        const auto failing = [&]() -> Tuning {
          if (rank.rank == odd) fail(Errc::invalid_argument, "nonsense in the environment");
          return {};
        };
        while (rank.rank != odd && !failed) std::this_thread::yield();
        const Error error = error_of([&] { make(rank, {.tuning = failing}); });
        failed = true;
        CHECK(contains(error, "nonsense in the environment"), error.what());
        if (rank.rank != odd) CHECK(contains(error, concat("rank ", odd, " (pid")), error.what());
        meeting.wait(rank);
        all_succeed(rank);
        meeting.wait(rank);
      });
    }
}

TEST("a call that came too late for a rank does not contradict what that rank wants next") {
  Hosts hosts({0, 1, 2});
  Meeting meeting(3);
  hosts.each([&](Rank& rank) {
    const Attempt of_two{.ranks = {0, 1}, .tuning = [&]() -> Tuning {
                           if (rank.rank == 1) fail(Errc::invalid_argument, "nonsense");
                           return {};
                         }};
    if (rank.rank == 1) error_of([&] { make(rank, of_two); });
    meeting.wait(rank);
    if (rank.rank == 0) error_of([&] { make(rank, of_two); });
    meeting.wait(rank);
    int slices = 0;  // of 50 ms
    Attempt of_all{.ranks = {0, 1, 2}};
    of_all.interrupted = [&, waits = rank.rank == 1] {
      if (waits && ++slices == 25) meeting.wait(rank);  // longer than two ranks may contradict each other
    };
    if (rank.rank != 1) meeting.wait(rank);
    use_and_close(rank, make(rank, of_all));
    meeting.wait(rank);
  });
}

// In the next two tests the patient rank waits for a minute, and another rank tells it which rank is missing.
// The other rank must not give up before the patient rank has called or answered, or it tells it nothing.

TEST("a rank that does not come is named on every other rank, and all may try again") {
  struct Case {
    std::vector<int> node_of;
    int late, patient;
  };
  for (const auto& [node_of, late, patient] : std::vector<Case>{{{0, 0, 1}, 0, kNone},
                                                                {{0, 0, 1}, 1, 2},
                                                                {{0, 1, 1}, 1, kNone},
                                                                {{0, 1, 1}, 2, 0},
                                                                {{0, 1, 2}, 2, 1}}) {
    Hosts hosts(node_of);
    Meeting meeting(3);
    hosts.each([&, late = late, patient = patient](Rank& rank) {
      if (rank.rank != late) {
        const Error error = error_of([&] { make(rank, impatient(hosts, rank, {0, 1, 2}, patient)); });
        CHECK(contains(error, "Timed out after 200 ms") && contains(error, concat("rank ", late, " (pid")),
              "rank ", rank.rank, ": ", error.what());
      }
      meeting.wait(rank);
      use_and_close(rank, make(rank, {.ranks = {0, 1, 2}}));
      meeting.wait(rank);
    });
  }
}

TEST("a rank that gave up is not taken for one that waits") {
  struct Case {
    std::vector<int> node_of, early;
    int patient;
  };
  for (const auto& [node_of, early, patient] : std::vector<Case>{
           {{0, 0, 1, 2}, {0, 1}, kNone}, {{0, 1, 1, 2}, {1, 2}, 3}, {{0, 1, 2, 2}, {2, 3}, 1}}) {
    Hosts hosts(node_of);
    Meeting meeting(4);
    hosts.each([&, &early = early, patient = patient](Rank& rank) {
      const bool is_early = std::count(early.begin(), early.end(), rank.rank) > 0;
      if (is_early) error_of([&] { make(rank, {.patience = kShort}); });
      meeting.wait(rank);
      // The others are not told of an attempt to which they came too late.
      if (!is_early) {
        const Error error = error_of([&] { make(rank, impatient(hosts, rank, kAll, patient)); });
        CHECK(contains(error, "Timed out after 200 ms on rank ") &&
                  contains(error, concat("rank ", early.front(), " (pid")),
              "rank ", rank.rank, ": ", error.what());
      }
      meeting.wait(rank);
      all_succeed(rank);
      meeting.wait(rank);
    });
  }
}

TEST("an answer to an earlier call does not count") {
  Hosts hosts({0, 1});
  const int before = messages_of(hosts, 1);
  std::atomic<int> looks = 0;
  std::atomic<bool> made = false;
  hosts.each([&](Rank& rank) {
    Attempt again{.ranks = {0, 1}};
    if (rank.rank == 0) {
      Attempt odd = again;
      odd.tuning = [&]() -> Tuning {  // the call has arrived, and nothing that follows does
        hosts.wire.hold(0, 1);
        hosts.wire.hold(1, 0);
        fail(Errc::invalid_argument, "nonsense");
      };
      error_of([&] { make(rank, odd); });
      while (messages_of(hosts, 1) == before && !rank.wide->error()) std::this_thread::yield();
      again.interrupted = [&] {
        if (looks++ == 0) hosts.wire.release();  // the answer to the first call arrives, and that it is over
      };
    } else {
      const Error error = error_of([&] { make(rank, again); });
      CHECK(contains(error, "nonsense"), error.what());
      while (looks < 5 && !made) std::this_thread::yield();
      CHECK(!made);
    }
    const auto group = make(rank, again);
    made = true;
    use_and_close(rank, group);
  });
}

TEST("a rank that gives up after its node has answered tells all others") {
  for (const int odd : {1, 2, 3}) {
    Hosts hosts({0, 0, 1, 1, 2});
    Meeting meeting(5);
    std::atomic<bool> ended = false;
    hosts.each([&](Rank& rank) {
      if (rank.rank == 4) {  // so the group cannot be made before
        while (!ended && !rank.wide->error()) std::this_thread::yield();
      } else {
        int slices = 0;  // of 50 ms: by the tenth the rank waits for another node, or for its own first rank
        const Attempt attempt{.ranks = {0, 1, 2, 3, 4}, .interrupted = [&] {
                                if (rank.rank == odd && ++slices == 10) fail(Errc::closed, "Ctrl-C");
                              }};
        const Error error = error_of([&] { make(rank, attempt); });
        CHECK(contains(error, "Ctrl-C"), "rank ", rank.rank, ": ", error.what());
        if (rank.rank != odd) CHECK(contains(error, concat("rank ", odd, " (pid")), error.what());
        ended = true;
      }
      meeting.wait(rank);
    });
  }
}

TEST("a message without a reason, and a number that no group can have, are errors that name their writer") {
  using Kind = hosts::SubgroupMessage::Kind;
  for (const Kind kind : {Kind::failed, Kind::made, Kind(9)}) {
    Hosts hosts({0, 1});
    MemoryLink link(hosts.wire, 0);
    const int before = messages_of(hosts, 1);
    const auto write = [&](Kind kind, std::uint32_t number) {
      hosts::SubgroupMessage message;
      message.kind = kind, message.call = 1, message.number = number, message.ranks = coll::RankList({0, 1});
      hosts::send_object(link, 1, static_cast<std::uint32_t>(hosts::Channel::control),
                         std::make_shared<hosts::SubgroupMessage>(message));
    };
    write(Kind::call, 0);
    Attempt attempt{.ranks = {0, 1}};
    bool written = false;
    attempt.interrupted = [&] {  // once rank 1 has answered
      if (!written && messages_of(hosts, 1) > before) write(kind, 1 << 30), written = true;
    };
    const Error error = error_of([&] { make(hosts.ranks[1], attempt); });
    const char* what = kind == Kind::made ? "number of a new group" : "subgroup message";
    CHECK(contains(error, concat("rank 0 (pid 100, host a) sent a malformed ", what, " in group 0")),
          error.what());
  }
}

TEST("ranks of different nodes that want different groups all learn it") {
  Hosts hosts({0, 0, 1, 1});
  Meeting meeting(4);
  hosts.each([&](Rank& rank) {
    const std::vector<int> wanted = rank.rank < 2 ? kAll : std::vector{0, 2, 3};
    const Error error = error_of([&] { make(rank, {.ranks = wanted}); });
    CHECK(contains(error, "of ranks 0, 1, 2, 3 of group 0") &&
              contains(error, "of ranks 0, 2, 3 of group 0") && contains(error, "rank 0 (pid 100, host a)") &&
              contains(error, "rank 2 (pid 102, host b)"),
          error.what());
    meeting.wait(rank);
    all_succeed(rank);
    meeting.wait(rank);
  });
}

TEST("ranks of one node that want groups with different ranks of another node all learn it") {
  Hosts hosts({0, 0, 1, 1});
  Meeting meeting(4);
  hosts.each([&](Rank& rank) {
    const std::vector<int> wanted = rank.rank == 1 ? std::vector{0, 1, 2} : kAll;
    const Error error = error_of([&] { make(rank, {.ranks = wanted}); });
    CHECK(contains(error, "of ranks 0, 1, 2 of group") && contains(error, "of ranks 0, 1, 2, 3 of group"),
          error.what());
    meeting.wait(rank);
  });
}

TEST("a first rank of a node that is not reached any more is named on the other nodes") {
  for (const int gone : {0, 2}) {
    Hosts hosts({0, 0, 1, 1, 2});
    hosts.wire.cut(gone);
    hosts.each([&](Rank& rank) {
      if (rank.rank == gone || rank.rank == gone + 1) return;
      const Error error = error_of([&] { make(rank, {.ranks = {0, 1, 2, 3, 4}}); });
      CHECK(contains(error, concat("rank ", gone, " (pid ")), "rank ", rank.rank, ": ", error.what());
    });
  }
}
