// The whole core, ranks as threads: every kind of collective on every path, in any mix, and what ends them
// early.
#include <algorithm>
#include <array>
#include <atomic>
#include <random>

#include "check.h"
#include "cluster.h"
#include "coll/plan/staging_places.h"
#include "collective_cases.h"

using namespace occl;
using namespace occl::coll;
using namespace occl::test;

namespace {

/// `area_bytes`: 0 for two slots.
Tuning with_small_slots(std::uint32_t area_bytes = 0) {
  Tuning tuning;
  tuning.one_shot_bytes = 256;
  tuning.direct_bytes = 64;
  tuning.slot_bytes = 512;
  tuning.area_bytes = area_bytes;
  return tuning;
}

/// Blocks have up to `most` elements.
void run_random_cases(int size, int cases, std::uint64_t seed, const Tuning& tuning = with_small_slots(),
                      std::size_t most = 500) {
  Cluster cluster(size, tuning);
  std::mt19937_64 random(seed);
  std::vector<std::pair<Case, std::vector<bool>>> list;
  for (int k = 0; k < cases; ++k) {
    Case c{static_cast<Kind>(random() % kKinds), static_cast<int>(random() % size), {}, false, k};
    const std::size_t limit = random() % 3 == 0 ? 6 : random() % 2 ? 40 : most;
    c.counts.assign(size, random() % limit);
    const Traits& t = traits(c.kind);
    c.listed = random() % 2 && !rooted(c.kind) && (t.in_per_rank || t.out_per_rank);
    if (c.listed)
      for (auto& count : c.counts) count = random() % limit;
    if (!list.empty() && random() % 3 == 0) {  // the same call again
      c = list.back().first;
      c.round = k;
    }
    std::vector<bool> mapped(size, random() % 2);
    if (random() % 3 == 0)  // ranks may differ
      for (int i = 0; i < size; ++i) mapped[i] = random() % 2;
    list.emplace_back(std::move(c), std::move(mapped));
  }
  cluster.each([&](Rank& rank) {
    for (const auto& [c, mapped] : list) run(rank, c, mapped[rank.rank]);
  });
}

}  // namespace

TEST("a mix of all collectives on all paths is right with 2 ranks") { run_random_cases(2, 600, 1); }
TEST("a mix of all collectives on all paths is right where windows lie one behind the other") {
  run_random_cases(2, 300, 6, with_small_slots(3 * 512));
  run_random_cases(3, 300, 7, with_small_slots(4096));
}
TEST("a mix of all collectives on all paths is right where ranks exchange places") {
  for (const std::uint32_t one_shot : {0, 256}) {
    Tuning tuning = with_small_slots(5 * 512);
    tuning.one_shot_bytes = one_shot;
    run_random_cases(2, 300, 10, tuning);
    run_random_cases(4, 100, 11, tuning);
  }
}
TEST("a mix of all collectives on all paths is right where ranks are far from each other") {
  Tuning tuning;
  tuning.far_ns = 0;
  tuning.slot_bytes = 32 << 10;
  for (const std::uint32_t area : {0, 100 << 10}) {
    tuning.area_bytes = area;
    if (area) tuning.streaming_bytes = 0;
    run_random_cases(2, 150, 8, tuning, 9000);
    run_random_cases(3, 100, 9, tuning, 9000);
  }
}
TEST("a mix of all collectives on all paths is right with 3 ranks") { run_random_cases(3, 300, 2); }
TEST("a mix of all collectives on all paths is right with 5 ranks, more than there are cores") {
  run_random_cases(5, 120, 3);
}
TEST("64 ranks work on however few cores there are") { run_random_cases(64, 4, 5); }

TEST("each of 64 ranks has a place in a slot, however small slots are meant to be") {
  Tuning tuning;
  tuning.one_shot_bytes = 256;
  tuning.slot_bytes = 512;
  Cluster cluster(64, tuning);
  cluster.each([](Rank& rank) {
    int round = 0;
    for (const Kind kind : {Kind::all_to_all, Kind::reduce_scatter, Kind::scatter})
      run(rank, {kind, 0, std::vector<std::size_t>(64, 20), false, ++round}, false);
  });
}
TEST("a group of one rank works") { run_random_cases(1, 100, 4); }

TEST("thousands of operations in flight end in order") {
  Cluster cluster(2);
  cluster.each([](Rank& rank) {
    constexpr int kCalls = 2000;
    std::vector<std::int64_t> values(kCalls);
    std::vector<std::unique_ptr<Call>> calls;
    for (int i = 0; i < kCalls; ++i) {
      values[i] = i;
      calls.push_back(
          std::make_unique<Call>(all_reduce(&values[i], 1), Deadline::after(std::chrono::seconds(60))));
      rank.submit(*calls.back());
    }
    for (auto& call : calls) rank.wait(*call);
    for (int i = 0; i < kCalls; ++i) CHECK(values[i] == 2 * i);
  });
}

