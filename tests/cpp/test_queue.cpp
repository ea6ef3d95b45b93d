// The queues behind streams and the marks behind events, with threads against each other.
#include "memory/queue.h"

#include <atomic>
#include <memory>
#include <stdexcept>
#include <vector>

#include "check.h"

using namespace occl;
using namespace occl::memory;

namespace {

/// Queues are never destroyed. The list keeps leak checkers from reporting them.
Queue& new_queue(
    std::function<void()> prepare = [] {}, std::chrono::milliseconds idle = std::chrono::seconds(5)) {
  static auto* all = new std::vector<Queue*>;
  all->push_back(new Queue(std::move(prepare), idle));
  return *all->back();
}

}  // namespace

TEST("tasks of many threads run one at a time, each thread's in its order") {
  constexpr int kThreads = 4, kTasks = 2000;
  Queue& queue = new_queue();
  std::vector<std::vector<int>> seen(kThreads);  // unguarded: the queue has one thread
  check::in_threads(kThreads, [&](int thread) {
    for (int i = 0; i < kTasks; ++i)
      queue.push([&seen, thread, i] { seen[static_cast<std::size_t>(thread)].push_back(i); });
    queue.wait();
    CHECK(seen[static_cast<std::size_t>(thread)].size() == kTasks, "waited for too little");
  });
  CHECK(queue.wait() && queue.idle());
  for (const auto& numbers : seen)
    for (int i = 0; i < kTasks; ++i) CHECK(numbers[static_cast<std::size_t>(i)] == i);
}

TEST("a queue is idle only when the last task has finished and released what it held") {
  Queue& queue = new_queue();
  std::atomic<bool> idle_before_the_end = false;
  struct Held {
    Queue& queue;
    std::atomic<bool>& idle;
    Mark& gone;
    ~Held() {
      idle = queue.idle();
      gone.pass();
    }
  };
  Mark open, gone;
  queue.push([&open] { open.wait(); });
  queue.push([held = std::shared_ptr<Held>(new Held{queue, idle_before_the_end, gone})] { CHECK(held); });
  CHECK(!queue.idle());
  open.pass();
  queue.wait();
  queue.rethrow();
  gone.wait();
  CHECK(queue.idle() && !idle_before_the_end);
}

TEST("a wait has an end where one is given") {
  Queue& queue = new_queue();
  Mark open;
  queue.push([&open] { open.wait(); });
  CHECK(!queue.wait(Queue::Clock::now() + std::chrono::milliseconds(5)));
  open.pass();
  CHECK(queue.wait(Queue::Clock::now() + std::chrono::minutes(1)));
}

TEST("the first exception is kept, thrown once, and later tasks run") {
  Queue& queue = new_queue();
  int ran = 0;
  queue.push([] { throw std::runtime_error("first"); });
  queue.push([] { throw std::runtime_error("second"); });
  queue.push([&ran] { ++ran; });
  queue.wait();
  try {
    queue.rethrow();
    CHECK(false, "nothing was thrown");
  } catch (const std::runtime_error& error) {
    CHECK(std::string_view(error.what()) == "first");
  }
  queue.rethrow();
  CHECK(ran == 1);
}

TEST("a thread that ended for want of work is followed by another") {
  std::atomic<int> threads = 0;
  Queue& queue = new_queue([&threads] { ++threads; }, std::chrono::milliseconds(0));
  constexpr int kTasks = 500;
  int done = 0;
  for (int i = 0; i < kTasks; ++i) {
    queue.push([&done] { ++done; });
    if (i % 3 == 0) queue.wait();
    if (i % 50 == 0)
      std::this_thread::sleep_for(std::chrono::milliseconds(2));  // long enough to end; not needed
  }
  queue.wait();
  CHECK(done == kTasks && threads >= 1);
}

TEST("queues that wait for each other's marks run in the order these give") {
  Queue &first = new_queue(), &second = new_queue();
  int value = 0;  // unguarded: the marks order the accesses
  for (int round = 0; round < 1000; ++round) {
    auto there = std::make_shared<Mark>(), back = std::make_shared<Mark>();
    first.push([&value, there, round] {
      CHECK(value == 2 * round);
      ++value;
      there->pass();
    });
    second.push([&value, there, back, round] {
      there->wait();
      CHECK(value == 2 * round + 1);
      ++value;
      back->pass();
    });
    first.push([back] { back->wait(); });
  }
  first.wait();
  second.wait();
  first.rethrow();
  second.rethrow();
  CHECK(value == 2000);
}

TEST("a mark is passed once for all waiting threads, and knows when") {
  Mark mark;
  const auto before = Queue::Clock::now();
  CHECK(!mark.passed());
  check::in_threads(4, [&](int thread) {
    if (thread == 0) return mark.pass();
    mark.wait();
    CHECK(mark.passed());
  });
  CHECK(mark.at() >= before && mark.at() <= Queue::Clock::now());
}

TEST("a mark keeps the error that it was passed with first, and a queue forgets one that is known") {
  Queue& queue = new_queue();
  queue.push([] { throw std::runtime_error("of a task"); });
  queue.wait();
  const std::exception_ptr error = queue.error();
  CHECK(error && queue.error() == error);  // asking does not take it
  Mark mark;
  mark.pass(error);
  mark.pass();
  CHECK(mark.error() == error);
  queue.forget(std::make_exception_ptr(std::runtime_error("another")));
  CHECK(queue.error() == error);
  queue.forget(error);
  queue.rethrow();
  CHECK(!queue.error());
}
