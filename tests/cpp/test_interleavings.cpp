// modes: explore
// The core's lock-free structures, and the whole of it with ranks as threads, under a scheduler that chooses
// which thread runs and what it sees. A wake-up that is missed shows here, where no sleep ends by itself.
#include <algorithm>
#include <functional>
#include <memory>
#include <random>

#include "check.h"
#include "cluster.h"
#include "coll/group/monitored_barrier.h"
#include "coll/group/subgroup.h"
#include "explore/explore.h"
#include "shm/bell.h"
#include "shm/ring.h"
#include "shm/two_ends.h"
#include "windows.h"

using namespace occl;
using namespace occl::coll;
using explore::exhaust;
using explore::Plain;
using explore::sample;
using occl::test::Call;
using occl::test::Cluster;
using occl::test::Rank;
using occl::test::WindowRanks;

namespace {

/// So many times the usual runs, from another seed: for longer looks. (tests/soak.py)
long from_environment(const char* name, long usual) {
  const char* value = std::getenv(name);
  return value ? std::atol(value) : usual;
}
const long kFactor = from_environment("EXPLORE_FACTOR", 1);
const auto kSeed = static_cast<std::uint64_t>(from_environment("EXPLORE_SEED", 1));
const auto kPatience = Deadline::never();

void check_all(const explore::Result& result, long at_least) {
  CHECK(result.failure.empty(), result.failure);
  CHECK(result.runs >= at_least, "only ", result.runs, " runs");
  std::printf("  %ld runs, %ld choices\n", result.runs, result.steps);
}

struct Doorbell {
  shm::FutexWord word = 0;
  shm::Bell::Sleepers sleepers = 0;
  shm::Bell bell{&word, &sleepers};
};

template <class Condition>
void sleep_until(const shm::Bell& bell, Condition&& holds) {
  while (!holds()) {
    const shm::Bell::Sleep sleep(bell);
    if (!holds()) sleep.wait(std::chrono::seconds(1));
  }
}

std::string run_bell(bool fences, std::memory_order look_order) {
  return exhaust([&] {
           Doorbell a;
           Atomic<int> stamp = 0;
           Thread publisher([&] {
             stamp.store(1, std::memory_order_release);
             fences ? a.bell.ring() : a.bell.ring_after_fence();
           });
           sleep_until(a.bell, [&] { return stamp.load(look_order) == 1; });
           publisher.join();
         })
      .failure;
}

Collective all_reduce(std::int64_t* data, std::size_t count) {
  Collective c;
  c.kind = Kind::all_reduce, c.dtype = DType::i64, c.op = ReduceOp::sum;
  c.in = c.out = {reinterpret_cast<std::byte*>(data), count, 1, nullptr};
  c.largest = c.volume = count;
  return c;
}

Collective reduce_scatter(std::int64_t* in, std::int64_t* out, std::size_t count) {
  Collective c = all_reduce(in, count);
  c.kind = Kind::reduce_scatter;
  c.in.n = 2;
  c.out.base = reinterpret_cast<std::byte*>(out);
  return c;
}

Transfer message(std::byte* data, std::size_t count, bool send, int peer) {
  return {send, peer, 1, DType::u8, {data, count}};
}

Tuning small() {
  Tuning tuning;
  tuning.one_shot_bytes = 64;
  tuning.direct_bytes = 16;
  tuning.slot_bytes = 128;
  tuning.area_bytes = 0;  // two slots: a place is used again as soon as it may be
  tuning.ring_bytes = 256 << 10;
  tuning.eager_bytes = 64;
  return tuning;
}

/// Two ranks, and an all_reduce that each of them calls.
struct Pair {
  Cluster cluster{2, small()};
  std::int64_t values[2] = {1, 1};
  Call ours{all_reduce(&values[0], 1), kPatience}, theirs{all_reduce(&values[1], 1), kPatience};

  Rank& operator[](int rank) { return cluster[rank]; }
};

}  // namespace

TEST("bell: a thread that sleeps sees what was published before, or is woken") {
  CHECK(run_bell(true, std::memory_order_seq_cst).empty());
}

TEST("bell: it needs the fence, and looks that are seq_cst") {
  CHECK(run_bell(false, std::memory_order_seq_cst).starts_with("a sleeper missed"));
  CHECK(run_bell(true, std::memory_order_acquire).starts_with("a sleeper missed"));
}