TEST("operations left alone end without anybody waiting") {
  Cluster cluster(2);
  cluster.each([](Rank& rank) {
    for (const std::size_t count : {1, 100000}) {
      std::vector<std::int64_t> values(count, rank.rank);
      Call call(all_reduce(values.data(), values.size()), Deadline::after(std::chrono::seconds(60)));
      rank.submit(call);
      while (!call.releases) std::this_thread::yield();  // the background thread drives
      for (const auto value : values) CHECK(value == 1);
    }
  });
}

TEST("groups do not wait for each other, in whatever order ranks use them") {
  Cluster a(2), b(2);
  // Rank 0 waits for a before it submits to b; rank 1 submits to b first, and waits for b only then.
  check::in_threads(2, [&](int i) {
    for (int round = 0; round < 50; ++round) {
      std::int64_t x = 1, y = 2;
      Call in_a(all_reduce(&x, 1), Deadline::after(std::chrono::seconds(60)));
      Call in_b(all_reduce(&y, 1), Deadline::after(std::chrono::seconds(60)));
      Cluster& first = i == 0 ? a : b;
      Cluster& second = i == 0 ? b : a;
      Call& first_call = i == 0 ? in_a : in_b;
      Call& second_call = i == 0 ? in_b : in_a;
      first[i].submit(first_call);
      second[i].submit(second_call);
      second[i].wait(second_call);
      first[i].wait(first_call);
      CHECK(x == 2 && y == 4);
      while (!in_a.releases || !in_b.releases) std::this_thread::yield();
    }
  });
}

TEST("different operations are an error on every rank that names both, and the group goes on") {
  Cluster cluster(3);
  cluster.each([](Rank& rank) {
    std::int64_t value[2] = {1, 2};
    const Error error = error_of([&] { rank.run(all_reduce(value, rank.rank == 2 ? 2 : 1)); });
    CHECK(error.code() == Errc::mismatch);
    CHECK(contains(error, "all_reduce(int64[2], SUM)") && contains(error, "all_reduce(int64[1], SUM)"),
          error.what());
    CHECK(contains(error, "rank 2") && contains(error, "operation #1 of group test"), error.what());
    rank.run(all_reduce(value, 1));
    CHECK(value[0] == 3);
  });
}

TEST("pairs that disagree about a size end the group on every rank") {
  Cluster cluster(3);
  cluster.each([](Rank& rank) {
    std::vector<std::int64_t> in(30), out(30);
    std::vector<Block> ins, outs;
    for (int i = 0; i < 3; ++i) {
      // Rank 2 expects one element more from rank 0 than that one sends.
      ins.push_back({reinterpret_cast<std::byte*>(&in[i * 10]), 5});
      outs.push_back(
          {reinterpret_cast<std::byte*>(&out[i * 10]), std::size_t(rank.rank == 2 && i == 0 ? 6 : 5)});
    }
    Collective c;
    c.kind = Kind::all_to_all, c.dtype = DType::i64, c.largest = 6, c.volume = kUneven;
    c.in = {nullptr, 5, 3, ins.data()};
    c.out = {nullptr, 6, 3, outs.data()};
    const Error error = error_of([&] { rank.run(c); });
    CHECK(contains(error, "rank 0 sends 5 elements to rank 2, which expects 6"), error.what());
    CHECK(contains(error, "Entry 2 of rank 0's input sizes must equal entry 0 of rank 2's output sizes"),
          error.what());
    // Only rank 2 can see it; the others hear that it ended the group.
    CHECK(error.code() == (rank.rank == 2 ? Errc::mismatch : Errc::aborted), error.what());
    std::int64_t value = 1;
    CHECK(contains(error_of([&] { rank.run(all_reduce(&value, 1)); }), "which expects 6"));
  });
}

/// An all_to_all of three ranks. `counts`: elements to and from each rank. Without `lists` this rank says
/// that they are all equal.
void exchange(Rank& rank, const std::array<std::size_t, 3>& counts, bool lists) {
  const std::size_t all = counts[0] + counts[1] + counts[2];
  std::vector<std::int64_t> in(all, rank.rank + 1), out(all, -1), expected;
  std::vector<Block> ins, outs;
  for (std::size_t i = 0; i < 3; ++i) {
    ins.push_back({reinterpret_cast<std::byte*>(&in[expected.size()]), counts[i]});
    outs.push_back({reinterpret_cast<std::byte*>(&out[expected.size()]), counts[i]});
    expected.insert(expected.end(), counts[i], static_cast<std::int64_t>(i + 1));
  }
  Collective c;
  c.kind = Kind::all_to_all, c.dtype = DType::i64;
  c.largest = *std::max_element(counts.begin(), counts.end()), c.volume = lists ? kUneven : c.largest;
  c.in = {ins[0].data, c.largest, 3, lists ? ins.data() : nullptr};
  c.out = {outs[0].data, c.largest, 3, lists ? outs.data() : nullptr};
  rank.run(c);
  CHECK(out == expected);
}

