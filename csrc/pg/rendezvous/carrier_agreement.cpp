#include "pg/rendezvous/carrier_agreement.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <system_error>
#include <utility>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "base/error.h"
#include "pg/process/python_hooks.h"
#include "pg/rendezvous/store_client.h"
#include "pg/request/errors.h"

namespace occl::pg {
namespace {

using std::chrono::milliseconds;

/// In front of what a rank says about the connection: it has worked, or not, and why, or it was not waited
/// for because another rank has failed.
constexpr char kConnected = '+', kFailed = '-', kStopped = '.';

Bytes bytes_of(const std::string& text) { return {text.begin(), text.end()}; }
std::string text_of(const Bytes& bytes) { return {bytes.begin(), bytes.end()}; }

/// What a rank has written as a number, if it is one below `limit`.
std::optional<std::size_t> number_below(std::size_t limit, const std::string& text) {
  std::size_t number = 0;
  const char* const end = text.data() + text.size();
  const auto read = std::from_chars(text.data(), end, number);
  if (read.ec != std::errc() || read.ptr != end || number >= limit) return std::nullopt;
  return number;
}

/// By an interrupt, or because another rank has failed.
bool aborted(const std::exception& error) {
  const auto* ours = dynamic_cast<const Error*>(&error);
  return ours && ours->code() == Errc::aborted;
}

}  // namespace

CarrierAgreement::CarrierAgreement(CarrierChoice choice, std::string name, int rank, bool one_network)
    : choice_(std::move(choice)),
      name_(std::move(name)),
      rank_(rank),
      one_network_(one_network),
      why_not_(choice_.carriers.size()) {}

Bytes CarrierAgreement::offer() {
  while (prepared_at_ != at_) try {
      prepared_ = {};
      prepared_ = choice_.carriers[at_](one_network_);
      prepared_at_ = at_;
    } catch (const std::exception& error) {
      if (last()) throw;
      why_not_[at_++] = first_line(error);
    }
  Bytes bundle;
  for (const std::string& part : {std::to_string(at_), prepared_.version, prepared_.address})
    append_to_bundle(bundle, bytes_of(part));
  for (const std::string& why : why_not_) append_to_bundle(bundle, bytes_of(why));
  return bundle;
}

std::vector<CarrierAgreement::Offer> CarrierAgreement::unpacked(const std::vector<Bytes>& offers,
                                                                const std::string& kind) const {
  std::vector<Offer> all;
  for (const Bytes& bytes : offers) {
    const auto parts = unpack(bytes, 3 + choice_.carriers.size());
    const auto carrier = parts ? number_below(choice_.carriers.size(), text_of((*parts)[0])) : std::nullopt;
    if (!carrier) fail_on_value(name_, static_cast<int>(offers.size()), kind, bytes);
    Offer offer{*carrier, text_of((*parts)[1]), text_of((*parts)[2]), {}};
    for (std::size_t i = 3; i < parts->size(); ++i) offer.why_not.push_back(text_of((*parts)[i]));
    all.push_back(std::move(offer));
  }
  return all;
}

/// Notes why the carriers from `from` on are not used that come before the last one that a rank offers.
void CarrierAgreement::pass_over(std::size_t from, const std::vector<Offer>& offers, const Board& board) {
  std::size_t rank = 0;
  for (std::size_t carrier = from; rank < offers.size(); ++carrier) {
    for (rank = 0; rank < offers.size() && offers[rank].carrier <= carrier;) ++rank;
    if (rank < offers.size())
      pass_over(concat(board.describe(static_cast<int>(rank)), ": ", offers[rank].why_not[carrier]));
  }
}

std::shared_ptr<hosts::Link> CarrierAgreement::connect(Board& board,
                                                       const c10::intrusive_ptr<c10d::Store>& store,
                                                       std::vector<Bytes> packed, std::string kind,
                                                       const hosts::Topology& nodes, Deadline deadline) {
  for (std::size_t from = 0;; from = at_) {
    const auto offers = unpacked(packed, kind);
    pass_over(from, offers, board);
    const auto by_carrier = [](const Offer& a, const Offer& b) { return a.carrier < b.carrier; };
    const auto [first, furthest] = std::minmax_element(offers.begin(), offers.end(), by_carrier);
    at_ = furthest->carrier;
    if (first->carrier == at_) {
      std::shared_ptr<hosts::Link> link;
      const std::string why = try_to_connect(board, store, offers, nodes, deadline, link);
      if (why.empty()) return link;
      pass_over(why);
      ++at_;
    }
    awaited_ = concat("offer", ++round_);
    kind = awaited_;
    board.put(kind, offer());
    packed = board.read(kind);
  }
}

/// Why not all ranks are connected; empty if they are. Throws if there is no other carrier.
std::string CarrierAgreement::try_to_connect(Board& board, const c10::intrusive_ptr<c10d::Store>& store,
                                             const std::vector<Offer>& offers, const hosts::Topology& nodes,
                                             Deadline deadline, std::shared_ptr<hosts::Link>& link) {
  for (std::size_t rank = 1; rank < offers.size(); ++rank) {
    if (offers[rank].version == offers[0].version) continue;
    const std::string why = concat(board.describe(0), " has ", offers[0].version, ", and ",
                                   board.describe(static_cast<int>(rank)), " has ", offers[rank].version);
    if (last()) fail(Errc::protocol, "group ", name_, ": ", why, ": install the same version on all hosts");
    return why;
  }
  awaited_ = concat("connected", round_);
  stopped_ = false;
  std::string answer(1, kConnected);
  try {
    link = connect_prepared(board, store, offers, nodes, deadline);
  } catch (const std::exception& error) {  // a timeout too
    if (last() || aborted(error)) throw;
    answer = stopped_ ? std::string(1, kStopped) : concat(kFailed, first_line(error));
    board.put_for_all(unconnected());
    if (prepared_.abandon) prepared_.abandon();
    prepared_ = {};
    prepared_at_.reset();
  }
  board.put(awaited_, bytes_of(answer));
  const std::vector<Bytes> answers = board.read(awaited_, kStoreGrace);
  for (std::size_t rank = 0; rank < answers.size(); ++rank)
    if (const std::string said = text_of(answers[rank]); said.starts_with(kFailed))
      return concat(board.describe(static_cast<int>(rank)), ": ", said.substr(1));
  return "";
}

std::shared_ptr<hosts::Link> CarrierAgreement::connect_prepared(Board& board,
                                                                const c10::intrusive_ptr<c10d::Store>& store,
                                                                const std::vector<Offer>& offers,
                                                                const hosts::Topology& nodes,
                                                                Deadline deadline) try {
  std::vector<std::string> addresses;
  for (const Offer& offer : offers) addresses.push_back(offer.address);
  const auto all = std::chrono::duration_cast<milliseconds>(deadline.left(deadline.span()));
  const auto left = std::max(last() ? all : all / 2, milliseconds(1));
  const auto own = c10::make_intrusive<c10d::PrefixStore>(board.prefix(concat("between", round_)), store);
  const auto call = [prepared = prepared_, addresses, nodes, own, left](c10d::Store&) {
    return prepared.connect(own, addresses, nodes, left);
  };
  // In a thread, because Gloo waits for five times its timeout for ranks that should connect to this one.
  return StoreThread(own).run(call, Deadline::after(left + kStoreGrace), [&] {
    interrupt_check()();
    board.check_failure();
    if (!prepared_.abandon || !board.has(unconnected())) return;
    stopped_ = true;
    prepared_.abandon();
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
