// How all ranks of all nodes meet at the start of a collective. Each rank writes what it calls into a note of
// fixed size. The first rank of each node, its leader, gathers the notes of its node, compares them, and
// exchanges one note with the other leaders. What the leaders find is told to every rank of the node.
//
//     ranks           notes ─▶ leader          (a gather inside the node)
//     leaders         note ◀──▶ note           (messages, in rounds)
//     leader          verdict ─▶ ranks         (a broadcast inside the node)
//
// Notes are of one size whatever is called, so ranks that call different operations still meet. A small
// reduction or broadcast travels in the notes and needs nothing else.
//
// Pure functions on notes; hosts/group.h moves them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "coll/task/collective.h"
#include "hosts/topology.h"

namespace occl::hosts {

inline constexpr std::size_t kNoteBytes = 1024;

struct Note {
  std::uint64_t signature = 0;  // coll::Signature
  std::uint64_t number = 0;     // of the operation in its group
  double factor = 1;            // PREMUL_SUM
  std::uint32_t refused = 0;    // 1: the ranks of the node do not agree, and `data` says why
  std::uint32_t pairwise = 0;   // 1: some rank lists the sizes of an all_to_all
  std::array<std::byte, kNoteBytes - 32> data{};

  /// Why the sender refused, or ended the group; never empty.
  std::string text() const;
  void refuse(const std::string& text);
  std::byte* bytes() { return reinterpret_cast<std::byte*>(this); }
};
static_assert(sizeof(Note) == kNoteBytes);

/// Whether the data of the collective travels in the notes.
bool fits_note(const coll::Collective& c);

/// Writes what this rank calls, and its data where that fits.
void write_note(Note& note, const coll::Collective& c, std::uint64_t number, int rank);

/// Names a rank: "rank 3 (pid 4711, host a)".
using Describe = std::function<std::string(int rank)>;

/// The leader's note to the other leaders: a refusal if the notes of its node, in the order of its ranks, do
/// not fit each other, or else the node's sum.
Note note_of_node(const coll::Collective& c, std::span<const Note> notes, const Partition& partition,
                  int node, const Describe& describe);

/// What all nodes together find, from the notes of all leaders: a refusal, or the result.
Note verdict(const coll::Collective& c, std::span<const Note> notes, const Partition& partition, int node,
             const Describe& describe);

/// Leaders exchange notes in rounds, so that each sends and receives about 7 log8(nodes) messages and has the
/// notes of all nodes at the end, those of the next nodes first. In a round a leader sends the notes that it
/// has, and no more than are wanted, to the leaders so far before it, and receives as many from those so far
/// behind it. (An all-gather after Bruck et al., Efficient algorithms for all-to-all communications in
/// multiport message-passing systems, 1997.)
struct Exchange {
  int distance = 0;  // between the two nodes; where the received notes begin
  int notes = 0;
};
std::vector<std::vector<Exchange>> exchanges(int nodes);

/// Takes the result out of a verdict, where the data travels in the notes.
void read_result(const Note& verdict, const coll::Collective& c, int rank);

}  // namespace occl::hosts
