#include "pg/transport/backend_link.h"

#include <utility>

namespace occl::pg {
namespace {

class BackendMessage final : public hosts::Link::Message {
 public:
  BackendMessage(std::shared_ptr<BackendLink::Facts> facts, std::shared_ptr<Pending> pending)
      : facts_(std::move(facts)), pending_(std::move(pending)) {}
  ~BackendMessage() override {
    if (pending_->owner || pending_->ended()) return;
    if (!facts_->inter_node->give_up(pending_, facts_->group))
      facts_->stuck.store(true, std::memory_order_relaxed);
  }
  bool ended() const override { return facts_->inter_node->ask(*pending_); }
  std::optional<Error> error() const override { return facts_->inter_node->error_of(*pending_); }

 private:
  const std::shared_ptr<BackendLink::Facts> facts_;
  const std::shared_ptr<Pending> pending_;
};

}  // namespace

BackendLink::BackendLink(std::shared_ptr<InterNode> inter_node, std::vector<int> ranks, std::string group)
    : inter_node_(std::move(inter_node)),
      ranks_(std::move(ranks)),
      facts_(std::make_shared<Facts>(inter_node_, std::move(group))) {}

std::shared_ptr<hosts::Link> BackendLink::for_ranks(const std::vector<int>& ranks,
                                                    const std::string& name) const {
  std::vector<int> of_backend;
  for (const int rank : ranks) of_backend.push_back(ranks_[rank]);
  return std::make_shared<BackendLink>(inter_node_, std::move(of_backend), name);
}

std::unique_ptr<hosts::Link::Message> BackendLink::start(bool send, int peer, std::uint32_t channel,
                                                         std::byte* data, std::size_t bytes, Owner owner) {
  ControlChannel& control = inter_node_->control();
  const int rank = ranks_[peer];
  std::shared_ptr<Pending> pending;
  if (bytes > ControlChannel::kLongest)
    pending = inter_node_->start({send, rank, static_cast<int>(channel)}, data, bytes, std::move(owner));
  else
    pending = send ? control.send(rank, channel, data, bytes)
                   : control.receive(rank, channel, data, bytes, std::move(owner));
  return std::make_unique<BackendMessage>(facts_, std::move(pending));
}

std::unique_ptr<hosts::Link::Message> BackendLink::send(int peer, std::uint32_t channel,
                                                        const std::byte* data, std::size_t bytes,
                                                        Owner owner) {
  return start(true, peer, channel, const_cast<std::byte*>(data), bytes, std::move(owner));
}
std::unique_ptr<hosts::Link::Message> BackendLink::receive(int peer, std::uint32_t channel, std::byte* data,
                                                           std::size_t bytes, Owner owner) {
  return start(false, peer, channel, data, bytes, std::move(owner));
}

}  // namespace occl::pg
