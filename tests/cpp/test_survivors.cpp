// What a group does when some of its ranks do not do their part: refused calls, monitored barriers, deaths,
// ranks without memory.
#include <cstdlib>
#include <new>

#include "base/fault_point.h"
#include "check.h"
#include "cluster.h"
#include "coll/group/monitored_barrier.h"

using namespace occl;
using namespace occl::coll;
using namespace occl::test;

namespace {

constexpr auto kPatience = std::chrono::seconds(60);
constexpr auto kShort = std::chrono::milliseconds(200);

}  // namespace

namespace {

/// The ways in which a rank that was refused a call fails to make the right one.
enum class InVain { late, exits, leaves };

/// Makes the other ranks of a cluster see that `rank` has exited or left, or lets them wait.
void end_of(Cluster& cluster, int rank, InVain how) {
  if (how == InVain::leaves) return cluster[rank].group->close();
  if (how == InVain::late) return;
  cluster[rank].endpoint->announce_end();
  for (int i = 0; i < cluster.size(); ++i) {
    if (i == rank) continue;
    cluster[i].group->mesh().member(rank).peer->set_exited();
    cluster[i].engine->ring();
  }
}

const char* error_of_wait(InVain how) {
  return how == InVain::late    ? "Timed out waiting 200ms for"
         : how == InVain::exits ? " exited during "
                                : " left ";
}

}  // namespace

TEST("a rank that waits in vain for a refused call is told why it was refused") {
  for (const InVain how : {InVain::late, InVain::exits, InVain::leaves}) {
    Cluster cluster(3);
    cluster.each([&](Rank& rank) {
      std::int64_t value = 1;
      rank.run(all_reduce(&value, 1));
      if (rank.rank == 1) {
        rank.group->refuse("all_reduce: the tensor is wrong");
        rank.group->refuse("all_reduce: wrong in another way");  // the first one counts
        return end_of(cluster, 1, how);
      }
      const Error error = error_of([&] { rank.run(all_reduce(&value, 1), Deadline::after(kShort)); });
      CHECK(contains(error, "rank 1 (pid") && contains(error, "all_reduce(int64[1], SUM) #2 of group test"),
            error.what());
      CHECK(contains(error, error_of_wait(how)), error.what());
      CHECK(contains(error, "; its call was refused there: all_reduce: the tensor is wrong"), error.what());
    });
  }
}

TEST("a refused call ends nothing: the right call may come at any time before the deadline") {
  Cluster cluster(2);
  cluster.each([](Rank& rank) {
    for (const auto wait : {0, 100}) {
      std::int64_t value = 1;
      if (rank.rank == 0) {
        rank.group->refuse("all_reduce: wrong at first");
        std::this_thread::sleep_for(std::chrono::milliseconds(wait));
      }
      rank.run(all_reduce(&value, 1));
      CHECK(value == 2);
    }
  });
}

TEST("a call that was refused at first and then made is not reported") {
  Cluster cluster(2);
  cluster.each([](Rank& rank) {
    std::int64_t value = 1;
    if (rank.rank == 1) rank.group->refuse("all_reduce: wrong at first");
    rank.run(all_reduce(&value, 1));
    if (rank.rank == 1) return;
    const Error error = error_of([&] { rank.run(all_reduce(&value, 1), Deadline::after(kShort)); });
    CHECK(contains(error, "rank 1 (pid") && contains(error, " has not arrived, its last operation was"),
          error.what());
    CHECK(!contains(error, "refused"), error.what());
  });
}

TEST("a call that was refused at first and then made is not why its rank exits") {
  std::vector<std::vector<std::int64_t>> values(2, std::vector<std::int64_t>(1 << 20));  // several windows
  Call theirs(all_reduce(values[1].data(), values[1].size()), Deadline::never());
  Cluster cluster(2);
  cluster[1].group->refuse("all_reduce: wrong at first");
  cluster[1].group->submit(theirs.operation);
  cluster[1].group->drive(false);  // shows its part, and then does nothing more
  end_of(cluster, 1, InVain::exits);
  const Error error = error_of([&] { cluster[0].run(all_reduce(values[0].data(), values[0].size())); });
  CHECK(contains(error, " exited during all_reduce") && !contains(error, "refused"), error.what());
}

