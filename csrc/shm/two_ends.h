// Two processes share the pieces of one job: one takes them from the front, the other one from the back,
// until they meet. Each writes a word of its own, `job << 32 | pieces`, and reads the other's.
//
//     front                                     back
//     own = taken + 1          (seq_cst)        own = taken + 1          (seq_cst)
//     look at the other's      (seq_cst)        look at the other's      (seq_cst)
//     all of that fits: the piece is ours       all of that fits: the piece is ours
//     else stop                                 else stop, and say how many it has taken
//
// Both write before they read, all of it sequentially consistent: of two who reach for the last piece at
// least one sees the other. If both do, nobody has it. So a front that stopped waits for what the back says
// in the end, and takes the piece that may be left. A front that was never stopped has taken all, and waits
// for nobody: whoever joins later finds nothing left, or the front at another job.
#pragma once

#include <cstdint>

#include "base/sync.h"

namespace occl::shm {

class Taker {
 public:
  enum class End : std::uint8_t { front, back };

  Taker() = default;
  /// Of `pieces` pieces. The front is there before the back is told of the job. No job has the number of one
  /// of the last 2^32 of the same two words.
  Taker(End end, std::uint64_t job, std::uint32_t pieces, Atomic<std::uint64_t>* own,
        const Atomic<std::uint64_t>* other)
      : end_(end), job_(job << 32), pieces_(pieces), own_(own), other_(other) {
    own_->store(
        job_, std::memory_order_relaxed);  // nothing of it is taken yet, and of the last one nothing is left
  }

  explicit operator bool() const { return own_ != nullptr; }

  /// May this side move its next piece, which is number `taken()` from its end? If not, it never may again.
  bool take() {
    if (taken_ == pieces_) return false;
    own_->store(job_ + taken_ + 1, std::memory_order_seq_cst);            // pairs with the other's load
    const std::uint64_t other = other_->load(std::memory_order_seq_cst);  // pairs with its store
    const bool same_job = (other ^ job_) >> 32 == 0;
    // A back that has not come yet has taken nothing; a front that has gone on has taken everything.
    stopped_ = same_job ? taken_ + 1 + (other & 0xffffffff) > pieces_ : end_ == End::back;
    taken_ += !stopped_;
    return !stopped_;
  }

  /// The front's: the back shall take nothing more. A piece that it has begun it may still be moving.
  void revoke() { own_->store(job_ | 0xffffffff, std::memory_order_seq_cst); }  // pairs with take

  /// So many pieces were moved by this side.
  std::uint64_t taken() const { return taken_; }
  /// The front's: has the back taken some, or tried to?
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
