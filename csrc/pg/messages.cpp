#include "pg/messages.h"

#include <ATen/Functions.h>
#include <ATen/record_function.h>

#include <atomic>
#include <climits>
#include <utility>

#include "base/error.h"
#include "base/thread.h"
#include "coll/engine.h"
#include "hosts/membership.h"
#include "pg/runtime.h"

namespace occl::pg {
namespace {

/// A message waits for as long as its group lets it: the group knows the deadline, and gives it up.
constexpr std::chrono::milliseconds kForever = std::chrono::hours(24 * 30);

/// How long a message that is given up may take to end by itself.
constexpr std::chrono::milliseconds kPatience{300};

/// A tag is an int.
constexpr std::uint32_t kLastChannel = INT_MAX / hosts::kStreams - 1;

/// Sends of a lane that may wait to be asked for.
constexpr std::size_t kUnasked = 16;

std::string first_line(const std::exception& error) {
  const std::string text = error.what();
  return text.empty() ? "the message failed" : text.substr(0, text.find('\n'));
}

}  // namespace

class Pending {
 public:
  Pending(Waiters::Lane lane, hosts::Link::Owner owner) : lane(lane), owner(std::move(owner)) {}

  bool ended() const { return stage_.load(std::memory_order_acquire) == Stage::ended; }  // pairs with end
  /// The engine is to be rung when it ends. False if it has ended already.
  bool await() {
    Stage stage = Stage::started;
    return stage_.compare_exchange_strong(stage, Stage::awaited, std::memory_order_acq_rel,  // pairs with end
                                          std::memory_order_acquire) ||
           stage == Stage::awaited;
  }
  void end(std::string why) {
    bool ring = !why.empty();
    {
      std::lock_guard lock(mutex_);
      if (ended()) return;  // it failed when it was started
      broken_ = std::move(why);
      // Pairs with await: one of the two sees what the other has done.
      ring |= stage_.exchange(Stage::ended, std::memory_order_acq_rel) == Stage::awaited;
    }
    over_.notify_all();
    if (ring) engine().ring();
  }
  /// Blocks until it has ended.
  void wait() noexcept {
    std::string why;
    try {
      work->wait(kForever);
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
  /// Once ended: what went wrong, or nothing.
  const std::string& broken() const { return broken_; }

  const Waiters::Lane lane;
  const hosts::Link::Owner owner;
  c10::intrusive_ptr<c10d::Work> work;

 private:
  enum class Stage : std::uint8_t { started, awaited, ended };

  std::mutex mutex_;
  std::condition_variable over_;
  std::atomic<Stage> stage_ = Stage::started;
  std::string broken_;  // before Stage::ended
};

namespace {

class BackendMessage final : public hosts::Link::Message {
 public:
  BackendMessage(std::shared_ptr<InterNode> inter_node, std::shared_ptr<Pending> pending)
      : inter_node_(std::move(inter_node)), pending_(std::move(pending)) {}
  ~BackendMessage() override {
    if (!pending_->owner && !pending_->ended()) inter_node_->give_up(*pending_);
  }
  bool ended() const override { return inter_node_->ask(*pending_); }
  std::optional<Error> error() const override {
    if (pending_->broken().empty()) return std::nullopt;
    return Error(Errc::system, pending_->broken());
  }

 private:
  const std::shared_ptr<InterNode> inter_node_;
  const std::shared_ptr<Pending> pending_;
};

}  // namespace

// ---- Waiters

Waiters::~Waiters() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  for (auto& thread : threads_) thread.join();
}

void Waiters::add(const Lane& lane, std::shared_ptr<Pending> message) {
  std::lock_guard lock(mutex_);
  lanes_[lane].messages.push_back(std::move(message));
}

void Waiters::serve(const Lane& lane) {
  std::lock_guard lock(mutex_);
  const auto found = lanes_.find(lane);
  if (found == lanes_.end() || found->second.served) return;
  unserved_.push_back(lane);
  found->second.served = true;
  if (unserved_.size() <= idle_)
    wake_.notify_one();
  else
    threads_.push_back(
        start_thread<std::thread>("that waits for messages of other nodes", [this] { work(); }));
}

bool Waiters::withdraw(const Lane& lane, const Pending& message) {
  std::lock_guard lock(mutex_);
  const auto found = lanes_.find(lane);
  return found != lanes_.end() &&
         std::erase_if(found->second.messages, [&](const auto& it) { return it.get() == &message; }) > 0;
}

std::size_t Waiters::waiting(const Lane& lane) {
  std::lock_guard lock(mutex_);
  const auto found = lanes_.find(lane);
  return found == lanes_.end() ? 0 : found->second.messages.size();
}

void Waiters::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    ++idle_;
    wake_.wait(lock, [this] { return stop_ || !unserved_.empty(); });
    --idle_;
    if (unserved_.empty()) return;
    const auto lane = lanes_.find(unserved_.front());
    unserved_.pop_front();
    while (!lane->second.messages.empty()) {
      auto message = std::move(lane->second.messages.front());
      lane->second.messages.pop_front();
      lock.unlock();
      message->wait();
      message.reset();
      lock.lock();
    }
    lanes_.erase(lane);
  }
}