TEST("a rank that waits in vain for a refused message is told why, and other messages arrive") {
  for (const InVain how : {InVain::late, InVain::exits, InVain::leaves})
    for (const bool send : {true, false}) {
      // Too large for a ring, so that a send waits for its receiver. They must live longer than the group.
      std::vector<std::vector<std::int64_t>> many(3, std::vector<std::int64_t>(1 << 20));
      Cluster cluster(3);
      std::atomic<bool> others_ended = false;
      cluster.each([&](Rank& rank) {
        auto& mine = many[rank.rank];
        const Block buffer{reinterpret_cast<std::byte*>(mine.data()), mine.size()};
        const auto message = [&](bool sends, int peer) {
          return Transfer{.send = sends, .peer = peer, .tag = 1, .dtype = DType::i64, .buffer = buffer};
        };
        if (rank.rank == 0) {
          rank.group->refuse_message(1, send, "the tensor is wrong");
          rank.run(message(send, 2));
          others_ended = true;
          end_of(cluster, 0, how);
        } else if (rank.rank == 2) {
          rank.run(message(!send, 0));
        } else {
          while (!others_ended) std::this_thread::yield();
          const Error error = error_of([&] { rank.run(message(!send, 0), Deadline::after(kShort)); });
          CHECK(contains(error, "rank 0 (pid") && contains(error, error_of_wait(how)), error.what());
          CHECK(contains(error, "; its call was refused there: the tensor is wrong"), error.what());
        }
      });
    }
}

TEST("a send is told that a receive from any rank was refused, and not that another send was") {
  for (const bool send : {true, false}) {
    std::vector<std::int64_t> many(1 << 20);
    Cluster cluster(2);
    cluster.each([&](Rank& rank) {
      if (rank.rank == 0)
        return rank.group->refuse_message(send ? 1 : Transfer::kAnyRank, send, "the tensor is wrong");
      const Block buffer{reinterpret_cast<std::byte*>(many.data()), many.size()};
      const Transfer message{.send = true, .peer = 0, .tag = 1, .dtype = DType::i64, .buffer = buffer};
      const Error error = error_of([&] { rank.run(message, Deadline::after(kShort)); });
      CHECK(error.code() == Errc::timeout && contains(error, "refused there") == !send, error.what());
    });
  }
}

TEST("the peers of all messages that were refused together are told, until each good message has followed") {
  for (const int waits : {1, 2, 3}) {
    std::vector<std::int64_t> many(1 << 20);
    Cluster cluster(4);
    std::atomic<bool> refused = false;
    cluster.each([&](Rank& rank) {
      std::int64_t value = 0;
      const auto message = [&](bool sends, int peer, bool large) {
        const Block small{reinterpret_cast<std::byte*>(&value), 1};
        const Block buffer{reinterpret_cast<std::byte*>(many.data()), many.size()};
        return Transfer{
            .send = sends, .peer = peer, .tag = large, .dtype = DType::i64, .buffer = large ? buffer : small};
      };
      if (rank.rank == 0) {
        rank.group->refuse_message(1, true, "isend: wrong");
        rank.group->refuse_message(2, false, "isend: wrong");
        rank.group->refuse_message(2, true, "wrong in another way");  // the first text counts
        rank.group->refuse_message(3, true, "isend: wrong");
        rank.run(message(true, 3, false));
        refused = true;
      } else if (rank.rank == waits) {
        while (!refused) std::this_thread::yield();
        if (waits == 3) rank.run(message(false, 0, false));
        const Error error =
            error_of([&] { rank.run(message(waits == 2, 0, true), Deadline::after(kShort)); });
        CHECK(error.code() == Errc::timeout, error.what());
        CHECK(contains(error, "refused there: isend: wrong") == (waits != 3), error.what());
      }
    });
  }
}

