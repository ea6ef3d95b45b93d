// What a group does when some of its ranks do not do their part: refused calls, monitored barriers, deaths.
#include "check.h"
#include "cluster.h"
#include "coll/monitored_barrier.h"

using namespace occl;
using namespace occl::coll;
using namespace occl::test;

namespace {

constexpr auto kPatience = std::chrono::seconds(60);
constexpr auto kShort = std::chrono::milliseconds(200);

}  // namespace

TEST("who waits for a rank whose call was refused is told why") {
  Cluster cluster(3);
  cluster.each([](Rank& rank) {
    if (rank.rank == 1) return rank.group->refuse("all_reduce: the tensor is wrong");
    std::int64_t value = 1;
    const Error error = error_of([&] { rank.run(all_reduce(&value, 1)); });
    CHECK(contains(error, "rank 1 (pid") && contains(error, "all_reduce: the tensor is wrong"), error.what());
    CHECK(contains(error, "all_reduce(int64[1], SUM) #1 of group test"), error.what());
  });
}

TEST("a refused call that is made again, or was another, is no harm") {
  Cluster cluster(2);
  cluster.each([](Rank& rank) {
    const auto refused_at_first = [&] {
      std::int64_t value = 1;
      if (rank.rank == 0) {
        rank.group->refuse("all_reduce: wrong at first");
        std::this_thread::sleep_for(std::chrono::milliseconds(100));  // rank 1 sees it
      }
      rank.run(all_reduce(&value, 1));
      CHECK(value == 2);
    };
    for (int i = 1; i <= 3; ++i) refused_at_first();
    // Longer than a rank has for second thoughts, but the call that was refused is another.
    if (rank.rank == 0) {
      rank.group->refuse("broadcast: has a wrong root");
      std::this_thread::sleep_for(std::chrono::seconds(4));
    }
    std::int64_t value = 1;
    rank.run(all_reduce(&value, 1));
    CHECK(value == 2);
    refused_at_first();  // the time for second thoughts begins anew
  });
}

TEST("who waits for a message that was refused is told why, others are not") {
  for (const bool send : {true, false}) {
    // Too many for a ring: a send waits for its receiver. And they must live longer than the group.
    std::vector<std::vector<std::int64_t>> many(3, std::vector<std::int64_t>(1 << 20));
    Cluster cluster(3);
    cluster.each([&](Rank& rank) {
      auto& mine = many[rank.rank];
      const Block buffer{reinterpret_cast<std::byte*>(mine.data()), mine.size()};
      const auto message = [&](bool sends, int peer) {
        return Transfer{.send = sends, .peer = peer, .tag = 1, .dtype = DType::i64, .buffer = buffer};
      };
      if (rank.rank == 0) {
        rank.group->refuse_message(1, send, "the tensor is wrong");
        rank.run(message(send, 2));
      } else if (rank.rank == 1) {
        const Error error = error_of([&] { rank.run(message(!send, 0)); });
        CHECK(error.code() == Errc::mismatch && contains(error, "rank 0 (pid"), error.what());
        CHECK(contains(error, send ? "answered recv(int64[1048576]" : "answered send("), error.what());
        CHECK(contains(error, "the tensor is wrong"), error.what());
      } else {
        rank.run(message(!send, 0));
      }
    });
  }
}

TEST("a refused message that is made again is no harm") {
  Cluster cluster(2);
  cluster.each([](Rank& rank) {
    for (int i = 0; i < 3; ++i) {
      std::int64_t value = rank.rank;
      Transfer message{.send = rank.rank == 0, .peer = 1 - rank.rank, .tag = 0, .dtype = DType::i64};
      message.buffer = {reinterpret_cast<std::byte*>(&value), 1};
      if (rank.rank == 0) {
        rank.group->refuse_message(1, true, "wrong at first");
        std::this_thread::sleep_for(std::chrono::milliseconds(100));  // rank 1 sees it
      }
      rank.run(message);
      CHECK(value == 0);
    }
    // This receive takes longer than a rank has for second thoughts, but nothing is refused any more.
    std::int64_t value = rank.rank;
    Transfer message{.send = rank.rank == 0, .peer = 1 - rank.rank, .tag = 0, .dtype = DType::i64};
    message.buffer = {reinterpret_cast<std::byte*>(&value), 1};
    if (rank.rank == 0) std::this_thread::sleep_for(std::chrono::seconds(4));
    rank.run(message);
    CHECK(value == 0);
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

TEST("who comes late to a monitored barrier hears what the others heard") {
  Cluster cluster(3);
  for (const int rank : {0, 1, 2}) {
    const Error error =
        error_of([&] { monitored_barrier(*cluster[rank].group, rank == 0 ? kShort : kPatience, false, {}); });
    CHECK(contains(error, "Rank 1 failed to pass monitoredBarrier in"), error.what());
  }
}

TEST("a monitored barrier does not wait for who is gone") {
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
