// The byte ring and the doorbell, two threads against each other.
#include <random>

#include "check.h"
#include "shm/bell.h"
#include "shm/ring.h"

using namespace occl;
using namespace occl::shm;

TEST("a reader gets the bytes that were written, over many turns of the ring") {
  constexpr std::size_t kCapacity = 256;
  std::vector<std::byte> data(kCapacity);
  std::atomic<std::uint64_t> head = 0, tail = 0;
  constexpr std::size_t kTotal = 200000;
  check::in_threads(2, [&](int side) {
    std::mt19937 random(side);
    std::byte buffer[kCapacity];
    if (side == 0) {
      RingWriter writer(data.data(), kCapacity, &head, &tail);
      for (std::size_t at = 0; at < kTotal;) {
        const std::size_t n = std::min<std::size_t>(1 + random() % 200, kTotal - at);
        for (std::size_t i = 0; i < n; ++i) buffer[i] = static_cast<std::byte>((at + i) * 7);
        while (!writer.has_room(n)) std::this_thread::yield();
        const std::size_t first = n / 3;  // put in two pieces, published as one
        writer.put({buffer, first});
        writer.put({buffer + first, n - first});
        writer.publish();
        at += n;
      }
    } else {
      RingReader reader(data.data(), kCapacity, &head, &tail);
      for (std::size_t at = 0; at < kTotal;) {
        const std::size_t n = std::min<std::size_t>(reader.readable(), 1 + random() % 100);
        if (n == 0) {
          std::this_thread::yield();
          continue;
        }
        reader.peek({buffer, n});
        for (std::size_t i = 0; i < n; ++i)
          CHECK(buffer[i] == static_cast<std::byte>((at + i) * 7), "byte ", at + i);
        reader.release(n);
        at += n;
      }
    }
  });
}

TEST("a full ring has no room until the reader has released") {
  std::byte data[64];
  std::atomic<std::uint64_t> head = 0, tail = 0;
  RingWriter writer(data, 64, &head, &tail);
  RingReader reader(data, 64, &head, &tail);
  const std::byte bytes[64] = {};
  CHECK(writer.has_room(64) && !writer.has_room(65));
  writer.put(bytes);
  CHECK(reader.readable() == 0, "not published");
  writer.publish();
  CHECK(reader.readable() == 64 && !writer.has_room(1));
  reader.release(10);
  CHECK(writer.has_room(10) && !writer.has_room(11));
}

TEST("no ring of a bell is lost: a sleeper sees what was published before it") {
  FutexWord word = 0;
  std::atomic<std::uint32_t> sleepers = 0;
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
