#include "hosts/cost.h"

#include <algorithm>
#include <variant>

#include "coll/plan/cost.h"
#include "hosts/preamble.h"
#include "hosts/program.h"

namespace occl::hosts {
namespace {

constexpr double kBeside = 1.0 / 6;  // of a message in a row, as in hosts/algorithm_choice.cpp

struct Costs {
  const Partition& partition;
  const int node_size;
  const bool mapped;
  const Tuning& tuning;
  const Wire& wire;

  double inside(coll::Kind kind, DType dtype, int root, std::size_t largest) const {
    coll::Collective c;
    c.kind = kind;
    c.dtype = dtype;
    c.root = root;
    c.largest = largest;
    return coll::seconds(c, node_size, tuning, mapped);
  }
  double of(const Inside& step) const {
    std::size_t largest = 0;
    for (const std::size_t count : step.counts) largest = std::max(largest, count);
    for (const Piece& piece : step.in) largest = std::max(largest, step.counts.empty() ? piece.count : 0);
    return inside(step.kind, step.dtype, step.root, largest);
  }
  /// Of messages that are under way together.
  double latency(std::size_t messages) const {
    return messages == 0 ? 0 : wire.message_seconds * (1 + kBeside * static_cast<double>(messages - 1));
  }
  /// The ranks of the node share its link, and each has about as much to send.
  double on_link(std::size_t bytes) const {
    return static_cast<double>(bytes) * node_size / wire.bytes_per_second;
  }
  /// What precedes every collective: hosts/preamble.h.
  double council() const {
    double all = inside(coll::Kind::gather, DType::bytes, 0, kNoteBytes) +
                 inside(coll::Kind::broadcast, DType::bytes, 0, kNoteBytes);
    for (const auto& round : exchanges(partition.nodes())) {
      std::size_t notes = 0;
      for (const Exchange& exchange : round) notes += exchange.notes;
      all += latency(round.size()) + static_cast<double>(notes * kNoteBytes) / wire.bytes_per_second;
    }
    return all;
  }
};

}  // namespace

double seconds(const Partition& partition, int rank, const coll::Task& task, std::size_t window_bytes,
               bool mapped, const Tuning& tuning, const Wire& wire) {
  const Costs costs{partition, partition.node_size(partition.node_of(rank)), mapped, tuning, wire};
  if (const auto* message = std::get_if<coll::Transfer>(&task)) {
    if (message->peer >= 0 && partition.node_of(message->peer) == partition.node_of(rank))
      return coll::seconds(*message, costs.node_size, tuning, mapped);
    // The sender announces the message, and sends it when the receiver has answered (hosts/p2p.h).
    return 3 * wire.message_seconds + static_cast<double>(message->bytes()) / wire.bytes_per_second;
  }
  const auto& collective = std::get<coll::Collective>(task);
  if (fits_note(collective)) return costs.council();

  const auto program = Program::make(partition, rank, collective, window_bytes);
  double in_a_row = 0, inside = 0, on_link = 0;  // of the first window
  for (int stage = 0; stage < program->stages(); ++stage) {
    std::size_t messages = 0, sent = 0, received = 0;
    for (const Step& step : program->steps(stage, 0)) {
      if (const auto* nested = std::get_if<Inside>(&step)) inside += costs.of(*nested);
      if (const auto* message = std::get_if<Message>(&step)) {
        messages += message->send;
        (message->send ? sent : received) += message->piece.bytes();
      }
    }
    in_a_row += costs.latency(messages);
    on_link += costs.on_link(std::max(sent, received));
  }
  // While one window is on the link, ranks of a node work on another.
  const double further = std::max(program->longest_windows() - 1, 0.0);
  return costs.council() + in_a_row + inside + on_link + further * std::max(inside, on_link);
}

}  // namespace occl::hosts