TEST("equal parts need not be listed by all ranks") {
  Cluster cluster(3);
  cluster.each([](Rank& rank) {
    for (const bool listed : {true, true, false, false, true, false})
      exchange(rank, {5, 5, 5}, listed && rank.rank != 0);
  });
}

TEST("a rank whose parts are equal stages them again where others list larger ones") {
  Cluster cluster(3);
  cluster.each([](Rank& rank) {
    for (const std::size_t between_others : {5, 1000, 20000}) {
      const std::size_t count = rank.rank == 0 ? 5 : between_others;
      exchange(rank, {5, count, count}, rank.rank != 0);
    }
  });
}

TEST("ranks that do not list their parts must mean the same") {
  Cluster cluster(3);
  cluster.each([](Rank& rank) {
    const std::size_t own = rank.rank == 1 ? 7 : 5;
    const Error error = error_of([&] { exchange(rank, {own, own, own}, rank.rank == 2); });
    CHECK(error.code() == Errc::mismatch, error.what());
    exchange(rank, {5, 5, 5}, rank.rank != 0);
  });
}

TEST("what past groups leave in the control region is used again, whichever rank looks last") {
  Cluster cluster(2);
  std::size_t before[2];
  for (int round = 0; round < 100; ++round) {
    std::vector<std::unique_ptr<Mesh>> meshes;
    std::vector<Invitation> invitations;
    for (int i = 0; i < 2; ++i) {
      meshes.push_back(std::make_unique<Mesh>(cluster[i].endpoint, "another", i, 2, Tuning{}));
      invitations.push_back(meshes[i]->invitation());
    }
    for (const auto& mesh : meshes)
      mesh->join(invitations, {cluster[0].endpoint->as_local_peer(), cluster[1].endpoint->as_local_peer()});
    for (int i = 0; i < 2; ++i) {
      const std::size_t committed = cluster[i].endpoint->arena().committed();
      if (round == 0) before[i] = committed;
      CHECK(committed == before[i], "rank ", i, " holds ", committed, " bytes in round ", round, ", ",
            before[i], " in the first one");
    }
  }
}

TEST("what peers may still read is used again when they have left") {
  Cluster cluster(2);  // for its endpoints
  std::vector<std::unique_ptr<Mesh>> meshes;
  std::vector<Invitation> invitations;
  const auto block = [&] { return Mesh(cluster[0].endpoint, "next", 0, 2, Tuning{}).invitation().block; };
  for (int i = 0; i < 2; ++i) {
    meshes.push_back(std::make_unique<Mesh>(cluster[i].endpoint, "another", i, 2, Tuning{}));
    invitations.push_back(meshes[i]->invitation());
  }
  for (const auto& mesh : meshes)
    mesh->join(invitations, {cluster[0].endpoint->as_local_peer(), cluster[1].endpoint->as_local_peer()});
  meshes[0].reset();
  CHECK(block() != invitations[0].block);
  meshes[1].reset();
  CHECK(block() == invitations[0].block);
}

TEST("a rank that comes too late is named") {
  Cluster cluster(3);
  cluster.each([](Rank& rank) {
    std::int64_t value = 1;
    rank.run(all_reduce(&value, 1));
    if (rank.rank == 1) return;
    const auto begin = std::chrono::steady_clock::now();
    const Error error =
        error_of([&] { rank.run(all_reduce(&value, 1), Deadline::after(std::chrono::milliseconds(200))); });
    // Both time out by themselves, or one hears it from the other.
    CHECK(contains(error, "Timed out waiting 200ms for all_reduce(int64[1], SUM) #2") &&
              contains(error, "rank 1 (pid"),
          error.what());
    CHECK(contains(error, "its last operation was all_reduce(int64[1], SUM) #1"), error.what());
    CHECK(std::chrono::steady_clock::now() - begin >= std::chrono::milliseconds(200), "before the deadline");
    CHECK(contains(error_of([&] { rank.run(all_reduce(&value, 1)); }), "Timed out"),
          "later operations fail too");
  });
}

TEST("a rank that leaves ends what waits for it, and nothing that is complete") {
  Cluster cluster(2);
  cluster.each([](Rank& rank) {
    std::int64_t value = 1;
    rank.run(all_reduce(&value, 1));
    if (rank.rank == 1) return rank.group->close();
    const Error error = error_of([&] { rank.run(all_reduce(&value, 1)); });
    CHECK(contains(error, "rank 1 (pid") &&
              contains(error, "left the group during all_reduce(int64[1], SUM) #2"),
          error.what());
  });
}

TEST("abort ends the operations of all ranks with its reason") {
  for (int round = 0; round < 20; ++round) {  // ranks hear of it in the middle of something, or by the bell
    Cluster cluster(3);
    cluster.each([](Rank& rank) {
      std::int64_t value = 1;
      if (rank.rank == 2) return rank.group->abort("enough");
      const Error error = error_of([&] { rank.run(all_reduce(&value, 1)); });
      CHECK(error.code() == Errc::aborted && contains(error, "enough"), error.what());
    });
  }
}

