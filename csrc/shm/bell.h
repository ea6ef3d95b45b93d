// A process's doorbell: the one word that all its threads sleep on, and that every peer can ring.
//
// The forbidden interleaving, and why it cannot happen:
//
//     sleeper                                   publisher
//     sleepers += 1            (seq_cst)        stamp = q                (release)
//     seen = bell              (seq_cst)        fence                    (seq_cst)
//     look at the stamps       (seq_cst)        if sleepers != 0         (seq_cst)
//     futex_wait(bell == seen)                      bell += 1, futex_wake
//
// Loads of what a thread sleeps for are seq_cst for this reason, wherever they stand.
//
// Both sides write before they read, and no read overtakes a write: either the publisher sees the sleeper and
// changes `bell` (then futex_wait returns immediately, or is woken), or the sleeper sees the stamp. "The
// stamps" are everything that a thread can sleep for: posts, ticks, positions of rings, presence, ended
// operations, free locks, deaths.
//
// The fence belongs to the ring and not to the store, because a seq_cst store on x86-64 waits for all stores
// before it. A peer that polls takes the line away meanwhile, and the stamp has to fetch it back. For the
// same reason the fence may come later than the store, when the publisher has nothing better to do
// (coll/mesh/bells.h). Stores past the caches need a fence of their own before the stamp (kernels/reduce.h).
//
// A thread whose stamps are all one process's can sleep for that process: the others' stamps do not wake it.
// Among ranks that share cores that saves most wake-ups, because all ranks of a group publish for all.
#pragma once

#include "shm/futex.h"
#include "shm/wire.h"

namespace occl::shm {

class Bell {
 public:
  /// The low half counts the threads that sleep. The high half is the sum of the processes that they sleep
  /// for, which says something while there is one thread.
  using Sleepers = Atomic<std::uint64_t>;

  /// A process, as sleepers name it; two may have the same name.
  using Process = std::uint32_t;
  static constexpr Process kAny = 0;
  static Process process(std::uint64_t nonce) { return static_cast<Process>(nonce) | 1; }

  Bell() = default;
  Bell(FutexWord* word, Sleepers* sleepers) : word_(word), sleepers_(sleepers) {}

  /// Wakes the owner's sleeping threads, if there are any. A thread that is going to sleep meanwhile sees
  /// what this thread has stored before, be it only with release.
  void ring() const {
    fence();  // sync: bell-sleepers
    ring_after_fence();
  }
  /// The same where the caller has called fence() since it stored, because it rings several bells. A thread
  /// that sleeps for another process than `from` is not woken.
  void ring_after_fence(Process from = kAny) const {
    if (!wakes(sleepers_->load(std::memory_order_seq_cst), from)) return;  // sync: bell-sleepers
    word_->fetch_add(1, std::memory_order_seq_cst);                        // sync: bell-word
    futex_wake_all(*word_);
  }

  /// Whether a thread of the owner was seen to sleep, for this process or for any. One that goes to sleep now
  /// may be missed: ring later.
  bool seen_asleep(Process from = kAny) const {
    return wakes(sleepers_->load(std::memory_order_relaxed), from);
  }

  /// The owner's side. Construct it, check once more everything that is waited for, then call `wait` if
  /// nothing has happened: after a ring in between, `wait` returns immediately. `process`: the only one whose
  /// ring_after_fence(from) matters, and still the one after the check.
  class Sleep {
   public:
    explicit Sleep(const Bell& bell, Process process = kAny)
        : bell_(bell), entry_(std::uint64_t{process} << 32 | 1) {
      bell_.sleepers_->fetch_add(entry_, std::memory_order_seq_cst);  // sync: bell-sleepers
      seen_ = bell_.word_->load(std::memory_order_seq_cst);           // sync: bell-word
    }
    ~Sleep() { bell_.sleepers_->fetch_sub(entry_, std::memory_order_seq_cst); }  // sync: bell-sleepers
    Sleep(const Sleep&) = delete;
    Sleep& operator=(const Sleep&) = delete;

    void wait(std::chrono::nanoseconds span) const { futex_wait(*bell_.word_, seen_, span); }

   private:
    const Bell& bell_;
    const std::uint64_t entry_;
    std::uint32_t seen_;
  };

 private:
  static bool wakes(std::uint64_t sleepers, Process from) {
    const auto count = static_cast<std::uint32_t>(sleepers);
    const auto process = static_cast<Process>(sleepers >> 32);
    return count > 1 || (count == 1 && (from == kAny || process == kAny || process == from));
  }

  FutexWord* word_ = nullptr;     // in the bell page: peers write it
  Sleepers* sleepers_ = nullptr;  // in the control region: only the owner writes it
};

}  // namespace occl::shm
