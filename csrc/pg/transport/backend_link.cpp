#include "pg/transport/backend_link.h"

#include <ATen/Functions.h>
#include <ATen/record_function.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstdio>
#include <utility>

#include "base/error.h"
#include "base/thread.h"
#include "coll/progress/engine.h"
#include "hosts/group_info.h"
#include "pg/process/engine.h"
#include "pg/request/errors.h"

namespace occl::pg {
namespace {

/// A message waits for as long as its group lets it: the group knows the deadline, and gives it up.
constexpr std::chrono::milliseconds kForever = std::chrono::hours(24 * 30);

/// Time limits for a cancelled message: to end by itself, and to end after its abort, which has no effect in
/// some engines.
constexpr std::chrono::milliseconds kPatience{300}, kStubborn{10'000};

/// A tag is an int.
constexpr std::uint32_t kLastGroupNumber = INT_MAX / hosts::kChannels - 1;

/// Sends of a lane that have no thread while the caller has not asked for them.
constexpr std::size_t kUnasked = 16;

}  // namespace

class Pending {
 public:
  Pending(Waiters::Lane lane, hosts::Link::Owner owner) : lane(lane), owner(std::move(owner)) {}

  /// The backend is done with its buffer.
  bool ended() const { return stage_.load(std::memory_order_acquire) == Stage::ended; }  // pairs with end
  /// It could not be started, or no thread could be made that waits for it.
  bool failed() const { return failed_.load(std::memory_order_acquire); }  // pairs with fail
  /// The engine is to be rung when it ends. False if it has ended already.
  bool await() {
    Stage stage = Stage::started;
    return stage_.compare_exchange_strong(stage, Stage::awaited, std::memory_order_acq_rel,  // pairs with end
                                          std::memory_order_acquire) ||
           stage == Stage::awaited;
  }
  /// By the thread that has started it, which asks next. If the backend has its buffer, it has not ended.
  void fail(std::string why) {
    {
      std::lock_guard lock(mutex_);
      broken_ = std::move(why);
      failed_.store(true, std::memory_order_release);  // pairs with failed
    }
    if (!work) end("");
  }
  void end(std::string why) {
    bool ring = !why.empty();
    {
      std::lock_guard lock(mutex_);
      if (!failed()) broken_ = std::move(why);
      // Pairs with await: one of the two sees what the other has done.
      ring |= stage_.exchange(Stage::ended, std::memory_order_acq_rel) == Stage::awaited;
    }
    over_.notify_all();
    if (ring) engine().ring();
  }
  /// Blocks until it has ended.
  void wait(std::chrono::milliseconds limit = kForever) noexcept {
    std::string why;
    try {
      work->wait(limit);
    } catch (const std::exception& error) {
      why = first_line(error);
    }
    end(std::move(why));
  }
  /// Blocks until another thread has seen it end; false if that takes longer.
  bool wait_for_end(std::chrono::milliseconds limit) {
    std::unique_lock lock(mutex_);
    return over_.wait_for(lock, limit, [this] { return ended(); });
  }
  /// Once ended or failed: what went wrong, or nothing.
  std::string broken() const {
    std::lock_guard lock(mutex_);
    return broken_;
  }

  const Waiters::Lane lane;
  const hosts::Link::Owner owner;
  c10::intrusive_ptr<c10d::Work> work;

 private:
  enum class Stage : std::uint8_t { started, awaited, ended };