TEST("a rank that aborts and leaves at once is heard to have aborted") {
  Cluster cluster(2);
  cluster[1].group->abort("enough");
  cluster[1].group->close();
  std::int64_t value = 1;
  const Error error = error_of([&] { cluster[0].run(all_reduce(&value, 1)); });
  CHECK(error.code() == Errc::aborted && contains(error, "enough"), error.what());
}

TEST("an operation on hold keeps its place, and begins when it is released") {
  Cluster cluster(2);
  const auto deadline = Deadline::after(std::chrono::seconds(60));
  std::int64_t values[2][2] = {{1, 1}, {1, 1}}, sent[2] = {1, 1}, received[2] = {};
  std::vector<std::unique_ptr<Call>> calls[2];
  const auto message = [&](int rank, int i) {
    auto* data = reinterpret_cast<std::byte*>(rank == 0 ? &sent[i] : &received[i]);
    return Transfer{rank == 0, 1 - rank, 0, DType::i64, {data, 1}};
  };
  for (const int rank : {1, 0}) {  // rank 1 is there when rank 0, whose first ones are held, comes
    for (int i = 0; i < 2; ++i) {
      calls[rank].push_back(std::make_unique<Call>(all_reduce(&values[rank][i], 1), deadline));
      calls[rank].push_back(std::make_unique<Call>(message(rank, i), deadline));
    }
    if (rank == 0) calls[0][0]->operation.hold("it is held"), calls[0][1]->operation.hold("it is held");
    for (auto& call : calls[rank]) cluster[rank].submit(*call);
  }
  for (int look = 0; look < 10; ++look)
    for (const int rank : {0, 1}) {
      cluster[rank].engine->poll(*cluster[rank].group);
      for (const auto& call : calls[rank]) CHECK(!call->operation.finished());
    }
  values[0][0] = 10, sent[0] = 20;  // what is read is what is there when they begin
  cluster[0].engine->release(*cluster[0].group, calls[0][1]->operation);
  for (const int i : {1, 3})
    for (const int rank : {0, 1}) cluster[rank].wait(*calls[rank][i]);
  CHECK(received[0] == 20 && received[1] == 1 && !calls[0][0]->operation.finished());
  cluster[0].engine->release(*cluster[0].group, calls[0][0]->operation);
  for (const int i : {0, 2})
    for (const int rank : {0, 1}) cluster[rank].wait(*calls[rank][i]);
  CHECK(values[0][0] == 11 && values[1][0] == 11 && values[0][1] == 2 && values[1][1] == 2);
}

namespace {

/// Its listener is asked twice before the operation begins, and twice when the bytes have moved.
class Slow : public Call {
 public:
  using Call::Call;
  Next beginning(Operation& op) override { return asked(op, "its data is on the way", Next::goes_on); }
  Next succeeded(Operation& op) override { return asked(op, "its result is on the way", Next::ends); }
  std::atomic<int> times = 0;    // any thread may drive
  std::optional<Error> failure;  // thrown when it is asked for the second time

 private:
  Next asked(Operation& op, const char* why, Next then) {
    if (++times % 2 == 1) return op.hold(why), Next::later;
    if (failure) throw *failure;
    return then;
  }
};

Transfer message_of(int rank, std::int64_t& value) {
  return {rank == 0, 1 - rank, 0, DType::i64, {reinterpret_cast<std::byte*>(&value), 1}};
}

}  // namespace

TEST("a listener may need time before an operation begins and when its bytes have moved") {
  for (const bool is_message : {false, true}) {
    Cluster cluster(2);
    const auto deadline = Deadline::after(std::chrono::seconds(60));
    std::int64_t values[2] = {1, 1}, later[2] = {1, 1};
    const auto task = [&](int rank, std::int64_t& value) -> Task {
      if (is_message) return message_of(rank, value);
      return all_reduce(&value, 1);
    };
    std::vector<std::unique_ptr<Slow>> slow;
    std::vector<std::unique_ptr<Call>> behind;
    const auto look = [&] {
      for (int i = 0; i < 10; ++i)
        for (const int rank : {0, 1}) cluster[rank].engine->poll(*cluster[rank].group);
    };
    for (const int rank : {0, 1}) {
      slow.push_back(std::make_unique<Slow>(task(rank, values[rank]), deadline));
      behind.push_back(std::make_unique<Call>(task(rank, later[rank]), deadline));
      cluster[rank].submit(*slow[rank]), cluster[rank].submit(*behind[rank]);
    }
    look();
    for (const int rank : {0, 1}) CHECK(slow[rank]->times == 1 && !behind[rank]->operation.finished());
    values[0] = 10;  // what is read is what is there when they begin
    for (const int rank : {0, 1}) cluster[rank].engine->release_to_others(slow[rank]->operation);
    for (const int rank : {0, 1})
      while (!Deadline(deadline).passed() && slow[rank]->operation.ready()) look();
    for (const int rank : {0, 1}) CHECK(slow[rank]->times == 3 && !slow[rank]->operation.finished());
    CHECK(values[1] == (is_message ? 10 : 11));
    if (is_message) look(), cluster[1].wait(*behind[1]);  // nothing keeps it
    for (const int rank : {1, 0}) cluster[rank].engine->release_to_others(slow[rank]->operation);
    for (const int rank : {1, 0}) {
      cluster[rank].wait(*slow[rank]), cluster[rank].wait(*behind[rank]);
      CHECK(slow[rank]->times == 4 && later[1] == (is_message ? 1 : 2));
    }
  }
}

