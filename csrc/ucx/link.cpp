#include "ucx/link.h"

#include <mutex>
#include <utility>

namespace occl::ucx {
namespace {

class LinkMessage final : public hosts::Link::Message {
 public:
  LinkMessage(std::shared_ptr<Link::Facts> facts, std::shared_ptr<ucx::Message> message)
      : facts_(std::move(facts)), message_(std::move(message)) {}
  ~LinkMessage() override {
    if (message_->ended()) return;
    if (message_->owner)
      worker().let_go(*message_);
    else if (!worker().give_up(message_, facts_->group))
      facts_->stuck.store(true, std::memory_order_relaxed);
  }
  bool ended() const override { return worker().ask(*message_); }
  std::optional<Error> error() const override { return worker().error_of(*message_); }

 private:
  Worker& worker() const { return facts_->carrier->worker(); }

  const std::shared_ptr<Link::Facts> facts_;
  const std::shared_ptr<ucx::Message> message_;
};

}  // namespace

void Carrier::sleep(const shm::Bell::Sleep& bell, std::chrono::nanoseconds span) {
  worker_.caretaker().watch();
  bell.wait(span);
  worker_.caretaker().unwatch();
}

void Carrier::abandon(std::shared_ptr<Carrier> carrier) {
  static std::mutex mutex;
  static auto* const all = new std::vector<std::shared_ptr<Carrier>>;  // never destroyed
  carrier->worker_.caretaker().stop();
  std::lock_guard lock(mutex);
  all->push_back(std::move(carrier));
}

Link::Link(std::shared_ptr<Carrier> carrier, std::vector<int> ranks, std::string group)
    : carrier_(std::move(carrier)),
      ranks_(std::move(ranks)),
      facts_(std::make_shared<Facts>(carrier_, std::move(group))),
      used_(ranks_.size()) {}

std::shared_ptr<hosts::Link> Link::for_ranks(const std::vector<int>& ranks, const std::string& name) const {
  std::vector<int> of_worker;
  for (const int rank : ranks) of_worker.push_back(ranks_[rank]);
  return std::make_shared<Link>(carrier_, std::move(of_worker), name);
}

std::unique_ptr<hosts::Link::Message> Link::send(int peer, std::uint32_t channel, const std::byte* data,
                                                 std::size_t bytes, Owner owner) {
  used_[peer].store(true, std::memory_order_relaxed);
  return std::make_unique<LinkMessage>(
      facts_, carrier_->worker().send(ranks_[peer], channel, data, bytes, std::move(owner)));
}

std::unique_ptr<hosts::Link::Message> Link::receive(int peer, std::uint32_t channel, std::byte* data,
                                                    std::size_t bytes, Owner owner) {
  used_[peer].store(true, std::memory_order_relaxed);
  return std::make_unique<LinkMessage>(
      facts_, carrier_->worker().receive(ranks_[peer], channel, data, bytes, std::move(owner)));
}

void Link::end_group(std::uint32_t number) {
  std::vector<int> used;
  for (std::size_t peer = 0; peer < ranks_.size(); ++peer)
    if (used_[peer].load(std::memory_order_relaxed)) used.push_back(ranks_[peer]);
  carrier_->worker().end_group(number, used);
}

}  // namespace occl::ucx
