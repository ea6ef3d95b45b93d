// Ranks of several nodes as threads of one process, and a link between them through memory.
#pragma once

#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "cluster.h"
#include "hosts/group.h"

namespace occl::test {

/// The messages of all ranks. A message is copied when both of its sides have been started.
class Wire {
 public:
  struct Side {
    std::byte* data;
    std::size_t bytes;
    int rank;
    Mutex* mutex;
    hosts::Link::Owner owner;
    bool ended = false, given_up = false;
    std::string broken;
  };
  using Key = std::tuple<int, int, std::uint32_t>;  // from, to, channel

  explicit Wire(int ranks) : engines(ranks), sent(ranks) {}

  std::shared_ptr<Side> start(bool send, const Key& key, std::byte* data, std::size_t bytes,
                              hosts::Link::Owner owner) {
    const auto [from, to, channel] = key;
    auto side = std::make_shared<Side>(
        Side{data, bytes, send ? from : to, &mutex, std::move(owner), false, false, ""});
    std::lock_guard lock(mutex);
    if (dead[from] || dead[to]) {
      side->ended = true;
      side->broken = "Connection closed by peer";
      return side;
    }
    if (send) sent[from] += bytes;
    if (send && held[{from, to}])
      waiting.emplace_back(key, side);
    else
      match(send, key, side);
    return side;
  }

  /// What the rank sends to the other one from now on arrives only after `release`.
  void hold(int from, int to) {
    std::lock_guard lock(mutex);
    held[{from, to}] = true;
  }
  void release() {
    std::lock_guard lock(mutex);
    held.clear();
    for (const auto& [key, side] : std::exchange(waiting, {})) match(true, key, side);
  }

  /// Every message to and from the rank fails, and later ones too.
  void cut(int rank) {
    std::lock_guard lock(mutex);
    dead[rank] = true;
    for (auto* all : {&sends, &receives})
      for (auto& [key, queue] : *all)
        if (std::get<0>(key) == rank || std::get<1>(key) == rank)
          for (auto& side : std::exchange(queue, {})) {
            side->ended = true;
            side->broken = "Connection closed by peer";
            if (engines[side->rank]) engines[side->rank]->ring();
          }
  }

  Mutex mutex;
  Atomic<bool> stuck = false;               // Link::stuck of all ranks
  Atomic<std::uint32_t> group_numbers = 1;  // that groups have; the first group has 0
  std::vector<coll::Engine*> engines;       // by rank
  std::vector<std::size_t> sent;            // bytes, by rank

 private:
  void match(bool send, const Key& key, const std::shared_ptr<Side>& side) {
    auto& mine = send ? sends[key] : receives[key];
    auto& theirs = send ? receives[key] : sends[key];
    while (!theirs.empty() && theirs.front()->given_up) theirs.pop_front();
    if (theirs.empty()) return mine.push_back(side);
    const auto other = theirs.front();
    theirs.pop_front();
    if (other->bytes != side->bytes)
      side->broken = other->broken =
          concat("sizes ", side->bytes, " and ", other->bytes, " of a message differ");
    else
      send ? std::memcpy(other->data, side->data, side->bytes)
           : std::memcpy(side->data, other->data, side->bytes);
    side->ended = other->ended = true;
    for (const int rank : {side->rank, other->rank})
      if (engines[rank]) engines[rank]->ring();
  }

  std::map<Key, std::deque<std::shared_ptr<Side>>> sends, receives;
  std::deque<std::pair<Key, std::shared_ptr<Side>>> waiting;  // for `release`
  std::map<std::pair<int, int>, bool> held;                   // from, to
  std::map<int, bool> dead;
};

class MemoryLink final : public hosts::Link {
 public:
  /// `ranks`: those of the wire, by rank of the group; empty: the same.
  MemoryLink(Wire& wire, int rank, std::vector<int> ranks = {})
      : wire_(wire), rank_(rank), ranks_(std::move(ranks)) {}

  struct InMemory final : Message {
    explicit InMemory(std::shared_ptr<Wire::Side> side) : side(std::move(side)) {}
    ~InMemory() override {
      std::lock_guard lock(*side->mutex);
      side->given_up = !side->owner;
    }
    bool ended() const override {
      std::lock_guard lock(*side->mutex);
      return side->ended;
    }
    std::optional<Error> error() const override {
      std::lock_guard lock(*side->mutex);
      return side->broken.empty() ? std::nullopt : std::optional(Error(Errc::system, side->broken));
    }
    std::shared_ptr<Wire::Side> side;
  };