TEST("bell: two publishers and two sleepers that wait for both") {
  check_all(exhaust(
                [] {
                  Doorbell a;
                  Atomic<int> first = 0, second = 0;
                  const auto both = [&] { return first == 1 && second == 1; };
                  Thread one([&] { first.store(1), a.bell.ring(); });
                  Thread two([&] { second.store(1), a.bell.ring(); });
                  Thread other([&] { sleep_until(a.bell, both); });
                  sleep_until(a.bell, both);
                  one.join(), two.join(), other.join();
                  CHECK(a.sleepers == 0);
                },
                {.preemptions = 2}),
            1000);
}

TEST("bell: threads that sleep for one publisher at a time") {
  check_all(exhaust(
                [] {
                  Doorbell a;
                  constexpr shm::Bell::Process kNames[] = {1, 3};
                  Atomic<int> stamps[2] = {0, 0};
                  const auto publish = [&](int who) {
                    stamps[who].store(1, std::memory_order_release);
                    fence();
                    a.bell.ring_after_fence(kNames[who]);
                  };
                  // `first`: the one that it sleeps for while neither has published.
                  const auto wait_for_both = [&](int first) {
                    const auto missing = [&] {
                      for (const int who : {first, 1 - first})
                        if (stamps[who] == 0) return who;
                      return -1;
                    };
                    for (int who = missing(); who >= 0; who = missing()) {
                      const shm::Bell::Sleep sleep(a.bell, kNames[who]);
                      if (missing() == who) sleep.wait(std::chrono::seconds(1));
                    }
                  };
                  Thread one([&] { publish(0); });
                  Thread two([&] { publish(1); });
                  Thread other([&] { wait_for_both(1); });
                  wait_for_both(0);
                  one.join(), two.join(), other.join();
                  CHECK(a.sleepers == 0);
                },
                {.preemptions = 2}),
            1000);
}

TEST("bell: two processes that answer each other") {
  check_all(exhaust(
                [] {
                  Doorbell a, b;
                  Atomic<int> ask = 0, answer = 0;
                  Thread other([&] {
                    for (int round = 1; round <= 2; ++round) {
                      sleep_until(b.bell, [&] { return ask == round; });
                      answer.store(round), a.bell.ring();
                    }
                  });
                  for (int round = 1; round <= 2; ++round) {
                    ask.store(round), b.bell.ring();
                    sleep_until(a.bell, [&] { return answer == round; });
                  }
                  other.join();
                },
                {.preemptions = 3}),
            1000);
}

TEST("ring: records are neither read before they are written, nor overwritten before they are read") {
  check_all(exhaust(
                [] {
                  constexpr std::size_t kLines = 4, kTotal = 6;
                  struct Head {
                    std::uint64_t number;
                    std::array<std::byte, kLine - 2 * sizeof(std::uint64_t)> filling{};
                  };
                  alignas(kLine) std::byte data[kLines * kLine] = {};
                  Plain<int> lines[kLines];  // the lines once more, watched
                  Atomic<std::uint64_t> tail = 0;
                  Doorbell at_writer, at_reader;
                  // Records of one line and of two lines take turns.
                  const auto length = [](std::uint64_t number) { return 1 + number % 2; };
                  Thread other([&] {
                    shm::RingWriter writer(data, sizeof(data), &tail);
                    for (std::size_t number = 0, at = 0; number < kTotal; ++number) {
                      const std::size_t n = length(number);
                      sleep_until(at_writer.bell, [&] { return writer.has_room(n * kLine); });
                      for (std::size_t i = 0; i < n; ++i) lines[(at + i) % kLines].set(1);
                      // A second line that looks like the stamp of a record.
                      const std::uint64_t payload[] = {(at + 1 + kLines) * kLine + 1};
                      if (n > 1) writer.put(std::as_bytes(std::span(payload)));
                      writer.publish<Head>(n * kLine, [number](Head& first) { first = Head{number}; });
                      at_reader.bell.ring();
                      at += n;
                    }
                  });
                  shm::RingReader reader(data, sizeof(data), &tail);
                  for (std::size_t number = 0, at = 0; number < kTotal; ++number) {
                    sleep_until(at_reader.bell, [&] { return reader.readable(); });
                    const std::size_t n = length(number);
                    for (std::size_t i = 0; i < n; ++i) lines[(at + i) % kLines].get();
                    Head head;
                    reader.peek_first(head);
                    CHECK(head.number == number);
                    reader.release(n * kLine);
                    at_writer.bell.ring();
                    at += n;
                  }
                  other.join();
                },
                {.preemptions = 3}),
            1000);
}