  mutable std::mutex mutex_;
  std::condition_variable over_;
  std::atomic<Stage> stage_ = Stage::started;
  std::atomic<bool> failed_ = false;
  std::string broken_;
};

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

// ---- Waiters

Waiters::~Waiters() {
  {
    std::unique_lock lock(state_->mutex);
    state_->stop = true;
    state_->wake.notify_all();
    state_->ended.wait_for(lock, kStubborn, [this] { return state_->running == 0; });
    if (state_->running > 0) {
      for (auto& thread : threads_) thread.detach();
      return;
    }
  }
  for (auto& thread : threads_) thread.join();
}

void Waiters::add(const Lane& lane, std::shared_ptr<Pending> message) {
  std::lock_guard lock(state_->mutex);
  state_->lanes[lane].messages.push_back(std::move(message));
}

void Waiters::serve(const Lane& lane) {
  std::lock_guard lock(state_->mutex);
  serve_locked(lane);
}

void Waiters::serve_locked(const Lane& lane) {
  const auto found = state_->lanes.find(lane);
  if (found == state_->lanes.end() || found->second.served) return;
  if (state_->unserved.size() >= state_->idle) {
    threads_.push_back(start_thread<std::thread>("that waits for messages of other nodes",
                                                 [state = state_] { work(*state); }));
    ++state_->running;
  }
  state_->unserved.push_back(lane);
  found->second.served = true;
  state_->wake.notify_one();
}

void Waiters::serve_alone(const std::shared_ptr<Pending>& message) {
  std::lock_guard lock(state_->mutex);
  const auto found = state_->lanes.find(message->lane);
  if (found == state_->lanes.end() || std::erase(found->second.messages, message) == 0) return;
  const auto& [sends, rank, tag] = message->lane;
  const Lane lane{sends, rank, -++alone_};  // no tag is negative
  state_->lanes[lane].messages.push_back(message);
  serve_locked(lane);
}

std::size_t Waiters::waiting(const Lane& lane) {
  std::lock_guard lock(state_->mutex);
  const auto found = state_->lanes.find(lane);
  return found == state_->lanes.end() ? 0 : found->second.messages.size();
}

void Waiters::work(State& state) {
  std::unique_lock lock(state.mutex);
  for (;;) {
    ++state.idle;
    state.wake.wait(lock, [&] { return state.stop || !state.unserved.empty(); });
    --state.idle;
    if (state.unserved.empty()) break;
    const auto lane = state.lanes.find(state.unserved.front());
    state.unserved.pop_front();
    while (!lane->second.messages.empty()) {
      auto message = std::move(lane->second.messages.front());
      lane->second.messages.pop_front();
      lock.unlock();
      message->wait();
      message.reset();
      lock.lock();
    }
    state.lanes.erase(lane);
  }
  --state.running;
  state.ended.notify_all();
}

// ---- InterNode

InterNode::InterNode(std::string name, c10::intrusive_ptr<c10d::Backend> backend)
    : backend_(std::move(backend)), name_(std::move(name)) {}

std::uint32_t InterNode::new_group_number() {
  // Each rank has every size-th number.
  const std::uint64_t count = group_numbers_.fetch_add(1, std::memory_order_relaxed);
  const std::uint64_t number = count * backend_->getSize() + backend_->getRank();
  if (number > kLastGroupNumber)
    fail(Errc::closed, "rank ", backend_->getRank(), " has no group tags left on ", name_,
         ": destroy the default group and create it again");
  return static_cast<std::uint32_t>(number);
}

bool InterNode::can_come_from(int rank, std::uint32_t number) const {
  const auto size = static_cast<std::uint32_t>(backend_->getSize());
  return number >= size && number <= kLastGroupNumber && number % size == static_cast<std::uint32_t>(rank);
}

/// The group that broke the connection to a rank, or nothing.
std::string InterNode::broken_by(int rank) {
  std::lock_guard lock(mutex_);
  const auto found = broken_.find(rank);
  return found == broken_.end() ? "" : found->second;
}

std::shared_ptr<Pending> InterNode::start(bool send, int rank, int tag, std::byte* data, std::size_t bytes,
                                          hosts::Link::Owner owner, const std::string& group) {
  const Waiters::Lane lane{send, rank, tag};
  auto message = std::make_shared<Pending>(lane, std::move(owner));
  std::vector<at::Tensor> tensors{at::from_blob(data, {static_cast<std::int64_t>(bytes)}, at::kByte)};
  // A profiler shows the operation, not its messages, some of which outlive the profile.
  const at::DisableRecordFunctionGuard unrecorded;
  if (!broken_by(rank).empty()) {
    message->fail("?");  // error_of says why
    return message;
  }
  try {
    message->work = send ? backend_->send(tensors, rank, tag) : backend_->recv(tensors, rank, tag);
    {
      std::lock_guard lock(mutex_);
      std::erase_if(under_way_, [](const auto& it) { return it.expired(); });
      under_way_.push_back(message);
    }
    waiters_.add(lane, message);
    if (!send || waiters_.waiting(lane) > kUnasked) waiters_.serve(lane);
  } catch (const std::exception& error) {
    message->fail(first_line(error));  // which does not end it, if the backend has its buffer
  }
  return message;
}

bool InterNode::ask(Pending& message) {
  if (message.ended() || message.failed() || !message.await()) return true;
  waiters_.serve(message.lane);
  return message.ended();
}

std::optional<Error> InterNode::error_of(const Pending& message) {
  const std::string why = message.broken();
  if (why.empty()) return std::nullopt;
  const std::string group = broken_by(std::get<1>(message.lane));
  if (group.empty()) return Error(Errc::system, why);
  return Error(Errc::closed, concat("group ", group,
                                    " ended with a message under way there, and so broke the connection: "
                                    "destroy all groups and create them again"));
}

bool InterNode::give_up(const std::shared_ptr<Pending>& message, const std::string& group) {
  const int rank = std::get<1>(message->lane);
  try {
    if (broken_by(rank).empty() && !message->failed() && (ask(*message) || message->wait_for_end(kPatience)))
      return true;
  } catch (const Error&) {  // no thread could be made
  }
  {
    std::lock_guard lock(mutex_);
    broken_.emplace(rank, group);
  }
  message->work->abort();
  try {
    waiters_.serve_alone(message);
  } catch (const Error&) {
    message->wait(kStubborn);  // no thread can be made, so this one waits
  }
  if (message->wait_for_end(stuck_ ? kPatience : kStubborn)) return true;
  if (!stuck_.exchange(true, std::memory_order_relaxed))
    std::fprintf(
        stderr,
        "torch_occl: %s has not ended a message with rank %d for %lld ms after its abort: the memory of "
        "the operations that group %s had in flight stays allocated until process %d ends\n",
        name_.c_str(), rank, static_cast<long long>(kStubborn.count()), group.c_str(), getpid());
  return false;
}

InterNode::~InterNode() {
  std::lock_guard lock(mutex_);
  for (const auto& it : under_way_)
    if (const auto message = it.lock(); message && !message->ended()) message->work->abort();
}

// ---- BackendLink

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
  return std::make_unique<BackendMessage>(
      facts_, inter_node_->start(send, ranks_[peer], static_cast<int>(channel), data, bytes, std::move(owner),
                                 facts_->group));
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
