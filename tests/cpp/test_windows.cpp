// One-sided access: puts, signals and waits for them, and windows that ranks close one after the other.
#include <algorithm>
#include <random>
#include <vector>

#include "check.h"
#include "windows.h"

using namespace occl;
using namespace occl::coll;
using occl::test::Call;
using occl::test::Cluster;
using occl::test::contains;
using occl::test::error_of;
using occl::test::Rank;
using occl::test::WindowRanks;

namespace {

constexpr auto kPatience = std::chrono::seconds(60);

std::byte pattern(int from, std::size_t i) { return static_cast<std::byte>(from * 37 + i * 7 + (i >> 8)); }

bool finished(const Call& call) { return call.operation.finished(); }

}  // namespace

TEST("what was put before a signal is there after the wait, of every size") {
  const std::size_t sizes[] = {0, 1, 63, 64, 4097, kSliceBytes - 1, kSliceBytes, 2 * kSliceBytes + 17};
  Cluster cluster(2);
  WindowRanks window(cluster, 2 * kSliceBytes + 64);
  cluster.each([&](Rank& rank) {
    const int other = 1 - rank.rank;
    for (const std::size_t size : sizes) {
      std::vector<std::byte> data(size + 1);
      for (std::size_t i = 0; i < size; ++i) data[i] = pattern(rank.rank, i + size);
      rank.run(window.put(rank.rank, other, data.data(), size, 13));
      rank.run(window.signal(rank.rank, other));
      rank.run(window.wait(rank.rank, other));
      const std::byte* const mine = window.memory[rank.rank]->base() + 13;
      for (std::size_t i = 0; i < size; ++i)
        CHECK(mine[i] == pattern(other, i + size), "byte ", i, " of ", size);
      rank.run(window.signal(rank.rank, other));  // the other may write again
      rank.run(window.wait(rank.rank, other));
    }
  });
}

TEST("signals count: as many waits end as there were signals, for each pair of ranks and each channel") {
  Cluster cluster(4);
  constexpr int kChannels = 10, kSignals = 20;  // more counters than a cache line has
  WindowRanks window(cluster, 64, kChannels);
  cluster.each([&](Rank& rank) {
    std::mt19937 random(static_cast<unsigned>(rank.rank));
    std::vector<std::unique_ptr<Call>> calls;
    const auto start = [&](const Transfer& t) {
      calls.push_back(std::make_unique<Call>(t, Deadline::after(kPatience)));
      rank.submit(*calls.back());
    };
    std::vector<Transfer> todo;
    for (int peer = 0; peer < 4; ++peer)
      for (std::uint32_t channel = 0; channel < kChannels; ++channel)
        for (int i = 0; i < kSignals; ++i) {
          todo.push_back(window.signal(rank.rank, peer, channel));
          todo.push_back(window.wait(rank.rank, peer, channel));
        }
    std::shuffle(todo.begin(), todo.end(), random);
    for (const Transfer& t : todo) start(t);
    for (auto& call : calls) rank.wait(*call);
  });
  for (int i = 0; i < 4; ++i)
    for (int peer = 0; peer < 4; ++peer)
      for (int channel = 0; channel < kChannels; ++channel)
        CHECK(!window.windows[i]->take(peer, channel, ~std::uint64_t{0}));
}

TEST("signals of two channels do not mix, and a row serves windows of as many channels only") {
  Cluster cluster(2);
  {
    WindowRanks window(cluster, 64, 2);
    Call wait(window.wait(1, 0, 1), Deadline::after(kPatience));
    cluster[1].submit(wait);
    cluster[0].run(window.signal(0, 1, 0));
    cluster[1].run(window.wait(1, 0, 0));
    CHECK(!finished(wait));
    cluster[0].run(window.signal(0, 1, 1));
    cluster[1].wait(wait);
  }
  const auto row_of = [&](int channels) {
    return WindowRanks(cluster, 64, channels).windows[0]->handle().row;
  };
  const std::uint64_t of_two = row_of(2), of_one = row_of(1);
  CHECK(of_one != of_two);
  CHECK(row_of(2) == of_two && row_of(1) == of_one);
}