TEST("collectives on every path, 2 ranks") {
  check_all(sample(
                [] {
                  Cluster cluster(2, small());
                  cluster.each([](Rank& rank) {
                    for (const std::size_t count : {1, 3, 7, 100}) {  // inline, payload, payload, staged
                      std::vector<std::int64_t> values(count, rank.rank + 1);
                      rank.run(all_reduce(values.data(), count), kPatience);
                      for (const auto value : values) CHECK(value == 3);
                    }
                  });
                },
                150 * kFactor, kSeed),
            150);
}

TEST("ranks that take turns with the places of what they exchange") {
  check_all(sample(
                [] {
                  Tuning tuning = small();
                  tuning.area_bytes = 5 * tuning.slot_bytes;
                  Cluster cluster(2, tuning);
                  cluster.each([](Rank& rank) {
                    for (int round = 0; round < 3; ++round) {
                      std::vector<std::int64_t> in(80), out(40);  // three windows
                      for (int i = 0; i < 80; ++i) in[i] = 1000 * round + 100 * rank.rank + i;
                      rank.run(reduce_scatter(in.data(), out.data(), 40), kPatience);
                      for (int i = 0; i < 40; ++i)
                        CHECK(out[i] == 2 * (1000 * round + 40 * rank.rank + i) + 100);
                    }
                  });
                },
                60 * kFactor, kSeed),
            60);
}

TEST("collectives in two levels, one after the other, 4 ranks") {
  check_all(sample(
                [] {
                  Tuning tuning = small();
                  tuning.two_level_bytes = 0;
                  Cluster cluster(4, tuning, {0, 0, 1, 1});
                  cluster.each([](Rank& rank) {
                    for (const std::size_t count : {40, 9}) {
                      std::vector<std::int64_t> values(count, rank.rank + 1);
                      rank.run(all_reduce(values.data(), count), kPatience);
                      for (const auto value : values) CHECK(value == 10);
                    }
                  });
                },
                40 * kFactor, kSeed),
            40);
}

TEST("collectives in flight, with and without a thread that waits, 3 ranks") {
  check_all(sample(
                [] {
                  Cluster cluster(3, small());
                  cluster.each([](Rank& rank) {
                    std::int64_t values[4] = {1, 2, 3, 4};
                    std::vector<std::unique_ptr<Call>> calls;
                    for (auto& value : values) {
                      calls.push_back(std::make_unique<Call>(all_reduce(&value, 1), kPatience));
                      rank.submit(*calls.back());
                    }
                    if (rank.rank != 1) rank.wait(*calls[1]);
                    for (auto& call : calls)
                      while (!call->releases) std::this_thread::yield();  // the background drives
                    for (int i = 0; i < 4; ++i) CHECK(values[i] == 3 * (i + 1));
                  });
                },
                60 * kFactor, kSeed),
            60);
}

TEST("two threads of each rank wait in two groups") {
  check_all(sample(
                [] {
                  Cluster a(2, small()), b(2, small());
                  std::vector<Thread> threads;
                  for (auto* cluster : {&a, &b})
                    for (int i = 0; i < 2; ++i)
                      threads.emplace_back([cluster, i] {
                        std::int64_t value = 1;
                        for (int round = 0; round < 2; ++round)
                          (*cluster)[i].run(all_reduce(&value, 1), kPatience);
                        CHECK(value == 4);
                      });
                  for (auto& thread : threads) thread.join();
                },
                100 * kFactor, kSeed),
            100);
}

TEST("threads of one rank that wait for different operations of one group") {
  check_all(sample(
                [] {
                  Cluster cluster(2, small());
                  cluster.each([](Rank& rank) {
                    std::int64_t values[2] = {1, 1};
                    Call first(all_reduce(&values[0], 1), kPatience),
                        second(all_reduce(&values[1], 1), kPatience);
                    rank.submit(first), rank.submit(second);
                    Thread other([&] { rank.wait(first); });
                    rank.wait(second);
                    other.join();
                    CHECK(values[0] == 2 && values[1] == 2);
                  });
                },
                100 * kFactor, kSeed),
            100);
}

