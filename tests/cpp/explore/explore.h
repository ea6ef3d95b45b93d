// Runs threads one at a time, and chooses at every access to an atomic, a mutex or a condition which thread
// goes on and, for a load, which of the values that the memory model allows it sees. Either all choices with
// few preemptions (`exhaust`), or random ones (`sample`).
//
// The memory model: every atomic has a history of values; a thread has a view, the oldest value of each
// atomic that it may still see. A release store hands the view on, an acquire load takes it over. A seq_cst
// load sees nothing older than what any seq_cst access of the same atomic has seen or stored before. (As in
// C++20, without what needs several unordered writers of one atomic, or loads that overtake later stores of
// the same thread.)
//
// A sleeper whose time would have to run out before anybody goes on has missed its wake-up: that is a
// failure.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace explore {

struct Result {
  long runs = 0;
  long steps = 0;       // choices of a thread, in all runs
  std::string failure;  // of the first run that failed, and how to see it again; empty if none did
};

struct Options {            // of `exhaust`, for one run
  int preemptions = 2;      // a thread stops although it could go on
  int old_values = 1000;    // a load does not see the newest value
  long most_runs = 300000;  // reaching it is a failure
};

/// Runs `body` with every sequence of choices. It may start Threads, which end before it returns, and throws
/// if something is wrong.
Result exhaust(const std::function<void()>& body, Options options = {});

/// Runs `body` with random choices, `runs` times, the first time with this seed.
Result sample(const std::function<void()>& body, long runs, std::uint64_t seed);

namespace detail {

bool managed();  // is this a thread of a run?
void created(const void* object, std::uint64_t value);
std::uint64_t load(const void* object, std::uint64_t now, std::memory_order order);
void store(const void* object, std::uint64_t before, std::uint64_t value, std::memory_order order);
/// Before a read-modify-write, which always sees the newest value; `updated` after it.
void update(const void* object, std::uint64_t before, std::memory_order order);
void updated(const void* object, std::uint64_t value, std::memory_order order);
void block_on(const void* what, bool timed);
void wake(const void* what, bool all);
void yield_point();
void read_plain(const void* object);
void write_plain(const void* object);
int start_thread(std::function<void()> body);
void join_thread(int thread);

}  // namespace detail

/// As std::atomic, with the same size. Threads outside of a run use it as usual.
template <class T>
class Atomic {
 public:
  static constexpr bool is_always_lock_free = std::atomic<T>::is_always_lock_free;

  Atomic() : Atomic(T{}) {}
  Atomic(T value) : now_(value) {
    if (detail::managed()) detail::created(this, to(value));
  }
  Atomic(const Atomic&) = delete;
  Atomic& operator=(const Atomic&) = delete;

  T load(std::memory_order order = std::memory_order_seq_cst) const {
    return detail::managed() ? from(detail::load(this, to(now_.load()), order)) : now_.load();
  }
  void store(T value, std::memory_order order = std::memory_order_seq_cst) {
    if (detail::managed()) detail::store(this, to(now_.load()), to(value), order);
    now_.store(value);
  }
  T fetch_add(T n, std::memory_order order = std::memory_order_seq_cst) {
    return change(order, [n](T value) { return static_cast<T>(value + n); });
  }
  T fetch_sub(T n, std::memory_order order = std::memory_order_seq_cst) {
    return change(order, [n](T value) { return static_cast<T>(value - n); });
  }
  T fetch_or(T bits, std::memory_order order = std::memory_order_seq_cst) {
    return change(order, [bits](T value) { return static_cast<T>(value | bits); });
  }
  T exchange(T next, std::memory_order order = std::memory_order_seq_cst) {
    return change(order, [next](T) { return next; });
  }
  operator T() const { return load(); }
  T operator=(T value) { return store(value), value; }
  T operator++() { return fetch_add(1) + 1; }

 private:
  static std::uint64_t to(T value) { return static_cast<std::uint64_t>(value); }
  static T from(std::uint64_t word) { return static_cast<T>(word); }

  template <class F>
  T change(std::memory_order order, F&& f) {
    const bool managed = detail::managed();
    if (managed) detail::update(this, to(now_.load()), order);
    T before = now_.load();
    while (!now_.compare_exchange_weak(before, f(before))) {
    }
    if (managed) detail::updated(this, to(f(before)), order);
    return before;
  }

  std::atomic<T> now_;
};

/// A variable that is not atomic: to read or write it unordered with another thread's write is a failure.
template <class T>
class Plain {
 public:
  Plain(T value = {}) : value_(value) {}
  T get() const {
    detail::read_plain(this);
    return value_;
  }
  void set(T value) {
    detail::write_plain(this);
    value_ = value;
  }

 private:
  T value_;
};

class Mutex {
 public:
  void lock();
  bool try_lock();
  void unlock();

 private:
  bool locked_ = false;  // by a thread of a run
  std::mutex real_;      // outside of runs
};

/// As occl::SpinLock, with its memory order: a thread that tries it may see it locked when it is free
/// already. A thread that waits for it sleeps.
class SpinLock {
 public:
  void lock();
  bool try_lock();
  void unlock();

 private:
  Atomic<bool> locked_ = false;
};

/// As std::atomic_thread_fence(std::memory_order_seq_cst).
void fence();

class Condition {
 public:
  template <class Lock>
  void wait(Lock& lock) {
    lock.unlock();
    detail::block_on(this, false);  // no other thread runs between the two
    lock.lock();
  }
  template <class Lock, class Predicate>
  void wait(Lock& lock, Predicate&& done) {
    while (!done()) wait(lock);
  }
  void notify_one() { detail::wake(this, false); }
  void notify_all() { detail::wake(this, true); }
};

class Thread {
 public:
  Thread() = default;
  explicit Thread(std::function<void()> body) : id_(detail::start_thread(std::move(body))) {}
  Thread(Thread&& other) noexcept : id_(std::exchange(other.id_, -1)) {}
  Thread& operator=(Thread&& other) noexcept { return std::swap(id_, other.id_), *this; }
  void join() { detail::join_thread(std::exchange(id_, -1)); }

 private:
  int id_ = -1;
};

/// As futex_wait without a limit on the time: returns when the value differs, or after a wake-up.
template <class T>
void sleep_while_equal(const Atomic<T>& word, T expected) {
  // The kernel looks at the newest value, and no thread gets between its look and the sleep.
  detail::yield_point();
  T newest = expected;
  std::memcpy(&newest, &word, sizeof(newest));
  if (newest == expected) detail::block_on(&word, true);
}
inline void wake_sleepers(const void* word) { detail::wake(word, true); }

}  // namespace explore
