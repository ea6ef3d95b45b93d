// The thread of a worker that moves messages while no other thread does: what was sent must leave this
// process even if its rank computes for an hour now. It sleeps while there is nothing to move, and naps while
// other threads move messages.
//
// Where a sleeping thread of the engine cannot wait for the worker's descriptor itself, the caretaker waits
// for it in its place (`watch`).
#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

namespace occl::ucx {

class Worker;

class Caretaker {
 public:
  explicit Caretaker(Worker& worker);
  ~Caretaker();
  Caretaker(const Caretaker&) = delete;
  Caretaker& operator=(const Caretaker&) = delete;

  /// Something was sent. Throws Error(system) if no thread can be started.
  void attend() {
    // seq_cst: pairs with the thread, which says that it is idle before it looks for the last time
    if (!attending_.load(std::memory_order_seq_cst)) wake(false);
  }
  /// From now on a message that arrives is moved at once, until `unwatch`.
  void watch() { wake(true); }
  void unwatch();
  /// Ends the thread for good. `stop_all` leaves its worker alone from now on.
  void stop();
  /// Of all caretakers of the process, which is about to exit: UCX cleans up then, and no thread may use it.
  /// Waits a moment until what was sent has left the process.
  static void stop_all();

 private:
  void end_thread();
  void wake(bool for_sleeper);
  void run();
  void wait_for_arrival();

  Worker& worker_;
  std::atomic<bool> attending_ = false;  // the thread looks by itself
  std::mutex mutex_;
  std::condition_variable work_;
  int sleepers_ = 0;  // under mutex_, as are the next
  bool wanted_ = false, stop_ = false;
  std::thread thread_;
};

}  // namespace occl::ucx