TEST("threads that wait for what another one of their rank ends") {
  check_all(
      sample(
          [] {
            Cluster cluster(2, small());
            std::int64_t values[2] = {1, 1};
            std::byte out{7}, in{0};
            Call ours(all_reduce(&values[0], 1), kPatience), theirs(all_reduce(&values[1], 1), kPatience);
            Call send(message(&out, 1, true, 1), kPatience), receive(message(&in, 1, false, 0), kPatience);
            Thread waits([&] {
              cluster[0].submit(ours);
              cluster[0].wait(ours);
              CHECK(values[0] == 2);
            });
            cluster[1].submit(theirs);
            cluster[0].submit(send);  // drives whatever there is, and goes away
            waits.join();
            cluster[1].submit(receive);
            cluster[1].wait(theirs), cluster[1].wait(receive), cluster[0].wait(send);
          },
          1500 * kFactor, kSeed),
      1500);
}

TEST("two ends: each piece is taken once, and a rank that waits no more has the buffer for itself") {
  using shm::Taker;
  for (const std::uint32_t n : {1u, 2u, 3u})
    check_all(exhaust(
                  [n] {
                    Atomic<std::uint64_t> front_word = 0, back_word = 0;
                    Plain<int> copies[3];
                    const auto copy = [&](std::size_t piece) { copies[piece].set(copies[piece].get() + 1); };
                    Taker front(Taker::End::front, 7, n, &front_word, &back_word);
                    std::uint64_t rest = 0;
                    Thread sender([&] {
                      Taker back(Taker::End::back, 7, n, &back_word, &front_word);
                      while (back.take()) copy(n - back.taken());
                      rest = back.taken();
                    });
                    while (front.take()) copy(front.taken() - 1);
                    if (front.stopped()) {
                      sender.join();
                      CHECK(front.taken() + rest + 1 >= n);
                      for (auto i = front.taken(); i + rest < n; ++i) copy(i);
                    }
                    for (std::uint32_t i = 0; i < n; ++i) {
                      CHECK(copies[i].get() == 1);
                      copies[i].set(0);  // the next message of the same two
                    }
                    Taker next(Taker::End::front, 8, n, &front_word, &back_word);
                    while (next.take()) copy(next.taken() - 1);
                    CHECK(next.taken() == n && !next.stopped());
                    if (!front.stopped()) sender.join();
                    for (std::uint32_t i = 0; i < n; ++i) CHECK(copies[i].get() == 1);
                  },
                  {.preemptions = 3}),
              40);
}

namespace {

/// On both ranks of a window, in so many schedules.
void check_signals(int schedules, const std::function<void(WindowRanks& window, Rank& rank)>& body) {
  check_all(sample(
                [&] {
                  Cluster cluster(2, small());
                  WindowRanks window(cluster, 64);
                  cluster.each([&](Rank& rank) { body(window, rank); });
                },
                schedules * kFactor, kSeed),
            schedules);
}

}  // namespace

TEST("signals: none is lost, none comes early, and what was written before it is seen") {
  check_all(sample(
                [] {
                  Cluster cluster(2, small());
                  WindowRanks window(cluster, 64);
                  Plain<int> written[2];
                  cluster.each([&](Rank& rank) {
                    const int me = rank.rank, other = 1 - me;
                    for (int round = 1; round <= 3; ++round) {
                      written[me].set(round);
                      rank.run(window.signal(me, other), kPatience);
                      rank.run(window.wait(me, other), kPatience);
                      CHECK(written[other].get() == round);
                      rank.run(window.signal(me, other), kPatience);  // it has read
                      rank.run(window.wait(me, other), kPatience);
                    }
                  });
                },
                150 * kFactor, kSeed),
            150);
}

TEST("signals: a rank that sleeps is woken") {
  check_signals(200, [](WindowRanks& window, Rank& rank) {
    for (const int busy : {4, 12, 30}) {
      if (rank.rank == 1) {
        rank.run(window.wait(1, 0), kPatience);
        rank.run(window.signal(1, 0), kPatience);
        continue;
      }
      for (int i = 0; i < busy; ++i) {  // meanwhile the other one falls asleep
        rank.run(window.signal(0, 0), kPatience);
        rank.run(window.wait(0, 0), kPatience);
      }
      rank.run(window.signal(0, 1), kPatience);
      rank.run(window.wait(0, 1), kPatience);
    }
  });
}

