// What the programs of a group over several nodes send, without sending it, for the comparison with the cost
// model (tests/hosts/test_cost_model.py).
//
//   programs KIND NODES RANKS BYTES WINDOW     KIND: all_reduce or broadcast, float32; RANKS: of each node
//
//   by recursive doubling, the number of the algorithm of a broadcast (hosts/algorithm_choice.h), then
//   windows and stages, the messages and bytes that the rank sends that sends most, the bytes that the node
//   sends that sends most, and what a leader sends to exchange headers (messages, headers)
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <variant>
#include <vector>

#include "hosts/algorithm_choice.h"
#include "hosts/preamble.h"
#include "hosts/program.h"

using namespace occl;
using namespace occl::hosts;

int main(int, char** argv) {
  const bool reduces = std::string(argv[1]) == "all_reduce";
  const int nodes = std::atoi(argv[2]), ranks = std::atoi(argv[3]);
  const std::size_t bytes = std::strtoull(argv[4], nullptr, 10), window = std::strtoull(argv[5], nullptr, 10);
  std::vector<int> node_of;
  for (int rank = 0; rank < nodes * ranks; ++rank) node_of.push_back(rank / ranks);
  const Topology topology(node_of);
  coll::Collective c;
  c.kind = reduces ? coll::Kind::all_reduce : coll::Kind::broadcast;
  c.dtype = DType::f32;
  c.op = reduces ? ReduceOp::sum : ReduceOp::none;
  c.in = c.out = {nullptr, bytes / 4, 1, nullptr};

  std::size_t most_messages = 0, most_bytes = 0, of_node = 0, most_of_node = 0;
  std::uint64_t windows = 0;
  int stages = 0;
  std::size_t longest = 0;
  for (int rank = 0; rank < topology.size(); ++rank) {
    if (rank % ranks == 0) of_node = 0;
    const auto program = Program::make(topology, rank, {c, window});
    windows = program->windows();
    stages = program->stages();
    longest = program->longest();
    std::size_t messages = 0, sent = 0;
    for (std::uint64_t w = 0; w < windows; ++w)
      for (int stage = 0; stage < stages; ++stage)
        for (const Step& step : program->steps(stage, w))
          if (const auto* message = std::get_if<SendRecv>(&step); message && message->send)
            ++messages, sent += message->piece.bytes();
    most_messages = std::max(most_messages, messages);
    most_bytes = std::max(most_bytes, sent);
    most_of_node = std::max(most_of_node, of_node += sent);
  }
  std::size_t messages = 0, headers = 0;
  for (const auto& round : bruck_rounds(nodes))
    for (const HeaderExchange& exchange : round) ++messages, headers += exchange.headers;

  const std::size_t rail = (longest + ranks - 1) / ranks * 4;
  std::printf("%d %d %llu %d %zu %zu %zu %zu %zu\n",
              all_reduces_by_recursive_doubling({}, nodes, rail, rail, windows > 1),
              static_cast<int>(choose_broadcast({}, nodes, rail, windows)),
              static_cast<unsigned long long>(windows), stages, most_messages, most_bytes, most_of_node,
              messages, headers);
}
