// The link of groups that span nodes: messages between their ranks over a c10d::Backend. Short ones travel in
// the frames of the control channel, and long ones by themselves, with the tag of their channel.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "hosts/link.h"
#include "pg/transport/inter_node.h"

namespace occl::pg {

class BackendLink final : public hosts::Link {
 public:
  /// `ranks`: of the backend, by rank of the group; whose name is for texts.
  BackendLink(std::shared_ptr<InterNode> inter_node, std::vector<int> ranks, std::string group);

  std::unique_ptr<Message> send(int peer, std::uint32_t channel, const std::byte* data, std::size_t bytes,
                                Owner owner) override;
  std::unique_ptr<Message> receive(int peer, std::uint32_t channel, std::byte* data, std::size_t bytes,
                                   Owner owner) override;
  std::shared_ptr<hosts::Link> for_ranks(const std::vector<int>& ranks,
                                         const std::string& name) const override;
  const std::string& describe() const override { return inter_node_->describe(); }
  bool stuck() const override { return facts_->stuck.load(std::memory_order_relaxed); }

  /// What its messages use, which can outlive it.
  struct Facts {
    Facts(std::shared_ptr<InterNode> through, std::string name)
        : inter_node(std::move(through)), group(std::move(name)) {}
    const std::shared_ptr<InterNode> inter_node;
    const std::string group;
    std::atomic<bool> stuck = false;  // relaxed: read by the thread that gives messages up
  };
  std::uint32_t new_group_number() override { return inter_node_->new_group_number(); }
  bool can_come_from(int peer, std::uint32_t number) const override {
    return inter_node_->can_come_from(ranks_[peer], number);
  }

  void end_group(std::uint32_t number) override { inter_node_->control().end_group(number); }

 private:
  std::unique_ptr<Message> start(bool send, int peer, std::uint32_t channel, std::byte* data,
                                 std::size_t bytes, Owner owner);

  const std::shared_ptr<InterNode> inter_node_;
  const std::vector<int> ranks_;
  const std::shared_ptr<Facts> facts_;
};

}  // namespace occl::pg