TEST("what a slow listener throws is the error of its message, or of the group") {
  for (const int last : {2, 4}) {
    Cluster cluster(2);
    const auto deadline = Deadline::after(std::chrono::seconds(60));
    std::int64_t values[2] = {1, 1};
    Slow slow(message_of(0, values[0]), deadline);
    Call receive(message_of(1, values[1]), deadline);
    cluster[1].submit(receive);
    cluster[0].submit(slow);
    for (; slow.times < last; cluster[0].engine->poll(*cluster[0].group)) {
      if (slow.times == last - 1) slow.failure = Error(Errc::system, "the data is lost");
      if (!slow.operation.ready()) slow.operation.make_ready();
    }
    CHECK(contains(error_of([&] { cluster[0].wait(slow); }), "the data is lost"));
    CHECK(!cluster[0].group->error());
    if (last == 4) cluster[1].wait(receive);
    for (const int rank : {0, 1}) cluster[rank].group->close();
    while (!receive.releases || !slow.releases) std::this_thread::yield();
  }
}

TEST("a collective whose bytes have moved needs no peer any more") {
  Cluster cluster(2);
  std::int64_t values[2] = {1, 1};
  Slow slow(all_reduce(&values[0], 1), Deadline::after(std::chrono::seconds(60)));
  cluster[0].submit(slow);
  slow.operation.make_ready();
  std::thread peer([&] { cluster[1].run(all_reduce(&values[1], 1)); });
  while (slow.times < 3) cluster[0].engine->poll(*cluster[0].group);
  peer.join();
  cluster[1].group->close();
  cluster[0].group->look();
  CHECK(!slow.operation.finished());
  cluster[0].engine->release(*cluster[0].group, slow.operation);
  cluster[0].wait(slow);
  CHECK(values[0] == 2);
}

TEST("operations on hold are overdue like others, and so are those behind them") {
  for (const bool is_message : {false, true})
    for (const bool completing : {false, true}) {
      Cluster cluster(2);
      std::int64_t values[2] = {1, 1}, sent = 1;
      const auto task = [&](int rank, std::int64_t& value) -> Task {
        if (is_message) return message_of(rank, value);
        return all_reduce(&value, 1);
      };
      const auto never = Deadline::never(), soon = Deadline::after(std::chrono::milliseconds(20));
      Slow slow(task(0, values[0]), completing ? soon : never);
      Call behind(task(0, sent), completing ? never : soon), other(task(1, values[1]), never);
      if (completing) cluster[1].submit(other);
      cluster[0].submit(slow);
      if (!completing) cluster[0].submit(behind);
      if (completing) slow.operation.make_ready();
      const Error error = error_of([&] { cluster[0].wait(completing ? slow : behind); });
      CHECK(error.code() == Errc::timeout, error.what());
      CHECK(contains(error, completing ? ": its result is on the way" : " #1, and its data is on the way"),
            error.what());
      CHECK(contains(error, completing ? "" : ": it comes after "), error.what());
      for (const int rank : {0, 1}) cluster[rank].group->close();
      while (!slow.releases) std::this_thread::yield();
      while (completing ? !other.releases : !behind.releases) std::this_thread::yield();
    }
}

TEST("a rank that cannot join tells the others why") {
  Cluster cluster(2);
  std::vector<std::unique_ptr<coll::Mesh>> meshes;
  std::vector<coll::Invitation> invitations;
  std::vector<std::shared_ptr<shm::Peer>> peers;
  for (int i = 0; i < 2; ++i) {
    meshes.push_back(std::make_unique<coll::Mesh>(cluster[i].endpoint, "later", i, 2, Tuning{}));
    invitations.push_back(meshes.back()->invitation());
    peers.push_back(cluster[i].endpoint->as_local_peer());
  }
  meshes[0]->join(invitations, std::move(peers));
  ++invitations[0].address.version;
  const auto deadline = Deadline::after(std::chrono::seconds(60));
  CHECK(contains(error_of([&] { meshes[1]->join(invitations, deadline); }), "speaks protocol version"));
  cluster[0].group->close();
  cluster[0].group = std::make_shared<coll::Group>(*cluster[0].engine, std::move(meshes[0]));
  cluster[0].engine->add(cluster[0].group);
  std::int64_t value = 1;
  const Error error = error_of([&] { cluster[0].run(all_reduce(&value, 1)); });
  CHECK(contains(error, "ended group later: rank 0 of group later speaks protocol version"), error.what());
}

