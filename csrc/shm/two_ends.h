// The pieces of one job, which two processes share: one takes them from the front, the other one from the
// back, until they meet. Each writes a word of its own, `job << 32 | pieces`, and reads the other's.
//
//     front                                     back
//     own = taken + 1          (seq_cst)        own = taken + 1          (seq_cst)
//     other = the other's      (seq_cst)        other = the other's      (seq_cst)
//     own + other <= pieces: it has the piece   own + other <= pieces: it has the piece
//     else it stops                             else it stops, and reports how many it took
//
// Both sides write before they read, all of it sequentially consistent: if both claim the last piece, at
// least one of them sees the other's claim and stops. If both stop, neither has the piece. So a front that
// stopped waits for the back's final count, and takes the piece that may be left. A front that was never
// stopped has taken every piece and does not wait: a back that joins later finds no piece left, or the front
// at another job.
#pragma once

#include <cstdint>

#include "base/sync.h"

namespace occl::shm {

class Taker {
 public:
  enum class End : std::uint8_t { front, back };

  Taker() = default;
  /// A side of a job of `pieces` pieces. The front makes its Taker before the back hears of the job. Job
  /// numbers must not repeat within 2^32 jobs on the same pair of words.
  Taker(End end, std::uint64_t job, std::uint32_t pieces, Atomic<std::uint64_t>* own,
        const Atomic<std::uint64_t>* other)
      : end_(end), job_(job << 32), pieces_(pieces), own_(own), other_(other) {
    // relaxed: no piece of this job is taken yet, and the previous job has none left.
    own_->store(job_, std::memory_order_relaxed);
  }

  explicit operator bool() const { return own_ != nullptr; }

  /// Claims the next piece from this side's end, whose number is what `taken()` was before. Once this has
  /// returned false, it always will.
  bool take() {
    if (taken_ == pieces_) return false;
    own_->store(job_ + taken_ + 1, std::memory_order_seq_cst);            // sync: pieces-taken
    const std::uint64_t other = other_->load(std::memory_order_seq_cst);  // sync: pieces-taken
    const bool same_job = (other ^ job_) >> 32 == 0;
    // A back that has not joined yet has taken nothing; a front at another job has taken everything.
    stopped_ = same_job ? taken_ + 1 + (other & 0xffffffff) > pieces_ : end_ == End::back;
    taken_ += !stopped_;
    return !stopped_;
  }

  /// For the front: keeps the back from taking more. The back may still be moving the piece it took last.
  void revoke() { own_->store(job_ | 0xffffffff, std::memory_order_seq_cst); }  // sync: pieces-taken

  /// How many pieces this side has taken.
  std::uint64_t taken() const { return taken_; }
  /// Whether the last `take` failed because the two sides met.
  bool stopped() const { return stopped_; }

 private:
  End end_ = End::front;
  bool stopped_ = false;
  std::uint64_t job_ = 0;
  std::uint64_t pieces_ = 0;
  std::uint64_t taken_ = 0;
  Atomic<std::uint64_t>* own_ = nullptr;
  const Atomic<std::uint64_t>* other_ = nullptr;
};

}  // namespace occl::shm