TEST("waits for one rank end in the order of their calls") {
  Cluster cluster(2);
  WindowRanks window(cluster, 64);
  Call first(window.wait(1, 0), Deadline::after(kPatience)),
      second(window.wait(1, 0), Deadline::after(kPatience));
  cluster[1].submit(first), cluster[1].submit(second);
  for (Call* call : {&first, &second}) {
    CHECK(!finished(*call));
    cluster[0].run(window.signal(0, 1));
    cluster[1].wait(*call);
    CHECK(finished(second) == (call == &second));
  }
}

TEST("signals of two windows do not mix") {
  Cluster cluster(2);
  WindowRanks one(cluster, 64), two(cluster, 64);
  Call wait(two.wait(1, 0), Deadline::after(kPatience));
  cluster[1].submit(wait);
  cluster[0].run(one.signal(0, 1));
  cluster[1].run(one.wait(1, 0));
  CHECK(!finished(wait));
  cluster[0].run(two.signal(0, 1));
  cluster[1].wait(wait);
}

TEST("an access on hold keeps back those of its window, and neither messages nor other windows") {
  Cluster cluster(2);
  WindowRanks one(cluster, 64), two(cluster, 64);
  std::byte data{7}, out{8}, in{0};
  Call held(one.put(0, 1, &data, 1, 0), Deadline::after(kPatience)),
      behind(one.signal(0, 1), Deadline::after(kPatience));
  held.operation.hold("a test holds it");
  cluster[0].submit(held), cluster[0].submit(behind);
  cluster[0].run(two.signal(0, 1));
  cluster[1].run(two.wait(1, 0));
  cluster[0].run(Transfer{true, 1, 3, DType::u8, {&out, 1}});
  cluster[1].run(Transfer{false, 0, 3, DType::u8, {&in, 1}});
  CHECK(in == std::byte{8} && !finished(held) && !finished(behind));
  CHECK(one.memory[1]->base()[0] == std::byte{0} && !one.windows[1]->take(0, 0, 1));
  cluster[0].engine->release(*cluster[0].group, held.operation);
  cluster[0].wait(held), cluster[0].wait(behind);
  CHECK(one.memory[1]->base()[0] == std::byte{7});
  cluster[1].run(one.wait(1, 0));
}

TEST("a message on hold keeps back messages and no access") {
  Cluster cluster(2);
  WindowRanks window(cluster, 64);
  std::byte out[2] = {std::byte{1}, std::byte{2}}, in[2] = {};
  Call held(Transfer{true, 1, 3, DType::u8, {&out[0], 1}}, Deadline::after(kPatience)),
      behind(Transfer{true, 1, 3, DType::u8, {&out[1], 1}}, Deadline::after(kPatience));
  held.operation.hold("a test holds it");
  cluster[0].submit(held), cluster[0].submit(behind);
  cluster[0].run(window.signal(0, 1));
  cluster[1].run(window.wait(1, 0));
  CHECK(!finished(held) && !finished(behind));
  cluster[0].engine->release(*cluster[0].group, held.operation);
  for (std::byte& byte : in) cluster[1].run(Transfer{false, 0, 3, DType::u8, {&byte, 1}});
  CHECK(in[0] == std::byte{1} && in[1] == std::byte{2});
  cluster[0].wait(held), cluster[0].wait(behind);
}

