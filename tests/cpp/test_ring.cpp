// The byte ring and the doorbell, two threads against each other.
#include <algorithm>
#include <array>
#include <atomic>
#include <random>
#include <thread>

#include "check.h"
#include "shm/bell.h"
#include "shm/ring.h"

using namespace occl;
using namespace occl::shm;

namespace {

/// The rest of a record's first line.
struct Head {
  std::uint32_t bytes = 0;  // behind the first line
  std::array<std::byte, kLine - kStampBytes - sizeof(bytes)> filling{};
};

std::size_t record_bytes(const Head& head) { return kLine + whole_lines(head.bytes); }

void publish(RingWriter& writer, const Head& head, std::size_t bytes) {
  writer.publish<Head>(bytes, [&head](Head& first) { first = head; });
}

}  // namespace

TEST("a reader gets the records that were written, over many turns of the ring") {
  constexpr std::size_t kCapacity = 512, kTotal = 200000;
  alignas(kLine) std::byte data[kCapacity] = {};
  std::atomic<std::uint64_t> tail = 0;
  const auto byte_at = [](std::size_t i) { return static_cast<std::byte>(i * 7); };
  check::in_threads(2, [&](int side) {
    std::mt19937 random(side);
    std::byte buffer[kCapacity];
    Head head;
    if (side == 0) {
      RingWriter writer(data, kCapacity, &tail);
      for (std::size_t at = 0; at < kTotal;) {
        head.bytes = static_cast<std::uint32_t>(std::min<std::size_t>(random() % 380, kTotal - at));
        for (std::size_t i = 0; i < head.bytes; ++i) buffer[i] = byte_at(at + i);
        head.filling.fill(byte_at(at));
        while (!writer.has_room(record_bytes(head))) std::this_thread::yield();
        writer.put({buffer, head.bytes});
        publish(writer, head, record_bytes(head));
        at += head.bytes;
      }
    } else {
      RingReader reader(data, kCapacity, &tail);
      for (std::size_t at = 0; at < kTotal;) {
        if (!reader.readable()) {
          std::this_thread::yield();
          continue;
        }
        reader.peek_first(head);
        CHECK(head.bytes < 380);
        for (const std::byte b : head.filling) CHECK(b == byte_at(at), "the first line at ", at);
        reader.peek({buffer, head.bytes});
        for (std::size_t i = 0; i < head.bytes; ++i) CHECK(buffer[i] == byte_at(at + i), "byte ", at + i);
        reader.release(record_bytes(head));
        at += head.bytes;
      }
    }
  });
}

TEST("a full ring has no room until the reader has released") {
  alignas(kLine) std::byte data[4 * kLine] = {};
  std::atomic<std::uint64_t> tail = 0;
  RingWriter writer(data, sizeof(data), &tail);
  RingReader reader(data, sizeof(data), &tail);
  CHECK(writer.has_room(4 * kLine) && !writer.has_room(5 * kLine));
  const std::byte bytes[3 * kLine] = {};
  writer.put(bytes);
  CHECK(!reader.readable(), "not published");
  publish(writer, Head{}, 4 * kLine);
  CHECK(reader.readable() && !writer.has_room(kLine));
  reader.release(4 * kLine);
  CHECK(!reader.readable() && writer.has_room(4 * kLine) && !writer.has_room(5 * kLine));
}

TEST("what an earlier turn left is not taken for a record") {
  alignas(kLine) std::byte data[4 * kLine] = {};
  std::atomic<std::uint64_t> tail = 0;
  RingWriter writer(data, sizeof(data), &tail);
  RingReader reader(data, sizeof(data), &tail);
  // A payload that holds, in each line, the stamp that this line will have as the beginning of a record one
  // turn later.
  std::array<std::uint64_t, 2 * kLine / 8> stamps{};
  stamps[0] = 5 * kLine + 1, stamps[kLine / 8] = 6 * kLine + 1;
  CHECK(writer.has_room(3 * kLine));
  writer.put(std::as_bytes(std::span(stamps)));
  publish(writer, Head{}, 3 * kLine);
  reader.release(3 * kLine);
  for (int i = 0; i < 4; ++i) {
    CHECK(!reader.readable() && writer.has_room(kLine), "record ", i);
    publish(writer, Head{}, kLine);
    CHECK(reader.readable());
    reader.release(kLine);
  }
}

TEST("clearing ahead of small records spares those that were not read") {
  constexpr std::uint64_t kLines = 16;
  alignas(kLine) std::byte data[kLines * kLine] = {};
  std::atomic<std::uint64_t> tail = 0;
  RingWriter writer(data, sizeof(data), &tail);
  RingReader reader(data, sizeof(data), &tail);
  Head head;
  std::uint32_t written = 0, read = 0;
  // The reader lags behind by more and more records, up to a full ring.
  for (std::uint32_t lag = 1; lag <= kLines; ++lag) {
    for (int turn = 0; turn < 40; ++turn) {
      head.bytes = written++;
      CHECK(writer.has_room(kLine));
      publish(writer, head, kLine);
      if (written - read < lag) continue;
      CHECK(reader.readable(), "record ", read);
      reader.peek_first(head);
      CHECK(head.bytes == read++);
      reader.release(kLine);
    }
  }
}

TEST("no ring of a bell is lost: a sleeper sees what was published before it") {
  FutexWord word = 0;
  Bell::Sleepers sleepers = 0;
  std::atomic<int> stamp = 0, answer = 0;
  const Bell bell(&word, &sleepers);
  constexpr int kRounds = 20000;
  // With a sleep of a minute a lost ring does not go unnoticed.
  check::in_threads(2, [&](int side) {
    for (int round = 1; round <= kRounds; ++round) {
      if (side == 0) {
        stamp.store(round, std::memory_order_seq_cst);
        bell.ring();
        while (answer.load() < round) std::this_thread::yield();
      } else {
        while (stamp.load(std::memory_order_seq_cst) < round) {
          const Bell::Sleep sleep(bell);
          if (stamp.load(std::memory_order_seq_cst) < round) sleep.wait(std::chrono::minutes(1));
        }
        answer.store(round);
      }
    }
  });
  CHECK(sleepers == 0);
}

TEST("a thread that sleeps for one process is woken by that one, and by a ring for any") {
  FutexWord word = 0;
  Bell::Sleepers sleepers = 0;
  const Bell bell(&word, &sleepers);
  const auto wakes = [&](Bell::Process from) {
    const auto before = word.load();
    bell.ring_after_fence(from);
    CHECK(bell.seen_asleep(from) == (word.load() != before));
    return word.load() != before;
  };
  const Bell::Process one = Bell::process(0x1000000000000006), other = Bell::process(0x2000000000000008);
  CHECK(one != other && one != Bell::kAny && Bell::process(0) != Bell::kAny);
  {
    const Bell::Sleep sleep(bell, one);
    CHECK(wakes(one) && wakes(Bell::kAny) && !wakes(other));
    {
      const Bell::Sleep second(bell, ~Bell::Process{0});
      CHECK(wakes(one) && wakes(other));
    }
    CHECK(wakes(one) && !wakes(other));
  }
  CHECK(!wakes(one) && !wakes(Bell::kAny));
  const Bell::Sleep sleep(bell);
  CHECK(wakes(one) && wakes(other));
}
