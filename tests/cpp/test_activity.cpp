// What ranks publish of themselves, as a reader outside sees it: while they run, while they wait, and torn
// reads; and what a recorder is told.
#include "coll/observe/activity.h"

#include <cstring>
#include <map>
#include <set>
#include <utility>

#include "check.h"
#include "cluster.h"
#include "coll/observe/record.h"

namespace {

using namespace occl;
using namespace occl::coll;
using namespace occl::test;

const ActivityRecord& record_of(Rank& r) { return std::as_const(*r.group).activity().record(); }

/// What a reader takes at one moment, as occl/tools/top/records.py does.
struct Seen {
  std::uint64_t stage, number, signature, volume, posted, deadline, last, collectives;
  struct {
    std::uint64_t operations, bytes, meeting, syncing, moving, failed;
  } kinds[kRecordKinds];
  auto& of(Kind kind) const { return kinds[static_cast<int>(kind)]; }
};

/// False if the writer was at work.
bool read_once(const ActivityRecord& r, Seen& seen) {
  const std::uint64_t before = r.version.get();
  seen = {r.stage.get(),  r.number.get(),      r.signature.get(),
          r.volume.get(), r.posted.get(),      r.deadline.get(),
          r.last.get(),   r.collectives.get(), {}};
  for (int i = 0; i < kRecordKinds; ++i) {
    const auto& c = r.counters[i];
    seen.kinds[i] = {c.operations.get(), c.bytes.get(),  c.meeting.get(),
                     c.syncing.get(),    c.moving.get(), c.failed.get()};
  }
  return before % 2 == 0 && r.version.get() == before;
}

Seen read(const ActivityRecord& r) {
  Seen seen{};
  while (!read_once(r, seen)) std::this_thread::yield();
  return seen;
}

template <class F>
void until(F&& reached) {
  const auto limit = Deadline::after(std::chrono::seconds(60));
  while (!reached()) {
    CHECK(!limit.passed(), "it did not come to pass");
    std::this_thread::yield();
  }
}

Transfer message(bool send, int peer, std::int64_t* data, std::size_t count) {
  Transfer t;
  t.send = send, t.peer = peer, t.tag = 7, t.dtype = DType::i64;
  t.buffer = {reinterpret_cast<std::byte*>(data), count};
  return t;
}

int records_in(shm::Endpoint& endpoint) {
  int n = 0;
  std::uint64_t at = endpoint.header().records.load(std::memory_order_acquire);
  for (; at != 0; ++n)
    at = reinterpret_cast<ActivityRecord*>(endpoint.arena().at(at))->next.load(std::memory_order_acquire);
  return n;
}

TEST("a record says which group it is, and what the rank has done in it") {
  Cluster cluster(3);
  cluster.each([](Rank& r) {
    std::vector<std::int64_t> data(5000, r.rank);
    for (int i = 0; i < 4; ++i) r.run(all_reduce(data.data(), 1));
    r.run(all_reduce(data.data(), data.size()));
    if (r.rank == 0) r.run(message(true, 1, data.data(), 10));
    if (r.rank == 1) r.run(message(false, 0, data.data(), 10));
  });
  std::set<std::uint64_t> groups;
  for (int i = 0; i < 3; ++i) {
    const ActivityRecord& r = record_of(cluster[i]);
    groups.insert(r.group);
    CHECK(r.rank == i && r.size == 3 && std::string(r.name.data()) == "test");
    CHECK(r.state.get() == static_cast<std::uint64_t>(RecordState::open));
    CHECK(r.memory.get() > 0);
    const Seen seen = read(r);
    CHECK(seen.stage == static_cast<std::uint64_t>(Stage::idle));
    CHECK(seen.number == 5 && seen.collectives == 5 && r.submitted.get() == 5 && seen.volume == 40000);
    const auto& c = seen.of(Kind::all_reduce);
    CHECK(c.operations == 5 && c.bytes == 4 * 8 + 40000 && c.failed == 0 && c.moving > 0);
    CHECK(seen.kinds[kSendKind].operations == (i == 0) && seen.kinds[kRecvKind].operations == (i == 1));
    CHECK(seen.kinds[kRecvKind].bytes == (i == 1 ? 80u : 0u) && r.messages_open.get() == 0);
    // The anchors turn its times into those of the clock of all processes.
    const Anchor first{r.first_ticks.get(), static_cast<std::int64_t>(r.first_ns.get())};
    const Anchor recent{r.recent_ticks.get(), static_cast<std::int64_t>(r.recent_ns.get())};
    CHECK(recent.ticks > first.ticks && recent.ns > first.ns && recent.ns <= steady_ns());
  }
  CHECK(groups.size() == 1 && !groups.contains(0));
}

TEST("a rank that waits shows that it does, and its peers show that they have not come") {
  Cluster cluster(3);
  Atomic<bool> go = false;
  cluster.each([&](Rank& r) {
    std::int64_t one = 1;
    if (r.rank == 1) {
      // A thread that sleeps has looked more than kLooks times.
      for (const int other : {0, 2})
        until([&] { return cluster[other].endpoint->header().sleepers.load() > 0; });
      for (const int other : {0, 2})
        CHECK(read(record_of(cluster[other])).stage == static_cast<std::uint64_t>(Stage::meeting));
      const Seen waiting = read(record_of(cluster[0]));
      CHECK(waiting.collectives == 1 && waiting.deadline > static_cast<std::uint64_t>(steady_ns()));
      CHECK(read(record_of(r)).collectives == 0);
      go = true;
    }
    r.run(all_reduce(&one, 1));
  });
  CHECK(go);
  for (int i = 0; i < 3; ++i) {
    const Seen seen = read(record_of(cluster[i]));
    CHECK(seen.last == 2, "rank 1 was the last one, and rank ", i, " says ", seen.last);
    CHECK((seen.of(Kind::all_reduce).meeting > 0) == (i != 1));
  }
}

TEST("a reader never takes half of an update for a whole one") {
  Cluster cluster(2);
  Atomic<int> running = 2;
  std::thread reader([&] {
    long whole = 0, torn = 0;
    while (running > 0 || whole == 0) {
      Seen seen{};
      if (!read_once(record_of(cluster[0]), seen)) {
        ++torn;
        continue;
      }
      ++whole;
      const auto& c = seen.of(Kind::all_reduce);
      CHECK(c.bytes == 8 * c.operations, c.bytes, " bytes of ", c.operations, " operations");
      const bool idle = seen.stage == static_cast<std::uint64_t>(Stage::idle);
      CHECK(seen.collectives == c.operations + !idle, "collective ", seen.collectives, " after ",
            c.operations);
      CHECK(seen.number == seen.collectives);
    }
    std::printf("%ld whole, %ld torn\n", whole, torn);
  });
  cluster.each([&](Rank& r) {
    std::int64_t data = 1;
    for (int i = 0; i < 20000; ++i) r.run(all_reduce(&data, 1));
    --running;
  });
  reader.join();
}

TEST("a call that fails counts as one that failed") {
  Cluster cluster(2);
  cluster.each([](Rank& r) {
    std::int64_t data[4] = {};
    error_of([&] { r.run(all_reduce(data, r.rank == 0 ? 1 : 2)); });
    r.run(all_reduce(data, 4));
  });
  const auto before = read(record_of(cluster[0])).of(Kind::all_reduce);
  CHECK(before.operations == 1 && before.bytes == 32 && before.failed == 1);
  Rank& r = cluster[0];
  std::int64_t data = 0;
  std::vector<std::unique_ptr<Call>> calls;
  for (int i = 0; i < 3; ++i) {
    calls.push_back(std::make_unique<Call>(all_reduce(&data, 1), Deadline::after(std::chrono::minutes(1))));
    r.submit(*calls.back());
  }
  r.group->abort("that was enough");
  const Seen seen = read(record_of(r));
  CHECK(seen.of(Kind::all_reduce).failed == 4 && seen.stage == static_cast<std::uint64_t>(Stage::idle));
  r.group->close();  // before the calls are destroyed
  CHECK(record_of(r).state.get() == static_cast<std::uint64_t>(RecordState::ended));
}

TEST("an operation on hold shows that it is") {
  Cluster cluster(1);
  Rank& r = cluster[0];
  std::int64_t data = 0;
  Call call(all_reduce(&data, 1), Deadline::after(std::chrono::minutes(1)));
  call.operation.hold("it is held");
  r.submit(call);
  CHECK(read(record_of(r)).stage == static_cast<std::uint64_t>(Stage::held));
  CHECK(record_of(r).number.get() == 1 && record_of(r).collectives.get() == 0);
  r.engine->release(*r.group, call.operation);
  r.wait(call);
  CHECK(read(record_of(r)).stage == static_cast<std::uint64_t>(Stage::idle));
}

TEST("records of groups that have ended are used again") {
  auto regions = std::make_shared<shm::RegionTable>();
  auto endpoint = std::make_shared<shm::Endpoint>(regions, shm::Endpoint::Config{std::size_t{256} << 20, 0});
  const std::atomic<Recorder*> none = nullptr;
  for (int i = 1; i <= 3; ++i) {
    Activity one(endpoint, {concat("one ", i), 1, 0, 1, 0, 0, 0}, none);
    Activity two(endpoint, {std::string(1000, 'x'), 2, 0, 1, 0, 0, kSpansNodes}, none);
    CHECK(std::string(one.record().name.data()) == concat("one ", i) && one.record().number.get() == 0);
    CHECK(two.record().name.back() == 0 && two.record().flags.get() == kSpansNodes);
    CHECK(records_in(*endpoint) == 2);
    endpoint->collect();
  }
  const std::string names =
      reinterpret_cast<const char*>(endpoint->arena().at(endpoint->header().names.load()));
  CHECK(names.starts_with("barrier,broadcast,all_reduce,") && names.ends_with(",NONE"));
}

/// Keeps what it is told, by operation.
class Keeper final : public Recorder {
 public:
  void record(const Activity& of, const Event& event) noexcept override {
    std::lock_guard lock(mutex_);
    const char* names[] = {"submitted", "started", "posted", "met", "moved", "finished", "failed"};
    auto& text =
        told[concat(of.identity().rank, " ", event.operation.is_transfer() ? "message" : "collective", " ",
                    event.operation.sequence())];
    text += concat(text.empty() ? "" : " ", names[static_cast<int>(event.what)]);
    const bool knows_peer = event.what == Event::What::met && event.peer >= 0;
    if (knows_peer) text += concat("(", event.peer, ")");
    if (event.at < latest[of.identity().rank]) backwards = true;
    latest[of.identity().rank] = event.at;
  }
  std::map<std::string, std::string> told;
  std::map<int, Ticks> latest;
  bool backwards = false;

