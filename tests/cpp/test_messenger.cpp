// Point-to-point messages: every way that bytes travel, in any order of posting.
#include <random>
#include <set>
#include <tuple>

#include "check.h"
#include "cluster.h"

using namespace occl;
using namespace occl::coll;
using occl::test::all_reduce;
using occl::test::Call;
using occl::test::Cluster;
using occl::test::contains;
using occl::test::error_of;
using occl::test::Rank;

namespace {

constexpr auto kPatience = std::chrono::seconds(60);

std::byte pattern(int from, std::uint32_t tag, std::size_t i) {
  return static_cast<std::byte>(from * 37 + tag * 11 + i * 7 + (i >> 8));
}

struct Message {
  Message(Rank& rank, std::size_t bytes, bool mapped)
      : heap(mapped ? 0 : bytes + 1), data(heap.data()), size(bytes) {
    if (!mapped) return;
    region = std::make_shared<shm::Region>(shm::Region::create("test", bytes + 1, shm::Access::read_write));
    region->commit(0, bytes + 1);
    rank.regions->add(region);
    data = region->base();
  }
  void fill(int from, std::uint32_t tag) {
    for (std::size_t i = 0; i < size; ++i) data[i] = pattern(from, tag, i);
  }
  void check(int from, std::uint32_t tag) const {
    for (std::size_t i = 0; i < size; ++i)
      CHECK(data[i] == pattern(from, tag, i), "byte ", i, " of ", size, " from ", from, " tag ", tag);
  }
  std::vector<std::byte> heap;
  std::shared_ptr<shm::Region> region;
  std::byte* data;
  std::size_t size;
};

Transfer transfer(const Message& m, bool send, int peer, std::uint32_t tag) {
  return {send, peer, tag, DType::u8, {m.data, m.size}};
}

}  // namespace

TEST("messages of every size arrive, mapped or not, around every threshold") {
  Cluster cluster(2);
  const std::size_t ring = ring_bytes_by_ranks(2), eager = Tuning{}.eager_bytes,
                    unasked = Tuning{}.unasked_bytes;
  cluster.each([&](Rank& rank) {
    std::uint32_t tag = 0;
    for (const std::size_t size :
         {std::size_t{0}, std::size_t{1}, std::size_t{63}, std::size_t{64}, std::size_t{65}, kInsideBytes,
          kInsideBytes + 1, eager - 1, eager, eager + 1, 2 * eager + 1, unasked - 1, unasked, unasked + 1,
          ring - 1, ring, ring + 1, 3 * ring + 17})
      for (bool mapped : {false, true}) {
        Message m(rank, size, mapped);
        ++tag;
        if (rank.rank == 0) m.fill(0, tag);
        rank.run(transfer(m, rank.rank == 0, 1 - rank.rank, tag));
        m.check(0, tag);
      }
  });
}

TEST("messages arrive whatever may travel at once and unasked") {
  for (const std::uint32_t eager : {0u, 100u})
    for (const std::uint32_t unasked : {0u, 50u, 3000u, kMaxUnaskedBytes}) {
      Tuning tuning;
      tuning.eager_bytes = eager, tuning.unasked_bytes = unasked;
      Cluster cluster(2, tuning);
      cluster.each([](Rank& rank) {
        for (const std::size_t size : {1u, 100u, 101u, 3000u, 20000u, 600000u}) {
          Message m(rank, size, false);
          if (rank.rank == 0) m.fill(0, 1);
          rank.run(transfer(m, rank.rank == 0, 1 - rank.rank, 1));
          m.check(0, 1);
        }
      });
    }
}

