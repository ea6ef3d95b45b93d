// modes: explore
// The explorer itself: it finds what the memory model allows, and nothing else.
#include "check.h"
#include "explore/explore.h"

using explore::Atomic;
using explore::exhaust;
using explore::Thread;

namespace {

/// Both threads write theirs and read the other's. May both miss the other's write?
bool both_may_miss(std::memory_order store, std::memory_order load) {
  bool found = false;
  const auto result = exhaust([&] {
    Atomic<int> x = 0, y = 0;
    int from_x = 0, from_y = 0;
    Thread a([&] { x.store(1, store), from_y = y.load(load); });
    Thread b([&] { y.store(1, store), from_x = x.load(load); });
    a.join(), b.join();
    found |= from_x == 0 && from_y == 0;
  });
  CHECK(result.failure.empty() && result.runs > 3, result.failure);
  return found;
}

/// Data, and a flag that says that it is there. Is the data safe?
std::string message_passing(std::memory_order store, std::memory_order load) {
  return exhaust([&] {
           explore::Plain<int> data = 0;
           Atomic<int> flag = 0;
           Thread a([&] { data.set(7), flag.store(1, store); });
           Thread b([&] {
             if (flag.load(load)) CHECK(data.get() == 7);
           });
           a.join(), b.join();
         })
      .failure;
}

}  // namespace

TEST("a store may be overtaken by a later load, unless both are seq_cst") {
  CHECK(!both_may_miss(std::memory_order_seq_cst, std::memory_order_seq_cst));
  CHECK(both_may_miss(std::memory_order_release, std::memory_order_seq_cst));
  CHECK(both_may_miss(std::memory_order_seq_cst, std::memory_order_acquire));
  CHECK(both_may_miss(std::memory_order_release, std::memory_order_acquire));
}

TEST("data behind a flag is safe with release and acquire, and only then") {
  CHECK(message_passing(std::memory_order_release, std::memory_order_acquire).empty());
  CHECK(message_passing(std::memory_order_relaxed, std::memory_order_acquire).starts_with("data race"));
  CHECK(message_passing(std::memory_order_release, std::memory_order_relaxed).starts_with("data race"));
}

TEST("no thread sees an older value after a newer one") {
  const auto result = exhaust([] {
    Atomic<int> x = 0;
    Thread writer([&] { x.store(1, std::memory_order_relaxed), x.store(2, std::memory_order_relaxed); });
    const int first = x.load(std::memory_order_relaxed), second = x.load(std::memory_order_relaxed);
    CHECK(first <= second);
    writer.join();
  });
  CHECK(result.failure.empty() && result.runs > 5, result.failure, " after ", result.runs);
}

TEST("a mutex keeps threads apart, and additions are never lost") {
  const auto result = exhaust([] {
    explore::Mutex mutex;
    explore::Plain<int> both = 0;
    Atomic<int> count = 0;
    const auto add = [&] {
      std::lock_guard lock(mutex);
      both.set(both.get() + 1);
      count.fetch_add(1, std::memory_order_relaxed);
    };
    Thread other(add);
    add();
    other.join();
    CHECK(both.get() == 2 && count == 2);
  });
  CHECK(result.failure.empty() && result.runs > 3, result.failure);
}

TEST("a missed wake-up is found, by trying everything and at random") {
  const auto forgetful = [] {
    Atomic<std::uint32_t> word = 0;
    Atomic<int> flag = 0;
    Thread sleeper([&] {
      while (!flag.load()) {  // looks at the flag before it looks at the word
        const auto seen = word.load();
        explore::sleep_while_equal(word, seen);
      }
    });
    flag.store(1);
    word.fetch_add(1);
    explore::wake_sleepers(&word);
    sleeper.join();
  };
  CHECK(exhaust(forgetful).failure.starts_with("a sleeper missed its wake-up"));
  CHECK(explore::sample(forgetful, 2000, 1).failure.starts_with("a sleeper missed its wake-up"));
}
