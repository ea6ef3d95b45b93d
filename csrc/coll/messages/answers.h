// The answers to one peer that wait for room in the ring to it: grants, acknowledgements, refusals, and word
// that no more bytes of a message follow.
//
// Not thread safe: the thread that drives the group calls it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>

#include "coll/messages/pipe.h"

namespace occl::coll {

class Answers {
 public:
  explicit Answers(Pipe& pipe) : pipe_(pipe) {}

  std::size_t size() const { return waiting_.size(); }
  bool empty() const { return waiting_.empty(); }

  void add(const Envelope& answer) { waiting_.push_back(answer); }
  void add(Record record, std::uint64_t id, std::uint64_t ref = 0, std::uint64_t count = 0) {
    Envelope e;
    e.record = record;
    e.id = id;
    e.ref = ref;
    e.count = count;
    add(e);
  }

  /// Writes those for which there is room. True if there was one.
  bool push() {
    bool moved = false;
    while (!waiting_.empty() && pipe_.write(waiting_.front(), nullptr)) {
      waiting_.pop_front();
      moved = true;
    }
    return moved;
  }
  void clear() { waiting_.clear(); }

 private:
  Pipe& pipe_;
  std::deque<Envelope> waiting_;
};

}  // namespace occl::coll