TEST("large messages cross in both directions at once, between ranks that are near and far") {
  for (const auto& [sender_past_caches, receiver_past_caches] :
       {std::pair{false, false}, {false, true}, {true, false}, {true, true}}) {
    Tuning tuning;
    tuning.far_ns = sender_past_caches ? 0 : kMaxFarNs;
    if (receiver_past_caches) tuning.streaming_bytes = 0;
    Cluster cluster(2, tuning);
    cluster.each([](Rank& rank) {
      for (bool mapped : {false, true}) {
        Message out(rank, 1000000, mapped), in(rank, 1000000, mapped);
        out.fill(rank.rank, 5);
        Call send(transfer(out, true, 1 - rank.rank, 5), Deadline::after(kPatience));
        Call receive(transfer(in, false, 1 - rank.rank, 5), Deadline::after(kPatience));
        rank.submit(send);
        rank.submit(receive);
        rank.wait(send);
        rank.wait(receive);
        in.check(1 - rank.rank, 5);
      }
    });
  }
}

TEST("long messages between mapped buffers are copied from both ends, around every threshold") {
  for (const std::size_t both : {std::size_t{0}, std::size_t{1} << 14, std::size_t{1} << 40}) {
    Tuning tuning;
    tuning.both_ends_bytes = both;
    Cluster cluster(3, tuning);
    cluster.each([](Rank& rank) {
      const std::size_t eager = Tuning{}.eager_bytes, piece = std::size_t{1} << 12;
      std::vector<std::unique_ptr<Message>> ins, outs;
      std::vector<std::unique_ptr<Call>> calls;
      std::uint32_t tag = 0;
      // Several at once between each two, to itself too; sends first on one, receives first on the others.
      for (const std::size_t size : {eager + 1, 4 * piece - 1, 4 * piece, 4 * piece + 1, 7 * piece + 63,
                                     std::size_t{3} << 20, (std::size_t{17} << 20) + 5}) {
        ++tag;
        for (int other = 0; other < rank.size; ++other)
          for (const bool send : {rank.rank == 0, rank.rank != 0}) {
            if (size > 4 << 20 && other == rank.rank) continue;
            auto& list = send ? outs : ins;
            list.push_back(std::make_unique<Message>(rank, size, true));
            if (send) list.back()->fill(rank.rank, tag);
            calls.push_back(
                std::make_unique<Call>(transfer(*list.back(), send, other, tag), Deadline::after(kPatience)));
            rank.submit(*calls.back());
          }
      }
      for (auto& call : calls) {
        rank.wait(*call);
        const Transfer& t = call->operation.transfer();
        for (const auto& in : ins)
          if (in->data == t.buffer.data) in->check(t.peer, t.tag);
      }
    });
  }
}

TEST("messages that go to and fro use cells again, and those that only go run out of them") {
  Tuning tuning;
  tuning.ring_bytes = kLeastRingBytes;  // eight cells of each rank for each other
  for (const int size : {2, 3}) {
    Cluster cluster(size, tuning);
    cluster.each([&](Rank& rank) {
      std::mt19937 random(7);  // the same on all ranks
      for (std::uint32_t round = 0; round < 400; ++round) {
        const int from = static_cast<int>(random() % size), to = (from + 1 + random() % (size - 1)) % size;
        const bool one_way = round / 100 % 2;
        const std::size_t bytes = 1 + random() % (random() % 4 ? 9000 : 40000);
        for (const auto& [source, target] : {std::pair{from, to}, std::pair{to, from}}) {
          Message message(rank, bytes, false);
          if (one_way && source > target) continue;
          if (rank.rank == source) {
            message.fill(source, round);
            rank.run(transfer(message, true, target, 1));
          } else if (rank.rank == target) {
            rank.run(transfer(message, false, source, 1));
            message.check(source, round);
          }
        }
      }
    });
  }
}

