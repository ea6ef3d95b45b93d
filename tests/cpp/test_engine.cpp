// Threads that always find something to move still notice deaths, deadlines and interrupts.
#include <atomic>

#include "check.h"
#include "cluster.h"
#include "coll/group/monitored_barrier.h"

using namespace occl;
using namespace occl::coll;
using namespace occl::test;

namespace {

constexpr auto kShort = std::chrono::milliseconds(100);

/// A communicator in which something moves at every look, with one operation that never ends. It stops
/// moving after many more looks than a test needs, so that a test fails and does not hang.
class Restless final : public Communicator, private Collectives::Machine, private Messages::Machine {
 public:
  explicit Restless(Rank& rank) : Communicator(*rank.engine, {"restless", 1, 0, 1}, *this, *this) {}

  const std::string& name() const override { return name_; }
  int rank() const override { return 0; }
  int size() const override { return 1; }
  bool core_for_each() const override { return false; }
  std::pair<int, int> ranks_and_cores() const override { return {1, 1}; }
  double seconds(const Task&, bool) const override { return 0; }
  void monitored_barrier(std::chrono::milliseconds, bool, const std::function<void()>&) override {}

  std::shared_ptr<Communicator> make_subgroup(const Subgroup&, const std::function<Tuning()>&, Deadline,
                                              const std::function<void()>&) override {
    return nullptr;
  }
  std::string describe() const override { return name_; }
  std::shared_ptr<Window> make_window(std::shared_ptr<void>, int) override { return nullptr; }
  WindowHandle show_window(Window&, shm::Ref, std::byte*, std::size_t) override { return {}; }
  void connect_window(Window&, const std::vector<WindowHandle>&, std::byte*, Deadline) override {}
  std::byte* window_memory(const Window&, int) const override { return nullptr; }
  void collect_windows() override {}

  bool rested() const { return looks_ >= kLooks; }
  int checks() const { return checks_; }

 private:
  static constexpr long kLooks = 50'000'000;

  void note_refusal(std::uint64_t, const std::string&) override {}
  void note_refused_message(int, bool, const std::string&) override {}
  void clear_refusal(const Transfer&) override {}
  void start(Operation&) override {}
  Outcome advance() override { return Outcome::blocked; }
  Error mismatch() const override { return {Errc::mismatch, ""}; }
  bool exposed() const override { return false; }
  void take_over(Operation&, OperationList&) override {}
  bool advance_messages(OperationList&) override { return ++looks_ < kLooks; }
  bool owes_answers() const override { return false; }
  void fail_messages(const Error&, OperationList&) override {}
  void check(OperationList&) override { ++checks_; }
  void give_up(const Error&) override {}
  void leave() override {}
  Memory memory_held() const override { return {}; }
  std::string calls_ahead_of_us(const shm::Peer&) const override { return ""; }

  const std::string name_ = "restless";
  std::atomic<long> looks_ = 0;
  std::atomic<int> checks_ = 0;
};

/// Two ranks, and beside the group of rank 0 a communicator that never rests.
struct Beside {
  Beside()
      : restless(std::make_shared<Restless>(cluster[0])), endless(all_reduce(&value, 1), Deadline::never()) {
    cluster[0].engine->add(restless);
    cluster[0].engine->submit(*restless, endless.operation);
  }
  ~Beside() {
    restless->close();
    while (!endless.releases) std::this_thread::yield();
  }

  std::int64_t value = 0;
  Cluster cluster{2};
  std::shared_ptr<Restless> restless;
  Call endless;
};

}  // namespace

TEST("a thread that waits beside a group that always moves notices its deadline") {
  Beside beside;
  Rank& rank = beside.cluster[0];
  std::int64_t value = 1;
  Call call(all_reduce(&value, 1), Deadline::never());
  rank.submit(call);
  CHECK(!rank.engine->wait(*rank.group, call.operation, Deadline::after(kShort), {}));
  CHECK(!beside.restless->rested());
  rank.group->close();
  while (!call.releases) std::this_thread::yield();
}

