// A backend between nodes, which all groups of a process share: messages of bytes over any c10d::Backend that
// can send and receive. We write no network code.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "hosts/group_numbers.h"
#include "hosts/link.h"
#include "pg/transport/control_channel.h"
#include "pg/transport/waiters.h"

namespace occl::pg {

class InterNode {
 public:
  /// `name` is for texts: "gloo over eth0 (10.0.0.1)".
  InterNode(std::string name, c10::intrusive_ptr<c10d::Backend> backend);

  const std::string& describe() const { return name_; }
  c10d::Backend& backend() { return *backend_; }
  /// A number that no other group on this backend has. Only one rank of a new group calls it, and tells the
  /// others. Throws Error(closed) when there are no more.
  std::uint32_t new_group_number() { return numbers_.next(name_); }
  /// Whether `new_group_number` of this rank can return such a number.
  bool can_come_from(int rank, std::uint32_t number) const { return numbers_.can_come_from(rank, number); }

  /// The short messages of all groups.
  ControlChannel& control() { return *control_; }
  /// Starts a message of bytes to or from a rank of the backend, with a tag.
  std::shared_ptr<Pending> start(const Lane& lane, std::byte* data, std::size_t bytes,
                                 hosts::Link::Owner owner);
  /// Whether a message has ended. After `false`, the engine is rung when it ends.
  bool ask(Pending& message);
  /// Once ended: what went wrong, or nothing.
  std::optional<Error> error_of(const Pending& message);
  /// Ends a message of this group whose buffer is needed no more. If it does not end by itself, the
  /// connection to its rank is broken for all groups. False if the backend does not end it even then.
  bool give_up(const std::shared_ptr<Pending>& message, const std::string& group);

  ~InterNode();

  // For the control channel:

  /// As `start`, but no thread waits for the message until its lane is served.
  std::shared_ptr<Pending> begin(const Lane& lane, std::byte* data, std::size_t bytes,
                                 hosts::Link::Owner owner, Pending::Then then = nullptr);
  /// The group that broke the connection to a rank, or nothing.
  std::string broken_by(int rank);
  Waiters& waiters() { return waiters_; }

 private:
  std::mutex mutex_;
  std::vector<std::weak_ptr<Pending>> under_way_;
  std::map<int, std::string>
      broken_;                       // by rank: the group that gave a message up, and so broke the connection
  std::atomic<bool> stuck_ = false;  // a message did not end after its abort; relaxed: only shortens waits
  const c10::intrusive_ptr<c10d::Backend> backend_;
  const std::string name_;
  hosts::GroupNumbers numbers_;
  const std::shared_ptr<ControlChannel> control_ = std::make_shared<ControlChannel>(*this);
  Waiters waiters_;  // the first to be destroyed: its calls use the backend
};

}  // namespace occl::pg