TEST("ranks that are bound to different cores have a core for each") {
  Cluster cluster(2);  // for its endpoints
  const auto joined = [&](std::uint64_t first, std::uint64_t second, Tuning tuning = {}) {
    std::vector<Invitation> invitations;
    auto zero = std::make_unique<Mesh>(cluster[0].endpoint, "bound", 0, 2, tuning);
    const Mesh one(cluster[1].endpoint, "bound", 1, 2, tuning);
    for (const Mesh* mesh : {&std::as_const(*zero), &one}) {
      invitations.push_back(mesh->invitation());
      invitations.back().cores = {};
    }
    invitations[0].cores[0] = first;
    invitations[1].cores[15] = second;
    zero->join(invitations, {cluster[0].endpoint->as_local_peer(), cluster[1].endpoint->as_local_peer()});
    return zero;
  };
  const auto own = joined(1, 1), shared = joined(1, 0);
  CHECK(own->cores_for_each(1) && own->tuning().direct_bytes == kDirectBytes);
  CHECK(!shared->cores_for_each(1) && shared->tuning().direct_bytes == kByCores);
  CHECK(own->tuning().slot_bytes == 256 << 10 && shared->tuning().slot_bytes == 1 << 20);
  CHECK(own->tuning().area_bytes == 3 << 19 && shared->tuning().area_bytes == 2 << 20);
  CHECK(!joined(0, 0)->cores_for_each(1));  // nothing is known
  CHECK(joined(3, 3)->cores_for_each(2) && !joined(3, 1)->cores_for_each(2));
  Tuning tuning;
  tuning.direct_bytes = 128, tuning.slot_bytes = 128 << 10;
  for (const std::uint64_t second : {0, 1}) {
    const Tuning chosen = joined(1, second, tuning)->tuning();
    CHECK(chosen.direct_bytes == 128 && chosen.slot_bytes == 128 << 10, second);
  }
}

TEST("where ranks share cores slots are larger, but those of many ranks take no more memory than of 16") {
  for (const int ranks : {2, 16}) CHECK(slot_bytes_by_cores(ranks, false) == 1 << 20);
  CHECK(slot_bytes_by_cores(32, false) == 512 << 10);
  for (const int ranks : {64, 256}) CHECK(slot_bytes_by_cores(ranks, false) == 256 << 10);
  CHECK(slot_bytes_by_cores(8, true) == 256 << 10);
}

TEST("the rings of few ranks are large, and those of many pairs take little memory") {
  for (const int ranks : {1, 2, 5}) CHECK(ring_bytes_by_ranks(ranks) == 2 << 20);
  CHECK(ring_bytes_by_ranks(6) == 1 << 20 && ring_bytes_by_ranks(9) == 1 << 20);
  CHECK(ring_bytes_by_ranks(17) == 512 << 10);
  for (const int ranks : {33, 64, 256}) CHECK(ring_bytes_by_ranks(ranks) == 256 << 10);
}

TEST("consecutive windows never overlap in a staging area, and use all of it") {
  std::mt19937_64 random(8);
  for (int trial = 0; trial < 200; ++trial) {
    const std::size_t slot = kLine * (1 + random() % 16);
    const bool same = random() % 4 == 0;  // two slots, of which each window takes one
    const std::size_t area = same ? 2 * slot : 3 * slot + kLine * (random() % 64);
    Tuning tuning;
    tuning.slot_bytes = static_cast<std::uint32_t>(slot),
    tuning.area_bytes = static_cast<std::uint32_t>(area);
    Rotation rotation(tuning);
    Exchange exchange(tuning);
    std::size_t last = 0, last_bytes = 0, end = 0;
    std::uint64_t exchanged = 0;
    for (int operation = 0; operation < 50; ++operation) {
      const std::size_t bytes = same ? slot : kLine * (1 + random() % (slot / kLine));
      const std::uint64_t windows = 1 + random() % 8;
      const bool exchanges = has_exchanges(tuning) && random() % 2;
      for (std::uint64_t w = 0; w < windows; ++w) {
        if (exchanges) {  // the places of two windows in turn, twice in this rank's area and twice in the
                          // other
          CHECK(exchange.at(w).swapped == (exchanged / 2 % 2 != 0));
          ++exchanged;
        }
        const std::size_t at = exchanges ? exchange.at(w).offset : rotation.at(w, bytes);
        CHECK(at % kLine == 0 && at + bytes <= area);
        CHECK(last_bytes == 0 || at + bytes <= last || last + last_bytes <= at, "they overlap");
        last = at, last_bytes = bytes, end = std::max(end, at + bytes);
      }
      exchanges ? exchange.advance(windows) : rotation.advance(windows, bytes);
    }
    CHECK(end > area - slot);
  }
}

