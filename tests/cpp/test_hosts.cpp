// Groups over several nodes, with ranks as threads and a link through memory: results, mismatches, and ends.
#include <random>
#include <tuple>

#include "collective_cases.h"
#include "hosts.h"
#include "windows.h"

using namespace occl;
using namespace occl::test;
using coll::Kind;
using coll::Transfer;

namespace {

constexpr Kind kAll[] = {Kind::barrier, Kind::broadcast,      Kind::all_reduce,
                         Kind::reduce,  Kind::all_gather,     Kind::gather,
                         Kind::scatter, Kind::reduce_scatter, Kind::all_to_all};

const std::vector<std::vector<int>> kShapes = {{0, 0, 1, 1}, {0, 0, 1}, {0, 1, 0, 1, 2}, {0, 1, 2}};

TEST("every collective on every shape, small and large, mapped or not") {
  for (const auto& shape : kShapes) {
    Hosts hosts(shape);
    hosts.each([&](Rank& rank) {
      int round = 0;
      for (const Kind kind : kAll)
        for (const std::size_t count : {0, 1, 100, 200000})
          for (const bool mapped : {false, true}) {
            ++round;
            Case c{kind, round % rank.size, std::vector<std::size_t>(rank.size, count), false, round};
            run(rank, c, mapped);
          }
    });
  }
}

TEST("blocks of different sizes") {
  for (const auto& shape : kShapes) {
    Hosts hosts(shape);
    hosts.each([&](Rank& rank) {
      for (const Kind kind : {Kind::all_gather, Kind::reduce_scatter, Kind::all_to_all})
        for (const std::size_t unit : {1, 5000}) {
          Case c{kind, 0, {}, true, 3};
          for (int r = 0; r < rank.size; ++r) c.counts.push_back(unit * ((r * 2) % 3));
          run(rank, c, unit > 1);
        }
    });
  }
}

std::string mismatch_on(Rank& rank, const coll::Collective& c) {
  return error_of([&] { rank.run(c); }).what();
}

TEST("ranks that call different operations all learn it, and the group goes on") {
  Hosts hosts({0, 0, 1, 1});
  hosts.each([&](Rank& rank) {
    std::vector<std::int64_t> data(50000, rank.rank);
    for (const int odd : {0, 1, 2, 3})
      for (const std::size_t count : {1, 50000}) {
        coll::Collective c = all_reduce(data.data(), rank.rank == odd ? count : count / 2 + 7);
        const std::string text = mismatch_on(rank, c);
        CHECK(text.find(concat("all_reduce(int64[", count, "], SUM)")) != text.npos &&
                  text.find(concat("all_reduce(int64[", count / 2 + 7, "], SUM)")) != text.npos &&
                  text.find(concat("rank ", odd, " (pid ", 100 + odd, ", host ", odd < 2 ? 'a' : 'b', ")")) !=
                      text.npos,
              text);
        Case good{Kind::all_reduce, 0, std::vector<std::size_t>(4, 300), false, odd};
        run(rank, good, false);
      }
    coll::Collective barrier;
    mismatch_on(rank, rank.rank < 2 ? barrier : all_reduce(data.data(), 4));
    run(rank, {Kind::all_gather, 0, std::vector<std::size_t>(4, 30), false, 1}, true);
  });
}

TEST("an all_to_all whose pairs do not fit ends the group on every rank") {
  Hosts hosts({0, 0, 1, 1});
  hosts.each([&](Rank& rank) {
    std::vector<std::int64_t> in(8, 1), out(8, 0);
    std::vector<coll::Block> ins, outs;
    for (int r = 0; r < 4; ++r) {
      ins.push_back({reinterpret_cast<std::byte*>(&in[2 * r]), rank.rank == 0 && r == 3 ? 1u : 2u});
      outs.push_back({reinterpret_cast<std::byte*>(&out[2 * r]), 2});
    }
    coll::Collective c;
    c.kind = Kind::all_to_all;
    c.dtype = DType::i64;
    c.in = {nullptr, 2, 4, ins.data()};
    c.out = {nullptr, 2, 4, outs.data()};
    c.largest = 2;
    c.volume = coll::kUneven;
    const std::string text = mismatch_on(rank, c);
    CHECK(text.find("rank 0 (pid 100, host a) sends 1 elements to rank 3") != text.npos, text);
    error_of([&] { rank.run(coll::Collective{}); });
  });
}

TEST("an abort on one rank ends the operations of all ranks of all nodes") {
  Hosts hosts({0, 0, 1, 1, 2});
  hosts.each([&](Rank& rank) {
    if (rank.rank == 1) {
      rank.run(coll::Collective{});
      rank.wide->abort("enough");
      return;
    }
    const Error error = error_of([&] {
      for (int i = 0; i < 2; ++i) rank.run(coll::Collective{});  // the first may not have ended here
    });
    CHECK(contains(error, "enough"), error.what());
  });
}

TEST("a rank that does not come is named after the timeout, on its node and on others") {
  Hosts hosts({0, 0, 1, 1});
  hosts.each([&](Rank& rank) {
    rank.run(coll::Collective{});  // so that all begin to wait at about the same time
    rank.patience = std::chrono::milliseconds(300);
    if (rank.rank == 3) return;
    const std::string text = mismatch_on(rank, coll::Collective{});
    if (rank.rank == 2) CHECK(text.find("rank 3 (pid 103, host b)") != text.npos, text);
  });
}

TEST("a closed connection ends the group on every rank") {
  Hosts hosts({0, 0, 1, 1});
  hosts.each([&](Rank& rank) {
    if (rank.rank == 2) {
      rank.run(coll::Collective{});
      return hosts.wire.cut(2);
    }
    const Error error = error_of([&] {
      for (int i = 0; i < 2; ++i) rank.run(coll::Collective{});  // the first may not have ended here
    });
    if (rank.rank != 3)
      CHECK(contains(error, "rank 2 (pid 102, host b) is not reached any more"), error.what());
  });
}

TEST("a rank that has left is named") {
  Hosts hosts({0, 1});
  hosts.each([&](Rank& rank) {
    rank.run(coll::Collective{});
    if (rank.rank == 1) return rank.wide->close();
    const std::string text = mismatch_on(rank, coll::Collective{});
    CHECK(text.find("rank 1 (pid 101, host b) has left group 0") != text.npos, text);
  });
}

coll::Transfer message(bool send, int peer, std::int64_t* data, std::size_t count, std::uint32_t tag = 0) {
  return {send, peer, tag, DType::i64, {reinterpret_cast<std::byte*>(data), count}};
}

TEST("a collective ends when the other nodes have this rank's headers, because its process may end then") {
  Hosts hosts({0, 1, 2});
  hosts.wire.hold(0, 2);
  hosts.each([&](Rank& rank) {
    if (rank.rank != 0) return rank.run(coll::Collective{});
    Call call(coll::Collective{}, Deadline::after(rank.patience));
    int looks = 0;  // since rank 0 has the headers of all, while rank 2 waits for that of rank 0
    bool released = false;
    const auto interrupted = [&] {
      {
        std::lock_guard lock(hosts.wire.mutex);
        if (hosts.wire.sent[1] == 0 || hosts.wire.sent[2] == 0 || ++looks < 3) return;
      }
      hosts.wire.release();
      released = true;
    };
    rank.submit(call);
    CHECK(rank.any_engine().wait(*rank.wide, call.operation, Deadline::after(rank.patience), interrupted));
    CHECK(released, "the barrier of rank 0 would have ended");
    rank.wait(call);
  });
}

TEST("a collective ends well although a rank that took part in it has ended meanwhile") {
  Hosts hosts({0, 1, 2});
  hosts.wire.hold(1, 2);
  Atomic<bool> cut = false;
  Atomic<int> looks = 0;  // of rank 2 since rank 0 is gone
  hosts.each([&](Rank& rank) {
    std::int64_t data = 1;
    if (rank.rank < 2) rank.run(all_reduce(&data, 1));  // rank 1 as soon as rank 2 has its header
    if (rank.rank == 0) {
      hosts.wire.cut(0);
      cut = true;
      while (looks < 3 && !hosts.ranks[2].wide->error()) std::this_thread::yield();
      hosts.wire.release();
    } else if (rank.rank == 2) {
      Call call(all_reduce(&data, 1), Deadline::after(rank.patience));
      rank.submit(call);
      rank.any_engine().wait(*rank.wide, call.operation, Deadline::after(rank.patience), [&] {
        if (cut) ++looks;
      });
      rank.wait(call);
      const Error error = error_of([&] { rank.run(coll::Collective{}); });
      CHECK(contains(error, "rank 0 (pid 100, host a) is not reached any more"), error.what());
    }
    CHECK(data == 3, data);
  });
}

TEST("a rank leaves when a small message has been received, although its send has ended") {
  Hosts hosts({0, 1});
  Atomic<bool> waits = false;
  hosts.each([&](Rank& rank) {
    std::int64_t data = rank.rank;
    if (rank.rank == 0) {
      rank.run(message(true, 1, &data, 1));
      rank.wide->deliver([&] { waits = true; });
      CHECK(waits, "rank 0 would have left");
    } else {
      while (!waits) std::this_thread::yield();
      rank.run(message(false, 0, &data, 1));
      CHECK(data == 0, data);
    }
  });
}

TEST("ranks that leave take in what no receive wants") {
  Hosts hosts({0, 0, 1, 2});
  hosts.each([&](Rank& rank) {
    std::int64_t data = 1;
    for (int to = 0; to < 4; ++to)
      for (int i = 0; i < 3 && to != rank.rank; ++i) rank.run(message(true, to, &data, 1), Deadline::never());
    rank.wide->deliver({});
    rank.wide->close();
    hosts.wire.cut(rank.rank);
  });
}

TEST("a rank waits for nobody once its group has ended, and not beyond the time of its send") {
  Hosts hosts({0, 1});
  hosts.wire.hold(0, 1);
  std::int64_t data = 0;
  hosts.ranks[0].run(message(true, 1, &data, 1), Deadline::after(std::chrono::milliseconds(1)));
  hosts.ranks[0].wide->deliver({});
  hosts.ranks[0].run(message(true, 1, &data, 1), Deadline::never());
  hosts.ranks[0].wide->abort("enough");
  hosts.ranks[0].wide->deliver({});
}

TEST("messages inside a node and between nodes, small and large, in any order of tags") {
  Hosts hosts({0, 0, 1});
  hosts.each([&](Rank& rank) {
    for (const std::size_t count : {0, 1, 100, 5000, 300000}) {
      std::vector<std::int64_t> out(count + 1, rank.rank), first(count + 1), second(count + 1);
      for (int from = 0; from < 3; ++from)
        for (int to = 0; to < 3; ++to) {
          if (from == to) continue;
          if (rank.rank == from) {
            Call a(message(true, to, out.data(), count, 1), Deadline::after(std::chrono::seconds(30)));
            Call b(message(true, to, out.data(), count, 2), Deadline::after(std::chrono::seconds(30)));
            rank.submit(a);
            rank.submit(b);
            rank.wait(a);
            rank.wait(b);
          } else if (rank.rank == to) {
            first.assign(count + 1, -1), second.assign(count + 1, -1);
            rank.run(message(false, from, second.data(), count, 2));
            rank.run(message(false, from, first.data(), count, 1));
            for (std::size_t i = 0; i < count; ++i)
              CHECK(first[i] == from && second[i] == from, "element ", i);
          }
        }
    }
  });
}

TEST("a receive from any rank takes messages of its node and of others") {
  Hosts hosts({0, 0, 1, 1});
  hosts.each([&](Rank& rank) {
    for (const std::size_t count : {1, 20000}) {
      std::vector<std::int64_t> data(count, rank.rank);
      if (rank.rank != 0) {
        for (int i = 0; i < 20; ++i) rank.run(message(true, 0, data.data(), count));
      } else {
        std::vector<int> seen(4);
        for (int i = 0; i < 60; ++i) {
          Call call(message(false, coll::Transfer::kAnyRank, data.data(), count),
                    Deadline::after(std::chrono::seconds(30)));
          rank.submit(call);
          rank.wait(call);
          CHECK(call.operation.source() == data[0] && data[0] == data[count - 1], "from ",
                call.operation.source(), " came ", data[0]);
          ++seen[data[0]];
        }
        CHECK(seen == std::vector<int>({0, 20, 20, 20}), "messages");
      }
      rank.run(coll::Collective{});
    }
  });
}

TEST("a large message that does not fit its receive fails both sides, and the group goes on") {
  Hosts hosts({0, 1});
  hosts.each([&](Rank& rank) {
    std::vector<std::int64_t> data(5000, rank.rank);
    const Error error =
        error_of([&] { rank.run(message(rank.rank == 0, 1 - rank.rank, data.data(), 5000 - rank.rank)); });
    CHECK(contains(error,
                   "rank 0 sent int64[5000] with tag 0 where rank 1 called recv(int64[4999]) in group 0"),
          error.what());
    rank.run(message(rank.rank == 0, 1 - rank.rank, data.data(), 3));
  });
}

/// Rank 1, on another node, sends an object that no correct rank sends; returns how rank 0 ends.
template <class T>
Error error_after(hosts::Channel channel, const T& object) {
  Hosts hosts({0, 1});
  MemoryLink link(hosts.wire, 1);
  std::int64_t data = 0;
  hosts.ranks[0].run(message(true, 1, &data, 1));  // from now on acks are received
  const auto sent =
      hosts::send_object(link, 0, static_cast<std::uint32_t>(channel), std::make_shared<T>(object));
  return error_of([&] { hosts.ranks[0].run(message(false, 1, &data, 1)); });
}

TEST("what no rank sends ends the group with an error that names the sender") {
  const std::string sent = "rank 1 (pid 101, host b) sent a malformed ";
  hosts::PointToPoint::Ack ack;
  for (const std::uint64_t id : {0, 1, 2}) {  // of no message; good of one that has ended; of one to come
    ack.id = id;
    ack.good = id == 1;
    const Error error = error_after(hosts::Channel::acks, ack);
    CHECK(contains(error, sent + "acknowledgement of a message in group 0"), error.what());
  }
  hosts::CallHeader notice;
  notice.number = 3;
  const Error error = error_after(hosts::Channel::notices, notice);
  CHECK(contains(error, sent + "message about the end of the group in group 0"), error.what());
}

TEST("an ack that does not repeat the message, and a second one, end the group") {
  for (const bool twice : {false, true}) {
    Hosts hosts({0, 1});
    MemoryLink link(hosts.wire, 1);
    std::vector<std::int64_t> data(1000);
    hosts::PointToPoint::Ack ack;
    ack.id = 1, ack.count = twice ? 1000 : 999, ack.dtype = static_cast<std::uint32_t>(DType::i64);
    for (int i = 0; i < 1 + twice; ++i)
      hosts::send_object(link, 0, static_cast<std::uint32_t>(hosts::Channel::acks),
                         std::make_shared<hosts::PointToPoint::Ack>(ack));
    const Error error = error_of([&] { hosts.ranks[0].run(message(true, 1, data.data(), 1000)); });
    CHECK(contains(error, "sent a malformed acknowledgement of a message in group 0"), error.what());
  }
}

TEST("puts and signals between nodes, in any order of calls: what was put before a signal is there") {
  constexpr int kRanks = 5, kTurns = 12;
  Hosts hosts({0, 0, 1, 2, 2});
  constexpr std::size_t kCount = 9000;
  WindowRanks window(hosts, kRanks * kCount * 8, 2);
  hosts.each([&](Rank& rank) {
    std::mt19937 random(static_cast<unsigned>(rank.rank));
    const auto deadline = Deadline::after(std::chrono::seconds(60));
    for (int turn = 1; turn <= kTurns; ++turn) {
      const std::size_t count = std::vector<std::size_t>{0, 1, 124, 125, kCount}[turn % 5];
      std::vector<std::int64_t> data(count + 1, rank.rank * 1000 + turn);
      std::vector<std::unique_ptr<Call>> calls;
      const auto start = [&](const Transfer& t) {
        calls.push_back(std::make_unique<Call>(t, deadline));
        rank.submit(*calls.back());
      };
      std::vector<int> others{0, 1, 2, 3, 4};
      std::shuffle(others.begin(), others.end(), random);
      for (const int other : others)
        start(window.wait(rank.rank, other, static_cast<std::uint32_t>(turn % 2)));
      for (const int to : others)
        start(window.put(rank.rank, to, reinterpret_cast<std::byte*>(data.data()), count * 8,
                         rank.rank * kCount * 8));
      for (const int to : others) start(window.signal(rank.rank, to, static_cast<std::uint32_t>(turn % 2)));
      for (auto& call : calls) rank.wait(*call);
      const auto* const mine = reinterpret_cast<const std::int64_t*>(window.memory[rank.rank]->base());
      for (int from = 0; from < kRanks; ++from)
        for (std::size_t i = 0; i < count; ++i)
          CHECK(mine[from * kCount + i] == from * 1000 + turn, "element ", i, " of rank ", from);
      rank.run(coll::Collective{});
    }
  });
}

TEST("a signal does not overtake a put into a rank of a third node") {
  for (const std::size_t bytes : {8, 80000}) {
    Hosts hosts({0, 1, 2});
    WindowRanks window(hosts, 80000);
    std::vector<std::byte> data(bytes, std::byte{7});
    hosts.wire.hold(0, 2);
    const auto deadline = Deadline::after(std::chrono::seconds(30));
    Call put(window.put(0, 2, data.data(), bytes, 0), deadline), signal(window.signal(0, 1), deadline);
    hosts[0].submit(put), hosts[0].submit(signal);
    Call wait(window.wait(1, 0), deadline);
    hosts[1].submit(wait);
    for (int turn = 0; turn < 10; ++turn) {  // the ranks go on meanwhile
      std::int64_t value = turn, found = 0;
      hosts[0].run(message(true, 1, &value, 1));
      hosts[1].run(message(false, 0, &found, 1));
    }
    CHECK(!wait.operation.finished() && !put.operation.finished(), bytes, " bytes");
    hosts.wire.release();
    hosts[1].wait(wait);
    CHECK(window.memory[2]->base()[bytes - 1] == std::byte{7});
    hosts[0].wait(put), hosts[0].wait(signal);
  }
}

TEST("a put into a closed window goes nowhere, and a wait for its rank ends after the last signal") {
  Hosts hosts({0, 1});
  WindowRanks window(hosts, 80000);
  std::vector<std::byte> data(80000, std::byte{7});
  hosts[0].run(window.signal(0, 1));
  window.windows[0].reset();
  hosts[1].run(window.wait(1, 0));
  const Error error = error_of([&] { hosts[1].run(window.wait(1, 0)); });
  CHECK(error.code() == Errc::peer_left && contains(error, "rank 0 (pid 100, host a) has closed the window"),
        error.what());
  for (const std::size_t bytes : {8, 80000}) hosts[1].run(window.put(1, 0, data.data(), bytes, 0));
  CHECK(window.memory[0]->base()[0] == std::byte{0});
}

TEST("accesses that no rank sends end the group with an error that names the sender") {
  using Access = hosts::RemoteAccesses;
  for (const auto& [what, kind, offset, bytes, channel] :
       std::vector<std::tuple<const char*, Access::Kind, std::uint64_t, std::uint64_t, std::uint32_t>>{
           {"put into a window", Access::Kind::put, 60, 8, 0},
           {"put into a window", Access::Kind::put, ~std::uint64_t{0}, 8, 0},
           {"put into a window", Access::Kind::put, 0, std::uint64_t{1} << 60, 0},
           {"signal of a window", Access::Kind::signal, 0, 0, 1},
           {"access of a window", static_cast<Access::Kind>(9), 0, 0, 0}}) {
    Hosts hosts({0, 1});
    WindowRanks window(hosts, 64);
    Access::Envelope bad;
    bad.window = window.windows[0]->handle().number;
    bad.kind = kind, bad.offset = offset, bad.bytes = bytes, bad.channel = channel;
    MemoryLink link(hosts.wire, 1);
    const auto sent = hosts::send_object(link, 0, static_cast<std::uint32_t>(hosts::Channel::accesses),
                                         std::make_shared<Access::Envelope>(bad));
    const Error error = error_of([&] { hosts[0].run(window.wait(0, 1)); });
    CHECK(contains(error, concat("rank 1 (pid 101, host b) sent a malformed ", what, " in group 0")),
          error.what());
  }
  Hosts hosts({0, 1});
  WindowRanks window(hosts, 64);
  MemoryLink link(hosts.wire, 1);
  Access::Landed none;
  none.puts = 7;
  const auto sent = hosts::send_object(link, 0, static_cast<std::uint32_t>(hosts::Channel::landed),
                                       std::make_shared<Access::Landed>(none));
  std::byte data{1};
  const Error error = error_of([&] { hosts[0].run(window.put(0, 1, &data, 1, 0)); });
  CHECK(contains(error, "sent a malformed acknowledgement of a put in group 0"), error.what());
}

TEST("many operations in flight, waited for in another order") {
  Hosts hosts({0, 0, 1, 1});
  hosts.each([&](Rank& rank) {
    for (int round = 0; round < 30; ++round) {
      const std::size_t sizes[] = {2048, 3, 40000, 1, 300, 200000, 2048, 7};
      std::vector<std::unique_ptr<Memory>> data;
      std::vector<std::unique_ptr<Call>> calls;
      for (int i = 0; i < 8; ++i) {
        data.push_back(std::make_unique<Memory>(rank, sizes[i], i % 2));
        for (std::size_t k = 0; k < sizes[i]; ++k) data[i]->data[k] = value_of(rank.rank, i, k, round);
        calls.push_back(std::make_unique<Call>(all_reduce(data[i]->data, sizes[i]),
                                               Deadline::after(std::chrono::seconds(20))));
        rank.submit(*calls[i]);
      }
      for (int i = 0; i < 8; ++i) rank.wait(*calls[(i * 5 + round) % 8]);
      for (int i = 0; i < 8; ++i)
        for (std::size_t k = 0; k < sizes[i]; ++k) {
          std::int64_t sum = 0;
          for (int r = 0; r < 4; ++r) sum += value_of(r, i, k, round);
          CHECK(data[i]->data[k] == sum, "operation ", i, " element ", k);
        }
    }
  });
}

}  // namespace
