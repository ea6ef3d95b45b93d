// The order in which a rank starts the stages of a program's windows. It is equal on all ranks, so that
// operations of the node's group meet and messages between two ranks match.
//
//     stage 0 of window 0
//     stage 0 of window 1, stage 1 of window 0
//     stage 0 of window 2, stage 1 of window 1, ...
//
// Early stages come first, so that the network has the next window before this one is combined.
//
// A stage can start when the window's previous stage has ended, and the first one when the scratch memory of
// the window is free: at most `stages` windows are in flight.
#pragma once

#include <cstdint>
#include <optional>

namespace occl::hosts {

class Schedule {
 public:
  Schedule(int stages, std::uint64_t windows);

  struct Item {
    int stage = 0;
    std::uint64_t window = 0;
  };
  bool done() const;
  Item item() const { return {stage_, time_ - static_cast<std::uint64_t>(stage_)}; }
  void next();
  /// What must have ended before `item` starts; none: it can start.
  std::optional<Item> needs(Item item) const;

 private:
  const int stages_;
  const std::uint64_t windows_;
  std::uint64_t time_ = 0;
  int stage_ = 0;
};

}  // namespace occl::hosts