TEST("signals: two waits for one rank end in the order of their calls") {
  check_signals(400, [](WindowRanks& window, Rank& rank) {
    if (rank.rank == 0) {
      rank.run(window.signal(0, 1), kPatience);
      rank.run(window.wait(0, 1), kPatience);
      return rank.run(window.signal(0, 1), kPatience);
    }
    Call first(window.wait(1, 0), kPatience), second(window.wait(1, 0), kPatience);
    rank.submit(first), rank.submit(second);
    rank.wait(first);
    CHECK(!second.operation.finished());
    rank.run(window.signal(1, 0), kPatience);
    rank.wait(second);
  });
}

TEST("signals: a window is closed while another rank waits") {
  check_signals(150, [](WindowRanks& window, Rank& rank) {
    if (rank.rank == 0) {
      rank.run(window.signal(0, 1), kPatience);
      return window.windows[0].reset();
    }
    rank.run(window.wait(1, 0), kPatience);
  });
}

TEST("signals: a rank leaves after its signal") {
  check_signals(150, [](WindowRanks& window, Rank& rank) {
    rank.run(rank.rank == 0 ? window.signal(0, 1) : window.wait(1, 0), kPatience);
    if (rank.rank == 0) rank.group->close();
  });
}

TEST("messages of every kind in both directions") {
  check_all(sample(
                [] {
                  Cluster cluster(2, small());
                  cluster.each([](Rank& rank) {
                    const int other = 1 - rank.rank;
                    for (const std::size_t bytes : {10, 70000}) {  // eager, streamed through the ring
                      std::vector<std::byte> out(bytes, std::byte(rank.rank + 1)), in(bytes);
                      Call send(message(out.data(), bytes, true, other), kPatience);
                      Call receive(message(in.data(), bytes, false, other), kPatience);
                      rank.submit(send), rank.submit(receive);
                      rank.wait(receive), rank.wait(send);
                      for (const auto byte : in) CHECK(byte == std::byte(other + 1));
                    }
                  });
                },
                100 * kFactor, kSeed),
            100);
}

TEST("messages that go to and fro in cells") {
  check_all(sample(
                [] {
                  Cluster cluster(2, small());
                  cluster.each([](Rank& rank) {
                    for (int round = 0; round < 8; ++round) {
                      const bool sends = round % 2 == rank.rank;
                      std::vector<std::byte> data(600, std::byte(sends ? round : -1));
                      rank.run(message(data.data(), data.size(), sends, 1 - rank.rank), kPatience);
                      for (const auto byte : data) CHECK(byte == std::byte(round));
                    }
                  });
                },
                60 * kFactor, kSeed),
            60);
}

TEST("one message, larger than the ring it goes through") {
  check_all(sample(
                [] {
                  Cluster cluster(2, small());
                  cluster.each([](Rank& rank) {
                    std::vector<std::byte> bytes(2 * small().ring_bytes, std::byte(rank.rank));
                    Call call(message(bytes.data(), bytes.size(), rank.rank == 0, 1 - rank.rank), kPatience);
                    rank.submit(call), rank.wait(call);
                    for (const auto byte : bytes) CHECK(byte == std::byte{0});
                  });
                },
                60 * kFactor, kSeed),
            60);
}

TEST("messages of one size that do not fit the ring at once end in their order") {
  struct Numbered : Call {  // notes its number when it ends, under the driving lock
    Numbered(const Transfer& t, int number, std::vector<int>& ended)
        : Call(t, kPatience), number(number), ended(ended) {}
    Next succeeded(Operation&) override { return ended.push_back(number), Next::ends; }
    const int number;
    std::vector<int>& ended;
  };
  check_all(
      sample(
          [] {
            Cluster cluster(2, small());
            cluster.each([](Rank& rank) {
              const std::size_t kLong = 2 * small().ring_bytes, kShort = 60 << 10;  // kShort goes unasked
              std::vector<std::byte> bytes(2 * kLong + 2 * kShort, std::byte(rank.rank));
              std::vector<int> ended;
              std::vector<std::unique_ptr<Numbered>> calls;
              std::byte* next = bytes.data();
              for (const std::size_t size : {kLong, kLong, kShort, kShort}) {
                const auto task = message(next, size, rank.rank == 0, 1 - rank.rank);
                calls.push_back(std::make_unique<Numbered>(task, calls.size(), ended));
                rank.submit(*calls.back());
                next += size;
              }
              for (auto& call : calls) rank.wait(*call);
              const auto place = [&](int number) { return std::find(ended.begin(), ended.end(), number); };
              CHECK(place(0) < place(1) && place(2) < place(3));
              for (const auto byte : bytes) CHECK(byte == std::byte{0});
            });
          },
          60 * kFactor, kSeed),
      60);
}

