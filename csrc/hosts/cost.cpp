#include "hosts/cost.h"

#include <algorithm>
#include <variant>

#include "coll/plan/cost.h"
#include "hosts/preamble.h"
#include "hosts/program.h"

namespace occl::hosts {
namespace {

struct Costs {
  const Topology& topology;
  const int node_size;
  const bool mapped;
  const Tuning& tuning;
  const LinkModel& link;

  double node_collective(coll::Kind kind, DType dtype, int root, std::size_t largest) const {
    coll::Collective c;
    c.kind = kind;
    c.dtype = dtype;
    c.root = root;
    c.largest = largest;
    return coll::seconds(c, node_size, tuning, mapped);
  }
  double of(const NodeCollective& step) const {
    std::size_t largest = 0;
    for (const std::size_t count : step.counts) largest = std::max(largest, count);
    for (const Piece& piece : step.in) largest = std::max(largest, step.counts.empty() ? piece.count : 0);
    return node_collective(step.kind, step.dtype, step.root, largest);
  }
  /// Of messages that are in flight together.
  double latency(std::size_t messages) const {
    return messages == 0 ? 0 : link.message_seconds + link.message_beside * static_cast<double>(messages - 1);
  }
  /// The ranks of the node share its link, and each has about as much to send.
  double on_link(std::size_t bytes) const {
    return static_cast<double>(bytes) * node_size / link.bytes_per_second;
  }
  /// The cost of the preamble, which precedes every collective.
  double preamble() const {
    double all = node_collective(coll::Kind::gather, DType::bytes, 0, kCallHeaderBytes) +
                 node_collective(coll::Kind::broadcast, DType::bytes, 0, kCallHeaderBytes);
    for (const auto& round : bruck_rounds(topology.nodes())) {
      std::size_t headers = 0;
      for (const HeaderExchange& exchange : round) headers += exchange.headers;
      all += latency(round.size()) + static_cast<double>(headers * kCallHeaderBytes) / link.bytes_per_second;
    }
    return all;
  }
};

}  // namespace

double seconds(const Topology& topology, int rank, const coll::Task& task, std::size_t window_bytes,
               bool mapped, const Tuning& tuning, const LinkModel& link) {
  const Costs costs{topology, topology.node_size(topology.node_of(rank)), mapped, tuning, link};
  if (const auto* message = std::get_if<coll::Transfer>(&task)) {
    if (message->peer >= 0 && topology.node_of(message->peer) == topology.node_of(rank))
      return coll::seconds(*message, costs.node_size, tuning, mapped);
    // Envelope, ack and payload (hosts/p2p.h).
    return 3 * link.message_seconds + static_cast<double>(message->bytes()) / link.bytes_per_second;
  }
  const auto& collective = std::get<coll::Collective>(task);
  if (fits_header(collective)) return costs.preamble();

  const auto program = Program::make(topology, rank, {collective, window_bytes, false, link});
  double in_a_row = 0, inside = 0, on_link = 0;  // of the first window
  for (int stage = 0; stage < program->stages(); ++stage) {
    std::size_t messages = 0, sent = 0, received = 0;
    for (const Step& step : program->steps(stage, 0)) {
      if (const auto* node_collective = std::get_if<NodeCollective>(&step))
        inside += costs.of(*node_collective);
      if (const auto* message = std::get_if<SendRecv>(&step)) {
        messages += message->send;
        (message->send ? sent : received) += message->piece.bytes();
      }
    }
    in_a_row += costs.latency(messages);
    on_link += costs.on_link(std::max(sent, received));
  }
  // While one window is on the link, ranks of a node work on another.
  const double further = std::max(program->longest_windows() - 1, 0.0);
  return costs.preamble() + in_a_row + inside + on_link + further * std::max(inside, on_link);
}

}  // namespace occl::hosts