TEST("a wait for a rank that has closed the window gets its last signal, and then an error") {
  Cluster cluster(2);
  WindowRanks window(cluster, 64);
  cluster[0].run(window.signal(0, 1));
  window.windows[0].reset();
  cluster[1].run(window.wait(1, 0));
  const Error error = error_of([&] { cluster[1].run(window.wait(1, 0)); });
  CHECK(error.code() == Errc::peer_left && contains(error, "wait_signal(src=0) #2 of group test on rank 1: "),
        error.what());
  CHECK(contains(error, "has closed the window, and signals no more"), error.what());
  std::byte in{0}, out{1};  // the group goes on
  cluster[0].run(Transfer{true, 1, 3, DType::u8, {&out, 1}});
  cluster[1].run(Transfer{false, 0, 3, DType::u8, {&in, 1}});
  CHECK(in == out);
}

TEST("rows are used again when all ranks have closed their window, and what it kept is let go then") {
  Cluster cluster(2);
  std::vector<std::uint64_t> rows;
  const auto row_of = [](const WindowRanks& window, int rank) { return window.windows[rank]->handle().row; };
  auto kept = std::make_shared<int>(1);
  const std::weak_ptr<int> watched = kept;
  {
    WindowRanks first(cluster, 64);
    rows = {row_of(first, 0), row_of(first, 1)};
    first.windows[0]->keep(std::move(kept));
    cluster[0].run(first.signal(0, 1));  // which nothing waits for
    first.windows[0].reset();
    cluster[0].group->collect_windows();
    CHECK(!watched.expired());  // rank 1 may still write there
    const WindowRanks second(cluster, 64);
    CHECK(row_of(second, 0) != rows[0] && row_of(second, 1) != rows[1]);
  }
  cluster[0].group->collect_windows();
  CHECK(watched.expired());
  WindowRanks third(cluster, 64);
  CHECK(row_of(third, 0) == rows[0] && row_of(third, 1) == rows[1]);
  CHECK(!third.windows[1]->take(0, 0, 1));  // the first window's signal is not the third's
  cluster[0].run(third.signal(0, 1));
  cluster[1].run(third.wait(1, 0));
}

TEST("a wait that nothing ends times out, and names what it waits for") {
  Cluster cluster(2);
  WindowRanks window(cluster, 64);
  const Error error =
      error_of([&] { cluster[1].run(window.wait(1, 0), Deadline::after(std::chrono::milliseconds(50))); });
  CHECK(error.code() == Errc::timeout, error.what());
  CHECK(contains(error,
                 "Timed out waiting 50ms for wait_signal(src=0) #1 of group test on rank 1: it waits for "
                 "rank 0 "),
        error.what());
}

TEST("a rank that left after its signal has sent it, and the next wait, put and signal name it") {
  Cluster cluster(2);
  WindowRanks window(cluster, 64);
  std::byte data{1};
  cluster[0].run(window.signal(0, 1));
  cluster[0].group->close();
  cluster[1].run(window.wait(1, 0));
  for (const Transfer& t : {window.wait(1, 0), window.put(1, 0, &data, 1, 0), window.signal(1, 0)}) {
    const Error error = error_of([&] { cluster[1].run(t); });
    CHECK(error.code() == Errc::peer_left, error.what());
    CHECK(contains(error, "left the group during " + describe(t)), error.what());
  }
  CHECK(window.memory[0]->base()[0] == std::byte{0});
}

TEST("a handle that cannot be is an error") {
  Cluster cluster(2);
  WindowRanks window(cluster, 64);
  const auto fresh = cluster[0].group->make_window(cluster[0].group);
  const WindowHandle good = window.windows[1]->handle();
  for (const auto& [text, bad] : std::vector<std::pair<const char*, WindowHandle>>{
           {"announced a misaligned row of a window", {good.row + 8, good.number}},
           {"pointed outside of its control region", {std::uint64_t{1} << 40, good.number}},
           {"pointed outside of its memory region",
            {good.row, good.number, shm::Ref{0, 0}.pack(), 1 << 30}}}) {
    const Error error = error_of([&, &handle = bad] {
      fresh->connect({fresh->handle(), handle}, nullptr, Deadline::after(kPatience));
    });
    CHECK(error.code() == Errc::protocol && contains(error, text), error.what());
  }
}
