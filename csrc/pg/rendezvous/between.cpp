#include "pg/rendezvous/between.h"

#include <numeric>
#include <utility>
#include <vector>

#include "base/error.h"
#include "coll/progress/engine.h"
#include "pg/process/engine.h"
#include "pg/process/python_hooks.h"
#include "pg/transport/backend_link.h"
#include "ucx/link.h"

namespace occl::pg {
namespace {

using Store = c10::intrusive_ptr<c10d::Store>;

std::vector<int> all_ranks(int size) {
  std::vector<int> ranks(size);
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

/// Over a backend, once the ranks are connected.
PreparedBetween over(std::string engine, const PreparedInterNode& prepared, int rank, int size,
                     const std::string& group) {
  return {std::move(engine), prepared.name,
          [=](const Store& store, std::chrono::milliseconds timeout) -> std::shared_ptr<hosts::Link> {
            auto inter_node =
                std::make_shared<InterNode>(prepared.name, prepared.connect(store, rank, size, timeout));
            return std::make_shared<BackendLink>(std::move(inter_node), all_ranks(size), group);
          }};
}

/// By rank: what each rank needs to reach it.
std::vector<std::string> exchange_addresses(const Store& store, int rank, int size, const std::string& own,
                                            std::chrono::milliseconds timeout) {
  std::vector<std::string> keys, addresses;
  for (int other = 0; other < size; ++other) keys.push_back(std::to_string(other));
  store->set(keys[rank], std::vector<std::uint8_t>(own.begin(), own.end()));
  store->wait(keys, timeout);
  for (const std::string& key : keys) {
    const auto bytes = store->get(key);
    addresses.emplace_back(bytes.begin(), bytes.end());
  }
  return addresses;
}

}  // namespace

PreparedBetween between_by(const c10::intrusive_ptr<c10d::Backend>& given, int rank, int size,
                           const std::string& group) {
  if (given->getRank() != rank || given->getSize() != size)
    fail(Errc::invalid_argument, "Options.inter_node has rank ", given->getRank(), " of ", given->getSize(),
         ", but this group has rank ", rank, " of ", size, ": pass a backend made with the same ranks");
  const PreparedInterNode prepared{given->getBackendName(), [given](auto&&...) { return given; }};
  return over(concat("Options.inter_node=", prepared.name), prepared, rank, size, group);
}

PreparedBetween between_by_gloo(bool one_network, int rank, int size, const std::string& group) {
  return over("Gloo, which is used without Options.inter_node", prepare_inter_node(one_network), rank, size,
              group);
}

PreparedBetween between_by_ucx(bool one_network, int rank, int size, const std::string& group) {
  const PreparedUcx prepared = prepare_ucx(one_network);
  const auto carrier =
      std::make_shared<ucx::Carrier>(prepared.name, prepared.settings, rank, size, [] { engine().ring(); });
  const auto connect = [=](const Store& store,
                           std::chrono::milliseconds timeout) -> std::shared_ptr<hosts::Link> {
    ucx::Worker& worker = carrier->worker();
    worker.set_addresses(exchange_addresses(store, rank, size, worker.address(), timeout));
    engine().add(carrier);
    return std::make_shared<ucx::Link>(carrier, all_ranks(size), group);
  };
  return {"UCX, as Options.inter_node or OCCL_INTER_NODE says", carrier->name(), connect};
}

}  // namespace occl::pg