TEST("a message that was refused at first and then made is not reported") {
  Cluster cluster(2);
  cluster.each([](Rank& rank) {
    for (int i = 0; i < 3; ++i) {
      std::int64_t value = rank.rank;
      Transfer message{.send = rank.rank == 0, .peer = 1 - rank.rank, .tag = 0, .dtype = DType::i64};
      message.buffer = {reinterpret_cast<std::byte*>(&value), 1};
      if (rank.rank == 0) rank.group->refuse_message(1, true, "wrong at first");
      rank.run(message);
      CHECK(value == 0);
    }
    if (rank.rank == 0) return;
    std::int64_t value = 1;
    Transfer message{.send = false, .peer = 0, .tag = 0, .dtype = DType::i64};
    message.buffer = {reinterpret_cast<std::byte*>(&value), 1};
    const Error error = error_of([&] { rank.run(message, Deadline::after(kShort)); });
    CHECK(error.code() == Errc::timeout && !contains(error, "refused"), error.what());
  });
}

TEST("a monitored barrier lets all ranks pass, again and again") {
  Cluster cluster(4);
  std::atomic<int> entered = 0;
  cluster.each([&](Rank& rank) {
    for (int i = 1; i <= 200; ++i) {
      ++entered;
      monitored_barrier(*rank.group, kPatience, false, {});
      CHECK(entered >= 4 * i);
    }
  });
}

TEST("a monitored barrier names the ranks that did not come, and the group goes on") {
  for (const bool all : {false, true}) {
    Cluster cluster(4);
    cluster.each([all](Rank& rank) {
      if (rank.rank % 2 == 0) {
        const auto timeout = rank.rank == 0 ? std::chrono::milliseconds(kShort) : kPatience;
        const Error error = error_of([&] { monitored_barrier(*rank.group, timeout, all, {}); });
        CHECK(contains(error, all ? "Ranks 1, 3 failed to pass monitoredBarrier in"
                                  : "Rank 1 failed to pass monitoredBarrier in"),
              error.what());
      }
      std::int64_t value = 1;
      rank.run(all_reduce(&value, 1));
      CHECK(value == 4);
    });
  }
}

TEST("a monitored barrier without rank 0 times out") {
  Cluster cluster(2);
  const Error error = error_of([&] { monitored_barrier(*cluster[1].group, kShort, false, {}); });
  CHECK(contains(error, "Rank 1 timed out in monitoredBarrier after 200 ms"), error.what());
}

TEST("a rank that comes late to a monitored barrier hears what the others heard") {
  Cluster cluster(3);
  for (const int rank : {0, 1, 2}) {
    const Error error =
        error_of([&] { monitored_barrier(*cluster[rank].group, rank == 0 ? kShort : kPatience, false, {}); });
    CHECK(contains(error, "Rank 1 failed to pass monitoredBarrier in"), error.what());
  }
}

TEST("a rank that comes long after a monitored barrier is not told the ranks that missed a later one") {
  Cluster cluster(3);
  const auto error_at = [&](int rank, std::chrono::milliseconds timeout) {
    return error_of([&] { monitored_barrier(*cluster[rank].group, timeout, true, {}); });
  };
  CHECK(contains(error_at(0, kShort), "Ranks 1, 2 failed to pass monitoredBarrier"));
  CHECK(contains(error_at(2, kPatience), "Ranks 1, 2 failed to pass monitoredBarrier"));
  for (int i = 0; i < 2; ++i) {
    std::thread two([&] { CHECK(contains(error_at(2, kPatience), "Ranks 1 failed to pass")); });
    while (cluster[2].group->mesh().own().roll_call().arrived < 2u + i) std::this_thread::yield();
    CHECK(contains(error_at(0, kShort), "Ranks 1 failed to pass"));
    two.join();
  }
  const Error late = error_at(1, kPatience);
  CHECK(contains(late, "monitoredBarrier #1 failed before rank 1 came (group test). Rank 0 is at #3"),
        late.what());
  CHECK(contains(error_at(1, kPatience), "Ranks 1 failed to pass monitoredBarrier"),
        "the list of #2 is there");
}