TEST("a single message, every way to miss it") {
  check_all(exhaust(
                [] {
                  Cluster cluster(2, small());
                  std::byte out{7}, in{0};
                  Call receive(message(&in, 1, false, 1), kPatience),
                      send(message(&out, 1, true, 0), kPatience);
                  Thread receiver([&] {
                    cluster[0].submit(receive);
                    cluster[0].wait(receive);
                    CHECK(in == std::byte{7});
                  });
                  cluster[1].submit(send);
                  receiver.join();
                  cluster[1].wait(send);
                },
                {.preemptions = kFactor > 1 ? 2 : 1, .old_values = 1}),
            40);
}

TEST("a rank that leaves or aborts ends the wait of the others") {
  for (const bool aborts : {false, true})
    for (const int late : {0, 300, 600, 1500})  // loads; then the others look, doze off, or are asleep
      check_all(sample(
                    [aborts, late] {
                      Cluster cluster(3, small());
                      cluster.each([aborts, late](Rank& rank) {
                        std::int64_t value = 1;
                        Atomic<int> look = 0;
                        for (int i = 0; i < late && rank.rank == 1; ++i) look.load();
                        if (rank.rank == 1) return aborts ? rank.group->abort("enough") : rank.group->close();
                        rank.calls.push_back(std::make_unique<Call>(all_reduce(&value, 1), kPatience));
                        rank.submit(*rank.calls.back());
                        try {
                          rank.wait(*rank.calls.back());
                        } catch (const Error& error) {
                          return;
                        }
                        CHECK(false, "there was no error");
                      });
                    },
                    60 * kFactor, kSeed),
                60);
}

TEST("a rank that leaves when it has done its part ends nothing") {
  check_all(sample(
                [] {
                  Cluster cluster(2, small());
                  cluster.each([](Rank& rank) {
                    std::int64_t value = 1;
                    rank.run(all_reduce(&value, 1), kPatience);
                    CHECK(value == 2);
                    if (rank.rank == 1) rank.group->close();
                  });
                },
                200 * kFactor, kSeed),
            200);
}

TEST("operations that are released while another thread waits for them") {
  check_all(sample(
                [] {
                  Pair pair;
                  std::byte out{0}, in{0};
                  Call send(message(&out, 1, true, 1), kPatience),
                      receive(message(&in, 1, false, 0), kPatience);
                  pair.ours.operation.hold("it is held"), send.operation.hold("it is held");
                  pair[0].submit(pair.ours), pair[0].submit(send);
                  Thread waits([&] { pair[0].wait(pair.ours); });
                  Thread other([&] {
                    pair[1].submit(pair.theirs), pair[1].submit(receive);
                    pair[1].wait(receive), pair[1].wait(pair.theirs);
                  });
                  pair.values[0] = 5, out = std::byte{7};
                  pair[0].engine->release(*pair[0].group, send.operation);
                  pair[0].engine->release(*pair[0].group, pair.ours.operation);
                  waits.join(), other.join();
                  pair[0].wait(send);
                  CHECK(pair.values[0] == 6 && pair.values[1] == 6 && in == std::byte{7});
                },
                200 * kFactor, kSeed),
            200);
}

TEST("another thread ends a hold, and leaves the rest to the one that waits") {
  check_all(sample(
                [] {
                  Pair pair;
                  pair.ours.operation.hold("it is held");
                  pair[1].submit(pair.theirs);
                  pair[0].submit(pair.ours);
                  Thread waits([&] { pair[0].wait(pair.ours); });
                  pair[0].engine->release_to_others(pair.ours.operation);
                  waits.join();
                  pair[1].wait(pair.theirs);
                },
                500 * kFactor, kSeed),
            500);
}