TEST("a thousand messages match their receives in any order of posting, by tag and source") {
  for (const int size : {2, 3}) {
    Cluster cluster(size);
    cluster.each([&](Rank& rank) {
      std::mt19937 random(rank.rank + 100);
      constexpr int kTags = 120;
      std::vector<std::unique_ptr<Message>> messages;
      std::vector<std::unique_ptr<Call>> calls;
      std::vector<std::tuple<Message*, int, std::uint32_t>> expected;
      std::vector<Transfer> transfers;
      for (int other = 0; other < size; ++other)  // to itself too
        for (std::uint32_t tag = 0; tag < kTags; ++tag) {
          const std::size_t bytes = tag % 40 == 0 ? 20000 + tag : tag * 3;
          messages.push_back(std::make_unique<Message>(rank, bytes, tag % 80 == 0));
          messages.back()->fill(rank.rank, tag);
          transfers.push_back(transfer(*messages.back(), true, other, tag));
          messages.push_back(std::make_unique<Message>(rank, bytes, tag % 3 == 0));
          expected.emplace_back(messages.back().get(), other, tag);
          transfers.push_back(transfer(*messages.back(), false, other, tag));
        }
      std::shuffle(transfers.begin(), transfers.end(), random);
      for (const auto& t : transfers) {
        calls.push_back(std::make_unique<Call>(t, Deadline::after(kPatience)));
        rank.submit(*calls.back());
      }
      std::shuffle(calls.begin(), calls.end(), random);
      for (auto& call : calls) rank.wait(*call);
      for (const auto& [message, from, tag] : expected) message->check(from, tag);
    });
  }
}

TEST("messages with the same tag arrive in the order in which they were sent") {
  Cluster cluster(2);
  cluster.each([](Rank& rank) {
    std::vector<std::uint8_t> values(500);
    std::vector<std::unique_ptr<Call>> calls;
    const auto message = [&](std::uint8_t& value, std::uint32_t tag) {
      return Transfer{
          rank.rank == 0, 1 - rank.rank, tag, DType::u8, {reinterpret_cast<std::byte*>(&value), 1}};
    };
    std::uint8_t last = 0;
    if (rank.rank == 1) rank.run(message(last, 8));  // sent last: the others have arrived before
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = rank.rank == 0 ? i % 251 : 0;
      calls.push_back(std::make_unique<Call>(message(values[i], 7), Deadline::after(kPatience)));
      rank.submit(*calls.back());
    }
    if (rank.rank == 0) rank.run(message(last, 8));
    for (auto& call : calls) rank.wait(*call);
    for (std::size_t i = 0; i < values.size(); ++i) CHECK(values[i] == i % 251);
  });
}

TEST("a receive from any rank says where its message came from") {
  Cluster cluster(3);
  cluster.each([](Rank& rank) {
    Message m(rank, 100, false);
    if (rank.rank != 0) {
      m.fill(rank.rank, 1);
      return rank.run(transfer(m, true, 0, 1));
    }
    std::set<int> sources;
    for (int i = 0; i < 2; ++i) {
      Call call(transfer(m, false, Transfer::kAnyRank, 1), Deadline::after(kPatience));
      rank.submit(call);
      rank.wait(call);
      m.check(call.operation.source(), 1);
      sources.insert(call.operation.source());
    }
    CHECK((sources == std::set<int>{1, 2}));
  });
}

TEST("a message that does not fit is an error on both sides that names both") {
  for (const std::size_t bytes : {10u, 20000u, 100000u}) {
    Cluster cluster(2);
    cluster.each([bytes](Rank& rank) {
      rank.patience = std::chrono::seconds(10);
      const bool sends = rank.rank == 0, small = bytes == 10;
      Message m(rank, bytes + rank.rank, false), other(rank, 10, false);
      const auto misfit = transfer(m, sends, 1 - rank.rank, 3);
      // The small one has left before anybody could know: then the sender's next message ends the group.
      if (sends && small) rank.run(misfit);
      const Error error = error_of([&] { rank.run(sends && small ? transfer(other, false, 1, 5) : misfit); });
      CHECK(error.code() == Errc::mismatch &&
                contains(error, concat("rank 0 sent uint8[", bytes,
                                       "] with tag 3 where rank 1 called recv(uint8[", bytes + 1, "])")),
            error.what());
      if (sends) other.fill(0, 9);
      const auto next = [&] { rank.run(transfer(other, sends, 1 - rank.rank, 9)); };
      if (small) {
        CHECK(contains(error_of(next), "rank 0 sent uint8[10] with tag 3"));
      } else {
        next();
        other.check(0, 9);
      }
    });
  }
}