 private:
  std::mutex mutex_;
};

TEST("a recorder is told of every step of every operation, in order") {
  Keeper keeper;
  {
    Tuning tuning;
    tuning.one_shot_bytes = 64;
    Cluster cluster(2, tuning);
    for (int i = 0; i < 2; ++i) cluster[i].engine->set_recorder(&keeper);
    cluster.each([&](Rank& r) {
      std::vector<std::int64_t> data(100, 1);
      if (r.rank == 1) until([&] { return cluster[0].endpoint->header().sleepers.load() > 0; });
      r.run(all_reduce(data.data(), 1));
      r.run(all_reduce(data.data(), data.size()));  // staged: two steps, and none has to wait after them
      error_of([&] { r.run(all_reduce(data.data(), r.rank + 1)); });
      r.run(message(r.rank == 0, 1 - r.rank, data.data(), 10));
    });
    for (int i = 0; i < 2; ++i) cluster[i].engine->set_recorder(nullptr);
  }
  CHECK(keeper.told.size() == 8 && !keeper.backwards);
  for (const char* rank : {"0", "1"}) {
    const auto told = [&](const char* what) { return keeper.told[concat(rank, " ", what)]; };
    CHECK(told("collective 1") == "submitted started posted met(1) finished", told("collective 1"));
    const std::string staged = told("collective 2");
    CHECK(staged.starts_with("submitted started posted met(") && staged.ends_with(") finished"), staged);
    const std::string wrong = told("collective 3");
    CHECK(wrong.starts_with("submitted started posted met(") && wrong.ends_with(") failed"), wrong);
  }
  CHECK(keeper.told["0 message 1"] == "submitted posted finished", keeper.told["0 message 1"]);
  CHECK(keeper.told["1 message 1"] == "submitted posted met(0) finished", keeper.told["1 message 1"]);
}

}  // namespace
