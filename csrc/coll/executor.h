// Carries out one collective at a time: the only code that moves the bytes of collectives.
//
//     start ─▶ meet ─▶ move ─▶ sync ─▶ move ─▶ ... ─▶ finished
//              (all    (the step's (all
//               stamps) moves)      ticks)
//
// It never blocks: `advance` does what can be done now and says whether there was anything. One thread at a
// time (Group sees to that); the thread may change between calls.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "coll/mesh.h"
#include "coll/operation.h"
#include "coll/plan.h"

namespace occl::coll {

enum class Outcome : std::uint8_t { blocked, advanced, finished };

class Executor {
 public:
  explicit Executor(Mesh& mesh);

  /// Posts a collective of operation `number`. Requires that the last one has finished.
  void start(const Collective& collective, std::uint64_t number, Deadline deadline);

  /// Throws Error(mismatch), after which the next operation may start, or any other Error, after which
  /// nothing may.
  Outcome advance();

  /// May peers know where the current operation's tensors are?
  bool exposed() const { return exposed_; }
  /// The ranks that the current operation waits for, or none while it can go on.
  std::vector<int> missing() const;

 private:
  enum class Stage : std::uint8_t { meet, move, sync };

  void post();
  bool all_arrived();
  bool all_reached(std::uint64_t tick);
  void choose_plan();
  bool is_strange(Signature signature);
  void compare_pairs() const;
  void list_sizes() const;
  std::string called(int rank, Signature signature) const;
  std::byte* reach(int rank, shm::Ref ref, std::size_t bytes) const;
  void use_own_slots();
  void locate_slots();
  std::byte* slot_in(const SharedBlock& block) const;
  void locate_tensors();
  bool moves_done();
  void run(const Move& move, std::size_t lo, std::size_t hi);
  std::byte* address(const Side& side, int rank, const Move& move, std::size_t lo) const;
  std::size_t gather(const Side& side, const Move& move, std::size_t lo, std::byte** out) const;
  std::uint64_t own_ref(const Blocks& blocks) const;
  void publish_tick();

  Mesh& mesh_;
  Collective c_;
  Shape shape_;
  Plan plan_;
  Signature signature_;
  Deadline deadline_ = Deadline::never();
  std::uint64_t number_ = 0;  // the operation's, for errors
  std::uint64_t q_ = 0;       // collectives since the group began; the same on every rank
  std::uint64_t tick_ = 0;  // synchronisations passed since the group began; the same on every rank
  Stage stage_ = Stage::meet;
  bool agreed_ = false;  // all ranks made the plan's first step before they met, or it needs no slots
  bool mapped_ = false;  // peers can reach what `direct` needs of this rank
  bool exposed_ = false;
  bool streaming_ = false;
  bool in_staging_ = false;    // slots are the staging slots, not the places beside the sequence number
  std::uint64_t windows_ = 0;  // staged since the group began: consecutive ones alternate between two slots
  std::uint64_t step_ = 0;
  std::uint32_t index_ = 0;  // the next move of the step
  std::size_t done_ = 0;     // elements of that move
  int cursor_ = 0;           // all ranks before it have arrived, or reached the tick
  int stranger_ = -1;        // the first rank that called something else
  Signature strange_;
  bool pairs_ = false;             // each pair of ranks has a size of its own
  std::optional<Signature> even_;  // of the first rank that says that all get as much, where another does not
  // Of the current operation, by rank: where its input, output and slots are.
  std::vector<std::byte*> in_, out_, slots_;
  std::vector<double> factors_;
};

}  // namespace occl::coll