TEST("a rank that only sends hears of a small message that did not fit") {
  Cluster cluster(2);
  Rank &zero = cluster[0], &one = cluster[1];
  Message small(zero, 8, false), other(one, 9, false);
  small.fill(0, 3);
  Call receive(transfer(other, false, 0, 3), Deadline::after(kPatience));
  one.submit(receive);
  zero.run(transfer(small, true, 1, 3));
  // Rank 1 tells rank 0, and no message follows that rank 0 would have to take.
  CHECK(contains(error_of([&] { one.wait(receive); }), "rank 0 sent uint8[8] with tag 3"));
  while (!receive.releases) std::this_thread::yield();
  CHECK(
      contains(error_of([&] { zero.run(transfer(small, true, 1, 3)); }), "rank 0 sent uint8[8] with tag 3"));
}

TEST(
    "what is on the way of messages that did not fit is forgotten with its last byte, or when its sender "
    "stops") {
  RefusedData refused;
  refused.add(1, 0);
  refused.add(2, 100);
  refused.add(3, 50);
  CHECK(refused.size() == 2 && !refused.take(1, 1) && !refused.take(3, 51));
  CHECK(refused.take(2, 60) && refused.take(2, 40) && refused.size() == 1);
  refused.end(2);
  refused.end(3);
  CHECK(refused.size() == 0 && !refused.take(3, 1));
}

TEST("however many messages do not fit, nothing of them is kept") {
  Tuning tuning;
  tuning.ring_bytes = 1, tuning.unasked_bytes = kMaxUnaskedBytes;  // the least, and the most
  Cluster cluster(2, tuning);  // what may be sent unasked fills the ring: a refusal stops the rest
  cluster.each([](Rank& rank) {
    const bool sends = rank.rank == 0;
    for (int i = 0; i < 10; ++i)
      for (const bool mapped : {false, true}) {
        Message m(rank, 1000000 + rank.rank, mapped), good(rank, 1000000, mapped);
        const Error error = error_of([&] { rank.run(transfer(m, sends, 1 - rank.rank, 3)); });
        CHECK(error.code() == Errc::mismatch, error.what());
        if (sends) good.fill(0, 4);
        rank.run(transfer(good, sends, 1 - rank.rank, 4));
        good.check(0, 4);
      }
    CHECK(rank.group->messenger().refused() == 0);
  });
}

TEST("a rank that waits in vain hears that its small message did not fit") {
  for (const bool leaves : {true, false}) {
    Cluster cluster(2);
    std::atomic<bool> refused = false;
    cluster.each([&](Rank& rank) {
      Message m(rank, 8 + rank.rank, false);
      std::int64_t value = 1;
      if (rank.rank == 0) {
        rank.run(transfer(m, true, 1, 3));  // it has left before anybody could know
        while (!refused) std::this_thread::yield();
        const auto patience = leaves ? kPatience : std::chrono::milliseconds(100);
        const Error error = error_of([&] { rank.run(all_reduce(&value, 1), Deadline::after(patience)); });
        CHECK(error.code() == Errc::mismatch &&
                  contains(error, "rank 0 sent uint8[8] with tag 3 where rank 1 called recv(uint8[9])"),
              error.what());
      } else {
        CHECK(error_of([&] { rank.run(transfer(m, false, 0, 3)); }).code() == Errc::mismatch);
        refused = true;
        if (leaves) rank.group->close();
      }
    });
  }
}