// ---- InterNode

InterNode::InterNode(std::string name, c10::intrusive_ptr<c10d::Backend> backend)
    : backend_(std::move(backend)), name_(std::move(name)) {}

std::uint32_t InterNode::new_channel() {
  // Each rank has every size-th number.
  const std::uint64_t count = channels_.fetch_add(1, std::memory_order_relaxed);
  const std::uint64_t channel = count * backend_->getSize() + backend_->getRank();
  if (channel > kLastChannel)
    fail(Errc::closed, "rank ", backend_->getRank(), " has made all groups that there are tags for in ",
         name_);
  return static_cast<std::uint32_t>(channel);
}

bool InterNode::can_come_from(int rank, std::uint32_t channel) const {
  const auto size = static_cast<std::uint32_t>(backend_->getSize());
  return channel >= size && channel <= kLastChannel && channel % size == static_cast<std::uint32_t>(rank);
}

std::shared_ptr<Pending> InterNode::start(bool send, int rank, int tag, std::byte* data, std::size_t bytes,
                                          hosts::Link::Owner owner) {
  const Waiters::Lane lane{send, rank, tag};
  auto message = std::make_shared<Pending>(lane, std::move(owner));
  std::vector<at::Tensor> tensors{at::from_blob(data, {static_cast<std::int64_t>(bytes)}, at::kByte)};
  // A profiler shows the operation, not its messages, some of which outlive the profile.
  const at::DisableRecordFunctionGuard unrecorded;
  try {
    if (broken_.load(std::memory_order_relaxed))
      fail(Errc::system, "another group ended while its messages were under way, and broke a connection of ",
           name_);
    message->work = send ? backend_->send(tensors, rank, tag) : backend_->recv(tensors, rank, tag);
    {
      std::lock_guard lock(mutex_);
      std::erase_if(under_way_, [](const auto& it) { return it.expired(); });
      under_way_.push_back(message);
    }
    waiters_.add(lane, message);
    if (!send || waiters_.waiting(lane) > kUnasked) waiters_.serve(lane);
  } catch (const std::exception& error) {
    message->end(first_line(error));
  }
  return message;
}

bool InterNode::ask(Pending& message) {
  if (message.ended() || !message.await()) return true;
  waiters_.serve(message.lane);
  return message.ended();
}

void InterNode::give_up(Pending& message) {
  try {
    if (!broken_.load(std::memory_order_relaxed) && (ask(message) || message.wait_for_end(kPatience))) return;
  } catch (const Error&) {  // no thread could be made, so this one waits below
  }
  broken_.store(true, std::memory_order_relaxed);
  message.work->abort();
  if (waiters_.withdraw(message.lane, message))
    message.wait();  // the thread of its lane waits for an earlier one
  else
    message.wait_for_end(kForever);
}

InterNode::~InterNode() {
  std::lock_guard lock(mutex_);
  for (const auto& it : under_way_)
    if (const auto message = it.lock(); message && !message->ended()) message->work->abort();
}

// ---- BackendLink

BackendLink::BackendLink(std::shared_ptr<InterNode> inter_node, std::vector<int> ranks)
    : inter_node_(std::move(inter_node)), ranks_(std::move(ranks)) {}

std::unique_ptr<hosts::Link::Message> BackendLink::start(bool send, int peer, std::uint32_t stream,
                                                         std::byte* data, std::size_t bytes, Owner owner) {
  return std::make_unique<BackendMessage>(
      inter_node_,
      inter_node_->start(send, ranks_[peer], static_cast<int>(stream), data, bytes, std::move(owner)));
}

std::unique_ptr<hosts::Link::Message> BackendLink::send(int peer, std::uint32_t stream, const std::byte* data,
                                                        std::size_t bytes, Owner owner) {
  return start(true, peer, stream, const_cast<std::byte*>(data), bytes, std::move(owner));
}
std::unique_ptr<hosts::Link::Message> BackendLink::receive(int peer, std::uint32_t stream, std::byte* data,
                                                           std::size_t bytes, Owner owner) {
  return start(false, peer, stream, data, bytes, std::move(owner));
}

}  // namespace occl::pg
