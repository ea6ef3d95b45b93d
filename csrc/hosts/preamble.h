// The preamble of a collective: all ranks of all nodes compare their calls. Each rank writes its call into a
// call header of fixed size. The first rank of each node, its leader, gathers the headers of its node,
// compares them, and exchanges one header with the other leaders. Each leader then broadcasts the agreement
// in its node: the common call, or why there is none.
//
//     ranks           call headers ─▶ leader         (a gather inside the node)
//     leaders         call header ◀──▶ call header   (messages, in rounds)
//     leader          agreement ─▶ ranks             (a broadcast inside the node)
//
// All call headers have one size, so ranks that call different operations still exchange them. The data of a
// small reduction or broadcast travels in the headers, and the collective needs nothing else.
//
// Pure functions on call headers; hosts/group.h moves them.
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

inline constexpr std::size_t kCallHeaderBytes = 1024;

struct CallHeader {
  std::uint64_t signature = 0;  // coll::Signature
  std::uint64_t number = 0;     // of the operation in its group
  double factor = 1;            // PREMUL_SUM
  std::uint32_t refused = 0;    // 1: the calls of the node's ranks differ, and `data` says how
  std::uint32_t pairwise = 0;   // 1: some rank lists the sizes of an all_to_all
  std::array<std::byte, kCallHeaderBytes - 32> data{};

  /// Why the sender refused, or ended the group; never empty.
  std::string text() const;
  void refuse(const std::string& text);
  std::byte* bytes() { return reinterpret_cast<std::byte*>(this); }
};
static_assert(sizeof(CallHeader) == kCallHeaderBytes);

/// Whether the data of the collective travels in the headers.
bool fits_header(const coll::Collective& c);

/// Writes this rank's call, and its data if that fits.
void write_header(CallHeader& header, const coll::Collective& c, std::uint64_t number, int rank);

/// Names a rank: "rank 3 (pid 4711, host a)".
using Describe = std::function<std::string(int rank)>;

/// The leader's header to the other leaders: a refusal if the headers of its node, in the order of its ranks,
/// do not match, or else the node's sum.
CallHeader header_of_node(const coll::Collective& c, std::span<const CallHeader> headers,
                          const Topology& topology, int node, const Describe& describe);

/// The agreement of all nodes, from the headers of all leaders: a refusal, or the result.
CallHeader agreement(const coll::Collective& c, std::span<const CallHeader> headers, const Topology& topology,
                     int node, const Describe& describe);

/// The rounds in which leaders exchange headers: each sends and receives about 7 log8(nodes) messages, and
/// then has the headers of all nodes, those of the next nodes first. In round k a leader sends its first
/// min(8^k, missing) headers to the leaders at distance i*8^k before it, and receives as many from those
/// behind it. (An all-gather after Bruck et al., Efficient algorithms for all-to-all communications in
/// multiport message-passing systems, 1997.)
struct HeaderExchange {
  int distance = 0;  // between the two nodes; where the received headers begin
  int headers = 0;
};
std::vector<std::vector<HeaderExchange>> bruck_rounds(int nodes);

/// Copies the result out of an agreement, if the data travels in the headers.
void read_result(const CallHeader& agreement, const coll::Collective& c, int rank);

}  // namespace occl::hosts