TEST("an answer for which there is no room is given later, by a rank that has nothing else to do") {
  const std::size_t kRecords = ring_bytes_by_ranks(2) / kLine, kPayload = kInsideBytes;  // one line for each
  Cluster cluster(2);
  Rank &zero = cluster[0], &one = cluster[1];
  Message small(zero, kPayload, false), long_one(zero, 100000, true), arrived(one, 100000, true);
  Message filling(one, kPayload, false);
  filling.fill(1, 1);
  long_one.fill(0, 2);
  Call send(transfer(long_one, true, 1, 2), Deadline::after(kPatience));
  zero.group->submit(send.operation);
  zero.group->drive(false);  // once: then nothing takes what rank 1 writes
  for (std::size_t i = 0; i < kRecords; ++i) one.run(transfer(filling, true, 0, 1));
  one.run(transfer(arrived, false, 0, 2));  // it has the message, and cannot say so
  arrived.check(0, 2);
  CHECK(!send.operation.finished());
  for (std::size_t i = 0; i < kRecords; ++i) {
    zero.run(transfer(small, false, 1, 1));
    small.check(1, 1);
  }
  zero.wait(send);
}

TEST("what a message sends unasked is kept until its receive comes, in pieces as they arrive") {
  Cluster cluster(2);
  Rank &zero = cluster[0], &one = cluster[1];
  const std::size_t unasked = Tuning{}.unasked_bytes;
  std::vector<std::unique_ptr<Message>> sent, arrived;
  std::vector<std::unique_ptr<Call>> sends;
  // More than the ring holds: the last ones begin when rank 1 has emptied it.
  for (std::uint32_t tag = 0; tag < 8; ++tag) {
    sent.push_back(std::make_unique<Message>(zero, unasked + (tag % 2) * 10000, false));
    sent.back()->fill(0, tag);
    sends.push_back(std::make_unique<Call>(transfer(*sent.back(), true, 1, tag), Deadline::after(kPatience)));
    zero.group->submit(sends.back()->operation);
    zero.group->drive(false);
  }
  Message none(one, 1, false);
  Call other(transfer(none, false, 0, 99), Deadline::after(kPatience));  // so that rank 1 looks
  one.group->submit(other.operation);
  for (int i = 0; i < 20; ++i) one.group->drive(false), zero.group->drive(false);
  for (const auto& send : sends) CHECK(!send->operation.finished(), "no receive has come");
  std::vector<std::unique_ptr<Call>> receives;
  for (std::uint32_t tag = 8; tag-- > 0;) {
    arrived.push_back(std::make_unique<Message>(one, sent[tag]->size, false));
    receives.push_back(
        std::make_unique<Call>(transfer(*arrived.back(), false, 0, tag), Deadline::after(kPatience)));
    one.group->submit(receives.back()->operation);
  }
  for (int i = 0; i < 20; ++i) one.group->drive(false), zero.group->drive(false);
  for (auto& send : sends) zero.wait(*send);
  for (auto& receive : receives) one.wait(*receive);
  for (std::uint32_t tag = 0; tag < 8; ++tag) arrived[7 - tag]->check(0, tag);
  Message last(zero, 1, false);
  last.fill(0, 99);
  zero.run(transfer(last, true, 1, 99));
  one.wait(other);
}

TEST("collectives and messages of one group do not wait for each other") {
  Cluster cluster(2);
  cluster.each([](Rank& rank) {
    std::int64_t value = 1;
    Collective c;
    c.kind = Kind::all_reduce, c.dtype = DType::i64, c.op = ReduceOp::sum;
    c.in = c.out = {reinterpret_cast<std::byte*>(&value), 1, 1, nullptr};
    c.largest = c.volume = 1;
    Message m(rank, 50000, false);
    if (rank.rank == 0) m.fill(0, 2);
    Call collective(c, Deadline::after(kPatience));
    Call message(transfer(m, rank.rank == 0, 1 - rank.rank, 2), Deadline::after(kPatience));
    // Rank 0 waits for the message before it takes part in the collective that rank 1 has begun.
    if (rank.rank == 1) rank.submit(collective);
    rank.submit(message);
    rank.wait(message);
    if (rank.rank == 0) rank.submit(collective);
    rank.wait(collective);
    m.check(0, 2);
    CHECK(value == 2);
  });
}
