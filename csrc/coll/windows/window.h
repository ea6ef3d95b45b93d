// A window: memory of each rank that the other ranks write, and read, without its taking part.
//
// Beside that memory each rank has a row in its control region, which the others map read-only:
//
//     rank s                                          rank d
//     number       which window of s has the row      (0: s has closed that window)
//     signals[d]   how often s has signalled d   ──▶  `take` counts those that d has waited for
//                  (on each channel)
//
//     bytes into the memory of d,  signals[d] += 1 (release)  ──▶  take (acquire), and d reads the bytes
//
// Each counter has one writer and only grows, so no signal is lost. Channels are independent: a wait takes
// the signals of its own. A row is used again for another window
// once all ranks have closed the one that had it; until then peers may read it, and write the memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/deadline.h"
#include "coll/mesh/mesh.h"

namespace occl::coll {

/// What a rank announces to the others.
struct WindowHandle {
  std::uint64_t row = 0;          // its offset in the control region
  std::uint64_t number = 0;       // of the window that has the row
  std::uint64_t ref = kUnmapped;  // of the memory, or kUnmapped: none, or no bytes
  std::uint64_t bytes = 0;
};

class Window {
 public:
  struct Row;
  struct State;

  /// `group`: what keeps the mesh alive.
  Window(std::shared_ptr<void> group, Mesh& mesh, std::shared_ptr<State> state);
  /// Closes it: the others learn of that.
  ~Window();
  Window(const Window&) = delete;
  Window& operator=(const Window&) = delete;

  // ---- for the program, one thread at a time

  /// Of this rank, with its memory if that has bytes.
  WindowHandle handle(shm::Ref memory = {}, std::size_t bytes = 0) const;
  /// Finds what all ranks have announced, in the order of the ranks. `own`: this rank's memory. Throws what
  /// Mesh::reach and Peer::control throw.
  void connect(const std::vector<WindowHandle>& handles, std::byte* own, Deadline deadline);
  /// The memory of a rank, as it was connected last; null if it has no bytes.
  std::byte* memory(int rank) const { return memory_[rank]; }
  /// Keeps something until the memory is replaced or all ranks have closed the window. Null: no more.
  void keep(std::shared_ptr<void> memory);
  std::shared_ptr<void> kept() const;

  // ---- under the group's driving lock

  /// Signals `rank`, after the bytes that were stored before.
  void signal(int rank, int channel);
  /// Takes one signal of `rank`, if one has come that no other wait has. All calls of one `pass`, a number
  /// that grows, see the same signals: so the first of several waits gets the first of them.
  bool take(int rank, int channel, std::uint64_t pass);
  /// Whether `rank` had closed the window in the last pass, and so sends no further signals.
  bool closed(int rank, int channel) const;

 private:
  Row& own() const;

  const std::shared_ptr<void> group_;
  Mesh& mesh_;
  const std::shared_ptr<State> state_;
  std::vector<std::byte*> memory_;  // by rank
};

/// The windows of a group, on this rank. Requires the group's driving lock.
class Windows {
 public:
  explicit Windows(Mesh& mesh) : mesh_(mesh) {}

  /// A new window, whose row has no signals. `group`: as for Window; `channels`: the same on all ranks.
  /// Throws Error(out_of_memory).
  std::shared_ptr<Window> make(std::shared_ptr<void> group, int channels);
  /// Takes what windows keep that all ranks have closed. The caller drops it, without the lock: that may call
  /// anything.
  std::vector<std::shared_ptr<void>> collect();

 private:
  std::shared_ptr<Window::State> free_row(int channels);

  Mesh& mesh_;
  std::uint64_t made_ = 0;
  std::vector<std::shared_ptr<Window::State>> rows_;
};

}  // namespace occl::coll
