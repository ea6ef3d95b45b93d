#include "pg/rendezvous/between.h"

#include <cstddef>
#include <numeric>
#include <thread>
#include <utility>
#include <vector>

#include "base/deadline.h"
#include "base/error.h"
#include "base/sync.h"
#include "coll/progress/engine.h"
#include "hosts/group_info.h"
#include "pg/process/engine.h"
#include "pg/process/environment.h"
#include "pg/process/python_hooks.h"
#include "pg/transport/backend_link.h"
#include "tcp/api.h"
#include "ucx/link.h"

namespace occl::pg {
namespace {

using Store = c10::intrusive_ptr<c10d::Store>;

/// Between two looks at whether a greeting has arrived.
constexpr std::chrono::microseconds kPause{50};

std::vector<int> all_ranks(int size) {
  std::vector<int> ranks(size);
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

/// Over a backend, once the ranks are connected.
PreparedBetween over(const PreparedInterNode& prepared, int rank, int size, const std::string& group) {
  return {prepared.name, "", "",
          [=](const Store& store, const std::vector<std::string>&, const hosts::Topology&,
              std::chrono::milliseconds timeout) -> std::shared_ptr<hosts::Link> {
            auto inter_node =
                std::make_shared<InterNode>(prepared.name, prepared.connect(store, rank, size, timeout));
            return std::make_shared<BackendLink>(std::move(inter_node), all_ranks(size), group);
          },
          nullptr};
}

/// The rank of the next node that this rank greets, which has the same local rank if there is one.
int greeted_by(const hosts::Topology& nodes, int rank) {
  const int next = (nodes.node_of(rank) + 1) % nodes.nodes();
  return nodes.members(next)[nodes.local_rank(rank) % nodes.node_size(next)];
}

/// Exchanges a byte with ranks of neighbouring nodes. Throws Error(system) if nothing passes, or once
/// `stopped`.
void greet(hosts::Link& link, const hosts::Topology& nodes, int rank, Deadline deadline,
           const Atomic<bool>& stopped) {
  constexpr auto kChannel = static_cast<std::uint32_t>(hosts::Channel::control);
  const auto greeting = std::make_shared<std::byte>();
  std::vector<std::pair<int, std::unique_ptr<hosts::Link::Message>>> messages;
  const int next = greeted_by(nodes, rank);
  for (int other = 0; other < nodes.size(); ++other)
    if (nodes.node_of(other) != nodes.node_of(rank) && greeted_by(nodes, other) == rank) {
      const auto into = std::make_shared<std::byte>();
      messages.emplace_back(other, link.receive(other, kChannel, into.get(), 1, into));
    }
  messages.emplace_back(next, link.send(next, kChannel, greeting.get(), 1, greeting));
  for (;;) {
    std::erase_if(messages, [](const auto& it) {
      if (!it.second->ended()) return false;
      if (const auto error = it.second->error()) fail(Errc::system, "rank ", it.first, ": ", error->what());
      return true;
    });
    if (messages.empty()) return;
    if (deadline.passed() || stopped.load(std::memory_order_relaxed))
      fail(Errc::system, "rank ", messages.front().first, " does not answer");
    std::this_thread::sleep_for(kPause);
  }
}

/// Over UCX, or what has its functions.
PreparedBetween over(const ucx::Api& api, const PreparedUcx& prepared, int rank, int size,
                     const std::string& group) {
  const auto carrier = std::make_shared<ucx::Carrier>(prepared.name, api, prepared.settings, rank, size,
                                                      [] { engine().ring(); });
  const auto stopped = std::make_shared<Atomic<bool>>(false);  // relaxed: it may stop late
  const auto connect = [=](const Store&, const std::vector<std::string>& addresses,
                           const hosts::Topology& nodes,
                           std::chrono::milliseconds timeout) -> std::shared_ptr<hosts::Link> {
    const auto deadline = Deadline::after(timeout);
    carrier->worker().set_addresses(addresses);
    auto link = std::make_shared<ucx::Link>(carrier, all_ranks(size), group);
    greet(*link, nodes, rank, deadline, *stopped);
    engine().add(carrier);
    return link;
  };
  return {carrier->name(), api.name.substr(0, api.name.rfind('.')), carrier->worker().address(), connect,
          [carrier, stopped] {
            if (!stopped->exchange(true, std::memory_order_relaxed)) ucx::Carrier::abandon(carrier);
          }};
}

PreparedBetween by_ucx(bool one_network, bool asked, int rank, int size, const std::string& group) {
  const PreparedUcx prepared = prepare_ucx(one_network, asked);
  return over(ucx::api(prepared.settings), prepared, rank, size, group);
}

PreparedBetween by_tcp(bool one_network, bool asked, int rank, int size, const std::string& group) {
  PreparedTcp prepared = prepare_tcp(one_network, asked);
  ucx::Settings settings;
  settings.context = {{"LISTEN", std::move(prepared.address)}, {"RANK", std::to_string(rank)}};
  return over(tcp::api(), {std::move(prepared.name), std::move(settings)}, rank, size, group);
}

}  // namespace

CarrierChoice between_by(const c10::intrusive_ptr<c10d::Backend>& given, int rank, int size,
                         const std::string& group) {
  if (given->getRank() != rank || given->getSize() != size)
    fail(Errc::invalid_argument, "Options.inter_node has rank ", given->getRank(), " of ", given->getSize(),
         ", but this group has rank ", rank, " of ", size, ": pass a backend made with the same ranks");
  const PreparedInterNode prepared{given->getBackendName(), [given](auto&&...) { return given; }};
  return {concat("Options.inter_node=", prepared.name),
          {[=](bool) { return over(prepared, rank, size, group); }}};
}

CarrierChoice between_by(const std::string& name, int rank, int size, const std::string& group) {
  const bool asked = !name.empty();
  const PrepareBetween ucx = [=](bool one_network) { return by_ucx(one_network, asked, rank, size, group); };
  const PrepareBetween tcp = [=](bool one_network) { return by_tcp(one_network, asked, rank, size, group); };
  const PrepareBetween gloo = [=](bool one_network) {
    return over(prepare_inter_node(one_network), rank, size, group);
  };
  if (name == kUcx) return {"UCX, as Options.inter_node or OCCL_INTER_NODE says", {ucx}};
  if (name == kTcp) return {"TCP, as Options.inter_node or OCCL_INTER_NODE says", {tcp}};
  if (name == kGloo) return {"Gloo, as Options.inter_node or OCCL_INTER_NODE says", {gloo}};
  return {"UCX, TCP or Gloo, as occl chooses without Options.inter_node", {ucx, tcp, gloo}};
}

}  // namespace occl::pg