namespace {

/// The meshes of ranks 0 and 1 of one attempt to make a group.
struct Attempt {
  explicit Attempt(Cluster& in) : cluster(in), meshes{make(0), make(1)} {}

  std::unique_ptr<Mesh> make(int rank) {
    return std::make_unique<Mesh>(cluster[rank].endpoint, "later", rank, 2, Tuning{});
  }
  void join(int rank) {
    meshes[rank]->join({meshes[0]->invitation(), meshes[1]->invitation()},
                       {cluster[0].endpoint->as_local_peer(), cluster[1].endpoint->as_local_peer()});
  }
  std::shared_ptr<Group> open(int rank, int milliseconds = 60000) {
    return Group::open(*cluster[rank].engine, std::move(meshes[rank]),
                       Deadline::after(std::chrono::milliseconds(milliseconds)), {});
  }

  Cluster& cluster;
  std::array<std::unique_ptr<Mesh>, 2> meshes;
};

}  // namespace

TEST("a rank that has seen all ranks join may end the group before others have seen it") {
  Cluster cluster(2);
  Attempt attempt(cluster);
  attempt.join(0);
  attempt.join(1);
  const auto ends = attempt.open(1);
  ends->abort("the test says so");
  const auto made = attempt.open(0);
  std::int64_t value = 1;
  const auto error = error_of([&] {
    Rank& rank = cluster[0];
    rank.group = made;
    rank.run(all_reduce(&value, 1));
  });
  CHECK(contains(error, "the test says so"), error.what());
}

TEST("a group is open when all ranks have joined: then any of them may leave") {
  Cluster cluster(2);  // for its endpoints
  Attempt attempt(cluster);
  attempt.join(0);
  attempt.join(1);
  const auto left = attempt.open(1);
  left->close();
  const auto stays = attempt.open(0);
  stays->close();
}

TEST("a rank that waits in vain for one that joins makes no group, and neither does that one") {
  Cluster cluster(2);
  Attempt attempt(cluster);
  std::shared_ptr<shm::Peer> keeps = cluster[0].endpoint->as_local_peer();
  const Invitation first = attempt.meshes[0]->invitation();
  attempt.join(0);
  const auto error = error_of([&] { attempt.open(0, 20); });
  CHECK(error.code() == Errc::timeout && contains(error, "waiting for rank 1 (pid"), error.what());
  attempt.meshes[1]->join({first, attempt.meshes[1]->invitation()},
                          {keeps, cluster[1].endpoint->as_local_peer()});
  const auto told = error_of([&] { attempt.open(1); });
  CHECK(told.code() == Errc::aborted && contains(told, "ended group later: occl: Timed out"), told.what());
}

TEST("a rank that leaves before it has joined is an error of the others") {
  Cluster cluster(2);
  Attempt attempt(cluster);
  attempt.join(0);
  attempt.meshes[1].reset();
  const auto error = error_of([&] { attempt.open(0); });
  CHECK(error.code() == Errc::peer_left && contains(error, "was gone before it had joined group later"),
        error.what());
}

TEST("after close an operation ends at once") {
  Cluster cluster(1);
  cluster[0].group->close();
  std::int64_t value = 1;
  CHECK(error_of([&] { cluster[0].run(all_reduce(&value, 1)); }).code() == Errc::closed);
}

TEST("buffers that peers may be using are kept after an error until the group is closed") {
  Tuning tuning;
  tuning.one_shot_bytes = 0;
  Cluster cluster(2, tuning);
  Memory memory(cluster[0], 1000, true);
  Call call(all_reduce(memory.data, 1000), Deadline::after(std::chrono::milliseconds(50)));
  cluster[0].submit(call);
  error_of([&] { cluster[0].wait(call); });
  CHECK(call.completions == 1 && call.releases == 0);
  cluster[0].group->close();
  CHECK(call.releases == 1);
}

TEST("reductions with a factor use each rank's own") {
  for (const std::size_t count : {1, 10, 100000}) {
    Cluster cluster(3);
    cluster.each([&](Rank& rank) {
      std::vector<double> values(count, 1.0);
      auto c = all_reduce(reinterpret_cast<std::int64_t*>(values.data()), count);
      c.dtype = DType::f64, c.op = ReduceOp::premul_sum, c.factor = rank.rank + 1;
      rank.run(c);
      for (const double value : values) CHECK(value == 6.0);
    });
  }
}

namespace {

/// A listener that blocks until another operation has ended, without driving anything itself.
class Blocked : public Listener {
 public:
  Blocked(Rank& rank, const Task& given, std::function<void()> then)
      : task(given),
        operation(*this, task, Deadline::after(std::chrono::seconds(60))),
        rank_(rank),
        then_(std::move(then)) {}
  void completed(Operation&) noexcept override {
    CHECK(operation.finished());
    const Engine::Callback callback(*rank_.engine);
    then_();
  }
  void released(Operation&) noexcept override { ended = true; }
  const Task task;
  Operation operation;
  std::atomic<bool> ended = false;

