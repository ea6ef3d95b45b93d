// The worker of UCX, or of what has UCX's functions (tcp/api.h), through which one default group exchanges
// messages with the ranks of other nodes.
//
// No thread belongs to a message. The thread that asks whether a message has ended lets the worker move all
// messages (`progress`). A thread of the engine that sleeps waits for the worker's descriptor too
// (Carrier::sleep). What must go on while no thread asks, because an operation ends before its last message
// has left this process, is the caretaker's (ucx/caretaker.h).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "hosts/link.h"
#include "ucx/api.h"
#include "ucx/caretaker.h"
#include "ucx/message.h"

namespace occl::ucx {

class Worker {
 public:
  /// For a rank of `size`; `ring` wakes the threads of the engine. Throws Error(system) if `api` cannot be
  /// used as the settings say.
  Worker(const Api& api, const Settings& settings, int rank, int size, std::function<void()> ring);
  /// Waits a moment until what was sent has left this process, and closes all connections.
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(peers_.size()); }
  /// What other ranks need to reach this one.
  std::string address();
  /// By rank; before the first message.
  void set_addresses(std::vector<std::string> addresses);

  std::shared_ptr<Message> send(int rank, std::uint32_t channel, const std::byte* data, std::size_t bytes,
                                hosts::Link::Owner owner);
  std::shared_ptr<Message> receive(int rank, std::uint32_t channel, std::byte* data, std::size_t bytes,
                                   hosts::Link::Owner owner);
  /// Whether a message has ended. After `false`, the engine is rung when it ends.
  bool ask(Message& message);
  /// Once ended: what went wrong, or nothing.
  std::optional<Error> error_of(const Message& message);
  /// Ends a message of this group whose buffer is needed no more. If it does not end by itself, the
  /// connection to its rank is broken for all groups. False if UCX does not end it even then.
  bool give_up(const std::shared_ptr<Message>& message, const std::string& group);
  /// The message can end at any time; a receive that has not begun to arrive ends now.
  void let_go(Message& message);
  /// The group with this number, which used these ranks, sends and expects nothing more here. What still
  /// arrives for it is thrown away.
  void end_group(std::uint32_t number, const std::vector<int>& ranks);

  /// Readable when something has arrived, once `arm` was true.
  int descriptor() const { return descriptor_; }
  /// False if there is something to move already.
  bool arm();
  void progress();
  Caretaker& caretaker() { return caretaker_; }

  // For the caretaker:

  /// How often a thread has moved messages. relaxed: a hint
  std::uint64_t looks() const { return looks_.load(std::memory_order_relaxed); }
  /// Moves messages; whether all that was sent has left this process.
  bool settle();

 private:
  /// What a rank sends when a group has ended there, which is the last message for that group.
  struct EndOfGroup {
    std::uint32_t rank = 0, number = 0;
  };
  struct Peer {
    Worker* worker = nullptr;
    int rank = 0;
    std::string address;
    abi::Endpoint* endpoint = nullptr;  // made with the first message
    std::string broken;                 // why there is no connection any more
    std::string broken_by;              // the group of this process that broke it, if one did
    std::vector<Message*> receives;     // that UCX has
    bool unsettled = false;             // what was sent may still be in this process
    std::set<std::uint32_t> over;       // groups that have ended there, and not here
  };

  // All of these need the lock.
  void connect(Peer& peer);
  void move();
  void break_connection(Peer& peer, const std::string& why, const std::string& group);
  void cancel(Message& message);
  void finish(Message& message, abi::Status status, std::size_t received);
  void end_now(Message& message, std::string why);
  void took(Message& message, abi::StatusOrRequest started);
  void forget(Message& message);
  void expect_end();
  void take_end(const EndOfGroup& end);
  void throw_away(int rank, std::uint32_t number);
  bool settled();
  std::string text(abi::Status status) const { return api_.status_string(status); }

  static void sent(void* request, abi::Status status, void* message);
  static void received(void* request, abi::Status status, const abi::ReceiveInfo* info, void* message);
  static void group_ended(void* request, abi::Status status, const abi::ReceiveInfo* info, void* worker);
  static void peer_failed(void* peer, abi::Endpoint*, abi::Status status);

  const Api& api_;
  const int rank_;
  const std::function<void()> ring_;
  abi::Context* context_ = nullptr;
  abi::Worker* worker_ = nullptr;
  int descriptor_ = -1;

  std::mutex mutex_;
  std::vector<Peer> peers_;                            // by rank
  std::vector<std::pair<Peer*, abi::Status>> failed_;  // noted by callbacks, for `move`
  std::vector<void*> leaving_;                         // requests for connections to be flushed or closed
  std::size_t sending_ = 0;                            // sends that UCX has
  std::set<std::uint32_t> ended_;                      // groups, here
  EndOfGroup end_;                                     // the next one of another rank
  void* expecting_end_ = nullptr;
  bool end_arrived_ = false;
  bool stuck_ = false;  // a message did not end after its connection was closed
  std::atomic<std::uint64_t> looks_ = 0;
  Caretaker caretaker_;  // the first to be destroyed: its thread uses the rest
};

}  // namespace occl::ucx
