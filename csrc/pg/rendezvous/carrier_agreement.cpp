#include "pg/rendezvous/carrier_agreement.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "base/error.h"
#include "pg/process/python_hooks.h"
#include "pg/rendezvous/store_client.h"
#include "pg/request/errors.h"

namespace occl::pg {
namespace {

using std::chrono::milliseconds;

constexpr char kUsable = '+', kUnusable = '-';

Bytes bytes_of(char kind, const std::string& text) {
  const std::string all = concat(kind, text);
  return {all.begin(), all.end()};
}
std::string text_of(const Bytes& bytes) {
  return {bytes.begin() + std::min<std::size_t>(bytes.size(), 1), bytes.end()};
}
bool usable(const Bytes& bytes) { return !bytes.empty() && bytes[0] == kUsable; }

/// By an interrupt, or because another rank has failed.
bool aborted(const std::exception& error) {
  const auto* ours = dynamic_cast<const Error*>(&error);
  return ours && ours->code() == Errc::aborted;
}

}  // namespace

CarrierAgreement::CarrierAgreement(CarrierChoice choice, std::string name, int rank, bool one_network)
    : choice_(std::move(choice)), name_(std::move(name)), rank_(rank), one_network_(one_network) {}

Bytes CarrierAgreement::offer() {
  prepared_ = {};
  const PrepareBetween& prepare = choice_.carriers[next_++];
  try {
    prepared_ = prepare(one_network_);
    return bytes_of(kUsable, prepared_.version);
  } catch (const std::exception& error) {
    if (last()) throw;
    return bytes_of(kUnusable, first_line(error));
  }
}

/// Why the ranks with these offers cannot use the carrier; empty if they can.
std::string CarrierAgreement::obstacle_among(const std::vector<Bytes>& offers, const Board& board) const {
  for (std::size_t rank = 0; rank < offers.size(); ++rank)
    if (!usable(offers[rank]))
      return concat(board.describe(static_cast<int>(rank)), ": ", text_of(offers[rank]));
  for (std::size_t rank = 1; rank < offers.size(); ++rank)
    if (offers[rank] != offers[0])
      return concat(board.describe(0), " has ", text_of(offers[0]), ", and ",
                    board.describe(static_cast<int>(rank)), " has ", text_of(offers[rank]));
  return "";
}

std::shared_ptr<hosts::Link> CarrierAgreement::connect(Board& board,
                                                       const c10::intrusive_ptr<c10d::Store>& store,
                                                       const std::vector<Bytes>& offers,
                                                       const hosts::Topology& nodes, Deadline deadline) {
  std::vector<Bytes> answers = offers;
  for (;;) {
    std::string why = obstacle_among(answers, board);
    if (!why.empty() && last())
      fail(Errc::protocol, "group ", name_, ": ", why, ": install the same version on all hosts");
    if (why.empty()) {
      awaited_ = concat("connected", next_);
      std::shared_ptr<hosts::Link> link;
      Bytes answer = bytes_of(kUsable, "");
      try {
        link = connect_prepared(board, store, nodes, deadline);
      } catch (const std::exception& error) {  // a timeout too
        if (last() || aborted(error)) throw;
        answer = bytes_of(kUnusable, first_line(error));
      }
      board.put(awaited_, answer);
      why = obstacle_among(board.read(awaited_, kStoreGrace), board);
      if (why.empty()) return link;
    }
    because_ += concat(", because ", why);
    awaited_ = concat("offer", next_);
    board.put(awaited_, offer());
    answers = board.read(awaited_);
  }
}

std::shared_ptr<hosts::Link> CarrierAgreement::connect_prepared(Board& board,
                                                                const c10::intrusive_ptr<c10d::Store>& store,
                                                                const hosts::Topology& nodes,
                                                                Deadline deadline) try {
  const auto all = std::chrono::duration_cast<milliseconds>(deadline.left(deadline.span()));
  const auto left = std::max(last() ? all : all / 2, milliseconds(1));
  const auto own = c10::make_intrusive<c10d::PrefixStore>(board.prefix(concat("between", next_)), store);
  const auto call = [prepared = prepared_, nodes, own, left](c10d::Store&) {
    return prepared.connect(own, nodes, left);
  };
  // In a thread, because Gloo waits for five times its timeout for ranks that should connect to this one.
  return StoreThread(own).run(call, Deadline::after(left + kStoreGrace), [&] {
    interrupt_check()();
    board.check_failure();
  });
} catch (const std::exception& error) {
  if (aborted(error)) throw;
  if (!last()) fail(Errc::system, "it could not connect through ", prepared_.name, ": ", first_line(error));
  std::string others;
  for (int m = 0; m < nodes.nodes(); ++m)
    if (m != nodes.node_of(rank_)) enlist(others, board.describe(nodes.leader(m)));
  fail(Errc::system, board.describe(rank_), " of group ", name_, " could not connect through ",
       prepared_.name, " with the other nodes, whose first ranks are ", others, ": ", first_line(error),
       ". Check that the hosts reach each other over this interface (GLOO_SOCKET_IFNAME selects it) at all "
       "ports, because ranks listen on any");
}

std::string CarrierAgreement::describe() const { return prepared_.name + because_; }

}  // namespace occl::pg