 private:
  Rank& rank_;
  std::function<void()> then_;
};

}  // namespace

TEST("while a callback of a brief submission waits, the background drives") {
  Cluster cluster(2);
  std::atomic<bool> sent = false, called = false;
  cluster.each([&](Rank& rank) {
    const auto until = Deadline::after(std::chrono::seconds(30));
    std::byte bytes[2] = {};
    const auto message = [&](std::uint32_t tag) {
      return Transfer{rank.rank == 1, 1 - rank.rank, tag, DType::bytes, {&bytes[tag], 1}};
    };
    if (rank.rank == 1) {
      rank.run(message(0));
      sent = true;
      while (!called && !until.passed()) std::this_thread::yield();
      return rank.run(message(1));
    }
    Call second(message(1), Deadline::after(std::chrono::seconds(60)));
    const auto wait = [&] {
      called = true;
      while (!second.completions && !until.passed()) std::this_thread::yield();
      CHECK(second.completions == 1);
    };
    Blocked first(rank, message(0), wait);
    while (!sent) std::this_thread::yield();
    rank.group->submit(first.operation);
    rank.submit(second);  // drives both, and the first one ends
    CHECK(called);
    while ((!first.ended || !second.releases) && !until.passed()) std::this_thread::yield();
    CHECK(first.ended && second.releases);
  });
}

TEST("a receive whose message has come succeeds even if only the end of its group sees it") {
  struct Told : Call {
    using Call::Call;
    Next succeeded(Operation&) override { return ++successes, Next::ends; }
    int successes = 0;
  };
  Cluster cluster(2);
  std::byte bytes[2] = {std::byte{5}, std::byte{6}}, got[2] = {};
  const auto send = [&](std::uint32_t tag) { return Transfer{true, 1, tag, DType::bytes, {&bytes[tag], 1}}; };
  const auto receive = [&](std::uint32_t tag) {
    return Transfer{false, 0, tag, DType::bytes, {&got[tag], 1}};
  };
  cluster[0].run(send(0));
  cluster[0].run(send(1));
  cluster[1].run(receive(1));  // message 0 waits for its receive
  Told call(receive(0), Deadline::after(std::chrono::seconds(60)));
  cluster[1].group->submit(call.operation);
  cluster[1].group->close();
  CHECK(call.releases == 1 && !call.operation.error() && got[0] == bytes[0]);
  CHECK(call.successes == 1);
}

TEST("a thread that sees an operation ended sees its error") {
  Cluster cluster(2);
  std::int64_t value = 1;
  Call call(all_reduce(&value, 1), Deadline::after(std::chrono::seconds(60)));
  cluster[0].submit(call);
  Thread other([&] { cluster[0].group->abort("the test says so"); });
  while (!call.operation.finished()) std::this_thread::yield();
  CHECK(contains(*call.operation.error(), "the test says so"));
  other.join();
}

TEST("a callback may wait for an operation that ended together with its own") {
  Cluster cluster(2);
  cluster.each([&](Rank& rank) {
    if (rank.rank == 1) return;
    std::int64_t values[2] = {1, 1};
    Blocked second(rank, all_reduce(&values[1], 1), [] {});
    const auto wait = [&] {
      CHECK(second.operation.finished());
      CHECK(rank.engine->wait(*rank.group, second.operation, Deadline::after(std::chrono::seconds(60)), {}));
      CHECK(second.operation.error());
    };
    Blocked first(rank, all_reduce(&values[0], 1), wait);
    for (Blocked* call : {&first, &second}) rank.engine->submit(*rank.group, call->operation);
    rank.group->abort("the test ends it");  // both, at once
    CHECK(first.operation.finished() && second.operation.finished());
    rank.group->close();  // what peers may still read is released then
    CHECK(first.ended && second.ended);
  });
}

TEST("callbacks may wait for operations that another thread must drive, to any depth") {
  Cluster cluster(2);
  for (bool wait_outside : {false, true})
    cluster.each([&](Rank& rank) {
      std::int64_t values[3] = {1, 1, 1};
      const auto launch_and_spin = [&](Blocked& next) {
        rank.engine->submit(*rank.group, next.operation);
        while (!next.ended) std::this_thread::yield();
      };
      Blocked innermost(rank, all_reduce(&values[2], 1), [] {});
      Blocked inner(rank, all_reduce(&values[1], 1), [&] { launch_and_spin(innermost); });
      Blocked outer(rank, all_reduce(&values[0], 1), [&] { launch_and_spin(inner); });
      rank.engine->submit(*rank.group, outer.operation);
      if (wait_outside)
        rank.engine->wait(*rank.group, outer.operation, Deadline::after(std::chrono::seconds(60)), {});
      while (!outer.ended) std::this_thread::yield();
      for (const auto value : values) CHECK(value == 2);
    });
}
