// The link of groups that span nodes, over UCX or TCP.
//
//     Link of group 0 ──┐
//     Link of group 5 ──┼──▶ Carrier ──▶ Worker ──▶ UCX, or csrc/tcp
//     Link of group 9 ──┘
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "coll/progress/network.h"
#include "hosts/group_numbers.h"
#include "hosts/link.h"
#include "ucx/worker.h"

namespace occl::ucx {

/// What the links of a default group and of all groups of its ranks share.
class Carrier final : public coll::Network {
 public:
  /// `name` is for texts: "ucx over eth0 (10.0.0.1)". The rest: see Worker.
  Carrier(std::string name, const Api& api, const Settings& settings, int rank, int size,
          std::function<void()> ring)
      : name_(std::move(name)), worker_(api, settings, rank, size, std::move(ring)), numbers_(rank, size) {}

  const std::string& name() const { return name_; }
  Worker& worker() { return worker_; }
  hosts::GroupNumbers& numbers() { return numbers_; }
  void sleep(const shm::Bell::Sleep& bell, std::chrono::nanoseconds span) override;
  /// From now on nothing moves, and what is open stays open until the process ends.
  static void abandon(std::shared_ptr<Carrier> carrier);

 private:
  const std::string name_;
  Worker worker_;
  hosts::GroupNumbers numbers_;
};

class Link final : public hosts::Link {
 public:
  /// `ranks`: of the worker, by rank of the group; whose name is for texts.
  Link(std::shared_ptr<Carrier> carrier, std::vector<int> ranks, std::string group);

  std::unique_ptr<Message> send(int peer, std::uint32_t channel, const std::byte* data, std::size_t bytes,
                                Owner owner) override;
  std::unique_ptr<Message> receive(int peer, std::uint32_t channel, std::byte* data, std::size_t bytes,
                                   Owner owner) override;
  std::shared_ptr<hosts::Link> for_ranks(const std::vector<int>& ranks,
                                         const std::string& name) const override;
  std::uint32_t new_group_number() override { return carrier_->numbers().next(carrier_->name()); }
  bool can_come_from(int peer, std::uint32_t number) const override {
    return carrier_->numbers().can_come_from(ranks_[peer], number);
  }
  void end_group(std::uint32_t number) override;
  bool stuck() const override { return facts_->stuck.load(std::memory_order_relaxed); }
  bool has_threads() const override { return false; }
  const std::string& describe() const override { return carrier_->name(); }

  /// What its messages use, which can outlive it.
  struct Facts {
    Facts(std::shared_ptr<Carrier> through, std::string name)
        : carrier(std::move(through)), group(std::move(name)) {}
    const std::shared_ptr<Carrier> carrier;
    const std::string group;
    std::atomic<bool> stuck = false;  // relaxed: read by the thread that gives messages up
  };

 private:
  const std::shared_ptr<Carrier> carrier_;
  const std::vector<int> ranks_;
  const std::shared_ptr<Facts> facts_;
  std::vector<std::atomic<bool>> used_;  // by rank of the group: it has messages; relaxed: read at the end
};

}  // namespace occl::ucx