TEST("a monitored barrier does not wait for a rank that is gone") {
  Cluster cluster(3);
  cluster[0].group->mesh().member(2).peer->set_exited();
  const Error error = error_of([&] { monitored_barrier(*cluster[0].group, kPatience, false, {}); });
  CHECK(contains(error, "Rank 2 failed to pass") && contains(error, "has exited"), error.what());
}

TEST("a death ends messages between others, an end in good order does not") {
  for (const bool died : {true, false}) {
    Cluster cluster(3);
    cluster[0].patience = std::chrono::seconds(10);
    std::int64_t sent = 7, received = 0;
    const auto message = [&](bool send) {
      return Transfer{
          send, send ? 0 : 1, 0, DType::i64, {reinterpret_cast<std::byte*>(send ? &sent : &received), 1}};
    };
    std::thread later([&] {
      std::this_thread::sleep_for(kShort);  // not needed: any order must do
      if (!died) cluster[2].endpoint->announce_end();
      cluster[0].group->mesh().member(2).peer->set_exited();
      cluster[0].engine->ring();
      if (died) return;
      std::this_thread::sleep_for(kShort);
      cluster[1].run(message(true));
    });
    std::optional<Error> error;
    try {
      cluster[0].run(message(false));
    } catch (const Error& caught) {
      error = caught;
    }
    later.join();
    CHECK(error.has_value() == died, error ? error->what() : "it went on");
    if (died) CHECK(error->code() == Errc::peer_exited && contains(*error, "rank 2 (pid"), error->what());
  }
}

#ifdef OCCL_FAULT_POINTS

namespace {

thread_local bool no_memory = false;  // every allocation of this thread fails

/// While it lives, a message cannot be posted, and from then on the thread that tried it has no memory.
struct NoMemory {
  NoMemory() {
    fault::hook = [](const char* name) {
      if (std::string_view(name) != "message.post") return;
      no_memory = true;
      throw std::bad_alloc();
    };
  }
  ~NoMemory() {
    fault::hook = nullptr;
    no_memory = false;
  }
};

}  // namespace

void* operator new(std::size_t bytes) {
  if (no_memory) throw std::bad_alloc();
  if (void* p = std::malloc(bytes)) return p;
  throw std::bad_alloc();
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete(void* p, std::size_t) noexcept { std::free(p); }

TEST("a group that ends because there is no memory ends every operation, whichever thread drives it") {
  for (const bool background : {false, true}) {
    std::int64_t values[4] = {};
    Cluster cluster(2);
    Rank& rank = cluster[0];
    const auto message = [&](int i) {
      return Transfer{.send = i == 1,
                      .peer = 1,
                      .tag = 1,
                      .dtype = DType::i64,
                      .buffer = {reinterpret_cast<std::byte*>(&values[i]), 1}};
    };
    Call first(message(0), Deadline::never()), second(message(1), Deadline::never()),
        reduction(all_reduce(&values[2], 1), Deadline::never()), third(message(3), Deadline::never());
    rank.submit(reduction);
    first.operation.hold("it is held");
    for (Call* call : {&first, &second, &third}) rank.submit(*call);
    {
      const NoMemory none;
      if (background) {
        first.operation.make_ready();  // the thread that drives in the background posts the messages
        while (!reduction.completions || !third.completions) std::this_thread::yield();
      } else {
        rank.engine->release(*rank.group, first.operation);
      }
    }
    for (Call* call : {&first, &second, &reduction, &third}) {
      CHECK(call->operation.finished() && call->operation.error());
      CHECK(contains(*call->operation.error(), "this process has no ordinary memory left"));
    }
    const Error theirs = error_of([&] {
      for (int i = 0; i < 2; ++i) cluster[1].run(all_reduce(&values[3], 1));  // rank 0 has posted its first
    });
    CHECK(contains(theirs, "ended group test: this process has no ordinary memory left"), theirs.what());
    for (auto& r : {0, 1}) cluster[r].group->close();
    for (Call* call : {&first, &second, &reduction, &third})
      while (!call->releases) std::this_thread::yield();
    cluster[1].forget_calls();
  }
}

#endif