TEST("a thread that waits beside a group that always moves is interrupted") {
  Beside beside;
  Rank& rank = beside.cluster[0];
  std::int64_t value = 1;
  Call call(all_reduce(&value, 1), Deadline::never());
  rank.submit(call);
  const auto interrupted = [] { throw std::domain_error("Ctrl-C"); };
  bool noticed = false;
  try {
    rank.engine->wait(*rank.group, call.operation, Deadline::never(), interrupted);
  } catch (const std::domain_error&) {
    noticed = true;
  }
  CHECK(noticed && !beside.restless->rested());
  rank.group->close();
  while (!call.releases) std::this_thread::yield();
}

TEST("beside a group that always moves, an operation ends at its deadline and with the death of a rank") {
  for (const bool waits : {true, false})
    for (const bool dies : {true, false}) {
      Beside beside;
      Rank& rank = beside.cluster[0];
      std::int64_t value = 1;
      Call call(all_reduce(&value, 1), dies ? Deadline::never() : Deadline::after(kShort));
      if (dies) rank.group->mesh().member(1).peer->set_exited();
      rank.submit(call);
      // Else the thread that drives in the background is the one that must notice.
      if (waits) rank.engine->wait(*rank.group, call.operation, Deadline::never(), {});
      while (!call.completions) std::this_thread::yield();
      CHECK(!beside.restless->rested());
      CHECK(contains(*call.operation.error(), dies ? "exited during" : "Timed out waiting 100ms"));
      rank.group->close();
      while (!call.releases) std::this_thread::yield();
    }
}

TEST("a monitored barrier beside a group that always moves ends at its timeout") {
  Beside beside;
  const Error error = error_of([&] { monitored_barrier(*beside.cluster[0].group, kShort, false, {}); });
  CHECK(contains(error, "Rank 1 failed to pass monitoredBarrier") && !beside.restless->rested(),
        error.what());
}

TEST("a group that always moves is checked too: an operation may be stuck beside messages that move") {
  Beside beside;
  Rank& rank = beside.cluster[0];
  while (beside.restless->checks() == 0 && !beside.restless->rested())
    rank.engine->wait(*beside.restless, beside.endless.operation, Deadline::after(kShort), {});
  CHECK(!beside.restless->rested());
}

TEST("after a long yield the next waits sleep, and more of them each time") {
  using namespace std::chrono_literals;
  Yields yields;
  // How many waits sleep from now on.
  const auto sleeping = [&] {
    int count = 0;
    while (!yields.next()) ++count;
    return count;
  };
  CHECK(yields.again(10us) && sleeping() == 0);
  for (const int expected : {16, 32, 64, 128}) {
    CHECK(!yields.again(4ms));
    CHECK(sleeping() == expected, "not ", expected);
  }
  for (int i = 0; i < 10'000; ++i) CHECK(yields.again(10us));
  CHECK(!yields.again(4ms));
  CHECK(sleeping() == 16);
  int most = 0;
  for (int i = 0; i < 20; ++i) {
    yields.again(4ms);
    most = sleeping();
  }
  CHECK(most == 4096);
}

TEST("spins in vain become shorter, and one in a while tries the whole time") {
  using std::chrono::microseconds;
  coll::Spin spin;
  CHECK(spin.turns() == coll::kLongSpin && spin.turns() == coll::kLongSpin);
  spin.failed(microseconds(1000));  // the late rank did not wait for this core
  CHECK(spin.turns() == coll::kLongSpin);
  spin.failed(microseconds(5));
  CHECK(spin.turns() == coll::kLongSpin / 2);
  for (int i = 0; i < 20; ++i) spin.failed(microseconds(5));
  int tries = 0;
  for (int i = 0; i < 320; ++i) {
    const int turns = spin.turns();
    CHECK(turns == coll::kShortSpin || turns == coll::kLongSpin);
    tries += turns == coll::kLongSpin;
  }
  CHECK(tries == 10);
  spin.succeeded();
  CHECK(spin.turns() == coll::kLongSpin);
}
