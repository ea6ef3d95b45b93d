// The operations of the node's group and the messages over the link that have started and not ended.
#pragma once

#include <list>
#include <memory>
#include <vector>

#include "coll/group/group.h"
#include "hosts/link.h"

namespace occl::hosts {

class InFlight {
 public:
  /// An operation of the node's group, with what it points to.
  class NodeOperation final : public coll::Listener {
   public:
    explicit NodeOperation(const coll::Task& given, std::vector<coll::Block> in = {},
                           std::vector<coll::Block> out = {}, Deadline deadline = Deadline::never());
    void completed(coll::Operation&) noexcept override {
      completed_.store(true, std::memory_order_release);  // pairs with ended
    }
    void released(coll::Operation&) noexcept override {
      released_.store(true, std::memory_order_release);  // pairs with ended
    }
    /// True once the operation is safe to destroy or has failed.
    bool ended() const {
      return released_.load(std::memory_order_acquire) ||  // pairs with released
             (completed_.load(std::memory_order_acquire) && operation.error());
    }
    bool released() const { return released_.load(std::memory_order_acquire); }  // pairs with released

    std::vector<coll::Block> in, out;
    coll::Task task;
    coll::Operation operation;

   private:
    Atomic<bool> completed_ = false, released_ = false;
  };

  /// `place` is handed to `ended` when it ends. The operation is a part of `whole`.
  void add(coll::Group& node, std::unique_ptr<NodeOperation> node_operation, int place,
           const coll::Operation& whole);
  void add(std::unique_ptr<Link::Message> message, int peer, int place);

  bool empty() const { return items_.empty(); }

  static constexpr int kEverywhere = -1;
  /// Calls ended(place) for each that has ended, and forgets it; true if there was one. If an operation has
  /// failed, throws its error; if a message has, calls lost(peer, error), which throws. `place`: which
  /// messages are polled; a message that is not polled wakes no thread.
  template <class Ended, class Lost>
  bool collect_ended(int place, Ended&& ended, Lost&& lost) {
    bool any = false;
    for (auto it = items_.begin(); it != items_.end();) {
      const bool asked = it->node_operation || place == kEverywhere || it->place == place;
      if (!asked || !(it->message ? it->message->ended() : it->node_operation->ended())) {
        ++it;
        continue;
      }
      if (it->message) {
        if (const auto error = it->message->error()) lost(it->peer, *error);
      } else if (const Error* error = it->node_operation->operation.error()) {
        throw *error;
      }
      ended(it->place);
      it = items_.erase(it);
      any = true;
    }
    return any;
  }

  /// Gives up the messages. Operations stay until the node's group is closed.
  void cancel();
  /// Requires that the node's group is closed.
  void clear() { items_.clear(); }

 private:
  struct Item {
    std::unique_ptr<NodeOperation> node_operation;
    std::unique_ptr<Link::Message> message;
    int peer = -1;  // of the message
    int place = 0;
  };

  std::list<Item> items_;
};

}  // namespace occl::hosts