  std::unique_ptr<Message> send(int peer, std::uint32_t channel, const std::byte* data, std::size_t bytes,
                                Owner owner) override {
    return std::make_unique<InMemory>(wire_.start(true, {rank_, on_wire(peer), channel},
                                                  const_cast<std::byte*>(data), bytes, std::move(owner)));
  }
  std::unique_ptr<Message> receive(int peer, std::uint32_t channel, std::byte* data, std::size_t bytes,
                                   Owner owner) override {
    return std::make_unique<InMemory>(
        wire_.start(false, {on_wire(peer), rank_, channel}, data, bytes, std::move(owner)));
  }
  std::shared_ptr<hosts::Link> for_ranks(const std::vector<int>& ranks, const std::string&) const override {
    std::vector<int> of_wire;
    for (const int it : ranks) of_wire.push_back(on_wire(it));
    return std::make_shared<MemoryLink>(wire_, rank_, std::move(of_wire));
  }
  std::uint32_t new_group_number() override {
    return wire_.group_numbers.fetch_add(1, std::memory_order_relaxed);
  }
  bool can_come_from(int, std::uint32_t number) const override {
    return number != hosts::kFirstGroupNumber && number < wire_.group_numbers.load(std::memory_order_relaxed);
  }
  void end_group(std::uint32_t) override {}
  bool stuck() const override { return wire_.stuck.load(std::memory_order_relaxed); }
  const std::string& describe() const override { return name_; }

 private:
  int on_wire(int peer) const { return ranks_.empty() ? peer : ranks_[peer]; }

  Wire& wire_;
  const int rank_;  // of the wire
  const std::vector<int> ranks_;
  const std::string name_ = "memory";
};

/// All ranks of a group over several nodes.
class Hosts {
 public:
  explicit Hosts(const std::vector<int>& node_of)
      : topology(node_of), wire(topology.size()), ranks(topology.size()) {
    std::vector<std::string> names;
    for (int r = 0; r < topology.size(); ++r)
      names.push_back(concat("pid ", 100 + r, ", host ", char('a' + topology.node_of(r) % 26)));
    for (int m = 0; m < topology.nodes(); ++m)
      nodes.push_back(std::make_unique<Cluster>(topology.node_size(m), Tuning{}, std::vector<std::int64_t>{},
                                                topology.members(m)));
    for (int r = 0; r < topology.size(); ++r) {
      Rank& local = (*nodes[topology.node_of(r)])[topology.local_rank(r)];
      wire.engines[r] = local.engine.get();
      ranks[r].rank = r;
      ranks[r].size = topology.size();
      ranks[r].number = local.number;
      ranks[r].regions = local.regions;
      ranks[r].endpoint = local.endpoint;
      ranks[r].engine_of_another = local.engine.get();
      ranks[r].wide = std::make_shared<hosts::Group>(hosts::GroupInfo{"0", r, topology, names, 0, 64 << 10},
                                                     local.group, std::make_shared<MemoryLink>(wire, r));
      local.engine->add(ranks[r].wide);
    }
  }
  ~Hosts() {
    std::vector<Thread> threads;  // each waits until the others know that it leaves
    for (Rank& rank : ranks) threads.emplace_back([&rank] { rank.wide->close(); });
    for (auto& thread : threads) thread.join();
    for (Rank& rank : ranks) rank.forget_calls();
    for (Rank& rank : ranks) rank.wide.reset();
  }

  Rank& operator[](int i) { return ranks[i]; }
  int size() const { return topology.size(); }

  /// Runs `body` on every rank at once. The first exception is thrown again.
  void each(const std::function<void(Rank&)>& body) {
    std::vector<Thread> threads;
    Mutex mutex;
    std::exception_ptr error;
    for (Rank& rank : ranks)
      threads.emplace_back([&] {
        try {
          body(rank);
        } catch (...) {
          {
            std::lock_guard lock(mutex);
            if (!error) error = std::current_exception();
          }
          rank.wide->abort("its thread failed");
        }
      });
    for (auto& thread : threads) thread.join();
    if (error) std::rethrow_exception(error);
  }

  const hosts::Topology topology;
  Wire wire;
  std::vector<std::unique_ptr<Cluster>> nodes;
  std::vector<Rank> ranks;
};

}  // namespace occl::test