TEST("one thread waits for what another one carries out, and no third one rings") {
  check_all(sample(
                [] {
                  Pair pair;
                  pair[1].submit(pair.theirs);
                  pair[0].group->submit(pair.ours.operation);  // so that no background thread is asked
                  Thread waits([&] { pair[0].wait(pair.ours); });
                  pair[0].engine->poll(*pair[0].group);
                  waits.join();
                  pair[1].wait(pair.theirs);
                },
                1000 * kFactor, kSeed),
            1000);
}

TEST("a thread that only looks into a group lets no other thread of its rank sleep on") {
  check_all(sample(
                [] {
                  Pair pair;
                  pair[0].group->submit(pair.ours.operation);
                  const auto ended = [&] { return pair.ours.operation.finished(); };
                  Thread waits([&] { pair[0].engine->wait_until(ended, kPatience, {}); });
                  Thread looks([&] { pair[0].group->look(); });
                  pair[1].submit(pair.theirs);
                  pair[1].wait(pair.theirs);
                  waits.join(), looks.join();
                  pair[0].wait(pair.ours);
                },
                2000 * kFactor, kSeed),
            2000);
}

TEST("a thread that keeps the group for a moment lets no other thread of its rank sleep on") {
  check_all(sample(
                [] {
                  Pair first;
                  std::int64_t values[2] = {1, 1};
                  Call ours(all_reduce(&values[0], 1), kPatience),
                      theirs(all_reduce(&values[1], 1), kPatience);
                  first[0].submit(first.ours);
                  Thread waits([&] { first[0].wait(first.ours); });
                  Thread keeps([&] {
                    first[0].group->submit_and_drive(ours.operation, 3);
                    first[0].wait(ours);
                  });
                  first[1].submit(first.theirs), first[1].submit(theirs);
                  first[1].wait(first.theirs), first[1].wait(theirs);
                  waits.join(), keeps.join();
                  CHECK(first.values[0] == 2 && values[0] == 2 && values[1] == 2);
                },
                500 * kFactor, kSeed),
            500);
}

TEST("a monitored barrier, again and again") {
  check_all(sample(
                [] {
                  Cluster cluster(3, small());
                  Atomic<int> entered = 0;
                  cluster.each([&entered](Rank& rank) {
                    for (int i = 1; i <= 2; ++i) {
                      entered.fetch_add(1);
                      monitored_barrier(*rank.group, std::chrono::hours(1), false, {});
                      CHECK(entered.load() >= 3 * i);
                    }
                  });
                },
                100 * kFactor, kSeed),
            100);
}

TEST("an offer is read whole, while another one takes its place") {
  check_all(sample(
                [] {
                  const auto offer = [](int number) {
                    Offer it;
                    it.invitation.block = static_cast<std::uint64_t>(number);
                    it.ranks = RankList(std::vector<int>(kMaxRanks, number));
                    return it;
                  };
                  OfferBoard board;
                  board.show(offer(1));
                  Thread writer([&] {
                    for (int number = 2; number < 5; ++number) board.show(offer(number));
                  });
                  for (int i = 0; i < 4; ++i)
                    if (const auto shown = board.look())
                      for (const int rank : shown->offer.ranks)
                        CHECK(rank == static_cast<int>(shown->offer.invitation.block));
                  writer.join();
                },
                200 * kFactor, kSeed),
            200);
}

TEST("ranks that shrink their group") {
  check_all(sample(
                [] {
                  Cluster cluster(3, small());
                  cluster.each([](Rank& rank) {
                    if (rank.rank == 1) return;
                    const auto smaller =
                        make_subgroup(*rank.group, {{0, 2}, "smaller", Subgroup::Purpose::shrink},
                                      [] { return Tuning(); }, Deadline::never(), {});
                    std::int64_t value = 1;
                    Call call(all_reduce(&value, 1), kPatience);
                    rank.engine->submit(*smaller, call.operation);
                    rank.engine->wait(*smaller, call.operation, kPatience, {});
                    while (!call.releases) std::this_thread::yield();
                    CHECK(value == 2);
                    smaller->close();
                  });
                },
                60 * kFactor, kSeed),
            60);
}
